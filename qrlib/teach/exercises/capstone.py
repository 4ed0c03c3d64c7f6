"""Exercises of the last chapter, Your own rung. torch; no GPU and no Triton."""

from functools import cache

import torch

from qrlib.bench.results import Results
from qrlib.certificate import certify
from qrlib.compact import unpack_v
from qrlib.householder import geqr2, headroom, larfb, larft, unscale
from qrlib.stages import s02_unblocked, s03_blocked
from qrlib.teach.contract import CLAUSES, YOURS, climb, factored, through
from qrlib.teach.exercises.compare import kind, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong, guard
from qrlib.teach.exercises.s02_unblocked import Meter, normal, not_one_by_one
from qrlib.teach.faulty import (
    FAULTY,
    Buffers,
    Remembers,
    lower_precision,
    norms_only,
    one_scale,
    plain_squares,
    row_by_row,
    whole_panels,
)

# capstone.1

GUESSED = tuple(name for name in FAULTY if name != "in_place")


def found_out():
    """{program: the first clause that refuses it}, for every program of GUESSED."""
    return {
        "plain_squares": "scale",
        "whole_panels": "sizes",
        "norms_only": "lapack",
        "one_scale": "alone",
        "row_by_row": "views",
        "own_buffers": "fresh",
        "remembers": "fresh",
        "lower_precision": "manners",
    }


@cache
def report(name):
    """What the contract says of a faulty program."""
    return through(FAULTY[name]())


def _named(answer):
    if not isinstance(answer, dict):
        raise Wrong(f"It must be a dict, program: clause; got {kind(answer)}.")
    missing = [name for name in GUESSED if name not in answer]
    if missing:
        raise Wrong(f"It says nothing of {', '.join(missing)}.", "A clause for each of the eight.")
    for name in GUESSED:
        if not isinstance(answer[name], str) or answer[name] not in CLAUSES:
            raise Wrong(
                f"{name}: {kind(answer[name])} is no clause; the clauses are {', '.join(CLAUSES)}."
            )


def _caught(name):
    def step(answer):
        said, it = answer[name], report(name)
        if said == it.first:
            return
        order = list(CLAUSES)
        if not it.faults[said]:
            promise = CLAUSES[said].__doc__.split("\n")[0].rstrip(".")
            raise Wrong(
                f"{name} keeps the clause {said}: {promise}.",
                "What is the one thing that it does differently? Who would ever notice?",
            )
        earlier = order.index(said) - order.index(it.first)
        raise Wrong(
            f"The clause {said} refuses {name}, but it has been found out before, "
            f"{earlier} clause{'s' * (earlier > 1)} earlier.",
            "Go through the clauses from the first on, and stop at the first that it breaks.",
        )

    return step


# capstone.2


def geqrf(A):
    """(H, tau), compact, of a batch A [B, m, n] of float32 with any strides, which is only read."""
    # as large as it may get without a product leaving the range
    s = headroom(A)
    H = s * A.contiguous()
    k = min(A.shape[1:])
    tau = H.new_zeros(len(A), k)
    for j in range(0, k, 16):
        e = min(j + 16, k)
        geqr2(H[:, j:, j:e], tau[:, j:e])
        V = unpack_v(H[:, j:, j:e], e - j)
        H[:, j:, e:] = larfb(V, larft(V, tau[:, j:e]), H[:, j:, e:])
    return unscale(H, s), tau


def _clause(name):
    return CLAUSES[name].__doc__.split("\n")[0].rstrip("."), CLAUSES[name]


def _counted(answer, B):
    with Meter() as meter:
        factored(answer, normal(B, 96, 96), f"{B} matrices of 96, counted")
    return meter.wrote


def _cost(answer):
    two, six = _counted(answer, 2), _counted(answer, 6)
    hint = "Let every operation take the whole batch: H[:, j:, j] and not H[b, j:, j]."
    not_one_by_one(len(two), len(six), hint)
    with Meter() as meter:
        s02_unblocked.geqrf(normal(2, 96, 96))
    if sum(two) > 1.1 * sum(meter.wrote):
        times = sum(two) / sum(meter.wrote)
        raise Wrong(
            f"It writes {times:.2g} times as many entries as stage 2, which takes every column "
            "through every mirror.",
            "Is something as large as Q or H formed for each mirror? Panels write less, not more.",
        )


