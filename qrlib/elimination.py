"""The verbs of `reconstruction` for one program of a GPU: 64 x 64 at once, by blocks. Triton.

Triangular factors, and inverses, go row by row, and a row waits for the one before. So here a row
of a block is a number in each lane of a warp, and the rows of a block have names: an entry goes to
all lanes by one shuffle, a row is taken from another by one instruction, no barrier is waited for.
What blocks leave of one another is in four products, row by row of blocks.
"""

import triton
import triton.language as tl

from qrlib import tiles
from qrlib.stages.s06_update import SMALL, sum_shares

# a column whose rest is shorter than 2^-40 of what it began as, but not zero, goes to Householder
LEAST = tl.constexpr(2.0**-80)
# so does one of which a mirror would leave all but this share: what is under its diagonal decides
# whether there is a mirror at all, and a Gram matrix cannot tell it from rounding
TAIL = tl.constexpr(2.0**-14)
# as much of the square of a length of about 1 may be rounding
PIVOT = tl.constexpr(2.0**-16)
# the exponent of a column that is zero is below this one
ZERO = tl.constexpr(-50)


@triton.jit
def at_lane(x, lane):
    """x[:, lane] for every lane: a row of x is in the lanes of a warp, so this is one shuffle."""
    return tl.gather(x, lane + tl.zeros(x.shape, tl.int32), 1)


@triton.jit
def _mirror(z, there, j, N: tl.constexpr):
    """Mirror j of a block, from what is left of its row j, in lanes [G | X].

    The row of R is that of Cholesky with the sign that the mirror gives it, so what is divided by,
    w_jj = x_jj - r_jj, is a sum. A zero column has no mirror.

    Returns 1 / r_jj, 1 / w_jj, both 0 for a zero column, and whether the pivot is one.
    """
    pivot, alpha = at_lane(z, j), at_lane(z, N + j)
    is_there = at_lane(there, j) > 0
    # not (<=): a NaN is no pivot, and where there is none what follows may be NaN
    good = (pivot > PIVOT) & (pivot - alpha * alpha > pivot * TAIL)
    # an instruction and a step of Newton: a root and a division, correctly rounded, take branches
    y = tl.rsqrt(pivot)
    y *= 1.5 - 0.5 * pivot * y * y
    y = tl.where(is_there, tl.where(tiles.bits_of(alpha) < 0, y, -y), 0.0)
    scale = tl.fdiv(1.0, alpha - pivot * y, ieee_rounding=False)
    return y, tl.where(is_there, scale, 0.0), tl.where(is_there & (good == 0), 0, 1)


@triton.jit
def _row(z, y, scale, left, c):
    """A row of [R | W], from that of [G | X], and what an entry below takes of it."""
    r = at_lane(z, c) * y
    # of a zero column R has no row that a Gram matrix knows: W keeps it, for the certificate
    row = tl.where(left, r, z - r)
    return row, row * tl.where(left, y, scale)


