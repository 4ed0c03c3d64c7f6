"""Q formed: what is no Q and R of its matrix has no time; the rules; the command and its file."""

import math
import threading
from pathlib import Path

import pytest
import torch

import qrlib
from qrlib.bench import Results, load, q
from qrlib.bench import judge as judging
from qrlib.bench.__main__ import cases_of, main, parser
from qrlib.bench.ahead import compile_share
from qrlib.bench.cases import Inputs, shape_of
from qrlib.bench.measure import Protocol, measure
from qrlib.bench.q import BASELINE, CASES, RULES, SHAPES, STEP, STEPS, Shape, broken, report, small
from qrlib.bench.results import words
from qrlib.bench.verbs import BASIS, FORMED, PRODUCT, VERBS, Verb
from qrlib.certificate import certify, of_product

DATA = Path(__file__).resolve().parents[1] / "book" / "data" / "q.json"
TALL = Shape(3, 12, 7)
QUICK = Protocol(runs=3, sweep=0, probes=False)
EPS = 2.0**-23


def run(*stages, cases=(TALL,), baseline=None, protocol=QUICK):
    return measure(list(stages), cases, baseline=baseline, protocol=protocol, commit="abc")


def formed(A):
    """Q and R in memory of their own."""
    return tuple(torch.linalg.qr(A))


class TestGate:
    @pytest.mark.parametrize("case", (TALL, Shape(4, 9, 9), Shape(2, 5, 1), Shape(1, 1, 1)))
    def test_what_is_right_has_a_time(self, case):
        results = run(*q.stages(SHAPES[0]), *q.stages(STEPS[0]), cases=[case], baseline=BASELINE)
        assert results.passed, [row["faults"] for row in results.rows]
        assert [row["stage"] for row in results.rows] == list(VERBS)
        for row in results.rows:
            assert row["q25_us"] <= row["median_us"] <= row["q75_us"]
            assert max(row["certificate"].values()) < 4

    def refused(self, monkeypatch, name, trick, says, after=2):
        """What behaves in the warm-up and then plays a trick has no time, and it is said why."""
        honest, calls = VERBS[name].call, []

        def call(given):
            calls.append(1)
            return honest(given) if len(calls) <= after else trick(given)

        monkeypatch.setitem(VERBS, name, Verb(call, VERBS[name].task))
        (row,) = run(name).rows
        assert any(says in fault for fault in row["faults"]), row["faults"]
        assert not row["ok"] and row["median_us"] is None and row["times_us"] == []

    @staticmethod
    def one_entry(A):
        Q, R = formed(A)
        Q[1, 4, 2] += 1e-3
        return Q, R

    @staticmethod
    def one_sign(A):
        Q, R = formed(A)
        Q[2, :, 3] *= -1
        return Q, R

    @staticmethod
    def one_nan(A):
        Q, R = formed(A)
        R[0, 1, 4] = math.nan
        return Q, R

    @staticmethod
    def below(A):
        Q, R = formed(A)
        R[1, 5, 0] = 1e-30
        return Q, R

    @staticmethod
    def gram_schmidt(A):
        """The factor is right, and Q only nearly orthogonal, as that of Cholesky may be."""
        Q, R = formed(A)
        bent = torch.eye(7).index_put((torch.tensor(0), torch.tensor(6)), torch.tensor(1e-3))
        return Q @ bent, torch.linalg.solve_triangular(bent, R, upper=True)

    @pytest.mark.parametrize(
        "trick, says",
        (
            ("one_entry", "orthogonality"),
            ("one_sign", "factor"),
            ("one_nan", "factor inf"),
            ("below", "R must be zero below its diagonal"),
            ("gram_schmidt", "orthogonality"),
        ),
    )
    def test_a_wrong_q_or_r(self, monkeypatch, trick, says):
        self.refused(monkeypatch, "qr", getattr(self, trick), says)

    @pytest.mark.parametrize("limit", ("AT_ONCE", "AXIS"))
    def test_a_wrong_one_in_the_last_part(self, monkeypatch, limit):
        monkeypatch.setattr(judging, limit, 1)
        self.refused(monkeypatch, "qr", self.one_sign, "factor")

    @pytest.mark.parametrize(
        "trick, says",
        (
            (lambda A: formed(A)[0], "must return (Q, R); got Tensor"),
            (lambda A: [*formed(A)], "must return (Q, R); got list"),
            (lambda A: tuple(torch.linalg.qr(A, "complete")), "Q must be [3, 12, 7] torch.float32"),
            (lambda A: tuple(torch.linalg.qr(A.double())), "Q must be [3, 12, 7] torch.float32"),
            (lambda A: (formed(A)[0], A[:, :7]), "R must be zero below its diagonal"),
            (lambda A: (A.copy_(formed(A)[0]), formed(A)[1]), "shares the memory of the input"),
            (lambda A: (formed(A), A.add_(1))[0], "the input was overwritten"),
        ),
    )
    def test_what_is_none(self, monkeypatch, trick, says):
        self.refused(monkeypatch, "qr", trick, says)

    @pytest.mark.parametrize("after", (0, 2))
    @pytest.mark.parametrize("name", ("qr", "orthogonalize", "householder_product"))
    def test_a_cached_result(self, monkeypatch, name, after):
        honest, kept = VERBS[name].call, []

        def cached(given):
            kept[:] = kept or [honest(given)]
            found = kept[0]
            return found.clone() if torch.is_tensor(found) else tuple(X.clone() for X in found)

        self.refused(monkeypatch, name, cached, "factor", after)

    def test_one_that_is_always_in_the_same_memory(self, monkeypatch):
        R = torch.empty(3, 7, 7)
        trick = lambda A: (formed(A)[0], R.copy_(formed(A)[1]))  # noqa: E731
        self.refused(monkeypatch, "qr", trick, "the output lies in the memory of an earlier one")

    def test_one_that_is_written_later(self, monkeypatch):
        todo = []

        def trick(A):
            for late, right in todo:
                late.copy_(right)
            Q, R = formed(A)
            todo.append((torch.zeros_like(R), R))
            return Q, todo[-1][0]

        self.refused(monkeypatch, "qr", trick, "changed after the clock had stopped")

    def test_any_basis_is_no_q_of_a(self, monkeypatch):
        def polar(A):
            U, _, Vh = torch.linalg.svd(A, full_matrices=False)
            return U @ Vh

        self.refused(monkeypatch, "orthogonalize", polar, "factor")

    def test_q_alone_has_what_signs_it_likes(self, monkeypatch):
        monkeypatch.setitem(VERBS, "orthogonalize", Verb(lambda A: -formed(A)[0], BASIS))
        assert run("orthogonalize").passed

    def test_q_of_given_mirrors_has_theirs(self, monkeypatch):
        trick = lambda given: -qrlib.householder_product(*given)  # noqa: E731
        self.refused(monkeypatch, "householder_product", trick, "factor")

    @pytest.mark.parametrize("which", (0, 1))
    def test_neither_of_what_is_given_may_be_overwritten(self, monkeypatch, which):
        def trick(given):
            Q = qrlib.householder_product(*given)
            given[which][-1].add_(1)
            return Q

        self.refused(monkeypatch, "householder_product", trick, "the input was overwritten")

    def test_one_that_raises_has_no_time(self, monkeypatch):
        self.refused(monkeypatch, "qr", lambda A: A.nothing, "AttributeError")


