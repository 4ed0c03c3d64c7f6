"""The verbs of `tiles` for a panel whose rows have names: column j is a shuffle away. Triton.

A panel P [m, n] is a tuple of tiles [S, Q] with one number for each thread: tile i G + g has the
rows from i S on and the columns from g Q on. Lanes have columns, warps have rows. So the entries of
a column reach all lanes of their rows by one shuffle a tile, a dot product is a chain of
multiply-adds of a thread, and rows and columns that are done are left out by their names.
"""

import triton
import triton.language as tl

from qrlib import tiles
from qrlib.elimination import at_lane


@triton.jit
def apart(X, R: tl.constexpr, S: tl.constexpr, Q: tl.constexpr):
    """The R tiles [S, Q] of a tile [R S, Q], for R a power of two: names, and no instruction."""
    parts = (X,)
    for level in tl.static_range(R.bit_length() - 1):
        halves = ()
        for t in tl.static_range(1 << level):
            Y = tl.reshape(parts[t], [2, (R >> (level + 1)) * S, Q])
            halves = halves + tl.split(tl.permute(Y, (1, 2, 0)))
        parts = halves
    return parts


@triton.jit
def together(parts, R: tl.constexpr, S: tl.constexpr, Q: tl.constexpr):
    """The tile [R S, Q] of R tiles: the inverse of `apart`."""
    for level in tl.static_range(R.bit_length() - 1):
        pairs = ()
        for t in tl.static_range(R >> (level + 1)):
            Y = tl.permute(tl.join(parts[2 * t], parts[2 * t + 1]), (2, 0, 1))
            pairs = pairs + (tl.reshape(Y, [(2 << level) * S, Q]),)
        parts = pairs
    return parts[0]


@triton.jit
def group(P, g: tl.constexpr, BR: tl.constexpr, R: tl.constexpr, G: tl.constexpr,
          S: tl.constexpr, Q: tl.constexpr):  # fmt: skip
    """Columns g Q .. g Q + Q of P as one tile [BR S, Q]; its last BR - R tiles are anything."""
    parts = ()
    for i in tl.static_range(BR):
        parts = parts + (P[min(i, R - 1) * G + g],)
    return together(parts, BR, S, Q)


@triton.jit
def larfg(alpha, sigma):
    """(beta, scale, tau) as those of `tiles`, to the last bit or two.

    A root and a quotient that are correctly rounded take branches; these take an instruction and a
    step of Newton each.
    """
    norm2 = alpha * alpha + sigma
    # not (>=): a NaN goes on and shows
    done = (sigma == 0) | (norm2 < tiles.TINY)
    y = tl.rsqrt(norm2)
    y *= 1.5 - 0.5 * norm2 * y * y
    norm = norm2 * y
    scale = tl.fdiv(1.0, tl.abs(alpha) + norm, ieee_rounding=False)
    # the sign bit, for alpha may be -0.0
    negative = tiles.bits_of(alpha) < 0
    beta, scale = tl.where(negative, norm, -norm), tl.where(negative, -scale, scale)
    tau = 1.0 + tl.abs(alpha) * y
    return tl.where(done, alpha, beta), tl.where(done, 0.0, scale), tl.where(done, 0.0, tau)


