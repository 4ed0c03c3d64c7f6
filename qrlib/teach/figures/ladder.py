"""The ladder of stages, drawn from STAGES and from what each stage says of itself."""

import ast
import re
import textwrap
from importlib.util import find_spec

from qrlib.stages import STAGES
from qrlib.teach.svg import Figure


def idea(name):
    """(idea, method) of a stage, from the first line of its docstring, `Stage N, idea. Method.`

    The file is read, not imported: a stage whose backend is missing here has an idea all the same.
    """
    with open(find_spec(f"qrlib.stages.{name}").origin, encoding="utf-8") as file:
        first = ast.get_docstring(ast.parse(file.read())).split("\n")[0]
    match = re.match(r"Stage \d+, (.+?)\. (.+)\.$", first)
    if not match:
        raise ValueError(
            f"the docstring of stage {name} must begin with `Stage N, idea. Method.`; got {first!r}"
        )
    return match.groups()


def ladder(lit):
    """All stages as the rungs of a ladder, the first at the foot; the rung `lit` is the reader's.

    Args:
        lit: one of STAGES.
    """
    if lit not in STAGES:
        raise ValueError(f"lit must be one of {', '.join(STAGES)}; got {lit!r}")
    ideas = {name: idea(name) for name in STAGES}
    rung, width = 68, 440
    fig = Figure(
        width,
        rung * len(STAGES) + 8,
        "The ladder of stages, from the foot up: "
        + "; ".join(f"{name}, {ideas[name][0]}" for name in STAGES)
        + f". You are at {lit}.",
    )
    for x in (22, width - 22):
        fig.line(x, 4, x, rung * len(STAGES) + 4, color="muted", width=4)
    for k, name in enumerate(reversed(STAGES)):
        y = 4 + k * rung + rung / 2
        here = name == lit
        look = {"color": "orange", "width": 3} if here else {"color": "muted", "width": 1.5}
        fig.rect(10, y - 29, width - 20, 58, r=6, fill="paper", **look)
        if here:
            fig.rect(10, y - 29, width - 20, 58, r=6, fill="orange", fill_opacity=0.14, **look)
        pointer = "\u25b6 " if here else ""
        fig.text(24, y - 16, pointer + name, size=13, anchor="start", bold=True)
        if here:
            fig.text(width - 24, y - 16, "you are here", size=13, anchor="end", color="orange")
        for row, words in enumerate(textwrap.wrap(ideas[name][0], 56)[:2]):
            ink = "ink" if here else "muted"
            fig.text(24, y + 2 + 15 * row, words, size=13, anchor="start", color=ink)
    return fig
