"""The figures of the chapter "The kernel that is asked for": lanes, banks, routes, badges."""

import inspect
from functools import cache
from typing import NamedTuple

import numpy as np

from qrlib import lanes, model
from qrlib.compilelab import compile_config, families
from qrlib.devices import DEVICES, KIB
from qrlib.launches import launches
from qrlib.matrices import BENCHMARK_CASES
from qrlib.replay import branches
from qrlib.stages import s10_blackwell as ten
from qrlib.stages.s09_mixed import products
from qrlib.teach.exercises.s10_blackwell import cycles, one_mirror, turns
from qrlib.teach.figures.certify import Table
from qrlib.teach.figures.ladder import duration
from qrlib.teach.figures.measure import named
from qrlib.teach.figures.roofline import geomean
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, number

STAGE = "s10_blackwell"
H200, B200 = DEVICES["H200"], DEVICES["B200"]
SHAPES = tuple(dict.fromkeys((case.batch, case.n) for case in BENCHMARK_CASES))

# a row in a register, a column in a lane

# columns of a Hadamard matrix, of length 2, times [[2, 1, 2], [0, 3, 1], [0, 0, 2]]
P43 = np.array([[2.0, 4, 5], [2, -2, 3], [2, 4, 1], [2, -2, -1]])


class Moment(NamedTuple):
    """Rows in registers, [n] each: before mirror j, at one of STEPS of it.

    x: entries of column j below row j, that all lanes have; sums: x^T P of each lane; tau: found.
    """

    P: tuple
    j: int
    step: str
    x: tuple = ()
    sums: tuple = ()
    tau: float | None = None


STEPS = ("loaded", "sent", "summed", "done")


def moments(A=P43):
    """[Moment] of a matrix, in float64: as `lanes.mirror_of_warp` goes through it."""
    P = [row.copy() for row in A]
    found = [Moment(tuple(P), 0, "loaded")]
    for j in range(min(A.shape)):
        x = tuple(row[j] for row in P[j + 1 :])
        sums = tuple(sum(entry * row for entry, row in zip(x, P[j + 1 :])))
        found.append(Moment(tuple(P), j, "sent", x))
        found.append(Moment(tuple(P), j, "summed", x, sums))
        P, tau = one_mirror(P, j)
        found.append(Moment(tuple(P), j, "done", tau=tau))
    return found


def moment_words(it):
    j, n = it.j, len(it.P[0])
    if it.step == "loaded":
        return f"{n} lanes of a warp have a column each; row i of all lanes is one register."
    if it.step == "sent":
        return (
            f"Mirror {j}: lane {j} sends what it has below row {j} to all lanes, one shuffle a row."
        )
    if it.step == "summed":
        return (
            f"Each lane multiplies that with its own column and adds up, alone. Lane {j} has "
            f"the sum of squares, {_entry(it.sums[j])}; with its entry {_entry(it.P[j][j])} of row "
            f"{j} that makes the mirror."
        )
    return (
        f"Row {j} is R's, with {_entry(it.P[j][j])} on the diagonal; lane {j} keeps v below it. "
        f"tau is {_entry(it.tau)}. No lane has waited for a sum of others."
    )


def _entry(a):
    return number(round(float(a), 2) + 0.0, "{:g}")


def lanes_frame(k, A=P43):
    """The matrix in registers at one moment."""
    it = moments(A)[k]
    m, n = A.shape
    said = moment_words(it)
    alt = f"{m} rows of {n} boxes, a box for the entry of a lane. {said} Rows: " + "; ".join(
        " ".join(map(_entry, row)) for row in it.P
    )
    fig = Figure(440, 58 + 42 * (m + 1), alt, max_width=600)
    wide, left, top = 74, 96, 40
    for q in range(n):
        fig.text(left + wide * q + wide / 2, 14, f"lane {q}", size=13, bold=q == it.j)
    fig.text(430, 14, "in all lanes", size=13, anchor="end", color="muted")
    done = it.j if it.step != "done" else it.j + 1
    for i, row in enumerate(it.P):
        y = top + 42 * i
        fig.text(8, y + 16, f"register {i}", size=13, anchor="start", color="muted")
        for q, entry in enumerate(row):
            ready = i < done or q < done
            color = "green" if ready else "blue"
            here = it.step != "done" and q == it.j and i > it.j
            look = {"color": "pink", "width": 2.4} if here else {"color": color, "width": 1.2}
            fig.rect(left + wide * q + 2, y, wide - 4, 34, r=4, fill=look["color"],
                     fill_opacity=0.2 if here else 0.1, dash="4 3" if ready else None,
                     **look)  # fmt: skip
            fig.text(left + wide * q + wide / 2, y + 17, _entry(entry), size=14)
        if it.x and i > it.j:
            x = left + wide * n + 12
            fig.rect(x, y, 62, 34, r=4, color="pink", fill="pink", fill_opacity=0.2, width=1.2)
            fig.text(x + 31, y + 17, _entry(it.x[i - it.j - 1]), size=14)
    y = top + 42 * m + 10
    if it.sums:
        fig.text(8, y + 16, "*x*\u1d40*P*", size=14, anchor="start")
        for q, total in enumerate(it.sums):
            if q >= it.j:
                fig.rect(left + wide * q + 2, y, wide - 4, 34, r=17, color="orange", fill="orange",
                         fill_opacity=0.15, width=1.6)  # fmt: skip
                fig.text(left + wide * q + wide / 2, y + 17, _entry(total), size=14)
    return Frame(fig, said, f"mirror {it.j}, {it.step}" if k else "loaded")


