"""Integer arithmetic, logic, bit fields, and the selection between two values.

Covered: what PTX has for 16, 32 and 64 bits, carries included, and packed 16-bit add, min and max.
Not covered: the video instructions but vabsdiff4 of u32, lop3 with a predicate, saturating add and sub of packed types.
"""

from collections.abc import Mapping
from itertools import product

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.opcode import (
    BITS,
    INTEGERS,
    PACKED_INTEGERS,
    SIGNED,
    UNSIGNED,
    WORDS,
    Form,
    Rule,
    by_form,
    lanewise,
    opcode_of,
    unsupported,
)
from cudal2_agent.sandbox.emulator.lowering.table import Permutation
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Instruction

_WIDENING = ("u16", "s16", "u32", "s32")
_WORD_BITS = ("b32", "b64")
_FIELDS = ("u32", "s32", "u64", "s64")
_DOTS = tuple(f"{a}.{b}" for a, b in product(("u32", "s32"), repeat=2))
_LOGIC = {name: (Form(BITS, name + ".{bits}", "TTT"), Form(("pred",), name + ".pred", "PPP")) for name in ("and", "or", "xor")}
_EXTREMES = {
    name: (Form((*INTEGERS, *PACKED_INTEGERS), name + ".{types}", "TTT"),) for name in ("min", "max")
}  # fmt: skip

_FORMS: dict[str, tuple[Form, ...]] = {
    **_LOGIC,
    **_EXTREMES,
    "add": (Form(INTEGERS, "add.{bits}", "TTT"), Form(PACKED_INTEGERS, "add.{types}", "TTT")),
    "sub": (Form(INTEGERS, "sub.{bits}", "TTT"),),
    "add.sat": (Form(("s32",), "add.sat.s32", "TTT"),),
    "sub.sat": (Form(("s32",), "sub.sat.s32", "TTT"),),
    "mul.lo": (Form(INTEGERS, "mul.lo.{bits}", "TTT"),),
    "mul.hi": (Form(INTEGERS, "mul.hi.{types}", "TTT"),),
    "mul.wide": (Form(_WIDENING, "mul.wide.{types}", "WTT"),),
    "mad.lo": (Form(INTEGERS, "mad.lo.{bits}", "TTTT"),),
    "mad.wide": (Form(_WIDENING, "mad.wide.{types}", "WTTW"),),
    "mul24.lo": (Form(("u32", "s32"), "mul24.lo.{types}", "TTT"),),
    "mul24.hi": (Form(("u32", "s32"), "mul24.hi.{types}", "TTT"),),
    "sad": (Form(INTEGERS, "sad.{types}", "TTTT"),),
    "div": (Form(INTEGERS, "div.{types}", "TTT"),),
    "rem": (Form(INTEGERS, "rem.{types}", "TTT"),),
    "neg": (Form(SIGNED, "neg.{types}", "TT"),),
    "abs": (Form(SIGNED, "abs.{types}", "TT"),),
    "not": (Form(BITS, "not.{bits}", "TT"), Form(("pred",), "not.pred", "PP")),
    "cnot": (Form(BITS, "cnot.{bits}", "TT"),),
    "shl": (Form(BITS, "shl.{bits}", "TT4"),),
    "shr": (Form((*BITS, *UNSIGNED), "shr.{unsigned}", "TT4"), Form(SIGNED, "shr.{types}", "TT4")),
    "popc": (Form(_WORD_BITS, "popc.{bits}", "4T"),),
    "clz": (Form(_WORD_BITS, "clz.{bits}", "4T"),),
    "brev": (Form(_WORD_BITS, "brev.{bits}", "TT"),),
    "bfind": (Form(_FIELDS, "bfind.{types}", "4T"),),
    "bfind.shiftamt": (Form(_FIELDS, "bfind.shiftamt.{types}", "4T"),),
    "bfe": (Form(_FIELDS, "bfe.{types}", "TT44"),),
    "bfi": (Form(_WORD_BITS, "bfi.{bits}", "TTT44"),),
    "fns": (Form(("b32",), "fns.b32", "TTTT"),),
    "prmt": (Form(("b32",), "prmt.b32", "TTTT"),),
    **{f"prmt.{mode.name.lower()}": (Form(("b32",), "prmt.mode.b32", "TTTT", mode),) for mode in Permutation},
    **{f"shf.{way}": (Form(("b32",), f"shf.{way}.b32", "TTTT"),) for way in ("l.clamp", "l.wrap", "r.clamp", "r.wrap")},
    **{f"szext.{mode}": (Form(("u32", "s32"), f"szext.{mode}.{{types}}", "TTT"),) for mode in ("clamp", "wrap")},
    **{f"bmsk.{mode}": (Form(("b32",), f"bmsk.{mode}.b32", "TTT"),) for mode in ("clamp", "wrap")},
    "dp4a": (Form(_DOTS, "dp4a.{types}", "4444"),),
    "dp2a.lo": (Form(_DOTS, "dp2a.lo.{types}", "4444"),),
    "dp2a.hi": (Form(_DOTS, "dp2a.hi.{types}", "4444"),),
    "selp": (Form((*BITS, *INTEGERS, *WORDS), "selp.{bits}", "TTTP"),),
}  # fmt: skip


