"""Wrong answers to the exercises of chapter 12, each with words of the message that it gets."""

import numpy as np
import torch

from qrlib.matrices import make
from qrlib.precision import truncate
from qrlib.teach.exercises import precision as chapter
from qrlib.teach.exercises.precision import times_bf16


def by_hand(**change):
    """The right answer with some numbers changed: n3=72 changes number 3."""
    answer = chapter.by_hand()
    for name, value in change.items():
        answer[int(name[1:])] = value
    return answer


def with_bits(change, *, nan=True):
    """to_bf16 with other integers."""

    def to_bf16(x):
        b = (change(x.view(np.uint32).astype(np.uint64)) & 0xFFFF0000).astype(np.uint32)
        y = b.view(np.float32)
        return np.where(np.isnan(x), x, y) if nan else y

    return to_bf16


def add_half_to_even(b):
    return b + 0x7FFF + ((b >> 16) & 1)


def without_carry(b):
    # the exponent stays as it was
    return (b & 0xFF800000) | (add_half_to_even(b) & 0x007FFFFF)


def to_fp16(x):
    return x.astype(np.float16).astype(np.float32)


def sign_apart(x):
    # a comparison with zero knows no -0.0
    y = chapter.to_bf16(np.abs(x))
    return np.where(x < 0, -y, y)


RNG = np.random.default_rng(5)


def in_float64(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def normal(shape):
    return RNG.standard_normal(shape)


def counted(
    how=lambda e: -np.log2(e),
    *,
    size=np.linalg.norm,
    exact=in_float64,
    draw=normal,
    dtype=np.float32,
):
    """bits_right with one thing changed."""

    def bits_right(multiply):
        a, b = (draw((100, 100)).astype(dtype) for _ in range(2))
        right = exact(a, b).astype(np.float64)
        return float(how(size(multiply(a, b) - right) / size(right)))

    return bits_right


def by_entries(multiply):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((100, 100)).astype(np.float32) for _ in range(2))
    right = in_float64(a, b)
    return float(-np.log2(np.abs((multiply(a, b) - right) / right).mean()))


def three(x, *, how=None):
    how = how or chapter.to_bf16
    first = how(x)
    second = how(x - first)
    return first, second, how(x - first - second)


def products(pairs, *, how=None):
    def product_bf16(a, b):
        A, B = three(a, how=how), three(b, how=how)
        return sum(times_bf16(A[i], B[j]) for i, j in reversed(pairs))

    return product_bf16


def product_with_minus(a, b):
    def two(x):
        first = chapter.to_bf16(x)
        return first, chapter.to_bf16(first - x)

    (a1, a2), (b1, b2) = two(a), two(b)
    return times_bf16(a1, b1) + (times_bf16(a1, b2) + times_bf16(a2, b1))


SIX = [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0)]


def unrounded(a, b):
    return times_bf16(a, b)


def in_float16(a, b):
    A, B = three(a, how=to_fp16), three(b, how=to_fp16)
    with np.errstate(all="ignore"):
        return sum(A[i] @ B[j] for i, j in reversed(SIX))


def in_float32(a, b):
    return a @ b


def spread(change):
    return lambda a, b, u: change(np.sqrt(a**2 @ b**2), np.abs(a) @ np.abs(b), u, a, b)


def matrix(family="dense", n=256, cond=0.0):
    return make(family, 1, n, cond=cond)[0]


def orthogonal(n):
    return np.linalg.qr(np.random.default_rng(1).standard_normal((n, n)))[0].astype(np.float32)


