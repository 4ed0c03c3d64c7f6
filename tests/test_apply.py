"""Q applied and formed by kernels: small sizes through the interpreter, every size on a GPU.

The reference is float64 by LAPACK, and what LAPACK itself loses in float32.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tables import misread, normal

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

import qrlib  # noqa: E402
from qrlib import api, apply, compilelab  # noqa: E402
from qrlib.householder import larft  # noqa: E402
from qrlib.launches import launches, memory  # noqa: E402
from qrlib.stages import s06_update  # noqa: E402
from qrlib.tracer import trace  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 2.0**-23
# the interpreter computes in NumPy, which warns of each NaN that a test puts in
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("quick"),
]
interpreted = pytest.mark.skipif(DEVICE == "cuda", reason="looks into the interpreter")
both_ways = pytest.mark.parametrize("transpose", (False, True))

# (m, n, k): tiny, and one row or mirror more; a block of one tile and of several, of both heights,
# the last with all of its rows and few; all columns and few, Q wider than a tile; no mirror
FEW = (
    (1, 1, 1),
    (5, 3, 3),
    (16, 16, 4),
    (17, 4, 4),
    (7, 7, 5),
    (16, 16, 16),
    (32, 32, 32),
    (33, 20, 17),
    (64, 50, 16),
    (90, 5, 0),
    (128, 3, 2),
    (250, 35, 18),
    (512, 1, 1),
)
# one block of one column, a whole one, two with a last of one, of all, three
MANY = ((513, 1, 1), (70, 64, 64), (130, 65, 65), (150, 140, 135))


@pytest.fixture
def quick_t(monkeypatch):
    """The interpreter takes seconds for the shuffles of elimination.larft; here NumPy does it."""

    def by_numpy(G_ptr, T_ptr, N, NB):
        c = tl.arange(0, NB)
        at = c[:, None] * NB + c[None, :]
        T = tl.load(G_ptr + at)
        G = T.handle.data
        tau = G.diagonal()
        T.handle.data = np.diag(tau)
        for j in range(1, NB):
            T.handle.data[:j, j] = -tau[j] * (T.handle.data[:j, :j] @ G[:j, j])
        tl.store(T_ptr + at, T)

    if DEVICE == "cpu":
        monkeypatch.setattr(apply, "larft", by_numpy)


@pytest.fixture
def three_shares(monkeypatch):
    """Rows are shared out among up to three programs, as with few matrices on a large chip."""

    def share_out(B, tiles, m, device, *args, **options):
        rows = math.ceil(m / 3 / 64) * 64
        return math.ceil(m / rows), rows

    monkeypatch.setattr(s06_update, "share_out", share_out)


def reflectors(B, m, n, k, seed=0):
    """(H, tau) of LAPACK's, row-major, with what is no V put out of reach."""
    H, tau = torch.geqrf(normal(B, m, n, seed=seed))
    H = H.contiguous()
    H.masked_fill_(torch.ones(m, n, dtype=torch.bool).triu(), float("nan"))
    H[:, :, k:] = float("nan")
    return H.to(DEVICE), tau[:, :k].to(DEVICE)


def explicit_q(H, tau, dtype=torch.float64):
    """All of Q [B, m, m], by LAPACK."""
    m, k = H.shape[1], tau.shape[1]
    V = torch.zeros(len(H), m, m, dtype=dtype)
    V[..., :k] = H[..., :k].cpu().nan_to_num().to(dtype)
    if not k:
        return torch.eye(m, dtype=dtype).expand(len(H), m, m)
    return torch.linalg.householder_product(V, tau.cpu().to(dtype))


def is_tiny(H, tau):
    """Whether mirrors go one by one, without a product."""
    return tau.shape[1] <= apply.TINY[0] and H.shape[1] <= apply.TINY[1]


