"""The pages of all exercises and of all solutions: none is missing, all is the chapters' own."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from qrlib.teach import exercises as ex
from qrlib.teach.exercises.core import CHAPTERS
from qrlib.teach.exercises.pages import MARKS, in_place, title_of, written

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
PAGES = {"exercises": "task", "solutions": "solution"}


@pytest.fixture(scope="module")
def made():
    return {name: in_place((BOOK / f"{name}.md").read_text("utf-8"), BOOK) for name in PAGES}


def sections(text):
    """{heading: text} of the third level."""
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("number", "name"), CHAPTERS.items(), ids=CHAPTERS.values())
def test_a_chapter_has_the_exercises_that_its_checkers_know(number, name):
    found, known = written(BOOK, name), ex.exercises(number)
    assert [each.id.partition(".")[2] for each in found] == [e.id.partition(".")[2] for e in known]
    for each, exercise in zip(found, known, strict=True):
        assert each.id in (exercise.id, f"{number}.{exercise.id.partition('.')[2]}")
        kind, _, title = each.title.partition(": ")
        assert kind.lower() == exercise.kind and title


@pytest.mark.parametrize("page", PAGES)
def test_every_exercise_is_on_the_page_with_links(made, page):
    found = sections(made[page])
    every = [
        (f"{number}.{k} {each.title}", each)
        for number, name in CHAPTERS.items()
        for k, each in enumerate(written(BOOK, name), 1)
    ]
    assert list(found) == [heading for heading, _ in every]
    for heading, each in every:
        text = getattr(each, PAGES[page])
        assert text in found[heading] and len(re.sub(r"\W", "", text)) > 40, heading
        assert f"<{each.label}>`" in found[heading]
        assert f"<{'solved' if page == 'exercises' else 'all'}-{each.label}>`" in found[heading]


def test_links_between_the_two_pages_have_their_ends(made):
    ends = set(re.findall(r"^\(([\w-]+)\)=$", "\n".join(made.values()), re.MULTILINE))
    asked = set(re.findall(r"<((?:all|solved)-[\w-]+)>`", "\n".join(made.values())))
    assert asked and asked <= ends


def test_a_page_runs_nothing_and_keeps_no_mark(made):
    for text in made.values():
        assert "{code-cell}" not in text and "Hints(" not in text
        assert not any(mark in text for mark in MARKS)
        assert "-start}" not in text and "-end}" not in text
        # each directive that is opened is closed
        assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0


def test_a_solution_has_the_code_that_is_tested(made):
    found = sections(made["solutions"])
    for number, name in CHAPTERS.items():
        for exercise, each in zip(ex.exercises(number), written(BOOK, name), strict=True):
            k = exercise.id.partition(".")[2]
            assert exercise.solution.__name__ in found[f"{number}.{k} {each.title}"], exercise.id


@pytest.mark.parametrize("name", CHAPTERS.values())
def test_a_chapter_links_to_both_pages_and_they_to_it(made, name):
    chapter = (BOOK / f"{name}.md").read_text("utf-8")
    for page in PAGES:
        assert f"]({page}.md)" in chapter
        heading = f"## {list(CHAPTERS.values()).index(name) + 1}. {title_of(BOOK, name)}"
        assert heading in made[page].splitlines() and f"]({name}.md)" in made[page]


def test_the_book_builds_both_pages():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    (reference,) = [p["chapters"] for p in toc["parts"] if p["caption"] == "Reference"]
    assert {f"book/{page}" for page in PAGES} <= {each["file"] for each in reference}
    sphinx = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["sphinx"]
    assert sphinx["local_extensions"]["exercise_pages"] == "book/_ext"
    assert "exercise_pages" in sphinx["config"]["extensions"]


def test_the_extension_fills_marked_pages_only(made, monkeypatch):
    monkeypatch.syspath_prepend(str(BOOK / "_ext"))
    import exercise_pages

    seen = []
    env = SimpleNamespace(
        doc2path=lambda name: str(ROOT / f"{name}.md"), note_dependency=seen.append
    )
    source = [(BOOK / "exercises.md").read_text("utf-8")]
    exercise_pages.fill(SimpleNamespace(env=env), "book/exercises", source)
    assert source == [made["exercises"]] and len(seen) == len(CHAPTERS)
    other = ["# Another page\n"]
    exercise_pages.fill(SimpleNamespace(env=env), "book/other", other)
    assert other == ["# Another page\n"] and len(seen) == len(CHAPTERS)


CHAPTER = """# A title

```{exercise-start} Predict: one
:label: ex-x-1
```

See [above](#here). Check with `ex.check("x.1", 1)`.

```{code-cell} python
:tags: [remove-input]

Hints("x.1")
```

```{exercise-end}
```

```{solution-start} ex-x-1
:class: dropdown
```

It is one:

```{code-cell} python
print(1)
```

```{solution-end}
```
"""


def test_what_is_taken_from_a_chapter(tmp_path):
    (tmp_path / "x.md").write_text(CHAPTER, "utf-8")
    (each,) = written(tmp_path, "x")
    assert each[:3] == ("x.1", "ex-x-1", "Predict: one") and title_of(tmp_path, "x") == "A title"
    assert each.task == 'See [above](x.md#here). Check with `ex.check("x.1", 1)`.'
    assert each.solution.startswith("It is one:")
    assert "{ref}`the chapter <ex-x-1>`" in each.solution and "print(1)" not in each.solution


def test_an_exercise_without_a_solution_is_an_error(tmp_path):
    (tmp_path / "x.md").write_text(CHAPTER.replace("{solution-start} ex-x-1", "{solution-start} y"))
    with pytest.raises(ValueError, match=r"got exercises ex-x-1 and solutions y"):
        written(tmp_path, "x")
