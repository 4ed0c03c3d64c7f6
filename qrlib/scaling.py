"""Columns brought near 1, and back: A S with S = diag of powers of two, and R S^-1, both exact.

QR of A S has the V and tau of QR of A, and R S. With every column at most 1 long, nothing that
follows can leave the range of float32, and a pair of float16 numbers keeps the digits of an entry.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles

# registers of 8 and of 16 warps hold this many numbers of a matrix, so that it is read once; of
# fewer than 32 columns in the smaller one, rows are too short for memory. Chosen by hand on one
# H200, 2026-11-30, Triton 3.6; again: python -m qrlib.bench --case 2 3 4 --profile --replay
TILE, LARGE_TILE = 1 << 14, 1 << 15


@triton.jit
def scale_kernel(
    A_ptr, H_ptr, e_ptr, flat_ptr, m, n, log_m, spike,
    stride_ab, stride_am, stride_an, stride_hb, stride_hm, stride_eb, stride_flat,
    BR: tl.constexpr, BC: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """H <- A 2^-e, e [B, n] such that no column of H is longer than 1. BC columns a program.

    flat [B, programs of a matrix], where not None: 1 where m |a|_2^2 <= spike^2 |a|_1^2 for each
    column a of a program, else 0.
    ONCE: a tile has all rows, and stays; else A is read twice.
    """
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    r = tl.arange(0, BR)[:, None]
    A_ptrs = A_ptr + b * stride_ab + c.to(tl.int64) * stride_an
    H_ptrs = H_ptr + b * stride_hb + c
    if ONCE:
        i = r.to(tl.int64)
        a = tl.load(A_ptrs + i * stride_am, mask=(r < m) & (c < n), other=0.0)
        e = _exponents(tl.abs(a), log_m)
        a *= tiles.power_of_two(-e)
        tl.store(H_ptrs + i * stride_hm, a, mask=(r < m) & (c < n))
        if flat_ptr is not None:
            sums, squares = _sums(a)
    else:
        top = tl.zeros([BR, BC], tl.float32)
        for r0 in range(0, m, BR):
            i = (r0 + r).to(tl.int64)
            a = tl.load(A_ptrs + i * stride_am, mask=(i < m) & (c < n), other=0.0)
            top = tl.maximum(top, tl.abs(a), tl.PropagateNan.ALL)
        e = _exponents(top, log_m)
        sums, squares = tl.zeros([1, BC], tl.float32), tl.zeros([1, BC], tl.float32)
        for r0 in range(0, m, BR):
            i = (r0 + r).to(tl.int64)
            a = tl.load(A_ptrs + i * stride_am, mask=(i < m) & (c < n), other=0.0)
            a *= tiles.power_of_two(-e)
            tl.store(H_ptrs + i * stride_hm, a, mask=(i < m) & (c < n))
            if flat_ptr is not None:
                more_sums, more_squares = _sums(a)
                sums += more_sums
                squares += more_squares
    tl.store(e_ptr + b * stride_eb + c, e, mask=c < n)
    if flat_ptr is not None:
        # not (>): a NaN is not flat
        spiky = (m * squares <= spike * spike * sums * sums) == 0
        flat = tl.where(tl.sum(spiky.to(tl.int32)) == 0, 1, 0)
        tl.store(flat_ptr + b * stride_flat + tl.program_id(1), flat)


@triton.jit
def _sums(a):
    """[1, BC]: of the absolute values in a column, and of their squares."""
    return (
        tl.sum(tl.abs(a), axis=0, keep_dims=True),
        tl.sum(a * a, axis=0, keep_dims=True),
    )


@triton.jit
def _exponents(top, log_m):
    """[1, BC] of a tile of absolute values."""
    return tl.minimum(tiles.exponent_of(tl.max(top, axis=0, keep_dims=True)) + log_m, 126)


@triton.jit
def unscale_kernel(
    H_ptr, e_ptr, n, k, stride_hb, stride_hm, NB: tl.constexpr
):  # fmt: skip
    """R <- R 2^e in the NB x NB blocks on the diagonal of the first k columns."""
    b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * NB
    i, c = first + tl.arange(0, NB)[:, None], first + tl.arange(0, NB)[None, :]
    upper = (i <= c) & (c < k)
    H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm + c
    e = tl.load(e_ptr + b * n + c, mask=c < k, other=0)
    tl.store(H_ptrs, tl.load(H_ptrs, mask=upper, other=0.0) * tiles.power_of_two(e), mask=upper)


def cdiv(a, b):
    """a / b, rounded up. Triton's own, on the host, takes 3 us, and a launch asks several times."""
    return -(-a // b)


def next_power_of_2(n):
    return 1 << max(n - 1, 0).bit_length()


def half_log2(m):
    """h with 2^h >= sqrt(m): entries of at most 2^-h make a column of at most 1."""
    return (max(m - 1, 0).bit_length() + 1) // 2


def tile(m):
    """(rows, columns, warps) of a tile of `scale_kernel` for columns of m."""
    BR = max(32, next_power_of_2(m))
    if BR * 8 > LARGE_TILE:
        return 64, 64, 4
    if BR * 32 > TILE:
        return BR, LARGE_TILE // BR, 16
    return BR, min(64, TILE // BR), 8 if BR * 64 >= TILE else 4


def scaled(A):
    """(H, e): H = A 2^-e column by column, row-major, none longer than 1; e: [B, n], int32."""
    H, e = A.new_empty(A.shape), A.new_empty(A.shape[0], A.shape[2], dtype=torch.int32)
    scale(A, H, e)
    return H, e


def flags(A):
    """Memory for what `scale` says of a batch: [B, parts], int32."""
    B, m, n = A.shape
    return A.new_empty(B, cdiv(n, tile(m)[1]), dtype=torch.int32)


def scale(A, H, e, flat=None, spike=0.0, columns=None):
    """Write H and e of `scaled`, and which matrices have no spikes.

    Args:
        flat: None, or `flags`: written; 1 in each part of a matrix where sqrt(m) |a|_2 is at most
            `spike` times |a|_1 for all its columns a, which is 1.25 for normal numbers.
        columns: (first, end) of those that are written, all when None; parts begin with both.
    """
    m, n = A.shape[1:]
    BR, BC, warps = tile(m)
    first, end = columns or (0, n)
    A, H, e = A[..., first:end], H[..., first:end], e[:, first:end]
    if flat is not None:
        flat = flat[:, first // BC :]
    scale_kernel[(A.shape[0], cdiv(end - first, BC))](
        A, H, e, flat, m, end - first, half_log2(m), spike, *A.stride(), *H.stride()[:2],
        e.stride(0), 0 if flat is None else flat.stride(0),
        BR=BR, BC=BC, ONCE=BR >= m, num_warps=warps,
    )  # fmt: skip


def unscale(H, e, nb):
    """R <- R 2^e, in place, in the nb x nb blocks on the diagonal, as far as column min(m, n)."""
    B, m, n = H.shape
    k = min(m, n)
    unscale_kernel[(B, cdiv(k, nb))](H, e, n, k, *H.stride()[:2], NB=nb)
