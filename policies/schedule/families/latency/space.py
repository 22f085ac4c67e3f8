"""The schedules of the `latency` family worth trying for a task on a chip."""

from collections.abc import Iterator
from itertools import product

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms
from cudal2_agent.policies.schedule.families.latency.schedule import (
    ALIGNMENT_BYTES,
    EXCLUSIVE_SMEM_BYTES,
    LatencySchedule,
    violations,
)

BLOCKS = (16, 32, 64, 128)
BLOCKS_K = (32, 64, 128)
CLUSTERS = (1, 2, 4, 8, 16)
WARPS_K = (1, 2, 4, 8)
WARP_TILES = ((16, 16), (16, 32), (32, 16), (32, 32), (32, 64), (64, 32))
MAX_WARPS = 16
MAX_GROUPS = 8  # each group is unrolled
MAX_COPIES = 64  # of 16 bytes per thread, each of them an instruction
MAX_WAVES = 4  # of CTAs without a cluster
MAX_CLUSTERED = 2  # CTAs per SM in clusters; a second wave of clusters only doubles the latency
MIN_BUSY = 0.25  # minimum share of the SMs that must load, where one CTA loads more than SMALL_BYTES
SMALL_BYTES = 32 * 1024
# Of schedules with more than one pass, which are for long K.
BLOCKS_K_OF_PASSES = (64, 128)
MAX_PASSES = 16
MAX_OUTPUTS = 2**19  # of D
MIN_LOADING = 0.4  # minimum share of the SMs that must load
MIN_WARPS = 4
RESERVED_BYTES = 1024 + 256  # of a CTA, beside operands, sums and the slack to align: for the system, and for barriers


def enumerate_schedules(task: GemmTask, chip: Chip) -> Iterator[LatencySchedule]:
    """Tiles and parts of K that fit the chip at once, then warps and groups of copies, then how they are loaded."""
    for block_m, block_n, cluster in product(BLOCKS, BLOCKS, CLUSTERS if LIMITS[task.arch].max_cluster > 1 else (1,)):
        if _fits(block_m, task.m) and _fits(block_n, task.n):
            ctas = -(-task.m // block_m) * -(-task.n // block_n) * cluster
            waves = ctas / cluster_sms(chip, cluster)
            if waves <= (MAX_WAVES if cluster == 1 else MAX_CLUSTERED):
                for base in _slices(block_m, block_n, cluster, task):
                    if base.operand_bytes <= SMALL_BYTES or ctas >= MIN_BUSY * chip.sms:
                        yield from (one for one in _launches(base, waves, task) if _runs_together(one, waves, task))
            if task.m * task.n <= MAX_OUTPUTS and waves <= MAX_CLUSTERED and ctas >= MIN_LOADING * chip.sms:
                for base in _passes(block_m, block_n, cluster, -(-ctas // cluster_sms(chip, cluster)), task):
                    yield from (one for one in _launches(base, waves, task) if _runs_together(one, waves, task))


def _runs_together(s: LatencySchedule, waves: float, task: GemmTask) -> bool:
    """Whether a schedule is valid, and all CTAs that form clusters or take several passes are resident at once."""
    return next(violations(s, task), None) is None and (s.cluster_k == s.passes == 1 or waves <= s.ctas_per_sm(task))


def _fits(block: int, size: int) -> bool:
    """Whether less than half of a block is padding, or the block is the smallest."""
    return block == BLOCKS[0] or block < 2 * size


def _slices(block_m: int, block_n: int, cluster: int, task: GemmTask) -> Iterator[LatencySchedule]:
    """Warps, slices and the smallest number of groups that cover K, of which no part is empty."""
    for (warps_m, warps_n), warps_k, block_k in product(_warps(block_m, block_n), WARPS_K, BLOCKS_K):
        groups = -(-task.k // (cluster * warps_k * block_k))
        covered = (cluster * warps_k - 1) * groups * block_k  # by all parts but the last one
        narrow = block_k == BLOCKS_K[0] and groups > 2  # wider groups are as good, with fewer barriers
        if warps_m * warps_n * warps_k <= MAX_WARPS and groups <= MAX_GROUPS and covered < task.k and not narrow:
            yield LatencySchedule(
                block_m=block_m,
                block_n=block_n,
                block_k=block_k,
                groups=groups,
                warps_m=warps_m,
                warps_n=warps_n,
                warps_k=warps_k,
                cluster_k=cluster,
            )


def _passes(block_m: int, block_n: int, cluster: int, resident: int, task: GemmTask) -> Iterator[LatencySchedule]:
    """As many slots as fit where `resident` CTAs share an SM, and the passes over them that cover K, where it needs several."""
    sums = 4 * block_m * block_n if cluster > 1 else 0
    room = LIMITS[task.arch].smem_per_sm_bytes // resident - ALIGNMENT_BYTES - RESERVED_BYTES - sums
    for (warps_m, warps_n), warps_k, block_k in product(_warps(block_m, block_n), WARPS_K, BLOCKS_K_OF_PASSES):
        if not MIN_WARPS <= warps_m * warps_n * warps_k <= MAX_WARPS:
            continue
        total = -(-task.k // (cluster * warps_k * block_k))
        slots = min(room // (2 * warps_k * block_k * (block_m + block_n)), MAX_GROUPS)
        if slots < 2 or not slots < total <= slots * MAX_PASSES:
            continue
        passes = -(-total // slots)
        groups = -(-total // passes)
        if (cluster * warps_k - 1) * passes * groups * block_k < task.k:
            yield LatencySchedule(
                block_m=block_m,
                block_n=block_n,
                block_k=block_k,
                groups=groups,
                passes=passes,
                warps_m=warps_m,
                warps_n=warps_n,
                warps_k=warps_k,
                cluster_k=cluster,
            )


def _warps(block_m: int, block_n: int) -> list[tuple[int, int]]:
    """Warps along M and N."""
    return sorted({(block_m // m, block_n // n) for m, n in WARP_TILES if block_m % m == 0 and block_n % n == 0})


def _launches(base: LatencySchedule, waves: float, task: GemmTask) -> Iterator[LatencySchedule]:
    """The ways of loading that the chip has; with an SM for each CTA where there are enough, and two would fit on one."""
    limits = LIMITS[task.arch]
    for loads in ("cp_async", "tma") if limits.tensor_maps else ("cp_async",):
        one = base.model_copy(update={"loads": loads, "programmatic": limits.programmatic_launch})
        if loads == "tma" or one.slot_bytes <= 16 * MAX_COPIES * one.threads:
            yield one
            if one.programmatic and waves <= 1 and one.needed_smem_bytes < EXCLUSIVE_SMEM_BYTES:
                yield one.model_copy(update={"exclusive": True})
