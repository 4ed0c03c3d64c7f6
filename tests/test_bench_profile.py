"""A profile adds up, names every kernel, and counts what each has to do; events are made up."""

import contextlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
import torch

from qrlib import apply, model
from qrlib.bench import load, profile
from qrlib.bench.__main__ import main
from qrlib.bench.ahead import compile_ahead, compile_share
from qrlib.bench.measure import Protocol, measure
from qrlib.bench.profile import APART, MARK, Event, calls, ceilings, report, shares, summary
from qrlib.bench.results import Results, words
from qrlib.bench.roles import KERNELS, ROLES, role
from qrlib.bench.starts import Start, noted, starts
from qrlib.devices import DEVICES
from qrlib.jit import quick_reductions
from qrlib.launches import launches
from qrlib.matrices import Case
from qrlib.stages import TRITON, stage
from qrlib.tracer import trace

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="seen in the interpreter")
CEILINGS = {"of": "a GPU", "memory": 1e9, "fp32": 1e9, "fp16": 4e9}


def formed(A):
    """Q of what stands in A."""
    return apply.orgqr(A, A.new_zeros(len(A), A.shape[-1]))


def applied(A):
    """Q^T C for five columns C."""
    C, tau = A.new_zeros(*A.shape[:2], 5), A.new_zeros(len(A), A.shape[-1])
    return apply.ormqr(A, tau, C, transpose=True)


# what starts kernels besides stages
OTHERS = {"orgqr": formed, "ormqr": applied}


def on_paper(name, B, m, n):
    """[Start] of a stage, or of OTHERS, for a batch, none of them made."""
    found = []

    def geqrf(A):
        with starts(noted(found)):
            return OTHERS[name](A) if name in OTHERS else stage(name).geqrf(A)

    made = launches(SimpleNamespace(geqrf=geqrf), B, m, n, target="sm_90a")
    assert [each.config.name for each in made] == [each.name for each in found]
    return found


