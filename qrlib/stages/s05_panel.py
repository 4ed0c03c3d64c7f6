"""Stage 5, the panel stays on the chip: read once, factored, V and T leave with it. Triton.

One program has one matrix. A panel that fits is held in registers from the first mirror to the
last; a taller one is walked through in slices, once a column, each slice updated and its part of
the next column's inner products taken in the same visit. Loop and update are those of stage 3.
"""

import triton
import triton.language as tl

from qrlib import tiles
from qrlib.stages.s03_blocked import right_looking, update

NB = 16
# rows of a register tile of 16 columns: (warps, unrolled), measured on one H200, 2026-11-29, Triton
# 3.6, with 640 matrices up to 512 rows, 60 of 1024 and 8 of 2048; taller panels go in slices
TABLE = {
    64: (1, False),
    128: (2, False),
    256: (4, True),
    512: (4, True),
    1024: (8, True),
    2048: (16, True),
}
SLICE = 512


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
    V = tiles.unit_lower(P, i, c)
    tl.store(H_ptrs, tl.where(i <= c, P * tiles.power_of_two(e), P), mask=inside)
    tl.store(V_ptr + b * stride_vb + i * stride_vm + c, V, mask=inside)
    tl.store(tau_ptr + b * stride_taub + c, tau, mask=c < nb)
    _store_t(T_ptr + b * stride_tb, stride_tm, T, nb, BN)


@triton.jit
def _store_t(T_ptr, stride, T, nb, BN: tl.constexpr):
    r, c = tl.arange(0, BN)[:, None], tl.arange(0, BN)[None, :]
    tl.store(T_ptr + r * stride + c, T, mask=(r < nb) & (c < nb))


@triton.jit
def _slice(ptr, i, c, m, nb, stride):
    """Pointers and mask of rows i, columns c of a panel."""
    return ptr + i.to(tl.int64) * stride + c, (i < m) & (c < nb)


@triton.jit
def tall_panel_kernel(
    H_ptr, tau_ptr, V_ptr, T_ptr,
    m, nb,
    stride_hb, stride_hm, stride_vb, stride_vm, stride_tb, stride_tm, stride_taub,
    BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The same for any m: the panel lives in V, and BR rows of it at a time in registers."""
    b = tl.program_id(0).to(tl.int64)
    H_ptr += b * stride_hb
    V_ptr += b * stride_vb
    rows, c = tl.arange(0, BR)[:, None], tl.arange(0, BN)[None, :]
    top = tl.zeros([BR, BN], tl.float32)
    for r0 in range(0, m, BR):
        ptrs, inside = _slice(H_ptr, r0 + rows, c, m, nb, stride_hm)
        top = tl.maximum(top, tl.abs(tl.load(ptrs, mask=inside, other=0.0)), tl.PropagateNan.ALL)
    e = tiles.exponent_of(tl.max(top, axis=0, keep_dims=True))
    # the slices' products with column 0; summed over the rows once, when all slices are in
    products = tl.zeros([BR, BN], tl.float32)
    for r0 in range(0, m, BR):
        i = r0 + rows
        ptrs, inside = _slice(H_ptr, i, c, m, nb, stride_hm)
        P = tl.load(ptrs, mask=inside, other=0.0) * tiles.power_of_two(-e)
        ptrs, inside = _slice(V_ptr, i, c, m, nb, stride_vm)
        tl.store(ptrs, P, mask=inside)
        column = tl.sum(tl.where(c == 0, P, 0.0), axis=1, keep_dims=True)
        products += tl.where(i > 0, column, 0.0) * P
    tau = tl.zeros([1, BN], tl.float32)
    T = tl.zeros([BN, BN], tl.float32)
    for j in range(nb):
        # what this program stored it loads again: all of its threads must have stored
        tl.debug_barrier()
        g = tl.sum(products, axis=0, keep_dims=True)
        row = tl.load(V_ptr + j * stride_vm + c, mask=c < nb, other=0.0)
        beta, scale, tau_j = tiles.larfg(tiles.at(row, c == j), tiles.at(g, c == j))
        z = row + scale * g
        T = tiles.larft_column(T, z, tau_j, j, BN)
        tau = tl.where(c == j, tau_j, tau)
        w = tau_j * tl.where(c > j, z, 0.0)
        products = tl.zeros([BR, BN], tl.float32)
        # and none may store before all have loaded row j
        tl.debug_barrier()
        for r0 in range(j // BR * BR, m, BR):
            i = r0 + rows
            ptrs, inside = _slice(V_ptr, i, c, m, nb, stride_vm)
            P = tl.load(ptrs, mask=inside, other=0.0)
            column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)
            v = tl.where(i > j, scale * column, tl.where(i == j, 1.0, 0.0))
            stored = tl.where(i > j, v, tl.where(i == j, beta, column))
            P = tl.where(c == j, stored, P - v * w)
            tl.store(ptrs, P, mask=inside)
            column = tl.sum(tl.where(c == j + 1, P, 0.0), axis=1, keep_dims=True)
            products += tl.where(i > j + 1, column, 0.0) * P
    tl.debug_barrier()
    for r0 in range(0, m, BR):
        i = r0 + rows
        ptrs, inside = _slice(V_ptr, i, c, m, nb, stride_vm)
        P = tl.load(ptrs, mask=inside, other=0.0)
        tl.store(ptrs, tiles.unit_lower(P, i, c), mask=inside)
        ptrs, inside = _slice(H_ptr, i, c, m, nb, stride_hm)
        tl.store(ptrs, tl.where(i <= c, P * tiles.power_of_two(e), P), mask=inside)
    tl.store(tau_ptr + b * stride_taub + c, tau, mask=c < nb)
    _store_t(T_ptr + b * stride_tb, stride_tm, T, nb, BN)


def launch(H, tau, V, T):
    """Factor panels H [B, m, nb] in place; write tau [B, nb], V [B, m, nb] and T [B, nb, nb].

    All may be views, with columns next to each other.
    """
    B, m, nb = H.shape
    strides = (*H.stride()[:2], *V.stride()[:2], *T.stride()[:2], tau.stride(0))
    BM = max(min(TABLE), triton.next_power_of_2(m))
    if BM in TABLE:
        warps, unroll = TABLE[BM]
        panel_kernel[(B,)](
            H, tau, V, T, m, nb, *strides, BM=BM, BN=NB, UNROLL=unroll, num_warps=warps
        )
    else:
        tall_panel_kernel[(B,)](H, tau, V, T, m, nb, *strides, BR=SLICE, BN=NB, num_warps=32)


def panel(H, tau):
    """Factor a panel of at most 16 columns in one launch and give its block reflector.

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
