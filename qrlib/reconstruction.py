"""The mirrors of a panel without going column by column: Cholesky QR, then Householder's vectors.

P = Q~ R comes from the Gram matrix, R^T R = P^T P and Q~ = P R^-1. The mirrors that would have made
such a Q~ are hidden in it: with a diagonal S of signs,

    Q~ - [S] = V U       unpivoted LU; V unit lower trapezoidal, L its top; the mirrors' R is S R
         [0]

Times R it says P - [S R; 0] = V W, W = U R. So Q~ need not be formed: L and W come from the top
square of P, and below it V is P W^-1. Of all this only V is kept: tau_j = 2 / v_j^T v_j makes each
mirror orthogonal, and T is the inverse of striu(V^T V) + diag(1/tau). What was lost in the Gram
matrix shows between the two, for exactly

    Q~ - Q [S] = V X S,    P - Q [S R] = V X (S R),    X = U S + T L^T,    Q = I - V T V^T
           [0]                   [ 0 ]

so the factor residual of every column of the panel is known from matrices b x b. B counts matrices;
every verb acts on each of them alone, and calls no factorization or solver of a library.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from qrlib.compact import unpack_v
from qrlib.householder import exponent_of, matmul, power_of_two
from qrlib.shapes import Bool, Float
from qrlib.stages import s03_blocked


def cholesky(G: Float[Tensor, "B b b"]) -> tuple[Float[Tensor, "B b b"], Bool[Tensor, " B"]]:
    """R^T R = G, R upper triangular with a diagonal >= 0, row by row.

    Args:
        G: [B, b, b], Gram matrices.

    Returns:
        R: [B, b, b]. A zero column of G is a zero column and a zero row of R. Where a pivot is no
            good the row is that of the identity, so that all stays finite.
        ok: [B], False where a pivot is at most b eps times the entry of G it began as, unless that
            is zero: as much may be rounding. False for NaN, too.

    Cost: b^3/3 flops a matrix. Source: LAPACK xPOTF2; chapter "All columns at once".
    """
    R, ok = torch.zeros_like(G), torch.ones(len(G), dtype=torch.bool, device=G.device)
    for j in range(G.shape[-1]):
        root, row, good = _row(G, R, j)
        R[:, j, j:] = row / root.where(good, 1)[:, None]
        R[:, j, j] = root
        ok &= good | (root == 0)
    return R, ok


def _row(G, R, j):
    """Row j of R, from the diagonal on, times its diagonal; that; and whether there is one."""
    row = G[:, j, j:] - matmul(R[:, :j, j : j + 1].mT, R[:, :j, j:])[:, 0]
    pivot, whole = row[:, 0], G[:, j, j]
    # not (<=): a NaN is no pivot
    good = pivot > G.shape[-1] * torch.finfo(G.dtype).eps * whole
    root = pivot.where(good, 1).sqrt().where(whole != 0, 0)
    return root, row.where(good[:, None], 0), good


def triangular_inverse(R: Float[Tensor, "B b b"]) -> Float[Tensor, "B b b"]:
    """R^-1 of an upper triangular R, column by column: -R^-1[:j, :j] R[:j, j] / R[j, j].

    Where R has a zero on its diagonal, R^-1 has a zero row and a zero column: that mirror, or that
    column of P, is left out.

    Cost: b^3/3 flops a matrix. Source: LAPACK xTRTI2; chapter "All columns at once".
    """
    X = torch.zeros_like(R)
    for j in range(R.shape[-1]):
        d = R[:, j, j]
        X[:, j, j] = (1 / d).where(d != 0, 0)
        X[:, :j, j] = -matmul(X[:, :j, :j], R[:, :j, j : j + 1])[..., 0] * X[:, j, j, None]
    return X


def signed_lu(
    Q: Float[Tensor, "B b b"],
) -> tuple[Float[Tensor, "B b b"], Float[Tensor, "B b b"], Float[Tensor, "B b"]]:
    """Q - S = L U, without pivoting; S = -sign of the diagonal entry, when its turn comes.

    Args:
        Q: [B, b, b], the first rows of a matrix with orthonormal columns.

    Returns:
        L: [B, b, b], unit lower triangular. U: [B, b, b], upper triangular, with a diagonal of at
        least 1 in magnitude. S: [B, b], 1 or -1; the sign is that of the bit, -0.0 has one.

    Cost: 2b^3/3 flops a matrix. Source: Ballard et al. 2015, LAPACK xLAORHR_COL_GETRFNP; chapter
    "All columns at once".
    """
    A, S = Q.clone(), torch.ones_like(Q[:, 0])
    for j in range(Q.shape[-1]):
        S[:, j] = -torch.copysign(S[:, j], A[:, j, j])
        A[:, j, j] -= S[:, j]
        A[:, j + 1 :, j] /= A[:, j, j, None]
        A[:, j + 1 :, j + 1 :] -= A[:, j + 1 :, j : j + 1] * A[:, j : j + 1, j + 1 :]
    return unpack_v(A), A.triu(), S


def eliminate(
    G: Float[Tensor, "B b b"], P: Float[Tensor, "B b b"]
) -> tuple[
    Float[Tensor, "B b b"], Float[Tensor, "B b b"], Float[Tensor, "B b b"], Bool[Tensor, " B"]
]:
    """R^T R = G and P - R = L W at once: step j of both, and in between the sign of row j of R.

    Args:
        G: [B, b, b], the Gram matrix of a panel. P: [B, b, b], its top square.

    Returns:
        R: [B, b, b], that of the mirrors, with its signs. L: [B, b, b], unit lower triangular.
        W: [B, b, b], upper triangular; its diagonal is no smaller than that of R, and 1 in a zero
        column. ok: [B], as of `cholesky`.

    Cost: b^3 flops a matrix. Source: `cholesky` and `signed_lu`; chapter "All columns at once".
    """
    A, R, ok = P.clone(), torch.zeros_like(G), torch.ones(len(G), dtype=torch.bool, device=G.device)
    for j in range(G.shape[-1]):
        root, row, good = _row(G, R, j)
        beta = -torch.copysign(root, A[:, j, j])
        R[:, j, j:] = row / beta.where(good, 1)[:, None]
        R[:, j, j] = beta
        A[:, j, j:] -= R[:, j, j:]
        A[:, j, j] = A[:, j, j].where(root != 0, 1)
        A[:, j + 1 :, j] /= A[:, j, j, None]
        A[:, j + 1 :, j + 1 :] -= A[:, j + 1 :, j : j + 1] * A[:, j : j + 1, j + 1 :]
        ok &= good | (root == 0)
    return R, unpack_v(A), A.triu(), ok


class Reconstruction(NamedTuple):
    """What `reconstruct` made of panels P [B, m, b].

    V: [B, m, b], unit lower trapezoidal. T: [B, b, b]. tau: [B, b]. R: [B, b, b], that of mirrors.
    backward: [B], the largest |V X r_j| / |r_j|, the factor residual of a column.
    ok: [B], False where there are no such mirrors, or where they would not be LAPACK's.
    """

    V: Tensor
    T: Tensor
    tau: Tensor
    R: Tensor
    backward: Tensor
    ok: Tensor


def reconstruct(P, passes=1):
    """The mirrors of P [B, m, b], m >= b, from its Gram matrix. Returns Reconstruction.

    A zero column has tau = 0 and is left alone. Where others follow it, R has a row there that no
    Gram matrix knows, and `backward` tells. Not ok: a Cholesky that stops; a column with nothing
    below its diagonal, for it needs no mirror.

    Args:
        passes: 2 does it for P R^-1, with the R that Cholesky finds first, and so squares nothing.

    Cost: 6mb^2 flops and about 6b^3 a matrix, and 4mb^2 for a second pass; all that grows with m is
    in products of matrices. Source: Ballard et al. 2015, for two passes Yamamoto et al. 2015;
    chapter "All columns at once".
    """
    B, m, b = P.shape
    # a power of two a column: nothing is rounded, and no sum of squares leaves the range
    e = exponent_of(P.mT.reshape(B * b, m)).reshape(B, 1, b)
    P = P * power_of_two(-e, P.dtype)
    first = None
    if passes == 2:
        first, found = cholesky(matmul(P.mT, P))
        P = matmul(P, triangular_inverse(first))
    R, L, W, ok = eliminate(matmul(P.mT, P), P[:, :b])
    V = torch.cat([L, matmul(P[:, b:], triangular_inverse(W))], 1)

    there = R.diagonal(0, -2, -1) != 0
    G = matmul(V.mT, V)
    half = (G.diagonal(0, -2, -1) / 2).where(there, 0)
    T = triangular_inverse(G.triu(1) + torch.diag_embed(half))
    # X (S R), for U S (S R) = U R = W
    Y = (W + matmul(T, matmul(L.mT, R))) * there[:, None]
    if first is not None:
        R, Y, ok = matmul(R, first), matmul(Y, first), ok & found
    # (V y)^T (V y) = y^T G y, and a column of P is as long as that of R
    squares, lengths = (Y * matmul(G, Y)).sum(1).clamp(min=0), (R * R).sum(1)
    reflected = ((V.tril(-1) != 0).any(1) | ~there).all(1)
    return Reconstruction(
        V,
        T,
        tau=(1 / half).where(there, 0),
        R=R * power_of_two(e, P.dtype),
        backward=(squares / lengths.where(there, 1)).sqrt().amax(1),
        ok=ok & reflected,
    )


def panel(H, tau, *, passes=1, limit=1.0, fell=None):
    """Factor a panel in place and give its block reflector I - V T V^T; for `right_looking`.

    Of a panel at least twice as tall as wide, every matrix that is ok and whose residual is within
    the limit is reconstructed. All others go to Householder, those matrices alone.

    Args:
        H: [B, m, b], overwritten by its compact form. tau: [B, b], overwritten.
        passes: 1 or 2, as of `reconstruct`.
        limit: of `backward`, in LAPACK's unit, m eps/2.
        fell: a list, or None; it gets a [B], True for the matrices that went to Householder.

    Returns:
        V: [B, m, b], unit lower trapezoidal. T: [B, b, b], upper triangular.
    """
    B, m, b = H.shape
    fall = torch.ones(B, dtype=torch.bool, device=H.device)
    found = None
    if m >= 2 * b:
        found = reconstruct(H, passes)
        # not (>): a NaN falls
        fall = ~(found.ok & (found.backward <= limit * m * torch.finfo(H.dtype).eps / 2))
    if fell is not None:
        fell.append(fall)
    if found is None:
        return s03_blocked.panel(H, tau)
    mirrors, scalars = H[fall], tau[fall]
    V, T = found.V, found.T
    V[fall], T[fall] = s03_blocked.panel(mirrors, scalars)
    H.copy_(V.tril(-1))
    H[:, :b] += found.R.triu()
    tau.copy_(found.tau)
    H[fall], tau[fall] = mirrors, scalars
    return V, T


def geqrf(A, *, nb=32, passes=1, limit=1.0, fell=None):
    """A = Q R by panels of nb columns, reconstructed. A: [B, m, n], torch; read. As `panel`."""

    def reconstructed(H, tau):
        return panel(H, tau, passes=passes, limit=limit, fell=fell)

    return s03_blocked.right_looking(A, nb, reconstructed, s03_blocked.update)
