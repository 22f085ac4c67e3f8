"""The emulator's worker process, driven by the pool."""

import subprocess
import sys

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.sandbox.emulator.worker import MEMORY_BYTES, command
from cudal2_agent.sandbox.workers.messages import Evaluate, NotExecuted, Verified
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.sandbox.building.build_kernels import host
from tests.sandbox.emulator.proving import STORE, TASK, builder, naive, prove


def test_a_pool_of_emulators_answers_as_one_of_gpus(request: pytest.FixtureRequest) -> None:
    assert request.config.cache is not None
    build = builder(request.config.cache.mkdir("emulator-kernels"))
    stages: list[str] = []
    pool = WorkerPool(
        [WorkerOptions()],
        on_stage=lambda _, stage: stages.append(stage),
        command=command(Arch.SM_80),
        memory_bytes=MEMORY_BYTES,
    )
    ready = pool.ready()
    assert ready.environment is None
    assert ready.chip.arch is Arch.SM_80
    options = VerifyOptions(timeout_s=60)
    right = build(naive())
    answer = pool.evaluate(Evaluate(built=right, task=TASK, verify=options, time=TimeOptions()))
    assert isinstance(answer, Verified)
    assert stages == ["load", "verify"]
    wrong = build(naive(store=STORE.replace("sum", "2 * sum")))
    verdict = pool.evaluate(Evaluate(built=wrong, task=TASK, verify=options))
    assert not isinstance(verdict, Verified | NotExecuted)
    assert verdict.status == "wrong"
    launcher = right.model_copy(update={"candidate": host("int launch() {}")})
    assert isinstance(pool.evaluate(Evaluate(built=launcher, task=TASK, verify=options)), NotExecuted)
    assert isinstance(prove(right), Verified)
    pool.close()


def test_an_arch_that_nobody_knows_is_refused() -> None:
    asked = [sys.executable, "-m", "cudal2_agent.sandbox.emulator.worker", "--arch", "sm_1"]
    done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"sm_90a" in done.stderr
