"""What an `mma_sync` schedule means for a task: threads, shared memory, copy widths, guards, and whether it can run."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import max_workspace_bytes, operand_shape
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule

# Registers of a thread beside accumulators and fragments, taken from compiled kernels: usual, and minimum.
OVERHEAD_REGISTERS = 40
MIN_OVERHEAD_REGISTERS = 40
MAX_REGISTERS = 255
RESERVED_SMEM_BYTES = 1024  # per CTA, taken by the system on sm_80 and up
STAGING_PAD = 8  # floats between staged rows of the cluster reduction, to avoid bank conflicts
PORTABLE_CLUSTER = 8
COUNTER_LINE = 128  # bytes between arrival counters that are waited for


def copy_width(columns: int) -> int:
    """Elements per copy for rows of this many columns: 8, 4, 2, or 1 where only plain loads are aligned."""
    return next(width for width in (8, 4, 2, 1) if columns % width == 0)


@dataclass(frozen=True)
class Geometry:
    """Quantities derived from a schedule and a task. `violations` tells why a schedule cannot run."""

    schedule: MmaSyncSchedule
    task: GemmTask

    @cached_property
    def threads(self) -> int:
        return 32 * self.schedule.warps_m * self.schedule.warps_n * self.schedule.warps_k

    @cached_property
    def warp_tile(self) -> tuple[int, int]:
        return self.schedule.block_m // self.schedule.warps_m, self.schedule.block_n // self.schedule.warps_n

    @cached_property
    def tiles(self) -> int:
        return -(-self.task.m // self.schedule.block_m) * -(-self.task.n // self.schedule.block_n)

    @cached_property
    def ctas(self) -> int:
        return self.tiles * self.schedule.split_k

    @cached_property
    def k_blocks(self) -> int:
        """Maximum K blocks of a CTA."""
        return -(-self.task.k // (self.schedule.block_k * self.schedule.split_k))

    @cached_property
    def copied_a(self) -> int:
        """Elements of A per copy, of which its rows, as they are stored, are a multiple."""
        return copy_width(operand_shape(self.task, "A")[1])

    @cached_property
    def copied_b(self) -> int:
        return copy_width(operand_shape(self.task, "B")[1])

    @cached_property
    def a_guarded(self) -> bool:
        """Whether a tile of A can reach past the matrix."""
        return bool(self.task.m % self.schedule.block_m or self.task.k % self.schedule.block_k)

    @cached_property
    def b_guarded(self) -> bool:
        return bool(self.task.n % self.schedule.block_n or self.task.k % self.schedule.block_k)

    @cached_property
    def d_guarded(self) -> bool:
        return bool(self.task.m % self.schedule.block_m or self.task.n % self.schedule.block_n)

    @cached_property
    def d_alignment(self) -> int:
        """Elements that rows of D are a multiple of: 8 for 16-byte stores, 2 for pairs, else 1."""
        return next(width for width in (8, 2, 1) if self.task.n % width == 0)

    @cached_property
    def stage_bytes(self) -> int:
        s = self.schedule
        return 2 * s.block_k * (s.block_m + s.block_n)

    @cached_property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: that of the pipeline, or of the epilogue in its place where that is larger."""
        s = self.schedule
        tile = s.block_m * s.block_n
        slices = (s.warps_k - 1) * tile * 4
        staging = tile * 2 if s.epilogue == "staged" else 0
        if s.reduction == "cluster":
            staging = s.block_m * (s.block_n + STAGING_PAD) * 4
        return max(s.stages * self.stage_bytes, slices, staging)

    @cached_property
    def workspace_bytes(self) -> int:
        s = self.schedule
        return self.counter_bytes + 4 * s.block_m * s.block_n * self.ctas if s.reduction == "workspace" else 0

    @cached_property
    def counter_bytes(self) -> int:
        """One arrival counter per tile, rounded up so that the partial tiles behind them are aligned."""
        return self.tiles * COUNTER_LINE if self.schedule.spread_sum else -(-self.tiles // 4) * 16

    @cached_property
    def accumulator_registers(self) -> int:
        m, n = self.warp_tile
        packed = self.task.accumulate is AccumulatorType.F16 and self.schedule.reduction == "none"
        return m * n // (64 if packed else 32)

    @cached_property
    def fragment_registers(self) -> int:
        """Registers of a thread that hold the operands of one step."""
        m, n = self.warp_tile
        return m // 4 + n // 4

    @cached_property
    def registers(self) -> int:
        """Estimated registers of a thread: the usual number, limited by `min_ctas`."""
        usual = self.accumulator_registers + 2 * self.fragment_registers + OVERHEAD_REGISTERS
        return min(usual, self.register_limit)

    @cached_property
    def register_limit(self) -> int:
        """Maximum registers of a thread with `min_ctas` CTAs per SM; the hardware allocates them in units of eight."""
        share = LIMITS[self.task.arch].registers_per_sm // (self.threads * self.schedule.min_ctas)
        return min(share // 8 * 8, MAX_REGISTERS)

    @cached_property
    def spills(self) -> bool:
        """Whether one set of fragments already leaves too few registers for the rest."""
        return self.accumulator_registers + self.fragment_registers + MIN_OVERHEAD_REGISTERS > self.register_limit

    @cached_property
    def ctas_per_sm(self) -> int:
        """CTAs that an SM holds at once, limited by shared memory, registers, threads and CTA slots."""
        limits = LIMITS[self.task.arch]
        by_smem = limits.smem_per_sm_bytes // (self.smem_bytes + RESERVED_SMEM_BYTES)
        by_registers = limits.registers_per_sm // (self.threads * -(-self.registers // 8) * 8)
        return min(by_smem, by_registers, limits.max_threads_per_sm // self.threads, limits.max_blocks_per_sm)

    def violations(self) -> Iterator[str]:
        """Every reason why the schedule cannot run for the task."""
        if contradiction := self.schedule.contradiction():
            yield contradiction
            return
        yield from self._pipeline_violations()
        yield from self._reduction_violations()
        yield from self._limit_violations()

    def _pipeline_violations(self) -> Iterator[str]:
        s = self.schedule
        if s.stages == 1 and self.k_blocks > 1:
            yield "one stage holds one K block; the task has more"
        if s.stages > max(self.k_blocks, 1):
            yield "more stages than K blocks"
        if (s.split_k - 1) * self.k_blocks * s.block_k >= self.task.k:
            yield "a split would have nothing to sum"

    def _reduction_violations(self) -> Iterator[str]:
        s, limits = self.schedule, LIMITS[self.task.arch]
        if s.reduction == "cluster" and s.split_k > min(limits.max_cluster, PORTABLE_CLUSTER):
            yield "the splits do not fit into one cluster"
        if s.spread_sum and self.ctas > REFERENCE_CHIPS[self.task.arch].sms * s.min_ctas:
            yield "spread_sum needs all CTAs at once, min_ctas of them on an SM"
        if s.epilogue == "staged" and self.task.n % 8:
            yield "wide stores need rows of D that are a multiple of 16 bytes"
        if s.programmatic and not limits.programmatic_launch:
            yield "the target has no programmatic launch"

    def _limit_violations(self) -> Iterator[str]:
        limits = LIMITS[self.task.arch]
        if self.threads > limits.max_threads_per_block:
            yield f"{self.threads} threads exceed a CTA"
            return  # they would have no registers, so the rest cannot be told
        if self.smem_bytes > limits.max_smem_per_block_bytes:
            yield f"{self.smem_bytes} bytes of shared memory exceed a CTA"
        if self.spills:
            yield "registers would spill"
        if self.ctas_per_sm < self.schedule.min_ctas:
            yield "min_ctas CTAs do not fit on an SM"
        if self.workspace_bytes > max_workspace_bytes(self.task):
            yield "the partial tiles exceed the workspace"
