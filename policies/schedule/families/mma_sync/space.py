"""Enumerates the schedules of the `mma_sync` family worth trying for a task on a chip."""

from collections.abc import Iterator
from itertools import product

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import has_tma_rows
from cudal2_agent.policies.schedule.families.mma_sync.geometry import Geometry
from cudal2_agent.policies.schedule.families.mma_sync.schedule import Epilogue, MmaSyncSchedule, Reduction

BLOCKS_M = (16, 32, 64, 128, 256)
BLOCKS_N = (16, 32, 64, 96, 128, 192, 256)
BLOCKS_K = (32, 64, 128)
WARPS_K = (1, 2, 4)
STAGES = (1, 2, 3, 4, 6)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
GROUPS_M = (1, 4, 8)
WARP_TILES = ((16, 16), (16, 32), (32, 32), (32, 48), (32, 64), (64, 32), (64, 48), (64, 64))
MAX_TILE = 128 * 256
MAX_WARPS = 8
MAX_SPLIT_CTAS_PER_SM = 2  # with more CTAs per SM than this, splits only add partial sums
MIN_SPREAD = 4  # splits; fewer are added about as fast by one CTA (the analytic prior expects 1 %)
MIN_BUSY = 0.2  # minimum share of the SMs that a split should keep busy
MAX_SMALL_CTAS_PER_SM = 4  # with more CTAs per SM than this, small tiles only read operands more often
UNROLLABLE_K_BLOCKS = 16  # with at most this many K blocks and a constant shape, the compiler unrolls the K loop
SMALL_TILE = 64 * 64  # smaller tiles read too much per product, and pay only where they keep more SMs busy
DIRECT_TILE = 64 * 64  # larger tiles always gain from wide stores where rows of D are aligned
# On sm_90a the families made for it were 10 to 60 % faster for longer K, and no slower than 4 % for shorter (31 shapes, H200).
MAX_K_BESIDE_WGMMA = 128


def enumerate_schedules(task: GemmTask, chip: Chip) -> Iterator[MmaSyncSchedule]:
    """Valid schedules that do not obviously waste the chip, with programmatic launch wherever the chip has it.

    On sm_90a only for what the other families cannot do or do no faster: rows that are not whole 16 bytes, and short K.
    """
    if task.arch is Arch.SM_90A and has_tma_rows(task) and task.k > MAX_K_BESIDE_WGMMA:
        return
    for block_m, block_n in product(BLOCKS_M, BLOCKS_N):
        if _fits(block_m, task.m) and _fits(block_n, task.n) and block_m * block_n <= MAX_TILE:
            for loop in _loops(block_m, block_n, task, chip):
                yield from _variants(loop, task, chip)


def _fits(block: int, size: int) -> bool:
    """Whether less than half of a block is padding, or the block is the smallest."""
    return block <= 16 or block < 2 * size


def _loops(block_m: int, block_n: int, task: GemmTask, chip: Chip) -> Iterator[MmaSyncSchedule]:
    """Warps, K blocks, splits and stages for one tile; how sums are reduced and stored is left open."""
    tiles = -(-task.m // block_m) * -(-task.n // block_n)
    if block_m * block_n < SMALL_TILE and tiles > MAX_SMALL_CTAS_PER_SM * chip.sms:
        return
    warps = sorted({(block_m // m, block_n // n) for m, n in WARP_TILES if block_m % m == 0 and block_n % n == 0})
    for (warps_m, warps_n), warps_k, block_k, split_k in product(warps, WARPS_K, _blocks_k(task), _splits(tiles, task, chip)):
        k_blocks = -(-task.k // (block_k * split_k))
        if warps_m * warps_n * warps_k > MAX_WARPS or block_k % (16 * warps_k) or (split_k - 1) * k_blocks * block_k >= task.k:
            continue
        for stages in STAGES:
            if stages <= k_blocks and (stages > 1 or k_blocks == 1):
                yield MmaSyncSchedule.model_construct(
                    family="mma_sync",
                    block_m=block_m,
                    block_n=block_n,
                    block_k=block_k,
                    warps_m=warps_m,
                    warps_n=warps_n,
                    warps_k=warps_k,
                    stages=stages,
                    split_k=split_k,
                    constant_shape=k_blocks <= UNROLLABLE_K_BLOCKS,
                    programmatic=LIMITS[task.arch].programmatic_launch,
                )


def _splits(tiles: int, task: GemmTask, chip: Chip) -> list[int]:
    """Splits that keep enough SMs busy, where K is long enough, and do not start too many CTAs."""
    max_ctas = MAX_SPLIT_CTAS_PER_SM * chip.sms
    possible = [split for split in SPLITS if split == 1 or (tiles * split <= max_ctas and split * BLOCKS_K[0] <= task.k)]
    return [split for split in possible if tiles * split >= MIN_BUSY * chip.sms] or possible


def _blocks_k(task: GemmTask) -> tuple[int, ...]:
    """K blocks of which at least half is no padding."""
    return tuple(block for block in BLOCKS_K if block < 2 * task.k) or BLOCKS_K[:1]


def _variants(loop: MmaSyncSchedule, task: GemmTask, chip: Chip) -> Iterator[MmaSyncSchedule]:
    """Valid reductions, epilogues, tile orders and register limits for one loop."""
    tiles = -(-task.m // loop.block_m) * -(-task.n // loop.block_n)
    groups = [group for group in GROUPS_M if group == 1 or (tiles > chip.sms and group * loop.block_m < task.m)]
    for reduction, spread in _reductions(loop.split_k, task):
        for epilogue in _epilogues(loop, reduction, task, spread=spread):
            for min_ctas in (-(-tiles * loop.split_k // chip.sms),) if spread else (1, 2):
                update = {"reduction": reduction, "spread_sum": spread, "epilogue": epilogue, "min_ctas": min_ctas}
                geometry = Geometry(MmaSyncSchedule.model_construct(**(loop.__dict__ | update)), task)
                if next(geometry.violations(), None) is None:
                    yield from (_with_group(geometry.schedule, group) for group in groups)
                if geometry.ctas_per_sm > min_ctas:
                    break  # more CTAs fit without a limit, so a limit would change nothing


def _with_group(schedule: MmaSyncSchedule, group_m: int) -> MmaSyncSchedule:
    return MmaSyncSchedule.model_construct(**(schedule.__dict__ | {"group_m": group_m}))


def _reductions(split_k: int, task: GemmTask) -> tuple[tuple[Reduction, bool], ...]:
    """Where partial sums are added, and whether the CTAs of a tile share that in the workspace: only without clusters."""
    if split_k == 1:
        return (("none", False),)
    if LIMITS[task.arch].max_cluster > 1:
        return (("workspace", False), ("cluster", False))
    return (("workspace", False), ("workspace", True)) if split_k >= MIN_SPREAD else (("workspace", False),)


def _epilogues(loop: MmaSyncSchedule, reduction: Reduction, task: GemmTask, *, spread: bool) -> tuple[Epilogue, ...]:
    if reduction == "cluster" or spread or task.n % 8:
        return ("direct",)
    return ("staged", "direct") if loop.block_m * loop.block_n <= DIRECT_TILE else ("staged",)
