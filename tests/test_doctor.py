"""The doctor here, and on machines that lack something: what it says, and the command it gives."""

import importlib
import importlib.metadata
import platform
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from qrlib import doctor

ROOT = Path(__file__).parent.parent
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


@pytest.fixture
def machine(monkeypatch):
    """A Linux machine with everything but a GPU, to take things away from. Nothing is compiled."""
    return Machine(monkeypatch)


class Machine:
    def __init__(self, monkeypatch):
        self.patch = monkeypatch
        # no notebook runs these tests
        monkeypatch.delenv("JPY_PARENT_PID", raising=False)
        self.gpus = []
        monkeypatch.setattr(doctor, "_probe", self.probe)
        monkeypatch.setattr(doctor, "_nvidia_smi", lambda: self.gpus)
        self.system("Linux", "x86_64")
        self.modules = {"triton": SimpleNamespace(__version__="3.7.1")}
        self.versions = {
            "jupyter-book": "1.0.4.post1",
            "jupyterlab": "4.6.6",
            "ipywidgets": "8.1.9",
        }
        imports, find = importlib.import_module, importlib.metadata.version
        monkeypatch.setattr(
            importlib, "import_module", lambda name: self.found(name, self.modules, imports)
        )
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: self.found(name, self.versions, find)
        )

    @staticmethod
    def found(name, table, real):
        what = table.get(name) or real(name)
        if isinstance(what, Exception):
            raise what
        return what

    def probe(self, interpreted):
        return dict.fromkeys(("interpreter", "sm_90a", "sm_100a") if interpreted else ("gpu",), "")

    def system(self, name, processor):
        self.patch.setattr(platform, "system", lambda: name)
        self.patch.setattr(platform, "machine", lambda: processor)

    def lacks(self, name):
        self.modules[name] = ModuleNotFoundError(f"No module named {name!r}", name=name)
        self.versions[name] = importlib.metadata.PackageNotFoundError(name)

    def report(self):
        report = doctor.report()
        return report, {check.name: check for check in report.checks}, _runs(report)


def _runs(report):
    return {lane.name: lane.runs for lane in report.lanes}


def _note(report, name):
    return next(lane.note for lane in report.lanes if lane.name == name)


def fake_torch(**changes):
    import torch

    given = {
        "__version__": torch.__version__,
        "tensor": torch.tensor,
        "float32": torch.float32,
        "version": SimpleNamespace(cuda=None, hip=None),
        "cuda": SimpleNamespace(is_available=lambda: False),
    }
    return SimpleNamespace(**given | changes)


def test_this_machine():
    """Nothing is simulated: kernels are compiled and interpreted where Triton is installed."""
    report = doctor.report()
    runs = _runs(report)
    assert report.exit_code == 0
    assert runs[doctor.S01] and runs[doctor.S02_S04]
    triton = next(check for check in report.checks if check.name == "triton")
    assert runs[doctor.COMPILE] == triton.ok, report
    no_loops = _note(report, doctor.INTERPRETER) == doctor.NO_LOOPS_FIX
    assert runs[doctor.INTERPRETER] == (triton.ok and not no_loops), report
    assert "14, 175, 35" in str(report)


def test_everything_but_a_gpu(machine):
    report, checks, runs = machine.report()
    assert [check.name for check in report.checks if not check.ok] == ["GPU"]
    assert [lane for lane, running in runs.items() if not running] == [doctor.GPU]
    assert "Colab" in checks["GPU"].fix
    assert str(report).count("Colab") == 1


def test_no_torch_leaves_the_numpy_lane(machine):
    machine.lacks("torch")
    report, checks, runs = machine.report()
    assert report.exit_code == 0
    assert runs[doctor.READ] and runs[doctor.S01]
    assert not runs[doctor.S02_S04] and not runs[doctor.INTERPRETER] and not runs[doctor.COMPILE]
    assert _note(report, doctor.S02_S04) == "torch: not installed"
    assert checks["torch"].fix == CPU_TORCH
    assert CPU_TORCH in str(report)


@pytest.mark.parametrize(
    ("system", "gpus", "fix"),
    [
        ("Linux", [], CPU_TORCH),
        ("Linux", [("NVIDIA H200", "580.1")], "pip install torch"),
        ("Darwin", [], "pip install torch"),
        ("Windows", [], "pip install torch"),
    ],
)
def test_the_torch_to_install(machine, system, gpus, fix):
    machine.lacks("torch")
    machine.system(system, "x86_64")
    machine.gpus = gpus
    assert machine.report()[1]["torch"].fix == fix


