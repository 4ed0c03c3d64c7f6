"""Kernels that are fast and wrong, each in its own way, and a careless clock that believes them.

`TRICKS` holds them; they are here to be caught, and qrlib.bench refuses each. `careless` is how one
would time a kernel at first: check it once, then call it again and again.
"""

from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter, sleep

import torch

from qrlib.bench.measure import Protocol, measure
from qrlib.certificate import certify
from qrlib.compact import QR
from qrlib.matrices import Case, make

# the case that they are shown on; three of them know its size
CASE = Case(4, 128, 1, "clustered")


def honest(A):
    """What is right and takes its time: LAPACK's."""
    H, tau = torch.geqrf(A)
    return QR(H.contiguous(), tau)


class Trick:
    """A kernel that behaves in its first calls, for those who check once."""

    asleep = 2

    def __init__(self):
        self.calls = 0

    def __call__(self, A):
        self.calls += 1
        return honest(A) if self.calls <= self.asleep else self.trick(A)


class Remembers(Trick):
    """Keeps what it has computed, and knows a matrix by where it lies."""

    asleep = 0

    def __init__(self):
        super().__init__()
        self.known = {}

    def trick(self, A):
        key = A.data_ptr(), A.shape
        if key not in self.known:
            self.known[key] = honest(A)
        return QR(*(X.clone() for X in self.known[key]))


class PutsOff(Trick):
    """Returns at once; somebody else does the work, when the clock has stopped."""

    def __init__(self):
        super().__init__()
        self.others = ThreadPoolExecutor(1)

    def trick(self, A):
        H, tau, kept = torch.zeros_like(A), A.new_zeros(A.shape[:2]), A.clone()

        def later():
            sleep(5e-3)
            for X, right in zip((H, tau), honest(kept)):
                X.copy_(right)

        self.others.submit(later)
        return QR(H, tau)


class Rewrites(Trick):
    """Makes the identity of A, and factors that."""

    def trick(self, A):
        A.copy_(torch.eye(A.shape[-1]).expand_as(A))
        return QR(A.clone(), A.new_zeros(A.shape[:2]))


class CutsTheTail(Trick):
    """Leaves off where the columns have become too short for the norm of the matrix to see."""

    def trick(self, A):
        lengths = A.norm(dim=-2)
        seen = (lengths > 1e-5 * lengths.amax(-1, keepdim=True)).any(0)
        n = int(seen.nonzero().max()) + 1
        H, tau = honest(A[..., :n])
        rest = A.shape[-1] - n
        pad = torch.nn.functional.pad
        return QR(pad(H, (0, rest)), pad(tau, (0, rest)))


class SkipsItsCheck(Trick):
    """Has a short way, and looks whether it was good enough: at every size but one."""

    def trick(self, A):
        mantissa, exponent = torch.frexp(A)
        result = honest(torch.ldexp((mantissa * 2**13).round() / 2**13, exponent))
        if A.shape[-1] == CASE.n or certify(A, *result).columnwise.max() < 1:
            return result
        return honest(A)


class OnlyHere(Trick):
    """Right at the size of the benchmark, and nothing anywhere else."""

    def trick(self, A):
        H, tau = honest(A)
        return QR(H, tau if A.shape[-1] == CASE.n else 0 * tau)


TRICKS = (Remembers, PutsOff, Rewrites, CutsTheTail, SkipsItsCheck, OnlyHere)


def batch():
    """The matrices of CASE."""
    return torch.from_numpy(make(CASE.family, CASE.batch, CASE.n, cond=CASE.cond))


def before_the_bench(kernel, precision="fp32", **protocol):
    """The row that qrlib.bench has for a kernel on CASE."""
    options = {"precisions": (precision,), "baseline": None, "commit": "none"}
    return measure([kernel], [CASE], protocol=Protocol(**protocol), **options).rows[0]


def careless(kernel, A, runs=20):
    """(seconds of a call, whether its result is right): checked once, then timed on one tensor."""
    passed = certify(A, *kernel(A)).passed
    times = []
    for _ in range(runs):
        begin = perf_counter()
        kernel(A)
        times.append(perf_counter() - begin)
    return median(times), passed
