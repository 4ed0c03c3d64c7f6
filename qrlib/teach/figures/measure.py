"""The figures of the chapter "Measure, submit, go on": timelines, scores, times of others."""

from statistics import mean, median, quantiles

from qrlib.bench.results import short
from qrlib.devices import DEVICES, MIB
from qrlib.matrices import BENCHMARK_CASES, Case
from qrlib.teach import tricks
from qrlib.teach.figures.certify import Table
from qrlib.teach.figures.roofline import LAUNCH, SHAPES, Scale, floors, geomean, words
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style
from qrlib.teach.timeline import seen, timeline


def named(case):
    """A case, or the case of a row, in few words; no two of the 12 have the same."""
    case = Case(*(case[key] for key in Case._fields)) if isinstance(case, dict) else case
    return f"{case.batch} x {case.n} {case.family}"


# what a clock sees

# three short kernels and a longer one, in us
KERNELS = (4, 4, 4, 25)
HOST = 1e6 * LAUNCH["one by one"]
_CLOCKS = {
    "host": "host, not waiting",
    "idle": "host, until GPU idle",
    "events": "events",
}
# title: (which clock it is about, how the kernels are launched, what it says)
_VIEWS = {
    "the host's clock, without waiting": (
        "host",
        {},
        "It has timed how long it takes to say what is to be done. The last kernel has not begun.",
    ),
    "in another stream": (
        "events",
        {"elsewhere": (3,)},
        "Events see the stream that they are in. The last kernel went to another one; only who "
        "waits for the whole GPU sees it.",
    ),
    "behind other work": (
        "events",
        {"busy": 60.0},
        "The GPU was kept busy until all was launched: the four stand in a queue, and their time "
        "is that of the GPU alone.",
    ),
    "as a graph": (
        "events",
        {"launch": 1e6 * LAUNCH["graph"]},
        "Replayed from a graph, the launches are short. So the GPU need hardly wait, and nothing "
        "has to be kept busy to see it.",
    ),
    "launched one by one": (
        "events",
        {},
        "With the gaps in which the GPU waits for the host: this is what a caller gets. The host's "
        "clock, when it waits until the GPU is idle, says the same.",
    ),
}


def _along(low, high, start, end):
    """Positions on a linear axis: `low` at `start`, `high` at `end`."""
    return lambda value: start + (end - start) * (value - low) / (high - low)


