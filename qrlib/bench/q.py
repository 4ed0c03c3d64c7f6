"""Q formed: `qr` and `orthogonalize` beside torch.linalg.qr, and what must hold of their times.

Needs no torch. Shapes are those of optimizers, least squares and many tiny matrices; entries are
normal. Every call is from Python, as an optimizer makes it.
"""

from math import ceil
from typing import NamedTuple

from qrlib.bench.results import short, words


class Shape(NamedTuple):
    """A batch of matrices [m, n], m >= n; as a Case, which is square."""

    batch: int
    m: int
    n: int
    family: str = "dense"
    cond: float = 0


BASELINE = "torch.linalg.qr"
SHAPES = (
    Shape(24, 1024, 1024),
    Shape(96, 1024, 1024),
    Shape(64, 512, 512),
    Shape(8, 4096, 4096),
    Shape(10000, 256, 32),
    Shape(270000, 3, 3),
    Shape(65536, 16, 16),
)
# what SOAP needs a step, of 24 layers with two eigenbases each
STEP = "SOAP step"
STEPS = tuple(Shape(48, hidden, hidden, STEP) for hidden in (1024, 2048, 4096))
CASES = SHAPES + STEPS
# torch takes seconds for a call where matrices are many. The shapes beside these are not tried, for
# their kernels would take minutes to compile: a sweep of geqrf has them
PROTOCOL = {"least": 2, "seconds": 1.0, "probes": False}

# so many times as fast as the baseline on average, and at the step with this hidden size
OVER, STEP_OVER, HIDDEN = 20.0, 10.0, 1024
# Q from its mirrors may take so many times what they took
FORMING = 1.6
RULES = (
    f"qr and orthogonalize are {OVER:g} times as fast as {BASELINE} in geometric mean",
    f"none is slower than {BASELINE}",
    f"forming Q takes at most {FORMING:g} times the factorization",
    f"the step with {HIDDEN} hidden takes less than {1 / STEP_OVER:g} of {BASELINE}",
)


WITH_Q = ("qr", "orthogonalize")


def stages(case):
    """What is timed on a case, beside the baseline."""
    if case.family == STEP:
        return ("foreach.orthogonalize",)
    return (*WITH_Q, "geqrf", "householder_product")


def small(case):
    """A shape for a CPU and a few seconds; no two alike that were not."""
    return case._replace(batch=ceil(case.batch**0.25), m=case.m // 32 + 6, n=case.n // 32 + 6)


def broken(results):
    """{rule: [a sentence for each case that breaks it]} for all RULES; None where none was timed.

    A case that did not pass its gate, or whose baseline did not, breaks those it has to keep.
    """
    formed = [(row, against(row, results)) for row in results.find(stage="householder_product")]
    beside = [row for row in results.rows if row["stage"] in (*WITH_Q, *stages(STEPS[0]))]
    averages = [each for each in results.averages() if each["stage"] in WITH_Q]
    if results.protocol["baseline"] is None:
        beside = averages = []
    step = [row for row in beside if (row["family"], row["n"]) == (STEP, HIDDEN)]
    kept = (
        [(f"{each['stage']}, {_times(each)}", (each["speedup"] or 0) >= OVER) for each in averages],
        [(f"{_said(row)}, {_times(row)}", (row["speedup"] or 0) >= 1) for row in beside],
        [
            (f"{_said(row)}, {short(x, 3, 'x')}", x is not None and x <= FORMING)
            for row, x in formed
        ],
        [(f"{_said(row)}, {_times(row)}", (row["speedup"] or 0) > STEP_OVER) for row in step],
    )
    return {
        rule: [said for said, holds in each if not holds] if each else None
        for rule, each in zip(RULES, kept)
    }


def against(row, results):
    """The time of a row over that of geqrf on the same case; None if one of them has none."""
    case = {key: row[key] for key in Shape._fields}
    times = [row["median_us"], *(each["median_us"] for each in results.find(stage="geqrf", **case))]
    return times[0] / times[1] if len(times) == 2 and None not in times else None


def _said(row):
    return f"{words(row)}, {row['stage']}"


def _times(row):
    return short(row["speedup"], 3, "x")


def report(results):
    """Lines: what each takes beside geqrf, which rules hold, and which cases break the rest."""
    yield "time over that of geqrf"
    for row in results.rows:
        if row["stage"] not in ("geqrf", BASELINE) and (ratio := against(row, results)):
            yield f"  {_said(row)}: {short(ratio, 3, 'x')}"
    for rule, cases in broken(results).items():
        yield f"{'not timed' if cases is None else 'BROKEN' if cases else 'holds'}: {rule}"
        yield from (f"    {case}" for case in cases or ())
