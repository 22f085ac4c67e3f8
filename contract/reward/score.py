"""The score of candidates: what a trainer or an environment learns from.

A measured candidate has the reward of `contract.reward.reward`. Where nothing measures, a verified candidate has the value of
its predicted time, which orders candidates of one task and is never compared with a reward.
"""

import math
from collections.abc import Sequence
from typing import Literal, Protocol

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Evaluation, Unmeasured
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.reward.reward import CLIP, FLOOR
from cudal2_agent.contract.reward.roofline import roofline_us

# What a value rests on: measured times, a predicted time of a verified candidate, or a failure.
Basis = Literal["measured", "predicted", "failed"]


class Scored(Record):
    """The outcome of one candidate of one task.

    `value`: what is learned from; None where nothing is known, which is neither bad nor 0.
    `cached`: whether it was answered from an earlier evaluation. `seconds`: wall-clock time of this answer.
    `executed_s`: those of them in which the candidate was verified and timed; the rest waited for builds or for a turn.
    """

    candidate_id: str
    evaluation: Evaluation
    value: float | None
    basis: Basis | None
    cached: bool = False
    seconds: float = 0.0
    executed_s: float = 0.0


class TaskCandidates(Record):
    """Candidates of one task that are to be scored."""

    task: Task
    candidates: tuple[AnyCandidate, ...]


class Score(Protocol):
    """Evaluates candidates. Safe to call from several threads."""

    @property
    def chip(self) -> Chip: ...

    def score(self, task: Task, candidates: Sequence[AnyCandidate]) -> list[Scored]:
        """One outcome for each candidate, in order. A fault of a candidate is an outcome.

        Raises: MachineError, WorkerError where this machine fails.
        """
        ...


class JointScore(Score, Protocol):
    """A score that builds the candidates of several tasks together. They are executed one after another all the same."""

    def score_groups(self, groups: Sequence[TaskCandidates]) -> list[list[Scored]]:
        """The outcomes of each group, in order. Raises: as `score`; what was known by then is not evaluated again."""
        ...


def predicted_value(evaluation: Evaluation, task: Task, chip: Chip) -> float | None:
    """The value of a verified candidate that was not measured: logarithm of roofline over predicted time, smoothly clipped.

    In the scale of `reward`, with the roofline in place of the baseline, so that it is negative. None for a measured
    candidate, for one that was not verified by execution, and where only the roofline stands in for a prediction. The floor
    for a failed one.
    """
    if not isinstance(evaluation, Unmeasured):
        return None if evaluation.status == "measured" else FLOOR
    if not evaluation.executed or evaluation.prediction.is_floor:
        return None
    ratio = roofline_us(task, chip) / evaluation.prediction.predicted_us
    return CLIP * math.tanh(math.log(ratio) / CLIP)
