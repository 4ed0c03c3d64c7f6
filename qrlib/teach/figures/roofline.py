"""The figures of chapter "Where does the time go?": counts and devices come from qrlib.model."""

import json
import math
from functools import cache
from pathlib import Path

from qrlib import model
from qrlib.devices import DEVICES, KIB, MIB
from qrlib.matrices import BENCHMARK_CASES
from qrlib.teach.explorer import Explorer
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, matplotlib_style

# the seven sizes of the 12 cases
SHAPES = tuple(dict.fromkeys((case.batch, case.n) for case in BENCHMARK_CASES))
# starting a kernel is the work of the host: the same for every GPU until it is measured there
LAUNCH = {
    "one by one": DEVICES["H200"].measured["launch"].value,
    "graph": DEVICES["H200"].measured["graph node"].value,
}
_TERM = {"arithmetic": "blue", "memory": "green", "launches": "orange", "columns": "pink"}


def stored(name):
    """What book/data/name.json holds: results that a page shows without measuring them."""
    folder = Path(__file__).resolve().parents[3] / "book" / "data"
    path = folder / f"{name}.json"
    if not path.is_file():
        have = ", ".join(sorted(each.stem for each in folder.glob("*.json"))) or "nothing"
        raise FileNotFoundError(
            f"stored results must be in {folder}, which has {have}; got {name!r}; they come with "
            "the repository, not with the package"
        )
    return json.loads(path.read_text("utf-8"))


def words(seconds):
    """A time in three digits, with the unit that fits."""
    units = (("s", 1), ("ms", 1e-3), ("\u00b5s", 1e-6), ("ns", 1e-9))
    unit, size = next((each for each in units if seconds >= 0.9995 * each[1]), units[-1])
    return f"{seconds / size:.3g} {unit}"


def si(value, unit):
    """A number with the prefix that fits: 4.8 T, 132 k."""
    prefixes = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1))
    prefix, size = next((each for each in prefixes if value >= 0.9995 * each[1]), prefixes[-1])
    return f"{value / size:.3g} {prefix}{unit}"


