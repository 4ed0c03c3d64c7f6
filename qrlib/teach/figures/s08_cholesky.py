"""The figures of the chapter "A chain in one warp": lanes and rows, sums cut off, two streams."""

from collections import Counter
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from qrlib.bench.results import load, short
from qrlib.bench.roles import cost
from qrlib.bench.starts import starts
from qrlib.compilelab import compile_config, families
from qrlib.devices import DEVICES
from qrlib.jit import as_jit
from qrlib.launches import Config, launches
from qrlib.matrices import make
from qrlib.stages import s06_update, s08_cholesky
from qrlib.stages.s03_blocked import geqrf as mirrors
from qrlib.stages.s06_update import N0, NB
from qrlib.streams import Branch
from qrlib.teach.ahead import length, schedule
from qrlib.teach.figures.certify import Table
from qrlib.teach.figures.ladder import CASES, duration
from qrlib.teach.figures.measure import named
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, number

STAGE = "s08_cholesky"
PROFILE = CASES.with_name("profile.json")
ROLES = ("panel", "update", "scaling")
H200 = DEVICES["H200"]
EPS = float(np.finfo(np.float32).eps)

# a block of rows in a warp

# columns of a Hadamard matrix, all of length 2, times R = [[2, 1, 2], [0, 3, 1], [0, 0, 2]]
P43 = np.array([[2.0, 4, 5], [2, -2, 3], [2, 4, 1], [2, -2, -1]])


class Moment(NamedTuple):
    """A block of N rows between two steps.

    z, x: rows that are left, of [G | X] and [I | X^T], the mirror's first. rw, yl: rows that are
    found, of [R | W] and [W^-T | L^T]. j: the mirror, at a moment when its row is there; None when
    rows have moved up.
    """

    z: tuple
    x: tuple
    rw: tuple
    yl: tuple
    j: int | None


def moments(P=P43):
    """[Moment] of a panel [m, N] that is one block, in float64.

    As `_block_row` goes through it, where X is one row behind G.
    """
    N = P.shape[1]
    X, left = P[:N], np.arange(2 * N) < N
    z = [np.concatenate(rows) for rows in zip(P.T @ P, X)]
    x = [np.concatenate(rows) for rows in zip(np.eye(N), X.T)]
    rw, yl = [], []
    found = [Moment(tuple(z), tuple(x), (), (), None)]
    for j in range(N):
        pivot, alpha = z[0][j], z[0][N + j]
        y = -np.copysign(1 / np.sqrt(pivot), alpha)
        scale = 1 / (alpha - pivot * y)
        r = np.tile(z[0][:N] * y, 2)
        row = np.where(left, r, z[0] - r) * (np.arange(2 * N) % N >= j)
        take = row * np.where(left, y, scale)
        divided = x[0] * scale
        below = np.where(np.arange(2 * N) - N > j, divided, np.arange(2 * N) - N == j)
        rw.append(row)
        yl.append(np.where(left, divided, below))
        found.append(Moment(tuple(z), tuple(x), tuple(rw), tuple(yl), j))
        entries = [np.where(left, each[j], each[N + j]) for each in z[1:]]
        z = [each - entry * take for each, entry in zip(z[1:], entries)]
        x = [each - row[N + j + 1 + i] * divided for i, each in enumerate(x[1:])]
        if z:
            found.append(Moment(tuple(z), tuple(x), tuple(rw), tuple(yl), None))
    return found


def moment_words(k, found=None):
    found = moments() if found is None else found
    it = found[k]
    N = len(found[0].z)
    if k == 0:
        return (
            f"{2 * N} lanes, and in each a number of every row. On the left what is left of G, on "
            "the right of the top X of the panel; below, of I and of X\u1d40."
        )
    if it.j is None:
        done = len(it.rw)
        return (
            f"Each row below sends its entry of column {done - 1} to all lanes, takes that much of "
            f"row {done - 1}, and moves up. Row {done} is the first now."
        )
    pivot, alpha = it.z[0][it.j], it.z[0][N + it.j]
    return (
        f"Lane {it.j} sends the pivot {_entry(pivot)} to all lanes, lane {N + it.j} the entry "
        f"{_entry(alpha)}. So r = {_entry(it.rw[-1][it.j])}, w = {_entry(it.rw[-1][N + it.j])}: "
        f"row {it.j} of all four is found."
    )


def _entry(a):
    return number(round(float(a), 2) + 0.0, "{:g}")


