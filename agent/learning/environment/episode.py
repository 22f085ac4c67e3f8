"""What happened in an environment since its reset, as the observation that policies see."""

from dataclasses import replace
from datetime import UTC, datetime

from cudal2_agent.agent.observe.attempts import described
from cudal2_agent.agent.observe.observation import observe
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.contract.reward.reward import reward
from cudal2_agent.contract.reward.score import Scored
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built
from cudal2_agent.sandbox.diagnosis.differences import explain

NAME = "environment"


class Episode:
    """The candidates of one task in order, each once, with their outcomes. Nothing is stored."""

    def __init__(self, task: Task, chip: Chip, seed: int) -> None:
        self._run = RunRecord(
            run_id=NAME,
            task=task,
            chip=chip,
            policy=NAME,
            seed=seed,
            settings=RunSettings(),
            versions={},
            status="running",
            created_at=datetime.now(UTC),
        )
        self._ranked: list[Ranked] = []
        self._outcomes: dict[str, Scored] = {}
        self.observation = self._observed(1)

    def outcome(self, candidate_id: str) -> Scored | None:
        """The outcome of a candidate that was tried in this episode."""
        return self._outcomes.get(candidate_id)

    def add(self, candidate: AnyCandidate, outcome: Scored) -> None:
        """A candidate that was tried before stays as it is."""
        if candidate.id in self._outcomes:
            return
        self._outcomes[candidate.id] = outcome
        step = Step(
            run_id=NAME,
            index=len(self._ranked),
            round=self.observation.round,
            observation_id=self.observation.id,
            candidate=candidate,
            evaluation=outcome.evaluation,
            diagnosis=_diagnosis(candidate, outcome.evaluation, self._run.task, self._run.chip),
            reward=reward(outcome.evaluation, self._run.task, self._run.chip, candidate.origin),
            seconds={"evaluate": outcome.seconds},
            created_at=datetime.now(UTC),
        )
        self._ranked.append(self._described(step))

    def end_turn(self) -> None:
        """The next observation."""
        self.observation = self._observed(self.observation.round + 1)

    def _observed(self, number: int) -> Observation:
        return observe(self._run, self._ranked, number, (), explain, seconds_left=None, reads_code=True)

    def _described(self, step: Step) -> Ranked:
        one = rank(step, self._run.task, self._run.chip)
        parents = step.candidate.origin.parents
        parent = next((each.step.candidate for each in self._ranked if each.attempt.candidate_id in parents[:1]), None)
        return replace(one, attempt=described(one.attempt, step, self._run.task, self._run.chip, parent))


def _diagnosis(candidate: AnyCandidate, evaluation: Evaluation, task: Task, chip: Chip) -> Diagnosis | None:
    """What limits a candidate that was built, from its inspection and its time."""
    if (inspection := evaluation.inspection) is None:
        return None
    built = Built(candidate=candidate, inspection=inspection, artifact_path="", cached=True, seconds=0.0)
    return diagnose_built(built, task, chip, evaluation)
