"""What an answer is held against: type, shape, entries, certificate. Each raises Wrong, or not."""

import inspect
import math
import numbers
import tracemalloc

import numpy as np

from qrlib.certificate import certify
from qrlib.teach.exercises.guard import Wrong, bits, brief


def several(value, names):
    """A tuple or list with one part for each name."""
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise Wrong(f"It must give {len(names)} things, {_listed(names)}; got {kind(value)}.")
    return value


def number(name, value):
    """A real number as a float; NaN and infinity are numbers too."""
    real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if not real and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not real:
        raise Wrong(f"{name} must be a number; got {kind(value)}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def array(name, value, like, shape=None):
    """An array of the type and dtype of `like`, and of its shape when none is given."""
    shape = tuple(like.shape if shape is None else shape)
    if type(value) is not type(like):
        want = "a NumPy array" if isinstance(like, np.ndarray) else "a torch tensor"
        raise Wrong(f"{name} must be {want}; got {kind(value)}.")
    if tuple(value.shape) != shape:
        raise Wrong(f"{name} must have shape {list(shape)}; got {list(value.shape)}.")
    if value.dtype != like.dtype:
        raise Wrong(
            f"{name} must be {_dtype(like)} as the input is; got {_dtype(value)}.",
            "Make new arrays with zeros_like, or give zeros the dtype of the input.",
        )
    return value


def finite(name, value, hint=""):
    """No NaN, no infinity."""
    bad = np.argwhere(~np.isfinite(numpy64(value)))
    if len(bad):
        at = tuple(bad[0])
        what = "NaN" if np.isnan(numpy64(value)[at]) else "infinity"
        raise Wrong(f"{name} has {what}{_at(at)}.", hint)


def entries(name, got, expected, *, tol=1e-4, why=""):
    """Entry by entry; the first wrong one is named. `why(index)` may say what belongs there."""
    got, expected = numpy64(got), numpy64(expected)
    scale = max(np.abs(expected).max(initial=0), np.finfo(np.float64).tiny)
    wrong = np.argwhere(~(np.abs(got - expected) <= tol * scale))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        say = why(at) if callable(why) else why
        raise Wrong(f"{name}{_index(at)} is {got[at]:.6g}; expected {expected[at]:.6g}.", say)


def close(a, b, tol=1e-3):
    """Are two numbers or arrays the same, to a relative tolerance?"""
    a, b = numpy64(a), numpy64(b)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= tol * np.abs(b).max(initial=0)))


def certified(A, H, tau, hint=""):
    """(H, tau) is a QR factorization of A, by the certificate."""
    finite("H", H, hint)
    finite("tau", tau, hint)
    found = certify(A, H, tau)
    if not found.passed:
        where = "" if found.factor.ndim == 0 else f", in matrix {list(found.worst)} of the batch"
        failed = [
            f"{name} is {worst:.3g} m*eps, the gate is {gate:g}"
            for name, _, worst, _, gate, ok in found.rows()
            if not ok
        ]
        raise Wrong(f"The certificate fails{where}: {'; '.join(failed)}.", hint)


def nan_stays_home(H_of, A, at):
    """A NaN at entry `at` of matrix 1 leaves the bits of the other results as they are.

    Args:
        H_of: (A, about) -> H, the answer's. A: [3, m, n].
    """
    bad = A.clone()
    bad[(1, *at)] = float("nan")
    clean, H = H_of(A, ""), H_of(bad, "NaN in matrix [1] only")
    if bits(H[::2]) != bits(clean[::2]):
        raise Wrong("A NaN in one matrix has changed the result of its neighbours.")


def takes(function, names):
    """The function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError:
        own = str(inspect.signature(function))
        raise Wrong(f"It must take ({_listed(names)}); yours takes {own}.") from None
    except ValueError:
        # a function written in C may not tell
        return


class Peak:
    """How many bytes NumPy and Python held at most while a block ran: `with Peak() as peak`."""

    def __enter__(self):
        self._others = tracemalloc.is_tracing()
        if not self._others:
            tracemalloc.start()
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *error):
        self.bytes = tracemalloc.get_traced_memory()[1] - self._before
        if not self._others:
            tracemalloc.stop()


def kind(value):
    """A value in a few words: what it is, and how large."""
    if value is None:
        return "None (a function that ends without `return` gives None)"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {brief(value)}"
    if isinstance(value, (tuple, list, dict, set, str)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (bool, int, float, complex)):
        return f"{type(value).__name__} {brief(value)}"
    return f"{type(value).__name__}"


def numpy64(X):
    if hasattr(X, "detach"):
        X = X.detach().cpu().numpy()
    return np.asarray(X, np.float64)


def _dtype(X):
    return str(X.dtype).removeprefix("torch.")


def _at(index):
    return f" at {_index(index)}" if index else ""


def _index(index):
    return f"[{', '.join(str(int(i)) for i in index)}]" if index else ""


def _listed(names):
    return ", ".join(names)
