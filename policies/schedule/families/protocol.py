"""What every kernel family offers the schedule policy: its schedules for a task, their cost model inputs, their source."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from contract.base import Record
from contract.candidate import Candidate, ScheduleValue
from contract.chip import Chip
from contract.task import GemmTask


class Schedule(Record):
    """One point of a family's schedule space. Subclasses add the family's axes as flat fields of str, int or bool."""

    family: str

    def values(self) -> dict[str, ScheduleValue]:
        """The axes as plain values, for `Origin.schedule` and for features."""
        return self.model_dump(mode="json")


class Work(Record):
    """How a schedule cuts a task, as the analytic prior sees it.

    `ctas`: CTAs launched (output tiles times splits); `ctas_per_sm`: how many are resident together; `persistent`: CTAs
    loop over tiles. `k_blocks`: main-loop steps of one tile. `loaded_bytes`: bytes that all CTAs together bring into shared
    memory through L2, multicast counted once. `reduced_bytes`: bytes of partial sums written and read again between splits.
    `lines`: rows of at most 128 bytes that the bulk copy engine of an SM handles for a K block; 0 for other kinds of copies.
    `step_us`: time of a K block after the first that nothing fills, where barriers and fragment loads stand in line.
    `alternating`: one tile of a CTA is stored while the next is multiplied.
    `mma_efficiency`: the share of the tensor rate this tile shape can reach in steady state (0 to 1).
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
    step_us: float = 0.0
    alternating: bool = False


# Most SMs that clusters of a size cover at once, of the 132 of an H200 (cuOccupancyMaxActiveClusters, 2026-11-21): a cluster
# lies within one GPC, and GPCs are not whole multiples of 4, 8 or 16 SMs.
_CLUSTER_SHARE = {1: 132 / 132, 2: 132 / 132, 4: 120 / 132, 8: 120 / 132, 16: 112 / 132}


def cluster_sms(chip: Chip, cluster: int) -> int:
    """SMs on which clusters of a size can be resident together; a whole number of clusters."""
    share = next(share for size, share in _CLUSTER_SHARE.items() if size >= cluster)
    return max(int(chip.sms * share + 1e-9) // cluster * cluster, cluster)


S = TypeVar("S", bound=Schedule)


class Family(Protocol[S]):
    """A kernel family. `write` gives a complete source with its plan; equal schedule and task give equal text."""

    name: str

    def supports(self, task: GemmTask) -> bool: ...

    def space(self, task: GemmTask, chip: Chip) -> Iterator[S]:
        """Every schedule that is valid for the task on the chip."""
        ...

    def parse(self, values: dict[str, ScheduleValue]) -> S:
        """A schedule from its plain values. Raises: ValueError."""
        ...

    def work(self, schedule: S, task: GemmTask, chip: Chip) -> Work: ...

    def write(self, schedule: S, task: GemmTask) -> Candidate: ...
