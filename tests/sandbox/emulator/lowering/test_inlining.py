"""Calls become the bodies of what they call."""

import pytest

from cudal2_agent.sandbox.emulator.lowering import inlining
from cudal2_agent.sandbox.emulator.lowering.inlining import inline_calls
from cudal2_agent.sandbox.emulator.ptx.module import Address, Function, Label, Register, Symbol, Unsupported
from cudal2_agent.sandbox.emulator.ptx.parser import parse

_HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"

_TWICE = """
.func (.param .b32 func_retval0) twice(.param .b32 twice_param_0)
{
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [twice_param_0];
  add.s32 %r2, %r1, %r1;
  st.param.b32 [func_retval0], %r2;
  ret;
}
"""


def call(function: str, argument: str, result: str, guard: str = "") -> str:
    return f"""
  {{
  .param .b32 param0;
  st.param.b32 [param0], {argument};
  .param .b32 retval0;
  {guard} call.uni (retval0), {function}, (param0);
  ld.param.b32 {result}, [retval0];
  }}
"""


def inlined(functions: str, body: str, registers: str = ".reg .b32 %r<9>; .reg .pred %p<3>;") -> Function:
    module = parse(f"{_HEAD}{functions}\n.visible .entry k(.param .u64 k_param_0)\n{{\n{registers}\n{body}\n}}\n")
    return inline_calls(module, module.functions["k"])


def opcodes(function: Function) -> list[str]:
    return [instruction.opcode for instruction in function.instructions]


def base_of(operand: object) -> str:
    assert isinstance(operand, Address)
    assert isinstance(operand.base, Symbol)
    return operand.base.name


def test_a_kernel_without_calls_stays_as_it_is() -> None:
    module = parse(f"{_HEAD}.visible .entry k()\n{{\n.reg .b32 %r<3>;\nadd.s32 %r1, %r2, 1;\nret;\n}}\n")
    assert inline_calls(module, module.functions["k"]) is module.functions["k"]


def test_parameters_are_the_local_variables_of_the_caller() -> None:
    function = inlined(_TWICE, call("twice", "7", "%r1") + "ret;")
    assert opcodes(function) == ["st.local.b32", "ld.local.u32", "add.s32", "st.local.b32", "ld.local.b32", "ret"]
    given, taken, _, returned, read, _ = function.instructions
    assert base_of(given.operands[0]) == base_of(taken.operands[1])
    assert base_of(returned.operands[0]) == base_of(read.operands[1])
    assert base_of(given.operands[0]) != base_of(returned.operands[0])
    assert {variable.space for variable in function.variables} == {"local"}
    assert {variable.name for variable in function.variables} == {base_of(given.operands[0]), base_of(read.operands[1])}


def test_every_call_has_registers_of_its_own() -> None:
    function = inlined(_TWICE, call("twice", "%r1", "%r2") + call("twice", "%r2", "%r1") + "ret;")
    sums = [instruction for instruction in function.instructions if instruction.opcode == "add.s32"]
    names = [operand.name for instruction in sums for operand in instruction.operands if isinstance(operand, Register)]
    assert len(set(names)) == 4
    assert "%r1" not in names
    assert set(names) <= set(function.registers)
    assert all(function.registers[name] == "b32" for name in names)


def test_the_parameters_of_the_kernel_stay_parameters() -> None:
    function = inlined(_TWICE, ".reg .b64 %rd<3>; ld.param.u64 %rd1, [k_param_0];" + call("twice", "1", "%r1") + "ret;")
    assert opcodes(function)[0] == "ld.param.u64"


def test_indices_count_instructions_and_lines_name_the_text() -> None:
    function = inlined(_TWICE, call("twice", "7", "%r1") + "ret;")
    assert [instruction.index for instruction in function.instructions] == list(range(6))
    assert function.instructions[2].text == "add.s32 %r2, %r1, %r1"
    assert function.instructions[2].line == _HEAD.count("\n") + _TWICE[: _TWICE.index("add")].count("\n") + 1


