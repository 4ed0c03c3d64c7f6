"""The figures of chapter "One launch for the update": what it moves, and what bits it keeps."""

import math
import re
import textwrap
from typing import NamedTuple

import numpy as np
import torch

from qrlib import certify, model
from qrlib.bench import results
from qrlib.devices import DEVICES
from qrlib.matrices import FAMILIES, make
from qrlib.stages import s03_blocked
from qrlib.teach import pairs
from qrlib.teach.figures.ladder import CASES, DATA, duration
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number

# written by python -m qrlib.bench --json
PRECISIONS = DATA.with_name("update_precision.json")
H200 = DEVICES["H200"]
KIB = 2**10


# one program, on its way down the columns and down again


class Stop(NamedTuple):
    """A program of the update after one of its steps.

    what: "start", "sum" (W += V^T C with a tile), "turn" (Z = T^T W) or "subtract" (C -= V Z).
    row: the tile's number. loaded, stored: bytes so far.
    """

    what: str
    row: int
    loaded: int
    stored: int


def stops(tiles=4, rows=64, nb=64, columns=64):
    """[Stop] of a program that has `tiles` tiles of its columns below each other."""
    V, C, T = 4 * rows * nb, 4 * rows * columns, 4 * nb * nb
    found = [Stop("start", -1, 0, 0)]
    for what in ("sum", "subtract"):
        for row in range(tiles):
            last = found[-1]
            store = C if what == "subtract" else 0
            found.append(Stop(what, row, last.loaded + V + C, last.stored + store))
        if what == "sum":
            last = found[-1]
            found.append(Stop("turn", -1, last.loaded + T, last.stored))
    return found


def walk_words(k, found):
    stop = found[k]
    tiles = sum(each.what == "sum" for each in found)
    said = {
        "start": f"A program has 64 columns of C, {tiles} tiles of 64 rows. W is zero, in "
        "registers.",
        "sum": f"First time down, tile {stop.row}: load V and C, add V\u1d40C to W. C stays as "
        "it is.",
        "turn": "At the foot W is complete, and only now. T is loaded, Z = T\u1d40W. Nothing is "
        "stored.",
        "subtract": f"Second time down, tile {stop.row}: load V and C again, subtract V Z, store "
        "C.",
    }[stop.what]
    return f"{said} Loaded so far: {stop.loaded // KIB} KiB; stored: {stop.stored // KIB} KiB."


def walk_frame(k, found=None):
    """V, C and the registers of one program after k of its steps."""
    found = stops() if found is None else found
    stop = found[k]
    tiles = sum(each.what == "sum" for each in found)
    summed = sum(each.what == "sum" for each in found[: k + 1])
    done = sum(each.what == "subtract" for each in found[: k + 1])
    cell, top, left = 62, 40, 52
    width, height = 420, top + tiles * cell + 122
    alt = (
        f"V, {tiles} tiles high, and beside it C, three tiles wide; the program has the middle "
        f"column of tiles. {summed} of {tiles} tiles are summed into W, {done} are updated. "
        f"{walk_words(k, found)}"
    )
    fig = Figure(width, height, alt, max_width=1.1 * width)
    C0 = left + cell + 68
    fig.text(left + cell / 2, 18, "*V*", size=16, bold=True, color="orange")
    fig.text(C0 + 1.5 * cell, 18, "*C*", size=16, bold=True, color="green")
    for row in range(tiles):
        y = top + row * cell
        now = row == stop.row
        look = {"color": "orange", "width": 4 if now else 1.2, "fill": "orange"}
        if row == 0:
            # unit lower trapezoidal: nothing above the diagonal
            corners = f"M{left + 2} {y + 2} L{left + cell - 2} {y + cell - 2} H{left + 2} Z"
            fig.rect(left + 2, y + 2, cell - 4, cell - 4, r=3, color="faint", width=1.2)
            fig.path(corners, **look, fill_opacity=0.22)
            fig.text(left + 0.7 * cell, y + 0.3 * cell, "0", size=13, color="muted")
        else:
            fig.rect(left + 2, y + 2, cell - 4, cell - 4, r=3, **look, fill_opacity=0.22)
        for column in range(3):
            x = C0 + column * cell
            mine = column == 1
            updated = mine and row < done
            color = "blue" if updated else "green" if mine else "faint"
            look = {"color": color, "width": 4 if now and mine else 1.2 if mine else 1}
            if mine:
                look |= {"fill": color, "fill_opacity": 0.22}
            fig.rect(x + 2, y + 2, cell - 4, cell - 4, r=3, **look)
            if mine and (updated or row < summed):
                words = "new" if updated else "in W"
                fig.text(x + cell / 2, y + cell / 2, words, size=13, halo=True)
    for column in (0, 2):
        y = top + tiles * cell / 2
        fig.text(C0 + (column + 0.5) * cell, y, "others\u2019", size=12, color="muted", halo=True)
    # the registers: what the program keeps at hand
    box = top + tiles * cell + 16
    fig.rect(16, box, width - 32, 96, r=8, color="muted", dash=(5, 4))
    fig.text(26, box + 15, "on the chip", size=13, anchor="start", color="muted")
    turned = any(each.what == "turn" for each in found[: k + 1])
    share = summed / tiles
    full = "complete" if share == 1 else f"{summed} of {tiles}"
    slots = (
        ("*W* = *V*\u1d40*C*", full, "orange", share, stop.what == "sum"),
        ("*T*", "loaded" if turned else "not yet", "pink", float(turned), False),
        ("*Z* = *T*\u1d40*W*", "ready" if turned else "not yet", "blue", float(turned), False),
    )
    for at, (name, state, color, level, now) in enumerate(slots):
        x = 38 + at * 124
        now |= stop.what == "turn" and at > 0
        look = {"color": color, "width": 4 if now else 1.5, "fill": color}
        fig.rect(x, box + 30, 100, 26, r=4, **look, fill_opacity=0.06 + 0.25 * level)
        fig.text(x + 50, box + 43, name, size=14)
        fig.text(x + 50, box + 72, state, size=13, color="muted")
    return fig


