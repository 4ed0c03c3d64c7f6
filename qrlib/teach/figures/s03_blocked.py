"""The figures of chapter "Panels": what is drawn is recorded while stage 3 runs, or counted."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from qrlib import model
from qrlib.compact import unpack_v
from qrlib.householder import geqr2, larf, larft
from qrlib.stages import s03_blocked as stage
from qrlib.teach.figures.s02_unblocked import A75, batch_of_one, key, short, stairs, sub
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number

A108 = np.random.default_rng(8).integers(-9, 10, (10, 8)).astype(np.float64)
_COLORS = {"A": "muted", "R": "blue", "v": "orange"}


class Step(NamedTuple):
    """The matrix after one call of the loop.

    what: "start", "panel" or "update". j, e: the panel's first column, and the first after it.
    H: [m, n], what stands in memory then.
    """

    what: str
    j: int
    e: int
    H: np.ndarray

    @property
    def ready(self):
        """Rows of R that the columns right of the panel have by now."""
        return self.j if self.what == "panel" else self.e


def walk_states(A=A108, nb=3):
    """[Step], the matrix after every call that `right_looking` makes, and before the first."""
    m = A.shape[0]
    now = np.array(A, np.float64)
    steps = [Step("start", 0, 0, now.copy())]

    def record(what, j, e, first, block):
        now[j:, first : first + block.shape[2]] = block[0].numpy()
        steps.append(Step(what, j, e, now.copy()))

    def panel(H, tau):
        V_and_T = stage.panel(H, tau)
        j = m - H.shape[1]
        record("panel", j, j + H.shape[2], j, H)
        return V_and_T

    def update(V, T, C):
        stage.update(V, T, C)
        j = m - C.shape[1]
        record("update", j, j + V.shape[2], j + V.shape[2], C)

    stage.right_looking(batch_of_one(A), nb, panel, update)
    return steps


def owners(m, n, step):
    """Who owns each entry [m, n] after a step: "A" (still to do), "R" or "v"."""
    return [
        [
            ("v" if i > j else "R") if j < step.e else ("R" if i < step.ready else "A")
            for j in range(n)
        ]
        for i in range(m)
    ]


def moved(m, n, steps):
    """Entries moved right of the panels, twice in and once out a trip: (by blocks, by mirrors).

    By mirrors: what the same mirrors would have moved there, each in a trip of its own.
    """
    updates = [(m - step.j, step.e - step.j, n - step.e) for step in steps if step.what == "update"]
    blocks = sum(3 * rows * columns for rows, _, columns in updates)
    mirrors = sum(3 * (rows - i) * columns for rows, b, columns in updates for i in range(b))
    return blocks, mirrors


def columns_words(first, after):
    return f"column {first}" if after - first == 1 else f"columns {first} to {after - 1}"


def walk_words(steps, k):
    """What the last of k calls did, and what the updates have moved so far."""
    step = steps[k]
    m, n = step.H.shape
    blocks, mirrors = moved(m, n, steps[: k + 1])
    trips = f" Moved right of the panels so far: {blocks} entries; mirror by mirror: {mirrors}."
    if step.what == "start":
        return f"A, {m} \u00d7 {n}. Nothing is done yet."
    mirrors_made = step.e - step.j
    if step.what == "update":
        made = "the mirror" if mirrors_made == 1 else f"all {mirrors_made} mirrors"
        return (
            f"Update: {columns_words(step.e, n)} go through {made} in one trip, rows {step.j} to "
            f"{m - 1}. Rows {step.j} to {step.e - 1} of R are final.{trips}"
        )
    words = (
        f"Panel: {columns_words(step.j, step.e)} factored, a mirror a column, from row {step.j} "
        "down."
    )
    if step.e < n:
        waiting = "waits" if n - step.e == 1 else "wait"
        return f"{words} {columns_words(step.e, n).capitalize()} {waiting}, untouched.{trips}"
    return f"{words} Nothing is left on its right.{trips}"


def _span(fig, x, y, width, words, *, color, dash=None):
    """Words over a bar with two feet, above the columns that they are about."""
    corners = [(x + 3, y + 7), (x + 3, y), (x + width - 3, y), (x + width - 3, y + 7)]
    fig.polyline(corners, color=color, width=2, dash=dash)
    fig.text(x + width / 2, y - 11, words, color=color, size=14, bold=True)


def walk_frame(steps, k):
    """The matrix after k calls, with a frame around what the last one wrote."""
    step = steps[k]
    m, n = step.H.shape
    cell, top = 34, 42
    # wide enough for the key under a narrow matrix
    width = max(n * cell + 40, 400)
    left = (width - n * cell) / 2
    j, e, ready = step.j, step.e, step.ready
    alt = (
        f"A matrix of {m} rows and {n} columns after {k} of {len(steps) - 1} calls. Columns 0 to "
        f"{e - 1} hold R on and above the diagonal and V below it; the columns from {e} on have "
        f"{ready} final rows, and the rest is to do."
        if e
        else f"A matrix of {m} rows and {n} columns, all of it to do."
    )
    fig = Figure(width, top + m * cell + 64, alt, max_width=1.15 * width)
    colors = [[_COLORS[who] for who in row] for row in owners(m, n, step)]
    peak = np.abs(steps[0].H).max()
    fig.matrix(left, top, step.H, cell=cell, color=colors, text=None, top=peak, decades=2.5)
    fig.brackets(left - 5, top - 4, n * cell + 10, m * cell + 8)
    if e:
        stairs(fig, left, top, cell, e, n)

    def around(i, first, after, **look):
        x, y = left + first * cell + 1, top + i * cell + 1
        size = ((after - first) * cell - 2, (m - i) * cell - 2)
        fig.rect(x, y, *size, r=5, width=4, **look)

    def name(words, rows, columns, color):
        """Words in the middle of a block, if there is a block."""
        if rows[0] < rows[1] and columns[0] < columns[1]:
            x, y = left + sum(columns) / 2 * cell, top + sum(rows) / 2 * cell
            fig.text(x, y, words, size=20, color=color, bold=True, halo=True)

    if step.what == "panel":
        around(j, j, e, color="pink")
        _span(fig, left + j * cell, 26, (e - j) * cell, "panel", color="pink")
        if e < n:
            look = {"color": "muted", "dash": (3, 3)}
            _span(fig, left + e * cell, 26, (n - e) * cell, "wait", **look)
    elif step.what == "update":
        around(j, e, n, color="green", dash=(9, 4))
        _span(fig, left + e * cell, 26, (n - e) * cell, "*C*", color="green", dash=(9, 4))
    name("*V*", (e, m), (j, e), "orange")
    name("*R*", (0, ready), (e, n), "blue")
    name("*A*" if step.what == "start" else "to do", (ready, m), (e, n), "ink")
    foot = top + m * cell + 24
    look = (("muted", "to do"), ("blue", "*R*"), ("orange", "*V*"))
    swatches = [(70 - 14 * (w != "to do"), c, None, 0.3, w) for c, w in look]
    key(fig, width / 2 - 88, foot, swatches)
    frames = ((150, "pink", None, 0, "just factored"), (0, "green", (9, 4), 0, "just updated"))
    key(fig, width / 2 - 136, foot + 24, frames)
    return fig


def walk_stepper(A=A108, nb=3):
    """A walks down to R panel by panel: what is factored, what waits, what is updated."""
    steps = walk_states(A, nb)
    m, n = A.shape
    frames = [
        Frame(walk_frame(steps, k), walk_words(steps, k), f"{step.what} {step.j}" if k else "start")
        for k, step in enumerate(steps)
    ]
    alt = f"A matrix of {m} rows and {n} columns, factored by panels of {nb} columns."
    return Stepper(frames, "Calls", alt, lines=5)


class Grown(NamedTuple):
    """The block reflector of the first j + 1 mirrors. V: [m, j+1]. T: [j+1, j+1]. g: [j], V^T v_j.

    error: the largest entry of H_0 ... H_j - (I - V T V^T).
    """

    V: np.ndarray
    T: np.ndarray
    tau: np.ndarray
    g: np.ndarray
    error: float


def growth_states(A=A75, b=4):
    """[Grown] for the first b mirrors of A, one more each time."""
    H, tau = batch_of_one(A), torch.zeros(1, b, dtype=torch.float64)
    geqr2(H[:, :, :b], tau)
    V = unpack_v(H[:, :, :b], b)
    states = []
    for j in range(b):
        some, t = V[:, :, : j + 1], tau[:, : j + 1]
        T = larft(some, t)
        Q = torch.eye(len(A), dtype=torch.float64)[None]
        for i in reversed(range(j + 1)):
            larf(V[:, i + 1 :, i], tau[:, i], Q[:, i:])
        identity = torch.eye(len(A), dtype=torch.float64)
        error = float((Q - (identity - some @ T @ some.mT)).abs().max())
        g = (V[0, :, :j].mT @ V[0, :, j]).numpy()
        states.append(Grown(some[0].numpy(), T[0].numpy(), t[0].numpy(), g, error))
    return states


def growth_frame(states, j):
    """V and T after mirror j: its dot products with the vectors before, and the new column of T."""
    V, T, tau, g, _ = states[j]
    m, b = V.shape[0], len(states)
    cell, top, gap = 41, 46, 28
    first, middle = 12, 12 + b * cell + gap
    last = middle + cell + gap
    width = last + b * cell + 12
    fig = Figure(width, top + max(m, b + 2) * cell + 14, growth_alt(states, j), max_width=480)
    for k in range(b):
        color = "pink" if k == j else "orange" if k < j else "faint"
        fig.text(first + (k + 0.5) * cell, top - 16, f"*v*{sub(k)}", size=14, color=_legible(color))
    fig.text(first + b * cell / 2, 10, "*V*", size=16, bold=True, color="orange")
    fig.text(last + b * cell / 2, 10, "*T*", size=16, bold=True, color="blue")
    colors = [["orange" if i >= k else "none" for k in range(j + 1)] for i in range(m)]
    look = {"cell": cell, "text": short, "size": 11.5, "decades": 2.5}
    fig.matrix(first, top, V, color=colors, top=1, **look)
    upper = [["blue" if i <= k else "none" for k in range(j + 1)] for i in range(j + 1)]
    fig.matrix(last, top, T, color=upper, top=2, **look)
    fig.brackets(first - 5, top - 4, b * cell + 10, m * cell + 8)
    fig.brackets(last - 5, top - 4, b * cell + 10, b * cell + 8)
    fig.rect(first + j * cell, top + j * cell, cell, (m - j) * cell, r=5, color="pink", width=4)
    fig.rect(last + j * cell, top, cell, (j + 1) * cell, r=5, color="pink", width=4)
    if j:
        fig.matrix(middle, top, g[:, None], color="green", top=2, **look)
        fig.brackets(middle - 5, top - 4, cell + 10, j * cell + 8)
        fig.text(middle + cell / 2, top - 16, f"*V*\u1d40*v*{sub(j)}", size=14, color="green")
        fig.arrow(middle - gap + 6, top + 12, middle - 8, top + 12, color="green", width=1.5)
        fig.arrow(middle + cell + 8, top + 12, last - 8, top + 12, color="blue", width=1.5)
    foot = top + (b + 0.7) * cell
    right = middle - 4
    rule = f"*T*[:{j}, {j}] = \u2212\u03c4{sub(j)} *T*[:{j}, :{j}] *V*\u1d40*v*{sub(j)}"
    if j:
        fig.text(right, foot, rule, size=14, anchor="start")
    fig.text(
        right,
        foot + (26 if j else 0),
        f"*T*[{j}, {j}] = \u03c4{sub(j)} = {short(tau[j])}",
        size=14,
        anchor="start",
    )
    return fig


def _legible(color):
    """ "faint" is for lines; words take the next darker grey."""
    return "muted" if color == "faint" else color


def growth_alt(states, j):
    V, T, *_ = states[j]
    rows = "; ".join(", ".join(short(a) for a in row) for row in T)
    return (
        f"V with {j + 1} of {len(states)} columns, T beside it, {j + 1} by {j + 1}, upper "
        f"triangular. The rows of T: {rows}."
    )


def growth_words(states, j):
    """What mirror j brought, in numbers."""
    V, T, tau, g, error = states[j]
    match = (
        f"H{sub(0)} \u22ef H{sub(j)}" if j > 1 else f"H{sub(0)} H{sub(1)}" if j else f"H{sub(0)}"
    )
    close = (
        f"I \u2212 V T V\u1d40 is {match} to {number(error, '{:.0e}')}."
        if error
        else (f"I \u2212 V T V\u1d40 is {match} exactly.")
    )
    if j == 0:
        return f"One mirror: V has one column, and T is its \u03c4, {short(tau[0])}. {close}"
    products = ", ".join(short(a) for a in g)
    column = ", ".join(short(a) for a in T[:j, j])
    before = [f"v{sub(i)}" for i in range(j)]
    which = " and ".join([", ".join(before[:-1]), before[-1]] if j > 1 else before)
    return (
        f"v{sub(j)} meets {which}: dot products {products}. Times T as it was, times "
        f"\u2212\u03c4{sub(j)} = {short(-tau[j])}, they are the new column above \u03c4{sub(j)}: "
        f"{column}. {close}"
    )


def growth_stepper(A=A75, b=4):
    """T grows by a column with every mirror."""
    states = growth_states(A, b)
    frames = [
        Frame(growth_frame(states, j), growth_words(states, j), f"{j + 1} of {b}") for j in range(b)
    ]
    return Stepper(
        frames, "Mirrors", f"The triangle T of {b} mirrors grows column by column.", lines=4
    )


def block(fig, x, middle, w, h, words, color, size, *, shape="full"):
    """A block with its name in it and its size under it, centred at a height. Returns its end.

    shape: "full"; "V", zero above its diagonal; "VT", the transpose of that; "upper"; "lower".
    """
    left, right, y, foot = x, x + w, middle - h / 2, middle + h / 2
    corners = {
        "full": [(left, y), (right, y), (right, foot), (left, foot)],
        "V": [(left, y), (right, y + w), (right, foot), (left, foot)],
        "VT": [(left, y), (right, y), (right, foot), (left + h, foot)],
        "upper": [(left, y), (right, y), (right, foot)],
        "lower": [(left, y), (right, foot), (left, foot)],
    }[shape]
    fig.rect(x, y, w, h, color="faint", width=1)
    look = {"color": color, "fill": color, "fill_opacity": 0.22}
    fig.polyline([*corners, corners[0]], width=2, **look)
    fig.text(x + w / 2, middle, words, size=15, bold=True, halo=True)
    fig.text(x + w / 2, foot + 13, size, size=12, color="muted")
    return right


def products(m=12, n=10, b=3):
    """The update as three products of blocks, to scale, each with its count."""
    counts = ", ".join(str(count) for count in product_flops(m, n, b))
    alt = (
        f"Three products, drawn for {m} rows, {n} columns and {b} mirrors. W, {b} by {n}, is V "
        f"transposed, {b} by {m}, times C, {m} by {n}: 2mnb flops. Z, {b} by {n}, is T transposed, "
        f"a triangle of {b} by {b}, times W: 2nb\u00b2 flops. C minus V, {m} by {b}, times Z: "
        f"2mnb flops. Counted one by one: {counts}."
    )
    unit, gap = 8, 34
    M, N, B = m * unit, n * unit, b * unit
    C = (N, M, "*C*", "green", "*m* \u00d7 *n*")
    W = (N, B, "*W*", "pink", "*b* \u00d7 *n*")
    Z = (N, B, "*Z*", "pink", "*b* \u00d7 *n*")
    V = (B, M, "*V*", "orange", "*m* \u00d7 *b*", "V")
    VT = (M, B, "*V*\u1d40", "orange", "*b* \u00d7 *m*", "VT")
    TT = (B, B, "*T*\u1d40", "blue", "*b* \u00d7 *b*", "lower")
    lines = (
        ("*W* = *V*\u1d40 *C*", "2*mnb* flops, *C* in", (W, "=", VT, "\u00b7", C)),
        ("*Z* = *T*\u1d40 *W*", "2*nb*\u00b2 flops", (Z, "=", TT, "\u00b7", W)),
        (
            "*C* \u2190 *C* \u2212 *V Z*",
            "2*mnb* flops, *C* in and out",
            (C, "\u2190", C, "\u2212", V, "\u00b7", Z),
        ),
    )

    def wide(parts):
        return sum(gap if isinstance(part, str) else part[0] for part in parts)

    def high(parts):
        return max(part[1] for part in parts if not isinstance(part, str))

    width = max(400, 16 + max(wide(parts) for _, _, parts in lines))
    fig = Figure(width, sum(high(parts) + 72 for _, _, parts in lines), alt, max_width=1.15 * width)
    y = 16
    for head, cost, parts in lines:
        fig.text(8, y, head, size=15, anchor="start", bold=True)
        fig.text(width - 8, y, cost, size=13, anchor="end", color="muted")
        x, middle = (width - wide(parts)) / 2, y + 20 + high(parts) / 2
        for part in parts:
            if isinstance(part, str):
                fig.text(x + gap / 2, middle, part, size=18)
                x += gap
            else:
                *box, shape = part if len(part) == 6 else (*part, "full")
                x = block(fig, x, middle, *box, shape=shape)
        y += high(parts) + 72
    return fig


def product_flops(m, n, b):
    """Flops of V^T C, T^T W, and C - V Z, as plain products do them."""
    return (
        model.gemm(b, n, m).flops,
        model.gemm(b, n, b).flops,
        model.gemm(m, n, b).flops + m * n,
    )


WIDTHS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)
SIZES = (64, 128, 256, 512, 1024, 2048)


@cache
def trips(n, nb):
    """Bytes that stage 3 moves for n by n, over those of A, H and tau: (all, {purpose: some})."""
    plan = model.plan("s03_blocked", 1, n, n, nb=nb)
    parts = {what: moved / plan.floor for what, moved in plan.traffic.items()}
    return plan.bytes / plan.floor, parts


def best_width(n):
    """The width with which stage 3 moves the fewest bytes, by counting them for each."""
    # the best is near sqrt(4n/3); half of sqrt(n) and twice as much are well beyond it
    some = range(max(1, math.isqrt(n) // 2), 2 * math.isqrt(n) + 2)
    return min(some, key=lambda nb: trips(n, nb)[0])


def widths_frame(n):
    """Trips through memory against the width of the panels, for one size."""
    widths = [nb for nb in WIDTHS if nb <= n]
    totals, parts = zip(*(trips(n, nb) for nb in widths))
    panels = [p["panels"] for p in parts]
    # one panel of all columns has no update, and zero has no logarithm
    updates = [p["update"] or math.nan for p in parts]
    best = best_width(n)
    least = trips(n, best)[0]
    low = np.nanmin(updates)
    alt = (
        f"Bytes moved against the width of the panels, both logarithmic, n = {n}. With wider "
        f"panels the updates fall from {updates[0]:.0f} to {low:.1f} times the matrix, the panels "
        f"rise from {panels[0]:.1f} to {panels[-1]:.0f}; their sum is least, {least:.1f}, at a "
        f"width of {best}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(4.4, 3.4), layout="none")
        axes = figure.add_axes((0.14, 0.14, 0.83, 0.83))
        axes.set(xscale="log", yscale="log", xlim=(0.9, 300), ylim=(1, 4000))
        axes.plot(widths, totals, color=color["ink"], ls="-", label="all")
        axes.plot(widths, updates, color=color["green"], ls="--", label="updates")
        axes.plot(widths, panels, color=color["pink"], ls="-.", label="panels")
        axes.plot([best], [least], "o", color=color["ink"], ms=8)
        axes.annotate(f"{best}", (best, least), (0, 9), textcoords="offset points", ha="center")
        axes.set(xlabel="width of a panel, $b$", ylabel="bytes / bytes of A, H and \u03c4")
        ticks = [1, 4, 16, 64, 256]
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.legend(loc="upper right")
        figure = from_matplotlib(figure, alt, max_width=520)
    words = (
        f"n = {n}: fewest bytes with b = {best}, {least:.1f} times the matrix in and out; "
        f"\u221a(4n/3) = {math.sqrt(4 * n / 3):.1f}. Mirror by mirror, b = 1, it is "
        f"{totals[0]:.0f} times."
    )
    return Frame(figure, words, f"n = {n}")


def widths_stepper():
    """The best width of the panels, and how it moves with the size of the matrix."""
    alt = "The bytes that stage 3 moves against the width of its panels, for six sizes of matrix."
    return Stepper([widths_frame(n) for n in SIZES], "n", alt, lines=3)
