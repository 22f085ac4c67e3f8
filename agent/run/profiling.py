"""Which candidates a round's end has profiled, and what happens where nothing can be."""

from collections.abc import Sequence

from agent.observe.ranking import Ranked, leader
from contract.build import Built
from contract.errors import ProfileFailed, ProfilerUnavailable
from contract.evaluation import Measured
from contract.events import Emit, Notice
from contract.profile import Profile
from contract.protocols import Sandbox
from contract.task import GemmTask
from contract.trajectory import Step

SHARE = 0.15  # of the run's time so far that profiling schedules may take, the first profile aside


def subjects(ranked: Sequence[Ranked]) -> list[Step]:
    """Candidates that are worth a profile: the leader, and the last round's fastest free-form one.

    What a model wrote is profiled though it does not lead: its author needs to know why it is slow.
    """
    best = leader(ranked)
    last = max((one.step.round for one in ranked), default=0)
    written = [one for one in ranked if one.plausible and one.step.round == last and not one.step.candidate.origin.schedule]
    wanted = [best, min(written, key=lambda one: one.time_us, default=None)]
    return list({one.attempt.candidate_id: one.step for one in wanted if one is not None}.values())


def unprofiled(steps: Sequence[Step], ranked: Sequence[Ranked]) -> list[Step]:
    """Those that were measured and whose candidate no profiler was tried on."""
    tried = {one.attempt.candidate_id for one in ranked if "profile" in one.step.seconds}
    return [step for step in steps if step.candidate.id not in tried and isinstance(step.evaluation, Measured)]


def affordable(step: Step, ranked: Sequence[Ranked], spent_s: float) -> bool:
    """Whether a step's profile fits in its share of the time; what a model wrote is profiled in any case.

    A search learns from many quick times; a model waits far longer for a reply than for the counters that it replies to.
    """
    if not step.candidate.origin.schedule:
        return True
    searched = (one.step for one in ranked if one.step.candidate.origin.schedule)
    taken_s = [each.seconds["profile"] for each in searched if "profile" in each.seconds]
    return not taken_s or sum(taken_s) + max(taken_s) <= SHARE * spent_s


class Profiler:
    """Profiles through the sandbox; the first reason why nothing can be profiled is said once and ends the profiling."""

    def __init__(self, sandbox: Sandbox, emit: Emit, *, wanted: bool) -> None:
        self._sandbox = sandbox
        self._emit = emit
        self._able = wanted and sandbox.can_measure

    @property
    def able(self) -> bool:
        return self._able

    def profile(self, built: Built, task: GemmTask) -> Profile | None:
        """None where this candidate, or anything at all, cannot be profiled."""
        try:
            return self._sandbox.profile(built, task)
        except ProfilerUnavailable as exc:
            self._able = False
            self._emit(Notice(message=f"no hardware counters: {exc}; the run goes on with times and inspection alone"))
        except ProfileFailed as exc:
            self._emit(Notice(message=f"{built.candidate.id[:8]} could not be profiled: {exc}"))
        return None
