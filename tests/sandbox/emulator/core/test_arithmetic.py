"""The emulator's integers, floating-point numbers and comparisons against exact arithmetic in Python."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from tests.sandbox.emulator.launched import Array, execute, lowered

RANDOM = np.random.default_rng(5)
EDGES = {
    "u16": [0, 1, 0x7FFF, 0x8000, 0xFFFF],
    "u32": [0, 1, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    "u64": [0, 1, 63, 64, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1],
}


def integers(kind: str, count: int = 256) -> tuple[Array, Array]:
    """Two columns: every pair of edge values, and pairs of random bits."""
    edges = EDGES["u" + kind[1:]]
    pairs = [(a, b) for a in edges for b in edges]
    drawn = RANDOM.integers(0, 2 ** int(kind[1:]), (count - len(pairs), 2), dtype="u8").tolist()
    columns = np.array([*pairs, *drawn], dtype=f"u{int(kind[1:]) // 8}")
    return columns[:, 0].copy(), columns[:, 1].copy()


def signed(value: int, kind: str) -> int:
    bits = int(kind[1:])
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXACT: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": lambda a, b: quotient(a, b) if b else -1,
    "rem": lambda a, b: a - b * quotient(a, b) if b else -1,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers_wrap_and_divide_as_exact_ones(kind: str) -> None:
    a, b = integers(kind)
    body = "".join(f"{opcode}.{kind} %d{i}, %a0, %a1;" for i, opcode in enumerate((*EXACT, "mul.hi")))
    results = execute(body, [a, b], [a.dtype.str] * (len(EXACT) + 1))
    bits = int(kind[1:])
    for at, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        left, right = signed(x, kind), signed(y, kind)
        wanted = {**{name: exact(left, right) for name, exact in EXACT.items()}, "mul.hi": left * right >> bits}
        found = {name: int(result[at]) for name, result in zip(wanted, results, strict=True)}
        assert found == {name: value % 2**bits for name, value in wanted.items()}, (left, right)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_shifts_by_any_count_clamp_to_the_width(kind: str) -> None:
    a, counts = integers(kind)[0], integers("u32")[0]
    left, right = execute(f"shl.b{kind[1:]} %d0, %a0, %a1; shr.{kind} %d1, %a0, %a1;", [a, counts], [a.dtype.str] * 2)
    bits = int(kind[1:])
    for x, n, got_left, got_right in zip(a.tolist(), counts.tolist(), left.tolist(), right.tolist(), strict=True):
        count = min(n, bits)
        assert (got_left, got_right) == ((x << count) % 2**bits, (signed(x, kind) >> count) % 2**bits), (hex(x), n)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products_keep_every_bit(kind: str) -> None:
    a, b = integers(kind)
    wide = 2 * int(kind[1:])
    addend = RANDOM.integers(0, 2**wide, len(a), dtype="u8").astype(f"u{wide // 8}")
    body = f"mul.wide.{kind} %d0, %a0, %a1; mad.wide.{kind} %d1, %a0, %a1, %a2;"
    product, total = execute(body, [a, b, addend], [addend.dtype.str] * 2)
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        exact = signed(x, kind) * signed(y, kind)
        assert int(product[i]) == exact % 2**wide
        assert int(total[i]) == (exact + int(addend[i])) % 2**wide


def test_carries_run_through_128_bits() -> None:
    halves = [RANDOM.choice(np.array([0, 1, 2**64 - 1, 2**63, 12345], "u8"), 96) for _ in range(4)]
    body = """add.cc.u64 %d0, %a0, %a2; addc.u64 %d1, %a1, %a3; sub.cc.u64 %d2, %a0, %a2; subc.cc.u64 %d3, %a1, %a3;
        addc.u64 %d4, 0, 0;"""
    low, high, low_left, high_left, borrow = execute(body, halves, ["u8"] * 5)
    for i in range(96):
        a, b = (int(halves[n][i]) + (int(halves[n + 1][i]) << 64) for n in (0, 2))
        assert int(low[i]) + (int(high[i]) << 64) == (a + b) % 2**128
        assert int(low_left[i]) + (int(high_left[i]) << 64) == (a - b) % 2**128
        assert borrow[i] == (a < b)


def test_carry_of_a_guarded_add_belongs_to_its_lanes() -> None:
    a = np.full(32, 0xFFFFFFFF, "u4")
    lanes = np.arange(32, dtype="u4")
    body = """setp.lt.u32 %p1, %a1, 5; add.cc.u32 %r1, %a0, 1; @%p1 add.cc.u32 %r2, %a0, 0; addc.u32 %d0, 0, 0;"""
    (carry,) = execute(body, [a, lanes], ["u4"])
    assert carry.tolist() == [0] * 5 + [1] * 27


def test_products_with_carry_give_the_square_of_64_bits() -> None:
    """The sequence that compilers write for 64 x 64 bits out of words."""
    a, b = RANDOM.integers(0, 2**64, (2, 64), dtype="u8")
    body = """mov.b64 {%r1, %r2}, %a0; mov.b64 {%r3, %r4}, %a1;
        mul.lo.u32 %r5, %r1, %r3; mul.hi.u32 %r6, %r1, %r3;
        mad.lo.cc.u32 %r6, %r1, %r4, %r6; madc.hi.u32 %r7, %r1, %r4, 0;
        mad.lo.cc.u32 %r6, %r2, %r3, %r6; madc.hi.cc.u32 %r7, %r2, %r3, %r7; addc.u32 %r8, 0, 0;
        mad.lo.cc.u32 %r7, %r2, %r4, %r7; madc.hi.u32 %r8, %r2, %r4, %r8;
        mov.b64 %d0, {%r5, %r6}; mov.b64 %d1, {%r7, %r8};"""
    low, high = execute(body, [a, b], ["u8", "u8"])
    for i in range(64):
        assert int(low[i]) + (int(high[i]) << 64) == int(a[i]) * int(b[i])


def test_differences_of_bytes() -> None:
    a, b = integers("u32")
    body = "vabsdiff4.u32.u32.u32 %d0, %a0, %a1, %a0; vabsdiff4.u32.u32.u32.add %d1, %a0, %a1, %a0;"
    packed, summed = execute(body, [a, b], ["u4", "u4"])
    away = np.abs(a.view(np.uint8).astype(int) - b.view(np.uint8)).reshape(-1, 4)
    np.testing.assert_array_equal(packed.view(np.uint8).reshape(-1, 4), away)
    np.testing.assert_array_equal(summed, (a + away.sum(axis=1)).astype(np.uint32))


def test_only_guarded_lanes_are_written_and_results_may_replace_operands() -> None:
    a = np.arange(64, dtype="u4")
    body = "and.b32 %r1, %a0, 3; setp.eq.u32 %p1, %r1, 1; mov.b32 %d0, %a0; @!%p1 add.u32 %d0, %d0, %d0;"
    (result,) = execute(body, [a], ["u4"])
    assert result.tolist() == [x if x % 4 == 1 else 2 * x for x in range(64)]


def test_a_comparison_may_replace_the_predicate_that_guards_it() -> None:
    a = np.arange(32, dtype="u4")
    for pair in ("%p1|%p2", "%p2|%p1"):
        body = f"""setp.lt.u32 %p1, %a0, 8; setp.lt.u32 %p2, %a0, 0; @%p1 setp.lt.u32 {pair}, %a0, 4;
            selp.u32 %d0, 1, 0, %p1; selp.u32 %d1, 1, 0, %p2;"""
        one, two = execute(body, [a], ["u4", "u4"])
        less, rest = (one, two) if pair == "%p1|%p2" else (two, one)
        assert less.tolist() == [1] * 4 + [0] * 28
        assert rest.tolist() == [0] * 4 + [1] * 4 + [0] * 24


@pytest.mark.parametrize("join", ["and", "or", "xor"])
def test_a_comparison_and_its_opposite_are_joined_with_a_predicate(join: str) -> None:
    a = np.arange(32, dtype="u4")
    body = f"""and.b32 %r1, %a0, 1; setp.ne.u32 %p1, %r1, 0; setp.lt.{join}.u32 %p2|%p3, %a0, 16, !%p1;
        selp.u32 %d0, 1, 0, %p2; selp.u32 %d1, 1, 0, %p3;"""
    found = execute(body, [a], ["u4", "u4"])
    logic = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[join]
    for holds, result in ((lambda x: x < 16, found[0]), (lambda x: x >= 16, found[1])):
        assert result.tolist() == [logic(int(holds(x)), int(x % 2 == 0)) for x in range(32)]


# ---- floating-point numbers -------------------------------------------------------------------------------------------
SPECIAL_F32 = [
    0x00000000,
    0x80000000,
    0x00000001,
    0x807FFFFF,
    0x00800000,
    0x7F7FFFFF,
    0x7F800000,
    0xFF800000,
    0x7FC00001,
    0x3F800000,
]


def floats(count: int = 512) -> list[Array]:
    """Three columns of f32: special ones against each other, and numbers whose exponents are close enough to interact."""
    specials = [(a, b, c) for a in SPECIAL_F32 for b in SPECIAL_F32 for c in (0x80000000, 0x7F800000, 0x3F800001)]
    exponents = RANDOM.integers(100, 150, (count, 3)).astype("u4")
    drawn = (
        RANDOM.integers(0, 2**23, (count, 3)).astype("u4")
        | exponents << 23
        | RANDOM.integers(0, 2, (count, 3)).astype("u4") << 31
    )
    columns = np.concatenate([np.array(specials, "u4"), drawn])[:count]
    return [columns[:, i].copy().view("f4") for i in range(3)]


def exponent_of(exact: Fraction) -> int:
    """The n for which 2^(n - 1) <= |exact| < 2^n."""
    guess = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    return guess + (abs(exact) >= Fraction(2) ** guess)


def rounded(exact: Fraction, mode: str) -> float:
    """An exact number other than zero as f32, by a mode, without overflow."""
    exponent = max(exponent_of(exact) - 24, -149)
    scaled = exact / Fraction(2) ** exponent
    whole = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[mode](scaled)
    return float(whole * Fraction(2) ** exponent)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f32_is_rounded_once_in_every_mode(mode: str) -> None:
    a, b, c = floats()
    body = f"""add.{mode}.f32 %d0, %a0, %a1; mul.{mode}.f32 %d1, %a0, %a1; fma.{mode}.f32 %d2, %a0, %a1, %a2;
        div.{mode}.f32 %d3, %a0, %a1; rcp.{mode}.f32 %d4, %a1; sub.{mode}.f32 %d5, %a0, %a1;"""
    found = execute(body, [a, b, c], ["f4"] * 6)
    checked = 0
    for i in range(len(a)):
        if not all(math.isfinite(x[i]) for x in (a, b, c)):
            continue
        x, y, z = (Fraction(float(column[i])) for column in (a, b, c))
        wanted = [x + y, x * y, x * y + z, x / y if y else None, 1 / y if y else None, x - y]
        for exact, result in zip(wanted, found, strict=True):
            if exact is not None and exact != 0 and abs(exact) < Fraction(2) ** 127:
                assert float(result[i]) == rounded(exact, mode), (mode, float(x), float(y), float(z))
                checked += 1
    assert checked > 1500


def test_every_nan_of_f32_arithmetic_is_the_canonical_one() -> None:
    a = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x7F800001] * 8, "u4")
    b = np.full(32, 0xFF800000, "u4")
    body = (
        "add.f32 %d0, %a0, %a1; mul.f32 %d1, %a0, 0f00000000; fma.rn.f32 %d2, %a0, 0f00000000, %a1; max.NaN.f32 %d3, %a0, %a1;"
    )
    added, product, fused, greatest = execute(body, [a, b], ["u4"] * 4)
    assert set(added.tolist()) == set(product.tolist()) == set(fused.tolist()) == {0x7FFFFFFF}
    assert greatest.tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x7F800000, 0x7FFFFFFF] * 8


def test_minimum_and_maximum_prefer_numbers_and_know_the_sign_of_zero() -> None:
    nan, minus_zero = 0x7FC00000, 0x80000000
    a = np.array([nan, 0x3F800000, 0, minus_zero] * 8, "u4")
    b = np.array([0x3F800000, nan, minus_zero, 0] * 8, "u4")
    least, greatest = execute("min.f32 %d0, %a0, %a1; max.f32 %d1, %a0, %a1;", [a, b], ["u4"] * 2)
    assert least.tolist() == [0x3F800000, 0x3F800000, minus_zero, minus_zero] * 8
    assert greatest.tolist() == [0x3F800000, 0x3F800000, 0, 0] * 8


def test_subnormals_count_unless_flushed() -> None:
    a = np.array([0x00000001, 0x80000001, 0x00800000, 0x807FFFFF] * 8, "u4")
    body = """add.f32 %d0, %a0, 0f80000000; add.ftz.f32 %d1, %a0, 0f80000000; mul.ftz.f32 %d2, %a0, 0f3F000000;
        neg.ftz.f32 %d3, %a0; setp.eq.ftz.f32 %p1, %a0, 0f00000000; selp.b32 %d4, 1, 0, %p1;"""
    kept, added, halved, negated, is_zero = execute(body, [a], ["u4"] * 5)
    assert kept.tolist() == a.tolist()
    assert added.tolist() == [0, 0x80000000, 0x00800000, 0x80000000] * 8
    assert halved.tolist() == [0, 0x80000000, 0, 0x80000000] * 8
    assert negated.tolist() == [0x80000000, 0, 0x80800000, 0] * 8
    assert is_zero.tolist() == [1, 1, 0, 1] * 8


def test_decimal_constants_round_to_f32_and_may_overflow() -> None:
    body = "mov.f32 %d0, 1e300; add.f32 %d1, -1e39, 0f00000000; mov.f32 %d2, 0.1;"
    found = execute(body, [np.zeros(32, "u4")], ["u4"] * 3)
    assert [int(column[0]) for column in found] == [0x7F800000, 0xFF800000, 0x3DCCCCCD]


def test_saturation_sends_nan_to_zero() -> None:
    a = np.array([np.nan, -1, 0.25, 7, np.inf, -np.inf, 1, -0.0] * 4, "f4")
    (result,) = execute("add.sat.f32 %d0, %a0, 0f00000000;", [a], ["u4"])
    assert result.view("f4").tolist() == [0, 0, 0.25, 1, 1, 0, 1, 0] * 4
    assert result.max() <= 0x3F800000  # no zero of theirs is negative


# ---- 16-bit formats -----------------------------------------------------------------------------------------------------
def decoded(bits: int, kind: str) -> float:
    return float(np.uint16(bits).view("f2")) if kind == "f16" else float(np.uint32(bits << 16).view("f4"))


def nearest_half(exact: Fraction, kind: str) -> int:
    """The bits of the nearest number, ties to even; exact is not zero."""
    precision, least, largest = (11, -24, 15) if kind == "f16" else (8, -133, 127)
    exponent = max(exponent_of(exact) - precision, least)
    whole = round(abs(exact) / Fraction(2) ** exponent)
    sign = 0x8000 if exact < 0 else 0
    if whole * Fraction(2) ** exponent >= Fraction(2) ** (largest + 1):
        return sign | (0x7C00 if kind == "f16" else 0x7F80)
    value = float(whole * Fraction(2) ** exponent)
    bits = int(np.float16(value).view("u2")) if kind == "f16" else int(np.float32(value).view("u4")) >> 16
    return sign | bits


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_are_rounded_once(kind: str) -> None:
    """Random bits, and sums whose product is a tie that only a far smaller addend breaks."""
    drawn = RANDOM.integers(0, 2**16, (900, 3)).astype("u2")
    ties = [(0x3C01, 0x3C01, 0x0001), (0x3C01, 0x3C01, 0x8001), (0x3C03, 0x3C80, 0x8001), (0x0401, 0x1400, 0x8001)]
    if kind == "bf16":  # 1.5 * (1 + 2^-7) is a tie; the addend lies far beyond 53 bits
        ties = [(0x3FC0, 0x3F81, 0x0001), (0x3FC0, 0x3F81, 0x8001), (0x3FC0, 0x3F83, 0x8001), (0x0081, 0x3F01, 0x8001)]
    columns = np.concatenate([np.array(ties * 31, "u2"), drawn])
    a, b, c = (columns[:, i].copy() for i in range(3))
    body = f"add.rn.{kind} %d0, %a0, %a1; mul.rn.{kind} %d1, %a0, %a1; fma.rn.{kind} %d2, %a0, %a1, %a2;"
    found = execute(body, [a, b, c], ["u2"] * 3)
    checked = 0
    for i in range(len(a)):
        values = [decoded(int(column[i]), kind) for column in (a, b, c)]
        if not all(map(math.isfinite, values)):
            continue
        x, y, z = map(Fraction, values)
        for exact, result in zip((x + y, x * y, x * y + z), found, strict=True):
            if exact != 0:
                assert int(result[i]) == nearest_half(exact, kind), (kind, *values)
                checked += 1
    assert checked > 2000


def test_packed_halves_do_not_mix() -> None:
    a, b = RANDOM.integers(0, 2**32, (2, 256), dtype="u8").astype("u4")
    packed, low, high = execute(
        """fma.rn.f16x2 %d0, %a0, %a1, %a1; mov.b32 {%h1, %h2}, %a0; mov.b32 {%h3, %h4}, %a1;
        fma.rn.f16 %d1, %h1, %h3, %h3; fma.rn.f16 %d2, %h2, %h4, %h4;""",
        [a, b],
        ["u4", "u2", "u2"],
    )
    assert packed.tolist() == (low.astype("u4") | high.astype("u4") << 16).tolist()


# ---- refusals -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "instruction",
    [
        "add.sat.u32 %r1, %r2, %r3;",
        "add.f32 %r1, %r2, 1;",
        "add.rn.rz.f32 %r1, %r2, %r3;",
        "mul.s32 %r1, %r2, %r3;",
        "fma.rn.oob.f16 %h1, %h2, %h3, %h4;",
        "max.f32 %r1, %r2, %r3, %r4;",
        "min.abs.f32 %r1, %r2, %r3;",
        "add.f32x2 %l1, %l2, %l3;",
        "setp.lo.s32 %p1, %r1, %r2;",
        "setp.lt.b32 %p1, %r1, %r2;",
        "setp.equ.s32 %p1, %r1, %r2;",
        "setp.lt.ftz.s32 %p1, %r1, %r2;",
        "lop3.b32 %r1, %r2, %r3, %r4, %r5;",
        "lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x3f, %p2;",
        "vadd.s32.s32.s32 %r1, %r2, %r3;",
        "add.s32 %r1, %r2;",
        "add.s32 %l1, %r2, %r3;",
        "shl.b32 %r1, %r2, %l1;",
        "ex2.rn.f32 %r1, %r2;",
        "tanh.approx.ftz.f32 %r1, %r2;",
    ],
)
def test_what_is_not_known_is_refused_by_name(instruction: str) -> None:
    with pytest.raises(Unsupported) as refused:
        lowered(instruction)
    assert "PTX line" in str(refused.value)
