"""Exercises of chapter 8, What the compiler made of it: numbers and texts, and nothing is run."""

import re
from dataclasses import replace
from functools import cache

from qrlib.compilelab import compile_config
from qrlib.devices import DEVICES, KIB
from qrlib.launches import launches
from qrlib.teach.exercises.compare import number, several
from qrlib.teach.exercises.core import Exercise
from qrlib.teach.exercises.guard import Wrong
from qrlib.teach.figures.compilelab import panel

# 8.1


def programs(registers, warps, shared):
    """How many programs of a kernel an SM of a B200 holds at a time.

    registers: of a thread. warps: of a program, a power of two. shared: bytes of a program.
    """
    # a warp is granted registers in units of 256, all in one of four quarters
    warp = -(-32 * registers // 256) * 256
    held = min(16384 // warp * 4 // warps, 64 // warps, 32)
    if shared:
        granted = -(-(shared + 1024) // 128) * 128
        held = min(held, 228 * 1024 // granted)
    return held


def _hold(cases, hint):
    """A step: the answer is right for these (registers, warps, shared)."""

    def step(answer):
        for case in cases:
            got, right = number("programs", answer(*case)), programs(*case)
            if got != right:
                said = "registers = {}, warps = {}, shared = {}".format(*case)
                raise Wrong(f"For {said} it gives {got:g}; expected {right}.", hint)

    return step


# 8.2


def spills(sass):
    """(outside, inside): how many LDL and STL stand outside of every loop, and inside of one.

    sass: as nvdisasm -c writes it: labels at the beginning of a line, and instructions as in
        /*01f0*/  @!P1 BRA `(.L_x_3) ;
    """
    spilled, loops, labels, waiting = [], [], {}, []
    for line in sass.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            waiting.append(label[1])
        if not (found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(\w+)", line)):
            continue
        address, name = int(found[1], 16), found[2]
        labels.update(dict.fromkeys(waiting, address))
        waiting.clear()
        if name in ("LDL", "STL"):
            spilled.append(address)
        # a label that has come already is one that the branch jumps back to
        to = re.search(r"`\((\.L_\w+)\)", line)
        if name == "BRA" and to and to[1] in labels:
            loops.append((labels[to[1]], address))
    inside = sum(any(first <= each <= last for first, last in loops) for each in spilled)
    return len(spilled) - inside, inside


def _sass(*lines, address=0):
    """A disassembly of such lines: labels as they are, instructions with their addresses."""
    text = ["\t.section\t.text.kernel", ".text.kernel:"]
    for line in lines:
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(text) + "\n"


def _stand(cases, hint, address=0):
    """A step: the answer is right for these (about, lines)."""

    def step(answer):
        for about, lines in cases:
            sass = _sass(*lines, address=address)
            outside, inside = several(answer(sass, about=about), ("outside", "inside"))
            got, right = (number("outside", outside), number("inside", inside)), spills(sass)
            if got != right:
                raise Wrong(
                    f"For {about} it gives {got[0]:g} outside and {got[1]:g} inside; expected "
                    f"{right[0]} and {right[1]}.",
                    hint,
                )

    return step


def _stand_in_a_kernel(answer):
    artifact = panel(256, 1, "sm_100a")
    outside, inside = several(answer(artifact.sass, about="a panel of 256 rows, one warp"),
                              ("outside", "inside"))  # fmt: skip
    got, right = (number("outside", outside), number("inside", inside)), artifact.spills
    if got != right:
        raise Wrong(
            f"For the panel kernel with 256 rows and one warp it gives {got[0]:g} outside and "
            f"{got[1]:g} inside; expected {right[0]} and {right[1]}.",
            "Whatever stands behind the name, LDL.64 is an LDL.",
        )


_STRAIGHT = ("MOV R1, c[0x0][0x28]", "STL [R1], R2", "LDL R2, [R1]", "FADD R2, R2, R3", "EXIT")
_LOOP = (
    "STL [R1+0x8], R9",
    ".L_x_0:",
    "LDL.64 R2, [R1]",
    "FFMA R2, R2, R3, R4",
    "STL.64 [R1], R2",
    "@P0 BRA `(.L_x_0)",
    "LDL R9, [R1+0x8]",
    "EXIT",
)
_IF = ("@P0 BRA `(.L_x_1)", "STL [R1], R2", "LDL R2, [R1]", ".L_x_1:", "FADD R2, R2, R3", "EXIT")
_GUARDED = (
    "@P0 STL [R1], R2",
    ".L_x_2:",
    "@!P1 LDL R2, [R1]",
    "@!UP2 BRA `(.L_x_2)",
    "@P3 LDL R3, [R1]",
    "EXIT",
)
_NESTED = (
    ".L_x_3:",
    "STL [R1], R2",
    ".L_x_4:",
    "LDL R2, [R1]",
    "@P0 BRA `(.L_x_4)",
    "@P1 BRA `(.L_x_3)",
    "EXIT",
)
_OTHERS = (
    ".L_x_5:",
    "LDG.E R2, desc[UR4][R2.64]",
    "STS [R3], R2",
    "LDSM.16.M88.4 R4, [R3]",
    "STG.E desc[UR4][R2.64], R4",
    "@P0 BRA `(.L_x_5)",
    "EXIT",
)

# 8.3


def fewest_warps(rows, target):
    """The fewest warps, 1, 2, 4, ..., for which the panel kernel has no spill in its loop.

    rows: of the panel. target: "sm_90a" or "sm_100a".
    """
    warps = 1
    while spills(panel(rows, warps, target).sass)[1]:
        warps *= 2
    return warps


def _fewest(rows, target):
    def step(answer):
        # compiled before the answer is called, so that its time is not that of the compiler
        right = fewest_warps(rows, target)
        got = number("warps", answer(rows, target))
        if got == right:
            return
        if got not in (1, 2, 4, 8, 16, 32):
            raise Wrong(f"It gives {got:g} warps.", "The warps of a program are 1, 2, 4, 8, ...")
        outside, inside = panel(rows, int(got), target).spills
        if got < right:
            raise Wrong(
                f"For {rows} rows on {target} it gives {got:g}, but so the loop has {inside} loads "
                "and stores of spilled values.",
                "The loop must have none: spills(artifact.sass)[1] == 0.",
            )
        outside, _ = panel(rows, right, target).spills
        hint = "Begin with one warp, and stop at the first that has none in its loop."
        if outside:
            hint = f"With {right} all {outside} of them stand outside of the loop: harmless."
        raise Wrong(f"For {rows} rows on {target} it gives {got:g}; {right} will do.", hint)

    return step


# 8.4


@cache
def _first_panel(m, n):
    """(rows of the tile, artifact) of the first panel of an m x n matrix, as a loop."""
    config = next(
        each.config for each in launches("s05_panel", 2, m, n) if each.config.name == "panel_kernel"
    )
    rows = config.constexprs["BM"]
    looped = {**config.constexprs, "UNROLL": False}
    return rows, compile_config(
        replace(config, constexprs=looped, options={"num_warps": 4}), "sm_100a"
    )


def unloved_shape():
    """(m, n): a matrix whose first panel is loaded one number at a time, in a tile of 512 rows."""
    # solution
    # a row is 500 numbers long, which does not divide by 16
    return 512, 500
    # end


def _shape(answer):
    m, n = (number(name, each) for name, each in zip("mn", several(answer, ("m", "n"))))
    if m != int(m) or n != int(n) or not (257 <= m <= 512 and 16 <= n <= 4096):
        raise Wrong(
            f"m must be 257 to 512 and n 16 to 4096, whole numbers; got {m:g} and {n:g}.",
            "Leave m at 512 for a start, and change n.",
        )
    return int(m), int(n)


def _is_a_shape(answer):
    _shape(answer)


def _loads_one_by_one(answer):
    m, n = _shape(answer)
    wide = _first_panel(512, 512)[1].families["LDG"]
    rows, artifact = _first_panel(m, n)
    loads = artifact.families["LDG"]
    if loads < 2 * wide:
        notes = artifact.config.signature
        told = [name for name, said in notes.items() if name.startswith("stride_h") and ":" in said]
        raise Wrong(
            f"For {m} x {n} there are {loads} loads in the code, as for 512 x 512 ({wide}).",
            f"The compiler has been told that {', '.join(told)} divide by 16. Which of them says "
            "how far it is from one row to the next?",
        )


# 8.5


def least_time(outside, inside, trips, warps, programs, sms, clock):
    """Seconds in which so many programs can be issued at best.

    outside, inside: instructions of the code outside and inside of its loop, which goes round
    `trips` times. warps: of a program. sms, clock: of the device; a quarter of an SM issues one
    instruction of one warp a cycle.
    """
    return programs * warps * (outside + trips * inside) / (4 * sms * clock)


def _least(case, hint):
    def step(answer):
        got, right = number("seconds", answer(*case)), least_time(*case)
        if not abs(got - right) <= 1e-6 * right:
            slips = (
                (32, "A warp issues an instruction once for its 32 threads."),
                (4, "Each of the four quarters of an SM issues one a cycle."),
                (1 / case[3], "Every warp of a program issues all of its instructions."),
                (1e6, "Seconds, not microseconds."),
            )
            said = next((why for by, why in slips if abs(got - by * right) < 1e-6 * got), hint)
            raise Wrong(f"It gives {got:.6g} s; expected {right:.6g} s.", said)

    return step


def _least_of_a_panel(answer):
    artifact = panel(128, 1, "sm_100a")
    (loop,) = artifact.loops
    done = [artifact.executed(trips) for trips in (0, 1)]
    outside = sum(done[0].values())
    inside = sum(done[1].values()) - outside
    device = DEVICES["B200"]
    case = (outside, inside, 16, 1, 640, device.sms, device.clock)
    _least(case, "outside + trips * inside, for every warp of every program.")(answer)


_GRANT = "A warp is granted 32 * registers, rounded up to a multiple of 256."
_QUARTER = (
    "A warp lies in one quarter: 16384 // granted of them fit there. Four quarters have that many "
    "places each, and a program takes `warps` places."
)

EXERCISES = (
    Exercise(
        id="8.1",
        kind="predict",
        title="how many programs fit?",
        task="""
            Write programs(registers, warps, shared): how many programs of a kernel an SM of a B200
            holds at a time. The kernel needs so many registers a thread, has so many warps a
            program, and so many bytes of shared memory a program. The SM has four quarters with
            16384 registers each; a warp is granted registers in units of 256, all in one quarter.
            It holds 64 warps and 32 programs. It has 228 KiB of shared memory; a program takes its
            own and 1 KiB more, in units of 128 bytes. A program without shared memory takes none.
        """,
        solution=programs,
        steps=(
            ("registers alone", _hold([(64, 4, 0), (128, 4, 0), (256, 8, 0)], _QUARTER)),
            (
                "registers are granted in units",
                _hold([(33, 4, 0), (73, 4, 0), (129, 4, 0)], _GRANT),
            ),
            (
                "quarters",
                _hold([(145, 1, 0), (95, 16, 0), (101, 8, 0), (206, 4, 0), (89, 2, 0)], _QUARTER),
            ),
            (
                "no more than 64 warps and 32 programs",
                _hold([(16, 4, 0), (24, 8, 0), (16, 1, 0), (32, 1, 0)], "64 // warps, and 32."),
            ),
            (
                "shared memory",
                _hold(
                    [
                        (32, 1, 1),
                        (32, 4, 56 * KIB),
                        (32, 1, 113 * KIB),
                        (32, 1, 113 * KIB + 1),
                        (32, 1, 227 * KIB),
                        (32, 1, 227 * KIB + 1),
                        (200, 4, 8 * KIB),
                        (32, 1, 32329),
                    ],
                    "228 KiB // (shared + 1024, rounded up to a multiple of 128).",
                ),
            ),
        ),
        hints=(
            "What does one warp cost? How many of those fit into one quarter?",
            "Places in the SM: 4 * (16384 // granted). Programs: places // warps.",
            "The smallest of four numbers: by registers, by warps, by programs, by shared memory.",
        ),
    ),
    Exercise(
        id="8.2",
        kind="implement",
        title="where the spills stand",
        task="""
            Write spills(sass) -> (outside, inside). sass is the text of a disassembly. LDL loads
            what was spilled, STL stores it; both may have a guard before them and modifiers behind
            a dot. Count those that stand outside of every loop, and those that stand inside of one
            (or of several). A loop is everything from a label to a branch back to it, both
            included. A label stands in a line of its own, before the instruction that it names:

                .L_x_0:
                        /*0010*/              @!P1 LDL.64 R2, [R1] ;
                        /*0020*/               @P0 BRA `(.L_x_0) ;
        """,
        solution=spills,
        steps=(
            (
                "no loop",
                _stand([("code without a branch", _STRAIGHT)], "Count the lines with LDL and STL."),
            ),
            (
                "a loop",
                _stand(
                    [("a loop with two of four", _LOOP)],
                    "A branch to a label that stands before it closes a loop. What stands between "
                    "the two is inside.",
                ),
            ),
            (
                "a branch forward is no loop",
                _stand([("an if", _IF)], "The label stands behind the branch: an if, no loop."),
            ),
            (
                "guards, and loops in loops",
                _stand(
                    [("guarded instructions", _GUARDED), ("a loop in a loop", _NESTED)],
                    "@P0, @!P1, @!UP2 may stand before the name. And each counts once.",
                ),
            ),
            (
                "other loads and stores",
                _stand(
                    [("loads from elsewhere", _OTHERS)],
                    "LDG, LDS and LDSM load from other memories; STG and STS store there.",
                ),
            ),
            (
                "a long kernel",
                _stand(
                    [("a loop far behind the beginning", _LOOP)],
                    "In a long kernel addresses have five digits.",
                    address=0x1FFD0,
                ),
            ),
            ("a real one", _stand_in_a_kernel),
        ),
        hints=(
            "Go through the lines once. For each instruction: its address, its name.",
            "Keep {label: address of the instruction behind it}. A BRA to a label that you have "
            "seen already jumps back.",
            "loops is a list of (first, last); an address is inside if first <= address <= last "
            "for any of them.",
        ),
    ),
    Exercise(
        id="8.3",
        kind="measure",
        title="the fewest warps",
        task="""
            Write fewest_warps(rows, target): with how few warps, of 1, 2, 4, ..., the panel kernel
            can hold so many rows without a spill in its loop. Spills outside of the loop are
            harmless. Nothing is run: it is compiled. At hand:

                from qrlib.teach.figures.compilelab import panel
                from qrlib.teach.exercises.compilelab import spills

            panel(rows, warps, target) is compiled, and panel(...).sass its text.
        """,
        solution=fewest_warps,
        steps=(
            ("128 rows, B200", _fewest(128, "sm_100a")),
            ("256 rows, B200", _fewest(256, "sm_100a")),
            ("256 rows, H200", _fewest(256, "sm_90a")),
        ),
        hints=(
            "Print spills(panel(256, warps, target).sass) for warps = 1, 2, 4.",
            "Only the second of the two numbers counts.",
            "warps = 1; while there are any inside, warps *= 2.",
        ),
    ),
    Exercise(
        id="8.4",
        kind="break it",
        title="a shape that the compiler does not like",
        task="""
            For a 512 x 512 matrix the panel kernel loads four numbers with one instruction. Give
            (m, n) for which it loads them one by one, so that there are at least twice as many
            loads in the code, for a tile of the same size: 257 <= m <= 512, 16 <= n <= 4096. The
            result is right for every shape; only the machine code is worse. The types that the
            compiler gets are those of launches("s05_panel", 2, m, n)[...].config.signature.
        """,
        solution=unloved_shape,
        steps=(
            ("a shape", _is_a_shape),
            ("loaded one by one", _loads_one_by_one),
        ),
        hints=(
            "Four numbers come at once if their address divides by 16 bytes, in every row.",
            "An argument that divides by 16 is marked in the signature, as in i32:16. Which "
            "argument says how far apart rows are?",
            "Rows are n numbers apart. Take an n that does not divide by 16.",
        ),
    ),
    Exercise(
        id="8.5",
        kind="predict",
        title="a time that cannot be beaten",
        task="""
            A quarter of an SM issues at most one instruction of one warp in a cycle. Write
            least_time(outside, inside, trips, warps, programs, sms, clock): the seconds in which so
            many programs can be issued at best, for a kernel with so many instructions outside and
            inside of its loop, which goes round `trips` times. clock is in cycles a second.
        """,
        solution=least_time,
        steps=(
            ("one warp, no loop", _least((1000, 0, 1, 1, 1, 1, 1e9), "1000 / 4 cycles.")),
            (
                "a loop",
                _least(
                    (100, 50, 16, 1, 1, 1, 1e9),
                    "What is in the loop is issued `trips` times, the rest once.",
                ),
            ),
            (
                "a batch on a chip",
                _least(
                    (900, 900, 16, 4, 640, 132, 1.98e9),
                    "All warps of all programs share all quarters of all SMs.",
                ),
            ),
            ("a panel on a B200", _least_of_a_panel),
        ),
        hints=(
            "First: how many instructions does one warp issue?",
            "All programs together: programs * warps times as many.",
            "The chip issues 4 * sms of them a cycle, and clock cycles a second.",
        ),
    ),
)
