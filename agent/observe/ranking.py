"""Which step leads a run, which steps are measured again at its end, and a step in short for a policy. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contract.candidate import Candidate
from contract.chip import Chip
from contract.evaluation import AUTOTUNED, Measured, Unmeasured
from contract.reward import beyond_roofline, confirmed
from contract.speedup import baseline_of, paired_ratio, ratio_over
from contract.task import GemmTask
from contract.trajectory import Attempt, Step


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
    def plain_speedup(self) -> float | None:
        """Speedup over the autotuned baseline with plain launches; None where that was not measured."""
        evaluation, candidate = self.step.evaluation, self.step.candidate
        if not isinstance(evaluation, Measured) or not isinstance(candidate, Candidate):
            return None
        if not any(launch.programmatic for launch in candidate.plan.launches):
            return self.attempt.speedup
        autotuned = baseline_of(evaluation, AUTOTUNED)
        return paired_ratio(evaluation.plain, autotuned) if evaluation.plain and autotuned else None

    @property
    def time_us(self) -> float:
        return _known(self.attempt.time_us)

    @property
    def predicted_us(self) -> float:
        return _known(self.attempt.predicted_us)


def rank(step: Step, task: GemmTask, chip: Chip) -> Ranked:
    evaluation = step.evaluation
    plausible = isinstance(evaluation, Measured) and not beyond_roofline(evaluation, task, chip)
    return Ranked(step=step, attempt=attempt_of(step), plausible=plausible)


def leader(ranked: Sequence[Ranked], *, proved_only: bool = True) -> Ranked | None:
    """The best candidate's latest step; None where no candidate passed.

    A measured time beats any prediction. An executed candidate beats one that was not executed, and a modelled time beats a
    floor that stands in for a prediction. Candidates of the race beat those that were only screened, however fast these were.
    Both are compared by their paired speedup, in which the drift of clocks cancels. A candidate whose latest evaluation
    failed is left out. With `proved_only`, a measured kernel that waits for a second witness leads only where every measured
    one waits.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}
    timed = trusted_first(latest.values()) if proved_only else [one for one in latest.values() if one.plausible]
    if not timed:
        predicted = (one for one in latest.values() if one.attempt.predicted_us is not None)
        return min(predicted, key=_unmeasured_score, default=None)
    times = Counter(one.attempt.candidate_id for one in ranked)
    return _fastest_first([one for one in timed if _decides(one, times)] or timed)[0]


def _decides(one: Ranked, times: Mapping[str, int]) -> bool:
    """Whether it was measured thoroughly. Older records do not say; there the second measurement was thorough."""
    assert isinstance(one.step.evaluation, Measured)
    return one.thorough or (one.step.evaluation.effort is None and times[one.attempt.candidate_id] > 1)


def leading_step(steps: Sequence[Step], task: GemmTask, chip: Chip) -> Step | None:
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


def attempt_of(step: Step) -> Attempt:
    """A step in short. Its seconds are the cost of its policy's choice.

    Profiling and the second witness follow a success; their time is left out.
    """
    evaluation = step.evaluation
    paid = [seconds for stage, seconds in step.seconds.items() if stage not in ("profile", "witness")]
    return Attempt(
        candidate_id=step.candidate.id,
        policy=step.candidate.origin.policy,
        schedule=step.candidate.origin.schedule,
        status=evaluation.status,
        message=evaluation.fault,
        time_us=evaluation.time_us,
        predicted_us=evaluation.predicted_us,
        speedup=ratio_over(evaluation, AUTOTUNED),
        reward=step.reward,
        seconds=sum(paid) if paid else None,
        unproved=isinstance(evaluation, Measured) and _unproved(evaluation, step),
    )


def _unproved(measured: Measured, step: Step) -> bool:
    """Whether the step waits for a second witness. Steps of versions without one have a reward and keep it."""
    asked = measured.witness is not None or step.reward is not None
    return not asked and not confirmed(measured, step.candidate.origin)


def best_prediction(ranked: Sequence[Ranked]) -> tuple[bool, float] | None:
    """The best prediction among steps without a time, as a score. Lower is better; every floor scores above every model."""
    return min((_prediction_score(one) for one in ranked if one.attempt.predicted_us is not None), default=None)


def _prediction_score(one: Ranked) -> tuple[bool, float]:
    return not one.estimated, one.predicted_us


def _unmeasured_score(one: Ranked) -> tuple[bool, tuple[bool, float]]:
    return not one.proven, _prediction_score(one)


def _fastest_first(timed: Sequence[Ranked]) -> list[Ranked]:
    """By speedup over the autotuned baseline, then by time. Where one lacks that baseline, time alone decides."""
    paired = all(one.attempt.speedup is not None for one in timed)
    return sorted(timed, key=lambda one: (-(one.attempt.speedup or 0.0) if paired else 0.0, one.time_us))


def _known(value_us: float | None) -> float:
    if value_us is None:
        raise ValueError("the step has no such time")
    return value_us
