"""Least squares: torch's own answer, what it leaves, and what is said where there is none."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import normal

import qrlib
from qrlib import api

EPS = 2.0**-23
SIZES = ((1, 1), (5, 5), (9, 4), (70, 33), (40, 1), (3, 0))


def assert_solved(A, B, found, *, units=30):
    """Each column as good as the exact X of a problem that differs by `units` n eps of each column.

    The gradient A^T (B - A X) is zero at the shortest residual; what remains of it is rounding.
    """
    A, B, X = (torch.as_tensor(Y).double() for Y in (A, B, found.solution))
    left = B - A @ X
    size = A.norm(dim=-2)[..., None]
    # what a small change of A does to a residual and to A X
    scale = left.norm(dim=-2, keepdim=True) + (size * X.abs()).sum(-2, keepdim=True)
    units *= max(1, A.shape[-1]) * (EPS if found.solution.dtype in FLOAT32 else 2.0**-52)
    assert ((A.mT @ left).abs() <= units * size * scale).all()
    squares = (left**2).sum(-2)
    found = torch.as_tensor(found.residuals).double()
    assert ((found - squares).abs() <= units * (B**2).sum(-2)).all()


FLOAT32 = (torch.float32, np.dtype(np.float32))


@pytest.mark.parametrize("as_numpy", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("p", (0, 1, 6))
@pytest.mark.parametrize("m, n", SIZES)
def test_any_shape(m, n, p, dtype, as_numpy):
    A, B = normal(2, 3, m, n, dtype=dtype), normal(2, 3, m, p, seed=1, dtype=dtype)
    given_ = (A.numpy(), B.numpy()) if as_numpy else (A, B)
    before = A.clone(), B.clone()
    found = qrlib.lstsq(*given_)
    assert type(found.solution) is type(found.residuals) is type(given_[0])
    assert found.solution.shape == (2, 3, n, p) and found.residuals.shape == (2, 3, p)
    assert found.solution.dtype == given_[0].dtype
    assert_solved(A, B, found)
    assert torch.equal(A, before[0]) and torch.equal(B, before[1])


@pytest.mark.parametrize("batch", ((), (3,), (0,), (2, 0), (2, 1)))
@pytest.mark.parametrize("m, n", ((7, 4), (200, 20), (6, 6)))
def test_what_torch_gives(m, n, batch):
    A, B = normal(*batch, m, n, dtype=torch.float64), normal(*batch, m, 3, dtype=torch.float64)
    X, residuals = qrlib.lstsq(A, B)
    expected = torch.linalg.lstsq(A, B, driver="gels")
    torch.testing.assert_close(X, expected.solution, rtol=1e-9, atol=1e-9)
    # torch gives none where there is nothing left to be a residual
    if m > n:
        torch.testing.assert_close(residuals, expected.residuals)
    else:
        assert residuals.shape == (*batch, 3) and not residuals.any()


@pytest.mark.parametrize("as_numpy", (False, True))
@pytest.mark.parametrize("batch", ((), (3,), (2, 0)))
def test_one_right_hand_side(batch, as_numpy):
    A, b = normal(*batch, 9, 4), normal(*batch, 9, seed=1)
    given_ = (A.numpy(), b.numpy()) if as_numpy else (A, b)
    X, residuals = map(torch.as_tensor, qrlib.lstsq(*given_))
    assert X.shape == (*batch, 4) and residuals.shape == batch
    columns = qrlib.lstsq(A, b[..., None])
    torch.testing.assert_close(X, columns.solution[..., 0])
    torch.testing.assert_close(residuals, columns.residuals[..., 0])


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("p", ((), (3,)))
def test_half_precision_is_computed_in_single(dtype, p):
    A, B = normal(2, 9, 4).to(dtype), normal(2, 9, *p, seed=1).to(dtype)
    A[1, :, 3] = A[1, :, 0]
    found, single = qrlib.lstsq(A, B), qrlib.lstsq(A.float(), B.float())
    assert found.solution.dtype == found.residuals.dtype == dtype
    for X, Y in zip(found, single, strict=True):
        torch.testing.assert_close(X, Y.to(dtype), rtol=0, atol=0, equal_nan=True)
        assert X[0].isfinite().all() and X[1].isnan().all()
    if dtype == torch.float16:
        (by_numpy, _) = qrlib.lstsq(A.numpy(), B.numpy())
        assert by_numpy.dtype == np.float16


@settings(max_examples=30, deadline=None)
@given(m=st.integers(1, 90), n=st.integers(0, 90), p=st.integers(0, 5), seed=st.integers(0, 999))
def test_any_size(m, n, p, seed):
    m, n = max(m, n), min(m, n)
    A, B = normal(1, m, n, seed=seed), normal(1, m, p, seed=seed + 1)
    found = qrlib.lstsq(A, B)
    if not found.solution.isnan().any():
        assert_solved(A, B, found)
    # a random square matrix may be near a singular one, and is not one
    assert not qrlib.lstsq(A, B, rcond=0).solution.isnan().any()


@pytest.mark.parametrize("layout", ("transposed", "every second", "expanded"))
def test_any_strides(layout):
    A, B = {
        "transposed": (normal(2, 4, 9).mT, normal(2, 3, 9).mT),
        "every second": (normal(4, 18, 8)[::2, ::2, 1::2], normal(4, 18, 6)[1::2, 1::2, ::2]),
        "expanded": (normal(1, 9, 4).expand(2, 9, 4), normal(9, 1).expand(2, 9, 3)),
    }[layout]
    found, expected = qrlib.lstsq(A, B), qrlib.lstsq(A.contiguous(), B.contiguous())
    torch.testing.assert_close(found.solution, expected.solution)
    assert_solved(A, B, found)


@pytest.mark.parametrize("of_a", (1e-30, 1e-10, 1e18))
@pytest.mark.parametrize("of_b", (1e-18, 1e18))
def test_any_scale(of_a, of_b):
    A, B = normal(1, 20, 6), normal(1, 20, 2, seed=1)
    expected = qrlib.lstsq(A, B).solution.double() * (of_b / of_a)
    found = qrlib.lstsq(A * of_a, B * of_b).solution
    fits = expected.abs() < torch.finfo(torch.float32).max
    torch.testing.assert_close(found[fits].double(), expected[fits], rtol=1e-4, atol=0)
    assert found[~fits].isinf().all()


def test_columns_of_any_length_are_independent():
    """A scale of 1e-30 is no lack of rank, and each column has its digits."""
    A, B = normal(1, 40, 8), normal(1, 40, 2, seed=1)
    lengths = 10.0 ** -torch.linspace(0, 30, 8)
    found = qrlib.lstsq(A * lengths, B, check=True)
    expected = qrlib.lstsq(A, B).solution / lengths[:, None]
    torch.testing.assert_close(found.solution, expected, rtol=1e-4, atol=0)


def dependent(how, dtype=torch.float32):
    A = normal(4, 30, 6, dtype=dtype)
    if how == "zero":
        A[1, :, 3] = 0
    if how == "equal":
        A[1, :, 4] = A[1, :, 0]
    if how == "sum":
        A[1, :, 5] = A[1, :, :5] @ torch.arange(5, dtype=dtype)
    if how == "all zero":
        A[1] = 0
    if how == "nan":
        A[1, 2, 3] = float("nan")
    if how == "inf":
        A[1, 2, 3] = float("inf")
    return A


@pytest.mark.parametrize("as_numpy", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("how", ("zero", "equal", "sum", "all zero", "nan", "inf"))
def test_one_without_a_solution_has_none_and_the_others_have_theirs(how, dtype, as_numpy):
    A, B = dependent(how, dtype), normal(4, 30, 2, seed=1, dtype=dtype)
    library = np if as_numpy else torch
    given_ = (A.numpy(), B.numpy()) if as_numpy else (A, B)
    X, residuals = map(torch.as_tensor, qrlib.lstsq(*given_))
    assert X[1].isnan().all() and residuals[1].isnan().all()
    others = [0, 2, 3]
    expected = torch.linalg.lstsq(A[others], B[others], driver="gels").solution
    torch.testing.assert_close(X[others], expected)
    message = r"1 of 4 matrices, the first at \[1\],.*rcond.*gelsd"
    with pytest.raises(library.linalg.LinAlgError, match=message):
        qrlib.lstsq(*given_, check=True)
    with pytest.raises(library.linalg.LinAlgError, match="got 1 of 1 matrices with no more"):
        qrlib.lstsq(given_[0][1], given_[1][1], check=True)
    qrlib.lstsq(given_[0][2:], given_[1][2:], check=True)


@pytest.mark.parametrize("n", (2, 10, 60))
def test_a_column_that_depends_on_the_others_is_found(n):
    """A hundred times, of lengths that differ, where rounding decides what is left of it."""
    A = normal(100, 2 * n, n, seed=n)
    A[..., -1] = (A[..., :-1] @ normal(100, n - 1, 1, seed=1))[..., 0] * 1e3
    assert qrlib.lstsq(A, normal(100, 2 * n, 1)).solution.isnan().all()
    # and what is a little more than rounding is a column of its own
    A[..., -1] += A[..., -1].norm(dim=-1, keepdim=True) * normal(100, 2 * n, seed=2) * 1e-5
    assert qrlib.lstsq(A, normal(100, 2 * n, 1), check=True).solution.isfinite().all()


def test_rcond_is_how_much_of_a_column_has_to_be_left():
    # the second column leaves 1e-3 of itself
    A, B = torch.tensor([[1.0, 1], [0, 1e-3], [0, 0]]), torch.ones(3, 1)
    assert qrlib.lstsq(A, B, rcond=0.9e-3).solution.isfinite().all()
    assert qrlib.lstsq(A, B, rcond=1.1e-3).solution.isnan().all()
    A[1, 1] = 1e-30
    assert qrlib.lstsq(A, B).solution.isnan().all()
    assert qrlib.lstsq(A, B, rcond=0).solution.isfinite().all()
    A[1, 1] = 0
    assert qrlib.lstsq(A, B, rcond=0).solution.isnan().all()


def test_what_is_not_finite_in_b_stays_in_its_column():
    A, B = normal(2, 20, 5), normal(2, 20, 4, seed=1)
    clean = qrlib.lstsq(A, B)
    B[0, 3, 1], B[0, 3, 2] = float("nan"), float("inf")
    found = qrlib.lstsq(A, B)
    assert not found.solution[0, :, 1:3].isfinite().any()
    assert not found.residuals[0, 1:3].isfinite().any()
    torch.testing.assert_close(found.solution[1], clean.solution[1], rtol=0, atol=0)
    torch.testing.assert_close(found.solution[0, :, ::3], clean.solution[0, :, ::3])


A, B = normal(2, 6, 4), normal(2, 6, 3)
BAD = {
    "wide": (lambda: qrlib.lstsq(A.mT, B), ValueError, r"as many rows as columns; got \(2, 4, 6\)"),
    "rows": (lambda: qrlib.lstsq(A, B[:, :5]), ValueError, r"m = 6 .*got \(2, 5, 3\)"),
    "batch": (lambda: qrlib.lstsq(A, B[0]), ValueError, r"the batch \(2,\) of A; got \(6, 3\)"),
    "batch of one": (lambda: qrlib.lstsq(A, B[:1]), ValueError, r"got \(1, 6, 3\)"),
    "dimensions": (lambda: qrlib.lstsq(A, B[..., None]), ValueError, r"got \(2, 6, 3, 1\)"),
    "a number": (lambda: qrlib.lstsq(A, B[0, 0, 0]), ValueError, r"got \(\)"),
    "vector A": (lambda: qrlib.lstsq(A[0, 0], B), ValueError, r"A must be \[..., m, n\]"),
    "dtype": (lambda: qrlib.lstsq(A, B.double()), TypeError, "A and B must have the same dtype"),
    "device": (lambda: qrlib.lstsq(A, B.to("meta")), ValueError, "same device; got cpu and meta"),
    "library": (lambda: qrlib.lstsq(A, B.numpy()), TypeError, "same type; got torch and numpy"),
    "integers": (lambda: qrlib.lstsq(A.int(), B.int()), TypeError, "A must be float32"),
    "complex": (
        lambda: qrlib.lstsq(A.to(torch.complex64), B.to(torch.complex64)),
        TypeError,
        "A must be float32 or float64; got torch.complex64",
    ),
    "half and single": (
        lambda: qrlib.lstsq(A.bfloat16(), B),
        TypeError,
        "same dtype; got torch.bfloat16 and torch.float32",
    ),
    "list": (lambda: qrlib.lstsq(A, [1.0]), TypeError, "B must be a torch tensor"),
    "gradient of B": (
        lambda: qrlib.lstsq(A, B.clone().requires_grad_()),
        RuntimeError,
        "B requires a gradient",
    ),
    "gradient of A": (
        lambda: qrlib.lstsq(A.clone().requires_grad_(), B),
        RuntimeError,
        "A requires a gradient",
    ),
    "stage": (lambda: qrlib.lstsq(A, B, stage="s99"), ValueError, "got 's99'"),
    "precision": (lambda: qrlib.lstsq(A, B, precision="tf32"), ValueError, "got 'tf32'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_what_to_do(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=f"(?s){message}"):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there kernels need no interpreter")
@pytest.mark.parametrize("m, n", ((10, 3), (20, 6), (140, 40)))
def test_by_kernels(m, n, monkeypatch):
    """What goes through them on a GPU, with the factorization of LAPACK."""
    from qrlib import apply, jit

    def apply_q(H, tau, C, transpose):
        return apply.ormqr(H, tau, C, transpose=transpose)

    monkeypatch.setattr(api, "apply_q", apply_q)
    A, B = normal(1, m, n), normal(1, m, 2, seed=1)
    with jit.quick_reductions():
        assert_solved(A, B, qrlib.lstsq(A, B))


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.mark.parametrize(
        "B, m, n, p", ((500, 30, 6, 1), (20, 700, 300, 40), (2, 60_000, 20, 2))
    )
    def test_sizes(self, B, m, n, p):
        X, Y = normal(B, m, n).cuda(), normal(B, m, p, seed=1).cuda()
        found = qrlib.lstsq(X, Y, check=True)
        assert found.solution.is_cuda and found.residuals.is_cuda
        assert_solved(X, Y, found)

    @pytest.mark.parametrize("how", ("zero", "equal", "sum", "nan", "inf"))
    def test_without_a_solution(self, how):
        X, Y = dependent(how).cuda(), normal(4, 30, 2).cuda()
        found = qrlib.lstsq(X, Y)
        assert found.solution.isnan().any(-1).any(-1).tolist() == [False, True, False, False]
        with pytest.raises(torch.linalg.LinAlgError, match="1 of 4 matrices"):
            qrlib.lstsq(X, Y, check=True)

    def test_no_synchronisation_inside(self):
        X, Y = normal(4, 300, 100).cuda(), normal(4, 300, 2).cuda()
        qrlib.lstsq(X, Y)
        torch.cuda.set_sync_debug_mode("error")
        try:
            qrlib.lstsq(X, Y)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_global_tf32_changes_nothing(self):
        X, Y = normal(4, 300, 100).cuda(), normal(4, 300, 40).cuda()
        expected = qrlib.lstsq(X, Y).solution
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            assert torch.equal(qrlib.lstsq(X, Y).solution, expected)
        finally:
            torch.set_float32_matmul_precision(before)
