"""Replies as candidates, and how much of a failed one is right."""

import json

import pytest

from cudal2_agent.policies.lm.replies.reply_reading import read_schedule
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS

SCHEDULES = schedules_for(TASKS[0], CHIP)
# From nothing to a schedule, each better than the one before.
LADDER = [
    "I would use large tiles.",
    '{"family": "none_of_these", "block_m": 64}',
    '{"family": "latency", "block_m": 77, "colour": "red"}',
    '{"family": "latency", "block_m": 64, "colour": "red"}',
    '{"family": "latency", "block_m": 64, "block_n": 64, "block_k": 64, "groups": 9}',
    '{"family": "latency", "block_m": 64}',
]


def test_validity_rises_with_what_is_right_and_is_1_for_a_schedule_alone() -> None:
    replies = [read_schedule(text, SCHEDULES) for text in LADDER]
    validities = [reply.validity for reply in replies]
    assert validities == sorted(set(validities))
    assert validities[0] == 0.0
    assert validities[-1] == 1.0
    assert [reply.candidate is not None for reply in replies] == [False] * 5 + [True]
    assert all(bool(reply.problem) == (reply.candidate is None) for reply in replies)


@pytest.mark.parametrize(
    "text",
    [
        '{"family": "latency", "block_m": 6',
        '{"family": "latency", "family": "mma_sync"}',
        '[{"family": "latency"}, {"family": "mma_sync"}]',
        '{"family": "latency", "block_m": NaN}',
        '["family"]',
        "",
    ],
)
def test_what_is_not_one_schedule_has_no_validity(text: str) -> None:
    reply = read_schedule(text, SCHEDULES)
    assert (reply.candidate, reply.validity) == (None, 0.0)
    assert reply.problem


def test_axes_that_cannot_be_together_are_less_than_a_schedule() -> None:
    axes = {"block_m": 16, "warps_m": 4}
    assert not any(SCHEDULES.families["latency"].wrong_axes(axes))
    reply = read_schedule(json.dumps({"family": "latency", **axes}), SCHEDULES)
    assert reply.candidate is None
    assert reply.validity == pytest.approx(0.8)
