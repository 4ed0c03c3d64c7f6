"""Kernels compiled without a GPU, and what came out of it: python -m qrlib.compilelab.

    python -m qrlib.compilelab s05_panel --target sm_100a --n 512
    python -m qrlib.compilelab s05_panel --target sm_100a --num-warps 4 --nb 16 --write out

A stage declares nothing for this: `launches` finds out what it starts, and that is compiled, with
the types, constants and divisibilities it would have on the GPU.

Counts are of instructions in the code, not of instructions executed: the body of a loop counts
once, an unrolled one as often as it stands there. Compiled is not measured.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import count, product
from pathlib import Path

from qrlib import levels
from qrlib.devices import KIB
from qrlib.jit import compilable, import_triton
from qrlib.launches import TARGETS, Config, device_of, launches

# what an SM grants, beyond DEVICES: blocks; from the CUDA guide, by capability
BLOCKS = {"7.5": 16, "8.0": 32, "9.0": 32, "10.0": 32}
# registers are granted to a warp in multiples of this; shared memory in multiples of the second,
# with so much for the system on top, a block
REGISTER_UNIT, SHARED_UNIT, SHARED_RESERVED = 256, 128, KIB
# parts of an SM with registers of their own; a warp lives in one
QUARTERS = 4
TENSOR_COLUMNS = 512


# what an instruction is, by the beginning of its name; the first that fits
FAMILIES = {
    "tcgen05": ("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMMA"),
    "HGMMA": ("HGMMA", "QGMMA", "IGMMA"),
    "HMMA": ("HMMA", "IMMA", "DMMA", "QMMA", "OMMA"),
    "FP32": ("FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2"),
    "MUFU": ("MUFU",),
    "SHFL": ("SHFL", "REDUX", "CREDUX"),
    "BAR": ("BAR", "SYNCS", "WARPSYNC"),
    "LDS": ("LDS", "LDSM"),
    "STS": ("STS", "STSM"),
    "LDG": ("LDG",),
    "STG": ("STG",),
    "ASYNC": ("LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG", "UTMAREDG"),
    "TMEM": ("LDTM", "STTM", "UTCCP"),
    "SPILL": ("LDL", "STL"),
}
TENSOR_CORES = ("tcgen05", "HGMMA", "HMMA")
WRITTEN = ("ttir", "ttgir", "llir", "ptx", "sass")


@dataclass(frozen=True, repr=False)
class Artifact:
    """A compiled kernel; prints itself.

    registers: a thread. stack: bytes a thread, where registers were too few. shared: bytes a
    program. code: bytes of instructions. mix: {instruction: how often it stands in the code}.
    tensor_memory: columns a program. ttir to sass: the kernel as text, level by level; cubin: as
    the GPU gets it. seconds: to compile; None where it came out of the cache.
    """

    config: Config
    target: str
    num_warps: int
    registers: int
    stack: int
    shared: int
    tensor_memory: int
    code: int
    mix: dict
    ttir: str
    ttgir: str
    llir: str
    ptx: str
    sass: str
    cubin: bytes
    seconds: float | None

    @property
    def device(self):
        return TARGETS[self.target]

    @property
    def families(self):
        """{family: count} of the instructions that cost: see FAMILIES; those that are there."""
        return families(self.mix)

    @cached_property
    def instructions(self):
        """[levels.Instruction], each with its line of Python and the registers in use there.

        The registers are None where the disassembler cannot tell: those of today do for sm_100a.
        """
        lined = levels.parse(_disassembled(self.cubin, "-g"))
        try:
            counted = levels.parse(_disassembled(self.cubin, "-lrm", "count"))
        except subprocess.CalledProcessError:
            return lined
        return [each._replace(live=other.live) for each, other in zip(lined, counted, strict=True)]

    @cached_property
    def plain(self):
        """`instructions` without lines and registers: at hand at once."""
        return levels.parse(self.sass)

    @cached_property
    def loops(self):
        """[levels.Loop]: from which address to which the code goes round."""
        return levels.loops(self.plain)

    def executed(self, trips):
        """{instruction: how often a warp issues it} if every loop goes round `trips` times.

        Both sides of a branch count; subroutines, which are called for rare numbers, do not.
        """
        counts = Counter()
        for each in levels.main_part(self.plain):
            counts[each.name] += trips ** sum(each.address in loop for loop in self.loops)
        return dict(counts.most_common())

    def issue_time(self, programs, trips):
        """Predicted: seconds below which so many programs cannot be done, for they must be issued.

        A quarter of an SM issues at most one instruction a cycle. As for `executed`.
        """
        total = programs * self.num_warps * sum(self.executed(trips).values())
        return total / (self.device.sms * QUARTERS * self.device.clock)

    @property
    def tensor_cores(self):
        """How many instructions go to the tensor cores."""
        return sum(self.families.get(family, 0) for family in TENSOR_CORES)

    @property
    def spilled(self):
        """True when values were sent to memory for want of registers."""
        return self.stack > 0 or "SPILL" in self.families

    @property
    def spills(self):
        """(outside, inside): loads and stores of spilled values in the code, by where they stand.

        What stands outside of all loops is executed once, and hardly ever matters.
        """
        here = [each for each in self.plain if each.name in FAMILIES["SPILL"]]
        inside = sum(any(each.address in loop for loop in self.loops) for each in here)
        return len(here) - inside, inside

    @property
    def fits(self):
        """True when the chip can run it at all."""
        return self.programs > 0

    @property
    def limits(self):
        """{what: programs of this kernel that it lets an SM hold}."""
        device = self.device
        warp = -(-32 * self.registers // REGISTER_UNIT) * REGISTER_UNIT
        limits = {
            "registers": device.registers // 4 // QUARTERS // warp * QUARTERS // self.num_warps,
            "warps": device.warps // self.num_warps,
            "blocks": BLOCKS[device.capability],
        }
        if self.shared:
            granted = -(-(self.shared + SHARED_RESERVED) // SHARED_UNIT) * SHARED_UNIT
            fits = self.shared <= device.shared_block
            limits["shared memory"] = device.shared_sm // granted if fits else 0
        if self.tensor_memory:
            limits["tensor memory"] = TENSOR_COLUMNS // self.tensor_memory
        return limits

    @property
    def programs(self):
        """How many programs of this kernel an SM holds at a time."""
        return min(self.limits.values())

    @property
    def bound(self):
        """What keeps an SM from holding more programs."""
        return min(self.limits, key=self.limits.get)

    def row(self):
        """(heading, text) of each column of a table."""
        families = self.families
        yield "target", self.target
        yield "regs", str(self.registers)
        yield "stack", f"{self.stack} B" if self.stack else "-"
        yield "shared", f"{self.shared} B" if self.shared else "-"
        yield "programs/SM", f"{self.programs} ({self.bound})"
        yield "code", f"{self.code / KIB:.1f} KiB"
        for family in FAMILIES:
            yield family, str(families.get(family, "-"))

    def __str__(self):
        mix = ", ".join(f"{count} {family}" for family, count in self.families.items())
        total = sum(self.mix.values())
        spilled = "none"
        if self.spilled:
            outside, inside = self.spills
            spilled = f"{self.stack} bytes of stack, {outside} outside of loops, {inside} inside"
        room = ", ".join(f"{n} by {what}" for what, n in self.limits.items())
        lines = [
            f"{self.config}, compiled for {self.target}",
            f"  {'registers':<15}{self.registers} a thread, {self.num_warps} warps",
            f"  {'spills':<15}{spilled}",
            f"  {'shared memory':<15}{self.shared} of {self.device.shared_block} bytes",
            f"  {'programs an SM':<15}{self.programs}: {room}",
            f"  {'instructions':<15}{total}, {self.code / KIB:.1f} KiB",
            f"  {'of these':<15}{mix or 'none that is counted apart'}",
        ]
        if self.seconds is not None:
            lines.append(f"  {'compiled in':<15}{self.seconds:.1f} s")
        return "\n".join(lines)

    __repr__ = __str__

    def write(self, folder):
        """The kernel at every level, as files in a folder, which is made. Returns their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        shown = {**self.config.constexprs, **self.config.options}
        stem = "-".join([self.config.name, *(f"{k}{v}" for k, v in shown.items()), self.target])
        stem = re.sub(r"[^\w.-]", "_", stem)
        for again in count(1):
            # two may differ in nothing but the divisibility of an argument
            name = stem if again == 1 else f"{stem}-{again}"
            texts = {folder / f"{name}.{kind}": getattr(self, kind) for kind in WRITTEN}
            if all(not path.exists() or path.read_text() == text for path, text in texts.items()):
                break
        for path, text in texts.items():
            path.write_text(text)
        return list(texts)


