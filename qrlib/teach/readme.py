"""`python -m qrlib.teach.readme`: what README.md shows of the package, written from the package.

The table of stages stands between two markers; the pictures are in book/_static.
"""

import pathlib
import re

from qrlib.stages import STAGES
from qrlib.teach.exercises.core import NUMBERS
from qrlib.teach.figures import front, ladder

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
BEGIN, END = "<!-- stages: written by python -m qrlib.teach.readme -->", "<!-- end of stages -->"


def table():
    """The ladder as a markdown table."""
    rows = ["| stage | chapter | what is new | method |", "| --- | --- | --- | --- |"]
    for name in STAGES:
        new, method = ladder.idea(name)
        chapter = f"[{NUMBERS[name]}](book/{name}.md), [lab](notebooks/{name}.ipynb)"
        rows.append(f"| [`{name}`](qrlib/stages/{name}.py) | {chapter} | {new} | {method} |")
    return "\n".join(rows)


def with_table(text):
    """The README's text with its table as the package has it now."""
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?=\n{re.escape(END)})", re.DOTALL)
    if not between.search(text):
        raise ValueError(f"README.md must have the lines {BEGIN!r} and {END!r}; add them")
    return between.sub(lambda _: table(), text)


def pictures():
    """{file: figure} of what the README shows."""
    static = ROOT / "book" / "_static"
    return {static / "walk.svg": front.walk(), static / "ladder.svg": ladder.times(STAGES[-1])}


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    for file, figure in pictures().items():
        figure.save(file)
