"""The benchmark is not deceived: each trick that is no QR is planted here as a stage, and shows."""

import io
import itertools
import json
import math
import subprocess
import sys
import threading
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import qrlib
from qrlib.bench import Results, chart, load, sweep
from qrlib.bench import clock as timing
from qrlib.bench import judge as judging
from qrlib.bench.__main__ import Progress, cases_of, main, parser
from qrlib.bench.cases import Inputs, beside, small
from qrlib.bench.clock import SLACK, SLACK_US, Clock, Time, fingerprint
from qrlib.bench.judge import (
    FLOOR,
    LIMITS,
    OUT_OF_LINE,
    exceeded,
    held,
    judge,
    out_of_line,
    prints,
    spots,
)
from qrlib.bench.measure import Protocol, measure, resolve
from qrlib.bench.results import words
from qrlib.certificate import TASK
from qrlib.compact import QR
from qrlib.jit import quick_reductions
from qrlib.matrices import BENCHMARK_CASES, FAMILIES, Case, make

N = 16
DENSE, CLUSTERED = Case(3, N, 1, "dense"), Case(3, N, 0, "clustered")
# calls that come before the first timed one
WARM_UP = 2
QUICK = Protocol(runs=4, sweep=0)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def honest(A):
    H, tau = torch.geqrf(A)
    return QR(H.contiguous(), tau)


def run(stage, *cases, protocol=QUICK, baseline=None, **options):
    options = {"command": "python -m qrlib.bench", "commit": "abc"} | options
    return measure([stage], cases or [DENSE], protocol=protocol, baseline=baseline, **options)


def row_of(stage, *cases, **options):
    return run(stage, *cases, **options).rows[-1]


class Fake:
    """A stage that counts its calls and behaves until the warm-up is over."""

    def __init__(self):
        self.calls = 0

    def geqrf(self, A):
        self.calls += 1
        return honest(A) if self.calls <= WARM_UP else self.trick(A)


# what it does from the first timed call on, and what must be said of it
class Cached(Fake):
    """One result for everything."""

    says = "factor"
    kept = None

    def trick(self, A):
        self.kept = self.kept or honest(A)
        return QR(self.kept.H.clone(), self.kept.tau.clone())


class OneBuffer(Fake):
    """The right result, always in the same memory."""

    says = "the output lies in the memory of an earlier one"
    kept = None

    def trick(self, A):
        result = honest(A)
        self.kept = self.kept or result
        self.kept.H.copy_(result.H)
        self.kept.tau.copy_(result.tau)
        return self.kept


class OneTau(OneBuffer):
    """The same with tau alone."""

    def trick(self, A):
        return QR(honest(A).H, super().trick(A).tau)


class Slices(OneBuffer):
    """Every result in another part of the same memory."""

    def trick(self, A):
        if self.kept is None:
            self.kept = [X.new_zeros(9, *X.shape) for X in honest(A)]
        H, tau = (all_of_them[self.calls % 9] for all_of_them in self.kept)
        for X, right in zip((H, tau), honest(A)):
            X.copy_(right)
        return QR(H, tau)


class Deferred(Fake):
    """Returns at once; a thread of its own writes the result when the next call comes."""

    says = "the result changed after the clock had stopped"
    todo = None

    def trick(self, A):
        if self.todo:
            thread = threading.Thread(target=self.todo)
            thread.start()
            thread.join()
        H, tau = torch.zeros_like(A), A.new_zeros(A.shape[:2])
        kept = A.clone()

        def later():
            for X, right in zip((H, tau), honest(kept)):
                X.copy_(right)

        self.todo = later
        return QR(H, tau)


class Overwrites(Fake):
    """Works in its argument."""

    says = "the input was overwritten"

    def trick(self, A):
        result = honest(A)
        A[-1, -1, -1] += 1
        return result


class InPlace(Fake):
    """Returns its argument."""

    says = "an output shares the memory of the input"

    def trick(self, A):
        A.copy_(torch.geqrf(A).a)
        return QR(A, honest(A).tau)


class OneNaN(Fake):
    """One entry of one matrix."""

    says = "factor inf"

    def trick(self, A):
        H, tau = honest(A)
        H[1, 2, 3] = math.nan
        return QR(H, tau)


class OneBad(Fake):
    """One tau of one matrix, in one of the runs."""

    says = "orthogonality"

    def trick(self, A):
        H, tau = honest(A)
        if self.calls == WARM_UP + 2:
            tau[2, 5] *= 1.01
        return QR(H, tau)


class Nothing(Fake):
    """H = A and tau = 0: perfectly orthogonal."""

    says = "factor"

    def trick(self, A):
        return QR(A.clone(), A.new_zeros(A.shape[:2]))


class Lazy(Fake):
    """A subclass of Tensor can put its work off until it is looked at."""

    says = "H must be a plain torch.Tensor; got Later"

    def trick(self, A):
        class Later(torch.Tensor):
            pass

        H, tau = honest(A)
        return QR(H.as_subclass(Later), tau)


class Unpaired(Fake):
    says = "must return (H, tau); got Tensor"

    def trick(self, A):
        return honest(A).H


class Short(Fake):
    says = "tau must be [3, 16] torch.float32 on cpu; got [3, 15] torch.float32 on cpu"

    def trick(self, A):
        H, tau = honest(A)
        return QR(H, tau[:, :-1])


class Double(Fake):
    says = "H must be [3, 16, 16] torch.float32 on cpu; got [3, 16, 16] torch.float64 on cpu"

    def trick(self, A):
        return QR(*honest(A.double()))


