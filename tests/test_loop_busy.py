"""A machine that has other things to do is not held against a candidate."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from qrlib.loop.runner import evaluate
from qrlib.matrices import Case


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="nobody says who waits")
def test_an_honest_candidate_passes_on_a_busy_machine():
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2 * os.cpu_count())]
    try:
        found = [
            evaluate(
                "torch", "bench", cases=[Case(4, 64, 1, "dense")], full=True, runs=5, commit="test"
            )
            for _ in range(2)
        ]
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert [each.verdict for each in found] == ["passed", "passed"], found