class TestResiduals:
    def test_they_are_those_of_the_mirrors(self):
        A = torch.randn(4, 30, 20, generator=torch.Generator().manual_seed(0))
        H, tau = qrlib.geqrf(A)
        Q, R = qrlib.householder_product(H.double(), tau.double()), qrlib.unpack_r(H)
        found, mirrors = of_product(A, Q, R), certify(A, H, tau)
        for mine, theirs in zip(found, (mirrors.factor, mirrors.orthogonality)):
            assert (mine / (30 * EPS)).tolist() == pytest.approx(theirs, rel=0.5)
        # R that Q leaves of A is at least as good
        assert (of_product(A, Q)[0] <= 1.5 * found[0]).all()

    def test_one_definition_by_numpy(self):
        rng = torch.Generator().manual_seed(1)
        A, Q, R = (torch.randn(2, *s, generator=rng) for s in ((5, 3), (5, 3), (3, 3)))
        found, same = of_product(A, Q, R), of_product(A.numpy(), Q.numpy(), R.numpy())
        for mine, theirs in zip(found, same, strict=True):
            assert mine.tolist() == pytest.approx(theirs.tolist())
        A, Q, R = A.double(), Q.double(), R.double()
        wrong = (A - Q @ R).abs().sum(1)
        assert found[0].tolist() == (wrong.amax(1) / A.abs().sum(1).amax(1)).tolist()
        assert found[1].tolist() == (Q.mT @ Q - torch.eye(3)).abs().sum(1).amax(1).tolist()
        assert found[2].tolist() == (wrong / A.abs().sum(1)).amax(1).tolist()

    def test_a_column_that_was_not_computed_shows_in_its_own_length(self):
        A = torch.eye(6, 4)[None] * torch.tensor([1, 1, 1e-20, 1])
        R = torch.diag(torch.tensor([1, 1, 0, 1.0]))[None]
        factor, orthogonality, columnwise, finite = of_product(A, torch.eye(6, 4)[None], R)
        assert factor < 1e-19 and orthogonality == 0 and columnwise == 1 and finite.all()

    def test_what_is_not_finite_is_infinitely_wrong_and_alone(self):
        A = torch.eye(4)[None].repeat(3, 1, 1)
        Q = A.clone()
        Q[1, 2, 2] = math.nan
        *found, finite = of_product(A, Q, A)
        assert finite.tolist() == [True, False, True]
        assert all(each.tolist() == [0, math.inf, 0] for each in found)


