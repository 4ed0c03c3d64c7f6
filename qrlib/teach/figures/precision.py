"""The figures of chapter "How few bits?": numbers of a format, and what they do to a QR."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from qrlib import certify
from qrlib.certificate import TASK
from qrlib.devices import DEVICES
from qrlib.matrices import FAMILIES, make
from qrlib.precision import FORMATS, blocks, numbers, product, round_to, split
from qrlib.stages import s03_blocked
from qrlib.teach import rounded
from qrlib.teach.figures.certify import Table, short
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number

EPS = float(np.finfo(np.float32).eps)
# from the shortest to the longest
LADDER = ("fp4_e2m1", "fp8_e5m2", "fp8_e4m3", "bf16", "fp16", "tf32", "fp32")
NAMES = {
    "fp32": "FP32",
    "tf32": "TF32",
    "fp16": "FP16",
    "bf16": "BF16",
    "fp8_e5m2": "FP8 E5M2",
    "fp8_e4m3": "FP8 E4M3",
    "fp4_e2m1": "FP4 E2M1",
    "nvfp4": "NVFP4",
}


RAISED = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)


def raised(base, exponent):
    """base^exponent as words; 1 for exponent 0."""
    return f"{base}{str(exponent).translate(RAISED)}" if exponent else "1"


def format_table():
    """All formats of qrlib.precision, with what each says of itself."""
    numbers_of = {source: k for k, source in enumerate(sources(), 1)}
    rows = []
    for name, f in FORMATS.items():
        largest = f"{f.largest:g}" if f.largest < 1e5 else f"{f.largest:.2g}".replace("e+", "e")
        cells = (
            f"{f.bits:g}",
            f"{f.exponent}",
            f"{f.p}",
            raised(2, -f.p),
            largest,
            "Inf" if math.isinf(f.beyond) else "stays",
            raised(2, f.emin),
            raised(2, f.emin - f.p + 1),
            f"[{numbers_of[f.source]}]",
        )
        rows.append([name, *cells])
    heads = ("format", "bits", "exp.", "p", "u", "largest", "beyond", "normal", "smallest", "from")
    caption = "bits, those of the exponent, significant ones; largest, smallest normal, smallest"
    return Table(caption, heads, rows)


def sources():
    """Where the formats are from, each once."""
    return list(dict.fromkeys(f.source for f in FORMATS.values()))


# a format as a picture


def format_words(name):
    f = FORMATS[name]
    count = "more than can be listed" if f.bits > 16 else f"{len(numbers(name)) - 1} above zero"
    return (
        f"{NAMES[name]}: {f.p} significant bits, so rounding errs by {raised(2, -f.p)} of "
        f"the number at most. Numbers: {count}, from {f.smallest_subnormal:.2g} to "
        f"{f.largest:.4g}; below {f.smallest_normal:.2g} the bits run out one by one."
    )


def format_frame(name):
    """The bits of a format, its numbers between 0 and 8, and its significant bits by size."""
    f = FORMATS[name]
    fig = Figure(
        420,
        392,
        f"Above, boxes for the bits of {NAMES[name]}: 1 for the sign, {f.exponent} for the "
        f"exponent, {f.p - 1} after the leading one. In the middle its numbers from 0 to 8 on a "
        f"line. Below, how many significant bits it has for numbers of every size. "
        f"{format_words(name)}",
        max_width=470,
    )
    left, right = 14, 406
    fig.text(left, 16, f"{NAMES[name]}, {f.bits:g} bits", size=15, anchor="start", bold=True)
    cell, x, at = 12, left, left
    parts = (("sign", 1, "pink"), ("exponent", f.exponent, "orange"), ("digits", f.p - 1, "blue"))
    for what, count, color in parts:
        for k in range(count):
            look = {"color": color, "width": 1.2, "fill": color, "fill_opacity": 0.3}
            fig.rect(x + k * cell + 1, 32, cell - 2, 20, r=2, **look)
        x += count * cell + 4
        fig.text(at, 66, f"{what} {count}", size=13, color=color, anchor="start")
        at += 26 + 8 * len(what)
    _numbers_line(fig, name, left, right, 118)
    _bits_by_size(fig, name, 40, right, 196, 346)
    return fig


def _numbers_line(fig, name, left, right, y):
    """Ticks at the numbers from 0 to 8; a band where they stand closer than can be drawn."""
    f, unit = FORMATS[name], (right - left - 8) / 8
    fig.text(left, y - 26, "its numbers from 0 to 8", size=13, anchor="start", color="muted")
    fig.line(left, y, right, y, color="muted", width=1)
    for whole in range(9):
        fig.text(left + whole * unit, y + 22, str(whole), size=12, color="muted")
    ticks = ""
    for e in range(max(f.emin, -8) - 1, 3):
        # below the smallest normal number they stand as far apart as just above it
        subnormal = e < f.emin
        low, high = (0.0, f.smallest_normal) if subnormal else (2.0**e, 2.0 ** (e + 1))
        gap = f.smallest_subnormal if subnormal else 2.0 ** (e - f.p + 1)
        if gap * unit < 2.4:
            box = left + low * unit, y - 9, (high - low) * unit, 18
            fig.rect(*box, color="none", fill="blue", fill_opacity=0.45, width=0)
            continue
        count = round((high - low) / gap)
        for k in range(count):
            value = low + k * gap
            if value <= f.largest:
                ticks += f"M{left + value * unit:.1f} {y - 9}v18"
    if 8 <= f.largest:
        ticks += f"M{left + 8 * unit:.1f} {y - 9}v18"
    if ticks:
        fig.path(ticks, color="blue", width=1.6)


def _bits_by_size(fig, name, left, right, top, bottom):
    """Significant bits against the size of a number; one format lit, the others as outlines."""
    low, high = -160, 140

    def x(e):
        return left + (right - left) * (e - low) / (high - low)

    def y(p):
        return bottom - (bottom - top) * p / 25

    fig.text(left - 26, top - 18, "significant bits", size=13, anchor="start", color="muted")
    for p in (0, 8, 16, 24):
        fig.line(left, y(p), right, y(p), color="faint", width=1)
        fig.text(left - 6, y(p), str(p), size=12, anchor="end", color="muted")
    for decade in (-40, -20, 0, 20, 40):
        at = x(decade * math.log2(10))
        fig.line(at, bottom, at, bottom + 4, color="muted", width=1)
        words = raised(10, decade)
        # the last one would leave the figure
        anchor = "end" if decade == 40 else "middle"
        fig.text(at + (4 if decade == 40 else 0), bottom + 15, words, size=12, anchor=anchor)
    fig.text((left + right) / 2, bottom + 34, "size of the number", size=12, color="muted")
    for each in [*(other for other in LADDER if other != name), name]:
        f, lit = FORMATS[each], each == name
        # one bit less with every power of two below the smallest normal number
        corners = [(x(f.emin - f.p + 1), y(0)), (x(f.emin - f.p + 1), y(1)), (x(f.emin), y(f.p))]
        corners += [(x(f.emax + 1), y(f.p)), (x(f.emax + 1), y(0))]
        look = {"color": "blue", "width": 2.4, "fill": "blue", "fill_opacity": 0.25}
        fig.polyline(corners, **(look if lit else {"color": "muted", "width": 1, "dash": (3, 3)}))


def formats_stepper():
    """From 4 bits to 32: bits, numbers, range."""
    frames = [Frame(format_frame(name), format_words(name), NAMES[name]) for name in LADDER]
    return Stepper(frames, "Format", "What numbers a format has, from 4 bits to 32.", lines=4)


# one rounding


class Neighbours(NamedTuple):
    """low <= x <= high: numbers of a format, at even or odd places; what x is rounded to."""

    low: float
    high: float
    low_is_even: bool
    result: float


def neighbours(x, format):
    """Neighbours of x >= 0; above the largest number comes the one that would be next."""
    known = numbers(format)
    known = np.append(known, 2 * known[-1] - known[-2])
    k = min(int(np.searchsorted(known, x, "right")) - 1, len(known) - 2)
    result = float(round_to(np.array([float(x)]), format)[0])
    return Neighbours(float(known[k]), float(known[k + 1]), k % 2 == 0, result)


def rounding_words(x, format):
    n = neighbours(x, format)
    middle = (n.low + n.high) / 2
    if x > n.high:
        said = f"{x:g} is far beyond the largest number."
    elif x == n.low:
        said = f"{x:g} is a number of the format."
    elif x == middle:
        said = f"{x:g} is half-way between {n.low:g} and {n.high:g}: a tie."
    else:
        near = n.low if x < middle else n.high
        said = f"{x:g} stands between {n.low:g} and {n.high:g}, nearer to {near:g}."
    if n.high > FORMATS[format].largest and x > n.low:
        said += f" {n.high:g} is no number of {NAMES[format]} any more."
    result = "Inf" if math.isinf(n.result) else f"{n.result:g}"
    return f"{said} It becomes {result}."


def rounding_frame(x, format="fp8_e4m3"):
    """x >= 0 on the line between its neighbours, their middle, and an arrow to what it becomes."""
    n = neighbours(x, format)
    fig = Figure(
        420,
        150,
        f"A piece of the number line with two neighbours and their middle. "
        f"{rounding_words(x, format)}",
        max_width=470,
    )
    left, right, y = 70, 350, 84

    def at(value):
        share = (value - n.low) / (n.high - n.low)
        return left + (right - left) * min(share, 1.12)

    fig.line(20, y, 400, y, color="muted", width=1.5)
    middle = (n.low + n.high) / 2
    fig.line(at(middle), y - 10, at(middle), y + 10, color="muted", dash=(3, 3))
    fig.text(at(middle), y + 22, f"{middle:g}", size=12, color="muted")
    for value, even in ((n.low, n.low_is_even), (n.high, not n.low_is_even)):
        exists = value <= FORMATS[format].largest
        look = {"dash": None if exists else (4, 3), "width": 3 if exists else 1.5}
        fig.line(at(value), y - 16, at(value), y + 16, color="blue", **look)
        fig.text(at(value), y + 30, f"{value:g}", size=14, color="blue", bold=exists)
        words = ("even" if even else "odd") if exists else "does not exist"
        fig.text(at(value), y + 48, words, size=12, color="muted")
    # what becomes infinite goes off the line
    end = 396 if math.isinf(n.result) else at(n.result)
    fig.circle(at(x), y, 6, color="orange", fill="orange")
    fig.text(at(x), y - 56, f"{x:g}", size=15, color="orange", bold=True)
    fig.line(at(x), y - 46, at(x), y - 8, color="orange", width=1, dash=(2, 2))
    if abs(end - at(x)) > 10:
        fig.arrow(at(x), y - 28, end, y - 28, color="orange")
    words = "Inf" if math.isinf(n.result) else f"becomes {n.result:g}"
    anchor = "end" if at(x) > 300 else "start"
    fig.text(400 if anchor == "end" else 20, 12, words, size=14, anchor=anchor)
    return fig


def rounding_stepper():
    """Numbers rounded to FP8 E4M3: near, tied one way and the other, subnormal, too large."""
    cases = (16.6, 17.6, 19, 2.0**-10, 3 * 2.0**-10, 455, 464, 1000, 17)
    frames = [Frame(rounding_frame(x), rounding_words(x, "fp8_e4m3"), f"{x:g}") for x in cases]
    alt = "Numbers between two neighbours, and to which of them they are rounded."
    return Stepper(frames, "Number", alt, lines=3)


def drift(format="tf32", k=4096, seeds=20):
    """(rounded, cut): the mean error of a sum of k positive products, relative, with its sign."""
    from qrlib.precision import truncate

    found = []
    for how in (round_to, truncate):
        errors = []
        for seed in range(seeds):
            a, b = np.random.default_rng(seed).uniform(0, 1, (2, k))
            errors.append(how(a, format) @ how(b, format) / (a @ b) - 1)
        found.append(float(np.mean(errors)))
    return tuple(found)


# once over the matrix


def least_bits(m, times=1.0):
    """The fewest significant bits p with times u <= 20 m eps, u = 2^-p."""
    return math.ceil(math.log2(times / (TASK.factor * m * EPS)))


def once_table(sizes=(32, 128, 512, 1024, 4096)):
    """u in units of m eps, for formats and sizes; and how many bits the gate asks for."""
    formats = ("fp4_e2m1", "fp8_e4m3", "bf16", "fp16", "fp32")
    rows = [
        [
            f"{m}",
            *(short(FORMATS[f].unit_roundoff / (m * EPS)) for f in formats),
            f"{least_bits(m)}",
        ]
        for m in sizes
    ]
    heads = ("m", *(NAMES[f] for f in formats), "bits for 20")
    return Table("what rounding A once may cost: u in units of m eps; the gate is 20", heads, rows)


# where in a QR

SHOWN_STEPS = {
    "panel": "all of the panel",
    "V": "V rounded, \u03c4 as it was",
    "V and tau": "V rounded, \u03c4 taken from it",
    "C": "C, between updates",
    "update": "products of the update",
}
SHOWN_FORMATS = ("nvfp4", "fp8_e4m3", "bf16", "fp16")


def families(n, cond=0, seed=3):
    """One matrix of each family, [10, n, n]."""
    return torch.from_numpy(np.concatenate([make(f, 1, n, cond=cond, seed=seed) for f in FAMILIES]))


@cache
def survey(n=128, cond=0, seed=3):
    """{(step, format): Certificate of the ten families}; ("none", "fp32") is stage 3."""
    A = families(n, cond, seed)
    found = {("none", "fp32"): certify(A, *s03_blocked.geqrf(A))}
    for step in SHOWN_STEPS:
        for format in SHOWN_FORMATS:
            found[step, format] = certify(A, *rounded.geqrf(A, format, step))
    return found


def survey_words(c, step, format):
    what = SHOWN_STEPS.get(step, "nothing")
    return (
        f"{NAMES[format]} for {what}: {int(c.each.sum())} of {c.factor.size} pass. Worst factor "
        f"residual {short(c.factor.max())} of {TASK.factor:g}, worst orthogonality "
        f"{short(c.orthogonality.max())} of {TASK.orthogonality:g}, worst column "
        f"{short(c.columnwise.max())}."
    )


def survey_frame(c, step, format):
    """Both residuals of the ten families, by decades, each beside its gate."""
    told = "; ".join(
        f"{family} {short(f)} and {short(o)}"
        for family, f, o in zip(FAMILIES, c.factor, c.orthogonality)
    )
    row, top = 25, 82
    bottom = top + row * len(FAMILIES)
    fig = Figure(
        420,
        bottom + 26,
        f"{survey_words(c, step, format)} Factor residual and orthogonality by family: {told}.",
        max_width=480,
    )
    fig.text(8, 14, f"{NAMES[format]}: {SHOWN_STEPS.get(step, step)}", size=15, anchor="start",
             bold=True)  # fmt: skip
    low, high = -2.5, 5.5
    for name, gate, left, right, values in (
        ("factor", TASK.factor, 112, 254, c.factor),
        ("orthogonality", TASK.orthogonality, 270, 412, c.orthogonality),
    ):

        def x(value, left=left, right=right):
            share = (math.log10(value) - low) / (high - low) if value > 10**low else 0
            return left + (right - left) * min(share, 1)

        fig.text((left + right) / 2, 40, name, size=13)
        for decade in (-2, 0, 2, 4):
            at = x(10.0**decade)
            fig.line(at, top, at, bottom, color="faint", width=1)
            fig.text(at, bottom + 13, raised(10, decade), size=12, color="muted")
        fig.line(x(gate), top - 12, x(gate), bottom, color="ink", width=1.5, dash=(5, 3))
        fig.text(x(gate), top - 21, f"gate {gate:g}", size=12)
        for k, value in enumerate(values):
            y = top + (k + 0.5) * row
            if value <= gate:
                fig.circle(x(value), y, 4.5, color="green", fill="green")
            else:
                at = x(value) if math.isfinite(value) else right
                d = f"M{at - 5:.1f} {y - 5}l10 10M{at - 5:.1f} {y + 5}l10 -10"
                fig.path(d, color="pink", width=2.5)
    for k, family in enumerate(FAMILIES):
        ok = c.each[k]
        y = top + (k + 0.5) * row
        fig.text(102, y, family, size=13, anchor="end", color="ink" if ok else "pink", bold=not ok)
    return fig


def survey_stepper(n=128):
    """Every step in every format: which families pass both gates."""
    found = survey(n)
    frames = [
        Frame(survey_frame(c, *key), survey_words(c, *key), f"{NAMES[key[1]]}, {key[0]}")
        for key, c in found.items()
        if key[0] in SHOWN_STEPS
    ]
    alt = "Residuals of ten families when one step of the factorization is in a short format."
    return Stepper(frames, "Step, format", alt, lines=4)


def where_table(n=128):
    """How many of the ten families pass, step by step and format by format."""
    found = survey(n)
    rows = []
    for step, words in SHOWN_STEPS.items():
        each = [found[step, format] for format in SHOWN_FORMATS]
        worst = short(max(c.orthogonality.max() for c in each))
        rows.append([words, *(f"{int(c.each.sum())}" for c in each), worst])
    heads = ("in the short format", *(NAMES[f] for f in SHOWN_FORMATS), "worst orthogonality")
    return Table(f"families of {len(FAMILIES)} that pass both gates, n = {n}", heads, rows)


# a budget


class Line(NamedTuple):
    """What one product costs a family, in m eps: at most, by a guess of chance, and measured."""

    family: str
    worst: float
    typical: float
    found: float


# rounding to nearest: the error of a factor is 0.41 u of it in the mean square, of two 0.58 u
CHANCE = 0.58


def expected(A, u, nb=32):
    """(worst, typical) residual of one product with roundoff u in each product of the updates.

    Worst: every error as large as it can be, and all of one sign. Typical: errors of both signs,
    independent of each other, so that their squares add up. In units of |A|; A: [B, m, n].
    """
    B, m, n = A.shape
    worst, squares = A.new_zeros(B, n), A.new_zeros(B, n)

    def update(V, T, C):
        Z = T.mT @ (V.mT @ C)
        # an error of V Z is one of C; one of W = V^T C goes through V T^T first
        through = V @ T.mT
        k = C.shape[-1]
        worst[:, -k:] += (V.abs() @ Z.abs() + through.abs() @ (V.mT.abs() @ C.abs())).sum(-2)
        squares[:, -k:] += (V**2 @ Z**2 + through**2 @ ((V**2).mT @ C**2)).sum(-2)
        C -= V @ Z

    s03_blocked.right_looking(A, nb, s03_blocked.panel, update)
    length = A.abs().sum(-2).amax(-1)
    # m numbers of both signs: their absolute values add up to 0.8 sqrt(m) times their length
    typical = CHANCE * u * 0.8 * math.sqrt(m) * squares.sqrt()
    return ((2 * u * worst).amax(-1) / length).tolist(), (typical.amax(-1) / length).tolist()


@cache
def budget(n=128, format="fp16", cond=0, seed=3):
    """[Line] of every family: one product in a format, in both products of the update."""
    A = families(n, cond, seed)
    found = certify(A, *rounded.geqrf(A, format, "update")).factor.tolist()
    unit = n * EPS
    both = zip(FAMILIES, *expected(A, FORMATS[format].unit_roundoff), found)
    return [Line(family, worst / unit, typical / unit, f) for family, worst, typical, f in both]


def budget_table(n=128, format="fp16"):
    lines = [line for line in budget(n, format) if line.worst]
    rows = [[line.family, *(short(value) for value in line[1:])] for line in lines]
    heads = ("family", "at most", "by chance", "measured")
    caption = f"factor residual, m eps: one product in {NAMES[format]}, n = {n}; the gate is 20"
    return Table(caption, heads, rows)


GROWTH = {
    "dense, FP16": ("dense", "fp16", "blue", "-"),
    "rowscale, FP16": ("rowscale", "fp16", "orange", "--"),
    "band, FP16": ("band", "fp16", "green", "-."),
    "dense, BF16": ("dense", "bf16", "pink", ":"),
}
GROWN = (64, 96, 128, 192, 256, 384, 512)


@cache
def growth(sizes=GROWN):
    """{name of GROWTH: [factor residual at each size]}, the worst of two matrices, one product."""
    found = {}
    for name, (family, format, *_) in GROWTH.items():
        found[name] = []
        for n in sizes:
            A = torch.from_numpy(make(family, 2 if n < 384 else 1, n, seed=n))
            c = certify(A, *rounded.geqrf(A, format, "update"))
            found[name].append(float(c.factor.max()))
    return found


def passes_from(values, sizes=GROWN):
    """The first size from which on every value is within the gate, or None."""
    bad = [size for size, value in zip(sizes, values) if value > TASK.factor]
    later = [size for size in sizes if not bad or size > bad[-1]]
    return later[0] if later else None


def growth_plot(sizes=GROWN):
    """The factor residual of one product against n, with the gate."""
    found = growth(sizes)
    said = []
    for name, values in found.items():
        first = passes_from(values, sizes)
        end = f"passes from {first} on" if first else f"fails up to {sizes[-1]}"
        said.append(f"{name}: {short(values[0])} at {sizes[0]}, {short(values[-1])} at "
                    f"{sizes[-1]}, {end}")  # fmt: skip
    alt = "Factor residual in m eps against n, both logarithmic, gate 20. " + "; ".join(said) + "."
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.6))
        for name, values in found.items():
            *_, shade, dash = GROWTH[name]
            axes.plot(sizes, values, color=color[shade], ls=dash, marker="o", ms=4, label=name)
        axes.axhline(TASK.factor, color=color["ink"], lw=1, ls=(0, (1, 2)))
        axes.text(sizes[0], 1.15 * TASK.factor, f"gate {TASK.factor:g}", size=9)
        axes.set(xscale="log", yscale="log", xlabel="n", ylabel="factor residual, m eps")
        axes.set_xticks([64, 128, 256, 512], ["64", "128", "256", "512"])
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)


# sums of short numbers

WAYS = (
    ("fp8_e4m3", 1), ("fp8_e4m3", 2), ("fp8_e4m3", 3), ("bf16", 1), ("bf16", 2), ("bf16", 3),
    ("fp16", 1), ("fp16", 2), ("fp16", 3),
)  # fmt: skip


def products(terms):
    """How many products of short matrices a product in so many terms takes."""
    return terms * (terms + 1) // 2


def kept(format, terms):
    """The bits that a product keeps at least: -log2 of (terms + 1) u^terms."""
    return -math.log2((terms + 1) * FORMATS[format].unit_roundoff ** terms)


@cache
def terms_survey(n=128, cond=0, seed=3):
    """{(format, terms): Certificate of the ten families}, both products of the update."""
    A = families(n, cond, seed)
    return {way: certify(A, *rounded.geqrf(A, way[0], "update", way[1])) for way in WAYS}


def product_errors(k=256, seed=0):
    """{(format, terms): the worst error of an entry, over |a| |b|}, with float32 sums over k."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, k), (k, 64)))
    exact, size = a.astype(float) @ b, np.abs(a).astype(float) @ np.abs(b)
    return {way: float((np.abs(product(a, b, *way) - exact) / size).max()) for way in WAYS}


