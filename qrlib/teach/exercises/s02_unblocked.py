"""Exercises of chapter 2, A mirror a column. Batches [B, m, n] of torch tensors."""

import math
from functools import cache
from time import perf_counter

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import qrlib
from qrlib import householder, matrices, model
from qrlib.certificate import TASK, certify
from qrlib.compact import unpack_r
from qrlib.householder import larf
from qrlib.stages.s02_unblocked import geqrf
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
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.gram_schmidt import with_condition

# the example of the task: R = [[14, 21, -14], [0, 175, -70], [0, 0, 35]] up to signs
EXAMPLE = ((12, -51, 4), (6, 167, -68), (-4, 24, -41))


class Meter(TorchDispatchMode):
    """What torch did while a block ran: for every operation, how many entries it wrote."""

    def __init__(self):
        # torch imports it the first time that it is watched: seconds that are not the answer's
        import torch._dynamo  # noqa: F401

        super().__init__()
        self.wrote = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            parts = result if isinstance(result, (tuple, list)) else (result,)
            self.wrote += [part.numel() for part in parts if isinstance(part, torch.Tensor)]
        return result


def not_one_by_one(calls, more, hint):
    """Not more operations for 6 matrices than for 2, which would be a loop over the batch."""
    if more > 1.2 * calls:
        raise Wrong(
            f"It calls {calls} operations of torch for 2 matrices and {more} for 6: it goes "
            "through the batch one by one.",
            hint,
        )


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


# 2.1


def flops(m, n):
    """Flops of geqr2 for one matrix m x n with m >= n, to leading order."""
    # 4 (m - j) (n - j) for column j, summed over the columns
    return 2 * n**2 * (m - n / 3)


_SLIPS = (
    (lambda m, n: 4 * m * n**2, "What is left to work on shrinks: m - j rows, n - j columns."),
    (lambda m, n: 2 * m * n**2, "The rows shrink as the columns do: from m - j entries a mirror."),
    (lambda m, n: 4 * n**3 / 3, "That is right for m = n; how does a taller matrix add to it?"),
    (lambda m, n: n**2 * (m - n / 3), "An addition and a multiplication are two flops, not one."),
    (lambda m, n: 4 * n**2 * (m - n / 3), "That is twice as much: Q is not formed, only kept."),
)


def _flops_for(m, n):
    def step(flops):
        got = number("The result", flops(m, n))
        # the exact count, larfg included
        exact = model.geqr2(m, n).flops
        if not abs(got - exact) <= 0.02 * exact:
            hint = next((why for slip, why in _SLIPS if abs(got - slip(m, n)) <= 0.02 * exact), "")
            raise Wrong(f"It gives {got:.4g} flops; counted one by one they are {exact:.4g}.", hint)

    return step


# 2.2: the solution is geqrf of stage 2


def _factored(answer, A, about=""):
    H, tau = several(answer(A, about=about), ("H", "tau"))
    B, m, n = A.shape
    return array("H", H, A), array("tau", tau, A, (B, min(m, n)))


def _geqrf_by_hand(answer):
    A = torch.tensor([EXAMPLE], dtype=torch.float64)
    H, tau = _factored(answer, A, "the 3 x 3 example of the chapter")
    right = qrlib.geqrf(A)

    def belongs(at):
        _, i, j = at
        if i <= j:
            return "On and above the diagonal stands R: what the mirrors so far have made of A."
        return f"Below the diagonal of column {j} stands the tail of v_{j}, divided by its head."

    entries("H", H, right.H, why=belongs)
    entries("tau", tau, right.tau, why="tau_j belongs to the mirror of column j, from row j on.")


def _factors(answer, A, about, hint=""):
    H, tau = _factored(answer, A, about)
    m, n = A.shape[1:]
    if m > n and n and bool((tau[:, -1] == 0).all()) and bool(A[:, :, -1].any()):
        hint = "In a tall matrix the last column has entries below its diagonal too: no n - 1."
    certified(A, H, tau, hint)
    return H, tau


def _geqrf_certificate(answer):
    for m, n in ((1, 1), (3, 3), (5, 2), (2, 5), (1, 4), (33, 33), (40, 17)):
        for dtype in (torch.float32, torch.float64):
            _factors(answer, normal(3, m, n, dtype=dtype), f"3 matrices {m} x {n}, normal numbers")


