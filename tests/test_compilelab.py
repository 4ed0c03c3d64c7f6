"""Kernels of known make compiled: what the lab says of them, and what it says of every stage's."""

import dataclasses
import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
from tables import misread

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from qrlib import compilelab, jit  # noqa: E402
from qrlib.compilelab import Table, compile_kernel, compile_stage, sweep  # noqa: E402
from qrlib.launches import Config, launches  # noqa: E402
from qrlib.stages import STAGES  # noqa: E402

BOTH = ("sm_90a", "sm_100a")
TRITON_STAGES = [name for name in STAGES if name >= "s05"]
# the task's sizes, and some that are odd, tall and wide
SHAPES = (
    (20, 32, 32),
    (40, 176, 176),
    (40, 352, 352),
    (640, 512, 512),
    (60, 1024, 1024),
    (8, 2048, 2048),
    (2, 4096, 4096),
    (7, 333, 77),
    (4, 530, 530),
    (2, 50, 300),
)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def gemm_kernel(a_ptr, b_ptr, c_ptr, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, l = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    c = tl.zeros([M, N], tl.float32)
    for l0 in range(0, k, K):
        a = tl.load(a_ptr + i * k + (l0 + l)[None, :])
        b = tl.load(b_ptr + (l0 + l)[:, None] * N + j)
        c = tl.dot(a, b, c)
    tl.store(c_ptr + i * N + j, c)


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def square(x):
    return x * x


@triton.jit
def panel_kernel(P_ptr, out_ptr, m, BM: tl.constexpr, BN: tl.constexpr):
    """Two sums over the rows for each column in turn: a panel that has to stay in registers."""
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    P = tl.zeros([BM, BN], tl.float32) + tl.load(P_ptr + i * BN + c, mask=i < m, other=0.0)
    for j in tl.static_range(BN):
        x = tl.where(c == j, P, 0.0).sum(axis=1)[:, None]
        g, s = tl.reduce((x * P, square(P)), 0, add_pairs)
        P -= x * (0.001 * g * tl.rsqrt(s + 1.0))[None, :]
    tl.store(out_ptr + i * BN + c, P, mask=i < m)


ADD = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
GEMM = {"a_ptr": "*fp16:16", "b_ptr": "*fp16:16", "c_ptr": "*fp32:16", "k": "i32:16"}
PANEL = {"P_ptr": "*fp32:16", "out_ptr": "*fp32:16", "m": "i32:16"}


@functools.cache
def add(target="sm_100a", **options):
    return compile_kernel(add_kernel, ADD, {"BLOCK": 1024}, target=target, **options)


@functools.cache
def panel(BN=16, **options):
    return compile_kernel(panel_kernel, PANEL, {"BM": 512, "BN": BN}, **options)


@pytest.mark.parametrize("target", BOTH)
def test_an_addition(target):
    artifact = add(target)
    families = artifact.families
    assert artifact.tensor_cores == 0 and not artifact.spilled
    assert artifact.stack == artifact.shared == artifact.tensor_memory == 0
    assert not {"BAR", "SHFL", "LDS", "STS", "MUFU"} & set(families)
    # 1024 elements over 128 threads, two inputs, four at a time; a mask keeps none of them apart
    assert families["FP32"] == 8 and families["LDG"] % 2 == 0 and families["STG"] > 0
    assert families["LDG"] == 2 * families["STG"]
    assert 8 < artifact.registers < 64
    assert f".target {target}" in artifact.ptx


@pytest.mark.parametrize(
    ("target", "family", "ptx"),
    [("sm_90a", "HGMMA", "wgmma"), ("sm_100a", "tcgen05", "tcgen05.mma")],
)
def test_a_product_goes_to_the_tensor_cores(target, family, ptx):
    sizes = {"M": 128, "N": 128, "K": 64}
    artifact = compile_kernel(gemm_kernel, GEMM, sizes, target=target, num_warps=4, num_stages=3)
    assert artifact.families[family] == artifact.tensor_cores > 0
    assert ptx in artifact.ptx
    # two operands of 16 KiB, three of them on their way
    assert artifact.shared >= 2 * 16 * 1024
    assert (artifact.tensor_memory > 0) == (target == "sm_100a")
    assert artifact.fits and "shared memory" in artifact.limits


def test_a_panel_that_does_not_fit_spills():
    few, many = panel(num_warps=1), panel(num_warps=8)
    assert few.registers == 255 and few.stack > 0 and few.families["SPILL"] > 0
    assert few.spilled and "bytes of stack" in str(few)
    assert sum(few.spills) == few.families["SPILL"] and "outside of loops" in str(few)
    assert not many.spilled and "SPILL" not in many.families and "none" in str(many)
    assert many.spills == (0, 0)
    # two sums across warps need a barrier and shared memory; within one warp, shuffles
    assert many.families["BAR"] > 0 and many.shared > 0
    assert few.families["SHFL"] > 0 and "BAR" not in few.families


def test_every_instruction_is_counted():
    artifact = panel(num_warps=1)
    addresses = [int(a, 16) for a in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/", artifact.sass, re.M)]
    # 16 bytes each, from 0, and no gap: the disassembly was read to its end
    assert addresses == list(range(0, 16 * len(addresses), 16))
    assert 0 <= len(addresses) - sum(artifact.mix.values()) < 32
    assert artifact.code == 16 * sum(artifact.mix.values())
    # a long one: addresses of more than four digits
    assert addresses[-1] > 0xFFFF


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "programs", "bound"),
    [
        # 145 x 32 registers are granted as 4864: three warps a quarter of 16384
        (145, 1, 0, 12, "registers"),
        (245, 4, 0, 2, "registers"),
        (128, 8, 0, 2, "registers"),
        (24, 4, 0, 16, "warps"),
        (32, 1, 0, 32, "blocks"),
        # 1 KiB of 228 goes with each program
        (32, 1, 113 * 1024, 2, "shared memory"),
        (32, 1, 113 * 1024 + 1, 1, "shared memory"),
        (32, 1, 227 * 1024, 1, "shared memory"),
        (32, 1, 227 * 1024 + 1, 0, "shared memory"),
    ],
)
def test_occupancy_by_hand(registers, warps, shared, programs, bound):
    artifact = dataclasses.replace(add(), registers=registers, num_warps=warps, shared=shared)
    assert (artifact.programs, artifact.bound) == (programs, bound)
    assert artifact.fits == (programs > 0)
    columns = dataclasses.replace(artifact, shared=0, tensor_memory=256)
    assert columns.limits["tensor memory"] == 2


