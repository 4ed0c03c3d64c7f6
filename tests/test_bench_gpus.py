"""Batches over several GPUs: two processes without a GPU go all the way; what fails is told by all.

A launch takes some seconds, most of them to import torch, so one has all that can be told by rows.
"""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from test_replay import pretend

import qrlib
from qrlib import replay
from qrlib.bench import Results, gpus, load, measure
from qrlib.bench.__main__ import cases_of, main, parser
from qrlib.bench.cases import Inputs
from qrlib.bench.gpus import ALL, CASES, RULES, SHARDED, SHARE, Took, broken, check, differing
from qrlib.bench.measure import Protocol
from qrlib.bench.results import check_origin
from qrlib.matrices import BENCHMARK_CASES, Case

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "book" / "data" / "gpus.json"
TWO = ("--gpus", "2", "--device", "cpu", "--runs", "2", "--commit", "abc")
ONE_CASE = (*TWO, "--case", "0", "--n", "9", "--batch", "6")
CPU, GPU = torch.device("cpu"), torch.device("cuda")

launched = pytest.mark.skipif(
    sys.platform != "linux" or not (dist.is_available() and dist.is_gloo_available()),
    reason="needs Linux, and torch with gloo",
)

# stages that differ from LAPACK on some rank, or for some batch; each is a module of that name
PLANTED = {
    "not_finite": "if rank == 1:\n    H[-1, -1, -1] = float('nan')",
    "other_bits": "if rank == 1:\n    H[0, 0, -1] = torch.nextafter(H[0, 0, -1], zero)",
    "by_batch": "if len(A) == 6:\n    H[:2, 0, -1] = torch.nextafter(H[:2, 0, -1], zero)",
    "slow_here": "assert os.environ['NCCL_NVLS_ENABLE'] == '0'\ntime.sleep(0.3 * rank)",
    "raises": "if rank == 1:\n    raise ValueError('nothing for rank 1')",
    "leaves": "if rank == 1:\n    raise SystemExit(0)",
    "killed": "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)",
    "hangs": "if rank == 1:\n    time.sleep(1000)",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A folder with the modules of PLANTED."""
    where = tmp_path_factory.mktemp("planted")
    for name, body in PLANTED.items():
        lines = [
            "import os, signal, time",
            "import torch",
            "def geqrf(A):",
            "    rank, zero = torch.distributed.get_rank(), torch.zeros(())",
            "    H, tau = (X.contiguous() for X in torch.geqrf(A))",
            *(f"    {line}" for line in body.splitlines()),
            "    return H, tau",
        ]
        (where / f"{name}.py").write_text("\n".join(lines) + "\n", "utf-8")
    return where


@pytest.fixture
def importable(planted, monkeypatch):
    monkeypatch.syspath_prepend(str(planted))


def took(us, host_us=None):
    return [Took(x, host_us or x) for x in us]


CLEAN = dict.fromkeys(("factor", "orthogonality", "columnwise"), 0.5)


def row(
    case=CASES[0],
    stage="auto",
    mode="eager",
    count=2,
    us=(8.0, 4.1, 4.0),
    differ=(0, 0),
    judged=None,
):
    """A row as rank 0 writes it: us of all on one, of a share on one, and sharded."""
    inputs = SimpleNamespace(case=case, seed=0)
    times = {way: took([0.9 * x, x, 1.2 * x]) for way, x in zip(gpus.WAYS, us)}
    fine = (CLEAN, [], [])
    judged = judged or [dict.fromkeys(gpus.WAYS, fine), *[{SHARDED: fine}] * (count - 1)]
    return gpus._row(inputs, stage, mode, count, times, judged, dict(zip((ALL, SHARE), differ)))


class TestCases:
    def test_a_half_is_what_the_task_times(self):
        sizes = [(case.batch, case.n) for case in CASES]
        assert sizes == [(1280, 512), (120, 1024), (16, 2048)]
        assert [case._replace(batch=case.batch // 2) for case in CASES] == list(
            BENCHMARK_CASES[3:6]
        )

    @pytest.mark.parametrize("count", (1, 2, 3, 8))
    def test_small_ones_divide(self, count):
        found = [gpus.small(case, count) for case in CASES]
        assert len({case.n for case in found}) == len(CASES)
        check(count, found, CPU)

    def test_what_is_compiled_ahead(self):
        found = [(case.batch, case.n) for case in gpus.batches(4, CASES[:2])]
        assert found == [(1280, 512), (320, 512), (120, 1024), (30, 1024)]

    def test_which_ones_are_asked_for(self):
        asked = lambda *more: cases_of(parser().parse_args(["--gpus", "2", *more]), False)  # noqa: E731
        assert asked() == list(CASES)
        assert asked("--case", "2", "--batch", "8") == [CASES[2]._replace(batch=8)]
        # as for eager calls
        assert asked("--replay") == list(CASES)
        assert asked("--small") == [gpus.small(case, 2) for case in CASES]

    @pytest.mark.parametrize(
        "batch, n, same", ((1280, 512, True), (120, 1024, False), (16, 2048, False))
    )
    def test_which_results_depend_on_the_batch(self, batch, n, same):
        """On paper: whether a matrix goes through the same kernels, its rows shared out alike."""
        assert (on_paper(batch, n) == on_paper(batch // 2, n)) is same


def at_once(row, batch):
    """How many matrices of such a batch go through the same kernels: a graph has branches."""
    parts = replay.branches(batch) if row["mode"] == "replay" else 1
    assert batch % parts == 0
    return batch // parts


def on_paper(batch, n):
    """What decides the bits of a matrix on an H200: kernels, and programs for each matrix."""
    pytest.importorskip("triton")
    from qrlib.launches import launches

    found = launches("s10_blackwell", batch, n, n, target="sm_90a")
    assert all(each.grid[0] == batch for each in found)
    return [(each.config.key, each.grid[1:]) for each in found]


class TestBits:
    def test_each_bit_of_each_counts(self):
        H, tau = torch.randn(5, 4, 3), torch.zeros(5, 3)
        assert differing((H, tau), (H.clone(), tau.clone())) == 0
        other, negative = H.clone(), tau.clone()
        other[1, 3, 2] = torch.nextafter(other[1, 3, 2], torch.zeros(()))
        negative[[1, 4], 0] = -0.0
        assert differing((H, tau), (other, tau)) == 1
        assert differing((H, tau), (H, negative)) == 2
        assert differing((H, tau), (other, negative)) == 2

    def test_the_order_in_memory_does_not(self):
        H = torch.randn(5, 4, 3)
        assert differing((H, H), (H.mT.contiguous().mT, H)) == 0

    def test_nan_is_what_it_is(self):
        H = torch.full((2, 3, 3), math.nan)
        assert differing((H, H), (H.clone(), H)) == 0


class TestRows:
    def test_scaling_and_its_share(self):
        found = row(us=(8.0, 4.1, 4.0))
        assert found["ok"] and found["scaling"] == found["speedup"] == pytest.approx(2.0)
        assert found["efficiency"] == pytest.approx(1.0)
        assert found["median_us"] == 4.0 and found[ALL]["median_us"] == 8.0
        assert (found[ALL]["batch"], found[SHARE]["batch"]) == (1280, 640)
        assert found["q25_us"] < found["median_us"] < found["q75_us"]
        assert row(us=(8.0, 2.0, 2.5), count=4)["efficiency"] == pytest.approx(0.8)

    def test_bits_of_one_gpu_with_all_are_a_note_and_with_a_share_a_fault(self):
        found = row(differ=(7, 0))
        assert found["ok"] and found["bitwise"] == {ALL: False, SHARE: True}
        assert found["differ"][ALL] == 7 and found["compared"] == 2 * 1280
        assert found["notes"] == ["7 of 2560 matrices have other bits than on one GPU with all"]
        found = row(differ=(0, 3))
        assert not found["ok"] and found["bitwise"] == {ALL: True, SHARE: False}
        assert found["faults"] == [
            "3 of 2560 matrices have other bits than on one GPU with the same share"
        ]

    def test_a_fault_of_any_rank_takes_every_time(self):
        bad = CLEAN | {"factor": math.inf}
        fine = (CLEAN, [], [])
        judged = [dict.fromkeys(gpus.WAYS, fine), {SHARDED: (bad, ["factor inf"], [])}]
        found = row(judged=judged)
        assert not found["ok"] and found["faults"] == ["rank 1, sharded: factor inf"]
        assert found["certificate"]["factor"] is None and found["certificate"]["columnwise"] == 0.5
        assert [each["factor"] for each in found["certificates"][SHARDED]] == [0.5, None]
        for times in (found, found[ALL], found[SHARE]):
            assert times["median_us"] is None and not times["times_us"]
        assert found["scaling"] is None and found["efficiency"] is None
        json.dumps(found, allow_nan=False)

    def test_the_worst_of_all_is_the_certificate(self):
        worse = (CLEAN | {"orthogonality": 0.75}, [], [])
        found = row(judged=[dict.fromkeys(gpus.WAYS, (CLEAN, [], [])), {SHARDED: worse}])
        assert found["certificate"] == CLEAN | {"orthogonality": 0.75}


def the_broken(*rows):
    found = broken(Results({}, {}, list(rows)))
    assert tuple(found) == RULES
    return list(found.values())


class TestRules:
    def test_they_hold(self):
        assert the_broken(row(us=(7.6, 4.0, 4.0)), row(us=(15.2, 4.0, 4.0), count=4)) == [[]] * 3

    def test_each_can_break(self):
        said = "1280 x 512 dense, cond 2, auto, eager"
        assert the_broken(row(us=(7.5, 4.0, 4.0)))[0] == [f"{said}: 1.88x"]
        assert the_broken(row(us=(15.1, 4.0, 4.0), count=4))[0] == [f"{said}: 3.77x"]
        assert the_broken(row(differ=(3, 0)))[1:] == [[], [f"{said}: 3 of 2560 differ"]]
        # what did not pass keeps none
        assert [len(each) for each in the_broken(row(differ=(0, 3)))] == [1, 1, 1]

    def test_of_each_mode(self):
        slow, other = {"us": (7.5, 4.0, 4.0)}, {"differ": (3, 5)}
        said = "1280 x 512 dense, cond 2, auto, replay"
        assert the_broken(row(), row(mode="replay", **slow)) == [[f"{said}: 1.88x"], [], []]
        found = the_broken(row(), row(mode="replay", **other))
        assert found == [
            [f"{said}: -"],
            [f"{said}: 5 of 2560 differ"],
            [f"{said}: 3 of 2560 differ"],
        ]
        found = the_broken(row(**slow), row(mode="replay", **slow))[0]
        assert [sentence.split(", ")[-1] for sentence in found] == ["eager: 1.88x", "replay: 1.88x"]

    def test_on_one_gpu_nothing_scales(self):
        assert the_broken(row(count=1, us=(4.0, 4.0, 4.0))) == [None, [], []]

    def test_a_report(self):
        rows = [row(differ=(3, 0)), row(mode="replay", us=(6.0, 3.1, 3.0))]
        lines = list(gpus.report(Results({}, {}, rows)))
        said = "1280 x 512 dense, cond 2, auto"
        assert lines[1:3] == [
            f"  {said}, eager: 8, 4.1, 4; 2 times as fast on 2, efficiency 1",
            f"  {said}, replay: 6, 3.1, 3; 2 times as fast on 2, efficiency 1",
        ]
        assert lines[3:6] == [f"holds: {RULES[0]}", f"holds: {RULES[1]}", f"BROKEN: {RULES[2]}"]
        assert lines[6:] == [f"    {said}, eager: 3 of 2560 differ"]

    def test_where_it_was_says_how_many(self):
        origin = {"gpu": "A", "cpu": "C", "date": "2026-11-30T", "commit": "abc", "dirty": False}
        where = lambda *names: Results(origin | {"gpus": names}, {}, []).where()  # noqa: E731
        assert where("A", "A").startswith("measured on 2 x A, ")
        assert where("A", "B", "A").startswith("measured on 2 x A and 1 x B, ")
        assert where("A") == where() == Results(origin, {}, []).where()


@pytest.fixture
def two_gpus(monkeypatch):
    """As if there were two, and NCCL."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"GPU {k}")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


class TestCheck:
    def refused(self, says, count=2, listed=CASES, device=GPU):
        with pytest.raises(ValueError, match=says):
            check(count, listed, device)

    def test_as_many_as_there_are(self, two_gpus):
        check(1, CASES, GPU)
        check(2, CASES, GPU)

    def test_more_than_there_are(self, two_gpus):
        self.refused("--gpus 4 needs 4 NVIDIA GPUs; found 2, GPU 0, GPU 1; give --gpus 2 or", 4)

    def test_none_there(self, two_gpus, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        self.refused("--gpus 1 needs 1 NVIDIA GPU; found 0; python -m qrlib.doctor says why", 1)

    @pytest.mark.parametrize("count", (0, -1))
    def test_too_few(self, count):
        self.refused(f"--gpus must be 1 or more; got {count}", count)

    def test_a_batch_that_does_not_divide(self, two_gpus):
        listed = [CASES[0], Case(15, 2048, 1, "dense")]
        self.refused(
            "that of 15 x 2048 dense, cond 1 leaves 1; .* --batch a multiple of 2, such as 16$",
            listed=listed,
        )

    def test_another_system(self, monkeypatch):
        monkeypatch.setattr(sys, "platform", "darwin")
        self.refused("needs Linux, .*; got darwin", device=CPU)

    @pytest.mark.parametrize("backend, device", (("nccl", GPU), ("gloo", CPU)))
    def test_a_torch_without_it(self, two_gpus, monkeypatch, backend, device):
        monkeypatch.setattr(dist, f"is_{backend}_available", lambda: False)
        self.refused(f"needs a torch with {backend} for {device.type}; .* has none", device=device)

    def test_inside_torchrun(self, monkeypatch):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        self.refused("call python -m qrlib.bench --gpus 2 without torchrun", device=CPU)


class TestCommand:
    @pytest.mark.parametrize(
        "arguments, says",
        (
            (("--gpus", "0"), "--gpus must be 1 or more; got 0"),
            (("--replay",), "--replay needs a GPU: a CUDA graph is what is replayed"),
            (("--q",), "leave out --q"),
            (("--sweep", "--precision", "fast"), "leave out --sweep, --precision"),
            (("--compare", "none"), "leave out --compare"),
            (("--case", "3"), "--case must be 0 to 2"),
            (("--batch", "5"), "5 x 22 dense, cond 2 leaves 1"),
            (("--n", "0"), "--n, --batch and --sweep must be 1 or more"),
            (("--stage", "nowhere"), "stage must be torch, auto"),
            (("--runs", "0"), "--runs must be 1 or more"),
        ),
    )
    def test_what_is_not_understood_ends_with_2_and_starts_nothing(
        self, arguments, says, capsys, monkeypatch
    ):
        monkeypatch.setattr(gpus, "_launched", lambda *given: pytest.fail("started"))
        with pytest.raises(SystemExit) as end:
            main([*TWO, *arguments])
        assert end.value.code == 2 and says in capsys.readouterr().err

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_processes_on_a_cpu_have_to_be_asked_for(self, capsys):
        with pytest.raises(SystemExit) as end:
            main(["--gpus", "2"])
        said = capsys.readouterr().err
        assert end.value.code == 2 and "needs 2 NVIDIA GPUs; found 0" in said
        assert "--device cpu" in said

    @pytest.mark.parametrize(
        "more, modes", (((), ("eager",)), (("--replay",), ("eager", "replay")))
    )
    def test_what_every_rank_is_told(self, two_gpus, monkeypatch, capsys, more, modes):
        """And what it says then: of rows in each mode."""
        asked, rows = [], [row(mode=mode) for mode in modes]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28))
        monkeypatch.setattr(gpus, "_launched", lambda *given: asked.append(given) or (rows, {}))
        assert main(["--gpus", "2", "--commit", "abc", *more]) == 0
        ((count, request),) = asked
        assert count == 2 and request.modes == modes and request.cases == CASES
        printed = capsys.readouterr().out
        for mode in ("eager", "replay"):
            assert (f"cond 2, auto, {mode}: 8, 4.1, 4; 2 times" in printed) is (mode in modes)

    def test_a_file_that_could_not_be_kept_is_refused_before(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr("qrlib.bench.results._commit", lambda: (None, None))
        monkeypatch.setattr(gpus, "_launched", lambda *given: pytest.fail("started"))
        with pytest.raises(SystemExit) as end:
            main([*TWO[:-2], "--json", str(tmp_path / "a.json")])
        assert end.value.code == 2 and "lacks commit" in capsys.readouterr().err


@pytest.fixture
def alone(monkeypatch):
    """The one rank that there is, in this process: (stage, a Case) -> its rows in each mode."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    here = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    monkeypatch.setattr(dist, "init_process_group", partial(dist.init_process_group, **here))

    def rows(stage, case):
        protocol = Protocol(runs=2, probes=False)
        request = gpus.Request((case,), (stage,), ("eager", "replay"), 0, "cpu", protocol, 60.0)
        return gpus._measured(gpus.Ranks(request), request)[0]

    yield rows
    dist.destroy_process_group()


class Captured:
    """clock.Replay where there is no GPU: it has one memory for what goes in, one for the rest."""

    def __init__(self, call, A):
        self.call, self.A, self.returned = call, A.clone(), call(A)

    def __call__(self, A):
        self.A.copy_(A)
        for X, Y in zip(self.returned, self.call(self.A)):
            X.copy_(Y)
        return self.returned


@launched
class TestAlone:
    """What every rank does, on one."""

    CASE = Case(4, 5, 1, "dense")

    def test_a_stage_without_a_door_is_captured_whole(self, alone, monkeypatch):
        monkeypatch.setattr(measure, "Replay", Captured)
        eager, replayed = alone(torch.geqrf, self.CASE)
        assert (eager["mode"], replayed["mode"]) == ("eager", "replay")
        for each in (eager, replayed):
            assert each["ok"] and each["runs"] == 2 and each["differ"] == {ALL: 0, SHARE: 0}

    def test_bits_are_not_compared_with_themselves(self, alone, monkeypatch):
        """What a replay gives is overwritten by the next, and that is what it is held against."""
        monkeypatch.setattr(measure, "Replay", Captured)
        calls = []

        def by_turn(A):
            calls.append(A)
            # a DTensor would be made of a copy of another
            H, tau = (X.contiguous() for X in torch.geqrf(A))
            H[0, 0, -1] *= 1 + 1e-6 * len(calls)
            return H, tau

        for each in alone(by_turn, self.CASE):
            assert each["differ"] == {ALL: 2, SHARE: 2} and not each["ok"]

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_without_a_gpu_there_is_no_plan(self, alone):
        says = "rank 0 failed: ValueError: device must be an NVIDIA GPU; got cpu; a plan is a CUDA"
        with pytest.raises(gpus.Failed, match=says):
            alone("s04_recursive", self.CASE)


def test_the_end_of_every_rank_is_told():
    killed = SimpleNamespace(exitcode=-9, signal_name=lambda: "SIGKILL", message="Signal 9")
    raised = SimpleNamespace(exitcode=1, message={"message": "ValueError: planted"})
    silent = SimpleNamespace(exitcode=3, message="")
    assert list(gpus._ends(3, {1: killed})) == [
        "rank 0 of 3: stopped, for rank 1 ended",
        "rank 1 of 3: killed by SIGKILL",
        "rank 2 of 3: stopped, for rank 1 ended",
    ]
    assert list(gpus._ends(2, {0: raised, 1: silent})) == [
        "rank 0 of 2: ValueError: planted",
        "rank 1 of 2: ended with 3",
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(exit status, what was printed, the file) of the command on small cases."""
    path, printed = tmp_path_factory.mktemp("gpus") / "a.json", StringIO()
    with redirect_stdout(printed):
        status = main([*TWO, "--json", str(path)])
    return status, printed.getvalue(), path


def pretending(request):
    """What a rank does where plans are pretended; it tells of them. One is blind, on rank 1."""
    pretend(setattr)
    rank, planned, plan = os.environ["RANK"], [], qrlib.plan

    def watched(shape, *, stage, **more):
        planned.append(tuple(shape))
        made = plan(shape, stage=stage, **more)
        if stage == "s02_unblocked" and rank == "1":
            # it gives again what it gave first
            made._fill = lambda A: None
        return made

    qrlib.plan = watched
    found = gpus.work(request)
    print(f"rank {rank} planned {planned}", file=sys.stderr)
    return found


def has_torch(process):
    """Whether a process has loaded it so far."""
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


@launched
@pytest.mark.slow
class TestLaunched:
    def test_it_runs_and_writes(self, written):
        status, printed, path = written
        assert status == 0 and "geometric mean" in printed and "times as fast on 2" in printed
        assert all(rule in printed for rule in RULES)
        found = load(path)
        assert found.passed and [row["n"] for row in found.rows] == [22, 38, 70]
        for each in found.rows:
            assert each["gpus"] == 2 and each["batch"] == 8 and each["runs"] == 2
            assert each[ALL]["batch"] == 8 and each[SHARE]["batch"] == 4
            for times in (each, each[ALL], each[SHARE]):
                assert 0 < times["q25_us"] <= times["median_us"] <= times["q75_us"]
                assert len(times["times_us"]) == 2 and times["host_us"] > 0
            assert each["scaling"] == each[ALL]["median_us"] / each["median_us"]
            assert each["efficiency"] == each["scaling"] / 2
            assert each["bitwise"][SHARE] and each["differ"][SHARE] == 0
            assert [len(each["certificates"][way]) for way in gpus.WAYS] == [1, 1, 2]
            worst = [c["factor"] for way in gpus.WAYS for c in each["certificates"][way]]
            assert each["certificate"]["factor"] == max(worst) < 4

    def test_it_says_where_it_comes_from(self, written):
        found = load(written[2])
        check_origin(found.provenance, "a.json")
        assert found.provenance["gpus"] == [] and found.provenance["commit"] == "abc"
        assert found.provenance["command"].startswith("python -m qrlib.bench --gpus 2")
        assert found.protocol["ranks"] == 2 and found.protocol["backend"] == "gloo"
        assert found.protocol["environment"]["NCCL_NVLS_ENABLE"] == "0"
        assert found.protocol["probes"] is False and found.protocol["clock"] == "the host's"
        assert found.protocol["cases"] == [list(gpus.small(case, 2)) for case in CASES]

    @pytest.mark.usefixtures("importable")
    def test_rows_of_what_one_rank_does(self, capsys, monkeypatch, tmp_path):
        measure, seen, path = gpus.measure, [], tmp_path / "a.json"

        def watched(*args, **kwargs):
            seen.append(measure(*args, **kwargs))
            return seen[-1]

        monkeypatch.setattr(gpus, "measure", watched)
        stages = ("not_finite", "other_bits", "by_batch", "slow_here")
        assert main([*ONE_CASE, "--stage", *stages, "--json", str(path)]) == 1
        printed = capsys.readouterr().out
        assert "2 of 4 rows FAILED" in printed and "is not written" in printed
        assert not path.exists()
        wrong, bits, by_batch, slow = seen[0].rows
        assert [each["stage"] for each in seen[0].rows] == list(stages)

        assert [each["ok"] for each in seen[0].rows] == [False, False, True, True]
        of_rank_1 = [each for each in wrong["faults"] if "than on one GPU" not in each]
        assert len(of_rank_1) == 3
        assert all(each.startswith("rank 1, sharded: ") for each in of_rank_1)
        assert [each["factor"] is None for each in wrong["certificates"][SHARDED]] == [False, True]
        # its certificate is as good as before
        assert bits["faults"] == [
            "2 of 12 matrices have other bits than on one GPU with the same share"
        ]
        # what depends on the batch alone is right, and is told
        assert by_batch["notes"] == ["4 of 12 matrices have other bits than on one GPU with all"]
        assert by_batch["bitwise"] == {ALL: False, SHARE: True}
        # the slowest counts
        assert slow["median_us"] > 3e5 > slow[ALL]["median_us"] and slow["host_us"] > 3e5

    def test_a_replay_is_planned_for_a_share_and_for_all(self, capfd, monkeypatch):
        monkeypatch.setattr(gpus, "work", pretending)
        found = gpus.measure(
            2,
            [Case(6, 9, 2, "dense")],
            stages=("s04_recursive", "s02_unblocked"),
            replay=True,
            device="cpu",
            protocol=Protocol(runs=2),
            commit="abc",
        )
        kinds = [(each["stage"], each["mode"], each["ok"]) for each in found.rows]
        assert kinds == [
            ("s04_recursive", "eager", True),
            ("s04_recursive", "replay", True),
            ("s02_unblocked", "eager", True),
            ("s02_unblocked", "replay", False),
        ]
        fine, blind = found.rows[1], found.rows[3]
        assert fine["bitwise"][SHARE] and fine["scaling"] > 0
        assert [len(fine["certificates"][way]) for way in gpus.WAYS] == [1, 1, 2]
        # of two batches those that rank 1 has
        assert blind["differ"] == {ALL: 6, SHARE: 6}
        of_rank_1 = [each for each in blind["faults"] if "than on one GPU" not in each]
        assert of_rank_1 and all(each.startswith("rank 1, sharded: ") for each in of_rank_1)
        # once for each stage: it is called for every run, and for the bits
        said = capfd.readouterr().err.splitlines()
        assert f"rank 0 planned {[(3, 9, 9), (6, 9, 9)] * 2}" in said
        assert f"rank 1 planned {[(3, 9, 9)] * 2}" in said

    @pytest.mark.usefixtures("importable")
    @pytest.mark.parametrize(
        "stage, raised", (("raises", "ValueError: nothing for rank 1"), ("leaves", "SystemExit: 0"))
    )
    def test_what_is_raised_is_told_on_every_rank(
        self, stage, raised, capfd, monkeypatch, tmp_path
    ):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        path = tmp_path / "a.json"
        level = logging.getLogger("torch.distributed.elastic").level
        assert main([*ONE_CASE, "--stage", stage, "--json", str(path)]) == 1
        said = capfd.readouterr().err.splitlines()
        for rank in (0, 1):
            assert f"rank {rank} of 2: stopped; rank 1 failed: {raised}" in said
        assert said[-1] == "nothing was measured" and not path.exists()
        # nor is anything left of the launcher
        assert not list(tmp_path.iterdir())
        assert logging.getLogger("torch.distributed.elastic").level == level

    def test_one_that_is_told_to_end_ends_quietly(self, planted):
        command = [sys.executable, "-m", "qrlib.bench", *ONE_CASE, "--stage", "hangs"]
        paths = os.pathsep.join([str(ROOT), str(planted)])
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        ) as running:
            # a rank has heard what it is to do when it has torch, and not when it has begun
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
            while sum(has_torch(child) for child in children.read_text().split()) < 2:
                sleep(0.1)
            running.send_signal(signal.SIGTERM)
            said, _ = running.communicate(timeout=gpus.PATIENCE / 3)
        assert running.returncode == 128 + signal.SIGTERM and "Traceback" not in said, said

    def test_one_that_is_killed_ends_all(self, planted, tmp_path):
        path = tmp_path / "a.json"
        command = [sys.executable, "-m", "qrlib.bench", *ONE_CASE, "--stage", "killed"]
        paths = os.pathsep.join([str(ROOT), str(planted)])
        begin = monotonic()
        ended = subprocess.run(
            [*command, "--json", str(path)],
            capture_output=True,
            text=True,
            timeout=gpus.PATIENCE / 3,
            env=os.environ | {"PYTHONPATH": paths},
        )
        assert ended.returncode == 1 and not path.exists()
        assert "rank 1 of 2: killed by SIGKILL" in ended.stderr, ended.stderr
        assert "rank 0 of 2: stopped, for rank 1 ended" in ended.stderr
        assert monotonic() - begin < gpus.PATIENCE / 3

    @pytest.mark.usefixtures("importable")
    def test_one_that_hangs_is_not_waited_for_longer_than_said(self, capfd):
        with pytest.raises(gpus.Failed, match="(?s)rank 0 of 2: Lost: .*waits 8 s at most"):
            gpus.measure(
                2,
                [Case(4, 5, 1, "dense")],
                stages=["hangs"],
                device="cpu",
                protocol=Protocol(runs=1),
                commit="abc",
                patience=8.0,
            )
        assert "rank 0 of 2: Lost: other ranks did not come" in capfd.readouterr().err