def _geqrf_awkward(answer):
    zero = normal(2, 4, 4)
    zero[0, :, 1] = 0
    zero[1, :, 0] = 0
    _factors(answer, zero, "a column of zeros", "A zero tail gives tau = 0; larfg sees to that.")
    upper = normal(2, 4, 4).triu()
    H, tau = _factors(answer, upper, "upper triangular already")
    if tau.any() or not torch.equal(H, upper):
        raise Wrong(
            "An upper triangular A has nothing to reflect: it must come back as it is, tau = 0."
        )
    for family in ("rankdef", "clustered", "nearrank", "rowscale", "nearcollinear"):
        A = torch.from_numpy(matrices.make(family, 2, 16))
        _factors(answer, A, f"family {family}, n = 16")
    for scale in (1e-30, 1e30):
        _factors(answer, normal(2, 5, 4) * scale, f"normal numbers times {scale:g}")
    nan_stays_home(lambda A, about: _factored(answer, A, about)[0], normal(3, 4, 4), (2, 2))


def _geqrf_cost(answer):
    """As many operations for six matrices as for two: no loop over the batch."""
    counts = []
    for B in (2, 6):
        meter = Meter()
        answer(normal(B, 8, 8), about=f"a batch of {B}", inside=meter)
        counts.append(len(meter.wrote))
    not_one_by_one(
        *counts, "householder.larfg and larf take the whole batch: loop over the columns only."
    )


# 2.3


def householder_product(H, tau):
    """Q = H_0 H_1 ... H_{n-1}, its first n columns, from the last mirror to the first.

    H: [B, m, n] with m >= n. tau: [B, n]. Both are read. Returns Q: [B, m, n].
    """
    Q = torch.eye(*H.shape[1:], dtype=H.dtype).repeat(len(H), 1, 1)
    # solution
    for j in reversed(range(tau.shape[1])):
        # columns before j are still those of the identity, zero from row j on
        larf(H[:, j + 1 :, j], tau[:, j], Q[:, j:, j:])
    # end
    return Q


def _formed(answer, H, tau, about=""):
    return array("Q", answer(H, tau, about=about), H)


def _product_by_hand(answer):
    # the mirror of (3, 4)
    H, tau = torch.tensor([[[-5.0], [0.5]]]), torch.tensor([[1.6]])
    Q = _formed(answer, H, tau)
    hint = "Q e1 = e1 - tau v with v = (1, H[1]): the head of v is 1 and is not stored."
    entries("Q", Q, torch.tensor([[[-0.6], [-0.8]]]), why=hint)
    H, tau = qrlib.geqrf(torch.tensor([EXAMPLE], dtype=torch.float64))
    Q = _formed(answer, H, tau, "the 3 x 3 example of the chapter")
    right = qrlib.householder_product(H, tau)
    if close(Q, right.mT):
        raise Wrong(
            "That is Q^T: the mirrors came in the order 0, 1, 2.",
            "Q = H_0 (H_1 (H_2 I)): the last mirror meets the identity first.",
        )
    hint = "Q = H_0 (H_1 (H_2 I)): the last mirror first; and mirror j acts on rows j and below."
    entries("Q", Q, right, why=hint)


def _product_exact(answer, A, about=""):
    H, tau = qrlib.geqrf(A)
    Q = _formed(answer, H, tau, about)
    finite("Q", Q)
    right = qrlib.householder_product(H.double(), tau.double())
    unit = Q.shape[1] * torch.finfo(Q.dtype).eps
    error = float((Q - right).abs().sum(1).max()) / unit
    if error > TASK.orthogonality:
        hint = "Where m > n, Q^T is not the product of the same mirrors the other way round."
        raise Wrong(
            f"|Q - H_0 H_1 ... I| is {error:.3g} m*eps, the gate is {TASK.orthogonality:g}.",
            hint if A.shape[1] > A.shape[2] else "",
        )


def _product_certificate(answer):
    for m, n in ((1, 1), (3, 3), (5, 2), (4, 1), (33, 33), (40, 17)):
        for dtype in (torch.float32, torch.float64):
            _product_exact(answer, normal(3, m, n, dtype=dtype), f"3 matrices {m} x {n}")


