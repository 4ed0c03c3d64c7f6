"""Registers and spills against the width of a panel: the panel kernel of stage 5, compiled wider.

Nothing is measured: what is shown is what the compiler says of its own code.
"""

from collections import Counter
from functools import cache

from qrlib.compilelab import compile_stage
from qrlib.teach.figures.compilelab import LIMIT, grouped
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure

WIDTHS = (4, 8, 16, 32, 64)
ROWS, WARPS, TARGET = 512, 4, "sm_100a"


@cache
def panel(width, target=TARGET):
    """The panel kernel with so many columns in its tile; its own are 16."""
    (artifact,) = compile_stage(
        "s05_panel",
        *(640, ROWS, 16),
        target=target,
        kernel="panel_kernel",
        num_warps=WARPS,
        constexprs={"UNROLL": False, "BN": width},
    )
    return artifact


def share(width):
    """Entries of the panel for each thread."""
    return ROWS * width // (32 * WARPS)


def executed(width):
    """(instructions that a warp executes for each column, share of them that spill)."""
    counts = Counter(panel(width).executed(width))
    total = sum(counts.values())
    return total / width, grouped(counts)["spill"] / total


def width_words(width):
    """What the compiler made of a panel of that width."""
    it = panel(width)
    each, spilled = executed(width)
    stack = f"{it.stack} bytes of stack" if it.stack else "no stack"
    return (
        f"{ROWS} \u00d7 {width}, {WARPS} warps: a thread has {share(width)} entries of the panel. "
        f"{it.registers} registers, {stack}; {100 * spilled:.1f} % of what is executed is "
        f"spilling. A column takes {each:,.0f} instructions. Programs an SM: {it.programs}."
    )


def widths_frame(upto):
    """A row for each width up to that one."""
    shown = WIDTHS[: WIDTHS.index(upto) + 1]
    row, top, left, long = 44, 62, 44, 216
    fig = Figure(
        440,
        top + row * len(WIDTHS) + 42,
        f"Registers of a thread by the width of the panel, compiled for {TARGET}; the most are "
        f"{LIMIT}. " + " ".join(width_words(width) for width in shown),
        max_width=560,
    )

    def x(count):
        return left + long * count / 256

    fig.text(6, 14, "columns", size=13, anchor="start")
    fig.text(left + long / 2, 34, "registers a thread", size=13)
    for at, words in ((304, "stack,"), (360, "spills,"), (414, "instr. a")):
        fig.text(at, 16, words, size=12)
    for at, words in ((304, "bytes"), (360, "share"), (414, "column")):
        fig.text(at, 32, words, size=12)
    foot = top + row * len(WIDTHS)
    for tick in (0, 128):
        fig.line(x(tick), top - 14, x(tick), foot, color="faint", width=1)
        fig.text(x(tick), top - 18, str(tick), size=11, color="muted")
    fig.line(x(LIMIT), top - 14, x(LIMIT), foot, color="ink", width=2)
    fig.text(x(LIMIT), top - 18, str(LIMIT), size=11)
    for k, width in enumerate(shown):
        y = top + row * k
        it, bold = panel(width), width == upto
        each, spilled = executed(width)
        color = "pink" if it.stack else "blue"
        fig.text(left - 8, y + 15, str(width), size=15, anchor="end", bold=bold)
        fig.rect(left, y + 2, x(it.registers) - left, 26, r=2, color=color, width=1.5, fill=color,
                 fill_opacity=0.3)  # fmt: skip
        fig.line(x(share(width)), y - 3, x(share(width)), y + 33, color="orange", width=3,
                 dash=(5, 3))  # fmt: skip
        fig.text(left + 8, y + 15, str(it.registers), size=13, anchor="start", bold=bold, halo=True)
        for at, words in (
            (304, f"{it.stack:,}" if it.stack else "\u2013"),
            (360, f"{100 * spilled:.1f} %" if it.stack else "\u2013"),
            (414, f"{each:,.0f}"),
        ):
            fig.text(at, y + 15, words, size=13, bold=bold)
    fig.line(left, foot + 18, left + 22, foot + 18, color="orange", width=3, dash=(5, 3))
    fig.text(left + 30, foot + 18, "entries of the panel a thread", size=13, anchor="start")
    return fig


def widths_stepper():
    """The panel kernel, wider and wider."""
    frames = [
        Frame(widths_frame(width), width_words(width), f"{width} columns") for width in WIDTHS
    ]
    return Stepper(frames, "Width", "Registers and spills against the width of a panel.", lines=4)
