"""The tracer on kernels of known make: counts to the element, and every planted fault by its name.

Other tests trace a kernel of theirs with `with trace(...)`; leaving the block raises for any fault.
"""

import ctypes
import platform

import pytest
import torch
from tables import normal

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import qrlib  # noqa: E402
from qrlib.accesses import Tally  # noqa: E402
from qrlib.stages import STAGES, stage  # noqa: E402
from qrlib.tracer import TraceError, trace  # noqa: E402

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1"
)
NOTHING = Tally(0, 0, 0, 0)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def copy_kernel(x_ptr, out_ptr, begin, end, stride, BLOCK: tl.constexpr):
    """out[i] = x[begin + stride i] for begin + stride i < end, a block a program."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = begin + stride * i
    x = tl.load(x_ptr + at, mask=at < end)
    tl.store(out_ptr + i, x, mask=at < end)


@triton.jit
def all_of_it_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    total = tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)))
    tl.store(out_ptr + tl.program_id(0), total)


@triton.jit
def tile_kernel(H_ptr, m, n, stride_m, BM: tl.constexpr, BN: tl.constexpr):
    """H += 1 for m x n of a matrix."""
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < m) & (j < n)
    ptrs = H_ptr + i * stride_m + j
    tl.store(ptrs, tl.load(ptrs, mask=inside) + 1.0, mask=inside)


@triton.jit
def reload_kernel(x_ptr, BARRIER: tl.constexpr):
    at = tl.arange(0, 8)
    tl.store(x_ptr + at, 1.0 * at)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x_ptr + at, tl.load(x_ptr + 7 - at))


@triton.jit
def shift_kernel(x_ptr, by, BLOCK: tl.constexpr):
    """x[i] = x[i + by], a block a program: the edges belong to two programs."""
    i = BLOCK + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i + by))


@triton.jit
def scatter_kernel(out_ptr, SAME: tl.constexpr):
    i = tl.arange(0, 8)
    tl.store(out_ptr + i // 2, tl.where(SAME, i // 2, i))


@triton.jit
def count_kernel(counts_ptr, at):
    tl.atomic_add(counts_ptr + at, 1)
    tl.atomic_cas(counts_ptr, 0, 1)


@triton.jit
def count_or_set_kernel(counts_ptr):
    if tl.program_id(0) == 0:
        tl.store(counts_ptr, 7)
    else:
        tl.atomic_add(counts_ptr, 1)


@triton.jit
def addressed_kernel(addresses_ptr, out_ptr):
    x_ptr = tl.load(addresses_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr))


@triton.jit
def described_kernel(in_desc, out_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """out [m, n] = 2 in, its tiles through descriptors of the host and of the device."""
    out = tl.make_tensor_descriptor(out_ptr, [m, n], [n, 1], [BM, BN])
    r, c = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([r, c], 2 * in_desc.load([r, c]))


def fault(kind, kernel, grid, *args, poison=(), named=None, **options):
    """The first fault of a launch; any others are of its kind."""
    with trace(check=False, poison=poison, **(named or {})) as t:
        kernel[grid](*args, **options)
    with pytest.raises(TraceError, match=f"{kind}: {kernel.__name__}"):
        t.check()
    t.check(ignore=[kind])
    assert {found.kind for found in t.faults} == {kind}
    return t.faults[0]


def test_counts():
    x, y = normal(2, 100)
    out = torch.empty(100)
    with trace(x=x, y=y, out=out, poison=["out"]) as t:
        add_kernel[(4,)](x, y, out, 100, BLOCK=32)
    assert torch.equal(out, x + y)
    whole, rest = Tally(2, 64, 256, 64), Tally(2, 8, 32, 8)
    assert [p.load for p in t.per_program.values()] == [whole, whole, whole, rest]
    assert [p.store.elements for p in t.per_program.values()] == [32, 32, 32, 4]
    assert list(t.per_program) == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]
    assert t.total == (Tally(8, 200, 800, 200), Tally(4, 100, 400, 100), NOTHING)
    assert t.of("x") == (Tally(4, 100, 400, 100), NOTHING, NOTHING)
    assert t.of("out") == (NOTHING, Tally(4, 100, 400, 100), NOTHING)
    for name, op in (("x", "load"), ("y", "load"), ("out", "store")):
        assert t.map(name, op).tolist() == [1] * 100
    assert not t.map("out").any() and not t.map("x", "store").any()


def test_accesses_come_in_program_order():
    x, y, out = normal(3, 40).unbind()
    with trace(x=x, y=y, out=out) as t:
        add_kernel[(2,)](x, y, out, 40, BLOCK=32)
    assert [(a.program[0], a.op, a.tensor, a.argument) for a in t.accesses] == [
        (p, op, name, f"{name}_ptr")
        for p in (0, 1)
        for op, name in (("load", "x"), ("load", "y"), ("store", "out"))
    ]
    last = t.accesses[-1]
    assert (last.lanes, last.masked, last.bytes, last.kernel) == (32, True, 32, "add_kernel")
    # out is the third row of what the three share
    assert last.elements.tolist() == list(range(80 + 32, 80 + 40))
    assert not t.accesses[0].masked


def test_what_is_read_again_shows():
    x, out = normal(16), torch.empty(5)
    with trace(x=x) as t:
        all_of_it_kernel[(5,)](x, out, BLOCK=16)
    assert t.map("x").tolist() == [5] * 16
    assert t.of("x").load == Tally(5, 80, 320, 16)
    row = next(line for line in t.summary().splitlines() if "x load" in line)
    assert row.split() == ["x", "load", "5", "80", "320", "16", "5.00"]
    # what nobody named has the name of the parameter
    assert t.map("out", "store").tolist() == [1] * 5


def test_a_program_with_every_lane_masked_counts():
    x, out = normal(8), torch.empty(8)
    with trace(x=x, out=out) as t:
        copy_kernel[(3,)](x, out, 0, 8, 1, BLOCK=8)
    assert [p.load for p in t.per_program.values()] == [Tally(1, 8, 32, 8)] + [
        Tally(1, 0, 0, 0)
    ] * 2


def test_parts_of_a_tensor_are_counted_as_its_own():
    H = torch.zeros(2, 8, 8)
    with trace(H=H) as t:
        for j in range(0, 8, 4):
            tile_kernel[(1,)](H[1, j:, j : j + 4], 8 - j, 4, 8, BM=8, BN=4)
    seen = torch.zeros(8, 8, dtype=torch.int64)
    seen[:, :4] = 1
    seen[4:, 4:] = 1
    assert t.map("H")[1].tolist() == seen.tolist() and not t.map("H")[0].any()
    assert t.of("H") == t.total and len(t.launches) == 2
    assert t.launches[1].total.load.elements == 16
    with pytest.raises(ValueError, match="2 were traced"):
        _ = t.per_program


def test_what_is_counted_as_whose():
    """An argument is the smallest named tensor that has all of it."""
    both = normal(32)
    with trace(both=both, a=both[:16], b=both[16:]) as t:
        copy_kernel[(1,)](both[:12], both[16:], 0, 12, 1, BLOCK=16)
    assert t.of("a").load.elements == t.of("b").store.elements == 12
    assert t.of("both") == (NOTHING, NOTHING, NOTHING)
    # a map is of memory, by whatever name it was reached
    assert t.map("both").tolist() == [1] * 12 + [0] * 20
    assert t.map("both", "store").tolist() == [0] * 16 + [1] * 12 + [0] * 4
    with trace(a=both[:16]) as t:
        copy_kernel[(1,)](both[4:20], torch.empty(16), 0, 16, 1, BLOCK=16)
    assert t.of("a").load.elements == 0 and t.of("x").load.elements == 16
    assert t.map("a").tolist() == [0] * 4 + [1] * 12


def test_a_transposed_and_an_expanded_tensor():
    x = normal(4, 6)
    with trace(x=x.mT) as t:
        copy_kernel[(1,)](x.mT, torch.empty(8), 0, 6, 1, BLOCK=8)
    assert t.map("x")[:, 0].tolist() == [1] * 6 and t.map("x").sum() == 6
    with trace(x=x[0].expand(3, 6)) as t:
        copy_kernel[(1,)](x[0].expand(3, 6), torch.empty(8), 0, 6, 1, BLOCK=8)
    assert t.map("x").tolist() == [[1] * 6] * 3


@pytest.mark.parametrize("program", [0, 3])
def test_off_by_one(program):
    n = 32 * program + 10
    x, out = normal(n), torch.empty(n + 1)
    found = fault("out of bounds", copy_kernel, (program + 1,), x, out, 0, n + 1, 1, BLOCK=32)
    assert (found.op, found.argument, found.shape) == ("load", "x_ptr", (n,))
    assert found.indices == [(n,)] and found.count == 1
    assert found.program == (program, 0, 0) and found.programs == {(program, 0, 0)}
    assert f"load of x_ptr[{n}], outside x_ptr, which is [{n}]" in str(found)
    # what was not there shows in the result
    assert out[n].isnan() and torch.equal(out[:n], x)


def test_a_store_out_of_bounds_is_named_and_not_made():
    memory = torch.zeros(20)
    found = fault("out of bounds", copy_kernel, (1,), normal(16), memory[:10], 0, 16, 1, BLOCK=16)
    assert (found.op, found.argument, found.count) == ("store", "out_ptr", 6)
    assert found.indices == [(10,), (11,), (12,), (13,)] and "and 2 more" in str(found)
    assert memory[:10].all() and not memory[10:].any()


def test_before_the_beginning():
    found = fault(
        "out of bounds", copy_kernel, (1,), normal(16), torch.empty(16), -2, 14, 1, BLOCK=16
    )
    assert found.indices == [(-2,), (-1,)] and found.argument == "x_ptr"


def test_far_away_does_not_crash():
    x, out = normal(16), torch.empty(16)
    found = fault("out of bounds", copy_kernel, (1,), x, out, 0, 2**50, 2**40, BLOCK=16)
    assert found.indices == [(k * 2**40,) for k in (1, 2, 3, 4)]


def low_memory():
    """16 numbers in the first 2 GB, where a heap may be: what is far below them has no address."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("needs mmap with MAP_32BIT")
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    readable_writable, private_anonymous_32bit = 1 | 2, 2 | 32 | 64
    size = ctypes.c_size_t(4096)
    begin = libc.mmap(None, size, readable_writable, private_anonymous_32bit, -1, ctypes.c_long(0))
    assert 0 < begin < 2**31
    return torch.frombuffer((ctypes.c_float * 16).from_address(begin), dtype=torch.float32)


