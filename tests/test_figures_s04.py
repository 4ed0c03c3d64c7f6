"""The figures of chapter 6: the order is that of the running stage, and numbers counted again."""

import re
from itertools import count

import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, texts  # noqa: E402

from qrlib import model  # noqa: E402
from qrlib.stages import s04_recursive  # noqa: E402
from qrlib.teach.figures import s04_recursive as figures  # noqa: E402

DRAWN = {
    **{f"walk {k}": (figures.walk_frame, 6, k) for k in range(17)},
    "walk of one": (figures.walk_frame, 1, 1),
    "walk of nine": (figures.walk_frame, 9, 20),
    "join": (figures.join,),
    "tree": (figures.tree,),
    "small tree": (figures.tree, 64, 2),
    "short tree": (figures.tree, 7, 7),
    "shares": (figures.shares_plot,),
    "moved": (figures.moved_plot,),
    "times": (figures.times_plot,),
}
PLOTS = ("shares", "moved", "times")
STEPPERS = (figures.walk_stepper, lambda: figures.walk_stepper(2))


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


def happened(b, monkeypatch):
    """[Event] of a panel of b columns, recorded inside the stage."""
    m, found = b + 3, []
    make, apply, multiply = s04_recursive._column, s04_recursive.larfb, s04_recursive.matmul
    products = count()

    def column(H, tau):
        j = m - H.shape[1]
        found.append(figures.Event("column", j, j + 1, j + 1))
        return make(H, tau)

    def update(V, T, C):
        j = m - V.shape[1]
        h = j + V.shape[2]
        found.append(figures.Event("update", j, h, h + C.shape[2]))
        return apply(V, T, C)

    def product(X, Y):
        # the first of the three of a join is V1^T V2
        if next(products) % 3 == 0:
            j = m - X.shape[2]
            h = j + X.shape[1]
            found.append(figures.Event("join", j, h, h + Y.shape[2]))
        return multiply(X, Y)

    monkeypatch.setattr(s04_recursive, "_column", column)
    monkeypatch.setattr(s04_recursive, "larfb", update)
    monkeypatch.setattr(s04_recursive, "matmul", product)
    H = torch.randn(1, m, b, generator=torch.Generator().manual_seed(0))
    s04_recursive.panel(H, H.new_zeros(1, b))
    return found


@pytest.mark.parametrize("b", (1, 2, 3, 5, 6, 8, 11))
def test_events_come_in_the_order_of_the_stage(b, monkeypatch):
    assert figures.events(0, b) == happened(b, monkeypatch)


@pytest.mark.parametrize("b", (1, 2, 5, 6, 9))
def test_a_column_meets_all_mirrors_before_it_gets_its_own(b):
    order = figures.events(0, b)
    for k, event in enumerate(order):
        seen = figures.mirrors_seen(b, order[:k])
        if event.what == "column":
            assert seen[event.j] == event.j
        elif event.what == "update":
            # nothing is applied twice, and nothing is left out
            assert seen[event.h : event.e] == [event.j] * (event.e - event.h)
    assert figures.mirrors_seen(b, order) == list(range(1, b + 1))


@pytest.mark.parametrize("b", (1, 2, 3, 7, 8, 9, 64, 100))
def test_the_tree_has_so_many_joins_and_levels(b):
    tree = figures.nodes(0, b)
    assert len([1 for _, j, h, e in tree if h == e]) == b
    assert len([1 for _, j, h, e in tree if h < e]) == b - 1
    assert max(d for d, *_ in tree) == figures.depth(b)
    # what the nodes say is what the events do
    joins = {(e.j, e.h, e.e) for e in figures.events(0, b) if e.what == "join"}
    assert joins == {(j, h, e) for _, j, h, e in tree if h < e}


def test_words_of_the_walk_count_the_products():
    order = figures.events(0, 6)
    for k in range(1, len(order) + 1):
        products = 3 * len([e for e in order[:k] if e.what in ("update", "join")])
        assert figures.walk_words(6, k).endswith(f"so far: {products}.")
    said = [figures.walk_words(6, k + 1) for k in range(len(order))]
    assert "columns 3 to 5 through the block of 3 mirrors made from columns 0 to 2" in "".join(said)
    assert "its corner T[0:3, 3:6] was missing" in said[-1]


def test_the_walk_shows_how_many_mirrors_each_column_has_met(drawn):
    for k in range(17):
        seen = figures.mirrors_seen(6, figures.events(0, 6)[:k])
        shown = texts(drawn[f"walk {k}"])
        at = shown.index("mirrors met")
        assert shown[at - 6 : at] == [str(each) for each in seen]


@pytest.mark.parametrize("m, b", [(512, 8), (40, 6), (9, 9), (30, 1)])
def test_the_levels_add_up_to_the_panel(m, b):
    levels = figures.level_flops(m, b)
    assert sum(levels) == model.geqrt3(m, b, dense=True).flops
    assert len(levels) == figures.depth(b) + 1
    assert levels[-1] == sum(model.larfg(m - j).flops for j in range(b))


def test_every_level_of_a_tall_tree_has_half_the_work_of_the_one_above():
    levels = figures.level_flops(10**6, 64)[:-1]
    for above, below in zip(levels, levels[1:]):
        assert below / above == pytest.approx(0.5, rel=0.03)


