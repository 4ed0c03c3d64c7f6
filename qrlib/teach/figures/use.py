"""Figures of the chapter Use it. Training runs are made when they are asked for, and kept.

Times come from book/data, a file of `python -m qrlib.bench`; what a network takes is predicted.
"""

import math
import textwrap
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import qrlib
from qrlib.bench import gpus, q, results
from qrlib.devices import DEVICES
from qrlib.teach import optimizers
from qrlib.teach.characters import Writer, encoded, text, train
from qrlib.teach.figures.certify import Table
from qrlib.teach.figures.ladder import CASES, duration
from qrlib.teach.figures.roofline import geomean
from qrlib.teach.gram_schmidt import with_condition
from qrlib.teach.optimizers import Muon, Soap, SoapInside, newton_schulz
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number

# written by python -m qrlib.bench --q
FORMED = CASES.with_name("q.json")
# written by python -m qrlib.bench --gpus 2 --replay
SHARED_OUT = CASES.with_name("gpus.json")

# a valley

# how much steeper it is across than along; a step, and how many of them
STEEP, RATE, STEPS = 40.0, 0.1, 40
LIGHT = np.array([-3.0, 0.5])


def turn(degrees):
    """The rotation of the plane by an angle."""
    a = math.radians(degrees)
    return np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])


def descent(x, gradient, Q, *, rate=RATE, steps=STEPS, betas=(0.9, 0.95)):
    """[steps + 1, 2]: Adam's way down from x, each step taken in the basis Q."""
    mean, square, way = np.zeros(2), np.zeros(2), [x]
    for t in range(1, steps + 1):
        g = Q.T @ gradient(way[-1])
        mean += (1 - betas[0]) * (g - mean)
        square += (1 - betas[1]) * (g * g - square)
        m, s = mean / (1 - betas[0] ** t), square / (1 - betas[1] ** t)
        way.append(way[-1] - rate * Q @ (m / (np.sqrt(s) + 1e-12)))
    return np.array(way)


def ways(angle):
    """(Adam's way, the way in the valley's own axes, height of a point) for a tilt in degrees."""
    U = turn(angle)
    H = U @ np.diag([1.0, STEEP]) @ U.T

    def gradient(x):
        return H @ x

    def height(x):
        return x @ H @ x / 2

    start = U @ LIGHT
    return descent(start, gradient, np.eye(2)), descent(start, gradient, U), height


def left(way, height):
    """What is left of the height at the end of a way, of that at its start."""
    return height(way[-1]) / height(way[0])


def valley_frame(angle):
    adam, own, height = ways(angle)
    size, middle, unit = 400, 200, 55
    lost, kept = left(adam, height), left(own, height)
    alt = (
        f"Contours of a narrow valley, tilted by {angle} degrees, and two ways down from one "
        f"point, {STEPS} steps each. In the axes of the page {lost:.1e} of the height is left, in "
        f"those of the valley {kept:.1e}."
    )
    fig = Figure(size, size - 60, alt)

    def at(x):
        return middle + unit * x[0], middle - 30 - unit * x[1]

    U = turn(angle)
    round_ = np.linspace(0, 2 * math.pi, 73)
    for level in (0.5, 1.5, 3.0):
        low = level / math.sqrt(STEEP)
        points = [at(U @ (level * math.cos(a), low * math.sin(a))) for a in round_]
        fig.polyline(points, color="faint", width=1.2)
    fig.polyline([at(x) for x in adam], color="blue", width=1.6, dash=(5, 3))
    fig.polyline([at(x) for x in own], color="orange", width=1.6)
    fig.circle(*at(adam[0]), 4, color="ink", fill="ink")
    for way, color in ((adam, "blue"), (own, "orange")):
        fig.circle(*at(way[-1]), 4, color=color, fill=color)
    fig.text(12, 16, "dashed: axes of the page", size=13, color="blue", anchor="start")
    fig.text(12, 36, "solid: axes of the valley", size=13, color="orange", anchor="start")
    return Frame(
        fig,
        f"Tilted by {angle} degrees. Height left after {STEPS} steps: {lost:.1e} in the axes of "
        f"the page, {kept:.1e} in those of the valley.",
        f"{angle} degrees",
    )


