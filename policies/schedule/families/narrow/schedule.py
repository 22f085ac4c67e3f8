"""One schedule of the `narrow` family, what a task's operands are to its kernel, and what makes it valid for a task."""

from typing import Annotated, Literal

from pydantic import Field

from contract.base import Record
from contract.chip import LIMITS, Chip
from contract.task import Arch, GemmTask, Layout
from policies.schedule.families.kernel_family import Schedule, cluster_sms

Ring = Literal["registers", "shared"]
Trigger = Literal["start", "last_loads"]
Axis = Annotated[int, Field(ge=1, le=2**10)]

MAX_TOKENS = 32
STEP_K = 32  # of a warp
BLOCKS_N = (16, 32, 64, 128)
PREFETCHED_K = 256  # of a box; as many rows or columns as a box can have
MIN_BLOCK_BY_K = 32  # features of a tile whose weights are row-major K x N: 64 bytes of a row
RESERVED_SMEM_BYTES = 1024  # per CTA, taken by the system
OVERHEAD_REGISTERS = 32  # of a thread, beside sums and stages; taken from compiled kernels
MAX_REGISTERS = 255


class Roles(Record):
    """Which operand of a task is narrow. `tokens`: its rows or columns, `features`: those of the other, the weights.

    `by_k`: weights lie row-major K x features, else features x K. `tokens_are_rows`: D is tokens x features.
    """

    tokens: int
    features: int
    by_k: bool
    tokens_are_rows: bool


def roles(task: GemmTask) -> Roles | None:
    """None where neither operand is narrow, or the narrow one is not stored along K."""
    if task.layout is not Layout.NT and task.m <= MAX_TOKENS:
        return Roles(tokens=task.m, features=task.n, by_k=task.layout is Layout.NN, tokens_are_rows=True)
    if task.layout is Layout.TN and task.n <= MAX_TOKENS:
        return Roles(tokens=task.n, features=task.m, by_k=False, tokens_are_rows=False)
    return None