def test_what_does_not_fit_says_so():
    """384 KiB of operands."""
    sizes = {"M": 256, "N": 256, "K": 256}
    artifact = compile_kernel(gemm_kernel, GEMM, sizes, target="sm_90a", num_warps=8, num_stages=3)
    assert artifact.shared > artifact.device.shared_block
    assert not artifact.fits and artifact.programs == 0


def test_a_divisible_argument_makes_wider_loads():
    wide = add()
    narrow = compile_kernel(
        add_kernel, {**dict.fromkeys(ADD, "*fp32"), "n": "i32"}, {"BLOCK": 1024}
    )
    whole = compile_kernel(add_kernel, ADD | {"n": "i32:16"}, {"BLOCK": 1024})
    assert whole.families["LDG"] < wide.families["LDG"] <= narrow.families["LDG"]
    assert "LDG.E.128" in whole.sass and "LDG.E.128" not in narrow.sass


def test_a_sweep_is_a_table():
    table = sweep(add_kernel, ADD, {"BLOCK": [128, 256]}, target=list(BOTH), num_warps=[1, 2])
    assert isinstance(table, Table) and len(table) == 8
    seen = {(a.target, a.config.constexprs["BLOCK"], a.num_warps) for a in table}
    assert len(seen) == 8
    lines = str(table).splitlines()
    # what all share is said once, in the first line
    assert lines[0] == "kernel add_kernel"
    assert lines[1].split()[:4] == ["BLOCK", "num_warps", "target", "regs"]
    assert len(lines) == 2 + 8
    html = table._repr_html_()
    assert html.count("<tr>") == 9 and "add_kernel" in html
    assert str(Table()) == "nothing was compiled"


