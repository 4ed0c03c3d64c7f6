"""Stage 7, a matrix is one program: scaled, factored and scaled back in one launch. Triton.

As the panels walk down the diagonal the rows left to them get fewer, so the registers that hold a
panel are halved where half of them would stay empty. Larger matrices go to stage 6.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.compact import QR
from qrlib.scaling import half_log2, next_power_of_2
from qrlib.stages import s06_update
from qrlib.stages.s06_update import inner_products, subtract, through_t

# by the rows a tile has to have: warps, columns of a panel, rows and columns of an updated tile,
# measured on one H200, 2026-11-29, Triton 3.6, with 40 matrices. Chosen by hand; again: change
# a row, and time it, that of 256 by --case 1, that of 512 by --case 2, in
# python -m qrlib.bench --case 1 --stage qrlib.stages.s07_whole:whole=1 --compare none --replay
TABLE = {
    32: (1, 16, 32, 16),
    64: (4, 16, 32, 32),
    128: (4, 16, 64, 64),
    256: (4, 16, 64, 32),
    512: (8, 16, 64, 32),
}
# warps for at most 32 columns of so many rows
TINY = {32: 1, 64: 2, 128: 4}


@triton.jit
def step(
    H_ptr, tau_ptr, V_ptr, T_ptr, m, n, stride_hm,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Factor the first BN columns of H [m <= BM, n] in registers and update the others.

    V [BM, BN] and T [BN, BN] are scratch.
    """
    i, c, k = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BN)[:, None]
    nb = tl.minimum(BN, tl.minimum(m, n))
    H_ptrs = H_ptr + i * stride_hm + c
    inside = (i < m) & (c < nb)
    P, tau, T = tiles.geqr2(tl.load(H_ptrs, mask=inside, other=0.0), nb, BM, BN)
    tl.store(H_ptrs, P, mask=inside)
    tl.store(tau_ptr + c, tau, mask=c < nb)
    if n > nb:
        tl.store(V_ptr + i * BN + c, tiles.unit_lower(P, i, c), mask=i < m)
        tl.store(T_ptr + k * BN + c, T)
        tl.debug_barrier()
        for q in range(nb, n, BC):
            d = q + tl.arange(0, BC)[None, :]
            W, X = inner_products(
                V_ptr, H_ptr, d, m, n, nb, 0, BN, stride_hm, BR, BN, BC, False, PRECISION
            )  # fmt: skip
            Z, Y = through_t(T_ptr, None, W, X, nb, BN, BN, False)
            subtract(
                V_ptr, Z, Y, H_ptr, None, d, m, n, nb, 0, 0, BN, stride_hm,
                BR, BN, BC, False, PRECISION,
            )  # fmt: skip
    # the next step loads what this one stored, and so does the way back to the scale of A
    tl.debug_barrier()


