"""Updates of few products, in exact rounding: bits are cut where one asks, and errors told. torch.

The loop is `right_looking`, and panels are accurate: only an update is new, C <- Q^T C in place. A
factor that is not cut is a float32. What tensor cores lose when they add is not modelled.
"""

from typing import NamedTuple

import torch

from qrlib.api import ormqr
from qrlib.householder import matmul
from qrlib.stages import s03_blocked
from qrlib.teach.rounded import short

# factors of W = V^T C and of V Z; "T": both factors of the small product between them, T^T W
ONE = ("V in W", "C in W", "V in VZ", "Z in VZ")
PLACES = (*ONE, "T")
# what two products leave out of three: V is short in both
TWO = ONE[::2]
# float16 has 11 significant bits
CUT = "fp16"


def update(cut):
    """An update whose factors have 11 bits at the places of PLACES that are in `cut`."""

    def at(place, x):
        return short(x, CUT) if place in cut else x

    def update(V, T, C):
        W = matmul(at("V in W", V).mT, at("C in W", C))
        Z = matmul(at("T", T).mT, at("T", W))
        C -= matmul(at("V in VZ", V), at("Z in VZ", Z))

    return update


def geqrf(A, cut=ONE, *, nb=64):
    """A = Q R by stage 3 with updates that are cut. A: [B, m, n], torch; read. Returns QR(H, tau).

    Args:
        cut: places of PLACES. ONE is one product of float16 numbers in place of three, TWO is two.
    """
    if wrong := set(cut) - set(PLACES):
        raise ValueError(f"cut must be places of {', '.join(PLACES)}; got {sorted(wrong)}")
    return s03_blocked.right_looking(A, nb, s03_blocked.panel, update(cut))


def terms(cut):
    """(products for W, products for V Z): three of halves, one fewer for each factor cut."""
    cut = set(cut)
    return 3 - len(cut & set(ONE[:2])), 3 - len(cut & set(ONE[2:]))


class Errors(NamedTuple):
    """Of R - Q^T A for a batch, in units of m*eps, [B] each, float64.

    factor: the largest column sum of absolute values, over that of A: what the gate is about.
    length: the largest |r_j - Q^T a_j|_2 / |a_j|_2 of a column.
    """

    factor: torch.Tensor
    length: torch.Tensor


def errors(A, H, tau):
    """Errors of H, tau, from float64."""
    unit = A.shape[-2] * torch.finfo(torch.float32).eps
    A, H, tau = A.double(), H.double(), tau.double()
    wrong = ormqr(H, tau, A, transpose=True) - H.triu()
    length = wrong.norm(dim=-2) / A.norm(dim=-2)
    # a column of zeros has none
    length = torch.where(A.norm(dim=-2) == 0, 0.0, length)
    return Errors(_norm1(wrong) / _norm1(A) / unit, length.amax(-1) / unit)


def _norm1(A):
    return A.abs().sum(-2).amax(-1)


def spikes(A):
    """sqrt(m) |a|_2 / |a|_1 of each column a, [B, n], float64; 0 for a column of zeros.

    1 where all its entries are of one size, 1.25 for normal numbers, sqrt(m) for a single entry.
    """
    A = A.double()
    length, size = A.norm(dim=-2), A.abs().sum(-2)
    return torch.where(size == 0, 0.0, A.shape[-2] ** 0.5 * length / size)
