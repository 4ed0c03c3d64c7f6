"""A compiled kernel, level by level and line by line: what became of one line of Python.

    Python  ->  TTIR  ->  TTGIR  ->  LLVM IR  ->  PTX  ->  SASS

Each level notes where its lines come from (loc, !dbg, .loc, a table of lines), so that a line of
Python can be followed down to the machine. A line is (name of the file, number): a kernel is made
of functions from several files.
"""

import re
from typing import NamedTuple

Line = tuple[str, int]
NOWHERE = ("", 0)


class Instruction(NamedTuple):
    """One instruction of the machine.

    address: in bytes, 16 an instruction. text: as the disassembler writes it. name: without guard
    and modifiers. line: of Python. jump: address that a branch goes to. live: registers that hold
    something which is still needed.
    """

    address: int
    text: str
    name: str
    line: Line = NOWHERE
    jump: int | None = None
    live: int | None = None


class Loop(NamedTuple):
    """Addresses of the first and the last instruction of a loop."""

    first: int
    last: int

    def __contains__(self, address):
        return self.first <= address <= self.last


_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+([^;]+?)\s*;(.*)$")
_NAME = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


def parse(sass):
    """[Instruction] of a disassembly by nvdisasm, without the padding at its end.

    Options: -c; with -g lines are filled in, with -lrm count the live registers.
    """
    found, labels, waiting, line = [], {}, [], NOWHERE
    for text in sass.splitlines():
        if label := re.match(r"(\.L_\w+):", text):
            waiting.append(label[1])
        elif note := re.search(r'//## File "([^"]+)", line (\d+)', text):
            line = _line(*note.groups())
        elif match := _INSTRUCTION.match(text):
            address, said, rest = int(match[1], 16), match[2], match[3]
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            live = re.search(r"// \|\s*(\d*)\s*\|", rest)
            name = _NAME.match(said)
            live = int(live[1] or 0) if live else None
            found.append(Instruction(address, said, name[1] if name else said, line, None, live))
    while found and found[-1].name in ("NOP", "BRA"):
        found.pop()
    return [
        each._replace(jump=labels.get(to[1]))
        if each.name == "BRA" and (to := re.search(r"`\((\.L_\w+)\)", each.text))
        else each
        for each in found
    ]


def main_part(instructions):
    """Without subroutines: they stand behind the last EXIT, and are called for rare numbers."""
    exits = [k for k, each in enumerate(instructions) if each.name == "EXIT"]
    return instructions[: exits[-1] + 1] if exits else instructions


def loops(instructions):
    """[Loop], in the order of the code: from where a branch goes back to, up to the branch."""
    back = [i for i in main_part(instructions) if i.jump is not None and i.jump <= i.address]
    return sorted({Loop(each.jump, each.address) for each in back})


def trail(artifact, line):
    """{level: its lines that come from a line of Python}, the first level first.

    Args:
        artifact: of qrlib.compilelab. line: (name of a file, number).
    """
    return {
        "TTIR": _of_mlir(artifact.ttir, line),
        "TTGIR": _of_mlir(artifact.ttgir, line),
        "LLVM IR": _of_llvm(artifact.llir, line),
        "PTX": _of_ptx(artifact.ptx, line),
        "SASS": [each.text for each in artifact.instructions if each.line == line],
    }


def _line(path, number):
    return path.replace("\\", "/").rpartition("/")[2], int(number)


def _of_mlir(text, line):
    """Lines of TTIR or TTGIR. A location is a place, a name for one, or a callee at a caller."""
    places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def resolve(said):
        if place := re.match(r'"([^"]*)":(\d+):\d+', said):
            return _line(*place.groups())
        inner = re.match(r'(?:"[^"]*"\(|callsite\()?(#loc\d*)', said)
        return resolve(places[inner[1]]) if inner and inner[1] in places else NOWHERE

    at = re.compile(r" loc\(((?:#loc\d*|callsite\([^()]*\)|\"[^\"]*\":\d+:\d+))\)$")
    return [
        at.sub("", each).strip()
        for each in text.splitlines()
        if not each.startswith("#loc") and (said := at.search(each)) and resolve(said[1]) == line
    ]


def _of_llvm(text, line):
    """Lines of LLVM IR: !dbg names a location, its scope a file."""
    notes = dict(re.findall(r"^(!\d+) = (.*)$", text, re.MULTILINE))

    def wanted(note):
        number = re.search(r"\bline: (\d+)", notes.get(note, ""))
        scope = re.search(r"\bscope: (!\d+)", notes.get(note, ""))
        file = re.search(r"\bfile: (!\d+)", notes.get(scope[1], "")) if scope else None
        name = re.search(r'filename: "([^"]*)"', notes.get(file[1], "")) if file else None
        return bool(number and name) and _line(name[1], number[1]) == line

    own = {note for note in notes if wanted(note)}
    return [
        re.sub(r", !dbg !\d+.*$", "", each).strip()
        for each in text.splitlines()
        if (note := re.search(r", !dbg (!\d+)", each)) and note[1] in own
    ]


def _of_ptx(text, line):
    """Instructions of PTX: they come from the last .loc before them."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.MULTILINE))
    found, here = [], NOWHERE
    for each in text.splitlines():
        if place := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", each):
            here = _line(files[place[1]], place[2])
        elif here == line and (said := re.match(r"\s+([@\w{][^;/]*;)", each)):
            found.append(re.sub(r"\s+", " ", said[1]))
    return found