def clock_frame(title):
    """The timeline of four kernels, and what the clocks see of it. title: one of _VIEWS."""
    clock, how, said = _VIEWS[title]
    how = {"launch": HOST} | how
    busy = how.get("busy", 0.0)
    bars = timeline(KERNELS, **how)
    spans = seen(bars, busy=busy)
    us = {name: to - start for name, (start, to) in spans.items()}
    told = ", ".join(f"{_CLOCKS[name]}: {number:.3g} us" for name, number in us.items())
    fig = Figure(
        440,
        258,
        f"Four kernels of {', '.join(map(str, KERNELS))} us, {title}. Above, the host launches "
        f"them one after the other; below, the GPU works them off. What the clocks show: {told}.",
        max_width=600,
    )
    x = _along(0, 104, 66, 432)
    fig.text(8, 14, title, size=14, bold=True, anchor="start")
    for name, y in (("host", 46), ("GPU", 82), ("other", 118)):
        fig.text(8, y, name, size=13, anchor="start")
        fig.line(x(0), y + 14, x(104), y + 14, color="faint", width=1)
    fig.text(8, 133, "stream", size=13, anchor="start")
    if busy:
        box = x(0), 70, x(busy) - x(0), 24
        fig.rect(*box, r=3, color="muted", width=1, fill="faint", fill_opacity=0.5)
        fig.text(x(busy / 2), 82, "other work", size=12, color="muted")
    for k, bar in enumerate(bars, 1):
        wide = x(bar.launched) - x(bar.launch)
        fig.rect(x(bar.launch), 34, wide, 24, r=3, color="orange", fill="orange", fill_opacity=0.2)
        if wide > 14:
            fig.text(x((bar.launch + bar.launched) / 2), 46, str(k), size=12)
        y = 106 if bar.elsewhere else 70
        wide = x(bar.ended) - x(bar.run)
        fig.rect(x(bar.run), y, wide, 24, r=3, color="blue", fill="blue", fill_opacity=0.25)
        fig.text(x((bar.run + bar.ended) / 2), y + 12, str(k), size=12)
    for k, (name, (start, to)) in enumerate(spans.items()):
        y, lit = 160 + 28 * k, name == clock
        look = {"color": "ink" if lit else "muted", "width": 2.5 if lit else 1.2}
        fig.line(x(start), y, x(to), y, **look)
        for end in (start, to):
            fig.line(x(end), y - 6, x(end), y + 6, **look)
        pointer = "\u25b6 " if lit else ""
        label = f"{pointer}{_CLOCKS[name]}: {us[name]:.3g} \u00b5s"
        tail = {"size": 13, "bold": lit, "halo": True, "color": look["color"]}
        if x(start) > 200:
            fig.text(x(start) - 6, y, label, anchor="end", **tail)
        else:
            fig.text(x(start) + 6, y - 11, label, anchor="start", **tail)
    for tick in range(0, 101, 20):
        # given: where the axis begins
        fig.text(x(tick), 246, f"{tick}" if tick else "0 \u00b5s", size=11, color="muted")
        fig.line(x(tick), 232, x(tick), 237, color="muted", width=1)
    return Frame(fig, f"{_CLOCKS[clock]}: {us[clock]:.3g} \u00b5s. {said}", title)


def clocks_stepper():
    """One program, five ways to start and to time it."""
    return Stepper(
        [clock_frame(title) for title in _VIEWS],
        "How it is started",
        "A host launches four kernels, a GPU works them off, and clocks see different times.",
        lines=4,
    )


# turns

ORDERS = ("AAAABBBB", "ABABABAB", "ABBAABBA")
# a run of either takes so long at first, and so much longer with each run, in us
RUN, DRIFT = 100.0, 2.0


def taken(order):
    """{name: its times} of runs in this order, on a machine that gets slower as it gets warm."""
    times = {name: [] for name in sorted(set(order))}
    for k, name in enumerate(order):
        times[name].append(RUN + DRIFT * k)
    return times


def order_frame(order):
    times = taken(order)
    ratio = median(times["B"]) / median(times["A"])
    told = "as long as A" if ratio == 1 else f"{100 * (ratio - 1):.1f} % longer than A"
    fig = Figure(
        440,
        214,
        f"Bars for eight runs in the order {order}, each a little longer than the one before. A "
        f"and B are the same kernel, yet by the medians B takes {told}.",
        max_width=560,
    )
    foot, unit = 172, 1.1
    fig.text(8, 14, f"{order}: B takes {told}", size=14, bold=True, anchor="start")
    for k, name in enumerate(order):
        us = RUN + DRIFT * k
        left, color = 12 + 53 * k, "blue" if name == "A" else "orange"
        look = {"color": color, "fill": color, "fill_opacity": 0.25 if name == "A" else 0.5}
        fig.rect(left, foot - unit * us, 40, unit * us, r=3, width=1.5, **look)
        fig.text(left + 20, foot - unit * us / 2, name, size=16, bold=True)
        fig.text(left + 20, foot + 14, f"{us:.0f}", size=13)
    fig.text(8, 206, "time of each run, us; A and B are the same", size=12, anchor="start")
    said = ", ".join(f"{name} {median(us):.4g} us" for name, us in times.items())
    return Frame(fig, f"Medians: {said}. B takes {told}.", order)


def order_stepper():
    """Who has his turn when, on a machine that gets slower."""
    return Stepper(
        [order_frame(order) for order in ORDERS],
        "Order of the runs",
        "One kernel under two names, timed in three orders on a machine that slows down.",
    )


