"""The figures of chapter 8: what they say is what was compiled, and what the chapter says holds."""

import dataclasses
import json
import re
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from drawings import (  # noqa: E402
    described_and_self_contained,
    frames_differ,
    texts,
    words_inside,
)

from qrlib import levels  # noqa: E402
from qrlib.compilelab import families  # noqa: E402
from qrlib.jit import quick_reductions  # noqa: E402
from qrlib.stages import s05_panel  # noqa: E402
from qrlib.teach import warps as timed  # noqa: E402
from qrlib.teach.figures import compilelab as figures  # noqa: E402

BOTH = ("sm_90a", "sm_100a")


def specimen(target="sm_100a", warps=4):
    return figures.panel(512, warps, target)


VARIANTS = [
    {"warps": w, "unrolled": u, "us": [10.0 * w, 20.0 * w, 50.0 * w + u]}
    for w in (2, 4)
    for u in (False, True)
]
MEASURED = {
    "batch": [1, 264, 640],
    "variants": VARIANTS,
    "provenance": {"gpu": "a GPU", "date": "2026-01-02", "torch": "1", "triton": "2"},
}


@pytest.fixture
def two_files(monkeypatch):
    """As if panel_warps.json were there."""
    monkeypatch.setattr(figures, "stored", {"panel_warps": MEASURED}.__getitem__)


DRAWN = {
    **{f"road {level}": (figures.road_frame, level) for level in figures.LEVELS},
    **{f"ten {k}": (figures.ten_frame, k) for k in range(10)},
    "cost": (figures.cost_chart,),
    "sm": (figures.sm_frame,),
}


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_is_described_and_its_words_stand_inside(name, target):
    draw, *arguments = DRAWN[name]
    figure = draw(specimen(target), *arguments)
    described_and_self_contained(figure)
    words_inside(figure)


def test_plots_are_described_and_follow_the_page():
    pytest.importorskip("matplotlib")
    plot = figures.pressure_plot([specimen(warps=w) for w in (4, 8, 16)])
    described_and_self_contained(plot)
    most = max(each.live for each in levels.main_part(specimen().instructions))
    assert f"4 warps: at most {most}" in plot.alt
    described_and_self_contained(figures.stairs_plot())


def test_the_frames_of_the_steppers_differ():
    frames_differ(figures.road_stepper(specimen()))
    frames_differ(figures.ten_stepper(specimen()))
    frames_differ(figures.sm_stepper([specimen(warps=w) for w in figures.WARPS[1:]]))


