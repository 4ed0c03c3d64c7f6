"""Every exercise: its skeleton fails gently, its solution passes, and named mistakes are named.

WRONG holds them: for an exercise, a mistake, an answer that makes it, and words of the message. To
add an exercise to the tests it is enough to add its mistakes.
"""

import contextlib
import inspect
import json
import math
import signal
import statistics
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import triton.language as tl
import wrong_capstone
import wrong_compilelab
import wrong_loop
import wrong_measure
import wrong_precision
import wrong_reconstruction
import wrong_s05
import wrong_s06
import wrong_s07
import wrong_s08
import wrong_s09
import wrong_s10
import wrong_use

import qrlib
from qrlib import certificate, householder, matrices, model
from qrlib.compact import unpack_r, unpack_v
from qrlib.stages import s01_mirror
from qrlib.teach import exercises as ex
from qrlib.teach import gram_schmidt, tricks
from qrlib.teach.exercises import guard, roofline
from qrlib.teach.exercises import s02_unblocked as chapter2
from qrlib.teach.exercises import s03_blocked as chapter5
from qrlib.teach.exercises import s04_recursive as chapter6
from qrlib.teach.exercises.core import CHAPTERS, source_of

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
ALL = [each for chapter in CHAPTERS for each in ex.exercises(chapter)]
EPS = float(np.finfo(np.float32).eps)
KINDS = ("predict", "implement", "break it", "measure")


def by_id(exercise):
    return exercise.id


def but_for(module, **changes):
    """A module with some names changed."""
    made = ModuleType(module.__name__)
    vars(made).update(vars(module) | changes)
    return made


@pytest.fixture(autouse=True)
def a_clock_of_their_own(monkeypatch):
    """What exercises time takes what is said here, whatever else this machine has to do."""
    now = 0.0

    def taking(seconds, function):
        def call(x, *args, **options):
            nonlocal now
            now += seconds(len(x))
            return function(x, *args, **options)

        return call

    def look():
        nonlocal now
        now += 1e-7
        return now

    add, geqrf = taking(lambda n: 4e-7 + 1e-10 * n, np.add), taking(lambda B: 1e-3, torch.geqrf)
    monkeypatch.setattr(roofline, "np", but_for(np, add=add))
    monkeypatch.setattr(roofline, "time", SimpleNamespace(perf_counter=look))
    monkeypatch.setattr(tricks, "torch", but_for(torch, geqrf=geqrf))
    monkeypatch.setattr(tricks, "perf_counter", look)


# the mirror of a vector, with one thing changed


def larfg(x, *, sign=np.copysign, guard=True, scaled=True, head=True, tau=None):
    v = np.zeros_like(x)
    v[0] = 1
    if guard and not x[1:].any():
        return x[0], v, x.dtype.type(0)
    s = s01_mirror.scale_of(x) if scaled else x.dtype.type(1)
    y = s * x
    beta = -sign(np.sqrt(y @ y), y[0])
    v = y.copy()
    v[0] -= beta
    if head:
        v /= v[0]
    return beta / s, v, (beta - y[0]) / beta if tau is None else x.dtype.type(tau)


def by_np_sign(norm, x):
    return np.sign(x) * norm


def by_comparison(norm, x):
    return norm if x >= 0 else -norm


def larfg_formed(x):
    beta, v, tau = larfg(x)
    H = np.eye(len(x), dtype=x.dtype) - np.outer(tau * v, v)
    return (H @ x)[0], v, tau


def larfg_in_float64(x):
    beta, v, tau = larfg(x.astype(np.float64), scaled=False)
    return beta, v.astype(x.dtype), tau


def larfg_overwrites(x):
    x /= np.abs(x).max()
    return larfg(x)


# a mirror applied


def larf_formed(v, tau, C):
    C[...] = (np.eye(len(v), dtype=v.dtype) - np.outer(tau * v, v)) @ C


def larf_returned(v, tau, C):
    return C - np.outer(tau * v, v @ C)


def larf_renamed(v, tau, C):
    C = C - np.outer(tau * v, v @ C)


def larf_row_by_row(v, tau, C):
    for i in range(len(v)):
        C[i] -= tau * v[i] * (v @ C)


def larf_without_tau(v, tau, C):
    C -= np.outer(v, v @ C)


def larf_from_the_right(v, tau, C):
    if C.shape[0] == C.shape[1]:
        C -= np.outer(tau * (C @ v), v)
    else:
        s01_mirror.larf(v, tau, C)


def larf_always_writes(v, tau, C):
    C -= np.outer(tau * v, v @ C) + np.float32(1e-3) * (tau == 0)


def larf_clears_nan(v, tau, C):
    s01_mirror.larf(v, tau, C)
    if np.isnan(C).any():
        C[...] = np.nan


# the digits lost


def lost(x, *, cancel=False, log=np.log10, eps=EPS, floor=1.0):
    head, tail = float(x[0]), x[1:].astype(np.float64)
    norm = math.copysign(math.sqrt(head * head + tail @ tail), head)
    exact = head - norm if cancel else -(tail @ tail) / (head + norm)
    wrong = float(x[0] - np.copysign(np.sqrt(x @ x), x[0]))
    return float(log(max(np.float64(abs(wrong - exact)) / abs(exact) / eps, floor)))


# unblocked QR of a batch


def factor(A, *, columns=None, matrix=slice(None), store=True):
    H = A.clone()
    tau = A.new_zeros(len(A), min(A.shape[1:]))
    G, t = H[matrix], tau[matrix]
    for j in range(tau.shape[1] if columns is None else columns(*A.shape[1:])):
        beta, v, t[:, j] = householder.larfg(G[:, j, j], G[:, j + 1 :, j])
        householder.larf(v, t[:, j], G[:, j:, j + 1 :])
        G[:, j, j] = beta
        G[:, j + 1 :, j] = v if store else 0
    return H, tau


def factor_one_by_one(A):
    parts = [factor(A[b : b + 1]) for b in range(len(A))]
    return torch.cat([H for H, _ in parts]), torch.cat([tau for _, tau in parts])


def factor_in_place(A):
    H, tau = factor(A)
    A.copy_(H)
    return A, tau


def factor_spreads_nan(A):
    H, tau = factor(A)
    return H + 0 * H.sum(), tau


def product(H, tau, *, order=reversed, width=True, head=False):
    Q = torch.eye(*H.shape[1:], dtype=H.dtype).repeat(len(H), 1, 1)
    for j in order(range(tau.shape[1])):
        C = Q[:, j:, j:] if width else Q[:, j:]
        v = H[:, j:, j : j + 1].clone()
        if not head:
            v[:, 0] = 1
        C -= tau[:, j, None, None] * v * (v.mT @ C)
    return Q


