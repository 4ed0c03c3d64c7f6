"""The gallery: the task's ten input families, LAPACK's test types, and matrices with a name.

All are NumPy arrays [batch, n, n] (or [batch, m, n]) drawn from a seed: the same seed gives the
same matrices on every machine. torch.from_numpy takes them without a copy.
"""

from typing import NamedTuple

import numpy as np

FAMILIES = (
    "dense",
    "upper",
    "diagonal",
    "rankdef",
    "nearrank",
    "clustered",
    "band",
    "rowscale",
    "nearcollinear",
    "mixed",
)
# what a member of a mixed batch may be, besides dense
_MIXED_IN = ("rankdef", "nearrank", "clustered", "band", "rowscale", "nearcollinear")


class Case(NamedTuple):
    """One shape and family of the task."""

    batch: int
    n: int
    cond: float
    family: str


BENCHMARK_CASES = (
    Case(20, 32, 1, "dense"),
    Case(40, 176, 1, "dense"),
    Case(40, 352, 1, "dense"),
    Case(640, 512, 2, "dense"),
    Case(60, 1024, 2, "dense"),
    Case(8, 2048, 1, "dense"),
    Case(2, 4096, 1, "dense"),
    Case(640, 512, 2, "mixed"),
    Case(60, 1024, 2, "mixed"),
    Case(640, 512, 0, "rankdef"),
    Case(640, 512, 0, "clustered"),
    Case(60, 1024, 0, "nearrank"),
)

TEST_CASES = (
    Case(20, 32, 1, "dense"),
    Case(40, 176, 1, "dense"),
    Case(40, 352, 1, "dense"),
    Case(16, 512, 2, "dense"),
    Case(4, 1024, 2, "dense"),
    Case(1, 4096, 1, "dense"),
    Case(16, 512, 4, "dense"),
    Case(16, 512, 0, "rankdef"),
    Case(16, 512, 0, "clustered"),
    Case(16, 512, 0, "band"),
    Case(16, 512, 0, "rowscale"),
    Case(16, 512, 0, "nearcollinear"),
    Case(16, 512, 2, "mixed"),
    Case(4, 1024, 4, "dense"),
    Case(4, 1024, 0, "rankdef"),
    Case(4, 1024, 0, "nearrank"),
    Case(4, 1024, 0, "clustered"),
    Case(4, 1024, 2, "mixed"),
    Case(2, 2048, 2, "dense"),
    Case(2, 2048, 0, "rankdef"),
    Case(2, 2048, 2, "mixed"),
    Case(1, 4096, 0, "upper"),
)