BANDS = (
    ("z", "left of *G* | *X*"),
    ("x", "left of *I* | *X*\u1d40"),
    ("rw", "found: *R* | *W*"),
    ("yl", "found: *W*\u207b\u1d40 | *L*\u1d40"),
)


def moment_frame(k, found=None):
    """What the lanes of a warp hold: rows that are left above, rows that are found below."""
    found = moments() if found is None else found
    it, N = found[k], len(found[0].z)
    wide, high, left, top, gap = 54, 25, 66, 40, 28
    width, band = left + 2 * N * wide + 16, N * high + gap
    alt = (
        f"A table of {2 * N} lanes. {len(it.z)} rows are left of G and X, {len(it.rw)} rows are "
        f"found of R and W. {moment_words(k, found)}"
    )
    fig = Figure(width, top + 4 * band - 8, alt, max_width=1.15 * width)
    fig.text(8, 14, "lane", size=13, anchor="start", color="muted")
    for lane in range(2 * N):
        x = left + (lane + 0.5) * wide + 8 * (lane >= N)
        fig.text(x, 14, str(lane), size=13, color="muted")
    for b, (name, words) in enumerate(BANDS):
        y0 = top + b * band + 14
        fig.text(left, y0 - 12, words, size=13, anchor="start")
        rows = getattr(it, name)
        for i in range(N):
            y = y0 + i * high
            # the mirror's row stands first until it is done
            first = 0 if name in ("rw", "yl") else len(it.rw) - (it.j is not None)
            if i < len(rows):
                words = f"row {first + i}"
                fig.text(left - 8, y + high / 2, words, size=12, anchor="end", color="muted")
            for lane in range(2 * N):
                x = left + lane * wide + 8 * (lane >= N)
                value = rows[i][lane] if i < len(rows) else None
                look = _cell_look(name, i, lane, it, N)
                if value is None:
                    fig.rect(x + 1, y + 1, wide - 2, high - 2, r=3, color="faint", width=0.8)
                    continue
                fig.rect(x + 1, y + 1, wide - 2, high - 2, r=3, **look)
                fig.text(x + wide / 2, y + high / 2, _entry(value), size=13)
    return fig


def _cell_look(band, i, lane, it, N):
    """Pink, thick: what all lanes get by a shuffle. Blue, thick: the row that is new."""
    plain = {"color": "muted", "width": 0.8}
    if it.j is None:
        return plain
    j = it.j
    if band == "z" and lane in (j, N + j):
        # the first row sends its pivot now, the others their entry next
        return {"color": "pink", "width": 2.4, "fill": "pink", "fill_opacity": 0.3 if i else 0.5}
    if band in ("rw", "yl") and i == j:
        return {"color": "blue", "width": 2, "fill": "blue", "fill_opacity": 0.2}
    return plain


def rows_stepper():
    """A block of three rows, mirror by mirror, in the lanes of a warp."""
    found = moments()
    frames = [
        Frame(moment_frame(k, found), moment_words(k, found), f"step {k}")
        for k in range(len(found))
    ]
    return Stepper(frames, "Steps", "Rows of a block in the lanes of a warp.", lines=4)


# what the kernels of a panel do


class Part(NamedTuple):
    """A kernel of a panel: programs, bytes, {format: flops}, and steps that wait in it."""

    name: str
    programs: int
    bytes: int
    flops: dict
    steps: int


# one for each column, and for each of a block where all blocks go at once
STEPS = {"eliminate": NB, "judge": N0}


def panel_parts(B, m):
    """[Part] of a panel m x 64 of B matrices by stage 8, in order, if all stand.

    What a kernel reads or writes counts once; products of pairs count as three. Rows are not shared
    out among programs.
    """
    found = []

    def each(run, kernel, args, kwargs):
        given = {p.name: p.default for p in as_jit(kernel).params}
        given |= dict(zip(given, args, strict=False)) | kwargs
        name = kernel.fn.__name__
        moved, flops = cost(name, given)
        name = name.removesuffix("_kernel")
        found.append(Part(name, int(np.prod(kwargs["grid"])), moved, flops, STEPS.get(name, 0)))

    # a shape and no numbers
    H = torch.empty(B, m, NB, device="meta")
    F = s06_update.factors(B, m, "fp16x3", H)[..., :NB]
    tau, T, V = H.new_empty(B, NB), H.new_empty(B, NB, NB), torch.empty_like(H)
    with starts(each):
        s08_cholesky.panel(H, tau, V, T, None, "fp16x3", F, Branch(False))
    return found


