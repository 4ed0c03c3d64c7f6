"""Exercises of chapter 3, Trust, but certify. NumPy only; the methods are in gram_schmidt.py."""

import math

import numpy as np

from qrlib import certificate, matrices
from qrlib.certificate import TASK
from qrlib.compact import unpack_v
from qrlib.stages.s01_mirror import geqrf
from qrlib.teach.exercises.compare import array, close, finite, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.gram_schmidt import (
    cgs,
    cgs2,
    cholesky_qr,
    householder,
    mgs,
    orthogonality,
    with_condition,
)

M, N = 64, 16


# 3.1

KAPPA = 1e4
FIVE = {each.__name__: each for each in (cgs, mgs, cgs2, cholesky_qr, householder)}
_WHY = {
    "cgs": "Classical Gram-Schmidt loses about kappa^2 eps: a shadow is taken of the old column.",
    "mgs": "Modified Gram-Schmidt loses kappa eps, here about 1e-3: the gate is 100 m eps.",
    "cgs2": "The second pass takes what the first left, which is small already.",
    "cholesky_qr": "A^T A has the condition kappa^2: beyond 1/eps there is nothing left of it.",
    "householder": "A product of mirrors is orthogonal to rounding, whatever A is.",
}


def survivors():
    """The names of those of the five methods that pass the orthogonality gate at kappa = 1e4."""
    return "mgs", "cgs2", "householder"


def loss(method, kappa, seeds=range(5)):
    """The worst |Q^T Q - I| in m*eps over some matrices; inf where the method gives up."""
    try:
        return max(orthogonality(method(with_condition(M, N, kappa, seed=s))[0]) for s in seeds)
    except np.linalg.LinAlgError:
        return math.inf


def _names(answer):
    if isinstance(answer, dict):
        answer = [name for name, passes in answer.items() if passes]
    if isinstance(answer, str) or not isinstance(answer, (tuple, list, set)):
        raise Wrong(
            f"It must be a list of names; got {kind(answer)}.", f"The names are {', '.join(FIVE)}."
        )
    for name in answer:
        if not isinstance(name, str) or name not in FIVE:
            raise Wrong(f"There is no method {name!r}; the names are {', '.join(FIVE)}.")
    return answer


def _survive(answer):
    said = _names(answer)
    for name, method in FIVE.items():
        lost = loss(method, KAPPA)
        if (lost <= TASK.orthogonality) == (name in said):
            continue
        measured = (
            f"{lost:.3g} m*eps" if lost < math.inf else "a Cholesky factor that does not exist"
        )
        verdict = "does not pass" if name in said else "passes"
        raise Wrong(
            f"{name} {verdict}: at kappa = {KAPPA:g} the worst of five matrices {M} x {N} gives "
            f"{measured}, the gate is {TASK.orthogonality:g}.",
            _WHY[name],
        )


# 3.2


def certify(A, H, tau):
    """(factor, orthogonality) of every matrix of a batch, in float64, in units of m*eps.

    factor = |R - Q^T A| / (m eps |A|) and orthogonality = |Q^T Q - I| / (m eps), where |X| is the
    largest column sum of absolute values, eps that of A's dtype, and Q has its first k columns.

    A, H: [B, m, n]. tau: [B, k]. NumPy; all are read. Returns two arrays [B], float64.
    """
    unit = A.shape[1] * np.finfo(A.dtype).eps
    A, V, tau = A.astype(np.float64), unpack_v(H.astype(np.float64)), tau.astype(np.float64)
    R = np.triu(H)
    QtA, Q = A.copy(), np.zeros(V.shape) + np.eye(*V.shape[1:])
    mirrors = [(V[:, :, j : j + 1], tau[:, j, None, None]) for j in range(tau.shape[1])]
    for v, t in mirrors:
        QtA -= t * v * (v.swapaxes(1, 2) @ QtA)
    for v, t in reversed(mirrors):
        Q -= t * v * (v.swapaxes(1, 2) @ Q)

    def norm(X):
        return np.abs(X).sum(axis=1).max(axis=1)

    wrong, size = norm(R - QtA), norm(A)
    # a matrix of zeros has the right R = 0: no error
    factor = np.where(wrong == 0, 0, wrong / np.where(size == 0, 1, size))
    I = np.eye(Q.shape[2])
    return factor / unit, norm(Q.swapaxes(1, 2) @ Q - I) / unit


