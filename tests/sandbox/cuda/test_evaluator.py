"""The evaluator's order of stages and attribution of faults, with scripted GPU parts."""

from types import SimpleNamespace

import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import (
    AUTOTUNED,
    Crashed,
    Measured,
    SideFigures,
    Telemetry,
    TestResult,
    Timing,
    Wrong,
)
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions
from cudal2_agent.sandbox.cuda import evaluator as evaluator_module
from cudal2_agent.sandbox.cuda.driver import DriverFault
from cudal2_agent.sandbox.cuda.evaluator import Evaluator
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, Verified
from tests.doubles import ENVIRONMENT, INSPECTION, PLAN, TASK

PASSED = TestResult(tier="exact", name="zero-one", passed=True)
FAILED = TestResult(tier="freshness", name="round-1", passed=False)
ILLEGAL = DriverFault("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")
REFUSED = DriverFault("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "invalid argument")


class ScriptedGpu:
    """Counts created and closed objects; raises or fails as a test asks."""

    def __init__(self, monkeypatch, *, large=False):
        self.stuck_with, self.workspace_bytes = None, 0
        self.raises = {}
        self.tests, self.recheck = (PASSED,), PASSED
        self.stages, self.made, self.closed, self.prepared = [], [], 0, []
        self.environment = ENVIRONMENT
        monkeypatch.setattr(evaluator_module, "load", self._load)
        tests = {
            "prepare": lambda _: self.prepared.append(self.stages[-1]),
            "verify": self._verify,
            "recheck": self._recheck,
            "release": lambda: self.memory.append("verifier released"),
            "large": large,
        }
        monkeypatch.setattr(evaluator_module, "Verifier", self._make("verifier", **tests))
        self.memory = []  # who takes it, and who gives it back
        opens = {"track_for": lambda _: self.memory.append("timer"), "close": lambda: self.memory.append("timer closed")}
        opens |= {"open_baselines": lambda _: self.prepared.append(self.stages[-1])}
        monkeypatch.setattr(evaluator_module, "Timer", self._make("timer", measure=self._measure, **opens))
        self.pool = SimpleNamespace(free_all_blocks=lambda: None)

    def poison(self):
        return self.stuck_with

    def synchronize(self):
        if self.stuck_with is not None:
            raise self.stuck_with

    def evaluate(self, evaluator, *, task=TASK, timed=True):
        candidate = Candidate(source="x", plan=PLAN, origin=Origin(policy="test"))
        built = Built(candidate=candidate, inspection=INSPECTION, artifact_path="x", cached=True, seconds=0)
        timing = TimeOptions() if timed else None
        return evaluator.evaluate(Evaluate(built=built, task=task, verify=VerifyOptions(), time=timing))

    def _make(self, what, **methods):
        def make(task, device):
            assert device is self
            self.made.append((what, task.shape))
            return SimpleNamespace(**methods)

        return make

    def _meet(self, stage):
        if stage in self.raises:
            raise self.raises[stage]

    def _load(self, *_):
        self._meet("load")
        return SimpleNamespace(close=self._close, workspace_bytes=self.workspace_bytes)

    def _close(self):
        self.closed += 1

    def _verify(self, *_):
        self.memory.append("verifier")
        self._meet("verify")
        return self.tests

    def _recheck(self, *_):
        self.memory.append("verifier")
        self._meet("recheck")
        return self.recheck

    def _measure(self, *_):
        self.memory.append("timer")
        self._meet("time")
        timing, baseline = (Timing(name=name, samples_us=(5.0, 6.0)) for name in ("candidate", AUTOTUNED))
        return SimpleNamespace(
            timing=timing,
            plain=None,
            baselines=(baseline,),
            side=SideFigures(),
            telemetry=Telemetry(),
            ruler=None,
            notes=("note",),
        )


@pytest.fixture
def gpu(monkeypatch):
    return ScriptedGpu(monkeypatch)


@pytest.fixture
def evaluator(gpu):
    return Evaluator(gpu, gpu.stages.append)


def test_a_right_candidate_is_loaded_verified_timed_and_verified_again(gpu, evaluator):
    done = gpu.evaluate(evaluator)
    assert isinstance(done, Done)
    assert isinstance(done.evaluation, Measured)
    assert done.healthy
    assert done.evaluation.tests == (PASSED, PASSED)
    assert done.evaluation.environment == ENVIRONMENT
    assert done.evaluation.notes == ("note",)
    assert gpu.stages == ["prepare", "load", "verify", "time", "recheck"]
    assert gpu.prepared == ["prepare", "prepare"], "data, references and baselines are made before the candidate's clock starts"
    assert gpu.closed == 1


def test_verification_and_timing_of_a_large_task_take_turns_in_memory(monkeypatch):
    gpu = ScriptedGpu(monkeypatch, large=True)
    evaluator = Evaluator(gpu, gpu.stages.append)
    assert all(isinstance(gpu.evaluate(evaluator).evaluation, Measured) for _ in range(2))
    assert {"timer", "verifier"} <= set(gpu.memory)
    held = set()
    for each in gpu.memory:
        who, _, freed = each.partition(" ")
        held = held - {who} if freed else held | {who}
        assert len(held) < 2, gpu.memory


def test_what_crashed_is_unloaded_where_the_context_is_healthy(gpu, evaluator):
    gpu.raises = {"verify": REFUSED}
    assert gpu.evaluate(evaluator).healthy
    assert gpu.closed == 1


def test_the_first_failing_test_ends_it_untimed(gpu, evaluator):
    gpu.tests = (PASSED, FAILED)
    done = gpu.evaluate(evaluator)
    assert done.evaluation == Wrong(test=FAILED, tests=(PASSED, FAILED), inspection=INSPECTION)
    assert gpu.stages == ["prepare", "load", "verify"]
    assert gpu.closed == 1


def test_a_time_does_not_save_what_fails_afterwards(gpu, evaluator):
    gpu.recheck = FAILED
    done = gpu.evaluate(evaluator)
    assert done.evaluation == Wrong(test=FAILED, tests=(PASSED, FAILED), inspection=INSPECTION)


def test_outputs_that_are_wrong_only_while_timed_are_wrong(gpu, evaluator):
    gpu.raises["time"] = WrongWhileTimed("outputs", "7 outputs were left unwritten by timed launches")
    done = gpu.evaluate(evaluator)
    assert isinstance(done.evaluation, Wrong)
    assert (done.evaluation.test.tier, done.evaluation.test.name) == ("while-timed", "outputs")
    assert "7 outputs" in done.evaluation.test.message
    assert done.healthy


def test_without_time_options_nothing_is_timed(gpu, evaluator):
    assert gpu.evaluate(evaluator, timed=False) == Verified(tests=(PASSED,))
    assert gpu.stages == ["prepare", "load", "verify"]


def test_what_is_prepared_for_a_task_is_kept_until_the_task_changes(gpu, evaluator):
    other = TASK.model_copy(update={"m": 17})
    for task in (TASK, TASK, other, other, TASK):
        gpu.evaluate(evaluator, task=task)
    assert [shape for what, shape in gpu.made if what == "verifier"] == [TASK.shape, other.shape, TASK.shape]
    assert len(gpu.made) == 6


@pytest.mark.parametrize("stage", ["load", "verify", "time", "recheck"])
def test_a_refused_launch_is_the_candidates_and_leaves_the_worker_healthy(gpu, evaluator, stage):
    gpu.raises = {stage: REFUSED}
    done = gpu.evaluate(evaluator)
    assert done == Done(evaluation=Crashed(stage=stage, message=str(REFUSED), inspection=INSPECTION), healthy=True)
    gpu.raises = {}
    assert isinstance(gpu.evaluate(evaluator).evaluation, Measured)


def test_a_poisoned_context_is_the_candidates_and_ends_the_worker(gpu, evaluator):
    gpu.raises, gpu.stuck_with = {"verify": REFUSED}, ILLEGAL
    done = gpu.evaluate(evaluator)
    assert isinstance(done.evaluation, Crashed)
    assert done.evaluation.stage == "verify"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.evaluation.message
    assert not done.healthy


def test_a_context_poisoned_behind_the_verifiers_back_is_found_before_the_verdict(gpu, evaluator):
    gpu.stuck_with = ILLEGAL
    done = gpu.evaluate(evaluator)
    assert isinstance(done.evaluation, Crashed)
    assert not done.healthy


def test_memory_that_does_not_suffice_is_the_machines(gpu, evaluator):
    gpu.raises = {"time": evaluator_module.cupy.cuda.memory.OutOfMemoryError(1, 2)}
    with pytest.raises(MachineError, match="too little free memory to evaluate 256x256x256"):
        gpu.evaluate(evaluator)


def test_memory_that_a_small_workspace_does_not_explain_is_the_machines(gpu, evaluator):
    gpu.raises, gpu.workspace_bytes = {"time": MemoryError("no 4096 bytes left")}, TASK.operand_bytes
    with pytest.raises(MachineError, match="too little free memory to evaluate 256x256x256"):
        gpu.evaluate(evaluator)


def test_memory_that_a_candidates_workspace_exceeds_is_the_candidates(gpu, evaluator):
    gpu.raises = {"time": MemoryError("no 8589934592 bytes left")}
    gpu.workspace_bytes = 8 * 1024**3
    done = gpu.evaluate(evaluator)
    assert isinstance(done.evaluation, Crashed)
    assert "its workspace of 8589934592 bytes does not fit" in done.evaluation.message
    assert done.healthy


def test_a_gpu_that_fails_by_itself_is_the_machines(gpu, evaluator):
    gpu.raises = {"time": REFUSED}
    gpu.stuck_with = DriverFault("cuCtxSynchronize", "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error")
    with pytest.raises(MachineError, match="ECC"):
        gpu.evaluate(evaluator)


def test_a_bug_of_ours_is_raised_and_not_blamed_on_the_candidate(gpu, evaluator):
    gpu.raises = {"time": ZeroDivisionError("ours")}
    with pytest.raises(ZeroDivisionError):
        gpu.evaluate(evaluator)