def _product_awkward(answer):
    _product_exact(answer, torch.zeros(2, 4, 3), "A = 0: every tau is 0")
    for family in ("rankdef", "upper", "nearcollinear"):
        A = torch.from_numpy(matrices.make(family, 2, 16))
        _product_exact(answer, A, f"family {family}, n = 16")


def _product_cost(answer):
    m, n = 400, 4
    H, tau = qrlib.geqrf(normal(1, m, n))
    no_square(answer, (H, tau), m)
    m = 48
    H, tau = qrlib.geqrf(normal(1, m, m))
    meter = Meter()
    answer(H, tau, inside=meter)
    # (m - j)^2 summed over j is a third of m^3, m (m - j) is a half: how full are the operations on
    # matrices, measured by the largest? An answer by blocks has few of them, and is let through
    large = [size for size in meter.wrote if size > 2 * m]
    filled = sum(large) / (len(large) * max(large)) if large else 0
    if sum(large) > 0.8 * m**3 and filled > 0.48:
        raise Wrong(
            f"It writes {sum(large)} entries for m = n = {m}: {filled:.2f} of what {len(large)} "
            "whole matrices hold, where a third is enough.",
            "Mirror j has zeros above row j, and columns before j are still those of the identity: "
            "apply it to Q[:, j:, j:] alone.",
        )


def no_square(answer, args, m):
    meter = Meter()
    answer(*args, inside=meter)
    largest = max(meter.wrote, default=0)
    if largest >= m * m:
        raise Wrong(
            f"It forms an array of {largest} entries for m = {m}, which is m x m.",
            "Neither the mirrors nor the square Q are to be formed: apply them to what you have.",
        )


# 2.4


def lstsq(H, tau, b):
    """x that makes |A x - b| least, from A = Q R in compact form: R x = the top of Q^T b.

    H: [B, m, n] with m >= n and R invertible. tau: [B, n]. b: [B, m, p]. All are read.
    Returns x: [B, n, p].
    """
    # Q^T keeps lengths, so |A x - b| = |R x - Q^T b|, and the rows below R do not depend on x
    c = qrlib.ormqr(H, tau, b, transpose=True)[:, : tau.shape[1]]
    return torch.linalg.solve_triangular(unpack_r(H), c, upper=True)


def _solved(answer, H, tau, b, about=""):
    B, m, n = H.shape
    return array("x", answer(H, tau, b, about=about), b, (B, n, b.shape[2]))


def _lstsq_by_hand(answer):
    A = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]], dtype=torch.float64)
    b = torch.tensor([[[1.0], [2.0], [6.0]]], dtype=torch.float64)
    H, tau = qrlib.geqrf(A)
    x = _solved(answer, H, tau, b, "a line through (0, 1), (1, 2), (2, 6)")
    R, wrong_way = unpack_r(H), qrlib.ormqr(H, tau, b)[:, :2]
    slips = (
        (torch.linalg.solve(R, wrong_way), "That comes from Q b; it takes Q^T b."),
        (torch.linalg.solve(R, b[:, :2]), "That comes from b itself; it takes Q^T b."),
        (
            torch.linalg.solve(H[:, :2], qrlib.ormqr(H, tau, b, transpose=True)[:, :2]),
            "Below the diagonal of H stand the mirrors, not R: take triu of it.",
        ),
    )
    hint = "Turn b by Q^T (qrlib.ormqr with transpose=True), keep n rows, solve R x = that."
    hint = next((why for wrong, why in slips if close(x, wrong)), hint)
    entries("x", x, torch.tensor([[[0.5], [2.5]]]), why=hint)


def _lstsq_exact(answer, A, b, about=""):
    """|A^T (A x - b)| in m*eps |A|^2 (|A| |x| + |b|): zero for the least x and for no other."""
    x = _solved(answer, *qrlib.geqrf(A), b, about)
    finite("x", x)
    A64, b64, x64 = numpy64(A), numpy64(b), numpy64(x)

    def norm(X):
        return np.abs(X).sum(-2).max(-1)

    slope = norm(A64.swapaxes(-1, -2) @ (A64 @ x64 - b64))
    size = norm(A64.swapaxes(-1, -2)) * (norm(A64) * norm(x64) + norm(b64))
    error = float((slope / size).max()) / (A.shape[1] * torch.finfo(A.dtype).eps)
    if error > TASK.factor:
        raise Wrong(
            f"A^T (A x - b) is {error:.3g} m*eps of what it is made of, the gate is "
            f"{TASK.factor:g}: x is not the least squares solution."
        )


