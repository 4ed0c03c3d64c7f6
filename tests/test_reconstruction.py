"""Mirrors from a Gram matrix: each verb against its formula, the whole against LAPACK."""

import numpy as np
import pytest
import torch
from tables import FAMILIES, batch_of, normal

import qrlib
from qrlib import matrices
from qrlib import reconstruction as rc
from qrlib.certificate import LAPACK
from qrlib.compact import unpack_v
from qrlib.householder import larft
from qrlib.stages import s03_blocked

D = torch.float64
EPS = {torch.float32: 2.0**-23, D: 2.0**-52}
each_dtype = pytest.mark.parametrize("dtype", (torch.float32, D))


def conditioned(kappa, m, b, *, batch=2, seed=0, dtype=torch.float32):
    """[batch, m, b] with singular values from 1 down to 1/kappa."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((batch, m, b)))[0]
    W = np.linalg.qr(rng.standard_normal((batch, b, b)))[0]
    return torch.from_numpy((U * np.geomspace(1, 1 / kappa, b)) @ W).to(dtype)


def orthonormal(m, b, *, batch=3, seed=0):
    return conditioned(1, m, b, batch=batch, seed=seed, dtype=D)


# the verbs


@each_dtype
@pytest.mark.parametrize("b", (1, 2, 5, 16, 33))
def test_cholesky(b, dtype):
    P = normal(3, 2 * b + 3, b, dtype=dtype)
    G = P.mT @ P
    R, ok = rc.cholesky(G)
    assert ok.all()
    assert torch.equal(R, R.triu()) and (R.diagonal(0, 1, 2) > 0).all()
    torch.testing.assert_close(R.mT @ R, G)
    torch.testing.assert_close(R, torch.linalg.cholesky(G).mT, rtol=1e-4, atol=1e-5)


def test_cholesky_by_hand():
    G = torch.tensor([[[4.0, 2, -2], [2, 10, 2], [-2, 2, 6]]])
    R, ok = rc.cholesky(G)
    assert ok.all()
    assert R[0].tolist() == [[2, 1, -1], [0, 3, 1], [0, 0, 2]]


@pytest.mark.parametrize("zero", ([0], [2], [4], [0, 3, 4], [0, 1, 2, 3, 4]))
def test_cholesky_leaves_out_zero_columns(zero):
    P = normal(2, 9, 5, dtype=D)
    P[:, :, zero] = 0
    R, ok = rc.cholesky(P.mT @ P)
    left = [j for j in range(5) if j not in zero]
    assert ok.all()
    assert (R[:, zero] == 0).all() and (R[:, :, zero] == 0).all()
    alone = rc.cholesky(P[:, :, left].mT @ P[:, :, left])[0]
    torch.testing.assert_close(R[:, left][:, :, left], alone)


@each_dtype
def test_cholesky_stops_where_nothing_is_known_and_stays_finite(dtype):
    P = normal(5, 20, 6, dtype=dtype)
    P[0, :, 3] = P[0, :, 1]
    P[1] = 1
    # one unit in the last place apart
    P[2, :, 5] = P[2, :, 0]
    P[2, 7, 5] += EPS[dtype]
    R, ok = rc.cholesky(P.mT @ P)
    assert ok.tolist() == [False, False, False, True, True]
    assert torch.isfinite(R).all()
    assert torch.isfinite(rc.triangular_inverse(R)).all()
    # the others do not notice
    assert torch.equal(R[3:], rc.cholesky((P.mT @ P)[3:])[0])


def test_cholesky_is_relative():
    """A column as short as you like is a column; G is what a stop is measured by."""
    P = normal(1, 12, 4, dtype=D)
    s = torch.tensor([1.0, 2.0**-60, 2.0**-100, 2.0**40], dtype=D)
    R, ok = rc.cholesky((P * s).mT @ (P * s))
    assert ok.all()
    assert torch.equal(R, rc.cholesky(P.mT @ P)[0] * s)


def test_cholesky_of_nan():
    G = torch.eye(3).repeat(3, 1, 1)
    G[1, 1, 1] = float("nan")
    G[2, 0, 2] = float("inf")
    assert rc.cholesky(G)[1].tolist() == [True, False, False]


@each_dtype
@pytest.mark.parametrize("b", (1, 2, 7, 32))
def test_triangular_inverse(b, dtype):
    R = normal(3, b, b, dtype=dtype).triu() / b + 2 * torch.eye(b, dtype=dtype)
    X = rc.triangular_inverse(R)
    assert torch.equal(X, X.triu())
    torch.testing.assert_close(R @ X, torch.eye(b, dtype=dtype).expand(3, b, b))


def test_triangular_inverse_leaves_out_what_is_zero():
    R = (normal(2, 6, 6, dtype=D) + 3 * torch.eye(6, dtype=D)).triu()
    R[:, 2] = R[:, :, 2] = 0
    X = rc.triangular_inverse(R)
    left = [0, 1, 3, 4, 5]
    assert (X[:, 2] == 0).all() and (X[:, :, 2] == 0).all()
    torch.testing.assert_close(X[:, left][:, :, left], torch.linalg.inv(R[:, left][:, :, left]))


@pytest.mark.parametrize("m, b", ((1, 1), (2, 2), (7, 3), (40, 16), (33, 33)))
def test_signed_lu(m, b):
    Q = orthonormal(m, b)[:, :b]
    L, U, S = rc.signed_lu(Q)
    assert torch.equal(L.tril(), L) and (L.diagonal(0, 1, 2) == 1).all()
    assert torch.equal(U.triu(), U)
    assert (S.abs() == 1).all()
    torch.testing.assert_close(L @ U, Q - torch.diag_embed(S))
    pivots = U.diagonal(0, 1, 2)
    assert (pivots.abs() >= 1).all() and (pivots.abs() <= 2 + 1e-14).all()
    # a pivot has the sign of what it was made of
    assert (torch.sign(pivots) == -S).all()
    # no entry grows: they are those of Householder vectors
    assert L.abs().max() <= 1 + 1e-14


def test_signed_lu_of_two_columns_by_hand():
    Q = torch.tensor([[[0.6, 0.8], [0.8, -0.6]]], dtype=D)
    L, U, S = rc.signed_lu(Q)
    # 0.6 -> S = -1, pivot 1.6; then -0.6 - 0.5 * 0.8 = -1 -> S = 1, pivot -2
    assert S.tolist() == [[-1, 1]]
    torch.testing.assert_close(L[0], torch.tensor([[1, 0], [0.5, 1]], dtype=D))
    torch.testing.assert_close(U[0], torch.tensor([[1.6, 0.8], [0, -2]], dtype=D))


def test_sign_is_that_of_the_bit():
    Q = torch.tensor([[[0.0]], [[-0.0]], [[1.0]], [[-1.0]]])
    assert rc.signed_lu(Q)[2][:, 0].tolist() == [-1, 1, -1, 1]
    assert rc.eliminate(torch.ones(4, 1, 1), Q)[0][:, 0, 0].tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("m, b", ((1, 1), (4, 2), (40, 16), (70, 33)))
def test_eliminate_is_cholesky_and_signed_lu_at_once(m, b):
    P = normal(3, m, b, dtype=D)
    G = P.mT @ P
    R, L, W, ok = rc.eliminate(G, P[:, :b])
    plain = rc.cholesky(G)[0]
    Q = P[:, :b] @ rc.triangular_inverse(plain)
    L_Q, U, S = rc.signed_lu(Q)
    assert ok.all()
    torch.testing.assert_close(R, S[:, :, None] * plain, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(L, L_Q, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(W, U @ plain, rtol=1e-9, atol=1e-10)
    # what is divided by never cancels
    assert (W.diagonal(0, 1, 2).abs() >= R.diagonal(0, 1, 2).abs()).all()
    torch.testing.assert_close(L @ W, P[:, :b] - R)


@pytest.mark.parametrize("zero", ([0], [2], [4], [0, 1, 2, 3, 4]))
def test_eliminate_leaves_out_zero_columns(zero):
    P = normal(2, 9, 5, dtype=D)
    P[:, :, zero] = 0
    R, L, W, ok = rc.eliminate(P.mT @ P, P[:, :5])
    assert ok.all()
    assert (R[:, zero] == 0).all() and (R[:, :, zero] == 0).all()
    assert (W[:, zero, zero] == 1).all() and (L.tril(-1)[:, :, zero] == 0).all()
    left = [j for j in range(5) if j not in zero]
    torch.testing.assert_close((L @ W)[:, :, left], (P[:, :5] - R)[:, :, left])


def test_eliminate_stops_as_cholesky_does():
    P = normal(4, 20, 6)
    P[0, :, 3] = P[0, :, 1]
    P[1, 2, 2] = float("nan")
    found = rc.eliminate(P.mT @ P, P[:, :6])
    assert found[3].tolist() == [False, False, True, True]
    assert all(torch.isfinite(X[0]).all() for X in found[:3])
    alone = rc.eliminate((P.mT @ P)[2:], P[2:, :6])
    assert all(torch.equal(X[2:], Y) for X, Y in zip(found, alone))


# mirrors


@pytest.mark.parametrize("m, b", ((2, 1), (5, 2), (9, 4), (40, 16), (200, 33), (64, 32)))
@pytest.mark.parametrize("passes", (1, 2))
def test_the_mirrors_are_those_of_lapack(m, b, passes):
    P = normal(3, m, b, seed=m, dtype=D)
    found = rc.reconstruct(P, passes)
    H, tau = torch.geqrf(P)
    assert found.ok.all()
    torch.testing.assert_close(found.V, unpack_v(H), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.tau, tau, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.R, H[:, :b].triu(), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.T, larft(unpack_v(H), tau), rtol=1e-10, atol=1e-11)


@each_dtype
def test_every_mirror_is_orthogonal_whatever_the_gram_matrix_lost(dtype):
    P = conditioned(0.1 / EPS[dtype] ** 0.5, 80, 16, dtype=dtype)
    V, T, tau, *_, ok = rc.reconstruct(P)
    assert ok.all()
    V, tau = V.double(), tau.double()
    assert (tau * (V * V).sum(1) - 2).abs().max() <= 8 * EPS[dtype]
    T_V = larft(V, tau)
    assert (T.double() - T_V).abs().max() < 200 * EPS[dtype]


def test_e_is_the_distance_from_orthonormal():
    """Both ways: E is no smaller than a share of |Q^T Q - I|, and no larger than a multiple."""
    for kappa in (1, 10, 100, 1000):
        for m, b in ((40, 4), (300, 16), (512, 32)):
            P = conditioned(kappa, m, b, seed=b)
            R, ok = rc.cholesky(P.mT @ P)
            Q = P @ rc.triangular_inverse(R)
            L, U, S = rc.signed_lu(Q[:, :b])
            E = (U * S[:, None] + rc.reconstruct(P).T @ L.mT).double().abs().sum(1).amax(1)
            Q = Q.double()
            error = (Q.mT @ Q - torch.eye(b, dtype=D)).abs().sum(1).amax(1)
            assert ok.all()
            # one part of it is the rounding of V and T themselves
            floor = 30 * b * EPS[torch.float32]
            assert (E <= 4 * error + floor).all() and (error <= 4 * E + floor).all()


def test_e_by_first_principles():
    """Q~ - Q S = V X S holds to the last digit for any Q~, orthonormal or not."""
    Q = orthonormal(12, 4) + 0.01 * normal(3, 12, 4, dtype=D)
    L, U, S = rc.signed_lu(Q[:, :4])
    V = torch.cat([L, Q[:, 4:] @ torch.linalg.inv(U)], 1)
    G = V.mT @ V
    T = torch.linalg.inv(G.triu(1) + torch.diag_embed(G.diagonal(0, 1, 2) / 2))
    X = U * S[:, None] + T @ L.mT
    full = torch.eye(12, dtype=D) - V @ T @ V.mT
    torch.testing.assert_close(full @ full.mT, torch.eye(12, dtype=D).expand(3, 12, 12))
    torch.testing.assert_close(Q - full[:, :, :4] * S[:, None], V @ X * S[:, None])
    # and Ballard's T, from L and U, is this one where X vanishes
    T_LU = -(U * S[:, None]) @ torch.linalg.inv(L.mT)
    torch.testing.assert_close((T - T_LU) @ L.mT, X)


def residuals(P, found):
    """[B], of the worst column, in float64."""
    P, V, T, R = (x.double() for x in (P, found.V, found.T, found.R))
    rest = P - V @ (T.mT @ (V.mT @ P))
    rest[:, : R.shape[1]] -= R
    return (rest.norm(dim=1) / P.norm(dim=1)).amax(1)


@pytest.mark.parametrize("m, b", ((64, 4), (512, 16), (512, 64)))
@pytest.mark.parametrize("kappa", (100, 1000))
def test_the_residual_is_known(m, b, kappa):
    """`backward`, from b x b matrices in float32, is the residual that float64 finds."""
    P = conditioned(kappa, m, b, batch=3)
    found = rc.reconstruct(P)
    residual = residuals(P, found)
    torch.testing.assert_close(found.backward.double(), residual, rtol=0.1, atol=1e-6)
    # it grows with the condition number, E with its square
    assert (residual < 10 * kappa * EPS[torch.float32]).all()


def test_the_residual_of_two_passes_is_that_of_the_panel(monkeypatch):
    """A first pass that makes things worse: what the second loses then shows in columns of P."""
    first = rc.cholesky(conditioned(300, 30, 8, batch=3).mT @ conditioned(300, 30, 8, batch=3))
    monkeypatch.setattr(rc, "cholesky", lambda G: first)
    P = conditioned(1, 400, 8, batch=3, seed=3)
    found = rc.reconstruct(P, passes=2)
    residual = residuals(P, found)
    assert residual.min() > 20 * EPS[torch.float32]
    torch.testing.assert_close(found.backward.double(), residual, rtol=0.2, atol=1e-6)


@pytest.mark.parametrize("dtype, k", ((torch.float32, 100), (D, 400)))
@pytest.mark.parametrize("sign", (1, -1))
def test_powers_of_two_change_nothing(dtype, k, sign):
    P = normal(2, 30, 6, dtype=dtype)
    P[:, 3:] *= 0.01
    s = 2.0 ** (sign * k * torch.linspace(-1, 1, 6, dtype=D)).round().to(dtype)
    one, other = rc.reconstruct(P), rc.reconstruct(P * s)
    for name in ("V", "T", "tau", "backward", "ok"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.R * s, other.R)


# what has to fall, and what need not


def fallen(P, **options):
    H, tau, fell = P.clone(), P.new_zeros(len(P), P.shape[2]), []
    rc.panel(H, tau, fell=fell, **options)
    return H, tau, fell[0].tolist()


def test_zero_columns_at_the_end_are_left_alone():
    P = normal(3, 20, 6)
    P[0, :, 4:] = 0
    P[1] = 0
    H, tau, fell = fallen(P)
    assert fell == [False] * 3
    assert (tau[0, 4:] == 0).all() and (H[0, :, 4:] == 0).all()
    assert (tau[1] == 0).all() and (H[1] == 0).all()
    alone, tau_alone, _ = fallen(P[:, :, :4].contiguous())
    torch.testing.assert_close(H[0, :, :4], alone[0])
    torch.testing.assert_close(tau[0, :4], tau_alone[0])
    V, T = rc.panel(P.clone(), P.new_zeros(3, 6))
    assert (rc.reconstruct(P).backward < 1e-6).all()
    assert (T[0, 4:] == 0).all() and (T[0, :, 4:] == 0).all() and (T[1] == 0).all()
    torch.testing.assert_close(T, larft(V, tau))


def test_a_zero_column_in_front_falls_only_where_it_hides_a_row_of_r():
    P = normal(2, 20, 6)
    P[:, :, 0] = 0
    # here the row is zero, and a Gram matrix knows all
    P[1, 0] = 0
    H, tau, fell = fallen(P)
    assert fell == [True, False]
    assert (tau[:, 0] == 0).all() and (H[:, :, 0] == 0).all()
    torch.testing.assert_close(H, torch.geqrf(P)[0], rtol=1e-4, atol=1e-5)


HARD = {
    "a zero column first": lambda P: P[:, 0].zero_(),
    "a zero column between": lambda P: P[:, 3].zero_(),
    "a repeated column": lambda P: P[:, 4].copy_(P[:, 1]),
    "upper triangular": lambda P: P.copy_(P.triu()),
    "its first column is": lambda P: P[1:, 0].zero_(),
    "as many rows as columns": lambda P: P[P.shape[1] :].zero_(),
    "fewer rows than columns": lambda P: P[4:].zero_(),
    "one column a million times": lambda P: P.copy_(P[:, :1] + 1e-6 * P),
    "NaN": lambda P: P[5, 2].fill_(float("nan")),
    "infinity": lambda P: P[5, 2].fill_(float("inf")),
}


@pytest.mark.parametrize("name", HARD)
def test_a_matrix_falls_alone_and_is_householders(name):
    P = normal(4, 24, 6, seed=1)
    clean = fallen(P)
    HARD[name](P[2])
    H, tau, fell = fallen(P)
    assert fell == [False, False, True, False]
    for got, before in zip((H, tau), clean):
        assert torch.equal(got[[0, 1, 3]], before[[0, 1, 3]])
    alone, tau_alone = P[2:3].clone(), P.new_zeros(1, 6)
    V, T = s03_blocked.panel(alone, tau_alone)
    torch.testing.assert_close(H[2:3], alone, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(tau[2:3], tau_alone, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("m", range(8, 17))
def test_panels_less_than_twice_as_tall_as_wide_are_householders(m):
    P = normal(2, m, 8)
    assert fallen(P)[2] == [m < 16] * 2


def test_a_second_pass_takes_what_the_first_cannot():
    P = conditioned(1000, 200, 16)
    assert fallen(P)[2] == [True, True]
    assert fallen(P, passes=2)[2] == [False, False]
    # the first pass must not stop, though
    assert fallen(conditioned(1e6, 200, 16), passes=2)[2] == [True, True]


def test_the_limit_is_in_units_of_lapack():
    P = conditioned(200, 400, 16, batch=4)
    unit = 400 * EPS[torch.float32] / 2
    ratio = (rc.reconstruct(P).backward / unit).tolist()
    for limit in sorted(ratio):
        assert fallen(P, limit=1.001 * limit)[2] == [r > limit for r in ratio]


# the whole


def assert_as_good_as_lapack(A, H, tau):
    c, reference = qrlib.certify(A, H, tau, gate=LAPACK), qrlib.certify(A, *torch.geqrf(A))
    assert c.passed, c
    for ours, theirs in (
        (c.factor, reference.factor),
        (c.orthogonality, reference.orthogonality),
    ):
        assert (2 * ours <= 4 * np.maximum(1, 2 * theirs)).all(), (c, reference)


@pytest.mark.parametrize("n, nb", ((24, 8), (48, 16), (64, 32), (65, 16), (100, 31), (176, 64)))
@pytest.mark.parametrize("passes", (1, 2))
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, n, nb, passes):
    A = batch_of(family, 6, n, cond=2)
    fell = []
    H, tau = rc.geqrf(A, nb=nb, passes=passes, fell=fell)
    assert_as_good_as_lapack(A, H, tau)
    assert qrlib.certify(A, H, tau).columnwise.max() < 5
    assert len(fell) == -(-n // nb)


def test_the_families_fall_where_they_must_and_not_elsewhere():
    def share(family, passes=1):
        fell = []
        rc.geqrf(batch_of(family, 4, 256, cond=2), nb=32, passes=passes, fell=fell)
        return torch.stack(fell, 1)[:, :-1].float().mean().item()

    for family in ("dense", "rankdef", "nearrank", "clustered"):
        assert share(family) == 0, family
    for family in ("upper", "diagonal"):
        assert share(family) == 1, family
    # the first panel, of seven that are tall
    assert share("nearcollinear") == pytest.approx(1 / 7)


@pytest.mark.parametrize("m, n", ((70, 33), (33, 70), (130, 31), (5, 9), (1, 6), (6, 1), (200, 5)))
@pytest.mark.parametrize("nb", (1, 2, 7, 16, 100))
def test_float64_equals_lapack_entrywise(m, n, nb):
    A = normal(3, m, n, seed=m + n, dtype=D)
    H, tau = rc.geqrf(A, nb=nb)
    H_ref, tau_ref = torch.geqrf(A)
    torch.testing.assert_close(H, H_ref, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(tau, tau_ref, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("m, n", ((0, 3), (3, 0), (0, 0)))
def test_empty(m, n):
    H, tau = rc.geqrf(normal(2, m, n))
    assert H.shape == (2, m, n) and tau.shape == (2, 0)
    assert rc.geqrf(normal(0, 8, 2)).H.shape == (0, 8, 2)


@pytest.mark.parametrize("k", (-100, -60, 60, 100))
@pytest.mark.parametrize("family", ("dense", "rankdef", "nearcollinear", "rowscale"))
def test_power_of_two_equivariance(family, k):
    A = batch_of(family, 2, 48, cond=0)
    H, tau = rc.geqrf(A, nb=16)
    H2, tau2 = rc.geqrf(A * 2.0**k, nb=16)
    assert torch.equal(tau2, tau)
    assert torch.equal(H2.tril(-1), H.tril(-1))
    assert torch.equal(H2.triu(), H.triu() * 2.0**k)


@pytest.mark.parametrize("scale", (1e-40, 1e-30, 1e30, 1e37))
def test_scales(scale):
    A = normal(3, 65, 65) * scale
    assert_as_good_as_lapack(A, *rc.geqrf(A, nb=16))


NAMED = {
    "kahan": matrices.kahan(64),
    "hilbert": matrices.hilbert(64),
    "vandermonde": matrices.vandermonde(64),
    "gram, rank 3": matrices.gram(1, 64, rank=3)[0],
    "ones": np.ones((64, 64), np.float32),
    "kappa 1e8": conditioned(1e8, 64, 64, batch=1)[0].numpy(),
}


@pytest.mark.parametrize("nb", (8, 32))
def test_matrices_that_defeat_cholesky_among_easy_ones(nb):
    A = normal(10, 64, 64, seed=2)
    easy = rc.geqrf(A, nb=nb)
    where = [1, 2, 4, 7, 8, 9]
    for at, X in zip(where, NAMED.values()):
        A[at] = torch.from_numpy(np.array(X))
    H, tau = rc.geqrf(A, nb=nb)
    assert_as_good_as_lapack(A, H, tau)
    assert torch.equal(H[[0, 3, 5, 6]], easy.H[[0, 3, 5, 6]])
    assert torch.equal(tau[[0, 3, 5, 6]], easy.tau[[0, 3, 5, 6]])


@pytest.mark.parametrize("where", ((0, 0), (1, 1), (2, 0), (20, 3), (40, 40)))
def test_nan_stays_home(where):
    A = normal(3, 48, 48)
    clean = rc.geqrf(A, nb=16)
    A[1][where] = float("nan")
    H, tau = rc.geqrf(A, nb=16)
    assert torch.equal(H[[0, 2]], clean.H[[0, 2]]) and torch.equal(tau[[0, 2]], clean.tau[[0, 2]])
    assert not torch.isfinite(H[1]).all()
    # columns to its left are in an earlier panel, or in front of it in this one
    assert torch.isfinite(H[1][:, : where[1]]).all()


def test_input_is_read_only():
    A = normal(2, 40, 40)
    before = A.clone()
    rc.geqrf(A, nb=8)
    assert torch.equal(A, before)
