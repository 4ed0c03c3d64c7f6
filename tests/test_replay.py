"""A plan gives what its stage gives, again and again: on a pretended GPU, and on one that is there.

What is pretended is that a graph, replayed, does what its tasks did. What only a graph can get
wrong, streams, memory and threads, is for the tests marked gpu.
"""

import threading
import weakref
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tables import batch_of, normal

import qrlib
from qrlib import replay
from qrlib.api import auto_stage
from qrlib.jit import quick_reductions
from qrlib.stages import stage

pretended = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to plan for")


class Graph:
    """The tasks once to be captured; then once for each replay."""

    def __init__(self, tasks):
        self.tasks = tasks
        self.replay()

    def replay(self):
        for task in self.tasks:
            task()

    def pool(self):
        return (0, 7)


def captured(phases):
    """Graphs, and all tasks once to begin with."""
    for tasks in phases:
        for task in tasks:
            task()
    return [Graph(tasks) for tasks in phases]


def module(**changes):
    """torch with some names changed."""
    made = ModuleType("torch")
    vars(made).update(vars(torch) | changes)
    return made


def stream_that_waits():
    nothing = lambda _: None  # noqa: E731
    return SimpleNamespace(wait_event=nothing, wait_stream=nothing)


def pretend(change):
    """qrlib.plan is for tensors on the CPU then; change is setattr, or that of a monkeypatch."""
    cuda = SimpleNamespace(
        device=lambda device: nullcontext(),
        Event=lambda: SimpleNamespace(record=lambda stream: None),
        Stream=stream_that_waits,
        stream=lambda stream: nullcontext(),
        current_stream=stream_that_waits,
        get_device_name=lambda device: "GPU of a test",
        memory_snapshot=lambda: [
            {"segment_pool_id": (0, 7), "total_size": 3_000_000},
            {"segment_pool_id": (0, 0), "total_size": 5_000_000},
            {"segment_pool_id": (0, 7), "total_size": 1_000_000},
        ],
    )
    here = module(cuda=cuda, device=lambda *_: torch.device("cpu"))
    change(replay, "torch", here)
    change(replay, "_check_device", lambda device: None)
    change(replay, "_captured", captured)


@pytest.fixture
def plan(monkeypatch):
    """The same in a test. Every plan has two branches, if it can have any."""
    pretend(monkeypatch.setattr)
    monkeypatch.setattr(replay, "COPIED", 0)
    monkeypatch.setattr(replay, "BRANCHES", ((2, 2),))
    with quick_reductions():
        yield qrlib.plan


def assert_same(ours, expected):
    assert torch.equal(ours.H, expected.H) and torch.equal(ours.tau, expected.tau)


@pretended
@pytest.mark.parametrize(
    ("name", "branches"),
    [("s06_update", 2), ("s07_whole", 1), ("s08_cholesky", 2), ("s04_recursive", 1)],
)
def test_new_data_gives_new_results_and_old_ones_stay(plan, name, branches):
    p = plan((3, 20, 18), stage=name)
    assert (p.stage, p.branches) == (name, branches)
    given = [normal(3, 20, 18, seed=seed) for seed in range(3)]
    found = [p(A) for A in given]
    for A, each in zip(given, found):
        assert_same(each, stage(name).geqrf(A))


@pretended
@pytest.mark.parametrize("name", ("s06_update", "s08_cholesky"))
def test_the_panels_of_a_plan_are_those_of_its_stage(plan, monkeypatch, name):
    seen, six = [], stage("s06_update")
    halves = six.halves

    def noted(*args):
        seen.append(args[4])
        return halves(*args)

    monkeypatch.setattr(six, "halves", noted)
    plan((3, 20, 18), stage=name)
    assert set(seen) == {stage(name).panel}


@pretended
@pytest.mark.parametrize("copied", (0, 1 << 40))
@pytest.mark.parametrize("precision", ("fp32", "fast"))
@pytest.mark.parametrize(
    "name, shape", (("s09_mixed", (3, 20, 18)), ("s10_blackwell", (1, 70, 170)))
)
def test_a_plan_asks_for_its_precision(plan, monkeypatch, name, shape, precision, copied):
    """In the graph that is made of updates, and in that of the whole of geqrf."""
    nine, seen = stage("s09_mixed"), []
    flags = nine.flags
    monkeypatch.setattr(nine, "flags", lambda A, policy: seen.append(policy) or flags(A, policy))
    monkeypatch.setattr(replay, "COPIED", copied)
    plan(shape, stage=name, precision=precision)
    assert set(seen) == {precision}


