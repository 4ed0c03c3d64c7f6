"""The map of loads and stores: it says what the tracer saw, of whole kernels and of bad ones."""

import re
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from drawings import (  # noqa: E402
    described_and_self_contained,
    frames_differ,
    texts,
    words_inside,
)
from tables import normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib.householder import larft  # noqa: E402
from qrlib.stages import s06_update  # noqa: E402
from qrlib.teach.figures import loads  # noqa: E402
from qrlib.tracer import trace  # noqa: E402

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="accesses are traced in the interpreter"
)


def updated(m=160, n=100, nb=64):
    """A trace of stage 6's update of two matrices, and what it moved."""
    V = qrlib.unpack_v(normal(2, m, nb))
    tensors = {"V": V, "T": larft(V, 2 / (V * V).sum(-2)), "C": normal(2, m, n, seed=1) / m}
    with trace(**tensors) as t:
        s06_update.update(*tensors.values(), "ieee")
    return t, tensors


@pytest.fixture(scope="module")
def traced():
    return updated()


def test_moves_are_what_the_tracer_counted(traced):
    t, tensors = traced
    every = loads.moves(t, tensors)
    for name in tensors:
        for op, tally in zip(("load", "store"), t.of(name)):
            mine = [each for each in every if (each.tensor, each.op) == (name, op)]
            assert sum(each.entries for each in mine) == tally.elements
            assert sum(each.bytes for each in mine) == tally.bytes
    assert {each.matrix for each in every} == {0, 1}
    one = loads.moves(t, tensors, (0, 1, 0))
    assert len(one) == sum(access.program == (0, 1, 0) for access in t.accesses)


def test_moves_say_where_and_how_large_the_tile_is(traced):
    one = loads.moves(*traced, (0, 1, 0))
    stores = [each for each in one if each.op == "store"]
    # the columns of the second program, and the last tile of rows is cut
    assert [(each.tensor, each.rows, each.columns) for each in stores] == [
        ("C", (0, 64), (64, 100)),
        ("C", (64, 128), (64, 100)),
        ("C", (128, 160), (64, 100)),
    ]
    for each in one:
        rows, columns = loads.tile_of(each)
        assert rows * columns == each.lanes
        assert rows >= each.rows[1] - each.rows[0]
        assert columns >= each.columns[1] - each.columns[0]
    assert {loads.tile_of(each) for each in stores} == {(64, 64)}


def test_words_count_bytes_and_masked_lanes(traced):
    one = loads.moves(*traced, (0, 1, 0))
    for k in range(1, len(one) + 1):
        said = loads.move_words(one[:k])
        loaded = sum(each.bytes for each in one[:k] if each.op == "load") / 1024
        assert f"So far {loaded:.3g} KiB loaded" in said
        out = one[k - 1].lanes - one[k - 1].entries
        assert (f"leaves {out} of" in said) if out else ("the whole tile" in said)


def test_the_last_frame_says_how_often_each_entry_moved(traced):
    t, tensors = traced
    stepper = loads.loads_stepper(t, tensors, (0, 1, 0))
    last = stepper.frames[-1]
    assert "2 of them" in last.readout
    for name, tensor in tensors.items():
        loaded, stored = (
            tally.elements / tensor[0].numel() / 2 for tally in t.of(name)[:2]
        )  # two matrices
        said = f"{loaded:g} in" + (f", {stored:g} out" if stored else "")
        assert f"of {name} {said}" in last.readout
    drawn = Counter(texts(last.figure))
    assert drawn["4 in"] == 5 and drawn["1 out"] == 10


def test_frames_are_drawn_described_and_differ(traced):
    stepper = loads.loads_stepper(*traced, (0, 1, 0))
    assert len(stepper.frames) == len(loads.moves(*traced, (0, 1, 0))) + 1
    for frame in stepper.frames:
        described_and_self_contained(frame.figure)
        words_inside(frame.figure)
        assert frame.readout in frame.figure.alt
    frames_differ(stepper)


@pytest.mark.parametrize("m, n, nb", [(64, 64, 64), (130, 40, 20), (40, 9, 16)])
def test_other_shapes_are_drawn(m, n, nb):
    stepper = loads.loads_stepper(*updated(m, n, nb), (1, 0, 0))
    for frame in stepper.frames:
        words_inside(frame.figure)
    assert "program (1, 0, 0)" in stepper.alt


@triton.jit
def every_second(X_ptr, BN: tl.constexpr):
    at = 2 * tl.arange(0, BN)
    tl.store(X_ptr + at, tl.load(X_ptr + at) + 1)


def test_what_is_no_block_is_refused():
    X = torch.zeros(1, 4, 8)
    with trace(X=X) as t:
        every_second[(1,)](X, BN=4)
    with pytest.raises(ValueError, match="must be a block of rows and columns of one matrix"):
        loads.moves(t, {"X": X})
    assert loads.moves(t, {}) == []


def test_a_view_is_known_by_its_own_rows_and_columns():
    X = torch.zeros(2, 8, 8)

    @triton.jit
    def clear(X_ptr, stride, BN: tl.constexpr):
        i, c = tl.arange(0, BN)[:, None], tl.arange(0, BN)[None, :]
        tl.store(X_ptr + i * stride + c, tl.zeros([BN, BN], tl.float32))

    view = X[:, 2:6, 4:]
    with trace(X=view) as t:
        clear[(1,)](view, 8, BN=4)
    (move,) = loads.moves(t, {"X": view})
    assert (move.rows, move.columns, move.matrix) == ((0, 4), (0, 4), 0)
    assert re.match(
        r"Store 1: X, rows 0 to 3, columns 0 to 3: 16 entries", loads.move_words([move])
    )
