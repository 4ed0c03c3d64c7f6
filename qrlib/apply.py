"""Q applied and formed from its mirrors, by the block updates of stage 6. Triton.

Mirrors go in blocks of 64, I - V T V^T, and two blocks make one update: Q^T C meets the first block
first, Q C the last. V, T and V^T V know nothing of C, so those of all blocks are made at once, and
only the updates wait for one another. Few mirrors of few rows are one block and one launch: a
program has some columns of C, and T is never formed. Of tiny matrices a program has several, and
their mirrors go one by one.
"""

import torch
import triton
import triton.language as tl

from qrlib import lanes, tiles
from qrlib.elimination import larft
from qrlib.scaling import cdiv, next_power_of_2, scaled
from qrlib.stages import s06_update
from qrlib.stages.s06_update import N0, NB, sum_shares

# mirrors and rows of what is one launch; beyond, rows are shared out among programs. Chosen by
# reasoning, as are the next two; what came of it is in book/data/q.json
FEW = 32, 512
# (rows of a tile, warps) of such a block, by how many rows a matrix has: every warp makes all of Z
# for itself, so few warps are best until rows are what takes the time
TABLE = {64: (16, 1), 512: (64, 4)}
# mirrors and rows of a tiny matrix, and numbers that a warp has: a block would be mostly padding
TINY, NUMBERS = (4, 16), 512
# (rows of a tile, warps) where V is made, as stage 8 has it for the same products
VECTORS = (32, 4)
# columns of C at a time, for their tiles are on an axis of the grid that ends at 65535
WIDE = 1 << 19


@triton.jit
def mirrors_kernel(
    H_ptr, tau_ptr, C_ptr, Q_ptr, B, m, n, k,
    stride_hb, stride_hm, stride_hn, stride_taub, stride_tauk, stride_cb, stride_cm, stride_cn,
    BB: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """Q C, or Q^T C, for BB matrices and BC columns of C [m <= BM, n]; C None: the identity."""
    b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)[:, None, None]
    i = tl.arange(0, BM)[None, :, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, None, :]
    inside = (b < B) & (i < m) & (c < n)
    if C_ptr is None:
        C = tl.where(i == c, 1.0, 0.0) + tl.zeros([BB, 1, 1], tl.float32)  # [BB, BM, BC]
        e = tl.zeros([BB, 1, BC], tl.int32)
    else:
        C_ptrs = C_ptr + b * stride_cb + i.to(tl.int64) * stride_cm + c.to(tl.int64) * stride_cn
        C = tl.load(C_ptrs, mask=inside, other=0.0)
        e = tiles.exponent_of(tl.max(tl.abs(C), axis=1, keep_dims=True))
    C *= tiles.power_of_two(-e)
    H_ptrs = H_ptr + b * stride_hb + i.to(tl.int64) * stride_hm
    tau_ptrs = tau_ptr + b * stride_taub
    for step in range(k):
        j = tl.zeros([1, 1, 1], tl.int64) + (step if TRANSPOSE else k - 1 - step)
        v = tl.load(H_ptrs + j * stride_hn, mask=(b < B) & (i > j) & (i < m), other=0.0)
        v = tl.where(i == j, 1.0, v)  # [BB, BM, 1]
        tau = tl.load(tau_ptrs + j * stride_tauk, mask=b < B, other=0.0)
        C -= v * (tau * tl.sum(v * C, axis=1, keep_dims=True))
    tl.store(Q_ptr + (b * m + i) * n + c, C * tiles.power_of_two(e), mask=inside)


@triton.jit
def _entry(x, lane, BC: tl.constexpr):
    """x[:, lane] for BC lanes; see elimination.at_lane."""
    return tl.gather(x, lane + tl.zeros([1, BC], tl.int32), 1)


