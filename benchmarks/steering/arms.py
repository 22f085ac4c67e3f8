"""The search of one arm of `benchmarks.steering`: the agent's parts in a plain loop over a shared sandbox."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from cudal2_agent.agent.observe.observation import observe
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.agent.run.counters import subjects, unprofiled
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import ProfileFailed
from cudal2_agent.contract.protocols.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.reward import reward
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built
from cudal2_agent.sandbox.diagnosis.differences import explain

ARMS = ("off", "timed", "counters")

T = TypeVar("T")


class Late(Exception):
    """The deadline has passed. The unfinished shape and seed is dropped."""


class Shared:
    """One sandbox for concurrent arms. Each candidate is measured once for all arms, so they share its noise.

    The GPU runs one measurement at a time; compilation continues meanwhile.
    """

    def __init__(self, sandbox: Sandbox, deadline: float) -> None:
        self.sandbox = sandbox
        self._deadline = deadline
        self._gpu = threading.Lock()
        self._evaluations: dict[tuple[str, str], tuple[Evaluation, float]] = {}
        self._profiles: dict[tuple[str, str], tuple[Profile | None, float]] = {}

    def evaluate(self, built: Built, task: GemmTask) -> tuple[Evaluation, float]:
        """The evaluation, and the seconds that it took when it was made."""
        key = (task.id, built.candidate.id)
        return self._once(self._evaluations, key, lambda: self.sandbox.evaluate(built, task, "quick"))

    def profile(self, built: Built, task: GemmTask) -> tuple[Profile | None, float]:
        """The profile, None if this candidate cannot be profiled, and its seconds. Raises: ProfilerUnavailable."""
        return self._once(self._profiles, (task.id, built.candidate.id), lambda: self._profile(built, task))

    def again(self, built: Built, task: GemmTask) -> Evaluation:
        """A fresh measurement."""
        with self._gpu:
            return self.sandbox.evaluate(built, task, "quick")

    def build(self, candidates: list[Candidate], task: GemmTask) -> list[Built | Evaluation]:
        outcomes = dict(self.sandbox.build(candidates, task))
        return [outcomes[position] for position in sorted(outcomes)]

    def _profile(self, built: Built, task: GemmTask) -> Profile | None:
        try:
            return self.sandbox.profile(built, task)
        except ProfileFailed:
            return None

    def _once(
        self, known: dict[tuple[str, str], tuple[T, float]], key: tuple[str, str], make: Callable[[], T]
    ) -> tuple[T, float]:
        with self._gpu:
            if time.monotonic() > self._deadline:
                raise Late
            if key not in known:
                started = time.monotonic()
                made = make()
                known[key] = made, time.monotonic() - started
            return known[key]


class Tried(Record):
    """One candidate of an arm. `speedup`: over the AutoTuning that it was paired with; None if it was not measured.

    `relieves`: the bottleneck that it was written to relieve; `gain`: its speed over that of the schedule with the bottleneck.
    """

    candidate_id: str
    speedup: float | None
    relieves: str = ""
    gain: float | None = None


class Arm(Record):
    """The search of an arm. Seconds are the cost of its candidates and profiles when they were made, by any arm."""

    name: str
    tried: tuple[Tried, ...]
    evaluate_s: float
    profile_s: float
    profiles: int
    propose_s: float

    def best(self, count: int) -> Tried | None:
        """The fastest of the first `count` candidates."""
        timed = [one for one in self.tried[:count] if one.speedup is not None]
        return max(timed, key=lambda one: one.speedup or 0.0, default=None)


class ArmSearch:
    """The agent's loop without graph, store and clock: each candidate of a round is built, measured and diagnosed.

    The arm `counters` profiles every new leader at the end of a round. A run of the agent limits the time for profiles.
    """

    def __init__(self, name: str, task: GemmTask, seed: int, shared: Shared) -> None:
        self.name = name
        self._shared = shared
        self._policy = SchedulePolicy(families(task.arch), seed=seed, steer=name != "off")
        self._run = _record(name, task, seed, shared)
        self._ranked: list[Ranked] = []
        self._built: dict[str, Built] = {}
        self._profiles: list[float] = []
        self._propose_s = 0.0

    def play(self, budget: int, round_size: int) -> Arm:
        """Search until the budget is spent. Raises: Late, ProfilerUnavailable."""
        number = 0
        while len(self._ranked) < budget:
            number += 1
            candidates = self._propose(number, min(round_size, budget - len(self._ranked)))
            if not candidates:
                break
            for candidate, outcome in zip(candidates, self._shared.build(candidates, self._run.task), strict=True):
                self._evaluate(number, candidate, outcome)
            if self.name == "counters":
                self._profile()
        return Arm(
            name=self.name,
            tried=tuple(self._tried(one) for one in self._ranked),
            evaluate_s=sum(one.step.seconds.get("evaluate", 0.0) for one in self._ranked),
            profile_s=sum(self._profiles),
            profiles=len(self._profiles),
            propose_s=self._propose_s,
        )

    def built(self, candidate_id: str) -> Built:
        return self._built[candidate_id]

    def _propose(self, number: int, count: int) -> list[Candidate]:
        observation = observe(self._run, self._ranked, number, (), explain, seconds_left=3600.0, reads_code=False)
        started = time.monotonic()
        candidates = self._policy.propose(observation, count)
        self._propose_s += time.monotonic() - started
        return candidates

    def _evaluate(self, number: int, candidate: Candidate, outcome: Built | Evaluation) -> None:
        evaluation, seconds, diagnosis = outcome, 0.0, None
        if isinstance(outcome, Built):
            self._built[candidate.id] = outcome
            evaluation, seconds = self._shared.evaluate(outcome, self._run.task)
            diagnosis = self._diagnose(outcome, evaluation, None)
        assert not isinstance(evaluation, Built)
        step = Step(
            run_id=self._run.run_id,
            index=len(self._ranked),
            round=number,
            observation_id="",
            candidate=candidate,
            evaluation=evaluation,
            diagnosis=diagnosis,
            reward=reward(evaluation, self._run.task, self._run.chip, candidate.origin),
            seconds={"evaluate": seconds},
            created_at=datetime.now(UTC),
        )
        self._ranked.append(rank(step, self._run.task, self._run.chip))

    def _profile(self) -> None:
        for step in unprofiled(subjects(self._ranked), self._ranked):
            built = self._built[step.candidate.id]
            profile, seconds = self._shared.profile(built, self._run.task)
            self._profiles.append(seconds)
            found = self._diagnose(built, step.evaluation, profile)
            changes = {"diagnosis": found, "profile": profile, "seconds": {**step.seconds, "profile": seconds}}
            self._ranked[step.index] = rank(step.model_copy(update=changes), self._run.task, self._run.chip)

    def _diagnose(self, built: Built, evaluation: Evaluation, profile: Profile | None) -> Diagnosis:
        return diagnose_built(built, self._run.task, self._run.chip, evaluation, profile)

    def _tried(self, one: Ranked) -> Tried:
        origin, own = one.step.candidate.origin, _speed(one)
        parents = [other for other in self._ranked if origin.note and other.step.candidate.id in origin.parents]
        parent = _speed(parents[0]) if parents else None
        return Tried(
            candidate_id=one.step.candidate.id,
            speedup=own,
            relieves=origin.note.removeprefix("relieves "),
            gain=own / parent if own and parent else None,
        )


def _speed(one: Ranked) -> float | None:
    return ratio_over(one.step.evaluation, AUTOTUNED) if one.trusted else None


def _record(name: str, task: GemmTask, seed: int, shared: Shared) -> RunRecord:
    return RunRecord(
        run_id=f"{task.shape}-{seed}-{name}",
        task=task,
        chip=shared.sandbox.chip,
        policy="schedule",
        seed=seed,
        settings=RunSettings(),
        versions={},
        status="running",
        created_at=datetime.now(UTC),
    )