WRONG = {
    "12.1": {
        "cut off": (
            truncate(np.array(chapter.GIVEN), "fp8_e4m3"),
            "19 is half-way, and 18 is the odd one",
        ),
        "ties up": (by_hand(n0=18), "17 is half-way, and 18 is the odd one"),
        "ties down": (by_hand(n3=72), "76 is half-way, and 72 is the odd one"),
        "no number of it": (by_hand(n4=0.1), "which is no number of FP8 E4M3; near 0.1"),
        "too large": (by_hand(n7=480), "none above"),
        "infinity": (by_hand(n7=np.inf), "none above"),
        "the smallest for nothing": (by_hand(n5=2.0**-9), "the odd one: at place 1"),
        "seven numbers": (chapter.by_hand()[1:], "a list of 8 numbers"),
        "words": (["a"] * 8, "Number 0 must be a number"),
    },
    "12.2": {
        "cut off": (with_bits(lambda b: b), "add half a unit, 0x8000, before the mask"),
        "ties up": (with_bits(lambda b: b + 0x8000), "Half-way the even one"),
        "ties down": (with_bits(lambda b: b + 0x7FFF), "Half-way the even one"),
        "ties to odd": (with_bits(lambda b: b + 0x8000 - ((b >> 16) & 1)), "Half-way the even one"),
        "no carry": (with_bits(without_carry), "A carry from the digits into the exponent"),
        "NaN is a number too": (with_bits(add_half_to_even, nan=False), "A NaN whose last bits"),
        "fp16": (to_fp16, "bf16 has 16 zeros at its end"),
        "-0.0": (sign_apart, "0, not 0"),
        "bits, not numbers": (lambda x: x.view(np.uint32), "must be float32"),
    },
    "12.3": {
        "digits": (counted(lambda e: -np.log10(e)), "decimal digits: log2 gives bits"),
        "the natural logarithm": (counted(lambda e: -np.log(e)), "natural logarithm"),
        "less than nothing": (counted(np.log2), "are 9 right bits, not -9"),
        "squares": (counted(lambda e: -2 * np.log2(e)), "the norm is the root of their sum"),
        "the error": (counted(lambda e: e), "how many bits are right?"),
        "the largest entry": (counted(size=lambda x: np.abs(x).max()), "all entries together"),
        "entry by entry": (by_entries, "all entries together"),
        "beside float32": (counted(exact=lambda a, b: a @ b), "What do you compare with?"),
        "ones": (counted(draw=np.ones), "What do you compare with?"),
        "float64": (counted(dtype=np.float64), "multiply takes float32 matrices [100, 100]"),
        "eight for ever": (lambda multiply: 8.0, "9 bits are right"),
        "nine for ever": (lambda multiply: 9.0, "bits are right"),
    },
    "12.4": {
        "one product": (products(SIX[:1]), "2/3 times 1"),
        "three products": (products(SIX[:3]), "2/3 times 1"),
        "two terms": (products([(0, 0), (0, 1), (1, 0), (1, 1)]), "3 times 8 bits"),
        "five products": (products([p for p in SIX if p != (1, 1)]), "a2 b2 and a3 b1"),
        "nine products": (products(SIX + [(1, 2), (2, 1), (2, 2)]), "calls times_bf16 9 times"),
        "the wrong way round": (product_with_minus, "2/3 times 1"),
        "not rounded": (unrounded, "these have more bits: round them"),
        "fp16": (in_float16, "fp16 has not"),
        "float32": (in_float32, "calls times_bf16 0 times"),
    },
    "12.5": {
        "what cannot be exceeded": (spread(lambda r, s, u, a, b: 2 * u * s), "cannot be exceeded"),
        "one factor": (spread(lambda r, s, u, a, b: 0.41 * u * r), "Both factors are rounded"),
        "twice one": (spread(lambda r, s, u, a, b: 0.82 * u * r), "make sqrt(2) of one"),
        "sizes added": (spread(lambda r, s, u, a, b: 0.58 * u * s), "their squares add up"),
        "cancelled": (spread(lambda r, s, u, a, b: 0.58 * u * np.abs(a @ b)), "What cancels"),
        "the square": (spread(lambda r, s, u, a, b: (0.58 * u * r) ** 2), "its root is asked"),
        "eps for u": (spread(lambda r, s, u, a, b: 1.16 * u * r), "2^-p, not eps"),
        "NaN": (spread(lambda r, s, u, a, b: np.nan * r), "has NaN"),
    },
    "12.6": {
        "normal numbers": (matrix(), "at most 10 is asked for"),
        "nearly dependent columns": (matrix("nearcollinear"), "at most 10 is asked for"),
        "the identity": (np.eye(256, dtype=np.float32), "One product in fp16 passes"),
        "too large": (orthogonal(320), "200 to 300 rows; got 320 x 320"),
        "too small": (orthogonal(64), "200 to 300 rows; got 64 x 64"),
        "a column that falls off": (
            orthogonal(256) * np.float32(2) ** np.linspace(1.4, -1.4, 256, dtype=np.float32),
            "One product in fp16 passes",
        ),
        "not square": (np.ones((256, 255), np.float32), "must be square"),
        "float64": (np.eye(256), "a float32 matrix"),
        "NaN": (torch.full((256, 256), torch.nan), "A has NaN"),
    },
}
