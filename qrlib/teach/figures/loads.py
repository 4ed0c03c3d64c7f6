"""A map of what a kernel loads and stores, tile by tile, as `qrlib.tracer` saw it.

with trace(V=V, T=T, C=C) as t:
    kernel[grid](V, T, C, ...)
loads_stepper(t, {"V": V, "T": T, "C": C}, program=(0, 1, 0))
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure

KIB = 2**10
COLORS = ("orange", "pink", "green", "blue")
# where a row of drawings begins, and what is between them
LEFT, TOP, GAP = 10, 44, 26


class Move(NamedTuple):
    """One load or store of a tile.

    op: "load" or "store". matrix: its number in the batch. rows, columns: (first, one past the
    last). lanes: entries of the tile, those that a mask leaves out included. bytes: moved.
    """

    op: str
    tensor: str
    matrix: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    lanes: int
    bytes: int

    @property
    def entries(self):
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])

    @property
    def block(self):
        return self.tensor, self.rows, self.columns


def _index(tensor):
    """{element of the storage: index} of a tensor [B, m, n]."""
    at = tensor.storage_offset()
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = np.arange(size) * stride
        at = at + steps.reshape([-1 if k == axis else 1 for k in range(tensor.ndim)])
    return {int(each): index for index, each in np.ndenumerate(at)}


def moves(t, tensors, program=None):
    """[Move] of a program, or of all, in the order in which it was done.

    Args:
        t: a Trace. tensors: {name: tensor [B, m, n]}, as the trace knows them; no other is looked
            at.

    Raises:
        ValueError: an access is no block of one matrix.
    """
    index = {name: _index(tensor) for name, tensor in tensors.items()}
    found = []
    for access in t.accesses:
        if access.tensor not in tensors or program not in (None, access.program):
            continue
        touched = np.array([index[access.tensor][int(each)] for each in access.elements])
        if not len(touched):
            continue
        low, high = touched.min(0), touched.max(0) + 1
        move = Move(
            access.op,
            access.tensor,
            int(low[0]),
            *((int(low[axis]), int(high[axis])) for axis in (1, 2)),
            access.lanes,
            access.bytes,
        )
        if high[0] - low[0] != 1 or len({tuple(each) for each in touched}) != move.entries:
            raise ValueError(
                f"an access must be a block of rows and columns of one matrix; {access.op} of "
                f"{access.tensor} by program {access.program} is not"
            )
        found.append(move)
    return found


def tile_of(move):
    """(rows, columns) of the tile of a move: sides are powers of two, as many as it has lanes."""
    rows = move.rows[1] - move.rows[0]
    columns = 1 << (move.columns[1] - move.columns[0] - 1).bit_length()
    # of the two sides only one can be cut more than by half
    while move.lanes // columns < rows:
        columns //= 2
    return move.lanes // columns, columns


def _kib(count):
    return f"{count / KIB:.3g} KiB"


def _span(name, span):
    return f"{name} {span[0]} to {span[1] - 1}"


def move_words(done):
    """What the last of the moves did, and how much all of them have moved."""
    move = done[-1]
    out = move.lanes - move.entries
    mask = f"; the mask leaves {out} of its {move.lanes} out" if out else ", the whole tile"
    loaded, stored = (sum(each.bytes for each in done if each.op == op) for op in ("load", "store"))
    return (
        f"{move.op.capitalize()} {sum(each.op == move.op for each in done)}: {move.tensor}, "
        f"{_span('rows', move.rows)}, {_span('columns', move.columns)}: {move.entries} entries"
        f"{mask}. So far {_kib(loaded)} loaded, {_kib(stored)} stored."
    )


def _places(tensors, every):
    """({name: (x, y)}, scale, width, height): the matrices of one batch member side by side."""
    wide = {
        name: max([tensor.shape[2], *(m.columns[0] + tile_of(m)[1] for m in every
                                      if m.tensor == name)])
        for name, tensor in tensors.items()
    }  # fmt: skip
    high = max(
        [tensor.shape[1] for tensor in tensors.values()]
        + [m.rows[0] + tile_of(m)[0] for m in every]
    )
    scale = (440 - 2 * LEFT - GAP * (len(tensors) - 1)) / sum(wide.values())
    scale = min(scale, 1.4)
    places, x = {}, LEFT
    for name in tensors:
        places[name] = (x, TOP)
        x += scale * wide[name] + GAP
    return places, scale, 440, TOP + scale * high + 34


def _ground(fig, tensors, places, scale):
    for (name, tensor), color in zip(tensors.items(), COLORS):
        (x, y), (_, m, n) = places[name], tensor.shape
        fig.text(x + scale * n / 2, 14, f"*{name}*", size=16, bold=True, color=color)
        fig.text(x + scale * n / 2, 32, f"{m} \u00d7 {n}", size=12, color="muted")
        fig.rect(x, y, scale * n, scale * m, color="muted", width=1)


def move_frame(tensors, done, every):
    """The matrices, what a program has touched so far, and the tile that moves now."""
    places, scale, width, height = _places(tensors, every)
    move = done[-1]
    fig = Figure(width, height, f"Matrices to scale, side by side. {move_words(done)}")
    _ground(fig, tensors, places, scale)
    color = dict(zip(tensors, COLORS))
    for (name, rows, columns), times in Counter(each.block for each in done).items():
        x, y = places[name][0] + scale * columns[0], places[name][1] + scale * rows[0]
        w, h = scale * (columns[1] - columns[0]), scale * (rows[1] - rows[0])
        fig.rect(x + 1, y + 1, w - 2, h - 2, r=2, color=color[name], width=1, fill=color[name],
                 fill_opacity=0.1 + 0.1 * min(times, 3))  # fmt: skip
    x, y = places[move.tensor]
    x, y = x + scale * move.columns[0], y + scale * move.rows[0]
    rows, columns = tile_of(move)
    fig.rect(x, y, scale * columns, scale * rows, color="ink", width=1.5, dash=(3, 3))
    w, h = scale * (move.columns[1] - move.columns[0]), scale * (move.rows[1] - move.rows[0])
    look = {"color": "ink", "width": 3}
    fig.rect(x + 1, y + 1, w - 2, h - 2, r=2, **look)
    fig.text(x + w / 2, y + h / 2, move.op, size=13, bold=True, halo=True)
    fig.text(LEFT, height - 12, "thick: moves now. dashed: its tile", size=13, anchor="start",
             color="muted")  # fmt: skip
    return fig


def _pieces(every, name):
    """{(rows, columns): Counter of ops} of a tensor, cut where any move of it begins or ends."""
    mine = [each for each in every if each.tensor == name]
    cuts = [sorted({end for each in mine for end in each[axis]}) for axis in (3, 4)]
    found = {}
    for top, bottom in zip(cuts[0], cuts[0][1:]):
        for left, right in zip(cuts[1], cuts[1][1:]):
            over = Counter(
                each.op
                for each in mine
                if each.rows[0] <= top < each.rows[1] and each.columns[0] <= left < each.columns[1]
            )
            if over:
                found[(top, bottom), (left, right)] = over
    return found


def _often(counts):
    """Loads and stores in a few words: 2 in, 1 out."""
    return ", ".join(
        f"{counts[op]} {way}" for op, way in (("load", "in"), ("store", "out")) if counts[op]
    )


def total_words(tensors, every, programs):
    """How often all programs together moved each matrix."""
    said = []
    for name in tensors:
        counts = [_often(each) for each in _pieces(every, name).values()]
        said.append(f"of {name} {' or '.join(sorted(set(counts)))}")
    loaded, stored = (
        sum(each.bytes for each in every if each.op == op) for op in ("load", "store")
    )
    return (
        f"All programs of this matrix, {programs} of them: each entry {'; '.join(said)}. "
        f"{_kib(loaded)} loaded, {_kib(stored)} stored."
    )


def total_frame(tensors, every, programs):
    """The matrices, and how often all programs of one batch member moved their parts."""
    places, scale, width, height = _places(tensors, every)
    words = total_words(tensors, every, programs)
    fig = Figure(width, height, f"Matrices to scale, side by side, in parts. {words}")
    _ground(fig, tensors, places, scale)
    color = dict(zip(tensors, COLORS))
    for name in tensors:
        for (rows, columns), counts in _pieces(every, name).items():
            x, y = places[name][0] + scale * columns[0], places[name][1] + scale * rows[0]
            w, h = scale * (columns[1] - columns[0]), scale * (rows[1] - rows[0])
            fig.rect(x + 1, y + 1, w - 2, h - 2, r=2, color=color[name], width=1, fill=color[name],
                     fill_opacity=0.06 * min(sum(counts.values()), 6))  # fmt: skip
            said = _often(counts).split(", ")
            for k, words in enumerate(said):
                fig.text(x + w / 2, y + h / 2 + 15 * (k - (len(said) - 1) / 2), words, size=13)
    fig.text(LEFT, height - 12, "in: times loaded. out: times stored", size=13, anchor="start",
             color="muted")  # fmt: skip
    return fig


def loads_stepper(t, tensors, program):
    """Every load and store of one program, one after the other; last what all have moved.

    Args:
        t: a Trace. tensors: {name: tensor [B, m, n]}. program: whose; its first index is the number
            of the matrix.
    """
    mine = moves(t, tensors, program)
    every = [each for each in moves(t, tensors) if each.matrix == program[0]]
    programs = len({a.program for a in t.accesses if a.program[0] == program[0]})
    frames = [
        Frame(
            move_frame(tensors, mine[: k + 1], every),
            move_words(mine[: k + 1]),
            f"{move.op} {k + 1} of {len(mine)}: {move.tensor}",
        )
        for k, move in enumerate(mine)
    ]
    words = total_words(tensors, every, programs)
    frames.append(Frame(total_frame(tensors, every, programs), words, "all programs"))
    return Stepper(
        frames, "Moves", f"What program {program} of a kernel loads and stores.", lines=4
    )
