"""What PyTorch asks of a function: a graph without breaks, shapes in advance, more dimensions."""

from functools import partial

import numpy as np
import pytest
import torch
from tables import normal

import qrlib
import qrlib.ops
from qrlib import api
from qrlib.jit import quick_reductions

A = normal(2, 5, 3, dtype=torch.float64)
FUNCTIONS = {
    "geqrf": qrlib.geqrf,
    "a stage": partial(qrlib.geqrf, stage="s04_recursive"),
    "householder_product": lambda A: qrlib.householder_product(*qrlib.geqrf(A)),
    "ormqr": lambda A: qrlib.ormqr(*qrlib.geqrf(A), A),
    "ormqr, right": lambda A: qrlib.ormqr(*qrlib.geqrf(A), A.mT, left=False, transpose=True),
    "qr": partial(qrlib.qr, positive_diag=True),
    "complete": partial(qrlib.qr, mode="complete", positive_diag=True),
    "r": partial(qrlib.qr, mode="r"),
    "orthogonalize": qrlib.orthogonalize,
    "half": lambda A: qrlib.qr(A.to(torch.bfloat16)),
    "lstsq": lambda A: tuple(qrlib.lstsq(A, A[..., :2])),
    "lstsq, half": lambda A: tuple(qrlib.lstsq(A.to(torch.bfloat16), A.to(torch.bfloat16))),
    "a list": lambda A: tuple(qrlib.foreach.orthogonalize([A, A[..., :2], 2 * A])),
}


def assert_same(found, expected):
    """Equal to rounding; and laid out alike."""
    torch.testing.assert_close(found, expected)
    for X, Y in zip(as_tuple(found), as_tuple(expected), strict=True):
        assert X.stride() == Y.stride()


def as_tuple(found):
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager", **options})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compile_without_a_break(name):
    function = FUNCTIONS[name]
    ours = compiled(function, dynamic=False)
    for X in (A, normal(2, 3, 5, dtype=A.dtype).mT):
        assert_same(ours(X), function(X))


# a list is sorted by shapes, which so are those of its graph
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "a list"])
def test_one_graph_for_all_sizes(name):
    """With dynamic shapes: what was compiled for one batch, height and width serves others."""
    graphs = []

    def count(graph, examples):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, examples)

    ours = compiled(FUNCTIONS[name], dynamic=True, backend=count)
    for shape in ((2, 5, 3), (7, 8, 3), (4, 9, 6)):
        X = normal(*shape, dtype=A.dtype)
        assert_same(ours(X), FUNCTIONS[name](X))
    assert len(graphs) == 1


@pytest.mark.parametrize("shape", ((5, 4), (1, 6, 2), (0, 6, 2), (2, 3, 0), (2, 3, 4, 5, 3)))
def test_shapes_that_compile(shape):
    X = normal(*shape)
    assert_same(compiled(qrlib.qr)(X), qrlib.qr(X))


def test_inductor(monkeypatch):
    """Operators alone, so that nothing is compiled by C++; it checks the strides that come."""
    # it looks torch.empty up, and is to find torch's
    monkeypatch.undo()
    X = normal(6, 5, 3)
    assert_same(compiled(qrlib.orthogonalize, backend="inductor")(X), qrlib.orthogonalize(X))


@pytest.mark.parametrize(
    "call, X, message",
    (
        (qrlib.geqrf, A.int(), "must be float32 or float64; got torch.int32"),
        (qrlib.geqrf, A.clone().requires_grad_(), "qrlib.orthogonalize or qrlib.qr"),
        (partial(qrlib.geqrf, stage="s99"), A, "stage must be one of .*got 's99'"),
        (torch.func.grad(lambda X: qrlib.qr(X)[1].sum()), A, "not where torch.compile is given"),
    ),
    ids=("dtype", "gradient", "stage", "torch.func"),
)
def test_compiled_errors_say_the_same(call, X, message):
    with pytest.raises(Exception, match=f"(?s){message}"):
        compiled(call)(X)


def opcheck(name, *args):
    found = torch.library.opcheck(getattr(torch.ops.qrlib, name).default, args)
    assert set(found.values()) == {"SUCCESS"}


