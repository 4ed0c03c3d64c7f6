"""Exercises of chapter 5, Panels. Batches [B, m, n] of torch tensors."""

import math
from functools import cache

import numpy as np
import torch

import qrlib
from qrlib import matrices, model
from qrlib.certificate import TASK, certify
from qrlib.compact import unpack_v
from qrlib.householder import geqr2, larf, larfb, larft
from qrlib.stages import s03_blocked
from qrlib.teach.exercises.compare import (
    array,
    certified,
    close,
    entries,
    finite,
    kind,
    nan_stays_home,
    number,
    numpy64,
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

# 5.1

# three mirrors whose vectors are so simple that T comes out in halves and ones
VECTORS = ((1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1))


def triangle():
    """T, 3 x 3, of the three mirrors whose vectors are the columns of VECTORS."""
    # solution
    # v^T v is 4, 2, 2, and tau = 2 / v^T v
    tau = (1 / 2, 1, 1)
    # v_0 . v_1 = 2, so column 1 is -tau_1 (tau_0 times 2)
    T01 = -tau[1] * (tau[0] * 2)
    # v_0 . v_2 = 2 and v_1 . v_2 = 1, so column 2 is -tau_2 T (2, 1)
    T02 = -tau[2] * (tau[0] * 2 + T01 * 1)
    T12 = -tau[2] * (tau[1] * 1)
    return [[tau[0], T01, T02], [0, tau[1], T12], [0, 0, tau[2]]]
    # end


def square(name, value, n):
    """An n x n matrix of numbers, from whatever holds one."""
    try:
        X = numpy64(value)
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"{name} must be a {n} x {n} matrix of numbers; got {kind(value)}.") from None
    if X.shape != (n, n):
        raise Wrong(f"{name} must be {n} x {n}, rows of entries; got {kind(value)}.")
    return X


def _by_pencil(answer):
    T = square("T", answer, 3)
    V = np.array(VECTORS, float)
    G = V.T @ V
    # + 0 turns -0 into 0
    right = np.array(triangle()) + 0.0
    upper = np.triu(right, 1)
    direct = np.diag(np.diag(right)) @ np.triu(-G, 1) @ np.diag(np.diag(right))
    slips = (
        (right.T, "That is the triangle of Q^T. Q = H_0 H_1 H_2 has the upper one."),
        (right - 2 * upper, "The signs above the diagonal: each mirror takes away."),
        (
            np.diag(np.diag(right)) + direct,
            "v_2 meets v_0 twice: by itself, and through v_1. T[:2, :2] has both ways.",
        ),
        (np.linalg.inv(right), "That is T^-1: 1/tau on the diagonal, the dot products above it."),
        (G, "That is V^T V, the dot products. T is made of them and of tau = 2 / v^T v."),
    )
    hint = "On the diagonal stands tau_j = 2 / v_j^T v_j, above it -tau_j T[:j, :j] (V^T v_j)."
    entries("T", T, right, why=next((why for slip, why in slips if close(T, slip)), hint))


# 5.2: the answer has the name of householder.larft and another body


def triangle_solved(V, tau):
    """T with H_0 H_1 ... H_{b-1} = I - V T V^T, for a batch, without a loop over the columns.

    V: [B, m, b], unit lower trapezoidal. tau: [B, b]; a tau may be 0. Both are read.
    Returns T: [B, b, b].
    """
    # T^-1 = D^-1 + striu(V^T V); times D no 1/tau is left in it, and tau = 0 is no special case
    D = torch.diag_embed(tau)
    M = D @ (V.mT @ V).triu(1) + torch.eye(tau.shape[1], dtype=tau.dtype)
    return torch.linalg.solve_triangular(M, D, upper=True, unitriangular=True)


def _triangle(answer, V, tau, about="", **more):
    B, _, b = V.shape
    return array("T", answer(V, tau, about=about, **more), V, (B, b, b))


