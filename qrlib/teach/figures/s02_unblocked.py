"""The figures of chapter "A mirror a column": what is drawn comes out of the verbs of stage 2."""

import numpy as np
import torch

from qrlib import matrices, model
from qrlib.certificate import TASK, certify
from qrlib.compact import unpack_r, unpack_v
from qrlib.householder import geqr2, larf
from qrlib.stages.s02_unblocked import geqrf
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style, number, tint

A75 = np.random.default_rng(3).integers(-9, 10, (7, 5)).astype(np.float64)
_SUB = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089"
_COLORS = {"A": "muted", "R": "blue", "v": "orange"}


def sub(j):
    """An index as small figures under the line: 12 as \u2081\u2082."""
    return "".join(_SUB[int(digit)] for digit in str(j))


def short(a):
    """An entry in about six characters: two decimals, one from 10 on, never a false zero."""
    if not np.isfinite(a):
        return number(a, "{:g}")
    if 0 < abs(a) < 0.005:
        return number(a, "{:.1g}")
    words = number(a, "{:.2f}" if abs(a) < 9.995 else "{:.1f}")
    return words.rstrip("0").rstrip(".")


def batch_of_one(A):
    """A [m, n] as a torch batch [1, m, n] of its own."""
    return torch.tensor(A, dtype=torch.float64)[None]


def owners(m, n, done):
    """Who owns each entry [m, n] after `done` mirrors: "A" (still to do), "R" or "v"."""
    return [
        ["v" if i > j and j < done else "R" if min(i, j) < done else "A" for j in range(n)]
        for i in range(m)
    ]


def changed(before, after):
    """(first row, last row, first column, last column) of what differs, or None."""
    rows, columns = np.nonzero(before != after)
    if not len(rows):
        return None
    return int(rows.min()), int(rows.max()), int(columns.min()), int(columns.max())


def _frame(fig, x, y, cell, box):
    """A thick frame around the cells that `changed` names."""
    i0, i1, j0, j1 = box
    size = ((j1 - j0 + 1) * cell, (i1 - i0 + 1) * cell)
    fig.rect(x + j0 * cell, y + i0 * cell, *size, r=5, color="pink", width=4)


def walk_states(A=A75):
    """A after 0, 1, ..., k mirrors: [(H [m, n], tau [mirrors so far])]."""
    states = []
    for done in range(min(A.shape) + 1):
        H, tau = batch_of_one(A), torch.zeros(1, done, dtype=torch.float64)
        geqr2(H, tau)
        states.append((H[0].numpy(), tau[0].tolist()))
    return states


def stairs(fig, x, y, cell, done, n):
    """The border between R and the vectors under it, along the first `done` columns."""
    points = [(x, y)]
    for j in range(done):
        points += [(x + j * cell, y + (j + 1) * cell), (x + (j + 1) * cell, y + (j + 1) * cell)]
    fig.polyline(points, width=2.5)


def _compact(fig, x, y, H, done, *, cell, top, size):
    """H after `done` mirrors, each entry in its owner's colour, those of v with a dashed frame."""
    m, n = H.shape
    owner = owners(m, n, done)
    colors = [[_COLORS[who] for who in row] for row in owner]
    fig.matrix(x, y, H, cell=cell, color=colors, text=short, size=size, top=top, decades=2.5)
    for i in range(m):
        for j in range(n):
            if owner[i][j] == "v":
                box = (x + j * cell + 3, y + i * cell + 3, cell - 6, cell - 6)
                fig.rect(*box, r=3, color="orange", width=1, dash=(3, 3))
    fig.brackets(x - 5, y - 4, n * cell + 10, m * cell + 8)
    if done:
        stairs(fig, x, y, cell, done, n)


def key(fig, x, y, entries):
    """Swatches in a row: (space to the next, colour, dash, fill opacity, words)."""
    for advance, color, dash, opacity, words in entries:
        look = {"fill": color, "fill_opacity": opacity, "dash": dash}
        fig.rect(x, y - 7, 14, 14, r=2, color=color, width=1.5 if opacity else 3, **look)
        fig.text(x + 21, y, words, anchor="start", size=14)
        x += advance