@triton.jit
def _block_row(S_ptr, p, there, N: tl.constexpr, NB: tl.constexpr):
    """Rows p .. p + N of R, W, L^T and W^-T, mirror by mirror. Returns ok.

    A warp has N columns of each, in lanes [G | X] and [Y | X]^T; the corner, which says how much of
    a row the others take, is with every warp. Rows move up as they are done, so that of a mirror is
    always the first.
    """
    size: tl.constexpr = NB * NB
    w, q = tl.arange(0, NB // N)[:, None], tl.arange(0, 2 * N)[None, :]
    c, left = q % N, q < N
    own = w * N + c
    rows = S_ptr + tl.where(left, 0, size) + p * NB
    columns = S_ptr + tl.where(left, 3 * size, 2 * size) + p * NB + own
    ok = there * 0 + 1
    z, u, x = (), (), ()
    for i in tl.static_range(N):
        z = z + (tl.load(rows + p + c + w * 0 + i * NB),)
        u = u + (tl.load(rows + own + i * NB),)
        x = x + (tl.load(columns + i * NB),)
    y, scale, good = _mirror(z[0], there, 0, N)
    for j in range(N):
        ok = tl.minimum(ok, good)
        row, take = _row(z[0], y, scale, left, c)
        # of what is left of the corner all in front of j is done
        row = tl.where(c >= j, row, 0.0)
        row = tl.where((scale == 0) & (q == N + j), 1.0, row)
        take = tl.where(c >= j, take, 0.0)
        right, take_right = _row(u[0], y, scale, left, c)
        right = tl.where(own < p, 0.0, tl.where(own < p + N, row, right))
        tl.store(rows + 4 * size + own + j * NB, right)
        divided = x[0] * tl.where(left & (scale == 0), 1.0, scale)
        below = tl.where(own > p + j, divided, tl.where(own == p + j, 1.0, 0.0))
        tl.store(columns + 4 * size + j * NB, tl.where(left, divided, below))
        # w_jj first, so that which column takes what is known before the program runs
        w_row = at_lane(row, N + (c + j) % N)
        z1, u1, x1 = (), (), ()
        for i in tl.static_range(1, N):
            entry = at_lane(z[i], tl.where(left, j, N + j))
            z1 = z1 + (z[i] - entry * take,)
            u1 = u1 + (u[i] - entry * take_right,)
            x1 = x1 + (x[i] - at_lane(w_row, i) * divided,)
            if i == 1:
                # the next mirror waits for this row only
                y, scale, good = _mirror(z1[0], there, (j + 1) % N, N)
        zero = tl.zeros(own.shape, tl.float32)
        z, u, x = z1 + (zero,), u1 + (zero,), x1 + (zero,)
    return tl.min(ok)


@triton.jit
def _product(total, A_ptr, B_ptr, r, k, c, stride_r, stride_k, NB: tl.constexpr):
    """total [N, NB] + A B, with N rows of A and of B."""
    A = tl.load(A_ptr + r * stride_r + k * stride_k)
    return tl.dot(A, tl.load(B_ptr + tl.trans(k) * NB + c), total, input_precision=SMALL)


@triton.jit
def _bring_up(S_ptr, p, N: tl.constexpr, NB: tl.constexpr):
    """What is left of rows p .. p + N of G, X, X^T and I, by all rows above that are found.

    That is G - R^T R, X - L W, X^T - W^T L^T and Y^T - W^T W^-T.
    """
    size: tl.constexpr = NB * NB
    r, k, c = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], tl.arange(0, NB)[None, :]
    g, x = tl.zeros([N, NB], tl.float32), tl.zeros([N, NB], tl.float32)
    xt, yt = tl.zeros([N, NB], tl.float32), tl.zeros([N, NB], tl.float32)
    for k0 in range(0, p, N):
        R_ptr = S_ptr + 4 * size + k0 * NB
        W_ptr, L_ptr, X_ptr = R_ptr + size, R_ptr + 2 * size, R_ptr + 3 * size
        g = _product(g, R_ptr + p, R_ptr, r, k, c, 1, NB, NB)
        x = _product(x, L_ptr + p, W_ptr, r, k, c, 1, NB, NB)
        xt = _product(xt, W_ptr + p, L_ptr, r, k, c, 1, NB, NB)
        yt = _product(yt, W_ptr + p, X_ptr, r, k, c, 1, NB, NB)
    rows = S_ptr + (p + r) * NB + c
    tl.store(rows, tl.load(rows) - g)
    tl.store(rows + size, tl.load(rows + size) - x)
    tl.store(rows + 2 * size, tl.load(rows + 2 * size) - xt)
    tl.store(rows + 3 * size, tl.load(rows + 3 * size) - yt)


