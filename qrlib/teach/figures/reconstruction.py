"""The figures of chapter "All columns at once": steps that wait, and residuals that are known."""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from qrlib import matrices, model
from qrlib.devices import DEVICES
from qrlib.householder import exponent_of, power_of_two
from qrlib.matrices import FAMILIES
from qrlib.reconstruction import (
    cholesky,
    geqrf,
    reconstruct,
    signed_lu,
    triangular_inverse,
)
from qrlib.stages.s03_blocked import panel as mirrors
from qrlib.stages.s03_blocked import right_looking, update
from qrlib.teach.gram_schmidt import with_condition
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number

EPS = float(np.finfo(np.float32).eps)


class Work(NamedTuple):
    """A piece of the work on a panel.

    name: in a word or two. steps: so many parts, each of which waits for the one before it.
    rows: it goes through all m rows, not through b. meets: it ends with a sum over them.
    """

    name: str
    steps: int
    rows: bool
    meets: bool


def works(b):
    """([Work] of b mirrors, [Work] of a reconstruction), in order."""
    columns = [Work(f"mirror {j}", 1, True, True) for j in range(b)]
    return columns, [
        Work("P\u1d40P", 1, True, True),
        Work("Cholesky and LU", b, False, False),
        Work("W\u207b\u00b9", b, False, False),
        Work("V", 1, True, False),
        Work("V\u1d40V", 1, True, True),
        Work("T", b, False, False),
    ]


def meetings(work):
    return sum(each.meets for each in work)


def steps(work):
    return sum(each.steps for each in work)


def touched(work, m, b):
    """Elements that all steps go through, one after another."""
    return sum(each.steps * (m if each.rows else b) * b for each in work)


def chain(b=16):
    """Both ways side by side, time running down: what is wide goes through all rows."""
    columns, products = works(b)
    high, thin, gap, top = 15, 3.2, 3, 58
    wide, narrow, left, right = 140, 44, 12, 212
    tall = top + b * (high + gap)
    y = top
    for each in products:
        y += each.steps * thin + gap + 4 if each.steps > 1 else high + gap
    height = max(tall, y) + 34
    alt = (
        f"Two columns of boxes, time runs down. Left, {b} mirrors, one after another, each as wide "
        f"as all rows of the panel and ending in a bar where all rows meet: {meetings(columns)} "
        f"meetings. Right: {', '.join(each.name for each in products)}. Only "
        f"{', '.join(each.name for each in products if each.rows)} are as wide as all rows, and "
        f"there are {meetings(products)} meetings; the others have {b} steps each, but narrow ones."
    )
    fig = Figure(440, height, alt)
    for x, words, count in ((left, "a mirror a column", columns), (right, "all at once", products)):
        fig.text(x, 14, words, size=15, anchor="start", bold=True)
        note = f"all rows meet: {meetings(count)} times"
        fig.text(x, 36, note, size=13, anchor="start", color="muted")
    for k in range(b):
        y = top + k * (high + gap)
        _wide(fig, left, y, wide, high, "orange", True)
    for j in (0, b - 1):
        fig.text(left + wide / 2, top + j * (high + gap) + 7, f"mirror {j}", size=11)
    y = top
    for each in products:
        if each.rows:
            _wide(fig, right, y, wide, high, "blue", each.meets)
            fig.text(right + wide + 8, y + 7, each.name, size=12, anchor="start")
            y += high + gap
            continue
        tallness = each.steps * thin
        for k in range(each.steps):
            look = {"color": "none", "fill": "blue", "fill_opacity": 0.55}
            fig.rect(right + (wide - narrow) / 2, y + k * thin, narrow, thin - 1, **look)
        x, middle = right + (wide + narrow) / 2 + 8, y + tallness / 2
        fig.text(x, middle - 8, each.name, size=12, anchor="start")
        fig.text(x, middle + 8, f"{each.steps} steps", size=12, anchor="start", color="muted")
        y += tallness + gap + 4
    fig.arrow(4, top, 4, height - 26, color="muted", width=1.5)
    fig.text(left, height - 12, "time, not to scale", size=12, anchor="start", color="muted")
    return fig