def walk_frame(states, k):
    """A after k mirrors, with a frame around what the last one changed."""
    H, tau = states[k]
    m, n = H.shape
    cell, top = 54, 34
    # wide enough for the key under a narrow matrix
    width = max(n * cell + 126, 396)
    left = (width - n * cell - 58) / 2
    rows = "; ".join(", ".join(short(a) for a in row) for row in H)
    alt = f"The compact form after {k} mirrors. Rows: {rows}. "
    alt += f"tau: {', '.join(short(t) for t in tau) or 'none yet'}."
    fig = Figure(width, top + m * cell + 46, alt, max_width=1.1 * width)
    _compact(fig, left, top, H, k, cell=cell, top=np.abs(states[0][0]).max(), size=14.5)
    for i in range(m):
        fig.text(left - 20, top + (i + 0.5) * cell, str(i), color="muted", size=12)
    for j in range(n):
        fig.text(left + (j + 0.5) * cell, top - 18, str(j), color="muted", size=12)
    side = left + n * cell + 48
    fig.text(side, top - 18, "\u03c4", size=16)
    for j in range(min(m, n)):
        y = top + (j + 0.5) * cell
        ready = j < k
        fig.circle(side, y, 24, color="orange" if ready else "faint", width=1.5, dash=(3, 3))
        if ready:
            fig.text(side, y, short(tau[j]), size=15)
    if k and (box := changed(states[k - 1][0], H)):
        _frame(fig, left, top, cell, box)
    foot = top + m * cell + 28
    key(
        fig,
        width / 2 - 184,
        foot,
        (
            (70, "muted", None, 0.3, "to do"),
            (42, "blue", None, 0.3, "*R*"),
            (58, "orange", (3, 3), 0.3, "*v*, \u03c4"),
            (0, "pink", None, 0, "changed by the last mirror"),
        ),
    )
    return fig


def walk_words(states, k):
    """What mirror k - 1 did, read off the matrices before and after it."""
    if k == 0:
        m, n = states[0][0].shape
        return f"A, {m} \u00d7 {n}. Nothing is done yet."
    H, tau = states[k]
    j = k - 1
    box = changed(states[j][0], H)
    if tau[j] == 0:
        words = f"Column {j} has nothing to reflect: \u03c4{sub(j)} = 0, and nothing changed."
    else:
        i0, i1, j0, j1 = box
        which = f"columns {j0} to {j1}" if j1 > j0 else f"column {j0}"
        words = (
            f"H{sub(j)} changed rows {i0} to {i1} of {which}, and nothing else. Column {j} is "
            f"done: R[{j},{j}] = {short(H[j, j])}, the tail of v{sub(j)} in the zeros under it, "
            f"\u03c4{sub(j)} = {short(tau[j])} beside it."
        )
    if k == len(states) - 1:
        words += " R stands on and above the stairs, Q below them."
    return words


def walk_stepper(A=A75):
    """A walks down to R, a mirror a column."""
    states = walk_states(A)
    m, n = A.shape
    frames = [
        Frame(walk_frame(states, k), walk_words(states, k), f"{k} of {len(states) - 1}")
        for k in range(len(states))
    ]
    return Stepper(frames, "Mirrors", f"A {m} by {n} matrix walks down to R.", lines=5)


def storage(A=A75[:5, :3]):
    """What is kept, H and tau, and what it stands for: V with its implied ones and zeros, and R."""
    H, tau = geqrf(batch_of_one(A))
    V, R = (X[0].numpy() for X in (unpack_v(H), unpack_r(H)))
    H, tau = H[0].numpy(), tau[0].tolist()
    m, n = H.shape
    k = len(tau)
    cell, top, gap = 42, 54, 26
    first, second = 10, 10 + n * cell + gap
    third = second + k * cell + gap
    width, foot = third + n * cell + 10, top + m * cell
    alt = (
        f"Left, the compact form H, {m} by {n}: R on and above the diagonal, the tails of the "
        f"vectors below it, and tau ({', '.join(short(t) for t in tau)}) under it. Middle, V: the "
        f"same tails under a diagonal of ones, zeros above, neither of them stored. Right, R, "
        f"{k} by {n}, with zeros below its diagonal, not stored either."
    )
    fig = Figure(width, foot + 74, alt, max_width=520)
    peak = np.abs(H).max()
    _compact(fig, first, top, H, k, cell=cell, top=peak, size=12.5)
    for x, X, low, color in ((second, V, True, "orange"), (third, R, False, "blue")):
        rows, columns = X.shape
        stored = [
            [color if (i > j if low else i <= j) else "none" for j in range(columns)]
            for i in range(rows)
        ]
        fig.matrix(x, top, X, cell=cell, color=stored, text=short, size=12.5, top=peak, decades=2.5)
        fig.brackets(x - 5, top - 4, columns * cell + 10, rows * cell + 8)
        for i in range(rows):
            for j in range(columns):
                at = (x + (j + 0.5) * cell, top + (i + 0.5) * cell)
                if stored[i][j] == "none":
                    fig.text(*at, short(X[i, j]), color="muted", size=12.5)
                elif low:
                    box = (at[0] - cell / 2 + 3, at[1] - cell / 2 + 3, cell - 6, cell - 6)
                    fig.rect(*box, r=3, color="orange", width=1, dash=(3, 3))
    for x, columns, name, color in (
        (first, n, "*H*", "ink"),
        (second, k, "*V*", "orange"),
        (third, n, "*R*", "blue"),
    ):
        fig.text(x + columns * cell / 2, 14, name, size=16, bold=True, color=color)
    for j, t in enumerate(tau):
        for x, label in ((first, None), (second, f"*v*{sub(j)}")):
            if label:
                fig.text(x + (j + 0.5) * cell, top - 17, label, size=13, color="orange")
        at = (first + (j + 0.5) * cell, foot + 28)
        fig.circle(*at, 18, color="orange", width=1.5, dash=(3, 3))
        fig.text(*at, short(t), size=12.5)
    fig.text(first + n * cell / 2, foot + 62, "kept: *H* and \u03c4", size=13)
    fig.text(
        (second + third + n * cell) / 2, foot + 28, "what they stand for;", size=13, color="muted"
    )
    fig.text(
        (second + third + n * cell) / 2,
        foot + 47,
        "grey ones and zeros are implied",
        size=13,
        color="muted",
    )
    return fig


