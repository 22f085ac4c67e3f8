"""Facts of a parsed PTX module: entries, opcodes, tensor-core instructions, special registers, calls, traps.

The text is ptxas's input, so macros hide nothing. The project's one parser resolves names by PTX's own rules.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import AccumulatorType
from cudal2_agent.sandbox.emulator.ptx.module import (
    Address,
    Function,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Special,
    Symbol,
    Vector,
)
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from cudal2_agent.sandbox.inspect.arithmetic import narrows_in_ptx

_TENSOR_CORE = ("mma.", "wgmma.mma_async.", "wmma.mma.", "tcgen05.mma.")
_TRAPS = frozenset({"trap", "brkpt", "pmevent"})
_PROTOTYPE = 3  # the operand of a call that describes types


class Entry(Record):
    """A kernel's header. `parameter_bytes` in order; bounds are None where the source sets none."""

    name: str
    parameter_bytes: tuple[int, ...]
    max_threads: int | None
    required_block: tuple[int, int, int] | None
    required_cluster: tuple[int, int, int] | None


@dataclass(frozen=True)
class Code:
    """One PTX module."""

    module: Module

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return {name: _entry(each) for name, each in self.module.functions.items() if each.kind == "entry"}

    @cached_property
    def opcodes(self) -> dict[str, int]:
        """Instruction counts by first word: `mma`, `ld`, `cp`."""
        return dict(Counter(each.parts[0] for each in self._instructions()))

    @cached_property
    def mma(self) -> tuple[str, ...]:
        """The distinct tensor-core instructions, by full name."""
        return tuple(sorted({each.opcode for each in self._instructions() if each.opcode.startswith(_TENSOR_CORE)}))

    @cached_property
    def narrowing(self) -> tuple[str, ...]:
        """The distinct instructions that make numbers of 16 bits or less, by full name."""
        return tuple(sorted({each.opcode for each in self._instructions() if narrows_in_ptx(each.parts)}))

    @cached_property
    def special_registers(self) -> tuple[str, ...]:
        """The distinct special registers that are read, such as `%tid.x`."""
        return tuple(sorted({f"%{each.name}" for each in self._atoms if isinstance(each, Special)}))

    @cached_property
    def outside_calls(self) -> tuple[str, ...]:
        """Functions and variables that the module uses and does not define: printing, allocation, device-side launches."""
        found: dict[str, None] = {}
        for function in self.module.functions.values():
            inside = {each.name for each in (*function.parameters, *function.returns, *function.variables)}
            for instruction in function.instructions:
                names = (each.name for each in atoms(_values(instruction)) if isinstance(each, Symbol))
                found |= dict.fromkeys(name for name in names if name not in inside and not self._defines(name))
        return tuple(found)

    @cached_property
    def traps(self) -> tuple[str, ...]:
        return tuple(sorted({each.parts[0] for each in self._instructions() if each.parts[0] in _TRAPS}))

    @cached_property
    def _atoms(self) -> frozenset[Operand]:
        return frozenset(each for instruction in self._instructions() for each in atoms(instruction.operands))

    def _instructions(self) -> Iterator[Instruction]:
        return (each for function in self.module.functions.values() for each in function.instructions)

    def _defines(self, name: str) -> bool:
        variable = self.module.variables.get(name)
        defined = variable is not None and (not variable.external or variable.space == "shared")
        return defined or name in self.module.functions


def read(text: str) -> Code:
    """Raises: PtxError, Unsupported."""
    return Code(parse(text, any_form=True))


def atoms(operands: Iterable[Operand]) -> Iterator[Operand]:
    """Registers, symbols and the like, taken out of vectors and addresses, which nest two deep."""
    for operand in operands:
        if isinstance(operand, Vector):
            yield from atoms(operand.items)
        elif isinstance(operand, Address):
            yield operand.base
            if operand.rest:
                yield from atoms(operand.rest)
        elif isinstance(operand, Pair):
            yield from (operand.first, operand.second)
        elif isinstance(operand, Negated):
            yield operand.operand
        else:
            yield operand


def accumulators(mma: str) -> set[AccumulatorType]:
    """Accumulator types of one tensor-core instruction's name; empty where it names neither f32 nor f16.

    A name lists the types D, A, B, C (`mma`, `wmma` of bf16), D, C (`wmma` of f16) or D, A, B (`wgmma`).
    `tcgen05.mma` has its accumulator in a run-time descriptor and names none.
    """
    if mma.startswith("tcgen05"):
        return set()
    types = re.findall(r"\.(f32|f16|bf16|tf32|f64|s32|u8|s8|u4|s4|b1|e4m3|e5m2|e2m1|e2m3|e3m2)(?=\.|$)", mma)
    held = types[:1] if mma.startswith("wgmma") else types[:1] + types[-1:]
    return {AccumulatorType(kind) for kind in held if kind in ("f32", "f16")}


def _values(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands that are values or addresses."""
    return instruction.operands[:_PROTOTYPE] if instruction.parts[0] == "call" else instruction.operands


def _entry(function: Function) -> Entry:
    directives = function.directives
    block, cluster = directives.get("reqntid"), directives.get("reqnctapercluster")
    maximum = directives.get("maxntid") or block
    return Entry(
        name=function.name,
        parameter_bytes=tuple(each.size_bytes for each in function.parameters),
        max_threads=math.prod(maximum) if maximum else None,
        required_block=_triple(block) if block else None,
        required_cluster=_triple(cluster) if cluster else None,
    )


def _triple(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
