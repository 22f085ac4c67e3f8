"""cvt, mov, and addresses in and out of the generic space.

Covered: cvt between every integer type and f16, bf16, f32, f64, tf32, in every rounding mode; packed results of two f32.
Not covered: 8-bit and smaller floating-point formats, .rs, packed conversions of another kind, isspacep.const, and addresses
of 32 bits in the generic space.
"""

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.opcode import (
    HALVES,
    INTEGERS,
    PACKED_HALVES,
    WORDS,
    Rule,
    lanewise,
    opcode_of,
    refuse_integers,
    unsupported,
)
from cudal2_agent.sandbox.emulator.lowering.rules.floating import MODIFIERS, ROUNDINGS, numbers_of
from cudal2_agent.sandbox.emulator.lowering.table import Rounding
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Operand, Register, Sink, Special, Vector

_NUMBERS = (*WORDS, *HALVES)
_SCALARS = frozenset({*_NUMBERS, *INTEGERS, "u8", "s8"})
_TO_INTEGER = {f"{word}i": mode for word, mode in ROUNDINGS.items()}
_PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_RANGE = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}
_SHAPES = frozenset({"2x8", "4x8", "2x16", "4x16", "2x32", "4x32", "2x64"})
_SPACES = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "param": "param",
    "param::entry": "param",
}


