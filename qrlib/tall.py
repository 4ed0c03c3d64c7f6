"""Panels taller than a tile: their rows are shared out, and programs have to meet at every column.

Two ways to meet. Where all programs of all panels are on the chip at once, they wait for one
another on a counter, and a panel is one launch. Elsewhere a launch ends with every column. Triton.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.scaling import cdiv, next_power_of_2

# rows that a program has of a panel: where a launch is a column, and where all meet in one launch.
# The first of these with which all are on the chip at once. On one H200, 2026-11-29, Triton 3.6,
# 128 were faster than 256, and launches faster than 512; what each height takes now is in
# book/data/panel_heights.json
SLICE = 256
SLICES = (128, 256)


@triton.jit
def tops_kernel(
    H_ptr, tops_ptr, m, nb, stride_hb, stride_hm, BR: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """tops [B, slices, BN]: the largest of each column of a panel, in slices of BR rows."""
    b, slice = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = slice * BR + tl.arange(0, BR)[:, None]
    c = tl.arange(0, BN)[None, :]
    H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm + c
    P = tl.load(H_ptrs, mask=(i < m) & (c < nb), other=0.0)
    top = tl.max(tl.abs(P), axis=0, keep_dims=True)
    tl.store(tops_ptr + (b * tl.num_programs(1) + slice) * BN + c, top)


@triton.jit
def _over_slices(ptr, slices, MAX: tl.constexpr, BN: tl.constexpr):
    """The sums, or maxima, of what the slices of a panel left in ptr [slices, BN]. [1, BN]"""
    s, c = tl.arange(0, 32)[:, None], tl.arange(0, BN)[None, :]
    found = tl.zeros([32, BN], tl.float32)
    for s0 in range(0, slices, 32):
        x = tl.load(ptr + (s0 + s) * BN + c, mask=s0 + s < slices, other=0.0)
        found = tl.maximum(found, x, tl.PropagateNan.ALL) if MAX else found + x
    if MAX:
        return tl.max(found, axis=0, keep_dims=True)
    return tl.sum(found, axis=0, keep_dims=True)


@triton.jit(do_not_specialize=["j"])
def column_kernel(
    H_ptr, tau_ptr, V_ptr, T_ptr, tops_ptr, sums_ptr, row_ptr,
    j, m, nb,
    stride_hb, stride_hm, stride_vb, stride_vm, stride_tb, stride_tm, stride_taub,
    BR: tl.constexpr, BN: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """A slice of a panel after mirror j - 1, and its share of what mirror j has to know.

    The panel lives in H. Scratch that one launch writes and the next reads: sums [2, B, slices, BN]
    and row [2, B, BN], the slices' products with column j, and row j; tops from tops_kernel.
    """
    b, slice, slices = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = slice * BR + tl.arange(0, BR)[:, None]
    c, k = tl.arange(0, BN)[None, :], tl.arange(0, BN)[:, None]
    inside = (i < m) & (c < nb)
    H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm + c
    T_ptrs = T_ptr + b * stride_tb + k * stride_tm + c
    square = (k < nb) & (c < nb)
    batch = tl.num_programs(0).to(tl.int64)
    # one half is read while the other is written
    before, now = (j + 1) % 2 * batch + b, j % 2 * batch + b
    P = tl.load(H_ptrs, mask=inside, other=0.0)  # [BR, BN]
    if FIRST or LAST:
        top = _over_slices(tops_ptr + b * slices * BN, slices, True, BN)
        e = tiles.exponent_of(top)
    if FIRST:
        P *= tiles.power_of_two(-e)
        if slice == 0:
            tl.store(T_ptrs, tl.zeros([BN, BN], tl.float32), mask=square)
    else:
        g = _over_slices(sums_ptr + before * slices * BN, slices, False, BN)
        row = tl.load(row_ptr + before * BN + c)
        d = j - 1
        beta, scale, tau_d = tiles.larfg(tiles.at(row, c == d), tiles.at(g, c == d))
        z = row + scale * g
        P = tiles.passed(P, beta, scale, tau_d, z, i, c, d)
        if slice == 0:
            T = tl.load(T_ptrs, mask=square, other=0.0)
            tl.store(T_ptrs, tiles.larft_column(T, z, tau_d, d, BN), mask=square)
            tl.store(tau_ptr + b * stride_taub + c, tau_d, mask=c == d)
    if LAST:
        tl.store(H_ptrs, tl.where(i <= c, P * tiles.power_of_two(e), P), mask=inside)
        V_ptrs = V_ptr + b * stride_vb + i.to(tl.int64) * stride_vm + c
        tl.store(V_ptrs, tiles.unit_lower(P, i, c), mask=inside)
    else:
        tl.store(H_ptrs, P, mask=inside)
        column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)
        g = tl.sum(tl.where(i > j, column, 0.0) * P, axis=0, keep_dims=True)
        tl.store(sums_ptr + (now * slices + slice) * BN + c, g)
        tl.store(row_ptr + now * BN + c + 0 * i, P, mask=i == j)


@triton.jit
def _meet(count_ptr, all_here):
    """Wait until `all_here` arrivals have been counted; what each wrote before is seen after."""
    tl.debug_barrier()
    here = tl.atomic_add(count_ptr, 1, sem="acq_rel", scope="gpu") + 1
    while here < all_here:
        here = tl.atomic_add(count_ptr, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def together_kernel(
    H_ptr, tau_ptr, V_ptr, T_ptr, sums_ptr, row_ptr, count_ptr,
    m, nb,
    stride_hb, stride_hm, stride_vb, stride_vm, stride_tb, stride_tm, stride_taub,
    BR: tl.constexpr, BN: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """A slice of BR rows stays in registers for all mirrors; SP >= slices, a power of two.

    Scratch: sums [2, B, slices, BN], row [2, B, BN]; count [B], zero. All programs must run at
    once, or those that do would wait for ever: the launch has to be a cooperative one.
    """
    b, slice, slices = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = slice * BR + tl.arange(0, BR)[:, None]
    c, k = tl.arange(0, BN)[None, :], tl.arange(0, BN)[:, None]
    inside = (i < m) & (c < nb)
    H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm + c
    batch = tl.num_programs(0).to(tl.int64)
    s = tl.arange(0, SP)[:, None]
    count_ptr += b
    P = tl.load(H_ptrs, mask=inside, other=0.0)  # [BR, BN]
    # one half is read while the other is written: what mirror j reads, j + 2 writes again
    half = sums_ptr + (batch + b) * slices * BN
    tl.store(half + slice * BN + c, tl.max(tl.abs(P), axis=0, keep_dims=True))
    _meet(count_ptr, slices)
    tops = tl.load(half + s * BN + c, mask=s < slices, other=0.0)
    e = tiles.exponent_of(tl.max(tops, axis=0, keep_dims=True))
    P *= tiles.power_of_two(-e)
    tau, T = tl.zeros([1, BN], tl.float32), tl.zeros([BN, BN], tl.float32)
    for j in range(nb):
        at = j % 2 * batch + b
        half, row_ptrs = sums_ptr + at * slices * BN, row_ptr + at * BN + c
        column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)
        x = tl.where(i > j, column, 0.0)
        tl.store(half + slice * BN + c, tl.sum(x * P, axis=0, keep_dims=True))
        tl.store(row_ptrs + 0 * i, P, mask=i == j)
        _meet(count_ptr, (j + 2) * slices)
        g = tl.sum(tl.load(half + s * BN + c, mask=s < slices, other=0.0), axis=0, keep_dims=True)
        P, tau, T = tiles.reflect(P, tau, T, column, tl.load(row_ptrs), g, i, j, BN)
    tl.store(H_ptrs, tl.where(i <= c, P * tiles.power_of_two(e), P), mask=inside)
    V_ptrs = V_ptr + b * stride_vb + i.to(tl.int64) * stride_vm + c
    tl.store(V_ptrs, tiles.unit_lower(P, i, c), mask=inside)
    if slice == 0:
        tl.store(tau_ptr + b * stride_taub + c, tau, mask=c < nb)
        T_ptrs = T_ptr + b * stride_tb + k * stride_tm + c
        tl.store(T_ptrs, T, mask=(k < nb) & (c < nb))


def slice_at_once(B, m, device):
    """Rows of a slice with which all programs of B panels are on the chip at once, or None.

    An SM for each is more than they need. Where programs run one after another, there is none.
    """
    if device.type != "cuda":
        return None
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return next((rows for rows in SLICES if B * cdiv(m, rows) <= sms), None)


def launch(H, tau, V, T, BN, rows):
    """Factor panels H [B, m, nb] in place; write tau [B, nb], V [B, m, nb] and T [B, nb, nb].

    One launch, and one that clears a counter, given `slice_at_once`; else one a column, and two.
    All may be views, with columns next to each other. nb <= BN columns.
    """
    B, m, nb = H.shape
    strides = (*H.stride()[:2], *V.stride()[:2], *T.stride()[:2], tau.stride(0))
    slices = cdiv(m, rows or SLICE)
    sums, row = H.new_empty(2 * B * slices * BN), H.new_empty(2 * B * BN)
    grid, shape = (B, slices), {"BR": rows or SLICE, "BN": BN, "num_warps": 4}
    if rows:
        count = torch.zeros(B, dtype=torch.int32, device=H.device)
        together_kernel[grid](
            H, tau, V, T, sums, row, count, m, nb, *strides,
            SP=next_power_of_2(slices), launch_cooperative_grid=True, **shape,
        )  # fmt: skip
        return
    tops = H.new_empty(B * slices * BN)
    tops_kernel[grid](H, tops, m, nb, *H.stride()[:2], **shape)
    for j in range(nb + 1):
        column_kernel[grid](
            H, tau, V, T, tops, sums, row, j, m, nb, *strides,
            FIRST=j == 0, LAST=j == nb, **shape,
        )  # fmt: skip
