"""Stage 5 with other warps for its tallest panels, so that the benchmark can compare them.

    python -m qrlib.bench --stage qrlib.teach.warps:warps=2 qrlib.teach.warps:warps=8,unroll=1 ...

Only the panels of 257 to 512 rows are touched: half of those of a 512 x 512 matrix.
"""

from qrlib.jit import put
from qrlib.stages import s05_panel

ROWS = 512


def geqrf(A, *, warps, unroll=0):
    """A = Q R by stage 5, a register tile of 512 rows held by `warps` warps. A: [B, m, n].

    Args:
        unroll: 1 for a copy of the code for each column, 0 for a loop.
    """
    table = {**s05_panel.TABLE, ROWS: (warps, bool(unroll))}
    with put(vars(s05_panel), "TABLE", table):
        return s05_panel.geqrf(A)