def slabs(n):
    """A stepped pyramid: slab j holds the (n - j)^2 entries that mirror j works on."""
    layers = [(n - j) ** 2 for j in range(n)]
    flops = model.geqr2(n, n).flops
    leading = model.LEADING["geqr2"].flops(n, n)
    alt = (
        f"{n} square slabs stacked in a corner of a cube, the largest, {n} by {n}, at the bottom, "
        f"one entry at the top. Together they hold {sum(layers)} entries; a pyramid, a third of "
        f"the cube, would hold {n**3 / 3:.1f}."
    )
    fig = Figure(420, 370, alt, max_width=460)
    center, back, across, down, up = 210, 166, 150, 80, 150

    def at(c, r, h):
        # c, r, h in units of n: columns and rows counted from the far corner, height from below
        return center + across * (c - r), back + down * (c + r) - up * h

    for a, b in (
        ((0, 0, 0), (0, 0, 1)),
        ((1, 0, 0), (1, 0, 1)),
        ((0, 1, 0), (0, 1, 1)),
        ((0, 0, 1), (1, 0, 1)),
        ((0, 0, 1), (0, 1, 1)),
        ((1, 0, 1), (1, 1, 1)),
        ((0, 1, 1), (1, 1, 1)),
    ):
        fig.line(*at(*a), *at(*b), color="muted", width=1, dash=(3, 4))
    thin = 1.5 if n <= 8 else 0.8
    for j in range(n):
        s, low, high = 1 - j / n, j / n, (j + 1) / n
        for corners, opacity in (
            (((0, 0, high), (s, 0, high), (s, s, high), (0, s, high)), 0.18),
            (((s, 0, low), (s, 0, high), (s, s, high), (s, s, low)), 0.4),
            (((0, s, low), (0, s, high), (s, s, high), (s, s, low)), 0.62),
        ):
            points = [value for corner in corners for value in at(*corner)]
            d = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(points[::2], points[1::2])) + "Z"
            # the page's colour first, so that what lies behind does not shine through
            fig.path(d, color="paper", width=0, fill="paper")
            fig.path(d, color="blue", width=thin, fill="blue", fill_opacity=opacity)
    fig.line(*at(1, 1, 0), *at(1, 1, 1), color="muted", width=1, dash=(3, 4))
    fig.text(*at(1.08, 0.62, 0), "rows", size=14, anchor="start")
    fig.text(*at(0.62, 1.08, 0), "columns", size=14, anchor="end")
    fig.arrow(26, at(0, 1, 0)[1], 26, at(0, 1, 1)[1], color="muted", width=1.5)
    fig.text(34, at(0, 1, 0.5)[1], "*j*", size=14, anchor="start")
    words = (
        f"n = {n}: the slabs hold {sum(layers)} entries, {sum(layers) / (n**3 / 3):.3f} times the "
        f"pyramid n\u00b3/3.\nCounted operation by operation: {flops} flops, "
        f"{flops / leading:.3f} times 4n\u00b3/3."
    )
    return Frame(fig, words, f"n = {n}")


