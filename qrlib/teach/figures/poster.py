"""The whole ladder on one page: a rung is a stage, its idea, a small picture of it, and its time.

`poster` draws it, wide for paper and a desk or narrow for a telephone; `Both` is for a page, which
shows the one that fits. Ideas are the stages' own docstrings, times those of the stored ladder.
"""

import math
import textwrap

import numpy as np

from qrlib.bench import results
from qrlib.stages import STAGES
from qrlib.stages.s01_mirror import larfg
from qrlib.teach.exercises.core import NUMBERS
from qrlib.teach.figures.ladder import DATA, duration, idea
from qrlib.teach.svg import Figure, ink, theme_css

# a picture is drawn into a box of this size
W, H = 88, 60


def _mirror(fig, x, y):
    """An arrow, the mirror, and the image on the axis: what larfg does with two numbers."""
    a = np.array([0.55, 0.75])
    beta, v, _ = larfg(a)
    unit, ox, oy = 34, x + 44, y + 44
    # the mirror is square to v
    along = np.array([v[1], -1.0]) / np.hypot(v[1], 1.0) * math.copysign(1, -v[1])
    fig.line(x + 4, oy, x + W - 4, oy, color="faint")
    for end in (1.15, -0.4):
        fig.line(ox, oy, ox + end * unit * along[0], oy + end * unit * -along[1], width=3)
    fig.arrow(ox, oy, ox + unit * a[0], oy - unit * a[1], color="blue", width=2.5)
    fig.arrow(ox, oy, ox + unit * beta, oy, color="green", width=2.5)


def _batch(fig, x, y):
    """Sheets of a batch, the same column in each."""
    for k in (2, 1, 0):
        left, top = x + 10 + 9 * k, y + 18 - 7 * k
        fig.rect(left, top, 48, 36, fill="paper", width=1.2)
        fig.rect(left + 12, top + 9, 7, 27, color="orange", fill="orange", fill_opacity=0.35)


def _staircase(fig, x, y, step, tint=0.35):
    """A matrix whose panel is the columns from `step`: done, panel, what lies to the right."""
    fig.rect(x, y, 52, 52, width=1.2)
    fig.rect(x, y, step, 52, color="none", fill="muted", fill_opacity=0.25)
    fig.rect(x + step, y + step, 13, 52 - step, color="orange", fill="orange", fill_opacity=tint)
    rest = 39 - step
    fig.rect(x + step + 13, y + step, rest, 52 - step, color="blue", fill="blue", fill_opacity=0.2)


def _panels(fig, x, y):
    """A panel, and one arrow for all that lies to its right."""
    _staircase(fig, x + 18, y + 4, 13)
    fig.arrow(x + 40, y + 38, x + 66, y + 38, color="ink", width=2, head=7)


def _halves(fig, x, y):
    """The tree of a panel that is halved until one column is left."""
    for depth in range(4):
        width = 80 / 2**depth
        for k in range(2**depth):
            left = x + 4 + k * width
            look = {"color": "orange", "fill": "orange", "fill_opacity": 0.12 + 0.1 * depth}
            fig.rect(left + 1, y + 3 + 14 * depth, width - 2, 11, width=1, **look)


def _chip(fig, x, y):
    """A chip: a box with pins."""
    fig.rect(x + 18, y + 6, 52, 48, r=4, width=2)
    for k in range(4):
        for left in (x + 12, x + 70):
            fig.line(left, y + 14 + 11 * k, left + 6, y + 14 + 11 * k, color="muted")


def _on_chip(fig, x, y):
    """A panel inside a chip; one way in, one way out."""
    _chip(fig, x, y)
    fig.rect(x + 37, y + 12, 14, 36, color="orange", fill="orange", fill_opacity=0.35)
    fig.arrow(x, y + 22, x + 34, y + 22, color="blue", head=7)
    fig.arrow(x + 54, y + 40, x + W, y + 40, color="green", head=7)


def _one_launch(fig, x, y):
    """Three products in one frame."""
    fig.rect(x + 1, y + 2, W - 2, 56, r=6, color="green", dash=(4, 3))
    rows = ("*W* = *V*\u1d40*C*", "*Z* = *T*\u1d40*W*", "*C* \u2212= *VZ*")
    for k, words in enumerate(rows):
        fig.text(x + W / 2, y + 13 + 17 * k, words, size=13)


def _whole(fig, x, y):
    """Many small chips, a matrix in each."""
    for i in range(2):
        for j in range(3):
            left, top = x + 4 + 28 * j, y + 4 + 28 * i
            fig.rect(left, top, 24, 24, r=3, width=1.5)
            corners = ((left + 5, top + 5), (left + 19, top + 5), (left + 19, top + 19))
            fig.add("polygon", points=[c for p in corners for c in p], fill=ink("blue"))


def _gram(fig, x, y):
    """A tall panel, an arrow to a small square, the triangle that is its root."""
    fig.rect(x + 4, y + 3, 15, 54, color="orange", fill="orange", fill_opacity=0.35)
    fig.arrow(x + 21, y + 30, x + 34, y + 30, head=6)
    fig.rect(x + 36, y + 22, 16, 16, color="pink", fill="pink", fill_opacity=0.35)
    fig.arrow(x + 54, y + 30, x + 66, y + 30, head=6)
    fig.add("polygon", points=(x + 68, y + 22, x + 84, y + 22, x + 84, y + 38), fill=ink("blue"))


