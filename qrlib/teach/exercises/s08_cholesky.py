"""Exercises of the chapter A chain in one warp. NumPy, torch; the first asks the stage itself."""

import numbers
from functools import cache

import numpy as np
import torch

from qrlib import householder, reconstruction
from qrlib.compact import unpack_v
from qrlib.launches import launches
from qrlib.teach.ahead import length, schedule
from qrlib.teach.exercises.compare import array, entries, finite, kind, number
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong

# s08_cholesky.1


def at_once(m, n):
    """How many panels of an m x n matrix stage 8 factors as 64 columns at once."""
    # solution
    k = min(m, n)
    # a panel has 64 columns, and at least 96 rows are left for it
    return sum(k - j >= 64 and m - j >= 96 for j in range(0, k, 64))
    # end


@cache
def _at_once(m, n):
    found = launches("s08_cholesky", 1, m, n, target="sm_90a")
    return sum(each.config.name == "eliminate_kernel" for each in found)


def _counts(m, n):
    def step(answer):
        got, right = number("The count", answer(m, n)), _at_once(m, n)
        if got == right:
            return
        first = range(0, min(m, n), 64)
        tall, more = (sum(m - j >= rows for j in first) for rows in (96, 97))
        slips = (
            (tall, "The last one has fewer than 64 columns: it stays with stage 6."),
            (more, "Exactly 96 rows are enough."),
            (len(first), "Not every panel: at the end they have fewer than 96 rows."),
            (min(m, n) // 64, "Not every panel: the square block at the end stays with stage 6."),
        )
        hint = next((said for value, said in slips if got == value), "")
        raise Wrong(f"For {m} x {n} it gives {got:.6g}; stage 8 has {right}.", hint)

    return step


# s08_cholesky.2


class Lanes:
    """A register of a warp: one number in each lane. Arithmetic is lane by lane.

    x.at(lane): the number of that lane, in all lanes; that is a shuffle. x.lane: 0, 1, 2, ...
    """

    shuffles = 0

    def __init__(self, own):
        self._own = np.asarray(own, np.float64)

    @property
    def lane(self):
        return Lanes(np.arange(len(self._own)))

    def at(self, lane):
        if not isinstance(lane, numbers.Integral) or not 0 <= lane < len(self._own):
            raise ValueError(f"lane must be 0 to {len(self._own) - 1}; got {lane!r}")
        Lanes.shuffles += 1
        return Lanes(np.full_like(self._own, self._own[lane]))

    def __repr__(self):
        return f"Lanes({', '.join(f'{each:.4g}' for each in self._own)})"


def _lane_by_lane(operation):
    def method(self, other):
        return Lanes(operation(self._own, _own(other)))

    return method


def _own(x):
    return x._own if isinstance(x, Lanes) else x


for _name, _operation in {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "radd": lambda a, b: b + a,
    "rsub": lambda a, b: b - a,
    "rmul": lambda a, b: b * a,
    "rtruediv": lambda a, b: b / a,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}.items():
    setattr(Lanes, f"__{_name}__", _lane_by_lane(_operation))


def root(x):
    """Square root, lane by lane."""
    return Lanes(np.sqrt(x._own))


def where(condition, a, b):
    """a in the lanes where the condition is true, b in the others."""
    return Lanes(np.where(_own(condition) != 0, _own(a), _own(b)))


def cholesky(rows):
    """[row of R] with R^T R = G, from rows = [row of G], each a Lanes: entry c in lane c.

    A row of R is zero left of its diagonal, and all of it for a column of zeros.
    """
    # solution
    z, R = list(rows), []
    for j in range(len(rows)):
        pivot = z[0].at(j)
        # all lanes take the root: each would have waited for the one that does
        y = where(pivot > 0, 1 / root(pivot), 0)
        r = where(z[0].lane >= j, z[0] * y, 0)
        R.append(r)
        # what is left moves up, so that the next mirror's row is the first
        z = [each - each.at(j) * (y * r) for each in z[1:]]
    return R
    # end


def _warp(answer, G, about=""):
    """R of an answer, [N, N], and how many shuffles it took."""
    Lanes.shuffles = 0
    found = answer([Lanes(row) for row in G], about=about)
    if not isinstance(found, (list, tuple)) or len(found) != len(G):
        raise Wrong(f"It must return a list of {len(G)} rows; got {kind(found)}.")
    for row in found:
        if not isinstance(row, Lanes):
            raise Wrong(f"A row of R must be a Lanes; got {kind(row)}.")
    return np.stack([row._own for row in found]), Lanes.shuffles


def _gram(m, n, seed=0):
    P = np.random.default_rng(seed).standard_normal((m, n))
    return P.T @ P


def _right_rows(G, about):
    def step(answer):
        R, _ = _warp(answer, G, about)
        finite("R", R, "A pivot of zero has no inverse: where(pivot > 0, 1 / root(pivot), 0).")
        right = reconstruction.cholesky(torch.from_numpy(G)[None])[0][0].numpy()
        hint = "Row i takes g_ij / r_jj of row j: two factors 1 / r_jj, one in r and one in g_ij."
        if np.allclose(R[0], G[0]):
            hint = "The first row of R is that of G over the root of its pivot."
        entries("R", R, right, tol=1e-10, why=hint)
        if np.tril(R, -1).any():
            raise Wrong(
                "R has something left of its diagonal.",
                "Rounding leaves a little there; x.lane >= j tells which lanes are to be kept.",
            )

    return step


def _few_shuffles(answer):
    N = 8
    _, count = _warp(answer, _gram(20, N), "8 columns")
    enough = N * (N + 1) // 2
    if count > enough:
        raise Wrong(
            f"It makes {count} shuffles; {enough} are enough.",
            "One for a pivot, and one for each row below it.",
        )


# s08_cholesky.3


def larft(G, tau):
    """T [n, n], upper triangular: the inverse of striu(G) + diag(1 / tau), G = V^T V.

    From the last row up, without a division. Where tau is 0 there is no mirror: a row of zeros.
    """
    T = np.zeros_like(G)
    for j in reversed(range(len(tau))):
        # u_jj t_j = e_j - what is right of u_jj, times rows that are there
        row = -G[j, j + 1 :] @ T[j + 1 :]
        row[j] += 1
        T[j] = tau[j] * row
    return T


def mirrors(m, n, *, seed=0, zero=None):
    """(V, tau) of n mirrors, float64; column `zero` has none."""
    A = torch.from_numpy(np.random.default_rng(seed).standard_normal((1, m, n)))
    if zero is not None:
        A[:, :, zero] = 0
    tau = A.new_zeros(1, n)
    householder.geqr2(A, tau)
    return unpack_v(A)[0].numpy(), tau[0].numpy()


def _triangle(m, n, about="", **options):
    def step(answer):
        V, tau = mirrors(m, n, **options)
        G = V.T @ V
        T = array("T", answer(G, tau, about=about), G)
        finite("T", T, "1 / tau is infinite where there is no mirror; tau itself is 0.")
        right = householder.larft(torch.from_numpy(V)[None], torch.from_numpy(tau)[None])[0].numpy()
        hint = "Row j: (e_j - G[j, j+1:] T[j+1:]) times tau_j, and T[j+1:] is there already."
        if T[tau == 0].any():
            hint = "Where tau is 0 there is no mirror: row and column are zero."
        elif np.allclose(T, right.T):
            hint = "That is its transpose: T is upper triangular."
        elif np.allclose(np.triu(T, 1), -np.triu(right, 1)):
            hint = "What is right of the diagonal is taken away from e_j."
        entries("T", T, right, tol=1e-9, why=hint)

    return step


# s08_cholesky.4


def third():
    """A [256, 256], float32: of its panels of 64 columns the third falls, not the first two."""
    # solution
    A = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    # two directions of one panel that are nearly the same; earlier mirrors leave them so
    A[:, 150] = A[:, 140] + np.float32(1e-4) * A[:, 150]
    return A
    # end


def _square(answer):
    if isinstance(answer, torch.Tensor):
        answer = answer.detach().cpu().numpy()
    if not isinstance(answer, np.ndarray) or answer.shape != (256, 256):
        raise Wrong(f"A must be an array [256, 256]; got {kind(answer)}.")
    array("A", answer, np.zeros((256, 256), np.float32))
    finite("A", answer, "It must be a matrix of ordinary numbers.")
    return answer


def _fell(A):
    fell = []
    reconstruction.geqrf(torch.from_numpy(A)[None].clone(), nb=64, fell=fell)
    return [bool(each[0]) for each in fell]


def _falls(answer):
    fell = _fell(_square(answer))
    if not fell[2]:
        hint = "Two of columns 128 to 191 must have nearly the same direction."
        if not any(fell[:2]):
            hint = (
                "It must be its own columns that depend on each other. What depends on an earlier "
                "panel is small after the update, and its direction is as good as random."
            )
        raise Wrong(f"The third panel stands; {_listed(fell)}.", hint)


def _stands(answer):
    fell = _fell(_square(answer))
    if any(fell[:2]):
        raise Wrong(
            f"It is not alone; {_listed(fell)}.",
            "Leave columns 0 to 127 as good as random, each panel by itself.",
        )


def _listed(fell):
    names = "first", "second", "third"
    said = [name for name, each in zip(names, fell) if each]
    return f"of the first three panels {' and '.join(said) if said else 'none'} fell"


# s08_cholesky.5


def ahead(panels, near, far):
    """How long it takes, with far updates on a branch: lists with a length for each step.

    Panels of a step wait for the near update before them. Both updates of a step wait for its
    panels, and for the far update before them. All else may overlap.
    """
    now = branch = 0.0
    for p, n, f in zip(panels, near, far):
        fork = max(now + p, branch)
        now, branch = fork + n, fork + f
    return max(now, branch)


def _takes(about, panels, near, far):
    def step(answer):
        got = number("The time", answer(list(panels), list(near), list(far), about=about))
        right = length(schedule(panels, near, far))
        if abs(got - right) <= 1e-9 * right:
            return
        hint = ""
        if abs(got - sum(panels) - sum(near) - sum(far)) < 1e-9:
            hint = "The far update begins where the near one does, on a stream of its own."
        elif abs(got - sum(panels) - sum(near)) < 1e-9:
            hint = "A far update may take longer than the panels beside it; who waits for it then?"
        elif got < right:
            hint = "Who waits for the far update before? Both updates of the next step do."
        elif got > right:
            hint = "The far update begins where the near one does: neither waits for the other."
        raise Wrong(f"It gives {got:.6g}; {right:.6g} is right.", hint)

    return step


EXERCISES = (
    Exercise(
        id="s08_cholesky.1",
        kind="predict",
        title="who is wide and tall enough? (at_once)",
        task="""
            Stage 8 factors a panel of 64 columns at once if it has them, and at least 96 rows; the
            others it leaves to stage 6. Write at_once(m, n): how many panels of an m x n matrix are
            factored at once. Try 512 x 512 in your head first. The judge counts what the stage
            would start.
        """,
        solution=at_once,
        steps=(
            ("512 x 512", _counts(512, 512)),
            ("a tall one, 4096 x 64", _counts(4096, 64)),
            ("a square that is no multiple, 352 x 352", _counts(352, 352)),
            ("the smallest, 96 x 64", _counts(96, 64)),
            ("one row less", _counts(95, 64)),
            ("one column less", _counts(400, 63)),
            ("wide, 200 x 900", _counts(200, 900)),
            ("small, 90 x 90", _counts(90, 90)),
        ),
        hints=(
            "Panels begin at columns 0, 64, 128, ... How many rows are left for the one at j?",
            "m - j rows. And there are only min(m, n) mirrors.",
            "Count j in range(0, k, 64) with k - j >= 64 and m - j >= 96.",
        ),
    ),
    Exercise(
        id="s08_cholesky.2",
        kind="implement",
        title="Cholesky in a warp",
        task="""
            rows[i] is row i of a Gram matrix G, in a register: a Lanes, one number in each lane,
            entry c in lane c. Arithmetic with Lanes is lane by lane, numbers may be mixed in. No
            lane sees another one, but for x.at(j): the number of lane j, in all lanes. That is a
            shuffle. Write cholesky(rows), the rows of R with R^T R = G, zero left of the diagonal.
            A column of zeros has a row of zeros. At hand:

                from qrlib.teach.exercises.s08_cholesky import root, where

            root(x) is the square root, where(condition, a, b) picks lane by lane, x.lane is 0, 1,
            2, ... N (N + 1) / 2 shuffles are enough.
        """,
        solution=cholesky,
        steps=(
            ("two columns", _right_rows(np.array([[25.0, 25], [25, 50]]), "G of chapter 11")),
            ("eight", _right_rows(_gram(20, 8), "8 columns")),
            (
                "a column of zeros",
                _right_rows(np.array([[4.0, 0, 2], [0, 0, 0], [2, 0, 10]]), "column 1 is of zeros"),
            ),
            ("cost: shuffles", _few_shuffles),
        ),
        hints=(
            "The pivot of step j is in lane j of what is left of row j. All lanes need it.",
            "r = row * y with y = 1 / root(pivot). Row i below has g_ij in its lane j: shuffle it.",
            "each - each.at(j) * (y * r), for all rows below; then the next row is the first.",
        ),
        given=(Lanes,),
    ),
    Exercise(
        id="s08_cholesky.3",
        kind="implement",
        title="T from the last row up (larft)",
        task="""
            T is the inverse of striu(G) + diag(1 / tau), with G = V^T V. Write larft(G, tau), in
            NumPy, row by row from the last one up. No division is needed: tau is given, and where
            it is 0 there is no mirror.
        """,
        solution=larft,
        steps=(
            ("two mirrors", _triangle(6, 2)),
            ("sixteen", _triangle(40, 16)),
            ("one without a mirror", _triangle(30, 8, zero=7, about="tau[7] is 0")),
            ("more of them, in the middle", _triangle(30, 8, zero=3, about="tau[3] is 0")),
        ),
        hints=(
            "U T = I, with U = striu(G) + diag(1 / tau). Read off row j of it.",
            "u_jj t_j + (what is right of it) T[j+1:] = e_j, and 1 / u_jj is tau_j.",
            "row = -G[j, j+1:] @ T[j+1:]; row[j] += 1; T[j] = tau[j] * row, for j from the last.",
        ),
    ),
    Exercise(
        id="s08_cholesky.4",
        kind="break it",
        title="the third falls (third)",
        task="""
            Give A [256, 256], float32, of ordinary numbers, for which the third panel of 64 columns
            (128 to 191) goes to Householder and the first two do not. The judge is
            qrlib.reconstruction.geqrf with nb=64. Before you try: what becomes of a column of the
            third panel that is a copy of column 0?
        """,
        solution=third,
        steps=(("the third falls", _falls), ("the first two stand", _stands)),
        hints=(
            "A panel falls for its directions, as they are after all updates before it.",
            "A copy of column 0 is next to nothing after the first update. Of what direction?",
            "Make one of columns 128 to 191 nearly the same as another one of these.",
        ),
    ),
    Exercise(
        id="s08_cholesky.5",
        kind="measure",
        title="two streams (ahead)",
        task="""
            A factorization has steps: panels, a near update of the columns of the next panels, and
            a far update of all others. On two streams, panels wait for the near update before them;
            both updates of a step wait for its panels, and for the far update of the step before.
            Nothing else waits. Write ahead(panels, near, far), lists of lengths, one number a step:
            when is all done?
        """,
        solution=ahead,
        steps=(
            ("one step", _takes("one step", [5.0], [2.0], [3.0])),
            ("panels that are longer", _takes("", [10.0] * 4, [1.0] * 4, [6.0, 4.0, 2.0, 0.0])),
            ("far updates that are longer", _takes("", [2.0] * 3, [1.0] * 3, [9.0, 5.0, 2.0])),
            ("now one, now the other", _takes("", [3, 8, 1, 4], [1, 2, 3, 0.5], [9, 2, 7, 1])),
        ),
        hints=(
            "Two clocks: when is the stream free, and when is the branch?",
            "Both updates begin when the panels have ended and the branch is free.",
            "fork = max(now + p, branch); now, branch = fork + n, fork + f.",
        ),
    ),
)