def _triangle_by_hand(answer):
    V = torch.tensor([VECTORS], dtype=torch.float64)
    tau = torch.tensor([[0.5, 1.0, 1.0]], dtype=torch.float64)
    T = _triangle(answer, V, tau, "exercise 5.1")
    if close(T, T.new_tensor([triangle()]).mT):
        raise Wrong(
            "T is lower triangular: that one belongs to Q^T = H_2 H_1 H_0.",
            "Keep what is strictly above the diagonal of V^T V, and solve with upper=True.",
        )
    entries(
        "T",
        T,
        np.array([triangle()]) + 0.0,
        why="T^-1 = diag(1/tau) + what is strictly above in V^T V.",
    )


def _same_as_mirrors(answer, V, tau, about=""):
    """|H_0 ... H_{b-1} - (I - V T V^T)| in m*eps."""
    T = _triangle(answer, V, tau, about)
    hint = ""
    if bool((tau == 0).any()):
        hint = "Where tau = 0 there is no 1/tau: multiply the equation by diag(tau) first."
    finite("T", T, hint)
    B, m, b = V.shape
    Q = torch.eye(m, dtype=torch.float64).repeat(B, 1, 1)
    V64, tau64 = V.double(), tau.double()
    for j in reversed(range(b)):
        larf(V64[:, j + 1 :, j], tau64[:, j], Q[:, j:])
    error = torch.eye(m, dtype=torch.float64) - V64 @ T.double() @ V64.mT - Q
    worst = float(error.abs().sum(1).max()) / (m * torch.finfo(V.dtype).eps)
    if not worst <= TASK.orthogonality:
        raise Wrong(
            f"I - V T V^T misses H_0 ... H_{b - 1} by {worst:.3g} m*eps, the gate is "
            f"{TASK.orthogonality:g}.",
            hint,
        )


def _mirrors(m, b, *, dtype=torch.float32, seed=0):
    """V and tau of real mirrors."""
    H, tau = qrlib.geqrf(normal(3, m, b, dtype=dtype, seed=seed))
    return unpack_v(H), tau


def _triangle_certificate(answer):
    for m, b in ((1, 1), (5, 2), (4, 4), (20, 7), (40, 16)):
        for dtype in (torch.float32, torch.float64):
            _same_as_mirrors(answer, *_mirrors(m, b, dtype=dtype), f"3 panels {m} x {b}")
    V, tau = _mirrors(20, 7)
    tau = tau * normal(3, 7, seed=1)
    _same_as_mirrors(answer, V, tau, "any tau: the formula does not ask that they are mirrors")


def _triangle_awkward(answer):
    for zeroed in ([0], [3], [6], [1, 2], range(7)):
        V, tau = _mirrors(20, 7)
        tau[:, list(zeroed)] = 0
        _same_as_mirrors(answer, V, tau, f"tau = 0 at {list(zeroed)}")
    V, tau = _mirrors(20, 7)
    clean = _triangle(answer, V, tau)
    bad = V.clone()
    bad[1, 9, 2] = torch.nan
    T = _triangle(answer, bad, tau, "NaN in V of matrix [1] only")
    if bits(T[::2]) != bits(clean[::2]):
        raise Wrong("A NaN in one matrix has changed the T of its neighbours.")


def _triangle_cost(answer):
    counts = []
    for b in (4, 24):
        meter = Meter()
        answer(*_mirrors(40, b), about=f"{b} mirrors", inside=meter)
        counts.append(len(meter.wrote))
    if counts[1] > 2 * counts[0]:
        raise Wrong(
            f"It calls {counts[0]} operations of torch for 4 mirrors and {counts[1]} for 24: it "
            "goes through the columns one by one.",
            "All dot products are in V^T V. torch.linalg.solve_triangular does the rest at once.",
        )
    no_square(answer, _mirrors(300, 3), 300)


# 5.3


def blocked(A, nb):
    """A = Q R by panels of nb columns: (H, tau). A: [B, m, n], read. nb: 1 or more."""
    H = A.clone()
    k = min(A.shape[1:])
    tau = A.new_zeros(len(A), k)
    # solution
    for j in range(0, k, nb):
        e = min(j + nb, k)
        geqr2(H[:, j:, j:e], tau[:, j:e])
        V = unpack_v(H[:, j:, j:e], e - j)
        T = larft(V, tau[:, j:e])
        # rows from j on: the first rows of what is on the right become rows of R
        H[:, j:, e:] = larfb(V, T, H[:, j:, e:])
    # end
    return H, tau


