"""The figures of chapter "What the compiler made of it": compiled here, counted, drawn.

Nothing is measured. What was measured comes from book/data, written by `python -m
qrlib.teach.warps` on a GPU.
"""

import ast
import inspect
import re
import textwrap
from collections import Counter
from functools import cache
from html import escape

from qrlib.compilelab import FAMILIES, QUARTERS, REGISTER_UNIT, compile_stage
from qrlib.levels import NOWHERE, main_part, trail
from qrlib.teach.figures.roofline import stored
from qrlib.teach.stepper import Frame, Stepper
from qrlib.teach.svg import Figure, from_matplotlib, ink, matplotlib_style

COLUMNS = 16
WARPS = (1, 2, 4, 8, 16)
# registers of a thread, at most
LIMIT = 255
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


@cache
def panel(rows=512, warps=4, target="sm_100a", unrolled=False):
    """The panel kernel of stage 5, compiled for panels of so many rows and 16 columns."""
    (artifact,) = compile_stage(
        "s05_panel",
        *(640, rows, COLUMNS),
        target=target,
        kernel="panel_kernel",
        num_warps=warps,
        constexprs={"UNROLL": unrolled},
    )
    return artifact


# what instructions do, in groups: one that is in none of them is "other"
GROUPS = {
    "multiply, add": FAMILIES["FP32"],
    "choose": ("FSEL", "SEL", "ISETP", "FSETP", "P2R", "R2P", "PLOP3", "LOP3", "UISETP"),
    "exchange": (*FAMILIES["SHFL"], *FAMILIES["LDS"], *FAMILIES["STS"], *FAMILIES["BAR"]),
    "spill": FAMILIES["SPILL"],
}
LOOKS = {
    "multiply, add": "blue",
    "choose": "orange",
    "exchange": "green",
    "spill": "pink",
    "other": "muted",
}


def group(name):
    """The group of an instruction."""
    return next((each for each, names in GROUPS.items() if name in names), "other")


def grouped(mix):
    """{group: count} of {instruction: count}, every group named."""
    counts = Counter()
    for name, count in mix.items():
        counts[group(name)] += count
    return {each: counts[each] for each in LOOKS}


def inside(artifact):
    """The instructions of the kernel's loop, one round of which is one column of the panel."""
    (loop,) = artifact.loops
    return [each for each in artifact.instructions if each.address in loop]


# the road


@cache
def _functions():
    """{name: (file, first line, last line, [source lines])} of the kernel's functions."""
    from qrlib import tiles
    from qrlib.stages import s05_panel

    found = {}
    for module in (tiles, s05_panel):
        for name, value in vars(module).items():
            if hasattr(value, "fn"):
                lines, first = inspect.getsourcelines(value.fn)
                file = module.__name__.rpartition(".")[2] + ".py"
                found[name] = (file, first, first + len(lines) - 1, lines)
    return found


@cache
def _statements():
    """{line: (first line, text)} of every statement of these functions, on one line each."""
    found = {}
    for file, first, _, lines in _functions().values():
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.For, ast.If)):
                last = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
                text = [
                    re.sub(r"\s+#.*$", "", each).strip() for each in lines[node.lineno - 1 : last]
                ]
                said = " ".join(text).replace("( ", "(").replace(" )", ")")
                for k in range(node.lineno, last + 1):
                    found[file, first + k - 1] = ((file, first + node.lineno - 1), said)
    return found


def code_of(line):
    """The statement that a line of the kernel or of a tile function belongs to; "" for others."""
    return _statements().get(line, ("", ""))[1]


def _of_a_mirror(line):
    """Whether a line belongs to `mirror`, or to `reflect`, which is the rest of it."""
    places = [_functions()[name][:3] for name in ("mirror", "reflect")]
    return any(line[0] == file and first <= line[1] <= last for file, first, last in places)


def busiest(artifact):
    """The line of a mirror with the most FP32 instructions: the one to follow down the road."""
    counts = Counter(
        each.line
        for each in inside(artifact)
        if each.name in FAMILIES["FP32"] and _of_a_mirror(each.line)
    )
    return counts.most_common(1)[0][0]


