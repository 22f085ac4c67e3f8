"""Variables, parameters, bounds, and source lines."""

import struct

import pytest

from cudal2_agent.sandbox.emulator.ptx.module import PtxError, SourceLine, Unsupported, Variable
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from tests.sandbox.emulator.ptx.small_ptx import HEAD, kernel, module


def variable(text: str) -> Variable:
    (found,) = module(text).variables.values()
    return found


def test_a_module_says_its_target() -> None:
    found = parse(".version 8.7\n.target sm_80, texmode_independent, debug\n.address_size 64\n")
    assert (found.target, found.version, found.functions, found.variables) == ("sm_80", (8, 7), {}, {})


@pytest.mark.parametrize(
    "text", ["", "\n", ".version 9.0", ".target sm_90a", "\0", "#include <x>", ".version 9.0.target", "\ufeff"]
)
def test_what_is_no_module(text: str) -> None:
    with pytest.raises(PtxError, match=r"^PTX line \d+: [^\n]+$"):
        parse(text)


def test_32_bit_addresses_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="32"):
        parse(HEAD.replace("64", "32"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".global .align 4 .u32 x = 7;", Variable("global", "x", "u32", 4, 4, 4, b"\7\0\0\0", False)),
        (".visible .global .u8 x;", Variable("global", "x", "u8", 1, 1, 1, None, False)),
        (".extern .shared .align 128 .b8 x[];", Variable("shared", "x", "b8", 1, 0, 128, None, True)),
        (".const .align 8 .b64 x[2][3];", Variable("const", "x", "b64", 8, 48, 8, None, False)),
        (".global .v4 .f32 x[2];", Variable("global", "x", "f32", 4, 32, 16, None, False)),
        (".global .b8 x[2*4+(1<<1)];", Variable("global", "x", "b8", 1, 10, 1, None, False)),
        (".weak .global .align 2 .b8 x[6] = {1, 0, 2, 0, 3};", Variable("global", "x", "b8", 1, 6, 2, b"\1\0\2\0\3\0", False)),
    ],
)
def test_a_variable_has_its_size_and_alignment(text: str, expected: Variable) -> None:
    assert variable(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u32 x[3] = {1, 0x2, -1}", struct.pack("<IIi", 1, 2, -1)),
        ("u8 x[2] = {256, -1}", b"\0\xff"),
        ("u32 x[2][3] = {{1}, {2, 3}}", struct.pack("<6I", 1, 0, 0, 2, 3, 0)),
        ("u32 x[2][2] = {1, 2, 3}", struct.pack("<4I", 1, 2, 3, 0)),
        ("u16 x[2][2][2] = {{{1}, {2}}, {{3, 4}}}", struct.pack("<8H", 1, 0, 2, 0, 3, 4, 0, 0)),
        ("v2 .f32 x[2] = {{1.5}, {0f40000000, -0.25}}", struct.pack("<4f", 1.5, 0, 2, -0.25)),
        ("f32 x = 0.1", struct.pack("<f", 0.1)),
        ("f64 x = 0f3FC00000", struct.pack("<d", 1.5)),
        ("f64 x[1] = {0d3ff8000000000000}", struct.pack("<d", 1.5)),
        ("b32 x = 0f3F800000", struct.pack("<f", 1)),
        ("b32 x[2] = {}", bytes(8)),
        ("b64 x = 1<<40", struct.pack("<Q", 1 << 40)),
    ],
)
def test_initial_values_become_bytes(text: str, expected: bytes) -> None:
    assert variable(f".global .{text};").initial == expected


@pytest.mark.parametrize(
    "text",
    [
        "u32 x[2] = {1, 2, 3}",
        "u32 x[2][2] = {{1, 2, 3}}",
        "u32 x[2][2] = {{1}, {2}, {3}}",
        "u32 x[2][2] = {1, {2}}",
        "u32 x[2] = {{1}}",
        "u32 x[2] = {1 2}",
        "u32 x[2] = {,}",
        "u32 x[2] = {1,",
        "u32 x[2] = {1",
        "u32 x[2] = 1",
        "u32 x[2] = {1}}",
        "u32 x = {1}",
        "u32 x = ",
        "u32 x = 1 2",
        "u32 x = 1.5",
        "f32 x = 1",
        "f32 x = 1e300",
        "b64 x = 0f3F800000",
        "u32 x[-1]",
        "u32 x[1.5]",
        "u32 x[2",
        "u32 x[99999999999]",
        "u32 x[65536][65536][65536]",
        "u32 x[1][1][1][1][1][1][1][1][1]",
        "u32",
        "u32 x y",
        "u32 5",
        "b8 x[100000000] = {1}",
        "b8 x[50000000] = {1}, y[50000000] = {1}",
    ],
)
def test_a_variable_that_does_not_fit_is_an_error(text: str) -> None:
    with pytest.raises(PtxError):
        module(f".global .{text};")


