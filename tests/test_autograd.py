"""Derivatives of Q and R, against differences and against torch; and where there are none."""

import inspect
import math

import pytest
import torch
from tables import normal
from torch.autograd import forward_ad

import qrlib
from qrlib import gradient

SHAPES = ((5, 3), (4, 4), (3, 5), (2, 4, 3), (2, 3, 4), (1, 3), (3, 1), (1, 1), (0, 4, 2), (3, 0))
A = normal(2, 5, 3, dtype=torch.float64)


def leaf(*shape, seed=0, dtype=torch.float64):
    return normal(*shape, seed=seed, dtype=dtype).requires_grad_()


def loss(Q, R):
    """Something that takes every entry otherwise."""
    total = 0
    for X in (Q, R):
        weights = torch.arange(X.numel(), dtype=X.dtype, device=X.device).cos().view(X.shape)
        total += (weights * X.sin()).sum()
    return total


def with_positive_diag(A):
    """torch's Q and R with the signs changed, which are constant where R is regular."""
    Q, R = torch.linalg.qr(A)
    signs = torch.sign(torch.diagonal(R, 0, -2, -1)).detach()
    return Q * signs[..., None, :], R * signs[..., None]


@pytest.mark.parametrize("positive_diag", (False, True))
@pytest.mark.parametrize("shape", SHAPES)
def test_both_directions_against_differences(shape, positive_diag):
    def function(A):
        return qrlib.qr(A, positive_diag=positive_diag)

    X = leaf(*shape)
    assert torch.autograd.gradcheck(function, X, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("shape", ((4, 2), (3, 3), (2, 4)))
def test_second_derivatives_against_differences(shape):
    X = leaf(*shape)
    assert torch.autograd.gradgradcheck(qrlib.qr, X)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
@pytest.mark.parametrize("shape", ((2, 70, 33), (64, 64), (3, 33, 70)))
@pytest.mark.parametrize("of", (torch.linalg.qr, with_positive_diag))
def test_as_torch(of, shape, dtype):
    X = leaf(*shape, dtype=dtype)
    (ours,) = torch.autograd.grad(loss(*qrlib.qr(X, positive_diag=of is with_positive_diag)), X)
    exact = X.detach().double().requires_grad_()
    (theirs,) = torch.autograd.grad(loss(*of(exact)), exact)
    error = (ours - theirs).norm() / theirs.norm()
    # what is lost to R^-T
    lost = torch.linalg.cond(exact[..., : exact.shape[-2]]).max() * torch.finfo(dtype).eps
    assert error <= lost, (error, lost)


@pytest.mark.parametrize("stage", ("s02_unblocked", "s04_recursive"))
def test_of_a_stage(stage):
    X = leaf(2, 6, 4)
    expected = torch.autograd.grad(loss(*torch.linalg.qr(X)), X)
    found = torch.autograd.grad(loss(*qrlib.qr(X, stage=stage)), X)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", ((5, 3), (3, 5)))
def test_of_r_alone(shape):
    X = leaf(*shape)
    expected = torch.autograd.grad(torch.linalg.qr(X)[1].sin().sum(), X)
    torch.testing.assert_close(torch.autograd.grad(qrlib.qr(X, "r").sin().sum(), X), expected)


@pytest.mark.parametrize("shape", ((4, 4), (3, 5)))
def test_of_the_complete_factors_where_they_are_the_reduced(shape):
    X = leaf(*shape)
    expected = torch.autograd.grad(loss(*torch.linalg.qr(X, "complete")), X)
    torch.testing.assert_close(torch.autograd.grad(loss(*qrlib.qr(X, "complete")), X), expected)


def test_of_orthogonalize():
    X = leaf(2, 6, 4)
    expected = torch.autograd.grad(with_positive_diag(X)[0].sin().sum(), X)
    found = torch.autograd.grad(qrlib.orthogonalize(X, positive_diag=True).sin().sum(), X)
    torch.testing.assert_close(found, expected)


def test_half_precision_has_the_gradient_of_single():
    X = leaf(6, 4, dtype=torch.bfloat16)
    qrlib.orthogonalize(X).float().sin().sum().backward()
    single = X.detach().float().requires_grad_()
    qrlib.orthogonalize(single).bfloat16().float().sin().sum().backward()
    assert X.grad.dtype == torch.bfloat16
    assert torch.equal(X.grad, single.grad.bfloat16())


def test_global_settings_for_products_leave_it_alone():
    X = leaf(2, 40, 20, dtype=torch.float32)
    before = torch.autograd.grad(loss(*qrlib.qr(X)), X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(loss(*qrlib.qr(X)), X)
    torch.testing.assert_close(inside, before)


def test_rank_lost_is_not_silent():
    """Where a column depends on others, Q has no derivative; the other matrices keep theirs."""
    X = normal(3, 5, 3, dtype=torch.float64)
    X[1, :, 1] = 0
    X.requires_grad_()
    loss(*qrlib.qr(X)).backward()
    assert not X.grad[1].isfinite().all()
    assert X.grad[::2].isfinite().all()


def test_backward_leaves_what_it_is_given():
    X = leaf(2, 3, 5)
    Q, R = qrlib.qr(X)
    gQ, gR = normal(*Q.shape, dtype=Q.dtype), normal(*R.shape, dtype=R.dtype)
    before = [Y.detach().clone() for Y in (X, Q, R, gQ, gR)]
    torch.autograd.grad((Q, R), X, (gQ, gR))
    assert all(map(torch.equal, before, (X, Q, R, gQ, gR)))


class TestTransforms:
    """torch.func, whose levels may be stacked in any order."""

    def value(self, A):
        return loss(*qrlib.qr(A, positive_diag=True))

    def reference(self, A):
        return loss(*with_positive_diag(A))

    def test_grad(self):
        found = torch.func.grad(self.value)(A)
        torch.testing.assert_close(found, torch.func.grad(self.reference)(A))

    @pytest.mark.parametrize("dim", (0, 1, 2))
    def test_vmap_of_grad(self, dim):
        found = torch.func.vmap(torch.func.grad(self.value), in_dims=dim)(A.movedim(0, dim))
        expected = torch.stack([torch.func.grad(self.reference)(a) for a in A])
        torch.testing.assert_close(found, expected)

    def test_grad_of_vmap(self):
        found = torch.func.grad(lambda A: torch.func.vmap(self.value)(A).sum())(A)
        expected = torch.stack([torch.func.grad(self.reference)(a) for a in A])
        torch.testing.assert_close(found, expected)

    def test_jvp(self):
        dA = normal(*A.shape, seed=3, dtype=A.dtype)
        found = torch.func.jvp(lambda A: tuple(qrlib.qr(A)), (A,), (dA,))
        expected = torch.func.jvp(lambda A: tuple(torch.linalg.qr(A)), (A,), (dA,))
        torch.testing.assert_close(found, expected)

    def test_vmap_of_jvp(self):
        def along(A):
            return torch.func.jvp(self.value, (A,), (torch.ones_like(A),))[1]

        expected = [torch.func.grad(self.reference)(a).sum() for a in A]
        torch.testing.assert_close(torch.func.vmap(along)(A), torch.stack(expected))

    def test_jacobians_agree(self):
        of_q = torch.func.jacrev(qrlib.orthogonalize)(A[0])
        torch.testing.assert_close(torch.func.jacfwd(qrlib.orthogonalize)(A[0]), of_q)
        torch.testing.assert_close(
            torch.autograd.functional.jacobian(qrlib.orthogonalize, A[0], vectorize=True), of_q
        )

    def test_hessian(self):
        found = torch.func.hessian(self.value)(A[0])
        torch.testing.assert_close(found, torch.func.hessian(self.reference)(A[0]))

    def test_dual_numbers(self):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(A, torch.ones_like(A))
            tangent = forward_ad.unpack_dual(qrlib.orthogonalize(dual)).tangent
        expected = torch.func.jvp(qrlib.orthogonalize, (A,), (torch.ones_like(A),))[1]
        torch.testing.assert_close(tangent, expected)


@pytest.mark.parametrize(
    "dtype, shapes", ((torch.float32, ((2, 5, 3), (7, 6, 4))), (torch.float64, ((3, 5),)))
)
def test_compiled(shapes, dtype, monkeypatch):
    # what checks shapes here keeps lists, which a graph may not change
    monkeypatch.setattr(gradient, "matmul", inspect.unwrap(gradient.matmul))

    def value(A):
        return loss(*qrlib.qr(A, positive_diag=True))

    torch._dynamo.reset()
    dynamic = len(shapes) > 1
    ours = torch.compile(value, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for shape in shapes:
        X = leaf(*shape, dtype=dtype)
        expected = torch.autograd.grad(value(X), X)
        torch.testing.assert_close(torch.autograd.grad(ours(X), X), expected)


def dual(call):
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(A, A))


H, TAU = qrlib.geqrf(A)
NO_GRADIENT = "this function has none to give; use qrlib.orthogonalize or qrlib.qr"
REFUSED = {
    "geqrf": (lambda: qrlib.geqrf(leaf(5, 3)), NO_GRADIENT),
    "geqrf, grad": (lambda: torch.func.grad(lambda A: qrlib.geqrf(A).H.sum())(A), NO_GRADIENT),
    "geqrf, jvp": (lambda: torch.func.jvp(qrlib.geqrf, (A,), (A,)), NO_GRADIENT),
    "geqrf, dual": (lambda: dual(qrlib.geqrf), NO_GRADIENT),
    "geqrf, grad of vmap": (
        lambda: torch.func.grad(lambda A: torch.func.vmap(qrlib.geqrf)(A)[0].sum())(A),
        NO_GRADIENT,
    ),
    "geqrf, jvp of vmap": (
        lambda: torch.func.jvp(torch.func.vmap(qrlib.geqrf), (A,), (A,)),
        NO_GRADIENT,
    ),
    "geqrf, half": (lambda: qrlib.geqrf(leaf(5, 3, dtype=torch.bfloat16)), NO_GRADIENT),
    "tau": (lambda: qrlib.householder_product(H, TAU.clone().requires_grad_()), NO_GRADIENT),
    "C": (lambda: qrlib.ormqr(H, TAU, A.clone().requires_grad_()), NO_GRADIENT),
    "the operator": (
        lambda: torch.ops.qrlib.geqrf(leaf(5, 3), "auto"),
        "qrlib::geqrf has no derivative; qrlib.orthogonalize",
    ),
    "the operator, dual": (
        lambda: dual(lambda A: torch.ops.qrlib.ormqr(H, TAU, A, True)),
        "qrlib::ormqr has no derivative; qrlib.orthogonalize",
    ),
    "complete": (
        lambda: qrlib.qr(leaf(5, 3), "complete"),
        r"the last 2 columns of Q \[..., 5, 5\] have none.*use mode 'reduced'",
    ),
    "complete, jvp": (
        lambda: torch.func.jvp(lambda A: tuple(qrlib.qr(A, "complete")), (A,), (A,)),
        "the last 2 columns of Q",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_derivative_is_no_zero(name):
    call, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=message):
        call()


def test_what_is_detached_is_let_in():
    X = leaf(2, 5, 3)
    with torch.no_grad():
        assert not qrlib.geqrf(X).H.requires_grad
        assert not qrlib.qr(X)[0].requires_grad
    torch.func.grad(lambda A: (A * qrlib.geqrf(A.detach()).H).sum())(A)
    constant = torch.func.grad(lambda A: (A * qrlib.qr(X.detach(), "complete")[1]).sum())(A)
    torch.testing.assert_close(constant, qrlib.qr(X.detach(), "complete")[1])


def angles(Q):
    """In [0, pi], of the n // 2 planes that a rotation turns; n is odd."""
    turns = torch.linalg.eigvals(torch.linalg.det(Q)[:, None, None] * Q)
    return torch.angle(turns[turns.imag > 0])


def evenly(angle, n):
    """The share of smaller angles among those of all rotations in n dimensions, n odd.

    They would be uniform, were it not that turns keep away from each other, from their mirror
    images and from the one axis that stays: Katz and Sarnak 1999.
    """
    odd = torch.arange(1, n, 2, dtype=angle.dtype)
    return (angle - 2 / (n - 1) * (torch.sin(odd * angle[:, None]) / odd).sum(-1)) / math.pi


def distance(x):
    """Kolmogorov's: the largest gap between a sample's distribution and the uniform one."""
    x = x.sort().values
    steps = torch.arange(len(x) + 1, dtype=x.dtype) / len(x)
    return max((steps[1:] - x).max(), (x - steps[:-1]).max())


@pytest.mark.parametrize("n", (3, 9))
def test_random_orthogonal_matrices_are_haar(n):
    """They turn by all angles alike; without the signs they do not."""
    G = normal(4000, n, n, seed=5, dtype=torch.float64)
    fair, unfair = (angles(qrlib.orthogonalize(G, positive_diag=fixed)) for fixed in (True, False))
    # passed by chance once in a million times; angles of one rotation are spread still better
    limit = math.sqrt(math.log(2e6) / (2 * len(fair)))
    assert distance(evenly(fair, n)) < limit < distance(evenly(unfair, n))


def test_orthogonal_iteration_finds_eigenvectors():
    """A^t Q, orthogonalized at every step: columns go to eigenvectors in order of size."""
    n, k = 12, 4
    vectors = qrlib.orthogonalize(normal(3, n, n, dtype=torch.float64))
    values = 2.0 ** -torch.arange(n, dtype=torch.float64)
    S = vectors * values @ vectors.mT
    Q = qrlib.orthogonalize(normal(3, n, k, seed=1, dtype=torch.float64))
    for _ in range(60):
        Q = qrlib.orthogonalize(S @ Q, positive_diag=True)
    torch.testing.assert_close(
        (Q.mT @ vectors[..., :k]).abs(), torch.eye(k).double().expand(3, k, k)
    )
    torch.testing.assert_close(torch.diagonal(Q.mT @ S @ Q, 0, -2, -1), values[:k].expand(3, k))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("shape", ((40, 16, 8), (2, 300, 100), (3, 64, 200)))
def test_on_the_gpu(shape, dtype):
    """The gradient of the same numbers on a CPU, in float64; and nobody waits for it."""
    X = normal(*shape, dtype=dtype).cuda().requires_grad_()
    torch.autograd.grad(loss(*qrlib.qr(X)), X)
    torch.cuda.set_sync_debug_mode("error")
    try:
        (ours,) = torch.autograd.grad(loss(*qrlib.qr(X)), X)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    exact = X.detach().cpu().double().requires_grad_()
    (theirs,) = torch.autograd.grad(loss(*torch.linalg.qr(exact)), exact)
    lost = torch.linalg.cond(exact[..., : exact.shape[-2]]).max() * torch.finfo(dtype).eps
    # float32 goes to tensor cores, which cut off: tens of eps of Q and R, see cut_off in test_apply
    times = 60 if dtype == torch.float32 else 10
    assert (ours.cpu() - theirs).norm() <= times * lost * theirs.norm()
