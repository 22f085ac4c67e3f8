"""The emulator's cvt, mov and address spaces against exact arithmetic in Python."""

import math
from fractions import Fraction

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from tests.sandbox.emulator.launched import Array, execute, lowered

RANDOM = np.random.default_rng(6)
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def low(value: int, kind: str) -> int:
    """The value of a register's low bits."""
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def wide_values() -> Array:
    edges = [(1 << n) + d for n in (0, 7, 8, 15, 16, 31, 32, 63) for d in (-1, 0, 1)]
    drawn = [
        int(x) >> int(n) for x, n in zip(RANDOM.integers(0, 2**64, 40, dtype="u8"), RANDOM.integers(0, 64, 40), strict=True)
    ]
    return np.array([x % 2**64 for x in edges + [-e for e in edges]] + drawn, "u8")[:64]


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_are_cut_extended_or_clamped(source: str) -> None:
    """Between every pair of types; registers are as wide as PTX allows, so that what the type leaves out must not matter."""
    values = wide_values()
    names = {"8": "h", "16": "h", "32": "r", "64": "l"}
    read = f"%{names[source[1:]]}1"
    width = {"h": 16, "r": 32, "l": 64}[read[1]]
    body = [f"cvt.u{width}.u64 {read}, %a0;" if width < 64 else f"mov.b64 {read}, %a0;"]
    for i, result in enumerate(INTEGERS):
        for j, mode in enumerate(("", ".sat")):
            body.append(f"cvt{mode}.{result}.{source} %d{2 * i + j}, {read};")
    found = execute("\n".join(body), [values], ["u8"] * 16)
    for at, value in enumerate(values.tolist()):
        exact = low(value, source)
        for i, result in enumerate(INTEGERS):
            least, most = limits(result)
            assert int(found[2 * i][at]) == low(exact, result) % 2**64, (hex(value), source, result)
            assert int(found[2 * i + 1][at]) == min(max(exact, least), most) % 2**64, (hex(value), source, result, "sat")


