"""The verbs of Householder QR on batches of torch tensors.

Convention, as LAPACK: H_j = I - tau_j v_j v_j^T with v_j[0] = 1, Q = H_0 H_1 ... H_{k-1}, and
tau_j = 0 means H_j = I. A block of reflectors is I - V T V^T with V unit lower trapezoidal and T
upper triangular; its transpose has T^T. B counts matrices; every verb acts on each of them alone.
"""

import torch
from torch import Tensor

from qrlib.shapes import Float, Int


def matmul(X: Float[Tensor, "*B p q"], Y: Float[Tensor, "*B q r"]) -> Float[Tensor, "*B p r"]:
    """X Y in the precision of its operands, whatever torch is globally told about precision."""
    if X.dtype == torch.float32 and _reduced_precision_allowed(X.device.type):
        # those settings leave float64 alone, and changing them here would change them for others
        return (X.double() @ Y.double()).float()
    return X @ Y


def _reduced_precision_allowed(device: str) -> bool:
    backend = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    return backend.matmul.fp32_precision not in ("ieee", "none") or torch.is_autocast_enabled(
        device
    )


# what torch.compiler.assume_constant_result does, which takes two seconds to import the compiler; a
# graph is compiled anew where torch.set_float32_matmul_precision or autocast changes
_reduced_precision_allowed._dynamo_marked_constant = True


def exponent_of(x: Float[Tensor, "B t"]) -> Int[Tensor, " B"]:
    """e, with max|x| in [2^(e-1), 2^e), kept where 2^e and 2^-e are normal numbers; 0 for NaN."""
    limit = _max_exponent(x.dtype) - 2
    return torch.frexp(x.abs().amax(-1)).exponent.clamp(-limit, limit)


