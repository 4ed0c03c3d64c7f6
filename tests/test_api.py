"""The door: what comes in wrong is told so; what torch does with Q and R, it does too."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import ALL_STAGES, SHAPES, normal

import qrlib
from qrlib import api, householder, stages
from qrlib.householder import headroom
from qrlib.stages import POLICIES, TRITON

A = normal(2, 4, 3)
H, TAU = torch.geqrf(A)

BAD = {
    "a list": (lambda: qrlib.geqrf([[1.0]]), TypeError, "got list"),
    "one dimension": (lambda: qrlib.geqrf(torch.ones(3)), ValueError, r"\[..., m, n\].*\(3,\)"),
    "no dimension": (lambda: qrlib.geqrf(torch.tensor(1.0)), ValueError, r"\[..., m, n\]"),
    "integers": (lambda: qrlib.geqrf(torch.ones(2, 2).int()), TypeError, "torch.int32.*float32"),
    "integers, NumPy": (lambda: qrlib.geqrf(np.ones((2, 2), int)), TypeError, "int64.*astype"),
    "booleans": (lambda: qrlib.geqrf(torch.ones(2, 2).bool()), TypeError, "torch.bool"),
    "complex": (
        lambda: qrlib.geqrf(A.to(torch.complex64)),
        TypeError,
        "torch.complex64; torch.linalg.qr takes",
    ),
    "complex, NumPy": (
        lambda: qrlib.qr(A.numpy() * 1j),
        TypeError,
        "complex64; np.linalg.qr takes",
    ),
    "half": (
        lambda: qrlib.householder_product(H.half(), TAU.half()),
        TypeError,
        "torch.float16.*convert",
    ),
    "sparse": (lambda: qrlib.geqrf(A[0].to_sparse()), TypeError, "to_dense"),
    "nested": (
        lambda: qrlib.geqrf(torch.nested.nested_tensor([A[0], A[1, :3]])),
        TypeError,
        "one tensor; got a nested one; .*unbind",
    ),
    "masked": (
        lambda: qrlib.geqrf(np.ma.array(A.numpy(), mask=A.numpy() > 0)),
        TypeError,
        "plain array; got MaskedArray; use np.asarray",
    ),
    "numbers missing": (
        lambda: qrlib.geqrf(A.to("meta")),
        ValueError,
        "numbers; got a tensor on meta",
    ),
    "numbers missing in H": (
        lambda: qrlib.householder_product(H.to("meta"), TAU.to("meta")),
        ValueError,
        "H must have numbers; got a tensor on meta",
    ),
    "gradient": (
        lambda: qrlib.geqrf(A.clone().requires_grad_()),
        RuntimeError,
        "qrlib.orthogonalize or qrlib.qr.*A.detach",
    ),
    "stage": (lambda: qrlib.geqrf(A, stage="s99"), ValueError, "s01_mirror, s02.*got 's99'"),
    "stage, not a name": (lambda: qrlib.geqrf(A, stage=3), ValueError, "got 3"),
    "precision": (lambda: qrlib.geqrf(A, precision="tf32"), ValueError, "fp32, fast; got 'tf32'"),
    "NumPy to a torch stage": (
        lambda: qrlib.geqrf(A.numpy(), stage="s03_blocked"),
        TypeError,
        "from_numpy",
    ),
    **{
        f"float64 to {name}": (
            lambda name=name: qrlib.geqrf(A.double(), stage=name),
            TypeError,
            f"{name} takes float32; got torch.float64.*stage='s04_recursive'",
        )
        for name in TRITON
    },
    "NumPy to a Triton stage": (
        lambda: qrlib.geqrf(A.numpy(), stage="s06_update"),
        TypeError,
        "from_numpy.*s01_mirror",
    ),
    "plan on the CPU": (
        lambda: qrlib.plan((2, 4, 3), device="cpu"),
        ValueError,
        "NVIDIA GPU; got cpu.*call qrlib.geqrf",
    ),
    "plan on a GPU that is not there": (
        lambda: qrlib.plan((2, 4, 3), device="cuda:99"),
        RuntimeError,
        "cuda:99 is not here.*qrlib.doctor",
    ),
    "plan of a vector": (lambda: qrlib.plan((4,)), ValueError, r"\(..., m, n\); got \(4,\)"),
    "plan of a number": (lambda: qrlib.plan(4), ValueError, r"\(..., m, n\); got 4"),
    "plan of fractions": (lambda: qrlib.plan((2.5, 3)), ValueError, r"got \(2.5, 3\)"),
    "plan of less than nothing": (lambda: qrlib.plan((-1, 3)), ValueError, r"got \(-1, 3\)"),
    "plan, dtype by name": (
        lambda: qrlib.plan((4, 3), dtype="float32"),
        TypeError,
        "torch.float32 or torch.float64; got 'float32'",
    ),
    "plan in half": (
        lambda: qrlib.plan((4, 3), dtype=torch.float16),
        TypeError,
        "torch.float32 or torch.float64; got torch.float16",
    ),
    "plan, precision": (
        lambda: qrlib.plan((4, 3), precision="tf32"),
        ValueError,
        "fp32, fast; got 'tf32'",
    ),
    "mode": (lambda: qrlib.qr(A, "full"), ValueError, "'reduced', 'complete' or 'r'; got 'full'"),
    "wide to orthogonalize": (lambda: qrlib.orthogonalize(A.mT), ValueError, "transpose"),
    "tau too long": (
        lambda: qrlib.householder_product(H, normal(2, 4)),
        ValueError,
        r"k <= min.*\(2, 4, 3\) and \(2, 4\)",
    ),
    "tau of another batch": (
        lambda: qrlib.householder_product(H, TAU[0]),
        ValueError,
        "same batch",
    ),
    "tau without a dimension": (
        lambda: qrlib.householder_product(H[0], torch.tensor(1.0)),
        ValueError,
        "as geqrf returns them",
    ),
    "tau of another dtype": (
        lambda: qrlib.householder_product(H, TAU.double()),
        TypeError,
        "same dtype.*float32 and torch.float64",
    ),
    "tau of another library": (
        lambda: qrlib.householder_product(H, TAU.numpy()),
        TypeError,
        "same type; got torch and numpy",
    ),
    "tau on another device": (
        lambda: qrlib.ormqr(H, TAU.to("meta"), A),
        ValueError,
        "same device; got cpu and meta",
    ),
    "wide H to householder_product": (
        lambda: qrlib.householder_product(*torch.geqrf(A.mT)),
        ValueError,
        r"m >= n.*give H\[..., :3\]",
    ),
    "C of another height": (lambda: qrlib.ormqr(H, TAU, A[:, :3]), ValueError, "m = 4.*2, 3, 3"),
    "C of another width": (lambda: qrlib.ormqr(H, TAU, A, left=False), ValueError, "p, m"),
    "C of another batch": (lambda: qrlib.ormqr(H, TAU, A[:1]), ValueError, r"batch \(2,\)"),
    "C of another dtype": (lambda: qrlib.ormqr(H, TAU, A.double()), TypeError, "same dtype"),
    "C on another device": (lambda: qrlib.ormqr(H, TAU, A.to("meta")), ValueError, "same device"),
    "certificate of another shape": (lambda: qrlib.certify(A[:1], H, TAU), ValueError, "one shape"),
    "certificate, tau cut": (lambda: qrlib.certify(A, H, TAU[:, :2]), ValueError, "min"),
    "certificate, gate by name": (
        lambda: qrlib.certify(A, H, TAU, gate="LAPACK"),
        TypeError,
        "Gate.factor, orthogonality.; got 'LAPACK'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_what_to_do(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=f"(?s){message}"):
        call()


def test_a_plan_without_a_gpu_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="cuda is not here, where torch sees 0 NVIDIA GPUs"):
        qrlib.plan((2, 4, 3))


def test_a_triton_stage_on_the_cpu_says_what_it_takes():
    code = """
