"""Exercises of chapter 1, One mirror. A mirror is H = I - tau v v^T with v[0] = 1. NumPy only."""

from decimal import Decimal, localcontext

import numpy as np

from qrlib.certificate import TASK, certify
from qrlib.stages.s01_mirror import larf, larfg
from qrlib.teach.exercises.compare import (
    Peak,
    array,
    certified,
    close,
    entries,
    finite,
    kind,
    number,
    several,
)
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong, brief

EPS = float(np.finfo(np.float32).eps)
MIRROR = ("beta", "v", "tau")


# 1.1


def mirror_by_hand():
    """(beta, v, tau) of the mirror that sends (12, 6, -4) onto the first axis."""
    # the column is 14 long, and goes to the side where x[0] - beta does not cancel
    beta = -14
    # x - beta e1 = (26, 6, -4), divided by its head
    v = (1, 6 / 26, -4 / 26)
    # (beta - x[0]) / beta, which is 2 / v.v
    tau = 26 / 14
    return beta, v, tau


def _by_hand_parts(answer):
    if isinstance(answer, dict):
        if set(answer) != set(MIRROR):
            raise Wrong(
                f"A dict must have the keys beta, v, tau; got {', '.join(map(str, answer))}."
            )
        answer = tuple(answer[name] for name in MIRROR)
    beta, v, tau = several(answer, MIRROR)
    if not isinstance(v, (tuple, list, np.ndarray)) or len(v) != 3:
        raise Wrong(f"v must have three entries, its head 1 included; got {kind(v)}.")
    v = [number(f"v[{i}]", each) for i, each in enumerate(v)]
    return number("beta", beta), np.array(v), number("tau", tau)


def _by_hand(answer):
    _judge(np.array([12.0, 6.0, -4.0]), *_by_hand_parts(answer), tol=1e-3)


# 1.2: the solution is larfg of stage 1


def _made(larfg, x, about=""):
    """beta, v, tau as larfg gives them for x, their types checked."""
    beta, v, tau = several(larfg(x, about=about), MIRROR)
    return number("beta", beta), array("v", v, x), number("tau", tau)


def _judge(x, beta, v, tau, tol):
    """Is (beta, v, tau) the mirror of x? Otherwise say which mistake gives these numbers."""
    x64 = x.astype(np.float64)
    largest = np.abs(x64).max()
    norm = largest * np.linalg.norm(x64 / largest) if largest else 0.0
    head, tail = x64[0], x64[1:]
    broken = not (np.isfinite([beta, tau]).all() and np.isfinite(v).all())
    if not tail.any():
        if broken:
            raise Wrong(
                f"The result is {_told(beta, v, tau)}: something was divided by zero.",
                "Where x[1:] is zero there is nothing to reflect: return x[0], e1 and 0 first.",
            )
        if tau != 0 or beta != head or v[0] != 1 or v[1:].any():
            raise Wrong(
                f"x[1:] is zero already, so H must be I: beta = x[0], v = (1, 0, ...), tau = 0 "
                f"exactly; got {_told(beta, v, tau)}.",
                "Ask `if not np.any(x[1:])` before anything else.",
            )
        return
    if broken or tau == 0 or beta == 0:
        raise Wrong(f"The result is {_told(beta, v, tau)}.", _why_broken(head, largest, x.dtype))
    if np.signbit(beta) == np.signbit(head):
        if head == 0:
            raise Wrong(
                f"beta must have the sign opposite to x[0], and zero has a sign too: "
                f"got {beta:.6g} for x[0] = {head:g}.",
                "np.copysign(1, x[0]) sees the sign of -0.0; np.sign and x[0] >= 0 do not.",
            )
        raise Wrong(
            f"beta = {beta:.6g} has the sign of x[0] = {head:.6g}, so x[0] - beta cancels.",
            "Of the two mirrors take the one that goes to the far side: beta = -sign(x[0]) |x|.",
        )
    if not close(abs(beta), norm, tol):
        raise Wrong(
            f"beta = {beta:.6g}, but a mirror keeps the length, which is {norm:.6g}.",
            _why_broken(head, largest, x.dtype),
        )
    if not close(v[0], 1, tol):
        raise Wrong(
            f"v[0] = {v[0]:.6g}; it must be 1, for it is not stored.",
            "v = x - beta e1 has the right direction: divide it by its first entry.",
        )
    right = 1 + abs(head / norm)
    if not close(tau, right, tol):
        hint = "With v[0] = 1, tau = 2 / v.v, which is (beta - x[0]) / beta."
        if close(tau, 2, tol):
            hint = f"tau = 2 goes with a v of length 1. {hint}"
        raise Wrong(f"tau = {tau:.6g}; with v[0] = 1 it is {right:.6g}.", hint)
    entries(
        "v",
        v,
        np.append(1, tail / (head + np.copysign(norm, head))),
        tol=tol,
        why="The tail of v is x[1:] / (x[0] - beta).",
    )