# capstone.3


def rung():
    """Results of a measurement with the reader's geqrf among the stages."""
    # small, for a checker waits ten seconds for an answer; a notebook has more time
    return climb(geqrf, (4, 64, 1, "dense"), runs=3)


def _results(answer):
    if not isinstance(answer, Results):
        raise Wrong(
            f"It must be what climb returns, Results of qrlib.bench; got {kind(answer)}.",
            "A time that is typed by hand has no certificate. Give climb(geqrf).",
        )
    if not answer.complete:
        raise Wrong("The measurement was stopped before its end.")


def _mine(answer):
    """Rows of each case with the reader's own in them."""
    found = answer.find(stage=YOURS)
    if not found:
        raise Wrong(
            f"No row of it is called {YOURS!r}: the stages are there, and you are not.",
            "climb(geqrf) calls your rung so.",
        )
    for row in found:
        same = {key: row[key] for key in ("batch", "n", "family", "cond")}
        others = {each["stage"] for each in answer.find(**same)} - {YOURS}
        if "torch" not in others or len(others) < 3:
            raise Wrong(
                "A rung has others above and below it: torch.geqrf and two stages at least must "
                f"be in the same run; got {', '.join(sorted(others)) or 'none'}.",
            )
    return found


def _without_fault(answer):
    for row in _mine(answer):
        if not row["ok"]:
            raise Wrong(
                f"It has no time, for it has a fault: {row['faults'][0]}.",
                "Put it through the contract first: print(through(geqrf)).",
            )
        if row["precision"] != "fp32":
            raise Wrong("It was held to the limits of precision fast; climb asks for fp32.")


