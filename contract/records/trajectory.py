"""Trajectories: every attempt of a run with the observation that its policy had seen, as training data."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record, RunId, digest
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate, ScheduleValue
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation, LaunchTime
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.run_settings import RunSettings


class AttemptResources(Record):
    """What a compiled candidate takes, as the maximum over its kernels. `smem_bytes`: static and dynamic, of one CTA.

    `ctas`: of a grid; None where the plan is not known. `ctas_per_sm`: resident at once, as the minimum over its kernels.
    """

    registers: int
    spilled_bytes: int
    smem_bytes: int
    threads: int
    ctas: int | None
    ctas_per_sm: int


class Attempt(Record):
    """Summary of an earlier candidate of the run.

    `time_us`: measured; `predicted_us`: modelled; None where absent. `is_floor`: the modelled time is only the roofline, since
    no model knows the candidate; None in records of older versions, whose free code had no other prediction.
    `seconds`: wall-clock time to propose, build and evaluate it; None in records of older versions.
    `unproved`: it was measured, and the second witness that it needs is still missing.

    Older versions do not hold the fields below. `verdict`: what is known of its results, in words; empty where it failed.
    `idea`: its author's sentence. `parent`: the candidate whose source its author started from. `change`: how it differs from
    that source. `terms`: see `Prediction`. `launches`: the parts of its time by the timing model, which add up, by the model's
    fitted factor, to `explained_us`; what the time has beyond that, no part explains. `profiled_us`: of each launch under the
    profiler. `limit`: the heaviest finding of its diagnosis, in words.
    """

    candidate_id: str
    policy: str
    schedule: dict[str, ScheduleValue] | None
    status: str
    message: str = ""
    time_us: float | None = None
    predicted_us: float | None = None
    is_floor: bool | None = None
    speedup: float | None = None
    reward: float | None = None
    seconds: float | None = None
    unproved: bool = False
    verdict: str = ""
    idea: str = ""
    parent: str | None = None
    change: str = ""
    terms: dict[str, float] = {}
    launches: tuple[LaunchTime, ...] = ()
    explained_us: float | None = None
    profiled_us: tuple[float, ...] = ()
    limit: str = ""
    resources: AttemptResources | None = None

    @property
    def modelled_us(self) -> float | None:
        """The predicted time; None where no model knows the candidate, so that its prediction is only the roofline."""
        is_floor = self.schedule is None if self.is_floor is None else self.is_floor
        return None if is_floor else self.predicted_us


class Precedent(Record):
    """A schedule that was among the best of an earlier run. `speedup`: over cuBLASLt-AutoTuning on `task`.

    `baseline_us`: what AutoTuning took there, by its time and its speedup; None in records of older versions.
    """

    run_id: RunId
    task: GemmTask
    schedule: dict[str, ScheduleValue]
    speedup: float
    baseline_us: float | None = None

    def carries_over(self, task: GemmTask) -> bool:
        """Whether its run searched the same product under another name: offline for a server, or in the other element type.

        The kernels of a schedule for F16 and for BF16 move the same bytes and execute the same instructions of another type.
        """
        own = self.task
        same_product = own == task.model_copy(update={"element": own.element, "mode": own.mode})
        return same_product and own != task and own.mode in (TimingMode.OFFLINE, task.mode)


class Exemplar(Record):
    """An earlier candidate with its source and score, shown for contrast. `bucket`: its score bucket; 0 is the worst."""

    candidate: AnyCandidate
    attempt: Attempt
    bucket: int


class Failure(Record):
    """A failed candidate that has not been repaired yet. `repairs`: number of repairs that led to it.

    `proven`: the verified candidate of the run whose source is nearest to it; None where there is none.
    """

    candidate: AnyCandidate
    evaluation: Evaluation
    repairs: int
    proven: AnyCandidate | None = None


class Newest(Record):
    """What limits the fastest kernel of the last round that does not lead. `differences`: from the leader to it."""

    candidate_id: str
    diagnosis: Diagnosis
    differences: tuple[Difference, ...] = ()


class Observation(Record):
    """What a policy sees before it proposes.

    `best`: the best verified candidate so far. `diagnosis` and `profile` belong to candidate `diagnosed`.
    `differences`: from the fastest other candidate with a profile to that candidate.
    `recent`: the latest candidates that were found right, latest first, without the best.
    `failures`: failed candidates without a schedule, latest first. `seconds_left`: wall-clock time left to the search.
    `candidates_left`: that the run may still try, those of this round included; None in records of older versions.
    `cutlass`: whether the sandbox builds kernels with CuTe and CUTLASS.
    """

    task: Task
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
    newest: Annotated[Newest | None, Field(exclude_if=lambda newest: newest is None)] = None
    exemplars: tuple[Exemplar, ...] = ()
    recent: tuple[AnyCandidate, ...] = ()
    failures: tuple[Failure, ...] = ()
    hits: tuple[Hit, ...] = ()
    seconds_left: float | None = None
    candidates_left: int | None = None
    cutlass: Annotated[bool, Field(exclude_if=lambda builds: not builds)] = False

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))


class Step(Record):
    """One candidate of one run, identified by (run_id, index). `seconds`: wall-clock time by stage and of the agent itself."""

    run_id: RunId
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
    """A run in the store. `settings` and `versions`: those it ran with, for replay."""

    run_id: RunId
    task: Task
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

    def travelled(self) -> "RunRecord":
        """The run as it leaves or enters a store: it is finished, and names no place, program, server or key."""
        return self.model_copy(update={"settings": self.settings.travelled(), "status": "finished", "out": None})


class Trajectory(Record):
    """A run with its steps, its observations by id, and its exchanges with chat servers."""

    run: RunRecord
    observations: dict[str, Observation]
    steps: tuple[Step, ...]
    exchanges: tuple[Exchange, ...] = ()
