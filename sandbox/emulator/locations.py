"""Places of a run in words: an instruction with its source lines, an address by buffer and byte."""

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.kernel import BoundKernel
from cudal2_agent.sandbox.emulator.lowering.program import Program
from cudal2_agent.sandbox.emulator.ptx.module import Instruction

_TEXT_CHARS = 96


def instruction_at(program: Program, index: int) -> Instruction:
    return program.instructions[max(0, min(index, len(program.instructions) - 1))]


def located(program: Program, index: int) -> str:
    """An instruction's text and where it stands."""
    instruction = instruction_at(program, index)
    text = instruction.text if len(instruction.text) <= _TEXT_CHARS else instruction.text[: _TEXT_CHARS - 1] + "…"
    return f"`{text}` ({instruction.place or f'PTX line {instruction.line}'})"


def address_in_words(address: int, bound: BoundKernel) -> str:
    """An address by buffer and byte; empty for a finding without an address."""
    if not address:
        return ""
    for name, base in bound.machine.addresses.items():
        size = {"A": bound.operands.a, "B": bound.operands.b, "D": bound.operands.d}.get(name, bound.operands.workspace).nbytes
        if base <= address < base + size:
            return f"byte {address - base} of {name}"
    if address < 1 << 32:
        rank, offset = divmod(address, 1 << core.rank_shift)
        of = f" of CTA rank {rank}" if rank else ""
        return f"byte {offset - core.shared_base} of shared memory{of}"
    return f"address {address:#x}"
