"""Registers that a wgmma reads or writes asynchronously, and the operations that touch them."""

from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.mentions import Mentions
from cudal2_agent.sandbox.emulator.lowering.table import Flag
from cudal2_agent.sandbox.emulator.ptx.module import Address, Function, Instruction, Vector

_EMPTY: tuple[int, ...] = ()


def registers_of_products(function: Function) -> frozenset[str]:
    """Registers that a wgmma reads or writes on its own time: their slots are theirs alone, and touching them is checked."""
    names = set()
    for instruction in function.instructions:
        if instruction.parts[:2] == ("wgmma", "mma_async"):
            for operand in instruction.operands[:2]:
                if isinstance(operand, Vector):
                    names |= {getattr(item, "name", "") for item in operand.items}
    return frozenset(names)


def touched(
    lowering: Lowering, starts: list[int], tracked: frozenset[str], mentions: Sequence[Mentions]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """By operation, slots of products' registers that an instruction reads and writes; flags its first operation."""
    reads: list[tuple[int, ...]] = [_EMPTY] * len(lowering.operations)
    writes: list[tuple[int, ...]] = [_EMPTY] * len(lowering.operations)
    for instruction in lowering.function.instructions if tracked else ():
        if instruction.parts[0] == "wgmma" or starts[instruction.index] == starts[instruction.index + 1]:
            continue
        where = mentions[instruction.index]
        mentioned = [name for name in where.all if name in tracked]
        if not mentioned:
            continue
        written = _results(instruction) & set(mentioned)
        at = starts[instruction.index]
        slot = lowering.slots
        read = set(mentioned) - written | set(where.rest)
        reads[at] = tuple(slot.offset(slot.register(name)) for name in mentioned if name in read)
        writes[at] = tuple(slot.offset(slot.register(name)) for name in written)
        lowering.operations[at].flags |= Flag.TRACKED
    return reads, writes


def _results(instruction: Instruction) -> set[str]:
    first = instruction.operands[0]
    if isinstance(first, Address):
        return set()
    items = first.items if isinstance(first, Vector) else (first,)
    return {item.name for item in items if hasattr(item, "name")}
