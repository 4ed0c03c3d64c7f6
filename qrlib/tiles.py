"""The verbs of Householder QR as Triton tile arithmetic.

A tile is a piece of a matrix that one program holds in its registers. Names are those of
`householder.py`; shapes stand behind the line that makes them. A panel tile P is [BM, BN], rows and
columns beyond the panel are zero, and no number in it is larger than about 1, because whoever loads
it scales its columns by powers of two (`exponent_of`, `power_of_two`).
"""

import triton
import triton.language as tl

# a column whose squares sum to less than this is taken for zero. Scaled columns begin near 1, so
# what is dropped is 2^-50 of the column, far below its rounding error, while squares that small
# would leave the sum too few digits to make an orthogonal reflector
TINY = tl.constexpr(2.0**-100)


# float16 ends at 65504, and below 6e-5 it loses digits: numbers up to 1 are lifted by this first
SPLIT = tl.constexpr(2.0**14)
UNSPLIT = tl.constexpr(2.0**-14)


@triton.jit
def bits_of(x):
    """The bits of x as an integer: a sum of them where all but one are 0 keeps the sign of -0.0."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def from_bits(b):
    return b.to(tl.float32, bitcast=True)


@triton.jit
def power_of_two(e):
    """2^e for |e| <= 126, exactly, by writing the exponent field."""
    return from_bits((e + 127) << 23)


@triton.jit
def exponent_of(x):
    """e with x in [2^(e-1), 2^e), for x >= 0, within +-126; -126 for 0, 126 for Inf and NaN."""
    e = (bits_of(x) >> 23) - 126
    return tl.minimum(tl.maximum(e, -126), 126)


@triton.jit
def larfg(alpha, sigma):
    """(beta, scale, tau) of the reflector that sends (alpha, x) to (beta, 0), with sigma = x^T x.

    The Householder vector is (1, scale x). Where sigma vanishes there is nothing to reflect:
    beta = alpha, scale = tau = 0.
    """
    norm2 = alpha * alpha + sigma
    # not (>=): a NaN goes on and shows
    done = (sigma == 0) | (norm2 < TINY)
    norm = tl.sqrt_rn(norm2)
    # the sign bit, for alpha may be -0.0
    beta = tl.where(bits_of(alpha) < 0, norm, -norm)
    scale = tl.div_rn(1.0, tl.where(done, 1.0, alpha - beta))
    tau = tl.div_rn(beta - alpha, tl.where(done, 1.0, beta))
    return tl.where(done, alpha, beta), tl.where(done, 0.0, scale), tl.where(done, 0.0, tau)


@triton.jit
def add_pairs(a, b, c, d):
    """For tl.reduce: two sums over one pass."""
    return a + c, b + d


@triton.jit
def at(x, here):
    """x where `here`, which is true at one place in a row: a register tile has no index. [1, 1]

    Two-dimensional like all small values here: to a vector the compiler gives a layout of its own,
    and every exchange between layouts is a round through shared memory with barriers.
    """
    return from_bits(tl.sum(tl.where(here, bits_of(x), 0), axis=1, keep_dims=True))


@triton.jit
def larft_column(T, z, tau_j, j, BN: tl.constexpr):
    """T [BN, BN] with its column j: -tau_j T[:j, :j] z[:j] over tau_j; z = V^T v_j [1, BN]."""
    c, k = tl.arange(0, BN)[None, :], tl.arange(0, BN)[:, None]
    t = -tau_j * tl.sum(T * tl.where(c < j, z, 0.0), axis=1, keep_dims=True)
    return tl.where(c == j, tl.where(k == j, tau_j, t), T)


@triton.jit
def mirror(P, tau, T, j, BM: tl.constexpr, BN: tl.constexpr, WITH_T: tl.constexpr = True):
    """One mirror of a panel: column j, and what it does to the columns on its right.

    One reduction over the rows gives g = x^T P, with x the tail of column j, and row j of P. From
    these two follow sigma = g_j, alpha = row_j, and z = v^T P = row + scale g. On the right of j
    it is what the mirror takes away; on the left it is V^T v_j, and so T comes along for free.

    Args:
        P: [BM, BN], scaled. tau: [1, BN]. T: [BN, BN].
    """
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    # column j is a sum over columns of which one is not zero
    column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)  # [BM, 1]
    x = tl.where(i > j, column, 0.0)
    g, row = tl.reduce(
        (x * P, tl.where(i == j, bits_of(P), 0)), 0, add_pairs, keep_dims=True
    )  # [1, BN] both
    return reflect(P, tau, T, column, from_bits(row), g, i, j, BN, WITH_T)


@triton.jit
def reflect(P, tau, T, column, row, g, i, j, BN: tl.constexpr, WITH_T: tl.constexpr = True):
    """The rest of mirror j, from its column [BM, 1], row j and g = x^T P, [1, BN] both."""
    c = tl.arange(0, BN)[None, :]
    x = tl.where(i > j, column, 0.0)
    beta, scale, tau_j = larfg(at(row, c == j), at(g, c == j))  # [1, 1] each
    z = row + scale * g
    v = tl.where(i == j, 1.0, scale * x)
    reflected = P - v * (tau_j * tl.where(c > j, z, 0.0))
    stored = tl.where(i > j, v, tl.where(i == j, beta, column))
    P = tl.where(c == j, stored, reflected)
    if WITH_T:
        T = larft_column(T, z, tau_j, j, BN)
    return P, tl.where(c == j, tau_j, tau), T


@triton.jit
def passed(P, beta, scale, tau_j, z, i, c, j):
    """Rows i of a panel that is not here as a whole, after mirror j. z: v^T P, [1, BN]."""
    column = tl.sum(tl.where(c == j, P, 0.0), axis=1, keep_dims=True)
    v = tl.where(i > j, scale * column, tl.where(i == j, 1.0, 0.0))
    stored = tl.where(i > j, v, tl.where(i == j, beta, column))
    return tl.where(c == j, stored, P - v * (tau_j * tl.where(c > j, z, 0.0)))


@triton.jit
def geqr2(
    P, nb, BM: tl.constexpr, BN: tl.constexpr,
    UNROLL: tl.constexpr = False, WITH_T: tl.constexpr = True,
):  # fmt: skip
    """A panel, mirror by mirror, without leaving the registers.

    Args:
        P: [BM, BN], scaled. nb: how many columns it has.
        UNROLL: one copy of the code for each column, with nb = BN; pays for tall panels.
        WITH_T: False where there is nothing to update, and T stays zero.

    Returns:
        P: compact. tau: [1, BN]. T: [BN, BN], upper triangular.
    """
    tau = tl.zeros([1, BN], tl.float32)
    T = tl.zeros([BN, BN], tl.float32)
    if UNROLL:
        for j in tl.static_range(BN):
            P, tau, T = mirror(P, tau, T, j, BM, BN, WITH_T)
    else:
        for j in range(nb):
            P, tau, T = mirror(P, tau, T, j, BM, BN, WITH_T)
    return P, tau, T


@triton.jit
def unit_lower(P, i, c):
    """V of compact columns c at rows i: ones on the diagonal, zeros above."""
    return tl.where(i > c, P, tl.where(i == c, 1.0, 0.0))


@triton.jit
def product(a1, a2, b1, b2, total, PRECISION: tl.constexpr):
    """total + a b, for factors in their parts, with the arithmetic named; see `parts`.

    PRECISION:
        "ieee": float32 multiply-adds, no tensor cores.
        "tf32x3": tensor cores; each factor as a sum of two tf32 numbers, three products.
        "fp16x3": the same with float16, at twice the rate; 22 bits of a factor that is not tiny,
            and totals are 2^28 too large, until `whole`.
        "fp16x2": two of these three products, and so 11 bits of a and all of b.
        "fp16": one of them, and so 11 bits of a factor.
    """
    if PRECISION == "fp16":
        return tl.dot(a1, b1, total, out_dtype=tl.float32)
    elif PRECISION == "fp16x2":
        total = tl.dot(a1, b2, total, out_dtype=tl.float32)
        return tl.dot(a1, b1, total, out_dtype=tl.float32)
    elif PRECISION == "fp16x3":
        # small terms first
        total = tl.dot(a2, b1, total, out_dtype=tl.float32)
        total = tl.dot(a1, b2, total, out_dtype=tl.float32)
        return tl.dot(a1, b1, total, out_dtype=tl.float32)
    else:
        return tl.dot(a1, b1, total, input_precision=PRECISION)


@triton.jit
def parts(x, PRECISION: tl.constexpr):
    """A float32 tile with entries of at most 1 as a factor of `product`: in two parts, or twice."""
    if PRECISION == "fp16x3" or PRECISION == "fp16x2":
        return split(x)
    elif PRECISION == "fp16":
        x = (x * SPLIT).to(tl.float16)
        return x, x
    else:
        return x, x


@triton.jit
def gram(a1, a2, total, PRECISION: tl.constexpr):
    """total + M for a factor a in its parts, with (M + M^T) / 2 = a^T a; see `symmetric`.

    a1^T a2 and a2^T a1 are each other's transpose: one of them, twice, stands for both.
    """
    if PRECISION == "fp16x3":
        total = tl.dot(tl.trans(a1), a2 + a2, total, out_dtype=tl.float32)
        return tl.dot(tl.trans(a1), a1, total, out_dtype=tl.float32)
    else:
        return tl.dot(tl.trans(a1), a1, total, input_precision=PRECISION)


@triton.jit
def gram_of_any(a, total, THIRDS: tl.constexpr):
    """The same for float32 entries of any size: in three bfloat16 numbers each, 24 bits.

    THIRDS: False for "tf32x3", as Triton's interpreter cannot multiply bfloat16.
    """
    if not THIRDS:
        return tl.dot(tl.trans(a), a, total, input_precision="tf32x3")
    a1, a2, a3 = thirds(a)
    total = tl.dot(tl.trans(a2), a2, total, out_dtype=tl.float32)
    total = tl.dot(tl.trans(a1), a3 + a3, total, out_dtype=tl.float32)
    total = tl.dot(tl.trans(a1), a2 + a2, total, out_dtype=tl.float32)
    return tl.dot(tl.trans(a1), a1, total, out_dtype=tl.float32)


@triton.jit
def symmetric(M):
    return 0.5 * (M + tl.trans(M))


@triton.jit
def thirds(x):
    """x as the sum of three bfloat16 numbers, to 24 bits; a zero's sign is lost."""
    x1 = x.to(tl.bfloat16)
    x -= x1.to(tl.float32)
    x2 = x.to(tl.bfloat16)
    x -= x2.to(tl.float32)
    return x1, x2, x.to(tl.bfloat16)


