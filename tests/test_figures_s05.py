"""The figures of chapter 7: what is drawn is what the kernels do, trace and compile to."""

import json
import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import numpy as np  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from drawings import (  # noqa: E402
    EveryFigure,
    described_and_self_contained,
    texts,
    words_inside,
)

from qrlib import model, tall, tiles  # noqa: E402
from qrlib.bench.results import provenance  # noqa: E402
from qrlib.jit import put, quick_reductions  # noqa: E402
from qrlib.stages import s05_panel  # noqa: E402
from qrlib.teach import heights  # noqa: E402
from qrlib.teach.figures import s05_panel as figures  # noqa: E402
from qrlib.teach.figures.roofline import stored  # noqa: E402
from qrlib.tracer import trace  # noqa: E402

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="accesses are traced in the interpreter"
)
LAYOUT = figures.Layout((1, 4), (8, 4), (2, 1))
TIMES = {
    "gpu": "H200",
    "kind": "measured",
    "batch": [1, 640],
    "us": {"64 x 16": [8.0, 16.0], "1024 x 16": [16.0, 160.0], "512 x 16": [12.0, 48.0]},
}
DRAWN = {
    **{f"walk {k}": (figures.walk_frame, figures.P83, 2, k) for k in range(11)},
    "walk of one column": (figures.walk_frame, figures.P83[:4, :1], 1, 3),
    "spread": (figures.spread, LAYOUT, 32, 16),
    "spread of one warp": (figures.spread, figures.Layout((1, 4), (8, 4), (1, 1)), 16, 16),
    "fits": (figures.fits, s05_panel.TABLE),
    "trips": (figures.trips_plot,),
    "shared out": (figures.shared_out,),
    "shared out, two columns": (figures.shared_out, 3, 2),
    "latency": (figures.latency_plot, TIMES),
}
PLOTS = ("trips", "latency")
STEPPERS = (figures.walk_stepper, lambda: figures.walk_stepper(figures.P83[:4, :2], 1))


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


@triton.jit
def mirrors_kernel(P_ptr, H_ptr, tau_ptr, T_ptr, j, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """The first j mirrors of a panel [m, n], as the stage makes them."""
    i, c, k = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BN)[:, None]
    inside = (i < m) & (c < n)
    P = tl.load(P_ptr + i * n + c, mask=inside, other=0.0)
    P, tau, T = tiles.geqr2(P, j, BM, BN)
    tl.store(H_ptr + i * n + c, P, mask=inside)
    tl.store(tau_ptr + c, tau, mask=c < n)
    tl.store(T_ptr + k * n + c, T, mask=(k < n) & (c < n))


@interpreted
@pytest.mark.parametrize("zeroed", (False, True))
def test_the_walk_is_that_of_the_kernel(zeroed):
    P = figures.P83.copy()
    if zeroed:
        # a column with nothing to reflect
        P[1:, 0] = 0
    m, n = P.shape
    for j, step in enumerate(figures.mirrors(P, 2)):
        given = torch.tensor(P, dtype=torch.float32)
        H, tau, T = torch.empty_like(given), torch.empty(n), torch.empty(n, n)
        with quick_reductions():
            mirrors_kernel[(1,)](given, H, tau, T, j + 1, m, n, BM=8, BN=4)
        for ours, theirs in ((step.P, H), (step.tau, tau), (step.T, T)):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=3e-6)


def test_z_is_both_products():
    done = figures.mirrors()
    V = np.tril(done[-1].P, -1) + np.eye(*figures.P83.shape)
    before = [figures.P83, *(step.P for step in done)]
    for j, step in enumerate(done):
        v = V[:, j]
        np.testing.assert_allclose(step.z[:j], V[:, :j].T @ v)
        np.testing.assert_allclose(step.z[j:], v @ before[j][:, j:])
        np.testing.assert_allclose(step.parts.sum(0), step.g)
        assert step.g[j] == pytest.approx(np.sum(before[j][j + 1 :, j] ** 2))


def test_words_of_the_walk_count_bytes_and_meetings():
    m, b = figures.P83.shape
    said = [figures.walk_words(figures.P83, 2, k) for k in range(3 * b + 2)]
    moved = [int(re.search(r"so far: (\d+)", words)[1]) for words in said]
    met = [int(re.search(r"warps: (\d+)\.$", words)[1]) for words in said]
    assert moved[:-1] == [4 * m * b] * (3 * b + 1)
    assert met == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