def _routes(fig, x, y):
    """Three matrices, each with as many products as it needs."""
    for row, count in enumerate((3, 2, 1)):
        top = y + 4 + 19 * row
        fig.rect(x + 4, top, 14, 14, color="blue", fill="blue", fill_opacity=0.15 + 0.2 * row)
        fig.arrow(x + 21, top + 7, x + 34, top + 7, color="muted", head=6)
        for k in range(count):
            fig.text(x + 44 + 17 * k, top + 7, "\u00d7", size=17, color="orange", bold=True)


def _sizes(fig, x, y):
    """A door, and behind it matrices of growing size, a kernel for each."""
    fig.rect(x + 3, y + 10, 18, 46, width=2)
    fig.circle(x + 17, y + 34, 1.6, fill="ink")
    fig.line(x + 21, y + 33, x + 28, y + 33, color="muted")
    left = x + 29
    colors = ("green", "blue", "orange", "pink")
    for size, color in zip((6, 10, 15, 21), colors):
        fig.rect(left, y + 33 - size / 2, size, size, color=color, fill=color, fill_opacity=0.3)
        left += size + 2


PICTURES = dict(
    zip(
        STAGES,
        (_mirror, _batch, _panels, _halves, _on_chip, _one_launch, _whole, _gram, _routes, _sizes),
        strict=True,
    )
)


def measured(data=DATA):
    """(Results, {stage: its row}): a stage as it is fastest, replayed or started from Python."""
    stored = results.load(data)
    found = {}
    for row in stored.rows:
        if row["precision"] == "fp32" and row["median_us"]:
            best = found.setdefault(row["stage"], row)
            if row["median_us"] < best["median_us"]:
                found[row["stage"]] = row
    return stored, found


def _said(row):
    """The time of a row in words, or that there is none."""
    if row is None:
        return "not measured on this case"
    words = duration(row["median_us"])
    return f"{words}, {results.short(row['speedup'], 3)}x" if row["stage"] != "torch" else words


def poster(wide=True, data=DATA):
    """The ladder from torch.geqrf at its foot to the last stage; a bar is a time, on a log axis."""
    stored, found = measured(data)
    (case,) = dict.fromkeys(map(results.words, stored.rows))
    top, rung = 84, 84 if wide else 122
    width = 860 if wide else 440
    text_x, text_width = 142, 44 if wide else 36
    left, right = (490, width - 30) if wide else (142, width - 30)
    us = [row["median_us"] for row in found.values()]
    low, high = math.floor(math.log10(min(us))), math.ceil(math.log10(max(us)))
    ground = top + rung * len(STAGES)
    foot = textwrap.wrap(
        # given: the scale of the axis
        f"Times of a batch, {case}, {stored.where()}, each passed its certificate; replayed as a "
        "CUDA graph where that is faster. From line to line a time grows tenfold.",
        118 if wide else 56,
    )
    fig = Figure(
        width,
        ground + 74 + 16 * len(foot),
        f"A poster of the ladder, from the foot up. torch.geqrf: {_said(found.get('torch'))}. "
        + " ".join(
            f"Stage {k}, chapter {NUMBERS[name]}: {idea(name)[0]}; {_said(found.get(name))}."
            for k, name in enumerate(STAGES, 1)
        )
        + f" Times of a batch, {case}, {stored.where()}.",
    )
    fig.rect(0, 0, width, fig.height, color="none", fill="paper")
    fig.text(width / 2, 24, "From Mirrors to Tensor Cores", size=22 if wide else 19, bold=True)
    fig.text(width / 2, 52, "one idea a rung; climb from the foot", size=14, color="muted")

    def reach(us):
        return (right - left) * (math.log10(us) - low) / (high - low)

    def bar(row, y, color):
        if row is None:
            fig.text(left, y + 6, _said(row), color="muted", size=13, anchor="start", halo=True)
            return
        fig.rect(
            left, y + 10, reach(row["median_us"]), 12, color=color, fill=color, fill_opacity=0.35
        )
        fig.text(left, y, _said(row), size=13, anchor="start", halo=True)

    for decade in range(low + 1, high + 1):
        x = left + reach(10**decade)
        # past the words of a narrow rung, which stand above its bar
        for k in range(len(STAGES)):
            y = ground - rung * k
            fig.line(x, y - (rung if wide else 34), x, y, color="faint", width=1)
        fig.line(x, ground, x, ground + 40, color="faint", width=1)
        fig.text(x, ground + 50, duration(10**decade), size=12, color="muted")
    for x in (10, width - 10):
        fig.line(x, top - 12, x, ground + 40, color="muted", width=5)
    for k, name in enumerate(STAGES):
        y = ground - rung * (k + 1)
        fig.line(10, y + rung, width - 10, y + rung, color="muted", width=2.5)
        with fig.group():
            PICTURES[name](fig, 30, y + 12)
        fig.text(text_x, y + 18, f"{k + 1}  {name}", size=14, anchor="start", bold=True)
        for row, words in enumerate(textwrap.wrap(idea(name)[0], text_width)):
            look = {"size": 13, "anchor": "start", "color": "muted"}
            fig.text(text_x, y + 36 + 16 * row, words, **look)
        bar(found.get(name), y + (30 if wide else 92), "blue")
    fig.text(30, ground + 22, "torch.geqrf", size=14, anchor="start", bold=True)
    bar(found.get("torch"), ground + 12, "muted")
    for k, line in enumerate(foot):
        look = {"size": 12, "anchor": "start", "color": "muted"}
        fig.text(16, ground + 78 + 16 * k, line, **look)
    return fig


class Both:
    """For a page: the wide poster where there is room, the narrow one where there is not."""

    def _repr_html_(self):
        return (
            f"<style>{theme_css()}</style><div class='qr-poster'>"
            f"<div class='qr-wide'>{poster(True).body()}</div>"
            f"<div class='qr-narrow'>{poster(False).body()}</div></div>"
        )