@triton.jit
def _through_t(G, W, tau, NB: tl.constexpr, BC: tl.constexpr, TRANSPOSE: tl.constexpr):
    """(Z 2^-e, e [1, BC]) of Z = T W, or T^T W: no entry is larger than 1, and e is not negative.

    T^-1 = striu(G) + diag(1 / tau) with G = V^T V, and rows of Z follow from one another: they are
    in the lanes of a warp, and what one takes of another comes by a shuffle.
    """
    g, w = lanes.apart(G, NB, 1, NB), lanes.apart(W, NB, 1, BC)
    rows = ()
    for t in tl.static_range(NB):
        left = ()
        if TRANSPOSE:
            # w is what is left of the rows from t on
            row = w[0] * _entry(tau, t, BC)
            for i in tl.static_range(1, NB - t):
                left = left + (tl.fma(_entry(g[t], t + i, BC), row * -1.0, w[i]),)
            rows = rows + (row,)
        else:
            # and here of the first NB - t
            row = w[NB - 1 - t] * _entry(tau, NB - 1 - t, BC)
            for i in tl.static_range(NB - 1 - t):
                left = left + (tl.fma(_entry(g[i], NB - 1 - t, BC), row * -1.0, w[i]),)
            rows = (row,) + rows
        w = left
    top = tl.abs(rows[0])
    for i in tl.static_range(1, NB):
        top = tl.maximum(top, tl.abs(rows[i]))
    # a column has a scale of its own, and keeps to itself what is not finite in it
    e = tl.maximum(tiles.exponent_of(top), 0)
    scaled = ()
    for i in tl.static_range(NB):
        scaled = scaled + (rows[i] * tiles.power_of_two(-e),)
    return lanes.together(scaled, NB, 1, BC), e


@triton.jit
def _columns(C_ptr, i, c, m, n, stride_cm, stride_cn):
    C_ptrs = C_ptr + i.to(tl.int64) * stride_cm + c.to(tl.int64) * stride_cn
    return tl.load(C_ptrs, mask=(i < m) & (c < n), other=0.0)


@triton.jit
def _whole_vectors(H_ptr, i, c, m, k, stride_hm, stride_hn):
    """V, with unit vectors right of column k; R is read too, for so four entries are one load."""
    return tiles.unit_lower(_columns(H_ptr, i, c, m, k, stride_hm, stride_hn), i, c)


