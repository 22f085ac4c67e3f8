"""Typed events. Libraries emit them; only the command line's progress module draws them."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from contract.base import Record
from contract.evaluation import Evaluation
from contract.exchange import Usage
from contract.task import GemmTask


class RunStarted(Record):
    event: Literal["run_started"] = "run_started"
    run_id: str
    task: GemmTask
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
    """One candidate went through check, compile and inspection; `failed` is its evaluation where it did not pass."""

    event: Literal["candidate_built"] = "candidate_built"
    candidate_id: str
    seconds: float
    cached: bool
    failed: Evaluation | None = None


class StageStarted(Record):
    event: Literal["stage_started"] = "stage_started"
    candidate_id: str
    stage: str


class StepFinished(Record):
    event: Literal["step_finished"] = "step_finished"
    index: int
    candidate_id: str
    label: str
    evaluation: Evaluation
    reward: float | None
    best_candidate_id: str | None


class Profiled(Record):
    """A candidate was profiled. `bottleneck`: the heaviest finding; empty where the counters show none."""

    event: Literal["profiled"] = "profiled"
    candidate_id: str
    seconds: float
    bottleneck: str


class Witnessed(Record):
    """A second witness was asked about a measured candidate, whose step now holds `evaluation`; it took `seconds`."""

    event: Literal["witnessed"] = "witnessed"
    candidate_id: str
    seconds: float
    evaluation: Evaluation
    reward: float | None
    best_candidate_id: str | None


class Replying(Record):
    """A chat server's reply under way; `characters` so far."""

    event: Literal["replying"] = "replying"
    round: int
    sample: int
    characters: int


class Replied(Record):
    """A chat server's reply has ended; `problem` says why no candidate came of it. Totals are the run's so far."""

    event: Literal["replied"] = "replied"
    round: int
    sample: int
    turn: int
    status: str
    problem: str
    usage: Usage
    seconds: float
    total_tokens: int
    total_cost: float


class WorkerRestarted(Record):
    event: Literal["worker_restarted"] = "worker_restarted"
    reason: str


class Notice(Record):
    """Something the user should know that does not stop the run, with its remedy."""

    event: Literal["notice"] = "notice"
    message: str


class IndexProgress(Record):
    """How far indexing has come. `done` and `total` count what `stage` names: files read or split, pieces embedded."""

    event: Literal["index_progress"] = "index_progress"
    release: str
    stage: Literal["fetch", "read", "split", "embed", "publish"]
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
    | StepFinished
    | Profiled
    | Witnessed
    | Replying
    | Replied
    | WorkerRestarted
    | Notice
    | IndexProgress
    | RunFinished,
    Field(discriminator="event"),
]
Emit = Callable[[Event], None]


def ignore(_: Event) -> None:
    """An `Emit` for callers that want no events."""