def terms_table(n=128):
    """Products, bits kept by the bound and in a measurement, and what it does to ten families."""
    errors, found = product_errors(), terms_survey(n)
    rows = []
    for format, terms in WAYS:
        c = found[format, terms]
        rows.append(
            [
                f"{NAMES[format]} in {terms}",
                f"{products(terms)}",
                f"{kept(format, terms):.1f}",
                f"{-math.log2(errors[format, terms]):.1f}",
                f"{int(c.each.sum())}",
                short(c.factor.max()),
                short(c.columnwise.max()),
            ]
        )
    heads = (
        "factors",
        "products",
        "bits, at least",
        "measured",
        "of 10 pass",
        "worst factor",
        "worst column",
    )
    return Table(f"split products in the update, n = {n}; the gate for factor is 20", heads, rows)


class Price(NamedTuple):
    """A way to multiply: bits kept, and its time for one multiply-add, in those of FP16."""

    format: str
    terms: int
    bits: float
    time: float


def prices(device="B200"):
    """[Price] of what a device has, by its stated rates; FP32 on the ordinary units."""
    peak = DEVICES[device].peak
    found = [Price("fp32", 1, FORMATS["fp32"].p - 1, peak["fp16"] / peak["fp32"])]
    for format, rate in (("fp8_e4m3", "fp8"), ("bf16", "bf16"), ("fp16", "fp16"), ("tf32", "tf32")):
        for terms in (1, 2, 3):
            time = products(terms) * peak["fp16"] / peak[rate]
            found.append(Price(format, terms, kept(format, terms), time))
    return found