@pretended
@pytest.mark.parametrize("name", ("s06_update", "s04_recursive"))
def test_any_batch_shape_and_any_strides(plan, name):
    A = normal(2, 36, 20, 2).permute(3, 0, 2, 1)[..., ::2]
    assert A.shape == (2, 2, 20, 18) and not A.is_contiguous()
    before = A.clone()
    H, tau = plan(A.shape, stage=name)(A)
    assert H.shape == A.shape and tau.shape == (2, 2, 18) and H.is_contiguous()
    assert torch.equal(A, before)
    assert_same(qrlib.QR(H, tau), qrlib.geqrf(A.contiguous(), stage=name))


@pretended
def test_the_result_before_the_capture_is_let_go(plan, monkeypatch):
    kept, geqrf = [], stage("s04_recursive").geqrf

    def watched(A):
        result = geqrf(A)
        kept.append(weakref.ref(result.H))
        return result

    monkeypatch.setattr(stage("s04_recursive"), "geqrf", watched)
    p = plan((2, 5, 3), stage="s04_recursive")
    assert [H() is not None for H in kept] == [False, True]
    p(normal(2, 5, 3))
    assert [H() is not None for H in kept] == [False, False, True]


@pretended
def test_a_minus_that_torch_only_notes(plan):
    A = torch.complex(normal(2, 20, 18), normal(2, 20, 18, seed=1)).conj().imag
    assert A.is_neg()
    assert_same(plan(A.shape, stage="s06_update")(A), stage("s06_update").geqrf(A.resolve_neg()))


@pretended
@pytest.mark.parametrize("name", ("s06_update", "s04_recursive"))
@pytest.mark.parametrize("shape", ((0, 5, 3), (2, 0, 3), (2, 3, 0)))
def test_nothing_to_do(plan, name, shape):
    H, tau = plan(shape, stage=name)(torch.empty(shape))
    assert H.shape == shape and tau.shape == (shape[0], min(shape[1:]))


@pretended
def test_without_a_copy_it_is_the_memory_of_the_plan(plan):
    A, other = normal(3, 20, 18), normal(3, 20, 18, seed=1)
    p = plan(A.shape, stage="s06_update")
    lent, own = p(A, copy=False), p(A)
    assert lent.H.data_ptr() == p(A, copy=False).H.data_ptr() != own.H.data_ptr()
    assert_same(lent, own)
    newer = p(other)
    # the plan has written over what it lent
    assert_same(lent, newer)
    assert_same(own, stage("s06_update").geqrf(A))


