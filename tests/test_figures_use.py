"""The figures of the chapter Use it, its optimizers and its network: they do what the text says."""

import json
import math
import re
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, described_and_self_contained, texts  # noqa: E402
from tables import normal  # noqa: E402
from test_bench_gpus import row as row_on_gpus  # noqa: E402

import qrlib  # noqa: E402
from qrlib.bench import gpus, load, q  # noqa: E402
from qrlib.devices import DEVICES  # noqa: E402
from qrlib.teach import characters, optimizers  # noqa: E402
from qrlib.teach.figures import use as figures  # noqa: E402
from qrlib.teach.figures.ladder import CASES  # noqa: E402

DRAWN = {
    **{f"valley {a}": (lambda a: figures.valley_frame(a).figure, a) for a in (0, 20, 45, 90)},
    **{f"iteration {k}": (lambda k: figures.iteration_frame(k).figure, k) for k in (0, 1, 12)},
    **{f"corners {a}": (lambda a: figures.corners_frame(a).figure, a) for a in (90, 45, 15)},
    "newton": (figures.newton_plot,),
    "digits": (figures.digits_plot,),
    "angles": (figures.angles_plot, 5),
}
PLOTS = ("newton", "digits", "angles")
STEPPERS = (figures.valley_stepper, figures.iteration_stepper, figures.corners_stepper)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


def leaves(W, G, **options):
    """What is left of a matrix of weights after two steps with the gradients G."""
    W = torch.nn.Parameter(W.clone())
    optimizer = optimizers.Soap([W], **options)
    for each in G:
        W.grad = each
        optimizer.step()
    return W.detach(), optimizer.state[W]


W = normal(5, 3, dtype=torch.float64)
GRADIENTS = normal(7, 5, 3, seed=1, dtype=torch.float64)


class TestSoap:
    def test_the_first_gradient_is_not_followed(self):
        after, state = leaves(W, GRADIENTS[:1])
        assert torch.equal(after, W)
        G = GRADIENTS[0]
        for S, product in zip(state["S"], (G @ G.T, G.T @ G)):
            torch.testing.assert_close(S, product)

    def test_in_the_axes_it_is_adam(self):
        """Bases that stay I, and the first step that is not taken, left out of both."""
        axes = partial(leaves, lr=0.1, betas=(0.8, 0.9))

        def eyes(statistics, bases):
            return [torch.eye(len(S), dtype=S.dtype) for S in statistics]

        ours, _ = axes(W, GRADIENTS, refresh=eyes)
        theirs = torch.nn.Parameter(W.clone())
        adam = torch.optim.Adam([theirs], lr=0.1, betas=(0.8, 0.9))
        for theirs.grad in GRADIENTS[1:]:
            adam.step()
        torch.testing.assert_close(ours, theirs.detach())

    def test_it_turns_with_its_gradients(self):
        """P W and gradients P G make steps P times those of W and G: no axes are preferred."""
        square, gradients = W[:3], GRADIENTS[:, :3]
        P = qrlib.orthogonalize(normal(3, 3, seed=2, dtype=torch.float64))
        one, _ = leaves(square, gradients, refresh=optimizers.exact)
        other, _ = leaves(P @ square, P @ gradients, refresh=optimizers.exact)
        torch.testing.assert_close(other, P @ one)

    def test_signs_cancel_outside_and_not_inside(self):
        fixed, _ = leaves(W, GRADIENTS)
        free, _ = leaves(W, GRADIENTS, refresh=optimizers.any_signs)
        torch.testing.assert_close(fixed, free)
        torch.testing.assert_close(leaves(W, GRADIENTS, refresh=optimizers.by_torch)[0], fixed)

        def inside(refresh):
            V = torch.nn.Parameter(torch.zeros(12, 9, dtype=torch.float64))
            optimizer = optimizers.SoapInside([V], refresh=refresh)
            for V.grad in normal(20, 12, 9, seed=3, dtype=torch.float64):
                optimizer.step()
            return V.detach()

        gap = inside(optimizers.by_qr) - inside(optimizers.any_signs)
        assert gap.abs().max() > 1e-3

    def test_inside_is_a_mean_that_the_bases_leave_behind(self):
        """While the bases stay, there is no inside."""
        V = torch.nn.Parameter(W.clone())
        optimizer = optimizers.SoapInside([V], refresh=optimizers.frozen)
        for V.grad in GRADIENTS:
            optimizer.step()
        torch.testing.assert_close(V.detach(), leaves(W, GRADIENTS, refresh=optimizers.frozen)[0])

    def test_every_says_when_bases_are_refreshed(self):
        calls = []

        def counted(statistics, bases):
            calls.append(len(bases))
            return bases

        leaves(W, GRADIENTS, refresh=counted, every=3)
        assert calls == [2, 2]

    def test_bases_stay_orthogonal_and_follow(self):
        _, state = leaves(W, GRADIENTS)
        for S, Q in zip(state["S"], state["Q"]):
            torch.testing.assert_close(Q.T @ Q, torch.eye(len(S), dtype=S.dtype))
        S = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        (U,) = optimizers.exact([S])
        assert torch.equal(U.abs(), torch.eye(3)[:, [1, 2, 0]])


