"""Scopes of names: inline assembly, labels before their definition, parameters of calls."""

import pytest

from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Label, Negated, PtxError, Register, Symbol, Unsupported
from tests.sandbox.emulator.ptx.small_ptx import kernel, module


def test_the_same_block_twice_has_registers_and_labels_of_its_own() -> None:
    block = "{ .reg .pred p; again: setp.ne.b32 p, %r1, 0; @!p bra again; bra done; done: }\n"
    found = kernel(block + block)
    assert [name for name in found.registers if name.startswith("p")] == ["p@1", "p@2"]
    assert found.labels == {"again@1": 0, "done@1": 3, "again@2": 3, "done@2": 6}
    assert len(found.instructions) == 6
    assert found.instructions[3].operands[0] == Register("p@2", "pred")
    assert found.instructions[4].predicate == Register("p@2", "pred")
    assert found.instructions[4].operands == (Label("again@2"),)
    assert found.instructions[5].operands == (Label("done@2"),)


def test_an_inner_name_hides_the_outer_one_only_from_its_declaration_to_the_end_of_its_scope() -> None:
    found = kernel(".reg .b32 x; { mov.b32 %r1, x; .reg .b16 x; mov.b16 %h1, x; { mov.b16 %h1, x; } } mov.b32 %r1, x;")
    outer, inner = Register("x", "b32"), Register("x@1", "b16")
    assert [one.operands[1] for one in found.instructions] == [outer, inner, inner, outer]


def test_a_label_is_seen_from_inside_and_before() -> None:
    found = kernel("bra L; { bra L; { bra L; L: ret; } } L: exit;")
    assert [one.operands for one in found.instructions[:3]] == [(Label("L"),), (Label("L"),), (Label("L@2"),)]
    assert found.labels == {"L@2": 3, "L": 4}


@pytest.mark.parametrize(
    "body",
    [
        "{ L: } bra L;",
        "{ .reg .b32 x; } mov.b32 %r1, x;",
        "mov.b32 %r1, x; .reg .b32 x;",
        "mov.b32 %r1, later; .shared .b32 later;",
        "L: L: ret;",
        ".reg .b32 x; .reg .pred x;",
        ".reg .b32 %r1;",
        "x: .reg .b32 x;",
        ".reg .b32 %tid;",
        ".reg .b32 _;",
        ".reg .b32 k_param_0;",
        ".reg .u128 x;",
        ".reg .b32 x y;",
        ".reg .b32 x,;",
        ".reg .b32 ;",
        ".reg x;",
        ".reg .b32 x<>;",
        ".reg .b32 x<-1>;",
        ".reg .b32 x<1;",
        ".reg .b32 5;",
        ".reg .b32 tid.x;",
        "{ ret;",
        "ret; } }",
    ],
)
def test_names_out_of_scope_or_declared_twice_are_errors(body: str) -> None:
    with pytest.raises(PtxError):
        kernel(body)


def test_a_vector_register_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="v4"):
        kernel(".reg .v4 .f32 v;")


def test_registers_keep_their_order_and_types() -> None:
    found = kernel(".reg .f32 \t%q<3>, %s; .reg .f16x2 t;")
    assert list(found.registers.items())[-5:] == [
        ("%q0", "f32"),
        ("%q1", "f32"),
        ("%q2", "f32"),
        ("%s", "f32"),
        ("t", "f16x2"),
    ]


def test_parameters_of_a_call_sequence_are_variables_with_names_of_their_own() -> None:
    sequence = (
        "{ .param .align 4 .b8 param0[12]; .param .b32 retval0; st.param.b32 [param0+8], 1;"
        " call.uni (retval0), f, (param0); ld.param.b32 %r1, [retval0+0]; }\n"
    )
    found = kernel(sequence + sequence, ".extern .func (.param .b32 r) f (.param .align 4 .b8 x[12]);")
    names = [variable.name for variable in found.variables]
    assert names == ["tile", "param0", "retval0", "param0@2", "retval0@2"]
    assert {variable.space for variable in found.variables[1:]} == {"param"}
    assert [variable.size_bytes for variable in found.variables[1:]] == [12, 4, 12, 4]
    second = found.instructions[4]
    assert second.opcode == "call.uni"
    assert str(second.operands[0]).count("retval0@2") == str(second.operands[2]).count("param0@2") == 1


