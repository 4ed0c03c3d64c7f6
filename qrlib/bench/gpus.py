"""A batch sharded over several GPUs, beside one GPU with all of it and one with a share.

The launcher of torchrun starts a process for each GPU, a rank. What is timed is the call as it is
made in a program, of a DTensor, and a run takes as long as its slowest rank. Ranks meet before and
after each call. What is raised on one rank is told on all of them, and nothing is measured then.

Where Python takes longer to start kernels than they run, a second GPU has nothing to shorten. So a
call can also be a replay: each rank makes a plan of its share, once, and calls that with a DTensor.
"""

import logging
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import torch.distributed as dist

from qrlib.bench import cases
from qrlib.bench.clock import Clock
from qrlib.bench.judge import COMPACT, RESIDUALS, held, pair, prints, spots
from qrlib.bench.measure import (
    Contestant,
    Protocol,
    _finite,
    _fitting,
    _glance,
    _judge,
    _of_clock,
    _quartiles,
    _say,
    replayed,
    resolve,
)
from qrlib.bench.results import Results, provenance, short, words
from qrlib.matrices import BENCHMARK_CASES
from qrlib.sharding import on_shards
from qrlib.stages import STAGES

# twice the batches of the task, so that a half is what the task times
CASES = tuple(case._replace(batch=2 * case.batch) for case in BENCHMARK_CASES[3:6])
WAYS = ALL, SHARE, SHARDED = "all_on_one", "share_on_one", "sharded"
# so much of what as many GPUs could be is reached: 1.9 of 2
EFFICIENCY = 0.95
RULES = (
    f"N GPUs are at least {EFFICIENCY:g} N times as fast as one with the same matrices",
    "every matrix has the bits that one GPU with the same share gives it",
    "every matrix has the bits that one GPU with all of them gives it",
)

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
# multicast on NVLink is for sums over GPUs, and there are none. A program that uses it and ends
# badly can leave the GPUs of a host unusable for others
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
# seconds that a rank waits for the others: to compile all kernels of a case takes less
PATIENCE = 300.0
# seconds for the launcher to find a process that has ended, before those that miss it end too
GRACE = 3.0
# calls that are not timed: they compile, and their bits are compared
WARM = 2


class Failed(Exception):
    """What went wrong on some of the ranks, and on which; nothing was measured."""


class Lost(Exception):
    """Another rank has ended, or takes too long."""


class Request(NamedTuple):
    """What every rank is told to do."""

    cases: tuple
    stages: tuple
    modes: tuple
    seed: int
    device: str
    protocol: Protocol
    patience: float


def small(case, count):
    """A case for so many processes on a CPU, and a few seconds."""
    # of no processes `check` tells
    return cases.small(case)._replace(batch=4 * max(count, 1))


