"""The figures of chapter "Trust, but certify": every number comes from a factorization and its certificate."""

import math
from functools import cache
from html import escape
from typing import NamedTuple

import numpy as np

from qrlib import api, matrices
from qrlib.certificate import LAPACK, TASK, certify
from qrlib.stages import STAGES
from qrlib.stages.s01_mirror import geqrf, larf, larfg
from qrlib.teach.gram_schmidt import METHODS, orthogonality, with_condition
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, ink, matplotlib_style, number

EPS = float(np.finfo(np.float32).eps)


def short(value):
    """A residual in three digits: 0, 0.0123, 131, 1.29e5."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if 1e-3 <= value < 1e4:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "\u2212")


class Answer(NamedTuple):
    """A (H, tau) that somebody hands in for A, and what it is. All [1, m, n] or [1, k]."""

    name: str
    words: str
    A: np.ndarray
    H: np.ndarray
    tau: np.ndarray


def answers(n=6, seed=0):
    """Four wrong answers and a right one, for one matrix whose last columns are zero."""
    A = matrices.make("rankdef", 1, n, seed=seed)
    H, tau = geqrf(A)
    zero, H_off, tau_off, tau_one = A.copy(), H.copy(), tau.copy(), tau.copy()
    H_off[0, 1, 3] *= np.float32(1.1)
    tau_off[0, 0] *= np.float32(0.9)
    tau_one[0, -1] = 1
    return [
        Answer("nothing done", "H = A and \u03c4 = 0: nobody did anything.", A, zero, tau * 0),
        Answer("one entry of R off", "One entry of R is 10 % too large.", A, H_off, tau),
        Answer("\u03c4 for a zero column", "The column of zeros got \u03c4 = 1.", A, H, tau_one),
        Answer("one \u03c4 off", "\u03c4 of the first mirror is 10 % too small.", A, H, tau_off),
        Answer("stage 1", "What stage 1 returns.", A, H, tau),
    ]


def verdict(answer):
    """Both residuals of an Answer in words, each with its gate."""
    c = certify(answer.A, answer.H, answer.tau)
    sides = [
        f"{name} {short(value)}, gate {gate:g}: {'passes' if value <= gate else 'FAILS'}"
        for name, _, value, _, gate, _ in c.rows()
    ]
    return "; ".join(sides)


def residuals_frame(answer):
    """R - Q^T A and Q^T Q - I as blocks; an entry beyond eps-size is filled, rounding is an outline."""
    A, H, tau = (np.asarray(X, np.float64) for X in (answer.A, answer.H, answer.tau))
    m, n = A.shape[1:]
    R = np.triu(H[0])
    Q = api.ormqr(H, tau, np.eye(m)[None])[0]
    F, E = R - Q.T @ A[0], Q.T @ Q - np.eye(m)
    certificate = certify(answer.A, answer.H, answer.tau)
    cell, gap, top, high = 15, 26, 44, 206
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
        (A[0], "*A*", "blue", size),
        (Q, "*Q*", "green", 1),
        (np.eye(m), "*I*", "muted", 1),
    )
    minus, equals = "\u2212", "="
    for row, (which, question, blocks, signs, X, peak) in enumerate(
        (
            ("factor", "is it a factorization of *A*?", (r, qt, a), (minus, "", equals), F, size),
            ("orthogonality", "is *Q* a *Q*?", (qt, q, one), ("", minus, equals), E, 1),
        )
    ):
        y = row * high + top
        fig.text(4, y - 30, f"{which}: {question}", size=14, anchor="start", bold=True)
        # rounding stays an outline; what a gate must catch is filled
        found = [["pink" if abs(x) > 1e-3 * peak else "muted" for x in line] for line in X]
        for k, (block, name, color, deepest) in enumerate((*blocks, (X, "", found, peak))):
            x = 4 + k * (side + gap)
            fig.matrix(x, y, block, cell=cell, color=color, text=None, top=deepest, decades=8)
            fig.brackets(x - 3, y - 3, side + 6, side + 6, lip=5)
            fig.text(x + side / 2, y + side + 18, name, size=14)
            if k < 3:
                fig.text(x + side + gap / 2, y + side / 2, signs[k], size=16)
        value, gate = getattr(certificate, which)[0], getattr(TASK, which)
        ok = value <= gate
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
        "column, a wrong tau, and a right one. Each shows in one residual, in the other, or both.",
        lines=3,
    )


# drawn in this order; each with the place of its name, and what to expect of it
_METHODS = (
    ("classical Gram-Schmidt", "blue", "-", (2e5, 60), "follows \u03ba\u00b2 eps"),
    ("modified Gram-Schmidt", "orange", "--", (1.5e5, 4e-4), "follows \u03ba eps"),
    ("Cholesky QR", "green", "-.", (12, 8), "follows \u03ba\u00b2 eps, then stops"),
    ("Cholesky QR twice", "pink", ":", (1.3, 2.2e-7), "stays at eps, and stops with the first"),
    ("Householder", "ink", "-", (2e5, 1.1e-5), "stays at eps"),
)
CONDITIONS = 10.0 ** np.arange(0, 8.01, 0.25)


@cache
def losses(method, n=64, seed=0):
    """|Q^T Q - I| of one of METHODS against CONDITIONS, float32, n by n; nan where it breaks down."""
    out = []
    for kappa in CONDITIONS:
        A = with_condition(n, n, kappa, seed=seed)
        try:
            out.append(orthogonality(METHODS[method](A)[0]) * n * EPS)
        except np.linalg.LinAlgError:
            out.append(math.nan)
    return np.array(out)


def crossing(method, n=64, seed=0):
    """The first of CONDITIONS at which a method fails the gate or breaks down; None if at none."""
    failed = ~(losses(method, n, seed) <= TASK.orthogonality * n * EPS)
    return float(CONDITIONS[failed.argmax()]) if failed.any() else None


def last_result(method, n=64, seed=0):
    """The last of CONDITIONS at which a method gives any result."""
    return float(CONDITIONS[np.flatnonzero(np.isfinite(losses(method, n, seed)))[-1]])


def comparison(named=len(_METHODS), n=64, seed=0):
    """Loss of orthogonality against the condition number, for five ways to Q, in float32.

    Args:
        named: how many of the five curves have a colour and a name; the others are grey.
        n, seed: of the matrices.
    """
    gate = TASK.orthogonality * n * EPS
    told = [f"{name}: {fate(name, n, seed)}" for name, *_ in _METHODS[:named]]
    alt = (
        f"Loss of orthogonality of Q against the condition number from 1 to 1e8, for "
        f"{n} by {n} matrices in float32, both axes logarithmic, with guide lines eps, kappa eps and "
        f"kappa squared eps, and the gate at {gate:.1e}. "
        + ("; ".join(told) + "." if told else "Five curves without names.")
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(4.6, 4.0), layout="none")
        axes = figure.add_axes((0.145, 0.125, 0.835, 0.855))
        axes.set(xscale="log", yscale="log", xlim=(1, 1e8), ylim=(5e-8, 300))
        axes.set(xlabel="condition number \u03ba of A", ylabel="|Q\u1d40Q \u2212 I|")
        for power, name, at in (
            (0, "eps", 6e6),
            (1, "\u03ba eps", 9e6),
            (2, "\u03ba\u00b2 eps", 7e3),
        ):
            axes.plot(CONDITIONS, EPS * CONDITIONS**power, color=color["faint"], lw=1.2, ls="-")
            axes.text(at, 1.4 * EPS * at**power, name, color=color["muted"], ha="right", fontsize=9)
        axes.axhline(gate, color=color["ink"], lw=1, ls=(0, (1, 2)))
        axes.text(8e7, 1.25 * gate, f"gate {TASK.orthogonality:g} n eps", ha="right", fontsize=9)
        for k, (name, hue, dash, at, _) in enumerate(_METHODS):
            shown = k < named
            loss = losses(name, n, seed)
            look = (
                {"color": color[hue], "ls": dash, "lw": 2.2} if shown else {"color": color["muted"]}
            )
            axes.plot(CONDITIONS, loss, **({"ls": "-", "lw": 1} | look))
            if np.isnan(loss).any():
                end = np.flatnonzero(np.isfinite(loss))[-1]
                axes.plot(CONDITIONS[end], loss[end], "x", color=look["color"], ms=8, mew=2)
            if shown:
                axes.text(*at, name, color=color[hue], fontsize=10)
        return from_matplotlib(figure, alt, max_width=560)


def fate(method, n=64, seed=0):
    """What became of a method, in words, with the condition numbers read off its curve."""
    fails, last = crossing(method, n, seed), last_result(method, n, seed)
    if fails is None:
        worst = np.nanmax(losses(method, n, seed)) / (n * EPS)
        return f"within the gate everywhere; {short(worst)} n eps at worst, gate {TASK.orthogonality:g}"
    broken = last < CONDITIONS[-1]
    end = f", no result at all beyond {last:.1e}" if broken else ""
    return ("fails the gate" if fails <= last else "within the gate while it works") + (
        f" from \u03ba = {fails:.1e} on{end}" if fails <= last else end
    )


def comparison_stepper(n=64, seed=0):
    """Five curves without names; then one name after another."""
    frames = []
    for k, (name, *_, law) in enumerate(_METHODS, start=1):
        rest = f" {len(_METHODS) - k} to go." if k < len(_METHODS) else ""
        words = f"{name}: {law}; {fate(name, n, seed)}.{rest}"
        frames.append(Frame(comparison(k, n, seed), words, name))
    words = "Five curves, no names. Which is which? Write down your guess, then press \u25b6."
    frames.append(Frame(comparison(0, n, seed), words, "no names yet"))
    return Stepper(
        frames,
        "Names",
        "Loss of orthogonality against condition number for five methods, named one by one.",
        lines=3,
    )
