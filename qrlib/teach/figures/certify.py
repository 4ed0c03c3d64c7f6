"""The figures of chapter "Trust, but certify": each number is that of a factorization."""

import math
from functools import cache
from html import escape
from typing import NamedTuple

import numpy as np

from qrlib import api, matrices
from qrlib.certificate import LAPACK, TASK, certify
from qrlib.stages import ANYWHERE
from qrlib.stages.s01_mirror import geqrf, larf
from qrlib.teach.gram_schmidt import METHODS, orthogonality, with_condition
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, ink, matplotlib_style

EPS = float(np.finfo(np.float32).eps)


def short(value):
    """A residual in three digits, or four before the point: 0, 0.0123, 131, 4420, 1.3e5."""
    if not math.isfinite(value):
        return "not finite"
    if 999.5 <= value < 1e4:
        return f"{value:.0f}"
    if value == 0 or 1e-3 <= value < 1e4:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "\u2212")


class Answer(NamedTuple):
    """A (H, tau) that somebody hands in for A, and what it is. A, H: [1, n, n]; tau: [1, n]."""

    name: str
    words: str
    A: np.ndarray
    H: np.ndarray
    tau: np.ndarray


def answers(n=5, seed=0):
    """Four wrong answers and a right one, for one matrix whose last column is zero."""
    A = matrices.make("rankdef", 1, n, seed=seed)
    H, tau = geqrf(A)
    H_off, tau_off, tau_one = H.copy(), tau.copy(), tau.copy()
    H_off[0, 1, 3] *= np.float32(1.1)
    tau_off[0, 0] *= np.float32(0.9)
    tau_one[0, -1] = 1
    return [
        Answer("nothing done", "H = A and \u03c4 = 0: nobody did anything.", A, A, 0 * tau),
        # given: the fault that is put in
        Answer("one entry of R off", "One entry of R is 10 % too large.", A, H_off, tau),
        Answer("\u03c4 for a zero column", "The column of zeros got \u03c4 = 1.", A, H, tau_one),
        # given: the fault that is put in
        Answer("one \u03c4 off", "\u03c4 of the first mirror is 10 % too small.", A, H, tau_off),
        Answer("stage 1", "What stage 1 returns.", A, H, tau),
    ]


SPOILS = {
    "nothing": "What stage 1 returns.",
    "tau": "\u03c4[{j}] is larger by {by:g}.",
    "R": "Column {j} of R is multiplied by {factor:g}.",
    "V": "The tail of v[{j}] is multiplied by {factor:g}.",
    "tail of R": "R is zero from column {j} on, and so is \u03c4.",
    "all": "H = A and \u03c4 = 0: nobody did anything.",
}


def spoiled(what="tau", column=0, by=0.1, *, family="dense", n=5, cond=1, seed=0):
    """An Answer by stage 1 for a matrix of a family, with one thing done to it.

    Args:
        what: one of SPOILS. column: where. by: how much, as SPOILS says.
        family, n, cond, seed: of the matrix, as for matrices.make.
    """
    A = matrices.make(family, 1, n, cond=cond, seed=seed)
    H, tau = geqrf(A)
    j = min(column, n - 1)
    if what == "tau":
        tau[0, j] += np.float32(by)
    elif what == "R":
        H[0, : j + 1, j] *= np.float32(1 + by)
    elif what == "V":
        H[0, j + 1 :, j] *= np.float32(1 + by)
    elif what == "tail of R":
        H[0, :, j:], tau[0, j:] = 0, 0
    elif what == "all":
        H, tau = A, 0 * tau
    return Answer(what, SPOILS[what].format(j=j, by=by, factor=1 + by), A, H, tau)


def verdict(answer):
    """Both residuals of an Answer in words, each with its gate."""
    return "; ".join(
        f"{name} {short(value)}, gate {gate:g}: {'passes' if ok else 'FAILS'}"
        for name, _, value, _, gate, ok in certify(answer.A, answer.H, answer.tau).rows()
    )


