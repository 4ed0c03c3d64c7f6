"""The gallery is what its names promise."""

import numpy as np
import pytest

from qrlib import matrices
from qrlib.matrices import BENCHMARK_CASES, FAMILIES, TEST_CASES, make

N = 64
EPS = np.finfo(np.float32).eps


def column_norms(A):
    return np.linalg.norm(A.astype(np.float64), axis=-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("batch, n", ((0, 5), (1, 1), (2, 2), (3, 3), (4, 33)))
def test_shape_dtype_and_seed(family, dtype, batch, n):
    A = make(family, batch, n, cond=2, seed=7, dtype=dtype)
    assert A.shape == (batch, n, n) and A.dtype == dtype and np.isfinite(A).all()
    assert np.array_equal(A, make(family, batch, n, cond=2, seed=7, dtype=dtype))
    if batch and n > 1:
        assert not np.array_equal(A, make(family, batch, n, cond=2, seed=8, dtype=dtype))


def test_unknown_family():
    with pytest.raises(ValueError, match="dense, upper.*got 'sparse'"):
        make("sparse", 1, 4)


@pytest.mark.parametrize(
    "family", ("dense", "upper", "rankdef", "nearrank", "band", "nearcollinear")
)
def test_cond_scales_the_columns(family):
    plain, scaled = make(family, 3, N, seed=1), make(family, 3, N, cond=3, seed=1)
    expected = plain * 10.0 ** (-3 * np.arange(N) / (N - 1))
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)


@pytest.mark.parametrize("family", ("clustered",))
def test_cond_leaves_others_alone(family):
    assert np.array_equal(make(family, 3, N, seed=1), make(family, 3, N, cond=3, seed=1))


def test_dense_is_standard_normal():
    A = make("dense", 50, N)
    assert abs(A.mean()) < 0.01 and abs(A.std() - 1) < 0.01


def test_upper():
    A = make("upper", 20, N)
    assert np.array_equal(A, np.triu(A))
    diagonal = np.diagonal(A, axis1=-2, axis2=-1).mean(0)
    # standard normal on top of 1 ... 1/4
    np.testing.assert_allclose(diagonal, np.linspace(1, 0.25, N), atol=6 / np.sqrt(20))
    assert np.diagonal(make("upper", 400, 2), axis1=-2, axis2=-1).mean() == pytest.approx(
        0.625, abs=0.15
    )


def test_diagonal():
    A = make("diagonal", 5, N, cond=1)
    d = np.diagonal(A, axis1=-2, axis2=-1)
    assert np.count_nonzero(A) == 5 * N
    # never less than two decades
    np.testing.assert_allclose(np.abs(d[0, [0, -1]]), [1, 1e-2], rtol=1e-5)
    assert (d > 0).any() and (d < 0).any()


