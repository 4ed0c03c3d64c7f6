"""The certificate against the definition, and against what a weaker checker would let through."""

import numpy as np
import pytest
import torch
from tables import ALL_STAGES, FAMILIES, batch_of, normal

import qrlib
from qrlib.certificate import LAPACK, TASK, Gate

EPS = 2.0**-23


def by_definition(A, H, tau):
    """All three residuals of one matrix, from the formulas: Q as a product of explicit mirrors."""
    A, H, tau = (np.asarray(X, dtype=np.float64) for X in (A, H, tau))
    m, n = A.shape
    Q = np.eye(m)
    for j, t in enumerate(tau):
        v = np.concatenate([np.zeros(j), [1.0], H[j + 1 :, j]])
        Q = Q @ (np.eye(m) - t * np.outer(v, v))

    def norm(X):
        return np.abs(X).sum(0).max()

    F = np.triu(H) - Q.T @ A
    columns = max(norm(F[:, [j]]) / norm(A[:, [j]]) for j in range(n))
    unit = m * EPS
    return norm(F) / (unit * norm(A)), norm(Q.T @ Q - np.eye(m)) / unit, columns / unit


@pytest.mark.parametrize("library", ("torch", "numpy"))
@pytest.mark.parametrize("n", (1, 2, 33, 70, 130))
def test_against_the_definition(n, library):
    A = normal(3, n, n, seed=n)
    H, tau = qrlib.geqrf(A, stage="s02_unblocked")
    given = (A, H, tau) if library == "torch" else (A.numpy(), H.numpy(), tau.numpy())
    c = qrlib.certify(*given)
    for b in range(3):
        factor, orthogonality, columnwise = by_definition(A[b], H[b], tau[b])
        assert c.factor[b] == pytest.approx(factor, rel=1e-6, abs=1e-8)
        assert c.orthogonality[b] == pytest.approx(orthogonality, rel=1e-6, abs=1e-8)
        assert c.columnwise[b] == pytest.approx(columnwise, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("m, n", ((40, 25), (25, 40)))
def test_wide_and_tall_against_the_definition(m, n):
    A = normal(m, n)
    H, tau = torch.geqrf(A)
    c = qrlib.certify(A, H, tau)
    factor, _, columnwise = by_definition(A, H, tau)
    assert c.factor.item() == pytest.approx(factor, rel=1e-6)
    assert c.columnwise.item() == pytest.approx(columnwise, rel=1e-6)
    assert c.orthogonality.item() < 2


@pytest.mark.parametrize("library", ("torch", "numpy"))
def test_each_kind_of_garbage_fails(library):
    A = normal(4, 20, 20)
    H, tau = torch.geqrf(A)
    H = H.contiguous()
    garbage = {
        "perfectly orthogonal, but H = A": (A, torch.zeros_like(tau)),
        "tau a little off": (H, tau * 1.0001),
        "tau of another column": (H, tau.flip(-1)),
        "R scaled": (torch.where(torch.ones(20, 20).triu() > 0, H * 1.001, H), tau),
        "V scaled": (torch.where(torch.ones(20, 20).triu() > 0, H, H * 1.001), tau),
        "column-major taken for row-major": (H.mT, tau),
        "NaN in H": (H.clone().index_fill_(1, torch.tensor([3]), float("nan")), tau),
        "Inf in tau": (H, tau.clone().index_fill_(1, torch.tensor([3]), float("inf"))),
    }
    for name, (h, t) in garbage.items():
        given = (A, h, t) if library == "torch" else (A.numpy(), h.numpy(), t.numpy())
        c = qrlib.certify(*given)
        assert not c.each.any(), (name, c)
    c = qrlib.certify(A, A, torch.zeros_like(tau))
    assert (c.orthogonality == 0).all(), "the very reason why orthogonality alone proves nothing"


@pytest.mark.parametrize("where", ((0,), (37,), (63,)))
def test_one_bad_matrix_among_64_is_found_and_named(where):
    A = normal(64, 12, 12)
    H, tau = torch.geqrf(A)
    H = H.contiguous()
    H[where] = H[where].mT.clone()
    c = qrlib.certify(A, H, tau)
    assert not c.passed and c.worst == where and (~c.each).sum() == 1
    assert "FAILED: 1 of 64" in str(c) and f"[{where[0]}]" in str(c)


def test_nan_is_counted_and_spares_its_neighbours():
    A = normal(2, 3, 9, 9)
    H, tau = qrlib.geqrf(A, stage="s03_blocked")
    clean = qrlib.certify(A, H, tau)
    tau[1, 2, 4] = float("nan")
    c = qrlib.certify(A, H, tau)
    assert c.worst == (1, 2) and not c.finite[1, 2] and np.isinf(c.factor[1, 2])
    assert np.isinf(c.columnwise[1, 2])
    assert "1 with NaN or Inf" in str(c)
    keep = np.ones((2, 3), bool)
    keep[1, 2] = False
    assert np.array_equal(c.factor[keep], clean.factor[keep])


def test_zero_matrix_and_a_false_r_of_it():
    A = torch.zeros(1, 4, 4)
    assert qrlib.certify(A, A, torch.zeros(1, 4)).passed
    c = qrlib.certify(A, torch.eye(4)[None] * 1e-30, torch.zeros(1, 4))
    assert not c.passed and np.isinf(c.factor).all() and np.isinf(c.columnwise).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_every_stage_gets_every_column_right_by_its_own_length(stage, family):
    A = batch_of(family, 3, 33, cond=4)
    c = qrlib.certify(A, *qrlib.geqrf(A, stage=stage))
    assert (c.columnwise < 2).all(), c
    # the largest column is one of the columns
    assert (c.factor <= c.columnwise * (1 + 1e-12)).all()


@pytest.mark.parametrize("library", ("torch", "numpy"))
@pytest.mark.parametrize("tail", ("zeroed", "copied from A"))
@pytest.mark.parametrize("family, cond", (("clustered", 0), ("dense", 12)))
def test_a_tail_that_was_never_computed_passes_the_gates_and_shows_by_columns(
    family, cond, tail, library
):
    A = batch_of(family, 2, 64, cond=cond)
    H, tau = qrlib.geqrf(A, stage="s03_blocked")
    honest = qrlib.certify(A, H, tau, gate=LAPACK)
    late = torch.arange(64) >= (34 if family == "clustered" else 40)
    H[1, :, late], tau[1, late] = (0 if tail == "zeroed" else A[1].triu()[:, late]), 0
    given = (A, H, tau) if library == "torch" else (A.numpy(), H.numpy(), tau.numpy())
    c = qrlib.certify(*given, gate=LAPACK)
    assert c.passed and c.factor[1] < 1
    # about all of a column is missing; its L1 norm changes a little under Q
    assert c.columnwise[1] > 0.5 / (64 * EPS)
    assert c.columnwise[0] == pytest.approx(honest.columnwise[0]) and c.columnwise[0] < 2


@pytest.mark.parametrize("library", ("torch", "numpy"))
def test_a_column_of_zeros_is_right_when_it_stays_zero(library):
    A = batch_of("rankdef", 1, 16)
    H, tau = qrlib.geqrf(A, stage="s02_unblocked")
    given = (A, H, tau) if library == "torch" else (A.numpy(), H.numpy(), tau.numpy())
    assert qrlib.certify(*given).columnwise[0] < 2
    # one entry of R out of nothing; the norm of A does not see it
    H[0, 0, 15] = 1e-30
    c = qrlib.certify(*given)
    assert c.passed and np.isinf(c.columnwise[0])


@pytest.mark.parametrize("shape", ((0, 3, 3), (2, 0, 0), (2, 3, 0), (2, 0, 3)))
def test_nothing_is_right(shape):
    A = torch.empty(shape)
    c = qrlib.certify(A, *torch.geqrf(A))
    assert c.passed
    assert "passed" in str(c) and "passed" in c._repr_html_()
    assert (c.worst is None) == (shape[0] == 0)


def test_units():
    """LAPACK's ratio has the unit roundoff 2^-24 for eps, so the same residual counts twice."""
    A = normal(16, 16)
    c = qrlib.certify(A, *torch.geqrf(A))
    assert TASK == (20, 100) and LAPACK == (15, 15)
    assert c.lapack_factor == 2 * c.factor and c.lapack_orthogonality == 2 * c.orthogonality
    double = qrlib.certify(A.double(), *torch.geqrf(A.double()))
    assert double.dtype == "float64" and double.passed
    assert double.factor < 5


def test_gate_can_be_tightened():
    A = normal(16, 16)
    H, tau = torch.geqrf(A)
    assert qrlib.certify(A, H, tau).passed
    c = qrlib.certify(A, H, tau, gate=Gate(1e-9, 100))
    assert not c.passed
    assert "FAIL" in str(c) and "FAIL" in c._repr_html_()


def test_no_gate_is_wide_enough_for_what_is_no_number():
    A = normal(3, 8, 8)
    H, tau = torch.geqrf(A)
    tau[1, 2] = float("inf")
    c = qrlib.certify(A, H, tau, gate=Gate(np.inf, np.inf))
    assert c.each.tolist() == [True, False, True] and not c.passed


@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_by_a_power_of_two_nothing_changes(family):
    A = batch_of(family, 2, 24, cond=0)
    H, tau = torch.geqrf(A)
    scaled = torch.where(torch.ones(24, 24).triu() > 0, H * 2.0**20, H)
    a, b = qrlib.certify(A, H, tau), qrlib.certify(A * 2.0**20, scaled, tau)
    for name in ("factor", "orthogonality", "columnwise"):
        assert np.array_equal(getattr(a, name), getattr(b, name))


def test_prints_itself():
    A = normal(3, 8, 8)
    c = qrlib.certify(A, *torch.geqrf(A))
    assert "3 matrices 8 x 8, float32" in str(c) and str(c).endswith("passed")
    html = c._repr_html_()
    assert "<caption>" in html and "scope='col'" in html and "passed" in html
    # the third residual is shown, without a gate and without a verdict
    assert "columnwise" in html and html.count("<tr>") == 4 and html.count("<td>ok</td>") == 2
    line = next(line for line in str(c).splitlines() if "columnwise" in line)
    assert f"{c.columnwise.max():.3g}" in line and "none" in line and "ok" not in line
    assert "1 matrix 8 x 8" in str(qrlib.certify(A[0], *torch.geqrf(A[0])))
