"""The figures of chapter 12: what they say is what roundings do, and the theorems hold."""

import math
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drawings import EveryFigure, texts  # noqa: E402
from tables import normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib.certificate import TASK  # noqa: E402
from qrlib.devices import DEVICES  # noqa: E402
from qrlib.matrices import FAMILIES, make  # noqa: E402
from qrlib.precision import FORMATS, numbers, product, round_to, split  # noqa: E402
from qrlib.stages import s03_blocked  # noqa: E402
from qrlib.teach import rounded  # noqa: E402
from qrlib.teach.figures import precision as figures  # noqa: E402

EPS = 2.0**-23
X = (17, 19, 16.6, 16, 2.0**-10, 455, 464, 1000, 0)
DRAWN = {
    **{f"format {name}": (figures.format_frame, name) for name in FORMATS},
    **{f"rounding {x:g}": (figures.rounding_frame, x) for x in X},
    "rounding to Inf": (figures.rounding_frame, 65530, "fp16"),
    "rounding to fp4": (figures.rounding_frame, 5, "fp4_e2m1"),
    **{
        f"survey {step} {format}": (
            lambda key: figures.survey_frame(figures.survey(48)[key], *key),
            (step, format),
        )
        for step in figures.SHOWN_STEPS
        for format in ("nvfp4", "fp16")
    },
    "growth": (figures.growth_plot, (64, 96)),
    "price": (figures.price_plot,),
    "price of an H200": (figures.price_plot, "H200"),
    **{f"block {by}": (figures.block_frame, by) for by in (0.3, 1, 10, 40)},
}
PLOTS = ("growth",)
STEPPERS = (
    figures.formats_stepper,
    figures.rounding_stepper,
    lambda: figures.survey_stepper(48),
    figures.block_stepper,
)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


# formats


def test_the_table_has_a_row_and_a_source_for_every_format():
    table = figures.format_table()
    assert [row[0] for row in table.rows] == list(FORMATS)
    assert all(len(row) == len(table.heads) for row in table.rows)
    for row, f in zip(table.rows, FORMATS.values()):
        assert figures.sources()[int(row[-1][1:-1]) - 1] == f.source
        assert int(row[3]) == f.p and float(row[1]) == f.bits


@pytest.mark.parametrize("format", ("fp4_e2m1", "fp8_e4m3", "fp8_e5m2"))
def test_ticks_stand_at_numbers_of_the_format(drawn, format):
    body = drawn[f"format {format}"].body()
    drawn_at = re.search(r'<path d="((?:M[\d.]+ 109v18)+)"', body)[1]
    unit = (406 - 14 - 8) / 8
    at = (np.array([float(x) for x in re.findall(r"M([\d.]+) ", drawn_at)]) - 14) / unit
    known = numbers(format)
    assert np.abs(at[:, None] - known).min(1).max() < 0.01
    # none is left out where they stand apart; the band takes the rest
    band = re.findall(r'<rect x="([\d.]+)" y="109" width="([\d.]+)"', body)
    end = max((float(x) + float(w) - 14) / unit for x, w in band) if band else 0
    assert len(at) == ((known >= end - 0.01) & (known <= 8)).sum()
    assert end <= {"fp4_e2m1": 0, "fp8_e4m3": 0.5, "fp8_e5m2": 0.25}[format]


@pytest.mark.parametrize("format", FORMATS)
def test_boxes_are_the_bits(drawn, format):
    f = FORMATS[format]
    said = texts(drawn[f"format {format}"])
    assert {"sign 1", f"exponent {f.exponent}", f"digits {f.p - 1}"} <= set(said)
    boxes = re.findall(r'y="32" width="10" height="20"', drawn[f"format {format}"].body())
    assert len(boxes) == 1 + f.exponent + f.p - 1


