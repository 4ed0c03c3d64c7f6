"""Every load and store of a Triton kernel, seen in the interpreter, and what is wrong with them.

    with trace(A=A, out=out) as t:
        kernel[grid](A, out, ...)
    print(t.summary())

Leaving the block raises TraceError if any program

    out of bounds   touched an element outside the tensor it was given (a view's own elements, not
                    those of the storage around it); such a store is dropped, such a load gives NaN
    unwritten       loaded what nothing has written: memory of torch.empty, or a tensor in `poison`
    race            stored an element that another program of the same launch loaded or stored, or
                    stored two values to one element at once
    no barrier      loaded what it had stored itself, with no tl.debug_barrier between

Only what a kernel loads and stores counts; torch's own reads and writes are not seen. Atomics are
counted and checked for bounds and unwritten memory, and take no part in races. Out of bounds is
judged by address: a column too far in a row that is not the last is the first of the next, and
inside. Unwritten memory is known by a bit pattern that only one-byte types could hold by chance, so
those are not checked.

Where it is hooked: triton.runtime.interpreter has one builder object, through whose methods every
load, store, atomic and barrier of every program goes, block pointers and descriptors included, and
one method that takes the arguments of a launch. `_hooks` names them all; they are put back on
leaving. Arguments get a number in the unused top bits of their address, so that a pointer says
whose it is however far it has gone astray. Triton 3.6 to 3.9; tensors on the CPU.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch

from qrlib.accesses import TAG_BIT, Trace, TraceError, pattern
from qrlib.jit import import_triton, quick_reductions

__all__ = ["Trace", "TraceError", "trace"]

ALLOCATORS = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)


def _poisoned(tensor):
    """The tensor, its elements marked as written by nobody."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    if integer and tensor.device.type == "cpu":
        tensor.detach().view(integer).fill_(pattern(integer.itemsize))
    return tensor


@contextmanager
def trace(*, check=True, ignore=(), poison=(), **tensors):
    """Record what kernels launched in the block load and store.

    Args:
        check: raise TraceError on leaving, if there is a fault; False to look at `faults` instead.
        ignore: kinds of fault that do not raise.
        poison: names of tensors that hold nothing yet; they are overwritten with NaN.
        tensors: by the names they are to have. Others get the name of the kernel's parameter.

    Returns:
        Trace.

    Raises:
        RuntimeError: Triton's interpreter is not on.
        TraceError: see above.
    """
    if not import_triton().knobs.runtime.interpret:
        raise RuntimeError(
            "kernels are traced in Triton's interpreter, which is off; "
            "set TRITON_INTERPRET=1 before triton and the kernels are imported"
        )
    t = Trace(tensors)
    for name in poison:
        if name not in tensors:
            raise ValueError(f"poison must name traced tensors; got {name!r}")
        _poisoned(tensors[name])
    with ExitStack() as stack:
        stack.enter_context(quick_reductions())
        for where, name in ALLOCATORS:
            allocate = getattr(where, name)
            stack.enter_context(_replaced(where, name, _poisoning(allocate)))
        for where, name, hook in _hooks(t):
            stack.enter_context(_replaced(where, name, hook))
        yield t
    if check:
        t.check(ignore)


@contextmanager
def _replaced(where, name, value):
    before = vars(where).get(name)
    setattr(where, name, value)
    try:
        yield
    finally:
        delattr(where, name)
        if before is not None:
            setattr(where, name, before)


def _poisoning(allocate):
    return lambda *args, **kwargs: _poisoned(allocate(*args, **kwargs))


def _hooks(t):
    """[(object, method, replacement)]: all that is changed in Triton while a trace runs."""
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import TensorWrapper
    from triton.tools.tensor_descriptor import TensorDescriptor

    builder = interpreter.interpreter_builder
    if "create_masked_load" in vars(builder):
        raise RuntimeError("a trace is running already; leave its block before another is entered")
    grid, program, barrier = builder.set_grid_dim, builder.set_grid_idx, builder.create_barrier
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
    handle = interpreter.TensorHandle

    class Numbered(TensorWrapper):
        """A tensor whose address has its argument's number on top."""

        def data_ptr(self):
            # a tensor's own data_ptr is 0 where it has no element
            memory = self.base.untyped_storage().data_ptr()
            offset = self.base.storage_offset() * self.base.element_size()
            return memory + offset | self.number << TAG_BIT

    def numbered(name, value):
        if isinstance(value, TensorDescriptor):
            return replace(value, base=numbered(name, value.base))
        if isinstance(value, tuple):
            parts = [numbered(f"{name}.{i}", part) for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if not hasattr(value, "data_ptr"):
            return value
        tensor = getattr(value, "base", value)
        wrapped = Numbered(tensor, value.dtype)
        wrapped.number = t.argument(name, tensor)
        return wrapped

    def init_args_hst(executor, args, kwargs):
        # the original copies what is not on the CPU
        t.begin(executor.fn.__name__)
        names = executor.arg_names
        return (
            [numbered(name, value) for name, value in zip(names, args)],
            {name: numbered(name, value) for name, value in kwargs.items()},
        )

    def set_grid_dim(*sizes):
        t.grid(*sizes)
        return grid(*sizes)

    def set_grid_idx(*index):
        t.program(*index)
        return program(*index)

    def create_barrier():
        t.barrier()
        return barrier()

    def lanes(op, pointers, mask):
        shape = pointers.data.shape
        active = np.broadcast_to(np.asarray(mask.data, bool), shape).ravel()
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        addresses, ok, parts = t.access(op, pointers.data.ravel(), itemsize, active)
        to = handle(addresses.reshape(shape), pointers.dtype)
        return to, handle(ok.reshape(shape), tl.int1), active & ~ok, parts

    def create_masked_load(pointers, mask, *rest, **options):
        to, ok, refused, parts = lanes("load", pointers, mask)
        result = load(to, ok, *rest, **options)
        if refused.any():
            data = result.data.copy()
            data.view(f"u{data.itemsize}")[refused.reshape(data.shape)] = pattern(data.itemsize)
            result.data = data
        t.loaded("load", parts, result.data.ravel())
        return result

    def create_masked_store(pointers, value, mask, *rest, **options):
        to, ok, _, parts = lanes("store", pointers, mask)
        result = store(to, value, ok, *rest, **options)
        t.stored(parts, np.broadcast_to(value.data, pointers.data.shape).ravel())
        return result

    def create_atomic_rmw(what, pointers, value, mask, *rest):
        to, ok, _, parts = lanes("atomic", pointers, mask)
        result = rmw(what, to, value, ok, *rest)
        t.loaded("atomic", parts, result.data.ravel())
        return result

    def create_atomic_cas(pointers, expected, value, *rest):
        everywhere = handle(np.ones(pointers.data.shape, bool), tl.int1)
        to, _, refused, parts = lanes("atomic", pointers, everywhere)
        if refused.any():
            # it has no mask that could leave lanes out
            t.check()
        result = cas(to, expected, value, *rest)
        t.loaded("atomic", parts, result.data.ravel())
        return result

    hooks = {
        "set_grid_dim": set_grid_dim,
        "set_grid_idx": set_grid_idx,
        "create_barrier": create_barrier,
        "create_masked_load": create_masked_load,
        "create_masked_store": create_masked_store,
        "create_atomic_rmw": create_atomic_rmw,
        "create_atomic_cas": create_atomic_cas,
    }
    return [
        (interpreter.GridExecutor, "_init_args_hst", init_args_hst),
        *((builder, name, hook) for name, hook in hooks.items()),
    ]
