"""Data flow of the addresses of module variables and of a kernel's parameters.

A module variable lasts from launch to launch, so its address may serve for reading only. A register holds such an address as
base + offset, never scaled and never truncated, and only the operations listed here keep that form. Two addresses in one
space may be compared or subtracted, which reveals an offset and no address. Every other use is reported.
A load from a kernel's parameters must read inside one of them: the driver keeps launch counters, handles of the running graph
and the like in the same constant bank, around them, and a load whose position the text does not determine could read these.
Covered: each function by itself; the order of its instructions is ignored, because of loops.
Not covered: an address that a kernel guesses. Writes through it show when variables are compared after a sample.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from cudal2_agent.sandbox.emulator.ptx.declarations import TYPE_BYTES
from cudal2_agent.sandbox.emulator.ptx.module import (
    Address,
    Function,
    Immediate,
    Instruction,
    Module,
    Operand,
    Register,
    Symbol,
)
from cudal2_agent.sandbox.inspect.code import atoms

WIDE = frozenset({"b64", "u64", "s64"})
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_WIDEST = 16


@dataclass(frozen=True)
class PointerTargets:
    """The variables that a function's registers point to, as far as each is written once and with constants."""

    function: Function
    writers: dict[str, list[Instruction]]
    sizes: dict[str, int]

    @classmethod
    def of(cls, function: Function) -> "PointerTargets":
        writers: dict[str, list[Instruction]] = defaultdict(list)
        for instruction in function.instructions:
            first = instruction.operands[:1]
            if first and not isinstance(first[0], Address):
                for each in atoms(first):
                    if isinstance(each, Register):
                        writers[each.name].append(instruction)
        variables = (*function.parameters, *function.returns, *function.variables)
        return cls(function, writers, {each.name: each.size_bytes for each in variables})

    def outside(self) -> Iterator[Instruction]:
        """Loads from parameters that may read outside them."""
        for instruction in self.function.instructions:
            of_parameter = any(part.startswith("param") for part in instruction.parts)
            if instruction.parts[0] == "ld" and of_parameter and not self.inside(instruction):
                yield instruction

    def inside(self, load: Instruction) -> bool:
        """Whether a load reads inside one variable or parameter of the function."""
        address = load.operands[1] if len(load.operands) == 2 else None
        place = self._place(address.base) if isinstance(address, Address) else None
        if place is None or not isinstance(address, Address):
            return False
        start = place[1] + address.offset
        return start >= 0 and start + _bytes_read(load) <= self.sizes.get(place[0], 0)

    def _place(self, base: Operand) -> tuple[str, int] | None:
        """The name and offset of an address."""
        offset = 0
        for _ in range(len(self.function.instructions) + 1):
            if isinstance(base, Symbol):
                return base.name, base.offset + offset
            writers = self.writers.get(base.name, []) if isinstance(base, Register) else []
            if len(writers) != 1 or writers[0].predicate is not None or writers[0].parts[-1] not in WIDE:
                return None
            parts, sources = writers[0].parts, writers[0].operands[1:]
            if parts[0] == "add" and len(parts) == 2 and len(sources) == 2 and isinstance(sources[1], Immediate):
                offset += sources[1].value
            elif parts[0] != "mov" and parts[:2] != ("cvta", "param") or len(sources) != 1:
                return None
            base = sources[0]
        return None


def _bytes_read(load: Instruction) -> int:
    count = next((_VECTORS[part] for part in load.parts if part in _VECTORS), 1)
    return count * TYPE_BYTES.get(load.parts[-1], _WIDEST)