import torch, qrlib
from qrlib.stages import TRITON
for stage in TRITON:
    try:
        qrlib.geqrf(torch.ones(2, 2), stage=stage)
    except RuntimeError as error:
        print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    lines = out.stdout.splitlines()
    assert len(lines) == len(TRITON)
    for line, stage in zip(lines, TRITON):
        assert line.startswith(f"stage {stage} runs on an NVIDIA GPU; got a tensor on cpu; use")
        assert "A.cuda()" in line and "stage='auto'" in line and "TRITON_INTERPRET=1" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there a stage needs no interpreter")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stage", TRITON)
def test_triton_stages_through_the_door(stage):
    A = normal(2, 3, 5, 4)
    H, tau = qrlib.geqrf(A, stage=stage)
    assert H.shape == A.shape and tau.shape == (2, 3, 4)
    assert qrlib.certify(A, H, tau).passed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there a stage needs no interpreter")
@pytest.mark.parametrize("stage", POLICIES)
@pytest.mark.parametrize("precision", ("fp32", "fast"))
@pytest.mark.parametrize(
    "verb", ("geqrf", "qr", "orthogonalize", "derivative", "lstsq", "operator")
)
def test_precision_reaches_a_stage_that_has_several(monkeypatch, stage, precision, verb):
    seen = []

    def recorded(A, *, policy):
        seen.append(policy)
        return qrlib.QR(*torch.geqrf(A))

    monkeypatch.setattr(stages.stage(stage), "geqrf", recorded)
    A, options = normal(2, 5, 4), {"stage": stage, "precision": precision}
    if verb == "derivative":
        qrlib.qr(A.requires_grad_(), **options)
    elif verb == "lstsq":
        qrlib.lstsq(A, normal(2, 5, 1), **options)
    elif verb == "operator":
        torch.ops.qrlib.geqrf(A, stage, precision)
    else:
        getattr(qrlib, verb)(A, **options)
    assert seen == [precision]


