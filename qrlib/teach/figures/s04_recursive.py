"""The figures of chapter "Halves of halves": the order of the recursion, and what it adds up to."""

from typing import NamedTuple

from qrlib import model
from qrlib.bench import results
from qrlib.teach.figures.ladder import DATA
from qrlib.teach.figures.s03_blocked import block, columns_words
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style


class Event(NamedTuple):
    """One call inside a recursive panel, about its columns j to e - 1, cut at h.

    what: "column", a mirror is made; "update", the right half goes through the mirrors of the left
        half; "join", two triangles become one.
    """

    what: str
    j: int
    h: int
    e: int


def events(j, e):
    """[Event] of the columns j to e - 1, in the order in which they happen."""
    if e - j == 1:
        return [Event("column", j, e, e)]
    h = j + (e - j) // 2
    return [*events(j, h), Event("update", j, h, e), *events(h, e), Event("join", j, h, e)]


def nodes(j, e, depth=0):
    """[(depth, j, h, e)] of the tree of halves, parents first; a leaf has h = e."""
    if e - j == 1:
        return [(depth, j, e, e)]
    h = j + (e - j) // 2
    return [(depth, j, h, e), *nodes(j, h, depth + 1), *nodes(h, e, depth + 1)]


def depth(b):
    """How often b columns can be halved until one is left."""
    return (b - 1).bit_length()


def mirrors_seen(b, done):
    """For each of b columns, how many mirrors it has gone through, its own included."""
    seen = [0] * b
    for what, j, h, e in done:
        if what == "column":
            seen[j] = j + 1
        elif what == "update":
            seen[h:e] = [h] * (e - h)
    return seen


def walk_words(b, k):
    """What the last of k events did."""
    order = events(0, b)
    if k == 0:
        return f"A panel of {columns_words(0, b)}. It is cut in halves until one column is left."
    what, j, h, e = order[k - 1]
    products = 3 * sum(event.what != "column" for event in order[:k])
    if what == "column":
        words = f"Column {j} has met all mirrors before it. Its own is made, from row {j} down"
        words += "; T of one mirror is its \u03c4."
    elif what == "update":
        many = "the mirror" if h - j == 1 else f"the block of {h - j} mirrors"
        words = f"Update: {columns_words(h, e)} through {many} made from {columns_words(j, h)}."
    else:
        words = (
            f"Join: T of {columns_words(j, e)} is complete; its corner T[{j}:{h}, {h}:{e}] was "
            "missing."
        )
    return f"{words} Products of matrices so far: {products}."