# the spread


def spread_plot(us, title="one kernel, one shape, one machine"):
    """Times of the same thing, one after the other, with median, quartiles and mean."""
    from matplotlib import pyplot

    low, middle, high = quantiles(us, n=4, method="inclusive")
    with matplotlib_style() as colors:
        figure, axes = pyplot.subplots(figsize=(4.6, 3.0))
        axes.axhspan(low, high, color=colors["faint"], alpha=0.5, linewidth=0)
        axes.plot(us, linestyle="none", marker=".", markersize=4, color=colors["blue"])
        axes.axhline(middle, color=colors["ink"], linestyle="-", label="median, quartiles grey")
        axes.axhline(mean(us), color=colors["orange"], linestyle="--", label="mean")
        axes.set_xlabel("run")
        axes.set_ylabel("us")
        axes.set_title(title)
        # room above for what is far off, and not for all of it
        axes.set_ylim(0.9 * min(us), min(max(us), middle + 12 * (high - low)) * 1.05)
        axes.legend(loc="upper right")
    outside = sum(each > axes.get_ylim()[1] for each in us)
    return from_matplotlib(
        figure,
        f"{len(us)} times of {title}, in us: from {min(us):.4g} to {max(us):.4g}, quartiles "
        f"{low:.4g} and {high:.4g}, median {middle:.4g}, mean {mean(us):.4g}. Above the picture: "
        f"{outside}.",
    )


def first_calls(results, least=3):
    """The rows of stored results whose first call took longest beside a later one."""
    rows = [row for row in results.rows if row["ok"] and row["first_call_ms"]]
    rows = [row for row in rows if row["stage"] != "torch" and row["mode"] == "eager"]
    rows.sort(key=lambda row: row["first_call_ms"] / row["median_us"], reverse=True)
    told = [
        [
            row["stage"],
            named(row),
            words(row["first_call_ms"] / 1e3),
            words(row["median_us"] / 1e6),
            f"{1e3 * row['first_call_ms'] / row['median_us']:,.0f}",
        ]
        for row in rows[:least]
    ]
    heads = ("stage", "case", "first call", "median later", "times as long")
    return Table(f"The first call; {results.where()}", heads, told)


def widest(results, least=4):
    """The rows of stored results with the widest quartiles, and the same replayed."""
    eager = [row for row in results.rows if row["ok"] and row["mode"] == "eager"]
    eager.sort(key=lambda row: row["q75_us"] / row["q25_us"], reverse=True)
    told = []
    for row in eager[: 4 * least]:
        key = {name: row[name] for name in ("stage", "precision", "n", "batch", "family")}
        replayed = [each for each in results.find(**key, mode="replay") if each["ok"]]
        if replayed and len(told) < least:
            cells = [
                f"{each['q25_us']:,.0f} to {each['q75_us']:,.0f}" for each in (row, replayed[0])
            ]
            told.append([row["stage"], named(row), *cells])
    heads = ("stage", "case", "one by one", "replayed")
    return Table(f"Quartiles in us; {results.where()}", heads, told)


def fits_table():
    """Which inputs of the task stay in the L2 of a GPU, if nobody sweeps it."""
    rows = []
    for batch, n in SHAPES:
        size = 4 * batch * n * n
        fits = [
            "yes" if 2 * size <= DEVICES[name].l2 else "A alone" if size <= DEVICES[name].l2 else ""
            for name in ("H200", "B200")
        ]
        rows.append([f"{batch} x {n}", f"{size / MIB:.3g}", *(word or "no" for word in fits)])
    heads = ["matrices", "A in MiB"]
    heads += [f"{name}, {DEVICES[name].l2 / MIB:.0f} MiB" for name in ("H200", "B200")]
    return Table("A and H, in L2?", tuple(heads), rows)


# the gate