def families(mix):
    """{family: count} of {instruction: count}: see FAMILIES; those that are there."""
    counts = {family: sum(mix.get(n, 0) for n in names) for family, names in FAMILIES.items()}
    return {family: count for family, count in counts.items() if count}


class Table(tuple):
    """Artifacts, printed as one table. What all of them share is said once, above it."""

    heads = None

    def only(self, *heads):
        """The same with these columns alone, beside those that tell the rows apart."""
        fewer = Table(self)
        fewer.heads = heads
        return fewer

    def _settings(self, config):
        """What sets a kernel apart: its constants and options, and if it must be its arguments."""
        same = {c.key: c for c in (a.config for a in self) if str(c) == str(config)}.values()
        types = {
            name: kind
            for name, kind in config.signature.items()
            if any(other.signature.get(name) != kind for other in same)
        }
        return {"kernel": config.name, **config.constexprs, **types, **config.options}

    def _cells(self):
        settings = [self._settings(artifact.config) for artifact in self]
        names = list(dict.fromkeys(name for each in settings for name in each))
        shown = [[str(each.get(name, "-")) for name in names] for each in settings]
        rows = [
            [*zip(names, own), *artifact.row()] for own, artifact in zip(shown, self, strict=True)
        ]
        heads = [head for head, _ in rows[0]]
        columns = list(zip(*([text for _, text in row] for row in rows), strict=True))
        # a column of the same in every row says nothing between them
        fixed = {
            head: column[0]
            for head, column in zip(heads[: len(names) + 1], columns)
            if len(self) > 1 and len(set(column)) == 1
        }
        keep = [
            i
            for i, (head, column) in enumerate(zip(heads, columns))
            if head not in fixed
            and (head not in FAMILIES or set(column) != {"-"})
            and (self.heads is None or i <= len(names) or head in self.heads)
        ]
        said = ", ".join(
            f"{head} {value}" if head in ("kernel", "target") else f"{head}={value}"
            for head, value in fixed.items()
        )
        return said, [heads[i] for i in keep], [[row[i][1] for i in keep] for row in rows]

    def __str__(self):
        if not self:
            return "nothing was compiled"
        said, heads, rows = self._cells()
        widths = [max(map(len, column)) for column in zip(heads, *rows)]
        lines = [
            "  ".join(text.rjust(width) for text, width in zip(row, widths))
            for row in (heads, *rows)
        ]
        return "\n".join([said, *lines] if said else lines)

    __repr__ = __str__

    def _repr_html_(self):
        if not self:
            return str(self)
        said, heads, rows = self._cells()
        look = "style='padding:0 0.6em;text-align:right;white-space:nowrap'"
        head = "".join(f"<th scope='col' {look}>{escape(text)}</th>" for text in heads)
        body = "".join(
            "<tr>" + "".join(f"<td {look}>{escape(text)}</td>" for text in row) + "</tr>"
            for row in rows
        )
        # wider than a phone: it scrolls by itself, and by keyboard
        return (
            "<div style='overflow-x:auto' tabindex='0' role='group' aria-label='A table'>"
            f"<table class='qr-compiled'><caption>Compiled: {escape(said)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def compile_kernel(kernel, signature, constexprs=None, *, target="sm_100a", **options):
    """Compile one kernel for a target.

    Args:
        kernel, signature, constexprs: as in Config; parameters that the signature leaves out are
            "i32", pointers cannot be left out.
        target: a key of TARGETS.
        options: num_warps, num_stages and others of Triton's compiler.

    Returns:
        Artifact.

    Raises:
        RuntimeError: Triton is not here; the message says what to do.
        ValueError: no such target, or a parameter that the kernel has not.

    Cost: seconds, the first time; Triton keeps what it compiled.
    """
    return compile_config(Config(kernel, dict(signature), dict(constexprs or {}), options), target)


def sweep(kernel, signature, constexprs=None, *, target="sm_100a", **options):
    """`compile_kernel` for every combination: a list among the values is tried one by one.

    sweep(panel_kernel, {...}, {"BM": [128, 256, 512], "BN": 16}, num_warps=[1, 2, 4, 8])

    Returns:
        Table.
    """
    constexprs = constexprs or {}
    axes = {"target": target, **constexprs, **options}
    lists = {k: v if isinstance(v, (list, tuple)) else [v] for k, v in axes.items()}
    found = []
    for values in product(*lists.values()):
        each = dict(zip(lists, values, strict=True))
        target = each.pop("target")
        own = {k: each.pop(k) for k in constexprs}
        found.append(compile_kernel(kernel, signature, own, target=target, **each))
    return Table(found)


def compile_stage(
    stage, B, m, n, *, target="sm_100a", kernel=None, num_warps=None, constexprs=None, **options
):
    """Compile every kernel that a stage launches for a batch [B, m, n].

    Args:
        stage, B, m, n, target, options: as for launches.
        kernel: the name of one of the kernels; None for all.
        num_warps, constexprs: in place of the stage's own; a kernel takes of the second what it
            has.

    Returns:
        Table, with each different machine code once.
    """
    configs = {}
    for launch in launches(stage, B, m, n, target=target, **options):
        config = launch.config
        if num_warps is not None:
            config = replace(config, options={**config.options, "num_warps": num_warps})
        own = {k: v for k, v in (constexprs or {}).items() if k in config.constexprs}
        config = replace(config, constexprs={**config.constexprs, **own})
        configs.setdefault(config.key, config)
    names = sorted({config.name for config in configs.values()})
    if not names:
        raise ValueError(f"{stage} launches no kernel of its own; stages from s05 on do")
    if kernel is not None and kernel not in names:
        raise ValueError(f"kernel must be one of {', '.join(names)}; got {kernel!r}")
    chosen = [config for config in configs.values() if kernel in (None, config.name)]
    return Table(compile_config(config, target) for config in chosen)


def compile_config(config, target):
    """The Artifact of a Config; as compile_kernel."""
    triton = import_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    capability = int(device_of(target).capability.replace(".", ""))
    with ExitStack() as stack:
        kernel = stack.enter_context(compilable(config.kernel))
        source = ASTSource(kernel, *_source(config, kernel.arg_names))
        stack.enter_context(triton.knobs.compilation.scope())
        times = []
        triton.knobs.compilation.listener = lambda **said: times.append(said)
        compiled = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options=dict(config.options)
        )
    said = times[-1]
    spent = said["times"]
    seconds = (spent.total_lowering + spent.ir_initialization) / 1e6
    cubin = compiled.asm["cubin"]
    usage, sass = _usage(cubin), _disassembled(cubin)
    mix = Counter(each.name for each in levels.parse(sass))
    return Artifact(
        config=config,
        target=target,
        num_warps=compiled.metadata.num_warps,
        registers=usage["REG"],
        stack=usage["STACK"],
        shared=compiled.metadata.shared,
        tensor_memory=getattr(compiled.metadata, "tmem_size", None) or 0,
        code=16 * sum(mix.values()),
        mix=dict(mix.most_common()),
        **{level: compiled.asm[level] for level in WRITTEN if level != "sass"},
        sass=sass,
        cubin=cubin,
        seconds=None if said["cache_hit"] else seconds,
    )


