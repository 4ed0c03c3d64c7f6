"""The lineage of a search: the time of every try against its number, and the record under them."""

import textwrap

from qrlib.bench import chart
from qrlib.bench.results import short
from qrlib.loop.verdicts import group
from qrlib.teach.figures.ladder import duration
from qrlib.teach.svg import from_matplotlib, matplotlib_style

# a record that is beaten by less than this share was not moved; so many names stand under the plot
MOVED, NAMED = 0.02, 10
# group of verdicts: (mark, colour, words); they stand above all times, for they have none
ENDED = {
    "failed": ("x", "pink", "failed"),
    "rejected": ("s", "pink", "rejected"),
    "inconclusive": ("^", "muted", "inconclusive"),
}


def lineage(log, basis=None):
    """The tries of a ledger, with the record line and the ideas that moved it.

    Args:
        log: ledger.Log, as of ledger.read or history.load. basis: of scores; see Log.scored.

    Raises:
        ValueError: no try has a score.
    """
    with matplotlib_style() as colors:
        figure, alt = _plot(log, basis, colors)
        return from_matplotlib(figure, alt, max_width=520)


def save(log, path, basis=None):
    """Write the lineage to an .svg file, which follows a light or dark page, or a .png."""
    chart.write(path, lambda colors: _plot(log, basis, colors))


def moves(log, basis=None):
    """[(try, share of the record before it)] of the tries that moved the record, in order.

    The first of all has None, and no more than NAMED are told, the largest moves.
    """
    record = log.record(basis)
    found = [(record[0], None)] if record else []
    best = record[0]["geomean_us"] if record else None
    for each in record[1:]:
        share = each["geomean_us"] / best
        if share < 1 - MOVED:
            found.append((each, share))
            best = each["geomean_us"]
    largest = sorted(found[1:], key=lambda move: move[1])[: NAMED - 1]
    return found[:1] + [move for move in found[1:] if move in largest]


def _plot(log, basis, colors):
    """(a matplotlib figure, its words)."""
    from matplotlib import pyplot

    scored, record, told = log.scored(basis), log.record(basis), moves(log, basis)
    if not scored:
        raise ValueError(
            "a lineage needs a try with a score; the ledger has none: run bench or leaderboard"
        )
    lines = [
        textwrap.wrap(
            f"{k}  {each.get('idea') or each['candidate']}: {duration(each['geomean_us'])}", 64,
            subsequent_indent="    ",
        )
        for k, (each, _) in enumerate(told, 1)
    ]  # fmt: skip
    names = [line for wrapped in lines for line in wrapped]
    height = 3.3 + 0.185 * len(names)
    figure = pyplot.figure(figsize=(4.8, height))
    grid = figure.add_gridspec(2, 1, height_ratios=(3.3, max(height - 3.3, 0.1)))
    axes, under = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    numbers, us = zip(*((each["id"], each["geomean_us"]) for each in scored))
    axes.plot(
        numbers, us, "o", color=colors["blue"], markersize=4, linestyle="none", label="passed"
    )
    last = max(each["id"] for each in log.tries)
    steps = [(each["id"], each["geomean_us"]) for each in record]
    steps.append((max(last, steps[-1][0] + 1), steps[-1][1]))
    look = {"color": colors["orange"], "linewidth": 1.8, "linestyle": "-"}
    axes.step(*zip(*steps), where="post", label="the record", **look)
    top = max(us) * (max(us) / min(us)) ** 0.12 * 1.1
    for name, (mark, color, words) in ENDED.items():
        mine = [each["id"] for each in log.tries if group(each["verdict"]) == name]
        if mine:
            look = {"color": colors[color], "markersize": 5, "linestyle": "none"}
            axes.plot(mine, [top] * len(mine), mark, label=words, **look)
    for k, (each, _) in enumerate(told, 1):
        axes.annotate(
            str(k), (each["id"], each["geomean_us"]), (4, 4), textcoords="offset points",
            size=9, color=colors["orange"], weight="bold",
        )  # fmt: skip
    axes.set(yscale="log", xlabel="number of the try", ylabel="time")
    axes.yaxis.set_major_formatter(lambda us, _: duration(us))
    axes.yaxis.set_minor_formatter(lambda us, _: "")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(textwrap.fill(record[-1]["basis"], 60), size=9)
    figure.legend(loc="outside upper center", ncols=3)
    under.axis("off")
    if names:
        under.text(-0.17, 1, "\n".join(names), va="top", size=9, transform=under.transAxes)
    first, best = record[0], record[-1]
    ended = {
        name: sum(group(each["verdict"]) == name for each in log.tries)
        for name in ENDED
    }  # fmt: skip
    count = f"{len(scored)} tr{'y' if len(scored) == 1 else 'ies'}"
    others = "".join(f", {k} {name}" for name, k in ended.items() if k)
    ideas = "; ".join(" ".join(" ".join(line).split()) for line in lines)
    alt = (
        f"The time of {count} against their number, on a logarithmic axis{others}, "
        f"{best['basis']}. The record falls from {duration(first['geomean_us'])} to "
        f"{duration(best['geomean_us'])}, a factor of "
        f"{short(first['geomean_us'] / best['geomean_us'], 3)}. It was moved by: {ideas}."
    )
    return figure, alt