def valley_stepper(angles=(0, 10, 20, 30, 45)):
    """Adam's steps in two bases, in a valley that is tilted more and more."""
    return Stepper([valley_frame(a) for a in angles], "Tilt", "A valley and two ways down it.")


# one step of orthogonal iteration

VALUES = (16.0, 8.0, 4.0, 2.0, 1.0)


@cache
def iterated(steps, seed=0):
    """Q^T S Q after so many steps of orthogonal iteration from I; S has the eigenvalues VALUES."""
    n, generator = len(VALUES), torch.Generator().manual_seed(seed)
    U = qrlib.orthogonalize(torch.randn(n, n, dtype=torch.float64, generator=generator))
    S = U * torch.tensor(VALUES, dtype=torch.float64) @ U.T
    Q = torch.eye(n, dtype=torch.float64)
    for _ in range(steps):
        (Q,) = optimizers.by_qr([S], [Q])
    return (Q.T @ S @ Q).numpy()


def beside(X):
    """The largest entry off the diagonal."""
    return float(np.abs(X - np.diag(np.diag(X))).max())


def iteration_frame(steps):
    X = iterated(steps)
    n, cell = len(X), 56
    named = "no step" if not steps else "one step" if steps == 1 else f"{steps} steps"
    alt = (
        f"Q transposed S Q after {named}: the diagonal is "
        f"{', '.join(f'{x:.2f}' for x in np.diag(X))}; the largest entry beside it {beside(X):.2g}."
    )
    fig = Figure(n * cell + 24, n * cell + 24, alt, max_width=1.1 * n * cell)
    names = [["blue" if i == j else "pink" for j in range(n)] for i in range(n)]
    fig.matrix(12, 12, X, cell=cell, color=names, text=_entry, size=14, top=max(VALUES))
    fig.brackets(7, 9, n * cell + 10, n * cell + 6)
    readout = f"After {named}: the largest entry off the diagonal is {beside(X):.2g}."
    return Frame(fig, readout, named)


def _entry(x):
    return number(round(x, 2) + 0.0, "{:.4g}")


def iteration_stepper(steps=(0, 1, 2, 3, 5, 8, 12)):
    """What S looks like in the basis, step by step."""
    frames = [iteration_frame(k) for k in steps]
    return Stepper(frames, "Steps", "A symmetric matrix in bases that come nearer to its own.")


# two ways to be orthogonal


def corners(angle, first=15):
    """(G, Q, P) [2, 2] of two columns with an angle between them: of QR, and of U V^T."""
    a, b = (math.radians(each) for each in (first, first + angle))
    G = np.array([[math.cos(a), math.cos(b)], [math.sin(a), math.sin(b)]])
    Q = optimizers.q_of(torch.from_numpy(G)).numpy()
    U, _, V = np.linalg.svd(G)
    return G, Q, U @ V


def moved(G, Q):
    """By how many degrees each column was turned."""
    return [math.degrees(math.acos(min(1.0, float(g @ q)))) for g, q in zip(G.T, Q.T)]


def corners_frame(angle):
    G, Q, P = corners(angle)
    by_qr, by_polar = ([f"{x:.3g}" for x in moved(G, X)] for X in (Q, P))
    alt = (
        f"Two unit vectors with {angle} degrees between them. QR turns the first by {by_qr[0]} and "
        f"the second by {by_qr[1]} degrees; U V transposed turns them by {by_polar[0]} and "
        f"{by_polar[1]}."
    )
    fig = Figure(340, 320, alt)
    x0, y0, r = 170, 190, 118
    fig.circle(x0, y0, r, color="faint", width=1.2)
    for X, color, look, name in (
        (G, "ink", {"width": 3}, "*g*"),
        (Q, "blue", {"width": 2}, "*q*"),
        (P, "orange", {"width": 2, "dash": (6, 4)}, "*p*"),
    ):
        for k, (x, y) in enumerate(X.T):
            fig.arrow(x0, y0, x0 + r * x, y0 - r * y, color=color, **look)
            # each kind of label on a circle of its own, for vectors may coincide
            far = r + {"ink": 12, "blue": 28, "orange": 44}[color]
            fig.text(x0 + far * x, y0 - far * y, name + "₁₂"[k], size=14, color=color, halo=True)
    readout = (
        f"{angle} degrees between the columns. QR turns them by {by_qr[0]} and {by_qr[1]}, "
        f"UVᵀ by {by_polar[0]} and {by_polar[1]}."
    )
    return Frame(fig, readout, f"{angle} degrees")


