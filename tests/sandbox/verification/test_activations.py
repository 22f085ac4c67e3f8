"""The tiers on products with an activation: right ones pass, each way to compute a wrong one fails, whatever the seed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from cudal2_agent.contract.records.task import Activation, ElementType, GemmTask
from cudal2_agent.sandbox.verification.activations import activated
from cudal2_agent.sandbox.verification.elements import Array, decode, encode
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.probes.probing import RIGHT_NOW, ProbeRuns
from tests.sandbox.verification.in_memory import InMemoryExecutor, Memory, prove, sums

TASK = GemmTask(m=40, n=56, k=96, bias=True, activation=Activation.GELU)
KINDS = [(activation, element) for activation in Activation for element in ElementType]


def single(activation: Activation, values: Array) -> Array:
    """As a kernel computes it, in f32, with the formulas of PyTorch."""
    x, one = values.astype(np.float32), np.float32(1)
    with np.errstate(over="ignore", invalid="ignore"):
        match activation:
            case Activation.RELU:
                return np.where(x < 0, np.float32(0), x)
            case Activation.SILU:
                return x / (one + np.exp(-x))
            case Activation.GELU_TANH:
                inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
                return np.float32(0.5) * x * (one + np.tanh(inner))
            case Activation.GELU:
                erf = np.frompyfunc(math.erf, 1, 1)
                return x * np.float32(0.5) * (one + erf(x * np.float32(math.sqrt(0.5))).astype(np.float32))


def honest(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    total = sums(task, memory.a, memory.b, memory.bias)
    memory.d[:] = encode(np, single(task.activation, total), task.element)


def left_out(task: GemmTask, memory: Memory) -> None:
    memory.d[:] = encode(np, sums(task, memory.a, memory.b, memory.bias), task.element)


def twice(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    total = sums(task, memory.a, memory.b, memory.bias)
    memory.d[:] = encode(np, single(task.activation, single(task.activation, total)), task.element)


def of_rounded_sums(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    rounded = decode(np, encode(np, sums(task, memory.a, memory.b, memory.bias), task.element), task.element)
    memory.d[:] = encode(np, single(task.activation, rounded), task.element)


def before_the_bias(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    found = single(task.activation, sums(task, memory.a, memory.b)) + decode(np, memory.bias, task.element)
    memory.d[:] = encode(np, found, task.element)


def of_each_half_of_k(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    half = task.k // 2
    parts = sums(task, memory.a[:, :half], memory.b[:half], memory.bias), sums(task, memory.a[:, half:], memory.b[half:])
    memory.d[:] = encode(np, single(task.activation, parts[0]) + single(task.activation, parts[1]), task.element)


def not_in_the_last_row(task: GemmTask, memory: Memory) -> None:
    honest(task, memory)
    memory.d[-1] = encode(np, sums(task, memory.a[-1:], memory.b, memory.bias), task.element)


def another_one(task: GemmTask, memory: Memory) -> None:
    others = {Activation.RELU: Activation.GELU, Activation.SILU: Activation.GELU, Activation.GELU: Activation.SILU}
    total = sums(task, memory.a, memory.b, memory.bias)
    memory.d[:] = encode(np, single(others.get(task.activation, Activation.SILU), total), task.element)


def keeps_no_nan(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    total = np.nan_to_num(sums(task, memory.a, memory.b, memory.bias), nan=0.0, posinf=np.inf, neginf=-np.inf)
    memory.d[:] = encode(np, single(task.activation, total), task.element)


FAULTS = (
    left_out,
    of_rounded_sums,
    before_the_bias,
    of_each_half_of_k,
    not_in_the_last_row,
    another_one,
    keeps_no_nan,
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("activation", "element"), KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_what_pytorch_would_compute_from_f32_sums_is_right(
    activation: Activation, element: ElementType, bias: bool, seed: int
) -> None:
    task = TASK.model_copy(update={"activation": activation, "element": element, "bias": bias})
    tests = prove(task, honest, seed=seed, library=seed % 2 == 0, traits=Traits(programmatic=True))
    assert all(test.passed for test in tests), tests[-1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("fault", FAULTS)
def test_one_that_is_computed_wrongly_is_seen(
    fault: Callable[[GemmTask, Memory], None], activation: Activation, seed: int
) -> None:
    if fault is of_rounded_sums and activation is Activation.RELU:
        pytest.skip("rounding before relu or after it is the same")
    for element in ElementType:
        tests = prove(TASK.model_copy(update={"activation": activation, "element": element}), fault, seed=seed)
        assert not tests[-1].passed, [test.name for test in tests]


@pytest.mark.parametrize("activation", [Activation.GELU, Activation.SILU, Activation.GELU_TANH])
def test_one_that_is_computed_twice_is_seen(activation: Activation) -> None:
    """relu is the same, twice."""
    assert not prove(TASK.model_copy(update={"activation": activation}), twice)[-1].passed


@pytest.mark.parametrize("activation", list(Activation))
def test_values_are_those_of_pytorch(activation: Activation) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    of_torch = {
        Activation.RELU: functional.relu,
        Activation.SILU: functional.silu,
        Activation.GELU: functional.gelu,
        Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    }
    x = np.concatenate([np.linspace(-40, 40, 4001), [0.0, 1e-300, -1e-300, 1e30, -1e30, np.inf, np.nan]])
    np.testing.assert_allclose(
        activated(np, activation, x), of_torch[activation](torch.from_numpy(x)).numpy(), rtol=1e-12, atol=1e-14
    )


def test_a_missing_activation_is_named() -> None:
    found = ProbeRuns(InMemoryExecutor(TASK, left_out), TASK, lambda: True).symptoms()
    assert found is not None
    assert found.places is not None
    assert any("the sums themselves: gelu is not computed there" in words for words in found.values)
    assert ProbeRuns(InMemoryExecutor(TASK, honest), TASK, lambda: True).symptoms().values == (RIGHT_NOW,)
    somewhere = ProbeRuns(InMemoryExecutor(TASK, not_in_the_last_row), TASK, lambda: True).symptoms()
    assert somewhere.places.rows.first == TASK.m - 1


@pytest.mark.parametrize("activation", list(Activation))
def test_results_of_minus_infinity_are_its_limit_or_what_the_formula_gives(activation: Activation) -> None:
    limit = {Activation.RELU: (0.0,)}.get(activation, (0.0, math.nan))

    def passes(value: float) -> bool:
        def kernel(task: GemmTask, memory: Memory) -> None:
            total = sums(task, memory.a, memory.b, memory.bias)
            found = np.where(np.isneginf(total), np.float32(value), single(activation, total))
            memory.d[:] = encode(np, found, task.element)

        return all(test.passed for test in prove(TASK.model_copy(update={"activation": activation}), kernel))

    assert all(map(passes, limit))
    assert not passes(-math.inf)
