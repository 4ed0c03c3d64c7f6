"""The story of a search as markdown: the record, the families, what failed, what was predicted."""

from qrlib.bench.results import short
from qrlib.loop.beam import REASONS, families, warnings
from qrlib.loop.verdicts import VERDICTS, group

# of a message in a table
LONGEST = 160


def report(log, picture=None, basis=None):
    """The lines of a markdown page.

    Args:
        log: ledger.Log. picture: a file with the lineage, as the page is to name it. basis: of
            the scores; see Log.scored.
    """
    record, scored = log.record(basis), log.scored(basis)
    yield "# The search so far"
    yield ""
    if not record:
        yield f"{len(log.tries)} tries, and none has a score yet."
    else:
        first, best = record[0], record[-1]
        gain = short(first["geomean_us"] / best["geomean_us"], 3)
        yield (
            f"{len(log.tries)} tries, {len(scored)} of them with a score on the same basis: "
            f"{best['basis']}. The record fell from {short(first['geomean_us'])} us to "
            f"{short(best['geomean_us'])} us, by a factor of {gain}, and "
            f"`{best['candidate']}` (#{best['id']}, {best['date'][:10]}) holds it."
        )
        if picture:
            yield ""
            yield f"![The time of every try against its number]({picture})"
        yield from _section("What moved the record")
        yield from _table(
            ("try", "candidate", "family", "idea", "us", "times the one before"),
            (
                (
                    f"#{each['id']}",
                    f"`{each['candidate']}`",
                    each.get("family") or "",
                    each.get("idea") or "",
                    short(each["geomean_us"]),
                    short(before["geomean_us"] / each["geomean_us"], 3) if before else "",
                )
                for before, each in zip([None, *record], record)
            ),
        )
    if known := families(log, basis):
        yield from _section("Families")
        yield from _table(
            ("family", "role", "about", "tries", "best us", "state"),
            (
                (
                    each.name,
                    each.role,
                    each.cost,
                    str(len(each.tries)),
                    short(each.best["geomean_us"]) if each.best else "",
                    _state(each),
                )
                for each in known
            ),
        )
    if bad := [each for each in log.tries if group(each["verdict"]) != "passed"]:
        yield from _section("What did not pass")
        yield from _table(
            ("try", "candidate", "verdict", "what was seen", "evidence"),
            (
                (
                    f"#{each['id']}",
                    f"`{each['candidate']}`",
                    each["verdict"],
                    each["message"][:LONGEST],
                    "none, try it again" if group(each["verdict"]) == "inconclusive" else "yes",
                )
                for each in bad
            ),
        )
        names = dict.fromkeys(each["verdict"] for each in bad if each["verdict"] in VERDICTS)
        yield ""
        yield from (f"- {name}: {VERDICTS[name].means}." for name in names)
    if told := [each for each in log.tries if each.get("prediction")]:
        yield from _section("Predicted and found")
        yield from _table(
            ("try", "hypothesis", "prediction", "found"),
            (
                (
                    f"#{each['id']}",
                    each.get("hypothesis") or "",
                    each["prediction"],
                    short(each["geomean_us"], unit=" us")
                    if each.get("geomean_us")
                    else each["verdict"],
                )
                for each in told
            ),
        )
    if said := warnings(log):
        yield from _section("To decide")
        yield from (f"- {sentence}" for sentence in said)


def _state(family):
    if family.killed:
        reason, because = family.killed
        return f"killed: {REASONS[reason]}; {because}"
    return "kept" if family.kept else "alive"


def _section(title):
    yield from ("", f"## {title}", "")


def _table(heads, rows):
    yield _row(heads)
    yield _row(["---"] * len(heads))
    yield from map(_row, rows)


def _row(cells):
    # a bar or a new line would end the cell
    return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"