LEVELS = {
    "Python": "You say what. A tile is a matrix, and nobody has heard of threads.",
    "TTIR": "Triton's own language. Each operation by itself, still on whole tiles, whatever the "
    "GPU.",
    "TTGIR": "Who does it. Every tile has a layout now, here #blocked: which thread of which warp "
    "holds which entries.",
    "LLVM IR": "One thread. The tile has shrunk to the numbers that one thread has of it.",
    "PTX": "NVIDIA's portable assembly: one instruction for each of them, and as many registers "
    "as one likes.",
    "SASS": "The machine of one GPU. Real registers, in an order that keeps the units busy.",
}


def road(artifact):
    """{level: lines} of the busiest line of Python, Python itself first."""
    line = busiest(artifact)
    return {"Python": [code_of(line)], **trail(artifact, line)}


def _mono(fig, x, y, words, *, size=12, color="ink"):
    """Words in a type in which all letters are equally wide."""
    look = {"font_family": MONO, "font_size": size, "text_anchor": "start"}
    fig.add("text", escape(words, False), x=x, y=y, dy="0.35em", fill=ink(color), **look)


def _typical(lines, count):
    """The last arithmetic lines of a level: those where the work is."""
    work = [
        each
        for each in lines
        if re.search(r"(FFMA2?|fma|fmul|fsub|mulf|subf)\b", each) and len(each) < 130
    ]
    return (work or lines)[-count:]


def road_frame(artifact, level):
    """One level: its place on the road, how many lines there are, and some of them."""
    lines = road(artifact)
    names = list(lines)
    width, top, box = 440, 8, 68
    wrapped = []
    for each in _typical(lines[level], 4):
        wrapped += textwrap.wrap(each, 56, subsequent_indent="    ", break_on_hyphens=False)
    shown = wrapped[-7:]
    many = len(lines[level])
    count = f"{many} line{'s' * (many != 1)}"
    alt = (
        f"The road of one line of Python through six levels. At {level} there are {count}. "
        f"Lines: {' / '.join(' '.join(each.split()) for each in shown)}"
    )
    fig = Figure(width, top + 52 + 14 + 7 * 21 + 18, alt, max_width=560)
    for k, name in enumerate(names):
        x, here = 6 + k * (box + 4), name == level
        look = {"color": "orange", "width": 3} if here else {"color": "muted", "width": 1.2}
        fig.rect(x, top, box, 44, r=5, fill="orange", fill_opacity=0.16 * here, **look)
        fig.text(x + box / 2, top + 15, name, size=13, bold=here)
        fig.text(x + box / 2, top + 32, str(len(lines[name])), size=12, color="muted")
        if k:
            fig.line(x - 4, top + 22, x, top + 22, color="muted")
    y = top + 64
    fig.rect(6, y - 4, width - 12, 7 * 21 + 14, r=5, color="faint", width=1)
    dots = many > len(_typical(lines[level], 4))
    for k, each in enumerate(shown):
        _mono(fig, 14, y + 14 + 21 * k, each, size=12)
    if dots and len(shown) < 7:
        left = many - len(_typical(lines[level], 4))
        fig.text(
            14, y + 14 + 21 * len(shown), f"and {left} more", size=12, anchor="start", color="muted"
        )
    return fig


def road_stepper(artifact):
    """One line of Python, from level to level."""
    lines = road(artifact)
    frames = [
        Frame(
            road_frame(artifact, level),
            f"{level}, {len(lines[level])} line{'s' * (len(lines[level]) != 1)}. {words}",
            level,
        )
        for level, words in LEVELS.items()
    ]
    alt = "One line of the panel kernel on its way from Python to the machine."
    return Stepper(frames, "Level", alt, lines=3)


# ten lines

