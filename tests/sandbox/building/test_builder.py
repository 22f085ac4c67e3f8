"""The builder: parallel batches, equal candidates once, no process left."""

import errno
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import CompilerMissing, MachineError, WorkerError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, Crashed, Rejected, TimedOut
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building import builder as builder_module
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.compiler import Compiler
from tests.sandbox.building.build_kernels import NAIVE, TASK, candidate, plan, tensor_core

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
    assert (outcomes[0].task, outcomes[0].plan) == (TASK, resolve(batch[0].plan, TASK, LIMITS[TASK.arch], CHIP.sms))
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


def test_only_a_trusted_writers_machine_code_is_put_off(options: CompileOptions) -> None:
    mine = candidate(NAIVE).model_copy(update={"origin": Origin(policy="schedule", schedule={"family": "naive"})})
    outcomes = dict(Builder(options, CHIP).build([mine, candidate(NAIVE + " ")], TASK, briefly=True))
    judged = {position: outcome.judged for position, outcome in outcomes.items() if isinstance(outcome, Built)}
    assert judged == {0: False, 1: True}


def test_an_empty_batch_is_no_work(options: CompileOptions) -> None:
    assert list(Builder(options, CHIP).build([], TASK)) == []


def test_what_the_machine_lacks_is_raised(options: CompileOptions, tmp_path: Path) -> None:
    lacking = options.model_copy(update={"nvcc": str(tmp_path / "nvcc")})
    with pytest.raises(CompilerMissing):
        list(Builder(lacking, CHIP).build([candidate(NAIVE), candidate(NAIVE, compiler="nvcc")], TASK))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MachineError):
        list(Builder(options.model_copy(update={"cache_dir": str(tmp_path / "file")}), CHIP).build([candidate(NAIVE)], TASK))


@pytest.mark.parametrize("where", ["check", "inspect"])
@pytest.mark.parametrize(
    "error", [RecursionError(), ValueError("\ud800"), KeyError("x"), OSError(errno.ENAMETOOLONG, "too long")]
)
def test_an_error_of_ours_on_one_candidate_is_its_own_outcome(
    options: CompileOptions, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    real, odd = getattr(builder_module, where), candidate(NAIVE + "// odd\n")

    def fails(*given: Any, **options_given: Any) -> Any:
        if odd in given:
            raise error
        return real(*given, **options_given)

    monkeypatch.setattr(builder_module, where, fails)
    outcomes = dict(Builder(options, CHIP).build([candidate(NAIVE), odd, odd], TASK))
    assert isinstance(outcomes[0], Built)
    assert outcomes[1] == outcomes[2]
    assert isinstance(outcomes[1], Crashed)
    assert (outcomes[1].stage, type(error).__name__ in outcomes[1].message) == ("build", True)


def test_an_error_of_ours_on_every_candidate_is_raised(options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(builder_module, "check", fails)
    with pytest.raises(WorkerError, match="3 candidates in a row met an internal error") as caught:
        list(Builder(options, CHIP).build([candidate(f"{NAIVE}// {index}") for index in range(5)], TASK))
    assert "Traceback" in caught.value.log


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_is_the_machines_fault(options: CompileOptions, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = Path.write_text

    def write(path: Path, *rest: Any, **named: Any) -> int:
        if path.name == "kernel.cu":
            raise OSError(number, os.strerror(number))
        return real(path, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", write)
        with pytest.raises(MachineError, match=os.strerror(number)) as caught:
            Builder(options, CHIP).build_one(candidate(NAIVE), TASK)
    assert re.search("free (some )?space", str(caught.value))
    assert isinstance(Builder(options, CHIP).build_one(candidate(NAIVE), TASK), Built), "and nothing is left behind"


def test_a_failed_compilation_on_a_full_disk_is_no_verdict(options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = candidate(NAIVE.replace("float sum", "flaot sum"))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40 - 2**20, 2**20))
        with pytest.raises(MachineError, match=r"only 1\.0 MiB are free"):
            Builder(options, CHIP).build_one(broken, TASK)
    assert isinstance(Builder(options, CHIP).build_one(broken, TASK), CompileFailed)


def test_a_candidate_cannot_pretend_that_the_disk_is_full(options: CompileOptions) -> None:
    outcome = Builder(options, CHIP).build_one(candidate("#error no space left on device\n" + NAIVE), TASK)
    assert isinstance(outcome, CompileFailed)