def seconds(part, device=H200):
    """(arithmetic, memory) at the rates measured on a device, if all of it were at work."""
    work = sum(flops / device.measured[kind].value for kind, flops in part.flops.items())
    return work, part.bytes / device.measured["bandwidth"].value


# sums that are cut off


def cut_sum(x, y, group=8):
    """x^T y of float32 columns [m, n], as a tensor core may add: groups exactly, totals cut off.

    A model: a total has 24 bits, and what does not fit is dropped. [n], float64.
    """
    products = x.astype(np.float64) * y.astype(np.float64)
    total = np.zeros(products.shape[1])
    for first in range(0, len(products), group):
        total = _cut(total + products[first : first + group].sum(0))
    return total


def _cut(x):
    """Toward zero, to 24 bits."""
    mantissa, e = np.frexp(x)
    return np.ldexp(np.trunc(mantissa * 2.0**24), e - 24)


def float32_sum(x, y):
    """The same, each addition rounded to the nearest float32, in 32 sums that are added up."""
    products = x * y
    sums = np.zeros((32, products.shape[1]), np.float32)
    for first in range(0, len(products), 32):
        rest = products[first : first + 32]
        sums[: len(rest)] += rest
    while len(sums) > 1:
        sums = sums[::2] + sums[1::2]
    return sums[0].astype(np.float64)


class Sums(NamedTuple):
    """v^T v of mirrors: the mean of its relative errors in eps, and their largest size."""

    mean: float
    worst: float


