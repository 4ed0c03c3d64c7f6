"""Wrong answers to the exercises of chapter 11, each with words of the message that it gets."""

import math

import numpy as np
import torch

from qrlib.compact import unpack_v
from qrlib.reconstruction import geqrf
from qrlib.teach.exercises import reconstruction as chapter
from qrlib.teach.gram_schmidt import with_condition

RIGHT = ("nearer", "twice", "first zero", "triangular")


def without(*names):
    return tuple(name for name in RIGHT if name not in names)


# the elimination, with one thing changed


def lu(Q, *, sign=None, early=False, subtract=True, unit="L", by_row=False):
    A, S = Q.clone(), torch.ones_like(Q[:, 0])
    given = Q.diagonal(0, -2, -1).clone()
    for j in range(Q.shape[1]):
        d = given[:, j] if early else A[:, j, j].clone()
        S[:, j] = -torch.copysign(S[:, j], d) if sign is None else sign(d)
        A[:, j, j] -= S[:, j] if subtract else 0
        pivot = A[:, j, j, None].clone()
        if by_row:
            A[:, j, j + 1 :] /= pivot
        else:
            A[:, j + 1 :, j] /= pivot
        A[:, j + 1 :, j + 1 :] -= A[:, j + 1 :, j : j + 1] * A[:, j : j + 1, j + 1 :]
    return (A.tril(), unpack_v(A.mT).mT, S) if by_row else (unpack_v(A), A.triu(), S)


def lu_in_place(Q):
    L, U, S = lu(Q)
    Q.copy_(U)
    return L, Q, S


def lu_one_by_one(Q):
    return tuple(torch.cat(each) for each in zip(*(lu(q[None]) for q in Q)))


def lu_spreads_nan(Q):
    L, U, S = lu(Q)
    return L, U + 0 * U.sum(), S


def lu_s_as_matrix(Q):
    L, U, S = lu(Q)
    return L, U, torch.diag_embed(S)


# Cholesky, with one thing changed


def chol(G, *, stop="relative", zeros=True, together=False, lower=False, guard=True, root=True):
    R, ok = torch.zeros_like(G), torch.ones(len(G), dtype=torch.bool)
    for j in range(G.shape[1]):
        row = G[:, j, j:] - (R[:, :j, j : j + 1].mT @ R[:, :j, j:])[:, 0]
        pivot, whole = row[:, 0], G[:, j, j]
        least = {
            "relative": G.shape[1] * torch.finfo(G.dtype).eps * whole,
            "absolute": torch.full_like(whole, 1e-6),
            "zero": 0 * whole,
            "never": torch.full_like(whole, -math.inf),
        }[stop]
        good, zero = pivot > least, (whole == 0) & zeros
        by = torch.where(good, pivot, 1) if guard else pivot
        by = by.sqrt() if root else by
        R[:, j, j:] = torch.where(good[:, None] | (not guard), row / by[:, None], 0)
        if guard:
            R[:, j, j] = torch.where(zero, 0, by)
        ok &= good | zero
    return R.mT.contiguous() if lower else R, ok.all().expand(len(G)) if together else ok


def chol_nan_is_a_pivot(G):
    R, ok = chol(G)
    return R, ok | torch.isnan(G).flatten(1).any(1)


def chol_one_by_one(G):
    return tuple(torch.cat(each) for each in zip(*(chol(g[None]) for g in G)))


def chol_of_torch(G):
    return torch.linalg.cholesky(G).mT.contiguous(), torch.ones(len(G), dtype=torch.bool)


# the residual, with one thing changed


def residual(
    G, T, L, U, S, R, *, sign=1, rows=False, by=lambda x: x.amax(1), through=True, relative=True,
    guard=True, root=True, transposed=False, times=True,
):  # fmt: skip
    X = (U * (S[:, :, None] if rows else S[:, None])) + sign * (T.mT if transposed else T) @ L.mT
    if not times:
        return X.abs().sum(1).amax(1)
    Y = X @ R
    squares = (Y * (G @ Y if through else Y)).sum(1).clamp(min=0)
    lengths = (R * R).sum(1) if relative else torch.ones_like(squares)
    lengths = torch.where(lengths > 0, lengths, 1) if guard else lengths
    each = squares / lengths
    return by(each.sqrt() if root else each)


def residual_hides_nan(*given):
    return torch.nan_to_num(residual(*given))


def residual_of_all(*given):
    return residual(*given).amax().expand(len(given[0]))


# the widest panel


def widest(A, passes, *, tall=True, pick=max, some=torch.any, first=False):
    n, found = A.shape[1], [0]
    for nb in chapter.WIDTHS:
        fell = []
        geqrf(A[:1] if first else A, nb=nb, passes=passes, fell=fell)
        kept = [each for k, each in enumerate(fell) if not tall or n - k * nb >= 2 * nb]
        if not some(torch.stack(kept)):
            found.append(nb)
    return pick(found)