def walk_stepper(tiles=4):
    """A program of update_kernel, tile by tile."""
    found = stops(tiles)
    frames = [
        Frame(walk_frame(k, found), walk_words(k, found), f"{stop.what} {max(stop.row, 0)}")
        for k, stop in enumerate(found)
    ]
    alt = "One program of the update walks down its columns of C twice."
    return Stepper(frames, "Steps", alt, lines=4)


# what goes through device memory


def moved(m, n, nb, columns=64):
    """{how: (launches, {what: entries of one matrix})} of C <- Q^T C, C [m, n], V [m, nb].

    A program of the one launch has so many columns, and loads V and T for itself. The last way is
    the same launch if what a program loads for the second time is still in L2.
    """
    C, V, T, small = m * n, m * nb, nb * nb, nb * n
    strips = math.ceil(n / columns)
    return {
        # V^T C; V Z written; C and V Z in, C - V Z out; a copy in and out
        "torch": (5, {"C": 7 * C, "V and T": 2 * V + T, "W and Z": 4 * small}),
        "three products": (3, {"C": 3 * C, "V and T": 2 * V + T, "W and Z": 4 * small}),
        "all loads and stores": (
            1,
            {"C": 3 * C, "V and T": strips * (2 * V + T), "W and Z": 0},
        ),
        "second time out of L2": (1, {"C": 2 * C, "V and T": strips * (V + T), "W and Z": 0}),
    }


def moved_chart(m=512, n=448, nb=64):
    """Entries that an update moves, in units of C, one bar for each way to do it."""
    ways = moved(m, n, nb)
    units = {
        how: {what: entries / (m * n) for what, entries in parts.items()}
        for how, (_, parts) in ways.items()
    }
    alt = (
        f"Bars: what an update of {m} x {n} entries by {nb} mirrors moves, in units of C. "
        + "; ".join(
            f"{how}, launches {ways[how][0]}: "
            + ", ".join(f"{what} {size:.2f}" for what, size in parts.items())
            for how, parts in units.items()
        )
        + "."
    )
    width, left, row, top = 420, 10, 58, 40
    scale = (width - 2 * left) / max(sum(parts.values()) for parts in units.values())
    fig = Figure(width, top + row * len(units) + 2, alt, max_width=1.1 * width)
    looks = {
        "C": {"color": "green", "fill": "green", "fill_opacity": 0.2},
        "V and T": {"color": "orange", "fill": "orange", "fill_opacity": 0.2, "dash": (4, 3)},
        "W and Z": {"color": "pink", "fill": "pink", "fill_opacity": 0.45},
    }
    x = left
    for what, look in looks.items():
        fig.rect(x, 8, 18, 14, r=2, **look)
        fig.text(x + 24, 15, what, size=13, anchor="start")
        x += 60 + 7 * len(what)
    for at, (how, parts) in enumerate(units.items()):
        y = top + at * row
        launches = ways[how][0]
        said = f"{launches} launches, {how}" if launches > 1 else f"one launch, {how}"
        fig.text(left, y + 6, said, size=14, anchor="start")
        total = f"{sum(parts.values()):.1f} times C"
        fig.text(width - left, y + 6, total, size=13, anchor="end", color="muted")
        x = left
        for what, size in parts.items():
            if size:
                fig.rect(x + 1, y + 17, size * scale - 2, 22, r=2, **looks[what])
                x += size * scale
    return fig