def _wide(fig, x, y, width, high, color, meets):
    fig.rect(x, y, width, high, r=2, color=color, width=1, fill=color, fill_opacity=0.3)
    if meets:
        fig.line(x, y + high, x + width, y + high, color="pink", width=3)


class Parts(NamedTuple):
    """A small panel and all that its reconstruction makes, [m, b] or [b, b], in order."""

    P: np.ndarray
    G: np.ndarray
    R: np.ndarray
    Q1: np.ndarray
    L: np.ndarray
    U: np.ndarray
    S: np.ndarray
    V: np.ndarray
    T: np.ndarray


# Q R with Q of fifths and R = [[5, 5], [0, 5]]
P42 = np.array([[2.0, -2], [1, -1], [2, 3], [4, 6]])


def parts(P=P42):
    """Parts of a panel [m, b], in float64."""
    X = torch.from_numpy(P)[None]
    b = P.shape[1]
    R = cholesky(X.mT @ X)[0]
    Q1 = X[:, :b] @ triangular_inverse(R)
    L, U, S = signed_lu(Q1)
    found = reconstruct(X)
    made = (X, X.mT @ X, R, Q1, L, U, torch.diag_embed(S), found.V, found.T)
    return Parts(*(each[0].numpy() for each in made))


WALK = (
    ("P", "A panel. Nobody goes through it column by column."),
    ("G", "G = P\u1d40P. All rows meet, once, for all columns together."),
    ("R", "R\u1d40R = G: the Cholesky factor, from a matrix that is small."),
    ("Q1", "The top square of Q\u0303 = P R\u207b\u00b9. More of Q\u0303 is not needed."),
    ("S", "S has the signs that Householder would have chosen: against the diagonal."),
    (
        "L",
        "Q\u0303\u2081 \u2212 S = L U: elimination, no search for pivots. L is the top of V.",
    ),
    ("V", "The rest of V is P (R\u207b\u00b9 U\u207b\u00b9): one product over all rows."),
    ("T", "V\u1d40V gives \u03c4 and T. R of the mirrors is S R. Done: H, \u03c4, V, T."),
)


def walk_frame(k, P=P42):
    """A reconstruction after k of its steps, with the numbers it has made."""
    made = parts(P)._asdict()
    m, b = P.shape
    cell, top = 42, 30
    side = b * cell
    x_small, x_V = 20 + side + 22, 20 + 3 * side + 66
    place = {
        "P": (12, top, "*P*"),
        "G": (x_small, top, "*G* = *P*\u1d40*P*"),
        "R": (x_small + side + 22, top, "*R*"),
        "Q1": (x_small, top + side + 34, "top of *Q\u0303*"),
        "S": (x_small + side + 22, top + side + 34, "*S*"),
        "L": (x_small, top + 2 * side + 68, "*L*"),
        "U": (x_small + side + 22, top + 2 * side + 68, "*U*"),
        "V": (x_V, top, "*V*"),
        "T": (x_V, top + 2 * side + 68, "*T*"),
    }
    shown = [name for name, _ in WALK[: k + 1]]
    now = shown[-1]
    if "L" in shown:
        shown.insert(shown.index("L") + 1, "U")
    fig = Figure(
        x_V + side + 12, top + 3 * side + 76, walk_alt(k, shown), max_width=1.15 * (x_V + side)
    )
    # what the last step has read
    read = {"G": "P", "R": "G", "Q1": "PR", "S": ("Q1",), "L": ("Q1", "S"), "V": "PRU", "T": "V"}
    for name in shown:
        x, y, words = place[name]
        X = made[name]
        new = name == now or (name, now) == ("U", "L")
        used = name in read.get(now, ())
        color = "pink" if new else "blue" if used else "muted"
        colors = np.where(X == 0, "none", color)
        top_of = {"P": 6, "G": 50, "R": 5}.get(name, 2)
        fig.matrix(x, y, X, cell=cell, color=colors.tolist(), text=_entry, size=12.5, top=top_of)
        fig.brackets(x - 3, y - 3, side + 6, len(X) * cell + 6, lip=5)
        fig.text(x + side / 2, y - 15, words, size=14, bold=new, color=color if new else "ink")
    return fig