def _residuals(answer, A, H, tau, about=""):
    factor, orthogonality = several(answer(A, H, tau, about=about), ("factor", "orthogonality"))
    like = np.empty(len(A))
    return array("factor", factor, like), array("orthogonality", orthogonality, like)


def _agrees(answer, A, H, tau, about="", tol=1e-3):
    """Both residuals are those of qrlib.certify, matrix by matrix."""
    factor, orthogonality = _residuals(answer, A, H, tau, about)
    right = certificate.certify(A, H, tau)
    _same("factor", factor, right.factor, A, tol)
    _same("orthogonality", orthogonality, right.orthogonality, A, tol)


def _same(name, mine, exact, A, tol):
    # float64 itself leaves the last term
    wrong = np.flatnonzero(~(np.abs(mine - exact) <= tol * exact + 1e-6))
    if len(wrong):
        b = wrong[0]
        raise Wrong(
            f"{name}[{b}] is {mine[b]:.5g}; it is {exact[b]:.5g}.", _slip(mine, exact, b, A)
        )


def _slip(mine, exact, b, A):
    """Which mistake gives mine[b] in place of exact[b]?"""
    if len(mine) > 1 and np.ptp(mine) == 0:
        return (
            "Each matrix has its own residuals; an average or a maximum over the batch hides one."
        )
    if exact[b] == 0:
        return ""
    m, eps = A.shape[1], np.finfo(A.dtype).eps
    slips = (
        (m * eps, "It is not in units of m*eps yet: divide by them."),
        (m, "It is in units of eps: divide by m too."),
        (eps / np.finfo(np.float64).eps, "eps is that of A's dtype, not of float64."),
        (2, "That is LAPACK's unit, half of this eps: np.finfo(A.dtype).eps is 2^-23 for float32."),
    )
    drowned = (
        "The residuals of a good float32 factorization are as small as the rounding of float32: "
        "compute them in float64, from the first operation on."
    )
    rounded = drowned if 0 < mine[b] < TASK.factor and exact[b] < TASK.factor else ""
    return next((why for slip, why in slips if close(mine[b] / exact[b], slip)), rounded)


def _certify_by_hand(answer):
    # nothing was done: Q = I and R = (3, 0, 0), so R - Q^T A = (0, -4, 0) and |A| = 7
    A = np.array([[[3], [4], [0]]], np.float32)
    _agrees(answer, A, A.copy(), np.zeros((1, 1), np.float32))
    # v = (1, 1/2, 0) and tau = 1: v.v = 5/4, and H is no mirror
    H = np.array([[[-5], [0.5], [0]]], np.float32)
    _agrees(answer, A, H, np.ones((1, 1), np.float32))


def _certify_real(answer):
    A = matrices.make("dense", 3, 32)
    H, tau = geqrf(A)
    _agrees(answer, A, H, tau, "three good factorizations, n = 32", tol=0.02)
    H[1, 3, 20] *= 2
    tau[2, 4] *= 0.9
    _agrees(answer, A, H, tau, "R of matrix [1] and tau of matrix [2] were spoiled")