FLOATS = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -1.5,
    126.5,
    127.5,
    128.5,
    -128.5,
    255.5,
    65535.5,
    -32768.5,
    2.0**31,
    -(2.0**31),
    2.0**32,
]
FLOATS += [2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, math.inf, -math.inf, 3.999, -3.999, 1e-40, -7.25]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize(("mode", "whole"), [("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)])
def test_floats_become_the_integer_of_their_mode_within_range(kind: str, mode: str, whole) -> None:  # type: ignore[no-untyped-def]
    values = np.array((FLOATS * 2)[:32], "f4" if kind == "f32" else "f8")
    body = "".join(f"cvt.{mode}.{result}.{kind} %d{i}, %a0;" for i, result in enumerate(INTEGERS))
    found = execute(body, [values], ["u8"] * 8)
    for i, result in enumerate(INTEGERS):
        least, most = limits(result)
        for value, got in zip(values.tolist(), found[i].tolist(), strict=True):
            exact = min(max(whole(value), least), most) if math.isfinite(value) else most if value > 0 else least
            assert got == exact % 2**64, (value, mode, result)


def test_nan_becomes_zero_or_the_top_bit() -> None:
    single, double = np.full(32, np.nan, "f4"), np.full(32, np.nan, "f8")
    body = """cvt.rzi.s32.f32 %d0, %a0; cvt.rzi.u16.f32 %d1, %a0; cvt.rzi.s64.f32 %d2, %a0; cvt.rzi.u32.f64 %d3, %a1;
        cvt.rzi.s32.f64 %d4, %a1;"""
    found = execute(body, [single, double], ["u4", "u2", "u8", "u4", "u4"])
    assert [int(column[0]) for column in found] == [0, 0, 1 << 63, 1 << 31, 1 << 31]


@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integers_are_rounded_once_to_floats(source: str, mode: str) -> None:
    values = np.concatenate(
        [wide_values(), np.array([0, 2**24 + 1, 2**25 + 3, 2**53 + 1, 2**54 + 3, 2**64 - 1, 2**63 + 2**39] * 5, "u8")]
    )
    values = values[:96].astype(f"u{int(source[1:]) // 8}")
    body = f"cvt.{mode}.f32.{source} %d0, %a0; cvt.{mode}.f64.{source} %d1, %a0;"
    found = execute(body, [values], ["u4", "u8"])
    for value, single, double in zip(values.tolist(), found[0].view("f4"), found[1].view("f8"), strict=True):
        exact = low(value, source)
        for precision, got in ((24, single), (53, double)):
            assert float(got) == rounded(exact, precision, mode), (value, source, mode, precision)
            assert exact or not np.signbit(got)


def rounded(exact: int, precision: int, mode: str) -> float:
    unit = 1 << max(abs(exact).bit_length() - precision, 0)
    whole = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[mode](Fraction(exact, unit))
    return float(whole * unit)


def test_a_double_or_a_large_integer_becomes_a_half_by_one_rounding() -> None:
    """A tie between two halves that only bits beyond f32 break."""
    tie, step = 1 + 2.0**-11, 2.0**-40
    values = np.array([tie, tie + step, tie - step, -tie - step] * 8, "f8")
    whole = np.array([2**12 * 4 + 2**3, 2**13 + 4, (2**11 + 1) * 2**4 + 1, 65519] * 8, "u8")
    huge = np.array([257 << 50, (257 << 50) + 1, 259 << 50, (259 << 50) - 1] * 8, "u8")
    half, from_integer, bfloat = execute(
        "cvt.rn.f16.f64 %d0, %a0; cvt.rn.f16.u64 %d1, %a1; cvt.rn.bf16.u64 %d2, %a2;", [values, whole, huge], ["u2"] * 3
    )
    assert half.tolist() == [0x3C00, 0x3C01, 0x3C00, 0xBC01] * 8
    assert from_integer.tolist() == np.array(whole.tolist(), "f8").astype("f2").view("u2").tolist()
    top = 127 + 58 << 7
    assert bfloat.tolist() == [top, top + 1, top + 2, top + 1] * 8


def test_halves_of_every_kind_widen_exactly_and_come_back() -> None:
    bits = np.arange(0x10000, dtype="u4").astype("u2").reshape(-1, 1024)
    for chunk in (bits[0], bits[15], bits[31], bits[32], bits[63]):
        body = """cvt.f32.f16 %d0, %a0; cvt.rn.f16.f32 %d1, %d0; cvt.f32.bf16 %d2, %a0; cvt.rn.bf16.f32 %d3, %d2;
            cvt.rn.f16x2.f32 %d4, %d0, 0f3F800000;"""
        wide, back, wide_bf, back_bf, packed = execute(body, [chunk], ["f4", "u2", "f4", "u2", "u4"])
        with np.errstate(invalid="ignore"):
            exact = chunk.view("f2").astype("f4")
        nan = np.isnan(exact)
        assert np.array_equal(wide.view("u4")[~nan], exact.view("u4")[~nan])
        assert np.array_equal(back, np.where(nan, 0x7FFF, chunk))
        nan_bf = np.isnan(wide_bf)
        assert np.array_equal(wide_bf.view("u4")[~nan_bf], chunk[~nan_bf].astype("u4") << 16)
        assert np.array_equal(back_bf, np.where(nan_bf, 0x7FFF, chunk))
        assert np.array_equal(packed, back.astype("u4") << 16 | 0x3C00)


def test_narrowing_in_every_mode() -> None:
    """Between 1 and the next f16 and bf16, beyond the largest, and below the smallest."""
    values = np.array([1.0001, -1.0001, 65519.9, -65519.9, 65520.0, 1e-9, -1e-9, 3.4e38] * 4, "f4")
    body = "".join(f"cvt.{mode}.f16.f32 %d{i}, %a0;" for i, mode in enumerate(("rn", "rz", "rm", "rp")))
    body += (
        "cvt.rz.bf16.f32 %d4, %a0; cvt.rn.satfinite.f16.f32 %d5, %a0; cvt.rn.relu.f16.f32 %d6, %a0; cvt.rn.bf16.f32 %d7, %a0;"
    )
    found = [column[:8].tolist() for column in execute(body, [values], ["u2"] * 8)]
    most, inf = 0x7BFF, 0x7C00
    assert found[0] == [0x3C00, 0xBC00, most, most | 0x8000, inf, 0, 0x8000, inf]
    assert found[1] == [0x3C00, 0xBC00, most, most | 0x8000, most, 0, 0x8000, most]
    assert found[2] == [0x3C00, 0xBC01, most, inf | 0x8000, most, 0, 0x8001, most]
    assert found[3] == [0x3C01, 0xBC00, inf, most | 0x8000, inf, 1, 0x8000, inf]
    assert found[4][:2] == [0x3F80, 0xBF80]
    assert found[5] == [0x3C00, 0xBC00, most, most | 0x8000, most, 0, 0x8000, most]
    assert found[6] == [0x3C00, 0, most, 0, inf, 0, 0, inf]
    assert (found[4][7], found[7][7]) == (0x7F7F, 0x7F80)


def test_packed_conversion_puts_its_first_operand_on_top() -> None:
    a, b = (RANDOM.normal(size=64).astype("f4") for _ in range(2))
    body = "cvt.rn.f16x2.f32 %d0, %a0, %a1; cvt.rz.relu.f16x2.f32 %d1, %a0, %a1; cvt.rn.bf16x2.f32 %d2, %a0, %a1;"
    plain, relu, bfloat = execute(body, [a, b], ["u4"] * 3)
    assert plain.tolist() == (a.astype("f2").view("u2").astype("u4") << 16 | b.astype("f2").view("u2")).tolist()
    for packed, x, y in zip(relu.tolist(), a, b, strict=True):
        for bits, exact in ((packed >> 16, x), (packed & 0xFFFF, y)):
            got = float(np.uint16(bits).view("f2"))
            assert got == 0 if exact <= 0 else exact - 2.0**-9 < got <= exact
    assert np.abs((bfloat & 0xFFFF0000).view("f4") - a).max() <= 2.0**-7


def test_tf32_keeps_ten_bits() -> None:
    values = np.array([0x3F801000, 0x3F801001, 0x3F803000, 0xBF801000, 0x3F800FFF, 0x7F800000, 0x7FC00001, 0] * 4, "u4")
    body = "cvt.rna.tf32.f32 %d0, %a0; cvt.rn.tf32.f32 %d1, %a0; cvt.rz.tf32.f32 %d2, %a0;"
    away, even, zero = (column[:8].tolist() for column in execute(body, [values], ["u4"] * 3))
    assert away == [0x3F802000, 0x3F802000, 0x3F804000, 0xBF802000, 0x3F800000, 0x7F800000, 0x7FC00000, 0]
    assert even == [0x3F800000, 0x3F802000, 0x3F804000, 0xBF800000, 0x3F800000, 0x7F800000, 0x7FFFE000, 0]
    assert zero == [0x3F800000, 0x3F800000, 0x3F802000, 0xBF800000, 0x3F800000, 0x7F800000, 0x7FFFE000, 0]


# ---- mov and addresses ----------------------------------------------------------------------------------------------------
def test_vectors_are_packed_from_the_lowest_bits_and_sinks_take_nothing() -> None:
    a = RANDOM.integers(0, 2**64, 64, dtype="u8")
    body = """mov.b64 {%h1, %h2, %h3, %h4}, %a0; mov.b64 %d0, {%h4, %h3, %h2, %h1}; mov.b64 {_, %r1}, %a0;
        mov.b64 {%r2, _}, %a0; mov.b64 %d1, {%r1, %r2}; .reg .b128 %q; mov.b128 %q, {%a0, %d1};
        mov.b128 {%d2, %l1}, %q; mov.b64 %d3, %l1;
        mov.b32 %d4, {%h1, 258};"""
    found = execute(body, [a], ["u8"] * 4 + ["u4"])
    turned = [sum(((x >> 16 * n) & 0xFFFF) << 16 * (3 - n) for n in range(4)) for x in a.tolist()]
    swapped = [(x >> 32) | (x & 0xFFFFFFFF) << 32 for x in a.tolist()]
    assert [column.tolist() for column in found[:4]] == [turned, swapped, a.tolist(), swapped]
    assert found[4].tolist() == [258 << 16 | (x & 0xFFFF) for x in a.tolist()]


def test_predicates_move() -> None:
    a = np.arange(32, dtype="u4")
    body = """setp.lt.u32 %p1, %a0, 9; mov.pred %p2, %p1; not.pred %p3, %p2; xor.pred %p4, %p3, %p1; and.pred %p5, %p1, !%p3;
        selp.u32 %d0, 1, 0, %p3; selp.u32 %d1, 1, 0, %p4; selp.u32 %d2, 1, 0, %p5;"""
    negated, always, same = execute(body, [a], ["u4"] * 3)
    assert negated.tolist() == [0] * 9 + [1] * 23
    assert always.tolist() == [1] * 32
    assert same.tolist() == [1] * 9 + [0] * 23


def test_every_space_has_its_own_generic_addresses() -> None:
    a = np.arange(32, dtype="u8")
    body = """.shared .align 16 .b8 tile[64]; .local .align 8 .b8 stack[16];
        mov.u64 %l1, tile; cvta.shared.u64 %l2, %l1; cvta.to.shared.u64 %d0, %l2; mov.u64 %d1, %l1;
        mov.u64 %l3, stack; cvta.local.u64 %l4, %l3;
        isspacep.shared %p1, %l2; isspacep.shared::cta %p2, %l2; isspacep.local %p3, %l4; isspacep.global %p4, %address;
        isspacep.global %p5, %l2; isspacep.shared %p6, %l4; isspacep.shared %p7, %address; isspacep.global %p8, %l4;
        selp.u32 %d2, 1, 0, %p1; selp.u32 %d3, 1, 0, %p2; selp.u32 %d4, 1, 0, %p3; selp.u32 %d5, 1, 0, %p4;
        selp.u32 %d6, 1, 0, %p5; selp.u32 %d7, 1, 0, %p6; selp.u32 %d8, 1, 0, %p7; selp.u32 %d9, 1, 0, %p8;"""
    found = execute(body, [a], ["u8", "u8"] + ["u4"] * 8)
    assert found[0].tolist() == found[1].tolist()
    assert [int(column[0]) for column in found[2:]] == [1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16"])
def test_two_integers_are_clamped_and_packed(kind: str) -> None:
    """Source: PTX ISA, "cvt.pack"; an operand may be the result."""
    draw = np.random.default_rng(4)
    small = draw.integers(-300, 300, (2, 64)).astype(np.int32)
    large = draw.integers(-(2**31), 2**31, (2, 64)).astype(np.int32)
    a, b = np.concatenate([small, large], axis=1)
    c = draw.integers(0, 2**32, 128, dtype=np.uint32)
    limits = np.iinfo(np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}"))
    bits = limits.bits
    high, low = (np.clip(each, limits.min, limits.max).astype(np.uint32) & np.uint32(2**bits - 1) for each in (a, b))
    expected = high << np.uint32(bits) | low
    extra = ""
    if bits == 8:
        expected, extra = expected | c << np.uint32(16), ".b32 %d0, %a0, %d0, %a2;"
    body = f"mov.b32 %d0, %a1; cvt.pack.sat.{kind}.s32{extra or ' %d0, %a0, %d0;'}"
    np.testing.assert_array_equal(execute(body, [a, b, c], ["u4"])[0], expected)


@pytest.mark.parametrize(
    "instruction",
    [
        "cvt.s32.f32 %r1, %r2;",
        "cvt.rni.f32.s32 %r1, %r2;",
        "cvt.f32.s32 %r1, %r2;",
        "cvt.rn.f32.f16 %r1, %h1;",
        "cvt.f16.f32 %h1, %r1;",
        "cvt.rn.rz.f16.f32 %h1, %r1;",
        "cvt.rn.relu.f32.f64 %r1, %l1;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2;",
        "cvt.rs.f16x2.f32 %r1, %r2, %r3, %r4;",
        "cvt.u32.b32 %r1, %r2;",
        "cvt.pack.sat.s4.s32.b32 %r1, %r2, %r3, %r4;",
        "cvt.pack.sat.s8.s32.b32 %r1, %r2, %r3;",
        "cvt.pack.sat.s16.s32 %r1, %r2, %r3, %r4;",
        "cvt.pack.s16.s32 %r1, %r2, %r3;",
        "cvt.u64.u32 %r1, %r2;",
        "mov.b64 {%r1, %h1}, %l1;",
        "mov.b64 {%r1, %r2, %r3}, %l1;",
        "mov.u32 %r1, %clock;",
        "mov.u64 %l1, %globaltimer;",
        "mov.f32 %r1, 1;",
        "cvta.shared.u32 %r1, %r2;",
        "isspacep.const %p1, %l1;",
    ],
)
def test_conversions_that_are_not_known_are_refused(instruction: str) -> None:
    with pytest.raises(Unsupported):
        lowered(instruction)
