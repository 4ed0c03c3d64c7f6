"""Stage 9: flags of matrices without spikes, and who is updated by fewer products."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tables import batch_of, normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib import model, scaling  # noqa: E402
from qrlib.launches import launches  # noqa: E402
from qrlib.stages import s06_update, s08_cholesky, s09_mixed  # noqa: E402
from qrlib.stages.s09_mixed import LARGE, MEDIUM, SPIKE  # noqa: E402
from qrlib.teach import few  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("quick"),
]


def flagged(A):
    """(H, e, flags), on the CPU."""
    A = A.to(DEVICE)
    H, e = torch.empty_like(A), A.new_empty(len(A), A.shape[2], dtype=torch.int32)
    flat = scaling.flags(A)
    scaling.scale(A, H, e, flat, SPIKE)
    return H.cpu(), e.cpu(), flat.cpu()


def spiky(n, column):
    A = normal(1, n, n)
    A[0, 5, column] = 1e4
    return A


@pytest.mark.parametrize("once", (True, False))
@pytest.mark.parametrize("m, n", ((40, 200), (130, 70)))
def test_a_flag_is_what_spikes_say(m, n, once, monkeypatch):
    if not once:
        monkeypatch.setattr(scaling, "TILE", 0)
        monkeypatch.setattr(scaling, "LARGE_TILE", 0)
    A = normal(6, m, n)
    A[1, 5, n - 1] = 1e4
    A[2, :, 3] = 0
    # spikes of just less than the limit, and of more
    A[3, :, 0], A[4, :, 0] = 0, 0
    A[3, : m // 4 + 1, 0] = 1
    A[4, : m // 4 - 1, 0] = 1
    A[5] *= 10.0 ** torch.linspace(-30, 30, n)
    flat = flagged(A)[2]
    parts = few.spikes(A).split(scaling.tile(m)[1], dim=1)
    right = torch.stack([(part <= SPIKE).all(-1) for part in parts], 1)
    assert torch.equal(flat.bool(), right) and flat.shape == right.shape
    assert right.all(1).tolist() == [True, False, True, True, False, True]


def test_nan_is_not_flat_and_zero_is():
    A = torch.zeros(3, 40, 40)
    A[1, 3, 7] = math.nan
    A[2] = 1
    assert flagged(A)[2].all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("k", (-100, -3, 7, 100))
def test_powers_of_two_change_no_bit_before_the_route(k):
    A = torch.cat([normal(1, 70, 90), spiky(70, 40).repeat(1, 1, 2)[:, :, :90]])
    H, e, flat = flagged(A)
    H2, e2, flat2 = flagged(A * 2.0**k)
    assert torch.equal(H, H2) and torch.equal(flat, flat2) and torch.equal(e + k, e2)
    by_column = 2.0 ** (torch.arange(90) % 9 - 4.0)
    other = flagged(A * by_column)
    assert torch.equal(H, other[0]) and torch.equal(flat, other[2])


def routed(A, **options):
    return s09_mixed.geqrf(A.to(DEVICE), **options)


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(s09_mixed, "LARGE", 64)


def mixed(m=130, n=100):
    """Flat, with one spike, flat with zero columns."""
    A = torch.cat([normal(1, m, n), spiky(m, 97)[:, :, :n], normal(1, m, n, seed=7)])
    A[2, :, 80:] = 0
    return A


@pytest.mark.parametrize("together", (32, 0), ids=("one launch", "two launches"))
def test_a_spike_takes_all_products_and_its_neighbours_do_not(all_are_large, together, monkeypatch):
    monkeypatch.setattr(s09_mixed, "TOGETHER", together)
    A = mixed()
    H, tau = routed(A)
    three = routed(A, policy="fp32")
    same = [torch.equal(x, y) for x, y in zip(H, three.H)]
    assert same == [False, True, False]
    # another matrix in the middle, and the others keep every bit
    A[1] = normal(1, 130, 100, seed=3)[0]
    again = routed(A)
    for b in (0, 2):
        assert torch.equal(H[b], again.H[b]) and torch.equal(tau[b], again.tau[b])
    assert not torch.equal(again.H[1], routed(A, policy="fp32").H[1])
    assert (tau[2, 80:] == 0).all()


@pytest.mark.parametrize(
    "B, n, together", ((4, 600, False), (4, 1000, True), (40, 600, False), (40, 1000, False))
)
def test_few_large_matrices_have_both_routes_in_one_launch(B, n, together):
    """Two products beside three would spill on a Blackwell; the plan of the model knows."""
    wide = [
        launch.config.constexprs
        for launch in launches("s09_mixed", B, n, n)
        if launch.config.name.startswith("routed_") and launch.config.constexprs["BC"] == 64
    ]
    assert wide and all((None not in (c["FLAT"], c["PRECISION"])) == together for c in wide)
    routed, not_routed = (model.plan(name, B, n, n) for name in ("s09_mixed", "s08_cholesky"))
    assert (routed.launches == not_routed.launches) == together


def test_one_product_errs_as_it_does_in_exact_rounding(all_are_large):
    A = normal(1, 130, 100)
    found = few.errors(A, *(X.cpu() for X in routed(A)))
    right = few.errors(A, *few.geqrf(A))
    assert 0.7 < float(found.length / right.length) < 1.4
    assert found.factor > 20 * few.errors(A, *few.geqrf(A, ())).factor
    assert qrlib.certify(A, *(X.cpu() for X in routed(A))).orthogonality.max() < 2


def test_two_products_err_as_they_do_in_exact_rounding(monkeypatch):
    monkeypatch.setattr(s09_mixed, "MEDIUM", 64)
    A = normal(1, 130, 100)
    found = few.errors(A, *(X.cpu() for X in routed(A)))
    right = few.errors(A, *few.geqrf(A, few.TWO))
    assert 0.7 < float(found.length / right.length) < 1.4


def test_what_is_small_is_not_cut():
    assert [s09_mixed.products(n) for n in (1, MEDIUM - 1)] == [None, None]
    assert [s09_mixed.products(n) for n in (MEDIUM, LARGE - 1)] == ["fp16x2", "fp16x2"]
    assert s09_mixed.products(LARGE) == s09_mixed.products(4096) == "fp16"
    A = batch_of("mixed", 3, 90)
    for one, two in zip(routed(A), routed(A, policy="fp32")):
        assert torch.equal(one, two)


def test_no_flag_is_asked_for_before_all_columns_are_seen(all_are_large):
    """A plan scales what is right of two panels beside them, and flags come with it."""
    A, halves = normal(1, 150, 200).to(DEVICE), []
    for flag in (0, 1):
        H, e, flat = (
            A.clone() / 20,
            A.new_zeros(1, 200, dtype=torch.int32),
            s09_mixed.flags(A, "fast"),
        )
        tau = A.new_empty(1, 150)
        how = (
            s08_cholesky.panel,
            s09_mixed.router(flat.fill_(flag), 150),
            s06_update.no_corner,
            None,
        )
        rest = s06_update.halves(H, e, tau, "fp16x3", *how)
        next(rest)
        halves.append(H.clone())
        next(rest, None)
        halves.append(H)
    first, all_products, again, few_products = halves
    assert torch.equal(first, again) and not torch.equal(first, all_products)
    assert not torch.equal(all_products, few_products)


def test_nan_stays_home_on_its_route(all_are_large):
    A = mixed()
    clean = routed(A)
    A[0, 4, 90] = math.nan
    H, tau = routed(A)
    assert torch.isnan(H[0]).any()
    for b in (1, 2):
        assert torch.equal(H[b], clean.H[b]) and torch.equal(tau[b], clean.tau[b])


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.mark.parametrize("family", ("dense", "rankdef", "clustered", "band", "mixed"))
    @pytest.mark.parametrize("B, n", ((4, 512), (40, 600), (4, 896), (4, 2048), (40, 1024)))
    def test_passes_the_gate(self, B, n, family):
        A = batch_of(family, B, n).cuda()
        certificate = qrlib.certify(A, *routed(A))
        assert certificate.passed, certificate

    def test_one_entry_among_large_matrices(self):
        A = normal(40, 1000, 1000)
        A[17, 3, 800] = 1e5
        H, tau = routed(A)
        assert qrlib.certify(A.cuda(), H, tau).passed
        assert torch.equal(H[17], routed(A, policy="fp32").H[17])
