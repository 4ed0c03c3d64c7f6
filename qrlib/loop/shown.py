"""Tries in words: one a line, one in full, and what differs between two."""

import difflib

from qrlib.bench.results import short, words
from qrlib.loop.runner import kept_source, row_lines
from qrlib.loop.verdicts import VERDICTS


def listed(log):
    """Lines: a line for each entry, then what is damaged."""
    record = {each["id"] for each in log.record()}
    for each in log.entries:
        head = f"#{each['id']:<4} {each['date'][:16].replace('T', ' ')}"
        if each["kind"] == "family":
            more = each.get("because") or each.get("hypothesis") or ""
            yield f"{head}  family {each['family']}: {each['event']} {more}".rstrip()
            continue
        us = each.get("geomean_us")
        mark = " *" if each["id"] in record else ""
        time = short(us, unit=" us") if us else ""
        about = each.get("family") or ""
        yield (
            f"{head}  {each['candidate']:24} {about:14} {each['mode']:11} {each['verdict']:16} "
            f"{time}{mark}"
        ).rstrip()
    yield from (f"damaged: {sentence}" for sentence in log.damaged)
    if record:
        yield "* a record when it came"


def shown(entry):
    """Lines: a try in full."""
    yield f"#{entry['id']} {entry['candidate']}, {entry['mode']}: {entry['verdict']}"
    if entry["message"]:
        yield f"  {entry['message']}"
        if entry["verdict"] in VERDICTS:
            known = VERDICTS[entry["verdict"]]
            yield f"  {known.group}: {known.means}; {known.todo}"
    for key in ("date", "parent", "family", "idea", "hypothesis", "prediction", "seed", "sha256"):
        if entry.get(key):
            yield f"  {key:11} {entry[key]}"
    if entry.get("geomean_us"):
        yield f"  {'score':11} {short(entry['geomean_us'])} us, {entry['basis']}"
    yield from (f"  {line}" for line in row_lines(entry["rows"], messages=True))
    origin = entry["provenance"]
    on = origin["gpu"] or origin["cpu"]
    yield f"  on {on}, torch {origin['torch']}, commit {origin['commit']}"
    if entry.get("printed"):
        yield "  it printed:"
        yield from (f"    {line}" for line in entry["printed"].splitlines())


def difference(a, b, ledger=None):
    """Lines: what differs between two tries, case by case, and in their files where they are kept.

    Args:
        ledger: the path that they are from.
    """
    yield f"{_name(a)} and {_name(b)}"
    for key in ("verdict", "mode", "basis", "family", "parent", "seed"):
        if a.get(key) != b.get(key):
            yield f"  {key}: {a.get(key)} | {b.get(key)}"
    if a.get("geomean_us") and b.get("geomean_us"):
        if a["basis"] == b["basis"]:
            ratio = a["geomean_us"] / b["geomean_us"]
            yield f"  {_name(b)} takes {1 / ratio:.3f} of the time of {_name(a)}"
        else:
            yield "  their scores are not of one basis, and cannot be compared"
    others = {_case(row): row for row in b["rows"]}
    for row in a["rows"]:
        other = others.get(_case(row))
        if not other:
            continue
        if row["median_us"] and other["median_us"]:
            share = other["median_us"] / row["median_us"]
            # quartiles that overlap are no difference
            clear = other["q75_us"] < row["q25_us"] or row["q75_us"] < other["q25_us"]
            both = f"{short(row['median_us']):>10} {short(other['median_us']):>10} us"
            spread = "" if clear else "  within their spread"
            yield f"  {words(row):32} {both}  {share:6.3f}{spread}"
        elif row["verdict"] != other["verdict"]:
            yield f"  {words(row):32} {row['verdict']} | {other['verdict']}"
    yield from _files(a, b, ledger)


def _files(a, b, ledger):
    texts = []
    for each in (a, b):
        path = kept_source(ledger, each["sha256"]) if ledger and each.get("sha256") else None
        texts.append(path.read_text("utf-8", "replace").splitlines() if path else None)
    if None in texts:
        return
    if texts[0] == texts[1]:
        yield "  their files are the same"
    yield from difflib.unified_diff(*texts, _name(a), _name(b), lineterm="")


def _name(entry):
    return f"#{entry['id']} {entry['candidate']}"


def _case(row):
    # a case is tested and timed: two rows
    return (*(row[key] for key in ("batch", "n", "cond", "family")), row["runs"] > 0)