def walk_frame(b, k, *, m=None):
    """A recursive panel of b columns after k events: its tree, its columns, its triangle T."""
    m = b + 4 if m is None else m
    order = events(0, b)
    done, last = order[:k], order[k - 1] if k else None
    seen = mirrors_seen(b, done)
    made = {event.j for event in done if event.what == "column"}
    wide, row, cell = min(46, 270 / b), 17, min(22, 132 / b)
    left, gap, levels, step = 14, 26, depth(b), 40
    top = 42 + levels * step + 22
    side = left + b * wide + gap
    width = side + b * cell + 14
    fig = Figure(width, top + m * row + 34, walk_alt(b, k), max_width=1.15 * width)

    def middle(j, e):
        return left + (j + e) / 2 * wide

    def level(d, leaf):
        # leaves stand on their columns
        return 22 + (levels if leaf else d) * step

    tree = nodes(0, b)
    place = {(j, e): (middle(j, e), level(d, h == e)) for d, j, h, e in tree}
    for _, j, h, e in tree:
        if h < e:
            for half in ((j, h), (h, e)):
                fig.line(*place[j, e], *place[half], color="faint", width=1.5)
    for _, j, h, e in tree:
        x, y = place[j, e]
        now = last is not None and (last.j, last.e) == (j, e)
        finished = Event("join", j, h, e) in done if h < e else j in made
        started = Event("update", j, h, e) in done
        color = "pink" if now else "blue" if finished else "ink" if started else "muted"
        look = {"color": color, "width": 3 if now else 1.5}
        dash = None if finished or started else (3, 3)
        fill = {"fill": "paper"} if not finished else {"fill": "blue", "fill_opacity": 0.22}
        if h == e:
            if finished:
                fig.circle(x, y, 12, color="none", fill="paper")
            fig.circle(x, y, 12, dash=dash, **look, **fill)
            fig.text(x, y, str(j), size=13)
        else:
            if finished:
                fig.rect(x - 21, y - 12, 42, 24, r=5, color="none", fill="paper")
            fig.rect(x - 21, y - 12, 42, 24, r=5, dash=dash, **look, **fill)
            fig.text(x, y, f"{j}:{e}", size=13)
    for c in range(b):
        x = left + c * wide
        ready = min(seen[c], m)
        for first, rows, color in ((0, ready, "blue"), (ready, m - ready, "muted")):
            if c in made and color == "muted":
                color = "orange"
            if rows:
                look = {"color": color, "width": 1, "fill": color, "fill_opacity": 0.25}
                fig.rect(x + 1, top + first * row + 1, wide - 2, rows * row - 2, r=3, **look)
        fig.text(x + wide / 2, top + (m - 0.7) * row, str(seen[c]), size=13)
    if last is not None:
        what, j, h, e = last

        def around(first, after, i, color, dash=None):
            x, y = left + first * wide, top + i * row
            size = ((after - first) * wide, (m - i) * row)
            fig.rect(x, y, *size, r=5, color=color, width=4, dash=dash)

        if what == "column":
            around(j, e, j, "pink")
        elif what == "update":
            around(j, h, j, "pink")
            around(h, e, j, "green", (9, 4))
        else:
            around(j, h, j, "pink")
            around(h, e, h, "pink")
    fig.text(middle(0, b), top + m * row + 18, "mirrors met", size=13, color="muted")
    fig.brackets(side - 4, top - 3, b * cell + 8, b * cell + 6)
    fig.text(side + b * cell / 2, top - 16, "*T*", size=16, bold=True, color="blue")
    for what, j, h, e in done:
        if what != "update":
            i0, i1, j0, j1 = (j, e, j, e) if what == "column" else (j, h, h, e)
            now = Event(what, j, h, e) == last
            fig.rect(
                side + j0 * cell + 1,
                top + i0 * cell + 1,
                (j1 - j0) * cell - 2,
                (i1 - i0) * cell - 2,
                r=2,
                color="pink" if now else "blue",
                width=3 if now else 1,
                fill="blue",
                fill_opacity=0.3,
            )
    return fig


def walk_alt(b, k):
    order = events(0, b)
    seen = ", ".join(str(count) for count in mirrors_seen(b, order[:k]))
    return (
        f"The tree of halves over a panel of {b} columns after {k} of {len(order)} events. Mirrors "
        f"that each column has met: {seen}. {walk_words(b, k)}"
    )


def walk_stepper(b=6):
    """The order of the recursion: mirrors, updates and joins."""
    order = events(0, b)
    frames = [
        Frame(walk_frame(b, k), walk_words(b, k), f"{order[k - 1].what} {k}" if k else "start")
        for k in range(len(order) + 1)
    ]
    return Stepper(frames, "Events", f"A panel of {b} columns, factored by halves.", lines=4)


