"""Rows of measurements with their provenance: as JSON, as a table, and averaged. Needs no torch.

A time is in microseconds, a residual in m*eps (qrlib.certificate), a speedup over the baseline of
the same run and case.
"""

import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

SCHEMA = 1
# what a file must tell of itself; a GPU's also its name and its driver
ORIGIN = ("device", "python", "torch", "qrlib", "commit", "dirty", "date", "command")
ORIGIN_GPU = ("gpu", "driver", "cuda")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Results:
    """What `measure` found, or `load` read.

    provenance: machine, versions, commit, date. protocol: how it was measured. rows: a dict for
    each stage, precision and mode on each case; their keys are those of measure._row. complete:
    False when there are cases still to come.
    """

    provenance: dict
    protocol: dict
    rows: list
    complete: bool = True

    @property
    def passed(self):
        """True when no row has a fault."""
        return all(row["ok"] for row in self.rows)

    def find(self, **want):
        """The rows with these values: find(stage="s03_blocked", n=512)."""
        return [row for row in self.rows if all(row[key] == want[key] for key in want)]

    def averages(self):
        """[{stage, precision, mode, cases, median_us, speedup}]: geometric means over all cases.

        None where a case is missing: a mean over the cases that went well is not one.
        """
        kinds = dict.fromkeys((row["stage"], row["precision"], row["mode"]) for row in self.rows)
        found = []
        for kind in kinds:
            mine = self.find(**dict(zip(("stage", "precision", "mode"), kind)))
            found.append(
                {
                    **dict(zip(("stage", "precision", "mode"), kind)),
                    "cases": len(mine),
                    "median_us": _geomean([row["median_us"] for row in mine]),
                    "speedup": _geomean([row["speedup"] for row in mine]),
                }
            )
        return found

    def save(self, path):
        """Write JSON. Raises ValueError where the provenance has gaps."""
        check_origin(self.provenance, path)
        content = {"schema": SCHEMA, **asdict(self), "averages": self.averages()}
        Path(path).write_text(
            json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )

    def where(self):
        """One line: on what it was measured, when, and of which commit."""
        p = self.provenance
        on = p["gpu"] or p["cpu"]
        # of several, the file of `--gpus` names each
        if len(each := p.get("gpus") or ()) > 1:
            on = " and ".join(f"{each.count(name)} x {name}" for name in dict.fromkeys(each))
        commit = f"{str(p['commit'])[:10]}{', changed since' if p['dirty'] else ''}"
        return f"measured on {on}, {p['date'][:10]}, commit {commit}"

    def __str__(self):
        return "\n".join([*_table(self), "", self.where()])


def load(path):
    """Results from a JSON file.

    Raises:
        ValueError: not such a file, provenance that has gaps, a measurement that was stopped, or a
            time whose certificate did not pass.
    """
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(
            f"{path} must be written by `python -m qrlib.bench --json` with schema {SCHEMA}; "
            "measure again"
        )
    check_origin(content.get("provenance") or {}, path)
    if not content["complete"]:
        raise ValueError(f"{path} was stopped before its last case; measure again")
    for row in content["rows"]:
        timed = row["median_us"] is not None
        if timed != row["ok"] or timed and (row["faults"] or not row["certificate"]):
            raise ValueError(f"{path} has a time for a result that did not pass: {row}")
    return Results(content["provenance"], content["protocol"], content["rows"])


def command_line(module, arguments):
    """`python -m module ...` for a provenance: where files lay on one machine is of no use here."""
    given = [os.path.basename(a) if os.path.isabs(a) else a for a in arguments]
    return shlex.join(["python", "-m", module, *given])


def provenance(device, command="", commit=None):
    """Where and of what a measurement is.

    Args:
        device: a torch.device.
        command: the command line.
        commit: as `git describe --always --dirty` says it; looked up when None.
    """
    import torch

    from qrlib import __version__

    gpu = device.type == "cuda"
    commit, dirty = _commit() if commit is None else _described(commit)
    return {
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "driver": _driver() if gpu else None,
        "cuda": torch.version.cuda if gpu else None,
        "cpu": _cpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": getattr(sys.modules.get("triton"), "__version__", None) or _version("triton"),
        "numpy": _version("numpy"),
        "qrlib": __version__,
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
    }


