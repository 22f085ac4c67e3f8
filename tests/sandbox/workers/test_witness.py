"""The emulator beside a GPU: the GPU's worker is scripted; the emulator is real, missing or misbehaving."""

import sys

import pytest

from cudal2_agent.contract.events import StageStarted
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import Crashed, TimedOut, Unmeasured, Wrong
from cudal2_agent.contract.settings.options import EmulateOptions
from cudal2_agent.sandbox import backend
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.sandbox.test_local import (
    NAIVE,
    PREDICTION,
    SCRIPT,
    TASK,
    built_from,
    needs_core,
    opened,
    options,
    scripted,
    with_script,
    without_emulator,
)

__all__ = ["options", "with_script", "without_emulator"]  # fixtures
SMALL = TASK.model_copy(update={"m": 40, "n": 24, "k": 32})


@pytest.fixture
def commands(monkeypatch):
    """The requests to start an emulator; `pretend` starts the scripted worker instead."""
    real, asked = backend.emulator_worker.command, []

    def watched(arch, python):
        asked.append(arch)
        return real(arch, python)

    monkeypatch.setattr(backend.emulator_worker, "command", watched)
    return asked


@pytest.fixture
def scripted_emulator(monkeypatch, with_script):
    with_script()
    monkeypatch.setattr(backend.emulator_worker, "command", lambda _arch, _python: [sys.executable, "-P", SCRIPT, "ready"])


@needs_core
def test_a_right_kernel_is_proved_beside_the_gpu_by_an_emulator_that_starts_when_asked(options, with_script, commands):
    with_script()
    sandbox, events = opened(options, task=SMALL)
    built = built_from(sandbox, NAIVE, SMALL)
    assert sandbox.can_measure
    assert commands == [], "no emulator before a proof is wanted"
    for _ in range(2):
        said = sandbox.witness(built, SMALL)
        assert isinstance(said, Unmeasured)
        known = PREDICTION.model_copy(update={"launches": said.prediction.launches})
        assert (said.verified_by, said.prediction) == ("emulator", known)
        assert said.tests
        assert all(test.passed for test in said.tests)
    assert commands == [SMALL.arch], "one emulator for all proofs"
    stages = [event.stage for event in events if isinstance(event, StageStarted)]
    assert stages == ["witness: load", "witness: verify"] * 2
    sandbox.close()


@needs_core
def test_a_fault_that_the_gpu_did_not_show_is_found(options, with_script):
    with_script()
    sandbox, _ = opened(options, task=SMALL)
    said = sandbox.witness(built_from(sandbox, NAIVE.replace("row >= m ||", ""), SMALL), SMALL)
    assert isinstance(said, Wrong)
    assert said.test.name == "global-out-of-bounds"
    sandbox.close()


@needs_core
def test_a_host_candidate_is_not_executed_and_says_so(options, with_script):
    with_script()
    sandbox, _ = opened(options, task=SMALL)
    built = built_from(sandbox, NAIVE, SMALL)
    host = HostCandidate(source="int launch();", origin=Origin(policy="test"))
    said = sandbox.witness(built.model_copy(update={"candidate": host}), SMALL)
    assert isinstance(said, Unmeasured)
    assert said.verified_by == "nothing"
    assert "host candidate" in said.reason
    sandbox.close()


@pytest.mark.usefixtures("without_emulator")
def test_an_emulator_that_was_not_built_is_a_reason_and_is_tried_once(options, with_script, monkeypatch):
    with_script()
    sandbox, events = opened(options)
    built = built_from(sandbox, NAIVE)
    first = sandbox.witness(built, TASK)
    monkeypatch.setattr(backend.emulator_worker, "command", lambda *_: pytest.fail("started again"))
    for said in (first, sandbox.witness(built, TASK)):
        assert isinstance(said, Unmeasured)
        assert said.verified_by == "nothing"
        assert said.reason == "there is no emulator here: no core in this script"
    assert events == [], "the GPU is there; nothing is said before a proof is wanted"
    sandbox.close()


@pytest.mark.usefixtures("scripted_emulator")
@pytest.mark.parametrize(("acts", "reason"), [(["exit"], "two workers in a row were lost"), (["failed"], "out of memory")])
def test_an_emulator_that_fails_is_a_reason_and_the_next_kernel_has_one_again(options, acts, reason):
    sandbox, _ = opened(options)
    said = sandbox.witness(scripted(sandbox, *acts), TASK)
    assert isinstance(said, Unmeasured)
    assert said.verified_by == "nothing"
    assert said.reason.startswith("the emulator failed: ")
    assert reason in said.reason
    again = sandbox.witness(scripted(sandbox, "stage verify", "verified"), TASK)
    assert isinstance(again, Unmeasured)
    assert again.verified_by == "emulator"
    sandbox.close()


@pytest.mark.usefixtures("scripted_emulator")
@pytest.mark.parametrize(("acts", "kind"), [(["stage verify", "segfault"], Crashed), (["stage verify", "hang"], TimedOut)])
def test_what_a_kernel_does_to_the_emulator_costs_neither_the_gpus_worker_nor_the_run(options, acts, kind):
    limited = {**options, "emulate": EmulateOptions(timeout_s=0.5)}
    sandbox, _ = opened(limited)
    assert isinstance(sandbox.witness(scripted(sandbox, *acts), TASK), kind)
    measured = sandbox.evaluate(scripted(sandbox, "measured"), TASK, "quick")
    assert measured.status == "measured"
    sandbox.close()


@needs_core
def test_closing_ends_both_workers_even_if_one_will_not_close(options, with_script, monkeypatch):
    closed = []
    real = WorkerPool.close

    def close(pool):
        closed.append(pool)
        real(pool)
        if len(closed) == 1:
            raise OSError("the emulator's scratch folder is gone")

    with_script()
    sandbox, _ = opened(options, task=SMALL)
    built: Built = built_from(sandbox, NAIVE, SMALL)
    sandbox.witness(built, SMALL)
    monkeypatch.setattr(WorkerPool, "close", close)
    with pytest.raises(OSError, match="scratch"):
        sandbox.close()
    assert len(closed) == 2


@needs_core
def test_where_the_emulator_is_the_only_backend_it_is_asked_itself(options):
    """A run that began on a GPU and is resumed without one."""
    sandbox, _ = opened(options, task=SMALL, device="emulator")
    said = sandbox.witness(built_from(sandbox, NAIVE, SMALL), SMALL)
    assert isinstance(said, Unmeasured)
    assert said.verified_by == "emulator"
    sandbox.close()


def test_without_any_backend_the_reason_is_told(options):
    sandbox, _ = opened(options, device="none")
    said = sandbox.witness(built_from(sandbox, NAIVE), TASK)
    assert isinstance(said, Unmeasured)
    assert (said.verified_by, said.reason) == ("nothing", "there is no emulator beside this sandbox")
    sandbox.close()
