"""The prompt for a small model, and replies read by the product's own readers."""

import pytest

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Attempt
from cudal2_agent.policies.lm.compact_prompt import SYSTEM, ShownSchedule, messages_of, reply_of, score_of
from cudal2_agent.policies.lm.replies.reply_readers import read_schedule
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS

SCHEDULES = schedules_for(TASKS[0], CHIP)


def test_a_prompt_names_the_task_the_chip_and_the_axes_that_differ() -> None:
    system, user = messages_of(SCHEDULES)
    lines = user.content.splitlines()
    assert system.content == SYSTEM
    assert lines[0] == "M=64 N=64 K=64 f16 f32 nn offline, 1 tiles of 128x128"
    assert lines[1].startswith("H200 sm_90a 132 SMs 227 KiB, arithmetic 0.00us")
    [latency] = [line for line in lines if line.startswith("latency: ")]
    for axis, values in SCHEDULES.families["latency"].choices.items():
        assert axis in latency
        assert all(str(value) in latency for value in values if not isinstance(value, bool))
    assert "warps_n 1 2 4;" in latency
    assert "block_n 16..112/16" in user.content, "numbers in equal steps are a range"


def test_a_prompt_names_what_follows_the_product() -> None:
    observation = schedules_for(TASKS[0].model_copy(update={"bias": True, "activation": "gelu"}), CHIP)
    assert messages_of(observation)[1].content.startswith("M=64 N=64 K=64 f16 f32 nn offline bias gelu, 1 tiles")


def test_a_prompt_names_the_gate() -> None:
    names = ("latency", "mma_sync", "resident", "wgmma_tma")
    for layout, families in (("tn", ["wgmma_tma"]), ("nn", [])):
        task = GemmTask.model_validate(TASKS[0].model_dump() | {"activation": "silu", "gated": True, "layout": layout})
        content = messages_of(schedules_for(task, CHIP))[1].content
        assert content.startswith(f"M=64 N=64 K=64 f16 f32 {layout} offline gated silu, ")
        assert [name for name in names if f"\n{name}: " in content] == families


def test_every_reply_of_the_data_is_read_as_the_schedule_it_names() -> None:
    for one in SCHEDULES.best(20):
        reply = reply_of(SCHEDULES, one.values)
        assert reply is not None
        assert "\n" not in reply
        candidate = read_schedule(reply, SCHEDULES).candidate
        assert candidate is not None
        assert candidate.origin.schedule == one.values


def test_shown_schedules_have_their_scores_and_unknown_ones_are_left_out() -> None:
    best = SCHEDULES.best(1)[0].values
    shown = [ShownSchedule("1.08x", best), ShownSchedule("0.70x", {"family": "gone"})]
    user = messages_of(SCHEDULES, shown)[1].content
    assert f"\n1.08x: {reply_of(SCHEDULES, best)}\n" in user
    assert "0.70x" not in user
    assert user.endswith("Name a faster schedule.")


@pytest.mark.parametrize(
    ("fields", "score"),
    [({"speedup": 1.084}, "1.08x"), ({"predicted_us": 3.14159, "is_floor": False}, "3.14us"), ({}, None)],
)
def test_a_score_is_a_speedup_or_else_a_predicted_time(fields: dict[str, float], score: str | None) -> None:
    attempt = Attempt.model_validate({"candidate_id": "1", "policy": "lm", "schedule": {}, "status": "measured", **fields})
    assert score_of(attempt) == score
