"""What an earlier version wrote still loads, its schedules can be written again, and a resumed run does not repeat them."""

from pathlib import Path

import pytest

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.policies.schedule.families.registry import families, rewrite
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.store.steps import ExportedStep
from tests.doubles import INSPECTION

LINES = (Path(__file__).parent / "written_b1f38a8.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", LINES, ids=["mma_sync", "wgmma_tma"])
def test_a_schedule_of_an_earlier_version_is_written_again(line: str) -> None:
    step = ExportedStep.model_validate_json(line)
    assert isinstance(step.candidate, Candidate)
    assert step.candidate.id == step.candidate_id
    again = rewrite(step.candidate, step.task)
    assert again is not None
    stored = step.candidate.origin.schedule
    assert again.plan == step.candidate.plan
    assert stored is not None
    assert again.origin.schedule == {**(again.origin.schedule or {}), **stored}
    assert predict(step.candidate, step.task, INSPECTION) == predict(again, step.task, INSPECTION)


@pytest.mark.parametrize("line", LINES, ids=["mma_sync", "wgmma_tma"])
def test_a_resumed_run_does_not_repeat_a_schedule_whose_source_has_changed(line: str) -> None:
    step = ExportedStep.model_validate_json(line)
    schedule = step.candidate.origin.schedule
    attempt = Attempt(candidate_id=step.candidate_id, policy="schedule", status="measured", schedule=schedule, time_us=1.0)
    observation = step.observation.model_copy(update={"attempts": (attempt,), "round": 1})
    proposed = SchedulePolicy(families(step.task.arch)).propose(observation, 16)
    assert proposed
    assert all(one.origin.schedule != schedule for one in proposed)
