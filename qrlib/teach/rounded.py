"""Stage 3 with one of its steps in a short format, all others in float32. torch, no tensor core.

Each rounding is that of `qrlib.precision`, with a power of two for each column, so that a format
shows its bits and not its range. The loop is `right_looking`; only a panel or an update is new.
"""

import torch

from qrlib.compact import unpack_v
from qrlib.householder import larf, larfg, larft, matmul
from qrlib.precision import product, split
from qrlib.stages import s03_blocked

STEPS = ("W", "VZ", "update", "C", "V", "V and tau", "panel")


def short(x, format):
    """x [B, m, n] in a format, with a power of two for each column that fits it into the range."""
    (part,), scale = split(x, format, 1, axis=-2)
    return part * scale


def update(format, terms=1, *, where="update", scale="vector"):
    """An update for `right_looking`, C <- Q^T C in place, with products of short factors.

    Args:
        format, terms, scale: of the products; see precision.product.
        where: "W": V^T C; "VZ": V Z; "update": both. The small product with T is in float32.
    """

    def short_product(a, b):
        return product(a, b, format, terms, scale=scale)

    def update(V, T, C):
        W = (matmul if where == "VZ" else short_product)(V.mT, C)
        Z = matmul(T.mT, W)
        C -= (matmul if where == "W" else short_product)(V, Z)

    return update


def stored(format):
    """An update in float32, but C is kept in a format from one update to the next."""

    def update(V, T, C):
        s03_blocked.update(V, T, C)
        C.copy_(short(C, format))

    return update


def short_v(format, own_tau):
    """A panel in float32 whose vectors are rounded at its end; tau as it was, or 2 / v^T v."""

    def panel(H, tau):
        V, _ = s03_blocked.panel(H, tau)
        V = short(V, format)
        if own_tau:
            # where there is no mirror, tau = 0, there shall be none
            tau.copy_(torch.where(tau == 0, tau, 2 / (V * V).sum(-2)))
        k = tau.shape[-1]
        H[..., :k] = H[..., :k].triu() + V.tril(-1)
        return V, larft(V, tau)

    return panel


def short_panel(format):
    """A panel that is rounded after every mirror: v, tau, and what the mirror leaves."""

    def panel(H, tau):
        for j in range(tau.shape[-1]):
            beta, v, t = larfg(H[:, j, j], H[:, j + 1 :, j])
            v = short(v[:, :, None], format)[:, :, 0]
            tau[:, j] = short(t[:, None, None], format)[:, 0, 0]
            larf(v, tau[:, j], H[:, j:, j + 1 :])
            H[:, j, j], H[:, j + 1 :, j] = beta, v
            H[:, j:, j + 1 :] = short(H[:, j:, j + 1 :], format)
        V = unpack_v(H, tau.shape[-1])
        return V, larft(V, tau)

    return panel


def geqrf(A, format, step="update", terms=1, *, nb=32, scale="vector"):
    """Stage 3 with a step of STEPS in a format. A: [B, m, n], torch; read. Returns QR(H, tau).

    Args:
        step: "W", "VZ", "update": products of the update, in so many terms. "C": what lies on the
            right of the panel, between updates. "V", "V and tau": the vectors of a panel, with the
            tau of the panel or their own. "panel": all of the panel.
        nb: the width of a panel. scale: of products; see precision.split.
    """
    if step not in STEPS:
        raise ValueError(f"step must be one of {', '.join(STEPS)}; got {step!r}")
    panels = {
        "V": short_v(format, False),
        "V and tau": short_v(format, True),
        "panel": short_panel(format),
    }
    if step in panels:
        return s03_blocked.right_looking(A, nb, panels[step], s03_blocked.update)
    made = stored(format) if step == "C" else update(format, terms, where=step, scale=scale)
    return s03_blocked.right_looking(A, nb, s03_blocked.panel, made)
