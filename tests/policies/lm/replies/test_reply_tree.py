"""Replies as a tree of tokens: what may follow, and a model that can only name schedules of the task."""

import random

import numpy as np
import pytest
import torch

from cudal2_agent.policies.lm.base_model import load_base
from cudal2_agent.policies.lm.compact_prompt import messages_of, replies_of, reply_of
from cudal2_agent.policies.lm.replies.reply_readers import read_schedule
from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler
from cudal2_agent.policies.lm.replies.reply_tree import OnlyReplies, ReplyTree, ReplyWalk
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS, tiny_model

END = 9
TREE = ReplyTree([[1, 2, 3], [1, 2], [1, 4, 3], [5]], END)
SCHEDULES = [schedules_for(task, CHIP) for task in TASKS]
PROMPTS = [messages_of(one) for one in SCHEDULES]


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> ReplySampler:
    """Of a model with random weights, which left alone writes no schedule."""
    return ReplySampler(load_base(str(tiny_model(tmp_path_factory.mktemp("models") / "base")), "cpu"), reply_tokens=60)


def after(*tokens: int) -> list[int]:
    walk = ReplyWalk(TREE)
    for token in tokens:
        walk.take(token)
    return walk.tokens().tolist()


def test_what_may_follow_a_beginning() -> None:
    assert after() == [1, 5]
    assert after(1) == [2, 4]
    assert after(1, 2) == [3, END]
    assert after(1, 2, END) == after(1, 2, 3, END) == []
    assert after(5) == [END]
    with pytest.raises(ValueError, match="no reply has token 3 there"):
        after(1, 3)


def test_a_tree_without_replies_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a reply"):
        ReplyTree([], END)


def test_equal_replies_are_one() -> None:
    assert len(ReplyTree([[1], [1], [2]], END)) == 2
    assert TREE.length == 4


def test_only_allowed_tokens_keep_their_scores_row_by_row() -> None:
    only = OnlyReplies([TREE, ReplyTree([[7]], END)], prompt_tokens=2)
    scores = torch.arange(20.0).reshape(2, 10)
    first = only(torch.zeros(2, 2, dtype=torch.long), scores)
    assert first.isfinite().nonzero().tolist() == [[0, 1], [0, 5], [1, 7]]
    assert first[0, 5] == scores[0, 5]
    ids = torch.tensor([[0, 0, 1], [0, 0, 7]])
    assert only(ids, scores).isfinite().nonzero().tolist() == [[0, 2], [0, 4], [1, END]]
    ids = torch.tensor([[0, 0, 1, 2], [0, 0, 7, END]])
    third = only(ids, scores)
    assert third[0].isfinite().nonzero().flatten().tolist() == [3, END]
    assert torch.equal(third[1], scores[1]), "a row that has ended is left alone"


def test_every_constrained_reply_is_a_schedule_of_its_task(sampler: ReplySampler) -> None:
    free = sampler.sample(PROMPTS, 4, 0)
    assert not any(
        read_schedule(one.text, of).candidate for replies, of in zip(free, SCHEDULES, strict=True) for one in replies
    )
    trees = [sampler.tree_of(replies_of(one)) for one in SCHEDULES]
    found = sampler.sample(PROMPTS, 4, 0, greedy_first=True, trees=trees)
    for replies, of in zip(found, SCHEDULES, strict=True):
        assert all(read_schedule(one.text, of, cut=one.cut).candidate for one in replies)
        assert {one.text for one in replies} <= set(replies_of(of))
    assert len({one.text for replies in found for one in replies}) > 4
    again = sampler.sample(PROMPTS, 2, 5, greedy_first=True, trees=trees)
    assert [replies[0] for replies in again] == [replies[0] for replies in found]


def test_replies_differ_in_length_within_a_batch(sampler: ReplySampler) -> None:
    """A short reply ends while a longer one goes on."""
    texts = ['{"family":"x"}', '{"family":"latency","block_m":64,"block_n":64,"block_k":128}']
    found = sampler.sample(PROMPTS, 1, 0, trees=[sampler.tree_of([text]) for text in texts])
    assert [replies[0].text for replies in found] == texts
    assert not any(replies[0].cut for replies in found)


def test_the_replies_of_a_task_are_the_shortest_that_name_its_schedules() -> None:
    for schedules in SCHEDULES:
        replies = replies_of(schedules)
        ranked = [one for family in schedules.families.values() for one in family.ranked]
        known = {reply_of(schedules, one.values) for one in random.Random(0).sample(ranked, 40)}
        assert len(set(replies)) == len(replies)
        assert len(known & set(replies)) >= 20
        without = [one.values for one in schedules.best(3)]
        assert set(replies) - set(replies_of(schedules, without)) == {reply_of(schedules, values) for values in without}


def test_all_briefs_at_once_are_those_of_one_schedule_after_another() -> None:
    for family in SCHEDULES[1].families.values():
        briefs = family.briefs()
        places = random.Random(1).sample(range(len(briefs)), min(50, len(briefs)))
        assert [briefs[place] for place in places] == [family.brief(family.ranked[place].values) for place in places]


def test_tokens_behind_the_longest_reply_are_none() -> None:
    assert np.array_equal(TREE.tokens(0, len(TREE), TREE.length), [])
