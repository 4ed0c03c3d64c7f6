"""Stage 2, every matrix of the batch at once, column by column. Unblocked Householder QR."""

from qrlib.compact import QR
from qrlib.householder import geqr2, headroom, unscale


def geqrf(A):
    """A = Q R for the whole batch: k columns one after another, each a handful of torch operations.

    Args:
        A: [B, m, n], torch, float32 or float64; read, not written.

    Returns:
        QR(H, tau): [B, m, n] and [B, min(m, n)].
    """
    s = headroom(A)
    H = s * A.contiguous()
    tau = H.new_zeros(A.shape[0], min(A.shape[1:]))
    geqr2(H, tau)
    return QR(unscale(H, s), tau)
