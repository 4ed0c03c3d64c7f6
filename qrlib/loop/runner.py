"""The judge of a candidate: it runs in a process of its own, and what it returns is judged here.

`evaluate` gives an Outcome whatever the candidate does. Inputs come from seeds of this process,
which makes each of them again to hold the results against. A time is believed as far as the clock
of this process allows: what a candidate that rewrites its own process could hide is SLACK, and not
more. What is not seen is one that searches its process for the input before it is called with it.
"""

import hashlib
import os
import secrets
import stat
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median, quantiles
from tempfile import gettempdir

from qrlib.bench.results import _geomean, provenance, short, words
from qrlib.certificate import TASK
from qrlib.loop.ledger import append
from qrlib.loop.locks import fcntl
from qrlib.loop.process import START, WROTE, Gone, Limits, Process, Stop, number
from qrlib.loop.verdicts import VERDICTS, group
from qrlib.matrices import BENCHMARK_CASES, TEST_CASES, Case
from qrlib.stages import STAGES

MODES = ("test", "bench", "leaderboard")
# microseconds, or this share of the time, that this process may take longer for a call than the
# call took: a CPU that has other things to do was seen to need a millisecond
SLACK_US, SLACK = {"cpu": 3000.0, "cuda": 200.0}, 0.05
# a variant's is a million times as large, and must be of 63 bits
MOST_SEED = 1 << 42
# so often the clocks may disagree before it counts; and so few timed calls are enough
ROUNDS, LEAST = 3, 3


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    verdict: one of VERDICTS. message: what was expected, what came. rows: for each case its
    verdict, its times and its worst residuals. geomean_us: of the medians of all cases, where all
    passed and were timed. basis: what a score may be compared with. printed: what it said. source:
        its file as it was then, None for a stage.
    """

    candidate: str
    mode: str
    verdict: str
    message: str
    rows: list
    geomean_us: float | None
    basis: str
    seed: int
    sha256: str | None
    printed: str
    provenance: dict
    source: bytes | None

    @property
    def passed(self):
        return self.verdict == "passed"

    def record(self, ledger, *, parent=None, family=None, idea="", hypothesis="", prediction=""):
        """Add it to a ledger, and its file to the folder `tried` beside it; gives the entry.

        Args:
            ledger: a path. parent: the try that it came from. family: the idea that it is a
                variant of; "a+b" of two. idea: what is new, in few words. hypothesis: why it should
                be faster. prediction: by how much.
        """
        about = {"parent": parent, "family": family, "idea": idea}
        about |= {"hypothesis": hypothesis, "prediction": prediction, "gates": TASK._asdict()}
        own = {key: value for key, value in vars(self).items() if key != "source"}
        # first what took an hour; the file can be found again
        entry = append(ledger, "try", **about, **own)
        if self.source is not None:
            kept = kept_source(ledger, self.sha256)
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(self.source)
        return entry

    def __str__(self):
        lines = [f"{self.candidate}, {self.mode}: {self.verdict.upper()}"]
        if not self.passed:
            known = VERDICTS[self.verdict]
            lines += [f"  {self.message}", f"  {self.verdict} ({known.group}): {known.means}"]
            lines.append(f"  what to do: {known.todo}")
        lines += [f"  {line}" for line in row_lines(self.rows)]
        if self.geomean_us:
            lines.append(f"  geometric mean {short(self.geomean_us)} us, {self.basis}")
        return "\n".join(lines)


def row_lines(rows, messages=False):
    """Lines of a table with a head: the cases as qrlib.bench names them, batch x n and family."""
    if rows:
        yield f"{'':12} {'batch x n':32} {'median':>14}  residuals"
    for row in rows:
        yield row_line(row)
        if messages and row["message"]:
            yield f"    {row['message']}"


def row_line(row):
    """A row in words: its verdict, its case, its time, its residuals."""
    worst = row["certificate"] or {}
    gates = [f"{key} {short(worst[key], 3)}" for key in TASK._fields if worst.get(key) is not None]
    us = short(row["median_us"], unit=" us") if row["median_us"] else ""
    return f"{row['verdict']:12} {words(row):32} {us:>14}  {', '.join(gates)}".rstrip()


def kept_source(ledger, sha256):
    """Where the file of a try is kept."""
    return Path(ledger).parent / "tried" / f"{sha256[:12]}.py"


def evaluate(
    candidate,
    mode="test",
    *,
    cases=None,
    device=None,
    full=False,
    seed=None,
    runs=10,
    seconds=2.0,
    limits=None,
    sweep=None,
    command="",
    commit=None,
    told=lambda text: None,
):
    """Judge a candidate, and time it where the mode is to.

    Args:
        candidate: a file with custom_kernel(data) -> (H, tau), or "torch", "auto" or a stage.
        mode: "test", the test specs of the task; "bench", its benchmarks; "leaderboard", both, and
            only that one's score is for the record.
        cases: numbers of the cases of that mode, or cases themselves; all when None. A leaderboard
            has all.
        device: "cpu" or "cuda"; the GPU when None, if there is one.
        full: on a CPU, too, the cases in their own sizes.
        seed: of the inputs; one that nobody knows when None.
        runs, seconds: timed calls of a case, and after how long three are enough.
        sweep: bytes that empty a cache; see bench.clock.
        told: called with what is being done.

    Returns:
        Outcome.

    Raises:
        ValueError: no such file, mode or case. OSError: this machine has no room for the results.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    name, path, source = named(candidate)
    device = device_of(device)
    seed = seed_of(seed)
    number("the runs of a case", runs, whole=True)
    number("the seconds of a case", seconds)
    if sweep is not None:
        number("the bytes of a sweep", sweep, whole=True)
    small = device.type == "cpu" and not full
    plan = plan_of(mode, cases, small, runs)
    listed, timed = [case for case, _ in plan], [case for case, count in plan if count]
    origin = provenance(device, command, commit)
    basis = (
        f"{mode} of {_told_of(timed or listed, cases, small)} on {origin['gpu'] or origin['cpu']}"
    )

    process = Process(device, limits or Limits(), sweep)
    judge = Judge(process, seed, seconds)
    rows, gone = judge.rows, None
    with alone(told) if timed else nullcontext(), process.alive():
        try:
            told("importing the candidate")
            judge.start(path)
            for case, count in plan:
                told(f"{words(case)}, {f'{count} runs' if count else 'test'}")
                judge.case(case, count)
            process.end()
        except Gone as stop:
            gone = stop.args
        except KeyboardInterrupt:
            gone = ("interrupted", "stopped from the keyboard")
    verdict, message = _worst(rows, gone)
    scores = [row["median_us"] for row in rows if row["runs"]]
    scored = verdict == "passed" and len(scores) == len(timed)
    return Outcome(
        candidate=name,
        mode=mode,
        verdict=verdict,
        message=message,
        rows=rows,
        geomean_us=_geomean(scores) if scored else None,
        basis=basis,
        seed=seed,
        sha256=None if source is None else hashlib.sha256(source).hexdigest(),
        printed=process.printed(),
        provenance=origin,
        source=source,
    )