def test_no_numpy_is_the_end(machine):
    machine.lacks("numpy")
    report, checks, runs = machine.report()
    assert report.exit_code == 1
    assert checks["NumPy"].fix == "pip install numpy"
    assert _note(report, doctor.S01) == "NumPy: not installed"
    assert runs[doctor.READ] and not runs[doctor.S01]


@pytest.mark.parametrize(
    ("module", "name", "old", "fix"),
    [
        ("numpy", "NumPy", "1.25.2", "pip install --upgrade numpy"),
        ("torch", "torch", "2.8.0", CPU_TORCH.replace("install", "install --upgrade", 1)),
        ("triton", "triton", "3.5.1", 'pip install --upgrade "triton>=3.6,<3.10"'),
    ],
)
def test_too_old(machine, module, name, old, fix):
    machine.modules[module] = SimpleNamespace(__version__=old)
    report, checks, _ = machine.report()
    assert not checks[name].ok
    assert old in checks[name].found
    assert checks[name].fix == fix and fix in str(report)


def test_triton_missing_and_too_new(machine):
    for module in (ModuleNotFoundError(name="triton"), SimpleNamespace(__version__="3.10.0")):
        machine.modules["triton"] = module
        report, checks, runs = machine.report()
        assert checks["triton"].fix == 'pip install "triton>=3.6,<3.10"'
        assert runs[doctor.S02_S04]
        assert not runs[doctor.INTERPRETER] and not runs[doctor.COMPILE]
        assert checks["triton"].found in _note(report, doctor.INTERPRETER)


def test_torch_that_does_not_import(machine):
    machine.modules["torch"] = OSError("libcudart.so.13: cannot open shared object file")
    report, checks, runs = machine.report()
    assert "does not import: OSError: libcudart" in checks["torch"].found
    assert checks["torch"].fix == CPU_TORCH.replace("install", "install --force-reinstall", 1)
    assert report.exit_code == 0 and not runs[doctor.S02_S04]


def test_torch_that_lacks_something_itself(machine):
    machine.modules["torch"] = ModuleNotFoundError(name="sympy")
    assert machine.report()[1]["torch"].fix == "pip install sympy"


@pytest.mark.parametrize(
    ("system", "processor", "where"),
    [("Darwin", "arm64", "Linux container"), ("Windows", "AMD64", "wsl --install")],
)
def test_mac_and_windows(machine, system, processor, where):
    machine.system(system, processor)
    report, checks, runs = machine.report()
    assert runs[doctor.S01] and runs[doctor.S02_S04] and runs[doctor.READ] and runs[doctor.LABS]
    assert not runs[doctor.INTERPRETER] and not runs[doctor.COMPILE] and not runs[doctor.GPU]
    assert where in checks["triton"].fix and "Colab" in checks["triton"].fix
    assert "not made for" in _note(report, doctor.COMPILE)
    assert ("WSL2" in _note(report, doctor.READ)) == (system == "Windows")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("jupyterlab", "pip install jupyterlab"),
        ("ipywidgets", "pip install ipywidgets"),
        ("jupyter-book", "pip install jupyter-book==1.0.4.post1"),
    ],
)
def test_notebook_packages(machine, name, fix):
    machine.lacks(name)
    report, checks, runs = machine.report()
    assert (checks[name].found, checks[name].fix) == ("not installed", fix)
    assert runs[doctor.READ]
    assert runs[doctor.LABS] == (name == "jupyter-book")
    assert report.exit_code == 0


def test_a_notebook_of_a_host_needs_no_jupyterlab(machine):
    machine.patch.setenv("JPY_PARENT_PID", "1")
    machine.lacks("jupyterlab")
    report, _, runs = machine.report()
    assert runs[doctor.LABS] and _note(report, doctor.LABS) == "in the notebook that asks"
    machine.lacks("ipywidgets")
    report, _, runs = machine.report()
    assert not runs[doctor.LABS] and _note(report, doctor.LABS) == "ipywidgets: not installed"


def test_the_other_jupyter_book(machine):
    machine.versions["jupyter-book"] = "2.1.0"
    _, checks, _ = machine.report()
    assert "does not read this book" in checks["jupyter-book"].found
    assert checks["jupyter-book"].fix == "pip install jupyter-book==1.0.4.post1"


