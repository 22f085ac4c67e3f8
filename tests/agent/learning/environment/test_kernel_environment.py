"""`reset` and `step` over fixed scores: forms of an answer, turns, groups, batches, time-outs, and what goes wrong."""

import json
import math
import time

import pytest

from cudal2_agent.agent.learning.environment.kernel_environment import EnvironmentBatch, KernelEnvironment, StepResult
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.agent.learning.environment.environment_doubles import SMALL, WIDE, FixedScore, RememberingScore
from tests.doubles import CHIP

NARROW = {"family": "mma_sync", "block_n": 32}
BROAD = {"family": "mma_sync", "block_n": 64}


def value_of(time_us: float) -> float:
    """Of a candidate beside the baseline's 10 µs."""
    return 1.5 * math.tanh(math.log(10 / time_us) / 1.5)


def environment(turns: int = 4, **options) -> KernelEnvironment:
    made = KernelEnvironment(FixedScore(), [SMALL, WIDE], turns=turns, **options)
    made.reset(SMALL)
    return made


def written(schedule: dict[str, object]) -> Candidate:
    made = schedules_for(SMALL, CHIP).expand(schedule)
    assert isinstance(made, Candidate)
    return made


def test_an_episode() -> None:
    environment = KernelEnvironment(FixedScore(), [SMALL], turns=3)
    first = environment.reset(SMALL)
    assert (first.task, first.chip, first.round, first.attempts) == (SMALL, CHIP, 1, ())
    one = environment.step(BROAD)
    assert one.value == pytest.approx(value_of(8.0))
    assert (one.info.basis, one.info.status, one.info.message) == ("measured", "measured", "")
    assert (one.info.speedup, one.info.time_us, one.info.reward) == (1.25, 8.0, one.value)
    assert (one.info.observation_id, one.info.turn, one.done) == (first.id, 1, False)
    two = environment.step(NARROW)
    assert two.value == pytest.approx(value_of(4.0))
    assert (two.observation.round, len(two.observation.attempts)) == (3, 2)
    assert two.observation.best == written(NARROW)
    assert two.observation.attempts[1].reward == two.value
    assert two.observation.diagnosis is not None
    last = environment.step(BROAD)
    assert (last.value, last.done, len(last.observation.attempts)) == (one.value, True, 2), "a candidate is scored once"
    with pytest.raises(UsageError, match="over after 3 turns; call reset"):
        environment.step(BROAD)
    assert environment.reset(SMALL) == first


@pytest.mark.parametrize(
    "answer",
    [NARROW, written(NARROW), json.dumps(NARROW), f"## Design\nA narrow tile.\n```json\n[{json.dumps(NARROW)}]\n```\n"],
    ids=["axes", "candidate", "JSON", "reply"],
)
def test_the_forms_of_an_answer(answer) -> None:
    step = environment().step(answer)
    assert step.value == pytest.approx(value_of(4.0))
    assert step.info.candidate_id == written(NARROW).id


def test_the_best_schedule_of_a_reply_counts() -> None:
    step = environment().step(json.dumps([BROAD, NARROW]))
    assert step.value == pytest.approx(value_of(4.0))
    assert [one.candidate_id for one in step.info.outcomes] == [written(BROAD).id, written(NARROW).id]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"family": "mma_sync", "block_n": 63}, "block_n is 63; allowed here: 16, 32, 64, 96"),
        ({"family": "mma_sinc"}, 'family is "mma_sinc"; allowed for 64x64x64 on sm_80: latency, mma_sync'),
        ({"block_n": 32}, "family is missing; allowed for 64x64x64 on sm_80: latency, mma_sync"),
        ('{"family": "mma_sync", "tile": 5}', 'mma_sync has no axis "tile"'),
        ("I would use a large tile.", "the reply has no code block"),
        ("```json\n[{]\n```", "the schedules are not JSON"),
        ("", "the reply has no code block"),
    ],
)
def test_an_answer_without_a_candidate_has_the_value_of_a_failure_and_one_clear_line(answer, said: str) -> None:
    step = environment().step(answer)
    assert (step.info.status, step.info.basis, step.info.outcomes) == ("malformed", "failed", ())
    assert step.value == step.info.reward == FLOOR
    assert step.info.message.startswith(said)
    assert "\n" not in step.info.message
    assert (step.observation.round, step.observation.attempts) == (2, ())


def test_a_part_of_a_reply_that_gives_nothing_is_told() -> None:
    step = environment().step(json.dumps([NARROW, {"family": "mma_sync", "block_n": 63}]))
    assert step.info.status == "measured"
    assert step.info.message == "schedule 2: block_n is 63; allowed here: 16, 32, 64, 96"


