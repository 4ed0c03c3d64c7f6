"""Lists of matrices: each result is that of a call of its own, in order, by one call a kind."""

import numpy as np
import pytest
import torch
from tables import normal
from torch.utils._python_dispatch import TorchDispatchMode

import qrlib
from qrlib import api, foreach
from qrlib.compact import QR

DOUBLE = torch.float64
# kinds in turn; batches of one matrix, several, two dimensions, none
MIXED = (
    normal(7, 4),
    normal(5, 5, seed=1),
    normal(3, 7, 4, seed=2),
    normal(7, 4, seed=3, dtype=DOUBLE),
    normal(7, 4, seed=4).numpy(),
    normal(0, 7, 4),
    normal(5, 5, seed=5),
    normal(2, 2, 7, 4, seed=6),
    normal(7, 4, seed=7, dtype=DOUBLE),
    normal(4, 9, seed=8).mT,
    normal(0, 3),
    normal(7, 4, seed=9).numpy(),
    normal(1, 1),
)
GROUPS = 7
FUNCTIONS = {
    "geqrf": (foreach.geqrf, qrlib.geqrf),
    "qr": (foreach.qr, qrlib.qr),
    "complete": (
        lambda As: foreach.qr(As, "complete"),
        lambda A: qrlib.qr(A, "complete"),
    ),
    "r": (lambda As: foreach.qr(As, mode="r"), lambda A: qrlib.qr(A, "r")),
    "positive": (
        lambda As: foreach.qr(As, positive_diag=True, stage="auto", precision="fast"),
        lambda A: qrlib.qr(A, positive_diag=True),
    ),
    "orthogonalize": (
        lambda As: foreach.orthogonalize(As, positive_diag=True),
        lambda A: qrlib.orthogonalize(A, positive_diag=True),
    ),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def tuple_of(found):
    return found if isinstance(found, tuple) else (found,)


def assert_same(found, expected, rtol=1e-5):
    assert type(found) is type(expected)
    for X, Y in zip(tuple_of(found), tuple_of(expected), strict=True):
        assert type(X) is type(Y) and X.dtype == Y.dtype and X.shape == Y.shape
        torch.testing.assert_close(
            torch.as_tensor(X), torch.as_tensor(Y), rtol=rtol, atol=rtol, equal_nan=True
        )


def tall(As):
    return [A for A in As if A.shape[-2] >= A.shape[-1]]


@each_function
@pytest.mark.parametrize("order", (1, -1))
def test_each_is_as_alone(name, order):
    together, alone = FUNCTIONS[name]
    As = MIXED[::order]
    if name == "orthogonalize":
        As = tall(As)
    before = [torch.as_tensor(A).clone() for A in As]
    found = together(As)
    assert isinstance(found, list) and len(found) == len(As)
    for A, result in zip(As, found, strict=True):
        assert_same(result, alone(A))
    assert all(torch.equal(torch.as_tensor(A), B) for A, B in zip(As, before, strict=True))


@pytest.mark.parametrize("name", ("geqrf", "qr", "orthogonalize"))
def test_one_call_a_kind(name, monkeypatch):
    function, calls = getattr(api, name), []

    def counted(A, **options):
        calls.append(tuple(A.shape))
        return function(A, **options)

    monkeypatch.setattr(api, name, counted)
    As = tall(MIXED) if name == "orthogonalize" else MIXED
    getattr(foreach, name)(As)
    assert len(calls) == GROUPS - (name == "orthogonalize")
    # 1 + 3 + 0 + 4 matrices of 7 x 4 in one call; who is alone is not copied and keeps its shape
    assert (8, 7, 4) in calls and (2, 5, 5) in calls and (9, 4) in calls and (1, 1) in calls


class Counted(TorchDispatchMode):
    """How many operations PyTorch was asked for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@each_function
@pytest.mark.parametrize("batch", ((), (2,)))
def test_members_alike_cost_nothing_each(name, batch):
    """A tiny matrix is factored in the time of one or two operations."""
    together, _ = FUNCTIONS[name]
    counts = []
    for members in (2, 50):
        As = [normal(*batch, 5, 3, seed=i) for i in range(members)]
        with Counted() as asked:
            assert len(together(As)) == members
        counts.append(asked.count)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ("geqrf", "orthogonalize"))
def test_derivatives_go_through(name):
    """Of a list, by one call, as of each alone; where there is none, nothing is silent."""
    As = [normal(5, 3, seed=i, dtype=DOUBLE).requires_grad_() for i in range(3)]
    if name == "geqrf":
        with pytest.raises(RuntimeError, match="requires a gradient") as caught:
            foreach.geqrf(As)
        assert caught.value.__notes__ == ["in the list: As[0], As[1], As[2]"]
        return
    sum((i + 1) * Q.sin().sum() for i, Q in enumerate(foreach.orthogonalize(As))).backward()
    for i, A in enumerate(As):
        alone = A.detach().requires_grad_()
        ((i + 1) * qrlib.orthogonalize(alone).sin().sum()).backward()
        torch.testing.assert_close(A.grad, alone.grad)


@each_function
def test_none_and_one(name):
    together, alone = FUNCTIONS[name]
    assert together([]) == []
    (found,) = together([MIXED[2]])
    assert_same(found, alone(MIXED[2]), rtol=0)


def test_what_may_be_a_list():
    expected = foreach.orthogonalize([MIXED[0], MIXED[1]])
    for As in (MIXED[:2], iter(MIXED[:2]), {0: MIXED[0], 1: MIXED[1]}.values()):
        for found, result in zip(foreach.orthogonalize(As), expected, strict=True):
            assert torch.equal(found, result)


def test_results_are_named_and_in_rows():
    found = foreach.geqrf([MIXED[0], MIXED[0]])
    assert all(type(each) is QR for each in found)
    assert all(each.H.is_contiguous() and each.tau.is_contiguous() for each in found)
    assert torch.equal(found[0].H, found[1].H)
    # each has its own part of the memory
    found[0].H.zero_()
    assert found[1].H.any()


@each_function
@pytest.mark.parametrize("bad", (float("nan"), float("inf")))
def test_one_bad_member_stays_alone_and_shows(name, bad):
    together, alone = FUNCTIONS[name]
    As = [normal(6, 3, seed=i) for i in range(4)]
    As[2][1, 1] = bad
    found = together(As)
    for i in (0, 1, 3):
        assert_same(found[i], alone(As[i]))
    assert not all(X.isfinite().all() for X in tuple_of(found[2]))


def test_parameters_go_with_tensors():
    X = [torch.nn.Parameter(normal(5, 3)), normal(5, 3, seed=1)]
    with torch.no_grad():
        found = foreach.orthogonalize(X)
        for each, A in zip(found, X, strict=True):
            torch.testing.assert_close(each, qrlib.orthogonalize(A.detach()))


WRONG = {
    "a tensor": (MIXED[2], TypeError, "list of matrices; got Tensor.*in qrlib", None),
    "an array": (MIXED[4], TypeError, "list of matrices; got ndarray", None),
    "a number": (3, TypeError, "list of matrices; got int", None),
    "a vector inside": ([MIXED[0], normal(3)], ValueError, r"\[..., m, n\].*\(3,\)", "As[1]"),
    "a list inside": ([MIXED[0], [[1.0]]], TypeError, "A must be a torch tensor", "As[1]"),
    "None inside": ([None, MIXED[0]], TypeError, "got NoneType", "As[0]"),
    "integers": (
        [normal(3, 3).int(), MIXED[0], normal(3, 3).int()],
        TypeError,
        "got torch.int32",
        "As[0], As[2]",
    ),
    "complex": ([MIXED[0], MIXED[0].to(torch.complex64)], TypeError, "complex64", "As[1]"),
    "sparse": ([MIXED[0], MIXED[0].to_sparse()], TypeError, "to_dense", "As[1]"),
    "nested": ([torch.nested.nested_tensor([MIXED[0]])], TypeError, "nested", "As[0]"),
    "meta": ([MIXED[0], MIXED[0].to("meta")], ValueError, "must have numbers", "As[1]"),
    "masked": (
        [MIXED[4], np.ma.array(MIXED[4], mask=MIXED[4] > 0)],
        TypeError,
        "MaskedArray",
        "As[1]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_and_with_whom(name):
    As, error, message, members = WRONG[name]
    for function in (foreach.geqrf, foreach.qr, foreach.orthogonalize):
        with pytest.raises(error, match=f"(?s){message}") as caught:
            function(As)
        notes = getattr(caught.value, "__notes__", [])
        assert notes == ([f"in the list: {members}"] if members else [])


def test_wide_to_orthogonalize():
    with pytest.raises(ValueError, match="transpose") as caught:
        foreach.orthogonalize([MIXED[0], MIXED[0].mT, MIXED[0].mT])
    assert caught.value.__notes__ == ["in the list: As[1], As[2]"]


def test_options_are_those_of_one():
    with pytest.raises(ValueError, match="mode must be"):
        foreach.qr([MIXED[0]], "full")
    with pytest.raises(ValueError, match="got 's99'"):
        foreach.geqrf([MIXED[0]], stage="s99")
    found = foreach.geqrf([MIXED[0], MIXED[0]], stage="s02_unblocked")
    expected = qrlib.geqrf(MIXED[0], stage="s02_unblocked")
    assert all(torch.equal(each.H, expected.H) for each in found)


def test_it_is_a_public_name():
    assert qrlib.foreach is foreach
    assert set(foreach.__all__) <= set(dir(qrlib))


@pytest.mark.gpu
class TestOnTheGpu:
    def test_devices_are_kinds(self):
        As = [A.cuda() if isinstance(A, torch.Tensor) and i % 2 else A for i, A in enumerate(MIXED)]
        for A, found in zip(As, foreach.qr(As, positive_diag=True), strict=True):
            expected = qrlib.qr(A, positive_diag=True)
            assert all(
                X.device == Y.device for X, Y in zip(found, expected) if hasattr(X, "device")
            )
            assert_same(
                *(tuple(torch.as_tensor(X).cpu() for X in each) for each in (found, expected)),
                rtol=1e-4,
            )

    def test_no_synchronisation_inside(self):
        As = [normal(n, n).cuda() for n in (64, 100, 64, 100)]
        foreach.orthogonalize(As)
        torch.cuda.set_sync_debug_mode("error")
        try:
            foreach.orthogonalize(As)
        finally:
            torch.cuda.set_sync_debug_mode("default")
