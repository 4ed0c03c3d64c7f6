"""Q applied and formed from its mirrors, by the block updates of stage 6. Triton.

Mirrors go in blocks of 64, I - V T V^T, and two blocks make one update: Q^T C meets the first block
first, Q C the last. V, T and V^T V know nothing of C, so those of all blocks are made at once, and
only the updates wait for one another. Where there are few mirrors of few rows, a program has some
columns of C in its registers, from the first mirror to the last.
"""

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.elimination import larft
from qrlib.scaling import cdiv, next_power_of_2, scaled
from qrlib.stages import s06_update
from qrlib.stages.s06_update import N0, NB, sum_shares

# rows of a register tile whose mirrors go one by one: warps; as stage 7 has it for the same tiles,
# and one more. Not timed on a GPU, nor are the next two
TABLE = {32: 1, 64: 2, 128: 4, 256: 8}
# so many mirrors at most
FEW = 32
# (rows of a tile, warps) where V is made, as stage 8 has it for the same products
VECTORS = (32, 4)
# columns of C at a time, for their tiles are on an axis of the grid that ends at 65535
WIDE = 1 << 19


@triton.jit
def mirrors_kernel(
    H_ptr, tau_ptr, C_ptr, Q_ptr, m, n, k,
    stride_hb, stride_hm, stride_hn, stride_taub, stride_tauk, stride_cb, stride_cm, stride_cn,
    BM: tl.constexpr, BC: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """Q C, or Q^T C, for BC columns of C [m <= BM, n], mirror by mirror; C None: the identity."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BM)[:, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    inside = (i < m) & (c < n)
    if C_ptr is None:
        C = tl.where(i == c, 1.0, 0.0)  # [BM, BC]
        e = tl.zeros([1, BC], tl.int32)
    else:
        C_ptrs = C_ptr + b * stride_cb + i.to(tl.int64) * stride_cm + c.to(tl.int64) * stride_cn
        C = tl.load(C_ptrs, mask=inside, other=0.0)
        e = tiles.exponent_of(tl.max(tl.abs(C), axis=0, keep_dims=True))
    C *= tiles.power_of_two(-e)
    H_ptr += b * stride_hb
    tau_ptr += b * stride_taub
    for step in range(k):
        j = tl.zeros([1, 1], tl.int64) + (step if TRANSPOSE else k - 1 - step)
        v_ptrs = H_ptr + i.to(tl.int64) * stride_hm + j * stride_hn
        v = tl.load(v_ptrs, mask=(i > j) & (i < m), other=0.0)
        v = tl.where(i == j, 1.0, v)  # [BM, 1]
        tau = tl.load(tau_ptr + j * stride_tauk)
        C -= v * (tau * tl.sum(v * C, axis=0, keep_dims=True))
    tl.store(Q_ptr + (b * m + i) * n + c, C * tiles.power_of_two(e), mask=inside)


@triton.jit
def _place(s, blocks, TRANSPOSE: tl.constexpr):
    """Which block is met in step s."""
    return s if TRANSPOSE else blocks - 1 - s


@triton.jit
def _pair(b, s):
    """Where the two steps of which s is one are, of matrix b."""
    return s // 2 * tl.num_programs(0).to(tl.int64) + b


@triton.jit
def _vectors(H_ptr, i, c, m, k, stride_hm, stride_hn):
    """Rows i and columns c of V: ones on the diagonal, zeros above, and right of column k."""
    V_ptrs = H_ptr + i.to(tl.int64) * stride_hm + c.to(tl.int64) * stride_hn
    V = tl.load(V_ptrs, mask=(i > c) & (i < m) & (c < k), other=0.0)
    return tl.where((i == c) & (c < k), 1.0, V)


@triton.jit
def blocks_kernel(
    H_ptr, F_ptr, W_ptr, m, k, lo, rows,
    stride_hb, stride_hm, stride_hn, stride_fb, stride_fm,
    BR: tl.constexpr, NB: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """V of a block as a factor, and what its T is made of, from `rows` rows.

    F [pairs, B, m, 2 NB], or pairs of numbers: the blocks of two steps side by side. W [B, steps,
    shares, 2, NB, NB]: shares of V^T V, and of every second step of V^T U, U from the one before.
    """
    b, s, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    share = (b * blocks + s) * tl.num_programs(2) + tl.program_id(2)
    second = s % 2 == 1
    i, q = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    c = _place(s, blocks, TRANSPOSE) * NB + q
    d = _place(s - 1, blocks, TRANSPOSE) * NB + q
    # the rows of an update are those of the first of its two blocks
    first = _place(s - s % 2 + (0 if TRANSPOSE else 1), blocks, TRANSPOSE)
    begin = tl.maximum(first, 0) * NB + tl.program_id(2) * rows
    H_ptr += b * stride_hb
    F_ptr += _pair(b, s) * stride_fb + s % 2 * NB
    W, X = tl.zeros([NB, NB], tl.float32), tl.zeros([NB, NB], tl.float32)
    for r0 in range(begin, tl.minimum(begin + rows, m), BR):
        r = r0 + i
        V = _vectors(H_ptr, r, c, m, k, stride_hm, stride_hn)  # [BR, NB]
        tiles.store_factor(F_ptr + r.to(tl.int64) * stride_fm + q, lo, V, r < m)
        v1, v2 = tiles.parts(V, PRECISION)
        W = tiles.product(tl.trans(v1), tl.trans(v2), v1, v2, W, PRECISION)
        if second:
            u1, u2 = tiles.parts(_vectors(H_ptr, r, d, m, k, stride_hm, stride_hn), PRECISION)
            X = tiles.product(tl.trans(v1), tl.trans(v2), u1, u2, X, PRECISION)
    at = tl.arange(0, NB)[:, None] * NB + q
    W_ptr += share * 2 * NB * NB
    tl.store(W_ptr + at, tiles.whole(W, PRECISION))
    if second:
        tl.store(W_ptr + NB * NB + at, tiles.whole(X, PRECISION))


@triton.jit(do_not_specialize=["shares"])
def factors_kernel(
    tau_ptr, W_ptr, T_ptr, G_ptr, shares, k, stride_taub, stride_tauk,
    N0: tl.constexpr, NB: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """T of a block as an update by two wants it, its transpose for Q C, and V^T U of two blocks.

    T [pairs, B, 2, NB, NB] and G [pairs, B, NB, NB] from W of blocks_kernel, which is overwritten.
    """
    b, s, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    own, pair = b * blocks + s, _pair(b, s)
    T_ptr += (pair * 2 + s % 2) * NB * NB
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    at = r * NB + c
    if s % 2 == 1:
        G = sum_shares(W_ptr, own, c, NB, shares, 1, 2, NB, NB)
        tl.store(G_ptr + pair * NB * NB + at, G)
    G = sum_shares(W_ptr, own, c, NB, shares, 0, 2, NB, NB)
    # V^T V takes the place of its first share, and tau that of its diagonal
    W_ptr += own * shares * 2 * NB * NB
    j = _place(s, blocks, TRANSPOSE) * NB + c
    tau = tl.load(tau_ptr + b * stride_taub + j.to(tl.int64) * stride_tauk, mask=j < k, other=0.0)
    tl.debug_barrier()
    tl.store(W_ptr + at, tl.where(r == c, tau, G))
    tl.debug_barrier()
    larft(W_ptr, T_ptr, N0, NB)
    if not TRANSPOSE:
        # updates take the transpose of what they are given
        tl.debug_barrier()
        T = tl.load(T_ptr + at)
        tl.debug_barrier()
        tl.store(T_ptr + c * NB + r, T)


def one_by_one(H, tau, C, n, BM, warps, transpose):
    """Q C, or Q^T C; with C None n columns of Q."""
    B, m, _ = H.shape
    Q, BC = H.new_empty(B, m, n), 8 if n <= 8 else 32
    given = Q if C is None else C
    mirrors_kernel[(B, cdiv(n, BC))](
        H, tau, C, Q, m, n, tau.shape[-1], *H.stride(), *tau.stride(),
        *given.stride(), BM=BM, BC=BC, TRANSPOSE=transpose, num_warps=warps,
    )  # fmt: skip
    return Q


def by_blocks(H, tau, C, transpose, precision, *, e=None, trailing=False):
    """C <- Q C, or Q^T C, in place.

    Args:
        C: [B, m, n], scaled. e: [B, n], the exponents of its scale, which the last update undoes.
        trailing: C is the identity, and a block of Q C meets the columns that begin with its own.
    """
    B, m, _ = H.shape
    k = tau.shape[-1]
    blocks = cdiv(k, NB)
    pairs = cdiv(blocks, 2)
    shares, rows = s06_update.share_out(B, blocks, m, H.device)
    F = s06_update.factors(pairs * B, m, precision, H)
    W = H.new_empty(B, blocks, shares, 2, NB, NB)
    T, G = H.new_empty(pairs, B, 2 * NB, NB), H.new_empty(pairs, B, NB, NB)
    lo, f = s06_update.of_factor(F)
    BR, warps = VECTORS
    blocks_kernel[(B, blocks, shares)](
        H, F, W, m, k, lo, rows, *H.stride(), *f,
        BR=BR, NB=NB, TRANSPOSE=transpose, PRECISION=precision, num_warps=warps,
    )  # fmt: skip
    factors_kernel[(B, blocks)](
        tau, W, T, G, shares, k, *tau.stride(), N0=N0, NB=NB, TRANSPOSE=transpose, num_warps=4
    )
    for pair, V in enumerate(F.chunk(pairs)):
        s = 2 * pair
        lone, last = s + 1 == blocks, s + 2 >= blocks
        j = NB * (s if transpose else max(blocks - 2 - s, 0))
        done = m - j if last else 2 * NB if transpose else 0
        s06_update.update(
            V[..., j:, : NB if lone else 2 * NB], T[pair], C[:, j:, j if trailing else 0 :],
            precision, G=G[pair], e=e, done=done,
        )  # fmt: skip


def _few(H, tau):
    """(rows of a tile, warps) for a matrix whose mirrors go one by one, or None."""
    BM = max(min(TABLE), next_power_of_2(H.shape[1]))
    return (BM, TABLE[BM]) if BM in TABLE and tau.shape[-1] <= FEW else None


def ormqr(H, tau, C, *, transpose=False, precision="fp16x3"):
    """Q C, or Q^T C. H: [B, m, n] and tau: [B, k], compact. C: [B, m, p]; all read, any strides.

    A column of C keeps to itself what is not finite in it.

    Args:
        precision: of the products; see tiles.product.

    Cost: 4mpk - 2pk^2 flops a matrix; C is read twice and written once for 128 mirrors. Accuracy:
    of its length a column of C loses a few eps, as by LAPACK, and to tensor cores about eps / 4
    each of the 3m/16 + 48 times that they add to a sum, for there they cut off and do not round:
    up to m eps / 10 of a tall one. Source: LAPACK xORMQR.
    """
    p, k = C.shape[-1], tau.shape[-1]
    if p > WIDE:
        parts = C.split(WIDE, -1)
        options = {"transpose": transpose, "precision": precision}
        return torch.cat([ormqr(H, tau, part, **options) for part in parts], -1)
    if few := _few(H, tau):
        return one_by_one(H, tau, C, p, *few, transpose)
    if k == 0:
        return C.clone(memory_format=torch.contiguous_format)
    C, e = scaled(C)
    by_blocks(H, tau, C, transpose, precision, e=e)
    return C


def orgqr(H, tau, *, precision="fp16x3"):
    """The first n columns of Q. H: [B, m, n], m >= n; tau: [B, k], k <= n. Returns [B, m, n].

    From the last block to the first, so that a block meets only columns that are no longer those
    of the identity. Cost: 4mnk - 2(m + n)k^2 + 4k^3/3 flops a matrix. Accuracy: as ormqr.
    Source: LAPACK xORGQR.
    """
    if few := _few(H, tau):
        return one_by_one(H, tau, None, H.shape[-1], *few, False)
    Q = H.new_zeros(H.shape)
    Q.diagonal(dim1=-2, dim2=-1).fill_(1)
    if tau.shape[-1]:
        by_blocks(H, tau, Q, False, precision, trailing=True)
    return Q