def lanes_stepper(A=P43):
    """A matrix walked down to R by one warp."""
    frames = [lanes_frame(k, A) for k in range(len(moments(A)))]
    return Stepper(frames, "Moment", "A matrix in the registers of a warp.", lines=3)


# what a mirror takes

# lanes of an SM of an H200 that take an instruction in a cycle, for 128 of FP32; from the CUDA
# guide, arithmetic throughput of compute capability 9.0
HALF = ("ISETP", "FSETP", "FSEL", "SEL", "LOP3", "PLOP3", "IADD3", "VIADD", "LEA", "SHF", "FMNMX",
        "IMNMX", "VIMNMX", "PRMT")  # fmt: skip
RATES = {"fp32": 128, "half": 64, "shuffle": 32, "root": 16}


class Mirror(NamedTuple):
    """The longest loop of a kernel that takes roots, for one mirror.

    counts: {"all", *RATES}: instructions of a warp. elements: of the tile, a lane.
    """

    counts: dict
    elements: int

    @property
    def cycles(self):
        """Of a quarter of an SM, at least: see the exercise."""
        units = {what: self.counts[what] for what in RATES}
        others = self.counts["all"] - sum(units.values())
        # of the rest we know only that it is issued
        return max(cycles(units), self.counts["all"]) if others else cycles(units)


def roots():
    """How many roots `lanes.larfg` takes."""
    return inspect.getsource(lanes.larfg.fn).count("tl.rsqrt(")


def kind_of(name):
    """The unit of an instruction: one of RATES, or None."""
    family = next(iter(families({name: 1})), None)
    found = {"FP32": "fp32", "SHFL": "shuffle", "MUFU": "root"}.get(family)
    return found or ("half" if name in HALF else None)


@cache
def mirror(m, n, target="sm_90a"):
    """Mirror of the whole matrix m x n."""
    config = launches(STAGE, 1, m, n, target=target)[0].config
    made = compile_config(config, target)
    loops = [[it.name for it in made.plain if it.address in loop] for loop in made.loops]
    names = max((names for names in loops if "MUFU" in names), key=len)
    mirrors = names.count("MUFU") / roots()
    counts = dict.fromkeys(RATES, 0)
    for name in names:
        if kind := kind_of(name):
            counts[kind] += 1
    counts = {what: count / mirrors for what, count in counts.items()}
    constants = config.constexprs
    return Mirror({"all": len(names) / mirrors, **counts}, constants["R"] * constants["G"])


PRICED = ((32, 32), (64, 64), (128, 64), (512, 32))


def price_table(target="sm_90a"):
    """Instructions of a warp for one mirror, by unit."""
    rows = []
    for m, n in PRICED:
        it = mirror(m, n, target)
        warps, columns = ten.WHOLE[max(32, 1 << (m - 1).bit_length()), n]
        counts = (f"{it.counts[what]:.0f}" for what in ("all", *RATES))
        rows.append([f"{m} x {n}", f"{warps} x {32 // columns}", str(it.elements), *counts,
                     f"{it.counts['all'] / it.elements:.1f}"])  # fmt: skip
    heads = ("matrix", "rows at a time", "entries a lane", "all", "FP32", "half rate",
             "shuffles", "roots", "all, an entry")  # fmt: skip
    return Table(f"compiled for {target}: instructions of a warp, one mirror", heads, rows)


