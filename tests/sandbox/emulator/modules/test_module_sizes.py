"""Which tests of a module run at which size, and what the proof says of it."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.emulator.evaluator import Evaluator
from cudal2_agent.sandbox.emulator.large.module_size import names_sizes, reduced_modules, smaller_dims, work_of
from cudal2_agent.sandbox.emulator.modules import module_evaluator
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, NotExecuted, Reduced, Verified
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import Kernel, launch
from tests.sandbox.emulator.modules.corpus.products import LIBRARY_LINEAR
from tests.sandbox.emulator.modules.corpus.reductions import MSE
from tests.sandbox.emulator.modules.corpus.rows import SOFTMAX
from tests.sandbox.emulator.proving import Build

Answer = Done | Verified | NotExecuted


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(REFERENCE_CHIPS[Arch.SM_90A], lambda _stage: None)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of more than 2000 elements are large, and of more than 40000 are sampled."""
    for name, value in (("WHOLE_WORK", 2000), ("AFFORDABLE_WORK", 2000), ("QUICK_WORK", 40_000), ("REFERENCE_WORK", 2_000_000)):
        monkeypatch.setattr(module_evaluator, name, value)


def asked(evaluator: Evaluator, built: Built, task: ModuleTask, reduced: Reduced | None = None) -> Answer:
    return evaluator.evaluate(Evaluate(built=built, task=task, verify=VerifyOptions(seed=3, timeout_s=60.0), reduced=reduced))


def made(build: Build, kind: Kernel, task: ModuleTask, source: str | None = None) -> Built:
    candidate = kind.candidate()
    return build(source or candidate.source, candidate.plan, task)


def said(answer: Answer) -> dict[str, str]:
    """The last tests of a proof by name, with their messages."""
    assert isinstance(answer, Verified), answer
    return {test.name: test.message for test in answer.tests[-3:]}


def failed(answer: Answer) -> TestResult:
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    return answer.evaluation.test


@pytest.mark.usefixtures("large")
def test_a_large_module_is_proved_at_smaller_dims_then_whole_without_races(evaluator: Evaluator, build: Build) -> None:
    task, smaller = SOFTMAX.task(12, 1000), SOFTMAX.task(4, 40)
    built = made(build, SOFTMAX, task)
    names = said(asked(evaluator, built, task, Reduced(built=built, task=smaller)))
    assert names["reduced"] == "the tests before this one ran whole grids at rows 4, columns 40"
    assert names["full-size"] == "softmax: the whole grid, without race detection; 12000 outputs compared"


@pytest.mark.usefixtures("large")
def test_ctas_of_a_larger_one_are_sampled(evaluator: Evaluator, build: Build) -> None:
    task, smaller = SOFTMAX.task(200, 1000), SOFTMAX.task(4, 40)
    built = made(build, SOFTMAX, task)
    names = said(asked(evaluator, built, task, Reduced(built=built, task=smaller)))
    assert names["full-size"] == "softmax: 12 of 200 CTAs; 12000 outputs compared"
    assert names["not-covered"] == "not covered at full size: what only CTAs outside the sample do"


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("rows", "place"), [(12, "whole"), (200, "sample")])
def test_a_fault_that_only_the_full_size_has_is_refused(evaluator: Evaluator, build: Build, rows: int, place: str) -> None:
    """Rows of more than 512 elements are cut: no row at the smaller dims is as long."""
    task, smaller = SOFTMAX.task(rows, 1000), SOFTMAX.task(4, 40)
    source = SOFTMAX.candidate().source.replace(
        "i < columns; i += blockDim.x) out", "i < (columns & 0x1ff); i += blockDim.x) out"
    )
    built = made(build, SOFTMAX, task, source)
    answer = asked(evaluator, built, task, Reduced(built=built, task=smaller))
    if place == "whole":
        assert failed(answer).message.endswith("(at full size)")
    else:  # what a sample did not write is not known to be missing
        assert "12000 outputs" not in said(answer)["full-size"]


