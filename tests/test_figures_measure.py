"""The figures of measuring: timelines add up, tricks are refused, and the page reads its tables."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from drawings import (  # noqa: E402
    described_and_self_contained,
    frames_differ,
    texts,
    words_inside,
)

from qrlib.bench import load  # noqa: E402
from qrlib.bench import measure as protocol  # noqa: E402
from qrlib.matrices import BENCHMARK_CASES, make  # noqa: E402
from qrlib.teach import tricks  # noqa: E402
from qrlib.teach.exercises.measure import accepts  # noqa: E402
from qrlib.teach.figures import measure as figures  # noqa: E402
from qrlib.teach.figures.ladder import CASES  # noqa: E402
from qrlib.teach.figures.roofline import SHAPES, geomean, stored  # noqa: E402
from qrlib.teach.timeline import seen, timeline  # noqa: E402

PUBLISHED, STORY, ON_GPU = stored("published"), stored("story"), load(CASES)
RUNS = {(run["name"], run["gpu"]): run["us"] for run in PUBLISHED["runs"]}
BEST = next(run for run in PUBLISHED["runs"] if run["name"] == "best public, case by case")
PLACES = [RUNS[f"{place} place", "B200"] for place in ("first", "second", "third")]
# seconds a column, about what the page computes
COLUMN = 0.19e-6
NOISE = [100.0 + k % 7 for k in range(60)] + [900.0, 150.0]
DRAWN = {
    **{f"clock {title}": (lambda t: figures.clock_frame(t).figure, title) for title in
       figures._VIEWS},
    **{f"order {order}": (lambda o: figures.order_frame(o).figure, order) for order in
       (*figures.ORDERS, "AB", "BBBBBBBA")},
    **{f"halved {n}": (lambda n: figures.halve_frame(BEST["us"], (b_of(n), n), "x").figure, n)
       for _, n in SHAPES},
    **{f"rivals {k}": (lambda k: figures.rivals_stepper(PUBLISHED).frames[k].figure, k)
       for k in range(4)},
    "spread": (figures.spread_plot, NOISE),
    "way": (figures.way, STORY, 130.0),
}  # fmt: skip


def b_of(n):
    return next(case.batch for case in BENCHMARK_CASES if case.n == n)


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_described_self_contained_and_follows_the_page(drawn, name):
    described_and_self_contained(drawn[name])


@pytest.mark.parametrize("name", [name for name in DRAWN if name != "spread"])
def test_words_stand_inside_the_figure(drawn, name):
    words_inside(drawn[name])


@pytest.mark.parametrize(
    "stepper",
    (
        figures.clocks_stepper,
        figures.order_stepper,
        lambda: figures.halve_stepper(BEST),
        lambda: figures.rivals_stepper(PUBLISHED),
    ),
)
def test_the_frames_of_a_stepper_differ(stepper):
    frames_differ(stepper())


# timelines


def test_a_timeline_by_hand():
    bars = timeline((5, 20, 5, 30), 8)
    assert [(bar.run, bar.ended) for bar in bars] == [(8, 13), (16, 36), (36, 41), (41, 71)]
    assert seen(bars) == {"host": (0, 32), "idle": (0, 71), "events": (0, 71)}
    aside = timeline((5, 20, 5, 30), 8, elsewhere=(3,))
    assert (aside[3].run, aside[3].ended) == (32, 62)
    assert seen(aside) == {"host": (0, 32), "idle": (0, 62), "events": (0, 41)}
    # one in the middle that is elsewhere keeps nobody waiting
    assert timeline((5, 20, 5), 8, elsewhere=(1,))[2].run == 24


@pytest.mark.parametrize("busy", (0.0, 17.0, 300.0))
def test_nothing_begins_before_it_can(busy):
    bars = timeline((3, 40, 1, 9, 2), 7, busy=busy)
    for k, bar in enumerate(bars):
        assert bar.launched == 7 * (k + 1) and bar.run >= max(bar.launched, busy)
    for before, after in zip(bars, bars[1:]):
        assert after.run == max(before.ended, after.launched)


def test_in_a_queue_there_are_no_gaps():
    kernels = (3, 40, 1, 9, 2)
    bars = timeline(kernels, 7, busy=300.0)
    start, to = seen(bars, busy=300.0)["events"]
    assert to - start == sum(kernels)


def test_each_way_to_start_shows_another_time(drawn):
    shown = [figures.clock_frame(title).readout.partition(".")[0] for title in figures._VIEWS]
    assert len(set(shown)) == len(shown)
    kernels = sum(figures.KERNELS)
    assert f"events: {kernels} \u00b5s" in figures.clock_frame("behind other work").readout
    # on its own stream the last one is not seen
    hidden = seen(timeline(figures.KERNELS, figures.HOST, elsewhere=(3,)))["events"]
    assert f"events: {hidden[1]:.3g} \u00b5s" in figures.clock_frame("in another stream").readout
    alone = seen(timeline(figures.KERNELS, figures.HOST))
    assert alone["idle"] == alone["events"] and alone["host"][1] < alone["idle"][1]


# turns, spread


def test_turns_undo_a_steady_drift():
    ratio = {o: median(figures.taken(o)["B"]) / median(figures.taken(o)["A"]) for o in
             figures.ORDERS}  # fmt: skip
    assert ratio["AAAABBBB"] > ratio["ABABABAB"] > ratio["ABBAABBA"] == 1
    assert "B takes as long as A" in figures.order_frame("ABBAABBA").readout
    assert "7.8 % longer" in figures.order_frame("AAAABBBB").readout


def test_a_spread_is_told(drawn):
    alt = drawn["spread"].alt
    assert "62 times" in alt and "from 100 to 900" in alt and "median 103" in alt
    assert f"mean {sum(NOISE) / 62:.4g}" in alt and alt.endswith("Above the picture: 1.")


def test_stored_first_calls_are_the_longest():
    table = figures.first_calls(ON_GPU)
    shares = [float(row[-1].replace(",", "")) for row in table.rows]
    assert shares == sorted(shares, reverse=True) and shares[-1] > 10
    every = [
        1e3 * row["first_call_ms"] / row["median_us"]
        for row in ON_GPU.rows
        if row["mode"] == "eager" and row["stage"] != "torch"
    ]
    assert shares[0] == pytest.approx(max(every), abs=0.5)


def test_what_the_host_starts_scatters_and_a_replay_does_not():
    def spread(text):
        low, high = (float(x.replace(",", "")) for x in text.split(" to "))
        return high / low

    table = figures.widest(ON_GPU)
    assert len(table.rows) == 4
    for row in table.rows:
        assert spread(row[2]) > 1.1 * spread(row[3]), row


def test_what_stays_in_a_cache():
    rows = {row[0]: row[2:] for row in figures.fits_table().rows}
    assert rows["20 x 32"] == ["yes", "yes"] and rows["640 x 512"] == ["no", "no"]
    assert len(rows) == 7


# the gate

SAYS = {
    tricks.Remembers: "a tensor filled anew: factor",
    tricks.PutsOff: "the result changed after the clock had stopped",
    tricks.Rewrites: "the input was overwritten",
    tricks.CutsTheTail: "columnwise",
    tricks.SkipsItsCheck: "at this n alone",
    tricks.OnlyHere: "beside it, at 4 x 127",
}


def judged(kernel, precision="fp32", **protocol):
    return tricks.before_the_bench(kernel, precision, runs=3, sweep=0, **protocol)


@pytest.fixture(autouse=True)
def put_off_until_it_is_judged(monkeypatch):
    """What a trick puts off is done when all clocks are off, and then at once, on any machine."""
    off, pools, judge = threading.Event(), [], protocol._judge

    def pool(threads):
        pools.append(ThreadPoolExecutor(threads))
        return pools[-1]

    def judge_what_is_done(*args):
        off.set()
        for each in pools:
            # a thread does in order what it is given
            each.submit(int).result()
        off.clear()
        return judge(*args)

    monkeypatch.setattr(tricks, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(tricks, "sleep", lambda seconds: off.wait())
    monkeypatch.setattr(protocol, "_judge", judge_what_is_done)
    yield
    off.set()


def test_every_trick_is_told():
    assert set(SAYS) == set(tricks.TRICKS)


@pytest.mark.parametrize("trick", tricks.TRICKS)
def test_a_trick_is_right_when_it_is_checked_once(trick):
    assert tricks.careless(trick(), tricks.batch(), runs=1)[1]


@pytest.mark.parametrize("trick", tricks.TRICKS)
def test_a_trick_has_no_time_and_the_fault_that_the_page_tells_of(trick):
    row = judged(trick())
    assert row["median_us"] is None and not row["ok"]
    assert any(SAYS[trick] in fault for fault in row["faults"]), row["faults"]


@pytest.mark.parametrize("trick", [t for t in tricks.TRICKS if t is not tricks.CutsTheTail])
def test_at_policy_fast_too(trick):
    assert not judged(trick(), "fast")["ok"]


def test_the_tail_passes_the_gate_of_the_task_with_a_word():
    row = judged(tricks.CutsTheTail(), "fast")
    assert row["ok"] and "a column was not computed" in row["notes"][0]


def test_only_the_shapes_beside_it_betray_two():
    for trick in (tricks.SkipsItsCheck, tricks.OnlyHere):
        assert judged(trick(), "fast", probes=False)["ok"]


def test_the_gate_of_the_exercise_lets_three_tricks_through():
    case, seeds = tricks.CASE, iter(range(100))

    def fresh():
        A = make(case.family, case.batch, case.n, cond=case.cond, seed=next(seeds))
        return torch.from_numpy(A)

    # what is put off is done, or not, by the time that it is looked at
    steady = [trick for trick in tricks.TRICKS if trick is not tricks.PutsOff]
    passed = [trick for trick in steady if accepts(trick(), fresh)]
    # what is remembered by a tensor is of no use when all are new, and what is given is right
    assert passed == [
        tricks.Remembers,
        tricks.CutsTheTail,
        tricks.SkipsItsCheck,
        tricks.OnlyHere,
    ]


def test_what_is_honest_passes():
    row = judged(tricks.honest)
    assert row["ok"] and row["notes"] == []
    assert not tricks.careless(lambda A: (A.clone(), A.new_zeros(A.shape[:2])), tricks.batch())[1]


def test_the_table_of_verdicts_has_one_of_each():
    rows = figures.verdicts(runs=3).rows
    names = [trick.__name__ for trick in tricks.TRICKS]
    at = names.index("CutsTheTail") + 1
    assert [row[0] for row in rows] == [*names[:at], "CutsTheTail, policy fast", *names[at:]]
    assert rows.pop(at)[2].startswith("passes: a column was not computed")
    for trick, row in zip(tricks.TRICKS, rows):
        assert row[1].startswith("right, ") and row[1].endswith("x")
        assert SAYS[trick] in row[2]


# the score


def test_what_halving_does():
    for (batch, n), count in figures.counts().items():
        after = figures.halved(BEST["us"], (batch, n))
        assert sum(a != b for a, b in zip(after, BEST["us"])) == count
        assert geomean(after) / geomean(BEST["us"]) == pytest.approx(2 ** (-count / 12))
    assert sum(figures.counts().values()) == 12
    readout = figures.halve_frame(BEST["us"], (640, 512), "x").readout
    assert "20.6 % less" in readout and "in half the time" in readout
    # by the sum, the smallest case would not count
    assert sum(figures.halved(BEST["us"], (20, 32))) / sum(BEST["us"]) > 0.999


def test_the_theorem_of_means():
    t, b = BEST["us"], RUNS["torch.geqrf", "H200"]
    assert geomean([x / y for x, y in zip(b, t)]) == pytest.approx(geomean(b) / geomean(t))
    one, other = (1, 10), (10, 1)
    for mine, theirs in ((one, other), (other, one)):
        assert sum(x / y for x, y in zip(mine, theirs)) / 2 == pytest.approx(5.05)


# what the page reads from the tables


def test_the_three_places_are_close_and_none_is_first_everywhere():
    means = list(map(geomean, PLACES))
    assert max(means) / min(means) < 1.1
    for us in PLACES:
        assert any(t > min(all_of) for t, *all_of in zip(us, *PLACES))
    together = geomean([min(all_of) for all_of in zip(*PLACES)])
    assert min(means) / together > max(means) / min(means)


def test_who_looks_at_the_data():
    at = {case.family: k for k, case in enumerate(BENCHMARK_CASES) if case.n == 512}
    first, second, third = PLACES
    for us in (first, third):
        assert us[at["rankdef"]] < 0.9 * us[at["dense"]]
        assert us[at["clustered"]] < 0.7 * us[at["dense"]]
        assert us[at["mixed"]] > 1.3 * us[at["dense"]]
    for us in (second, RUNS["torch.geqrf", "H200"]):
        assert max(us[k] for k in at.values()) < 1.02 * min(us[k] for k in at.values())
    rows = {row[0]: row[2:] for row in figures.families_table(PUBLISHED).rows}
    assert rows["second place, B200"] == ["1.00", "0.99", "1.00"]
    assert len(rows) == len(PUBLISHED["runs"])


def test_rivals_say_how_often_they_are_fastest():
    runs = [run for run in PUBLISHED["runs"] if run["kind"] == "published"]
    said = [figures.rivals_frame(runs, run).readout for run in runs]
    wins = [int(words.partition("fastest in ")[2].split()[0]) for words in said]
    assert sum(wins) == 12 and "geometric mean 1175" in said[0]


def test_two_shapes_are_worth_more_than_the_five_others():
    table = figures.distance_table(BEST["us"], "H200", COLUMN)
    assert [row[0] for row in table.rows[:2]] == ["640 x 512", "60 x 1024"]
    left = [1 - float(row[-1].split()[0]) / 100 for row in table.rows]
    assert left == sorted(left) and left[0] * left[1] < math.prod(left[2:])


def test_ours_beside_theirs():
    table = figures.beside_table(ON_GPU, BEST)
    assert len(table.rows) == 13 and len({len(row) for row in table.rows}) == 1
    assert len(table.rows[0]) == len(table.heads)
    ratios = [float(row[3]) for row in table.rows]
    assert geomean(ratios[:-1]) == pytest.approx(ratios[-1], abs=0.01)


def test_the_way_is_that_of_the_board(drawn):
    board = PUBLISHED["board"]["us"]
    us = [point["us"] for point in STORY["points"]]
    assert us[0] == board["torch.geqrf"] and us[-1] == board["twelfth place"]
    assert us == sorted(us, reverse=True)
    assert round(us[0] / us[-1]) == 232
    said = texts(drawn["way"])
    assert any("108,803" in each for each in said)
    assert any("130: floor, predicted" in each for each in said)
    assert 100 < figures.floor_score("B200", COLUMN) < 200
