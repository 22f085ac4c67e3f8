"""The schedules of the `resident` family worth trying for a task on a chip: large outputs with short K only."""

from collections.abc import Iterator
from itertools import product

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms
from cudal2_agent.policies.schedule.families.resident.schedule import WIDTHS, ResidentSchedule, is_valid, units

MIN_WAVES = 2  # below, loading A anew for each run of tiles and uneven shares cost more than they save
MAX_SLOTS = 24  # three tiles of K = 512; a warpgroup cannot run further ahead of one that waits for its turn


def enumerate_schedules(task: GemmTask, chip: Chip) -> Iterator[ResidentSchedule]:
    """Tile, then epilogue and ring, then caches. One warpgroup alone would leave the tensor cores idle while it stores."""
    for consumers, atoms, block_n, cluster in product((2, 3), (1, 2), WIDTHS, (1, 2)):
        base = ResidentSchedule(consumers=consumers, atoms=atoms, block_n=block_n, slots=1, cluster=cluster)
        if units(base, task) < MIN_WAVES * cluster_sms(chip, cluster) // cluster:
            continue
        for schedule in _epilogues(base):
            yield from (s for s in _caches(schedule) if is_valid(s, task))


def _epilogues(base: ResidentSchedule) -> Iterator[ResidentSchedule]:
    """Turns, when stores are issued, and staging; the ring takes what shared memory is left."""
    for turn, late_store, stagings in product(("none", "staging", "pause"), (True, False), (1, 2)):
        shape = base.model_copy(update={"turns": turn, "late_store": late_store, "stagings": stagings})
        room = LIMITS[Arch.SM_90A].max_smem_per_block_bytes - shape.smem_bytes
        slots = min(room // (shape.slot_bytes + 16) + 1, MAX_SLOTS)
        if slots > 0:
            yield shape.model_copy(update={"slots": slots})


def _caches(base: ResidentSchedule) -> Iterator[ResidentSchedule]:
    """Where clusters start in their runs, and what L2 keeps."""
    for phases, (keep_b, stream_d), l2 in product((1, 8), ((False, False), (False, True), (True, True)), (128, 256)):
        yield base.model_copy(update={"phases": phases, "keep_b": keep_b, "stream_d": stream_d, "l2": l2})
