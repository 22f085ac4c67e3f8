"""The tiers on gated products: right ones pass, each way to confuse the factors fails and is named, whatever the seed."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cudal2_agent.contract.records.task import Activation, ElementType, GemmTask, Layout
from cudal2_agent.sandbox.verification.cases import (
    CANCELLATION,
    EXTREMES,
    GAUSSIAN,
    LARGE,
    NONFINITE,
    PATTERNS,
    SPARSE,
    SUBNORMAL_RESULTS,
    UNEVEN,
    UNIFORM,
    WIDE,
    ZERO_TIMES,
    PreparedCase,
    cases_for,
)
from cudal2_agent.sandbox.verification.comparison import compare_exact
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import Array, decode, encode
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.flips import flip_one
from cudal2_agent.sandbox.verification.inputs import Inputs, sparse_ones
from cudal2_agent.sandbox.verification.probes.probing import RIGHT_NOW, ProbeRuns
from cudal2_agent.sandbox.verification.reference import Reference
from tests.sandbox.verification.in_memory import InMemoryExecutor, Memory, prove, sums
from tests.sandbox.verification.test_activations import KINDS, single

TASK = GemmTask(m=40, n=56, k=96, activation=Activation.SILU, gated=True)
SPECIAL = (CANCELLATION, LARGE, EXTREMES, SUBNORMAL_RESULTS, PATTERNS, NONFINITE, ZERO_TIMES)
ALL = (SPARSE, WIDE, UNEVEN, GAUSSIAN, UNIFORM, *SPECIAL)

Formula = Callable[[Callable[[Array], Array], Array, Array], Array]


def kernel_of(formula: Formula, of_sums: Callable[[Array], Array] = lambda total: total) -> Any:
    """A kernel that computes a formula of f, A·B and A·up in f32, and rounds once."""

    def kernel(task: GemmTask, memory: Memory) -> None:
        assert task.activation is not None
        gate, up = (of_sums(sums(task, memory.a, weights)) for weights in (memory.b, memory.up))
        with np.errstate(over="ignore", invalid="ignore"):
            memory.d[:] = encode(np, formula(lambda x: single(task.activation, x), gate, up), task.element)

    return kernel


honest = kernel_of(lambda f, gate, up: f(gate) * up)
FORMULAS: dict[str, Formula] = {
    "B and up are exchanged": lambda f, gate, up: f(up) * gate,
    "B is read in place of up": lambda f, gate, up: f(gate) * gate,  # noqa: ARG005
    "up is read in place of B": lambda f, gate, up: f(up) * up,  # noqa: ARG005
    "silu is not computed there": lambda f, gate, up: gate * up,  # noqa: ARG005
    "silu is of the product of both": lambda f, gate, up: f(gate * up),
    "the factor A·up is left out": lambda f, gate, up: f(gate),  # noqa: ARG005
    "the factor A·B is left out": lambda f, gate, up: f(up),  # noqa: ARG005
    "the factor of A·B is left out": lambda f, gate, up: up,  # noqa: ARG005
    "the factors are added": lambda f, gate, up: f(gate) + up,
    "of the next column": lambda f, gate, up: f(gate) * np.roll(up, -1, axis=1),
    "of the column before": lambda f, gate, up: f(gate) * np.roll(up, 1, axis=1),
}


def in_last_row(task: GemmTask, memory: Memory) -> None:
    honest(task, memory)
    memory.d[-1] = encode(np, sums(task, memory.a[-1:], memory.up), task.element)


def kept_from_the_first_run(task: GemmTask, memory: Memory) -> None:
    memory.up[:] = memory.workspace.setdefault("up", memory.up.copy())
    honest(task, memory)


def of_rounded_sums(task: GemmTask, memory: Memory) -> None:
    kernel_of(lambda f, gate, up: f(gate) * up, lambda total: decode(np, encode(np, total, task.element), task.element))(
        task, memory
    )


def of_rounded_activation(task: GemmTask, memory: Memory) -> None:
    kernel_of(lambda f, gate, up: decode(np, encode(np, f(gate), task.element), task.element) * up)(task, memory)


def of_half_of_k_in_up(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    gate, up = sums(task, memory.a, memory.b), sums(task, memory.a[:, ::2], memory.up[::2])
    memory.d[:] = encode(np, single(task.activation, gate) * up, task.element)


def of_narrow_sums(task: GemmTask, memory: Memory) -> None:
    assert task.activation is not None
    gate, up = sums(task, memory.a, memory.b), sums(task, memory.a, memory.up, dtype=np.float16)
    memory.d[:] = encode(np, single(task.activation, gate) * up, task.element)


def keeps_no_nan(task: GemmTask, memory: Memory) -> None:
    kernel_of(lambda f, gate, up: f(gate) * np.nan_to_num(up, nan=0.0, posinf=np.inf, neginf=-np.inf))(task, memory)


FAULTS = (
    in_last_row,
    kept_from_the_first_run,
    of_rounded_sums,
    of_rounded_activation,
    of_half_of_k_in_up,
    of_narrow_sums,
    keeps_no_nan,
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("activation", "element"), KINDS)
@pytest.mark.parametrize("shape", [(40, 56, 96), (1, 1, 1), (3, 5, 1), (17, 2, 2049)])
def test_what_pytorch_would_compute_from_f32_sums_is_right(
    activation: Activation, element: ElementType, shape: tuple[int, int, int], seed: int
) -> None:
    m, n, k = shape
    task = TASK.model_copy(update={"activation": activation, "element": element, "m": m, "n": n, "k": k})
    tests = prove(task, honest, seed=seed, library=seed % 2 == 0, traits=Traits(programmatic=True))
    assert all(test.passed for test in tests), tests[-1]


@pytest.mark.parametrize(("activation", "element"), KINDS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_another_formula_is_seen(formula: str, activation: Activation, element: ElementType) -> None:
    task = TASK.model_copy(update={"activation": activation, "element": element})
    assert not prove(task, kernel_of(FORMULAS[formula]))[-1].passed


CONFUSED = [name for name in FORMULAS if "exchanged" in name or "in place" in name or "left out" in name]
# Where sums are zero, or one sum is, both orders of the factors give the same.
SAME = {(ZERO_TIMES.name, name) for name in CONFUSED} | {(PATTERNS.name, "the factor A·B is left out")}


@pytest.mark.parametrize(("activation", "element"), KINDS)
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_each_case_tells_the_factors_apart(case: Any, activation: Activation, element: ElementType) -> None:
    task = TASK.model_copy(update={"activation": activation, "element": element})
    prepared = PreparedCase(np, task, case, 1, keep=True)
    executor = InMemoryExecutor(task, honest)
    right = prepared.compare(executor.run(prepared.inputs).output)
    assert right.right, right.describe()
    unseen = {
        name
        for name in CONFUSED
        if prepared.compare(InMemoryExecutor(task, kernel_of(FORMULAS[name])).run(prepared.inputs).output).right
    }
    assert {(case.name, name) for name in unseen} <= SAME


@pytest.mark.parametrize("element", ElementType)
@pytest.mark.parametrize("k", [64, 4096])
def test_outputs_are_neither_all_small_nor_infinite(element: ElementType, k: int) -> None:
    task = TASK.model_copy(update={"element": element, "k": k})
    for case in cases_for(task):
        if case in (NONFINITE, ZERO_TIMES, PATTERNS, LARGE):
            continue
        want = decode(np, _output(task, case), element)
        assert np.isfinite(want).all(), case.name
        least = 2.0**-24 if element is ElementType.F16 else 2.0**-133
        if case is not SUBNORMAL_RESULTS:
            least *= 64
        assert (np.abs(want) >= least).mean() > 0.3, case.name


def _output(task: GemmTask, case: Any) -> Array:
    return InMemoryExecutor(task, honest).run(PreparedCase(np, task, case, 3, keep=False).inputs).output


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("activation", "element"), KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_that_is_computed_wrongly_is_seen(
    fault: Callable[[GemmTask, Memory], None], activation: Activation, element: ElementType, seed: int
) -> None:
    task = TASK.model_copy(update={"activation": activation, "element": element})
    tests = prove(task, fault, seed=seed)
    assert not tests[-1].passed, [test.name for test in tests]


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_formula_of_a_wrong_kernel_is_named(formula: str) -> None:
    found = ProbeRuns(InMemoryExecutor(TASK, kernel_of(FORMULAS[formula])), TASK, lambda: True).symptoms()
    assert found is not None
    assert found.places is not None
    assert formula in found.values[0]


def test_what_the_probes_cannot_name() -> None:
    assert ProbeRuns(InMemoryExecutor(TASK, honest), TASK, lambda: True).symptoms().values == (RIGHT_NOW,)
    somewhere = ProbeRuns(InMemoryExecutor(TASK, in_last_row), TASK, lambda: True).symptoms()
    assert somewhere.places.rows.first == TASK.m - 1


@pytest.mark.parametrize("operand", ["a", "b", "up"])
@pytest.mark.parametrize("element", ElementType)
def test_one_element_is_inverted_and_no_other(operand: str, element: ElementType) -> None:
    task = TASK.model_copy(update={"element": element})
    for seed in range(8):
        source = Draws(np, seed)
        inputs = sparse_ones(source, task)
        after = flip_one(source, task, inputs, np.zeros((task.m, task.n), np.uint16), operand).inputs
        for name in ("a", "b", "up"):
            old, new = (decode(np, getattr(each, name), element) for each in (inputs, after))
            assert (old != new).sum() == (name == operand)
            assert set(np.unique(new)) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("operand", ["a", "b", "up"])
@pytest.mark.parametrize("shape", [(1, 256, 512), (64, 64, 64), (5, 8, 1)])
def test_an_inverted_element_changes_an_output(shape: tuple[int, int, int], operand: Any, activation: Activation) -> None:
    m, n, k = shape
    task = TASK.model_copy(update={"m": m, "n": n, "k": k, "activation": activation})
    for seed in range(30):
        source = Draws(np, seed)
        inputs = sparse_ones(source, task)
        before = InMemoryExecutor(task, honest).run(inputs).output
        if (before & 0x7FFF).any():
            changed = flip_one(source, task, inputs, before, operand).inputs
            assert (InMemoryExecutor(task, honest).run(changed).output != before).any()


def test_operands_lie_as_the_layout_has_them() -> None:
    for layout in Layout:
        task = TASK.model_copy(update={"layout": layout})
        stored = sparse_ones(Draws(np, 0), task).stored(layout)
        assert [each.shape for each in stored] == [task.shapes[name] for name in ("A", "B", "up")]


@pytest.mark.parametrize("activation", list(Activation))
def test_infinite_factors_are_judged_as_f32_computes_them(activation: Activation) -> None:
    """A kernel's f of a very negative sum may be zero, or a small number: times infinity, NaN or an infinity."""
    limit = -math.inf if activation is Activation.SILU else math.nan
    task = GemmTask(m=2, n=1, k=1, element=ElementType.BF16, activation=activation, gated=True)

    def passes(gate: float, up: float, got: float, row: float = 1.0) -> bool:
        a, b, u = (encode(np, np.array(values), task.element) for values in ([[row], [row]], [[gate]], [[up]]))
        reference = Reference(np, task, Inputs(a, b, up=u), keep=False)
        return compare_exact(np, task, encode(np, np.full((2, 1), got), task.element), reference).right

    assert passes(-200.0, math.inf, math.nan)
    assert passes(-200.0, math.inf, limit)
    assert not passes(-200.0, math.inf, 0.0)
    assert passes(2.0, math.inf, math.inf)
    assert passes(2.0, -math.inf, -math.inf)
    assert not passes(2.0, -math.inf, math.inf)
    assert not passes(2.0, -math.inf, math.nan)
    assert passes(math.inf, -3.0, -math.inf)
    assert not passes(math.inf, -3.0, math.inf)
    assert passes(math.nan, 2.0, math.nan)
    assert not passes(math.nan, 2.0, 1.0)
    assert passes(-math.inf, 2.0, 0.0)
    assert not passes(-math.inf, math.nan, 0.0)
    assert not passes(-math.inf, math.inf, 0.0)
    assert passes(2.0, -3.0, -math.inf, row=math.inf)
    assert not passes(2.0, -3.0, math.inf, row=math.inf)
    assert not passes(2.0, -3.0, math.nan, row=math.inf)
