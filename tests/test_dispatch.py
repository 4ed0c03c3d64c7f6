"""Stage 10: which kernel a size gets, and the launch of a small matrix for every such size."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tables import FAMILIES, assert_as_good_as_lapack, batch_of, normal  # noqa: E402

import qrlib  # noqa: E402
from qrlib.certificate import LAPACK  # noqa: E402
from qrlib.launches import launches  # noqa: E402
from qrlib.stages import s07_whole  # noqa: E402
from qrlib.stages import s10_blackwell as ten  # noqa: E402
from qrlib.stages.s09_mixed import MEDIUM  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("quick"),
]


def launched(A):
    """(H, tau) by `launch`, into memory that is NaN before: an unwritten cell would show."""
    A = A.to(DEVICE)
    B, m, n = A.shape
    assert ten.alone(m, n)
    H = A.new_full((B, m, n), math.nan)
    tau = A.new_full((B, min(m, n)), math.nan)
    ten.launch(A, H, tau)
    return H.cpu(), tau.cpu()


# who gets what


def test_alone_is_up_to_64_columns_and_512_rows():
    for m in (1, 2, 31, 32, 33, 64, 65, 128, 129, 256, 257, 512):
        assert all(ten.alone(m, n) for n in (1, 2, 31, 32, 33, 63, 64))
        assert not any(ten.alone(m, n) for n in (65, 128, 4096))
    assert not any(ten.alone(513, n) for n in (1, 32, 64))


@pytest.mark.parametrize("shape", ten.WHOLE)
def test_every_line_of_the_table_is_all_of_its_matrix(shape):
    """Rows and columns of what a launch is compiled for: all of them, once."""
    m, n = shape
    (only,) = launches("s10_blackwell", 3, m, n)
    c, warps = only.config.constexprs, only.config.options["num_warps"]
    assert (c["R"] * c["S"], c["G"] * c["Q"]) == shape and only.grid == (3,)
    assert c["S"] * c["Q"] == 32 * warps and c["BR"] >= c["R"]
    # a row is not shared by two warps: a shuffle does not leave a warp
    assert 32 % c["Q"] == 0


def names(B, m, n, **options):
    return [each.config.name for each in launches("s10_blackwell", B, m, n, **options)]


def in_lanes(B, m, n, **options):
    """Launches of `whole_kernel` of this stage: that of stage 7 has no lanes."""
    found = launches("s10_blackwell", B, m, n, **options)
    return sum("Q" in each.config.constexprs for each in found)


@pytest.mark.parametrize("B", (1, 40, 132, 133, 5000))
def test_small_matrices_are_one_launch_whatever_the_batch(B):
    for m, n in ((1, 1), (32, 32), (64, 64), (512, 64), (3, 40), (300, 2)):
        assert names(B, m, n) == ["whole_kernel"] and in_lanes(B, m, n) == 1


def test_stage_7_is_asked_where_it_pays():
    for B, n in ((40, 176), (132, 512), (640, 100)):
        assert ten.pays(B, n, n, False) and names(B, n, n) == ["whole_kernel"]
        assert in_lanes(B, n, n) == 0
        # and a caller may say no
        assert names(B, n, n, whole=False)[0] == "scale_kernel"


def test_in_a_graph_one_launch_pays_for_fewer_sizes_and_never_for_more():
    for B in (1, 40, 132, 133, 640):
        line = {}
        for replayed in (False, True):
            pays = [ten.pays(B, n, n, replayed) for n in range(65, 600)]
            # up to one size, and no longer
            assert pays == sorted(pays, reverse=True)
            line[replayed] = sum(pays)
            assert all(s07_whole.pays(B, n, n, replayed) for n in range(65, 65 + sum(pays)))
        assert line[True] < line[False] or line[False] == 0


@pytest.mark.parametrize("B, n", ((640, 512), (8, 2048), (40, 700)))
def test_panels_are_those_of_stage_8(B, n):
    found = names(B, n, n)
    assert found[0] == "scale_kernel" and found[-1] == "unscale_kernel"
    assert {"square_kernel", "eliminate_kernel", "vectors_kernel"} <= set(found)


def test_the_last_panel_is_a_matrix_of_its_own():
    found = names(640, 512, 512)
    assert found[-2] == "whole_kernel" and found.count("whole_kernel") == 1
    # with columns on its right it is a panel like all others, and so it is if it is too tall
    assert "whole_kernel" not in names(640, 512, 700) + names(640, 1000, 192)


def test_panels_too_short_for_stage_8_are_in_lanes():
    """Less than 96 rows: of 320, those at column 256 have 64."""
    assert names(640, 320, 500).count("panel_kernel") == 1
    assert "panel_kernel" not in names(640, 320, 192)
    # and a second one is multiplied with the first
    assert names(640, 280, 500).count("cross_kernel") == 1


def test_fewer_products_are_for_large_matrices_and_for_who_asks():
    def routed(n, **options):
        return any("routed" in name for name in names(640, n, n, **options))

    assert routed(MEDIUM, policy="fast") and not routed(MEDIUM)
    assert not routed(MEDIUM - 1, policy="fast") and not routed(64, policy="fast")


# what a launch gives

# around the widths of tiles, wide and tall; a GPU sees them all, see the end
SOME = ((1, 1), (1, 64), (64, 1), (2, 33), (5, 17), (17, 5), (31, 32), (32, 31), (33, 32), (64, 63))


@pytest.mark.parametrize("m, n", SOME)
def test_right_for_every_size(m, n):
    A = normal(2, m, n, seed=m * n)
    assert_as_good_as_lapack(A, *launched(A))


@pytest.mark.parametrize("m, n", ((32, 32), (40, 33)))
def test_right_for_every_family(m, n):
    A = torch.cat([batch_of(family, 1, max(m, n))[:, :m, :n] for family in FAMILIES])
    assert_as_good_as_lapack(A, *launched(A))


@pytest.mark.parametrize("m, n", ((65, 20), (200, 33), (512, 5)))
def test_right_for_taller_ones(m, n):
    A = normal(1, m, n, seed=m)
    assert_as_good_as_lapack(A, *launched(A))


@pytest.mark.parametrize("m, n", ((0, 3), (3, 0), (0, 0)))
def test_nothing_is_factored_into_nothing(m, n):
    H, tau = ten.geqrf(torch.empty(2, m, n, device=DEVICE))
    assert H.shape == (2, m, n) and tau.shape == (2, min(m, n))


SHAPES = ((20, 20), (33, 40))
each_shape = pytest.mark.parametrize("m, n", SHAPES)


@each_shape
@pytest.mark.parametrize("layout", ("transposed", "every second", "expanded", "4 bytes off"))
def test_any_strides(m, n, layout):
    A = {
        "transposed": normal(2, n, m).mT,
        "every second": normal(4, 2 * m, 2 * n)[::2, ::2, 1::2],
        "expanded": normal(1, m, n).expand(2, m, n),
        "4 bytes off": normal(2 * m * n + 1)[1:].view(2, m, n),
    }[layout]
    before = A.clone()
    found, expected = launched(A), launched(before)
    assert torch.equal(A, before)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))


@each_shape
def test_into_a_part_of_a_matrix_and_in_place(m, n):
    """As the last panel of a larger one: its neighbours stay."""
    A = normal(2, m, n)
    expected = launched(A)
    around = torch.full((2, m + 3, n + 5), math.nan, device=DEVICE)
    beside = torch.full((2, min(m, n) + 7), math.nan, device=DEVICE)
    H, tau = around[:, 3:, 5:], beside[:, 7:]
    H.copy_(A)
    assert ten.corner(H, tau)
    assert torch.equal(H.cpu(), expected[0]) and torch.equal(tau.cpu(), expected[1])
    assert torch.isnan(around[:, :3]).all() and torch.isnan(around[:, :, :5]).all()
    assert torch.isnan(beside[:, :7]).all()
    assert not ten.corner(torch.empty(1, 70, 70, device=DEVICE), tau[:1])


@each_shape
def test_zero_columns_are_left_alone(m, n):
    A = normal(3, m, n)
    zeros = [0, min(m, n) // 2, n - 1]
    A[0, :, zeros], A[2] = 0, 0
    H, tau = launched(A)
    left = [c for c in zeros if c < min(m, n)]
    assert (H[0][:, zeros] == 0).all() and (tau[0, left] == 0).all()
    assert not H[2].any() and not tau[2].any()
    assert qrlib.certify(A, H, tau, gate=LAPACK).passed


@each_shape
@pytest.mark.parametrize("value", (math.nan, math.inf))
def test_what_is_no_number_stays_in_its_matrix(m, n, value):
    A = normal(3, m, n)
    clean = launched(A)
    A[1, 4, 3] = value
    H, tau = launched(A)
    for b in (0, 2):
        assert torch.equal(H[b], clean[0][b]) and torch.equal(tau[b], clean[1][b])
    assert not (torch.isfinite(H[1]).all() and torch.isfinite(tau[1]).all())


@each_shape
def test_the_sign_is_that_of_the_bit(m, n):
    A = normal(1, m, n).repeat(2, 1, 1)
    A[0, 0, 0], A[1, 0, 0] = 0.0, -0.0
    H, _ = launched(A)
    assert torch.signbit(H[:, 0, 0]).tolist() == [True, False]
    # a matrix of one entry, and one without anything under its diagonal: nothing is touched
    one = torch.tensor([[[-0.0]], [[0.0]], [[-3.0]]])
    assert torch.equal(torch.signbit(launched(one)[0]), torch.signbit(one))
    R = -batch_of("upper", 2, max(m, n))[:, :m, :n]
    H, tau = launched(R)
    assert torch.equal(H, R) and not tau.any()


@each_shape
@pytest.mark.parametrize("scale", (1e-38, 1e-20, 1e37))
def test_scales(m, n, scale):
    A = normal(1, m, n) * scale
    assert_as_good_as_lapack(A, *launched(A))


@each_shape
def test_powers_of_two_change_no_bit(m, n):
    A = normal(1, m, n)
    H, tau = launched(A)
    for k in (-90, 90):
        H2, tau2 = launched(A * 2.0**k)
        assert torch.equal(tau, tau2) and torch.equal(H.tril(-1), H2.tril(-1))
        assert torch.equal(H.triu() * 2.0**k, H2.triu())


@each_shape
def test_a_matrix_does_not_know_its_batch(m, n):
    A = normal(3, m, n)
    H, tau = launched(A)
    for b in range(3):
        own = launched(A[b : b + 1])
        assert torch.equal(own[0][0], H[b]) and torch.equal(own[1][0], tau[b])


@pytest.mark.gpu
@pytest.mark.parametrize("n", range(1, 65))
def test_every_size_of_every_family(n):
    for m in range(1, 65):
        A = torch.cat([batch_of(family, 1, max(m, n))[:, :m, :n] for family in FAMILIES])
        c = qrlib.certify(A, *launched(A), gate=LAPACK)
        assert c.passed, (m, n, c)