def corners_stepper(angles=(90, 75, 60, 45, 30, 15)):
    """Two columns, and the two orthonormal pairs that are made of them."""
    return Stepper(
        [corners_frame(a) for a in angles],
        "Angle",
        "Two vectors, made perpendicular by QR and by the polar factor.",
    )


@cache
def sent(steps, count=120):
    """(s, what Newton-Schulz makes of them) for singular values from 1e-3 on, of length 1."""
    s = torch.logspace(-3, 0, count, dtype=torch.float64)
    s = s / s.norm()
    return s.numpy(), newton_schulz(torch.diag(s), steps).diagonal().numpy()


def newton_plot(shown=(1, 3, 5)):
    """Where singular values go, in a few rounds of Newton-Schulz."""
    low, high = (float(each(sent(shown[-1])[1][sent(shown[-1])[0] > 0.01])) for each in (min, max))
    alt = (
        f"Singular values before and after {', '.join(map(str, shown))} rounds of Newton-Schulz. "
        f"After {shown[-1]}, those above 0.01 lie between {low:.2f} and {high:.2f}; smaller ones "
        "are still on their way. A line at 1: those of Q."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        for steps in shown:
            x, y = sent(steps)
            axes.semilogx(x, y, label=f"{steps} round{'s' * (steps > 1)}")
        axes.axhline(1, color=color["ink"], linewidth=1)
        axes.text(x[0], 1.03, "Q of QR", color=color["ink"])
        axes.set(
            xlabel="singular value, of a matrix of norm 1", ylabel="afterwards", ylim=(0, 1.35)
        )
        axes.legend(loc="lower right")
    return from_matplotlib(figure, alt)


# training


class Run(NamedTuple):
    """An optimizer with a name: its class, what it takes, and the rates that are tried."""

    make: type
    options: dict
    rates: tuple
    lr: float


_ADAM = {"betas": (0.9, 0.95)}
RUNS = {
    "Adam": Run(torch.optim.Adam, _ADAM, (2.5e-3, 5e-3, 1e-2), 5e-3),
    "SOAP": Run(Soap, {}, (5e-3, 1e-2, 2e-2), 1e-2),
    "Muon": Run(Muon, {}, (1e-2, 2e-2, 4e-2), 2e-2),
    "Muon by QR": Run(Muon, {"orthogonalize": optimizers.q_of}, (1e-2, 2e-2, 4e-2), 2e-2),
}
SEEDS = (0, 1, 2)


@cache
def losses(name, seed=0, lr=None):
    """[bits a character], step by step, of one of RUNS."""
    run = RUNS[name]
    return train(partial(run.make, lr=lr or run.lr, **run.options), seed=seed)


@cache
def variant(refresh="by_qr", every=1, inside=False, seed=0):
    """The same of SOAP with another refresh of its bases, the name of a function."""
    make = SoapInside if inside else Soap
    options = {"lr": RUNS["SOAP"].lr, "refresh": getattr(optimizers, refresh), "every": every}
    return train(partial(make, **options), seed=seed)


def weights():
    """The matrices of the network, as they begin."""
    return list(Writer(len(encoded(text())[1])).parameters())


def end(bits, last=20):
    """The mean of the last losses."""
    return sum(bits[-last:]) / last


def rates_table():
    """Every optimizer with three rates, and where it ends."""
    rows = []
    for name in ("Adam", "SOAP", "Muon"):
        run = RUNS[name]
        ends = [end(losses(name, lr=rate)) for rate in run.rates]
        rows.append([name, *(f"{rate:g}: {bits:.2f}" for rate, bits in zip(run.rates, ends))])
    return Table("rate: bits a character at the end", ("optimizer", "half", "taken", "twice"), rows)


def smooth(bits, width=15):
    """The mean of each loss and those before it."""
    total = np.cumsum([0.0, *bits])
    at = np.arange(1, len(bits) + 1)
    first = np.maximum(at - width, 0)
    return (total[at] - total[first]) / (at - first)


def curves_plot(names=("Adam", "Muon by QR", "Muon", "SOAP"), seeds=SEEDS):
    """Loss against steps: the mean of the seeds, and from the best to the worst of them."""
    said = "; ".join(
        f"{name} ends at {', '.join(f'{end(losses(name, seed)):.2f}' for seed in seeds)}"
        for name in names
    )
    alt = (
        f"Bits a character against steps, {len(seeds)} seeds each, a band from the lowest to the "
        f"highest. {said}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.8, 4.0))
        for name, ink in zip(names, ("blue", "muted", "green", "orange")):
            each = np.array([smooth(losses(name, seed)) for seed in seeds])
            at = np.arange(1, each.shape[1] + 1)
            axes.fill_between(at, each.min(0), each.max(0), alpha=0.2, color=color[ink], lw=0)
            axes.plot(at, each.mean(0), label=name, color=color[ink])
        axes.set(xlabel="step", ylabel="bits a character", ylim=(3.6, 6.2))
        axes.legend()
    return from_matplotlib(figure, alt)


def apart(seeds=(0,)):
    """(largest difference at one step, the same smoothed) of SOAP by ours and by torch's QR."""
    pairs = [
        (np.array(losses("SOAP", seed)), np.array(variant("by_torch", seed=seed))) for seed in seeds
    ]
    single = max(float(np.abs(a - b).max()) for a, b in pairs)
    return single, max(float(np.abs(smooth(a) - smooth(b)).max()) for a, b in pairs)


def bases_table():
    """What becomes of SOAP when its bases are older, or exact."""
    rows = [
        ("eigenvectors, every step", end(variant("exact"))),
        ("one QR, every step", end(losses("SOAP"))),
        ("one QR, every tenth step", end(variant(every=10))),
        ("those of the first gradient, always", end(variant("frozen"))),
        ("none: Adam", end(losses("Adam"))),
    ]
    rows = [[words, f"{bits:.2f}"] for words, bits in rows]
    return Table("where the bases come from, one seed", ("bases", "bits a character"), rows)


def flipped(steps=60):
    """(columns that change their sign, columns in all) while SOAP runs without the fix."""
    seen = []

    def watched(statistics, bases):
        found = optimizers.any_signs(statistics, bases)
        seen.extend((Q * P).sum(0) < 0 for Q, P in zip(bases, found))
        return found

    train(partial(Soap, refresh=watched), steps=steps)
    columns = torch.cat(seen)
    return int(columns.sum()), len(columns)


# a step of a real network

LAYERS, TOKENS = 24, 2**19
# as an optimizer calls it, with nothing said of precision
CALLED = {"mode": "eager", "precision": "fp32"}


class Step(NamedTuple):
    """Seconds of one step: of the network, predicted; of the QR of its bases, torch's and ours.

    formed: whether Q is in it, or R alone.
    """

    hidden: int
    network: float
    torch: float
    ours: float
    formed: bool

    def share(self, qr):
        """Of the step, when its QR takes so long."""
        return qr / (self.network + qr)

    def part(self, qr):
        """The same in words, behind its seconds."""
        return f"{qr:.2g}: {100 * self.share(qr):.2g} %"


def network(hidden, layers=LAYERS, tokens=TOKENS, device="H200"):
    """Seconds: 12 hidden^2 weights a layer, six operations for each weight and token, in bf16."""
    flops = 6 * 12 * hidden**2 * layers * tokens
    return flops / DEVICES[device].measured["bf16"].value


def bases(layers=LAYERS):
    """Sides of `hidden`: two of each of four squares in a layer, one of each of two others."""
    return layers * (4 * 2 + 2)


def step_of(hidden, formed=FORMED, factored=CASES):
    """Step for a hidden size, from times of batches of such squares, a matrix of them each."""
    with_q = Path(formed).exists()
    found = results.load(formed if with_q else factored)
    ours, theirs = ("foreach.orthogonalize", q.BASELINE) if with_q else ("auto", "torch")
    family = q.STEP if with_q else "dense"

    def each(stage):
        rows = [
            row["median_us"] / row["batch"]
            for row in found.find(stage=stage, n=hidden, family=family, **CALLED)
            if row["median_us"]
        ]
        return 1e-6 * min(rows)

    times = (bases() * each(stage) for stage in (theirs, ours))
    return Step(hidden, network(hidden), *times, with_q)


def step_table(sizes=(1024, 2048, 4096), formed=FORMED):
    """Times of a step, and the part of it that is QR, with torch's and with ours."""
    steps = [step_of(hidden, formed) for hidden in sizes]
    what = "QR with Q" if steps[0].formed else "QR without Q, which is not measured yet"
    rows = [
        [f"{s.hidden}", f"{s.network:.2g}", *(s.part(qr) for qr in (s.torch, s.ours))]
        for s in steps
    ]
    heads = ("hidden", "network", "QR, torch", "QR, ours")
    return Table(f"seconds: share of the step; {what}", heads, rows)


def step_words(sizes=(1024, 2048, 4096), formed=FORMED):
    """Where the times of step_table come from."""
    measured = results.load(formed if Path(formed).exists() else CASES)
    batches = {row["n"]: row["batch"] for row in measured.rows if row["n"] in sizes}
    told = (
        f"network: predicted, {LAYERS} layers, {TOKENS:,} characters a step, at the rate of a "
        "large product in bf16",
        f"QR: {bases()} bases, each at the time of one in a batch of "
        f"{', '.join(str(batches[n]) for n in sizes)}, called from Python; {measured.where()}",
    )
    return "\n".join(line for each in told for line in textwrap.wrap(each, 76))


# several GPUs

# the modes of a row, in words
HOW = {"eager": "called", "replay": "replayed"}


class Scaling(NamedTuple):
    """How many times as fast so many GPUs are as one with the same matrices.

    mode: of both, "eager" or "replay". low, high: by the quartiles of both times. share: one GPU
    with a share alone, which is what sharding could reach if it cost nothing.
    """

    name: str
    mode: str
    value: float
    low: float
    high: float
    share: float

    @property
    def called(self):
        return f"{self.name}, {HOW[self.mode]}"


def scalings(found):
    """[Scaling] of the rows of a file of `python -m qrlib.bench --gpus`."""
    return [
        Scaling(
            f"{row['batch']} x {row['n']}",
            row["mode"],
            row["scaling"],
            row[gpus.ALL]["q25_us"] / row["q75_us"],
            row[gpus.ALL]["q75_us"] / row["q25_us"],
            row[gpus.ALL]["median_us"] / row[gpus.SHARE]["median_us"],
        )
        for row in found.rows
        if row["ok"]
    ]


def scaling_plot(data=SHARED_OUT):
    """Bars of the scaling of every case, beside the ideal; None where nobody has measured it.

    A replay is the hollow bar beside the other.
    """
    if not Path(data).exists():
        return None
    found = results.load(data)
    bars, ideal = scalings(found), found.rows[0]["gpus"]
    told = "; ".join(
        f"{bar.called}: {bar.value:.3g}, between quartiles {bar.low:.3g} to {bar.high:.3g}, and "
        f"{bar.share:.3g} for a share alone"
        for bar in bars
    )
    alt = (
        f"How many times as fast {ideal} GPUs are as one with the same matrices, {found.where()}. "
        f"{told}. A dashed line at {ideal}, the ideal."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.6))
        names = list(dict.fromkeys(bar.name for bar in bars))
        modes = [mode for mode in HOW if mode in {bar.mode for bar in bars}]
        wide = 0.8 / max(len(modes), 1)
        at = [names.index(bar.name) + wide * modes.index(bar.mode) for bar in bars]
        for mode, fill in zip(HOW, ("blue", "paper")):
            mine = [(x, bar.value) for x, bar in zip(at, bars) if bar.mode == mode]
            look = {"color": color[fill], "edgecolor": color["blue"], "linewidth": 1.5}
            if mine:
                axes.bar(*zip(*mine), 0.8 * wide, label=HOW[mode], **look)
        values = [bar.value for bar in bars]
        ends = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
        axes.errorbar(
            at, values, [np.maximum(each, 0) for each in ends], fmt="none", ecolor=color["ink"]
        )
        look = {"marker": "D", "linestyle": "none", "color": color["orange"]}
        axes.plot(at, [bar.share for bar in bars], label="one GPU, a share alone", **look)
        axes.axhline(ideal, color=color["ink"], linestyle="--", linewidth=1.2, label="ideal")
        top = max([ideal, *(max(bar.high, bar.share) for bar in bars)])
        axes.set(ylabel=f"times as fast on {ideal} GPUs", ylim=(0, 1.1 * top))
        axes.set_xticks(at, [f"{value:.3g}" for value in values])
        middle = wide * (len(modes) - 1) / 2
        # under the numbers; where there is one mode, at the same places
        axes.xaxis.remove_overlapping_locs = False
        axes.set_xticks([k + middle for k in range(len(names))], names, minor=True)
        axes.tick_params(axis="x", which="minor", length=0, pad=18)
        axes.grid(axis="x", visible=False)
        axes.set_title("\n".join(textwrap.wrap(found.where(), 54)), size=9)
        figure.legend(loc="outside lower center", ncols=2 if len(modes) > 1 else 3)
        return from_matplotlib(figure, alt, max_width=520)


def scaling_words(data=SHARED_OUT):
    """Times, bits and certificates behind `scaling_plot`, or how to get them."""
    if not Path(data).exists():
        told = "Nobody has measured it so far. On two GPUs: "
        return f"{told}python -m qrlib.bench --gpus 2 --replay"
    found = results.load(data)
    count = found.rows[0]["gpus"]
    lines = []
    for row in found.rows:
        name, us = f"{row['batch']} x {row['n']}, {HOW[row['mode']]}", row["median_us"]
        if not row["ok"]:
            lines.append(f"{name}: failed, {'; '.join(row['faults'])}")
            continue
        lines.append(
            f"{name}: {duration(row[gpus.ALL]['median_us'])} on one GPU, "
            f"{duration(us)} on {count}, a share alone {duration(row[gpus.SHARE]['median_us'])}"
        )
        for way, what in ((gpus.SHARE, "the same share"), (gpus.ALL, "all")):
            same = row["compared"] - row["differ"][way]
            lines.append(
                f"  same bits as on one GPU with {what}: {same} of {row['compared']} matrices"
            )
    lines += textwrap.wrap(f"whole calls from Python, the slowest GPU counts; {found.where()}", 76)
    return "\n".join(lines)


# least squares


def digits(kappa, m=200, n=10, seed=0):
    """(error of lstsq, error of the normal equations) of x, relative; None where Cholesky stops."""
    A = with_condition(m, n, kappa, seed=seed)
    rng = np.random.default_rng(seed)
    b = (A @ rng.standard_normal(n) + 1e-3 * rng.standard_normal(m)).astype(np.float32)
    right = np.linalg.lstsq(A.astype(np.float64), b.astype(np.float64))[0]
    A, b = torch.from_numpy(A), torch.from_numpy(b)
    L, stopped = torch.linalg.cholesky_ex(A.T @ A)
    normal = torch.cholesky_solve((A.T @ b)[:, None], L)[:, 0]

    def error(x):
        return float(np.linalg.norm(x.double().numpy() - right) / np.linalg.norm(right))

    return error(qrlib.lstsq(A, b).solution), None if stopped else error(normal)


def _mean_digits(kappa, seeds=range(5)):
    """The same, geometric means of some matrices; None where one of them has no factor."""
    own, normal = zip(*(digits(kappa, seed=seed) for seed in seeds))
    return geomean(own), None if None in normal else geomean(normal)


KAPPAS = tuple(float(10 ** (k / 4)) for k in range(25))


def digits_plot():
    """The error of x against the condition, by QR and by the normal equations."""
    found = [(kappa, *_mean_digits(kappa)) for kappa in KAPPAS]
    there = [(kappa, normal) for kappa, _, normal in found if normal is not None]
    alt = (
        f"Error of a least squares solution in float32 against the condition number, both axes "
        f"logarithmic. By QR it grows from {found[0][1]:.1g} to {found[-1][1]:.1g} at a condition "
        f"of {found[-1][0]:.0e}. By the normal equations it grows twice as steeply, from "
        f"{there[0][1]:.1g} to {there[-1][1]:.1g} at {there[-1][0]:.0e}, the last condition for "
        "which Cholesky has a factor."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.6))
        axes.loglog(*zip(*((k, e) for k, e, _ in found)), label="QR, qrlib.lstsq")
        axes.loglog(*zip(*there), label="normal equations", marker="x", markersize=5)
        axes.axhline(1, color=color["ink"], linewidth=1)
        axes.text(1, 1.3, "no digit is right", color=color["ink"])
        axes.set(xlabel="κ of A", ylabel="error of x, relative", ylim=(1e-7, 10))
        axes.legend(loc="lower right")
    return from_matplotlib(figure, alt)


