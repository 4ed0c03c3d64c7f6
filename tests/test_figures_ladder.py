"""The ladder's chart of times: its bars are the file's numbers, and it says where from."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from qrlib import STAGES
from qrlib.bench import Results, load
from qrlib.bench.results import ORIGIN
from qrlib.teach.figures.ladder import CASES, DATA, age, duration, ladder, times
from qrlib.teach.svg import PALETTE

SVG = "{http://www.w3.org/2000/svg}"
GPU = {"device": "cuda", "gpu": "GPU of a test", "driver": "1.2", "cuda": "3.4", "cpu": "a CPU"}
US = {"torch": 250_000.0, "s02_unblocked": 40_000.0, "s03_blocked": 5_000.0, "s04_recursive": 500.0}


def row(stage, us, *, n=512, mode="eager", precision="fp32"):
    case = {"batch": 640, "n": n, "cond": 2, "family": "dense"}
    ok = us is not None
    certificate = {"factor": 0.1, "orthogonality": 0.2, "columnwise": 0.1}
    return {
        **case,
        "stage": stage,
        "precision": precision,
        "mode": mode,
        "ok": ok,
        "faults": [] if ok else ["factor 99"],
        "median_us": us,
        "speedup": ok and US["torch"] / us or None,
        "certificate": certificate,
    }


@pytest.fixture
def write(tmp_path):
    def write(rows):
        origin = dict.fromkeys(ORIGIN, "x") | GPU
        origin |= {
            "commit": "0123456789abcdef",
            "dirty": False,
            "date": "2001-02-03T04:05:06+00:00",
        }
        Results(origin, {"baseline": "torch"}, rows).save(tmp_path / "ladder.json")
        return tmp_path / "ladder.json"

    return write


def drawn(figure):
    """([text], {colour: [(width, fill) of its bars]})."""
    root = ElementTree.fromstring(figure.body())
    words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    bars = {}
    for bar in root.iter(f"{SVG}rect"):
        color, fill = (re.search(r"--qr-(\w+)", bar.get(key))[1] for key in ("stroke", "fill"))
        bars.setdefault(color, []).append((float(bar.get("width")), fill))
    return words, bars


@pytest.mark.parametrize("lit", list(US)[1:])
def test_bars_are_the_logarithms_of_the_times(write, lit):
    words, bars = drawn(times(lit, write([row(stage, us) for stage, us in US.items()])))
    (torch_bar,), (mine,) = bars.pop("muted"), bars.pop("orange")
    lengths = {"torch": torch_bar[0], lit: mine[0]}
    lengths |= zip((s for s in US if s not in lengths), (width for width, _ in bars.pop("blue")))
    assert not bars
    # one scale for all: a decade has the same length everywhere
    decade = {
        (lengths["torch"] - lengths[stage]) / math.log10(US["torch"] / us)
        for stage, us in list(US.items())[1:]
    }
    assert max(decade) - min(decade) < 0.1 and min(decade) > 50
    assert f"\u25b6 {lit}" in words and sum("\u25b6" in word for word in words) == 1
    assert words[0] == "time for a batch: 640 x 512 dense, cond 2"
    assert "40 ms, 6.25x" in words and "500 \u00b5s, 500x" in words and "250 ms" in words


def test_torch_is_the_first_bar_and_every_stage_has_its_place(write):
    words, _ = drawn(times("s02_unblocked", write([row(stage, us) for stage, us in US.items()])))
    names = [word.removeprefix("\u25b6 ") for word in words]
    places = [names.index(name) for name in ("torch.geqrf", *STAGES)]
    assert places == sorted(places)
    # stage 1 is not in the file
    assert words.count("not measured") == len(STAGES) + 1 - len(US)


def test_it_says_where_the_times_come_from(write):
    figure = times("s03_blocked", write([row(stage, us) for stage, us in US.items()]))
    words, _ = drawn(figure)
    foot = " ".join(words[-2:])
    for text in ("GPU of a test", "2001-02-03", "commit 0123456789"):
        assert text in foot and text in figure.alt
    assert (
        "s04_recursive: 500 \u00b5s, 500x" in figure.alt and "You are at s03_blocked" in figure.alt
    )


def test_a_replay_is_a_hollow_bar_beside_the_other(write):
    rows = [row(stage, us) for stage, us in US.items()] + [
        row("s04_recursive", 50.0, mode="replay")
    ]
    words, bars = drawn(times("s04_recursive", write(rows)))
    (eager, solid), (replay, hollow) = bars["orange"]
    assert replay < eager and (solid, hollow) == ("orange", "paper")
    assert "500 \u00b5s, 500x; replayed 50 \u00b5s, 5,000x" in words


def test_more_cases_are_a_geometric_mean_and_one_that_failed_is_none(write):
    rows = [row("torch", 1e5), row("s02_unblocked", 4e3), row("s03_blocked", 4e3)]
    rows += [row("torch", 1e5, n=9), row("s02_unblocked", 1e3, n=9), row("s03_blocked", None, n=9)]
    words, bars = drawn(times("s02_unblocked", write(rows)))
    assert "time for a batch: geometric mean of 2 cases" in words
    assert "2 ms, 125x" in words and "blue" not in bars
    assert words.count("not measured") == len(STAGES) - 1


def test_another_precision(write):
    rows = [row("torch", 1e5)]
    rows += [row("s02_unblocked", 4e3), row("s02_unblocked", 2e3, precision="fast")]
    assert "4 ms, 62.5x" in drawn(times("s02_unblocked", write(rows)))[0]
    words, _ = drawn(times("s02_unblocked", write(rows), precision="fast"))
    assert "2 ms, 125x" in words and "100 ms" in words


def test_a_chart_that_is_older_than_the_tables_says_so(write):
    some = write([row("torch", US["torch"]), row("s02_unblocked", US["s02_unblocked"])])
    said = age(some, CASES)
    assert "commit 0123456789, before" in said and "s10_blackwell came later" in said
    assert str(load(CASES).provenance["commit"])[:10] in said
    every = write([row("torch", 1.0), *(row(stage, 1.0) for stage in STAGES[1:])])
    assert age(every, every) == "The chart and the tables of all cases are of commit 0123456789."


def test_the_chart_of_the_book_is_older_than_its_tables_or_of_one_commit():
    chart, table = load(DATA).provenance, load(CASES).provenance
    assert chart["commit"] == table["commit"] or chart["date"] < table["date"]


def test_without_data_it_is_the_ladder(tmp_path, write):
    assert times("s02_unblocked", tmp_path / "none.json").svg == ladder("s02_unblocked").svg
    for data in (tmp_path / "none.json", write([row("torch", 1.0)])):
        with pytest.raises(ValueError, match="lit must be one of"):
            times("s99_none", data)
    with pytest.raises(ValueError, match="has no stage in precision fast"):
        times("s02_unblocked", write([row("torch", 1.0)]), precision="fast")


@pytest.mark.parametrize("lit", STAGES)
def test_what_the_book_shows_can_be_drawn(lit):
    figure = times(lit, DATA)
    assert lit in figure.alt


def test_words_stand_inside_and_colours_follow_the_page(write):
    rows = [row(stage, us) for stage, us in US.items()] + [
        row("s04_recursive", 50.0, mode="replay")
    ]
    figure = times("s04_recursive", write(rows))
    for text in ElementTree.fromstring(figure.body()).iter(f"{SVG}text"):
        x, y, size = (float(text.get(key)) for key in ("x", "y", "font-size"))
        wide = 0.5 * size * len("".join(text.itertext()))
        first = x - wide * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        assert first >= 0 and first + wide <= figure.width
        assert size / 2 <= y <= figure.height - size / 2
    for colour in re.findall(r'\b(?:fill|stroke)="([^"]+)', figure.body()):
        known = re.fullmatch(r"var\(--qr-(\w+),(#\w+)\)", colour)
        assert colour == "none" or PALETTE[known[1]][0] == known[2]


@pytest.mark.parametrize(
    "us, said",
    (
        (18.44, "18.4 \u00b5s"),
        (0.5, "0.5 \u00b5s"),
        (999.4, "999 \u00b5s"),
        (999.6, "1 ms"),
        (4870, "4.87 ms"),
        (999_600, "1 s"),
        (1.2e6, "1.2 s"),
        (120e6, "120 s"),
    ),
)
def test_durations(us, said):
    assert duration(us) == said