def batches(count, listed):
    """All that is factored for these cases: on one GPU all and a share, and a share on each."""
    return [case._replace(batch=case.batch // by) for case in listed for by in (1, count)]


def check(count, listed, device):
    """Raises ValueError where so many ranks cannot share these cases on what is here."""
    if count < 1:
        raise ValueError(f"--gpus must be 1 or more; got {count}")
    if sys.platform != "linux":
        raise ValueError(
            f"--gpus needs Linux, where NCCL and torch's launcher run; got {sys.platform}"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError(
            "--gpus starts a process for each GPU by itself, and this is one that torchrun has "
            f"started; call python -m qrlib.bench --gpus {count} without torchrun"
        )
    if device.type == "cuda" and count > (found := torch.cuda.device_count()):
        names = "".join(f", {torch.cuda.get_device_name(k)}" for k in range(found))
        hint = f"give --gpus {found} or fewer" if found else "python -m qrlib.doctor says why"
        raise ValueError(
            f"--gpus {count} needs {count} NVIDIA GPU{'s' * (count > 1)}; found {found}{names}; "
            f"{hint}, or --device cpu for small cases in as many processes"
        )
    backend = BACKENDS[device.type]
    if not (dist.is_available() and getattr(dist, f"is_{backend}_available")()):
        raise ValueError(
            f"--gpus needs a torch with {backend} for {device.type}; {torch.__version__} has none; "
            "install the one that python -m qrlib.doctor names"
        )
    for case in listed:
        if case.batch % count:
            raise ValueError(
                f"--gpus {count} needs batches that {count} divides; that of {words(case)} leaves "
                f"{case.batch % count}; choose others with --case, or give --batch a multiple of "
                f"{count}, such as {case.batch + -case.batch % count}"
            )


def measure(
    count,
    listed,
    *,
    stages=("auto",),
    replay=False,
    seed=0,
    device="cuda",
    protocol=None,
    command="",
    commit=None,
    patience=PATIENCE,
):
    """Time stages on so many GPUs and on one of them, and only what passed.

    Args:
        count: of ranks, a process each. listed: qrlib.matrices.Case, whose batches it divides.
        stages: as measure.resolve takes them, but names and paths only.
        replay: also as CUDA graphs, in rows of their own; not on a CPU.
        device: "cuda", or "cpu" for processes that meet by gloo.
        protocol: a measure.Protocol; shapes beside a case are not tried.
        command, commit: for the provenance; the commit is looked up when None.
        patience: seconds that a rank waits for the others.

    Returns:
        Results, whose rows are those of measure.measure, of the sharded call, and more; see `_row`.

    Raises:
        ValueError: what `check` refuses. Failed: something was raised on a rank, or one has ended.
    """
    device = torch.device(device)
    check(count, listed, device)
    gpus = [torch.cuda.get_device_name(k) for k in range(count)] if device.type == "cuda" else []
    origin = provenance(device, command, commit) | {
        "gpus": gpus,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
    }
    protocol = replace(protocol or Protocol(), probes=False)
    modes = ("eager", "replay") if replay else ("eager",)
    request = Request(tuple(listed), tuple(stages), modes, seed, device.type, protocol, patience)
    rows, clock = _launched(count, request)
    settings = asdict(protocol) | clock
    settings |= {
        "cases": [tuple(case) for case in listed],
        "baseline": "the same on one GPU with all matrices",
        "ranks": count,
        "backend": BACKENDS[device.type],
        "environment": NO_MULTICAST,
        "times": "whole calls from Python, of the slowest rank; host_us: from the first rank's "
        "begin to the last one's end",
        "replay": "stages through qrlib.plan, others captured whole, once for each shape on each "
        "rank; a whole call, too, with its launch, without a copy of what leaves the graph",
    }
    return Results(origin, settings, rows)


@contextmanager
def _quiet():
    """In here torch's launcher says nothing; ranks say themselves what happened."""
    loggers = [
        logging.getLogger(f"torch.{name}") for name in ("distributed.elastic", "multiprocessing")
    ]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _launched(count, request):
    """What rank 0 returns of `work` on so many ranks; Failed with a line for each of them."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    try:
        # without one it would leave a folder of its own
        with TemporaryDirectory() as folder, _quiet():
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=count,
                logs_specs=DefaultLogsSpecs(log_dir=folder),
                run_id="qrlib",
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="localhost",
                max_restarts=0,
                # a process that is forked could not use the GPU
                start_method="spawn",
            )
            returned = elastic_launch(config, work)(request)
    except ChildFailedError as error:
        raise Failed("\n".join(_ends(count, error.failures))) from None
    except SignalException as ended:
        # it has ended all ranks, and is to be seen as what it is
        sys.exit(128 + ended.sigval)
    if isinstance(returned[0], Failed):
        raise returned[0]
    return returned[0]


def _ends(count, failures):
    """A line for each rank: what the launcher knows of its end."""
    first = ", ".join(f"rank {rank}" for rank in sorted(failures))
    for rank in range(count):
        if rank not in failures:
            yield f"rank {rank} of {count}: stopped, for {first} ended"
            continue
        failure = failures[rank]
        said = failure.message.get("message") if isinstance(failure.message, dict) else None
        how = f"killed by {failure.signal_name()}" if failure.exitcode < 0 else said
        yield f"rank {rank} of {count}: {how or f'ended with {failure.exitcode}'}"


def work(request):
    """What a rank does: (rows, what is known of the clock) on rank 0; a Failed that all know of.

    What only this rank knows of is raised: then the launcher ends the others.
    """
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.update(NO_MULTICAST)
    # ranks of one host meet here
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        found = _measured(Ranks(request), request)
        dist.destroy_process_group()
        return found
    except Failed as failed:
        _tell(f"rank {rank} of {count}: stopped; {failed}")
        # all know, so nobody waits for anything
        dist.destroy_process_group()
        return failed
    except Exception as error:
        _tell(f"rank {rank} of {count}: {_say(error)}")
        # if another rank has ended, then that is what the launcher should name
        time.sleep(GRACE)
        raise


def _tell(line):
    print(line, file=sys.stderr, flush=True)


class Ranks:
    """All ranks, as one of them sees them: what it is, and how it meets the others.

    Numbers of the host are exchanged by gloo, so that no GPU waits in a kernel while another is
    timed; tensors go by the backend of the device.
    """

    def __init__(self, request):
        from torch.distributed.device_mesh import init_device_mesh

        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device, own = torch.device(request.device), {}
        if request.device == "cuda":
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
            own["device_id"] = self.device
        else:
            torch.set_num_threads(1)
        self.patience = request.patience
        # processes start one later than another
        longer = timedelta(seconds=max(PATIENCE, self.patience))
        dist.init_process_group(BACKENDS[request.device], timeout=longer, **own)
        patience = timedelta(seconds=self.patience)
        self.hosts = dist.new_group(backend="gloo", timeout=patience)
        self.mesh = init_device_mesh(request.device, (self.count,))

    def meet(self, said):
        """[what every rank said], once all have; Lost if one does not come."""
        heard = [None] * self.count
        try:
            dist.all_gather_object(heard, said, group=self.hosts)
        except RuntimeError as error:
            raise Lost(
                f"other ranks did not come, and one waits {self.patience:g} s at most; one has "
                f"ended, or hangs, or compiles, which --ahead does before: {error}"
            ) from error
        return heard

    def together(self, call):
        """What call() returns here, once it has returned everywhere; no rank may wait in it.

        Raises:
            Failed: on all ranks, if anything was raised on one.
        """
        found = error = None
        try:
            found = call()
        # a stage that ends its process would leave the others waiting
        except (Exception, SystemExit) as raised:
            error = _say(raised)
        said = self.meet(error)
        if any(said):
            raise Failed(
                "; ".join(f"rank {k} failed: {each}" for k, each in enumerate(said) if each)
            )
        return found

    def sharded(self, whole):
        """A batch that rank 0 has, as a DTensor."""
        from torch.distributed.tensor import Shard, distribute_tensor

        return distribute_tensor(whole, self.mesh, [Shard(0)])


class Part:
    """Some matrices of Inputs, as Inputs; start, stop: which."""

    def __init__(self, inputs, start, stop):
        self.inputs, self.at = inputs, slice(start, stop)
        self.base = inputs.base[self.at]

    def variant(self, k):
        return self.inputs.variant(k)[self.at]


class Took(NamedTuple):
    """Microseconds of a run: of its slowest rank, and until the last has ended by the host."""

    us: float
    host_us: float


def _measured(ranks, request):
    clock = ranks.together(lambda: Clock(ranks.device, request.protocol.sweep))
    rows = []
    for case in request.cases:
        inputs = ranks.together(lambda case=case: cases.Inputs(case, request.seed, ranks.device))
        for stage in request.stages:
            for mode in request.modes:
                if ranks.rank == 0 and sys.stderr.isatty():
                    _tell(f"{words(case)}, {stage}, {mode}")
                rows.append(_timed(ranks, inputs, stage, mode, clock, request.protocol))
    return rows, _of_clock(clock)


def _timed(ranks, inputs, stage, mode, clock, protocol):
    """The row of a stage on a case, in a mode."""
    size = inputs.case.batch // ranks.count
    first = ranks.rank * size
    parts = dict(zip(WAYS, ((0, None), (0, size), (first, first + size))))
    parts = {way: Part(inputs, *at) for way, at in parts.items()}
    name, calls = ranks.together(lambda: _calls(ranks, inputs, stage, mode, size))
    ways = {
        way: Contestant(name, "fp32", mode, call, False, call=call) for way, call in calls.items()
    }
    differ = _compared(ranks, inputs, calls, size)
    runs = min(ranks.meet(_fitting(protocol, inputs, list(ways.values()), clock)))
    took = {way: [] for way in WAYS}
    for k in range(runs):
        # another one begins each round, so that none always follows the same
        turn = k % len(WAYS)
        for way in WAYS[turn:] + WAYS[:turn]:
            spent = sum(each.host_us for each in took[way]) / 1e6
            if k < protocol.least or spent <= protocol.seconds:
                took[way].append(_run(ranks, ways[way], way, parts[way], inputs, clock))
    # rank 0 alone has runs of all
    mine = {way: each for way, each in ways.items() if each.runs}
    ranks.together(
        lambda: [_judge([each], parts[way], clock, protocol) for way, each in mine.items()]
    )
    judged = ranks.meet({way: (each.worst, each.faults, each.notes) for way, each in mine.items()})
    return _row(inputs, name, mode, ranks.count, took, judged, differ)


def _calls(ranks, inputs, stage, mode, size):
    """(name of a stage, {way: what this rank calls}); what is replayed has been captured then."""
    name, geqrf = resolve(stage)
    # it has no door that takes a DTensor apart
    apart = (lambda call: call) if stage in ("auto", *STAGES) else on_shards
    if mode == "eager":
        return name, dict.fromkeys(WAYS, apart(geqrf))
    share = apart(replayed(geqrf, inputs.base[:size]))
    # the others never have all
    whole = share if ranks.rank else replayed(geqrf, inputs.base)
    return name, {ALL: whole, SHARE: share, SHARDED: share}


def _run(ranks, contestant, way, part, inputs, clock):
    """Took of one call on fresh data, of all ranks or of rank 0; its Run is the contestant's."""
    taking = way == SHARDED or ranks.rank == 0
    number, A = ranks.together(inputs.fresh)
    A = ranks.sharded(A) if way == SHARDED else A[part.at].clone()

    def prepare():
        return _plain(A), prints(_plain(A)), spots(_plain(A))

    def timed():
        def look(returned):
            return _glance(_plain(returned), local, where, COMPACT)

        returned, glance, taken = clock(contestant.call, A, look)
        over = time.perf_counter()
        contestant.times.append(taken)
        own = contestant.mode == "replay"
        run = held(number, local, _plain(returned), before, where, glance, own=own)
        contestant.runs.append(run)
        # the clock of a host is the same for all its processes
        return taken.us, over - taken.host_us / 1e6, over

    # they meet before the call, and after it
    local, before, where = ranks.together(prepare)
    found = ranks.together(timed if taking else lambda: None)
    us, begun, over = zip(*(each for each in ranks.meet(found) if each))
    return Took(max(us), 1e6 * (max(over) - min(begun)))


def _compared(ranks, inputs, calls, size):
    """{ALL, SHARE: matrices whose bits are others than on one GPU}, on rank 0; of WARM batches."""
    differ = {ALL: 0, SHARE: 0}

    def alone():
        for way, batches in ((ALL, (whole,)), (SHARE, whole.split(size))):
            start = 0
            for A in batches:
                one = pair(calls[way](A.clone()), A)
                there = [X[start : start + len(A)] for X in found]
                differ[way] += differing(one, there)
                start += len(A)

    for _ in range(WARM):
        _, whole = ranks.together(inputs.fresh)
        A = ranks.sharded(whole)
        found = ranks.together(lambda A=A: _checked(calls[SHARDED](A), A))
        # of one rank they are still what it has, which the next replay writes over
        found = [X.full_tensor().clone() for X in found]
        ranks.together(alone if ranks.rank == 0 else lambda: None)
    return differ


def _checked(returned, A):
    """What a call returned for a DTensor, which must be what is asked for."""
    pair(_plain(returned), _plain(A))
    return returned


def _plain(X):
    """What a rank has of a DTensor, or of several; of a tensor, all."""
    if isinstance(X, tuple):
        return tuple(map(_plain, X))
    return X.to_local() if hasattr(X, "to_local") else X


def differing(one, other):
    """In how many matrices of a batch (H, tau) of float32 is not the same to the bit."""
    bits = [[X.contiguous().view(torch.int32).flatten(1) for X in found] for found in (one, other)]
    return int(sum((X != Y).any(1) for X, Y in zip(*bits)).count_nonzero())


def _row(inputs, stage, mode, count, took, judged, differ):
    """The row of a case, times of the sharded call, and of the two on one GPU in dicts of theirs.

    scaling: the time of all matrices on one GPU over that of the sharded call; efficiency: of each
    GPU. certificates: the worst of each way, of SHARDED one a rank. differ: how many matrices of
    `compared` have other bits than on one GPU.
    """
    found = [
        (f"rank {k}, {way}: ", way, *each)
        for k, rank in enumerate(judged)
        for way, each in rank.items()
    ]
    faults = [where + said for where, _, _, faults, _ in found for said in faults]
    batch = inputs.case.batch
    if differ[SHARE]:
        faults.append(
            f"{differ[SHARE]} of {WARM * batch} matrices have other bits than on one GPU with the "
            "same share"
        )
    notes = [where + said for where, _, _, _, notes in found for said in notes]
    if differ[ALL]:
        notes.append(
            f"{differ[ALL]} of {WARM * batch} matrices have other bits than on one GPU with all"
        )
    ok = not faults
    times = {way: _spread(took[way]) if ok else dict.fromkeys(_spread(took[way])) for way in WAYS}
    scaling = times[ALL]["median_us"] / times[SHARDED]["median_us"] if ok else None
    certificates = {
        way: [_finite(worst) for _, by, worst, *_ in found if by == way and worst] for way in WAYS
    }
    every = [each for way in WAYS for each in certificates[way]]
    return {
        **inputs.case._asdict(),
        "seed": inputs.seed,
        "stage": stage,
        "precision": "fp32",
        "mode": mode,
        "gpus": count,
        "ok": ok,
        "faults": faults,
        "notes": notes,
        **times[SHARDED],
        "runs": len(took[SHARDED]),
        "times_us": times[SHARDED]["times_us"] or [],
        "speedup": scaling,
        "scaling": scaling,
        "efficiency": scaling and scaling / count,
        ALL: {"batch": batch, **times[ALL]},
        SHARE: {"batch": batch // count, **times[SHARE]},
        "certificate": {key: _worst(each[key] for each in every) for key in RESIDUALS},
        "certificates": certificates,
        "bitwise": {way: not differ[way] for way in differ},
        "differ": differ,
        "compared": WARM * batch,
        "first_call_ms": None,
        "extra_bytes": None,
        "host_sync": None,
    }


def _worst(values):
    values = list(values)
    return None if None in values else max(values, default=None)


def _spread(took):
    us = [each.us for each in took]
    low, middle, high = _quartiles(us)
    return {
        "median_us": middle,
        "q25_us": low,
        "q75_us": high,
        "times_us": [round(x, 3) for x in us],
        "host_us": median(each.host_us for each in took),
    }


def broken(results):
    """{rule: [a sentence for each row that breaks it]} for all RULES; None where none was timed.

    A row that did not pass breaks them all. On one GPU nothing scales.
    """
    rows = results.rows
    kept = (
        [
            (
                f"{_said(row)}: {short(row['scaling'], 3, 'x')}",
                (row["efficiency"] or 0) >= EFFICIENCY,
            )
            for row in rows
            if row["gpus"] > 1
        ],
        *(
            [
                (
                    f"{_said(row)}: {row['differ'][way]} of {row['compared']} differ",
                    row["bitwise"][way] and row["ok"],
                )
                for row in rows
            ]
            for way in (SHARE, ALL)
        ),
    )
    return {
        rule: [said for said, holds in each if not holds] if each else None
        for rule, each in zip(RULES, kept)
    }


def _said(row):
    return f"{words(row)}, {row['stage']}, {row['mode']}"


def report(results):
    """Lines: what each way takes, which rules hold, and which cases break the rest."""
    yield "us of one GPU with all, of one with a share, and of all GPUs with a share each"
    for row in results.rows:
        us = (row[ALL]["median_us"], row[SHARE]["median_us"], row["median_us"])
        yield (
            f"  {_said(row)}: {', '.join(map(short, us))}; {short(row['scaling'], 3)} times as "
            f"fast on {row['gpus']}, efficiency {short(row['efficiency'], 3)}"
        )
    for rule, found in broken(results).items():
        yield f"{'not timed' if found is None else 'BROKEN' if found else 'holds'}: {rule}"
        yield from (f"    {case}" for case in found or ())
