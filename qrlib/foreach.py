"""The functions of the door for lists: matrices of one shape, dtype and device make one call.

A list may mix shapes, dtypes, devices, batches, tensors and NumPy arrays: each kind is a group, and
results come in the order of the list. Those of a group share memory, each its own part of it; to
keep one and let the others go, or to change one that has a derivative, clone it. A group is copied
together first; one member alone is not.
"""

import sys
from collections.abc import Iterable
from functools import partial

import numpy as np

from qrlib import api
from qrlib.compact import flat, namespace

__all__ = ["geqrf", "orthogonalize", "qr"]


def geqrf(As, **options):
    """A = Q R in compact form, for every A of a list.

    Args:
        As: tensors or arrays [..., m, n], each as for qrlib.geqrf. options: of qrlib.geqrf.

    Returns:
        list of QR(H, tau).

    Raises:
        as qrlib.geqrf, with a note that says which members; TypeError for what is no list.
    """
    return _grouped(partial(api.geqrf, **options), As)


def qr(As, mode="reduced", **options):
    """A = Q R with Q and R formed, for every A of a list.

    Args:
        As: as for geqrf. mode, options: of qrlib.qr.

    Returns:
        list of (Q, R), or of R for mode "r".
    """
    return _grouped(partial(api.qr, mode=mode, **options), As)


def orthogonalize(As, **options):
    """Q of the reduced A = Q R, for every A of a list.

    Args:
        As: as for geqrf. options: of qrlib.orthogonalize.

    Returns:
        list of Q.
    """
    return _grouped(partial(api.orthogonalize, **options), As)


def _grouped(function, As):
    """[function(A) for A in As], by one call for each kind."""
    if not isinstance(As, Iterable) or hasattr(As, "shape"):
        raise TypeError(
            f"As must be a list of matrices; got {type(As).__name__}; a batch in one tensor goes "
            "to the function of the same name in qrlib"
        )
    As = list(As)
    groups = {}
    for i, A in enumerate(As):
        groups.setdefault(_kind(A) or i, []).append(i)
    results = [None] * len(As)
    for members in groups.values():
        try:
            found = _together(function, [As[i] for i in members])
        except Exception as error:
            error.add_note("in the list: " + ", ".join(f"As[{i}]" for i in members))
            raise
        for i, result in zip(members, found, strict=True):
            results[i] = result
    return results


def _kind(A):
    """What two have to share to go together; None for what goes alone, if at all."""
    torch = sys.modules.get("torch")
    if type(A) is np.ndarray:
        where = "numpy"
    elif torch and type(A) in (torch.Tensor, torch.nn.Parameter):
        if A.is_nested or A.layout is not torch.strided:
            return None
        where = A.device
    else:
        return None
    return (where, A.dtype, *A.shape[-2:]) if A.ndim >= 2 else None


def _together(function, As):
    """[function(A) for A in As] by one call, all of one kind."""
    if len(As) == 1:
        return [function(As[0])]
    xp = namespace(As[0])
    if all(A.shape == As[0].shape for A in As):
        # one operation for all: to cut a tiny matrix out takes as long as to factor it
        return _members(function(xp.stack(As)))
    parts = [flat(A) for A in As]
    found = function(xp.concatenate(parts))
    results, first = [], 0
    for A, part in zip(As, parts, strict=True):
        rows = slice(first, first + len(part))
        results.append(_part(found, rows, A.shape[:-2]))
        first += len(part)
    return results


def _members(found):
    """What a result says of each index of its first dimension."""
    if isinstance(found, tuple):
        make = getattr(found, "_make", tuple)
        return [make(each) for each in zip(*map(_members, found), strict=True)]
    return list(found)


def _part(found, rows, batch):
    """Those rows of a result, with their own batch dimensions."""
    if isinstance(found, tuple):
        return getattr(found, "_make", tuple)(_part(X, rows, batch) for X in found)
    return found[rows].reshape(*batch, *found.shape[1:])
