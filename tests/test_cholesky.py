"""Stage 8 beyond what all stages are tested for: its verbs, what falls, bad matrices on a GPU."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tables import BAD, among, assert_as_good_as_lapack, bad, batch_of, normal
from triton.runtime import interpreter

import qrlib
from qrlib import elimination, reconstruction
from qrlib.certificate import LAPACK
from qrlib.householder import larft
from qrlib.jit import quick_reductions
from qrlib.stages import s06_update, s08_cholesky
from qrlib.tracer import trace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NB, N0 = s06_update.NB, s06_update.N0
# a kernel may compute what it does not use
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True, scope="module")
def _quick():
    with quick_reductions():
        yield


@triton.jit
def eliminate_kernel(
    G_ptr, P_ptr, S_ptr, e_ptr, ok_ptr, shares, stride_pm, N: tl.constexpr, NB: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0)
    G_ptr += b * shares * NB * NB
    S_ptr += b * 8 * NB * NB
    P_ptr += b * NB * stride_pm
    e_ptr += b * NB
    elimination.eliminate(G_ptr, P_ptr, S_ptr, e_ptr, shares, stride_pm, N, NB)
    tl.debug_barrier()
    d = tl.arange(0, NB)[None, :]
    stands = elimination.stands(S_ptr, tl.load(e_ptr + d), d, NB)
    tl.store(ok_ptr + b, tl.min(stands.to(tl.int32)))


@triton.jit
def larft_kernel(G_ptr, T_ptr, N: tl.constexpr, NB: tl.constexpr):
    elimination.larft(G_ptr, T_ptr, N, NB)


@triton.jit
def plus_kernel(C_ptr, A_ptr, B_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    C = elimination.plus(tl.load(C_ptr + at), tl.load(A_ptr + at), tl.load(B_ptr + at))
    tl.store(C_ptr + at, C)


def panel_of(kind):
    P = normal(1, 200, NB, seed=1)[0]
    match kind:
        case "zero columns":
            P[:, [0, 17, 32, 63]] = 0
        case "nothing":
            P[:] = 0
        case "graded columns":
            P *= 2.0 ** -torch.linspace(0, 36, NB)
        case "signs of zero":
            P[0, 0], P[1, 1] = 0.0, -0.0
        case "a column twice":
            P[:, 40] = P[:, 3]
        case "a column that is nearly nothing":
            P[:, 20] *= 2.0**-42
        case "nothing below a diagonal":
            P[:, 0], P[0, 0] = 0, 1
        case "a small tail":
            P[1:, 0] *= 2.0**-13
        case "NaN":
            P[150, 33] = float("nan")
    return P / 16


STAND = ("normal", "zero columns", "nothing", "graded columns", "signs of zero")
FALL = (
    "a column twice",
    "a column that is nearly nothing",
    "nothing below a diagonal",
    "a small tail",
    "NaN",
)


@pytest.fixture(scope="module")
def eliminated():
    """{kind: (P, S, e, ok)}, all of them in one launch, with Gram matrices in three shares."""
    P = torch.stack([panel_of(kind) for kind in (*STAND, *FALL)])
    G = (P.double().mT @ P.double()).float()
    shares = torch.stack([G / 2, G / 4, G / 4], 1).contiguous().to(DEVICE)
    # beside the top there is what is not the panel's
    top = torch.full((len(P), NB, NB + 9), float("nan"))
    top[:, :, :NB] = P[:, :NB]
    top = top.to(DEVICE)
    S = torch.full((len(P), 8, NB, NB), float("nan"), device=DEVICE)
    e = torch.empty(len(P), NB, dtype=torch.int32, device=DEVICE)
    ok = torch.full((len(P),), -1, dtype=torch.int32, device=DEVICE)
    eliminate_kernel[(len(P),)](shares, top, S, e, ok, 3, NB + 9, N=N0, NB=NB, num_warps=4)
    found = zip(P, S.cpu(), e.cpu(), ok.tolist(), strict=True)
    return dict(zip((*STAND, *FALL), found, strict=True))


@pytest.mark.xdist_group("eliminated")
@pytest.mark.parametrize("kind", STAND)
def test_eliminate_is_that_of_reconstruction(eliminated, kind):
    P, S, e, ok = eliminated[kind]
    assert ok == 1
    P = P.double()[None]
    # powers of two: of a zero column any will do
    zero = (P == 0).all(1)[0]
    scale = torch.where(zero, 1.0, torch.exp2(-e.double()))
    lengths = (P[0] * scale).norm(dim=0)[~zero]
    assert ((0.5 <= lengths) & (lengths <= 1)).all()
    P = P * scale
    R, L, W, stands = reconstruction.eliminate(P.mT @ P, P[:, :NB])
    assert stands
    inverse = reconstruction.triangular_inverse(W)
    # in a zero column nobody asks for what W has on its diagonal
    W = W - torch.diag_embed(zero.double())
    for ours, theirs in zip(S[4:].double(), (R[0], W[0], L[0].mT, inverse[0].mT), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        # what has to be zero is: nobody masks it
        assert (ours[(theirs == 0).tril(-1)] == 0).all()


@pytest.mark.xdist_group("eliminated")
@pytest.mark.parametrize("kind", FALL)
def test_what_has_no_mirrors_that_a_gram_matrix_can_tell_falls(eliminated, kind):
    assert eliminated[kind][3] == 0


@pytest.fixture
def cut(monkeypatch):
    """Of factors that are named TF32 the interpreter reads no more than a tensor core does."""
    builder = interpreter.interpreter_builder
    dot = builder.create_dot

    def create_dot(a, b, total, precision, *rest):
        if a.dtype == tl.float32 and str(precision).endswith(".TF32"):
            whole = (np.ascontiguousarray(x.data).view(np.int32) for x in (a, b))
            a, b = (
                interpreter.TensorHandle((x & -0x2000).view(np.float32), tl.float32) for x in whole
            )
        return dot(a, b, total, precision, *rest)

    monkeypatch.setitem(vars(builder), "create_dot", create_dot)


def test_products_of_parts_are_those_of_float32(cut):
    A, B, C = normal(3, NB, NB, seed=4)
    expected, size = C.double() + A.double() @ B.double(), C.abs() + A.abs() @ B.abs()
    found = C.to(DEVICE)
    plus_kernel[(1,)](found, A.to(DEVICE), B.to(DEVICE), N=NB, num_warps=4)
    assert ((found.cpu() - expected).abs() / size).max() < 2.0**-21


@pytest.mark.parametrize("in_place", (False, True))
def test_larft_is_an_inverse(in_place):
    V = qrlib.unpack_v(normal(1, 200, NB) / 14)[0]
    tau = 2 / (V * V).sum(0)
    # a mirror that is none
    V[:, 9], tau[9] = 0, 0
    # what is below its diagonal blocks nobody reads
    G = (V.mT @ V).triu(1) + tau.diag()
    G[N0:, :N0] = float("nan")
    G = G.to(DEVICE)
    T = G if in_place else torch.full((NB, NB), float("nan"), device=DEVICE)
    larft_kernel[(1,)](G, T, N=N0, NB=NB, num_warps=4)
    torch.testing.assert_close(T.cpu(), larft(V[None], tau[None])[0], rtol=1e-4, atol=1e-5)
    assert (T.cpu().tril(-1) == 0).all()


class Watching:
    """A kernel that notes, at each launch, which matrices have not stood."""

    def __init__(self, kernel):
        self.kernel, self.fell = kernel, []

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            given = dict(zip(self.kernel.arg_names, args))
            self.fell.append((given["ok_ptr"] == 0).nonzero().flatten())
            return self.kernel[grid](*args, **kwargs)

        return launch


@pytest.fixture
def fell(monkeypatch):
    """A function: [[the matrices of a batch that fell], of each panel]."""
    watching = Watching(s08_cholesky.fallback_kernel)
    monkeypatch.setattr(s08_cholesky, "fallback_kernel", watching)
    return lambda: [which.tolist() for which in watching.fell]


@pytest.fixture(params=(1, 3), ids="shares={}".format)
def shares(request, monkeypatch):
    """Rows are shared out among programs, and so is a certificate."""

    def share_out(B, tiles, m, *args, **options):
        rows = -(-m // request.param // 64) * 64
        return -(-m // rows), rows

    monkeypatch.setattr(s06_update, "share_out", share_out)
    parts = 4 if request.param > 1 else 1
    monkeypatch.setattr(s08_cholesky, "nearly_alone", lambda B, device: (parts, {}))


def test_panels_are_a_block_reflector(shares, fell):
    """V, T and V^T U are those that stage 6 would have kept of the same mirrors."""
    A = (normal(1, 280, 2 * NB) / 16).to(DEVICE)
    H, tau, V, T = (
        A.clone(),
        A.new_empty(1, 2 * NB),
        A.new_empty(1, 280, NB),
        A.new_empty(1, 128, NB),
    )
    F, G = s06_update.factors(1, 280, "fp16x3", H), H.new_empty(1, NB, NB)
    branch = s06_update.Branch(False)
    first, second = H[:, :, :NB], H[:, NB:, NB:]
    s08_cholesky.panel(first, tau[:, :NB], V, T[:, :NB], None, "fp16x3", F[..., :NB], branch)
    both = F[..., NB:, :], branch
    s08_cholesky.panel(second, tau[:, NB:], V[:, :216], T[:, NB:], G, "fp16x3", *both)
    assert fell() == [[], []]
    U = qrlib.unpack_v(first)
    for k, (V, of) in enumerate(((U, A[:, :, :NB]), (qrlib.unpack_v(second), A[:, NB:, NB:]))):
        own = slice(k * NB, (k + 1) * NB)
        kept = F[..., k * NB :, own].float().sum(1) / 2**14
        torch.testing.assert_close(kept, V, rtol=0, atol=1e-6)
        torch.testing.assert_close(T[:, own], larft(V, tau[:, own]), rtol=1e-3, atol=1e-5)
        found = qrlib.QR((first, second)[k].contiguous(), tau[:, own].contiguous())
        assert qrlib.certify(of, *found, gate=LAPACK).passed
    torch.testing.assert_close(G, V.mT @ U[:, NB:], rtol=1e-3, atol=1e-5)


# panels that fall are in registers, or in memory where they are too tall for that
@pytest.mark.parametrize("table", (s08_cholesky.FALLBACK, {}), ids=("registers", "memory"))
def test_what_falls_is_what_stage_6_makes_of_it(monkeypatch, fell, table):
    monkeypatch.setattr(s08_cholesky, "FALLBACK", table)
    # nothing is good enough
    monkeypatch.setattr(s08_cholesky, "LIMIT", 0.0)
    A = normal(1, 200, 150).to(DEVICE)
    if DEVICE == "cpu":
        with trace(A=A):
            ours = s08_cholesky.geqrf(A)
    else:
        ours = s08_cholesky.geqrf(A)
    assert fell() == [[0], [0]]
    theirs = s06_update.geqrf(A)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert qrlib.certify(A, *ours, gate=LAPACK).passed


def test_a_matrix_that_falls_does_so_alone(fell):
    A = normal(3, 140, NB).to(DEVICE)
    A[1, :, 9] = A[1, :, 8]
    H, tau = s08_cholesky.geqrf(A)
    assert fell() == [[1]]
    assert qrlib.certify(A, H, tau, gate=LAPACK).passed
    for b in (0, 2):
        alone = s08_cholesky.geqrf(A[b : b + 1])
        torch.testing.assert_close(alone.H[0], H[b], rtol=1e-5, atol=1e-6)
    # the next panel of a matrix may stand: what is left of it is none the worse
    assert fell() == [[1], [], []]


def test_a_certificate_is_asked_of_every_panel(monkeypatch, fell):
    """A limit between the residual of one matrix and that of another lets the one through."""
    A = normal(2, 130, NB)
    # the condition of a panel, squared, is in its Gram matrix
    A[1] = A[1, :, :1] + A[1] / 30
    found = reconstruction.reconstruct(A)
    assert found.ok.all() and found.backward[1] > 4 * found.backward[0]
    unit = 130 * 2.0**-24
    monkeypatch.setattr(
        s08_cholesky, "LIMIT", (found.backward[0] * found.backward[1]).sqrt().item() / unit
    )
    s08_cholesky.geqrf(A.to(DEVICE))
    assert fell() == [[1]]


def test_the_row_of_a_zero_column_is_not_lost(fell):
    """Small as it is, R has it, and a Gram matrix does not."""
    A = normal(1, 130, NB)
    A[:, :, 7] = 0
    A[:, 7] /= 1000
    H, tau = (X.cpu() for X in s08_cholesky.geqrf(A.to(DEVICE)))
    assert fell() == [[0]]
    assert_as_good_as_lapack(A, H, tau)
    assert H[0, 7, 8:].abs().max() > 1e-4


def among_others(B, n):
    """(A, {kind: where}): bad matrices at random places among dense ones."""
    return among(batch_of("dense", B, n), {kind: bad(kind, n) for kind in BAD})


@pytest.mark.gpu
class TestOnTheGpu:
    """Bad matrices at random places among easy ones."""

    @pytest.mark.parametrize("n", (176, 352, 512))
    def test_bad_matrices_among_many(self, fell, n):
        A, places = among_others(300, n)
        H, tau = s08_cholesky.geqrf(A.cuda())
        where = [*places.values(), *range(0, 300, 40)]
        assert_as_good_as_lapack(A[where], H.cpu()[where], tau.cpu()[where])
        # those that fell were bad, and of these some did
        first = set(fell()[0])
        assert {places[kind] for kind in ("columns twice", "upper")} <= first <= {*places.values()}

    def test_the_same_bits_in_a_plan_and_in_another_batch(self):
        """Of 150 matrices and more no rows are shared out."""
        A = among_others(300, 512)[0].cuda()
        first = s08_cholesky.geqrf(A)
        plan = qrlib.plan(A.shape, stage="s08_cholesky")
        for k in range(20):
            again = s08_cholesky.geqrf(A) if k % 2 else plan(A)
            assert torch.equal(again.H, first.H) and torch.equal(again.tau, first.tau)
        H, tau = s08_cholesky.geqrf(A[110:])
        assert torch.equal(H, first.H[110:]) and torch.equal(tau, first.tau[110:])

    def test_the_same_bits_where_rows_are_shared_out(self):
        A = among_others(16, 1000)[0].cuda()
        first = s08_cholesky.geqrf(A)
        for _ in range(20):
            again = s08_cholesky.geqrf(A)
            assert torch.equal(again.H, first.H) and torch.equal(again.tau, first.tau)
