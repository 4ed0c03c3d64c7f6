"""Stage 10, a kernel for every size: a warp, a program, a panel in lanes, a Gram matrix. Triton.

Up to 64 columns a matrix is one launch, its rows in registers and its columns in lanes; so is the
last corner of a larger one. A panel too short for stage 8 is factored in lanes, too; what follows
a panel goes by the routes of stage 9.
"""

import triton
import triton.language as tl

from qrlib import lanes, tiles
from qrlib.compact import QR
from qrlib.scaling import half_log2, next_power_of_2
from qrlib.stages import s06_update, s07_whole, s08_cholesky, s09_mixed
from qrlib.stages.s06_update import NB, SMALL

# of a panel in lanes: columns of a group, warps, registers a thread
LANES, WARPS, REGISTERS = 16, 4, 255
# (warps, lanes) of a whole matrix, by rows and columns
WHOLE = {
    (32, 32): (1, 32), (64, 32): (1, 32), (128, 32): (4, 32), (256, 32): (8, 16),
    (512, 32): (8, 16), (64, 64): (2, 32), (128, 64): (4, 16), (256, 64): (8, 16),
    (512, 64): (8, 16),
}  # fmt: skip


@triton.jit
def whole_kernel(
    A_ptr, H_ptr, tau_ptr, m, n, log_m, stride_ab, stride_am, stride_an,
    stride_hb, stride_hm, stride_taub,
    R: tl.constexpr, BR: tl.constexpr, G: tl.constexpr, S: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """H, tau of A [m <= R S, n <= G Q], one matrix a program. BR: R, or the next power of two.

    H may be A.
    """
    b = tl.program_id(0).to(tl.int64)
    k = tl.minimum(m, n)
    s, q, r = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :], tl.arange(0, BR * S)[:, None]
    A_ptr += b * stride_ab
    H_ptr += b * stride_hb
    tau_ptr += b * stride_taub
    parts, es = (), ()
    for g in tl.static_range(G):
        c = g * Q + q
        A_ptrs = A_ptr + r.to(tl.int64) * stride_am + c.to(tl.int64) * stride_an
        X = tl.load(A_ptrs, mask=(r < m) & (c < n), other=0.0)
        e = tiles.exponent_of(tl.max(tl.abs(X), axis=0, keep_dims=True))
        es = es + (tl.minimum(e + log_m, 126),)
        parts = parts + (lanes.apart(X * tiles.power_of_two(-es[g]), BR, S, Q),)
    P = ()
    for i in tl.static_range(R):
        for g in tl.static_range(G):
            P = P + (parts[g][i],)
    done = ()
    for g in tl.static_range(G):
        if g * Q < R * S:
            if S == 1:
                rows, P, tau = lanes.mirrors_of_warp(P, g, R - g * Q, G, Q)
                done = done + rows
            else:
                steps = tl.minimum(Q, k - g * Q)
                P, tau = lanes.mirrors(P, steps, None, 0, g, R, G, S, Q, False)
            tl.store(tau_ptr + g * Q + q + s * 0, tau, mask=(g * Q + q < k) & (s == 0))
    P = done + P
    for g in tl.static_range(G):
        c = g * Q + q
        X = lanes.group(P, g, BR, R, G, S, Q)
        X = tl.where(r <= c, X * tiles.power_of_two(es[g]), X)
        H_ptrs = H_ptr + r.to(tl.int64) * stride_hm + c
        tl.store(H_ptrs, X, mask=(r < m) & (c < n))


