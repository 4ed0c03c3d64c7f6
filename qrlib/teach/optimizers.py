"""SOAP and Muon as short as they can be told, to see what QR does there. All weights are matrices.

Rates, rests and schedules are for the caller; nothing decays.
"""

import torch

from qrlib import foreach, orthogonalize


def by_qr(statistics, bases):
    """Q of each S Q, by mirrors: one step of orthogonal iteration."""
    products = [S @ Q for S, Q in zip(statistics, bases)]
    return foreach.orthogonalize(products, positive_diag=True)


def any_signs(statistics, bases):
    """The same, with the signs that the mirrors leave."""
    return foreach.orthogonalize([S @ Q for S, Q in zip(statistics, bases)])


def by_torch(statistics, bases):
    """The same by PyTorch's own QR, a matrix at a time."""
    return [torch.linalg.qr(S @ Q).Q for S, Q in zip(statistics, bases)]


def exact(statistics, bases=None):
    """The eigenvectors of each S, the largest eigenvalue first."""
    return [torch.linalg.eigh(S).eigenvectors.flip(-1) for S in statistics]


def frozen(statistics, bases):
    """The bases as they are."""
    return bases


class Soap(torch.optim.Optimizer):
    """Adam in the eigenbases of Shampoo's statistics; one QR a step keeps them."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, refresh=by_qr, every=1):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.refresh, self.every, self.count = refresh, every, 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        for group in self.param_groups:
            states = [self.state[W] for W in group["params"]]
            for W, state in zip(group["params"], states):
                self.move(W, W.grad, state, **group)
            if self.count % self.every == 0:
                # both sides of all matrices in one call
                sides = [(S, Q) for state in states for S, Q in zip(state["S"], state["Q"])]
                bases = iter(self.refresh(*map(list, zip(*sides))))
                for state in states:
                    state["Q"] = [next(bases), next(bases)]

    def move(self, W, G, state, *, lr, betas, eps, **_):
        """Adam's step in the bases; the first gradient makes them, no more."""
        new = G @ G.T, G.T @ G
        if not state:
            state.update(S=new, Q=exact(new), t=0, M=0 * G, V=0 * G)
            return
        (left, right), M, V = state["Q"], state["M"], state["V"]
        state["t"] += 1
        M.lerp_(G, 1 - betas[0])
        V.lerp_((left.T @ G @ right).square(), 1 - betas[1])
        mean = left.T @ M @ right / (1 - betas[0] ** state["t"])
        size = (V / (1 - betas[1] ** state["t"])).sqrt()
        W -= lr * left @ (mean / (size + eps)) @ right.T
        for S, fresh in zip(state["S"], new):
            S.lerp_(fresh, 1 - betas[1])


class SoapInside(Soap):
    """Soap that keeps its mean in the bases, and leaves it as it is when they move."""

    @torch.no_grad()
    def step(self):
        before = {W: state["Q"] for W, state in self.state.items()}
        super().step()
        for W, (left, right) in before.items():
            state = self.state[W]
            inside = left.T @ state["M"] @ right
            state["M"] = state["Q"][0] @ inside @ state["Q"][1].T


def newton_schulz(G, steps=5):
    """About U V^T of G = U S V^T: an odd polynomial of G, again and again, in products only.

    Coefficients: Jordan et al. 2024. They send singular values to about 1, not to 1.
    """
    X = G / G.norm()
    for _ in range(steps):
        A = X.mT @ X
        X = 3.4445 * X + X @ (-4.7750 * A + 2.0315 * A @ A)
    return X


class Muon(torch.optim.Optimizer):
    """The mean of the gradients, made orthogonal."""

    def __init__(self, params, lr=2e-2, beta=0.95, orthogonalize=newton_schulz):
        super().__init__(params, {"lr": lr, "beta": beta})
        self.orthogonalize = orthogonalize

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for W in group["params"]:
                state = self.state[W]
                if not state:
                    state["M"] = 0 * W
                M = state["M"].mul_(group["beta"]).add_(W.grad)
                ahead = W.grad + group["beta"] * M
                tall = len(W) >= W.shape[1]
                X = self.orthogonalize(ahead) if tall else self.orthogonalize(ahead.T).T
                # entries of one size in the mean square, whatever the shape
                W -= group["lr"] * 0.2 * max(W.shape) ** 0.5 * X


def q_of(G):
    """Q of G = Q R, with a positive diagonal."""
    return orthogonalize(G, positive_diag=True)
