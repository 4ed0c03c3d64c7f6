"""Stage 4, the panel halved until one column is left; T by joining. Elmroth and Gustavson 2000."""

import torch

from qrlib.householder import larfb, larfg, matmul
from qrlib.stages.s03_blocked import right_looking, update


def panel(H, tau):
    """Factor the left half, update the right half with its block reflector, factor that, join.

    (I - V1 T1 V1^T)(I - V2 T2 V2^T) = I - [V1 V2] T [V1 V2]^T with the two triangles on the
    diagonal of T and -T1 (V1^T V2) T2 between them.

    Args:
        H: [B, m, b], overwritten by its compact form. tau: [B, b], overwritten.

    Returns:
        V: [B, m, b], unit lower trapezoidal. T: [B, b, b], upper triangular.

    Cost: that of the unblocked panel and its T, but nearly all of it in products of matrices.
    Source: LAPACK xGEQRT3; chapter "Halves of halves".
    """
    b = tau.shape[-1]
    if b == 1:
        return _column(H, tau)
    h = b // 2
    V1, T1 = panel(H[:, :, :h], tau[:, :h])
    H[:, :, h:] = larfb(V1, T1, H[:, :, h:])
    V2, T2 = panel(H[:, h:, h:], tau[:, h:])
    # V2 starts h rows lower
    V2 = torch.nn.functional.pad(V2, (0, 0, h, 0))
    T12 = -matmul(T1, matmul(matmul(V1.mT, V2), T2))
    T = torch.cat([torch.cat([T1, T12], 2), torch.nn.functional.pad(T2, (h, 0))], 1)
    return torch.cat([V1, V2], 2), T


def _column(H, tau):
    beta, v, tau[:, 0] = larfg(H[:, 0, 0], H[:, 1:, 0])
    H[:, 0, 0] = beta
    H[:, 1:, 0] = v
    return torch.cat([torch.ones_like(H[:, :1]), H[:, 1:]], 1), tau[:, :, None].clone()


def geqrf(A, *, nb=64):
    """A = Q R by recursive panels of nb columns. A: [B, m, n], torch; read. Returns QR(H, tau)."""
    return right_looking(A, nb, panel, update)
