"""Matrix fragments of one warp: ldmatrix, stmatrix, movmatrix and mma; operands of fragments.

Covered: 8x8 matrices of 16-bit elements; mma m16n8k16 and m16n8k8, with f16 and bf16 operands.
Not covered: other shapes and element types, sparse operands.
"""

from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.lowering.table import Flag, Kind, MemoryOperand, Space
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Operand, Register, Sink, Unsupported, Vector

# Operands of instructions on matrix fragments: registers of 32 bits per lane, of all lanes of the warp.
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


_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
# Types of D, A, B and C, with the registers of D and C.
_MMA_TYPES = {"f32.f16.f16.f32": 4, "f32.bf16.bf16.f32": 4, "f16.f16.f16.f16": 2}
_MMA_OPERANDS = {"m16n8k16": (4, 2), "m16n8k8": (2, 1)}  # registers of A and B


def _ldmatrix(lowering: Lowering, instruction: Instruction) -> None:
    handler, space, count = _copy(instruction)
    fragment, address = instruction.operands
    place = lowering.place(address, short=space is Space.SHARED)
    emit_memory(lowering, handler, place, space, results(lowering, instruction, fragment, count))


def _stmatrix(lowering: Lowering, instruction: Instruction) -> None:
    handler, space, count = _copy(instruction)
    address, fragment = instruction.operands
    place = lowering.place(address, short=space is Space.SHARED)
    emit_memory(lowering, handler, place, space, values(lowering, instruction, fragment, count))


def _copy(instruction: Instruction) -> tuple[str, Space, int]:
    """Handler, space and number of matrices of an ldmatrix or stmatrix. Raises: Unsupported."""
    modifiers = set(instruction.parts[1:]) - WHOLE_WARP
    spaces, counts = modifiers & (SPACES.keys() - {"global"}), modifiers & _COUNTS.keys()
    rest = modifiers - spaces - counts - {"trans"}
    if len(counts) != 1 or len(spaces) > 1 or rest != {"m8n8", "b16"} or len(instruction.operands) != 2:
        raise unsupported(instruction)
    handler = f"{instruction.parts[0]}.trans" if "trans" in modifiers else instruction.parts[0]
    return handler, Space.SHARED if spaces else Space.GENERIC, _COUNTS[counts.pop()]


def _movmatrix(lowering: Lowering, instruction: Instruction) -> None:
    if set(instruction.parts[1:]) - WHOLE_WARP != {"m8n8", "trans", "b16"} or len(instruction.operands) != 2:
        raise unsupported(instruction)
    result, source = instruction.operands
    slot = value(lowering, instruction, source)
    lowering.emit("movmatrix.trans", Kind.PLAIN, Flag.COLLECTIVE, result=lowering.target(result, REGISTER_BYTES), value=slot)


def _mma(lowering: Lowering, instruction: Instruction) -> None:
    modifiers = [part for part in instruction.parts[1:] if part not in WHOLE_WARP]
    if len(modifiers) != 7 or modifiers[1:3] != ["row", "col"] or len(instruction.operands) != 4:
        raise unsupported(instruction)
    shape, (to, left, _, addend) = modifiers[0], modifiers[3:]
    registers, sums = _MMA_OPERANDS.get(shape), _MMA_TYPES.get(".".join(modifiers[3:]))
    if registers is None or sums is None:
        raise unsupported(instruction)
    d, a, b, c = instruction.operands
    lowering.emit(
        f"mma.{shape}.{to}.{left}.{addend}",
        Kind.PLAIN,
        Flag.COLLECTIVE,
        d=results(lowering, instruction, d, sums),
        a=values(lowering, instruction, a, registers[0]),
        b=values(lowering, instruction, b, registers[1]),
        c=values(lowering, instruction, c, sums),
    )


RULES: dict[str, Rule] = {
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
    "mma": _mma,
}
