"""What this machine can run, and the fix for what is missing: python -m qrlib.doctor.

Nothing heavy is imported before `report` is called, nothing is fetched, and nothing raises: a part
that cannot be looked at is reported as such. A lane that is said to run was tried.
"""

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from qrlib import __version__

PYTHON = (3, 11)
NUMPY = (1, 26)
TORCH = (2, 9)
# first supported, first not
TRITON = (3, 6), (3, 10)

VENV = "no virtual environment; before pip: python3 -m venv .venv && . .venv/bin/activate"
TRITON_PIP = 'pip install "triton>=3.6,<3.10"'
# of NumPy 2.4, where the interpreter of Triton 3.6 takes a loop's bound out of an array of one
NO_LOOPS = "only 0-dimensional arrays can be converted"
NO_LOOPS_FIX = (
    "Triton 3.6 interprets no loop to a run-time bound with NumPy 2.4 or newer; "
    'pip install "triton>=3.7,<3.10", or, if torch wants Triton 3.6, pip install "numpy<2.4"'
)
ELSEWHERE = {
    "Darwin": "Triton is not made for macOS; run this part in a Linux container, on a Linux "
    "machine, or in Google Colab",
    "Windows": "Triton is not made for Windows; run this part in WSL2 (wsl --install, then the "
    "commands for Linux), on a Linux machine, or in Google Colab",
}
GPU_ELSEWHERE = (
    "the pages show stored results; to measure, use a Linux machine with an NVIDIA GPU, "
    "or Google Colab (Runtime > Change runtime type > T4 GPU)"
)

# the 3 x 3 example of the book, and what stands on the diagonal of its R up to signs
EXAMPLE = [[12, -51, 4], [6, 167, -68], [-4, 24, -41]]
EXAMPLE_R = [14, 175, 35]

# compiled first, run last: the interpreter leaves the language patched
PROBE = """
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

@triton.jit
def double(X, n, N: tl.constexpr):
    # a loop to a bound that is known at run time, as the stages have
    for i in range(n):
        at = X + i * N + tl.arange(0, N)
        tl.store(at, 2 * tl.load(at))

def attempt(what, action):
    try:
        action()
        print(what, "ok")
    except Exception as error:
        print(what, "failed", type(error).__name__, str(error).replace(chr(10), " ")[:200])

def compiled(capability):
    signature = {"X": "*fp32", "n": "i32", "N": "constexpr"}
    source = ASTSource(JITFunction(double.fn), signature, {"N": 16})
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(kernel.asm["cubin"]) > 0

def run(device):
    x = torch.arange(32.0, device=device)
    double[(1,)](x, 2, N=16)
    assert x.tolist() == [2.0 * i for i in range(32)], x

def main(interpreted):
    if interpreted:
        attempt("sm_90a", lambda: compiled(90))
        attempt("sm_100a", lambda: compiled(100))
        attempt("interpreter", lambda: run("cpu"))
    else:
        attempt("gpu", lambda: run("cuda"))
"""


@dataclass(frozen=True)
class Check:
    """Something looked for: what was found, whether it will do, and the command if it will not."""

    name: str
    found: str
    ok: bool
    fix: str = ""


@dataclass(frozen=True)
class Lane:
    """A way to use the project: whether it runs here; how that was seen, or what to do."""

    name: str
    runs: bool
    note: str


@dataclass(frozen=True)
class Report:
    """All checks and lanes; prints itself. exit_code: 0 when stage s01 runs, 1 otherwise."""

    system: str
    checks: tuple[Check, ...]
    lanes: tuple[Lane, ...]

    @property
    def exit_code(self):
        return 0 if any(lane.runs for lane in self.lanes if lane.name == S01) else 1

    def __str__(self):
        lines = [self.system, "", "Found"]
        for check in self.checks:
            lines.append(f"  {'ok' if check.ok else '--':<4}{check.name:<14}{check.found}")
        lines += ["", "Lanes"]
        for lane in self.lanes:
            lines.append(f"  {'runs' if lane.runs else 'no':<6}{lane.name:<44}{lane.note}")
        fixes = [f"  {check.name:<14}{check.fix}" for check in self.checks if check.fix]
        if fixes:
            lines += ["", "To have more", *fixes]
        return "\n".join(lines)


READ, LABS = "read the book", "run the labs (Jupyter)"
S01, S02_S04 = "stage s01 (CPU, NumPy only)", "stages s02 to s04 (CPU, torch)"
INTERPRETER = "Triton kernels, interpreted (CPU)"
COMPILE = "compile for sm_90a and sm_100a (no GPU)"
GPU = "run on the GPU"


