"""Wrong answers to the exercises of chapter 8, each with words of the message that it gets."""

import re

from qrlib.teach.exercises import compilelab as chapter


def programs(
    registers, warps, shared, *, unit=256, quarters=True, most=64, blocks=32, system=1024,
    round_to=128, threads=32,
):  # fmt: skip
    """How many programs fit, with one thing changed."""
    warp = -(-threads * registers // unit) * unit
    places = 16384 // warp * 4 if quarters else 65536 // warp
    held = min(places // warps, most // warps, blocks)
    if shared:
        held = min(held, 228 * 1024 // (-(-(shared + system) // round_to) * round_to))
    return held


def spills(
    sass, *, guards=True, forward=False, first=True, last=True, once=True, names=("LDL", "STL"),
    digits="{4,}", modifiers=True,
):  # fmt: skip
    """Where the spills stand, with one thing changed."""
    spilled, loops, labels, ahead = [], [], {}, {}
    waiting, guard = [], r"(?:@!?U?P\w+\s+)?" if guards else ""
    name = r"(\w+)" if modifiers else r"(\w+)\s"
    for line in sass.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            waiting.append(label[1])
        found = re.match(rf"\s+/\*([0-9a-f]{digits})\*/\s+{guard}{name}", line)
        if not found:
            continue
        address = int(found[1], 16)
        for each in waiting:
            labels[each] = address
            if forward and each in ahead:
                loops.append((ahead[each], address))
        waiting.clear()
        if found[2].startswith(names):
            spilled.append(address)
        to = re.search(r"BRA .*`\((\.L_\w+)\)", line)
        if to and to[1] in labels:
            loops.append((labels[to[1]] + 16 * (not first), address - 32 * (not last)))
        elif to:
            ahead[to[1]] = address
    counts = [sum(a <= each <= b for a, b in loops) for each in spilled]
    inside = sum(map(bool, counts)) if once else sum(counts)
    return len(spilled) - sum(map(bool, counts)), inside


def fewest(rows, target, *, which=1, start=1, step=2, to=None):
    warps = start
    while chapter.spills(chapter.panel(rows, warps, to or target).sass)[which]:
        warps *= step
    return warps


def least(outside, inside, trips, warps, programs, sms, clock, *, parts=4, threads=1, each=1):
    total = programs * (warps if each else 1) * (outside + trips * inside) * threads
    return total / (parts * sms * clock)


WRONG = {
    "8.1": {
        "no units": (lambda *a: programs(*a, unit=1), "For registers = 33, warps = 4"),
        "units of 64": (lambda *a: programs(*a, unit=64), "rounded up to a multiple of 256"),
        "no quarters": (lambda *a: programs(*a, quarters=False), "A warp lies in one quarter"),
        "any number of warps": (
            lambda *a: programs(*a, most=10**6),
            "For registers = 16, warps = 4, shared = 0 it gives 32; expected 16",
        ),
        "any number of programs": (
            lambda *a: programs(*a, blocks=10**6),
            "64 // warps, and 32",
        ),
        "shared memory forgotten": (
            lambda r, w, s: programs(r, w, 0),
            "For registers = 32, warps = 4",
        ),
        "nothing for the system": (
            lambda *a: programs(*a, system=0),
            "For registers = 32, warps = 1, shared = 115713 it gives 2; expected 1",
        ),
        "to the byte": (
            lambda *a: programs(*a, round_to=1),
            "For registers = 32, warps = 1, shared = 32329 it gives 7; expected 6",
        ),
        "by threads": (
            lambda *a: programs(*a, threads=1),
            "For registers = 64, warps = 4, shared = 0 it gives 16; expected 8",
        ),
    },
    "8.2": {
        "all outside": (
            lambda sass: (len(re.findall(r"\b(?:LDL|STL)\b", sass)), 0),
            "it gives 4 outside and 0 inside; expected 2 and 2",
        ),
        "all inside": (
            lambda sass: (0, len(re.findall(r"\b(?:LDL|STL)\b", sass))),
            "it gives 0 outside and 2 inside; expected 2 and 0",
        ),
        "an if is a loop": (lambda sass: spills(sass, forward=True), "an if, no loop"),
        "guards overlooked": (
            lambda sass: spills(sass, guards=False),
            "For a loop with two of four it gives",
        ),
        "without the first of a loop": (
            lambda sass: spills(sass, first=False),
            "For a loop with two of four it gives 3 outside and 1 inside",
        ),
        "without the last of a loop": (
            lambda sass: spills(sass, last=False),
            "For a loop with two of four it gives 3 outside and 1 inside",
        ),
        "a loop in a loop counts twice": (
            lambda sass: spills(sass, once=False),
            "For a loop in a loop it gives 0 outside and 3 inside",
        ),
        "all loads and stores": (
            lambda sass: spills(sass, names=("LD", "ST")),
            "For loads from elsewhere it gives 0 outside and 4 inside",
        ),
        "loads only": (
            lambda sass: spills(sass, names=("LDL",)),
            "it gives 1 outside and 0 inside; expected 2 and 0",
        ),
        "addresses of four digits": (
            lambda sass: spills(sass, digits="{4}"),
            "For a loop far behind the beginning it gives 0 outside and 0 inside",
        ),
        "names without modifiers": (
            lambda sass: spills(sass, modifiers=False),
            "For a loop with two of four it gives 2 outside and 0 inside",
        ),
    },
    "8.3": {
        "no spill at all": (lambda *a: fewest(*a, which=0), "stand outside of the loop: harmless"),
        "always one": (lambda rows, target: 1, "the loop has"),
        "always four": (lambda rows, target: 4, "For 128 rows on sm_100a it gives 4; 1 will do"),
        "for another chip": (
            lambda rows, target: fewest(rows, target, to="sm_90a"),
            "For 256 rows on sm_100a it gives 1",
        ),
        "in steps of four": (
            lambda rows, target: fewest(rows, target, step=4),
            "For 256 rows on sm_100a it gives 4; 2 will do",
        ),
        "three": (lambda rows, target: 3, "The warps of a program are 1, 2, 4, 8"),
    },
    "8.4": {
        "the size of the task": ((512, 512), "there are 16 loads in the code"),
        "fewer rows": ((500, 512), "Which of them says how far it is from one row to the next?"),
        "three times sixteen": ((512, 48), "as for 512 x 512 (16)"),
        "a smaller tile": ((200, 500), "m must be 257 to 512"),
        "a half": ((512, 500.5), "whole numbers; got 512 and 500.5"),
    },
    "8.5": {
        "one instruction an SM": (lambda *a: least(*a, parts=1), "Each of the four quarters"),
        "for every thread": (lambda *a: least(*a, threads=32), "once for its 32 threads"),
        "one warp": (lambda *a: least(*a, each=0), "Every warp of a program issues all"),
        "all in the loop": (
            lambda o, i, t, *a: least(0, o + i, t, *a),
            "What is in the loop is issued",
        ),
        "the loop once": (lambda o, i, t, *a: least(o, i, 1, *a), "What is in the loop is issued"),
        "microseconds": (lambda *a: 1e6 * least(*a), "Seconds, not microseconds"),
        "whole fillings": (
            lambda o, i, t, w, p, s, c: -(-p // s) * least(o, i, t, w, 1, 1, c),
            "All warps of all programs share all quarters",
        ),
    },
}