def verdicts(runs=4):
    """What the careless clock and qrlib.bench say of each trick, run here and now."""
    lapack, _ = tricks.careless(tricks.honest, tricks.batch())
    rows = []
    for trick in tricks.TRICKS:
        seconds, passed = tricks.careless(trick(), tricks.batch())
        times = lapack / seconds
        careless = f"{'right' if passed else 'wrong'}, {times:.{0 if times >= 10 else 1}f}x"
        strict = tricks.before_the_bench(trick(), runs=runs)
        rows.append([trick.__name__, careless, said(strict)])
        loose = tricks.before_the_bench(trick(), "fast", runs=runs)
        if loose["ok"]:
            rows.append([f"{trick.__name__}, policy fast", careless, said(loose)])
    return Table(
        f"{named(tricks.CASE)}, on this machine", ("kernel", "careless", "the bench"), rows
    )


def said(row):
    """The first sentence of a row of the bench, and whether it passed all the same."""
    sentence = (row["faults"] or row["notes"] or ["nothing"])[0]
    return ("passes: " if row["ok"] else "") + sentence


# the score


def counts():
    """{(batch, n): how many of the 12 cases have this shape}."""
    shapes = [(case.batch, case.n) for case in BENCHMARK_CASES]
    return {shape: shapes.count(shape) for shape in SHAPES}


def halved(us, shape):
    """The times with all cases of a shape in half of theirs."""
    return [t / 2 if (case.batch, case.n) == shape else t for case, t in zip(BENCHMARK_CASES, us)]


def halve_frame(us, shape, name):
    """The 12 times, with those of one shape halved, and both means."""
    after = halved(us, shape)
    score, total = (f(after) / f(us) for f in (geomean, sum))
    batch, n = shape
    # given: what if it were
    title = f"{batch} x {n} in half the time"
    said = (
        f"{title}: the geometric mean goes from {geomean(us):.0f} to {geomean(after):.0f} us, "
        f"{100 * (1 - score):.1f} % less; the sum of the times is {100 * (1 - total):.2g} % less."
    )
    fig = Figure(
        440,
        396,
        f"Bars on a logarithmic axis for the 12 cases, {name}. {said} Halved are "
        f"{counts()[shape]} of the 12.",
        max_width=560,
    )
    T = Scale(1, 2e4, 150, 426)
    top, high = 40, 25
    foot = top + high * len(us)
    fig.text(8, 14, title, size=14, bold=True, anchor="start")
    for tick in (1, 10, 100, 1000, 10000):
        fig.line(T(tick), top - 6, T(tick), foot, color="faint", width=1)
        fig.text(T(tick), foot + 12, words(tick * 1e-6), size=11, color="muted")
    for k, (case, old, new) in enumerate(zip(BENCHMARK_CASES, us, after)):
        y, lit = top + high * (k + 0.5), new != old
        label = named(case)
        fig.text(T.start - 8, y, label, size=12, anchor="end", bold=lit)
        fig.rect(T.start, y - 7, T(new) - T.start, 14, color="blue", width=1, fill="blue",
                 fill_opacity=0.3)  # fmt: skip
        if lit:
            box = T(new), y - 7, T(old) - T(new), 14
            fig.rect(*box, color="orange", width=1, dash="3 2")
    for value, color, dash in ((geomean(us), "muted", "4 3"), (geomean(after), "orange", None)):
        fig.line(T(value), top - 6, T(value), foot, color=color, width=2, dash=dash)
    y = foot + 36
    fig.line(12, y, 34, y, color="muted", width=2, dash="4 3")
    fig.text(40, y, "geometric mean before", size=12, anchor="start")
    fig.line(222, y, 244, y, color="orange", width=2)
    fig.text(250, y, f"after: {geomean(after):.0f} \u00b5s", size=12, anchor="start")
    return Frame(fig, said, title)


