"""The compact form of a QR factorization, as LAPACK and torch.geqrf return it.

R lies on and above the diagonal of H. Below it, column j holds the tail of v_j, whose head
v_j[0] = 1 is not stored. tau_j stands beside, one number a column:

    H_j = I - tau_j v_j v_j^T        Q = H_0 H_1 ... H_{k-1}        A = Q R

Everything here works on NumPy arrays and torch tensors alike, on any number of batch dimensions.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class QR(NamedTuple):
    """A factorization in compact form.

    H: [..., m, n], R on and above the diagonal, the tails of the Householder vectors below.
    tau: [..., k] with k = min(m, n), the scalars of the reflectors.
    """

    H: Any
    tau: Any


def namespace(X):
    """The library X belongs to: numpy for an array, torch for a tensor."""
    if isinstance(X, np.ndarray):
        return np
    import torch

    return torch


def flat(X, dims=2):
    """[..., m, n] as [B, m, n], or with dims=1 [..., k] as [B, k]; a view where possible."""
    if not isinstance(X, np.ndarray):
        # kernels and NumPy read memory as it is: a minus that torch only notes has to be there
        X = X.resolve_neg()
    batch = X.shape[: X.ndim - dims]
    # counted, not -1: an empty matrix cannot tell how many there are
    return X.reshape(math.prod(batch), *X.shape[X.ndim - dims :])


def unpack_v(H, k=None):
    """V: the Householder vectors as a unit lower trapezoid.

    Args:
        H: [..., m, n], compact.
        k: how many vectors; min(m, n) when None.

    Returns:
        V: [..., m, k], ones on the diagonal, zeros above.
    """
    xp = namespace(H)
    k = min(H.shape[-2:]) if k is None else k
    V = xp.tril(H[..., :, :k], -1)
    if xp is np:
        np.einsum("...jj->...j", V[..., :k, :])[...] = 1
    else:
        # an index would come from the host, and the host would wait for it
        V.diagonal(0, -2, -1).fill_(1)
    return V


def unpack_r(H):
    """R: the upper trapezoid of H.

    Args:
        H: [..., m, n], compact.

    Returns:
        R: [..., k, n] with k = min(m, n), zeros below the diagonal.
    """
    m, n = H.shape[-2:]
    return namespace(H).triu(H[..., : min(m, n), :])