def test_the_tree_shows_sizes_and_shares(drawn):
    shown = texts(drawn["tree"])
    for _, j, h, e in figures.nodes(0, 8):
        assert (f"{512 - j} \u00d7 {e - h}" in shown) if h < e else (str(512 - j) in shown)
    shares = [float(t.split()[0]) for t in shown if t.endswith(" %")]
    levels = figures.level_flops(512, 8)
    assert shares == pytest.approx([100 * part / sum(levels) for part in levels], abs=0.051)
    assert sum(shares) == pytest.approx(100, abs=0.2)


def test_shares_of_the_flops_by_hand():
    # a mirror at a time has no products, and neither have panels of one column
    assert figures.shares(8, 1) == (0, 0)
    # one panel of all columns: stage 3 has V^T V and nothing else
    n = 12
    alone, together = figures.shares(n, n)
    plain = model.geqr2(n, n).flops + model.larft(n, n, dense=True).flops
    assert alone == pytest.approx(model.gemm(n, n, n).flops / plain)
    small = sum(
        figures.node_flops(n - j, e - j)
        for _, j, h, e in figures.nodes(0, n)
        if h - j == 1 and h < e
    )
    mirrors = sum(model.larfg(n - j).flops for j in range(n))
    whole = model.geqrt3(n, n, dense=True).flops
    assert together == pytest.approx(1 - (small + mirrors) / whole)
    for nb in (4, 16, 64):
        alone, together = figures.shares(256, nb)
        assert 0 < alone < together < 1


def test_what_is_no_product_is_the_rest_of_the_plan():
    n, nb = 96, 16
    panels = [(n - j, nb) for j in range(0, n, nb)]
    # stage 3: the mirrors of its panels, and T column by column
    small = model.larft(n, nb, dense=True).flops - model.gemm(nb, nb, n).flops
    rest = sum(model.geqr2(m, b).flops + small for m, b in panels)
    whole = model.geqrf(n, n, nb, dense=True).flops
    assert figures.shares(n, nb)[0] == pytest.approx(1 - rest / whole)
    # stage 4: making the mirrors, and the updates and joins at the foot of the tree, by one mirror
    rest = sum(figures.level_flops(m, b)[-1] + figures.level_flops(m, b)[-2] for m, b in panels)
    whole = model.geqrf(n, n, nb, recursive=True, dense=True).flops
    assert figures.shares(n, nb)[1] == pytest.approx(1 - rest / whole)


def test_the_plot_of_bytes_names_the_least(drawn):
    alt = drawn["moved"].alt
    (third, at3), (fourth, at4) = re.findall(r"([\d.]+) at (\d+)", alt)[:2]
    fourth, at4 = re.search(r"falls to ([\d.]+) at (\d+)", alt).groups()
    for name, value, nb in (("s03_blocked", third, at3), ("s04_recursive", fourth, at4)):
        moved = {w: model.plan(name, 1, 512, 512, nb=w) for w in figures.WIDTHS}
        best = min(moved, key=lambda w: moved[w].bytes)
        assert int(nb) == best
        assert float(value) == pytest.approx(moved[best].bytes / moved[best].floor, abs=0.051)


@pytest.mark.parametrize("graph", (False, True))
def test_halves_are_ahead_from_the_crossover_on_and_not_before(graph):
    B = figures.crossover(512, graph=graph)

    def ahead(B):
        third, fourth = (
            model.estimate(stage, B, 512, 512, "H200", measured=True, graph=graph).time
            for stage in ("s03_blocked", "s04_recursive")
        )
        return fourth < third

    assert ahead(B) and ahead(2 * B) and not ahead(B - 1) and not ahead(B // 2)


def test_the_times_are_called_predicted(drawn):
    figure = drawn["times"]
    assert "Predicted time on an H200" in figure.alt and "predicted time" in figure.body()
    for graph in (False, True):
        assert str(figures.crossover(512, graph=graph)) in figure.alt


def test_what_the_page_says_of_the_clock():
    stages = ("s03_blocked", "s04_recursive")
    for mode in ("eager", "replay"):
        third, fourth = (figures.measured(stage, mode) for stage in stages)
        assert third < fourth
    third, fourth = (figures.each_launch(stage, "replay") for stage in stages)
    assert third == pytest.approx(fourth, rel=0.02)
    for stage in stages:
        plan = model.plan(stage, 640, 512, 512)
        bandwidth = model.DEVICES["H200"].measured["bandwidth"].value
        parts = figures.each_launch(stage, "replay") * plan.launches, plan.bytes / bandwidth
        assert sum(parts) == pytest.approx(figures.measured(stage, "replay"))
    assert figures.where().startswith("measured on")


def test_a_node_has_the_price_that_stage_3_paid_and_stage_4_is_predicted_by_it():
    node = model.DEVICES["H200"].measured["graph node"].value
    assert node == pytest.approx(figures.each_launch("s03_blocked", "replay"), abs=0.05e-6)
    said = figures.predicted("s04_recursive", 640, 512, graph=True)
    assert said == pytest.approx(figures.measured("s04_recursive", "replay"), rel=0.02)
    # the batch of the task is below the crossing, replayed too
    assert figures.crossover(512, graph=True) > 640
