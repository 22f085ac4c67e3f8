"""Float arithmetic: f32, f16, bf16 and their packed pairs, approximations, minima and maxima."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.case import Family
from tests.sandbox.emulator.golden.exact import FORMATS, MODES, Format, Mode, Value, decode, encode
from tests.sandbox.emulator.golden.lanes import Form, lane_family

Array = np.ndarray[Any, Any]
Scalar = Callable[..., int]


def float_family() -> Family:
    return lane_family("floats", tuple(_forms()))


def _forms() -> Iterator[Form]:
    for mode in ("rn", "rz", "rm", "rp"):
        for ftz in ("", ".ftz"):
            yield _form(f"add.{mode}{ftz}.f32", "f32", 2)
            yield _form(f"mul.{mode}{ftz}.f32", "f32", 2)
            yield _form(f"fma.{mode}{ftz}.f32", "f32", 3)
    for name, count in (("add.f32", 2), ("sub.rn.f32", 2), ("sub.rz.ftz.f32", 2), ("mul.f32", 2)):
        yield _form(name, "f32", count)
    for name, count in (("add.sat.f32", 2), ("mul.sat.f32", 2), ("fma.rn.sat.f32", 3), ("fma.rn.ftz.sat.f32", 3)):
        yield _form(name, "f32", count)
    for name in ("add.rn.f64", "mul.rn.f64", "sub.rn.f64"):
        yield _form(name, "f64", 2)
    yield _form("fma.rn.f64", "f64", 3)
    for kind in ("f16", "f16x2", "bf16", "bf16x2"):
        yield from _half_forms(kind)
    yield from _selections()
    yield from _quotients()
    yield from _approximations()


def _half_forms(kind: str) -> Iterator[Form]:
    flushes = ("", ".ftz") if kind.startswith("f16") else ("",)
    for ftz in flushes:
        for operation in ("add", "sub", "mul"):
            yield _form(f"{operation}{ftz}.{kind}", kind, 2)
            yield _form(f"{operation}.rn{ftz}.{kind}", kind, 2)
        yield _form(f"fma.rn{ftz}.{kind}", kind, 3)
        yield _form(f"fma.rn{ftz}.relu.{kind}", kind, 3)
        if kind.startswith("f16"):
            yield _form(f"add{ftz}.sat.{kind}", kind, 2)
            yield _form(f"mul{ftz}.sat.{kind}", kind, 2)
            yield _form(f"fma.rn{ftz}.sat.{kind}", kind, 3)
    yield _form(f"neg.{kind}", kind, 1)
    yield _form(f"abs.{kind}", kind, 1)


def _selections() -> Iterator[Form]:
    for side in ("min", "max"):
        for form in ("f32", "ftz.f32", "NaN.f32", "ftz.NaN.f32", "xorsign.abs.f32", "NaN.xorsign.abs.f32", "f64"):
            yield _form(f"{side}.{form}", form.rsplit(".")[-1], 2)
        for kind in ("f16", "f16x2", "bf16", "bf16x2"):
            for extra in ("", "NaN.", "xorsign.abs."):
                yield _form(f"{side}.{extra}{kind}", kind, 2)
        yield _form(f"{side}.ftz.f16", "f16", 2)
        yield _form(f"{side}.ftz.f16x2", "f16x2", 2)
    for form in ("neg.f32", "neg.ftz.f32", "abs.f32", "abs.ftz.f32", "neg.f64", "abs.f64"):
        yield _form(form, form[-3:], 1)
    yield Form("copysign.f32", "f32", ("f32", "f32"), lambda a, b: b & 0x7FFFFFFF | a & 0x80000000)
    yield Form("testp.finite.f32", "u32", ("f32",), lambda a: _inside(a, 0, 0x7F7FFFFF), _predicate("testp.finite.f32"))
    nan = "testp.notanumber.f32"
    yield Form(nan, "u32", ("f32",), lambda a: _inside(a, 0x7F800001, 0x7FFFFFFF), _predicate(nan))
    yield Form("testp.subnormal.f32", "u32", ("f32",), None, _predicate("testp.subnormal.f32"))


def _predicate(opcode: str) -> str:
    return f"{{.reg .pred p; {opcode} p, %1; selp.b32 %0, 1, 0, p;}}"


def _inside(bits: Array, low: int, high: int) -> Array:
    magnitude = bits & 0x7FFFFFFF
    return ((magnitude >= low) & (magnitude <= high)).astype(np.uint32)


def _quotients() -> Iterator[Form]:
    modes: tuple[Mode, ...] = ("rn", "rz", "rm", "rp")
    for mode in modes:
        for ftz in ("", ".ftz"):
            if ftz and mode != "rn":
                continue
            flush = bool(ftz)
            yield Form(f"div.{mode}{ftz}.f32", "f32", ("f32", "f32"), _lanewise(_divide(mode, flush), 32))
            yield Form(f"rcp.{mode}{ftz}.f32", "f32", ("f32",), _lanewise(_reciprocal(mode, flush), 32))
            yield Form(f"sqrt.{mode}{ftz}.f32", "f32", ("f32",), _lanewise(_root(mode, flush), 32))


def _divide(mode: Mode, ftz: bool) -> Scalar:
    f32 = exact.F32
    return lambda a, b: encode(exact.divide(decode(a, f32, ftz=ftz), decode(b, f32, ftz=ftz)), f32, mode, ftz=ftz)


def _reciprocal(mode: Mode, ftz: bool) -> Scalar:
    return lambda a: _divide(mode, ftz)(0x3F800000, a)


def _root(mode: Mode, ftz: bool) -> Scalar:
    f32 = exact.F32
    return lambda a: encode(exact.root(decode(a, f32, ftz=ftz), f32), f32, mode, ftz=ftz)


def _approximations() -> Iterator[Form]:
    """Bounds of the PTX ISA, most of them relative to the result, so in units of its last place."""
    for ftz in ("", ".ftz"):
        yield Form(f"rcp.approx{ftz}.f32", "f32", ("f32",), _near(lambda a: 1 / a, bool(ftz)), ulps=1)
        yield Form(f"rsqrt.approx{ftz}.f32", "f32", ("f32",), _near(lambda a: 1 / np.sqrt(a), bool(ftz)), ulps=3)
        yield Form(f"sqrt.approx{ftz}.f32", "f32", ("f32",), _near(np.sqrt, bool(ftz)), ulps=3)
        yield Form(f"ex2.approx{ftz}.f32", "f32", ("f32",), _near(np.exp2, bool(ftz)), ulps=3)
        yield Form(f"lg2.approx{ftz}.f32", "f32", ("f32",), _near(np.log2, bool(ftz)), ulps=2, absolute=2.0**-21)
        yield Form(f"div.approx{ftz}.f32", "f32", ("f32", "f32"), ulps=2)
        yield Form(f"div.full{ftz}.f32", "f32", ("f32", "f32"), ulps=2)
    yield Form("tanh.approx.f32", "f32", ("f32",), _near(np.tanh, False), ulps=2.0**13, absolute=2.0**-24)
    yield Form("ex2.approx.f16", "f16", ("f16",), ulps=2)
    yield Form("ex2.approx.f16x2", "f16x2", ("f16x2",), ulps=2)
    yield Form("tanh.approx.f16", "f16", ("f16",), ulps=2)
    yield Form("ex2.approx.ftz.bf16", "bf16", ("bf16",), ulps=2)


def _near(function: Callable[[Array], Array], ftz: bool) -> Callable[..., Array]:
    """What float64 says, rounded to f32, with subnormals flushed where asked."""

    def reference(bits: Array) -> Array:
        with np.errstate(all="ignore"):
            value = bits.view(np.float32).astype(np.float64)
            value = np.where(ftz & (np.abs(value) < 2.0**-126), np.copysign(0.0, value), value)
            result = function(value)
            result = np.where(ftz & (np.abs(result) < 2.0**-126), np.copysign(0.0, result), result)
            return result.astype(np.float32).view(np.uint32)

    return reference


def _form(opcode: str, kind: str, count: int) -> Form:
    """A form whose reference is read off its opcode."""
    scalar_kind = kind.removesuffix("x2")
    operation = _lanewise(_scalar(opcode, FORMATS[scalar_kind]), FORMATS[scalar_kind].width)
    return Form(opcode, kind, (kind,) * count, _paired(operation) if kind.endswith("x2") else operation)


def _scalar(opcode: str, form: Format) -> Scalar:
    name, *modifiers = opcode.split(".")
    ftz = "ftz" in modifiers
    if name in ("neg", "abs"):
        return _sign_change(name, form, ftz)
    if name in ("min", "max"):
        return _selection(name, modifiers, form, ftz)
    mode = next((MODES[word] for word in modifiers if word in MODES), MODES["rn"])

    def operation(*bits: int) -> int:
        values = [decode(word, form, ftz=ftz) for word in bits]
        return encode(_clamped(_compute(name, values, mode), modifiers), form, mode, ftz=ftz)

    return operation


def _compute(name: str, values: list[Value], mode: Mode) -> Value:
    if name == "mul":
        return exact.multiply(values[0], values[1])
    if name == "fma":
        return exact.add(exact.multiply(values[0], values[1]), values[2], mode)
    second = values[1]
    if name == "sub":
        second = Value(not second.negative, second.magnitude, second.nan)
    return exact.add(values[0], second, mode)


def _clamped(value: Value, modifiers: list[str]) -> Value:
    if "sat" in modifiers:
        if value.nan or value.negative:
            return Value(False, Fraction(0))
        if value.magnitude is None or value.magnitude > 1:
            return Value(False, Fraction(1))
    if "relu" in modifiers and not value.nan and value.negative:
        return Value(False, Fraction(0))
    return value


def _sign_change(name: str, form: Format, ftz: bool) -> Scalar:
    def operation(bits: int) -> int:
        flushed = bits & form.sign if ftz and bits & (form.sign - 1) < 1 << form.mantissa else bits
        return flushed ^ form.sign if name == "neg" else flushed & (form.sign - 1)

    return operation


def _selection(name: str, modifiers: list[str], form: Format, ftz: bool) -> Scalar:
    def operation(a: int, b: int) -> int:
        sign = (a ^ b) & form.sign
        if "abs" in modifiers:
            a, b = a & (form.sign - 1), b & (form.sign - 1)
        if ftz:
            a, b = (word & form.sign if word & (form.sign - 1) < 1 << form.mantissa else word for word in (a, b))
        nans = [(word & (form.sign - 1)) > form.infinity for word in (a, b)]
        if all(nans) or (any(nans) and "NaN" in modifiers):
            return form.nan
        if any(nans):
            chosen = b if nans[0] else a
        else:
            chosen = (min if name == "min" else max)(a, b, key=lambda word: _ordered(word, form))
        return chosen | sign if "xorsign" in modifiers else chosen

    return operation


def _ordered(bits: int, form: Format) -> int:
    return -(bits & (form.sign - 1)) - 1 if bits & form.sign else bits


def _lanewise(operation: Scalar, width: int) -> Callable[..., Array]:
    return lambda *columns: exact.lanes(operation, *columns, width=width)


def _paired(operation: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *columns: operation(*(np.ascontiguousarray(column).view(np.uint16) for column in columns)).view(np.uint32)
