"""Exercises of chapter 4, Where does the time go? The model and NumPy; no GPU, no torch."""

import math
import time

import numpy as np

from qrlib import model
from qrlib.devices import DEVICES
from qrlib.teach.exercises.compare import close, kind, number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong

GPU = "H200"
TERMS = ("arithmetic", "memory", "launches", "columns")


# 4.1

SITUATIONS = (
    ("stage 2, 640 x 512 x 512, kernels started one by one", "s02_unblocked", (640, 512), False),
    ("stage 2, 640 x 512 x 512, replayed from a graph", "s02_unblocked", (640, 512), True),
    ("the floor, 20 x 32 x 32", "floor", (20, 32), False),
    ("the floor, 640 x 512 x 512", "floor", (640, 512), False),
    ("the floor, 60000 x 32 x 32", "floor", (60_000, 32), False),
)


def binding():
    """The longest term in each of the five situations: five words, in their order."""
    # dozens of launches a column; then 260 passes; then a chain of 32; then 4/3 n^3; then 2 n^2
    return "launches", "memory", "columns", "arithmetic", "memory"


def _estimate(stage, B, n, graph):
    return model.estimate(stage, B, n, n, GPU, measured=True, graph=graph)


_WHY = {
    "arithmetic": "4/3 n^3 flops a matrix grow faster than the 2 n^2 numbers that go in and out.",
    "memory": "Count the bytes: how often does the batch pass through memory?",
    "launches": "Stage 2 starts dozens of kernels for every column, whatever the batch.",
    "columns": "The columns wait for one another, however few and short they are.",
}


def _bind(answer):
    said = several(answer, [what for what, *_ in SITUATIONS])
    for word, (what, stage, shape, graph) in zip(said, SITUATIONS):
        estimate = _estimate(stage, *shape, graph)
        if not isinstance(word, str) or word not in TERMS:
            raise Wrong(
                f"Each must be one of {', '.join(TERMS)}; got {kind(word)}.",
                "Give five words, one for each line of the task.",
            )
        if word == estimate.binds:
            continue
        times = {name: term.seconds for name, term in estimate.terms.items()}
        if word not in times:
            raise Wrong(
                f"{what}: there are no {word} in this plan.",
                "A stage of many launches has no columns inside a kernel: its launches are them.",
            )
        raise Wrong(
            f"{what}: {word} is {times[word] * 1e3:.3g} ms, {estimate.binds} "
            f"{times[estimate.binds] * 1e3:.3g} ms.",
            _WHY[estimate.binds],
        )


# 4.2


def predict(flops, bytes, launches, columns, ceilings):
    """(seconds, binds): the predicted time, and the name of its longest term.

    flops, bytes, launches, columns: how many. ceilings: a dict with "peak" in flops a second,
    "bandwidth" in bytes a second, "launch" and "column" in seconds each.
    """
    terms = {
        "arithmetic": flops / ceilings["peak"],
        "memory": bytes / ceilings["bandwidth"],
        "launches": launches * ceilings["launch"],
        "columns": columns * ceilings["column"],
    }
    # units compute while memory moves; a launch or a column is waited for
    roof = max(terms["arithmetic"], terms["memory"])
    return roof + terms["launches"] + terms["columns"], max(terms, key=terms.get)


def _predicted(answer, counts, ceilings, about=""):
    seconds, binds = several(answer(*counts, ceilings, about=about), ("seconds", "binds"))
    seconds = number("seconds", seconds)
    if not isinstance(binds, str) or binds not in TERMS:
        raise Wrong(f"binds must be one of {', '.join(TERMS)}; got {kind(binds)}.")
    right, longest = predict(*counts, ceilings)
    a, m, launches, columns = (
        counts[0] / ceilings["peak"],
        counts[1] / ceilings["bandwidth"],
        counts[2] * ceilings["launch"],
        counts[3] * ceilings["column"],
    )
    if not close(seconds, right):
        slips = (
            (a + m + launches + columns, "Arithmetic and memory overlap: the longer of the two."),
            (max(a, m, launches, columns), "Launches and columns are waited for: add them."),
            (max(a, m), "That is the roofline alone: launches and columns are still missing."),
            (
                min(a, m) + launches + columns,
                "The longer of arithmetic and memory, not the shorter.",
            ),
        )
        why = next((why for slip, why in slips if close(seconds, slip)), "")
        raise Wrong(
            f"seconds is {seconds:.4g}; expected {right:.4g}: arithmetic {a:.3g} s, memory "
            f"{m:.3g} s, launches {launches:.3g} s, columns {columns:.3g} s.",
            why or "Each term is a number of things times what one of them takes.",
        )
    if binds != longest:
        raise Wrong(
            f"binds is {binds}; the longest of the four terms is {longest}.",
            "Compare all four, not only the two of the roofline.",
        )


