"""The `mma_sync` family as the schedule policy sees it: which tasks it supports, its schedules, their cost model inputs."""

import math
from collections.abc import Iterator

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family, KernelParts, Work
from cudal2_agent.policies.schedule.families.mma_sync.geometry import Geometry
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.mma_sync.space import enumerate_schedules
from cudal2_agent.policies.schedule.families.mma_sync.writer import constants, plan, sections

# Maximum share of the chip's dense tensor rate that mma.sync reaches. On sm_90 and sm_100 only newer instructions reach the
# full rate. These are estimates, which measured times correct.
MMA_SYNC_RATE: dict[Arch, float] = {
    Arch.SM_80: 0.9,
    Arch.SM_86: 0.9,
    Arch.SM_89: 0.9,
    Arch.SM_90A: 0.62,
    Arch.SM_100A: 0.25,
}
# Measured on an H200 at 4096x1024x512, 1000x1000x1000 and 128x128x16384: 0.2 to 0.4 us more than math and copies take.
STEP_US = 0.25
SATURATING_WARPS = 8  # warps on an SM, two for each of its four schedulers, that keep its tensor cores busy


class MmaSync(Family[MmaSyncSchedule]):
    """cp.async pipeline, swizzled shared memory, ldmatrix, mma.sync m16n8k16."""

    name = "mma_sync"
    schedule = MmaSyncSchedule

    def supports(self, task: GemmTask) -> bool:
        return task.arch in MMA_SYNC_RATE and not task.gated

    def space(self, task: GemmTask, chip: Chip) -> Iterator[MmaSyncSchedule]:
        if self.supports(task):
            yield from enumerate_schedules(task, chip)

    def work(self, schedule: MmaSyncSchedule, task: GemmTask, chip: Chip) -> Work:
        geometry = Geometry(schedule, task)
        tile_bytes = 4 * schedule.block_m * schedule.block_n
        return Work.model_construct(
            tile=(schedule.block_m, schedule.block_n, schedule.block_k),
            stages=schedule.stages,
            ctas=geometry.ctas,
            ctas_per_sm=geometry.ctas_per_sm,
            cluster=schedule.split_k if schedule.reduction == "cluster" else 1,
            k_blocks=geometry.k_blocks,
            loaded_bytes=geometry.ctas * geometry.k_blocks * geometry.stage_bytes,
            reduced_bytes=2 * tile_bytes * geometry.ctas if schedule.reduction == "workspace" else 0,
            launches=1,
            persistent=False,
            programmatic=schedule.programmatic,
            overlapped_us=0.5,
            mma_efficiency=_mma_efficiency(geometry, chip),
            step_us=STEP_US,
            exchanged_bytes=schedule.warps_k * tile_bytes if schedule.warps_k > 1 else 0,
            spread_sums=schedule.spread_sum,
        )

    def unmeasured(self, schedule: MmaSyncSchedule, task: GemmTask) -> bool:  # noqa: ARG002
        """Sums that are spread."""
        return schedule.spread_sum

    def violations(self, schedule: MmaSyncSchedule, task: GemmTask) -> Iterator[str]:
        if task.gated:
            yield "the family computes no gated tasks"
            return
        yield from Geometry(schedule, task).violations()

    def summation(self, schedule: MmaSyncSchedule, task: GemmTask) -> str | None:
        """One warp adds all of K for its elements, 16 at a time. Zeros behind the end of K add nothing."""
        whole = schedule.split_k == schedule.warps_k == 1
        return f"mma.sync.m16n8k16 {task.accumulate} in order of K" if whole else None

    def parts(self, schedule: MmaSyncSchedule, task: GemmTask) -> KernelParts:
        geometry = Geometry(schedule, task)
        return KernelParts(plan(geometry), constants(geometry), sections(geometry))


def _mma_efficiency(geometry: Geometry, chip: Chip) -> float:
    """Share of the tensor rate in steady state, from shared-memory reads per product and the warps that overlap them.

    A step of 16 along K reads 32·(m + n) bytes of a warp tile at 128 bytes per cycle, and multiplies for m·n/64 cycles.
    """
    m, n = geometry.warp_tile
    read_cycles, mma_cycles = (m + n) / 4, m * n / 64
    overlap = math.pow(1 + (read_cycles / mma_cycles) ** 3, -1 / 3)
    resident = min(geometry.ctas_per_sm, -(-geometry.ctas // chip.sms)) * geometry.threads // 32
    issue = math.sqrt(min(1.0, resident / SATURATING_WARPS))
    return MMA_SYNC_RATE[chip.arch] * overlap * issue
