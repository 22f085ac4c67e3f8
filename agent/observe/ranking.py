"""Which step leads a run, what ties with it, and which steps are measured again at the end of a run. Pure.

A measured time and a prediction are never compared: a measured candidate is ahead of all that are not. Predictions within
`contract.reward.speedup.TIE` are tied: which of them is faster only a time can say. The fastest leads all the same, of equal
ones the earliest: a prediction is deterministic, so that its order is at least not chance.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudal2_agent.agent.observe.attempts import attempt_of
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured, Unmeasured
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import Attempt, Step
from cudal2_agent.contract.reward.reward import beyond_roofline
from cudal2_agent.contract.reward.speedup import ScreenedTime, paired_ratio, steady_speedups, tied, yardstick_of


@dataclass(frozen=True)
class Ranked:
    """A step with its short form.

    `plausible`: measured, and not faster than the roofline allows. `trusted`: plausible, and not waiting for a second witness.
    """

    step: Step
    attempt: Attempt
    plausible: bool

    @property
    def trusted(self) -> bool:
        return self.plausible and not self.attempt.unproved

    @property
    def estimated(self) -> bool:
        """Whether its time was modelled. A prediction that equals its floor says only that no kernel is faster."""
        evaluation = self.step.evaluation
        return isinstance(evaluation, Unmeasured) and not evaluation.prediction.is_floor

    @property
    def proven(self) -> bool:
        """Whether it was executed and found right."""
        return self.step.evaluation.passed

    @property
    def thorough(self) -> bool:
        """Whether it was measured as the end of a run measures: in a race, or alone in full."""
        return isinstance(self.step.evaluation, Measured) and self.step.evaluation.effort in ("race", "full")

    @property
    def overlaps(self) -> bool:
        """Whether it was screened with launches that overlap. In a race, all finalists share the rounds of one baseline."""
        evaluation, candidate = self.step.evaluation, self.step.candidate
        if not isinstance(evaluation, Measured) or not isinstance(candidate, Candidate) or self.thorough:
            return False
        return evaluation.mode is TimingMode.OFFLINE and any(launch.programmatic for launch in candidate.plan.kernels)

    @property
    def yardstick(self) -> str | None:
        """The baseline that its speedup is over; of a module PyTorch's fastest that was measured beside it."""
        evaluation = self.step.evaluation
        beaten = yardstick_of(evaluation) if isinstance(evaluation, Measured) else None
        return beaten.name if beaten else None

    @property
    def plain_speedup(self) -> float | None:
        """Speedup over the baseline that counts with plain launches; None where that was not measured."""
        evaluation, candidate = self.step.evaluation, self.step.candidate
        if not isinstance(evaluation, Measured) or not isinstance(candidate, Candidate):
            return None
        if not any(launch.programmatic for launch in candidate.plan.kernels):
            return self.attempt.speedup
        yardstick = yardstick_of(evaluation)
        return paired_ratio(evaluation.plain, yardstick) if evaluation.plain and yardstick else None

    @property
    def time_us(self) -> float:
        return _known(self.attempt.time_us)

    @property
    def predicted_us(self) -> float:
        return _known(self.attempt.predicted_us)


def rank(step: Step, task: Task, chip: Chip) -> Ranked:
    evaluation = step.evaluation
    plausible = isinstance(evaluation, Measured) and not beyond_roofline(evaluation, task, chip)
    return Ranked(step=step, attempt=attempt_of(step), plausible=plausible)


