"""One call, timed by two clocks: events on its stream, and the host's until the whole GPU is idle.

The events tell the time that is reported. Work that was sent to another stream, or put off, they do
not see; the host does, for the GPU is still busy when the events are over.
"""

import statistics
import time
from typing import NamedTuple

import torch

# how long a GPU may be busy after the last event: so many us, or this share of the time
SLACK_US, SLACK = 5.0, 0.02


class Time(NamedTuple):
    """Microseconds of one call.

    us: between the events. late_us: from the last event until the GPU was idle, by the host.
    host_us: from before the call, and before the sweep on a GPU, until then.
    """

    us: float
    late_us: float
    host_us: float


class Clock:
    """Times calls on a device; the cache is swept before each of them, and that is not timed.

    On a GPU the sweep is still running when the host begins to launch, as in
    `triton.testing.do_bench`: what the events tell is how long the GPU takes, for calls whose
    launches keep ahead of it.

    Args:
        device: a torch.device.
        sweep: bytes written to empty the cache; twice the L2 of a GPU, 32 MiB on a CPU, when None.
    """

    def __init__(self, device, sweep=None):
        self.cuda = device.type == "cuda"
        if sweep is None:
            properties = torch.cuda.get_device_properties(device) if self.cuda else None
            sweep = 2 * properties.L2_cache_size if self.cuda else 1 << 25
        self.buffer = torch.zeros(sweep, dtype=torch.uint8, device=device)
        # asking an idle GPU whether it is idle takes a little, too
        empty = [self(lambda A: A, None)[1] for _ in range(20)]
        self.overhead_us = min(t.late_us for t in empty)

    def __call__(self, call, A):
        """(what call(A) returned, Time)."""
        if not self.cuda:
            self.buffer.add_(1)
            begin = time.perf_counter()
            returned = call(A)
            us = 1e6 * (time.perf_counter() - begin)
            return returned, Time(us, 0.0, us)
        stream = torch.cuda.current_stream()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        self.buffer.add_(1)
        start.record(stream)
        returned = call(A)
        stop.record(stream)
        stop.synchronize()
        over = time.perf_counter()
        torch.cuda.synchronize()
        idle = time.perf_counter()
        us = 1e3 * start.elapsed_time(stop)
        return returned, Time(us, 1e6 * (idle - over), 1e6 * (idle - begin))

    def disagree(self, times):
        """A sentence when the GPU was still at work after the events of these calls, or None."""
        us, _, host = (statistics.median(each) for each in zip(*times))
        # the host is late by itself in many calls, but not in three of four
        late = sorted(time.late_us for time in times)[len(times) // 4]
        if late - self.overhead_us <= max(SLACK_US, SLACK * us):
            return None
        return (
            f"the clocks disagree: {us:.0f} us by events, {host:.0f} us until the GPU was idle, "
            f"{late:.0f} of them after the last event"
        )


class Replay:
    """A function captured once as a CUDA graph: a call copies A in, and replays.

    What it returns is its own and is overwritten by the next call. It holds the input, the outputs
    and all that the function allocates.
    """

    def __init__(self, call, A):
        self.A = A.clone()
        # what compiles or allocates once must have done so before the capture
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(self.A)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.returned = call(self.A)

    def __call__(self, A):
        self.A.copy_(A)
        self.graph.replay()
        return self.returned


def fingerprint(X):
    """A 64-bit number of the bits of X; one entry that changes always changes it."""
    bits = X.contiguous().view(torch.int32 if X.element_size() == 4 else torch.int64).flatten()
    total = 0
    # in parts, for the products are twice as large as X or more
    for part in bits.split(1 << 24):
        # odd weights: no difference of one entry times an odd number is 0 modulo 2^64
        odd = torch.arange(1, 2 * part.numel(), 2, device=X.device)
        total = (total * 1_000_003 + int((part.long() * odd).sum())) % (1 << 64)
    return total
