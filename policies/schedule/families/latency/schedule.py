"""One schedule of the `latency` family, and what makes it valid for a task."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Schedule, has_tma_rows

Loads = Literal["cp_async", "tma"]
Axis = Annotated[int, Field(ge=1, le=2**14)]

ARCHS = (Arch.SM_80, Arch.SM_86, Arch.SM_89, Arch.SM_90A)

# One byte more than half of an SM's shared memory, less what the system reserves for each CTA, in steps of 16.
EXCLUSIVE_SMEM_BYTES = LIMITS[Arch.SM_90A].smem_per_sm_bytes // 2 - 1024 + 16
ALIGNMENT_BYTES = 1024  # of the first panel in shared memory
MAX_NAMED_BARRIERS = 15
MAX_BOX = 256  # rows of a TMA box
OVERHEAD_REGISTERS = 40  # of a thread, beside accumulators and fragments; taken from compiled kernels
REGISTERS_OF_PASSES = 16  # addresses that stay alive for later passes; taken from compiled kernels
MAX_REGISTERS = 255


class LatencySchedule(Schedule):
    """A CTA computes a part of a block_m × block_n tile: `cluster_k` CTAs divide K, and `warps_k` slices of warps each.

    A slice of warps_m × warps_n warps loads `groups` times `block_k` of K, all at once, and multiplies a group when it has
    arrived. With more than one of the `passes`, it then loads the slot again, with the group that lies `groups` further on.
    `loads`: by copies of 16 bytes, or by TMA. `exclusive`: requests so much shared memory that no other CTA fits on
    the SM, not even of the next launch; otherwise the CTAs of a cluster may share SMs. `constant_shape`: M, N, K are
    compile-time constants.

    Chips before sm_90 have neither clusters nor TMA nor programmatic launch. There K is divided between slices only.
    """

    family: Literal["latency"] = "latency"
    block_m: Axis
    block_n: Axis
    block_k: Axis
    groups: Axis
    passes: Axis = 1
    warps_m: Axis
    warps_n: Axis
    warps_k: Axis = 1
    cluster_k: Axis = 1
    loads: Loads = "cp_async"
    exclusive: bool = False
    constant_shape: bool = True
    programmatic: bool = True

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def cta_k(self) -> int:
        """K of a CTA."""
        return self.warps_k * self.groups * self.passes * self.block_k

    @property
    def capacity_k(self) -> int:
        """Maximum K that the schedule covers."""
        return self.cluster_k * self.cta_k

    @property
    def operand_bytes(self) -> int:
        """Bytes of A and B that a CTA loads."""
        return 2 * self.cta_k * (self.block_m + self.block_n)

    @property
    def slot_bytes(self) -> int:
        """Bytes of A and B that a CTA holds at once."""
        return self.operand_bytes // self.passes

    @property
    def tile_bytes(self) -> int:
        """Bytes of the partial sums of a tile."""
        return 4 * self.block_m * self.block_n

    @property
    def needed_smem_bytes(self) -> int:
        """Operands or the sums of slices in their place, the mailbox of the cluster, barriers, and slack to align."""
        slices = self.slot_bytes if self.warps_k == 1 else max(self.slot_bytes, self.warps_k * self.tile_bytes)
        mailbox = self.tile_bytes if self.cluster_k > 1 else 0
        barriers = 8 + (8 * self.groups * self.warps_k if self.loads == "tma" else 0)
        return slices + mailbox + -(-barriers // 16) * 16 + ALIGNMENT_BYTES

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory."""
        return max(self.needed_smem_bytes, EXCLUSIVE_SMEM_BYTES if self.exclusive else 0)

    def registers(self, task: GemmTask) -> int:
        """Estimated registers of a thread."""
        m, n = self.block_m // self.warps_m, self.block_n // self.warps_n
        chains = 2 if m * n <= 16 * 32 else 1
        sums = chains * m * n // (32 if task.accumulate is AccumulatorType.F32 else 64)
        return sums + m // 4 + n // 4 + OVERHEAD_REGISTERS + (REGISTERS_OF_PASSES if self.passes > 1 else 0)

    def ctas_per_sm(self, task: GemmTask) -> int:
        """CTAs that an SM holds at once, limited by shared memory, registers, threads and CTA slots."""
        limits = LIMITS[task.arch]
        by_smem = limits.smem_per_sm_bytes // (self.smem_bytes + 1024)
        by_registers = limits.registers_per_sm // (self.threads * -(-self.registers(task) // 8) * 8)
        return min(by_smem, by_registers, limits.max_threads_per_sm // self.threads, limits.max_blocks_per_sm)


def tiles_of(s: LatencySchedule, task: GemmTask) -> int:
    return -(-task.m // s.block_m) * -(-task.n // s.block_n)


def guards(s: LatencySchedule, task: GemmTask) -> tuple[bool, bool, bool]:
    """Whether a tile of A, of B and of D can reach past its matrix."""
    k = task.k != s.capacity_k
    return bool(task.m % s.block_m or k), bool(task.n % s.block_n or k), bool(task.m % s.block_m or task.n % s.block_n)


def violations(s: LatencySchedule, task: GemmTask) -> Iterator[str]:
    """Every reason why a schedule cannot run for the task."""
    yield from _contradictions(s)
    yield from _task_violations(s, task)
    yield from _limit_violations(s, task)


def _contradictions(s: LatencySchedule) -> Iterator[str]:
    if s.block_m % (16 * s.warps_m) or s.block_n % (16 * s.warps_n):
        yield "a warp's tile must be a multiple of 16 x 16"
    if s.block_k < 32 or any(n & (n - 1) for n in (s.block_m, s.block_n, s.block_k, s.warps_m, s.warps_n, s.cluster_k)):
        yield "blocks, warps of a slice and clusters must be powers of two, block_k at least 32"
    if max(s.block_n, s.block_k) > 8 * 32 * s.warps_m * s.warps_n:
        yield "a slice needs a thread for every 16 bytes of a row"
    if s.block_m * s.block_n // 8 % (4 * s.cluster_k):
        yield "a CTA of the cluster must store whole rows of 16 bytes"
    if s.warps_k > MAX_NAMED_BARRIERS:
        yield "every slice needs a named barrier"


def _task_violations(s: LatencySchedule, task: GemmTask) -> Iterator[str]:
    if task.arch not in ARCHS or not has_tma_rows(task):
        yield f"the family needs one of {', '.join(ARCHS)}, and rows that are multiples of 16 bytes"
    if task.gated:
        yield "the family computes no gated tasks"
    if task.k > s.capacity_k:
        yield f"the CTAs of a tile load at most {s.capacity_k} of K"
    if task.layout.transposes_a and s.block_m > 8 * 32 * s.warps_m * s.warps_n:
        yield "a slice needs a thread for every 16 bytes of a row of A"
    boxed_a, boxed_b = (
        s.block_k if task.layout.transposes_a else s.block_m,
        s.block_n if task.layout.transposes_b else s.block_k,
    )
    if s.loads == "tma" and max(boxed_a, boxed_b) > MAX_BOX:
        yield f"a TMA box has at most {MAX_BOX} rows"


def _limit_violations(s: LatencySchedule, task: GemmTask) -> Iterator[str]:
    limits = LIMITS[task.arch]
    if s.cluster_k > limits.max_cluster:
        yield "the CTAs of a tile do not fit into one cluster"
    if s.loads == "tma" and not limits.tensor_maps:
        yield "the target has no TMA"
    if s.programmatic and not limits.programmatic_launch:
        yield "the target has no programmatic launch"
    if s.threads > limits.max_threads_per_block:
        yield f"{s.threads} threads exceed a CTA"
    if s.smem_bytes > limits.max_smem_per_block_bytes:
        yield f"{s.smem_bytes} bytes of shared memory exceed a CTA"
    if s.registers(task) > min(limits.registers_per_sm // s.threads // 8 * 8, MAX_REGISTERS):
        yield "registers would spill"