class Scale:
    """Positions on a logarithmic axis: `low` at `start`, `high` at `end`; beyond is at the ends."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * min(max(share, 0), 1)


def rates(device):
    """{level: bytes a second} that a chip can move at each level of its memory."""
    return {
        # three numbers in and one out for each multiply-add
        "registers": 16 * device.lanes * device.sms * device.clock,
        # 32 banks, each four bytes a cycle: so for all five devices
        "shared memory": 128 * device.sms * device.clock,
        "device memory": device.bandwidth,
    }


def chip(name="H200", cycles=None):
    """A GPU drawn with its numbers: multiprocessors, what is in one, L2, device memory.

    Args:
        name: in DEVICES. cycles: {"L1", "L2", "memory"}: cycles until an answer comes, if known.
    """
    device = DEVICES[name]
    rate = rates(device)
    wait = {key: f"answers after {value} cycles" for key, value in (cycles or {}).items()}
    width, left = 440, 10
    alt = (
        f"{name}. {device.sms} multiprocessors; in each {device.lanes} FP32 units, registers of "
        f"{device.registers // KIB} KiB, shared memory of {device.shared_sm // KIB} KiB, at most "
        f"{device.warps} warps. Beside them L2, {device.l2 // MIB} MiB. Outside, device memory, "
        f"{device.memory / 1e9:.0f} GB at {si(device.bandwidth, 'B/s')}."
    )
    fig = Figure(width, 436, alt, max_width=560)
    fig.rect(left, 8, 200, 34, r=6, color="muted")
    fig.text(left + 12, 25, "host: your Python", anchor="start", size=14)
    fig.arrow(left + 100, 42, left + 100, 74, color="orange")
    fig.text(left + 112, 58, "starts a kernel", anchor="start", size=14, color="orange")

    fig.rect(left, 74, width - 20, 276, r=8, width=2)
    fig.text(left + 12, 92, f"{name}, {device.sms} SMs", anchor="start", bold=True, size=15)
    across = 11
    for k in range(device.sms):
        x, y = left + 14 + 13 * (k % across), 108 + 13 * (k // across)
        first = k == across - 1
        look = {"fill": "blue", "fill_opacity": 0.9 if first else 0.25}
        fig.rect(x, y, 10, 10, r=1.5, color="blue", width=1.6 if first else 0.8, **look)
    x, top, w = 182, 88, 240
    for y in (top, 288):
        fig.line(left + 14 + 13 * across - 4, 108 if y == top else 118, x, y, color="blue", width=1)
    fig.rect(x, top, w, 200, r=6, color="blue", fill="paper")
    fig.rect(x, top, w, 200, r=6, color="blue", fill="blue", fill_opacity=0.08)
    rows = (
        (f"one SM, {device.clock / 1e9:.2f} GHz", True),
        (f"{device.lanes} FP32 units, tensor cores", False),
        (f"up to {device.warps} warps of 32 threads", False),
    )
    for k, (line, bold) in enumerate(rows):
        fig.text(x + 12, top + 18 + 20 * k, line, anchor="start", size=14, bold=bold)
    y = top + 72
    for what, size, more in (
        ("registers", device.registers, ()),
        ("shared memory", device.shared_sm, [f"and L1, {wait['L1']}"] if "L1" in wait else ()),
    ):
        lines = [f"{what}, {size / KIB:.0f} KiB", f"all SMs: {si(rate[what], 'B/s')}", *more]
        high = 12 + 17 * len(lines)
        fig.rect(x + 10, y, w - 20, high, r=4, color="green", fill="green", fill_opacity=0.14)
        for k, line in enumerate(lines):
            fig.text(x + 20, y + 14 + 17 * k, line, anchor="start", size=13)
        y += high + 8
    y = 300
    fig.rect(left + 10, y, width - 40, 40, r=4, color="green", fill="green", fill_opacity=0.14)
    fig.text(left + 22, y + 12, f"L2, {device.l2 / MIB:.0f} MiB", anchor="start", size=14)
    fig.text(left + 22, y + 29, wait.get("L2", "for all SMs"), anchor="start", size=13)
    y = 378
    fig.arrow(left + 60, y, left + 60, 350, color="muted")
    fig.arrow(left + 80, 350, left + 80, y, color="muted")
    fig.text(left + 94, 364, si(device.bandwidth, "B/s"), anchor="start", size=14)
    fig.rect(left, y, width - 20, 50, r=6, color="green", fill="green", fill_opacity=0.14)
    line = f"device memory, {device.memory / 1e9:.0f} GB"
    fig.text(left + 22, y + 16, line, anchor="start", size=14)
    fig.text(left + 22, y + 35, wait.get("memory", "outside the chip"), anchor="start", size=13)
    return fig


def _axis(fig, scale, y, ticks, *, top, size=12):
    """A logarithmic axis of times along y, with a faint line up to `top` at every tick."""
    for seconds in ticks:
        x = scale(seconds)
        fig.line(x, top, x, y, color="faint", width=1)
        fig.text(x, y + 12, words(seconds), color="muted", size=size)


# a plan counts column by column, and does not depend on the device
_plan = cache(model.plan)


def situation(device, n, batch, mirrors, launch):
    """The estimate of stage 2 (one mirror a read) or stage 3, by the vendor's ceilings."""
    stage, nb = ("s02_unblocked", None) if mirrors == 1 else ("s03_blocked", mirrors)
    return model.roofline(_plan(stage, batch, n, n, nb=nb), device, launch=LAUNCH[launch])


def named(device):
    """A device with its article: an H200, a T4."""
    return f"an {device}" if device[0] in "AEFHILMNORSX" else f"a {device}"


