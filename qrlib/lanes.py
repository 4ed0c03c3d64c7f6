"""The verbs of `tiles` for a panel whose rows have names: column j is a shuffle away. Triton.

A panel P [m, n] is a tuple of tiles [S, Q] with one number for each thread: tile i G + g has the
rows from i S on and the columns from g Q on. Lanes have columns, warps have rows. So the entries of
a column reach all lanes of their rows by one shuffle a tile, a dot product is a chain of
multiply-adds of a thread, and rows and columns that are done are left out by their names.
"""

import triton
import triton.language as tl

from qrlib import tiles
from qrlib.elimination import SIGN, at_lane


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
    """(beta, scale, tau) as those of `tiles`, to the last bit or two, and scale tau.

    A root and a quotient that are correctly rounded take branches; these take an instruction and a
    step of Newton each, and that of the quotient, 1 / tau, does not wait for that of the root.
    """
    norm2 = alpha * alpha + sigma
    # not (>=): a NaN goes on and shows
    done = (sigma == 0) | (norm2 < tiles.TINY)
    size = tl.abs(alpha)
    y = tl.rsqrt(norm2)
    root = tl.rsqrt(1.0 + size * y)
    y *= 1.5 - 0.5 * norm2 * y * y
    tau = 1.0 + size * y
    quotient = root * root
    quotient *= 2.0 - tau * quotient
    # the sign bit, for alpha may be -0.0
    y = tiles.from_bits(tiles.bits_of(y) ^ (tiles.bits_of(alpha) & SIGN))
    beta, scale = tl.where(done, alpha, -norm2 * y), tl.where(done, 0.0, quotient * y)
    return beta, scale, tl.where(done, 0.0, tau), tl.where(done, 0.0, y)


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
    """The sum of x[i - first] P[i G + h] over i, as four sums, for none waits for another."""
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
    P, steps, X_ptr, stride, g: tl.constexpr, R: tl.constexpr, G: tl.constexpr, S: tl.constexpr,
    Q: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """The first `steps` columns of group g, mirror by mirror. Returns P and tau [S, Q].

    Args:
        P: compact on the left of group g, on its right as those mirrors have left it.
        X_ptr: if INNER, row j becomes V^T v_j, on the left of the diagonal.
    """
    s, q = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :]
    # rows of tiles above `first` are done; from `below` on all rows are under the diagonal
    first: tl.constexpr = g * Q // S
    below: tl.constexpr = min(R, (g * Q + Q + S - 1) // S)
    # on the left of the group stands V, of which T wants to know
    left: tl.constexpr = 0 if INNER else g
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
        beta, scale, tau_j, share = larfg(alpha, sigma)
        tau = tl.where(q == l, tau_j, tau)
        # z = v^T P; an entry x takes x `take` from its row, and in column j leaves v
        z, take, new = (), (), ()
        for h in tl.static_range(left, G):
            row = rows[h - left]
            z = z + (row + scale * sums[h - left],)
            if h >= g:
                from_x, row = share * z[h - left], row - tau_j * z[h - left]
                if h == g:
                    from_x = tl.where(q > l, from_x, tl.where(q == l, 1.0 - scale, 0.0))
                    row = tl.where(q > l, row, tl.where(q == l, beta, rows[h - left]))
                take, new = take + (from_x,), new + (row,)
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
        if INNER:
            for h in tl.static_range(g + 1):
                tl.store(X_ptr + j * stride + h * Q + q + s * 0, z[h] + s * 0, mask=s == 0)
    return P, tau


@triton.jit
def mirror_of_warp(
    P, tau, l, c: tl.constexpr, g: tl.constexpr, R: tl.constexpr, G: tl.constexpr, Q: tl.constexpr
):  # fmt: skip
    """Mirror l of group g, its diagonal in row c of R, where a tile is a row: nothing is masked."""
    q = tl.arange(0, Q)[None, :]
    x = ()
    sigma = tl.zeros([1, Q], tl.float32)
    for i in tl.static_range(c + 1, R):
        x = x + (at_lane(P[i * G + g], l),)
    if c + 1 < R:
        sigma = _chains(x, x, 0, 0, R - c - 1, 1)
    beta, scale, tau_l, share = larfg(at_lane(P[c * G + g], l), sigma)
    # z = v^T P; an entry x takes x `take` from its row, and in column l leaves v
    take, new = (), ()
    for h in tl.static_range(g, G):
        row = P[c * G + h]
        z = row
        if c + 1 < R:
            z += scale * _chains(x, P, c + 1, h, R, G)
        from_x, to = share * z, row - tau_l * z
        if h == g:
            from_x = tl.where(q > l, from_x, tl.where(q == l, 1.0 - scale, 0.0))
            to = tl.where(q > l, to, tl.where(q == l, beta, row))
        take, new = take + (from_x,), new + (to,)
    P1 = ()
    for i in tl.static_range(R):
        for h in tl.static_range(G):
            p = P[i * G + h]
            if i == c and h >= g:
                p = new[h - g]
            elif i > c and h >= g:
                p -= x[i - c - 1] * take[h - g]
            P1 = P1 + (p,)
    return P1, tl.where(q == l, tau_l, tau)


@triton.jit
def mirrors_of_warp(
    P, g: tl.constexpr, R: tl.constexpr, G: tl.constexpr, Q: tl.constexpr,
    C: tl.constexpr = 4, N: tl.constexpr = 2,
):  # fmt: skip
    """The columns of group g. Returns the rows that are done, those that are not, and tau [1, Q].

    P begins with the row of the first of them. C columns are one body of a loop, as its first rows;
    then rows move up, so that one body is right N times. After it their number is less.
    """
    nothing = tl.zeros([1, Q], tl.float32)
    tau = nothing
    all_done = ()
    for first in tl.static_range(0, min(Q, R), C * N):
        done = _moved((), (), 0, C * N * G, nothing)
        for step in range(N):
            for c in tl.static_range(C):
                P, tau = mirror_of_warp(P, tau, first + step * C + c, c, g, R - first, G, Q)
            done = _moved(done, P, C * G, C * N * G, nothing)
            P = _moved(P, (), C * G, (R - first) * G, nothing)
        all_done = all_done + done
        P = _moved(P, (), 0, (R - first - C * N) * G, nothing)
    return all_done, P, tau


@triton.jit
def _moved(a, b, start: tl.constexpr, length: tl.constexpr, nothing):
    """So many of a[start:] + b, and what is missing is nothing."""
    moved = ()
    for i in tl.static_range(start, start + length):
        if i < len(a):
            moved = moved + (a[i],)
        elif i - len(a) < len(b):
            moved = moved + (b[i - len(a)],)
        else:
            moved = moved + (nothing,)
    return moved
