"""One call, timed by two clocks: events on its stream, and the host's until the whole GPU is idle.

The events tell the time that is reported. Work that was sent to another stream, or put off, they do
not see; the host does, for the GPU is still busy when the events are over. What takes less than the
host can tell shows in the result, which the GPU looks at the moment that the events are over.
"""

import statistics
import time
from typing import NamedTuple

import torch

# how long the host may take to find the GPU idle after the last event: so many us, or this share of
# the time. A host whose caches are cold was seen to take 20 to 70 us for nothing
SLACK_US, SLACK = 100.0, 0.02
# for so many us a GPU is kept busy while the host launches what is to be timed without the host
AHEAD_US = 1000.0


class Time(NamedTuple):
    """Microseconds of one call.

    us: between the events. late_us: from the last event until the GPU was idle, by the host.
    host_us: from before the call until then; with what the GPU was kept busy by, if it was.
    """

    us: float
    late_us: float
    host_us: float


class Clock:
    """Times calls on a device; the cache is swept before each of them, and that is not timed.

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
        self.sweeps, self.overhead_us = 1, 0.0
        if self.cuda:
            # waits for nothing but the last event: it sees what is there then
            self.side = torch.cuda.Stream(device)
            sweeping = min(self(lambda A: self.buffer.add_(1), None)[2].us for _ in range(3))
            self.sweeps = 1 + int(AHEAD_US / sweeping)
            # looking, and asking an idle GPU whether it is idle, take a little, too
            A = torch.zeros(4, 4, 4, device=device)
            i = torch.zeros(256, dtype=torch.int64, device=device)
            idle = (self(lambda A: A, A, lambda A: A[i, i, i])[2].late_us for _ in range(20))
            self.overhead_us = statistics.median(idle)

    def __call__(self, call, A, look=lambda returned: None, *, queued=False):
        """(what call(A) returned, what look said of that when the events were over, Time).

        Args:
            look: gets what call returned, on a stream of its own that waits for the last event.
            queued: a GPU is kept busy until the host has launched the call: its time is that of
                the GPU. Without it, what the GPU waits for the host is in the time.
        """
        if not self.cuda:
            self.buffer.add_(1)
            begin = time.perf_counter()
            returned = call(A)
            us = 1e6 * (time.perf_counter() - begin)
            return returned, look(returned), Time(us, 0.0, us)
        stream = torch.cuda.current_stream()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if not queued:
            self.buffer.add_(1)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(self.sweeps if queued else 0):
            self.buffer.add_(1)
        start.record(stream)
        returned = call(A)
        stop.record(stream)
        # on its way before the host hears of the end, which takes as long as what it looks for
        self.side.wait_event(stop)
        with torch.cuda.stream(self.side):
            seen = look(returned)
        stop.synchronize()
        over = time.perf_counter()
        torch.cuda.synchronize()
        idle = time.perf_counter()
        us = 1e3 * start.elapsed_time(stop)
        return returned, seen, Time(us, 1e6 * (idle - over), 1e6 * (idle - begin))

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
