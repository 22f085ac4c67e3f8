"""The `wgmma_tma` family (sm_90a): TMA loads, an mbarrier ring, one producer warp, warpgroups that multiply with wgmma.

The source is `wgmma_tma.cu`, generic in shape; a schedule sets the constants at its top and the launch plan.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from contract.candidate import Candidate, ScheduleValue
from contract.chip import Chip
from contract.task import Arch, GemmTask, Layout
from policies.schedule.families.protocol import Work, cluster_sms
from policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule, ceil_div, cluster_tiles, is_valid
from policies.schedule.families.wgmma_tma.space import enumerate_schedules
from policies.schedule.families.wgmma_tma.writer import write_candidate


class WgmmaTma:
    """The family: its space, its cost model inputs, its source."""

    name = "wgmma_tma"

    def supports(self, task: GemmTask) -> bool:
        """Rows of A, B and D must be multiples of 16 bytes for TMA."""
        return task.arch is Arch.SM_90A and task.n % 8 == 0 and task.k % 8 == 0

    def parse(self, values: dict[str, ScheduleValue]) -> WgmmaTmaSchedule:
        try:
            return WgmmaTmaSchedule.model_validate(values)
        except ValidationError as exc:
            raise ValueError(f"not a {self.name} schedule: {exc.errors(include_url=False)[0]['msg']}") from exc

    def space(self, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
        if not self.supports(task):
            return
        yield from enumerate_schedules(task, chip)

    def work(self, schedule: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Work:
        s = schedule
        tiles = cluster_tiles(s, task)
        ctas = tiles * s.cluster * s.splits
        resident = s.ctas_per_sm * cluster_sms(chip, s.cluster)
        k_blocks = ceil_div(ceil_div(task.k, s.block_k), s.splits * s.cluster_k)
        rows_a = s.block_m / s.cluster_n * _lines_a_row(task.k)
        rows_b = s.block_n / s.cluster_m * _lines_a_row(task.n if task.layout is Layout.NN else task.k)
        per_block = 2 * s.block_k * (rows_a + rows_b)
        partial = s.block_m * s.block_n * 4
        return Work(
            tile=(s.block_m, s.block_n, s.block_k),
            stages=s.stages,
            ctas=min(ctas, resident) if s.persistent else ctas,
            ctas_per_sm=s.ctas_per_sm,
            cluster=s.cluster,
            k_blocks=k_blocks,
            loaded_bytes=int(ctas * k_blocks * per_block),
            reduced_bytes=2 * ctas * partial // s.cluster_k if s.splits > 1 else 0,
            launches=1,
            persistent=s.persistent,
            programmatic=s.programmatic,
            mma_efficiency=_mma_efficiency(s),
            lines=_lines(s, task),
            alternating=s.pingpong,
        )

    def write(self, schedule: WgmmaTmaSchedule, task: GemmTask) -> Candidate:
        """Raises: ValueError for a schedule that is not valid for the task."""
        if not self.supports(task) or not is_valid(schedule, task):
            raise ValueError(f"{schedule.values()} is not valid for {task.shape}")
        return write_candidate(schedule, task)


def _lines(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Rows of shared memory that arrive for a K block, or lines of L2 that this CTA asks for, whichever are more."""
    panels = s.block_k // 64
    rows_a = s.block_m * panels
    rows_b = s.block_n // s.columns * s.block_k if task.layout is Layout.NN else s.block_n * panels
    columns_b = task.n if task.layout is Layout.NN else task.k
    asked = rows_a // s.cluster_n * _lines_a_row(task.k) + rows_b // s.cluster_m * _lines_a_row(columns_b)
    return max(rows_a + rows_b, asked)


def _lines_a_row(columns: int) -> int:
    """L2 lines behind each 128-byte row of a box: two where rows of the operand do not start on a line.

    Measured: 1000x1000x1000 takes 11.4 us without multicast and 8.2 us with.
    """
    return 1 if columns * 2 % 128 == 0 else 2


def _mma_efficiency(s: WgmmaTmaSchedule) -> float:
    """Share of the tensor rate that shared memory can feed, at 128 bytes a cycle.

    An m64nNk16 reads 2 KiB of A and 32·N bytes of B for N/2 cycles of math; meanwhile TMA writes the operands of later
    steps, of which about half is hidden. One warpgroup with one instruction in flight cannot hide its own waits.
    """
    cycles_math = s.block_n / 2
    cycles_read = (2048 + 32 * s.block_n) / 128
    cycles_write = 32 * (s.block_m + s.block_n) / 128 / (s.block_m // 64) / 2
    in_flight = s.consumers * s.atoms * s.ctas_per_sm
    return min(1.0, cycles_math / (cycles_read + cycles_write)) * (1.0 if in_flight > 1 else 0.85)
