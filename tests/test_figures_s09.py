"""The figures of the chapter of stage 9: cuts and their law, spikes, routes; and what it claims."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from drawings import EveryFigure, texts  # noqa: E402

import qrlib  # noqa: E402
from qrlib import matrices, model  # noqa: E402
from qrlib.precision import round_to  # noqa: E402
from qrlib.stages import s09_mixed  # noqa: E402
from qrlib.stages.s09_mixed import LARGE, MEDIUM, SPIKE  # noqa: E402
from qrlib.teach import few  # noqa: E402
from qrlib.teach.figures import s09_mixed as figures  # noqa: E402

DRAWN = {
    **{f"cut {k}": (lambda k: figures.places_frame(figures.CUTS[k]).figure, k)
       for k in range(len(figures.CUTS))},
    "law": (figures.law_plot,),
    "spikes": (figures.spike_plot,),
    **{f"route {step}": (lambda step: figures.route_frame(step).figure, step)
       for step in figures.STEPS},
}  # fmt: skip
STEPPERS = (figures.places_stepper, figures.route_stepper)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


# the simulation


def test_nothing_cut_is_stage_3():
    A = torch.from_numpy(matrices.make("dense", 2, 150))
    H, tau = few.geqrf(A, ())
    expected = qrlib.stage("s03_blocked").geqrf(A, nb=64)
    assert torch.equal(H, expected.H) and torch.equal(tau, expected.tau)


def test_a_cut_is_one_rounding_of_that_factor():
    generator = torch.Generator().manual_seed(0)
    V = torch.randn(1, 20, 4, generator=generator).tril(-1) + torch.eye(20, 4)
    T = torch.randn(1, 4, 4, generator=generator).triu()
    C = torch.randn(1, 20, 3, generator=generator)

    def short(x):
        return round_to(x, "fp16")

    def by_hand(v, c, w, z, t):
        W = v(V).mT @ c(C)
        Z = t(T).mT @ t(W)
        return C - w(V) @ z(Z)

    for k, place in enumerate(few.PLACES):
        ways = [short if k == each else lambda x: x for each in range(5)]
        found = C.clone()
        few.update((place,))(V, T, found)
        torch.testing.assert_close(found, by_hand(*ways), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="got \\['W'\\]"):
        few.geqrf(C, ("W",))


def test_errors_are_those_of_the_certificate():
    A = torch.from_numpy(matrices.make("rankdef", 2, 100))
    H, tau = few.geqrf(A)
    found = few.errors(A, H, tau)
    np.testing.assert_allclose(found.factor, qrlib.certify(A, H, tau).factor, rtol=1e-6)
    assert torch.isfinite(found.length).all()


def test_spikes_of_columns_that_one_knows():
    A = torch.zeros(1, 16, 4)
    A[0, :, 0], A[0, 3, 1], A[0, :4, 2] = -2, 1e30, 5
    assert few.spikes(A)[0].tolist() == pytest.approx([1, 4, 2, 0])
    normal = torch.randn(1, 4000, 1, generator=torch.Generator().manual_seed(0))
    assert few.spikes(normal).item() == pytest.approx(math.sqrt(math.pi / 2), rel=0.02)


@pytest.mark.parametrize("cut, count", (((), 6), (few.TWO, 4), (few.ONE, 2), (("T",), 6)))
def test_products(cut, count):
    assert sum(few.terms(cut)) == count


# the law


@pytest.mark.parametrize("cut", [cut for cut in figures.CUTS if cut and "T" not in cut])
def test_the_estimate_is_good_and_n_does_not_matter(cut):
    values = [figures.law(cut, n) for n in (256, 512, 1024)]
    assert max(values) < 1.15 * min(values)
    assert all(abs(v / figures.chance(cut) - 1) < 0.16 for v in values)


def test_what_the_text_says_of_places():
    law = {cut: figures.law(cut, 512) for cut in figures.CUTS}
    alone = [law[(place,)] for place in few.ONE]
    assert max(alone) < 1.6 * min(alone)
    assert law[few.ONE] < 3 * min(alone)
    assert 0.9 < law[("T",)] / law[few.ONE] < 1.2
    # the two terms that are kept are those of the cheapest cut
    others = (few.ONE[1::2], few.ONE[:2], few.ONE[2:])
    assert law[few.TWO] < min(figures.law(cut, 512) for cut in others)
    assert law[few.TWO] > 300 * law[()] and law[few.ONE] < 2 * law[few.TWO]
    with pytest.raises(ValueError, match="got T"):
        figures.chance(("T",))


def test_both_sizes_have_one_bound_and_room_below_the_gate():
    bounds = [
        SPIKE * max(figures.law(cut, n) for n in figures.SIZES) / least
        for cut, least in ((few.TWO, MEDIUM), (few.ONE, LARGE))
    ]
    assert abs(bounds[0] - bounds[1]) < 0.5 and max(bounds) < 0.75 * figures.GATE
    # below them it would not do
    assert SPIKE * figures.law(few.ONE, 512) / 512 > figures.GATE
    assert figures.found(few.ONE, 128).factor > figures.GATE


@pytest.mark.parametrize("n", (MEDIUM, LARGE))
def test_flat_matrices_of_any_kind_keep_half_of_the_gate(n):
    some = [it for it in figures.tried(n) if it.spike <= SPIKE]
    assert len(some) >= 8 and max(it.ratio for it in some) < figures.GATE / 2


def test_left_out_is_what_the_precisions_of_the_stage_leave_out():
    for n in (64, MEDIUM, LARGE):
        precision = s09_mixed.products(n)
        each = {None: 3, "fp16x2": 2, "fp16": 1}[precision]
        assert few.terms(figures.LEFT_OUT[precision]) == (each, each)


# spikes and routes


def test_a_spike_is_a_bound_that_is_kept():
    rows = figures.spiked()
    some = [row for row in rows if "column" in row.name]
    assert [row.spike for row in some] == sorted(row.spike for row in some)
    for row in some:
        assert row.one < 1.1 * row.spike * figures.chance(few.ONE) / 512
    assert some[-1].one > 5 * some[0].one
    assert max(row.three for row in rows) < 1


def test_flags_are_those_of_the_kernel():
    from qrlib.jit import quick_reductions
    from qrlib.scaling import flags, scale

    for name in ("dense", "one large entry"):
        A = figures.kinds(LARGE)[name]
        H, e, flat = torch.empty_like(A), A.new_empty(1, LARGE, dtype=torch.int32), flags(A)
        with quick_reductions():
            scale(A, H, e, flat, SPIKE)
        assert flat[0].bool().tolist() == list(figures.member(name).flags)


def test_everybody_passes_on_his_route_and_not_by_one_product():
    members = [figures.member(name) for name in figures.kinds(LARGE)]
    assert max(it.routed for it in members) < figures.GATE / 2
    by_one = {it.name for it in members if it.few}
    assert by_one == {"dense", "rankdef", "nearrank", "clustered", "nearcollinear", "two scales"}
    failed = {it.name for it in members if it.one > figures.GATE}
    assert failed == {"one large entry", "4 entries a column"}
    # what the text says of a bound that errs on one side
    assert figures.member("band").one < figures.GATE and not figures.member("band").few


def test_one_product_does_not_see_powers_of_two():
    """To the bit; so the ratio of both kinds is one, but for which columns are the large ones."""
    # memory of torch's own begins alike
    dense, scaled = (figures.kinds(LARGE)[name].clone() for name in ("dense", "two scales"))
    H, tau = few.geqrf(dense)
    found, found_tau = few.geqrf(scaled)
    assert torch.equal(found_tau, tau)
    assert torch.equal(found.tril(-1), H.tril(-1))
    assert torch.equal(found.triu(), H.triu() * (scaled[:, :1] / dense[:, :1]))


def test_a_frame_shows_routes_when_they_are_known(drawn):
    assert not any("product" in word for word in texts(drawn["route scaled"]))
    assert texts(drawn["route asked"]).count("1 product") == 3
    assert texts(drawn["route one for all"]).count("1 product") == len(figures.BATCH)
    assert sum("\u2717" in word for word in texts(drawn["route one for all"])) == 2
    assert not any("\u2717" in word for word in texts(drawn["route routed"]))


# cost


def test_the_bill_counts_c_and_both_products():
    B, n = 3, 1024
    it = figures.bill(B, n)
    one, two, three = it.arithmetic
    assert two - one == pytest.approx(three - two) and it.small < one
    large = (two - one) * figures.H200.measured["fp16"].value
    # updates by two panels are most of the flops of a factorization
    assert 0.7 < large / model.plan("floor", B, n, n).flops.flops < 1


def test_reached_is_every_case():
    found = figures.reached()
    assert sum(found.values()) == len(matrices.BENCHMARK_CASES)
    assert len(figures.bills().rows) == 4


def test_a_launch_of_its_own_has_room_for_more():
    made = figures.compiled("sm_100a")
    alone = made["fp16 alone"]
    assert alone.programs == 2 * made["both in one"].programs
    assert alone.shared < 0.7 * made["stage 8"].shared
    assert alone.stack < made["both in one"].stack