def test_a_table_may_have_fewer_columns():
    table = sweep(add_kernel, ADD, {"BLOCK": [128, 256]}, num_warps=[1, 2])
    said, heads, *rows = str(table.only("regs", "STG")).splitlines()
    assert heads.split() == ["BLOCK", "num_warps", "regs", "STG"] and len(rows) == 4
    assert "target sm_100a" in said
    assert str(table).splitlines()[1].split()[:3] == ["BLOCK", "num_warps", "regs"]
    assert len(table.only("regs")._repr_html_()) < len(table._repr_html_())


def test_a_table_tells_apart_what_differs_in_its_arguments_only():
    table = Table([add(), compile_kernel(add_kernel, ADD | {"n": "i32:16"}, {"BLOCK": 1024})])
    said, heads, *rows = str(table).splitlines()
    assert said == "kernel add_kernel, BLOCK=1024, target sm_100a"
    assert heads.split()[0] == "n" and [row.split()[0] for row in rows] == ["i32", "i32:16"]


def test_files(tmp_path):
    artifact = add()
    paths = artifact.write(tmp_path / "out")
    assert [p.suffix for p in paths] == [".ttir", ".ttgir", ".llir", ".ptx", ".sass"]
    assert all(p.name.startswith("add_kernel-BLOCK1024-sm_100a") for p in paths)
    texts = [artifact.ttir, artifact.ttgir, artifact.llir, artifact.ptx, artifact.sass]
    assert [p.read_text() for p in paths] == texts and len(set(texts)) == 5
    # the same again is the same files; another of the same name does not replace it
    assert artifact.write(tmp_path / "out") == paths
    other = compile_kernel(add_kernel, ADD | {"n": "i32:16"}, {"BLOCK": 1024})
    # the first level knows nothing of an argument that divides by 16 but in its note
    assert not {*other.write(tmp_path / "out")} & {*paths}
    assert [p.read_text() for p in paths] == texts


