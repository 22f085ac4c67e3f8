"""Every rule of arithmetic by the name of its opcode; names that integers and floating-point numbers share go by type."""

from sandbox.emulator.lowering import compare, floating, integer
from sandbox.emulator.lowering.lowering import Lowering
from sandbox.emulator.lowering.opcode import FLOATS, Rule
from sandbox.emulator.ptx.module import Instruction


def _by_type(integers: Rule, floats: Rule) -> Rule:
    def rule(lowering: Lowering, instruction: Instruction) -> None:
        (floats if FLOATS.intersection(instruction.parts) else integers)(lowering, instruction)

    return rule


RULES: dict[str, Rule] = {
    **integer.RULES,
    **floating.RULES,
    **compare.RULES,
    **{name: _by_type(integer.RULES[name], floating.RULES[name]) for name in integer.RULES.keys() & floating.RULES.keys()},
}
