"""Wrong answers to the exercises of the chapter Use it, each with words of the message it gets."""

import math

import numpy as np
import torch

import qrlib
from qrlib.teach.exercises import use as chapter

RIGHT = ("step from inside", "average", "determinant")


def by_order(S, Q, order, *, then_sort=False, of=None, fixed=True):
    columns = order[:, None].expand_as(Q)
    if then_sort:
        return qrlib.orthogonalize(S @ Q, positive_diag=True).gather(-1, columns), order
    Q = Q.gather(-1, columns)
    return qrlib.orthogonalize(S @ Q if of is None else of(S, Q), positive_diag=fixed), order


def sizes(S, Q):
    return (Q * (S @ Q)).sum(-2)


def falling(S, Q):
    return sizes(S, Q).argsort(-1, descending=True)


def refreshed(S, Q, **change):
    return by_order(S, Q, falling(S, Q), **change)


def unsorted(S, Q):
    order = torch.arange(S.shape[1]).expand(S.shape[:2])
    return by_order(S, Q, order)


def by_own_diagonal(S, Q):
    return by_order(S, Q, torch.diagonal(S, 0, -2, -1).argsort(-1, descending=True))


def all_of_the_way(S, Q):
    U = torch.linalg.eigh(S).eigenvectors.flip(-1)
    along = torch.sign((U * Q.gather(-1, falling(S, Q)[:, None].expand_as(Q))).sum(-2))
    return U * torch.where(along == 0, 1, along)[:, None], falling(S, Q)


def not_orthonormal(S, Q):
    return S @ Q.gather(-1, falling(S, Q)[:, None].expand_as(Q)), falling(S, Q)


def one_by_one(function):
    def call(*given):
        B = len(given[0])
        parts = [
            function(*(X[k : k + 1] if isinstance(X, torch.Tensor) else X for X in given))
            for k in range(B)
        ]
        if isinstance(parts[0], tuple):
            return tuple(torch.cat(each) for each in zip(*parts))
        return torch.cat(parts)

    return call


def refreshed_in_place(S, Q):
    new, order = chapter.refreshed(S, Q)
    return Q.copy_(new), order


def haar(G, *, by=lambda Q, R: torch.sign(torch.diagonal(R, 0, -2, -1))[..., None, :]):
    Q, R = qrlib.qr(G)
    return Q * by(Q, R)


def polar(G):
    U, _, Vh = torch.linalg.svd(G)
    return U @ Vh


def of_columns(G):
    return G / G.norm(dim=1, keepdim=True)


def with_mu(A, b, mu, *, rows=lambda mu: mu, below=0.0):
    n = A.shape[2]
    eye = torch.eye(n, dtype=A.dtype).expand(len(A), n, n)
    more = torch.full((len(b), n, b.shape[2]), below, dtype=b.dtype)
    return qrlib.lstsq(torch.cat([A, rows(mu) * eye], 1), torch.cat([b, more], 1)).solution


def normal_equations(A, b, mu):
    eye = torch.eye(A.shape[2], dtype=A.dtype)
    return torch.linalg.solve(A.mT @ A + mu**2 * eye, A.mT @ b)


def without_mu(A, b, mu):
    return torch.linalg.pinv(A) @ b


def needed(S, tol, *, start=0, step=None, relative=True, below=False):
    Q, steps = torch.eye(len(S), dtype=S.dtype), start
    step = step or (lambda S, Q: qrlib.orthogonalize(S @ Q, positive_diag=True))
    while steps < 500:
        seen = Q.T @ S @ Q
        beside = seen - torch.diag(torch.diagonal(seen))
        beside = torch.diagonal(beside, -1) if below else beside
        if beside.abs().max() <= tol * (torch.diagonal(seen).max() if relative else 1):
            return steps
        Q, steps = step(S, Q), steps + 1
    return math.inf


def by_formula(S, tol):
    values = torch.linalg.eigvalsh(S).flip(0)
    return math.ceil(math.log(tol) / math.log(float(values[1] / values[0])))


def nearly(value, i, j, *, both=True):
    S = np.eye(6)
    S[i, j] = value
    if both:
        S[j, i] = value
    return S