@triton.jit
def eliminate(
    G_ptr, P_ptr, S_ptr, e_ptr, shares, stride_pm, N: tl.constexpr, NB: tl.constexpr
):  # fmt: skip
    """R, W, L^T and W^-T of a panel P from its Gram matrix; returns ok, 1 or 0.

    G = R^T R and X - R = L W, with X the top of P, R upper triangular. Columns are scaled to
    lengths between 1/2 and 1 for this, by 2^-e, e [NB].

    Args:
        G: [shares, NB, NB], what there is to sum.
        S: [8, NB, NB], what is left of G, X, X^T and I, and then the four that are found.
    """
    size: tl.constexpr = NB * NB
    r, c = tl.arange(0, NB)[:, None], tl.arange(0, NB)[None, :]
    at = r * NB + c
    G = sum_shares(G_ptr, 0, c, NB, shares, 0, 1, NB, NB)
    down = tl.sum(tl.where(r == c, G, 0.0), axis=1, keep_dims=True)
    across = tl.sum(tl.where(r == c, G, 0.0), axis=0, keep_dims=True)
    # what is small and not zero falls
    ok = tl.where(tl.sum(((across > 0) & (across < LEAST)).to(tl.int32)) == 0, 1, 0)
    e = (tiles.exponent_of(across) + 1) >> 1
    tl.store(e_ptr + c, e)
    across, down = tiles.power_of_two(-e), tiles.power_of_two(-((tiles.exponent_of(down) + 1) >> 1))
    tl.store(S_ptr + at, G * down * across)
    X = tl.load(P_ptr + r * stride_pm + c) * across
    tl.store(S_ptr + size + at, X)
    tl.store(S_ptr + 2 * size + at, tl.trans(X))
    tl.store(S_ptr + 3 * size + at, tl.where(r == c, 1.0, 0.0))
    lane = tl.arange(0, NB // N)[:, None] * 0 + tl.arange(0, 2 * N)[None, :] % N
    for p in range(0, NB, N):
        tl.debug_barrier()
        if p > 0:
            _bring_up(S_ptr, p, N, NB)
            tl.debug_barrier()
        there = (tl.load(e_ptr + p + lane) > ZERO).to(tl.int32)
        ok = tl.minimum(ok, _block_row(S_ptr, p, there, N, NB))
    return ok


@triton.jit
def larft(G_ptr, T_ptr, Y_ptr, tau_ptr, N: tl.constexpr, NB: tl.constexpr):
    """T [NB, NB], the inverse of U = striu(G) + diag(1 / tau), by blocks of N rows, from the last.

    Row j of T is what is left of row j of the identity, over u_jj, and then the rows above take
    u_ij times as much: g_ji, for G = V^T V is symmetric. Y [N, NB]: scratch.
    """
    w, q = tl.arange(0, NB // (2 * N))[:, None], tl.arange(0, 2 * N)[None, :]
    own, c = w * (2 * N) + q, q % N + w * 0
    r, k, d = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], tl.arange(0, NB)[None, :]
    for p in range(NB - N, -1, -N):
        total = tl.zeros([N, NB], tl.float32)
        for k0 in range(p + N, NB, N):
            # U T, of rows that are there
            U_ptr = G_ptr + p * NB + k0
            total = _product(total, U_ptr, T_ptr + k0 * NB, r, k, d, NB, 1, NB)
        tl.store(Y_ptr + r * NB + d, tl.where(p + r == d, 1.0, 0.0) - total)
        tl.debug_barrier()
        tau = tl.load(tau_ptr + p + N - 1 - c)
        g, y = (), ()
        for i in tl.static_range(N - 1, -1, -1):
            # what the row above takes first, so that which row takes what is known beforehand
            g = g + (tl.load(G_ptr + (p + i) * NB + p + (i + N - c) % N),)
            y = y + (tl.load(Y_ptr + i * NB + own),)
        for s in range(N):
            t = y[0] * at_lane(tau, s)
            tl.store(T_ptr + (p + N - 1 - s) * NB + own, t)
            g1, y1 = (), ()
            for i in tl.static_range(1, N):
                g1 = g1 + (g[i],)
                y1 = y1 + (y[i] - at_lane(g[0], i) * t,)
            g, y = g1 + (g[0],), y1 + (y[0],)
        tl.debug_barrier()