@pytest.mark.parametrize("memory", (lambda: normal(16), low_memory), ids=("anywhere", "low"))
def test_an_offset_that_wraps(memory):
    """32 bits hold no 4 times 2^30, and 2 times 2^30 is negative."""
    x, out = memory(), torch.empty(4)
    with trace(check=False) as t:
        copy_kernel[(1,)](x, out, 0, 2**31 - 1, 2**30, BLOCK=4)
    assert (-(2**31),) in t.faults[0].indices


def test_outside_a_view_but_inside_its_storage():
    H = torch.zeros(2, 6, 8)
    found = fault(
        "out of bounds", tile_kernel, (1,), H[:, 2:, :4], 4, 5, 8, BM=4, BN=8, named={"H": H}
    )
    assert found.indices == [(0, i, 4) for i in range(4)] and found.shape == (2, 4, 4)
    assert H[0, 2:, :4].all() and not H[0, 2:, 4:].any()
    found = fault("out of bounds", tile_kernel, (1,), H[0, 2:, :4], 5, 4, 8, BM=8, BN=4)
    assert found.indices == [(4, j) for j in range(4)]
    # two elements apart, and the one between
    found = fault(
        "out of bounds", copy_kernel, (1,), H[0, 0, ::2], torch.empty(8), 0, 3, 1, BLOCK=4
    )
    assert found.indices == [(0.5,)]


