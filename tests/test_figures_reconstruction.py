"""The figures of chapter 11: what they say is what the code does, computed again."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, texts  # noqa: E402

from qrlib import matrices, model, reconstruction  # noqa: E402
from qrlib.devices import DEVICES  # noqa: E402
from qrlib.teach.figures import reconstruction as figures  # noqa: E402

DRAWN = {
    "chain": (figures.chain,),
    "chain of 8": (figures.chain, 8),
    **{f"walk {k}": (figures.walk_frame, k) for k in range(len(figures.WALK))},
    **{f"hidden {angle}": (figures.hidden_frame, angle) for angle in (-160, -91, 0, 89, 180)},
    "conditions": (figures.conditions_plot, 96, 16),
    "losses": (figures.losses_plot, 96, 8),
    "fallen": (figures.fallen_map, 64, (8, 16), ("dense", "nearcollinear", "upper")),
}
PLOTS = ("conditions", "losses")
STEPPERS = (figures.walk_stepper, figures.hidden_stepper)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


def happened(m, b, monkeypatch):
    """(passes over all rows, {verb: calls}) of a reconstruction, seen from inside."""
    calls, rows = {}, []
    for name in ("eliminate", "triangular_inverse", "matmul"):
        whole = getattr(reconstruction, name)

        def watched(*given, name=name, whole=whole):
            if name != "matmul":
                calls[name] = calls.get(name, 0) + 1
            elif m in given[0].shape[1:] or m - b in given[0].shape[1:]:
                # its sum goes over the rows, or its result has them
                rows.append(given[0].shape[2] == m)
            return whole(*given)

        monkeypatch.setattr(reconstruction, name, watched)
    P = torch.randn(1, m, b, generator=torch.Generator().manual_seed(0))
    reconstruction.reconstruct(P)
    return rows, calls


def test_the_chain_is_that_of_the_code(monkeypatch):
    rows, calls = happened(50, 5, monkeypatch)
    columns, products = figures.works(5)
    wide = [each for each in products if each.rows]
    assert [each.meets for each in wide] == rows
    assert figures.meetings(products) == sum(rows) == 2
    assert calls == {"eliminate": 1, "triangular_inverse": 2}
    assert sum(each.steps for each in products if not each.rows) == 5 * sum(calls.values())
    assert figures.meetings(columns) == figures.steps(columns) == 5


def test_a_tall_panel_is_touched_less():
    columns, products = figures.works(16)
    assert figures.touched(columns, 512, 16) == 16 * 512 * 16
    assert figures.touched(products, 512, 16) == 3 * 512 * 16 + 3 * 16 * 16 * 16
    # and a low one is not
    assert figures.touched(products, 32, 16) > figures.touched(columns, 32, 16)


@pytest.mark.parametrize("m, b", ((64, 8), (512, 16)))
def test_flops_are_those_of_the_products(m, b):
    count = figures.flops(m, b)
    assert count["mirrors and T"] == model.geqr2(m, b).flops + model.larft(m, b, dense=True).flops
    assert count["all rows"] == pytest.approx(6 * m * b * b, rel=0.1)
    assert count["small"] == pytest.approx(23 / 3 * b**3, rel=0.1)


def test_the_panel_of_the_text_by_hand():
    made = figures.parts()
    np.testing.assert_allclose(made.G, [[25, 25], [25, 50]])
    np.testing.assert_allclose(made.R, [[5, 5], [0, 5]])
    np.testing.assert_allclose(made.Q1, [[0.4, -0.8], [0.2, -0.4]])
    np.testing.assert_allclose(made.S, [[-1, 0], [0, 1]])
    np.testing.assert_allclose(made.L @ made.U, made.Q1 - made.S, atol=1e-15)
    H, tau = torch.geqrf(torch.from_numpy(figures.P42))
    np.testing.assert_allclose(made.V, np.tril(H, -1) + np.eye(4, 2), atol=1e-14)
    np.testing.assert_allclose(np.diag(made.T), tau)
    np.testing.assert_allclose(made.S @ made.R, np.triu(H)[:2], atol=1e-14)


def test_the_walk_shows_what_it_has_made(drawn):
    for k, (name, _) in enumerate(figures.WALK):
        shown = texts(drawn[f"walk {k}"])
        assert ("T" in shown) == (k == len(figures.WALK) - 1)
        assert ("V" in shown) == (k >= 6)
        assert any(word.startswith(("top of", name)) for word in shown)
    assert "-1.29" in texts(drawn["walk 5"]) and "0.6" in texts(drawn["walk 7"])


@pytest.mark.parametrize("angle", range(-180, 181, 20))
def test_the_hidden_mirror_sends_q_to_s(angle):
    q, S, pivot, v = figures.turned(angle)
    assert 1 <= abs(pivot) <= 2
    tau = 2 / (v @ v)
    np.testing.assert_allclose(q - tau * v * (v @ q), [S, 0], atol=1e-14)
    # a pivot is tau with a sign
    assert abs(pivot) == pytest.approx(tau)


def test_the_other_sign_is_a_small_pivot():
    assert abs(figures.turned(10, sign=1)[2]) < 0.02


def test_directions_do_not_see_lengths():
    P = torch.from_numpy(matrices.make("dense", 2, 20)[:, :, :5])
    one = figures.directions(P)
    other = figures.directions(P * 10.0 ** -torch.arange(0, 15, 3))
    assert other == pytest.approx(one, rel=1e-4)
    P[0, :, 2] = 0
    P[1] = 0
    few = figures.directions(P)
    assert 1 < few[0] < one[0] and few[1] == 1
    P[0, :, 2] = P[0, :, 1]
    assert figures.directions(P)[0] > 1e6


def test_conditions_are_those_of_the_panels_as_they_come():
    found = figures.conditions("rankdef", 64, 16)
    assert [j for j, _ in found] == [0, 16, 32, 48]
    # the last quarter is zero
    assert found[-1][1] == 1 and all(kappa > 1 for _, kappa in found[:-1])
    first = torch.from_numpy(matrices.make("rankdef", 2, 64, cond=2))[:, :, :16]
    assert found[0][1] == pytest.approx(max(figures.directions(first)))
    assert figures.conditions("nearcollinear", 96, 16)[0][1] > 1e4


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def test_one_line_climbs_twice_as_steeply_as_the_other():
    found = [each for each in figures.losses(512, 16) if 10 < each.kappa < 1000]
    kappas = [each.kappa for each in found]
    assert slope(kappas, [each.gone for each in found]) == pytest.approx(2, abs=0.35)
    assert slope(kappas, [each.true for each in found]) == pytest.approx(1, abs=0.35)
    assert slope(kappas, [each.orthogonality for each in found]) == pytest.approx(0, abs=0.2)
    for each in found:
        assert each.known == pytest.approx(each.true, rel=0.2)
        assert each.E == pytest.approx(each.gone, rel=0.6)


def test_losses_end_where_there_is_no_cholesky_factor():
    found = figures.losses(96, 8)
    assert all(each.ok for each in found) and 3 < len(found) < len(figures.KAPPAS)


def test_the_map_counts_what_the_code_does(drawn):
    assert figures.fallen("upper", 64, 8) == (4 * 7, 4 * 7)
    assert figures.fallen("dense", 64, 16) == (0, 4 * 3)
    assert figures.fallen("nearcollinear", 64, 8) == (4, 4 * 7)
    shown = texts(drawn["fallen"])
    assert shown.count("28") == 2 and shown.count("12") == 2
    alt = drawn["fallen"].alt
    assert "upper: 28 of 28, 12 of 12, with two passes 28, 12" in alt
    assert re.search(r"dense: 0 of 28, 0 of 12", alt)


def test_what_defeats_a_gram_matrix_does():
    found = {name: figures.loss(P) for name, P in figures.defeating().items()}
    unit = 64 * figures.EPS / 2
    good = {name for name, each in found.items() if each.ok and each.known <= unit}
    assert good == {"normal numbers", "lengths to 1e-30", "zeros at the end", "kappa 10"}
    # and where Q~ is orthonormal, E says so, whatever the lengths and zeros
    assert all(found[name].E < 1e-5 > found[name].gone for name in good)
    # no bad panel looks good
    for name, each in found.items():
        assert each.known <= unit or each.true > 0.5 * unit, name


def test_what_is_predicted_is_counted():
    one = figures.predicted(1, 32, 16)
    # the only panel that is tall; a column has three steps, and a panel three products
    assert one.steps == 3 * 16 + 3
    seen = DEVICES["H200"].measured
    assert one.memory * seen["bandwidth"].value == pytest.approx(4 * (4 * 32 * 16 + 16 * 16 + 16))
    count = figures.flops(32, 16)
    work = 3 * (count["all rows"] + count["small"])
    assert one.arithmetic * seen["tf32"].value == pytest.approx(work)
    assert figures.predicted(7, 32, 16).memory == pytest.approx(7 * one.memory)
    wide = figures.predicted(1, 512, 64)
    assert wide.steps == 7 * (3 * 64 + 3)
