"""The Triton stages: small sizes through the interpreter, every size where there is a GPU.

The interpreter shows indexing, masks and the order of things. What it cannot show, tf32 and float16
products on tensor cores, registers and races, is what the tests marked gpu are for.
"""

import ast
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from tables import FAMILIES, assert_as_good_as_lapack, batch_of, normal

import qrlib
from qrlib import matrices, scaling, tall
from qrlib.certificate import LAPACK
from qrlib.householder import larfb, larft
from qrlib.launches import memory
from qrlib.stages import s05_panel, s06_update, s07_whole, s08_cholesky, s09_mixed, s10_blackwell
from qrlib.tracer import trace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STAGES = {
    "s05": s05_panel,
    "s06": s06_update,
    "s07": s07_whole,
    "s08": s08_cholesky,
    "s09": s09_mixed,
    "s10": s10_blackwell,
}
# panels of stage 8 have at least 128 rows, and all of 64 columns; smaller ones are those of stage 6
SIZES = dict.fromkeys(STAGES, (18, 18)) | {"s08": (130, 66), "s10": (80, 70)}
# the interpreter computes in NumPy, which warns of each NaN that a test puts in
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("quick"),
]
each_stage = pytest.mark.parametrize("stage", STAGES)
each_size = pytest.mark.parametrize("stage, m, n", [(s, *size) for s, size in SIZES.items()])


def geqrf(stage, A, **options):
    """On the device of these tests, and back; by policy "fp32", which all stages have."""
    if stage == "s09":
        options = {"policy": "fp32", **options}
    H, tau = STAGES[stage].geqrf(A.to(DEVICE), **options)
    return H.cpu(), tau.cpu()


# one size below, at and above a narrow panel, and two wide panels; and, for stage 8, panels that
# are too short, just tall enough, and with columns to their right; the GPU sees many more
SMALL = ((1, 1), (2, 2), (5, 3), (3, 5), (16, 16), (17, 17), (33, 20), (20, 33), (70, 66), (66, 70))
TALL = ((127, 64), (128, 64), (130, 200))


