"""Every form of operand, and malformed ones."""

import math
import struct

import pytest

from cudal2_agent.sandbox.emulator.ptx.module import (
    Address,
    Float,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    PtxError,
    Register,
    Sink,
    Special,
    Symbol,
    Unsupported,
    Vector,
)
from tests.sandbox.emulator.ptx.small_ptx import instruction, kernel

R1, R2, R3, P1, P2, RD1 = (
    Register("%r1", "b32"),
    Register("%r2", "b32"),
    Register("%r3", "b32"),
    Register("%p1", "pred"),
    Register("%p2", "pred"),
    Register("%rd1", "b64"),
)


def double(value: float) -> Float:
    return Float(int.from_bytes(struct.pack(">d", value)), 64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ret;", ()),
        ("bar.sync\t0;", (Immediate(0),)),
        ("add.s32 %r1,%r2,%r3;", (R1, R2, R3)),
        ("add.s32\n\t%r1 ,\n%r2\t, -7 ;", (R1, R2, Immediate(-7))),
        ("mov.b64 {%r1,%r2}, %rd1;", (Vector((R1, R2)), RD1)),
        ("mov.b64 { %r1 , _ }, %rd1;", (Vector((R1, Sink())), RD1)),
        ("st.shared.v2.b32 [tile], {%r1, 3};", (Address(Symbol("tile", 0), 0, ()), Vector((R1, Immediate(3))))),
        ("ld.global.b32 %r1, [%rd1];", (R1, Address(RD1, 0, ()))),
        ("ld.global.b32 %r1, [%rd1+16];", (R1, Address(RD1, 16, ()))),
        ("ld.global.b32 %r1, [ %rd1 + -16 ];", (R1, Address(RD1, -16, ()))),
        ("ld.global.b32 %r1, [%rd1+4*2+(1<<2)];", (R1, Address(RD1, 12, ()))),
        ("ld.shared.b32 %r1, [tile+4];", (R1, Address(Symbol("tile", 0), 4, ()))),
        ("ld.param.b64 %rd1, [k_param_0];", (RD1, Address(Symbol("k_param_0", 0), 0, ()))),
        ("ld.local.b32 %r1, [64];", (R1, Address(Immediate(64), 0, ()))),
        ("mov.u32 %r1, tile;", (R1, Symbol("tile", 0))),
        ("mov.u32 %r1, tile+8;", (R1, Symbol("tile", 8))),
        ("mov.u32 %r1, %tid.x;", (R1, Special("tid.x"))),
        ("mov.u32 %r1, %cluster_ctaid.z;", (R1, Special("cluster_ctaid.z"))),
        ("mov.u32 %r1, %laneid;", (R1, Special("laneid"))),
        ("mov.u32 %r1, WARP_SZ;", (R1, Immediate(32))),
        ("setp.eq.s32 %p1|%p2, %r1, 0;", (Pair(P1, P2), R1, Immediate(0))),
        ("elect.sync _|%p1, -1;", (Pair(Sink(), P1), Immediate(-1))),
        ("selp.b32 %r1, %r2, 1, !%p1;", (R1, R2, Immediate(1), Negated(P1))),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", (Sink(), Address(R1, 0, ()))),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            " [%r1], [%rd1, {%r2, 0}], [%r3], %h1;",
            (
                Address(R1, 0, ()),
                Address(RD1, 0, (Vector((R2, Immediate(0))),)),
                Address(R3, 0, ()),
                Register("%h1", "b16"),
            ),
        ),
        ("L: bra L;", (Label("L"),)),
    ],
)
def test_an_operand_reads_as_its_form(text: str, expected: tuple[Operand, ...]) -> None:
    assert instruction(text).operands == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", Immediate(0)),
        ("42U", Immediate(42)),
        ("0x1fU", Immediate(31)),
        ("0XFF", Immediate(255)),
        ("0777", Immediate(511)),
        ("0b101U", Immediate(5)),
        ("18446744073709551615", Immediate(2**64 - 1)),
        ("0xffffffffffffffff", Immediate(2**64 - 1)),
        ("-9223372036854775808", Immediate(-(2**63))),
        ("~0", Immediate(-1)),
        ("- -3", Immediate(3)),
        ("1 -1", Immediate(0)),
        ("0x1e-5", Immediate(25)),
        ("2+3*4", Immediate(14)),
        ("(2+3)*-4", Immediate(-20)),
        ("1<<3|2&3^1", Immediate(1 << 3 | 2 & 3 ^ 1)),
        ("100/7 % 5-(8>>1)", Immediate(100 // 7 % 5 - 4)),
        ("10-4-3", Immediate(3)),
        ("1<<64", Immediate(0)),
        ("0xffffffffffffffff*0xffffffffffffffff", Immediate((2**64 - 1) ** 2 % 2**64)),
        ("0f3F800000", Float(0x3F800000, 32)),
        ("0F7fc00000", Float(0x7FC00000, 32)),
        ("0d3ff0000000000000", Float(0x3FF0000000000000, 64)),
        ("1.5", double(1.5)),
        ("-1.5", double(-1.5)),
        ("1.", double(1.0)),
        (".5", double(0.5)),
        ("-.5e-3", double(-0.5e-3)),
        ("1e10", double(1e10)),
        ("1.25E+2", double(125.0)),
        ("-0.0", double(-0.0)),
    ],
)
def test_a_constant_has_its_value(text: str, expected: Operand) -> None:
    assert instruction(f"mov.b64 %rd1, {text};").operands[1] == expected
    assert instruction(f"mov.b64 {{%r1, {text}}}, %rd1;").operands[0] == Vector((R1, expected))


