"""The protocol: each stage in turn on fresh data, outputs held, judged when the clocks are off."""

import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from math import isfinite, prod
from statistics import median, quantiles
from time import perf_counter

import torch

import qrlib
from qrlib.bench.cases import Inputs, beside
from qrlib.bench.clock import Clock, Replay
from qrlib.bench.judge import (
    COMPACT,
    Task,
    certificate,
    exceeded,
    held,
    judge,
    out_of_line,
    pair,
    prints,
    spots,
    tensors,
)
from qrlib.bench.results import Results, provenance, words
from qrlib.bench.verbs import VERBS
from qrlib.matrices import Case
from qrlib.stages import STAGES, TRITON


@dataclass(frozen=True)
class Protocol:
    """How it is measured; it goes into the JSON as it is.

    runs: of each stage on each case; fewer, but at least `least`, where they take more than
        `seconds` together, or where their outputs do not fit into the memory of the GPU.
    sweep: bytes written before each run to empty the cache; see clock.Clock.
    probes: whether the neighbouring shapes are tried.
    """

    runs: int = 10
    least: int = 3
    seconds: float = 5.0
    sweep: int | None = None
    probes: bool = True


@dataclass
class Contestant:
    """A stage in one precision and mode on one case, and what is known of it so far.

    geqrf: the stage, or what else does the task.
    """

    name: str
    precision: str
    mode: str
    geqrf: Callable
    is_baseline: bool
    task: Task = COMPACT
    call: Callable | None = None
    runs: list = field(default_factory=list)
    times: list = field(default_factory=list)
    worst: dict | None = None
    faults: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)

    @contextmanager
    def guarded(self):
        """What is raised in here is this contestant's fault, and not the end of the others."""
        try:
            yield
        # one that ends the process ends nobody else's measurement
        except (Exception, SystemExit) as error:
            self.faults.append(_say(error))

    def certificate(self, A, returned):
        """Of what came back for A, which must be what is asked for."""
        return certificate(A, *pair(returned, A, self.task), task=self.task)


def resolve(stage, precision="fp32"):
    """(name, A -> (H, tau)) of a stage: what is measured, and what it is called.

    Args:
        stage: "torch", "auto" or one of STAGES, through the door of the package; one of VERBS,
            with a task of its own; a module with `geqrf`, or its path, which may give arguments,
            "qrlib.stages.s03_blocked:nb=16,..."; or a function.
        precision: for the door.
    """
    if stage == "torch":
        return "torch", torch.geqrf
    if stage in ("auto", *STAGES):
        return stage, partial(qrlib.geqrf, stage=stage, precision=precision)
    if isinstance(stage, str) and stage in VERBS:
        return stage, VERBS[stage].call
    if isinstance(stage, str):
        path, _, arguments = stage.partition(":")
        name = stage.removeprefix(path.rpartition(".")[0] + ".")
        try:
            given = dict(pair.split("=", 1) for pair in arguments.split(",") if pair)
            given = {key: int(value) if value.isdigit() else value for key, value in given.items()}
            return name, partial(import_module(path).geqrf, **given)
        except (ImportError, ValueError, AttributeError) as error:
            raise ValueError(
                f"stage must be torch, auto, one of {', '.join(STAGES)}, or the path of a module "
                f"with geqrf, as in qrlib.stages.s03_blocked:nb=16; got {stage!r}: {_say(error)}"
            ) from error
    name = getattr(stage, "__name__", type(stage).__name__).rpartition(".")[2]
    return name, getattr(stage, "geqrf", stage)


def task_of(stage):
    """What is asked of what `resolve` takes."""
    return VERBS[stage].task if isinstance(stage, str) and stage in VERBS else COMPACT


def chosen(stages, case):
    """The stages for a case: all, or those that a function of it gives."""
    return stages(case) if callable(stages) else stages


def runnable(device):
    """{stage: None, or why it cannot run on this device}, tried on a 3 x 3 matrix."""
    A = torch.eye(3, device=device)[None]
    found = {}
    for name in STAGES:
        try:
            qrlib.geqrf(A, stage=name)
            found[name] = None
        except Exception as error:
            found[name] = _say(error)
    return found


