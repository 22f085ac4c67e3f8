"""cvt between floats and integers in every rounding in use."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.case import Family
from tests.sandbox.emulator.golden.exact import FORMATS, MODES, Mode, Value, decode, encode
from tests.sandbox.emulator.golden.lanes import Form, lane_family, width_of

Array = np.ndarray[Any, Any]
_INTEGRAL: dict[str, Mode] = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def conversion_family() -> Family:
    return lane_family("conversions", tuple(_forms()))


def _forms() -> Iterator[Form]:
    yield from _narrowing()
    yield from _pairs()
    yield from _widening()
    yield from _to_integers()
    yield from _from_integers()
    yield from _between_integers()


def _narrowing() -> Iterator[Form]:
    for mode in ("rn", "rz", "rm", "rp"):
        yield _float_form(f"cvt.{mode}.f16.f32")
        yield _float_form(f"cvt.{mode}.ftz.f16.f32")
        yield _float_form(f"cvt.{mode}.f32.f64")
    yield _float_form("cvt.rn.ftz.f32.f64")
    yield _float_form("cvt.rn.sat.f16.f32")
    yield _float_form("cvt.sat.f32.f32")
    yield _float_form("cvt.ftz.sat.f32.f32")
    for mode in ("rn", "rz"):
        for extra in ("", ".relu", ".satfinite", ".relu.satfinite"):
            for kind in ("f16", "bf16"):
                if extra or kind == "bf16":
                    yield _float_form(f"cvt.{mode}{extra}.{kind}.f32")
    for mode in ("rm", "rp"):
        yield _float_form(f"cvt.{mode}.bf16.f32")
    yield Form("cvt.rna.tf32.f32", "u32", ("f32",), _tf32("rna"))
    yield Form("cvt.rn.tf32.f32", "u32", ("f32",), _tf32("rn"))
    yield Form("cvt.rz.tf32.f32", "u32", ("f32",), _tf32("rz"))
    yield _float_form("cvt.rn.bf16.f16")
    yield _float_form("cvt.rn.f16.bf16")
    for mode in _INTEGRAL:
        yield _float_form(f"cvt.{mode}.f32.f32")
        yield _float_form(f"cvt.{mode}.ftz.f32.f32")
        yield _float_form(f"cvt.{mode}.f16.f16")


def _pairs() -> Iterator[Form]:
    for kind in ("f16x2", "bf16x2"):
        for mode in ("rn", "rz"):
            for extra in ("", ".relu", ".satfinite", ".relu.satfinite"):
                opcode = f"cvt.{mode}{extra}.{kind}.f32"
                half = _float_reference(f"cvt.{mode}{extra}.{kind[:-2]}.f32")
                yield Form(opcode, kind, ("f32", "f32"), _joined(half))


def _joined(half: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: half(b).astype(np.uint32) | half(a).astype(np.uint32) << np.uint32(16)


def _widening() -> Iterator[Form]:
    for opcode in ("cvt.f32.f16", "cvt.ftz.f32.f16", "cvt.f32.bf16", "cvt.f64.f32", "cvt.f64.f16", "cvt.sat.f32.f16"):
        yield _float_form(opcode)


def _to_integers() -> Iterator[Form]:
    for mode in _INTEGRAL:
        for to in ("s32", "u32", "s64", "u64"):
            yield _integer_form(f"cvt.{mode}.{to}.f32")
    for opcode in ("cvt.rzi.ftz.s32.f32", "cvt.rni.ftz.u32.f32", "cvt.rzi.s16.f32", "cvt.rzi.u16.f32"):
        yield _integer_form(opcode)
    for source in ("f16", "bf16", "f64"):
        for to in ("s32", "u32", "s64", "u64", "s16", "u16"):
            yield _integer_form(f"cvt.rzi.{to}.{source}")
        yield _integer_form(f"cvt.rni.s32.{source}")


def _from_integers() -> Iterator[Form]:
    for mode in ("rn", "rz", "rm", "rp"):
        for source in ("s32", "u32", "s64", "u64"):
            yield _float_form(f"cvt.{mode}.f32.{source}")
    for to in ("f16", "bf16"):
        for source in ("s16", "u16", "s32", "u32", "s64", "u64"):
            yield _float_form(f"cvt.rn.{to}.{source}")
    yield _float_form("cvt.rz.f16.s32")
    for opcode in ("cvt.rn.f64.s32", "cvt.rn.f64.u32", "cvt.rn.f64.s64", "cvt.rn.f64.u64", "cvt.rn.f32.s16", "cvt.rn.f32.u16"):
        yield _float_form(opcode)
    yield Form("cvt.rn.f32.u8", "f32", ("u32",), lambda a: (a & 255).astype(np.float32).view(np.uint32))


def _between_integers() -> Iterator[Form]:
    signed = {"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64}
    unsigned = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}
    kinds: dict[str, Any] = signed | unsigned
    for to in ("s32", "u32", "s64", "u64", "s16", "u16"):
        for source in kinds:
            if to[1:] != source[1:]:
                yield _resize(f"cvt.{to}.{source}", to, source, kinds, sat=False)
    for to, source in (
        ("s8", "s32"),
        ("u8", "s32"),
        ("s16", "s32"),
        ("u16", "s32"),
        ("u16", "u32"),
        ("s32", "s64"),
        ("u32", "s64"),
    ):
        yield _resize(f"cvt.sat.{to}.{source}", to, source, kinds, sat=True)
    yield _resize("cvt.sat.u32.s32", "u32", "s32", kinds, sat=True)
    yield _resize("cvt.sat.s32.u32", "s32", "u32", kinds, sat=True)


def _resize(opcode: str, to: str, source: str, kinds: dict[str, Any], *, sat: bool) -> Form:
    """Registers of eight bits do not exist: a result of eight bits extends to its register."""
    register_in = f"u{max(int(source[1:]), 32 if source[1:] == '8' else 16)}"
    register_out = f"u{max(int(to[1:]), 32 if to[1:] == '8' else 16)}"

    def reference(a: Array) -> Array:
        value = a.astype(kinds[source]) if int(source[1:]) < a.itemsize * 8 else a.view(kinds[source])
        if sat:
            bounds = np.iinfo(kinds[to])
            value = np.array([min(max(int(one), bounds.min), bounds.max) for one in value.tolist()], object)
        return np.array([int(one) & ((1 << width_of(register_out)) - 1) for one in _wrapped(value, kinds[to])], np.uint64)

    return Form(opcode, register_out, (register_in,), reference)


def _wrapped(value: Array, kind: Any) -> list[int]:
    bits, signed = np.iinfo(kind).bits, np.iinfo(kind).min < 0
    low = [int(one) & ((1 << bits) - 1) for one in value.tolist()]
    return [one - (1 << bits) if signed and one >> (bits - 1) else one for one in low]


def _float_form(opcode: str) -> Form:
    to, source = opcode.split(".")[-2:]
    return Form(opcode, to, (source,), _float_reference(opcode))


def _float_reference(opcode: str) -> Callable[..., Array]:
    _, *modifiers, to, source = opcode.split(".")
    form, ftz = FORMATS[to], "ftz" in modifiers
    mode = next((MODES[word] for word in modifiers if word in MODES), MODES["rn"])
    integral = next((_INTEGRAL[word] for word in modifiers if word in _INTEGRAL), None)

    def operation(bits: int) -> int:
        value = _operand(bits, source, ftz and form.width == 32)  # narrowed, subnormals of f32 count even under .ftz
        if integral and value.magnitude is not None:
            value = Value(value.negative, Fraction(exact.rounded(value.magnitude, integral, value.negative)))
        if "sat" in modifiers and (value.nan or value.negative):
            value = Value(False, Fraction(0))
        if "sat" in modifiers and (value.magnitude is None or value.magnitude > 1):
            value = Value(False, Fraction(1))
        if "relu" in modifiers and value.negative and not value.nan:
            value = Value(False, Fraction(0))
        return encode(value, form, mode, ftz=ftz and form.width == 32, finite="satfinite" in modifiers)

    return lambda column: exact.lanes(operation, column, width=form.width)


def _operand(bits: int, kind: str, ftz: bool) -> Value:
    if kind in FORMATS:
        return decode(bits, FORMATS[kind], ftz=ftz and kind == "f32")
    width = int(kind[1:])
    number = bits - (1 << width) if kind[0] == "s" and bits >> (width - 1) else bits
    return Value(number < 0, Fraction(abs(number)))


def _integer_form(opcode: str) -> Form:
    _, mode, *_, to, source = opcode.split(".")
    width, signed = int(to[1:]), to[0] == "s"
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)

    def operation(bits: int) -> int:
        value = decode(bits, FORMATS[source], ftz="ftz" in opcode)
        if value.nan:
            return 1 << (width - 1) if source == "f64" or width == 64 else 0
        if value.magnitude is None:
            number = low if value.negative else high
        else:
            magnitude = exact.rounded(value.magnitude, _INTEGRAL[mode], value.negative)
            number = min(max(-magnitude if value.negative else magnitude, low), high)
        return number & ((1 << width) - 1)

    return Form(opcode, to, (source,), lambda column: exact.lanes(operation, column, width=width))


def _tf32(mode: Mode) -> Callable[..., Array]:
    tf32 = exact.Format(19, 10, 0x3FFFF)

    def operation(bits: int) -> int:
        value = decode(bits, exact.F32)
        if value.nan and mode == "rna":  # truncated; the other modes give the canonical NaN
            return bits & ~0x1FFF
        return encode(value, tf32, mode) << 13

    return lambda column: exact.lanes(operation, column, width=32)
