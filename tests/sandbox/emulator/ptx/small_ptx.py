"""Small modules around one line under test."""

from cudal2_agent.sandbox.emulator.ptx.module import Function, Instruction, Module
from cudal2_agent.sandbox.emulator.ptx.parser import parse

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
DECLARED = (
    ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b16 %h<4>; .reg .f64 %fd<2>;\n"
    ".shared .align 16 .b8 tile[64];\n"
)


def module(text: str) -> Module:
    return parse(HEAD + text)


def kernel(body: str, before: str = "") -> Function:
    """The entry `k` around a body. Its first line is line 9 of the text where nothing stands before it."""
    text = f"{before}\n.visible .entry k(.param .u64 k_param_0)\n{{\n{DECLARED}{body}\n}}\n"
    return module(text).functions["k"]


def instruction(text: str, before: str = "") -> Instruction:
    (found,) = kernel(text, before).instructions
    return found
