"""Twelve kinds of general kernels on the emulator: right ones pass all tests at several sizes, each planted fault is refused.

`python -m pytest tests/sandbox/emulator/modules/test_planted_faults.py -m slow` repeats everything under other seeds.
"""

from typing import Any

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import Wrong
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.emulator.evaluator import Evaluator
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, NotExecuted, Verified
from tests.sandbox.emulator.modules.corpus import KINDS, Fault, Kind
from tests.sandbox.emulator.proving import Build, builder

SIZES = [pytest.param(kind, size, id=f"{kind.name}-{'x'.join(map(str, size))}") for kind in KINDS for size in kind.sizes]
FAULTS = [pytest.param(kind, fault, id=f"{kind.name}-{fault.name}") for kind in KINDS for fault in kind.faults]
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else []) for seed in range(1, 5)]
# Which test or detector names a fault, for those that have one name.
NAMED = {
    "missing-barrier": ("shared-race",),
    "parts-used-again-early": ("shared-race",),
    "tile-overwritten-early": ("shared-race",),
    "carried-early": ("shared-race",),
    "reads-beyond": ("global-out-of-bounds",),
    "writes-beyond": ("global-out-of-bounds",),
    "row-beyond": ("global-out-of-bounds",),
    "vector-beyond-the-end": ("global-out-of-bounds",),
    "unwritten-tail": ("unwritten",),
    "unwritten-scratch": ("uninitialised-read",),
    "adds-to-the-old-output": ("uninitialised-read",),
    "the-first-output-is-kept": ("uninitialised-read", "global-race"),
    "no-wait-for-the-product": ("dependency",),
    "missing-fence": ("global-race",),
    "counter-not-restored": ("workspace",),
}


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    assert request.config.cache is not None
    return builder(request.config.cache.mkdir("emulator-kernels"))


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    """One for all, as a worker has: it keeps the cases of a task."""
    return Evaluator(REFERENCE_CHIPS[Arch.SM_90A], lambda _stage: None)


def proved(
    evaluator: Evaluator, build: Build, kind: Kind, task: ModuleTask, seed: int, fault: Fault | None = None
) -> Done | Verified | NotExecuted:
    candidate = kind.candidate(fault)
    options = VerifyOptions(seed=seed, timeout_s=60.0)
    return evaluator.evaluate(Evaluate(built=build(candidate.source, candidate.plan, task), task=task, verify=options))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_a_right_kernel_passes(evaluator: Evaluator, build: Build, kind: Kind, size: tuple[int, ...], seed: int) -> None:
    answer = proved(evaluator, build, kind, kind.task(*size), seed)
    assert isinstance(answer, Verified), answer
    assert (answer.tests[-1].tier, answer.tests[-1].name) == ("emulator", "schedules")
    assert {test.tier for test in answer.tests} >= {"exact", "accuracy", "special", "guards", "freshness", "repeatability"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "fault"), FAULTS)
def test_a_planted_fault_is_refused(evaluator: Evaluator, build: Build, kind: Kind, fault: Fault, seed: int) -> None:
    answer = proved(evaluator, build, kind, kind.task(*kind.sizes[0]), seed, fault)
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    assert answer.evaluation.test.name in NAMED.get(fault.name, (answer.evaluation.test.name,)), answer.evaluation.test.message


def test_the_corpus_is_as_large_as_it_says() -> None:
    counts: list[Any] = [len(KINDS), min(len(kind.faults) for kind in KINDS), len({id(kind.task) for kind in KINDS})]
    assert counts == [12, 6, 11]
    assert all(kind.candidate(fault).id != kind.candidate().id for kind in KINDS for fault in kind.faults)
