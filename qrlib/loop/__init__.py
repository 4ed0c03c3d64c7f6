"""The research loop: a candidate is judged and timed, and what became of it is kept.

`python -m qrlib.loop --help`; in Python:

    outcome = evaluate("candidate.py", "bench")       # whatever the candidate does
    outcome.record("ledger.jsonl", family="panel", idea="width 64")
    log = read("ledger.jsonl")                        # or history.load(), our own way

    ledger     the log: a line for each try and each decision
    forms      what must be in an entry
    verdicts   what can become of a candidate, by name
    runner     the judge: what a candidate returns is judged outside of its process
    process    the process of a candidate, seen from outside
    guard      its parent, which ends all of it when the judge is gone
    worker     what runs in it
    beam       families of ideas, and what of them needs a decision
    history    our own way as a ledger
    shown      tries in words, and what differs between two
    report     the story of a search as markdown; qrlib.teach.figures.loop draws its lineage
    profiler   where the time of a candidate goes
    bundle     a stage as one file
    workspace  a folder to search in
"""

from importlib import import_module

# what is known of verdicts is for every system, and the rest for those that lock files
_HOME = {
    "Limits": "process",
    "Log": "ledger",
    "Outcome": "runner",
    "append": "ledger",
    "evaluate": "runner",
    "read": "ledger",
}
__all__ = [*_HOME]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(
            f"module 'qrlib.loop' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted({*globals(), *__all__})