def _source(config, parameters):
    """(signature, constexprs, attributes) as triton.compiler.ASTSource wants them."""
    unknown = {*config.signature, *config.constexprs} - set(parameters)
    if unknown:
        raise ValueError(
            f"{config.name} has the parameters {', '.join(parameters)}; got {sorted(unknown)}"
        )
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(parameters):
        if name in config.constexprs:
            signature[name], constants[(i,)] = "constexpr", config.constexprs[name]
            continue
        kind, _, divisor = config.signature.get(name, "i32").partition(":")
        if kind in ("1", "None"):
            signature[name], constants[(i,)] = "constexpr", 1 if kind == "1" else None
            continue
        signature[name] = kind
        if divisor:
            attributes[(i,)] = [["tt.divisibility", int(divisor)]]
    return signature, constants, attributes


def _usage(cubin):
    """{"REG": registers, "STACK": bytes, ...} a thread, by a tool that comes with Triton."""
    said = _said(import_triton().knobs.nvidia.cuobjdump.path, cubin, "-res-usage")
    return {what: int(value) for what, value in re.findall(r"(\w+):(\d+)", said)}


def _disassembled(cubin, *options):
    """SASS, by a tool that comes with Triton."""
    return _said(import_triton().knobs.nvidia.nvdisasm.path, cubin, "-c", *options)


