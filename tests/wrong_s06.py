"""Mistakes in the exercises of chapter 9: an answer that makes it, and words of the message."""

import math

import numpy as np
import torch
import triton
import triton.language as tl

from qrlib.householder import larfb
from qrlib.teach.exercises import s06_update as chapter
from qrlib.teach.exercises.s06_update import times16

LIFT = np.float32(2**14)


def moves(*, C=2, V=2, T=True, programs=lambda n: math.ceil(n / 64), small=0, stored=None):
    def one_launch(m, n, nb):
        p = programs(n)
        loaded = C * m * n + p * (V * m * nb + T * nb * nb) + small * nb * n
        return loaded, m * n if stored is None else stored(m, n, nb)

    return one_launch


def split(*, lift=LIFT, low=True, hi=lambda x: x.astype(np.float16), exact=True):
    def split16(x):
        x = x * lift
        first = hi(x)
        if exact:
            rest = x - first.astype(np.float32)
        else:
            rest = x.astype(np.float16) - first
        return first, (rest if low else 0 * rest).astype(np.float16)

    return split16


def cut_off(x):
    return (x.view(np.uint32) & np.uint32(2**32 - 2**13)).view(np.float32).astype(np.float16)


def by_largest(C):
    return np.frexp(np.abs(C).max(axis=0))[1]


def product(*, terms=3, scale=by_largest, lifts=28):
    def product16(V, C):
        e = scale(C)
        V1, V2 = chapter.split16(np.ascontiguousarray(V.T))
        C1, C2 = chapter.split16(np.ldexp(C, -e))
        parts = (V1, C1), (V2, C1), (V1, C2), (V2, C2)
        W = sum(times16(*pair) for pair in parts[:terms])
        return np.ldexp(W * np.float32(2.0**-lifts), e)

    return product16


def by_division(V, C):
    largest = np.abs(C).max(axis=0) + np.float32(1e-38)
    return product(scale=lambda C: 0)(V, C / largest) * largest


def in_float32(V, C):
    return V.T @ C