class Raises(Fake):
    says = "RuntimeError: out of ideas"

    def trick(self, A):
        raise RuntimeError("out of ideas")


class Leaves(Fake):
    says = "SystemExit: 0"

    def trick(self, A):
        sys.exit(0)


TRICKS = (
    Cached, OneBuffer, OneTau, Slices, Deferred, Overwrites, InPlace, OneNaN, OneBad, Nothing, Lazy,
    Unpaired, Short, Double, Raises, Leaves,
)  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_shows_and_has_no_time(trick):
    results = run(trick())
    (row,) = results.rows
    assert any(trick.says in fault for fault in row["faults"]), row["faults"]
    assert not row["ok"] and not results.passed
    assert row["median_us"] is None and row["q25_us"] is None and row["times_us"] == []
    assert "FAILED" in str(results) and trick.says in str(results)


def test_work_that_is_done_while_the_benchmark_looks_shows(monkeypatch):
    from qrlib.bench import judge

    todo = []

    class Soon(Fake):
        def trick(self, A):
            late, right = QR(torch.zeros_like(A), A.new_zeros(A.shape[:2])), honest(A)
            todo.append(lambda: [X.copy_(Y) for X, Y in zip(late, right)])
            return late

    def look(X):
        while todo:
            todo.pop()()
        return fingerprint(X)

    monkeypatch.setattr(judge, "fingerprint", look)
    faults = row_of(Soon())["faults"]
    assert faults == ["the result changed after the clock had stopped (4 of 4 runs)"]


def test_clocks_that_disagree_leave_no_time(monkeypatch):
    monkeypatch.setattr(Clock, "disagree", lambda self, times: f"{len(times)} disagree")
    row = row_of(honest)
    assert row["faults"] == ["4 disagree"] and row["median_us"] is None


def test_without_a_trick_there_is_a_time():
    class Honest(Fake):
        def trick(self, A):
            return honest(A)

    results = run(Honest())
    (row,) = results.rows
    assert results.passed and row["faults"] == row["notes"] == []
    assert 0 < row["q25_us"] <= row["median_us"] <= row["q75_us"]
    assert row["runs"] == len(row["times_us"]) == QUICK.runs
    assert row["median_us"] == pytest.approx(median(row["times_us"]), abs=1e-3)
    assert "FAILED" not in str(results)


@pytest.mark.parametrize("stage", ("torch", "auto", "s02_unblocked", "s03_blocked"))
@pytest.mark.parametrize("family", FAMILIES)
def test_honest_stages_pass_on_every_family(stage, family):
    row = row_of(stage, Case(2, 12, 1, family), protocol=Protocol(runs=2, sweep=0))
    assert row["ok"], row["faults"]


class TestMemos:
    """What remembers results gains nothing, or is caught with an old one."""

    class Memo:
        def __init__(self, key):
            self.key, self.known, self.hits = key, {}, 0

        def geqrf(self, A):
            key = self.key(A)
            self.hits += key in self.known
            if key not in self.known:
                self.known[key] = honest(A)
            return QR(*(X.clone() for X in self.known[key]))

    BY_IDENTITY = {
        "address": lambda A: A.data_ptr(),
        "object": id,
        "address, shape and version": lambda A: (A.data_ptr(), A.shape, A._version),
    }

    @pytest.mark.parametrize("key", BY_IDENTITY)
    def test_keyed_on_the_tensor_is_caught(self, key):
        row = row_of(self.Memo(self.BY_IDENTITY[key]))
        assert any("a tensor filled anew: factor" in fault for fault in row["faults"])

    @pytest.mark.parametrize("key", BY_IDENTITY)
    def test_and_later_it_gains_nothing_that_is_right(self, key):
        memo = self.Memo(self.BY_IDENTITY[key])

        class Later(Fake):
            trick = staticmethod(memo.geqrf)

        row = row_of(Later())
        assert memo.hits == 0 or not row["ok"]

    def test_keyed_on_the_contents_never_hits(self):
        memo = self.Memo(lambda A: A.numpy().tobytes())
        protocol = Protocol(runs=4, sweep=0, probes=False)
        for _ in range(2):
            options = {"protocol": protocol, "precisions": ("fp32", "fast")}
            assert run(memo, DENSE, DENSE, **options).passed
        assert memo.hits == 0 and len(memo.known) == 2 * 4 * (protocol.runs + WARM_UP)

    def test_nor_does_one_keyed_on_a_part_of_them(self):
        memo = self.Memo(lambda A: A[0].numpy().tobytes())
        assert run(memo).passed and memo.hits == 0


def rounded(A, bits):
    """A with so many bits of each entry."""
    scale = torch.exp2(bits - A.abs().clamp_min(1e-30).log2().floor())
    return (A * scale).round() / scale


