"""Exercises of chapter 12, How few bits? NumPy, and torch where a matrix is factored."""

import numpy as np
import torch

from qrlib.certificate import TASK, certify
from qrlib.precision import FORMATS, numbers, product, round_to
from qrlib.teach import rounded
from qrlib.teach.exercises.compare import array, close, finite, kind, number
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong

# 12.1

GIVEN = (17.0, 19.0, 75.0, 76.0, 0.1, 2.0**-10, 3 * 2.0**-10, 470.0)


def by_hand():
    """What GIVEN becomes in FP8 E4M3, to nearest, ties to even: eight numbers."""
    return [16, 20, 72, 80, 0.1015625, 0, 2**-8, 448]


def _eight(answer):
    if isinstance(answer, np.ndarray):
        answer = answer.tolist()
    if not isinstance(answer, (list, tuple)) or len(answer) != len(GIVEN):
        raise Wrong(f"It must be a list of {len(GIVEN)} numbers; got {kind(answer)}.")
    return [number(f"Number {k}", value) for k, value in enumerate(answer)]


def _are_numbers(answer):
    known = numbers("fp8_e4m3")
    for x, said in zip(GIVEN, _eight(answer)):
        if abs(said) not in known:
            low, high = known[known < x][-1], known[known > x][:1]
            near = f"{low:g} and {high[0]:g}" if len(high) else f"{low:g}, and none above"
            raise Wrong(
                f"For {x:.8g} you say {said:.8g}, which is no number of FP8 E4M3; near {x:.8g} "
                f"there are {near}.",
                "In [2^e, 2^(e+1)) they are 2^(e-3) apart, and below 2^-6 they are 2^-9 apart.",
            )


def _are_nearest(answer):
    known = numbers("fp8_e4m3")
    for x, said, right in zip(GIVEN, _eight(answer), by_hand()):
        if said == right:
            continue
        distance = np.abs(known - x)
        if abs(said - x) == distance.min():
            places = f"{int(np.flatnonzero(known == said)[0])} of the list of all numbers"
            raise Wrong(
                f"{x:.8g} is half-way, and {said:.8g} is the odd one: at place {places}.",
                "Of the two take the one whose last bit is 0.",
            )
        raise Wrong(
            f"{x:.8g} becomes {right:.8g}, not {said:.8g}.",
            "Cut off, it would be the next one toward zero; to nearest, look at the middle.",
        )


# 12.2


