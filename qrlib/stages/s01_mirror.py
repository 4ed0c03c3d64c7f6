"""Stage 1, one mirror: send a column onto its axis, then the next. Householder 1958.

A mirror is H = I - tau v v^T with v[0] = 1. It is symmetric, orthogonal, and its own inverse.
Plain NumPy, one matrix at a time, one column at a time.
"""

import numpy as np

from qrlib.compact import QR, unpack_v


def scale_of(x):
    """s: the power of two that brings max|x| into [1/2, 1), where squares stay in range.

    Multiplying by a power of two rounds nothing, so what holds for s x holds for x.
    """
    limit = np.finfo(x.dtype).maxexp - 2
    # numbers so small or large that s itself would leave the range get the nearest s that does not
    exponent = np.clip(np.frexp(np.abs(x).max(initial=0))[1], -limit, limit)
    return np.ldexp(x.dtype.type(1), -exponent)


def larfg(x):
    """H x = (beta, 0, ..., 0): the mirror that sends x onto its first axis.

    Args:
        x: [m], float32 or float64, m >= 1.

    Returns:
        beta: the new first entry, -sign(x[0]) |x|, so that x[0] - beta never cancels.
        v: [m], with v[0] = 1.
        tau: in [1, 2]; exactly 0 (no mirror, H = I) when x[1:] is zero already.

    Cost: 3m flops. Accuracy: a few eps at any scale of x.
    Source: LAPACK xLARFG; chapter "One mirror".
    """
    v = np.zeros_like(x)
    v[0] = 1
    if not np.any(x[1:]):
        return x[0], v, x.dtype.type(0)
    s = scale_of(x)
    alpha, tail = s * x[0], s * x[1:]
    # copysign, not sign: sign(0) is 0, and a mirror for x[0] = 0 is needed too
    beta = -np.copysign(np.sqrt(alpha * alpha + tail @ tail), alpha)
    v[1:] = tail / (alpha - beta)
    return beta / s, v, (beta - alpha) / beta


def larf(v, tau, C):
    """C <- H C = C - tau v (v^T C): every column of C in the mirror, which is never formed.

    Args:
        v: [m]. tau: scalar. C: [m, n], overwritten.

    Cost: 4mn flops. Source: LAPACK xLARF; chapter "One mirror".
    """
    C -= np.outer(tau * v, v @ C)


def geqr2(H, tau):
    """H <- R with the mirrors stored under it: one column after the other. One matrix, in place.

    Args:
        H: [m, n], the matrix on entry, compact on exit. tau: [min(m, n)], overwritten.

    Cost: 2n^2 (m - n/3) flops. Source: LAPACK xGEQR2; chapter "One mirror".
    """
    for j in range(len(tau)):
        beta, v, tau[j] = larfg(H[j:, j])
        larf(v, tau[j], H[j:, j + 1 :])
        H[j, j] = beta
        H[j + 1 :, j] = v[1:]


def geqrf(A):
    """A = Q R, matrix by matrix.

    Args:
        A: [B, m, n], NumPy, float32 or float64; read, not written.

    Returns:
        QR(H, tau): [B, m, n] and [B, min(m, n)].
    """
    H = A.copy()
    tau = np.zeros((A.shape[0], min(A.shape[1:])), A.dtype)
    # a NaN or Inf in A shows in the result; a warning would only repeat it
    with np.errstate(invalid="ignore", over="ignore"):
        for b in range(A.shape[0]):
            # tiny numbers have few digits: lift them, exactly, and R comes down rounded once
            s = max(1, scale_of(A[b]))
            H[b] *= s
            geqr2(H[b], tau[b])
            H[b] = np.where(np.tri(*H[b].shape, -1, dtype=bool), H[b], H[b] / s)
    return QR(H, tau)


def ormqr(H, tau, C, *, transpose=False):
    """Q C, or Q^T C, mirror by mirror. H: [B, m, n], tau: [B, k], C: [B, m, p]; all are read."""
    C = C.copy()
    V = unpack_v(H, tau.shape[-1])
    order = range(tau.shape[-1])
    for b in range(len(C)):
        # Q^T C = H_{k-1} ... H_0 C meets the first mirror first; Q C meets it last
        for j in order if transpose else reversed(order):
            larf(V[b, j:, j], tau[b, j], C[b, j:])
    return C
