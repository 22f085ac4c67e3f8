"""The `narrow` family as the schedule policy sees it: which tasks it supports, its schedules, their cost model inputs."""

from collections.abc import Iterator

from contract.chip import Chip
from contract.roofline import tensor_flops_per_us
from contract.task import Arch, GemmTask
from policies.schedule.families.kernel_family import Family, KernelParts, Work
from policies.schedule.families.narrow.schedule import NarrowSchedule, Roles, resident_ctas, roles, tiles_of, violation
from policies.schedule.families.narrow.space import enumerate_schedules
from policies.schedule.families.narrow.writer import constants, plan, sections

MMA_RATE = 0.5  # maximum share of the tensor rate (estimate)
# A step of a warp, whose wait, loads and products depend on each other, and what 16 features add to it (estimates).
STEP_US, TILE_STEP_US = 0.08, 0.02


class Narrow(Family[NarrowSchedule]):
    """Few tokens against weights that stream from global memory into fragments of mma.sync (sm_90a)."""

    name = "narrow"
    schedule = NarrowSchedule

    def supports(self, task: GemmTask) -> bool:
        """One operand has few rows along K, and rows are multiples of 16 bytes."""
        operands = roles(task)
        if task.arch is not Arch.SM_90A or operands is None:
            return False
        return task.k % 8 == 0 and not (operands.tokens_are_rows and task.n % 8)

    def space(self, task: GemmTask, chip: Chip) -> Iterator[NarrowSchedule]:
        if self.supports(task):
            yield from enumerate_schedules(task, chip)

    def work(self, schedule: NarrowSchedule, task: GemmTask, chip: Chip) -> Work:
        s, operands = schedule, _roles(task)
        ctas = tiles_of(s, operands) * s.cluster_k
        resident = resident_ctas(s, ctas, task, chip)
        tile = (s.block_m, s.block_n) if operands.tokens_are_rows else (s.block_n, s.block_m)
        return Work(
            tile=(*tile, s.round_k),
            stages=s.stages + 1,  # a step is loaded again as soon as it has been multiplied
            ctas=ctas,
            ctas_per_sm=s.ctas_per_sm(task),
            cluster=s.cluster_k,
            k_blocks=s.steps(task),
            loaded_bytes=ctas * s.steps(task) * 2 * s.round_k * (s.block_n + min(s.block_m, operands.tokens)),
            reduced_bytes=0,
            launches=1,
            persistent=False,
            programmatic=s.programmatic and s.ctas_per_sm(task) >= 2 * resident,  # the next launch fits beside this one
            mma_efficiency=_mma_efficiency(s, resident, chip),
            exchanged_bytes=s.warps_k * 4 * s.rows(task) * s.block_n,
            pushed=s.cluster_k > 1,
        )

    def violation(self, schedule: NarrowSchedule, task: GemmTask) -> str | None:
        return violation(schedule, task)

    def parts(self, schedule: NarrowSchedule, task: GemmTask) -> KernelParts:
        operands = _roles(task)
        return KernelParts(plan(schedule, task, operands), constants(schedule, task, operands), sections(schedule))


def _mma_efficiency(s: NarrowSchedule, resident: int, chip: Chip) -> float:
    """Share of the tensor rate at which the CTAs of an SM take their steps, which is that of the chain in each warp."""
    flops = 2 * s.block_m * s.block_n * s.round_k * resident
    chain_us = STEP_US + TILE_STEP_US * s.block_n / 16
    return min(MMA_RATE, flops / chain_us / (tensor_flops_per_us(chip) / chip.sms))


def _roles(task: GemmTask) -> Roles:
    """The operands of a task that has a narrow one. Raises: ValueError for another."""
    if (operands := roles(task)) is None:
        raise ValueError(f"no operand of {task.shape} is narrow")
    return operands
