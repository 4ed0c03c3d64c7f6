"""What programs loaded and stored, and the faults in it: the records behind `qrlib.tracer`.

An element is a position in the storage of a tensor. Every storage remembers for each element which
program stored it last, how many barriers ago, and which two programs loaded it last.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

# addresses end below it; above stands which argument a pointer came from
TAG_BIT = 52
# a NaN in every float format of two bytes and more, and in no matrix
POISON = 0x7FFE
KINDS = ("out of bounds", "unwritten", "race", "no barrier")


class TraceError(AssertionError):
    """A kernel touched memory in a way it must not; the message says which, where and by whom."""


class Tally(NamedTuple):
    """Instructions that programs executed; elements and bytes they moved; different elements."""

    instructions: int
    elements: int
    bytes: int
    distinct: int


class Traffic(NamedTuple):
    """What was loaded, stored, and changed by atomics; masked lanes are not in it."""

    load: Tally
    store: Tally
    atomic: Tally


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic of one program.

    tensor: the tensor's name; argument: the kernel parameter its pointer came from.
    elements: of the tensor's storage, in the order of the lanes; masked lanes are left out.
    lanes: of the tile, masked or not. itemsize: bytes an element. storage: its address.
    """

    kernel: str
    launch: int
    program: tuple[int, int, int]
    op: str
    tensor: str
    argument: str
    elements: np.ndarray
    lanes: int
    itemsize: int
    storage: int

    @property
    def masked(self):
        """True when some lanes were masked."""
        return self.elements.size < self.lanes

    @property
    def bytes(self):
        return self.elements.size * self.itemsize


@dataclass
class Fault:
    """One kind of fault of one argument in one launch, however often it happened.

    indices: the first few, as indices of the argument; program: the first that did it.
    other: in a race, the program it met. count: elements, over all programs.
    """

    kind: str
    kernel: str
    argument: str
    shape: tuple[int, ...]
    op: str
    program: tuple[int, int, int]
    other: tuple[int, int, int] | None
    indices: list[tuple[int, ...]]
    count: int = 0
    programs: set = field(default_factory=set)

    def __str__(self):
        where = ", ".join(f"{self.argument}{list(index)}" for index in self.indices)
        more = f" and {self.count - len(self.indices)} more" * (self.count > len(self.indices))
        by = f" by {len(self.programs)} programs" * (len(self.programs) > 1)
        said = {
            "out of bounds": f"outside {self.argument}, which is {list(self.shape)}",
            "unwritten": "which nothing has written",
            "race": f"which program {self.other} of the same launch has touched too"
            if self.other
            else "two different values at once",
            "no barrier": "which it stored itself with no tl.debug_barrier between",
        }[self.kind]
        return (
            f"{self.kind}: {self.kernel}, program {self.program}: "
            f"{self.op} of {where}{more}{by}, {said}"
        )


class _Storage:
    """Memory behind one or more tensors, and who touched which element last."""

    def __init__(self, tensor):
        # held, so that no later allocation gets the same address
        self.memory = tensor.untyped_storage()
        self.base = self.memory.data_ptr()
        self.itemsize = tensor.element_size()
        n = self.memory.nbytes() // self.itemsize
        # programs are numbered from 1 over all launches
        self.writer, self.written_at, self.reader, self.other_reader = np.zeros((4, n), np.int64)


class _Tensor:
    """A tensor by some name. home: its storage; inside: which elements of that are its own.

    belongs: the name of the traced tensor that it is, or is a part of.
    """

    def __init__(self, name, tensor, home, belongs=None):
        self.name, self.tensor, self.home, self.belongs = name, tensor, home, belongs or name
        self.inside = np.zeros(home.writer.size, bool)
        if tensor.numel():
            _view(self.inside, tensor)[...] = True

    def index(self, element):
        """An element of the storage as an index of this tensor, which may lie outside it.

        An element between two of the tensor's has a fraction: x[::2][1.5] is x[3].
        """
        left = int(element) - self.tensor.storage_offset()
        strides, shape = self.tensor.stride(), self.tensor.shape
        index = [0] * len(shape)
        steps = [d for d in range(len(shape)) if strides[d] == 1 or strides[d] and shape[d] > 1]
        for d in sorted(steps, key=lambda d: -strides[d]):
            index[d], left = divmod(left, strides[d])
        if left and steps:
            last = min(steps, key=lambda d: strides[d])
            index[last] += left / strides[last]
        return tuple(index) if steps else (left,)