_EARLY = """
.func early(.param .b32 early_param_0)
{
  .reg .b32 %r<3>; .reg .pred %p<2>;
  ld.param.u32 %r1, [early_param_0];
  setp.eq.s32 %p1, %r1, 0;
  @!%p1 ret;
LOOP:
  add.s32 %r1, %r1, 1;
  @%p1 bra LOOP;
  bra END;
  ret;
END:
  add.s32 %r1, %r1, 2;
  ret;
}
"""
_BODY = ("add.s32", "bra", "bra", "bra", "add.s32")


def test_a_return_jumps_behind_the_body() -> None:
    body = "{ .param .b32 param0; st.param.b32 [param0], 1; call early, (param0); } mov.u32 %r1, %r2; ret;"
    function = inlined(_EARLY, body)
    assert opcodes(function)[1:] == ["ld.local.u32", "setp.eq.s32", "bra", *_BODY, "mov.u32", "ret"]
    guarded, loop, end, plain = (function.instructions[index] for index in (3, 5, 6, 7))

    def target(instruction: object) -> int:
        (operand,) = instruction.operands  # type: ignore[attr-defined]
        assert isinstance(operand, Label)
        return function.labels[operand.name]

    assert target(guarded) == target(plain) == 9
    assert (target(loop), target(end)) == (4, 8)
    assert guarded.predicate is not None
    assert guarded.predicate.name != "%p1"
    assert guarded.negated
    assert plain.predicate is None


@pytest.mark.parametrize(("guard", "negated"), [("@%p1", True), ("@!%p1", False)])
def test_a_guarded_call_is_jumped_around(guard: str, negated: bool) -> None:
    function = inlined(_TWICE, call("twice", "7", "%r1", guard) + "ret;")
    jump = function.instructions[1]
    assert jump.opcode == "bra"
    assert jump.predicate == Register("%p1", "pred")
    assert jump.negated is negated
    (label,) = jump.operands
    assert isinstance(label, Label)
    assert function.instructions[function.labels[label.name]].opcode == "ld.local.b32"
    assert all(instruction.predicate is None for instruction in function.instructions[2:])


def test_calls_within_calls_hand_parameters_down() -> None:
    outer = """
.func (.param .b32 func_retval0) outer(.param .b32 outer_param_0)
{
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [outer_param_0];
  { .param .b32 param0; st.param.b32 [param0], %r1; .param .b32 retval0;
    call (retval0), twice, (param0); ld.param.b32 %r2, [retval0]; }
  st.param.b32 [func_retval0], %r2;
  ret;
}
"""
    function = inlined(_TWICE + outer, call("outer", "3", "%r1") + call("twice", "3", "%r1") + "ret;")
    stores = [base_of(i.operands[0]) for i in function.instructions if i.opcode == "st.local.b32"]
    loads = [base_of(i.operands[1]) for i in function.instructions if i.opcode.startswith("ld.local")]
    given, inner, inner_returned, returned, again, again_returned = stores
    assert loads == [given, inner, inner_returned, returned, again, again_returned]
    assert len({given, inner, inner_returned, returned, again, again_returned}) == 6
    assert {variable.name for variable in function.variables} == set(stores)


def test_a_function_keeps_its_stack_between_calls_of_it_but_shares_it_with_no_other() -> None:
    function = """
.func f()
{
  .local .align 8 .b8 depot[16];
  .reg .b64 %rd<2>;
  mov.u64 %rd1, depot;
  ret;
}
"""
    kernel = inlined(function, ".local .align 4 .b8 depot[4]; .reg .b64 %rd<2>; mov.u64 %rd1, depot; call f; call f; ret;")
    sizes = {variable.name: variable.size_bytes for variable in kernel.variables}
    names = [operand.name for i in kernel.instructions for operand in i.operands if isinstance(operand, Symbol)]
    assert [sizes[name] for name in names] == [4, 16, 16]
    assert len(sizes) == 2


