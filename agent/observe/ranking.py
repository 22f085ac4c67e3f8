"""Which step leads a run, which steps are measured again at its end, and a step in short for a policy. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contract.chip import Chip
from contract.evaluation import AUTOTUNED, Measured, Unmeasured
from contract.reward import beyond_roofline, confirmed
from contract.speedup import ratio_over
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
    floor that stands in for a prediction. Candidates that were measured again, in full, are compared by their paired
    speedup; others by their time. A candidate whose latest evaluation failed is left out. With `proved_only`, a measured
    kernel that waits for a second witness leads only where every measured one waits.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}
    timed = trusted_first(latest.values()) if proved_only else [one for one in latest.values() if one.plausible]
    if not timed:
        predicted = (one for one in latest.values() if one.attempt.predicted_us is not None)
        return min(predicted, key=_unmeasured_score, default=None)
    times = Counter(one.attempt.candidate_id for one in ranked)
    repeated = [one for one in timed if times[one.attempt.candidate_id] > 1]
    return max(repeated, key=_final_score) if repeated else min(timed, key=lambda one: one.time_us)


def leading_step(steps: Sequence[Step], task: GemmTask, chip: Chip) -> Step | None:
    """`leader` over steps that are not ranked yet."""
    best = leader([rank(step, task, chip) for step in steps])
    return best.step if best else None


def finalists(ranked: Sequence[Ranked], count: int) -> list[Step]:
    """The fastest candidates of the search, fastest first. Unproved ones count: a finalist is proved before it wins."""
    timed = sorted((one for one in ranked if one.plausible), key=lambda one: one.time_us)
    return [one.step for one in timed[:count]]


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


def _final_score(one: Ranked) -> tuple[float, float]:
    """Speedup over the autotuned baseline, then time. Without that baseline, time alone decides."""
    return one.attempt.speedup or 0.0, -one.time_us


def _known(value_us: float | None) -> float:
    if value_us is None:
        raise ValueError("the step has no such time")
    return value_us
