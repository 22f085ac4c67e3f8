"""The local sandbox without a GPU for the task, with and without the emulator; its refusals before execution."""

import importlib.util
import sys
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import CompilerMissing, DeviceUnavailable, MachineError, ProfilerUnavailable, UsageError
from cudal2_agent.contract.events import Notice, StageStarted, WorkerRestarted
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import Measured, Rejected, Unmeasured, Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, ProfileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.sandbox import backend, local
from cudal2_agent.sandbox.jail.kind import Confinement
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox, require_memory
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.doubles import INSPECTION, TASK, unmeasured
from tests.doubles.building import compile_in_this_process, disassemble_once
from tests.sandbox.building.build_kernels import HOST
from tests.sandbox.profiling.pretend import PretendedTool

needs_core = pytest.mark.skipif(
    importlib.util.find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here"
)
SCRIPT = str(Path(__file__).parent / "workers" / "scripted_worker.py")
PREDICTION = unmeasured(12.5).prediction
NAIVE = """// cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm",
//   "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
//   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
//            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]}
#include <cuda_fp16.h>
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  d[row * n + column] = __float2half(sum);
}
"""


@pytest.fixture(scope="module", autouse=True)
def _quick_builds(kept_builds):
    """One kernel is built again and again; how it is built does not matter."""
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        disassemble_once(patch, kept_builds)
        yield


@pytest.fixture
def options(tmp_path):
    return {
        "compile_options": CompileOptions(cache_dir=str(tmp_path / "compile")),
        "verify_options": VerifyOptions(seed=41),
        "quick": TimeOptions(rounds=7),
        "full": TimeOptions(rounds=21),
        "predict": lambda *_: PREDICTION,
    }


@pytest.fixture
def without_driver(monkeypatch):
    monkeypatch.setattr(backend, "driver_present", lambda: False)


@pytest.fixture
def with_script(monkeypatch):
    """A driver, and the scripted worker, which reports an H200."""

    def pretend(start: str = "ready"):
        real = WorkerPool
        monkeypatch.setattr(backend, "driver_present", lambda: True)
        monkeypatch.setattr("cudal2_agent.sandbox.workers.pool.BACK_OFF_S", 0.01)
        command = [sys.executable, "-P", SCRIPT, start]
        monkeypatch.setattr(backend, "WorkerPool", lambda *given, **named: real(*given, **{"command": command, **named}))

    return pretend


def opened(options, task=TASK, device="auto"):
    events = []
    sandbox = open_sandbox(arch=task.arch, device=device, worker=WorkerOptions(), emit=events.append, **options)
    return sandbox, events


def built_from(sandbox: LocalSandbox, source: str, task=TASK) -> Built:
    candidate = Candidate.from_source(source, Origin(policy="test"))
    [(position, outcome)] = sandbox.build([candidate], task)
    assert position == 0
    assert isinstance(outcome, Built), outcome
    return outcome


def scripted(sandbox: LocalSandbox, *acts: str) -> Built:
    return built_from(sandbox, NAIVE).model_copy(
        update={"candidate": Candidate.from_source(NAIVE, Origin(policy="test")).model_copy(update={"source": "\n".join(acts)})}
    )


@pytest.fixture
def without_emulator(monkeypatch):
    """The emulator's worker ends as if the core was not built."""
    command = [sys.executable, "-P", SCRIPT, "no-core"]
    monkeypatch.setattr("cudal2_agent.sandbox.workers.pool.BACK_OFF_S", 0.01)
    monkeypatch.setattr(backend.emulator_worker, "command", lambda _arch, _python: command)


def test_a_host_candidate_is_refused_unless_it_is_trusted(options):
    """From any source, such as a policy, a checkpoint or a store. It is neither compiled nor run."""
    host = HostCandidate(source=HOST, origin=Origin(policy="chat"))
    sandbox, _ = opened(options, device="none")
    [(_, outcome)] = sandbox.build([host], TASK)
    assert isinstance(outcome, Rejected)
    assert outcome.rule == "host-candidate"
    built = Built(candidate=host, inspection=INSPECTION, artifact_path="/nowhere", cached=True, seconds=0.0)
    for evaluation in (sandbox.verify(built, TASK), sandbox.evaluate(built, TASK, "full")):
        assert isinstance(evaluation, Rejected)
        assert evaluation.rule == "host-candidate"
    with pytest.raises(ProfilerUnavailable):
        sandbox.profile(built, TASK)