# banks


def words_of(warps, joined, columns=16, number=0):
    """Where lanes of a warp put a number in shared memory, so that warps can add theirs up.

    Numbers of all warps that belong together stand side by side, and then, of `joined` ones of a
    lane, the next.
    """
    return [warps * (number + joined * q) for q in range(columns)]


def banks_words(warps, joined, columns=16):
    words = words_of(warps, joined, columns)
    took = turns(words)
    used = len({word % 32 for word in words})
    what = "one number" if joined == 1 else f"{joined} numbers joined"
    return (
        f"{warps} warps, {what}: lanes are {warps * joined} words apart, in {used} of 32 banks. A "
        f"store takes {took} turns; four numbers take four stores, {4 * took} turns."
    )


def banks_frame(warps, joined, columns=16):
    """32 banks, and the lanes of a warp that store into them."""
    words = words_of(warps, joined, columns)
    said = banks_words(warps, joined, columns)
    stacks = {}
    for q, word in enumerate(words):
        stacks.setdefault(word % 32, []).append(q)
    alt = f"32 banks side by side. {said} " + "; ".join(
        f"bank {bank}: lanes {', '.join(map(str, its))}" for bank, its in stacks.items()
    )
    high = 15 * columns
    fig = Figure(440, high + 52, alt, max_width=640)
    wide, left, bottom = 13.2, 9, high + 16
    for bank in range(32):
        x = left + wide * bank
        fig.line(x, 14, x, bottom, color="faint", width=1)
        if bank % 4 == 0:
            fig.text(x + wide / 2, bottom + 12, str(bank), size=12, color="muted")
        for turn, q in enumerate(stacks.get(bank, ())):
            late = turn > 0
            y = bottom - 15 * turn - 14
            fig.rect(x + 0.5, y, wide - 1, 13, r=2, color="orange" if late else "blue", width=1,
                     fill="orange" if late else "blue", fill_opacity=0.2)  # fmt: skip
            fig.text(x + wide / 2, y + 6.5, str(q), size=9)
    fig.line(left + 32 * wide, 14, left + 32 * wide, bottom, color="faint", width=1)
    fig.text(left, bottom + 27, "bank; in a box the lane, above each other: one turn each", size=12,
             anchor="start", color="muted")  # fmt: skip
    return Frame(fig, said, f"{warps} warps, {joined} joined")


BANKED = ((2, 1), (4, 1), (8, 1), (8, 2), (8, 4))


def banks_stepper():
    """From two warps to eight, and from one number to four in a tile."""
    frames = [banks_frame(*each) for each in BANKED]
    return Stepper(frames, "Numbers", "Lanes of a warp that store into the banks of shared memory.")


# one door


def route(B, n, *, replayed=False, policy="fp32"):
    """The stage whose kernels a batch of n x n matrices gets, as a number."""
    if ten.alone(n, n):
        return 10
    if ten.pays(B, n, n, replayed):
        return 7
    return 9 if policy == "fast" and products(n) else 8


NAMES = {
    10: "stage 10: one launch, columns in lanes",
    7: "stage 7: one launch, panels in registers",
    8: "stage 8: panels by their Gram matrix, the last in lanes",
    9: "stage 9: the same, and fewer products",
}
COLORS = {10: "green", 7: "blue", 8: "orange", 9: "pink"}
MAP_SIZES = (32, 64, 96, 128, 160, 176, 192, 352, 512, 1024, 2048, 4096)
MAP_BATCHES = (1, 8, 40, 132, 133, 264, 640, 4096)
ASKED = {
    "called": {},
    "in a graph": {"replayed": True},
    'in a graph, "fast"': {"replayed": True, "policy": "fast"},
}


def map_words(asked):
    found = [route(B, n, **ASKED[asked]) for B in MAP_BATCHES for n in MAP_SIZES]
    counts = ", ".join(f"{found.count(k)} by stage {k}" for k in NAMES if k in found)
    return f"{asked[0].upper() + asked[1:]}: of {len(found)} shapes {counts}."


