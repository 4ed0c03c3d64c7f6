"""A wide panel mirror by mirror, by one program: what a certificate refused. Triton."""

import triton
import triton.language as tl

from qrlib import tiles
from qrlib.stages.s05_panel import panel_kernel
from qrlib.stages.s06_update import SMALL, gram_kernel, inner_products, join_kernel, subtract


@triton.jit
def fallback_kernel(
    H_ptr, tau_ptr, V_ptr, F_ptr, T_ptr, G_ptr, W_ptr, ok_ptr, m, lo,
    stride_hb, stride_hm, stride_vb, stride_vm, stride_fb, stride_fm, stride_tb, stride_taub,
    BM: tl.constexpr, BR: tl.constexpr, N0: tl.constexpr, NB: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A panel that has not stood, by Householder; others return. V: scratch.

    N0 columns of up to BM rows are in registers. With BM = 0 they live in memory and pass through
    BR rows at a time, once a mirror, as in `tall`.
    """
    b = tl.program_id(0).to(tl.int64)
    if tl.load(ok_ptr + b) == 0:
        own_H = H_ptr + b * stride_hb
        own_V = V_ptr + b * stride_vb
        own_T = T_ptr + b * stride_tb
        i, q = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
        narrow = tl.arange(0, N0)[None, :]
        square = tl.arange(0, NB)[:, None] * NB + q
        tl.store(own_T + square, tl.zeros([NB, NB], tl.float32))
        for r0 in range(0, m, BR):
            at = (r0 + i).to(tl.int64)
            zero = tl.zeros([BR, NB], tl.float32)
            tl.store(own_V + at * stride_vm + q, zero, mask=r0 + i < m)
        tl.debug_barrier()
        for p in range(0, NB, N0):
            if BM > 0:
                panel_kernel(
                    H_ptr + p * stride_hm + p, tau_ptr + p, V_ptr + p * stride_vm + p,
                    T_ptr + p * NB + p, m - p, N0,
                    stride_hb, stride_hm, stride_vb, stride_vm, stride_tb, NB, stride_taub,
                    BM, N0, False,
                )  # fmt: skip
            else:
                _narrow(
                    own_H + p * stride_hm + p, tau_ptr + b * stride_taub + p,
                    own_V + p * stride_vm + p, own_T + p * NB + p,
                    m - p, stride_hm, stride_vm, NB, BR, N0,
                )  # fmt: skip
            tl.debug_barrier()
            # the columns of the panel to its right
            c = N0 + q
            C_ptr, Vp = own_H + p * stride_hm + p, own_V + p * stride_vm + p
            W, X = inner_products(
                Vp, C_ptr, c, m - p, NB - p, N0, 0, stride_vm, stride_hm, BR, N0, NB, False,
                PRECISION,
            )  # fmt: skip
            T = tl.load(own_T + p * (NB + 1) + tl.arange(0, N0)[:, None] * NB + narrow)
            Z = tl.dot(tl.trans(T), W, input_precision=SMALL)
            subtract(
                Vp, Z, X, C_ptr, None, c, m - p, NB - p, N0, 0, 0, stride_vm, stride_hm,
                BR, N0, NB, False, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
        gram_kernel(
            V_ptr, F_ptr, W_ptr, m, NB, lo, m, stride_vb, stride_vm, stride_fb, stride_fm,
            BR, NB, TWO, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
        join_kernel(T_ptr, G_ptr, W_ptr, 1, stride_tb, NB, N0, TWO)


@triton.jit
def _narrow(
    H_ptr, tau_ptr, V_ptr, T_ptr, m, stride_hm, stride_vm, stride_tm,
    BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN columns in memory, mirror by mirror: a pass applies one and takes the sums of the next."""
    c, k, i = tl.arange(0, BN)[None, :], tl.arange(0, BN)[:, None], tl.arange(0, BR)[:, None]
    top = tl.zeros([1, BN], tl.float32)
    for r0 in range(0, m, BR):
        at = (r0 + i).to(tl.int64) * stride_hm + c
        P = tl.load(H_ptr + at, mask=r0 + i < m, other=0.0)
        top = tl.maximum(top, tl.max(tl.abs(P), axis=0, keep_dims=True))
    e = tiles.exponent_of(top)
    tau, T = tl.zeros([1, BN], tl.float32), tl.zeros([BN, BN], tl.float32)
    g, bits = tl.zeros([1, BN], tl.float32), tl.zeros([1, BN], tl.int32)
    for j in range(-1, BN):
        row = tiles.from_bits(bits)
        beta, scale, tau_j = tiles.larfg(tiles.at(row, c == j), tiles.at(g, c == j))
        z = row + scale * g
        if j >= 0:
            tau = tl.where(c == j, tau_j, tau)
            T = tiles.larft_column(T, z, tau_j, j, BN)
        g, bits = tl.zeros([1, BN], tl.float32), tl.zeros([1, BN], tl.int32)
        for r0 in range(0, m, BR):
            r = r0 + i
            at = r.to(tl.int64) * stride_hm + c
            P = tl.load(H_ptr + at, mask=r < m, other=0.0)
            if j >= 0:
                P = tiles.passed(P, beta, scale, tau_j, z, r, c, j)
            else:
                P *= tiles.power_of_two(-e)
            x = tl.sum(tl.where(c == j + 1, P, 0.0), axis=1, keep_dims=True)
            x = tl.where(r > j + 1, x, 0.0)
            g += tl.sum(x * P, axis=0, keep_dims=True)
            bits += tl.sum(tl.where(r == j + 1, tiles.bits_of(P), 0), axis=0, keep_dims=True)
            if j == BN - 1:
                V = tiles.unit_lower(P, r, c)
                tl.store(V_ptr + r.to(tl.int64) * stride_vm + c, V, mask=r < m)
                P = tl.where(r <= c, P * tiles.power_of_two(e), P)
            tl.store(H_ptr + at, P, mask=r < m)
        tl.debug_barrier()
    tl.store(tau_ptr + c, tau)
    tl.store(T_ptr + k * stride_tm + c, T)