def test_more_columns_than_a_grid_has_tiles():
    A = torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu").expand(
        3, 65535 * 16 + 1
    )
    with pytest.raises(ValueError, match="at most 1048560 columns.*use stage='s04_recursive'"):
        qrlib.geqrf(A, stage="s06_update")


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory is pretended to be out")
def test_out_of_memory_says_how_much_is_needed(monkeypatch):
    whole = qrlib.stage("s07_whole")
    geqrf = whole.geqrf

    def greedy(A):
        if A.is_meta:
            return geqrf(A)
        raise torch.cuda.OutOfMemoryError("tried to allocate a great deal")

    monkeypatch.setattr(whole, "geqrf", greedy)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_250_000_000, 80 * 10**9))
    A = torch.zeros(()).expand(11, 12, 512, 512)
    # H, tau and exponents; V in a tile of 512 x 16 and T in one of 16 x 16
    needed = 4 * 132 * (512 * 512 + 512 + 512 + 512 * 16 + 16 * 16) / 1e9
    message = (
        rf"stage s07_whole needs {needed:.2f} GB beside A for \[132, 512, 512\]; on cpu torch and "
        r"others have left 1.25 GB of 80.00 GB; give it the batch in parts, or free memory"
    )
    with pytest.raises(torch.cuda.OutOfMemoryError, match=message) as caught:
        qrlib.geqrf(A, stage="s07_whole")
    assert "a great deal" in str(caught.value.__cause__)


def test_no_gradient_is_no_obstacle():
    with torch.no_grad():
        qrlib.geqrf(A.clone().requires_grad_())


@pytest.mark.parametrize("stage", ALL_STAGES)
@pytest.mark.parametrize("batch", ((), (0,), (1,), (2, 1), (2, 3, 4), (2, 0)))
def test_batch_shapes(stage, batch):
    X = normal(*batch, 5, 3)
    H, tau = qrlib.geqrf(X, stage=stage)
    assert H.shape == (*batch, 5, 3) and tau.shape == (*batch, 3)
    assert H.dtype == X.dtype
    Q = qrlib.householder_product(H, tau)
    torch.testing.assert_close(Q @ qrlib.unpack_r(H), X)


@pytest.mark.parametrize("shape", ((4, 4), (6, 3), (3, 6), (0, 3), (3, 0)))
@pytest.mark.parametrize("stage", ("auto", "s01_mirror"))
def test_numpy_arrays_come_back_as_numpy(stage, shape):
    X = normal(2, *shape, dtype=torch.float64).numpy()
    before = X.copy()
    H, tau = qrlib.geqrf(X, stage=stage)
    assert isinstance(H, np.ndarray) and isinstance(tau, np.ndarray)
    assert H.flags.c_contiguous
    H_ref, tau_ref = torch.geqrf(torch.from_numpy(X))
    np.testing.assert_allclose(H, H_ref, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(tau, tau_ref, rtol=1e-11, atol=1e-13)
    assert np.array_equal(X, before)


def test_numpy_negative_strides():
    X = normal(2, 5, 5, dtype=torch.float64).numpy()[:, ::-1, ::-1]
    for stage in ("auto", "s01_mirror"):
        assert qrlib.certify(X, *qrlib.geqrf(X, stage=stage)).passed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there a stage needs no interpreter")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stage", (*ALL_STAGES, *TRITON))
