"""Every kernel that Triton starts comes by here: to be noted, or to be compiled and not started."""

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from qrlib.bench.roles import cost
from qrlib.jit import as_jit, import_triton, put


class Start(NamedTuple):
    """A kernel start: name and constants; bytes and flops as in roles.cost, None where not known.

    threads, shared: of a program, and bytes of shared memory; None where nothing was compiled.
    captured: it became a part of a CUDA graph.
    """

    name: str
    constants: dict
    threads: int | None
    shared: int | None
    bytes: int | None
    flops: dict | None
    captured: bool


@contextmanager
def starts(each):
    """In here each(run, kernel, args, kwargs) is called in place of a start; run is the start."""
    import_triton()
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    def seen(run):
        return lambda kernel, *args, **kwargs: each(partial(run, kernel), kernel, args, kwargs)

    with ExitStack() as stack:
        for kind in (JITFunction, InterpretedFunction):
            stack.enter_context(put(kind, "run", seen(kind.run)))
        yield


def noted(found):
    """For `starts`: make them all, and append a Start for each to a list."""
    import torch

    def each(run, kernel, args, kwargs):
        compiled = run(*args, **kwargs)
        parameters = as_jit(kernel).params
        given = {p.name: p.default for p in parameters}
        given |= dict(zip(given, args, strict=False)) | kwargs
        name, made = kernel.fn.__name__, getattr(compiled, "metadata", None)
        found.append(
            Start(
                name,
                {p.name: given[p.name] for p in parameters if p.is_constexpr},
                made and 32 * made.num_warps,
                made and made.shared,
                *cost(name, given),
                torch.cuda.is_available() and torch.cuda.is_current_stream_capturing(),
            )
        )
        return compiled

    return each