def test_seconds_are_those_of_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    begin = perf_counter()
    first = add.__wrapped__()
    whole, again = perf_counter() - begin, add.__wrapped__()
    assert 0.01 < first.seconds <= whole and "compiled in" in str(first)
    assert again.seconds is None and "compiled in" not in str(again)
    assert again.sass == first.sass


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((add_kernel, ADD), {"target": "sm_100"}, "target must be one of .*sm_100a"),
        (
            (add_kernel, ADD | {"z_ptr": "*fp32"}, {"BLOCK": 64}),
            {},
            "has the parameters x_ptr.*z_ptr",
        ),
        ((add_kernel, ADD, {"BLOK": 64}), {}, "has the parameters .*BLOK"),
    ],
)
def test_mistakes_are_named(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        compile_kernel(*arguments, **options)


@pytest.mark.parametrize(
    ("system", "todo"), [("Linux", "pip install"), ("Darwin", "container"), ("Windows", "WSL2")]
)
def test_without_triton_it_says_what_to_do(monkeypatch, system, todo):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(platform, "system", lambda: system)
    for attempt in (add.__wrapped__, lambda: launches("s01_mirror", 1, 2, 2)):
        with pytest.raises(RuntimeError, match=f"needs Triton.*{todo}"):
            attempt()


def run_panel():
    P = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(P)
    panel_kernel[(1,)](P, out, 64, BM=64, BN=16)
    return out


def test_one_process_runs_and_compiles(tmp_path, monkeypatch):
    """Kernels that sum, reduce with a function of their own and call another, before and after."""
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1")
    with jit.quick_reductions():
        before = run_panel()
        # nothing compiled before may help
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        compiled = panel(BN=2, num_warps=8)
        after = run_panel()
    assert torch.equal(before, after)
    # a process without the interpreter makes the same code
    script = (
        "import test_compilelab as t, hashlib;"
        "assert not t.triton.knobs.runtime.interpret;"
        "print(hashlib.sha256(t.panel(BN=2, num_warps=8).ptx.encode()).hexdigest())"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": path,
        "TRITON_CACHE_DIR": str(tmp_path / "0"),
    }
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert said.stdout.strip() == hashlib.sha256(compiled.ptx.encode()).hexdigest(), said.stderr


def test_reductions_in_halves_are_reductions():
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1")
    one_by_one = run_panel()
    assert one_by_one.isfinite().all()
    with jit.quick_reductions():
        torch.testing.assert_close(run_panel(), one_by_one)


def test_types_are_remembered_as_they_are_worked_out():
    """Of tiles and pointers, by sizes that come as numbers and as constants; and then let go."""
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1")
    numbers = (
        tl.float16,
        tl.int32,
        tl.pointer_type(tl.float16),
        tl.pointer_type(tl.float16, const=True),
    )
    shapes = [4, 8], [8, 4], [tl.constexpr(4), 8], [8, tl.constexpr(4)], [32]

    def made():
        scalars = [tl.tensor(k, number) for k, number in enumerate(numbers)]
        tiles = [
            tl.tensor(k, tl.block_type(number, shape))
            for k, (number, shape) in enumerate(product(numbers, shapes))
        ]
        # a type of another's shape, which is a tuple of Triton's
        again = [tl.tensor(0, x.type.with_element_ty(tl.int8)) for x in tiles]
        return [
            (str(x), x.handle, str(x.type), x.dtype, x.numel.value, [int(s) for s in x.shape])
            for x in scalars + tiles + again
        ]

    init, worked_out = tl.tensor.__init__, made()
    with jit.quick_reductions():
        assert made() == worked_out and made() == worked_out
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.int8, [3])
        assert tl.tensor.__init__ is not init
    assert tl.tensor.__init__ is init and made() == worked_out


def test_tiles_that_do_not_fit_are_refused_as_ever():
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1")
    with jit.quick_reductions():
        for sizes in ((4, 8), (8, 4)):
            with pytest.raises(triton.runtime.errors.InterpreterError, match="incompatible"):
                unlike_kernel[(1,)](torch.empty(64), M=sizes[0], N=sizes[1])
        x = torch.empty(4)
        unlike_kernel[(1,)](x, M=4, N=4)
        assert x.tolist() == [0, 2, 4, 6]


@triton.jit
def unlike_kernel(out_ptr, M: tl.constexpr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, M), (tl.arange(0, M) + tl.arange(0, N)).to(tl.float32))


@triton.jit(do_not_specialize=["size"])
def typed_kernel(x_ptr, h_ptr, out_ptr, size, n, one, eps, flag, nothing, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)) * eps)


