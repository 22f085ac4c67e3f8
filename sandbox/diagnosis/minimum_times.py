"""Least times of a task's parts on a chip, each as if it were alone. Unit: microseconds."""

from contract.chip import Chip
from contract.task import GemmTask

_LATENCY_LAUNCHES = 4.0  # launches' time below which a kernel is latency of launch, prologue and epilogue
_FUSED_SLOWER = 16.0  # fused multiply-adds in f32 than tensor cores: 67 and 990 TFLOP/s on H100, 19.5 and 312 on A100


def memory_us(task: GemmTask, chip: Chip) -> float:
    """Moving A, B and D once through device memory."""
    return task.operand_bytes / (chip.dram_tbps * 1e6)


def arithmetic_us(task: GemmTask, chip: Chip) -> float:
    """Multiplying at the chip's full tensor rate."""
    return task.flops / (chip.tensor_tflops * 1e6)


def store_us(stored_bytes: float, chip: Chip) -> float:
    """Storing bytes at device memory's rate."""
    return stored_bytes / (chip.dram_tbps * 1e6)


def latency_share(time_us: float, chip: Chip) -> float:
    """Share of a time that more CTAs do not shorten."""
    return min(1.0, _LATENCY_LAUNCHES * chip.launch_us / time_us) if time_us > 0 else 1.0


def is_latency(time_us: float, launches: int, chip: Chip) -> bool:
    """Whether launches and their latency are most of a time."""
    return time_us < _LATENCY_LAUNCHES * launches * chip.launch_us


def spared_by_tensor_cores(task: GemmTask, chip: Chip) -> float:
    """What tensor cores spare of the time that fused multiply-adds take, as a share of it."""
    least = max(memory_us(task, chip), arithmetic_us(task, chip))
    return 1 - least / max(memory_us(task, chip), _FUSED_SLOWER * arithmetic_us(task, chip))
