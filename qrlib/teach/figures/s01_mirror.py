"""The figures of chapter "One mirror": every number comes from larfg and larf of stage 1."""

import math
from typing import NamedTuple

import numpy as np

from qrlib.stages.s01_mirror import larf, larfg
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number

A3 = np.array([[12.0, -51.0, 4.0], [6.0, 167.0, -68.0], [-4.0, 24.0, -41.0]])
EPS = float(np.finfo(np.float32).eps)


def larfg_with(x, sign):
    """(beta, v, tau) with beta on the opposite side of x[0] (what larfg does) or on the same side.

    The textbook formulas in x's own precision; larfg itself where it can be asked.

    Args:
        x: [m] with x[1:] not zero. sign: "opposite" or "same".
    """
    if sign == "opposite":
        return larfg(x)
    beta = np.copysign(np.sqrt(x @ x), x[0])
    with np.errstate(divide="ignore"):
        v = x / (x[0] - beta)
    v[0] = 1
    return beta, v, (beta - x[0]) / beta


def _pair(x, form="{:.3f}"):
    return f"({', '.join(number(each, form) for each in x)})"


def _on_circle(angle, length):
    return length * np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])


def plane(angle, length=1.0, sign="opposite"):
    """x in the plane, the mirror that sends it to the axis, and the other mirror that could.

    Args:
        angle: of x above the axis, in degrees. length: |x|, at most 1.
        sign: which of the two mirrors is drawn in full; the other is dashed.
    """
    other = {"opposite": "same", "same": "opposite"}[sign]
    fig = Figure(
        420,
        366,
        f"A vector x at {angle:g} degrees to the axis. The mirror of the {sign} sign, through the "
        f"origin, sends it to the axis; v points from the image Hx to x, square to the mirror. The "
        f"mirror of the {other} sign, dashed, sends x to the other side of the origin.",
        max_width=480,
    )
    cx, cy, unit = 210, 160, 122
    fig.circle(cx, cy, unit * length, color="faint", width=1)
    fig.line(10, cy, 410, cy, color="muted", width=1)
    fig.text(412, cy - 12, "axis", color="muted", size=13, anchor="end")
    x = _on_circle(angle, length)
    _draw_mirror(fig, (cx, cy, unit), x, other, main=False)
    _draw_mirror(fig, (cx, cy, unit), x, sign, main=True)
    tip, name = x, x * (1 + 0.13 / length)
    fig.arrow(cx, cy, cx + unit * tip[0], cy - unit * tip[1], color="blue", width=3)
    fig.text(cx + unit * name[0], cy - unit * name[1], "*x*", color="blue", bold=True, halo=True)
    for y, words, look in (
        (326, f"the mirror of the {sign} sign", {"width": 4}),
        (350, f"the mirror of the {other} sign", {"width": 1.5, "color": "muted", "dash": (3, 5)}),
    ):
        fig.line(70, y, 116, y, **look)
        fig.text(128, y, words, size=14, anchor="start")
    return fig


def _draw_mirror(fig, origin, x, sign, main):
    """The mirror of one sign, the image of x and v; the main one in full, the other dashed."""
    cx, cy, unit = origin

    def at(point):
        return cx + unit * point[0], cy - unit * point[1]

    beta, _, _ = larfg_with(x, sign)
    image = np.array([beta, 0.0])
    # the mirror is square to x - image: turn that by a quarter, and let it point up
    along = np.array([image[1] - x[1], x[0] - image[0]])
    along *= math.copysign(1, along[1]) / np.hypot(*along)
    if main:
        mirror = {"width": 4}
        fig.arrow(cx, cy, *at(image), color="green", width=3)
        arrow = {"color": "orange", "width": 3}
        names = ("*v*", "*Hx*", "green")
    else:
        mirror = {"color": "muted", "width": 1.5, "dash": (3, 5)}
        fig.circle(*at(image), 5, color="pink")
        arrow = {"color": "pink", "width": 1.5, "dash": (5, 4)}
        names = ("*v*\u2032", "*H*\u2032*x*", "pink")
    fig.line(*at(-1.12 * along), *at(1.12 * along), **mirror)
    fig.arrow(*at(image), *at(x), **arrow)
    # off the mirror, which crosses the arrow half-way, and outwards, where nothing is drawn
    beside = 0.7 * x + 0.3 * image + 0.13 * along * math.copysign(1, along @ (x + image))
    fig.text(*at(beside), names[0], color=arrow["color"], bold=main, halo=True)
    fig.text(at(image)[0], cy + 20, names[1], color=names[2], bold=main, halo=True)