def _factored(answer, A, nb, about=""):
    H, tau = several(answer(A, nb, about=about), ("H", "tau"))
    B, m, n = A.shape
    return array("H", H, A), array("tau", tau, A, (B, min(m, n)))


def _blocked_wrongly(A, nb, *, transpose=True, raw=False, rows=True):
    """The slips that the worked case can tell apart."""
    H, k = A.clone(), min(A.shape[1:])
    tau = A.new_zeros(len(A), k)
    for j in range(0, k, nb):
        e = min(j + nb, k)
        geqr2(H[:, j:, j:e], tau[:, j:e])
        V = unpack_v(H[:, j:, j:e], e - j)
        T = larft(V, tau[:, j:e])
        V = H[:, j:, j:e] if raw else V
        new = larfb(V, T, H[:, j:, e:], transpose=transpose)
        H[:, j if rows else e :, e:] = new[:, 0 if rows else e - j :]
    return H


_SLIPS = (
    ({"transpose": False}, "That sends them through Q. To Q^T C belongs T^T, so leave transpose."),
    ({"raw": True}, "V of larfb has ones on its diagonal and zeros above: unpack_v(H[...])."),
    ({"rows": False}, "Rows j to e - 1 of the columns on the right change too: they become R."),
)


def _blocked_by_hand(answer):
    A = torch.tensor([EXAMPLE], dtype=torch.float64)
    for nb in (1, 2, 3):
        H, tau = _factored(answer, A, nb, "the 3 x 3 example of chapter 1")
        right = qrlib.geqrf(A)
        slips = (why for slip, why in _SLIPS if close(H, _blocked_wrongly(A, nb, **slip)))
        hint = "Panel: geqr2. Then V and T of it, then larfb on H[:, j:, e:]. Then the next panel."
        why = next(slips, hint)
        entries("H", H, right.H, why=why)
        entries("tau", tau, right.tau, why="geqr2 writes the tau of its panel: tau[:, j:e].")


def _factors(answer, A, nb, about):
    H, tau = _factored(answer, A, nb, about)
    B, m, n = A.shape
    k, hint = min(m, n), ""
    # the last tau of a square or wide matrix is 0 anyway
    last = tau[:, k - k % nb : k - (m <= n)]
    if last.shape[1] and bool((last == 0).all()):
        hint = f"{k} columns are not a multiple of {nb}: the last panel is narrower."
    elif n > m and torch.equal(H[:, :, k:], A[:, :, k:]):
        hint = "The columns beyond the square have no mirrors, but go through all of them: to n."
    certified(A, H, tau, hint)


def _blocked_certificate(answer):
    for m, n in ((1, 1), (8, 8), (9, 5), (5, 9), (1, 4), (33, 33), (40, 17)):
        for nb in (1, 3, 8, 64):
            about = f"3 matrices {m} x {n}, panels of {nb}"
            _factors(answer, normal(3, m, n), nb, about)
    _factors(answer, normal(3, 20, 13, dtype=torch.float64), 4, "float64, 20 x 13")


def _blocked_awkward(answer):
    for family in matrices.FAMILIES:
        A = torch.from_numpy(matrices.make(family, 2, 24))
        _factors(answer, A, 5, f"family {family}, n = 24")
    _factors(answer, torch.zeros(2, 6, 5), 2, "a matrix of zeros")
    nan_stays_home(lambda A, about: _factored(answer, A, 3, about)[0], normal(3, 9, 7), (4, 4))