def test_rankdef():
    A = make("rankdef", 3, N)
    assert (A[:, :, 3 * N // 4 :] == 0).all() and (column_norms(A)[:, : 3 * N // 4] > 1).all()


def test_nearrank():
    A = make("nearrank", 3, N)
    off = A[:, :, 3 * N // 4 :].astype(np.float64) - A[:, :, : N // 4]
    assert off.std() == pytest.approx(1e-5, rel=0.1)


def test_clustered():
    norms = column_norms(make("clustered", 9, N)).mean(0) / np.sqrt(N)
    np.testing.assert_allclose(norms[: N // 2 - 2], 1, rtol=0.2)
    np.testing.assert_allclose(norms[N // 2 - 2 : N // 2 + 2], np.sqrt(EPS), rtol=0.2)
    np.testing.assert_allclose(norms[N // 2 + 2 :], 4 * EPS, rtol=0.2)


@pytest.mark.parametrize("n, width", ((16, 2), (N, 2), (320, 10)))
def test_band(n, width):
    A = make("band", 2, n)
    i, j = np.nonzero(A[0])
    assert np.abs(i - j).max() == width
    assert np.diagonal(make("band", 2000, 3), axis1=-2, axis2=-1).mean() == pytest.approx(
        0.75, abs=0.1
    )


def test_rowscale():
    A = make("rowscale", 20, N, cond=2)
    rows = np.linalg.norm(A, axis=-1).mean(0) / np.sqrt(N)
    np.testing.assert_allclose(rows, 10.0 ** (-4 * np.arange(N) / (N - 1)), rtol=0.2)


def test_nearcollinear():
    A = make("nearcollinear", 3, N).astype(np.float64)
    assert (A - A[:, :, :1]).std() == pytest.approx(np.sqrt(2) * 1e-4, rel=0.2)
    singular = np.linalg.svd(A, compute_uv=False)
    assert (singular[:, 0] > 1e3 * singular[:, 1]).all()


def test_mixed_draws_a_family_a_matrix():
    A = make("mixed", 240, 32, seed=3)
    kinds = {
        "rankdef": (A[:, :, -8:] == 0).all((1, 2)),
        "band": (A[:, 0, 16:] == 0).all(1) & (A[:, 0, 0] != 0),
        "clustered": column_norms(A)[:, -1] < 1e-4,
        "nearrank": np.abs(A[:, :, -8:] - A[:, :, :8]).max((1, 2)) < 1e-3,
        "nearcollinear": np.abs(A - A[:, :, :1]).max((1, 2)) < 1e-2,
        "rowscale": np.abs(A[:, -1]).max(1) < 1e-3,
    }
    kinds["nearrank"] &= ~kinds["nearcollinear"]
    kinds["clustered"] &= ~kinds["rankdef"]
    kinds["rowscale"] &= ~kinds["band"]
    counts = {name: int(found.sum()) for name, found in kinds.items()}
    # each with 1 chance in 12
    assert all(8 <= count <= 35 for count in counts.values()), counts
    assert 90 <= 240 - sum(counts.values()) <= 150, counts


@pytest.mark.parametrize("seed", range(40))
def test_mixed_has_one_dense_and_one_not(seed):
    names = matrices._draw_mixed(np.random.default_rng(seed), 2)
    assert (names == "dense").sum() == 1
    assert matrices._draw_mixed(np.random.default_rng(seed), 1).tolist() == ["dense"]


def test_cases_are_those_of_the_task():
    assert len(BENCHMARK_CASES) == 12 and len(TEST_CASES) == 22
    assert {c.n for c in BENCHMARK_CASES} == {32, 176, 352, 512, 1024, 2048, 4096}
    assert {c.family for c in (*BENCHMARK_CASES, *TEST_CASES)} <= set(FAMILIES)
    for case in (BENCHMARK_CASES[0], TEST_CASES[1]):
        A = make(case.family, case.batch, case.n, cond=case.cond)
        assert A.shape == (case.batch, case.n, case.n)


@pytest.mark.parametrize("t", (4, 5, 6, 7, 8))
@pytest.mark.parametrize("m, n", ((20, 20), (30, 12), (12, 30)))
def test_lapack_types_have_their_norm_and_condition(t, m, n):
    A = matrices.lapack_type(t, m, n, dtype=np.float32)
    singular = np.linalg.svd(A[0].astype(np.float64), compute_uv=False)
    norm = {7: 2.47e-32, 8: 4.06e31}.get(t, 1)
    cond = {5: 916, 6: 8.4e5}.get(t, 2)
    assert singular[0] == pytest.approx(norm, rel=0.01)
    # float32 cannot hold a condition number of 1/eps more exactly
    assert singular[0] / singular[-1] == pytest.approx(cond, rel=0.5 if t == 6 else 0.01)


def test_lapack_types_have_their_form():
    diagonal, upper, lower = (matrices.lapack_type(t, 9, 9)[0] for t in (1, 2, 3))
    assert np.array_equal(diagonal, np.diag(np.diag(diagonal)))
    assert np.array_equal(upper, np.triu(upper)) and np.count_nonzero(np.tril(upper, -1)) == 0
    assert np.array_equal(lower, np.tril(lower)) and np.count_nonzero(lower) == 45
    assert matrices.lapack_type(9, 5, 5)[0, 0, 0] == pytest.approx(0.75 * np.finfo(np.float32).max)
    with pytest.raises(ValueError, match="1 to 9; got 10"):
        matrices.lapack_type(10, 3, 3)


def test_named_matrices():
    assert matrices.hilbert(3)[1].tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    V = matrices.vandermonde(5)
    assert (V[:, 0] == 1).all() and V[2].tolist() == [0.5**k for k in range(5)]
    K = matrices.kahan(30, dtype=np.float64)
    assert np.array_equal(K, np.triu(K))
    # the last diagonal entry says nothing of how near to singular it is
    assert np.linalg.svd(K, compute_uv=False)[-1] < K[-1, -1] / 5
    G = matrices.gram(2, 12, rank=3, dtype=np.float64)
    assert np.allclose(G, G.swapaxes(-1, -2))
    assert np.linalg.matrix_rank(G).tolist() == [3, 3]
