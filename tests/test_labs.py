"""The labs: a reader starts from the skeletons that are tested, and a page shows no dead widget."""

import json
from pathlib import Path

import pytest

from qrlib.teach import exercises
from qrlib.teach.exercises.core import CHAPTERS

LABS = Path(__file__).resolve().parent.parent / "notebooks"


def cells(name, kind="code"):
    lab = json.loads((LABS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in lab["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("chapter, name", CHAPTERS.items(), ids=CHAPTERS.values())
def test_a_lab_has_the_skeleton_of_every_exercise(chapter, name):
    sources = ["".join(cell["source"]) for cell in cells(name)]
    for exercise in exercises.exercises(chapter):
        assert exercises.skeleton(exercise.id) in sources, exercise.id
        assert f'ex.show("{exercise.id}")' in sources, exercise.id


@pytest.mark.parametrize("name", CHAPTERS.values())
def test_a_widget_needs_a_kernel_so_a_page_shows_none(name):
    live = [c for c in cells(name) if "interact(" in "".join(c["source"])]
    assert live, "a lab is played with"
    for cell in live:
        assert "remove-output" in cell["metadata"].get("tags", [])
