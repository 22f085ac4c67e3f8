"""Every rule of lowering by the name of its opcode.

An opcode that integers and floating-point numbers share (`add`, `min`) goes by its type.
"""

from collections.abc import Mapping

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import FLOATS, Rule
from cudal2_agent.sandbox.emulator.lowering.rules import (
    barrier,
    compare,
    control,
    convert,
    copy,
    floating,
    integer,
    matrix,
    memory,
    warp,
    wgmma,
)
from cudal2_agent.sandbox.emulator.ptx.module import Instruction


def _by_type(integers: Rule, floats: Rule) -> Rule:
    def rule(lowering: Lowering, instruction: Instruction) -> None:
        (floats if FLOATS.intersection(instruction.parts) else integers)(lowering, instruction)

    return rule


def _store(lowering: Lowering, instruction: Instruction) -> None:
    rule = copy.lower_remote_store if "async" in instruction.parts else memory.RULES["st"]
    rule(lowering, instruction)


RULES: Mapping[str, Rule] = {
    **integer.RULES,
    **floating.RULES,
    **compare.RULES,
    **{name: _by_type(integer.RULES[name], floating.RULES[name]) for name in integer.RULES.keys() & floating.RULES.keys()},
    **convert.RULES,
    **warp.RULES,
    **memory.RULES,
    **matrix.RULES,
    **wgmma.RULES,
    **copy.RULES,
    **barrier.RULES,
    **control.RULES,
    "st": _store,
}
