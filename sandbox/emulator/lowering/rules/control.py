"""Branches and exits."""

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.ptx.module import Instruction, Label, Unsupported


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


RULES: dict[str, Rule] = {"bra": _branch, "brx": _indexed_branch, "ret": _exit, "exit": _exit}