def _lstsq_certificate(answer):
    for m, n, p in ((1, 1, 1), (3, 3, 1), (5, 2, 1), (8, 3, 4), (40, 17, 2)):
        for dtype in (torch.float32, torch.float64):
            A, b = normal(3, m, n, dtype=dtype), normal(3, m, p, seed=1, dtype=dtype)
            _lstsq_exact(answer, A, b, f"3 systems {m} x {n}, {p} right-hand sides")


def _lstsq_fits(answer):
    """|A x - b| for a b that A reaches, where the condition is 1e6: rounding, and no more."""
    A = torch.from_numpy(with_condition(12, 6, 1e6, dtype=np.float64))[None]
    b = A @ normal(1, 6, 1, dtype=torch.float64)
    x = _solved(answer, *qrlib.geqrf(A), b, "b = A x, condition 1e6")
    finite("x", x)
    error = float((A @ x - b).abs().max() / b.abs().max()) / (12 * torch.finfo(A.dtype).eps)
    if error > TASK.factor:
        raise Wrong(
            f"An x with A x = b exists, but |A x - b| is {error:.3g} m*eps, the gate is "
            f"{TASK.factor:g}.",
            "Does A^T A or R^T R occur? It has the square of the condition; R x = Q^T b has not.",
        )


def _lstsq_awkward(answer):
    A, b = normal(2, 12, 6), normal(2, 12, 1, seed=1)
    _lstsq_fits(answer)
    _lstsq_exact(answer, A * torch.logspace(0, -4, 6), b, "columns scaled from 1 down to 1e-4")
    for scale in (1e-15, 1e15):
        _lstsq_exact(answer, A * scale, b, f"A times {scale:g}")


def _lstsq_cost(answer):
    m = 400
    H, tau = qrlib.geqrf(normal(1, m, 3))
    no_square(answer, (H, tau, normal(1, m, 1)), m)


# 2.5


def geqr2_unguarded(A):
    """Unblocked QR of a batch A [B, m, n], without a word about columns that are zero already."""
    H = A.clone()
    tau = A.new_zeros(A.shape[0], min(A.shape[1:]))
    for j in range(tau.shape[1]):
        alpha, x = H[:, j, j], H[:, j + 1 :, j]
        beta = -torch.copysign((alpha * alpha + (x * x).sum(-1)).sqrt(), alpha)
        tau[:, j] = (beta - alpha) / beta
        v = x / (alpha - beta)[:, None]
        larf(v, tau[:, j], H[:, j:, j + 1 :])
        H[:, j, j] = beta
        H[:, j + 1 :, j] = v
    return H, tau


def dependent():
    """A [6, 6], float64, of rank 4: column 2 = column 0 + column 1, and column 4 is zero."""
    A = np.random.default_rng(5).standard_normal((6, 6))
    A[:, 2] = A[:, 0] + A[:, 1]
    A[:, 4] = 0
    return A


def zero_tail():
    """(A, columns): a batch of which geqr2_unguarded spoils a part; the tiny ones of dependent().

    A: [B, m, n], float32, B >= 2. columns: the j for which |R[j, j]| is only rounding.
    """
    # solution
    A = torch.eye(3).repeat(2, 1, 1)
    # nothing is left to make a mirror from: 0 / 0
    A[0, :, 1] = 0
    # R[j, j] is how far column j stands out of the columns before it
    return A, (2, 4)
    # end


