"""The export: one complete step per line; lines of the first release still load."""

import json
from pathlib import Path

from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.store.steps import ExportedStep, export_steps, to_line
from tests.doubles import OBSERVATION, candidate, profile, run_record, step
from tests.policies.chat.exchanges import exchange

FIXTURE = Path(__file__).parent / "exported_steps_v1.jsonl"


def test_a_step_a_line_complete_by_itself() -> None:
    steps = (step(0, reward=0.25), step(1, number=1))
    trajectory = Trajectory(run=run_record(), observations={OBSERVATION.id: OBSERVATION}, steps=steps)
    lines = [to_line(exported) for exported in export_steps(trajectory)]
    assert [json.loads(line)["index"] for line in lines] == [0, 1]
    assert all("\n" not in line for line in lines)
    first = ExportedStep.model_validate_json(lines[0])
    assert (first.task, first.observation, first.reward) == (run_record().task, OBSERVATION, 0.25)
    assert first.candidate == candidate(0)
    assert first.candidate_id == candidate(0).id


def test_a_step_carries_its_profile_and_what_a_model_was_asked_and_answered() -> None:
    written = step(0, profile=profile())
    asked = exchange(candidate_id=candidate(0).id), exchange(sample=1, problem="no code")
    trajectory = Trajectory(
        run=run_record(), observations={OBSERVATION.id: OBSERVATION}, steps=(written, step(1, number=1)), exchanges=asked
    )
    first, second = (ExportedStep.model_validate_json(to_line(one)) for one in export_steps(trajectory))
    assert (first.profile, first.exchange) == (profile(), asked[0])
    assert (second.profile, second.exchange) == (None, None)


def test_numbers_that_are_not_finite_are_strict_json() -> None:
    """Readers other than Python's refuse the bare words NaN and Infinity; both forms load."""

    def refuse(word: str) -> float:
        raise AssertionError(f"bare {word} in a line")

    exported = [ExportedStep.model_validate_json(line) for line in FIXTURE.read_text().splitlines()]
    infinite = [step for step in exported if "Infinity" in to_line(step)]
    assert infinite
    for one in infinite:
        json.loads(to_line(one), parse_constant=refuse)
        assert ExportedStep.model_validate_json(to_line(one)) == one


def test_lines_of_the_first_release_still_load() -> None:
    """A change that breaks this file needs a new schema version and a reader for the old one."""
    exported = [ExportedStep.model_validate_json(line) for line in FIXTURE.read_text().splitlines()]
    assert [step.evaluation.status for step in exported] == [
        "rejected",
        "compile_failed",
        "crashed",
        "timed_out",
        "wrong",
        "unmeasured",
        "measured",
    ]
    assert [step.candidate_id for step in exported] == [step.candidate.id for step in exported]
    assert [len(step.observation.attempts) for step in exported] == [1] * 7
    assert all(step.observation.best and step.observation.hits and step.diagnosis for step in exported)
