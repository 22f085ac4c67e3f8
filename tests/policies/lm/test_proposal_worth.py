"""What proposals are worth, by a scripted score."""

from collections.abc import Sequence

import pytest

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.policies.lm.proposal_worth import (
    ModelProposer,
    PriorProposer,
    ProposedSchedule,
    Proposer,
    ProposerFigures,
    RandomProposer,
    compare,
)
from cudal2_agent.policies.lm.replies.reply_reward import ScoredCandidates
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules
from tests.doubles import CHIP
from tests.policies.lm.test_lm_policy import REPLIES, ScriptedSampler
from tests.policies.lm.tiny import TASKS, PriorScore


def figures(*proposers: Proposer, count: int = 4) -> list[ProposerFigures]:
    return list(compare(proposers, TASKS, CHIP, ScoredCandidates(PriorScore(), ignore), ignore, count).figures)


class Nothing:
    name = "nothing"

    def propose(self, tasks: Sequence[TaskSchedules], count: int, seed: int) -> list[list[ProposedSchedule]]:  # noqa: ARG002
        return [[ProposedSchedule(None)] * count for _ in tasks]


def test_the_prior_is_best_by_its_own_times_and_nothing_has_the_floor() -> None:
    prior, drawn, nothing = figures(PriorProposer(), RandomProposer(), Nothing())
    for one in (prior, drawn):
        assert (one.tasks, one.proposals, one.valid, one.verified) == (2, 8, 1.0, 1.0)
        assert not one.measured
    assert prior.first is not None
    assert drawn.best is not None
    assert prior.first == prior.best
    assert prior.best > drawn.best
    assert (nothing.valid, nothing.verified, nothing.distinct) == (0.0, 0.0, 0.0)
    assert nothing.first == nothing.mean == nothing.best == FLOOR


def test_a_model_is_counted_by_its_replies() -> None:
    """Of four replies to each task, one is a poem and two are equal."""
    sampler = ScriptedSampler(REPLIES[0], "a poem", REPLIES[0], REPLIES[1])
    [model] = figures(ModelProposer("model", sampler))  # type: ignore[arg-type]
    assert (model.valid, model.verified, model.distinct) == (0.75, 0.75, 0.5)
    assert model.first == pytest.approx(model.best, abs=0.2)
    assert model.mean is not None
    assert model.best is not None
    assert model.mean < model.best
    assert sampler.greedy_first, "the first proposal is the most likely one"


def test_candidates_of_all_tasks_are_asked_for_at_once() -> None:
    score = PriorScore()
    compare([PriorProposer()], TASKS, CHIP, ScoredCandidates(score, ignore), ignore, 2)
    assert score.groups == [len(TASKS)]


def test_random_schedules_depend_on_the_seed_alone() -> None:
    scores = ScoredCandidates(PriorScore(), ignore)
    made = [compare([RandomProposer()], TASKS, CHIP, scores, ignore, 4, seed).proposals for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


def test_replies_of_a_model_are_kept_with_what_is_wrong_with_them() -> None:
    sampler = ScriptedSampler(REPLIES[0], "a poem")
    scores = ScoredCandidates(PriorScore(), ignore)
    model, prior = compare([ModelProposer("model", sampler), PriorProposer()], TASKS[:1], CHIP, scores, ignore, 2).proposals  # type: ignore[arg-type]
    assert model.replies == (REPLIES[0], "a poem")
    assert model.problems[0] == ""
    assert model.problems[1]
    assert prior.replies == prior.problems == ()
