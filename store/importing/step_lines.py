"""Reads the lines of an export as `steps`, each of which is complete by itself."""

from pydantic_core import from_json

from cudal2_agent.contract.records.trajectory import RunRecord, Step, Trajectory
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.importing.incoming import Incoming, IncomingStep, mark_of
from cudal2_agent.store.plain_records import candidate_id
from cudal2_agent.store.steps import ExportedStep, export_steps, to_line


class StepLineReader:
    """`LineReader` of the steps form."""

    def __init__(self) -> None:
        self._run_id: str | None = None

    def read(self, line: bytes) -> list[Incoming]:
        """Raises: ValueError for a line that is not a step, or whose candidate is not the one that it names."""
        exported = ExportedStep.model_validate_json(line)
        if exported.candidate_id not in (exported.candidate.id, candidate_id(from_json(line)["candidate"])):
            raise ValueError(f"candidate_id {exported.candidate_id} is not the hash of the candidate: the line was changed")
        step = IncomingStep(_step(exported), exported.observation, exported.exchange, mark_of(to_line(exported)))
        if exported.run_id == self._run_id:
            return [step]
        self._run_id = exported.run_id
        return [_run(exported), step]

    def marks(self, trajectory: Trajectory) -> dict[int, bytes]:
        return {exported.index: mark_of(to_line(exported)) for exported in export_steps(trajectory)}


def _step(exported: ExportedStep) -> Step:
    return Step(
        run_id=exported.run_id,
        index=exported.index,
        round=exported.round,
        observation_id=exported.observation.id,
        candidate=exported.candidate,
        evaluation=exported.evaluation,
        diagnosis=exported.diagnosis,
        profile=exported.profile,
        reward=exported.reward,
        seconds=exported.seconds,
        created_at=exported.created_at,
    )


def _run(first: ExportedStep) -> RunRecord:
    """The run of its first line. Lines do not hold how it ended, its best candidate and its settings.

    It counts as finished, so that nobody resumes it with settings that are not its own. Its settings are defaults, but for
    the seed, the policy of its first step, and the CUTLASS release, which is left empty.
    """
    policy = first.candidate.origin.policy
    return RunRecord(
        run_id=first.run_id,
        task=first.task,
        chip=first.chip,
        policy=policy,
        seed=first.seed,
        settings=RunSettings(seed=first.seed, policy=policy, cutlass=""),
        versions=first.versions,
        status="finished",
        created_at=first.created_at,
    )