def roof_words(estimate, mirrors, launch):
    """What the figure shows, and which term binds."""
    B, n, _ = estimate.plan.shape
    times = {name: words(term.seconds) for name, term in estimate.terms.items()}
    matrices = f"{B} matrices" if B > 1 else "One matrix"
    at_once = f"{mirrors} mirrors" if mirrors > 1 else "one mirror"
    binds = "binds" if estimate.binds != "launches" else "bind"
    said = (
        f"{matrices} of {n} \u00d7 {n} on {named(estimate.device.name)}, {at_once} a read, "
        f"{'replayed from a graph' if launch == 'graph' else 'kernels started one by one'}. "
        f"Predicted: {estimate.binds} {binds}. Launches {times['launches']}, "
        f"memory {times['memory']}, arithmetic {times['arithmetic']}."
    )
    size = estimate.plan.working_set
    if size > estimate.device.memory:
        said += f" But A alone is {si(size, 'B')}: more than this GPU has."
    elif size <= estimate.device.l2:
        said += " The batch fits in L2: device memory sees it once in and once out."
    return said


def roof_frame(device="H200", n=512, batch=640, mirrors=32, launch="one by one"):
    """A point under the roof of a device, and its times one under the other."""
    estimate = situation(device, n, batch, mirrors, launch)
    chip = estimate.device
    flops = estimate.plan.flops.flops
    peak, bandwidth = chip.peak["fp32"], chip.bandwidth
    intensity = flops / (estimate.terms["memory"].seconds * bandwidth)
    under, whole = flops / estimate.roof, flops / estimate.time
    said = roof_words(estimate, mirrors, launch)
    fig = Figure(440, 416, f"Roofline of {named(device)}. {said}", max_width=560)
    X, Y = Scale(0.1, 1000, 52, 432), Scale(1e6, 1e15, 252, 14)
    for x in (0.1, 1, 10, 100, 1000):
        fig.line(X(x), Y.end, X(x), Y.start, color="faint", width=1)
        anchor = "end" if x == 1000 else "middle"
        fig.text(X(x), Y.start + 12, f"{x:g}", color="muted", size=12, anchor=anchor)
    for y in (1e6, 1e9, 1e12, 1e15):
        fig.line(X.start, Y(y), X.end, Y(y), color="faint", width=1)
        fig.text(X.start - 6, Y(y), si(y, ""), color="muted", size=12, anchor="end")
    fig.text(X.start + 6, Y.end + 2, "flop/s", color="muted", size=12, anchor="start")
    fig.text(X.end, Y.start + 28, "flop/byte", color="muted", size=12, anchor="end")
    ridge = chip.ridge()
    corners = [(X(0.1), Y(0.1 * bandwidth)), (X(ridge), Y(peak)), (X(1000), Y(peak))]
    fig.polyline(corners, color="ink", width=2.5)
    fig.text(X(1000) - 2, Y(peak) - 12, si(peak, "flop/s"), size=13, anchor="end")
    fig.text(X(ridge) - 8, Y(peak) - 4, si(bandwidth, "B/s"), size=13, anchor="end")
    fig.line(X(intensity), Y(under), X(intensity), Y(whole), color="orange", width=2, dash=(4, 3))
    fig.circle(X(intensity), Y(under), 5, color="ink", fill="paper", width=2)
    fig.circle(X(intensity), Y(whole), 6, color="orange", fill="orange")
    fig.text(X.end - 8, Y(1e9) + 16, "\u25cb the roofline alone", size=13, anchor="end")
    fig.text(X.end - 8, Y(1e9) + 34, "\u25cf launches too", size=13, anchor="end", color="orange")
    T = Scale(1e-9, 10, 100, 356)
    top = 296
    _axis(fig, T, top + 92, (1e-9, 1e-6, 1e-3, 1), top=top)
    for k, name in enumerate(("arithmetic", "memory", "launches")):
        y = top + 16 + 30 * k
        seconds = estimate.terms[name].seconds
        fig.text(T.start - 8, y, name, size=14, anchor="end", bold=name == estimate.binds)
        look = {"color": _TERM[name], "fill": _TERM[name], "fill_opacity": 0.3}
        fig.rect(T.start, y - 9, max(T(seconds) - T.start, 1), 18, **look)
        mark = " binds" if name == estimate.binds else ""
        fig.text(436, y, words(seconds), size=13, anchor="end", bold=bool(mark))
    return Frame(fig, said)


