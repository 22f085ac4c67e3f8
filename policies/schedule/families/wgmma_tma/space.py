"""The schedules of the `wgmma_tma` family worth trying for a task on a chip."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.contract.reward.roofline import memory_us, roofline_us
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import (
    EXCLUSIVE_SMEM_BYTES,
    MAX_ACCUMULATORS,
    MAX_ALTERNATING,
    WIDEST_OF_THREE,
    WIDTHS,
    WgmmaTmaSchedule,
    accumulator_widths,
    can_pair_rows,
    ceil_div,
    cluster_tiles,
    is_valid,
    smem_bytes,
    store_columns,
    view_of,
)

LARGE_US = 30.0  # roofline of tasks that may be faster without programmatic launch; smaller ones never were
FEW_ROWS = 96  # of D, up to which tiles of fewer rows than an instruction has are tried by swap_ab
FULL = 0.9  # of the CTAs of a wave, from which on kernels with swap_ab split K where D has more rows
PAYS = 0.97  # of the work of tiles that are always tried, from which on others are tried too
MAX_BOXES_BYTES = 96 * 128  # of the store boxes of a warpgroup of which two are kept
WIDEST_BOX = 64  # columns of a gated task's store box, of which two are kept where warpgroups alternate
AHEAD_STAGES = 6  # with which persistent CTAs of short K were fastest
CACHED_US = 4.0  # time to move the operands, from which on it may matter in which order they are read and what L2 keeps


def enumerate_schedules(task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """Tile, then pipeline, then clusters and splits, then the launch; each step leaves out what cannot be faster."""
    for shape in _tile_shapes(task, chip):
        for pipeline in _pipelines(shape, task, chip):
            for cut in _cuts(pipeline, task, chip):
                yield from (s for s in _launches(cut, task, chip) if is_valid(s, task))


class TileShape(NamedTuple):
    consumers: int
    atoms: int
    block_n: int
    pingpong: bool
    turned: bool
    self_fed: bool


def _tile_shapes(task: GemmTask, chip: Chip) -> Iterator[TileShape]:
    """Those whose accumulators fit, at most twice as large as the task in each dimension.

    Kernels with swap_ab are tried where D has few rows, with tiles of two consumers that are 96 rows or more, and where the
    same tile turned needs less of the chip than upright. Three consumers load for themselves where they have too few registers
    beside a producer.
    """
    packed, weights = 2 if task.accumulate is AccumulatorType.F32 else 4, task.products * task.n
    plain = [(consumers, atoms, False) for consumers, atoms in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))]
    for consumers, atoms, pingpong in (*plain, (2, 1, True), (2, 2, True)):
        rows = 64 * atoms * (1 if pingpong else consumers)
        for turned in (False, True):
            if task.gated and turned and atoms != 2:
                continue
            m, n = (weights, task.m) if turned else (task.m, weights)
            for block_n in _widths(task, chip, rows, m, n):
                fits = atoms * block_n // packed <= (MAX_ALTERNATING if pingpong else MAX_ACCUMULATORS)
                worth = not turned or task.m < 64 or _holds_few_rows(block_n, task) or (consumers == 2 and block_n >= 96)
                worth = worth or (block_n >= 64 and _pays(_turns(chip, rows, block_n, m, n), _turns(chip, rows, block_n, n, m)))
                if fits and worth and rows < 2 * max(m, 64) and block_n < 2 * max(n, 16):
                    self_fed = consumers == 3 and packed == 2 and block_n > WIDEST_OF_THREE
                    yield TileShape(consumers, atoms, block_n, pingpong, turned, self_fed)


def _widths(task: GemmTask, chip: Chip, rows: int, m: int, n: int) -> list[int]:
    """Widths that are always tried, and others that waste fewer columns or fill turns better than the two nearest of these."""
    always = sorted(accumulator_widths(task))

    def pays(width: int) -> bool:
        near = {max((x for x in always if x < width), default=width), min(x for x in always if x >= width)} - {width}
        wasted = all(_pays(ceil_div(n, width) * width, ceil_div(n, other) * other) for other in near)
        return wasted or (width > 16 and fuller(width, near))

    def fuller(width: int, near: set[int]) -> bool:
        return all(_pays(_turns(chip, rows, width, m, n), _turns(chip, rows, other, m, n)) for other in near)

    return sorted({*always, *(width for width in WIDTHS if width not in always and pays(width))})


def _turns(chip: Chip, rows: int, width: int, m: int, n: int) -> int:
    """Columns that an SM computes in all, where each has one tile at a time."""
    return ceil_div(ceil_div(m, rows) * ceil_div(n, width), chip.sms) * width


def _pays(cost: int, other: int) -> bool:
    return cost <= PAYS * other


def _pipelines(shape: TileShape, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """K block 64, or 128 where at least four fit; the maximum stages for one or two CTAs per SM, and half as many.

    Two CTAs share an SM only where one warpgroup multiplies. Only narrow tiles and sums over a cluster are stored straight
    from registers. More stages than K blocks load the next tile of a persistent CTA ahead; only tiles of 128 columns and more
    were measured so. Where TMA can read pairs of rows, both they and packed rows are tried.
    """
    consumers, atoms, block_n, pingpong, turned, self_fed = shape
    narrower = block_n > 64 and ceil_div(block_n, 16) % 4 != 0 and not task.layout.transposes_b and not turned
    groups = (False, True) if narrower else (False,)
    shared, stores = (
        (1, 2) if consumers == 1 else (1,),
        (True,) if turned and not _holds_few_rows(block_n, task) else (True, False),
    )
    pairs = (False, True) if can_pair_rows(task) and not self_fed else (False,)
    for block_k, ctas_per_sm, tma_store, whole_groups, paired_rows in product((64, 128), shared, stores, groups, pairs):
        base = WgmmaTmaSchedule(
            consumers=consumers,
            atoms=atoms,
            block_n=block_n,
            block_k=block_k,
            stages=1,
            ctas_per_sm=ctas_per_sm,
            tma_store=tma_store,
            persistent=pingpong,
            pingpong=pingpong,
            whole_groups=whole_groups,
            turned=turned,
            self_fed=self_fed,
            paired_rows=paired_rows,
            promotion=0 if memory_us(task, chip) > CACHED_US else 256,
            constant_shape=True,  # 1.2 % faster in the mean of fifteen winners on an H200, slower for none
        )
        wide = task.gated and pingpong and not turned and store_columns(base, task) > WIDEST_BOX
        if (turned and pingpong) or wide or base.boxes_bytes > MAX_BOXES_BYTES:
            base = base.model_copy(update={"store_boxes": 1})
        limits = LIMITS[Arch.SM_90A]
        room = min(limits.max_smem_per_block_bytes, limits.smem_per_sm_bytes // ctas_per_sm - 1024)
        deepest = (room - smem_bytes(base, task)) // (base.stage_bytes + (24 if paired_rows else 16)) + 1
        needed = ceil_div(task.k, block_k)
        if block_k == 128 and min(deepest, needed) < 4 and deepest < needed:
            continue
        ahead = {min(deepest, AHEAD_STAGES)} if block_n >= 128 and needed < min(deepest, AHEAD_STAGES) else set()
        deepest = min(deepest, needed, 12)
        for stages in {deepest, max(deepest // 2, min(deepest, 3))} | ahead:
            if stages > 0:
                yield base.model_copy(update={"stages": stages})


def _cuts(base: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """Ways to share operands in a cluster, and to split K while all CTAs still run in one wave."""
    view = view_of(base, task)
    for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)):
        if cluster_m >= 2 * ceil_div(view.rows, base.block_m) or cluster_n >= 2 * ceil_div(view.columns, base.block_n):
            continue
        shared = base.model_copy(update={"cluster_m": cluster_m, "cluster_n": cluster_n})
        tiles = cluster_tiles(shared, task) * shared.cluster
        # Clusters of four leave SMs idle, and are faster only where one wave still suffices.
        if shared.cluster == 4 and tiles > cluster_sms(chip, 4) * base.ctas_per_sm:
            continue
        for cluster_k, splits in product((1, 2, 3, 4, 6, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)):
            size, parts = shared.cluster * cluster_k, cluster_k * splits
            if size > 16 or (cluster_k > 1 and base.tma_store) or (parts > 1 and (base.pingpong or task.gated)):
                continue
            if cluster_k == 1 and not base.tma_store and (base.turned or base.block_n > 64):
                continue
            together = cluster_sms(chip, size) * base.ctas_per_sm
            if parts > 1 and base.turned and not (_holds_few_rows(base.block_n, task) or tiles * parts >= FULL * together):
                continue
            one_wave = tiles * parts <= together
            if parts == 1 or (one_wave and parts <= ceil_div(task.k, base.block_k)):
                cut = shared.model_copy(update={"cluster_k": cluster_k, "splits": splits})
                pulls = base.block_n in (16, 32, 48, 64) and not base.turned
                for push in (False, True) if cluster_k > 1 and pulls else (cluster_k > 1,):
                    pushed = cut.model_copy(update={"push": push})
                    whole = pushed.model_copy(update={"exclusive": size > 1 and _would_be_packed(pushed)})
                    yield from _with_spread_sums(whole)
                    yield whole


def streamed(s: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> WgmmaTmaSchedule:
    """Of few rows, the schedule by whose hints L2 gives up first what one CTA, or one cluster, alone reads.

    On an H200 1 to 3 % faster in 18 of 18 pairs: 16 rows, weights of 117 to 262 MB.
    """
    if min(task.m, task.n) > FEW_ROWS or memory_us(task, chip) <= CACHED_US or s.paired_rows or s.hinted:
        return s
    once_a, once_b = _read_once(s, task)
    return s.model_copy(update={"evict_a": "first" if once_a else "normal", "evict_b": "first" if once_b else "normal"})


def _read_once(s: WgmmaTmaSchedule, task: GemmTask) -> tuple[bool, bool]:
    """Whether each element of the operand of rows, and of that of columns, is read by one cluster alone."""
    view = view_of(s, task)
    return view.columns <= s.cluster_n * s.block_n, view.rows <= s.cluster_m * s.block_m


def _holds_few_rows(block_n: int, task: GemmTask) -> bool:
    """Whether D has few rows, and one or two tiles of a kernel with swap_ab hold them."""
    return task.m <= FEW_ROWS and block_n - 16 < task.m <= 2 * block_n


def _with_spread_sums(cut: WgmmaTmaSchedule) -> Iterator[WgmmaTmaSchedule]:
    """The same where every CTA that splits a tile adds a share of it, stored straight from registers."""
    if cut.splits > 1 and (cut.push or (cut.cluster_k == 1 and cut.tma_store)):
        yield cut.model_copy(update={"spread_sum": True, "tma_store": False})


def _would_be_packed(cut: WgmmaTmaSchedule) -> bool:
    """Whether two CTAs that need an SM each would fit on one (measured at 128x128x16384: 10.0 us instead of 6.6)."""
    return cut.ctas_per_sm == 1 and cut.needed_smem_bytes < EXCLUSIVE_SMEM_BYTES


def _launches(cut: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """For more than one wave: persistent or not, and how many tile rows are visited together."""
    ahead = cut.stages > ceil_div(task.k, cut.block_k)
    if _waves(cut, task, chip) <= 1:
        if not (cut.pingpong or ahead):
            yield cut
            yield from _varied(cut, task, chip)
        return
    for persistent, group in product((True,) if cut.pingpong or ahead else (True, False), (4, 8, 16)):
        launched = cut.model_copy(update={"persistent": persistent, "group": group})
        yield launched
        if persistent and group == 8 and cut.cluster <= 2 and not cut.pingpong:
            yield from _tail_splits(launched, task, chip)
        if persistent and group == 8 and cut.cluster == 2:
            yield from _varied(launched, task, chip)


def _tail_splits(launched: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """For at most four waves: the tiles of the last one are split where that occupies the clusters which it leaves idle."""
    clusters = cluster_sms(chip, launched.cluster) // launched.cluster * launched.ctas_per_sm
    left = cluster_tiles(launched, task) % clusters
    splits = min(clusters // left, ceil_div(task.k, launched.block_k) // 4, 8) if left else 1
    if splits > 1 and _waves(launched, task, chip) < 4:
        yield launched.model_copy(update={"splits": splits, "split_tail": True})


def _waves(cut: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> float:
    """Tiles, before K is split, over the CTAs that are resident together."""
    return cluster_tiles(cut, task) * cut.cluster / (cluster_sms(chip, cut.cluster) * cut.ctas_per_sm)


def _varied(launched: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """The schedule with one change to its order, its launch or its caching.

    Only some schedules are varied: neighbours carry a change that pays over to the others.
    """
    if launched.block_k == 64 and launched.cluster * launched.splits <= 2 and launched.consumers == 2:
        yield from (launched.model_copy(update=change) for change in _changes(launched, task, chip))


def _changes(s: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[Mapping[str, str | int]]:
    waves, (once_a, once_b) = _waves(s, task, chip), _read_once(s, task)
    if roofline_us(task, chip) > LARGE_US:
        yield {"programmatic": False}
    if memory_us(task, chip) > CACHED_US:
        if waves > 1:
            yield from ({"raster": order} for order in ("n", "snake_m", "snake_n"))
        yield from ({"promotion": size} for size in (128, 256))
        yield {"evict_a": "first" if once_a else "last"}
        yield {"evict_b": "first" if once_b else "last"}
        if s.tma_store and waves > 1:
            yield {"evict_d": "first"}