def residuals_frame(answer):
    """R - Q^T A and Q^T Q - I as blocks: rounding is outlined, what a gate must catch is filled."""
    A, H, tau = (np.asarray(X, np.float64) for X in (answer.A, answer.H, answer.tau))
    n = A.shape[-1]
    I = np.eye(n)
    R, Q, A = np.triu(H[0]), api.ormqr(H, tau, I[None])[0], A[0]
    found = certify(answer.A, answer.H, answer.tau).rows()
    cell, gap, top, high = 18, 26, 44, 206
    side, size = n * cell, np.abs(A).max()
    fig = Figure(
        4 * side + 3 * gap + 8,
        2 * high + 6,
        f"{answer.name}. Above, the blocks R, Q transposed, A and their residual; below, Q "
        f"transposed, Q, I and their residual. {verdict(answer)}.",
        max_width=560,
    )
    r, qt, a, q, one = (
        (R, "*R*", "blue", size),
        (Q.T, "*Q*\u1d40", "green", 1),
        (A, "*A*", "blue", size),
        (Q, "*Q*", "green", 1),
        (I, "*I*", "muted", 1),
    )
    minus, equals = "\u2212", "="
    pictures = (
        ("is it a factorization of *A*?", (r, qt, a), (minus, "", equals), R - Q.T @ A, size),
        ("is *Q* a *Q*?", (qt, q, one), ("", minus, equals), Q.T @ Q - I, 1),
    )
    for row, (line, picture) in enumerate(zip(found, pictures)):
        which, _, value, _, gate, ok = line
        question, blocks, signs, X, peak = picture
        y = row * high + top
        fig.text(4, y - 30, f"{which}: {question}", size=14, anchor="start", bold=True)
        loud = np.where(np.abs(X) > 1e-3 * peak, "pink", "muted")
        for k, (block, name, color, deepest) in enumerate((*blocks, (X, "", loud, peak))):
            x = 4 + k * (side + gap)
            colors = np.where(block == 0, "none", color).tolist()
            fig.matrix(x, y, block, cell=cell, color=colors, text=None, top=deepest, decades=8)
            fig.brackets(x - 3, y - 3, side + 6, side + 6, lip=5)
            fig.text(x + side / 2, y + side + 18, name, size=14)
            if k < 3:
                fig.text(x + side + gap / 2, y + side / 2, signs[k], size=16)
        words = f"{short(value)} of {gate:g}: {'ok' if ok else 'FAIL'}"
        look = {"color": "ink" if ok else "pink", "bold": True}
        fig.text(fig.width - 4, y + side + 40, words, size=14, anchor="end", **look)
    return fig


def residuals_stepper():
    """Five answers to the same matrix, and which of the two residuals lights up."""
    given = answers()
    frames = [Frame(residuals_frame(a), f"{a.words}\n{verdict(a)}.", a.name) for a in given]
    return Stepper(
        frames,
        "Answer",
        "Five answers to one matrix: nothing done, an entry of R off, a wrong tau for a zero "
        "column, a wrong tau, and a right one. Each shows in one residual, the other, or both.",
        lines=3,
    )


class Curve(NamedTuple):
    """How a method is drawn: its dash, and at which point its name stands on which side."""

    color: str
    dash: str
    at: tuple
    side: str
    law: str


CURVES = {
    "classical Gram-Schmidt": Curve("blue", "-", (8e7, 90), "right", "follows \u03ba\u00b2 eps"),
    "modified Gram-Schmidt": Curve("orange", "--", (8e7, 2e-4), "right", "follows \u03ba eps"),
    "Cholesky QR": Curve("green", "-.", (1.6e3, 1.5), "right", "follows \u03ba\u00b2 eps, stops"),
    "Cholesky QR twice": Curve("pink", ":", (1.4, 2.4e-7), "left", "flat, stops with the first"),
    "Householder": Curve("ink", "-", (8e7, 5e-6), "right", "flat"),
}
CONDITIONS = 10.0 ** np.arange(0, 8.01, 0.25)


@cache
def losses(method, n=64, seed=0):
    """|Q^T Q - I| of a method against CONDITIONS, float32, n by n; nan where it breaks down."""
    out = []
    for kappa in CONDITIONS:
        A = with_condition(n, n, kappa, seed=seed)
        try:
            out.append(orthogonality(METHODS[method](A)[0]) * n * EPS)
        except np.linalg.LinAlgError:
            out.append(math.nan)
    return np.array(out)


def gate_of(n):
    """The largest |Q^T Q - I| that the task's gate lets through, in plain numbers."""
    return TASK.orthogonality * n * EPS


def fate(method, n=64, seed=0):
    """What becomes of a method, in words, with the condition numbers read off its curve."""
    loss = losses(method, n, seed)
    result, passed = np.isfinite(loss), loss <= gate_of(n)
    if passed.all():
        return f"passes everywhere, {short(loss.max() / (n * EPS))} n eps at worst"
    words = "passes while it gives a result"
    if not passed[result].all():
        words = f"fails from \u03ba = {CONDITIONS[(~passed).argmax()]:.1e} on"
    if not result.all():
        words += f", gives none beyond \u03ba = {CONDITIONS[np.flatnonzero(result)[-1]]:.1e}"
    return words