@pytest.mark.usefixtures("large")
def test_a_fault_at_the_smaller_dims_is_a_verdict_unless_a_size_may_be_compiled_in(evaluator: Evaluator, build: Build) -> None:
    task, smaller = SOFTMAX.task(12, 1000), SOFTMAX.task(4, 40)
    source = SOFTMAX.candidate().source
    built = made(build, SOFTMAX, task, source.replace("/ sum", "/ (sum + 1)"))
    assert "(at rows 4, columns 40)" in failed(asked(evaluator, built, task, Reduced(built=built, task=smaller))).message
    pinned = made(build, SOFTMAX, task, source.replace("i < columns", "i < 1000"))
    answer = asked(evaluator, pinned, task, Reduced(built=pinned, task=smaller))
    assert isinstance(answer, NotExecuted)
    assert "may have its sizes compiled in, and fails at rows 4, columns 40" in answer.reason
    written = made(build, SOFTMAX, smaller, source.replace("i < columns", "i < 40"))  # by its policy
    assert "reduced" in said(asked(evaluator, pinned, task, Reduced(built=written, task=smaller)))


@pytest.mark.usefixtures("large")
def test_a_large_module_without_smaller_dims_is_not_executed(evaluator: Evaluator, build: Build) -> None:
    task = SOFTMAX.task(12, 1000)
    answer = asked(evaluator, made(build, SOFTMAX, task), task)
    assert isinstance(answer, NotExecuted)
    assert answer.reason == "softmax has 3.6e+04 elements, and the module was not traced at smaller dims"


@pytest.mark.usefixtures("large")
def test_a_sample_that_needs_the_other_ctas_is_not_covered(evaluator: Evaluator, build: Build) -> None:
    task, smaller = MSE.task(30_000), MSE.task(700)
    built = made(build, MSE, task)
    answer = said(asked(evaluator, built, task, Reduced(built=built, task=smaller)))
    assert answer["not-covered"].endswith("a sample of CTAs does not end, or writes nothing, without the others")


def test_dims_shrink_together_with_their_residues() -> None:
    tried = list(smaller_dims({"batch": 4096, "features": 1000, "kernel_size": 3, "groups": 16}))
    assert tried[0] == {"batch": 32, "features": 40, "kernel_size": 3, "groups": 16}
    assert all(each["kernel_size"] == 3 and each["groups"] == 16 for each in tried)
    assert all(each["features"] % 32 == 1000 % 32 and each["batch"] % 32 == 0 for each in tried if each["features"] > 32)


def test_dims_that_are_no_extents_stay() -> None:
    tried = list(smaller_dims({"batch": 4096, "padding": 0, "dim": -1}))
    assert tried[0] == {"batch": 32, "padding": 0, "dim": -1}


def test_a_part_of_a_dim_stays_smaller_than_it() -> None:
    """At groups of one channel the module has other kernels, and a candidate for its own sizes reads beyond its buffers."""
    for tried in smaller_dims({"batch": 1024, "input": 8192, "hidden": 8192, "groups": 512, "odd": 1536}):
        assert tried["groups"] < tried["hidden"] == tried["input"]
        assert (tried["hidden"] % tried["groups"], tried["odd"] % tried["groups"]) == (0, 0)


def test_the_first_dims_that_the_file_takes_and_that_are_small_come_first() -> None:
    asked_for: list[Mapping[str, int]] = []

    def resize(_task: ModuleTask, dims: Mapping[str, int]) -> ModuleTask:
        asked_for.append(dims)
        if dims["columns"] < 64:
            raise UsageError("a row has at least 64 elements")
        return graphs.row_softmax(**dims)

    task = graphs.row_softmax(4096, 4096)
    found = [each.dims for each in reduced_modules(task, resize)]
    assert found[0] == {"rows": 64, "columns": 64}
    assert asked_for[0] == {"rows": 32, "columns": 32}
    assert not list(reduced_modules(graphs.row_softmax(8, 8), resize))


def test_a_source_names_a_size_where_a_number_in_it_is_one() -> None:
    task, smaller = graphs.row_softmax(512, 1000), graphs.row_softmax(32, 40)
    plan = plan_from_json({"arch": "sm_90a", "launches": [launch("k", "rows", 128, "out=")]})

    def names(source: str) -> bool:
        return names_sizes(Candidate(source=source, plan=plan, origin=ORIGIN), task, smaller)

    assert not names("__global__ void k(int n) { /* 1000 */ if (n < 128) return; }")
    assert names("__global__ void k() { constexpr int N = 1000; }")
    assert names("constexpr int ALL = 512000;")


def test_work_counts_values_and_products() -> None:
    task: Any = LIBRARY_LINEAR.task(8, 16, 32)
    at, parameters = 8 * 16, 16 * 32 + 3 * 16
    values = 32 * 16 + at + (at + 2 * 8) + at + at
    assert work_of(task) == (8 * 32 + parameters + at) + values + math.prod((8, 16, 32)) // 16
