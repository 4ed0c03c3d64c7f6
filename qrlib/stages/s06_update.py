"""Stage 6, the update in one launch, W = V^T C, Z = T^T W, C -= V Z, and panels in panels. Triton.

A wide panel is factored as narrow ones that update only its own rest, so what lies to its right is
read for every 64 columns and not for every 16. Products go to tensor cores, their precision named.
Where a batch is too small to fill the chip the rows are shared out, and W is summed on the way.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.compact import QR
from qrlib.scaling import scaled, unscale
from qrlib.stages import s05_panel

# columns of a wide and a narrow panel; rows and columns of a tile of the update
NB, N0 = 64, 16
BR, BC = 64, 64
# of the small products with T, which may be larger than 1: no float16. In "ieee" a product of
# 64 x 64 tiles is 2,000 multiply-adds a thread, and their registers spill
SMALL = tl.constexpr("tf32x3")


@triton.jit
def _load(ptr, i, c, m, n, stride):
    return tl.load(ptr + i * stride + c, mask=(i < m) & (c < n), other=0.0)


@triton.jit
def inner_products(
    V_ptr, C_ptr, c, m, n, nb, stride_vm, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W = V^T C over m rows, for columns c of C. [NB, BC]"""
    i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    W = tl.zeros([NB, BC], tl.float32)
    for r0 in range(0, m, BR):
        V = _load(V_ptr, i, k, m - r0, nb, stride_vm)  # [BR, NB]
        C = _load(C_ptr, i, c, m - r0, n, stride_cm)  # [BR, BC]
        W += tiles.dot(tl.trans(V), C, PRECISION)
        # the pointers walk, so that offsets stay small where a matrix is larger than 2^31
        V_ptr += BR * stride_vm
        C_ptr += BR * stride_cm
    return W