def device_of(name):
    """The torch.device of that name; that of a GPU when None, if there is one."""
    import torch

    there = torch.cuda.is_available()
    device = torch.device(name or ("cuda" if there else "cpu"))
    if device.type == "cuda" and not there:
        raise ValueError("device 'cuda' needs an NVIDIA GPU; python -m qrlib.doctor says more")
    return device


def seed_of(seed):
    """A seed that generators take; one that nobody knows when None."""
    if seed is None:
        return secrets.randbits(31)
    number("a seed", seed, whole=True, least=0, most=MOST_SEED)
    return seed


def named(candidate):
    """(name, what the worker imports, the bytes of the file or None)."""
    if str(candidate) in ("torch", "auto", *STAGES):
        return str(candidate), str(candidate), None
    path = Path(candidate)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(
            "a candidate must be a .py file with custom_kernel(data) -> (H, tau), or torch, auto "
            f"or one of {', '.join(STAGES)}; got {str(candidate)!r}; "
            "`python -m qrlib.loop new NAME` makes a file to begin with"
        )
    return path.stem, str(path.resolve()), path.read_bytes()


def plan_of(mode, cases, small, runs):
    """[(case, timed runs)]."""
    from qrlib.bench.cases import small as cut

    own = {"test": TEST_CASES, "bench": BENCHMARK_CASES}
    if mode == "leaderboard":
        if cases is not None:
            raise ValueError("a leaderboard has all cases; leave them out, or use bench")
        listed = [(case, 0) for case in TEST_CASES] + [(case, runs) for case in BENCHMARK_CASES]
    else:
        count = runs if mode == "bench" else 0
        chosen = range(len(own[mode])) if cases is None else cases
        listed = [(_case(each, own[mode]), count) for each in chosen]
    if not listed:
        raise ValueError("there must be a case; got none")
    return [(cut(case) if small else case, count) for case, count in listed]