def join(m=12, h=3, r=4):
    """[V1 V2] and its triangle: what two halves already have, and the corner that joins them."""
    alt = (
        f"Left, V: V1 with {h} columns of {m} rows, and beside it V2 with {r} columns, which "
        f"begins {h} rows lower; above it zeros. Right, T, {h + r} by {h + r}: T1 and T2 on the "
        "diagonal, minus T1 (V1 transposed V2) T2 in the corner above T2, zeros below."
    )
    unit = 20
    b, top = h + r, 44
    left, right = 14, 14 + b * unit + 60
    width = right + b * unit + 70
    fig = Figure(width, top + m * unit + 30, alt, max_width=1.1 * width)

    def at(x, i, j, rows, columns, words, color, size, shape="full"):
        middle = top + (i + rows / 2) * unit
        box = (x + j * unit, middle, columns * unit, rows * unit)
        block(fig, *box, words, color, size, shape=shape)

    fig.text(left + b * unit / 2, 14, "*V* = [*V*\u2081 *V*\u2082]", size=15, bold=True)
    fig.text(right + b * unit / 2, 14, "*T*", size=15, bold=True)
    at(left, 0, 0, m, h, "*V*\u2081", "orange", "", "V")
    at(left, h, h, m - h, r, "*V*\u2082", "orange", "", "V")
    fig.text(left + (h + r / 2) * unit, top + h * unit / 2, "0", size=15, color="muted")
    at(right, 0, 0, h, h, "*T*\u2081", "blue", "", "upper")
    at(right, h, h, r, r, "*T*\u2082", "blue", "", "upper")
    corner = (right + h * unit, top, r * unit, h * unit)
    fig.rect(*corner, color="pink", width=3, dash=(9, 4), fill="pink", fill_opacity=0.18)
    fig.text(right + (h + r / 2) * unit, top + h * unit / 2, "corner", size=14, halo=True)
    fig.text(right + h * unit / 2, top + (h + r / 2) * unit, "0", size=15, color="muted")
    foot = top + b * unit + 34
    words = ("corner = \u2212*T*\u2081 (*V*\u2081\u1d40*V*\u2082) *T*\u2082", "three products")
    for k, line in enumerate(words):
        fig.text(right, foot + 24 * k, line, size=14, anchor="start", color="muted" if k else "ink")
    for x, columns, letter in ((left, h, "*h*"), (left + h * unit, r, "*r*")):
        fig.text(x + columns * unit / 2, top + m * unit + 14, letter, size=13, color="muted")
    return fig


def node_flops(m, b):
    """Flops of an update and its join: what a recursive panel costs beyond its two halves."""
    h = b // 2
    halves = model.geqrt3(m, h, dense=True) + model.geqrt3(m - h, b - h, dense=True)
    return model.geqrt3(m, b, dense=True).flops - halves.flops


def level_flops(m, b):
    """Flops of the updates and joins at each depth of the tree, and last of the mirrors made."""
    levels, leaves = [0] * depth(b), 0
    for d, j, h, e in nodes(0, b):
        if h == e:
            leaves += model.larfg(m - j).flops
        else:
            levels[d] += node_flops(m - j, e - j)
    return [*levels, leaves]


def percent(part, whole):
    """A share in per cent, three digits at most."""
    return f"{100 * part / whole:.3g} %"


def tree(m=512, b=8):
    """The tree of a recursive panel: the size of every update, and the flops of every level."""
    flops = level_flops(m, b)
    total = sum(flops)
    all_nodes = nodes(0, b)
    leaf, step, top, right = max(40, 320 / b), 70, 44, 92
    width = 10 + b * leaf + right
    shares = [percent(part, total) for part in flops]
    first = next(node for node in all_nodes)
    alt = (
        f"The tree of a panel of {m} rows and {b} columns. At the top {first[3] - first[2]} "
        f"columns are updated by {first[2] - first[1]} mirrors, below it each half in the same "
        f"way, at the foot single columns. Share of the flops, from the top: {', '.join(shares)}."
    )
    fig = Figure(width, top + len(flops) * step, alt, max_width=1.1 * width)
    fig.text(width - 8, 14, "flops", size=13, anchor="end", color="muted")
    fig.text(10, 14, "updated: rows \u00d7 columns, by how many mirrors", size=13, anchor="start")

    def place(d, j, h, e):
        return 10 + (j + e) / 2 * leaf, top + 18 + (len(flops) - 1 if h == e else d) * step

    where = {(j, e): place(d, j, h, e) for d, j, h, e in all_nodes}
    for _, j, h, e in all_nodes:
        if h < e:
            for half in ((j, h), (h, e)):
                fig.line(*where[j, e], *where[half], color="faint", width=1.5)
    for _, j, h, e in all_nodes:
        x, y = where[j, e]
        if h == e:
            fig.circle(x, y, 15, color="pink", fill="paper")
            fig.text(x, y, str(m - j), size=11.5)
            continue
        fig.rect(x - 36, y - 19, 72, 38, r=5, color="green", fill="paper", dash=(9, 4))
        fig.text(x, y - 8, f"{m - j} \u00d7 {e - h}", size=12.5)
        fig.text(x, y + 9, f"by {h - j}", size=12.5, color="muted")
    for d, share in enumerate(shares):
        y = top + 18 + d * step
        fig.text(width - 8, y - 8, share, size=13, anchor="end", bold=True)
        bar = 70 * flops[d] / max(flops)
        fig.rect(width - 8 - bar, y + 3, bar, 8, color="green", fill="green", fill_opacity=0.4)
    fig.text(
        10, top + 18 + (len(flops) - 1) * step + 28, "mirrors made, rows", size=13, anchor="start"
    )
    return fig


WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)


def shares(n, nb):
    """Flops in products of matrices whose inner size is 2 or more, over all: (stage 3, stage 4)."""
    alone = together = 0
    plain = halves = 0
    for j in range(0, n, nb):
        b, m = min(nb, n - j), n - j
        update = model.larfb(m, n - j - b, b, dense=True).flops if j + b < n else 0
        plain += model.geqr2(m, b).flops + model.larft(m, b, dense=True).flops + update
        halves += model.geqrt3(m, b, dense=True).flops + update
        many = update if b > 1 else 0
        alone += many + (model.gemm(b, b, m).flops if b > 1 else 0)
        together += many + sum(
            node_flops(m - i, e - i) for _, i, h, e in nodes(0, b) if h < e and h - i > 1
        )
    return alone / plain, together / halves


def shares_plot(n=512):
    """The share of the flops that is in products of matrices, against the width of the panels."""
    points = [shares(n, nb) for nb in WIDTHS]
    alt = (
        f"Share of the flops in products of matrices against the width of the panels, n = {n}. "
        f"Stage 3: {percent(points[2][0], 1)} at {WIDTHS[2]}, falling to "
        f"{percent(points[-1][0], 1)} at {WIDTHS[-1]}. Stage 4: {percent(points[2][1], 1)} at "
        f"{WIDTHS[2]}, {percent(points[-1][1], 1)} at {WIDTHS[-1]}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        for k, (name, shade, dash) in enumerate(
            (("stage 3, a mirror a column", "orange", "--"), ("stage 4, halves", "blue", "-"))
        ):
            values = [100 * point[k] for point in points]
            axes.plot(WIDTHS, values, color=color[shade], ls=dash, marker="o", label=name)
        axes.set(xscale="log", ylim=(0, 102), xlabel="width of a panel, $b$")
        axes.set(ylabel="% of the flops in products")
        axes.set_xticks(WIDTHS, [str(nb) for nb in WIDTHS])
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)


def moved(n, nb):
    """Bytes moved over those of A, H and tau: (stage 3, stage 4)."""
    plans = [model.plan(name, 1, n, n, nb=nb) for name in ("s03_blocked", "s04_recursive")]
    return tuple(plan.bytes / plan.floor for plan in plans)