@triton.jit
def subtract(
    V_ptr, T_ptr, W, C_ptr, c, m, n, nb, stride_vm, stride_tm, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C <- C - V T^T W for m rows."""
    i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)
    T = _load(T_ptr, k[:, None], k[None, :], nb, nb, stride_tm)
    Z = tl.dot(tl.trans(T), W, input_precision=SMALL)
    # where columns of V are nearly dependent T is large, and so is Z, which dot wants below 1
    e = tl.maximum(tiles.exponent_of(tl.max(tl.abs(Z))), 0)
    Z *= tiles.power_of_two(-e)
    for r0 in range(0, m, BR):
        V = _load(V_ptr, i, k[None, :], m - r0, nb, stride_vm)
        C = _load(C_ptr, i, c, m - r0, n, stride_cm)
        C -= tiles.dot(V, Z, PRECISION) * tiles.power_of_two(e)
        tl.store(C_ptr + i * stride_cm + c, C, mask=(i < m - r0) & (c < n))
        V_ptr += BR * stride_vm
        C_ptr += BR * stride_cm


@triton.jit
def update_kernel(
    V_ptr, T_ptr, C_ptr, m, n, nb,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C <- C - V T^T V^T C for BC columns of one matrix: C is read twice and written once."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    V_ptr += b * stride_vb
    C_ptr += b * stride_cb
    W = inner_products(V_ptr, C_ptr, c, m, n, nb, stride_vm, stride_cm, BR, NB, BC, PRECISION)
    subtract(
        V_ptr, T_ptr + b * stride_tb, W, C_ptr, c, m, n, nb, stride_vm, stride_tm, stride_cm,
        BR, NB, BC, PRECISION,
    )  # fmt: skip


@triton.jit
def share_kernel(
    V_ptr, C_ptr, W_ptr, m, n, nb, rows, stride_vb, stride_vm, stride_cb, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W [B, shares, NB, n]: each program's share of V^T C, from `rows` rows."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    begin = tl.program_id(2).to(tl.int64) * rows
    W = inner_products(
        V_ptr + b * stride_vb + begin * stride_vm, C_ptr + b * stride_cb + begin * stride_cm, c,
        tl.minimum(rows, (m - begin).to(tl.int32)), n, nb, stride_vm, stride_cm,
        BR, NB, BC, PRECISION,
    )  # fmt: skip
    share = b * tl.num_programs(2) + tl.program_id(2)
    k = tl.arange(0, NB)[:, None]
    tl.store(W_ptr + (share * NB + k) * n + c, W, mask=c < n)


@triton.jit
def _sum_shares(W_ptr, b, c, n, shares, NB: tl.constexpr, BC: tl.constexpr):
    k = tl.arange(0, NB)[:, None]
    W = tl.zeros([NB, BC], tl.float32)
    for share in range(shares):
        W += tl.load(W_ptr + ((b * shares + share) * NB + k) * n + c, mask=c < n, other=0.0)
    return W


@triton.jit
def subtract_kernel(
    V_ptr, T_ptr, W_ptr, C_ptr, m, n, nb, rows,
    stride_vb, stride_vm, stride_tb, stride_tm, stride_cb, stride_cm,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C <- C - V T^T W for `rows` rows, with W the sum of the shares."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    W = _sum_shares(W_ptr, b, c, n, tl.num_programs(2), NB, BC)
    begin = tl.program_id(2).to(tl.int64) * rows
    subtract(
        V_ptr + b * stride_vb + begin * stride_vm, T_ptr + b * stride_tb, W,
        C_ptr + b * stride_cb + begin * stride_cm, c, tl.minimum(rows, (m - begin).to(tl.int32)),
        n, nb, stride_vm, stride_tm, stride_cm, BR, NB, BC, PRECISION,
    )  # fmt: skip


@triton.jit
def join_kernel(T_ptr, W_ptr, G_ptr, nb, shares, NB: tl.constexpr, N0: tl.constexpr):
    """T of a wide panel from the T of its narrow ones, which stand on its diagonal, and G = V^T V.

    Two neighbours T1, T2 join to [[T1, -T1 G12 T2], [0, T2]].
    """
    b = tl.program_id(0).to(tl.int64)
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    G_ptr += b * NB * NB
    T_ptr += b * NB * NB
    tl.store(G_ptr + r * NB + c, _sum_shares(W_ptr, b, c, nb, shares, NB, NB))
    # a tile has no parts: they come back from memory, once every thread has stored
    tl.debug_barrier()
    _join(T_ptr, G_ptr, NB, N0)
    tl.debug_barrier()
    _join(T_ptr, G_ptr, NB, 2 * N0)


@triton.jit
def _join(T_ptr, G_ptr, NB: tl.constexpr, h: tl.constexpr):
    k = tl.arange(0, h)
    block = k[:, None] * NB + k[None, :]
    for p in tl.static_range(0, NB, 2 * h):
        right, down = p * NB + p + h, (p + h) * NB + p + h
        T1, T2 = tl.load(T_ptr + p * NB + p + block), tl.load(T_ptr + down + block)
        X = tl.dot(tl.load(G_ptr + right + block), T2, input_precision=SMALL)
        tl.store(T_ptr + right + block, -tl.dot(T1, X, input_precision=SMALL))


def _shares(B, tiles_, m, device):
    """How many programs share the rows of a matrix, so that the chip is full, and rows for each."""
    programs = 2 * _processors(device)
    shares = max(1, min(programs // max(1, B * tiles_), triton.cdiv(m, 2 * BR)))
    rows = triton.cdiv(triton.cdiv(m, shares), BR) * BR
    return triton.cdiv(m, rows), rows


def _processors(device):
    # the interpreter has one
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def update(V, T, C, precision):
    """C <- Q^T C in place. V: [B, m, nb], clean. T: [B, nb, nb]. C: [B, m, n], scaled."""
    B, m, nb = V.shape
    n = C.shape[2]
    columns = triton.cdiv(n, BC)
    shares, rows = _shares(B, columns, m, C.device)
    vc, t = (*V.stride()[:2],), T.stride()[:2]
    nk = NB if nb > N0 else N0
    shape = {"BR": BR, "NB": nk, "BC": BC, "PRECISION": precision, "num_warps": 4}
    if shares == 1:
        update_kernel[(B, columns)](V, T, C, m, n, nb, *vc, *t, *C.stride()[:2], **shape)
        return
    W = V.new_empty(B, shares, nk, n)
    grid = (B, columns, shares)
    share_kernel[grid](V, C, W, m, n, nb, rows, *vc, *C.stride()[:2], **shape)
    subtract_kernel[grid](V, T, W, C, m, n, nb, rows, *vc, *t, *C.stride()[:2], **shape)


def panel(H, tau, V, T, G, precision):
    """Factor a panel of up to 64 columns as narrow ones. H: [B, m, b] and tau are overwritten.

    V: [B, m, 64], and T, G: [B, 64, 64] are written: the block reflector, and scratch.
    """
    B, m, nb = H.shape
    V[:, :nb] = 0
    for p in range(0, nb, N0):
        q = min(p + N0, nb)
        narrow = V[:, p:, p:q], T[:, p:q, p:q]
        s05_panel.launch(H[:, p:, p:q], tau[:, p:q], *narrow)
        if q < nb:
            update(*narrow, H[:, p:, q:], precision)
    if nb > N0:
        shares, rows = _shares(B, 1, m, H.device)
        W = H.new_empty(B, shares, NB, nb)
        v = V.stride()[:2]
        share_kernel[(B, 1, shares)](
            V, V, W, m, nb, nb, rows, *v, *v, BR=BR, NB=NB, BC=NB, PRECISION=precision, num_warps=4
        )
        join_kernel[(B,)](T, W, G, nb, shares, NB=NB, N0=N0, num_warps=4)


def geqrf(A, *, precision="fp16x3"):
    """A = Q R by panels of 64, each of four of 16. A: [B, m, n]. Returns QR(H, tau).

    The loop is that of stage 3, with its buffers made once.

    Args:
        precision: of the products; see tiles.dot.
    """
    B, m, n = A.shape
    k = min(m, n)
    H, e = scaled(A)
    tau = H.new_empty(B, k)
    V, T, G = H.new_empty(B, m, NB), H.new_zeros(B, NB, NB), H.new_empty(B, NB, NB)
    for j in range(0, k, NB):
        w = min(NB, k - j)
        panel(H[:, j:, j : j + w], tau[:, j : j + w], V[:, j:], T, G, precision)
        if j + w < n:
            update(V[:, j:, :w], T[:, :w, :w], H[:, j:, j + w :], precision)
    unscale(H, e)
    return QR(H, tau)
