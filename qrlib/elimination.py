"""The verbs of `reconstruction` for one program of a GPU: 64 x 64 at once, by blocks. Triton.

Triangular factors, and inverses, go row by row, and a row waits for the one before. So here a row
of a block is a number in each lane of a warp, and the rows of a block have names: an entry goes to
all lanes by one shuffle, a row is taken from another by one instruction, no barrier is waited for.
What blocks leave of one another is in products, row by row of blocks.
"""

import triton
import triton.language as tl

from qrlib import tiles

# a column of which a mirror would leave all but this share: what is under its diagonal decides
# whether there is a mirror at all, and a Gram matrix cannot tell it from rounding: Householder
TAIL = tl.constexpr(2.0**-14)
# as much of the square of a length of about 1 may be rounding
PIVOT = tl.constexpr(2.0**-16)
# exponents of columns: one that is zero is below the first. Between the two are those whose rest is
# shorter than 2^-40 of what it began as, but not zero, and these go to Householder
ZERO, LEAST = tl.constexpr(-50), tl.constexpr(-39)
# a pivot does not notice it, and it has an inverse
NOTHING = tl.constexpr(2.0**-60)
SIGN = tl.constexpr(-(2**31))


@triton.jit
def at_lane(x, lane):
    """x[:, lane] for every lane: a row of x is in the lanes of a warp, so this is one shuffle."""
    return tl.gather(x, lane + tl.zeros(x.shape, tl.int32), 1)


@triton.jit
def _signed(x, sign):
    """x, or -x where the bit of a sign is set."""
    return tiles.from_bits(tiles.bits_of(x) ^ sign)