def plane_words(angle, length=1.0):
    """What the plane figure's numbers are, for both signs."""
    x = _on_circle(angle, length)
    lines = [f"x = {_pair(x)}, length {number(length, '{:.3g}')}"]
    for sign in ("opposite", "same"):
        beta, v, tau = larfg_with(x, sign)
        raw = x - np.array([beta, 0.0])
        lines.append(
            f"{sign} sign: \u03b2 = {number(beta, '{:.3f}')}, x \u2212 Hx = {_pair(raw)} of length "
            f"{number(np.hypot(*raw), '{:.3f}')}; v = (1, {number(v[1], '{:.3f}')}), "
            f"\u03c4 = {number(tau, '{:.3f}')}"
        )
    return "\n".join(lines)


def plane_stepper():
    """The plane figure with x coming down to the axis."""
    frames = [
        Frame(plane(angle), plane_words(angle), f"{angle} degrees") for angle in range(160, 19, -10)
    ]
    return Stepper(
        frames,
        "Angle of x",
        "A vector x turns in the plane; two mirrors send it to the axis, one to each side.",
        lines=6,
    )


def first_entry(t, sign):
    """v[0] = x[0] - beta for x = (1, t), before scaling: in float32, and as it should be.

    Args:
        t: float32. sign: "opposite" or "same".

    Returns:
        computed, exact, and the decimal digits of the computed one that are right.
    """
    one = np.float32(1)
    norm = np.sqrt(one + t * t)
    wide = math.sqrt(1 + float(t) ** 2)
    if sign == "opposite":
        computed, exact = one + norm, 1 + wide
    else:
        # 1 - |x| = -t^2 / (1 + |x|) has no cancellation
        computed, exact = one - norm, -(float(t) ** 2) / (1 + wide)
    error = max(abs(float(computed) - exact) / abs(exact), EPS / 2)
    return float(computed), exact, max(0.0, -math.log10(error))


def orthogonality(x, sign):
    """|H^T H - I| of the reflector made from x in float32, H formed in float64, in units of eps."""
    _, v, tau = larfg_with(x, sign)
    v, tau = v.astype(np.float64), float(tau)
    H = np.eye(len(x)) - tau * np.outer(v, v)
    return float(np.abs(H.T @ H - np.eye(len(x))).sum(0).max()) / EPS


def worst_digits(t, sign):
    """The fewest right digits that v[0] has for tails near t, 32 of them."""
    near = np.float32(t) * np.linspace(0.9, 1.1, 32, dtype=np.float32)
    return min(first_entry(each, sign)[2] for each in near)


TAILS = [np.float32(10.0 ** (-k / 2)) for k in range(9)]
_CURVE = 10.0 ** -np.linspace(0, 4.25, 35)


def _power(exponent):
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + str(exponent).translate(raised)


def _digit_row(fig, y, label, value, trusted):
    """One number, digit by digit; what is not trusted is boxed."""
    mantissa, exponent = f"{value:.8e}".split("e")
    exponent = int(exponent)
    fig.text(14, y, label, size=13, anchor="start", color="muted")
    left = 122
    if value < 0:
        fig.text(left, y, "\u2212", size=15)
    for place, digit in enumerate(mantissa.lstrip("-").replace(".", "")):
        x = left + 16 + 16 * place + (6 if place else 0)
        right = place < trusted
        if not right:
            look = {"color": "pink", "width": 1, "fill": "pink", "fill_opacity": 0.12}
            fig.rect(x - 7, y - 10, 14, 20, r=2, **look)
        fig.text(x, y, digit, size=15, color="ink" if right else "pink", bold=right)
    fig.text(left + 26, y, ".", size=15)
    if exponent:
        fig.text(left + 168, y, f"\u00d7 {_power(exponent)}", size=13, anchor="start")