def _entry(a):
    return number(round(a, 2) + 0.0, "{:g}")


def walk_alt(k, shown):
    return f"The matrices made so far: {', '.join(shown)}. {WALK[k][1]}"


def walk_stepper():
    """A panel of two columns and its mirrors, in eight looks."""
    frames = [Frame(walk_frame(k), words, name) for k, (name, words) in enumerate(WALK)]
    return Stepper(frames, "Steps", "Mirrors of a panel, from its Gram matrix.", lines=2)


def turned(angle, sign=None):
    """(q, S, pivot, v): the mirror hidden in the unit vector (cos, sin) of an angle in degrees.

    sign: of S; None for Householder's choice, against q[0].
    """
    q = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
    S = -np.copysign(1.0, q[0]) if sign is None else float(sign)
    pivot = q[0] - S
    return q, S, pivot, np.array([1.0, q[1] / pivot if pivot else np.inf])


def hidden_frame(angle):
    """A unit vector, S on the axis, and v, which is the difference of the two made 1 long in x."""
    q, S, pivot, v = turned(angle)
    size, middle = 330, 165
    alt = (
        f"The unit circle. q at {angle} degrees, S = {S:g} on the axis on the other side. An "
        f"arrow from S to q: it has the direction of v = (1, {v[1] + 0.0:.2f}) and "
        f"{abs(pivot):.2f} along the axis. The glass of the mirror is at right angles to it."
    )
    fig = Figure(size, size, alt)
    r = 120

    def at(x, y):
        return middle + r * x, middle - r * y

    fig.line(*at(-1.3, 0), *at(1.3, 0), color="faint")
    fig.line(*at(0, -1.3), *at(0, 1.3), color="faint")
    fig.circle(*at(0, 0), r, color="muted", width=1)
    glass = np.array([-v[1], 1.0]) / np.hypot(*v)
    fig.line(*at(*(-1.3 * glass)), *at(*(1.3 * glass)), color="green", width=2, dash=(7, 5))
    fig.arrow(*at(0, 0), *at(*q), color="blue", width=3)
    fig.arrow(*at(0, 0), *at(S, 0), color="orange", width=3, dash=(6, 3))
    fig.arrow(*at(S, 0), *at(*q), color="pink", width=2)
    fig.text(*at(*(1.13 * q)), "*q*", size=16, color="blue", bold=True, halo=True)
    fig.text(*at(1.16 * S, -0.1), "*S*", size=16, color="orange", bold=True, halo=True)
    half = (np.array([S, 0]) + q) / 2
    fig.text(*at(half[0], half[1] + 0.14), "*q* \u2212 *S*", size=14, color="pink", halo=True)
    fig.text(*at(*(1.22 * glass)), "glass", size=13, color="green", halo=True)
    return fig


def hidden_stepper(angles=(-160, -120, -91, -60, -20, 0, 20, 60, 89, 91, 120, 150)):
    """The mirror that an entry of Q hides, for a vector that goes round."""
    frames = []
    for angle in angles:
        q, S, pivot, v = turned(angle)
        q0, q1, p, v1 = (number(round(x, 2) + 0.0, "{:.2f}") for x in (*q, pivot, v[1]))
        words = f"q = ({q0}, {q1}), S = {number(S)}. Pivot {p}; v = (1, {v1})."
        frames.append(Frame(hidden_frame(angle), words, f"{number(angle)} degrees"))
    return Stepper(frames, "Angle", "A vector of length one and the mirror it hides.", lines=2)