@triton.jit
def mistaken_kernel(
    V_ptr, T_ptr, C_ptr, W_ptr, m, n, nb,
    MISTAKE: tl.constexpr, NB: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
    j = tl.arange(0, NB)[:, None]
    c = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    columns = c < n if MISTAKE != "no column mask" else c >= 0
    W = tl.zeros([NB, BC], tl.float32)
    t = tl.load(T_ptr + j * nb + k, mask=(j < nb) & (k < nb), other=0.0)
    for r0 in range(0, m, BR):
        r = r0 + i
        rows = r < m if MISTAKE != "no row mask" else r >= 0
        v = tl.load(V_ptr + r * nb + k, mask=(r < m) & (k < nb), other=0.0)
        x = tl.load(C_ptr + r * n + c, mask=rows & columns, other=0.0)
        if MISTAKE == "last tile":
            W = tl.dot(tl.trans(v), x, input_precision="ieee")
        else:
            W += tl.dot(tl.trans(v), x, input_precision="ieee")
        if MISTAKE == "too early":
            x -= tl.dot(v, tl.dot(tl.trans(t), W, input_precision="ieee"), input_precision="ieee")
            tl.store(C_ptr + r * n + c, x, mask=rows & columns)
    if MISTAKE == "W stored":
        tl.store(W_ptr + j * n + c, W, mask=(j < nb) & columns)
    if MISTAKE == "T":
        Z = tl.dot(t, W, input_precision="ieee")
    elif MISTAKE == "no T":
        Z = W
    else:
        Z = tl.dot(tl.trans(t), W, input_precision="ieee")
    if MISTAKE != "too early":
        for r0 in range(0, m, BR):
            r = r0 + i
            rows = r < m if MISTAKE != "no row mask" else r >= 0
            v = tl.load(V_ptr + r * nb + k, mask=(r < m) & (k < nb), other=0.0)
            x = tl.load(C_ptr + r * n + c, mask=rows & columns, other=0.0)
            if MISTAKE == "three times":
                x += 0.0 * tl.load(C_ptr + r * n + c, mask=rows & columns, other=0.0)
            x -= tl.dot(v, Z, input_precision="ieee")
            tl.store(C_ptr + r * n + c, x, mask=rows & columns)


def updated(mistake, *, width=16, programs=None, again=1):
    def update(V, T, C):
        m, n = C.shape
        grid = (programs or triton.cdiv(n, width), again)
        W = torch.empty(16, n, device=C.device)
        mistaken_kernel[grid](V, T, C, W, m, n, V.shape[1], MISTAKE=mistake, NB=16, BR=16, BC=width)

    return update


def update_in_torch(V, T, C):
    C.copy_(larfb(V[None], T[None], C[None])[0])


def update_nothing(V, T, C):
    mistaken_kernel[(1,)](V, T, C.clone(), C.clone(), *C.shape, V.shape[1], "", 16, 16, 16)


def update_twice(V, T, C):
    half = C.shape[1] // 2
    if half:
        for part in (slice(0, half), slice(half, None)):
            block = C[:, part].contiguous()
            updated("")(V, T, block)
            C[:, part] = block
    else:
        updated("")(V, T, C)


def batch(columns=24, small=None, at=20):
    def unseen_column():
        A = torch.randn(1, 24, columns, generator=torch.Generator().manual_seed(1))
        if small is not None:
            A[:, :, at] *= small
        return A

    return unseen_column


def infinite():
    A = batch()()
    A[0, 0, 0] = math.inf
    return A


def doubled(n, target):
    """Where the doubling ends, with no interval halved after it."""
    return 2 ** math.ceil(math.log2(chapter._unshared(n, target)))


WRONG = {
    "9.1": {
        "C once": (moves(C=1), "no row can be changed before W is complete"),
        "V once": (moves(V=1), "V is needed twice"),
        "one program's V": (moves(programs=lambda n: 1), "by each program for itself"),
        "a fraction of a program": (moves(programs=lambda n: n / 64), "need a program as well"),
        "W and Z too": (moves(small=4), "W and Z stay in registers"),
        "stores W": (moves(stored=lambda m, n, nb: m * n + nb * n), "It stores"),
        "stores nothing": (moves(stored=lambda m, n, nb: 0), "It stores"),
    },
    "9.2": {
        "not lifted": (split(lift=np.float32(1)), "Lift first"),
        "lifted too far": (split(lift=np.float32(2**17)), "lift by 2^14 and no more"),
        "no lo": (split(low=False), "hi alone has 11 bits"),
        "cut off": (split(hi=cut_off), "hi is the nearest float16"),
        "the rest in float16": (split(exact=False), "hi alone has 11 bits"),
        "in float32": (lambda x: (x * LIFT, 0 * x), "hi must be float16"),
        "only hi": (lambda x: x.astype(np.float16), "2 things"),
    },
    "9.3": {
        "one product": (product(terms=1), "8 are allowed"),
        "two products": (product(terms=2), "8 are allowed"),
        "four products": (product(terms=4), "calls times16 4 times"),
        "no scale": (product(scale=lambda C: 0), "Each column has a power of two of its own"),
        "one scale": (
            product(scale=lambda C: np.frexp(np.abs(C).max())[1]),
            "Each column has a power of two of its own",
        ),
        "by division": (by_division, "Scale by powers of two only"),
        "one lift": (product(lifts=14), "2^-28 takes both lifts back"),
        "in float32": (in_float32, "calls times16 0 times"),
    },
    "9.4": {
        "T for its transpose": (updated("T"), "with T transposed"),
        "without T": (updated("no T"), "Z = T^T W"),
        "only the last tile": (updated("last tile"), "W = V^T C over all tiles"),
        "changed too early": (updated("too early"), "W = V^T C over all tiles"),
        "no mask for the rows": (updated("no row mask"), "out of bounds"),
        "no mask for the columns": (updated("no column mask"), "A mask for the rows"),
        "one program for all": (updated("", programs=1), "C[0, 16] is"),
        "two programs for one column": (updated("", again=2), "no other may touch it"),
        "narrow programs": (updated("", width=8), "is loaded more often"),
        "C three times": (updated("three times"), "3 times each; twice is enough"),
        "W stored": (updated("W stored"), "W and Z need not be stored"),
        "two launches": (update_twice, "2 launches; one is enough"),
        "in torch": (update_in_torch, "No kernel was launched"),
        "into a copy": (update_nothing, "C is as it was"),
    },
    "9.5": {
        "an ordinary batch": (batch(), "1000 are wanted"),
        "a column not small enough": (batch(small=1e-4), "1000 are wanted"),
        "in the first panel": (batch(columns=8, small=1e-12, at=5), "1000 are wanted"),
        "a column of zeros": (batch(small=0), "1000 are wanted"),
        "infinite": (infinite, "A has infinity"),
        "no batch": (lambda: np.zeros((3, 3), np.float32), "float32 tensor [B, m, n]"),
        "too small for float32": (batch(small=1e-44), "With a scale for each column it is wrong"),
    },
    "9.6": {
        "one too few": (lambda n, target: chapter._unshared(n, target) - 1, "one too many"),
        "the other chip": (
            lambda n, target: chapter._unshared(n, "sm_100a"),
            "That is the one for sm_100a",
        ),
        "the number of SMs": (
            lambda n, target: {"sm_90a": 132, "sm_100a": 148}[target],
            "one too many",
        ),
        "always one": (lambda n, target: 1, "no rows are shared"),
        "only doubled": (doubled, "no rows are shared"),
        "infinity": (lambda n, target: math.inf, "it gives inf"),
    },
}