def _blocked_cost(answer):
    """Panels spare traffic: entries written, against those that mirrors one by one write."""
    n, nb = 64, 16
    A, meter = normal(2, n, n), Meter()
    answer(A, nb, about=f"n = {n}", inside=meter)
    wrote, calls = sum(meter.wrote), len(meter.wrote)
    with Meter() as ours:
        s03_blocked.geqrf(A, nb=nb)
    with Meter() as singly:
        s03_blocked.geqrf(A, nb=1)
    block, alone = sum(ours.wrote), sum(singly.wrote)
    if wrote > (block + alone) / 2:
        raise Wrong(
            f"It writes {wrote} entries for n = {n}, nb = {nb}; in panels {block} are enough, "
            f"mirror by mirror it is {alone}.",
            "geqr2 gets the panel alone, H[:, j:, j:e]; all on its right waits for larfb.",
        )
    meter = Meter()
    answer(normal(6, n, n), nb, about="a batch of 6", inside=meter)
    hint = "geqr2, larft and larfb take the whole batch: loop over the panels only."
    not_one_by_one(calls, len(meter.wrote), hint)


# 5.4


def larft_from_v(V):
    """T from V alone: T^-1 has half the diagonal of V^T V, and all that is above it."""
    G = V.mT @ V
    half = torch.diag_embed(G.diagonal(dim1=1, dim2=2) / 2)
    identity = torch.eye(G.shape[1], dtype=G.dtype)
    return torch.linalg.solve_triangular(half + G.triu(1), identity, upper=True)


def geqrf_from_v(A, nb=4):
    """Stage 3 with larft_from_v in the place of larft."""

    def panel(H, tau):
        geqr2(H, tau)
        V = unpack_v(H, tau.shape[1])
        return V, larft_from_v(V)

    return s03_blocked.right_looking(A, nb, panel, s03_blocked.update)


# rows and columns
SHAPES = ((8, 8), (9, 8), (8, 9), (8, 5), (5, 8))


def mirrors_that_are_none():
    """(A, shapes): a batch on which geqrf_from_v fails; where it fails whatever the matrix is.

    A: [B, m, n], float32, finite, m >= n. shapes: those of SHAPES on which it fails for every
    ordinary matrix, as a list of pairs.
    """
    # solution
    # triangular: every tau is 0 and every v is e_j, of which larft_from_v makes the mirror with
    # tau = 2; it flips the sign of a row on the right of the panel, and H keeps tau = 0
    A = torch.ones(1, 8, 8).triu()
    # the last mirror of a wide matrix is none, and has columns on its right
    return A, [(8, 9), (5, 8)]
    # end


def _matrix_and_shapes(answer):
    A, shapes = several(answer, ("A", "shapes"))
    A = torch.from_numpy(A) if isinstance(A, np.ndarray) else A
    if not isinstance(A, torch.Tensor) or A.ndim != 3 or A.dtype != torch.float32 or not len(A):
        raise Wrong(f"A must be a float32 tensor [B, m, n]; got {kind(A)}.")
    finite("A", A, "It must fail on ordinary numbers.")
    return A, shapes


def _fails_without_tau(answer):
    A = _matrix_and_shapes(answer)[0]
    m, n = A.shape[1:]
    if m < n:
        raise Wrong(
            f"A is wide, {m} x {n}; m >= n is asked for here.",
            "The wide ones belong to the second part. What else has a tau that is 0?",
        )
    if not certify(A, *s03_blocked.geqrf(A, nb=4)).passed:
        raise Wrong("Stage 3 itself fails on this A; choose entries of ordinary size.")
    if certify(A, *geqrf_from_v(A)).passed:
        few = " No column is on the right of a panel of 4." if n <= 4 else ""
        raise Wrong(
            f"geqrf_from_v passes on this A.{few}",
            "tau = 2 / v^T v holds for mirrors. Which H_j is none, and what stands on its right?",
        )


def _fails_on_shapes(answer):
    shapes = _matrix_and_shapes(answer)[1]
    try:
        said = {(int(m), int(n)) for m, n in shapes}
    except (TypeError, ValueError):
        raise Wrong(f"shapes must be a list of pairs (m, n); got {kind(shapes)}.") from None
    right = set()
    for m, n in SHAPES:
        A = normal(1, m, n, seed=m + n)
        if not certify(A, *geqrf_from_v(A)).passed:
            right.add((m, n))
    if said == right:
        return
    m, n = min(said ^ right)
    if (m, n) not in SHAPES:
        raise Wrong(f"({m}, {n}) is none of {', '.join(map(str, SHAPES))}.")
    if (m, n) in right:
        raise Wrong(
            f"It fails on every ordinary {m} x {n} matrix.",
            "In a wide matrix the last mirror has no tail: tau = 0. Columns on its right remain.",
        )
    raise Wrong(
        f"On an ordinary {m} x {n} matrix it is right.",
        "A T that is wrong does harm only where columns stand on the right of its panel.",
    )


