"""The process of a candidate: it imports it, calls it when told to, and judges nothing.

Whatever runs in here may have been changed by the candidate. So the inputs come from numbers that
are sent just before a call, the results leave as they are, and the parent judges them against
inputs that it makes itself; of the clock in here it believes what its own one allows.

A request and a reply are a line of JSON each, on pipes of their own: what a candidate prints goes
elsewhere.
"""

import _thread
import atexit
import builtins
import importlib.util
import json
import os
import statistics
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from qrlib import certificate
from qrlib.bench import clock as clocks
from qrlib.bench import judge
from qrlib.bench.cases import Inputs
from qrlib.bench.clock import Clock
from qrlib.bench.judge import Fault, pair, prints, spots
from qrlib.bench.measure import resolve
from qrlib.bench.results import ROOT
from qrlib.matrices import Case

# what the clock is made of, and what a judge would be
WATCHED = (
    builtins,
    os,
    json,
    threading,
    time,
    statistics,
    torch.cuda,
    torch.linalg,
    torch.Tensor,
    torch.cuda.Event,
    torch.cuda.Stream,
    certificate,
    clocks,
    judge,
    Clock,
    Inputs,
)
# of a message; a candidate may say as much as it likes
LONGEST = 600
# seconds for threads to end that were told to
PATIENCE = 0.5


def functions(holder):
    """{name: function or class} of a module, or of a class with all that it inherits."""
    homes = reversed(holder.__mro__) if isinstance(holder, type) else (holder,)
    return {name: x for home in homes for name, x in vars(home).items() if callable(x)}


class Watch:
    """The functions under the clock and the judge as they were, and which of them are others."""

    def __init__(self):
        self.before = [(holder, functions(holder)) for holder in WATCHED]

    def changed(self):
        """Names of what has been replaced."""
        found = []
        for holder, before in self.before:
            now = functions(holder)
            found += [
                f"{holder.__name__}.{name}" for name in before if now.get(name) is not before[name]
            ]
        return found


class Threads:
    """The threads of Python as they were, and which of them are new.

    Those of torch's own pools are none of Python's, and nor are those that compiled code begins.
    Such a one can spoil no result: those are in the judge's hands when it is over.
    """

    def __init__(self):
        # as they are now, whatever the candidate puts in their place
        self.known, self.count = threading.enumerate, _thread._count
        self.before, self.many = set(self.known()), self.count()

    def more(self):
        """Names of those that go on after a moment, daemons too."""
        deadline = time.monotonic() + PATIENCE
        while self.count() > self.many and time.monotonic() < deadline:
            time.sleep(0.01)
        # one that torch has begun is a dummy here once it has run a line of Python
        more = [each for each in self.known() if not isinstance(each, threading._DummyThread)]
        named = [f"thread {each.name}" for each in more if each not in self.before]
        # of threads without a Thread only their number is known
        nameless = self.count() - self.many - len(named)
        return named + nameless * ["a thread without a name"]