def cut_off(H, tau):
    """What a column may lose of its length to products.

    Three errors of 2^-24 each are in every term: a pair of float16 numbers has 22 bits and a sign,
    and of two pairs the product of the small halves is left out: eps / 2 where they do not agree.

    And to a sum of tensor cores nothing is rounded. An instruction adds 16 rows of a product, or 8
    in tf32, and cuts off: eps at most, half of it on average, times 0.72 for the place of a number
    between two powers of two, and times 2/3 for a sum that grows from nothing: eps / 4 of the
    whole. That is done for three products of V^T C, of that with T, and with V for two blocks.
    Where one block is all it is done for V^T V, V^T C and with V, and each sum has at most 64
    rows: of its three products the two that are small come first, and one is cut off. What so is
    missing moves a column by at most twice its length.
    """
    if is_tiny(H, tau):
        return 0
    if DEVICE == "cpu":
        return EPS / 2
    if apply._few(H, tau):
        sums = 2 * min(H.shape[1], 64) / 16 + 32 / 16
    else:
        sums = 3 * (H.shape[1] / 16 + 64 / 8 + 128 / 16)
    return EPS / 2 + 2 * EPS / 4 * sums


def assert_close(found, H, tau, C, transpose):
    """Columns within 4 times what LAPACK loses, or 2 eps, of their length, and what is cut off."""
    k = tau.shape[1]
    V, scalars, C = H[..., :k].cpu().nan_to_num(), tau.cpu(), C.cpu().double()
    exact, by_lapack = (
        torch.ormqr(V.to(t), scalars.to(t), C.to(t), transpose=transpose) if k else C.to(t)
        for t in (torch.float64, torch.float32)
    )
    length = C.norm(dim=-2).clamp_min(1e-300)
    ours, theirs = ((X.cpu() - exact).norm(dim=-2) / length for X in (found, by_lapack))
    assert not ours.isnan().any()
    limit = 4 * theirs.amax().clamp_min(EPS / 2) + cut_off(H, tau)
    assert (ours <= limit).all(), (ours.amax(), theirs.amax(), limit)


@both_ways
@pytest.mark.parametrize("m, n, k", (*FEW, *MANY))
def test_q_on_the_left(m, n, k, transpose, quick_t):
    H, tau = reflectors(2 if k < 64 else 1, m, n, k)
    C = normal(len(H), m, 7, seed=1).to(DEVICE)
    found = apply.ormqr(H, tau, C, transpose=transpose)
    assert found.shape == C.shape and found.is_contiguous()
    assert_close(found, H, tau, C, transpose)


@pytest.mark.parametrize("m, n, k", (*FEW, *MANY))
def test_q_formed(m, n, k, quick_t):
    H, tau = reflectors(2 if k < 64 else 1, m, n, k)
    Q = apply.orgqr(H, tau)
    assert Q.shape == H.shape and Q.is_contiguous()
    assert_close(Q, H, tau, torch.eye(m, n).expand(len(H), m, n), False)
    orthogonality = Q.cpu().double().mT @ Q.cpu().double() - torch.eye(n)
    # LAPACK's own test, and its threshold
    assert (orthogonality.abs().sum(-2).amax() if n else 0) <= 30 * m * EPS / 2


@both_ways
def test_t_by_blocks_of_its_rows(transpose):
    """With nothing in place of elimination.larft: one whole block, and one of a few columns."""
    H, tau = reflectors(1, 140, 70, 70)
    C = normal(1, 140, 5, seed=1).to(DEVICE)
    assert_close(apply.ormqr(H, tau, C, transpose=transpose), H, tau, C, transpose)


@both_ways
def test_a_mirror_that_is_none(transpose, quick_t):
    """tau = 0 is I, whatever the vector, and T has a row and a column of zeros there."""
    for m, n in ((6, 4), (40, 12), (140, 80)):
        H, tau = reflectors(1, m, n, n)
        tau[:, [0, 3, n - 1]] = 0
        C = normal(1, m, 3, seed=1).to(DEVICE)
        assert_close(apply.ormqr(H, tau, C, transpose=transpose), H, tau, C, transpose)


@pytest.mark.parametrize("p", (0, 1, 8, 9, 33, 70))
@pytest.mark.parametrize("m, k", ((6, 2), (20, 5), (130, 66)))
def test_columns_of_c(m, k, p, quick_t):
    H, tau = reflectors(1, m, k, k)
    C = normal(1, m, p, seed=1).to(DEVICE)
    found = apply.ormqr(H, tau, C)
    assert found.shape == C.shape
    if p:
        assert_close(found, H, tau, C, False)