def make(family, batch, n, *, cond=0, seed=0, dtype=np.float32):
    """A batch of one of the task's families.

    Args:
        family: one of FAMILIES. batch, n: how many, of what size.
        cond: column j of dense, upper, rankdef, nearrank, band and nearcollinear is scaled by
            10^(-cond j/(n-1)); the exponents of diagonal and rowscale are at least 2 and 4.
        seed: int or sequence of ints. dtype: float32 or float64.

    Returns:
        A: [batch, n, n].

    Raises:
        ValueError: unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}; got {family!r}")
    rng = np.random.default_rng(seed)
    if family != "mixed":
        return _FAMILY[family](rng, batch, n, cond, np.dtype(dtype))
    A = np.empty((batch, n, n), dtype)
    names = _draw_mixed(rng, batch)
    for name in sorted(set(names)):
        where = np.flatnonzero(names == name)
        A[where] = _FAMILY[name](rng, len(where), n, cond, np.dtype(dtype))
    return A


def _draw_mixed(rng, batch):
    """A family name for each matrix: dense has 6 of 12 chances; one at least is dense, one not."""
    names = rng.choice(("dense", *_MIXED_IN), size=batch, p=np.array([6, *[1] * 6]) / 12)
    if batch >= 2 and (names == "dense").all():
        names[rng.integers(batch)] = rng.choice(_MIXED_IN)
    if batch and not (names == "dense").any():
        names[rng.integers(batch)] = "dense"
    return names


def _normal(rng, dtype, *shape):
    return rng.standard_normal(shape, dtype=dtype)


def _falling(n, decades, dtype):
    """10^(-decades j/(n-1)) for j = 0..n-1."""
    return np.power(10.0, -decades * np.arange(n) / max(n - 1, 1)).astype(dtype)


def _dense(rng, batch, n, cond, dtype):
    return _normal(rng, dtype, batch, n, n) * _falling(n, cond, dtype)


def _upper(rng, batch, n, cond, dtype):
    ramp = np.diag(np.linspace(1, 0.25, n, dtype=dtype))
    return (np.triu(_normal(rng, dtype, batch, n, n)) + ramp) * _falling(n, cond, dtype)


def _diagonal(rng, batch, n, cond, dtype):
    signs = rng.choice(np.array([-1, 1], dtype), size=(batch, n))
    A = np.zeros((batch, n, n), dtype)
    A[:, np.arange(n), np.arange(n)] = signs * _falling(n, max(cond, 2), dtype)
    return A


def _rankdef(rng, batch, n, cond, dtype):
    A = _dense(rng, batch, n, cond, dtype)
    A[:, :, n - n // 4 :] = 0
    return A


def _nearrank(rng, batch, n, cond, dtype):
    A = _normal(rng, dtype, batch, n, n)
    q = n // 4
    A[:, :, n - q :] = A[:, :, :q] + dtype.type(1e-5) * _normal(rng, dtype, batch, n, q)
    return A * _falling(n, cond, dtype)


def _clustered(rng, batch, n, cond, dtype):
    eps = np.finfo(np.float32).eps
    scale = np.ones(n)
    scale[n // 2 :] = 4 * eps
    scale[max(n // 2 - 2, 0) : n // 2 + 2] = np.sqrt(eps)
    return _normal(rng, dtype, batch, n, n) * scale.astype(dtype)


def _band(rng, batch, n, cond, dtype):
    i = np.arange(n)
    inside = np.abs(i[:, None] - i) <= max(2, min(32, n // 32))
    A = np.where(inside, _normal(rng, dtype, batch, n, n), dtype.type(0))
    return (A + np.diag(np.linspace(1, 0.5, n, dtype=dtype))) * _falling(n, cond, dtype)


def _rowscale(rng, batch, n, cond, dtype):
    return _normal(rng, dtype, batch, n, n) * _falling(n, max(cond, 4), dtype)[:, None]


def _nearcollinear(rng, batch, n, cond, dtype):
    column = _normal(rng, dtype, batch, n, 1)
    A = column + dtype.type(1e-4) * _normal(rng, dtype, batch, n, n)
    return A * _falling(n, cond, dtype)


_FAMILY = {
    "dense": _dense,
    "upper": _upper,
    "diagonal": _diagonal,
    "rankdef": _rankdef,
    "nearrank": _nearrank,
    "clustered": _clustered,
    "band": _band,
    "rowscale": _rowscale,
    "nearcollinear": _nearcollinear,
}


LAPACK_TYPES = {
    1: "diagonal",
    2: "upper triangular",
    3: "lower triangular",
    4: "random, condition 2",
    5: "random, condition sqrt(0.1/eps)",
    6: "random, condition 0.1/eps",
    7: "random, condition 2, norm near underflow",
    8: "random, condition 2, norm near overflow",
    9: "random, condition 2, leading entry 3/4 of the largest number",
}


def lapack_type(t, m, n, *, batch=1, seed=0, dtype=np.float32):
    """Matrices after LAPACK's QR tester: singular values fall geometrically from norm to norm/cond.

    Args:
        t: 1 to 9, see LAPACK_TYPES. m, n: size. batch, seed, dtype: as for `make`.

    Returns:
        A: [batch, m, n].

    Raises:
        ValueError: no such type.

    Source: LAPACK TESTING/LIN xLATB4 and xLATMS; type 9 is proposed there.
    """
    if t not in LAPACK_TYPES:
        raise ValueError(f"t must be 1 to 9; got {t!r}")
    f = np.finfo(dtype)
    cond = {5: np.sqrt(0.1 / f.eps), 6: 0.1 / f.eps}.get(t, 2.0)
    small = 0.25 * float(f.tiny) / float(f.eps)
    norm = {7: small, 8: 1 / small}.get(t, 1.0)
    rng = np.random.default_rng(seed)
    k = min(m, n)
    values = np.power(float(cond), -np.arange(k) / max(k - 1, 1)) * norm
    if t == 1:
        A = np.zeros((batch, m, n))
        A[:, np.arange(k), np.arange(k)] = values * rng.choice([-1.0, 1.0], size=(batch, k))
        return A.astype(dtype)
    U = np.linalg.qr(rng.standard_normal((batch, m, k)))[0]
    W = np.linalg.qr(rng.standard_normal((batch, n, k)))[0]
    A = (U * values) @ W.swapaxes(-1, -2)
    if t == 2:
        A = np.triu(A)
    elif t == 3:
        A = np.tril(A)
    elif t == 9 and k:
        A[:, 0, 0] = 0.75 * float(f.max)
    return A.astype(dtype)


def gram(batch, n, *, rank=None, seed=0, dtype=np.float32):
    """G @ G.T with G [n, rank] normal, as Shampoo and SOAP factor it. Returns [batch, n, n]."""
    G = _normal(np.random.default_rng(seed), np.dtype(dtype), batch, n, n if rank is None else rank)
    return G @ G.swapaxes(-1, -2)


def kahan(n, *, theta=1.2, dtype=np.float32):
    """Kahan's matrix: diag(s^i) (I - c striu(1)), s, c = sin, cos of theta. Returns [n, n]."""
    U = np.eye(n) + np.triu(np.full((n, n), -np.cos(theta)), 1)
    return (np.power(np.sin(theta), np.arange(n))[:, None] * U).astype(dtype)


def hilbert(n, *, dtype=np.float32):
    """1 / (i + j + 1): condition about e^(3.5 n). Returns [n, n]."""
    i = np.arange(n)
    return (1.0 / (i[:, None] + i + 1)).astype(dtype)


def vandermonde(n, *, dtype=np.float32):
    """Powers 0 to n-1 of n points from 0 to 1. Returns [n, n]."""
    return np.vander(np.linspace(0, 1, n), increasing=True).astype(dtype)