# what an instruction does; {0} is where it writes, {1}, {2}, {3} what it reads
SAYS = {
    "FADD": "adds",
    "FADD2": "adds two pairs of numbers at once",
    "FMUL": "multiplies",
    "FMUL2": "multiplies two pairs of numbers at once",
    "FFMA": "multiplies and adds, a b + c, rounded once",
    "FFMA2": "does two multiply-adds at once, on neighbouring registers",
    "FSEL": "chooses one of two numbers by a predicate: a tl.where",
    "SEL": "chooses one of two integers by a predicate: a tl.where on bits",
    "FSETP": "compares two numbers and keeps the answer in a predicate",
    "ISETP": "compares two integers and keeps the answer in a predicate: a mask is made",
    "PLOP3": "combines predicates",
    "P2R": "packs predicates into a register, for there are only seven",
    "R2P": "unpacks predicates from a register",
    "LOP3": "any logic of three words of bits; here mostly predicates that are packed and unpacked",
    "IMAD": "multiplies and adds integers; with IADD or MOV behind the dot it only adds, or copies",
    "IADD3": "adds three integers",
    "SHFL": "hands a register over to another lane of the same warp: no memory, no barrier",
    "STS": "stores into shared memory",
    "LDS": "loads from shared memory",
    "LDSM": "loads a small matrix from shared memory",
    "BAR": "waits until all warps of the program have come here",
    "MUFU": "asks the unit for roots, reciprocals and the like for a first approximation",
    "FCHK": "asks whether a division needs the slow path",
    "CALL": "calls the slow path, for numbers that are very large or small",
    "LDG": "loads from device memory",
    "STG": "stores to device memory",
    "LDL": "loads back what was spilled",
    "STL": "spills: stores a register to memory, for there are too few",
    "BRA": "goes on somewhere else, if its predicate says so",
    "BSSY": "notes where the lanes of a warp meet again after a branch",
    "BSYNC": "waits for the lanes of the warp that took the other way",
    "MOV": "copies",
    "CS2R": "clears a register, mostly",
    "LDC": "loads a constant: an argument of the kernel",
    "UMOV": "copies, once for the whole warp (uniform)",
    "UIADD3": "adds integers, once for the whole warp (uniform)",
    "FMNMX": "takes the larger or the smaller of two numbers",
    "FMNMX3": "takes the largest or the smallest of three numbers",
}


def vocabulary(artifact, trips=COLUMNS):
    """[(instruction, times executed by a warp, what it does)], the most frequent first."""
    counts = artifact.executed(trips)
    return [(name, counts[name], SAYS[name]) for name in counts if name in SAYS]


def ten(artifact, count=10):
    """Ten instructions in a row of the loop that show the most: as many kinds as possible."""
    body = inside(artifact)
    kinds = {name: family for family, names in FAMILIES.items() for name in names}
    return max(
        (body[k : k + count] for k in range(len(body) - count + 1)),
        key=lambda window: (
            len({kinds.get(each.name) for each in window} - {None}),
            sum(each.name in GROUPS["exchange"] for each in window),
        ),
    )


def spoken(instruction):
    """An instruction in a sentence."""
    guard = re.match(r"@(!?)(U?P\w+)\s", instruction.text)
    only = f"Only where {guard[2]} is {'false' if guard[1] else 'true'}: " if guard else ""
    words = SAYS.get(instruction.name, "is explained in NVIDIA's list of instructions")
    operands = re.sub(r"^(@!?U?P\w+\s+)?\S+\s*", "", instruction.text)
    extra = ""
    if match := re.search(r"BFLY \w+, (\w+), (\w+), (\w+)", instruction.text):
        step = int(match[3], 16)
        extra = (
            f" Lane l gets in {match[1]} what lane l XOR {step} has in {match[2]}, and the other "
            "way round."
        )
    elif instruction.name in ("STS", "LDS") and (at := re.search(r"\[(\S+)\]", operands)):
        extra = f" The address is {at[1]}, in bytes."
    elif instruction.name in ("FADD", "IMAD", "FFMA"):
        extra = f" The result goes to {operands.split(',')[0]}, which is named first."
    said = code_of(instruction.line)
    origin = f" From: {said}" if said else ""
    return f"{only}{instruction.name} {words}.{extra}{origin}"


