"""wgmma: products of a warpgroup, their fences and groups.

Covered: m64nNk16 with f16 and bf16 operands, f32 and f16 accumulators, A from registers or shared memory, both majors of both
operands, scale factors. Not covered: tf32, 8-bit and sparse operands, descriptors with a base offset (refused at run time).
"""

import re

from sandbox.emulator.lowering.families.barrier import refuse
from sandbox.emulator.lowering.lowering import MASK, Lowering
from sandbox.emulator.lowering.opcode import Rule
from sandbox.emulator.lowering.table import Flag, Kind
from sandbox.emulator.ptx.module import Immediate, Instruction, Operand, Register, Vector

_SHAPE = re.compile(r"m64n(\d+)k16")
_TYPES = {("f32", "f16", "f16"): 0, ("f32", "bf16", "bf16"): 1, ("f16", "f16", "f16"): 2}
_HALF_SUM, _NEGATIVE_A, _NEGATIVE_B, _COLUMNS_OF_A, _ROWS_OF_B, _REGISTER_A = 2, 4, 8, 16, 32, 64


def _wgmma(lowering: Lowering, instruction: Instruction) -> None:
    what = instruction.parts[1]
    if what == "fence":
        lowering.emit("wgmma.fence", flags=Flag.COLLECTIVE)
    elif what == "commit_group":
        lowering.emit("wgmma.commit", kind=Kind.WAITING, flags=Flag.COLLECTIVE)
    elif what == "wait_group":
        pending = instruction.operands[0]
        if not isinstance(pending, Immediate) or not 0 <= pending.value < 2**31:
            raise refuse(instruction)
        lowering.emit("wgmma.wait", kind=Kind.WAITING, flags=Flag.COLLECTIVE, imm=pending.value)
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
    listed = _slots(lowering, instruction, sums, columns // (4 if form & _HALF_SUM else 2))
    if isinstance(a, Vector):
        listed += _slots(lowering, instruction, a, 4)
        form |= _REGISTER_A
    numbers = [factor.value for factor in factors if isinstance(factor, Immediate)]
    if len(numbers) != len(factors) or len(numbers) != (3 if form & _REGISTER_A else 4):
        raise refuse(instruction)
    if not {*numbers[:2]} <= {1, -1} or not {*numbers[2:]} <= {0, 1}:
        raise refuse(instruction)
    form |= (_NEGATIVE_A if numbers[0] < 0 else 0) | (_NEGATIVE_B if numbers[1] < 0 else 0)
    form |= _ROWS_OF_B if numbers[-1] else 0
    form |= _COLUMNS_OF_A if len(numbers) == 4 and numbers[2] else 0
    lowering.emit(
        "wgmma",
        flags=Flag.COLLECTIVE,
        a=0 if form & _REGISTER_A else lowering.source(a, 8),
        b=lowering.source(b, 8),
        c=lowering.source(accumulate, MASK),
        listed=listed,
        p=columns,
        q=form,
    )


def _slots(lowering: Lowering, instruction: Instruction, operand: Operand, count: int) -> list[int]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise refuse(instruction)
    if not all(isinstance(item, Register) for item in operand.items):
        raise refuse(instruction)
    return [lowering.target(item, 4) for item in operand.items]


RULES: dict[str, Rule] = {"wgmma": _wgmma}