_BY_HAND = {"peak": 1e12, "bandwidth": 1e12, "launch": 0.01, "column": 0.1}


def _predict_by_hand(answer):
    # 3 s, 2 s, 1 s, 5 s
    _predicted(answer, (3 * 10**12, 2 * 10**12, 100, 50), _BY_HAND)
    _predicted(answer, (10**12, 2 * 10**12, 10, 5), _BY_HAND)


def _predict_stages(answer):
    seen = DEVICES[GPU].measured
    ceilings = {
        "peak": seen["fp32"].value,
        "bandwidth": seen["bandwidth"].value,
        "launch": seen["launch"].value,
        "column": seen["column"].value,
    }
    for stage in ("s02_unblocked", "s03_blocked", "floor"):
        for B, n in ((20, 32), (640, 512), (2, 1024)):
            plan = model.plan(stage, B, n, n)
            counts = plan.flops.flops, plan.bytes, plan.launches, plan.columns
            _predicted(answer, counts, ceilings, f"{stage}, {B} x {n} x {n} on {GPU}")


def _predict_awkward(answer):
    _predicted(answer, (0, 0, 1, 0), _BY_HAND, "nothing to do, but started")
    _predicted(answer, (0, 10**12, 0, 0), _BY_HAND, "a copy: no arithmetic")


# 4.3


def width(peak, bandwidth):
    """The fewest mirrors a read for which memory is not the limit: an integer.

    peak: flops a second. bandwidth: bytes a second.
    """
    # 4 m n b flops for three trips of 4 m n bytes: b / 3 flops a byte
    return math.ceil(3 * peak / bandwidth)


def _width_for(peak, bandwidth, about):
    def step(answer):
        got = number("The result", answer(peak, bandwidth, about=about))
        ridge = peak / bandwidth
        if got == math.ceil(3 * ridge):
            return
        slips = (
            (3 * ridge, "Mirrors come whole: the next integer that is large enough."),
            (math.floor(3 * ridge), "One less than needed: memory is still the limit. Round up."),
            (ridge, "That is the ridge in flops a byte; b mirrors have b / 3 flops a byte."),
            (2 * ridge, "Three trips: C in for V^T C, in again for the update, and out."),
            (6 * ridge, "A multiplication and an addition are two flops."),
            (12 * ridge, "Four flops for each entry and mirror, and twelve bytes an entry."),
            (3 * ridge / 4, "A float32 has four bytes."),
        )
        why = next((why for slip, why in slips if abs(got - slip) < 1e-9 * slip), "")
        why = why or next((why for slip, why in slips[2:] if 0 <= got - slip < 1), "")
        raise Wrong(
            f"It gives {got:g}; with {math.ceil(3 * ridge)} mirrors a read the update has "
            f"{math.ceil(3 * ridge) / 3:.4g} flops a byte, the ridge is at {ridge:.4g}.",
            why
            or "How many flops has an entry of C, how many bytes? Set their ratio to the ridge.",
        )

    return step


# 4.4

LARGEST = 4096


def two_shapes():
    """(wrong, right): a shape (B, m, n) that the roofline gets wrong, and one it gets right."""
    # one tiny matrix is all launches; twenty million make each launch worth its start
    return (1, 4, 4), (20_000_000, 16, 16)


def roof_and_time(B, m, n):
    """(seconds of the roofline alone, seconds with the launches) of stage 2 on an H200."""
    estimate = model.estimate("s02_unblocked", B, m, n, GPU, measured=True)
    return estimate.roof, estimate.time