def test_a_source_that_fails_can_be_repaired_by_a_patch() -> None:
    made = environment()
    source = written(NARROW).source
    failed = made.step(f"```cuda\n{source}\n```")
    assert (failed.value, failed.info.status, failed.info.message) == (FLOOR, "compile_failed", "line 3: expected a ';'")
    [failure] = failed.observation.failures
    assert failure.candidate.origin.schedule is None, "what a model wrote has no schedule, even where it is equal"
    line = next(line for line in source.splitlines() if line.startswith("#include"))
    patched = made.step(f"```diff\n--- failed\n+++ failed\n@@ @@\n-{line}\n+{line}  // first\n```")
    assert patched.info.status == "compile_failed"
    assert patched.observation.attempts[1].parent == failure.candidate.id


def test_a_limit_to_schedules() -> None:
    step = environment(replies="schedule").step(f"```cuda\n{written(NARROW).source}\n```")
    assert step.info.message.startswith("this run takes schedules only")


def test_a_predicted_value_has_no_reward() -> None:
    made = KernelEnvironment(FixedScore(emulates=True), [SMALL])
    made.reset()
    info = made.step(NARROW).info
    assert (info.basis, info.status, info.reward, info.speedup) == ("predicted", "unmeasured", None, None)
    assert info.predicted_us == 4.0


def test_a_seed_draws_a_task_and_equal_seeds_make_a_group() -> None:
    made = EnvironmentBatch(FixedScore(), [SMALL, WIDE], 8)
    observations = made.reset([seed // 2 for seed in range(8)])
    assert {one.task for one in observations} == {SMALL, WIDE}
    assert all(observations[place].id == observations[place + 1].id for place in range(0, 8, 2))
    infos = [step.info for step in made.step([NARROW, BROAD] * 4)]
    assert [one.observation_id for one in infos] == [one.id for one in observations]


def test_a_batch_is_scored_in_one_call_for_each_task_and_each_candidate_once() -> None:
    score = FixedScore()
    batch = EnvironmentBatch(score, [SMALL, WIDE], 4)
    batch.reset([SMALL, SMALL, WIDE, SMALL])
    steps = batch.step([NARROW, BROAD, NARROW, NARROW])
    assert sorted((task.n, len(ids)) for task, ids in score.calls) == [(64, 2), (128, 1)]
    assert [step.value for step in steps] == pytest.approx([value_of(4.0), value_of(8.0), value_of(4.0), value_of(4.0)])
    assert [len(step.observation.attempts) for step in steps] == [1, 1, 1, 1]


def timed_out(score: FixedScore) -> list[StepResult]:
    batch = EnvironmentBatch(score, [SMALL, WIDE], 3, timeout_s=0.3)
    batch.reset([SMALL, WIDE, WIDE])
    begin_s = time.monotonic()
    steps = batch.step([NARROW, NARROW, BROAD])
    assert time.monotonic() - begin_s < 2
    return steps


def test_what_is_not_scored_in_time_has_no_value() -> None:
    steps = timed_out(FixedScore({WIDE: 5.0}))
    assert steps[0].value == pytest.approx(value_of(4.0))
    for late in steps[1:]:
        assert (late.value, late.info.status, late.info.basis) == (None, "unscored", None)
        assert late.info.message == "its score was not ready in time"
        assert late.observation.round == 2


def test_what_a_score_knows_by_then_counts() -> None:
    steps = timed_out(RememberingScore({WIDE: 5.0}))
    assert [step.info.status for step in steps] == ["measured", "measured", "unscored"]
    assert steps[1].info.cached


def test_a_failing_machine_ends_no_episode() -> None:
    score = FixedScore()
    batch = EnvironmentBatch(score, [SMALL], 2, timeout_s=5.0)
    batch.reset([SMALL, SMALL])
    score.error = MachineError("the driver was lost")
    with pytest.raises(MachineError, match="the driver was lost"):
        batch.step([NARROW, BROAD])
    score.error = None
    assert [step.info.turn for step in batch.step([NARROW, BROAD])] == [1, 1]


def test_what_cannot_be_an_environment() -> None:
    with pytest.raises(UsageError, match="a task and a turn"):
        KernelEnvironment(FixedScore(), [])
    with pytest.raises(UsageError, match="no episode; call reset"):
        KernelEnvironment(FixedScore(), [SMALL]).step(NARROW)