def best(found):
    """Those that nobody beats: as many bits in less time, or more in the same."""
    return [
        one
        for one in found
        if not any(
            (other.bits, -other.time) != (one.bits, -one.time)
            and other.bits >= one.bits
            and other.time <= one.time
            for other in found
        )
    ]


# where its name has room
SIDES = {
    ("fp16", 1): "left",
    ("bf16", 1): "left",
    ("fp16", 2): "left",
    ("bf16", 3): "left",
    ("fp16", 3): "left",
    ("tf32", 1): "above",
    ("tf32", 3): "above",
    ("fp32", 1): "above",
}


def price_plot(device="B200"):
    """Bits that a product keeps against its time, for all formats and terms."""
    found = prices(device)
    winners = best(found)
    told = "; ".join(
        f"{NAMES[each.format]} in {each.terms}: {each.bits:.1f} bits, {each.time:.3g}"
        for each in found
    )
    alt = (
        f"Points: bits kept by a product against its time on a {device}, by stated rates, one "
        f"product in FP16 being 1. {told}. Not beaten: "
        + ", ".join(f"{NAMES[each.format]} in {each.terms}" for each in winners)
        + "."
    )
    left, right, top, bottom = 52, 404, 38, 306
    fig = Figure(420, 350, alt, max_width=470)
    low, high = -1.4, math.log2(max(each.time for each in found)) + 0.6

    def x(time):
        return left + (right - left) * (math.log2(time) - low) / (high - low)

    def y(bits):
        return bottom - (bottom - top) * bits / 34

    fig.text(8, 14, "bits kept, at least", size=13, anchor="start", color="muted")
    for bits in (0, 8, 16, 24, 32):
        fig.line(left, y(bits), right, y(bits), color="faint", width=1)
        fig.text(left - 8, y(bits), str(bits), size=12, anchor="end", color="muted")
    for e in range(-1, int(high) + 1):
        fig.line(x(2.0**e), top, x(2.0**e), bottom, color="faint", width=1)
        fig.text(x(2.0**e), bottom + 14, f"{2.0**e:g}", size=12, color="muted")
    fig.text((left + right) / 2, bottom + 34, "time; one product in FP16 is 1", size=13,
             color="muted")  # fmt: skip
    fig.line(left, y(23), right, y(23), color="ink", width=1.5, dash=(5, 3))
    fig.text(left + 4, y(23) - 10, "eps of float32", size=12, anchor="start")
    look = {"fp8_e4m3": "orange", "bf16": "pink", "fp16": "blue", "tf32": "green", "fp32": "ink"}
    for each in found:
        color = look[each.format]
        at_x, at_y = x(each.time), y(each.bits)
        fill = color if each in winners else "paper"
        fig.circle(at_x, at_y, 6, color=color, fill=fill, width=2)
        words = NAMES[each.format].removeprefix("FP8 ")
        words += f" in {each.terms}" if each.terms > 1 else ""
        side = SIDES.get((each.format, each.terms), "right")
        dx, dy, anchor = {
            "right": (10, 0, "start"),
            "left": (-10, 0, "end"),
            "above": (0, -14, "middle"),
        }[side]
        fig.text(at_x + dx, at_y + dy, words, size=12, color=color, anchor=anchor, halo=True)
    return fig


