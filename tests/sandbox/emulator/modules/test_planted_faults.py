"""Twelve kinds of general kernels on the emulator: right ones pass all tests at several sizes, each planted fault is refused.

`python -m pytest tests/sandbox/emulator/modules/test_planted_faults.py -m slow` proves the other sizes of each kernel and the
fuser's other axes, and repeats everything under other seeds.
"""

from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Wrong
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.emulator.evaluator import Evaluator
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, NotExecuted, Verified
from tests.sandbox.emulator.modules.corpus import KERNELS
from tests.sandbox.emulator.modules.corpus.fused import PLACES, TASKS, candidates
from tests.sandbox.emulator.modules.corpus.kernel import Fault, Kernel, Size
from tests.sandbox.emulator.proving import TIERS, Build, passed

SLOW = [pytest.mark.slow]
SIZES = [
    pytest.param(kernel, size, id=f"{kernel.source}-{'x'.join(map(str, size))}", marks=SLOW if place else [])
    for kernel in KERNELS
    for place, size in enumerate(kernel.sizes)
]
FAULTS = [pytest.param(kernel, fault, id=f"{kernel.source}-{fault.name}") for kernel in KERNELS for fault in kernel.faults]
WRITTEN = [
    pytest.param(task, size, place, id=f"{task.__name__}-{'x'.join(map(str, size))}-{place}", marks=SLOW if place else [])
    for task, size in TASKS
    for place in range(len(PLACES))
]
SEEDS = [pytest.param(seed, marks=SLOW if seed > 1 else []) for seed in range(1, 5)]
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
    "added-without-atomics": ("global-race",),
    "peer-read-early": ("shared-race",),
    "ends-before-its-peer-has-read": ("cluster-exit",),
    "copies-not-waited-for": ("async-race",),
    "overwritten-while-read": ("async-race",),
    "used-in-flight": ("async-race", "wgmma-in-flight"),
    "missing-proxy-fence": ("missing-proxy-fence",),
    "not-cleared": ("uninitialised-read",),
    "counter-not-restored": ("workspace",),
}


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    """One for all, as a worker has: it keeps the cases of a task."""
    return Evaluator(REFERENCE_CHIPS[Arch.SM_90A], lambda _stage: None)


def proved(
    evaluator: Evaluator, build: Build, candidate: Candidate, task: ModuleTask, seed: int
) -> Done | Verified | NotExecuted:
    options = VerifyOptions(seed=seed, timeout_s=60.0)
    return evaluator.evaluate(Evaluate(built=build(candidate.source, candidate.plan, task), task=task, verify=options))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kernel", "size"), SIZES)
def test_a_right_kernel_passes(evaluator: Evaluator, build: Build, kernel: Kernel, size: Size, seed: int) -> None:
    assert passed(proved(evaluator, build, kernel.candidate(), kernel.task(*size), seed)) == (TIERS, "schedules")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("task", "size", "place"), WRITTEN)
def test_what_the_fuser_writes_passes(
    evaluator: Evaluator, build: Build, task: Callable[..., ModuleTask], size: Size, place: int, seed: int
) -> None:
    stated = task(*size)
    found = list(candidates(stated))
    if place >= len(found):
        pytest.skip("its space has fewer axes")
    assert passed(proved(evaluator, build, found[place], stated, seed)) == (TIERS, "schedules")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kernel", "fault"), FAULTS)
def test_a_planted_fault_is_refused(evaluator: Evaluator, build: Build, kernel: Kernel, fault: Fault, seed: int) -> None:
    answer = proved(evaluator, build, kernel.candidate(fault), kernel.task(*kernel.sizes[0]), seed)
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    assert answer.evaluation.test.name in NAMED.get(fault.name, (answer.evaluation.test.name,)), answer.evaluation.test.message


def test_the_corpus_is_as_large_as_it_says() -> None:
    faults = Counter(kernel.kind for kernel in KERNELS for _ in kernel.faults)
    assert len(faults) == 12
    assert min(faults.values()) >= 6
    assert (len(SIZES) >= 150, len(FAULTS) >= 120) == (True, True)
    assert all(kernel.candidate(fault).id != kernel.candidate().id for kernel in KERNELS for fault in kernel.faults)
