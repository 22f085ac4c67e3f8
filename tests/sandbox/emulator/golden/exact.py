"""Arithmetic of IEEE 754 and the PTX ISA on bit patterns, with exact fractions: slow, simple, independent."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Mode = Literal["rn", "rz", "rm", "rp", "rna"]
MODES: dict[str, Mode] = {"rn": "rn", "rz": "rz", "rm": "rm", "rp": "rp", "rna": "rna"}


@dataclass(frozen=True)
class Format:
    """A binary float: `width` bits, of which `mantissa` are stored; `nan` is what arithmetic answers."""

    width: int
    mantissa: int
    nan: int

    @property
    def bias(self) -> int:
        return (1 << (self.width - self.mantissa - 2)) - 1

    @property
    def infinity(self) -> int:
        return (1 << (self.width - 1)) - (1 << self.mantissa)

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)


F16 = Format(16, 10, 0x7FFF)
BF16 = Format(16, 7, 0x7FFF)
F32 = Format(32, 23, 0x7FFFFFFF)
F64 = Format(64, 52, 0x7FFFFFFFFFFFFFFF)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


@dataclass(frozen=True)
class Value:
    """A decoded float: NaN, or a sign with a magnitude; None is infinite."""

    negative: bool
    magnitude: Fraction | None
    nan: bool = False

    @property
    def number(self) -> Fraction:
        assert self.magnitude is not None
        return -self.magnitude if self.negative else self.magnitude


def decode(bits: int, form: Format, *, ftz: bool = False) -> Value:
    negative = bool(bits & form.sign)
    bits &= form.sign - 1
    if bits >= form.infinity:
        return Value(negative, None, nan=bits > form.infinity)
    exponent, fraction = bits >> form.mantissa, bits & ((1 << form.mantissa) - 1)
    if exponent == 0:
        return Value(negative, Fraction(0 if ftz else fraction) * _power(1 - form.bias - form.mantissa))
    return Value(negative, Fraction(fraction | 1 << form.mantissa) * _power(exponent - form.bias - form.mantissa))


def encode(value: Value, form: Format, mode: Mode = "rn", *, ftz: bool = False, finite: bool = False) -> int:
    """Round to a format. `finite`: infinity becomes the largest.

    `ftz`: what would be less than the smallest normal number, if there were exponents below that, becomes zero.
    """
    if value.nan:
        return form.nan
    sign = form.sign if value.negative else 0
    if value.magnitude is None:
        return sign | (form.infinity - finite)
    bits = _round(value.magnitude, form, mode, value.negative)
    if ftz and _round(value.magnitude, form, mode, value.negative, unbounded=True) < 1 << form.mantissa:
        return sign
    if bits >= form.infinity:
        away = mode in ("rn", "rna") or (mode == "rp" and not value.negative) or (mode == "rm" and value.negative)
        bits = form.infinity if away and not finite else form.infinity - 1
    return sign | bits


def _round(magnitude: Fraction, form: Format, mode: Mode, negative: bool, *, unbounded: bool = False) -> int:
    """Bits of a magnitude, not yet limited to the largest. `unbounded`: exponents below the smallest, as negative numbers."""
    if magnitude == 0:
        return 0
    over, under = magnitude.numerator, magnitude.denominator
    exponent = over.bit_length() - under.bit_length()
    exponent -= over << max(-exponent, 0) < under << max(exponent, 0)
    exponent = exponent if unbounded else max(exponent, 1 - form.bias)
    shift = form.mantissa - exponent
    whole = _to_integer(over << max(shift, 0), under << max(-shift, 0), mode, negative)
    return whole + (exponent - 1 + form.bias << form.mantissa)  # the hidden bit adds one to the exponent


def rounded(quotient: Fraction, mode: Mode, negative: bool) -> int:
    """A magnitude to an integer."""
    return _to_integer(quotient.numerator, quotient.denominator, mode, negative)


def _to_integer(over: int, under: int, mode: Mode, negative: bool) -> int:
    """over / under, rounded; in integers, because fractions are slow."""
    whole, rest = divmod(over, under)
    up = {
        "rn": 2 * rest > under or (2 * rest == under and whole % 2 == 1),
        "rna": 2 * rest >= under,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }
    return whole + up[mode]


def _power(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


_INVALID = Value(False, None, nan=True)


def multiply(a: Value, b: Value) -> Value:
    if a.nan or b.nan:
        return _INVALID
    negative = a.negative != b.negative
    if a.magnitude is None or b.magnitude is None:
        return _INVALID if a.magnitude == 0 or b.magnitude == 0 else Value(negative, None)
    return Value(negative, a.magnitude * b.magnitude)


def add(a: Value, b: Value, mode: Mode = "rn") -> Value:
    if a.nan or b.nan:
        return _INVALID
    if a.magnitude is None or b.magnitude is None:
        if a.magnitude is None and b.magnitude is None and a.negative != b.negative:
            return _INVALID
        return a if a.magnitude is None else b
    total = a.number + b.number
    if total == 0:
        return Value(a.negative if a.negative == b.negative else mode == "rm", Fraction(0))
    return Value(total < 0, abs(total))


def divide(a: Value, b: Value) -> Value:
    if a.nan or b.nan:
        return _INVALID
    negative = a.negative != b.negative
    if a.magnitude is None:
        return _INVALID if b.magnitude is None else Value(negative, None)
    if b.magnitude is None:
        return Value(negative, Fraction(0))
    if b.magnitude == 0:
        return _INVALID if a.magnitude == 0 else Value(negative, None)
    return Value(negative, a.magnitude / b.magnitude)


def root(a: Value, form: Format) -> Value:
    """Square root, near enough to its fraction for any rounding to `form`."""
    if a.nan or (a.negative and a.magnitude != 0):
        return _INVALID
    if a.magnitude is None or a.magnitude == 0:
        return a
    shift = 2 * (form.mantissa + 8 + max(0, a.magnitude.denominator.bit_length()))
    scaled = a.magnitude * (1 << shift)
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    sticky = Fraction(0) if Fraction(whole * whole) == scaled else Fraction(1, 4)
    return Value(False, (whole + sticky) / (1 << shift // 2))


def lanes(operation: Callable[..., int], *columns: Array, width: int) -> Array:
    """Apply to every row of columns of bit patterns."""
    return np.array([operation(*row) for row in zip(*(column.tolist() for column in columns), strict=True)], f"u{width // 8}")
