"""The figures of the chapter of stage 10: lanes, banks, routes, badges; and what it claims."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from drawings import EveryFigure, texts  # noqa: E402

from qrlib.bench.results import Results, load  # noqa: E402
from qrlib.launches import launches  # noqa: E402
from qrlib.matrices import BENCHMARK_CASES  # noqa: E402
from qrlib.stages import s10_blackwell as ten  # noqa: E402
from qrlib.teach.exercises.s10_blackwell import turns  # noqa: E402
from qrlib.teach.figures import s10_blackwell as figures  # noqa: E402
from qrlib.teach.figures.ladder import CASES, DATA  # noqa: E402
from qrlib.teach.figures.roofline import stored  # noqa: E402

DRAWN = {
    **{f"lanes {k}": (lambda k: figures.lanes_frame(k).figure, k)
       for k in range(len(figures.moments()))},
    **{f"banks {each}": (lambda each: figures.banks_frame(*each).figure, each)
       for each in figures.BANKED},
    **{f"map {asked}": (lambda asked: figures.map_frame(asked).figure, asked)
       for asked in figures.ASKED},
}  # fmt: skip
STEPPERS = (figures.lanes_stepper, figures.banks_stepper, figures.map_stepper)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


# lanes


def test_the_last_moment_is_lapack():
    H, tau = torch.geqrf(torch.from_numpy(figures.P43))
    found = figures.moments()
    np.testing.assert_allclose(np.stack(found[-1].P), H, atol=1e-12)
    np.testing.assert_allclose([it.tau for it in found if it.step == "done"], tau, atol=1e-12)


def test_sums_are_those_of_a_mirror():
    for it in figures.moments():
        if it.step == "summed":
            P = np.stack(it.P)[it.j + 1 :]
            np.testing.assert_allclose(it.sums, P[:, it.j] @ P)
            assert it.sums[it.j] == pytest.approx(sum(x * x for x in it.x))


def test_a_frame_shows_what_was_sent_and_added_up(drawn):
    words = [texts(drawn[f"lanes {k}"]) for k in (0, 1, 2, 3)]
    # 12 entries; then 3 that all lanes have; then 3 sums
    assert [len(each) - len(words[0]) for each in words[1:]] == [3, 7, 0]


# banks


@pytest.mark.parametrize("warps", (1, 2, 4, 8, 16, 32))
@pytest.mark.parametrize("joined", (1, 2, 4))
def test_turns_are_what_the_theorem_says(warps, joined):
    words = figures.words_of(warps, joined, columns=32)
    assert turns(words) == np.gcd(warps * joined, 32)
    # another number of theirs has other words, and as many turns
    other = figures.words_of(warps, joined, columns=32, number=joined - 1)
    assert turns(other) == turns(words) and (joined == 1 or not set(words) & set(other))


def test_joined_numbers_end_in_one_bank():
    taken = {each: turns(figures.words_of(*each)) for each in figures.BANKED}
    assert list(taken.values()) == sorted(taken.values())
    assert taken[8, 4] == 16 and len({word % 32 for word in figures.words_of(8, 4)}) == 1


def test_numbers_of_a_lane_stand_side_by_side_in_what_triton_makes():
    """The order of words in `words_of` is read off from a kernel that adds up over warps."""
    import re

    import triton
    import triton.language as tl

    from qrlib.compilelab import compile_kernel

    @triton.jit
    def sums(X_ptr, Y_ptr, S: tl.constexpr, Q: tl.constexpr, JOINED: tl.constexpr):
        s, q = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :]
        x = tl.load(X_ptr + s * Q + q)
        if JOINED:
            x = tl.join(x, tl.load(X_ptr + S * Q + s * Q + q))
        y = tl.sum(x, 0, keep_dims=True)
        if JOINED:
            a, b = tl.split(y)
            y = a + 2 * b
        tl.store(Y_ptr + q + s * 0, y + s * 0, mask=s == 0)

    types = {"X_ptr": "*fp32", "Y_ptr": "*fp32"}
    for joined in (0, 1):
        made = compile_kernel(sums, types, {"S": 16, "Q": 16, "JOINED": joined}, num_warps=8)
        # a lane is shifted by so many bytes before its first store
        head = made.ptx[: made.ptx.index("st.shared")]
        shifts = [2 ** int(by) for by in re.findall(r"shl\.b32\s+%r\d+, %r\d+, (\d+);", head)]
        words = figures.words_of(8, 1 + joined)
        assert 4 * (words[1] - words[0]) in shifts


# what a mirror takes


def test_a_mirror_in_lanes_is_a_few_instructions_an_entry():
    for m, n in figures.PRICED:
        it = figures.mirror(m, n)
        assert 0.7 * it.counts["all"] < sum(it.counts[what] for what in figures.RATES)
        # a dot product and an update are two multiply-adds an entry, and must be there
        assert 1.5 * it.elements < it.counts["fp32"] < it.counts["all"] < 9 * it.elements
        assert it.cycles >= it.counts["all"]
    # one warp has rows whose place the compiler knows: next to no masks
    one = figures.mirror(32, 32).counts
    assert one["half"] < one["fp32"] / 4


def test_kinds_of_instructions():
    names = {"FFMA": "fp32", "FSEL": "half", "ISETP": "half", "SHFL": "shuffle", "MUFU": "root"}
    assert {name: figures.kind_of(name) for name in names} == names
    assert figures.kind_of("BRA") is None and figures.kind_of("LDS") is None
    assert figures.roots() == 2


# one door


@pytest.mark.parametrize("asked", figures.ASKED)
def test_the_map_is_what_is_launched(asked):
    options = figures.ASKED[asked]
    for B in (40, 640):
        for n in (32, 96, 176, 352, 512, 1024):
            stage = figures.route(B, n, **options)
            whole = {} if ten.alone(n, n) else {"whole": stage == 7}
            policy = options.get("policy", "fp32")
            started = launches("s10_blackwell", B, n, n, policy=policy, **whole)
            names = [each.config.name for each in started]
            assert (len(names) == 1) == (stage in (10, 7))
            assert any("routed" in name for name in names) == (stage == 9)
            if stage == 10:
                assert "Q" in started[0].config.constexprs
            if stage == 7:
                assert ten.pays(B, n, n, options.get("replayed", False))


def test_every_stage_of_the_map_has_words():
    found = {figures.route(B, n, **options) for options in figures.ASKED.values()
             for B in figures.MAP_BATCHES for n in figures.MAP_SIZES}  # fmt: skip
    assert found == set(figures.NAMES) == set(figures.COLORS)


def test_tables_have_every_shape_of_the_task():
    shapes = [f"{B} x {n}" for B, n in figures.SHAPES]
    for table in (
        figures.route_table(),
        figures.bounds_table(),
        figures.bounds_table(figures.B200),
        figures.predicted_table(stored("published")),
    ):
        assert [row[0] for row in table.rows] == shapes
        assert {len(row) for row in table.rows} == {len(table.heads)}
    assert "predicted for B200" in figures.bounds_table(figures.B200).caption


def test_bounds_are_what_the_model_says():
    found = figures.bounds(640, 512)
    plan = figures.model.plan("s08_cholesky", 640, 512, 512)
    assert found["starts"] == plan.launches * figures.H200.measured["graph node"].value
    assert found["bytes"] == plan.bytes / figures.H200.measured["bandwidth"].value
    # what was measured on an H200 takes as many cycles on another, and no vendor says so
    other = figures.bounds(640, 512, figures.B200)
    cycles = [found["columns"] * figures.H200.clock, other["columns"] * figures.B200.clock]
    assert cycles[0] == pytest.approx(cycles[1])
    assert other["bytes"] < found["bytes"]


# badges


def test_what_was_not_measured_is_said():
    results = load(CASES)
    without = Results(results.provenance, results.protocol, [
        row for row in results.rows if row["stage"] not in ("s10_blackwell", "auto")
    ])  # fmt: skip
    for table in (figures.rungs_table(without), figures.score_table(without)):
        said = json.dumps(table.rows)
        assert "not measured" in said and results.where() in table.caption


def test_the_last_rungs_are_those_of_the_case_of_the_ladder():
    measured = load(CASES)
    (rung,) = {tuple(row[key] for key in ("batch", "n", "family")) for row in load(DATA).rows}
    case = BENCHMARK_CASES[3]
    assert (case.batch, case.n, case.family) == rung
    some = rows("auto", "fp32", "replay", 16.0) + rows("s08_cholesky", "fast", "eager", 9.0)
    some = [row | {"median_us": row["median_us"] * row["n"]} for row in some]
    table = figures.rungs_table(Results(measured.provenance, measured.protocol, some))
    found = {name: times for name, *times in table.rows}
    assert found["auto"] == ["not measured", "8.19 ms", "not measured", "not measured"]
    assert found["s08_cholesky"][2] == "4.61 ms"


def rows(stage, precision, mode, us):
    return [
        {**case._asdict(), "stage": stage, "precision": precision, "mode": mode, "ok": True,
         "median_us": us}
        for case in BENCHMARK_CASES
    ]  # fmt: skip


def test_a_mean_is_of_all_cases_or_is_not_there():
    measured = load(CASES)
    some = rows("torch", "fp32", "eager", 900.0) + rows("auto", "fast", "replay", 9.0)
    results = Results(measured.provenance, measured.protocol, some)
    *_, mean, times = figures.score_table(results).rows
    assert mean[1:] == ["900 \u00b5s", "not measured", "9 \u00b5s"] and times[3] == "100"
    assert "not measured" in figures.a_column(results)
    more = Results(measured.provenance, measured.protocol, rows("auto", "fp32", "replay", 16.0))
    assert "0.50 us a column" in figures.a_column(more)
    results = Results(measured.provenance, measured.protocol, some[:-1])
    *_, mean, times = figures.score_table(results).rows
    assert mean[3] == "not measured" and times[3] == "-"


def test_large_products_are_on_tensor_cores_and_loops_do_not_spill():
    table = figures.compiled_table("sm_100a")
    made = dict(zip((row[0] for row in table.rows), figures.badged("sm_100a")))
    assert {"whole_kernel", "square_kernel", "vectors_kernel"} <= set(made)
    assert {"update_kernel", "routed_update_kernel"} <= set(made)
    for name, (_, artifact) in made.items():
        assert (artifact.families.get("tcgen05", 0) > 0) == (name != "whole_kernel"), name
        assert artifact.spills[1] == 0 and artifact.fits
        assert artifact.shared <= figures.B200.shared_block
    assert not made["whole_kernel"][1].spilled