def test_tables_of_jumps_lead_into_their_own_body() -> None:
    function = """
.func f(.param .b32 f_param_0)
{
  .reg .b32 %r<2>;
  ld.param.u32 %r1, [f_param_0];
TABLE: .branchtargets FIRST, SECOND;
  brx.idx %r1, TABLE;
FIRST:
  add.s32 %r1, %r1, 1;
SECOND:
  add.s32 %r1, %r1, 2;
  ret;
}
"""
    one = "{ .param .b32 param0; st.param.b32 [param0], %r1; call f, (param0); }"
    kernel = inlined(function, one + one + "ret;")
    jumps = [instruction for instruction in kernel.instructions if instruction.opcode == "brx.idx"]
    tables = [instruction.operands[1] for instruction in jumps]
    for jump, table in zip(jumps, tables, strict=True):
        assert isinstance(table, Label)
        assert [kernel.labels[target] for target in kernel.branch_targets[table.name]] == [jump.index + 1, jump.index + 2]
    assert tables[0] != tables[1]


def test_recursion_is_refused() -> None:
    two = ".func g();\n.func f()\n{\ncall g;\nret;\n}\n.func g()\n{\ncall f;\nret;\n}\n"
    with pytest.raises(Unsupported, match="recursive"):
        inlined(two, "call f; ret;")


def test_what_has_no_body_is_refused_by_name() -> None:
    declared = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
    with pytest.raises(Unsupported, match="call of vprintf"):
        inlined(
            declared,
            "{ .param .b64 a; .param .b64 b; .param .b32 r; call (r), vprintf, (a, b); } ret;",
        )


def test_a_call_through_a_pointer_is_refused() -> None:
    body = ".reg .b64 %rd<2>; { P: .callprototype ()_ (); call %rd1, (), P; } ret;"
    with pytest.raises(Unsupported, match="pointer"):
        inlined("", body)


@pytest.mark.parametrize(
    "arguments",
    ["(), twice, (param0)", "(retval0), twice, (param0, param0)", "(retval0), twice, (k_param_0)", "(retval0), twice, (%r1)"],
)
def test_a_call_that_does_not_fit_is_refused(arguments: str) -> None:
    with pytest.raises(Unsupported, match="call of twice"):
        inlined(_TWICE, f"{{ .param .b32 param0; .param .b32 retval0; call {arguments}; }} ret;")


def test_an_argument_smaller_than_the_parameter_is_refused() -> None:
    with pytest.raises(Unsupported, match="call of twice"):
        inlined(_TWICE, "{ .param .b16 param0; .param .b32 retval0; call (retval0), twice, (param0); } ret;")


def test_the_address_of_a_parameter_beyond_loads_and_stores_is_refused() -> None:
    function = ".func f(.param .b32 p)\n{\n.reg .b64 %rd<3>;\nmov.u64 %rd1, p;\ncvta.param.u64 %rd2, %rd1;\nret;\n}\n"
    with pytest.raises(Unsupported, match=r"cvta\.param"):
        inlined(function, "{ .param .b32 a; call f, (a); } ret;")


@pytest.mark.parametrize("filling", ["", "add.s32 %r1, %r1, 1;"])
def test_calls_that_double_at_every_level_end_in_a_refusal(filling: str) -> None:
    levels = 64
    functions = ".func f64()\n{\nret;\n}\n"
    for level in reversed(range(levels)):
        functions += f".func f{level}()\n{{\n.reg .b32 %r<2>;\n{filling}\ncall f{level + 1};\ncall f{level + 1};\n}}\n"
    with pytest.raises(Unsupported, match=str(inlining.MAX_INSTRUCTIONS)):
        inlined(functions, "call f0; ret;")


def test_a_long_chain_of_calls_needs_no_deep_stack() -> None:
    functions = ".func f3000()\n{\nret;\n}\n"
    for level in reversed(range(3000)):
        functions += f".func f{level}()\n{{\ncall f{level + 1};\nret;\n}}\n"
    assert opcodes(inlined(functions, "call f0; ret;")) == ["ret"]