def price_words(device="B200"):
    """Lines: those that nobody beats."""
    lines = [f"not beaten, by stated rates of {device}"]
    for each in sorted(best(prices(device)), key=lambda each: each.time):
        lines.append(
            f"  {NAMES[each.format]:9} in {each.terms}: {products(each.terms)} products, "
            f"{each.bits:4.1f} bits, time {each.time:5.2f}"
        )
    return lines


# range


def _column(j, by):
    def spoil(A):
        A[:, :, j] *= by

    return spoil


def _entry(A):
    A[:, 60, 50] = 1e5


def _row(A):
    A[:, 50] *= 1e5


def _all(by):
    def spoil(A):
        A *= by

    return spoil


SPOILS = {
    "as it was drawn": lambda A: None,
    "a column times 1e5": _column(40, 1e5),
    "a column times 1e-8": _column(60, 1e-8),
    "a row times 1e5": _row,
    "one entry 1e5": _entry,
    "all times 1e-30": _all(1e-30),
    "all times 1e30": _all(1e30),
}
SCALED = {None: "no scale", "matrix": "one a matrix", "vector": "one a column"}


@cache
def range_survey(format="fp16", terms=2, n=96, seed=5):
    """{(spoil, scale): Certificate} of one dense matrix with something done to it."""
    found = {}
    for name, spoil in SPOILS.items():
        A = torch.from_numpy(make("dense", 1, n, seed=seed))
        spoil(A)
        for scale in SCALED:
            made = rounded.geqrf(A, format, "update", terms, scale=scale)
            found[name, scale] = certify(A, *made)
    return found


