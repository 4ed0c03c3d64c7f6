"""The figures of chapter 2: what they show is what the mirrors do, checked another way."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, texts  # noqa: E402

from qrlib import householder_product, matrices, model  # noqa: E402
from qrlib.compact import unpack_r, unpack_v  # noqa: E402
from qrlib.stages.s01_mirror import geqrf as one_by_one  # noqa: E402
from qrlib.stages.s02_unblocked import geqrf  # noqa: E402
from qrlib.teach.figures import s02_unblocked as figures  # noqa: E402

STATES = figures.walk_states()
WAYS = figures.forming_states()


def nan_in(batch, n, *where):
    A = matrices.make("dense", batch, n, seed=1)
    A[where] = np.nan
    return A


DRAWN = {
    **{f"walk {k}": (figures.walk_frame, STATES, k) for k in range(len(STATES))},
    "narrow walk": (figures.walk_frame, figures.walk_states(np.ones((3, 1))), 1),
    "storage": (figures.storage,),
    **{f"slabs {n}": (lambda n: figures.slabs(n).figure, n) for n in (2, 32)},
    **{
        f"forming {k}": (lambda k: figures.forming_frame(*WAYS, k).figure, k)
        for k in range(len(STATES))
    },
    "narrow forming": (
        lambda: figures.forming_frame(*figures.forming_states(np.ones((2, 1))), 1).figure,
    ),
    "batch": (figures.batch, nan_in(4, 8, 2, 1, 4)),
    "batch of one": (figures.batch, matrices.make("dense", 1, 1)),
    "many and large": (figures.batch, matrices.make("rankdef", 9, 40)),
    "growth": (figures.growth,),
}
PLOTS = ("growth",)
STEPPERS = (figures.walk_stepper, figures.slabs_stepper, figures.forming_stepper)
SHAPES = {
    "tall": np.random.default_rng(0).standard_normal((6, 4)),
    "square": np.random.default_rng(1).standard_normal((4, 4)),
    "wide": np.random.default_rng(2).standard_normal((3, 5)),
    "zero column": np.array([[0.0, 1, 2], [0, 3, 4], [0, 5, 6], [0, 7, 1]]),
    "triangular": np.triu(np.ones((3, 3))),
    "one entry": np.array([[-2.0]]),
}


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


@pytest.mark.parametrize("A", SHAPES.values(), ids=SHAPES)
def test_the_walk_is_a_product_of_mirrors_and_ends_where_stage_1_ends(A):
    m, n = A.shape
    H, tau = (X[0] for X in one_by_one(A[None]))
    states = figures.walk_states(A)
    assert len(states) == min(m, n) + 1
    assert states[-1][0] == pytest.approx(H, abs=1e-13)
    assert states[-1][1] == pytest.approx(tau, abs=1e-13)
    product = A.copy()
    for j, (shown, taus) in enumerate(states):
        assert len(taus) == j
        owner = np.array(figures.owners(m, n, j))
        # with zeros put back where v is stored, what is shown is H_(j-1) ... H_0 A
        assert np.where(owner == "v", 0, shown) == pytest.approx(product, abs=1e-13)
        if j < min(m, n):
            v = np.concatenate([np.zeros(j), [1], H[j + 1 :, j]])
            product -= tau[j] * np.outer(v, v @ product)
    figures.walk_stepper(A)


@pytest.mark.parametrize("A", [SHAPES["tall"], SHAPES["wide"], figures.A75], ids=str)
def test_a_mirror_changes_the_block_that_the_theorem_names(A):
    m, n = A.shape
    states = figures.walk_states(A)
    for j, ((before, _), (after, taus)) in enumerate(zip(states, states[1:])):
        words = figures.walk_words(states, j + 1)
        if taus[j] == 0:
            assert figures.changed(before, after) is None
            assert "nothing changed" in words
            continue
        assert figures.changed(before, after) == (j, m - 1, j, n - 1)
        assert f"rows {j} to {m - 1} of column" in words
        assert ("columns" in words) == (j < n - 1)


def test_the_last_frame_of_the_walk_shows_every_number(drawn):
    H, tau = STATES[-1]
    shown = [float(t) for t in texts(drawn["walk 5"]) if re.fullmatch(r"-?[\d.]+", t)]
    entries = shown[: H.size]
    assert entries == pytest.approx(H.ravel().tolist(), abs=0.051)
    assert shown[-len(tau) :] == pytest.approx(tau, abs=0.006)


@pytest.mark.parametrize(
    "a, words",
    [
        (0.0, "0"),
        (-12.0, "\u221212"),
        (2.30, "2.3"),
        (0.0026, "0.003"),
        (-0.0049, "\u22120.005"),
        (9.996, "10"),
        (14.94, "14.9"),
        (float("nan"), "nan"),
        (float("-inf"), "\u2212inf"),
    ],
)
def test_a_short_number_is_right_and_never_a_false_zero(a, words):
    assert figures.short(a) == words


def test_storage_shows_all_of_H_and_tau_and_what_they_stand_for(drawn):
    A = torch.from_numpy(figures.A75[:5, :3])[None]
    H, tau = geqrf(A)
    expected = [
        figures.short(a) for X in (H, unpack_v(H), unpack_r(H)) for a in X.flatten().tolist()
    ]
    expected += [figures.short(t) for t in tau.flatten().tolist()]
    shown = sorted(t for t in texts(drawn["storage"]) if re.fullmatch(r"-?[\d.]+", t))
    assert shown == sorted(word.replace("\u2212", "-") for word in expected)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_the_slabs_are_counted_and_compared_with_the_pyramid(n):
    readout = figures.slabs(n).readout
    entries, ratio, flops, flop_ratio = (
        float(x) for x in re.findall(r"(?:hold|entries,|operation:|flops,) ([\d.]+)", readout)
    )
    assert entries == n * (n + 1) * (2 * n + 1) / 6
    assert ratio == pytest.approx(3 * entries / n**3, abs=5e-4)
    assert flops == model.geqr2(n, n).flops
    assert flop_ratio == pytest.approx(flops / (4 * n**3 / 3), abs=5e-4)
    # the wall of the cube is n slabs high: each has a top and two sides, on a ground of paper
    assert len(re.findall("<path", figures.slabs(n).figure.body())) == 6 * n


def test_both_ways_to_Q_end_at_the_same_columns():
    forward, backward = WAYS
    A = torch.from_numpy(figures.A75)
    Q = householder_product(*(X[0] for X in geqrf(A[None]))).numpy()
    m, k = Q.shape
    assert forward[-1][:, :k] == pytest.approx(Q, abs=1e-14)
    assert backward[-1] == pytest.approx(Q, abs=1e-14)
    assert np.array_equal(forward[0], np.eye(m)) and np.array_equal(backward[0], np.eye(m, k))


def test_backward_touches_a_growing_corner_and_forward_all_rows():
    m, k = figures.A75.shape
    for step in range(1, k + 1):
        blocks = [figures.changed(way[step - 1], way[step]) for way in WAYS]
        assert blocks[0] == (0, m - 1, step - 1, m - 1)
        assert blocks[1] == (k - step, m - 1, k - step, k - 1)
        counts = [figures.touched(way, step) for way in WAYS]
        assert counts[0] == sum(m * (m - j) for j in range(step))
        assert counts[1] == sum((m - j) * (k - j) for j in range(k - step, k))
        readout = figures.forming_frame(*WAYS, step).readout
        assert f"forward has changed {counts[0]} entries, backward {counts[1]}" in readout


def crosses(figure):
    """How many cells are crossed out."""
    return len(re.findall(r'd="M[\d.]+ [\d.]+L[\d.]+ [\d.]+M', figure.body()))


def test_a_nan_is_crossed_out_where_it_is_and_its_matrix_alone_fails():
    A = nan_in(4, 8, 2, 1, 4)
    H = geqrf(torch.from_numpy(A)).H
    figure = figures.batch(A)
    # column 4 from the top, and from row 4 on all that mirror 4 touches
    lost = 8 + 4 * 3
    assert int((~torch.isfinite(H)).sum()) == lost == crosses(figure)
    assert texts(figure) == ["0: passed", "1: passed", "2: FAILED", "3: passed"]
    assert re.search(r"fill=\"var\(--qr-pink[^>]*>2: FAILED", figure.body())
    assert not re.search(r"fill=\"var\(--qr-pink[^>]*>\d: passed", figure.body())
    assert f"Matrix 2 FAILED, {lost} entries are not finite." in figure.alt
    assert crosses(figures.batch(matrices.make("dense", 4, 8, seed=1))) == 0


def test_a_batch_that_is_not_finite_at_all_can_be_drawn():
    figure = figures.batch(np.full((1, 3, 3), np.inf, np.float32))
    assert texts(figure) == ["0: FAILED"]
    assert crosses(figure) > 0


def test_a_large_matrix_is_drawn_in_blocks_that_lose_no_nan():
    H = np.arange(35.0).reshape(5, 7)
    H[4, 0] = np.nan
    assert figures.binned(H, 2)[0].tolist() == [17.0, 20.0]
    assert np.isnan(figures.binned(H, 2)[1, 0]) and figures.binned(H, 2)[1, 1] == 34
    assert np.array_equal(figures.binned(H, 7), H, equal_nan=True)


def test_the_residuals_grow_slowly_and_stay_far_below_the_gates():
    points = figures.growth_points((8, 32, 128))
    n = np.array([8, 32, 128])
    assert (points[:, 0] > 0).all() and (points[:, 0] < 20 * n / 10).all()
    assert (points[:, 1] > 0).all() and (points[:, 1] < 100 * n / 10).all()
    assert points[-1, 1] / points[0, 1] < n[-1] / n[0]
