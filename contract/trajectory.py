"""Trajectories: every attempt with what the policy had seen, as training data."""

from datetime import datetime
from typing import Literal

from contract.base import Record, digest
from contract.candidate import AnyCandidate, ScheduleValue
from contract.chip import Chip
from contract.diagnosis import Diagnosis
from contract.evaluation import Evaluation
from contract.exchange import Exchange
from contract.knowledge import Hit
from contract.profile import Difference, Profile
from contract.run_settings import RunSettings
from contract.task import GemmTask


class Attempt(Record):
    """An earlier candidate of the run in short. `time_us` measured, `predicted_us` modelled; each None where absent.

    `seconds`: wall-clock that it took to propose, build and evaluate; None in what older versions stored. `unproved`: it
    was measured, and still lacks the second witness that it needs.
    """

    candidate_id: str
    policy: str
    schedule: dict[str, ScheduleValue] | None
    status: str
    message: str = ""
    time_us: float | None = None
    predicted_us: float | None = None
    speedup: float | None = None
    reward: float | None = None
    seconds: float | None = None
    unproved: bool = False

    @property
    def modelled_us(self) -> float | None:
        """The predicted time where a schedule is behind it; of free code the roofline stands in its place."""
        return self.predicted_us if self.schedule is not None else None


class Exemplar(Record):
    """An earlier candidate of the run with its source and score, shown for contrast. `bucket`: of the scores, 0 the worst."""

    candidate: AnyCandidate
    attempt: Attempt
    bucket: int


class Failure(Record):
    """A candidate that failed and that nothing has repaired yet. `repairs`: how many repairs led to it."""

    candidate: AnyCandidate
    evaluation: Evaluation
    repairs: int


class Observation(Record):
    """What a policy sees before it proposes. `best` is the source of the best verified candidate so far.

    `diagnosis` and `profile` are of candidate `diagnosed`; `differences` lead from the leader before it to it.
    `failures`: candidates without a schedule behind them, latest first. `seconds_left`: wall-clock left to the search.
    """

    task: GemmTask
    chip: Chip
    round: int
    seed: int
    attempts: tuple[Attempt, ...] = ()
    best: AnyCandidate | None = None
    best_evaluation: Evaluation | None = None
    diagnosis: Diagnosis | None = None
    diagnosed: str | None = None
    profile: Profile | None = None
    differences: tuple[Difference, ...] = ()
    exemplars: tuple[Exemplar, ...] = ()
    failures: tuple[Failure, ...] = ()
    hits: tuple[Hit, ...] = ()
    seconds_left: float | None = None

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
    profile: Profile | None = None
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
    settings: RunSettings
    versions: dict[str, str]
    status: Literal["running", "finished", "interrupted", "failed"]
    created_at: datetime
    finished_at: datetime | None = None
    best_candidate_id: str | None = None
    out: str | None = None


class Trajectory(Record):
    """A run with its steps, the observations they refer to, keyed by id, and its exchanges with chat servers."""

    run: RunRecord
    observations: dict[str, Observation]
    steps: tuple[Step, ...]
    exchanges: tuple[Exchange, ...] = ()