def slabs_stepper(sizes=(2, 4, 8, 16, 32)):
    """The stepped pyramid of the cost, ever finer."""
    return Stepper(
        [slabs(n) for n in sizes],
        "n",
        "The work of all mirrors as a stack of shrinking slabs, a third of a cube.",
        lines=3,
    )


def forming_states(A=A75):
    """Q forward and backward, after each mirror.

    Returns:
        forward: [Q [m, m]] = I, H_0, H_0 H_1, ...  backward: [Q [m, k]] = I, H_{k-1} I, ..., Q.
    """
    H, tau = geqrf(batch_of_one(A))
    V, k, m = unpack_v(H), tau.shape[-1], H.shape[1]
    Q, thin = (torch.eye(m, columns, dtype=H.dtype)[None] for columns in (m, k))
    forward, backward = [Q[0].numpy().copy()], [thin[0].numpy().copy()]
    for j in range(k):
        # Q H_j = (H_j Q^T)^T
        larf(V[:, j + 1 :, j], tau[:, j], Q.mT[:, j:])
        forward.append(Q[0].numpy().copy())
    for j in reversed(range(k)):
        larf(V[:, j + 1 :, j], tau[:, j], thin[:, j:])
        backward.append(thin[0].numpy().copy())
    return forward, backward


def touched(states, step):
    """How many entries the first `step` mirrors have changed, each mirror counted anew."""
    total = 0
    for before, after in zip(states[:step], states[1 : step + 1]):
        if box := changed(before, after):
            i0, i1, j0, j1 = box
            total += (i1 - i0 + 1) * (j1 - j0 + 1)
    return total


def forming_frame(forward, backward, step):
    """Both ways to Q after `step` mirrors, with a frame around what the last one changed."""
    m, k = backward[0].shape
    cell, top = 31, 58
    # wide enough for the words under a narrow matrix
    widths = [max(columns * cell, 124) for columns in (m, k)]
    counts = [touched(states, step) for states in (forward, backward)]
    alt = (
        f"After {step} of {k} mirrors. Left, forward: the whole {m} by {m} matrix, {counts[0]} "
        f"entries changed so far. Right, backward: {m} by {k}, {counts[1]} entries changed so far, "
        f"all in the lower right corner, which grows."
    )
    width = sum(widths) + 50
    fig = Figure(width, top + m * cell + 34, alt, max_width=1.2 * width)
    first, second = 10 + widths[0] / 2, width - 10 - widths[1] / 2
    forth = f"*Q* \u2190 *Q H*{sub(step - 1)}" if step else "*Q* = *I*"
    back = f"*Q* \u2190 *H*{sub(k - step)} *Q*" if step else "*Q* = *I*"
    for middle, states, name, product in (
        (first, forward, "forward", forth),
        (second, backward, "backward", back),
    ):
        Q = states[step]
        rows, columns = Q.shape
        x = middle - columns * cell / 2
        fig.text(middle, 14, name, bold=True, size=15)
        fig.text(middle, 38, product, size=14)
        fig.matrix(x, top, Q, cell=cell, color="green", text=None, top=1, decades=2)
        fig.brackets(x - 4, top - 3, columns * cell + 8, rows * cell + 6)
        if step and (box := changed(states[step - 1], Q)):
            _frame(fig, x, top, cell, box)
        count = touched(states, step)
        fig.text(middle, top + m * cell + 20, f"{count} changed so far", size=13, color="muted")
    words = f"{step} of {k} mirrors: "
    if step == 0:
        words += "both begin with the identity."
    else:
        words += (
            f"forward has changed {counts[0]} entries, backward {counts[1]}. "
            f"The frames show what the last mirror touched."
        )
    if step == k:
        gap = np.abs(forward[k][:, :k] - backward[k]).max()
        words += f" The first {k} columns agree to {number(gap, '{:.0e}')}."
    return Frame(fig, words, f"{step} of {k}")


def forming_stepper(A=A75):
    """Q formed forward and backward, mirror by mirror."""
    forward, backward = forming_states(A)
    frames = [forming_frame(forward, backward, step) for step in range(len(forward))]
    return Stepper(
        frames, "Mirrors", "Q formed from the first mirror on, and from the last one.", lines=4
    )


def binned(H, most):
    """The largest |entry| of each block of H, `most` blocks a side; nan where one is not finite."""
    bins = [np.array_split(np.arange(size), min(size, most)) for size in H.shape]
    loud = np.where(np.isfinite(H), np.abs(H), np.nan)
    return np.array(
        [[loud[np.ix_(rows, columns)].max() for columns in bins[1]] for rows in bins[0]]
    )