class Worker:
    """Answers requests; each method that has the name of one gives its reply."""

    def __init__(self, device, sweep):
        self.clock = Clock(torch.device(device), sweep)
        self.device = torch.device(device)
        self.candidate = self.inputs = self.A = None
        self.held = []

    def start(self, memory):
        """The clock tried on nothing, before there is a candidate."""
        A = torch.zeros(1, 4, 4, device=self.device)
        found = A.clone(), A[:, 0].clone()
        where = spots(A)
        self._nothing = lambda: self.clock(lambda A: found, A, lambda r: pair(r, A)[0][where])
        self.memory, self.watch, self.threads = memory, Watch(), Threads()
        return {"pid": os.getpid()}

    def idle(self):
        self._nothing()
        return {}

    def load(self, path):
        """Import the candidate; a name instead of a file is a stage."""
        # of a stage, which has no file, the package's
        self.folder = str(Path(path).parent if path.endswith(".py") else ROOT / "qrlib")
        if self.device.type == "cpu" and self.memory:
            # CUDA reserves more addresses than there is memory; there the parent watches
            import resource

            limit, most = _addresses() + int(self.memory), resource.getrlimit(resource.RLIMIT_AS)[1]
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            self.candidate = _imported(path) if path.endswith(".py") else resolve(path)[1]
        except BaseException as error:
            memory = _kind(error) == "out of memory"
            return {"verdict": "out of memory" if memory else "does not import"} | _told(
                error, self.folder
            )
        return self._patched() or {}

    def case(self, case, seed):
        self.held.clear()
        self.inputs = Inputs(Case(*case), seed, self.device)
        # of a GPU's memory half is for the judge, and for what the candidate needs
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 1 << 50
        return {"room": free // (8 * self.inputs.base.numel())}

    def prepare(self, k, refill=False):
        """Variant k, as a new tensor or in the one that was used last."""
        A = self.inputs.variant(k)
        if refill:
            # .data, so that its version counter does not tell
            self.A.data.copy_(A)
        else:
            self.A = A
        self.where, self.before = spots(A), prints(self.A)
        return {}

    def call(self):
        """One call by the clock."""
        A, where = self.A, self.where
        try:
            found = self.clock(self.candidate, A, lambda r: pair(r, A)[0][where])
        except BaseException as error:
            return self._patched() or {"verdict": _kind(error)} | _told(error, self.folder)
        self.returned, self.glance, took = found
        return self._patched() or took._asdict()

    def look(self):
        """What is seen of the result that a call has returned; it is held from now on."""
        # what autograd would do with it is nobody's business here
        out = tuple(X.detach() for X in pair(self.returned, self.A))
        self.held.append(out)
        return {
            "overwritten": prints(self.A) != self.before,
            "where": [index.tolist() for index in self.where],
            "glance": self.glance.detach().cpu().numpy().tobytes().hex(),
            "memory": {name: _range(X) for name, X in zip(("A", "H", "tau"), (self.A, *out))},
        }

    def disagree(self, times):
        """What the two clocks in here say of each other."""
        return {"said": self.clock.disagree([clocks.Time(*each) for each in times])}

    def give(self, k, folder, size):
        """Write result k as it is now, and let it go."""
        try:
            for name, X in zip(("H", "tau"), self.held[k]):
                # tofile of NumPy says nothing of a disk that fills up with the last bytes
                (Path(folder) / name).write_bytes(X.contiguous().cpu().numpy())
        except OSError as error:
            return {"error": f"{folder} must have room for a result of {size} bytes: {error}"}
        self.held[k] = None
        return {}

    def profile(self, **asked):
        from qrlib.loop.profiler import profiled

        return profiled(self.candidate, self.device, **asked)

    def end(self):
        """Names of the threads that go on when all that is to be done at the end has been done."""
        # as Python ends: a pool lets its threads go, and then all others have their turn
        for let_go in reversed(getattr(threading, "_threading_atexits", ())):
            let_go()
        atexit._run_exitfuncs()
        return {"threads": self.threads.more()}

    def _patched(self):
        changed = self.watch.changed()
        if not changed:
            return None
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        return {"verdict": "patched", "message": f"it replaced {', '.join(changed[:3])}{more}"}


def _imported(path):
    folder = str(Path(path).parent)
    # as python would have it
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "custom_kernel", None)):
        raise AttributeError(
            "a candidate must have a function custom_kernel(data) -> (H, tau); "
            f"{Path(path).name} has none"
        )
    return module.custom_kernel


def _kind(error):
    """The verdict of what a call has raised."""
    if isinstance(error, Fault):
        return "malformed"
    said = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in said:
        return "out of memory"
    return "raised"


def _told(error, folder):
    """{"message"}: the error, and the last line in the candidate's folder on the way to it."""
    if isinstance(error, Fault):
        return {"message": str(error)[:LONGEST]}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(folder + os.sep)]
    at = f", at line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""
    said = " ".join(str(error).split())[:LONGEST]
    return {"message": f"{type(error).__name__}{': ' if said else ''}{said}{at}"}


def _range(X):
    """[first byte, first byte behind] of a tensor's memory."""
    if not X.numel():
        return [0, 0]
    last = sum((size - 1) * step for size, step in zip(X.shape, X.stride()))
    return [X.data_ptr(), X.data_ptr() + (last + 1) * X.element_size()]


def _addresses():
    """Bytes of addresses that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def main(requests, replies, device, sweep):
    # as they are now: a reply must leave whatever the candidate puts in their place
    write, getpid, leave, dumps, loads = os.write, os.getpid, os._exit, json.dumps, json.loads
    own, worker = os.getpid(), Worker(device, sweep)
    with os.fdopen(requests, encoding="utf-8") as asked:
        for line in asked:
            request = loads(line)
            name, nonce = request.pop("do"), request.pop("nonce")
            reply = getattr(worker, name)(**request) | {"nonce": nonce}
            if getpid() != own:
                # a copy of this process that the candidate has made and not ended
                leave(0)
            # half of a pair of surrogates is no text
            text = dumps(reply, ensure_ascii=False).encode(errors="replace") + b"\n"
            # a pipe takes as much as it has room for
            while text := text[write(replies, text) :]:
                pass
            if name == "end":
                # torch would take a second to take itself apart, and a thread for ever
                leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