@triton.jit
def whole_kernel(
    A_ptr, H_ptr, tau_ptr, e_ptr, V_ptr, T_ptr, m, n, log_m,
    stride_ab, stride_am, stride_an,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """H, tau of A [m <= BM, n], one matrix a program.

    Scratch: e [B, n], the exponents of the columns; V [B, BM, BN], T [B, BN, BN] of a panel.
    """
    b = tl.program_id(0).to(tl.int64)
    k = tl.minimum(m, n)
    A_ptr += b * stride_ab
    H_ptr += b * m * n
    e_ptr += b * n
    i = tl.arange(0, BM)[:, None]
    for q in range(0, n, BC):
        c = q + tl.arange(0, BC)
        inside = (i < m) & (c[None, :] < n)
        A_ptrs = A_ptr + i.to(tl.int64) * stride_am + c.to(tl.int64)[None, :] * stride_an
        C = tl.load(A_ptrs, mask=inside, other=0.0)
        e = tl.minimum(tiles.exponent_of(tl.max(tl.abs(C), axis=0)) + log_m, 126)
        tl.store(e_ptr + c, e, mask=c < n)
        tl.store(H_ptr + i * n + c[None, :], C * tiles.power_of_two(-e)[None, :], mask=inside)
    tl.debug_barrier()
    start = 0
    for level in tl.static_range(LEVELS):
        # until half as many rows would do, or to the end
        stop = k if level == LEVELS - 1 else tl.minimum(k, m - (BM >> (level + 1)))
        for p in range(start, stop, BN):
            step(
                H_ptr + p * n + p, tau_ptr + b * k + p,
                V_ptr + b * BM * BN, T_ptr + b * BN * BN,
                m - p, n - p, n, BM >> level, BN, min(BR, BM >> level), BC, PRECISION,
            )  # fmt: skip
        start += tl.cdiv(tl.maximum(stop - start, 0), BN) * BN
    for q in range(0, n, BC):
        c = q + tl.arange(0, BC)
        upper = (i < m) & (i <= c[None, :]) & (c[None, :] < n)
        H_ptrs = H_ptr + i * n + c[None, :]
        e = tl.load(e_ptr + c, mask=c < n, other=0)
        R = tl.load(H_ptrs, mask=upper, other=0.0)
        tl.store(H_ptrs, R * tiles.power_of_two(e)[None, :], mask=upper)


@triton.jit
def tiny_kernel(
    A_ptr, H_ptr, tau_ptr, m, n, log_m,
    stride_ab, stride_am, stride_an, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """H, tau of A [m <= BM, n <= BN], which is a panel and nothing else: it stays in registers."""
    b = tl.program_id(0).to(tl.int64)
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < m) & (c < n)
    A_ptrs = A_ptr + b * stride_ab + i.to(tl.int64) * stride_am + c.to(tl.int64) * stride_an
    P = tl.load(A_ptrs, mask=inside, other=0.0)
    e = tl.max(tl.abs(P), axis=0, keep_dims=True)
    e = tl.minimum(tiles.exponent_of(e) + log_m, 126)
    k = tl.minimum(m, n)
    P, tau, _ = tiles.geqr2(P * tiles.power_of_two(-e), k, BM, BN, False, False)
    P = tl.where(i <= c, P * tiles.power_of_two(e), P)
    tl.store(H_ptr + b * m * n + i * n + c, P, mask=inside)
    tl.store(tau_ptr + b * k + c, tau, mask=c < k)


def pays(B, m, n, replayed):
    """Whether a kernel of this stage is faster than stage 6, which has a launch for every step.

    Measured on one H200, 2026-11-29, Triton 3.6, with 40 and 640 matrices of 32 to 512 rows. What
    the line is worth for 40 of 176 is in book/data/cases.json.
    """
    size = max(m, n)
    if B > 132:
        return size <= (96 if replayed else 192)
    return size <= (192 if replayed else 512)


def geqrf(A, *, precision="fp16x3", whole=None):
    """A = Q R in one launch where that pays, by stage 6 elsewhere. A: [B, m, n]. Returns QR.

    Args:
        precision: of the products; see tiles.product.
        whole: True or False for one launch (at most 512 rows, 2^22 columns) or stage 6, whatever
            pays.
    """
    B, m, n = A.shape
    BM = max(32, next_power_of_2(m))
    # one program has offsets of 32 bits in H
    if (
        BM not in TABLE
        or n > 1 << 22
        or not (pays(B, m, n, replayed=False) if whole is None else whole)
    ):
        return s06_update.geqrf(A, precision=precision)
    H, tau = A.new_empty(B, m, n), A.new_empty(B, min(m, n))
    if BM in TINY and n <= 32:
        tiny_kernel[(B,)](
            A, H, tau, m, n, half_log2(m), *A.stride(), BM=BM, BN=32, num_warps=TINY[BM]
        )
        return QR(H, tau)
    warps, bn, br, bc = TABLE[BM]
    V, T = A.new_empty(B, BM, bn), A.new_empty(B, bn, bn)
    whole_kernel[(B,)](
        A, H, tau, A.new_empty(B, n, dtype=torch.int32), V, T, m, n, half_log2(m), *A.stride(),
        BM=BM, BN=bn, BR=br, BC=bc, LEVELS=max(1, (BM // 128).bit_length()), PRECISION=precision,
        num_warps=warps, num_stages=1,
    )  # fmt: skip
    return QR(H, tau)
