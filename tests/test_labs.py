"""The labs: a reader starts from the skeletons that are tested, and a page shows no dead widget."""

import json
import re
from pathlib import Path

import pytest
import yaml

from qrlib.teach import exercises
from qrlib.teach.exercises.core import CHAPTERS

ROOT = Path(__file__).resolve().parent.parent
LABS = ROOT / "notebooks"


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


def test_chapters_are_numbered_as_the_book_numbers_them():
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    chapters = [each["file"] for part in parts if part.get("numbered") for each in part["chapters"]]
    assert chapters == [f"book/{name}" for name in CHAPTERS.values()]
    assert list(CHAPTERS) == [str(k + 1) for k in range(len(CHAPTERS))]


@pytest.mark.parametrize("chapter, name", CHAPTERS.items(), ids=CHAPTERS.values())
def test_a_number_that_a_chapter_says_of_itself_is_its_own(chapter, name):
    page = (ROOT / "book" / f"{name}.md").read_text(encoding="utf-8")
    title = "".join(cells(name, "markdown")[0]["source"])
    assert title.startswith(f"# Lab {chapter}: ")
    linked = re.findall(rf"\[(?:Lab (\d+)|[^\]]*)\]\(\.\./notebooks/{name}\.ipynb\)", page)
    assert linked and set(linked) <= {"", chapter}
    # an exercise is called by the number of its chapter, or by its name
    asked = re.findall(r'(?:Hints|ex\.check)\("(\w+)\.\d"', page)
    assert asked and set(asked) <= {chapter, name}


def test_an_exercise_goes_by_the_number_and_by_the_name_of_its_chapter():
    for chapter, name in CHAPTERS.items():
        for exercise in exercises.exercises(chapter):
            k = exercise.id.partition(".")[2]
            for id in (f"{chapter}.{k}", f"{name}.{k}"):
                assert exercises.skeleton(id) == exercises.skeleton(exercise.id)
            said = str(exercises.check(exercise.id, ...))
            assert said.startswith(f"Exercise {chapter}.{k}, {exercise.title}")
