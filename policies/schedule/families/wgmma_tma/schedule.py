"""One schedule of the `wgmma_tma` family, and what makes it valid for a task."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Schedule, cluster_sms, has_tma_rows

OVERHEAD_REGISTERS = 48  # addresses, descriptors and loop state, beside the accumulators
SELF_FED_REGISTERS = 40  # the same of consumers that load: what three with 128 accumulators have left
INSTRUCTION_OVERHEAD = 24  # ptxas rejects a wgmma whose registers nearly fill the number at launch (C7602)
MAX_ACCUMULATORS = 128  # 32-bit accumulator registers per thread
MAX_ALTERNATING = 176  # the same where two consumers alternate; 192 spill
# One byte more than half of an SM's shared memory, less what the system reserves for each CTA, in steps of 16.
EXCLUSIVE_SMEM_BYTES = LIMITS[Arch.SM_90A].smem_per_sm_bytes // 2 - 1024 + 16
WIDEST_OF_THREE = 208  # columns of a tile in f32 for which three consumers have the registers beside a producer
BOX_ROWS = range(24, 97)  # of a store box of a kernel with swap_ab, where the tile divides into such
WIDTHS = range(8, 257, 8)  # N of the wgmma instructions
MAX_SMS = 132  # of the chips that the family is for
MAX_WORKSPACE_BYTES = 256 * 1024**2
PACKED_COLUMNS = 64  # of which packed rows are multiples

Axis = Annotated[int, Field(ge=1)]
Eviction = Literal["normal", "first", "last"]  # from L2
Raster = Literal["m", "n", "snake_m", "snake_n"]


class WgmmaTmaSchedule(Schedule):
    """A tile has `consumers` × `atoms` × 64 rows and `block_n` columns. With `pingpong` it has `atoms` × 64 rows.

    `pingpong`: consumers alternate over tiles, so that one stores its tile while the other multiplies. `cluster_*`: CTAs
    that share operands (m, n) or a sum (k). `splits`: parts of K summed through the workspace. `group`: tile rows visited
    together. `store_boxes`: boxes in flight between a warp and its TMA stores, where a persistent CTA cannot use the
    pipeline's memory for them. `exclusive`: requests so much shared memory that no other CTA fits on the SM; otherwise the
    hardware packs the CTAs of a cluster onto few SMs.

    `raster`: `group` rows (m) or columns (n) of tiles are visited together; with snake every second group is visited
    backwards. `promotion`: bytes that a load of A or B fetches into L2 at least; 0 for those of the box alone. `evict_*`:
    which lines L2 gives up first or last; that of D needs `tma_store`.

    `push`: CTAs along K push their sums into the shared memory of those that add them. Otherwise they are pulled.
    `split_tail`: a persistent grid splits only the tiles of its last turn, where these are fewer than its clusters.
    `spread_sum`: every CTA that splits a tile adds a share of it; else the one that arrives last adds it alone. The CTAs
    wait for each other, so all of the grid run together.

    `whole_groups`: a row-major B lies in groups of 64 columns, of which the last one is wider than the tile. Rows of 128
    bytes are loaded faster than more and narrower ones.

    `turned`: the kernel computes columns of D as its rows: Bᵀ takes the place of A, and Aᵀ that of B. So `consumers`, `atoms`
    and `cluster_m` divide the columns of D, and `block_n` and `cluster_n` its rows.

    An operand whose rows are no multiples of 16 bytes is packed by a launch before the kernel, into the workspace. A D with
    such rows leaves through shared memory in words where `tma_store` is set, and else straight from registers.

    `paired_rows`: operands whose rows are odd multiples of 8 bytes are not packed. A tensor map with three dims reads pairs of
    rows, in which the one of odd number lies 4 columns to the right, and three warps beside the producer move it back.

    `constant_shape`: M, N and K are compile-time constants. `self_fed`: there is no producer; the first warp loads between its
    products. Three consumers then have registers for tiles of 256 columns.

    Of a gated task `block_n`, or with `turned` `atoms`, counts weights of both: half are rows of B and half the same rows of
    `up`. The tile of D is half as large.
    """

    family: Literal["wgmma_tma"] = "wgmma_tma"
    consumers: Axis
    atoms: Axis
    block_n: Axis
    block_k: Axis
    stages: Axis
    cluster_m: Axis = 1
    cluster_n: Axis = 1
    cluster_k: Axis = 1
    splits: Axis = 1
    group: Axis = 8
    persistent: bool = False
    pingpong: bool = False
    tma_store: bool = True
    store_boxes: Axis = 2
    ctas_per_sm: Axis = 1
    exclusive: bool = False
    programmatic: bool = True
    raster: Raster = "m"
    promotion: Literal[0, 64, 128, 256] = 256
    evict_a: Eviction = "normal"
    evict_b: Eviction = "normal"
    evict_d: Eviction = "normal"
    push: bool = False
    split_tail: bool = False
    spread_sum: bool = False
    whole_groups: bool = False
    turned: bool = False
    constant_shape: bool = False
    self_fed: bool = False
    paired_rows: bool = False

    @property
    def block_m(self) -> int:
        return 64 * self.atoms * (1 if self.pingpong else self.consumers)

    @property
    def threads(self) -> int:
        """Threads of the consumers and the producer: a warp, or a warpgroup where it hands over registers or has helpers."""
        return 128 * self.consumers + (0 if self.self_fed else 128 if self.hands_over or self.paired_rows else 32)

    @property
    def hands_over(self) -> bool:
        """Whether the producer is a warpgroup that hands its registers to the consumers."""
        return (self.consumers > 1 or self.ctas_per_sm > 1) and not self.self_fed

    @property
    def launch_registers(self) -> int:
        """Registers of a thread at launch."""
        return min(255, 65536 // (self.threads * self.ctas_per_sm) // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Maximum registers of a consumer thread: an even share, or what the producer leaves after it gives up its own."""
        if not self.hands_over:
            return self.launch_registers if self.self_fed else 255
        left = self.threads * self.launch_registers - 128 * self.producer_registers
        return min(255, left // (128 * self.consumers) // 8 * 8)

    @property
    def producer_registers(self) -> int:
        """Registers that a producer keeps where it hands the others over; all but the plainest need more."""
        plain = self.raster == "m" and not self.hinted and self.evict_d == "normal" and not self.push and not self.split_tail
        return 40 if plain and not self.paired_rows else 56

    @property
    def hinted(self) -> bool:
        """Whether loads carry a cache policy."""
        return self.evict_a != "normal" or self.evict_b != "normal"

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def drains(self) -> bool:
        """Whether the producer waits until every stage is free before its CTA ends.

        Peers that share operands arrive on the CTA's barriers. Elsewhere a releasing barrier of the cluster follows them.
        """
        return self.cluster_m * self.cluster_n > 1 and (self.receives_apart if self.push else self.cluster_k == 1)

    @property
    def parts_of_whole(self) -> int:
        """Parts of K into which every tile is split."""
        return self.cluster_k * (1 if self.split_tail else self.splits)

    @property
    def stage_bytes(self) -> int:
        return 2 * self.block_k * (self.block_m + self.stored_n) + self.rests_bytes

    @property
    def rests_bytes(self) -> int:
        """Room in a stage for what its rows of odd number have behind the tiles: 16 bytes of each, whatever the layout."""
        rows = max(self.block_m, self.block_k) + max(self.block_n, self.block_k)
        return ceil_div(8 * rows, 1024) * 1024 if self.paired_rows else 0

    @property
    def barriers_bytes(self) -> int:
        """Of the barriers of all stages: two each, and with `paired_rows` a third, in steps of 16."""
        return 16 * self.stages + (ceil_div(self.stages, 2) * 16 if self.paired_rows else 0)

    @property
    def box_columns(self) -> int:
        """Width of a store box, in elements.

        Boxes of 8 times an odd number of columns need no swizzle. A CTA with one tile has room for the widest, whose rows lie
        in the fewest lines; tiles of other widths have boxes of at most 128 bytes.
        """
        return _box_width(self.block_n, persistent=self.persistent)

    @property
    def padded(self) -> bool:
        """Whether a stage has columns of B beside those of the tile: to whole column groups, or to equal multicast slices."""
        return self.block_n % 16 != 0 or self.block_n % (8 * self.cluster_m) != 0

    @property
    def slice_n(self) -> int:
        """Columns of a column-major B that one CTA of a multicast loads."""
        return ceil_div(self.block_n, 8 * self.cluster_m) * 8

    @property
    def columns(self) -> int:
        """Width of an MN-major column group of B, in elements."""
        return 64 if self.whole_groups else _group_width(self._whole_n)

    @property
    def _whole_n(self) -> int:
        """The tile's columns up to whole groups of 16 and equal multicast slices."""
        step = 8 * math.lcm(2, self.cluster_m) if self.padded else 8
        return ceil_div(self.block_n, step) * step

    @property
    def column_groups(self) -> int:
        """Column groups of B in a stage."""
        return ceil_div(self._whole_n, self.columns)

    @property
    def stored_n(self) -> int:
        """Columns of B in a stage."""
        return self.column_groups * self.columns

    @property
    def slices_groups_of_a(self) -> bool:
        """Whether multicast slices a transposed A by groups of 64 rows of the tile; else by K."""
        return self.block_m // 64 % self.cluster_n == 0

    @property
    def box_rows(self) -> int:
        """Rows of D in a store box of a kernel with swap_ab: an even share of the tile's, in whole groups of 8.

        From 24 to 96, where the tile has such a share or fewer rows; else more.
        """
        shares = [rows for rows in range(self.block_n, 0, -8) if self.block_n % rows == 0]
        return next(
            (rows for rows in shares if rows in BOX_ROWS), min(rows for rows in shares if rows >= min(self.block_n, 24))
        )

    @property
    def box_bytes(self) -> int:
        """Bytes of a store box: 16 rows of one warp, or with swap_ab 64 columns of a warpgroup."""
        return 128 * self.box_rows if self.turned else 16 * 2 * self.box_columns

    @property
    def boxes_bytes(self) -> int:
        """Bytes of the store boxes of a warpgroup, one of each warp."""
        return self.box_bytes if self.turned else 4 * self.box_bytes

    @property
    def needed_smem_bytes(self) -> int:
        """Shared memory that the kernel uses: ring, store buffers, barriers, the split flag, and slack to align to 1024."""
        return self._smem_without_sums + (self.received_bytes if self.receives_apart else 0)

    @property
    def _smem_without_sums(self) -> int:
        store = self.consumers * self.store_boxes * self.boxes_bytes if self.tma_store and self.persistent else 0
        return self.stages * self.stage_bytes + store + self.barriers_bytes + 16 + 1024

    @property
    def units(self) -> int:
        """What a warp pushes in all, in units of 8 columns of its 16 rows."""
        return self.atoms * self.block_n // 8

    @property
    def source_bytes(self) -> int:
        """Room for the sums that a CTA gets from one CTA along K: a share of the units of every warp, 512 bytes each."""
        return 4 * self.consumers * ceil_div(self.units, self.cluster_k) * 512

    @property
    def received_bytes(self) -> int:
        """Sums that are pushed to a CTA."""
        return self.cluster_k * self.source_bytes

    @property
    def receives_apart(self) -> bool:
        """Whether sums arrive in memory of their own, and else where the pipeline was."""
        limits = LIMITS[Arch.SM_90A]
        room = min(limits.max_smem_per_block_bytes, limits.smem_per_sm_bytes // self.ctas_per_sm - 1024)
        return self.push and self._smem_without_sums + self.received_bytes <= room


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _group_width(columns: int) -> int:
    """The widest rows that a swizzle knows, in elements, that divide a multiple of 16 columns."""
    return next(width for width in (64, 32, 16) if columns % width == 0)


def _box_width(columns: int, *, persistent: bool) -> int:
    """Width of the store boxes of so many columns of a tile."""
    if columns % 16:
        return next((width for width in (56, 40, 24) if persistent and columns % width == 0), columns)
    return _group_width(columns)


class KernelView(NamedTuple):
    """A task as the kernel sees it: rows and columns of what it multiplies, and its two operands as they are stored.

    Of a gated task B and `up` count as one operand, so that it multiplies twice as many columns as D has.

    `row_operand`: whose rows the consumers divide. `column_major_a`: it is stored K × rows. `row_major_b`: the other one is
    stored K × columns.
    """

    rows: int
    columns: int
    row_operand: Literal["A", "B"]
    column_operand: Literal["A", "B"]
    column_major_a: bool
    row_major_b: bool


def view_of(schedule: WgmmaTmaSchedule, task: GemmTask) -> KernelView:
    layout, weights = task.layout, task.products * task.n
    if schedule.turned:
        return KernelView(weights, task.m, "B", "A", not layout.transposes_b, layout.transposes_a)
    return KernelView(task.m, weights, "A", "B", layout.transposes_a, not layout.transposes_b)


def tile_of_d(schedule: WgmmaTmaSchedule, task: GemmTask) -> tuple[int, int]:
    """Rows and columns of D, or with swap_ab of its transpose, that come out of a tile."""
    rows, columns = schedule.block_m, schedule.block_n
    return (rows // task.products, columns) if schedule.turned else (rows, columns // task.products)


def store_columns(schedule: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Width of a store box of an upright kernel: `box_columns` of the tile of D."""
    return _box_width(tile_of_d(schedule, task)[1], persistent=schedule.persistent)


def smem_bytes(schedule: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Dynamic shared memory of the kernel. The store boxes of a gated task have the width of its tile of D."""
    needed = schedule.needed_smem_bytes
    if task.gated and schedule.tma_store and schedule.persistent and not schedule.turned:
        boxes = 4 * schedule.consumers * schedule.store_boxes
        needed += boxes * 16 * 2 * (store_columns(schedule, task) - schedule.box_columns)
    return max(needed, EXCLUSIVE_SMEM_BYTES if schedule.exclusive else 0)


def is_valid(schedule: WgmmaTmaSchedule, task: GemmTask) -> bool:
    """Whether the kernel's static assertions, the chip and the task allow a schedule."""
    return next(violations(schedule, task), None) is None


def violations(s: WgmmaTmaSchedule, task: GemmTask) -> Iterator[str]:
    """Every reason why a schedule cannot run for the task, by the axes concerned."""
    if s.block_n not in WIDTHS:
        yield f"block_n must be a multiple of 8 to {WIDTHS[-1]}"
        return
    yield from _limit_violations(s, task)
    yield from _cluster_violations(s, task)
    yield from _split_violations(s, task)
    yield from _store_violations(s, task)
    if task.gated:
        yield from _gated_violations(s)
    if s.paired_rows and not can_pair_rows(task):
        yield "paired_rows needs unaligned operands, each of an even number of rows that are odd multiples of 8 bytes"
    if s.paired_rows and (s.self_fed or s.hinted):
        yield "paired_rows needs self_fed=false, evict_a=normal and evict_b=normal"


def _limit_violations(s: WgmmaTmaSchedule, task: GemmTask) -> Iterator[str]:
    """Of shared memory and registers."""
    limits = LIMITS[Arch.SM_90A]
    room = min(limits.max_smem_per_block_bytes, limits.smem_per_sm_bytes // s.ctas_per_sm - 1024)
    if (taken := smem_bytes(s, task)) > room:
        yield f"stages, block_k and the tile take {taken} bytes of shared memory; ctas_per_sm leaves {room}"
    if s.exclusive and s.ctas_per_sm > 1:
        yield "exclusive needs ctas_per_sm=1"
    instruction = s.block_n // (2 if task.accumulate is AccumulatorType.F32 else 4)
    registers, most = s.atoms * instruction, MAX_ALTERNATING if s.pingpong else MAX_ACCUMULATORS
    if registers > most:
        yield f"atoms and block_n take {registers} accumulator registers of {most}"
    elif (needed := registers + (SELF_FED_REGISTERS if s.self_fed else OVERHEAD_REGISTERS)) > s.consumer_registers:
        yield f"consumers, atoms and block_n need {needed} registers per thread of {s.consumer_registers}"
    if instruction + INSTRUCTION_OVERHEAD > s.launch_registers:
        yield f"block_n leaves the instruction too few of {s.launch_registers} registers at launch; fewer consumers give more"


def _cluster_violations(s: WgmmaTmaSchedule, task: GemmTask) -> Iterator[str]:
    """Of operands that the CTAs of a cluster share, and of the loads of a tile."""
    view, limits = view_of(s, task), LIMITS[Arch.SM_90A]
    if s.cluster > limits.max_cluster:
        yield f"cluster_m, cluster_n and cluster_k make {s.cluster} CTAs of at most {limits.max_cluster}"
    if s.block_m % (8 * s.cluster_n):
        yield f"cluster_n must divide the {s.block_m} rows of a tile into multiples of 8"
    if s.slice_n * (s.cluster_m - 1) >= s.block_n:
        yield "cluster_m must divide block_n into slices that are multiples of 8, the last of them not empty"
    if s.column_groups % s.cluster_m and s.block_k % (8 * s.cluster_m):
        yield f"cluster_m must divide the {s.column_groups} column groups of block_n, or block_k into multiples of 8"
    if view.column_major_a and not s.slices_groups_of_a and s.block_k % (8 * s.cluster_n):
        yield "cluster_n must divide the groups of 64 rows of a tile, or block_k into multiples of 8"
    if s.block_m // s.cluster_n > 256:
        yield "consumers, atoms and cluster_n: a load has at most 256 rows of a tile"
    if s.whole_groups and not (s.block_n > 64 and s.block_n % 64 and view.row_major_b):
        yield "whole_groups needs a row-major B, and block_n above 64 that is not a multiple of 64"


def _split_violations(s: WgmmaTmaSchedule, task: GemmTask) -> Iterator[str]:
    """Of parts of K and how they are summed. A consumer releases a stage once the next one is under way."""
    k_blocks = ceil_div(task.k, s.block_k)
    if s.splits * s.cluster_k > k_blocks:
        yield f"splits and cluster_k make {s.splits * s.cluster_k} parts of the {k_blocks} blocks of K"
    if s.stages == 1 and k_blocks > s.parts_of_whole:
        yield "several blocks of K need two stages"
    if s.split_tail and not (s.persistent and s.splits > 1):
        yield "split_tail needs persistent and splits above 1"
    if s.spread_sum and not _can_spread(s, task):
        yield "spread_sum needs splits above 1, no persistent, no tma_store, push with cluster_k, and all CTAs in one wave"
    if s.push and s.cluster_k == 1:
        yield "push needs cluster_k above 1"
    if s.cluster_k > 1 and s.tma_store:
        yield "cluster_k above 1 needs tma_store=false"
    if s.cluster_k > 1 and not _cluster_sum_fits(s):
        yield "cluster_k needs persistent=false, and sums that fit the pipeline's memory: more stages or a smaller tile"
    if workspace_bytes(s, task) > MAX_WORKSPACE_BYTES:
        yield f"splits and packed operands take a workspace of more than {MAX_WORKSPACE_BYTES} bytes"


def _store_violations(s: WgmmaTmaSchedule, task: GemmTask) -> Iterator[str]:
    """Of the epilogue, and of consumers that alternate."""
    if not s.persistent and s.tma_store and s.block_m * s.block_n * 2 > s.stages * s.stage_bytes:
        yield "tma_store without persistent needs a pipeline that holds the tile of D: more stages"
    if s.evict_d != "normal" and not (s.tma_store and has_tma_rows(task, "D")):
        yield "evict_d needs tma_store, and rows of D that are multiples of 16 bytes"
    if s.turned and (s.whole_groups or not (s.tma_store or s.spread_sum or s.push)):
        yield "turned needs tma_store, spread_sum, or push with cluster_k, and no whole_groups"
    if s.pingpong and not (s.persistent and s.splits == 1 and s.consumers == 2):
        yield "pingpong needs persistent, splits=1 and consumers=2"
    if s.self_fed and (s.persistent or s.splits > 1 or s.cluster_k > 1 or s.stages < 4):
        yield "self_fed needs persistent=false, splits=1, cluster_k=1 and four stages"
    if s.self_fed and (s.padded or s.consumers != 3 or s.atoms * s.block_n <= WIDEST_OF_THREE):
        yield f"self_fed is for three consumers and tiles of more than {WIDEST_OF_THREE} columns, a multiple of 16"


def _gated_violations(s: WgmmaTmaSchedule) -> Iterator[str]:
    """Of a tile that is half rows of B and half rows of `up`, whose sums must meet in one thread."""
    if s.splits * s.cluster_k > 1 or s.self_fed:
        yield "a gated task needs splits=1, cluster_k=1 and self_fed=false"
    if s.turned and s.atoms != 2:
        yield "a gated task needs atoms=2 with turned"
    if s.turned and s.block_m % (16 * s.cluster_n):
        yield f"a gated task needs cluster_n to divide half of the {s.block_m} rows of a tile into multiples of 8"
    if not s.turned and s.block_n % (16 * s.cluster_m):
        yield "a gated task needs cluster_m to divide half of block_n into multiples of 8"


def _can_spread(s: WgmmaTmaSchedule, task: GemmTask) -> bool:
    """Whether a grid splits its tiles and runs all at once, and its sums are stored straight from registers."""
    if s.cluster > LIMITS[Arch.SM_90A].max_cluster:
        return False
    ctas = cluster_tiles(s, task) * s.cluster * s.splits
    together = cluster_sms(REFERENCE_CHIPS[Arch.SM_90A], s.cluster) * s.ctas_per_sm
    plain = s.splits > 1 and not s.persistent and not s.tma_store and (s.push or s.cluster_k == 1)
    return plain and ctas <= together


def _cluster_sum_fits(s: WgmmaTmaSchedule) -> bool:
    ring = s.stages * s.stage_bytes
    if s.push:
        return not s.persistent and s.cluster_k <= s.units and (s.receives_apart or s.received_bytes <= ring)
    return not s.persistent and s.block_m * (s.block_n + 8) * 4 <= ring and s.block_m % s.cluster_k == 0


def accumulator_widths(task: GemmTask) -> tuple[int, ...]:
    """Widths N of the wgmma instructions that were always tried for the task's accumulator."""
    wide = (32, 64, 96, 128, 160, 192, 224, 256)
    return (16, *wide) if task.accumulate is AccumulatorType.F16 else (16, *wide, 48, 80, 112, 144, 176)


def cluster_tiles(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    view = view_of(s, task)
    return ceil_div(view.rows, s.cluster_m * s.block_m) * ceil_div(view.columns, s.cluster_n * s.block_n)


def counter_bytes(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    return ceil_div(_slots(s, task) * counter_pitch(s), 256) * 256


def counter_pitch(s: WgmmaTmaSchedule) -> int:
    """Bytes from one arrival counter to the next; counters that are waited for have a line each."""
    return 128 if s.spread_sum else 4


def _slots(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Pairs of a tile that is split and a CTA of its cluster; in the tail of a grid at most one for each CTA."""
    slots = cluster_tiles(s, task) * s.cluster
    return min(slots, MAX_SMS * s.ctas_per_sm // s.cluster * s.cluster) if s.split_tail else slots


def workspace_bytes(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Packed operands, and with split-K counters and one f32 slot per tile and split."""
    split = counter_bytes(s, task) + _slots(s, task) * s.splits * slot_bytes(s) if s.splits > 1 else 0
    return split + packed_bytes(s, task)


def unaligned_operands(task: GemmTask) -> tuple[Literal["A", "B"], ...]:
    """Those whose rows TMA cannot read one by one where they are."""
    return tuple(name for name in ("A", "B") if not has_tma_rows(task, name))


def can_pair_rows(task: GemmTask) -> bool:
    """Whether TMA can read every unaligned operand as pairs of rows, and there is one.

    Two rows of 8 bytes more than a multiple of 16 are a multiple of 16. From one row to 8 bytes before the next is one too, and
    must not be 0. All pairs are whole.
    """
    shapes = [operand_shape(task, name) for name in unaligned_operands(task)]
    return bool(shapes) and all(rows % 2 == 0 and columns % 8 == 4 and columns > 4 for rows, columns in shapes)


def packed_operands(s: WgmmaTmaSchedule, task: GemmTask) -> tuple[Literal["A", "B"], ...]:
    """Those that a launch copies before the kernel."""
    return () if s.paired_rows else unaligned_operands(task)


def paired_operands(s: WgmmaTmaSchedule, task: GemmTask) -> tuple[Literal["A", "B"], ...]:
    """Those that the kernel reads as pairs of rows."""
    return unaligned_operands(task) if s.paired_rows else ()


def packed_bytes(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Packed rows begin at multiples of 128 bytes."""
    shapes = (operand_shape(task, name) for name in packed_operands(s, task))
    return sum(2 * rows * ceil_div(columns, PACKED_COLUMNS) * PACKED_COLUMNS for rows, columns in shapes)


def slot_bytes(s: WgmmaTmaSchedule) -> int:
    """Partial sums that one CTA writes for one split."""
    return s.source_bytes if s.push else s.block_m * s.block_n * 4 // s.cluster_k
