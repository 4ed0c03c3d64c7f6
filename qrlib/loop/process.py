"""The process of a candidate, seen from outside: asked, watched, and ended with all it started."""

import json
import math
import os
import re
import secrets
import select
import selectors
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from qrlib.bench.results import ROOT
from qrlib.loop import guard

# seconds between looks at how much memory a candidate has, and until all of it must have ended
PATROL, GRACE = 0.2, 5.0
# seconds for a worker to be there
START = 120.0
# what is kept of what a candidate prints: its beginning and its end
PRINTED = 4000
# no machine has more bytes, and no limit can be higher
MOST_MEMORY = 1 << 60
# bytes that it may print
MOST = 1 << 24
# files of a result
RESULTS = ("H", "tau")
# in its environment, so that a process of it is known wherever it has gone
MARK = "QRLIB_LOOP"
# what a process prints that has ended for want of memory
NO_MEMORY = (b"bad_alloc", b"MemoryError", b"can't allocate memory")
# what a worker replies, and of which type each part is: [x] are as many as there are, (x, y) two
TIME = int | float
REPLIES = {
    "start": {"pid": int},
    "load": {},
    "idle": {},
    "case": {"room": int},
    "prepare": {},
    "call": {"us": TIME, "late_us": TIME, "host_us": TIME},
    "look": {
        "overwritten": bool,
        "where": [[int]],
        "glance": str,
        "memory": dict.fromkeys(("A", "H", "tau"), (int, int)),
    },
    "disagree": {"said": str | None},
    "give": {},
    "profile": {"lines": [str]},
    "end": {"threads": [str]},
}
# in place of it what it lacks itself, or, where the candidate was at work, what became of that
ERROR, FATE = {"error": str}, {"verdict": str, "message": str}
ELSE = {"give": ERROR, "load": FATE, "call": FATE, "profile": FATE}
# of a candidate no other end is seen from within
SEEN = ("does not import", "out of memory", "raised", "malformed", "patched")
# bytes of a reply
LONGEST = 1 << 20
WROTE = "patched", "the line to the judge is the worker's; it wrote to it"
SPOKE = "patched", "what its guard says to the judge is the guard's to say; it wrote there"
# what a guard says
SAID = re.compile(rb"-?\d{1,10}\n")


class Stop(Exception):
    """Verdict and message of a case that went no further."""


class Gone(Stop):
    """No more cases: its process has ended, or cannot be asked any more, or not be believed."""


class Slow(Gone):
    """It did not reply in time."""


@dataclass(frozen=True)
class Limits:
    """What a candidate may use.

    seconds: for any one answer, an import or a call. memory: bytes, of it and all its processes.
    """

    seconds: float = 180.0
    memory: int = field(
        default_factory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    )

    def __post_init__(self):
        number("the seconds for an answer", self.seconds)
        number("the bytes of memory", self.memory, most=MOST_MEMORY)


def number(what, x, *, whole=False, least=None, most=None):
    """Raises ValueError unless x is a number that something can be measured with.

    Args:
        whole: no fractions. least, most: what it may be; more than 0 when least is None.
    """
    kind = int if whole else int | float
    told = f"{'a whole' if whole else 'a'} number, "
    told += "more than 0" if least is None else f"{least} or more"
    told += ", and finite" if most is None else f", and at most {most:,}"
    good = isinstance(x, kind) and not isinstance(x, bool) and abs(x) < math.inf
    if not (good and (x > 0 if least is None else x >= least) and (most is None or x <= most)):
        raise ValueError(f"{what} must be {told}; got {x!r}")