def ten_frame(artifact, at):
    """Ten instructions, one of them lit."""
    lines = ten(artifact)
    width, row = 440, 25
    alt = (
        f"Ten instructions in a row of the panel kernel for {artifact.target}. Line {at + 1}: "
        f"{lines[at].text}."
    )
    fig = Figure(width, row * len(lines) + 12, alt, max_width=560)
    for k, each in enumerate(lines):
        y = 6 + row * k
        here = k == at
        if here:
            fig.rect(4, y + 1, width - 8, row - 2, r=4, color="orange", width=2)
            fig.rect(4, y + 1, width - 8, row - 2, r=4, color="none", fill="orange",
                     fill_opacity=0.14)  # fmt: skip
            fig.text(14, y + row / 2, "\u25b6", size=11, color="orange")
        _mono(fig, 24, y + row / 2, f"{each.address:04x}", size=12, color="muted")
        guard, _, rest = each.text.partition(" ") if each.text[0] == "@" else ("", "", each.text)
        name, _, operands = rest.strip().partition(" ")
        _mono(fig, 64, y + row / 2, guard, size=12, color="muted")
        shown = f"{_short_name(name)} {operands.strip()}"
        _mono(fig, 100, y + row / 2, shown[:46], size=12, color="ink")
    return fig


def _short_name(name):
    """An instruction's name without the modifiers that only fill the line."""
    return name.replace(".DEFER_BLOCKING", "")


def ten_stepper(artifact):
    """Ten lines of SASS, read one by one."""
    lines = ten(artifact)
    frames = [
        Frame(ten_frame(artifact, k), f"{k + 1}. {spoken(each)}", f"line {k + 1}")
        for k, each in enumerate(lines)
    ]
    alt = "Ten lines of machine code, each explained."
    return Stepper(frames, "Line", alt, lines=4)


# what a column costs


def cost(artifact):
    """[(label, {group: instructions})] of one round of the loop, by lines of Python.

    Lines of `mirror` and `reflect` by themselves, alike ones together; what these call by function;
    the rest of the language last.
    """
    functions = _functions()
    own, called = {}, {}
    for each in inside(artifact):
        if _of_a_mirror(each.line):
            start, said = _statements().get(each.line, (each.line, ""))
            where, counts = own.setdefault(said, (start, Counter()))
            counts[group(each.name)] += 1
            # where it stands first
            own[said] = min(where, start), counts
            continue
        name = next(
            (
                name
                for name, (where, begin, end, _) in functions.items()
                if each.line[0] == where and begin <= each.line[1] <= end
            ),
            "tl.sum" if each.line != NOWHERE else "no line",
        )
        called.setdefault(name, Counter())[group(each.name)] += 1
    rows = [(said, counts) for said, (_, counts) in sorted(own.items(), key=lambda row: row[1][0])]
    rows += sorted(called.items(), key=lambda row: -sum(row[1].values()))
    return [(label, {each: counts[each] for each in LOOKS}) for label, counts in rows]


def cost_chart(artifact, least=4):
    """One column of a panel, line by line: how many instructions, and of which kind."""
    rows = [(label, counts) for label, counts in cost(artifact) if sum(counts.values()) >= least]
    total = grouped(Counter(each.name for each in inside(artifact)))
    most = max(sum(counts.values()) for _, counts in rows)
    width, row, top = 440, 37, 40
    said = ", ".join(f"{count} {name}" for name, count in total.items() if count)
    longest = sorted(rows, key=lambda each: -sum(each[1].values()))[:3]
    alt = (
        f"Instructions of one round of the loop for {artifact.target}, by lines of Python: "
        f"{sum(total.values())} in all, {said}. The longest bars: "
        + "; ".join(f"{label}, {sum(counts.values())}" for label, counts in longest)
    )
    fig = Figure(width, top + row * len(rows) + 6, alt, max_width=620)
    x = 8
    for name in LOOKS:
        if not total[name]:
            continue
        fig.rect(x, 8, 13, 13, r=2, **_look(name))
        fig.text(x + 18, 15, f"{name} {total[name]}", size=12, anchor="start")
        x += 34 + 6.6 * len(f"{name} {total[name]}")
    for k, (label, counts) in enumerate(rows):
        y = top + k * row
        shown = label if len(label) <= 58 else label[:56] + "\u2026"
        _mono(fig, 8, y + 7, shown, size=12, color="ink" if " " in label else "muted")
        x = 8
        for name in LOOKS:
            long = counts[name] / most * (width - 60)
            if counts[name]:
                fig.rect(x, y + 16, long, 13, **_look(name))
                x += long
        fig.text(x + 6, y + 22, str(sum(counts.values())), size=12, anchor="start")
    return fig


