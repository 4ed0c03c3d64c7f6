"""Other ways to A = Q R, each as short as it can be told, to hold Householder's mirrors against.

All take A [m, n] of full column rank, m >= n, float32 (or float64), NumPy, and work in its
precision; they return Q [m, n] and R [n, n]. On paper all of them give the same Q and R up to
signs, with Q^T Q = I. Rounding makes the difference: how often the condition number kappa enters.
"""

import numpy as np

import qrlib


def cgs(A):
    """Classical Gram-Schmidt: a column minus its shadows on the columns before, taken all at once.

    Cost: 2mn^2 flops. Orthogonality is lost about as kappa^2 eps. Chapter "Trust, but certify".
    """
    Q, R = _empty(A)
    for j in range(A.shape[1]):
        R[:j, j] = Q[:, :j].T @ A[:, j]
        w = A[:, j] - Q[:, :j] @ R[:j, j]
        R[j, j] = np.linalg.norm(w)
        Q[:, j] = w / R[j, j]
    return Q, R


def mgs(A):
    """Modified Gram-Schmidt: one shadow at a time, each taken of what is left by then.

    Cost: 2mn^2 flops. Orthogonality is lost as kappa eps. Source: Bjorck 1967.
    """
    Q, R = _empty(A)
    for j in range(A.shape[1]):
        w = A[:, j].copy()
        for i in range(j):
            R[i, j] = Q[:, i] @ w
            w -= R[i, j] * Q[:, i]
        R[j, j] = np.linalg.norm(w)
        Q[:, j] = w / R[j, j]
    return Q, R


def cgs2(A):
    """Classical Gram-Schmidt twice a column: what one pass left of a shadow, the second takes.

    Cost: 4mn^2 flops. Orthogonality is a few eps as long as kappa stays well below 1/eps.
    Source: Giraud, Langou, Rozloznik, van den Eshof 2005.
    """
    Q, R = _empty(A)
    for j in range(A.shape[1]):
        w = A[:, j].copy()
        for _ in range(2):
            shadows = Q[:, :j].T @ w
            w -= Q[:, :j] @ shadows
            R[:j, j] += shadows
        R[j, j] = np.linalg.norm(w)
        Q[:, j] = w / R[j, j]
    return Q, R


def cholesky_qr(A):
    """Cholesky QR: A^T A = R^T R gives R, then Q R = A is solved for Q, column after column.

    Q comes as in classical Gram-Schmidt; only R comes from elsewhere, from a product of matrices.

    Cost: 2mn^2 + n^3/3 flops. Orthogonality is lost as kappa^2 eps. From about kappa = eps^-1/2 on
    the rounded A^T A may have no Cholesky factor at all.

    Raises:
        numpy.linalg.LinAlgError: A^T A, as rounded, is not positive definite.
    """
    R = np.ascontiguousarray(np.linalg.cholesky(A.T @ A).T)
    Q = np.zeros_like(A)
    for j in range(A.shape[1]):
        Q[:, j] = (A[:, j] - Q[:, :j] @ R[:j, j]) / R[j, j]
    return Q, R


def cholesky_qr2(A):
    """Cholesky QR, and once more of the Q it gave, which mends what the first time lost.

    Cost: twice that of cholesky_qr. As orthogonal as Householder where the first Cholesky succeeds.
    Source: Yamamoto et al. 2015.

    Raises:
        numpy.linalg.LinAlgError: as cholesky_qr.
    """
    Q1, R1 = cholesky_qr(A)
    Q, R2 = cholesky_qr(Q1)
    return Q, R2 @ R1


def householder(A):
    """The mirrors of stage 1, with Q formed, so that they stand beside the others.

    Cost: 4mn^2 - 4n^3/3 flops. Orthogonality is a few eps, whatever kappa.
    """
    return qrlib.qr(A, stage="s01_mirror")


METHODS = {
    "classical Gram-Schmidt": cgs,
    "modified Gram-Schmidt": mgs,
    "Gram-Schmidt twice": cgs2,
    "Cholesky QR": cholesky_qr,
    "Cholesky QR twice": cholesky_qr2,
    "Householder": householder,
}


def with_condition(m, n, kappa, *, seed=0, dtype=np.float32):
    """A [m, n] with singular values that fall geometrically from 1 to 1/kappa, vectors random."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((m, n)))[0]
    W = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = np.power(float(kappa), -np.arange(n) / max(n - 1, 1))
    return ((U * values) @ W.T).astype(dtype)


def orthogonality(Q):
    """|Q^T Q - I| in float64, in units of m*eps, as the certificate counts: the gate is 100."""
    Q64 = Q.astype(np.float64)
    E = np.abs(Q64.T @ Q64 - np.eye(Q.shape[1]))
    return E.sum(0).max() / (len(Q) * np.finfo(Q.dtype).eps)


def _empty(A):
    m, n = A.shape
    return np.zeros((m, n), A.dtype), np.zeros((n, n), A.dtype)