@pytest.mark.parametrize(
    "text",
    [
        "089",
        "0x",
        "0xg",
        "0b2",
        "12abc",
        "0f3F80000",
        "0f3F8000000",
        "0d3ff000000000000",
        "18446744073709551616",
        "0x10000000000000000",
        "1.2.3",
        "1e999",
        "9" * 500,
        "0." + "1" * 5000,
        "1e" + "9" * 5000,
        "1/0",
        "7 % 0",
        "(1",
        "1)",
        "1+",
        "-",
        "~1.5",
        "1 2",
        "*3",
        "\N{ARABIC-INDIC DIGIT THREE}",
        "\0",
        "'a'",
    ],
)
def test_what_is_no_constant_is_an_error(text: str) -> None:
    with pytest.raises(PtxError):
        instruction(f"mov.b64 %rd1, {text};")


@pytest.mark.parametrize("text", ["1?2:3", "3>2", "!1", "(.s64)7", "1.5+1.5", "-1/2", "0x8000000000000000>>1", "1&&1"])
def test_an_expression_whose_meaning_would_be_guessed_is_unsupported(text: str) -> None:
    with pytest.raises(Unsupported):
        instruction(f"mov.b64 %rd1, {text};")


@pytest.mark.parametrize(
    "text",
    [
        "add.s32 %r1, %r2, ;",
        "add.s32 %r1, , %r2;",
        "add.s32 %r1 %r2;",
        "add.s32 %r1, %r2",
        "add.s32 %r1, %r99;",
        "add.s32 %r1, nowhere;",
        "mov.u32 %r1, %tid.q;",
        "ld.shared.b32 %r1, [tile+%r2];",
        "ld.shared.b32 %r1, [%r2-4];",
        "ld.shared.b32 %r1, [tile+1.5];",
        "ld.shared.b32 %r1, [1.5];",
        "ld.shared.b32 %r1, [L]; L:",
        "ld.shared.b32 %r1, [%tid.x];",
        "ld.shared.b32 %r1, [%r2;",
        "ld.shared.b32 %r1, %r2];",
        "ld.shared.b32 %r1, [];",
        "mov.b64 {%r1, %r2, %rd1;",
        "mov.b64 {}, %rd1;",
        "mov.b64 {%r1,}, %rd1;",
        "mov.b64 {%r1 %r2}, %rd1;",
        "mov.b64 {{%r1}}, %rd1;",
        "mov.b64 {[%r1]}, %rd1;",
        "selp.b32 %r1, 1, 2, !tile;",
        "selp.b32 %r1, 1, 2, !!%p1;",
        "setp.eq.s32 %p1|%p2|%p3, %r1, 0;",
        "setp.eq.s32 5|%p2, %r1, 0;",
        "@%r1 bra L; L:",
        "@tile bra L; L:",
        "@%p1;",
        "bra L;",
        "ADD.s32 %r1, %r1, 1;",
        "add..s32 %r1, %r1, 1;",
        "(%r1);",
        ";",
        "5;",
    ],
)
def test_what_is_no_instruction_is_an_error(text: str) -> None:
    with pytest.raises(PtxError):
        kernel(text)


