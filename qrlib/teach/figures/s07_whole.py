"""The figures of chapter "A small matrix is one program": whatever they say is asked of the stage.

Launches and the sizes of tiles are those that stage 7 would make (`launches`), loads and stores
those of the interpreter (`tracer`), registers those of the compiler, times those of files.
"""

import math
import textwrap
from collections import Counter
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from qrlib import model
from qrlib.bench import results
from qrlib.devices import DEVICES
from qrlib.launches import device_of, launches
from qrlib.stages import stage as stage_of
from qrlib.teach.figures.ladder import CASES as ALL_CASES
from qrlib.teach.figures.ladder import DATA, duration
from qrlib.teach.figures.s03_blocked import columns_words
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure


def percent(share):
    """A share in whole per cent."""
    return f"{100 * share:.0f} %"


# stage 7 wherever it can, and not only where it pays
SEVEN = "s07_whole"
WHOLE = {"whole": True}


def kernels(stage, B, n, target="sm_90a"):
    """The names of the kernels that a stage starts for a batch, in order."""
    started = launches(stage, B, n, n, target=target, **WHOLE if stage == SEVEN else {})
    return [launch.config.name.removesuffix("_kernel") for launch in started]


class Panel(NamedTuple):
    """A panel of stage 7: p, its first column; nb, how many; rows left; tile, the rows it is held
    in; right, how many columns are right of it."""

    p: int
    nb: int
    rows: int
    tile: int
    right: int


def whole(m, n):
    """The constants of the kernel that has a matrix m x n as one program.

    Raises:
        ValueError: there is none; the matrix is taken by another kernel.
    """
    started = launches(SEVEN, 1, m, n, target="sm_90a", **WHOLE)
    if [launch.config.name for launch in started] != ["whole_kernel"]:
        raise ValueError(f"{m} x {n} is not one program of whole_kernel; choose another size")
    return started[0].config.constexprs


def panels(m, n):
    """[Panel], in order."""
    shape = whole(m, n)
    least = shape["BM"] >> (shape["LEVELS"] - 1)
    k, b = min(m, n), shape["BN"]
    found = []
    for p in range(0, k, b):
        nb, tile = min(b, k - p), max(least, 2 ** (m - p - 1).bit_length())
        found.append(Panel(p, nb, m - p, tile, n - p - nb))
    return found


def held(m, n, halved=True):
    """Rows of tiles that all columns go through together, with tiles that are halved or not."""
    walked = panels(m, n)
    return sum(each.nb * (each.tile if halved else walked[0].tile) for each in walked)


def needed(m, n):
    """The same if a tile had just the rows that are left."""
    return sum(each.nb * each.rows for each in panels(m, n))


# what the lengths of the boxes are does not matter, only that they differ
_LENGTHS = (0.62, 0.94, 0.75, 0.84)


def timeline(n=32):
    """Some matrices of a batch: the launches of stage 6, each waiting for all, and that of stage 7.

    The number of launches and their names are the stage's own, the lengths are made up.
    """
    names, batch = kernels("s06_update", 20, n), len(_LENGTHS)
    row, left, right, top = 24, 8, 432, 56
    slot = (right - left) / len(names)
    second = top + batch * row + 66
    alt = (
        f"{batch} matrices of a batch, a row each, time to the right. Above, stage 6: "
        f"{len(names)} launches, {', '.join(names)}; none begins before the one before has ended "
        "for all matrices. Below, stage 7: one launch, in which each matrix goes on by itself; "
        "the last one ends earlier than above."
    )
    fig = Figure(440, second + batch * row + 34, alt)
    fig.text(left, 14, f"stage 6: {len(names)} launches", size=14, anchor="start", bold=True)
    for k, name in enumerate(names):
        x = left + k * slot
        fig.line(x, top - 8, x, top + batch * row + 4, width=3)
        fig.text(x + slot / 2, top - 16, name, size=12, color="muted")
        for b in range(batch):
            length = slot * _LENGTHS[(b + k) % batch] - 6
            box = (x + 4, top + b * row + 3, length, row - 6)
            fig.rect(*box, r=3, color="blue", width=1, fill="blue", fill_opacity=0.3)
    fig.line(right, top - 8, right, top + batch * row + 4, width=1.5, dash=(3, 3))
    fig.text(left, second - 38, "stage 7: one launch", size=14, anchor="start", bold=True)
    fig.line(left, second - 8, left, second + batch * row + 4, width=3)
    ends = []
    for b in range(batch):
        x = left + 4
        for k in range(len(names)):
            length = slot * _LENGTHS[(b + k) % batch] - 6
            box = (x, second + b * row + 3, length, row - 6)
            fig.rect(*box, r=3, color="orange", width=1, fill="orange", fill_opacity=0.3)
            x += length
        ends.append(x)
    fig.line(max(ends), second - 8, max(ends), second + batch * row + 4, width=1.5, dash=(3, 3))
    fig.arrow(right - 2, second - 18, max(ends) + 4, second - 18, color="green")
    fig.text((right + max(ends)) / 2, second - 32, "won", size=13, color="green")
    fig.text(left, second + batch * row + 20, "a thick line is a launch", size=13, anchor="start")
    return fig


