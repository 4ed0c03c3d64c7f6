"""Mistakes in the exercises of the chapter of stage 8: an answer, and words of the message."""

import math

import numpy as np

from qrlib.teach.exercises.s08_cholesky import root, where


def count(*, wide=64, tall=96):
    def at_once(m, n):
        k = min(m, n)
        return sum(k - j >= wide and m - j >= tall for j in range(0, k, 64))

    return at_once


def warp(*, once=False, zeros=True, guard=True, shuffles=1, rooted=True):
    def cholesky(rows):
        z, R = list(rows), []
        for j in range(len(rows)):
            pivot = z[0].at(j)
            y = 1 / root(pivot) if rooted else pivot * 0 + 1
            y = where(pivot > 0, y, 0) if guard else y
            r = z[0] * y
            R.append(where(z[0].lane >= j, r, 0) if zeros else r)
            for _ in range(shuffles - 1):
                z[0].at(j)
            z = [each - each.at(j) * (r if once else y * r) for each in z[1:]]
        return R

    return cholesky


def one_row(rows):
    return warp()(rows)[0]


def in_numpy(rows):
    return list(np.linalg.cholesky(np.stack([row._own for row in rows])).T)


def peeks(rows):
    return [row[0] for row in rows]


def outside(rows):
    return [row.at(len(rows)) for row in rows]


def triangle(*, sign=-1, by_tau=True, upper=True):
    def larft(G, tau):
        T = np.zeros_like(G)
        for j in reversed(range(len(tau))):
            row = sign * G[j, j + 1 :] @ T[j + 1 :]
            row[j] += 1
            T[j] = tau[j] * row if by_tau else row
        return T if upper else np.ascontiguousarray(T.T)

    return larft


def by_one(G, tau):
    """1 for 1 / 0."""
    return np.linalg.inv(np.triu(G, 1) + np.diag(1 / np.where(tau == 0, 1, tau)))


def by_half(G, tau):
    """The diagonal of G for 1 / tau, as if every column had a mirror."""
    return np.linalg.inv(np.triu(G, 1) + np.diag(np.diag(G) / 2))


def without_rest(G, tau):
    return np.diag(tau) @ (np.eye(len(tau)) - np.triu(G, 1)) @ np.diag(tau)


def matrix(change=None, dtype=np.float32):
    def third():
        A = np.random.default_rng(1).standard_normal((256, 256))
        if change is not None:
            change(A)
        return A.astype(dtype)

    return third


def near(c, d, by=1e-4):
    def change(A):
        A[:, d] = A[:, c] + by * A[:, d]

    return change


def both(A):
    near(10, 20)(A)
    near(140, 150)(A)


def no_column(A):
    A[:, 191] = 0


def no_number(A):
    A[3, 140] = np.nan


def streams(*, waits=True, after=False, end=max, beside=True):
    def ahead(panels, near, far):
        now = branch = 0.0
        for p, n, f in zip(panels, near, far):
            fork = max(now + p, branch) if waits else now + p
            now = fork + n
            branch = (now if after else fork) + f
            if not beside:
                now = branch = fork + n + f
        return end(now, branch)

    return ahead


WRONG = {
    "s08_cholesky.1": {
        "all of them": (lambda m, n: math.ceil(min(m, n) / 64), "Not every panel"),
        "all full ones": (lambda m, n: min(m, n) // 64, "Not every panel"),
        "square ones too": (count(tall=64), "Not every panel"),
        "more than 96": (count(tall=97), "Exactly 96 rows"),
        "narrow ones too": (count(wide=1), "fewer than 64 columns"),
        "a word": (lambda m, n: "seven", "must be a number"),
    },
    "s08_cholesky.2": {
        "divided once": (warp(once=True), "two factors 1 / r_jj"),
        "the left not cleared": (warp(zeros=False), "something left of its diagonal"),
        "no root": (warp(rooted=False), "over the root of its pivot"),
        "no care for zeros": (warp(guard=False), "A pivot of zero has no inverse"),
        "shuffled twice": (warp(shuffles=2), "44 shuffles; 36 are enough"),
        "one row": (one_row, "a list of 2 rows"),
        "around the warp": (in_numpy, "must be a Lanes; got"),
        "looks into a lane": (peeks, "TypeError"),
        "a lane that is none": (outside, "lane must be 0 to 1"),
    },
    "s08_cholesky.3": {
        "added": (triangle(sign=1), "is taken away from e_j"),
        "not by tau": (triangle(by_tau=False), "times tau_j"),
        "the transpose": (triangle(upper=False), "That is its transpose"),
        "one for infinity": (by_one, "there is no mirror: row and column"),
        "every column has a mirror": (by_half, "there is no mirror: row and column"),
        "one level": (without_rest, "T[j+1:] is there already"),
        "a list": (lambda G, tau: G.tolist(), "T must be a NumPy array"),
    },
    "s08_cholesky.4": {
        "random": (matrix(), "of the first three panels none fell"),
        "a copy of column 0": (matrix(near(0, 140, 0)), "as good as random"),
        "the first panel": (matrix(near(10, 20)), "of the first three panels first fell"),
        "two panels": (matrix(both), "first and third fell"),
        "a last column of zeros": (matrix(no_column), "none fell"),
        "a fifth": (matrix(near(140, 150, 0.2)), "none fell"),
        "NaN": (matrix(no_number), "A has NaN"),
        "float64": (matrix(near(140, 150), np.float64), "A must be float32"),
        "too small": (lambda: np.zeros((64, 64), np.float32), "[256, 256]"),
    },
    "s08_cholesky.5": {
        "one after the other": (lambda p, n, f: sum(p) + sum(n) + sum(f), "on a stream of its own"),
        "the branch for nothing": (lambda p, n, f: sum(p) + sum(n), "may take longer"),
        "nobody waits for the branch": (streams(waits=False), "Who waits for the far update"),
        "far after near": (streams(after=True), "begins where the near one does"),
        "the stream alone": (streams(end=lambda now, branch: now), "8 is right"),
        "in turn": (streams(beside=False), "on a stream of its own"),
        "nothing": (lambda p, n, f: None, "must be a number"),
    },
}