def map_frame(asked="called"):
    """Which kernel is for which size: batch upwards, n to the right."""
    said = map_words(asked)
    alt = f"A table of numbers, a stage for each batch and size. {said} " + "; ".join(
        f"batch {B}: " + " ".join(str(route(B, n, **ASKED[asked])) for n in MAP_SIZES)
        for B in MAP_BATCHES
    )
    wide, row, left, top = 32, 28, 50, 12
    fig = Figure(440, top + row * len(MAP_BATCHES) + 46 + 18 * len(NAMES), alt, max_width=640)
    for k, B in enumerate(reversed(MAP_BATCHES)):
        y = top + row * k
        fig.text(left - 6, y + row / 2, str(B), size=12, anchor="end", color="muted")
        for c, n in enumerate(MAP_SIZES):
            stage = route(B, n, **ASKED[asked])
            fig.rect(left + wide * c + 1, y + 1, wide - 2, row - 2, r=3, color=COLORS[stage],
                     width=1, fill=COLORS[stage], fill_opacity=0.18)  # fmt: skip
            fig.text(left + wide * c + wide / 2, y + row / 2, str(stage), size=13)
    y = top + row * len(MAP_BATCHES)
    for c, n in enumerate(MAP_SIZES):
        fig.text(left + wide * c + wide / 2, y + 12, str(n), size=11, color="muted")
    fig.text(left, y + 29, "*n* to the right, matrices upwards; in a box the stage", size=12,
             anchor="start", color="muted")  # fmt: skip
    for k, (stage, words) in enumerate(NAMES.items()):
        fig.text(left, y + 50 + 18 * k, f"{stage}: {words.partition(': ')[2]}", size=12,
                 anchor="start", color=COLORS[stage])  # fmt: skip
    return Frame(fig, said, asked)


def map_stepper():
    """Called from Python, and in a graph at each policy."""
    return Stepper([map_frame(asked) for asked in ASKED], "How", "Which kernel is for which size.")


def route_table():
    """The shapes of the task: who works, in how many launches and branches."""
    rows = []
    for B, n in SHAPES:
        stage = route(B, n, replayed=True)
        started = launches(
            STAGE, B, n, n, target="sm_90a", **({} if stage == 10 else _whole(stage))
        )
        cells = [f"{B} x {n}", NAMES[stage], str(len(started))]
        rows.append([*cells, str(branches(B)) if stage == 8 else "-"])
    heads = ("matrices", "in a graph", "launches", "branches")
    return Table('the shapes of the task, policy "fp32", on the paper of an H200', heads, rows)


def _whole(stage):
    return {"whole": stage == 7}


# what binds


def bounds(B, n, device=H200):
    """{what: seconds} that a batch would take if nothing else took time: predicted."""
    known = device.measured
    by_panels = route(B, n, replayed=True) == 8
    # in a graph: the model of stage 10 is for a call, and that of stage 8 has a last panel like all
    plan = model.plan("s08_cholesky" if by_panels else STAGE, B, n, n)
    scale = 1 if known else H200.clock / device.clock
    latency = {what: H200.measured[what].value * scale for what in ("graph node", "column")}
    rate = known["fp16"].value if known else device.peak["fp16"]
    memory = known["bandwidth"].value if known else device.bandwidth
    return {
        "starts": plan.launches * latency["graph node"],
        "columns": n * latency["column"],
        "bytes": plan.bytes / memory,
        # every flop as if it were in a product of pairs
        "arithmetic": 3 * plan.flops.flops / rate,
    }


def bounds_table(device=H200):
    """Every shape of the task: what it would take if only one thing did."""
    rows = []
    for B, n in SHAPES:
        found = bounds(B, n, device)
        most = max(found, key=found.get)
        rows.append([f"{B} x {n}", *(duration(1e6 * s) for s in found.values()), most])
    heads = ("matrices", "starts", "columns", "bytes", "arithmetic", "the most")
    return Table(f"predicted for {device.name}, each by itself", heads, rows)


# three badges

LARGE = ("update_kernel", "routed_update_kernel", "square_kernel", "vectors_kernel")
BADGED = ((20, 32, "fp32"), (640, 512, "fp32"), (60, 1024, "fast"))


@cache
def badged(target="sm_100a"):
    """[(matrices, artifact)]: the launch of a small matrix, and products over all rows."""
    found = {}
    for B, n, policy in BADGED:
        for each in launches(STAGE, B, n, n, target=target, policy=policy):
            config, constants = each.config, each.config.constexprs
            large = config.name in LARGE and constants.get("TWO", True)
            # two routes of one launch each: that of few products is what is new
            other = config.name == "routed_update_kernel" and constants["FLAT"] is None
            if (large or ten.alone(n, n)) and not other:
                found.setdefault(config.key, (f"{B} x {n}", config))
    return [(words, compile_config(config, target)) for words, config in found.values()]