def _told(beta, v, tau):
    return f"beta = {beta:.6g}, v = {brief(np.asarray(v))}, tau = {tau:.6g}"


def _why_broken(head, largest, dtype):
    if largest > np.sqrt(np.finfo(dtype).max) / 4:
        return "The squares overflow: multiply x by a power of two near 1 / max|x| first."
    if largest < np.sqrt(np.finfo(dtype).tiny) * 4:
        return "The squares underflow to zero: multiply x by a power of two near 1 / max|x| first."
    if head == 0:
        return "np.sign(0) is 0, and then beta is 0: np.copysign(norm, x[0]) has a sign for 0 too."
    return "beta = -sign(x[0]) |x|, v = (x - beta e1) / (x[0] - beta), tau = (beta - x[0]) / beta."


def _larfg_by_hand(larfg):
    for x in ([12, 6, -4], [3, 4], [-3, 4]):
        x = np.array(x, np.float32)
        _judge(x, *_made(larfg, x), tol=1e-5)


def _larfg_certificate(larfg):
    for m in (2, 3, 5, 33, 200):
        for dtype in (np.float32, np.float64):
            x = np.random.default_rng(m).standard_normal(m).astype(dtype)
            _exact(larfg, x, f"{m} normal numbers")


def _exact(larfg, x, about=""):
    """The mirror of x by its certificate, in m*eps, once the obvious mistakes are ruled out."""
    beta, v, tau = _made(larfg, x, about)
    _judge(x, beta, v, tau, tol=32 * len(x) * EPS)
    column = np.append(x.dtype.type(beta), v[1:])[:, None]
    certified(x[:, None], column, np.array([tau], x.dtype))


def _larfg_awkward(larfg):
    for x in (
        [3],
        [3, 0, 0],
        [-2, 0, 0],
        [0, 0, 0],
        [0, 3, 4],
        [-0.0, 3, 4],
        [1, 1e-7, 0],
        [1e20, -2e20, 2e20],
        [3e-25, -4e-25, 0],
        [1e-30, 1, 1e-30],
        [2.5e38, 1e38],
    ):
        _exact(larfg, np.array(x, np.float32))
    for dtype, scales in (np.float32, (1e-35, 1e-20, 1e18, 1e36)), (np.float64, (1e-300, 1e300)):
        for scale in scales:
            x = (np.random.default_rng(0).standard_normal(33) * scale).astype(dtype)
            _exact(larfg, x, f"33 normal numbers times {scale:g}")


def _larfg_cost(larfg):
    m = 3000
    x = np.random.default_rng(0).standard_normal(m).astype(np.float32)
    _no_square(larfg, (x,), m)


def _no_square(function, args, m):
    """The function forms no m x m array: its peak is held against a tenth of one."""
    with Peak() as peak:
        function(*args)
    square = m * m * args[0].itemsize
    if peak.bytes > square / 10:
        raise Wrong(
            f"It took {peak.bytes / 1e6:.1f} MB for a column of {m}; an m x m array takes "
            f"{square / 1e6:.1f} MB, and H is not to be formed.",
            "H C = C - tau v (v^T C): a product of a row with C, then an outer product.",
        )


# 1.3: the solution is larf of stage 1


