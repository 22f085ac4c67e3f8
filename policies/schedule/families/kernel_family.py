"""What a kernel family is to the schedule policy: its schedules for a task, their cost model inputs, their source.

A family is a folder with one CUDA source (`NAME/NAME.cu`, see `template`), one schedule (its axes, and when they are valid)
and one space (the schedules worth trying). Its subclass of `Family` joins them, and `registry` lists it.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import FIGURES, Chip
from cudal2_agent.contract.plan.plan import LaunchPlan, render_plan
from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.template import KernelConstant, template_of


class Schedule(Record):
    """One point of a family's schedule space. Subclasses add the family's axes as flat fields of str, int or bool."""

    family: str

    def values(self) -> dict[str, ScheduleValue]:
        """The axes as plain values, for `Origin.schedule` and for features."""
        return self.model_dump(mode="json")


class Work(Record):
    """How a schedule divides a task, as the analytic prior sees it.

    `ctas`: CTAs launched (output tiles times splits); `ctas_per_sm`: how many are resident together; `persistent`: CTAs
    loop over tiles. `k_blocks`: main-loop steps of one tile. `loaded_bytes`: bytes that all CTAs together load into shared
    memory through L2, multicast counted once. `reduced_bytes`: bytes of partial sums written and read again between splits.
    `spread_sums`: each CTA that splits a tile adds a share of it; else one CTA adds the tile alone.
    `lines`: rows of at most 128 bytes that the bulk copy engine of an SM handles per K block; 0 for other kinds of copies.
    `store_lines`: rows that the engine stores per tile.
    `step_us`: time per K block after the first that is exposed, because barriers and fragment loads depend on each other.
    `alternating`: one tile of a CTA is stored while the next is multiplied.
    `mma_efficiency`: the share of the tensor rate that this tile shape can reach in steady state (0 to 1).
    `smem_read_bytes`: bytes of shared memory that the instructions of one CTA read per K block; 0 where `mma_efficiency`
    accounts for them. `staged_bytes`: bytes that the epilogue of one tile writes to shared memory and reads again.
    `exchanged_bytes`: bytes of partial sums that warps of a CTA exchange through shared memory behind the main loop.
    `pushed`: the CTAs of a cluster push their sums to each other, and each stores its share of the tile.
    `scattered`: registers are stored to D directly, in pieces that are smaller than a sector of L2.
    `overlapped_us`: what programmatic launch spares behind a preceding kernel (medians of offline races on an H200).
    `crowded`: nothing keeps CTAs from sharing an SM while other SMs have none.
    """

    tile: tuple[int, int, int]
    stages: int
    ctas: int
    ctas_per_sm: int
    cluster: int
    k_blocks: int
    loaded_bytes: int
    reduced_bytes: int
    launches: int
    persistent: bool
    programmatic: bool
    mma_efficiency: float
    lines: int = 0
    store_lines: int = 0
    step_us: float = 0.0
    alternating: bool = False
    smem_read_bytes: int = 0
    staged_bytes: int = 0
    spread_sums: bool = False
    exchanged_bytes: int = 0
    pushed: bool = False
    scattered: bool = False
    overlapped_us: float = 0.8
    crowded: bool = False


# Maximum SMs that clusters of a size cover at once, of the 132 of an H200: a cluster lies within one GPC, and GPCs are not
# whole multiples of 4, 8 or 16 SMs.
_CLUSTER_SHARE = {size: size * count for size, count in FIGURES[Arch.SM_90A].clusters.items()}


def cluster_sms(chip: Chip, cluster: int) -> int:
    """SMs on which clusters of a size can be resident together; a whole number of clusters."""
    return max(chip.sms * _share(cluster) // 132 // cluster * cluster, cluster)


def cluster_sms_expression(cluster: int) -> str:
    """The same as an expression of a launch plan, for clusters that fit at all."""
    covered = "SMS" if _share(cluster) == 132 else f"SMS*{_share(cluster)}//132"
    return covered if cluster == 1 else f"{covered}//{cluster}*{cluster}"


@functools.cache
def _share(cluster: int) -> int:
    return next(share for size, share in _CLUSTER_SHARE.items() if size >= cluster)


def has_tma_rows(task: GemmTask, *names: Literal["A", "B", "D"]) -> bool:
    """Whether the rows of these operands, by default of all, are multiples of 16 bytes as they are stored."""
    return all(operand_shape(task, name)[1] % 8 == 0 for name in names or ("A", "B", "D"))


class KernelParts(NamedTuple):
    """`constants`: what `//@constants` in the CUDA source stands for. `sections`: those of the source that are used."""

    plan: LaunchPlan
    constants: Sequence[KernelConstant]
    sections: Collection[str] = ()


S = TypeVar("S", bound=Schedule)


class Family(ABC, Generic[S]):
    """A kernel family. `name`: also of its folder and of the CUDA source in it. `schedule`: the class that holds its axes."""

    name: ClassVar[str]
    schedule: type[S]

    @abstractmethod
    def supports(self, task: GemmTask) -> bool: ...

    @abstractmethod
    def space(self, task: GemmTask, chip: Chip) -> Iterator[S]:
        """The schedules worth trying, each of them valid for the task on the chip; `write` accepts valid ones beyond these."""

    @abstractmethod
    def work(self, schedule: S, task: GemmTask, chip: Chip) -> Work: ...

    @abstractmethod
    def violations(self, schedule: S, task: GemmTask) -> Iterator[str]:
        """Every reason why a schedule cannot run for the task."""

    def unmeasured(self, schedule: S, task: GemmTask) -> bool:  # noqa: ARG002
        """Whether no run that a shipped prior learned from has timed this form of the kernel."""
        return False

    def summation(self, schedule: S, task: GemmTask) -> str | None:  # noqa: ARG002
        """How each element of D is summed: the instruction and its order over K. None where M may change it.

        Schedules with equal answers give equal bits for equal rows of A and equal columns of B, whatever M is.
        """
        return None

    def as_searched(self, schedule: S) -> S:
        """A schedule of an earlier search with what the space has for all of its schedules since."""
        return schedule

    def improved(self, schedule: S, task: GemmTask, chip: Chip) -> S:  # noqa: ARG002
        """A schedule with changes that pay for the task wherever they were measured, and that no shipped prior has learned."""
        return schedule

    def violation(self, schedule: S, task: GemmTask) -> str | None:
        """The first reason why a schedule cannot run for the task, or None."""
        return next(self.violations(schedule, task), None)

    @abstractmethod
    def parts(self, schedule: S, task: GemmTask) -> KernelParts:
        """What makes a kernel of the family's CUDA source, for a schedule that can run for the task."""

    def parse(self, values: dict[str, ScheduleValue]) -> S:
        """A schedule from its plain values. Raises: ValueError for unknown, missing or mistyped axes."""
        try:
            return self.schedule.model_validate(values, strict=True)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"not a {self.name} schedule{f', {where}' if where else ''}: {first['msg']}") from exc

    def write(self, schedule: S, task: GemmTask) -> Candidate:
        """A complete source with its launch plan; equal schedule and task give equal text.

        Raises: ValueError where the schedule cannot run for the task.
        """
        if reason := self.violation(schedule, task):
            raise ValueError(f"{self.name} schedule for {task.shape}: {reason}")
        plan, constants, sections = self.parts(schedule, task)
        source = render_plan(plan) + template_of(self.name).fill(task, constants, sections)
        return Candidate(source=source, plan=plan, origin=Origin(policy="schedule", schedule=schedule.values()))
