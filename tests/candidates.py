"""Candidates for the loop, and what has to become of each: a verdict, and a pattern of its message.

Those of CALLS do something in a call, and other calls may follow. One file has them all: its kernel
takes the k-th of them for k + 1 matrices. Those of FILES have a file of their own.
"""

HEAD = """import torch


def lapack(data):
    H, tau = torch.geqrf(data)
    return H.contiguous(), tau


custom_kernel = lapack
"""

# of its guard, whose arguments name the pipes; the second is what it speaks through
SPEAKS = """
import os, time
guard = os.getppid()
status = open(f"/proc/{{guard}}/cmdline").read().split("\\0")[5]
os.write(os.open(f"/proc/{{guard}}/fd/{{status}}", os.O_WRONLY), {said})
time.sleep(600)
"""

# {what: (body of a kernel, verdict, message)}
CALLS = {
    "calls LAPACK": ("return lapack(data)", "passed", "^$"),
    "prints a lot": (
        """
print("to stdout")
os.write(2, b"to stderr\\n")
print("x" * 100_000)
return lapack(data)
""",
        "passed",
        "^$",
    ),
    "returns two views of one buffer": (
        """
H, tau = lapack(data)
both = torch.cat([H.flatten(), tau.flatten()])
return both[: H.numel()].view(H.shape), both[H.numel() :].view(tau.shape)
""",
        "passed",
        "^$",
    ),
    "returns what autograd follows": (
        "return tuple(X.requires_grad_() for X in lapack(data))",
        "passed",
        "^$",
    ),
    "forks, and both go on": (
        "if 'pid' not in known:\n    known['pid'] = os.fork()\nreturn lapack(data)",
        "passed",
        "^$",
    ),
    "raises": ("raise ValueError('too\\nsmall')", "raised", r"^ValueError: too small, at line \d+"),
    "raises what is no text": (
        "raise ValueError('\\ud800')",
        "raised",
        r"^ValueError: \?, at line",
    ),
    "waits for an answer": ("input()", "raised", "^EOFError: .* of candidate.py$"),
    "would end the process": ("raise SystemExit", "raised", "^SystemExit, at line"),
    "returns one tensor": (
        "return lapack(data)[0]",
        "malformed",
        r"must return \(H, tau\); got Tensor",
    ),
    "returns another shape": (
        "H, tau = lapack(data)\nreturn H, tau[..., None]",
        "malformed",
        r"tau must be \[\d+, 12\] .*; got \[\d+, 12, 1\]",
    ),
    "returns another dtype": (
        "return lapack(data.double())",
        "malformed",
        "H must be .* torch.float32 on cpu; got .* torch.float64",
    ),
    "returns another device": (
        "return tuple(X.to('meta') for X in lapack(data))",
        "malformed",
        "H must be .* on cpu; got .* on meta",
    ),
    "returns A with tau = 0": (
        "return data.clone(), torch.zeros_like(data[:, 0])",
        "wrong",
        r"^factor [\d.e+]+, the limit is 20$",
    ),
    "returns NaN": (
        "H, tau = lapack(data)\nreturn H, tau * float('nan')",
        "wrong",
        "^H and tau must be finite; they have NaN or Inf",
    ),
    "remembers by the tensor": (
        """
key = data.data_ptr(), data._version
if key not in known:
    known[key] = lapack(data)
return tuple(X.clone() for X in known[key])
""",
        "wrong",
        "^on a tensor that holds other numbers than before, factor",
    ),
    "writes into its input": (
        "found = lapack(data)\ndata.zero_()\nreturn found",
        "overwrites",
        "the input must stay as it is; it was written into",
    ),
    "returns its input": (
        "return data, torch.zeros_like(data[:, 0])",
        "aliases",
        "H must have memory of its own; it shares some with the input",
    ),
    "returns one buffer every time": (
        """
found = lapack(data)
own = known.setdefault(data.shape, tuple(torch.empty_like(X) for X in found))
for X, Y in zip(own, found):
    X.copy_(Y)
return own
""",
        "aliases",
        "H must have memory of its own; it shares some with H of call 1",
    ),
    "returns tau in H": (
        "H, tau = lapack(data)\nreturn H, H[:, 0]",
        "aliases",
        "tau must have memory of its own; it shares some with H$",
    ),
    "finishes later": (
        """
H, tau = torch.empty_like(data), torch.empty_like(data[:, 0])
def finish():
    time.sleep(0.002)
    for X, Y in zip((H, tau), lapack(data.clone())):
        X.copy_(Y)
threading.Thread(target=finish).start()
return H, tau
""",
        "late",
        "it came later",
    ),
    "patches the clock for the time of a call": (
        """
begin = clock()
time.sleep(0.05)
def once():
    time.perf_counter = clock
    return begin
time.perf_counter = once
return lapack(data)
""",
        "clocks disagree",
        r"^a call took \d+ us by the candidate's clock, and \d{5} us by the judge's$",
    ),
    "eats memory": ("return torch.ones(1 << 33), data", "out of memory", "can't allocate memory"),
    "calls LAPACK after all of that": ("return lapack(data)", "passed", "^$"),
}