def walk_words(m, n, k):
    """What happens at place k of the program: scale, the panels one by one, unscale."""
    walked = panels(m, n)
    if k == 0:
        return (
            f"A, {m} \u00d7 {n}, is read. Each column is multiplied by a power of two that brings "
            "it near 1, and written to H."
        )
    if k > len(walked):
        return "R is read once more, its columns are brought back to their scale. The program ends."
    p, nb, rows, tile, right = walked[k - 1]
    words = (
        f"Panel {k} of {len(walked)}: {columns_words(p, p + nb)}. {rows} rows are left, the tile "
        f"has {tile}: {percent(rows / tile)} of it is in use."
    )
    if k > 1 and tile < walked[k - 2].tile:
        words += " It has just been halved."
    if right:
        words += f" Then {columns_words(n - right, n)} are updated."
    return words


def walk_frame(m, n, k):
    """The matrix at place k: the register tile over its panel, what is updated, and all tiles."""
    walked = panels(m, n)
    now = walked[k - 1] if 0 < k <= len(walked) else None
    done = walked[: max(k - 1, 0)]
    tall = max(each.p + each.tile for each in walked)
    unit = min(330 / tall, 230 / n)
    left, top = 14, 40
    words = left + n * unit + 26
    width, bars, longest = 440, words + 70, max(each.tile for each in walked)
    scale = (width - 14 - bars) / longest
    height = max(tall * unit, 22 * len(walked) + 6)
    alt = (
        f"A matrix {m} by {n} with the tile of its panel, place {k} of {len(walked) + 1}. Rows in "
        f"the tiles so far: {', '.join(str(each.tile) for each in walked[:k]) or 'none'}. "
        f"{walk_words(m, n, k)}"
    )
    fig = Figure(width, top + height + 26, alt)
    fig.text(left + n * unit / 2, 14, "*H*", size=15, bold=True)
    fig.text(words, 14, "rows left / in the tile", size=13, anchor="start")
    colour = "green" if k in (0, len(walked) + 1) else "muted"
    box = (left, top, n * unit, m * unit)
    fig.rect(*box, color=colour, width=1.5, fill=colour, fill_opacity=0.12)
    for each in done:
        x, y, wide = left + each.p * unit, top + each.p * unit, each.nb * unit
        fig.rect(x, top, wide, y - top + wide, color="none", fill="blue", fill_opacity=0.35)
        below = top + m * unit - y - wide
        if below > 0:
            fig.rect(x, y + wide, wide, below, color="none", fill="orange", fill_opacity=0.35)
    if now:
        x, y, wide = left + now.p * unit, top + now.p * unit, now.nb * unit
        rows = now.rows * unit
        if now.p:
            fig.rect(x, top, wide, y - top, color="none", fill="blue", fill_opacity=0.35)
        fig.rect(x, y, wide, rows, color="none", fill="pink", fill_opacity=0.5)
        if now.right:
            rest = now.right * unit
            at = (left + (n - now.right) * unit, y, rest, rows)
            fig.rect(*at, color="green", width=2.5, dash=(9, 4))
            fig.rect(at[0], top, rest, y - top, color="none", fill="blue", fill_opacity=0.35)
        fig.rect(x - 1, y - 1, wide + 2, now.tile * unit + 2, r=3, color="pink", width=3)
    for q, each in enumerate(walked):
        y = top + 22 * q
        here = each is now
        color = "pink" if here else "ink" if q < k else "faint"
        fig.rect(bars, y, each.tile * scale, 15, r=2, color=color, width=3 if here else 1.2)
        if q < k:
            fig.rect(bars, y, each.rows * scale, 15, color="none", fill=color, fill_opacity=0.3)
            said = f"{each.rows} / {each.tile}"
            fig.text(bars - 6, y + 8, said, size=12.5, anchor="end", bold=here)
    return fig


