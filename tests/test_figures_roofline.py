"""The figures of chapter 4: their numbers are worked out again here, from counts and devices."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import product

import pytest
from drawings import SVG, EveryFigure, texts

from qrlib import model
from qrlib.devices import DEVICES
from qrlib.matrices import BENCHMARK_CASES
from qrlib.teach.explorer import Explorer
from qrlib.teach.figures import roofline as figures
from qrlib.teach.stepper import Frame
from qrlib.teach.svg import Figure

PUBLISHED, PANELS = figures.stored("published"), figures.stored("panel_heights")
CYCLES = PUBLISHED["latency"]["cycles"]
COLUMN = 0.2e-6
GAPS = figures.gap_stepper(PUBLISHED, COLUMN).frames
SPEEDS = {1: 2e9, 8: 15e9, 64: 50e9}
SHAPES = figures.SHAPES
DRAWN = {
    **{f"chip {name}": (figures.chip, name) for name in DEVICES},
    "chip with latencies": (figures.chip, "H200", CYCLES["GH200"]),
    "roof": (lambda: figures.roof_frame().figure,),
    "roof, extreme": (lambda: figures.roof_frame("T4", 2, 1, 1, "graph").figure,),
    "roof, too large": (lambda: figures.roof_frame("T4", 4096, 640, 128).figure,),
    **{f"terms {B} {n}": (lambda B, n: figures.terms_frame(B, n).figure, B, n) for B, n in SHAPES},
    "batch": (figures.batch, PANELS),
    "measured roof": (figures.measured_roof, DEVICES["T4"], SPEEDS),
    "gap H200": (lambda: GAPS[1].figure,),
    "gap B200": (lambda: GAPS[0].figure,),
}
PLOTS = ("batch", "measured roof")
STEPPERS = (figures.terms_stepper, lambda: figures.gap_stepper(PUBLISHED, COLUMN))


@pytest.fixture(scope="module")
def explorer():
    return figures.roof_explorer()


def seconds(words):
    """The time that words such as "1.5 ms" tell."""
    value, unit = words.split()
    return float(value) * {"s": 1, "ms": 1e-3, "\u00b5s": 1e-6, "ns": 1e-9}[unit]


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.19e-6, "190 ns"),
        (1e-6, "1 \u00b5s"),
        (0.9999e-3, "1 ms"),
        (209.85e-3, "210 ms"),
        (12.0, "12 s"),
        (3.2e-12, "0.0032 ns"),
    ],
)
def test_a_time_in_words(value, words):
    assert figures.words(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(4.8e12, "4.8 TB/s"), (999.9e9, "1 TB/s"), (26.0, "26 B/s"), (0.5, "0.5 B/s")],
)
def test_a_rate_in_words(value, words):
    assert figures.si(value, "B/s") == words


# what is stored


def test_published_times_are_those_of_the_cases():
    cases = [(case.batch, case.n, case.cond, case.family) for case in BENCHMARK_CASES]
    assert [tuple(case) for case in PUBLISHED["cases"]] == cases
    for run in PUBLISHED["runs"]:
        assert len(run["us"]) == len(cases) and min(run["us"]) > 0
        assert run["kind"] in ("measured", "published")
        assert all(run[key] for key in ("name", "gpu", "date", "software", "how"))
    names = [run["name"] for run in PUBLISHED["runs"]]
    assert len(set(names)) == len(names) and figures.LIBRARY in names


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("torch.geqrf", 117090),
        ("second place, ported", 1671),
        ("best public Triton", 2796),
        ("first place", 1175),
        ("second place", 1239),
        ("third place", 1274),
        ("a later claim", 948),
    ],
)
def test_published_times_have_the_published_mean(name, mean):
    """Somebody else's mean over the same twelve numbers: a slip in one of them would show."""
    run = next(run for run in PUBLISHED["runs"] if run["name"] == name)
    assert figures.geomean(run["us"]) == pytest.approx(mean, rel=1e-3)


def test_the_best_is_nowhere_slower_than_the_others_on_its_gpu():
    runs = [run for run in PUBLISHED["runs"] if run["kind"] == "measured"]
    best = next(run for run in runs if run["name"].startswith("best public, case"))
    for k, us in enumerate(best["us"]):
        assert us <= min(run["us"][k] for run in runs)


def test_latencies_grow_outward():
    for cycles in CYCLES.values():
        assert PUBLISHED["latency"]["arithmetic"]["cycles"] < cycles["L1"] < cycles["L2"]
        assert cycles["L2"] < cycles["memory"]