AXES = {
    "GPU": ("T4", "H200", "B200"),
    "n": (32, 176, 512, 1024, 4096),
    "matrices": (1, 8, 60, 640),
    "mirrors": (1, 8, 32, 128),
    "launches": tuple(LAUNCH),
}


def roof_explorer():
    """Device, size, batch, mirrors a read, and how kernels are started: all by sliders."""
    return Explorer(
        roof_frame,
        AXES,
        "The roofline of a GPU with a point for one factorization under it, and below it the "
        "times of arithmetic, memory and launches.",
        start={"GPU": "H200", "n": 512, "matrices": 640, "mirrors": 1, "launches": "one by one"},
        lines=6,
    )


def measured_roof(device, speeds):
    """Speeds of updates with b mirrors a read under the roof of the computer they ran on.

    Args:
        device: with its measured peak and bandwidth. speeds: {b: flops a second}.
    """
    peak, bandwidth = device.peak["fp32"], device.bandwidth
    widths = sorted(speeds)
    alt = (
        f"Speed against the mirrors applied at one read, on {device.name}: "
        + ", ".join(f"{si(speeds[b], 'flop/s')} for {b}" for b in widths)
        + f". The roof is {si(peak, 'flop/s')}, its slope {si(bandwidth, 'B/s')}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.2))
        ridge = 3 * peak / bandwidth
        corners = sorted({widths[0], min(max(ridge, widths[0]), widths[-1]), widths[-1]})
        roof = [min(peak, b / 3 * bandwidth) / 1e9 for b in corners]
        axes.loglog(corners, roof, color=color["ink"], ls="-", label="the roof")
        axes.loglog(
            widths,
            [speeds[b] / 1e9 for b in widths],
            color=color["blue"],
            ls="",
            marker="o",
            label="measured",
        )
        axes.set(xlabel="$b$, mirrors a read", ylabel="Gflop/s")
        axes.set_xticks(widths, [str(b) for b in widths], minor=False)
        axes.minorticks_off()
        axes.legend(loc="lower right")
        return from_matplotlib(figure, alt, max_width=520)


STAGES = {
    "s02_unblocked": "stage 2, one mirror a read",
    "s03_blocked": "stage 3, panels of {nb}",
    "s04_recursive": "stage 4, recursive panels of {nb}",
    "floor": "the floor, one pass",
}


def stage_terms(B, n, device="H200"):
    """{stage: [(term, seconds)]}, predicted with the ceilings measured on the device."""
    found = {}
    for stage in STAGES:
        eager, graph = (
            model.estimate(stage, B, n, n, device, measured=True, graph=graph)
            for graph in (False, True)
        )
        rows = [(name, eager.terms[name].seconds) for name in ("arithmetic", "memory", "launches")]
        rows.append(("in a graph", graph.terms["launches"].seconds))
        if stage == "floor":
            rows[2:] = [("columns", eager.terms["columns"].seconds)]
        found[stage] = rows
    return found


def terms_frame(B, n, device="H200"):
    """The times of stages 2 to 4 and of the floor, term by term, for one batch."""
    found = stage_terms(B, n, device)
    longest = {stage: max(rows, key=lambda row: row[1]) for stage, rows in found.items()}
    titles = {stage: STAGES[stage].format(nb=model.PLANS[stage][1]) for stage in found}
    alt = f"Predicted for {B} matrices of {n} by {n} on {named(device)}. " + " ".join(
        f"{titles[stage]}: " + ", ".join(f"{name} {words(s)}" for name, s in rows) + "."
        for stage, rows in found.items()
    )
    fig = Figure(440, 396, alt, max_width=560)
    T = Scale(1e-9, 10, 96, 356)
    _axis(fig, T, 376, (1e-9, 1e-6, 1e-3, 1), top=12)
    y = 14
    for stage, rows in found.items():
        fig.text(8, y, titles[stage], size=14, anchor="start", bold=True, halo=True)
        for name, seconds in rows:
            y += 18
            color = _TERM.get(name, "orange")
            look = {"color": color, "fill": color}
            look |= {"dash": (3, 3), "fill_opacity": 0} if name == "in a graph" else {}
            fig.text(T.start - 8, y, name, size=13, anchor="end")
            fig.rect(
                T.start, y - 7, max(T(seconds) - T.start, 1), 14, **{"fill_opacity": 0.3} | look
            )
            fig.text(434, y, words(seconds), size=13, anchor="end", bold=longest[stage][0] == name)
        y += 25
    name, seconds = longest["floor"]
    said = (
        f"{B} matrices of {n} \u00d7 {n} on {named(device)}, predicted. The longest term: "
        + "; ".join(
            f"stage {k}, {longest[stage][0]} {words(longest[stage][1])}"
            for k, stage in enumerate(list(found)[:-1], 2)
        )
    )
    return Frame(fig, f"{said}. Of the floor: {name} {words(seconds)}.", f"{B} of {n}")


def terms_stepper(device="H200"):
    """The times of the stages for each of the seven sizes of the task, the large batch last."""
    order = sorted(SHAPES, key=lambda shape: shape == (640, 512))
    return Stepper(
        [terms_frame(*shape, device) for shape in order],
        "Batch",
        f"The times of stages 2 to 4 and of the floor on {named(device)}, term by term.",
        lines=4,
    )


# three of the heights that were measured
PANELS = ("512 x 16", "256 x 16", "64 x 16")


def batch(data, shapes=PANELS):
    """The time of one launch against the size of the batch, as measured.

    Args:
        data: {"gpu", "date", "batch": sizes, "us": {shape: times}}. shapes: those that are shown.
    """
    shown = {shape: data["us"][shape] for shape in shapes}
    sms = DEVICES[data["gpu"]].sms
    alt = f"Time of one launch on {named(data['gpu'])} against the matrices in it. " + " ".join(
        f"A panel of {shape} each: "
        + ", ".join(f"{t:g} \u00b5s for {B}" for B, t in zip(data["batch"], times))
        + "."
        for shape, times in shown.items()
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.2))
        for shape, times in shown.items():
            label = shape.replace("x", "\u00d7")
            axes.plot(data["batch"], times, marker="o", label=f"each {label}")
        for waves in range(1, 1 + max(data["batch"]) // sms):
            axes.axvline(waves * sms, color=color["muted"], lw=0.8, ls=":")
        axes.set(xlabel=f"matrices (dotted: multiples of {sms} SMs)", ylabel="\u00b5s for all")
        axes.set_ylim(0)
        axes.set_xlim(0)
        axes.set_xticks(data["batch"])
        axes.legend(loc="upper left")
        return from_matplotlib(figure, alt, max_width=520)


def floors(B, n, device, column):
    """{term: seconds} that no program can be faster than, by the ceilings of a device.

    memory: A in, H and tau out. arithmetic: all of it in FP16 on tensor cores. columns: n of them,
    `column` seconds each. Ceilings measured on the device where there are any.
    """
    estimate = model.estimate(
        "floor",
        B,
        n,
        n,
        device,
        precision="fp16",
        measured=bool(DEVICES[device].measured),
        column=column,
    )
    return {name: estimate.terms[name].seconds for name in ("memory", "arithmetic", "columns")}


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def distances(runs, device, column):
    """[(case, floors, {run: seconds})] for the 12 cases, from runs as published.json has them."""
    return [
        (
            case,
            floors(case.batch, case.n, device, column),
            {run["name"]: run["us"][k] * 1e-6 for run in runs},
        )
        for k, case in enumerate(BENCHMARK_CASES)
    ]


# a run of this name is the library; the others are programs made for the task
LIBRARY = "torch.geqrf"


def gap_frame(runs, device, column, title):
    """The 12 cases: the floor, the fastest program, the others, and how far apart they are."""
    rows = distances(runs, device, column)
    made = [run["name"] for run in runs if run["name"] != LIBRARY]
    lows = [max(terms.values()) for _, terms, _ in rows]
    bests = [min(times[name] for name in made) for _, _, times in rows]
    ratios = [best / low for low, best in zip(lows, bests)]
    short = {"memory": "m", "arithmetic": "a", "columns": "c"}
    binding = [max(terms, key=terms.get) for _, terms, _ in rows]
    alt = f"{title}. " + " ".join(
        f"{case.batch} of {case.n} {case.family}: floor {words(low)} by {term}, fastest "
        f"{words(best)}, {ratio:.2g} times as long."
        for (case, _, _), low, best, term, ratio in zip(rows, lows, bests, binding, ratios)
    )
    fig = Figure(440, 456, alt, max_width=600)
    T = Scale(1e-6, 1, 150, 426)
    top, high = 52, 28
    foot = top + high * len(rows)
    _axis(fig, T, foot, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1), top=top - 8, size=11)
    fig.text(8, 14, title, size=14, bold=True, anchor="start")
    fig.text(T.start - 22, 36, "matrices \u00b7 n, family", size=12, anchor="end", color="muted")
    for k, ((case, _, times), low, best, term) in enumerate(zip(rows, lows, bests, binding)):
        y = top + high * (k + 0.5)
        name = f"{case.batch} \u00b7 {case.n} {case.family}"
        fig.text(T.start - 22, y, name, size=12, anchor="end")
        fig.rect(T.start, y - 5, T(low) - T.start, 10, color="none", fill="faint", fill_opacity=0.6)
        fig.line(T(low), y, T(best), y, color="orange", width=5)
        fig.line(T(low), y - 9, T(low), y + 9, width=3)
        fig.text(T.start - 10, y, short[term], size=12, bold=True)
        for run, seconds in times.items():
            if run == LIBRARY:
                x = T(seconds)
                d = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
                fig.path(d, color="pink", width=2)
            elif seconds > best:
                fig.circle(T(seconds), y, 3.5, color="blue", fill="paper")
        fig.circle(T(best), y, 4.5, color="blue", fill="blue")
        ratio = ratios[k]
        fig.text(
            (T(low) + T(best)) / 2, y - 10, f"{ratio:.2g}\u00d7", size=11, color="orange", halo=True
        )
    y = foot + 32
    fig.line(14, y - 8, 14, y + 8, width=3)
    fig.text(24, y, "floor", size=13, anchor="start")
    fig.circle(78, y, 4.5, color="blue", fill="blue")
    fig.text(88, y, "fastest program", size=13, anchor="start")
    fig.circle(206, y, 3.5, color="blue")
    fig.text(216, y, "others", size=13, anchor="start")
    if any(run["name"] == LIBRARY for run in runs):
        fig.path(f"M270 {y - 4:.1f}l8 8m0 -8l-8 8", color="pink", width=2)
        fig.text(286, y, LIBRARY, size=13, anchor="start")
    fig.text(8, y + 20, "m: memory, c: columns sets the floor", size=12, anchor="start")
    said = (
        f"{title}: the floor is {words(geomean(lows))} in the geometric mean, the fastest program "
        f"of each case takes {words(geomean(bests))}: {geomean(ratios):.2g} times as long. "
    )
    if any(run["name"] == LIBRARY for run in runs):
        library = geomean([times[LIBRARY] for _, _, times in rows])
        said += f"{LIBRARY} takes {words(library)}, {library / geomean(lows):.3g} times the floor."
    else:
        near, far = min(ratios), max(ratios)
        said += f"From {near:.2g} times, where it is nearest, to {far:.2g} times."
    return Frame(fig, said, title)


def gap_stepper(published, column):
    """How far from the floor the fastest programs are, on two GPUs.

    Args:
        published: as book/data/published.json. column: seconds a dependent column takes at least.
    """
    measured, told = (
        [run for run in published["runs"] if run["kind"] == kind]
        for kind in ("measured", "published")
    )
    frames = [
        gap_frame(told, "B200", column, "B200 and GB200, published"),
        gap_frame(measured, "H200", column, f"H200, measured {measured[0]['date']}"),
    ]
    return Stepper(
        frames, "GPU", "The floor, the fastest programs and the library for the 12 cases.", lines=4
    )
