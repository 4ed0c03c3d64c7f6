"""The arithmetic of QR: operations, bytes, launches, and what they cost on a device.

A flop is one addition, subtraction, multiplication, division or square root of real numbers. Free:
comparisons, changes of sign, and products with a power of two, which only move an exponent. A
product of matrices [m, k] [k, n] is mnk multiplications and mn(k - 1) additions.

Bytes are what an algorithm moves through device memory when every verb reads its operands from
there and writes its results back, and nothing stays on the chip in between; from stage 5 on, what
their kernels load and store, as often as they do, but of a panel of stages 8 and 10 once a kernel.
Their flops leave out what tiles have beyond the matrix, and a product of pairs counts once. Times
are predictions: the word stands in everything printed here. What was measured carries its date.

Sizes are those of one matrix [m, n] up to `plan`, which takes the batch [B, m, n].
Python's integers only: nothing is imported that has to be installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from qrlib.devices import DEVICES, FORMATS, Device


@dataclass(frozen=True)
class Count:
    """Operations by kind; `flops` is their sum. Counts add, and multiply by a batch."""

    add: int = 0
    mul: int = 0
    div: int = 0
    sqrt: int = 0

    @property
    def flops(self):
        return self.add + self.mul + self.div + self.sqrt

    def __add__(self, other):
        return Count(
            self.add + other.add,
            self.mul + other.mul,
            self.div + other.div,
            self.sqrt + other.sqrt,
        )

    def __mul__(self, batch):
        return Count(self.add * batch, self.mul * batch, self.div * batch, self.sqrt * batch)

    __rmul__ = __mul__


def _total(counts):
    return sum(counts, Count())


def gemm(m, n, k):
    """A product [m, k] [k, n]: mnk multiplications, mn(k - 1) additions."""
    return Count(add=m * n * max(k - 1, 0), mul=m * n * k)


def larfg(m):
    """One reflector for a column of m entries: about 3m flops.

    m multiplications and m - 1 additions for the norm, its root, one addition for x_0 - beta, m - 1
    divisions for the tail of v and one for tau. A column of one entry needs no reflector.
    Source: LAPACK xLARFG, as qrlib.householder has it; chapter "One mirror".
    """
    return Count(add=m, mul=m, div=m, sqrt=1) if m > 1 else Count()


def larf(m, n):
    """A reflector applied to [m, n]: 2n(2m - 1) flops, about 4mn; the head of v is 1.

    Source: LAPACK xLARF; chapter "One mirror".
    """
    return Count(add=n * (2 * m - 1), mul=n * (2 * m - 1)) if m > 1 else Count()


def geqr2(m, n):
    """Unblocked QR of [m, n]: about 2n^2 (m - n/3) flops, and 4/3 n^3 for m = n.

    Source: LAPACK xGEQR2; chapter "A mirror a column".
    """
    return _total(larfg(m - j) + larf(m - j, n - j - 1) for j in range(min(m, n)))


def larft(m, b, *, dense=False):
    """T for b reflectors of m entries: about mb^2 - b^3/3 flops.

    Args:
        m, b: V is [m, b].
        dense: as plain products do it, ones and zeros of V and T included: about 2mb^2 + 2b^3/3.

    Source: LAPACK xLARFT; chapter "Panels".
    """
    if dense:
        return gemm(b, b, m) + _total(gemm(j, 1, j) + Count(mul=j) for j in range(1, b))
    inner = [j * (m - 1 - j) for j in range(1, b)]
    triangle = _total(Count(add=j * (j - 1) // 2, mul=j * (j + 1) // 2 + j) for j in range(1, b))
    return Count(add=sum(inner), mul=sum(inner)) + triangle


def larfb(m, n, b, *, dense=False):
    """b reflectors applied to C [m, n] at once, C - V (T^T (V^T C)): about 4mnb - nb^2 flops.

    Args:
        m, n, b: C is [m, n], V [m, b], T [b, b].
        dense: as three plain products, ones and zeros of V and T included: 4mnb + 2nb^2.

    Source: LAPACK xLARFB; chapter "Panels".
    """
    if dense:
        return gemm(b, n, m) + gemm(b, n, b) + gemm(m, n, b) + Count(add=m * n)
    # entries of V below its diagonal of ones, and on or below it
    below = b * (m - 1) - b * (b - 1) // 2
    W = Count(add=n * below, mul=n * below)
    Z = Count(add=n * b * (b - 1) // 2, mul=n * b * (b + 1) // 2)
    return W + Z + Count(add=n * (below + b), mul=n * below)


def geqrt3(m, b, *, dense=False):
    """Recursive panel [m, b] with its T: V1, T1 | larfb | V2, T2 | T12 = -T1 (V1^T V2) T2.

    Args:
        m, b: the panel, m >= b.
        dense: as plain products do it, ones and zeros included.

    Source: Elmroth and Gustavson 2000, LAPACK xGEQRT3; chapter "Halves of halves".
    """
    if b == 1:
        return larfg(m)
    h = b // 2
    r = b - h
    halves = geqrt3(m, h, dense=dense) + geqrt3(m - h, r, dense=dense)
    if dense:
        join = gemm(h, r, m) + gemm(h, r, r) + gemm(h, r, h)
    else:
        below = r * (m - h - 1) - r * (r - 1) // 2
        upper_right = Count(add=h * r * (r - 1) // 2, mul=h * r * (r + 1) // 2)
        upper_left = Count(add=r * h * (h - 1) // 2, mul=r * h * (h + 1) // 2)
        join = Count(add=h * below, mul=h * below) + upper_right + upper_left
    return halves + larfb(m, r, h, dense=dense) + join


def eliminate(b):
    """R^T R = G and X - R = L W of matrices [b, b], side by side: about b^3 flops.

    Source: LAPACK xPOTF2 and xLAORHR_COL_GETRFNP, as qrlib.reconstruction has it; chapter "All
    columns at once".
    """
    # of each row of R what rows above have in it, and of each column of L what is right of it
    found = sum(j * (b - j) for j in range(b))
    rest = sum(j * j for j in range(b))
    triangle = b * (b + 1) // 2
    return Count(add=found + rest + triangle, mul=found + rest, div=2 * (triangle - b), sqrt=b)


def triangular_inverse(b):
    """The inverse of a triangular matrix [b, b]: about b^3/3 flops.

    Source: LAPACK xTRTI2, as qrlib.reconstruction has it; chapter "All columns at once".
    """
    return _total(Count(add=j * (j - 1) // 2, mul=j * (j + 1) // 2 + j, div=1) for j in range(b))


def geqrf(m, n, nb, *, recursive=False, dense=False):
    """Blocked QR of [m, n] by panels of nb columns: 2n^2 (m - n/3) flops and a share of nb/n more.

    Args:
        m, n, nb: the last panel may be narrower.
        recursive: panels by geqrt3 instead of geqr2 and larft.
        dense: as plain products do it, ones and zeros of V and T included.

    Source: LAPACK xGEQRF; chapters "Panels" and "Halves of halves".
    """

    def panel(m, b):
        if recursive:
            return geqrt3(m, b, dense=dense)
        return geqr2(m, b) + larft(m, b, dense=dense)

    return _total(
        panel(m - j, e - j) + larfb(m - j, n - e, e - j, dense=dense) for j, e in _blocks(m, n, nb)
    )


def householder_product(m, n, k, nb=None, *, dense=False):
    """The first n columns of Q from k reflectors: about 4mnk - 2(m + n)k^2 + 4k^3/3 flops.

    From the last reflector to the first, so that each meets only columns no longer those of I.

    Args:
        m, n, k: Q is [m, n], k <= n <= m.
        nb: the width of the blocks; None: one reflector after another.
        dense: with nb, as plain products do it.

    Source: LAPACK xORG2R and xORGQR; chapter "A mirror a column".
    """
    if nb is None:
        # column j of Q is written down from v_j: -tau_j v_j under 1 - tau_j
        return _total(larf(m - j, n - j - 1) + Count(add=1, mul=m - j - 1) for j in range(k))
    return _total(
        larft(m - j, e - j, dense=dense) + larfb(m - j, n - j, e - j, dense=dense)
        for j, e in _blocks(k, k, nb)
    )


def _blocks(m, n, nb):
    k = min(m, n)
    return [(j, min(j + nb, k)) for j in range(0, k, nb)]


class Leading(NamedTuple):
    """A leading-order formula: its TeX, and its value for given sizes."""

    tex: str
    flops: Callable


LEADING = {
    "larfg": Leading("3m", lambda m: 3 * m),
    "larf": Leading("4mn", lambda m, n: 4 * m * n),
    "geqr2": Leading(
        r"2n^2 \left(m - \tfrac{n}{3}\right)",
        lambda m, n: 2 * n**2 * (m - n / 3) if m >= n else 2 * m**2 * (n - m / 3),
    ),
    "larft": Leading(r"mb^2 - \tfrac{1}{3} b^3", lambda m, b: m * b**2 - b**3 / 3),
    "larfb": Leading("4mnb - nb^2", lambda m, n, b: 4 * m * n * b - n * b**2),
    "householder_product": Leading(
        r"4mnk - 2(m + n)k^2 + \tfrac{4}{3} k^3",
        lambda m, n, k: 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3,
    ),
}

# what one verb of qrlib.householder costs in torch operations that start a kernel; (without a tail
# under the diagonal, with one) where it differs; counted by tests/test_model.py on the code itself
OPERATIONS = {
    "door": 20,
    "larfg": (25, 31),
    "larf": (4, 6),
    "unpack_v": 2,
    "larft": 2,
    "larft, a column": 4,
    "larfb": 5,
    "a leaf": 3,
    "a join": 9,
}


@dataclass(frozen=True)
class Plan:
    """What a stage does to a batch [B, m, n], before any device is named.

    flops: Count, as the stage's code executes it.
    traffic: bytes by purpose. floor: bytes that no algorithm can avoid, A in, H and tau out.
    working_set: bytes of A.
    launches: kernels started from the host; None where the host does all the work.
    columns: steps inside a kernel that wait for one another; in a stage of many launches, those do.
    """

    stage: str
    shape: tuple[int, int, int]
    nb: int | None
    flops: Count
    traffic: dict[str, int]
    floor: int
    working_set: int
    launches: int | None
    columns: int

    @property
    def bytes(self):
        return sum(self.traffic.values())


class _One(NamedTuple):
    """A plan for one matrix of B, in elements: what the functions of PLANS return."""

    flops: Count
    traffic: dict[str, int]
    launches: int | None
    columns: int = 0


def plan(stage, B, m, n, *, nb=None, itemsize=4):
    """The plan of a stage for a batch [B, m, n].

    Args:
        stage: a name in PLANS: one of qrlib.STAGES, or "floor".
        B, m, n: sizes, at least 1.
        nb: block width; None for the stage's own default.
        itemsize: bytes an entry, 4 for float32.

    Returns:
        Plan.
    """
    one_matrix, default_nb = _named(PLANS, stage, "stage")
    nb = default_nb if nb is None else nb
    one = one_matrix(B, m, n, nb)
    return Plan(
        stage=stage,
        shape=(B, m, n),
        nb=nb,
        flops=B * one.flops,
        traffic={what: B * elements * itemsize for what, elements in one.traffic.items()},
        floor=B * sum(_floor(B, m, n, nb).traffic.values()) * itemsize,
        working_set=B * m * n * itemsize,
        launches=one.launches,
        columns=one.columns,
    )


def _floor(B, m, n, nb):
    """A in, H and tau out, in one launch: what is left when all the rest stays on the chip."""
    k = min(m, n)
    return _One(geqr2(m, n), {"A in": m * n, "H and tau out": m * n + k}, 1, k)


def _mirror(B, m, n, nb):
    traffic = {"A in, H out": 2 * m * n, "columns": _geqr2_traffic(m, n)}
    return _One(geqr2(m, n), traffic, None)


def _unblocked(B, m, n, nb):
    traffic = {"door": _door_traffic(m, n), "columns": _geqr2_traffic(m, n)}
    return _One(geqr2(m, n), traffic, OPERATIONS["door"] + _geqr2_launches(m, n))


def _blocked(B, m, n, nb):
    return _right_looking(
        m,
        n,
        nb,
        geqrf(m, n, nb, dense=True),
        lambda m, b: (_geqr2_traffic(m, b), _larft_traffic(m, b)),
        lambda m, b: (
            _geqr2_launches(m, b)
            + OPERATIONS["unpack_v"]
            + OPERATIONS["larft"]
            + OPERATIONS["larft, a column"] * (b - 1)
        ),
    )


def _recursive(B, m, n, nb):
    return _right_looking(
        m,
        n,
        nb,
        geqrf(m, n, nb, recursive=True, dense=True),
        _geqrt3_traffic,
        _geqrt3_launches,
    )


def _right_looking(m, n, nb, flops, panel_traffic, panel_launches):
    """Panels of nb columns, each followed by the update of all columns on its right."""
    traffic = {"door": _door_traffic(m, n), "panels": 0, "V and T": 0, "update": 0}
    launches = OPERATIONS["door"]
    for j, e in _blocks(m, n, nb):
        columns, V_and_T = panel_traffic(m - j, e - j)
        traffic["panels"] += columns
        traffic["V and T"] += V_and_T
        launches += panel_launches(m - j, e - j)
        if e < n:
            traffic["update"] += _larfb_traffic(m - j, n - e, e - j)
            launches += OPERATIONS["larfb"]
    return _One(flops, traffic, launches)


def _door_traffic(m, n):
    """A read for its largest entry, read again and written scaled; H read and written unscaled."""
    return 5 * m * n


def _geqr2_traffic(m, n):
    """Every column once for its reflector; what lies to its right twice in and once out."""
    elements = 0
    for j in range(min(m, n)):
        tail, right = m - j - 1, n - j - 1
        # tau out
        elements += 1
        if tail:
            # the column in, beta and v out
            elements += 2 * (tail + 1)
        if tail and right:
            # v in for each of the two products, tau in once
            elements += 3 * (tail + 1) * right + 2 * tail + 1
    return elements


def _larft_traffic(m, b):
    """V out, V and tau in, T out."""
    return 2 * m * b + b + b * b


def _larfb_traffic(m, n, b):
    """V and C in, W out; T and W in, Z out; V, Z and C in, C out."""
    return 2 * m * b + 3 * m * n + b * b + 4 * b * n


def _geqrt3_traffic(m, b):
    """(columns and updates inside the panel, V and T)."""
    if b == 1:
        # the column in, beta and v out, tau and T out; V out
        return (2 * m if m > 1 else 0) + 1, m + 1
    h = b // 2
    r = b - h
    left, left_VT = _geqrt3_traffic(m, h)
    right, right_VT = _geqrt3_traffic(m - h, r)
    # V1 and V2 in where both have rows, T1 and T2 in, T12 out
    join = (m - h) * b + h * h + r * r + h * r
    return left + right + _larfb_traffic(m, r, h), left_VT + right_VT + join


def _geqr2_launches(m, n):
    return sum(
        OPERATIONS["larfg"][m - j > 1] + (OPERATIONS["larf"][m - j > 1] if j + 1 < n else 0)
        for j in range(min(m, n))
    )


def _geqrt3_launches(m, b):
    if b == 1:
        return OPERATIONS["larfg"][m > 1] + OPERATIONS["a leaf"]
    h = b // 2
    halves = _geqrt3_launches(m, h) + _geqrt3_launches(m - h, b - h)
    return halves + OPERATIONS["larfb"] + OPERATIONS["a join"]


# of stages 5 to 8: columns of a narrow and of a wide panel, rows up to which a panel stays in
# registers, rows of a slice of a taller one, rows up to which columns are scaled in one reading
NARROW, WIDE, TALL, SLICE, ONCE = 16, 64, 2048, 256, 4096
# of stage 9: columns from which on a matrix has two routes, and the fewest matrices and the columns
# of which each has a launch
ROUTED, APART, TOGETHER = 512, 32, 896
# of stage 8: rows from which on a wide panel is by Cholesky QR
GRAM = 96
# of stage 10: rows and columns up to which a matrix is in the registers of a program
ALONE = 512, 64
# rows of stage 7's tiles, and the columns that it updates at a time; of more matrices than MANY,
# only those of at most so many rows are one program each
WHOLE, MANY, WHOLE_MANY = {32: 16, 64: 32, 128: 64, 256: 32, 512: 32}, 132, 192


class _Part(NamedTuple):
    """A share of a plan for one matrix: its purpose, elements moved, and the rest of _One."""

    what: str
    elements: int
    flops: Count = Count()
    launches: int = 1
    columns: int = 0


def _put_together(parts):
    parts = list(parts)
    traffic = dict.fromkeys(("door", "panels", "V and T", "update"), 0)
    for part in parts:
        traffic[part.what] += part.elements
    return _One(
        _total(part.flops for part in parts),
        traffic,
        sum(part.launches for part in parts),
        sum(part.columns for part in parts),
    )


def _narrow(m, b):
    """A panel of stage 5, of a batch too large for tall ones to be on the chip all at once.

    Flops are those of xGEQR2 and xLARFT, up to lower order.
    """
    flops = geqr2(m, b) + larft(m, b)
    if m <= TALL:
        yield _Part("panels", 2 * m * b + b, flops, columns=b)
        yield _Part("V and T", m * b + b * b, launches=0)
        return
    s = -(-m // SLICE)
    # each slice reads what all have left: the largest of a column twice, sums and a row for each
    scratch = NARROW * (s + 2 * s * s + b * (s + 1) ** 2)
    # a launch for the largest, then one a column and one; the panel goes through each
    yield _Part("panels", m * b * (2 * b + 3) + b + scratch, flops, launches=b + 2)
    yield _Part("V and T", m * b + b * b * (2 * b + 1), launches=0)


def _panel_on_chip(B, m, n, nb):
    def parts():
        yield _Part("door", _door_traffic(m, n), launches=OPERATIONS["door"])
        for j, e in _blocks(m, n, nb):
            yield from _narrow(m - j, e - j)
            if e < n:
                size = m - j, n - e, e - j
                flops = larfb(*size, dense=True)
                yield _Part("update", _larfb_traffic(*size), flops, OPERATIONS["larfb"])

    return _put_together(parts())


def _update(what, m, n, b, tile=WIDE, launches=1, extra=0):
    """C [m, n] twice in and once out; V, twice, and T in, for each tile of columns.

    By b mirrors in one panel, or in two, the first of 64: then G = V2^T V1 comes with the two T.
    """
    flops, T = larfb(m, n, b, dense=True), b * b
    if b > WIDE:
        r = b - WIDE
        flops = larfb(m, n, WIDE, dense=True) + larfb(m, n, r, dense=True)
        flops += gemm(r, n, WIDE) + Count(add=r * n)
        T = 2 * WIDE * WIDE + r * r
    elements = 3 * m * n + -(-n // tile) * (2 * m * b + T) + extra
    return _Part(what, elements, flops, launches)


def _wide(m, b, second):
    """A panel of up to 64 columns as narrow ones; V kept as a factor, T joined; V^T U if second."""
    for p, q in _blocks(b, b, NARROW):
        yield from _narrow(m - p, q - p)
        if q < b:
            yield _update("panels", m - p, b - q, q - p)
    U, grams = (WIDE, 2) if second else (0, 1)
    halves = (NARROW, 2 * NARROW)
    # V in and out, U in, products out, in and out again; then two levels of joins
    elements = m * (2 * b + U) + 3 * grams * WIDE**2 + sum(2 * WIDE * h for h in halves)
    products = gemm(b, b, m) + (gemm(b, U, m) if second else Count())
    joins = _total(WIDE // h * gemm(h, h, h) for h in halves)
    yield _Part("V and T", elements, products + joins, launches=2)


def _two_wide_panels(B, m, n, nb, wide=_wide, routes=1, corner=0):
    """Stage 6 for a batch that fills the chip.

    routes: launches for each update. corner: rows up to which a last panel is a matrix of its own.

    A smaller one shares its rows among programs, and the update by two panels is several launches.
    """

    def panel(m, b, right, second):
        if right or m > corner:
            yield from wide(m, b, second)
        else:
            yield _alone(m, b)

    def parts():
        k = min(m, n)
        triangles = sum((e - j) * (e - j + 1) for j, e in _blocks(k, k, WIDE))
        yield _Part("door", (2 if m <= ONCE else 3) * m * n + n + k + triangles, launches=2)
        # zeros above the diagonals of V, twice, and in two T
        yield _Part("V and T", 2 * min(m, WIDE) * WIDE + 2 * WIDE * WIDE, launches=3)
        for j, q in _blocks(m, n, 2 * WIDE):
            p = min(j + WIDE, q)
            yield from panel(m - j, p - j, n - p, False)
            if p < q:
                # what is right of two panels may not have been seen, and its routes are not known
                ways = routes if j or q == n else 1
                yield _update("update", m - j, q - p, WIDE, launches=ways, extra=q - p)
                yield from panel(m - p, q - p, n - q, True)
            if q < n:
                yield _update("update", m - j, n - q, q - j, launches=routes, extra=n - q)

    return _put_together(parts())


def _whole(B, m, n, nb, panels=_two_wide_panels):
    """Stage 7: one launch where that pays, stage 6 elsewhere."""
    if m > (WHOLE_MANY if B > MANY else max(WHOLE)):
        return panels(B, m, n, nb)
    rows, k = max(32, 1 << (m - 1).bit_length()), min(m, n)

    def parts():
        if rows <= 128 and n <= 32:
            yield _Part("door", 2 * m * n)
            yield _Part("panels", k, geqr2(m, n), launches=0, columns=k)
            return
        upper = sum(min(c + 1, m) for c in range(n))
        yield _Part("door", 2 * m * n + 2 * n + 2 * upper)
        for j, e in _blocks(m, n, NARROW):
            b, flops = e - j, geqr2(m - j, e - j) + larft(m - j, e - j)
            yield _Part("panels", 2 * (m - j) * b + b, flops, launches=0, columns=b)
            if e < n:
                yield _Part("V and T", (m - j) * NARROW + NARROW**2, launches=0)
                yield _update("update", m - j, n - e, b, tile=WHOLE[rows], launches=0)

    return _put_together(parts())


def square(m):
    """The Gram matrix of a wide panel of m rows."""
    return gemm(WIDE, WIDE, m)


def lengths(m):
    """Sums of squares of the columns of a wide panel of m rows."""
    return Count(add=WIDE * (m - 1), mul=WIDE * m)


def vectors(m, second):
    """V = P W^-1 below its top, V^T V, and V^T U if second."""
    return gemm(m - WIDE, WIDE, WIDE) + (2 if second else 1) * square(m)


def judge():
    """(T and what columns have lost beside their length, two products for that, one for length)."""
    found = Count(div=WIDE) + triangular_inverse(WIDE)
    found += Count(add=WIDE**2, mul=WIDE) + 2 * lengths(WIDE)
    return found, 2 * square(WIDE), square(WIDE)


def _reconstructed(m, b, second):
    """A wide panel by Cholesky QR, if it is tall enough; as if no matrix of it went back."""
    if b < WIDE or m < GRAM:
        # zeros above the diagonal of V
        yield _Part("V and T", min(m, WIDE) * b)
        yield from _wide(m, b, second)
        return
    small, P = b * b, m * b
    U, grams = (P, 2) if second else (0, 1)
    yield _Part("panels", P + small, square(m))
    # of a square, what blocks on the diagonal have and what is right of them
    upper = b * (b + NARROW) // 2
    # products and the top of P in; what is left of four and what is found of four; exponents, ok
    found = eliminate(b) + triangular_inverse(b)
    yield _Part("panels", upper + 9 * small + b + 1, found, columns=b)
    # P, what is there of V, W^-1, and U in; V out; products and lengths
    moved = P + 2 * small + b + U + P + grams * small + b
    yield _Part("V and T", moved, vectors(m, second) + lengths(m))
    # products, lengths, exponents, three of what was found in; V^T U, T, tau, and T on its way; ok
    moved = upper + (2 * (grams - 1) + 3 + 2) * small + 3 * b + 2
    yield _Part("V and T", moved, _total(judge()))
    yield _Part("panels", 1)
    # V and R in, both out, scaled back
    yield _Part("panels", 2 * P + b * (b + 1) // 2 + b + 1)


def _cholesky(B, m, n, nb):
    """Stage 8: stage 6 with other wide panels."""
    return _two_wide_panels(B, m, n, nb, _reconstructed)


def _mixed(B, m, n, nb):
    """Stage 9: stage 8 with two routes. Products count once, and flags are next to nothing."""
    apart = min(m, n) >= ROUTED and (B >= APART or min(m, n) < TOGETHER)
    routes = 2 if apart else 1
    return _two_wide_panels(B, m, n, nb, _reconstructed, routes)


def _alone(m, n):
    """A matrix in registers: in once, out once."""
    k = min(m, n)
    return _Part("panels", 2 * m * n + k, geqr2(m, n), columns=k)


def _in_lanes(m, b, second):
    """A wide panel of stage 8, or of fewer rows in lanes."""
    if m >= GRAM:
        yield from _reconstructed(m, b, second)
        return
    # in and out, V as a factor, and T
    moved = 3 * m * b + b + WIDE * WIDE
    yield _Part("panels", moved, geqr2(m, b) + larft(m, b), columns=b)
    if second:
        yield _Part("V and T", m * (WIDE + b) + WIDE * WIDE, gemm(b, WIDE, m))


def _by_size(B, m, n, nb):
    """Stage 10: one launch up to 64 columns, and of stage 7 where that pays; else panels."""
    if m <= ALONE[0] and n <= ALONE[1]:
        return _put_together([_alone(m, n)])
    return _whole(B, m, n, nb, partial(_two_wide_panels, wide=_in_lanes, corner=ALONE[0]))


# a stage: its function (B, m, n, nb) -> _One, and its default nb; a new stage is one entry here
PLANS = {
    "floor": (_floor, None),
    "s01_mirror": (_mirror, None),
    "s02_unblocked": (_unblocked, None),
    "s03_blocked": (_blocked, 32),
    "s04_recursive": (_recursive, 64),
    "s05_panel": (_panel_on_chip, 16),
    "s06_update": (_two_wide_panels, None),
    "s07_whole": (_whole, None),
    "s08_cholesky": (_cholesky, None),
    "s09_mixed": (_mixed, None),
    "s10_blackwell": (_by_size, None),
}


class Term(NamedTuple):
    """A part of a predicted time, and how it comes about; seconds None: no latency is known."""

    seconds: float | None
    how: str


@dataclass(frozen=True, repr=False)
class Estimate:
    """The predicted time of a plan on a device, term by term; prints itself.

    terms: "arithmetic", "memory", and where there are any "launches" and "columns".
    roof: the longer of arithmetic and memory: the roofline proper. A cache that keeps what the
        next verb reads lowers the memory term; the plan "floor" has the least any cache can do.
    time: roof + launches + columns, as if none of them overlapped.
    binds: the name of the longest term.
    """

    plan: Plan
    device: Device
    ceilings: str
    terms: dict[str, Term]
    notes: tuple[str, ...] = ()

    @property
    def roof(self):
        return max(self.terms["arithmetic"].seconds, self.terms["memory"].seconds)

    @property
    def time(self):
        latencies = [self.terms[name] for name in ("launches", "columns") if name in self.terms]
        return self.roof + sum(term.seconds or 0 for term in latencies)

    @property
    def binds(self):
        return max(self.terms, key=lambda name: self.terms[name].seconds or 0)

    def __str__(self):
        B, m, n = self.plan.shape
        nb = f", nb = {self.plan.nb}" if self.plan.nb else ""
        lines = [
            f"{self.plan.stage}, {B} x {m} x {n}{nb}",
            f"predicted for {self.device.name}, {self.ceilings}",
        ]
        for name, (seconds, how) in self.terms.items():
            mark = "  <- binds" if name == self.binds else ""
            lines.append(f"  {name:<11}{_duration(seconds):>9}  {how}{mark}")
        lines.append(f"  {'time':<11}{_duration(self.time):>9}  predicted")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    __repr__ = __str__


def roofline(
    plan, device, *, precision="fp32", measured=False, graph=False, launch=None, column=None
):
    """The predicted time of a plan: max(flops / peak, bytes / bandwidth), and latencies apart.

    A batch that fits in L2 is counted as passing device memory once, however often it is read.

    Args:
        plan: from `plan`.
        device: a name in DEVICES, or a Device.
        precision: the format of the products, one of FORMATS.
        measured: take ceilings measured on such a device in place of its vendor's.
        graph: kernels are replayed from a CUDA graph, not started one by one. Each has to wait
            for the one before, and that is in what was measured for one.
        launch, column: seconds that a kernel start and a dependent column take; None for what was
            measured on this device. Where nothing was, the term has no value, and says so.

    Returns:
        Estimate.
    """
    device = _named(DEVICES, device, "device") if isinstance(device, str) else device
    peak, bandwidth = device.peak.get(precision), device.bandwidth
    ceilings = "its vendor's ceilings"
    if measured:
        if not device.measured:
            seen = ", ".join(d.name for d in DEVICES.values() if d.measured)
            raise ValueError(f"measured=True needs one of {seen}; got {device.name}")
        bandwidth = device.measured["bandwidth"].value
        # a product never measured has no measured ceiling
        peak = device.measured[precision].value if precision in device.measured else None
        ceilings = f"ceilings measured {device.measured_on}"
    if peak is None:
        have = ", ".join(p for p in FORMATS if p in (device.measured if measured else device.peak))
        raise ValueError(f"precision must be one of {have} on {device.name}; got {precision!r}")

    flops = plan.flops.flops
    in_l2 = plan.working_set <= device.l2
    moved = plan.floor if in_l2 else plan.bytes
    terms = {
        "arithmetic": Term(flops / peak, f"{_si(flops)}flop at {_si(peak)}flop/s ({precision})"),
        "memory": Term(moved / bandwidth, f"{_si(moved)}B at {_si(bandwidth)}B/s"),
    }
    if plan.launches:
        latency = _latency(launch, device, "graph node" if graph else "launch")
        terms["launches"] = _serial(plan.launches, latency, device)
    if plan.columns:
        terms["columns"] = _serial(plan.columns, _latency(column, device, "column"), device)
    notes = []
    if in_l2:
        notes.append("the batch fits in L2: memory is counted once in and once out")
    if plan.launches is None:
        notes.append("this stage runs on the host; so much its operations would cost on the device")
    return Estimate(plan, device, ceilings, terms, tuple(notes))


def estimate(stage, B, m, n, device, *, nb=None, itemsize=4, **options):
    """The predicted time of a stage for a batch [B, m, n]: `roofline` of its `plan`.

    Args:
        stage, B, m, n, nb, itemsize: as for plan.
        device, options: as for roofline.

    Returns:
        Estimate.
    """
    return roofline(plan(stage, B, m, n, nb=nb, itemsize=itemsize), device, **options)


def _latency(given, device, name):
    seen = device.measured.get(name)
    return seen.value if given is None and seen else given


def _serial(count, latency, device):
    if latency is None:
        return Term(None, f"{count}; how long one takes on {device.name} is not known here")
    return Term(count * latency, f"{count} at {_duration(latency)}")


def _named(table, name, what):
    if name not in table:
        raise ValueError(f"{what} must be one of {', '.join(table)}; got {name!r}")
    return table[name]


def _si(value):
    for prefix, power in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= power:
            return f"{value / power:.3g} {prefix}"
    return f"{value:.3g} "


def _duration(seconds):
    if seconds is None:
        return "-"
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
