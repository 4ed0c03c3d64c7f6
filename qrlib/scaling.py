"""Columns brought near 1, and back: A S with S = diag of powers of two, and R S^-1, both exact.

QR of A S has the V and tau of QR of A, and R S. With every column at most 1 long, nothing that
follows can leave the range of float32, and a pair of float16 numbers keeps the digits of an entry.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles

BR, BC = 64, 64


@triton.jit
def scale_kernel(
    A_ptr, H_ptr, e_ptr, m, n, log_m,
    stride_ab, stride_am, stride_an, stride_hb, stride_hm,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """H <- A 2^-e, e [B, n] such that no column of H is longer than 1. BC columns a program."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    r = tl.arange(0, BR)[:, None]
    A_ptrs = A_ptr + b * stride_ab + c.to(tl.int64)[None, :] * stride_an
    top = tl.zeros([BR, BC], tl.float32)
    for r0 in range(0, m, BR):
        i = (r0 + r).to(tl.int64)
        a = tl.load(A_ptrs + i * stride_am, mask=(i < m) & (c[None, :] < n), other=0.0)
        top = tl.maximum(top, tl.abs(a), tl.PropagateNan.ALL)
    e = tl.minimum(tiles.exponent_of(tl.max(top, axis=0)) + log_m, 126)
    tl.store(e_ptr + b * n + c, e, mask=c < n)
    for r0 in range(0, m, BR):
        i = (r0 + r).to(tl.int64)
        inside = (i < m) & (c[None, :] < n)
        a = tl.load(A_ptrs + i * stride_am, mask=inside, other=0.0)
        H_ptrs = H_ptr + b * stride_hb + i * stride_hm + c[None, :]
        tl.store(H_ptrs, a * tiles.power_of_two(-e)[None, :], mask=inside)


@triton.jit
def unscale_kernel(
    H_ptr, e_ptr, m, n, stride_hb, stride_hm, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """R <- R 2^e, on and above the diagonal. A program a tile; those below end at once."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    i = tl.program_id(2) * BR + tl.arange(0, BR)[:, None]
    if tl.program_id(2) * BR < (tl.program_id(1) + 1) * BC:
        e = tl.load(e_ptr + b * n + c, mask=c < n, other=0)
        H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm + c
        upper = (i <= c) & (i < m) & (c < n)
        h = tl.load(H_ptrs, mask=upper, other=0.0)
        tl.store(H_ptrs, h * tiles.power_of_two(e), mask=upper)


def half_log2(m):
    """h with 2^h >= sqrt(m): entries of at most 2^-h make a column of at most 1."""
    return (max(m - 1, 0).bit_length() + 1) // 2


def scaled(A):
    """(H, e): H = A 2^-e column by column, row-major, none longer than 1; e: [B, n], int32."""
    B, m, n = A.shape
    H = A.new_empty(B, m, n)
    e = A.new_empty(B, n, dtype=torch.int32)
    grid = (B, triton.cdiv(n, BC))
    scale_kernel[grid](A, H, e, m, n, half_log2(m), *A.stride(), *H.stride()[:2], BR=BR, BC=BC)
    return H, e


def unscale(H, e):
    """R <- R 2^e, in place."""
    B, m, n = H.shape
    grid = (B, triton.cdiv(n, BC), triton.cdiv(min(m, n), BR))
    unscale_kernel[grid](H, e, m, n, *H.stride()[:2], BR=BR, BC=BC)