def test_a_larger_batch_takes_longer_but_far_less_for_each():
    B, sms = PANELS["batch"], DEVICES[PANELS["gpu"]].sms
    for shape in figures.PANELS:
        us = PANELS["us"][shape]
        assert len(us) == len(B) and us == sorted(us)
        # as many as there are multiprocessors cost hardly more than one
        assert us[B.index(sms)] < 1.15 * us[0]
        assert us[-1] / B[-1] < us[0] / 100
    low, tall = (PANELS["us"][figures.PANELS[k]] for k in (-1, 0))
    assert low[-1] < 1.6 * low[0] and tall[-1] > 4 * tall[0]


def test_what_is_not_stored_is_named():
    with pytest.raises(FileNotFoundError, match=r"has .*published.*; got 'nothing'"):
        figures.stored("nothing")


# the chip


@pytest.mark.parametrize("name", DEVICES)
def test_the_chip_has_the_numbers_of_its_device(drawn, name):
    device, figure = DEVICES[name], drawn[f"chip {name}"]
    said = " | ".join(texts(figure))
    for words in (
        f"{name}, {device.sms} SMs",
        f"{device.lanes} FP32 units",
        f"up to {device.warps} warps of 32 threads",
        f"registers, {device.registers / 1024:.0f} KiB",
        f"shared memory, {device.shared_sm / 1024:.0f} KiB",
        f"L2, {device.l2 / 2**20:.0f} MiB",
        f"device memory, {device.memory / 1e9:.0f} GB",
    ):
        assert words in said
    # a square for each multiprocessor
    assert figure.body().count('width="10" height="10"') == device.sms
    assert "cycles" not in said


def test_the_chip_tells_the_latencies_that_it_is_given(drawn):
    said = " | ".join(texts(drawn["chip with latencies"]))
    for cycles in CYCLES["GH200"].values():
        assert f"answers after {cycles} cycles" in said


def test_rates_fall_from_the_registers_outward():
    for device in DEVICES.values():
        rates = list(figures.rates(device).values())
        assert rates == sorted(rates, reverse=True)
        # three reads and a write of four bytes for two flops
        assert rates[0] == pytest.approx(8 * device.peak["fp32"])


# the roof


CHOICES = list(product(*figures.AXES.values()))


@pytest.mark.parametrize("chosen", CHOICES[:: len(CHOICES) // 40], ids=str)
def test_the_readout_names_the_longest_term(explorer, chosen):
    device, n, B, mirrors, launch = chosen
    said = explorer.frames[chosen].readout
    stage = "s02_unblocked" if mirrors == 1 else "s03_blocked"
    plan = model.plan(stage, B, n, n, nb=mirrors)
    chip = DEVICES[device]
    moved = plan.floor if 4 * B * n * n <= chip.l2 else plan.bytes
    times = {
        "launches": plan.launches * (10e-6 if launch == "one by one" else 0.9e-6),
        "memory": moved / chip.bandwidth,
        "arithmetic": plan.flops.flops / chip.peak["fp32"],
    }
    for name, time in times.items():
        told = re.search(rf"{name} ([\d.e-]+ \S?s)", said, re.IGNORECASE)[1]
        assert seconds(told) == pytest.approx(time, rel=6e-3)
    assert re.search(r"Predicted: (\w+) binds?\.", said)[1] == max(times, key=times.get)
    assert ("in L2" in said) == (4 * B * n * n <= chip.l2)
    assert ("more than this GPU has" in said) == (4 * B * n * n > chip.memory)


def test_the_circle_is_on_the_roof_and_the_dot_below_it(explorer):
    X, Y = figures.Scale(0.1, 1000, 52, 432), figures.Scale(1e6, 1e15, 252, 14)
    for chosen, frame in explorer.frames.items():
        circle, dot = (
            [float(c.get(key)) for key in ("cx", "cy")]
            for c in ElementTree.fromstring(frame.figure.body()).iter(f"{SVG}circle")
        )
        chip = DEVICES[chosen[0]]
        # read the intensity off the axis again, and look up the roof there
        intensity = 0.1 * 10 ** (4 * (circle[0] - X.start) / (X.end - X.start))
        roof = min(chip.peak["fp32"], intensity * chip.bandwidth)
        assert circle[1] == pytest.approx(Y(roof), abs=0.1)
        assert dot[0] == circle[0] and dot[1] >= circle[1]


def test_more_mirrors_a_read_climb_the_slope_until_the_panel_is_the_trouble():
    def intensity(mirrors):
        plan = figures.situation("H200", 1024, 640, mirrors, "graph").plan
        return plan.flops.flops / plan.bytes

    found = {mirrors: intensity(mirrors) for mirrors in figures.AXES["mirrors"]}
    # the chapter's 1/3, and b/3 as a bound for the blocks
    assert found[1] == pytest.approx(1 / 3, rel=0.02)
    assert all(found[b] < b / 3 + 0.1 for b in found)
    assert found[1] < found[8] < found[32] > found[128]


# an explorer


@pytest.fixture(scope="module")
def html(explorer):
    return explorer._repr_html_()


def rebuilt(explorer, html, chosen):
    """The drawing that the script makes of the first one for a choice: as [(tag, attributes)]."""
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])
    row = 0
    for choice, choices in zip(chosen, explorer.axes.values()):
        row = row * len(choices) + choices.index(choice)
    svg = ElementTree.fromstring(re.search(r"<svg.*?</svg>", html, re.DOTALL)[0])
    elements = list(svg.iter())
    for (element, attribute), place in zip(data["slots"], data["rows"][row], strict=True):
        if attribute:
            elements[element].set(attribute, data["words"][place])
        else:
            elements[element].text = data["words"][place]
    return [(e.tag, drawn_as(e)) for e in elements], data["readouts"][row]


