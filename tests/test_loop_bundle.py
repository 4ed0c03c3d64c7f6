"""One file is the stage: alone in an empty folder, bit by bit, and kernel by kernel for a GPU."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import qrlib
from qrlib import matrices
from qrlib.bench.results import ROOT
from qrlib.loop import bundle as bundles
from qrlib.loop.bundle import bundle, modules
from qrlib.loop.runner import evaluate
from qrlib.matrices import BENCHMARK_CASES, TEST_CASES
from qrlib.stages import POLICIES, STAGES, TRITON, stage

pytest.importorskip("triton")
WANTED = [*((name, "fp32") for name in STAGES[1:]), (POLICIES[-1], "fast")]
# nothing of ours can be imported, but for what makes the interpreter quick, on both sides
ALONE = """
import sys
from contextlib import nullcontext
quick = nullcontext()
if sys.argv[1] == "quick":
    from qrlib.jit import quick_reductions
    quick = quick_reductions()
    for name in [name for name in sys.modules if name.partition(".")[0] == "qrlib"]:
        del sys.modules[name]
for name in ("qrlib", "jaxtyping", "beartype"):
    sys.modules[name] = None
sys.path.insert(0, ".")
import torch
with quick:
    for name in sys.argv[2:]:
        found = __import__(name).custom_kernel(torch.load("A.pt"))
        assert type(found) is tuple
        torch.save(found, f"{name}.pt")
"""


def geqrf(name, precision):
    more = {"policy": precision} if name in POLICIES else {}
    return lambda A: stage(name).geqrf(A, **more)


def run_alone(folder, A, wanted, quick):
    """{(stage, precision): (H, tau)} of files, all by one process in an empty folder."""
    torch.save(A, folder / "A.pt")
    for name, precision in wanted:
        (folder / f"{name}_{precision}.py").write_text(bundle(name, precision), encoding="utf-8")
    (folder / "run.py").write_text(ALONE)
    names = [f"{name}_{precision}" for name, precision in wanted]
    environment = {**os.environ, "PYTHONPATH": str(ROOT) if quick else ""}
    done = subprocess.run(
        [sys.executable, "run.py", "quick" if quick else "", *names],
        cwd=folder,
        env=environment | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    return {each: torch.load(folder / f"{each[0]}_{each[1]}.pt") for each in wanted}


def same_bits(found, expected):
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(X.view(torch.int32), Y.contiguous().view(torch.int32)) for X, Y in pairs)


@pytest.fixture(scope="module")
def A():
    # a panel of every kind, and what is left of one
    return torch.from_numpy(matrices.make("dense", 1, 66, cond=2, seed=3))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, A):
    return run_alone(tmp_path_factory.mktemp("alone"), A, WANTED, quick=True)


@pytest.mark.xdist_group("bundle")
@pytest.mark.parametrize("name, precision", WANTED)
def test_alone_it_gives_the_same_bits(alone, A, quick, name, precision):
    found = alone[name, precision]
    assert same_bits(found, geqrf(name, precision)(A.clone()))
    assert qrlib.certify(A, *found).passed


def test_alone_and_without_help_it_gives_the_same_bits(tmp_path):
    A = torch.from_numpy(matrices.make("dense", 2, 5, seed=3))
    wanted = [("s03_blocked", "fp32"), ("s04_recursive", "fp32")]
    for (name, precision), found in run_alone(tmp_path, A, wanted, quick=False).items():
        assert same_bits(found, geqrf(name, precision)(A.clone()))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    def loaded(name, precision):
        path = tmp_path_factory.mktemp("file") / f"{name}.py"
        path.write_text(bundle(name, precision), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"{name}_{precision}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded


@pytest.mark.parametrize("name, precision", [each for each in WANTED if each[0] in TRITON])
def test_on_a_gpu_it_starts_the_same_kernels(loaded, name, precision):
    from qrlib.launches import launches

    class Package:
        geqrf = staticmethod(geqrf(name, precision))

    class File:
        geqrf = staticmethod(loaded(name, precision).custom_kernel)

    started = 0
    for case in dict.fromkeys((each.batch, each.n, each.n) for each in BENCHMARK_CASES):
        mine, theirs = (launches(each, *case, target="sm_90a") for each in (File, Package))
        assert [_told(each) for each in mine] == [_told(each) for each in theirs]
        started += len(mine)
    assert started >= 7


def _told(launch):
    config = launch.config
    return config.name, config.key[1:], launch.grid, config.kernel.fn.__code__.co_code


ON_A_GPU = """
import sys
for name in ("qrlib", "jaxtyping", "beartype"):
    sys.modules[name] = None