WRONG = {
    "11.1": {
        "lengths too": ((*RIGHT, "lengths"), "does not see lengths"),
        "a fifth is near": ((*RIGHT, "near"), "loses one or two"),
        "a ten-thousandth is not": (without("nearer"), "rounds at 6e-8"),
        "a column twice": (without("twice"), "R has a zero on its diagonal"),
        "all zeros fall": ((*RIGHT, "last zero"), "Nothing comes after it"),
        "no zeros fall": (without("first zero"), "knows no rows"),
        "triangular is easy": (without("triangular"), "All tau must be 0 there"),
        "a name of none": (("first", *RIGHT), "none of the names"),
        "one name": ("twice", "must be a tuple of names"),
    },
    "11.2": {
        "sign(0)": (lambda Q: lu(Q, sign=lambda d: -torch.sign(d)), "copysign, not sign"),
        "with the diagonal": (
            lambda Q: lu(Q, sign=lambda d: torch.copysign(torch.ones_like(d), d)),
            "with the right S all are at least 1",
        ),
        "by the first diagonal": (
            lambda Q: lu(Q, early=True),
            "as it is when its turn comes",
        ),
        "always -1": (
            lambda Q: lu(Q, sign=lambda d: -torch.ones_like(d)),
            "with the right S all are at least 1",
        ),
        "Q alone": (lambda Q: lu(Q, subtract=False), "with the right S all are at least 1"),
        "U has the ones": (lambda Q: lu(Q, by_row=True), "L[0, 0, 0] is 1.4"),
        "S a matrix": (lu_s_as_matrix, "S must have shape [1, 2]"),
        "in place": (lu_in_place, "changed its input Q"),
        "one by one": (lu_one_by_one, "one by one"),
        "NaN spreads": (lu_spreads_nan, "has changed U of its neighbours"),
        "two of three": (lambda Q: lu(Q)[:2], "3 things, L, U, S"),
    },
    "11.3": {
        "absolute": (lambda G: chol(G, stop="absolute"), "not with a number"),
        "zero only": (lambda G: chol(G, stop="zero"), "How much of it can be rounding"),
        "never": (lambda G: chol(G, stop="never", guard=False), "which has a column twice"),
        "together": (lambda G: chol(G, together=True), "has stopped its neighbours"),
        "lower": (lambda G: chol(G, lower=True), "R is upper triangular here"),
        "roots of what is negative": (lambda G: chol(G, guard=False), "R has NaN"),
        "zeros stop": (lambda G: chol(G, zeros=False), "for a column of zeros"),
        "no root": (lambda G: chol(G, root=False), "R[0, 0, 0] is 25; expected 5"),
        "NaN is a pivot": (chol_nan_is_a_pivot, "A NaN is no pivot"),
        "one by one": (chol_one_by_one, "one by one"),
        "a library's": (chol_of_torch, "It raised"),
        "one ok": (lambda G: (chol(G)[0], True), "one for each matrix"),
    },
    "11.4": {
        "E": (lambda *g: residual(*g, times=False), "That is E, of Q~"),
        "minus": (lambda *g: residual(*g, sign=-1), "X = U S + T L^T"),
        "rows of U": (lambda *g: residual(*g, rows=True), "S has the columns of U"),
        "T transposed": (lambda *g: residual(*g, transposed=True), "X = U S + T L^T"),
        "y, not V y": (lambda *g: residual(*g, through=False), "not |y|"),
        "not relative": (lambda *g: residual(*g, relative=False), "over its own length"),
        "the mean": (lambda *g: residual(*g, by=lambda x: x.mean(1)), "not the mean"),
        "the square": (lambda *g: residual(*g, root=False), "That is its square"),
        "zero over zero": (lambda *g: residual(*g, guard=False), "divide by 1 there"),
        "one for all": (residual_of_all, "expected"),
        "NaN hidden": (residual_hides_nan, "must be NaN, or it may pass"),
        "each column": (lambda *g: residual(*g, by=lambda x: x), "must have shape [3]"),
    },
    "11.5": {
        "tall": (with_condition(512, 4, 30), "more than 4 are wanted"),
        "easy": (with_condition(8, 4, 1), "more than 4 are wanted"),
        "too hard": (with_condition(64, 8, 500), "refuses it"),
        "hopeless": (with_condition(64, 8, 1e7), "it falls without E"),
        "square": (with_condition(4, 4, 30), "at least twice as tall as wide"),
        "float64": (with_condition(8, 4, 30, dtype=np.float64), "must be a float32 array"),
        "NaN": (np.full((8, 4), np.nan, np.float32), "P has NaN"),
        "a batch": (with_condition(8, 4, 30)[None], "must be a float32 array"),
    },
    "11.6": {
        "square ones too": (lambda A, passes: widest(A, passes, tall=False), "2 nb rows only"),
        "the narrowest": (
            lambda A, passes: widest(A, passes, pick=lambda f: min(f[1:] or [0])),
            "it gives 8; expected 32",
        ),
        "always one pass": (lambda A, passes: widest(A, 1), "That is the width for 1 pass"),
        "always two passes": (lambda A, passes: widest(A, 2), "That is the width for 2 passes"),
        "all must fall": (
            lambda A, passes: widest(A, passes, some=torch.all),
            "One matrix is enough",
        ),
        "an index": (lambda A, passes: chapter.WIDTHS.index(32), "It is one of 8, 16, 32"),
        "a constant": (lambda A, passes: 32, "expected"),
    },
}