def range_table(format="fp16", terms=2, n=96):
    """Factor and column-wise residuals, for each way to scale."""
    found = range_survey(format, terms, n)

    def cell(c):
        if not c.finite.all():
            return "NaN or Inf"
        return f"{short(c.factor.max())} / {short(c.columnwise.max())}"

    rows = [[name, *(cell(found[name, scale]) for scale in SCALED)] for name in SPOILS]
    caption = (
        f"factor / column-wise residual, m eps; {NAMES[format]} in {terms} terms, dense, n = {n}"
    )
    return Table(caption, ("matrix", *SCALED.values()), rows)


# sixteen numbers and a scale


def sixteen(outlier=1.0, seed=4):
    """16 normal numbers, the sixth with the size of the largest, times `outlier`."""
    x = np.random.default_rng(seed).standard_normal(16).astype(np.float32)
    x[5] = np.abs(x).max() * outlier
    return x


def block_words(outlier):
    x = sixteen(outlier)
    y = round_to(x, "nvfp4")
    rest = np.arange(16) != 5
    lost = np.linalg.norm((x - y)[rest]) / np.linalg.norm(x[rest])
    zero = int((y[rest] == 0).sum())
    return (
        f"One number {outlier:g} times the largest of the others. Of the 15 others {zero} become "
        f"zero, and together they lose {100 * lost:.0f} % of their length."
    )


