"""The figures of chapter 3, and what the chapter says of them, checked another way."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from drawings import SVG, EveryFigure, texts
from tables import ALL_STAGES, FAMILIES, batch_of

import qrlib
from qrlib import matrices
from qrlib.certificate import LAPACK, TASK, certify
from qrlib.jit import quick_reductions
from qrlib.stages import ANYWHERE, TRITON
from qrlib.stages.s01_mirror import geqrf
from qrlib.teach.figures import certify as figures
from qrlib.teach.gram_schmidt import METHODS, with_condition

EPS = 2.0**-23
ANSWERS = {answer.name: answer for answer in figures.answers()}
# which residual of each answer of the first figure must fail
FAILS = {
    "nothing done": ("factor",),
    "one entry of R off": ("factor",),
    "\u03c4 for a zero column": ("orthogonality",),
    "one \u03c4 off": ("factor", "orthogonality"),
    "stage 1": (),
}
DRAWN = {
    **{name: (figures.residuals_frame, answer) for name, answer in ANSWERS.items()},
    **{f"comparison {k}": (figures.comparison, k) for k in range(len(figures.CURVES) + 1)},
    "scale map": (figures.scale_map,),
    "gallery": (figures.gallery,),
}
PLOTS = ("scale map", *(name for name in DRAWN if name.startswith("comparison")))
STEPPERS = (figures.residuals_stepper, figures.comparison_stepper)


def reflectors(H, tau):
    """Q [m, m] in float64 of one matrix, by the definition: a product of I - tau v v^T."""
    m = len(H)
    Q = np.eye(m)
    for j, t in enumerate(tau.astype(np.float64)):
        v = np.zeros(m)
        v[j], v[j + 1 :] = 1, H[j + 1 :, j]
        Q = Q @ (np.eye(m) - t * np.outer(v, v))
    return Q


def by_definition(A, H, tau):
    """(factor, orthogonality) of one matrix as the contract writes them, and R - Q^T A."""
    Q, A64 = reflectors(H, tau), A.astype(np.float64)
    F = np.triu(H).astype(np.float64) - Q.T @ A64
    E = Q.T @ Q - np.eye(len(Q))
    unit = len(A) * EPS
    factor, orthogonality = (np.abs(X).sum(0).max() / unit for X in (F, E))
    return factor / np.abs(A64).sum(0).max(), orthogonality, F


def column_residuals(A, H, tau):
    """|r_j - Q^T a_j| / |a_j| for every column, in m*eps; 0 where both are zero."""
    F = by_definition(A, H, tau)[2]
    wrong, size = np.abs(F).sum(0), np.abs(A.astype(np.float64)).sum(0)
    assert (wrong[size == 0] == 0).all()
    return wrong / np.where(size == 0, 1, size) / (len(A) * EPS)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


@pytest.mark.parametrize("name", FAILS)
def test_each_answer_shows_where_the_chapter_says(name):
    answer = ANSWERS[name]
    A, H, tau = (X[0] for X in answer[2:])
    assert (A[:, -1] == 0).all()
    values = dict(zip(TASK._fields, by_definition(A, H, tau)))
    assert {k for k, v in values.items() if v > getattr(TASK, k)} == set(FAILS[name])
    if name == "nothing done":
        assert values["orthogonality"] == 0
    words = texts(figures.residuals_frame(answer))
    shown = [each for each in words if re.search(r" of \d+: ", each)]
    for words, (which, value) in zip(shown, values.items(), strict=True):
        number = float(words.split(" of ")[0].replace("\u2212", "-"))
        assert number == pytest.approx(value, rel=0.05)
        assert words.endswith("FAIL" if which in FAILS[name] else "ok")
        assert f"{which} {words.split(' of ')[0]}" in figures.verdict(answer)


@pytest.mark.parametrize("name", FAILS)
def test_what_is_filled_is_what_a_gate_must_catch(name):
    body = figures.residuals_frame(ANSWERS[name]).body()
    filled = body.count('fill="var(--qr-pink')
    words = len(FAILS[name])
    assert (filled > words) == bool(words)


def test_spoiling_does_what_it_says():
    honest = figures.spoiled("nothing")
    assert certify(*honest[2:]).passed
    for what in figures.SPOILS:
        A, H, tau = figures.spoiled(what, column=1, by=0.5)[2:]
        assert np.array_equal(A, honest.A)
        where = np.argwhere(H[0] != honest.H[0])
        if what in ("nothing", "tau"):
            assert len(where) == 0
            assert np.array_equal(tau - honest.tau, [[0, 0.5 * (what == "tau"), 0, 0, 0]])
        elif what in ("R", "V"):
            assert {(i <= j, j) for i, j in where} == {(what == "R", 1)}
            assert H[0, *where.T] == pytest.approx(1.5 * honest.H[0, *where.T])
            assert np.array_equal(tau, honest.tau)
        elif what == "tail of R":
            assert where[:, 1].min() == 1 and not H[..., 1:].any() and not tau[0, 1:].any()
        else:
            assert np.array_equal(H, A) and not tau.any()
        assert certify(A, H, tau).passed == (what == "nothing")


def slope(name, low, high):
    """The power of kappa that a curve follows between two condition numbers."""
    inside = (low <= figures.CONDITIONS) & (figures.CONDITIONS <= high)
    x, y = figures.CONDITIONS[inside], figures.losses(name)[inside]
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def test_the_powers_of_the_condition_number():
    assert slope("classical Gram-Schmidt", 10, 1e4) == pytest.approx(2, abs=0.3)
    assert slope("Cholesky QR", 10, 1e4) == pytest.approx(2, abs=0.3)
    assert slope("modified Gram-Schmidt", 100, 1e8) == pytest.approx(1, abs=0.2)
    assert slope("Householder", 1, 1e8) == pytest.approx(0, abs=0.05)
    assert slope("Cholesky QR twice", 1, 3e3) == pytest.approx(0, abs=0.05)


def test_the_fate_of_the_five_methods():
    assert set(figures.CURVES) <= set(METHODS)
    gate = figures.gate_of(64)
    assert gate == 100 * 64 * EPS
    loss = {name: figures.losses(name) for name in figures.CURVES}
    assert (loss["Householder"] < gate / 100).all()
    # not the lowest curve, but the one that does not move
    twice = np.isfinite(loss["Cholesky QR twice"])
    assert (loss["Cholesky QR twice"][twice] < loss["Householder"][twice]).all()
    # the second pass has nothing to mend where the first gives nothing
    assert np.array_equal(twice, np.isfinite(loss["Cholesky QR"]))
    stops = figures.CONDITIONS[twice][-1]
    fails = figures.CONDITIONS[loss["Cholesky QR"] > gate][0]
    assert 1 / np.sqrt(EPS) / 10 < stops < 1 / np.sqrt(EPS) * 10
    assert fails < stops / 30
    assert loss["classical Gram-Schmidt"][-1] < 64
    for name in figures.CURVES:
        words = figures.fate(name)
        bad = figures.CONDITIONS[~(loss[name] <= gate)]
        if name in ("Householder", "Cholesky QR twice"):
            assert words.startswith("passes")
        else:
            assert words.startswith(f"fails from \u03ba = {bad[0]:.1e} on")
        assert ("gives none" in words) == bool(np.isnan(loss[name]).any())


def test_losses_are_those_of_a_plain_calculation():
    for k in (0, 8, 16):
        A = with_condition(64, 64, figures.CONDITIONS[k], seed=0)
        Q = METHODS["modified Gram-Schmidt"](A)[0].astype(np.float64)
        loss = np.abs(Q.T @ Q - np.eye(64)).sum(0).max()
        assert figures.losses("modified Gram-Schmidt")[k] == pytest.approx(loss, rel=1e-6)


def test_every_method_gives_A_back():
    A = with_condition(64, 64, 1e3)
    for name in figures.CURVES:
        Q, R = (X.astype(np.float64) for X in METHODS[name](A))
        assert np.abs(A - Q @ R).sum(0).max() < 0.1 * 64 * EPS * np.abs(A).sum(0).max()


@pytest.mark.parametrize("named", range(len(figures.CURVES) + 1))
def test_a_comparison_names_as_many_as_it_is_told(drawn, named):
    words = texts(drawn[f"comparison {named}"])
    names = list(figures.CURVES)
    assert [name for name in names if name in words] == names[:named]
    alt = drawn[f"comparison {named}"].alt
    assert [name for name in names if f"{name}: {figures.fate(name)}" in alt] == names[:named]


def test_the_comparison_asks_before_it_tells():
    frames = figures.comparison_stepper().frames
    # the last frame is shown first
    assert "no names" in frames[-1].readout
    assert not [n for n in figures.CURVES if n in texts(frames[-1].figure)]
    assert [f.value for f in frames[:-1]] == list(figures.CURVES)


def test_the_unscaled_norm_is_householder_where_squares_are_safe():
    A = matrices.make("dense", 3, 20, seed=5)
    kept = A.copy()
    for plain, ours in zip(figures.geqrf_unscaled(A), geqrf(A)):
        assert plain == pytest.approx(ours, rel=1e-4, abs=1e-5)
    assert np.array_equal(A, kept)


def test_the_scale_map_says_what_the_chapter_says():
    scales = figures.SCALES
    plain, ours = figures.scale_residuals()
    dead = (scales > 1e-43) & (scales < 1e-23)
    assert (plain[dead, 1] == 0).all() and (plain[dead, 0] > 1e5).all()
    band = (scales > 1e-23) & (scales < 1e-21)
    assert (plain[band] > 100).all()
    safe = (scales > 1e-18) & (scales < 1e18)
    assert (plain[safe] < 1).all()
    assert np.isinf(plain[scales > 1e20]).all()
    assert (ours[(scales > 1e-39) & (scales < 2e38)] < 1).all()
    tiny = (scales > 2e-45) & (scales < 1e-41)
    assert (ours[tiny, 0] > TASK.factor).all() and (ours[tiny, 1] < 1).all()
    # somewhere only orthogonality tells
    assert ((plain[:, 0] <= TASK.factor) & (plain[:, 1] > TASK.orthogonality)).any()


def test_the_gallery_draws_every_entry_that_is_not_zero(drawn):
    root = ElementTree.fromstring(drawn["gallery"].body())
    maps = [g for g in root.iter(f"{SVG}g") if "scale" in g.get("transform", "")]
    made = [matrices.make(f, 1, 32, cond=2, seed=7)[0] for f in FAMILIES[:-1]]
    made += list(matrices.make("mixed", 4, 32, cond=2, seed=7))
    assert len(maps) == len(made) == 13
    for group, A in zip(maps, made):
        cells = np.zeros((32, 32), int)
        for path in group.iter(f"{SVG}path"):
            for x, y, run in re.findall(r"M(\d+) (\d+)h(\d+)v1", path.get("d")):
                cells[int(y), int(x) : int(x) + int(run)] += 1
        assert np.array_equal(cells, A != 0)
    points = len(list(root.iter(f"{SVG}circle")))
    values = [np.linalg.svd(A.astype(np.float64), compute_uv=False) for A in made]
    assert points == sum(int((s > 1e-8 * s[0]).sum()) for s in values)
    words = texts(drawn["gallery"])
    for family in FAMILIES:
        assert family in words and figures.SPECIAL[family] in words
        assert f"{family}, {figures.SPECIAL[family]}" in drawn["gallery"].alt


def test_the_mixed_family_of_the_gallery_is_mixed():
    zeros = [(A == 0).mean() for A in matrices.make("mixed", 4, 32, cond=2, seed=7)]
    assert len({round(z, 2) for z in zeros}) > 1


def test_the_survey_is_of_every_stage_that_runs_here_and_all_pass():
    found = figures.survey(n=33, batch=2)
    assert set(found) == {(f, s) for f in FAMILIES for s in ANYWHERE}
    assert all(c.passed for c in found.values())
    # far inside LAPACK's gate, which is far inside the task's
    assert max(max(c.factor.max(), c.orthogonality.max()) for c in found.values()) < 1 < LAPACK[0]
    for family in ("upper", "diagonal"):
        for stage in ANYWHERE:
            assert not found[family, stage].factor.any()
            assert not found[family, stage].orthogonality.any()
    table = figures.survey_table(found)
    assert [row[0] for row in table.rows] == list(FAMILIES)
    c = found["dense", "s03_blocked"]
    cell = table.rows[0][1 + ANYWHERE.index("s03_blocked")]
    assert cell == f"{c.factor.max():.2g} / {c.orthogonality.max():.2g}"


def test_a_table_is_read_by_eye_and_by_ear():
    table = figures.Table("a < b", ("what", "how"), [["x & y", "1"]])
    html = table._repr_html_()
    assert "a &lt; b" in html and "x &amp; y" in html
    assert html.count("scope='col'") == 2 and html.count("scope='row'") == 1
    assert str(table).splitlines() == ["a < b", "what   how", "x & y  1  "]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_every_stage_is_held_to_every_column_by_its_own_length(stage, family):
    A = batch_of(family, 2, 65, cond=4, seed=11)
    H, tau = (X.numpy() for X in qrlib.geqrf(A, stage=stage))
    for b in range(len(A)):
        assert column_residuals(A[b].numpy(), H[b], tau[b]).max() < 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", TRITON)
def test_kernels_are_held_to_every_column_too(stage, family):
    n, device = (65, "cuda") if torch.cuda.is_available() else (20, "cpu")
    A = batch_of(family, 2, n, cond=4, seed=11)
    with quick_reductions():
        H, tau = (X.cpu().numpy() for X in qrlib.geqrf(A.to(device), stage=stage))
    for b in range(len(A)):
        assert column_residuals(A[b].numpy(), H[b], tau[b]).max() < 2


def test_a_lazy_answer_passes_the_gates_and_not_the_columns():
    A = matrices.make("clustered", 1, 64)
    H, tau = geqrf(A)
    assert column_residuals(A[0], H[0], tau[0]).max() < 2
    H[..., 34:], tau[..., 34:] = 0, 0
    assert certify(A, H, tau, gate=LAPACK).passed
    # all of the column is missing; its L1 norm changes a little under Q
    assert column_residuals(A[0], H[0], tau[0])[34:].min() > 0.8 / (64 * EPS)


def test_two_right_answers_may_have_nothing_in_common():
    A = matrices.hilbert(12)[None]
    answers = [qrlib.geqrf(A, stage=stage) for stage in ("auto", "s01_mirror")]
    assert all(certify(A, *answer).passed for answer in answers)
    a, b = (np.diagonal(H[0]) for H, _ in answers)
    difference = np.abs(a - b) / np.abs(a)
    assert difference[:4].max() < 1e-3 and difference.max() > 0.3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [1e-6, 1e-2, 3.0])
def test_two_residuals_bound_the_distance_to_an_exact_factorization(seed, size):
    rng = np.random.default_rng(seed)
    m, n = 7, 5
    A, R = rng.standard_normal((m, n)), np.triu(rng.standard_normal((m, n)))
    Q = np.linalg.qr(rng.standard_normal((m, m)))[0] + size * rng.standard_normal((m, m))

    def norm(X):
        return np.linalg.norm(X, 2)

    F, E = R - Q.T @ A, Q.T @ Q - np.eye(m)
    U, _, Wt = np.linalg.svd(Q)
    nearest = U @ Wt
    assert norm(Q - nearest) <= norm(E) * (1 + 1e-8)
    assert norm(nearest @ R - A) <= (norm(F) + norm(E) * norm(A)) * (1 + 1e-8)
    # and back
    dA, eta = nearest @ R - A, norm(Q - nearest)
    assert norm(F) <= (norm(dA) + eta * norm(A)) * (1 + 1e-8)
    assert norm(E) <= (2 * eta + eta**2) * (1 + 1e-8)


@pytest.mark.parametrize("delta", [-0.5, 1e-3, 0.25])
def test_what_a_wrong_tau_does(delta):
    v = np.random.default_rng(0).standard_normal(6)
    P = np.outer(v, v) / (v @ v)
    H0, H = (np.eye(6) - (1 + d) * 2 * P for d in (0, delta))
    assert H.T @ H == pytest.approx(np.eye(6) + 4 * delta * (1 + delta) * P, abs=1e-14)
    assert H - H0 == pytest.approx(-2 * delta * P, abs=1e-14)


def test_late_mirrors_hide_from_the_factor_residual():
    A = matrices.make("dense", 1, 64, cond=2)
    H, tau = geqrf(A)
    honest = certify(A, H, tau)
    assert honest.factor[0] < TASK.factor / 500
    assert honest.orthogonality[0] < TASK.orthogonality / 200
    found = {}
    for j in (0, 62):
        off = tau.copy()
        off[0, j] *= np.float32(1.01)
        found[j] = certify(A, H, off)
    assert found[0].factor[0] > 1000 > TASK.factor > 1 > found[62].factor[0]
    assert min(c.orthogonality[0] for c in found.values()) > 1000


def test_averages_and_shared_norms_hide_a_wrong_matrix():
    A = matrices.make("dense", 64, 32, cond=1)
    H, tau = geqrf(A)
    tau[17, 3] *= np.float32(1.001)
    c = certify(A, H, tau)
    assert c.factor.mean() < TASK.factor and c.orthogonality.mean() < TASK.orthogonality
    assert not c.passed and c.worst == (17,)
