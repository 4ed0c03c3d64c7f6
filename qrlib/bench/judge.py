"""What came back: certified, and looked at for what a certificate cannot see.

A fault is a sentence; a contestant with one has no time. A note is a sentence too, but what it says
is allowed.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from qrlib.bench.clock import fingerprint
from qrlib.certificate import LAPACK, TASK, of_product, residuals
from qrlib.devices import AXIS

RESIDUALS = ("factor", "orthogonality", "columnwise")
# "fp32": LAPACK's own test, and that of every column by its own length; "fast": the task's gate
LIMITS = {
    "fp32": dict(zip(RESIDUALS, (*LAPACK, LAPACK.factor))),
    "fast": dict(zip(RESIDUALS, TASK)),
}
# a residual is out of line at this multiple of both neighbours', or of this floor (m*eps)
OUT_OF_LINE, FLOOR = 4.0, 0.5
EPS = torch.finfo(torch.float32).eps
# a column that is wrong by this share of its length was not computed
LOST = 0.5
# entries that are certified at once, in float64 and with about ten copies; of matrices AXIS, for
# libraries may have them on an axis of a grid
AT_ONCE = 1 << 26


class Fault(Exception):
    """What was returned is no result."""


class Task(NamedTuple):
    """What is asked of a contestant; two are compared with one another if their purpose is one.

    outputs: {name: (B, m, n) -> shape} of what comes out.
    residuals: (A, *what came out) -> those of certificate.residuals.
    given: A -> what goes in, a tensor or several; making it is not timed.
    """

    purpose: str
    outputs: dict
    residuals: Callable
    given: Callable = lambda A: A


COMPACT = Task(
    "A = Q R, compact",
    {"H": lambda B, m, n: (B, m, n), "tau": lambda B, m, n: (B, min(m, n))},
    residuals,
)


def triangular_product(A, Q, R):
    """certificate.of_product; Fault for an R that is not upper triangular."""
    if R.tril(-1).any():
        raise Fault("R must be zero below its diagonal; it is not")
    return of_product(A, Q, R)


class Run(NamedTuple):
    """One timed call: variant k went in, `out` came out and is held until all is over."""

    k: int
    out: tuple
    spots: tuple
    glance: torch.Tensor
    seen: tuple
    faults: list


def tensors(X):
    """A tuple of tensors of one or several."""
    return (X,) if isinstance(X, torch.Tensor) else tuple(X)


def pair(returned, A, task=COMPACT):
    """(H, tau) of what a stage returned for A, or what a task asks for; Fault if it is not that."""
    found = tensors(returned) if isinstance(returned, torch.Tensor | tuple) else ()
    if len(found) != len(task.outputs):
        raise Fault(f"must return ({', '.join(task.outputs)}); got {type(returned).__name__}")
    for (name, shape), X in zip(task.outputs.items(), found):
        # a subclass may put its work off until somebody looks
        if type(X) is not torch.Tensor:
            raise Fault(f"{name} must be a plain torch.Tensor; got {type(X).__name__}")
        shape = shape(*A.shape)
        if (X.shape, X.dtype, X.device) != (shape, A.dtype, A.device):
            have, want = (
                f"{list(s)} {d} on {w}"
                for s, d, w in ((X.shape, X.dtype, X.device), (shape, A.dtype, A.device))
            )
            raise Fault(f"{name} must be {want}; got {have}")
    return found


def spots(A):
    """Where to look first: indices of entries of A, at random, and no seed tells which."""
    rng = np.random.default_rng()
    return tuple(torch.from_numpy(rng.integers(size, size=256)).to(A.device) for size in A.shape)


def prints(Xs):
    return tuple(map(fingerprint, tensors(Xs)))


def storage(X):
    return X.untyped_storage().data_ptr() if X.numel() else None


def held(k, A, returned, before, where, glance, *, given=None, task=COMPACT, own=False):
    """The Run of a call that has just been timed: what is looked at before anything else goes on.

    Args:
        k: A is variant k. given: what went in, if not A. before: the prints that it had.
        where: spots(A), and glance what was there when the clock stopped: while fingerprints are
            taken, work that was put off might get done.
        own: True when the contestant owns its outputs and may overwrite them: they are copied.
    """
    given = tensors(A if given is None else given)
    out = pair(returned, A, task)
    if own:
        out = tuple(X.clone() for X in out)
    seen = prints(out)
    faults = []
    if prints(given) != before:
        faults.append("the input was overwritten")
    if _memory(given) & _memory(out):
        faults.append("an output shares the memory of the input")
    return Run(k, out, where, glance, seen, faults)


def _memory(Xs):
    return {storage(X) for X in Xs} - {None}


def certificate(A, *found, task=COMPACT):
    """{residual: its largest value over the batch}, in m*eps; inf for NaN or Inf."""
    B, m, n = A.shape
    step = min(max(1, AT_ONCE // max(m * n, 1)), AXIS)
    parts = [
        task.residuals(*(X[b : b + step] for X in (A, *found)))[: len(RESIDUALS)]
        for b in range(0, B, step)
    ]
    # torch's maximum, unlike Python's, lets no NaN escape
    return {
        name: float(torch.cat(each).max()) / (max(m, 1) * EPS)
        for name, each in zip(RESIDUALS, zip(*parts))
    }


def exceeded(found, precision):
    """{residual: a sentence} for those beyond the limits of a precision; NaN is beyond."""
    return {
        name: f"{name} {found[name]:.3g}, the limit is {limit:g}"
        for name, limit in LIMITS[precision].items()
        if not found[name] <= limit
    }


def judge(inputs, runs, precision, task=COMPACT):
    """(the worst certificate, faults, notes) of all the runs of one contestant."""
    worst, counts, memory = dict.fromkeys(RESIDUALS, 0.0), Counter(), set()
    for run in runs:
        counts.update(run.faults)
        now = run.out[0][run.spots]
        if prints(run.out) != run.seen or fingerprint(now) != fingerprint(run.glance):
            counts["the result changed after the clock had stopped"] += 1
        mine = _memory(run.out)
        if mine & memory:
            counts["the output lies in the memory of an earlier one"] += 1
        memory |= mine
        found = certificate(inputs.variant(run.k), *run.out, task=task)
        counts.update(exceeded(found, precision).keys())
        worst = {name: float(np.maximum(worst[name], found[name])) for name in RESIDUALS}
    sentences = exceeded(worst, precision)
    faults = [
        f"{sentences.get(what, what)} ({k} of {len(runs)} runs)" for what, k in counts.items()
    ]
    lost = worst["columnwise"] * inputs.base.shape[1] * EPS
    if "columnwise" in LIMITS[precision] or not LOST < lost:
        return worst, faults, []
    return worst, faults, [f"a column was not computed: {100 * lost:.0f} % of it is wrong"]


def out_of_line(worst, beside):
    """Faults of a shape that is much less accurate than the shapes on both its sides.

    Args:
        worst: the certificate of the shape itself.
        beside: {axis: [certificates of its neighbours on that axis]}.
    """
    faults = []
    for axis, neighbours in beside.items():
        for name in RESIDUALS if neighbours else ():
            usual = max(FLOOR, *(found[name] for found in neighbours))
            if worst[name] > OUT_OF_LINE * usual:
                faults.append(
                    f"{name} {worst[name]:.3g} at this {axis} alone; beside it at most {usual:.3g}"
                )
    return faults
