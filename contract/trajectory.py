"""Trajectories: every attempt with what the policy had seen, as training data."""

from datetime import datetime
from typing import Literal

from contract.base import Record, digest
from contract.candidate import AnyCandidate, ScheduleValue
from contract.chip import Chip
from contract.diagnosis import Diagnosis
from contract.evaluation import Evaluation
from contract.knowledge import Hit
from contract.task import GemmTask


class Attempt(Record):
    """An earlier candidate of the run in short. `time_us` measured, `predicted_us` modelled; each None where absent."""

    candidate_id: str
    policy: str
    schedule: dict[str, ScheduleValue] | None
    status: str
    message: str = ""
    time_us: float | None = None
    predicted_us: float | None = None
    speedup: float | None = None
    reward: float | None = None


class Observation(Record):
    """What a policy sees before it proposes. `best` is the source of the best verified candidate so far."""

    task: GemmTask
    chip: Chip
    round: int
    seed: int
    attempts: tuple[Attempt, ...] = ()
    best: AnyCandidate | None = None
    best_evaluation: Evaluation | None = None
    diagnosis: Diagnosis | None = None
    hits: tuple[Hit, ...] = ()

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))


class Step(Record):
    """One candidate of one run. (run_id, index) is its identity; `seconds` are wall-clock by stage, agent's own included."""

    run_id: str
    index: int
    round: int
    observation_id: str
    candidate: AnyCandidate
    evaluation: Evaluation
    diagnosis: Diagnosis | None = None
    reward: float | None = None
    seconds: dict[str, float] = {}
    created_at: datetime


class RunRecord(Record):
    """A run in the store. `settings` and `versions` are what it ran under, for replay."""

    run_id: str
    task: GemmTask
    chip: Chip
    policy: str
    seed: int
    settings: dict[str, str | int | float | bool | None]
    versions: dict[str, str]
    status: Literal["running", "finished", "interrupted", "failed"]
    created_at: datetime
    finished_at: datetime | None = None
    best_candidate_id: str | None = None
    out: str | None = None


class Trajectory(Record):
    """A run with its steps and the observations they refer to, keyed by id."""

    run: RunRecord
    observations: dict[str, Observation]
    steps: tuple[Step, ...]