def drawn_as(element):
    # an attribute that is not set and one that is empty draw the same
    kept = {k: v for k, v in element.attrib.items() if v and k != "aria-label"}
    return kept, element.text or ""


@pytest.mark.parametrize("chosen", CHOICES[:: len(CHOICES) // 25], ids=str)
def test_what_the_script_puts_together_is_what_python_drew(explorer, html, chosen):
    frame = explorer.frames[chosen]
    elements, readout = rebuilt(explorer, html, chosen)
    right = ElementTree.fromstring(frame.figure.body()).iter()
    assert elements == [(e.tag, drawn_as(e)) for e in right]
    assert readout == frame.readout


def test_an_explorer_is_named_small_and_self_contained(explorer, html):
    assert len(html) < 200_000
    assert len(explorer.frames) == math.prod(map(len, figures.AXES.values()))
    for name in figures.AXES:
        assert f"<span>{name}</span>" in html
    assert html.count('type="range"') == len(figures.AXES)
    assert explorer.first.readout in html.replace("&#x27;", "'")
    rest = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|@import| id=", rest)


def box(width, height):
    figure = Figure(100, 100, alt=f"A box of {width} by {height}.")
    figure.rect(0, 0, width, height)
    return Frame(figure, f"{width} </script> {height}")


def test_words_cannot_end_the_script_of_an_explorer():
    html = Explorer(box, {"width": (1, 2), "height": (1, 2)}, "A box.")._repr_html_()
    assert html.count("</script>") == 2
    assert html.count("&lt;/script&gt;") == 1


def test_an_explorer_starts_where_it_is_told():
    axes = {"width": (1, 2), "height": (1, 2, 3)}
    assert Explorer(box, axes, "A box.").first.readout == "2 </script> 3"
    assert Explorer(box, axes, "A box.", start={"width": 1}).first.readout == "1 </script> 3"


def growing(width, height):
    figure = Figure(100, 100, alt="Lines.")
    for _ in range(width):
        figure.line(0, 0, 1, height)
    return Frame(figure, "Lines.")


def marked(width, height):
    figure = Figure(100, 100, alt="Words.")
    figure.text(50, 50, f"*x* = {width}")
    return Frame(figure, "Words.")


@pytest.mark.parametrize(
    ("draw", "axes", "options", "message"),
    [
        (box, {"width": (1,), "height": (1, 2)}, {}, "width must have two choices or more"),
        (box, {"width": (1, 2), "height": (1, 2)}, {"start": {"depth": 1}}, "got depth = 1"),
        (box, {"width": (1, 2), "height": (1, 2)}, {"start": {"width": 3}}, "got width = 3"),
        (growing, {"width": (1, 2), "height": (1, 2)}, {}, "the same elements in the same order"),
        (marked, {"width": (1, 2), "height": (1, 2)}, {}, "variables marked in them must be"),
    ],
)
def test_an_explorer_says_what_it_cannot_draw(draw, axes, options, message):
    with pytest.raises(ValueError, match=message):
        Explorer(draw, axes, "A figure.", **options)._repr_html_()


def test_an_explorer_needs_alt_text():
    with pytest.raises(ValueError, match="must have alt text"):
        Explorer(box, {"width": (1, 2), "height": (1, 2)}, " ")


# the stages, and the floor


@pytest.mark.parametrize(("B", "n"), SHAPES)
def test_the_bars_are_as_long_as_their_times(drawn, B, n):
    rows = [row for rows in figures.stage_terms(B, n).values() for row in rows]
    figure = drawn[f"terms {B} {n}"]
    bars = [
        float(rect.get("width"))
        for rect in ElementTree.fromstring(figure.body()).iter(f"{SVG}rect")
        if rect.get("height") == "14"
    ]
    T = figures.Scale(1e-9, 10, 96, 356)
    assert bars == pytest.approx([max(T(s) - 96, 1) for _, s in rows], abs=0.01)
    said = texts(figure)
    for name, time in rows:
        assert name in said and figures.words(time) in said


def test_launches_are_the_longest_of_every_stage_as_the_chapter_says():
    for B, n in SHAPES:
        for stage, rows in figures.stage_terms(B, n).items():
            longest = max(rows, key=lambda row: row[1])[0]
            if stage == "floor":
                assert longest == ("arithmetic" if n >= 512 else "columns")
            else:
                assert longest == "launches"
    large = figures.stage_terms(640, 512)
    memory = [dict(large[stage])["memory"] for stage in figures.STAGES]
    assert memory == sorted(memory, reverse=True)


@pytest.mark.parametrize("device", ["H200", "B200"])
@pytest.mark.parametrize(("B", "n"), SHAPES)
def test_the_floors(B, n, device):
    floors = figures.floors(B, n, device, COLUMN)
    chip = DEVICES[device]
    bandwidth = chip.measured["bandwidth"].value if chip.measured else chip.bandwidth
    peak = chip.measured["fp16"].value if chip.measured else chip.peak["fp16"]
    assert floors["memory"] == pytest.approx(4 * B * (2 * n * n + n) / bandwidth)
    assert floors["arithmetic"] == pytest.approx(B * 4 / 3 * n**3 / peak, rel=0.12)
    assert floors["columns"] == pytest.approx(n * COLUMN)
    # a program that reads more than once is not below the floor of one that does not
    plan = model.plan("s04_recursive", B, n, n)
    assert plan.bytes > plan.floor == floors["memory"] * bandwidth


@pytest.mark.parametrize("frame", GAPS, ids=["B200", "H200"])
def test_the_gap_is_from_the_floor_to_the_fastest_program(frame):
    device = frame.value[:4]
    kind = "measured" if device == "H200" else "published"
    runs = [run for run in PUBLISHED["runs"] if run["kind"] == kind]
    T = figures.Scale(1e-6, 1, 150, 426)
    lines = [
        [float(line.get(key)) for key in ("x1", "x2")]
        for line in ElementTree.fromstring(frame.figure.body()).iter(f"{SVG}line")
        if line.get("stroke-width") == "5"
    ]
    shown = [text for text in texts(frame.figure) if text.endswith("\u00d7")]
    ratios = []
    for k, case in enumerate(BENCHMARK_CASES):
        low = max(figures.floors(case.batch, case.n, device, COLUMN).values())
        best = min(run["us"][k] for run in runs if run["name"] != "torch.geqrf") * 1e-6
        assert lines[k] == pytest.approx([T(low), T(best)], abs=0.01)
        assert float(shown[k][:-1]) == pytest.approx(best / low, rel=0.05)
        ratios.append(best / low)
    assert len(lines) == len(shown) == len(BENCHMARK_CASES)
    # nobody may be below a floor
    assert min(ratios) > 1
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert float(re.search(r": ([\d.]+) times as long", frame.readout)[1]) == pytest.approx(
        mean, rel=0.05
    )


def test_the_library_is_in_the_picture_where_it_was_measured():
    library, others = (frame.figure.body() for frame in (GAPS[1], GAPS[0]))
    # twelve crosses and one in the key
    assert library.count("l8 8m0 -8l-8 8") == len(BENCHMARK_CASES) + 1
    assert "l8 8m0 -8l-8 8" not in others


def test_the_figures_need_neither_torch_nor_numpy_to_be_imported():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from qrlib.teach.figures import roofline; roofline.terms_frame(20, 32)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
