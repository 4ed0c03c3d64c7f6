"""Bad matrices at random places among easy ones: each keeps its policy, and no other notices.

Bad are those that a Gram matrix in float32, or the range of float16, is no good for. What is asked
of stage 8 is asked of "auto", eager and replayed, in both policies. A GPU sees all sizes.
"""

from functools import partial

import pytest
import torch
from tables import (
    ALL_STAGES,
    BAD,
    FAMILIES,
    among,
    assert_as_good_as_lapack,
    assert_little_worse,
    bad,
    batch_of,
)

import qrlib
from qrlib import matrices
from qrlib.bench.judge import LIMITS
from qrlib.jit import quick_reductions
from qrlib.stages import s08_cholesky

# the interpreter computes in NumPy, which warns of zero columns
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has tests of its own")


def typed(m, n=None):
    """{name: matrix of one of LAPACK's types}."""
    return {
        f"LAPACK's type {t}": torch.from_numpy(matrices.lapack_type(t, m, n or m, seed=t))[0]
        for t in matrices.LAPACK_TYPES
    }


def same(one, other):
    return torch.equal(one.H, other.H) and torch.equal(one.tau, other.tau)


def assert_scaled(found, expected, k):
    """2^k R, and not one bit of another v or tau."""
    assert torch.equal(found.tau, expected.tau)
    assert torch.equal(found.H.tril(-1), expected.H.tril(-1))
    R = expected.H.triu() * 2.0**k
    # what is subnormal has lost its digits
    kept = (R == 0) | (R.abs() >= torch.finfo(R.dtype).tiny)
    assert torch.equal(found.H.triu()[kept], R[kept])


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("stage", ALL_STAGES)
def test_every_stage_takes_it(stage, kind):
    A = bad(kind, 40)
    assert_as_good_as_lapack(A, *qrlib.geqrf(A, stage=stage))


# the smallest that a panel of stage 8 stands in, with columns to its right
ROWS, COLUMNS = 130, 66
# two seconds each in the interpreter: what all stages are tested with is left out, and so is the
# scale of a whole matrix, for its panels are the same
KINDS = (
    "columns twice",
    "Kahan",
    "Hilbert",
    "Vandermonde",
    "condition 1e8",
    "large entries",
    "large and small entries",
)
SEEN = {kind: bad(kind, ROWS)[:, :COLUMNS] for kind in KINDS} | {
    name: A for name, A in typed(ROWS, COLUMNS).items() if name.endswith(("6", "9"))
}


@pytest.fixture(scope="module")
def mixed():
    """(easy matrices, them with bad ones among them, where these are, what stage 8 makes of it)."""
    easy = batch_of("dense", len(SEEN) + 2, ROWS)[:, :, :COLUMNS]
    A, places = among(easy, SEEN)
    with quick_reductions():
        return easy, A, places, s08_cholesky.geqrf(A)


@interpreted
@pytest.mark.slow
@pytest.mark.xdist_group("mixed")
@pytest.mark.usefixtures("quick")
class TestInTheInterpreter:
    @pytest.mark.parametrize("name", SEEN)
    def test_a_bad_one_is_as_good_as_by_lapack(self, mixed, name):
        _, A, places, (H, tau) = mixed
        b = places[name]
        assert_as_good_as_lapack(A[b], H[b], tau[b])
        c = qrlib.certify(A[b], H[b], tau[b])
        assert c.columnwise <= LIMITS["fp32"]["columnwise"]

    def test_easy_ones_do_not_notice(self, mixed):
        easy, _, places, found = mixed
        others = [b for b in range(len(easy)) if b not in places.values()]
        assert len(others) == 2
        alone = s08_cholesky.geqrf(easy[others])
        assert same(alone, qrlib.QR(found.H[others], found.tau[others]))

    @pytest.mark.parametrize("k", (-100, 100))
    def test_powers_of_two(self, mixed, k):
        """Of a matrix whose panel falls, and of one with entries of all sizes."""
        _, A, places, found = mixed
        which = [places[name] for name in ("columns twice", "large and small entries")]
        scaled = s08_cholesky.geqrf(A[which] * 2.0**k)
        assert_scaled(scaled, qrlib.QR(found.H[which], found.tau[which]), k)


SIZES = (32, 100, 176, 352, 512, 1000, 1024, 2048, 4096)


def ways(shape):
    """{(policy, way): A -> QR}."""
    found = {}
    for policy in LIMITS:
        found[policy, "s08_cholesky"] = partial(qrlib.geqrf, stage="s08_cholesky", precision=policy)
        found[policy, "auto"] = partial(qrlib.geqrf, precision=policy)
        found[policy, "auto, replayed"] = qrlib.plan(shape, precision=policy)
    return found


class Certified:
    """The certificate of a result for A; of the same bits it is the same."""

    def __init__(self, A):
        self.A, self.known = A, []

    def __call__(self, found):
        for other, c in self.known:
            if same(found, other):
                return c
        self.known.append((found, qrlib.certify(self.A, *found)))
        return self.known[-1][1]


def assert_kept(A, calls):
    """{way: result}: each within the limits of its policy, matrix by matrix, and the same twice."""
    certified, results, reference = Certified(A), {}, None
    if A.shape[-1] <= 512:
        reference = qrlib.certify(A, *(X.cuda() for X in torch.geqrf(A.cpu())))
    for (policy, how), call in calls.items():
        found = call(A)
        assert same(found, call(A)), (policy, how)
        c = certified(found)
        for residual, limit in LIMITS[policy].items():
            worst = getattr(c, residual)
            assert (worst <= limit).all(), (policy, how, residual, worst)
        if reference and policy == "fp32":
            assert_little_worse(c, reference)
        results[policy, how] = found
    return results


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.fixture(scope="class", params=SIZES)
    def calls(self, request):
        # large ones take long to make
        B, n = 6 if request.param < 2048 else 4, request.param
        return (B, n), ways((B, n, n))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_two_bad_ones_in_every_family(self, calls, family):
        (B, n), calls = calls
        k = FAMILIES.index(family)
        easy = batch_of(family, B, n).cuda()
        # in all families together each kind has its turn
        others = {kind: bad(kind, n).cuda() for kind in (BAD * 2)[2 * k : 2 * k + 2]}
        A, places = among(easy, others, seed=k)
        left = [b for b in range(B) if b not in places.values()]
        for way, found in assert_kept(A, calls).items():
            clean = calls[way](easy)
            for one, other in zip(found, clean):
                assert torch.equal(one[left], other[left]), way

    @pytest.mark.parametrize("n", (100, 352, 512))
    def test_lapack_types(self, n):
        A, _ = among(batch_of("dense", 12, n), typed(n))
        assert_kept(A.cuda(), ways(A.shape))

    @pytest.mark.parametrize("n", (100, 352, 1000))
    def test_powers_of_two(self, n):
        kinds = [kind for kind in BAD if kind not in ("all large", "all small")]
        A, _ = among(batch_of("dense", 16, n), {kind: bad(kind, n) for kind in kinds})
        # what would be subnormal when it is scaled would lose digits
        A[A.abs() < 2.0**-26] = 0
        A = A.cuda()
        for call in ways(A.shape).values():
            expected = call(A)
            for k in (-100, 100):
                assert_scaled(call(A * 2.0**k), expected, k)