def test_one_of_two_neighbours():
    """The end of one tensor is the beginning of the other: the pointer says whose it was."""
    both = normal(32)
    found = fault(
        "out of bounds", copy_kernel, (1,), both[:16], both[16:], 8, 24, 1, BLOCK=16,
        named={"a": both[:16], "b": both[16:]},
    )  # fmt: skip
    assert found.argument == "x_ptr" and found.indices[0] == (16,)


def test_two_programs_write_one_element():
    x, out = normal(16), torch.empty(12)
    with trace(check=False) as t:
        tile_kernel[(3, 2)](x.view(4, 4), 1, 4, 4, BM=1, BN=4)
    assert {f.kind for f in t.faults} == {"race"}
    load, store = t.faults
    assert (load.op, load.program, load.other) == ("load", (0, 1, 0), (0, 0, 0))
    assert store.op == "store" and len(store.programs) == 5 and store.count == 20
    assert "which program (0, 0, 0) of the same launch has touched too" in str(store)
    assert out.shape == (12,)


@pytest.mark.parametrize(("by", "op"), [(1, "store"), (-1, "load")])
def test_one_program_reads_what_another_writes(by, op):
    """Whichever of the two happens to come first."""
    found = fault("race", shift_kernel, (3,), normal(80), by, BLOCK=16)
    assert (found.op, found.count) == (op, 2)
    edge = 32 if op == "store" else 31
    assert found.indices == [(edge,)] and found.other == (0, 0, 0) and found.program == (1, 0, 0)