@interpreted
def test_the_last_count_of_bytes_is_that_of_a_trace():
    H = torch.tensor(figures.P83, dtype=torch.float32)[None].contiguous()
    with trace(H=H) as t:
        s05_panel.panel(H, H.new_empty(1, 3))
    assert figures.walk_bytes(8, 3, True) == t.total.load.bytes + t.total.store.bytes
    assert figures.walk_bytes(8, 3, False) == t.total.load.bytes


@interpreted
@pytest.mark.parametrize("b", figures.PANEL_WIDTHS)
def test_trips_are_those_of_a_trace(b):
    H = torch.ones(1, 40, b)
    with trace(H=H) as t:
        s05_panel.panel(H, H.new_empty(1, b))
    third, fifth = figures.panel_trips(40, b)
    assert fifth == (t.total.load.elements + t.total.store.elements) / (40 * b)
    traffic = model.plan("s03_blocked", 1, 40, b, nb=b).traffic
    assert third == (traffic["panels"] + traffic["V and T"]) / (4 * 40 * b)


@triton.jit
def copy_kernel(A_ptr, out_ptr, m, n, last, BM: tl.constexpr, BN: tl.constexpr):
    b = tl.program_id(0)
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    at = b * m * n + i * n + c
    # the last program has nothing to do
    inside = (i < m) & (c < n) & (b < last)
    tl.store(out_ptr + at, tl.load(A_ptr + at, mask=inside, other=0.0), mask=inside)


@interpreted
def test_the_access_map_shows_who_touched_what():
    A, out = torch.ones(3, 5, 3), torch.empty(3, 5, 3)
    with trace(A=A, out=out) as t:
        copy_kernel[(3,)](A, out, 5, 3, 2, BM=8, BN=4)
    for name, tensor, op in (("A", A, "load"), ("out", out, "store")):
        found = figures.touched(t, name, tensor, op)
        assert found == {i: [i[0]] for i in np.ndindex(3, 5, 3) if i[0] < 2}
        figure = figures.access_map(t, name, tensor, (8, 4), op)
        described_and_self_contained(figure)
        words_inside(figure)
        shown = texts(figure)
        assert [shown.count(str(program)) for program in range(3)] == [15, 15, 0]
        assert "program 0: 15 of the 32 entries of its tile exist" in shown
        assert "matrix 0: 15 of 15 entries, by program 0" in figure.alt
        assert "matrix 2: 0 of 15 entries, by program none" in figure.alt


@interpreted
def test_the_access_map_is_of_one_tensor():
    A, B, C = torch.ones(1, 2, 2), torch.empty(1, 2, 2), torch.empty(1, 2, 2)
    with trace(A=A, B=B, C=C) as t:
        copy_kernel[(1,)](A, B, 2, 2, 1, BM=2, BN=2)
        copy_kernel[(1,)](B, C, 2, 2, 1, BM=2, BN=2)
    for name, tensor in (("A", A), ("B", B)):
        assert set(map(tuple, figures.touched(t, name, tensor).values())) == {(0,)}
    assert not figures.touched(t, "C", C)


@interpreted
def test_the_access_map_follows_strides_and_shows_all_programs():
    whole = torch.ones(4, 6, 6)
    A, out = whole[::2, ::2, 1::2], torch.empty(2, 3, 3)
    with trace(A=A, out=out, check=False) as t:
        # every program takes the first matrix
        first_kernel[(2,)](A, out, *A.stride(), BM=4, BN=4)
    assert figures.touched(t, "A", A) == {(0, i, c): [0, 1] for i, c in np.ndindex(3, 3)}
    assert texts(figures.access_map(t, "A", A, (4, 4))).count("0/1") == 9


@triton.jit
def first_kernel(A_ptr, out_ptr, sb, sm, sn, BM: tl.constexpr, BN: tl.constexpr):
    i, c = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < 3) & (c < 3)
    a = tl.load(A_ptr + i * sm + c * sn, mask=inside, other=0.0)
    tl.store(out_ptr + i * 3 + c, a, mask=inside)


@pytest.fixture(scope="module")
def small():
    """Compiled without a GPU."""
    return figures.compiled(32, 2)


