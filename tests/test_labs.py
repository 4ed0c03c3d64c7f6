"""The labs: they install what they need, and say what there is; a reader starts from the skeletons
that are tested; a page shows no dead widget.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml

from qrlib import doctor
from qrlib.teach import exercises, labs
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


# the first cell


@pytest.mark.parametrize("name", CHAPTERS.values())
def test_the_first_cell_is_the_same_in_every_lab_and_has_the_address_of_the_book(name):
    wanted = labs.cell(labs.address((ROOT / "_config.yml").read_text("utf-8")))
    first = cells(name)[0]
    said = "run python -m qrlib.teach.labs, which writes the first cell of every lab"
    assert "".join(first["source"]) == wanted, said
    # on a page, where nothing is installed, it is what it found that counts
    assert first["id"] == labs.ID and first["metadata"]["tags"] == ["hide-input"]


ADDRESS = "https://github.com/OWNER/NAME"
PACKAGES = ("qrlib", "torch", "triton", "ipywidgets", "matplotlib")


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """run(address, there, project): what the cell starts, on a machine that has the packages
    `there`, in a folder beside a pyproject.toml of the project (None: beside none)."""
    folder = tmp_path / "somewhere" / "notebooks"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(address, there, project=None, folders=()):
        started = []

        def find_spec(name):
            assert name in PACKAGES
            return SimpleNamespace(origin="x.py") if name in there else folders.get(name)

        def record(command, *, check=False, capture_output=False, text=False):
            started.append(command[1:])
            assert command[0] == sys.executable
            # what pip says is seen, and that it failed stops the cell; the doctor's word is printed
            assert check != capture_output and text == capture_output
            return SimpleNamespace(stdout="what there is", stderr="")

        folders = {each: SimpleNamespace(origin=None) for each in folders}
        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(subprocess, "run", record)
        if project:
            (folder.parent / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
        exec(labs.cell(address), {})
        return started

    run.clone = folder.parent.resolve()
    return run


PIP = ["-m", "pip", "install", "-q"]
DOCTOR = ["-m", "qrlib.doctor"]
NEEDS = {
    "torch": "torch>=2.9",
    "triton": "triton>=3.6,<3.10; sys_platform == 'linux'",
    "ipywidgets": "ipywidgets>=8.1",
    "matplotlib": "matplotlib>=3.9",
}


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_where_the_package_is_nothing_is_installed(run, capsys, address):
    for there in (PACKAGES, ("qrlib",)):
        assert run(address, there, "qrlib") == [DOCTOR]
        assert capsys.readouterr().out == "what there is\n"


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_from_the_clone_that_a_lab_lies_in(run, address):
    pip, after = run(address, ("torch", "triton"), "qrlib")
    more = [NEEDS["ipywidgets"], NEEDS["matplotlib"]]
    assert pip == [*PIP, "-e", str(run.clone), *more] and after == DOCTOR
    # seen by the Python that runs, too
    assert str(run.clone) in sys.path


def test_from_the_address_where_there_is_no_clone(run):
    assert run(ADDRESS, ()) == [[*PIP, f"git+{ADDRESS}", *NEEDS.values()], DOCTOR]


def test_a_torch_that_is_there_stays_as_it_is(run):
    pip, _ = run(ADDRESS, ("torch", "matplotlib", "ipywidgets"))
    assert pip == [*PIP, f"git+{ADDRESS}", NEEDS["triton"]]


def test_another_project_is_no_clone(run):
    pip, _ = run(ADDRESS, PACKAGES[1:], "another")
    assert pip == [*PIP, f"git+{ADDRESS}"]


def test_a_folder_that_has_the_name_of_the_package_is_not_the_package(run):
    pip, _ = run(ADDRESS, PACKAGES[1:], folders=("qrlib",))
    assert pip == [*PIP, f"git+{ADDRESS}"]


@pytest.mark.parametrize("project", [None, "another"])
def test_with_neither_it_says_what_was_expected_and_what_to_do(run, project):
    with pytest.raises(
        RuntimeError, match="a clone .* or from the address .* clone the repository"
    ):
        run("", ("torch",), project)


def test_a_pip_that_fails_stops_the_cell(run, monkeypatch):
    def fails(command, **options):
        raise subprocess.CalledProcessError(1, command)

    assert run("", PACKAGES)
    source = labs.cell(ADDRESS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(subprocess.CalledProcessError):
        exec(source, {})


def test_a_doctor_that_cannot_speak_is_heard(run, monkeypatch, capsys):
    assert run("", PACKAGES)
    capsys.readouterr()
    silent = SimpleNamespace(stdout="", stderr="Traceback: why")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: silent)
    exec(labs.cell(""), {})
    assert "Traceback: why" in capsys.readouterr().out


def test_what_a_lab_needs_is_what_the_project_says():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    book = extras["optional-dependencies"]["book"]
    assert {NEEDS["torch"], NEEDS["ipywidgets"], NEEDS["matplotlib"]} <= set(book)
    assert NEEDS["triton"].partition(";")[0] in doctor.TRITON_PIP


def test_the_command_writes_the_address_into_every_lab(monkeypatch, tmp_path):
    (tmp_path / "notebooks").mkdir()
    for path in LABS.glob("*.ipynb"):
        (tmp_path / "notebooks" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "_config.yml").write_text(f"repository:\n  url: {ADDRESS}\n")
    monkeypatch.setattr(labs, "ROOT", tmp_path)
    labs.main()
    for path in LABS.glob("*.ipynb"):
        old = path.read_text("utf-8")
        new = (tmp_path / "notebooks" / path.name).read_text("utf-8")
        changed = [pair for pair in zip(old.splitlines(), new.splitlines()) if pair[0] != pair[1]]
        assert len(old.splitlines()) == len(new.splitlines()) and len(changed) == 1
        assert f"git+{ADDRESS}" in changed[0][1]
        assert new == nbformat.writes(nbformat.reads(new, as_version=4)) + "\n"


@pytest.mark.parametrize("url", ["OWNER/NAME", "http://github.com/OWNER/NAME", 'https://a"b', 5])
def test_an_address_that_is_none_is_told(url):
    with pytest.raises(ValueError, match="must be empty or an address such as https://"):
        labs.address(yaml.safe_dump({"repository": {"url": url}}))


def test_a_lab_without_the_cell_is_told():
    lab = {"cells": [{"cell_type": "code", "id": "a", "source": []}]}
    with pytest.raises(ValueError, match="must have the id 'install'; got 'a'"):
        labs.with_cell(lab, "")