def report():
    """Look at this machine.

    Returns:
        Report, which prints itself.

    Cost: seconds; torch and Triton are imported, a small kernel is compiled twice and run.
    """
    system = platform.system()
    python = _python()
    numpy, np = _module("NumPy", "numpy", NUMPY, "pip install numpy")
    gpus = _nvidia_smi()
    torch_check, torch = _module("torch", "torch", TORCH, _torch_pip(system, bool(gpus)))
    triton_check, triton = _triton(system)
    try:
        gpu = _gpu(torch, gpus)
    except Exception as error:
        gpu = Check("GPU", f"could not be looked at: {_say(error)}", False, GPU_ELSEWHERE)
    notebook = [_distribution(name, pip) for name, pip in _NOTEBOOK.items()]
    checks = (python, numpy, _with_build(torch_check, torch), triton_check, gpu, *notebook)

    tried = _probe(interpreted=True) if torch and triton else {}
    on_gpu = _probe(interpreted=False) if torch and triton and gpu.ok else {}
    book, lab, widgets = notebook
    lanes = (
        Lane(READ, True, _read_note(system, book)),
        _labs_lane(lab, widgets),
        _example_lane(S01, ["s01_mirror"], np and (lambda A: np.array(A, np.float32)), numpy),
        _example_lane(
            S02_S04,
            ["s02_unblocked", "s03_blocked", "s04_recursive"],
            torch and (lambda A: torch.tensor(A, dtype=torch.float32)),
            torch_check,
        ),
        _probed_lane(INTERPRETER, ["interpreter"], tried, [torch_check, triton_check]),
        _probed_lane(COMPILE, ["sm_90a", "sm_100a"], tried, [torch_check, triton_check]),
        _gpu_lane(torch, gpu, on_gpu, triton_check),
    )
    return Report(f"qrlib {__version__} on {system} {platform.machine()}", checks, lanes)


def _say(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:160]


def _version(text):
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _dotted(version):
    return ".".join(map(str, version))


def _python():
    have, needs = sys.version_info[:3], _dotted(PYTHON)
    if have < PYTHON:
        fix = f"install Python {needs} or newer, then: python{needs} -m venv .venv"
        return Check("Python", f"{_dotted(have)}, {needs} or newer is needed", False, fix)
    inside = "in a virtual environment" if sys.prefix != sys.base_prefix else VENV
    return Check("Python", f"{_dotted(have)}, {inside}", True)


def _module(name, module, needs, pip):
    """(Check, module): imported, for only then is it known to work; None where it does not."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if (missing.name or module) == module:
            return Check(name, "not installed", False, pip), None
        fix = f"pip install {missing.name}"
        return Check(name, f"needs {missing.name}, which is not installed", False, fix), None
    except Exception as error:
        fix = pip.replace("pip install", "pip install --force-reinstall", 1)
        return Check(name, f"installed, but does not import: {_say(error)}", False, fix), None
    version = str(getattr(found, "__version__", "0"))
    if _version(version) < needs:
        fix = pip.replace("pip install", "pip install --upgrade", 1)
        return Check(name, f"{version}, {_dotted(needs)} or newer is needed", False, fix), None
    return Check(name, version, True), found


def _torch_pip(system, nvidia):
    if system == "Linux" and not nvidia:
        # without it Linux gets the build for CUDA, which is some gigabytes larger
        return "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    return "pip install torch"


def _with_build(check, torch):
    if torch is None:
        return check
    return Check(check.name, f"{check.found} ({_build(torch)})", check.ok, check.fix)


def _build(torch):
    version = getattr(torch, "version", None)
    if getattr(version, "hip", None):
        return f"built for ROCm {version.hip}"
    cuda = getattr(version, "cuda", None)
    return f"built for CUDA {cuda}" if cuda else "CPU build"


def _triton(system):
    if system in ELSEWHERE:
        name = "macOS" if system == "Darwin" else system
        return Check("triton", f"not made for {name}", False, ELSEWHERE[system]), None
    first, last = TRITON
    check, triton = _module("triton", "triton", first, TRITON_PIP)
    if triton is not None and _version(check.found) >= last:
        found = f"{check.found}; tried are {_dotted(first)} to {last[0]}.{last[1] - 1}"
        return Check("triton", found, False, TRITON_PIP), None
    return check, triton


def _nvidia_smi():
    """[(name, driver)] of the NVIDIA GPUs that the driver's own tool sees, torch or no torch."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except Exception:
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [tuple(map(str.strip, line.split(",", 1))) for line in lines if "," in line]


def _gpu(torch, seen):
    """The GPU that torch can use; if there is none, why."""
    if torch is not None:
        with warnings.catch_warnings(record=True) as said:
            # torch warns of a driver that is too old, and answers False
            warnings.simplefilter("always")
            usable = torch.cuda.is_available()
        if usable:
            return Check("GPU", _describe(torch, seen), True)
    if not seen:
        return Check("GPU", "no NVIDIA GPU", False, GPU_ELSEWHERE)
    name, driver = seen[0]
    if torch is None:
        return Check(
            "GPU", f"{name}, driver {driver}; torch is missing", False, "pip install torch"
        )
    if not getattr(torch.version, "cuda", None):
        fix = "pip install --force-reinstall torch"
        if platform.system() == "Windows":
            fix = ELSEWHERE["Windows"]
        return Check("GPU", f"{name}, driver {driver}; this torch is the CPU build", False, fix)
    why = _say(said[0].message) if said else "torch cannot use it"
    fix = f"update the NVIDIA driver to one for CUDA {torch.version.cuda} or newer"
    return Check("GPU", f"{name}, driver {driver}; {why}", False, fix)