def digits(t):
    """v[0] in float32 digit by digit, for both signs, and how many are right as t goes to 0."""
    counts = {sign: first_entry(t, sign)[2] for sign in ("opposite", "same")}
    fig = Figure(
        420,
        410,
        f"For x = (1, {t:.3g}) the first entry of v has {counts['opposite']:.1f} right digits with "
        f"the opposite sign and {counts['same']:.1f} with the same sign. Below, a chart of right "
        f"digits against the tail of x: flat near seven for the opposite sign, falling to none for "
        f"the same sign.",
        max_width=480,
    )
    for top, sign, formula in ((16, "opposite", "1 + |*x*|"), (98, "same", "1 \u2212 |*x*|")):
        computed, exact, right = first_entry(t, sign)
        fig.text(14, top, f"{sign} sign: {formula}", anchor="start", bold=True)
        _digit_row(fig, top + 26, "exact", exact, 9)
        _digit_row(fig, top + 52, "in float32", computed, math.floor(right))

    left, right, top, foot = 58, 400, 202, 362

    def at(tail, count):
        along = -math.log10(tail) / 4.25
        return left + along * (right - left), foot - count / 8 * (foot - top)

    for count in (0, 2, 4, 6, 8):
        fig.line(left, at(1, count)[1], right, at(1, count)[1], color="faint", width=1)
        fig.text(left - 10, at(1, count)[1], f"{count}", size=12, color="muted", anchor="end")
    for k in range(5):
        x = at(10.0**-k, 0)[0]
        fig.line(x, foot, x, foot + 5, color="muted", width=1)
        fig.text(x, foot + 16, _power(-k) if k else "1", size=12, color="muted")
    fig.text((left + right) / 2, foot + 36, "the tail *t* of *x* = (1, *t*)", size=13)
    fig.text(14, top - 20, "right digits in *v*[0], worst nearby", size=13, anchor="start")
    for sign, color, dash in (("opposite", "green", None), ("same", "pink", (6, 4))):
        points = [at(tail, worst_digits(tail, sign)) for tail in _CURVE]
        fig.polyline(points, color=color, width=2.5, dash=dash)
        fig.circle(*at(float(t), counts[sign]), 6, color=color, fill="paper", width=2.5)
    fig.text(330, at(1, 7)[1] + 20, "opposite sign", color="green", size=13)
    beside = at(10**-2.2, 3.9)
    fig.text(beside[0] + 14, beside[1], "same sign", color="pink", size=13, anchor="start")
    return fig


def digits_words(t):
    """What the digits figure's numbers are, and what they do to H."""
    x = np.array([1, t], np.float32)
    lines = [f"x = (1, {t:.3g})"]
    for sign in ("opposite", "same"):
        computed, _, right = first_entry(t, sign)
        lines.append(
            f"{sign} sign: {right:.1f} digits right; "
            + (
                f"|H\u1d40H \u2212 I| = {orthogonality(x, sign):.3g} eps"
                if computed
                else "v[0] is 0, and v cannot be scaled by it"
            )
        )
    return "\n".join(lines)


def digits_stepper():
    """The digits figure with x coming down to the axis."""
    frames = [Frame(digits(t), digits_words(t), f"t = {t:.3g}") for t in TAILS]
    return Stepper(
        frames,
        "Tail of x",
        "The digits of the first entry of v, in float32, as x nears the axis.",
        lines=3,
    )