class TestRoles:
    # shapes at which these stages start kernels of every kind
    SHAPES = [
        (name, B, m, m)
        for name in TRITON
        for B, m in (
            (640, 512),
            (60, 1024),
            (8, 2048),
            (2, 4096),
            (64, 2100),
            (40, 352),
            (20, 32),
            (640, 280),
        )
    ] + [("orgqr", 20, 3, 3), ("orgqr", 20, 32, 32), ("ormqr", 20, 300, 300)]

    def test_every_kernel_of_every_stage_has_one_and_every_line_a_kernel(self):
        found = {start.name for shape in self.SHAPES for start in on_paper(*shape)}
        assert found == set(KERNELS)
        assert {kernel.role for kernel in KERNELS.values()} <= set(ROLES)

    @pytest.mark.parametrize(
        "name, has",
        (
            ("update_kernel", "update"),
            ("Memset (Device)", "fill"),
            ("Memcpy DtoD (Device -> Device)", "fill"),
            ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
             "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>)", "fill"),
            ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
             "at::TensorIteratorBase&)::{lambda()#3}>", "fill"),
            ("update_kernel_of_another", "other"),
        ),
    )  # fmt: skip
    def test_by_name(self, name, has):
        assert role(name) == has

    @pytest.mark.parametrize(
        "name, B, m, n",
        (
            ("s06_update", 640, 512, 512),
            ("s06_update", 500, 300, 200),
            ("s06_update", 600, 2100, 40),
            ("s07_whole", 640, 180, 180),
            ("s07_whole", 40, 300, 300),
            ("s07_whole", 640, 20, 20),
            ("s08_cholesky", 640, 512, 512),
            ("s08_cholesky", 500, 300, 200),
            ("s10_blackwell", 640, 512, 512),
            ("s10_blackwell", 640, 300, 500),
            ("s10_blackwell", 20, 32, 32),
        ),
    )
    def test_flops_are_those_of_the_plan(self, name, B, m, n):
        times = {"fp32": 1, "fp16": 3, "tf32": 3, "bf16": 4}
        starts = on_paper(name, B, m, n)
        # three times all of it, which is a whole number
        thrice = sum(3 * on / times[key] for s in starts for key, on in s.flops.items())
        # one product of a judge is in TF32 and not in three of it
        once = sum(s.name == "judge_kernel" for s in starts) * B * model.square(64).flops
        # and of V^T V one of three is another one, turned round; it is as large as P^T P
        turned = sum(s.flops["bf16"] / 4 for s in starts if s.name == "square_kernel")
        assert thrice + 2 * once + turned == 3 * model.plan(name, B, m, n).flops.flops

    def test_flops_of_a_panel_are_the_same_in_slices(self):
        panels = [
            sum(start.flops.get("fp32", 0) for start in on_paper("s05_panel", B, 2500, 16))
            for B in (8, 200)
        ]
        assert panels[1] == 25 * panels[0] > 0

    def test_flops_are_the_same_where_rows_are_shared_out(self):
        def update(B):
            found = Counter()
            for start in on_paper("s06_update", B, 1000, 1000):
                if role(start.name) == "update":
                    found.update(start.flops)
            return found["fp16"]

        names = {start.name for start in on_paper("s06_update", 4, 1000, 1000)}
        assert "share_kernel" in names and update(400) == 100 * update(4)

    @pytest.mark.parametrize("m, n", ((3, 3), (16, 4)))
    def test_flops_of_q_mirror_by_mirror(self, m, n):
        (start,) = on_paper("orgqr", 7, m, n)
        assert start.flops == {"fp32": 7 * model.householder_product(m, n, n).flops}
        (start,) = on_paper("ormqr", 7, m, n)
        assert start.flops == {"fp32": 7 * sum(model.larf(m - j, 5).flops for j in range(n))}

    @pytest.mark.parametrize("m, n", ((32, 32), (256, 5)))
    def test_flops_of_q_in_one_block(self, m, n):
        """A block of LAPACK's, where T^-1 is at hand and V^T C of the identity is V."""
        for name, p in (("orgqr", n), ("ormqr", 5)):
            (start,) = on_paper(name, 7, m, n)
            products = model.gemm(n, n, m) + model.larfb(m, p, n, dense=True)
            products += -1 * model.gemm(n, p, n)
            if name == "orgqr":
                products += -1 * model.gemm(n, p, m)
            assert start.flops == {"fp16": 7 * 3 * products.flops, "fp32": 7 * p * n**2}

    @pytest.mark.parametrize("m, n", ((512, 512), (1030, 300), (700, 256)))
    def test_flops_of_q_by_blocks(self, m, n):
        """Those of LAPACK's blocks, and for two at once what is above the second, and V2^T V1."""
        found = sum(
            on / {"fp32": 1, "fp16": 3, "tf32": 3}[key]
            for start in on_paper("orgqr", 640, m, n)
            for key, on in start.flops.items()
        )
        least = 640 * model.householder_product(m, n, n, 64, dense=True).flops
        assert 1 < found / least < 1.4

    def test_flops_of_q_are_the_same_where_rows_are_shared_out(self):
        def blocks(B):
            found = Counter()
            for start in on_paper("orgqr", B, 1000, 1000):
                if role(start.name) == "blocks":
                    found.update(start.flops)
            return found

        few, many = blocks(4), blocks(400)
        assert set(few) == {"fp16", "fp32"}
        assert many == {key: 100 * count for key, count in few.items()}

    # what a kernel touches beyond its line: a matrix on its way back to its scale, and scratch
    MORE = {
        "whole_kernel": 2,
        "column_kernel": 1.2,
        "join_kernel": 1.05,
        "eliminate_kernel": 1.8,
        "judge_kernel": 1.4,
        "factors_kernel": 1.8,
        "one_block_kernel": 1.3,
    }

    @interpreted
    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    @pytest.mark.parametrize(
        "name, m, n",
        (
            ("s06_update", 70, 66),
            ("s06_update", 150, 140),
            ("s07_whole", 140, 140),
            ("s07_whole", 20, 20),
            ("s05_panel", 2050, 3),
            ("s08_cholesky", 192, 128),
            ("orgqr", 6, 3),
            ("ormqr", 6, 3),
            ("orgqr", 40, 20),
            ("ormqr", 40, 20),
            ("orgqr", 150, 70),
            ("ormqr", 150, 70),
        ),
    )
    def test_bytes_are_the_different_ones_that_the_interpreter_sees(self, name, m, n):
        A = torch.randn(2, m, n, generator=torch.Generator().manual_seed(m * n))
        found, sums = [], defaultdict(lambda: [0, 0])
        with trace(A=A) as t, starts(noted(found)):
            OTHERS[name](A) if name in OTHERS else stage(name).geqrf(A)
        for launch, start in zip(t.launches, found, strict=True):
            assert launch.kernel == start.name
            touched = defaultdict(set)
            for each in launch.accesses:
                touched[each.op, each.storage, each.itemsize].update(each.elements.tolist())
            seen = sum(key[2] * len(elements) for key, elements in touched.items())
            sums[start.name][0] += start.bytes
            sums[start.name][1] += seen
        for kernel, (said, seen) in sums.items():
            assert said <= seen * 1.05 and seen <= said * self.MORE.get(kernel, 1.0), kernel

    def test_a_kernel_without_a_line_has_no_cost(self, monkeypatch):
        monkeypatch.delitem(KERNELS, "panel_kernel")
        found = {start.name: start for start in on_paper("s06_update", 640, 512, 512)}
        assert found["panel_kernel"].bytes is found["panel_kernel"].flops is None
        assert found["update_kernel"].bytes > 0


