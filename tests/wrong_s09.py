"""Mistakes in the exercises of the chapter of stage 9: an answer, and words of the message."""

import math

import torch

from qrlib.householder import matmul
from qrlib.teach.rounded import short


def chance(*, doubled=2, off=0.41, head=True, root=True, squares=True, eps=2.0**-23):
    def by_chance(cut):
        one = doubled * off * 2.0**-11 / eps
        each = [one / math.sqrt(2) if head and place[0] == "V" else one for place in cut]
        if not squares:
            return sum(each)
        total = sum(x * x for x in each)
        return math.sqrt(total) if root else total

    return by_chance


def update(*, v=True, w=True, z=True, t=False, c=False, cut=lambda x: short(x, "fp16")):
    def keep(x):
        return x

    def one_product(V, T, C):
        V1 = (cut if v else keep)(V)
        W = matmul(V1.mT, (cut if w else keep)(C))
        small = cut if t else keep
        Z = matmul(small(T).mT, small(W))
        return (cut if c else keep)(C) - matmul(V1, (cut if z else keep)(Z))

    return one_product


def plain(x):
    return x.half().float()


def in_place(V, T, C):
    C -= matmul(V, matmul(T.mT, matmul(V.mT, C)))
    return C


def spikes(*, scaled=True, whole=False, batch=False, divided=False, opposite=False, strict=False):
    def flat(A, most):
        m = A.shape[-2]
        top = A.abs().amax(-2, keepdim=True)
        a = A / torch.where(top == 0, 1, top) if scaled else A
        over = (-2, -1) if whole else -2
        squares, sums = (a * a).sum(over), a.abs().sum(over)
        if whole:
            return m * A.shape[-1] * squares <= most**2 * sums**2
        if divided:
            found = m**0.5 * squares.sqrt() / sums <= most
        elif opposite:
            found = ~(m * squares > most**2 * sums**2)
        elif strict:
            found = (m * squares < most**2 * sums**2) | (sums == 0)
        else:
            found = m * squares <= most**2 * sums**2
        return found.all(-1).all().expand(len(A)).clone() if batch else found.all(-1)

    return flat


def matrix(change=lambda A: None, dtype=torch.float32):
    def hidden():
        A = torch.randn(512, 512, generator=torch.Generator().manual_seed(3))
        change(A)
        return A.to(dtype)

    return hidden


def single(column, size):
    def change(A):
        A[:, column] = 0
        A[7, column] = size

    return change


def all_of_it(A):
    A[torch.arange(512), torch.arange(512)] = 512


def no_number(A):
    A[3, 400] = math.nan


def twins(A):
    """Three products fail as well: entries that no float32 sum keeps apart."""
    single(400, 512)(A)
    A[3, 2] = math.inf


def share(*, rate=2, terms=3, both=2, all_of_it=True):
    def found(m, products):
        small, large = 3 * 64 * 64 * terms * rate, products * both * 128 * m
        return small / (small + large if all_of_it else large)

    return lambda m, products: found(m, products)


WRONG = {
    "s09_mixed.1": {
        "added up": (chance(squares=False), "squares that add up"),
        "the head rounded, too": (chance(head=False), "only half is cut"),
        "not doubled": (chance(doubled=1), "A mirror doubles"),
        "absolute": (chance(eps=2.0**-11), "over eps, and n is gone"),
        "no root": (chance(root=False), "A root of the sum"),
        "a full u": (chance(off=1), "not by u"),
        "a list": (lambda cut: [5800], "must be a number"),
    },
    "s09_mixed.2": {
        "Z not cut": (update(z=False), "Not cut yet: Z in VZ"),
        "V not cut": (update(v=False), "Not cut yet: V in VZ, V in W"),
        "nothing cut": (update(v=False, w=False, z=False), "Not cut yet: C in W"),
        "T cut": (update(t=True), "which is to stay accurate"),
        "C cut for good": (update(c=True), "starts from is C itself"),
        "out of range": (update(cut=plain), "larger than 65504"),
        "in place": (in_place, "changed its input C"),
        "Z alone": (lambda V, T, C: matmul(T.mT, matmul(V.mT, C)), "must have shape [2, 40, 6]"),
    },
    "s09_mixed.3": {
        "one batch, one answer": (spikes(batch=True), "'normal'"),
        "as a whole": (spikes(whole=True), "Column by column: one is enough"),
        "divided": (spikes(divided=True), "0 / 0 does not"),
        "not more": (spikes(opposite=True), "not for the opposite"),
        "less": (spikes(strict=True), "equal is flat enough"),
        "unscaled": (spikes(scaled=False), "scale first"),
        "by column": (lambda A, most: A[:, 0] == 0, "must have shape [5]"),
        "a list": (lambda A, most: [True] * 5, "must be a torch tensor"),
    },
    "s09_mixed.4": {
        "random": (matrix(), "One product leaves"),
        "the first column": (matrix(single(0, 512)), "Is that column updated at all"),
        "too small": (matrix(single(400, 4)), "Is that column updated at all"),
        "too large": (matrix(single(400, 1e5)), "would not be let through"),
        "a diagonal of it": (matrix(all_of_it), "would not be let through"),
        "NaN": (matrix(no_number), "A has NaN"),
        "Inf": (matrix(twins), "A has infinity"),
        "float64": (matrix(single(400, 512), torch.float64), "A must be float32"),
        "too few": (lambda: torch.zeros(64, 64), "[512, 512]"),
    },
    "s09_mixed.5": {
        "of the rest": (share(all_of_it=False), "A share of all of it"),
        "W alone": (share(both=1), "Two products over all rows"),
        "at one rate": (share(rate=1), "half the rate of fp16"),
        "in one term": (share(terms=1), "tf32x3 is three products"),
        "as if all were one": (share(rate=1, terms=1), "three products, at half the rate"),
        "the others'": (lambda m, p: 1 - share()(m, p), "the share of W and V Z"),
        "a word": (lambda m, p: "little", "must be a number"),
    },
}
