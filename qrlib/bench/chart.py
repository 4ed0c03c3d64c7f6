"""Times as bars on a logarithmic axis: in a terminal, or as an SVG or PNG file."""

import math
from pathlib import Path

from qrlib.bench.results import kind, short, words


def bars(results, width=48):
    """Lines: a bar for each average, the shortest one tenth of the width, the longest all of it."""
    found = [each for each in results.averages() if each["median_us"]]
    if not found:
        return []
    low, high = (f(each["median_us"] for each in found) for f in (min, max))
    span = math.log(high / low) or 1.0
    wide = max(len(each["stage"]) for each in found)
    lines = ["geometric mean of the medians, us; a logarithmic scale"]
    for each in found:
        share = math.log(each["median_us"] / low) / span if high > low else 1.0
        bar = "\u2588" * round(width * (0.1 + 0.9 * share))
        lines.append(f"  {each['stage']:{wide}} {kind(each):11} {bar} {short(each['median_us'])}")
    return lines


def draw(results, path):
    """Write the bars of every case to an .svg file, which follows a light or dark page, or a .png.

    Raises:
        ValueError: another suffix, or nothing that passed. RuntimeError: no matplotlib.
    """
    if not any(row["ok"] for row in results.rows):
        raise ValueError("nothing passed, so there is nothing to draw")
    write(path, lambda colors: _figure(results, colors))


def write(path, make):
    """Write a plot as an .svg or .png file; make: colours -> (a matplotlib figure, its words).

    Raises:
        ValueError: another suffix. RuntimeError: no matplotlib.
    """
    suffix = Path(path).suffix
    if suffix not in (".svg", ".png"):
        raise ValueError(f"a chart must be an .svg or .png file; got {path}")
    try:
        from qrlib.teach.svg import from_matplotlib, matplotlib_style

        with matplotlib_style() as colors:
            figure, alt = make(colors)
            if suffix == ".png":
                figure.savefig(path, dpi=160, facecolor="white")
            else:
                from_matplotlib(figure, alt).save(path)
    except ModuleNotFoundError as missing:
        raise RuntimeError(
            f"a chart needs {missing.name}, which is not installed here; pip install {missing.name}"
        ) from missing


def _figure(results, colors):
    """(a matplotlib figure, its words): a group for the averages and one for each case."""
    from matplotlib import pyplot

    cases = dict.fromkeys(map(words, results.rows))
    groups = {"geometric mean of all cases": results.averages()} if len(cases) > 1 else {}
    groups |= {case: [row for row in results.rows if words(row) == case] for case in cases}
    lines = [
        (None, title) if row is None else (row, _name(row))
        for title, rows in groups.items()
        for row in (None, *rows)
    ]
    figure, axes = pyplot.subplots(figsize=(6.4, 0.7 + 0.19 * len(lines)))
    times = [row["median_us"] for row, _ in lines if row and row["median_us"]]
    left = min(times) / 2
    for y, (row, name) in enumerate(lines):
        if row is None:
            axes.text(left, y, name, va="center", weight="bold", size=8)
        elif not row["median_us"]:
            axes.text(left, y, " failed", va="center", size=7.5, color=colors["pink"])
        else:
            is_base = row["stage"] == results.protocol["baseline"]
            color = colors["muted" if is_base else "blue"]
            axes.barh(y, row["median_us"] - left, 0.7, left=left, color=color)
            axes.text(row["median_us"], y, f" {short(row['median_us'])}", va="center", size=7.5)
    axes.set_xscale("log")
    axes.set_xlim(left, 4 * max(times))
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_yticks(
        range(len(lines)), ["" if row is None else name for row, name in lines], size=7.5
    )
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("median time, us")
    axes.set_title(results.where(), size=8)
    told = (f"{name} {short(row['median_us'])}" for row, name in lines if row and row["median_us"])
    return figure, f"Times in microseconds, {results.where()}. {'; '.join(told)}."


def _name(row):
    return f"{row['stage']} {kind(row)}"
