"""What the tests are parametrised from, and what a stage is held to."""

import math
import re

import numpy as np
import torch

import qrlib
from qrlib import matrices
from qrlib.certificate import LAPACK
from qrlib.stages import ANYWHERE

FAMILIES = matrices.FAMILIES
SIZES = (1, 2, 3, 31, 32, 33, 64, 65, 176)
# odd sizes around every block width, wide and tall, thin and empty
SHAPES = (
    (5, 5),
    (9, 4),
    (4, 9),
    (1, 1),
    (1, 6),
    (6, 1),
    (70, 33),
    (33, 70),
    (65, 64),
    (64, 65),
    (130, 31),
    (0, 3),
    (3, 0),
    (0, 0),
)
SCALES = (1e-40, 1e-38, 1e-30, 1e-22, 1e-20, 1.0, 1e18, 1e20, 1e30, 1e37)
# the others have tests of their own: the interpreter would take hours for all of these
ALL_STAGES = ("auto", *ANYWHERE)


def batch_of(family, batch, n, *, cond=1, seed=0, dtype=np.float32):
    """A torch batch of a family."""
    return torch.from_numpy(matrices.make(family, batch, n, cond=cond, seed=seed, dtype=dtype))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# what the Gram matrices of panels are no good for, or the range of float16
BAD = (
    "nearcollinear",
    "columns twice",
    "zero columns",
    "Kahan",
    "Hilbert",
    "Vandermonde",
    "condition 1e8",
    "upper",
    "rowscale",
    "large entries",
    "small entries",
    "large and small entries",
    "all large",
    "all small",
    "nothing",
)


def bad(kind, n):
    """A matrix [n, n] of a kind of BAD."""
    if kind in FAMILIES:
        return batch_of(kind, 1, n)[0]
    if kind in ("Kahan", "Hilbert", "Vandermonde"):
        return torch.from_numpy(getattr(matrices, kind.lower())(n))
    if kind == "condition 1e8":
        return conditioned(1e8, n)
    A = normal(n, n, seed=n)
    which = torch.rand(n, n, generator=torch.Generator().manual_seed(n))
    match kind:
        case "columns twice":
            A[:, 1::2] = A[:, : n - 1 : 2]
        case "zero columns":
            A[:, [0, n // 3, n - 1]] = 0
        case "large entries":
            A[which < 2 / n] *= 1e5
        case "small entries":
            A[which < 1 / 2] *= 1e-8
        case "large and small entries":
            A[which < 1 / 3] *= 1e5
            A[which > 2 / 3] *= 1e-8
        case "all large":
            A *= 1e30
        case "all small":
            A *= 1e-30
        case "nothing":
            A[:] = 0
    return A


def conditioned(kappa, n):
    """[n, n] with singular values from 1 down to 1 / kappa, as far as float32 tells them."""
    rng = np.random.default_rng(n)
    rows = max(k for k in range(1, math.isqrt(n) + 1) if n % k == 0)

    def rotated(X):
        # by a Kronecker product, for any orthogonal matrix would take n^3 to make
        P, Q = (np.linalg.qr(rng.standard_normal((k, k)))[0] for k in (rows, n // rows))
        return (P @ (Q @ X.reshape(rows, n // rows, n)).reshape(rows, -1)).reshape(n, n)

    values = np.power(float(kappa), -np.arange(n) / (n - 1))
    return torch.from_numpy(rotated(rotated(np.diag(values)).T).astype(np.float32))


def among(easy, others, seed=0):
    """(a copy of a batch with other matrices at random places of it, {name: its place}).

    Args:
        easy: [B, m, n]. others: {name: [m, n]}.
    """
    A, drawn = easy.clone(), torch.Generator().manual_seed(seed)
    places = torch.randperm(len(A), generator=drawn)[: len(others)].tolist()
    for b, other in zip(places, others.values(), strict=True):
        A[b] = other
    return A, dict(zip(others, places, strict=True))


def assert_as_good_as_lapack(A, H, tau, by_lapack=None):
    c = qrlib.certify(A, H, tau, gate=LAPACK)
    assert c.passed, c
    assert_little_worse(c, by_lapack or qrlib.certify(A, *torch.geqrf(A)))


def assert_little_worse(c, reference):
    """At most 4x the error of another certificate, or 4 of LAPACK's units where that is under 1."""
    for ours, theirs in (
        (c.factor, reference.factor),
        (c.orthogonality, reference.orthogonality),
    ):
        assert (2 * ours <= 4 * np.maximum(1, 2 * theirs)).all(), (c, reference)


def misread(artifact):
    """Instructions that make the upper half of a descriptor from where shared memory begins.

    ptxas 12.8 mistakes a register in some large kernels, and a product then reads its factor from
    elsewhere. Empty for all that is right.
    """
    last, found = {}, []
    for each in artifact.plain:
        registers = re.findall(r"UR\d+", each.text)
        begins = {r for r in registers[1:] if re.search("ULEA .*, 0x18$", last.get(r, ""))}
        if begins and "UIADD3.X" in each.text:
            found.append(each.text)
        if registers and each.name.startswith("U"):
            last[registers[0]] = each.text
    return found
