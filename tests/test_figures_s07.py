"""The figures of chapter 10: tiles, loads and waves are those of the running stage."""

import math
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from drawings import (  # noqa: E402
    described_and_self_contained,
    frames_differ,
    texts,
    words_inside,
)
from tables import normal  # noqa: E402

from qrlib import model  # noqa: E402
from qrlib.bench import Results, load  # noqa: E402
from qrlib.bench.results import ORIGIN  # noqa: E402
from qrlib.launches import device_of, launches  # noqa: E402
from qrlib.stages import s07_whole  # noqa: E402
from qrlib.teach.exercises import s07_whole as exercises  # noqa: E402
from qrlib.teach.figures import s07_whole as figures  # noqa: E402
from qrlib.tracer import trace  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="traced in the interpreter")

# of a GPU that does not exist, so that nothing has to be compiled
ROOMS = {32: figures.Room(8, "registers", 224, 1), 176: figures.Room(2, "warps", 200, 4)}
DRAWN = {
    "timeline": (figures.timeline,),
    "long timeline": (figures.timeline, 64),
    **{f"walk {k}": (figures.walk_frame, 176, 176, k) for k in range(13)},
    "tall walk": (figures.walk_frame, 200, 40, 2),
    "wide walk": (figures.walk_frame, 40, 200, 2),
    "barrier": (figures.barrier,),
    "reads, stage 6": (figures.reads_frame, "s06_update", 64),
    "reads, stage 7": (figures.reads_frame, "s07_whole", 64),
    "H200": (figures.chip_frame, 20, 32, "sm_90a"),
    "B200": (figures.chip_frame, 640, 32, "sm_100a"),
}


def measured(cases):
    """Results of batches (B, n)."""
    return Results({}, {}, [{"batch": B, "n": n} for B, n in cases])


@pytest.fixture
def rooms(monkeypatch):
    monkeypatch.setattr(figures, "room", lambda n, target="sm_90a": ROOMS[n])


@pytest.fixture(params=DRAWN)
def drawn(request, rooms):
    draw, *arguments = DRAWN[request.param]
    return draw(*arguments)


def test_a_figure_is_described_self_contained_and_follows_the_page(drawn):
    described_and_self_contained(drawn)
    words_inside(drawn)


def test_the_frames_of_the_steppers_differ(rooms, monkeypatch):
    monkeypatch.setattr(figures, "CASES", ((20, 32, "sm_90a"), (40, 176, "sm_100a")))
    for stepper in (
        figures.walk_stepper(),
        figures.walk_stepper(70, 40),
        figures.reads_stepper(96),
        figures.chip_stepper(),
    ):
        frames_differ(stepper)


@pytest.mark.parametrize("n", (32, 64))
def test_the_timeline_has_a_line_for_every_launch(n):
    figure = figures.timeline(n)
    started = [launch.config.name for launch in launches("s06_update", 20, n, n, target="sm_90a")]
    named = [word for word in texts(figure) if f"{word}_kernel" in started]
    assert [f"{word}_kernel" for word in named] == started
    assert f"stage 6: {len(started)} launches" in texts(figure)
    assert figure.body().count('stroke-width="3"') == len(started) + 1


@pytest.mark.parametrize("m, n", ((100, 60), (40, 90), (130, 20), (70, 70), (33, 33)))
def test_panels_are_those_that_the_kernel_loads(m, n):
    A = normal(1, m, n)
    with trace(A=A) as t:
        s07_whole.geqrf(A)
    b = figures.whole(m, n)["BN"]
    # (first element, elements, lanes) of every load of H
    loads = [
        (int(a.elements[0]), a.elements.size, a.lanes)
        for a in t.accesses
        if a.tensor == "H" and a.op == "load" and a.elements.size
    ]
    at = -1
    for panel in figures.panels(m, n):
        wanted = (panel.p * (n + 1), panel.rows * panel.nb, panel.tile * b)
        at = loads.index(wanted, at + 1)
        assert panel.right == n - panel.p - panel.nb
    assert sum(panel.nb for panel in figures.panels(m, n)) == min(m, n)


@pytest.mark.parametrize("m, n", ((176, 176), (100, 60), (40, 90), (33, 33), (256, 256)))
def test_the_exercise_has_the_tiles_of_the_stage(m, n):
    shape = figures.whole(m, n)
    own = exercises.tile_rows(m, n, *(shape[name] for name in ("BM", "BN", "LEVELS")))
    assert own == [panel.tile for panel in figures.panels(m, n)]


def test_rows_gone_through():
    walked = figures.panels(176, 176)
    assert figures.needed(176, 176) == sum((176 - p) * min(16, 176 - p) for p in range(0, 176, 16))
    assert figures.held(176, 176, halved=False) == 176 * walked[0].tile
    for n in (33, 64, 100, 176, 256):
        assert figures.needed(n, n) <= figures.held(n, n) <= figures.held(n, n, halved=False)


def test_a_matrix_that_is_not_one_program_has_no_panels():
    with pytest.raises(ValueError, match="choose another size"):
        figures.panels(5000, 20)


