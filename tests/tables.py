"""What the tests are parametrised from, and what a stage is held to."""

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


def assert_as_good_as_lapack(A, H, tau, by_lapack=None):
    c = qrlib.certify(A, H, tau, gate=LAPACK)
    assert c.passed, c
    reference = by_lapack or qrlib.certify(A, *torch.geqrf(A))
    for ours, theirs in (
        (c.factor, reference.factor),
        (c.orthogonality, reference.orthogonality),
    ):
        assert (2 * ours <= 4 * np.maximum(1, 2 * theirs)).all(), (c, reference)