def measure(
    stages,
    cases,
    *,
    precisions=("fp32",),
    replay=False,
    baseline="torch",
    seed=0,
    device="cpu",
    protocol=Protocol(),
    command="",
    commit=None,
    told=lambda results: None,
    progress=lambda share, now: None,
):
    """Time stages on cases, and only what passed.

    Args:
        stages: names, modules or functions, as `resolve` takes them; or case -> those.
        cases: qrlib.matrices.Case, or (batch, n, cond, family); or q.Shape.
        precisions: of "fp32" and "fast", which are held to different limits (judge.LIMITS).
        replay: also as a CUDA graph, in rows of its own.
        baseline: a stage that runs too, and that speedups are over; None for none.
        command, commit: for the provenance; the commit is looked up when None.
        told: called with the Results so far, after each case.
        progress: called with the share that is done, and what is being done.

    Returns:
        Results.
    """
    device = torch.device(device)
    cases = [case if hasattr(case, "_fields") else Case(*case) for case in cases]
    clock = Clock(device, protocol.sweep)
    modes = ("eager", "replay") if replay else ("eager",)
    settings = asdict(protocol) | _of_clock(clock)
    settings |= {
        "cases": [tuple(case) for case in cases],
        "baseline": baseline and resolve(baseline)[0],
        "replay": "stages through qrlib.plan, others captured whole; the time of the GPU, with the "
        "way of the input into the graph, without its launch and a copy of what leaves it",
    }
    origin = provenance(device, command, commit)
    rows = []
    for at, case in enumerate(cases):

        def say(now, share=1.0, at=at, case=case):
            progress((at + share) / len(cases), f"{words(case)}: {now}")

        entries = [(baseline, "fp32", "eager")] if baseline else []
        own = product(chosen(stages, case), precisions, modes)
        entries += [each for each in own if each not in entries]
        contestants = []
        for entry in entries:
            name, geqrf = resolve(*entry[:2])
            is_baseline = bool(baseline) and entry == entries[0]
            contestants.append(Contestant(name, *entry[1:], geqrf, is_baseline, task_of(entry[0])))
        inputs = Inputs(case, seed, device)
        _compete(contestants, inputs, clock, protocol, say)
        say("judging")
        _judge(contestants, inputs, clock, protocol)
        base = next((c for c in contestants if c.is_baseline), None)
        rows += [_row(each, base, inputs) for each in contestants]
        told(Results(origin, settings, rows, complete=at + 1 == len(cases)))
    return Results(origin, settings, rows)