@pytest.mark.parametrize(
    "text",
    [
        ".u64 x = generic(y)",
        ".u64 x[2] = {f, 0}",
        ".b8 x[] = {1, 2}",
        ".f16 x = 1",
        ".texref x",
        ".attribute(.managed) .b32 x",
    ],
)
def test_a_variable_that_the_emulator_cannot_hold_is_unsupported(text: str) -> None:
    with pytest.raises(Unsupported):
        module(f".global {text};")


@pytest.mark.parametrize(
    "text", [".global .align 3 .b32 x;", ".global .align 0 .b32 x;", ".global .align -4 .b32 x;", ".global x;"]
)
def test_an_alignment_is_a_power_of_two(text: str) -> None:
    with pytest.raises(PtxError):
        module(text)


def test_one_declaration_may_have_several_names() -> None:
    found = module(".shared .align 8 .b32 x, y[4];\n.extern .global .b32 z;\n.global .b32 z = 3;").variables
    assert [(one.name, one.size_bytes, one.alignment) for one in found.values()] == [("x", 4, 8), ("y", 16, 8), ("z", 4, 4)]
    assert not found["z"].external
    with pytest.raises(PtxError, match="twice"):
        module(".shared .b32 x; .global .b32 x;")


def test_parameters_and_bounds() -> None:
    text = (
        ".visible .entry k(\n\t.param .align 64 .b8 k_param_0[128],\n\t.param .u64 .ptr .global .align 16 k_param_1,\n"
        "\t.param .u64 .ptr k_param_2,\n\t.param .f32 k_param_3\n)\n.maxntid 512, 1, 1\n.minnctapersm 1\n.maxnreg 96\n"
        ".explicitcluster\n.reqnctapercluster 2, 1, 1\n{\n\tret;\n}\n"
    )
    found = module(text).functions["k"]
    assert [(one.name, one.space, one.size_bytes, one.alignment) for one in found.parameters] == [
        ("k_param_0", "param", 128, 64),
        ("k_param_1", "param", 8, 8),
        ("k_param_2", "param", 8, 8),
        ("k_param_3", "param", 4, 4),
    ]
    assert found.directives == {
        "maxntid": (512, 1, 1),
        "minnctapersm": (1,),
        "maxnreg": (96,),
        "explicitcluster": (),
        "reqnctapercluster": (2, 1, 1),
    }


def test_an_entry_needs_no_parameters() -> None:
    assert module(".entry k { ret; } .entry l () { }").functions["l"].instructions == ()


def test_each_instruction_has_the_innermost_source_line() -> None:
    body = (
        "ret;\n.loc 1 16 0\nret;\n.loc\t2 140 5, function_name $L__info_string0, inlined_at 1 27 3\nret;\n"
        ".loc 2 7 1, function_name $L__info_string0+12, inlined_at 1 2 3 ret;\n.loc 1 0 3\nret;\n.loc 9 4 1\nret;\n"
    )
    after = (
        '\n\t.file\t1 "/src/a//b.cu"\n\t.file 2 "c.hpp", 123, 456\n'
        "\t.section\t.debug_str\n\t{\n$L__info_string0:\n.b8 95,90\n\n\t}\n\t.section .debug_loc { }\n"
    )
    found = module(f".entry k {{\n{body}}}{after}").functions["k"].instructions
    outer, inner = SourceLine("/src/a//b.cu", 16), SourceLine("c.hpp", 140, SourceLine("/src/a//b.cu", 27))
    assert [one.place for one in found] == [
        None,
        outer,
        inner,
        SourceLine("c.hpp", 7, SourceLine("/src/a//b.cu", 2)),
        None,
        None,
    ]


def test_an_inlined_place_names_its_call_and_the_outermost_one() -> None:
    body = """
    .loc 1 27 3, function_name $L__info_string0, inlined_at 2 5 1
    ret;
    .loc 3 9 1, function_name $L__info_string1, inlined_at 1 27 3
    ret;
    """
    found = module(f'.entry k {{\n{body}}}\n.file 1 "a/b.hpp"\n.file 2 "k.cu"\n.file 3 "c.hpp"').functions["k"].instructions
    assert [str(one.place) for one in found] == ["b.hpp:27, called at k.cu:5", "c.hpp:9, called at b.hpp:27 from k.cu:5"]


def test_a_place_does_not_outlive_its_function() -> None:
    found = module('.file 1 "a.cu"\n.entry k { .loc 1 2 3 ret; } .entry l { ret; }').functions
    assert (found["k"].instructions[0].place, found["l"].instructions[0].place) == (SourceLine("a.cu", 2), None)


def test_an_error_names_the_line_of_the_text() -> None:
    with pytest.raises(PtxError, match=r"PTX line 11: '%r77' is not declared"):
        kernel("ret;\n/* two\nlines */ add.s32 %r1, %r77, 0;")
    with pytest.raises(PtxError) as caught:
        kernel("ret;\n/* two\nlines */ add.s32 %r1, %r77, 0;")
    assert caught.value.line == 11
