"""A search that can be computed: families of ideas that begin somewhere and end at a floor.

Each try in a family takes away a part of what is above its floor. Nobody knows a floor before he is
near it: who searches sees the times of his tries, and nothing else.
"""

from typing import NamedTuple


class Family(NamedTuple):
    """start, floor: microseconds. half: tries that halve the distance between the two."""

    name: str
    start: float
    floor: float
    half: float

    def after(self, tries):
        """Its time after so many tries, at least one."""
        return self.floor + (self.start - self.floor) * 2 ** (-(tries - 1) / self.half)


# what is worked on, and three other ways in the order in which they come to mind
FAMILIES = (
    Family("as it is", 100, 80, 3),
    Family("another layout", 108, 70, 5),
    Family("another structure", 150, 40, 6),
    Family("a dead end", 120, 110, 4),
)
# tries of each family that is alive, before the next idea has its first one
ROUNDS = 3


def climb(count, alive, families=FAMILIES):
    """[(family, time)] of so many tries, by who keeps up to `alive` families alive.

    They take turns. Now and then a new one has its first try; when that makes too many, the slowest
    is given up, which with one alive is the new one unless it is ahead at once.
    """
    waiting, used, own, tries = list(families), dict.fromkeys(families, 0), [], []

    def once(family):
        used[family] += 1
        tries.append((family, family.after(used[family])))

    while len(tries) < count:
        if waiting:
            own.append(waiting.pop(0))
            once(own[-1])
        if len(own) > alive:
            own.remove(max(own, key=lambda family: family.after(used[family])))
        for family in own * ROUNDS:
            once(family)
    return tries[:count]
