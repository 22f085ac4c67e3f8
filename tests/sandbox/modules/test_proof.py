"""The tests of a module, over kernels that are right and kernels that misbehave."""

from collections.abc import Callable

import pytest
import torch

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.modules.cases import CASES
from cudal2_agent.sandbox.modules.proof import ModuleProof, PreparedCases
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from tests.sandbox.modules import small_tasks as small
from tests.sandbox.modules.in_memory import InMemory, Kernel

TASK = small.linear_relu(rows=8, k=48, columns=24)
CASES_OF_TASK = PreparedCases(TASK, torch.device("cpu"), 1 << 24)
Tensors = dict[str, torch.Tensor]


def linear(values: Tensors) -> torch.Tensor:
    return (values["bias"] + values["x"] @ values["weight"]).relu()


def right(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:  # noqa: ARG001
    outputs["out"].copy_(linear(values))


def proved(kernel: Kernel, seed: int = 5, traits: Traits | None = None) -> tuple[TestResult, ...]:
    proof = ModuleProof(InMemory(TASK, kernel), CASES_OF_TASK, traits or Traits(), VerifyOptions(seed=seed))
    return run_until_failure(proof.tests())


def failure(kernel: Kernel) -> tuple[str, str]:
    last = proved(kernel)[-1]
    return (last.tier, last.name) if not last.passed else ("", "")


def test_a_right_kernel_passes_every_test() -> None:
    found = proved(right, traits=Traits(programmatic=True))
    assert [test for test in found if not test.passed] == []
    assert len(found) == len(CASES) + 5
    assert {test.tier for test in found} == {
        *("exact", "accuracy", "special", "guards", "freshness", "repeatability", "programmatic")
    }


def leaves_a_row(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:  # noqa: ARG001
    outputs["out"][:-1].copy_(linear(values)[:-1])


def keeps_weights() -> Kernel:
    """Prepares the parameters once."""
    kept: Tensors = {}

    def kernel(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:  # noqa: ARG001
        kept.setdefault("weight", values["weight"])
        outputs["out"].copy_(linear(values | {"weight": kept["weight"]}))

    return kernel


def keeps_results() -> Kernel:
    """Looks at one element of the input and at the sum of the weights."""
    kept: dict[tuple[float, float], torch.Tensor] = {}

    def kernel(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:  # noqa: ARG001
        key = (float(values["x"][0, 1]), float(values["weight"].sum()))
        outputs["out"].copy_(kept.setdefault(key, linear(values)))

    return kernel


def changes_its_input(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:
    right(values, outputs, scratch)
    values["x"].zero_()


def adds_to_scratch(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:
    """Takes zeros for granted that it never wrote."""
    outputs["out"].copy_(linear(values) + scratch[: outputs["out"].numel()].reshape(outputs["out"].shape))


def differs() -> Kernel:
    runs: list[int] = []

    def kernel(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:  # noqa: ARG001
        runs.append(1)
        outputs["out"].copy_(linear(values) * (1 + 2.0**-23 * (len(runs) % 2)))

    return kernel


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        (lambda: leaves_a_row, ("guards", "unwritten")),
        (keeps_weights, ("accuracy", "")),
        (keeps_results, ("freshness", "one-element-changed")),
        (lambda: changes_its_input, ("guards", "input")),
        (lambda: adds_to_scratch, ("exact", "whole-numbers")),
        (differs, ("repeatability", "bitwise")),
    ],
)
def test_what_misbehaves_is_refused(kernel: Callable[[], Kernel], where: tuple[str, str]) -> None:
    tier, name = failure(kernel())
    assert tier == where[0] or (not where[1] and tier == "special")
    assert name == (where[1] or name)


def test_a_fault_of_memory_in_any_run_is_refused() -> None:
    def tried(faulty: int) -> tuple[int, bool]:
        runs = 0

        def kernel(values: Tensors, outputs: Tensors, scratch: torch.Tensor) -> None:
            nonlocal runs
            right(values, outputs, scratch)
            if runs == faulty:
                values["x"][0, 0] += 1
            runs += 1

        tests = proved(kernel, traits=Traits(programmatic=True))
        return runs, tests[-1].passed

    runs, passed = tried(-1)
    assert passed
    assert [index for index in range(runs) if tried(index)[1]] == []


def test_the_same_seed_gives_the_same_tests() -> None:
    assert proved(right, seed=9) == proved(right, seed=9)