class TestShapes:
    """A program that looks at the shape of a benchmark is compared with itself beside it."""

    def test_sloppy_at_one_size_alone(self):
        def keyed(A):
            return honest(rounded(A, 14) if A.shape[-1] == N else A)

        row = row_of(keyed, precisions=("fast",))
        assert all(row["certificate"][name] < LIMITS["fast"][name] for name in LIMITS["fast"])
        assert any("at this n alone" in fault for fault in row["faults"]), row
        assert not row["ok"]

    def test_sloppy_for_one_number_of_matrices_alone(self):
        def keyed(A):
            return honest(rounded(A, 14) if A.shape == (3, N, N) else A)

        row = row_of(keyed, precisions=("fast",))
        assert any("at this batch alone" in fault for fault in row["faults"])

    def test_sloppy_everywhere_is_honest_and_is_told_by_its_certificate(self):
        def low(bits):
            return lambda A: honest(rounded(A, bits))

        assert row_of(low(14), precisions=("fast",))["ok"]
        faults = row_of(low(11))["faults"]
        assert any("factor" in fault and "limit is 15" in fault for fault in faults)

    def test_a_switch_of_method_at_the_size_is_no_trick(self):
        def switches(A):
            return honest(rounded(A, 14) if A.shape[-1] >= N else A)

        assert row_of(switches, precisions=("fast",))["ok"]

    @pytest.mark.parametrize("axis", (0, 1))
    def test_garbage_off_the_sizes_of_the_benchmark(self, axis):
        def specialised(A):
            H, tau = honest(A)
            return QR(H, tau if A.shape[axis] == DENSE[axis] else 0 * tau)

        faults = row_of(specialised)["faults"]
        beside_it = {0: ("2 x 16", "4 x 16"), 1: ("3 x 15", "3 x 17")}[axis]
        for shape in beside_it:
            assert any(f"beside it, at {shape}: factor" in fault for fault in faults)

    @pytest.mark.parametrize("raised", [NotImplementedError, SystemExit])
    def test_raising_off_the_sizes_of_the_benchmark(self, raised):
        def specialised(A):
            if A.shape[-1] % 2:
                raise raised("odd")
            return honest(A)

        faults = row_of(specialised)["faults"]
        assert f"beside it, at 3 x 15: {raised.__name__}: odd" in faults

    def test_without_probes_the_file_says_so(self):
        results = run(lambda A: honest(A), protocol=Protocol(runs=2, sweep=0, probes=False))
        assert results.passed and results.protocol["probes"] is False

    def test_out_of_line_is_much_worse_than_both_sides(self):
        def level(x):
            return dict.fromkeys(("factor", "orthogonality", "columnwise"), x)

        bad, good = level(1.01 * OUT_OF_LINE * FLOOR), level(0.1)
        assert len(out_of_line(bad, {"n": [good, good]})) == 3
        assert out_of_line(bad, {"n": [good, bad]}) == []
        assert len(out_of_line(bad, {"n": [good, bad], "batch": [good]})) == 3
        assert out_of_line(level(0.99 * OUT_OF_LINE * FLOOR), {"n": [good, good]}) == []
        assert out_of_line(bad, {"n": [], "batch": []}) == []


class TestTails:
    """A column too small for the norm to see was not computed."""

    TAILS = {
        "zeroed": lambda H, A: torch.zeros_like(H),
        "copied from A": lambda H, A: A.triu(),
        "a copy of another column": lambda H, A: 1e-7 * H[:, :, :1].expand_as(H).triu(),
    }

    @staticmethod
    def lazy(tail):
        def geqrf(A):
            H, tau = honest(A)
            late = torch.arange(A.shape[-1]) >= A.shape[-1] // 2 + 2
            return QR(torch.where(late, tail(H, A), H), torch.where(late, 0, tau))

        return geqrf

    @pytest.mark.parametrize("tail", TAILS)
    def test_at_policy_fp32_it_fails(self, tail):
        row = row_of(self.lazy(self.TAILS[tail]), CLUSTERED)
        (fault,) = row["faults"]
        assert "columnwise" in fault and row["median_us"] is None

    @pytest.mark.parametrize("tail", TAILS)
    def test_at_policy_fast_the_gate_passes_and_the_row_tells(self, tail):
        results = run(self.lazy(self.TAILS[tail]), CLUSTERED, precisions=("fast",))
        (row,) = results.rows
        assert row["ok"] and row["certificate"]["columnwise"] > 1e4
        assert "a column was not computed" in row["notes"][0] and row["notes"][0] in str(results)

    def test_an_honest_one_has_no_note(self):
        row = row_of(honest, CLUSTERED, precisions=("fast",))
        assert row["notes"] == [] and row["certificate"]["columnwise"] < 1