def walk_stepper(m=176, n=176):
    """One program from its first load to its last store."""
    last = len(panels(m, n)) + 1
    frames = [
        Frame(
            walk_frame(m, n, k),
            walk_words(m, n, k),
            "scale" if k == 0 else "unscale" if k == last else f"panel {k}",
        )
        for k in range(last + 1)
    ]
    return Stepper(frames, "Step", f"One program factors a matrix {m} by {n}.", lines=4)


def barrier():
    """Four warps that store and load again: without a barrier, and with one."""
    stores = (0.26, 0.36, 0.62, 0.31)
    row, left, top, wide = 25, 66, 46, 366
    second = top + 4 * row + 58
    alt = (
        "Four warps of one program, a row each, time to the right; each stores its part of a tile "
        "and then loads parts that others have stored. Above, without a barrier: warp 0 loads from "
        "the part of warp 2 before warp 2 has stored it. Below, with a barrier: nobody loads "
        "before the last has stored."
    )
    fig = Figure(440, second + 4 * row + 14, alt)
    late = stores.index(max(stores))
    for y, together, words in (
        (top, False, "no barrier"),
        (second, True, "with a barrier"),
    ):
        fig.text(8, y - 30, words, size=14, anchor="start", bold=True)
        meet = left + wide * max(stores) + 8
        for w, share in enumerate(stores):
            at = y + w * row
            fig.text(8, at + row / 2, f"warp {w}", size=13, anchor="start")
            stored = left + wide * share
            look = {"r": 3, "width": 1.2, "fill_opacity": 0.3}
            fig.rect(left, at + 4, stored - left, row - 8, color="blue", fill="blue", **look)
            fig.text((left + stored) / 2, at + row / 2, "store", size=12)
            load = meet + 8 if together else stored + 8
            fig.rect(load, at + 4, 86, row - 8, color="green", fill="green", **look)
            fig.text(load + 43, at + row / 2, "load", size=12)
        if together:
            fig.line(meet, y - 6, meet, y + 4 * row + 4, color="ink", width=3)
            fig.text(meet, y - 18, "all are here", size=13)
        else:
            x = left + wide * stores[0] + 50
            fig.arrow(x, y + row - 3, x, y + (late + 0.5) * row, color="pink", width=3)
            fig.text(x + 8, y - 12, "what warp 2 has not stored yet", size=13, color="pink")
    return fig


def without_barriers(n):
    """(Certificate, [fault]) of stage 7 for one matrix, all its barriers left out."""
    from triton.runtime.interpreter import interpreter_builder

    from qrlib.certificate import certify
    from qrlib.tracer import trace

    A = torch.randn(1, n, n, generator=torch.Generator().manual_seed(0))
    with trace(check=False, A=A) as t:
        interpreter_builder.create_barrier = lambda: None
        H, tau = stage_of(SEVEN).geqrf(A, **WHOLE)
    return certify(A, H, tau), t.faults


@cache
def reads(stage, n):
    """How often a stage loads each entry of H, as it goes: [n, n]. Traced in the interpreter."""
    from qrlib.tracer import trace

    A = torch.randn(1, n, n, generator=torch.Generator().manual_seed(0))
    with trace(A=A) as t:
        stage_of(stage).geqrf(A, **WHOLE if stage == SEVEN else {})
    return t.map("H")[0]


def in_blocks(counts, b):
    """The mean of every b x b block."""
    n = counts.shape[0] // b
    return counts[: n * b, : n * b].reshape(n, b, n, b).mean((1, 3))


