"""Which candidates are profiled at the end of a round, and what their counters change in their steps."""

import logging
from collections.abc import Sequence

from cudal2_agent.agent.observe.ranking import Ranked, leader, newest_written
from cudal2_agent.agent.run.clock import RunClock
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.history import History
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.events import Emit, Notice, Profiled
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.trajectory import RunRecord, Step

SHARE = 0.15  # of the run's time so far that profiling schedules may take, not counting the first profile

logger = logging.getLogger(__name__)


def subjects(ranked: Sequence[Ranked]) -> list[Step]:
    """The candidates worth a profile: the leader, and the fastest of the last round that has no schedule.

    A model's kernel is profiled even where it does not lead: the model needs to know why it is slow.
    """
    wanted = [leader(ranked), newest_written(ranked)]
    return list({one.attempt.candidate_id: one.step for one in wanted if one is not None}.values())


def unprofiled(steps: Sequence[Step], ranked: Sequence[Ranked]) -> list[Step]:
    """The measured steps whose candidate was never profiled, nor tried to be."""
    tried = {one.attempt.candidate_id for one in ranked if "profile" in one.step.seconds}
    return [step for step in steps if step.candidate.id not in tried and step.evaluation.time_us is not None]


def affordable(step: Step, ranked: Sequence[Ranked], spent_s: float) -> bool:
    """Whether a step's profile fits in its share of the time. A model's kernel is always profiled.

    A search over schedules learns from many quick times. A model waits far longer for a reply than for the counters.
    """
    if not step.candidate.origin.schedule:
        return True
    searched = (one.step for one in ranked if one.step.candidate.origin.schedule)
    taken_s = [each.seconds["profile"] for each in searched if "profile" in each.seconds]
    return not taken_s or sum(taken_s) + max(taken_s) <= SHARE * spent_s


def diagnosis_of(
    parts: Dependencies, run: RunRecord, built: Built, evaluation: Evaluation, profile: Profile | None
) -> Diagnosis | None:
    """What limits a candidate. None after an error of ours, which must not cost a measurement or a run."""
    try:
        return parts.diagnose(built, run.task, run.chip, evaluation, profile)
    except Exception as exc:
        logger.warning("candidate %s could not be diagnosed", built.candidate.id, exc_info=exc)
        return None


class CounterGuard:
    """Profiles through the sandbox. The first reason why nothing can be profiled here is reported once and ends the profiling.

    `consequence`: what follows from missing counters, in words.
    """

    def __init__(self, sandbox: Sandbox, emit: Emit, *, wanted: bool, consequence: str) -> None:
        self._sandbox, self._emit, self._consequence = sandbox, emit, consequence
        self._able = wanted

    @property
    def able(self) -> bool:
        return self._able

    def profile(self, built: Built, task: Task) -> Profile | None:
        """None where nothing can be profiled here. Raises: ProfileFailed where this candidate cannot be profiled."""
        if not self._able:
            return None
        try:
            return self._sandbox.profile(built, task)
        except ProfilerUnavailable as exc:
            self._able = False
            self._emit(Notice(message=f"no hardware counters: {exc}; {self._consequence}"))
            return None


class RunProfiler:
    """Profiles the candidates of one run and records the counters with their steps."""

    def __init__(self, run: RunRecord, parts: Dependencies, history: History, clock: RunClock, emit: Emit) -> None:
        self._run, self._parts, self._history = run, parts, history
        self._clock, self._emit = clock, emit
        wanted = run.settings.profile
        self._counters = CounterGuard(
            parts.sandbox,
            emit,
            wanted=wanted != "off" and parts.sandbox.can_measure,
            consequence="the run goes on with times and inspection alone",
        )
        # Counters found a search over schedules no faster kernel (log/), and they take seconds; a model reads them.
        self.every_round = wanted == "leaders" or parts.policy.reads_code

    @property
    def able(self) -> bool:
        return self._counters.able

    def profile(self, step: Step, built: Built) -> None:
        """Record a step with its profile and a diagnosis from counters. The profile's time counts separately."""
        begin_s = self._clock.worked_s(self._parts.sandbox)
        with self._clock.outside():
            profile = self._profile(built)
        seconds = {**step.seconds, "profile": self._clock.worked_s(self._parts.sandbox) - begin_s}
        if profile is None:
            self._history.replace(step.model_copy(update={"seconds": seconds}))
            return
        diagnosis = diagnosis_of(self._parts, self._run, built, step.evaluation, profile)
        self._history.replace(step.model_copy(update={"profile": profile, "diagnosis": diagnosis, "seconds": seconds}))
        bottleneck = diagnosis.findings[0].bottleneck if diagnosis and diagnosis.findings else ""
        self._emit(Profiled(candidate_id=step.candidate.id, seconds=seconds["profile"], bottleneck=bottleneck))

    def _profile(self, built: Built) -> Profile | None:
        """None where this candidate, or any at all, cannot be profiled."""
        try:
            return self._counters.profile(built, self._run.task)
        except ProfileFailed as exc:
            self._emit(Notice(message=f"{built.candidate.id[:8]} could not be profiled: {exc}"))
            return None
