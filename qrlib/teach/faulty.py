"""Programs that factor most matrices well: each breaks one promise, as real ones do.

`FAULTY` holds them, for a reader to guess who is found out by which clause of qrlib.teach.contract.
"""

import torch

from qrlib.householder import larf, larfb
from qrlib.stages import s02_unblocked, s03_blocked


def plain_squares(A):
    """The norm of a column is the root of its sum of squares, and no scale is taken first."""
    H = A.clone()
    tau = A.new_zeros(len(A), min(A.shape[1:]))
    for j in range(tau.shape[1]):
        alpha, x = H[:, j, j].clone(), H[:, j + 1 :, j].clone()
        norm = (alpha * alpha + (x * x).sum(1)).sqrt()
        still = (x == 0).all(1)
        beta = torch.where(still, alpha, -torch.copysign(norm, alpha))
        tau[:, j] = torch.where(still, 0, (beta - alpha) / torch.where(still, 1, beta))
        v = x / torch.where(still, 1, alpha - beta)[:, None]
        larf(v, tau[:, j], H[:, j:, j + 1 :])
        H[:, j, j], H[:, j + 1 :, j] = beta, v
    return H, tau


def whole_panels(A):
    """Panels of 16 columns, as many as there are; the columns that are left over are not one."""
    if min(A.shape[1:]) < 16:
        return s02_unblocked.geqrf(A)
    H = A.clone()
    tau = A.new_zeros(len(A), min(A.shape[1:]))
    for j in range(0, tau.shape[1] - 15, 16):
        e = j + 16
        V, T = s03_blocked.panel(H[:, j:, j:e], tau[:, j:e])
        H[:, j:, e:] = larfb(V, T, H[:, j:, e:])
    return H, tau


def norms_only(A):
    """Leaves out the columns that the norm of the matrix does not see."""
    lengths = A.norm(dim=1, keepdim=True)
    return s03_blocked.geqrf(A * (lengths > 1e-5 * lengths.amax(2, keepdim=True)))


def one_scale(A):
    """One power of two brings the whole batch near 1."""
    _, e = torch.frexp(A.abs().max())
    s = torch.ldexp(torch.tensor(1.0), -e)
    H, tau = plain_squares(A * s)
    return torch.where(torch.ones_like(H).triu().bool(), H / s, H), tau


def row_by_row(A):
    """Reads the memory of A row by row, whatever its strides say."""
    B, m, n = A.shape
    if A.untyped_storage().nbytes() >= A.element_size() * A.numel():
        A = torch.as_strided(A, (B, m, n), (m * n, n, 1), A.storage_offset())
    return s03_blocked.geqrf(A)


class Buffers:
    """Keeps its outputs, and writes the next result into them."""

    __name__ = "own_buffers"

    def __init__(self):
        self.kept = {}

    def __call__(self, A):
        H, tau = s03_blocked.geqrf(A)
        mine = self.kept.setdefault(A.shape, (H, tau))
        for old, new in zip(mine, (H, tau)):
            old.copy_(new)
        return mine


class Remembers:
    """Knows a batch by where it lies."""

    __name__ = "remembers"

    def __init__(self):
        self.known = {}

    def __call__(self, A):
        key = A.data_ptr(), A.shape, A.stride()
        if key not in self.known:
            # with A, so that no other tensor gets its place
            self.known[key] = A, s03_blocked.geqrf(A)
        _, (H, tau) = self.known[key]
        return H.clone(), tau.clone()


def lower_precision(A):
    """Asks torch for quick products, for this call and for all that come after it."""
    torch.set_float32_matmul_precision("medium")
    return s03_blocked.geqrf(A)


def in_place(A):
    """Saves the copy."""
    H, tau = s03_blocked.geqrf(A)
    A.copy_(H)
    return H, tau


# {name: what makes one}, since some have a memory
FAULTY = {
    "plain_squares": lambda: plain_squares,
    "whole_panels": lambda: whole_panels,
    "norms_only": lambda: norms_only,
    "one_scale": lambda: one_scale,
    "row_by_row": lambda: row_by_row,
    "own_buffers": Buffers,
    "remembers": Remembers,
    "lower_precision": lambda: lower_precision,
    "in_place": lambda: in_place,
}