class TestMeasure:
    def test_only_what_does_the_same_is_compared(self):
        rows = run(*q.stages(SHAPES[0]), baseline=BASELINE).rows
        times = {row["stage"]: row["median_us"] for row in rows}
        for row in rows:
            same = row["stage"] in (BASELINE, *q.WITH_Q)
            want = times[BASELINE] / times[row["stage"]] if same else None
            assert row["speedup"] == (want and pytest.approx(want))

    def test_a_slow_baseline_is_warmed_up_once(self, monkeypatch):
        def calls(seconds):
            made = []

            def slow(A):
                made.append(1)
                threading.Event().wait(0.02)
                return formed(A)

            monkeypatch.setitem(VERBS, BASELINE, Verb(slow, FORMED))
            monkeypatch.setitem(VERBS, "qr", Verb(slow, FORMED))
            protocol = Protocol(runs=3, least=2, seconds=seconds, sweep=0, probes=False)
            results = run("qr", baseline=BASELINE, protocol=protocol)
            assert results.passed
            return [row["runs"] for row in results.rows], len(made)

        assert calls(60.0) == ([3, 3], 2 * (2 + 3))
        # it is one of the two that has one call less
        assert calls(0.01) == ([2, 2], 2 * (2 + 2) - 1)

    def test_stages_may_depend_on_the_case(self):
        cases = [TALL, TALL._replace(family=STEP)]
        results = measure(q.stages, cases, baseline=None, protocol=QUICK, commit="abc")
        got = [(row["family"], row["stage"]) for row in results.rows]
        assert got == [(case.family, name) for case in cases for name in q.stages(case)]
        assert results.protocol["cases"] == [tuple(case) for case in cases]

    def test_inputs_are_normal_and_never_the_same(self):
        inputs = Inputs(Shape(50, 20, 10), seed=3)
        (k, A), (j, B) = inputs.fresh(), inputs.fresh()
        assert A.shape == (50, 20, 10) == shape_of(inputs.case) and not torch.equal(A, B)
        assert torch.equal(A, inputs.variant(k)) and j != k
        assert abs(float(A.mean())) < 0.05 and abs(float(A.std()) - 1) < 0.05
        assert torch.equal(inputs.base, Inputs(Shape(50, 20, 10), seed=3).base)
        assert not torch.equal(inputs.base, Inputs(Shape(50, 20, 10), seed=4).base)
        theirs, mine = (torch.linalg.svdvals(X.double()).sort(0)[0] for X in (inputs.base, A))
        torch.testing.assert_close(mine, theirs)

    def test_a_tall_case_in_words(self):
        assert words(TALL) == words(TALL._asdict()) == "3 x 12 x 7 dense"
        assert words(STEPS[0]) == "48 x 1024 SOAP step"

    def test_kernels_are_compiled_ahead_for_shapes_and_verbs(self, monkeypatch):
        pytest.importorskip("triton")
        from triton.runtime.interpreter import InterpretedFunction

        from qrlib import apply

        compiled = []

        def run(kernel, *args, grid, warmup, **kwargs):
            compiled.append((kernel.fn.__name__, tuple(args[0].shape)))

        monkeypatch.setattr(InterpretedFunction, "run", run)
        monkeypatch.setitem(VERBS, "qr", Verb(lambda given: apply.orgqr(*given), PRODUCT))
        asked = ["fp32"], False, "cpu"
        assert compile_share(0, 1, lambda case: ["qr"], [Shape(2, 20, 7)], *asked) == 1
        assert compiled == [("one_block_kernel", (2, 20, 7))]


