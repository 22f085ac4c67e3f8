"""Typed events. Libraries emit events; only the progress module of the command line renders them."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.exchange import Usage
from cudal2_agent.contract.records.module_task import Task


class RunStarted(Record):
    event: Literal["run_started"] = "run_started"
    run_id: str
    task: Task
    device: str
    budget: int
    minutes: float
    resumed_at_step: int = 0


class Proposed(Record):
    event: Literal["proposed"] = "proposed"
    round: int
    policy: str
    count: int
    dropped: int = 0


class CandidateBuilt(Record):
    """A candidate has been checked, compiled and inspected. `failed`: its evaluation where it did not pass."""

    event: Literal["candidate_built"] = "candidate_built"
    candidate_id: str
    seconds: float
    cached: bool
    failed: Evaluation | None = None


class StageStarted(Record):
    event: Literal["stage_started"] = "stage_started"
    candidate_id: str
    stage: str


class RaceStarted(Record):
    """The finalists of a search are measured together; `count` of them."""

    event: Literal["race_started"] = "race_started"
    count: int


class StepFinished(Record):
    event: Literal["step_finished"] = "step_finished"
    index: int
    candidate_id: str
    label: str
    evaluation: Evaluation
    reward: float | None
    best_candidate_id: str | None


class Profiled(Record):
    """A candidate was profiled. `bottleneck`: the finding with the largest weight; empty where the counters show none."""

    event: Literal["profiled"] = "profiled"
    candidate_id: str
    seconds: float
    bottleneck: str


class Witnessed(Record):
    """The second witness judged a measured candidate in `seconds`. The step of the candidate now holds `evaluation`."""

    event: Literal["witnessed"] = "witnessed"
    candidate_id: str
    seconds: float
    evaluation: Evaluation
    reward: float | None
    best_candidate_id: str | None


class Replying(Record):
    """A reply of a chat server is arriving. `characters`: received so far."""

    event: Literal["replying"] = "replying"
    round: int
    sample: int
    characters: int


class Replied(Record):
    """A reply of a chat server has ended. `candidates`: how many it gave. Totals are of the run so far.

    `problem`: why it, or a part of it, gave no candidate.
    """

    event: Literal["replied"] = "replied"
    round: int
    sample: int
    turn: int
    status: str
    candidates: int = 0
    problem: str
    usage: Usage
    seconds: float
    total_tokens: int
    total_cost: float


class ToolUsed(Record):
    """A tool that a reply called has answered. `said`: the first line of its result."""

    event: Literal["tool_used"] = "tool_used"
    round: int
    sample: int
    tool: str
    said: str
    seconds: float


class WorkerRestarted(Record):
    event: Literal["worker_restarted"] = "worker_restarted"
    reason: str


class Notice(Record):
    """A message to the user, with its remedy. The run continues."""

    event: Literal["notice"] = "notice"
    message: str


class IndexProgress(Record):
    """Progress of indexing. `done` and `total` count the files read or split, or the pieces embedded, as `stage` says."""

    event: Literal["index_progress"] = "index_progress"
    release: str
    stage: Literal["fetch", "read", "split", "embed", "publish"]
    done: int
    total: int | None = None


class StoreProgress(Record):
    """Progress of a command over the trajectory store. `done` and `total` count rows of the store, or steps."""

    event: Literal["store_progress"] = "store_progress"
    stage: Literal["export", "import", "merge", "verify"]
    done: int
    total: int | None = None


class RunFinished(Record):
    event: Literal["run_finished"] = "run_finished"
    run_id: str
    reason: str
    steps: int
    best_candidate_id: str | None


Event = Annotated[
    RunStarted
    | Proposed
    | CandidateBuilt
    | StageStarted
    | RaceStarted
    | StepFinished
    | Profiled
    | Witnessed
    | Replying
    | Replied
    | ToolUsed
    | WorkerRestarted
    | Notice
    | IndexProgress
    | StoreProgress
    | RunFinished,
    Field(discriminator="event"),
]
Emit = Callable[[Event], None]


def ignore(_: Event) -> None:
    """An `Emit` for callers that want no events."""