def test_a_trusted_host_candidate_comes_to_the_compiler(options):
    trusting = options["compile_options"].model_copy(update={"trust_host": True, "nvcc": "/no/such/nvcc"})
    sandbox, _ = opened({**options, "compile_options": trusting}, device="none")
    with pytest.raises(CompilerMissing):
        list(sandbox.build([HostCandidate(source=HOST, origin=Origin(policy="file"))], TASK))


@pytest.mark.parametrize("found", [Confinement(), Confinement(system_calls=True), Confinement(landlock_abi=1)])
def test_a_machine_without_a_jail_is_told_once(options, monkeypatch, found):
    monkeypatch.setattr(local, "confinement", lambda: found)
    _, events = opened(options, device="none")
    notices = [event.message for event in events if isinstance(event, Notice) and "files of their own" in event.message]
    assert len(notices) == (1 if found.kind == "none" else 0)
    assert all("Landlock" in notice for notice in notices)


@needs_core
@pytest.mark.usefixtures("without_driver")
def test_without_a_gpu_a_kernel_is_proved_by_the_emulator_and_predicted_but_never_timed(options):
    task = TASK.model_copy(update={"m": 40, "n": 24, "k": 32})
    sandbox, events = opened(options, task=task)
    built = built_from(sandbox, NAIVE, task)
    for effort in ("quick", "full"):
        evaluation = sandbox.evaluate(built, task, effort)
        assert isinstance(evaluation, Unmeasured)
        known = PREDICTION.model_copy(update={"launches": evaluation.prediction.launches})
        assert (evaluation.verified_by, evaluation.prediction) == ("emulator", known)
        assert [launch.entry for launch in known.launches] == ["gemm"], "the parts of the time are the emulator's"
        assert evaluation.tests
        assert all(test.passed for test in evaluation.tests)
    assert sandbox.can_execute
    assert not sandbox.can_measure
    assert sandbox.environment is None
    assert sandbox.chip == REFERENCE_CHIPS[Arch.SM_90A]
    assert [type(event) for event in events] == [Notice, *[StageStarted] * 4]
    assert "emulator" in events[0].message
    sandbox.close()


@needs_core
@pytest.mark.usefixtures("without_driver")
def test_a_wrong_kernel_is_found_without_a_gpu(options):
    task = TASK.model_copy(update={"m": 40, "n": 24, "k": 32})
    sandbox, _ = opened(options, task=task, device="emulator")
    evaluation = sandbox.verify(built_from(sandbox, NAIVE.replace("row >= m ||", ""), task), task)
    assert isinstance(evaluation, Wrong)
    assert evaluation.test.name == "global-out-of-bounds"
    assert "kernel.cu" in evaluation.test.message, "the source line is told"
    sandbox.close()


@pytest.mark.usefixtures("without_driver", "without_emulator")
def test_without_gpu_and_emulator_a_kernel_is_built_and_predicted(options):
    sandbox, events = opened(options)
    built = built_from(sandbox, NAIVE)
    evaluation = sandbox.evaluate(built, TASK, "quick")
    assert evaluation == Unmeasured(verified_by="nothing", prediction=PREDICTION, inspection=built.inspection)
    assert not sandbox.can_execute
    assert "no core in this script" in events[0].message
    assert "not executed" in events[0].message
    with pytest.raises(MachineError, match="no core in this script"):
        opened(options, device="emulator")
    sandbox.close()


@pytest.mark.usefixtures("without_driver")
def test_device_none_says_nothing(options):
    sandbox, events = opened(options, device="none")
    assert not sandbox.can_execute
    assert events == []


@pytest.mark.usefixtures("without_driver")
def test_a_rejected_candidate_comes_back_as_such(options):
    sandbox, _ = opened(options)
    candidate = Candidate.from_source(NAIVE.replace("<cuda_fp16.h>", '"/etc/passwd"'), Origin(policy="test"))
    [(_, outcome)] = sandbox.build([candidate], TASK)
    assert isinstance(outcome, Rejected)


@pytest.mark.usefixtures("without_driver")
def test_a_gpu_that_was_asked_for_and_is_not_there_is_an_error_with_a_remedy(options):
    with pytest.raises(DeviceUnavailable, match="--device emulator") as caught:
        opened(options, device="cuda:0")
    assert caught.value.exit_code == 2


