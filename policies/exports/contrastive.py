"""Samples whose prompt shows kernels of different score buckets for contrast, as CUDA-L1 (arXiv 2507.14111) trains on.

A policy that reads code was shown such exemplars. For other policies they are drawn from the earlier steps of the run.
"""

import math
from collections.abc import Iterator

from cudal2_agent.contract.records.trajectory import Exemplar, Observation, Step, Trajectory
from cudal2_agent.contract.reward.contrast import draw_contrast
from cudal2_agent.policies.chat.assignment import SHOWN_EXEMPLARS, Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.exports.counts import ExportCounts
from cudal2_agent.policies.exports.samples import TrainingSample, environments, is_verified, samples_of


def contrasted(trajectory: Trajectory, prompts: Prompts, counts: ExportCounts) -> Iterator[TrainingSample]:
    """The samples of a run whose prompt shows exemplars of two or more buckets, measured in the sample's environment."""
    earlier = _Earlier(trajectory)
    for sample in samples_of(trajectory, prompts, counts, earlier.assign):
        same = all(earlier.environment_of(name) == sample.provenance.environment for name in sample.exemplars)
        if len(set(sample.exemplars.values())) < SHOWN_EXEMPLARS:
            counts.left_out["no_contrast"] += 1
        elif not same:
            counts.left_out["other_environment"] += 1
        else:
            yield sample


class _Earlier:
    """The candidates of a run as they were when an observation was made."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._run = trajectory.run
        self._environments = environments(trajectory.steps)
        self._first: dict[str, Step] = {}
        for step in trajectory.steps:
            self._first.setdefault(step.candidate.id, step)
        self._asking: dict[str, str] = {}
        for step in trajectory.steps:
            self._asking.setdefault(step.observation_id, self._environments[step.index])

    def environment_of(self, candidate_id: str) -> str | None:
        step = self._first.get(candidate_id)
        return self._environments[step.index] if step else None

    def assign(self, observation_id: str, observation: Observation) -> Assignment | None:
        """An improvement with exemplars of different buckets; None where the earlier steps give no contrast."""
        best_id = observation.best.id if observation.best else None
        offered = [one for one in observation.exemplars if one.candidate.id != best_id] or self._drawn(
            observation_id, observation
        )
        return Assignment(0, None, tuple(offered[:SHOWN_EXEMPLARS])) if len(offered) >= SHOWN_EXEMPLARS else None

    def _drawn(self, observation_id: str, observation: Observation) -> list[Exemplar]:
        """Verified candidates that the observation lists, scored by the log of their speedup."""
        attempts = {attempt.candidate_id: attempt for attempt in observation.attempts if attempt.speedup}
        here = self._asking[observation_id]
        scored = [
            (math.log(attempt.speedup), self._first[name])
            for name, attempt in attempts.items()
            if attempt.speedup and name in self._first and self._usable(self._first[name], here)
        ]
        by_source = {step.candidate.source: (score, step) for score, step in sorted(scored, key=lambda pair: pair[0])}
        best = observation.best.source if observation.best else None
        seed = f"{self._run.seed}-{observation.round}"
        drawn = draw_contrast(list(by_source.values()), SHOWN_EXEMPLARS, seed, lambda step: step.candidate.source, best)
        return [Exemplar(candidate=one.candidate, attempt=attempts[one.candidate.id], bucket=number) for number, one in drawn]

    def _usable(self, step: Step, environment: str) -> bool:
        return is_verified(step, self._run.task, self._run.chip) and self._environments[step.index] == environment