class TestJudge:
    """Runs that no stage made: what each of them alone must show."""

    @staticmethod
    def a_run(inputs, factor=honest, **options):
        k, A = inputs.fresh()
        H, tau = factor(A)
        where = spots(A)
        return held(k, A, (H, tau), prints(A), where, H[where], **options)

    def test_an_honest_run(self):
        inputs = Inputs(DENSE)
        worst, faults, notes = judge(inputs, [self.a_run(inputs) for _ in "123"], "fp32")
        assert faults == notes == [] and max(worst.values()) < 2

    @pytest.mark.parametrize("which", ("H", "tau"))
    def test_an_output_in_the_memory_of_the_input(self, which):
        inputs = Inputs(DENSE)

        def factor(A):
            found = honest(A)._asdict()
            home = A.new_empty(A.numel() + found[which].numel())
            nonlocal given
            given = home[: A.numel()].view(A.shape).copy_(A)
            found[which] = home[A.numel() :].view(found[which].shape).copy_(found[which])
            return QR(**found)

        given = None
        k, A = inputs.fresh()
        returned = factor(A)
        run = held(k, given, returned, prints(A), (), returned.H)
        assert run.faults == ["an output shares the memory of the input"]

    def test_outputs_of_a_contestant_who_will_overwrite_them_are_copied(self):
        inputs, lent = Inputs(DENSE), []

        def factor(A):
            lent.append(honest(A))
            return lent[-1]

        run = self.a_run(inputs, factor, own=True)
        for X in lent[0]:
            X.fill_(0)
        assert judge(inputs, [run], "fp32")[1] == []

    @pytest.mark.parametrize("which", (0, 1))
    def test_one_bit_that_changes_later(self, which):
        inputs = Inputs(DENSE)
        run = self.a_run(inputs)
        X = run.out[which]
        X.view(torch.int32)[(1,) * X.ndim] ^= 1
        (fault,) = judge(inputs, [run], "fp32")[1]
        assert fault == "the result changed after the clock had stopped (1 of 1 runs)"

    def test_memory_of_any_earlier_run_is_not_to_be_used_again(self):
        inputs = Inputs(DENSE)
        first, second, third = (self.a_run(inputs) for _ in "123")
        # the same matrices again: right, and not computed
        again = third._replace(k=first.k, out=first.out, seen=first.seen)
        again = again._replace(spots=first.spots, glance=first.glance)
        (fault,) = judge(inputs, [first, second, again], "fp32")[1]
        assert fault == "the output lies in the memory of an earlier one (1 of 3 runs)"

    @pytest.mark.parametrize("at_once", (1, 1 << 20))
    @pytest.mark.parametrize("which", range(3))
    def test_what_is_no_number_is_the_worst_and_beyond_every_limit(
        self, monkeypatch, which, at_once
    ):
        monkeypatch.setattr(judging, "AT_ONCE", at_once)
        A = torch.from_numpy(make("dense", 3, N, cond=1))
        H, tau = honest(A)
        A[which] = float("nan")
        found = judging.certificate(A, H, tau)
        assert math.isnan(found["factor"]) and math.isnan(found["columnwise"])
        assert set(exceeded(found, "fp32")) == {"factor", "columnwise"}


class TestInputs:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_variant_is_as_hard_and_another(self, family):
        inputs = Inputs(Case(4, 24, 1, family), seed=3)
        base = torch.from_numpy(make(family, 4, 24, cond=1, seed=3))
        (k, A), (j, B) = inputs.fresh(), inputs.fresh()
        assert k != j and not torch.equal(A, B) and not torch.equal(A, inputs.base)
        assert torch.equal(A, inputs.variant(k))
        assert A.data_ptr() != inputs.variant(k).data_ptr()
        # the same matrices in another order, but for signs
        assert sorted(X.abs().tolist() for X in A) == sorted(X.abs().tolist() for X in base)
        theirs, mine = (np.linalg.svd(X.double().numpy(), compute_uv=False) for X in (base, A))
        np.testing.assert_allclose(np.sort(mine, 0), np.sort(theirs, 0), atol=1e-12)

    def test_a_variant_has_its_members_in_another_order(self):
        """What was learnt of a place in the batch is of no use there."""
        inputs = Inputs(Case(4, 8, 0, "dense"))
        sizes = {
            tuple(A.abs().sum((-1, -2)).tolist()) for _, A in (inputs.fresh() for _ in "123456")
        }
        assert len(sizes) > 1

    def test_a_number_is_never_used_twice(self):
        inputs = [Inputs(DENSE), Inputs(DENSE), Inputs(CLUSTERED)]
        numbers = [each.fresh()[0] for each in inputs for _ in range(5)]
        assert len(set(numbers)) == 15

    def test_beside(self):
        around = beside(Inputs(DENSE))
        shapes = {axis: [tuple(A.shape) for A in batches] for axis, batches in around.items()}
        assert shapes == {
            "n": [(3, 15, 15), (3, 17, 17)],
            "batch": [(4, 16, 16), (2, 16, 16)],
        }
        around = beside(Inputs(Case(1, 1, 0, "dense")))
        assert [A.shape for A in around["n"]] == [(1, 2, 2)]
        assert [A.shape for A in around["batch"]] == [(2, 1, 1)]

    def test_small(self):
        cases = [small(case) for case in BENCHMARK_CASES]
        assert all(case.batch <= 4 and 6 < case.n < 140 for case in cases)
        assert len(set(cases)) == len(cases)
        assert [c.family for c in cases] == [c.family for c in BENCHMARK_CASES]