def _batch_and_columns(answer):
    A, columns = several(answer, ("A", "columns"))
    A = torch.from_numpy(A) if isinstance(A, np.ndarray) else A
    if not isinstance(A, torch.Tensor) or A.ndim != 3 or A.dtype != torch.float32:
        raise Wrong(f"A must be a float32 tensor [B, m, n]; got {kind(A)}.")
    finite("A", A, "The NaN must come from the arithmetic, not from the input.")
    if len(A) < 2 or not A[0].numel():
        raise Wrong(
            f"A must hold two matrices or more; got {kind(A)}.",
            "One is to break, its neighbour to stay clean.",
        )
    if isinstance(columns, (int, np.integer)):
        columns = (columns,)
    if not isinstance(columns, (tuple, list, set, np.ndarray, torch.Tensor)):
        raise Wrong(f"columns must be a list of column numbers; got {kind(columns)}.")
    return A, {int(number("A column number", j)) for j in columns}


def _breaks_one(answer):
    A = _batch_and_columns(answer)[0]
    H, tau = geqr2_unguarded(A)
    found = certify(A, H, tau)
    nan = (~found.finite).nonzero()[0]
    if not len(nan):
        raise Wrong(
            f"geqr2_unguarded makes no NaN of this batch of {len(A)}.",
            "It divides by beta and by alpha - beta: when are both zero?",
        )
    if len(nan) == len(A):
        raise Wrong(
            f"All {len(A)} matrices break; a neighbour must stay clean.",
            "Put a harmless matrix beside it, such as the identity.",
        )
    if not found.each[found.finite].all():
        raise Wrong(
            "A neighbour has no NaN, but fails the certificate too.",
            "Choose a neighbour of ordinary size and full rank.",
        )


def _tiny_columns(answer):
    columns = _batch_and_columns(answer)[1]
    A = dependent()
    diagonal = np.abs(np.diag(qrlib.qr(A, "r")))
    tiny = set(np.flatnonzero(diagonal < len(A) * np.finfo(A.dtype).eps * np.abs(A).max()).tolist())
    if columns == tiny:
        return
    j = min(columns ^ tiny)
    if not 0 <= j < len(A):
        raise Wrong(f"columns = {sorted(columns)}, but dependent() has columns 0 to {len(A) - 1}.")
    said = "which is only rounding" if j in tiny else "which is not tiny"
    hint = "R[j, j] is how far column j stands out of the columns before it."
    if columns == {len(A) - 2, len(A) - 1}:
        hint = f"Nothing moves the small ones to the end: there is no pivoting. {hint}"
    raise Wrong(
        f"columns = {sorted(columns)}, but |R[{j}, {j}]| is {diagonal[j]:.2g}, {said}.", hint
    )


def power(seconds, n):
    """The power of n by which a time grows from n to 2 n: 1 if it doubles, 3 if it is 8-fold.

    seconds(n): one time for n. Something else may have run meanwhile, and have made it longer.
    """
    # nothing makes a time shorter than it is
    once, twice = (min(seconds(size) for _ in range(9)) for size in (n, 2 * n))
    return math.log2(twice / once)


def stage2_seconds(n, B=4):
    """One time of stage 2 on this machine, in seconds, for B matrices n x n."""
    A = normal(B, n, n)
    begin = perf_counter()
    geqrf(A)
    return perf_counter() - begin


@cache
def counts(n):
    """(operations of torch, entries that they write) of stage 2 for two n x n matrices."""
    with Meter() as meter:
        geqrf(normal(2, n, n))
    return len(meter.wrote), sum(meter.wrote)


def _power(answer, seconds, n, about):
    p = number("The power", answer(seconds, n, about=about))
    if not math.isfinite(p):
        raise Wrong(f"The power must be finite; got {p}.", "log2 of what, over what?")
    return p


def _is_power(p, right, why=""):
    if abs(p - right) <= 0.1:
        return
    slips = (
        (2**right, "That is how many times as long it takes; of which power of 2 is that?"),
        (math.log(2**right), "That is the natural logarithm; n was doubled, so take log2."),
        (math.log10(2**right), "That is log10; n was doubled, so take log2."),
        (-right, "The time for 2 n over that for n, and not the other way round."),
    )
    hint = next((said for slip, said in slips if abs(p - slip) <= 0.02), why)
    raise Wrong(f"The power is {p:.4g}; expected {right:.4g}.", hint)


def _known_clock(of_n, n, about):
    def step(answer):
        right = math.log2(of_n(2 * n) / of_n(n))
        hint = "Two times, for n and for 2 n; what is added to both must not be taken for a growth."
        _is_power(_power(answer, of_n, n, about), right, hint)

    return step


