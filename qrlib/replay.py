"""A factorization planned for a shape: its launches captured once as a CUDA graph, and replayed.

Stage 6 starts a hundred kernels and more, and Python takes longer to start one than a small one
takes to run. A graph is started once for all of them. And matrices of a batch know nothing of each
other: a graph may have branches, in which some are in their panels, which wait, while others are in
their updates, which fill the chip.
"""

import threading
from collections.abc import Iterable
from functools import partial
from numbers import Integral

import torch

from qrlib.api import auto_stage, refuse, runs
from qrlib.checks import check_array, check_precision, shape_of
from qrlib.compact import QR, flat
from qrlib.sharding import on_shards
from qrlib.stages import POLICIES
from qrlib.stages import stage as _stage

# (matrices, branches): fewer matrices do not fill so many. Chosen by hand on one H200, 2026-11-30;
# again: change one, and time it by
# python -m qrlib.bench --case 3 --compare none --replay
BRANCHES = ((264, 2), (600, 4))

# stages that are stage 6's loop with a panel of their own; stage 7 is, where it hands over
LOOPS = ("s06_update", "s08_cholesky", "s09_mixed", "s10_blackwell")

# a smaller A is copied to where the graph begins: that takes less than to start stage 6's first
# kernel from Python, which reads it wherever it is
COPIED = 1 << 22


def plan(shape, *, stage="auto", precision="fp32", dtype=torch.float32, device="cuda"):
    """Capture geqrf for one shape.

    Args:
        shape: (..., m, n); for a DTensor that of what this rank has, A.to_local().shape.
        stage, precision: as for geqrf. dtype: float32 or float64.
        device: an NVIDIA GPU; A.device is that of a rank.

    Returns:
        Plan, called with a tensor of that shape: H, tau = plan(A).

    Raises:
        ValueError: shape is not (..., m, n); device is not a GPU; unknown stage or precision.
        TypeError: another dtype, or one that the stage does not take.
        RuntimeError: no such GPU here; Triton is not installed.
        torch.cuda.OutOfMemoryError: too little memory; the message says how much is needed.
    """
    return Plan(shape, stage, precision, dtype, torch.device(device))


