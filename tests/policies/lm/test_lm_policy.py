"""The policy `lm`: what it asks, what it drops, and when it gives up. Its replies are scripted."""

from collections.abc import Sequence
from typing import Any

import pytest

from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.records.exchange import Message
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.lm.compact_prompt import replies_of, reply_of
from cudal2_agent.policies.lm.policy import MAX_TRIES, LanguageModelPolicy
from cudal2_agent.policies.lm.replies.reply_sampler import SampledReply
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS

TASK = TASKS[0]
SCHEDULES = schedules_for(TASK, CHIP)
BEST = SCHEDULES.best(12)
REPLIES = [reply_of(SCHEDULES, one.values) or "" for one in BEST]
FRESH = Observation(task=TASK, chip=CHIP, round=1, seed=0)


class ScriptedSampler:
    """Gives the replies in turn, over and over, and keeps what was asked."""

    def __init__(self, *replies: str, cut: bool = False) -> None:
        self._replies, self._cut, self._given = replies, cut, 0
        self.asked: list[tuple[Sequence[Sequence[Message]], int, int]] = []

    def tree_of(self, replies: Sequence[str]) -> Sequence[str]:
        return replies

    def sample(
        self,
        prompts: Sequence[Sequence[Message]],
        count: int,
        seed: int,
        *,
        greedy_first: bool = False,
        trees: Sequence[Sequence[str]] | None = None,
    ) -> list[list[SampledReply]]:
        self.greedy_first, self.trees = greedy_first, trees or ()
        self.asked.append((prompts, count, seed))
        return [[self._next() for _ in range(count)] for _ in prompts]

    def _next(self) -> SampledReply:
        self._given += 1
        return SampledReply(self._replies[(self._given - 1) % len(self._replies)], self._cut)


def policy(sampler: Any, events: list[Event] | None = None, seed: int = 0) -> LanguageModelPolicy:
    return LanguageModelPolicy(sampler, (events if events is not None else []).append, seed)


def attempts(speedups: Sequence[float | None]) -> tuple[Attempt, ...]:
    made = []
    for one, speedup in zip(BEST, speedups, strict=False):
        candidate = SCHEDULES.expand(one.values)
        fields = {"policy": "lm", "schedule": one.values, "status": "measured", "speedup": speedup}
        made.append(Attempt.model_validate({"candidate_id": candidate.id, **fields}))  # type: ignore[union-attr]
    return tuple(made)


def test_replies_become_candidates_of_a_trusted_writer() -> None:
    found = policy(ScriptedSampler(*REPLIES[:4])).propose(FRESH, 4)
    assert [one.origin.schedule for one in found] == [one.values for one in BEST[:4]]
    assert all(one.origin.policy == "lm" and one.origin.trusted_writer and one.origin.prompt_hash for one in found)


def test_at_most_so_many_as_asked_come_from_twice_as_many_replies() -> None:
    sampler = ScriptedSampler(*REPLIES)
    assert len(policy(sampler).propose(FRESH, 3)) == 3
    [(prompts, count, _)] = sampler.asked
    assert (len(prompts), count) == (1, 6)
    assert policy(sampler).propose(FRESH, 0) == []


def test_what_is_invalid_or_known_is_dropped_and_counted() -> None:
    events: list[Event] = []
    known = FRESH.model_copy(update={"attempts": attempts([None])})
    sampler = ScriptedSampler(REPLIES[0], "a poem", REPLIES[1], REPLIES[1])
    found = policy(sampler, events).propose(known, 2)
    assert [one.origin.schedule for one in found] == [BEST[1].values]
    [notice] = events
    assert isinstance(notice, Notice)
    assert notice.message.startswith(
        "of 4 replies of the model, 1 named no schedule of the task and 2 one that was tried; the first:"
    )


def test_the_model_may_name_what_was_not_tried() -> None:
    sampler = ScriptedSampler(REPLIES[3])
    policy(sampler).propose(FRESH.model_copy(update={"attempts": attempts([1.2, 1.0, 0.8])}), 1)
    assert len(sampler.trees) == len(sampler.asked[0][0]) == 2
    assert set(replies_of(SCHEDULES)) - set(sampler.trees[0]) == set(REPLIES[:3])


def test_where_everything_was_tried_the_policy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.policies.lm.policy.replies_of", lambda _schedules, _without: [])
    chosen = policy(ScriptedSampler(REPLIES[0]))
    assert chosen.propose(FRESH, 2) == []
    assert chosen.exhausted == "every schedule that the model may name was tried"


def test_a_reply_that_was_cut_off_is_dropped() -> None:
    assert policy(ScriptedSampler(REPLIES[0], cut=True)).propose(FRESH, 2) == []


def test_half_of_the_replies_answer_a_prompt_with_two_scored_schedules() -> None:
    sampler = ScriptedSampler(*REPLIES)
    policy(sampler).propose(FRESH.model_copy(update={"attempts": attempts([1.2, 1.0, 0.8, 0.6])}), 4)
    [(prompts, count, _)] = sampler.asked
    plain, contrast = (prompt[1].content for prompt in prompts)
    assert count == 4
    assert "x: {" not in plain
    shown = [float(line.split("x: ", 1)[0]) for line in contrast.splitlines() if "x: {" in line]
    assert len(shown) == 2
    assert shown == sorted(set(shown), reverse=True)
    assert set(shown) <= {1.2, 1.0, 0.8, 0.6}


@pytest.mark.parametrize("speedups", [[None] * 4, [1.0], [1.0, 1.001, 1.002]])
def test_without_two_different_scores_there_is_the_plain_prompt_alone(speedups: list[float | None]) -> None:
    sampler = ScriptedSampler(*REPLIES)
    policy(sampler).propose(FRESH.model_copy(update={"attempts": attempts(speedups)}), 4)
    assert len(sampler.asked[0][0]) == 1


def test_the_seed_of_a_round_is_its_own() -> None:
    sampler = ScriptedSampler(*REPLIES)
    for seed, round_ in ((0, 1), (0, 2), (1, 1), (0, 1)):
        policy(sampler, seed=seed).propose(FRESH.model_copy(update={"round": round_}), 1)
    seeds = [seed for _, _, seed in sampler.asked]
    assert seeds[0] == seeds[3]
    assert len(set(seeds)) == 3


def test_replies_without_anything_new_end_the_policy() -> None:
    sampler = ScriptedSampler("a poem")
    chosen = policy(sampler)
    assert chosen.exhausted == ""
    assert chosen.propose(FRESH, 2) == []
    assert chosen.exhausted == f"the model named no new schedule in {MAX_TRIES} samplings"
    assert len({seed for _, _, seed in sampler.asked}) == MAX_TRIES


def test_a_sampling_without_anything_new_is_repeated() -> None:
    chosen = policy(ScriptedSampler("a poem", "a song", REPLIES[0]))
    assert len(chosen.propose(FRESH, 1)) == 1
    assert chosen.exhausted == ""