def directions(P):
    """kappa of the columns of P [B, m, b], each made 1 long; columns of zeros left out. [B]"""
    found = []
    for X in P.double():
        lengths = X.norm(dim=0)
        X = (X / lengths)[:, lengths > 0]
        s = torch.linalg.svdvals(X) if X.shape[1] else torch.ones(1)
        found.append(float(s[0] / s[-1]) if s[-1] > 0 else float("inf"))
    return found


@cache
def conditions(family, n=256, nb=32, batch=2):
    """[(first column, kappa)] of the panels as they come: the worst of a batch, lengths apart."""
    found = []

    def watched(H, tau):
        found.append((n - H.shape[1], max(directions(H))))
        return mirrors(H, tau)

    A = torch.from_numpy(matrices.make(family, batch, n, cond=2))
    right_looking(A, nb, watched, update)
    return found


PLOTTED = ("dense", "clustered", "band", "rowscale", "nearcollinear")


def conditions_plot(n=256, nb=32):
    """How nearly the columns of each panel depend on each other, for five families."""
    lines = {family: conditions(family, n, nb) for family in PLOTTED}
    said = "; ".join(
        f"{family}: first {ks[0][1]:.1g}, last {ks[-1][1]:.1g}" for family, ks in lines.items()
    )
    alt = (
        f"Condition number of the columns of each panel, all made equally long, against its first "
        f"column, n = {n}, panels of {nb}. {said}. A line at {one_pass():.0f}: there the Gram "
        "matrix in float32 has lost everything."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.6))
        for family, ks in lines.items():
            axes.semilogy(*zip(*ks), label=family, marker="o", markersize=3.5)
        axes.axhline(one_pass(), color=color["ink"], linewidth=1, linestyle="--")
        axes.text(n - nb, one_pass() * 1.25, "1/\u221aeps", ha="right", color=color["ink"])
        axes.set(xlabel="first column of the panel", ylabel="\u03ba, columns of equal length")
        axes.set_xticks(range(0, n, 64))
        axes.legend(loc="upper center", ncols=2)
        axes.set_ylim(top=3e6)
    return from_matplotlib(figure, alt)


def one_pass(eps=EPS):
    """The kappa whose square is 1/eps."""
    return eps**-0.5


class Loss(NamedTuple):
    """What became of a panel with a condition number.

    gone: |Q~^T Q~ - I|_1, E: what stands for it. true: the factor residual of the worst column, by
    float64; known: as it is read off from b x b matrices. orthogonality: |Q^T Q - I|_2 of the
    mirrors, Q = I - V T V^T.
    """

    kappa: float
    gone: float
    E: float
    true: float
    known: float
    orthogonality: float
    ok: bool


def loss(P, kappa=0.0, passes=1):
    """Loss of a panel [m, b], NumPy float32."""
    X = torch.from_numpy(P)[None]
    b = X.shape[2]
    found = reconstruct(X, passes)
    # as reconstruct does: powers of two, or squares would leave the range
    Q = X * power_of_two(-exponent_of(X[0].mT), X.dtype)
    there = (X != 0).any(1)
    for _ in range(passes):
        Q = Q @ triangular_inverse(cholesky(Q.mT @ Q)[0])
    L, U, S = signed_lu(Q[:, :b])
    E = ((U * S[:, None] + found.T @ L.mT) * there[:, None]).abs().sum(1).max()
    Q = Q.double()
    V, T, R, D = found.V.double(), found.T.double(), found.R.double(), X.double()
    rest = D - V @ (T.mT @ (V.mT @ D))
    rest[:, :b] -= R
    # Q^T Q - I = V (T^T G T - T - T^T) V^T
    middle = T.mT @ (V.mT @ V) @ T - T - T.mT
    return Loss(
        kappa,
        float((Q.mT @ Q - torch.diag_embed(there.double())).abs().sum(1).max()),
        float(E),
        float((rest.norm(dim=1) / D.norm(dim=1).clamp(min=1e-300)).max()),
        float(found.backward),
        float(torch.linalg.matrix_norm(V @ middle @ V.mT, 2)),
        bool(found.ok),
    )