# 5.5


def best_nb(m, n):
    """The width nb with which stage 3 moves the fewest bytes for one m x n matrix, m >= n."""

    def moved(nb):
        return model.plan("s03_blocked", 1, m, n, nb=nb).bytes

    # updates move about 1/nb, panels about nb: wider than 3 sqrt(n) cannot be best
    return min(range(1, min(n, 3 * math.isqrt(n) + 1) + 1), key=moved)


@cache
def _moved(m, n, nb):
    return model.plan("s03_blocked", 1, m, n, nb=nb).bytes


_best_nb = cache(best_nb)


def _moves_least(m, n):
    def step(answer):
        got = number("The width", answer(m, n))
        if not (math.isfinite(got) and got == int(got)):
            raise Wrong(
                f"A width is a whole number of columns; got {got:g}.", "round() makes it one."
            )
        if not 1 <= got <= n:
            raise Wrong(f"A width must be 1 to n = {n}; got {got:g}.")
        best = _best_nb(m, n)
        ratio = _moved(m, n, int(got)) / _moved(m, n, best)
        # the valley is flat: its neighbours are as good
        if ratio > 1.03:
            raise Wrong(
                f"Panels of {got:g} columns move {ratio:.2f} times the fewest bytes for {m} x {n}.",
                "Wide panels move more inside the panel: look at traffic['panels']."
                if got > best
                else "Narrow panels make more updates: look at traffic['update'].",
            )

    return step