def _lop3(lowering: Lowering, instruction: Instruction) -> None:
    *operands, table = instruction.operands or (None,)
    if opcode_of(instruction).types != ("b32",) or not isinstance(table, Immediate) or not 0 <= table.value <= 255:
        raise unsupported(instruction)
    sources = [operand for operand in operands if operand is not None]
    lanewise(lowering, instruction, "lop3.b32", (4, 4, 4, 4), sources, table=table.value)


def _differences(lowering: Lowering, instruction: Instruction) -> None:
    """vabsdiff4: |a - b| of four bytes, with .add their sum and c. Without a mask nothing is taken from c."""
    opcode = opcode_of(instruction)
    if opcode.types != ("u32",) * 3 or len(instruction.operands) != 4:
        raise unsupported(instruction)
    adds = bool(opcode.modifiers)
    lanewise(lowering, instruction, f"{opcode.key}.u32", (4,) * (4 if adds else 3), instruction.operands[: 4 if adds else 3])


def _slct(lowering: Lowering, instruction: Instruction) -> None:
    """d = c >= 0 ? a : b; with .ftz a subnormal c is zero."""
    opcode = opcode_of(instruction)
    if len(opcode.types) != 2 or opcode.types[0] not in (*BITS, *INTEGERS, *WORDS) or opcode.types[1] not in ("s32", "f32"):
        raise unsupported(instruction)
    if opcode.modifiers and opcode.types[1] != "f32" or len(instruction.operands) != 4:
        raise unsupported(instruction)
    result, first, second, sign = instruction.operands
    size, slot = width_of(opcode.types[0]), lowering.source(sign, 4)
    if opcode.modifiers:
        flushed = lowering.scratch(4)
        lowering.emit("flush.f32", result=flushed, value=slot)
        slot = flushed
    handler = f"slct.b{8 * size}.{opcode.types[1]}"
    positive, negative = lowering.source(first, size), lowering.source(second, size)
    lowering.emit(handler, result=lowering.target(result, size), if_positive=positive, if_negative=negative, sign=slot)


def _relu(lowering: Lowering, instruction: Instruction) -> None:
    """min or max, and zero where that is negative."""
    opcode = opcode_of(instruction)
    if opcode.types not in (("s32",), ("s16x2",)) or not instruction.operands:
        raise unsupported(instruction)
    (kind,) = opcode.types
    lanewise(lowering, instruction, f"{opcode.base}.{kind}", (4, 4, 4))
    target = lowering.target(instruction.operands[0], 4)
    lowering.emit(f"max.{kind}", result=target, left=target, right=lowering.slots.constant(0, 4))


