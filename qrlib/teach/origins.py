"""Where every stored number is from: a row of badges and facts for each file of book/data."""

import json
import pathlib
from html import escape
from typing import NamedTuple

from qrlib.teach.figures.ladder import DATA as LADDER

DATA = LADDER.parent


class Origin(NamedTuple):
    """Of numbers that one machine or one author gave: the file, what they are, and from where.

    kind: "measured" or "published". on: a device, or nothing. told: commit, software, command, as
    far as they are known.
    """

    file: str
    kind: str
    on: str
    what: str
    date: str
    told: str

    @property
    def badge(self):
        """What the badge says: measured on H200."""
        return (
            f"{self.kind} {'on' if self.kind == 'measured' else 'for'} {self.on}"
            if self.on
            else self.kind
        )


def origins(folder=DATA):
    """[Origin] of every JSON file in a folder.

    Raises:
        ValueError: a file that does not say where its numbers are from.
    """
    return [each for path in sorted(pathlib.Path(folder).glob("*.json")) for each in origin(path)]


def origin(path):
    """[Origin] of one file, one for each machine."""
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if found := content.get("provenance"):
        software = f"torch {found['torch']}, Triton {found['triton']}, driver {found['driver']}"
        commit = f"commit {found['commit']}{', changed since' if found['dirty'] else ''}"
        on = (found["gpu"] or found["cpu"]).removeprefix("NVIDIA ")
        what = content.get("what") or _rows(content["rows"])
        told = f"{commit}; {software}; {found['command']}"
        return [Origin(path.name, "measured", on, what, found["date"][:10], told)]
    if runs := content.get("runs"):
        groups = {}
        for run in runs:
            of = run["kind"], run["gpu"], run["date"], run["software"]
            groups.setdefault(of, []).append(run["name"])
        return [
            Origin(path.name, kind, gpu, "; ".join(names), date, f"software: {software}")
            for (kind, gpu, date, software), names in groups.items()
        ]
    if "cite" in content:
        told = f"source: {content['cite']} in the bibliography"
        return [Origin(path.name, "published", "", content["what"], content["read"], told)]
    raise ValueError(
        f"{path.name} must say where its numbers are from; it has neither provenance nor runs nor "
        "cite; let the command that measures write it"
    )


def _rows(rows):
    """What a file of the bench holds, in words."""
    stages = dict.fromkeys(row["stage"] for row in rows)
    cases = {(row["batch"], row["n"], row["cond"], row["family"]) for row in rows}
    return f"{', '.join(stages)}: {len(cases)} case{'s' if len(cases) > 1 else ''}"


class Origins:
    """The list for a page: a file, its badge and date, what it holds, and how that was found."""

    def __init__(self, folder=DATA):
        self.found = origins(folder)

    def __repr__(self):
        return "\n".join(f"{o.file}: {o.badge}, {o.date}. {o.what}. {o.told}" for o in self.found)

    def _repr_html_(self):
        items = "".join(
            f"<li><strong>{escape(o.file)}</strong> "
            f"<span class='qr-badge qr-{o.kind}'>{escape(o.badge)}</span> {escape(o.date)}<br>"
            f"{escape(o.what)}<br><small>{escape(o.told)}</small></li>"
            for o in self.found
        )
        return f"<ul class='qr-origins'>{items}</ul>"