def _shapes(answer):
    shapes = []
    for name, given in zip(("wrong", "right"), several(answer, ("wrong", "right"))):
        sizes = [number(f"A size of {name}", size) for size in several(given, ("B", "m", "n"))]
        if not all(size >= 1 and size == math.floor(size) for size in sizes):
            raise Wrong(f"{name} must be three whole numbers from 1 on; got {given!r}.")
        B, m, n = map(int, sizes)
        if max(m, n) > LARGEST:
            raise Wrong(f"{name} has a side of {max(m, n)}; at most {LARGEST} is asked for.")
        if 4 * B * m * n > DEVICES[GPU].memory:
            raise Wrong(
                f"{name} needs {4e-9 * B * m * n:.4g} GB for A alone; an {GPU} has "
                f"{DEVICES[GPU].memory / 1e9:.0f} GB.",
                "Fewer columns mean fewer launches: then a smaller batch will do.",
            )
        shapes.append((B, m, n))
    return shapes


def _wrong_shape(answer):
    shape = _shapes(answer)[0]
    roof, seconds = roof_and_time(*shape)
    if seconds < 1000 * roof:
        raise Wrong(
            f"For {shape} the roofline says {roof * 1e6:.3g} us, and with its launches it takes "
            f"{seconds * 1e6:.3g} us: {seconds / roof:.3g} times as long, not 1000.",
            "Starting a kernel takes the same time however little there is to do.",
        )


def _right_shape(answer):
    shape = _shapes(answer)[1]
    roof, seconds = roof_and_time(*shape)
    if roof < 0.9 * seconds:
        raise Wrong(
            f"For {shape} the roofline says {roof * 1e3:.3g} ms of {seconds * 1e3:.3g} ms, "
            f"{roof / seconds:.0%}, not 90 %.",
            "Launches do not grow with the batch, bytes do.",
        )


# 4.5


