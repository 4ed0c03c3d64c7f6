"""Wrong answers to the exercises of chapter 10, each with words of the message that it gets."""

import math

import torch
import triton
import triton.language as tl

from qrlib import tiles
from qrlib.teach.exercises import s07_whole as chapter


def tile_rows(m, n, BM, BN, levels, *, least=None, late=False, columns=min, halve=True, give=None):
    rows, tile = [], BM
    least = BM >> (levels - 1) if least is None else least
    for p in range(0, columns(m, n), BN):
        left = m - p
        while halve and tile > least and (left < tile // 2 if late else left <= tile // 2):
            tile //= 2
        rows.append(give(p, left) if give else tile)
    return rows


def halved_each_time(m, n, BM, BN, levels):
    return [max(BM >> k, BM >> (levels - 1)) for k in range(-(-min(m, n) // BN))]


@triton.jit
def changed_kernel(
    A_ptr, H_ptr, tau_ptr, T_ptr, m, n, stride_ab, stride_am, stride_an,
    BM: tl.constexpr, BN: tl.constexpr, CHANGE: tl.constexpr,
):  # fmt: skip
    """small_kernel with one thing changed."""
    b = tl.program_id(0).to(tl.int64)
    if CHANGE == "one matrix":
        b = b * 0
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    k = tl.minimum(m, n)
    inside = (i < m) & (c < n)
    if CHANGE == "no mask":
        inside = (i < BM) & (c < n)
    A_ptrs = A_ptr + b * stride_ab + i * stride_am + c * stride_an
    if CHANGE == "row-major":
        A_ptrs = A_ptr + b * m * n + i * n + c
    P = tl.load(A_ptrs, mask=inside, other=0.0)
    if CHANGE == "twice in":
        P = 0.5 * (P + tl.load(A_ptrs, mask=inside, other=0.0))
    e = tiles.exponent_of(tl.max(tl.abs(P), axis=0, keep_dims=True))
    if CHANGE == "no scale":
        e = e * 0
    P, tau, T = tiles.geqr2(P * tiles.power_of_two(-e), k, BM, BN)
    H_ptrs = H_ptr + b * m * n + i * n + c
    H = tl.where(i <= c, P * tiles.power_of_two(e), P)
    if CHANGE == "reloaded":
        tl.store(H_ptrs, P, mask=inside)
        H = tl.load(H_ptrs, mask=inside, other=0.0)
        H = tl.where(i <= c, H * tiles.power_of_two(e), H)
    if CHANGE == "not back":
        H = P
    if CHANGE == "all back":
        H = P * tiles.power_of_two(e)
    tl.store(H_ptrs, H, mask=inside)
    if CHANGE == "again":
        tl.store(H_ptrs, H, mask=inside)
    if CHANGE == "T":
        r = tl.arange(0, BN)[:, None]
        tl.store(T_ptr + b * BN * BN + r * BN + c, T)
    tl.store(tau_ptr + b * k + c, tau, mask=c < k)


def small(change="", *, rows=32, one_by_one=False, more=0):
    """An answer to 10.3 that makes a mistake."""

    def small_qr(A):
        B, m, n = A.shape
        H, tau, T = A.new_empty(B, m, n), A.new_empty(B, min(m, n)), A.new_empty(B, 32, 32)
        parts = [slice(b, b + 1) for b in range(B)] if one_by_one else [slice(B)]
        for at in parts:
            grid = (len(A[at]) + more,)
            changed_kernel[grid](
                A[at], H[at], tau[at], T[at], m, n, *A.stride(), BM=rows, BN=32, CHANGE=change
            )
        return H, tau

    return small_qr


def small_by_torch(A):
    return tuple(torch.geqrf(A))


def small_with_t(A):
    return *chapter.small_qr(A), None


def small_spreads_nan(A):
    H, tau = chapter.small_qr(A)
    return H + 0 * H.sum(), tau


def small_overwrites(A):
    H, tau = chapter.small_qr(A)
    return A.copy_(H), tau


def last_win(sizes, six, seven):
    return max((n for n, a, b in zip(sizes, six, seven) if b < a), default=0)


def first_loss(sizes, six, seven):
    best = 0
    for n, a, b in zip(sizes, six, seven):
        if b >= a:
            return best
        best = n
    return best


def by_score(score):
    """The size for which a score of all times is least."""

    def handover(sizes, six, seven):
        ends = range(len(sizes) + 1)
        k = min(ends, key=lambda k: score([*seven[:k], *six[k:]]))
        return [0, *sizes][k]

    return handover


WRONG = {
    "10.1": {
        "rounded down": (
            lambda p, s, r: (p // (s * r), p / (max(p // (s * r), 1) * s * r)),
            "The rest that does not fill the chip needs a wave too",
        ),
        "always one more": (
            lambda p, s, r: (p // (s * r) + 1, p / ((p // (s * r) + 1) * s * r)),
            "Nothing is left over",
        ),
        "not rounded": (lambda p, s, r: (p / (s * r), 1), "Waves come whole"),
        "one place an SM": (
            lambda p, s, r: (-(-p // s), p / (-(-p // s) * s * r)),
            "has room for several programs",
        ),
        "one SM": (lambda p, s, r: (-(-p // r), 1), "There is more than one SM"),
        "busy in the last wave": (
            lambda p, s, r: (-(-p // (s * r)), ((p - 1) % (s * r) + 1) / (s * r)),
            "That is the last wave alone",
        ),
        "idle": (
            lambda p, s, r: (-(-p // (s * r)), 1 - p / (-(-p // (s * r)) * s * r)),
            "the share that is idle",
        ),
        "waves only": (lambda p, s, r: -(-p // (s * r)), "2 things, waves, busy"),
    },
    "10.2": {
        "never halved": (
            lambda *a: tile_rows(*a, halve=False),
            "has a tile of 256 rows; expected 128",
        ),
        "halved each time": (halved_each_time, "and they do not fit"),
        "as many as are left": (
            lambda *a: tile_rows(*a, give=lambda p, left: left),
            "A tile has a power of two of rows",
        ),
        "halved too late": (lambda *a: tile_rows(*a, late=True), "128 rows fit into 128 exactly"),
        "below the last level": (
            lambda *a: tile_rows(*a, least=1),
            "With 3 levels no tile is smaller than 64",
        ),
        "all columns": (
            lambda *a: tile_rows(*a, columns=lambda m, n: n),
            "has 3 panels; the list has 7",
        ),
        "all rows": (lambda *a: tile_rows(*a, columns=lambda m, n: m), "the list has 19"),
        "the first only": (lambda *a: tile_rows(*a)[0], "must give a list of numbers"),
    },
    "10.3": {
        "no mask": (small("no mask"), "mask=inside"),
        "the first matrix for all": (small("one matrix"), "Two programs meet"),
        "stored and loaded again": (small("reloaded"), "Keep the tile in registers"),
        "no scale": (small("no scale"), "Bring each column near 1"),
        "R not scaled back": (small("not back"), "V is right and R is not"),
        "V scaled back": (small("all back"), "R is right and V is not"),
        "A taken for row-major": (small("row-major"), "A has strides of its own"),
        "too small a tile": (small(rows=16), "H has NaN"),
        "a launch a matrix": (small(one_by_one=True), "makes 4 launches"),
        "A loaded twice": (small("twice in"), "and each is needed once"),
        "H stored twice": (small("again"), "R and V leave in one store"),
        "T stored": (small("T"), "T stays"),
        "by torch": (small_by_torch, "starts no kernel"),
        "with T": (small_with_t, "2 things, H, tau"),
        "NaN spread": (small_spreads_nan, "NaN in one matrix has changed the result of its"),
        "A overwritten": (small_overwrites, "changed its input A"),
        "a program too many": (small(more=1), "mask=inside"),
    },
    "10.4": {
        "not shown": (((8, 13), (8, 13), 16), "For 8 x 13 no load comes too early"),
        "not hidden": (((8, 8), (9, 9), 16), "For 9 x 9 a program loads 1 entries too early"),
        "tall": (((8, 8), (13, 8), 16), "Every block must have columns on its right"),
        "all rows": (((8, 8), (8, 13), 32), "The last loop loads all rows"),
        "everything": (((8, 8), (8, 13), 64), "What earlier blocks stored"),
        "none": (((8, 8), (8, 13), 0), "Rows of the last block"),
        "one block": (((4, 4), (8, 13), 16), "from 5 to 32; got 4 x 4"),
        "two shapes": (((8, 8), (8, 13)), "3 things, shown, hidden, early"),
    },
    "10.5": {
        "the last success": (last_win, "what did it lose on the way"),
        "the first loss": (first_loss, "may be won back"),
        "the sum": (by_score(sum), "That is the best sum"),
        "the worst": (by_score(lambda times: -math.prod(times)), "Try every size"),
        "an index": (
            lambda sizes, six, seven: 1 + sizes.index(chapter.handover(sizes, six, seven) or 16),
            "It is one of the sizes",
        ),
        "a constant": (lambda sizes, six, seven: 64, "expected 0"),
        "all of them": (lambda sizes, six, seven: list(sizes), "must be a number"),
    },
}