sys.path.insert(0, ".")
import torch, submission
A = torch.load(sys.argv[1] + ".pt").cuda()
torch.save([X.cpu() for X in submission.custom_kernel(A)], sys.argv[1] + "_found.pt")
"""


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["fast", "fp32"])
def test_on_a_gpu_it_passes_all_cases_alone_and_takes_what_the_package_takes(tmp_path, precision):
    alone, package = tmp_path / "alone", tmp_path / "package.py"
    alone.mkdir()
    (alone / "submission.py").write_text(bundle("s10_blackwell", precision), encoding="utf-8")
    # kernels of all sizes are compiled by as many processes, each of which has the file only
    inputs = {case.n: case for case in (*TEST_CASES, *BENCHMARK_CASES)}
    inputs = {
        str(n): torch.from_numpy(matrices.make(case.family, case.batch, n, cond=case.cond, seed=5))
        for n, case in inputs.items()
    }
    for n, A in inputs.items():
        torch.save(A, alone / f"{n}.pt")
    started = [
        subprocess.Popen([sys.executable, "-I", "-B", "-c", ON_A_GPU, n], cwd=alone) for n in inputs
    ]
    assert [each.wait() for each in started] == [0] * len(inputs)
    for n, A in inputs.items():
        found = torch.load(alone / f"{n}_found.pt")
        assert same_bits(found, [X.cpu() for X in geqrf("s10_blackwell", precision)(A.cuda())])

    file = alone / "submission.py"
    tested = evaluate(file, "test", device="cuda", seed=1)
    assert tested.passed, tested
    package.write_text(
        f"import sys\n\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from qrlib.stages.s10_blackwell import geqrf\n\n\n"
        f"def custom_kernel(data):\n    return geqrf(data, policy={precision!r})\n"
    )
    options = {"device": "cuda", "seed": 1, "runs": 5, "seconds": 0.5}
    mine, theirs = (evaluate(path, "bench", **options) for path in (file, package))
    print(f"{precision}\n{tested}\n{mine}\n{theirs}")
    assert mine.passed and theirs.passed, f"{mine}\n{theirs}"
    assert abs(mine.geomean_us / theirs.geomean_us - 1) <= 0.03, f"{mine}\n{theirs}"


def test_a_kernel_of_the_file_compiles(loaded):
    from qrlib.compilelab import compile_config
    from qrlib.launches import launches

    module = loaded("s10_blackwell", "fp32")
    (start,) = launches(module, 20, 32, 32, target="sm_90a")
    assert Path(start.config.kernel.fn.__code__.co_filename).parts[-1] == "s10_blackwell.py"
    artifact = compile_config(start.config, "sm_90a")
    assert artifact.registers > 16 and "whole_kernel" in artifact.ptx


def test_it_says_what_it_is_and_under_which_licence(loaded):
    text = bundle("s10_blackwell", "fast")
    told = ast.get_docstring(ast.parse(text))
    assert f"qrlib {qrlib.__version__}, stage s10_blackwell, precision fast" in told
    assert (ROOT / "LICENSE").read_text().strip() in told
    assert loaded("s03_blocked", "fp32").VERSION == f"{qrlib.__version__} s03_blocked fp32"
    assert max(len(line) for line in text.splitlines()) <= 130


def test_it_imports_torch_triton_and_the_standard_library():
    text = bundle("s10_blackwell")
    sources = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and "\n" in str(node.value)
    ]
    tops = set()
    for source in (text, *sources[1:]):
        for line in source.splitlines():
            words = line.split()
            if words[:1] == ["import"] or words[:1] == ["from"] and "import" in words:
                tops.add(words[1].partition(".")[0])
    tops = {top for top in tops if top not in sys.stdlib_module_names}
    (own,) = tops - {"torch", "triton"}
    assert own.startswith("qrlib_s10_") and tops >= {"torch", "triton"}
    # a lookup by name would go past the file
    assert "import_module" not in text


def test_modules_come_after_those_that_they_import():
    names = list(modules("qrlib.stages.s10_blackwell"))
    assert names[:2] == ["qrlib", "qrlib.stages"] and names[-1] == "qrlib.stages.s10_blackwell"
    assert names.index("qrlib.tiles") < names.index("qrlib.lanes")
    assert "qrlib.api" not in names and "qrlib.certificate" not in names


@pytest.mark.parametrize(
    "arguments, message",
    (
        (("s01_mirror",), "stage must be one of s02_unblocked, .*; got 's01_mirror'"),
        (("s06_update", "fast"), "precision must be fp32, or fast for s09_mixed and s10_.*s06_upd"),
        (("s10_blackwell", "half"), "got 'half' for s10_blackwell"),
    ),
)
def test_what_cannot_be_one_file_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bundle(*arguments)


def test_an_import_that_a_file_cannot_rely_on_is_an_error(monkeypatch):
    monkeypatch.delitem(bundles.INSTEAD, "import numpy as np")
    with pytest.raises(ValueError, match="qrlib.compact imports numpy; say in INSTEAD"):
        bundle("s03_blocked")
    with pytest.raises(
        ValueError, match="got an import of qrlib.stages.POLICIES, qrlib.stages.TRITON"
    ):
        modules("qrlib.replay")
