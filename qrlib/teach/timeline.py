"""A host that launches kernels and a GPU that works them off, and what each clock sees of the two.

A model, in microseconds, of what is too short to be watched: it needs no device. The host launches
one kernel after the other; a kernel runs when it has been launched, the one before it has ended,
and whatever the GPU was doing before has ended. What goes to another stream waits for its launch
alone.
"""

from typing import NamedTuple


class Bar(NamedTuple):
    """One kernel: its launch on the host, its run on the GPU, and whether in another stream."""

    launch: float
    launched: float
    run: float
    ended: float
    elsewhere: bool = False


def timeline(kernels, launch, *, busy=0.0, elsewhere=()):
    """A Bar for each kernel.

    Args:
        kernels: how long each runs. launch: how long the host takes to launch one.
        busy: until then the GPU has something else to do. elsewhere: numbers of the kernels that go
            to another stream.
    """
    bars, free = [], busy
    for k, length in enumerate(kernels):
        aside = k in elsewhere
        launched = (k + 1) * launch
        run = launched if aside else max(launched, free)
        bars.append(Bar(k * launch, launched, run, run + length, aside))
        if not aside:
            free = run + length
    return bars


def seen(bars, *, busy=0.0):
    """{clock: (from, to)}: what the clocks see of a timeline.

    host: from before the first launch to after the last one, as a program sees it that does not
    wait. idle: the same, but until the GPU has nothing left to do. events: from when the GPU comes
    to the start event, before the first kernel, to the end of the last one in that stream.
    """
    here = [bar for bar in bars if not bar.elsewhere]
    return {
        "host": (0.0, bars[-1].launched),
        "idle": (0.0, max(bar.ended for bar in bars)),
        "events": (busy, here[-1].ended),
    }
