"""What happened in an environment since its reset, as the observation that policies see."""

from dataclasses import replace
from datetime import UTC, datetime

from agent.observe.attempts import described
from agent.observe.observation import observe
from agent.observe.ranking import Ranked, rank
from contract.build import Built
from contract.candidate import AnyCandidate
from contract.chip import Chip
from contract.diagnosis import Diagnosis
from contract.evaluation import Evaluation
from contract.reward import reward
from contract.run_settings import RunSettings
from contract.score import Scored
from contract.task import GemmTask
from contract.trajectory import Observation, RunRecord, Step
from sandbox.diagnosis.diagnosis import diagnose_built
from sandbox.diagnosis.differences import explain

NAME = "environment"


class Episode:
    """The candidates of one task in order, each once, with their outcomes. Nothing is stored."""

    def __init__(self, task: GemmTask, chip: Chip, seed: int) -> None:
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


def _diagnosis(candidate: AnyCandidate, evaluation: Evaluation, task: GemmTask, chip: Chip) -> Diagnosis | None:
    """What limits a candidate that was built, from its inspection and its time."""
    if (inspection := evaluation.inspection) is None:
        return None
    built = Built(candidate=candidate, inspection=inspection, artifact_path="", cached=True, seconds=0.0)
    return diagnose_built(built, task, chip, evaluation)
