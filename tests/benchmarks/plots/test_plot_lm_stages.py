"""The picture of the stages of `train lm` is the committed run, drawn."""

import json
from math import exp
from pathlib import Path

import pytest

from benchmarks.pictures.lm_stages import KINDS, SPEEDS, draw
from benchmarks.pictures.svg import GOOD, INK, OTHERS, OURS
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
RESULT = (ROOT / "benchmarks/results/h200_language_model_2026-11-24_grpo/results.json").read_text("utf-8")


def test_the_committed_picture_shows_the_committed_run() -> None:
    assert (ROOT / "docs/pictures/h200_lm_stages.svg").read_text("utf-8") == draw(RESULT)


def test_every_proposer_has_its_three_speeds_and_every_step_its_reward() -> None:
    run = json.loads(RESULT)
    picture = draw(RESULT)
    for (kind, _, _), colour in zip(KINDS, (GOOD, OTHERS, OURS), strict=True):
        drawn = [x for x, _ in dots(picture, colour)][1:]  # the first is of the legend
        assert drawn == [pytest.approx(SPEEDS.x(exp(one[kind])), abs=0.06) for one in run["figures"]]
    rewards = [step["reward"] for step in run["curves"]["grpo"]]
    heights = [y for _, y in dots(picture, INK)]
    assert len(heights) == len(rewards)
    rising = [reward for _, reward in sorted(zip(heights, rewards, strict=True), reverse=True)]
    assert rising == [pytest.approx(reward, abs=0.01) for reward in sorted(rewards)], "a better step stands higher"


def test_texts_stay_inside() -> None:
    assert outside(draw(RESULT)) == []
    assert {"grpo, constrained", "analytic prior", "step"} <= set(words(draw(RESULT)))


def test_a_run_without_group_relative_steps_has_no_curve() -> None:
    run = json.loads(RESULT)
    del run["curves"]["grpo"]
    assert dots(draw(json.dumps(run)), INK) == []


def test_rewards_that_are_all_the_floor_are_drawn() -> None:
    run = json.loads(RESULT)
    run["curves"]["grpo"] = [{"reward": -2.0}] * 3
    assert len(dots(draw(json.dumps(run)), INK)) == 3