def check_origin(origin, path):
    """Raises ValueError where a provenance has gaps; `path` is where it stands or is to stand."""
    wanted = ORIGIN + (ORIGIN_GPU if origin.get("device") == "cuda" else ())
    missing = [key for key in wanted if origin.get(key) in (None, "")]
    if missing:
        hint = "; outside a git checkout give --commit" if "commit" in missing else ""
        raise ValueError(
            f"{path} must say where it comes from; it lacks {', '.join(missing)}{hint}"
        )


def _version(name):
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu():
    """The name of the processor, as well as the system tells it."""
    named = re.search(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _driver():
    """The version of NVIDIA's driver, from its own tool or from the kernel."""
    from qrlib import doctor

    for _, driver in doctor._nvidia_smi():
        return driver
    named = re.search(r"\b\d+\.\d+(\.\d+)?\b", _read("/proc/driver/nvidia/version"))
    return named and named[0]


def _read(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _commit():
    """(the commit of the checkout, whether the package has changed since), or (None, None)."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    try:
        commit, changed = (
            subprocess.run([*git, *what], capture_output=True, check=True, text=True).stdout.strip()
            for what in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "qrlib"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return commit, bool(changed)


def _described(commit):
    return commit.removesuffix("-dirty"), commit.endswith("-dirty")


def _geomean(values):
    if not values or None in values:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def words(case):
    """A case, or the case of a row, in words: 640 x 512 dense, cond 2."""
    case = case if isinstance(case, dict) else case._asdict()
    cond = f", cond {case['cond']:g}" if case["cond"] else ""
    tall = f"{case['m']} x " if case.get("m", case["n"]) != case["n"] else ""
    return f"{case['batch']} x {tall}{case['n']} {case['family']}{cond}"


def short(x, digits=4, unit=""):
    """A number in words, 4,870 and 18.43 and 0.00521, and a dash for None."""
    if x is None:
        return "-"
    return (f"{x:,.0f}" if 1000 <= abs(x) < math.inf else f"{x:.{digits}g}") + unit


_HEADS = ("stage", "", "median us", "quartiles", "speedup", "factor", "orth.", "column", "memory")


def kind(row):
    """precision and mode of a row in words."""
    return row["precision"] + (" replay" if row["mode"] == "replay" else "")


def _table(results):
    """Lines: for each case its rows, then the averages."""
    widths = (max([16, *(len(row["stage"]) for row in results.rows)]), 11, 10, 19, 9, 7, 7, 7, 8)

    def line(cells):
        parts = [
            f"{cell:<{w}}" if k < 2 else f"{cell:>{w}}"
            for k, (cell, w) in enumerate(zip(cells, widths))
        ]
        return ("  " + " ".join(parts)).rstrip()

    yield line(_HEADS)
    last = None
    for row in results.rows:
        if words(row) != last:
            last = words(row)
            yield last
        found = row["certificate"] or {}
        residuals = [short(found.get(key), 3) for key in ("factor", "orthogonality", "columnwise")]
        extra = row["extra_bytes"]
        spread = f"{short(row['q25_us'])} - {short(row['q75_us'])}" if row["ok"] else "-"
        yield line(
            (
                row["stage"],
                kind(row),
                short(row["median_us"]) if row["ok"] else "FAILED",
                spread,
                short(row["speedup"], 3, "x"),
                *residuals,
                "-" if extra is None else f"{extra / 2**20:.1f} MB",
            )
        )
        yield from (f"      fault: {sentence}" for sentence in row["faults"])
        yield from (f"      note: {sentence}" for sentence in row["notes"])
    yield ""
    yield "geometric mean over the cases"
    for each in results.averages():
        cells = (
            each["stage"],
            kind(each),
            short(each["median_us"]),
            f"{each['cases']} case{'s' * (each['cases'] > 1)}",
            short(each["speedup"], 3, "x"),
        )
        yield line(cells)
