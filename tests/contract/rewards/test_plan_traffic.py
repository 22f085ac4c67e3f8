"""A module's plan by what its steps move: what is fused ranks before what is not."""

from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import FIGURES, LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.plan_traffic import traffic_us
from cudal2_agent.contract.reward.roofline import roofline_us
from tests.doubles.modules import relu_of_sum

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
TASK = relu_of_sum(1 << 16)
BUFFER_US = (1 << 16) * 64 * 4 / (CHIP.dram_tbps * 1e6)
OUT = {"tensor": "out", "access": "write"}


def launch(*args: dict[str, Any]) -> dict[str, Any]:
    return {"entry": "k", "grid": ["rows", 1, 1], "block": [64, 1, 1], "args": list(args)}


def moved_us(*steps: dict[str, Any], task: ModuleTask = TASK) -> float:
    """Without what launches take."""
    scratch = [{"name": "h", "shape": ["rows", "columns"], "element": "f32"}]
    plan = resolve(
        plan_from_json({"arch": "sm_90a", "launches": list(steps), "scratch": scratch}), task, LIMITS[Arch.SM_90A], 132
    )
    figures = FIGURES[Arch.SM_90A]
    launches = len(plan.launches) + len(plan.calls)
    return traffic_us(plan, task, CHIP) - max(figures.empty_us.values()) - figures.dependent_us * (launches - 1)


def test_one_kernel_moves_each_buffer_once_and_two_move_what_lies_between() -> None:
    fused = moved_us(launch({"tensor": "x"}, {"tensor": "y"}, OUT))
    apart = moved_us(launch({"tensor": "x"}, {"tensor": "y"}, {"tensor": "h", "access": "write"}), launch({"tensor": "h"}, OUT))
    assert fused == pytest.approx(3 * BUFFER_US)
    assert apart == pytest.approx(5 * BUFFER_US)
    assert fused + max(FIGURES[Arch.SM_90A].empty_us.values()) > roofline_us(TASK, CHIP)  # a prediction, and no floor


def test_steps_that_take_parts_move_a_buffer_once_in_all() -> None:
    step = launch(
        {"tensor": "x", "offset_bytes": "4*I*columns"}, {"tensor": "out", "offset_bytes": "4*I*columns", "access": "write"}
    )
    assert moved_us({"repeat": 16, "launches": [step]}) == pytest.approx(2 * BUFFER_US)


def test_a_library_call_moves_its_operands_and_multiplies() -> None:
    call = {"call": "mm", "inputs": [{"tensor": "x"}, {"tensor": "y", "permute": [1, 0]}], "out": {"tensor": "h"}}
    small = relu_of_sum(64)
    alone = moved_us(call, launch({"tensor": "h"}, OUT), task=small)
    heavy = moved_us(call, launch({"tensor": "h"}, OUT), task=small.model_copy(update={"flops": 10**12}))
    assert alone == pytest.approx(5 * 64 * 64 * 4 / (CHIP.dram_tbps * 1e6))
    assert heavy == pytest.approx(16 * 10**12 / (CHIP.tensor_tflops * 1e6))