class TestShares:
    def test_one_after_another(self):
        events = [Event(1, 3, "a", 32, 0), Event(5, 6, "b", 32, 0)]
        assert shares(events) == [2, 1] and shares([]) == []

    def test_a_moment_with_several_is_divided(self):
        # a alone, a and b, all three, b and c, c alone
        events = [Event(0, 6, "a", 1, 0), Event(2, 8, "b", 1, 0), Event(4, 10, "c", 1, 0)]
        found = shares(events)
        assert found == pytest.approx([2 + 1 + 2 / 3, 1 + 2 / 3 + 1, 2 / 3 + 1 + 2])
        assert sum(found) == pytest.approx(10)

    def test_one_that_ends_when_the_next_begins_and_two_that_are_the_same(self):
        assert shares([Event(0, 2, "a", 1, 0), Event(2, 3, "b", 1, 0)]) == [2, 1]
        assert shares([Event(0, 2, "a", 1, 0), Event(0, 2, "a", 1, 0)]) == [1, 1]


def marked(begin, end, k=0):
    name, us = f"{MARK}{k}", end - begin
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": begin, "dur": us}


def ran(name, start, us, *, threads=128, shared=0, cat="kernel"):
    """As torch.profiler writes it; a copy has no block."""
    args = {"stream": 7, "grid": [640, 1, 1], "shared memory": shared}
    args |= {"block": [threads, 1, 1]} if cat == "kernel" else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": us, "args": args}


SWEEP = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctorOnSelf_add<unsigned char>>"
FAR = 3e6 * APART


