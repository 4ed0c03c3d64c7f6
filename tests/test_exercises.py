"""Every exercise: its skeleton fails gently, its solution passes, and named mistakes are named.

WRONG holds them: for an exercise, a mistake, an answer that makes it, and words of the message. To
add an exercise to the tests it is enough to add its mistakes.
"""

import contextlib
import inspect
import json
import math
import signal
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import qrlib
from qrlib import certificate, householder, matrices
from qrlib.compact import unpack_r, unpack_v
from qrlib.stages import s01_mirror
from qrlib.teach import exercises as ex
from qrlib.teach import gram_schmidt
from qrlib.teach.exercises import s02_unblocked as chapter2
from qrlib.teach.exercises.core import CHAPTERS

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
ALL = [each for chapter in CHAPTERS for each in ex.exercises(chapter)]
EPS = float(np.finfo(np.float32).eps)


def by_id(exercise):
    return exercise.id


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
}
CASES = [(id, name) for id, answers in WRONG.items() for name in answers]


@pytest.mark.parametrize("exercise", ALL, ids=by_id)
class TestEvery:
    def test_skeleton_fails_gently(self, exercise):
        definition, _, check = ex.skeleton(exercise.id).rpartition("\n")
        names = {"ex": ex, "np": np, "torch": torch}
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
        assert exercise.kind in ("predict", "implement", "break it", "measure")

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
        def writes(*arguments):
            for each in arguments:
                if hasattr(each, "shape") and each.ndim:
                    each[...] = 7

        arrays = exercise.id not in ("2.1", "4.2", "4.3") and exercise.arguments
        if arrays:
            assert "changed its input" in ex.check(exercise.id, writes).fault

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
            assert inspect.getsource(function) in said


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


@pytest.mark.parametrize("id", ["9.1", "1.9", "larfg", "", 1, None])
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