def moved_plot(n=512):
    """Trips through memory against the width of the panels, for both kinds of panel."""
    points = [moved(n, nb) for nb in WIDTHS]
    least = [min(range(len(WIDTHS)), key=lambda i, k=k: points[i][k]) for k in (0, 1)]
    found = [f"{points[i][k]:.1f} at {WIDTHS[i]}" for k, i in enumerate(least)]
    alt = (
        f"Bytes moved, over those of A, H and tau, against the width of the panels, n = {n}, both "
        f"logarithmic. Stage 3 has a valley, {found[0]}, and climbs to {points[-1][0]:.0f} at "
        f"{WIDTHS[-1]}. Stage 4 falls to {found[1]} and stays there."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        for k, (name, shade, dash) in enumerate(
            (("stage 3, a mirror a column", "orange", "--"), ("stage 4, halves", "blue", "-"))
        ):
            values = [point[k] for point in points]
            axes.plot(WIDTHS, values, color=color[shade], ls=dash, label=name)
            axes.plot(WIDTHS[least[k]], values[least[k]], "o", color=color[shade], ms=8)
        axes.set(xscale="log", yscale="log", xlabel="width of a panel, $b$")
        axes.set(ylabel="bytes / bytes of A, H and \u03c4")
        axes.set_xticks(WIDTHS, [str(nb) for nb in WIDTHS])
        ticks = [10, 20, 50, 100]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)


BATCHES = tuple(2**k for k in range(15))


def predicted(stage, B, n, *, graph):
    """Seconds that the model predicts for a stage with its own width on an H200."""
    return model.estimate(stage, B, n, n, "H200", measured=True, graph=graph).time


def measured(stage, mode, data=DATA):
    """Seconds that the batch of the ladder, 640 x 512 x 512, took: mode "eager" or "replay"."""
    (row,) = results.load(data).find(stage=stage, mode=mode, batch=640, n=512, family="dense")
    return row["median_us"] / 1e6


def where(data=DATA):
    """On what the ladder was measured, and when."""
    return results.load(data).where()


def each_launch(stage, mode, data=DATA):
    """Seconds for each launch that a stage took beyond the time of its bytes, same batch."""
    plan = model.plan(stage, 640, 512, 512)
    bytes_time = plan.bytes / model.DEVICES["H200"].measured["bandwidth"].value
    return (measured(stage, mode, data) - bytes_time) / plan.launches


def crossover(n=512, *, graph):
    """The smallest batch for which the model predicts stage 4 to be faster than stage 3."""

    def slower(B):
        stages = ("s03_blocked", "s04_recursive")
        third, fourth = (predicted(stage, B, n, graph=graph) for stage in stages)
        return fourth >= third

    low, high = 0, 1
    while slower(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if slower(middle) else (low, middle)
    return high


def times_plot(n=512):
    """Predicted time against the batch, both stages, eager and from a graph."""
    crossings = {graph: crossover(n, graph=graph) for graph in (False, True)}
    alt = (
        f"Predicted time on an H200 against the batch, n = {n}, both logarithmic, for stages 3 and "
        f"4. Flat where launches bind, rising where memory does. Eager, stage 4 is "
        f"faster from {crossings[False]} matrices on; from a graph, from {crossings[True]}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.8))
        for name, words, shade, dash in (
            ("s03_blocked", "stage 3", "orange", "--"),
            ("s04_recursive", "stage 4", "blue", "-"),
        ):
            for graph, how in ((False, "eager"), (True, "graph")):
                values = [1e3 * predicted(name, B, n, graph=graph) for B in BATCHES]
                look = {"color": color[shade], "ls": dash, "lw": 1.3 if graph else 2.2}
                axes.plot(BATCHES, values, label=f"{words}, {how}", **look)
        for graph, B in crossings.items():
            y = 1e3 * predicted("s04_recursive", B, n, graph=graph)
            axes.plot(B, y, "o", color=color["ink"], ms=7)
            side = {"ha": "right", "va": "bottom"} if not graph else {"ha": "left", "va": "top"}
            axes.annotate(
                f"{B}", (B, y), (0, 8 if not graph else -8), textcoords="offset points", **side
            )
        axes.set(xscale="log", yscale="log", xlabel="matrices in the batch")
        axes.set(ylabel="predicted time, ms", ylim=(10, 1000))
        ticks = [1, 10, 100, 1000, 10000]
        axes.set_xticks(ticks, [f"{t:,}" for t in ticks])
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)