def _view(per_element, tensor):
    """An array with one entry an element of a storage, in the shape of a tensor on it."""
    step = per_element.itemsize
    start = per_element[tensor.storage_offset() :]
    strides = [step * s for s in tensor.stride()]
    return np.lib.stride_tricks.as_strided(start, tuple(tensor.shape), strides)


@dataclass
class Launch:
    """One launch: the kernel's name, its grid, its accesses in program order."""

    kernel: str
    grid: tuple[int, ...] = ()
    accesses: list[Access] = field(default_factory=list)
    first: int = 0

    @property
    def per_program(self):
        """{program: Traffic}, for every program of the grid."""
        mine = defaultdict(list)
        for access in self.accesses:
            mine[access.program].append(access)
        return {program: _traffic(mine[program]) for program in np.ndindex(*self.grid)}

    @property
    def total(self):
        return _traffic(self.accesses)


def _traffic(accesses):
    return Traffic(*(_tally([a for a in accesses if a.op == op]) for op in Traffic._fields))


def _tally(accesses):
    touched = defaultdict(list)
    for access in accesses:
        touched[access.storage].append(access.elements)
    distinct = sum(np.unique(np.concatenate(each)).size for each in touched.values())
    elements = sum(access.elements.size for access in accesses)
    return Tally(len(accesses), elements, sum(access.bytes for access in accesses), distinct)


