"""What a format does to a number, held against torch's casts bit by bit, and against bounds."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qrlib import precision
from qrlib.precision import (
    FORMATS,
    blocks,
    numbers,
    product,
    product_bound,
    round_to,
    split,
    truncate,
)

# a warning would be a fault of a page, and NaN and Inf are nothing to warn of
pytestmark = pytest.mark.filterwarnings("error")

CASTS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
# formats in which a number stands alone, and shorter than what it came as
ALONE = [name for name, f in FORMATS.items() if f.block == 1 and f.p < 24]
SMALL = [name for name in ALONE if FORMATS[name].bits <= 16]
# torch made NaN of what is too large for fp8_e4m3 until 2.12
SATURATES = torch.tensor([1e6]).to(torch.float8_e4m3fn).float().item() == 448


def bits(x):
    """The bits of a float32 array; all NaN are one."""
    return np.where(np.isnan(x), np.float32(np.nan), np.float32(x)).view(np.uint32)


def cast(x, format):
    with np.errstate(all="ignore"):
        return torch.from_numpy(x).to(CASTS[format]).float().numpy()


def same_as_torch(x, format):
    if format == "fp8_e4m3" and not SATURATES:
        x = x[~(np.abs(x) > 464)]
    found = round_to(x, format)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(bits(found), bits(cast(x, format)))


def patterns(count=2**20, seed=0):
    """Random bits as float32: all exponents alike, subnormals, NaN and Inf among them."""
    whole = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    subnormal = whole & np.uint32(0x807FFFFF)
    special = np.array([0, 2**31, 0x7F800000, 0xFF800000], np.uint32)
    return np.concatenate([whole, subnormal, special]).view(np.float32)


def around_ties(format):
    """The numbers of a format, what is half-way between neighbours, and a float32 on each side."""
    known = numbers(format)
    # and between the largest and what would come after it
    known = np.append(known, min(2 * known[-1] - known[-2], float(np.finfo(np.float32).max)))
    ties = ((known[1:] + known[:-1]) / 2).astype(np.float32)
    found = [known.astype(np.float32), ties]
    found += [np.nextafter(ties, np.float32(to)) for to in (0, np.inf)]
    found = np.concatenate(found)
    return np.concatenate([found, -found])


# against torch


@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_every_pattern_of_16_bits_is_a_number_of_its_format(format):
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(CASTS[format]).float()
    np.testing.assert_array_equal(bits(round_to(every.numpy(), format)), bits(every.numpy()))


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_every_pattern_of_8_bits_is_a_number_of_its_format(format):
    every = torch.arange(2**8, dtype=torch.int16).to(torch.uint8).view(CASTS[format]).float()
    np.testing.assert_array_equal(bits(round_to(every.numpy(), format)), bits(every.numpy()))


@pytest.mark.parametrize("format", CASTS)
def test_between_neighbours_it_rounds_as_torch_does(format):
    same_as_torch(around_ties(format), format)


@pytest.mark.parametrize("format", CASTS)
def test_random_bits_are_rounded_as_torch_does(format):
    same_as_torch(patterns(), format)


@pytest.mark.parametrize("format", CASTS)
def test_within_range_of_a_short_format_too(format):
    # random bits are nearly all beyond 65504 or below 2^-25
    rng = np.random.default_rng(1)
    x = rng.standard_normal(2**18) * 2.0 ** rng.integers(-26, 18, 2**18)
    same_as_torch(x.astype(np.float32), format)


def test_bf16_with_every_first_half_and_the_last_half_at_a_tie():
    first = np.arange(2**16, dtype=np.uint32) << 16
    for last in (0x7FFF, 0x8000, 0x8001):
        same_as_torch((first | np.uint32(last)).view(np.float32), "bf16")


def tf32_by_integers(x):
    """Half a unit and the last bit that is kept are added; the rest is cut off."""
    b = x.view(np.uint32).astype(np.uint64)
    rounded = (b + 0xFFF + ((b >> 13) & 1)) & ~np.uint64(0x1FFF)
    rounded = rounded.astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def test_tf32_is_what_integers_say():
    first = np.arange(2**19, dtype=np.uint32) << 13
    ties = [(first | np.uint32(last)).view(np.float32) for last in (0, 0xFFF, 0x1000, 0x1001)]
    for x in (*ties, patterns()):
        np.testing.assert_array_equal(bits(round_to(x, "tf32")), bits(tf32_by_integers(x)))


def test_float64_is_rounded_once():
    # a float32 would stand half-way, and the even neighbour is the wrong one
    x = np.array([1 + 2.0**-11 + 2.0**-40])
    assert round_to(x, "fp16")[0] == 1 + 2.0**-10 and round_to(x, "fp16").dtype == np.float64
    assert round_to(x.astype(np.float32), "fp16")[0] == 1
    x = np.array([1e300, -1e-300, 5e-324, 65519.99, 65520])
    np.testing.assert_array_equal(round_to(x, "fp16"), [np.inf, -0.0, 0, 65504, np.inf])


# the table


@pytest.mark.parametrize("format", CASTS)
def test_the_table_says_what_torch_says(format):
    f, info = FORMATS[format], torch.finfo(CASTS[format])
    assert f.bits == info.bits and f.largest == info.max
    assert f.smallest_normal == info.smallest_normal and 2 * f.unit_roundoff == info.eps
    size = 2**f.bits
    every = torch.arange(size, dtype=torch.int32)
    every = every.to(torch.uint8 if size == 256 else torch.uint16).view(CASTS[format]).double()
    every = every[every.isfinite() & ~every.signbit()].numpy()
    np.testing.assert_array_equal(numbers(format), np.sort(every))
    assert every[every > 0].min() == f.smallest_subnormal
    assert np.isinf(f.beyond) == np.isinf(cast(np.float32([np.inf]), format))[0]


def test_the_table_says_what_numpy_says():
    for name, dtype in (("fp32", np.float32), ("fp16", np.float16)):
        f, info = FORMATS[name], np.finfo(dtype)
        found = f.largest, f.smallest_normal, f.smallest_subnormal, 2 * f.unit_roundoff, f.bits
        stated = info.max, info.smallest_normal, info.smallest_subnormal, info.eps, info.bits
        assert found == stated


def test_formats_without_a_dtype():
    tf32, fp32 = FORMATS["tf32"], FORMATS["fp32"]
    assert tf32.bits == 19 and tf32.emin == fp32.emin and tf32.emax == fp32.emax
    assert tf32.p == FORMATS["fp16"].p
    assert numbers("fp4_e2m1").tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    # 16 numbers of 4 bits and a scale of 8
    assert FORMATS["nvfp4"].bits * 16 == 16 * 4 + 8
    assert all(f.source for f in FORMATS.values())


def test_what_is_beyond_the_largest():
    big = np.array([1e30, -1e30, np.inf, -np.inf], np.float32)
    for name, f in FORMATS.items():
        if f.block == 1 and f.largest < 1e30:
            expected = np.copysign(f.beyond, big)
            np.testing.assert_array_equal(round_to(big, name), expected)
            cut = np.where(np.isinf(big), expected, np.copysign(f.largest, big))
            np.testing.assert_array_equal(truncate(big, name), cut)
    assert np.isnan(round_to(np.array([np.nan]), "fp4_e2m1"))[0]


# properties

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
NEAR = st.floats(-600, 600, width=32)
one_format = st.sampled_from(ALONE)


def rounded(x, format, how=round_to):
    return how(np.array([x], np.float32), format)[0]


@settings(max_examples=400)
@given(st.one_of(FINITE, NEAR), one_format)
def test_rounding_twice_is_rounding_once(x, format):
    for how in (round_to, truncate):
        y = rounded(x, format, how)
        assert bits(rounded(y, format, how)) == bits(y)


@settings(max_examples=400)
@given(st.one_of(FINITE, NEAR), st.one_of(FINITE, NEAR), one_format)
def test_rounding_keeps_the_order(x, y, format):
    low, high = sorted((x, y))
    for how in (round_to, truncate):
        assert rounded(low, format, how) <= rounded(high, format, how)


@settings(max_examples=400)
@given(st.one_of(FINITE, NEAR), one_format)
def test_the_sign_changes_nothing_else(x, format):
    for how in (round_to, truncate):
        assert bits(rounded(-x, format, how)) == bits(-rounded(x, format, how))


@settings(max_examples=400)
@given(NEAR, st.sampled_from(SMALL))
def test_no_number_of_the_format_is_nearer_and_ties_are_even(x, format):
    known = numbers(format)
    y, a = float(rounded(x, format)), abs(np.float64(np.float32(x)))
    if a > known[-1]:
        return
    distance = np.abs(known - a)
    assert abs(abs(y) - a) == distance.min()
    nearest = np.flatnonzero(distance == distance.min())
    if len(nearest) == 2:
        # neighbours have patterns that are one apart, so the place in the list is even too
        assert np.flatnonzero(known == abs(y))[0] % 2 == 0


@settings(max_examples=400)
@given(FINITE, one_format)
def test_the_error_is_what_the_unit_roundoff_says(x, format):
    f, x = FORMATS[format], float(np.float32(x))
    if abs(x) <= f.largest:
        nearest, cut = (float(rounded(x, format, how)) for how in (round_to, truncate))
        assert abs(nearest - x) <= max(f.unit_roundoff * abs(x), f.smallest_subnormal / 2)
        assert abs(cut) <= abs(x)
        assert abs(cut - x) < max(2 * f.unit_roundoff * abs(x), f.smallest_subnormal)


def test_a_tie_goes_both_ways():
    # 17 and 19 stand half-way between neighbours of fp8_e4m3, of which every second one is even
    x = np.array([17, 19, 21, 23, -17, -19], np.float32)
    assert round_to(x, "fp8_e4m3").tolist() == [16, 20, 20, 24, -16, -20]
    assert truncate(x, "fp8_e4m3").tolist() == [16, 18, 20, 22, -16, -18]


def test_tf32_is_cut_off_as_its_bits_are():
    x = patterns()
    expected = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    # a NaN with nothing but last bits would be cut to Inf
    expected = np.where(np.isnan(x), x, expected)
    np.testing.assert_array_equal(bits(truncate(x, "tf32")), bits(expected))


# arrays and tensors

SHAPES = ((), (3,), (0,), (2, 5), (3, 4, 17), (2, 0, 3))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_a_tensor_gets_what_an_array_gets(shape, format, dtype):
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    x = np.asarray(x)
    if FORMATS[format].block > 1 and not shape:
        return
    before = x.copy()
    hows = [round_to] if FORMATS[format].block > 1 else [round_to, truncate]
    for how in hows:
        found, tensor = how(x, format), how(torch.from_numpy(x), format)
        assert isinstance(tensor, torch.Tensor)
        assert found.shape == shape and found.dtype == dtype
        np.testing.assert_array_equal(found, tensor.numpy())
    np.testing.assert_array_equal(x, before)
    if len(shape) > 1:
        # as it lies in memory makes no difference
        turned = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        np.testing.assert_array_equal(round_to(turned, format), round_to(x, format))
        got = round_to(torch.from_numpy(x).mT.contiguous().mT, format)
        np.testing.assert_array_equal(got.numpy(), round_to(x, format))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("terms", (1, 2, 3))
def test_products_of_tensors_are_those_of_arrays(format, terms):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape) for shape in ((2, 5, 21), (2, 21, 4)))
    found = product(a, b, format, terms)
    tensor = product(torch.from_numpy(a), torch.from_numpy(b), format, terms)
    np.testing.assert_allclose(found, tensor.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(product(a[0], b[0], format, terms), found[0], rtol=0, atol=1e-13)


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS)
def test_a_gpu_gives_what_an_array_gives(format):
    x = patterns(2**16)
    x = x[: len(x) // 16 * 16].reshape(-1, 16)
    if FORMATS[format].block > 1:
        # a NaN makes NaN of all
        x = np.where(np.isfinite(x), x, np.float32(1))
    found = round_to(torch.from_numpy(x).cuda(), format).cpu().numpy()
    np.testing.assert_array_equal(bits(found), bits(round_to(x, format)))
    a, b = (torch.from_numpy(y).cuda() for y in factors("normal"))
    for terms in (1, 2, 3):
        here = product(a.cpu(), b.cpu(), format, terms)
        size = (a.abs() @ b.abs()).cpu()
        assert ((product(a, b, format, terms).cpu() - here).abs() <= 1e-5 * size).all()


def test_it_needs_numpy_only():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['triton'] = None\n"
        "import numpy as np; from qrlib.precision import product, round_to\n"
        "x = np.ones((3, 3), np.float32); print(product(x, x, 'bf16', 3).sum())\n"
        "print(round_to(x, 'nvfp4').sum())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["27.0", "9.0"], done.stderr


# blocks


def nearest_of(x, known):
    """For each x the nearest of some numbers, by looking at all of them; even ones at a tie."""
    distance = np.abs(np.abs(x)[..., None] - known)
    best = distance.min(-1, keepdims=True)
    # of two at the same distance the one at an even place
    choice = np.argmin(np.where(distance == best, np.arange(len(known)) % 2, 9), -1)
    return np.copysign(known[choice], x)


@pytest.mark.parametrize("n", (1, 5, 16, 17, 40))
@pytest.mark.parametrize("axis", (-1, -2))
def test_blocks_are_what_a_search_through_all_numbers_finds(n, axis):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((3, 6, n)) * 10.0 ** rng.uniform(-4, 1, (3, 6, n))
    x[1] *= 1e-20
    x[2, :, 0] = 0
    x = (x if axis == -1 else x.swapaxes(-1, -2)).astype(np.float32)
    found = blocks(x, axis=axis)
    turned = [part.swapaxes(-1, axis) for part in found]
    rows = x.swapaxes(-1, axis).astype(np.float64)
    for b in range(3):
        scale = max(np.float32(np.abs(rows[b]).max() / 2688), np.float32(2.0**-126))
        assert found.scale[b].item() == scale
        for i in range(6):
            for j in range(0, n, 16):
                part = rows[b, i, j : j + 16]
                want = nearest_of(np.abs(part).max() / (6 * np.float64(scale)), numbers("fp8_e4m3"))
                want = max(want, 2.0**-9)
                assert (turned[1][b, i, j : j + 16] == want).all()
                short = nearest_of(part / (want * np.float64(scale)), numbers("fp4_e2m1"))
                np.testing.assert_array_equal(turned[0][b, i, j : j + 16], short)
    value = turned[0].astype(np.float64) * turned[1] * found.scale
    np.testing.assert_array_equal(turned[3], value.astype(np.float32))
    np.testing.assert_array_equal(round_to(x, "nvfp4", axis=axis), found.values)


def test_the_largest_of_a_block_is_about_right():
    x = np.random.default_rng(0).standard_normal((50, 160)).astype(np.float32)
    found = blocks(x)
    top = np.abs(x.reshape(50, 10, 16)).max(-1)
    kept = np.abs(found.values.reshape(50, 10, 16)).max(-1)
    # half a unit in the last place of fp8_e4m3
    assert (np.abs(kept - top) <= top / 16 * 1.0001).all()
    # an entry is wrong by at most half the widest gap, 1 of 6, or what the largest loses
    wrong = np.abs(found.values - x).reshape(50, 10, 16).max(-1)
    assert (wrong <= top * (1 / 6 + 1 / 16)).all()


def test_a_large_number_takes_the_digits_of_its_neighbours_and_of_no_others():
    x = np.ones((1, 32), np.float32)
    x[0, 3] = 100
    found = round_to(x, "nvfp4")
    assert (found[0, :16] == 0).sum() == 15 and (found[0, 16:] != 0).all()


def test_what_blocks_cannot_say():
    x = np.ones((3, 20, 20), np.float32)
    x[1, 4, 4], x[2, 0, 19] = np.nan, np.inf
    found = round_to(x, "nvfp4")
    assert (found[0] == found[0, 0, 0]).all() and np.isnan(found[1:]).all()
    assert (round_to(np.zeros((4, 4), np.float32), "nvfp4") == 0).all()
    big = np.full((2, 2), np.finfo(np.float32).max)
    assert np.isfinite(round_to(big, "nvfp4")).all()
    assert np.signbit(round_to(np.array([-0.0, 1], np.float32), "nvfp4"))[0]


# split


@pytest.mark.parametrize("format", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("terms", (1, 2, 3))
def test_a_split_loses_what_it_says(format, terms):
    x = patterns(2**16)
    x = x[np.isfinite(x)].reshape(-1, 1)
    parts, scale = split(x, format, terms)
    assert len(parts) == terms and all(part.dtype == np.float32 for part in parts)
    for part in parts:
        np.testing.assert_array_equal(round_to(part, format), part)
    assert (np.log2(scale) == np.round(np.log2(scale))).all()
    lost = np.abs(x - scale * sum(part.astype(np.float64) for part in parts))
    f = FORMATS[format]
    # each number has its own scale here, so nothing underflows but what float32 cannot hold
    normal = np.abs(x) >= 2.0**-126
    assert (lost <= f.unit_roundoff**terms * np.abs(x))[normal].all()
    if terms == 3:
        assert not lost[normal].any()
    # that much is really lost: the bound is not far away
    if terms == 1:
        assert (lost[normal] / np.abs(x)[normal]).max() > 0.99 * f.unit_roundoff


def test_two_terms_of_11_bits_gain_one_by_their_sign():
    x = np.random.default_rng(0).standard_normal((2**16, 1)).astype(np.float32)
    for format, bound in (("tf32", 2.0**-23), ("fp16", 2.0**-23), ("bf16", 2.0**-17)):
        parts, scale = split(x, format, 2)
        lost = np.abs(x - scale * sum(part.astype(np.float64) for part in parts)) / np.abs(x)
        assert bound / 2 < lost.max() <= bound


def test_a_matrix_has_one_scale():
    x = np.random.default_rng(0).standard_normal((3, 9, 7)).astype(np.float32)
    x[1] *= 1e-20
    parts, scale = split(x, "fp16", 2, scale="matrix")
    assert scale.shape == (3, 1, 1) and scale[1] < 1e-15 * scale[0]
    top = np.abs(x / scale).max((1, 2))
    assert (top >= 2.0**13).all() and (top < 2.0**14).all()
    found = product(x, x.swapaxes(1, 2), "fp16", 2, scale="matrix")
    for each, one in zip(found, x):
        np.testing.assert_array_equal(each, product(one, one.T, "fp16", 2, scale="matrix"))
    assert split(x[0, 0], "fp16", 2, scale="matrix").scale.shape == (1,)


@pytest.mark.parametrize("axis", (-1, -2))
def test_a_scale_belongs_to_a_row_or_a_column(axis):
    x = np.random.default_rng(0).standard_normal((9, 7)).astype(np.float32)
    sizes = 10.0 ** np.linspace(-30, 30, 9 if axis == -1 else 7)
    x *= sizes[:, None] if axis == -1 else sizes
    parts, scale = split(x.astype(np.float32), "fp16", 2, axis=axis)
    assert scale.shape == ((9, 1) if axis == -1 else (1, 7))
    top = np.abs(x / scale).max(axis)
    assert (top >= 2.0**13).all() and (top < 2.0**14).all()
    lost = np.abs(x - scale * (parts[0].astype(np.float64) + parts[1]))
    assert (lost <= np.maximum(2.0**-22 * np.abs(x), scale * 2.0**-25)).all()


def test_without_a_scale_fp16_over_and_underflows():
    x = np.array([[1e6, 1e-9]], np.float32)
    parts, scale = split(x, "fp16", 1, scale=None)
    assert scale == 1 and parts[0].tolist() == [[np.inf, 0]]
    # bf16 has the range
    assert (split(x, "bf16", 1, scale=None).parts[0] != 0).all()


def test_nothing_has_no_scale():
    for x in (np.zeros((2, 3), np.float32), np.zeros((2, 0), np.float32), np.zeros(4)):
        parts, _ = split(x, "fp16", 2)
        assert all(part.shape == x.shape and not part.any() for part in parts)
    parts, _ = split(np.array([[np.nan, 1], [3, 1]], np.float32), "fp16", 2)
    assert np.isnan(parts[0][0, 0]) and parts[0][1, 0] == 3 * 2.0**12


# products


def factors(kind, k=48, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((6, k)), rng.standard_normal((k, 7))
    if kind == "one sign":
        a, b = np.abs(a), np.abs(b)
    elif kind == "graded":
        a *= 10.0 ** np.linspace(-15, 15, 6)[:, None]
        b *= 10.0 ** np.linspace(15, -20, 7)
    elif kind == "at ties":
        # the first term is as wrong as it can be
        a, b = (1 + 2.0**-11 + 2.0**-13 * np.round(x) for x in (a, b))
    return a.astype(np.float32), b.astype(np.float32)


KINDS = ("normal", "one sign", "graded", "at ties")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", (1, 2, 3))
@pytest.mark.parametrize("format", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("k", (1, 48, 300))
def test_a_product_keeps_its_bound(format, terms, kind, k):
    a, b = factors(kind, k)
    exact, size = a.astype(float) @ b, np.abs(a).astype(float) @ np.abs(b)
    error = np.abs(product(a, b, format, terms) - exact)
    assert (error <= product_bound(format, terms, k) * size).all()
    # with sums in float64 there are no sums in the bound
    error = np.abs(product(a.astype(float), b.astype(float), format, terms) - exact)
    u = FORMATS[format].unit_roundoff
    assert (error <= (terms + 1) * u**terms * (1 + u) * size + 1e-14 * size).all()


@pytest.mark.parametrize("format", ["tf32", "bf16", "fp16"])
def test_the_bound_is_near_what_happens(format):
    a, b = factors("at ties" if format != "bf16" else "one sign", 1)
    exact = a.astype(float) @ b
    lost = np.abs(product(a, b, format, 1) - exact) / np.abs(exact)
    assert lost.max() > 0.2 * product_bound(format, 1, 1)
    # and each term more is worth what it says
    x, y = factors("normal")
    size = np.abs(x).astype(float) @ np.abs(y)
    x, y = x.astype(float), y.astype(float)
    errors = [(np.abs(product(x, y, format, t) - x @ y) / size).max() for t in (1, 2)]
    assert errors[1] < 16 * FORMATS[format].unit_roundoff * errors[0]


def test_small_by_small_is_left_out():
    x = np.array([[1 + 2.0**-8 + 2.0**-9]])
    hi, lo = (part[0, 0] for part in split(x, "bf16", 2, scale=None).parts)
    assert hi + lo == x[0, 0] and lo != 0
    found = product(x, x, "bf16", 2, scale=None)[0, 0]
    assert found == hi * hi + 2 * hi * lo and found != x[0, 0] ** 2
    three = split(np.array([[1 / 3]]), "bf16", 3, scale=None).parts
    a, b, c = (part[0, 0] for part in three)
    found = product(np.array([[1 / 3]]), np.array([[1 / 3]]), "bf16", 3, scale=None)[0, 0]
    assert found == pytest.approx(a * a + 2 * a * b + 2 * a * c + b * b, rel=1e-15)


def test_one_term_is_the_product_of_the_rounded():
    a, b = factors("normal")
    for format in ("bf16", "tf32", "fp8_e5m2"):
        expected = round_to(a, format) @ round_to(b, format)
        np.testing.assert_array_equal(product(a, b, format, scale=None), expected)
    expected = round_to(a, "nvfp4").astype(float) @ round_to(b, "nvfp4", axis=-2)
    found = product(a.astype(float), b.astype(float), "nvfp4", scale=None)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_power_of_two_is_no_work():
    a, b = factors("normal")
    by = np.ldexp(np.float32(1), np.arange(7) * 10 - 30)
    for format in ("fp16", "bf16", "tf32", "fp8_e4m3"):
        for terms in (1, 2, 3):
            once = product(a, b, format, terms)
            np.testing.assert_array_equal(product(a, b * by, format, terms), once * by)


def test_whole_range_of_float32():
    a, b = factors("normal", 16)
    large, small = np.float32(2.0**120), np.float32(2.0**-120)
    for format in ("fp16", "bf16"):
        once = product(a, b, format, 2)
        np.testing.assert_array_equal(product(a * large, b * small, format, 2), once)
        # the product of the two scales is no float32 here, though that of the factors is
        tiny = np.float32(2.0**-63)
        np.testing.assert_array_equal(product(a * tiny, b * tiny, format, 2), once * tiny * tiny)


def test_what_torch_is_told_globally_does_not_matter():
    a, b = (torch.from_numpy(x) for x in factors("normal"))
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = product(a, b, "fp16", 2)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.dtype == torch.float32
    assert ((found - exact).abs() <= product_bound("fp16", 2, 48) * size).all()


# bad input


@pytest.mark.parametrize("call", (round_to, truncate, split, lambda x, f: product(x, x, f)))
def test_an_unknown_format_lists_the_known(call):
    x = np.ones((2, 2), np.float32)
    for bad in ("fp17", "BF16", 16, None, ["bf16"]):
        with pytest.raises(ValueError, match="format must be one of fp32, tf32, fp16, bf16,.*got"):
            call(x, bad)


@pytest.mark.parametrize("call", (round_to, truncate, split, lambda x, f: product(x, x, f)))
def test_integers_are_no_numbers_of_ours(call):
    with pytest.raises(TypeError, match=r"float32 or float64; got int64; convert it first"):
        call(np.ones((2, 2), np.int64), "bf16")
    with pytest.raises(TypeError, match=r"float32 or float64; got torch.float16; convert it"):
        call(torch.ones(2, 2, dtype=torch.float16), "bf16")
    with pytest.raises(TypeError, match=r"a torch tensor or a NumPy array; got list"):
        call([[1.0]], "bf16")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: split(x, "bf16", 4), "terms must be 1, 2 or 3; got 4"),
        (lambda x: split(x, "bf16", scale=True), "scale must be one of 'vector', 'matrix', None"),
        (lambda x: split(x, "bf16", 2, axis=0), r"axis must be -1, or -2 .*got 0"),
        (lambda x: round_to(x[0], "nvfp4", axis=-2), r"axis must be -1.*got -2 for shape \(3,\)"),
        (lambda x: truncate(x, "nvfp4"), "without blocks, such as 'tf32'; got 'nvfp4'"),
        (lambda x: product(x, x, "bf16"), r"with the same batch; got shapes \(2, 3\) and \(2, 3\)"),
        (lambda x: product(x[0], x[0], "bf16"), r"a must be \[..., m, n\]; got shape"),
        (lambda x: numbers("fp32"), "at most 16 bits to be listed; 'fp32' has 32"),
    ],
)
def test_an_error_says_what_came(call, words):
    with pytest.raises(ValueError, match=words):
        call(np.ones((2, 3), np.float32))


def test_two_dtypes_do_not_multiply():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError, match="a and b must have the same dtype"):
        product(x, x.astype(np.float64), "bf16")


def test_find_gives_the_row_of_the_table():
    assert precision.find("bf16") is FORMATS["bf16"]


def test_a_format_need_not_be_in_the_table():
    x = patterns(2**12)
    for rounding in (round_to, truncate):
        found = rounding(x, precision.ieee(5, 11))
        np.testing.assert_array_equal(bits(found), bits(rounding(x, "fp16")))
        # 5 of 24 bits: what is left has no more
        mantissa, _ = np.frexp(rounding(x, precision.ieee(8, 5)))
        assert (mantissa * 32 == np.round(mantissa * 32))[np.isfinite(mantissa)].all()
