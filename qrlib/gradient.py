"""The reduced A = Q R with its derivatives, in both directions, for A of full rank.

With Q^T Q = I and R upper triangular, dA = dQ R + Q dR. Of W = dA R^-1 = dQ + Q (dR R^-1) the part
Q^T W = Q^T dQ + dR R^-1 is skew plus upper: what is below its diagonal tells both apart. Columns
past the first m of a wide A are Q times those of R, and add what Q does to them.
"""

import torch

from qrlib import api
from qrlib.householder import matmul


class Reduced(torch.autograd.Function):
    """(A, positive_diag, stage, precision) -> (Q, R), as `api.form` gives them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A, *asked):
        # torch gives no forward derivative to a result that is a view, as of a batch of one
        unsafe_view = torch.ops.aten._unsafe_view.default
        return tuple(unsafe_view(X, X.shape) for X in api.form(A, "reduced", *asked))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx, gQ, gR):
        """gA from gQ and gR. Cost: 6mk^2 + O(nk^2) flops. Source: Walter and Lehmann 2010."""
        Q, R = ctx.saved_tensors
        k = (Q.shape[-1],)
        (U, V), (gU, gV) = R.tensor_split(k, -1), gR.tensor_split(k, -1)
        gQ = gQ + matmul(matmul(Q, V), gV.mT)
        # what is above the diagonal, mirrored below it
        M = (matmul(gU, U.mT) - matmul(Q.mT, gQ)).triu()
        N = gQ + matmul(Q, M + M.triu(1).mT)
        gX = torch.linalg.solve_triangular(U.mT, N, upper=False, left=False)
        return torch.cat([gX, matmul(Q, gV)], -1), None, None, None


class ReducedForward(Reduced):
    """Reduced with a forward derivative, which torch.compile refuses to see."""

    @staticmethod
    def jvp(ctx, dA, *_):
        Q, R = ctx.saved_tensors
        k = (Q.shape[-1],)
        (U, V), (dU, dV) = R.tensor_split(k, -1), dA.tensor_split(k, -1)
        W = torch.linalg.solve_triangular(U, dU, upper=True, left=False)
        P = matmul(Q.mT, W)
        L = P.tril(-1)
        skew = L - L.mT
        T = P - skew
        dR = torch.cat([matmul(T, U), matmul(Q.mT, dV) - matmul(skew, V)], -1)
        return W - matmul(Q, T), dR.triu()


def reduced(A, positive_diag, stage, precision):
    """Q [..., m, k] and R [..., k, n] of A [..., m, n], differentiable."""
    function = Reduced if torch.compiler.is_compiling() else ReducedForward
    return function.apply(A, positive_diag, stage, precision)
