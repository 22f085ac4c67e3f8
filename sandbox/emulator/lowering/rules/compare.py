"""setp and set: comparisons, joined with a predicate where the instruction says so."""

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.opcode import (
    BITS,
    FLOATS,
    HALVES,
    INTEGERS,
    PACKED_HALVES,
    WORDS,
    Rule,
    opcode_of,
    refuse_integers,
    unsupported,
)
from cudal2_agent.sandbox.emulator.lowering.table import Modifier
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Operand, Pair

_JOINS = ("and", "or", "xor")
_EQUALITIES = ("eq", "ne")
_ORDERED = ("lt", "le", "gt", "ge")
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
# What set gives where the comparison holds; of packed numbers in each half.
_ONES = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
_RESULTS = {**_ONES, **dict.fromkeys(("u32", "s32"), 0xFFFFFFFF), **dict.fromkeys(("u16", "s16"), 0xFFFF)}
_PACKED_RESULTS = {"f16x2": _ONES["f16"], "bf16x2": _ONES["bf16"], "u32": 0xFFFF, "s32": 0xFFFF}
_FLUSHED = ("f32", *HALVES, *PACKED_HALVES)


def _setp(lowering: Lowering, instruction: Instruction) -> None:
    """p, or p|q: the comparison, and its opposite; of packed numbers the lower's and the upper's."""
    comparison, join, kind = _read(instruction, types=1)
    if len(instruction.operands) != (4 if join else 3):
        raise unsupported(instruction)
    results, left, right, *rest = instruction.operands
    if not isinstance(results, Pair) and not join and kind not in PACKED_HALVES:
        _compare(lowering, instruction, comparison, kind, (left, right), lowering.target(results, MASK))
        return
    targets = (results.first, results.second) if isinstance(results, Pair) else (results,)
    masks = _masks(lowering, instruction, comparison, kind, (left, right), len(targets))
    if join:
        other = lowering.predicate(rest[0])
        masks = [_joined(lowering, join, mask, other) for mask in masks]
    # Last what guards the instruction: it must hold until then.
    for target, mask in sorted(zip(targets, masks, strict=True), key=lambda pair: pair[0] == instruction.predicate):
        lowering.emit("mov.pred", result=lowering.target(target, MASK), value=mask)


def _masks(
    lowering: Lowering, instruction: Instruction, comparison: str, kind: str, operands: tuple[Operand, Operand], count: int
) -> list[int]:
    """One mask a result, before they are joined with anything."""
    if kind in PACKED_HALVES:
        if count != 2:
            raise unsupported(instruction, "with one result")
        return _compare_pairs(lowering, instruction, comparison, kind, operands)
    mask = _compare(lowering, instruction, comparison, kind, operands, lowering.scratch(MASK))
    return [mask, _negated(lowering, mask)][:count]


def _set(lowering: Lowering, instruction: Instruction) -> None:
    """All ones, or 1.0, where the comparison holds; of packed numbers in each half."""
    comparison, join, kind = _read(instruction, types=2)
    result, packed = opcode_of(instruction).types[0], kind in PACKED_HALVES
    held = (_PACKED_RESULTS if packed else _RESULTS).get(result)
    if held is None or len(instruction.operands) != (4 if join else 3):
        raise unsupported(instruction)
    target, left, right, *rest = instruction.operands
    masks = _masks(lowering, instruction, comparison, kind, (left, right), 2 if packed else 1)
    if join:
        other = lowering.predicate(rest[0])
        masks = [_joined(lowering, join, mask, other) for mask in masks]
    if packed:
        halves = [_chosen(lowering, lowering.scratch(2), 2, held, mask) for mask in masks]
        lowering.emit("pack.2x16", result=lowering.target(target, 4), elements=halves)
    else:
        size = width_of(result)
        _chosen(lowering, lowering.target(target, size), size, held, masks[0])


def _chosen(lowering: Lowering, slot: int, size: int, held: int, mask: int) -> int:
    one, zero = lowering.slots.constant(held, size), lowering.slots.constant(0, size)
    lowering.emit(f"selp.b{8 * size}", result=slot, if_true=one, if_false=zero, predicate=mask)
    return slot


def _read(instruction: Instruction, types: int) -> tuple[str, str, str]:
    """The comparison, how it is joined with a predicate ("" for not at all), and the type compared."""
    opcode = opcode_of(instruction)
    words = [word for word in opcode.modifiers if word != "ftz"]
    if len(opcode.types) != types or not 1 <= len(words) <= 2 or (len(words) == 2 and words[1] not in _JOINS):
        raise unsupported(instruction)
    comparison, kind = words[0], opcode.types[-1]
    if "ftz" in opcode.modifiers and kind not in _FLUSHED:
        raise unsupported(instruction)
    if comparison in _UNSIGNED_NAMES and kind[0] == "u":
        comparison = _UNSIGNED_NAMES[comparison]
    if comparison not in _comparisons(kind):
        raise unsupported(instruction)
    return comparison, words[1] if len(words) == 2 else "", kind


def _comparisons(kind: str) -> tuple[str, ...]:
    if kind in FLOATS:
        return (*_EQUALITIES, *_ORDERED, *_UNORDERED)
    if kind in INTEGERS:
        return (*_EQUALITIES, *_ORDERED)
    return _EQUALITIES if kind in BITS else ()


def _compare(
    lowering: Lowering, instruction: Instruction, comparison: str, kind: str, operands: tuple[Operand, Operand], mask: int
) -> int:
    """Emit the comparison of two operands; returns the slot of its mask."""
    size = width_of(kind)
    if kind in (*WORDS, *HALVES):
        refuse_integers(instruction, operands)
        name = kind
    else:
        name = f"b{8 * size}" if comparison in _EQUALITIES else kind
    left, right = (lowering.source(operand, size) for operand in operands)
    lowering.emit(f"setp.{comparison}.{name}", result=mask, left=left, right=right, **_modifiers(instruction))
    return mask


def _compare_pairs(
    lowering: Lowering, instruction: Instruction, comparison: str, kind: str, operands: tuple[Operand, Operand]
) -> list[int]:
    halves = []
    for operand in operands:
        two = (lowering.scratch(2), lowering.scratch(2))
        lowering.emit("unpack.2x16", value=lowering.source(operand, 4), elements=two)
        halves.append(two)
    masks = []
    for left, right in zip(*halves, strict=True):
        masks.append(lowering.scratch(MASK))
        handler = f"setp.{comparison}.{kind.removesuffix('x2')}"
        lowering.emit(handler, result=masks[-1], left=left, right=right, **_modifiers(instruction))
    return masks


def _modifiers(instruction: Instruction) -> dict[str, int]:
    """Numbers of a comparison; only those of floating-point numbers declare one."""
    return {"modifiers": Modifier.FTZ} if "ftz" in instruction.parts else {}


def _joined(lowering: Lowering, logic: str, mask: int, other: int) -> int:
    slot = lowering.scratch(MASK)
    lowering.emit(f"{logic}.pred", result=slot, left=mask, right=other)
    return slot


def _negated(lowering: Lowering, mask: int) -> int:
    slot = lowering.scratch(MASK)
    lowering.emit("not.pred", result=slot, value=mask)
    return slot


RULES: dict[str, Rule] = {"setp": _setp, "set": _set}
