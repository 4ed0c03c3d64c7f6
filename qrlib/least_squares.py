"""X that makes B - A X shortest, from one factorization: R X = Q^T B, its first n rows.

Q keeps lengths, so what is left of B are the other rows of Q^T B, whatever X is.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from qrlib.api import geqrf, ormqr, rounded, widened
from qrlib.checks import check_array, check_matrix, check_same, shape_of
from qrlib.compact import namespace, unpack_r
from qrlib.sharding import on_shards


class LeastSquares(NamedTuple):
    """What lstsq returns.

    solution: [..., n, p], or [..., n] for a B [..., m].
    residuals: [..., p], or [...]: the squared length of each column of B - A X; 0 where m = n.
    """

    solution: Any
    residuals: Any


@on_shards
def lstsq(A, B, *, rcond=None, check=False, stage="auto", precision="fp32"):
    """The X with the shortest B - A X, for m >= n and columns of A that are independent.

    A matrix whose columns are not, or that is not finite, has NaN for a result, and the others of
    its batch have theirs: no pivots are chosen, and nothing waits for the host.

    Args:
        A: [..., m, n], torch tensor or NumPy array; float32 and float64, and float16 and bfloat16,
            which are computed in float32. B: [..., m, p], or [..., m] for one right-hand side; the
            batch and dtype of A. Both are read.
        rcond: a column of A counts as dependent on those before it where |R_jj| is at most rcond
            times the largest of column j of R. The scale of a column does not matter. 0 finds exact
            zeros only, as LAPACK's xGELS. None is 10 sqrt(n) eps, a few times what rounding leaves
            of such a column.
        check: raise an error for dependent columns; on a GPU the host waits for the answer.
        stage, precision: as for geqrf.

    Returns:
        LeastSquares(solution, residuals), as torch.linalg.lstsq; rounded to A's dtype at the end.

    Raises:
        TypeError, ValueError: A and B that do not belong together; m < n; and as geqrf.
        torch.linalg.LinAlgError, or numpy's: check, and a matrix has dependent columns.

    Cost: 2n^2 (m - n/3) + p (4mn - n^2) flops a matrix. Accuracy: backward stable in each column of
    A. Source: LAPACK xGELS.
    """
    check_matrix("A", A, half=True)
    check_array("B", B, half=True)
    check_same("A", A, "B", B)
    m, n = A.shape[-2:]
    if m < n:
        raise ValueError(
            f"A must have at least as many rows as columns; got {shape_of(A)}; many X have no "
            "residual then: for the shortest take Q, R = qrlib.qr(A.mT), solve R^T Y = B, X = Q Y"
        )
    if shape_of(B)[: A.ndim - 1] != shape_of(A)[:-1] or B.ndim > A.ndim:
        raise ValueError(
            f"B must be [..., m, p] or [..., m] with m = {m} and the batch {shape_of(A)[:-2]} of "
            f"A; got {shape_of(B)}"
        )
    if B.ndim < A.ndim:
        options = {"rcond": rcond, "check": check, "stage": stage, "precision": precision}
        X, residuals = lstsq(A, B[..., None], **options)
        return LeastSquares(X[..., 0], residuals[..., 0])
    xp, dtype, A, B = namespace(A), A.dtype, widened(A), widened(B)
    H, tau = geqrf(A, stage=stage, precision=precision)
    Y = ormqr(H, tau, B, transpose=True)
    if rcond is None:
        rcond = 10 * math.sqrt(n) * xp.finfo(A.dtype).eps
    R = unpack_r(H)
    lost = _dependent(R, rcond)
    if check and lost.any():
        raise xp.linalg.LinAlgError(_which(lost))
    X, rest = _solve(R, Y[..., :n, :], lost), (Y[..., n:, :] ** 2).sum(-2)
    for found, none in ((X, lost[..., None, None]), (rest, lost[..., None])):
        if xp is np:
            np.copyto(found, np.nan, where=none)
        else:
            # an index, or torch.where, would have the host wait
            found.masked_fill_(none, np.nan)
    return LeastSquares(rounded(X, dtype), rounded(rest, dtype))


def _dependent(R, rcond):
    """[...]: whether a column of R [..., n, n] has no more on the diagonal than rounding."""
    xp = namespace(R)
    if not R.shape[-1]:
        return R.any((-2, -1)) if xp is np else R.flatten(-2).any(-1)
    largest = abs(R).max(-2) if xp is np else R.abs().amax(-2)
    # not (<=): a NaN is lost, too
    return ~(abs(xp.diagonal(R, 0, -2, -1)) > rcond * largest).all(-1)


def _which(lost):
    xp = namespace(lost)
    found = f"{int(lost.sum())} of {math.prod(lost.shape)} matrices"
    if lost.ndim:
        found += f", the first at {xp.argwhere(lost)[0].tolist()},"
    return (
        f"A must be finite, with independent columns; got {found} with no more than rounding on "
        "the diagonal of R; leave columns out, lower rcond, or use torch.linalg.lstsq with "
        "driver='gelsd' on a CPU; without check=True these are NaN and the others have results"
    )


def _solve(R, Y, lost):
    """R^-1 Y, in float64: no number on the way is too large, and no setting says tf32."""
    if isinstance(R, np.ndarray):
        # NumPy refuses a batch for one member
        R = np.where(lost[..., None, None], np.eye(R.shape[-1]), R)
        return np.linalg.solve(R.astype(np.float64), Y).astype(Y.dtype)
    import torch

    X = torch.linalg.solve_triangular(R.double(), Y.double(), upper=True)
    return X.to(Y.dtype).contiguous()