def _applied(larf, v, tau, C, about=""):
    """C after larf(v, tau, C), and what was wrong with the way it was returned."""
    before = C.copy()
    returned = larf(v, tau, C, about=about)
    changes = tau != 0 and C.size and np.any(v @ before.astype(np.float64))
    if changes and np.array_equal(C, before, equal_nan=True):
        if isinstance(returned, np.ndarray):
            raise Wrong(
                "It returns a new array and leaves C as it was; the result must be in C itself.",
                "C -= ... and C[...] = ... write into C; C = ... only names another array C.",
            )
        raise Wrong(
            "C is what it was before.",
            "C = C - ... makes a new array and calls it C; C -= ... writes into the one given.",
        )
    return before, C


def _larf_by_hand(larf):
    v, tau = np.array([1, 0.5], np.float32), np.float32(1.6)
    before, C = _applied(larf, v, tau, np.array([[3, 1], [4, 2]], np.float32))
    w = v @ before
    slips = (
        (np.outer(v, w), "That is C - v (v^T C): tau is missing."),
        (2 * np.outer(v, w), "That is C - 2 v (v^T C): 2 fits a v of length 1; here it is tau."),
        (-tau * np.outer(v, w), "That is C + tau v (v^T C): the sign."),
        (tau * np.outer(before @ v, v), "That is C H, the mirror on the right; here it is H C."),
    )
    hint = "Take w = v^T C once, before anything is written; then C -= tau * outer(v, w)."
    hint = next((slip for D, slip in slips if close(C, before - D, 1e-5)), hint)
    entries("C", C, before - tau * np.outer(v, w), tol=1e-5, why=hint)


def _larf_exact(larf, v, tau, C, about=""):
    before, C = _applied(larf, v, tau, C, about)
    finite("C", C)
    if not before.size:
        return
    v64, before64 = v.astype(np.float64), before.astype(np.float64)
    wanted = before64 - np.outer(float(tau) * v64, v64 @ before64)
    unit = len(v) * np.finfo(C.dtype).eps * np.abs(before64).sum(0).max()
    error = np.abs(C - wanted).sum(0).max() / unit if unit else float(np.any(C))
    if error > TASK.factor:
        j = int(np.argmax(np.abs(C - wanted).sum(0)))
        raise Wrong(
            f"|C - (C - tau v v^T C)| is {error:.3g} m*eps |C|, the gate is {TASK.factor:g}; "
            f"column {j} is the worst."
        )


def _larf_certificate(larf):
    rng = np.random.default_rng(1)
    for m, n in ((2, 3), (5, 1), (33, 8), (200, 5)):
        for dtype in (np.float32, np.float64):
            _, v, tau = larfg(rng.standard_normal(m).astype(dtype))
            C = rng.standard_normal((m, n)).astype(dtype)
            _larf_exact(larf, v, tau, C, f"C of {m} x {n} normal numbers")


def _larf_awkward(larf):
    rng = np.random.default_rng(2)
    _, v, tau = larfg(rng.standard_normal(6).astype(np.float32))
    normal = rng.standard_normal((6, 4)).astype(np.float32)
    _larf_exact(larf, v, np.float32(0), normal.copy(), "tau = 0: C stays")
    _larf_exact(larf, *larfg(normal[:1, 0])[1:], normal[:1].copy(), "m = 1: C stays")
    _larf_exact(larf, v, tau, np.zeros((6, 3), np.float32), "C = 0")
    _larf_exact(larf, v, tau, np.zeros((6, 0), np.float32), "C has no columns")
    _larf_exact(
        larf, v, tau, np.hstack([normal, normal])[:, 1:6:2], "C is a view into a larger array"
    )
    for scale in (1e-30, 1e30):
        _larf_exact(
            larf, v, tau, normal * np.float32(scale), f"C of normal numbers times {scale:g}"
        )
    C = normal.copy()
    C[2, 1] = np.nan
    larf(v, tau, C, about="column 1 of C holds a NaN")
    finite("C", np.delete(C, 1, 1), "A NaN must stay in its own column.")


def _larf_cost(larf):
    m = 3000
    rng = np.random.default_rng(3)
    _, v, tau = larfg(rng.standard_normal(m).astype(np.float32))
    _no_square(larf, (v, tau, rng.standard_normal((m, 2)).astype(np.float32)), m)


