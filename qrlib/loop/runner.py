"""The judge of a candidate: it runs in a process of its own, and what it returns is judged here.

`evaluate` gives an Outcome whatever the candidate does. Inputs come from seeds of this process,
which makes each of them again to hold the results against. A time is believed as far as the clock
of this process allows: what a candidate that rewrites its own process could hide is SLACK, and not
more. What is not seen is one that searches its process for the input before it is called with it.
"""

import fcntl
import hashlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory, gettempdir

from qrlib.bench.results import ROOT, _geomean, provenance, short, words
from qrlib.certificate import TASK
from qrlib.loop.ledger import append
from qrlib.loop.verdicts import VERDICTS, group
from qrlib.matrices import BENCHMARK_CASES, TEST_CASES, Case
from qrlib.stages import STAGES

MODES = ("test", "bench", "leaderboard")
# microseconds, or this share of the time, that this process may take longer for a call than the
# call took: a CPU that has other things to do was seen to need a millisecond
SLACK_US, SLACK = {"cpu": 3000.0, "cuda": 200.0}, 0.05
# so often the clocks may disagree before it counts; and so few timed calls are enough
ROUNDS, LEAST = 3, 3
# seconds between looks at how much memory a candidate has, and until all of it must have ended
PATROL, GRACE = 0.2, 5.0
# seconds for a worker to be there
START = 120.0
# what is kept of what a candidate prints: its beginning and its end
PRINTED = 4000
# in its environment, so that a process of it is known wherever it has gone
MARK = "QRLIB_LOOP"


# what a process prints that has ended for want of memory
NO_MEMORY = (b"bad_alloc", b"MemoryError", b"can't allocate memory")


class Stop(Exception):
    """Verdict and message of a case that went no further."""


class Gone(Stop):
    """No more cases: its process has ended, or cannot be asked any more, or not be believed."""


@dataclass(frozen=True)
class Limits:
    """What a candidate may use.

    seconds: for any one answer, an import or a call. memory: bytes, of it and all its processes.
    """

    seconds: float = 180.0
    memory: int = field(
        default_factory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    verdict: one of VERDICTS. message: what was expected, what came. rows: for each case its
    verdict, its times and its worst residuals. geomean_us: of the medians of all cases, where all
    passed and were timed. basis: what a score may be compared with. printed: what it said. file:
        where it is, None for a stage.
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
    file: Path | None

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
        if self.file:
            kept = kept_source(ledger, self.sha256)
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(self.file.read_bytes())
        own = {key: value for key, value in vars(self).items() if key != "file"}
        return append(ledger, "try", **about, **own)

    def __str__(self):
        lines = [f"{self.candidate}, {self.mode}: {self.verdict.upper()}"]
        if not self.passed:
            known = VERDICTS[self.verdict]
            lines += [f"  {self.message}", f"  {self.verdict} ({known.group}): {known.means}"]
            lines.append(f"  what to do: {known.todo}")
        lines += [f"  {row_line(row)}" for row in self.rows]
        if self.geomean_us:
            lines.append(f"  geometric mean {short(self.geomean_us)} us, {self.basis}")
        return "\n".join(lines)


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
    import torch

    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
    name, path, sha256 = _named(candidate)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' needs an NVIDIA GPU; python -m qrlib.doctor says more")
    seed = secrets.randbits(31) if seed is None else seed
    small = device.type == "cpu" and not full
    plan = _plan(mode, cases, small, runs)
    listed, timed = [case for case, _ in plan], [case for case, count in plan if count]
    origin = provenance(device, command, commit)
    basis = (
        f"{mode} of {_told_of(timed or listed, cases, small)} on {origin['gpu'] or origin['cpu']}"
    )

    judge = _Judge(device, seed, limits or Limits(), seconds, sweep, told)
    rows, gone = judge.rows, None
    with judge.candidate(path, alone=bool(timed)):
        try:
            judge.start()
            for case, count in plan:
                judge.case(case, count)
            judge.end()
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
        sha256=sha256,
        printed=judge.printed(),
        provenance=origin,
        file=Path(path) if sha256 else None,
    )


