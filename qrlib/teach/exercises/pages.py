"""The pages of all exercises and of all solutions, put together from the chapters' own text.

    in_place(text, book)      # the text of a page, its marks replaced

Nothing is written twice: a chapter has its exercises, folded solutions and hints, and when the book
is built a page gets what stands there, without what a chapter computes in between.
"""

import re
from pathlib import Path
from typing import NamedTuple

from qrlib.teach.exercises.core import CHAPTERS

# a line of a page, and which part of every exercise belongs in its place
MARKS = {"<!-- all exercises -->": "task", "<!-- all solutions -->": "solution"}

_GATED = re.compile(
    r"^```\{(exercise|solution)-start\}[ ]*(?P<head>[^\n]*)\n(?P<options>(?::[^\n]*\n)*)```\n"
    r"(?P<body>.*?)^```\{\1-end\}\n```$",
    re.DOTALL | re.MULTILINE,
)
_CELL = re.compile(r"^```\{code-cell\}.*?^```\n", re.DOTALL | re.MULTILINE)
_HINTS = re.compile(r"^```\{code-cell\}[^`]*\nHints\([^`]*^```\n", re.MULTILINE)
_CHECKED = re.compile(r'ex\.check\("([^"]+)"')


class Written(NamedTuple):
    """An exercise as its chapter has it.

    id: by which it is checked. label: of the exercise in the book. title: with its kind. task,
    solution: Markdown, with a link where the chapter computes something.
    """

    id: str
    label: str
    title: str
    task: str
    solution: str


def written(book, name):
    """[Written] of the chapter in book/name.md.

    Raises:
        ValueError: an exercise without a solution, or a solution without an exercise.
    """
    text = (Path(book) / f"{name}.md").read_text("utf-8")
    tasks, solutions = {}, {}
    for found in _GATED.finditer(text):
        # a link inside the chapter leads there from another page, too
        body = re.sub(r"\]\(#", f"]({name}.md#", found["body"])
        if found[1] == "exercise":
            label = re.search(r"^:label: (\S+)$", found["options"], re.MULTILINE)[1]
            tasks[label] = (found["head"], body)
        else:
            solutions[found["head"]] = body
    if list(tasks) != list(solutions):
        raise ValueError(
            f"every exercise of {name}.md must be followed by its solution; got exercises "
            f"{', '.join(tasks)} and solutions {', '.join(solutions)}"
        )
    return [
        Written(
            _CHECKED.search(task)[1],
            label,
            title,
            _HINTS.sub("", task).strip(),
            _CELL.sub(
                f"*A cell prints this, in {{ref}}`the chapter <{label}>`.*\n", solutions[label]
            ).strip(),
        )
        for label, (title, task) in tasks.items()
    ]


def title_of(book, name):
    """The title of a chapter."""
    text = (Path(book) / f"{name}.md").read_text("utf-8")
    return re.search(r"^# (.+)$", text, re.MULTILINE)[1]


def together(book, part):
    """Markdown of that part of all exercises, chapter by chapter, with links there and back."""
    own, other, there = {
        "task": ("all", "solved", "a solution"),
        "solution": ("solved", "all", "the exercise"),
    }[part]
    lines = []
    for number, name in CHAPTERS.items():
        lines += [
            f"({own}-{name})=",
            f"## {number}. {title_of(book, name)}",
            f"[The chapter]({name}.md), [its lab](../notebooks/{name}.ipynb)",
        ]
        for k, each in enumerate(written(book, name), 1):
            chapter = "hints, in the chapter" if part == "task" else "in the chapter"
            lines += [
                f"({own}-{each.label})=",
                f"### {number}.{k} {each.title}",
                getattr(each, part),
                f"{{ref}}`{chapter} <{each.label}>`, {{ref}}`{there} <{other}-{each.label}>`",
            ]
    return "\n\n".join(lines)


def in_place(text, book):
    """The text of a page with every line of MARKS replaced by what it stands for."""
    for mark, part in MARKS.items():
        if mark in text.splitlines():
            text = text.replace(mark, together(book, part))
    return text