def _said(tool, cubin, *options):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(arguments=None):
    """The command line. Returns the exit status: 1 where something spilled or does not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m qrlib.compilelab", description=__doc__.split("\n")[0]
    )
    parser.add_argument("stage", help="a stage with kernels, such as s05_panel")
    parser.add_argument("--target", default="sm_100a", choices=TARGETS)
    parser.add_argument("--n", type=int, default=512, help="columns of a matrix (512)")
    parser.add_argument("--m", type=int, help="rows (as many as columns)")
    parser.add_argument("--batch", type=int, default=640, help="matrices (640)")
    parser.add_argument("--nb", type=int, help="block width, where the stage takes one")
    parser.add_argument("--precision", help="of the products, where the stage takes one")
    parser.add_argument("--kernel", help="only the kernel of this name")
    parser.add_argument("--num-warps", type=int, help="in place of the stage's own")
    parser.add_argument("--write", metavar="DIR", help="write what it is at every level there")
    asked = parser.parse_args(arguments)
    options = {k: v for k in ("nb", "precision") if (v := getattr(asked, k)) is not None}
    shape = asked.batch, asked.m or asked.n, asked.n
    try:
        table = compile_stage(
            asked.stage,
            *shape,
            target=asked.target,
            kernel=asked.kernel,
            num_warps=asked.num_warps,
            **options,
        )
    except (ValueError, RuntimeError, TypeError) as error:
        parser.error(str(error))
    print(table[0] if len(table) == 1 else table)
    if asked.write:
        for artifact in table:
            print(*artifact.write(asked.write), sep="\n")
    return int(any(a.spilled or not a.fits for a in table))


if __name__ == "__main__":
    sys.exit(main())