KAPPAS = tuple(float(10 ** (k / 4)) for k in range(16))


@cache
def losses(m=512, b=32):
    """[Loss] of panels with condition numbers from 1 on, until there is no Cholesky factor."""
    found = []
    for kappa in KAPPAS:
        each = loss(with_condition(m, b, kappa, seed=1), kappa)
        if not each.ok:
            break
        found.append(each)
    return found


def losses_plot(m=512, b=32):
    """Two lines and their certificates: what Q~ has lost, and what is kept."""
    found = losses(m, b)
    k = [each.kappa for each in found]
    last, limit = found[-1], m * EPS / 2
    alt = (
        f"Against the condition number of a panel {m} by {b}, both axes logarithmic. Q tilde "
        f"transposed times Q tilde minus I climbs with slope 2, from {found[0].gone:.1g} to "
        f"{last.gone:.1g}; E lies on it. The factor residual climbs with slope 1, from "
        f"{found[0].true:.1g} to {last.true:.1g}; what is read off lies on it. The mirrors stay "
        f"orthogonal to {last.orthogonality:.1g}. The limit of a residual is {limit:.1g}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 4.2))
        look = {"linestyle": "none", "markersize": 5}
        axes.loglog(
            k,
            [e.gone for e in found],
            label="Q\u0303 from orthonormal",
            color=color["orange"],
            linestyle="--",
        )
        axes.loglog(k, [e.E for e in found], label="E", color=color["orange"], marker="s", **look)
        axes.loglog(k, [e.true for e in found], label="factor residual", color=color["blue"])
        axes.loglog(
            k,
            [e.known for e in found],
            label="as it is read off",
            color=color["blue"],
            marker="o",
            **look,
        )
        axes.loglog(
            k,
            [e.orthogonality for e in found],
            label="mirrors from orthogonal",
            color=color["green"],
            linestyle="-.",
        )
        axes.axhline(limit, color=color["ink"], linewidth=1, linestyle=":")
        axes.text(1, limit * 1.3, "limit of the residual", color=color["ink"])
        axes.set(xlabel="\u03ba of the panel", ylim=(1e-7, 60))
        axes.legend(loc="upper left")
    return from_matplotlib(figure, alt)


def defeating(m=64, b=16):
    """{name: P [m, b]}: panels that a Gram matrix may not survive, and some that it does."""
    rng = np.random.default_rng(2)
    easy = rng.standard_normal((m, b), dtype=np.float32)
    turn = np.linalg.qr(rng.standard_normal((m, b)))[0]
    twice, last, between = easy.copy(), easy.copy(), easy.copy()
    twice[:, 5] = twice[:, 1]
    last[:, -3:] = 0
    between[:, 3] = 0
    return {
        "normal numbers": easy,
        "lengths to 1e-30": easy * np.float32(10.0) ** -np.arange(0, 2 * b, 2, dtype=np.float32),
        "zeros at the end": last,
        "kappa 10": with_condition(m, b, 10),
        "kappa 1000": with_condition(m, b, 1e3),
        "kappa 1e8": with_condition(m, b, 1e8),
        "Kahan, turned": (turn @ matrices.kahan(b)).astype(np.float32),
        "Hilbert": matrices.hilbert(m)[:, :b].copy(),
        "nearcollinear": matrices.make("nearcollinear", 1, m)[0, :, :b].copy(),
        "a column twice": twice,
        "zeros between": between,
        "triangular": np.triu(easy),
    }


@cache
def fallen(family, n=256, nb=32, passes=1, batch=4):
    """(fell, of): tall panels of a batch that went to Householder, and how many there are."""
    fell = []
    A = torch.from_numpy(matrices.make(family, batch, n, cond=2))
    geqrf(A, nb=nb, passes=passes, fell=fell)
    tall = [each for k, each in enumerate(fell) if n - k * nb >= 2 * nb]
    return int(sum(each.sum() for each in tall)), batch * len(tall)


WIDTHS = (16, 32, 64, 128)


def fallen_map(n=256, widths=WIDTHS, families=FAMILIES):
    """Tall panels that fell, of each family and width, with one pass and with two."""
    counts = {
        passes: [[fallen(family, n, nb, passes) for nb in widths] for family in families]
        for passes in (1, 2)
    }
    cell, row, left, top, gap = 38, 28, 112, 66, 22
    width = left + 2 * len(widths) * cell + gap + 8
    said = "; ".join(
        f"{family}: {', '.join(f'{f} of {of}' for f, of in counts[1][k])}, with two passes "
        f"{', '.join(str(f) for f, _ in counts[2][k])}"
        for k, family in enumerate(families)
    )
    alt = (
        f"Panels at least twice as tall as wide that went to Householder, n = {n}, for panels of "
        f"{', '.join(map(str, widths))} columns. {said}."
    )
    fig = Figure(width, top + row * (len(families) + 1), alt, max_width=1.1 * width)
    for block, (passes, words) in enumerate(((1, "one pass"), (2, "two passes"))):
        x = left + block * (len(widths) * cell + gap)
        fig.text(x + len(widths) * cell / 2, 14, words, size=14, bold=True)
        for c, nb in enumerate(widths):
            middle = x + (c + 0.5) * cell
            fig.text(middle, 38, str(nb), size=13)
            for k in range(len(families)):
                f, of = counts[passes][k][c]
                y = top + k * row
                look = {"fill": "pink", "fill_opacity": 0.5 * f / of}
                fig.rect(
                    x + c * cell + 1,
                    y - row / 2 + 1,
                    cell - 2,
                    row - 2,
                    r=3,
                    color="pink" if f else "faint",
                    width=1,
                    **look,
                )
                fig.text(middle, y, str(f), size=13, color="ink" if f else "muted")
            of = counts[passes][0][c][1]
            fig.text(middle, top + len(families) * row, f"of {of}", size=11, color="muted")
    for k, family in enumerate(families):
        fig.text(8, top + k * row, family, size=13, anchor="start")
    fig.text(8, 38, "columns", size=13, anchor="start", color="muted")
    return fig


def flops(m, b):
    """{way: flops} of a panel: b mirrors and their T; a reconstruction, as plain products do it."""
    gemm = model.gemm
    small = gemm(b, b, b).flops
    return {
        "mirrors and T": (model.geqr2(m, b) + model.larft(m, b, dense=True)).flops,
        "all rows": (gemm(b, b, m) + gemm(m - b, b, b) + gemm(b, b, m)).flops,
        # Cholesky and LU, two inverses; L^T R, T times that, G Y
        "small": small // 2 + 2 * small // 6 + 3 * small,
    }


class Predicted(NamedTuple):
    """What the tall panels of B matrices n x n take on a device: seconds, and steps that wait."""

    memory: float
    arithmetic: float
    steps: int


def predicted(B, n, b, device="H200"):
    """Predicted, at the rates measured on a device, for panels of b columns by a Gram matrix.

    A panel is read for its Gram matrix and for V, and leaves as H and as V; products are made of
    three in tf32. Panels less than twice as tall as wide are left out.
    """
    seen = DEVICES[device].measured
    heights = range(n, 2 * b - 1, -b)
    work = sum(flops(m, b)["all rows"] + flops(m, b)["small"] for m in heights)
    return Predicted(
        sum(4 * B * (4 * m * b + b * b + b) for m in heights) / seen["bandwidth"].value,
        3 * B * work / seen["tf32"].value,
        len(heights) * steps(works(b)[1]),
    )