class State(NamedTuple):
    """One step of the walk.

    M: [m, n], the matrix as it is stored. owner: for each entry "A" (to do), "R" or "v".
    tau: those there are. focus: the column looked at, or None. words: what happens.
    """

    M: np.ndarray
    owner: list
    tau: list
    focus: int | None
    words: str


def walk_states(A=A3):
    """A walked down to R in compact form, as a list of State: three for each mirror."""
    M = A.copy()
    m, n = M.shape
    owner = [["A"] * n for _ in range(m)]
    tau = []
    states = []

    def show(words, focus=None):
        states.append(State(M.copy(), [row[:] for row in owner], tau[:], focus, words))

    show("The matrix A. Nothing is done yet.")
    for j in range(min(m, n)):
        x = M[j:, j].copy()
        beta, v, t = larfg(x)
        if t == 0:
            tau.append(t)
            _finish(owner, j)
            show(
                f"Mirror {j}: nothing is left under {number(x[0])}, so no mirror is needed: "
                f"\u03c4 = 0, and the entry keeps its sign."
            )
            continue
        raw = np.array([x[0] - beta, *x[1:]])
        show(
            f"Mirror {j}: the column x = {_pair(x, '{:.4g}')} has length {number(abs(beta))}. "
            f"Its head is {'negative' if x[0] < 0 else 'positive'}, so it goes to {number(beta)}, "
            f"and x \u2212 Hx = {_pair(raw, '{:.4g}')}.",
            focus=j,
        )
        M[j, j], M[j + 1 :, j] = beta, 0
        larf(v, t, M[j:, j + 1 :])
        owner[j][j:] = ["R"] * (n - j)
        show(
            f"Mirror {j} has sent x to {_pair(M[j:, j], '{:.4g}')}, and every column to its right "
            f"where that mirror sends it. Row {j} is a row of R now."
        )
        M[j + 1 :, j] = v[1:]
        _finish(owner, j)
        tau.append(t)
        show(
            f"Zeros need no space. The tail of v = {_pair(v, '{:.4g}')} is stored where they were, "
            f"and \u03c4 = {number(t)} beside."
        )
    closing = (
        " On and above the stairs is R, below them are the tails of v, beside them \u03c4: "
        "all there is to know about Q and R, in the space of A."
    )
    states[-1] = states[-1]._replace(words=states[-1].words + closing)
    return states


def _finish(owner, j):
    """Row j belongs to R from its diagonal on, column j below it to v."""
    owner[j][j:] = ["R"] * len(owner[j][j:])
    for row in owner[j + 1 :]:
        row[j] = "v"


def _short(a):
    return number(a, "{:.4g}" if abs(a) >= 1 else "{:.3g}")


def walk_frame(state, step="one step"):
    """One State as a figure."""
    M, owner, tau, focus, _ = state
    m, n = M.shape
    cell, left, top = 78, 18, 40
    rows = "; ".join(", ".join(f"{a:.4g}" for a in row) for row in M)
    fig = Figure(
        left + n * cell + 116,
        top + m * cell + 44,
        f"{step}: the rows of the matrix are {rows}; tau is "
        f"{', '.join(f'{t:.4g}' for t in tau) or 'not there yet'}.",
        max_width=430,
    )
    colors = {"A": "muted", "R": "blue", "v": "orange"}
    fig.matrix(
        left,
        top,
        M,
        cell=cell,
        color=[[colors[who] for who in row] for row in owner],
        text=_short,
        size=19,
        top=float(np.abs(M).max()),
        decades=6,
    )
    fig.brackets(left - 5, top - 4, n * cell + 10, m * cell + 8)
    stored = {"color": "orange", "width": 1, "dash": (4, 3)}
    for i in range(m):
        for j in range(n):
            if owner[i][j] == "v":
                x, y = left + j * cell, top + i * cell
                fig.rect(x + 4, y + 4, cell - 8, cell - 8, r=3, **stored)
    if tau:
        steps = [
            (left + (j + d) * cell, top + (j + 1) * cell) for j in range(len(tau)) for d in (0, 1)
        ]
        fig.polyline([(left, top), *steps], width=2.5)
    if focus is not None:
        x, y = left + focus * cell, top + focus * cell
        fig.rect(x - 2, y - 2, cell + 4, (m - focus) * cell + 4, r=5, color="orange", width=4)
        fig.text(x + cell / 2, top - 20, "*x*", color="orange", bold=True, size=17)
    side = left + n * cell + 60
    fig.text(side, top - 20, "\u03c4", size=17)
    for j in range(min(m, n)):
        y = top + (j + 0.5) * cell
        fig.circle(side, y, 31, **stored | ({} if j < len(tau) else {"color": "faint"}))
        if j < len(tau):
            fig.text(side, y, _short(tau[j]), size=17)
    foot = top + m * cell + 26
    for x, color, words in ((0, "muted", "to do"), (90, "blue", "R"), (150, "orange", "v, \u03c4")):
        look = stored if color == "orange" else {"color": color}
        fig.rect(left + x, foot - 7, 14, 14, r=2, fill=color, fill_opacity=0.3, **look)
        fig.text(left + x + 22, foot, words, anchor="start", size=15)
    return fig