def to_bf16(x):
    """x [float32] rounded to the nearest bf16, ties to even; float32 again. By its bits alone."""
    b = x.view(np.uint32)
    # just under half a unit; the last bit that is kept makes it half where it is odd
    b = (b + 0x7FFF + ((b >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, b.astype(np.uint32).view(np.float32))


def _as_bf16(answer, x, about, hint):
    x = np.asarray(x, np.float32)
    found, right = array("y", answer(x, about=about), x), round_to(x, "bf16")
    same = found.view(np.uint32) == right.view(np.uint32)
    for k in np.flatnonzero(~(same | np.isnan(found) & np.isnan(right))):
        said = f"{x[k]:.9g}, with the bits {bits_of(x[k])},"
        raise Wrong(f"{said} becomes {right[k]:.9g}, not {found[k]:.9g}.", hint)


def bits_of(x):
    """The 32 bits of a float32, with a blank where bf16 ends."""
    b = f"{int(np.float32(x).view(np.uint32)):032b}"
    return f"{b[:16]} {b[16:]}"


def _fits(answer):
    hint = "A number of bf16 has 16 zeros at its end, and stays as it is."
    _as_bf16(answer, [1, -2, 0.5, 3, 0, -0.0, 2.0**100], "numbers of bf16", hint)


def _near(answer):
    x = [1 + 2.0**-7 * k for k in (0.3, 0.7, 1.2, 1.6, 100.49)]
    hint = "Cut off, it would go toward zero always: add half a unit, 0x8000, before the mask."
    _as_bf16(answer, x + [-each for each in x], "no ties", hint)


def _ties(answer):
    hint = (
        "Half-way the even one: add 0x7FFF, and 1 more if the last bit that is kept, "
        "(b >> 16) & 1, is 1."
    )
    _as_bf16(answer, [1 + 2.0**-7 * (k + 0.5) for k in range(8)], "eight ties", hint)


def _special(answer):
    hint = "A carry from the digits into the exponent is right: the next power of two, or Inf."
    _as_bf16(answer, [2 - 2.0**-10, 3.4e38, -3.4e38, 1e-40, -1e-45], "carries, small ones", hint)
    hint = "Inf has the bits 0x7F800000 and stays."
    _as_bf16(answer, [np.inf, -np.inf], "infinity", hint)
    odd = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    hint = "A NaN whose last bits alone are set becomes Inf: np.where(np.isnan(x), x, ...)."
    _as_bf16(answer, odd, "three NaN", hint)


def _all_kinds(answer):
    b = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32)
    hint = "Keep it in np.uint32: b = x.view(np.uint32), and .view(np.float32) at the end."
    _as_bf16(answer, b.view(np.float32), "20,000 random patterns", hint)


# 12.3


def bits_right(multiply):
    """How many bits of a product are right: -log2 of |found - exact| / |exact|, Frobenius norms.

    multiply(a, b): the product of two float32 matrices [100, 100], in float32, somehow rounded.
    Take normal numbers.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((100, 100)).astype(np.float32) for _ in range(2))
    # float64 is exact enough; float32 makes errors of its own
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = multiply(a, b) - exact
    return float(-np.log2(np.linalg.norm(error) / np.linalg.norm(exact)))


def _multiplying(how):
    """how(a, b, exact) as a product of float32 matrices [100, 100], and of no others."""

    def multiply(a, b):
        for x in (a, b):
            if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.shape != (100, 100):
                raise TypeError(f"multiply takes float32 matrices [100, 100]; got {kind(x)}")
        return how(a, b, a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)

    return multiply


def _planted(a, b, exact):
    sign = np.random.default_rng(3).choice((-1, 1), exact.shape)
    # some entries are wrong by more than others, all together by 2^-9 of the whole
    error = sign * np.linspace(0.5, 1.5, exact.size).reshape(exact.shape)
    return exact + 2.0**-9 * np.linalg.norm(exact) * error / np.linalg.norm(error)


def _bits(answer, how, about):
    return number("The number of bits", answer(_multiplying(how), about=about))


def _nine_bits(answer):
    found = _bits(answer, _planted, "a product that is wrong by 2^-9 of its norm")
    if abs(found - 9) <= 0.05:
        return
    slips = (
        (9 * np.log10(2), "Those are decimal digits: log2 gives bits."),
        (9 * np.log(2), "That is the natural logarithm: log2 gives bits."),
        (-9, "An error of 2^-9 are 9 right bits, not -9."),
        (18, "Those are squares: the norm is the root of their sum."),
        (2.0**-9, "That is the error; how many bits are right?"),
    )
    hint = next((said for slip, said in slips if close(found, slip, 0.01)), "")
    hint = hint or "The norm of the error over the norm of the product, all entries together."
    raise Wrong(f"It says {found:.4g}; 9 bits are right.", hint)


def _rounded_once(answer):
    # more than float32 can find out about itself
    found = _bits(answer, lambda a, b, exact: exact, "the exact product, rounded to float32")
    right = bits_right(_multiplying(lambda a, b, exact: exact))
    if abs(found - right) > 0.3:
        raise Wrong(
            f"It says {found:.4g}; {right:.4g} bits are right.",
            "What do you compare with? a @ b in float32 is wrong itself, by more than that.",
        )


def _in_terms(format, terms):
    def how(a, b, exact):
        return product(a, b, format, terms)

    def step(answer):
        found = _bits(answer, how, f"product(a, b, {format!r}, {terms})")
        right = bits_right(_multiplying(how))
        if abs(found - right) > 0.5:
            raise Wrong(f"It says {found:.4g}; {right:.4g} bits are right.")

    return step


# 12.4

_calls = []


def times_bf16(a, b):
    """a b of two matrices of bf16 numbers, kept in float32, with float32 sums; it counts."""
    for x in (a, b):
        if not isinstance(x, np.ndarray) or x.dtype != np.float32:
            raise TypeError(
                f"times_bf16 takes float32 arrays that hold bf16 numbers; got {kind(x)}"
            )
        if not np.array_equal(round_to(x, "bf16"), x, equal_nan=True):
            raise ValueError("times_bf16 takes bf16 numbers; these have more bits: round them")
    _calls.append((a.shape, b.shape))
    with np.errstate(all="ignore"):
        return a @ b


def product_bf16(a, b):
    """a b of float32 matrices, each a sum of three of bf16; six calls of times_bf16."""

    def three(x):
        first = to_bf16(x)
        second = to_bf16(x - first)
        return first, second, to_bf16(x - first - second)

    a1, a2, a3 = three(a)
    b1, b2, b3 = three(b)
    small = times_bf16(a1, b3) + times_bf16(a2, b2) + times_bf16(a3, b1)
    return times_bf16(a1, b1) + (times_bf16(a1, b2) + times_bf16(a2, b1) + small)


def _six(answer, a, b, about):
    _calls.clear()
    return array("y", answer(a, b, about=about), a, (a.shape[0], b.shape[1])), len(_calls)


def _one_by_one(answer):
    # a number of which each of the three parts is needed
    a = np.array([[2 / 3]], np.float32)
    found, _ = _six(answer, a, np.ones((1, 1), np.float32), "2/3 times 1")
    if found[0, 0] != a[0, 0]:
        raise Wrong(
            f"{a[0, 0]:.9g} times 1 comes out as {found[0, 0]:.9g}.",
            "hi, then x - hi rounded, then what is left of that: 3 times 8 bits are 24.",
        )


def _error_in_eps(found, a, b):
    size = np.abs(a).astype(float) @ np.abs(b)
    return np.abs(found - a.astype(float) @ b) / size / 2.0**-23


def _three_terms(answer):
    for sign, about in ((False, "normal numbers"), (True, "positive numbers")):
        rng = np.random.default_rng(1)
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((7, 40), (40, 9)))
        if sign:
            a, b = np.abs(a) + 1, np.abs(b) + 1
        found, _ = _six(answer, a, b, about)
        finite("y", found)
        worst = _error_in_eps(found, a, b).max()
        if worst > 3:
            hint = "a1 b3, a2 b2 and a3 b1 are all as large as 2^-16 of the whole."
            if close(found, product(a, b, "bf16", 1), 1e-6):
                hint = "That is one product; its error is 2^-8 of the whole."
            raise Wrong(f"It is wrong by {worst:.3g} eps of |a| |b|; 3 are allowed.", hint)


def _wide_range(answer):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((4, 12), (12, 4)))
    found, _ = _six(answer, a * np.float32(1e30), b * np.float32(1e-30), "1e30 times 1e-30")
    finite("y", found, "bf16 has the exponents of float32; fp16 has not.")
    exact = (a * np.float32(1e30)).astype(float), (b * np.float32(1e-30)).astype(float)
    if not (
        np.abs(found - exact[0] @ exact[1]) <= 1e-6 * np.abs(exact[0]) @ np.abs(exact[1])
    ).all():
        raise Wrong(
            "With entries of 1e30 and 1e-30 the digits are gone.",
            "No scale is needed here: bf16 has the exponents of float32.",
        )


def _costs_six(answer):
    a = np.eye(3, dtype=np.float32) / np.float32(3)
    _, count = _six(answer, a, a, "a third of I")
    if count != 6:
        hint = "a2 b3, a3 b2 and a3 b3 are at most 2^-24 of the whole: leave them out."
        if count < 6:
            hint = "Multiply by times_bf16: a1 b1, a1 b2, a2 b1, a1 b3, a2 b2, a3 b1."
        raise Wrong(f"It calls times_bf16 {count} times; six are needed.", hint)


# 12.5


def spread(a, b, u):
    """The error to expect of each entry of a b, in the mean square, with both factors rounded.

    A factor's error is 0.41 u of it, in the mean square, and of either sign; all are independent.
    a: [m, k], b: [k, n], float64. u: the unit roundoff. Returns [m, n].
    """
    # two errors of 0.41 u a product; squares add up, over both and over the sum
    return 0.41 * np.sqrt(2) * u * np.sqrt(a**2 @ b**2)


def _spread_of(answer, a, b, u, about):
    return array("y", answer(a, b, u, about=about), a, (a.shape[0], b.shape[1]))


def _as_expected(a, b, u, about):
    def step(answer):
        # copies: an answer that writes to them must not spoil them for the next
        found = _spread_of(answer, a.copy(), b.copy(), u, about)
        finite("y", found)
        right = spread(a, b, u)
        if (np.abs(found - right) <= 0.05 * right).all():
            return
        k = np.unravel_index(np.argmax(np.abs(found - right) / right), right.shape)
        slips = (
            (2 * u * np.abs(a) @ np.abs(b), "That is what cannot be exceeded: every error full, "
             "and all of one sign."),
            (0.41 * u * np.sqrt(a**2 @ b**2), "Both factors are rounded: two errors a product."),
            (2 * 0.41 * u * np.sqrt(a**2 @ b**2), "Two independent errors make sqrt(2) of one, "
             "not 2."),
            (0.58 * u * np.abs(a @ b), "What cancels in the sum does not cancel in its error: the "
             "squares are summed."),
            (0.58 * u * np.abs(a) @ np.abs(b), "Errors of both signs: their squares add up, not "
             "their sizes."),
            (0.58**2 * u**2 * (a**2 @ b**2), "That is the mean square; its root is asked for."),
            (2 * right, "u is half the gap at 1: 2^-p, not eps."),
        )  # fmt: skip
        hint = next((said for slip, said in slips if close(found, slip, 0.05)), "")
        raise Wrong(f"y[{k[0]}, {k[1]}] is {found[k]:.4g}; expected {right[k]:.4g}.", hint)

    return step


def _against_rounding(answer):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((30, 200)), rng.uniform(0.1, 1, (200, 30))
    for format in ("fp16", "bf16"):
        found = _spread_of(answer, a, b, FORMATS[format].unit_roundoff, f"rounded to {format}")
        error = round_to(a, format) @ round_to(b, format) - a @ b
        ratio = float(np.sqrt(np.mean((error / found) ** 2)))
        if not 0.8 < ratio < 1.25:
            raise Wrong(
                f"Rounded to {format}, 900 entries are wrong by {ratio:.3g} times what it expects.",
                "0.41 u for each of two factors, in the mean square, and squares add up.",
            )


_rng = np.random.default_rng(7)
_SIGNS = _rng.standard_normal((5, 60)), _rng.standard_normal((60, 4))
_ONE_NUMBER = np.array([[3.0]]), np.array([[-0.5]])
_CANCELS = np.array([[1.0, 1.0, 2.0]]), np.array([[2.0], [2.0], [-2.0]])


# 12.6


def well_conditioned():
    """A [n, n], float32, 200 <= n <= 300, condition at most 10, that one product in fp16 fails."""
    # solution
    # nothing is as well conditioned: an orthogonal matrix
    A = np.random.default_rng(0).standard_normal((256, 256))
    return np.linalg.qr(A)[0].astype(np.float32)
    # end


def _square(answer):
    A = answer.detach().cpu().numpy() if isinstance(answer, torch.Tensor) else answer
    if not isinstance(A, np.ndarray) or A.ndim != 2 or A.dtype != np.float32:
        raise Wrong(f"A must be a float32 matrix [n, n]; got {kind(answer)}.")
    m, n = A.shape
    if m != n or not 200 <= n <= 300:
        raise Wrong(f"A must be square with 200 to 300 rows; got {m} x {n}.")
    finite("A", A, "It must fail on ordinary numbers.")
    return A


def _condition(answer):
    A = _square(answer)
    values = np.linalg.svd(A.astype(np.float64), compute_uv=False)
    kappa = values[0] / values[-1] if values[-1] else np.inf
    if not kappa <= 10:
        raise Wrong(
            f"Its condition number is {kappa:.3g}; at most 10 is asked for.",
            "The smallest condition number is 1. Which matrices have it?",
        )


def _one_product_fails(answer):
    A = torch.from_numpy(np.ascontiguousarray(_square(answer)))[None]
    factor = float(certify(A, *rounded.geqrf(A, "fp16", "update")).factor.max())
    if factor <= TASK.factor:
        raise Wrong(
            f"One product in fp16 passes: {factor:.3g} of {TASK.factor:g}.",
            "An update that has nothing to do makes no error: A must be full, and no column may be "
            "much smaller than another. And the gate is narrower for small n.",
        )


def _three_products_pass(answer):
    A = torch.from_numpy(np.ascontiguousarray(_square(answer)))[None]
    c = certify(A, *rounded.geqrf(A, "fp16", "update", 2))
    if not c.passed:
        raise Wrong(f"Three products fail, too: {c.factor.max():.3g} of {TASK.factor:g}.")


EXERCISES = (
    Exercise(
        id="12.1",
        kind="predict",
        title="round by hand",
        task="""
            Round these eight numbers to FP8 E4M3, to nearest and ties to even, with a pencil:

                17, 19, 75, 76, 0.1, 2**-10, 3 * 2**-10, 470

            FP8 E4M3 has 4 significant bits. Its smallest normal number is 2**-6, its smallest of
            all 2**-9, its largest 448, and what is larger stays there. The answer is a list of
            eight numbers.
        """,
        solution=by_hand,
        steps=(
            ("eight numbers", _eight),
            ("all are numbers of FP8 E4M3", _are_numbers),
            ("all are the nearest, and ties are even", _are_nearest),
        ),
        hints=(
            "From 16 to 32 the numbers are 2 apart, from 64 to 128 they are 8 apart.",
            "76 is half-way between 72 = 9 * 8 and 80 = 10 * 8, and 10 is even. 0.1 is 12.8 "
            "units of 2**-7.",
            "Below 2**-6 all numbers are multiples of 2**-9: 2**-10 is half of one, 3 * 2**-10 "
            "one and a half.",
        ),
    ),
    Exercise(
        id="12.2",
        kind="implement",
        title="bf16 by its bits (to_bf16)",
        task="""
            A bf16 is the first half of a float32. Write to_bf16(x): a float32 array rounded to the
            nearest bf16, ties to even, given back as float32. Use integers: x.view(np.uint32) are
            the bits of x, and .view(np.float32) turns bits into numbers again. Inf stays Inf, what
            is too large becomes Inf, and NaN stays NaN.
        """,
        solution=to_bf16,
        steps=(
            ("numbers that fit", _fits),
            ("to the nearest", _near),
            ("ties to even", _ties),
            ("carries, infinity, NaN", _special),
            ("random bits", _all_kinds),
        ),
        hints=(
            "Cutting off is b & 0xFFFF0000. What must be added before, so that it rounds?",
            "0x8000 is half a unit: ties would always go up. 0x7FFF is a little less: ties would "
            "always go down.",
            "(b + 0x7FFF + ((b >> 16) & 1)) & 0xFFFF0000, and np.isnan(x) apart.",
        ),
    ),
    Exercise(
        id="12.3",
        kind="measure",
        title="what is one more term worth? (bits_right)",
        task="""
            Write bits_right(multiply): how many bits of a product are right. multiply(a, b) takes
            two float32 matrices [100, 100] and gives their product, rounded in some way. Give it
            normal numbers, and compare with the exact product: -log2(|found - exact| / |exact|),
            with the Frobenius norm, np.linalg.norm. The checker gives you products whose errors it
            knows, and then short ones. Before you print it for one, two and three terms,

                from qrlib.precision import product
                bits_right(lambda a, b: product(a, b, "bf16", terms))

            predict: what is the second term worth, and what the third? And what in "fp16"?
        """,
        solution=bits_right,
        steps=(
            ("nine right bits", _nine_bits),
            ("the exact product, rounded to float32", _rounded_once),
            *(
                (f"{format}, {words}", _in_terms(format, terms))
                for format in ("bf16", "fp16")
                for terms, words in ((1, "one term"), (2, "two terms"), (3, "three terms"))
            ),
        ),
        hints=(
            "An error of 2^-9 of the whole: nine bits are right. -log2 gets 9 out of 2^-9.",
            "The exact product is that of a.astype(np.float64) and b.astype(np.float64).",
            "-np.log2(np.linalg.norm(multiply(a, b) - exact) / np.linalg.norm(exact))",
        ),
    ),
    Exercise(
        id="12.4",
        kind="implement",
        title="three times bf16 (product_bf16)",
        task="""
            Write product_bf16(a, b): the product of two float32 matrices, each as a sum of three
            matrices of bf16 numbers, in six products. At hand:

                from qrlib.teach.exercises.precision import times_bf16, to_bf16

            (or your own to_bf16). times_bf16(a, b) multiplies float32 arrays that hold bf16 numbers
            and nothing else, and counts. Small products are added first, to each other.
        """,
        solution=product_bf16,
        steps=(
            ("two thirds, times 1", _one_by_one),
            ("as good as float32", _three_terms),
            ("a wide range", _wide_range),
            ("cost: six products", _costs_six),
        ),
        hints=(
            "x - to_bf16(x) is exact in float32. Round it, subtract again, round again.",
            "Nine products of parts. a1 b2 is 2^-8 of the whole, a2 b2 2^-16, a2 b3 2^-24.",
            "a1 b1, a1 b2, a2 b1, a1 b3, a2 b2, a3 b1: those with i + j <= 4.",
        ),
        given=(times_bf16,),
        also=(to_bf16,),
    ),
    Exercise(
        id="12.5",
        kind="implement",
        title="an error budget (spread)",
        task="""
            Both factors of a b are rounded, and errors have both signs. Write spread(a, b, u): what
            error is to be expected of each entry, in the mean square (the root of the mean of the
            square). Take it that rounding a number is wrong by 0.41 u of it in the mean square,
            and that all errors are independent: then squares add up. What is of order u^2 is left
            out, and so are the sums.
        """,
        solution=spread,
        steps=(
            ("one product of two numbers", _as_expected(*_ONE_NUMBER, 0.125, "3 times -0.5")),
            ("a sum that cancels", _as_expected(*_CANCELS, 2.0**-8, "1 * 2 + 1 * 2 - 2 * 2")),
            ("a matrix", _as_expected(*_SIGNS, 2.0**-11, "5 x 60 times 60 x 4")),
            ("against 900 entries that were rounded", _against_rounding),
        ),
        hints=(
            "One product: a (1 + d) b (1 + e) is wrong by ab (d + e). How large is d + e?",
            "d and e are independent: the mean square of d + e is twice that of d.",
            "The sum over k of (a_ik b_kj)^2 is a**2 @ b**2.",
        ),
    ),
    Exercise(
        id="12.6",
        kind="break it",
        title="well conditioned, and lost",
        task="""
            Find a float32 matrix A [n, n] with 200 <= n <= 300 and a condition number of at most 10
            on which stage 3 with one product in fp16, rounded.geqrf(A[None], "fp16", "update"),
            fails the gate for the factor residual. Three products must pass. So what is to blame
            is not the matrix.
        """,
        solution=well_conditioned,
        steps=(
            ("a square matrix of 200 to 300 rows", _square),
            ("condition at most 10", _condition),
            ("one product fails", _one_product_fails),
            ("three products pass", _three_products_pass),
        ),
        hints=(
            "Mirrors never ask for the condition number. What does an update do to a full matrix?",
            "Normal numbers fail for n = 256, but their condition number is about n.",
            "np.linalg.qr(normal numbers)[0]: condition 1.",
        ),
        given=(rounded.geqrf,),
    ),
)
