"""wgmma: products of a warpgroup, their fences and groups.

Covered: m64nNk16 with f16 and bf16 operands, f32 and f16 accumulators, both majors of both operands; m64nNk8 with tf32 and
m64nNk32 with s8 and u8 operands, K-major. A from registers or shared memory, scale factors.
Not covered: fp8, 1-bit and sparse operands, descriptors with a base offset (refused at run time).
"""

import re
from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.lowering.lowering import MASK, Lowering
from cudal2_agent.sandbox.emulator.lowering.opcode import Rule
from cudal2_agent.sandbox.emulator.lowering.rules.barrier import refuse
from cudal2_agent.sandbox.emulator.lowering.rules.matrix import byte_form
from cudal2_agent.sandbox.emulator.lowering.table import Flag, Kind, WgmmaForm
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Instruction, Operand, Register, Vector

_SHAPE = re.compile(r"m64n(\d+)k(8|16|32)")
_NONE = WgmmaForm(0)
# By K and the types of D, A and B.
_TYPES: dict[tuple[str, ...], WgmmaForm] = {
    ("16", "f32", "f16", "f16"): _NONE,
    ("16", "f32", "bf16", "bf16"): WgmmaForm.BF16,
    ("16", "f16", "f16", "f16"): WgmmaForm.F16_SUMS,
    ("8", "f32", "tf32", "tf32"): WgmmaForm.TF32,
    **{("32", "s32", a, b): WgmmaForm.BYTES for a in ("s8", "u8") for b in ("s8", "u8")},
}


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
    saturated = parts[1:2] == ["satfinite"]
    shape = _SHAPE.fullmatch(parts[0]) if parts else None
    types = parts[2 if saturated else 1 :]
    form = _TYPES.get((shape[2], *types)) if shape and len(types) == 3 else None
    columns = int(shape[1]) if shape else 0
    if form is None or columns % 8 or not 8 <= columns <= 256 or len(instruction.operands) < 4:
        raise refuse(instruction)
    if form & WgmmaForm.BYTES:
        if columns > 32 and columns % 16:  # widths that integers do not have
            raise refuse(instruction)
    elif saturated:
        raise refuse(instruction)
    sums, a, b, accumulate, *factors = instruction.operands
    results = _slots(lowering, instruction, sums, columns // (4 if form & WgmmaForm.F16_SUMS else 2))
    registers_of_a: list[int] = []
    if isinstance(a, Vector):
        registers_of_a = _slots(lowering, instruction, a, 4)
        form |= WgmmaForm.REGISTERS_OF_A
    form |= _factors(instruction, factors, form)
    bytes_form = byte_form(types[1], types[2], saturated)
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
        **({"bytes": bytes_form} if bytes_form else {}),
    )


def _factors(instruction: Instruction, factors: Sequence[Operand], form: WgmmaForm) -> WgmmaForm:
    """What the factors of A and B and their majors add: of integers none, of tf32 no majors. Raises: Unsupported."""
    scales = 0 if form & WgmmaForm.BYTES else 2
    majors = 0 if form & (WgmmaForm.BYTES | WgmmaForm.TF32) else 1 if form & WgmmaForm.REGISTERS_OF_A else 2
    numbers = [factor.value for factor in factors if isinstance(factor, Immediate)]
    if len(numbers) != len(factors) or len(numbers) != scales + majors:
        raise refuse(instruction)
    signs, transposed = numbers[:scales], numbers[scales:]
    if not {*signs} <= {1, -1} or not {*transposed} <= {0, 1}:
        raise refuse(instruction)
    bits = [WgmmaForm.NEGATIVE_A, WgmmaForm.NEGATIVE_B, WgmmaForm.COLUMNS_OF_A, WgmmaForm.ROWS_OF_B]
    if majors == 1:
        bits.remove(WgmmaForm.COLUMNS_OF_A)
    chosen = [bit for bit, given in zip(bits, (*(sign < 0 for sign in signs), *transposed), strict=False) if given]
    return WgmmaForm(sum(chosen))


def _slots(lowering: Lowering, instruction: Instruction, operand: Operand, count: int) -> list[int]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise refuse(instruction)
    if not all(isinstance(item, Register) for item in operand.items):
        raise refuse(instruction)
    return [lowering.target(item, 4) for item in operand.items]


RULES: dict[str, Rule] = {"wgmma": _wgmma}
