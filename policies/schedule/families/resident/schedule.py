"""One schedule of the `resident` family, and what makes it valid for a task."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Schedule

MAX_K = 512
OVERHEAD_REGISTERS = 31  # addresses, descriptors and loop state, beside A and the accumulators; 24 spill
INSTRUCTION_OVERHEAD = 24  # ptxas rejects a wgmma whose registers nearly fill the number at launch (C7602)
PIECE_BYTES = 64 * 64 * 2  # 64 rows of A by 64 along K
WIDTHS = (64, 96, 128, 160, 192, 224, 256)  # N of the wgmma instructions with A in registers that the device headers wrap

Axis = Annotated[int, Field(ge=1)]


class ResidentSchedule(Schedule):
    """A tile has `consumers` × `atoms` × 64 rows and `block_n` columns, and a slot of the ring holds 64 × `block_n` of B.

    `turns`: warpgroups take turns with their epilogues. A turn of "staging" ends when the tile is staged, one of the whole
    "pause" when the next tile's first products are under way. `late_store`: TMA stores are issued behind those products.
    `stagings`: tiles per warp in staging memory. `phases`: neighbouring clusters start at different column tiles of their
    runs. `keep_b`: L2 evicts B last. `stream_d`: L2 evicts D first. `l2`: bytes that a miss of TMA brings to L2.
    """

    family: Literal["resident"] = "resident"
    consumers: Axis
    atoms: Axis = 1
    block_n: Axis
    slots: Axis
    cluster: Literal[1, 2, 4] = 2
    turns: Literal["none", "staging", "pause"] = "pause"
    late_store: bool = True
    stagings: Literal[1, 2] = 1
    phases: Axis = 1
    keep_b: bool = False
    stream_d: bool = False
    l2: Literal[64, 128, 256] = 128
    programmatic: bool = True

    @property
    def block_m(self) -> int:
        return 64 * self.atoms * self.consumers

    @property
    def hands_over(self) -> bool:
        """Whether the producer is a warpgroup that hands its registers to the consumers."""
        return self.consumers > 1

    @property
    def threads(self) -> int:
        return 128 * self.consumers + (128 if self.hands_over else 32)

    @property
    def launch_registers(self) -> int:
        """Registers of a thread at launch."""
        return min(255, 65536 // self.threads // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Maximum registers of a consumer thread, after the producer has handed over its own."""
        if not self.hands_over:
            return 255
        left = self.threads * self.launch_registers - 128 * 40
        return min(255, left // (128 * self.consumers) // 8 * 8)

    @property
    def slot_bytes(self) -> int:
        return 64 * 2 * self.block_n

    @property
    def slots_of_a(self) -> int:
        """Slots that a block of 64 along K of the CTA's rows of A takes."""
        pieces = self.atoms * self.consumers
        return ceil_div(pieces, min(pieces, self.slot_bytes // PIECE_BYTES))

    @property
    def columns(self) -> int:
        """Width of a store box and of an MN-major column group of B, in elements."""
        return 64 if self.block_n % 64 == 0 else 32

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: ring, staging, barriers, and slack to align to 1024."""
        staging = self.stagings * self.block_m * self.block_n * 2
        return self.slots * (self.slot_bytes + 16) + staging + 1024


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def steps(task: GemmTask) -> int:
    """Steps of 16 along K, the depth of an instruction."""
    return ceil_div(task.k, 16)


def instruction_registers(s: ResidentSchedule, task: GemmTask) -> int:
    """Accumulator registers of one instruction."""
    return s.block_n // (2 if task.accumulate is AccumulatorType.F32 else 4)


def is_valid(s: ResidentSchedule, task: GemmTask) -> bool:
    """Whether the kernel's static assertions, the chip and the task allow a schedule."""
    return next(violations(s, task), None) is None


def violations(s: ResidentSchedule, task: GemmTask) -> Iterator[str]:
    """Every reason why a schedule cannot run for the task, by the axes concerned."""
    instruction, limits = instruction_registers(s, task), LIMITS[Arch.SM_90A]
    if task.k > MAX_K:
        yield f"the family needs K of at most {MAX_K}"
    if s.block_n not in WIDTHS:
        yield f"block_n must be one of {', '.join(map(str, WIDTHS))}"
    if s.consumers > 4:
        yield "consumers must be at most 4"
    if s.smem_bytes > limits.max_smem_per_block_bytes:
        yield f"slots, stagings and the tile take {s.smem_bytes} bytes of shared memory of {limits.max_smem_per_block_bytes}"
    if (needed := s.atoms * (instruction + 4 * steps(task)) + OVERHEAD_REGISTERS) > s.consumer_registers:
        yield f"atoms, block_n and K need {needed} registers per thread of {s.consumer_registers}: they would spill"
    if instruction + 4 + INSTRUCTION_OVERHEAD > s.launch_registers:
        yield f"block_n leaves the instruction too few of {s.launch_registers} registers at launch; fewer consumers give more"
    if s.block_n % (8 * s.cluster):
        yield "block_n must be a multiple of 8 cluster"
    if s.slots < s.slots_of_a + 2:
        yield f"slots must be at least {s.slots_of_a + 2}"
    if s.turns != "none" and s.consumers == 1:
        yield "turns need more than one of the consumers"
    if s.turns == "pause" and not s.late_store:
        yield "turns of 'pause' need late_store"


def units(s: ResidentSchedule, task: GemmTask) -> int:
    """Tiles of clusters: row panels times column tiles."""
    return ceil_div(task.m, s.cluster * s.block_m) * ceil_div(task.n, s.block_n)
