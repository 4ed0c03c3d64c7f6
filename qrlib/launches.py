"""Every kernel start of a stage, on paper: which kernel, grid, types and constants, without a GPU.

A stage declares nothing for this. Its geqrf is called with tensors that have a shape and strides
but no numbers, and each kernel start is noted instead of made. What is noted is therefore what
would be launched, on the chip of the target with its number of multiprocessors. A stage's Python
must not look at values for this to work; on a GPU it must not either, or the host would wait.
"""

import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from qrlib.devices import DEVICES
from qrlib.jit import as_jit, import_triton, put


def _arch(device):
    major, minor = device.capability.split(".")
    return f"sm_{major}{minor}{'a' * (int(major) >= 9)}"


# the newest of a capability stands for it: H200 for sm_90a
TARGETS = {_arch(device): device for device in DEVICES.values()}


@dataclass(frozen=True)
class Config:
    """What decides the machine code of a kernel, as Triton's own compile tool writes it.

    kernel: a @triton.jit function.
    signature: parameter -> type, as in "*fp32", "i32", "fp32"; "*fp32:16" and "i32:16" where the
        address or the number divides by 16; "1" where it is 1, and "None" where it is None.
    constexprs: parameter -> value. options: num_warps, num_stages and others of the compiler.
    """

    kernel: object
    signature: dict
    constexprs: dict
    options: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.kernel.fn.__name__

    @property
    def key(self):
        """Equal for two that are the same machine code."""
        parts = (self.signature, self.constexprs, self.options)
        return (self.kernel.fn, *(tuple(sorted(p.items(), key=str)) for p in parts))

    def __str__(self):
        shown = {**self.constexprs, **self.options}
        return f"{self.name} " + " ".join(f"{k}={v}" for k, v in shown.items())


@dataclass(frozen=True)
class Launch:
    """A kernel start: its Config, and its grid."""

    config: Config
    grid: tuple[int, ...]


def launches(stage, B, m, n, *, target="sm_100a", **options):
    """Every kernel start of a stage's geqrf for a batch [B, m, n], in order, without running it.

    Args:
        stage: one of STAGES, or a module with a geqrf. target: the chip it is to believe in.
        options: of geqrf, as in nb=16.

    Returns:
        list of Launch; empty for a stage without kernels of its own.
    """
    import_triton()
    import torch

    from qrlib.stages import stage as module

    started = []
    module = module(stage) if isinstance(stage, str) else stage
    with _on_paper(device_of(target), started):
        module.geqrf(torch.empty(B, m, n, device="meta"), **options)
    return started


def memory(geqrf, A, *, target="sm_90a"):
    """Bytes that geqrf holds at its highest, beside A [B, m, n], without allocating them."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    alive, most = [], 0

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal most
            returned = func(*args, **(kwargs or {}))
            made = returned if isinstance(returned, tuple | list) else (returned,)
            alive[:] = [X for X in alive if X() is not None]
            alive.extend(weakref.ref(X) for X in made if isinstance(X, torch.Tensor))
            storages = [X().untyped_storage() for X in alive]
            # views share their storage
            held = {s._cdata: s.nbytes() for s in storages if s._cdata != given}
            most = max(most, sum(held.values()))
            return returned

    with _on_paper(device_of(target), []):
        on_paper = torch.empty_strided(A.shape, A.stride(), dtype=A.dtype, device="meta")
        given = on_paper.untyped_storage()._cdata
        with Counting():
            geqrf(on_paper)
    return most


def device_of(target):
    """The Device that stands for a target; ValueError if there is none."""
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}; got {target!r}")
    return TARGETS[target]


@contextmanager
def _on_paper(device, started):
    """Kernel starts are noted and not made; tensors without memory are taken for the device's."""
    import torch
    from torch.overrides import TorchFunctionMode
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    answers = {
        torch.Tensor.device.__get__: torch.device("cuda", 0),
        torch.Tensor.is_cuda.__get__: True,
    }

    class Paper(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in answers:
                return answers[func]
            kwargs = dict(kwargs or {})
            if kwargs.get("device") is not None:
                kwargs["device"] = "meta"
            return func(*args, **kwargs)

    def start(kernel, *args, grid, warmup, **kwargs):
        started.append(_started(kernel, grid, args, kwargs))

    major, minor = map(int, device.capability.split("."))
    properties = SimpleNamespace(
        name=device.part,
        major=major,
        minor=minor,
        multi_processor_count=device.sms,
        shared_memory_per_block_optin=device.shared_block,
        shared_memory_per_multiprocessor=device.shared_sm,
        L2_cache_size=device.l2,
    )
    with ExitStack() as stack:
        stack.enter_context(put(JITFunction, "run", start))
        stack.enter_context(put(InterpretedFunction, "run", start))
        told = {
            "get_device_properties": properties,
            "get_device_capability": (major, minor),
            "get_device_name": device.part,
            "current_device": 0,
            # where launches are put into a graph, they are not on paper
            "is_current_stream_capturing": False,
        }
        for name, answer in told.items():
            says = lambda *_, answer=answer: answer  # noqa: E731
            stack.enter_context(put(vars(torch.cuda), name, says))
        stack.enter_context(Paper())
        yield


def _started(kernel, grid, args, kwargs):
    """A Launch, with the types that Triton would specialise the kernel for."""
    parameters = as_jit(kernel).params
    given = dict(zip([p.name for p in parameters], args, strict=False)) | kwargs
    grid = grid(given) if callable(grid) else grid
    signature, constexprs = {}, {}
    for p in parameters:
        value = given.pop(p.name, p.default)
        if p.is_constexpr:
            constexprs[p.name] = value
        else:
            aligned = not (p.do_not_specialize or p.do_not_specialize_on_alignment)
            signature[p.name] = _type(value, not p.do_not_specialize, aligned)
    # what is no parameter is an option
    return Launch(Config(kernel, signature, constexprs, given), tuple(map(int, grid)))


def _type(value, specialised, aligned):
    """A type as in Config.signature."""
    from triton.runtime.jit import mangle_type

    if value is None:
        return "None"
    divides = False
    if hasattr(value, "data_ptr"):
        # memory begins at a multiple of 16 bytes, so the offset decides
        divides = value.storage_offset() * value.element_size() % 16 == 0
    elif isinstance(value, int) and not isinstance(value, bool):
        if specialised and value == 1:
            return "1"
        divides = value % 16 == 0
    return mangle_type(value) + ":16" * (divides and aligned)
