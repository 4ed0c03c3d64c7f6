"""Shapes in signatures are checked here: jaxtyping wraps the verbs before they are imported."""

import os

# two cores and many small matrices: threads inside torch and BLAS only get in each other's way
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook(["qrlib.householder", "qrlib.reconstruction"], "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # kernels run through Triton's interpreter; this is read when a kernel is defined
    os.environ["TRITON_INTERPRET"] = "1"


# the same examples in every run, on a slow machine too; for others: --hypothesis-profile=others
steady = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("others", steady, derandomize=False)
settings.register_profile("steady", steady)
settings.load_profile("steady")


@pytest.fixture
def quick():
    """Triton's interpreter reduces whole tiles; see jit.quick_reductions."""
    from qrlib.jit import quick_reductions

    with quick_reductions():
        yield


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch):
    """torch.empty and friends give NaN, so a cell that is read before it is written shows."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))


def _poisoned(allocate):
    def allocated(*args, **kwargs):
        X = allocate(*args, **kwargs)
        return X.fill_(float("nan")) if X.is_floating_point() and X.device.type != "meta" else X

    return allocated


@pytest.fixture(scope="module")
def drawn(request):
    """The figures of a test module: {name: figure} of its DRAWN, {name: (function, *arguments)}."""
    pytest.importorskip("matplotlib")
    table = request.module.DRAWN
    return {name: draw(*arguments) for name, (draw, *arguments) in table.items()}


# before xdist looks for the groups
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        # the figures of a module are drawn once, by one worker
        if "drawn" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
