"""Exercises of chapter 9, One launch for the update. NumPy, torch, and a kernel.

The kernel runs in Triton's interpreter where that is on, and its accesses are traced; else on a
GPU, where only its result is looked at.
"""

import math
from functools import cache

import numpy as np
import torch
import triton
import triton.language as tl

from qrlib.certificate import TASK, certify
from qrlib.compact import unpack_v
from qrlib.householder import geqr2, larfb, larft
from qrlib.launches import launches
from qrlib.teach import pairs
from qrlib.teach.exercises.compare import array, close, entries, finite, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.exercises.s02_unblocked import normal
from qrlib.tracer import trace

EPS = float(np.finfo(np.float32).eps)

# 9.1


def one_launch(m, n, nb):
    """(loaded, stored): entries that one launch of update_kernel loads and stores for one matrix.

    C: m x n, V: m x nb, T: nb x nb. A program has 64 columns of C, the last may have fewer.
    """
    programs = -(-n // 64)
    # C belongs to one program; V and T are loaded by every program for itself
    return 2 * m * n + programs * (2 * m * nb + nb * nb), m * n


def _moves(m, n, nb):
    def step(answer):
        loaded, stored = several(answer(m, n, nb), ("loaded", "stored"))
        loaded, stored = number("loaded", loaded), number("stored", stored)
        right, out = one_launch(m, n, nb)
        programs = -(-n // 64)
        slips = {
            2 * m * n + 2 * m * nb + nb * nb: "V and T are loaded by each program for itself.",
            right - m * n: "C is loaded twice: no row can be changed before W is complete.",
            right - programs * m * nb: "V is needed twice, too: for W, and for V Z.",
            2 * m * n + n / 64 * (2 * m * nb + nb * nb): "The last columns need a program as well.",
            right + 4 * nb * n: "W and Z stay in registers.",
        }
        if loaded != right:
            hint = slips.get(loaded, "Walk down the columns with a program: V, C; T; V, C.")
            raise Wrong(f"It loads {right} entries, not {loaded:.10g}.", hint)
        if stored != out:
            raise Wrong(
                f"It stores {out} entries, not {stored:.10g}.", "C once; W and Z stay in registers."
            )

    return step


# 9.2


def split16(x):
    """(hi, lo) in float16 with (hi + lo) 2^-14 = x, for a float32 array with |x| <= 1."""
    x = x * np.float32(2**14)
    hi = x.astype(np.float16)
    # float32 holds the difference exactly
    return hi, (x - hi.astype(np.float32)).astype(np.float16)


def _pair(answer, x, about):
    hi, lo = several(answer(x, about=about), ("hi", "lo"))
    like = np.zeros(0, np.float16)
    return array("hi", hi, like, x.shape), array("lo", lo, like, x.shape)


def _splits(sizes, what):
    def step(answer):
        rng = np.random.default_rng(0)
        x = (rng.uniform(0.5, 1, 2000) * rng.choice([-1, 1], 2000)).astype(np.float32)
        x *= (2.0 ** -rng.integers(*sizes, 2000)).astype(np.float32)
        hi, lo = (part.astype(float) for part in _pair(answer, x, what))
        finite("hi", hi, "float16 ends at 65504: lift by 2^14 and no more.")
        finite("lo", lo)
        error = np.abs(x - (hi + lo) * 2.0**-14)
        allowed = np.maximum(2.0**-23 * np.abs(x), 2.0**-39)
        bad = np.flatnonzero(~(error <= allowed))
        if not len(bad):
            return
        k = bad[np.argmax((error / allowed)[bad])]
        hint = "lo is what hi has left over, computed in float32, then rounded to float16."
        if close(hi, x):
            hint = "Lift first: hi and lo are of x times 2^14."
        elif not lo.any():
            hint = "hi alone has 11 bits of the 24; lo has the rest."
        elif np.max(np.abs(x - hi * 2.0**-14) / np.abs(x)) > 1.01 * 2.0**-11:
            hint = "hi is the nearest float16; cut off, it leaves twice as much to lo."
        raise Wrong(
            f"x = {x[k]:.9g} comes back as {(hi[k] + lo[k]) * 2.0**-14:.9g}; that is wrong by "
            f"{error[k]:.2g}, and {allowed[k]:.2g} is possible.",
            hint,
        )

    return step


def _exact_ones(answer):
    x = np.array([[1, -1, 0.5], [0, 2.0**-20, 2.0**-12]], np.float32)
    hi, lo = _pair(answer, x, "numbers that fit")
    finite("hi", hi, "float16 ends at 65504: lift by 2^14 and no more.")
    why = "Lift first: hi and lo are of x times 2^14." if close(hi, x) else ""
    entries("(hi + lo) 2^-14", (hi.astype(float) + lo) * 2.0**-14, x, tol=0, why=why)


# 9.3

_calls = []


def times16(a, b):
    """a b of two float16 matrices as a tensor core does it: float32 products and sums."""
    if a.dtype != np.float16 or b.dtype != np.float16:
        raise TypeError(f"times16 takes float16 matrices; got {a.dtype} and {b.dtype}")
    _calls.append((a.shape, b.shape))
    with np.errstate(all="ignore"):
        return a.astype(np.float32) @ b.astype(np.float32)


def product16(V, C):
    """V^T C in float32, by three products of float16 matrices.

    V: [m, k], float32, no entry above 1. C: [m, n], float32, each column of a size of its own.
    """
    # 2^-e brings a column below 1; a power of two, so no digit changes
    _, e = np.frexp(np.abs(C).max(axis=0))
    V1, V2 = split16(np.ascontiguousarray(V.T))
    C1, C2 = split16(np.ldexp(C, -e))
    W = times16(V1, C1) + (times16(V2, C1) + times16(V1, C2))
    return np.ldexp(W * np.float32(2.0**-28), e)


def _product(answer, V, C, about):
    _calls.clear()
    W = array("W", answer(V, C, about=about), C, (V.shape[1], C.shape[1]))
    return W, len(_calls)


def _factors(m=40, k=6, n=9, seed=0):
    rng = np.random.default_rng(seed)
    V = rng.uniform(-1, 1, (m, k)).astype(np.float32)
    return V, rng.standard_normal((m, n)).astype(np.float32)


def _column_errors(answer, V, C, about, hint):
    """The worst error of an entry, over |v| |c|, must be a few eps."""
    W, _ = _product(answer, V, C, about)
    finite("W", W, hint)
    exact = V.astype(float).T @ C.astype(float)
    lengths = np.outer(np.linalg.norm(V, axis=0), np.linalg.norm(C.astype(float), axis=0))
    error = np.abs(W - exact) / np.maximum(lengths, 1e-300) / EPS
    i, j = np.unravel_index(np.argmax(error), error.shape)
    if error[i, j] > 8:
        raise Wrong(
            f"W[{i}, {j}] is wrong by {error[i, j]:.3g} eps of |v| |c|; 8 are allowed.", hint
        )


def _product_plain(answer):
    V, C = _factors()
    hint = "hi hi + hi lo + lo hi, and 2^-28 takes both lifts back."
    _column_errors(answer, V, C / np.float32(64), "entries below 1", hint)


def _product_scaled(answer):
    V, C = _factors(seed=1)
    sizes = (10.0 ** np.linspace(-30, 30, C.shape[1])).astype(np.float32)
    hint = "Each column has a power of two of its own: np.frexp of its largest entry."
    C = C * sizes
    _column_errors(answer, V, C, "columns from 1e-30 to 1e30", hint)
    C[:, 2] = 0
    _column_errors(answer, V, C, "a column of zeros", "frexp(0) is (0, 0).")
    again, _ = _product(answer, V, C * np.float32(2.0**-7), "the same times 2^-7")
    before, _ = _product(answer, V, C, "and without")
    if not np.array_equal(again, before * np.float32(2.0**-7)):
        raise Wrong(
            "C times 2^-7 has not given W times 2^-7, bit by bit.",
            "Scale by powers of two only: anything else rounds. np.ldexp(C, -e) is C 2^-e.",
        )


def _product_cost(answer):
    V, C = _factors()
    _, count = _product(answer, V, C / np.float32(64), "entries below 1")
    if count != 3:
        hint = "lo lo is as small as what the splits have lost already."
        if count < 3:
            hint = "Multiply with times16: the products are to be those of float16 matrices."
        raise Wrong(f"It calls times16 {count} times; three are needed.", hint)


# 9.4


def update(V, T, C):
    """C <- C - V T^T V^T C, in place, in one launch of a kernel of your own.

    V: [m, nb], clean, nb <= 16. T: [nb, nb], upper triangular. C: [m, n]. Contiguous float32. V and
    T are read. A program has 16 columns of C and walks down them in tiles of 16 rows.
    """

    # solution
    @triton.jit
    def kernel(V_ptr, T_ptr, C_ptr, m, n, nb, NB: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
        i, k = tl.arange(0, BR)[:, None], tl.arange(0, NB)[None, :]
        c = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
        W = tl.zeros([NB, BC], tl.float32)
        for r0 in range(0, m, BR):
            r = r0 + i
            v = tl.load(V_ptr + r * nb + k, mask=(r < m) & (k < nb), other=0.0)
            x = tl.load(C_ptr + r * n + c, mask=(r < m) & (c < n), other=0.0)
            W += tl.dot(tl.trans(v), x, input_precision="ieee")
        j = tl.arange(0, NB)[:, None]
        t = tl.load(T_ptr + j * nb + k, mask=(j < nb) & (k < nb), other=0.0)
        Z = tl.dot(tl.trans(t), W, input_precision="ieee")
        for r0 in range(0, m, BR):
            r = r0 + i
            v = tl.load(V_ptr + r * nb + k, mask=(r < m) & (k < nb), other=0.0)
            x = tl.load(C_ptr + r * n + c, mask=(r < m) & (c < n), other=0.0)
            x -= tl.dot(v, Z, input_precision="ieee")
            tl.store(C_ptr + r * n + c, x, mask=(r < m) & (c < n))

    m, n = C.shape
    kernel[(triton.cdiv(n, 16),)](V, T, C, m, n, V.shape[1], NB=16, BR=16, BC=16)
    # end


def interpreted():
    """True where kernels run in the interpreter, and can be traced."""
    return triton.knobs.runtime.interpret


ODD = ((2, 1, 1), (16, 1, 3), (40, 16, 16), (32, 40, 7), (37, 19, 16), (16, 33, 1))


class _Traced:
    """A context that keeps its trace: `with _Traced(...) as t`, then t.trace."""

    def __init__(self, **tensors):
        self.context = trace(check=False, **tensors)

    def __enter__(self):
        self.trace = self.context.__enter__()
        return self

    def __exit__(self, *error):
        return self.context.__exit__(*error)


def _block(m, n, nb, seed=0):
    """V, T and C of one matrix, on the device where kernels run."""
    H = normal(1, m, nb, seed=seed)
    tau = H.new_zeros(1, nb)
    geqr2(H, tau)
    V = unpack_v(H)
    device = "cpu" if interpreted() else "cuda"
    found = V[0], larft(V, tau)[0], normal(m, n, seed=seed + 1)
    return [X.contiguous().to(device) for X in found]


HINTS = {
    "out of bounds": "A mask for the rows, r < m, and one for the columns, c < n.",
    "race": "Every entry of C belongs to one program, and no other may touch it.",
    "unwritten": "It loads what nobody has stored; W and Z live in registers.",
    "no barrier": "What a program has stored it need not load again.",
}


def _run(answer, m, n, nb):
    """(V, T, C before, C after, trace or None) of an update; a fault in the trace is Wrong."""
    V, T, C = _block(m, n, nb)
    before, about = C.clone(), f"V {m} x {nb}, C {m} x {n}"
    if not interpreted():
        answer(V, T, C, about=about)
        return V, T, before, C, None
    # traced always, since there a store outside a tensor is dropped
    inside = _Traced(V=V, T=T, C=C)
    answer(V, T, C, about=about, inside=inside)
    for fault in inside.trace.faults:
        raise Wrong(f"The trace shows a fault, {fault}.", HINTS[fault.kind])
    if not inside.trace.launches:
        raise Wrong(
            "No kernel was launched.", "Define one with @triton.jit, and launch it: kernel[grid]."
        )
    return V, T, before, C, inside.trace


def _updates(*shapes):
    def step(answer):
        for m, n, nb in shapes:
            V, T, before, C, _ = _run(answer, m, n, nb)
            if torch.equal(before, C):
                raise Wrong("C is as it was.", "tl.store the difference to where C was loaded.")
            finite("C", C, "Lanes outside the matrix must load 0: mask=..., other=0.0.")
            hint = "W = V^T C over all tiles of rows, then Z = T^T W, then C - V Z tile by tile."
            if close(C, larfb(V[None], T[None], before[None], transpose=False)[0]):
                hint = "That is Q C, with T; the update is Q^T C, with T transposed: tl.trans."
            elif close(C, before - V @ (V.mT @ before)):
                hint = "Between the two products stands T: Z = T^T W."
            right = larfb(V[None].double(), T[None].double(), before[None].double())[0]
            entries("C", C, right, tol=1e-5, why=hint)

    return step


def _few_trips(answer):
    m, n, nb = 64, 40, 16
    t = _run(answer, m, n, nb)[-1]
    if t is None:
        return
    if len(t.launches) != 1:
        raise Wrong(
            f"It takes {len(t.launches)} launches; one is enough.",
            "W of a program's columns is needed by this program alone: let it stay in registers.",
        )
    if t.total.store.elements != m * n:
        raise Wrong(
            f"It stores {t.total.store.elements} entries; C has {m * n}.",
            "W and Z need not be stored, and no entry of C twice.",
        )
    loaded = t.of("C").load.elements
    if loaded != 2 * m * n:
        raise Wrong(
            f"It loads {loaded} entries of C, {loaded / (m * n):.3g} times each; twice is enough.",
            "Once down the columns for W, and once down them to subtract.",
        )
    programs = -(-n // 16)
    V = t.of("V").load.elements
    if V > 2 * programs * m * nb:
        raise Wrong(
            f"It loads {V} entries of V; {programs} programs need {2 * programs * m * nb}.",
            "A program has 16 columns of C; for fewer, V is loaded more often.",
        )


# 9.5


def geqrf_one_scale(A):
    """Stage 3, its updates by three products in fp16, with one power of two for a whole matrix."""
    return pairs.geqrf(A, pairs.half, 3, nb=8, scale=pairs.by_matrix)


def geqrf_own_scales(A):
    """The same, with a power of two for each column."""
    return pairs.geqrf(A, pairs.half, 3, nb=8, scale=pairs.by_column)


def unseen_column():
    """A: [B, m, n], float32, on which geqrf_one_scale passes and yet has a column that is wrong."""
    # solution
    A = torch.randn(1, 24, 24, generator=torch.Generator().manual_seed(0))
    # far below the others: to |R - Q^T A| / |A| it is nothing, and to fp16 as well
    A[:, :, 20] *= 1e-12
    return A
    # end


def _finite_batch(answer):
    numbers = isinstance(answer, np.ndarray) and answer.dtype == np.float32
    A = torch.from_numpy(answer) if numbers else answer
    if not isinstance(A, torch.Tensor) or A.ndim != 3 or A.dtype != torch.float32 or not A.numel():
        raise Wrong(f"A must be a float32 tensor [B, m, n]; got {kind(answer)}.")
    finite("A", A, "It must fail on ordinary numbers.")
    if A.numel() > 10**5:
        raise Wrong(f"A has {A.numel()} entries; a small one does it, of 100,000 at most.")
    return A


def _passes_by_norm(answer):
    A = _finite_batch(answer)
    c = certify(A, *geqrf_one_scale(A))
    if not c.passed:
        raise Wrong(
            f"By norm it fails with one scale already: {c.factor.max():.3g} of {TASK.factor:g}.",
            "What is wrong must be small beside the rest of the matrix.",
        )


def _column_is_wrong(answer):
    A = _finite_batch(answer)
    worst = float(certify(A, *geqrf_one_scale(A)).columnwise.max())
    if not worst >= 1000:
        raise Wrong(
            f"The worst column is wrong by {worst:.3g} m*eps of its length; 1000 are wanted.",
            "A column that is much smaller than the others; and only updates are in fp16: the "
            "first panel has 8 columns.",
        )


def _own_scales_do_it(answer):
    A = _finite_batch(answer)
    worst = float(certify(A, *geqrf_own_scales(A)).columnwise.max())
    if not worst < 10:
        raise Wrong(
            f"With a scale for each column it is wrong by {worst:.3g} m*eps, too; below 10 is "
            "wanted.",
            "Keep away from numbers that float32 itself has no digits for.",
        )


# 9.6


def unshared(n, target):
    """The smallest batch of n x n matrices for which stage 6 starts as few kernels as for any.

    target: the chip, "sm_90a" (132 SMs) or "sm_100a" (148 SMs).
    """

    def starts(B):
        return len(launches("s06_update", B, n, n, target=target))

    fewest = starts(10**6)
    low, high = 0, 1
    while starts(high) > fewest:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if starts(middle) > fewest else (low, middle)
    return high


_unshared = cache(unshared)


def _shares_no_more(n, target):
    def step(answer):
        got = number("The batch", answer(n, target))
        right = _unshared(n, target)
        if got == right:
            return
        other = "sm_90a" if target == "sm_100a" else "sm_100a"
        hint = 'Count len(launches("s06_update", B, n, n, target=target)) for several B.'
        if right != _unshared(n, other) == got:
            hint = f"That is the one for {other}; the target goes to launches."
        elif math.isfinite(got) and got == right - 1:
            hint = "With one matrix fewer than you need it is one too many: low loses, high wins."
        raise Wrong(
            f"For n = {n}, {target} it gives {got:.6g}; from {right} on no rows are shared.", hint
        )

    return step


EXERCISES = (
    Exercise(
        id="9.1",
        kind="predict",
        title="what does one launch move?",
        task="""
            update_kernel goes over one matrix: C is m x n, V is m x nb, T is nb x nb. A program has
            64 columns of C; the last one may have fewer. Masked lanes load nothing. Write
            one_launch(m, n, nb) -> (loaded, stored): how many entries all programs together load
            and store. No kernel is needed; the tracer will agree with you if you are right.
        """,
        solution=one_launch,
        steps=(
            ("one program", _moves(256, 40, 64)),
            ("seven programs", _moves(512, 448, 64)),
            ("a last program of few columns", _moves(300, 130, 64)),
            ("a narrow panel", _moves(512, 48, 16)),
        ),
        hints=(
            "Follow one program with the stepper of the chapter, and write down what it loads.",
            "Twice down its columns it loads V and C, and once T. How many programs are there?",
            "programs = ceil(n / 64); V and T are loaded by each, C by one.",
        ),
    ),
    Exercise(
        id="9.2",
        kind="implement",
        title="a number as two of float16 (split16)",
        task="""
            Write split16(x) -> (hi, lo) for a float32 array x with |x| <= 1: two float16 arrays
            with (hi + lo) 2^-14 = x, as nearly as possible: wrong by at most 2^-23 |x|, or by 2^-39
            where x is tiny. x times 2^14 fits into float16, whose largest number is 65504.
        """,
        solution=split16,
        steps=(
            ("numbers that fit", _exact_ones),
            ("between 1/2 and 1", _splits((0, 1), "2000 numbers between 1/2 and 1")),
            ("small ones", _splits((0, 16), "2000 numbers down to 2^-16")),
            ("tiny ones", _splits((16, 40), "2000 numbers from 2^-16 down to 2^-40")),
        ),
        hints=(
            "astype(np.float16) rounds to the nearest. What is left over is lo.",
            "The difference x - hi must be taken in float32: hi.astype(np.float32).",
            "x = x * np.float32(2**14); hi = x.astype(np.float16); then the rest, rounded.",
        ),
    ),
    Exercise(
        id="9.3",
        kind="implement",
        title="three products and a scale (product16)",
        task="""
            Write product16(V, C) -> V^T C in float32, by three products of float16 matrices. No
            entry of V is above 1. The columns of C may be of any size, from 1e-30 to 1e30, and
            every column of the result is to be good beside its own. Both are read. At hand:

                from qrlib.teach.exercises.s06_update import split16, times16

            (or your own split16). times16(a, b) multiplies float16 matrices, with float32 sums.
        """,
        solution=product16,
        steps=(
            ("entries below 1", _product_plain),
            ("columns of any size; powers of two change no bit", _product_scaled),
            ("cost: three products", _product_cost),
        ),
        hints=(
            "(hi + lo) of V times (hi + lo) of C are four products. Which one is the least?",
            "_, e = np.frexp(np.abs(C).max(axis=0)) gives e with every column times 2^-e below 1.",
            "np.ldexp(C, -e) in, W times 2^-28 for the two lifts, np.ldexp(W, e) out.",
        ),
    ),
    Exercise(
        id="9.4",
        kind="implement",
        title="the update in one launch",
        task="""
            Write update(V, T, C): C <- C - V T^T V^T C, in place, with a kernel of your own and one
            launch. One matrix: V is m x nb with nb <= 16, T is nb x nb, C is m x n, all contiguous.
            Give a program 16 columns of C and walk down them in tiles of 16 rows, twice. Define the
            kernel above the function, with

                import triton
                import triton.language as tl

            tl.dot(a, b, input_precision="ieee") multiplies tiles, tl.trans(a) transposes one. What
            the kernel loads and stores is traced.
        """,
        solution=update,
        steps=(
            ("one tile of everything, traced", _updates((16, 16, 16))),
            ("several tiles", _updates((48, 32, 16))),
            ("all sizes: tall, wide, odd", _updates(*ODD)),
            ("cost: C in twice and out once", _few_trips),
        ),
        hints=(
            "Two loops over the rows: the first collects W, the second subtracts. T is in between.",
            "c = tl.program_id(0) * 16 + tl.arange(0, 16)[None, :], rows r = r0 + tl.arange(0, 16)"
            "[:, None]; the mask is (r < m) & (c < n).",
            "W += tl.dot(tl.trans(v), x); Z = tl.dot(tl.trans(t), W); x -= tl.dot(v, Z), stored "
            "where it came from. Lanes outside load 0.",
        ),
        writes=("C",),
    ),
    Exercise(
        id="9.5",
        kind="break it",
        title="the column that no norm sees",
        task="""
            Three products in fp16 need columns of a size near 1. Somebody has scaled the whole
            matrix by one power of two instead, and every certificate passes. Give a float32 batch
            A [B, m, n], finite, on which geqrf_one_scale passes the gates and still has a column
            that is wrong by 1000 m*eps of its own length, which the number `columnwise` of a
            certificate shows. With a scale for each column it must be right.
        """,
        solution=unseen_column,
        steps=(
            ("passes by norm", _passes_by_norm),
            ("a column is wrong", _column_is_wrong),
            ("with its own scale it is right", _own_scales_do_it),
        ),
        hints=(
            "The residual is divided by |A|. What is small beside |A|, it does not see.",
            "fp16, lifted by 2^14, has no digits for numbers below 2^-39. How small a column is "
            "that, beside others of size 1?",
            "Normal numbers, and one late column times 1e-12.",
        ),
        given=(geqrf_one_scale, geqrf_own_scales),
    ),
    Exercise(
        id="9.6",
        kind="measure",
        title="from which batch on does nobody share?",
        task="""
            Where a batch is too small to fill the chip, stage 6 shares the rows of a matrix out
            among programs and starts two kernels where one would do. How many it starts can be
            counted without a GPU:

                from qrlib.launches import launches
                len(launches("s06_update", B, n, n, target="sm_90a"))

            Write unshared(n, target): the smallest batch of n x n matrices for which it starts as
            few kernels as for a million of them. Before you run it: what will the answer be near,
            for a chip of 132 SMs?
        """,
        solution=unshared,
        steps=(
            ("n = 1024 on a chip of 132 SMs", _shares_no_more(1024, "sm_90a")),
            ("n = 1024 on a chip of 148 SMs", _shares_no_more(1024, "sm_100a")),
            ("n = 352", _shares_no_more(352, "sm_90a")),
            ("n = 100: hardly any rows to share", _shares_no_more(100, "sm_90a")),
        ),
        hints=(
            "Print the count for B = 1, 10, 100, 1000 first. It never rises with B.",
            "Double B until the count is that of 10**6, then halve the interval.",
            "low has too many starts, high has few enough; middle = (low + high) // 2 replaces one "
            "of them, until they are neighbours.",
        ),
    ),
)
