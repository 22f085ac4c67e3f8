"""The address of a function may not be taken: code would be memory that outlasts a launch."""

import pytest

from sandbox.inspect.code import read

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
FUNCTION = (
    ".func (.param .b32 r) twice(.param .b32 x)\n{\n.reg .b32 %r<3>;\n"
    "ld.param.b32 %r1, [x];\nadd.s32 %r2, %r1, %r1;\nst.param.b32 [r], %r2;\nret;\n}\n"
)
ENTRY = (
    ".visible .entry gemm(.param .u64 d)\n{{\n.reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n.param .b32 given;\n.param .b32 back;\n"
    "{body}\nret;\n}}\n"
)
TAKEN = {
    "moved": "mov.u64 %rd1, twice;",
    "with an offset": "mov.u64 %rd1, twice+128;",
    "converted": "cvta.global.u64 %rd1, twice;",
    "loaded from": "ld.global.u32 %r1, [twice];",
    "stored to": "st.global.u32 [twice+64], %r1;",
}


@pytest.mark.parametrize("body", TAKEN.values(), ids=TAKEN)
def test_a_function_that_is_used_as_a_value_is_found(body):
    assert read(HEAD + FUNCTION + ENTRY.format(body=body)).code_addresses == ("twice",)


def test_a_call_by_name_takes_no_address():
    call = "mov.u32 %r1, 3;\nst.param.b32 [given], %r1;\ncall.uni (back), twice, (given);\nld.param.b32 %r2, [back];"
    assert read(HEAD + FUNCTION + ENTRY.format(body=call)).code_addresses == ()
