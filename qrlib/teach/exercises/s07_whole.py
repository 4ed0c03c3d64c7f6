"""Exercises of chapter 10, A small matrix is one program. Kernels run in Triton's interpreter."""

import math
import numbers

import numpy as np
import torch
import triton
import triton.language as tl

from qrlib import matrices
from qrlib.scaling import half_log2
from qrlib.stages.s07_whole import tiny_kernel
from qrlib.teach.exercises.compare import (
    array,
    certified,
    close,
    entries,
    kind,
    nan_stays_home,
    number,
    several,
)
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.exercises.s02_unblocked import EXAMPLE, normal
from qrlib.tracer import trace

# 10.1


def waves(programs, sms, places):
    """(waves, busy): how many waves the programs take; the share of the places that are ever used.

    places: how many programs one of the sms has room for at a time. Of waves * sms * places places,
    busy is the share in which a program runs.
    """
    chip = sms * places
    count = -(-programs // chip)
    return count, programs / (count * chip)


def _waved(programs, sms, places):
    def step(answer):
        count, busy = several(answer(programs, sms, places), ("waves", "busy"))
        count, busy = number("waves", count), number("busy", busy)
        right, share = waves(programs, sms, places)
        if count != right:
            hints = {
                programs / (sms * places): "Waves come whole: round up.",
                programs
                // (sms * places): "The rest that does not fill the chip needs a wave too.",
                programs // (sms * places) + 1: "Nothing is left over: no wave more.",
                -(-programs // sms): "An SM has room for several programs at a time.",
                -(-programs // places): "There is more than one SM.",
            }
            raise Wrong(
                f"{programs} programs, {sms} SMs with {places} places each: waves is {count:g}; "
                f"expected {right}.",
                hints.get(count, "How many programs does the whole chip take at a time?"),
            )
        if not abs(busy - share) <= 1e-6:
            last = programs - (right - 1) * sms * places
            hint = "Programs over places: each wave offers sms * places of them."
            if close(busy, last / (sms * places)):
                hint = "That is the last wave alone; the others are full, and they count too."
            elif close(busy, 1 - share):
                hint = "That is the share that is idle."
            raise Wrong(
                f"{programs} programs, {sms} SMs with {places} places each: busy is {busy:.4g}; "
                f"expected {share:.4g}.",
                hint,
            )

    return step


# 10.2


def tile_rows(m, n, BM, BN, levels):
    """[rows of the register tile] for each panel of an m x n matrix, as stage 7 takes them.

    BM: rows of the first tile, a power of two, at least m. BN: columns of a panel. levels: how many
    sizes there are: BM, BM / 2, ..., the last one is never halved.
    """
    rows = []
    tile, least = BM, BM >> (levels - 1)
    for p in range(0, min(m, n), BN):
        while tile > least and m - p <= tile // 2:
            tile //= 2
        rows.append(tile)
    return rows


def _tiled(m, n, BM, BN, levels):
    def step(answer):
        got = answer(m, n, BM, BN, levels)
        if not isinstance(got, (list, tuple)) or not all(
            isinstance(each, (numbers.Real, np.number)) and not isinstance(each, bool)
            for each in got
        ):
            raise Wrong(f"It must give a list of numbers, one for each panel; got {kind(got)}.")
        right = tile_rows(m, n, BM, BN, levels)
        if len(got) != len(right):
            raise Wrong(
                f"A {m} x {n} matrix in panels of {BN} has {len(right)} panels; the list has "
                f"{len(got)}.",
                "Panels are made as long as there are rows and columns: min(m, n) columns in all.",
            )
        for k, (mine, tile) in enumerate(zip(got, right)):
            if mine == tile:
                continue
            left = m - k * BN
            least = BM >> (levels - 1)
            hint = f"{left} rows are left. Which is the smallest of the tiles that has room?"
            if mine < left:
                hint = f"{left} rows are left, and they do not fit."
            elif mine < least:
                hint = f"With {levels} level{'s' * (levels > 1)} no tile is smaller than {least}."
            elif mine == left:
                hint = f"A tile has a power of two of rows: one of {BM} down to {least}."
            elif left == tile:
                hint = f"{left} rows fit into {tile} exactly."
            raise Wrong(
                f"{m} x {n}, BM = {BM}, levels = {levels}: panel {k} has a tile of {mine:g} rows; "
                f"expected {tile}.",
                hint,
            )

    return step


# 10.3


def small_qr(A):
    """(H, tau) of a batch A [B, m, n] of at most 32 rows and columns: one launch, B programs.

    A: float32, any strides, read. A program loads its matrix once and stores H and tau once.
    """
    B, m, n = A.shape
    H, tau = A.new_empty(B, m, n), A.new_empty(B, min(m, n))
    tiny_kernel[(B,)](A, H, tau, m, n, half_log2(m), *A.stride(), BM=32, BN=32)
    return H, tau


class _Watched:
    """A trace that is entered where the answer runs, and looked at afterwards."""

    def __init__(self, **tensors):
        self._trace = trace(check=False, **tensors)

    def __enter__(self):
        self.seen = self._trace.__enter__()

    def __exit__(self, *error):
        return self._trace.__exit__(*error)


_CURES = {
    "out of bounds": "The tile has more rows and columns than the matrix: mask=inside.",
    "unwritten": "Memory of new_empty holds nothing until it is stored to.",
    "race": "Two programs meet: program b has matrix b, b * stride from the first.",
    "no barrier": "Keep the tile in registers: what was just stored need not be loaded.",
}


def _small(answer, A, about):
    """(H, tau, what was loaded and stored)."""
    watched = _Watched(A=A)
    made = several(answer(A, about=about, inside=watched), ("H", "tau"))
    seen = watched.seen
    if not seen.accesses:
        raise Wrong(
            "It starts no kernel; the factorization is to be made by one.",
            "Write a @triton.jit function, and start it by kernel[(B,)](...).",
        )
    for fault in seen.faults:
        raise Wrong(f"{fault}.", _CURES[fault.kind])
    B, m, n = A.shape
    H, tau = array("H", made[0], A), array("tau", made[1], A, (B, min(m, n)))
    return H, tau, seen


def _small_by_hand(answer):
    A = torch.tensor([EXAMPLE], dtype=torch.float32)
    H, tau, _ = _small(answer, A, "the 3 x 3 example of chapter 1")
    right = torch.geqrf(A)
    hint = "tiles.geqr2 gives R and V together, in P, and tau; T is not wanted."
    if close(H.tril(-1), right[0].tril(-1)) and not close(H.triu(), right[0].triu()):
        hint = "V is right and R is not: times power_of_two(e) on and above the diagonal."
    elif close(H.triu(), right[0].triu()):
        hint = "R is right and V is not: below the diagonal P is stored as it is."
    entries("H", H, right[0], why=hint)
    entries("tau", tau, right[1], why="tau comes from tiles.geqr2, [1, BN], in column order.")


def _small_certificate(answer):
    for B, m, n in ((1, 1, 1), (3, 5, 5), (2, 3, 7), (2, 20, 9), (2, 17, 32), (2, 32, 32)):
        A = normal(B, m, n, seed=m)
        H, tau, _ = _small(answer, A, f"{B} matrices {m} x {n}")
        certified(A, H, tau, "geqr2(P, nb, BM, BN): nb is min(m, n).")


def _small_awkward(answer):
    for scale in (1e-30, 1e30):
        A = scale * normal(1, 6, 6)
        H, tau, _ = _small(answer, A, f"6 x 6, times {scale:g}")
        certified(A, H, tau, "Bring each column near 1 before geqr2: exponent_of, power_of_two.")
    A = normal(2, 8, 8)
    A[0, :, 3] = 0
    H, tau, _ = _small(answer, A, "a column of zeros")
    certified(A, H, tau)
    A = torch.from_numpy(matrices.make("mixed", 3, 20, cond=2))
    H, tau, _ = _small(answer, A, "family mixed, n = 20")
    certified(A, H, tau)
    A = normal(2, 9, 6).mT
    H, tau, _ = _small(answer, A, "A transposed: its strides are not those of H")
    certified(A, H, tau, "A has strides of its own, A.stride(); H is row-major.")
    A = normal(3, 7, 7)
    nan_stays_home(lambda A, about: _small(answer, A, about or "3 x 7 x 7")[0], A, (4, 3))


def _small_traffic(answer):
    B, m, n = 4, 12, 10
    A = normal(B, m, n)
    seen = _small(answer, A, f"{B} matrices {m} x {n}")[2]
    if len(seen.launches) != 1:
        raise Wrong(
            f"It makes {len(seen.launches)} launches; one is to do it all.",
            "Scale and unscale in the kernel: the tile is in registers all the time.",
        )
    grid = math.prod(seen.launches[0].grid)
    if grid != B:
        raise Wrong(f"It starts {grid} programs for {B} matrices.", "kernel[(B,)](...).")
    load, store, _ = seen.total
    out = B * (m * n + min(m, n))
    if load.elements > A.numel():
        raise Wrong(
            f"It loads {load.elements} numbers; A has {A.numel()}, and each is needed once.",
            "Load the tile once; the scales come from the same tile.",
        )
    if store.elements > out:
        raise Wrong(
            f"It stores {store.elements} numbers; H and tau have {out}.",
            "R and V leave in one store of H, after all mirrors. T stays.",
        )


# 10.4


@triton.jit
def walk_kernel(H_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """As stage 7 walks: blocks on the diagonal, what is right of them, and all once more."""
    H_ptr += tl.program_id(0).to(tl.int64) * m * n
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    for p in range(0, tl.minimum(m, n), BN):
        block = H_ptr + i * n + p + c
        below = (i >= p) & (i < m)
        P = 2 * tl.load(block, mask=below & (p + c < n), other=0.0)
        tl.store(block, P, mask=below & (p + c < n))
        if p + BN < n:
            for q in range(p + BN, n, BN):
                right = H_ptr + i * n + q + c
                C = tl.load(right, mask=below & (q + c < n), other=0.0)
                tl.store(right, C + tl.sum(P, axis=1, keep_dims=True), mask=below & (q + c < n))
            # the next block is loaded from what was stored here
            tl.debug_barrier()
    for q in range(0, n, BN):
        last = H_ptr + i * n + q + c
        every = (i < m) & (q + c < n)
        tl.store(last, 0.5 * tl.load(last, mask=every, other=0.0), mask=every)


WALKED = {"BM": 32, "BN": 4}


def walk(H):
    """walk_kernel on a batch H [B, m, n] of at most 32 rows, in place, by blocks of 4 columns."""
    walk_kernel[(len(H),)](H, *H.shape[1:], **WALKED)


def too_early():
    """(shown, hidden, early): shapes (m, n) for which a barrier is missing, and for which not.

    Both with 5 to 32 rows and columns. early: how many entries a program of `shown` loads that it
    has stored with no barrier between.
    """
    # solution
    # the last block has no columns right of it, so nobody waits for it: 4 x 4 entries
    shown, early = (8, 8), 16
    # rows end before the columns do: every block has columns on its right, and a barrier
    hidden = (8, 13)
    return shown, hidden, early
    # end


def _too_early(m, n):
    """How many entries one program loads too early."""
    H = normal(1, m, n)
    with trace(check=False, H=H) as seen:
        walk(H)
    return sum(fault.count for fault in seen.faults if fault.kind == "no barrier")


def _shape(name, shape):
    m, n = several(shape, (f"m of {name}", f"n of {name}"))
    m, n = number(f"m of {name}", m), number(f"n of {name}", n)
    if not all(each == round(each) and 5 <= each <= 32 for each in (m, n)):
        raise Wrong(f"{name} must be two whole numbers from 5 to 32; got {m:g} x {n:g}.")
    return int(m), int(n)


def _answered(answer):
    shown, hidden, early = several(answer, ("shown", "hidden", "early"))
    return _shape("shown", shown), _shape("hidden", hidden), number("early", early)


def _is_shown(answer):
    m, n = _answered(answer)[0]
    if not _too_early(m, n):
        raise Wrong(
            f"For {m} x {n} no load comes too early.",
            "Which block is followed by no barrier? It must be there, and be loaded again.",
        )


def _is_hidden(answer):
    m, n = _answered(answer)[1]
    found = _too_early(m, n)
    if found:
        raise Wrong(
            f"For {m} x {n} a program loads {found} entries too early.",
            "Every block must have columns on its right, the last one too. When does the walk end?",
        )


def _how_many(answer):
    (m, n), _, early = _answered(answer)
    right = _too_early(m, n)
    if early != right:
        b = WALKED["BN"]
        p = (min(m, n) - 1) // b * b
        hint = "Rows of the last block from the diagonal down, times its columns."
        if early == m * (n - p):
            hint = "The last loop loads all rows; but those above the block had their barrier."
        elif early == m * n:
            hint = "What earlier blocks stored was followed by a barrier."
        raise Wrong(
            f"early is {early:g}; for {m} x {n} a program loads {right} entries too early.", hint
        )


# 10.5


def handover(sizes, six, seven):
    """The largest n that goes to stage 7, the rest to stage 6, by measured times; 0 for none.

    sizes: rising. six, seven: microseconds of the stages for each. The score is the geometric mean
    over all sizes.
    """
    best, score, now = 0, 0.0, 0.0
    for n, t6, t7 in zip(sizes, six, seven):
        # of the logarithm of the score, what changes if stage 7 goes on to this n
        now += math.log(t7 / t6)
        if now < score:
            best, score = n, now
    return best


MEASURED = {
    "one crossing": ((16, 32, 64, 128), (50, 60, 80, 120), (10, 20, 60, 200)),
    "never ahead": ((16, 32, 64), (10, 20, 30), (11, 25, 60)),
    "always ahead": ((16, 32, 64), (30, 40, 50), (5, 10, 45)),
    "a stumble": ((16, 32, 48, 64, 96, 128), (50,) * 6, (15, 30, 51, 35, 45, 75)),
    "a late success": ((16, 32, 48, 64, 96, 128), (50,) * 6, (15, 30, 75, 70, 47, 80)),
    "large times": ((16, 32, 64), (10, 100, 1000), (5, 160, 700)),
}


def _handed(name):
    sizes, six, seven = MEASURED[name]

    def step(answer):
        got = number("The size", answer(sizes, six, seven))
        right = handover(sizes, six, seven)
        if got == right:
            return
        ahead = [n for n, t6, t7 in zip(sizes, six, seven) if t7 < t6]
        first = next((n for n, t6, t7 in zip(sizes, six, seven) if t7 >= t6), None)
        totals = [sum(seven[:k]) + sum(six[k:]) for k in range(len(sizes) + 1)]
        hint = "Try every size as the last of stage 7, and take the one with the best score."
        if got not in (0, *sizes):
            hint = "It is one of the sizes, or 0."
        elif got == [0, *sizes][totals.index(min(totals))]:
            hint = "That is the best sum. In a geometric mean a factor counts alike for each size."
        elif ahead and got == ahead[-1]:
            hint = "Stage 7 is ahead there, but what did it lose on the way?"
        elif first in sizes and got == [0, *sizes][sizes.index(first)]:
            hint = "A size that is lost may be won back by the sizes after it."
        raise Wrong(
            f"Sizes {sizes}, stage 6 {six}, stage 7 {seven}: it gives {got:g}; expected {right}.",
            hint,
        )

    return step


EXERCISES = (
    Exercise(
        id="10.1",
        kind="predict",
        title="how many waves?",
        task="""
            A batch is so many programs. The chip has sms SMs, and each has room for so many
            programs at a time, places. Write waves(programs, sms, places) -> (waves, busy): how
            many waves it takes until all programs have had a place, if all take equally long; and
            which share of all the places of these waves was used. Then predict: for 640 programs,
            one place an SM, what does a B200 (148 SMs) gain on an H200 (132)?
        """,
        solution=waves,
        steps=(
            ("640 on 132: not a multiple", _waved(640, 132, 1)),
            ("132 and 133 on 132", _waved(132, 132, 1)),
            ("one more", _waved(133, 132, 1)),
            ("several places an SM", _waved(640, 132, 3)),
            ("fewer programs than SMs", _waved(20, 132, 8)),
            ("640 on 148", _waved(640, 148, 1)),
        ),
        hints=(
            "How many programs does the chip hold at a time? Then count how often it is filled.",
            "Round up: -(-a // b) is a over b, rounded up.",
            "chip = sms * places; the waves are -(-programs // chip); busy is programs over waves "
            "times chip.",
        ),
    ),
    Exercise(
        id="10.2",
        kind="predict",
        title="which tile for which panel?",
        task="""
            Stage 7 walks down the diagonal of an m x n matrix in panels of BN columns. The first
            panel is held in a register tile of BM rows. When the rows that are left fit into half
            of it, the tile is halved, and so on; but there are only `levels` sizes, since each is
            a copy of the code. Write tile_rows(m, n, BM, BN, levels): the list of the tile's rows,
            one for each panel.
        """,
        solution=tile_rows,
        steps=(
            ("176 x 176, three sizes", _tiled(176, 176, 256, 16, 3)),
            ("one size only", _tiled(60, 60, 64, 16, 1)),
            ("wide: 40 x 100", _tiled(40, 100, 64, 16, 2)),
            ("tall: 300 x 20", _tiled(300, 20, 512, 16, 4)),
            ("just above half: 129 x 129", _tiled(129, 129, 256, 16, 3)),
            ("two steps at once: 40 x 40 in 256", _tiled(40, 40, 256, 16, 4)),
            ("a single entry", _tiled(1, 1, 32, 16, 1)),
        ),
        hints=(
            "Panel k begins at row k * BN. How many rows are left?",
            "The smallest of BM, BM / 2, ..., BM / 2^(levels - 1) that has room for m - p rows.",
            "for p in range(0, min(m, n), BN): while the tile is not the smallest and m - p <= "
            "tile // 2, halve it.",
        ),
    ),
    Exercise(
        id="10.3",
        kind="implement",
        title="a small matrix in one launch (small_qr)",
        task="""
            Matrices of at most 32 x 32 fit into the registers of one program as a whole: the whole
            matrix is the panel. Write small_qr(A) -> (H, tau) for a float32 batch, and the kernel
            that it starts once, with one program a matrix: load A, scale each column by a power
            of two, factor, scale R back, store H and tau. Nothing else is loaded or stored. At
            hand are the tiles of chapter 7:

                import triton
                import triton.language as tl
                from qrlib import tiles

                e = tiles.exponent_of(x)             # x >= 0, e an integer
                tiles.power_of_two(e)                # 2^e, exactly
                P, tau, T = tiles.geqr2(P, nb, BM, BN)   # [BM, BN], [1, BN], [BN, BN]

            The kernel runs in the interpreter, and every load and store is watched.
        """,
        solution=small_qr,
        steps=(
            ("the 3 x 3 example", _small_by_hand),
            ("certificate: square, wide, tall", _small_certificate),
            ("awkward: scales, zeros, strides, NaN", _small_awkward),
            ("cost: one launch, in once, out once", _small_traffic),
        ),
        hints=(
            "b = tl.program_id(0); i = tl.arange(0, BM)[:, None]; c = tl.arange(0, BN)[None, :]; "
            "inside = (i < m) & (c < n) masks the load and the store.",
            "e = tiles.exponent_of(tl.max(tl.abs(P), axis=0, keep_dims=True)), one a column; P "
            "goes in times power_of_two(-e), R comes out times power_of_two(e).",
            "H = tl.where(i <= c, P * tiles.power_of_two(e), P) is stored at H_ptr + b * m * n + "
            "i * n + c; tau at tau_ptr + b * k + c for c < k.",
        ),
        also=(tiny_kernel,),
    ),
    Exercise(
        id="10.4",
        kind="break it",
        title="the barrier that is missing",
        task="""
            walk_kernel walks over a matrix as stage 7 does: a block on the diagonal, what is right
            of it, the next block, and at last everything once more. Its author put the barrier
            where it was needed, he thought. All its results are right in the interpreter, and
            often on a GPU. Give a shape (m, n) for which a program loads something that it has
            stored with no barrier between: shown. Give one for which it never does: hidden. And
            predict how many entries are loaded too early for `shown`: early. Rows and columns from
            5 to 32; blocks have 4 columns. To look for yourself:

                from qrlib.teach.exercises.s07_whole import walk
                from qrlib.tracer import trace

                with trace(check=False, H=H) as t:     # H = torch.randn(1, m, n)
                    walk(H)
                print(t.faults)
        """,
        solution=too_early,
        steps=(
            ("a shape that shows it", _is_shown),
            ("a shape that hides it", _is_hidden),
            ("how many entries", _how_many),
        ),
        hints=(
            "The barrier stands inside the `if`. For which block is the `if` not entered?",
            "The last block of a square matrix has nothing on its right, and the last loop loads "
            "it. When does every block have something on its right?",
            "8 x 8 shows it: the block at p = 4 has 4 rows and 4 columns. A wide matrix hides it, "
            "if rows end at a block: 8 x 13.",
        ),
        given=(walk_kernel, walk),
    ),
    Exercise(
        id="10.5",
        kind="measure",
        title="where to hand over?",
        task="""
            Both stages were timed on some sizes n, in rising order. Up to some size stage 7 is to
            be taken, beyond it stage 6. Write handover(sizes, six, seven): the largest n that goes
            to stage 7, or 0, such that the geometric mean of the times over all sizes is smallest.
            Measured times stumble: they may cross more than once.
        """,
        solution=handover,
        steps=tuple((name, _handed(name)) for name in MEASURED),
        hints=(
            "There are len(sizes) + 1 answers to try. What is the score of each?",
            "The geometric mean is smallest where the product is, or the sum of the logarithms.",
            "Go up the sizes and add log(t7 / t6). The answer is where that sum was smallest; 0 if "
            "it was never below 0.",
        ),
    ),
)
