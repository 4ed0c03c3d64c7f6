"""What must be in an entry of a ledger, whoever wrote it, so that all who read it can."""

import sys

from qrlib.loop.beam import COSTS, REASONS, ROLES

WORDS, NUMBER = str | None, int | float | None
# an object with numbers in it, by whatever names; or null
NUMBERS = {}
ROW = {
    **dict.fromkeys(("verdict", "message", "family"), str),
    **dict.fromkeys(("batch", "n", "runs"), int),
    "cond": int | float,
    **dict.fromkeys(("median_us", "q25_us", "q75_us"), NUMBER),
    "certificate": NUMBERS,
}
TRY = {
    **dict.fromkeys(("date", "candidate", "mode", "verdict", "message", "basis"), str),
    "rows": [ROW],
    "provenance": dict.fromkeys(("gpu", "cpu", "torch", "commit"), WORDS),
}
# what may be left out
MORE = {
    **dict.fromkeys(("parent", "family", "idea", "hypothesis", "prediction"), WORDS),
    **dict.fromkeys(("sha256", "printed"), WORDS),
    "geomean_us": NUMBER,
}
# what is to be said with what is decided of a family
EVENTS = {
    "open": {"role": ROLES, "cost": COSTS, "hypothesis": str},
    "keep": {"because": str},
    "kill": {"reason": tuple(REASONS), "because": str},
}
FAMILY = {"date": str, "family": str, "event": tuple(EVENTS)}


def faults(entry):
    """Sentences: what of an entry, {"kind": "try" or "family", ...}, cannot be read."""
    if entry["kind"] == "try":
        form = TRY | {key: MORE[key] for key in MORE if key in entry}
    else:
        event = entry.get("event")
        form = FAMILY | (EVENTS.get(event, {}) if isinstance(event, str) else {})
    found = list(_faults(entry, form, ""))
    yield from found
    if entry["kind"] == "try" and not found:
        for k, row in enumerate(entry["rows"]):
            # a time has a spread
            times = [row[key] is None for key in ("median_us", "q25_us", "q75_us")]
            if any(times) and not all(times):
                yield f"rows[{k}] must have a median and both quartiles, or none of them"


def _faults(x, form, where):
    if isinstance(form, dict):
        if form is NUMBERS:
            if x is None:
                return
            form = dict.fromkeys(x, NUMBER) if isinstance(x, dict) else NUMBERS
        if not isinstance(x, dict):
            yield f"{where} must be an object; it is {_said(x)}"
            return
        if lacks := [key for key in form if key not in x]:
            yield f"{where or 'it'} lacks {', '.join(lacks)}"
        for key in form:
            if key in x:
                yield from _faults(x[key], form[key], f"{where}.{key}".lstrip("."))
    elif isinstance(form, list):
        if not isinstance(x, list):
            yield f"{where} must be a list; it is {_said(x)}"
            return
        for k, each in enumerate(x):
            yield from _faults(each, form[0], f"{where}[{k}]")
    elif isinstance(form, tuple):
        if x not in form:
            yield f"{where} must be one of {', '.join(form)}; it is {_said(x)}"
    elif not isinstance(x, form) or isinstance(x, bool):
        yield f"{where} must be {_named(form)}; it is {_said(x)}"
    # a whole number of JSON may have any length
    elif isinstance(x, int | float) and not abs(x) <= sys.float_info.max:
        yield f"{where} must be a finite number; it is {_said(x)}"


def _named(form):
    names = {str: "text", int: "a whole number", float: "a number", dict: "an object"}
    kinds = getattr(form, "__args__", (form,))
    told = [names[each] for each in kinds if each in names and not (each is int and float in kinds)]
    return " or ".join(told + ["null"] * (type(None) in kinds))


def _said(x):
    return f"{x!r:.40}"
