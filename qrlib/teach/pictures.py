"""`python -m qrlib.teach.pictures`: the pictures of book/_static that only the book shows.

The poster of the ladder, and the small picture on the cards by which other sites show a page. What
the README shows too is written by qrlib.teach.readme.
"""

import pathlib

import numpy as np

from qrlib.teach.figures import front, poster
from qrlib.teach.svg import PALETTE

STATIC = pathlib.Path(__file__).parents[2] / "book" / "_static"
POSTER = STATIC / "poster.svg"
CARD = STATIC / "card.png"


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
    from matplotlib import image

    poster.poster().save(POSTER)
    image.imsave(CARD, card())