@pytest.mark.parametrize(
    "B, m, n, k", ((0, 5, 3, 3), (0, 150, 70, 70), (2, 0, 0, 0), (2, 300, 0, 0))
)
def test_nothing(B, m, n, k):
    H, tau = (torch.zeros(shape, device=DEVICE) for shape in ((B, m, n), (B, k)))
    C = normal(B, m, 3).to(DEVICE)
    assert apply.orgqr(H, tau).shape == H.shape
    found = apply.ormqr(H, tau, C)
    assert torch.equal(found, C) and found.data_ptr() != C.data_ptr() or not C.numel()


@pytest.mark.parametrize("precision", ("ieee", "tf32x3", "fp16x3"))
def test_precisions(precision, quick_t):
    for m, n in ((40, 12), (140, 80)):
        H, tau = reflectors(1, m, n, n)
        C = normal(1, m, 5, seed=1).to(DEVICE)
        found = apply.ormqr(H, tau, C, transpose=True, precision=precision)
        assert_close(found, H, tau, C, True)
        Q = apply.orgqr(H, tau, precision=precision)
        assert_close(Q, H, tau, torch.eye(m, n).expand(1, -1, -1), False)


@both_ways
@pytest.mark.parametrize("m, n", ((6, 3), (40, 12), (150, 80)))
def test_every_column_at_its_own_scale(m, n, transpose, quick_t):
    H, tau = reflectors(1, m, n, n)
    C = normal(1, m, 40, seed=1) * 10.0 ** torch.linspace(-36, 37, 40)
    C[..., 7] = 0
    found = apply.ormqr(H, tau, C.to(DEVICE), transpose=transpose)
    assert_close(found, H, tau, C, transpose)
    assert not found[..., 7].any()


@pytest.mark.parametrize("m, n", ((6, 3), (40, 12), (150, 80)))
def test_a_power_of_two_goes_through(m, n, quick_t):
    H, tau = reflectors(1, m, n, n)
    C = normal(1, m, 5, seed=1).to(DEVICE)
    found = apply.ormqr(H, tau, C)
    for power in (2.0**-60, 2.0**60):
        assert torch.equal(apply.ormqr(H, tau, C * power), found * power)


@both_ways
@pytest.mark.parametrize("m, n", ((6, 3), (40, 12), (150, 70)))
def test_what_is_not_finite_stays_in_its_column(m, n, transpose, quick_t):
    H, tau = reflectors(2, m, n, n)
    C = normal(2, m, 4, seed=1).to(DEVICE)
    clean = apply.ormqr(H, tau, C, transpose=transpose)
    C[1, m - 1, 0], C[1, 0, 2] = float("nan"), float("inf")
    found = apply.ormqr(H, tau, C, transpose=transpose)
    assert torch.equal(found[0], clean[0]) and torch.equal(found[1, :, 1::2], clean[1, :, 1::2])
    assert not found[1, :, ::2].isfinite().any(0).all()


@pytest.mark.parametrize("where", ("V", "tau"))
@pytest.mark.parametrize("m, n", ((6, 3), (40, 12), (140, 40)))
def test_a_bad_mirror_stays_in_its_matrix_and_shows(m, n, where, quick_t):
    H, tau = reflectors(3, m, n, n)
    C = normal(3, m, 4, seed=1).to(DEVICE)
    clean = apply.ormqr(H, tau, C), apply.orgqr(H, tau)
    for b, bad in ((0, float("nan")), (2, float("inf"))):
        if where == "V":
            H[b, m - 1, 2] = bad
        else:
            tau[b, 2] = bad
    for found, expected in zip((apply.ormqr(H, tau, C), apply.orgqr(H, tau)), clean, strict=True):
        assert torch.equal(found[1], expected[1])
        assert not found[0].isfinite().all() and not found[2].isfinite().all()


@pytest.mark.parametrize("m, n", ((40, 12), (140, 40)))
def test_a_vector_that_no_mirror_of_ours_has_works_or_shows(m, n, quick_t):
    """Entries are at most 1 by geqrf; a pair of float16 numbers ends at 4."""
    H, tau = reflectors(2, m, n, n)
    H[0, m - 5, 7], H[1, m - 5, 7] = 3.5, 4.5
    C = normal(2, m, 3, seed=1).to(DEVICE)
    found = apply.ormqr(H, tau, C)
    exact = explicit_q(H, tau)[0] @ C[0].cpu().double()
    torch.testing.assert_close(found[0].cpu().double(), exact, rtol=1e-4, atol=1e-4)
    assert not found[1].isfinite().all()