@pytest.mark.parametrize("format", ("fp4_e2m1", "fp8_e4m3", "fp8_e5m2", "fp16", "bf16"))
def test_neighbours_are_neighbours(format):
    known = numbers(format)
    rng = np.random.default_rng(0)
    # all sizes, subnormal to beyond the largest
    sizes = rng.uniform(math.log2(known[1]) - 1, math.log2(known[-1]) + 0.2, 300)
    for x in (*2.0**sizes, *known[:: len(known) // 7 + 1]):
        n = figures.neighbours(float(x), format)
        assert n.low <= x or x > n.high
        assert n.low in known and (n.high in known or n.high > known[-1])
        assert not ((known > n.low) & (known < n.high)).any()
        assert n.result == round_to(np.array([float(x)]), format)[0]
        assert n.low_is_even == (np.flatnonzero(known == n.low)[0] % 2 == 0)


def test_a_rounding_is_told_as_it_is(drawn):
    words = {x: figures.rounding_words(x, "fp8_e4m3") for x in X}
    assert "a tie. It becomes 16." in words[17] and "a tie. It becomes 20." in words[19]
    assert "nearer to 16. It becomes 16." in words[16.6]
    assert words[16].startswith("16 is a number of the format")
    assert "480 is no number of FP8 E4M3" in words[464] and words[464].endswith("becomes 448.")
    assert "far beyond" in words[1000]
    assert "It becomes Inf." in drawn["rounding to Inf"].alt
    assert "becomes Inf" not in words[1000] and "Inf" in texts(drawn["rounding to Inf"])


def test_what_is_cut_off_drifts():
    nearest, cut = figures.drift("tf32")
    u = FORMATS["tf32"].unit_roundoff
    assert -2 * u < cut < -u and abs(nearest) < u / 100


def test_raised_and_short_say_numbers():
    assert figures.raised(2, -14) == "2\u207b\u00b9\u2074" and figures.raised(10, 0) == "1"
    said = [figures.short(x) for x in (0, 0.0123, 131.2, 999.6, 4423, 13000, math.inf)]
    assert said == ["0", "0.0123", "131", "1000", "4423", "1.3e4", "not finite"]


# once over the matrix


@pytest.mark.parametrize("m", (32, 100, 512, 4096))
@pytest.mark.parametrize("times", (1.0, 3.0))
def test_the_least_bits_are_enough_and_one_less_is_not(m, times):
    p = figures.least_bits(m, times)
    assert times * 2.0**-p <= TASK.factor * m * EPS < times * 2.0 ** (1 - p)


def test_rounding_a_once_costs_what_the_table_says_at_most():
    for format in ("fp16", "bf16", "fp8_e4m3"):
        A = normal(1, 128, 128)
        parts, scale = split(A, format, 1, axis=-2)
        H, tau = s03_blocked.geqrf((parts[0] * scale).double())
        found = qrlib.certify(A.double(), H, tau).factor[0] * 2.0**-52 / EPS
        u = FORMATS[format].unit_roundoff / (128 * EPS)
        assert 0.1 * u < found <= u
        row = next(row for row in figures.once_table().rows if row[0] == "128")
        assert figures.short(u) in row


# the theorems


@pytest.mark.parametrize("format", ("fp16", "bf16", "fp8_e5m2", "fp8_e4m3"))
def test_a_short_mirror_is_as_good_as_the_theorem_says(format):
    u, I = FORMATS[format].unit_roundoff, np.eye(30)
    for seed in range(20):
        v = np.random.default_rng(seed).uniform(0.3, 1, 30)
        # all of normal size, where u is what the theorem takes it for
        w = round_to(v, format)
        H = I - 2 / (v @ v) * np.outer(v, v)
        own = I - 2 / (w @ w) * np.outer(w, w)
        old = I - 2 / (v @ v) * np.outer(w, w)
        assert np.linalg.norm(own.T @ own - I, 2) < 1e-14
        assert np.linalg.norm(own - H, 2) <= 2 * u
        delta = w @ w / (v @ v) - 1
        assert abs(delta) <= 2 * u + u**2
        lost = np.linalg.norm(old.T @ old - I, 2)
        assert lost == pytest.approx(4 * abs(delta) * (1 + delta), abs=1e-14)


def test_errors_of_updates_are_errors_of_a():
    A = normal(2, 40, 40, dtype=torch.float64)
    made, generator = torch.zeros(2, 40, dtype=torch.float64), torch.Generator().manual_seed(1)

    def update(V, T, C):
        s03_blocked.update(V, T, C)
        E = 0.1 * torch.randn(C.shape, dtype=C.dtype, generator=generator)
        C += E
        made[:, -C.shape[-1] :] += E.norm(dim=-2)

    H, tau = s03_blocked.right_looking(A, 8, s03_blocked.panel, update)
    Q = qrlib.householder_product(H, tau)
    assert (Q.mT @ Q - torch.eye(40)).abs().max() < 1e-13
    lost = (Q @ H.triu() - A).norm(dim=-2)
    assert (lost <= made + 1e-12).all() and lost.max() > 0.1 * made.max()


# one step in a short format


@pytest.mark.parametrize("step", rounded.STEPS)
def test_in_float32_a_step_is_that_of_stage_3(step):
    A = figures.families(48)
    H, tau = rounded.geqrf(A, "fp32", step, nb=16)
    c = qrlib.certify(A, H, tau)
    assert c.factor.max() < 0.5 and c.orthogonality.max() < 1


@pytest.mark.parametrize("format", ("bf16", "fp8_e4m3"))
def test_what_is_said_to_be_short_is_short(format):
    A = normal(2, 24, 24)

    def is_short(x):
        (part,), scale = split(x, format, 1, axis=-2)
        return torch.equal(part * scale, x)

    for step in ("V", "V and tau", "panel"):
        H, tau = rounded.geqrf(A, format, step, nb=8)
        # a column of V has its head, 1, and its tail; R is no part of it
        tails = [H[:, j + 1 :, j : j + 1] for j in range(23)]
        assert all(is_short(tail) for tail in tails), step
        if step == "panel":
            # and of R what lies in the panel of its column
            mantissa = H[:, 8, 9:16].double().frexp().mantissa
            assert torch.equal(mantissa * 2.0 ** FORMATS[format].p % 1, 0 * mantissa)
        fits = ((2 / (qrlib.unpack_v(H) ** 2).sum(-2) - tau)[:, :-1].abs() < 1e-5).all()
        assert fits == (step == "V and tau"), step
    kept = []

    def panel(H, tau):
        kept.append(H.clone())
        return s03_blocked.panel(H, tau)

    s03_blocked.right_looking(A, 8, panel, rounded.stored(format))
    assert all(is_short(H) for H in kept[1:])
    H, tau = rounded.geqrf(A, format, "update", nb=8)
    assert not any(is_short(H[:, j + 1 :, j : j + 1]) for j in range(8, 20))


@pytest.mark.parametrize("format", ("bf16", "fp8_e4m3", "nvfp4"))
def test_only_the_product_that_is_said_to_be_is_short(format):
    V, C = qrlib.unpack_v(normal(2, 40, 8) / 8), normal(2, 40, 20, seed=1)
    T = s03_blocked.larft(V, 2 / (V * V).sum(-2))
    for where in ("W", "VZ", "update"):
        W = V.mT @ C if where == "VZ" else product(V.mT, C, format)
        Z = T.mT @ W
        expected = C - (V @ Z if where == "W" else product(V, Z, format))
        found = C.clone()
        rounded.update(format, where=where)(V, T, found)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_zero_column_has_no_mirror_in_any_format():
    A = torch.from_numpy(make("rankdef", 1, 32))
    for step in rounded.STEPS:
        _, tau = rounded.geqrf(A, "bf16", step, nb=8)
        assert (tau[:, 24:] == 0).all() and tau.isfinite().all(), step


def test_an_unknown_step_lists_the_known():
    with pytest.raises(ValueError, match="step must be one of W, VZ, update,.*got 'all'"):
        rounded.geqrf(normal(1, 8, 8), "bf16", "all")


def test_only_the_panel_can_harm_q():
    found = figures.survey(48)
    for (step, format), c in found.items():
        if step in ("none", "update", "C", "V and tau"):
            assert c.orthogonality.max() < 1, (step, format)
        else:
            # full matrices: those that ask for no mirror have none to spoil
            full = [k for k, family in enumerate(FAMILIES) if family not in ("upper", "diagonal")]
            assert (c.orthogonality[full] > TASK.orthogonality).all(), (step, format)


def test_a_survey_is_what_a_run_gives(drawn):
    A = figures.families(48)
    c = qrlib.certify(A, *rounded.geqrf(A, "fp16", "V"))
    np.testing.assert_array_equal(figures.survey(48)["V", "fp16"].factor, c.factor)
    assert f"{int(c.each.sum())} of 10 pass" in drawn["survey V fp16"].alt
    crosses = drawn["survey V fp16"].body().count("l10 10M")
    assert crosses == (c.factor > 20).sum() + (c.orthogonality > 100).sum()
    table = figures.where_table(48)
    row = list(figures.SHOWN_STEPS).index("V")
    assert table.rows[row][1 + figures.SHOWN_FORMATS.index("fp16")] == f"{int(c.each.sum())}"


# a budget


def test_the_account_is_kept_as_the_page_says():
    """Again for one matrix, entry by entry, in float64 and with loops."""
    A, u, nb = normal(1, 12, 12, seed=2), 2.0**-8, 4
    H = A[0].double().numpy()
    worst, squares = np.zeros(12), np.zeros(12)
    for j in range(0, 12, nb):
        panel, tau = (X[0].numpy() for X in _factored(H[j:, j : j + nb]))
        V = np.tril(panel, -1)[:, :nb] + np.eye(len(panel), nb)
        T = np.linalg.inv(np.diag(1 / tau) + np.triu(V.T @ V, 1)) if (tau != 0).all() else None
        if T is None or j + nb >= 12:
            break
        C = H[j:, j + nb :]
        Z = T.T @ V.T @ C
        for c in range(C.shape[1]):
            for i in range(C.shape[0]):
                terms = [(V[i, k] * Z[k, c]) for k in range(nb)]
                through = V @ T.T
                inner = [
                    through[i, k] * V[r, k] * C[r, c] for k in range(nb) for r in range(len(C))
                ]
                worst[j + nb + c] += sum(map(abs, terms)) + sum(map(abs, inner))
                squares[j + nb + c] += sum(t * t for t in terms) + sum(t * t for t in inner)
        H[j:, j + nb :] = C - V @ Z
        H[j:, j : j + nb] = panel
    length = np.abs(A[0].double().numpy()).sum(0).max()
    found = [each[0] for each in figures.expected(A, u, nb)]
    expected = (
        2 * u * worst.max() / length,
        0.58 * u * 0.8 * math.sqrt(12) * math.sqrt(squares.max()) / length,
    )
    assert found == pytest.approx(expected, rel=1e-4)


def _factored(panel):
    H = torch.from_numpy(panel.copy())[None]
    tau = H.new_zeros(1, panel.shape[1])
    s03_blocked.panel(H, tau)
    return H, tau


@pytest.mark.parametrize("format", ("fp16", "bf16"))
@pytest.mark.parametrize("n", (64, 128))
def test_no_residual_exceeds_the_worst_case_and_chance_is_near(n, format):
    # dense, upper and so on: those with updates
    for line in figures.budget(n, format):
        if line.worst:
            assert line.found <= line.worst
            assert line.typical / 8 < line.found < 2 * line.typical, line
            assert line.typical < line.worst
    dense = figures.budget(n, format)[0]
    assert dense.found == pytest.approx(dense.typical, rel=0.25)


def test_the_budget_table_has_the_families_that_are_updated():
    rows = figures.budget_table(64).rows
    assert [row[0] for row in rows] == [f for f in FAMILIES if f not in ("upper", "diagonal")]


def test_the_norm_forgives_small_columns_and_nothing_else_does():
    """As the page says: columns that fall off are wrong as before, by their own length."""
    found = []
    for cond in (0, 2, 4):
        A = torch.from_numpy(make("dense", 2, 128, cond=cond))
        found.append(qrlib.certify(A, *rounded.geqrf(A, "fp16", "update")))
    factor = [c.factor.max() for c in found]
    column = [c.columnwise.max() for c in found]
    assert factor[0] > 4 * factor[1] > 8 * factor[2] and max(column) < 1.3 * min(column)


def test_with_scales_tf32_and_fp16_are_the_same():
    A = figures.families(64)
    for step in rounded.STEPS:
        one, other = (rounded.geqrf(A, format, step) for format in ("tf32", "fp16"))
        assert torch.equal(one.H, other.H) and torch.equal(one.tau, other.tau), step


def test_growth_is_what_factorizations_give(drawn):
    found = figures.growth((64, 96))
    A = torch.from_numpy(make("rowscale", 2, 96, seed=96))
    c = qrlib.certify(A, *rounded.geqrf(A, "fp16", "update"))
    assert found["rowscale, FP16"][1] == float(c.factor.max())
    assert f"rowscale, FP16: {figures.short(found['rowscale, FP16'][0])} at 64" in (
        drawn["growth"].alt
    )


def test_from_which_size_on_it_passes():
    sizes = (1, 2, 3, 4)
    assert figures.passes_from((30, 10, 30, 10), sizes) == 4
    assert figures.passes_from((30, 10, 10, 10), sizes) == 2
    assert figures.passes_from((10, 10, 10, 10), sizes) == 1
    assert figures.passes_from((10, 10, 10, 30), sizes) is None


# sums of short numbers


def test_terms_are_worth_what_the_page_says():
    assert [figures.products(terms) for terms in (1, 2, 3)] == [1, 3, 6]
    assert figures.kept("fp16", 1) == 10 and figures.kept("bf16", 1) == 7
    assert figures.kept("fp16", 2) == pytest.approx(22 - math.log2(3))
    errors = figures.product_errors(64)
    for way, error in errors.items():
        bits = min(figures.kept(*way), 20.5)
        assert error <= 2.0**-bits, way
    found = figures.terms_survey(64)
    for way in (("bf16", 2), ("bf16", 3), ("fp16", 2), ("fp16", 3)):
        assert found[way].passed, way
    for way in (("bf16", 1), ("fp16", 1), ("fp8_e4m3", 1), ("fp8_e4m3", 2)):
        assert not found[way].passed, way
    # from here on it is the sums
    good = [found[way].factor.max() for way in (("bf16", 3), ("fp16", 2), ("fp16", 3))]
    assert max(good) < 1.5 * min(good)
    assert max(c.orthogonality.max() for c in found.values()) < 1


def test_nobody_beats_the_best():
    prices = figures.prices("B200")
    best = figures.best(prices)
    assert {(each.format, each.terms) for each in best} >= {("fp16", 1), ("fp16", 2)}
    for one in prices:
        beaten = [o for o in prices if o.bits >= one.bits and o.time <= one.time and o != one]
        assert (one in best) == (not beaten)
    # as the page says of terms of FP8, and of TF32
    time = {(each.format, each.terms): each.time for each in prices}
    assert time["fp8_e4m3", 3] == pytest.approx(3 * time["fp16", 1])
    assert time["tf32", 2] > 1.9 * time["fp16", 2] and time["bf16", 3] == 2 * time["fp16", 2]
    assert time["fp32", 1] == DEVICES["B200"].peak["fp16"] / DEVICES["B200"].peak["fp32"]
    assert len(figures.price_words("H200")) == 1 + len(figures.best(figures.prices("H200")))


# range


def test_scales_cure_what_the_page_says():
    found = figures.range_survey()
    for name in figures.SPOILS:
        c = found[name, "vector"]
        assert c.passed and c.columnwise.max() < 1, name
    for name in ("a column times 1e5", "a row times 1e5", "one entry 1e5", "all times 1e30"):
        assert not found[name, None].finite.all(), name
    quiet = found["a column times 1e-8", None]
    assert quiet.passed and quiet.columnwise.max() > 1000
    beside = found["a column times 1e-8", "matrix"]
    assert beside.passed and beside.columnwise.max() > 10
    assert not found["all times 1e-30", None].passed and found["all times 1e-30", "matrix"].passed
    for name in figures.SPOILS:
        c = figures.range_survey("bf16", 3)[name, None]
        assert c.passed and c.columnwise.max() < 1, name
    table = figures.range_table()
    assert [row[0] for row in table.rows] == list(figures.SPOILS)
    assert table.rows[1][1] == "NaN or Inf"


# sixteen numbers and a scale


@pytest.mark.parametrize("by", (1, 10))
def test_a_block_is_drawn_with_what_it_becomes(drawn, by):
    x = figures.sixteen(by)
    y = round_to(x, "nvfp4")
    body = drawn[f"block {by}"].body()
    unit = float(re.search(r"scale ([\d.]+)", texts(drawn[f"block {by}"])[0])[1])
    drawn_at = [float(v) for v in re.findall(r'y1="([\d.]+)" x2="[\d.]+" y2="\1" [^>]*"3"', body)]
    values = (150 - np.array(drawn_at)) * 6.4 * unit / 116
    np.testing.assert_allclose(values, y, atol=0.02 * unit)
    zero = int((np.delete(y, 5) == 0).sum())
    assert f"Of the 15 others {zero} become zero" in figures.block_words(by)


def test_a_scale_for_16_is_worth_half_a_bit():
    lost = figures.norms_lost()
    assert lost["nvfp4"] < lost["fp4_e2m1"] / 2
    assert lost["fp16"] < lost["bf16"] < lost["fp8_e4m3"] < lost["fp8_e5m2"] < lost["nvfp4"]
    assert [row[0] for row in figures.norms_table().rows] == list(lost)


def test_three_terms_of_nvfp4_are_not_enough():
    A = figures.families(64)
    worst = [
        qrlib.certify(A, *rounded.geqrf(A, "nvfp4", "update", terms)).factor.max()
        for terms in (1, 2, 3)
    ]
    assert worst[0] > worst[1] > worst[2] > TASK.factor
