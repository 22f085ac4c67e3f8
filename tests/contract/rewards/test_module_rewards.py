"""What a time of a module is worth: against the fastest of PyTorch's, within what memory allows, and for sound tasks only."""

import math

import pytest

from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, COMPILED, EAGER, EAGER_GRAPH, TORCH, Measured, Timing
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.reward.reward import CLIP, FLOOR, gap_closed, reward
from cudal2_agent.contract.reward.roofline import arithmetic_us, memory_us, roofline_us
from cudal2_agent.contract.reward.speedup import speedup_that_counts, yardstick_of
from cudal2_agent.store.plain_records import figures
from tests.doubles import CHIP, measured
from tests.doubles.modules import relu_of_sum

TASK = relu_of_sum(1 << 14)  # 4 MiB each of two inputs and one output
TRUSTED = Origin(policy="fusion", schedule={"family": "fusion"})


def timed(own_us: float, **baselines_us: float) -> Measured:
    found = tuple(Timing(name=name.replace("_", "-"), samples_us=(us,) * 5) for name, us in baselines_us.items())
    return measured(own_us).model_copy(update={"baselines": found})


def test_the_fastest_of_pytorchs_baselines_counts() -> None:
    found = timed(10.0, eager=40.0, eager_cuda_graph=12.0, compiled=15.0)
    yardstick = yardstick_of(found)
    assert yardstick is not None
    assert yardstick.name == EAGER_GRAPH
    assert speedup_that_counts(found) == pytest.approx(1.2)
    assert reward(found, TASK, CHIP, TRUSTED) == pytest.approx(CLIP * math.tanh(math.log(1.2) / CLIP))
    assert figures(found.model_dump(mode="json")).speedup == pytest.approx(1.2)


def test_eager_pytorch_alone_is_no_yardstick_of_a_reward() -> None:
    alone = timed(10.0, eager=40.0, eager_cuda_graph=12.0)
    assert speedup_that_counts(alone) == pytest.approx(1.2), "which is shown all the same"
    assert reward(alone, TASK, CHIP, TRUSTED) is None
    assert gap_closed(alone, TASK, CHIP, TRUSTED) is None
    tuned = timed(10.0, eager_cuda_graph=12.0, compiled_max_autotune=15.0)
    assert reward(tuned, TASK, CHIP, TRUSTED) is not None


def test_autotuning_counts_where_it_was_measured_and_others_of_a_product_never_do() -> None:
    both = measured(10.0, baseline_us=20.0, baselines=(AUTOTUNED, EAGER, COMPILED))
    assert yardstick_of(both) == both.baselines[0]
    assert yardstick_of(measured(10.0, baselines=(TORCH,))) is None


def test_an_unsound_task_gives_no_reward() -> None:
    found = timed(10.0, compiled=15.0)
    unsound = TASK.model_copy(update={"soundness": Soundness(status="unsound", reason="zeros pass")})
    assert reward(found, unsound, CHIP, TRUSTED) is None
    assert reward(found, TASK.model_copy(update={"soundness": Soundness(status="sound")}), CHIP, TRUSTED) is not None


def test_a_time_in_which_the_output_cannot_be_written_earns_the_floor() -> None:
    written_us = (1 << 22) / (CHIP.dram_tbps * 1e6)
    assert reward(timed(0.5 * written_us, compiled=15.0), TASK, CHIP, TRUSTED) == FLOOR
    # Inputs may be read in part, and what PyTorch multiplies may cancel: neither makes a time implausible.
    heavy = TASK.model_copy(update={"flops": 10**12})
    assert reward(timed(0.9 * written_us, compiled=15.0), heavy, CHIP, TRUSTED) not in (FLOOR, None)


def test_the_roofline_of_a_module_is_of_its_bytes_and_its_arithmetic() -> None:
    assert memory_us(TASK, CHIP) == pytest.approx(3 * (1 << 22) / (CHIP.dram_tbps * 1e6))
    assert roofline_us(TASK, CHIP) == pytest.approx(memory_us(TASK, CHIP) + CHIP.launch_us)
    times = [
        arithmetic_us(TASK.model_copy(update={"flops": 10**12, "arithmetic": one}), CHIP)
        for one in (Arithmetic.F16, Arithmetic.TF32, Arithmetic.F32)
    ]
    assert times == pytest.approx([times[0], 2 * times[0], 16 * times[0]])
