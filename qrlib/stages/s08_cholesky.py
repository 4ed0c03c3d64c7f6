"""Stage 8, a wide panel without its columns in a row: Cholesky QR and its mirrors. Triton.

The verbs are those of `reconstruction`. Two things grow with m, the Gram matrix and V = P W^-1, and
both are products; between them stand matrices of 64 x 64, see `elimination`. What a certificate
refuses goes to Householder, that matrix alone, on the device. Loop and update are those of stage 6.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.compact import QR
from qrlib.devices import AXIS
from qrlib.elimination import eliminate, larft, plus, stands, sum_upper
from qrlib.fallback import fallback_kernel
from qrlib.scaling import cdiv, scaled
from qrlib.stages import s06_update
from qrlib.stages.s06_update import N0, NB, sum_shares

# (rows of a tile, warps) of what sees all rows of a panel. This and the next two were chosen by
# hand on one H200, 2026-11-30, Triton 3.6; again: change one, and time it by
# python -m qrlib.bench --case 3 5 7 --stage s08_cholesky --compare none --replay
TABLE = {"square": (64, 4), "vectors": (32, 4)}
# rows of a register tile of a panel that falls: warps. Taller ones live in memory
FALLBACK = {512: 8, 1024: 8}
# at least so many rows for each of the programs that share a panel, and at most so many of a panel,
# which leave it in tiles of 64
ROWS, MOST = 128, 64 * AXIS
# programs that judge a panel, 4 at most, for each has its own T, and registers of a thread, where a
# few matrices leave room
PARTS, REGISTERS = 4, 255
# rows from which on a panel is Cholesky's: the columns of shorter ones are too near to one another
# for a Gram matrix, and fall. Chosen by hand on one H200, 2026-11-30, Triton 3.6; again: change it,
# and time it by python -m qrlib.bench --case 1 2 --compare none --replay
TALL = 96
# what a certificate allows a column of a panel to be wrong, in units of m 2^-24
LIMIT = 1.0


@triton.jit
def square_kernel(
    P_ptr, W_ptr, m, rows, stride_pb, stride_pm,
    BR: tl.constexpr, NB: tl.constexpr, THIRDS: tl.constexpr,
):  # fmt: skip
    """W [B, shares, NB, NB]: shares of P^T P, from `rows` rows each."""
    b, share = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = share.to(tl.int64) * rows
    P_ptr += b * stride_pb + begin * stride_pm
    W_ptr += (b * tl.num_programs(1) + share) * NB * NB
    m = tl.minimum(rows, (m - begin).to(tl.int32))
    i, k, c = tl.arange(0, BR)[:, None], tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    W = tl.zeros([NB, NB], tl.float32)
    early = tl.load(P_ptr + i * stride_pm + c, mask=i < m, other=0.0)
    for r0 in range(0, m, BR):
        # the next rows are on their way while these are in products
        P = early
        P_ptr += BR * stride_pm
        early = tl.load(P_ptr + i * stride_pm + c, mask=i < m - r0 - BR, other=0.0)
        # columns are of any length here, which float16 would not stand
        W = tiles.gram_of_any(P, W, THIRDS)
    tl.store(W_ptr + k * NB + c, tiles.symmetric(W))


# shares are many at the first panel and one at the last, and no kernel for each
@triton.jit(do_not_specialize=["shares"])
def eliminate_kernel(
    W_ptr, P_ptr, S_ptr, e_ptr, ok_ptr, shares, stride_pb, stride_pm,
    N0: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """S [B, 8, NB, NB] and e [B, NB] from W [B, shares, NB, NB]; ok [B] is 1, until judged."""
    b = tl.program_id(0).to(tl.int64)
    W_ptr += b * shares * NB * NB
    P_ptr += b * stride_pb
    S_ptr += b * 8 * NB * NB
    eliminate(W_ptr, P_ptr, S_ptr, e_ptr + b * NB, shares, stride_pm, N0, NB)
    tl.store(ok_ptr + b, 1)


@triton.jit
def vectors_kernel(
    P_ptr, F_ptr, S_ptr, e_ptr, W_ptr, squares_ptr, m, lo, rows,
    stride_pb, stride_pm, stride_fb, stride_fm,
    BR: tl.constexpr, NB: tl.constexpr, TWO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """V = P W^-1 in F as a factor, and what T is made of, from `rows` rows each.

    squares [B, shares, NB]: of the columns of V. W [B, shares, 1 or 2, NB, NB]: V^T V, and, if TWO,
    V^T U with the panel U that F begins with.
    """
    b = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1).to(tl.int64) * rows
    share = b * tl.num_programs(1) + tl.program_id(1)
    P_ptr += b * stride_pb + begin * stride_pm
    S_ptr += b * 8 * NB * NB
    e_ptr += b * NB
    F_ptr += b * stride_fb + begin * stride_fm
    W_ptr += share * (2 if TWO else 1) * NB * NB
    squares_ptr += share * NB
    m = tl.minimum(rows, (m - begin).to(tl.int32))
    if TWO:
        F_ptr += NB
    i, k, c = tl.arange(0, BR)[:, None], tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    scale = tiles.power_of_two(-tl.load(e_ptr + c))
    inverse = tl.trans(tl.load(S_ptr + 7 * NB * NB + k * NB + c))
    # a factor is at most 1
    e = tiles.exponent_of(tl.max(tl.abs(inverse), axis=0, keep_dims=True))
    i1, i2 = tiles.parts(inverse * tiles.power_of_two(-e), PRECISION)
    lift = tiles.power_of_two(e)
    G, X = tl.zeros([NB, NB], tl.float32), tl.zeros([NB, NB], tl.float32)
    squares = tl.zeros([BR, NB], tl.float32)
    early = tl.load(P_ptr + i * stride_pm + c, mask=i < m, other=0.0)
    for r0 in range(0, m, BR):
        inside = i < m - r0
        # the next rows are on their way while these are in products
        P = early
        P_ptr += BR * stride_pm
        early = tl.load(P_ptr + i * stride_pm + c, mask=i < m - r0 - BR, other=0.0)
        if begin + r0 < NB:
            # the top is there
            V = tl.load(S_ptr + 6 * NB * NB + (begin + r0 + i) + c * NB)
        else:
            p1, p2 = tiles.parts(P * scale, PRECISION)
            V = tiles.product(p1, p2, i1, i2, tl.zeros([BR, NB], tl.float32), PRECISION)
            V = tiles.whole(V, PRECISION) * lift
        tiles.store_factor(F_ptr + i * stride_fm + c, lo, V, inside)
        # tau needs the last bit, and tensor cores cut theirs off
        squares += V * V
        v1, v2 = tiles.parts(V, PRECISION)
        G = tiles.gram(v1, v2, G, PRECISION)
        if TWO:
            u1, u2 = tiles.load_factor(F_ptr - NB + i * stride_fm + c, lo, inside, PRECISION)
            X = tiles.product(tl.trans(v1), tl.trans(v2), u1, u2, X, PRECISION)
        F_ptr += BR * stride_fm
    tl.store(squares_ptr + c, tl.sum(squares, axis=0, keep_dims=True))
    tl.store(W_ptr + k * NB + c, tiles.symmetric(tiles.whole(G, PRECISION)))
    if TWO:
        tl.store(W_ptr + NB * NB + k * NB + c, tiles.whole(X, PRECISION))


@triton.jit(do_not_specialize=["shares"])
def judge_kernel(
    W_ptr, squares_ptr, S_ptr, e_ptr, tau_ptr, T_ptr, G_ptr, ok_ptr,
    shares, limit, stride_tb, stride_taub,
    N0: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """tau and T from V^T V, V^T U to G [B, NB, NB] if TWO, and ok [B], from BC columns each.

    P - Q [R; 0] = V (W + T L^T R), and a column of that has a length that V^T V tells.
    """
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    panels = 2 if TWO else 1
    size: tl.constexpr = NB * NB
    W_ptr += b * shares * panels * size
    squares_ptr += b * shares * NB
    S_ptr += b * 8 * size
    # nobody wants what was left of rows
    own_T = S_ptr + part * size
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    d = part * BC + tl.arange(0, BC)[None, :]
    square, own = r * NB + c, r * NB + d
    if TWO:
        G = sum_shares(W_ptr, 0, d, NB, shares, 1, panels, NB, BC)
        tl.store(G_ptr + b * size + own, G)
    # diag(V^T V) / 2 is the diagonal of T^-1, and of a zero column it is infinite
    squares = sum_shares(squares_ptr, 0, c, NB, shares, 0, 1, 1, NB)
    there = tl.load(S_ptr + 4 * size + c * (NB + 1)) != 0
    tau = tl.where(there, tl.div_rn(2.0, squares), 0.0)
    G, _ = sum_upper(W_ptr, shares, panels, N0, NB)
    U = tl.where(r < c, G, tl.where(r == c, 0.5 * squares, 0.0))
    tl.debug_barrier()
    tl.store(own_T + square, tl.where(r == c, tau, G))
    tl.debug_barrier()
    larft(own_T, own_T, N0, NB)
    tl.debug_barrier()
    T = tl.load(own_T + square)
    tl.store(T_ptr + b * stride_tb + square, T, mask=part == 0)
    tl.store(tau_ptr + b * stride_taub + c, tau, mask=part == 0)
    found = S_ptr + 4 * size
    R, W = tl.load(found + own), tl.load(found + size + own)
    Y = plus(tl.zeros([NB, BC], tl.float32), tl.load(found + 2 * size + square), R)
    Y = plus(W, T, Y)
    Y = tl.where(tl.load(found + d * (NB + 1)) != 0, Y, 0.0)
    # V^T V is U + U^T. Half of the digits tell how long it is
    wrong = 2.0 * tl.sum(Y * tl.dot(U, Y, input_precision="tf32"), axis=0, keep_dims=True)
    # not (>): a NaN falls
    good = wrong <= limit * limit * tl.sum(R * R, axis=0, keep_dims=True)
    good = good & stands(S_ptr, tl.load(e_ptr + b * NB + d), d, NB)
    tl.atomic_min(ok_ptr + b, tl.where(tl.sum((good == 0).to(tl.int32)) == 0, 1, 0))


@triton.jit
def finish_kernel(
    H_ptr, F_ptr, S_ptr, e_ptr, ok_ptr, m, lo, stride_hb, stride_hm, stride_fb, stride_fm,
    BR: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """V from its factor, and R above it, to the place of a panel that has stood: BR rows."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(ok_ptr + b) != 0:
        i, c = tl.program_id(1) * BR + tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
        V = tiles.load_joined(F_ptr + b * stride_fb + i.to(tl.int64) * stride_fm + c, lo, i < m)
        R = tl.load(S_ptr + (b * 8 + 4) * NB * NB + i * NB + c, mask=i <= c, other=0.0)
        R *= tiles.power_of_two(tl.load(e_ptr + b * NB + c))
        H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm + c
        tl.store(H_ptrs, tl.where(i <= c, R, V), mask=i < m)