Space = Literal["global", "const", "param"]
_SPACES: tuple[Space, ...] = ("global", "const", "param")
# Their first operand is a result: a register that stands there is written, not read.
_RESULT_FIRST = frozenset(
    {"abs", "add", "addc", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "copysign", "cvt", "cvta", "div", "fma"}
    | {"isspacep", "ld", "ldu", "lop3", "mad", "mad24", "madc", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc"}
    | {"prmt", "rcp", "rem", "sad", "selp", "set", "setp", "shf", "shfl", "shl", "shr", "slct", "sub", "subc", "xor"}
)


@dataclass(frozen=True, slots=True)
class Held:
    """The address of a variable or parameter, plus an offset. `generic`: a generic address, not one of its state space."""

    origin: str
    space: Space
    generic: bool


@dataclass(frozen=True, slots=True)
class Misuse:
    """An address that is used for something other than reading, or a load outside the parameters."""

    origin: str
    space: Space
    instruction: Instruction


def misuses(module: Module) -> Iterator[Misuse]:
    """Uses other than reading, function by function."""
    for function in module.functions.values():
        places = PointerTargets.of(function)
        yield from (Misuse("launch parameters", "param", each) for each in places.outside())
        yield from _Addresses(_watched(module, function), function, places).misuses()


def _watched(module: Module, function: Function) -> dict[str, Held]:
    """The addresses that names represent."""
    found: dict[str, Held] = {}
    for each in (*module.variables.values(), *function.variables):
        if each.space == "global":
            found[each.name] = Held(each.name, "global", True)
        elif each.space == "const":
            found[each.name] = Held(each.name, "const", False)
    if function.kind == "entry":
        found |= {each.name: Held(each.name, "param", False) for each in function.parameters}
    return found


@dataclass
class _Addresses:
    """The addresses in one function's registers."""

    watched: dict[str, Held]
    function: Function
    places: PointerTargets
    held: dict[str, set[Held]] = field(default_factory=lambda: defaultdict(set))
    exact: set[str] = field(default_factory=set)  # registers that hold an address whichever instruction wrote them last

    def misuses(self) -> Iterator[Misuse]:
        users = self._spread()
        self._keep_exact()
        for instruction in users:
            if self._result(instruction) is None:
                found = self._held_by(self._sources(instruction))
                one = min(found, key=lambda each: (each.space == "param", each.origin))
                yield Misuse(one.origin, one.space, instruction)

    def _spread(self) -> list[Instruction]:
        """Find what each register may hold, and the instructions that have an address among their sources, in order."""
        readers: dict[str, list[Instruction]] = defaultdict(list)
        users: dict[int, Instruction] = {}
        pending: list[Instruction] = []
        for instruction in self.function.instructions:
            for each in self._sources(instruction):
                if isinstance(each, Register):
                    readers[each.name].append(instruction)
                elif isinstance(each, Symbol) and each.name in self.watched:
                    users[instruction.index] = instruction
            if instruction.index in users or instruction.parts[0] == "cvta":
                pending.append(instruction)
        while pending:
            instruction = pending.pop()
            result = instruction.operands[0] if instruction.operands else None
            fresh = self._result(instruction)
            if fresh and isinstance(result, Register) and not fresh <= self.held[result.name]:
                self.held[result.name] |= fresh
                users |= {each.index: each for each in readers[result.name]}
                pending += readers[result.name]
        return [users[index] for index in sorted(users)]

    def _keep_exact(self) -> None:
        self.exact = {name for name, held in self.held.items() if len({(each.space, each.generic) for each in held}) == 1}
        lost: set[str] = {""}
        while lost:
            lost = {name for name in self.exact if not all(self._exactly(each) for each in self.places.writers[name])}
            self.exact -= lost

    def _exactly(self, instruction: Instruction) -> bool:
        """Whether a register's writer always gives it an address."""
        sources = self._sources(instruction)
        needed = sources[:2] if instruction.parts[0] == "selp" else [each for each in sources if self._held_by([each])]
        return instruction.predicate is None and bool(self._result(instruction)) and all(map(self._is_exact, needed))

    def _is_exact(self, operand: Operand) -> bool:
        return (
            isinstance(operand, Symbol)
            and operand.name in self.watched
            or (isinstance(operand, Register) and operand.name in self.exact)
        )

    def _sources(self, instruction: Instruction) -> list[Operand]:
        operands = instruction.operands
        if instruction.parts[0] in _RESULT_FIRST and operands and isinstance(operands[0], Register):
            operands = operands[1:]
        return list(atoms(operands))

    def _held_by(self, operands: list[Operand]) -> set[Held]:
        found: set[Held] = set()
        for each in operands:
            if isinstance(each, Register) and each.name in self.held:
                found |= self.held[each.name]
            elif isinstance(each, Symbol) and each.name in self.watched:
                found.add(self.watched[each.name])
        return found

    def _result(self, instruction: Instruction) -> set[Held] | None:
        """The addresses that an instruction's result may hold; None for a use other than reading."""
        rule = _RULES.get(instruction.parts[0])
        if rule is not None:
            return rule(self, instruction)
        return None if self._held_by(self._sources(instruction)) else set()

    def _kept(self, instruction: Instruction, address: int | tuple[int, ...], operands: int) -> set[Held] | None:
        """The result of arithmetic in which addresses may stand only at some of its sources."""
        sources = self._sources(instruction)
        found = self._held_by(sources)
        places = (address,) if isinstance(address, int) else address
        others = [each for index, each in enumerate(sources) if index not in places]
        plain = instruction.parts[-1] in WIDE or "wide" in instruction.parts
        if found and (not plain or len(sources) != operands or self._held_by(others) or not self._to_register(instruction)):
            return None
        return found

    def _to_register(self, instruction: Instruction) -> bool:
        return isinstance(instruction.operands[0], Register) and not {"cc", "hi", "sat"} & set(instruction.parts)

    def _moved(self, instruction: Instruction) -> set[Held] | None:
        return self._kept(instruction, 0, 1)

    def _added(self, instruction: Instruction) -> set[Held] | None:
        left = self._held_by(self._sources(instruction)[:1])
        return self._kept(instruction, 0 if left else 1, 2)

    def _subtracted(self, instruction: Instruction) -> set[Held] | None:
        return set() if self._alike(instruction, self._sources(instruction)) else self._kept(instruction, 0, 2)

    def _multiplied(self, instruction: Instruction) -> set[Held] | None:
        return self._kept(instruction, 2, 3)

    def _selected(self, instruction: Instruction) -> set[Held] | None:
        return self._kept(instruction, (0, 1), 3)

    def _compared(self, instruction: Instruction) -> set[Held] | None:
        sources = list(atoms(instruction.operands[1:]))
        return set() if not self._held_by(sources) or self._alike(instruction, sources[:2]) else None

    def _alike(self, instruction: Instruction, pair: list[Operand]) -> bool:
        """Whether two addresses of one space and form are compared or subtracted, on every path."""
        kinds = {(each.space, each.generic) for each in self._held_by(pair)}
        exact = len(pair) == 2 and all(map(self._is_exact, pair))
        return exact and len(kinds) == 1 and instruction.parts[-1] in WIDE and self._to_register_or_pair(instruction)

    def _to_register_or_pair(self, instruction: Instruction) -> bool:
        return instruction.parts[0] == "setp" or self._to_register(instruction)

    def _told_apart(self, _instruction: Instruction) -> set[Held] | None:
        """isspacep: it reveals the state space of an address, which is not secret."""
        return set()

    def _converted(self, instruction: Instruction) -> set[Held] | None:
        """cvta: between a state space and generic addresses. An address made from a number counts as one of that space."""
        to = "to" in instruction.parts
        space = next((each for each in _SPACES if each in _spaces(instruction)), None)
        found = self._held_by(self._sources(instruction))
        fits = all(each.space == space and (each.generic or not to) for each in found)
        if space == "global":
            return {Held(each.origin, each.space, True) for each in found} if fits else None
        if space is None or not fits or not to and any(each.generic for each in found):
            return None if found else set()
        if not found and not to:
            return {Held(f"({space} memory)", space, True)}
        return {Held(each.origin, each.space, not to) for each in found}

    def _loaded(self, instruction: Instruction) -> set[Held] | None:
        """A load: an address serves only as its address; loads from parameters stay inside them."""
        address = instruction.operands[1] if len(instruction.operands) > 1 else None
        others = list(instruction.operands[2:])
        if not self._held_by(self._sources(instruction)):
            return set()
        if not isinstance(address, Address) or self._held_by(list(atoms([*others, *address.rest]))):
            return None
        of_parameter = any(each.space == "param" for each in self._held_by([address.base]))
        return None if of_parameter and not self.places.inside(instruction) else set()

    def _hinted(self, instruction: Instruction) -> set[Held] | None:
        """prefetch, and the fence that makes a tensor map visible: nothing is written."""
        hint = instruction.parts[0] != "fence" or "tensormap::generic" in instruction.parts
        return set() if hint or not self._held_by(self._sources(instruction)) else None

    def _copied(self, instruction: Instruction) -> set[Held] | None:
        """cp: from a variable into shared memory, or by a tensor map that is a parameter, in either direction."""
        maps = [each for each in instruction.operands if isinstance(each, Address) and each.rest]
        rest = [each for each in instruction.operands if each not in maps] + [one for each in maps for one in each.rest]
        spaces = _spaces(instruction)
        read, allowed = self._held_by([each.base for each in maps]), {"param"}
        if not maps and spaces and spaces[0].startswith("shared") and len(rest) > 1 and isinstance(rest[1], Address):
            read, allowed = self._held_by([rest.pop(1).base]), {"global", "const"}  # type: ignore[union-attr]
        return None if {each.space for each in read} - allowed or self._held_by(list(atoms(rest))) else set()


def _spaces(instruction: Instruction) -> list[str]:
    """The state spaces that an opcode names, in order."""
    return [part for part in instruction.parts if part.startswith(("shared", "param")) or part in ("global", "const", "local")]


_RULES: dict[str, Callable[[_Addresses, Instruction], set[Held] | None]] = {
    "mov": _Addresses._moved,
    "cvta": _Addresses._converted,
    "add": _Addresses._added,
    "sub": _Addresses._subtracted,
    "mad": _Addresses._multiplied,
    "selp": _Addresses._selected,
    "setp": _Addresses._compared,
    "isspacep": _Addresses._told_apart,
    "ld": _Addresses._loaded,
    "ldu": _Addresses._loaded,
    "prefetch": _Addresses._hinted,
    "prefetchu": _Addresses._hinted,
    "fence": _Addresses._hinted,
    "cp": _Addresses._copied,
}
