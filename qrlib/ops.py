"""What geqrf and its companions do to tensors [..., m, n], as operators of PyTorch too.

An operator is a name that torch.compile can write into its graph without looking inside. For that
it says in advance which shapes and strides come out: all row-major. It says what vmap does, too:
one more batch dimension. Where nobody is looking, the function itself is called.
"""

import sys
from functools import wraps

import torch

from qrlib import api, sharding
from qrlib.checks import differentiated
from qrlib.compact import flat

_library = torch.library.Library("qrlib", "FRAGMENT")
PLAIN = (torch.Tensor, torch.nn.Parameter)
NO_DERIVATIVE = (
    "qrlib::{} has no derivative; qrlib.orthogonalize and qrlib.qr in mode 'reduced' have, but not "
    "where torch.compile is given torch.func.grad or jvp; there use .backward(), or do not compile"
)


def _operator(schema, fake):
    """Register a function under its own name; what it returns calls the operator or the function.

    schema: of its arguments, tensors first, and results. fake: gives results without numbers.
    """

    def register(function):
        name = function.__name__

        @wraps(function)
        def kernel(*args):
            with torch.cuda.device_of(args[0]):
                return function(*args)

        _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        operator = getattr(torch.ops.qrlib, name).default

        def of_batch(info, dims, *args):
            results = operator(*(_in_front(X, dim, info.batch_size) for X, dim in zip(args, dims)))
            return results, 0 if isinstance(results, torch.Tensor) else (0, 0)

        def refuse(keyset, *args):
            if any(differentiated(X) for X in args if isinstance(X, torch.Tensor)):
                raise RuntimeError(NO_DERIVATIVE.format(name))
            with torch._C._AutoDispatchBelowAutograd():
                return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args)

        _library.impl(name, kernel, "CompositeExplicitAutograd")
        # without this a derivative would be zero, and nobody would say so
        _library.impl(name, refuse, "Autograd", with_keyset=True)
        torch.library.register_fake(operator, fake, lib=_library)
        torch.library.register_vmap(operator, of_batch, lib=_library)

        @wraps(function)
        def call(*args):
            # an operator takes 5 us and more a call, and a small matrix not many more
            return operator(*args) if watched(*args) else kernel(*args)

        return call

    return register


def watched(*args):
    """Whether PyTorch traces, transforms or counts operators, or a tensor does so itself."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or any(isinstance(X, torch.Tensor) and type(X) not in PLAIN for X in args)
    )


def _in_front(X, dim, size):
    if not isinstance(X, torch.Tensor):
        return X
    return X.expand(size, *X.shape) if dim is None else X.movedim(dim, 0)


def _like_geqrf(A, stage, precision="fp32"):
    *batch, m, n = A.shape
    return A.new_empty(A.shape), A.new_empty(*batch, torch.sym_min(m, n))


@_operator("(Tensor A, str stage, str precision='fp32') -> (Tensor, Tensor)", _like_geqrf)
def geqrf(A, stage, precision="fp32"):
    """(H, tau) of A [..., m, n] by the stage of that name, or "auto"."""
    H, tau = api.factor(flat(A), stage, precision)
    m, n = A.shape[-2:]
    return H.reshape(A.shape).contiguous(), tau.reshape(*A.shape[:-2], min(m, n))


@_operator("(Tensor H, Tensor tau) -> Tensor", lambda H, tau: H.new_empty(H.shape))
def householder_product(H, tau):
    """The first n columns of Q, of H [..., m, n] and tau [..., k]."""
    return api.orgqr(flat(H), flat(tau, 1)).reshape(H.shape).contiguous()


@_operator(
    "(Tensor H, Tensor tau, Tensor C, bool transpose) -> Tensor",
    lambda H, tau, C, transpose: C.new_empty(C.shape),
)
def ormqr(H, tau, C, transpose):
    """Q C, or Q^T C, for C [..., m, p]."""
    return api.apply_q(flat(H), flat(tau, 1), flat(C), transpose).reshape(C.shape).contiguous()


# it takes two seconds to import, for those who have no DTensors
if "torch.distributed.tensor" in sys.modules:
    sharding.register()
