"""From a textbook to a geqrf in four edits, for qrlib.teach.contract to look at each."""

import torch

# what each version has that the one before had not
EDITS = (
    "the textbook's loop",
    "no mirror where there is nothing to reflect",
    "as many mirrors as the shape has",
    "a power of two for each matrix",
    "a copy of its own",
)


def attempt(edits):
    """The geqrf after so many edits: 0 is the textbook, 4 keeps every clause."""
    guarded, shaped, scaled, copied = (edits >= k for k in range(1, 5))

    def geqrf(A):
        B, m, n = A.shape
        H = A.clone() if copied else A
        if scaled:
            _, e = torch.frexp(A.abs().amax((1, 2), keepdim=True))
            # in two halves, for 2^-e alone may be no number
            H *= 2.0 ** -(e // 2)
            H *= 2.0 ** -(e - e // 2)
        tau = A.new_zeros(B, min(m, n))
        for j in range(min(m, n) if shaped else n):
            alpha, x = H[:, j, j].clone(), H[:, j + 1 :, j].clone()
            beta = -torch.copysign((alpha * alpha + (x * x).sum(1)).sqrt(), alpha)
            nothing = (x == 0).all(1) & guarded
            beta = torch.where(nothing, alpha, beta)
            tau[:, j] = torch.where(nothing, 0, (beta - alpha) / beta)
            v = torch.cat([torch.ones(B, 1), x / (alpha - beta)[:, None]], 1)
            v[nothing, 1:] = 0
            right = H[:, j:, j + 1 :]
            right -= tau[:, j, None, None] * v[:, :, None] * (v[:, None] @ right)
            H[:, j, j], H[:, j + 1 :, j] = beta, v[:, 1:]
        if scaled:
            R = H.triu() * 2.0 ** (e // 2) * 2.0 ** (e - e // 2)
            H.copy_(R + H.tril(-1))
        return H, tau

    return geqrf