# two levels


# the widths of panels in panels, from the narrowest; the last of stage 6 is a pair of wide panels
LEVELS = (16, 64, 128)


def trips(column, widths=LEVELS):
    """Updates that a column goes through before its own narrow panel, one number a level.

    The last are those of all columns on the right, the others end with a wider panel.
    """
    ends = [*widths[1:], math.inf]
    return tuple(int(column % end) // width for width, end in zip(widths, ends))


def entries_updated(n, widths=LEVELS):
    """Entries of an n x n matrix that the updates of each level move, two in and one out each."""
    found = []
    for width, end in zip(widths, [*widths[1:], n]):
        moved = 0
        for j in range(0, n, width):
            stop = min(j // end * end + end, n)
            moved += 3 * (n - j) * max(stop - j - width, 0)
        found.append(moved)
    return found


def levels_words(widths=LEVELS, n=512):
    level = entries_updated(n, widths)
    one = sum(entries_updated(n, widths[:1]))
    last = sum(trips(n - 1, widths))
    how = " in ".join(f"panels of {width}" for width in widths).capitalize()
    return (
        f"{how}. The last column goes through {last} updates. All updates move "
        f"{sum(level) / n**2:.1f} times the matrix, {sum(level) / one:.2f} of what one level "
        f"moves; the far ones {level[-1] / n**2:.1f}."
    )


def levels_frame(widths=LEVELS, n=512):
    """How many updates every column goes through: far ones below, those inside panels on top."""
    inner = widths[0]
    counts = [trips(c, widths) for c in range(0, n, inner)]
    top, bottom, left, right = 34, 232, 44, 410
    most = n // inner
    alt = (
        f"Bars for the {len(counts)} narrow panels of a matrix of {n} columns: the updates before "
        f"each. {levels_words(widths, n)}"
    )
    fig = Figure(420, bottom + 46, alt, max_width=460)
    fig.text(left - 34, 14, "updates before a column's own panel", size=13, anchor="start")
    for level in range(0, most + 1, most // 4):
        y = bottom - (bottom - top) * level / most
        fig.line(left, y, right, y, color="faint", width=1)
        fig.text(left - 8, y, str(level), size=12, anchor="end", color="muted")
    wide = (right - left) / len(counts)
    unit = (bottom - top) / most
    for k, (*near, far) in enumerate(counts):
        x = left + k * wide
        if far:
            size = (wide - 2, far * unit)
            fig.rect(x + 1, bottom - far * unit, *size, color="green", width=1, fill="green")
        if sum(near):
            y = bottom - (far + sum(near)) * unit
            look = {"color": "orange", "width": 1.4, "fill": "paper"}
            fig.rect(x + 1, y, wide - 2, sum(near) * unit, **look)
    fig.line(left, bottom, right, bottom, color="muted")
    for column in range(0, n + 1, n // 4):
        x = left + (right - left) * column / n
        anchor = "end" if column == n else "middle"
        fig.text(x, bottom + 14, str(column), size=12, color="muted", anchor=anchor)
    for x, fill, words in ((150, "green", "far"), (230, "paper", "inside a wider panel")):
        color = "green" if fill == "green" else "orange"
        fig.rect(x, bottom + 28, 14, 12, color=color, width=1.4, fill=fill)
        fig.text(x + 20, bottom + 34, words, size=13, anchor="start")
    fig.text(left, bottom + 34, "column", size=13, anchor="start", color="muted")
    return fig


def levels_stepper(n=512):
    """Updates before every column: with one level of panels, with two, and with pairs of wide."""
    ways = [LEVELS[:k] for k in range(1, len(LEVELS) + 1)]
    frames = [
        Frame(levels_frame(widths, n), levels_words(widths, n), f"{len(widths)} levels")
        for widths in ways
    ]
    alt = "How often a column is updated, for one, two and three levels of panels."
    return Stepper(frames, "Levels", alt, lines=5)


# one triangle of four


def joins():
    """T of a panel of 64: four of 16 on its diagonal, joined to two of 32, joined to one."""
    alt = (
        "Three triangles of 64 rows. In the first, four triangles of 16 stand on the diagonal. In "
        "the second, two squares of 16 have joined them to two triangles of 32. In the third, one "
        "square of 32 has joined these to one."
    )
    side, top, gap, left = 116, 52, 24, 12
    fig = Figure(2 * left + 3 * side + 2 * gap, top + side + 40, alt, max_width=480)
    names = ("from the panels", "first join", "second join")
    for step, name in enumerate(names):
        x = left + step * (side + gap)
        fig.text(x + side / 2, 16, name, size=14, bold=True)
        fig.brackets(x - 5, top - 5, side + 10, side + 10)
        unit = side / 4
        for p in range(4):
            a, b = x + p * unit, top + p * unit
            d = f"M{a + 1.5} {b + 1.5} H{a + unit - 1.5} V{b + unit - 1.5} Z"
            fig.path(d, color="blue", width=1, fill="blue", fill_opacity=0.28)
            if step == 0:
                # on its own colour it would be hard to read
                fig.text(a + 0.62 * unit, b + 0.36 * unit, "16", size=11, halo=True)
        squares = [(0, 1, 1, 1), (2, 3, 1, 1)] * (step > 0) + [(0, 2, 2, 2)] * (step > 1)
        for i, j, r, c in squares:
            fresh = (r == 1) == (step == 1)
            color = "pink" if fresh else "blue"
            box = (x + j * unit + 1.5, top + i * unit + 1.5, c * unit - 3, r * unit - 3)
            look = {"color": color, "width": 3 if fresh else 1, "fill": color}
            fig.rect(*box, r=2, **look, fill_opacity=0.28)
        fig.text(x + 0.26 * side, top + 0.78 * side, "0", size=15, color="muted")
    words = "each new square: \u2212*T*\u2081 *G*\u2081\u2082 *T*\u2082, with *G* = *V*\u1d40*V*"
    fig.text(left + 1.5 * side + gap, top + side + 26, words, size=14)
    return fig


# the bits of a number


# their remainders are of every kind: short; long and odd; long and even; short and negative
SHOWN = (math.sqrt(0.5), 0.1, (math.sqrt(5) - 1) / 2, 1 / math.pi)


def in_units(x):
    """(k, e): x = k 2^e with 2^23 <= |k| < 2^24, for a float32 that is not subnormal."""
    mantissa, exponent = math.frexp(float(x))
    return int(mantissa * 2**24), exponent - 24


def parts(x, rounding):
    """x, hi, x - hi, lo and what is lost, as whole units in the last place of x."""
    x = np.float32(x)
    hi, lo = (float(part[0]) for part in pairs.split(np.array([x]), rounding))
    _, e = in_units(x)
    values = (float(x), hi, float(x) - hi, lo, float(x) - hi - lo)
    return [round(value / 2.0**e) for value in values]


def split_words(x, name, rounding):
    k, hi, rest, lo, lost = parts(x, rounding)
    how = "to the nearest" if rounding is not pairs.cut else "by cutting off"
    bits = f"{abs(rest).bit_length()} bits" if rest else "no bits"
    end = "Nothing is lost." if lost == 0 else f"Lost: {abs(lost)} unit{'s' * (abs(lost) > 1)}."
    return (
        f"{float(np.float32(x)):.7f}, rounded {how}. x \u2212 hi = {number(rest, '{}')} units in "
        f"the last place, {bits}; lo keeps {number(lo, '{}')}. {end}"
    )


def split_frame(x, name, rounding):
    """The 24 bits of x, and of its parts, each at its place."""
    values = parts(x, rounding)
    rows = ("*x*", "hi", "*x* \u2212 hi", "lo", "lost")
    colors = ("ink", "blue", "muted", "orange", "pink")
    cell, left, top, row = 14, 78, 40, 40
    width = left + 24 * cell + 10
    alt = (
        f"The 24 significant bits of a number in a row of boxes, and under it hi, the rest, lo and "
        f"what is lost, each at its place. {split_words(x, name, rounding)}"
    )
    fig = Figure(width, top + 5 * row + 4, alt, max_width=1.1 * width)
    fig.text(left + 5.5 * cell, 14, "first 11 bits", size=12, color="muted")
    fig.text(left + 17.5 * cell, 14, "13 more", size=12, color="muted")
    fig.line(left + 11 * cell, 24, left + 11 * cell, top + 5 * row - 8, color="muted", dash=(3, 3))
    for at, (value, name_, color) in enumerate(zip(values, rows, colors)):
        y = top + at * row
        fig.text(left - 26, y + 11, name_, size=14, anchor="end", bold=True, color=color)
        fig.text(left - 8, y + 11, "\u2212" if value < 0 else "+", size=14, anchor="end")
        bits = f"{abs(value):024b}"
        # from its first 1 to its last a number needs bits; around them are zeros that cost nothing
        first = bits.find("1")
        last = bits.rfind("1")
        for k, bit in enumerate(bits[-24:]):
            x0 = left + k * cell
            inside = first <= k <= last
            look = {"color": color if inside else "faint", "width": 1}
            if bit == "1":
                look |= {"fill": color, "fill_opacity": 0.3}
            fig.rect(x0 + 1, y, cell - 2, 22, r=2, **look)
            if inside:
                fig.text(x0 + cell / 2, y + 11, bit, size=11)
    return fig


def split_stepper():
    """Numbers split in two of 11 bits, first by cutting off, then to nearest."""
    cases = [(x, name) for name in ("tf32, cut off", "tf32, nearest") for x in SHOWN]
    frames = [
        Frame(
            split_frame(x, name, pairs.ROUNDINGS[name]),
            split_words(x, name, pairs.ROUNDINGS[name]),
            f"{float(np.float32(x)):.7f}, {name}",
        )
        for x, name in cases
    ]
    return Stepper(frames, "Numbers", "A float32 as a sum of two shorter numbers.", lines=4)


# what is lost


def product_errors(m=512, n=64, seed=0):
    """{rounding: {sums: [error of 1, 2, 3, 4 products]}}, the worst entry, over |v| |c|, in eps.

    And "float32" with no rounding at all. v: columns of V, entries at most 1; c: columns of length
    one.
    """
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((m, n))
    C = rng.standard_normal((m, n))
    V = (V / np.abs(V).max()).astype(np.float32)
    C = (C / np.linalg.norm(C, axis=0)).astype(np.float32)
    exact = V.astype(float).T @ C.astype(float)
    lengths = np.outer(np.linalg.norm(V, axis=0), np.linalg.norm(C, axis=0))

    def error(found):
        return float(np.max(np.abs(found - exact) / lengths) / np.finfo(np.float32).eps)

    found = {"float32": {np.float32: [error(V.T @ C)]}}
    for name, rounding in pairs.ROUNDINGS.items():
        found[name] = {
            sums: [error(pairs.product(V.T, C, rounding, k, sums)) for k in (1, 2, 3, 4)]
            for sums in (np.float64, np.float32)
        }
    return found


POLICIES = {
    "one product, tf32 cut off": (pairs.cut, 1, "pink", "cross"),
    "one product, to nearest": (pairs.nearest, 1, "orange", "hollow"),
    "three products, fp16": (pairs.half, 3, "blue", "dot"),
}
GATED = tuple(family for family in FAMILIES if family not in ("upper", "diagonal"))


def residuals(n=128, batch=4):
    """{policy: {family: (factor, orthogonality)}}, the worst of a batch; "float32" is stage 3."""
    found = {}
    for name, how in {"float32": None, **POLICIES}.items():
        found[name] = {}
        for family in GATED:
            A = torch.from_numpy(make(family, batch, n, cond=2))
            made = s03_blocked.geqrf(A) if how is None else pairs.geqrf(A, *how[:2])
            c = certify(A, *made)
            found[name][family] = float(c.factor.max()), float(c.orthogonality.max())
    return found


def residuals_chart(found):
    """The factor residual for every family and policy, on a logarithmic axis with the gate."""
    top, row, left, right = 86, 27, 108, 410
    gate = 20.0
    low, high = -2.5, 2.5
    alt = "Factor residual in m*eps by family; the gate is 20. " + "; ".join(
        f"{policy}: " + ", ".join(f"{family} {value[0]:.2g}" for family, value in each.items())
        for policy, each in found.items()
    )
    fig = Figure(420, top + row * len(GATED) + 34, alt, max_width=470)

    def x(value):
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    def mark(where, y, policy):
        shade, shape = ("green", "bar") if policy == "float32" else POLICIES[policy][2:]
        if shape == "bar":
            fig.line(where, y - 8, where, y + 8, color=shade, width=4)
        elif shape == "dot":
            fig.circle(where, y, 4.5, color=shade, fill=shade)
        elif shape == "hollow":
            fig.circle(where, y, 5, color=shade, width=2.5)
        else:
            for slope in (-1, 1):
                fig.line(where - 5, y - 5 * slope, where + 5, y + 5 * slope, color=shade, width=2.5)

    for at, policy in enumerate(found):
        column, line = at % 2, at // 2
        y = 14 + 22 * line
        mark(16 + 205 * column, y, policy)
        fig.text(28 + 205 * column, y, policy, size=13, anchor="start")
    bottom = top + row * len(GATED)
    for decade in range(-2, 3):
        fig.line(x(10.0**decade), top, x(10.0**decade), bottom, color="faint", width=1)
        fig.text(x(10.0**decade), bottom + 14, f"{10.0**decade:g}", size=12, color="muted")
    fig.line(x(gate), top - 8, x(gate), bottom, color="ink", width=2, dash=(6, 4))
    fig.text(x(gate), top - 18, "gate 20", size=13, bold=True)
    for at, family in enumerate(GATED):
        y = top + (at + 0.5) * row
        fig.text(left - 10, y, family, size=13, anchor="end")
        for policy, each in found.items():
            mark(x(max(each[family][0], 10**low)), y, policy)
    return fig


def scale_errors(decades=14, n=96, seed=0):
    """[(size of a column, its error by one scale a matrix, by a scale a column)] for three in fp16.

    The error of a column: |r_j - Q^T a_j| / (m eps |a_j|), columns 10^0 to 10^-decades.
    """
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** -np.linspace(0, decades, n)
    A = torch.from_numpy((rng.standard_normal((1, n, n)) * sizes).astype(np.float32))
    each = []
    for scale in (pairs.by_matrix, pairs.by_column):
        H, tau = pairs.geqrf(A, pairs.half, 3, scale=scale)
        R = s03_blocked.ormqr(H.double(), tau.double(), A.double(), transpose=True)
        lost = torch.linalg.norm(H.double().triu() - R, dim=1) / torch.linalg.norm(
            A.double(), dim=1
        )
        each.append((lost[0] / (n * torch.finfo(A.dtype).eps)).tolist())
    return list(zip(sizes.tolist(), *each))


def scale_plot():
    """The error of every column of a graded matrix, with one scale and with one a column."""
    points = scale_errors()
    sizes, one, own = zip(*points)
    alt = (
        "The error of a column against its size, both logarithmic, three products in fp16. With "
        f"one power of two for the matrix the error grows from {one[0]:.2g} to {max(one):.2g} as "
        f"columns get small; with one for each column it stays below {max(own):.2g}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.3))
        axes.plot(sizes, one, color=color["orange"], ls="--", label="one scale a matrix")
        axes.plot(sizes, own, color=color["blue"], label="one a column")
        axes.set(xscale="log", yscale="log", xlabel="size of the column")
        axes.set(ylabel="its error, m*eps")
        axes.invert_xaxis()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)


# host and device


def timeline(us, graph, kernels=8):
    """[(host start, host end)], [(kernel start, kernel end)] in us, for kernels of so many us.

    Replayed or not, from one start to the next it takes at least as long as a node of a graph.
    """
    launch = H200.measured["launch"].value * 1e6
    node = H200.measured["graph node"].value * 1e6
    if graph:
        host = [(0.0, launch)]
        ready = kernels * [launch]
    else:
        host = [(k * launch, (k + 1) * launch) for k in range(kernels)]
        ready = [end for _, end in host]
    device, free = [], 0.0
    for told in ready:
        start = max(told, free)
        device.append((start, start + us))
        free = start + max(us, node)
    return host, device


def timeline_words(us, kernels=8):
    eager, replay = (timeline(us, graph, kernels)[1][-1][1] for graph in (False, True))
    launch = H200.measured["launch"].value * 1e6
    busy = 100 * kernels * us / eager
    waits = "the GPU waits for the host" if us < launch else "the host is ahead of the GPU"
    return (
        f"Kernels of {us} \u00b5s: {waits}. One by one {eager:.0f} \u00b5s, the GPU at work "
        f"{busy:.0f} % of them; replayed {replay:.0f} \u00b5s, {eager / replay:.1f} times faster."
    )


def timeline_frame(us, kernels=8):
    """Host and GPU over time, with kernels started one by one and with a graph."""
    both = [(how, timeline(us, how == "replayed", kernels)) for how in ("one by one", "replayed")]
    end = max(device[-1][1] for _, (_, device) in both)
    left, right, top, row = 70, 410, 26, 30
    alt = f"Two time lines, host above GPU, for {kernels} kernels. {timeline_words(us, kernels)}"
    fig = Figure(420, 226, alt, max_width=470)

    def x(t):
        return left + (right - left) * t / end

    for at, (how, (host, device)) in enumerate(both):
        y = top + at * 92
        fig.text(10, y - 12, how, size=14, anchor="start", bold=True)
        for name, line, color, spans in (
            ("host", 0, "orange", host),
            ("GPU", 1, "blue", device),
        ):
            fig.text(left - 10, y + line * row + 13, name, size=13, anchor="end", color="muted")
            fig.line(left, y + line * row + 25, right, y + line * row + 25, color="faint")
            for start, stop in spans:
                wide = max(x(stop) - x(start) - 1.5, 1)
                look = {"color": color, "width": 1.2, "fill": color}
                opacity = 0.5 if name == "GPU" else 0.12
                fig.rect(x(start), y + line * row + 3, wide, 20, **look, fill_opacity=opacity)
    fig.line(left, 210, right, 210, color="muted")
    fig.text(left, 219, "0", size=12, color="muted")
    fig.text(right, 219, f"{end:.0f} \u00b5s", size=12, color="muted", anchor="end")
    return fig


def timeline_stepper(lengths=(20, 10, 5, 2)):
    """Kernels of several lengths: when the GPU waits for the host."""
    frames = [
        Frame(timeline_frame(us), timeline_words(us), f"kernels of {us} microseconds")
        for us in lengths
    ]
    return Stepper(frames, "Shorter kernels", "Host and GPU, kernel by kernel.", lines=4)


# measured


class Replay(NamedTuple):
    """A size that was measured both ways; times in us. host: its launches, as plain ones."""

    batch: int
    n: int
    launches: int
    host: float
    eager: float
    replayed: float


def replays(found, stage="s06_update"):
    """[Replay] of a file's Results, the first case of each size."""
    from qrlib.launches import launches

    sizes = {}
    for row in found.find(stage=stage, mode="eager", ok=True):
        B, n = row["batch"], row["n"]
        same = {key: row[key] for key in ("batch", "n", "cond", "family", "precision")}
        other = found.find(stage=stage, mode="replay", ok=True, **same)
        if (B, n) not in sizes and other:
            count = len(launches(stage, B, n, n, target="sm_90a"))
            host = count * H200.measured["launch"].value * 1e6
            times = row["median_us"], other[0]["median_us"]
            sizes[B, n] = Replay(B, n, count, host, *times)
    return list(sizes.values())


def replay_table(data=CASES, stage="s06_update"):
    """Lines: one by one and replayed for each size, and the first for each launch."""
    found = results.load(data)
    lines = ["matrices    n  launches  one by one  for each   replayed  gain"]
    for each in replays(found, stage):
        times = each.eager, each.eager / each.launches, each.replayed
        one, own, replayed = (duration(us) for us in times)
        lines.append(
            f"{each.batch:8} {each.n:4} {each.launches:9} {one:>11} {own:>9} {replayed:>10} "
            f"{each.eager / each.replayed:5.2f}"
        )
    return [*lines, "", found.where()]


def replay_chart(data=CASES, stage="s06_update"):
    """Both times of each size as bars, and a mark for its launches at the price of plain ones."""
    found = results.load(data)
    sizes = replays(found, stage)
    every = [us for each in sizes for us in (each.host, each.eager, each.replayed)]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    left, right, top, row = 104, 410, 58, 40
    bottom = top + row * len(sizes)
    alt = f"Bars on a logarithmic axis, {found.where()}. " + "; ".join(
        f"{each.batch} x {each.n}: one by one {duration(each.eager)}, replayed "
        f"{duration(each.replayed)}; {each.launches} plain launches would be {duration(each.host)}"
        for each in sizes
    )
    foot = textwrap.wrap(found.where(), 60)
    fig = Figure(420, bottom + 30 + 15 * len(foot), alt + ".", max_width=470)

    def x(us):
        return left + (right - left) * (math.log10(us) - low) / (high - low)

    fig.rect(10, 8, 16, 11, color="orange", fill="orange", fill_opacity=0.45)
    fig.text(32, 14, "one by one", size=13, anchor="start")
    fig.rect(122, 8, 16, 11, color="blue", fill="paper")
    fig.text(144, 14, "replayed", size=13, anchor="start")
    fig.line(222, 6, 222, 22, color="ink", width=3)
    plain = duration(H200.measured["launch"].value * 1e6)
    fig.text(230, 14, f"{plain} for each launch", size=13, anchor="start")
    fig.text(10, 38, "matrices \u00d7 n", size=13, anchor="start", color="muted")
    for decade in range(low, high + 1):
        fig.line(x(10**decade), top, x(10**decade), bottom, color="faint", width=1)
        anchor = "end" if decade == high else "middle"
        fig.text(x(10**decade), bottom + 12, duration(10**decade), size=12, anchor=anchor)
    for at, each in enumerate(sizes):
        y = top + at * row
        fig.text(left - 10, y + 17, f"{each.batch} \u00d7 {each.n}", size=13, anchor="end")
        look = {"color": "orange", "fill": "orange", "fill_opacity": 0.45}
        fig.rect(left, y + 4, x(each.eager) - left, 12, **look)
        fig.rect(left, y + 19, x(each.replayed) - left, 12, color="blue", fill="paper")
        fig.line(x(each.host), y + 1, x(each.host), y + 33, color="ink", width=3)
    for k, line in enumerate(foot):
        fig.text(10, bottom + 34 + 15 * k, line, size=12, anchor="start", color="muted")
    return fig


def timed(precision, n, data=PRECISIONS):
    """Seconds of a replay with such products, captured as it is; None where it did not pass."""
    (row,) = results.load(data).find(stage=f"s06_update:precision={precision}", n=n, mode="replay")
    return row["median_us"] and row["median_us"] / 1e6


def precision_table(data=PRECISIONS):
    """Lines: times and residuals of each precision of the products, for each case."""
    found = results.load(data)
    lines = ["matrices and family      products  replayed   factor   orth.  column"]
    for row in found.find(mode="replay"):
        name = row["stage"].rpartition("=")[2]
        residual = row["certificate"] or {}
        time = duration(row["median_us"]) if row["ok"] else "no time"
        factor, orthogonality, columnwise = (
            results.short(residual.get(key), 3) for key in ("factor", "orthogonality", "columnwise")
        )
        lines.append(
            f"{results.words(row):24} {name:7} {time:>10} {factor:>8} {orthogonality:>7} "
            f"{columnwise:>7}"
        )
    return [*lines, "", found.where()]


def far_update(precision="fp16x3", target="sm_90a"):
    """Artifact of the update kernel for the columns on the far right, of 640 matrices of 512."""
    from qrlib.compilelab import compile_config
    from qrlib.launches import launches

    started = launches("s06_update", 640, 512, 512, target=target, precision=precision)
    configs = [each.config for each in started if each.config.name == "update_kernel"]
    widest = max(configs, key=lambda config: rows_of_w(config.constexprs))
    return compile_config(widest, target)


def rows_of_w(constants):
    """How many rows W has in a kernel with such constants: those of one panel, or of two."""
    return constants["NB"] * (1 + constants.get("TWO", False))


def conversions(artifact, kind):
    """How often a conversion stands in the PTX: "rna.tf32", "rn.f16"."""
    return len(re.findall(rf"\bcvt\.{re.escape(kind)}", artifact.ptx))


def in_flight(programs, m, columns=64, device=H200):
    """Bytes of C that programs at work at a time are responsible for, `programs` an SM."""
    return programs * device.sms * m * columns * 4


def rates():
    """{name: flop/s on an H200} of the products, by measured ceilings: three products count one."""
    seen = {name: H200.measured[name].value for name in ("fp32", "tf32", "fp16")}
    return {"ieee": seen["fp32"], "tf32x3": seen["tf32"] / 3, "fp16x3": seen["fp16"] / 3}


def update_flops(n, widths=LEVELS):
    """Flops of the updates of all levels of an n x n matrix, as plain products do them."""
    total = 0
    for width, end in zip(widths, [*widths[1:], n]):
        for j in range(0, n, width):
            columns = min(j // end * end + end, n) - j - width
            if columns > 0:
                total += model.larfb(n - j, columns, width, dense=True).flops
    return total