EXERCISES = (
    Exercise(
        id="5.1",
        kind="predict",
        title="T of three mirrors, with a pencil",
        task="""
            Three mirrors have the vectors v_0 = (1, 1, 1, 1), v_1 = (0, 1, 0, 1) and
            v_2 = (0, 0, 1, 1), the columns of

                from qrlib.teach.exercises.s03_blocked import VECTORS

            Which T has H_0 H_1 H_2 = I - V T V^T? Take a pencil: the tau first, from v^T v, then
            the dot products, then column by column. One entry may surprise you. The answer is T,
            3 x 3.
        """,
        solution=triangle,
        steps=(("entry by entry", _by_pencil),),
        hints=(
            "T[j, j] = tau_j = 2 / v_j^T v_j.",
            "Column 1: T[0, 1] = -tau_1 tau_0 (v_0 . v_1). Column 2: first the dot products of v_2 "
            "with v_0 and v_1, then T[:2, :2] times them.",
            "tau = (1/2, 1, 1); v_0 . v_1 = 2, v_0 . v_2 = 2, v_1 . v_2 = 1; T[0, 1] = -1, "
            "T[1, 2] = -1, and T[0, 2] = -(1/2 times 2 - 1 times 1).",
        ),
    ),
    Exercise(
        id="5.2",
        kind="implement",
        title="T in one solve",
        task="""
            larft builds T column by column. Write triangle_solved(V, tau) -> T for a torch batch
            without a loop: T^-1 = diag(1/tau) + striu(V^T V), where striu keeps what is strictly
            above the diagonal. A tau may be 0, so 1/tau must not occur. These may help:

                X.triu(1)
                torch.diag_embed(tau)
                torch.linalg.solve_triangular(M, X, upper=True)
        """,
        solution=triangle_solved,
        steps=(
            ("worked by hand: exercise 5.1", _triangle_by_hand),
            ("certificate: I - V T V^T is the product of the mirrors", _triangle_certificate),
            ("awkward: tau = 0 here and there, NaN", _triangle_awkward),
            ("cost: no loop over the columns, nothing m x m", _triangle_cost),
        ),
        hints=(
            "T^-1 T = I. Multiply it by D = diag(tau) from the left: what is D T^-1?",
            "D T^-1 = I + D striu(V^T V), and it times T is D. No division by tau is left.",
            "M = eye + diag_embed(tau) @ (V.mT @ V).triu(1), then solve_triangular(M, D, "
            "upper=True).",
        ),
    ),
    Exercise(
        id="5.3",
        kind="implement",
        title="the loop of blocked QR",
        task="""
            Write blocked(A, nb) -> (H, tau) for a torch batch A [B, m, n], by panels of nb
            columns. Tall, square and wide; nb may be 1, may not divide n, may be larger than n. A
            is read only. The verbs are there, for the whole batch:

                from qrlib.compact import unpack_v
                from qrlib.householder import geqr2, larfb, larft

            geqr2(H, tau) factors a panel in place; unpack_v(H, b) gives its V; larft(V, tau) its
            T; larfb(V, T, C) returns Q^T C.
        """,
        solution=blocked,
        steps=(
            ("the 3 x 3 example, nb = 1, 2, 3", _blocked_by_hand),
            ("certificate: square, tall, wide; every width", _blocked_certificate),
            ("awkward: ten families, zeros, NaN", _blocked_awkward),
            ("cost: the right side moves once a panel", _blocked_cost),
        ),
        hints=(
            "for j in range(0, k, nb): the panel is columns j to e - 1 with e = min(j + nb, k), "
            "from row j down.",
            "geqr2 writes into the views of H and tau that it gets. Its V is "
            "unpack_v(H[:, j:, j:e], e - j).",
            "H[:, j:, e:] = larfb(V, T, H[:, j:, e:]): all columns on the right, also those beyond "
            "the square, and from row j.",
        ),
    ),
    Exercise(
        id="5.4",
        kind="break it",
        title="T from V alone",
        task="""
            T^-1 + T^-T = V^T V. So T is in V, and tau is not needed:

                from qrlib.teach.exercises.s03_blocked import SHAPES, geqrf_from_v

            It is elegant, and passes every test with tall random matrices. First, break it: give a
            float32 batch A [B, m, n], finite, with m >= n, on which geqrf_from_v(A) fails the
            certificate. Second, predict: on which of SHAPES does it fail for every ordinary
            matrix? The answer is the pair (A, shapes).
        """,
        solution=mirrors_that_are_none,
        steps=(
            ("an A with m >= n that breaks it", _fails_without_tau),
            ("the shapes that break it by themselves", _fails_on_shapes),
        ),
        hints=(
            "2 / v^T v is tau for a mirror. What are v and tau where there was nothing to reflect?",
            "v = e_j and tau = 0. From v alone it would be tau = 2, which flips the sign of a row "
            "in all columns on the right of the panel.",
            "An upper triangular matrix of ones, 8 x 8. Which tau is always 0, and in which shapes "
            "has that column others on its right?",
        ),
        given=(larft_from_v, geqrf_from_v),
    ),
    Exercise(
        id="5.5",
        kind="measure",
        title="the width that moves the fewest bytes",
        task="""
            Write best_nb(m, n): the width of the panels with which stage 3 moves the fewest bytes,
            for one m x n matrix with m >= n. qrlib.model counts them:

                model.plan("s03_blocked", 1, m, n, nb=nb).bytes
                model.plan("s03_blocked", 1, m, n, nb=nb).traffic

            Three per cent above the fewest are accepted, so a formula is as good as a search.
            Which power of n is it? Does it depend on m?
        """,
        solution=best_nb,
        steps=(
            ("square: 128 x 128", _moves_least(128, 128)),
            ("square: 512 x 512", _moves_least(512, 512)),
            ("tall: 4096 x 128", _moves_least(4096, 128)),
        ),
        hints=(
            "Two parts depend on nb: traffic['update'] falls with it, traffic['panels'] grows.",
            "Try them all: min(range(1, ...), key=...). Or: u / nb + p nb is least at sqrt(u / p).",
            "Updates move 3 r c entries for each panel with r rows and c columns on its right, "
            "about n^3 / nb in all for m = n; panels about 3/4 n^2 nb.",
        ),
    ),
)
