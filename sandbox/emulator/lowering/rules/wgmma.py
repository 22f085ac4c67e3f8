"""wgmma: products of a warpgroup, their fences and groups.

Covered: m64nNk16 with f16 and bf16 operands, f32 and f16 accumulators, A from registers or shared memory, both majors of both
operands, scale factors. Not covered: tf32, 8-bit and sparse operands, descriptors with a base offset (refused at run time).
"""

import re

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.lowering.rules.barrier import refuse
from cudal2_agent.sandbox.emulator.lowering.table import Flag, Kind, WgmmaForm
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Instruction, Operand, Register, Vector

_SHAPE = re.compile(r"m64n(\d+)k16")
_NONE = WgmmaForm(0)
_TYPES = {("f32", "f16", "f16"): _NONE, ("f32", "bf16", "bf16"): WgmmaForm.BF16, ("f16", "f16", "f16"): WgmmaForm.F16_SUMS}


def _wgmma(lowering: Lowering, instruction: Instruction) -> None:
    what = instruction.parts[1]
    if what == "fence":
        lowering.emit("wgmma.fence", Kind.PLAIN, Flag.COLLECTIVE)
    elif what == "commit_group":
        lowering.emit("wgmma.commit", Kind.WAITING, Flag.COLLECTIVE)
    elif what == "wait_group":
        pending = instruction.operands[0]
        if not isinstance(pending, Immediate) or not 0 <= pending.value < 2**31:
            raise refuse(instruction)
        lowering.emit("wgmma.wait", Kind.WAITING, Flag.COLLECTIVE, pending=pending.value)
    elif what == "mma_async":
        _multiply(lowering, instruction)
    else:
        raise refuse(instruction)


def _multiply(lowering: Lowering, instruction: Instruction) -> None:
    parts = [part for part in instruction.parts[2:] if part not in ("sync", "aligned")]
    shape = _SHAPE.fullmatch(parts[0]) if len(parts) == 4 else None
    form = _TYPES.get((parts[1], parts[2], parts[3])) if shape else None
    columns = int(shape[1]) if shape else 0
    if form is None or columns % 8 or not 8 <= columns <= 256 or len(instruction.operands) < 6:
        raise refuse(instruction)
    sums, a, b, accumulate, *factors = instruction.operands
    results = _slots(lowering, instruction, sums, columns // (4 if form & WgmmaForm.F16_SUMS else 2))
    registers_of_a: list[int] = []
    if isinstance(a, Vector):
        registers_of_a = _slots(lowering, instruction, a, 4)
        form |= WgmmaForm.REGISTERS_OF_A
    numbers = [factor.value for factor in factors if isinstance(factor, Immediate)]
    if len(numbers) != len(factors) or len(numbers) != (3 if registers_of_a else 4):
        raise refuse(instruction)
    if not {*numbers[:2]} <= {1, -1} or not {*numbers[2:]} <= {0, 1}:
        raise refuse(instruction)
    form |= WgmmaForm.NEGATIVE_A if numbers[0] < 0 else _NONE
    form |= WgmmaForm.NEGATIVE_B if numbers[1] < 0 else _NONE
    form |= WgmmaForm.ROWS_OF_B if numbers[-1] else _NONE
    form |= WgmmaForm.COLUMNS_OF_A if len(numbers) == 4 and numbers[2] else _NONE
    lowering.emit(
        "wgmma",
        Kind.PLAIN,
        Flag.COLLECTIVE,
        d=results,
        a=registers_of_a,
        descriptor_a=0 if registers_of_a else lowering.source(a, 8),
        descriptor_b=lowering.source(b, 8),
        accumulate=lowering.source(accumulate, MASK),
        n=columns,
        form=form,
    )


def _slots(lowering: Lowering, instruction: Instruction, operand: Operand, count: int) -> list[int]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise refuse(instruction)
    if not all(isinstance(item, Register) for item in operand.items):
        raise refuse(instruction)
    return [lowering.target(item, 4) for item in operand.items]


RULES: dict[str, Rule] = {"wgmma": _wgmma}
