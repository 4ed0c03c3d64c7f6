"""Every stage that runs anywhere on every family: the certificate, LAPACK's test and error."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import ALL_STAGES, FAMILIES, SCALES, SHAPES, SIZES, batch_of, normal

import qrlib
from qrlib import matrices
from qrlib.certificate import LAPACK
from qrlib.stages import ANYWHERE


@functools.cache
def lapack_residuals(family, batch, n):
    A = batch_of(family, batch, n)
    c = qrlib.certify(A, *torch.geqrf(A))
    return c.factor, c.orthogonality


def assert_as_good_as_lapack(A, H, tau, by_lapack=None):
    """Both gates, LAPACK's own test, and at most 4x LAPACK's error, or 4 where that is under 1."""
    c = qrlib.certify(A, H, tau)
    assert c.passed, c
    assert qrlib.certify(A, H, tau, gate=LAPACK).passed, c
    if by_lapack is None:
        reference = qrlib.certify(A, *torch.geqrf(A))
        by_lapack = reference.factor, reference.orthogonality
    for ours, theirs in zip((c.factor, c.orthogonality), by_lapack, strict=True):
        # the unit here is two of LAPACK's; its error on a tiny matrix may be zero by luck
        assert (2 * ours <= 4 * np.maximum(1, 2 * theirs)).all(), (ours, theirs)


@pytest.mark.parametrize("batch", (1, 5))
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_families(stage, family, n, batch):
    A = batch_of(family, batch, n)
    assert_as_good_as_lapack(A, *qrlib.geqrf(A, stage=stage), lapack_residuals(family, batch, n))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("n", (3, 32, 65))
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_scales(stage, n, scale):
    A = normal(3, n, n, seed=n) * scale
    assert_as_good_as_lapack(A, *qrlib.geqrf(A, stage=stage))


@pytest.mark.parametrize("m, n", SHAPES)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_float64_equals_lapack_entrywise(stage, m, n):
    A = normal(3, m, n, seed=m + n, dtype=torch.float64)
    H, tau = qrlib.geqrf(A, stage=stage)
    H_ref, tau_ref = torch.geqrf(A)
    torch.testing.assert_close(H, H_ref, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(tau, tau_ref, rtol=1e-11, atol=1e-12)
    assert qrlib.certify(A, H, tau).passed


@pytest.mark.parametrize("t", matrices.LAPACK_TYPES)
@pytest.mark.parametrize("m, n", [(1, 1), (2, 5), (5, 2), (10, 10), (50, 33), (33, 50), (50, 50)])
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_lapack_types(stage, m, n, t):
    A = torch.from_numpy(matrices.lapack_type(t, m, n, batch=2, seed=m + n))
    # near overflow (9) LAPACK itself gives inf, and is no yardstick
    by_lapack = (np.float64(1), np.float64(1)) if t == 9 else None
    assert_as_good_as_lapack(A, *qrlib.geqrf(A, stage=stage), by_lapack)


NAMED = {
    "kahan": matrices.kahan(40),
    "hilbert": matrices.hilbert(40),
    "vandermonde": matrices.vandermonde(40),
    "gram": matrices.gram(1, 40)[0],
    "gram, rank 3": matrices.gram(1, 40, rank=3)[0],
    "ones": np.ones((40, 40), np.float32),
    "graded columns": matrices.make("dense", 1, 40, cond=30)[0],
    "scales from row to row": (
        matrices.make("dense", 1, 40)[0] * np.float32(10) ** np.linspace(-38, 30, 40)[:, None]
    ).astype(np.float32),
    "orthogonal": np.linalg.qr(matrices.make("dense", 1, 40)[0])[0],
    "permutation": np.eye(40, dtype=np.float32)[np.random.default_rng(0).permutation(40)],
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_named(stage, name):
    A = torch.from_numpy(NAMED[name])
    assert_as_good_as_lapack(A, *qrlib.geqrf(A, stage=stage))


@pytest.mark.parametrize("stage", ("s03_blocked", "s04_recursive"))
@pytest.mark.parametrize("nb", (1, 2, 3, 5, 11, 31, 32, 33, 64, 100))
@pytest.mark.parametrize("m, n", ((65, 65), (70, 33), (33, 70)))
def test_every_block_width(stage, nb, m, n):
    A = normal(2, m, n, seed=nb, dtype=torch.float64)
    H, tau = qrlib.stage(stage).geqrf(A, nb=nb)
    H_ref, tau_ref = torch.geqrf(A)
    torch.testing.assert_close(H, H_ref, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(tau, tau_ref, rtol=1e-11, atol=1e-12)


class TestConventions:
    """LAPACK's, to the letter."""

    @pytest.mark.parametrize("stage", ALL_STAGES)
    def test_triangular_input_comes_back(self, stage):
        A = batch_of("upper", 3, 33) * -1
        H, tau = qrlib.geqrf(A, stage=stage)
        assert torch.equal(H, A)
        assert (tau == 0).all()

    @pytest.mark.parametrize("stage", ALL_STAGES)
    def test_zeros(self, stage):
        A = torch.zeros(2, 7, 5)
        H, tau = qrlib.geqrf(A, stage=stage)
        assert torch.equal(H, A)
        assert torch.equal(tau, torch.zeros(2, 5))

    @pytest.mark.parametrize("stage", ALL_STAGES)
    @pytest.mark.parametrize("m, n", ((4, 4), (3, 6), (1, 3), (1, 1)))
    def test_last_mirror_of_a_square_or_wide_matrix_is_none(self, stage, m, n):
        assert (qrlib.geqrf(normal(4, m, n), stage=stage).tau[:, -1] == 0).all()

    @pytest.mark.parametrize("stage", ALL_STAGES)
    def test_one_by_one_keeps_its_sign(self, stage):
        A = torch.tensor([[[5.0]], [[-5.0]], [[-0.0]]])
        H, tau = qrlib.geqrf(A, stage=stage)
        assert torch.equal(H, A)
        assert torch.equal(torch.signbit(H), torch.signbit(A))
        assert (tau == 0).all()

    # "auto" has the sign of whichever LAPACK torch was built with
    @pytest.mark.parametrize("stage", ANYWHERE)
    def test_sign_is_that_of_the_bit(self, stage):
        A = torch.tensor([[[0.0, 1], [1, 0]], [[-0.0, 1], [1, 0]]])
        assert qrlib.geqrf(A, stage=stage).H[:, 0, 0].tolist() == [-1, 1]

    @pytest.mark.parametrize("stage", ALL_STAGES)
    def test_three_four_five(self, stage):
        H, tau = qrlib.geqrf(torch.tensor([[3.0], [0], [4]], dtype=torch.float64), stage=stage)
        torch.testing.assert_close(H[:, 0].tolist(), [-5.0, 0.0, 0.5])
        torch.testing.assert_close(tau.tolist(), [1.6])

    @pytest.mark.parametrize("stage", ALL_STAGES)
    def test_the_example_of_the_task(self, stage):
        A = torch.tensor([[12.0, -51, 4], [6, 167, -68], [-4, 24, -41]], dtype=torch.float64)
        H, tau = qrlib.geqrf(A, stage=stage)
        R = torch.tensor([[-14.0, -21, 14], [0, -175, 70], [0, 0, -35]], dtype=torch.float64)
        torch.testing.assert_close(H.triu(), R)
        # v = (26, 6, -4), stored with its head made 1
        torch.testing.assert_close(H[1:, 0], torch.tensor([6.0, -4], dtype=torch.float64) / 26)
        torch.testing.assert_close(tau[0].item(), 26 / 14)

    @pytest.mark.parametrize("stage", ALL_STAGES)
    @pytest.mark.parametrize("column", (0, 2, 4))
    def test_zero_column(self, stage, column):
        A = normal(2, 6, 5)
        A[:, :, column] = 0
        H, tau = qrlib.geqrf(A, stage=stage)
        assert (tau[:, column] == 0).all()
        assert (H[:, :, column] == 0).all()
        assert qrlib.certify(A, H, tau).passed

    @pytest.mark.parametrize("stage", ALL_STAGES)
    def test_near_the_largest_number(self, stage):
        # LAPACK alone gives tau = inf here, though R fits
        A = torch.tensor([[2.5e38, 1], [1e38, 1]])
        H, tau = qrlib.geqrf(A, stage=stage)
        assert H[0, 0].item() == pytest.approx(-np.hypot(2.5e38, 1e38))
        assert_as_good_as_lapack(A, H, tau, (np.float64(1), np.float64(1)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_reflectors_are_mirrors(stage, family):
    A = batch_of(family, 4, 40)
    H, tau = qrlib.geqrf(A, stage=stage)
    is_mirror = (tau >= 1 - 1e-6) & (tau <= 2 + 1e-6)
    assert (is_mirror | (tau == 0)).all()
    V = qrlib.unpack_v(H).double()
    assert V.abs().max() <= 1 + 1e-6
    # tau = 2 / v^T v is what makes H orthogonal
    off = (tau * (V * V).sum(-2) - 2).abs()
    assert (off[tau != 0] <= 1e-5).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", (-90, -1, 3, 90))
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_power_of_two_equivariance(stage, k, family):
    """geqrf(2^k A) has 2^k R and the very same v and tau: nothing is rounded by a power of two."""
    A = batch_of(family, 2, 24, cond=0)
    H, tau = qrlib.geqrf(A, stage=stage)
    H2, tau2 = qrlib.geqrf(A * 2.0**k, stage=stage)
    if family == "clustered" and k == -90:
        pytest.skip("its smallest entries are subnormal at this scale, which rounds them")
    assert torch.equal(tau2, tau)
    assert torch.equal(H2.tril(-1), H.tril(-1))
    assert torch.equal(H2.triu(), H.triu() * 2.0**k)


@pytest.mark.parametrize("bad", (float("nan"), float("inf"), -float("inf")))
@pytest.mark.parametrize("where", ((0, 0), (1, 1), (2, 0), (7, 8), (8, 8)))
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_nan_and_inf_stay_home_and_show(stage, where, bad):
    A = normal(5, 9, 9)
    clean = qrlib.geqrf(A, stage=stage)
    A[2][where] = bad
    H, tau = qrlib.geqrf(A, stage=stage)
    others = [0, 1, 3, 4]
    assert torch.equal(H[others], clean.H[others])
    assert torch.equal(tau[others], clean.tau[others])
    assert not (torch.isfinite(H[2]).all() and torch.isfinite(tau[2]).all())
    c = qrlib.certify(A, H, tau)
    assert c.each.tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_nan_leaves_columns_on_its_left(stage):
    A = normal(1, 6, 6)
    A[0, 1, 1] = float("nan")
    H, tau = qrlib.geqrf(A, stage=stage)
    # a panel that holds the NaN may spread it over the panel's update, never to the left
    assert torch.isfinite(H[0, :, 0]).all()
    assert torch.isfinite(tau[0, 0])


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_batch_members_are_independent(stage):
    A = batch_of("dense", 10, 33)
    H, tau = qrlib.geqrf(A, stage=stage)
    order = torch.randperm(len(A), generator=torch.Generator().manual_seed(0))
    H2, tau2 = qrlib.geqrf(A[order], stage=stage)
    torch.testing.assert_close(H2, H[order], rtol=0, atol=1e-4)
    torch.testing.assert_close(tau2, tau[order], rtol=0, atol=1e-4)


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_batch_members_are_independent_to_the_bit(stage):
    A = torch.cat([batch_of(f, 1, 33) for f in FAMILIES])
    order = torch.randperm(len(A), generator=torch.Generator().manual_seed(0))
    if stage != "s01_mirror" and not torch.equal(
        torch.geqrf(A[order])[0], torch.geqrf(A)[0][order]
    ):
        pytest.skip("here LAPACK itself rounds by where in a cache line a matrix begins")
    H, tau = qrlib.geqrf(A, stage=stage)
    H2, tau2 = qrlib.geqrf(A[order], stage=stage)
    assert torch.equal(H2, H[order])
    assert torch.equal(tau2, tau[order])


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_same_result_every_time(stage):
    A = batch_of("mixed", 5, 40)
    first = qrlib.geqrf(A, stage=stage)
    for _ in range(10):
        again = qrlib.geqrf(A, stage=stage)
        assert torch.equal(again.H, first.H) and torch.equal(again.tau, first.tau)


def _layouts():
    base = normal(3, 12, 12, seed=5)
    big = normal(6, 24, 24, seed=6)
    flat = torch.cat([torch.zeros(1), normal(3 * 12 * 12, seed=7)])
    return {
        "contiguous": base,
        "transposed": base.mT,
        "every second": big[::2, ::2, 1::2],
        "expanded batch": base[:1].expand(3, 12, 12),
        "expanded column": base[:, :, :1].expand(3, 12, 12),
        "batch last": base.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "4 bytes off": flat[1:].view(3, 12, 12),
    }


LAYOUTS = _layouts()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_any_strides_and_input_untouched(stage, layout):
    A = LAYOUTS[layout]
    before = A.clone()
    H, tau = qrlib.geqrf(A, stage=stage)
    assert torch.equal(A, before)
    expected = qrlib.geqrf(before.contiguous(), stage=stage)
    assert torch.equal(H, expected.H) and torch.equal(tau, expected.tau)
    assert H.is_contiguous() and tau.is_contiguous()
    assert H.data_ptr() != A.data_ptr()


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_result_is_what_torch_understands(stage):
    A = normal(3, 20, 8, seed=1, dtype=torch.float64)
    H, tau = qrlib.geqrf(A, stage=stage)
    Q = torch.linalg.householder_product(H, tau)
    torch.testing.assert_close(Q @ H.triu()[:, :8], A)


@settings(max_examples=60)
@given(
    stage=st.sampled_from(ALL_STAGES),
    batch=st.lists(st.integers(0, 3), max_size=2),
    m=st.integers(0, 40),
    n=st.integers(0, 40),
    exponent=st.integers(-36, 36),
    zero_columns=st.sets(st.integers(0, 39), max_size=5),
    zero_rows=st.sets(st.integers(0, 39), max_size=5),
    seed=st.integers(0, 2**31),
)
def test_any_shape_and_scale(stage, batch, m, n, exponent, zero_columns, zero_rows, seed):
    A = normal(*batch, m, n, seed=seed) * 10.0**exponent
    A[..., [j for j in zero_columns if j < n]] = 0
    A[..., [i for i in zero_rows if i < m], :] = 0
    H, tau = qrlib.geqrf(A, stage=stage)
    assert H.shape == A.shape
    assert tau.shape == (*batch, min(m, n))
    c = qrlib.certify(A, H, tau, gate=LAPACK)
    assert c.passed, c
    assert c.factor.shape == tuple(batch)


@settings(max_examples=60)
@given(
    stage=st.sampled_from(ALL_STAGES),
    entries=st.lists(
        st.floats(width=32, allow_nan=False, min_value=-(2.0**120), max_value=2.0**120),
        min_size=20,
        max_size=20,
    ),
)
def test_any_values(stage, entries):
    A = torch.tensor(entries).reshape(5, 4)
    c = qrlib.certify(A, *qrlib.geqrf(A, stage=stage), gate=LAPACK)
    # a matrix of subnormal numbers has no digits to keep
    assert c.passed or A.abs().max() < 1e-38, c


@pytest.mark.parametrize("stage", ("s02_unblocked", "s03_blocked", "s04_recursive"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_global_precision_settings_change_nothing(stage, dtype):
    A = batch_of("dense", 3, 65).to(dtype)
    expected = qrlib.certify(A, *qrlib.geqrf(A, stage=stage))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu"):
            H, tau = qrlib.geqrf(A, stage=stage)
            Q = qrlib.householder_product(H, tau)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert H.dtype == tau.dtype == Q.dtype == dtype
    c = qrlib.certify(A, H, tau)
    assert (c.factor <= 2 * expected.factor.max()).all(), (c, expected)
    assert (c.orthogonality <= 2 * expected.orthogonality.max()).all(), (c, expected)
    assert (Q.mT @ Q - torch.eye(65, dtype=dtype)).abs().max() < 100 * torch.finfo(dtype).eps


@pytest.mark.slow
@pytest.mark.parametrize("stage", ("s02_unblocked", "s03_blocked", "s04_recursive"))
@pytest.mark.parametrize("batch, m, n", ((1, 512, 512), (1, 3000, 17), (1, 6, 2000), (3000, 4, 4)))
def test_larger(stage, batch, m, n):
    A = normal(batch, m, n)
    assert_as_good_as_lapack(A, *qrlib.geqrf(A, stage=stage))