def halve_stepper(run):
    """What it is worth to halve the time of each of the seven shapes.

    Args:
        run: {"name", "gpu", "us"} as in published.json.
    """
    name = f"{run['name']}, {run['gpu']}, {run['kind']}"
    frames = [halve_frame(run["us"], shape, name) for shape in SHAPES]
    frames.append(frames.pop(SHAPES.index((640, 512))))
    return Stepper(
        frames,
        "Which shape",
        f"The 12 times ({name}) with one shape halved, and the score.",
        lines=3,
    )


# what others have reached


def rivals_frame(runs, mine):
    """For each case: how many times as long one program takes as the fastest of all of them."""
    best = [min(times) for times in zip(*(run["us"] for run in runs))]
    ratios = [t / low for t, low in zip(mine["us"], best)]
    at_512 = [t for case, t in zip(BENCHMARK_CASES, mine["us"]) if case.n == 512]
    spread = max(at_512) / min(at_512)
    wins = sum(ratio == 1 for ratio in ratios)
    said = (
        f"{mine['name']}, {mine['gpu']}: fastest in {wins} of 12, geometric mean "
        f"{geomean(mine['us']):.0f} \u00b5s. Over the families at n = 512 its times differ by a "
        f"factor of {spread:.3g}."
    )
    fig = Figure(
        440,
        384,
        f"For each of the 12 cases, how many times as long it takes as the fastest of "
        f"{len(runs)} programs. {said} "
        + " ".join(f"{named(case)}: {r:.2f}." for case, r in zip(BENCHMARK_CASES, ratios)),
        max_width=560,
    )
    T = Scale(1, 3, 150, 420)
    top, high = 40, 25
    foot = top + high * len(ratios)
    fig.text(8, 14, f"{mine['name']}, {mine['gpu']}", size=14, bold=True, anchor="start")
    for tick in (1, 1.5, 2, 3):
        fig.line(T(tick), top - 6, T(tick), foot, color="faint", width=1)
        fig.text(T(tick), foot + 12, f"{tick:g}\u00d7", size=12, color="muted")
    for k, (case, ratio) in enumerate(zip(BENCHMARK_CASES, ratios)):
        y = top + high * (k + 0.5)
        label = named(case)
        fig.text(T.start - 8, y, label, size=12, anchor="end")
        for run in runs:
            fig.circle(T(run["us"][k] / best[k]), y, 3, color="muted", fill="paper", width=1)
        fig.line(T(1), y, T(ratio), y, color="orange", width=4)
        fig.circle(T(ratio), y, 5, color="blue", fill="blue")
        if ratio == 1:
            fig.text(T(1) + 10, y, "fastest", size=11, color="blue", anchor="start", halo=True)
    y = foot + 32
    fig.text(8, y, "times the fastest; hollow: the other programs", size=12, anchor="start")
    return Frame(fig, said, f"{mine['name']}, {mine['gpu']}")


def rivals_stepper(published):
    """Where each of the published programs for the B200 is ahead, and where it is not."""
    runs = [run for run in published["runs"] if run["kind"] == "published"]
    return Stepper(
        [rivals_frame(runs, run) for run in reversed(runs)],
        "Program",
        "Published programs for a B200, each beside the fastest of them in every case.",
        lines=3,
    )


def families_table(published, n=512):
    """The times of one shape over the families, of every published and measured program."""
    at = [k for k, case in enumerate(BENCHMARK_CASES) if case.n == n]
    families = [BENCHMARK_CASES[k].family for k in at]
    rows = []
    for run in published["runs"]:
        us = [run["us"][k] for k in at]
        cells = [f"{t / us[0]:.2f}" for t in us]
        rows.append([f"{run['name']}, {run['gpu']}", f"{us[0]:,.0f}", *cells[1:]])
    heads = ("program", "dense, us", *families[1:])
    return Table(f"n = {n}: time over that of the dense batch", heads, rows)


