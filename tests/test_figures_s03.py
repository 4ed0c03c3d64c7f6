"""The figures of chapter 5: what they show is what the stage does, and what is counted."""

import math
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, texts  # noqa: E402

from qrlib import model  # noqa: E402
from qrlib.stages import s02_unblocked, s03_blocked  # noqa: E402
from qrlib.teach.figures import s03_blocked as figures  # noqa: E402
from qrlib.teach.figures.s02_unblocked import short  # noqa: E402

STEPS = figures.walk_states()
GROWN = figures.growth_states()
SHAPES = {
    "tall": (np.random.default_rng(0).standard_normal((9, 7)), 3),
    "square": (np.random.default_rng(1).standard_normal((6, 6)), 2),
    "wide": (np.random.default_rng(2).standard_normal((4, 7)), 3),
    "one panel": (np.random.default_rng(3).standard_normal((5, 3)), 8),
    "one column": (np.random.default_rng(4).standard_normal((4, 1)), 2),
    "zero column": (np.array([[0.0, 1, 2], [0, 3, 4], [0, 5, 6], [0, 7, 1]]), 1),
}
WALKS = {name: figures.walk_states(A, nb) for name, (A, nb) in SHAPES.items()}
DRAWN = {
    **{f"walk {k}": (figures.walk_frame, STEPS, k) for k in range(len(STEPS))},
    **{
        f"walk {name}": (figures.walk_frame, steps, len(steps) - 1) for name, steps in WALKS.items()
    },
    **{f"T {j}": (figures.growth_frame, GROWN, j) for j in range(len(GROWN))},
    "products": (figures.products,),
    "other products": (figures.products, 6, 14, 5),
    **{f"widths {n}": (lambda n: figures.widths_frame(n).figure, n) for n in (64, 2048)},
}
PLOTS = ("widths 64", "widths 2048")
STEPPERS = (figures.walk_stepper, figures.growth_stepper, figures.widths_stepper)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


@pytest.mark.parametrize("name", SHAPES)
def test_the_walk_ends_where_mirrors_one_by_one_end(name):
    A, nb = SHAPES[name]
    steps = WALKS[name]
    H = s02_unblocked.geqrf(torch.tensor(A)[None]).H[0].numpy()
    assert steps[-1].H == pytest.approx(H, abs=1e-13)
    m, n = A.shape
    k = min(m, n)
    panels = [step for step in steps if step.what == "panel"]
    assert [(step.j, step.e) for step in panels] == [(j, min(j + nb, k)) for j in range(0, k, nb)]
    # an update follows every panel that has columns on its right
    updates = [step for step in steps if step.what == "update"]
    assert [step.e for step in updates] == [step.e for step in panels if step.e < n]


@pytest.mark.parametrize("name", SHAPES)
def test_a_call_changes_its_own_block_and_owners_tell_what_is_final(name):
    steps = WALKS[name]
    m, n = steps[0].H.shape
    last = steps[-1].H
    for before, step in zip(steps, steps[1:]):
        left, right = (step.j, step.e) if step.what == "panel" else (step.e, n)
        outside = np.ones((m, n), bool)
        outside[step.j :, left:right] = False
        assert np.array_equal(before.H[outside], step.H[outside])
        owner = np.array(figures.owners(m, n, step))
        done = owner != "A"
        assert step.H[done] == pytest.approx(last[done], abs=1e-13)
        below = np.tril(np.ones((m, n), bool), -1)
        assert ((owner == "v") == (below & (np.arange(n) < step.e))).all()
        if step.what == "update":
            assert owner[: step.e].tolist() == np.where(below, "v", "R")[: step.e].tolist()


def test_what_is_moved_is_counted_entry_by_entry():
    blocks = mirrors = 0
    m, n = figures.A108.shape
    for j, e in ((0, 3), (3, 6)):
        # a trip is two reads and a write of every entry from row j down
        entries = np.zeros((m, n))
        entries[j:, e:] = 3
        blocks += entries.sum()
        for i in range(j, e):
            entries[:i] = 0
            mirrors += entries.sum()
    assert figures.moved(m, n, STEPS) == (blocks, mirrors)
    words = figures.walk_words(STEPS, len(STEPS) - 1)
    assert f"so far: {blocks:.0f} entries; mirror by mirror: {mirrors:.0f}." in words
    assert figures.moved(m, n, STEPS[:2]) == (0, 0)