@triton.jit
def panel_kernel(
    H_ptr, tau_ptr, F_ptr, T_ptr, m, nb, lo,
    stride_hb, stride_hm, stride_fb, stride_fm, stride_tb, stride_tm, stride_taub,
    R: tl.constexpr, BR: tl.constexpr, G: tl.constexpr, S: tl.constexpr, Q: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """H <- compact, tau, V as a factor in F, and T [B, 2 G Q, 2 G Q], of a panel m <= R S.

    Its columns, at most 2 G Q, and none longer than about 1, are factored as two halves. BR: R, or
    the next power of two. T is zero beyond the panel.
    """
    HALF: tl.constexpr = G * Q
    b = tl.program_id(0).to(tl.int64)
    H_ptr += b * stride_hb
    F_ptr += b * stride_fb
    T_ptr += b * stride_tb
    tau_ptr += b * stride_taub
    s, q, r = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :], tl.arange(0, BR * S)[:, None]
    for first in range(0, 2 * HALF, HALF):
        rows, columns = m - first, tl.minimum(HALF, nb - first)
        if (first > 0) & (columns > 0):
            tl.debug_barrier()
            _second_half(
                H_ptr + HALF, F_ptr, T_ptr, m, columns, lo, stride_hm, stride_fm, stride_tm,
                HALF, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
        at = H_ptr + first * (stride_hm + 1) + r * stride_hm + q
        P, parts = (), ()
        for g in tl.static_range(G):
            X = tl.load(at + g * Q, mask=(r < rows) & (g * Q + q < columns), other=0.0)
            parts = parts + (lanes.apart(X, BR, S, Q),)
        for i in tl.static_range(R):
            for g in tl.static_range(G):
                P = P + (parts[g][i],)
        own_T = T_ptr + first * (stride_tm + 1)
        for g in tl.static_range(G):
            # columns that begin below the last row have no mirror
            steps = tl.minimum(Q, tl.minimum(columns, rows) - g * Q)
            P, tau = lanes.mirrors(P, steps, own_T, stride_tm, g, R, G, S, Q, True)
            tl.store(tau_ptr + first + g * Q + q + s * 0, tau, mask=(q < steps) & (s == 0))
        for g in tl.static_range(G):
            inside = (r < rows) & (g * Q + q < columns)
            X = lanes.group(P, g, BR, R, G, S, Q)
            tl.store(at + g * Q, X, mask=inside)
            V = tiles.unit_lower(X, r, g * Q + q)
            own = F_ptr + first * (stride_fm + 1) + r * stride_fm + g * Q + q
            tiles.store_factor(own, lo, V, inside)
        tl.debug_barrier()
        _larft(own_T, tau_ptr + first, tl.minimum(columns, rows), stride_tm, HALF)
    tl.debug_barrier()
    _joined(F_ptr, T_ptr, m, nb - HALF, lo, stride_fm, stride_tm, HALF, PRECISION)


@triton.jit(noinline=True)
def _larft(T_ptr, tau_ptr, n, stride, NB: tl.constexpr):
    """T [NB, NB] of n mirrors, whose V^T V stands transposed under the diagonal of T.

    T^-1 is V^T V above the diagonal, and 1 / tau on it: rows of T follow from the last one up.
    """
    k, q = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    X = tl.load(T_ptr + k * stride + q, mask=(q < k) & (k < n), other=0.0)
    inner = lanes.apart(X, NB, 1, NB)
    tau = tl.load(tau_ptr + q, mask=q < n, other=0.0)
    sums, T = (), ()
    for _ in tl.static_range(NB):
        sums = sums + (tl.zeros([1, NB], tl.float32),)
    for c in tl.static_range(NB - 1, -1, -1):
        T = (lanes.at_lane(tau, c) * tl.where(q == c, 1.0, sums[c]),) + T
        more = ()
        for i in tl.static_range(c):
            more = more + (sums[i] - lanes.at_lane(inner[c], i) * T[0],)
        sums = more
    tl.debug_barrier()
    tl.store(T_ptr + k * stride + q, lanes.together(T, NB, 1, NB))


@triton.jit(noinline=True)
def _second_half(
    C_ptr, F_ptr, T_ptr, m, n, lo, stride_cm, stride_fm, stride_tm,
    NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C <- Q^T C for n columns, as the first half of a panel leaves them."""
    c = tl.arange(0, NB)[None, :]
    W, X = s06_update.inner_products(
        F_ptr, C_ptr, c, m, n, NB, lo, stride_fm, stride_cm, 64, NB, NB, False, PRECISION
    )  # fmt: skip
    W, X = s06_update.through_t(T_ptr, T_ptr, W, X, NB, stride_tm, NB, False)
    # 64 rows would be tensor memory on Blackwell, which only a kernel itself can have
    s06_update.subtract(
        F_ptr, W, X, C_ptr, None, c, m, n, NB, lo, 0, stride_fm, stride_cm,
        32, NB, NB, False, PRECISION,
    )  # fmt: skip


@triton.jit(noinline=True)
def _joined(
    F_ptr, T_ptr, m, nb, lo, stride_fm, stride_tm, NB: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """T of both halves, the second of nb columns; its V is zero above its diagonal."""
    k, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    nothing = tl.zeros([NB, NB], tl.float32)
    tiles.store_factor(F_ptr + NB + k * stride_fm + c, lo, nothing, c < nb)
    second = T_ptr + NB * (stride_tm + 1) + k * stride_tm + c
    tl.store(second - NB, nothing)
    tl.debug_barrier()
    X = cross(F_ptr, F_ptr + NB, m, NB, nb, lo, stride_fm, 64, NB, PRECISION)
    X = tl.dot(X, tl.load(second), input_precision=SMALL)
    X = tl.dot(tl.load(second - NB * (stride_tm + 1)), X, input_precision=SMALL)
    tl.store(second - NB * stride_tm, -X)


@triton.jit
def cross(
    U_ptr, V_ptr, m, nu, nv, lo, stride,
    BR: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """U^T V [NB, NB] of two factors with nu and nv columns."""
    i, c = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    X = tl.zeros([NB, NB], tl.float32)
    for r0 in range(0, m, BR):
        u1, u2 = s06_update.factor_tile(U_ptr, lo, i, c, m - r0, nu, stride, PRECISION)
        v1, v2 = s06_update.factor_tile(V_ptr, lo, i, c, m - r0, nv, stride, PRECISION)
        X = tiles.product(tl.trans(u1), tl.trans(u2), v1, v2, X, PRECISION)
        U_ptr += BR * stride
        V_ptr += BR * stride
    return tiles.whole(X, PRECISION)


@triton.jit
def cross_kernel(
    F_ptr, G_ptr, m, nb, lo, stride_fb, stride_fm,
    BR: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """G [B, NB, NB] = V^T U of two panels in F, U and on its right V of nb columns."""
    b = tl.program_id(0).to(tl.int64)
    F_ptr += b * stride_fb
    X = cross(F_ptr + NB, F_ptr, m, nb, NB, lo, stride_fm, BR, NB, PRECISION)
    k, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    tl.store(G_ptr + b * NB * NB + k * NB + c, X)


def named(warps, rows, Q, G):
    """What kernels in lanes are compiled for: tiles for so many rows, and G groups of Q lanes."""
    S = 32 * warps // Q
    R = rows // S
    return {"R": R, "BR": next_power_of_2(R), "G": G, "S": S, "Q": Q, "num_warps": warps}


def panel(H, tau, V, T, G, precision, F, branch):
    """As that of stage 8, and in lanes where that needs more rows."""
    B, m, nb = H.shape
    if m >= s08_cholesky.TALL or m * H.stride(1) >= 2**31:
        s08_cholesky.panel(H, tau, V, T, G, precision, F, branch)
        return
    lo, f = s06_update.of_factor(F)
    own = F if G is None else F[..., NB:]
    panel_kernel[(B,)](
        H, tau, own, T, m, nb, lo, *H.stride()[:2], *f, *T.stride()[:2], tau.stride(0),
        PRECISION=precision, maxnreg=REGISTERS, **named(WARPS, 2 * NB, LANES, NB // LANES // 2),
    )  # fmt: skip
    if G is not None:
        cross_kernel[(B,)](F, G, m, nb, lo, *f, BR=64, NB=NB, PRECISION=precision, num_warps=4)


def _tile(m, n):
    """(rows, columns) that lanes have for such a matrix, which is square or tall for them."""
    BN = max(32, next_power_of_2(n))
    return max(BN, next_power_of_2(m)), BN


def alone(m, n):
    """Whether such a matrix is one launch of `whole_kernel`, which reads it once."""
    return _tile(m, n) in WHOLE


def launch(A, H, tau):
    """H, tau of A [B, m, n], any strides, that `alone` says yes to; H may be A."""
    B, m, n = A.shape
    BM, BN = _tile(m, n)
    warps, Q = WHOLE[BM, BN]
    whole_kernel[(B,)](
        A, H, tau, m, n, half_log2(m), *A.stride(), *H.stride()[:2], tau.stride(0),
        **named(warps, BM, Q, BN // Q),
    )  # fmt: skip


def corner(H, tau):
    """Factor a panel that nothing follows in place, if it is small; says whether."""
    small = alone(*H.shape[1:])
    if small:
        launch(H, H, tau)
    return small


def pays(B, m, n, replayed):
    """Whether one launch of stage 7 is faster than panels.

    What the line is worth for 40 matrices of 176 is in book/data/cases.json.
    """
    return s07_whole.pays(B, m, n, replayed) and not (replayed and max(m, n) > 160)


def geqrf(A, *, policy="fp32", precision="fp16x3", whole=None):
    """A = Q R by what is fastest at its size. A: [B, m, n]. Returns QR(H, tau).

    Args:
        policy: "fast" for one or two products where stage 9 has them.
        precision: of the products of an update; see tiles.product.
        whole: True or False for one launch of stage 7, whatever pays.
    """
    B, m, n = A.shape
    if alone(m, n):
        H, tau = A.new_empty(B, m, n), A.new_empty(B, min(m, n))
        launch(A, H, tau)
        return QR(H, tau)
    if pays(B, m, n, replayed=False) if whole is None else whole:
        return s07_whole.geqrf(A, precision=precision, whole=True)
    return s09_mixed.factored(A, policy, precision, panel, corner)
