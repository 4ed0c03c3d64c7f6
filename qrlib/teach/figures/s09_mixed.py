"""The figures of the chapter "As few products as a matrix allows": cuts, their law, spikes, routes.

Every error in them is that of a factorization in exact rounding, see `qrlib.teach.few`.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from qrlib import matrices
from qrlib.compilelab import compile_config
from qrlib.devices import DEVICES
from qrlib.launches import launches
from qrlib.matrices import BENCHMARK_CASES, make
from qrlib.precision import FORMATS
from qrlib.scaling import tile
from qrlib.stages.s06_update import NB
from qrlib.stages.s09_mixed import LARGE, MEDIUM, SPIKE, products
from qrlib.teach import few
from qrlib.teach.figures.certify import Table, short
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure

H200 = DEVICES["H200"]
EPS = float(np.finfo(np.float32).eps)
GATE = 20
# of a number that is rounded to nearest, in units of the unit roundoff, in the mean square
CHANCE = 0.41
SIZES = (128, 256, 512, 1024)
CUTS = ((), *((place,) for place in few.ONE), ("T",), few.TWO, few.ONE)
# what stage 9 leaves out, by the precision of its products
LEFT_OUT = {"fp16": few.ONE, "fp16x2": few.TWO, None: ()}


class Found(NamedTuple):
    """Errors of one matrix: those of few.Errors."""

    factor: float
    length: float


def _of(A, cut):
    return Found(*(float(each) for each in few.errors(A, *few.geqrf(A, cut))))


@cache
def found(cut, n):
    """Found for a dense matrix of n x n, with updates that are cut."""
    return _of(torch.from_numpy(make("dense", 1, n)), cut)


def law(cut, n):
    """n times the largest error of a column: what does not depend on n."""
    return n * found(cut, n).length


def chance(cut):
    """The same by chance, for the four places of two large products; see the chapter."""
    if "T" in cut:
        raise ValueError("the estimate is for the places of W and V Z; got T")
    # half of a mirror's square is its head, 1, which no format cuts
    squares = sum(1 / 2 if place.startswith("V") else 1.0 for place in cut)
    return 2 * CHANCE * FORMATS[few.CUT].unit_roundoff / EPS * math.sqrt(squares)


def told(cut):
    """A cut in words."""
    if not cut:
        return "nothing cut"
    return {few.ONE: "all four of them", few.TWO: "V in both"}.get(cut, cut[0])


def places_table(sizes=SIZES):
    """n times the error of a column for every place, estimated and found."""
    rows = []
    for cut in CUTS:
        guess = "" if "T" in cut or not cut else f"{chance(cut):.0f}"
        rows.append([told(cut), guess, *(f"{law(cut, n):.0f}" for n in sizes)])
    heads = ("cut to 11 bits", "by chance", *(f"n = {n}" for n in sizes))
    return Table("n times the largest error of a column, in units of n*eps", heads, rows)


# where bits can be cut

# (left, factors and the places they are, which of few.terms)
LINES = (
    ("*W*  =", (("*V*\u1d40", "V in W"), ("*C*", "C in W")), 0),
    ("*Z*  =", (("*T*\u1d40", "T"), ("*W*", "T")), None),
    ("*C*  \u2212=", (("*V*", "V in VZ"), ("*Z*", "Z in VZ")), 1),
)


def counts(cut):
    """Products for W, for T^T W and for V Z."""
    first, last = few.terms(cut)
    return first, 1 if "T" in cut else 3, last


def places_frame(cut, n=512):
    """An update in three lines: which factors are cut, how many products, what it makes wrong."""
    wrong, count = law(cut, n), counts(cut)
    said = (
        f"{told(cut).capitalize()}: {sum(count[::2])} products over all rows, {count[1]} with T; "
        f"n times the error of a column is {wrong:.0f}."
    )
    alt = (
        "Three lines, W = V^T C, Z = T^T W, C -= V Z. "
        + "; ".join(f"line {k + 1}: {each} products" for k, each in enumerate(count))
        + f". {said}"
    )
    fig = Figure(440, 236, alt, max_width=620)
    for k, (left, factors, _) in enumerate(LINES):
        y = 12 + 56 * k
        fig.text(84, y + 20, left, size=17, anchor="end")
        for f, (name, place) in enumerate(factors):
            x = 100 + 112 * f
            off = place in cut
            look = {"color": "orange", "width": 2.4, "dash": "5 3"} if off else {"color": "blue"}
            fig.rect(x, y, 94, 42, r=4, fill="orange" if off else "blue",
                     fill_opacity=0.22 if off else 0.08, **look)  # fmt: skip
            fig.text(x + 47, y + 13, name, size=16)
            fig.text(x + 47, y + 31, "11 bits" if off else "22 bits", size=12, bold=off)
        words = f"{count[k]} product" + "s" * (count[k] > 1)
        fig.text(328, y + 20, words, size=13, anchor="start", bold=count[k] < 3)
    left, right, y = 12, 428, 206

    def x(value):
        return left + (right - left) * math.log10(max(value, 1)) / 4

    fig.text(left, 184, f"*n* times the error of a column: {wrong:.0f}", size=13, anchor="start")
    fig.rect(left, y - 8, x(wrong) - left, 12, color="orange" if cut else "blue", fill="paper")
    for e in range(5):
        fig.line(x(10**e), y + 4, x(10**e), y + 10, color="muted", width=1)
        anchor = "start" if e == 0 else "end" if e == 4 else "middle"
        fig.text(x(10**e), y + 19, f"{10**e}", size=12, color="muted", anchor=anchor)
    return Frame(fig, said, told(cut))


def places_stepper(n=512):
    """Place by place, then two together, then all four."""
    frames = [places_frame(cut, n) for cut in CUTS]
    return Stepper(frames, "Cut", "The three products of an update, cut at one place or another.")


# plots of our own, both axes logarithmic


class _Axes:
    """A frame with logarithmic axes on a figure 440 wide."""

    def __init__(self, height, alt, across, up, words):
        self.fig = Figure(440, height, alt, max_width=620)
        self.left, self.right, self.top, self.bottom = 46, 428, 30, height - 46
        self.across, self.up = across, up
        self.fig.text(8, 12, words[1], size=13, anchor="start", color="muted")
        self.fig.text((self.left + self.right) / 2, height - 12, words[0], size=13, color="muted")

    def x(self, value):
        low, high = map(math.log, self.across)
        return self.left + (self.right - self.left) * (math.log(value) - low) / (high - low)

    def y(self, value):
        low, high = map(math.log, self.up)
        return self.bottom - (self.bottom - self.top) * (math.log(value) - low) / (high - low)

    def ticks(self, across, up):
        for value in across:
            self.fig.line(self.x(value), self.top, self.x(value), self.bottom, color="faint",
                          width=1)  # fmt: skip
            self.fig.text(self.x(value), self.bottom + 14, f"{value:g}", size=12, color="muted")
        for value in up:
            self.fig.line(self.left, self.y(value), self.right, self.y(value), color="faint",
                          width=1)  # fmt: skip
            self.fig.text(self.left - 6, self.y(value), f"{value:g}", size=12, anchor="end",
                          color="muted")  # fmt: skip

    def gate(self, at):
        """The gate, its name to the left of `at`."""
        self.fig.line(self.left, self.y(GATE), self.right, self.y(GATE), color="ink", dash="6 4")
        self.fig.text(at - 6, self.y(GATE) - 9, f"gate, {GATE}", size=12, anchor="end", halo=True)


LAW_SIZES = (128, 192, 256, 384, 512, 768, 1024)


def law_plot(sizes=LAW_SIZES):
    """The factor ratio of a dense matrix against its size: with one product, two and three."""
    shown = (
        (few.ONE, "one product", "orange", None),
        (few.TWO, "two products", "pink", "6 3"),
        ((), "three products", "blue", None),
    )
    values = {cut: [found(cut, n).factor for n in sizes] for cut, *_ in shown}
    said = "; ".join(
        f"{words}: {short(values[cut][0])} to {short(values[cut][-1])}" for cut, words, *_ in shown
    )
    axes = _Axes(
        300,
        f"Factor ratio against n from {sizes[0]} to {sizes[-1]}, both axes logarithmic. {said}. "
        f"The first two fall as 1 over n and meet the gate of {GATE} on the way.",
        (sizes[0] / 1.15, sizes[-1] * 1.1),
        (0.003, 100),
        ("rows and columns, *n*", "factor residual, in units of *n* eps"),
    )
    axes.ticks((128, 256, 512, 1024), (0.01, 0.1, 1, 10, 100))
    axes.gate(axes.x(LARGE))
    for cut, _, color, dash in shown:
        points = [(axes.x(n), axes.y(v)) for n, v in zip(sizes, values[cut])]
        axes.fig.polyline(points, color=color, width=2.2, dash=dash)
        for x, y in points:
            axes.fig.circle(x, y, 4, color=color, fill="paper" if dash else color)
    for cut in (few.ONE, few.TWO):
        by = [(axes.x(n), axes.y(chance(cut) / n)) for n in (sizes[0], sizes[-1])]
        axes.fig.polyline(by, color="ink", width=1, dash="1 4")
    for words, y, color in (
        ("one product", 60, "orange"),
        ("two products, *V* cut", 4, "pink"),
        ("three products", 0.07, "blue"),
    ):
        axes.fig.text(axes.x(170), axes.y(y), words, size=12, anchor="start", color=color)
    for least, y in ((MEDIUM, 0.9), (LARGE, 0.3)):
        axes.fig.line(axes.x(least), axes.top, axes.x(least), axes.bottom, color="green",
                      dash="4 3")  # fmt: skip
        words = f"{'two' if least == MEDIUM else 'one'} from {least} on"
        axes.fig.text(axes.x(least) - 6, axes.y(y), words, size=12, anchor="end", color="green",
                      halo=True)  # fmt: skip
    return axes.fig


# spikes


def thinned(n, entries, seed=0):
    """[1, n, n], float32: so many normal entries a column, at random rows; zeros elsewhere."""
    rng = np.random.default_rng(seed)
    order = rng.random((n, n)).argsort(0)
    A = np.where(order < entries, rng.standard_normal((n, n)), 0)
    return torch.from_numpy(A.astype(np.float32))[None]


def one_large(n, by=1e5, seed=0):
    """[1, n, n], float32: normal numbers, one entry that is so much larger."""
    A = np.random.default_rng(seed).standard_normal((1, n, n))
    A[0, n // 2, 3 * n // 4] = by
    return torch.from_numpy(A.astype(np.float32))


KEPT = (512, 256, 128, 64, 32, 16, 8, 4, 2)


class Spiked(NamedTuple):
    """A matrix: its largest spike, and its factor ratio with one product and with three."""

    name: str
    spike: float
    one: float
    three: float


@cache
def spiked(n=512):
    """[Spiked] of columns with fewer and fewer entries, and of three others."""
    some = {f"{k} a column": thinned(n, k) for k in KEPT}
    some |= {name: torch.from_numpy(make(name, 1, n)) for name in ("band", "rowscale")}
    some["one large entry"] = one_large(n)
    return [
        Spiked(name, float(few.spikes(A).max()), _of(A, few.ONE).factor, _of(A, ()).factor)
        for name, A in some.items()
    ]


def spike_plot(n=512):
    """Factor ratio with one product against the largest spike of a column, and the bound."""
    rows = spiked(n)
    top = math.sqrt(n)
    alt = (
        f"Factor ratio with one product against the largest spike of a column, n = {n}, both axes "
        "logarithmic. "
        + "; ".join(f"{r.name}: spike {r.spike:.3g}, ratio {short(r.one)}" for r in rows)
        + f". A line, spike times {chance(few.ONE) / n:.3g}, lies above columns of fewer entries."
    )
    axes = _Axes(
        300,
        alt,
        (1, top * 1.25),
        (0.006, 2000),
        ("spike of a column", "factor residual, in units of *n* eps"),
    )
    axes.ticks((1, 2, 4, 8, 16), (0.01, 0.1, 1, 10, 100, 1000))
    axes.gate(axes.x(1.9))
    ends = [(axes.x(s), axes.y(s * chance(few.ONE) / n)) for s in (1, top)]
    axes.fig.polyline(ends, color="ink", width=1, dash="1 4")
    axes.fig.line(axes.x(SPIKE), axes.top, axes.x(SPIKE), axes.bottom, color="green", dash="4 3")
    axes.fig.text(axes.x(SPIKE) - 5, axes.y(0.2), f"spike {SPIKE:g}", size=12, anchor="end",
                  color="green", halo=True)  # fmt: skip
    for r in rows:
        x, named = axes.x(r.spike), "column" not in r.name
        if named:
            reach, y = 5, axes.y(r.one)
            for dx, dy in ((1, 1), (1, -1)):
                axes.fig.line(x - reach * dx, y - reach * dy, x + reach * dx, y + reach * dy,
                              color="pink", width=2.4)  # fmt: skip
            below = r.name != "one large entry"
            dy, anchor = (16, "start") if below else (-14, "end")
            axes.fig.text(x - 4 if below else x, y + dy, r.name, size=12, color="pink",
                          anchor=anchor, halo=True)  # fmt: skip
        else:
            axes.fig.circle(x, axes.y(r.one), 4.5, color="orange", fill="orange")
        axes.fig.circle(x, axes.y(r.three), 3.5, color="blue", fill="paper")
    axes.fig.text(axes.x(2.2), axes.y(300), "one product", size=12, anchor="start", color="orange")
    axes.fig.text(axes.x(2.2), axes.y(0.4), "three products", size=12, anchor="start",
                  color="blue")  # fmt: skip
    return axes.fig


class Tried(NamedTuple):
    """A matrix of no family: its largest spike, and its factor ratio with the few products."""

    name: str
    spike: float
    ratio: float


def strange(n):
    """{name: A [1, n, n]} of LAPACK's types, statistics of optimizers, matrices with a name."""
    rng = np.random.default_rng(1)
    some = {f"lapack {t}": matrices.lapack_type(t, n, n) for t in matrices.LAPACK_TYPES}
    some |= {"gram": matrices.gram(1, n), "gram, rank n/4": matrices.gram(1, n, rank=n // 4)}
    some |= {name: getattr(matrices, name)(n)[None] for name in ("kahan", "hilbert", "vandermonde")}
    some["signs"] = rng.choice([-1.0, 1.0], (1, n, n))
    some["from 0 to 1"] = rng.random((1, n, n))
    exchange = np.eye(n)[rng.permutation(n)]
    some["an exchange of rows, nearly"] = exchange[None] + 1e-3 * rng.standard_normal((1, n, n))
    return {name: torch.from_numpy(A.astype(np.float32)) for name, A in some.items()}


@cache
def tried(n=MEDIUM):
    """[Tried] of all of them, as if they were flat."""
    cut = LEFT_OUT[products(n)]
    return [
        Tried(name, float(few.spikes(A).max()), _of(A, cut).factor)
        for name, A in strange(n).items()
    ]


# routes


class Member(NamedTuple):
    """A matrix of a batch: flags of its parts, spike, factor ratios with one product and three."""

    name: str
    flags: tuple
    spike: float
    one: float
    three: float

    @property
    def few(self):
        """What `_few` says."""
        return all(self.flags)

    @property
    def routed(self):
        return self.one if self.few else self.three


def kinds(n):
    """{name: A [1, n, n]} of the families, and of three that are none."""
    names = ("dense", "rankdef", "nearrank", "clustered", "nearcollinear", "band", "rowscale")
    some = {name: torch.from_numpy(make(name, 1, n)) for name in names}
    some["one large entry"] = one_large(n)
    some["4 entries a column"] = thinned(n, 4)
    some["two scales"] = some["dense"] * torch.where(torch.arange(n) % 2 == 0, 2.0**40, 2.0**-40)
    return some


@cache
def member(name, n=LARGE):
    """Member of that kind."""
    A = kinds(n)[name]
    spikes = few.spikes(A)[0]
    flags = tuple(bool((part <= SPIKE).all()) for part in spikes.split(tile(n)[1]))
    one, three = (_of(A, cut).factor for cut in (few.ONE, ()))
    return Member(name, flags, float(spikes.max()), one, three)


def routes_table(n=LARGE):
    """Who goes which way, and how it ends."""
    rows = []
    for name in kinds(n):
        it = member(name, n)
        products = "1 product" if it.few else "3 products"
        ratios = (short(each) for each in (it.one, it.three, it.routed))
        rows.append([name, f"{it.spike:.3g}", products, *ratios])
    heads = ("matrix", "largest spike", "its route", "ratio with 1", "with 3", "as routed")
    return Table(f"factor residual in n*eps at n = {n}, gate {GATE}", heads, rows)


BATCH = ("dense", "one large entry", "rankdef", "4 entries a column", "clustered", "band")
STEPS = ("read", "scaled", "asked", "one for all", "routed")


def route_words(step, batch=BATCH, n=LARGE):
    members = [member(name, n) for name in batch]
    parts = len(members[0].flags)
    failed = sum(it.one > GATE for it in members)
    through = [it.name for it in members if it.few]
    return {
        "read": f"{len(batch)} matrices of {n} x {n}. {parts} programs read each of them, for it "
        "must be scaled anyhow. Nobody knows what is in it.",
        "scaled": "Each program has seen its columns as it scaled them, and leaves a flag: 1 if "
        "none has a spike, 0 if one has.",
        "asked": f"Each program of an update reads the {parts} flags of its own matrix. All are "
        f"1 for {', '.join(through)}: one product; the others take three.",
        "one for all": f"What if all took one product? {failed} of {len(batch)} would fail.",
        "routed": "As it is: everybody passes, and nobody was asked on the host. A neighbour's "
        "spike costs nobody else anything.",
    }[step]


def route_frame(step, batch=BATCH, n=LARGE):
    """A mixed batch, from its flags to its errors."""
    members = [member(name, n) for name in batch]
    at = STEPS.index(step)
    flags = (f"{it.name}: {sum(it.flags)} of {len(it.flags)} flags are 1" for it in members)
    alt = f"{len(batch)} rows of boxes, one row a matrix. {route_words(step, batch, n)}"
    alt += " " + "; ".join(flags if at else (f"{it.name}: unread" for it in members))
    row, left, right = 42, 12, 252
    fig = Figure(440, 26 + row * len(batch), alt, max_width=640)
    heads = {2: "route", 3: "ratio with 1", 4: "ratio as routed"}
    if at >= 2:
        fig.text(right + 14, 10, heads[2], size=12, anchor="start", color="muted")
    if at >= 3:
        fig.text(434, 10, heads[at], size=12, anchor="end", color="muted")
    fig.text(left, 10, "flags of its parts", size=12, anchor="start", color="muted")
    for k, it in enumerate(members):
        y = 22 + row * k
        fig.text(left, y + 9, it.name, size=13, anchor="start")
        wide = (right - left) / len(it.flags)
        places = [(flat or at == 0, left + p * wide) for p, flat in enumerate(it.flags)]
        # full and dark where a flag is 0: not told by colour alone
        look = (
            {"color": "green", "fill": "green", "fill_opacity": 0.25} if at else {"color": "muted"}
        )
        for kind, how in ((True, look), (False, {"color": "orange", "fill": "orange"})):
            boxes = [
                f"M{x:.1f} {y + 20}h{wide - 0.8:.1f}v13h{0.8 - wide:.1f}z"
                for flat, x in places
                if flat == kind
            ]
            if boxes:
                fig.path("".join(boxes), width=0.7, **how)
        if at >= 2:
            one = it.few or at == 3
            words, color = ("1 product", "green") if one else ("3 products", "orange")
            fig.text(right + 14, y + 26, words, size=13, anchor="start", color=color, bold=not one)
        if at >= 3:
            ratio = it.one if at == 3 else it.routed
            fails = ratio > GATE
            words = f"{short(ratio)} {chr(0x2717) if fails else chr(0x2713)}"
            fig.text(434, y + 26, words, size=13, anchor="end", bold=fails,
                     color="orange" if fails else "ink")  # fmt: skip
    return Frame(fig, route_words(step, batch, n), step)


def route_stepper(batch=BATCH, n=LARGE):
    """A mixed batch: read, scaled, asked, and how it ends without a route and with it."""
    return Stepper(
        [route_frame(step, batch, n) for step in STEPS],
        "Step",
        "The route of a mixed batch, decided on the device.",
        lines=3,
    )


# what the compiler makes of two routes, and what there is to gain


def _routes(B, n, target):
    """{words: Config} of the updates by two panels of stage 9, in the order of their launches."""
    found = {}
    for each in launches("s09_mixed", B, n, n, target=target):
        constants = each.config.constexprs
        if each.config.name == "routed_update_kernel" and constants["TWO"]:
            flat, other = constants["FLAT"], constants["PRECISION"]
            words = "both in one" if flat and other else f"{flat or other} alone"
            found.setdefault(words, each.config)
    return found


@cache
def compiled(target="sm_90a", n=1024):
    """{words: artifact} of an update by two panels: few matrices, many, and no route at all."""
    plain = next(
        each.config
        for each in launches("s08_cholesky", 60, n, n, target=target)
        if each.config.name == "update_kernel" and each.config.constexprs["TWO"]
    )
    configs = {"stage 8": plain, **_routes(24, n, target), **_routes(60, n, target)}
    return {words: compile_config(config, target) for words, config in configs.items()}


class Bill(NamedTuple):
    """Seconds at measured ceilings: bytes of all updates, and arithmetic by products for each.

    arithmetic: with 1, 2 and 3. small: that of T, in any of them.
    """

    bytes: float
    arithmetic: tuple
    small: float


def bill(B, n, device=H200):
    """Bill of the updates by two panels of B matrices n x n, each number of C three times."""
    rate, wide = device.measured, 2 * NB
    moved = large = small = 0
    for j in range(0, n, wide):
        m, right = n - j, max(n - j - wide, 0)
        moved += B * 3 * 4 * m * right
        large += B * 2 * 2 * m * wide * right
        # T of either, and what the first has done to W of the second
        small += B * 3 * 2 * NB * NB * right
    seconds = 3 * small / rate["tf32"].value
    arithmetic = tuple(k * large / rate["fp16"].value + seconds for k in (1, 2, 3))
    return Bill(moved / rate["bandwidth"].value, arithmetic, seconds)


def bills(device=H200):
    """Every shape of the task that is large enough: predicted for a device."""
    rows = []
    for B, n in dict.fromkeys((case.batch, case.n) for case in BENCHMARK_CASES if products(case.n)):
        it, count = bill(B, n, device), few.terms(LEFT_OUT[products(n)])[0]
        us = (
            f"{1e6 * each:.0f}" for each in (it.bytes, it.arithmetic[2], it.arithmetic[count - 1])
        )
        rows.append(
            [f"{B} x {n}", *us, str(count), f"{100 * it.small / it.arithmetic[count - 1]:.0f} %"]
        )
    heads = ("matrices", "bytes", "three products", "as routed", "products", "T, of these")
    return Table(f"updates by two panels, predicted for {device.name}, us", heads, rows)


def reached():
    """{products for a flat matrix: cases of the task}."""
    found = [few.terms(LEFT_OUT[products(case.n)])[0] for case in BENCHMARK_CASES]
    return {count: found.count(count) for count in (1, 2, 3)}