FILES = {
    "has no kernel": (
        "custom_kernel = None",
        "does not import",
        r"must have a function custom_kernel\(data\) -> \(H, tau\); candidate.py has none",
    ),
    "is no Python": (
        "def custom_kernel(data:",
        "does not import",
        r"^SyntaxError: .*\(candidate.py, line 11\)$",
    ),
    "patches events, torch.linalg and the judge": (
        """
import qrlib.certificate
def custom_kernel(data):
    torch.cuda.Event.elapsed_time = lambda self, other: 1e-3
    torch.linalg.solve = lambda A, B: B
    qrlib.certificate.residuals = lambda A, H, tau: 4 * (torch.zeros(len(A)),)
    return lapack(data)
""",
        "patched",
        "it replaced torch.linalg.solve, Event.elapsed_time, qrlib.certificate.residuals$",
    ),
    "patches clock and tensors": (
        "import time\ntime.perf_counter = lambda: 0.0\ntorch.Tensor.cpu = lambda self: self",
        "patched",
        "^it replaced time.perf_counter, Tensor.cpu$",
    ),
    "answers before it has begun": (
        """
import sys, time
def custom_kernel(data):
    with open(int(sys.argv[2]), "w") as judge:
        judge.write('{"us": 1.0, "late_us": 0.0, "host_us": 1.0}\\n')
    time.sleep(600)
""",
        "patched",
        "the line to the judge is the worker's; it wrote to it",
    ),
    "ends its process": (
        "import os\ndef custom_kernel(data):\n    print('so long')\n    os._exit(0)",
        "crashed",
        "ended with exit status 0 in the middle of a request",
    ),
    "is ended by a signal": (
        "import os\nos.kill(os.getpid(), 11)",
        "crashed",
        "its process was ended by SIGSEGV",
    ),
    "eats memory in its processes": (
        """
import os, time
def custom_kernel(data):
    for k in range(3):
        if not os.fork():
            held = bytearray(b"1") * (200 << 20)
            time.sleep(60)
    time.sleep(60)
""",
        "out of memory",
        "it must do with 384 MiB; it asked for more",
    ),
    "is ended by a signal without a name": (
        "import os\nos.kill(os.getpid(), 40)",
        "crashed",
        "its process was ended by signal 40",
    ),
    "answers with what cannot be read": (
        "import os, sys\nos.write(int(sys.argv[2]), b'[' * 50_000 + b'\\n')",
        "patched",
        "the line to the judge is the worker's; it wrote to it",
    ),
    "answers without an end": (
        "import os, sys\nwhile True:\n    os.write(int(sys.argv[2]), b'x' * 65_536)",
        "patched",
        "the line to the judge is the worker's; it wrote to it",
    ),
    "has the worker say that it has passed": (
        """
import sys
passed = {"verdict": "passed", "message": ""}
sys.modules["__main__"].Worker.call = lambda self: passed
""",
        "patched",
        "the line to the judge is the worker's; it wrote to it",
    ),
    "has the worker give times that are none": (
        """
import sys
times = {"us": float("nan"), "late_us": 0.0, "host_us": "fast"}
sys.modules["__main__"].Worker.call = lambda self: times
""",
        "patched",
        "the line to the judge is the worker's; it wrote to it",
    ),
    "removes the folder that it runs in": (
        """
import os, shutil
here = os.getcwd()
def custom_kernel(data):
    shutil.rmtree(here, ignore_errors=True)
    return lapack(data)
""",
        "patched",
        "the folder that it runs in must stay; it was removed",
    ),
    "has a pipe where its result should be": (
        """
import os, sys
sys.modules["__main__"].Worker.give = lambda self, k, folder, size: os.mkfifo(folder + "/H") or {}
""",
        "patched",
        "H must leave as it is; its file was changed",
    ),
    "replaces what a reply leaves by": (
        "import os\nos.write = lambda fd, text: len(text)",
        "patched",
        "^it replaced os.write$",
    ),
    "has the worker say that there is no room for its result": (
        """
import sys
error = {"error": "a disk is full"}
sys.modules["__main__"].Worker.give = lambda self, **asked: error
""",
        "patched",
        "results must leave as they are; its process had no way out for one: a disk is full",
    ),
    "prints without an end": (
        "def custom_kernel(data):\n    while True:\n        print('x' * 10_000)",
        "floods",
        "at most 16 MiB may be printed; it went on and on",
    ),
    "ends, and what it has begun prints without an end": (
        """
import os
def custom_kernel(data):
    if not os.fork():
        while True:
            os.write(1, b"x" * 10_000)
    os._exit(3)
""",
        "crashed",
        "ended with exit status 3 in the middle of a request",
    ),
    "ends the process that looks after it": (
        "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(600)",
        "crashed",
        "its process was ended by SIGKILL",
    ),
    "says half of a word in the place of its guard": (
        SPEAKS.format(said=b"1"),
        "patched",
        "^what its guard says to the judge is the guard's to say; it wrote there$",
    ),
    "says what is no number in the place of its guard": (
        SPEAKS.format(said=b"well\n"),
        "patched",
        "^what its guard says to the judge is the guard's to say; it wrote there$",
    ),
    "stops its guard, has a pool and no output, and spoils results that have left": (
        """
import gc, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
os.kill(os.getppid(), signal.SIGSTOP)
out, sys.stdout = sys.stdout, None
mine = []
def spoil():
    (worker,) = (each for each in gc.get_objects() if type(each).__name__ == "Worker")
    while len(worker.held) < 2 or any(worker.held):
        time.sleep(0.001)
    for X in sum(mine[:2], ()):
        X.zero_()
    print("spoiled", file=out)
def custom_kernel(data):
    mine.append(pool.submit(lapack, data).result())
    if len(mine) == 1:
        threading.Thread(target=spoil, daemon=True).start()
    return mine[-1]
""",
        "passed",
        "^$",
    ),
    "waits for ever": (
        "import time\ndef custom_kernel(data):\n    time.sleep(1e6)",
        "hung",
        r"the answer must come within 2 s; it did not come, and it computed for 0\.\d s",
    ),
    "ignores signals and computes for ever": (
        """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
""",
        "timed out",
        "the answer must come within 2 s; it did not come, and it was computing",
    ),
    "leaves a process that does not know where it is from": (
        """
import subprocess
shell = ["sh", "-c", "sleep 600 & echo"]
subprocess.run(shell, env={"PATH": "/bin:/usr/bin"}, start_new_session=True)
""",
        "leaves processes",
        r"what went on: sleep \d+$",
    ),
    "leaves a process outside its group whose name is no text, and threads": (
        """
import _thread, ctypes, os, threading, time
if not os.fork():
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"\\xff")
    time.sleep(600)
    os._exit(0)
threading.Thread(target=time.sleep, args=(600,), name="sleeper").start()
threading.Thread(target=time.sleep, args=(600,), name="daemon", daemon=True).start()
_thread.start_new_thread(time.sleep, (600,))
""",
        "leaves processes",
        r"^all of it must have ended 1 s after .*; what went on: \ufffd \d+, thread sleeper, "
        "thread daemon, a thread without a name$",
    ),
}

# begins three processes, and each of the four makes a file of its number
LEAVES = """
import os, subprocess, time
def here():
    open(f"{folder}/{{os.getpid()}}", "w").close()
    while True:
        time.sleep(1)
shell = ["sh", "-c", "(exec sh -c 'touch {folder}/$$; exec sleep 600') & echo"]
subprocess.run(shell, env={{"PATH": "/bin:/usr/bin"}}, start_new_session=True)
if not os.fork():
    here()
if not os.fork():
    os.setsid()
    if not os.fork():
        here()
    os._exit(0)
here()
"""


def one_file():
    """The file of all CALLS; some of them need what is above them here."""
    bodies = [body.strip().replace("\n", "\n    ") for body, _, _ in CALLS.values()]
    kernels = "".join(
        f"\n\ndef kernel_{k}(data):\n    {body}\n" for k, body in enumerate(bodies)
    )  # fmt: skip
    return f"""{HEAD}
import os, threading, time, torch._dynamo

known, clock = {{}}, time.perf_counter
{kernels}

def custom_kernel(data):
    return globals()[f"kernel_{{len(data) - 1}}"](data)
"""