def test_a_reader_behind_another_is_not_forgotten():
    """Program 0 reads, program 1 reads and writes."""
    x = normal(8)
    with trace(check=False) as t:
        exchange_kernel[(2,)](x)
    assert [(f.kind, f.op, f.other) for f in t.faults] == [("race", "store", (0, 0, 0))]


@triton.jit
def exchange_kernel(x_ptr):
    at = tl.arange(0, 8)
    x = tl.load(x_ptr + at)
    tl.store(x_ptr + at, x + 1.0, mask=(at >= 0) & (tl.program_id(0) == 1))


def test_launches_follow_one_another():
    x = torch.zeros(4, 4)
    with trace(x=x) as t:
        for _ in range(3):
            tile_kernel[(1,)](x, 4, 4, 4, BM=4, BN=4)
    assert (x == 3).all() and t.map("x").max() == 3


@pytest.mark.parametrize("same", [True, False])
def test_two_values_for_one_element(same):
    out = torch.zeros(4, dtype=torch.int32)
    if same:
        with trace(out=out):
            scatter_kernel[(1,)](out, SAME=True)
        return
    found = fault("race", scatter_kernel, (1,), out, SAME=False)
    assert found.indices == [(0,), (1,), (2,), (3,)] and found.other is None
    assert "two different values at once" in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_unwritten(dtype):
    x, out = torch.zeros(16, dtype=dtype), torch.zeros(16, dtype=dtype)
    x[:5] = 1
    named = {"x": x}
    found = fault(
        "unwritten", copy_kernel, (1,), x, out, 0, 16, 1, BLOCK=16, named=named, poison=["x"]
    )
    assert found.count == 16 and found.indices[0] == (0,) and x.isnan().all()
    assert "load of x_ptr[0], x_ptr[1]" in str(found) and "nothing has written" in str(found)
    # what torch wrote since is written, and so is what a kernel stored
    with trace(x=x, out=out, poison=["x", "out"]):
        x[:5] = 1
        copy_kernel[(1,)](x, out, 0, 5, 1, BLOCK=16)
        copy_kernel[(1,)](out, x, 0, 5, 1, BLOCK=16)