def dots(source):
    """Lines of tl.dot, and of `@`, in kernels: do they say in which precision they multiply?"""
    kernels = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    for node in (node for kernel in kernels for node in ast.walk(kernel)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node.lineno, False
        if isinstance(node, ast.Call) and re.fullmatch(
            r"(.*\.)?dot(_scaled)?", ast.unparse(node.func)
        ):
            said = {keyword.arg for keyword in node.keywords}
            # float16 factors are multiplied exactly: the sum is what there is to say of them
            yield node.lineno, bool(said & {"input_precision", "out_dtype"})


def test_every_dot_names_its_precision():
    lines = ("tl.dot(a, b)", "tl.dot(a, b, input_precision=P)", "x = a @ b", "dot(a, dot(b, c))")
    for jit in ("@triton.jit", "@triton.jit(do_not_specialize=['j'])"):
        source = f"{jit}\ndef kernel():\n  " + "\n  ".join(lines)
        expected = [(3, False), (4, True), (5, False), (6, False), (6, False)]
        assert sorted(dots(source)) == expected
    assert not list(dots("def reference():\n  a @ b"))
    package = pathlib.Path(qrlib.__file__).parent
    found = {}
    for file in package.rglob("*.py"):
        for line, named in dots(file.read_text(encoding="utf-8")):
            assert named, f"{file.name}:{line} does not name its precision"
            found[file.stem] = found.get(file.stem, 0) + 1
    assert found["tiles"] >= 5 and found["s06_update"] >= 5


@pytest.mark.skipif(DEVICE == "cuda", reason="products are looked at in the interpreter")
@pytest.mark.parametrize("precision", ("ieee", "tf32x3", "fp16x3"))
@pytest.mark.parametrize("stage, m, n", (("s06", 20, 34), ("s07", 20, 34), ("s08", 130, 80)))
def test_no_product_of_float32_is_one_of_tf32(stage, m, n, precision, monkeypatch):
    """What a source cannot show: the type of the factors, and the precision that is named.

    Stage 8 names TF32 where it has numbers in parts already, and where a few digits are enough.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    builder, seen = interpreter.interpreter_builder, set()
    dot = builder.create_dot

    def create_dot(a, b, total, input_precision, *rest):
        seen.add((str(a.dtype.scalar), str(b.dtype.scalar), str(input_precision)))
        assert total.dtype.scalar == tl.float32
        return dot(a, b, total, input_precision, *rest)

    monkeypatch.setitem(vars(builder), "create_dot", create_dot)
    STAGES[stage].geqrf(normal(1, m, n), precision=precision)
    named = {"ieee": "IEEE", "tf32x3": "TF32x3"}
    of_float32 = {p.rpartition(".")[2] for a, b, p in seen if "fp32" in (a, b)}
    in_parts = {"TF32"} if stage == "s08" else set()
    assert of_float32 == {"TF32x3", named.get(precision, "TF32x3")} | in_parts
    # both factors are of one type
    assert {a for a, b, _ in seen} == {"fp32", "fp16"} if precision == "fp16x3" else {"fp32"}
    assert all(a == b for a, b, _ in seen)


@pytest.mark.parametrize(
    "stage, m, n",
    [(stage, m, n) for stage in STAGES for m, n in (*SMALL, *(TALL if stage == "s08" else ()))],
)
def test_small(stage, m, n):
    A = normal(2, m, n, seed=m * n)
    assert_as_good_as_lapack(A, *geqrf(stage, A))


@each_size
@pytest.mark.parametrize("family", FAMILIES)
def test_families(stage, m, n, family):
    A = batch_of(family, 1, m)[:, :, :n]
    assert_as_good_as_lapack(A, *geqrf(stage, A))


@each_size
@pytest.mark.parametrize("scale", (1e-38, 1e-30, 1e-20, 1e20, 1e30, 1e37))
def test_scales(stage, m, n, scale):
    A = normal(1, m, n) * scale
    assert_as_good_as_lapack(A, *geqrf(stage, A))


@each_size
def test_graded_columns_keep_their_digits(stage, m, n):
    A = normal(1, m, n) * 10.0 ** -torch.linspace(0, 38, n)
    H, tau = geqrf(stage, A)
    # column by column, each by its own length: a norm of the whole would not see the small ones
    assert qrlib.certify(A, H, tau).columnwise.max() < 2


@each_size
def test_what_is_left_of_a_column_is_a_mirror_until_it_is_nothing(stage, m, n):
    """A rest of 2^-40 of its column is reflected, one of 2^-60 is taken for zero."""
    A = torch.zeros(2, m, n)
    A[:, 0] = 1
    A[0, 1:3, 1], A[1, 1:3, 1] = 2.0**-40, 2.0**-60
    H, tau = geqrf(stage, A)
    assert tau[0, 1] == pytest.approx(1 + 0.5**0.5) and tau[1, 1] == 0
    assert H[0, 1, 1] == pytest.approx(-(2**0.5) * 2.0**-40)
    assert qrlib.certify(A, H, tau, gate=LAPACK).passed


class TestConventions:
    @each_size
    def test_triangular_input_comes_back(self, stage, m, n):
        A = -batch_of("upper", 2, m)[:, :, :n]
        H, tau = geqrf(stage, A)
        assert torch.equal(H, A)
        assert (tau == 0).all()

    @each_size
    def test_zero_column(self, stage, m, n):
        A = normal(2, m, n)
        A[:, :, [0, 7, 17]] = 0
        H, tau = geqrf(stage, A)
        assert (tau[:, [0, 7, 17]] == 0).all() and (H[:, :, [0, 7, 17]] == 0).all()
        assert qrlib.certify(A, H, tau).passed

    @each_stage
    def test_the_example_of_lapack_for_a_sign(self, stage):
        A = torch.tensor([[[0.0, 1], [1, 0]], [[-0.0, 1], [1, 0]]])
        assert geqrf(stage, A)[0][:, 0, 0].tolist() == [-1, 1]

    @each_size
    def test_sign_is_that_of_the_bit(self, stage, m, n):
        A = normal(1, m, n).repeat(2, 1, 1)
        A[0, 0, 0], A[1, 0, 0] = 0.0, -0.0
        assert torch.signbit(geqrf(stage, A)[0][:, 0, 0]).tolist() == [True, False]

    @each_stage
    def test_one_by_one_keeps_its_sign(self, stage):
        A = torch.tensor([[[5.0]], [[-5.0]], [[-0.0]]])
        H, tau = geqrf(stage, A)
        assert torch.equal(torch.signbit(H), torch.signbit(A)) and torch.equal(H, A)
        assert (tau == 0).all()

    @each_stage
    def test_the_example_of_the_task(self, stage):
        A = torch.tensor([[[12.0, -51, 4], [6, 167, -68], [-4, 24, -41]]])
        H, tau = geqrf(stage, A)
        R = torch.tensor([[-14.0, -21, 14], [0, -175, 70], [0, 0, -35]])
        torch.testing.assert_close(H[0].triu(), R, rtol=1e-5, atol=1e-4)
        assert tau[0, 0].item() == pytest.approx(26 / 14) and tau[0, 2] == 0


@each_size
def test_nan_and_inf_stay_home_and_show(stage, m, n):
    A = normal(3, m, n)
    clean = geqrf(stage, A)
    A[0, 4, 3], A[2, 4, 3] = float("nan"), float("inf")
    H, tau = geqrf(stage, A)
    assert torch.equal(H[1], clean[0][1]) and torch.equal(tau[1], clean[1][1])
    for b in (0, 2):
        assert not (torch.isfinite(H[b]).all() and torch.isfinite(tau[b]).all())


@each_size
@pytest.mark.parametrize("k", (-40, 40))
def test_power_of_two_equivariance(stage, m, n, k):
    A = normal(1, m, n)
    H, tau = geqrf(stage, A)
    H2, tau2 = geqrf(stage, A * 2.0**k)
    assert torch.equal(tau2, tau) and torch.equal(H2.tril(-1), H.tril(-1))
    assert torch.equal(H2.triu(), H.triu() * 2.0**k)


@each_stage
@pytest.mark.parametrize("layout", ("transposed", "every second", "expanded", "4 bytes off"))
def test_any_strides_and_input_untouched(stage, layout):
    A = {
        "transposed": normal(2, 18, 18).mT,
        "every second": normal(4, 36, 36)[::2, ::2, 1::2],
        "expanded": normal(1, 18, 18).expand(2, 18, 18),
        "4 bytes off": normal(2 * 18 * 18 + 1)[1:].view(2, 18, 18),
    }[layout].to(DEVICE)
    before = A.clone()
    H, tau = STAGES[stage].geqrf(A)
    assert torch.equal(A, before) and H.is_contiguous()
    expected = STAGES[stage].geqrf(before)
    assert torch.equal(H, expected.H) and torch.equal(tau, expected.tau)


@pytest.mark.parametrize("precision", ("ieee", "tf32x3", "fp16x3"))
@pytest.mark.parametrize("stage, m, n", (("s06", 30, 34), ("s07", 30, 34), ("s08", 130, 80)))
def test_precisions(stage, m, n, precision):
    A = normal(1, m, n)
    assert_as_good_as_lapack(A, *geqrf(stage, A, precision=precision))


@pytest.mark.parametrize("m", (1, 15, 40, 130))
def test_panel_in_slices_is_the_panel_in_registers(m, monkeypatch):
    """The kernels for panels taller than a tile, on panels that a tile can hold too."""
    b = min(m, 13)
    A = normal(2, m, b, seed=m).to(DEVICE)
    H1, tau1 = A.clone(), A.new_empty(2, b)
    V1, T1 = s05_panel.panel(H1, tau1)
    monkeypatch.setattr(s05_panel, "TABLE", {8: (1, False)})
    monkeypatch.setattr(tall, "SLICE", 32)
    monkeypatch.setattr(tall, "SLICES", ())
    # views, as of a matrix that is wider than a panel: around them nothing is written
    around, beside = A.new_zeros(2, m + 1, b + 3), A.new_zeros(2, b + 5)
    H2, tau2 = around[:, :m, :b], beside[:, :b]
    H2.copy_(A)
    V2, T2 = s05_panel.panel(H2, tau2)
    assert not (around[:, m:].any() or around[:, :, b:].any() or beside[:, b:].any())
    for one, two in ((H1, H2), (tau1, tau2), (V1, V2), (T1, T2)):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_t_is_that_of_larft():
    H = normal(2, 40, 11).to(DEVICE)
    tau = H.new_empty(2, 11)
    V, T = s05_panel.panel(H, tau)
    assert torch.equal(V, qrlib.unpack_v(H))
    torch.testing.assert_close(T, larft(V, tau), rtol=1e-4, atol=1e-5)


@pytest.fixture(params=(1, 3), ids="shares={}".format)
def shares(request, monkeypatch):
    """Rows shared out among programs give what one program gives."""

    def share_out(B, tiles, m, device, *args, **options):
        rows = math.ceil(m / request.param / 64) * 64
        return math.ceil(m / rows), rows

    monkeypatch.setattr(s06_update, "share_out", share_out)


def a_reflector(m, nb, seed):
    """(V, T) of nb Householder vectors: unit lower trapezoidal, and larft's."""
    V = qrlib.unpack_v(normal(2, m, nb, seed=seed) / m**0.5).to(DEVICE)
    return V, larft(V, 2 / (V * V).sum(-2))


def factor_of(V, precision):
    """V as stage 6 keeps it."""
    B, m, nb = V.shape
    F = s06_update.factors(B, m, precision, V)[..., :nb]
    if precision == "fp16x3":
        hi = (V * 2**14).half()
        F[:, 0], F[:, 1] = hi, (V * 2**14 - hi).half()
    else:
        F.copy_(V)
    return F


@pytest.mark.parametrize("precision", ("ieee", "fp16x3"))
@pytest.mark.parametrize("nb", (7, 20))
def test_update_by_one_panel(shares, nb, precision):
    V, T = a_reflector(130, nb, 0)
    C = normal(2, 130, 70, seed=1).to(DEVICE) / 64
    expected = larfb(V, T, C)
    s06_update.update(factor_of(V, precision), T, C, precision)
    torch.testing.assert_close(C, expected, rtol=1e-4, atol=1e-5)


def test_update_by_two_panels(shares):
    """(I - V2 T2 V2^T)(I - V1 T1 V1^T) C at once, and the rows that are done in A's scale."""
    V1, T1 = a_reflector(200, 64, 0)
    V2, T2 = a_reflector(136, 20, 2)
    C = normal(2, 200, 30, seed=1).to(DEVICE) / 64
    expected = larfb(V1, T1, C)
    expected[:, 64:] = larfb(V2, T2, expected[:, 64:])
    e = torch.arange(2 * 30, dtype=torch.int32, device=DEVICE).view(2, 30) % 5
    expected[:, :84] *= torch.exp2(e[:, None].float())
    V = torch.zeros(2, 200, 84, device=DEVICE)
    V[:, :, :64], V[:, 64:, 64:] = V1, V2
    T = torch.full((2, 128, 64), float("nan"), device=DEVICE)
    T[:, :64], T[:, 64:84, :20] = T1, T2
    G = torch.zeros(2, 64, 64, device=DEVICE)
    G[:, :20] = V2.mT @ V1[:, 64:]
    F = factor_of(V, "fp16x3")
    s06_update.update(F, T, C, "fp16x3", G=G, e=e, done=84)
    torch.testing.assert_close(C, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("large", (1, 2))
def test_update_by_two_panels_one_of_which_has_a_large_t(shares, large):
    """Z or Y is then beyond what float16 holds, and is brought down for the product."""
    V1, T1 = a_reflector(130, 64, 0)
    V2, T2 = a_reflector(66, 20, 2)
    T1, T2 = T1 * (1e4 if large == 1 else 1), T2 * (1e4 if large == 2 else 1)
    C = normal(2, 130, 30, seed=1).to(DEVICE) / 64
    expected = larfb(V1, T1, C)
    expected[:, 64:] = larfb(V2, T2, expected[:, 64:])
    V = torch.zeros(2, 130, 84, device=DEVICE)
    V[:, :, :64], V[:, 64:, 64:] = V1, V2
    T = torch.zeros(2, 128, 64, device=DEVICE)
    T[:, :64], T[:, 64:84, :20] = T1, T2
    G = torch.zeros(2, 64, 64, device=DEVICE)
    G[:, :20] = V2.mT @ V1[:, 64:]
    s06_update.update(factor_of(V, "fp16x3"), T, C, "fp16x3", G=G)
    assert (C - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("precision", ("ieee", "fp16x3"))
@pytest.mark.parametrize("nb", (16, 50, 64))
def test_wide_panel(shares, nb, precision):
    """V, T and V^T U of a wide panel are those of larft, and of the panel left of it."""
    H = normal(2, 200, 64 + nb, seed=nb).to(DEVICE) / 16
    V, T, tau = H.new_zeros(2, 200, 64), H.new_zeros(2, 128, 64), H.new_empty(2, 64 + nb)
    F, G = s06_update.factors(2, 200, precision, H), H.new_empty(2, 64, 64)
    s06_update.panel(H[:, :, :64], tau[:, :64], V, T[:, :64], None, precision, F[..., :64], None)
    U = V.clone()
    V, T2, F2 = V[:, :136, :nb], T[:, 64:], F[..., 64:, : 64 + nb]
    s06_update.panel(H[:, 64:, 64:], tau[:, 64:], V, T2, G, precision, F2, None)
    assert torch.equal(V, qrlib.unpack_v(H[:, 64:, 64:]))
    assert torch.equal(F2[..., 64:], factor_of(V, precision))
    torch.testing.assert_close(T2[:, :nb, :nb], larft(V, tau[:, 64:]), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(G[:, :nb], V.mT @ U[:, 64:], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("once", (True, False))
def test_scaling_there_and_back(once, monkeypatch):
    if not once:
        monkeypatch.setattr(scaling, "TILE", 0)
    A = normal(2, 30, 70) * 10.0 ** torch.linspace(-37, 37, 70)
    A[0, :, 3] = 0
    H, e = scaling.scaled(A.to(DEVICE))
    assert H.norm(dim=1).max() <= 1
    # entries fill the range left to them: nothing is scaled down for no reason
    assert H.abs().amax(1)[1].min() > 2.0 ** -(scaling.half_log2(30) + 1.01)
    scaled = H.cpu()
    scaling.unscale(H, e, 16)
    i = torch.arange(70)
    back = (i[:30, None] <= i) & (i[:30, None] // 16 == i // 16) & (i < 30)
    assert torch.equal(H.cpu()[:, back], A[:, back])
    assert torch.equal(H.cpu()[:, ~back], scaled[:, ~back])


@pytest.mark.skipif(DEVICE == "cuda", reason="accesses are traced in the interpreter")
@pytest.mark.parametrize(
    "stage, m, n",
    [
        *((s, m, n) for s in STAGES for m, n in ((1, 1), (5, 3), (20, 33), (40, 20), (70, 96))),
        # updates beside the panels that are next
        ("s06", 150, 420),
        ("s08", 200, 130),
    ],
)
def test_loads_and_stores_are_in_bounds_and_in_order(stage, m, n):
    """No stray access, no unwritten cell read, no race, no reload without a barrier."""
    A = normal(2, m, n)
    with trace(A=A) as t:
        H, tau = STAGES[stage].geqrf(A)
    assert t.launches and not t.faults
    assert_as_good_as_lapack(A, H, tau)


BY_THE_INTERPRETER = """
import sys

import torch
import triton
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor

def patch_and_squeeze(tensor, scope):
    patch(tensor, scope)
    tensor.__index__ = lambda self: int(self.handle.data.squeeze())

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
    # a loop's bound is an array of one there, which from NumPy 2.4 on is no number; 3.7 squeezes it
    interpreter._patch_lang_tensor = patch_and_squeeze

from qrlib.jit import quick_reductions
from qrlib.stages import stage
names, matrices = torch.load(sys.argv[1])
with quick_reductions():
    found = {name: [tuple(stage(name).geqrf(A)) for A in matrices] for name in names}
torch.save(found, sys.argv[1])
"""


def by_the_interpreter(names, matrices, file):
    """{stage: [(H, tau)]}, from a process that sees no GPU: a kernel is interpreted or compiled."""
    torch.save((names, matrices), file)
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", BY_THE_INTERPRETER, str(file)], env=env, check=True)
    return torch.load(file)


def room_for(shape, more=0):
    """Nothing is learnt from a GPU that has no memory for a float32 tensor and some bytes more."""
    torch.cuda.empty_cache()
    free, needed = torch.cuda.mem_get_info()[0], 4 * math.prod(shape) + more + 2**29
    if free < needed:
        pytest.skip(f"needs {needed / 1e9:.0f} GB of GPU memory; {free / 1e9:.0f} GB are free")


@pytest.mark.gpu
class TestOnTheGpu:
    """What the interpreter is too slow for, or cannot show."""

    def test_what_the_interpreter_gives(self, tmp_path):
        """Entry by entry, on small sizes, where rounding is all that may differ."""
        names = [module.__name__.rpartition(".")[2] for module in STAGES.values()]
        inputs = [normal(2, m, n, seed=m * n) for m, n in SMALL]
        expected = by_the_interpreter(names, inputs, tmp_path / "found.pt")
        for name, module in zip(names, STAGES.values(), strict=True):
            for A, (H, tau) in zip(inputs, expected[name], strict=True):
                ours = module.geqrf(A.to(DEVICE))
                torch.testing.assert_close(ours.H.cpu(), H, rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(ours.tau.cpu(), tau, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("B, m, b", ((1, 1, 1), (2, 130, 13), (8, 2048, 16), (2, 9000, 16)))
    def test_panel_of_programs_that_meet_is_the_one_of_launches(self, B, m, b):
        """Twenty times the same bits: a sum that was read too early would show."""
        A = normal(B, m, b, seed=m).cuda()

        def panel():
            H, tau, T = A.clone(), A.new_empty(B, b), A.new_empty(B, b, b)
            V = torch.full_like(H, float("nan"))
            tall.launch(H, tau, V, T, 16, rows)
            return H, tau, V, T

        rows = tall.slice_at_once(B, m, A.device)
        assert rows
        met = panel()
        for _ in range(20):
            assert all(torch.equal(x, y) for x, y in zip(met, panel(), strict=True))
        rows = None
        for one, two in zip(met, panel(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)

    @each_stage
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("n", (1, 31, 32, 33, 64, 65, 100, 176, 352, 512))
    def test_families_and_sizes(self, stage, family, n):
        A = batch_of(family, 4, n)
        assert_as_good_as_lapack(A, *geqrf(stage, A))

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("n", (1000, 1024, 2048))
    def test_large(self, family, n):
        """Stage 6; stage 8 has bad matrices among them, see test_bad_matrices."""
        A = batch_of(family, 4, n).cuda()
        H, tau = s06_update.geqrf(A)
        c = qrlib.certify(A, H, tau, gate=LAPACK)
        assert c.passed, c

    @each_stage
    @pytest.mark.parametrize(
        "m, n", ((4096, 32), (5000, 140), (20000, 5), (32, 4096), (700, 65), (200, 4000))
    )
    def test_tall_and_wide(self, stage, m, n):
        A = normal(2, m, n).cuda()
        H, tau = STAGES[stage].geqrf(A)
        assert qrlib.certify(A, H, tau, gate=LAPACK).passed

    @each_stage
    @pytest.mark.parametrize("t", matrices.LAPACK_TYPES)
    @pytest.mark.parametrize("n", (50, 300))
    def test_lapack_types(self, stage, t, n):
        A = torch.from_numpy(matrices.lapack_type(t, n, n, batch=3))
        c = qrlib.certify(A, *geqrf(stage, A), gate=LAPACK)
        assert c.passed, c

    @each_stage
    def test_a_hundred_times_the_same_bits(self, stage):
        A = batch_of("mixed", 64, 300).cuda()
        first = STAGES[stage].geqrf(A)
        for _ in range(100):
            again = STAGES[stage].geqrf(A)
            assert torch.equal(again.H, first.H) and torch.equal(again.tau, first.tau)

    @each_stage
    def test_one_nan_leaves_63_bitwise_alone(self, stage):
        A = batch_of("dense", 64, 300).cuda()
        clean = STAGES[stage].geqrf(A)
        A[17, 50, 50] = float("nan")
        H, tau = STAGES[stage].geqrf(A)
        others = [b for b in range(64) if b != 17]
        assert torch.equal(H[others], clean.H[others]) and torch.equal(
            tau[others], clean.tau[others]
        )
        assert torch.isnan(H[17]).any()

    @each_stage
    def test_batch_of_70_000_and_of_none(self, stage):
        A = normal(70_000, 3, 3).cuda()
        assert qrlib.certify(A, *STAGES[stage].geqrf(A), gate=LAPACK).passed
        assert STAGES[stage].geqrf(A[:0]).H.shape == (0, 3, 3)

    @each_stage
    def test_more_than_2_31_elements(self, stage):
        shape = (8193, 512, 512)
        room_for(shape, memory(STAGES[stage].geqrf, torch.empty(shape, device="meta")))
        A = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        H, tau = STAGES[stage].geqrf(A)
        assert qrlib.certify(A[-2:], H[-2:], tau[-2:], gate=LAPACK).passed

    @each_stage
    @pytest.mark.parametrize("n", (3, 40))
    def test_rows_more_than_2_31_apart(self, stage, n):
        apart = 700_000_000
        room_for((4, apart))
        A = torch.zeros(4 * apart + n, device="cuda").as_strided((1, 5, n), (0, apart, 1))
        A.copy_(normal(1, 5, n))
        assert qrlib.certify(A, *STAGES[stage].geqrf(A), gate=LAPACK).passed

    @each_stage
    def test_no_synchronisation_inside(self, stage):
        A = normal(4, 300, 300).cuda()
        STAGES[stage].geqrf(A)
        torch.cuda.set_sync_debug_mode("error")
        try:
            STAGES[stage].geqrf(A)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    @each_stage
    def test_global_tf32_changes_nothing(self, stage):
        A = normal(4, 300, 300).cuda()
        expected = STAGES[stage].geqrf(A)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            H, tau = STAGES[stage].geqrf(A)
        finally:
            torch.set_float32_matmul_precision(before)
        torch.testing.assert_close(H, expected.H, rtol=1e-4, atol=1e-4)
        assert qrlib.certify(A, H, tau, gate=LAPACK).passed