@both_ways
def test_what_comes_through_t_may_be_large(transpose):
    """Far larger than a float16 number, where vectors grow by what is no mirror."""
    H, tau = reflectors(1, 20, 8, 8)
    C = normal(1, 20, 3, seed=1).to(DEVICE)
    tau *= 32
    V, scalars, D = H.cpu().nan_to_num().double(), tau.cpu().double(), C.cpu().double()
    exact = torch.ormqr(V, scalars, D, transpose=transpose)
    assert (exact.abs().amax(1) > 2.0**5 * D.abs().amax(1)).all()
    found = apply.ormqr(H, tau, C, transpose=transpose).cpu().double()
    assert ((found - exact).norm(dim=1) <= 1e-4 * exact.norm(dim=1)).all()


@pytest.mark.parametrize("m, n, k", ((3, 3, 3), (12, 6, 2)))
def test_tiny_matrices_share_a_program_and_nothing_else(m, n, k):
    """Those of one program, those of the last one, which is not full, and one alone."""
    B = 1 + apply.NUMBERS // 16
    H, tau = reflectors(B, m, n, k)
    C = normal(B, m, 5, seed=1).to(DEVICE)
    for transpose in (False, True):
        found = apply.ormqr(H, tau, C, transpose=transpose)
        assert_close(found, H, tau, C, transpose)
        for b in (0, B - 1):
            alone = apply.ormqr(H[b : b + 1], tau[b : b + 1], C[b : b + 1], transpose=transpose)
            assert torch.equal(found[b : b + 1], alone)
    Q = apply.orgqr(H, tau)
    assert_close(Q, H, tau, torch.eye(m, n).expand(B, m, n), False)
    assert torch.equal(Q[B - 1 :], apply.orgqr(H[B - 1 :], tau[B - 1 :]))


@pytest.mark.parametrize("layout", ("transposed", "every second", "expanded", "4 bytes off"))
@pytest.mark.parametrize("m, n", ((6, 3), (36, 12), (140, 40)))
def test_any_strides_and_input_untouched(m, n, layout, quick_t):
    def laid(X):
        if layout == "transposed":
            return X.mT.contiguous().mT
        if layout == "every second":
            wide = torch.full([2 * s for s in X.shape], float("nan"), device=X.device)
            wide[::2, ::2, 1::2] = X
            return wide[::2, ::2, 1::2]
        if layout == "expanded":
            return X[:1].expand(2, *X.shape[1:])
        return torch.cat([X.new_zeros(1), X.flatten()])[1:].view(X.shape)

    H, tau = reflectors(2, m, n, n)
    C = normal(2, m, 6, seed=1).to(DEVICE)
    H, tau, C = laid(H), laid(tau[..., None])[..., 0], laid(C)
    before = [X.clone(memory_format=torch.contiguous_format) for X in (H, tau, C)]
    found = apply.ormqr(H, tau, C), apply.orgqr(H, tau)
    expected = apply.ormqr(*before), apply.orgqr(*before[:2])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    for X, Y in zip((H, tau, C), before, strict=True):
        torch.testing.assert_close(X, Y, rtol=0, atol=0, equal_nan=True)


@both_ways
@pytest.mark.parametrize("m, k", ((6, 3), (40, 12), (200, 70)))
def test_a_wide_c_goes_in_parts(m, k, transpose, monkeypatch, quick_t):
    H, tau = reflectors(1, m, k, k)
    C = normal(1, m, 12, seed=1).to(DEVICE)
    monkeypatch.setattr(apply, "WIDE", 5)
    assert_close(apply.ormqr(H, tau, C, transpose=transpose), H, tau, C, transpose)


@both_ways
def test_rows_shared_out(transpose, three_shares, quick_t):
    H, tau = reflectors(1, 390, 70, 70)
    C = normal(1, 390, 5, seed=1).to(DEVICE)
    assert_close(apply.ormqr(H, tau, C, transpose=transpose), H, tau, C, transpose)


