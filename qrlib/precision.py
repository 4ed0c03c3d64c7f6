"""What a format does to a number: exact rounding, numbers as sums of short ones, their products.

Numbers of a short format are kept in the dtype that came, float32 or float64, which holds all of
them; so the product of two is exact, as on a tensor core, and only sums round. Rounding is to
nearest, ties to even. Beyond the largest number follows what torch's casts do: fp16, bf16, fp8_e5m2
(and tf32) go to Inf; fp8_e4m3 has no Inf and stays at its largest, as in NVIDIA's conversions and
torch from 2.12 on (older torch made it NaN). fp4_e2m1, which torch cannot cast to, does the same.
NaN stays NaN, in fp4_e2m1 too, which has no bits for it: a fault must show. -0.0 keeps its sign.

NumPy arrays and torch tensors alike; torch is imported only if a tensor comes.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from qrlib.checks import check_array, check_matrix, check_same
from qrlib.compact import flat, namespace


class Format(NamedTuple):
    """A floating-point format.

    exponent: bits of it. p: significant bits, with the leading one. emin, emax: the exponents of
    normal numbers, which are at least 2^e and below 2^(e+1). largest: finite number. beyond: what
    is larger becomes this. source: who says so. block: how many numbers share a scale of 8 bits.
    """

    exponent: int
    p: int
    emin: int
    emax: int
    largest: float
    beyond: float
    source: str
    block: int = 1

    @property
    def bits(self):
        """Of a number: its sign, its exponent, p - 1 that are stored, and its part of a scale."""
        return self.exponent + self.p + (8 / self.block if self.block > 1 else 0)

    @property
    def smallest_normal(self):
        return 2.0**self.emin

    @property
    def smallest_subnormal(self):
        return 2.0 ** (self.emin - self.p + 1)

    @property
    def unit_roundoff(self):
        """u = 2^-p: between the smallest normal number and the largest, rounding errs by u |x|."""
        return 2.0**-self.p


def ieee(exponent, p, source=""):
    """A format with so many bits of exponent and p significant ones, as IEEE 754 makes them."""
    emax = 2 ** (exponent - 1) - 1
    largest = (2 - 2.0 ** (1 - p)) * 2.0**emax
    return Format(exponent, p, 1 - emax, emax, largest, math.inf, source)


_FP8 = "OCP 8-bit Floating Point Specification, 2023"
FORMATS = {
    "fp32": ieee(8, 24, "IEEE 754-2019, binary32"),
    "tf32": ieee(8, 11, "PTX ISA, alternate floating-point formats"),
    "fp16": ieee(5, 11, "IEEE 754-2019, binary16"),
    "bf16": ieee(8, 8, "PTX ISA, alternate floating-point formats"),
    "fp8_e5m2": ieee(5, 3, _FP8),
    # of the top exponent only one pattern is NaN, all others are numbers
    "fp8_e4m3": Format(4, 4, -6, 8, 448.0, 448.0, _FP8),
    "fp4_e2m1": Format(2, 2, 0, 2, 6.0, 6.0, "OCP Microscaling Formats Specification, 2023"),
    # numbers of fp4_e2m1, and scales: see `blocks`
    "nvfp4": Format(2, 2, 0, 2, 6.0, 6.0, "NVIDIA, arXiv:2509.25149", block=16),
}
# of a float64: nothing but the exponent field of x is the power of two at or below |x|
EXPONENT = 0x7FF0_0000_0000_0000


def numbers(format):
    """The finite numbers of a format from 0 up, ascending, in float64; at most 16 bits."""
    f = find(format)
    if f.bits > 16:
        raise ValueError(f"format must have at most 16 bits to be listed; {format!r} has {f.bits}")
    whole = np.arange(2 ** (f.p - 1))
    binades = [(len(whole) + whole) * 2.0 ** (e - f.p + 1) for e in range(f.emin, f.emax + 1)]
    found = np.concatenate([whole * f.smallest_subnormal, *binades])
    return found[found <= f.largest]


def round_to(x, format, *, axis=-1):
    """The nearest numbers of a format, of two equally near ones the even one.

    Args:
        x: float32 or float64; read. format: one of FORMATS, or a Format.
        axis: -1 or -2, along which 16 neighbours share a scale, for nvfp4.

    Returns:
        As x.

    Accuracy: wrong by at most u |x|, and below the smallest normal number by half of the smallest
    subnormal one. Rounded once, from float64 too (torch goes by way of float32).
    Source: IEEE 754-2019, 4.3.1; chapter "How few bits?".
    """
    f = _checked(x, format)
    if f.block > 1:
        return blocks(x, axis=axis).values
    return _like(_nearest(_double(x), f), x)


def truncate(x, format):
    """The numbers of a format next to x toward zero: digits that have no room are cut off.

    Wrong by less than 2u |x|, and always in the same direction. This is what tensor cores do to
    float32 numbers that they get as tf32, and so Triton's "tf32". Only Inf goes beyond the largest.
    """
    f = _checked(x, format)
    if f.block > 1:
        raise ValueError(f"format must be one without blocks, such as 'tf32'; got {format!r}")
    xp, x64 = namespace(x), _double(x)
    y = xp.clip(_in_last_places(x64, f, xp.trunc), -f.largest, f.largest)
    return _like(xp.where(xp.isinf(x64), _nearest(x64, f), y), x)


def _nearest(x, f):
    xp = namespace(x)
    # np.round and torch.round take the even one of two
    y = _in_last_places(x, f, xp.round)
    return xp.where(xp.abs(y) > f.largest, xp.copysign(xp.full_like(x, f.beyond), x), y)


def _in_last_places(x, f, whole):
    """x [float64] as a whole number of units in its last place, were there no largest number."""
    xp = namespace(x)
    unit = xp.clip(_power(x), f.smallest_normal, None) * 2.0 ** (1 - f.p)
    with np.errstate(invalid="ignore"):
        # the unit is a power of two: neither quotient nor product rounds
        return xp.where(xp.isfinite(x), whole(x / unit) * unit, x)


class Blocks(NamedTuple):
    """nvfp4: values = numbers * scales * scale.

    numbers: of fp4_e2m1. scales: of fp8_e4m3, one for 16 neighbours, written 16 times. scale: of
    fp32, one a matrix.
    """

    numbers: Any
    scales: Any
    scale: Any
    values: Any


def blocks(x, *, axis=-1):
    """x in nvfp4: 16 neighbours along an axis have a scale that makes the largest of them 6.

    That scale is rounded to fp8_e4m3, so the largest lands near 6, and above 6 is 6. What `scale`
    does is that the largest scale of a matrix is 448. No scale is less than the smallest number of
    fp8_e4m3. In a matrix with NaN or Inf all becomes NaN: there are no bits to say where it was.

    Args:
        x: [..., m, n] or [n]. axis: -1 or -2.

    Source: NVIDIA, arXiv:2509.25149; chapter "How few bits?".
    """
    check_array("x", x)
    _check_axis(x, axis)
    if 0 in x.shape:
        return Blocks(x, x, x, x)
    xp, four, eight = namespace(x), FORMATS["fp4_e2m1"], FORMATS["fp8_e4m3"]
    X = _double(x).swapaxes(-1, axis)
    size, n = xp.abs(X), X.shape[-1]
    top = xp.amax(size, tuple(range(-min(x.ndim, 2), 0)), keepdims=True)
    scale = _nearest(top / (four.largest * eight.largest), FORMATS["fp32"])
    # a normal number at least, also for a matrix of zeros
    scale = xp.where(xp.isfinite(top), xp.clip(scale, 2.0**-126, None), math.nan)
    tops = xp.stack([xp.amax(size[..., j : j + 16], -1) for j in range(0, n, 16)], -1)
    scales = xp.clip(_nearest(tops / (four.largest * scale), eight), eight.smallest_subnormal, None)
    scales = scales[..., [j // 16 for j in range(n)]]
    short = _nearest(X / (scales * scale), four)
    found = (short, scales, scale, short * scales * scale)
    return Blocks(*(_like(part.swapaxes(-1, axis), x) for part in found))


SCALES = ("vector", "matrix", None)


class Split(NamedTuple):
    """x = scale * sum(parts), nearly. parts: numbers of a format. scale: powers of two, or 1.0."""

    parts: tuple
    scale: Any


def split(x, format, terms=2, *, axis=-1, scale="vector"):
    """x as a sum of numbers of a format: rounded, then what is left over rounded, and again.

    Args:
        x: [..., m, n] or [n], float32 or float64; read. format: one of FORMATS. terms: 1, 2 or 3.
        axis: -1 or -2, the one that a product sums over.
        scale: "vector": a power of two for all numbers along the axis makes the largest of them
            just less than 2^min(emax - 1, 14); low in the range what is left over would have no
            digits. "matrix": the same with one power a matrix. None: x is taken as it is.

    Returns:
        Split.

    Accuracy: what is left is at most u^terms |x|; or half of the smallest subnormal number, times
    the scale, if that is larger. For a float32 nothing is left of 3 terms of tf32, bf16 or fp16.
    Source: Dekker 1971; chapter "How few bits?".
    """
    f = _checked(x, format)
    _check_axis(x, axis)
    if terms not in (1, 2, 3):
        raise ValueError(f"terms must be 1, 2 or 3; got {terms!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(map(repr, SCALES))}; got {scale!r}")
    xp, rest = namespace(x), _double(x)
    by, parts = 1.0, []
    if scale and 0 not in x.shape:
        axes = axis if scale == "vector" else tuple(range(-min(x.ndim, 2), 0))
        top = xp.amax(xp.abs(rest), axes, keepdims=True)
        # NaN and Inf have no scale, and numbers below 2^-126 need not have one of their own
        power = xp.where(xp.isfinite(top), xp.clip(_power(top), 2.0**-126, None), 1.0)
        by = _like(power * 2.0 ** (1 - min(f.emax - 1, 14)), x)
        rest = rest / by
    for _ in range(terms):
        parts.append(round_to(rest, format, axis=axis))
        with np.errstate(invalid="ignore"):
            # float64 holds the difference exactly
            rest = rest - parts[-1]
    return Split(tuple(_like(part, x) for part in parts), by)


def product(a, b, format, terms=1, *, scale="vector"):
    """a b as tensor cores make it of short factors: exact products, summed in the dtype of a and b.

    With a = a1 + a2 + a3 and b alike, products ai bj with i + j > terms + 1 are left out: they are
    as small as what the splits lose. So 1, 3 or 6 products for 1, 2 or 3 terms, small ones first.

    Args:
        a: [..., m, k] and b: [..., k, n], float32 or float64, of one dtype; read.
        format, terms, scale: as for `split`: a has a scale for each row, b for each column.

    Accuracy: `product_bound` times |a| |b|, unless a part underflows or overflows.
    Source: Henry, Tang and Heinecke 2019; Ootomo and Yokota 2022; chapter "How few bits?".
    """
    check_matrix("a", a)
    check_matrix("b", b)
    check_same("a", a, "b", b)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            "a and b must be [..., m, k] and [..., k, n] with the same batch; "
            f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    A = split(a, format, terms, axis=-1, scale=scale)
    B = split(b, format, terms, axis=-2, scale=scale)
    pairs = [(i, j) for i in range(terms) for j in range(terms - i)]
    total = 0.0
    for i, j in sorted(pairs, key=sum, reverse=True):
        total = total + _matmul(A.parts[i], B.parts[j])
    # one after the other, in float64: the product of two scales may be out of range
    return _like(_double(total) * A.scale * B.scale, a)


def product_bound(format, terms, k):
    """c with |product(a, b) - a b| <= c |a| |b|, entry by entry, for float32 sums over k.

    (terms + 1) u^terms (1 + u) is what the splits lose and the products that are left out; every
    sum adds a unit roundoff of float32. Nothing in it for what under- or overflows.
    """
    u, fp32 = find(format).unit_roundoff, FORMATS["fp32"].unit_roundoff
    additions = (k + terms * (terms + 1) / 2) * fp32
    sums = additions / (1 - additions) * ((1 + u) / (1 - u)) ** 2
    return (terms + 1) * u**terms * (1 + u) + sums


def find(format):
    """FORMATS[format]; a Format is found already.

    Raises:
        ValueError: there is none of that name.
    """
    if isinstance(format, Format):
        return format
    if not isinstance(format, str) or format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    return FORMATS[format]


def _checked(x, format):
    check_array("x", x)
    return find(format)


def _check_axis(x, axis):
    if axis not in (-1, -2)[: x.ndim]:
        raise ValueError(
            f"axis must be -1, or -2 where there are rows; got {axis!r} for shape {tuple(x.shape)}"
        )


def _power(x):
    """The power of two at or below |x|, float64; 0 for 0 and subnormals, Inf for Inf and NaN."""
    xp = namespace(x)
    return (x.view(xp.int64) & EXPONENT).view(xp.float64)


def _matmul(x, y):
    if isinstance(x, np.ndarray):
        with np.errstate(invalid="ignore", over="ignore"):
            return x @ y
    # float32 sums, whatever torch is globally told
    from qrlib.householder import matmul

    return matmul(flat(x), flat(y)).reshape(*x.shape[:-1], y.shape[-1])


def _double(x):
    if not isinstance(x, np.ndarray):
        return x.double()
    # a NaN may be of the kind that says so when it is converted
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def _like(y, x):
    return y.astype(x.dtype) if isinstance(x, np.ndarray) else y.to(x.dtype)
