"""Batches in shards: two processes without a GPU agree with one, and send each other nothing."""

import traceback
from functools import partial

import pytest
import torch
import torch.distributed as dist
from tables import normal
from test_replay import pretend

import qrlib

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch without gloo", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

RANKS = 2
FIRST = Shard(0)
WHOLE = normal(5, 2, 6, 4, dtype=torch.float64)
# five matrices are three and two, two are one and one, one is one and none
PLACED = {
    "first": (WHOLE, FIRST),
    "second": (WHOLE, Shard(1)),
    "one": (WHOLE[:1], Shard(0)),
    "none": (WHOLE[:0], Shard(0)),
    "replicated": (WHOLE, Replicate()),
    "replicated, no batch": (WHOLE[0, 0], Replicate()),
}


def plan(A, of=lambda X: X):
    """A pretended plan of what this rank has of `of(A)`, called with A."""
    local = of(A).to_local() if isinstance(of(A), DTensor) else of(A)
    return qrlib.plan(local.shape, stage="s04_recursive", dtype=A.dtype, device=A.device)(A)


FUNCTIONS = {
    "geqrf": qrlib.geqrf,
    "householder_product": lambda A: qrlib.householder_product(*qrlib.geqrf(A)),
    "ormqr": lambda A: qrlib.ormqr(*qrlib.geqrf(A), A, transpose=True),
    "qr": qrlib.qr,
    "complete": lambda A: qrlib.qr(A, mode="complete", positive_diag=True),
    "r": lambda A: qrlib.qr(A, mode="r"),
    "orthogonalize": lambda A: qrlib.orthogonalize(A=A),
    "half": lambda A: qrlib.orthogonalize(A.bfloat16()),
    "lstsq": lambda A: qrlib.lstsq(A, A),
    "plan": plan,
}


def shared(mesh, whole=WHOLE, placement=FIRST):
    return distribute_tensor(whole, mesh, [placement])


def agree(mesh, function, whole, placement):
    A = shared(mesh, whole, placement)
    with CommDebugMode() as sent:
        found = function(A)
    assert sent.get_total_counts() == 0
    expected = function(whole)
    if isinstance(expected, torch.Tensor):
        found, expected = (found,), (expected,)
    assert type(found) is type(expected)
    for X, Y in zip(found, expected, strict=True):
        assert X.placements == (placement,) and X.dtype == Y.dtype
        assert X.shape == Y.shape and X.is_contiguous() and X.to_local().is_contiguous()
        torch.testing.assert_close(X.full_tensor(), Y)


def gradient(mesh, whole, placement):
    weight = normal(*whole.shape, seed=1, dtype=whole.dtype)
    A = shared(mesh, whole, placement).requires_grad_()
    loss = (qrlib.orthogonalize(A) * shared(mesh, weight, placement)).sum()
    loss.full_tensor().backward()
    alone = whole.clone().requires_grad_()
    (qrlib.orthogonalize(alone) * weight).sum().backward()
    assert A.grad.placements == (placement,)
    torch.testing.assert_close(A.grad.full_tensor(), alone.grad)


def compiled(mesh):
    ours = torch.compile(qrlib.orthogonalize, fullgraph=True, backend="aot_eager")(shared(mesh))
    torch.testing.assert_close(ours.full_tensor(), qrlib.orthogonalize(WHOLE))


def operators(mesh, placement, kept):
    """Behind the door: torch goes by the rule, and gathers what is in parts."""
    ops = torch.ops.qrlib
    A = shared(mesh, placement=placement)
    with CommDebugMode() as sent:
        H, tau = ops.geqrf(A, "auto")
        Q = ops.householder_product(H, tau)
        R = ops.ormqr(H, tau, A, True)
    assert (sent.get_total_counts() == 0) == (kept == placement)
    H_, tau_ = qrlib.geqrf(WHOLE)
    expected = (
        H_,
        tau_,
        qrlib.householder_product(H_, tau_),
        qrlib.ormqr(H_, tau_, WHOLE, transpose=True),
    )
    for X, Y in zip((H, tau, Q, R), expected, strict=True):
        assert X.placements == (kept,)
        torch.testing.assert_close(X.full_tensor(), Y)


def on_a_grid(mesh):
    """Two dimensions of the mesh, one on each batch dimension."""
    grid = init_device_mesh("cpu", (RANKS, 1))
    R = qrlib.qr(distribute_tensor(WHOLE, grid, [Shard(0), Shard(1)]), mode="r")
    assert R.placements == (Shard(0), Shard(1))
    torch.testing.assert_close(R.full_tensor(), qrlib.qr(WHOLE, mode="r"))


