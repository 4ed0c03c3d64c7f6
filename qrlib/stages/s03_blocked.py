"""Stage 3, panels of columns, and one block reflector for all on their right. Compact WY, xGEQRF.

The loop, `right_looking`, takes the factorization of a panel and the update of what lies to its
right as arguments; later stages bring a new panel or a new update and keep the loop.
"""

from qrlib.compact import QR, unpack_v
from qrlib.householder import geqr2, headroom, larfb, larft, unscale


def panel(H, tau):
    """Factor a panel in place and give its block reflector I - V T V^T.

    Args:
        H: [B, m, b], overwritten by its compact form. tau: [B, b], overwritten.

    Returns:
        V: [B, m, b], unit lower trapezoidal. T: [B, b, b], upper triangular.
    """
    geqr2(H, tau)
    V = unpack_v(H, tau.shape[-1])
    return V, larft(V, tau)


def update(V, T, C):
    """C <- Q^T C, in place. V: [B, m, b]. T: [B, b, b]. C: [B, m, n], the columns right of it."""
    C.copy_(larfb(V, T, C))


def right_looking(A, nb, panel, update, scale=headroom):
    """A = Q R: factor nb columns, apply Q^T to all columns on their right, go on there.

    Args:
        A: [B, m, n], read. nb: the width of a panel; the last may be narrower.
        panel: (H [B, m, b], tau [B, b]) -> (V, T); writes its two arguments.
        update: (V, T, C [B, m, n]) -> None; C becomes Q^T C.
        scale: A -> powers of two [B, 1, 1], or [B, 1, n] for each column its own; QR of A times
            them has the same V and tau, and R times them.

    Returns:
        QR(H, tau).

    Cost: 2n^2 (m - n/3) flops a matrix; all but a share of about nb/n are in the update.
    Source: LAPACK xGEQRF; chapter "Panels".
    """
    s = scale(A)
    H = s * A.contiguous()
    n = A.shape[2]
    k = min(A.shape[1:])
    tau = H.new_zeros(A.shape[0], k)
    for j in range(0, k, nb):
        e = min(j + nb, k)
        V, T = panel(H[:, j:, j:e], tau[:, j:e])
        if e < n:
            update(V, T, H[:, j:, e:])
    return QR(unscale(H, s), tau)


def geqrf(A, *, nb=32):
    """A = Q R by panels of nb columns. A: [B, m, n], torch; read. Returns QR(H, tau)."""
    return right_looking(A, nb, panel, update)


def ormqr(H, tau, C, *, transpose=False, nb=32):
    """Q C, or Q^T C, by blocks of nb reflectors.

    Args:
        H: [B, m, n] and tau: [B, k], compact. C: [B, m, p], read.

    Cost: 4mpk - 2pk^2 flops a matrix. Source: LAPACK xORMQR.
    """
    C = C.clone()
    starts = range(0, tau.shape[-1], nb)
    # Q^T C meets the first reflector first; Q C meets it last
    for j in starts if transpose else reversed(starts):
        V, T = _block(H, tau, j, nb)
        C[:, j:] = larfb(V, T, C[:, j:], transpose=transpose)
    return C


def orgqr(H, tau, *, nb=32):
    """The first n columns of Q. H: [B, m, n], m >= n; tau: [B, k], k <= n. Returns [B, m, n].

    From the last block to the first, so that a block meets only columns that are no longer those
    of the identity. Cost: 4mnk - 2(m + n)k^2 + 4k^3/3 flops a matrix. Source: LAPACK xORGQR.
    """
    Q = H.new_zeros(H.shape)
    Q.diagonal(dim1=-2, dim2=-1).fill_(1)
    for j in reversed(range(0, tau.shape[-1], nb)):
        V, T = _block(H, tau, j, nb)
        Q[:, j:, j:] = larfb(V, T, Q[:, j:, j:], transpose=False)
    return Q


def _block(H, tau, j, nb):
    t = tau[:, j : j + nb]
    V = unpack_v(H[:, j:, j : j + nb], t.shape[-1])
    return V, larft(V, t)
