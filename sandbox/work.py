"""Least times of a task's parts on a chip, each as if it were alone. Unit: microseconds."""

from contract.chip import Chip
from contract.task import GemmTask


def memory_us(task: GemmTask, chip: Chip) -> float:
    """Moving A, B and D once through device memory."""
    return task.operand_bytes / (chip.dram_tbps * 1e6)


def arithmetic_us(task: GemmTask, chip: Chip) -> float:
    """Multiplying at the chip's full tensor rate."""
    return task.flops / (chip.tensor_tflops * 1e6)


def store_us(stored_bytes: float, chip: Chip) -> float:
    """Storing bytes at device memory's rate."""
    return stored_bytes / (chip.dram_tbps * 1e6)