def reads_frame(stage, n, b=16):
    """The entries of H in blocks, and how often each block was loaded."""
    counts = in_blocks(reads(stage, n), b)
    worst = max(in_blocks(reads(each, n), b).max() for each in ("s06_update", SEVEN))
    mean, most = reads(stage, n).mean(), counts.max()
    alt = (
        f"A matrix of {n} by {n} in blocks of {b}, with how often {stage} loads each: "
        f"{counts[0, 0]:.0f} times at the top left, {most:.0f} times at most, {mean:.1f} on "
        "average; the further down and to the right, the more often."
    )
    blocks = len(counts)
    cell = 396 / blocks
    fig = Figure(412, 30 + blocks * cell + 8, alt)
    fig.text(206, 14, f"{stage}: {mean:.1f} times on average", size=14, bold=True)
    for i, j in np.ndindex(blocks, blocks):
        x, y = 8 + j * cell, 30 + i * cell
        tint = 0.5 * counts[i, j] / worst
        box = (x + 1, y + 1, cell - 2, cell - 2)
        fig.rect(*box, r=3, color="orange", width=1, fill="orange", fill_opacity=tint)
        fig.text(x + cell / 2, y + cell / 2, f"{counts[i, j]:.0f}", size=13)
    return fig


def reads_stepper(n=176):
    """How often each part of the matrix is loaded, by stage 6 and by stage 7."""
    frames = []
    for stage in ("s06_update", SEVEN):
        counts = reads(stage, n)
        many = len(kernels(stage, 1, n))
        words = f"{many} launches" if many > 1 else "One launch"
        said = f"{words}; H is loaded {counts.mean():.1f} times over, its last entry "
        frames.append(Frame(reads_frame(stage, n), f"{said}{counts[-1, -1]} times.", stage))
    return Stepper(frames, "Stage", "How often a stage loads the parts of a matrix.", lines=2)


class Room(NamedTuple):
    """What an SM has room for. places: programs at a time; bound: what allows no more; registers
    a thread; warps."""

    places: int
    bound: str
    registers: int
    warps: int


@cache
def room(n, target="sm_90a"):
    """The Room of stage 7 for n x n matrices, from the compiler."""
    from qrlib.compilelab import compile_stage

    artifacts = compile_stage(SEVEN, 1, n, n, target=target, **WHOLE)
    if len(artifacts) != 1:
        raise ValueError(f"stage 7 has no single kernel for n = {n}; choose a smaller one")
    a = artifacts[0]
    return Room(a.programs, a.bound, a.registers, a.num_warps)


