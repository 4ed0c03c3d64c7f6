"""Stage 5, the panel stays on the chip: read once, factored, V and T leave with it. Triton.

One program has one matrix, and its panel stays in registers from the first mirror to the last. The
rows of a taller panel are shared out, and a launch ends with every column, for that is how programs
wait for one another. Loop and update are those of stage 3.
"""

import triton
import triton.language as tl

from qrlib import tiles
from qrlib.scaling import cdiv, next_power_of_2
from qrlib.stages.s03_blocked import right_looking, update

NB = 16
# rows of a register tile of 16 columns: (warps, unrolled), measured on one H200, 2026-11-29, Triton
# 3.6, with 640 matrices up to 512 rows, 60 of 1024 and 8 of 2048. That 256 rows are a loop, for its
# shorter code, was not timed. Taller panels go in slices
TABLE = {
    64: (1, False),
    128: (2, False),
    256: (4, False),
    512: (4, True),
    1024: (8, True),
    2048: (16, True),
}
# rows that a program has of a taller panel
SLICE = 256


@triton.jit
def panel_kernel(
    H_ptr, tau_ptr, V_ptr, T_ptr,
    m, nb,
    stride_hb, stride_hm, stride_vb, stride_vm, stride_tb, stride_tm, stride_taub,
    BM: tl.constexpr, BN: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """H <- compact, tau, V and T of a panel of m <= BM rows and nb <= BN columns, in registers."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BM)[:, None]
    c = tl.arange(0, BN)[None, :]
    inside = (i < m) & (c < nb)
    H_ptrs = H_ptr + b * stride_hb + i * stride_hm + c
    P = tl.load(H_ptrs, mask=inside, other=0.0)  # [BM, BN]
    e = tiles.exponent_of(tl.max(tl.abs(P), axis=0, keep_dims=True))
    P, tau, T = tiles.geqr2(P * tiles.power_of_two(-e), nb, BM, BN, UNROLL)
    tl.store(H_ptrs, tl.where(i <= c, P * tiles.power_of_two(e), P), mask=inside)
    V = tiles.unit_lower(P, i, c)
    tl.store(V_ptr + b * stride_vb + i * stride_vm + c, V, mask=inside)
    tl.store(tau_ptr + b * stride_taub + c, tau, mask=c < nb)
    _store_t(T_ptr + b * stride_tb, stride_tm, T, nb, BN)


@triton.jit
def _store_t(T_ptr, stride, T, nb, BN: tl.constexpr):
    r, c = tl.arange(0, BN)[:, None], tl.arange(0, BN)[None, :]
    tl.store(T_ptr + r * stride + c, T, mask=(r < nb) & (c < nb))


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
        column = tl.sum(tl.where(c == d, P, 0.0), axis=1, keep_dims=True)
        v = tl.where(i > d, scale * column, tl.where(i == d, 1.0, 0.0))
        stored = tl.where(i > d, v, tl.where(i == d, beta, column))
        P = tl.where(c == d, stored, P - v * (tau_d * tl.where(c > d, z, 0.0)))
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


def launch(H, tau, V, T):
    """Factor panels H [B, m, nb] in place; write tau [B, nb], V [B, m, nb] and T [B, nb, nb].

    All may be views, with columns next to each other.
    """
    B, m, nb = H.shape
    strides = (*H.stride()[:2], *V.stride()[:2], *T.stride()[:2], tau.stride(0))
    BM = max(min(TABLE), next_power_of_2(m))
    # its offsets are of 32 bits: those of 64 take twice the registers, for as long as it runs
    if BM in TABLE and BM * H.stride(1) < 2**31:
        warps, unroll = TABLE[BM]
        panel_kernel[(B,)](
            H, tau, V, T, m, nb, *strides, BM=BM, BN=NB, UNROLL=unroll, num_warps=warps
        )
        return
    slices = cdiv(m, SLICE)
    tops, sums, row = (H.new_empty(x) for x in (B * slices * NB, 2 * B * slices * NB, 2 * B * NB))
    grid, shape = (B, slices), {"BR": SLICE, "BN": NB, "num_warps": 4}
    tops_kernel[grid](H, tops, m, nb, *H.stride()[:2], **shape)
    for j in range(nb + 1):
        column_kernel[grid](
            H, tau, V, T, tops, sums, row, j, m, nb, *strides,
            FIRST=j == 0, LAST=j == nb, **shape,
        )  # fmt: skip


def panel(H, tau):
    """Factor a panel of at most 16 columns and give its block reflector.

    One launch up to 2048 rows, one a column, and two, beyond.

    Args:
        H: [B, m, b], a view with unit column stride; overwritten. tau: [B, b], overwritten.

    Returns:
        V: [B, m, b], unit lower trapezoidal. T: [B, b, b], upper triangular.
    """
    B, m, b = H.shape
    V, T = H.new_empty(B, m, b), H.new_empty(B, b, b)
    launch(H, tau, V, T)
    return V, T


def geqrf(A, *, nb=NB):
    """A = Q R by panels of nb <= 16 columns, a launch each. A: [B, m, n]. Returns QR(H, tau)."""
    return right_looking(A, nb, panel, update)
