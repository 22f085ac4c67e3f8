"""Arithmetic of f32, f64, f16 and bf16.

Covered: what sm_90 has, every rounding mode, .ftz, .sat and .relu. Approximations are computed exactly.
Not covered: min and max of three operands, fma with .oob, operands of two formats.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering, width_of
from cudal2_agent.sandbox.emulator.lowering.opcode import (
    FLOATS,
    HALVES,
    PACKED_HALVES,
    WORDS,
    Opcode,
    Rule,
    lanewise,
    opcode_of,
    refuse_integers,
    unsupported,
)
from cudal2_agent.sandbox.emulator.lowering.table import Modifier, Rounding
from cudal2_agent.sandbox.emulator.ptx.module import Instruction

ROUNDINGS = {"rn": Rounding.NEAREST, "rm": Rounding.DOWN, "rp": Rounding.UP, "rz": Rounding.ZERO}
MODIFIERS = {name.lower(): each for name, each in Modifier.__members__.items()}  # ftz, sat, relu, satfinite
_APPROXIMATE = frozenset({"approx", "full"})
_ROUNDED = frozenset(ROUNDINGS)
_ALL_HALVES = (*HALVES, *PACKED_HALVES)
_VARIANTS = {"NaN": ".nan", "xorsign": ".xorsign"}
_PROPERTIES = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@dataclass(frozen=True, slots=True)
class _FloatOperation:
    """An operation of one, two or three operands, and the modifiers that it takes by type."""

    operands: int
    modifiers: Mapping[str, frozenset[str]]


def _modifiers(single: str, double: str | None, half: str | None) -> dict[str, frozenset[str]]:
    """Words for f32, f64 and the 16-bit types; None: the operation does not exist there."""
    found = {"f32": single, "f64": double, **dict.fromkeys(_ALL_HALVES, half)}
    return {kind: frozenset(words.split()) for kind, words in found.items() if words is not None}


_MODES = "rn rz rm rp"
_OPERATIONS = {
    "add": _FloatOperation(2, _modifiers(f"{_MODES} ftz sat", _MODES, "rn ftz sat")),
    "sub": _FloatOperation(2, _modifiers(f"{_MODES} ftz sat", _MODES, "rn ftz sat")),
    "mul": _FloatOperation(2, _modifiers(f"{_MODES} ftz sat", _MODES, "rn ftz sat")),
    "fma": _FloatOperation(3, _modifiers(f"{_MODES} ftz sat", _MODES, "rn ftz sat relu")),
    "mad": _FloatOperation(3, _modifiers(f"{_MODES} ftz sat", _MODES, None)),
    "div": _FloatOperation(2, _modifiers(f"{_MODES} approx full ftz", _MODES, None)),
    "rcp": _FloatOperation(1, _modifiers(f"{_MODES} approx ftz", f"{_MODES} approx ftz", None)),
    "sqrt": _FloatOperation(1, _modifiers(f"{_MODES} approx ftz", _MODES, None)),
    "rsqrt": _FloatOperation(1, _modifiers("approx ftz", "approx ftz", None)),
    "ex2": _FloatOperation(1, _modifiers("approx ftz", None, "approx ftz")),
    "lg2": _FloatOperation(1, _modifiers("approx ftz", None, None)),
    "sin": _FloatOperation(1, _modifiers("approx ftz", None, None)),
    "cos": _FloatOperation(1, _modifiers("approx ftz", None, None)),
    "tanh": _FloatOperation(1, _modifiers("approx", None, "approx")),
    "min": _FloatOperation(2, _modifiers("ftz NaN xorsign abs", "", "ftz NaN xorsign abs")),
    "max": _FloatOperation(2, _modifiers("ftz NaN xorsign abs", "", "ftz NaN xorsign abs")),
}


def _arithmetic(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    operation, kind = _OPERATIONS[opcode.base], _type(instruction, opcode)
    modifiers = frozenset(opcode.modifiers)
    if kind not in operation.modifiers or not modifiers <= operation.modifiers[kind] or len(modifiers & _ROUNDED) > 1:
        raise unsupported(instruction)
    if (modifiers & _APPROXIMATE and modifiers & _ROUNDED) or ("abs" in modifiers) != ("xorsign" in modifiers):
        raise unsupported(instruction)
    refuse_integers(instruction, instruction.operands)
    rounding = sum(ROUNDINGS[word] for word in modifiers & _ROUNDED)
    flags = sum(MODIFIERS[word] for word in modifiers & MODIFIERS.keys())
    variant = "".join(name for word, name in _VARIANTS.items() if word in modifiers)
    if opcode.base == "div" and "approx" in modifiers:
        variant = ".approx"
    handler = f"{'fma' if opcode.base == 'mad' else opcode.base}{variant}.{kind}"
    numbers = numbers_of(rounding, flags)
    if kind in WORDS and numbers:
        handler += ".modified"
    sizes = (width_of(kind),) * (1 + operation.operands)
    lanewise(lowering, instruction, handler, sizes, **numbers)


def _sign(lowering: Lowering, instruction: Instruction) -> None:
    """neg and abs."""
    opcode = opcode_of(instruction)
    kind, flush = _type(instruction, opcode), opcode.modifiers == ("ftz",)
    if kind not in FLOATS or opcode.modifiers and (not flush or kind not in ("f32", "f16", "f16x2")):
        raise unsupported(instruction)
    refuse_integers(instruction, instruction.operands)
    lanewise(
        lowering, instruction, f"{opcode.base}.{kind}", (width_of(kind),) * 2, **numbers_of(0, Modifier.FTZ if flush else 0)
    )


def _property(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    kind = _type(instruction, opcode)
    if kind not in WORDS or len(opcode.modifiers) != 1 or opcode.modifiers[0] not in _PROPERTIES:
        raise unsupported(instruction)
    refuse_integers(instruction, instruction.operands)
    lanewise(lowering, instruction, f"{opcode.key}.{kind}", (MASK, width_of(kind)))


def _copysign(lowering: Lowering, instruction: Instruction) -> None:
    opcode = opcode_of(instruction)
    kind = _type(instruction, opcode)
    if kind not in WORDS or opcode.modifiers:
        raise unsupported(instruction)
    refuse_integers(instruction, instruction.operands)
    lanewise(lowering, instruction, f"copysign.{kind}", (width_of(kind),) * 3)


def numbers_of(rounding: int, modifiers: int) -> dict[str, int]:
    """The numbers of a handler that rounds; one that only rounds to nearest declares none."""
    return {name: value for name, value in (("rounding", rounding), ("modifiers", modifiers)) if value}


def _type(instruction: Instruction, opcode: Opcode) -> str:
    if len(opcode.types) != 1:
        raise unsupported(instruction)
    return opcode.types[0]


RULES: dict[str, Rule] = {
    **dict.fromkeys(_OPERATIONS, _arithmetic),
    "neg": _sign,
    "abs": _sign,
    "testp": _property,
    "copysign": _copysign,
}