def walk_stepper(A=A3):
    """A walks down to R, mirror after mirror; the zeros make room for the mirrors themselves."""
    states = walk_states(A)
    steps = [f"step {k} of {len(states) - 1}" for k in range(len(states))]
    frames = [Frame(walk_frame(s, step), s.words, step) for s, step in zip(states, steps)]
    return Stepper(frames, "Step", "A matrix walks down to R, in compact form.", lines=5)


SCALES = 10.0 ** np.arange(-44, 38.1, 0.5)


def norm_errors(scale, m=16):
    """Relative error of |scale * x| in float32: by an unscaled sum of squares, and by larfg.

    Args:
        scale: of the entries. m: how many there are.

    Returns:
        unscaled, scaled; inf where the sum overflows, 1 where it vanishes.
    """
    x = np.random.default_rng(1).standard_normal(m)
    # at most one in size, so that scale says how large the entries get
    x = (x / np.abs(x).max() * scale).astype(np.float32)
    exact = math.sqrt(math.fsum(float(each) ** 2 for each in x))
    with np.errstate(over="ignore", under="ignore"):
        unscaled = float(np.sqrt(np.sum(x * x)))
        beta, _, _ = larfg(x)
    return abs(unscaled - exact) / exact, abs(abs(float(beta)) - exact) / exact


def scales():
    """Where an unscaled sum of squares in float32 can be believed, and where larfg can."""
    floor, ceiling = EPS / 64, 30.0
    errors = np.array([norm_errors(scale) for scale in SCALES])
    safe = SCALES[errors[:, 0] < 8 * EPS]
    alt = (
        # given: the scales of the axis
        f"Relative error of a norm of 16 float32 numbers against their scale, from 1e-44 to 1e38. "
        f"The unscaled sum of squares is right between about {safe[0]:.0e} and {safe[-1]:.0e}; "
        f"below, its error rises to 1; above, it is infinite. larfg is right wherever float32 "
        f"itself has the digits."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        shown = np.clip(errors, floor, ceiling)
        axes.loglog(SCALES, shown[:, 0], "--", color=color["pink"], label="unscaled sum of squares")
        axes.loglog(SCALES, shown[:, 1], "-", color=color["green"], label="larfg, scaled by $2^k$")
        axes.axhline(EPS, color=color["muted"], ls=":", lw=1)
        axes.text(SCALES[-1], 1.4 * EPS, "eps", ha="right")
        axes.text(SCALES[-1], ceiling / 3, "inf", ha="right", va="top", color=color["pink"])
        axes.set(xlabel="scale of the entries", ylabel="relative error of the norm")
        axes.set_ylim(floor, 100)
        axes.set_xticks(10.0 ** np.arange(-40, 31, 10))
        figure.legend(loc="outside upper left")
        return from_matplotlib(figure, alt, max_width=520)
