"""Roofline arithmetic: the minimum time of a task on a chip, and of its parts as if each were alone. Unit: microseconds."""

from typing import Literal

from cudal2_agent.contract.plan.chip import FIGURES, Chip
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask, Task

Bound = Literal["arithmetic", "memory", "launch and latency"]

_LATENCY_LAUNCHES = 4.0  # launch times below which a kernel is mostly latency of launch, prologue and epilogue
_FUSED_SLOWER = 16.0  # f32 fused multiply-adds against tensor cores: 67 and 990 TFLOP/s on H100, 19.5 and 312 on A100
# Than products of f16; tensor cores multiply TF32 at half the rate.
_SLOWER = {Arithmetic.F16: 1.0, Arithmetic.BF16: 1.0, Arithmetic.TF32: 2.0, Arithmetic.F32: _FUSED_SLOWER}


def tensor_flops_per_us(chip: Chip) -> float:
    return chip.tensor_tflops * 1e6


def dram_bytes_per_us(chip: Chip) -> float:
    return chip.dram_tbps * 1e6


def arithmetic_us(task: Task, chip: Chip) -> float:
    """Time to multiply at the chip's full rate for the task's arithmetic."""
    slower = _SLOWER[task.arithmetic] if isinstance(task, ModuleTask) else 1.0
    return slower * task.flops / tensor_flops_per_us(chip)


def memory_us(task: Task, chip: Chip) -> float:
    """Time to move the task's buffers once through device memory."""
    return transfer_us(task.operand_bytes, chip)


def transfer_us(moved_bytes: float, chip: Chip) -> float:
    """Time to move bytes at the rate of device memory."""
    return moved_bytes / dram_bytes_per_us(chip)


def roofline_us(task: Task, chip: Chip) -> float:
    """Minimum time of a task as one launch: the larger of arithmetic and memory time, plus the launch."""
    return max(arithmetic_us(task, chip), memory_us(task, chip)) + chip.launch_us


def least_us(task: Task, chip: Chip) -> float:
    """Time, without a launch, that no right kernel is far under: of a product, arithmetic and one pass over memory.

    Of a module, the time to write what it writes: it may read a part of an input, and operations may cancel or be rewritten.
    """
    if isinstance(task, ModuleTask):
        return transfer_us(sum(buffer.bytes for buffer in task.buffers if buffer.role.written), chip)
    return max(arithmetic_us(task, chip), memory_us(task, chip))


def bound_of(task: Task, chip: Chip) -> Bound:
    """What most of the minimum time is: launch and a first trip to memory, else the larger of the two rates' times."""
    figures = FIGURES.get(chip.arch)
    arithmetic, memory = arithmetic_us(task, chip), memory_us(task, chip)
    if max(arithmetic, memory) < chip.launch_us + (figures.trip_us if figures else chip.launch_us):
        return "launch and latency"
    return "memory" if memory > arithmetic else "arithmetic"


def latency_share(time_us: float, chip: Chip) -> float:
    """Share of a time that more CTAs do not shorten."""
    return min(1.0, _LATENCY_LAUNCHES * chip.launch_us / time_us) if time_us > 0 else 1.0


def is_latency(time_us: float, launches: int, chip: Chip) -> bool:
    """Whether launches and their latency are most of a time."""
    return time_us < _LATENCY_LAUNCHES * launches * chip.launch_us


def spared_by_tensor_cores(task: Task, chip: Chip) -> float:
    """What tensor cores spare of the time that fused multiply-adds take, as a share of it."""
    minimum = max(memory_us(task, chip), arithmetic_us(task, chip))
    return 1 - minimum / max(memory_us(task, chip), _FUSED_SLOWER * arithmetic_us(task, chip))
