"""Stage 9, as few products as a matrix allows: the route is chosen on the device. Triton.

Three products of float16 are a thousand times better than the gate of the task. One is good enough
where a matrix is large, for what it gets wrong is a share of a column's length whatever n is, and
where no column has spikes, for the gate is in sums of absolute values. Panels stay accurate.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from qrlib.compact import QR
from qrlib.scaling import flags, scale
from qrlib.stages import s06_update, s08_cholesky

# columns from which on one product suffices, and the largest sqrt(m) |a|_2 / |a|_1 of a column a
LARGE, SPIKE = 896, 2.0


@triton.jit
def _few(flat_ptr, parts):
    """Whether one product will do for the matrix of this program."""
    flat_ptr += tl.program_id(0).to(tl.int64) * parts
    at, flat = tl.arange(0, 64), tl.full([64], 1, tl.int32)
    for first in range(0, parts, 64):
        flat = tl.minimum(flat, tl.load(flat_ptr + first + at, mask=first + at < parts, other=1))
    return tl.min(flat) != 0


@triton.jit
def routed_update_kernel(
    flat_ptr, parts, V_ptr, T_ptr, G_ptr, C_ptr, e_ptr, m, n, nb, lo, done,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, FIRST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """That of stage 6, with one product for each of its own where the matrix is flat."""
    if _few(flat_ptr, parts):
        s06_update.update_kernel(
            V_ptr, T_ptr, G_ptr, C_ptr, e_ptr, m, n, nb, lo, done,
            stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
            BR, NB, BC, TWO, "fp16", FIRST, EARLY,
        )  # fmt: skip
    else:
        s06_update.update_kernel(
            V_ptr, T_ptr, G_ptr, C_ptr, e_ptr, m, n, nb, lo, done,
            stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
            BR, NB, BC, TWO, PRECISION, FIRST, EARLY,
        )  # fmt: skip


@triton.jit
def routed_share_kernel(
    flat_ptr, parts, V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows,
    stride_vb, stride_vm, stride_cb, stride_cm,
    NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """That of stage 6, routed."""
    if _few(flat_ptr, parts):
        s06_update.share_kernel(
            V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows, stride_vb, stride_vm, stride_cb, stride_cm,
            NB, BC, TWO, "fp16", FIRST,
        )  # fmt: skip
    else:
        s06_update.share_kernel(
            V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows, stride_vb, stride_vm, stride_cb, stride_cm,
            NB, BC, TWO, PRECISION, FIRST,
        )  # fmt: skip


@triton.jit
def routed_subtract_kernel(
    flat_ptr, parts, V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """That of stage 6, routed."""
    if _few(flat_ptr, parts):
        s06_update.subtract_kernel(
            V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
            stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
            BR, NB, BC, TWO, "fp16",
        )  # fmt: skip
    else:
        s06_update.subtract_kernel(
            V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
            stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
            BR, NB, BC, TWO, PRECISION,
        )  # fmt: skip


def scaled(A, policy):
    """(H, e, update): A scaled as for stage 6, and an update for a policy."""
    B, m, n = A.shape
    H, e = A.new_empty(B, m, n), A.new_empty(B, n, dtype=torch.int32)
    if policy != "fast" or min(m, n) < LARGE:
        scale(A, H, e)
        return H, e, s06_update.update
    flat = flags(A)
    scale(A, H, e, flat, SPIKE)
    kernels = routed_update_kernel, routed_share_kernel, routed_subtract_kernel
    return H, e, partial(s06_update.update, kernels=kernels, first=(flat, flat.shape[-1]))


def geqrf(A, *, policy="fast", precision="fp16x3"):
    """A = Q R by the panels of stage 8 and updates of one product where that is enough.

    Args:
        A: [B, m, n]. policy: "fp32" for three products everywhere.
        precision: of the products of a matrix that wants all of them; see tiles.product.

    Returns:
        QR(H, tau).
    """
    H, e, update = scaled(A, policy)
    tau = A.new_empty(A.shape[0], min(A.shape[1:]))
    s06_update.factor(H, e, tau, precision, s08_cholesky.panel, update)
    return QR(H, tau)
