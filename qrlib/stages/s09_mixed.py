"""Stage 9, as few products as a matrix allows: the route is chosen on the device. Triton.

Three products of float16 are a thousand times better than the gate of the task. One is good enough
where a matrix is large, for what it gets wrong is a share of a column's length whatever n is, and
where no column has spikes, for the gate is in sums of absolute values. Panels stay accurate.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from qrlib import scaling
from qrlib.compact import QR
from qrlib.stages import s06_update
from qrlib.stages.s08_cholesky import panel
from qrlib.streams import Branch

# columns from which on so many products suffice, and the largest sqrt(m) |a|_2 / |a|_1 of a column
# a. Two products take V as float16 and C and Z whole
LARGE, MEDIUM, SPIKE = 896, 512, 2.0
# fewer matrices have both routes in one launch; more have a launch for each, with room for more
# programs in that of few products. So have narrow ones: of both routes for 32 columns ptxas 12.8
# makes a kernel for sm_90a that reads a factor from the wrong place of shared memory. And so has
# what makes two products: that beside three is more than the registers of a Blackwell
TOGETHER, NARROW = 32, 32
# of the pipeline of an update of few products, which has room for so many: chosen by hand on one
# H200, 2026-11-30, Triton 3.6; again: python -m qrlib.bench --case 3 --precision fast --replay
STAGES = 3


@triton.jit
def _few(flat_ptr, parts):
    """Whether few products will do for the matrix of this program."""
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
    FLAT: tl.constexpr, PRECISION: tl.constexpr, FIRST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """That of stage 6, in precision FLAT where the matrix is flat. None: not in this launch."""
    if _few(flat_ptr, parts):
        if FLAT is not None:
            s06_update.update_kernel(
                V_ptr, T_ptr, G_ptr, C_ptr, e_ptr, m, n, nb, lo, done,
                stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
                BR=BR, NB=NB, BC=BC, TWO=TWO, PRECISION=FLAT, FIRST=FIRST, EARLY=EARLY,
            )  # fmt: skip
    else:
        if PRECISION is not None:
            s06_update.update_kernel(
                V_ptr, T_ptr, G_ptr, C_ptr, e_ptr, m, n, nb, lo, done,
                stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
                BR=BR, NB=NB, BC=BC, TWO=TWO, PRECISION=PRECISION, FIRST=FIRST, EARLY=EARLY,
            )  # fmt: skip


@triton.jit
def routed_share_kernel(
    flat_ptr, parts, V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows,
    stride_vb, stride_vm, stride_cb, stride_cm,
    NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr, FLAT: tl.constexpr,
    PRECISION: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """That of stage 6, routed."""
    if _few(flat_ptr, parts):
        if FLAT is not None:
            s06_update.share_kernel(
                V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows,
                stride_vb, stride_vm, stride_cb, stride_cm,
                NB=NB, BC=BC, TWO=TWO, PRECISION=FLAT, FIRST=FIRST,
            )  # fmt: skip
    else:
        if PRECISION is not None:
            s06_update.share_kernel(
                V_ptr, C_ptr, W_ptr, m, n, nb, lo, rows,
                stride_vb, stride_vm, stride_cb, stride_cm,
                NB=NB, BC=BC, TWO=TWO, PRECISION=PRECISION, FIRST=FIRST,
            )  # fmt: skip


@triton.jit
def routed_subtract_kernel(
    flat_ptr, parts, V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
    FLAT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """That of stage 6, routed."""
    if _few(flat_ptr, parts):
        if FLAT is not None:
            s06_update.subtract_kernel(
                V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
                stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
                BR=BR, NB=NB, BC=BC, TWO=TWO, PRECISION=FLAT,
            )  # fmt: skip
    else:
        if PRECISION is not None:
            s06_update.subtract_kernel(
                V_ptr, T_ptr, G_ptr, W_ptr, C_ptr, e_ptr, m, n, nb, lo, rows, done,
                stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm, stride_eb,
                BR=BR, NB=NB, BC=BC, TWO=TWO, PRECISION=PRECISION,
            )  # fmt: skip


KERNELS = routed_update_kernel, routed_share_kernel, routed_subtract_kernel


def products(n):
    """The precision in which flat matrices of n columns are updated, or None: as all others."""
    return "fp16" if n >= LARGE else "fp16x2" if n >= MEDIUM else None


def flags(A, policy):
    """Memory for what `scale` says of each matrix, where a policy wants to know; or None."""
    few = products(min(A.shape[1:])) if policy == "fast" else None
    return None if few is None else scaling.flags(A)


def router(flat, n):
    """An update like that of stage 6 for matrices of n columns, by their flags; see `flags`."""
    if flat is None:
        return s06_update.update
    few = products(n)
    routed = partial(s06_update.update, kernels=KERNELS, first=(flat, flat.shape[-1]))

    def update(V, T, C, precision, **options):
        if few == "fp16" and C.shape[0] < TOGETHER and C.shape[-1] > NARROW:
            routed(V, T, C, precision, FLAT=few, **options)
            return
        branch = Branch()
        with branch.fork():
            routed(V, T, C, precision, FLAT=None, **options)
        routed(V, T, C, None, FLAT=few, num_stages=STAGES, **options)
        branch.join()

    return update


def factored(A, policy, precision, panel, corner=s06_update.no_corner):
    """QR of A by the loop of stage 6, with updates by the routes of a policy."""
    B, m, n = A.shape
    H, e = A.new_empty(B, m, n), A.new_empty(B, n, dtype=torch.int32)
    tau, flat = A.new_empty(B, min(m, n)), flags(A, policy)
    scaling.scale(A, H, e, flat, SPIKE)
    s06_update.factor(H, e, tau, precision, panel, router(flat, min(m, n)), corner)
    return QR(H, tau)


def geqrf(A, *, policy="fast", precision="fp16x3"):
    """A = Q R by the panels of stage 8, and updates of one or two products where that is enough.

    Args:
        A: [B, m, n]. policy: "fp32" for three products everywhere.
        precision: of the products of a matrix that wants all of them; see tiles.product.

    Returns:
        QR(H, tau).
    """
    return factored(A, policy, precision, panel)
