"""Operands of instructions on matrix fragments: registers of 32 bits per lane, of all lanes of the warp."""

from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.table import Flag, Kind, MemoryOperand, Space
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Operand, Register, Sink, Unsupported, Vector

WHOLE_WARP = frozenset(("sync", "aligned"))
SPACES = {"global": Space.GLOBAL, "shared": Space.SHARED, "shared::cta": Space.SHARED}
REGISTER_BYTES = 4


def results(lowering: Lowering, instruction: Instruction, operand: Operand, count: int) -> list[int]:
    """Slots of the `count` registers of a fragment that is written. Raises: Unsupported."""
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise unsupported(instruction)
    if any(not isinstance(item, Register | Sink) for item in operand.items):
        raise unsupported(instruction)
    return [lowering.target(item, REGISTER_BYTES) for item in operand.items]


def values(lowering: Lowering, instruction: Instruction, operand: Operand, count: int) -> list[int]:
    """Slots of the `count` registers of a fragment that is read. Raises: Unsupported."""
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise unsupported(instruction)
    return [value(lowering, instruction, item) for item in operand.items]


def value(lowering: Lowering, instruction: Instruction, operand: Operand) -> int:
    """The slot of one operand that is read. Raises: Unsupported."""
    if isinstance(operand, Sink):
        raise unsupported(instruction)
    return lowering.source(operand, REGISTER_BYTES)


def emit_memory(
    lowering: Lowering,
    handler: str,
    place: MemoryOperand,
    space: Space,
    registers: Sequence[int],
    **operands: int,
) -> None:
    """A copy between a fragment and memory, by the handler for addresses of the place's width. `operands`: others."""
    width = "u32" if place.slot_bytes == 4 else "u64"
    lowering.emit(f"{handler}.{width}", Kind.PLAIN, Flag.COLLECTIVE, address=place, space=space, values=registers, **operands)


def unsupported(instruction: Instruction) -> Unsupported:
    return Unsupported(instruction.opcode, instruction.line)