def test_a_minus_that_torch_only_notes(stage):
    """The imaginary part of a conjugate is a view of memory that has the opposite sign."""
    Z = torch.complex(normal(2, 9, 5), normal(2, 9, 5, seed=1)).conj()
    X = Z.imag
    assert X.is_neg()
    found, expected = qrlib.geqrf(X, stage=stage), qrlib.geqrf(X.resolve_neg(), stage=stage)
    assert torch.equal(found.H, expected.H) and torch.equal(found.tau, expected.tau)
    assert qrlib.certify(X, *found).passed


@pytest.mark.parametrize("as_numpy", (False, True))
@pytest.mark.parametrize("positive_diag", (False, True))
@pytest.mark.parametrize("mode", ("reduced", "complete"))
@pytest.mark.parametrize("m, n", SHAPES)
def test_qr(m, n, mode, positive_diag, as_numpy):
    X = normal(2, m, n, dtype=torch.float64)
    Q, R = qrlib.qr(X.numpy() if as_numpy else X, mode, positive_diag=positive_diag)
    Q, R = torch.as_tensor(Q), torch.as_tensor(R)
    reference = torch.linalg.qr(X, mode)
    assert Q.shape == reference.Q.shape and R.shape == reference.R.shape
    torch.testing.assert_close(Q @ R, X)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(Q.shape[-1], dtype=Q.dtype).expand(2, -1, -1))
    assert torch.equal(R, R.triu())
    if positive_diag:
        assert (torch.diagonal(R, dim1=-2, dim2=-1) >= 0).all()
    else:
        torch.testing.assert_close(R, reference.R)


@pytest.mark.parametrize("positive_diag", (False, True))
def test_qr_r_alone(positive_diag):
    X = normal(3, 7, 5, dtype=torch.float64)
    R = qrlib.qr(X, "r", positive_diag=positive_diag)
    assert torch.equal(R, qrlib.qr(X, positive_diag=positive_diag)[1])


def test_positive_diag_is_unique():
    """Two routes to the same factorization: with a positive diagonal they meet."""
    X = normal(3, 6, 6, dtype=torch.float64)
    flips = torch.tensor([1.0, -1, 1, -1, 1, -1], dtype=X.dtype)
    Q, R = qrlib.qr(X, positive_diag=True)
    torch.testing.assert_close(qrlib.qr(X * flips, positive_diag=True)[1].abs(), R.abs())
    torch.testing.assert_close(torch.linalg.cholesky(X.mT @ X).mT, R)


def test_orthogonalize():
    X = normal(2, 9, 4)
    Q = qrlib.orthogonalize(X, positive_diag=True)
    assert torch.equal(Q, qrlib.qr(X, positive_diag=True)[0])


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("m", (1, 7, 8, 64))
def test_lapack_on_numbers_in_range_is_lapack(m, dtype, monkeypatch):
    limits = torch.finfo(dtype)
    X = normal(2, m, 3, dtype=dtype)
    X /= X.abs().amax((1, 2), keepdim=True)
    direct = []
    for edge in (2**25 * limits.tiny, 1.0, limits.max / (16 * m)):
        for factor in (0.4, 0.99, 1.0, 1.01, 2.1):
            if api._in_range(edge * factor * X):
                direct.append(edge * factor * X)
                assert (headroom(direct[-1]) == 1).all()
    assert len(direct) > 5
    for bad in (torch.nan, torch.inf, 0.0):
        assert not api._in_range(torch.full((2, m, 3), bad, dtype=dtype))
    found = [qrlib.geqrf(Y) for Y in direct]
    monkeypatch.setattr(api, "_in_range", lambda A: False)
    for Y, (H, tau) in zip(direct, found):
        scaled = qrlib.geqrf(Y)
        assert torch.equal(H, scaled.H) and torch.equal(tau, scaled.tau)


