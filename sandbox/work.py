"""Least times of a task's parts on a chip, each as if it were alone. Unit: microseconds."""

from contract.chip import Chip
from contract.task import GemmTask

FUSED_SLOWER = 16.0  # fused multiply-adds in f32 than tensor cores: 67 and 990 TFLOP/s on H100, 19.5 and 312 on A100


def memory_us(task: GemmTask, chip: Chip) -> float:
    """Moving A, B and D once through device memory."""
    return task.operand_bytes / (chip.dram_tbps * 1e6)


def arithmetic_us(task: GemmTask, chip: Chip) -> float:
    """Multiplying at the chip's full tensor rate."""
    return task.flops / (chip.tensor_tflops * 1e6)


def store_us(stored_bytes: float, chip: Chip) -> float:
    """Storing bytes at device memory's rate."""
    return stored_bytes / (chip.dram_tbps * 1e6)


def spared_by_tensor_cores(task: GemmTask, chip: Chip) -> float:
    """What tensor cores spare of the time that fused multiply-adds take, as a share of it."""
    least = max(memory_us(task, chip), arithmetic_us(task, chip))
    return 1 - least / max(memory_us(task, chip), FUSED_SLOWER * arithmetic_us(task, chip))
