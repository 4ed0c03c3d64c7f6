"""What is launched beside other launches: on a pretended GPU, and on one that is there."""

import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tables import batch_of, normal

import qrlib
from qrlib import streams
from qrlib.scaling import scaled
from qrlib.stages import s06_update, s08_cholesky, s09_mixed
from qrlib.streams import Branch
from qrlib.tracer import trace

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="traced in the interpreter")


class Cuda:
    """torch.cuda, as far as a branch looks at it; what waits for what is in `log`."""

    def __init__(self, capturing):
        self.log, self.capturing, self.made = [], capturing, 0
        self.now = self._stream("main")

    def _stream(self, name):
        wait = lambda other: self.log.append((name, "waits for", other.name))  # noqa: E731
        return SimpleNamespace(name=name, wait_stream=wait)

    def is_available(self):
        return self.capturing is not None

    def is_current_stream_capturing(self):
        return self.capturing

    def current_stream(self):
        return self.now

    def Stream(self):
        self.made += 1
        return self._stream(f"side {self.made}")

    @contextmanager
    def stream(self, other):
        before, self.now = self.now, other
        yield
        self.now = before

    def launch(self, what):
        self.log.append((self.now.name, "launches", what))


def use(branch, cuda, *held):
    cuda.launch(1)
    with branch.fork(*held):
        cuda.launch(2)
    cuda.launch(3)
    branch.join()
    cuda.launch(4)


# no GPU, one that does not capture, and launches that are wanted in order
@pytest.mark.parametrize("capturing, wanted", ((None, True), (False, True), (True, False)))
def test_launches_are_in_order(monkeypatch, capturing, wanted):
    cuda = Cuda(capturing)
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=cuda))
    use(Branch(wanted), cuda)
    assert cuda.log == [("main", "launches", k) for k in (1, 2, 3, 4)]


def test_in_a_capture_they_wait_where_they_must(monkeypatch):
    cuda, X = Cuda(True), torch.ones(3)
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=cuda))
    held = weakref.ref(X)
    branch = Branch()
    with branch.fork(X):
        del X
    # nobody else gets its memory until the branch has ended
    assert held() is not None
    branch.join()
    assert held() is None
    cuda.log.clear()
    use(branch, cuda)
    main, side = "main", "side 1"
    assert cuda.log == [
        (main, "launches", 1),
        (side, "waits for", main),
        (side, "launches", 2),
        (main, "launches", 3),
        (main, "waits for", side),
        (main, "launches", 4),
    ]


def test_a_stream_belongs_to_the_capture_before_it_is_joined(monkeypatch):
    """A branch may be joined before anything was launched in it."""
    cuda = Cuda(True)
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=cuda))
    Branch().join()
    assert cuda.log == [("side 1", "waits for", "main"), ("main", "waits for", "side 1")]


class Noted:
    """A kernel that does nothing but look whose memory it is given."""

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **options):
        tensors = [X for X in args if isinstance(X, torch.Tensor)]
        self.memory = [weakref.ref(X if X._base is None else X._base) for X in tensors]


def test_what_a_panel_leaves_to_a_branch_is_there_until_the_branch_has_ended(monkeypatch):
    kernels = {name: Noted() for name in vars(s08_cholesky) if name.endswith("_kernel")}
    for name, kernel in kernels.items():
        monkeypatch.setattr(s08_cholesky, name, kernel)
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=Cuda(True)))
    branch = Branch()
    H, tau, V = torch.ones(2, 130, 64), torch.ones(2, 64), torch.ones(2, 130, 64)
    T, F = torch.ones(2, 64, 64), s06_update.factors(2, 130, "fp16x3", H)
    s08_cholesky.panel(H, tau, V, T, None, "fp16x3", F[..., :64], branch)
    memory = kernels["finish_kernel"].memory
    assert len(memory) == 5 and all(X() is not None for X in memory)
    branch.join()
    # what is the panel's own is let go
    assert sum(X() is not None for X in memory) == 2


def test_both_routes_are_beside_each_other_and_before_what_follows(monkeypatch):
    cuda, n = Cuda(True), s09_mixed.MEDIUM
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(s06_update, "update", lambda *_, FLAT, **more: cuda.launch(FLAT))
    C = torch.ones(2, 3, n)
    routed = s09_mixed.router(torch.ones(2, 1), n)
    cuda.log.clear()
    routed(C, C, C, "fp16x3")
    cuda.launch("next")
    main, side = "main", "side 1"
    assert cuda.log == [
        (side, "waits for", main),
        (side, "waits for", main),
        (side, "launches", None),
        (main, "launches", s09_mixed.products(n)),
        (main, "waits for", side),
        (main, "launches", "next"),
    ]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@interpreted
def test_launches_beside_each_other_keep_apart(monkeypatch):
    """No number that one launch stores is one that another, beside it, loads or stores."""
    forks, joins, kept, new_empty = [], [], [], torch.Tensor.new_empty

    class Noting(Branch):
        def __init__(self, wanted):
            assert wanted

        @contextmanager
        def fork(self, *held):
            begin = len(t.launches)
            yield
            forks.append(range(begin, len(t.launches)))

        def join(self):
            joins.append(len(t.launches))

    def kept_empty(*args, **kwargs):
        # memory of one is never that of another, which on a side stream it is not either
        kept.append(new_empty(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(torch.Tensor, "new_empty", kept_empty)
    monkeypatch.setattr(s06_update, "Branch", Noting)
    A = normal(1, 200, 300)
    with trace(A=A) as t:
        H, e = scaled(A)
        memory = s06_update.Memory.of(H, "fp16x3", ahead=True)
        s06_update.factor(H, e, H.new_empty(1, 200), panel=s08_cholesky.panel, memory=memory)

    def numbers(launches, *ops):
        found = {}
        for launch in launches:
            for each in launch.accesses:
                if each.op in ops:
                    found.setdefault(each.storage, []).append(each.elements)
        return {where: np.unique(np.concatenate(each)) for where, each in found.items()}

    def meet(one, other):
        return [where for where in one if np.intersect1d(one[where], other.get(where, [])).size]

    kinds = set()
    for fork in forks:
        join = next(each for each in joins if each >= fork.stop)
        others = [t.launches[k] for k in range(fork.stop, join) if not any(k in f for f in forks)]
        mine = [t.launches[k] for k in fork]
        kinds |= {launch.kernel for launch in mine}
        for a, b in ((mine, others), (others, mine)):
            assert not meet(numbers(a, "store"), numbers(b, "load", "store"))
    assert kinds >= {"finish_kernel", "update_kernel"} and len(joins) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ("s06_update", "s08_cholesky"))
@pytest.mark.parametrize("shape", ((2, 1000, 1000), (4, 700, 1500), (20, 352, 352)))
def test_the_same_bits_as_in_order(monkeypatch, name, shape):
    B, m, n = shape
    A = batch_of("mixed", B, max(m, n))[:, :m, :n].cuda()
    beside = qrlib.plan(shape, stage=name)
    monkeypatch.setattr(s06_update, "Branch", lambda wanted: Branch(False))
    expected = qrlib.plan(shape, stage=name)(A)
    for _ in range(20):
        H, tau = beside(A)
        assert torch.equal(H, expected.H) and torch.equal(tau, expected.tau)