def _look(name):
    """How a group is drawn: by its colour, and by a rim that is dashed where it is not work."""
    color = LOOKS[name]
    dash = {"choose": (4, 2), "exchange": (1.5, 1.5)}.get(name)
    return {"color": color, "width": 1.5, "fill": color, "fill_opacity": 0.4, "dash": dash}


# who fits


def granted(artifact):
    """Registers that a warp is given: those of 32 threads, rounded up to the unit."""
    return -(-32 * artifact.registers // REGISTER_UNIT) * REGISTER_UNIT


def edge(artifact):
    """The most registers a thread may have for an SM to hold more programs than now."""
    warps = (artifact.programs + 1) * artifact.num_warps
    a_quarter = artifact.device.registers // 4 // QUARTERS
    return a_quarter // -(-warps // QUARTERS) // REGISTER_UNIT * REGISTER_UNIT // 32


def sm_words(artifact):
    """How the programs of a kernel fill an SM, in words."""
    quarter = artifact.device.registers // 4 // QUARTERS
    warp = granted(artifact)
    slots = quarter // warp
    return (
        f"{artifact.num_warps} warp{'s' * (artifact.num_warps > 1)} a program, "
        f"{artifact.registers} registers a thread: {warp} a warp. A quarter has {quarter}, room "
        f"for {slots} warps; four have room for {QUARTERS * slots}. Programs: "
        f"{artifact.programs}, limited by {artifact.bound}. Warps at work: "
        f"{artifact.programs * artifact.num_warps} of {artifact.device.warps}."
    )


def sm_frame(artifact):
    """The register files of the four quarters of an SM, and whose warps they hold."""
    quarter = artifact.device.registers // 4 // QUARTERS
    warp = granted(artifact)
    high, wide, top, left = 250, 92, 34, 24
    fig = Figure(
        440,
        top + high + 28,
        f"Four quarters of an SM, each with {quarter} registers. {sm_words(artifact)}",
        max_width=520,
    )
    colors = ("blue", "green", "orange", "pink")
    filled = [0] * QUARTERS
    for program in range(artifact.programs):
        for w in range(artifact.num_warps):
            q = (program * artifact.num_warps + w) % QUARTERS
            y = top + high * (1 - (filled[q] + 1) * warp / quarter)
            tall = high * warp / quarter
            color = colors[program % 4]
            x = left + q * (wide + 8)
            fig.rect(x + 2, y + 1, wide - 4, tall - 2, r=2, color=color, width=1.2, fill=color,
                     fill_opacity=0.28)  # fmt: skip
            if tall > 13:
                fig.text(x + wide / 2, y + tall / 2, f"program {program}", size=12)
            filled[q] += 1
    for q in range(QUARTERS):
        x = left + q * (wide + 8)
        fig.rect(x, top, wide, high, r=4, color="muted", width=1.5)
        fig.text(x + wide / 2, top - 14, f"quarter {q}", size=13)
        free = 1 - filled[q] * warp / quarter
        fig.text(x + wide / 2, top + high + 14, f"{100 * free:.0f} % free", size=12, color="muted")
    return fig


def sm_stepper(artifacts):
    """An SM filled with programs of 1, 2, 4, 8, ... warps."""
    frames = [
        Frame(
            sm_frame(each),
            sm_words(each),
            f"{each.num_warps} warp{'s' * (each.num_warps > 1)}",
        )
        for each in artifacts
    ]
    alt = f"How the panel kernel fills an SM, compiled for {artifacts[0].target}."
    return Stepper(frames, "Warps", alt, lines=4)


# spills


def pressure_plot(artifacts):
    """How many registers hold something that is still needed, along the code."""
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        said = []
        for artifact, shade, dash in zip(artifacts, ("orange", "blue", "green"), ("--", "-", ":")):
            code = main_part(artifact.instructions)
            live = [each.live for each in code]
            (loop,) = artifact.loops
            at = [k for k, each in enumerate(code) if each.address in loop]
            share = [k / len(live) for k in range(len(live))]
            label = f"{artifact.num_warps} warps"
            axes.plot(share, live, color=color[shade], ls=dash, lw=1.6, label=label)
            ends = (at[0] / len(live), at[-1] / len(live))
            axes.plot(ends, [4 + 9 * len(said)] * 2, color=color[shade], lw=4, ls="-")
            said.append(
                f"{artifact.num_warps} warps: at most {max(live)}, and the loop from "
                f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f} % of the code"
            )
        axes.axhline(LIMIT, color=color["ink"], lw=1, ls="-")
        axes.annotate(f"{LIMIT}: there are no more", (0.02, LIMIT + 4))
        axes.set(xlabel="place in the code, as a share of it (thick: the loop)", ylim=(0, 285))
        axes.set(ylabel="registers in use")
        figure.legend(loc="outside upper left", ncols=3)
        alt = (
            f"Registers in use along the code, compiled for {artifacts[0].target}; the limit is "
            f"{LIMIT}. {'; '.join(said)}."
        )
        return from_matplotlib(figure, alt, max_width=520)