class TestCases:
    def test_they_are_those_of_optimizers(self):
        assert [case[:3] for case in SHAPES] == [
            (24, 1024, 1024),
            (96, 1024, 1024),
            (64, 512, 512),
            (8, 4096, 4096),
            (10000, 256, 32),
            (270000, 3, 3),
            (65536, 16, 16),
        ]
        assert [case[:3] for case in STEPS] == [(48, n, n) for n in (1024, 2048, 4096)]
        assert CASES == SHAPES + STEPS and len(set(map(words, CASES))) == len(CASES)
        assert set(VERBS) == {BASELINE, *(name for case in CASES for name in q.stages(case))}

    def test_small_ones(self):
        cases = [small(case) for case in CASES]
        assert len(set(map(words, cases))) == len(cases)
        assert all(case.m >= case.n and case.batch * case.m * case.n < 60000 for case in cases)


def row(stage, us, speedup=None, case=TALL):
    return {
        **case._asdict(),
        "stage": stage,
        "precision": "fp32",
        "mode": "eager",
        "ok": us is not None,
        "median_us": us,
        "speedup": us and speedup,
    }


def results(*rows, baseline=BASELINE):
    return Results({}, {"baseline": baseline}, list(rows))


def the_broken(*rows, **options):
    found = broken(results(*rows, **options))
    assert tuple(found) == RULES
    return list(found.values())


OTHER = Shape(9, 9, 9)
THE_STEP = STEPS[0]


class TestRules:
    def test_all_hold(self):
        rows = [row("qr", 1.0, 20.1), row("orthogonalize", 1.0, 40.0), row(BASELINE, 40.0, 1.0)]
        rows += [row("geqrf", 1.0), row("householder_product", 1.6)]
        rows += [row("foreach.orthogonalize", 1.0, 10.1, THE_STEP)]
        assert the_broken(*rows) == [[], [], [], []]

    def test_too_slow_on_average(self):
        rows = [row("qr", 1.0, 401.0), row("qr", 1.0, 1.0, OTHER)]
        assert the_broken(*rows)[0] == []
        rows += [row("orthogonalize", 1.0, 399.0), row("orthogonalize", 1.0, 1.0, OTHER)]
        assert the_broken(*rows)[0] == ["orthogonalize, 20x"]
        # a mean over the cases that went well is not one
        assert the_broken(*rows, row("qr", None, case=THE_STEP))[0] == [
            "qr, -",
            "orthogonalize, 20x",
        ]

    @pytest.mark.parametrize("stage", (*q.WITH_Q, "foreach.orthogonalize"))
    def test_slower_somewhere(self, stage):
        found = the_broken(row(stage, 1.0, 0.99), row(stage, 1.0, 1.0, OTHER))
        assert found[1] == [f"3 x 12 x 7 dense, {stage}, 0.99x"]

    def test_what_costs_too_much_beside_the_factorization(self):
        rows = [row("geqrf", 1.0), row("householder_product", 1.61), row("geqrf", 2.0, case=OTHER)]
        rows += [row("householder_product", 3.2, case=OTHER)]
        assert the_broken(*rows)[2] == ["3 x 12 x 7 dense, householder_product, 1.61x"]
        for failed in ([row("geqrf", None), rows[1]], [rows[0], row("householder_product", None)]):
            said = the_broken(*failed)[2]
            assert said == ["3 x 12 x 7 dense, householder_product, -"]
        assert the_broken(rows[1])[2] == ["3 x 12 x 7 dense, householder_product, -"]

    def test_the_step(self):
        found = the_broken(row("foreach.orthogonalize", 1.0, 10.0, THE_STEP))
        assert found[3] == ["48 x 1024 SOAP step, foreach.orthogonalize, 10x"]
        failed = the_broken(row("foreach.orthogonalize", None, case=THE_STEP))
        assert failed[3] == ["48 x 1024 SOAP step, foreach.orthogonalize, -"]
        # others are there to be seen
        assert the_broken(row("foreach.orthogonalize", 1.0, 5.0, STEPS[1]))[3] is None

    def test_a_baseline_that_failed_breaks_and_one_that_was_not_there_does_not(self):
        rows = [row("qr", 1.0), row("foreach.orthogonalize", 1.0, case=THE_STEP)]
        assert [bool(each) for each in the_broken(*rows)] == [True, True, False, True]
        assert the_broken(*rows, baseline=None) == [None] * 4

    def test_a_report(self):
        rows = [row(BASELINE, 9.0, 1.0), row("geqrf", 2.0), row("qr", 5.0, 1.8)]
        lines = list(report(results(*rows, row("householder_product", 1.0))))
        assert lines[:3] == [
            "time over that of geqrf",
            "  3 x 12 x 7 dense, qr: 2.5x",
            "  3 x 12 x 7 dense, householder_product: 0.5x",
        ]
        said = [f"BROKEN: {RULES[0]}", f"holds: {RULES[1]}", f"holds: {RULES[2]}"]
        assert [each for each in lines[3:] if each[0] != " "] == [*said, f"not timed: {RULES[3]}"]
        assert lines[4] == "    qr, 1.8x"