# 1.4


def textbook_reflector(x):
    """beta, v, tau as many textbooks have it: sign(x[0]), and a plain sum of squares."""
    beta = -np.sign(x[0]) * np.sqrt(np.sum(x * x))
    v = x.copy()
    v[0] -= beta
    return beta, v / v[0], (beta - x[0]) / beta


KINDS = ("x[0] = 0", "overflow", "underflow")


def breaking_vectors():
    """Vectors that break textbook_reflector, each in another way."""
    # sign(0) = 0; squares beyond 3e38; squares that vanish below 1e-45
    return [[0, 3, 4], [1e20, 1e20], [1e-25, 1e-25]]


def _vectors(answer):
    if not isinstance(answer, (tuple, list)) or not answer:
        raise Wrong(
            f"It must be a list of vectors; got {kind(answer)}.",
            "For example [[1, 2, 3], [4, 5]]: two vectors.",
        )
    vectors = []
    for i, given in enumerate(answer):
        try:
            exact = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            raise Wrong(f"Vector {i} must hold numbers; got {kind(given)}.") from None
        if exact.ndim != 1 or len(exact) < 2:
            raise Wrong(f"Vector {i} must have two entries or more; got shape {list(exact.shape)}.")
        with np.errstate(over="ignore"):
            x = exact.astype(np.float32)
        if not np.isfinite(x).all():
            raise Wrong(
                f"Vector {i}, {brief(exact)}, is not finite as float32: nothing is left to break.",
                f"A float32 ends at {np.finfo(np.float32).max:.3g}; NaN and infinity do not count.",
            )
        vectors.append(x)
    return vectors


def _break(x):
    """(which residual fails or None, kind of break) of textbook_reflector on x."""
    with np.errstate(all="ignore"):
        beta, v, tau = textbook_reflector(x)
        squares = np.sum(x * x)
    H = np.append(beta, v[1:]).astype(np.float32)[:, None]
    found = certify(x[:, None], H, np.array([tau], np.float32))
    failed = [f"{name} {worst:.3g}" for name, _, worst, _, _, ok in found.rows() if not ok]
    if not found.finite:
        failed = ["NaN or infinity in beta, v or tau"]
    if x[0] == 0:
        why = KINDS[0]
    else:
        why = KINDS[1] if not np.isfinite(squares) else KINDS[2]
    return ", ".join(failed), why


def _each_breaks(answer):
    for i, x in enumerate(_vectors(answer)):
        if not _break(x)[0]:
            raise Wrong(
                f"Vector {i}, {brief(x)}, does not break it: both residuals pass the gate.",
                "What does the function do with x[0]? What with the squares of very large, very "
                "small numbers?",
            )


def _three_kinds(answer):
    found = [(x, *_break(x)) for x in _vectors(answer)]
    missing = [each for each in KINDS if each not in [why for _, _, why in found]]
    if missing:
        lines = [f"{brief(x)}: {failed} ({why})" for x, failed, why in found]
        raise Wrong(
            "\n".join(["Broken so far:", *lines, f"Still to be found: {', '.join(missing)}."]),
            {
                KINDS[0]: "What is np.sign(0)?",
                KINDS[1]: "From where on is the square of a float32 no float32 any more?",
                KINDS[2]: "How small may a float32 be, and how small its square?",
            }[missing[0]],
        )


# 1.5


def wrong_head(x):
    """x[0] - beta in float32 with beta = sign(x[0]) |x|, on the wrong side, where they cancel."""
    return x[0] - np.copysign(np.sqrt(x @ x), x[0])


def digits_lost(x):
    """Decimal digits that wrong_head(x) has lost: log10 of its relative error in eps, at least 0.

    x: [m], float32, not all of x[1:] zero. Returns a float.
    """
    # solution
    head, tail = float(x[0]), x[1:].astype(np.float64)
    norm = np.copysign(np.sqrt(head * head + tail @ tail), head)
    # (x0 - norm) (x0 + norm) = -tail^2, and on this side nothing cancels
    exact = -(tail @ tail) / (head + norm)
    error = abs(float(wrong_head(x)) - exact) / abs(exact)
    return float(np.log10(max(error / np.finfo(x.dtype).eps, 1)))
    # end