def waves(programs, sms, places):
    """How often the places of a chip are filled until all programs have had one."""
    return -(-programs // (sms * places))


def in_last_wave(programs, sms, places):
    """How many places of the last wave are taken."""
    return programs - (waves(programs, sms, places) - 1) * sms * places


def chip_words(B, n, target):
    """A batch on a chip, in words."""
    device, own = device_of(target), room(n, target)
    total, last = (f(B, device.sms, own.places) for f in (waves, in_last_wave))
    many = "1 program" if own.places == 1 else f"{own.places} programs"
    words = f"{B} matrices of {n} \u00d7 {n}; an SM of {device.name} has room for {many}. "
    taken = f"{last} of {device.sms * own.places} places"
    if total == 1:
        return words + f"One wave, {taken} are taken."
    return words + f"{total} waves; in the last one {taken} are taken."


def chip_frame(B, n, target):
    """The SMs of a chip, and how many programs of a batch each of them carries out."""
    device = device_of(target)
    full, rest = divmod(B, device.sms)
    each = [full + (s < rest) for s in range(device.sms)]
    across, cell = 14, 29
    down = -(-max(d.sms for d in map(device_of, ("sm_90a", "sm_100a"))) // across)
    alt = (
        f"The {device.sms} SMs of {device.name} with the number of programs that each carries out: "
        f"{each.count(0)} none, "
        + ", ".join(f"{many} {k}" for k, many in sorted(Counter(filter(None, each)).items()))
        + f". {chip_words(B, n, target)}"
    )
    fig = Figure(across * cell + 16, 34 + down * cell + 6, alt)
    head = f"{device.name}: {B} matrices of {n} \u00d7 {n}"
    fig.text(8, 14, head, size=14, anchor="start", bold=True)
    for s, many in enumerate(each):
        x, y = 8 + s % across * cell, 30 + s // across * cell
        color = "orange" if many else "faint"
        look = {"fill": color, "fill_opacity": 0.5 * many / max(each)} if many else {}
        fig.rect(x + 1, y + 1, cell - 2, cell - 2, r=3, color=color, width=1.2, **look)
        if many:
            bold = full > 0 and many > full
            fig.text(x + cell / 2, y + cell / 2, str(many), size=13, bold=bold)
    return fig


CASES = (
    (20, 32, "sm_90a"),
    (40, 176, "sm_90a"),
    (640, 512, "sm_90a"),
    (640, 512, "sm_100a"),
)


def chip_stepper():
    """Batches on a chip: who works, how often, and who does not."""
    frames = [
        Frame(chip_frame(*case), chip_words(*case), f"{case[0]} x {case[1]} {case[2]}")
        for case in CASES
    ]
    return Stepper(frames, "Batch", "Programs of a batch, given to the SMs of a chip.", lines=3)


def measured(stage, B, n):
    """Seconds that a stage takes for a dense batch of the ladder, replayed if that is shorter."""
    rows = results.load(DATA).find(stage=stage, batch=B, n=n, family="dense")
    return min(row["median_us"] for row in rows) / 1e6


def kept_words(measured=None):
    """Which cases of a measurement, that of the ladder, stage 7 keeps to itself, as a sentence."""
    measured = results.load(DATA) if measured is None else measured
    pays = stage_of(SEVEN).pays
    cases = list(dict.fromkeys((row["batch"], row["n"]) for row in measured.rows))
    kept = [f"{B} \u00d7 {n}" for B, n in cases if pays(B, n, n, False)]
    own = ", ".join(kept)
    if not kept:
        shown = ", ".join(f"{B} \u00d7 {n}" for B, n in cases)
        return (
            f"What is timed here, {shown}, is not small: stage 7 hands it over to stage 6, and its "
            "bar says nothing of its own kernels."
        )
    if len(kept) == len(cases):
        return f"All of these batches, {own}, are small enough for stage 7 to keep them."
    return f"Of these batches stage 7 keeps {own} to itself; the others it hands to stage 6."


SMALL = ((20, 32), (40, 176), (40, 352))
H200 = DEVICES["H200"]


class Pencil(NamedTuple):
    """Predicted seconds for a few matrices: the chain of columns, starts, arithmetic on one SM."""

    columns: float
    launches: float
    arithmetic: float


def pencil(stage, B, n, replayed):
    """The prediction for stage 6 or 7 where chips are nearly empty: a Pencil, for an H200.

    What stage 7 hands over is predicted as stage 6, whose updates are shared out: no arithmetic.
    """
    alone = stage == SEVEN and stage_of(SEVEN).pays(B, n, n, replayed)
    starts = len(kernels(stage if alone else "s06_update", B, n))
    seen = {name: each.value for name, each in H200.measured.items()}
    return Pencil(
        n * seen["column"],
        starts * seen["graph node" if replayed else "launch"],
        model.geqr2(n, n).flops * H200.sms / seen["fp32"] if alone else 0.0,
    )


def strips(n):
    """How many strips of columns one program updates, one after another, in a matrix n x n."""
    own = whole(n, n)
    return sum(-(-panel.right // own["BC"]) for panel in panels(n, n))


def took(stage, B, n, mode, data=ALL_CASES):
    """Seconds that a stage took for the first dense case of a size; mode "eager" or "replay"."""
    case = {"batch": B, "n": n, "family": "dense", "precision": "fp32"}
    rows = results.load(data).find(stage=stage, mode=mode, **case)
    return rows[0]["median_us"] / 1e6


RUNGS = {"torch": ("torch.geqrf", "muted"), "s06_update": ("stage 6", "blue")}
RUNGS[SEVEN] = ("stage 7", "orange")


def small_times(data=ALL_CASES):
    """{(B, n, stage): {mode: (measured, predicted)}} of the small cases, in seconds.

    torch.geqrf is not replayed, and not predicted: None.
    """
    found = {}
    for B, n in SMALL:
        for stage in RUNGS:
            modes = ("eager",) if stage == "torch" else ("eager", "replay")
            found[B, n, stage] = {
                mode: (
                    took(stage, B, n, mode, data),
                    None if stage == "torch" else sum(pencil(stage, B, n, mode == "replay")),
                )
                for mode in modes
            }
    return found


def small_chart(data=ALL_CASES):
    """Times of the small cases, started and replayed, and a mark where the pencil had them."""
    times, where = small_times(data), results.load(data).where()
    said = []
    for (B, n, stage), modes in times.items():
        each = "; ".join(
            f"{mode} {duration(1e6 * seconds)}"
            + (f", predicted {duration(1e6 * predicted)}" if predicted else "")
            for mode, (seconds, predicted) in modes.items()
        )
        said.append(f"{B} x {n}, {RUNGS[stage][0]}: {each}")
    every = [seconds for modes in times.values() for pair in modes.values() for seconds in pair]
    micro = [1e6 * seconds for seconds in every if seconds]
    low, high = math.floor(math.log10(min(micro))), math.ceil(math.log10(max(micro)))
    left, right, top, row, between = 98, 372, 72, 34, 26
    bottom = top + len(times) * row + len(SMALL) * between
    foot = textwrap.wrap(where, 62)
    alt = f"Bars on a logarithmic axis, {where}. {'. '.join(said)}."
    fig = Figure(440, bottom + 30 + 15 * len(foot), alt, max_width=520)

    def x(seconds):
        return left + (right - left) * (math.log10(1e6 * seconds) - low) / (high - low)

    fig.rect(8, 8, 16, 11, color="blue", fill="blue", fill_opacity=0.45)
    fig.text(30, 14, "started from Python", size=13, anchor="start")
    fig.rect(176, 8, 16, 11, color="blue", fill="paper")
    fig.text(198, 14, "replayed", size=13, anchor="start")
    fig.line(278, 6, 278, 22, color="ink", width=3)
    fig.text(286, 14, "predicted", size=13, anchor="start")
    for decade in range(low, high + 1):
        at = x(10**decade / 1e6)
        fig.line(at, 34, at, bottom, color="faint", width=1)
        fig.text(at, bottom + 12, duration(10**decade), size=12, color="muted")
    y = top - between
    for (B, n, stage), modes in times.items():
        name, color = RUNGS[stage]
        if stage == "torch":
            y += between
            words = f"{B} matrices of {n} \u00d7 {n}"
            fig.text(8, y - 9, words, size=13, anchor="start", halo=True, bold=True)
        fig.text(left - 8, y + 15, name, size=13, anchor="end")
        for down, (mode, (seconds, predicted)) in zip((3, 17), modes.items()):
            filled = {"fill": color, "fill_opacity": 0.45} if mode == "eager" else {"fill": "paper"}
            fig.rect(left, y + down, x(seconds) - left, 11, color=color, width=1.5, **filled)
            end = x(seconds)
            if predicted:
                mark = x(predicted)
                fig.line(mark, y + down - 1, mark, y + down + 12, color="ink", width=3)
                end = max(end, mark)
            words = duration(1e6 * seconds)
            fig.text(end + 7, y + down + 6, words, size=12, anchor="start", halo=True)
        y += row
    for k, line in enumerate(foot):
        fig.text(8, bottom + 34 + 15 * k, line, size=12, anchor="start", color="muted")
    return fig


def cases_table(data=ALL_CASES, stage="s07_whole"):
    """All cases as a markdown table: torch.geqrf, a stage, and how much faster it is replayed."""
    found = results.load(data)
    lines = [
        "| matrices | torch.geqrf | from Python | replayed | factor |",
        "|---|--:|--:|--:|--:|",
    ]

    def line(name, baseline, eager, replay):
        times = (duration(each["median_us"]) for each in (baseline, eager, replay))
        return f"| {name} | {' | '.join(times)} | {results.short(replay['speedup'], 3)} |"

    def three(rows):
        by = {(each["stage"], each["mode"]): each for each in rows}
        return by["torch", "eager"], by[stage, "eager"], by[stage, "replay"]

    for case in dict.fromkeys(map(results.words, found.rows)):
        name = case.replace(" x ", " \u00d7 ").partition(",")[0]
        lines.append(line(name, *three(r for r in found.rows if results.words(r) == case)))
    lines.append(line("**geometric mean**", *three(found.averages())))
    return "\n".join([*lines, "", f"*{found.where()[0].upper()}{found.where()[1:]}.*"])
