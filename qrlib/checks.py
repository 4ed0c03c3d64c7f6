"""What may come through a door: arrays and tensors that the stages can work on.

A message says what was expected, what came, and what to do.
"""

import sys

import numpy as np

from qrlib.compact import namespace

DTYPES = ("float32", "float64")
# too few digits to compute in, enough to store
HALF = ("float16", "bfloat16")
PRECISIONS = ("fp32", "fast")


def shape_of(X):
    return tuple(X.shape)


def check_array(name, X, *, gradient=False, half=False):
    """gradient: X may require one. half: it may be of half precision."""
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(X, torch.Tensor)
    if not is_tensor and not isinstance(X, np.ndarray):
        raise TypeError(
            f"{name} must be a torch tensor or a NumPy array; got {type(X).__name__}; "
            f"use torch.as_tensor({name})"
        )
    if not is_tensor and isinstance(X, np.ma.MaskedArray | np.matrix):
        raise TypeError(
            f"{name} must be a plain array; got {type(X).__name__}; use np.asarray({name}), and "
            f"fill what is masked before"
        )
    if str(X.dtype).removeprefix("torch.") not in DTYPES + HALF * half:
        library = "torch" if is_tensor else "np"
        raise TypeError(
            f"{name} must be float32 or float64; got {X.dtype}; "
            + (
                f"{library}.linalg.qr takes complex numbers"
                if "complex" in str(X.dtype)
                else f"convert it first, for example {name}."
                + ("to(torch.float32)" if is_tensor else "astype(np.float32)")
            )
        )
    if is_tensor and X.is_nested:
        raise TypeError(
            f"{name} must be one tensor; got a nested one; factor its parts, which {name}.unbind() "
            "gives, or pad them"
        )
    if is_tensor and X.layout is not torch.strided:
        raise TypeError(f"{name} must be dense; got layout {X.layout}; use {name}.to_dense()")
    if is_tensor and not gradient and differentiated(X):
        raise RuntimeError(no_gradient(name))


def no_gradient(name):
    return (
        f"{name} requires a gradient, and this function has none to give; use qrlib.orthogonalize "
        f"or qrlib.qr in mode 'reduced', which have one, or pass {name}.detach()"
    )


def differentiated(X):
    """Whether a derivative with respect to a tensor is wanted, at any level of torch.func."""
    import torch

    if torch.compiler.is_compiling():
        return X.requires_grad and torch.is_grad_enabled()
    functorch = torch._C._functorch
    while True:
        # a batched tensor says no, whatever it is made of
        if not functorch.is_batchedtensor(X):
            if X.requires_grad and torch.is_grad_enabled():
                return True
            if torch.autograd.forward_ad.unpack_dual(X).tangent is not None:
                return True
        if not functorch.is_functorch_wrapped_tensor(X):
            return False
        X = functorch.get_unwrapped(X)


def check_precision(precision):
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")


def check_matrix(name, X, **may):
    check_array(name, X, **may)
    if X.ndim < 2:
        raise ValueError(
            f"{name} must be [..., m, n]; got shape {shape_of(X)}; "
            f"{name}[:, None] makes one column of a vector"
        )


def check_numbers(name, X):
    """A tensor on "meta" has a shape and nothing to compute with."""
    if not isinstance(X, np.ndarray) and X.is_meta:
        raise ValueError(
            f"{name} must have numbers; got a tensor on {X.device}, which has a shape alone; "
            f"make one with torch.empty_like({name}, device='cpu') and fill it"
        )


def check_same(a, X, b, Y):
    """X and Y: one library, one dtype, one device."""
    for what, of_x, of_y in (
        ("type", namespace(X).__name__, namespace(Y).__name__),
        ("dtype", X.dtype, Y.dtype),
        ("device", X.device, Y.device),
    ):
        if of_x != of_y:
            error = ValueError if what == "device" else TypeError
            raise error(f"{a} and {b} must have the same {what}; got {of_x} and {of_y}")


def check_pair(H, tau):
    check_matrix("H", H)
    check_array("tau", tau)
    check_same("H", H, "tau", tau)
    check_numbers("H", H)
    k = tau.shape[-1] if tau.ndim else None
    if tau.shape[:-1] != H.shape[:-2] or k is None or k > min(H.shape[-2:]):
        raise ValueError(
            "H and tau must be [..., m, n] and [..., k] with the same batch and k <= min(m, n), "
            f"as geqrf returns them; got {shape_of(H)} and {shape_of(tau)}"
        )


def check_out(name, out, shape, **inputs):
    """out: of that shape, of the inputs' library, dtype and device, with memory of its own."""
    check_array(name, out)
    for other, X in inputs.items():
        check_same(name, out, other, X)
    if shape_of(out) != tuple(shape):
        raise ValueError(
            f"{name} must have the shape of the result, {tuple(shape)}; got {shape_of(out)}; "
            "it is not resized: make one of that shape"
        )
    memory = _memory(out)
    if any(n > 1 and step == 0 for n, step in zip(memory.shape, memory.strides)):
        raise ValueError(
            f"{name} must have memory for every number; got one with strides {memory.strides} in "
            "bytes; make one that is not expanded"
        )
    for other, X in inputs.items():
        if _share(memory, _memory(X)):
            raise ValueError(
                f"{name} must have memory of its own; got one that shares some with {other}; "
                "make another one, or leave it out"
            )


def _share(one, two):
    """Whether two arrays have a number in common; yes where that is hard to tell."""
    try:
        return np.shares_memory(one, two, max_work=10**5)
    except np.exceptions.TooHardError:
        return True


def _memory(X):
    """An array where X is, to ask about addresses; on a GPU, too, for nothing is read of it."""
    if isinstance(X, np.ndarray):
        return X
    size = X.element_size()

    class At:
        __array_interface__ = {
            "version": 3,
            "data": (X.data_ptr(), False),
            "shape": tuple(X.shape),
            "strides": tuple(size * step for step in X.stride()),
            "typestr": f"|V{size}",
        }

    return np.asarray(At())
