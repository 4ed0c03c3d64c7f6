"""The panel kernel, wider and wider: what is drawn is what was compiled, and the text holds."""

from collections import Counter

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from drawings import (
    described_and_self_contained,
    frames_differ,
    texts,
    words_inside,
)

from qrlib.compilelab import FAMILIES
from qrlib.teach.figures import compilelab, widths


@pytest.fixture(scope="module")
def stepper():
    return widths.widths_stepper()


def test_sixteen_columns_are_the_kernel_of_the_stage():
    mine, stage = widths.panel(16), compilelab.panel(512, 4, "sm_100a")
    assert (mine.registers, mine.stack, mine.mix) == (stage.registers, stage.stack, stage.mix)


def test_frames_say_what_was_compiled(stepper):
    for width, frame in zip(widths.WIDTHS, stepper.frames, strict=True):
        it = widths.panel(width)
        assert it.config.constexprs["BN"] == width and it.num_warps == widths.WARPS
        assert f"{it.registers} registers" in frame.readout
        assert f"Programs an SM: {it.programs}." in frame.readout
        counts = Counter(it.executed(width))
        spilled = sum(counts[name] for name in FAMILIES["SPILL"]) / sum(counts.values())
        assert f"{100 * spilled:.1f} % of what is executed" in frame.readout
        assert f"{sum(counts.values()) / width:,.0f} instructions" in frame.readout
        drawn = texts(frame.figure)
        assert str(it.registers) in drawn and f"{sum(counts.values()) / width:,.0f}" in drawn
        assert (f"{it.stack:,}" if it.stack else "\u2013") in drawn


def test_a_thread_has_its_share_of_the_panel():
    assert [widths.share(width) for width in widths.WIDTHS] == [16, 32, 64, 128, 256]


def test_frames_are_drawn_described_and_differ(stepper):
    for frame in stepper.frames:
        described_and_self_contained(frame.figure)
        words_inside(frame.figure)
        assert frame.readout in frame.figure.alt
    frames_differ(stepper)


def test_what_the_chapter_says_of_the_rows():
    made = {width: widths.panel(width) for width in widths.WIDTHS}
    # the stage's own width is the widest without a spill
    assert [width for width, it in made.items() if not it.stack] == [4, 8, 16]
    # the widest keeps its panel in memory, and spends most of its time on that
    assert widths.share(64) > widths.LIMIT
    assert made[64].stack > 4 * widths.share(64) and widths.executed(64)[1] > 0.4
    a_column = [widths.executed(width)[0] for width in widths.WIDTHS]
    assert a_column == sorted(a_column)