# ---- multiply, then add -----------------------------------------------------------------------------------------------------
def _multiply_add(lowering: Lowering, instruction: Instruction) -> None:
    """mad.hi, mad24 and what saturates: a product of their name, and a sum of it."""
    opcode = opcode_of(instruction)
    kind = _integer_type(instruction, opcode.types)
    half, *saturate = opcode.modifiers
    if len(instruction.operands) != 4 or (saturate and (kind != "s32" or half != "hi")):
        raise unsupported(instruction)
    size = width_of(kind)
    if opcode.base == "mad24" and size != 4:
        raise unsupported(instruction)
    product_slot = _product(lowering, instruction, opcode.base.replace("mad", "mul"), half, kind)
    addend = lowering.source(instruction.operands[3], size)
    handler = "add.sat.s32" if saturate else f"add.b{8 * size}"
    lowering.emit(handler, result=lowering.target(instruction.operands[0], size), left=product_slot, right=addend)


def _product(lowering: Lowering, instruction: Instruction, name: str, half: str, kind: str) -> int:
    size = width_of(kind)
    left, right = (lowering.source(operand, size) for operand in instruction.operands[1:3])
    slot = lowering.scratch(size)
    handler = f"mul.lo.b{8 * size}" if (name, half) == ("mul", "lo") else f"{name}.{half}.{kind}"
    lowering.emit(handler, result=slot, left=left, right=right)
    return slot


# ---- extended precision -----------------------------------------------------------------------------------------------------
def _extended(lowering: Lowering, instruction: Instruction) -> None:
    """add, sub and mad that read (addc, subc, madc) or write (.cc) the carry flag."""
    opcode = opcode_of(instruction)
    kind = _integer_type(instruction, opcode.types)
    size, multiply = width_of(kind), opcode.base.startswith("mad")
    if size not in (4, 8) or len(instruction.operands) != (4 if multiply else 3):
        raise unsupported(instruction)
    if multiply:
        left = _product(lowering, instruction, "mul", opcode.modifiers[0], kind)
    else:
        left = lowering.source(instruction.operands[1], size)
    right = lowering.source(instruction.operands[-1], size)
    reads, writes = opcode.base in ("addc", "subc", "madc"), "cc" in opcode.modifiers
    carry = lowering.carry_slot = lowering.carry_slot or lowering.slots.fixed(MASK)
    lowering.emit(
        f"{'subc' if opcode.base.startswith('sub') else 'addc'}.b{8 * size}",
        result=lowering.target(instruction.operands[0], size),
        left=left,
        right=right,
        carry_in=carry if reads else lowering.slots.constant(0, MASK),
        carry_out=carry if writes else lowering.scratch(MASK),
    )


def _integer_type(instruction: Instruction, types: tuple[str, ...]) -> str:
    if len(types) != 1 or types[0] not in INTEGERS:
        raise unsupported(instruction)
    return types[0]


_EXTENDED = ("add.cc", "sub.cc", "addc", "addc.cc", "subc", "subc.cc")
_EXTENDED_PRODUCTS = tuple(
    f"{name}.{half}{cc}" for name, cc in (("mad", ".cc"), ("madc", ""), ("madc", ".cc")) for half in ("lo", "hi")
)
_SPECIAL: Mapping[str, Rule] = {
    "lop3": _lop3,
    "vabsdiff4": _differences,
    "vabsdiff4.add": _differences,
    "slct": _slct,
    "slct.ftz": _slct,
    "min.relu": _relu,
    "max.relu": _relu,
    **dict.fromkeys(("mad.hi", "mad.hi.sat", "mad24.lo", "mad24.hi", "mad24.hi.sat"), _multiply_add),
    **dict.fromkeys((*_EXTENDED, *_EXTENDED_PRODUCTS), _extended),
}

RULES: dict[str, Rule] = dict.fromkeys((key.split(".")[0] for key in (*_FORMS, *_SPECIAL)), by_form(_FORMS, _SPECIAL))
