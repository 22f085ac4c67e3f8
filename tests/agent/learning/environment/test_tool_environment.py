"""The environment whose methods are tools: what TRL calls, and a step of its GRPOTrainer with scripted tool calls.

The trainer is an extra: without `trl` its tests are skipped. The model is tiny and random, and cannot call a tool by itself, so
that its generation is replaced; prompts, tool calls, rewards and the step are TRL's.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import pytest

from cudal2_agent.agent.learning.environment.tool_environment import RECEIVED, KernelTools, ScheduleTools, ToolEnvironments
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.reward.reward import FLOOR
from tests.agent.learning.environment.environment_doubles import SMALL, WIDE, FixedScore, ScriptedGeneration, call
from tests.agent.learning.environment.test_kernel_environment import BROAD, NARROW, value_of, written


def begun(environments: ToolEnvironments, row: int = 0) -> ScheduleTools:
    made = environments()
    made.reset(**environments.rows()[row])
    return made


def test_the_tools_of_an_instance() -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    assert public(ScheduleTools) == {"reset", "get_reward", "submit_schedule"}
    assert public(KernelTools) == {"reset", "get_reward", "submit_schedule", "submit_kernel"}
    assert type(ToolEnvironments(FixedScore(), [SMALL])()) is ScheduleTools
    assert type(ToolEnvironments(FixedScore(), [SMALL], sources=True)()) is KernelTools


def test_a_rollout() -> None:
    environments = ToolEnvironments(FixedScore(), [SMALL, WIDE], turns=3)
    made = environments()
    told = made.reset(**environments.rows()[1])
    assert told.startswith("D = A·B with M = 64, N = 128, K = 64, f16, accumulated in f32, layout nn, on H200 (sm_80).")
    assert "at most 3" in told
    assert "- block_n: 16, 32, 64, 96" in told
    assert made.submit_schedule(BROAD) == ("measured: 8.00 us, 1.250 times as fast as cuBLASLt-AutoTuning; submissions left: 2")
    assert made.submit_schedule({"family": "mma_sync", "block_n": 63}).startswith("malformed; block_n is 63; allowed here:")
    assert made.submit_schedule(NARROW).endswith("submissions left: 0")
    assert made.submit_schedule(NARROW) == "no submission is left"
    assert made.get_reward() == pytest.approx(value_of(4.0)), "the best one counts"
    made.reset(**environments.rows()[1])
    assert made.get_reward() == FLOOR, "nothing was submitted"


def test_a_source() -> None:
    made = begun(ToolEnvironments(FixedScore(), [SMALL], sources=True))
    assert isinstance(made, KernelTools)
    source = f"{written(NARROW).source}\n// ```\n"
    assert made.submit_kernel(source) == "compile failed; line 3: expected a ';'; submissions left: 3"
    assert made.submit_kernel("int main() {}").startswith("malformed; no code block has a launch plan")
    assert made.get_reward() == FLOOR


def test_what_a_tool_tells_without_a_gpu_and_of_a_time_that_cannot_be() -> None:
    made = begun(ToolEnvironments(FixedScore(emulates=True), [SMALL]))
    assert made.submit_schedule(NARROW) == "verified by the emulator: predicted 4.00 us; submissions left: 3"
    made = begun(ToolEnvironments(FixedScore(speed=1e4), [SMALL]))
    told = made.submit_schedule(NARROW)
    assert told.startswith("measured: 0.00 us")
    assert "; its time is implausible: it is far under the roofline; submissions left: 3" in told
    assert made.get_reward() == FLOOR


def test_without_feedback_all_rollouts_are_scored_together() -> None:
    score = FixedScore()
    environments = ToolEnvironments(score, [SMALL], feedback=False)
    first, second, idle = begun(environments), begun(environments), begun(environments)
    assert first.submit_schedule(BROAD) == f"{RECEIVED}; submissions left: 3"
    first.submit_schedule(NARROW)
    second.submit_schedule(NARROW)
    assert score.calls == []
    rewards = [one.get_reward() for one in (second, first, idle)]
    assert rewards == pytest.approx([value_of(4.0), value_of(4.0), FLOOR])
    assert [len(ids) for _, ids in score.calls] == [2, 1]


def test_what_is_not_known_is_no_reward() -> None:
    made = begun(ToolEnvironments(FixedScore({SMALL: 3.0}), [SMALL], timeout_s=0.1))
    assert made.submit_schedule(NARROW) == "not scored; its score was not ready in time; submissions left: 3"
    assert made.get_reward() is None


def test_a_failing_machine_is_raised_with_the_reward() -> None:
    """TRL shows what a tool raises to the model, and goes on."""
    score = FixedScore()
    made = begun(ToolEnvironments(score, [SMALL]))
    score.error = MachineError("the driver was lost")
    with pytest.raises(MachineError):
        made.submit_schedule(NARROW)
    with pytest.raises(MachineError, match="the driver was lost"):
        made.get_reward()


def test_a_row_without_a_task_is_refused_unless_there_is_one() -> None:
    made = ToolEnvironments(FixedScore(), [SMALL])()
    assert "N = 64" in made.reset(prompt=[])
    for column in (None, "64x64x64"):
        with pytest.raises(UsageError, match="make the data set of"):
            ToolEnvironments(FixedScore(), [SMALL, WIDE])().reset(task=column)


@pytest.fixture
def trainer_of(tokenizer: Any, tiny_model: Any, one_step: Any) -> Any:
    import datasets
    from trl import GRPOTrainer

    def made(environments: ToolEnvironments, calls: Sequence[dict[str, Any]]) -> tuple[Any, ScriptedGeneration]:
        rows = datasets.Dataset.from_list(environments.rows())
        trainer = GRPOTrainer(
            tiny_model, args=one_step, train_dataset=rows, processing_class=tokenizer, environment_factory=environments
        )
        generation = ScriptedGeneration(tokenizer, calls)
        trainer._generate_single_turn = generation
        return trainer, generation

    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("feedback", [True, False])
def test_a_step_of_trl_with_tool_calls(trainer_of: Any, feedback: bool) -> None:
    score = FixedScore()
    trainer, generation = trainer_of(ToolEnvironments(score, [SMALL], feedback=feedback), [call(NARROW), call(BROAD)])
    before = trainer.model.lm_head.weight.detach().clone()
    loss = trainer.train().training_loss
    assert math.isfinite(loss)
    assert not before.equal(trainer.model.lm_head.weight)
    assert sum(len(ids) for _, ids in score.calls) == 2
    opening, _, answered, _ = generation.prompts
    assert '"name": "submit_schedule"' in opening, "the template shows the tool"
    assert "Axes that are left out" in opening
    assert "D = A·B with M = 64, N = 64, K = 64" in opening
    assert ("measured: 4.00 us" if feedback else RECEIVED) in answered
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert logged["rewards/ScheduleTools/mean"] == pytest.approx((value_of(4.0) + value_of(8.0)) / 2)
    assert logged["tools/call_frequency"] == 1
    assert logged["tools/failure_frequency"] == 0


@pytest.mark.filterwarnings("ignore")
def test_a_failing_machine_ends_the_training_with_its_line(trainer_of: Any) -> None:
    score = FixedScore()
    trainer, _ = trainer_of(ToolEnvironments(score, [SMALL]), [call(NARROW), call(BROAD)])
    score.error = MachineError("the driver was lost")
    with pytest.raises(MachineError, match="the driver was lost"):
        trainer.train()