class Trace:
    """What `trace` saw.

    launches: one Launch a kernel start. faults: one Fault for each kind, argument and launch.
    """

    def __init__(self, tensors):
        self.launches, self.faults = [], []
        self._storages, self._named = {}, {}
        self._arguments, self._programs = {}, [None]
        self._barriers, self._found = 0, {}
        for name, tensor in tensors.items():
            _on_cpu(name, tensor)
            self._name(name, tensor)

    @property
    def accesses(self):
        """Every Access, in program order."""
        return [access for launch in self.launches for access in launch.accesses]

    @property
    def total(self):
        """Traffic of all programs of all launches."""
        return _traffic(self.accesses)

    @property
    def per_program(self):
        """{program: Traffic} of the one launch that was traced."""
        if len(self.launches) != 1:
            raise ValueError(
                f"per_program is for one launch, and {len(self.launches)} were traced; "
                "ask one of them: t.launches[0].per_program"
            )
        return self.launches[0].per_program

    def of(self, name):
        """Traffic of one tensor, by arguments that are it or a part of it and of no smaller one."""
        self._tensor(name)
        return _traffic([a for a in self.accesses if a.tensor == name])

    def map(self, name, op="load"):
        """How often each element of a tensor was loaded (or op="store"): int64, its shape."""
        tensor = self._tensor(name)
        counts = np.zeros(tensor.home.writer.size, np.int64)
        for access in self.accesses:
            if access.storage == tensor.home.base and access.op == op:
                np.add.at(counts, access.elements, 1)
        return _view(counts, tensor.tensor).copy()

    def summary(self):
        """A table: what went in and out of each tensor, and how often each of its elements."""
        grids = [f"{launch.kernel}{list(launch.grid)}" for launch in self.launches]
        shown = ", ".join(grids[:3]) + f" and {len(grids) - 3} more" * (len(grids) > 3)
        lines = [f"{len(grids)} launch{'es' * (len(grids) != 1)}: {shown}"]
        head = ("", "instructions", "elements", "bytes", "distinct", "times each")
        lines.append("  {:<20}{:>13}{:>12}{:>14}{:>12}{:>12}".format(*head))
        seen = {access.tensor for access in self.accesses}
        for name in filter(seen.__contains__, self._named):
            for op, tally in zip(Traffic._fields, self.of(name), strict=True):
                if tally.instructions:
                    lines.append(_row(f"{name} {op}", tally))
        for op, tally in zip(Traffic._fields, self.total, strict=True):
            if tally.instructions:
                lines.append(_row(f"all {op}s", tally))
        return "\n".join([*lines, *(f"  {fault}" for fault in self.faults)])

    __str__ = summary

    def check(self, ignore=()):
        """Raise TraceError for faults, but for the kinds in `ignore`, and if nothing was seen."""
        unknown = set(ignore) - set(KINDS)
        if unknown:
            raise ValueError(f"ignore must be among {', '.join(KINDS)}; got {sorted(unknown)}")
        if not any(launch.accesses for launch in self.launches):
            raise TraceError(
                "no load or store was seen; a kernel must be launched inside the block, and must "
                "have been defined with TRITON_INTERPRET=1 set"
            )
        faults = [str(fault) for fault in self.faults if fault.kind not in ignore]
        if faults:
            raise TraceError("\n".join(faults))

    def _tensor(self, name):
        if name not in self._named:
            raise ValueError(f"traced were {', '.join(self._named) or 'no tensors'}; got {name!r}")
        return self._named[name]

    def _home(self, tensor):
        address = tensor.untyped_storage().data_ptr()
        if address not in self._storages:
            self._storages[address] = _Storage(tensor)
        return self._storages[address]

    def _name(self, name, tensor):
        self._named[name] = _Tensor(name, tensor, self._home(tensor))

    def _around(self, part):
        """The named tensors that have all elements of another."""
        same = [t for t in self._named.values() if t.home is part.home]
        return [t for t in same if not (part.inside & ~t.inside).any()]

    # from here on: what the hooks call

    def begin(self, kernel):
        """A kernel is about to be launched."""
        self._arguments = {}
        self.launches.append(Launch(kernel, first=len(self._programs)))

    def argument(self, name, tensor):
        """A tensor argument of this launch; gives the number that its pointers carry."""
        _on_cpu(name, tensor)
        home = self._home(tensor)
        given = _Tensor(name, tensor, home)
        around = self._around(given)
        if not around:
            # nobody named it: it gets the parameter's name, and is mapped as a whole
            stem = name.removesuffix("_ptr")
            taken = sum(n == stem or n.startswith(f"{stem}#") for n in self._named)
            whole = tensor if tensor._base is None else tensor._base
            self._name(f"{stem}#{taken + 1}" if taken else stem, whole)
            around = self._around(given)
        given.belongs = min(around, key=lambda t: t.inside.sum()).name
        number = len(self._arguments) + 1
        self._arguments[number] = given
        return number

    def grid(self, *grid):
        self.launches[-1].grid = grid

    def program(self, *program):
        self._programs.append(program)

    def barrier(self):
        self._barriers += 1

    def access(self, op, pointers, itemsize, active):
        """Sort out the active lanes of an access, and record it.

        Returns:
            addresses: without the arguments' numbers. ok: bool, the lanes that may be carried out.
            parts: [(argument, lanes, elements)] of these.
        """
        # an offset may lead below the first address there is, and must not take from the number
        pointers = pointers.astype(np.int64)
        numbers = (pointers + (1 << (TAG_BIT - 1))) >> TAG_BIT
        addresses = pointers - (numbers << TAG_BIT)
        ok, parts = np.zeros_like(active), []
        # where every lane is masked, it is an access of no element
        for number in np.unique(numbers[active]) if active.any() else numbers[:1]:
            lanes = np.flatnonzero(active & (numbers == number))
            # a pointer that came as a number, or out of memory, is known by its address alone
            owner = self._arguments.get(int(number)) or self._owner(addresses[lanes])
            home = owner.home
            if home.itemsize != itemsize:
                raise TraceError(
                    f"{op} of {itemsize}-byte elements from {owner.name}, whose elements have "
                    f"{home.itemsize} bytes; trace a tensor of the kernel's own type"
                )
            elements, odd = np.divmod(addresses[lanes] - home.base, itemsize)
            good = (elements >= 0) & (elements < home.writer.size) & (odd == 0)
            good[good] = owner.inside[elements[good]]
            if not good.all():
                self.fault("out of bounds", op, owner, elements[~good])
            ok[lanes[good]] = True
            parts.append((owner, lanes[good], elements[good]))
            self.launches[-1].accesses.append(
                Access(
                    self.launches[-1].kernel,
                    len(self.launches) - 1,
                    self._programs[-1],
                    op,
                    owner.belongs,
                    owner.name,
                    elements[good],
                    active.size,
                    itemsize,
                    home.base,
                )
            )
        return addresses.astype(np.uint64), ok, parts

    def _owner(self, addresses):
        for tensor in self._named.values():
            near = addresses - tensor.home.base
            if ((near >= 0) & (near < tensor.home.memory.nbytes())).any():
                return tensor
        raise TraceError(
            f"{self.launches[-1].kernel}, program {self._programs[-1]}: address "
            f"{addresses[:1].tolist()} is in no tensor; name those that are reached by address"
        )

    def loaded(self, op, parts, values):
        """values: what the load gave, one a lane."""
        me, first = len(self._programs) - 1, self.launches[-1].first
        for owner, lanes, elements in parts:
            home = owner.home
            if home.itemsize > 1:
                unwritten = _bits(values[lanes]) == pattern(home.itemsize)
                if unwritten.any():
                    self.fault("unwritten", op, owner, elements[unwritten])
            if op == "atomic":
                continue
            writer = home.writer[elements]
            self._race(op, owner, elements, [writer])
            own = (writer == me) & (home.written_at[elements] == self._barriers)
            if own.any():
                self.fault("no barrier", op, owner, elements[own])
            before = home.reader[elements]
            changed = (before != me) & (before >= first)
            home.other_reader[elements[changed]] = before[changed]
            home.reader[elements] = me

    def stored(self, parts, values):
        me = len(self._programs) - 1
        for owner, lanes, elements in parts:
            home = owner.home
            readers = home.reader[elements], home.other_reader[elements]
            self._race("store", owner, elements, [home.writer[elements], *readers])
            order = np.argsort(elements, kind="stable")
            one, bits = elements[order], _bits(values[lanes[order]])
            twice = (one[1:] == one[:-1]) & (bits[1:] != bits[:-1])
            if twice.any():
                self.fault("race", "store", owner, np.unique(one[1:][twice]))
            home.writer[elements] = me
            home.written_at[elements] = self._barriers

    def _race(self, op, owner, elements, touched):
        """Fault the elements that another program of this launch has touched."""
        me, first = len(self._programs) - 1, self.launches[-1].first
        met = np.zeros_like(elements)
        for by in touched:
            met = np.where((by >= first) & (by != me), by, met)
        if met.any():
            other = self._programs[met[met > 0][0]]
            self.fault("race", op, owner, elements[met > 0], other)

    def fault(self, kind, op, owner, elements, other=None):
        key = (kind, op, owner.name, len(self.launches), other is None)
        if key not in self._found:
            self._found[key] = Fault(
                kind,
                self.launches[-1].kernel,
                owner.name,
                tuple(owner.tensor.shape),
                op,
                self._programs[-1],
                other,
                [owner.index(element) for element in elements[:4]],
            )
            self.faults.append(self._found[key])
        self._found[key].count += elements.size
        self._found[key].programs.add(self._programs[-1])


def _row(name, tally):
    each = tally.elements / max(1, tally.distinct)
    return (
        f"  {name:<20}{tally.instructions:>13}{tally.elements:>12}{tally.bytes:>14}"
        f"{tally.distinct:>12}{each:>12.2f}"
    )


def _on_cpu(name, tensor):
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        kind = getattr(tensor, "device", type(tensor).__name__)
        raise ValueError(f"{name} must be a torch tensor on the CPU; got {kind}; use {name}.cpu()")


def pattern(itemsize):
    """POISON in an element of so many bytes; 0 in one of a single byte."""
    return int.from_bytes(POISON.to_bytes(2, "little") * (itemsize // 2), "little")


def _bits(values):
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")