def _describe(torch, seen):
    name = torch.cuda.get_device_name(0)
    if getattr(torch.version, "hip", None):
        return f"{name} (ROCm; nothing here has been tried on it)"
    capability = _dotted(torch.cuda.get_device_capability(0))
    driver = f", driver {seen[0][1]}" if seen else ""
    return f"{name}, compute capability {capability}{driver}, torch {_build(torch)}"


_NOTEBOOK = {
    "jupyter-book": "pip install jupyter-book==1.0.4.post1",
    "jupyterlab": "pip install jupyterlab",
    "ipywidgets": "pip install ipywidgets",
}


def _distribution(name, pip):
    try:
        version = importlib.metadata.version(name)
    except Exception:
        return Check(name, "not installed", False, pip)
    if name == "jupyter-book" and _version(version) >= (2, 0):
        return Check(name, f"{version}; version 2 does not read this book", False, pip)
    return Check(name, version, True)


def _read_note(system, book):
    if system == "Windows":
        return "any browser; make book builds it in WSL2"
    if book.ok:
        return "any browser; make book builds it, make serve opens it"
    return "any browser; make book installs what is missing and builds it"


def _labs_lane(lab, widgets):
    # every kernel has this name in its environment: of JupyterLab, and of a host that lacks it
    if not lab.ok and "JPY_PARENT_PID" in os.environ:
        return _lane(LABS, widgets.ok, "in the notebook that asks", [widgets])
    return _lane(LABS, lab.ok and widgets.ok, "jupyter lab notebooks", [lab, widgets])


def _lane(name, runs, note, checks):
    return Lane(name, runs, note if runs else _missing(checks))


def _missing(checks):
    missing = [check for check in checks if not check.ok]
    return "; ".join(f"{check.name}: {check.found}" for check in missing)


def _example_lane(name, stages, to_array, check):
    """The 3 x 3 example through the stages."""
    if not to_array:
        return Lane(name, False, _missing([check]))
    try:
        from qrlib.stages import stage

        for each in stages:
            H = stage(each).geqrf(to_array([EXAMPLE])).H[0]
            diagonal = [abs(float(H[j, j])) for j in range(3)]
            if any(abs(x - r) > 1e-3 * r for x, r in zip(diagonal, EXAMPLE_R)):
                return Lane(name, False, f"{each} gave {diagonal}, not {EXAMPLE_R}")
    except Exception as error:
        return Lane(name, False, f"failed: {_say(error)}")
    shown = ", ".join(map(str, EXAMPLE_R))
    return Lane(name, True, f"tried: the 3 x 3 example has {shown} on the diagonal of R")


def _probe(interpreted):
    """{what: "" or what went wrong}, from a process of its own: a crash stays there."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "probe.py").write_text(PROBE)
            environment = os.environ | {"TRITON_CACHE_DIR": folder}
            environment.pop("TRITON_INTERPRET", None)
            if interpreted:
                environment["TRITON_INTERPRET"] = "1"
            done = subprocess.run(
                [sys.executable, "-c", f"import probe; probe.main({interpreted})"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=180,
            )
    except Exception as error:
        return {"": _say(error)}
    outcomes = re.findall(r"^(\w+) (ok|failed)(.*)$", done.stdout, re.MULTILINE)
    tried = {what: "" if outcome == "ok" else why.strip() for what, outcome, why in outcomes}
    if not tried:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        tried[""] = f"exit status {done.returncode}: {last[:160]}"
    return tried


def _probed_lane(name, wanted, tried, checks):
    if not all(check.ok for check in checks):
        return Lane(name, False, _missing(checks))
    faults = [tried.get(what, tried.get("", "did not finish")) for what in wanted]
    if any(NO_LOOPS in fault for fault in faults):
        return Lane(name, False, NO_LOOPS_FIX)
    if any(faults):
        return Lane(name, False, "failed: " + "; ".join(filter(None, faults)))
    return Lane(name, True, "tried: a small kernel with a loop")


def _gpu_lane(torch, gpu, tried, triton_check):
    if not gpu.ok:
        return Lane(GPU, False, gpu.found)
    lane = _example_lane(
        GPU,
        ["s02_unblocked", "s03_blocked", "s04_recursive"],
        lambda A: torch.tensor(A, dtype=torch.float32, device="cuda"),
        gpu,
    )
    if not lane.runs:
        return lane
    if not triton_check.ok:
        return Lane(GPU, True, f"tried: stages s02 to s04; for Triton: {triton_check.fix}")
    fault = tried.get("gpu", tried.get("", "did not finish"))
    if fault:
        return Lane(GPU, True, f"tried: stages s02 to s04; a Triton kernel failed: {fault}")
    return Lane(GPU, True, "tried: stages s02 to s04 and a Triton kernel")


def main():
    found = report()
    print(found)
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