WRONG = {
    "use.1": {
        "the squares": ((*RIGHT, "squares"), "A square forgets"),
        "the step": ((*RIGHT, "step"), '"step" does not change'),
        "the solution": ((*RIGHT, "solution"), "meet, and cancel"),
        "not the mean": (("step from inside", "determinant"), "The mean of a column"),
        "not the inside": (("average", "determinant"), "once, not twice"),
        "not the determinant": (RIGHT[:2], "A mirror more or less"),
        "nothing": ((), "is missing: it changes"),
        "a name of none": (("sign",), "none of the names"),
        "one name": ("average", "must be a tuple of names"),
    },
    "use.2": {
        "unsorted": (unsorted, "the largest comes first"),
        "rising": (
            lambda S, Q: by_order(S, Q, sizes(S, Q).argsort(-1)),
            "order is [[0, 1]]; expected [[1, 0]]",
        ),
        "by its own diagonal": (by_own_diagonal, "not by the diagonal of S"),
        "sorted too late": (lambda S, Q: refreshed(S, Q, then_sort=True), "Sort the columns first"),
        "any signs": (lambda S, Q: refreshed(S, Q, fixed=False), "has changed its sign"),
        "not orthonormal": (not_orthonormal, "That is S Q"),
        "all of the way": (all_of_the_way, "one step is asked"),
        "two steps": (
            lambda S, Q: refreshed(S, Q, of=lambda S, Q: S @ (S @ Q)),
            "Q of S times the sorted columns",
        ),
        "no S": (lambda S, Q: refreshed(S, Q, of=lambda S, Q: Q), "Q of S times the sorted"),
        "one by one": (one_by_one(chapter.refreshed), "one by one"),
        "in place": (refreshed_in_place, "changed its input Q"),
        "the basis alone": (lambda S, Q: chapter.refreshed(S, Q)[0], "2 things, new basis, order"),
        "order as a list": (lambda S, Q: (chapter.refreshed(S, Q)[0], [1, 0]), "must be a tensor"),
    },
    "use.3": {
        "as they come": (qrlib.orthogonalize, "diagonal"),
        "rows": (
            lambda G: haar(G, by=lambda Q, R: torch.diagonal(R, 0, -2, -1).sign()[..., None]),
            "A sign belongs to a column of Q",
        ),
        "the other sign": (
            lambda G: haar(G, by=lambda Q, R: -torch.diagonal(R, 0, -2, -1).sign()[..., None, :]),
            "has to be 3, 2 and 3, 2 on its diagonal",
        ),
        "rotations": (
            lambda G: haar(G, by=lambda Q, R: torch.linalg.det(Q)[:, None, None]),
            "on its diagonal",
        ),
        "by the diagonal of Q": (
            lambda G: haar(G, by=lambda Q, R: torch.diagonal(Q, 0, -2, -1).sign()[..., None, :]),
            "The result",
        ),
        "polar": (polar, "R = Q^T G has to be"),
        "columns of length one": (of_columns, "R = Q^T G has to be"),
        "in half precision": (lambda G: chapter.haar(G).half().double(), "from orthonormal"),
        "R": (lambda G: qrlib.qr(G)[1], "The result"),
    },
    "use.4": {
        "normal equations": (normal_equations, "the square of the condition"),
        "the root of mu": (
            lambda A, b, mu: with_mu(A, b, mu, rows=math.sqrt),
            "not sqrt(mu) I",
        ),
        "mu squared": (
            lambda A, b, mu: with_mu(A, b, mu, rows=lambda mu: mu**2),
            "their squares have mu^2",
        ),
        "without mu": (without_mu, "That is for mu = 0"),
        "ones below": (lambda A, b, mu: with_mu(A, b, mu, below=1.0), "15 / (25 + mu^2)"),
        "one by one": (one_by_one(chapter.ridge), "one by one"),
        "in place": (lambda A, b, mu: b[:, : A.shape[2]].copy_(0), "changed its input b"),
        "float64": (lambda A, b, mu: chapter.ridge(A.double(), b.double(), mu), "must be float32"),
    },
    "use.5": {
        "I": (np.eye(6), "0 of 6 columns"),
        "diagonal": (np.diag(1 + np.arange(6) / 1000), "0 of 6 columns"),
        "one entry": (nearly(1e-3, 3, 1), "1 of 6 columns"),
        "-I": (-np.eye(6), "is 2 from that of I"),
        "half a side": (nearly(1e-3, 3, 1, both=False), "not symmetric"),
        "float32": ((np.eye(6) + 1e-3).astype(np.float32), "must be a float64 array"),
        "NaN": (np.full((6, 6), np.nan), "S has NaN"),
        "a batch": (np.eye(6)[None], "must be a float64 array"),
    },
    "use.6": {
        "from one": (lambda S, tol: needed(S, tol, start=1), "a diagonal S needs none"),
        "two at once": (
            lambda S, tol: needed(
                S, tol, step=lambda S, Q: qrlib.orthogonalize(S @ (S @ Q), positive_diag=True)
            ),
            "One step is Q of S Q",
        ),
        "absolute": (lambda S, tol: needed(S, tol, relative=False), "expected"),
        "neighbours only": (lambda S, tol: needed(S, tol, below=True), "Look at all entries"),
        "no step": (lambda S, tol: needed(S, tol, step=lambda S, Q: Q), "It gives inf"),
        "by a formula": (by_formula, "expected"),
        "a word": (lambda S, tol: "three", "must be a number"),
    },
}
