"""Time against size: every time of the file is drawn, and the floor is the model's."""

import pytest
from drawings import described_and_self_contained, texts

from qrlib import model
from qrlib.bench import Results
from qrlib.bench.results import ORIGIN
from qrlib.bench.sweep import ALONE, CASES, SIZES
from qrlib.teach.figures.ladder import duration
from qrlib.teach.figures.sweep import DATA, against_size, floor_us

pytest.importorskip("matplotlib")
KINDS = {("torch", "eager"): 1e3, ("auto", "eager"): 50.0, ("auto", "replay"): 7.0}


def rows(kinds=KINDS):
    return [
        {
            **case._asdict(),
            "stage": stage,
            "precision": "fp32",
            "mode": mode,
            "ok": True,
            "faults": [],
            "median_us": slow * case.n,
            "speedup": KINDS["torch", "eager"] / slow,
            "certificate": {"factor": 0.1, "orthogonality": 0.1, "columnwise": 0.1},
        }
        for case in CASES
        for (stage, mode), slow in kinds.items()
    ]


@pytest.fixture
def write(tmp_path):
    def write(rows, gpu="NVIDIA H200"):
        origin = dict.fromkeys(ORIGIN, "x") | {"device": "cuda", "gpu": gpu, "cpu": "a CPU"}
        origin |= {"driver": "1", "cuda": "2", "commit": "0123456789abcdef", "dirty": False}
        origin |= {"date": "2001-02-03T04:05:06+00:00"}
        Results(origin, {"baseline": "torch"}, rows).save(tmp_path / "sweep.json")
        return tmp_path / "sweep.json"

    return write


@pytest.mark.parametrize("batch, sizes", ((64, SIZES), (1, ALONE)))
def test_it_says_where_each_line_begins_and_ends(write, batch, sizes):
    figure = against_size(batch, write(rows()))
    described_and_self_contained(figure)
    first, last = sizes[0], sizes[-1]
    for name, slow in (("torch.geqrf", 1e3), ("auto, from Python", 50), ("auto, replayed", 7)):
        ends = f"{duration(slow * first)} at n = {first} to {duration(slow * last)} at n = {last}"
        assert f"{name} from {ends}" in figure.alt
    drawn = texts(figure)
    for word in ("torch.geqrf", "auto, replayed", "predicted floor", str(first), str(last)):
        assert word in drawn
    assert any("NVIDIA H200" in word and "2001-02-03" in word for word in drawn)
    # a mark for each time: where two lines have a mark of one form, they share its drawing
    assert figure.body().count("<use ") >= 3 * len(sizes)


def test_the_floor_is_the_longer_of_memory_and_arithmetic():
    plan = model.plan("floor", 64, 32, 32)
    h200 = model.DEVICES["H200"].measured
    assert floor_us("NVIDIA H200", 64, 32) == pytest.approx(
        1e6 * plan.bytes / h200["bandwidth"].value
    )
    plan = model.plan("floor", 64, 2048, 2048)
    assert floor_us("NVIDIA H200", 64, 2048) == pytest.approx(
        1e6 * plan.flops.flops / h200["fp16"].value
    )
    # of others what their vendor states
    assert floor_us("NVIDIA B200", 64, 32) < floor_us("NVIDIA A100-SXM4-80GB A100", 64, 32)
    assert floor_us("GPU of a test", 64, 32) is None


def test_on_another_gpu_there_is_no_floor(write):
    figure = against_size(64, write(rows(), gpu="GPU of a test"))
    assert "predicted floor" not in texts(figure) and "auto, replayed" in texts(figure)


def test_a_size_that_failed_is_left_out(write):
    found = rows()
    for row in found:
        if row["n"] == 2048 and row["batch"] == 64 and row["mode"] == "replay":
            row |= {"ok": False, "median_us": None, "faults": ["factor 99"]}
    figure = against_size(64, write(found))
    assert "auto, replayed from 224 \u00b5s at n = 32 to 14.3 ms at n = 2047" in figure.alt


def test_without_such_times_it_says_what_to_do(write):
    only_torch = write(rows({("torch", "eager"): 1.0}))
    with pytest.raises(ValueError, match="measure with --sweep --replay"):
        against_size(64, only_torch)
    with pytest.raises(ValueError, match="fast, replayed, for 1 matrices"):
        against_size(1, write(rows()), precision="fast")


@pytest.mark.skipif(not DATA.exists(), reason="nobody has measured it so far")
@pytest.mark.parametrize("batch", (64, 1))
def test_what_is_stored_can_be_drawn(batch):
    described_and_self_contained(against_size(batch))