def test_newton_schulz_keeps_directions_and_sends_values_to_about_one():
    G = normal(40, 30, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    core = U.T @ optimizers.newton_schulz(G) @ Vh.T
    assert (core - torch.diag(core.diagonal())).abs().max() < 1e-10
    assert core.diagonal().min() > 0.3 and core.diagonal().max() < 1.3


def test_muon_makes_a_step_of_the_same_size_whatever_the_shape():
    for shape in ((6, 6), (4, 9), (9, 4)):
        V = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        V.grad = normal(*shape, dtype=torch.float64)
        optimizers.Muon([V], lr=1.0, orthogonalize=optimizers.q_of).step()
        assert V.detach().square().mean().sqrt() == pytest.approx(0.2)


class TestNetwork:
    def test_text_is_the_package(self):
        words = characters.text()
        assert "def geqrf(" in words and len(words) > 100_000
        numbers, known = characters.encoded(words)
        assert "".join(known[k] for k in numbers[:50]) == words[:50]

    def test_it_sees_nothing_of_what_comes(self):
        torch.manual_seed(0)
        model = characters.Writer(11)
        x = torch.arange(characters.CONTEXT)[None] % 11
        changed = x.clone()
        changed[0, 20:] = 5
        one, other = model(x), model(changed)
        torch.testing.assert_close(one[:, :20], other[:, :20])
        assert (one[:, 20:] - other[:, 20:]).abs().max() > 1e-3

    def test_all_weights_are_matrices(self):
        assert {each.ndim for each in figures.weights()} == {2}

    def test_the_seed_decides(self):
        def run(seed):
            return characters.train(optimizers.Soap, steps=4, seed=seed)

        assert run(0) == run(0) != run(1)

    def test_it_begins_knowing_little_more_than_the_number_of_characters(self):
        (bits,) = characters.train(optimizers.Soap, steps=1)
        assert bits == pytest.approx(math.log2(len(set(characters.text()))), abs=0.5)


def ends(name, **options):
    return figures.end(figures.losses(name, **options))


def other(*given, **options):
    return figures.end(figures.variant(*given, **options))


@pytest.mark.slow
@pytest.mark.xdist_group("training")
class TestRuns:
    """They end as the text tells, by less than half of what was seen: what they read changes."""

    def test_soap_needs_bases_that_are_fresh_and_no_more(self):
        soap, adam, frozen = ends("SOAP"), ends("Adam"), other("frozen")
        assert soap < adam - 0.1 and abs(frozen - adam) < 0.1
        assert abs(soap - other("exact")) < 0.04
        assert soap + 0.02 < other(every=10) < frozen - 0.03
        assert figures.apart()[1] < 0.03

    def test_what_is_kept_inside_minds_signs(self):
        fixed, free = (other(refresh, inside=True) for refresh in ("by_qr", "any_signs"))
        assert ends("SOAP") + 0.02 < fixed < free - 0.03

    def test_muon_wants_the_polar_factor(self):
        gaps = [ends("Muon by QR", seed=k) - ends("Muon", seed=k) for k in figures.SEEDS]
        assert sum(gaps) > 0.06

    @pytest.mark.parametrize("name", ("Adam", "SOAP", "Muon"))
    def test_the_rate_is_a_good_one(self, name):
        low, high = (ends(name, lr=figures.RUNS[name].rates[k]) for k in (0, 2))
        assert ends(name) < min(low, high) + 0.03


def test_the_valley_does_not_see_its_tilt_in_its_own_axes():
    found = [figures.ways(angle) for angle in (0, 20, 45)]
    own = [figures.left(way, height) for _, way, height in found]
    adam = [figures.left(way, height) for way, _, height in found]
    assert own == pytest.approx([own[0]] * 3) and adam[0] == pytest.approx(own[0])
    assert adam[2] > adam[1] > 5 * own[0]


def test_iteration_goes_to_the_eigenvalues_in_order(drawn):
    X = figures.iterated(25)
    np.testing.assert_allclose(X, np.diag(figures.VALUES), atol=1e-4)
    assert "9.51" in texts(drawn["iteration 0"])


@pytest.mark.parametrize("angle", (80, 40, 10))
def test_one_stays_or_both_go_half_the_way(angle):
    G, Q, P = figures.corners(angle)
    assert figures.moved(G, Q) == pytest.approx([0, 90 - angle], abs=1e-4)
    assert figures.moved(G, P) == pytest.approx([(90 - angle) / 2] * 2)


def test_flips_are_counted(monkeypatch):
    def two_flips(optimizer, steps):
        weights = [torch.nn.Parameter(torch.zeros(3, 2))]
        made = optimizer(weights)
        made.refresh([], [torch.eye(3), torch.eye(2)])

    signs = [torch.diag(torch.tensor([1.0, -1, -1])), torch.eye(2)]
    monkeypatch.setattr(figures, "train", two_flips)
    monkeypatch.setattr(optimizers, "any_signs", lambda S, Q: signs)
    assert figures.flipped() == (2, 5)


def test_smooth_is_the_mean_of_the_last():
    assert figures.smooth([1.0, 3, 5, 7], 2).tolist() == [1, 2, 4, 6]


def test_bases_and_products_of_a_step():
    assert figures.bases(1) == 10
    rate = DEVICES["H200"].measured["bf16"].value
    assert figures.network(8, 1, 100) == pytest.approx(6 * 12 * 64 * 100 / rate)


def test_without_q_a_step_is_that_of_the_factorization():
    step = figures.step_of(1024, formed="nowhere.json")
    (row,) = load(CASES).find(stage="torch", n=1024, family="dense", mode="eager")
    assert not step.formed
    assert step.torch == pytest.approx(figures.bases() * row["median_us"] / 60 * 1e-6)
    assert step.share(step.torch) == pytest.approx(step.torch / (step.torch + step.network))
    assert (
        "without Q, which is not measured yet" in figures.step_table(formed="nowhere.json").caption
    )


def test_with_q_it_is_that_of_qr(tmp_path):
    """What python -m qrlib.bench --q writes, as far as it is read here."""
    given = json.loads(CASES.read_text("utf-8"))
    rows = []
    for case in q.STEPS:
        (ours,) = q.stages(case)
        # under the other policy it is no call of an optimizer's
        for stage, precision, us in (
            (q.BASELINE, "fp32", 4800.0),
            (ours, "fp32", 48.0),
            (ours, "fast", 1.0),
        ):
            row = dict(given["rows"][0]) | case._asdict() | {"precision": precision}
            rows.append(row | {"stage": stage, "mode": "eager", "median_us": us})
    path = tmp_path / "q.json"
    path.write_text(json.dumps(given | {"rows": rows}), "utf-8")
    step = figures.step_of(2048, formed=path)
    assert step.formed and step.torch == pytest.approx(240 * 100e-6)
    assert step.ours == pytest.approx(240e-6)
    assert step.part(step.network) == f"{step.network:.2g}: 50 %"
    table = figures.step_table(formed=path)
    assert table.caption.endswith("QR with Q") and len(table.rows) == 3
    assert table.rows[1][2:] == [step.part(step.torch), step.part(step.ours)]
    assert "a batch of 48, 48, 48" in " ".join(figures.step_words(formed=path).split())


@pytest.fixture
def shared_out(tmp_path):
    """What python -m qrlib.bench --gpus 2 --replay writes, of made-up times."""
    given, path = json.loads(CASES.read_text("utf-8")), tmp_path / "gpus.json"
    given["provenance"] |= {"gpus": ["GPU of a test"] * 2}
    times = ((8000.0, 4000.0, 4100.0), (6000.0, 4000.0, 4500.0), (3000.0, 2500.0, 2600.0))
    rows = [row_on_gpus(case, us=us) for case, us in zip(gpus.CASES, times)]
    rows[1] = row_on_gpus(gpus.CASES[1], us=times[1], differ=(7, 0))
    # of the last case no replay
    times = ((7600.0, 3900.0, 4000.0), (3000.0, 1900.0, 2000.0))
    for k, us in enumerate(times):
        rows.insert(2 * k + 1, row_on_gpus(gpus.CASES[k], mode="replay", us=us))

    def write(rows=rows):
        path.write_text(json.dumps(given | {"rows": rows}), "utf-8")
        return path

    return write


def test_scaling_of_several_gpus(shared_out):
    path = shared_out()
    bars = figures.scalings(load(path))
    names = ["1280 x 512", "120 x 1024", "16 x 2048"]
    assert [bar.name for bar in bars] == [names[k] for k in (0, 0, 1, 1, 2)]
    assert [bar.mode for bar in bars] == ["eager", "replay"] * 2 + ["eager"]
    assert [bar.value for bar in bars] == pytest.approx([80 / 41, 1.9, 4 / 3, 1.5, 30 / 26])
    assert [bar.share for bar in bars] == pytest.approx([2, 76 / 39, 1.5, 30 / 19, 1.2])
    assert all(bar.low < bar.value < bar.high for bar in bars)
    figure = figures.scaling_plot(path)
    described_and_self_contained(figure)
    assert "2 GPUs are as one" in figure.alt and "2 x GPU of a test" in figure.alt
    assert "120 x 1024, called: 1.33, between quartiles" in figure.alt
    assert "120 x 1024, replayed: 1.5, between" in figure.alt and "1.5 for a share" in figure.alt
    said = texts(figure)
    # a number for each bar, a name for each case
    assert [said.count(value) for value in ("1.95", "1.9", "1.33", "1.15")] == [1] * 4
    assert [said.count(name) for name in names] == [1] * 3
    assert {"called", "replayed", "ideal"} <= set(said)


@pytest.mark.parametrize("mode, others", (("eager", "replayed"), ("replay", "called")))
def test_scaling_in_one_mode(shared_out, mode, others):
    rows = [row_on_gpus(case, mode=mode, us=(4.0, 2.0, 2.5)) for case in gpus.CASES]
    figure = figures.scaling_plot(shared_out(rows))
    said = texts(figure)
    assert figures.HOW[mode] in said and others not in said + [figure.alt]
    assert said.count("1.6") == 3 and {"1280 x 512", "16 x 2048"} <= set(said)


def test_bits_of_several_gpus_are_told(shared_out):
    lines = figures.scaling_words(shared_out()).splitlines()
    assert lines[6] == "120 x 1024, called: 6 ms on one GPU, 4.5 ms on 2, a share alone 4 ms"
    assert lines[7:9] == [
        "  same bits as on one GPU with the same share: 240 of 240 matrices",
        "  same bits as on one GPU with all: 233 of 240 matrices",
    ]
    assert lines[9] == "120 x 1024, replayed: 3 ms on one GPU, 2 ms on 2, a share alone 1.9 ms"
    assert lines[11] == "  same bits as on one GPU with all: 240 of 240 matrices"
    assert "measured on 2 x GPU of a test" in " ".join(lines[15:])


def test_what_failed_on_several_gpus_has_no_bar(shared_out):
    rows = [row_on_gpus(gpus.CASES[0]), row_on_gpus(gpus.CASES[1], differ=(0, 3))]
    path = shared_out(rows)
    assert [bar.name for bar in figures.scalings(load(path))] == ["1280 x 512"]
    assert "120 x 1024, called: failed, 3 of 240 matrices" in figures.scaling_words(path)
    described_and_self_contained(figures.scaling_plot(path))


def test_without_several_gpus_it_is_said(tmp_path):
    nowhere = tmp_path / "gpus.json"
    assert figures.scaling_plot(nowhere) is None
    assert "Nobody has measured it so far" in figures.scaling_words(nowhere)


@pytest.mark.skipif(not figures.SHARED_OUT.exists(), reason="nobody has measured it so far")
def test_what_is_stored_of_several_gpus_can_be_drawn():
    described_and_self_contained(figures.scaling_plot())


def test_squares_lose_twice_the_digits():
    own, normal_equations = figures.digits(1000.0)
    assert own < 1e-4 and normal_equations > 100 * own
    assert figures.digits(1e6)[1] is None and figures.digits(1e6)[0] < 0.1


@pytest.mark.parametrize("n", (3, 7))
def test_the_law_is_a_density(n):
    at = np.linspace(0, math.pi, 2001)
    assert np.trapezoid(figures.law(at, n), at) == pytest.approx(1)
    assert figures.law(0.0, n) == pytest.approx(0) and (figures.law(at, n) > -1e-12).all()
    np.testing.assert_allclose(figures.law(at, 3), (1 - np.cos(at)) / math.pi)


def test_fair_matrices_follow_it_and_mirrors_turn_far(drawn):
    assert figures.off_the_law(3, True) < 0.07 < 0.3 < figures.off_the_law(3, False)
    assert figures.drawn_angles(3, False).min() > math.pi / 2 - 1e-9
    assert figures.drawn_angles(3, True).min() < 0.3
    assert re.search(r"of 5 rows", drawn["angles"].alt)


def test_rates_are_told_under_a_head_each(monkeypatch):
    monkeypatch.setattr(figures, "losses", lambda name, lr: [lr] * 20)
    table = figures.rates_table()
    assert all(table.heads) and [row[0] for row in table.rows] == ["Adam", "SOAP", "Muon"]
    assert table.rows[1][2] == "0.01: 0.01"
