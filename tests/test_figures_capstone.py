"""The figures of the last chapter: they say what the contract and the clock said."""

import pytest

torch = pytest.importorskip("torch")

from drawings import (  # noqa: E402
    EveryFigure,
    described_and_self_contained,
    texts,
    words_inside,
)

from qrlib.bench.results import Results  # noqa: E402
from qrlib.teach.attempts import EDITS, attempt  # noqa: E402
from qrlib.teach.contract import CLAUSES, climb, through  # noqa: E402
from qrlib.teach.figures import capstone as figures  # noqa: E402

DRAWN = {f"version {k}": (figures.attempt_frame, k) for k in range(len(EDITS))}
STEPPERS = (figures.attempts_stepper,)


class TestFigures(EveryFigure):
    """DRAWN and STEPPERS."""


def test_a_frame_says_what_the_contract_says(drawn):
    for k in range(len(EDITS)):
        found = through(attempt(k)).faults
        marks = [each for each in texts(drawn[f"version {k}"]) if each in ("ok", "FAIL")]
        assert marks == ["FAIL" if found[name] else "ok" for name in CLAUSES]
        kept = sum(not fault for fault in found.values())
        assert f"{kept} of {len(CLAUSES)} clauses" in figures.attempt_words(k)


def test_every_clause_is_told_in_the_words_of_the_chapter():
    assert list(figures.ASKS) == list(CLAUSES)


@pytest.fixture(scope="module")
def climbed():
    return climb(attempt(4), (2, 24, 1, "dense"), runs=3)


def test_rungs_are_the_rows_of_the_measurement(climbed):
    figure = figures.rungs(climbed)
    described_and_self_contained(figure)
    words_inside(figure)
    said = texts(figure)
    for row in climbed.rows:
        assert figures.duration(row["median_us"]) in said
    assert "\u25b6 yours" in said and "torch.geqrf" in said
    assert climbed.where() in figure.alt


def test_a_rung_without_a_time_says_why(climbed):
    rows = [dict(row) for row in climbed.rows]
    rows[-1] |= {"ok": False, "median_us": None, "faults": ["factor 1e+05, the limit is 15"]}
    figure = figures.rungs(Results(climbed.provenance, climbed.protocol, rows))
    words_inside(figure)
    assert "yours: no time: factor 1e+05, the limit is 15" in figure.alt
    assert any(each.startswith("no time: factor") for each in texts(figure))
    for row in rows:
        row |= {"ok": False, "faults": ["all wrong"]}
    with pytest.raises(ValueError, match="no row has a time"):
        figures.rungs(Results(climbed.provenance, climbed.protocol, rows))


def test_two_cases_are_not_one_ladder(climbed):
    rows = [*climbed.rows, climbed.rows[0] | {"n": 25}]
    with pytest.raises(ValueError, match="rungs draws one case"):
        figures.rungs(Results(climbed.provenance, climbed.protocol, rows))
