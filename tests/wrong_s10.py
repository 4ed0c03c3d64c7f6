"""Mistakes in the exercises of the chapter of stage 10: an answer, and words of the message."""

import math

import numpy as np

from qrlib.teach.exercises.s10_blackwell import one_mirror


def banks(*, count=32, same=False, total=False):
    def turns(words):
        found = {}
        for word in words if same else set(words):
            found[word % count] = found.get(word % count, 0) + 1
        return sum(found.values()) if total else max(found.values())

    return turns


def mirror(*, sign=-1, scale=True, tau=None, left=False, head=True, zero=True, keep=False):
    def answer(P, j):
        x = [row[j] for row in P[j + 1 :]]
        sigma, alpha = sum(e * e for e in x), P[j][j]
        if sigma == 0 and zero:
            return list(P), 0.0
        beta = sign * math.copysign(math.sqrt(alpha * alpha + sigma), alpha)
        s, t = 1 / (alpha - beta) if alpha != beta else 1.0, 1 - alpha / beta
        q = np.arange(len(P[j]))
        z = P[j] + (s if scale else 1) * sum(e * row for e, row in zip(x, P[j + 1 :]))
        here = np.ones_like(q, bool) if left else q > j
        top = np.where(here & (q != j), P[j] - t * z, np.where(q == j, beta if head else 1, P[j]))
        below = [
            np.where(here & (q != j), row - e * s * t * z, np.where(q == j, e * s, row))
            for e, row in zip(x, P[j + 1 :])
        ]
        if keep:
            below = list(P[j + 1 :])
        return [*P[:j], top, *below], t if tau is None else tau

    return answer


PIPES = {"fp32": 1, "half": 2, "shuffle": 4, "root": 8}


def busy(counts):
    return [count * PIPES[what] for what, count in counts.items()]


def column(*entries, dtype=np.float32):
    return lambda: np.array(entries, dtype)


def line(find):
    def starts(launches, us):
        return find(np.array(launches, float), np.array(us, float))

    return starts


def fit(x, y):
    return tuple(map(float, np.polyfit(x, y, 1)))


WRONG = {
    "s10_blackwell.1": {
        "64 banks": (banks(count=64), "The bank is k mod 32"),
        "a word for each": (banks(same=True), "One word is given to all at once"),
        "one after the other": (banks(total=True), "32 words in 32 banks"),
        "always one": (lambda words: 1, "The bank is k mod 32"),
        "the step": (lambda words: max(1, abs(words[1] - words[0])), "33 k mod 32 = k mod 32"),
        "a list": (lambda words: [1], "must be a number"),
    },
    "s10_blackwell.2": {
        "the other sign": (mirror(sign=1), "expected"),
        "x for v": (mirror(scale=False), "Row j - tau z"),
        "a head of one": (mirror(head=False), "beta on the diagonal"),
        "left, too": (mirror(left=True), "It is done, and stays"),
        "nothing below": (mirror(keep=True), "and scale x_i below it"),
        "no tau": (mirror(tau=1.0), "tau = 1 - alpha / beta"),
        "no question": (mirror(zero=False), "there is no mirror"),
        "an array": (lambda P, j: (np.stack(one_mirror(P, j)[0]), 1.0), "a list of 5 rows"),
    },
    "s10_blackwell.3": {
        "one after the other": (lambda c: sum(busy(c)), "the busiest decides"),
        "issue alone": (lambda c: sum(c.values()), "2 cycles each"),
        "units alone": (lambda c: max(busy(c)), "to be issued, too"),
        "of an SM": (lambda c: max(sum(c.values()), *busy(c)) / 4, "the SM has four"),
        "by lane": (lambda c: 32 * max(sum(c.values()), *busy(c)), "are one instruction"),
    },
    "s10_blackwell.4": {
        "a zero": (column(0.0, 1.0), "the sum of -0.0 and 0.0"),
        "a small number": (column(-1e-45, 1.0), "the sum of -0.0 and 0.0"),
        "no mirror": (column(-0.0, 0.0), "there is no mirror"),
        "NaN": (column(math.nan, 1.0), "has NaN"),
        "float64": (column(-0.0, 1.0, dtype=np.float64), "must be float32"),
        "a list": (lambda: [-0.0, 1.0], "a NumPy array"),
    },
    "s10_blackwell.5": {
        "the other way round": (line(lambda x, y: fit(x, y)[::-1]), "The other way round"),
        "through zero": (line(lambda x, y: (y.sum() / x.sum(), 0.0)), "need not go through zero"),
        "two points": (
            line(lambda x, y: (s := (y[-1] - y[0]) / (x[-1] - x[0]), y[0] - s * x[0])),
            "Two points are a line",
        ),
        "one number": (line(lambda x, y: fit(x, y)[0]), "2 things"),
    },
}