def product_formed(H, tau):
    V, m = unpack_v(H), H.shape[1]
    Q = torch.eye(m, dtype=H.dtype)
    for j in range(tau.shape[1]):
        Q = Q @ (
            torch.eye(m, dtype=H.dtype)
            - tau[:, j, None, None] * V[:, :, j : j + 1] @ V[:, :, j : j + 1].mT
        )
    return Q[:, :, : H.shape[2]]


def product_in_place(H, tau):
    return H.copy_(product(H, tau))


def least(H, tau, b, *, transpose=True, rotate=True, triangle=True):
    n = tau.shape[1]
    c = qrlib.ormqr(H, tau, b, transpose=transpose) if rotate else b
    return torch.linalg.solve(unpack_r(H) if triangle else H[:, :n], c[:, :n])


def least_all_rows(H, tau, b):
    return qrlib.ormqr(H, tau, b, transpose=True)


def least_in_place(H, tau, b):
    b.copy_(qrlib.ormqr(H, tau, b, transpose=True))
    return torch.linalg.solve_triangular(unpack_r(H), b[:, : tau.shape[1]], upper=True)


def least_square_q(H, tau, b):
    Q = qrlib.ormqr(H, tau, torch.eye(H.shape[1], dtype=H.dtype).expand(len(H), -1, -1))
    return torch.linalg.solve_triangular(unpack_r(H), (Q.mT @ b)[:, : tau.shape[1]], upper=True)


def least_by_normal_equations(H, tau, b):
    R = unpack_r(H)
    A = qrlib.householder_product(H, tau) @ R
    return torch.linalg.solve(A.mT @ A, A.mT @ b)


def broken(*zeroed, count=2, columns=(2, 4), fill=0.0):
    A = torch.eye(3).repeat(count, 1, 1)
    for b in zeroed:
        A[b, :, 1] = fill
    return A, columns


# a power of n


def shortest(times):
    return min(next(times) for _ in range(9))


def grows(how=lambda a, b: math.log2(b / a), *, of=shortest):
    """power with another formula for two times, or another way to take one."""

    def power(seconds, n):
        once, twice = (of(seconds(size) for _ in range(1000)) for size in (n, 2 * n))
        return how(once, twice)

    return power


# the model


def predicted(flops, bytes, launches, columns, ceilings, *, whole=None, binds=max, terms=4):
    a, m = flops / ceilings["peak"], bytes / ceilings["bandwidth"]
    times = {
        "arithmetic": a,
        "memory": m,
        "launches": launches * ceilings["launch"],
        "columns": columns * ceilings["column"],
    }
    waits = times["launches"] + times["columns"]
    seconds = max(a, m) + waits if whole is None else whole(a, m, waits)
    return seconds, binds(list(times)[:terms], key=times.get)


def upside_down(flops, bytes, launches, columns, ceilings):
    return ceilings["peak"] / max(flops, 1) + ceilings["bandwidth"] / max(bytes, 1), "memory"


# the block reflector


def striu_of(V):
    return (V.mT @ V).triu(1)


def triangle_by(V, tau, *, inverse=False, lower=False, sign=-1, through=True, last=True):
    """T column by column, with one thing changed; or by the inverse, with 1/tau in it."""
    if inverse:
        T = torch.linalg.inv(torch.diag_embed((1 / tau).clamp(max=1e30)) + striu_of(V))
        return T.mT if lower else T
    T, G = torch.diag_embed(tau), V.mT @ V
    for j in range(1, tau.shape[1] if last else tau.shape[1] - 1):
        inner = T[:, :j, :j] if through else torch.diag_embed(tau[:, :j])
        T[:, :j, j : j + 1] = sign * tau[:, j, None, None] * inner @ G[:, :j, j : j + 1]
    return T.mT if lower else T


def triangle_formed(V, tau):
    T = chapter5.triangle_solved(V, tau)
    Q = torch.eye(V.shape[1], dtype=V.dtype) - V @ T @ V.mT
    return T + 0 * (V.mT @ Q @ V)


def triangle_spreads_nan(V, tau):
    T = chapter5.triangle_solved(V, tau)
    return T + 0 * T.sum()


def by_panels(A, nb, *, transpose=True, raw=False, rows=True, whole=True, wide=True, alone=False):
    H, k = A.clone(), min(A.shape[1:])
    tau = A.new_zeros(len(A), k)
    if alone:
        householder.geqr2(H, tau)
        return H, tau
    for j in range(0, k if whole else k - nb + 1, nb):
        e = min(j + nb, k)
        householder.geqr2(H[:, j:, j:e], tau[:, j:e])
        V = unpack_v(H[:, j:, j:e], e - j)
        T = householder.larft(V, tau[:, j:e])
        right, low = slice(e, None if wide else k), 0 if rows else e - j
        new = householder.larfb(
            H[:, j:, j:e] if raw else V, T, H[:, j:, right], transpose=transpose
        )
        H[:, j + low :, right] = new[:, low:]
    return H, tau


def by_panels_in_place(A, nb):
    A.copy_(by_panels(A, nb)[0])
    return by_panels(A, nb)


def by_panels_one_by_one(A, nb):
    parts = [by_panels(A[b : b + 1], nb) for b in range(len(A))]
    return torch.cat([H for H, _ in parts]), torch.cat([tau for _, tau in parts])


def ones_above(m, n):
    return torch.ones(1, m, n).triu()


# two halves


def joined(V1, T1, V2, T2, *, sign=-1, top=False, left=True, right=True, below=False, corner=1):
    h, r = T1.shape[1], T2.shape[1]
    G = corner * (V1[:, : len(V1[0]) - h] if top else V1[:, h:]).mT @ V2
    G = sign * (T1 @ G if left else G)
    G = G @ T2 if right else G
    T = T1.new_zeros(len(T1), h + r, h + r)
    T[:, :h, :h], T[:, h:, h:] = T1, T2
    if below:
        T[:, h:, :h] = G.mT
    else:
        T[:, :h, h:] = G
    return T


def joined_formed(V1, T1, V2, T2):
    m = V1.shape[1]
    V = torch.cat([V1, torch.nn.functional.pad(V2, (0, 0, m - V2.shape[1], 0))], 2)
    formed = torch.eye(m, dtype=V.dtype) - V1 @ T1 @ V1.mT
    return joined(V1, T1, V2, T2) + 0 * (V.mT @ formed @ V)


def joined_one_by_one(*given):
    one = [joined(*(each[b : b + 1] for each in given)) for b in range(len(given[0]))]
    return torch.cat(one)


