"""Integer arithmetic, bit operations, comparisons, selections, and packing by mov."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.case import Family
from tests.sandbox.emulator.golden.lanes import Form, lane_family

Array = np.ndarray[Any, Any]
Scalar = Callable[..., int]
_PRMT = ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
_LUTS = (0xE2, 0x96, 0xE8, 0x80, 0xFE, 0x1B)


def integer_family() -> Family:
    return lane_family("integers", tuple(_forms()))


def comparison_family() -> Family:
    return lane_family("comparisons", tuple(_comparisons()))


def signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def _forms() -> Iterator[Form]:
    for kind in ("s16", "u16", "s32", "u32", "s64", "u64"):
        yield from _arithmetic(kind)
    yield from _narrow_products()
    yield from _chains()
    for width in (32, 64):
        yield from _bits(width)
    yield from _bytes()
    yield from _packing()


def _arithmetic(kind: str) -> Iterator[Form]:
    width = int(kind[1:])
    for name, operation in (
        *(("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul.lo", lambda a, b: a * b)),
        *(("mul.hi", lambda a, b: a * b >> width), ("min", min), ("max", max)),
    ):
        yield _typed(f"{name}.{kind}", kind, 2, operation)
    yield _typed(f"mad.lo.{kind}", kind, 3, lambda a, b, c: a * b + c)
    yield _typed(f"mad.hi.{kind}", kind, 3, lambda a, b, c: (a * b >> width) + c)
    yield _typed(f"sad.{kind}", kind, 3, lambda a, b, c: c + abs(a - b))
    yield _typed(f"div.{kind}", kind, 2, _quotient, zero_divisor=True)
    yield _typed(f"rem.{kind}", kind, 2, _remainder, zero_divisor=True)
    if kind[0] == "s":
        yield _typed(f"abs.{kind}", kind, 1, abs)
        yield _typed(f"neg.{kind}", kind, 1, lambda a: -a)
    if kind == "s32":
        yield _typed("add.sat.s32", kind, 2, lambda a, b: min(max(a + b, -(1 << 31)), (1 << 31) - 1))
        yield _typed("sub.sat.s32", kind, 2, lambda a, b: min(max(a - b, -(1 << 31)), (1 << 31) - 1))
        yield _typed("mad.hi.sat.s32", kind, 3, lambda a, b, c: min(max((a * b >> 32) + c, -(1 << 31)), (1 << 31) - 1))


def _quotient(a: int, b: int) -> int:
    return -(abs(a) // abs(b)) if (a < 0) != (b < 0) else abs(a) // abs(b)


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


def _typed(opcode: str, kind: str, count: int, operation: Scalar, *, zero_divisor: bool = False) -> Form:
    """A form on integers of one type. A division by zero, which PTX does not specify, gives all ones."""
    width, sign = int(kind[1:]), kind[0] == "s"

    def bits(*row: int) -> int:
        if zero_divisor and row[-1] == 0:
            return (1 << width) - 1
        return operation(*(signed(one, width) if sign else one for one in row)) & ((1 << width) - 1)

    return Form(opcode, kind, (kind,) * count, lambda *columns: exact.lanes(bits, *columns, width=width))


def _narrow_products() -> Iterator[Form]:
    def wide(opcode: str, kind: str, out: str, count: int) -> Form:
        width, sign = int(kind[1:]), kind[0] == "s"

        def bits(a: int, b: int, c: int = 0) -> int:
            x, y = (signed(one, width) if sign else one for one in (a, b))
            return (x * y + c) & ((1 << 2 * width) - 1)

        kinds = (kind, kind) if count == 2 else (kind, kind, out)
        return Form(opcode, out, kinds, lambda *columns: exact.lanes(bits, *columns, width=2 * width))

    for kind, out in (("s16", "s32"), ("u16", "u32"), ("s32", "s64"), ("u32", "u64")):
        yield wide(f"mul.wide.{kind}", kind, out, 2)
        yield wide(f"mad.wide.{kind}", kind, out, 3)
    for kind in ("s32", "u32"):
        for half, shift in (("lo", 0), ("hi", 16)):
            yield _mul24(f"mul24.{half}.{kind}", kind, shift, 2)
            yield _mul24(f"mad24.{half}.{kind}", kind, shift, 3)
    for left in ("s32", "u32"):
        for right in ("s32", "u32"):
            yield _dot(f"dp4a.{left}.{right}", left, right, (8, 8), 4, 0)
            yield _dot(f"dp2a.lo.{left}.{right}", left, right, (16, 8), 2, 0)
            yield _dot(f"dp2a.hi.{left}.{right}", left, right, (16, 8), 2, 2)


def _mul24(opcode: str, kind: str, shift: int, count: int) -> Form:
    def bits(a: int, b: int, c: int = 0) -> int:
        x, y = (signed(one & 0xFFFFFF, 24) if kind == "s32" else one & 0xFFFFFF for one in (a, b))
        return ((x * y >> shift) + c) & 0xFFFFFFFF

    return Form(opcode, kind, (kind,) * count, lambda *columns: exact.lanes(bits, *columns, width=32))


def _dot(opcode: str, left: str, right: str, widths: tuple[int, int], count: int, skip: int) -> Form:
    def part(word: int, at: int, width: int, kind: str) -> int:
        value = word >> (at * width) & ((1 << width) - 1)
        return signed(value, width) if kind == "s32" else value

    def bits(a: int, b: int, c: int) -> int:
        products = (part(a, at, widths[0], left) * part(b, at + skip, widths[1], right) for at in range(count))
        return (c + sum(products)) & 0xFFFFFFFF

    return Form(opcode, "u32", ("u32", "u32", "u32"), lambda *columns: exact.lanes(bits, *columns, width=32))


def _chains() -> Iterator[Form]:
    """Carries between the halves of 64-bit numbers, and through three parts."""
    unpack = ".reg .b32 a, b, c, d, e, f; mov.b64 {a, b}, %1; mov.b64 {c, d}, %2;"
    mask = (1 << 64) - 1
    for name, first, second, operation in (
        ("add.cc", "add.cc.u32 e, a, c;", "addc.u32 f, b, d;", lambda a, b: (a + b) & mask),
        ("sub.cc", "sub.cc.u32 e, a, c;", "subc.u32 f, b, d;", lambda a, b: (a - b) & mask),
    ):
        body = f"{{{unpack} {first} {second} mov.b64 %0, {{e, f}};}}"
        yield Form(f"{name} chain", "u64", ("u64", "u64"), _mapped(operation, 64), body)
    body = f"{{{unpack} add.cc.u32 e, a, c; addc.cc.u32 e, b, d; addc.u32 f, 0, 0; mov.b64 %0, {{e, f}};}}"
    yield Form("addc.cc chain", "u64", ("u64", "u64"), _mapped(lambda a, b: (a + b) >> 32, 64), body)
    body = "{.reg .b64 e, f; add.cc.u64 e, %1, %2; addc.u64 f, 0, 0; xor.b64 %0, e, f;}"
    yield Form("add.cc.u64 chain", "u64", ("u64", "u64"), _mapped(lambda a, b: (a + b & mask) ^ (a + b >> 64), 64), body)
    body = f"{{{unpack} mad.lo.cc.u32 e, a, c, d; madc.hi.u32 f, a, c, b; mov.b64 %0, {{e, f}};}}"
    yield Form("mad.lo.cc chain", "u64", ("u64", "u64"), _mapped(_mad_chain, 64), body)


def _mad_chain(x: int, y: int) -> int:
    a, b, c, d = x & 0xFFFFFFFF, x >> 32, y & 0xFFFFFFFF, y >> 32
    low = (a * c & 0xFFFFFFFF) + d
    return low & 0xFFFFFFFF | ((a * c >> 32) + b + (low >> 32) & 0xFFFFFFFF) << 32


def _mapped(operation: Scalar, width: int) -> Callable[..., Array]:
    return lambda *columns: exact.lanes(operation, *columns, width=width)


def _bits(width: int) -> Iterator[Form]:
    kind, mask = f"u{width}", (1 << width) - 1
    for name, operation in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)):
        yield Form(f"{name}.b{width}", kind, (kind, kind), _mapped(operation, width))
    yield Form(f"not.b{width}", kind, (kind,), _mapped(lambda a: ~a & mask, width))
    yield Form(f"cnot.b{width}", kind, (kind,), _mapped(lambda a: int(a == 0), width))
    yield Form(f"brev.b{width}", kind, (kind,), _mapped(lambda a: int(f"{a:0{width}b}"[::-1], 2), width))
    yield Form(f"popc.b{width}", "u32", (kind,), _mapped(int.bit_count, 32))
    yield Form(f"clz.b{width}", "u32", (kind,), _mapped(lambda a: width - a.bit_length(), 32))
    for sign in "us":
        for shift in ("", ".shiftamt"):
            opcode = f"bfind{shift}.{sign}{width}"
            yield Form(opcode, "u32", (kind,), _mapped(_find(width, sign == "s", bool(shift)), 32))
        yield Form(f"bfe.{sign}{width}", kind, (kind, "u32", "u32"), _mapped(_extract(width, sign == "s"), width))
        yield Form(f"shr.{sign}{width}", kind, (kind, "u32"), _mapped(_shift_right(width, sign == "s"), width))
    yield Form(f"shl.b{width}", kind, (kind, "u32"), _mapped(lambda a, b: a << b & mask if b < width else 0, width))
    yield Form(f"bfi.b{width}", kind, (kind, kind, "u32", "u32"), _mapped(_insert(width), width))


def _find(width: int, sign: bool, shift: bool) -> Scalar:
    def operation(a: int) -> int:
        if sign and a >> (width - 1):
            a = ~a & ((1 << width) - 1)
        at = a.bit_length() - 1
        return 0xFFFFFFFF if at < 0 else width - 1 - at if shift else at

    return operation


def _field(value: int, width: int) -> int:
    """A position or length: one byte of it counts, but all of it for fields of 64 bits, which the hardware puts together."""
    return min(value, 255) if width == 64 else value & 255


def _extract(width: int, sign: bool) -> Scalar:
    def operation(a: int, b: int, c: int) -> int:
        at, count, top = _field(b, width), _field(c, width), width - 1
        fill = (a >> min(at + count - 1, top)) & 1 if sign and count else 0
        bits = [(a >> (at + i)) & 1 if i < count and at + i <= top else fill for i in range(width)]
        return sum(bit << i for i, bit in enumerate(bits))

    return operation


def _insert(width: int) -> Scalar:
    def operation(a: int, b: int, c: int, d: int) -> int:
        at, count = _field(c, width), _field(d, width)
        mask = ((1 << count) - 1 << at) & ((1 << width) - 1)
        return b & ~mask | a << at & mask

    return operation


def _shift_right(width: int, sign: bool) -> Scalar:
    def operation(a: int, b: int) -> int:
        value = signed(a, width) if sign else a
        return value >> min(b, width) & ((1 << width) - 1)

    return operation


def _bytes() -> Iterator[Form]:
    for name in _PRMT:
        yield Form(f"prmt.b32{name}", "u32", ("u32", "u32", "u32"), _mapped(_permute(name), 32))
    for lut in _LUTS:
        body = f"lop3.b32 %0, %1, %2, %3, {lut:#x};"
        yield Form(f"lop3.b32 {lut:#x}", "u32", ("u32", "u32", "u32"), _mapped(_lop3(lut), 32), body)
    for side in "lr":
        for bound in ("clamp", "wrap"):
            yield Form(f"shf.{side}.{bound}.b32", "u32", ("u32", "u32", "u32"), _mapped(_funnel(side, bound), 32))
    yield Form("fns.b32", "u32", ("u32", "u32", "s32"))
    for bound in ("clamp", "wrap"):
        yield Form(f"bmsk.{bound}.b32", "u32", ("u32", "u32"))
        yield Form(f"szext.{bound}.u32", "u32", ("u32", "u32"))
        yield Form(f"szext.{bound}.s32", "u32", ("u32", "u32"))


def _permute(mode: str) -> Scalar:
    def operation(a: int, b: int, c: int) -> int:
        source, at = [(b << 32 | a) >> 8 * i & 255 for i in range(8)], c & 3
        if mode == "":
            picks = [c >> 4 * i & 15 for i in range(4)]
            chosen = [(255 * (source[pick & 7] >> 7)) if pick & 8 else source[pick & 7] for pick in picks]
        else:
            table = {
                ".f4e": [at + i for i in range(4)],
                ".b4e": [(at - i) % 8 for i in range(4)],
                ".rc8": [at] * 4,
                ".ecl": [max(i, at) for i in range(4)],
                ".ecr": [min(i, at) for i in range(4)],
                ".rc16": [2 * (at & 1) + i % 2 for i in range(4)],
            }
            chosen = [source[pick] for pick in table[mode]]
        return sum(byte << 8 * i for i, byte in enumerate(chosen))

    return operation


def _lop3(lut: int) -> Scalar:
    def operation(a: int, b: int, c: int) -> int:
        return sum((lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))

    return operation


def _funnel(side: str, bound: str) -> Scalar:
    def operation(a: int, b: int, c: int) -> int:
        count = min(c, 32) if bound == "clamp" else c & 31
        both = b << 32 | a
        return (both << count >> 32 if side == "l" else both >> count) & 0xFFFFFFFF

    return operation


def _packing() -> Iterator[Form]:
    halves = "mov.b64 {a, b}, %1; mov.b64 %0, {b, a};"
    yield Form("mov.b64 {r,r}", "u64", ("u64",), lambda a: a >> 32 | a << 32, f"{{.reg .b32 a, b; {halves}}}")
    body = "{.reg .b16 a, b, c, d; mov.b64 {a, b, c, d}, %1; mov.b64 %0, {d, b, a, c};}"
    yield Form(
        "mov.b64 {h,h,h,h}",
        "u64",
        ("u64",),
        lambda a: a.view(np.uint16).reshape(-1, 4)[:, [3, 1, 0, 2]].copy().view("u8").ravel(),
        body,
    )
    body = "{.reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {b, a};}"
    yield Form("mov.b32 {h,h}", "u32", ("u32",), lambda a: a >> 16 | a << 16, body)
    body = "{.reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; mov.b32 %0, {d, c, b, a};}"
    yield Form("mov.b32 {b,b,b,b}", "u32", ("u32",), lambda a: a.byteswap(), body)
    body = "{.reg .b16 a; mov.b32 {_, a}, %1; mov.b32 %0, {a, a};}"
    yield Form("mov.b32 {_,h}", "u32", ("u32",), lambda a: a >> 16 | a >> 16 << 16, body)


_ORDERED: dict[str, Callable[..., Any]] = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b}
_ORDERED |= {"le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}
_FLOAT_TYPE = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def _comparisons() -> Iterator[Form]:
    for kind in ("s16", "u16", "s32", "u32", "s64", "u64"):
        for name, compare in _ORDERED.items():
            yield _setp(f"setp.{name}.{kind}", kind, _integer_test(compare, kind))
    for name, compare in (("lo", _ORDERED["lt"]), ("ls", _ORDERED["le"]), ("hi", _ORDERED["gt"]), ("hs", _ORDERED["ge"])):
        yield _setp(f"setp.{name}.u32", "u32", _integer_test(compare, "u32"))
    for kind in ("b16", "b32", "b64"):
        yield _setp(f"setp.eq.{kind}", kind, _integer_test(_ORDERED["eq"], f"u{kind[1:]}"))
        yield _setp(f"setp.ne.{kind}", kind, _integer_test(_ORDERED["ne"], f"u{kind[1:]}"))
    for kind in ("f32", "f64", "f16", "bf16"):
        for name in (*_ORDERED, *(f"{name}u" for name in _ORDERED), "num", "nan"):
            yield _setp(f"setp.{name}.{kind}", kind, _float_test(name, kind))
    yield _setp("setp.lt.ftz.f32", "f32", _float_test("lt", "f32", ftz=True))
    yield _setp("setp.eq.ftz.f32", "f32", _float_test("eq", "f32", ftz=True))
    yield from _combined()
    yield from _selections()


def _setp(opcode: str, kind: str, test: Callable[..., Array]) -> Form:
    body = f"{{.reg .pred p; {opcode} p, %1, %2; selp.b32 %0, 1, 0, p;}}"
    return Form(opcode, "u32", (kind, kind), lambda a, b: test(a, b).astype(np.uint32), body)


def _integer_test(compare: Callable[..., Array], kind: str) -> Callable[..., Array]:
    view = f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}"
    return lambda a, b: np.asarray(compare(a.view(view), b.view(view)))


def _float_test(name: str, kind: str, *, ftz: bool = False) -> Callable[..., Array]:
    def values(bits: Array) -> Array:
        if kind == "bf16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        value = bits.view(_FLOAT_TYPE[kind])
        return np.where(np.abs(value) < 2.0**-126, np.float32(0), value) if ftz else value

    def test(a: Array, b: Array) -> Array:
        with np.errstate(invalid="ignore"):
            x, y = values(a), values(b)
            unordered = np.isnan(x) | np.isnan(y)
            if name in ("num", "nan"):
                return np.asarray(unordered == (name == "nan"))
            found = np.asarray(_ORDERED[name[:2]](x, y))
            return found | unordered if len(name) == 3 else found & ~unordered

    return test


def _combined() -> Iterator[Form]:
    """Both outputs of setp, with a third predicate and its negation: bit 0 is p, bit 1 is q."""
    joins: dict[str, Callable[..., Array]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    for name, join in joins.items():
        for negated in ("", "!"):
            for kind in ("s32", "f32"):
                compare = _float_test("lt", "f32") if kind == "f32" else _integer_test(_ORDERED["lt"], "s32")
                opcode = f"setp.lt.{name}.{kind}"
                body = (
                    "{.reg .pred p, q, r; .reg .b32 t, u; and.b32 t, %3, 1; setp.ne.b32 r, t, 0;"
                    f" {opcode} p|q, %1, %2, {negated}r; selp.b32 t, 1, 0, p; selp.b32 u, 2, 0, q; or.b32 %0, t, u;}}"
                )
                name_both = f"{opcode} not" if negated else f"{opcode} pair"
                yield Form(name_both, "u32", (kind, kind, "u32"), _pair(compare, join, bool(negated)), body)


def _pair(compare: Callable[..., Array], join: Callable[..., Array], negated: bool) -> Callable[..., Array]:
    def reference(a: Array, b: Array, c: Array) -> Array:
        third = ((c & 1) != 0) ^ negated
        found = compare(a, b)
        return np.asarray(join(found, third) + 2 * join(~found, third).astype(np.uint32))

    return reference


def _selections() -> Iterator[Form]:
    for width in (16, 32, 64):
        kind = f"u{width}"
        body = f"{{.reg .pred p; setp.lt.s32 p, %3, 0; selp.b{width} %0, %1, %2, p;}}"
        yield Form(f"selp.b{width}", kind, (kind, kind, "s32"), lambda a, b, c: _where(c >> 31, a, b), body)
    yield Form("slct.u32.s32", "u32", ("u32", "u32", "s32"), lambda a, b, c: _where(c >> 31, b, a))
    yield Form("slct.f32.f32", "f32", ("f32", "f32", "f32"), lambda a, b, c: _where(c.view(np.float32) >= 0, a, b))
    yield Form("slct.ftz.u32.f32", "u32", ("u32", "u32", "f32"))
    lt = _integer_test(_ORDERED["lt"], "s32")
    yield Form("set.lt.u32.s32", "u32", ("s32", "s32"), lambda a, b: np.where(lt(a, b), 0xFFFFFFFF, 0))
    yield Form("set.lt.f32.s32", "f32", ("s32", "s32"), lambda a, b: np.where(lt(a, b), 0x3F800000, 0))
    flt = _float_test("geu", "f32")
    yield Form("set.geu.u32.f32", "u32", ("f32", "f32"), lambda a, b: np.where(flt(a, b), 0xFFFFFFFF, 0))
    yield Form("set.lt.f16x2.f16x2", "f16x2", ("f16x2", "f16x2"), _set_pairs)


def _where(chosen: Array, yes: Array, no: Array) -> Array:
    return np.where(chosen != 0, yes, no)


def _set_pairs(a: Array, b: Array) -> Array:
    found = _float_test("lt", "f16")(a.view(np.uint16), b.view(np.uint16))
    return np.where(found, 0x3C00, 0).astype(np.uint16).view(np.uint32)
