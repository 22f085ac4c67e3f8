"""The `latency` family as the schedule policy sees it: which tasks it supports, its schedules, their cost model inputs."""

import math
from collections.abc import Iterator

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family, KernelParts, Work, has_tma_rows
from cudal2_agent.policies.schedule.families.latency.schedule import ARCHS, LatencySchedule, tiles_of, violations
from cudal2_agent.policies.schedule.families.latency.space import enumerate_schedules
from cudal2_agent.policies.schedule.families.latency.writer import boxes, constants, plan, sections
from cudal2_agent.policies.schedule.families.mma_sync.family import MMA_SYNC_RATE

SATURATING_WARPS = 8  # warps on an SM, two for each of its four schedulers, that keep its tensor cores busy
GROUP_US = 0.03  # barrier and first fragments of a group after the first (estimate)


class Latency(Family[LatencySchedule]):
    """All operands of a CTA loaded at once, ldmatrix and mma.sync, partial sums pushed within a cluster where there are any."""

    name = "latency"
    schedule = LatencySchedule

    def supports(self, task: GemmTask) -> bool:
        """Rows of A, B and D, as they are stored, must be multiples of 16 bytes. No gated tasks."""
        return task.arch in ARCHS and has_tma_rows(task) and not task.gated

    def space(self, task: GemmTask, chip: Chip) -> Iterator[LatencySchedule]:
        if self.supports(task):
            yield from enumerate_schedules(task, chip)

    def work(self, schedule: LatencySchedule, task: GemmTask, chip: Chip) -> Work:
        s = schedule
        ctas = tiles_of(s, task) * s.cluster_k
        return Work(
            tile=(s.block_m, s.block_n, s.block_k * s.warps_k),
            stages=s.groups + 1,  # nothing of the first pass waits for a buffer
            ctas=ctas,
            ctas_per_sm=s.ctas_per_sm(task),
            cluster=s.cluster_k,
            k_blocks=s.groups * s.passes,
            loaded_bytes=ctas * s.operand_bytes,
            reduced_bytes=0,
            launches=1,
            persistent=False,
            programmatic=s.programmatic,
            mma_efficiency=_mma_efficiency(s, ctas, task, chip),
            lines=_lines(s, task),
            step_us=GROUP_US,
            exchanged_bytes=s.warps_k * s.tile_bytes if s.warps_k > 1 else 0,
            pushed=s.cluster_k > 1,
            crowded=s.programmatic,  # CTAs of the next launch take the places of those that end first
        )

    def violations(self, schedule: LatencySchedule, task: GemmTask) -> Iterator[str]:
        return violations(schedule, task)

    def parts(self, schedule: LatencySchedule, task: GemmTask) -> KernelParts:
        return KernelParts(plan(schedule, task), constants(schedule, task), sections(schedule, task))


def _lines(s: LatencySchedule, task: GemmTask) -> int:
    """Rows of the boxes of one group of all slices; 0 without TMA."""
    if s.loads != "tma":
        return 0
    (width_a, _), (width_b, _) = boxes(s, task)
    return s.warps_k * (s.block_m * s.block_k // width_a + s.block_n * s.block_k // width_b)


def _mma_efficiency(s: LatencySchedule, ctas: int, task: GemmTask, chip: Chip) -> float:
    """Share of the tensor rate, from shared-memory reads per product and the warps that overlap them.

    A step of 16 along K reads 32·(m + n) bytes of a warp tile at 128 bytes per cycle, and multiplies for m·n/64 cycles.
    """
    m, n = s.block_m // s.warps_m, s.block_n // s.warps_n
    read_cycles, mma_cycles = (m + n) / 4, m * n / 64
    overlap = math.pow(1 + (read_cycles / mma_cycles) ** 3, -1 / 3)
    resident = min(s.ctas_per_sm(task), -(-ctas // chip.sms)) * s.threads // 32
    return MMA_SYNC_RATE[chip.arch] * overlap * math.sqrt(min(1.0, resident / SATURATING_WARPS))