# measured


def measured():
    """([{warps, unrolled, batch, us}], words): every variant on an H200, and where from."""
    data = stored("panel_warps")
    origin = data["provenance"]
    rows = [row | {"batch": data["batch"]} for row in data["variants"]]
    return rows, (
        f"measured on {origin['gpu']}, {origin['date'][:10]}, torch {origin['torch']}, Triton "
        f"{origin['triton']}"
    )


def timed(batch):
    """{(warps, unrolled): measured microseconds} for so many panels of 512 rows."""
    rows, _ = measured()
    return {(row["warps"], row["unrolled"]): row["us"][row["batch"].index(batch)] for row in rows}


def filling(artifact):
    """How many programs of a kernel the whole chip holds at a time. Compiled."""
    return artifact.device.sms * artifact.programs


def stairs(artifact, batch, us):
    """A function B -> predicted microseconds: fillings of the chip, one after another.

    Args:
        batch, us: measured. Only the first filling is used: how long the chip takes for so many
            programs as it holds at a time, or fewer.
    """
    full = filling(artifact)
    first = [(B, t) for B, t in zip(batch, us) if B <= full]
    if first[-1][0] != full:
        raise ValueError(f"a batch of {full} must be measured, one filling; got {batch}")

    def predicted(B):
        fillings, rest = divmod(B, full)
        last = next(t for size, t in first if size >= rest) if rest else 0.0
        return fillings * first[-1][1] + last

    return predicted


