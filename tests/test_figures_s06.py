"""The figures of chapter 9: what they say is what the kernels do, and bits counted again."""

import math
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from drawings import (  # noqa: E402
    EveryFigure,
    described_and_self_contained,
    texts,
    words_inside,
)
from tables import normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib import model  # noqa: E402
from qrlib.householder import larfb, larft  # noqa: E402
from qrlib.launches import launches  # noqa: E402
from qrlib.matrices import BENCHMARK_CASES, make  # noqa: E402
from qrlib.stages import s03_blocked, s06_update  # noqa: E402
from qrlib.teach import pairs  # noqa: E402
from qrlib.teach.exercises.s06_update import one_launch, split16  # noqa: E402
from qrlib.teach.figures import s06_update as figures  # noqa: E402
from qrlib.tracer import trace  # noqa: E402

needs_interpreter = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="accesses are traced in the interpreter"
)
X = figures.SHOWN
DRAWN = {
    **{f"walk {k}": (figures.walk_frame, k) for k in range(10)},
    "walk of one tile": (figures.walk_frame, 3, figures.stops(1)),
    "moved": (figures.moved_chart,),
    "moved, small": (figures.moved_chart, 40, 10, 16),
    "one level": (figures.levels_frame, (16,)),
    "three levels": (figures.levels_frame,),
    "joins": (figures.joins,),
    **{f"split {x:.3f}": (figures.split_frame, x, "tf32, nearest", pairs.nearest) for x in X},
    "split negative": (figures.split_frame, -0.7, "tf32, cut off", pairs.cut),
    "residuals": (lambda: figures.residuals_chart(figures.residuals(32, 1)),),
    "scale": (figures.scale_plot,),
    "kernels of 2": (figures.timeline_frame, 2),
    "kernels of 30": (figures.timeline_frame, 30, 20),
}
PLOTS = ("scale",)
STEPPERS = (
    figures.walk_stepper,
    lambda: figures.walk_stepper(1),
    figures.levels_stepper,
    figures.split_stepper,
    figures.timeline_stepper,
)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


# levels of panels


def updates(n, widths):
    """{column: updates before its narrow panel} and entries of C, by walking panels in panels."""
    met, moved = dict.fromkeys(range(n), 0), [0] * len(widths)

    def go(first, end, level):
        width = widths[level]
        for j in range(first, end, width):
            stop = min(j + width, end)
            if level:
                go(j, stop, level - 1)
            for c in range(stop, end):
                met[c] += 1
            moved[level] += 3 * (n - j) * (end - stop)

    go(0, n, len(widths) - 1)
    return met, moved


@pytest.mark.parametrize("widths", [(16,), (16, 64), (16, 64, 128), (8, 32)])
@pytest.mark.parametrize("n", (64, 128, 200, 512))
def test_columns_meet_so_many_updates(n, widths):
    met, moved = updates(n, widths)
    assert figures.entries_updated(n, widths) == moved
    for c in range(n):
        assert sum(figures.trips(c, widths)) == met[c]


def test_one_level_moves_what_chapter_5_says():
    n = 2048
    assert figures.entries_updated(n, (16,))[0] == pytest.approx(n**3 / 16, rel=0.02)
    # far columns are read for every panel of the widest level
    assert figures.entries_updated(n)[-1] == pytest.approx(n**3 / 128, rel=0.1)


def test_the_saw_has_the_heights_that_it_says(drawn):
    assert "goes through 31 updates" in drawn["one level"].alt
    total = sum(figures.trips(511))
    assert f"goes through {total} updates" in drawn["three levels"].alt


# what an update moves


def test_three_products_move_what_the_model_says():
    m, n, nb = 300, 170, 48
    _, parts = figures.moved(m, n, nb)["three products"]
    assert sum(parts.values()) == model._larfb_traffic(m, n, nb)


def test_the_chart_adds_up(drawn):
    m, n, nb = 512, 448, 64
    for how, (_, parts) in figures.moved(m, n, nb).items():
        assert f"{sum(parts.values()) / (m * n):.1f} times C" in texts(drawn["moved"]), how


def test_a_walk_loads_and_stores_what_the_exercise_counts():
    for tiles in (1, 4, 7):
        last = figures.stops(tiles)[-1]
        loaded, stored = one_launch(64 * tiles, 64, 64)
        assert (last.loaded, last.stored) == (4 * loaded, 4 * stored)