@pytest.mark.parametrize("as_numpy", (False, True))
@pytest.mark.parametrize("transpose", (False, True))
@pytest.mark.parametrize("left", (False, True))
@pytest.mark.parametrize("m, n, k", ((6, 4, 4), (6, 4, 2), (4, 6, 4), (70, 40, 40), (5, 5, 0)))
def test_ormqr(m, n, k, left, transpose, as_numpy):
    H, tau = torch.geqrf(normal(2, m, n, dtype=torch.float64))
    H, tau = H.contiguous(), tau[:, :k]
    C = normal(2, *((m, 3) if left else (3, m)), dtype=torch.float64)
    before = C.clone()
    given_ = [X.numpy() for X in (H, tau, C)] if as_numpy else [H, tau, C]
    ours = torch.as_tensor(qrlib.ormqr(*given_, left=left, transpose=transpose))
    Q = torch.stack([_explicit_q(h, t) for h, t in zip(H, tau)])
    Q = Q.mT if transpose else Q
    torch.testing.assert_close(ours, Q @ C if left else C @ Q)
    assert torch.equal(C, before)


def _explicit_q(H, tau):
    m = len(H)
    Q = torch.eye(m, dtype=H.dtype)
    for j, t in enumerate(tau):
        v = torch.cat([H.new_zeros(j), H.new_ones(1), H[j + 1 :, j]])
        Q = Q @ (torch.eye(m, dtype=H.dtype) - t * torch.outer(v, v))
    return Q


@settings(max_examples=40)
@given(m=st.integers(0, 70), n=st.integers(0, 70), k=st.integers(0, 70), seed=st.integers(0, 999))
def test_householder_product(m, n, k, seed):
    m, n = max(m, n), min(m, n)
    k = min(k, n)
    H, tau = torch.geqrf(normal(2, m, n, seed=seed, dtype=torch.float64))
    tau = tau[:, :k]
    expected = torch.linalg.householder_product(H, tau) if k else torch.eye(m, n).expand(2, m, n)
    for given_ in ((H, tau), (H.numpy(), tau.numpy())):
        Q = torch.as_tensor(qrlib.householder_product(*given_))
        torch.testing.assert_close(Q, expected.to(Q.dtype))


@pytest.mark.parametrize("missing", ("torch", "triton"))
def test_missing_backend_says_how_to_get_it(missing):
    code = f"""
import sys
sys.modules[{missing!r}] = None
import numpy as np, qrlib
A = np.random.default_rng(0).standard_normal((3, 5, 5))
for stage in ("auto", "s01_mirror"):
    print(qrlib.certify(A, *qrlib.geqrf(A, stage=stage)).passed)
Q, R = qrlib.qr(A)
print(np.allclose(Q @ R, A))
try:
    qrlib.stage("s02_unblocked")
    print("there")
except RuntimeError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = out.stdout.splitlines()
    assert lines[:3] == ["True", "True", "True"]
    if missing == "torch":
        assert "pip install torch" in lines[3] and "s01_mirror" in lines[3]
    else:
        assert lines[3] == "there"


def test_import_is_light():
    """`import qrlib` and stage 1 need NumPy only, and add less than half of what NumPy takes."""
    # the work of this process alone: others have the machine, too
    code = """
import sys
from time import process_time
begin = process_time()
import numpy
there = process_time()
import qrlib
qrlib.geqrf(numpy.eye(3), stage="s01_mirror")
end = process_time()
assert not {"torch", "triton", "matplotlib"} & set(sys.modules), sorted(sys.modules)
print((end - there) / (there - begin))
"""
    shares = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(shares) < 0.5, shares


def test_a_first_call_does_not_wait_for_the_compiler():
    code = """
import sys
import torch
import qrlib
qrlib.lstsq(torch.eye(3), torch.eye(3))
qrlib.foreach.orthogonalize([torch.eye(3), torch.eye(3)], positive_diag=True)
qrlib.geqrf(torch.eye(3), stage="s04_recursive")
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_constant_of_a_graph_is_marked_as_torch_marks_one():
    def marked():
        return True

    marks = set(vars(torch.compiler.assume_constant_result(marked)))
    assert marks and marks <= set(vars(householder._reduced_precision_allowed))


def test_public_names_are_all_there():
    for name in qrlib.__all__:
        assert getattr(qrlib, name) is not None
        assert name in dir(qrlib)
    with pytest.raises(AttributeError, match="geqrf"):
        qrlib.gerqf  # noqa: B018


def test_a_submodule_never_hides_a_function():
    import qrlib.certificate

    assert callable(qrlib.certify) and callable(qrlib.stage) and callable(qrlib.qr)
