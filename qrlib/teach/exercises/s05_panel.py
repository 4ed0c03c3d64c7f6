"""Exercises of chapter 7, The panel stays on the chip. Tiles, in Triton's interpreter.

An answer in Triton's language is an ordinary function, without @triton.jit: a kernel of this module
calls it, once a program, while its loads, stores and sums over rows are watched.
"""

from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
import triton
import triton.language as tl

from qrlib import matrices, model
from qrlib.certificate import certify
from qrlib.compact import unpack_v
from qrlib.jit import put
from qrlib.stages import s05_panel
from qrlib.teach.exercises.compare import (
    certified,
    close,
    entries,
    finite,
    kind,
    number,
    several,
)
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import NotYet, Wrong
from qrlib.tiles import add_pairs, at, larfg
from qrlib.tracer import trace

# 7.1


def tile_and_warps(m):
    """(BM, warps) for a panel of m rows and 16 columns: the rows of its tile, and who holds it.

    BM: the smallest power of two that is not below m. warps: the fewest, a power of two, with which
    the tile takes at most 64 registers of a thread.
    """
    BM = 1 << (m - 1).bit_length()
    # 16 BM numbers among 32 threads a warp
    warps = max(1, 16 * BM // (32 * 64))
    return BM, warps


def _tile(m):
    def step(answer):
        BM, warps = several(answer(m), ("BM", "warps"))
        BM, warps = number("BM", BM), number("warps", warps)
        right = tile_and_warps(m)
        if BM != right[0]:
            hint = "tl.arange wants a power of two: the smallest one that is not below m."
            if BM < m:
                hint = "The tile must hold all rows of the panel."
            raise Wrong(f"For m = {m}, BM is {BM:g}; expected {right[0]}.", hint)
        if warps != right[1]:
            slips = (
                (16 * BM / 64, "A warp is 32 threads, and each has registers of its own."),
                (BM / (32 * 64), "The tile has 16 columns, and all of it is in registers."),
                (
                    4 * 16 * BM / (32 * 64),
                    "A register holds one float32: count numbers, not bytes.",
                ),
                (
                    triton.next_power_of_2(-(-16 * int(BM) // (32 * 255))),
                    "At most 64 a thread are asked for, not 255.",
                ),
            )
            hint = "16 BM numbers, 32 threads a warp, at most 64 numbers a thread."
            if warps < 1:
                hint = "Half a warp is none: the fewest is 1."
            else:
                hint = next((why for slip, why in slips if close(warps, slip)), hint)
            raise Wrong(f"For m = {m}, warps is {warps:g}; expected {right[1]}.", hint)

    return step


# what runs an answer in Triton's language


@triton.jit
def answer_kernel(F: tl.constexpr, A_ptr, s_ptr, m, n, stride_b, stride_m,
                  BR: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The answer is the kernel."""
    F(A_ptr, s_ptr, m, n, stride_b, stride_m, BR, BN)


@triton.jit
def mirrors_kernel(F: tl.constexpr, A_ptr, H_ptr, tau_ptr, z_ptr, m, n,
                   BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The answer is a mirror: one for each of n columns. Row j of z is what it says is z."""
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < m) & (c < n)
    P = tl.load(A_ptr + i * n + c, mask=inside, other=0.0)
    for j in range(n):
        P, tau, z = F(P, j, BM, BN)
        tl.store(tau_ptr + j + tl.zeros([1, 1], tl.int32), tau)
        tl.store(z_ptr + j * n + c, z, mask=c < n)
    tl.store(H_ptr + i * n + c, P, mask=inside)


@contextmanager
def _watched(**tensors):
    """Trace, with all faults of the answer in the reader's language; sums over rows are counted."""
    if not triton.knobs.runtime.interpret:
        raise Wrong(
            "This exercise is checked in Triton's interpreter, which is off.",
            'Start again with os.environ["TRITON_INTERPRET"] = "1" in the first cell.',
        )
    from triton.runtime import interpreter
    from triton.runtime.errors import InterpreterError

    apply = interpreter.ReduceOps.apply_impl
    sums = []

    def counted(ops, inputs):
        shape = [int(side) for side in inputs[0].shape]
        if ops.axis in (None, 0) and shape[0] > 1:
            sums.append(shape)
        return apply(ops, inputs)

    with trace(check=False, **tensors) as t, put(interpreter.ReduceOps, "apply_impl", counted):
        t.sums = sums
        try:
            yield t
        except InterpreterError as error:
            # what went wrong inside, under as many layers as there were calls
            cause = error
            while isinstance(cause, InterpreterError):
                cause = cause.__cause__
            if isinstance(cause, (Wrong, NotYet)):
                raise cause from None
            raise Wrong(f"What it gives cannot be used: {cause}.") from None


_FAULTS = {
    "out of bounds": "A tile is larger than the matrix: mask=(i < m) & (c < n), for rows too.",
    "unwritten": "Has every element of the result a program that stores it?",
    "race": "tl.program_id(0) says which matrix is this program's own.",
    "no barrier": "A tile that stays in registers need not be stored and loaded again.",
}


def _no_faults(t, hint=""):
    if t.faults:
        fault = t.faults[0]
        raise Wrong(f"{fault}.", hint or _FAULTS[fault.kind])


# 7.2


def squares(A_ptr, s_ptr, m, n, stride_b, stride_m, BR: tl.constexpr, BN: tl.constexpr):
    """s[b, c] = sum of the squares of column c of matrix b; program b has matrix b.

    A: rows stride_m apart, matrices stride_b apart, columns next to each other; n <= BN, but m may
    be larger than BR. s: [B, n].
    """
    b = tl.program_id(0)
    r, c = tl.arange(0, BR)[:, None], tl.arange(0, BN)[None, :]
    s = tl.zeros([BR, BN], tl.float32)
    for r0 in range(0, m, BR):
        i = r0 + r
        inside = (i < m) & (c < n)
        a = tl.load(A_ptr + b * stride_b + i * stride_m + c, mask=inside, other=0.0)
        s += a * a
    # over the rows once, when all slices are in
    tl.store(s_ptr + b * n + c, tl.sum(s, axis=0, keep_dims=True), mask=c < n)


def _squared(answer, A, BR, BN, about, hint=""):
    """(s, Trace) of the answer."""
    B, m, n = A.shape
    s = A.new_zeros(B, n)
    answer.about = f"A, {about}: [{B}, {m}, {n}], in slices of {BR} rows, BN = {BN}"
    with _watched(A=A, s=s) as t:
        s.fill_(torch.nan)
        try:
            answer_kernel[(B,)](answer, A, s, m, n, *A.stride()[:2], BR, BN)
        finally:
            answer.example = answer.about
    _no_faults(t, hint)
    if not t.of("s").store.elements:
        raise Wrong("It stores nothing.", "tl.store(s_ptr + b * n + c, ..., mask=c < n).")
    return s, t


def _squares_by_hand(answer):
    A = torch.tensor([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]])
    s = _squared(answer, A, 2, 2, "[[1, 2], [3, 4]], [[5, 6], [7, 8]]")[0]
    right = (A * A).sum(1)
    slips = (
        (right.sqrt(), "That is the length; the sum of the squares is asked for."),
        (A.sum(1), "That is the sum, without squares."),
        ((A * A).sum(2), "That is the sum over a row: axis 0 are the rows of a tile."),
    )
    hint = "Program b has matrix b; the columns of a tile are summed with axis=0."
    entries("s", s, right, why=next((why for slip, why in slips if close(s, slip)), hint))


def _squares_of_any_shape(answer):
    for B, m, n, BR, BN in ((1, 3, 3, 4, 4), (3, 5, 3, 8, 4), (2, 8, 4, 8, 4), (2, 1, 5, 4, 8)):
        A = torch.from_numpy(matrices.make("dense", B, max(m, n), seed=m))[:, :m, :n].contiguous()
        s = _squared(answer, A, BR, BN, "contiguous")[0]
        entries("s", s, (A * A).sum(1), why="Lanes beyond the matrix must add nothing: other=0.0.")


def _squares_in_slices(answer):
    for m, BR in ((9, 4), (8, 4), (23, 8), (5, 1)):
        A = torch.from_numpy(matrices.make("dense", 2, 23, seed=m))[:, :m, :3].contiguous()
        s = _squared(answer, A, BR, 4, "taller than a slice")[0]
        hint = "Slice after slice: for r0 in range(0, m, BR), with rows i = r0 + tl.arange(0, BR)."
        entries("s", s, (A * A).sum(1), why=hint)


def _squares_strided(answer):
    whole = torch.from_numpy(matrices.make("dense", 4, 12))
    A = whole[::2, 1::2, 3:8]
    hint = "stride_m to the next row, stride_b to the next matrix; and n columns, whatever BN is."
    s = _squared(answer, A, 4, 8, "every second row of every second matrix", hint)[0]
    entries("s", s, (A * A).sum(1), why=hint)


def _squares_cost(answer):
    m, n, BR = 40, 4, 8
    A = torch.from_numpy(matrices.make("dense", 1, m))[:, :, :n].contiguous()
    _, t = _squared(answer, A, BR, n, "for the count")
    loaded, slices = t.of("A").load, m // BR
    if loaded.elements > m * n:
        raise Wrong(
            f"It loads {loaded.elements} elements; the matrix has {m * n}.",
            "Each slice is loaded once, and squared in registers.",
        )
    if len(t.sums) > 1:
        raise Wrong(
            f"It sums over rows {len(t.sums)} times, for {slices} slices; once is enough.",
            "Keep a tile of sums, s += a * a, and sum over its rows after the loop.",
        )


# 7.3


def reflect(P, j, BM: tl.constexpr, BN: tl.constexpr):
    """(P, tau, z): mirror j of a panel tile, with one reduction over the rows.

    P: [BM, BN], columns left of j compact, no number much larger than 1. tau: [1, 1]. z: [1, BN],
    v^T P for the columns from j on, and V^T v for those before.
    """
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)
    x = tl.where(i > j, column, 0.0)
    # x^T P and row j, in one
    g, row = tl.reduce((x * P, tl.where(i == j, P, 0.0)), 0, add_pairs, keep_dims=True)
    beta, scale, tau = larfg(at(row, c == j), at(g, c == j))
    z = row + scale * g
    v = tl.where(i == j, 1.0, scale * x)
    reflected = P - v * (tau * tl.where(c > j, z, 0.0))
    stored = tl.where(i > j, v, tl.where(i == j, beta, column))
    return tl.where(c == j, stored, reflected), tau, z


class _Reflected:
    """P [m, n] through the answer, mirror by mirror. z: [n, n], a row a mirror."""

    def __init__(self, answer, P, about):
        m, n = P.shape
        BM, BN = (max(2, triton.next_power_of_2(side)) for side in P.shape)
        self.P = P[None]
        self.H, self.tau = torch.empty(1, m, n), torch.empty(1, n)
        self.z = torch.empty(n, n)

        def three(*given):
            parts = several(answer(*given, about=about), ("P", "tau", "z"))
            for name, part, shape in zip(("P", "tau", "z"), parts, ((BM, BN), (1, 1), (1, BN))):
                _is_tile(name, part, shape)
            return parts

        def run(*given):
            try:
                return three(*given)
            finally:
                # a tile of numbers says little of how it came about
                answer.example = f"{about}, in a tile {BM} x {BN}"

        with _watched(P=P, H=self.H, tau=self.tau, z=self.z) as t:
            mirrors_kernel[(1,)](run, P, self.H, self.tau, self.z, m, n, BM, BN)
        self.sums = t.sums


def _is_tile(name, value, shape):
    if not isinstance(value, tl.tensor):
        raise Wrong(f"{name} must be a tile; got {kind(value)}.")
    got = tuple(int(side) for side in value.shape)
    if got != shape:
        raise Wrong(
            f"{name} must be a tile {list(shape)}; got {list(got)}.",
            "keep_dims=True leaves a side of 1 where was summed.",
        )


# two columns: the first is sent to (-1, 0, 0), and all on the way can be done in the head
BY_HAND = ((0.5, 1), (0.5, 0), (0.5, 0), (0.5, 1))


def _reflect_by_hand(answer):
    P = torch.tensor(BY_HAND)
    got = _Reflected(answer, P, "P = [[1/2, 1], [1/2, 0], [1/2, 0], [1/2, 1]]")
    tau, z = float(got.tau[0, 0]), got.z[0]
    if not close(tau, 1.5):
        slips = (
            (1 + 0.5 / 1.118034, "sigma is x^T x of the tail alone: is row j in your x?"),
            (0.0, "sigma is the entry of g at column j, alpha that of row j."),
        )
        hint = "larfg(alpha, sigma) with alpha = row_j and sigma = g_j gives beta, scale and tau."
        hint = next((why for slip, why in slips if close(tau, slip)), hint)
        raise Wrong(f"tau of the first mirror is {tau:.6g}; expected 1.5.", hint)
    H, right = got.H[0], torch.tensor([[-1.0, -1], [1 / 3, 0], [1 / 3, 0], [1 / 3, 0]])
    if not close(H[:, 0], right[:, 0]):
        hint = "The column becomes beta and the tail of v, scale x; later mirrors leave it."
        entries("column 0 of P", H[:, 0], right[:, 0], why=hint)
    if not close(z, [1.0, 4 / 3]):
        hint = "z = row + scale g: v is scale x below its head of 1."
        if close(z, [0.75, 0.5]):
            hint = "That is g. v^T P = row j + scale x^T P, for v has a head of 1."
        # row j of column j holds alpha before and beta after
        entries("z[1:] of the first mirror", z[1:], [4 / 3], why=hint)
    entries("row 0 of P", H[0], right[0], why="P - v (tau z), on the right of column j.")


def _reflect_certificate(answer):
    for m, n in ((2, 1), (5, 2), (8, 4), (9, 4), (20, 7)):
        P = torch.from_numpy(matrices.make("dense", 1, max(m, n), seed=m))[0, :m, :n]
        P = (P / P.abs().max()).contiguous()
        about = f"P: normal numbers, {m} x {n}"
        got = _Reflected(answer, P, about)
        finite("P", got.H)
        certified(got.P, got.H, got.tau, "Columns on the left of j hold V: they stay as they are.")
        G = unpack_v(got.H)[0].T @ unpack_v(got.H)[0]
        for j in range(1, n):
            entries(
                f"z[:{j}] of mirror {j}",
                got.z[j, :j],
                G[:j, j],
                why="z = row + scale g on the left of j too: there it is V^T v_j, for T.",
            )


def _reflect_awkward(answer):
    P = torch.tensor([[0.5, 0.25, 1], [0, 0.5, 0.5], [0, 0.5, -0.5]])
    got = _Reflected(answer, P, "a first column with a zero tail")
    if float(got.tau[0, 0]) != 0 or not torch.equal(got.H[0, :, 0], P[:, 0]):
        raise Wrong(
            f"The tail is zero, but tau is {float(got.tau[0, 0]):g} and column 0 "
            f"{got.H[0, :, 0].tolist()}.",
            "larfg gives beta = alpha and scale = tau = 0 then; use what it gives.",
        )
    P = torch.zeros(4, 3)
    got = _Reflected(answer, P, "zeros")
    if got.H.any() or got.tau.any():
        raise Wrong("A panel of zeros must stay as it is, with tau = 0.")


def _reflect_cost(answer):
    P = torch.from_numpy(matrices.make("dense", 1, 16))[0, :, :4] / 8
    got = _Reflected(answer, P.contiguous(), "P: normal numbers, 16 x 4")
    each = len(got.sums) / 4
    if each > 1:
        raise Wrong(
            f"It sums over the rows {each:g} times a mirror; once is enough.",
            "x^T P and row j in one: tl.reduce((x * P, tl.where(i == j, P, 0.0)), 0, add_pairs, "
            "keep_dims=True). sigma and alpha are entries of the two.",
        )


# 7.4


def geqr2_without_tiny(P):
    """The mirrors of stage 5 in NumPy, for float32 P [m, b], without the guard of tiles.larfg."""
    P, (m, b) = P.copy(), P.shape
    tau = np.zeros(min(m, b), np.float32)
    for j in range(min(m, b)):
        x = P[j + 1 :, j].copy()
        g, row = x @ P[j + 1 :], P[j].copy()
        alpha, sigma = row[j], g[j]
        # the guard is (sigma == 0) | (alpha * alpha + sigma < 2.0**-100)
        if sigma == 0:
            continue
        beta = -np.copysign(np.sqrt(alpha * alpha + sigma), alpha)
        scale, tau[j] = 1 / (alpha - beta), (beta - alpha) / beta
        w = tau[j] * (row + scale * g)[j + 1 :]
        P[j, j + 1 :] -= w
        P[j + 1 :, j + 1 :] -= np.outer(scale * x, w)
        P[j, j], P[j + 1 :, j] = beta, scale * x
    return P, tau


def tiny_panel():
    """(P, e): a panel on which geqr2_without_tiny fails; the guard drops at most 2^e of a column.

    P: [m, b], float32, the largest entry of each column from 1/2 to 1. e: a whole number.
    """
    # solution
    # the first mirror has nothing to do, and leaves the second column's tail as small as it is;
    # the squares are below the smallest normal number and have a digit or two
    t = 1e-22
    P = np.array([[1, 1], [0, t], [0, t]], np.float32)
    # squares up to 2^-100 are dropped, so numbers up to 2^-50
    return P, -50
    # end


def _panel_and_exponent(answer):
    P, e = several(answer, ("P", "e"))
    P = P.numpy() if isinstance(P, torch.Tensor) else P
    if not isinstance(P, np.ndarray) or P.ndim != 2 or P.dtype != np.float32 or not P.size:
        raise Wrong(f"P must be a float32 NumPy array [m, b]; got {kind(P)}.")
    finite("P", P, "It must fail on ordinary numbers.")
    return P, number("e", e)


def _shows_what_is_tiny(answer):
    P = _panel_and_exponent(answer)[0]
    top = np.abs(P).max(0)
    if not ((top >= 0.5) & (top <= 1)).all():
        c = int(np.argmin((top >= 0.5) & (top <= 1)))
        raise Wrong(
            f"The largest entry of column {c} is {top[c]:.3g}: who loads the panel would scale "
            "that.",
            "Each column has an entry from 1/2 to 1. Only what is left of it after the mirrors "
            "before can be tiny.",
        )
    if certify(P[None], *(each[None] for each in geqr2_without_tiny(P))).passed:
        raise Wrong(
            f"geqr2_without_tiny passes on this P, {P.shape[0]} x {P.shape[1]}.",
            "Squares below 1e-38 lose their digits, those below 1e-45 are zero, and sigma == 0 is "
            "caught. Where is the narrow strip between? And a power of two has no digits to lose.",
        )


def _what_is_dropped(answer):
    e = _panel_and_exponent(answer)[1]
    if e != -50:
        hint = "The guard compares squares with 2^-100. Which numbers have such squares?"
        if e == 50:
            hint = "The sign: what is dropped is small."
        raise Wrong(f"e = {e:g} is not it.", hint)


# 7.5


def gain(m, b):
    """How many times the bytes of stage 5's panel m x b, traced, stage 3 moves, by the model."""
    H = torch.ones(1, m, b)
    with trace(H=H) as t:
        s05_panel.panel(H, H.new_empty(1, b))
    traffic = model.plan("s03_blocked", 1, m, b, nb=b).traffic
    return (traffic["panels"] + traffic["V and T"]) / (t.total.load.bytes + t.total.store.bytes)


@cache
def _traced(m, b):
    """(bytes of stage 3, Traffic of stage 5, bytes of H in the latter)."""
    H = torch.ones(1, m, b)
    with trace(H=H) as t:
        s05_panel.panel(H, H.new_empty(1, b))
    return model.plan("s03_blocked", 1, m, b, nb=b).traffic, t.total, t.of("H")


def _gains(m, b):
    def step(answer):
        got = number("The gain", answer(m, b))
        traffic, total, own = _traced(m, b)
        third = traffic["panels"] + traffic["V and T"]
        moved = total.load.bytes + total.store.bytes
        right = third / moved
        if abs(got - right) <= 1e-3 * right:
            return
        slips = (
            (moved / third, "That is the other way round: stage 3 over stage 5."),
            (third / total.load.bytes, "Stores are bytes too: V and T leave the chip."),
            (third / total.store.bytes, "Loads are bytes too."),
            (traffic["panels"] / moved, 'Stage 3 moves V and T as well: traffic["V and T"].'),
            (third / (moved / 4), "Bytes against elements: a float32 has four bytes."),
            (
                third / (own.load.bytes + own.store.bytes),
                "V, T and tau leave the chip too: t.total.",
            ),
        )
        hint = "t.total.load.bytes and t.total.store.bytes after tracing s05_panel.panel."
        hint = next((why for slip, why in slips if close(got, slip, 1e-3)), hint)
        raise Wrong(f"For a panel {m} x {b} it gives {got:.4g}; counted, it is {right:.4g}.", hint)

    return step


EXERCISES = (
    Exercise(
        id="7.1",
        kind="predict",
        title="a tile, and the warps to hold it",
        task="""
            A panel of m rows and 16 columns is to be held in registers, as one tile of float32. The
            sides of a tile are powers of two. A warp is 32 threads, and each has its own
            registers, one number in each. Write tile_and_warps(m) -> (BM, warps): the rows of the
            smallest tile that holds the panel, and the fewest warps, a power of two, with which
            the tile takes at most 64 registers of a thread. (A thread may have 255. The rest is
            for what is computed.)
        """,
        solution=tile_and_warps,
        steps=(
            ("512 rows", _tile(512)),
            ("352 rows: no power of two", _tile(352)),
            ("1000 rows", _tile(1000)),
            ("2048 rows", _tile(2048)),
            ("5 rows, and one", lambda answer: (_tile(5)(answer), _tile(1)(answer))),
        ),
        hints=(
            "The rows first: (m - 1).bit_length() is the exponent of the power of two.",
            "A tile of BM rows has 16 BM numbers. So many warps have 32 times as many threads.",
            "warps = 16 BM / (32 * 64), and at least 1.",
        ),
    ),
    Exercise(
        id="7.2",
        kind="implement",
        title="a kernel: sums of squares, in slices",
        task="""
            Write the kernel squares: program b has matrix b, and stores the sum of the squares of
            each of its n columns. The matrix may be taller than a tile: go through it in slices of
            BR rows. Neither m nor n need be powers of two, and the rows may be any stride apart.
            Columns are next to each other, and n <= BN.

            Write it as an ordinary function in Triton's language, without @triton.jit: the checker
            calls it in a kernel of its own, one program a matrix, and watches every load and every
            store. At hand: tl.program_id, tl.arange, tl.zeros, tl.load, tl.sum, tl.store.
        """,
        solution=squares,
        steps=(
            ("worked by hand: two matrices 2 x 2", _squares_by_hand),
            ("any shape: lanes beyond the matrix", _squares_of_any_shape),
            ("taller than a slice", _squares_in_slices),
            ("any strides", _squares_strided),
            ("cost: every element once, one sum over rows", _squares_cost),
        ),
        hints=(
            "Begin with the kernel of the chapter, and put a loop around its load: "
            "for r0 in range(0, m, BR).",
            "i = r0 + tl.arange(0, BR)[:, None] are the rows of a slice; the mask needs i < m.",
            "s = tl.zeros([BR, BN], tl.float32) before the loop, s += a * a in it, and after it "
            "tl.store(s_ptr + b * n + c, tl.sum(s, axis=0, keep_dims=True), mask=c < n).",
        ),
        writes=("A_ptr", "s_ptr", "m", "n", "stride_b", "stride_m", "BR", "BN"),
    ),
    Exercise(
        id="7.3",
        kind="implement",
        title="a mirror with one reduction (reflect)",
        task="""
            Write reflect(P, j, BM, BN) -> (P, tau, z), mirror j of a panel that is a tile: column j
            becomes beta with the tail of v below it, the columns on its right are reflected, those
            on its left stay. z [1, BN] is v^T P from column j on, and V^T v before. There must be
            one reduction over the rows a mirror, no more. At hand, from qrlib.tiles:

                larfg(alpha, sigma)         (beta, scale, tau); v is scale x under its head of 1
                at(values, where)           the one value at which where is true, as a tile [1, 1]
                add_pairs                   for tl.reduce((X, Y), 0, add_pairs, keep_dims=True)

            As in 7.2 it is an ordinary function, without @triton.jit.
        """,
        solution=reflect,
        steps=(
            ("worked by hand: a column of four halves", _reflect_by_hand),
            ("certificate: any shape; z on the left", _reflect_certificate),
            ("awkward: a zero tail, zeros", _reflect_awkward),
            ("cost: one sum over the rows a mirror", _reflect_cost),
        ),
        hints=(
            "Column j as [BM, 1]: tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True). Its "
            "tail x is that where i > j, and 0 elsewhere.",
            "g = x^T P and row j of P come out of one tl.reduce. sigma = at(g, c == j), and alpha "
            "= at(row, c == j).",
            "z = row + scale * g; v = tl.where(i == j, 1.0, scale * x); on the right of j "
            "P - v * (tau * z), in column j beta and v.",
        ),
        writes=("P", "j", "BM", "BN"),
    ),
    Exercise(
        id="7.4",
        kind="break it",
        title="the guard that looks superfluous",
        task="""
            A panel is scaled before its first mirror: each column has an entry from 1/2 to 1. Then
            why does tiles.larfg take a column for zero when its squares sum to less than 2^-100?
            Here are the same mirrors in NumPy without that guard:

                from qrlib.teach.exercises.s05_panel import geqr2_without_tiny

            Break it: find a float32 panel P [m, b], scaled as said, on which it fails the
            certificate. And how much does the guard give away? Name the exponent e such that no
            entry that it drops is larger than 2^e. The answer is the pair (P, e).
        """,
        solution=tiny_panel,
        steps=(
            ("a panel that shows it", _shows_what_is_tiny),
            ("what is dropped", _what_is_dropped),
        ),
        hints=(
            "The first column can be as large as it likes. What matters is what a mirror leaves of "
            "a later one.",
            "The smallest normal float32 is 2^-126. A square between 2^-149 and that has few "
            "digits, and sigma is a sum of squares.",
            "Columns (1, 0, 0) and (1, t, t), with t about 1e-22.",
        ),
        given=(geqr2_without_tiny,),
    ),
    Exercise(
        id="7.5",
        kind="measure",
        title="what staying on the chip saves",
        task="""
            Write gain(m, b): how many times as many bytes stage 3 moves for one panel m x b as
            stage 5 does. For stage 3 take the model's count: the entries "panels" and "V and T" of
            model.plan("s03_blocked", 1, m, b, nb=b).traffic. For stage 5 do not trust a formula:
            run its panel under qrlib.tracer.trace, and add up what all programs loaded and stored.

                with trace(H=H) as t:
                    s05_panel.panel(H, tau)
        """,
        solution=gain,
        steps=(
            ("a panel 40 x 16", _gains(40, 16)),
            ("a panel 40 x 4", _gains(40, 4)),
            ("one column", _gains(17, 1)),
        ),
        hints=(
            "H = torch.ones(1, m, b), tau = H.new_empty(1, b): the values do not matter.",
            "print(t.summary()) shows all that was moved, tensor by tensor.",
            "t.total.load.bytes + t.total.store.bytes, for everything that passed.",
        ),
    ),
)