def test_words_of_the_walk_name_what_is_drawn():
    assert "Nothing is done yet" in figures.walk_words(STEPS, 0)
    first = figures.walk_words(STEPS, 1)
    assert "columns 0 to 2 factored" in first and "Columns 3 to 7 wait, untouched" in first
    second = figures.walk_words(STEPS, 2)
    assert "columns 3 to 7 go through all 3 mirrors in one trip, rows 0 to 9" in second
    assert "Rows 0 to 2 of R are final" in second
    assert "Nothing is left on its right" in figures.walk_words(STEPS, len(STEPS) - 1)
    alone = figures.walk_states(np.ones((3, 2)), 1)
    assert "Column 1 waits" in figures.walk_words(alone, 1)
    assert "column 1 go through the mirror" in figures.walk_words(alone, 2)


@pytest.mark.parametrize("j", range(len(GROWN)))
def test_T_is_the_inverse_of_the_upper_half_of_the_gram_matrix(j):
    V, T, tau, g, error = GROWN[j]
    G = V.T @ V
    assert np.linalg.inv(T) == pytest.approx(np.diag(1 / tau) + np.triu(G, 1), abs=1e-13)
    assert tau == pytest.approx(2 / np.diag(G))
    assert g == pytest.approx(G[:j, j])
    assert 0 <= error < 1e-15
    Q = np.eye(len(V)) - V @ T @ V.T
    assert Q.T @ Q == pytest.approx(np.eye(len(V)), abs=1e-14)


@pytest.mark.parametrize("j", range(len(GROWN)))
def test_a_frame_of_the_growth_shows_every_number(drawn, j):
    V, T, tau, g, _ = GROWN[j]
    expected = [V[i, k] for i in range(len(V)) for k in range(j + 1) if i >= k]
    expected += [T[i, k] for i in range(j + 1) for k in range(j + 1) if i <= k]
    expected += list(g)
    shown = [t for t in texts(drawn[f"T {j}"]) if re.fullmatch(r"-?[\d.]+", t)]
    # what stands above the diagonal of V is not drawn: it is zero by definition
    assert sorted(shown) == sorted(short(a).replace("\u2212", "-") for a in expected)
    words = figures.growth_words(GROWN, j).replace("\u2212", "-")
    for number in [*g, *(T[:j, j] if j else [tau[0]])]:
        assert short(number).replace("\u2212", "-") in words


@pytest.mark.parametrize("m, n, b", [(12, 10, 3), (5, 7, 2), (64, 1, 8)])
def test_the_three_products_are_all_of_larfb(m, n, b):
    counts = figures.product_flops(m, n, b)
    assert sum(counts) == model.larfb(m, n, b, dense=True).flops
    # to leading order what is written beside them
    assert counts[0] == pytest.approx(2 * m * n * b, rel=0.5 / min(m, b) + 0.2)
    assert counts[2] == 2 * m * n * b
    assert str(counts[1]) in figures.products(m, n, b).alt


@pytest.mark.parametrize("n", (16, 64, 150))
def test_the_best_width_is_the_best_of_all(n):
    moved = {nb: model.plan("s03_blocked", 1, n, n, nb=nb).bytes for nb in range(1, n + 1)}
    assert moved[figures.best_width(n)] == min(moved.values())


@pytest.mark.parametrize("n", (64, 512))
def test_the_plot_of_widths_says_what_is_counted(n):
    readout = figures.widths_frame(n).readout
    best = int(re.search(r"b = (\d+)", readout)[1])
    least, root, alone = (
        float(re.search(pattern, readout)[1])
        for pattern in (r", ([\d.]+) times the", r"= ([\d.]+)\. Mirror", r"it is (\d+) times")
    )
    plan = model.plan("s03_blocked", 1, n, n, nb=best)
    assert least == pytest.approx(plan.bytes / plan.floor, abs=0.051)
    assert root == pytest.approx(math.sqrt(4 * n / 3), abs=0.051)
    # the formula of the text and the count agree about the bottom of the valley
    assert best == pytest.approx(root, rel=0.15)
    one = model.plan("s03_blocked", 1, n, n, nb=1)
    assert alone == pytest.approx(one.bytes / one.floor, abs=0.51)
    total, parts = figures.trips(n, best)
    assert total == pytest.approx(sum(parts.values()))
    assert f"at a width of {best}" in figures.widths_frame(n).figure.alt


def test_the_loop_that_is_drawn_is_the_one_of_the_stage(monkeypatch):
    monkeypatch.setattr(s03_blocked, "update", lambda V, T, C: None)
    assert not np.array_equal(figures.walk_states()[2].H, STEPS[2].H)