def _lost_exactly(x):
    """digits_lost by sixty-digit arithmetic: (relative error, digits)."""
    with localcontext() as context:
        context.prec = 60
        entries = [Decimal(float(each)) for each in x]
        norm = sum(each * each for each in entries).sqrt().copy_sign(entries[0])
        exact = entries[0] - norm
        error = float(abs((Decimal(float(wrong_head(x))) - exact) / exact))
    return error, float(np.log10(max(error / EPS, 1)))


def _lost(digits_lost, x, about=""):
    x = np.array(x, np.float32)
    got = number("The result", digits_lost(x, about=about))
    error, expected = _lost_exactly(x)
    if abs(got - expected) <= 0.02:
        return
    with np.errstate(all="ignore"):
        slips = (
            (error, "That is the relative error: take log10 of it in eps."),
            (np.log10(error), "Divide by eps first: an error of eps has lost nothing."),
            (np.log(error / EPS), "That is the natural logarithm; digits are counted by log10."),
            (np.log2(error / EPS), "Those are bits; digits are counted by log10."),
        )
    hint = (
        "Does your exact value cancel as well? (x0 - |x|)(x0 + |x|) = -(sum of the squares of the "
        "tail), and the second factor does not cancel."
    )
    if expected == 0:
        hint = "An error of eps or less has lost no digit: log10(max(error / eps, 1))."
    else:
        same = (why for slip, why in slips if np.isclose(got, slip, rtol=1e-3, atol=0.01))
        hint = next(same, hint)
    raise Wrong(f"It gives {got:.4g} digits; in exact arithmetic {expected:.4g} are lost.", hint)


def _lost_by_hand(digits_lost):
    # 3 - 5 and 12 - 14 are exact; 1 + 2^-24 rounds to 1, and every digit is gone
    for x in ([3, 4], [12, 6, -4], [1, 2.0**-12]):
        _lost(digits_lost, x)


def _lost_measured(digits_lost):
    for decade in range(6):
        x = np.random.default_rng(decade).standard_normal(8) * 10.0**-decade
        x[0] = 1
        _lost(digits_lost, x, f"x[0] = 1, seven normal numbers times 1e-{decade}")


def _lost_awkward(digits_lost):
    for x in ([-1, 3e-3], [-7, 1e-2, 2e-2], [1, 1e-9], [1e-3, 1e3], [1000, 0.3, 0]):
        _lost(digits_lost, x)