class TestClock:
    def test_it_waits_for_the_call_and_sweeps_before_it(self):
        clock = Clock(CPU, 8)
        swept = []

        def call(A):
            swept.append(int(clock.buffer[0]))
            threading.Event().wait(0.03)
            return A + 1

        before = int(clock.buffer[0])
        returned, seen, taken = clock(call, 1, lambda returned: returned + 5)
        assert returned == 2 and seen == 7 and 3e4 <= taken.us == taken.host_us
        assert swept == [before + 1]

    def test_the_sweep_and_the_look_are_not_timed(self, monkeypatch):
        now = [0.0]

        def takes(seconds):
            now[0] += seconds

        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        clock = Clock(CPU, 8)
        clock.buffer = SimpleNamespace(add_=lambda one: takes(5.0))
        taken = clock(lambda A: takes(3.0), 1, lambda returned: takes(7.0))[2]
        assert taken.us == taken.host_us == 3e6

    def test_the_cache_of_a_cpu_is_swept_with_more_than_it_holds(self):
        assert Clock(CPU).buffer.numel() >= 1 << 25

    @pytest.mark.parametrize("us", (10.0, 1e4))
    def test_work_after_the_last_event_is_told(self, us):
        clock = Clock(CPU, 0)
        clock.overhead_us = 1e4
        slack = max(SLACK_US, SLACK * us)
        fine, late = (Time(us, 1e4 + share * slack, us + 50) for share in (0.9, 1.1))
        assert clock.disagree([late, fine, late, fine]) is None
        said = clock.disagree([late, fine, late, late])
        assert said.startswith("the clocks disagree") and f"{us:.0f} us by events" in said

    @pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
    def test_a_fingerprint_sees_every_bit(self, dtype):
        X = torch.randn(3, 5, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
        integer = torch.int32 if dtype == torch.float32 else torch.int64
        seen = {fingerprint(X)}
        for at, bit in itertools.product(((0, 0, 0), (1, 2, 3), (2, 4, 6)), range(31)):
            Y = X.clone()
            Y.view(integer)[at] ^= 1 << bit
            seen.add(fingerprint(Y))
        assert len(seen) == 1 + 3 * 31
        assert fingerprint(X) == fingerprint(X.mT.contiguous().mT)
        assert fingerprint(torch.zeros(2)) != fingerprint(-torch.zeros(2))
        assert fingerprint(X[:, [1, 0]]) != fingerprint(X[:, :2])

    def test_a_fingerprint_is_of_all_parts(self):
        X = torch.zeros((1 << 24) + 3)
        other = X.clone()
        other[-1] = 1
        # the same number in the same place of another part
        first = X.clone()
        first[2] = 1
        assert len({fingerprint(each) for each in (X, other, other.flip(0), first)}) == 4


class TestProtocol:
    def test_stages_take_turns_and_each_begins(self):
        order = []

        def named(name):
            def geqrf(A):
                order.append(name)
                return honest(A)

            return geqrf

        protocol = Protocol(runs=4, sweep=0, probes=False)
        measure([named("a"), named("b")], [DENSE], protocol=protocol, baseline=None, commit="abc")
        assert "".join(order[2 * WARM_UP :]) == "abbaabba"

    def test_a_slow_stage_runs_the_least_and_no_more(self):
        def slow(A):
            threading.Event().wait(0.02)
            return honest(A)

        protocol = Protocol(runs=9, least=3, seconds=0.03, sweep=0, probes=False)
        assert row_of(slow, protocol=protocol)["runs"] == 3

    def test_outputs_are_looked_at_when_all_clocks_are_off(self):
        """A result that goes bad after its own run, while others are timed, is bad."""
        kept = []

        class Spoils(Fake):
            def trick(self, A):
                kept.append(honest(A))
                if len(kept) == QUICK.runs:
                    kept[0].H[0, 0, 0] += 1
                return kept[-1]

        faults = row_of(Spoils())["faults"]
        assert f"the result changed after the clock had stopped (1 of {QUICK.runs} runs)" in faults

    def test_one_that_fails_does_not_stop_the_others(self):
        results = measure(
            [Raises(), "s02_unblocked"], [DENSE, CLUSTERED], protocol=QUICK, commit="abc"
        )
        assert [row["ok"] for row in results.rows] == [True, False, True] * 2
        assert [row["stage"] for row in results.rows[:3]] == ["torch", "Raises", "s02_unblocked"]

    def test_speedups_are_over_the_baseline_of_the_same_case(self):
        results = run("s02_unblocked", DENSE, CLUSTERED, baseline="torch")
        for case in (DENSE, CLUSTERED):
            base, other = results.find(family=case.family)
            assert base["stage"] == "torch" and base["speedup"] == 1
            assert other["speedup"] == pytest.approx(base["median_us"] / other["median_us"])
        mean = {each["stage"]: each for each in results.averages()}["s02_unblocked"]
        times = [row["median_us"] for row in results.find(stage="s02_unblocked")]
        assert mean["cases"] == 2
        assert mean["median_us"] == pytest.approx(math.sqrt(math.prod(times)))

    def test_a_mean_needs_every_case(self):
        def fails_on_one(A):
            H, tau = honest(A)
            return QR(H, 0 * tau if A.shape[-1] == 9 else tau)

        results = run(fails_on_one, DENSE, Case(3, 9, 1, "dense"), baseline="torch")
        base, other = results.averages()
        assert base["median_us"] and other["median_us"] is None and other["speedup"] is None

    def test_a_failed_baseline_gives_no_speedup(self):
        results = measure([honest], [DENSE], baseline=Nothing(), protocol=QUICK, commit="abc")
        assert [row["ok"] for row in results.rows] == [False, True]
        assert results.rows[1]["speedup"] is None

    def test_limits_are_the_gates(self):
        assert LIMITS["fast"] == {"factor": TASK.factor, "orthogonality": TASK.orthogonality}
        assert set(LIMITS["fp32"].values()) == {15} and len(LIMITS["fp32"]) == 3

    def test_a_stage_is_a_name_a_module_or_a_function(self):
        A = torch.from_numpy(make("dense", 2, 5))
        for stage, name in (
            ("s03_blocked", "s03_blocked"),
            (qrlib.stage("s03_blocked"), "s03_blocked"),
            (qrlib.stage("s03_blocked").geqrf, "geqrf"),
            (Cached(), "Cached"),
            ("torch", "torch"),
            ("qrlib.stages.s03_blocked", "s03_blocked"),
            ("qrlib.stages.s03_blocked:nb=2", "s03_blocked:nb=2"),
        ):
            found, geqrf = resolve(stage)
            assert found == name
            assert qrlib.certify(A, *geqrf(A)).passed

    @pytest.mark.parametrize("stage", ("s99_none", "qrlib.none", "qrlib.matrices", "qrlib.api:nb"))
    def test_a_stage_that_is_not_there(self, stage):
        with pytest.raises(ValueError, match="stage must be torch, auto, one of .*; got '"):
            resolve(stage)

    def test_arguments_reach_the_stage(self, monkeypatch):
        given = []

        def geqrf(A, **arguments):
            given.append(arguments)
            return honest(A)

        monkeypatch.setattr(qrlib.stage("s03_blocked"), "geqrf", geqrf)
        run("qrlib.stages.s03_blocked:nb=16,precision=ieee")
        assert given and all(each == {"nb": 16, "precision": "ieee"} for each in given)

    def test_the_precision_goes_to_the_door(self, monkeypatch):
        asked = []

        def door(A, *, stage, precision):
            asked.append((stage, precision))
            return honest(A)

        monkeypatch.setattr(qrlib, "geqrf", door, raising=False)
        run("auto", precisions=("fast",))
        assert set(asked) == {("auto", "fast")}


@pytest.fixture(scope="module")
def results():
    return run("s02_unblocked", DENSE, CLUSTERED, baseline="torch")


class TestFiles:
    def test_what_is_saved_is_loaded(self, results, tmp_path):
        path = tmp_path / "found.json"
        results.save(path)
        found = load(path)
        assert found.rows == results.rows and found.provenance == results.provenance
        assert found.averages() == results.averages() and str(found) == str(results)
        assert json.loads(path.read_text())["averages"] == results.averages()

    def test_it_says_where_it_comes_from(self, results):
        p = results.provenance
        assert p["torch"] == torch.__version__ and p["commit"] == "abc" and p["dirty"] is False
        assert p["date"].endswith("+00:00") and p["command"] == "python -m qrlib.bench"
        assert p["device"] == "cpu" and p["gpu"] is None and p["cpu"] and p["python"]
        assert results.protocol["runs"] == QUICK.runs and results.protocol["baseline"] == "torch"
        assert results.protocol["cases"] == [tuple(DENSE), tuple(CLUSTERED)]
        assert p["cpu"] in results.where() and "commit abc" in results.where()

    def spoiled(self, results, tmp_path, spoil):
        path = tmp_path / "spoiled.json"
        results.save(path)
        content = json.loads(path.read_text())
        spoil(content)
        path.write_text(json.dumps(content))
        return path

    @pytest.mark.parametrize("key", ("device", "python", "torch", "commit", "date", "dirty"))
    def test_without_provenance_it_is_refused(self, results, tmp_path, key):
        path = self.spoiled(results, tmp_path, lambda c: c["provenance"].pop(key))
        with pytest.raises(ValueError, match=f"it lacks {key}"):
            load(path)
        gap = Results({**results.provenance, key: None}, results.protocol, results.rows)
        with pytest.raises(ValueError, match=f"it lacks {key}"):
            gap.save(tmp_path / "gap.json")
        assert not (tmp_path / "gap.json").exists()

    @pytest.mark.parametrize("key", ("gpu", "driver", "cuda"))
    def test_a_gpu_has_a_name_and_a_driver(self, results, tmp_path, key):
        def spoil(content):
            content["provenance"] |= {"device": "cuda", "gpu": "G", "driver": "1", "cuda": "2"}
            content["provenance"][key] = None

        with pytest.raises(ValueError, match=f"it lacks {key}"):
            load(self.spoiled(results, tmp_path, spoil))

    SPOILS = {
        "another schema": (lambda c: c.update(schema=0), "schema 1"),
        "no provenance": (lambda c: c.pop("provenance"), "it lacks device"),
        "stopped": (lambda c: c.update(complete=False), "stopped before its last case"),
        "a time that failed": (lambda c: c["rows"][0].update(ok=False), "did not pass"),
        "a time with a fault": (lambda c: c["rows"][0].update(faults=["x"]), "did not pass"),
        "a time without certificate": (lambda c: c["rows"][0].update(certificate=None), "not pass"),
        "ok and no time": (lambda c: c["rows"][0].update(median_us=None), "did not pass"),
    }

    @pytest.mark.parametrize("spoil", SPOILS)
    def test_what_is_not_whole_is_refused(self, results, tmp_path, spoil):
        change, says = self.SPOILS[spoil]
        with pytest.raises(ValueError, match=says):
            load(self.spoiled(results, tmp_path, change))

    def test_a_list_is_no_such_file(self, tmp_path):
        (tmp_path / "list.json").write_text("[]")
        with pytest.raises(ValueError, match="must be written by"):
            load(tmp_path / "list.json")

    def test_a_failure_is_saved_without_infinity(self, tmp_path):
        found = run(OneNaN(), baseline="torch")
        found.save(tmp_path / "failed.json")
        row = load(tmp_path / "failed.json").rows[-1]
        assert row["certificate"]["factor"] is None and "factor inf" in row["faults"][0]

    def test_loading_needs_no_torch(self):
        code = (
            "import sys; from qrlib.bench import load, Results;"
            "heavy = {'torch', 'triton', 'matplotlib'} & set(sys.modules);"
            "sys.exit(f'imported {heavy}' if heavy else 0)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_cases_in_words(self, results):
        assert words(Case(640, 512, 2.0, "mixed")) == "640 x 512 mixed, cond 2"
        assert words(results.rows[-1]) == "3 x 16 clustered"


class TestCharts:
    def test_bars_are_longer_for_longer_times(self, results):
        head, *lines = chart.bars(results)
        length = {line.split()[0]: line.count("\u2588") for line in lines}
        assert length["s02_unblocked"] == 48 and length["torch"] == 5
        assert "us" in head and len(lines) == 2

    def test_nothing_to_draw(self, results):
        failed = run(Raises())
        assert chart.bars(failed) == []
        with pytest.raises(ValueError, match="nothing passed"):
            chart.draw(failed, "x.svg")
        with pytest.raises(ValueError, match=r"must be an \.svg or \.png"):
            chart.draw(results, "x.pdf")

    def test_files(self, tmp_path):
        pytest.importorskip("matplotlib")
        found = measure(
            ["s02_unblocked", Raises()], [DENSE, CLUSTERED], protocol=QUICK, commit="abc"
        )
        chart.draw(found, tmp_path / "a.svg")
        chart.draw(found, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        svg = (tmp_path / "a.svg").read_text()
        for text in ("3 x 16 clustered", "geometric mean", "s02_unblocked fp32", found.where()):
            assert text in svg
        # once for the mean, once for each case
        assert svg.count("> failed<") == 3

    def test_no_matplotlib(self, results, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(RuntimeError, match="pip install matplotlib"):
            chart.draw(results, "x.svg")


def asked(*arguments, small_by_itself=False):
    return cases_of(parser().parse_args(arguments), small_by_itself)


class TestCommand:
    @pytest.fixture
    def quick(self):
        pytest.importorskip("triton")
        with quick_reductions():
            yield

    QUICK = ("--n", "8", "--batch", "2", "--runs", "2", "--device", "cpu", "--commit", "abc")

    def test_which_cases(self):
        assert asked() == list(BENCHMARK_CASES)
        assert asked("--case", "3", "0") == [BENCHMARK_CASES[3], BENCHMARK_CASES[0]]
        assert asked("--case", "3", "--batch", "8") == [Case(8, 512, 2, "dense")]
        assert asked("--n", "100") == [Case(16, 100, 1, "dense")]
        assert asked("--n", "9", "--batch", "2", "--family", "band", "--cond", "0") == [
            Case(2, 9, 0, "band")
        ]
        assert asked("--sweep", "8", "9", "--batch", "2") == [
            Case(2, 8, 1, "dense"),
            Case(2, 9, 1, "dense"),
        ]
        assert asked("--sweep") == list(sweep.CASES)
        assert asked("--small", "--sweep", "8") == [Case(4, 8, 1, "dense")]
        assert asked("--small") == asked(small_by_itself=True) == list(map(small, BENCHMARK_CASES))
        assert asked("--small", "--case", "6") == [Case(2, 134, 1, "dense")]

    @pytest.mark.parametrize(
        "arguments, says",
        (
            (("--case", "12"), "--case must be 0 to 11"),
            (("--n", "0"), "must be 1 or more"),
            (("--runs", "0"), "--runs must be 1 or more"),
            (("--stage", "s99_none"), "stage must be torch, auto, one of"),
            (("--compare", "s99_none"), "stage must be torch, auto, one of"),
            (("--precision", "fp8"), "invalid choice"),
            (("--replay", "--device", "cpu"), "--replay needs a GPU"),
        ),
    )
    def test_what_is_not_understood_ends_with_2(self, arguments, says, capsys):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2 and says in capsys.readouterr().err

    def test_it_runs_writes_and_draws(self, tmp_path, capsys):
        pytest.importorskip("matplotlib")
        files = tmp_path / "a.json", tmp_path / "a.svg"
        command = [*self.QUICK, "--stage", "s02_unblocked", "--precision", "fp32", "fast"]
        assert main([*command, "--json", str(files[0]), "--chart", str(files[1])]) == 0
        printed = capsys.readouterr().out
        assert "2 x 8 dense, cond 1" in printed and "\u2588" in printed
        found = load(files[0])
        kinds = [(row["stage"], row["precision"]) for row in found.rows]
        assert kinds == [("torch", "fp32"), ("s02_unblocked", "fp32"), ("s02_unblocked", "fast")]
        assert found.provenance["command"].startswith("python -m qrlib.bench --n 8 --batch 2")
        assert found.provenance["command"].endswith("--json a.json --chart a.svg")
        assert files[1].exists()

    def test_a_failure_ends_with_1_and_is_said(self, monkeypatch, capsys):
        monkeypatch.setattr(qrlib.stage("s03_blocked"), "geqrf", Nothing().trick)
        assert main([*self.QUICK, "--stage", "s03_blocked", "--compare", "none"]) == 1
        printed = capsys.readouterr().out
        assert "FAILED" in printed and "fault:" in printed
        assert "1 of 1 rows FAILED and have no time." in printed

    @pytest.mark.usefixtures("quick")
    def test_what_does_not_run_here_is_left_out_by_default_and_said(self, monkeypatch, capsys):
        def absent(A):
            raise RuntimeError("needs a chip")

        monkeypatch.setattr(qrlib.stage("s03_blocked"), "geqrf", absent)
        assert main([*self.QUICK, "--compare", "none", "--no-probes"]) == 0
        printed = capsys.readouterr().out
        assert (
            "left out, for it does not run here: s03_blocked: RuntimeError: needs a chip" in printed
        )
        assert "s01_mirror" not in printed and "s02_unblocked" in printed

    def test_what_several_cannot_for_one_reason_is_said_once(self, monkeypatch, capsys):
        why = {"s05_panel": "stage s05_panel needs a chip", "s06_update": "no", "torch": None}
        why["s07_whole"] = why["s05_panel"].replace("s05_panel", "s07_whole")
        monkeypatch.setattr("qrlib.bench.measure.runnable", lambda device: why)
        assert main([*self.QUICK, "--compare", "none", "--no-probes"]) == 0
        said = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
        assert said == [
            "left out, for it does not run here: s05_panel, s07_whole: it needs a chip",
            "left out, for it does not run here: s06_update: no",
        ]

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there a stage needs no interpreter")
    @pytest.mark.usefixtures("quick")
    def test_a_time_of_the_interpreter_says_so(self, capsys):
        quick = [*self.QUICK, "--compare", "none", "--no-probes"]
        assert main([*quick, "--stage", "s05_panel", "s02_unblocked"]) == 0
        assert capsys.readouterr().out.count("note: through Triton's interpreter") == 1

    def test_outside_a_checkout_a_file_needs_a_commit(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr("qrlib.bench.results.ROOT", tmp_path)
        without = [x for x in self.QUICK if x not in ("--commit", "abc")]
        with pytest.raises(SystemExit):
            main([*without, "--json", str(tmp_path / "a.json")])
        assert "outside a git checkout give --commit" in capsys.readouterr().err

    def test_a_commit_can_be_dirty(self, tmp_path):
        command = [*self.QUICK[:-1], "abc-dirty", "--stage", "auto", "--compare", "none"]
        main([*command, "--json", str(tmp_path / "a.json")])
        found = load(tmp_path / "a.json")
        assert found.provenance["commit"] == "abc" and found.provenance["dirty"] is True
        assert "changed since" in found.where()

    def test_without_a_gpu_the_cases_are_small_by_themselves(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr("qrlib.bench.__main__.BENCHMARK_CASES", (Case(9, 320, 1, "dense"),))
        assert main(["--stage", "auto", "--runs", "1", "--commit", "abc"]) == 0
        printed = capsys.readouterr().out
        assert "no NVIDIA GPU here" in printed and "4 x 16 dense" in printed
        with pytest.raises(SystemExit):
            main(["--device", "cuda"])

    def test_no_torch(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert main(list(self.QUICK)) == 2
        assert "the benchmark needs torch" in capsys.readouterr().out

    def test_progress_is_for_terminals(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        out = Terminal()
        progress = Progress(out)
        progress(0.5, "640 x 512 dense: torch warms up")
        assert out.getvalue().startswith("\r[############............]  50 %")
        assert "torch warms up" in out.getvalue()
        out = io.StringIO()
        Progress(out)(0.5, "nothing")
        assert out.getvalue() == ""

    def test_as_a_module(self):
        done = subprocess.run(
            [sys.executable, "-m", "qrlib.bench", *self.QUICK, "--stage", "auto", "--no-probes"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "geometric mean over the cases" in done.stdout


@pytest.mark.gpu
class TestGPU:
    def test_small_cases(self, tmp_path):
        cases = map(small, BENCHMARK_CASES[:8])
        results = run("auto", *cases, device="cuda", baseline="torch", protocol=Protocol(runs=3))
        assert results.passed, [row["faults"] for row in results.rows]
        results.save(tmp_path / "a.json")
        p = load(tmp_path / "a.json").provenance
        assert p["gpu"] and p["driver"] and p["cuda"] and p["gpu"] in results.where()
        for row in results.rows:
            assert row["extra_bytes"] >= 4 * row["batch"] * row["n"] ** 2

    def test_a_replay_is_a_row_of_its_own_and_sees_new_data(self):
        results = run("s02_unblocked", Case(4, 8, 1, "dense"), device="cuda", replay=True)
        assert [row["mode"] for row in results.rows] == ["eager", "replay"]
        assert results.passed, [row["faults"] for row in results.rows]

    def test_work_on_another_stream_is_told(self):
        side = torch.cuda.Stream()

        class Elsewhere(Fake):
            def trick(self, A):
                H, tau = honest(A)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(10_000_000)
                    for X in (H, tau):
                        X.record_stream(side)
                    return QR(H.clone(), tau.clone())

        faults = row_of(Elsewhere(), device="cuda")["faults"]
        assert any(fault.startswith("the clocks disagree") for fault in faults), faults

    def test_what_another_stream_does_after_the_events_is_seen(self):
        side = torch.cuda.Stream()

        class Elsewhere(Fake):
            def trick(self, A):
                H, tau = honest(A)
                X, t = torch.zeros_like(H), torch.zeros_like(tau)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(500_000)
                    X.copy_(H), t.copy_(tau)
                return QR(X, t)

        faults = row_of(Elsewhere(), device="cuda")["faults"]
        assert any("changed after the clock had stopped" in fault for fault in faults), faults

    def test_a_queued_call_is_timed_without_its_host(self):
        clock = Clock(GPU)

        def slow_host(A):
            threading.Event().wait(2e-4)
            return A + 1

        A = torch.zeros(8, device="cuda")
        queued, alone = (
            median(clock(slow_host, A, queued=q)[2].us for _ in range(9)) for q in (1, 0)
        )
        assert queued < 50 and alone > 200

    def test_a_host_that_waits_is_told_and_timed(self):
        def waits(A):
            result = honest(A)
            torch.cuda._sleep(10_000_000)
            result.H.sum().item()
            return result

        row = row_of(waits, device="cuda")
        assert row["ok"], row["faults"]
        assert row["host_sync"] is True and row["median_us"] > 2000
        assert "the host waits for the GPU inside the call" in row["notes"]

    def test_an_empty_call_takes_next_to_nothing(self):
        clock = Clock(GPU)
        times = [clock(lambda A: A, None, queued=k % 2 == 0)[2] for k in range(20)]
        assert median(t.us for t in times) < 50 and clock.disagree(times) is None
        assert clock.buffer.numel() > torch.cuda.get_device_properties(0).L2_cache_size
