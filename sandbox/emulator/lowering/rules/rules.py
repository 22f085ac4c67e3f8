"""Every rule of lowering by the name of its opcode; branches and exits.

An opcode that integers and floating-point numbers share (`add`, `min`) goes by its type.
"""

from collections.abc import Mapping

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import FLOATS, Rule
from cudal2_agent.sandbox.emulator.lowering.rules import (
    barrier,
    compare,
    convert,
    copy,
    floating,
    integer,
    matrix,
    memory,
    warp,
    wgmma,
    wmma,
)
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Label, Unsupported


def _by_type(integers: Rule, floats: Rule) -> Rule:
    def rule(lowering: Lowering, instruction: Instruction) -> None:
        (floats if FLOATS.intersection(instruction.parts) else integers)(lowering, instruction)

    return rule


def _store(lowering: Lowering, instruction: Instruction) -> None:
    rule = copy.lower_remote_store if "async" in instruction.parts else memory.RULES["st"]
    rule(lowering, instruction)


def _branch(lowering: Lowering, instruction: Instruction) -> None:
    target = instruction.operands[0] if len(instruction.operands) == 1 else None
    if not isinstance(target, Label) or target.name not in lowering.function.labels:
        raise Unsupported(instruction.opcode, instruction.line)
    lowering.branch(target.name)


def _indexed_branch(lowering: Lowering, instruction: Instruction) -> None:
    table = instruction.operands[1] if len(instruction.operands) == 2 else None
    if not isinstance(table, Label) or not lowering.function.branch_targets.get(table.name):
        raise Unsupported(instruction.opcode, instruction.line)
    targets = lowering.function.branch_targets[table.name]
    lowering.branch_indexed(lowering.source(instruction.operands[0], 4), tuple(targets))


def _exit(lowering: Lowering, instruction: Instruction) -> None:  # noqa: ARG001 (a rule's signature)
    lowering.exit()


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
    "wmma": wmma.lower_wmma,
    "st": _store,
    "bra": _branch,
    "brx": _indexed_branch,
    "ret": _exit,
    "exit": _exit,
}