@triton.jit
def whole(total, PRECISION: tl.constexpr):
    """What a product is worth."""
    if PRECISION == "fp16x3" or PRECISION == "fp16x2" or PRECISION == "fp16":
        return total * (UNSPLIT * UNSPLIT)
    else:
        return total


@triton.jit
def split(x):
    """(hi, lo) in float16 with (hi + lo) 2^-14 = x, for |x| <= 1."""
    x = x * SPLIT
    hi = x.to(tl.float16)
    return hi, (x - hi.to(tl.float32)).to(tl.float16)


@triton.jit
def load_factor(ptrs, lo, mask, PRECISION: tl.constexpr):
    """A factor in its parts: kept as pairs of float16 numbers, `lo` elements apart, or float32."""
    x = tl.load(ptrs, mask=mask, other=0.0)
    if ptrs.dtype.element_ty != tl.float16:
        return parts(x, PRECISION)
    elif PRECISION == "fp16" or PRECISION == "fp16x2":
        return x, x
    else:
        return x, tl.load(ptrs + lo, mask=mask, other=0.0)


@triton.jit
def load_joined(ptrs, lo, mask):
    """What a factor keeps, as float32."""
    x = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    if ptrs.dtype.element_ty == tl.float16:
        x = (x + tl.load(ptrs + lo, mask=mask, other=0.0).to(tl.float32)) * UNSPLIT
    return x


@triton.jit
def store_factor(ptrs, lo, x, mask):
    """Keep it as pairs of float16 numbers, or as it is."""
    if ptrs.dtype.element_ty == tl.float16:
        hi, x = split(x)
        tl.store(ptrs, hi, mask=mask)
        tl.store(ptrs + lo, x, mask=mask)
    else:
        tl.store(ptrs, x, mask=mask)
