"""A batch spread over several GPUs: each rank factors the matrices it has, and nothing is sent.

The functions of the door take a DTensor apart themselves, so that it costs nothing where there is
none; the operators behind them, which nobody has to call, have a rule by which torch does it.
"""

import sys
from functools import wraps


def on_shards(function):
    """The function, for DTensors too whose batch is sharded or replicated.

    Its results have the placements of its arguments. A matrix that is itself in parts is refused:
    to gather it costs communication and memory, and is for the caller to ask for.
    """

    @wraps(function)
    def call(*args, **kwargs):
        module = sys.modules.get("torch.distributed.tensor")
        if module is not None:
            given = [X for X in (*args, *kwargs.values()) if isinstance(X, module.DTensor)]
            if given:
                return _on_shards(function, given[0], args, kwargs)
        return function(*args, **kwargs)

    return call


def _on_shards(function, A, args, kwargs):
    from torch import Tensor
    from torch.distributed.tensor import DTensor

    mesh, placements = A.device_mesh, A.placements
    batch = A.shape[:-2]
    _check(placements, len(batch))
    if kwargs.get("out") is not None:
        raise TypeError("out= is for plain tensors; got DTensors; take the result, or to_local()")

    def local(X):
        if not isinstance(X, Tensor):
            return X
        if not isinstance(X, DTensor) or (X.device_mesh, X.placements) != (mesh, placements):
            got = f"{X.placements} on {X.device_mesh}" if isinstance(X, DTensor) else "none"
            raise ValueError(
                f"all tensors must have the placements {placements} on {mesh} of the first; got "
                f"{got}; use distribute_tensor for a tensor, .redistribute() for a DTensor"
            )
        return X.to_local()

    def placed(X):
        shape = batch + X.shape[len(batch) :]
        stride = X.new_empty(shape, device="meta").stride()
        X = X.contiguous()
        return DTensor.from_local(X, mesh, placements, run_check=False, shape=shape, stride=stride)

    found = function(*map(local, args), **{name: local(X) for name, X in kwargs.items()})
    if isinstance(found, Tensor):
        return placed(found)
    # QR takes its fields one by one, a tuple all at once
    make = getattr(type(found), "_make", tuple)
    return make(map(placed, found))


def _check(placements, batch):
    for placement in placements:
        # what is partial has no dimension
        if not placement.is_replicate() and getattr(placement, "dim", batch) >= batch:
            raise ValueError(
                f"a DTensor must be replicated, or sharded on one of its {batch} batch dimensions, "
                f"for a rank factors whole matrices; got {placement}; use .redistribute()"
            )


def register():
    """Give torch the rule for torch.ops.qrlib: it gathers matrices that are in parts.

    Done with the first tensor that qrlib gets, if torch.distributed.tensor is imported by then.
    """
    from torch import ops
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def rule(results):
        def placements(*args):
            batch = len(args[0].shape) - 2
            return [
                ([where] * results, [where if hasattr(X, "placements") else None for X in args])
                for where in (*map(Shard, range(batch)), Replicate())
            ]

        return placements

    for name, results in (("geqrf", 2), ("householder_product", 1), ("ormqr", 1)):
        register_sharding(getattr(ops.qrlib, name).default)(rule(results))