def test_a_part_of_a_register_is_unsupported() -> None:
    for text in ("vadd.s32.u32.s32 %r1, %r2.b0, %r3;", "mov.b32 %r1, %r2.x;"):
        with pytest.raises(Unsupported):
            kernel(text)


def test_the_longest_vector_of_wgmma_reads_and_endless_ones_do_not() -> None:
    names = ",".join(f"%a{i}" for i in range(128))
    (found,) = kernel(f".reg .f32 %a<128>; wgmma.mma_async.sync {{{names}}}, %rd1, %rd2;").instructions
    assert found.operands[0] == Vector(tuple(Register(f"%a{i}", "f32") for i in range(128)))
    for text in ("mov.b64 {" + "%r1," * 1000 + "%r1}, %rd1;", "add " + "%r1," * 1000 + "%r1;", "add " + "1," * 1000 + "1;"):
        with pytest.raises(PtxError, match="more than"):
            kernel(text)


def test_an_instruction_knows_its_statement() -> None:
    found = kernel("@!%p2\tst.shared::cta.b32\n\t[ %r1 ] ,  5 ; // the end\nret;").instructions
    first = found[0]
    assert first.text == "@!%p2 st.shared::cta.b32 [ %r1 ] , 5"
    assert first.parts == ("st", "shared::cta", "b32")
    assert (first.predicate, first.negated, first.index, first.line) == (P2, True, 0, 9)
    assert (found[1].opcode, found[1].predicate, found[1].negated, found[1].index, found[1].line) == ("ret", None, False, 1, 11)


def test_an_opcode_may_be_written_with_spaces() -> None:
    assert instruction("@ ! %p1 add .s32 %r1, %r1, 1;").opcode == "add.s32"


@pytest.mark.parametrize(
    ("text", "returns", "function", "arguments", "rest"),
    [
        ("call.uni (a), f, (b, 5);", ("a",), Symbol("f", 0), ("b", 5), ()),
        ("call f, (b);", (), Symbol("f", 0), ("b",), ()),
        ("call (a), f;", ("a",), Symbol("f", 0), (), ()),
        ("call.uni f;", (), Symbol("f", 0), (), ()),
        ("call (a), %rd1, (b), types;", ("a",), RD1, ("b",), (Symbol("types", 0),)),
        ("call %rd1, (), types;", (), RD1, (), (Symbol("types", 0),)),
    ],
)
def test_a_call_has_returns_a_function_and_arguments(
    text: str, returns: tuple[str], function: Operand, arguments: tuple[str | int, ...], rest: tuple[Operand, ...]
) -> None:
    declared = ".param .b32 a; .param .b32 b; types: .callprototype (.param .b32 _) _ (.param .b32 _);\n"
    found = kernel(declared + text, ".extern .func (.param .b32 r) f (.param .b32 x);").instructions[0]
    items = tuple(Symbol(item, 0) if isinstance(item, str) else Immediate(item) for item in arguments)
    assert found.operands == (Vector(tuple(Symbol(name, 0) for name in returns)), function, Vector(items), *rest)


@pytest.mark.parametrize(
    "text", ["call;", "call (%r1);", "call 5;", "call f, %r1;", "call (%r1), f, (%r1), f, f;", "call (f), (f), f;"]
)
def test_a_call_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(PtxError, match="call"):
        kernel(text, ".extern .func f;")


def test_minus_zero_keeps_its_sign() -> None:
    value = instruction("mov.f32 %f1, -0.0;").operands[1]
    assert isinstance(value, Float)
    assert math.copysign(1, struct.unpack(">d", value.bits.to_bytes(8))[0]) == -1