def block_frame(outlier=1.0):
    """16 numbers as bars, and what 8 levels and a scale make of them."""
    x = sixteen(outlier)
    found = blocks(x)
    unit = float(found.scales[0] * found.scale[0])
    top, middle, bottom, left, wide = 34, 150, 266, 46, 22.5
    fig = Figure(
        420,
        304,
        f"Sixteen bars, each with the level that it is rounded to; the levels are 0, 0.5, 1, 1.5, "
        f"2, 3, 4 and 6 times a scale, up and down. {block_words(outlier)}",
        max_width=470,
    )
    fig.text(8, 14, f"scale {unit:.3g}: the levels", size=13, anchor="start", color="muted")
    reach = 6.4 * unit

    def y(value):
        return middle - (middle - top) * value / reach

    levels = numbers("fp4_e2m1")
    for level in levels:
        for sign in (1, -1):
            at = y(sign * level * unit)
            fig.line(left, at, 410, at, color="faint", width=1)
            # 0.5 and 1.5 would not leave room for the others
            if level == int(level) and (sign > 0 or level) and level != 1:
                words = number(sign * level)
                fig.text(left - 8, at, words, size=12, anchor="end", color="muted")
    fig.line(left, middle, 410, middle, color="muted", width=1)
    for k, (value, to) in enumerate(zip(x.tolist(), found.values.tolist())):
        at = left + 4 + k * wide
        high, low = sorted((y(value), middle))
        color = "orange" if k == 5 else "blue"
        fig.rect(at, high, wide - 8, max(low - high, 0.5), color=color, width=1, fill=color,
                 fill_opacity=0.3)  # fmt: skip
        fig.line(at - 3, y(to), at + wide - 5, y(to), color="ink", width=3)
    fig.text(left, bottom + 26, "bars: 16 numbers; thick lines: what they become", size=12,
             anchor="start")  # fmt: skip
    return fig


def block_stepper():
    """A block of 16 with a number in it that grows."""
    outliers = (1, 3, 10, 30)
    frames = [Frame(block_frame(by), block_words(by), f"{by} times the largest") for by in outliers]
    return Stepper(frames, "Outlier", "A block of NVFP4 with an outlier that grows.", lines=3)


def norms_lost(seed=0):
    """{format: |x - short x| / |x|} for normal numbers, each format with its own way to scale."""
    x = np.random.default_rng(seed).standard_normal((64, 256))
    found = {}
    for name in ("fp4_e2m1", "nvfp4", "fp8_e5m2", "fp8_e4m3", "bf16", "fp16"):
        (part,), scale = split(x, name, 1)
        found[name] = float(np.linalg.norm(x - part * scale) / np.linalg.norm(x))
    return found


def norms_table():
    rows = [
        [name, f"{FORMATS[name].bits:g}", f"{100 * lost:.2g} %"]
        for name, lost in norms_lost().items()
    ]
    return Table("normal numbers: what is lost of their length", ("format", "bits", "lost"), rows)