# ---- cvt --------------------------------------------------------------------------------------------------------------------
def _cvt(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    if "tf32" in opcode.modifiers:
        _to_tf32(lowering, instruction)
        return
    if opcode.modifiers == ("pack", "sat"):
        _pack_integers(lowering, instruction)
        return
    if len(opcode.types) != 2:
        raise unsupported(instruction)
    result, source = opcode.types
    if result in PACKED_HALVES:
        _to_packed(lowering, instruction)
        return
    if (
        not {result, source} <= _SCALARS
        or len(instruction.operands) != 2
        or len(set(opcode.modifiers)) != len(opcode.modifiers)
    ):
        raise unsupported(instruction)
    if source in _NUMBERS:
        refuse_integers(instruction, instruction.operands)
    slot = _operand(lowering, instruction.operands[1], source)
    if result in _NUMBERS and source in _NUMBERS:
        handler, mode, flags = _between_floats(instruction, result, source)
    elif result in _NUMBERS:
        handler, mode, flags = f"cvt.{result}.{source}", *_modifiers(instruction, "rounded", {"ftz", "sat"})
    elif source in _NUMBERS:
        handler, mode, flags = f"cvt.{result}.{source}", *_modifiers(instruction, "integral", {"ftz", "sat"})
    else:
        _between_integers(lowering, instruction, result, source, slot)
        return
    _store(lowering, instruction.operands[0], result, handler, slot, mode, flags)


# Of the bytes of two words, the lower half of each, and the lowest of each: selectors of prmt.
_LOWER_HALVES, _LOWEST_BYTES = 0x5410, 0x0040


def _pack_integers(lowering: Lowering, instruction: Instruction) -> None:
    """cvt.pack: a and b saturated, b below a; of 8-bit types the lower half of c above them."""
    kind, *sources = opcode_of(instruction).types or ("",)
    bytewise = kind in ("u8", "s8")
    if kind not in ("u8", "s8", "u16", "s16") or sources != (["s32", "b32"] if bytewise else ["s32"]):
        raise unsupported(instruction)
    result, *operands = instruction.operands
    high, low, *rest = (lowering.source(operand, 4) for operand in operands)
    if len(rest) != bytewise:
        raise unsupported(instruction)
    least, most = _limits(kind)
    parts = []
    for slot in (low, high):
        clamped = lowering.scratch(4)
        lowering.emit("max.s32", result=clamped, left=slot, right=lowering.slots.constant(least, 4))
        lowering.emit("min.s32", result=clamped, left=clamped, right=lowering.slots.constant(most, 4))
        parts.append(clamped)
    if bytewise:
        both = lowering.scratch(4)
        lowering.emit("prmt.b32", result=both, low=parts[0], high=parts[1], selector=lowering.slots.constant(_LOWEST_BYTES, 4))
        parts = [both, *rest]
    selector = lowering.slots.constant(_LOWER_HALVES, 4)
    lowering.emit("prmt.b32", result=lowering.target(result, 4), low=parts[0], high=parts[1], selector=selector)


def _limits(kind: str) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    bits = 8 * width_of(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _modifiers(instruction: Instruction, rounding: str, flags: set[str]) -> tuple[int, int]:
    """Mode and flags of a conversion. `rounding`: "rounded" or "integral" where a mode must be given, "none" where it may not.

    Raises: Unsupported.
    """
    words = opcode_of(instruction).modifiers
    modes = {"rounded": ROUNDINGS, "integral": _TO_INTEGER, "none": {}}[rounding]
    chosen = [modes[word] for word in words if word in modes]
    others = [word for word in words if word not in modes]
    if len(chosen) != bool(modes) or not flags.issuperset(others):
        raise unsupported(instruction)
    return sum(chosen), sum(MODIFIERS[word] for word in others)


def _between_floats(instruction: Instruction, result: str, source: str) -> tuple[str, int, int]:
    """Handler, mode and flags; the common conversions have separate handlers without either."""
    words = opcode_of(instruction).modifiers
    allowed = {"ftz", "sat", *(("relu", "satfinite") if result in HALVES else ())}
    if result == source:
        whole = any(word in _TO_INTEGER for word in words)
        mode, flags = _modifiers(instruction, "integral" if whole else "none", {"ftz"} if whole else {"ftz", "sat"})
        return f"integral.{source}" if whole else f"cvt.{result}.{source}", mode, flags
    inexact = _PRECISION[result] < _PRECISION[source] or _RANGE[result] < _RANGE[source]
    mode, flags = _modifiers(instruction, "rounded" if inexact else "none", allowed)
    if result == "f32" and source in HALVES and not flags:
        return f"widen.{source}", 0, 0
    if source == "f32" and result in HALVES and not (mode or flags):
        return f"narrow.{result}", 0, 0
    return f"cvt.{result}.{source}", mode, flags


def _between_integers(lowering: Lowering, instruction: Instruction, result: str, source: str, slot: int) -> None:
    _modifiers(instruction, "none", {"sat"})
    if "sat" in instruction.parts:
        slot, source = _clamped(lowering, slot, source, result)
    narrower = width_of(result) <= width_of(source)
    sign = "u" if narrower or source[0] == "b" else source[0]
    handler = f"cvt.u{8 * width_of(result)}.{sign}{8 * width_of(source)}"
    _store(lowering, instruction.operands[0], result, handler, slot, 0, 0)


def _clamped(lowering: Lowering, slot: int, source: str, result: str) -> tuple[int, str]:
    """The source as 64 bits within the range of the result type; returns its slot and type."""
    least, most = _limits(result)
    kind = "s64" if source[0] == "s" else "u64"
    wide = lowering.scratch(8)
    lowering.emit(f"cvt.u64.{source}", result=wide, value=slot)
    if kind == "s64":
        lowering.emit("max.s64", result=wide, left=wide, right=lowering.slots.constant(least, 8))
        most = min(most, (1 << 63) - 1)
    lowering.emit(f"min.{kind}", result=wide, left=wide, right=lowering.slots.constant(most, 8))
    return wide, kind


def _to_tf32(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    words = [word for word in opcode.modifiers if word != "tf32"]
    modes = {"rn": Rounding.NEAREST, "rz": Rounding.ZERO, "rna": Rounding.AWAY}
    if opcode.types != ("f32",) or not words or words[0] not in modes or words[1:] not in ([], ["relu"]):
        raise unsupported(instruction)
    refuse_integers(instruction, instruction.operands)
    numbers = numbers_of(modes[words[0]], sum(MODIFIERS[word] for word in words[1:]))
    lanewise(lowering, instruction, "cvt.tf32.f32", (4, 4), **numbers)


def _to_packed(lowering: Lowering, instruction: Instruction) -> None:
    """Two f32 as the upper and the lower half."""
    result, source = opcode_of(instruction).types
    if source != "f32" or len(instruction.operands) != 3:
        raise unsupported(instruction)
    refuse_integers(instruction, instruction.operands)
    mode, flags = _modifiers(instruction, "rounded", {"ftz", "relu", "satfinite"})
    if not (mode or flags):
        lanewise(lowering, instruction, f"narrow.{result}", (4, 4, 4))
        return
    halves = []
    for operand in reversed(instruction.operands[1:]):
        halves.append(lowering.scratch(2))
        slot = lowering.source(operand, 4)
        lowering.emit(f"cvt.{result.removesuffix('x2')}.f32", result=halves[-1], value=slot, **numbers_of(mode, flags))
    lowering.emit("pack.2x16", result=lowering.target(instruction.operands[0], 4), elements=halves)


def _operand(lowering: Lowering, operand: Operand, kind: str) -> int:
    """A source of cvt, whose register may be wider than its type: the low bits count."""
    size = width_of(kind)
    held = lowering.width(operand) if isinstance(operand, Register) else 4 if isinstance(operand, Special) else size
    slot = lowering.source(operand, max(held, size))
    if held <= size:
        return slot
    low = lowering.scratch(size)
    lowering.emit(f"cvt.u{8 * size}.u{8 * held}", result=low, value=slot)
    return low


def _store(lowering: Lowering, target: Operand, kind: str, handler: str, slot: int, mode: int, flags: int) -> None:
    """Emit a conversion; in a register wider than the type the result is extended by its sign."""
    size = width_of(kind)
    held = size if isinstance(target, Sink) else lowering.width(target)
    if held <= size:
        lowering.emit(handler, result=lowering.target(target, size), value=slot, **numbers_of(mode, flags))
        return
    result = lowering.scratch(size)
    lowering.emit(handler, result=result, value=slot, **numbers_of(mode, flags))
    sign = "s" if kind[0] == "s" else "u"
    lowering.emit(f"cvt.u{8 * held}.{sign}{8 * size}", result=lowering.target(target, held), value=result)


# ---- mov --------------------------------------------------------------------------------------------------------------------
def _mov(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    if len(opcode.types) != 1 or opcode.modifiers or len(instruction.operands) != 2:
        raise unsupported(instruction)
    (kind,) = opcode.types
    target, source = instruction.operands
    size = width_of(kind)
    if kind in _NUMBERS:
        refuse_integers(instruction, (source,))
    if isinstance(source, Vector):
        shape, elements = _elements(instruction, source, size)
        slots = [lowering.source(item, elements) for item in source.items]
        lowering.emit(f"pack.{shape}", result=lowering.target(target, size), elements=slots)
    elif isinstance(target, Vector):
        shape, elements = _elements(instruction, target, size)
        slot = lowering.source(source, size)
        lowering.emit(f"unpack.{shape}", value=slot, elements=[lowering.target(item, elements) for item in target.items])
    else:
        lanewise(lowering, instruction, "mov.pred" if size == MASK else f"mov.b{8 * size}", (size, size))


def _elements(instruction: Instruction, vector: Vector, size: int) -> tuple[str, int]:
    """Shape of a vector that fills `size` bytes, such as 2x16, and the bytes of its elements."""
    count = len(vector.items)
    shape = f"{count}x{8 * size // count}" if count else ""
    if shape not in _SHAPES or size % count:
        raise unsupported(instruction, f"with a vector of {count}")
    return shape, size // count


# ---- addresses --------------------------------------------------------------------------------------------------------------
def _cvta(lowering: Lowering, instruction: Instruction) -> None:
    """cvta.space and cvta.to.space; global and constant memory have the addresses of the generic space."""
    opcode = opcode_of(instruction)
    *to, space = opcode.modifiers or ("",)
    if opcode.types != ("u64",) or to not in ([], ["to"]) or space not in (*_SPACES, "const"):
        raise unsupported(instruction)
    if space in ("global", "const"):
        lanewise(lowering, instruction, "mov.b64", (8, 8))
    else:
        lanewise(lowering, instruction, f"cvta.{'to.' if to else ''}{_SPACES[space]}", (8, 8))


def _isspacep(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    if opcode.types or len(opcode.modifiers) != 1 or opcode.modifiers[0] not in _SPACES:
        raise unsupported(instruction)
    (space,) = opcode.modifiers
    lanewise(lowering, instruction, f"isspacep.{'cta' if space == 'shared::cta' else _SPACES[space]}", (MASK, 8))


RULES: dict[str, Rule] = {"cvt": _cvt, "mov": _mov, "cvta": _cvta, "isspacep": _isspacep}
