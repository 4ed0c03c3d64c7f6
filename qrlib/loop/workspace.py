"""A folder to search in: the problem, the rules, a first candidate, an empty ledger."""

import shutil
from importlib.resources import files
from pathlib import Path

from qrlib.bench.results import words
from qrlib.certificate import TASK
from qrlib.loop.beam import REASONS
from qrlib.matrices import BENCHMARK_CASES

LEDGER = "ledger.jsonl"
TEMPLATES = "problem.md", "notes.md", "candidate.py"


def create(name):
    """Make the folder; gives its path.

    Raises:
        FileExistsError: there is something by that name.
    """
    folder = Path(name)
    if folder.exists():
        raise FileExistsError(
            f"a new workspace needs a name that nothing has; {folder} is there already"
        )
    facts = {
        "factor": TASK.factor,
        "orthogonality": TASK.orthogonality,
        "count": len(BENCHMARK_CASES),
        "cases": "\n".join(f"- {k}: {words(case)}" for k, case in enumerate(BENCHMARK_CASES)),
        "reasons": ", ".join(f"{key} ({means})" for key, means in REASONS.items()),
    }
    templates = files("qrlib.loop") / "templates"
    folder.mkdir(parents=True)
    try:
        for template in TEMPLATES:
            text = (templates / template).read_text(encoding="utf-8")
            if template.endswith(".md"):
                text = text.format(**facts)
            (folder / template).write_text(text, encoding="utf-8")
        (folder / LEDGER).touch()
    except OSError:
        # half of one would be in the way of the next
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