def sums_of(m, how, columns=64, seed=0):
    """Sums of mirrors of m random entries."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((m, columns)).astype(np.float32) / np.float32(m**0.5)
    v[0] = 1
    right = (v.astype(np.float64) ** 2).sum(0)
    off = (how(v, v) - right) / right / EPS
    return Sums(float(off.mean()), float(np.abs(off).max()))


def with_tau(n, how, batch=2):
    """Orthogonality of the n mirrors of a matrix in m*eps, with tau = 2 / how(v, v). Worst."""
    from qrlib.certificate import certify
    from qrlib.compact import unpack_v

    A = torch.from_numpy(make("dense", batch, n))
    H, tau = mirrors(A)
    tau = tau.clone()
    for b, V in enumerate(unpack_v(H).numpy()):
        squares = how(V, V)
        keep = tau[b] != 0
        tau[b] = torch.from_numpy((2 / squares).astype(np.float32)).where(keep, 0)
    return float(certify(A, H, tau).orthogonality.max())


# who goes first

AHEAD = (8, 2048)
# of a pair of panels: made up, the same for all heights
PAIR = 100.0


def lengths(B=AHEAD[0], n=AHEAD[1], pair=PAIR, device=H200):
    """(panels, near, far), us a step: updates take as long as their loads and stores."""
    rate = device.measured["bandwidth"].value / 1e6
    wide = 2 * NB
    panels, near, far = [], [], []
    for j in range(0, n, wide):
        m, right = n - j, max(n - j - wide, 0)
        panels.append(pair)
        near.append(3 * 4 * B * m * min(wide, right) / rate)
        far.append(3 * 4 * B * m * max(right - wide, 0) / rate)
    return panels, near, far


LOOKS = {
    "panels": ("orange", "P"),
    "near": ("green", "n"),
    "far": ("blue", "far"),
}


def ahead_frame(ahead, given=None):
    """Two streams of a GPU and the work of all steps on them."""
    given = lengths() if given is None else given
    bars = schedule(*given, ahead=ahead)
    whole = length(schedule(*given, ahead=False))
    us = length(bars)
    how = "far updates beside the panels" if ahead else "one after the other"
    said = f"{len(given[0])} steps, {how}: {us:.0f} \u00b5s"
    if ahead:
        hidden = sum(bar.end - bar.begin for bar in bars if bar.what == "far")
        said += f", {whole - us:.0f} less; far updates take {hidden:.0f} in all"
    fig = Figure(
        440,
        172,
        f"Two lines of boxes along time. {said}. On the first line panels and near updates follow "
        f"each other; {'on the second' if ahead else 'on the same line'}, far updates.",
        max_width=600,
    )
    left, right = 66, 432

    def x(t):
        return left + (right - left) * t / whole

    fig.text(8, 14, how, size=14, bold=True, anchor="start")
    for name, y in (("stream", 52), ("branch", 90)):
        fig.text(8, y, name, size=13, anchor="start")
        fig.line(left, y + 15, right, y + 15, color="faint", width=1)
    for bar in bars:
        if bar.end == bar.begin:
            continue
        color, word = LOOKS[bar.what]
        y, wide = 78 if bar.beside else 40, x(bar.end) - x(bar.begin)
        fill = {"panels": 0.35, "near": 0.7, "far": 0.15}[bar.what]
        fig.rect(x(bar.begin), y, wide, 24, r=2, color=color, width=1, fill=color,
                 fill_opacity=fill)  # fmt: skip
        if wide > 9 * len(word):
            fig.text(x(bar.begin) + wide / 2, y + 12, word, size=12)
    fig.line(x(us), 30, x(us), 112, color="ink", width=2, dash="4 3")
    fig.text(min(x(us), right), 124, f"{us:.0f} \u00b5s", size=13, anchor="end", bold=True)
    at = 12
    for what, words, opacity in (
        ("panels", "P: two panels", 0.35),
        ("near", "n: near update", 0.7),
        ("far", "far update", 0.15),
    ):
        color = LOOKS[what][0]
        fig.rect(at, 148, 16, 14, r=2, color=color, width=1, fill=color, fill_opacity=opacity)
        fig.text(at + 22, 155, words, size=13, anchor="start")
        at += 140
    return Frame(fig, said + ".", how)


def ahead_stepper(given=None):
    """The same work in one order and in the other."""
    return Stepper(
        [ahead_frame(ahead, given) for ahead in (False, True)],
        "Order",
        "Panels and updates on one stream, and on two.",
    )


# by the clock


def beside(results=None, mode="replay"):
    """Every case of a measurement with stage 8: stage 6, stage 8, and how much faster it is.

    Raises:
        ValueError: no case has both.
    """
    results = load(CASES) if results is None else results
    rows = []
    for row in results.find(stage=STAGE, mode=mode, precision="fp32"):
        key = {name: row[name] for name in ("batch", "n", "family", "cond", "precision")}
        six = results.find(stage="s06_update", mode=mode, ok=True, **key)
        if not (row["ok"] and six):
            continue
        old, new = six[0]["median_us"], row["median_us"]
        rows.append([named(row), duration(old), duration(new), short(old / new, 3)])
    if not rows:
        raise ValueError(
            f"no case {results.where()} has both s06_update and {STAGE}, {mode}; measure them: "
            f"python -m qrlib.bench --stage s06_update {STAGE} --replay --json {CASES.name}"
        )
    heads = ("matrices", "stage 6", "stage 8", "factor")
    return Table(f"{mode}; {results.where()}", heads, rows)


def spent(results=None, mode="replay"):
    """Where the time of each profiled case goes, by the roles of its kernels, and how that compares
    with what its bytes and its arithmetic would take at the measured ceilings."""
    results = load(PROFILE) if results is None else results
    rows = []
    for row in results.find(mode=mode, precision="fp32"):
        by = {each["role"]: each for each in row["profile"]["roles"]}
        if not by.keys() >= set(ROLES):
            # one launch, which is all of them
            continue
        parts = (f"{100 * by[role]['share']:.0f} %" for role in ROLES)
        times = (f"{by[role]['times']:.1f}" for role in ROLES[:2])
        rows.append([named(row), duration(row["median_us"]), *parts, *times])
    heads = ("matrices", "all", *ROLES, "panel, over its ceiling", "update, over its")
    return Table(f"where the time goes, {mode}; {results.where()}", heads, rows)


# what the compiler makes of a chain


class Inner(NamedTuple):
    """The innermost loop of a kernel that takes roots.

    counts, chain: {family: instructions} of all of it, and from its first root to its last.
    """

    config: Config
    counts: dict
    chain: dict


@cache
def in_loop(stage, kernel, target="sm_90a"):
    """Inner of the first kernel of that name that is compiled to a loop, for 640 x 512 x 512."""
    for each in launches(stage, 640, 512, 512, target=target):
        if each.config.name == kernel:
            made = compile_config(each.config, target)
            loops = [[it.name for it in made.plain if it.address in loop] for loop in made.loops]
            # roots and inverses have a unit of their own
            inside = [names for names in loops if "MUFU" in names]
            if inside:
                names = min(inside, key=len)
                last = len(names) - names[::-1].index("MUFU")
                return Inner(
                    each.config, _counts(names), _counts(names[names.index("MUFU") : last])
                )
    raise ValueError(f"stage {stage} starts no {kernel} with a loop around a root")


def _counts(names):
    return {"all": len(names)} | families(Counter(names))