class Process:
    """A worker and its candidate.

    folder: where it is, and where its results are put. wall_us: what the last answer took, without
    what worker and judge had to wait for a CPU that others had.
    """

    def __init__(self, device, limits, sweep=None):
        self.device, self.limits, self.sweep = device, limits, sweep
        self.token = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.said, self.printing, self.reply, self.wall_us = b"", 0, b"", 0.0
        # the guard; the worker's process id, and how it has ended
        self.process = self.pid = self.code = None
        # (process id, when it began) of all that were seen to be the candidate's
        self.seen = set()

    @contextmanager
    def alive(self):
        """In here it is alive; afterwards neither it nor anything that it started is."""
        with (
            TemporaryDirectory(prefix="qrlib-loop-", ignore_cleanup_errors=True) as self.home,
            ExitStack() as own,
        ):
            self.folder = self.home
            pipes = (asked, self.ask_fd), (self.reply_fd, replies), (life, held), (told, status) = [
                os.pipe() for _ in range(4)
            ]
            theirs = asked, replies, life, status
            for fd in {*chain(*pipes)} - {*theirs}:
                own.callback(os.close, fd)
            self.status_fd = told
            # whoever reads nothing, or does not say all, is waited for no longer than he may take
            for fd in (self.ask_fd, told):
                os.set_blocking(fd, False)
            guarding = [sys.executable, "-I", "-S", guard.__file__]
            worker = [sys.executable, "-u", "-m", "qrlib.loop.worker", str(asked), str(replies)]
            worker += [str(self.device), json.dumps(self.sweep)]
            try:
                self.process = subprocess.Popen(
                    [*guarding, str(life), str(status), self.home, *worker],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=theirs,
                    cwd=self.folder,
                    env=environment() | {MARK: self.token},
                    # nobody's terminal
                    start_new_session=True,
                )
            finally:
                for fd in theirs:
                    os.close(fd)
            own.callback(self.process.stdout.close)
            try:
                if select.select([told], [], [], START)[0]:
                    self.pid = self._told()
                if self.pid is None:
                    raise OSError("a candidate must have a process of its own; none could be begun")
                with selectors.DefaultSelector() as self.selector:
                    self.selector.register(self.reply_fd, selectors.EVENT_READ)
                    self.selector.register(self.process.stdout, selectors.EVENT_READ)
                    yield
            finally:
                self._kill()
                self._drain()

    def end(self):
        """Let it end by itself; what is left of it then is told."""
        # whatever loses its parent now was seen before
        self._processes()
        threads = []
        # what it wants to do at its end may have none
        with suppress(Slow):
            threads = self.ask("end", GRACE)["threads"]
        deadline = time.monotonic() + GRACE
        while (left := self._processes()) and time.monotonic() < deadline:
            self._wait(0.05)
        left = [*map(_called, sorted(left)), *threads]
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

    def ask(self, request, seconds=None, **about):
        """The reply to a request. Gone where there is none."""
        seconds = self.limits.seconds if seconds is None else seconds
        # who does not know it cannot answer in the worker's place
        nonce = secrets.token_hex(8)
        left = json.dumps({"do": request, "nonce": nonce, **about}).encode() + b"\n"
        ready, begin = self._queued(), time.perf_counter()
        # nothing is looked at before the first patrol: it would be in the time of a call
        deadline, patrol, before = begin + seconds, begin + PATROL, None
        while b"\n" not in self.reply:
            left = left[self._write(left) :]
            if not self._wait(0.01 if left else PATROL) and b"\n" not in self.reply:
                raise Gone(*self._how())
            if time.perf_counter() > patrol:
                before = self._busy() if before is None else before
                patrol = time.perf_counter() + PATROL
                self._memory()
            if time.perf_counter() > deadline:
                busy = self._busy() - (before or 0)
                told = f"the answer must come within {seconds:g} s; it did not come, and"
                if busy < 0.1 * seconds:
                    raise Slow("hung", f"{told} it computed for {busy:.1f} s of them")
                raise Slow("timed out", f"{told} it was computing")
        self.wall_us = 1e6 * (time.perf_counter() - begin - (self._queued() - ready))
        line, self.reply = self.reply.split(b"\n", 1)
        try:
            reply = json.loads(line)
            if reply.pop("nonce") != nonce or not _fits(request, reply):
                raise ValueError("another one wrote it")
            # neither NaN nor what no file can have
            json.dumps(reply, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
            raise Gone(*WROTE) from None
        if "error" in reply:
            self._room(reply["error"], about["size"])
        return reply

    def _room(self, error, size):
        """Raises what is true of a worker that says that it had no room for a result of this size.

        It may say so for the candidate, or because of it.
        """
        if not os.path.isdir(self.home):
            raise Gone("patched", "the folder that it runs in must stay; it was removed")
        for name in RESULTS:
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        try:
            with TemporaryFile(dir=self.folder) as file:
                _fill(file, size)
        except OSError:
            filled = sum(each.lstat().st_size for each in Path(self.home).rglob("*"))
            if filled >= size:
                raise Gone(
                    "floods",
                    f"there must be room for a result of {size:,} bytes; it has filled the folder "
                    f"that it runs in with {filled:,}",
                ) from None
            raise OSError(error) from None
        raise Gone(
            "patched",
            f"results must leave as they are; its process had no way out for one: {error}",
        )

    def _wait(self, seconds):
        """Read what there is to read; False when no reply can come any more."""
        for key, _ in self.selector.select(seconds):
            if not self._read(key.fd):
                self.selector.unregister(key.fileobj)
                if key.fd == self.reply_fd:
                    return False
        return not self._ended() or self._read(self.reply_fd)

    def _write(self, text):
        """How many bytes of a request the pipe has taken: it may be full."""
        try:
            return os.write(self.ask_fd, text) if text else 0
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Gone(*self._how()) from None

    def _told(self):
        """The number that the guard has said; None where it has gone without a word."""
        said = b""
        # it writes a line at once; where there is less of one somebody else has written
        with suppress(BlockingIOError):
            while not said.endswith(b"\n") and len(said) < 16:
                part = os.read(self.status_fd, 1)
                if not part:
                    return None
                said += part
        if not SAID.fullmatch(said):
            raise Gone(*SPOKE)
        return int(said)

    def _read(self, fd):
        os.set_blocking(fd, False)
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if fd == self.reply_fd:
            self.reply += part
            if len(self.reply) > LONGEST:
                raise Gone(*WROTE)
        else:
            self.said += part
            self.printing += len(part)
            if len(self.said) > 1 << 20:
                self.said = self.said[: 1 << 18] + self.said[-(1 << 18) :]
            if self.printing > MOST:
                raise Gone(
                    "floods",
                    f"at most {MOST / 2**20:,.0f} MiB may be printed; it went on and on",
                )
        return bool(part)

    def _drain(self):
        """Read what it has printed, to the end or until it is too much."""
        with suppress(Gone):
            while self._read(self.process.stdout.fileno()):
                pass

    def _ended(self, seconds=0):
        """Whether the worker has ended by now, or does so in so many seconds."""
        if self.code is None and select.select([self.status_fd], [], [], seconds)[0]:
            self.code = self._told()
            # so does the worker where somebody has ended its guard
            self.code = -signal.SIGKILL if self.code is None else self.code
        return self.code is not None

    def _how(self):
        """(verdict, message) of a process that has gone."""
        self._ended(GRACE)
        self._drain()
        code = self.code
        if any(words in self.said for words in NO_MEMORY):
            return "out of memory", self._too_much()
        if code is None:
            return "crashed", "it closed its line to the judge"
        if code < 0:
            return "crashed", f"its process was ended by {_signal(-code)}"
        return "crashed", f"its process ended with exit status {code} in the middle of a request"

    def _memory(self):
        used = sum(_resident(pid) for pid in self._processes())
        if used > self.limits.memory:
            raise Gone("out of memory", self._too_much())

    def _too_much(self):
        return f"it must do with {self.limits.memory / 2**20:,.0f} MiB; it asked for more"

    def _processes(self):
        """Ids of the candidate's processes, wherever they have gone.

        They come from the guard; where that has been ended, they have the mark, or one of them has
        begun them, or they were seen before.
        """
        mark, guarding = f"{MARK}={self.token}".encode(), self.process.pid
        processes, own = guard.alive(), {guarding}
        processes.pop(guarding, None)
        for pid, fields in processes.items():
            with suppress(OSError):
                if (pid, fields[19]) in self.seen:
                    own.add(pid)
                elif mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    own.add(pid)
        own = guard.begun(own, processes) - {guarding}
        self.seen |= {(pid, processes[pid][19]) for pid in own}
        return own

    def _queued(self):
        """Seconds that worker and judge have waited for a CPU so far; 0 where nobody says."""
        waited = 0
        for pid in (self.pid, os.getpid()):
            with suppress(OSError, IndexError, ValueError):
                waited += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
        return waited / 1e9

    def _busy(self):
        """Seconds that the candidate's processes have computed."""
        ticks = 0
        for pid in self._processes():
            with suppress(OSError, IndexError):
                fields = guard.stat(pid)
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _kill(self):
        """End the group, and what has left it."""
        self._processes()
        if self.pid and self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        # what is ended may have begun another one just before
        while left := self._processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        # nothing is left to be guarded
        self.process.kill()
        self.process.wait()


def environment():
    """That of this process, with which another one finds this qrlib."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def _fits(request, reply):
    """Whether a reply has the form that it must have."""
    if reply.get("verdict", SEEN[0]) not in SEEN:
        return False
    return any(_is(reply, form) for form in (REPLIES[request], ELSE.get(request, REPLIES[request])))


def _is(x, form):
    if isinstance(form, dict):
        return (
            isinstance(x, dict)
            and x.keys() == form.keys()
            and all(_is(x[key], form[key]) for key in form)
        )
    if isinstance(form, list):
        return isinstance(x, list) and all(_is(each, form[0]) for each in x)
    if isinstance(form, tuple):
        return isinstance(x, list) and len(x) == len(form) and all(map(_is, x, form))
    return isinstance(x, form)


def _fill(file, size):
    """Write so many bytes, which need as much room as a result."""
    while size > 0:
        size -= file.write(bytes(min(size, 1 << 20)))
    file.flush()


def _signal(number):
    """The name of a signal; most of those for real time have none."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _resident(pid):
    """Bytes of memory that a process has to itself."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0


def _called(pid):
    """The name of a process, and its number."""
    with suppress(OSError):
        return f"{Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()} {pid}"
    return str(pid)