class Plan:
    """H, tau = plan(A) for any A of the plan's shape, dtype and device, with any strides.

    A may be a DTensor of which this rank has that shape. The plan holds its memory and its graph as
    long as it lives; `str` says how much that is. Calls may come from any stream and thread: each
    waits for the one before.
    """

    def __init__(self, shape, stage, precision, dtype, device):
        sizes = tuple(shape) if isinstance(shape, Iterable) else ()
        if len(sizes) < 2 or not all(isinstance(k, Integral) and k >= 0 for k in sizes):
            raise ValueError(f"shape must be (..., m, n); got {shape!r}; A.shape gives that of A")
        shape = torch.Size(sizes)
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be torch.float32 or torch.float64; got {dtype!r}")
        check_precision(precision)
        _check_device(device)
        self.shape, self.dtype = shape, dtype
        self.device = torch.device("cuda", device.index or 0)
        # one number, seen as a batch: nothing is held yet
        A = flat(torch.zeros((), dtype=dtype, device=self.device).expand(shape))
        self.stage = auto_stage(A) if stage == "auto" else stage
        self.precision = precision
        module = runs(A, self.stage)
        self._lock, self._free = threading.Lock(), torch.cuda.Event()
        with torch.cuda.device(self.device), refuse(A, self.stage, module):
            self._hold(module, A)

    def _hold(self, module, A):
        """Make the buffers, and the graph of all that follows their filling."""
        B, m, n = A.shape
        self.branches = 1
        geqrf, by_updates = module.geqrf, self.stage in LOOPS
        if self.stage in POLICIES:
            geqrf = partial(geqrf, policy=self.precision)
        if hasattr(module, "pays"):
            # a launch costs less here than where it comes from Python
            whole = module.pays(B, m, n, replayed=True)
            geqrf, by_updates = partial(geqrf, whole=whole), not whole
        one_launch = hasattr(module, "alone") and module.alone(m, n)
        # what is captured, a graph for each, with a branch for each function of nothing in it
        phases, self._fill_rest = [], None
        if one_launch or by_updates:
            H, tau = A.new_empty(B, m, n), A.new_empty(B, min(m, n))
            self._buffers, self._result = (H, tau), lambda: QR(H, tau)
        if one_launch:
            # it reads A where it is, and a graph would have it copied
            self._fill = lambda A: module.launch(A, H, tau)
        elif by_updates:
            phases = self._loop(module, A, H, tau)
        else:
            X, found = A.clone(memory_format=torch.contiguous_format), {}
            # the graph's own result takes the place of that before the capture, which is let go
            phases = [[lambda: found.update(result=geqrf(X))]]
            self._fill = X.copy_
            self._buffers, self._result = (X,), lambda: found["result"]
        if phases and self._fill_rest is None:
            # there is nothing to wait for between them
            phases = [[partial(_in_turn, parts) for parts in zip(*phases)]]
        self._graphs = []
        if A.numel():
            self._fill(A)
            if self._fill_rest is not None:
                self._side = torch.cuda.Stream()
                self._fill_rest(A)
            self._graphs = _captured(phases)
        else:
            for tasks in phases:
                _in_turn(tasks)

    def _start(self, A, stream):
        """Launch all that a call is of, on a stream."""
        begun = torch.cuda.Event()
        begun.record(stream)
        self._fill(A)
        for k, graph in enumerate(self._graphs):
            if k == 1:
                # begun beside the first graph, which the host launches before it
                self._side.wait_event(begun)
                with torch.cuda.stream(self._side):
                    self._fill_rest(A)
                stream.wait_stream(self._side)
            graph.replay()

    def _loop(self, module, A, H, tau):
        """What stage 6's loop does in a graph, as functions of nothing: of each branch two.

        The second ones need all columns of A in the scale of the loop. The first ones only those of
        two panels, so that the others are brought there beside them; if A is copied, by themselves.
        """
        from qrlib.scaling import scale

        six, nine = _stage("s06_update"), _stage("s09_mixed")
        panel = getattr(module, "panel", six.panel)
        corner = getattr(module, "corner", six.no_corner)
        B, m, n = A.shape
        e = A.new_empty(B, n, dtype=torch.int32)
        flags = nine.flags(A, self.precision if self.stage in POLICIES else "fp32")
        self._buffers += (e,) if flags is None else (e, flags)
        begun, copied = six.first_columns(A), A.numel() < COPIED
        if copied:
            X = A.clone(memory_format=torch.contiguous_format)
            self._buffers, self._fill = (*self._buffers, X), X.copy_
        else:
            X = H
            self._fill = lambda A: scale(A, H, e, flags, nine.SPIKE, (0, begun))
            if begun < n:
                self._fill_rest = lambda A: scale(A, H, e, flags, nine.SPIKE, (begun, n))
        parts = list(zip(*(part.chunk(branches(B)) for part in (X, H, e, tau))))
        self.branches = len(parts)
        own = [None] * len(parts) if flags is None else flags.chunk(len(parts))

        def halves(X, H, e, tau, flat):
            # made once, with its zeros, which no replay overwrites
            memory = six.Memory.of(H, "fp16x3", ahead=len(H) < six.AHEAD)
            self._buffers += memory.tensors()
            routed = nine.router(flat, min(m, n))
            running = []

            def first():
                if copied:
                    scale(X, H, e, flat, nine.SPIKE)
                running[:] = [six.halves(H, e, tau, "fp16x3", panel, routed, corner, memory)]
                next(running[0], None)

            return first, lambda: next(running.pop(), None)

        return list(zip(*(halves(*part, flat) for part, flat in zip(parts, own))))

    @on_shards
    def __call__(self, A, *, copy=True):
        """QR(H, tau) of A, [..., m, n] and [..., k].

        Args:
            A: of the plan's shape, dtype and device, any strides; read. A DTensor whose batch is
                sharded or replicated, with such a part on this rank.
            copy: False gives the plan's own memory, which its next call overwrites.

        Raises:
            ValueError, TypeError: A is not what the plan was made for.
        """
        if not isinstance(A, torch.Tensor):
            raise TypeError(f"A must be a torch tensor; got {type(A).__name__}")
        check_array("A", A)
        for what, mine, its in (
            ("shape", tuple(self.shape), shape_of(A)),
            ("dtype", self.dtype, A.dtype),
            ("device", self.device, A.device),
        ):
            if mine != its:
                error = TypeError if what == "dtype" else ValueError
                hint = "; of a DTensor A.to_local().shape counts" * (what == "shape")
                raise error(
                    f"A must have the plan's {what} {mine}; got {its}; make a plan for each{hint}"
                )
        with self._lock, torch.cuda.device(self.device), torch.no_grad():
            stream = torch.cuda.current_stream()
            stream.wait_event(self._free)
            try:
                if A.numel():
                    self._start(flat(A), stream)
                H, tau = self._result()
                if copy:
                    H, tau = H.clone(), tau.clone()
            finally:
                # without memory for a copy, too: the next call waits for what has begun
                self._free.record(stream)
        return QR(H.view(self.shape), tau.view(*self.shape[:-2], tau.shape[-1]))

    @property
    def held(self):
        """Bytes: {what: how many}."""
        own = sum(X.numel() * X.element_size() for X in self._buffers)
        pool = self._graphs[0].pool() if self._graphs else None
        segments = torch.cuda.memory_snapshot() if pool else ()
        scratch = sum(s["total_size"] for s in segments if s["segment_pool_id"] == pool)
        return {"its own buffers": own, "the graph's scratch": scratch}

    def __str__(self):
        held = ", ".join(f"{b / 1e6:.1f} MB for {what}" for what, b in self.held.items())
        count = len(self._graphs)
        how = f"replayed as {'a CUDA graph' if count == 1 else f'{count} CUDA graphs'}"
        if not count:
            how = "launched as it is"
        branches = f" in {self.branches} branches" if self.branches > 1 else ""
        return (
            f"plan of {list(self.shape)} {str(self.dtype).removeprefix('torch.')} on "
            f"{torch.cuda.get_device_name(self.device)}: stage {self.stage}, {how}{branches}; "
            f"holds {held}"
        )

    __repr__ = __str__