def test_gpu_with_the_cpu_build(machine):
    machine.gpus = [("NVIDIA H200", "580.1")]
    machine.modules["torch"] = fake_torch()
    report, checks, runs = machine.report()
    assert checks["GPU"].found == "NVIDIA H200, driver 580.1; this torch is the CPU build"
    assert checks["GPU"].fix == "pip install --force-reinstall torch"
    assert not runs[doctor.GPU] and runs[doctor.S02_S04]

    machine.system("Windows", "AMD64")
    assert "WSL2" in machine.report()[1]["GPU"].fix


def test_gpu_with_an_old_driver(machine):
    def too_old():
        warnings.warn(
            "The NVIDIA driver on your system is too old (found version 11040).", stacklevel=2
        )
        return False

    machine.gpus = [("Tesla T4", "470.1")]
    machine.modules["torch"] = fake_torch(
        version=SimpleNamespace(cuda="13.0", hip=None), cuda=SimpleNamespace(is_available=too_old)
    )
    _, checks, _ = machine.report()
    assert "Tesla T4, driver 470.1" in checks["GPU"].found and "too old" in checks["GPU"].found
    assert checks["GPU"].fix == "update the NVIDIA driver to one for CUDA 13.0 or newer"
    assert checks["torch"].found.endswith("(built for CUDA 13.0)")


def cuda_torch(tensor):
    return fake_torch(
        tensor=tensor,
        version=SimpleNamespace(cuda="13.0", hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            get_device_name=lambda i: "NVIDIA H200",
            get_device_capability=lambda i: (9, 0),
        ),
    )


def test_gpu_that_runs(machine):
    import torch

    machine.gpus = [("NVIDIA H200", "580.1")]
    # a CUDA device that this machine need not have: the lane is what is tested here
    machine.modules["torch"] = cuda_torch(
        lambda A, dtype, device="cpu": torch.tensor(A, dtype=dtype)
    )
    report, checks, runs = machine.report()
    found = "NVIDIA H200, compute capability 9.0, driver 580.1, torch built for CUDA 13.0"
    assert (checks["GPU"].found, checks["GPU"].ok) == (found, True)
    assert runs[doctor.GPU]
    assert _note(report, doctor.GPU) == "tried: stages s02 to s04 and a Triton kernel"

    machine.patch.setattr(doctor, "_probe", lambda interpreted: {"gpu": "PTXASError no ptxas"})
    report, _, runs = machine.report()
    assert runs[doctor.GPU] and "a Triton kernel failed: PTXASError" in _note(report, doctor.GPU)

    machine.lacks("triton")
    report, _, runs = machine.report()
    assert runs[doctor.GPU] and doctor.TRITON_PIP in _note(report, doctor.GPU)


def test_gpu_that_fails(machine):
    import torch

    def out_of_order(A, dtype, device="cpu"):
        if device == "cuda":
            raise RuntimeError("CUDA error: unspecified launch failure")
        return torch.tensor(A, dtype=dtype)

    machine.modules["torch"] = cuda_torch(out_of_order)
    report, _, runs = machine.report()
    assert not runs[doctor.GPU] and "unspecified launch failure" in _note(report, doctor.GPU)
    assert runs[doctor.S02_S04]


def test_a_stage_that_is_wrong_does_not_run(machine):
    from qrlib import stages

    wrong = SimpleNamespace(geqrf=lambda A: SimpleNamespace(H=A))
    machine.patch.setattr(stages, "stage", lambda name: wrong)
    report, _, runs = machine.report()
    assert report.exit_code == 1 and not runs[doctor.S01]
    assert "s01_mirror gave [12.0, 167.0, 41.0], not [14, 175, 35]" in _note(report, doctor.S01)


def test_python_too_old(machine):
    machine.patch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    _, checks, _ = machine.report()
    assert not checks["Python"].ok
    assert "python3.11 -m venv .venv" in checks["Python"].fix


def test_a_virtual_environment_is_proposed(machine):
    machine.patch.setattr(sys, "prefix", sys.base_prefix)
    assert "python3 -m venv .venv" in machine.report()[1]["Python"].found
    machine.patch.setattr(sys, "prefix", "/elsewhere")
    assert "in a virtual environment" in machine.report()[1]["Python"].found


