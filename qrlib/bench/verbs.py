"""What is timed besides stages, by name: how it is called, and what is asked of it."""

from collections.abc import Callable
from typing import NamedTuple

import torch

import qrlib
from qrlib.bench.judge import COMPACT, Task, triangular_product
from qrlib.certificate import of_product

_Q = {"Q": lambda B, m, n: (B, m, min(m, n))}
FORMED = Task("A = Q R", _Q | {"R": lambda B, m, n: (B, min(m, n), n)}, triangular_product)
BASIS = Task("A = Q R", _Q, of_product)
PRODUCT = Task(
    "Q of (H, tau)",
    _Q,
    lambda A, Q: of_product(A, Q, qrlib.unpack_r(qrlib.geqrf(A).H)),
    qrlib.geqrf,
)


class Verb(NamedTuple):
    """call: what the task gives -> what it asks for."""

    call: Callable
    task: Task


def _listed(A):
    """A list in and a list out; as one tensor again, which takes a little more, for the judge."""
    return torch.stack(qrlib.foreach.orthogonalize(A.unbind()))


VERBS = {
    "torch.linalg.qr": Verb(torch.linalg.qr, FORMED),
    "qr": Verb(qrlib.qr, FORMED),
    "orthogonalize": Verb(qrlib.orthogonalize, BASIS),
    "geqrf": Verb(qrlib.geqrf, COMPACT),
    "householder_product": Verb(lambda given: qrlib.householder_product(*given), PRODUCT),
    "foreach.orthogonalize": Verb(_listed, BASIS),
}
