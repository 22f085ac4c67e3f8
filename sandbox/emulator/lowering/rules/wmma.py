"""wmma: fragments of m16n16k16, m32n8k16 and m8n32k16 products, f16 and bf16.

They lie in registers as ptxas has it on sm_90, repetitions included: what is loaded by wmma.load may be read and
written element by element. m8n32k16 is m32n8k16 transposed, here as on the hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.rules.matrix import (
    SPACES,
    WHOLE_WARP,
    emit_memory,
    results,
    unsupported,
    value,
    values,
)
from cudal2_agent.sandbox.emulator.lowering.table import Flag, Fragment, Kind, Space
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Instruction, Operand


@dataclass(frozen=True, slots=True)
class _Fragment:
    """`registers`: without repetitions."""

    layout: Fragment
    registers: int


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of the core. `sums`: the layout of its accumulators."""

    name: str
    a: _Fragment
    b: _Fragment
    sums: Fragment


_SQUARE = _Product("m16n16k16", _Fragment(Fragment.A, 4), _Fragment(Fragment.B, 4), Fragment.SQUARE)
_TALL = _Product("m32n8k16", _Fragment(Fragment.A, 8), _Fragment(Fragment.B, 2), Fragment.TALL)
_WIDE = "m8n32k16"  # the transpose of a tall product: A and B change places, rows and columns of all three too
_PRODUCTS = {"m16n16k16": _SQUARE, "m32n8k16": _TALL, _WIDE: _TALL}
_SIZES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), _WIDE: (8, 32, 16)}
_LAYOUTS = frozenset(("row", "col"))
_SUM_REGISTERS = {"f16": 4, "f32": 8}
_HALF_REGISTERS = 8  # of A and B with f16, whose registers are repeated to make eight; those of bf16 are not
# Modifiers that name the types, and the types of D, of A and B, and of C that they stand for.
_TYPES = {f"{d}.{c}": (d, "f16", c) for d in ("f16", "f32") for c in ("f16", "f32")}
_TYPES["f32.bf16.bf16.f32"] = ("f32", "bf16", "f32")


def lower_wmma(lowering: Lowering, instruction: Instruction) -> None:
    match instruction.parts[1:3]:
        case ("mma", _):
            _multiply(lowering, instruction)
        case ("load", "a" | "b" | "c" as matrix):
            _load(lowering, instruction, matrix)
        case ("store", "d"):
            _store(lowering, instruction)
        case _:
            raise unsupported(instruction)


def _multiply(lowering: Lowering, instruction: Instruction) -> None:
    shape, *types = [part for part in instruction.parts[2:] if part not in WHOLE_WARP | _LAYOUTS] or [""]
    product, kinds = _PRODUCTS.get(shape), _TYPES.get(".".join(types))
    if product is None or kinds is None or len(instruction.operands) != 4:
        raise unsupported(instruction)
    to, element, addend = kinds
    d, a, b, c = instruction.operands
    if shape == _WIDE:
        a, b = b, a
    lowering.emit(
        f"mma.{product.name}.{to}.{element}.{addend}",
        Kind.PLAIN,
        Flag.COLLECTIVE,
        d=results(lowering, instruction, d, _SUM_REGISTERS[to]),
        a=values(lowering, instruction, a, _count(product.a, element))[: product.a.registers],
        b=values(lowering, instruction, b, _count(product.b, element))[: product.b.registers],
        c=values(lowering, instruction, c, _SUM_REGISTERS[addend]),
    )


def _count(fragment: _Fragment, element: str) -> int:
    """Registers of a fragment of A or B, repetitions included."""
    return _HALF_REGISTERS if element == "f16" else fragment.registers


# ---- fragments in memory ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Stored:
    """A matrix in memory. `columns`: its lines are columns. `pitch`: elements from line to line without an own one."""

    fragment: _Fragment
    columns: bool
    pitch: int
    type: str
    space: Space

    @property
    def width(self) -> str:
        return "b32" if self.type == "f32" else "b16"


def _load(lowering: Lowering, instruction: Instruction, matrix: str) -> None:
    stored = _stored(instruction, matrix)
    count = stored.fragment.registers if matrix == "c" else _count(stored.fragment, stored.type)
    registers = results(lowering, instruction, instruction.operands[0], count)
    _emit(lowering, instruction, f"wmma.load.{stored.width}", stored, instruction.operands[1:], registers)


def _store(lowering: Lowering, instruction: Instruction) -> None:
    stored = _stored(instruction, "d")
    address, fragment, *stride = instruction.operands
    registers = values(lowering, instruction, fragment, stored.fragment.registers)
    _emit(lowering, instruction, f"wmma.store.{stored.width}", stored, (address, *stride), registers)


def _stored(instruction: Instruction, matrix: str) -> _Stored:
    """What the modifiers say of a matrix. Raises: Unsupported, also for a wrong number of operands."""
    modifiers = set(instruction.parts[3:]) - WHOLE_WARP
    layouts, shapes, spaces = modifiers & _LAYOUTS, modifiers & _PRODUCTS.keys(), modifiers & SPACES.keys()
    types = modifiers - layouts - shapes - spaces
    allowed = ("f16", "bf16") if matrix in "ab" else ("f16", "f32")
    if len(layouts) != 1 or len(shapes) != 1 or len(spaces) > 1 or len(types) != 1 or not types.issubset(allowed):
        raise unsupported(instruction)
    if len(instruction.operands) not in (2, 3):
        raise unsupported(instruction)
    (layout,), (shape,), (kind,) = layouts, shapes, types
    space = SPACES[spaces.pop()] if spaces else Space.GENERIC
    m, n, k = _SIZES[shape]
    rows, width = {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))
    columns, pitch = layout == "col", rows if layout == "col" else width
    return _Stored(_fragment(shape, matrix, kind), columns != (shape == _WIDE), pitch, kind, space)


def _fragment(shape: str, matrix: str, kind: str) -> _Fragment:
    product = _PRODUCTS[shape]
    if matrix not in "ab":
        return _Fragment(product.sums, _SUM_REGISTERS[kind])
    return product.a if (matrix == "a") != (shape == _WIDE) else product.b


def _emit(
    lowering: Lowering,
    instruction: Instruction,
    handler: str,
    stored: _Stored,
    where: Sequence[Operand],
    registers: Sequence[int],
) -> None:
    """`where`: the address and, perhaps, the stride."""
    place = lowering.place(where[0], short=stored.space is Space.SHARED)
    pitch = value(lowering, instruction, where[1] if len(where) == 2 else Immediate(stored.pitch))
    fragment = stored.fragment
    emit_memory(
        lowering,
        handler,
        place,
        stored.space,
        registers,
        pitch=pitch,
        layout=fragment.layout,
        columns=int(stored.columns),
        distinct=fragment.registers,
    )
