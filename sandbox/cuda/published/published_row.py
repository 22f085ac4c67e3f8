"""What others published for a problem, measured: never a candidate, never rewarded, never stored among trajectories."""

from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import EAGER, Environment, Telemetry, TestResult, Timing
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.reward.speedup import Speedup, median_us, paired_speedup
from cudal2_agent.contract.settings.options import TimeOptions

MAX_PUBLISHED_BYTES = 4 << 20
Stage = Literal["start", "load", "cases", "rounds", "done"]


class PublishedRequest(Record):
    """Measure a file's `ModelNew` on a task. `text`: of the file. `seed`: of weights and cases. `capture`: in a graph too.

    `turns`: folder of the locks by which processes share a GPU. `limit_s`: wall-clock limit, after which the process ends.
    """

    task: ModuleTask
    text: Annotated[str, Field(max_length=MAX_PUBLISHED_BYTES)]
    device: int
    seed: int
    time: TimeOptions
    turns: str | None = None
    capture: bool = True
    limit_s: float


class PublishedRow(Record):
    """`file`: as the user named it. `status`: `failed` where it gave no answer that could be judged.

    `tests`: of every case, also after one that failed. `call`: each call alone between two events, host time included, as
    `eager` is measured; `graph`: launches of a CUDA graph, as the compiled baselines are. `weights`: how it came by the
    weights of the problem's own model. `findings`: what makes its times or answers suspicious. `seconds`: by stage.
    """

    file: str
    task: str
    task_id: str
    arithmetic: Arithmetic
    training: bool
    status: Literal["measured", "judged", "failed"]
    message: str = ""
    tests: tuple[TestResult, ...] = ()
    call: Timing | None = None
    graph: Timing | None = None
    baselines: tuple[Timing, ...] = ()
    weights: str = ""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Environment | None = None
    telemetry: Telemetry | None = None
    seconds: dict[str, float] = {}

    @property
    def right(self) -> bool:
        """Whether every case accepts its answer, those of timed calls included."""
        return bool(self.tests) and all(test.passed for test in self.tests)

    @property
    def wrong_on(self) -> tuple[str, ...]:
        """The cases that refuse it."""
        return tuple(test.name for test in self.tests if not test.passed)

    @property
    def best(self) -> Timing | None:
        """The faster of its two forms."""
        return min((each for each in (self.call, self.graph) if each is not None), key=median_us, default=None)

    @property
    def fastest(self) -> Timing | None:
        """The baseline that counts."""
        return min(self.baselines, key=median_us, default=None)

    def over_fastest(self) -> Speedup | None:
        """Its faster form over the fastest baseline; None where one of the two is missing."""
        return None if self.best is None or self.fastest is None else paired_speedup(self.best, self.fastest)

    def over_eager(self) -> Speedup | None:
        """Calls over eager's calls, host time of both included, as KernelBench counts."""
        eager = next((each for each in self.baselines if each.name == EAGER), None)
        return None if self.call is None or eager is None else paired_speedup(self.call, eager)


def row_of(request: PublishedRequest, status: str, message: str = "", **found: object) -> PublishedRow:
    """The row of a request's task. `found`: other fields."""
    task = request.task
    about = {"task": task.name, "task_id": task.id, "arithmetic": task.arithmetic, "training": task.training}
    return PublishedRow.model_validate({"file": "", **about, "status": status, "message": message, **found})