def _certify_awkward(answer):
    for m, n in ((5, 2), (2, 5), (1, 1)):
        A = np.random.default_rng(m).standard_normal((2, m, n)).astype(np.float32)
        H, tau = geqrf(A)
        H[0, 0, 0] *= 2
        _agrees(answer, A, H, tau, f"{m} x {n}, R of matrix [0] spoiled")
    A = np.zeros((1, 3, 3), np.float32)
    factor, _ = _residuals(
        answer, A, A.copy(), np.zeros((1, 3), np.float32), "A = 0, H = 0, tau = 0"
    )
    if factor[0] != 0:
        raise Wrong(
            f"factor[0] is {factor[0]:.5g} for A = 0 and R = 0, which is right: 0.",
            "0 / 0 is NaN: where R - Q^T A is zero the residual is zero.",
        )
    for where in ("H", "tau"):
        A = matrices.make("dense", 2, 4)
        H, tau = geqrf(A)
        (H if where == "H" else tau)[1, 0] = np.nan
        factor, orth = _residuals(answer, A, H, tau, f"NaN in {where} of matrix [1]")
        if factor[1] <= TASK.factor and orth[1] <= TASK.orthogonality:
            raise Wrong(
                f"factor[1] = {factor[1]:.3g} and orthogonality[1] = {orth[1]:.3g} pass the gate, "
                f"though {where} has a NaN.",
                "np.nanmax and comparisons with > overlook NaN; a certificate must not.",
            )
        finite("factor of matrix [0]", factor[0], "A NaN must stay in its own matrix.")


# 3.3


def orthogonality_only(A, H, tau):
    """True when Q is orthogonal: a checker that never looks at A."""
    return bool((certificate.certify(A, H, tau).orthogonality <= TASK.orthogonality).all())


def orthogonal_garbage():
    """(A, H, tau) that orthogonality_only passes, though Q R is not A. [m, n], [m, n], [k]."""
    # no mirror at all: Q = I is orthogonal, and R is just the upper part of A
    A = np.ones((3, 3), np.float32)
    return A, A.copy(), np.zeros(3, np.float32)


def _fooled(answer):
    parts = several(answer, ("A", "H", "tau"))
    try:
        A, H, tau = (np.asarray(each) for each in parts)
        found = certificate.certify(A, H, tau)
    except (TypeError, ValueError) as error:
        raise Wrong(f"These do not belong together: {error}.") from None
    if not A.size:
        raise Wrong("A is empty: there is nothing to get wrong.")
    finite("A", A, "Garbage in A excuses garbage out; give an A that can be factored.")
    if not found.finite.all():
        raise Wrong(
            "H or tau has NaN or infinity, and the weak checker rejects that.",
            "An orthogonal Q is easy to have: which mirror changes nothing?",
        )
    if not orthogonality_only(A, H, tau):
        raise Wrong(
            f"The weak checker rejects it: orthogonality is {found.orthogonality.max():.3g} m*eps, "
            f"the gate is {TASK.orthogonality:g}.",
            "An orthogonal Q is easy to have: which mirror changes nothing?",
        )
    if found.passed:
        raise Wrong(
            f"The weak checker passes it, and rightly: factor is {found.factor.max():.3g} m*eps, "
            f"within the gate of {TASK.factor:g}. That is a factorization of A.",
            "R must not be Q^T A. For an upper triangular A, H = A with tau = 0 is right.",
        )


# 3.4


def hard_for_cgs():
    """A [m, n], condition at most 1e4, whose Q by classical Gram-Schmidt fails the gate of 100."""
    # in float32 1 + e^2 rounds to 1: the columns' differences are lost when the shadow is taken
    e = 2.0**-12
    return np.array([[1, 1, 1], [e, 0, 0], [0, e, 0], [0, 0, e]], np.float32)


def _breaks_cgs(answer):
    A = answer
    if isinstance(A, (list, tuple)):
        try:
            A = np.array(A, np.float64)
        except (TypeError, ValueError):
            raise Wrong(f"A must be a matrix of numbers; got {kind(answer)}.") from None
    if not isinstance(A, np.ndarray) or A.ndim != 2 or A.dtype.kind not in "fiu":
        raise Wrong(f"A must be a NumPy matrix [m, n] of numbers; got {kind(A)}.")
    A = A.astype(np.float32)
    m, n = A.shape
    if m < n or n < 2:
        raise Wrong(f"A must have at least two columns, and as many rows; got {m} x {n}.")
    finite("A", A, "As float32 it must be finite.")
    values = np.linalg.svd(A.astype(np.float64), compute_uv=False)
    kappa = values[0] / values[-1] if values[-1] else math.inf
    if not kappa <= KAPPA:
        raise Wrong(
            f"Its condition number is {kappa:.4g}; at most {KAPPA:g} is asked for.",
            "Columns that are nearly parallel will do; they need not be quite so parallel.",
        )
    lost = orthogonality(cgs(A)[0])
    if lost <= TASK.orthogonality:
        raise Wrong(
            f"Classical Gram-Schmidt passes: it loses {lost:.3g} m*eps at condition {kappa:.3g}, "
            f"the gate is {TASK.orthogonality:g}.",
            "It loses about kappa^2 eps: come nearer to the condition that is allowed.",
        )


