"""The tiers on products that add a bias: each way to add a wrong one fails, whatever the seed."""

from collections.abc import Callable

import numpy as np
import pytest

from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.verification.cases import PreparedCase, cases_for
from cudal2_agent.sandbox.verification.elements import decode, encode
from tests.sandbox.verification.in_memory import Memory, honest, product, prove

TASK = GemmTask(m=40, n=56, k=96, bias=True)


def left_out(task: GemmTask, memory: Memory) -> None:
    memory.d[:] = product(task, memory.a, memory.b)


def of_the_next_column(task: GemmTask, memory: Memory) -> None:
    memory.d[:] = product(task, memory.a, memory.b, np.roll(memory.bias, 1))


def last_column_left_out(task: GemmTask, memory: Memory) -> None:
    bias = memory.bias.copy()
    bias[-1] = 0
    memory.d[:] = product(task, memory.a, memory.b, bias)


def added_twice(task: GemmTask, memory: Memory) -> None:
    whole = decode(np, product(task, memory.a, memory.b, memory.bias), task.element)
    memory.d[:] = encode(np, whole + decode(np, memory.bias, task.element), task.element)


def not_in_the_last_row(task: GemmTask, memory: Memory) -> None:
    honest(task, memory)
    memory.d[-1] = product(task, memory.a[-1:], memory.b)


def added_to_a_rounded_product(task: GemmTask, memory: Memory) -> None:
    rounded = decode(np, product(task, memory.a, memory.b), task.element)
    memory.d[:] = encode(np, rounded + decode(np, memory.bias, task.element), task.element)


def kept_from_the_first_run(task: GemmTask, memory: Memory) -> None:
    bias = memory.workspace.setdefault("bias", memory.bias.copy())
    memory.d[:] = product(task, memory.a, memory.b, bias)


def clamped(task: GemmTask, memory: Memory) -> None:
    """Loses a NaN of the bias."""
    bias = encode(np, np.nan_to_num(decode(np, memory.bias, task.element), nan=0.0, posinf=1.0, neginf=-1.0), task.element)
    memory.d[:] = product(task, memory.a, memory.b, bias)


FAULTS = (
    left_out,
    of_the_next_column,
    last_column_left_out,
    added_twice,
    not_in_the_last_row,
    added_to_a_rounded_product,
    kept_from_the_first_run,
    clamped,
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("element", list(ElementType))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bias_that_is_added_wrongly_is_seen(
    fault: Callable[[GemmTask, Memory], None], element: ElementType, seed: int
) -> None:
    tests = prove(TASK.model_copy(update={"element": element}), fault, seed=seed)
    assert not tests[-1].passed, [test.name for test in tests]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("element", list(ElementType))
@pytest.mark.parametrize("library", [True, False])
def test_one_that_is_added_first_is_right(element: ElementType, seed: int, library: bool) -> None:
    tests = prove(TASK.model_copy(update={"element": element}), honest, seed=seed, library=library)
    assert all(test.passed for test in tests), tests[-1]


def test_products_without_a_bias_have_the_inputs_that_they_had() -> None:
    plain, biased = TASK.model_copy(update={"bias": False}), TASK
    assert [case.name for case in cases_for(plain)] == [case.name for case in cases_for(biased)]
    for case in cases_for(plain):
        found = PreparedCase(np, plain, case, 3, keep=False)
        assert found.inputs.bias is None
        assert PreparedCase(np, biased, case, 3, keep=False).inputs.bias.shape == (biased.n,)