def panel(H, tau, V, T, G, precision, F, branch):
    """As that of stage 6, for 64 columns at once where they are tall enough; V is scratch."""
    B, m, nb = H.shape
    if nb < NB or not TALL <= m <= MOST or m * H.stride(1) >= 2**31:
        # where narrow panels have not begun there has to be nothing
        V[:, :NB] = 0
        s06_update.panel(H, tau, V, T, G, precision, F, branch)
        return
    two = G is not None
    # the kernels do not look at it
    G = T if G is None else G
    shares, rows = s06_update.share_out(B, 1, m, H.device, ROWS)
    W, squares = H.new_empty(B, shares, 1 + two, NB, NB), H.new_empty(B, shares, NB)
    S, e = H.new_empty(B, 8, NB, NB), H.new_empty(B, NB, dtype=torch.int32)
    ok = H.new_empty(B, dtype=torch.int32)
    lo, f = s06_update.of_factor(F)
    p, t = H.stride()[:2], (T.stride(0), tau.stride(0))
    shape = {"NB": NB, "TWO": two}
    BR, warps = TABLE["square"]
    square_kernel[(B, shares)](
        H, W, m, rows, *p, BR=BR, NB=NB, THIRDS=H.device.type == "cuda", num_warps=warps
    )
    parts, options = nearly_alone(B, H.device)
    eliminate_kernel[(B,)](W, H, S, e, ok, shares, *p, N0=N0, NB=NB, num_warps=4, **options)
    BR, warps = TABLE["vectors"]
    vectors_kernel[(B, shares)](
        H, F, S, e, W, squares, m, lo, rows, *p, *f,
        BR=BR, PRECISION=precision, num_warps=warps, num_stages=1, **shape,
    )  # fmt: skip
    limit = LIMIT * m * 2.0**-24
    judge_kernel[(B, parts)](
        W, squares, S, e, tau, T, G, ok, shares, limit, *t,
        N0=N0, BC=NB // parts, num_warps=4, **shape, **options,
    )  # fmt: skip
    BM, warps = next(((BM, w) for BM, w in FALLBACK.items() if m <= BM), (0, 4))
    fallback_kernel[(B,)](
        H, tau, V, F, T, G, W, ok, m, lo, *p, *V.stride()[:2], *f, *t,
        BM=BM, BR=64, N0=N0, PRECISION=precision, num_warps=warps, num_stages=1, **shape,
    )  # fmt: skip
    # nobody waits for what H has of it
    with branch.fork(S, e, ok):
        own = F[..., NB if two else 0 :]
        finish_kernel[(B, cdiv(m, 64))](H, own, S, e, ok, m, lo, *p, *f, BR=64, NB=NB, num_warps=4)


def nearly_alone(B, device):
    """(programs that judge a panel, options of a launch) by how much room there is for each."""
    if PARTS * B <= 2 * s06_update.processors(device):
        return PARTS, {"maxnreg": REGISTERS}
    return 1, {}


def geqrf(A, *, precision="fp16x3"):
    """A = Q R by panels of 64 columns, each at once. A: [B, m, n]. Returns QR(H, tau).

    Args:
        precision: of the products with V; see tiles.product.
    """
    H, e = scaled(A)
    tau = H.new_empty(A.shape[0], min(A.shape[1:]))
    s06_update.factor(H, e, tau, precision, panel)
    return QR(H, tau)
