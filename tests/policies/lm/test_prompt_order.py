"""The prompts of a group-relative stage: their order, and which tasks come after those of a step."""

import json

import pytest

from cudal2_agent.policies.lm.examples import LmExample
from cudal2_agent.policies.lm.guarded_training import PromptOrder
from cudal2_agent.policies.lm.stage_settings import StageSettings
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS

EXAMPLES = [LmExample(prompt=(), task=TASKS[0].model_copy(update={"m": 64 * (one + 1)}), chip=CHIP) for one in range(6)]


def order(processes: int = 1, **changes: int) -> PromptOrder:
    settings = {"stage": "grpo", "steps": 5, "batch": 16, "group": 8, **changes}
    return PromptOrder(EXAMPLES, StageSettings.model_validate(settings), processes)


def test_there_are_prompts_for_all_steps_in_whole_rounds_that_differ() -> None:
    made = order()
    assert len(made.examples) == len(made.places) == 12
    rounds = [[one.task.m for one in made.examples[begin : begin + 6]] for begin in (0, 6)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == [64 * (one + 1) for one in range(6)]
    assert rounds[0] != rounds[1]
    assert made.places == order().places != order(seed=1).places


def test_the_tasks_of_the_next_step_follow_those_of_this_one() -> None:
    made = order()
    assert made.stride == 2
    assert made.first() == made.places[:2]
    for step in range(5):
        begin = 2 * step
        replies = [place for place in made.places[begin : begin + 2] for _ in range(8)]
        assert made.after(replies) == made.places[begin + 2 : begin + 4]


def test_each_process_expects_its_own_share() -> None:
    """Of two processes with eight replies each, the second has every other prompt."""
    made = order(processes=2, batch=8)
    assert made.stride == 2
    assert made.after([made.places[1]] * 8) == [made.places[3]]


def test_training_that_resumes_finds_its_place_and_other_tasks_are_no_error() -> None:
    made = order(steps=3)
    assert made.after(made.places[2:4]) == made.places[4:6]
    assert made.after(made.places[:2]) == made.places[2:4]
    assert made.after(made.places[4:6]) == []
    stranger = made.places[0]._replace(chip="{}")
    assert made.after([stranger]) == []
    assert made.after([]) == []


# Settings of a stage: those that an older version kept are read.
@pytest.mark.parametrize("server", [None, "http://127.0.0.1:8000"])
def test_settings_with_a_field_of_an_older_version_are_read(server: str | None) -> None:
    kept = {"stage": "grpo", "steps": 100, "vllm_server": server}
    read = StageSettings.model_validate_json(json.dumps(kept))
    assert read == StageSettings(stage="grpo", steps=100)
    assert "vllm_server" not in read.model_dump()