def stairs_plot(warps=4):
    """Measured time of a panel against the batch, and the stairs that the occupancy predicts."""
    rows, origin = measured()
    row = next(each for each in rows if each["warps"] == warps and not each["unrolled"])
    artifact = panel(512, warps, "sm_90a")
    full = filling(artifact)
    at = stairs(artifact, row["batch"], row["us"])
    batch = list(range(1, max(row["batch"]) + 1))
    ends = [k * full for k in range(1, max(batch) // full + 1)]
    later = [(B, us) for B, us in zip(row["batch"], row["us"]) if B > full]
    alt = (
        f"Microseconds for one panel of 512 x {COLUMNS} of each matrix of a batch, against the "
        f"batch: stairs, with a step up after every {full} matrices. Measured, and predicted from "
        "the first step: "
        + ", ".join(f"{B} matrices {us:.3g} and {at(B):.3g}" for B, us in later)
        + f". {origin}."
    )
    with matplotlib_style() as color:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(4.6, 3.4))
        axes.plot(batch, list(map(at, batch)), color=color["orange"], ls="--", label="predicted")
        axes.plot(row["batch"], row["us"], "o", color=color["blue"], ms=6, label="measured")
        for end in ends:
            axes.axvline(end, color=color["faint"], lw=1)
        axes.set(xlabel="matrices in the batch", ylabel="time, \u00b5s", ylim=(0, None))
        axes.set_xticks([1, *ends])
        figure.legend(loc="outside upper left", ncols=2)
        return from_matplotlib(figure, alt, max_width=520)


def spill_times(batch=640):
    """Measured time of the panel for each number of warps."""
    _, origin = measured()
    found = timed(batch)
    most = max(found.values())
    width, row, left, top = 440, 42, 8, 34
    said = "; ".join(
        f"{w} warp{'s' * (w > 1)}, {'unrolled' if u else 'a loop'}: {us:.4g}"
        for (w, u), us in found.items()
    )
    foot = textwrap.wrap(origin, 62)
    fig = Figure(
        width,
        top + row * len(found) + 14 * len(foot) + 8,
        f"Microseconds for {batch} panels of 512 x {COLUMNS}. {said}. {origin}.",
        max_width=560,
    )
    fig.text(
        left, 14, f"\u00b5s for {batch} panels of 512 \u00d7 {COLUMNS}", size=13, anchor="start"
    )
    for k, ((warps, unrolled), us) in enumerate(found.items()):
        y = top + k * row
        long = us / most * (width - 90)
        how = "unrolled" if unrolled else "a loop"
        fig.text(left, y + 9, f"{warps} warp{'s' * (warps > 1)}, {how}", size=13, anchor="start")
        color = "muted" if unrolled else "blue"
        fig.rect(left, y + 19, long, 13, color=color, fill=color, fill_opacity=0.4,
                 dash=(4, 2) if unrolled else None)  # fmt: skip
        fig.text(left + long + 8, y + 26, f"{us:.4g}", size=13, anchor="start", bold=True)
    for k, line in enumerate(foot):
        y = top + row * len(found) + 6 + 14 * k
        fig.text(left, y, line, size=12, anchor="start", color="muted")
    return fig


def kinds(batch=640):
    """[(what, kind, value)]: numbers about one kernel, each with the kind of number that it is."""
    ours, theirs = panel(512, 4, "sm_100a"), panel(512, 4, "sm_90a")
    rows, origin = measured()
    row = next(each for each in rows if each["warps"] == 4 and not each["unrolled"])
    us = row["us"][row["batch"].index(batch)]
    yield "registers a thread", "compiled for sm_100a", f"{ours.registers}"
    yield "programs an SM holds", "compiled for sm_100a", f"{ours.programs}"
    executed = sum(ours.executed(COLUMNS).values())
    yield "instructions a warp executes", "compiled for sm_100a", f"{executed:,}"
    for artifact in (ours, theirs):
        least = 1e6 * artifact.issue_time(batch, COLUMNS)
        name = artifact.device.name
        yield (
            f"{batch} panels on one {name}",
            f"predicted for {name}",
            f"at least {least:.1f} \u00b5s",
        )
    where = origin.replace("measured ", "")
    yield f"{batch} panels on one H200", f"measured {where}", f"{us:.1f} \u00b5s"
    yield f"{batch} panels on one B200", "nobody has measured it here", "?"


def kinds_table():
    """`kinds` as a table."""
    from IPython.display import Markdown

    lines = [
        "| the panel kernel, 512 \u00d7 16, 4 warps | kind of number | value |",
        "|---|---|---|",
    ]
    return Markdown("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in kinds())]))


def l1_share(artifact):
    """Bytes that the programs of an SM have spilled at a time, over its L1 and shared memory."""
    threads = artifact.programs * artifact.num_warps * 32
    return artifact.stack * threads / artifact.device.shared_sm
