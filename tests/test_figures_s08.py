"""The figures of the chapter of stage 8: lanes that hold what the verbs find, sums, two streams."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from drawings import EveryFigure, texts  # noqa: E402

from qrlib import reconstruction  # noqa: E402
from qrlib.bench import load, results  # noqa: E402
from qrlib.launches import launches  # noqa: E402
from qrlib.stages.s06_update import N0, factor  # noqa: E402
from qrlib.teach.ahead import length, schedule  # noqa: E402
from qrlib.teach.figures import s08_cholesky as figures  # noqa: E402
from qrlib.teach.figures.ladder import CASES  # noqa: E402

MOMENTS = 6
EXAMPLE = [3.0, 8, 1], [1.0, 2, 3], [12.0, 2, 7]
DRAWN = {
    **{f"lanes {k}": (figures.moment_frame, k) for k in range(MOMENTS)},
    **{f"ahead {ahead}": (lambda ahead: figures.ahead_frame(ahead).figure, ahead)
       for ahead in (False, True)},
    "ahead, far longer": (lambda: figures.ahead_frame(True, EXAMPLE).figure,),
}  # fmt: skip
STEPPERS = (figures.rows_stepper, figures.ahead_stepper)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


# lanes


def panels():
    rng = np.random.default_rng(0)
    return {
        "the example": figures.P43,
        "normal": rng.standard_normal((9, 5)),
        "a negative head": -np.abs(rng.standard_normal((6, 4))),
    }


@pytest.mark.parametrize("name", panels())
def test_lanes_find_what_the_verbs_find(name):
    P = panels()[name]
    N = P.shape[1]
    last = figures.moments(P)[-1]
    rw, yl = np.array(last.rw), np.array(last.yl)
    X = torch.from_numpy(P)[None]
    R, L, W, ok = (each[0].numpy() for each in reconstruction.eliminate(X.mT @ X, X[:, :N]))
    assert ok
    for mine, right in ((rw[:, :N], R), (rw[:, N:], W), (yl[:, N:].T, L)):
        np.testing.assert_allclose(mine, right, atol=1e-12)
    np.testing.assert_allclose(yl[:, :N].T @ W, np.eye(N), atol=1e-12)


def test_rows_move_up_until_none_is_left():
    found = figures.moments()
    assert len(found) == MOMENTS
    assert [len(each.z) for each in found] == [3, 3, 2, 2, 1, 1]
    assert [len(each.rw) for each in found] == [0, 1, 1, 2, 2, 3]
    # what a mirror has cleared is zero in the rows below
    for each in found:
        done = len(each.rw) - (each.j is not None)
        for row in each.z:
            np.testing.assert_allclose(row[:done], 0, atol=1e-12)
            np.testing.assert_allclose(row[3 : 3 + done], 0, atol=1e-12)


def test_a_frame_names_the_rows_that_are_there(drawn):
    assert texts(drawn["lanes 0"]).count("row 2") == 2
    said = texts(drawn["lanes 4"])
    assert said.count("row 0") == said.count("row 1") == 2 and said.count("row 2") == 2
    assert "Lane 1 sends the pivot 36" in figures.moment_words(3)


# kernels


def test_the_bill_has_the_kernels_of_the_stage_in_their_order():
    parts = figures.panel_parts(640, 512)
    started = launches("s08_cholesky", 640, 512, 512, target="sm_90a")
    names = [each.config.name for each in started]
    first = names.index("square_kernel")
    assert names[first : first + 6] == [f"{part.name}_kernel" for part in parts]
    for part, each in zip(parts, started[first:]):
        assert part.programs == np.prod(each.grid)
    assert [part.name for part in parts if part.steps] == ["eliminate", "judge"]


def test_what_grows_with_the_rows_is_products_and_what_is_stored():
    low, high = figures.panel_parts(1, 512), figures.panel_parts(1, 1024)
    grown = [b.name for a, b in zip(low, high) if b.bytes > a.bytes]
    assert grown == ["square", "vectors", "finish"]
    for part in high:
        assert sum(figures.seconds(part)) > 0


def test_no_barrier_in_the_chain_of_a_square():
    """One turn of the loop is a block of 16 mirrors, and what comes before its chain has some."""
    small = figures.in_loop("s08_cholesky", "eliminate_kernel")
    panel = figures.in_loop("s05_panel", "panel_kernel").counts
    assert "BAR" not in small.chain and small.counts["BAR"] >= 1 and panel["BAR"] >= 1
    assert small.chain["MUFU"] == small.counts["MUFU"] == 2 * N0
    # an entry for the left half and one for the right is one shuffle for each row below
    assert small.chain["SHFL"] >= N0 * (N0 - 1) / 2
    assert small.counts["all"] / N0 < panel["all"]
    with pytest.raises(ValueError, match="starts no square"):
        figures.in_loop("s08_cholesky", "square")


# sums


def test_sums_that_are_cut_off_are_too_small_and_the_more_rows_the_more():
    means = []
    for m in (128, 512, 2048):
        cut, kept = (figures.sums_of(m, how) for how in (figures.cut_sum, figures.float32_sum))
        means.append(cut.mean)
        assert abs(kept.mean) < 1 and cut.worst < 2 * abs(cut.mean)
    assert 0 > means[0] > means[1] > means[2] and means[2] < 8 * means[0]


def test_a_sum_of_few_bits_is_not_cut():
    x = np.arange(1, 33, dtype=np.float32)[:, None]
    assert figures.cut_sum(x, x) == figures.float32_sum(x, x) == (x.astype(float) ** 2).sum()
    # the last bit of 2^24 + 1 does not fit
    tall = np.array([[2.0**12], [1.0]], np.float32)
    assert figures.cut_sum(tall, tall, group=1) == 2.0**24
    assert figures.cut_sum(-tall, tall, group=1) == -(2.0**24)


def test_tau_from_sums_that_are_cut_off_costs_orthogonality():
    off = [figures.with_tau(n, figures.cut_sum) for n in (64, 256)]
    right = [figures.with_tau(n, figures.float32_sum) for n in (64, 256)]
    assert off[1] > off[0] > 2 * right[0] and right[1] <= right[0]


# two streams


def test_a_schedule_by_hand():
    bars = {(bar.what, bar.step): (bar.begin, bar.end) for bar in schedule(*EXAMPLE)}
    assert bars["panels", 0] == (0, 3) and bars["near", 0] == (3, 4)
    assert bars["far", 0] == (3, 15)
    # the second panels go beside it, and both updates wait for it
    assert bars["panels", 1] == (4, 12) and bars["near", 1] == bars["far", 1] == (15, 17)
    assert bars["panels", 2] == (17, 18) and bars["near", 2] == (18, 21)
    assert length(schedule(*EXAMPLE)) == 25
    order = schedule(*EXAMPLE, ahead=False)
    assert length(order) == sum(map(sum, EXAMPLE))
    assert not any(bar.beside for bar in order)


def test_look_ahead_is_never_slower():
    rng = np.random.default_rng(0)
    for _ in range(50):
        given = rng.uniform(0, 5, (3, 6)).tolist()
        ahead, order = (length(schedule(*given, ahead=how)) for how in (True, False))
        assert max(sum(given[0]), sum(given[2])) <= ahead <= order + 1e-9


def test_the_model_has_the_steps_of_the_loop():
    B, n = figures.AHEAD
    panels, near, far = figures.lengths()
    assert len(panels) == len(near) == len(far) == n // 128
    assert near[-1] == far[-1] == far[-2] == 0
    # in the first step 128 columns are near, and all but 256 are far
    assert far[0] / near[0] == pytest.approx((n - 256) / 128)
    # such a batch does it
    assert B < factor.__globals__["AHEAD"]


# by the clock


@pytest.fixture
def with_stage_8():
    found = copy.deepcopy(load(CASES))
    rows = [row for row in found.rows if row["stage"] != figures.STAGE]
    for row in [row for row in rows if row["stage"] == "s06_update"]:
        rows.append(row | {"stage": figures.STAGE, "median_us": row["median_us"] / 2})
    return results.Results(**{**vars(found), "rows": rows})


def test_beside_shows_the_cases_that_have_both(with_stage_8):
    table = figures.beside(with_stage_8)
    assert len(table.rows) == 12 and {row[-1] for row in table.rows} == {"2"}
    some = [
        row
        for row in with_stage_8.rows
        if row["stage"] != figures.STAGE or (row["n"], row["mode"]) == (2048, "replay")
    ]
    one = figures.beside(results.Results(**{**vars(with_stage_8), "rows": some}))
    assert [row[0] for row in one.rows] == ["8 x 2048 dense"]


def test_beside_says_what_to_measure_where_nothing_was(with_stage_8):
    none = [row for row in with_stage_8.rows if row["stage"] != figures.STAGE]
    empty = results.Results(**{**vars(with_stage_8), "rows": none})
    with pytest.raises(ValueError, match="--stage s06_update s08_cholesky --replay"):
        figures.beside(empty)


def test_spent_is_the_stored_profile_and_what_the_page_says_of_it():
    found = load(figures.PROFILE)
    rows = figures.spent().rows
    several = [row for row in found.find(mode="replay", precision="fp32") if row["n"] > 64]
    assert [row[0] for row in rows] == [figures.named(row) for row in several]
    panel, update = ([float(row[k]) for row in rows] for k in (5, 6))
    # nothing is at a ceiling; from 640 matrices of 512 on panels are further from it where there
    # are fewer
    assert min(panel + update) > 2 and max(update) <= 5
    assert panel[2:] == sorted(panel[2:]) and panel[2] < 4 and panel[-1] > 15