@pretended
def test_a_call_waits_for_the_one_before_and_tells_the_next(plan, monkeypatch):
    log = []
    event = SimpleNamespace(record=lambda stream: log.append(("record", event, stream)))
    stream = SimpleNamespace(wait_event=lambda event: log.append(("wait", event, stream)))
    monkeypatch.setattr(replay.torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(replay.torch.cuda, "current_stream", lambda: stream)
    A = normal(3, 20, 18)
    p = plan(A.shape, stage="s06_update")
    replayed = p._graphs[0].replay
    p._graphs[0].replay = lambda: (log.append("replay"), replayed())
    p(A)
    begun = [("wait", event, stream), ("record", event, stream)]
    assert log == [*begun, "replay", ("record", event, stream)]
    # a call that fails on its way has begun, too
    log.clear()
    p._graphs[0].replay = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        p(A)
    assert log == [*begun, ("record", event, stream)]


@pretended
def test_what_the_first_panels_do_not_read_is_filled_beside_them(plan, monkeypatch):
    from qrlib import scaling

    log, current = [], ["main"]

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_event(self, event):
            log.append((self.name, "waits for an event"))

        def wait_stream(self, other):
            log.append((self.name, "waits for", other.name))

    @contextmanager
    def on(stream):
        current.append(stream.name)
        yield
        current.pop()

    scale, main = scaling.scale, Stream("main")

    def noted(*args):
        log.append((current[-1], "fills", *args[5]))
        scale(*args)

    for name, value in (("Stream", Stream), ("stream", on), ("current_stream", lambda: main)):
        monkeypatch.setattr(replay.torch.cuda, name, value)
    A = normal(3, 20, 50)
    expected = stage("s06_update").geqrf(A)
    monkeypatch.setattr(scaling, "scale", noted)
    p = plan(A.shape, stage="s06_update")
    for k, graph in enumerate(p._graphs):
        graph.tasks = [lambda k=k: log.append((current[-1], "replays", k)), *graph.tasks]
    log.clear()
    assert_same(p(A), expected)
    assert log == [
        ("main", "waits for an event"),
        ("main", "fills", 0, 20),
        ("main", "replays", 0),
        ("side", "waits for an event"),
        ("side", "fills", 20, 50),
        ("main", "waits for", "side"),
        ("main", "replays", 1),
    ]


@pretended
def test_calls_of_threads_come_one_after_another(plan):
    A = normal(3, 20, 18)
    p = plan(A.shape, stage="s06_update")
    inside, most = [], []
    replayed = p._graphs[0].replay

    def replay_slowly():
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.02)
        replayed()
        inside.pop()

    p._graphs[0].replay = replay_slowly
    threads = [threading.Thread(target=p, args=(A,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


@pretended
@pytest.mark.parametrize(
    ("A", "error", "message"),
    [
        (torch.ones(3, 18, 20), ValueError, r"plan's shape \(3, 20, 18\); got \(3, 18, 20\)"),
        (torch.ones(20, 18), ValueError, r"plan's shape .*got \(20, 18\); make a plan for each"),
        (torch.ones(3, 20, 18).double(), TypeError, "dtype torch.float32; got torch.float64"),
        (torch.ones(3, 20, 18, device="meta"), ValueError, "plan's device cpu; got meta"),
        (torch.ones(3, 20, 18).numpy(), TypeError, "a torch tensor; got ndarray"),
        (torch.ones(3, 20, 18).to_sparse(), TypeError, "must be dense.*to_dense"),
        (torch.ones(3, 20, 18, requires_grad=True), RuntimeError, "gradient.*detach"),
    ],
    ids=("shape", "dimensions", "dtype", "device", "NumPy", "sparse", "gradient"),
)
def test_what_it_was_not_made_for_is_refused(plan, A, error, message):
    with pytest.raises(error, match=message):
        plan((3, 20, 18), stage="s06_update")(A)


@pretended
def test_what_no_stage_takes_is_refused(plan):
    with pytest.raises(ValueError, match="stage must be one of .*got 's99'"):
        plan((2, 5, 3), stage="s99")
    with pytest.raises(TypeError, match="s06_update takes float32; got torch.float64"):
        plan((2, 5, 3), stage="s06_update", dtype=torch.float64)


@pretended
def test_auto_is_what_pays_in_a_graph(plan):
    assert plan((2, 20, 20), dtype=torch.float64).stage == "s04_recursive"
    ten = stage("s10_blackwell")
    for shape in ((2, 20, 20), (2, 20, 70), (1, 70, 170)):
        A, p = normal(*shape), plan(shape)
        assert p.stage == auto_stage(A) == "s10_blackwell"
        # a launch that comes from Python costs more: in a graph fewer columns are one
        assert_same(p(A), ten.geqrf(A, whole=ten.pays(*shape, replayed=True)))
    assert ten.pays(*shape, replayed=False) and not ten.pays(*shape, replayed=True)


@pretended
@pytest.mark.parametrize("shape", ((3, 20, 20), (2, 100, 40), (2, 5, 64), (2, 0, 3)))
def test_a_matrix_in_lanes_is_launched_as_it_is(plan, monkeypatch, shape):
    """No graph, no copy: the launch reads A where it is, with the strides that it has."""
    ten, given = stage("s10_blackwell"), []
    launch = ten.launch
    monkeypatch.setattr(ten, "launch", lambda A, *out: given.append(A.stride()) or launch(A, *out))
    p = plan(shape)
    assert not p._graphs and p.branches == 1
    # its result, and nothing beside it
    assert p.held["its own buffers"] == 4 * shape[0] * (shape[1] * shape[2] + min(shape[1:]))
    B, m, n = shape
    A = normal(B, n, 2 * m)[..., ::2].mT
    assert_same(p(A), ten.geqrf(A))
    assert not A.numel() or given[-2:] == [A.stride()] * 2


@pretended
def test_stage_7_hands_over_where_that_pays_in_a_graph(plan):
    whole = stage("s07_whole")
    for B, m, n in ((2, 20, 20), (1, 200, 1)):
        A, p = normal(B, m, n), plan((B, m, n), stage="s07_whole")
        one_launch = whole.pays(B, m, n, replayed=True)
        assert_same(p(A), whole.geqrf(A, whole=one_launch))
        # stage 6 has buffers of its own in a plan: H, exponents, tau, and memory for its loop
        own = 4 * B * (m * n if one_launch else m * n + n + min(m, n))
        if not one_launch:
            memory = stage("s06_update").Memory.of(A, "fp16x3", ahead=True).tensors()
            own += sum(X.numel() * X.element_size() for X in memory)
        assert p.held["its own buffers"] == own
    # one launch where each comes from Python, many where they do not
    assert whole.pays(B, m, n, replayed=False) and not one_launch


@pretended
def test_it_says_what_it_is_and_what_it_holds(plan):
    p = plan((3, 20, 18), stage="s06_update")
    # H, tau and e; V, and F, G and T of two steps
    own = 4 * 3 * (20 * 18 + 18 + 18 + 20 * 64 + 2 * (20 * 128 + 3 * 64 * 64))
    assert p.held == {"its own buffers": own, "the graph's scratch": 4_000_000}
    said = (
        "plan of [3, 20, 18] float32 on GPU of a test: stage s06_update, replayed as a CUDA "
        "graph in 2 branches; holds 0.4 MB for its own buffers, 4.0 MB for the graph's scratch"
    )
    assert str(p) == repr(p) == said


@pytest.mark.parametrize("count", (1, 2, 3))
def test_a_graph_has_a_branch_for_each_task_and_ends_with_the_last(monkeypatch, count):
    log, current, of_priority = [], ["the caller's"], {}

    class Stream:
        made = 0

        def __init__(self, priority=0):
            Stream.made += 1
            self.name = f"stream {Stream.made}"
            of_priority.setdefault(priority, []).append(self.name)

        def wait_stream(self, other):
            log.append((self.name, "waits", other.name))

    caller = Stream()
    caller.name = current[0]

    @contextmanager
    def on(stream):
        current.append(stream.name)
        yield
        current.pop()

    @contextmanager
    def capture(graph, stream, pool=None):
        assert pool == (None if graph.count == 1 else "of the first")
        log.append("begin")
        with on(stream):
            yield
        log.append("end")

    class Captured:
        made = 0

        def __init__(self):
            Captured.made += 1
            self.count = Captured.made

        def pool(self):
            return "of the first" if self.count == 1 else "another"

    cuda = SimpleNamespace(
        Stream=Stream, stream=on, graph=capture, CUDAGraph=Captured, current_stream=lambda: caller
    )
    monkeypatch.setattr(replay, "torch", module(cuda=cuda))
    tasks = [lambda k=k: log.append((current[-1], "task", k)) for k in range(count)]
    assert len(replay._captured([tasks, tasks[:1]])) == 2

    begin, end = log.index("begin"), log.index("end")
    before, inside, after = log[:begin], log[begin + 1 : end], log[end + 1 :]
    main = next(stream for stream, what, *_ in before if what == "task")
    # what tasks put beside themselves has a stream of the lowest priority, 0
    assert of_priority[-1] == [main]
    # all that the caller has begun is done first, and all tasks before the capture
    assert before[0] == (main, "waits", current[0])
    assert before[-1] == (current[0], "waits", main)
    assert [k for _, what, k in before if what == "task"] == [*range(count), 0]
    assert after == ["begin", (main, "task", 0), "end"]
    on_stream = {k: stream for stream, what, k in inside if what == "task"}
    assert set(on_stream) == set(range(count)) and len(set(on_stream.values())) == count
    for k, stream in on_stream.items():
        if stream != main:
            fork, join = (stream, "waits", main), (main, "waits", stream)
            assert inside.index(fork) < inside.index((stream, "task", k)) < inside.index(join)
            # the main stream works while the others do
            assert inside.index((main, "task", 0)) < inside.index(join)


@pytest.mark.gpu
class TestOnTheGpu:
    """Sizes of one branch and of two, with a copy of A and without."""

    CASES = (
        ("s07_whole", (40, 100, 100)),
        ("s06_update", (40, 352, 352)),
        ("s06_update", (2, 1000, 700)),
        ("s08_cholesky", (20, 352, 352)),
        ("s08_cholesky", (2, 1000, 700)),
        ("s05_panel", (30, 100, 100)),
        ("s04_recursive", (30, 100, 100)),
    )
    BRANCHED = ("s06_update", (300, 256, 256))

    def data(self, shape, seed):
        return batch_of("dense", shape[0], shape[1], seed=seed)[..., : shape[2]].cuda()

    @pytest.mark.parametrize(("name", "shape"), CASES)
    def test_twenty_replays_are_bitwise_what_the_stage_gives(self, name, shape):
        p = qrlib.plan(shape, stage=name)
        given = [self.data(shape, seed) for seed in range(3)]
        expected = [qrlib.geqrf(A, stage=name) for A in given]
        for k in range(20):
            assert_same(p(given[k % 3]), expected[k % 3])

    @pytest.mark.parametrize(
        ("name", "shape", "branches"),
        (
            (*BRANCHED, 2),
            ("s08_cholesky", (300, 256, 256), 2),
            ("s08_cholesky", (600, 256, 256), 4),
        ),
    )
    def test_branches_are_bitwise_what_the_stage_gives_for_their_parts(self, name, shape, branches):
        p = qrlib.plan(shape, stage=name)
        assert p.branches == branches
        for k in range(20):
            A = self.data(shape, k % 3)
            parts = [stage(name).geqrf(part) for part in A.chunk(branches)]
            H, tau = p(A)
            assert torch.equal(H, torch.cat([part.H for part in parts]))
            assert torch.equal(tau, torch.cat([part.tau for part in parts]))
        assert qrlib.certify(A, H, tau).passed

    @pytest.mark.parametrize("copy", (True, False))
    @pytest.mark.parametrize(("name", "shape"), (CASES[0], CASES[1], BRANCHED))
    def test_another_stream_and_data_that_it_has_just_written(self, name, shape, copy):
        p = qrlib.plan(shape, stage=name)
        A = self.data(shape, 0)
        expected = p(2 * A)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # the stream is busy, and A is not what it will be
            busy = torch.ones(4096, 4096, device="cuda")
            for _ in range(20):
                busy = busy @ busy
            A *= 2
            H, tau = p(A, copy=copy)
            A.zero_()
            H, tau = H.clone(), tau.clone()
        torch.cuda.current_stream().wait_stream(stream)
        assert_same(qrlib.QR(H, tau), expected)

    def test_streams_in_turn_wait_for_each_other(self):
        name, shape = self.BRANCHED
        p = qrlib.plan(shape, stage=name)
        given = [self.data(shape, seed) for seed in range(4)]
        expected = [p(A) for A in given]
        torch.cuda.synchronize()
        found = []
        streams = [torch.cuda.Stream() for _ in given]
        for _ in range(5):
            for A, stream in zip(given, streams):
                with torch.cuda.stream(stream):
                    found.append(p(A))
        torch.cuda.synchronize()
        for k, each in enumerate(found):
            assert_same(each, expected[k % 4])

    @pytest.mark.parametrize(("name", "shape"), (CASES[0], CASES[1]))
    def test_threads(self, name, shape):
        p = qrlib.plan(shape, stage=name)
        given = [self.data(shape, seed) for seed in range(4)]
        expected = [p(A) for A in given]
        torch.cuda.synchronize()
        wrong = []

        def work(k):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    ours = p(given[k])
                    if not torch.equal(ours.H, expected[k].H):
                        wrong.append(k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_float64(self):
        A = normal(8, 60, 40, dtype=torch.float64).cuda()
        p = qrlib.plan(A.shape, dtype=torch.float64)
        assert p.stage == "s04_recursive" and "float64" in str(p)
        assert_same(p(A), qrlib.geqrf(A))

    @pytest.mark.parametrize(("name", "shape"), (*CASES, BRANCHED))
    def test_it_names_its_stage_and_its_bytes(self, name, shape):
        p = qrlib.plan(shape, stage=name)
        assert f"stage {name}" in str(p) and torch.cuda.get_device_name() in str(p)
        B, m, n = shape
        own = p.held["its own buffers"]
        # H, perhaps a copy of A, tau and e; of a loop V, and F, G and T of two steps at most
        most = 2 * m * n + 2 * n + m * 64 + 2 * (m * 128 + 3 * 64 * 64)
        assert 4 * B * m * n <= own <= 4 * B * most
        assert f"{own / 1e6:.1f} MB for its own buffers" in str(p)
        assert p.held["the graph's scratch"] > 0

    def test_a_plan_that_is_dropped_gives_its_memory_back(self):
        import gc

        name, shape = self.BRANCHED
        qrlib.plan(shape, stage=name)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        p = qrlib.plan(shape, stage=name)
        assert torch.cuda.memory_reserved() > before
        del p
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() <= before

    @pytest.mark.parametrize("name", ("s06_update", "s07_whole", "s08_cholesky"))
    def test_no_synchronisation_inside(self, name):
        shape = (40, 100, 100)
        p, A = qrlib.plan(shape, stage=name), self.data(shape, 0)
        torch.cuda.set_sync_debug_mode("error")
        try:
            p(A)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_too_little_memory_is_said_before_anything_is_held(self):
        free, _ = torch.cuda.mem_get_info()
        B = free // (512 * 512 * 4) * 2
        with pytest.raises(
            torch.cuda.OutOfMemoryError, match="stage s06_update needs .* GB beside"
        ):
            qrlib.plan((B, 512, 512), stage="s06_update")
