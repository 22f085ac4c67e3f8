"""The run of all stages on a tiny model: what it keeps after each part, and that nothing is done twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.language_model.stages import BASE, StagesRun, _parser
from cudal2_agent.contract.events import Emit, Event, Notice, ignore
from cudal2_agent.policies.exports.splits import ShapeSplit
from cudal2_agent.policies.lm.examples import STAGES, make_examples, write_examples
from cudal2_agent.policies.lm.replies.reply_reward import ScoredCandidates
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS, PriorScore, search, tiny_model

SHORT = ("--sft-steps", "2", "--contrastive-steps", "0", "--grpo-steps", "1", "--batch", "2", "--grpo-batch", "2")
FOREVER_S = float("inf")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Command line for a tiny shape, with examples and a model of random weights."""
    made = make_examples([search(task, f"run-{index}") for index, task in enumerate(TASKS)], STAGES, ShapeSplit(), 0, ignore)
    for stage, examples in made.items():
        write_examples(tmp_path / f"{stage}.json", examples)
    model = tiny_model(tmp_path / "base")
    places = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(model)]
    small = ["--group", "2", "--reply-tokens", "12", "--proposals", "1", "--shapes", TASKS[0].shape]
    return [*places, *SHORT, *small]


def run_of(words: list[str], score: PriorScore, deadline_s: float = FOREVER_S, emit: Emit = ignore) -> StagesRun:
    return StagesRun(_parser().parse_args(words), emit, ScoredCandidates(score, ignore), CHIP, deadline_s)


def kept(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(words[3]) / "results.json").read_text("utf-8"))
    return found


def names(results: dict[str, Any]) -> list[str]:
    return [one["proposer"] for one in results["figures"]]


def test_every_part_is_kept_and_none_is_done_twice(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_of(words, PriorScore()).run()
    found = kept(words)
    assert names(found) == [
        "random valid",
        "analytic prior",
        BASE,
        f"{BASE}, constrained",
        "sft",
        "sft, constrained",
        "grpo",
        "grpo, constrained",
    ]
    assert {stage: curve[-1]["step"] for stage, curve in found["curves"].items()} == {"sft": 2, "grpo": 1}
    assert "reward" in found["curves"]["grpo"][-1]
    assert [stage["stage"] for stage in found["adapter"]["stages"]] == ["sft", "grpo"]
    assert "grpo: " in capsys.readouterr().out

    again = PriorScore()
    run_of(words, again).run()
    assert again.asked == []
    assert kept(words) == found
    assert capsys.readouterr().out == ""


def test_a_killed_stage_leaves_what_came_before_and_its_curve(words: list[str]) -> None:
    def killed(event: Event) -> None:
        if isinstance(event, Notice) and event.message.startswith("sft step"):
            raise KeyboardInterrupt

    run = run_of(words, PriorScore(), emit=killed)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert names(kept(words)) == ["random valid", "analytic prior", BASE, f"{BASE}, constrained"]
    run.save()
    assert kept(words)["curves"]["sft"][0]["step"] == 1
    assert kept(words)["adapter"] is None


def test_no_part_begins_after_the_deadline(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_of(words, PriorScore(), deadline_s=0.0).run()
    assert capsys.readouterr().out == "no time left for random valid; run the same command again\n"
