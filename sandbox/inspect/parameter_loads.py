"""Loads from a kernel's parameters: each must read inside one of them.

The driver keeps launch counters, handles of the running graph and the like in the same constant bank, around the parameters.
A load whose position the text does not determine could read them.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.ptx.declarations import TYPE_BYTES
from cudal2_agent.sandbox.emulator.ptx.module import Address, Function, Immediate, Instruction, Operand, Register, Symbol
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
