"""The `wgmma_tma` family as the schedule policy sees it: which tasks it supports, its schedules, their cost model inputs."""

from collections.abc import Iterator

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.policies.schedule.families.kernel_family import Family, KernelParts, Work, cluster_sms, has_tma_rows
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import (
    WgmmaTmaSchedule,
    accumulator_widths,
    ceil_div,
    cluster_tiles,
    packed_bytes,
    packed_operands,
    paired_operands,
    slot_bytes,
    store_columns,
    tile_of_d,
    view_of,
    violations,
)
from cudal2_agent.policies.schedule.families.wgmma_tma.space import enumerate_schedules, streamed
from cudal2_agent.policies.schedule.families.wgmma_tma.writer import constants, plan, sections

SECTOR_BYTES = 32  # of L2: what a load of 16 bytes takes
GATED = ", and for a gated task layout tn with N and K that are multiples of 8"


class WgmmaTma(Family[WgmmaTmaSchedule]):
    """TMA loads, an mbarrier ring, one producer warp, consumer warpgroups that multiply with wgmma (sm_90a)."""

    name = "wgmma_tma"
    schedule = WgmmaTmaSchedule

    def supports(self, task: GemmTask) -> bool:
        """Of gated tasks those whose weights lie along K, in rows that TMA reads."""
        return task.arch is Arch.SM_90A and not (task.gated and (task.layout is not Layout.TN or not has_tma_rows(task)))

    def space(self, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
        if not self.supports(task):
            return
        yield from enumerate_schedules(task, chip)

    def work(self, schedule: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Work:
        s = schedule
        tiles = cluster_tiles(s, task)
        ctas = tiles * s.cluster * s.splits
        resident = s.ctas_per_sm * cluster_sms(chip, s.cluster)
        grid = min(tiles * s.cluster, resident)
        split_ctas = tiles * s.cluster % grid * s.splits if s.split_tail else ctas
        k_blocks = ceil_div(ceil_div(task.k, s.block_k), s.splits * s.cluster_k)
        view = view_of(s, task)
        rows_a = s.block_m / s.cluster_n * _lines_per_row(s, task, view.row_operand)
        loaded_b = s.stored_n / s.cluster_m if view.row_major_b else s.slice_n
        rows_b = loaded_b * _lines_per_row(s, task, view.column_operand)
        per_block = 2 * s.block_k * (rows_a + rows_b) + SECTOR_BYTES * _rest_rows(s, task)
        return Work(
            tile=(s.block_n, s.block_m, s.block_k) if s.turned else (s.block_m, s.block_n, s.block_k),
            stages=s.stages,
            ctas=min(ctas, grid if s.split_tail else resident) if s.persistent else ctas,
            ctas_per_sm=s.ctas_per_sm,
            cluster=s.cluster,
            k_blocks=k_blocks,
            loaded_bytes=int(ctas * k_blocks * per_block),
            reduced_bytes=(2 * split_ctas * slot_bytes(s) if s.splits > 1 else 0) + 2 * packed_bytes(s, task),
            launches=2 if packed_operands(s, task) else 1,
            persistent=s.persistent,
            programmatic=s.programmatic,
            mma_efficiency=_mma_efficiency(s),
            lines=_lines(s, task),
            store_lines=_store_lines(s, task) if has_tma_rows(task, "D") else 0,
            alternating=s.pingpong,
            smem_read_bytes=_smem_read_bytes(s) + _shifted_bytes(s, task),
            spread_sums=s.spread_sum,
            scattered=not (s.tma_store or s.push or s.splits > 1),
            staged_bytes=2 * s.block_m * s.block_n // task.products if s.tma_store else 0,
        )

    def unmeasured(self, schedule: WgmmaTmaSchedule, task: GemmTask) -> bool:
        """The widths beside those that were always tried, swapped operands in parts of K, and pairs of rows."""
        in_parts = schedule.splits * schedule.cluster_k > 1
        return schedule.paired_rows or schedule.block_n not in accumulator_widths(task) or (schedule.turned and in_parts)

    def as_searched(self, schedule: WgmmaTmaSchedule) -> WgmmaTmaSchedule:
        """With its shape as constants."""
        return schedule.model_copy(update={"constant_shape": True})

    def improved(self, schedule: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> WgmmaTmaSchedule:
        """Of few rows, what a grid reads once leaves L2 first."""
        return streamed(schedule, task, chip)

    def violations(self, schedule: WgmmaTmaSchedule, task: GemmTask) -> Iterator[str]:
        if not self.supports(task):
            yield f"the family needs sm_90a{GATED if task.gated else ''}"
            return
        yield from violations(schedule, task)

    def summation(self, schedule: WgmmaTmaSchedule, task: GemmTask) -> str | None:
        """One warpgroup adds all of K for its elements, 16 at a time. Zeros behind the end of K add nothing.

        An H200 rounds instructions of all widths alike, with swapped operands too. A GPU test asserts it.
        """
        if schedule.splits > 1 or schedule.cluster_k > 1:
            return None
        return f"wgmma.m64k16 {task.accumulate} in order of K"

    def parts(self, schedule: WgmmaTmaSchedule, task: GemmTask) -> KernelParts:
        return KernelParts(plan(schedule, task), constants(schedule, task), sections(schedule, task))


def _lines(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Rows of shared memory written per K block, or lines of L2 that this CTA requests, whichever is larger."""
    panels, view = s.block_k // 64, view_of(s, task)
    rows_a = s.block_m // 64 * s.block_k  # 128-byte rows of A: as many of K panels as of groups along M
    rows_b = s.column_groups * s.block_k if view.row_major_b else s.block_n * panels
    requested_a = rows_a // s.cluster_n * _lines_per_row(s, task, view.row_operand)
    requested = requested_a + rows_b // s.cluster_m * _lines_per_row(s, task, view.column_operand)
    return max(rows_a + rows_b, requested) + _rest_rows(s, task)


def _store_lines(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    if not s.tma_store:
        return 0
    rows, columns = tile_of_d(s, task)
    if s.turned:
        return columns * rows // 64
    width = store_columns(s, task)
    return rows * (columns // width) * ceil_div(width, 64)


def _lines_per_row(s: WgmmaTmaSchedule, task: GemmTask, name: str) -> int:
    """L2 lines per 128-byte row of a box: two where rows of the operand do not start on a line.

    Measured: 1000x1000x1000 takes 11.4 us without multicast and 8.2 us with. Packed rows start on one.
    """
    _, columns = operand_shape(task, name)
    return 1 if columns * 2 % 128 == 0 or name in packed_operands(s, task) else 2


def _mma_efficiency(s: WgmmaTmaSchedule) -> float:
    """One warpgroup with one instruction in flight cannot hide its own latency."""
    return 1.0 if s.consumers * s.atoms * s.ctas_per_sm > 1 else 0.85


def _smem_read_bytes(s: WgmmaTmaSchedule) -> int:
    """Of a K block: an m64nNk16 reads 2 KiB of A and 32·N bytes of B."""
    return s.block_m // 64 * (s.block_k // 16) * (2048 + 32 * s.block_n)


def _rest_rows(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Rows of odd number of which a CTA loads 16 bytes behind the tile, per K block."""
    return sum(rows // 2 for rows, _ in _paired_tiles(s, task))


def _shifted_bytes(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Of shared memory per K block to move the rows of odd number: written once, and read twice in halves of each 16 bytes."""
    return sum(3 * (rows // 2) * columns * 2 for rows, columns in _paired_tiles(s, task))


def _paired_tiles(s: WgmmaTmaSchedule, task: GemmTask) -> list[tuple[int, int]]:
    """Rows and columns, as they are stored, that a stage has of each operand with paired rows."""
    view, paired = view_of(s, task), paired_operands(s, task)
    a = (s.block_k, s.block_m) if view.column_major_a else (s.block_m, s.block_k)
    b = (s.block_k, s.stored_n) if view.row_major_b else (s.block_n, s.block_k)
    return [tile for name, tile in ((view.row_operand, a), (view.column_operand, b)) if name in paired]