def power_of_two(e: Int[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """2^e, exactly, by writing the exponent field; torch.ldexp and exp2 do not promise it."""
    integer, mantissa_bits = (torch.int32, 23) if dtype == torch.float32 else (torch.int64, 52)
    return ((e.to(integer) + _max_exponent(dtype) - 1) << mantissa_bits).view(dtype)


def _max_exponent(dtype: torch.dtype) -> int:
    return 128 if dtype == torch.float32 else 1024


def headroom(A: Float[Tensor, "B m n"]) -> Float[Tensor, "B 1 1"]:
    """s, a power of two a matrix: 1 for nearly all, else what keeps the QR of s A in range.

    A column of R can be sqrt(m) times as large as an entry of A, and the products on the way
    larger still; entries of 1e-40 have few digits left for theirs. The QR of s A has the same V
    and tau, and s R.
    """
    B, m, n = A.shape
    limit = _max_exponent(A.dtype)
    bits = m.bit_length() + 3
    e = (
        exponent_of(A.reshape(B, m * n))
        if m * n
        else torch.zeros(B, dtype=torch.int32, device=A.device)
    )
    shift = torch.where(e > limit - bits, -bits, torch.where(e < 28 - limit, -e, 0))
    return power_of_two(shift, A.dtype)[:, None, None]


def unscale(H: Float[Tensor, "B m n"], s: Float[Tensor, "B 1 n1"]) -> Float[Tensor, "B m n"]:
    """R / s above, V untouched below: the compact form for A from that for s A."""
    upper = torch.ones(H.shape[1:], dtype=torch.bool, device=H.device).triu()
    return torch.where(upper, H / s, H)


def larfg(
    alpha: Float[Tensor, " B"], x: Float[Tensor, "B t"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B t"], Float[Tensor, " B"]]:
    """H (alpha, x) = (beta, 0): one reflector a matrix.

    Args:
        alpha: [B], the heads. x: [B, t], the tails.

    Returns:
        beta: [B], -sign(alpha) |(alpha, x)|, so that alpha - beta never cancels.
        v: [B, t], the tails of the Householder vectors; their heads are 1.
        tau: [B], in [1, 2], or exactly 0 where x is zero.

    Cost: 3t flops a matrix. Accuracy: a few eps at any scale, for the sum of squares is taken of
    numbers that a power of two has brought near 1. Source: LAPACK xLARFG; chapter "A mirror a
    column".
    """
    e = exponent_of(torch.cat([alpha[:, None], x], -1))
    s = power_of_two(-e, x.dtype)
    a, t = s * alpha, s[:, None] * x
    beta = -torch.copysign((a * a + (t * t).sum(-1)).sqrt(), a)
    tau, v = (beta - a) / beta, t / (a - beta)[:, None]
    # where the tail is zero there is nothing to reflect; a NaN is not zero and goes on
    done = (x == 0).all(-1)
    beta = torch.where(done, alpha, beta / s)
    return beta, v.masked_fill(done[:, None], 0), tau.masked_fill(done, 0)


def larf(v: Float[Tensor, "B t"], tau: Float[Tensor, " B"], C: Float[Tensor, "B m n"]) -> None:
    """C <- H C = C - tau v (v^T C), in place; the head of v is 1.

    Args:
        v: [B, m-1], tails. tau: [B]. C: [B, m, n], overwritten.

    Cost: 4mn flops a matrix; reads C twice and writes it once. Source: LAPACK xLARF.
    """
    w = tau[:, None, None] * (C[:, :1] + matmul(v[:, None, :], C[:, 1:]))
    C[:, :1] -= w
    C[:, 1:] -= v[:, :, None] * w


def geqr2(H: Float[Tensor, "B m n"], tau: Float[Tensor, "B k"]) -> None:
    """H <- R with the Householder vectors under it, column by column, in place.

    Args:
        H: [B, m, n], matrices on entry, compact on exit. tau: [B, min(m, n)], overwritten.

    Cost: 2n^2 (m - n/3) flops a matrix, and a pass over what is left of H for every column.
    Source: LAPACK xGEQR2; chapter "A mirror a column".
    """
    for j in range(tau.shape[-1]):
        beta, v, tau[:, j] = larfg(H[:, j, j], H[:, j + 1 :, j])
        larf(v, tau[:, j], H[:, j:, j + 1 :])
        H[:, j, j] = beta
        H[:, j + 1 :, j] = v


def larft(V: Float[Tensor, "B m b"], tau: Float[Tensor, "B b"]) -> Float[Tensor, "B b b"]:
    """T, upper triangular, with H_0 H_1 ... H_{b-1} = I - V T V^T.

    Args:
        V: [B, m, b], unit lower trapezoidal. tau: [B, b].

    Column j of T is -tau_j T[:j, :j] (V[:, :j]^T v_j) above tau_j. The inner products of all the
    columns are in G = V^T V, taken once.

    Cost: 2mb^2 + 2b^3/3 flops a matrix. Source: Schreiber and Van Loan 1989, LAPACK xLARFT; chapter
    "Panels".
    """
    T = torch.diag_embed(tau)
    G = matmul(V.mT, V)
    for j in range(1, tau.shape[-1]):
        T[:, :j, j : j + 1] = -tau[:, j, None, None] * matmul(T[:, :j, :j], G[:, :j, j : j + 1])
    return T


def larfb(
    V: Float[Tensor, "B m b"],
    T: Float[Tensor, "B b b"],
    C: Float[Tensor, "B m n"],
    *,
    transpose: bool = True,
) -> Float[Tensor, "B m n"]:
    """Q^T C = C - V (T^T (V^T C)); Q C with T in place of T^T.

    Args:
        V: [B, m, b]. T: [B, b, b]. C: [B, m, n], read.
        transpose: True for Q^T C, False for Q C.

    Cost: 4mnb + 2nb^2 flops a matrix, all of it in products of matrices. Source: LAPACK xLARFB;
    chapter "Panels".
    """
    W = matmul(V.mT, C)
    Z = matmul(T.mT if transpose else T, W)
    return C - matmul(V, Z)
