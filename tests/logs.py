"""Ledgers for tests, without a candidate that was ever run."""

from qrlib.loop.ledger import Log

ORIGIN = {"gpu": None, "cpu": "a CPU", "torch": "2.0", "commit": "0123456"}


def tried(number, us=None, *, family="", verdict="passed", candidate=None, basis="one", **more):
    """A try as a ledger has it; us: its score."""
    name = candidate or f"c{number}"
    row = {"batch": 2, "n": 12, "cond": 1, "family": "dense", "verdict": verdict, "message": ""}
    row |= {"runs": 3 if us else 0, "median_us": us}
    row |= {"q25_us": us and 0.99 * us, "q75_us": us and 1.01 * us}
    row["certificate"] = {"factor": 0.5, "orthogonality": 0.75} if us else None
    entry = {"id": number, "kind": "try", "date": "2001-02-03T04:05:06+00:00", "candidate": name}
    entry |= {"mode": "bench", "verdict": verdict, "message": "" if us else "what was seen"}
    entry |= {"rows": [row], "geomean_us": us, "basis": basis, "seed": 7, "sha256": None}
    entry |= dict.fromkeys(("parent", "family", "idea", "hypothesis", "prediction", "printed"), "")
    return entry | {"provenance": ORIGIN, "family": family} | more


def log(*entries):
    return Log(list(entries), [])