@interpreted
@pytest.mark.parametrize("m, n, k", ((5, 3, 3), (40, 32, 20), (130, 66, 66), (200, 140, 140)))
def test_loads_and_stores_are_in_bounds_and_in_order(m, n, k, quick_t):
    """No stray access, no unwritten cell read, no race, no reload without a barrier."""
    H, tau = reflectors(1, m, n, k)
    H, C = H.nan_to_num(), normal(1, m, 5, seed=1)
    with trace(H=H, tau=tau, C=C) as t:
        found = [apply.orgqr(H, tau), *(apply.ormqr(H, tau, C, transpose=t) for t in (False, True))]
    assert not t.faults
    # what is R's is no one's business, though one block reads it
    i, j = np.ogrid[:m, :n]
    one = apply._few(H, tau) and not is_tiny(H, tau)
    assert np.array_equal(t.map("H")[0] > 0, ((i > j) | one) & (j < k))
    for X, which in zip(found, (torch.eye(m, n)[None], C, C), strict=True):
        assert_close(X, H, tau, which, X is found[2])


@interpreted
def test_t_in_order(three_shares):
    """The kernel that makes T, with shares to sum and a barrier wherever one is needed."""
    H, tau = reflectors(1, 260, 70, 70)
    H = H.nan_to_num()
    with trace(H=H, tau=tau):
        Q = apply.orgqr(H, tau)
    assert_close(Q, H, tau, torch.eye(260, 70)[None], False)


