"""The lineage shows every try, the record under them, and names what moved it."""

import re

import pytest
from drawings import described_and_self_contained
from logs import log, tried

from qrlib.loop import history
from qrlib.teach.figures.ladder import duration
from qrlib.teach.figures.loop import NAMED, lineage, moves, save

pytest.importorskip("matplotlib")

SEARCH = log(
    tried(1, 400.0, idea="the library"),
    tried(2, verdict="wrong"),
    tried(3, 200.0, idea="blocks"),
    tried(4, 199.0, idea="a detail"),
    tried(5, verdict="timed out"),
    tried(6, 250.0),
    tried(7, verdict="patched"),
    tried(8, 100.0, candidate="panels"),
    tried(9, 1.0, basis="another machine"),
    tried(10, 101.0),
)


@pytest.mark.parametrize("search", [SEARCH, history.load("cases"), history.load("ladder")])
def test_it_is_described_self_contained_and_follows_the_page(search):
    described_and_self_contained(lineage(search))


def test_words_say_what_is_drawn():
    figure = lineage(SEARCH, "one")
    assert figure.alt.startswith(
        "The time of 6 tries against their number, on a logarithmic axis, 1 failed, 1 rejected, "
        "1 inconclusive, one. The record falls from 400 \u00b5s to 100 \u00b5s, a factor of 4."
    )
    ideas = "1 the library: 400 \u00b5s; 2 blocks: 200 \u00b5s; 3 panels: 100 \u00b5s."
    assert figure.alt.endswith(f"It was moved by: {ideas}")
    text = re.sub(r"<[^>]+>", "\n", figure.body())
    for word in ("passed", "the record", "failed", "rejected", "inconclusive", "time"):
        assert word in text
    assert "3 panels: 100 \u00b5s" in re.sub(r"\s+", " ", text)


def test_only_what_moves_the_record_is_named():
    assert [(each["id"], share) for each, share in moves(SEARCH, "one")] == [
        (1, None),
        (3, 0.5),
        (8, 0.5),
    ]
    # of many moves the largest, in order
    many = log(*(tried(k, 1000 * 0.9**k * (0.5 if k > 7 else 1)) for k in range(1, 16)))
    found = moves(many)
    assert len(found) == NAMED and found[0][0]["id"] == 1
    ids = [each["id"] for each, _ in found]
    assert ids == sorted(ids) and 8 in ids


def test_another_basis_is_another_lineage():
    # that of the last score is taken when none is given
    assert "of 6 tries" in lineage(SEARCH).alt
    assert "of 1 try " in lineage(SEARCH, "another machine").alt


def test_without_a_score_it_says_what_to_do():
    with pytest.raises(ValueError, match="needs a try with a score; .* run bench or leaderboard"):
        lineage(log(tried(1, verdict="wrong")))


def test_our_own_way_is_drawn_from_the_data():
    for name in history.FILES:
        search = history.load(name)
        first, best = search.record()[0], search.record()[-1]
        assert first["candidate"] == "torch"
        told = f"from {duration(first['geomean_us'])} to {duration(best['geomean_us'])}"
        assert told in lineage(search).alt


@pytest.mark.parametrize("suffix, begins", ((".svg", b"<svg"), (".png", b"\x89PNG")))
def test_it_is_a_file(tmp_path, suffix, begins):
    path = tmp_path / f"lineage{suffix}"
    save(SEARCH, path)
    assert path.read_bytes().startswith(begins)
    with pytest.raises(ValueError, match="must be an .svg or .png file"):
        save(SEARCH, tmp_path / "lineage.jpg")