def branches(B):
    """In how many parts so many matrices are factored by panels, side by side, at most."""
    return max([1, *(k for matrices, k in BRANCHES if B >= matrices)])


def _check_device(device):
    if device.type != "cuda":
        raise ValueError(
            f"device must be an NVIDIA GPU; got {device}; a plan is a CUDA graph: "
            "elsewhere call qrlib.geqrf"
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise RuntimeError(
            f"device {device} is not here, where torch sees {count} NVIDIA GPUs; "
            "python -m qrlib.doctor says what is missing"
        )


def _in_turn(tasks):
    for task in tasks:
        task()


def _captured(phases):
    """Graphs to be replayed in turn, each with a branch for each of its functions of nothing."""
    # what a task puts beside itself comes after it, see streams
    main = torch.cuda.Stream(priority=-1)
    main.wait_stream(torch.cuda.current_stream())
    # what compiles, or allocates for good, must have done so before the capture
    with torch.cuda.stream(main):
        for tasks in phases:
            _in_turn(tasks)
    torch.cuda.current_stream().wait_stream(main)
    graphs = []
    for tasks in phases:
        # the scratch of one is free when the next begins
        pool = {"pool": graphs[0].pool()} if graphs else {}
        sides = [torch.cuda.Stream() for _ in tasks[1:]]
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=main, **pool):
            for side, task in zip(sides, tasks[1:]):
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    task()
            tasks[0]()
            for side in sides:
                main.wait_stream(side)
    return graphs