def _told_of(listed, cases, small):
    """Cases in words, so that others have other words."""
    if cases is None:
        return f"all {len(listed)} {'small ' * small}cases"
    told = [words(case) for case in listed]
    if len(told) <= 2:
        return " and ".join(told)
    digest = hashlib.sha256("; ".join(told).encode()).hexdigest()[:6]
    return f"{len(told)} cases ({digest})"


def _case(each, listed):
    if not isinstance(each, int):
        return Case(*each)
    if not 0 <= each < len(listed):
        raise ValueError(f"a case must be 0 to {len(listed) - 1} in this mode; got {each}")
    return listed[each]


def _worst(rows, gone):
    """(verdict, message) of all the cases; gone: those of what has ended them, or None.

    What rejects a candidate weighs more than what fails it, and what says nothing of it least.
    """
    bad = [row for row in rows if row["verdict"] != "passed"]
    count = f" ({len(bad)} of {len(rows)} cases)" if len(rows) > 1 else ""
    found = [(row["verdict"], f"{words(row)}: {row['message']}{count}") for row in bad]
    found += [gone] if gone else []
    weights = ("rejected", "failed", "inconclusive")
    return min(found, key=lambda each: weights.index(group(each[0])), default=("passed", ""))


class Judge:
    """Asks a process for results, and judges them; rows: what it has found."""

    def __init__(self, process, seed, seconds):
        self.process, self.device, self.seed, self.seconds = process, process.device, seed, seconds
        self.rows = []

    def start(self, path):
        """Have the candidate imported."""
        limits = self.process.limits
        # importing torch is not the candidate's doing
        self.process.ask("start", max(START, limits.seconds), memory=limits.memory)
        # what a call takes by this clock beside what it takes
        idle = []
        for _ in range(9):
            self.process.ask("idle")
            idle.append(self.process.wall_us)
        self.overhead_us = median(idle)
        loaded = self.process.ask("load", path=path)
        if "verdict" in loaded:
            raise Gone(loaded["verdict"], loaded["message"])

    def case(self, case, runs):
        """One more row."""
        from qrlib.bench.cases import Inputs

        self.inputs = Inputs(case, self.seed, self.device)
        room = self.process.ask("case", case=list(case), seed=self.seed)["room"]
        self.calls, self.waiting, self.known, self.worst = 0, [], {}, {}
        row = {**case._asdict(), "verdict": "passed", "message": "", "runs": 0}
        row |= dict.fromkeys(("median_us", "q25_us", "q75_us", "certificate"))
        self.rows.append(row)
        try:
            # the second on the first's tensor, with other numbers in it
            self._call()
            self._call(refill=True)
            self._judge(case)
            for _ in range(ROUNDS if runs else 0):
                times, said = self._timed(min(runs, max(room, LEAST)))
                self._judge(case)
                # a host that has much to do makes an honest clock look wrong, but not every time
                if not said:
                    break
            row["certificate"] = self.worst
            if runs:
                if said:
                    raise Stop("clocks disagree", said)
                us = times if len(times) > 1 else 2 * times
                spread = quantiles(us, n=4, method="inclusive")
                row |= dict(zip(("q25_us", "median_us", "q75_us"), spread)) | {"runs": len(times)}
        except Stop as stop:
            row["verdict"], row["message"] = stop.args
            if isinstance(stop, Gone):
                raise

    def _call(self, refill=False):
        """One call on numbers of its own: (its time, that by this clock); it is to be judged."""
        k, self.calls = self.calls, self.calls + 1
        self.process.ask("prepare", k=k, refill=refill)
        took = self.process.ask("call")
        wall_us = self.process.wall_us
        self._must(took)
        looked = self.process.ask("look")
        if looked["overwritten"]:
            raise Stop("overwrites", "the input must stay as it is; it was written into")
        _alias(looked["memory"], self.known, k)
        self.waiting.append((k, looked))
        return took, wall_us

    def _timed(self, runs):
        """(us of each of so many calls, what is wrong with the clocks)."""
        took, spent = [], 0.0
        while len(took) < runs and (len(took) < LEAST or spent < self.seconds):
            took.append(self._call())
            spent += took[-1][0]["us"] / 1e6
        times, walls = zip(*took)
        said = self.process.ask("disagree", times=[list(each.values()) for each in times])["said"]
        us = [each["us"] for each in times]
        if min(us) <= 0:
            raise Gone(*WROTE)
        beyond = sorted(wall - each - self.overhead_us for wall, each in zip(walls, us))
        hidden, usual = beyond[len(beyond) // 4], median(us)
        if hidden > max(SLACK_US[self.device.type], SLACK * usual):
            said = (
                f"a call took {usual:.0f} us by the candidate's clock, and {usual + hidden:.0f} us "
                "by the judge's"
            )
        return us, said

    def _judge(self, case):
        """Certify all results that wait for it, each as it is now; the worst is kept."""
        import torch

        from qrlib.bench.judge import certificate, exceeded

        B, n = case.batch, case.n
        for k, looked in self.waiting:
            size = 4 * (B * n * n + B * n)
            self.process.ask("give", k=k, folder=self.process.folder, size=size)
            found = []
            for name, shape in (("H", (B, n, n)), ("tau", (B, n))):
                X = _floats(Path(self.process.folder) / name, prod(shape))
                if X is None:
                    raise Gone("patched", f"{name} must leave as it is; its file was changed")
                found.append(torch.from_numpy(X).reshape(shape).to(self.device))
            where = tuple(torch.tensor(index, device=self.device) for index in looked["where"])
            try:
                glance = found[0][where].cpu().numpy().tobytes().hex()
            except IndexError:
                raise Gone(*WROTE) from None
            if glance != looked["glance"]:
                raise Stop("late", "a result must be there when the call is over; it came later")
            levels = certificate(self.inputs.variant(k), *found)
            self.worst = {key: max(x, self.worst.get(key, 0.0)) for key, x in levels.items()}
            if over := exceeded(levels, "fast"):
                what = "; ".join(over.values())
                if not all(torch.isfinite(X).all() for X in found):
                    what = f"H and tau must be finite; they have NaN or Inf: {what}"
                again = "on a tensor that holds other numbers than before, " * (k == 1)
                raise Stop("wrong", f"{again}{what}")
        self.waiting.clear()
        # their memory is free to be used again
        self.known.clear()

    def _must(self, reply):
        if "verdict" in reply:
            kind = Gone if reply["verdict"] == "patched" else Stop
            raise kind(reply["verdict"], reply["message"])


def _floats(path, count):
    """So many floats of a file; None where it is no plain file with just these."""
    import numpy as np

    with suppress(OSError):
        # a pipe would be waited for, and a link leads anywhere
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            about = os.fstat(fd)
            if stat.S_ISREG(about.st_mode) and about.st_size == 4 * count:
                return np.fromfile(file, np.float32)
    return None


@contextmanager
def alone(told):
    """One at a time on this machine: two that are timed at once would slow each other down."""
    path = Path(gettempdir()) / f"qrlib-loop-{os.getuid()}.lock"
    with open(path, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told("another candidate is being timed on this machine; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _alias(mine, held, k):
    """Stop where a result lies in the memory of another tensor; else it is held as result k."""
    own = {name: mine[name] for name in ("H", "tau")}
    others = {"the input": mine["A"], **held}
    for name, (begin, end) in own.items():
        for other, (first, last) in others.items():
            if begin < last and first < end:
                raise Stop(
                    "aliases", f"{name} must have memory of its own; it shares some with {other}"
                )
        others[name] = [begin, end]
    held |= {f"{name} of call {k + 1}": where for name, where in own.items()}
