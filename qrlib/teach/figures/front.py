"""The picture on the first page: a matrix walked down to R, one mirror a column."""

import numpy as np

from qrlib import matrices
from qrlib.stages.s01_mirror import larf, larfg
from qrlib.teach.svg import Figure

M, N = 6, 4


def states():
    """[(H, owner)] before the first mirror and after each; owner names the mirror a cell stores."""
    H = matrices.make("dense", 1, M, seed=5, dtype=np.float64)[0][:, :N].copy()
    owner = np.full((M, N), -1)
    shown = [(H.copy(), owner.copy())]
    for j in range(N):
        beta, v, tau = larfg(H[j:, j])
        larf(v, tau, H[j:, j + 1 :])
        H[j, j], H[j + 1 :, j] = beta, v[1:]
        owner[j + 1 :, j] = j
        shown.append((H.copy(), owner.copy()))
    return shown


def walk(columns=5):
    """The states side by side, `columns` in a row."""
    shown = states()
    cell, gap, top = 19, 26, 26
    width, height = N * cell, M * cell
    rows = -(-len(shown) // columns)
    fig = Figure(
        columns * (width + gap) - gap + 4,
        rows * (height + top + 12),
        f"A matrix with {M} rows and {N} columns, five times: as it was given, and after each of "
        f"{N} mirrors. Each mirror clears one column below the diagonal; the cleared cells, drawn "
        "in orange with a dot, store the mirror itself. At the end the blue cells are R.",
    )
    largest = max(np.abs(H).max() for H, _ in shown)
    for k, (H, owner) in enumerate(shown):
        x = 2 + (k % columns) * (width + gap)
        y = top + (k // columns) * (height + top + 12)
        fig.text(x + width / 2, y - 14, "A" if k == 0 else f"mirror {k}", size=13)
        colors = np.where(owner >= 0, "orange", "blue").tolist()
        fig.matrix(x, y, np.abs(H), cell=cell, color=colors, text=None, top=largest)
        for i, j in zip(*np.nonzero(owner >= 0)):
            fig.circle(x + (j + 0.5) * cell, y + (i + 0.5) * cell, 2, color="none", fill="ink")
    return fig