class TestCompiled:
    """What the compiler says of the kernel."""

    def test_the_layout_covers_the_tile_evenly(self, small):
        layout = figures.layout_of(small)
        owners = [layout.owner(i, c) for i in range(32) for c in range(16)]
        counts = {owner: owners.count(owner) for owner in owners}
        assert sorted(counts) == [(w, t) for w in range(2) for t in range(32)]
        assert set(counts.values()) == {32 * 16 // 64}
        assert np.prod(layout.thread) * 64 == np.prod(layout.once)

    def test_a_row_is_in_one_warp_and_a_column_in_all(self, small):
        layout = figures.layout_of(small)
        assert all(len({layout.owner(i, c)[0] for c in range(16)}) == 1 for i in range(32))
        assert {layout.owner(i, 4)[0] for i in range(32)} == {0, 1}
        alt = figures.spread(layout, 32, 16).alt
        assert "Row 10 is in 4 threads of one warp. Column 4 is in 16 threads of 2 warps" in alt

    def test_one_reduction_of_a_column_is_over_the_rows(self, small):
        found = figures.inside_the_loop(small)
        assert [operands for axis, operands in found if axis == 0] == [2]
        assert [axis for axis, _ in found].count(1) >= 1

    def test_the_layout_is_that_of_the_panel_and_not_of_t(self, small):
        other = small.ttgir.replace("tensor<16x16xf32, #blocked>", "tensor<16x16xf32, #blocked2>")
        other = "#blocked2 = #ttg.blocked<{order = [0, 1]}>\n" + other
        assert figures.layout_of(replace(small, ttgir=other)) == figures.layout_of(small)

    def test_columns_that_are_not_dealt_first_are_an_error(self, small):
        turned = replace(small, ttgir=small.ttgir.replace("order = [1, 0]", "order = [0, 1]"))
        with pytest.raises(ValueError, match="columns must be dealt first"):
            figures.layout_of(turned)

    def test_the_kernel_is_the_one_that_was_asked_for(self, small):
        assert small.config.constexprs["BM"] == 32 and small.num_warps == 2
        assert small.target == "sm_90a"


def test_registers_of_a_tile():
    # 512 x 16 numbers among 4 x 32 threads
    assert figures.tile_registers(512, 16, 4) == 64
    alt = figures.fits(s05_panel.TABLE).alt
    for BM, (warps, *_) in s05_panel.TABLE.items():
        assert f"{BM} rows: " in alt and f"the stage takes {warps} warps" in alt


def test_the_table_of_the_stage_is_in_the_chart_and_fits(drawn):
    assert set(s05_panel.TABLE) <= set(figures.HEIGHTS)
    for BM, (warps, *_) in s05_panel.TABLE.items():
        assert warps in figures.WARPS
        assert figures.tile_registers(BM, s05_panel.NB, warps) < figures.REGISTERS
    shown = texts(drawn["fits"])
    assert shown.count("1024") == 2 and "2048" in shown


@interpreted
def test_a_tall_panel_takes_the_launches_that_are_drawn(monkeypatch):
    H = torch.ones(1, 100, 3)
    with (
        put(vars(s05_panel), "TABLE", {8: (1, False)}),
        put(vars(tall), "SLICE", 32),
        trace(H=H) as t,
    ):
        s05_panel.panel(H, H.new_empty(1, 3))
    # the first, for the largest entries, is left out of the figure
    assert [launch.grid[:2] for launch in t.launches[1:]] == [(1, 4)] * 4
    shown = texts(figures.shared_out(4, 3))
    assert [words for words in shown if words.startswith("launch")] == [
        f"launch {k}" for k in range(4)
    ]
    # each launch but the first applies a mirror, to a slice that it loads and stores once
    per_launch = [launch.total for launch in t.launches[1:]]
    loads = [a for launch in t.launches[1:] for a in launch.accesses if a.tensor == "H"]
    assert sum(a.elements.size for a in loads if a.op == "load") == 4 * 100 * 3
    assert all(each.load.elements >= 300 for each in per_launch)


def test_times_a_column():
    assert figures.per_column(TIMES) == {
        1: [(64, 0.5), (512, 0.75), (1024, 1.0)],
        640: [(64, 1.0), (512, 3.0), (1024, 10.0)],
    }
    found = figures.latency_plot(TIMES).alt
    assert "measured on H200" in found and "1 matrix: 0.50 at 64 rows, 1.00 at 1024" in found


def test_all_panels_together():
    # panels of 96, 80 and 64 rows: two as long as one of 512, one of 64
    short = {**TIMES, "us": {"64 x 16": [1.0, 2.0], "512 x 16": [3.0, 7.0]}}
    assert figures.panels_time(short, 96) == 2 * 7 + 4 * 2
    assert figures.panels_time(short, 16) == 2


def test_bytes_take_what_the_bandwidth_allows():
    bandwidth = figures.DEVICES["H200"].measured["bandwidth"].value
    whole = 16e-6 * figures.bytes_time(512, 640, "H200")
    assert whole * bandwidth == pytest.approx(640 * 4 * (3 * 512 * 16 + 16 + 256))


def test_three_ways_for_a_panel():
    kernels = {(B, m): figures.way(B, m) for B in (1, 640) for m in (512, 2048, 4096)}
    assert kernels == {
        (1, 512): "panel_kernel",
        (1, 2048): "together_kernel",
        (1, 4096): "together_kernel",
        (640, 512): "panel_kernel",
        (640, 2048): "panel_kernel",
        (640, 4096): "column_kernel",
    }
    # a program an SM at most where all wait for one another
    assert figures.way(8, 4096) == "together_kernel" and figures.way(9, 4096) == "column_kernel"


@interpreted
def test_trips_by_launches_are_those_of_a_trace():
    m, b = 200, 8
    H, V = torch.ones(1, m, b), torch.empty(1, m, b)
    with (
        put(vars(s05_panel), "TABLE", {8: (1, False)}),
        put(vars(tall), "SLICE", 32),
        trace(H=H, V=V) as t,
    ):
        s05_panel.launch(H, H.new_empty(1, b), V, H.new_empty(1, b, b))
    moved = sum(getattr(t.of(name), op).elements for name in "HV" for op in ("load", "store"))
    assert figures.trips(640, 4096, b) == moved / (m * b)
    assert figures.trips(640, 512, b) == figures.trips(1, 4096, b) == 3


def test_a_stored_jump_is_there_where_the_way_changes():
    times = figures.per_column(stored("panel_heights"))
    assert all(tuple(m for m, _ in us) == heights.HEIGHTS for us in times.values())
    many = dict(times[640])
    assert many[4096] > 4 * many[2048] > 4 * many[1024]
    # where programs meet, taller is more programs and not more time
    alone = dict(times[1])
    assert alone[8192] < 1.1 * alone[2048]


def test_stored_times_can_be_drawn():
    described_and_self_contained(figures.latency_plot(stored("panel_heights")))


@pytest.mark.usefixtures("quick")
class TestHeights:
    """The measurement, with a clock of its own; the numbers need a GPU."""

    @staticmethod
    def clock(call):
        call()
        # a call with the panel has default arguments only; one for the copy alone has `again`
        return 3.0 if call.__defaults__ != (True,) else 10.0

    @interpreted
    def test_what_is_measured_is_certified_and_the_copy_is_subtracted(self):
        found = heights.measure("cpu", self.clock, (20, 40), (1, 2))
        assert found == {"20 x 16": [7.0, 7.0], "40 x 16": [7.0, 7.0]}

    @interpreted
    def test_a_wrong_result_has_no_time(self, monkeypatch):
        monkeypatch.setattr(s05_panel, "launch", lambda *_: None)
        with pytest.raises(ValueError, match="no time for a result that fails"):
            heights.measure("cpu", self.clock, (40,), (1,))

    def test_what_is_written_can_be_drawn(self):
        origin = provenance(torch.device("cpu"), "test", "abc") | {"gpu": "NVIDIA H200"}
        us = {"64 x 16": [1.0, 2.0], "512 x 16": [2.0, 4.0]}
        found = json.loads(json.dumps(heights.written(origin, us, (1, 640))))
        assert found["gpu"] == "H200" and found["provenance"]["commit"] == "abc"
        described_and_self_contained(figures.latency_plot(found))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_without_a_gpu_it_says_so(self, capsys):
        with pytest.raises(SystemExit):
            heights.main(["nothing.json"])
        assert "NVIDIA GPU" in capsys.readouterr().err
