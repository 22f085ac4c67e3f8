"""The reward of sampled replies: values, validity, the cache, and workers that die."""

import time
from collections.abc import Iterable
from functools import lru_cache

import pytest

from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.score import Scored
from cudal2_agent.policies.lm.compact_prompt import reply_of
from cudal2_agent.policies.lm.replies import reply_readers
from cudal2_agent.policies.lm.replies.reply_readers import ReplyReaders, TaskPlace
from cudal2_agent.policies.lm.replies.reply_reward import VALIDITY_WEIGHT, ReplyReward, ScoredCandidates, StepSeconds
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules, schedules_for
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS, PriorScore

SCHEDULES = schedules_for(TASKS[0], CHIP)
FASTEST, OTHER = [reply_of(SCHEDULES, one.values) or "" for one in SCHEDULES.best(8)[::7]]


class Rewarded:
    """A reward function over a scripted score, with the metrics and notices that it gave."""

    def __init__(self, score: PriorScore | None = None) -> None:
        self.score = score or PriorScore()
        self.metrics: dict[str, float] = {}
        self.events: list[Event] = []
        self.settled = 0
        self.seconds = StepSeconds()
        self._reward = ReplyReward(ScoredCandidates(self.score, self.events.append), self._settle, seconds=self.seconds)

    def of(self, *texts: str, task: int = 0) -> list[float | None]:
        columns = {"task": [TASKS[task].model_dump_json()] * len(texts), "chip": [CHIP.model_dump_json()] * len(texts)}
        messages = [[{"role": "assistant", "content": text}] for text in texts]
        return self._reward(messages, prompts=[], log_metric=self.metrics.__setitem__, **columns)

    def _settle(self) -> None:
        self.settled += 1


def test_a_verified_schedule_has_its_value_and_a_failed_reply_the_floor() -> None:
    rewarded = Rewarded()
    fastest, other, wrong, prose = rewarded.of(FASTEST, OTHER, '{"family": "latency", "colour": 1}', "Hello.")
    assert fastest is not None
    assert other is not None
    assert wrong is not None
    assert fastest > other > FLOOR + VALIDITY_WEIGHT
    assert prose == FLOOR
    assert FLOOR < wrong < FLOOR + VALIDITY_WEIGHT
    assert rewarded.metrics == {"valid": 0.5, "verified": 0.5}
    assert rewarded.settled == 1


def test_validity_never_changes_which_candidate_is_better() -> None:
    rewarded = Rewarded()
    fastest, other = rewarded.of(FASTEST, OTHER)
    values = [rewarded.score.score(TASKS[0], [SCHEDULES.expand(_parsed(text))])[0].value for text in (FASTEST, OTHER)]
    assert fastest - other == pytest.approx(values[0] - values[1])


def _parsed(text: str) -> object:
    import json

    return json.loads(text)


def test_a_candidate_is_evaluated_once_however_often_it_is_named() -> None:
    rewarded = Rewarded()
    first = rewarded.of(FASTEST, FASTEST, FASTEST)
    assert len(set(first)) == 1
    assert [len(ids) for _, ids in rewarded.score.asked] == [1]
    assert rewarded.of(FASTEST) == first[:1]
    assert len(rewarded.score.asked) == 1


def test_replies_to_several_tasks_are_scored_for_their_own() -> None:
    rewarded = Rewarded()
    columns = {"task": [one.model_dump_json() for one in TASKS], "chip": [CHIP.model_dump_json()] * 2}
    rewarded._reward([FASTEST, FASTEST], **columns)
    assert [shape for shape, _ in rewarded.score.asked] == ["64x64x64", "64x64x128"]
    assert rewarded.score.groups == [2], "one call, so that the builds of both overlap"


def test_a_space_is_enumerated_once_for_all_replies_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    enumerated: list[str] = []

    def counted(task: GemmTask, chip: Chip) -> TaskSchedules:
        enumerated.append(task.shape)
        return TaskSchedules(task, chip)

    monkeypatch.setattr(reply_readers, "schedules_of", lru_cache(maxsize=4)(counted))
    rewarded = Rewarded()
    columns = {"task": [one.model_dump_json() for one in TASKS] * 4, "chip": [CHIP.model_dump_json()] * 8}
    for _ in range(3):
        rewarded._reward([FASTEST, OTHER, "Hello.", FASTEST] * 2, **columns)
    assert sorted(enumerated) == ["64x64x128", "64x64x64"]


def test_seconds_of_a_step_are_told_by_part() -> None:
    class Slow(PriorScore):
        def score(self, task, candidates):  # type: ignore[no-untyped-def]
            time.sleep(0.05)
            return [one.model_copy(update={"executed_s": 0.02}) for one in super().score(task, candidates)]

    rewarded = Rewarded(Slow())
    rewarded.of(FASTEST, OTHER)
    seconds = rewarded.seconds.taken(2)
    assert set(seconds) == {"read_s", "build_s", "measure_s"}
    assert seconds["measure_s"] == pytest.approx(0.02)
    assert seconds["build_s"] > 0
    assert rewarded.seconds.taken(1) == {}
    rewarded.of(FASTEST)
    assert rewarded.seconds.taken(1)["measure_s"] == 0.0, "what was scored before costs nothing"


def test_tasks_to_come_are_expected_after_the_rewards_of_a_step() -> None:
    class Told(ReplyReaders):
        def __init__(self) -> None:
            super().__init__(0)
            self.expected: list[TaskPlace] = []

        def expect(self, places: Iterable[TaskPlace]) -> None:
            self.expected += places

    score, told = PriorScore(), Told()
    places = [TaskPlace(one.model_dump_json(), CHIP.model_dump_json()) for one in TASKS]
    reward = ReplyReward(ScoredCandidates(score, [].append), lambda: None, told, lambda seen: places[1:] if seen else ())
    reward([FASTEST], task=[places[0].task], chip=[places[0].chip])
    assert told.expected == places[1:]


def test_an_unknown_value_is_neither_good_nor_bad() -> None:
    class Unknown(PriorScore):
        def score(self, task, candidates):  # type: ignore[no-untyped-def]
            known = super().score(task, candidates)
            return [Scored(**{**dict(one), "value": None, "basis": None}) for one in known]

    rewarded = Rewarded(Unknown())
    assert rewarded.of(FASTEST, "Hello.") == [None, FLOOR]
    assert rewarded.metrics == {"valid": 0.5, "verified": 0.0}


def test_a_worker_that_dies_once_is_asked_again() -> None:
    rewarded = Rewarded(PriorScore([WorkerError("it was killed")]))
    [value] = rewarded.of(FASTEST)
    assert value is not None
    [notice] = rewarded.events
    assert isinstance(notice, Notice)
    assert notice.message == "a reward worker died (it was killed); its 1 candidates are evaluated again"


def test_a_worker_that_dies_twice_stops_training_with_one_line() -> None:
    rewarded = Rewarded(PriorScore([WorkerError("it was killed", log="long"), WorkerError("again", log="long")]))
    with pytest.raises(WorkerError, match=r"died twice on 64x64x64 \(again\).*continue with --resume") as raised:
        rewarded.of(FASTEST)
    assert raised.value.log == "long"