def halves(A, *, update=True, lower=True, corner=True, cut=lambda b: b // 2, alone=False):
    b = A.shape[2]
    if b == 1 or alone:
        H, tau = factor(A)
        return H, tau, householder.larft(unpack_v(H), tau)
    h = cut(b)
    H1, tau1, T1 = halves(A[:, :, :h], update=update, lower=lower, corner=corner)
    V1 = unpack_v(H1)
    C = householder.larfb(V1, T1, A[:, :, h:]) if update else A[:, :, h:]
    H2, tau2, T2 = halves(C[:, h:], update=update, lower=lower, corner=corner)
    H = torch.cat([H1, torch.cat([C[:, :h], H2], 1)], 2)
    T = joined(V1, T1, unpack_v(H2), T2, corner=corner)
    return H, torch.cat([tau1, tau2], 1), T.mT if not lower else T


def halves_in_place(A):
    H, tau, T = halves(A)
    return A.copy_(H), tau, T


def halves_one_by_one(A):
    parts = [halves(A[b : b + 1]) for b in range(len(A))]
    return tuple(torch.cat(each) for each in zip(*parts))


def halves_swapped(A):
    H, tau, T = halves(A)
    return H, tau.flip(1), T


def square_of(n, seed=0):
    return torch.from_numpy(matrices.make("dense", 1, n, seed=seed))


# a crossover


def crosses(n, graph, *, term=None, nb=None):
    def slower(B):
        made = [
            model.estimate(stage, B, n, n, "H200", measured=True, graph=graph, nb=nb)
            for stage in ("s03_blocked", "s04_recursive")
        ]
        third, fourth = (each.terms[term].seconds if term else each.time for each in made)
        return fourth >= third

    B = 1
    while slower(B):
        B *= 2
    return next(b for b in range(B // 2, B + 1, max(B // 128, 1)) if not slower(b))


# the certificate


def residuals(A, H, tau, *, dtype=np.float64, unit=None, batch=None, nan=False, zero=True):
    m, eps = A.shape[1], np.finfo(A.dtype).eps
    A, V, tau = A.astype(dtype), unpack_v(H.astype(dtype)), tau.astype(dtype)
    R, C, Q = (
        np.triu(H.astype(dtype)),
        A.copy(),
        np.zeros_like(V) + np.eye(*V.shape[1:], dtype=dtype),
    )
    k = tau.shape[1]
    for X, order in (C, range(k)), (Q, reversed(range(k))):
        for j in order:
            v = V[:, :, j : j + 1]
            X -= tau[:, j, None, None] * v * (v.swapaxes(1, 2) @ X)

    def norm(X):
        return np.abs(X).sum(1).max(1)

    size = norm(A)
    out = norm(R - C) / (np.where(size == 0, 1, size) if zero else size)
    out = [out, norm(Q.swapaxes(1, 2) @ Q - np.eye(k, dtype=dtype))]
    out = [(each / (m * eps if unit is None else unit(m))).astype(np.float64) for each in out]
    if nan:
        out = [np.nan_to_num(each) for each in out]
    return tuple(np.full_like(each, batch(each)) for each in out) if batch else tuple(out)


def blind(A, H, tau):
    factor, orthogonality = residuals(A, H, tau)
    return 0 * factor, orthogonality


def honest():
    A = matrices.make("dense", 1, 3)[0]
    return A, *qrlib.geqrf(A)


TRIANGLE = np.triu(np.ones((3, 3), np.float32))
ONES = np.ones((3, 3), np.float32)
NONE = np.zeros(3, np.float32)
V = (1, 6 / 26, -4 / 26)

WRONG = {
    "1.1": {
        "the near side": ((14, (1, -3, 2), 1 / 7), "has the sign of x[0]"),
        "v not normalised": ((-14, (26, 6, -4), 26 / 14), "v[0] = 26; it must be 1"),
        "tau = 2": ((-14, V, 2), "tau = 2 goes with a v of length 1"),
        "tau of a v not normalised": ((-14, V, 2 / 728), "tau = 0.00274725"),
        "another length": ((-16, V, 26 / 14), "keeps the length, which is 14"),
        "no head": ((-14, V[1:], 26 / 14), "three entries, its head 1 included"),
        "a sign in the tail": ((-14, (1, 6 / 26, 4 / 26), 26 / 14), "v[2] is 0.153846; expected"),
        "a wrong key": ({"beta": -14, "v": V, "t": 2}, "keys beta, v, tau; got beta, v, t"),
    },
    "1.2": {
        "sign(0)": (lambda x: larfg(x, sign=by_np_sign), "np.sign(0) is 0"),
        "x[0] >= 0 for -0.0": (lambda x: larfg(x, sign=by_comparison), "zero has a sign too"),
        "plain squares": (lambda x: larfg(x, scaled=False), "The squares overflow"),
        "float64 in place of a scale": (larfg_in_float64, "times 1e-300"),
        "squares that vanish": (
            lambda x: larfg(x, scaled=np.abs(x).max() > 1),
            "The squares underflow to zero",
        ),
        "the near side": (
            lambda x: larfg(x, sign=lambda norm, head: -np.copysign(norm, head)),
            "so x[0] - beta cancels",
        ),
        "tau = 2": (lambda x: larfg(x, tau=2), "tau = 2 goes with a v of length 1"),
        "v not normalised": (lambda x: larfg(x, head=False), "v[0] = 1.625; it must be 1"),
        "no word on a zero tail": (lambda x: larfg(x, guard=False), "x[1:] is zero already"),
        "H formed": (larfg_formed, "H is not to be formed"),
        "another dtype": (lambda x: larfg(x.astype(float)), "float32 as the input is; got float64"),
        "x overwritten": (larfg_overwrites, "changed its input x"),
        "two results": (lambda x: larfg(x)[:2], "3 things, beta, v, tau; got a tuple of 2"),
    },
    "1.3": {
        "H formed": (larf_formed, "H is not to be formed"),
        "a new array": (larf_returned, "returns a new array and leaves C as it was"),
        "a new name": (larf_renamed, "C = C - ... makes a new array and calls it C"),
        "rows one by one": (larf_row_by_row, "Take w = v^T C once, before anything is written"),
        "no tau": (larf_without_tau, "tau is missing"),
        "from the right": (larf_from_the_right, "the mirror on the right"),
        "tau = 0 forgotten": (larf_always_writes, "tau = 0: C stays"),
        "by column": (lambda v, tau, C: C.__isub__(tau * v @ C), "C[1, 0] is -4; expected 0"),
        "NaN spread": (larf_clears_nan, "A NaN must stay in its own column"),
    },
    "1.4": {
        "one kind only": ([[0, 3, 4], [0, 1]], "Still to be found: overflow, underflow"),
        "two kinds": ([[0, 3, 4], [1e20, 1]], "Still to be found: underflow"),
        "a harmless vector": ([[1, 2, 3]], "Vector 0, [1, 2, 3] float32, does not break it"),
        "NaN": ([[math.nan, 1]], "not finite as float32"),
        "too large for float32": ([[1e300, 1]], "A float32 ends at 3.4e+38"),
        "one vector, not a list": ([0, 3, 4], "Vector 0 must have two entries or more"),
        "words": (["large", "small"], "Vector 0 must hold numbers"),
    },
    "1.5": {
        "float64 cancels too": (lambda x: lost(x, cancel=True), "Does your exact value cancel"),
        "natural logarithm": (lambda x: lost(x, log=np.log), "That is the natural logarithm"),
        "bits": (lambda x: lost(x, log=np.log2), "Those are bits"),
        "not in eps": (lambda x: max(lost(x, eps=1, floor=1e-9), 0.0), "Divide by eps first"),
        "below zero": (lambda x: lost(x, floor=1e-30), "has lost no digit"),
        "the error itself": (lambda x: lost(x, log=abs, eps=1, floor=0), "take log10 of it in eps"),
    },
    "2.1": {
        "nothing shrinks": (lambda m, n: 4 * m * n * n, "m - j rows, n - j columns"),
        "rows do not shrink": (lambda m, n: 2 * m * n * n, "The rows shrink as the columns do"),
        "multiply-adds": (lambda m, n: n * n * (m - n / 3), "are two flops, not one"),
        "square only": (lambda m, n: 4 * n**3 / 3, "how does a taller matrix add to it"),
        "with Q": (lambda m, n: 4 * n * n * (m - n / 3), "Q is not formed"),
        "a number": (10**9, "The answer must be a function; got int 1000000000"),
    },
    "2.2": {
        "v not stored": (lambda A: factor(A, store=False), "stands the tail of v_0"),
        "one by one": (factor_one_by_one, "goes through the batch one by one"),
        "n - 1 columns": (
            lambda A: factor(A, columns=lambda m, n: min(m, n - 1)),
            "the last column has entries below its diagonal too",
        ),
        "the first matrix only": (
            lambda A: factor(A, matrix=slice(1)),
            "of the batch",
        ),
        "no guard for a zero tail": (
            chapter2.geqr2_unguarded,
            "On and above the diagonal stands R",
        ),
        "A overwritten": (factor_in_place, "changed its input A"),
        "NaN spread": (factor_spreads_nan, "NaN in one matrix has changed the result of its"),
        "Q and R": (torch.linalg.qr, "tau must have shape"),
        "float32 throughout": (lambda A: factor(A.float()), "float64 as the input is; got float32"),
    },
    "2.3": {
        "first to last": (lambda H, tau: product(H, tau, order=iter, width=False), "That is Q^T"),
        "R's diagonal as head": (lambda H, tau: product(H, tau, head=True), "the head of v is 1"),
        "all columns": (
            lambda H, tau: product(H, tau, width=False),
            "apply it to Q[:, j:, j:] alone",
        ),
        "mirrors formed": (product_formed, "which is m x m"),
        "H overwritten": (product_in_place, "changed its input H"),
        "first to last, narrow": (
            lambda H, tau: product(H, tau, order=iter),
            "mirror j acts on rows j and below",
        ),
        "R in place of Q": (lambda H, tau: H.triu(), "Q[0, 0, 0] is -5; expected -0.6"),
    },
    "2.4": {
        "Q b": (lambda H, tau, b: least(H, tau, b, transpose=False), "comes from Q b"),
        "b itself": (lambda H, tau, b: least(H, tau, b, rotate=False), "comes from b itself"),
        "H as R": (lambda H, tau, b: least(H, tau, b, triangle=False), "stand the mirrors, not R"),
        "not least": (
            lambda H, tau, b: least(H, tau, b) * (1 + 1e-3 * (b.shape[2] > 1)),
            "x is not the least squares solution",
        ),
        "all rows": (least_all_rows, "x must have shape [1, 2, 1]; got [1, 3, 1]"),
        "b overwritten": (least_in_place, "changed its input b"),
        "Q formed": (least_square_q, "which is m x m"),
        "normal equations": (least_by_normal_equations, "Does A^T A or R^T R occur"),
    },
    "2.5": {
        "nothing breaks": (broken(), "makes no NaN of this batch of 2"),
        "all break": (broken(0, 1), "a neighbour must stay clean"),
        "NaN put in": (broken(0, fill=math.nan), "NaN must come from the arithmetic"),
        "no neighbour": (broken(0, count=1), "two matrices or more"),
        "as if pivoted": (broken(0, columns=(4, 5)), "there is no pivoting"),
        "the zero column only": (broken(0, columns=(4,)), "which is only rounding"),
        "one too many": (broken(0, columns=(0, 2, 4)), "which is not tiny"),
        "no such column": (broken(0, columns=(2, 4, 6)), "has columns 0 to 5"),
        "the matrix only": (broken(0)[0], "2 things, A, columns"),
    },
    "2.6": {
        "the ratio": (grows(lambda a, b: b / a), "of which power of 2 is that"),
        "the natural logarithm": (grows(lambda a, b: math.log(b / a)), "so take log2"),
        "log10": (grows(lambda a, b: math.log10(b / a)), "That is log10"),
        "upside down": (grows(lambda a, b: math.log2(a / b)), "not the other way round"),
        "one time of each": (grows(of=next), "Some of the times had to wait"),
        "means": (
            grows(of=lambda times: statistics.mean([next(times) for _ in range(9)])),
            "Some of the times had to wait",
        ),
        "from the origin": (
            lambda seconds, n: math.log2(seconds(n)) / math.log2(n),
            "Two times, for n and for 2 n",
        ),
        "a theorem": (lambda seconds, n: 3, "expected 1"),
        "what was bought": (grows(lambda a, b: math.inf), "must be finite"),
    },
    "3.1": {
        "classical passes": (("cgs", "mgs", "cgs2", "householder"), "cgs does not pass"),
        "modified fails": (("cgs2", "householder"), "mgs passes"),
        "twice fails": (("mgs", "householder"), "cgs2 passes"),
        "Cholesky passes": (
            ("mgs", "cgs2", "householder", "cholesky_qr"),
            "cholesky_qr does not pass",
        ),
        "a name unknown": (("mgs", "givens"), "no method 'givens'; the names are cgs, mgs"),
        "one string": ("householder", "must be a list of names"),
    },
    "3.2": {
        "float32": (
            lambda A, H, t: residuals(A, H, t, dtype=np.float32),
            "compute them in float64",
        ),
        "batch average": (lambda A, H, t: residuals(A, H, t, batch=np.mean), "hides one"),
        "no unit": (lambda A, H, t: residuals(A, H, t, unit=lambda m: 1), "not in units of m*eps"),
        "eps of float64": (
            lambda A, H, t: residuals(A, H, t, unit=lambda m: m * np.finfo(float).eps),
            "eps is that of A's dtype",
        ),
        "LAPACK's unit": (
            lambda A, H, t: residuals(A, H, t, unit=lambda m: m * EPS / 2),
            "That is LAPACK's unit",
        ),
        "eps alone": (
            lambda A, H, t: residuals(A, H, t, unit=lambda m: EPS),
            "in units of eps: divide by m too",
        ),
        "no factor residual": (blind, "factor[0] is 0; it is"),
        "0/0": (lambda A, H, t: residuals(A, H, t, zero=False), "0 / 0 is NaN"),
        "NaN passes": (lambda A, H, t: residuals(A, H, t, nan=True), "overlook NaN"),
    },
    "3.3": {
        "an honest one": (honest(), "That is a factorization of A"),
        "A triangular": ((TRIANGLE, TRIANGLE, NONE), "For an upper triangular A"),
        "NaN": ((ONES, ONES * np.nan, NONE), "the weak checker rejects that"),
        "Q not orthogonal": ((ONES, ONES, NONE + 1), "The weak checker rejects it"),
        "tau too long": ((ONES, ONES, np.zeros(4, np.float32)), "do not belong together"),
        "integers": ((np.ones((3, 3), int),) * 2 + (NONE,), "do not belong together"),
    },
    "3.4": {
        "too ill conditioned": (matrices.hilbert(8), "at most 10000 is asked for"),
        "rank deficient": (ONES, "Its condition number is"),
        "too well conditioned": (np.eye(4), "Classical Gram-Schmidt passes"),
        "wide": (np.ones((2, 3)), "as many rows; got 2 x 3"),
        "NaN": (np.full((3, 2), np.nan), "A has NaN at [0, 0]"),
        "words": (["a", "b"], "a matrix of numbers"),
    },
    "3.5": {
        "1/eps": (1 / EPS, "A^T A has the condition kappa^2"),
        "the gate": (300.0, "Q is not orthogonal any more, but it still comes"),
        "float64": (1e8, "That is the place for float64"),
        "in words": ("a lot", "must be a number; got a str of 5"),
        "eps": (EPS, "is accepted"),
        "infinity": (math.inf, "It gives inf"),
    },
    "4.1": {
        "memory before launches": (
            ("memory", "memory", "columns", "arithmetic", "memory"),
            "started one by one: memory is",
        ),
        "launches in a graph": (
            ("launches", "launches", "columns", "arithmetic", "memory"),
            "how often does the batch pass through memory",
        ),
        "one launch": (
            ("launches", "memory", "launches", "arithmetic", "memory"),
            "The columns wait for one another",
        ),
        "memory at the floor": (
            ("launches", "memory", "columns", "memory", "memory"),
            "4/3 n^3 flops a matrix grow faster",
        ),
        "columns of many": (
            ("launches", "memory", "columns", "arithmetic", "columns"),
            "60000 x 32 x 32: columns is",
        ),
        "no columns there": (
            ("columns", "memory", "columns", "arithmetic", "memory"),
            "there are no columns in this plan",
        ),
        "another word": (("bandwidth",) * 5, "one of arithmetic, memory, launches, columns"),
        "four words": (("memory",) * 4, "It must give 5 things"),
    },
    "4.2": {
        "all added": (
            lambda *a: predicted(*a, whole=lambda a, m, waits: a + m + waits),
            "Arithmetic and memory overlap",
        ),
        "the longest alone": (
            lambda *a: predicted(*a, whole=lambda a, m, waits: max(a, m, waits - 1)),
            "Launches and columns are waited for",
        ),
        "the roofline alone": (
            lambda *a: predicted(*a, whole=lambda a, m, waits: max(a, m)),
            "launches and columns are still missing",
        ),
        "the shorter": (
            lambda *a: predicted(*a, whole=lambda a, m, waits: min(a, m) + waits),
            "The longer of arithmetic and memory, not the shorter",
        ),
        "upside down": (upside_down, "Each term is a number of things times"),
        "two terms compared": (
            lambda *a: predicted(*a, terms=2),
            "binds is arithmetic; the longest of the four terms is columns",
        ),
        "the least": (lambda *a: predicted(*a, binds=min), "Compare all four"),
        "no name": (lambda *a: predicted(*a)[0], "2 things, seconds, binds; got float"),
        "a number for a name": (lambda *a: (predicted(*a)[0], 3), "binds must be one of"),
    },
    "4.3": {
        "two trips": (lambda peak, bw: math.ceil(2 * peak / bw), "Three trips"),
        "the ridge": (lambda peak, bw: math.ceil(peak / bw), "That is the ridge in flops a byte"),
        "rounded down": (lambda peak, bw: math.floor(3 * peak / bw), "Round up"),
        "not rounded": (lambda peak, bw: 3 * peak / bw, "Mirrors come whole"),
        "one flop": (lambda peak, bw: math.ceil(6 * peak / bw), "are two flops"),
        "in numbers": (lambda peak, bw: math.ceil(0.75 * peak / bw), "A float32 has four bytes"),
        "bandwidth over peak": (lambda peak, bw: bw / peak, "Set their ratio to the ridge"),
        "a number": (42, "The answer must be a function; got int 42"),
    },
    "4.4": {
        "right twice": (((10**7, 16, 16),) * 2, "times as long, not 1000"),
        "wrong twice": (((1, 4, 4),) * 2, "Launches do not grow with the batch"),
        "a task's own": (((1, 4, 4), (640, 512, 512)), "not 90 %"),
        "too large a batch": (((1, 4, 4), (10**9, 16, 16)), "an H200 has 141 GB"),
        "too long a side": (((1, 10**6, 4), (10**7, 16, 16)), "at most 4096 is asked for"),
        "half a matrix": (((0.5, 4, 4), (10**7, 16, 16)), "three whole numbers from 1 on"),
        "one shape": ((1, 4, 4), "2 things, wrong, right; got a tuple of 3"),
    },
    "4.5": {
        "one entry": (1, "the call is nearly all of it"),
        "a million": (10**6, "the work is nearly all of it"),
        "a time": (1e-6, "It is not a time, and not a ratio"),
        "too many to try": (10**9, "from 1 to ten million"),
        "in words": ("thousands", "must be a number; got a str of 9"),
    },
    "5.1": {
        "lower": (np.transpose(chapter5.triangle()), "the triangle of Q^T"),
        "no sign": (np.abs(chapter5.triangle()), "each mirror takes away"),
        "not through v_1": ([[0.5, -1, -1], [0, 1, -1], [0, 0, 1]], "v_2 meets v_0 twice"),
        "the inverse": ([[2, 2, 2], [0, 1, 1], [0, 0, 1]], "That is T^-1"),
        "dot products": ([[4, 2, 2], [2, 2, 1], [2, 1, 2]], "That is V^T V"),
        "tau = 2 / |v|": ([[1, -1, 0], [0, 1, -1], [0, 0, 1]], "T[0, 0] is 1; expected 0.5"),
        "two mirrors": ([[0.5, -1], [0, 1]], "T must be 3 x 3"),
        "words": ([["a"] * 3] * 3, "a 3 x 3 matrix of numbers"),
    },
    "5.2": {
        "lower": (lambda V, tau: triangle_by(V, tau, lower=True), "T is lower triangular"),
        "no sign": (lambda V, tau: triangle_by(V, tau, sign=1), "T[0, 0, 1] is 1; expected -1"),
        "not through T": (
            lambda V, tau: triangle_by(V, tau, through=False),
            "T[0, 0, 2] is -1; expected 0",
        ),
        "a loop": (triangle_by, "goes through the columns one by one"),
        "1/tau": (
            lambda V, tau: triangle_by(V, tau, inverse=True) + 0 / tau[:, :, None],
            "multiply the equation by diag(tau) first",
        ),
        "the last column forgotten": (
            lambda V, tau: triangle_by(V, tau, last=False),
            "T[0, 1, 2] is 0; expected -1",
        ),
        "the product formed": (triangle_formed, "which is m x m"),
        "NaN spread": (triangle_spreads_nan, "NaN in one matrix has changed the T of its"),
        "T^-1": (
            lambda V, tau: torch.diag_embed(1 / tau) + striu_of(V),
            "T[0, 0, 0] is 2; expected 0.5",
        ),
        "V overwritten": (lambda V, tau: V.zero_(), "changed its input V"),
    },
    "5.3": {
        "Q in place of Q^T": (
            lambda A, nb: by_panels(A, nb, transpose=False),
            "That sends them through Q",
        ),
        "V not unpacked": (lambda A, nb: by_panels(A, nb, raw=True), "ones on its diagonal"),
        "from row e": (lambda A, nb: by_panels(A, nb, rows=False), "they become R"),
        "whole panels only": (
            lambda A, nb: by_panels(A, nb, whole=False),
            "the last panel is narrower",
        ),
        "the square only": (
            lambda A, nb: by_panels(A, nb, wide=False),
            "go through all of them: to n",
        ),
        "no panels": (
            lambda A, nb: by_panels(A, nb, alone=True),
            "geqr2 gets the panel alone",
        ),
        "panels of one": (lambda A, nb: by_panels(A, 1), "all on its right waits for larfb"),
        "one by one": (by_panels_one_by_one, "goes through the batch one by one"),
        "A overwritten": (by_panels_in_place, "changed its input A"),
        "no tau": (lambda A, nb: by_panels(A, nb)[0], "2 things, H, tau"),
    },
    "5.4": {
        "random": ((square_of(8), [(8, 9), (5, 8)]), "geqrf_from_v passes on this A"),
        "wide": ((ones_above(5, 8), [(8, 9), (5, 8)]), "A is wide, 5 x 8"),
        "nothing on its right": ((ones_above(4, 4), []), "No column is on the right of a panel"),
        "zeros": ((torch.zeros(1, 8, 8), [(8, 9), (5, 8)]), "what stands on its right?"),
        "NaN": ((ones_above(8, 8) * math.nan, []), "must fail on ordinary numbers"),
        "square too": (
            (ones_above(8, 8), [(8, 9), (5, 8), (8, 8)]),
            "On an ordinary 8 x 8 matrix it is right",
        ),
        "one of two": ((ones_above(8, 8), [(8, 9)]), "fails on every ordinary 5 x 8 matrix"),
        "tall": ((ones_above(8, 8), [(9, 8)]), "fails on every ordinary 5 x 8 matrix"),
        "no such shape": ((ones_above(8, 8), [(8, 9), (5, 8), (1, 1)]), "(1, 1) is none of"),
        "a number": ((ones_above(8, 8), 2), "must be a list of pairs"),
    },
    "5.5": {
        "LAPACK's 32": (lambda m, n: 32, "look at traffic['panels']"),
        "one mirror": (lambda m, n: 1, "look at traffic['update']"),
        "one panel": (lambda m, n: n, "look at traffic['panels']"),
        "by the rows": (lambda m, n: round(math.sqrt(m)), "for 4096 x 128"),
        "not whole": (lambda m, n: math.sqrt(4 * n / 3), "a whole number of columns"),
        "too wide": (lambda m, n: 2 * n, "must be 1 to n"),
        "infinity": (lambda m, n: math.inf, "a whole number of columns; got inf"),
    },
    "6.1": {
        "a join a level": (lambda b: ((b - 1).bit_length(),) * 2, "joins is 3; expected 7"),
        "a join a column": (lambda b: (b, (b - 1).bit_length()), "joins is 1; expected 0"),
        "rounded down": (lambda b: (b - 1, b.bit_length() - 1), "levels is 2; expected 3"),
        "a level a join": (lambda b: (b - 1, b - 1), "levels is 7; expected 3"),
        "all nodes": (lambda b: (2 * b - 1, (b - 1).bit_length()), "makes one piece of two"),
        "joins only": (lambda b: b - 1, "2 things, joins, levels"),
    },
    "6.2": {
        "no sign": (lambda *g: joined(*g, sign=1), "a corner is minus"),
        "V2 at the top": (lambda *g: joined(*g, top=True), "begins h rows lower"),
        "no T2": (lambda *g: joined(*g, right=False), "T2 is missing"),
        "no T1": (lambda *g: joined(*g, left=False), "T1 is missing"),
        "neither": (lambda *g: joined(*g, left=False, right=False), "T1 on its left and T2"),
        "no corner": (lambda *g: joined(*g, corner=0), "The corner between T1 and T2"),
        "below": (lambda *g: joined(*g, below=True), "The corner is above the diagonal"),
        "H formed": (joined_formed, "which is m x m"),
        "one by one": (joined_one_by_one, "goes through the batch one by one"),
    },
    "6.3": {
        "no update": (lambda A: halves(A, update=False), "must go through the mirrors of the"),
        "no corner": (lambda A: halves(A, corner=0), "The corner between the halves is missing"),
        "T transposed": (lambda A: halves(A, lower=False), "yours has entries below its diagonal"),
        "column by column": (lambda A: halves(A, alone=True), "column by column it is"),
        "tau the wrong way round": (halves_swapped, "tau of the left half, then tau of the right"),
        "one by one": (halves_one_by_one, "goes through the batch one by one"),
        "A overwritten": (halves_in_place, "changed its input A"),
        "no T": (lambda A: halves(A)[:2], "3 things, H, tau, T"),
    },
    "6.4": {
        "two columns": ((square_of(2), 3), "passes on this A of 2 columns"),
        "three columns": ((square_of(3), 3), "passes on this A of 3 columns"),
        "perpendicular": ((torch.eye(8)[None], 3), "V1^T V2 must not be zero"),
        "two": ((square_of(8), 2), "no matrix of 3 columns shows it"),
        "the panel": ((square_of(8), 8), "with 4 columns ordinary matrices show it"),
        "NaN": ((square_of(8) * math.nan, 3), "must fail on ordinary numbers"),
        "the matrix only": (square_of(8), "2 things, A, blind"),
    },
    "6.5": {
        "bytes only": (
            lambda n, graph: crosses(n, graph, term="memory"),
            "But it starts more kernels",
        ),
        "the other way round": (
            lambda n, graph: chapter6.crossover(n, not graph),
            "That is the one for graph = True",
        ),
        "one width for both": (lambda n, graph: crosses(n, graph, nb=32), "by the model"),
        "a constant": (lambda n, graph: 640, "For n = 512, graph = False it gives 640"),
        "infinity": (lambda n, graph: math.inf, "it gives inf"),
    },
    **wrong_s05.WRONG,
    **wrong_compilelab.WRONG,
    **wrong_s06.WRONG,
    **wrong_s07.WRONG,
    **wrong_reconstruction.WRONG,
    **wrong_precision.WRONG,
    **wrong_s08.WRONG,
    **wrong_s09.WRONG,
    **wrong_s10.WRONG,
    **wrong_measure.WRONG,
    **wrong_loop.WRONG,
    **wrong_use.WRONG,
    **wrong_capstone.WRONG,
}
CASES = [(id, name) for id, answers in WRONG.items() for name in answers]


@pytest.mark.parametrize("exercise", ALL, ids=by_id)
class TestEvery:
    def test_skeleton_fails_gently(self, exercise):
        definition, _, check = ex.skeleton(exercise.id).rpartition("\n")
        names = {"ex": ex, "np": np, "torch": torch, "tl": tl}
        exec(definition, names)
        result = eval(check, names)
        assert not result.passed
        assert "not done yet" in str(result) and "FAIL" not in str(result)

    def test_solution_passes(self, exercise):
        result = ex.check(exercise.id, exercise.solution)
        assert result.passed, str(result)
        assert "passed" in str(result)

    def test_a_value_is_an_answer_too(self, exercise):
        if not exercise.arguments:
            assert ex.check(exercise.id, exercise.solution()).passed

    def test_has_what_a_reader_needs(self, exercise):
        assert len(exercise.hints) == 3 and len(WRONG[exercise.id]) >= 3
        assert exercise.kind in KINDS

    @pytest.mark.parametrize("answer", [..., None, 3, "x", [], {}, object(), [...], math.nan])
    def test_a_strange_answer_gets_a_sentence(self, exercise, answer):
        for each in (answer, lambda *arguments: answer):
            result = ex.check(exercise.id, each)
            assert not result.passed and len(result.fault) > 10

    @pytest.mark.parametrize(
        "value",
        [
            (1, 2),
            (1, 2, 3),
            ("a", "b", "c"),
            (None, None, None),
            np.zeros(3),
            np.array("x"),
            torch.zeros(2),
            (np.zeros(3), np.zeros((2, 2)), np.zeros(0)),
            np.full(3, np.nan),
            np.array([None, 1]),
            (torch.zeros(1, 1, 1), torch.zeros(1, 1)),
            {1: 2},
            1j,
            True,
            [[1, 2], [3]],
            [[]],
            10**400,
            {"cgs": True},
            np.zeros((0, 0), np.float32),
        ],
        ids=range(19),
    )
    def test_a_strange_value_gets_a_sentence(self, exercise, value):
        for each in (value, lambda *arguments: value):
            result = ex.check(exercise.id, each)
            assert not result.passed and len(result.fault) > 10

    def test_raising_is_named_with_its_line(self, exercise):
        def raises(*arguments):
            return 1 / 0

        line = inspect.getsourcelines(raises)[1] + 1
        said = str(ex.check(exercise.id, raises))
        where = f"ZeroDivisionError: division by zero, at line {line} of your code: `return 1 / 0`"
        assert where in " ".join(said.split())
        assert "Traceback" not in said

    def test_an_endless_loop_is_interrupted(self, exercise):
        def spins(*arguments):
            while True:
                pass

        line = inspect.getsourcelines(spins)[1] + 1
        said = ex.check(exercise.id, spins, limit=0.3).fault
        assert "ran longer than 0.3 s and was stopped, at line" in said
        assert f"line {line}" in said or f"line {line + 1}" in said

    def test_printing_without_end_is_stopped(self, exercise, capsys):
        def chatters(*arguments):
            while True:
                print("again")

        said = ex.check(exercise.id, chatters).fault
        assert "printed more than 2000 characters and was stopped, at line" in said
        assert capsys.readouterr().out == ""

    def test_writing_to_an_input_is_named(self, exercise):
        seen = []

        def writes(*arguments):
            for each in arguments:
                if hasattr(each, "shape") and each.ndim:
                    seen.append(each)
                    each[...] = 7

        said = ex.check(exercise.id, writes).fault
        if seen:
            assert "changed its input" in said

    def test_reveal_prints_what_was_tested(self, exercise, capsys):
        ex.reveal(exercise.id)
        assert inspect.getsource(exercise.solution) in capsys.readouterr().out

    def test_skeleton_is_the_solution_without_its_body(self, exercise):
        given = [line for line in ex.skeleton(exercise.id).splitlines() if line.strip()][:-1]
        source = inspect.getsource(exercise.solution).splitlines()
        own = [line for line in given if line not in source]
        assert [line.strip() for line in own] == ["# your code goes here", "return ..."]
        assert given[0] == source[0] and exercise.solution.__doc__ in "\n".join(source)

    def test_show_and_hints_are_plain_text(self, exercise, capsys):
        ex.show(exercise.id)
        for level in (1, 2, 3):
            ex.hint(exercise.id, level=level)
        said = capsys.readouterr().out
        assert said.isascii() and exercise.title in said
        assert max(map(len, said.splitlines())) <= 100
        for function in exercise.given:
            assert source_of(function) in said


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_four_to_six_exercises_and_every_kind_of_them(chapter):
    kinds = [each.kind for each in ex.exercises(chapter)]
    assert 4 <= len(kinds) <= 6
    assert set(kinds) == set(KINDS), (
        "predict, implement, break it and measure: one of each at least"
    )


def test_every_exercise_has_mistakes():
    assert list(WRONG) == [each.id for each in ALL]


@pytest.mark.parametrize(("id", "mistake"), CASES, ids=[f"{id}-{name}" for id, name in CASES])
def test_a_mistake_is_named(id, mistake):
    answer, words = WRONG[id][mistake]
    result = ex.check(id, answer)
    said = str(result)
    assert not result.passed
    assert words in " ".join(said.split()), said
    assert said.isascii() and "FAIL" in said and "Hint: " in said
    # the first failure stops, and only it
    assert [word for _, word in result.steps].count("FAIL") == 1 and result.steps[-1][1] == "FAIL"


@pytest.mark.parametrize("id", ["1.2", "2.2"])
class TestMisbehaving:
    """What the answers do that no check of numbers would find."""

    def test_a_bare_except_does_not_keep_it_running(self, id):
        def stubborn(argument):
            while True:
                try:
                    while True:
                        argument + argument
                except:  # noqa: E722
                    pass

        tracing = sys.gettrace()
        assert "was stopped, at line" in ex.check(id, stubborn, limit=0.3).fault
        assert sys.gettrace() is tracing

    def test_what_it_opened_is_closed_when_its_time_is_up(self, id):
        closed = []

        def opens(argument):
            with contextlib.ExitStack() as stack:
                stack.callback(lambda: closed.append(True))
                while True:
                    pass

        ex.check(id, opens, limit=0.3)
        assert closed

    def test_leaving_python_is_stopped(self, id):
        assert "tried to leave Python" in ex.check(id, lambda argument: exit()).fault

    def test_wrong_number_of_arguments(self, id):
        said = ex.check(id, lambda argument, other: None).fault
        assert "It must take" in said and "yours takes (argument, other)" in said

    def test_called_instead_of_given(self, id):
        assert "without calling it" in ex.check(id, (1, 2, 3)).hint

    def test_a_little_print_is_shown(self, id):
        def talks(argument):
            print("shape", tuple(argument.shape))

        result = ex.check(id, talks)
        assert "shape (" in result.printed and "It printed: shape (" in str(result)

    def test_not_implemented_is_not_done_yet(self, id):
        def later(argument):
            raise NotImplementedError

        assert "not done yet" in str(ex.check(id, later))

    def test_warnings_stay_inside(self, id, recwarn):
        ex.check(id, lambda argument: np.float32(1e38) * np.float32(1e38))
        assert not recwarn.list

    def test_an_interrupt_from_the_keyboard_goes_through(self, id):
        def interrupted(argument):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ex.check(id, interrupted)


def in_a_thread(check):
    found = []
    worker = threading.Thread(target=lambda: found.append(check()))
    worker.start()
    worker.join()
    return found[0]


def test_off_the_main_thread_it_checks_and_interrupts():
    def spins(x):
        while True:
            x + x

    assert in_a_thread(lambda: ex.check("1.2", s01_mirror.larfg)).passed
    assert in_a_thread(lambda: ex.check("2.2", factor)).passed
    assert "one by one" in in_a_thread(lambda: ex.check("2.2", factor_one_by_one)).fault
    said = in_a_thread(lambda: ex.check("1.2", spins, limit=0.3)).fault
    assert "was stopped, at line" in said
    assert "ZeroDivisionError" in in_a_thread(lambda: ex.check("1.2", lambda x: 1 / 0)).fault


def test_off_the_main_thread_one_that_dies_with_nothing_to_say_was_out_of_time(monkeypatch):
    dead = SimpleNamespace(start=lambda: None, join=lambda limit: None, is_alive=lambda: False)
    monkeypatch.setattr(guard.threading, "Thread", lambda **options: dead)
    monkeypatch.setattr(guard.threading, "main_thread", lambda: None)
    assert "ran longer than 10 s" in ex.check("1.2", s01_mirror.larfg).fault


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such alarm on this system")
def test_an_alarm_set_by_others_is_given_back():
    mine = signal.signal(signal.SIGALRM, lambda *_: None)
    left = signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        handler = signal.getsignal(signal.SIGALRM)
        ex.check("1.2", lambda x: 1 / 0)
        assert signal.getsignal(signal.SIGALRM) is handler
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, mine)


def test_decorator_shows_the_result_and_keeps_the_function(capsys):
    @ex.check("2.1")
    def flops(m, n):
        return 0

    assert flops(1, 1) == 0
    assert "Exercise 2.1" in capsys.readouterr().out


def test_hints_come_one_by_one(capsys):
    for level in (1, 2, 3):
        ex.hint("3.3")
        assert f"Hint {level} of 3 for 3.3" in capsys.readouterr().out
    ex.hint("3.3")
    assert "no more hints" in capsys.readouterr().out
    with pytest.raises(ValueError, match="level must be 1 to 3; got 4"):
        ex.hint("3.3", level=4)


@pytest.mark.parametrize("id", ["0.1", "1.9", "larfg", "", 1, None])
def test_unknown_id_names_the_valid_ones(id):
    for verb in (ex.show, ex.hint, ex.reveal, ex.skeleton, ex.check):
        with pytest.raises(ValueError, match=r"there are 1\.1, 1\.2.*3\.5"):
            verb(id)


def test_listing_names_all(capsys):
    ex.listing()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.id for each in ALL]


class Words(HTMLParser):
    """The text of a page, and its tags in the order of opening."""

    def __init__(self, html):
        super().__init__()
        self.text, self.open, self.tags = "", [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_says_in_words_what_the_text_says():
    def evil(x):
        raise ValueError("<script>alert('\u03b2')</script>")

    result = ex.check("1.2", evil)
    page = Words(result._repr_html_())
    assert page.open == [] and "script" not in [tag for tag, _ in page.tags]
    assert "not passed" in page.text and "FAIL: worked by hand" in page.text
    assert result.fault in page.text and "ok: an answer" in page.text
    # no colour anywhere, so none carries a meaning
    assert "color" not in result._repr_html_()
    assert str(result).isascii()


def test_chapters_without_torch_need_numpy_only():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from qrlib.teach import exercises as ex\n"
        "assert ex.check('1.2', ex.exercises('1')[1].solution).passed\n"
        "assert ex.check('3.3', ex.exercises('3')[2].solution).passed\n"
        "ex.listing()\n"
        "try:\n    ex.show('2.1')\nexcept RuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3.5" in done.stdout and "pip install torch" in done.stdout


def cells_of(chapter):
    book = json.loads((NOTEBOOKS / f"{CHAPTERS[chapter]}.ipynb").read_text("utf-8"))
    marked = [cell for cell in book["cells"] if "exercise" in cell["metadata"]]
    return [(cell["metadata"]["exercise"], "".join(cell["source"])) for cell in marked]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_lab_has_a_cell_for_every_exercise_and_no_other(chapter):
    assert [id for id, _ in cells_of(chapter)] == [each.id for each in ex.exercises(chapter)]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_lab_cells_are_the_skeletons(chapter):
    for id, source in cells_of(chapter):
        assert source.rstrip("\n") == ex.skeleton(id), f"cell {id}: put ex.skeleton('{id}') there"


def test_gram_schmidt_methods_are_what_the_chapter_says():
    """Orthogonality in m*eps against condition: who loses kappa^2, who kappa, who nothing."""
    A = gram_schmidt.with_condition(64, 16, 1e3)
    assert np.linalg.cond(A.astype(float)) == pytest.approx(1e3, rel=0.01)
    for name, method in gram_schmidt.METHODS.items():
        Q, R = method(A)
        assert Q.dtype == R.dtype == np.float32 and Q.shape == (64, 16) and R.shape == (16, 16)
        assert not np.tril(R, -1).any(), name
        assert np.abs(Q.astype(float) @ R - A).max() < 1e-5, name
        lost = gram_schmidt.orthogonality(Q)
        squared = name in ("classical Gram-Schmidt", "Cholesky QR")
        assert (lost > certificate.TASK.orthogonality) == squared, (name, lost)
    with pytest.raises(np.linalg.LinAlgError):
        gram_schmidt.cholesky_qr(gram_schmidt.with_condition(64, 16, 1e6))
