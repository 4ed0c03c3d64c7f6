"""The figures of chapter "The panel stays on the chip": tiles, warps, and what moves between them.

What a kernel did is drawn from a trace of it, where an entry lives from what the compiler said.
"""

import re
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from qrlib import model
from qrlib.devices import DEVICES
from qrlib.teach.figures.s02_unblocked import short
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style

# quarters, none larger than 1: a panel as it is after its columns have been brought near 1
P83 = np.random.default_rng(5).choice((-3, -2, -1, 1, 2, 3), (8, 4))[:, :3] / 4
# a program has so many registers a thread at most
REGISTERS = 255
# threads of a warp
WARP = 32


class Mirror(NamedTuple):
    """One mirror of a panel, with all that is on the way.

    parts: [warps, b], what each warp has of g. g: [b], x^T P. row: [b], row j. z: [b], v^T P.
    P: [m, b], T: [b, b], tau: [b], afterwards.
    """

    parts: np.ndarray
    g: np.ndarray
    row: np.ndarray
    z: np.ndarray
    beta: float
    scale: float
    P: np.ndarray
    T: np.ndarray
    tau: np.ndarray


def mirror(P, T, tau, j, warps=1):
    """Mirror j of a panel, in the order of `tiles.mirror`. P: [m, b], T: [b, b], tau: [b]; read.

    warps: among how many the rows are shared out, in blocks.
    """
    m, b = P.shape
    i = np.arange(m)
    x = np.where(i > j, P[:, j], 0)
    parts = (x[:, None] * P).reshape(warps, m // warps, b).sum(1)
    g, row = parts.sum(0), P[j].copy()
    alpha, sigma = row[j], g[j]
    if sigma == 0:
        beta, scale, t = alpha, 0.0, 0.0
    else:
        beta = -np.copysign(np.sqrt(alpha**2 + sigma), alpha)
        scale, t = 1 / (alpha - beta), (beta - alpha) / beta
    z = row + scale * g
    v = np.where(i == j, 1, scale * x)
    c = np.arange(b)
    P = P - np.outer(v, t * np.where(c > j, z, 0))
    P[j + 1 :, j], P[j, j] = v[j + 1 :], beta
    T, tau = T.copy(), tau.copy()
    T[:j, j] = -t * T[:j, :j] @ z[:j]
    T[j, j] = tau[j] = t
    return Mirror(parts, g, row, z, float(beta), float(scale), P, T, tau)


def mirrors(P=P83, warps=2):
    """[Mirror] of every column of a panel."""
    T, tau = np.zeros((P.shape[1],) * 2), np.zeros(P.shape[1])
    done = []
    for j in range(P.shape[1]):
        done.append(mirror(P, T, tau, j, warps))
        P, T, tau = done[-1].P, done[-1].T, done[-1].tau
    return done


# what happens in a column, frame by frame
ACTS = ("multiply", "exchange", "reflect")


def walk_bytes(m, b, stored):
    """Bytes between the chip and device memory: the panel in; H, V, T and tau out."""
    return 4 * (m * b + (2 * m * b + b * b + b if stored else 0))


def walk_words(P, warps, k):
    """What frame k of the walk shows."""
    m, b = P.shape
    last = 3 * b + 1
    done = mirrors(P, warps)
    moved = f" Bytes through device memory so far: {walk_bytes(m, b, k == last)}."
    moved += f" Meetings of the warps: {min((k + 1) // 3, b)}."
    if k == 0:
        return f"Loaded: {m} \u00d7 {b} numbers, {m // warps} rows for each warp.{moved}"
    if k == last:
        return f"Stored: H with R and V in one, V with ones and zeros, T and \u03c4.{moved}"
    j, act = divmod(k - 1, 3)
    step = done[j]
    if ACTS[act] == "multiply":
        words = (
            f"Column {j}: x is its tail, below row {j}. Each warp multiplies x into all columns "
            "and sums over its own rows."
        )
    elif ACTS[act] == "exchange":
        words = (
            f"Column {j}: the warps meet, once, and put their sums together. All know g and row "
            f"{j} now: \u03b1 = {short(step.row[j])}, \u03c3 = {short(step.g[j])}, hence \u03b2 = "
            f"{short(step.beta)}, \u03c4 = {short(step.tau[j])}, s = {short(step.scale)}."
        )
    else:
        right = "The columns on the right are reflected" if j + 1 < b else "Nothing is on the right"
        words = (
            f"Column {j}: z = row {j} + s g. {right}, T has column {j}. Every thread works on its "
            "own numbers."
        )
    return words + moved


def _cells(fig, x, y, values, *, cell, high, color, size=11.5, top=2.0):
    """A row of numbers in boxes."""
    for c, value in enumerate(values):
        left = x + c * cell
        depth = 0.08 + 0.3 * min(1, abs(value) / top)
        look = {"color": color, "width": 1, "fill": color, "fill_opacity": depth if value else 0}
        fig.rect(left + 1, y + 1, cell - 2, high - 2, r=3, **look)
        fig.text(left + cell / 2, y + high / 2, short(value), size=size)


def _empty(fig, x, y, w, h):
    """Where numbers will stand."""
    fig.rect(x + 1, y + 1, w - 2, h - 2, r=3, color="faint", width=1, dash=(2, 3))


def walk_frame(P, warps, k):
    """The panel in the registers of its warps, and what they exchange, at frame k."""
    m, b = P.shape
    done, last = mirrors(P, warps), 3 * b + 1
    j, act = (divmod(k - 1, 3)) if 0 < k < last else (b if k else 0, None)
    act = None if act is None else ACTS[act]
    # columns that are finished, and the panel, T as they are in this frame
    ready = min(j + (act == "reflect"), b)
    now = done[ready - 1] if ready else None
    here = now.P if now else P
    cell, high, row, top = 40, 33, 27, 66
    left, side = 58, 58 + b * 40 + 62
    width = side + b * cell + 8
    foot = top + m * high
    rows = "; ".join(", ".join(short(a) for a in r) for r in here)
    alt = f"Frame {k} of {last}. The panel in registers, {warps} warps. Rows: {rows}. "
    alt += walk_words(P, warps, k)
    # what stands beside the panel: sums, g and row j, z, and T
    height = max(foot, top + (warps + 3 + b) * row + 28) + 22
    fig = Figure(width, height, alt, max_width=1.2 * width)
    # the way out to device memory: open at the beginning and at the end
    fig.rect(8, 6, width - 16, 26, r=5, color="muted", fill="muted", fill_opacity=0.1)
    fig.text(width / 2, 19, "device memory", size=13, color="muted")
    if k == 0:
        fig.arrow(left + b * cell / 2, 32, left + b * cell / 2, top - 8, color="pink", width=4)
    elif k == last:
        for x in (left + b * cell / 2, side + b * cell / 2):
            fig.arrow(x, top - 8, x, 33, color="pink", width=4)
    else:
        fig.text(left + b * cell / 2, 48, "registers", size=13, bold=True)
    size = m // warps
    for w in range(warps):
        y = top + w * size * high
        fig.rect(left - 4, y + 1, b * cell + 8, size * high - 2, r=6, color="green", width=2)
        fig.text(left - 10, y + size * high / 2, f"warp {w}", size=12.5, anchor="end")
    for i in range(m):
        for c in range(b):
            value = here[i, c]
            color = "muted" if c >= ready and i >= ready else "orange" if i > c else "blue"
            box = {"cell": cell, "high": high, "color": color, "top": 1.0}
            _cells(fig, left + c * cell, top + i * high, [value], **box)
    if act:
        if act != "reflect" and j + 1 < m:
            tail = (left + j * cell, top + (j + 1) * high, cell, (m - j - 1) * high)
            fig.rect(*tail, r=5, color="pink", width=3.5)
            fig.text(left + (j + 0.5) * cell, foot + 12, "x", size=14, color="pink", bold=True)
        if act != "multiply":
            fig.rect(left, top + j * high, b * cell, high, r=5, color="pink", width=2, dash=(5, 3))
    # what is not a tile: two sums and row j, the same in all warps
    step = done[j] if act else None
    y = top

    def strip(words, values, color):
        nonlocal y
        fig.text(side - 8, y + row / 2, words, size=12.5, anchor="end")
        if values is None:
            _empty(fig, side, y, b * cell, row)
        else:
            _cells(fig, side, y, values, cell=cell, high=row, color=color)
        y += row

    known = act in ("exchange", "reflect")
    for w in range(warps):
        strip(f"warp {w}", step.parts[w] if act == "multiply" else None, "pink")
    y += 6
    strip("*g*", step.g if known else None, "pink")
    strip(f"row {j}" if act else "row *j*", step.row if known else None, "pink")
    y += 6
    strip("*z*", step.z if act == "reflect" else None, "green")
    y += 16
    fig.text(side - 8, y + b * row / 2, "*T*", size=15, anchor="end", bold=True, color="blue")
    _empty(fig, side, y, b * cell, b * row)
    for i in range(ready):
        shown = now.T[i, i:ready]
        _cells(fig, side + i * cell, y + i * row, shown, cell=cell, high=row, color="blue")
    if act == "reflect":
        fig.rect(side + j * cell, y, cell, (j + 1) * row, r=4, color="pink", width=3)
    return fig


def walk_stepper(P=P83, warps=2):
    """A panel that is loaded, factored in registers, and stored."""
    b = P.shape[1]
    last = 3 * b + 1
    names = ["loaded", *(f"column {j}: {act}" for j in range(b) for act in ACTS), "stored"]
    frames = [
        Frame(walk_frame(P, warps, k), walk_words(P, warps, k), names[k]) for k in range(last + 1)
    ]
    alt = f"A panel of {P.shape[0]} rows and {b} columns, factored in the registers of one program."
    return Stepper(frames, "Steps", alt, lines=5)


def touched(t, name, tensor, op="load"):
    """{index of tensor: programs, in order} for every element that a traced kernel touched.

    t: a Trace. name: of the tensor in it. tensor: the same, for its strides.
    """
    found = {}
    strides, start = tensor.stride(), tensor.storage_offset()
    where = {
        start + sum(i * s for i, s in zip(index, strides)): index
        for index in np.ndindex(*tensor.shape)
    }
    for access in t.accesses:
        if (access.tensor, access.op) == (name, op):
            for element in access.elements.tolist():
                found.setdefault(where[element], []).append(access.program[0])
    return found


_BY_PROGRAM = ("blue", "orange", "green", "pink")


def access_map(t, name, tensor, tile, op="load"):
    """Which program touched which entry of a batch, and what of its tile the mask left out.

    t, name, tensor, op: as for touched; a number in a cell is the program. tile: (BM, BN).
    """
    B, m, n = tensor.shape
    rows, columns = max(tile[0], m), max(tile[1], n)
    found = touched(t, name, tensor, op)
    cell, top, gap = 30, 34, 22
    each = columns * cell + gap
    width = B * each + 8
    lanes = tile[0] * tile[1]
    alt = (
        f"{B} matrices of {m} rows and {n} columns side by side, over each a tile of {tile[0]} by "
        f"{tile[1]}. {op.capitalize()}s: "
        + "; ".join(
            f"matrix {b}: {sum(index[0] == b for index in found)} of {m * n} entries, by program "
            + (
                ", ".join(
                    str(p) for p in sorted({p for i, ps in found.items() if i[0] == b for p in ps})
                )
                or "none"
            )
            for b in range(B)
        )
        + "."
    )
    fig = Figure(width, top + rows * cell + 58, alt, max_width=1.2 * width)
    for b in range(B):
        left = 8 + b * each
        fig.text(left + n * cell / 2, 14, f"matrix {b}", size=13)
        for i in range(rows):
            for c in range(columns):
                box = (left + c * cell + 1, top + i * cell + 1, cell - 2, cell - 2)
                if i < m and c < n:
                    by = found.get((b, i, c), [])
                    color = _BY_PROGRAM[by[0] % 4] if by else "faint"
                    look = {"fill": color, "fill_opacity": 0.28 if by else 0}
                    fig.rect(*box, r=3, color=color, width=1, **look)
                    fig.text(
                        left + (c + 0.5) * cell,
                        top + (i + 0.5) * cell,
                        "/".join(map(str, by)),
                        size=13,
                    )
                elif i < tile[0] and c < tile[1]:
                    fig.rect(*box, r=3, color="muted", width=1, dash=(2, 3))
        fig.rect(left, top, tile[1] * cell, tile[0] * cell, r=4, color="ink", width=2, dash=(7, 4))
        fig.brackets(left - 3, top - 4, n * cell + 6, m * cell + 8)
    foot = top + rows * cell + 22
    one = next(iter(t.launches)).accesses
    used = next(a.elements.size for a in one if (a.tensor, a.op) == (name, op))
    words = f"program 0: {used} of the {lanes} entries of its tile exist"
    fig.text(8, foot, words, size=13, anchor="start")
    fig.text(
        8, foot + 20, "number: the program. dotted: masked", size=13, anchor="start", color="muted"
    )
    return fig


class Layout(NamedTuple):
    """How the compiler deals a tile out. Each: [rows, columns]. Columns are dealt first.

    thread: the block of entries of one thread. lanes: threads of a warp. warps: of a program.
    """

    thread: tuple[int, int]
    lanes: tuple[int, int]
    warps: tuple[int, int]

    @property
    def once(self):
        """The piece of a tile that is dealt out once; a larger tile begins again."""
        return tuple(a * b * c for a, b, c in zip(*self))

    def owner(self, i, c):
        """(warp, lane) that has entry (i, c)."""
        block = [at // own for at, own in zip((i, c), self.thread)]
        lane = [at % many for at, many in zip(block, self.lanes)]
        warp = [at // many % w for at, many, w in zip(block, self.lanes, self.warps)]
        return warp[0] * self.warps[1] + warp[1], lane[0] * self.lanes[1] + lane[1]


def layout_of(artifact):
    """The Layout of the panel of a compiled `panel_kernel`, as its TTGIR has it."""
    BM, BN = (artifact.config.constexprs[name] for name in ("BM", "BN"))
    name = re.search(rf"tensor<{BM}x{BN}xf32, (#\w+)>", artifact.ttgir)[1]
    said = re.search(rf"^{name} = #ttg\.blocked<\{{(.*)\}}>$", artifact.ttgir, re.MULTILINE)[1]
    found = {
        key: tuple(map(int, pair)) for key, *pair in re.findall(r"(\w+) = \[(\d+), (\d+)\]", said)
    }
    if found["order"] != (1, 0):
        raise ValueError(f"columns must be dealt first, order (1, 0); got {found['order']}")
    return Layout(found["sizePerThread"], found["threadsPerWarp"], found["warpsPerCTA"])


def _threads(owners):
    """A set of (warp, lane) in words."""
    warps = len({warp for warp, _ in owners})
    return f"{len(owners)} threads of {f'{warps} warps' if warps > 1 else 'one warp'}"


def spread(layout, BM, BN, j=4, i=10):
    """Which warp and thread has which entry of a tile, with column j and row i marked."""
    cell, top, left, high = 21, 40, 66, 17
    width, foot = left + BN * cell + 70, top + BM * high
    of_row = _threads({layout.owner(i, c) for c in range(BN)})
    of_column = _threads({layout.owner(r, j) for r in range(BM)})
    alt = (
        f"A tile of {BM} rows and {BN} columns and who holds it. A thread has {layout.thread[1]} "
        f"neighbours of a row; rows go round among the warps, {layout.lanes[0]} at a time. Row {i} "
        f"is in {of_row}. Column {j} is in {of_column}."
    )
    fig = Figure(width, foot + 70, alt, max_width=1.15 * width)
    colors = ("blue", "orange", "green", "pink")
    own, once = layout.thread, layout.once
    band = own[0] * layout.lanes[0]
    for r0 in range(0, BM, band):
        w = layout.owner(r0, 0)[0]
        color = colors[w % 4]
        y = top + r0 * high
        fig.rect(left, y + 1, BN * cell, band * high - 2, r=4, color=color, width=2)
        fig.text(left - 8, y + band * high / 2, f"warp {w}", size=13, anchor="end")
        fig.text(
            left + BN * cell + 8,
            y + band * high / 2,
            "again" if r0 >= once[0] else f"rows {r0}\u2013{r0 + band - 1}",
            size=12,
            anchor="start",
            color="muted",
        )
        for r in range(r0, r0 + band, own[0]):
            for c in range(0, BN, own[1]):
                box = (
                    left + c * cell + 2,
                    top + r * high + 2,
                    own[1] * cell - 4,
                    own[0] * high - 4,
                )
                fig.rect(*box, r=3, color=color, width=0.8, fill=color, fill_opacity=0.16)
                middle = (left + (c + own[1] / 2) * cell, top + (r + own[0] / 2) * high)
                fig.text(*middle, f"t{layout.owner(r, c)[1]}", size=11)
    fig.rect(
        left + j * cell, top - 3, cell, BM * high + 6, r=4, color="ink", width=2.5, dash=(6, 3)
    )
    fig.text(left + (j + 0.5) * cell, top - 14, f"column {j}", size=13)
    fig.rect(left - 3, top + i * high, BN * cell + 6, high, r=4, color="ink", width=2.5)
    fig.text(
        left,
        foot + 22,
        f"row {i} (solid): {of_row}",
        size=13,
        anchor="start",
    )
    fig.text(
        left,
        foot + 42,
        f"column {j} (dashed): {of_column}",
        size=13,
        anchor="start",
    )
    return fig


HEIGHTS = (64, 128, 256, 512, 1024, 2048)
WARPS = (1, 2, 4, 8, 16, 32)


def tile_registers(BM, BN, warps):
    """Registers of a thread for one float32 tile [BM, BN] held by so many warps."""
    return BM * BN / (WARP * warps)


def fits(table, BN=16, device="H200"):
    """Registers a thread for the tile alone, for every height and number of warps.

    table: {BM: (warps, ...)}, what the stage chose. Cells say where a tile cannot be held at all,
    and with how many programs an SM would be full by the tiles alone.
    """
    cell, row, left, top = 56, 40, 74, 60
    width, height = left + len(WARPS) * cell + 10, top + len(HEIGHTS) * row
    chosen = {BM: warps for BM, (warps, *_) in table.items()}
    alt = f"Registers a thread that a tile of {BN} columns takes by itself. " + " ".join(
        f"{BM} rows: "
        + ", ".join(f"{tile_registers(BM, BN, w):g} with {w}" for w in WARPS)
        + f"; the stage takes {chosen[BM]} warps."
        for BM in HEIGHTS
    )
    fig = Figure(width, height + 66, alt, max_width=1.15 * width)
    fig.text(left + len(WARPS) * cell / 2, 14, "warps", size=13, bold=True)
    fig.text(left - 10, top - 18, "rows", size=13, bold=True, anchor="end")
    for k, w in enumerate(WARPS):
        fig.text(left + (k + 0.5) * cell, top - 18, str(w), size=13)
    for r, BM in enumerate(HEIGHTS):
        y = top + r * row
        fig.text(left - 10, y + row / 2, str(BM), size=13, anchor="end")
        for k, w in enumerate(WARPS):
            take = tile_registers(BM, BN, w)
            x, over = left + k * cell, take > REGISTERS
            color = "pink" if over else "blue"
            look = {"fill": color, "fill_opacity": 0.05 + 0.4 * min(1, take / 256)}
            fig.rect(
                x + 2,
                y + 2,
                cell - 4,
                row - 4,
                r=4,
                color=color,
                width=1,
                dash=(3, 3) if over else None,
                **look,
            )
            fig.text(x + cell / 2, y + row / 2, f"{take:g}", size=14, bold=chosen[BM] == w)
            if chosen[BM] == w:
                fig.rect(x + 1, y + 1, cell - 2, row - 2, r=5, color="ink", width=3)
    fig.text(left, height + 20, "thick frame: what the stage takes", size=13, anchor="start")
    fig.text(
        left,
        height + 40,
        f"dashed: more than the {REGISTERS} that a thread may have",
        size=13,
        anchor="start",
        color="muted",
    )
    return fig


PANEL_WIDTHS = (1, 2, 4, 8, 16)


def panel_trips(m, b):
    """Bytes that a panel m x b moves over those of the panel itself: (stage 3, stage 5)."""
    moved = (model.plan(stage, 1, m, b, nb=b).traffic for stage in ("s03_blocked", "s05_panel"))
    return tuple((each["panels"] + each["V and T"]) / (4 * m * b) for each in moved)


def trips_plot(m=512):
    """How often one panel passes through device memory, against its width."""
    points = [panel_trips(m, b) for b in PANEL_WIDTHS]
    alt = (
        f"Trips of one panel of {m} rows through device memory against its width. "
        + "; ".join(
            f"{b} columns: stage 3 {third:.1f}, stage 5 {fifth:.2f}"
            for b, (third, fifth) in zip(PANEL_WIDTHS, points)
        )
        + "."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.0))
        third, fifth = zip(*points)
        axes.plot(
            PANEL_WIDTHS,
            third,
            color=color["orange"],
            ls="--",
            marker="o",
            label="stage 3, a mirror a column",
        )
        axes.plot(
            PANEL_WIDTHS,
            fifth,
            color=color["blue"],
            ls="-",
            marker="s",
            label="stage 5, in registers",
        )
        for b, (high, low) in list(zip(PANEL_WIDTHS, points))[-1:]:
            look = {"textcoords": "offset points", "ha": "right"}
            axes.annotate(f"{high:.0f}", (b, high), (-8, 0), **look)
            axes.annotate(f"{low:.1f}", (b, low), (-2, 7), **look)
        axes.set(xscale="log", ylim=(0, None), xlabel="columns of the panel")
        axes.set(ylabel="bytes / bytes of the panel")
        axes.set_xticks(PANEL_WIDTHS, [str(b) for b in PANEL_WIDTHS])
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=1)
        return from_matplotlib(figure, alt, max_width=520)


def shared_out(slices=4, b=3):
    """A tall panel of b columns among programs: what each does in which launch."""
    left, top, wide, high, gap = 86, 42, 86, 46, 34
    width = left + slices * wide + 8
    rows = [
        ("scaled", "sums for 0"),
        *((f"mirror {j}", f"sums for {j + 1}") for j in range(b - 1)),
        (f"mirror {b - 1}", "stored"),
    ]
    height = top + len(rows) * high + (len(rows) - 1) * gap
    alt = (
        f"A tall panel of {b} columns, its rows shared out among {slices} programs, in "
        f"{len(rows)} launches. "
        + "; ".join(f"launch {k}: {first}, {then}" for k, (first, then) in enumerate(rows))
        + ". After every launch but the last all sums and the next row are in memory."
    )
    fig = Figure(width, height + 16, alt, max_width=1.15 * width)
    for s in range(slices):
        fig.text(left + (s + 0.5) * wide, 20, f"slice {s}", size=13, color="muted")
    for k, words in enumerate(rows):
        y = top + k * (high + gap)
        fig.text(left - 10, y + high / 2, f"launch {k}", size=13, anchor="end", bold=True)
        for s in range(slices):
            box = (left + s * wide + 3, y, wide - 6, high)
            fig.rect(*box, r=6, color="green", width=2, fill="green", fill_opacity=0.1)
            for line, word in enumerate(words):
                at = y + high / 2 + 18 * (line - 0.5)
                fig.text(left + (s + 0.5) * wide, at, word, size=13)
        if k + 1 < len(rows):
            line, middle = y + high + gap / 2, left + slices * wide / 2
            words = f"all sums and row {k} are in memory"
            # the words stand in a gap of the line
            half = 3.4 * len(words)
            for start, end in ((left, middle - half), (middle + half, width - 8)):
                fig.line(start, line, end, line, color="pink", width=2.5, dash=(7, 4))
            fig.text(middle, line, words, size=12, color="pink")
    return fig


def rows_of(shape):
    """(rows, columns) of "512 x 16"."""
    return tuple(int(each) for each in shape.split(" x "))


def per_column(data):
    """{B: [(rows, microseconds a column)]} of stored times of panels, by rows."""
    shapes = sorted(data["us"], key=rows_of)
    return {
        B: [(rows_of(s)[0], data["us"][s][k] / rows_of(s)[1]) for s in shapes]
        for k, B in enumerate(data["batch"])
    }


def panels_time(data, n, b=16):
    """Microseconds for all panels of n x n matrices, one of them as long as the next taller stored.

    data: stored times of panels, of which the largest batch is taken.
    """
    times = {rows_of(shape)[0]: us[-1] for shape, us in data["us"].items()}
    return sum(times[min(m for m in times if m >= n - j)] for j in range(0, n, b))


@cache
def way(B, m, b=16, target="sm_90a"):
    """The kernel that factors B panels m x b: panel_kernel, together_kernel or column_kernel."""
    from qrlib.launches import launches

    return launches("s05_panel", B, m, b, target=target)[-1].config.name


def trips(B, m, b=16):
    """How often B panels m x b pass through device memory, V among it: three, or with each column.

    By launches: read for its largest entries, then in and out b + 1 times, and V out.
    """
    return 2 * b + 4 if way(B, m, b) == "column_kernel" else 3


def bytes_time(m, B, device, b=16):
    """Microseconds that the bytes of B panels take, a column, at the bandwidth seen on a device.

    Of panels that go by launches what passes from one to the next, the sums, is left out.
    """
    moved = 4 * B * (trips(B, m, b) * m * b + b + b * b)
    return 1e6 * moved / DEVICES[device].measured["bandwidth"].value / b


def latency_plot(data):
    """Microseconds a column against the rows of a panel, alone and in a batch; and of its bytes."""
    times, device = per_column(data), data["gpu"]
    few, many = data["batch"][0], data["batch"][-1]
    ends = [times[few][0], times[few][-1]]
    alt = (
        f"Microseconds a column of a panel, {data['kind']} on {device}, against its rows, both "
        f"axes logarithmic. {few} matrix: {ends[0][1]:.2f} at {ends[0][0]} rows, {ends[1][1]:.2f} "
        f"at {ends[1][0]}. {many} matrices: {times[many][0][1]:.2f} and {times[many][-1][1]:.2f}. "
        f"The bytes of {few}: {bytes_time(ends[1][0], few, device):.2g} at most; of {many}: "
        f"{bytes_time(ends[1][0], many, device):.2g} at most."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.6))
        for B, shade, dash in ((few, "blue", "-"), (many, "orange", "--")):
            rows, us = zip(*times[B])
            name = "one panel" if B == 1 else f"{B} panels"
            axes.plot(rows, us, color=color[shade], ls=dash, marker="o", label=name)
            moved = [bytes_time(m, B, device) for m in rows]
            axes.plot(rows, moved, color=color[shade], ls=":", label=f"bytes of {name}")
        axes.set(xscale="log", yscale="log", xlabel="rows of the panel")
        axes.set(ylabel="\u00b5s a column")
        axes.set_xticks(rows, [str(m) for m in rows])
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)


def inside_the_loop(artifact):
    """[(axis, operands)] of every reduction in the loop over the columns, as the TTGIR has it."""
    loop = re.search(r"scf\.for .*?scf\.yield", artifact.ttgir, re.DOTALL)[0]
    found = re.findall(r'"tt\.reduce"\(([^)]*)\) <\{axis = (\d)', loop)
    return [(int(axis), len(operands.split(","))) for operands, axis in found]


def compiled(rows, warps, target="sm_90a"):
    """The kernel for a panel in registers, a loop over its columns, with so many rows and warps."""
    from qrlib.compilelab import compile_config
    from qrlib.launches import launches

    config = launches("s05_panel", 1, rows, 16, target=target)[0].config
    constants = {**config.constexprs, "BM": rows, "UNROLL": False}
    return compile_config(
        replace(config, constexprs=constants, options={"num_warps": warps}), target
    )
