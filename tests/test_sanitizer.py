"""NVIDIA's compute-sanitizer looks at launches: no access beyond a tensor, no race on the chip.

It comes with the CUDA toolkit. Run as a program, `python tests/test_sanitizer.py STAGE`, this file
is what it looks at.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SANITIZER = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin"
)
# [B, m, n]: less than a tile, odd ones with a panel cut short, wide, tall, slices that meet, and
# what the routes and the lanes of the last stages are for
SHAPES = {
    "s05_panel": ((3, 20, 20), (2, 100, 30), (2, 150, 150), (2, 9000, 16)),
    "s06_update": ((3, 20, 20), (2, 150, 150), (2, 300, 200), (2, 150, 300), (2, 9000, 40)),
    "s07_whole": ((3, 20, 20), (2, 100, 30), (2, 30, 100), (2, 150, 150)),
    "s08_cholesky": ((2, 130, 66), (2, 150, 150), (2, 300, 300), (2, 600, 130), (2, 530, 530)),
    "s09_mixed": ((2, 130, 66), (2, 150, 150), (2, 300, 300), (2, 530, 530), (2, 900, 900)),
    "s10_blackwell": ((3, 20, 20), (2, 48, 40), (2, 176, 176), (2, 352, 352), (2, 530, 530)),
}
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: "}
TOO_FAR = """
import torch, triton, triton.language as tl

@triton.jit
def store_too_far(x_ptr, n, BLOCK: tl.constexpr):
    at = n + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, at.to(tl.float32))

store_too_far[(1,)](torch.zeros(128, device="cuda"), 128, BLOCK=1024)
torch.cuda.synchronize()
"""
# the interpreter computes in NumPy, which warns of what the certificate of a panel finds
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def factor(stage, shapes, device):
    """Every shape by both policies where there are two, one matrix of each batch a bad one."""
    import qrlib
    from qrlib.stages import POLICIES

    torch.manual_seed(0)
    for shape in shapes:
        A = torch.randn(shape, device=device)
        # what a route on the device and a fallback are for
        A[-1, :, -1] = A[-1, :, 0]
        for precision in ("fp32", "fast") if stage in POLICIES else ("fp32",):
            H, tau = qrlib.geqrf(A, stage=stage, precision=precision)
            # by torch's kernels on a GPU it would be looked at, too, and racecheck reports theirs
            found = qrlib.certify(A.cpu(), H.cpu(), tau.cpu())
            assert found.passed, (stage, shape, precision, str(found))


def under(tool, *command):
    """What the sanitizer says; every tensor is an allocation of its own, so that it has an end."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    done = subprocess.run(
        [SANITIZER, "--tool", tool, *command], env=environment, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not know this device or its driver")
    return done.returncode, said


def races(said):
    """Reports of racecheck, but for those of torch's own kernels, which it reports as well."""
    return [line for line in re.findall("Race reported .*", said) if "at::native::" not in line]


def test_races_are_those_of_our_kernels():
    said = """
========= Error: Race reported between Read access at void at::native::reduce_kernel<512>(T3)+0xe5a0
=========     and Write access at void at::native::reduce_kernel<512>(T3)+0xe660 [2048 hazards]
========= Error: Race reported between Read access at panel_kernel+0x10
=========     and Write access at panel_kernel+0x20 [4 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
    assert races(said) == ["Race reported between Read access at panel_kernel+0x10"]


@pytest.mark.parametrize("stage", SHAPES)
def test_what_it_looks_at_is_right(stage, quick):
    factor(stage, SHAPES[stage][:1], "cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
@pytest.mark.slow
# a racecheck takes a hundred times as long as what it looks at
@pytest.mark.timeout(900)
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer, of the CUDA toolkit")
class TestOnTheGpu:
    @pytest.mark.parametrize("tool", CLEAN)
    @pytest.mark.parametrize("stage", SHAPES)
    def test_stages_are_clean(self, stage, tool):
        code, said = under(tool, sys.executable, __file__, stage)
        assert code == 0 and CLEAN[tool] in said and not races(said), said[-4000:]

    def test_a_store_too_far_is_found(self, tmp_path):
        program = tmp_path / "too_far.py"
        program.write_text(TOO_FAR)
        said = under("memcheck", sys.executable, str(program))[1]
        assert "Invalid __global__ write" in said and CLEAN["memcheck"] not in said, said[-4000:]


if __name__ == "__main__":
    factor(sys.argv[1], SHAPES[sys.argv[1]], "cuda")