@needs_interpreter
@pytest.mark.parametrize("m, n, nb", [(64, 64, 64), (130, 100, 20), (70, 130, 64), (40, 9, 16)])
def test_the_tracer_counts_what_the_exercise_does(m, n, nb):
    V = qrlib.unpack_v(normal(1, m, nb, seed=m))
    T = larft(V, 2 / (V * V).sum(-2))
    C = normal(1, m, n, seed=n) / m
    expected = larfb(V, T, C)
    with trace(V=V, T=T, C=C) as t:
        s06_update.update(V, T, C, "ieee")
    torch.testing.assert_close(C, expected, rtol=1e-4, atol=1e-5)
    assert len(t.launches) == 1
    assert (t.total.load.elements, t.total.store.elements) == one_launch(m, n, nb)
    # and the bar of the chart
    _, parts = figures.moved(m, n, nb)["all loads and stores"]
    assert sum(parts.values()) == sum(one_launch(m, n, nb))


def test_the_far_update_is_the_one_with_the_most_rows_of_w():
    made = figures.far_update()
    assert made.config.name == "update_kernel" and made.tensor_cores > 0
    constants = made.config.constexprs
    for launch in launches("s06_update", 640, 512, 512, target="sm_90a"):
        if launch.config.name == "update_kernel":
            assert figures.rows_of_w(launch.config.constexprs) <= figures.rows_of_w(constants)
    # its splits round to nearest
    assert figures.conversions(made, "rn.f16") > 0


def test_a_single_product_in_tf32_rounds_nothing_of_its_own():
    one, three = (figures.far_update(precision) for precision in ("tf32", "tf32x3"))
    small = figures.conversions(figures.far_update("fp16x3"), "rna.tf32")
    assert figures.conversions(one, "rna.tf32") == small
    assert figures.conversions(three, "rna.tf32") > small
    assert one.tensor_cores < three.tensor_cores


def test_fewer_matrices_start_more_kernels():
    starts = [len(launches("s06_update", B, 256, 256, target="sm_90a")) for B in (1, 20, 500, 640)]
    assert starts == sorted(starts, reverse=True) and starts[-1] == starts[-2] < starts[0]


# bits


@pytest.mark.parametrize("rounding", (pairs.cut, pairs.nearest))
def test_roundings_have_so_many_bits_and_no_more(rounding):
    x = normal(10_000, seed=3).numpy()
    for bits in (8, 11, 16):
        r = rounding(x, bits)
        mantissa, _ = np.frexp(r.astype(float))
        assert (mantissa * 2.0**bits == np.round(mantissa * 2.0**bits)).all()
        step = 2.0 ** -(bits - 1) if rounding is pairs.cut else 2.0**-bits
        assert (np.abs(r - x) <= step * np.abs(x)).all()
        # nothing that fits is changed
        assert (rounding(r, bits) == r).all()
    if rounding is pairs.cut:
        assert (np.abs(r) <= np.abs(x)).all()


def test_half_is_float16_of_what_is_lifted():
    x = np.array([1.0, 0.1, 2.0**-30, 3.9, 5.0], np.float32)
    r = pairs.half(x)
    assert r[0] == 1 and math.isinf(r[4]) and np.isfinite(r[3])
    hi, lo = split16(x[:3])
    parts = pairs.split(x[:3], pairs.half)
    for one, other in zip((hi, lo), parts):
        assert (one.astype(np.float32) / np.float32(2**14) == other).all()


def test_two_halves_lose_what_the_theorem_allows():
    x = normal(200_000, seed=1).numpy()
    for rounding, first, both in ((pairs.nearest, 1, 1), (pairs.cut, 2, 3)):
        hi, lo = pairs.split(x, rounding)
        rest = x.astype(float) - hi
        assert (np.abs(rest) <= first * 2.0**-11 * np.abs(x)).all()
        assert (rest == x - hi).all()
        lost = np.abs(rest - lo) / np.abs(x)
        assert both * 2.0**-24 < lost.max() <= both * 2.0**-23
    hi, lo = pairs.split(x, pairs.nearest)
    assert (x.astype(float) == hi.astype(float) + lo).mean() == pytest.approx(0.75, abs=0.01)


def test_a_lifted_pair_is_as_good_as_the_page_says():
    rng = np.random.default_rng(5)
    x = (rng.uniform(-1, 1, 100_000) * 2.0 ** -rng.integers(0, 45, 100_000)).astype(np.float32)
    hi, lo = split16(x)
    error = np.abs(x - (hi.astype(float) + lo) * 2.0**-14)
    assert (error <= np.maximum(2.0**-23 * np.abs(x), 2.0**-39)).all()


@pytest.mark.parametrize("name", ("tf32, cut off", "tf32, nearest"))
@pytest.mark.parametrize("x", [*X, -0.3, 0.75, 1.0])
def test_a_number_is_the_sum_of_its_parts(name, x):
    k, hi, rest, lo, lost = figures.parts(x, pairs.ROUNDINGS[name])
    assert hi + rest == k and lo + lost == rest and 2**23 <= abs(k) < 2**24
    assert abs(lost) <= (1 if name.endswith("nearest") else 3)
    # 11 bits each
    for part in (hi, lo):
        assert abs(part).bit_length() - (part & -part).bit_length() < 11