LAYOUTS = {
    "plain": A,
    "wide": normal(2, 3, 5),
    "columns": A.mT.contiguous().mT,
    "one matrix": A[0],
    "no matrix": A[:0],
    "expanded": A[:1].expand(3, 5, 3),
    "every other": normal(4, 10, 6)[::2, ::2, ::2],
    "one column": A[..., :1],
    "one row": A[:, :1],
    "no column": A[..., :0],
    "no row": A[:, :0],
    "many dimensions": normal(2, 1, 3, 4, 4),
}


@pytest.mark.parametrize("stage", ("auto", "s04_recursive"))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_geqrf(layout, stage):
    opcheck("geqrf", LAYOUTS[layout], stage)


def test_kernels_behind_an_operator():
    """Through the interpreter where there is no GPU."""
    X = normal(2, 3, 2)
    X = X.cuda() if torch.cuda.is_available() else X
    by_kernels = partial(qrlib.geqrf, stage="s07_whole")
    with quick_reductions():
        expected = by_kernels(X)
        assert_same(compiled(by_kernels)(X), expected)
        found = torch.func.vmap(by_kernels, in_dims=1)(X[:, None])
    torch.testing.assert_close(found, (expected.H[None], expected.tau[None]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_what_applies_q(layout):
    X = LAYOUTS[layout]
    H, tau = qrlib.geqrf(X)
    for transpose in (False, True):
        opcheck("ormqr", H, tau, X, transpose)
        opcheck("ormqr", H, tau[..., :1], X.flip(-1), transpose)
    if X.shape[-2] >= X.shape[-1]:
        opcheck("householder_product", H, tau)
        opcheck("householder_product", H.mT.contiguous().mT, tau[..., :1])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dim", (0, 1, 2, 3, -1))
def test_vmap(name, dim):
    function, X = FUNCTIONS[name], normal(4, 2, 5, 3, dtype=torch.float64)
    found = torch.func.vmap(function, in_dims=dim)(X.movedim(0, dim))
    torch.testing.assert_close(found, function(X))


def test_vmap_of_one_argument():
    """One C for a batch of Q, one Q for a batch of C, and a batch of tau alone."""
    H, tau = qrlib.geqrf(A)
    C = normal(6, 5, 4, dtype=A.dtype)
    vmap = torch.func.vmap
    of_h = vmap(qrlib.ormqr, in_dims=(0, 0, None))(H, tau, C[0])
    torch.testing.assert_close(of_h, qrlib.ormqr(H, tau, C[:1].expand(2, 5, 4)))
    of_c = vmap(qrlib.ormqr, in_dims=(None, None, 2), out_dims=2)(H[0], tau[0], C.movedim(0, 2))
    torch.testing.assert_close(
        of_c.movedim(2, 0), torch.stack([qrlib.ormqr(H[0], tau[0], c) for c in C])
    )
    taus = torch.stack([tau[0], 0 * tau[0]])
    of_tau = vmap(qrlib.householder_product, in_dims=(None, 0))(H[0], taus)
    torch.testing.assert_close(of_tau[0], qrlib.householder_product(H[0], tau[0]))
    assert torch.equal(of_tau[1], torch.eye(5, 3, dtype=A.dtype))


def test_vmap_twice():
    X = normal(3, 4, 5, 3, dtype=torch.float64)
    twice = torch.func.vmap(torch.func.vmap(qrlib.qr), in_dims=1, out_dims=1)
    torch.testing.assert_close(twice(X), tuple(qrlib.qr(X)))


def test_vmap_compiled():
    torch.testing.assert_close(compiled(torch.func.vmap(qrlib.qr))(A), qrlib.qr(A))


def test_fake_tensors():
    """Shapes without numbers, as an exporter has them, of a size that no memory has."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        Q, R = qrlib.qr(torch.empty(1 << 20, 4096, 1024))
    assert Q.shape == (1 << 20, 4096, 1024) and R.shape == (1 << 20, 1024, 1024)
    assert Q.device.type == "cpu"


def test_a_program_that_is_exported():
    class Step(torch.nn.Module):
        def forward(self, A):
            return qrlib.orthogonalize(A, positive_diag=True)

    batch = torch.export.Dim("batch")
    program = torch.export.export(Step(), (A,), dynamic_shapes={"A": {0: batch}})
    X = normal(9, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(program.module()(X), Step()(X))


def test_operators_come_where_a_mode_looks_and_not_else():
    seen = []

    class Look(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Look():
        inside = qrlib.qr(A)
    assert torch.ops.qrlib.geqrf.default in seen
    assert torch.ops.qrlib.householder_product.default in seen
    torch.testing.assert_close(inside, qrlib.qr(A))


def test_orthogonalize_makes_no_r(monkeypatch):
    expected = qrlib.qr(A, stage="s03_blocked", positive_diag=True)[0]
    monkeypatch.setattr(api, "unpack_r", None)
    found = qrlib.orthogonalize(A, stage="s03_blocked", positive_diag=True)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("positive_diag", (False, True))
@pytest.mark.parametrize("X", (A, normal(3, 3, 5), normal(40, 33), normal(2, 2, 7, 7).mT))
def test_one_call_of_lapack_gives_what_two_give(X, positive_diag):
    """Bit for bit: on a CPU Q and R are torch.linalg.qr's, where no one looks at operators."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        found = qrlib.qr(X, positive_diag=positive_diag)
    assert "aten::linalg_qr" in {each.name for each in seen.events()}
    H, tau = qrlib.geqrf(X)
    Q, R = qrlib.householder_product(H[..., : tau.shape[-1]], tau), qrlib.unpack_r(H)
    if positive_diag:
        signs = torch.diagonal(R, 0, -2, -1).sign()
        Q, R = Q * signs[..., None, :], R * signs[..., None]
    assert torch.equal(found[0], Q) and torch.equal(found[1], R)
    assert found[0].is_contiguous() and found[1].is_contiguous()


def test_a_subclass_gets_its_operators():
    class Named(torch.Tensor):
        seen = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    H, tau = qrlib.geqrf(A.as_subclass(Named))
    assert isinstance(H, Named) and isinstance(tau, Named)
    assert torch.ops.qrlib.geqrf.default in Named.seen
    torch.testing.assert_close(H.as_subclass(torch.Tensor), qrlib.geqrf(A).H)
    P = torch.nn.Parameter(A, requires_grad=False)
    assert type(qrlib.geqrf(P).H) is torch.Tensor


def test_inference_mode():
    with torch.inference_mode():
        inside = qrlib.qr(A, positive_diag=True)
    torch.testing.assert_close(inside, qrlib.qr(A, positive_diag=True))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision_is_computed_in_single(dtype):
    X = normal(3, 40, 20).to(dtype)
    Q, R = qrlib.qr(X.float(), positive_diag=True)
    assert_same(qrlib.qr(X, positive_diag=True), (Q.to(dtype), R.to(dtype)))
    assert_same(qrlib.orthogonalize(X, positive_diag=True), Q.to(dtype))
    assert_same(tuple(qrlib.geqrf(X)), tuple(qrlib.geqrf(X.float())))


def test_half_precision_in_numpy():
    X = normal(3, 7, 4).numpy().astype(np.float16)
    Q, R = qrlib.qr(X)
    assert Q.dtype == R.dtype == np.float16
    assert qrlib.geqrf(X).H.dtype == np.float32
    np.testing.assert_array_equal(R, qrlib.qr(X.astype(np.float32), "r").astype(np.float16))


@pytest.mark.parametrize("mode", ("reduced", "complete", "r"))
def test_out(mode):
    found = as_tuple(qrlib.qr(A, mode))
    out = tuple(torch.full_like(X, torch.nan).mT.contiguous().mT for X in found)
    given = qrlib.qr(A, mode, out=out[0] if mode == "r" else out)
    for X, Y, Z in zip(as_tuple(given), out, found, strict=True):
        assert X is Y
        assert torch.equal(Y, Z)


def test_out_of_geqrf():
    H, tau = torch.full_like(A, torch.nan), torch.full_like(A[:, 0], torch.nan)
    found = qrlib.geqrf(A, out=(H, tau))
    assert found.H is H and found.tau is tau
    assert torch.equal(H, qrlib.geqrf(A).H) and torch.equal(tau, qrlib.geqrf(A).tau)
    half = qrlib.qr(A[:, :3].bfloat16(), out=(torch.empty(2, 3, 3), torch.empty(2, 3, 3)))
    torch.testing.assert_close(half, qrlib.qr(A[:, :3].bfloat16().float()))


def in_one_piece():
    X = torch.empty_like(A)
    return X, X[:, :3]


BAD_OUT = {
    "one": (lambda: A.clone(), TypeError, "tuple of 2; got Tensor"),
    "three": (lambda: (A.clone(),) * 3, TypeError, "tuple of 2; got tuple"),
    "shape": (
        lambda: (A.clone(), A.clone()),
        ValueError,
        r"out\[1\].*\(2, 3, 3\); got \(2, 5, 3\)",
    ),
    "dtype": (lambda: (A.float(), A[:, :3].clone()), TypeError, r"out\[0\] and A.*same dtype"),
    "A itself": (lambda: (A, A[:, :3].clone()), ValueError, r"out\[0\].*shares some with A"),
    "each other": (in_one_piece, ValueError, r"out\[1\].*shares some with out\[0\]"),
}


@pytest.mark.parametrize("name", BAD_OUT)
def test_bad_out(name):
    out, error, message = BAD_OUT[name]
    before = A.clone()
    with pytest.raises(error, match=message):
        qrlib.qr(A, out=out())
    assert torch.equal(A, before)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ((1000, 3, 3), (4, 100, 60), (2, 700, 352)))
class TestOnTheGpu:
    """What is started there is started where, when and as often as PyTorch says."""

    FLOAT32 = pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "a stage"])

    def test_opcheck(self, shape):
        X = normal(*shape).cuda()
        H, tau = qrlib.geqrf(X)
        opcheck("geqrf", X, "auto")
        opcheck("householder_product", H, tau)
        opcheck("ormqr", H, tau, X, True)

    @FLOAT32
    def test_captured_in_a_graph(self, shape, name):
        function, X, others = FUNCTIONS[name], normal(*shape).cuda(), normal(*shape, seed=1).cuda()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(X)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = function(X)
        X.copy_(others)
        graph.replay()
        torch.testing.assert_close(found, function(others), rtol=0, atol=0)

    @FLOAT32
    def test_another_stream(self, shape, name):
        """It waits for what its stream has before it, and for no other stream."""
        function, X = FUNCTIONS[name], normal(*shape).cuda()
        later = normal(*shape, seed=1).cuda()
        expected = function(later)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # the stream is busy, and X is not what it will be
            torch.cuda._sleep(10**8)
            X.copy_(later)
            found = function(X)
        side.synchronize()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    @pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs a second GPU")
    @FLOAT32
    def test_a_device_that_is_not_current(self, shape, name):
        function, X = FUNCTIONS[name], normal(*shape)
        expected = function(X.to("cuda:0"))
        with torch.cuda.device(0):
            found = function(X.to("cuda:1"))
            assert torch.cuda.current_device() == 0
        for there, here in zip(as_tuple(found), as_tuple(expected), strict=True):
            assert there.device == torch.device("cuda:1")
            torch.testing.assert_close(there.cpu(), here.cpu())

    @FLOAT32
    def test_deterministic_and_without_waiting(self, shape, name):
        function, X = FUNCTIONS[name], normal(*shape).cuda()
        first = function(X)
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        torch.cuda.set_sync_debug_mode("error")
        try:
            again = [function(X) for _ in range(20)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.use_deterministic_algorithms(before)
        for found in again:
            torch.testing.assert_close(found, first, rtol=0, atol=0)

    @FLOAT32
    def test_vmap(self, shape, name):
        function, X = FUNCTIONS[name], normal(2, *shape).cuda()
        found = torch.func.vmap(function, in_dims=1)(X.movedim(0, 1))
        torch.testing.assert_close(found, function(X), rtol=1e-3, atol=1e-3)

    @FLOAT32
    def test_inductor(self, shape, name, monkeypatch):
        # it looks torch.empty up, and is to find torch's
        monkeypatch.undo()
        function = FUNCTIONS[name]
        # the first call is of compiled code alone, the second makes a CUDA graph of it
        ours = compiled(function, backend="inductor", mode="reduce-overhead")
        for seed in range(4):
            # it leaves a rounding out that a wider type follows: these numbers lose nothing by one
            X = normal(*shape, seed=seed).bfloat16().float().cuda()
            found = [Y.clone() for Y in as_tuple(ours(X))]
            torch.testing.assert_close(tuple(found), as_tuple(function(X)), rtol=1e-4, atol=1e-5)