def _say(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _compete(contestants, inputs, clock, protocol, say):
    """Fill each contestant's runs: warm up, then in turn, every call on a variant of its own."""
    for each in contestants:
        say(f"{each.name} warms up", 0.0)
        with each.guarded():
            _warm_up(each, inputs, clock, protocol)
    runs = _fitting(protocol, inputs, contestants, clock)
    for k in range(runs):
        # another one begins each round, so that none always follows the same
        turn = k % len(contestants)
        for each in contestants[turn:] + contestants[:turn]:
            spent = sum(time.host_us for time in each.times) / 1e6
            if each.faults or (k >= protocol.least and spent > protocol.seconds):
                continue
            say(f"{each.name}, run {k + 1} of {runs}", k / runs)
            with each.guarded():
                number, A = inputs.fresh()
                task, given = each.task, each.task.given(A)
                before, where = prints(given), spots(A)
                replay = each.mode == "replay"
                look = partial(_glance, A=A, where=where, task=task)
                returned, glance, taken = clock(each.call, given, look, queued=replay)
                options = {"given": given, "task": task, "own": replay}
                run = held(number, A, returned, before, where, glance, **options)
                each.times.append(taken)
                each.runs.append(run)


def _glance(returned, A, where, task):
    return pair(returned, A, task)[0][where]


def _warm_up(contestant, inputs, clock, protocol):
    """Two calls that are not timed, on one tensor: the second time it holds other numbers.

    Whoever remembers a result by the tensor it came from answers the second with the first. A
    baseline that takes long is called once.
    """
    task = contestant.task
    _, A = inputs.fresh()
    X = task.given(A)
    used = torch.cuda.memory_allocated() if clock.cuda else 0
    replay = contestant.mode == "replay"
    begin = perf_counter()
    if clock.cuda:
        torch.cuda.reset_peak_memory_stats()
    contestant.call = replayed(contestant.geqrf, X) if replay else contestant.geqrf
    pair(contestant.call(X), A, task)
    if clock.cuda:
        torch.cuda.synchronize()
    seconds = perf_counter() - begin
    contestant.facts["first_call_ms"] = 1e3 * seconds
    if contestant.is_baseline and seconds > protocol.seconds:
        return

    number, A = inputs.fresh()
    for old, new in zip(tensors(X), tensors(task.given(A))):
        # .data, so that its version counter does not tell either
        old.data.copy_(new)
    del A, new
    if clock.cuda and not replay:
        used = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    returned, contestant.facts["host_sync"] = _watched(contestant.call, X, clock)
    if clock.cuda:
        contestant.facts["extra_bytes"] = torch.cuda.max_memory_allocated() - used
    found = contestant.certificate(inputs.variant(number), returned)
    contestant.faults += [
        f"a tensor filled anew: {sentence}"
        for sentence in exceeded(found, contestant.precision).values()
    ]


def replayed(geqrf, X):
    """A stage behind the door is replayed as its users do it; anything else is captured whole."""
    if isinstance(geqrf, partial) and geqrf.func is qrlib.geqrf:
        return partial(qrlib.plan(X.shape, device=X.device, **geqrf.keywords), copy=False)
    return Replay(geqrf, X)


def _watched(call, X, clock):
    """(what call(X) returned, whether it made the host wait for the GPU; None on a CPU)."""
    if not clock.cuda:
        return call(X), None
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        # it warns of itself, too
        said.clear()
        try:
            returned = call(X)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        return returned, any("called a synchronizing" in str(each.message) for each in said)


def _fitting(protocol, inputs, contestants, clock):
    """How many runs of all the contestants can be held, with room left for certifying them."""
    if not clock.cuda:
        return protocol.runs
    A = inputs.base
    shapes = [shape(*A.shape) for each in contestants for shape in each.task.outputs.values()]
    bytes_a_run = A.element_size() * sum(map(prod, shapes))
    room = 0.6 * torch.cuda.mem_get_info()[0]
    return min(protocol.runs, max(protocol.least, int(room // bytes_a_run)))


def _judge(contestants, inputs, clock, protocol):
    """Find the faults of all of them, first in what they returned, then beside the case's shape."""
    for each in contestants:
        if each.faults:
            continue
        with each.guarded():
            found = judge(inputs, each.runs, each.precision, each.task)
            each.worst, each.faults, each.notes = found
        if said := clock.disagree(each.times):
            each.faults.append(said)
        if not clock.cuda and each.name in TRITON:
            each.notes.append("through Triton's interpreter: not the time of any GPU")
        if each.facts.get("host_sync"):
            each.notes.append("the host waits for the GPU inside the call")
    for each in contestants:
        each.runs.clear()
    if not protocol.probes:
        return
    around = beside(inputs)
    for each in contestants:
        # the baseline is not on trial, and a replay does what its eager row does
        if not each.faults and not each.is_baseline and each.mode == "eager":
            each.faults += _probe(each, around)


def _probe(contestant, around):
    """Faults that show beside the shape of the case: it fails there, or is far better there."""
    faults, levels = [], {}
    for axis, batches in around.items():
        levels[axis] = []
        for A in batches:
            there = f"beside it, at {A.shape[0]} x {A.shape[1]}"
            try:
                found = contestant.certificate(
                    A, contestant.geqrf(contestant.task.given(A.clone()))
                )
            except (Exception, SystemExit) as error:
                faults.append(f"{there}: {_say(error)}")
                continue
            levels[axis].append(found)
            failed = exceeded(found, contestant.precision).values()
            faults += [f"{there}: {sentence}" for sentence in failed]
    return faults or out_of_line(contestant.worst, levels)


def _of_clock(clock):
    """What a file says of the clock, and of what it depends on."""
    return {
        "sweep": clock.buffer.numel(),
        "clock": "CUDA events, and the host's until the GPU is idle"
        if clock.cuda
        else "the host's",
        "overhead_us": round(clock.overhead_us, 2),
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def _quartiles(us):
    """The lower one, the median and the upper one; of one run they are that run."""
    return quantiles(us if len(us) > 1 else 2 * us, n=4, method="inclusive")


def _finite(worst):
    # JSON has no infinity; the fault says it
    return {name: x if isfinite(x) else None for name, x in worst.items()}


def _row(each, base, inputs):
    """The row of a contestant, with times only if nothing is wrong with it."""
    case, ok = inputs.case, not each.faults
    us = [time.us for time in each.times]
    spread = _quartiles(us) if ok else 3 * [None]
    fair = ok and base and not base.faults and base.task.purpose == each.task.purpose
    against = median(time.us for time in base.times) if fair else None
    return {
        **case._asdict(),
        "seed": inputs.seed,
        "stage": each.name,
        "precision": each.precision,
        "mode": each.mode,
        "ok": ok,
        "faults": each.faults,
        "notes": each.notes,
        "runs": len(us),
        "median_us": spread[1],
        "q25_us": spread[0],
        "q75_us": spread[2],
        "times_us": [round(x, 3) for x in us] if ok else [],
        "host_us": median(time.host_us for time in each.times) if ok else None,
        "speedup": against and against / spread[1],
        "certificate": each.worst and _finite(each.worst),
        "first_call_ms": each.facts.get("first_call_ms"),
        "extra_bytes": each.facts.get("extra_bytes"),
        "host_sync": each.facts.get("host_sync"),
    }
