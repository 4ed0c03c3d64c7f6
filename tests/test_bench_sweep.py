"""Cost against size: the rules say what breaks them, and the stored sweep keeps them."""

import pytest

from qrlib.bench import Results, load, sweep
from qrlib.bench.__main__ import cases_of, parser
from qrlib.bench.sweep import ALONE, BATCH, CASES, RULES, SIZES, broken, report
from qrlib.matrices import Case
from qrlib.teach.figures.sweep import DATA


def row(batch, n, us, speedup=10.0, *, mode="replay", stage="auto"):
    return {
        **Case(batch, n, 1, "dense")._asdict(),
        "stage": stage,
        "precision": "fp32",
        "mode": mode,
        "ok": us is not None,
        "median_us": us,
        "speedup": us and speedup,
    }


def results(*rows):
    return Results({}, {"baseline": "torch"}, list(rows))


def the_broken(*rows):
    found = broken(results(*rows))
    assert tuple(found) == RULES
    return list(found.values())


class TestSizes:
    def test_some_are_odd_and_they_span_what_is_asked(self):
        assert SIZES == tuple(sorted(set(SIZES))) and (SIZES[0], SIZES[-1]) == (32, 2048)
        assert sum(n % 2 for n in SIZES) >= len(SIZES) / 3
        # the next larger one is never far
        assert all(b <= 1.5 * a for a, b in zip(SIZES, SIZES[1:]))
        assert ALONE == (512, 1024, 2048, 4096) and BATCH == 64

    def test_cases(self):
        assert [(c.batch, c.n) for c in CASES] == [(64, n) for n in SIZES] + [(1, n) for n in ALONE]
        assert {(case.cond, case.family) for case in CASES} == {(1, "dense")}

    def test_the_command_asks_for_them(self):
        assert cases_of(parser().parse_args(["--sweep"]), False) == list(CASES)


class TestRules:
    def test_all_hold(self):
        rows = [row(64, 32, 10.0), row(64, 47, 9.2), row(1, 512, 3.0, 1.0), row(1, 1024, 4.0, 1.5)]
        assert the_broken(*rows) == [[], [], []]

    def test_a_size_slower_than_the_next(self):
        rows = [row(64, 64, 50.0), row(64, 32, 10.0), row(64, 47, 56.0)]
        assert the_broken(*rows)[0] == ["64 x 47: 56 us; 64 x 64: 50 us"]
        # ten per cent are allowed, and other batches are other tables
        assert the_broken(row(64, 47, 55.0), row(64, 64, 50.0), row(1, 32, 90.0))[0] == []

    @pytest.mark.parametrize("batch, says", ((8, ["8 x 64: 5 us, 2.9x"]), (7, []), (2, [])))
    def test_less_than_three_times_as_fast(self, batch, says):
        assert the_broken(row(batch, 32, 5.0, 3.0), row(batch, 64, 5.0, 2.9))[1] == says

    def test_one_alone_that_is_slower(self):
        found = the_broken(row(1, 512, 5.0, 0.99), row(1, 1024, 5.0, 1.0))
        assert found == [[], [], ["1 x 512: 5 us, 0.99x"]]

    def test_a_size_that_failed_keeps_no_rule(self):
        found = the_broken(row(64, 32, 1.0), row(64, 47, None), row(64, 64, 2.0), row(1, 512, None))
        assert found[0] == ["64 x 32: 1 us; 64 x 47: FAILED", "64 x 47: FAILED; 64 x 64: 2 us"]
        assert found[1:] == [["64 x 47: FAILED, -x"], ["1 x 512: FAILED, -x"]]

    def test_without_a_baseline_nothing_is_known(self):
        assert the_broken(row(64, 32, 1.0, None))[1] == ["64 x 32: 1 us, -x"]

    def test_only_the_rows_that_are_asked_for(self):
        found = results(row(64, 32, 1.0), row(64, 47, 0.5, mode="eager"), row(64, 32, 9.0, 1.0))
        assert broken(found, mode="eager") == dict.fromkeys(RULES, [])
        with pytest.raises(ValueError, match="rows of auto, fast, replay; there are none"):
            broken(found, precision="fast")

    def test_a_report_is_of_all_but_the_baseline(self):
        rows = [row(64, 32, 90.0, 1.0, stage="torch", mode="eager")]
        rows += [row(64, 32, 40.0, 2.0, mode="eager"), row(64, 32, 1.0, 80.0)]
        lines = list(report(results(*rows)))
        assert lines.index("auto fp32") < lines.index("auto fp32 replay")
        assert f"  BROKEN: {RULES[1]}" in lines and f"  holds: {RULES[1]}" in lines
        assert "      64 x 32: 40 us, 2x" in lines and not any("torch fp32" in x for x in lines)


@pytest.mark.skipif(not DATA.exists(), reason="nobody has measured it so far")
class TestStored:
    def test_it_is_the_whole_sweep(self):
        found = load(DATA)
        assert [tuple(case) for case in found.protocol["cases"]] == [tuple(c) for c in CASES]
        assert found.provenance["gpu"] and found.passed
        for want in ({"stage": "torch"}, {"stage": "auto", "mode": "replay"}):
            rows = found.find(**want)
            assert {(row["batch"], row["n"]) for row in rows} == {(c.batch, c.n) for c in CASES}

    @pytest.mark.parametrize("rule", RULES)
    def test_the_rules_hold_for_replays(self, rule):
        found = load(DATA)
        precisions = {row["precision"] for row in found.find(stage="auto")}
        assert precisions
        for precision in precisions:
            assert broken(found, precision=precision)[rule] == [], precision


def test_the_data_lies_where_the_book_has_its_data():
    assert (DATA.parent / "cases.json").exists() and DATA.name == "sweep.json"
    assert sweep.OVER == 3 and sweep.MANY == 8 and sweep.LARGER == 1.1