# 3.5


def breakdown():
    """The condition number from which on Cholesky QR gives no result in float32, by measurement."""
    # solution
    low, high = 1.0, 1e8
    # halve the interval on a logarithmic scale until it is within a tenth
    while high > 1.1 * low:
        kappa = math.sqrt(low * high)
        try:
            cholesky_qr(with_condition(M, N, kappa))
            low = kappa
        except np.linalg.LinAlgError:
            high = kappa
    return high
    # end


def _stops(kappa, seeds):
    """How many of some matrices with that condition have no Cholesky QR in float32."""
    stopped = 0
    for seed in seeds:
        try:
            cholesky_qr(with_condition(M, N, kappa, seed=seed))
        except np.linalg.LinAlgError:
            stopped += 1
    return stopped


def _measured(answer):
    got = number("The condition number", answer)
    seeds = range(10)
    grid = np.logspace(2, 7, 41)
    stops = np.array([_stops(kappa, seeds) for kappa in grid])
    # where the first matrix stops, and where the last one does; half of that span on either side
    first, last = grid[stops > 0][0], grid[stops == len(seeds)][0]
    slack = math.sqrt(last / first)
    if first / slack <= got <= last * slack:
        return
    eps = float(np.finfo(np.float32).eps)
    hint = "Try matrices of growing condition (with_condition makes them) until cholesky_qr raises."
    if got > 0 and 0.3 < got * eps < 3:
        hint = "1/eps is where kappa eps reaches 1; but A^T A has the condition kappa^2."
    elif got > last and 1e7 < got < 1e9:
        hint = "That is the place for float64: with_condition and cholesky_qr must get float32."
    elif 0 < got < first and loss(cholesky_qr, got) > TASK.orthogonality:
        hint = "There Q is not orthogonal any more, but it still comes: look for LinAlgError."
    raise Wrong(
        f"It gives {got:.3g}; measured just now on matrices {M} x {N}, the first stops at "
        f"{first:.2g} and the last at {last:.2g}: from {first / slack:.2g} to {last * slack:.2g} "
        "is accepted.",
        hint,
    )


