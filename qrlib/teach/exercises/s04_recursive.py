"""Exercises of chapter 6, Halves of halves. Batches [B, m, n] of torch tensors."""

import math
from functools import cache

import numpy as np
import torch

import qrlib
from qrlib import matrices, model
from qrlib.certificate import TASK, certify
from qrlib.compact import unpack_v
from qrlib.householder import larfb, larfg, larft
from qrlib.stages import s03_blocked, s04_recursive
from qrlib.teach.exercises.compare import (
    array,
    certified,
    close,
    entries,
    finite,
    kind,
    nan_stays_home,
    number,
    several,
)
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong, bits
from qrlib.teach.exercises.s02_unblocked import (
    EXAMPLE,
    Meter,
    no_square,
    normal,
    not_one_by_one,
)

# 6.1


def joins_and_levels(b):
    """(joins, levels): the joins of b columns cut by halves; the cuts above the deepest column."""
    # however it is cut, b pieces are joined by b - 1 joins; a half has at most ceil(b / 2) columns
    return b - 1, (b - 1).bit_length()


def _counted(b):
    """(joins, levels), counted cut by cut."""
    if b == 1:
        return 0, 0
    left, right = _counted(b // 2), _counted(b - b // 2)
    return left[0] + right[0] + 1, max(left[1], right[1]) + 1


def _counts(b):
    def step(answer):
        joins, levels = several(answer(b), ("joins", "levels"))
        right = _counted(b)
        for name, got, expected in (
            ("joins", number("joins", joins), right[0]),
            ("levels", number("levels", levels), right[1]),
        ):
            if got != expected:
                hints = {
                    "joins": "A join makes one piece of two. How many, until b pieces are one?",
                    "levels": "Halve the larger half each time, down to one column: 5, 3, 2, 1.",
                }
                raise Wrong(f"For b = {b}, {name} is {got:g}; expected {expected}.", hints[name])

    return step


# 6.2


def join(V1, T1, V2, T2):
    """T of [V1 V2], where V2 begins h rows lower than V1: above it there are zeros.

    V1: [B, m, h]. T1: [B, h, h]. V2: [B, m - h, r]. T2: [B, r, r]. All are read.
    Returns T: [B, h + r, h + r].
    """
    h, r = T1.shape[1], T2.shape[1]
    T = T1.new_zeros(len(T1), h + r, h + r)
    T[:, :h, :h], T[:, h:, h:] = T1, T2
    # the first h rows of V1 meet zeros
    T[:, :h, h:] = -T1 @ (V1[:, h:].mT @ V2) @ T2
    return T


def _joined(answer, V, tau, h, about="", **more):
    """(T of the answer, T of larft) for a V cut after h columns."""
    b = V.shape[2]
    V1, V2 = V[:, :, :h].clone(), V[:, h:, h:].clone()
    T1, T2 = larft(V1, tau[:, :h].clone()), larft(V2, tau[:, h:].clone())
    T = answer(V1, T1, V2, T2, about=about, **more)
    return array("T", T, V, (len(V), b, b)), V1, T1, V2, T2


# three mirrors of four rows; no two rows of V are alike in a way that hides a shift
VECTORS = ((1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1))


def _join_by_hand(answer):
    V = torch.tensor([VECTORS], dtype=torch.float64)
    tau = 2 / (V * V).sum(1)
    right = larft(V, tau)
    for h in (1, 2):
        about = f"v = (1, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1), cut after {h}"
        T, V1, T1, V2, T2 = _joined(answer, V, tau, h, about)
        got = T[:, :h, h:]
        G = V1[:, h:].mT @ V2
        aligned = V1[:, :-h].mT @ V2
        slips = (
            (T1 @ G @ T2, "The sign: a corner is minus T1 (V1^T V2) T2."),
            (0 * G, "The corner between T1 and T2 is missing: how the halves see each other."),
            (-T1 @ aligned @ T2, "V2 begins h rows lower: its first row meets row h of V1."),
            (-G, "V1^T V2 goes through T1 on its left and T2 on its right."),
            (-T1 @ G, "T2 is missing on the right of V1^T V2."),
            (-G @ T2, "T1 is missing on the left of V1^T V2."),
        )
        hint = "T1 above left, T2 below right, -T1 (V1^T V2) T2 between them, zeros below."
        if bool(T[:, h:, :h].any()):
            hint = "The corner is above the diagonal: T[:, :h, h:]. Below T1 there are zeros."
        else:
            hint = next((why for slip, why in slips if close(got, slip)), hint)
        entries("T", T, right, why=hint)


def _join_certificate(answer):
    for m, h, r in ((2, 1, 1), (7, 2, 5), (9, 6, 3), (40, 16, 16), (33, 1, 8)):
        for dtype in (torch.float32, torch.float64):
            H, tau = qrlib.geqrf(normal(3, m, h + r, dtype=dtype))
            _same_as_columns(answer, unpack_v(H), tau, h, f"m = {m}, h = {h}, r = {r}")


def _same_as_columns(answer, V, tau, h, about):
    T = _joined(answer, V, tau, h, about)[0]
    finite("T", T)
    right = larft(V.double(), tau.double())
    unit = V.shape[1] * torch.finfo(V.dtype).eps
    error = float((T - right).abs().max()) / unit
    if not error <= TASK.factor:
        raise Wrong(
            f"T misses the T of the mirrors one by one by {error:.3g} m*eps, the gate is "
            f"{TASK.factor:g}.",
            "T1 above left, T2 below right, -T1 (V1^T V2) T2 between them, zeros below.",
        )


def _join_awkward(answer):
    for zeroed in ([0], [2], [4], [0, 1, 2], range(5)):
        H, tau = qrlib.geqrf(normal(2, 9, 5))
        tau[:, list(zeroed)] = 0
        _same_as_columns(answer, unpack_v(H), tau, 3, f"tau = 0 at {list(zeroed)}")
    H, tau = qrlib.geqrf(normal(3, 9, 5))
    V = unpack_v(H)
    clean = _joined(answer, V, tau, 2)[0]
    V[1, 7, 0] = torch.nan
    if bits(_joined(answer, V, tau, 2, "NaN in V1 of matrix [1] only")[0][::2]) != bits(clean[::2]):
        raise Wrong("A NaN in one matrix has changed the T of its neighbours.")


def _join_cost(answer):
    m = 400
    H, tau = qrlib.geqrf(normal(1, m, 5))
    V, T = unpack_v(H), larft(unpack_v(H), tau)
    given = (V[:, :, :2].clone(), T[:, :2, :2].clone(), V[:, 2:, 2:].clone(), T[:, 2:, 2:].clone())
    no_square(answer, given, m)
    counts = []
    for B in (2, 6):
        V = unpack_v(normal(B, 20, 5))
        meter = Meter()
        _joined(answer, V, normal(B, 5), 2, f"a batch of {B}", inside=meter)
        counts.append(len(meter.wrote))
    not_one_by_one(*counts, "@ multiplies all matrices of a batch; .mT transposes them all.")


# 6.3


def geqrt3(A):
    """A panel by halves: (H, tau, T), its compact form and its triangle. LAPACK has the name.

    A: [B, m, b] with m >= b >= 1, read. Returns H: [B, m, b], tau: [B, b], T: [B, b, b].
    """
    b = A.shape[2]
    if b == 1:
        beta, v, tau = larfg(A[:, 0, 0], A[:, 1:, 0])
        return torch.cat([beta[:, None], v], 1)[:, :, None], tau[:, None], tau[:, None, None]
    h = b // 2
    H1, tau1, T1 = geqrt3(A[:, :, :h])
    V1 = unpack_v(H1)
    C = larfb(V1, T1, A[:, :, h:])
    # the first h rows of the right half are rows of R now
    H2, tau2, T2 = geqrt3(C[:, h:])
    H = torch.cat([H1, torch.cat([C[:, :h], H2], 1)], 2)
    return H, torch.cat([tau1, tau2], 1), join(V1, T1, unpack_v(H2), T2)


def _panel(answer, A, about="", **more):
    H, tau, T = several(answer(A, about=about, **more), ("H", "tau", "T"))
    B, _, b = A.shape
    return array("H", H, A), array("tau", tau, A, (B, b)), array("T", T, A, (B, b, b))


def _panel_by_hand(answer):
    A = torch.tensor([EXAMPLE], dtype=torch.float64)
    H, tau, T = _panel(answer, A, "the 3 x 3 example of chapter 1")
    right = qrlib.geqrf(A)
    if close(H[:, 0, 1:], A[:, 0, 1:]):
        hint = "The right half must go through the mirrors of the left half: larfb(V1, T1, ...)."
    else:
        hint = "Left half; right half through its block; then the right half from row h down."
    entries("H", H, right.H, why=hint)
    entries("tau", tau, right.tau, why="tau of the left half, then tau of the right half.")
    _triangle_belongs(H, tau, T)


def _triangle_belongs(H, tau, T):
    right = larft(unpack_v(H).double(), tau.double())
    unit = H.shape[1] * torch.finfo(H.dtype).eps
    error = float((T - right).abs().max()) / unit
    if not error <= TASK.factor:
        h = T.shape[1] // 2
        hint = "join(V1, T1, V2, T2): V2 is unpack_v of the right half from row h down."
        if bool(T.tril(-1).any()):
            hint = "T is upper triangular; yours has entries below its diagonal."
        elif not bool(T[:, :h, h:].any()) and bool(right[:, :h, h:].any()):
            hint = "The corner between the halves is missing."
        raise Wrong(
            f"H and tau are right, but T misses the triangle that belongs to them by {error:.3g} "
            f"m*eps, the gate is {TASK.factor:g}.",
            hint,
        )


def _panel_factors(answer, A, about):
    H, tau, T = _panel(answer, A, about)
    certified(A, H, tau, "The right half goes on from row h, after it met the left half's mirrors.")
    finite("T", T)
    _triangle_belongs(H, tau, T)
    return H, tau


def _panel_certificate(answer):
    for m, b in ((1, 1), (6, 1), (5, 2), (9, 3), (8, 8), (40, 5), (40, 17), (64, 32)):
        for dtype in (torch.float32, torch.float64):
            _panel_factors(answer, normal(3, m, b, dtype=dtype), f"3 panels {m} x {b}")
    A = normal(3, 20, 7, dtype=torch.float64)
    H, tau = _panel_factors(answer, A, "float64, 20 x 7")
    entries("H", H, qrlib.geqrf(A).H, tol=1e-10, why="They are the same mirrors as one by one.")


def _panel_awkward(answer):
    for family in matrices.FAMILIES:
        A = torch.from_numpy(matrices.make(family, 2, 24))[:, :, :12].contiguous()
        _panel_factors(answer, A, f"half of the columns of family {family}, n = 24")
    _panel_factors(answer, torch.zeros(2, 6, 5), "a panel of zeros")
    nan_stays_home(lambda A, about: _panel(answer, A, about)[0], normal(3, 9, 5), (4, 4))


def _panel_cost(answer):
    """By halves a panel is written about log2(b) times, column by column about b times."""
    m, b = 128, 32
    A, meter = normal(2, m, b), Meter()
    answer(A, about=f"2 panels {m} x {b}", inside=meter)
    counts = []
    for panel in (s03_blocked.panel, s04_recursive.panel):
        with Meter() as alone:
            panel(A.clone(), A.new_zeros(2, b))
        counts.append(sum(alone.wrote))
    wrote, calls = sum(meter.wrote), len(meter.wrote)
    if wrote > 0.75 * counts[0]:
        raise Wrong(
            f"It writes {wrote} entries for a panel {m} x {b}; by halves {counts[1]} are enough, "
            f"column by column it is {counts[0]}.",
            "Call geqrt3 for each half, down to one column; larfb does the rest.",
        )
    meter = Meter()
    answer(normal(6, m, b), about="a batch of 6", inside=meter)
    hint = "larfg and larfb take the whole batch: halve the columns only."
    not_one_by_one(calls, len(meter.wrote), hint)


# 6.4


def panel_without_corner(H, tau):
    """The recursive panel with a join that forgets the corner: T1 and T2, and zeros between."""
    b = tau.shape[1]
    if b == 1:
        return s04_recursive.panel(H, tau)
    h = b // 2
    V1, T1 = panel_without_corner(H[:, :, :h], tau[:, :h])
    H[:, :, h:] = larfb(V1, T1, H[:, :, h:])
    _, T2 = panel_without_corner(H[:, h:, h:], tau[:, h:])
    T = T1.new_zeros(len(T1), b, b)
    T[:, :h, :h], T[:, h:, h:] = T1, T2
    return unpack_v(H), T


def geqrf_without_corner(A, nb=8):
    """Stage 4 with panel_without_corner."""
    return s03_blocked.right_looking(A, nb, panel_without_corner, s03_blocked.update)


def unseen_corner():
    """(A, blind): a batch on which geqrf_without_corner fails; the most columns that never show it.

    A: [B, m, n], float32, finite. blind: the largest n for which it is right for every A.
    """
    # solution
    # four columns: the left half has a join of its own, and its T is used on the right half
    A = torch.tensor([[[1.0, 2, 3, 4], [5, 6, 7, 9], [9, 1, 2, 3], [4, 5, 7, 6]]])
    # three are cut into one and two, and nobody uses the T of the two
    return A, 3
    # end


def _matrix_and_number(answer):
    A, blind = several(answer, ("A", "blind"))
    A = torch.from_numpy(A) if isinstance(A, np.ndarray) else A
    if not isinstance(A, torch.Tensor) or A.ndim != 3 or A.dtype != torch.float32 or not A.numel():
        raise Wrong(f"A must be a float32 tensor [B, m, n]; got {kind(A)}.")
    finite("A", A, "It must fail on ordinary numbers.")
    return A, number("blind", blind)


def _shows_the_corner(answer):
    A = _matrix_and_number(answer)[0]
    if not certify(A, *s04_recursive.geqrf(A)).passed:
        raise Wrong("Stage 4 itself fails on this A; choose entries of ordinary size.")
    if certify(A, *geqrf_without_corner(A)).passed:
        n = A.shape[2]
        raise Wrong(
            f"geqrf_without_corner passes on this A of {n} column{'s' if n > 1 else ''}.",
            "A T with an empty corner does harm only where it is used: on columns to its right. "
            "And V1^T V2 must not be zero.",
        )


def _largest_blind(answer):
    blind = _matrix_and_number(answer)[1]
    right = max(
        n
        for n in range(1, 9)
        if all(
            certify(A, *geqrf_without_corner(A)).passed
            for A in (normal(4, m, n, seed=m) for m in (n, n + 5))
        )
    )
    if blind == right:
        return
    if blind > right:
        raise Wrong(
            f"blind = {blind:g}, but with {right + 1} columns ordinary matrices show it.",
            "Cut the columns as the panel does. Which T is used to update others?",
        )
    raise Wrong(
        f"blind = {blind:g}, but no matrix of {right} columns shows it.",
        "Three columns are cut into one and two. Who uses the T of the two?",
    )


# 6.5


def crossover(n, graph):
    """The smallest batch for which the model predicts stage 4 to be faster than stage 3.

    n: matrices are n x n. graph: launches are replayed from a CUDA graph. On an H200, with measured
    ceilings, each stage with its own width.
    """

    def slower(B):
        third, fourth = (
            model.estimate(stage, B, n, n, "H200", measured=True, graph=graph).time
            for stage in ("s03_blocked", "s04_recursive")
        )
        return fourth >= third

    high = 1
    while slower(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if slower(middle) else (low, middle)
    return high


_crossover = cache(crossover)


def _crosses(n, graph):
    def step(answer):
        got = number("The batch", answer(n, graph))
        right = _crossover(n, graph)
        if math.isfinite(got) and abs(got - right) <= 0.02 * right:
            return
        other = _crossover(n, not graph)
        hint = "Compare .time of model.estimate for both stages: memory, arithmetic and launches."
        if math.isfinite(got) and abs(got - other) <= 0.02 * other:
            hint = f"That is the one for graph = {not graph}."
        elif got < right / 2:
            hint = "Stage 4 moves fewer bytes for any batch. But it starts more kernels."
        raise Wrong(f"For n = {n}, graph = {graph} it gives {got:.6g}; by the model {right}.", hint)

    return step


EXERCISES = (
    Exercise(
        id="6.1",
        kind="predict",
        title="how many joins, how many levels?",
        task="""
            A recursive panel of b columns is cut into b // 2 and b - b // 2, each of these again,
            until one column is left. Every cut is an update before the right half, and a join
            after it. Write joins_and_levels(b) -> (joins, levels): how many joins are made in all,
            and how many cuts lie between the whole panel and its deepest column.
        """,
        solution=joins_and_levels,
        steps=(
            ("one column", _counts(1)),
            ("b = 8", _counts(8)),
            ("b = 6: a half of three columns", _counts(6)),
            ("b = 5: halves that are not equal", _counts(5)),
            ("b = 1000", _counts(1000)),
        ),
        hints=(
            "Draw the tree for b = 8 and count the nodes that are no leaves. Then for b = 6.",
            "A join makes one piece of two. The deepest column is in the larger half, always.",
            "joins = b - 1, and 2^levels is the first power of two that is not below b.",
        ),
    ),
    Exercise(
        id="6.2",
        kind="implement",
        title="two triangles become one (join)",
        task="""
            The left half of a panel has V1 and T1, the right half V2 and T2. Write
            join(V1, T1, V2, T2) -> T for a torch batch: the triangle of [V1 V2]. V1 is [B, m, h],
            but V2 is [B, m - h, r]: it begins h rows lower, and the zeros above it are not stored.
        """,
        solution=join,
        steps=(
            ("worked by hand: three mirrors, cut in two ways", _join_by_hand),
            ("certificate: as T column by column", _join_certificate),
            ("awkward: tau = 0 here and there, NaN", _join_awkward),
            ("cost: nothing m x m, no loop over the batch", _join_cost),
        ),
        hints=(
            "Multiply (I - V1 T1 V1^T)(I - V2 T2 V2^T) out. Which term is between V1 and V2^T?",
            "The corner is -T1 (V1^T V2) T2, above the diagonal.",
            "V1^T V2 without the zeros: V1[:, h:].mT @ V2.",
        ),
    ),
    Exercise(
        id="6.3",
        kind="implement",
        title="a panel by halves (geqrt3)",
        task="""
            Write geqrt3(A) -> (H, tau, T) for a torch batch A [B, m, b] with m >= b: a function
            that calls itself on the left half and on the right half. A is read only. At hand, for
            the whole batch:

                from qrlib.compact import unpack_v
                from qrlib.householder import larfb, larfg
                from qrlib.teach.exercises.s04_recursive import join

            (or your own join). larfg(alpha, x) gives beta, the tail of v, tau.
        """,
        solution=geqrt3,
        steps=(
            ("the 3 x 3 example", _panel_by_hand),
            ("certificate: all widths; the same mirrors", _panel_certificate),
            ("awkward: ten families, zeros, NaN", _panel_awkward),
            ("cost: written log2(b) times, not b times", _panel_cost),
        ),
        hints=(
            "One column: larfg, and T is its tau. More: h = b // 2, and geqrt3(A[:, :, :h]).",
            "C = larfb(V1, T1, A[:, :, h:]). Its first h rows are R; geqrt3 of the rows below.",
            "H is H1 beside C[:, :h] over H2; T is join(V1, T1, unpack_v(H2), T2).",
        ),
    ),
    Exercise(
        id="6.4",
        kind="break it",
        title="the corner that few tests see",
        task="""
            Somebody has written a join that forgets the corner, and has tested it:

                from qrlib.teach.exercises.s04_recursive import geqrf_without_corner

            All tests passed; they used matrices of few columns. First, break it: give a float32
            batch A [B, m, n], finite, on which geqrf_without_corner(A) fails the certificate.
            Second, predict: what is the largest number of columns, blind, with which it is right
            for every A? The panels are 8 wide. The answer is the pair (A, blind).
        """,
        solution=unseen_corner,
        steps=(
            ("an A that shows it", _shows_the_corner),
            ("the most columns that never show it", _largest_blind),
        ),
        hints=(
            "R, V and tau of a panel are right as long as every T that was used was right.",
            "A T is used on the columns to its right. One column has no corner.",
            "Four columns are cut into two and two: the T of the first two is used. Three are cut "
            "into one and two.",
        ),
        given=(panel_without_corner, geqrf_without_corner),
    ),
    Exercise(
        id="6.5",
        kind="measure",
        title="from which batch on do halves pay?",
        task="""
            Stage 4 moves fewer bytes than stage 3 and starts more kernels. Bytes grow with the
            batch, launches do not. Write crossover(n, graph): the smallest batch of n x n matrices
            for which the model predicts stage 4 to be faster, on an H200 with measured ceilings,
            each stage with its own width:

                model.estimate(stage, B, n, n, "H200", measured=True, graph=graph).time

            Two per cent are accepted either way. What does a CUDA graph change, and why by that
            factor?
        """,
        solution=crossover,
        steps=(
            ("n = 512, eager", _crosses(512, False)),
            ("n = 512, from a graph", _crosses(512, True)),
            ("n = 256, from a graph", _crosses(256, True)),
        ),
        hints=(
            "Print both times for B = 1, 10, 100, 1000, 10000 first.",
            "Double B until stage 4 is faster, then halve the interval.",
            "low loses, high wins; middle = (low + high) // 2 replaces one of them, until they are "
            "neighbours.",
        ),
    ),
)
