"""The builder: batches in parallel, each equal candidate once, nothing left running."""

import time
from pathlib import Path

import pytest

from contract.build import Built
from contract.chip import REFERENCE_CHIPS
from contract.errors import CompilerMissing, MachineError
from contract.evaluation import CompileFailed, Rejected, TimedOut
from contract.options import CompileOptions
from contract.task import Arch
from sandbox.builder import Builder
from sandbox.compiler import Compiler
from tests.sandbox.build_kernels import NAIVE, TASK, candidate, plan, tensor_core

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
ENDLESS = (
    "template <long a, long b> struct T { static constexpr long v = T<2 * a, b - 1>::v + T<2 * a + 1, b - 1>::v; };\n"
    "template <long a> struct T<a, 0> { static constexpr long v = a; };\n"
    "constexpr long kV = T<1, 40>::v;\n"
) + NAIVE


@pytest.fixture
def options(tmp_path: Path) -> CompileOptions:
    return CompileOptions(cache_dir=str(tmp_path / "cache"), jobs=2)


def test_every_position_gets_its_outcome(options: CompileOptions) -> None:
    batch = [
        candidate(NAIVE),
        candidate("#include <iostream>\n" + NAIVE),
        candidate(NAIVE.replace("float sum", "flaot sum")),
        candidate(tensor_core("f16")),
        candidate(NAIVE, launch_plan=plan(block=(512, 1, 1))),
        candidate(tensor_core("f32")),
    ]
    outcomes = dict(Builder(options, CHIP).build(batch, TASK))
    assert sorted(outcomes) == list(range(6))
    assert isinstance(outcomes[0], Built)
    assert outcomes[0].candidate == batch[0]
    assert Path(outcomes[0].artifact_path).is_file()
    assert isinstance(outcomes[1], Rejected)
    assert isinstance(outcomes[2], CompileFailed)
    assert [outcomes[i].rule for i in (3, 4)] == ["accumulator-width", "launch-bounds"]
    assert isinstance(outcomes[5], Built)


def test_equal_candidates_are_compiled_once(options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = Compiler.compile
    monkeypatch.setattr(Compiler, "compile", lambda self, *rest: calls.append(rest) or real(self, *rest))
    outcomes = dict(Builder(options, CHIP).build([candidate(NAIVE)] * 5, TASK))
    assert len(calls) == 1
    assert len(outcomes) == 5
    assert all(outcome is outcomes[0] for outcome in outcomes.values())


def test_a_second_run_says_that_the_compiler_was_spared(options: CompileOptions) -> None:
    first, again = (dict(Builder(options, CHIP).build([candidate(NAIVE)], TASK))[0] for _ in range(2))
    assert isinstance(first, Built)
    assert isinstance(again, Built)
    assert (first.cached, again.cached) == (False, True)
    assert first.inspection == again.inspection


def test_a_quick_candidate_does_not_wait_for_a_slow_one(options: CompileOptions) -> None:
    slow = options.model_copy(update={"timeout_s": 8.0})
    order = list(Builder(slow, CHIP).build([candidate(ENDLESS), candidate(NAIVE)], TASK))
    assert [position for position, _ in order] == [1, 0]
    assert isinstance(order[1][1], TimedOut)


def test_closing_the_iterator_ends_the_children(options: CompileOptions) -> None:
    outcomes = Builder(options, CHIP).build([candidate(NAIVE), *(candidate(f"{ENDLESS}//{i}") for i in range(6))], TASK)
    position, _ = next(outcomes)
    started = time.monotonic()
    outcomes.close()
    assert position == 0
    assert time.monotonic() - started < 10
    assert not list(Path(options.cache_dir).glob("building-*"))


def test_an_empty_batch_is_no_work(options: CompileOptions) -> None:
    assert list(Builder(options, CHIP).build([], TASK)) == []


def test_what_the_machine_lacks_is_raised(options: CompileOptions, tmp_path: Path) -> None:
    lacking = options.model_copy(update={"nvcc": str(tmp_path / "nvcc")})
    with pytest.raises(CompilerMissing):
        list(Builder(lacking, CHIP).build([candidate(NAIVE), candidate(NAIVE, compiler="nvcc")], TASK))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MachineError):
        list(Builder(options.model_copy(update={"cache_dir": str(tmp_path / "file")}), CHIP).build([candidate(NAIVE)], TASK))