def add_time(n, repeats=20):
    """Seconds that np.add takes for n float32 numbers: the best of some repetitions."""
    x, y = np.ones(n, np.float32), np.empty(n, np.float32)
    calls = max(1, 20_000 // (n + 200))
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            np.add(x, x, out=y)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def half_length():
    """How many entries double the time of np.add: there call and work take equally long."""
    # solution
    one, n = add_time(1), 1
    while add_time(2 * n) < 2 * one:
        n *= 2
    # twice the time is reached between n and 2n
    return round(1.5 * n)
    # end


def _half(answer):
    got = number("The number of entries", answer)
    if not 1 <= got <= 1e7:
        raise Wrong(
            f"It gives {got:.4g}; the answer is a number of entries from 1 to ten million.",
            "It counts numbers in an array. It is not a time, and not a ratio.",
        )
    n = round(got)
    ratio = add_time(n) / add_time(1)
    if ratio < 1.3:
        raise Wrong(
            f"{n} entries take {ratio:.3g} times as long as one: the call is nearly all of it.",
            "Double the length until the time does more than double that of one entry.",
        )
    if ratio > 4:
        raise Wrong(
            f"{n} entries take {ratio:.3g} times as long as one: the work is nearly all of it.",
            "Halve the length until one call takes about twice as long as for one entry.",
        )


EXERCISES = (
    Exercise(
        id="4.1",
        kind="predict",
        title="which term binds?",
        task=f"""
            Four terms: arithmetic, memory, launches, columns. Which is the longest on an H200, with
            its measured ceilings, in FP32, in each of these situations?

                0  {SITUATIONS[0][0]}
                1  {SITUATIONS[1][0]}
                2  {SITUATIONS[2][0]}
                3  {SITUATIONS[3][0]}
                4  {SITUATIONS[4][0]}

            The floor is one launch that reads A once and writes H once, with a chain of n columns
            of 0.75 us each in it. Give five words in this order.
        """,
        solution=binding,
        steps=(("each situation, by the model", _bind),),
        hints=(
            "Stage 2 makes 37 launches a column. What do 512 columns cost at 10 us a launch?",
            "It passes the batch through memory about 260 times; the floor does so once.",
            "4/3 n^3 flops a matrix at 51 Tflop/s against 2 n^2 numbers at 4.28 TB/s: how large "
            "must n be for the first to be longer?",
        ),
    ),
    Exercise(
        id="4.2",
        kind="implement",
        title="the model in ten lines (predict)",
        task="""
            Write predict(flops, bytes, launches, columns, ceilings) -> (seconds, binds), where
            ceilings is a dict:

                peak        flops a second
                bandwidth   bytes a second
                launch      seconds that one launch takes
                column      seconds that one column takes

            seconds is the longer of arithmetic and memory, and the launches and columns on top.
            binds is the longest of the four terms: "arithmetic", "memory", "launches" or "columns".
        """,
        solution=predict,
        steps=(
            ("worked by hand: 3, 2, 1 and 5 seconds", _predict_by_hand),
            ("the stages, against qrlib.model", _predict_stages),
            ("awkward: nothing to compute, nothing to start", _predict_awkward),
        ),
        hints=(
            "Four terms: two quotients, two products.",
            "seconds = max(arithmetic, memory) + launches + columns.",
            "Put the four into a dict; max(terms, key=terms.get) is the name of the longest.",
        ),
    ),
    Exercise(
        id="4.3",
        kind="predict",
        title="how many mirrors a read?",
        task="""
            b mirrors are applied to C [m, n] in one go: V^T C, then C - V Z. C is read for the
            first and again for the second, and written once; V and T are small beside it. That is
            4 b flops for every entry of C, and three trips of 4 bytes. Write
            width(peak, bandwidth): the fewest b for which arithmetic, and not memory, is the limit.
        """,
        solution=width,
        steps=(
            ("worked by hand: a ridge of 7.1", _width_for(7.1e12, 1e12, "a ridge of 7.1")),
            *(
                (
                    f"{name}, {form}",
                    _width_for(DEVICES[name].peak[form], DEVICES[name].bandwidth, name),
                )
                for name, form in (("T4", "fp32"), (GPU, "fp32"), (GPU, "fp16"), ("B200", "fp32"))
            ),
        ),
        hints=(
            "The ridge is peak / bandwidth, in flops a byte. What has the update?",
            "4 b flops and 12 bytes for every entry: b / 3.",
            "The smallest whole b with b / 3 >= peak / bandwidth.",
        ),
    ),
    Exercise(
        id="4.4",
        kind="break it",
        title="break the roofline",
        task=f"""
            The roofline has two terms. Below is what it says of stage 2, and what comes out when
            the launches are added. Give two shapes (B, m, n), no side above {LARGEST}, A not larger
            than the memory of the GPU: one for which the roofline alone is wrong by a factor of a
            thousand, and one for which it is at least 90 % of the whole. The answer is the pair.
        """,
        solution=two_shapes,
        steps=(
            ("wrong by a thousand", _wrong_shape),
            ("right within a tenth", _right_shape),
        ),
        hints=(
            "A launch costs 10 us, however much or little it does.",
            "For the first: as little work as possible. For the second: much work in few launches. "
            "How many launches there are depends on n, not on B.",
            "One matrix 4 x 4; and twenty million matrices 16 x 16.",
        ),
        given=(roof_and_time,),
    ),
    Exercise(
        id="4.5",
        kind="measure",
        title="where the call ends and the work begins",
        task="""
            No GPU needed: a call of NumPy costs something too, before the first number is added.
            For how many float32 entries does np.add(x, x, out=y) take twice as long as for one?
            There the call and the work take equally long. Below that length a loop is all calls.

                from qrlib.teach.exercises.roofline import add_time

            Give the number, or a function half_length() that measures it. The check times your
            length, and takes anything from 1.3 to 4 times one entry.
        """,
        solution=half_length,
        steps=(("timed just now", _half),),
        hints=(
            "Print add_time(n) for n = 1, 10, 100, ...: first it stays, then it grows.",
            "Double n until add_time(n) is above 2 add_time(1).",
            "On most machines it is some thousand entries.",
        ),
        given=(add_time,),
    ),
)