def test_a_part_is_what_a_rank_has():
    inputs = Inputs(Case(6, 5, 1, "dense"), seed=1)
    part = gpus.Part(inputs, 2, 4)
    assert torch.equal(part.base, inputs.base[2:4])
    assert torch.equal(part.variant(9), inputs.variant(9)[2:4])


@pytest.mark.skipif(not DATA.exists(), reason="nobody has measured it so far")
class TestStored:
    def test_it_is_all_of_it(self):
        found = load(DATA)
        assert [tuple(case) for case in found.protocol["cases"]] == [tuple(c) for c in CASES]
        assert found.passed and not found.provenance["dirty"] and found.provenance["nccl"]
        assert len(found.provenance["gpus"]) == found.protocol["ranks"] == 2
        assert found.protocol["backend"] == "nccl"
        assert found.protocol["environment"]["NCCL_NVLS_ENABLE"] == "0"
        for case in CASES:
            rows = found.find(**case._asdict(), stage="auto")
            assert [each["mode"] for each in rows] == ["eager", "replay"]

    def test_bits_are_those_of_one_gpu_with_the_same_share(self):
        assert broken(load(DATA))[RULES[1]] == []

    def test_two_are_twice_as_fast_where_a_share_fills_one(self):
        """Replayed: there the host has nothing to do with it. Few matrices leave a GPU idle."""
        (found,) = load(DATA).find(**CASES[0]._asdict(), stage="auto", mode="replay")
        assert found["efficiency"] >= gpus.EFFICIENCY

    def test_bits_of_the_whole_batch_are_the_same_where_its_kernels_are(self):
        for each in load(DATA).rows:
            batches = (at_once(each, batch) for batch in (each["batch"], each[SHARE]["batch"]))
            whole, share = (on_paper(batch, each["n"]) for batch in batches)
            assert each["bitwise"][ALL] or whole != share


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
class TestOnGpus:
    def test_two_of_them(self, tmp_path):
        path = tmp_path / "a.json"
        asked = ("--gpus", "2", "--small", "--ahead", "--replay", "--runs", "3", "--commit", "abc")
        assert main([*asked, "--json", str(path)]) == 0
        found = load(path)
        assert found.passed and len(found.provenance["gpus"]) == 2 and found.provenance["nccl"]
        assert found.protocol["backend"] == "nccl"
        assert [each["mode"] for each in found.rows] == ["eager", "replay"] * len(CASES)
        assert all(each["bitwise"][SHARE] for each in found.rows)

    @pytest.mark.usefixtures("importable")
    def test_one_that_raises(self, capfd):
        assert main(["--gpus", "2", "--small", "--case", "0", "--stage", "raises"]) == 1
        assert "rank 0 of 2: stopped; rank 1 failed" in capfd.readouterr().err
