"""Modules as tasks of the environment: axes, values over the fastest baseline, unsound tasks, and tools."""

import json
import math

import pytest

from cudal2_agent.agent.learning.environment.kernel_environment import EnvironmentBatch, KernelEnvironment
from cudal2_agent.agent.learning.environment.scored_outcome import scored
from cudal2_agent.agent.learning.environment.tool_environment import ToolEnvironments
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import COMPILED, EAGER_GRAPH, Measured, Timing
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.policies.chat.replies.named_axes import TaskAxes
from tests.agent.learning.environment.environment_doubles import SMALL, FixedScore
from tests.doubles import CHIP, measured
from tests.doubles.modules import relu_of_sum

LARGE = relu_of_sum(1 << 16)
AXES = TaskAxes(LARGE, CHIP)
[KERNEL] = AXES.axes
FIRST, OTHER = AXES.axes[KERNEL][:2]


class ModuleScore(FixedScore):
    """The first axes take 80 µs, others 90 µs; PyTorch 100 µs and, where `compiled`, 84 µs."""

    def __init__(self, *, compiled: bool = True) -> None:
        super().__init__()
        self._compiled = compiled

    def _evaluation(self, candidate):
        schedule = candidate.origin.schedule or {}
        if KERNEL not in schedule:
            return super()._evaluation(candidate)
        found = measured(80.0 if schedule[KERNEL] == FIRST else 90.0)
        assert isinstance(found, Measured)
        rounds = len(found.timing.samples_us)
        times = {EAGER_GRAPH: 100.0} | ({COMPILED: 84.0} if self._compiled else {})
        baselines = tuple(Timing(name=name, samples_us=(us,) * rounds) for name, us in times.items())
        return found.model_copy(update={"baselines": baselines})


def value_of(ratio: float) -> float:
    return 1.5 * math.tanh(math.log(ratio) / 1.5)


def test_an_episode_of_a_module_counts_against_the_fastest_baseline() -> None:
    made = KernelEnvironment(ModuleScore(), [LARGE, SMALL], turns=2)
    assert made.reset(LARGE).task == LARGE
    one = made.step({"family": "fusion"})
    assert one.value == pytest.approx(value_of(84 / 80))
    assert (one.info.speedup, one.info.message) == (pytest.approx(1.05), "")
    two = made.step({"family": "fusion", KERNEL: OTHER})
    assert two.value == pytest.approx(value_of(84 / 90))
    assert two.done
    assert two.observation.best == AXES.expand({"family": "fusion"})


def test_eager_pytorch_alone_rewards_nothing_and_the_step_says_so() -> None:
    made = KernelEnvironment(ModuleScore(compiled=False), [LARGE])
    made.reset(LARGE)
    step = made.step({"family": "fusion"})
    assert (step.value, step.info.reward) == (None, None)
    assert step.info.message.startswith("no compiled baseline was measured, and eager PyTorch alone is no yardstick")


def test_an_unsound_task_rewards_nothing_and_says_why() -> None:
    made = KernelEnvironment(
        ModuleScore(), [LARGE.model_copy(update={"soundness": Soundness(status="unsound", reason="zeros pass", seed=1)})]
    )
    made.reset()
    step = made.step({"family": "fusion"})
    assert (step.value, step.info.reward) == (None, None)
    assert step.info.message == "the task is unsound, so that nothing is rewarded: zeros pass"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "family is missing; allowed for relu of sum: fusion"),
        ({"family": "mma_sync"}, "family is 'mma_sync'; allowed"),
        ({"family": "fusion", "k99": "flat"}, f"fusion has no kernel 'k99'; its kernels are {KERNEL}"),
        ({"family": "fusion", KERNEL: "flat v3"}, f"{KERNEL} is 'flat v3'; allowed here: {FIRST}, {OTHER}"),
        ({"family": "fusion", KERNEL: 5}, f"{KERNEL} is 5; allowed here"),
    ],
)
def test_axes_that_make_no_plan_have_the_value_of_a_failure(answer, said: str) -> None:
    made = KernelEnvironment(ModuleScore(), [LARGE])
    made.reset(LARGE)
    step = made.step(answer)
    assert (step.value, step.info.status) == (FLOOR, "malformed")
    assert step.info.message.startswith(said)


def test_a_reply_may_name_axes_as_json() -> None:
    made = KernelEnvironment(ModuleScore(), [LARGE])
    made.reset(LARGE)
    step = made.step(json.dumps({"family": "fusion", KERNEL: OTHER}))
    assert step.value == pytest.approx(value_of(84 / 90))


def test_modules_and_products_share_a_batch() -> None:
    score = ModuleScore()
    made = EnvironmentBatch(score, [LARGE, SMALL], 3)
    made.reset([LARGE, SMALL, LARGE])
    steps = made.step([{"family": "fusion"}, {"family": "mma_sync", "block_n": 32}, {"family": "fusion"}])
    assert [step.info.status for step in steps] == ["measured"] * 3
    assert len(score.calls) == 2, "each task in one call"
    assert [step.info.task for step in steps] == [LARGE, SMALL, LARGE]


def test_tools_describe_a_module_and_take_its_axes() -> None:
    environments = ToolEnvironments(ModuleScore(), [LARGE, SMALL])
    tools = environments()
    said = tools.reset(environments.rows()[0]["task"])
    assert "The module relu of sum in f32" in said
    assert f"- {KERNEL}: {FIRST}" in said
    assert "1.050 times as fast as PyTorch's fastest" in tools.submit_schedule({"family": "fusion"})
    assert tools.get_reward() == pytest.approx(value_of(84 / 80))
    assert "matrix product" not in str(environments.rows()[0]["prompt"])


def test_an_outcome_of_a_module_is_scored_without_anything_of_a_product() -> None:
    candidate = AXES.expand({"family": "fusion"})
    assert isinstance(candidate, Candidate)
    [outcome] = ModuleScore().score(LARGE, [candidate])
    assert outcome == scored(candidate, outcome.evaluation, LARGE, CHIP, seconds=0.5)