def test_the_numbers_shown_are_of_every_kind():
    found = {
        name: [figures.parts(x, pairs.ROUNDINGS[name]) for x in X]
        for name in ("tf32, cut off", "tf32, nearest")
    }
    nearest = found["tf32, nearest"]
    assert any(part[-1] for part in nearest) and any(part[2] < 0 for part in nearest)
    assert sum(part[-1] == 0 for part in nearest) == 3
    assert any(part[-1] == 3 for part in found["tf32, cut off"])


def test_three_products_are_enough_and_two_are_not():
    errors = figures.product_errors(200, 24)
    ours = errors["float32"][np.float32][0]
    for name, kinds in errors.items():
        if name == "float32":
            continue
        exact, rounded = kinds[np.float64], kinds[np.float32]
        assert exact[0] > 50 and exact[1] > 20 and exact[2] < 1
        assert rounded[2] < 2 * ours + 1 and rounded[3] < 2 * ours + 1
    cut, nearest = (errors[f"tf32, {how}"] for how in ("cut off", "nearest"))
    assert cut[np.float64][0] > 1.5 * nearest[np.float64][0]
    assert cut[np.float64][2] > 1.5 * nearest[np.float64][2]


def test_products_by_hand():
    a = np.array([[1 + 2.0**-12, 1 - 2.0**-20]], np.float32)
    b = a.T.copy()
    a1, a2 = pairs.split(a, pairs.nearest)
    assert (a2 == a - a1).all() and a2.all()
    pairs_of = ((a1, a1), (a2, a1), (a1, a2), (a2, a2))
    parts = [(x.astype(float) @ y.astype(float).T).item() for x, y in pairs_of]
    for k in (1, 2, 3, 4):
        found = pairs.product(a, b, pairs.nearest, k, np.float64)
        assert found[0, 0] == pytest.approx(sum(parts[:k]), rel=1e-15)


# whole factorizations


@pytest.mark.parametrize("name", ("tf32, nearest", "fp16"))
def test_three_products_keep_the_columns(name):
    A = normal(2, 40, 40) * 10.0 ** -torch.arange(0, 40)
    A = A * 1e15
    c = qrlib.certify(A, *pairs.geqrf(A, pairs.ROUNDINGS[name], nb=8))
    assert c.passed and c.columnwise.max() < 2


def test_by_column_is_what_stage_6_does():
    from qrlib.scaling import scaled

    A = normal(2, 30, 20) * 10.0 ** torch.linspace(-37, 37, 20)
    A[0, :, 3] = 0
    _, e = scaled(A)
    expected = 2.0 ** -e.double()
    got = pairs.by_column(A)[:, 0].double()
    nonzero = (A != 0).any(1)
    assert torch.equal(got[nonzero], expected[nonzero])
    assert torch.equal(pairs.by_matrix(A)[:, 0, 0], pairs.by_column(A)[:, 0].amin(1))


def test_orthogonality_does_not_depend_on_the_products():
    found = figures.residuals(64, 2)
    for family in figures.GATED:
        values = [each[family][1] for each in found.values()]
        assert max(values) < 1
    one, three, plain = (
        max(factor for factor, _ in found[policy].values())
        for policy in ("one product, tf32 cut off", "three products, fp16", "float32")
    )
    assert one > 20 and three < 2 * plain + 0.1


def test_residuals_are_those_of_stage_3():
    family = "band"
    A = torch.from_numpy(make(family, 2, 64, cond=2))
    c = qrlib.certify(A, *s03_blocked.geqrf(A))
    assert figures.residuals(64, 2)["float32"][family][0] == float(c.factor.max())


def test_the_plot_of_scales_says_its_numbers(drawn):
    sizes, one, own = zip(*figures.scale_errors())
    assert max(own) < 1 and max(one) > 1000
    first, last, low = map(
        float, re.search(r"from (\S+) to (\S+) as .* below (\S+)\.$", drawn["scale"].alt).groups()
    )
    assert (first, last, low) == pytest.approx((one[0], max(one), max(own)), rel=0.1)


# host and device


@pytest.mark.parametrize("us", (2, 5, 10, 20))
@pytest.mark.parametrize("graph", (False, True))
def test_a_kernel_waits_for_its_start_and_for_the_one_before(us, graph):
    host, device = figures.timeline(us, graph)
    assert len(device) == 8 and len(host) == (1 if graph else 8)
    for k, (start, end) in enumerate(device):
        assert end - start == pytest.approx(us)
        assert start >= host[min(k, len(host) - 1)][1]
        assert k == 0 or start >= max(device[k - 1][1], device[k - 1][0] + 3)


def test_a_graph_helps_short_kernels_and_not_long_ones():
    def gain(us):
        return figures.timeline(us, False)[1][-1][1] / figures.timeline(us, True)[1][-1][1]

    assert gain(2) > 2 and gain(50) == pytest.approx(1)


