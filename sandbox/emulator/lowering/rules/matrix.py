"""Matrix fragments of one warp: ldmatrix, stmatrix, movmatrix and mma; operands of fragments.

Covered: 8x8 matrices of 16-bit elements; mma of f16 and bf16, tf32, f64 (rounding to nearest), s8 and u8, in every shape that
sm_90 has. Not covered: mma.m8n8k4 of f16, 4-bit, 1-bit and fp8 operands, sparse operands.
"""

from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.lowering.table import ByteForm, Flag, Kind, MemoryOperand, Space
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Operand, Register, Sink, Unsupported, Vector

# Operands of instructions on matrix fragments: registers of 32 bits per lane (of f64: 64), of all lanes of the warp.
WHOLE_WARP = frozenset(("sync", "aligned"))
SPACES = {"global": Space.GLOBAL, "shared": Space.SHARED, "shared::cta": Space.SHARED}
REGISTER_BYTES = 4


def results(
    lowering: Lowering, instruction: Instruction, operand: Operand, count: int, size: int = REGISTER_BYTES
) -> list[int]:
    """Slots of the `count` registers of a fragment that is written. Raises: Unsupported."""
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise unsupported(instruction)
    if any(not isinstance(item, Register | Sink) for item in operand.items):
        raise unsupported(instruction)
    return [lowering.target(item, size) for item in operand.items]


def values(lowering: Lowering, instruction: Instruction, operand: Operand, count: int, size: int = REGISTER_BYTES) -> list[int]:
    """Slots of the `count` registers of a fragment that is read. Raises: Unsupported."""
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise unsupported(instruction)
    return [value(lowering, instruction, item, size) for item in operand.items]


def value(lowering: Lowering, instruction: Instruction, operand: Operand, size: int = REGISTER_BYTES) -> int:
    """The slot of one operand that is read. Raises: Unsupported."""
    if isinstance(operand, Sink):
        raise unsupported(instruction)
    return lowering.source(operand, size)


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
_BYTES = ("s8", "u8")
# By the types of D, A, B and C: the types by which the core names the product, and the registers of A, B, and C and D by shape.
_F32 = {"m16n8k16": (4, 2, 4), "m16n8k8": (2, 1, 4)}
_MMA: dict[str, tuple[str, dict[str, tuple[int, int, int]]]] = {
    "f32.f16.f16.f32": ("f32.f16.f32", _F32),
    "f32.bf16.bf16.f32": ("f32.bf16.f32", _F32),
    "f16.f16.f16.f16": ("f16.f16.f16", {"m16n8k16": (4, 2, 2), "m16n8k8": (2, 1, 2)}),
    "f32.tf32.tf32.f32": ("f32.tf32.f32", {"m16n8k8": (4, 2, 4), "m16n8k4": (2, 1, 4)}),
    "f64.f64.f64.f64": (
        "f64.f64.f64",
        {"m8n8k4": (1, 1, 2), "m16n8k4": (2, 1, 4), "m16n8k8": (4, 2, 4), "m16n8k16": (8, 4, 4)},
    ),
    **{
        f"s32.{a}.{b}.s32": ("s32.b8.s32", {"m8n8k16": (1, 1, 2), "m16n8k16": (2, 1, 4), "m16n8k32": (4, 2, 4)})
        for a in _BYTES
        for b in _BYTES
    },
}


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
    if modifiers[1:3] != ["row", "col"] or len(instruction.operands) != 4:
        raise unsupported(instruction)
    shape, types, saturated = modifiers[0], modifiers[3:], False
    if types[:1] == ["satfinite"]:
        types, saturated = types[1:], True
    if types[-1:] == ["rn"] and types[0] == "f64":
        types = types[:-1]
    name, shapes = _MMA.get(".".join(types), ("", {}))
    if shape not in shapes or (saturated and types[0] != "s32"):
        raise unsupported(instruction)
    emit_product(lowering, instruction, f"mma.{shape}.{name}", shapes[shape], byte_form(types[1], types[2], saturated))


def byte_form(left: str, right: str, saturated: bool) -> ByteForm:
    """How integers of these types are multiplied; nothing for other types."""
    form = ByteForm.SIGNED_A if left == "s8" else ByteForm(0)
    form |= ByteForm.SIGNED_B if right == "s8" else ByteForm(0)
    return form | ByteForm.SATURATED if saturated else form


def emit_product(
    lowering: Lowering, instruction: Instruction, handler: str, registers: tuple[int, int, int], form: ByteForm
) -> None:
    """A product `d, a, b, c`. `registers`: of A, of B, of C and D."""
    d, a, b, c = instruction.operands
    size = 8 if ".f64." in handler else REGISTER_BYTES
    lowering.emit(
        handler,
        Kind.PLAIN,
        Flag.COLLECTIVE,
        d=results(lowering, instruction, d, registers[2], size),
        a=values(lowering, instruction, a, registers[0], size),
        b=values(lowering, instruction, b, registers[1], size),
        c=values(lowering, instruction, c, registers[2], size),
        **({"bytes": form} if form else {}),
    )


RULES: dict[str, Rule] = {
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
    "mma": _mma,
}