EXERCISES = (
    Exercise(
        id="3.1",
        kind="predict",
        title="who passes at condition 1e4?",
        task=f"""
            Five ways to a QR factorization, float32, matrices {M} x {N} of condition 1e4, and the
            gate |Q^T Q - I| <= 100 m eps. Which methods pass? Give a list of names out of

                cgs           classical Gram-Schmidt
                mgs           modified Gram-Schmidt
                cgs2          classical Gram-Schmidt, twice
                cholesky_qr   Cholesky QR
                householder   mirrors

            all of them in qrlib.teach.gram_schmidt. Predict first; the check measures.
        """,
        solution=survivors,
        steps=(("each of the five, measured", _survive),),
        hints=(
            "eps is 1.2e-7, m eps is 8e-6, so the gate is near 1e-3. What is kappa eps, what is "
            "kappa^2 eps?",
            "Two of them lose kappa^2 eps, one loses kappa eps, two lose nothing to speak of.",
            "kappa eps = 1.2e-3 in the large norm of the bound; measured it is below the gate. "
            "kappa^2 eps = 12 is no orthogonality at all.",
        ),
    ),
    Exercise(
        id="3.2",
        kind="implement",
        title="write the checker (certify)",
        task="""
            Write certify(A, H, tau) -> (factor, orthogonality) in NumPy for a batch: two float64
            arrays with one number a matrix,

                factor        = |R - Q^T A| / (m eps |A|)
                orthogonality = |Q^T Q - I| / (m eps)

            with R = triu(H), Q the product of the mirrors in H and tau (its first k columns), |X|
            the largest column sum of absolute values, and eps that of A's dtype. A = 0 with R = 0
            has factor 0. A NaN in H or tau must not pass the gates 20 and 100.
        """,
        solution=certify,
        steps=(
            ("worked by hand: (3, 4, 0) with tau = 0, with tau = 1", _certify_by_hand),
            ("good and spoiled factorizations, n = 32", _certify_real),
            ("awkward: tall, wide, 1 x 1, A = 0, NaN", _certify_awkward),
        ),
        hints=(
            "Convert everything to float64 before the first operation: the residuals are as small "
            "as float32's own rounding.",
            "Q^T A: apply the mirrors 0, 1, 2, ... to A. Q: apply them to the identity, the last "
            "one first. unpack_v of qrlib gives V with its ones.",
            "For every j with v = V[:, :, j:j+1] and t = tau[:, j, None, None]: X -= t * v * "
            "(v^T @ X). Then np.abs(X).sum(axis=1).max(axis=1) is the norm of every matrix.",
        ),
    ),
    Exercise(
        id="3.3",
        kind="break it",
        title="defeat a checker that looks at Q alone",
        task="""
            The checker below measures orthogonality and nothing else:

                from qrlib.teach.exercises.certify import orthogonality_only

            Give A [m, n], H [m, n] and tau [k], float32, that it passes though (H, tau) is no
            factorization of A.
        """,
        solution=orthogonal_garbage,
        steps=(("passes the weak checker, fails the certificate", _fooled),),
        hints=(
            "It never looks at A. What is the easiest orthogonal matrix?",
            "tau = 0 makes H_j = I, so Q = I, perfectly orthogonal.",
            "H = A and tau = 0, for an A that has something below its diagonal.",
        ),
        given=(orthogonality_only,),
    ),
    Exercise(
        id="3.4",
        kind="break it",
        title="break classical Gram-Schmidt",
        task="""
            Give a matrix A [m, n] on which classical Gram-Schmidt in float32
            (qrlib.teach.gram_schmidt.cgs, below) fails the gate |Q^T Q - I| <= 100 m eps, though
            its condition number is at most 1e4. The checker takes the condition from the singular
            values, in float64.
        """,
        solution=hard_for_cgs,
        steps=(("condition at most 1e4, gate failed", _breaks_cgs),),
        hints=(
            "Gram-Schmidt subtracts shadows. When is what remains tiny against what was there?",
            "Columns that are nearly parallel: a common part of size 1, private parts of size e. "
            "The condition is about sqrt(n)/e.",
            "Rows (1, 1, 1), (e, 0, 0), (0, e, 0), (0, 0, e), with e so small that 1 + e^2 rounds "
            "to 1 in float32, but no smaller.",
        ),
        given=(cgs,),
    ),
    Exercise(
        id="3.5",
        kind="measure",
        title="where Cholesky QR stops",
        task="""
            Cholesky QR (qrlib.teach.gram_schmidt.cholesky_qr, below) raises LinAlgError when
            A^T A, as rounded, is not positive definite any more. From which condition number on, in
            float32? Measure it: with_condition(m, n, kappa) of the same module makes matrices. The
            answer is a number, or a function that measures it; the checker measures too and
            accepts what lies near the range that it finds.
        """,
        solution=breakdown,
        steps=(("measured again, over ten matrices a condition", _measured),),
        hints=(
            "What is the condition number of A^T A? When does that reach 1/eps?",
            "Try kappa = 1e2, 1e3, 1e4, 1e5: where does LinAlgError begin? Then halve.",
            "Between 1e3 and 1e5. Bisect on a logarithmic scale: kappa = sqrt(low * high).",
        ),
        given=(cholesky_qr, with_condition),
    ),
)
