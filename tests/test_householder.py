"""The verbs one by one, each against its formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import normal

from qrlib import householder as hh
from qrlib.compact import unpack_r, unpack_v
from qrlib.stages import s01_mirror, s03_blocked, s04_recursive

D = torch.float64


def explicit(v, tau):
    return torch.eye(len(v), dtype=v.dtype) - tau * torch.outer(v, v)


@pytest.mark.parametrize("m", (1, 2, 5, 40))
@pytest.mark.parametrize("dtype", (torch.float32, D))
def test_larfg(m, dtype):
    x = normal(6, m, dtype=dtype)
    beta, v, tau = hh.larfg(x[:, 0], x[:, 1:])
    for b in range(6):
        h = explicit(torch.cat([torch.ones(1, dtype=dtype), v[b]]), tau[b])
        expected = torch.zeros(m, dtype=dtype)
        expected[0] = beta[b]
        torch.testing.assert_close(h @ x[b], expected, rtol=1e-5, atol=1e-5)
        one = s01_mirror.larfg(x[b].numpy())
        np.testing.assert_allclose(one[0], beta[b], rtol=1e-6)
        np.testing.assert_allclose(one[1][1:], v[b], rtol=1e-5)
        np.testing.assert_allclose(one[2], tau[b], rtol=1e-6)
    if m > 1:
        torch.testing.assert_close(beta.abs(), x.norm(dim=1))
        assert (torch.sign(beta) == -torch.sign(x[:, 0])).all()


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6))
def test_larfg_at_any_scale(entries):
    """Against float64, where nothing of float32 can under- or overflow."""
    x = torch.tensor([entries], dtype=torch.float32)
    norm = x.double().norm().item()
    largest = x.abs().max().item()
    for beta, v, tau in (
        hh.larfg(x[:, 0], x[:, 1:]),
        tuple(torch.as_tensor(np.asarray(r)) for r in s01_mirror.larfg(x[0].numpy())),
    ):
        beta, tau = beta.item(), tau.item()
        if not any(entries[1:]):
            assert tau == 0 and beta == x[0, 0].item()
            continue
        assert 1 - 1e-6 <= tau <= 2 + 1e-6
        assert v.abs().max() <= 1 + 1e-6
        # R may lie beyond the largest number, or below the smallest that has all its digits
        if norm < 3e38:
            assert abs(beta) == pytest.approx(norm, rel=1e-6, abs=1.5e-45)
        assert np.signbit(beta) != np.signbit(entries[0]) or largest == 0


def test_power_of_two_is_exact():
    for dtype, limit in ((torch.float32, 126), (D, 1022)):
        e = torch.arange(-limit, limit + 1)
        expected = torch.tensor([2.0**k for k in e.tolist()], dtype=D).to(dtype)
        assert torch.equal(hh.power_of_two(e, dtype), expected)


@pytest.mark.parametrize("dtype", (torch.float32, D))
def test_exponent_of(dtype):
    f = torch.finfo(dtype)
    x = torch.tensor([1.0, 0.5, 0.75, -3, 0, f.max, f.tiny, f.smallest_normal / 2**10], dtype=dtype)
    e = hh.exponent_of(x[:, None])
    limit = 126 if dtype == torch.float32 else 1022
    assert e.tolist() == [1, 0, 0, 2, 0, limit, -(limit - 1), -limit]
    scaled = (x * hh.power_of_two(-e, dtype)).abs()
    assert ((scaled[:5] < 1) & ((scaled[:5] >= 0.5) | (x[:5] == 0))).all()
    assert hh.exponent_of(torch.tensor([[float("nan")]], dtype=dtype)).tolist() == [0]


def test_headroom_is_one_for_ordinary_matrices_and_kept_where_needed():
    A = torch.stack([torch.full((8, 8), x) for x in (1.0, 1e20, 1e-20, 3e38, 1e-40, 0.0)])
    s = hh.headroom(A)[:, 0, 0]
    assert s[[0, 1, 2, 5]].tolist() == [1, 1, 1, 1]
    assert s[3] < 1 / 8 and s[4] > 1e30
    assert torch.equal(hh.unscale(A * s[:, None, None], s[:, None, None]).triu(), A.triu())
    assert hh.headroom(torch.empty(2, 0, 3)).shape == (2, 1, 1)


def test_larf():
    C, v, tau = normal(4, 7, 3, dtype=D), normal(4, 6, seed=1, dtype=D), normal(4, seed=2, dtype=D)
    out = C.clone()
    hh.larf(v, tau, out)
    for b in range(4):
        full = torch.cat([torch.ones(1, dtype=D), v[b]])
        torch.testing.assert_close(out[b], explicit(full, tau[b]) @ C[b])
        one = C[b].numpy().copy()
        s01_mirror.larf(full.numpy(), tau[b].item(), one)
        np.testing.assert_allclose(one, out[b], rtol=1e-12)


@pytest.mark.parametrize("b", (1, 2, 3, 8, 13))
@pytest.mark.parametrize("some_tau_zero", (False, True))
def test_block_reflector_is_the_product(b, some_tau_zero):
    V = unpack_v(normal(2, 20, b, dtype=D))
    tau = normal(2, b, seed=1, dtype=D)
    if some_tau_zero:
        tau[:, ::2] = 0
    T = hh.larft(V, tau)
    assert torch.equal(T, T.triu())
    C = normal(2, 20, 5, seed=2, dtype=D)
    for i in range(2):
        Q = torch.eye(20, dtype=D)
        for j in range(b):
            Q = Q @ explicit(V[i, :, j], tau[i, j])
        eye = torch.eye(20, dtype=D)
        torch.testing.assert_close(eye - V[i] @ T[i] @ V[i].mT, Q)
        torch.testing.assert_close(hh.larfb(V, T, C)[i], Q.mT @ C[i])
        torch.testing.assert_close(hh.larfb(V, T, C, transpose=False)[i], Q @ C[i])


@pytest.mark.parametrize("m, b", ((5, 1), (9, 2), (20, 7), (40, 16), (33, 33)))
def test_recursive_panel_is_the_unblocked_one(m, b):
    H1, H2 = normal(3, m, b, dtype=D), normal(3, m, b, dtype=D)
    tau1, tau2 = H1.new_zeros(3, b), H1.new_zeros(3, b)
    V1, T1 = s03_blocked.panel(H1, tau1)
    V2, T2 = s04_recursive.panel(H2, tau2)
    for one, two in ((H1, H2), (tau1, tau2), (V1, V2), (T1, T2)):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("as_numpy", (False, True))
@pytest.mark.parametrize("m, n", ((4, 4), (6, 3), (3, 6), (0, 2), (2, 0)))
def test_unpack(m, n, as_numpy):
    H = normal(2, m, n)
    k = min(m, n)
    given_ = H.numpy() if as_numpy else H
    V, R = torch.as_tensor(unpack_v(given_)), torch.as_tensor(unpack_r(given_))
    assert V.shape == (2, m, k) and R.shape == (2, k, n)
    assert torch.equal(V, H[..., :k].tril(-1) + torch.eye(m, k))
    assert torch.equal(R, H[:, :k].triu())


def test_a_wrong_shape_is_caught_here():
    """The shapes in the signatures are live in the tests."""
    with pytest.raises(Exception, match="(?s)larft.*tau"):
        hh.larft(normal(2, 5, 3), normal(2, 4))
