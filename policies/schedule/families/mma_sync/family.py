"""Kernel family `mma_sync`: cp.async pipeline, swizzled shared memory, ldmatrix, mma.sync m16n8k16 (sm_80 and up)."""

import math
from collections.abc import Iterator

from pydantic import ValidationError

from contract.candidate import Candidate, ScheduleValue
from contract.chip import Chip
from contract.task import Arch, GemmTask
from policies.schedule.families.mma_sync.geometry import Geometry
from policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from policies.schedule.families.mma_sync.space import enumerate_schedules
from policies.schedule.families.mma_sync.writer import write_candidate
from policies.schedule.families.protocol import Work

# Share of the chip's dense tensor rate that mma.sync can reach at best. On sm_90 and sm_100 the full rate belongs to newer
# instructions. Estimates: measured feedback corrects them.
MMA_SYNC_RATE: dict[Arch, float] = {
    Arch.SM_80: 0.9,
    Arch.SM_86: 0.9,
    Arch.SM_89: 0.9,
    Arch.SM_90A: 0.62,
    Arch.SM_100A: 0.25,
}
STEP_US = (
    0.25  # measured on an H200: 0.2 to 0.4 over what math and copies take, at 4096x1024x512, 1000x1000x1000, 128x128x16384
)
SATURATING_WARPS = 8  # warps on an SM, two for each of its four schedulers, that keep its tensor cores fed


class MmaSync:
    """The family as the schedule policy sees it."""

    name = "mma_sync"

    def supports(self, task: GemmTask) -> bool:
        return task.arch in MMA_SYNC_RATE

    def space(self, task: GemmTask, chip: Chip) -> Iterator[MmaSyncSchedule]:
        """Sensible schedules, every one valid for the task on the chip; `write` accepts valid ones beyond these too."""
        return enumerate_schedules(task, chip)

    def parse(self, values: dict[str, ScheduleValue]) -> MmaSyncSchedule:
        """Raises: ValueError for unknown, missing or mistyped axes."""
        try:
            return MmaSyncSchedule.model_validate(values, strict=True)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"mma_sync schedule, {where}: {first['msg']}") from exc

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
            mma_efficiency=_mma_efficiency(geometry, chip),
            step_us=STEP_US,
        )

    def write(self, schedule: MmaSyncSchedule, task: GemmTask) -> Candidate:
        """Raises: ValueError where the schedule cannot run for the task."""
        return write_candidate(schedule, task)


def _mma_efficiency(geometry: Geometry, chip: Chip) -> float:
    """Share of the tensor rate in steady state: shared-memory reads per product, and warps enough to overlap them.

    A step of 16 along K reads 32·(m + n) bytes of a warp tile at 128 bytes a cycle, and multiplies for m·n/64 cycles.
    """
    m, n = geometry.warp_tile
    read_cycles, mma_cycles = (m + n) / 4, m * n / 64
    overlap = math.pow(1 + (read_cycles / mma_cycles) ** 3, -1 / 3)
    resident = min(geometry.ctas_per_sm, -(-geometry.ctas // chip.sms)) * geometry.threads // 32
    issue = math.sqrt(min(1.0, resident / SATURATING_WARPS))
    return MMA_SYNC_RATE[chip.arch] * overlap * issue