def comparison(named=None, n=64, seed=0):
    """Loss of orthogonality against the condition number, for five ways to Q, in float32.

    Args:
        named: how many of the five have a colour and a name, the rest being grey; all when None.
        n, seed: of the matrices.
    """
    named = list(CURVES)[:named]
    told = "; ".join(f"{name}: {fate(name, n, seed)}" for name in named)
    alt = (
        f"Loss of orthogonality of Q against the condition number from 1 to 1e8, {n} by {n} "
        f"matrices in float32, both axes logarithmic, with guide lines eps, kappa eps and kappa "
        f"squared eps, and the gate at {gate_of(n):.1e}. {told or 'Five curves without names'}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(4.6, 4.0), layout="none")
        axes = figure.add_axes((0.145, 0.125, 0.825, 0.855))
        axes.set(xscale="log", yscale="log", xlim=(1, 1e8), ylim=(5e-8, 900))
        axes.set(xlabel="condition number \u03ba of A", ylabel="|Q\u1d40Q \u2212 I|")
        guides = ((0, "eps", 6e6), (1, "\u03ba eps", 9e6), (2, "\u03ba\u00b2 eps", 1.2e4))
        for power, name, at in guides:
            axes.plot(CONDITIONS, EPS * CONDITIONS**power, color=color["faint"], lw=1.2, ls="-")
            axes.text(at, 1.4 * EPS * at**power, name, color=color["muted"], ha="right", size=9)
        axes.axhline(gate_of(n), color=color["ink"], lw=1, ls=(0, (1, 2)))
        axes.text(1.4, 1.3 * gate_of(n), f"gate {TASK.orthogonality:g} n eps", size=9)
        for name, curve in CURVES.items():
            loss = losses(name, n, seed)
            look = {"color": color["muted"], "ls": "-", "lw": 1}
            if name in named:
                look = {"color": color[curve.color], "ls": curve.dash, "lw": 2.2}
                axes.text(*curve.at, name, color=look["color"], size=10, ha=curve.side)
            axes.plot(CONDITIONS, loss, **look)
            if np.isnan(loss).any():
                end = np.flatnonzero(np.isfinite(loss))[-1]
                axes.plot(CONDITIONS[end], loss[end], "x", color=look["color"], ms=8, mew=2)
        return from_matplotlib(figure, alt, max_width=560)


def comparison_stepper(n=64, seed=0):
    """Five curves without names; then one name after another."""
    frames = []
    for k, (name, curve) in enumerate(CURVES.items(), start=1):
        words = f"{name}: {curve.law}; {fate(name, n, seed)}."
        frames.append(Frame(comparison(k, n, seed), words, name))
    words = "Five curves, no names. Which is which? Write down your guess before you go on."
    frames.append(Frame(comparison(0, n, seed), words, "no names"))
    return Stepper(
        frames,
        "Names",
        "Loss of orthogonality against condition number for five methods, named one by one.",
        lines=3,
    )


def geqrf_unscaled(A):
    """Householder QR as in many a textbook: the norm is the root of a plain sum of squares.

    Args:
        A: [B, m, n], NumPy; read.

    Returns:
        H, tau: as geqrf of stage 1.
    """
    H, tau = A.copy(), np.zeros((len(A), min(A.shape[1:])), A.dtype)
    with np.errstate(all="ignore"):
        for b in range(len(A)):
            for j in range(min(A.shape[1] - 1, A.shape[2])):
                x = H[b, j:, j].copy()
                norm = np.sqrt(np.sum(x * x))
                if norm == 0:
                    continue
                beta = -np.copysign(norm, x[0])
                v, tau[b, j] = x / (x[0] - beta), (beta - x[0]) / beta
                v[0] = 1
                larf(v, tau[b, j], H[b, j:, j + 1 :])
                H[b, j, j], H[b, j + 1 :, j] = beta, v[1:]
    return H, tau


SCALES = 10.0 ** np.arange(-45, 38.1, 0.5)


@cache
def scale_residuals(n=32, seed=0):
    """The residuals of the unscaled norm and of stage 1 for one matrix, times each of SCALES.

    Returns:
        [2, scales, 2]: method, scale, (factor, orthogonality); inf where H or tau is not finite.
        The largest entry of the matrix is 1 before scaling.
    """
    A = matrices.make("dense", 1, n, cond=1, seed=seed, dtype=np.float64)
    with np.errstate(under="ignore"):
        As = (SCALES[:, None, None] * A / np.abs(A).max()).astype(np.float32)
    found = [certify(As, *method(As)) for method in (geqrf_unscaled, geqrf)]
    return np.array([np.stack([c.factor, c.orthogonality], -1) for c in found])


def scale_map(n=32, seed=0):
    """Both residuals against the scale of A: the unscaled norm and stage 1, with the gates."""
    floor, ceiling = 3e-3, 3e8
    plain, ours = scale_residuals(n, seed)
    passed = [(each <= np.array(TASK)).all(-1) for each in (plain, ours)]
    blind = (plain[:, 1] == 0) & ~passed[0]
    spans = [f"{at[0]:.0e} to {at[-1]:.0e}" for at in (SCALES[blind], *(SCALES[p] for p in passed))]
    alt = (
        # given: the scales of the axis
        f"Factor residual and orthogonality of a {n} by {n} matrix against its scale, 1e-45 to "
        f"1e38. With an unscaled norm orthogonality is exactly 0 from {spans[0]}, while the factor "
        f"residual is {short(np.median(plain[blind, 0]))}; both are within the gates from "
        f"{spans[1]}; above, NaN. Stage 1 stays within them down to "
        f"{SCALES[np.flatnonzero(~passed[1])[-1] + 1]:.0e} and up to {SCALES[passed[1]][-1]:.0e}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(4.6, 4.8))
        names = ["0", "0.1", "10", "10\u00b3", "10\u2075", "NaN"]
        for k, (ax, name, gate) in enumerate(zip(axes, TASK._fields, TASK)):
            ax.set(xscale="log", yscale="log", ylim=(1e-3, 3e9))
            ax.set_title(name, loc="left")
            shown = [np.clip(each[:, k], floor, ceiling) for each in (plain, ours)]
            ax.plot(SCALES, shown[0], "--", color=color["pink"], label="unscaled norm")
            ax.plot(SCALES, shown[1], "-", color=color["green"], label="stage 1")
            ax.axhline(gate, color=color["ink"], lw=1, ls=(0, (1, 2)))
            ax.text(1e38, 1.6 * gate, f"gate {gate:g}", ha="right", size=9)
            ax.set_yticks([floor, 0.1, 10, 1e3, 1e5, ceiling], names)
            ax.minorticks_off()
        axes[1].set(xlabel="scale of the entries of A")
        axes[1].set_xticks(10.0 ** np.arange(-40, 31, 10))
        figure.supylabel("residual, in m eps", fontsize=10)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
        return from_matplotlib(figure, alt, max_width=560)


# what is special about each family, in the few words that fit under its name
SPECIAL = {
    "dense": "columns fall 2 decades",
    "upper": "triangular already",
    "diagonal": "nothing to reflect",
    "rankdef": "last quarter exactly zero",
    "nearrank": "last quarter nearly the first",
    # given: the family is made so
    "clustered": "second half at 4 eps",
    "band": "zeros off the diagonals",
    "rowscale": "rows fall 4 decades",
    "nearcollinear": "nearly one column, n times",
    "mixed": "each matrix its own kind",
}


def _heat(fig, x, y, A, *, side, levels=8, decades=8):
    """A [n, n] as shades of log10|a| below its largest entry; zeros are blank."""
    n = len(A)
    with np.errstate(divide="ignore"):
        depth = np.ceil(levels * (1 + np.log10(np.abs(A) / np.abs(A).max()) / decades))
    depth = np.where(A == 0, 0, np.clip(depth, 1, levels))
    with fig.group(transform=f"translate({x:g} {y:g}) scale({side / n:g})", fill=ink("blue")):
        for level in range(1, levels + 1):
            d = ""
            for i in range(n):
                # a run of one shade is one box
                inside = np.concatenate([[False], depth[i] == level, [False]])
                for a, b in np.flatnonzero(np.diff(inside)).reshape(-1, 2):
                    d += f"M{a} {i}h{b - a}v1h{a - b}z"
            if d:
                fig.add("path", d=d, fill_opacity=level / levels)
    fig.rect(x, y, side, side, color="muted", width=1)


def spectrum(A):
    """Singular values of A [m, n] in float64, largest first."""
    return np.linalg.svd(A.astype(np.float64), compute_uv=False)


def _values(fig, x, y, batch, *, side, label, decades=8):
    """The singular values of each matrix, by decades below its largest, with a line at eps."""
    fig.rect(x, y, side, side, color="faint", width=1)
    level = y - math.log10(EPS) * side / decades
    fig.line(x, level, x + side, level, color="muted", width=1, dash=(2, 3))
    if label:
        fig.text(x + 3, level - 9, "eps", size=12, anchor="start", color="muted")
    for A in batch:
        s = spectrum(A)
        for i, value in enumerate(s / s[0]):
            if value > 10.0**-decades:
                at = (x + (i + 0.5) * side / len(s), y - math.log10(value) * side / decades)
                fig.circle(*at, 1.6, color="none", fill="orange", width=0)


def gallery(n=32, seed=7):
    """The ten families: entries and singular values of a matrix of each, by decades."""
    made = {f: matrices.make(f, 1, n, cond=2, seed=seed) for f in matrices.FAMILIES}
    # one matrix would not show what is mixed
    made["mixed"] = matrices.make("mixed", 4, n, cond=2, seed=seed)
    side, wide, high, gap = 92, 216, 156, 4
    told = []
    for name, batch in made.items():
        s = spectrum(batch[0])
        rank = int((s > 0).sum())
        size = f"condition {short(s[0] / s[-1])}" if rank == n else f"rank {rank} of {n}"
        told.append(f"{name}, {SPECIAL[name]}" + (f": {size}" if len(batch) == 1 else ""))
    foot = -(-len(made) // 2) * high + 10
    fig = Figure(
        2 * wide + 8,
        foot + 16,
        f"Matrices {n} by {n} as heat maps of log |entry|, each beside its singular values from "
        f"the largest down to 1e-8 of it. {'; '.join(told)}.",
        max_width=500,
    )
    for k, (name, batch) in enumerate(made.items()):
        x, y = 4 + (k % 2) * wide, 4 + (k // 2) * high
        fig.text(x, y + 8, name, size=14, anchor="start", bold=True)
        fig.text(x, y + 26, SPECIAL[name], size=13, anchor="start", color="muted")
        y += 40
        each = math.isqrt(len(batch))
        small = (side - (each - 1) * gap) / each
        for b, A in enumerate(batch):
            row, column = divmod(b, each)
            _heat(fig, x + column * (small + gap), y + row * (small + gap), A, side=small)
        _values(fig, x + side + 14, y, batch, side=side, label=k == 0)
    fig.text(4, foot, "blue: log |entry|", size=13, anchor="start", color="blue")
    fig.text(wide + 4, foot, "orange: singular values", size=13, anchor="start", color="orange")
    return fig


class Table(NamedTuple):
    """A table for the page: a caption, the heads of its columns, rows that begin with a head."""

    caption: str
    heads: tuple
    rows: list

    def __str__(self):
        lines = (self.heads, *self.rows)
        widths = [max(len(line[k]) for line in lines) for k in range(len(self.heads))]
        return "\n".join(
            [self.caption, *("  ".join(c.ljust(w) for c, w in zip(r, widths)) for r in lines)]
        )

    def _repr_html_(self):
        head = "".join(f"<th scope='col'>{escape(h)}</th>" for h in self.heads)
        body = "".join(
            f"<tr><th scope='row'>{escape(first)}</th>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in self.rows
        )
        caption = escape(self.caption)
        # where it is wider than the page its own box scrolls, by keyboard too
        return (
            f'<div role="region" aria-label="{caption}" tabindex="0" style="overflow-x:auto">'
            f"<table class='qr-certificate'><caption>{caption}</caption><thead><tr>{head}</tr>"
            f"</thead><tbody>{body}</tbody></table></div>"
        )


def survey(n=64, batch=4, seed=0):
    """{(family, stage): Certificate}, for every family and every stage that runs anywhere."""
    found = {}
    for family in matrices.FAMILIES:
        A = matrices.make(family, batch, n, cond=2, seed=seed)
        for stage in ANYWHERE:
            found[family, stage] = certify(A, *_through_torch(A, stage))
    return found


def _through_torch(A, stage):
    if stage == "s01_mirror":
        return geqrf(A)
    import torch

    return tuple(X.numpy() for X in api.geqrf(torch.from_numpy(A), stage=stage))


def survey_table(found):
    """The worst residuals of a survey, families down and stages across."""
    any_one = next(iter(found.values()))
    m, n = any_one.shape
    rows = []
    for family in matrices.FAMILIES:
        each = [found[family, stage] for stage in ANYWHERE]
        cells = [f"{c.factor.max():.2g} / {c.orthogonality.max():.2g}" for c in each]
        rows.append([family, *cells])
    gates = [f"{gate.factor:g} / {gate.orthogonality:g}" for gate in (TASK, LAPACK)]
    caption = (
        f"factor / orthogonality, in m eps, the worst of {any_one.factor.size} matrices {m} x {n}; "
        f"the task's gates are {gates[0]}, those of LAPACK's test {gates[1]}"
    )
    return Table(caption, ("family", *ANYWHERE), rows)