def a_list(mesh):
    """In turn, for a rank has what it has of each."""
    As = [shared(mesh), WHOLE, shared(mesh, WHOLE[:, 0])]
    first, plain, third = qrlib.foreach.orthogonalize(As)
    assert first.placements == third.placements == (FIRST,) and type(plain) is torch.Tensor
    torch.testing.assert_close(first.full_tensor(), plain)
    torch.testing.assert_close(third.full_tensor(), plain[:, 0])


def product(change):
    """householder_product with a tau that something has been done to."""

    def call(mesh):
        H, tau = qrlib.geqrf(shared(mesh))
        return qrlib.householder_product(H, change(tau))

    return call


def into(mesh):
    H, tau = qrlib.geqrf(shared(mesh))
    return qrlib.householder_product(H, tau, out=H)


def refused(mesh, call, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        call(mesh)


BAD = {
    "columns": (
        lambda mesh: qrlib.qr(shared(mesh, placement=Shard(3))),
        ValueError,
        "one of its 2 batch dimensions.*got S.*3.*redistribute",
    ),
    "rows": (
        lambda mesh: qrlib.orthogonalize(shared(mesh, placement=Shard(2))),
        ValueError,
        "one of its 2 batch dimensions.*got S.*2.*redistribute",
    ),
    "a parameter in rows": (
        lambda mesh: qrlib.orthogonalize(shared(mesh, WHOLE[0, 0])),
        ValueError,
        "one of its 0 batch dimensions.*got S.*0.*redistribute",
    ),
    "sums": (
        lambda mesh: qrlib.geqrf(DTensor.from_local(WHOLE, mesh, [Partial()])),
        ValueError,
        "got P.*redistribute",
    ),
    "a vector": (
        lambda mesh: qrlib.geqrf(shared(mesh, torch.ones(3), Replicate())),
        ValueError,
        r"\[..., m, n\]",
    ),
    "a plain tau": (
        product(lambda tau: tau.full_tensor()),
        ValueError,
        "of the first; got none; use distribute_tensor",
    ),
    "tau elsewhere": (
        product(lambda tau: tau.redistribute(placements=[Replicate()])),
        ValueError,
        "of the first; got .*R.*redistribute",
    ),
    "columns for a plan": (
        lambda mesh: plan(shared(mesh, placement=Shard(3))),
        ValueError,
        "one of its 2 batch dimensions.*got S.*3.*redistribute",
    ),
    "a plan of all": (
        lambda mesh: plan(shared(mesh), of=DTensor.full_tensor),
        ValueError,
        r"plan's shape \(5, 2, 6, 4\); got \([32], 2, 6, 4\); .* A.to_local\(\).shape counts",
    ),
    "out": (into, TypeError, "out= is for plain tensors; got DTensors"),
}
CASES = {
    **{
        f"{name}, {where}": partial(agree, function=function, whole=whole, placement=placement)
        for name, function in FUNCTIONS.items()
        for where, (whole, placement) in PLACED.items()
    },
    **{
        f"gradient, {where}": partial(gradient, whole=whole, placement=placement)
        for where, (whole, placement) in PLACED.items()
    },
    "compiled": compiled,
    "on a grid": on_a_grid,
    "a list": a_list,
    "operators, first": partial(operators, placement=FIRST, kept=FIRST),
    "operators, second": partial(operators, placement=Shard(1), kept=Shard(1)),
    "operators, replicated": partial(operators, placement=Replicate(), kept=Replicate()),
    "operators, columns": partial(operators, placement=Shard(3), kept=Replicate()),
    **{
        f"{name}, refused": partial(refused, call=call, error=error, message=message)
        for name, (call, error, message) in BAD.items()
    },
}


def work(rank, where):
    """All cases on one rank. What fails is noted: a rank that stopped would have others wait."""
    torch.set_num_threads(1)
    pretend(setattr)
    dist.init_process_group("gloo", f"file://{where}/meeting", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    failed = {}
    for name, case in CASES.items():
        try:
            case(mesh)
        except BaseException:
            failed[name] = traceback.format_exc()
    torch.save(failed, where / f"{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """{name: what went wrong} of each rank."""
    where = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (where,), nprocs=RANKS)
    return [torch.load(where / f"{rank}") for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_ranks(failed, name):
    for rank in failed:
        assert name not in rank, rank[name]