@needs_core
def test_a_gpu_that_does_not_work_is_a_notice_for_auto_and_an_error_for_cuda(options, with_script):
    with_script("no-gpu")
    sandbox, events = opened(options)
    assert sandbox.can_execute
    assert not sandbox.can_measure
    assert "no GPU in this script" in events[0].message
    with pytest.raises(DeviceUnavailable, match="no GPU in this script"):
        opened(options, device="cuda:0")


@needs_core
def test_for_another_architecture_than_the_gpus_the_emulator_is_taken(options, with_script):
    with_script()
    task = GemmTask(m=256, n=256, k=256, arch=Arch.SM_80)
    sandbox, events = opened(options, task=task)
    assert sandbox.can_execute
    assert not sandbox.can_measure
    assert sandbox.chip == REFERENCE_CHIPS[Arch.SM_80]
    assert "runs sm_90a, the task is for sm_80" in events[0].message


def test_on_a_gpu_candidates_are_measured_and_stages_told(options, with_script):
    with_script()
    sandbox, events = opened(options)
    assert sandbox.can_execute
    assert sandbox.environment.gpu == "scripted"
    built = scripted(sandbox, "stage load", "stage time", "measured")
    evaluation = sandbox.evaluate(built, TASK, "quick")
    assert isinstance(evaluation, Measured)
    assert evaluation.baselines[0].samples_us == (42.0,), "the script answers with the seed that it was given, plus one"
    assert events == [StageStarted(candidate_id=built.candidate.id, stage=stage) for stage in ("load", "time")]
    sandbox.close()


def test_verified_without_a_time_carries_the_prediction(options, with_script):
    with_script()
    sandbox, _ = opened(options)
    evaluation = sandbox.verify(scripted(sandbox, "stage verify", "verified"), TASK)
    assert isinstance(evaluation, Unmeasured)
    assert evaluation.verified_by == "gpu"
    assert evaluation.tests
    assert evaluation.prediction == PREDICTION
    sandbox.close()


def test_a_worker_that_is_replaced_is_told(options, with_script):
    with_script()
    sandbox, events = opened(options)
    sandbox.evaluate(scripted(sandbox, "stage verify", "exit"), TASK, "quick")
    assert isinstance(events[-1], WorkerRestarted)
    sandbox.close()


@pytest.mark.usefixtures("without_driver")
def test_operands_beyond_the_memory_are_refused_before_anything_runs(options, monkeypatch):
    small = REFERENCE_CHIPS[Arch.SM_90A].model_copy(update={"memory_bytes": 3 * TASK.operand_bytes})
    monkeypatch.setitem(local.REFERENCE_CHIPS, Arch.SM_90A, small)
    sandbox, _ = opened(options)
    built = built_from(sandbox, NAIVE)
    larger = TASK.model_copy(update={"m": TASK.m + 1})
    with pytest.raises(UsageError, match="choose a smaller shape"):
        require_memory(larger, sandbox.chip)
    with pytest.raises(UsageError, match="257x256x256"):
        sandbox.build([], larger)
    with pytest.raises(UsageError, match="257x256x256"):
        sandbox.evaluate(built, larger, "quick")


@pytest.mark.usefixtures("without_driver")
def test_without_a_gpu_nothing_is_profiled(options):
    sandbox, _ = opened(options)
    with pytest.raises(ProfilerUnavailable, match="no sm_90a GPU here"):
        sandbox.profile(built_from(sandbox, NAIVE), TASK)
    with pytest.raises(ProfilerUnavailable, match="no sm_90a GPU here"):
        sandbox.profile_library("layout nn, algorithm 66", TASK)


def test_another_archs_kernel_is_not_profiled_and_ones_own_goes_to_the_tool(options, with_script, tmp_path):
    with_script()
    tool = PretendedTool(tmp_path)
    sandbox, _ = opened({**options, "profile": ProfileOptions(ncu=str(tool.path))})
    built = built_from(sandbox, NAIVE)
    with pytest.raises(ProfilerUnavailable, match="no sm_80 GPU here"):
        sandbox.profile(built, TASK.model_copy(update={"arch": Arch.SM_80}))
    assert tool.runs == []
    assert sandbox.profile(built, TASK).tool == "ncu 2025.3.1.0"
    assert sandbox.profile_library("layout nn, algorithm 66", TASK).launches
    run, library = tool.runs
    assert run["environment"]["CUPY_CACHE_DIR"] == str(tmp_path / "cupy"), "the cache that workers use too"
    assert library["request"]["subject"] == {"detail": "layout nn, algorithm 66"}
    sandbox.close()