# measured


def saved(tmp_path, rows):
    from qrlib.bench import Results
    from qrlib.bench.results import ORIGIN

    origin = dict.fromkeys(ORIGIN, "x")
    origin |= {"device": "cuda", "gpu": "GPU of a test", "driver": "1", "cuda": "2", "cpu": "y"}
    origin |= {"commit": "0123456789abcdef", "dirty": False, "date": "2001-02-03T04:05:06+00:00"}
    Results(origin, {}, rows).save(tmp_path / "times.json")
    return tmp_path / "times.json"


def row(stage, us, mode, n=352, B=40, **more):
    ok = us is not None
    return {
        "batch": B,
        "n": n,
        "cond": 1,
        "family": "dense",
        "stage": stage,
        "precision": "fp32",
        "mode": mode,
        "ok": ok,
        "faults": [] if ok else ["factor 99"],
        "median_us": us,
        "speedup": None,
        "certificate": {"factor": 0.1, "orthogonality": 0.2, "columnwise": 0.1},
    } | more


def test_replays_are_the_rows_of_the_file(tmp_path):
    rows = [row("s06_update", 900.0, "eager"), row("s06_update", 300.0, "replay")]
    rows += [row("s06_update", 99.0, "eager", n=64)]
    lines = figures.replay_table(saved(tmp_path, rows))
    # the case without a replay is left out
    assert len(lines) == 4 and lines[-1].startswith("measured on GPU of a test")
    cells = lines[1].split()
    assert cells[:2] == ["40", "352"] and cells[-1] == "3.00"
    count = len(launches("s06_update", 40, 352, 352, target="sm_90a"))
    assert int(cells[2]) == count and f"{900 / count:.3g} \u00b5s" in lines[1]
    assert "900 \u00b5s" in lines[1] and "300 \u00b5s" in lines[1]


def test_the_chart_of_replays_has_the_bars_of_the_file(tmp_path):
    rows = [
        row("s06_update", us, mode, n=n, B=B)
        for B, n, both in ((20, 32, (90.0, 30.0)), (640, 512, (5000.0, 4900.0)))
        for mode, us in zip(("eager", "replay"), both)
    ]
    figure = figures.replay_chart(saved(tmp_path, rows))
    described_and_self_contained(figure)
    words_inside(figure)
    assert "one by one 90 \u00b5s, replayed 30 \u00b5s" in figure.alt
    bars = re.findall(r'<rect x="104" y="\d+" width="([\d.]+)"', figure.body())
    left, right = 104, 410
    for width, us in zip(bars, (90, 30, 5000, 4900), strict=True):
        assert float(width) == pytest.approx((right - left) * (math.log10(us) - 1) / 3, abs=0.02)


def test_precisions_are_the_rows_of_the_file(tmp_path):
    rows = [
        row("s06_update:precision=tf32", None, "replay", certificate={"factor": 77.0}),
        row("s06_update:precision=fp16x3", 1234.0, "replay"),
        row("s06_update:precision=fp16x3", 2234.0, "eager"),
    ]
    lines = figures.precision_table(saved(tmp_path, rows))
    assert len(lines) == 5
    assert "tf32" in lines[1] and "no time" in lines[1] and "77" in lines[1]
    assert "fp16x3" in lines[2] and "1.23 ms" in lines[2]


def test_a_time_of_a_precision(tmp_path):
    rows = [
        row("s06_update:precision=tf32", None, "replay", certificate=None),
        row("s06_update:precision=fp16x3", 1234.0, "replay"),
        row("s06_update:precision=fp16x3", 2234.0, "eager"),
    ]
    file = saved(tmp_path, rows)
    assert figures.timed("fp16x3", 352, file) == pytest.approx(1234e-6)
    assert figures.timed("tf32", 352, file) is None


def test_what_the_page_says_of_the_stored_precisions():
    time = {
        (name, n): figures.timed(name, n)
        for name in ("ieee", "tf32x3", "fp16x3", "tf32")
        for n in (176, 512, 1024, 2048)
    }
    for n in (176, 512, 1024, 2048):
        assert time["fp16x3", n] < time["tf32x3", n] < time["ieee", n]
    # a single product passes for the largest only, and is not faster for it
    assert [time["tf32", n] is None for n in (176, 512, 1024, 2048)] == [True, True, True, False]
    assert time["fp16x3", 2048] < time["tf32", 2048] < time["tf32x3", 2048]


def test_all_sizes_of_the_task_were_replayed():
    found = figures.replays(figures.results.load(figures.CASES))
    assert {(each.batch, each.n) for each in found} == {(c.batch, c.n) for c in BENCHMARK_CASES}
    assert all(each.replayed < each.eager for each in found)