def test_a_variable_inside_hides_one_outside_and_does_not_take_its_name() -> None:
    found = kernel("mov.u32 %r1, sa; .shared .b32 sa; mov.u32 %r1, sa;", ".shared .b64 sa;")
    assert [one.operands[1] for one in found.instructions] == [Symbol("sa", 0), Symbol("sa@0", 0)]
    assert [(variable.name, variable.size_bytes) for variable in found.variables[1:]] == [("sa@0", 4)]


def test_tables_of_branch_targets() -> None:
    found = kernel("ts: .branchtargets L2, L1, L2; brx.idx %r1, ts; L1: ret; L2:")
    assert found.branch_targets == {"ts": ("L2", "L1", "L2")}
    assert found.instructions[0].operands == (Register("%r1", "b32"), Label("ts"))
    assert found.labels == {"L1": 1, "L2": 2}
    for body in ("ts: .branchtargets L1;", "ts: .branchtargets ts;", "ts: .branchtargets %r1;"):
        with pytest.raises(PtxError):
            kernel(body)


def test_a_negated_predicate_of_a_scope() -> None:
    found = kernel("{ .reg .pred q; and.pred q, !q, !%p1; }").instructions[0]
    assert found.operands[1:] == (Negated(Register("q@1", "pred")), Negated(Register("%p1", "pred")))


def test_pragmas_comments_and_empty_scopes_leave_nothing() -> None:
    found = kernel('.pragma "nounroll"; {} { {} } // ret; } \n/* ret;\n */ .pragma "a;b", "}"; mov.b32 %r1, 5 /* ; */ ;')
    assert [one.operands[1] for one in found.instructions] == [Immediate(5)]


def test_functions_call_each_other_by_name() -> None:
    found = module(
        ".func (.param .b32 r) f (.param .b32 x)\n;\n"
        ".func g { ret; }\n"
        ".visible .entry k() { call f, (1); call g; ret; }\n"
        ".func (.param .b32 r) f (.param .b32 x) .noreturn { f: ret; }\n"
        ".weak .func h(.param .b64 x) { call h, (x); }\n.alias other, g;\n"
    )
    assert {name: function.kind for name, function in found.functions.items()} == {
        "g": "func",
        "k": "entry",
        "f": "func",
        "h": "func",
        "other": "func",
    }
    assert found.functions["f"].directives == {"noreturn": ()}
    assert [one.name for one in found.functions["f"].returns] == ["r"]
    assert [one.name for one in found.functions["h"].parameters] == ["x"]
    assert found.functions["other"].name == "other"
    assert found.functions["other"].instructions == found.functions["g"].instructions


@pytest.mark.parametrize(
    "text",
    [
        ".func f { ret; } .func f { ret; }",
        ".func f { call later; } .func later { ret; }",
        ".global .b32 f; .func f { ret; }",
        ".func f { ret; } .global .b32 f;",
        ".func f (.param .b32 x, .param .b32 x) { ret; }",
        ".func f (.b32 x) { ret; }",
        ".func f (.param .b32 x,) { ret; }",
        ".func f (,) { ret; }",
        ".func f (.param .b32 x { ret; }",
        ".func (.param .b32 x { ret; }",
        ".func f .maxntid x { ret; }",
        ".func WARP_SZ { ret; }",
        ".func { ret; }",
        ".func f { ret; ",
        "{ }",
        "}",
        "ret;",
        ".alias a, b;",
        ".func a; .alias b, a;",
    ],
)
def test_functions_that_are_none(text: str) -> None:
    with pytest.raises(PtxError):
        module(text)


def test_a_parameter_in_a_register_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        module(".func (.reg .b32 r) f (.reg .b32 x) { ret; }")