def _named(candidate):
    """(name, what the worker imports, sha256 of the file or None)."""
    if str(candidate) in ("torch", "auto", *STAGES):
        return str(candidate), str(candidate), None
    path = Path(candidate)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(
            "a candidate must be a .py file with custom_kernel(data) -> (H, tau), or torch, auto "
            f"or one of {', '.join(STAGES)}; got {str(candidate)!r}; "
            "`python -m qrlib.loop new NAME` makes a file to begin with"
        )
    return path.stem, str(path.resolve()), hashlib.sha256(path.read_bytes()).hexdigest()


def _plan(mode, cases, small, runs):
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
    if runs < 1 or not listed:
        raise ValueError(f"there must be a case and a run; got {len(listed)} and {runs}")
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


class _Judge:
    """A candidate's process, seen from outside."""

    def __init__(self, device, seed, limits, seconds, sweep, told):
        self.device, self.seed, self.limits, self.told = device, seed, limits, told
        self.seconds, self.sweep = seconds, sweep
        self.token = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.said, self.reply, self.process, self.rows = b"", b"", None, []

    @contextmanager
    def candidate(self, path, alone):
        """In here its process is alive; afterwards neither it nor anything that it started is."""
        self.path = path
        turn = _alone(self.told) if alone else nullcontext()
        with turn, TemporaryDirectory() as self.folder:
            (asked, self.ask_fd), (self.reply_fd, replies) = os.pipe(), os.pipe()
            env = {**os.environ, MARK: self.token}
            env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
            command = [sys.executable, "-u", "-m", "qrlib.loop.worker", str(asked), str(replies)]
            try:
                self.process = subprocess.Popen(
                    [*command, str(self.device), json.dumps(self.sweep)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(asked, replies),
                    cwd=self.folder,
                    env=env,
                    # a group of its own, which is ended as one
                    start_new_session=True,
                )
            finally:
                os.close(asked)
                os.close(replies)
            try:
                with selectors.DefaultSelector() as self.selector:
                    self.selector.register(self.reply_fd, selectors.EVENT_READ)
                    self.selector.register(self.process.stdout, selectors.EVENT_READ)
                    yield
            finally:
                self._kill()
                while self._read(self.process.stdout.fileno()):
                    pass
                self.process.stdout.close()
                os.close(self.ask_fd)
                os.close(self.reply_fd)

    def start(self):
        self.told("importing the candidate")
        # importing torch is not the candidate's doing
        self._ask("start", max(START, self.limits.seconds), memory=self.limits.memory)
        # what a call takes by this clock beside what it takes
        idle = []
        for _ in range(9):
            self._ask("idle")
            idle.append(self.wall_us)
        self.overhead_us = median(idle)
        loaded = self._ask("load", path=self.path)
        if "verdict" in loaded:
            raise Gone(loaded["verdict"], loaded["message"])

    def case(self, case, runs):
        """One more row."""
        from qrlib.bench.cases import Inputs

        self.told(f"{words(case)}, {f'{runs} runs' if runs else 'test'}")
        self.inputs = Inputs(case, self.seed, self.device)
        room = self._ask("case", case=list(case), seed=self.seed)["room"]
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

    def end(self):
        """Let it end by itself; what is left of it then is told."""
        threads = self._ask("end", GRACE)["threads"]
        deadline = time.monotonic() + GRACE
        while (left := list(self._processes())) and time.monotonic() < deadline:
            self._wait(0.05)
        left = [*map(_called, left), *threads]
        if left:
            raise Gone(
                "leaves processes",
                f"all of it must have ended {GRACE:g} s after the last call; what went on: "
                f"{', '.join(left)}",
            )

    def printed(self):
        """What it has printed, without the middle of what is too long."""
        text = self.said.decode(errors="replace")
        if len(text) <= 2 * PRINTED:
            return text
        return f"{text[:PRINTED]}\n[{len(text) - 2 * PRINTED} characters]\n{text[-PRINTED:]}"

    def _call(self, refill=False):
        """One call on numbers of its own: (its time, that by this clock); it is to be judged."""
        k, self.calls = self.calls, self.calls + 1
        self._ask("prepare", k=k, refill=refill)
        took = self._ask("call")
        wall_us = self.wall_us
        self._must(took)
        looked = self._ask("look")
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
        said = self._ask("disagree", times=[list(each.values()) for each in times])["said"]
        us = [each["us"] for each in times]
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
        import numpy as np
        import torch

        from qrlib.bench.judge import certificate, exceeded

        B, n = case.batch, case.n
        for k, looked in self.waiting:
            self._ask("give", k=k, folder=self.folder)
            found = []
            for name, shape in (("H", (B, n, n)), ("tau", (B, n))):
                X = np.fromfile(Path(self.folder) / name, np.float32)
                found.append(torch.from_numpy(X).reshape(shape).to(self.device))
            where = tuple(torch.tensor(index, device=self.device) for index in looked["where"])
            glance = found[0][where].cpu().numpy().tobytes().hex()
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

    def _ask(self, request, seconds=None, **about):
        """The reply to a request. Stop where there is none."""
        seconds = self.limits.seconds if seconds is None else seconds
        begin = time.perf_counter()
        try:
            os.write(self.ask_fd, json.dumps({"do": request, **about}).encode() + b"\n")
        except BrokenPipeError:
            raise Gone(*self._how()) from None
        # nothing is looked at before the first patrol: it would be in the time of a call
        deadline, patrol, before = begin + seconds, begin + PATROL, None
        while b"\n" not in self.reply:
            if not self._wait(PATROL) and b"\n" not in self.reply:
                raise Gone(*self._how())
            if time.perf_counter() > patrol:
                before = self._busy() if before is None else before
                patrol = time.perf_counter() + PATROL
                self._memory()
            if time.perf_counter() > deadline:
                busy = self._busy() - (before or 0)
                told = f"the answer must come within {seconds:g} s; it did not come, and"
                if busy < 0.1 * seconds:
                    raise Gone("hung", f"{told} it computed for {busy:.1f} s of them")
                raise Gone("timed out", f"{told} it was computing")
        self.wall_us = 1e6 * (time.perf_counter() - begin)
        line, self.reply = self.reply.split(b"\n", 1)
        try:
            reply = json.loads(line)
            if not isinstance(reply, dict):
                raise ValueError("no object")
        except ValueError:
            raise Gone("patched", "the line to the judge is the worker's; it wrote to it") from None
        if "error" in reply:
            raise OSError(reply["error"])
        return reply

    def _wait(self, seconds):
        """Read what there is to read; False when no reply can come any more."""
        for key, _ in self.selector.select(seconds):
            if not self._read(key.fd):
                self.selector.unregister(key.fileobj)
                if key.fd == self.reply_fd:
                    return False
        return not self._ended() or self._read(self.reply_fd)

    def _read(self, fd):
        os.set_blocking(fd, False)
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if fd == self.reply_fd:
            self.reply += part
        else:
            self.said += part
            if len(self.said) > 1 << 20:
                self.said = self.said[: 1 << 18] + self.said[-(1 << 18) :]
        return bool(part)

    def _ended(self):
        return self.process.poll() is not None

    def _how(self):
        """(verdict, message) of a process that has gone."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        while self._read(self.process.stdout.fileno()):
            pass
        code = self.process.returncode
        if any(words in self.said for words in NO_MEMORY):
            return "out of memory", self._too_much()
        if code is None:
            return "crashed", "it closed its line to the judge"
        if code < 0:
            return "crashed", f"its process was ended by {signal.Signals(-code).name}"
        return "crashed", f"its process ended with exit status {code} in the middle of a request"

    def _memory(self):
        used = sum(_resident(pid) for pid in self._processes())
        if used > self.limits.memory:
            raise Gone("out of memory", self._too_much())

    def _too_much(self):
        return f"it must do with {self.limits.memory / 2**20:,.0f} MiB; it asked for more"

    def _processes(self):
        """Ids of the candidate's processes, wherever they have gone."""
        mark = f"{MARK}={self.token}".encode()
        for entry in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)

    def _busy(self):
        """Seconds that the candidate's processes have computed."""
        ticks = 0
        for pid in self._processes():
            with suppress(OSError, IndexError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _kill(self):
        """End the group, and what has left it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # what is ended may have begun another one just before
        while left := list(self._processes()):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


@contextmanager
def _alone(told):
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


def _resident(pid):
    """Bytes of memory that a process has to itself."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0


def _called(pid):
    """The name of a process, and its number."""
    with suppress(OSError):
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} {pid}"
    return str(pid)
