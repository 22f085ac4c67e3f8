"""The schedules of the `narrow` family worth trying for a task on a chip."""

from collections.abc import Iterator
from itertools import product

from contract.chip import Chip
from contract.task import GemmTask
from policies.schedule.families.kernel_family import cluster_sms
from policies.schedule.families.narrow.schedule import (
    BLOCKS_N,
    PREFETCHED_K,
    NarrowSchedule,
    resident_ctas,
    roles,
    tiles_of,
    violation,
)

WARPS_K = (2, 4, 8, 16)
CLUSTERS = (1, 2, 4, 8, 16)
REGISTER_STAGES = (1, 2, 3, 4, 6, 8)
SHARED_STAGES = (2, 3, 4, 6, 8, 12, 16)
MIN_BUSY = 0.4  # minimum share of the SMs that must load
MAX_WAVES = 3  # of CTAs without a cluster; CTAs of a cluster are resident at once
MIN_FLIGHT_BYTES = 16 * 1024  # of an SM; 4.3 TB/s and a trip of 1 us need 33 KB
MAX_WARPS_PER_SM = 48
MAX_COUNTED = 2  # CTAs of a launch on an SM where those of the next one are counted; many small ones spread by themselves


def enumerate_schedules(task: GemmTask, chip: Chip) -> Iterator[NarrowSchedule]:
    """Tiles and parts of K that occupy the chip at once, with enough bytes in flight; then what L2 is told of the weights."""
    operands = roles(task)
    if operands is None:
        return
    block_m = -(-operands.tokens // 8) * 8
    for block_n, cluster, warps in product(BLOCKS_N, CLUSTERS, WARPS_K):
        base = NarrowSchedule(block_m=block_m, block_n=block_n, warps_k=warps, cluster_k=cluster, stages=1)
        ctas = tiles_of(base, operands) * cluster
        covered = (cluster - 1) * base.steps(task) * base.round_k  # by all parts but the last one
        if ctas < min(MIN_BUSY * chip.sms, _max_ctas(task)) or covered >= task.k or (warps - 1) * 32 >= task.k:
            continue
        for loop in _rings(base, task):
            if violation(loop, task) is None and _flows(loop, ctas, task, chip):
                yield from _launches(loop, ctas, task, chip)


def _max_ctas(task: GemmTask) -> int:
    """CTAs of the finest division that the space has."""
    operands = roles(task)
    smallest = NarrowSchedule(block_m=8, block_n=BLOCKS_N[-1], warps_k=WARPS_K[0], cluster_k=1, stages=1)
    return tiles_of(smallest, operands) if operands else 0


def _rings(base: NarrowSchedule, task: GemmTask) -> Iterator[NarrowSchedule]:
    """Depths of both kinds of rings, up to the steps that a warp has."""
    steps = base.steps(task)
    for ring, depths in (("registers", REGISTER_STAGES), ("shared", SHARED_STAGES)):
        for stages in depths:
            if stages <= steps:
                yield base.model_copy(update={"ring": ring, "stages": stages})


def _flows(s: NarrowSchedule, ctas: int, task: GemmTask, chip: Chip) -> bool:
    """Whether clusters are resident at once, and an SM has enough bytes in flight or all that there are."""
    waves = ctas / (cluster_sms(chip, s.cluster_k) * s.ctas_per_sm(task))
    resident = resident_ctas(s, ctas, task, chip)
    flight = resident * s.warps_k * s.stages * s.stage_bytes
    enough = flight >= MIN_FLIGHT_BYTES or s.stages == s.steps(task)
    return waves <= (MAX_WAVES if s.cluster_k == 1 else 1) and enough and resident * s.warps_k <= MAX_WARPS_PER_SM


def _launches(s: NarrowSchedule, ctas: int, task: GemmTask, chip: Chip) -> Iterator[NarrowSchedule]:
    """How a launch meets the next one, which may have places beside it on every SM, or has to wait for CTAs that end.

    Beside it, prefetches of the ring's first filling and of twice as much, and none, with weights evicted first and as usual.
    The prior sees no difference between these, so the first of them is tried first: with one kind of ring it prefetches.
    """
    boxes = -(-s.stages * s.round_k // PREFETCHED_K)
    resident, limit = resident_ctas(s, ctas, task, chip), s.ctas_per_sm(task)
    few = resident <= MAX_COUNTED
    beside = s.model_copy(update={"per_sm": 2 * resident}) if few and limit > 2 * resident else s
    asked = [beside.model_copy(update={"prefetch": times * boxes, "trigger": "last_loads"}) for times in (1, 2)]
    plain = [beside, beside.model_copy(update={"evict_first": False})]
    yield from (*asked, *plain) if s.ring == "shared" else (*plain, *asked)
    if few and limit > resident:
        alone = s.model_copy(update={"per_sm": resident})
        yield from (alone.model_copy(update={"prefetch": boxes}), alone)