def test_memory_of_torch_empty_is_unwritten():
    allocate = (
        lambda: torch.empty(8),
        lambda: torch.empty_like(torch.zeros(8)),
        lambda: torch.zeros(2).new_empty(8),
        lambda: torch.empty_strided((8,), (1,)),
        lambda: torch.zeros(2).new_empty_strided((8,), (1,)),
        lambda: torch.empty(8, dtype=torch.int32),
    )
    for new in allocate:
        with trace(check=False) as t:
            x = new()
            copy_kernel[(1,)](x, torch.zeros_like(x), 0, 8, 1, BLOCK=8)
        assert [f.kind for f in t.faults] == ["unwritten"]
    with trace():
        x = torch.empty(8).copy_(torch.ones(8))
        copy_kernel[(1,)](x, torch.empty(8), 0, 8, 1, BLOCK=8)


def test_a_barrier_between_store_and_load():
    x = torch.zeros(8)
    found = fault("no barrier", reload_kernel, (1,), x, BARRIER=False)
    assert (found.op, found.count, found.indices[0]) == ("load", 8, (7,))
    assert "no tl.debug_barrier between" in str(found)
    with trace(x=x):
        reload_kernel[(1,)](x, BARRIER=True)
    assert x.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_atomics_may_meet_but_not_leave():
    counts = torch.zeros(4, dtype=torch.int32)
    with trace(counts=counts) as t:
        count_kernel[(5,)](counts, 2)
    assert counts.tolist() == [1, 0, 5, 0]
    assert t.total == (NOTHING, NOTHING, Tally(10, 10, 40, 2))
    assert t.map("counts", "atomic").tolist() == [5, 0, 5, 0]
    with trace(counts=counts):
        count_or_set_kernel[(3,)](counts)
        count_kernel[(3,)](counts, 0)
    found = fault("out of bounds", count_kernel, (1,), counts, 4)
    assert (found.op, found.indices) == ("atomic", [(4,)])
    # a compare-and-swap has no mask to leave it out by: the kernel ends there
    with pytest.raises(interpreter.InterpreterError, match="atomic of counts_ptr\\[0\\]"), trace():
        count_kernel[(1,)](counts[:0], 0)


def test_pointers_out_of_memory_are_known_by_address():
    xs = [normal(3, seed=k) for k in range(2)]
    addresses = torch.tensor([x.data_ptr() for x in xs])
    out = torch.empty(2)
    with trace(a=xs[0], b=xs[1], addresses=addresses, out=out) as t:
        addressed_kernel[(2,)](addresses, out)
    assert out.tolist() == [float(x[0]) for x in xs]
    assert t.map("a").tolist() == t.map("b").tolist() == [1, 0, 0]
    with pytest.raises(interpreter.InterpreterError, match="is in no tensor"), trace():
        addressed_kernel[(2,)](addresses, out)
    # between two elements
    found = fault(
        "out of bounds", addressed_kernel, (1,), addresses + 2, out, named={"a": xs[0], "b": xs[1]}
    )
    assert found.argument == "a" and found.op == "load"


def test_descriptors():
    x, out = normal(20, 24), torch.empty(20, 24)
    desc = TensorDescriptor.from_tensor(x, [8, 16])
    with trace(x=x, out=out, poison=["out"]) as t:
        described_kernel[(3, 2)](desc, out, 20, 24, BM=8, BN=16)
    assert torch.equal(out, 2 * x)
    # lanes beyond the edges are masked by the descriptor
    assert t.map("x").tolist() == t.map("out", "store").tolist() == [[1] * 24] * 20
    assert t.launches[0].grid == (3, 2, 1)


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.skipif(not hasattr(interpreter, "BlockPointerHandle"), reason="no block pointers")
def test_block_pointers():
    x, out = normal(20, 24), torch.empty(20, 24)
    with trace(x=x, out=out) as t:
        block_kernel[(3, 2)](x, out, 20, 24, BM=8, BN=16)
    assert torch.equal(out, 2 * x) and t.map("x").tolist() == [[1] * 24] * 20
    found = fault("out of bounds", block_kernel, (3, 2), x[:18], out, 20, 24, BM=8, BN=16)
    assert found.indices[0] == (18, 0) and found.program == (2, 0, 0) and found.count == 48


