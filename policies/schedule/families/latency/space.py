"""The schedules of the `latency` family worth trying for a task on a chip."""

from collections.abc import Iterator
from itertools import product

from contract.chip import Chip
from contract.task import GemmTask
from policies.schedule.families.kernel_family import cluster_sms
from policies.schedule.families.latency.schedule import LatencySchedule, tiles_of, violation

BLOCKS = (16, 32, 64, 128)
BLOCKS_K = (32, 64, 128)
CLUSTERS = (1, 2, 4, 8, 16)
WARPS_K = (1, 2, 4, 8)
WARP_TILES = ((16, 16), (16, 32), (32, 16), (32, 32), (32, 64), (64, 32))
MAX_WARPS = 16
MAX_GROUPS = 8  # each group is unrolled
MAX_WAVES = 4  # of CTAs that are resident together; only tiny tiles with all of K come in more than one
MIN_BUSY = 0.1  # minimum share of the SMs that a schedule should keep busy, where K allows it


def enumerate_schedules(task: GemmTask, chip: Chip) -> Iterator[LatencySchedule]:
    """Tiles and parts of K that fit the chip at once, then warps, groups of copies, and how they are loaded."""
    for base in _cuts(task, chip):
        yield from (one for one in _copies(base) if violation(one, task) is None)


def _cuts(task: GemmTask, chip: Chip) -> Iterator[LatencySchedule]:
    """Tile, clusters, warps and the smallest number of groups that cover K."""
    for block_m, block_n, cluster in product(BLOCKS, BLOCKS, CLUSTERS):
        if not (_fits(block_m, task.m) and _fits(block_n, task.n)):
            continue
        ctas = -(-task.m // block_m) * -(-task.n // block_n) * cluster
        if ctas > (MAX_WAVES if cluster == 1 else 1) * cluster_sms(chip, cluster):
            continue
        tiles = {(block_m // m, block_n // n) for m, n in WARP_TILES if block_m % m == 0 and block_n % n == 0}
        for (warps_m, warps_n), warps_k, block_k in product(sorted(tiles), WARPS_K, BLOCKS_K):
            groups = -(-task.k // (cluster * warps_k * block_k))
            covered = (cluster * warps_k - 1) * groups * block_k  # by all parts but the last one
            if warps_m * warps_n * warps_k > MAX_WARPS or groups > MAX_GROUPS or covered >= task.k:
                continue
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


def _fits(block: int, size: int) -> bool:
    """Whether less than half of a block is padding, or the block is the smallest."""
    return block == BLOCKS[0] or block < 2 * size


def _copies(base: LatencySchedule) -> Iterator[LatencySchedule]:
    for loads, exclusive in product(("cp_async", "tma"), (False, True) if base.cluster_k > 1 else (False,)):
        yield base.model_copy(update={"loads": loads, "exclusive": exclusive})


__all__ = ["enumerate_schedules", "tiles_of"]