def a_trace(times=2, rows=1):
    """Marked calls of some rows: two sweeps, a copy, and CALL, each of 10 us and 1 apart."""
    events = [{"ph": "M", "name": "process_name"}, {"ph": "s", "name": "ac2g", "ts": 5}]
    for at in range(rows * times):
        t, k = (at + 1) * FAR, at % times
        events += [ran("variant", t - FAR / 2, 50), marked(t, t + 200, at // times)]
        # the GPU's own mark of the same name is none
        events += [{**marked(t + 40, t + 90), "cat": "gpu_user_annotation"}]
        events += [ran(SWEEP, t + 10 + 30 * j, 25) for j in (0, 1)]
        events += [ran("Memcpy DtoD (Device -> Device)", t + 89, 10, cat="gpu_memcpy")]
        for j, name in enumerate(2 * ["panel_kernel", "update_kernel"]):
            events += [ran(name, t + 100 + 11 * j, 10 + k, shared=64 * j)]
    return {"traceEvents": events[::-1]}


CALL = ["Memcpy DtoD (Device -> Device)", *2 * ["panel_kernel", "update_kernel"]]


def start_of(name, *, shared=0, moved=1000, flops=None, threads=128, **constants):
    return Start(name, constants, threads, shared, moved, flops or {}, True)


STARTED = [
    start_of("panel_kernel", flops={"fp32": 3000}, BM=64, BN=16),
    start_of("update_kernel", shared=64, flops={"fp16": 8000}, NB=16, BC=32),
    start_of("panel_kernel", shared=128, flops={"fp32": 3000}, BM=32, BN=16),
    start_of("update_kernel", shared=192, flops={"fp16": 8000}, NB=64, BC=32),
]


def names(trace):
    return {k: [[event.name for event in each] for each in of] for k, of in calls(trace).items()}


class TestCalls:
    def test_each_has_its_kernels_in_order_and_no_sweep(self):
        assert names(a_trace(2, rows=3)) == {k: [CALL, CALL] for k in range(3)}
        copy, panel, *_ = calls(a_trace())[0][0]
        assert panel == Event(FAR + 100, FAR + 110, "panel_kernel", 128, 0)
        assert copy.threads is None

    def test_clocks_of_host_and_gpu_may_differ_a_little(self):
        trace = a_trace()
        for event in trace["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy"):
                event["ts"] -= 0.2e6 * APART
        assert names(trace) == {0: [CALL, CALL]}

    @pytest.mark.parametrize("left_out", ("kernel", "user_annotation"))
    def test_nothing_seen_is_an_error(self, left_out):
        events = [e for e in a_trace()["traceEvents"] if e.get("cat") not in (left_out,)]
        events = [e for e in events if e.get("cat") != "gpu_memcpy"]
        with pytest.raises(RuntimeError, match="must see the kernels"):
            summary(calls({"traceEvents": events})[0], STARTED, 60.0, CEILINGS)

    def test_marks_are_as_torch_writes_them(self, tmp_path):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as watched:
            with torch.profiler.record_function(f"{MARK}7"):
                torch.zeros(3).add_(1)
        watched.export_chrome_trace(str(tmp_path / "trace.json"))
        written = json.loads((tmp_path / "trace.json").read_text())
        (mark,) = (e for e in written["traceEvents"] if e.get("name") == f"{MARK}7")
        written["traceEvents"] += [
            ran(SWEEP, mark["ts"], 1),
            ran("a", mark["ts"] + mark["dur"] / 2, 1),
        ]
        assert names(written) == {7: [["a"]]}


class TestSummary:
    def profile(self, started=STARTED, ceilings=CEILINGS, wall=60.0, times=3):
        return summary(calls(a_trace(times))[0], started, wall, ceilings)

    def test_it_adds_up(self):
        found = self.profile()
        # the second of three, whose kernels took 11 us, and the copy 10; in the third, they overlap
        assert found["busy_us"] == pytest.approx(54) == pytest.approx(found["sum_us"])
        assert found["calls_us"] == [50, 54, 55]
        assert found["launch_us"] == pytest.approx(6)
        for listed in (found["roles"], found["kernels"]):
            assert sum(each["us"] for each in listed) == pytest.approx(found["busy_us"])
            assert sum(each["count"] for each in listed) == len(CALL)
        total = sum(each["share"] for each in found["roles"]) + found["launch_share"]
        assert total == pytest.approx(1)
        assert found["notes"] == []

    def test_of_two_branches_each_has_its_half(self):
        two = [Event(0, 10, "panel_kernel", 128, 0), Event(0, 10, "update_kernel", 128, 64)]
        found = summary([two], STARTED[:2], 12.0, CEILINGS)
        assert (found["busy_us"], found["sum_us"], found["launch_us"]) == (10, 20, 2)
        assert [each["us"] for each in found["roles"]] == [5, 5]

    def test_roles_against_the_ceilings(self):
        panel, update, fill = self.profile()["roles"]
        assert [panel["role"], update["role"], fill["role"]] == ["panel", "update", "fill"]
        assert (panel["count"], panel["bytes"], panel["flops"]) == (2, 2000, {"fp32": 6000})
        # 2000 bytes and 6000 flops at 1e9 a second
        assert panel["memory_us"] == pytest.approx(2) and panel["arithmetic_us"] == pytest.approx(6)
        assert panel["times"] == pytest.approx(22 / 6)
        assert update["arithmetic_us"] == pytest.approx(4)
        assert update["times"] == pytest.approx(22 / 4)
        # what torch starts is not seen to be started
        assert fill["bytes"] is fill["times"] is None

    @pytest.mark.parametrize("ceilings", ({}, {"memory": 1e9, "fp32": 1e9}))
    def test_without_a_ceiling_there_is_no_ratio(self, ceilings):
        update = self.profile(ceilings=ceilings)["roles"][1]
        assert update["bytes"] == 2000 and update["memory_us"] is update["times"] is None

    def test_kernels_are_told_apart_by_their_constants(self):
        kernels = self.profile()["kernels"]
        wide = {each["constants"].get("NB") for each in kernels if each["role"] == "update"}
        assert wide == {16, 64}
        # two that look the same from outside have what both have
        same = [each._replace(shared=192 - 64 * (each.shared == 64)) for each in STARTED]
        same[1] = same[1]._replace(shared=192)
        constants = [k["constants"] for k in self.profile(same)["kernels"] if k["shared"] == 192]
        assert constants == [{"BC": 32}]

    def test_a_kernel_without_a_role_is_named(self):
        trace = a_trace(1)
        for event in trace["traceEvents"]:
            if event["name"] == "update_kernel":
                event["name"] = "nobody_knows_it"
        found = summary(calls(trace)[0], STARTED, 60.0, CEILINGS)
        (other,) = (each for each in found["roles"] if each["role"] == "other")
        assert other["count"] == 2 and other["bytes"] is None
        assert found["notes"] == ["update_kernel: 0 ran, and 2 were started from Python"]
        (row,) = a_row(found).rows
        assert "nobody_knows_it (other)" in "\n".join(report(a_row(found))), row

    def test_calls_that_differ_are_told(self):
        several = calls(a_trace(2))[0]
        different = [several[0], several[1][:-1]]
        for each in (different, different[::-1]):
            found = summary(each, STARTED, 60.0, CEILINGS)
            assert "not all calls had the same kernels" in found["notes"]
        # one of which nothing was seen does not count
        found = summary([several[0], [], several[1]], STARTED, 60.0, CEILINGS)
        assert found["notes"] == [] and len(found["calls_us"]) == 2

    def test_constants_can_be_written_down(self):
        strange = start_of("panel_kernel", PRECISION="ieee", dtype=torch.float16, two=True, e=None)
        found = summary(calls(a_trace(1))[0], [strange], 60.0, CEILINGS)
        (kept,) = (each["constants"] for each in found["kernels"] if each["constants"])
        want = {"PRECISION": "ieee", "dtype": "torch.float16", "two": True, "e": None}
        assert kept == want == json.loads(json.dumps(kept))

    def test_ceilings(self):
        h200 = ceilings("NVIDIA H200")
        assert h200["memory"] == DEVICES["H200"].measured["bandwidth"].value
        assert h200["fp16"] == DEVICES["H200"].measured["fp16"].value and "measured" in h200["of"]
        assert ceilings("NVIDIA B200")["memory"] == DEVICES["B200"].bandwidth
        assert "stated" in ceilings("NVIDIA B200")["of"] and ceilings("GPU of a test") == {}

    def test_a_report_says_all_of_it(self):
        lines = list(report(a_row(self.profile())))
        assert lines[0] == "3 x 16 dense, cond 1: s06_update fp32 replay, 60 us"
        words = [line.split() for line in lines]
        assert ["panel", "2", "22", "37", "%", "2", "6", "3.67"] in words
        assert ["launches", "6", "10", "%"] in words
        assert any("1 x update_kernel NB=64 BC=32 (update)" in line for line in lines)


def a_row(found):
    row = {**Case(3, 16, 1, "dense")._asdict(), "stage": "s06_update", "precision": "fp32"}
    row |= {"mode": "replay", "ok": True, "median_us": 60.0, "profile": found}
    return Results({}, {}, [row])


class TestProfiled:
    CASES = (Case(2, 9, 1, "dense"), Case(2, 8, 1, "dense"))

    @pytest.fixture
    def watched(self, monkeypatch):
        """A profiler that has seen what is made up here, and keeps what was marked."""
        marks = []

        class Profiler:
            def __init__(self, activities):
                marks.append("session")

            def __enter__(self):
                return self

            def __exit__(self, *error):
                return False

            def export_chrome_trace(self, path):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(a_trace(profile.REPEATS, rows=3), file)

        class Mark(contextlib.nullcontext):
            def __init__(self, name):
                super().__init__()
                marks.append(name)

        monkeypatch.setattr(torch.profiler, "profile", Profiler)
        monkeypatch.setattr(torch.profiler, "record_function", Mark)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(profile, "REPEATS", 2)
        with quick_reductions():
            yield marks

    @interpreted
    def test_rows_that_passed_are_watched_in_one_session(self, watched, tmp_path):
        rows = [
            {**case._asdict(), "stage": "auto", "precision": precision, "mode": "eager"}
            for case in self.CASES
            for precision in ("fp32", "fast")
        ]
        passed = {"ok": True, "median_us": 60.0, "faults": [], "certificate": {"factor": 0.1}}
        failed = {"ok": False, "median_us": None, "faults": ["factor 99"], "certificate": None}
        rows = [row | (failed if k == 2 else passed) for k, row in enumerate(rows)]
        # the profiler here has not seen row 3
        rows[3] |= failed
        results = Results({"gpu": "NVIDIA H200"}, {"sweep": 8}, rows)
        found = profile.profiled(
            results, ["s07_whole"], self.CASES, precisions=("fp32", "fast"), device="cpu"
        )
        assert watched == ["session", *(f"{MARK}{k}" for k in (0, 0, 1, 1))]
        assert ["profile" in row for row in found.rows] == [True, True, False, False]
        assert "profile" not in results.rows[0] and found.provenance == results.provenance
        first = found.rows[0]["profile"]
        assert first["launch_us"] == pytest.approx(60 - first["busy_us"])
        assert first["ceilings"] == ceilings("NVIDIA H200")
        # of what stage 7 starts nothing is in what is made up
        assert first["notes"] == ["tiny_kernel: 0 ran, and 1 were started from Python"]

    @pytest.mark.parametrize("flag", ("--profile", "--ahead"))
    def test_it_needs_a_gpu(self, flag, capsys):
        with pytest.raises(SystemExit):
            main([flag, "--n", "8", "--device", "cpu"])
        assert f"{flag} needs a GPU" in capsys.readouterr().err


class TestAhead:
    CASES = (Case(2, 70, 1, "dense"), Case(2, 33, 1, "dense"), Case(2, 70, 1, "dense"))

    @interpreted
    def test_every_kernel_is_the_turn_of_one_process_and_none_is_started(self, monkeypatch):
        from triton.runtime.interpreter import InterpretedFunction

        compiled = []

        def run(kernel, *args, grid, warmup, **kwargs):
            assert warmup
            compiled.append(kernel.fn.__name__)

        monkeypatch.setattr(InterpretedFunction, "run", run)
        different = set()
        for case in self.CASES:
            made = launches("s06_update", *case[:2], case.n, target="sm_90a")
            different |= {each.config.name for each in made}
        parts = []
        for turn in range(3):
            compiled.clear()
            args = turn, 3, ["s06_update"], self.CASES, ["fp32"], False, "cpu"
            assert compile_share(*args) == len(compiled) > 0
            parts.append(list(compiled))
        compiled.clear()
        alone = compile_share(0, 1, ["s06_update"], self.CASES, ["fp32"], False, "cpu")
        assert Counter(compiled) == sum(map(Counter, parts), Counter())
        assert alone == len(compiled) and set(compiled) <= different

    @interpreted
    def test_processes_share_the_kernels(self):
        args = ["s06_update"], self.CASES[:1]
        alone = compile_share(0, 1, *args, ["fp32"], False, "cpu")
        assert compile_ahead(*args, processes=2, device="cpu") == alone > 3

    @interpreted
    def test_what_fails_is_left_to_the_measurement(self):
        broken = SimpleNamespace(geqrf=lambda A: 1 / 0)
        stages = [broken, "s06_update"]
        assert compile_share(0, 1, stages, self.CASES[:1], ["fp32"], False, "cpu") > 3


@pytest.mark.gpu
class TestGPU:
    CASES = (Case(20, 32, 1, "dense"), Case(40, 300, 1, "dense"), Case(300, 120, 1, "dense"))

    def test_a_profile_adds_up(self, tmp_path):
        options = {"protocol": Protocol(runs=5, probes=False), "baseline": None}
        options |= {"command": "python -m qrlib.bench --profile", "commit": "abc"}
        asked, stages = {"device": "cuda", "replay": True}, ["auto", "s06_update"]
        results = measure(stages, self.CASES, **asked, **options)
        assert results.passed, [row["faults"] for row in results.rows]
        results = profile.profiled(results, stages, self.CASES, **asked)
        for row in results.rows:
            found = row["profile"]
            total = sum(each["share"] for each in found["roles"]) + found["launch_share"]
            assert total == pytest.approx(1)
            assert sum(each["us"] for each in found["roles"]) == pytest.approx(found["busy_us"])
            # the profiler itself makes short kernels a little longer
            assert 0 < found["busy_us"] <= 1.05 * row["median_us"] + 2, words(row)
            assert {each["role"] for each in found["roles"]} <= set(ROLES) - {"other"}
            assert found["notes"] == [], words(row)
            for each in found["kernels"]:
                assert each["constants"] or each["name"] not in KERNELS, each
        results.save(tmp_path / "a.json")
        assert load(tmp_path / "a.json").rows == results.rows

    def test_what_is_compiled_ahead_is_not_compiled_again(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        stages, cases = ["s06_update"], [Case(200, 70, 1, "dense"), Case(200, 33, 1, "dense")]
        count = compile_ahead(stages, cases, replay=True, processes=3)
        made = sorted(tmp_path.rglob("*.cubin"))
        assert len(made) == count > 5
        for case in cases:
            options = f"--n {case.n} --batch 200 --stage s06_update --replay --runs 1 --no-probes"
            command = [sys.executable, "-m", "qrlib.bench", *options.split(), "--compare", "none"]
            subprocess.run([*command, "--commit", "abc"], check=True)
        assert sorted(tmp_path.rglob("*.cubin")) == made