def _as_measured(answer):
    for row in _mine(answer):
        times = row["times_us"]
        if len(times) < 3 or len(times) != row["runs"]:
            raise Wrong(
                f"{len(times)} times for {row['runs']} runs: three at least are wanted, each with "
                "its time.",
            )
        middle = sorted(times)[(len(times) - 1) // 2 : len(times) // 2 + 1]
        if not middle[0] - 0.01 <= row["median_us"] <= middle[-1] + 0.01:
            raise Wrong(
                f"The median of its times is {sum(middle) / len(middle):.6g} us, and the row says "
                f"{row['median_us']:.6g}.",
                "Not the best one, and none by hand: the row as it came.",
            )


# capstone.4


def sly():
    """(program, A): keeps all clauses, and fails on A [B, m, n], float32, finite."""

    def unless_57(A):
        H, tau = s03_blocked.geqrf(A)
        return H, 0 * tau if A.shape[2] == 57 else tau

    return unless_57, torch.randn(1, 57, 57, generator=torch.Generator().manual_seed(0))


# so many entries may be certified, and so long may a call take
ENTRIES, SECONDS = 1 << 20, 10.0


def _sly(answer):
    program, A = several(answer, ("program", "A"))
    if not callable(program):
        raise Wrong(f"program must be a function; got {kind(program)}.")
    if type(A) is not torch.Tensor or A.ndim != 3 or A.dtype != torch.float32:
        raise Wrong(f"A must be a float32 tensor [B, m, n]; got {kind(A)}.")
    if not 0 < A.numel() <= ENTRIES:
        raise Wrong(f"A must have 1 to {ENTRIES} entries; got {A.numel()}.")
    if not A.isfinite().all():
        raise Wrong("A must be finite: what NaN gives proves nothing.")
    return program, A


def _keeps_all(answer):
    program, _ = _sly(answer)
    found = through(program, limit=SECONDS)
    if not found.passed:
        raise Wrong(
            f"The clause {found.first} finds it out: {found.faults[found.first]}",
            "What do the clauses never ask? They are a list, and a list ends.",
        )


def _fails_there(answer):
    program, A = _sly(answer)
    call = guard(program, ("A",), writes=("A",), limit=SECONDS)
    try:
        found = certify(*factored(call, A, "your A"))
    except Wrong:
        return
    if found.passed:
        raise Wrong(
            "It keeps all clauses, and is right on your A as well.",
            "Where is it wrong? Give that A.",
        )


EXERCISES = (
    Exercise(
        id="capstone.1",
        kind="predict",
        title="who is found out by what?",
        task=f"""
            Eight programs factor most matrices well. Each breaks one promise. The contract has
            these clauses, in this order:

                {", ".join(list(CLAUSES)[:5])},
                {", ".join(list(CLAUSES)[5:])}

            print(CLAUSES[name].__doc__) says what each asks (from qrlib.teach.contract import
            CLAUSES). Which clause is the first to refuse each program? The answer is a dict,
            program: clause, with the keys {", ".join(GUESSED)}.
        """,
        solution=found_out,
        steps=(
            ("a clause for each program", _named),
            *((f"{name}: the clause that finds it out", _caught(name)) for name in GUESSED),
        ),
        hints=(
            "Read each program for the one line that is different, and ask which input makes a "
            "difference of it.",
            "Small columns pass a gate that measures by the norm of the matrix. Multiples of 16 "
            "are what the families come in.",
            "Two of them give the right numbers every time they are called first: the same clause "
            "finds out both.",
        ),
        given=(
            plain_squares,
            whole_panels,
            norms_only,
            one_scale,
            row_by_row,
            Buffers,
            Remembers,
            lower_precision,
        ),
    ),
    Exercise(
        id="capstone.2",
        kind="implement",
        title="your own geqrf",
        task="""
            Write geqrf(A) -> (H, tau) for a torch batch A [B, m, n] of float32, compact, as
            torch.geqrf: the whole contract. Take from the book what you like, or nothing:

                from qrlib.compact import unpack_v
                from qrlib.householder import geqr2, headroom, larfb, larft, unscale

            It is put through nine clauses: the example, the families of the task, any size,
            LAPACK's own test, any scale, no matrix sees another, any strides, every call anew, and
            manners. Then its operations are counted.
        """,
        solution=geqrf,
        steps=(
            *map(_clause, CLAUSES),
            ("cost: the whole batch at once, and no more entries written than stage 2", _cost),
        ),
        hints=(
            "Begin with the loop of exercise 2.2, or with that of 5.3, and let the contract tell "
            "you what is missing: print(through(geqrf)).",
            "For any scale: s = headroom(A), H = s * A, and at the end unscale(H, s). It is a "
            "power of two for each matrix, so nothing is rounded.",
            "Panels: geqr2 on H[:, j:, j:e], V from unpack_v, T from larft, and larfb on "
            "H[:, j:, e:]. All columns on the right, and rows from j.",
        ),
    ),
    Exercise(
        id="capstone.3",
        kind="measure",
        title="your rung",
        task="""
            Climb the ladder: measure your geqrf beside torch.geqrf and our stages, on this
            machine, by the protocol of the last chapters.

                from qrlib.teach.contract import climb

            climb(geqrf) returns the Results of qrlib.bench; print them. It takes another case, as
            climb(geqrf, (16, 64, 1, "dense")), and device="cuda" where there is one. Before you
            look: which rungs will be below yours? The answer is what climb returns.
        """,
        solution=rung,
        steps=(
            ("results of qrlib.bench", _results),
            ("you are among others", _mine),
            ("no fault: a time has a certificate", _without_fault),
            ("the median of its own runs", _as_measured),
        ),
        hints=(
            "results = climb(geqrf), with the geqrf that has gone through the contract.",
            "A row without a time has a sentence in row['faults'] that says why.",
            "rung = climb(geqrf, runs=5), and give rung as it is.",
        ),
    ),
    Exercise(
        id="capstone.4",
        kind="break it",
        title="a clause that is missing",
        task="""
            Nine clauses, and some hundred matrices. Write a program that keeps all of them and is
            no geqrf: give it together with a batch A [B, m, n], float32 and finite, of at most a
            million entries, on which it fails the certificate. The answer is the pair
            (program, A). Then ask yourself which tenth clause would find it out, and what would
            get past that one.
        """,
        solution=sly,
        steps=(
            ("a program and a batch", _sly),
            ("it keeps all clauses", _keeps_all),
            ("it fails on A", _fails_there),
        ),
        hints=(
            "A test sees the inputs that it tries. Which shapes do the clauses try?",
            "Be right for every shape but one. The sources of qrlib.teach.contract are open.",
            "H, tau = right(A); return H, 0 * tau if A.shape[2] == 57 else tau.",
        ),
    ),
)