class NarrowSchedule(Schedule):
    """A CTA computes block_m tokens by block_n features; `cluster_k` CTAs divide K, and `warps_k` warps of each take turns.

    `stages`: steps of 32 along K that a warp has in flight, in a `ring` of registers or of shared memory. `prefetch`: L2
    is asked for the weights of so many times 256 along K of the CTA, before the wait for the preceding kernel; 0 for none.
    `evict_first`: L2 evicts weights first. `trigger`: when the next kernel may start, at once or when all loads are under
    way. `per_sm`: so much shared memory is requested that no more CTAs fit on an SM, of this launch and the next together;
    0 for no limit. `constant_shape`: M, N, K are compile-time constants.
    """

    family: Literal["narrow"] = "narrow"
    block_m: Axis
    block_n: Axis
    warps_k: Axis
    stages: Axis
    cluster_k: Axis = 1
    ring: Ring = "registers"
    prefetch: Annotated[int, Field(ge=0, le=64)] = 0
    evict_first: bool = True
    trigger: Trigger = "start"
    per_sm: Annotated[int, Field(ge=0, le=16)] = 0
    constant_shape: bool = True
    programmatic: bool = True

    @property
    def threads(self) -> int:
        return 32 * self.warps_k

    @property
    def round_k(self) -> int:
        """K of one step of all warps of a CTA."""
        return STEP_K * self.warps_k

    @property
    def stage_bytes(self) -> int:
        """Bytes of weights and tokens that a warp loads in one step."""
        return 2 * STEP_K * (self.block_n + self.block_m)

    def steps(self, task: GemmTask) -> int:
        """Steps of each warp."""
        return -(-task.k // (self.round_k * self.cluster_k))

    def rows(self, task: GemmTask) -> int:
        """Rows of sums that a CTA adds."""
        operands = roles(task)
        return min(self.block_m, operands.tokens) if self.constant_shape and operands else self.block_m

    def smem_bytes(self, task: GemmTask) -> int:
        """Dynamic shared memory: what is needed, or what leaves no room for one CTA more than `per_sm`."""
        per_cta = LIMITS[Arch.SM_90A].smem_per_sm_bytes // (self.per_sm + 1)
        return max(self.needed_smem_bytes(task), per_cta // 16 * 16 + 16 - RESERVED_SMEM_BYTES if self.per_sm else 0)

    def needed_smem_bytes(self, task: GemmTask) -> int:
        """The sums of each warp, over its stages where the ring lies there, mailbox and barrier."""
        sums = self.rows(task) * (self.block_n + 4) * 4
        warp = max(self.stages * self.stage_bytes, sums) if self.ring == "shared" else sums
        share = -(-self.rows(task) * self.block_n // 4 // self.cluster_k)
        return self.warps_k * warp + (self.cluster_k * share * 16 + 16 if self.cluster_k > 1 else 0)

    @property
    def registers(self) -> int:
        """Estimated registers of a thread."""
        held = self.stages if self.ring == "registers" else 1
        return self.block_m * self.block_n // 32 + held * self.stage_bytes // 128 + OVERHEAD_REGISTERS

    def ctas_per_sm(self, task: GemmTask) -> int:
        """CTAs that an SM holds at once, limited by shared memory, registers, threads and CTA slots."""
        limits = LIMITS[Arch.SM_90A]
        by_smem = limits.smem_per_sm_bytes // (self.smem_bytes(task) + RESERVED_SMEM_BYTES)
        by_registers = limits.registers_per_sm // (self.threads * -(-self.registers // 8) * 8)
        return min(by_smem, by_registers, limits.max_threads_per_sm // self.threads, limits.max_blocks_per_sm)


def tiles_of(s: NarrowSchedule, operands: Roles) -> int:
    return -(-operands.tokens // s.block_m) * -(-operands.features // s.block_n)


def resident_ctas(s: NarrowSchedule, ctas: int, task: GemmTask, chip: Chip) -> int:
    """CTAs of a launch that share the busiest SM."""
    return min(s.ctas_per_sm(task), -(-ctas // cluster_sms(chip, s.cluster_k)))


def violation(s: NarrowSchedule, task: GemmTask) -> str | None:
    """Why a schedule cannot run for the task, or None."""
    return _task_violation(s, task) or _contradiction(s) or _limit_violation(s, task)


def _task_violation(s: NarrowSchedule, task: GemmTask) -> str | None:
    operands = roles(task)
    if task.arch is not Arch.SM_90A or operands is None:
        return f"the family needs sm_90a, and at most {MAX_TOKENS} rows of A (nn, tn) or columns of B (tn)"
    if task.k % 8 or (operands.tokens_are_rows and task.n % 8):
        return "rows of the operands, and of D where A is narrow, must be multiples of 16 bytes"
    if operands.by_k and s.block_n < MIN_BLOCK_BY_K:
        return f"row-major weights need {MIN_BLOCK_BY_K} features of a row"
    return None


def _contradiction(s: NarrowSchedule) -> str | None:
    if s.block_m % 8 or s.block_m > MAX_TOKENS:
        return f"block_m must be a multiple of 8, at most {MAX_TOKENS}"
    if s.block_n not in BLOCKS_N:
        return f"block_n must be one of {', '.join(map(str, BLOCKS_N))}"
    if s.cluster_k > LIMITS[Arch.SM_90A].max_cluster:
        return "the CTAs of a tile do not fit into one cluster"
    return None


def _limit_violation(s: NarrowSchedule, task: GemmTask) -> str | None:
    limits = LIMITS[Arch.SM_90A]
    if s.threads > limits.max_threads_per_block:
        return f"{s.threads} threads exceed a CTA"
    if s.smem_bytes(task) > limits.max_smem_per_block_bytes:
        return f"{s.smem_bytes(task)} bytes of shared memory exceed a CTA"
    if s.registers > min(limits.registers_per_sm // s.threads // 8 * 8, MAX_REGISTERS):
        return "registers would spill"
    return None