@triton.jit
def one_block_kernel(
    H_ptr, tau_ptr, C_ptr, Q_ptr, m, n, k,
    stride_hb, stride_hm, stride_hn, stride_taub, stride_tauk, stride_cb, stride_cm, stride_cn,
    BR: tl.constexpr, NB: tl.constexpr, BC: tl.constexpr, TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """C - V T V^T C, or with T^T, for BC columns of C [m, n] and k <= NB; C None: the identity.

    What rows are read again for has just been read, and is near.
    """
    b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BC
    i, q = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    c = first + tl.arange(0, BC)[None, :]
    H_ptr += b * stride_hb
    tau_ptrs = tau_ptr + b * stride_taub + q.to(tl.int64) * stride_tauk
    tau = tl.load(tau_ptrs, mask=q < k, other=0.0)
    if C_ptr is not None:
        C_ptr += b * stride_cb
        top = tl.zeros([BR, BC], tl.float32)
        for r0 in range(0, m, BR):
            C = _columns(C_ptr, r0 + i, c, m, n, stride_cm, stride_cn)
            top = tl.maximum(top, tl.abs(C))
        e = tiles.exponent_of(tl.max(top, axis=0, keep_dims=True))
    G, W = tl.zeros([NB, NB], tl.float32), tl.zeros([NB, BC], tl.float32)
    # tensor cores round no sum, and what they cut off of a long one adds up, so tiles are added
    # outside of them; V^T C is first, for so the compiler takes fewer registers
    zeros, zeros_c = G, W
    for r0 in range(0, m, BR):
        V = _whole_vectors(H_ptr, r0 + i, q, m, k, stride_hm, stride_hn)
        v1, v2 = tiles.parts(V, PRECISION)
        if C_ptr is not None:
            C = _columns(C_ptr, r0 + i, c, m, n, stride_cm, stride_cn)
            c1, c2 = tiles.parts(C * tiles.power_of_two(-e), PRECISION)
            W += tiles.product(tl.trans(v1), tl.trans(v2), c1, c2, zeros_c, PRECISION)
        G += tiles.product(tl.trans(v1), tl.trans(v2), v1, v2, zeros, PRECISION)
    if C_ptr is None:
        # of the identity V^T C is rows of V
        own = first + tl.arange(0, BC)[:, None]
        W = tl.trans(_whole_vectors(H_ptr, own, q, m, k, stride_hm, stride_hn))
    else:
        W = tiles.whole(W, PRECISION)
    Z, f = _through_t(tiles.whole(G, PRECISION), W, tau, NB, BC, TRANSPOSE)
    z1, z2 = tiles.parts(Z, PRECISION)
    scale = tiles.whole(tiles.power_of_two(f), PRECISION)
    for r0 in range(0, m, BR):
        r = r0 + i
        V = _whole_vectors(H_ptr, r, q, m, k, stride_hm, stride_hn)
        v1, v2 = tiles.parts(V, PRECISION)
        D = tiles.product(v1, v2, z1, z2, tl.zeros([BR, BC], tl.float32), PRECISION)
        if C_ptr is None:
            C = tl.zeros([BR, BC], tl.float32)
            if (r0 < first + BC) & (first < r0 + BR):
                C = tl.where(r == c, 1.0, 0.0)
            C -= D * scale
        else:
            C = _columns(C_ptr, r, c, m, n, stride_cm, stride_cn)
            C = (C * tiles.power_of_two(-e) - D * scale) * tiles.power_of_two(e)
        tl.store(Q_ptr + (b * m + r) * n + c, C, mask=(r < m) & (c < n))


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


def at_once(H, tau, C, n, transpose, precision):
    """Q C, or Q^T C; with C None n columns of Q."""
    B, m, _ = H.shape
    k = tau.shape[-1]
    Q = H.new_empty(B, m, n)
    given = Q if C is None else C
    strides = *H.stride(), *tau.stride(), *given.stride()
    if k <= TINY[0] and m <= TINY[1]:
        BM, BC = max(4, next_power_of_2(m)), min(32, max(4, next_power_of_2(n)))
        BB = NUMBERS // (BM * BC)
        mirrors_kernel[(cdiv(B, BB), cdiv(n, BC))](
            H, tau, C, Q, B, m, n, k, *strides,
            BB=BB, BM=BM, BC=BC, TRANSPOSE=transpose, num_warps=1,
        )  # fmt: skip
        return Q
    BR, warps = next(TABLE[rows] for rows in TABLE if m <= rows)
    NB = 16 if k <= 16 else 32
    BC = 16 if max(k, n) <= 16 else 32
    one_block_kernel[(B, cdiv(n, BC))](
        H, tau, C, Q, m, n, k, *strides, BR=BR, NB=NB, BC=BC,
        TRANSPOSE=transpose, PRECISION=precision, num_warps=warps, num_stages=1,
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
    """Whether a matrix has few mirrors, of few rows."""
    return 0 < tau.shape[-1] <= FEW[0] and H.shape[1] <= FEW[1]


def ormqr(H, tau, C, *, transpose=False, precision="fp16x3"):
    """Q C, or Q^T C. H: [B, m, n] and tau: [B, k], compact. C: [B, m, p]; all read, any strides.

    A column of C keeps to itself what is not finite in it.

    Args:
        precision: of the products; see tiles.product.

    Cost: 4mpk - 2pk^2 flops a matrix; C is read twice and written once for 128 mirrors. Accuracy:
    of its length a column of C loses a few eps, as by LAPACK, and to tensor cores about eps / 4
    each of the 3m/16 + 48 times that they add to a sum, for there they cut off and do not round:
    up to m eps / 10 of a tall one, and a few eps where one block is all. Source: LAPACK xORMQR.
    """
    p, k = C.shape[-1], tau.shape[-1]
    if p > WIDE:
        parts = C.split(WIDE, -1)
        options = {"transpose": transpose, "precision": precision}
        return torch.cat([ormqr(H, tau, part, **options) for part in parts], -1)
    if _few(H, tau):
        return at_once(H, tau, C, p, transpose, precision)
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
    if _few(H, tau):
        return at_once(H, tau, None, H.shape[-1], False, precision)
    Q = H.new_zeros(H.shape)
    Q.diagonal(dim1=-2, dim2=-1).fill_(1)
    if tau.shape[-1]:
        by_blocks(H, tau, Q, False, precision, trailing=True)
    return Q
