"""Numbers as pairs of short ones, x = hi + lo, and products made of them. NumPy, no tensor core.

A rounding takes float32 to the numbers of a short format, which float32 holds as well; so products
of them are exact in float32, as a tensor core makes them. Only the sums are NumPy's.
"""

import numpy as np
import torch

from qrlib.householder import exponent_of, power_of_two
from qrlib.precision import ieee, round_to, truncate
from qrlib.scaling import half_log2
from qrlib.stages import s03_blocked

# what tf32 and float16 keep of the 24 significant bits of a float32
BITS = 11
LIFT = np.float32(2.0**14)


def cut(x, bits=BITS):
    """x [float32] without all but its first bits: rounded toward zero."""
    return truncate(x, ieee(8, bits))


def nearest(x, bits=BITS):
    """x [float32] to the nearest number of so many bits.

    Of two equally near ones to the even one; cvt.rna, on a GPU, takes the larger.
    """
    return round_to(x, ieee(8, bits))


def half(x):
    """x [float32] as float16 holds x times 2^14; from 4 on it is infinite."""
    return round_to(x * LIFT, "fp16") / LIFT


ROUNDINGS = {"tf32, cut off": cut, "tf32, nearest": nearest, "fp16": half}


def split(x, rounding):
    """(hi, lo): x rounded, and what is left of it, rounded too."""
    hi = rounding(x)
    return hi, rounding(x - hi)


def product(a, b, rounding, products=3, sums=np.float32):
    """a b, for float32 matrices [..., m, k] [..., k, n] with entries of at most 1.

    Args:
        products: 1: hi hi. 2: lo hi + hi hi. 3: and hi lo. 4: and lo lo.
        sums: the type that products are summed in.
    """
    (a1, a2), (b1, b2) = (
        [part.astype(sums) for part in split(np.asarray(x, np.float32), rounding)] for x in (a, b)
    )
    # small terms first
    terms = (a1 @ b1, a2 @ b1, a1 @ b2, a2 @ b2)[:products]
    return sum(reversed(terms[:-1]), terms[-1])


def updater(rounding, products):
    """An update for `right_looking`: C <- Q^T C in place, its two large products made of pairs."""

    def times(a, b):
        return torch.from_numpy(product(a.numpy(), b.numpy(), rounding, products))

    def update(V, T, C):
        Z = T.mT @ times(V.mT, C)
        # T may be large, and so Z; a product wants entries of at most 1
        s = power_of_two(-exponent_of(Z.flatten(1)).clamp(min=0), Z.dtype)[:, None, None]
        C -= times(V, s * Z) / s

    return update


def by_column(A):
    """Powers of two [B, 1, n], for each column its own: none is longer than 1 with it."""
    B, m, n = A.shape
    e = exponent_of(A.mT.reshape(B * n, m)) + half_log2(m)
    return power_of_two(-e.clamp(max=126), A.dtype).view(B, 1, n)


def by_matrix(A):
    """The same with one power of two a matrix, the least of them. [B, 1, 1]"""
    return by_column(A).amin(-1, keepdim=True)


def geqrf(A, rounding, products=3, *, nb=32, scale=by_column):
    """Stage 3 with updates made of pairs; its panels are those of stage 3, in float32."""
    return s03_blocked.right_looking(
        A, nb, s03_blocked.panel, updater(rounding, products), scale=scale
    )