def test_the_walk_says_how_much_of_a_tile_is_used():
    walked = figures.panels(176, 176)
    halvings = 0
    for k, panel in enumerate(walked, 1):
        words = figures.walk_words(176, 176, k)
        assert f"{panel.rows} rows are left, the tile has {panel.tile}" in words
        assert f"{round(100 * panel.rows / panel.tile)} % of it" in words
        halvings += "halved" in words
        assert f"{panel.rows} / {panel.tile}" in texts(figures.walk_frame(176, 176, k))
    assert 2**halvings == walked[0].tile // walked[-1].tile


def test_without_barriers_the_numbers_are_right_and_the_order_is_not():
    certificate, faults = figures.without_barriers(40)
    assert certificate.passed
    assert {fault.kind for fault in faults} == {"no barrier"}
    assert {fault.argument for fault in faults} >= {"H_ptr", "V_ptr", "T_ptr"}
    # the next trace has its barriers back
    A = normal(1, 40, 40)
    with trace(A=A) as t:
        s07_whole.geqrf(A)
    assert not t.faults


@pytest.mark.parametrize("stage", ("s06_update", "s07_whole"))
def test_reads_are_counted_for_every_entry(stage):
    counts = figures.reads(stage, 64)
    shown = texts(figures.reads_frame(stage, 64))
    assert counts.shape == (64, 64) and counts.min() >= 1
    blocks = figures.in_blocks(counts, 16)
    assert shown[0] == f"{stage}: {counts.mean():.1f} times on average"
    assert shown[1:] == [f"{each:.0f}" for each in blocks.ravel()]


def test_stage_7_reads_as_often_as_the_formula_says():
    for n in (64, 128):
        b = figures.whole(n, n)["BN"]
        assert figures.reads("s07_whole", n).mean() == pytest.approx(2 * n / (3 * b) + 1, abs=0.5)


def test_blocks_are_means():
    counts = np.arange(36).reshape(6, 6)
    assert figures.in_blocks(counts, 3).tolist() == [[7, 10], [25, 28]]


def test_waves_by_hand():
    assert [figures.waves(p, 4, 2) for p in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]
    assert [figures.in_last_wave(p, 4, 2) for p in (1, 8, 9, 16, 17)] == [1, 8, 1, 8, 1]
    for p in range(1, 40):
        count, busy = exercises.waves(p, 4, 2)
        assert count == figures.waves(p, 4, 2)
        assert busy == pytest.approx(p / (8 * count))


@pytest.mark.parametrize("B, n, target", [(20, 32, "sm_90a"), (640, 32, "sm_100a")])
def test_all_programs_of_a_chip_are_shown(B, n, target, rooms):
    shown = [int(word) for word in texts(figures.chip_frame(B, n, target))[1:]]
    assert sum(shown) == B == math.prod(launches("s07_whole", B, n, n, target=target)[0].grid)
    assert max(shown) - min(shown) <= 1
    assert len(shown) == min(B, device_of(target).sms)


def test_words_of_a_chip_are_the_counts(rooms):
    words = figures.chip_words(640, 32, "sm_90a")
    places = 132 * ROOMS[32].places
    assert "an SM of H200 has room for 8 programs" in words
    assert words.endswith(f"One wave, 640 of {places} places are taken.")
    words = figures.chip_words(640, 176, "sm_90a")
    assert words.endswith("3 waves; in the last one 112 of 264 places are taken.")


def test_room_is_the_compilers():
    from qrlib.compilelab import compile_stage

    artifact = compile_stage("s07_whole", 640, 32, 32, target="sm_90a")[0]
    own = figures.room(32)
    assert (own.places, own.registers) == (artifact.programs, artifact.registers)
    assert own.places == artifact.limits[own.bound]


def test_the_chapters_cases_are_single_kernels():
    for B, n, _ in figures.CASES:
        assert len(figures.kernels("s07_whole", B, n)) == 1


@pytest.mark.parametrize(
    "cases, words",
    [
        ([(640, 512)], "stage 7 hands it over"),
        ([(20, 32), (640, 512)], "stage 7 keeps 20 \u00d7 32 to itself; the others"),
        ([(20, 32), (1, 64)], "All of these batches, 20 \u00d7 32, 1 \u00d7 64, are small"),
    ],
)
def test_words_say_which_cases_stage_7_keeps(cases, words, monkeypatch):
    monkeypatch.setattr(s07_whole, "pays", lambda B, m, n, replayed: n < 100)
    assert words in figures.kept_words(measured(cases))


@pytest.mark.skipif(not figures.DATA.exists(), reason="the ladder has not been measured")
def test_times_and_words_are_those_of_the_ladder():
    ladder = load(figures.DATA)
    assert figures.kept_words() == figures.kept_words(ladder)
    B, n, _ = figures.CASES[2]
    eager = ladder.find(stage="s06_update", batch=B, n=n, family="dense", mode="eager")
    assert 0 < figures.measured("s06_update", B, n) <= eager[0]["median_us"] / 1e6
    assert figures.measured("s06_update", B, n) < figures.measured("torch", B, n)