@interpreted
@both_ways
def test_blocks_in_the_order_of_their_steps(transpose, monkeypatch, quick_t):
    """V, T and V^T U as an update by two blocks takes them, one block after the other."""
    H, tau = reflectors(2, 150, 140, 140)
    seen = []

    def update(V, T, C, precision, *, G, e, done):
        seen.append((V.clone(), T.clone(), C.shape, G.clone(), done))

    monkeypatch.setattr(s06_update, "update", update)
    apply.ormqr(H, tau, normal(2, 150, 3), transpose=transpose)
    V = torch.zeros(2, 150, 192)
    V[..., :140] = qrlib.unpack_v(H.nan_to_num(), 140)
    blocks = [V[..., j : j + 64] for j in (0, 64, 128)]
    taus = torch.nn.functional.pad(tau, (0, 52)).split(64, -1)
    order = (0, 1, 2) if transpose else (2, 1, 0)
    (F1, T1, C1, G1, done1), (F2, T2, C2, _, done2) = seen
    # rows from the first of both blocks on, and the width of two, or of one that is left
    first = (0, 128) if transpose else (64, 0)
    assert [C1, C2] == [(2, 150 - j, 3) for j in first]
    assert F1.shape == (2, 2, 150 - first[0], 128) and F2.shape == (2, 2, 150 - first[1], 64)
    assert (done1, done2) == ((128, 22) if transpose else (0, 150))
    whole = [(F.float()[:, 0] + F.float()[:, 1]) * 2.0**-14 for F in (F1, F2)]
    expected = torch.cat([blocks[order[0]], blocks[order[1]]], -1)[:, first[0] :]
    torch.testing.assert_close(whole[0], expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(whole[1], blocks[order[2]][:, first[1] :], rtol=1e-6, atol=1e-9)
    G = blocks[order[1]].mT @ blocks[order[0]]
    torch.testing.assert_close(G1, G, rtol=1e-4, atol=1e-5)
    for T, which in ((T1[:, :64], order[0]), (T1[:, 64:], order[1]), (T2[:, :64], order[2])):
        theirs = larft(blocks[which], taus[which])
        theirs = theirs if transpose else theirs.mT
        torch.testing.assert_close(T, theirs, rtol=1e-4, atol=1e-5)


class TestOnPaper:
    """What a GPU would be given, without one."""

    def started(self, function, *shape, target="sm_90a"):
        made = launches(SimpleNamespace(geqrf=function), *shape, target=target)
        return [(each.config.name.removesuffix("_kernel"), each.grid) for each in made]

    def test_q_is_formed_from_its_last_columns_on(self):
        found = self.started(lambda A: apply.orgqr(A, A[:, 0]), 640, 512, 512)
        updates = [("update", (640, tiles)) for tiles in (2, 4, 6, 8)]
        assert found == [("blocks", (640, 8, 1)), ("factors", (640, 8)), *updates]

    def test_c_is_scaled_once_and_back_by_the_last_update(self):
        for transpose in (False, True):
            found = self.started(
                lambda A, t=transpose: apply.ormqr(A, A[:, 0], A[..., :64], transpose=t),
                *(640, 300, 300),
            )
            names = [name for name, _ in found]
            assert names == ["scale", "blocks", "factors", "update", "update", "update"]

    def test_few_matrices_share_their_rows_out(self):
        found = dict(self.started(lambda A: apply.orgqr(A, A[:, 0]), 1, 4096, 64))
        assert found["blocks"] == (1, 1, 32) and "share" in found and "subtract" in found

    @pytest.mark.parametrize("m, n", ((17, 4), (16, 5), (16, 16), (128, 32), (512, 32)))
    def test_few_mirrors_are_one_launch(self, m, n):
        found = self.started(lambda A: apply.orgqr(A, A[:, 0, :n]), 1000, m, n)
        assert found == [("one_block", (1000, 1))]

    @pytest.mark.parametrize("m, n, together", ((3, 3, 32), (4, 4, 32), (5, 3, 16), (16, 4, 8)))
    def test_tiny_matrices_share_a_program(self, m, n, together):
        found = self.started(lambda A: apply.orgqr(A, A[:, 0, :n]), 1000, m, n)
        assert found == [("mirrors", (math.ceil(1000 / together), 1))]

    @pytest.mark.parametrize("m, k", ((4, 4), (20, 6), (200, 70)))
    def test_no_grid_ends_before_a_wide_c(self, m, k):
        found = self.started(
            lambda A: apply.ormqr(A[..., :k], A[:, 0, :k], A), 1, m, 6 * apply.WIDE
        )
        assert max(max(grid[1:], default=1) for _, grid in found) < 65536

    def test_memory(self):
        B, m, n = 640, 512, 512
        # V in pairs of float16; two products and T of each block, G of every second; and Q
        numbers = m * n + 8 * 3 * 64 * 64 + 4 * 64 * 64 + m * n
        A = normal(1, m, n).expand(B, m, n)
        assert memory(lambda A: apply.orgqr(A, A[:, 0]), A) == 4 * B * numbers

    @pytest.mark.parametrize("dtype, named", ((torch.float32, True), (torch.float64, False)))
    def test_the_door_takes_the_kernels_for_float32(self, dtype, named):
        def through_the_door(A):
            A = A.to(dtype)
            api.orgqr(A, A[:, 0])
            api.apply_q(A, A[:, 0], A, True)

        found = {name for name, _ in self.started(through_the_door, 2, 100, 100)}
        assert found == ({"scale", "blocks", "factors", "update"} if named else set())


def configs():
    """One Config for each kernel of this module, and each of its constants."""
    found = {}
    for m, n in ((512, 512), (3, 3), (16, 4), (16, 16), (60, 12), (60, 30), (256, 16), (256, 32)):
        for p in (4, 40):
            for transpose in (False, True):
                for launch in launches(
                    SimpleNamespace(
                        geqrf=lambda A, p=p, t=transpose: (
                            apply.orgqr(A, A[:, 0]),
                            apply.ormqr(A, A[:, 0], A.new_empty(*A.shape[:2], p), transpose=t),
                        )
                    ),
                    *(640, m, n),
                ):
                    config = launch.config
                    if hasattr(apply, config.name):
                        kernel, signature, *rest = config.key
                        given = dict(signature).get("C_ptr")
                        found.setdefault((kernel, given, *rest), config)
    return [pytest.param(c, id=str(c).replace(" ", "-")) for c in found.values()]


CONFIGS = configs()


def test_all_kernels_are_compiled():
    names = [name for name in vars(apply) if name.endswith("_kernel")]
    assert {p.values[0].name for p in CONFIGS} == set(names) and len(names) == 4
    assert {p.values[0].constexprs.get("TRANSPOSE") for p in CONFIGS} == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("target", ("sm_90a", "sm_100a"))
@pytest.mark.parametrize("config", CONFIGS)
def test_kernels_fit_and_do_not_spill(config, target):
    artifact = compilelab.compile_config(config, target)
    assert artifact.fits and not misread(artifact), str(artifact)
    outside, inside = artifact.spills
    assert inside == 0 and outside < 0.02 * sum(artifact.mix.values()), str(artifact)
    if config.name in ("mirrors_kernel", "one_block_kernel"):
        assert not artifact.spilled, str(artifact)
    if config.name in ("blocks_kernel", "one_block_kernel"):
        assert artifact.tensor_cores, str(artifact)


class TestOut:
    @pytest.mark.parametrize("as_numpy", (False, True))
    @pytest.mark.parametrize("left", (False, True))
    def test_it_is_written_and_returned(self, left, as_numpy):
        H, tau = (X.cpu() for X in torch.geqrf(normal(2, 6, 4)))
        C = normal(2, *((6, 3) if left else (3, 6)), seed=1)
        # beside the input, in the same memory
        around = torch.full((2, 6, 8), float("nan"))
        around[..., ::2] = H
        H, Q = around[..., ::2], around[..., 1::2]
        X = torch.full_like(C, float("nan"))
        if as_numpy:
            H, tau, C, Q, X = (Y.numpy() for Y in (H, tau, C, Q, X))
        assert qrlib.householder_product(H, tau, out=Q) is Q
        assert qrlib.ormqr(H, tau, C, left=left, out=X) is X
        assert np.array_equal(Q, qrlib.householder_product(H, tau))
        assert np.array_equal(X, qrlib.ormqr(H, tau, C, left=left))

    H, TAU = torch.geqrf(normal(2, 5, 3))
    BUFFER = torch.zeros(2, 5, 6)
    INSIDE = BUFFER[..., 1:4].copy_(H)
    WRONG = {
        "shape": (torch.empty(5, 3), ValueError, r"shape of the result, \(2, 5, 3\); got \(5, 3\)"),
        "dtype": (torch.empty(2, 5, 3).double(), TypeError, "out and H .* same dtype"),
        "device": (
            torch.empty(2, 5, 3, device="meta"),
            ValueError,
            "same device; got meta and cpu",
        ),
        "library": (np.empty((2, 5, 3), np.float32), TypeError, "same type; got numpy and torch"),
        "a list": ([], TypeError, "out must be a torch tensor.*got list"),
        "expanded": (torch.empty(5, 3).expand(2, 5, 3), ValueError, r"strides \(0, 12, 4\)"),
        "itself": (INSIDE, ValueError, "shares some with H"),
        "part of it": (BUFFER[..., 2:5], ValueError, "shares some with H"),
        "tau": (TAU.as_strided((2, 1, 3), (3, 3, 1)).expand(2, 1, 3), ValueError, "shape of the"),
        "gradient": (torch.empty(2, 5, 3, requires_grad=True), RuntimeError, "out requires a grad"),
    }

    @pytest.mark.parametrize("name", WRONG)
    def test_what_it_cannot_be(self, name):
        out, error, message = self.WRONG[name]
        before = self.BUFFER.clone()
        with pytest.raises(error, match=f"(?s){message}"):
            qrlib.householder_product(self.INSIDE, self.TAU, out=out)
        with pytest.raises(error, match=f"(?s){message}"):
            qrlib.ormqr(self.INSIDE, self.TAU, torch.ones(2, 5, 3), out=out)
        assert torch.equal(self.BUFFER, before)

    def test_c_itself(self):
        C = normal(2, 5, 3)
        with pytest.raises(ValueError, match="shares some with C"):
            qrlib.ormqr(self.H, self.TAU, C, out=C)
        with pytest.raises(ValueError, match="shares some with C"):
            qrlib.ormqr(self.H, self.TAU, C.mT, left=False, out=C.mT)

    def test_nothing_shares_nothing(self):
        H, tau = self.H[:0], self.TAU[:0]
        assert qrlib.householder_product(H, tau, out=H) is H


@pytest.mark.gpu
class TestOnTheGpu:
    """What the interpreter is too slow for, or cannot show."""

    @pytest.mark.parametrize("seed", range(40))
    def test_sizes(self, seed):
        g = np.random.default_rng(seed)
        m = int(g.integers(1, 700))
        n = int(g.integers(1, m + 1))
        k, p = int(g.integers(0, n + 1)), int(g.integers(1, 200))
        H, tau = reflectors(3, m, n, k, seed)
        C = normal(3, m, p, seed=seed + 1).cuda()
        for transpose in (False, True):
            assert_close(apply.ormqr(H, tau, C, transpose=transpose), H, tau, C, transpose)
        assert_close(apply.orgqr(H, tau), H, tau, torch.eye(m, n).expand(3, m, n), False)

    @both_ways
    @pytest.mark.parametrize("left", (False, True))
    @pytest.mark.parametrize("m, n", ((30, 30), (300, 200), (200, 300)))
    def test_through_the_door(self, m, n, left, transpose):
        H, tau = qrlib.geqrf(normal(2, 3, m, n).cuda())
        C = normal(2, 3, *((m, 50) if left else (50, m)), seed=1).cuda()
        found = qrlib.ormqr(H, tau, C, left=left, transpose=transpose)
        Q = explicit_q(H.flatten(0, 1), tau.flatten(0, 1)).view(2, 3, m, m)
        Q = (Q.mT if transpose else Q).cuda()
        expected = Q @ C.double() if left else C.double() @ Q
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        out = torch.empty_like(C)
        assert qrlib.ormqr(H, tau, C, left=left, transpose=transpose, out=out) is out
        assert torch.equal(out, found)

    @pytest.mark.parametrize(
        "B, m, n", ((24, 1024, 1024), (2, 4096, 4096), (2, 50_000, 60), (3, 9000, 200), (1, 1, 1))
    )
    def test_large(self, B, m, n):
        A = normal(B, m, n).cuda()
        H, tau = qrlib.geqrf(A)
        Q = qrlib.householder_product(H, tau).double()
        wrong = Q.mT @ Q - torch.eye(n, device="cuda", dtype=torch.float64)
        assert wrong.abs().sum(-2).amax() <= 30 * m * EPS / 2
        R = qrlib.unpack_r(H).double()
        wrong = (R - Q.mT @ A.double()).abs().sum(-2).amax(-1)
        assert (wrong <= 30 * m * EPS / 2 * A.double().abs().sum(-2).amax(-1)).all()

    @pytest.mark.parametrize("m, n", ((3, 3), (16, 16), (140, 140)))
    def test_batch_of_70_000_and_of_none(self, m, n):
        H, tau = qrlib.geqrf(normal(7, m, n).cuda())
        H, tau = (X.repeat(10_000, *[1] * (X.ndim - 1)) for X in (H, tau))
        Q = apply.orgqr(H, tau)
        assert torch.equal(Q[:7], Q[-7:])
        # seven alone share their rows out, and add in another order
        assert_close(Q[:7], H[:7], tau[:7], torch.eye(m, n).expand(7, m, n), False)
        assert apply.orgqr(H[:0], tau[:0]).shape == (0, m, n)

    def test_more_columns_than_a_grid_has_programs(self):
        for m, k in ((4, 4), (20, 6), (140, 40)):
            H, tau = reflectors(1, m, k, k)
            C = normal(1, m, 9, seed=1).cuda()
            wide = torch.zeros(1, m, 3_000_000, device="cuda")
            wide[..., -9:] = C
            found = apply.ormqr(H, tau, wide)
            assert not found[..., :-9].any()
            assert_close(found[..., -9:], H, tau, C, False)

    def test_more_than_2_31_elements(self):
        H, tau = qrlib.geqrf(normal(1, 512, 512).cuda())
        H, tau = H.expand(8193, 512, 512), tau.expand(8193, 512)
        Q = apply.orgqr(H, tau)
        assert torch.equal(Q[-1], Q[0])

    @pytest.mark.parametrize("m, n", ((3, 3), (40, 20), (256, 32), (500, 300)))
    def test_a_hundred_times_the_same_bits(self, m, n):
        H, tau = qrlib.geqrf(normal(9, m, n).cuda())
        C = normal(9, m, 70, seed=1).cuda()
        first = apply.ormqr(H, tau, C), apply.orgqr(H, tau)
        for _ in range(100):
            assert torch.equal(apply.ormqr(H, tau, C), first[0])
            assert torch.equal(apply.orgqr(H, tau), first[1])

    @pytest.mark.parametrize("m, n", ((40, 20), (500, 300)))
    def test_no_synchronisation_inside(self, m, n):
        H, tau = qrlib.geqrf(normal(4, m, n).cuda())
        C = normal(4, m, 70, seed=1).cuda()

        def all_of_it():
            qrlib.householder_product(H, tau)
            qrlib.ormqr(H, tau, C)
            qrlib.ormqr(H, tau, C.mT, left=False)

        all_of_it()
        torch.cuda.set_sync_debug_mode("error")
        try:
            all_of_it()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_global_tf32_changes_nothing(self):
        H, tau = qrlib.geqrf(normal(4, 300, 300).cuda())
        expected = apply.orgqr(H, tau)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            assert torch.equal(apply.orgqr(H, tau), expected)
        finally:
            torch.set_float32_matmul_precision(before)