@pytest.mark.parametrize("target", BOTH)
def test_the_road_is_that_of_the_mirror(target):
    lines = figures.road(specimen(target))
    assert list(lines) == list(figures.LEVELS)
    assert lines["Python"] == [figures.code_of(figures.busiest(specimen(target)))]
    assert "P - v" in lines["Python"][0]
    # two multiply-adds at once on a B200, 64 entries a thread
    entries = 512 * 16 // 128
    done = [each for each in lines["SASS"] if re.search(r"\bFFMA", each)]
    assert len(done) == (entries // 2 if target == "sm_100a" else entries)
    assert any(f"<{entries} x float>" in each for each in lines["LLVM IR"])
    for level in figures.LEVELS:
        assert str(len(lines[level])) in texts(figures.road_frame(specimen(target), level))


@pytest.mark.parametrize("target", BOTH)
def test_every_instruction_of_the_loop_is_charged_to_one_line(target):
    artifact = specimen(target)
    (loop,) = artifact.loops
    total = sum(each.address in loop for each in artifact.instructions)
    rows = figures.cost(artifact)
    assert sum(sum(counts.values()) for _, counts in rows) == total
    labels = [label for label, _ in rows]
    assert len(labels) == len(set(labels)) and "larfg" in labels and "no line" not in labels
    shown = texts(figures.cost_chart(artifact))
    assert {str(sum(counts.values())) for _, counts in rows if sum(counts.values()) >= 4} <= {
        *shown
    }


@pytest.mark.parametrize("target", BOTH)
def test_ten_lines_hold_shuffles_a_barrier_and_shared_memory(target):
    lines = figures.ten(specimen(target))
    names = [each.name for each in lines]
    assert len(lines) == 10 and {"SHFL", "STS", "BAR", "LDS", "FADD"} <= set(names)
    # one after another: they are neighbours
    assert [each.address - lines[0].address for each in lines] == list(range(0, 160, 16))
    assert names.index("SHFL") < names.index("STS") < names.index("BAR") < names.index("LDS")
    for each in lines:
        assert each.name in figures.SAYS


def test_an_instruction_in_words():
    line = figures.busiest(specimen())
    said = figures.spoken(levels.Instruction(0, "@!P5 STS [R7+0x100], R2", "STS", line))
    assert said.startswith("Only where P5 is false: STS stores into shared memory.")
    assert "R7+0x100" in said and said.endswith(f"From: {figures.code_of(line)}")
    shuffle = figures.spoken(levels.Instruction(0, "SHFL.BFLY PT, R3, R0, 0x4, 0x1f", "SHFL"))
    assert "lane l XOR 4 has in R0" in shuffle and "in R3" in shuffle


def test_the_vocabulary_covers_nearly_all_that_is_executed():
    for target in BOTH:
        words = figures.vocabulary(specimen(target))
        told = sum(times for _, times, _ in words)
        assert told > 0.97 * sum(specimen(target).executed(16).values())
        assert [times for _, times, _ in words] == sorted((w[1] for w in words), reverse=True)


@pytest.mark.parametrize("warps", figures.WARPS[1:])
def test_an_sm_is_filled_as_its_words_say(warps):
    artifact = specimen(warps=warps)
    frame = figures.sm_frame(artifact)
    slots = [int(each.split()[1]) for each in texts(frame) if each.startswith("program ")]
    assert len(slots) == artifact.programs * warps
    assert all(slots.count(p) == warps for p in range(artifact.programs))
    granted = figures.granted(artifact)
    assert granted % 256 == 0 and 0 <= granted - 32 * artifact.registers < 256
    # no quarter is given more than it has
    assert -(-artifact.programs * warps // 4) * granted <= 16384


@pytest.mark.parametrize("warps", figures.WARPS[1:])
def test_one_register_beyond_the_edge_is_a_program_less(warps):
    artifact = specimen(warps=warps)
    edge = figures.edge(artifact)
    assert edge < artifact.registers and edge % 8 == 0
    held = [
        dataclasses.replace(artifact, registers=registers).limits["registers"]
        for registers in (edge, edge + 1)
    ]
    assert held[0] > held[1] == artifact.programs


class TestWhatTheChapterSays:
    """If a new compiler or another kernel changes one of these, the text has to change."""

    def test_masks_cost_as_much_as_the_arithmetic(self):
        for target in BOTH:
            found = figures.grouped(Counter(e.name for e in figures.inside(specimen(target))))
            assert found["choose"] > found["multiply, add"] > found["exchange"]

    def test_the_unrolled_kernel_is_longer_and_does_less(self):
        unrolled = figures.panel(512, 4, "sm_100a", unrolled=True)
        assert sum(unrolled.mix.values()) > 3 * sum(specimen().mix.values())
        assert sum(unrolled.executed(16).values()) < 0.7 * sum(specimen().executed(16).values())

    def test_twice_the_warps_do_not_halve_the_registers(self):
        registers = [specimen(warps=w).registers for w in (4, 8, 16)]
        assert all(b < a < 2 * b for a, b in zip(registers, registers[1:]))

    def test_sixteen_warps_leave_places_empty(self):
        artifact = specimen(warps=16)
        assert artifact.programs == 1 and 16384 // figures.granted(artifact) == 5

    def test_two_warps_on_the_h200_spill_outside_of_the_loop_only(self):
        artifact = specimen("sm_90a", 2)
        outside, inside = artifact.spills
        assert artifact.stack > 100 and outside > 50 and inside == 0
        assert _spilling(artifact) < 0.01 and figures.l1_share(artifact) < 1

    def test_one_warp_spills_the_panel_itself(self):
        artifact = specimen("sm_90a", 1)
        assert artifact.spills[1] > 1000
        assert 0.35 < _spilling(artifact) < 0.6 and figures.l1_share(artifact) > 5

    def test_eight_warps_on_the_b200_spill_a_little_for_a_second_program(self):
        ours, theirs = specimen("sm_100a", 8), specimen("sm_90a", 8)
        outside, inside = ours.spills
        assert 0 < ours.stack <= 16 and 0 < outside <= 8 and inside == 0
        assert ours.registers == 128 and ours.programs == 2
        assert not theirs.spilled and theirs.registers > 128 and theirs.programs == 1

    def test_four_warps_do_not_spill_at_all(self):
        assert not specimen("sm_90a").spilled and not specimen("sm_100a").spilled
        assert specimen("sm_90a").programs == specimen("sm_100a").programs == 2

    def test_a_b200_does_two_multiply_adds_at_once(self):
        assert specimen("sm_100a").mix["FFMA2"] > 20 and "FFMA2" not in specimen("sm_90a").mix


def _spilling(artifact):
    executed = artifact.executed(16)
    return families(executed).get("SPILL", 0) / sum(executed.values())


class TestMeasured:
    def test_stairs_by_hand(self):
        artifact = specimen("sm_90a")
        full = figures.filling(artifact)
        assert full == 132 * artifact.programs
        at = figures.stairs(artifact, [1, full // 2, full, 640], [10, 12, 17, 99])
        assert [at(B) for B in (1, 2, full // 2, full)] == [10, 12, 12, 17]
        assert at(full + 1) == 27 and at(2 * full) == 34 and at(2 * full + full // 2) == 46
        with pytest.raises(ValueError, match=f"a batch of {full} must be measured"):
            figures.stairs(artifact, [1, full - 1], [1, 2])

    def test_the_prediction_of_the_stairs_comes_near(self):
        rows, _ = figures.measured()
        row = next(each for each in rows if each["warps"] == 4 and not each["unrolled"])
        at = figures.stairs(specimen("sm_90a"), row["batch"], row["us"])
        for B, us in zip(row["batch"], row["us"]):
            assert at(B) == pytest.approx(us, rel=0.25)

    def test_bars_where_there_are_times(self, two_files):
        figure = figures.spill_times()
        described_and_self_contained(figure)
        words_inside(figure)
        shown = texts(figure)
        assert {"100", "101", "200", "201"} <= set(shown)
        assert "measured on a GPU, 2026-01-02, torch 1, Triton 2" in figure.alt

    def test_times_of_a_batch(self, two_files):
        assert figures.timed(264) == {(w, u): 20.0 * w for w in (2, 4) for u in (False, True)}

    def test_what_the_page_says_of_the_stored_times(self):
        us = figures.timed(640)
        loop = {warps: t for (warps, unrolled), t in us.items() if not unrolled}
        # spills in the loop are the slowest by far; outside of it they are not
        assert max(us, key=us.get) == (1, False) and loop[1] > 5 * sorted(loop.values())[-2]
        assert loop[4] < loop[2] < loop[8] < loop[16]
        # two programs on an SM for one
        assert us[8, True] < 0.7 * us[8, False]
        for batch in (1, 264, 640):
            best = min(figures.timed(batch).items(), key=lambda each: each[1])[0]
            assert best == s05_panel.TABLE[512]

    def test_every_number_has_a_kind(self, two_files):
        kinds = list(figures.kinds())
        assert {kind.split()[0] for _, kind, _ in kinds} == {
            "compiled",
            "predicted",
            "measured",
            "nobody",
        }
        values = {what: value for what, _, value in kinds}
        assert values["640 panels on one H200"] == "200.0 \u00b5s"
        assert "| ? |" in figures.kinds_table().data

    def test_a_prediction_is_below_what_was_measured(self):
        rows, _ = figures.measured()
        for row in rows:
            if row["warps"] == 4 and not row["unrolled"]:
                us = row["us"][row["batch"].index(640)]
                assert 0.2 * us < 1e6 * specimen("sm_90a").issue_time(640, 16) < us

    def test_the_clock_takes_what_is_certified(self):
        """A variant is used, certified and timed; a wrong result has no time."""
        seen = []

        def clock(call):
            call()
            seen.append(timed.s05_panel.TABLE[timed.ROWS])
            return float(len(seen))

        before = dict(timed.s05_panel.TABLE)
        with quick_reductions():
            rows = timed.measure("cpu", clock, (1,), ((8, False), (4, False)))
        assert rows == [
            {"warps": 8, "unrolled": False, "us": [-1.0]},
            {"warps": 4, "unrolled": False, "us": [-1.0]},
        ]
        assert seen == [(8, False)] * 2 + [(4, False)] * 2
        assert timed.s05_panel.TABLE == before

    def test_no_time_for_what_fails(self, monkeypatch):
        monkeypatch.setattr(timed.s05_panel, "launch", lambda H, tau, V, T: tau.fill_(0))
        with pytest.raises(ValueError, match="no time for a result that fails"):
            timed.measure("cpu", lambda call: 0.0, (1,), ((4, False),))

    def test_without_a_gpu_it_says_so(self, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(SystemExit):
            timed.main([str(tmp_path / "x.json")])
        assert "NVIDIA GPU" in capsys.readouterr().err

    @pytest.mark.gpu
    def test_on_a_gpu(self, tmp_path, monkeypatch):
        def few(device):
            return measure(device, batches=(1, 132), variants=((4, False),))

        measure = timed.measure
        monkeypatch.setattr(timed, "measure", few)
        timed.main([str(tmp_path / "x.json"), "--commit", "abc"])
        found = json.loads((tmp_path / "x.json").read_text())
        assert all(us > 1 for us in found["variants"][0]["us"])
