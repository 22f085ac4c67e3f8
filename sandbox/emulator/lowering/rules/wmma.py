"""wmma: fragments of f16, bf16, tf32, f64, s8 and u8 in every shape that sm_90 has for them.

They lie in registers as ptxas has it on sm_80 and sm_90, repetitions included: what is loaded by wmma.load may be read and
written element by element. m8n32k16 is m32n8k16 transposed, here as on the hardware.
Not covered: 4-bit and 1-bit operands, rounding modes of f64 other than to nearest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.rules.matrix import (
    SPACES,
    WHOLE_WARP,
    byte_form,
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


_WIDE = "m8n32k16"  # the transpose of a tall product: A and B change places, rows and columns of all three too
_HALVES = {
    "m16n16k16": _Product("m16n16k16", _Fragment(Fragment.A, 4), _Fragment(Fragment.B, 4), Fragment.SQUARE),
    "m32n8k16": _Product("m32n8k16", _Fragment(Fragment.A, 8), _Fragment(Fragment.B, 2), Fragment.TALL),
}
_BYTES = {
    "m16n16k16": _Product("m16n16k16", _Fragment(Fragment.TALL, 2), _Fragment(Fragment.FLAT, 2), Fragment.SQUARE),
    "m32n8k16": _Product("m32n8k16", _Fragment(Fragment.TALL, 4), _Fragment(Fragment.FLAT, 1), Fragment.TALL),
}
_TF32 = {"m16n16k8": _Product("m16n16k8", _Fragment(Fragment.A, 4), _Fragment(Fragment.B, 4), Fragment.SQUARE)}
_F64 = {"m8n8k4": _Product("m8n8k4", _Fragment(Fragment.TALL, 1), _Fragment(Fragment.FLAT, 1), Fragment.TALL)}
for _products in (_HALVES, _BYTES):
    _products[_WIDE] = _products["m32n8k16"]
# Products by the element of A and B, then by shape; bits of an element in memory.
_PRODUCTS = {"f16": _HALVES, "bf16": _HALVES, "s8": _BYTES, "u8": _BYTES, "tf32": _TF32, "f64": _F64}
_BITS = {"f16": "b16", "bf16": "b16", "s8": "b8", "u8": "b8", "tf32": "b32", "f64": "b64", "f32": "b32", "s32": "b32"}
_SIZES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), _WIDE: (8, 32, 16), "m16n16k8": (16, 16, 8), "m8n8k4": (8, 8, 4)}
_LAYOUTS = frozenset(("row", "col"))
_SUM_REGISTERS = {"f16": 4, "f32": 8, "s32": 8, "f64": 2}
_HALF_REGISTERS = 8  # of A and B with f16, whose registers are repeated to make eight; those of bf16 are not
# Modifiers that name the types, and the types of D, of A and B, and of C that they stand for.
_TYPES = {f"{d}.{c}": (d, "f16", c) for d in ("f16", "f32") for c in ("f16", "f32")}
_TYPES |= {f"{d}.{a}.{a}.{d}": (d, a, d) for d, a in (("f32", "bf16"), ("f32", "tf32"), ("s32", "s8"), ("s32", "u8"))}
_TYPES["f64.f64.f64.f64"] = _TYPES["f64.f64.f64.f64.rn"] = ("f64", "f64", "f64")


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
    saturated = types[-1:] == ["satfinite"]
    to, element, addend = _TYPES.get(".".join(types[:-1] if saturated else types), ("", "", ""))
    product = _PRODUCTS.get(element, {}).get(shape)
    if product is None or len(instruction.operands) != 4 or (saturated and to != "s32"):
        raise unsupported(instruction)
    d, a, b, c = instruction.operands
    if shape == _WIDE:
        a, b = b, a
    form, size = byte_form(element, element, saturated), _register_bytes(element)
    lowering.emit(
        f"mma.{product.name}.{to}.{'b8' if to == 's32' else element}.{addend}",
        Kind.PLAIN,
        Flag.COLLECTIVE,
        d=results(lowering, instruction, d, _SUM_REGISTERS[to], size),
        a=values(lowering, instruction, a, _count(product.a, element), size)[: product.a.registers],
        b=values(lowering, instruction, b, _count(product.b, element), size)[: product.b.registers],
        c=values(lowering, instruction, c, _SUM_REGISTERS[addend], size),
        **({"bytes": form} if form else {}),
    )


def _register_bytes(kind: str) -> int:
    return 8 if kind == "f64" else 4


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


def _load(lowering: Lowering, instruction: Instruction, matrix: str) -> None:
    stored = _stored(instruction, matrix)
    count = stored.fragment.registers if matrix == "c" else _count(stored.fragment, stored.type)
    registers = results(lowering, instruction, instruction.operands[0], count, _register_bytes(stored.type))
    handler = f"wmma.load.{'sums' if matrix == 'c' else 'operand'}.{_BITS[stored.type]}"
    _emit(lowering, instruction, handler, stored, instruction.operands[1:], registers)


def _store(lowering: Lowering, instruction: Instruction) -> None:
    stored = _stored(instruction, "d")
    address, fragment, *stride = instruction.operands
    registers = values(lowering, instruction, fragment, stored.fragment.registers, _register_bytes(stored.type))
    _emit(lowering, instruction, f"wmma.store.{_BITS[stored.type]}", stored, (address, *stride), registers)


def _stored(instruction: Instruction, matrix: str) -> _Stored:
    """What the modifiers say of a matrix. Raises: Unsupported, also for a wrong number of operands."""
    modifiers = set(instruction.parts[3:]) - WHOLE_WARP
    layouts, shapes, spaces = modifiers & _LAYOUTS, modifiers & _SIZES.keys(), modifiers & SPACES.keys()
    types = modifiers - layouts - shapes - spaces
    if len(layouts) != 1 or len(shapes) != 1 or len(spaces) > 1 or len(types) != 1 or len(instruction.operands) not in (2, 3):
        raise unsupported(instruction)
    (layout,), (shape,), (kind,) = layouts, shapes, types
    if not any(shape in _PRODUCTS[element] for element in _elements_with(matrix, kind)):
        raise unsupported(instruction)
    space = SPACES[spaces.pop()] if spaces else Space.GENERIC
    m, n, k = _SIZES[shape]
    rows, width = {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))
    columns, pitch = layout == "col", rows if layout == "col" else width
    return _Stored(_fragment(shape, matrix, kind), columns != (shape == _WIDE), pitch, kind, space)


def _elements_with(matrix: str, kind: str) -> set[str]:
    """Elements of A and B of the products in which a matrix has this type."""
    return {element for d, element, c in _TYPES.values() if kind in ((element,) if matrix in "ab" else (d, c))}


def _fragment(shape: str, matrix: str, kind: str) -> _Fragment:
    if matrix not in "ab":
        layout = next(products[shape].sums for products in _PRODUCTS.values() if shape in products)
        return _Fragment(layout, _SUM_REGISTERS[kind])
    product = _PRODUCTS[kind][shape]
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