def fake_stage(A, *, nb=16):
    """Launches one kernel three times, as a stage would, and must not see a number."""
    B, m, n = A.shape
    out = A.new_empty(B, m, n)
    assert A.device.type == "cuda" and A.is_cuda
    shape = torch.cuda.get_device_properties(A.device).multi_processor_count, B
    h = torch.zeros(4, device=A.device, dtype=torch.float16)
    for x in (A, A[:, 1:, 1:]):
        typed_kernel[shape](x, h, out, 1, m, 1, 0.5, True, None, BLOCK=nb, num_warps=2)
    typed_kernel[lambda given: (given["n"] // 16,)](
        A, h, out, 1, n=m, one=1, eps=0.5, flag=True, nothing=None, BLOCK=nb
    )


STAGE = SimpleNamespace(geqrf=fake_stage)


@pytest.mark.parametrize(("target", "sms"), [("sm_90a", 132), ("sm_100a", 148)])
def test_launches_on_paper(target, sms):
    first, second, third = launches(STAGE, 5, 48, 33, target=target, nb=32)
    assert first.grid == second.grid == (sms, 5) and third.grid == (3,)
    assert first.config.name == "typed_kernel"
    assert first.config.signature == {
        "x_ptr": "*fp32:16",
        "h_ptr": "*fp16:16",
        "out_ptr": "*fp32:16",
        "size": "i32",
        "n": "i32:16",
        "one": "1",
        "eps": "fp32",
        "flag": "u1",
        "nothing": "None",
    }
    assert first.config.constexprs == {"BLOCK": 32} and first.config.options == {"num_warps": 2}
    assert third.config.options == {} and third.config.signature == first.config.signature
    # 34 elements further on is no multiple of 16 bytes
    assert second.config.signature == first.config.signature | {"x_ptr": "*fp32"}
    assert first.config.key != second.config.key == replaced_key(second.config)


def replaced_key(config):
    return Config(
        config.kernel, dict(config.signature), dict(config.constexprs), config.options
    ).key


def test_types_are_those_that_triton_specialises_for():
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend

    from qrlib.launches import _type

    x = torch.zeros(64)
    tensors = [x, x[1:], x[4:], x.half()[4:], x.bfloat16()[8:], x.double(), x.int(), x.bool()]
    numbers = [0, 1, 2, 16, -16, 2**31, 2**40, -(2**31) - 1, 2**63, True, 1.5, None]
    for value in tensors + numbers:
        for on in (True, False):
            kind, note = native_specialize_impl(CUDABackend, value, False, on, on)
            if kind == "constexpr":
                assert _type(value, on, on) == str(note), value
            else:
                assert _type(value, on, on) == kind + ":16" * (note == "D"), value


def test_nothing_runs_on_paper_and_all_is_put_back():
    runs = triton.JITFunction.run, type(add_kernel).run, torch.cuda.get_device_properties
    launches(STAGE, 1, 16, 16)
    assert runs == (triton.JITFunction.run, type(add_kernel).run, torch.cuda.get_device_properties)
    assert torch.zeros(1).device.type == "cpu"
    failing = SimpleNamespace(geqrf=lambda A: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launches(failing, 1, 16, 16)
    assert runs == (triton.JITFunction.run, type(add_kernel).run, torch.cuda.get_device_properties)


def test_a_stage_is_compiled_once_for_each_code():
    table = compile_stage(STAGE, 5, 48, 33)
    # the launches with A share their code, unless told otherwise by num_warps
    assert [a.num_warps for a in table] == [2, 2, 4]
    assert [a.num_warps for a in compile_stage(STAGE, 5, 48, 33, num_warps=1)] == [1, 1]
    assert len(compile_stage(STAGE, 5, 48, 33, kernel="typed_kernel")) == 3
    with pytest.raises(ValueError, match="kernel must be one of typed_kernel; got 'x'"):
        compile_stage(STAGE, 5, 48, 33, kernel="x")
    with pytest.raises(ValueError, match="s02_unblocked launches no kernel"):
        compile_stage("s02_unblocked", 5, 48, 33)


def test_constants_in_place_of_the_stages_own():
    table = compile_stage(STAGE, 5, 48, 33, constexprs={"BLOCK": 64, "BN": 8})
    # what a kernel does not have is no constant of it
    assert {str(a.config.constexprs) for a in table} == {"{'BLOCK': 64}"}
    assert all("nb" not in a.config.constexprs for a in compile_stage(STAGE, 5, 48, 33, nb=32))


def test_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("qrlib.stages.STAGES", (*STAGES, "fake"))
    monkeypatch.setitem(sys.modules, "qrlib.stages.fake", STAGE)
    asked = ["fake", "--target", "sm_90a", "--n", "48", "--batch", "2", "--nb", "32"]
    assert compilelab.main(asked) == 0
    assert "num_warps" in capsys.readouterr().out
    assert compilelab.main([*asked, "--num-warps", "1", "--write", str(tmp_path)]) == 0
    written = {Path(line) for line in capsys.readouterr().out.splitlines() if ".ptx" in line}
    assert written == {*tmp_path.glob("*.ptx")} and len(written) == 2
    for wrong, says in (
        (["nothing"], "stage must be one of"),
        (["s02_unblocked"], "launches no kernel"),
        ([*asked, "--kernel", "x"], "kernel must be one of typed_kernel"),
    ):
        with pytest.raises(SystemExit) as ended:
            compilelab.main(wrong)
        assert ended.value.code == 2 and says in capsys.readouterr().err


def test_the_command_line_fails_for_what_spills(monkeypatch, capsys):
    spilling = SimpleNamespace(
        geqrf=lambda A: panel_kernel[(1,)](A, A, 512, BM=512, BN=16, num_warps=1)
    )
    monkeypatch.setattr("qrlib.stages.STAGES", (*STAGES, "fake"))
    monkeypatch.setitem(sys.modules, "qrlib.stages.fake", spilling)
    assert compilelab.main(["fake"]) == 1
    assert "bytes of stack" in capsys.readouterr().out


def stage_configs():
    """One Config for each kernel, constants and warps of any stage, with who launches it."""
    found = {}
    for name in TRITON_STAGES:
        for shape in SHAPES:
            for launch in launches(name, *shape):
                kernel, _, *rest = launch.config.key
                found.setdefault((kernel, *rest), (name, launch.config))
    return [pytest.param(c, id=f"{s}-{str(c).replace(' ', '-')}") for s, c in found.values()]


CONFIGS = stage_configs()


def test_stages_with_kernels_are_compiled():
    assert bool(CONFIGS) == bool(TRITON_STAGES)
    assert {p.id.split("-")[0] for p in CONFIGS} <= set(TRITON_STAGES)


# of stage 8: what all panels go through, and what those of few matrices do
EVERY_PANEL = {
    "square_kernel",
    "eliminate_kernel",
    "vectors_kernel",
    "judge_kernel",
    "finish_kernel",
}
FEW_PANELS = "fallback_kernel"


def innermost(artifact):
    """How many loads and stores of spilled values stand in loops that have no loop inside."""

    def inside(b, a):
        return b != a and b.first in a and b.last in a

    ends = [a for a in artifact.loops if not any(inside(b, a) for b in artifact.loops)]
    here = [each for each in artifact.plain if each.name in compilelab.FAMILIES["SPILL"]]
    return sum(any(each.address in loop for loop in ends) for each in here)


def test_both_routes_of_a_narrow_update_are_not_one_kernel():
    """The compiler makes a wrong one for sm_90a; with a launch for each it makes right ones."""
    routed = [
        launch.config
        for launch in launches("s09_mixed", 4, 530, 530, target="sm_90a")
        if launch.config.name == "routed_subtract_kernel" and launch.config.constexprs["BC"] < 64
    ]
    assert routed
    for config in routed:
        assert None in (config.constexprs["FLAT"], config.constexprs["PRECISION"])
        assert not misread(compilelab.compile_config(config, "sm_90a"))
    # if this fails, a newer compiler knows better, and `NARROW` may go
    flat = next(c for c in routed if c.constexprs["FLAT"] and c.constexprs["BC"] == 32)
    both = dataclasses.replace(
        flat,
        constexprs={**flat.constexprs, "PRECISION": "fp16x3"},
        options={**flat.options, "num_stages": 1},
    )
    assert misread(compilelab.compile_config(both, "sm_90a"))


@pytest.mark.slow
@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("config", CONFIGS)
def test_stage_kernels_fit_and_do_not_spill_where_it_costs(config, target):
    artifact = compilelab.compile_config(config, target)
    assert artifact.fits, str(artifact)
    assert not misread(artifact), str(artifact)
    if config.name in EVERY_PANEL:
        assert artifact.stack == 0, str(artifact)
    # what no innermost loop has is executed once or, a half of a panel each time, twice: a little
    # of it is harmless; so is an address that waits while flags of 64 tiles are read at a time
    spills = sum(artifact.spills)
    inside = innermost(artifact)
    total = sum(artifact.mix.values())
    loops = 0.01 * total if config.name == FEW_PANELS else config.name.startswith("routed_")
    assert inside <= loops and spills - inside < 0.02 * total, str(artifact)
