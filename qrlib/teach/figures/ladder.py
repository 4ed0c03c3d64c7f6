"""The ladder of stages, drawn from STAGES and from what each stage says of itself.

`ladder` is the ladder itself, `times` how long each rung takes, where that has been measured.
"""

import ast
import math
import pathlib
import re
import textwrap
from importlib.util import find_spec

from qrlib.bench import results
from qrlib.stages import STAGES
from qrlib.teach.svg import Figure

# written by python -m qrlib.bench --json
DATA = pathlib.Path(__file__).parents[3] / "book" / "data" / "ladder.json"
# the last rungs on all cases of the task
CASES = DATA.with_name("cases.json")


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


def times(lit, data=DATA, *, precision="fp32"):
    """How long torch.geqrf takes, and each stage after it; the ladder itself where no data is.

    Args:
        lit: one of STAGES, the reader's. data: a file written by `python -m qrlib.bench --json`.
        precision: of the rows that are drawn.
    """
    if not pathlib.Path(data).exists():
        return ladder(lit)
    if lit not in STAGES:
        raise ValueError(f"lit must be one of {', '.join(STAGES)}; got {lit!r}")
    measured = results.load(data)
    found = {
        (each["stage"], each["mode"]): each
        for each in measured.averages()
        # torch.geqrf has one precision
        if each["precision"] == ("fp32" if each["stage"] == "torch" else precision)
        and each["median_us"]
    }
    rungs = [("torch", "torch.geqrf"), *((name, name) for name in STAGES)]
    cases = list(dict.fromkeys(map(results.words, measured.rows)))
    of = cases[0] if len(cases) == 1 else f"geometric mean of {len(cases)} cases"
    foot = textwrap.wrap(measured.where(), 62)
    us = [each["median_us"] for each in found.values()]
    if not any(stage in STAGES for stage, _ in found):
        raise ValueError(f"{data} has no stage in precision {precision}; measure again")
    # whole decades around all bars
    low = math.ceil(math.log10(min(us))) - 1
    high = math.floor(math.log10(max(us))) + 1
    row, width, left, right, top = 42, 440, 8, 420, 34
    bottom = top + row * len(rungs)
    fig = Figure(
        width,
        bottom + 34 + 14 * len(foot),
        f"Bars on a logarithmic axis, {of}, {measured.where()}. "
        + "; ".join(f"{name}: {_told(found, stage)}" for stage, name in rungs)
        + f". You are at {lit}.",
    )

    def x(t):
        return left + (right - left) * (math.log10(t) - low) / (high - low)

    fig.text(left, 14, f"time for a batch: {of}", size=13, anchor="start")
    for decade in range(low, high + 1):
        fig.line(x(10**decade), top, x(10**decade), bottom, color="faint", width=1)
        anchor = "start" if decade == low else "middle"
        look = {"size": 12, "color": "muted", "anchor": anchor}
        fig.text(x(10**decade), bottom + 12, duration(10**decade), **look)
    for k, (stage, name) in enumerate(rungs):
        y, here = top + k * row, stage == lit
        color = "orange" if here else "muted" if stage == "torch" else "blue"
        look = {"size": 13, "bold": here, "halo": True}
        fig.text(left + 4, y + 11, f"\u25b6 {name}" if here else name, anchor="start", **look)
        fig.text(width - 4, y + 11, _told(found, stage), anchor="end", **look)
        # a replay is the hollow bar under the other
        for mode, high_y, fill in (("eager", y + 21, color), ("replay", y + 31, "paper")):
            if each := found.get((stage, mode)):
                box = left, high_y, x(each["median_us"]) - left, 8
                fig.rect(*box, color=color, width=1.5, fill=fill)
    for k, line in enumerate(foot):
        fig.text(left, bottom + 34 + 14 * k, line, size=12, anchor="start", color="muted")
    return fig


def age(data=DATA, cases=CASES):
    """Of which commit the chart of `times` is, and that of all cases, in a sentence or two."""
    chart, table = (results.load(path) for path in (data, cases))
    timed = {row["stage"] for row in chart.rows}
    later = [name for name in STAGES[1:] if name not in timed]
    absent = f" {' and '.join(later)} came later and have no bar." if later else ""
    of, at = (str(each.provenance["commit"])[:10] for each in (chart, table))
    if of == at:
        return f"The chart and the tables of all cases are of commit {of}.{absent}"
    return (
        f"The chart was measured at commit {of}, before the tables of all cases, which are of "
        f"{at}.{absent} Where a stage has two times, that of the table is nearer to the code as it "
        "is."
    )


def _told(found, stage):
    """The times of a stage in words."""
    said = []
    for mode, word in (("eager", ""), ("replay", "replayed ")):
        if each := found.get((stage, mode)):
            said.append(word + duration(each["median_us"]))
            if each["speedup"] and stage != "torch":
                said[-1] += f", {results.short(each['speedup'], 3)}x"
    return "; ".join(said) or "not measured"


def duration(us):
    """Microseconds as a reader says them: 18.4 \u00b5s, 4.87 ms, 1.2 s."""
    # 999.9 is said as 1000
    k = min(max(math.floor(math.log10(us * 1.0005) / 3), 0), 2)
    unit = ("\u00b5s", "ms", "s")[k]
    return f"{us / 1000**k:.3g} {unit}"