@triton.jit
def block_kernel(x_ptr, out_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr):
    at = (tl.program_id(0) * BM, tl.program_id(1) * BN)
    x = tl.make_block_ptr(x_ptr, (m, n), (n, 1), at, (BM, BN), (1, 0))
    out = tl.make_block_ptr(out_ptr, (m, n), (n, 1), at, (BM, BN), (1, 0))
    tl.store(out, 2 * tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))


def hooked():
    builder = interpreter.interpreter_builder
    own = {name for name in vars(builder) if name.startswith(("create_", "set_"))}
    return own, interpreter.GridExecutor._init_args_hst, torch.empty, torch.Tensor.new_empty


def test_all_is_put_back():
    before = hooked()
    assert before[0] == set()
    x = normal(8)
    with trace():
        assert hooked() != before
        all_of_it_kernel[(1,)](x, torch.empty(1), BLOCK=8)
    assert hooked() == before
    with pytest.raises(TraceError), trace():
        all_of_it_kernel[(1,)](x, torch.empty(1), BLOCK=16)
    assert hooked() == before
    # what went wrong in the block is not hidden by what went wrong in a kernel
    with pytest.raises(ZeroDivisionError), trace():
        all_of_it_kernel[(1,)](x, torch.empty(1), BLOCK=16)
        _ = 1 / 0
    assert hooked() == before
    with pytest.raises(RuntimeError, match="running already"), trace(), trace():
        pass
    assert hooked() == before


def test_a_clean_kernel_gives_the_same_with_and_without():
    x = normal(64)
    plain, traced = x.clone(), x.clone()
    shift_kernel[(1,)](plain, 1, BLOCK=16)
    with trace(x=traced):
        shift_kernel[(1,)](traced, 1, BLOCK=16)
    assert torch.equal(plain, traced) and not torch.equal(x, traced)


def test_nothing_seen_is_no_success():
    with pytest.raises(TraceError, match="no load or store was seen"), trace(x=normal(3)):
        pass
    with trace(x=normal(3), check=False) as t:
        pass
    assert t.total == (NOTHING, NOTHING, NOTHING)


def test_mistakes_are_named(monkeypatch):
    x = normal(8)
    with pytest.raises(ValueError, match="x must be a torch tensor on the CPU; got meta"):
        with trace(x=x.to("meta")):
            pass
    with pytest.raises(ValueError, match="got list"), trace(x=[1.0]):
        pass
    with pytest.raises(ValueError, match="poison must name traced tensors; got 'y'"):
        with trace(x=x, poison=["y"]):
            pass
    with trace(x=x) as t:
        all_of_it_kernel[(1,)](x, torch.empty(1), BLOCK=8)
    with pytest.raises(ValueError, match="traced were x, out; got 'z'"):
        t.map("z")
    with pytest.raises(ValueError, match="ignore must be among .*no barrier"):
        t.check(ignore=["leak"])
    with pytest.raises(interpreter.InterpreterError, match="4-byte elements from x_ptr.* 8 bytes"):
        with trace():
            all_of_it_kernel[(1,)](triton.reinterpret(x.double(), tl.float32), x, BLOCK=8)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = False
        with pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1"), trace():
            pass


@pytest.mark.parametrize("m, n", [(1, 1), (5, 3), (3, 5), (40, 40), (20, 70), (70, 20)])
@pytest.mark.parametrize("name", [name for name in STAGES if name >= "s05"])
def test_stages_touch_only_what_is_theirs(name, m, n):
    A = normal(2, m, n)
    before = A.clone()
    with trace(A=A) as t:
        H, tau = stage(name).geqrf(A)
    assert torch.equal(A, before) and not t.map("A", "store").any()
    assert qrlib.certify(A, H, tau).passed
