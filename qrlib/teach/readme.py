"""`python -m qrlib.teach.readme`: what README.md shows of the package, written from the package.

The table of stages stands between two markers; the picture is book/_static/walk.svg.
"""

import pathlib
import re

from qrlib.stages import STAGES
from qrlib.teach.figures import front
from qrlib.teach.figures.ladder import idea

ROOT = pathlib.Path(__file__).parents[2]
README, PICTURE = ROOT / "README.md", ROOT / "book" / "_static" / "walk.svg"
BEGIN, END = "<!-- stages: written by python -m qrlib.teach.readme -->", "<!-- end of stages -->"


def table():
    """The ladder as a markdown table."""
    rows = ["| stage | what is new | method |", "| --- | --- | --- |"]
    for name in STAGES:
        new, method = idea(name)
        rows.append(f"| [`{name}`](qrlib/stages/{name}.py) | {new} | {method} |")
    return "\n".join(rows)


def with_table(text):
    """The README's text with its table as the package has it now."""
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?=\n{re.escape(END)})", re.DOTALL)
    if not between.search(text):
        raise ValueError(f"README.md must have the lines {BEGIN!r} and {END!r}; add them")
    return between.sub(lambda _: table(), text)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    front.walk().save(PICTURE)