def leader(ranked: Sequence[Ranked], *, proved_only: bool = True) -> Ranked | None:
    """The best candidate's latest step; None where no candidate passed.

    A measured time beats any prediction. An executed candidate beats one that was not executed, and a modelled time beats a
    floor that stands in for a prediction. Of equal predictions the earliest leads. Candidates of the race
    beat those that were only screened, however fast these were. Both are compared by their paired speedup, in which the drift
    of clocks cancels. A candidate whose latest evaluation failed is left out. With `proved_only`, a measured kernel that waits
    for a second witness leads only where every measured one waits.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}
    timed = trusted_first(latest.values()) if proved_only else [one for one in latest.values() if one.plausible]
    if not timed:
        return next(iter(_fastest_predicted(latest.values())), None)
    times = Counter(one.attempt.candidate_id for one in ranked)
    return _fastest_first([one for one in timed if _decides(one, times)] or timed)[0]


def _decides(one: Ranked, times: Mapping[str, int]) -> bool:
    """Whether it was measured thoroughly. Older records do not say; there the second measurement was thorough."""
    assert isinstance(one.step.evaluation, Measured)
    return one.thorough or (one.step.evaluation.effort is None and times[one.attempt.candidate_id] > 1)


def newest_written(ranked: Sequence[Ranked]) -> Ranked | None:
    """The fastest measured candidate of the last round that has no schedule; None where there is none."""
    last = max((one.step.round for one in ranked), default=0)
    written = [one for one in ranked if one.plausible and one.step.round == last and not one.step.candidate.origin.schedule]
    return min(written, key=lambda one: one.time_us, default=None)


def leading_step(steps: Sequence[Step], task: Task, chip: Chip) -> Step | None:
    """`leader` over steps that are not ranked yet."""
    best = leader([rank(step, task, chip) for step in steps])
    return best.step if best else None


def finalists(ranked: Sequence[Ranked], count: int) -> list[Step]:
    """The fastest candidates of the search, fastest first. Unproved ones count: a finalist is proved before it wins.

    The last place is for the fastest one with plain launches, where it is not among the others.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    timed = _fastest_first([one for one in latest if one.plausible])
    chosen = timed[:count]
    plainly = [one for one in timed if one.plain_speedup is not None]
    plain = max(plainly, key=lambda one: one.plain_speedup or 0.0, default=None)
    if plain is not None and plain not in chosen and count > 1:
        chosen[-1] = plain
    return [one.step for one in chosen]


def trusted_first(ranked: Iterable[Ranked]) -> list[Ranked]:
    """The trusted ones; where there are none, the plausible ones."""
    plausible = [one for one in ranked if one.plausible]
    return [one for one in plausible if one.trusted] or plausible


def ties(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The candidates that tie with the fastest prediction, the leader first; empty where the leader has a measured time."""
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    return [] if any(one.plausible for one in latest) else _fastest_predicted(latest)


def is_ahead(one: Ranked, best: Ranked) -> bool:
    """Whether a candidate is better than another by their predictions alone."""
    if _standing(one) != _standing(best):
        return _standing(one) > _standing(best)
    return one.predicted_us < best.predicted_us and not tied(one.predicted_us, best.predicted_us)


def fastest_of(ranked: Iterable[Ranked]) -> Ranked | None:
    """The fastest by predictions alone, whether or not it ties; None where there are none."""
    predicted = [one for one in ranked if one.attempt.predicted_us is not None]
    highest = max(map(_standing, predicted), default=None)
    return min((one for one in predicted if _standing(one) == highest), key=lambda one: one.predicted_us, default=None)


def _fastest_predicted(latest: Iterable[Ranked]) -> list[Ranked]:
    """Those that tie with the fastest, fastest first. Only candidates of one standing are compared."""
    predicted = [one for one in latest if one.attempt.predicted_us is not None]
    fastest = fastest_of(predicted)
    if fastest is None:
        return []
    alike = [one for one in predicted if _standing(one) == _standing(fastest)]
    close = [one for one in alike if tied(one.predicted_us, fastest.predicted_us)]
    return sorted(close, key=lambda one: one.predicted_us)


def _standing(one: Ranked) -> tuple[bool, bool]:
    """What counts before a predicted time: a proof, then a model behind the time."""
    return one.proven, one.estimated


def _fastest_first(timed: Sequence[Ranked]) -> list[Ranked]:
    """By speedup under equal conditions, then by time. Where they are not over one baseline, time alone decides."""
    paired = [(one, one.attempt.speedup) for one in timed if one.attempt.speedup is not None]
    if len(paired) < len(timed) or len({one.yardstick for one in timed}) > 1:
        return sorted(timed, key=lambda one: one.time_us)
    speedups = steady_speedups([ScreenedTime(one.time_us, speedup, one.overlaps) for one, speedup in paired])
    order = sorted(zip(speedups, timed, strict=True), key=lambda pair: (-pair[0], pair[1].time_us))
    return [one for _, one in order]


def _known(value_us: float | None) -> float:
    if value_us is None:
        raise ValueError("the step has no such time")
    return value_us