@triton.jit
def _add_2(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def over_rows(x, y, N: tl.constexpr):
    """[1, Q] sums over the rows of N tiles x, and of N tiles y.

    What warps exchange is a tile each: joined ones would all lie in the same bank.
    """
    sums, rows = (), ()
    for h in tl.static_range(0, N - 1, 2):
        four = x[h], x[h + 1], y[h], y[h + 1]
        a, b, c, d = tl.reduce(four, 0, _add_4, keep_dims=True)
        sums, rows = sums + (a, b), rows + (c, d)
    if N % 2 == 1:
        a, c = tl.reduce((x[N - 1], y[N - 1]), 0, _add_2, keep_dims=True)
        sums, rows = sums + (a,), rows + (c,)
    return sums, rows


@triton.jit
def _chains(x, P, first: tl.constexpr, h: tl.constexpr, R: tl.constexpr, G: tl.constexpr):
    """The sum of x[i - first] P[i G + h] over i: four sums at a time, for none waits for another."""
    totals = ()
    for i in tl.static_range(first, min(first + 4, R)):
        totals = totals + (x[i - first] * P[i * G + h],)
    for start in tl.static_range(first + 4, R, 4):
        more = ()
        for k in tl.static_range(4):
            if start + k < R:
                more = more + (totals[k] + x[start + k - first] * P[(start + k) * G + h],)
            else:
                more = more + (totals[k],)
        totals = more
    total = totals[0]
    for k in tl.static_range(1, len(totals)):
        total += totals[k]
    return total


@triton.jit
def mirrors(
    P, T, steps, g: tl.constexpr, R: tl.constexpr, G: tl.constexpr, S: tl.constexpr,
    Q: tl.constexpr, WITH_T: tl.constexpr,
):  # fmt: skip
    """The first `steps` columns of group g, mirror by mirror. Returns P, T and tau [S, Q].

    Args:
        P: compact on the left of group g, on its right as those mirrors have left it.
        T: the rows of T [G Q, G Q], as P has its own, if WITH_T.
    """
    s, q = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :]
    # rows of tiles above `first` are done; from `below` on all rows are under the diagonal
    first: tl.constexpr = g * Q // S
    below: tl.constexpr = min(R, (g * Q + Q + S - 1) // S)
    # on the left of the group stands V, of which T wants to know
    left: tl.constexpr = 0 if WITH_T else g
    # by its bits, for a constant 0 has no sign
    nothing = tiles.from_bits(tl.full([S, Q], -(2**31), tl.int32))
    tau = tl.zeros([S, Q], tl.float32)
    for l in range(steps):
        j = g * Q + l
        x = ()
        for i in tl.static_range(first, R):
            xi = at_lane(P[i * G + g], l)
            if i < below:
                xi = tl.where(i * S + s > j, xi, 0.0)
            x = x + (xi,)
        sums, rows = (), ()
        for h in tl.static_range(left, G):
            # g = x^T P of `tiles.mirror`, and row j; a sum of -0.0 and a number is that number
            total = _chains(x, P, first, h, R, G)
            row = tl.where(first * S + s == j, P[first * G + h], nothing)
            for i in tl.static_range(first + 1, below):
                row += tl.where(i * S + s == j, P[i * G + h], nothing)
            sums, rows = sums + (total,), rows + (row,)
        sums, rows = over_rows(sums, rows, G - left)
        # a tile of one row would be shared out to the warps, and come back through memory
        alpha = at_lane(tl.broadcast_to(rows[g - left], [S, Q]), l)
        sigma = at_lane(tl.broadcast_to(sums[g - left], [S, Q]), l)
        beta, scale, tau_j = larfg(alpha, sigma)
        tau = tl.where(q == l, tau_j, tau)
        # z = v^T P; an entry x takes x `take` from its row, and in column j leaves v
        z, take, new = (), (), ()
        for h in tl.static_range(left, G):
            row = rows[h - left]
            z = z + (row + scale * sums[h - left],)
            y = tau_j * z[h - left]
            if h == g:
                take = take + (tl.where(q > l, scale * y, tl.where(q == l, 1.0 - scale, 0.0)),)
                new = new + (tl.where(q > l, row - y, tl.where(q == l, beta, row)),)
            elif h > g:
                take, new = take + (scale * y,), new + (row - y,)
        P1 = ()
        for i in tl.static_range(R):
            for h in tl.static_range(G):
                p = P[i * G + h]
                if i >= first and h >= g:
                    p -= x[i - first] * take[h - g]
                    if i < below:
                        p = tl.where(i * S + s == j, new[h - g], p)
                P1 = P1 + (p,)
        P = P1
        if WITH_T:
            T = _larft_column(T, z, tau_j, l, g, G, S, Q)
    return P, T, tau


@triton.jit
def _larft_column(
    T, z, tau_j, l, g: tl.constexpr, G: tl.constexpr, S: tl.constexpr, Q: tl.constexpr
):  # fmt: skip
    """T with column j = g Q + l: -tau_j T z[:j] over tau_j, with z = V^T v_j."""
    s, q = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :]
    T1 = ()
    for a in tl.static_range(len(T) // G):
        t = T[a * G + g] * tl.where(q < l, z[g], 0.0)
        for h in tl.static_range(g):
            t += T[a * G + h] * z[h]
        t = -tau_j * tl.sum(t, axis=1, keep_dims=True)
        t = tl.where(a * S + s == g * Q + l, tau_j, t)
        for h in tl.static_range(G):
            T1 = T1 + (tl.where(q == l, t, T[a * G + h]) if h == g else T[a * G + h],)
    return T1