def compiled_table(target="sm_100a"):
    """What the compiler has made of them."""
    tensor = "tcgen05" if target == "sm_100a" else "HGMMA"
    rows = []
    for words, made in badged(target):
        outside, inside = made.spills
        constants = made.config.constexprs
        how = constants.get("FLAT") or constants.get("PRECISION") or "-"
        room = f"{made.shared / KIB:.0f}"
        rows.append([made.config.name, words, str(how), str(made.families.get(tensor, 0)),
                     str(made.registers), f"{inside}, {outside}", room])  # fmt: skip
    heads = ("kernel", "matrices", "products", tensor, "registers",
             "spills inside, outside of loops", "shared, KiB")  # fmt: skip
    return Table(f"compiled for {target}", heads, rows)


def _median(results, **want):
    """The median of the one row that passed, or None where it was not measured."""
    rows = [row for row in results.find(**want) if row["ok"]]
    return rows[0]["median_us"] if rows else None


def _said(us):
    return "not measured" if us is None else duration(us)


WAYS = (("fp32", "eager"), ("fp32", "replay"), ("fast", "eager"), ("fast", "replay"))


def rungs_table(results, stages=("s08_cholesky", "s09_mixed", "auto")):
    """The last rungs on the ladder's case, called and replayed, at each policy."""
    mine = BENCHMARK_CASES[3]._asdict()
    rows = []
    for stage in ("torch", *stages):
        times = (_median(results, stage=stage, precision=p, mode=mode, **mine) for p, mode in WAYS)
        rows.append([stage, *map(_said, times)])
    heads = ("rung", *(f"{p}, {'called' if mode == 'eager' else 'replayed'}" for p, mode in WAYS))
    return Table(f"{named(BENCHMARK_CASES[3])}: {results.where()}", heads, rows)


def score_table(results, stage="auto"):
    """The twelve cases: torch.geqrf, and what the door gives at each policy, replayed."""
    rows, known = [], {"torch": [], "fp32": [], "fast": []}
    for case in BENCHMARK_CASES:
        mine = case._asdict()
        found = {"torch": _median(results, stage="torch", mode="eager", **mine)}
        for policy in ("fp32", "fast"):
            found[policy] = _median(results, stage=stage, precision=policy, mode="replay", **mine)
        for name, us in found.items():
            known[name].append(us)
        rows.append([named(case), *map(_said, found.values())])
    # a mean over the cases that were measured is no mean
    means = [None if None in us else geomean(us) for us in known.values()]
    rows.append(["geometric mean", *map(_said, means)])
    times = ["-", *("-" if None in (us, means[0]) else f"{means[0] / us:.0f}" for us in means[1:])]
    rows.append(["times as fast as torch.geqrf", *times])
    heads = ("case", "torch.geqrf", 'replayed, "fp32"', 'replayed, "fast"')
    return Table(f"the twelve cases, {results.where()}", heads, rows)


def a_column(results, stage="auto"):
    """What a column of the smallest case takes, its launch and all, beside one of chapter 7."""
    case = min(BENCHMARK_CASES, key=lambda case: case.n)
    us = _median(results, stage=stage, precision="fp32", mode="replay", **case._asdict())
    chapter_7 = f"{1e6 * H200.measured['column'].value:.2f} us in the panel of chapter 7"
    if us is None:
        return f"{named(case)}: not measured; a column takes {chapter_7}"
    return f"{named(case)}: {us / case.n:.2f} us a column, start and all; {chapter_7}"


def predicted_table(published, device=B200):
    """What the model says of a device, beside the best that was published for it."""
    runs = [run["us"] for run in published["runs"] if run["gpu"] == device.name]
    best = [min(us) for us in zip(*runs)]
    rows = []
    for B, n in SHAPES:
        found = bounds(B, n, device)
        at = next(k for k, (b, size, *_) in enumerate(published["cases"]) if (b, size) == (B, n))
        roof = max(found["bytes"], found["arithmetic"])
        rows.append([f"{B} x {n}", duration(1e6 * roof), duration(1e6 * found["columns"]),
                     duration(best[at])])  # fmt: skip
    heads = ("matrices", "roof of our bytes and flops", "columns, one after the other",
             "best published")  # fmt: skip
    return Table(f"predicted for {device.name}; published by others", heads, rows)