EXERCISES = (
    Exercise(
        id="1.1",
        kind="predict",
        title="the mirror of (12, 6, -4) by hand",
        task="""
            Pencil and paper: which mirror H = I - tau v v^T, with v[0] = 1, sends (12, 6, -4) onto
            (beta, 0, 0)? Give beta, the three entries of v, and tau; three digits are enough.

            ex.check("1.1", (beta, v, tau)) takes plain numbers too.
        """,
        solution=mirror_by_hand,
        steps=(("beta, v, tau", _by_hand),),
        hints=(
            "A mirror keeps lengths. How long is (12, 6, -4)?",
            "beta = -14: on that side x[0] - beta does not cancel. The vector from the image to x "
            "is x - beta e1, and it stands on the mirror.",
            "x - beta e1 = (26, 6, -4); divided by 26 it is v. tau = (beta - x[0]) / beta = 26/14.",
        ),
    ),
    Exercise(
        id="1.2",
        kind="implement",
        title="make a mirror (larfg)",
        task="""
            Write larfg(x) -> (beta, v, tau) in NumPy for one vector x of float32 or float64: the
            mirror that sends x onto (beta, 0, ..., 0). v has the shape and the dtype of x, and its
            head is 1. x is read only.

            It must hold for every x that has no NaN or infinity: x[0] = 0 or -0.0, a tail that is
            zero already (tau = 0 then), entries of 1e36 and of 1e-35, in float64 of 1e300 too.
        """,
        solution=larfg,
        steps=(
            ("worked by hand: (12, 6, -4), (3, 4), (-3, 4)", _larfg_by_hand),
            ("certificate: normal numbers, m = 2 to 200", _larfg_certificate),
            ("awkward vectors: zeros, signs, scales", _larfg_awkward),
            ("cost: no m x m array", _larfg_cost),
        ),
        hints=(
            "beta = -sign(x[0]) |x|; v = (x - beta e1) / (x[0] - beta); tau = (beta - x[0]) / "
            "beta.",
            "Begin with the tail: if it is zero, return x[0], e1 and 0. Use np.copysign, which "
            "knows what to do with 0 and -0.0.",
            "Divide x by a power of two near max|x| first (np.frexp gives it, np.ldexp makes it): "
            "v and tau stay the same, and beta is multiplied by it at the end.",
        ),
    ),
    Exercise(
        id="1.3",
        kind="implement",
        title="apply a mirror without forming it (larf)",
        task="""
            Write larf(v, tau, C) in NumPy: C becomes H C = C - tau v (v^T C), in place. v is [m],
            C is [m, n] and may be a view into a larger array; v is read only. H, which is m x m,
            must not be formed: the memory is measured.
        """,
        solution=larf,
        steps=(
            ("worked by hand: v = (1, 1/2), tau = 8/5", _larf_by_hand),
            ("certificate: normal numbers, up to 200 x 8", _larf_certificate),
            ("awkward: tau = 0, C = 0, no columns, views, scales, NaN", _larf_awkward),
            ("cost: no m x m array", _larf_cost),
        ),
        hints=(
            "Read C - tau v (v^T C) from the right: v^T C is a row of n numbers.",
            "w = v @ C, and then every row i of C loses tau * v[i] * w.",
            "np.outer(v, w) is [m, n]. C -= writes into C; C = C - does not.",
        ),
        writes=("C",),
    ),
    Exercise(
        id="1.4",
        kind="break it",
        title="three ways to break a textbook reflector",
        task="""
            The function below makes a reflector as many textbooks and lecture notes do:

                from qrlib.teach.exercises.s01_mirror import textbook_reflector

            Find float32 vectors x, finite ones, on which it fails: give a list of at least three,
            which break it in three different ways.

            ex.check("1.4", [[...], [...], [...]]) takes the list itself too.
        """,
        solution=breaking_vectors,
        steps=(("every vector breaks it", _each_breaks), ("in three different ways", _three_kinds)),
        hints=(
            "Look at its two ingredients: the sign of x[0], and the sum of squares.",
            "np.sign has three values. A float32 ends at 3.4e38 above and near 1e-45 below.",
            "A vector with x[0] = 0, one with entries near 1e20, one with entries near 1e-25.",
        ),
        given=(textbook_reflector,),
    ),
    Exercise(
        id="1.5",
        kind="measure",
        title="the digits that the wrong sign costs",
        task="""
            Put beta on the wrong side, and x[0] - beta cancels. In float32:

                from qrlib.teach.exercises.s01_mirror import wrong_head

            gives that difference. Write digits_lost(x): how many of the seven decimal digits of
            float32 are gone? Compare wrong_head(x) with the exact difference; the answer is
            log10(relative error / eps), and 0 where that is negative.

            Then print it for x = (1, t) with t = 1, 0.1, 0.01, ...: how many digits does a decade
            cost?
        """,
        solution=digits_lost,
        steps=(
            ("worked by hand: (3, 4), (12, 6, -4), (1, 2^-12)", _lost_by_hand),
            ("measured: tails of 1 down to 1e-5", _lost_measured),
            ("awkward: a negative head, a tail of 1e-9, no loss at all", _lost_awkward),
        ),
        hints=(
            "float64 is exact enough for the reference value, if you do not cancel there as well.",
            "With s = |x| and the sign of x[0]: (x0 - s)(x0 + s) = -(sum of squares of x[1:]).",
            "exact = -(tail @ tail) / (x0 + s) in float64; error = |wrong_head(x) - exact| / "
            "|exact|; log10(max(error / eps, 1)) with eps = 2^-23.",
        ),
        given=(wrong_head,),
    ),
)