def distance_table(us, device, column):
    """For each shape: how far from its floor it is, and what half of the way would be worth.

    Args:
        us: of the 12 cases. column: seconds a dependent column takes at least.
    """
    found = []
    for (batch, n), count in counts().items():
        low = 1e6 * max(floors(batch, n, device, column).values())
        own = [t for case, t in zip(BENCHMARK_CASES, us) if (case.batch, case.n) == (batch, n)]
        far = geomean([t / low for t in own])
        worth = far ** (-0.5 * count / len(us))
        found.append((worth, [f"{batch} x {n}", f"{count}", short(geomean(own)), f"{low:.3g}",
                              f"{far:.2g}", f"{100 * (1 - worth):.0f} %"]))  # fmt: skip
    found.sort(key=lambda each: each[0])
    heads = ("matrices", "cases", "us", "floor, us", "times it", "half way")
    return Table("What is left; half way: off the score", heads, [row for _, row in found])


def beside_table(results, run, stage="auto"):
    """Our own times of the 12 cases beside those of another program, at each policy.

    Args:
        results: qrlib.bench.Results on all cases. run: as in published.json, of the same GPU.
    """
    policies = [p for p in ("fp32", "fast") if results.find(stage=stage, precision=p)]
    rows, ours = [], {policy: [] for policy in policies}
    for case, us in zip(BENCHMARK_CASES, run["us"]):
        cells = [named(case), short(us)]
        for policy in policies:
            found = results.find(stage=stage, precision=policy, **case._asdict())
            own = min(row["median_us"] for row in found if row["ok"])
            ours[policy].append(own)
            cells += [short(own), f"{own / us:.2f}"]
        rows.append(cells)
    score = geomean(run["us"])
    last = [short(score)]
    for own in ours.values():
        last += [short(geomean(own)), f"{geomean(own) / score:.2f}"]
    rows.append(["geometric mean", *last])
    heads = ["case", "best public, us"]
    for policy in policies:
        heads += [f"ours, {policy}, us", "ratio"]
    return Table(f"{run['name']}, {run['date']}; ours {results.where()}", tuple(heads), rows)


def floor_score(device, column):
    """The geometric mean of the 12 floors, in us."""
    return geomean(
        [1e6 * max(floors(B, n, device, column).values()) for B, n, *_ in BENCHMARK_CASES]
    )


# the way of one entry


def way(story, floor_us):
    """The points of an entry that are known, on a logarithmic scale, and the floor.

    Args:
        story: as book/data/story.json. floor_us: the score of the model's floor.
    """
    points = story["points"]
    told = "; ".join(f"{point['us']:,} us, {point['words']}" for point in points)
    fig = Figure(
        440,
        330,
        # given: the ends of the axis
        f"A logarithmic scale from a second down to 100 us. From the top: {told}; far below, the "
        f"floor of the model, {floor_us:.0f} us.",
        max_width=520,
    )
    T = Scale(1e6, 1e2, 30, 310)
    for tick in (1e6, 1e5, 1e4, 1e3, 1e2):
        fig.line(92, T(tick), 110, T(tick), color="muted", width=1)
        fig.text(84, T(tick), words(tick * 1e-6), size=12, anchor="end", color="muted")
    fig.line(101, T(1e6), 101, T(1e2), color="muted", width=1)
    fig.text(8, 12, "score, geometric mean of the 12 cases", size=13, anchor="start", bold=True)
    for first, second in zip(points, points[1:]):
        fig.line(101, T(first["us"]), 101, T(second["us"]), color="blue", width=4)
    for k, point in enumerate(points):
        y = T(point["us"])
        # the last two stand too close for their words
        at = y + (-12 if k == len(points) - 2 else 12 if k == len(points) - 1 else 0)
        fig.circle(101, y, 5, color="blue", fill="blue")
        fig.line(108, y, 126, at, color="blue", width=1)
        fig.text(130, at, f"{point['us']:,}: {point['words']}", size=13, anchor="start", halo=True)
    y = T(floor_us)
    fig.line(94, y, 124, y, width=3)
    fig.text(130, y, f"{floor_us:.0f}: floor, predicted for a B200", size=13, anchor="start")
    return fig