def asked(*arguments, small_by_itself=False):
    return cases_of(parser().parse_args(arguments), small_by_itself)


class TestCommand:
    QUICK = ("--q", "--small", "--runs", "2", "--device", "cpu", "--commit", "abc")

    def test_which_cases(self):
        assert asked("--q") == list(CASES)
        assert asked("--q", "--case", "4", "9") == [CASES[4], CASES[9]]
        assert asked("--q", "--case", "4", "--batch", "5") == [CASES[4]._replace(batch=5)]
        assert asked("--q", "--small") == asked("--q", small_by_itself=True)
        assert asked("--q", "--small") == list(map(small, CASES))

    @pytest.mark.parametrize(
        "arguments, says",
        (
            (("--n", "9"), "leave out --n"),
            (("--sweep", "--precision", "fast"), "leave out --sweep, --precision"),
            (("--family", "band", "--cond", "1"), "leave out --family, --cond"),
            (("--case", "10"), "--case must be 0 to 9"),
        ),
    )
    def test_what_is_not_understood_ends_with_2(self, arguments, says, capsys):
        with pytest.raises(SystemExit) as end:
            main(["--q", "--device", "cpu", *arguments])
        assert end.value.code == 2 and says in capsys.readouterr().err

    def test_a_replay_is_not_there_yet(self):
        with pytest.raises(ValueError, match="leave out --replay"):
            asked("--q", "--replay")

    def test_it_runs_and_writes(self, tmp_path, capsys):
        path = tmp_path / "a.json"
        assert main([*self.QUICK, "--json", str(path)]) == 0
        printed = capsys.readouterr().out
        assert "10 x 14 x 7 dense" in printed and "time over that of geqrf" in printed
        assert f"not timed: {RULES[3]}" in printed
        found = load(path)
        assert found.passed and found.protocol["baseline"] == BASELINE
        assert found.protocol["least"] == 2 and found.protocol["seconds"] == 1.0
        assert found.protocol["probes"] is False and found.protocol["runs"] == 2
        assert found.provenance["command"].startswith("python -m qrlib.bench --q --small")
        cases = [small(case) for case in CASES]
        got = [(row["batch"], row["m"], row["n"], row["stage"]) for row in found.rows]
        assert got == [(*c[:3], name) for c in cases for name in (BASELINE, *q.stages(small(c)))]
        assert {row["mode"] for row in found.rows} == {"eager"}
        assert {each["stage"]: each["cases"] for each in found.averages()}["qr"] == len(SHAPES)

    def test_some_stages_without_a_baseline(self, capsys):
        options = ("--case", "6", "--stage", "qr", "--compare", "none", "--seconds", "3")
        assert main([*self.QUICK, *options]) == 0
        printed = capsys.readouterr().out
        assert BASELINE not in printed.partition("not timed")[0] and "1 case" in printed
        assert all(f"not timed: {rule}" in printed for rule in RULES)

    def test_a_failure_ends_with_1(self, monkeypatch, capsys):
        monkeypatch.setitem(VERBS, "qr", Verb(lambda A: (A, A), FORMED))
        assert main([*self.QUICK, "--case", "6", "--stage", "qr"]) == 1
        assert "1 of 2 rows FAILED" in capsys.readouterr().out


@pytest.mark.skipif(not DATA.exists(), reason="nobody has measured it so far")
class TestStored:
    def test_it_is_all_of_it(self):
        found = load(DATA)
        assert [tuple(case) for case in found.protocol["cases"]] == [tuple(c) for c in CASES]
        assert found.provenance["gpu"] and found.passed and not found.provenance["dirty"]
        for case in CASES:
            rows = found.find(**case._asdict())
            assert [row["stage"] for row in rows] == [BASELINE, *q.stages(case)]

    @pytest.mark.parametrize("rule", RULES)
    def test_the_rules_hold(self, rule):
        assert broken(load(DATA))[rule] == []


@pytest.mark.gpu
def test_small_shapes_on_a_gpu():
    cases = [small(case) for case in CASES]
    results = measure(
        q.stages, cases, baseline=BASELINE, device="cuda", protocol=Protocol(**q.PROTOCOL)
    )
    assert results.passed, [row["faults"] for row in results.rows]
    assert all(row["extra_bytes"] for row in results.find(stage="qr"))
