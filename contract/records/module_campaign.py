"""Modules in a campaign: what is asked, and the row of what was found."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from cudal2_agent.contract.base import Record, RunId, digest
from cudal2_agent.contract.records.campaign import HostCost, ShapeResult
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.module_graph import SoundnessStatus
from cudal2_agent.contract.records.module_task import MAX_PROBLEM_BYTES, Arithmetic
from cudal2_agent.contract.records.named_buffer import BufferName
from cudal2_agent.contract.records.task import Arch, GemmTask, TimingMode
from cudal2_agent.contract.reward.speedup import Speedup


class AskedModule(Record):
    """A problem file in the queue of a campaign; the worker that takes it traces it.

    `level`: of the folder `level1` that it lies in; 0 for none. `small`: at the sizes at which soundness is tried, instead of
    the file's. `unreadable`: why the file has no text; `problem` is empty then.
    """

    kind: Literal["module"] = "module"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    level: int = 0
    problem: Annotated[str, Field(max_length=MAX_PROBLEM_BYTES)]
    unreadable: str = ""
    arithmetic: Arithmetic = Arithmetic.F32
    training: bool = False
    small: bool = False
    arch: Arch = Arch.SM_90A
    mode: TimingMode = TimingMode.OFFLINE

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))

    @property
    def shape(self) -> str:
        """What tells it from others in a line."""
        return self.name

    @property
    def place(self) -> str:
        """What a changed file has in common with what it was."""
        return digest(self.model_dump(mode="json", exclude={"problem", "unreadable", "level"}))


def _kind(value: Any) -> str:
    """Of a task, or of JSON that may leave out defaults."""
    if isinstance(value, dict):
        return str(value.get("kind", "gemm"))
    return str(value.kind)


CampaignTask = Annotated[Annotated[GemmTask, Tag("gemm")] | Annotated[AskedModule, Tag("module")], Discriminator(_kind)]


class ModuleWinner(Record):
    """The best plan of a module. `kernels`: launches of kernels that the project wrote; `library_calls`: the other nodes.

    `time_us`: None where it was not measured. `speedups`: paired in the same rounds, over every baseline of PyTorch.
    `found_right`: by what, in the words of the step. `worst_error`: the largest error of its tests, divided by its bound.
    """

    candidate_id: str
    step_index: int
    schedule: dict[str, ScheduleValue] | None
    kernels: int
    library_calls: int
    time_us: float | None = None
    speedups: tuple[Speedup, ...] = ()
    found_right: str = ""
    worst_error: float | None = None


# What became of a task: it is none; no plan is right; a right plan was not timed; it is faster than PyTorch, or it is not.
ModuleStatus = Literal["no-task", "no-plan", "proved", "faster", "keep-pytorch"]


class ModuleResult(Record):
    """One row of a campaign: one module, in one environment.

    `dims`: the sizes at which it was searched. `baselines_us`: medians of PyTorch's baselines in the rounds of `best`;
    `fastest`: the name of the one that counts. `reason`: why there is no task or no plan, else why the search ended.
    """

    kind: Literal["module"] = "module"
    task: AskedModule
    status: ModuleStatus
    run_id: RunId | None = None
    environment: str | None = None
    best: ModuleWinner | None = None
    baselines_us: dict[str, float] = {}
    fastest: str = ""
    soundness: SoundnessStatus = "unchecked"
    soundness_reason: str = ""
    dims: dict[BufferName, int] = {}
    operations: int = 0
    flops: int = 0
    bytes: int = 0
    floor_us: float | None = None
    candidates: int = 0
    gpu_seconds: float = 0.0
    seconds: float = 0.0
    host: HostCost | None = None
    reason: str = ""
    commit: str = ""
    finished_at: datetime

    @property
    def speedup(self) -> Speedup | None:
        """Of the best plan over the fastest baseline."""
        return self.over(self.fastest)

    def over(self, baseline: str) -> Speedup | None:
        """Of the best plan over one baseline; None where it was not measured."""
        found = self.best.speedups if self.best is not None else ()
        return next((each for each in found if each.baseline == baseline), None)


CampaignResult = ShapeResult | ModuleResult
