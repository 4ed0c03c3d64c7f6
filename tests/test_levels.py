"""Machine code read: its loops, what a warp executes, and the line of Python that it comes from."""

import dataclasses
import functools
import inspect

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from qrlib import levels  # noqa: E402
from qrlib.compilelab import compile_kernel, families  # noqa: E402
from qrlib.levels import Instruction, Loop  # noqa: E402

BOTH = ("sm_90a", "sm_100a")


@triton.jit
def twice(x):
    return x * 2.5


@triton.jit
def walk_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(n):
        x = x * x + tl.sum(x, axis=0)
    tl.store(out_ptr + at, twice(x))


@functools.cache
def walk(target="sm_100a", block=256, warps=2):
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
    return compile_kernel(walk_kernel, signature, {"BLOCK": block}, target=target, num_warps=warps)


def line_of(function, words):
    """(file, number) of the line of a kernel that has these words."""
    lines, first = inspect.getsourcelines(function.fn)
    (k,) = [k for k, line in enumerate(lines) if words in line]
    return "test_levels.py", first + k


SASS = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0020*/                   FADD R2, R2, R3 ;
.L_x_2:
        /*0030*/              @!P1 STL [R1+0x8], R2 ;
        /*0040*/              @!UP2 BRA `(.L_x_2) ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
.L_x_3:
        /*0060*/               @P2 EXIT ;
        /*0070*/                   CALL.REL.NOINC `($slow) ;
        /*0080*/                   EXIT ;
$slow:
.L_x_4:
        /*0090*/                   FFMA.FTZ R0, R0, R0, RZ ;
        /*00a0*/               @P3 BRA `(.L_x_4) ;
        /*00b0*/                   RET.REL.NODEC R4 `(kernel) ;
.L_x_5:
        /*00c0*/                   BRA `(.L_x_5);
        /*00d0*/                   NOP;
"""


class TestByHand:
    def test_instructions(self):
        found = levels.parse(SASS)
        assert [each.address for each in found] == list(range(0, 0xC0, 16))
        assert found[3] == Instruction(0x30, "@!P1 STL [R1+0x8], R2", "STL")
        assert [each.name for each in found[-3:]] == ["FFMA", "BRA", "RET"]
        jumps = {each.address: each.jump for each in found if each.jump is not None}
        assert jumps == {0x10: 0x60, 0x40: 0x30, 0x50: 0x20, 0xA0: 0x90}

    def test_loops_are_branches_back_outside_of_subroutines(self):
        assert levels.loops(levels.parse(SASS)) == [Loop(0x20, 0x50), Loop(0x30, 0x40)]
        assert 0x50 in Loop(0x20, 0x50) and 0x60 not in Loop(0x20, 0x50)

    def test_the_main_part_ends_with_the_last_exit(self):
        assert [each.address for each in levels.main_part(levels.parse(SASS))][-1] == 0x80

    def test_notes(self):
        noted = SASS.replace(
            "        /*0020*/", '\t//## File "/a/b c/tiles.py", line 7\n        /*0020*/'
        ).replace("FADD R2, R2, R3 ;", "FADD R2, R2, R3 ;    // |   31  |   1    |    3   |  |")
        found = levels.parse(noted)
        assert found[0].line == levels.NOWHERE and found[0].live is None
        assert found[2].line == found[3].line == ("tiles.py", 7) and found[2].live == 31
        assert found[2].text == "FADD R2, R2, R3"


@pytest.mark.parametrize("target", BOTH)
def test_what_a_warp_executes(target):
    artifact = walk(target)
    (loop,) = artifact.loops
    main = levels.main_part(artifact.instructions)
    inside = sum(each.address in loop for each in main)
    assert 0 < inside < len(main)
    for trips in (0, 1, 16):
        assert sum(artifact.executed(trips).values()) == len(main) + (trips - 1) * inside
    # the sum over 64 threads: five exchanges in a warp, and once more across the two
    assert families(artifact.executed(10))["BAR"] == 10 * families(artifact.executed(1))["BAR"]


def test_spills_are_counted_by_where_they_stand():
    # the one spill of the code by hand is inside of both loops, and counted once
    sass = SASS.replace("CALL.REL.NOINC `($slow)", "LDL R9, [R1+0x8]")
    assert dataclasses.replace(walk(), sass=sass).spills == (1, 1)


def test_the_least_time_is_that_of_issuing():
    artifact = walk()
    device = artifact.device
    one = artifact.issue_time(1, 5)
    a_warp = sum(artifact.executed(5).values())
    assert one == pytest.approx(2 * a_warp / (device.sms * 4 * device.clock))
    assert artifact.issue_time(640, 5) == pytest.approx(640 * one)


@pytest.mark.parametrize("target", BOTH)
def test_a_line_is_followed_down_to_the_machine(target):
    artifact = walk(target)
    found = levels.trail(artifact, line_of(twice, "x * 2.5"))
    assert list(found) == ["TTIR", "TTGIR", "LLVM IR", "PTX", "SASS"]
    # a tile at first, then the four numbers that a thread has of it
    assert any("arith.mulf" in each and "tensor<256xf32>" in each for each in found["TTIR"])
    assert any("tensor<256xf32, #" in each for each in found["TTGIR"])
    assert any("= fmul " in each for each in found["LLVM IR"])
    assert any(each.startswith("mul.") for each in found["PTX"])
    multiplied = [each for each in found["SASS"] if each.startswith(("FMUL", "FMUL2"))]
    assert len(multiplied) == (2 if multiplied[0].startswith("FMUL2") else 4)
    # and no line is anybody else's
    assert not any("loc(" in each for each in found["TTIR"] + found["TTGIR"])
    assert not any("!dbg" in each or ".loc" in each for each in found["LLVM IR"] + found["PTX"])
    assert not any(levels.trail(artifact, ("test_levels.py", 1)).values())


def test_every_instruction_has_a_line_and_the_registers_fit():
    artifact = walk()
    known = [each for each in artifact.instructions if each.line != levels.NOWHERE]
    assert len(known) > 0.9 * len(artifact.instructions)
    assert {"test_levels.py"} < {each.line[0] for each in known}
    live = [each.live for each in artifact.instructions]
    assert 4 < max(live) <= artifact.registers
    assert [each.name for each in artifact.instructions] == [
        each.name for each in levels.parse(artifact.sass)
    ]


def test_without_live_registers_there_are_lines_all_the_same():
    """The tool of today does not tell them for Hopper; if one does, they must fit."""
    artifact = walk("sm_90a")
    live = [each.live for each in artifact.instructions]
    assert all(each is None for each in live) or max(live) <= artifact.registers
    assert len({each.line for each in artifact.instructions}) > 3


def test_the_kernel_computes_what_it_says():
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1")
    x = torch.linspace(-1, 1, 16)
    out = torch.empty(16)
    walk_kernel[(1,)](x, out, 1, BLOCK=16)
    torch.testing.assert_close(out, 2.5 * (x * x + x.sum()))
