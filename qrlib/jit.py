"""Triton on this machine: imported, or its absence explained; interpreted kernels made compilable.

With TRITON_INTERPRET=1 every @triton.jit function, those of triton.language too, is wrapped for the
interpreter, and running one leaves some names of triton.language replaced. `compilable` undoes both
for the time of a compilation, so that one process can run a kernel and compile it. The interpreter
calls the function of a `tl.reduce` once an element, prepares the whole language for every call of a
kernel's helper, and works out a type for every number; `quick_reductions` has it reduce whole
tiles, prepare once, and remember types.
"""

import platform
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from types import ModuleType

import numpy as np

from qrlib.doctor import ELSEWHERE, TRITON_PIP


def import_triton():
    """The module triton.

    Raises:
        RuntimeError: it cannot be imported here; the message says what to do.
    """
    try:
        import triton
    except ImportError as error:
        todo = ELSEWHERE.get(platform.system(), f"run `{TRITON_PIP}`")
        raise RuntimeError(f"this needs Triton, which does not import ({error}); {todo}") from error
    return triton


@contextmanager
def compilable(kernel):
    """The kernel as the compiler wants it, and for so long all that it calls as well."""
    triton = import_triton()
    if not interpreted(kernel):
        yield kernel
        return
    _restore_language()
    with ExitStack() as stack:
        for where, name, jitted in _interpreted(kernel.fn):
            stack.enter_context(put(where, name, jitted))
        stack.enter_context(triton.knobs.runtime.scope())
        triton.knobs.runtime.interpret = False
        yield _as_jit(kernel)


@contextmanager
def put(where, name, value):
    """A name of a module's dictionary, or of a class, has another value for a while."""
    put = partial(setattr, where) if isinstance(where, type) else where.__setitem__
    before = vars(where)[name] if isinstance(where, type) else where[name]
    put(name, value)
    try:
        yield
    finally:
        put(name, before)


def interpreted(kernel):
    """Whether a kernel goes through the interpreter, which was decided when it was defined."""
    return not isinstance(kernel, import_triton().JITFunction)


def as_jit(kernel):
    """A kernel's own JITFunction, though it be wrapped for the interpreter."""
    return _as_jit(kernel) if interpreted(kernel) else kernel


@cache
def _as_jit(interpreted):
    return import_triton().JITFunction(interpreted.fn, **interpreted.kwargs)


def _interpreted(fn):
    """(where, name, for the compiler) of all interpreted functions of the language and under fn."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    language = [vars(m) for name, m in sys.modules.items() if name.startswith(tl.__name__)]
    for where in language:
        for name, value in list(where.items()):
            if isinstance(value, InterpretedFunction):
                yield where, name, _as_jit(value)
    for name, value in list(vars(tl.tensor).items()):
        # x.sum() goes through a wrapper, which holds what it calls
        held = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        if held and isinstance(held[0], InterpretedFunction):
            yield tl.tensor, name, _as_jit(held[0])
    seen, ahead = {id(where) for where in language}, [fn]
    while ahead:
        fn = ahead.pop()
        named = [fn.__globals__.get(name) for name in fn.__code__.co_names]
        for where in [fn.__globals__, *(vars(m) for m in named if isinstance(m, ModuleType))]:
            for name in set(fn.__code__.co_names) & set(where):
                value, key = where[name], (id(where), name)
                if isinstance(value, InterpretedFunction) and not {id(where), key} & seen:
                    seen.add(key)
                    ahead.append(value.fn)
                    yield where, name, _as_jit(value)


@contextmanager
def quick_reductions():
    """In here the interpreter takes a tenth of the time or less, with the same loads and stores.

    A `tl.reduce` goes in halves, x[:h] and x[h:] at once, then again: the sums are those of a tree,
    in another order than element by element; as on a GPU, but not in the order of any one of them.
    """
    triton = import_triton()
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang

    def prepare_once(fn):
        used = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if used and all(module.load.__module__ == interpreter.__name__ for module in used):
            return interpreter._LangPatchScope()
        return prepare(fn)

    with (
        put(vars(interpreter), "_patch_lang", prepare_once),
        put(interpreter.ReduceOps, "generic_reduce", _reduce_in_halves),
        _remembered_types() if triton.knobs.runtime.interpret else nullcontext(),
    ):
        yield


@contextmanager
def _remembered_types():
    """What a tile is told by its type, and a type by its shape, is worked out once."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    new_type, new_tensor = tl.block_type.__init__, tl.tensor.__init__
    broadcast, np_dtype = TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype
    of_shape, of_type, of_number = {}, {}, {}

    def sizes(shape):
        return tuple(getattr(size, "value", size) for size in getattr(shape, "values", shape))

    # by names, for a type that has an equal may have no hash
    def init_type(self, element_ty, shape):
        own = element_ty.name, sizes(shape)
        if own not in of_shape:
            new_type(self, element_ty, shape)
            of_shape[own] = dict(vars(self))
        vars(self).update(of_shape[own])

    def init_tensor(self, handle, type):
        if type.name not in of_type:
            new_tensor(self, None, type)
            of_type[type.name] = dict(vars(self))
        vars(self).update(of_type[type.name], handle=handle)

    def broadcast_unlike(self, lhs, rhs):
        blocks = lhs.type.is_block() and rhs.type.is_block()
        alike = blocks and sizes(lhs.type.shape) == sizes(rhs.type.shape)
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    def np_dtype_of(type):
        own = type.scalar.name
        if own not in of_number:
            of_number[own] = np_dtype(type.scalar)
        return of_number[own]

    with (
        put(tl.block_type, "__init__", init_type),
        put(tl.tensor, "__init__", init_tensor),
        put(TritonSemantic, "broadcast_impl_value", broadcast_unlike),
        put(vars(interpreter), "_get_np_dtype", np_dtype_of),
    ):
        yield


def _reduce_in_halves(self, inputs):
    """For ReduceOps.generic_reduce. A length is a power of two, as every one of a tile is."""
    ndim = inputs[0].handle.data.ndim
    # the axis first; without one, all that the tile has
    parts = [
        x.handle.data.ravel() if self.axis is None else np.moveaxis(x.handle.data, self.axis, 0)
        for x in inputs
    ]
    while parts[0].shape[0] > 1:
        h = parts[0].shape[0] // 2
        halves = [
            self.to_tensor(part[at], x.dtype)
            for at in (slice(h), slice(h, None))
            for part, x in zip(parts, inputs)
        ]
        combined = self.combine_fn.fn(*halves)
        combined = combined if isinstance(combined, tuple) else (combined,)
        parts = [np.broadcast_to(x.handle.data, parts[0][:h].shape) for x in combined]
    parts = [part[0] for part in parts]
    if self.keep_dims:
        axes = tuple(range(ndim)) if self.axis is None else self.axis
        parts = [np.expand_dims(part, axes) for part in parts]
    return [self.to_tensor(part, x.dtype) for part, x in zip(parts, inputs)]


def _restore_language():
    """Undo what calling an interpreted function leaves behind in triton.language.core.

    The public names are whole in triton.language itself; a replacement of another keeps the
    original as its default argument `member`.
    """
    import triton.language as tl

    for name, value in list(vars(tl.core).items()):
        if name == "math" or name.startswith("__"):
            continue
        if name in vars(tl):
            setattr(tl.core, name, vars(tl)[name])
        else:
            original = (getattr(value, "__kwdefaults__", None) or {}).get("member")
            if original is not None and value.__module__ == "triton.runtime.interpreter":
                setattr(tl.core, name, original)