# random orthogonal matrices


def angles(Q):
    """In (0, pi): of the planes that the rotations Q [B, n, n] turn, det Q taken out; n is odd."""
    turns = torch.linalg.eigvals(torch.linalg.det(Q)[:, None, None] * Q)
    return torch.angle(turns[turns.imag > 0]).numpy()


def law(angle, n):
    """The density of such an angle over all rotations of n dimensions, n odd."""
    odd = np.arange(1, n, 2)
    return (1 - 2 / (n - 1) * np.cos(odd * np.asarray(angle)[..., None]).sum(-1)) / math.pi


@cache
def drawn_angles(n, positive_diag, count=20000, seed=1):
    """The same of Q of so many matrices of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    G = torch.randn(count, n, n, dtype=torch.float64, generator=generator)
    return angles(qrlib.orthogonalize(G, positive_diag=positive_diag))


def off_the_law(n, positive_diag, bins=20):
    """The largest difference of a histogram of angles from the law, of the law's largest."""
    heights, edges = np.histogram(drawn_angles(n, positive_diag), bins, (0, math.pi), density=True)
    wanted = law((edges[1:] + edges[:-1]) / 2, n)
    return float(np.abs(heights - wanted).max() / wanted.max())


def angles_plot(n=3, bins=40):
    """Angles of random orthogonal matrices: with the signs fixed, without, and the law."""
    alt = (
        f"Histograms of the angles by which random orthogonal matrices of {n} rows turn. With the "
        f"signs fixed they follow the law to {100 * off_the_law(n, True):.0f} % of its largest "
        f"value; with LAPACK's signs they are {100 * off_the_law(n, False):.0f} % off."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        look = {"bins": bins, "range": (0, math.pi), "density": True}
        axes.hist(
            drawn_angles(n, True), label="signs fixed", color=color["blue"], alpha=0.35, **look
        )
        axes.hist(
            drawn_angles(n, False),
            label="LAPACK's signs",
            histtype="step",
            color=color["orange"],
            linewidth=2,
            **look,
        )
        at = np.linspace(0, math.pi, 100)
        axes.plot(at, law(at, n), color=color["ink"], label="the law", linestyle="--")
        axes.set(xlabel="angle", ylabel="density", ylim=(0, 1.0))
        axes.set_xticks([0, math.pi / 2, math.pi], ["0", "π/2", "π"])
        axes.legend(loc="upper left")
    return from_matplotlib(figure, alt)