def _disturbed(answer):
    count = -1

    def seconds(n):
        nonlocal count
        count += 1
        # two in five wait for something else, and the first of all does
        return 1e-6 * n**3 + (0.02 if count % 5 in (0, 3) else 0)

    p = _power(answer, seconds, 16, "a time that goes with n^3, and two in five that had to wait")
    _is_power(
        p, 3, "Some of the times had to wait. Take several for each n; which of them is true?"
    )


def _counted(answer):
    for k, what in enumerate(("operations", "entries written")):

        def clock(n, k=k):
            return counts(n)[k]

        # first, for the first count of all waits for an import of seconds
        right = power(clock, 8)
        p = _power(answer, clock, 8, f"{what} in the place of a time, counts(n)[{k}]")
        _is_power(p, right, "Call it with n and with 2 n.")


def _by_this_clock(answer):
    # whatever this machine does: it is a number
    _power(answer, stage2_seconds, 8, "stage 2 on this machine")


EXERCISES = (
    Exercise(
        id="2.1",
        kind="predict",
        title="how many flops is a QR?",
        task="""
            Column j makes a mirror from what is left of it, and every column to its right is taken
            through that mirror. Write flops(m, n): the flops of geqr2 for one m x n matrix with
            m >= n, to leading order. An addition and a multiplication are two flops. Two per cent
            are accepted either way.
        """,
        solution=flops,
        steps=(
            ("square: 2000 x 2000", _flops_for(2000, 2000)),
            ("tall: 8000 x 1000", _flops_for(8000, 1000)),
        ),
        hints=(
            "A mirror of length r, applied to c columns: how many flops? larf does one product "
            "v^T C and one update.",
            "4 r c. In column j, r = m - j and c = n - j - 1.",
            "Sum 4 (m - j)(n - j) over j = 0 ... n - 1: about 4 (m n^2 / 2 - n^3 / 6).",
        ),
    ),
    Exercise(
        id="2.2",
        kind="implement",
        title="a mirror a column, the whole batch at once (geqr2)",
        task="""
            Write geqrf(A) -> (H, tau) for a torch batch A [B, m, n] of float32 or float64, column
            by column: R on and above the diagonal of H, the tails of the v below it, tau [B, k]
            with k = min(m, n). A is read only. The verbs are there:

                from qrlib.householder import larf, larfg

            They take a whole batch. Loop over the columns, not over the matrices.
        """,
        solution=geqrf,
        also=(householder.geqr2,),
        steps=(
            ("the 3 x 3 example", _geqrf_by_hand),
            ("certificate: square, tall, wide", _geqrf_certificate),
            ("awkward: zero columns, triangular, low rank, scales, NaN", _geqrf_awkward),
            ("cost: no loop over the batch", _geqrf_cost),
        ),
        hints=(
            "H starts as a copy of A. Column j: its mirror comes from H[:, j:, j].",
            "larfg(H[:, j, j], H[:, j + 1:, j]) gives beta, the tail of v, and tau. larf takes the "
            "tail of v and writes into H[:, j:, j + 1:].",
            "for j in range(k): larfg; larf on the columns right of j, from row j down; then beta "
            "goes to H[:, j, j] and the tail of v under it.",
        ),
    ),
    Exercise(
        id="2.3",
        kind="implement",
        title="Q, from the last mirror to the first (householder_product)",
        task="""
            Q = H_0 H_1 ... H_{n-1} is in H and tau, but not formed. Write
            householder_product(H, tau) -> Q [B, m, n], its first n columns, for a torch batch with
            m >= n. Begin with the columns of the identity. larf of qrlib.householder applies one
            mirror to the whole batch. Which mirror first? And which part of Q can it change?
        """,
        solution=householder_product,
        steps=(
            ("worked by hand: the mirror of (3, 4); the 3 x 3 example", _product_by_hand),
            ("certificate: square and tall", _product_certificate),
            ("awkward: tau = 0, low rank, triangular", _product_awkward),
            ("cost: nothing m x m, no work on zeros", _product_cost),
        ),
        hints=(
            "Q I = H_0 (H_1 (... (H_{n-1} I))): read it from the inside.",
            "The tail of v_j is H[:, j + 1:, j], and H_j acts on rows j and below.",
            "Going back from the last mirror, columns before j are untouched so far and zero from "
            "row j on: larf(H[:, j + 1:, j], tau[:, j], Q[:, j:, j:]).",
        ),
    ),
    Exercise(
        id="2.4",
        kind="implement",
        title="least squares from the compact form (lstsq)",
        task="""
            Write lstsq(H, tau, b) -> x: for each matrix A = Q R of a torch batch, the x that makes
            |A x - b| least. H is [B, m, n] with m >= n and an invertible R, b is [B, m, p], and x
            is [B, n, p]. A itself is gone, Q need not be formed. These may help:

                qrlib.ormqr(H, tau, b, transpose=True)
                qrlib.unpack_r(H)
                torch.linalg.solve_triangular(R, c, upper=True)
        """,
        solution=lstsq,
        steps=(
            ("worked by hand: a line through three points", _lstsq_by_hand),
            ("certificate: square and tall, several right-hand sides", _lstsq_certificate),
            ("awkward: exact fit, graded columns, scales", _lstsq_awkward),
            ("cost: nothing m x m", _lstsq_cost),
        ),
        hints=(
            "Q^T keeps lengths: |A x - b| = |R x - Q^T b|.",
            "The rows of Q^T b below the n-th meet no x: nothing can be done about them.",
            "c = the first n rows of Q^T b; solve R x = c.",
        ),
    ),
    Exercise(
        id="2.5",
        kind="break it",
        title="a column of zeros",
        task="""
            Below is geqr2 without the line that looks for a zero tail:

                from qrlib.teach.exercises.s02_unblocked import geqr2_unguarded, dependent

            First, break it: give a float32 batch A [B, m, n], B >= 2, finite, of which it makes
            NaN in at least one matrix, while at least one neighbour comes out right.

            Second, predict: with the guard, rank deficient matrices are no trouble. Which diagonal
            entries of R are only rounding for the matrix of dependent()? Give their column numbers.

            The answer is the pair (A, columns).
        """,
        solution=zero_tail,
        steps=(
            ("NaN beside a clean neighbour", _breaks_one),
            ("tiny diagonal of R", _tiny_columns),
        ),
        hints=(
            "Which two divisions are there, and when do both have 0 / 0?",
            "A column of zeros gives beta = 0. For R: |R[j, j]| is the distance of column j from "
            "the columns before it.",
            "Two identity matrices, with one column of the first set to zero. Columns 2 and 4 of "
            "dependent() add nothing to those before them.",
        ),
        given=(geqr2_unguarded, dependent),
    ),
    Exercise(
        id="2.6",
        kind="measure",
        title="by which power of n? (power)",
        task="""
            Operations grow with n^3, and so do bytes. Does the time? Write power(seconds, n): by
            which power of n a time grows from n to 2 n. seconds(n) gives one time for n x n
            matrices, and may have been disturbed: something else ran, and it took longer. The
            checker gives you clocks that it knows, then counts in the place of times, then a real
            clock, of which it believes any number. Then let n be 4, 8, 16, ... yourself:

                from qrlib.teach.exercises.s02_unblocked import counts, stage2_seconds

            Near which power does the time of your computer begin, and why? Where does it go?
        """,
        solution=power,
        steps=(
            ("a clock that goes with n", _known_clock(lambda n: 2e-5 * n, 32, "2e-5 n")),
            ("a clock that goes with n^3", _known_clock(lambda n: 1e-8 * n**3, 32, "1e-8 n^3")),
            (
                "a clock with both in it",
                _known_clock(lambda n: 2e-5 * n + 1e-8 * n**3, 32, "2e-5 n + 1e-8 n^3"),
            ),
            ("a machine that does other things, too", _disturbed),
            ("counts in the place of times", _counted),
            ("this machine", _by_this_clock),
        ),
        hints=(
            "If a time goes with n^p, then 2 n takes 2^p times as long.",
            "log2(time of 2 n / time of n). One time is not enough: nothing makes one too short, "
            "and much makes one too long.",
            "The shortest of nine for n, the shortest of nine for 2 n, and math.log2 of their "
            "ratio.",
        ),
        given=(stage2_seconds, counts),
    ),
)
