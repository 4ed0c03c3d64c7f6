"""Panels and updates of a factorization on two streams of a GPU: who waits for whom.

A model in any unit of time, for lengths that are given: it needs no device.
"""

from typing import NamedTuple


class Bar(NamedTuple):
    """Work of a step: "panels", "near", the columns of the next ones, or "far", all others."""

    what: str
    step: int
    beside: bool
    begin: float
    end: float


def schedule(panels, near, far, *, ahead=True):
    """A Bar for all work of each step: three lists of lengths, one number a step.

    Panels of a step wait for the near update before them; both its updates wait for its panels and
    for the far update before them. ahead: far updates go to a stream of their own.
    """
    bars, now, free = [], 0.0, 0.0
    for step, (p, n, f) in enumerate(zip(panels, near, far, strict=True)):
        begin = max(now + p, free)
        bars.append(Bar("panels", step, False, now, now + p))
        bars.append(Bar("near", step, False, begin, begin + n))
        now = begin + n
        if ahead:
            free = begin + f
            bars.append(Bar("far", step, True, begin, free))
        else:
            bars.append(Bar("far", step, False, now, now + f))
            now += f
    return bars


def length(bars):
    """From the first begin to the last end."""
    return max((bar.end for bar in bars), default=0.0)
