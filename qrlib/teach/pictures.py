"""`python -m qrlib.teach.pictures`: the poster of the ladder as a file, to print and pin up.

What the README shows is written by qrlib.teach.readme. `card` is the small picture on the cards by
which other sites show a page of the book; a build that knows its address draws them.
"""

import pathlib

import numpy as np

from qrlib.teach.figures import front, poster
from qrlib.teach.svg import PALETTE

POSTER = pathlib.Path(__file__).parents[2] / "book" / "_static" / "poster.svg"


def card(cell=60):
    """R and the mirrors, as the walk on the front page ends: pixels [rows, columns, 3], uint8."""
    H, owner = front.states()[-1]
    m, n = H.shape
    pixels = np.full((m * cell, n * cell, 3), 255, dtype=np.uint8)
    for i in range(m):
        for j in range(n):
            name = PALETTE["orange" if owner[i, j] >= 0 else "blue"][0]
            box = pixels[i * cell : (i + 1) * cell, j * cell : (j + 1) * cell]
            box[4:-4, 4:-4] = [int(name[k : k + 2], 16) for k in (1, 3, 5)]
            # the dot of a stored mirror, so that colour is not alone
            if owner[i, j] >= 0:
                box[cell // 2 - 5 : cell // 2 + 5, cell // 2 - 5 : cell // 2 + 5] = 255
    return pixels


if __name__ == "__main__":
    poster.poster().save(POSTER)
