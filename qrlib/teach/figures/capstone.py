"""The figures of the last chapter: what a contract says of attempts, and you on the ladder."""

import math
import textwrap
from functools import cache

from qrlib.bench.results import words
from qrlib.teach.attempts import EDITS, attempt
from qrlib.teach.contract import CLAUSES, YOURS, through
from qrlib.teach.figures.ladder import duration
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure

ASKS = {
    "example": "the 3 \u00d7 3 example",
    "families": "the families of the task",
    "sizes": "any m and n",
    "lapack": "as good as LAPACK",
    "scale": "any size of number",
    "alone": "no matrix sees another",
    "views": "any strides",
    "fresh": "every call computes anew",
    "manners": "A is only read",
}


@cache
def report(edits):
    """What the contract says of an attempt."""
    return through(attempt(edits))


def attempt_words(edits):
    """What an edit has brought."""
    now = report(edits).faults
    kept = [name for name, fault in now.items() if not fault]
    before = report(edits - 1).faults if edits else dict.fromkeys(now, "not tried")
    won = [name for name in kept if before[name]]
    broken = [name for name in now if now[name]]
    said = f"Version {edits}, {EDITS[edits]}: {len(kept)} of {len(now)} clauses. "
    said += f"New: {', '.join(won)}. " if won else "Nothing new. "
    return said + (f"Refused by {', '.join(broken)}." if broken else "It may climb.")


def attempt_frame(edits):
    """Every clause, and whether the attempt keeps it."""
    it = report(edits)
    row, top = 27, 40
    fig = Figure(
        440, top + row * len(CLAUSES) + 8, f"A list of clauses. {attempt_words(edits)}",
        max_width=520,
    )  # fmt: skip
    fig.text(10, 16, f"version {edits}: {EDITS[edits]}", size=14, bold=True, anchor="start")
    for k, name in enumerate(CLAUSES):
        y, broken = top + row * k, bool(it.faults[name])
        won = not broken and (not edits or report(edits - 1).faults[name])
        color = "orange" if broken else "blue"
        look = {"color": color, "width": 3 if won else 1.2, "fill": color}
        fig.rect(10, y, 420, row - 4, r=4, **look, fill_opacity=0.05 if broken else 0.16,
                 dash=(4, 3) if broken else None)  # fmt: skip
        fig.text(40, y + 12, "FAIL" if broken else "ok", size=13, bold=broken)
        fig.text(74, y + 12, name, size=13, bold=True, anchor="start")
        fig.text(160, y + 12, ASKS[name], size=13, anchor="start")
        if won:
            fig.text(422, y + 12, "new", size=13, anchor="end", color="blue")
    return fig


def attempts_stepper():
    """From a textbook to a geqrf, edit by edit."""
    frames = [Frame(attempt_frame(k), attempt_words(k), f"version {k}") for k in range(len(EDITS))]
    return Stepper(frames, "Version", "What the contract says of a geqrf, edit by edit.", lines=4)


def rungs(results):
    """Every rung of one case that was measured together, and yours among them.

    Args:
        results: of contract.climb.
    """
    rows = results.rows
    if len({words(each) for each in rows}) != 1:
        raise ValueError("rungs draws one case; climb one, or give Results with the rows of one")
    case, where = words(rows[0]), results.where()
    told = {
        each["stage"]: duration(each["median_us"])
        if each["ok"]
        else f"no time: {each['faults'][0]}"
        for each in rows
    }
    us = [each["median_us"] for each in rows if each["ok"]]
    if not us:
        raise ValueError(f"no row has a time: {told}")
    low, high = math.floor(math.log10(min(us) / 1.5)), math.ceil(math.log10(max(us)))
    row, left, right, top = 44, 10, 430, 34
    foot = textwrap.wrap(where, 62)
    bottom = top + row * len(rows)
    fig = Figure(
        440,
        bottom + 30 + 14 * len(foot),
        f"Bars on a logarithmic axis, {case}, {where}. "
        + "; ".join(f"{name}: {said}" for name, said in told.items())
        + ".",
    )

    def x(t):
        return left + (right - left) * (math.log10(t) - low) / (high - low)

    fig.text(left, 14, f"time for a batch: {case}", size=13, anchor="start")
    for decade in range(low, high + 1):
        fig.line(x(10**decade), top, x(10**decade), bottom, color="faint", width=1)
        anchor = {low: "start", high: "end"}.get(decade, "middle")
        fig.text(x(10**decade), bottom + 12, duration(10**decade), size=12, color="muted",
                 anchor=anchor)  # fmt: skip
    for k, each in enumerate(rows):
        y, mine = top + row * k, each["stage"] == YOURS
        color = "orange" if mine else "muted" if each["stage"] == "torch" else "blue"
        name = {"torch": "torch.geqrf", YOURS: "\u25b6 yours"}.get(each["stage"], each["stage"])
        said = told[each["stage"]]
        fig.text(left + 4, y + 12, name, size=13, bold=mine, anchor="start", halo=True)
        fig.text(right, y + 12, said if len(said) < 44 else f"{said[:42]}\u2026", size=13,
                 bold=mine, anchor="end", halo=True)  # fmt: skip
        if each["ok"]:
            fig.rect(left, y + 23, x(each["median_us"]) - left, 12, color=color, width=1.5,
                     fill=color, fill_opacity=0.6 if mine else 0.3)  # fmt: skip
    for k, line in enumerate(foot):
        fig.text(left, bottom + 32 + 14 * k, line, size=12, anchor="start", color="muted")
    return fig