def case(stage, mode, us, speedup=None, B=20, n=32):
    return {
        "batch": B, "n": n, "cond": 1, "family": "dense", "stage": stage, "precision": "fp32",
        "mode": mode, "ok": True, "faults": [], "median_us": us, "speedup": speedup,
        "certificate": {"factor": 0.1},
    }  # fmt: skip


@pytest.fixture
def two_cases(tmp_path):
    """A file of two cases: the second takes four times as long as the first."""
    origin = dict.fromkeys(ORIGIN, "x") | {"device": "cpu", "cpu": "a chip", "dirty": False}
    origin["gpu"] = None
    rows = [
        case(stage, mode, us * times, speedup, B, n)
        for (B, n), times in (((20, 32), 1), ((40, 176), 4))
        for stage, mode, us, speedup in (
            ("torch", "eager", 400.0, 1.0),
            ("s07_whole", "eager", 200.0, 2.0),
            ("s07_whole", "replay", 25.0, 16.0),
        )
    ]
    Results(origin, {}, rows).save(tmp_path / "cases.json")
    return tmp_path / "cases.json"


def test_a_pencil_counts_columns_starts_and_one_sm():
    seen = {name: each.value for name, each in figures.H200.measured.items()}
    six = figures.pencil("s06_update", 40, 352, True)
    assert six.columns == 352 * seen["column"] and six.arithmetic == 0
    count = len(launches("s06_update", 40, 352, 352, target="sm_90a"))
    assert six.launches == count * seen["graph node"]
    # replayed it is handed over, started from Python it is one launch
    assert figures.pencil("s07_whole", 40, 352, True) == six
    seven = figures.pencil("s07_whole", 40, 352, False)
    assert seven.launches == seen["launch"] and seven.columns == six.columns
    assert seven.arithmetic * seen["fp32"] / 132 == pytest.approx(4 / 3 * 352**3, rel=0.02)


def test_strips_by_hand():
    # panels of 16 columns of 64 leave 48, 32, 16 and none, in strips of 32
    assert figures.whole(64, 64)["BC"] == 32 and figures.strips(64) == 2 + 1 + 1


def test_the_table_of_all_cases_is_the_file(two_cases):
    lines = figures.cases_table(two_cases).splitlines()
    assert lines[2:5] == [
        "| 20 \u00d7 32 dense | 400 \u00b5s | 200 \u00b5s | 25 \u00b5s | 16 |",
        "| 40 \u00d7 176 dense | 1.6 ms | 800 \u00b5s | 100 \u00b5s | 16 |",
        "| **geometric mean** | 800 \u00b5s | 400 \u00b5s | 50 \u00b5s | 16 |",
    ]
    assert lines[-1] == "*Measured on a chip, x, commit x.*"


def test_the_chart_of_small_cases_has_the_stored_times():
    figure = figures.small_chart()
    described_and_self_contained(figure)
    words_inside(figure)
    found = load(figures.ALL_CASES)
    for B, n in figures.SMALL:
        for row in found.find(batch=B, n=n, family="dense", precision="fp32"):
            if row["stage"] in ("torch", "s06_update", "s07_whole"):
                assert f"{row['mode']} {figures.duration(row['median_us'])}" in figure.alt
                assert figures.took(row["stage"], B, n, row["mode"]) == row["median_us"] / 1e6


def test_what_the_page_says_of_the_small_cases():
    times = figures.small_times()
    # the tiny one is where it was predicted, and stage 6 is not far from it
    for stage in ("s06_update", "s07_whole"):
        took, said = times[20, 32, stage]["replay"]
        assert took == pytest.approx(said, rel=0.2)
    for n in (176, 352):
        took, said = times[40, n, "s06_update"]["replay"]
        assert said < took < 1.4 * said
        assert took - said < 2e-6 * len(figures.kernels("s06_update", 40, n))
    took, said = times[40, 176, "s07_whole"]["replay"]
    assert took > 1.5 * said
    # what the pencil would still give to one program stage 7 hands over
    one_sm = figures.H200.measured["fp32"].value / figures.H200.sms
    spared = figures.pencil("s06_update", 40, 352, True).launches
    assert model.geqr2(352, 352).flops / one_sm < spared
    assert not s07_whole.pays(40, 352, 352, True)
    assert figures.strips(352) > 3.5 * figures.strips(176)
    for B, n in figures.SMALL:
        six, seven = (times[B, n, stage]["eager"][0] for stage in ("s06_update", "s07_whole"))
        assert seven < six / 2


def test_what_the_page_says_of_all_cases():
    seven = partial(load(figures.ALL_CASES).find, stage="s07_whole", precision="fp32")
    factor = {r["n"]: r["speedup"] for r in seven(mode="replay", family="dense")}
    assert sorted(factor, key=factor.get)[:3] == [4096, 2048, 32]
    (largest,) = seven(mode="eager", n=4096)
    assert 1 < largest["speedup"] < 1.5