def test_never_raises(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("broken\nover two lines")

    monkeypatch.setattr(importlib, "import_module", broken)
    monkeypatch.setattr(importlib.metadata, "version", broken)
    monkeypatch.setattr(subprocess, "run", broken)
    report = doctor.report()
    assert report.exit_code == 1
    assert "RuntimeError: broken over two lines" in str(report)


def test_a_gpu_that_cannot_be_looked_at(machine):
    def broken():
        raise RuntimeError("no answer")

    machine.modules["torch"] = fake_torch(cuda=SimpleNamespace(is_available=broken))
    report, checks, _ = machine.report()
    assert checks["GPU"].found == "could not be looked at: RuntimeError: no answer"
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("probe", "note"),
    [
        ("import os; os._exit(9)", "failed: exit status 9: no output"),
        ("import nothing_of_that_name", "failed: exit status 1: ModuleNotFoundError"),
        ("def main(interpreted): print('noise'); print('sm_90a ok')", "failed: did not finish"),
        (
            "def main(interpreted): print('sm_90a ok'); print('sm_100a failed no ptxas')",
            "failed: no ptxas",
        ),
        (
            "def main(interpreted): print('sm_90a ok'); print('sm_100a ok')",
            "tried: a small kernel with a loop",
        ),
    ],
)
def test_a_probe_that_dies_takes_nothing_with_it(monkeypatch, probe, note):
    monkeypatch.setattr(doctor, "PROBE", probe)
    lane = doctor._probed_lane(doctor.COMPILE, ["sm_90a", "sm_100a"], doctor._probe(True), [])
    assert lane.note.startswith(note)
    assert lane.runs == note.startswith("tried")


def test_an_interpreter_without_loops_names_both_ways_out(monkeypatch):
    """Triton 3.6 with NumPy 2.4: a loop's bound does not convert, and is made not to here."""
    pytest.importorskip("triton")
    no_loops = """
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor

def patch_as_triton_3_6(tensor, scope):
    patch(tensor, scope)
    tensor.__index__ = as_numpy_2_4_does

def as_numpy_2_4_does(self):
    raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

interpreter._patch_lang_tensor = patch_as_triton_3_6
"""
    monkeypatch.setattr(doctor, "PROBE", doctor.PROBE + no_loops)
    report = doctor.report()
    assert not _runs(report)[doctor.INTERPRETER] and _runs(report)[doctor.COMPILE]
    note = _note(report, doctor.INTERPRETER)
    assert 'pip install "triton>=3.7,<3.10"' in note and 'pip install "numpy<2.4"' in note
    assert note in str(report)


@pytest.mark.parametrize("interpreted", (False, True))
def test_a_probe_is_interpreted_only_when_asked(monkeypatch, interpreted):
    said = (
        "import os\ndef main(interpreted): print(f'mode{os.environ.get(\"TRITON_INTERPRET\")} ok')"
    )
    monkeypatch.setattr(doctor, "PROBE", said)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert doctor._probe(interpreted) == {f"mode{'1' if interpreted else None}": ""}


def test_nvidia_smi(monkeypatch):
    def answer(stdout, returncode=0):
        done = SimpleNamespace(stdout=stdout, returncode=returncode)
        monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
        return doctor._nvidia_smi()

    assert answer("NVIDIA H200, 580.1\nTesla T4, 580.1\n") == [
        ("NVIDIA H200", "580.1"),
        ("Tesla T4", "580.1"),
    ]
    assert answer("No devices were found\n") == []
    assert answer("NVIDIA H200, 580.1\n", returncode=9) == []


def test_main(machine, capsys):
    assert doctor.main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("qrlib ") and "Lanes" in printed
    machine.lacks("numpy")
    assert doctor.main() == 1


def test_the_ranges_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = " ".join([*project["dependencies"], *extras["torch"], *extras["triton"]])
    for name, version in (("numpy", doctor.NUMPY), ("torch", doctor.TORCH)):
        assert f"{name}>={doctor._dotted(version)}" in wanted
    assert f"triton>={doctor._dotted(doctor.TRITON[0])}" in wanted
    assert project["requires-python"] == f">={doctor._dotted(doctor.PYTHON)}"
    book = next(line for line in extras["book"] if line.startswith("jupyter-book"))
    assert doctor._NOTEBOOK["jupyter-book"] == f"pip install {book}"
    first, last = (doctor._dotted(version) for version in doctor.TRITON)
    assert re.search(rf'"triton>={re.escape(first)},<{re.escape(last)}"', doctor.TRITON_PIP)


def test_importing_the_doctor_is_light():
    code = "import qrlib.doctor, sys; assert not {'numpy', 'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