def batch(A, *, most=16):
    """A batch after geqrf of stage 2: every H as a heat map, crossed out where it is not finite.

    Args:
        A: [B, m, n], NumPy or torch, m, n >= 1; the first eight matrices are drawn.
        most: cells a side; a cell of a larger matrix shows the largest entry of a block.
    """
    A = torch.as_tensor(A)
    H, tau = geqrf(A)
    certificate = certify(A, H, tau)
    B = min(A.shape[0], 8)
    maps = [binned(H[b].numpy(), most) for b in range(B)]
    rows, columns = maps[0].shape
    cell = 84 / max(rows, columns)
    across, side, high = min(B, 4), 104, rows * cell + 40
    verdicts = ["passed" if ok else "FAILED" for ok in certificate.each[:B]]
    bad = [int((~torch.isfinite(H[b])).sum()) for b in range(B)]
    alt = f"{B} matrices {A.shape[1]} by {A.shape[2]} after geqrf. " + " ".join(
        f"Matrix {b} {verdicts[b]}" + (f", {bad[b]} entries are not finite." if bad[b] else ".")
        for b in range(B)
    )
    width, height = 8 + across * side, 6 + -(-B // across) * high
    fig = Figure(width, height, alt, max_width=1.3 * width)
    for b, shown in enumerate(maps):
        x, y = 14 + (b % across) * side, 26 + (b // across) * high
        peak = np.nanmax(shown) if np.isfinite(shown).any() else 0.0
        for i, row in enumerate(shown):
            for j, a in enumerate(row):
                left, high_edge = x + j * cell, y + i * cell
                if np.isfinite(a):
                    look = {"fill": "blue", "fill_opacity": 2 * tint(a, peak)}
                    fig.rect(left, high_edge, cell, cell, color="faint", width=0.5, **look)
                else:
                    right, foot = left + cell, high_edge + cell
                    d = f"M{left:.1f} {high_edge:.1f}L{right:.1f} {foot:.1f}"
                    d += f"M{left:.1f} {foot:.1f}L{right:.1f} {high_edge:.1f}"
                    fig.path(d, color="pink", width=1.2)
        fig.brackets(x - 4, y - 4, columns * cell + 8, rows * cell + 8, lip=4)
        color = "green" if certificate.each[b] else "pink"
        fig.text(x, y - 15, f"{b}: {verdicts[b]}", size=13, anchor="start", color=color, bold=True)
    return fig


GROWTH = (4, 8, 16, 32, 64, 128, 256)


def growth_points(sizes=GROWTH, batch=4):
    """The worst factor and orthogonality residual of stage 2 in float32, in eps, for each size."""
    points = []
    for n in sizes:
        A = torch.from_numpy(matrices.make("dense", batch, n, cond=1))
        certificate = certify(A, *geqrf(A))
        points.append((n * certificate.factor.max(), n * certificate.orthogonality.max()))
    return np.array(points)


def growth():
    """The two residuals of stage 2 against n, under the two gates."""
    points = growth_points()
    alt = (
        f"Residuals of unblocked QR in float32 in units of eps against n from {GROWTH[0]} to "
        f"{GROWTH[-1]}. The orthogonality residual goes from {points[0, 1]:.1f} to "
        f"{points[-1, 1]:.0f}, the factor residual from {points[0, 0]:.1f} to {points[-1, 0]:.1f}; "
        f"the gates are at {TASK.orthogonality:g} n and {TASK.factor:g} n, far above."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.6))
        sizes = np.array(GROWTH)
        for gate, name, shade, dash, residual in (
            (TASK.orthogonality, "orthogonality", "green", "-", points[:, 1]),
            (TASK.factor, "factor", "blue", "--", points[:, 0]),
        ):
            axes.loglog(sizes, residual, color=color[shade], ls=dash, marker="o", label=name)
            axes.loglog(sizes, gate * sizes, color=color["muted"], ls=dash, lw=1.2)
        gates = [f"gate of {name}: {gate:g} n" for name, gate in TASK._asdict().items()]
        axes.text(sizes[-1], 0.4 * TASK.factor * sizes[-4], gates[0], ha="right", va="top")
        axes.text(sizes[0], 2 * TASK.orthogonality * sizes[3], gates[1], va="bottom")
        axes.set(xlabel="$n$", ylabel="residual, in eps", ylim=(0.2, 2e5))
        axes.set_xticks(sizes, [str(n) for n in sizes], minor=False)
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)
