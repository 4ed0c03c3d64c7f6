"""Our own way as a ledger: every stage a try, its time from the files in book/data."""

from pathlib import Path

from qrlib.bench import results
from qrlib.loop.ledger import Log
from qrlib.stages import POLICIES, STAGES
from qrlib.teach.figures.ladder import CASES, DATA, idea

# the last rungs on all cases of the task, and all rungs on one
FILES = {"cases": CASES, "ladder": DATA}
# what of the time each stage is about; a replay is about launches
FAMILIES = {
    "torch": "library",
    "s02_unblocked": "panel",
    "s03_blocked": "update",
    "s04_recursive": "panel",
    "s05_panel": "panel",
    "s06_update": "update",
    "s07_whole": "launch",
    "s08_cholesky": "panel",
    "s09_mixed": "precision",
    "s10_blackwell": "panel",
}


def load(name="cases"):
    """A Log of a file that `python -m qrlib.bench --json` has written.

    Args:
        name: a key of FILES, or a path.

    Returns:
        Log, as of a ledger: its tries in the order of the ladder, each stage as it is and replayed.
    """
    path = Path(FILES.get(name, name))
    if not path.is_file():
        raise ValueError(f"our own way is in a checkout of the repository; there is no {path.name}")
    found = results.load(path)
    kinds = [each for each in found.averages() if each["median_us"]]
    # the door takes the last stage
    stages = {"torch": "torch", "auto": STAGES[-1]} | {name: name for name in STAGES}
    order = ["torch", *STAGES, "auto"]
    # to other stages both policies are one
    kinds = [
        each
        for each in kinds
        if each["precision"] == "fp32" or stages.get(each["stage"]) in POLICIES
    ]
    kinds.sort(key=lambda each: (order.index(each["stage"]), each["precision"] == "fast"))
    entries, last = [], None
    for each in kinds:
        stage = stages[each["stage"]]
        kind = {key: each[key] for key in ("stage", "precision", "mode")}
        rows = found.find(**kind)
        replayed = each["mode"] == "replay"
        words = "torch.geqrf" if stage == "torch" else idea(stage)[0]
        fast = ", fast" * (each["precision"] == "fast")
        name = f"{stage}{fast}{', replayed' * replayed}"
        count = len(rows)
        entries.append(
            {
                "id": len(entries) + 1,
                "kind": "try",
                "date": found.provenance["date"],
                "candidate": name,
                "parent": last,
                "family": "launch" if replayed else FAMILIES[stage],
                "idea": f"{stage}{fast}, as a CUDA graph" if replayed else f"{words}{fast}",
                "mode": "bench",
                "verdict": "passed",
                "message": "",
                "rows": [row | {"verdict": "passed", "message": ""} for row in rows],
                "geomean_us": each["median_us"],
                "basis": f"{count} case{'s' * (count > 1)} on {found.provenance['gpu']}",
                "seed": rows[0]["seed"],
                "provenance": found.provenance,
            }
        )
        last = name
    return Log(entries, [])