@triton.jit
def _rows(x, N: tl.constexpr):
    """The rows x[:, :, i] of x [w, q, N], by name."""
    if N == 1:
        return (tl.reshape(x, [x.shape[0], x.shape[1]]),)
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], x.shape[1], N // 2, 2]))
        even, odd = _rows(even, N // 2), _rows(odd, N // 2)
        rows = ()
        for i in tl.static_range(N // 2):
            rows = rows + (even[i], odd[i])
        return rows


@triton.jit
def _behind(x, left, N: tl.constexpr):
    """Rows of [G | X], those of X one behind."""
    rows = _rows(x, N)
    found = (tl.where(left, rows[0], 0.0),)
    for i in tl.static_range(1, N):
        found = found + (tl.where(left, rows[i], rows[i - 1]),)
    return found + (rows[N - 1],)


@triton.jit
def _block_row(z, u, x, to, own, N: tl.constexpr, NB: tl.constexpr):
    """Rows of [R | W] and [L^T | W^-T] from what is left of a block's, mirror by mirror.

    A warp has N columns of each, u [G | X] and x [X^T | Y], side by side in its lanes; z, the
    corner, which says how much of a row the others take, is with every warp. Rows of X are one
    behind those of G: Cholesky does not wait for elimination, of which it needs no more than
    signs. Rows move up as they are done, so that of a mirror is always the first.

    Args:
        to: where [R | W] go; [L^T | W^-T] go behind. own: columns, from the first of the block on.
    """
    q = tl.arange(0, 2 * N)[None, :] + own * 0
    c, left = q % N, q < N
    z, u, x = _behind(z, left, N), _behind(u, left, N), _rows(x, N)
    zero = tl.zeros(own.shape, tl.float32)
    y, length, r, r_own = zero, zero, zero, zero
    for t in tl.static_range(N + 1):
        row, row_own, inverse = z[0], u[0], zero
        if t > 0:
            # mirror t - 1 of X. Its row of R has the sign that the mirror gives it, so that what
            # is divided by, w_jj = x_jj - r_jj, is a sum
            alpha = at_lane(z[0], N + t - 1)
            sign = tiles.bits_of(alpha) & SIGN
            inverse = tl.rsqrt(tl.abs(alpha) + length)
            inverse = _signed(inverse * inverse, sign)
            row += _signed(r, sign)
            r_own = _signed(r_own, sign)
            w = u[0] + r_own
            found = tl.where(left, r_own * -1.0, w)
            tl.store(to + (t - 1) * NB, tl.where(own >= t - 1, found, 0.0))
            row_own = tl.where(left, u[0], w)
            # a zero column has no mirror, and its row of Y is not divided
            scale = tl.where((q >= N) & (y == 0), 1.0, inverse)
            divided = tl.where(own == t - 1, scale, x[0] * scale)
            unit = tl.where(own == t - 1, 1.0, 0.0)
            below = tl.where((q >= N) | (own > t - 1), divided, unit)
            tl.store(to + 2 * NB * NB + (t - 1) * NB, below)
            x1 = ()
            for i in tl.static_range(1, N + 1 - t):
                x1 = x1 + (tl.fma(at_lane(row, N + t - 1 + i), divided * -1.0, x[i]),)
            x = x1
        if t < N:
            # mirror t of G
            pivot = at_lane(z[0], t)
            y = tl.rsqrt(pivot + NOTHING)
            y *= 1.5 - 0.5 * pivot * y * y
            inverse = tl.where(left, y * y, inverse)
        inverse *= -1.0
        take, take_own = row * inverse, row_own * inverse
        z1, u1 = (), ()
        for i in tl.static_range(1, N + 1 - t):
            entry = at_lane(z[i], tl.where(left, t, N + t - 1))
            z1 = z1 + (tl.fma(entry, take, z[i]),)
            u1 = u1 + (tl.fma(entry, take_own, u[i]),)
        if t < N:
            # nobody waits for this: a column without a pivot is divided by infinity. Of a zero
            # column R has no row that a Gram matrix knows: W keeps it
            y = tl.where(pivot > PIVOT, y, 0.0)
            length = tl.where(pivot > PIVOT, pivot * y, float("inf"))
            r = at_lane(z[0], c) * tl.where(left, 0.0, y)
            r_own = at_lane(u[0], c) * y
        z, u = z1, u1


@triton.jit
def _parts(x):
    """(hi, lo) with hi + lo = x and no more digits in hi than tensor cores read of it."""
    hi = tiles.from_bits((tiles.bits_of(x) + 0x1000) & -0x2000)
    return hi, x - hi


@triton.jit
def plus(total, A, B):
    """total + A B, in three products of tensor cores. Finite numbers are taken for granted."""
    a1, a2 = _parts(A)
    b1, b2 = _parts(B)
    # small terms first
    total = tl.dot(a2, b1, total, input_precision="tf32")
    total = tl.dot(a1, b2, total, input_precision="tf32")
    return tl.dot(a1, b1, total, input_precision="tf32")


@triton.jit
def _left_over(S_ptr, p, N: tl.constexpr, NB: tl.constexpr):
    """What is left of rows p .. p + N of G, X, X^T and I, by all rows above that are found.

    That is G - R^T R, X - L W, X^T - W^T L^T and Y^T - W^T W^-T, a warp each. [4, N, NB]
    """
    size: tl.constexpr = NB * NB
    b = tl.arange(0, 4)[:, None, None]
    i, c = tl.arange(0, N)[None, :, None], tl.arange(0, NB)[None, None, :]
    k = tl.arange(0, N)[None, None, :]
    rest = tl.load(S_ptr + b * size + (p + i) * NB + c)
    # R, L^T, W and W
    A_ptr = S_ptr + (4 + tl.where(b == 1, 2, tl.minimum(b, 1))) * size + k * NB + p + i
    B_ptr = S_ptr + (4 + b) * size + i * NB + c
    for k0 in tl.range(0, p, N, num_stages=1):
        A, B = tl.load(A_ptr + k0 * NB), tl.load(B_ptr + k0 * NB)
        rest = plus(rest, A * -1.0, B)
    return rest


@triton.jit
def eliminate(
    G_ptr, P_ptr, S_ptr, e_ptr, shares, stride_pm, N: tl.constexpr, NB: tl.constexpr
):  # fmt: skip
    """R, W, L^T and W^-T of a panel P from its Gram matrix; `stands` tells what they are worth.

    G = R^T R and X - R = L W, with X the top of P, R upper triangular. Columns are scaled to
    lengths between 1/2 and 1 for this, by 2^-e, e [NB].

    Args:
        G: [shares, NB, NB], what there is to sum.
        S: [8, NB, NB], what is left of G, X, X^T and I, and then the four that are found.
    """
    size: tl.constexpr = NB * NB
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    at = r * NB + c
    X = tl.load(P_ptr + r * stride_pm + c)
    G, squares = sum_upper(G_ptr, shares, 1, N, NB)
    e = (tiles.exponent_of(squares) + 1) >> 1
    # what is small and not zero is known by this
    tl.store(e_ptr + c, tl.where(squares > 0, tl.maximum(e, ZERO + 1), e))
    across = tiles.power_of_two(-e)
    X *= across
    tl.store(S_ptr + at, G * across * tl.trans(across))
    tl.store(S_ptr + size + at, X)
    tl.store(S_ptr + 2 * size + at, tl.trans(X))
    tl.store(S_ptr + 3 * size + at, tl.where(r == c, 1.0, 0.0))
    w, q = tl.arange(0, NB // N)[:, None], tl.arange(0, 2 * N)[None, :]
    own = w * N + q % N
    to = S_ptr + (4 + q // N) * size + own
    for p in range(0, NB, N):
        tl.debug_barrier()
        # of each: which of the two, side by side, row, warp, column
        rest = tl.reshape(_left_over(S_ptr, p, N, NB), [2, 2, N, NB // N, N])
        lanes = tl.permute(rest, 3, 1, 4, 2, 0)
        u, x = tl.split(tl.reshape(lanes, [NB // N, 2 * N, N, 2]))
        # a sum of bits of which all but one are 0
        here = tl.arange(0, NB // N)[None, None, None, :, None] == p // N
        z = tl.sum(tl.where(here, tiles.bits_of(rest), 0), axis=3)
        z = tl.reshape(tl.permute(tiles.from_bits(z), 1, 3, 2, 0), [1, 2 * N, N, 2])
        z, _ = tl.split(tl.broadcast_to(z, [NB // N, 2 * N, N, 2]))
        _block_row(z, u, x, to + p * NB, own - p, N, NB)


@triton.jit
def stands(S_ptr, e, d, NB: tl.constexpr):
    """Whether a Gram matrix knew enough of columns d, with exponents e."""
    r = tl.load(S_ptr + 4 * NB * NB + d * (NB + 1))
    alpha = r + tl.load(S_ptr + 5 * NB * NB + d * (NB + 1))
    pivot = r * r
    # not (<=): a NaN is no pivot
    good = (e >= LEAST) & (pivot > PIVOT) & (pivot - alpha * alpha > pivot * TAIL)
    return tl.where(e > ZERO, good, r == 0)


@triton.jit
def sum_upper(W_ptr, shares, panels, N: tl.constexpr, NB: tl.constexpr):
    """W[:, 0] of W [shares, panels, NB, NB], summed, and its diagonal [1, NB] once more.

    Of blocks of N below the diagonal nobody wants more than 0.
    """
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    W, diagonal = tl.zeros([NB, NB], tl.float32), tl.zeros([1, NB], tl.float32)
    upper = c >= r // N * N
    for first in range(0, shares, 4):
        for s in tl.static_range(4):
            inside = first + s < shares
            own = W_ptr + (first + s) * panels * NB * NB
            W += tl.load(own + r * NB + c, mask=upper & inside, other=0.0)
            diagonal += tl.load(own + c * (NB + 1), mask=inside & (c < NB), other=0.0)
    return W, diagonal


@triton.jit
def larft(G_ptr, T_ptr, N: tl.constexpr, NB: tl.constexpr):
    """T [NB, NB], the inverse of U = striu(G) + diag(1 / tau); tau is the diagonal of G.

    Blocks of N on the diagonal are inverted at once, by a warp each, from the last row on: row j of
    D is what is left of row j of the identity, over u_jj, and then the rows above take u_ij times
    as much. What is right of a block goes along, so that D U = I + M is known, and then
    T = (I + M)^-1 D takes three products. T may be where G is.
    """
    w, q = tl.arange(0, NB // N)[:, None], tl.arange(0, 2 * N)[None, :]
    c = w * N + q
    far = c + 2 * N < NB
    at = w * N * NB + c
    g, y, x = (), (), ()
    for i in tl.static_range(N):
        row = tl.load(G_ptr + at + i * NB, mask=c < NB, other=0.0)
        g, y = g + (row,), y + (tl.where(q < N, tl.where(q == i, 1.0, 0.0), row),)
        x = x + (tl.load(G_ptr + at + i * NB + 2 * N, mask=far, other=0.0),)
    for j in tl.static_range(N - 1, -1, -1):
        tau = at_lane(g[j], j)
        row, row_far = y[j] * tau, x[j] * tau
        tl.store(T_ptr + at + j * NB, row, mask=c < NB)
        tl.store(T_ptr + at + j * NB + 2 * N, row_far, mask=far)
        y1, x1 = (), ()
        for i in tl.static_range(j):
            entry = at_lane(g[i], j)
            y1 = y1 + (tl.fma(entry, row * -1.0, y[i]),)
            x1 = x1 + (tl.fma(entry, row_far * -1.0, x[i]),)
        y, x = y1, x1
    r, d = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    tl.store(T_ptr + r * NB + d, tl.zeros([NB, NB], tl.float32), mask=d < r // N * N)
    tl.debug_barrier()
    # two blocks and what is right of them: [D M] becomes [D, -M D, M - M M]
    b, i = 2 * N * tl.arange(0, 2)[:, None, None], tl.arange(0, N)[None, :, None]
    k, d = tl.arange(0, N)[None, None, :], tl.arange(0, NB)[None, None, :]
    rows = T_ptr + (b + i) * NB
    A, B = tl.load(rows + b + N + k), tl.load(rows + N * NB + d)
    rest = tl.where((d >= b + N) & (d < b + 2 * N), 0.0, tl.load(rows + d))
    rest = plus(rest, A * -1.0, B)
    tl.debug_barrier()
    tl.store(rows + d, rest)
    tl.debug_barrier()
    # and the two that these have made
    i, k = tl.arange(0, 2 * N)[:, None], tl.arange(0, 2 * N)[None, :]
    corner = T_ptr + i * NB + 2 * N + k
    A, B = tl.load(corner), tl.load(corner + 2 * N * NB)
    rest = plus(tl.zeros([2 * N, 2 * N], tl.float32), A * -1.0, B)
    tl.debug_barrier()
    tl.store(corner, rest)
