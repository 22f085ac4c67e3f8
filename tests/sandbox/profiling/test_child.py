"""The process under ncu: the profiled range, and its reports of failures. The GPU is scripted."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError
from cudal2_agent.contract.records.task import Layout
from cudal2_agent.sandbox.cuda.baselines.cublaslt import suggestion
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.driver import DriverFault
from cudal2_agent.sandbox.profiling import child
from cudal2_agent.sandbox.profiling.request import LibraryKernel, ProfileRequest, StageReport, last_report, write_report
from tests.doubles import TASK
from tests.doubles.modules import relu_of_sum
from tests.sandbox.profiling.test_ncu import BUILT

ROOT = Path(__file__).parents[3]
REQUEST = ProfileRequest(subject=BUILT, task=TASK, device=2, seed=7, limit_s=60)


class ScriptedGpu:
    """Records operations in order; `failing` maps an operation to its exception."""

    def __init__(self, monkeypatch) -> None:
        self.done: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.workspace_bytes = 4096
        self.unwritten = 0
        stream = SimpleNamespace(ptr=1)
        device = SimpleNamespace(stream=stream, synchronize=lambda: self._do("synchronize"))
        monkeypatch.setattr("cudal2_agent.sandbox.cuda.device.Device", lambda index: self._do(f"device {index}") or device)
        monkeypatch.setattr("cudal2_agent.sandbox.cuda.evaluator.load", lambda *_: self._do("load") or self)
        monkeypatch.setattr("cudal2_agent.sandbox.profiling.random_operands.RandomOperands", self._random)
        monkeypatch.setattr("cudal2_agent.sandbox.cuda.driver.call", lambda function: self._do(function.__name__))
        monkeypatch.setattr("cupy.zeros", lambda size, **_: f"{size} zero bytes")

    def bind(self, operands):
        self.operands = operands
        return SimpleNamespace(enqueue=lambda _, *, programmatic: self._do(f"run programmatic={programmatic}"))

    def _random(self, task, seed):
        self._do(f"random operands of {task.shape}, seed {seed}")
        return SimpleNamespace(
            operands=lambda workspace: workspace,
            scrub=lambda: self._do("scrub"),
            unwritten=lambda: self.unwritten,
        )

    def _do(self, act: str) -> None:
        self.done.append(act)
        if act in self.failing:
            raise self.failing[act]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(child.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    return ScriptedGpu(monkeypatch)


def reported(tmp_path: Path, request: ProfileRequest = REQUEST) -> tuple[int, StageReport]:
    (tmp_path / "request").write_text(request.model_dump_json())
    code = child.main([str(tmp_path / "request"), str(tmp_path / "report")])
    report = last_report((tmp_path / "report").read_text())
    assert report is not None
    return code, report


def test_only_the_second_run_lies_in_the_profiled_range(gpu, tmp_path):
    assert reported(tmp_path) == (0, StageReport(stage="done"))
    assert gpu.done[:3] == ["device 2", "load", f"random operands of {TASK.shape}, seed 7"]
    start, stop = gpu.done.index("cuProfilerStart"), gpu.done.index("cuProfilerStop")
    plain = "run programmatic=False"
    assert gpu.done[start + 1 : stop] == [plain, "synchronize"]
    assert gpu.done[:start].count(plain) == 1
    # Poisoned in between, and all of that over before the range begins.
    assert gpu.done[gpu.done.index(plain) + 1 : start] == ["synchronize", "scrub", "synchronize"]


def test_the_workspace_is_zeroed(gpu, tmp_path):
    reported(tmp_path)
    assert gpu.operands == "4096 zero bytes"
    gpu.workspace_bytes = 0
    reported(tmp_path)
    assert gpu.operands is None


FAULT = DriverFault("cuLaunchKernelEx", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")


@pytest.mark.parametrize(
    ("act", "error", "stage", "fault"),
    [
        ("device 2", DeviceUnavailable("no GPU here"), "load", "device"),
        ("load", FAULT, "load", "candidate"),
        ("load", MemoryError("out of memory"), "load", "machine"),
        ("run programmatic=False", FAULT, "warm-up", "candidate"),
        ("cuProfilerStart", FAULT, "count", "candidate"),
        ("cuProfilerStop", MachineError("the GPU failed"), "count", "machine"),
    ],
)
def test_a_failure_is_reported_with_its_stage_and_whose_it_is(gpu, tmp_path, act, error, stage, fault):
    gpu.failing[act] = error
    code, report = reported(tmp_path)
    assert code == 1
    assert (report.stage, report.fault) == (stage, fault)
    assert str(error) in report.message


def test_a_run_that_leaves_outputs_unwritten_is_no_profile(gpu, tmp_path):
    gpu.unwritten = 12
    code, report = reported(tmp_path)
    assert code == 1
    assert (report.stage, report.fault, report.message) == (
        "count",
        "candidate",
        "12 outputs were left unwritten under the profiler",
    )


def test_a_bug_of_ours_is_not_the_candidates(gpu, tmp_path):
    gpu.failing["load"] = ZeroDivisionError()
    (tmp_path / "request").write_text(REQUEST.model_dump_json())
    with pytest.raises(ZeroDivisionError):
        child.main([str(tmp_path / "request"), str(tmp_path / "report")])
    report = last_report((tmp_path / "report").read_text())
    assert report == StageReport(stage="load")


def test_the_process_ends_itself_when_it_is_late(tmp_path):
    """Even in a call that holds the interpreter's lock, as synchronisation with a hung kernel may."""
    (tmp_path / "request").write_text(REQUEST.model_copy(update={"limit_s": 1.0}).model_dump_json())
    code = (
        "import ctypes, sys; from cudal2_agent.sandbox.profiling import child; import cudal2_agent.sandbox.cuda.device as d; "
        "d.Device = lambda _: ctypes.PyDLL(None).sleep(60); "
        f"child.main([{str(tmp_path / 'request')!r}, {str(tmp_path / 'report')!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert last_report((tmp_path / "report").read_text()).stage in ("start", "load")


def test_reports(tmp_path):
    path = tmp_path / "report"
    assert last_report("") is None
    assert last_report("garbage\n{}\n") is None
    write_report(path, StageReport(stage="load"))
    write_report(path, StageReport(stage="count"))
    text = path.read_text()
    assert last_report(text) == StageReport(stage="count")
    # A line that was being written when the process ended.
    assert last_report(text + '{"stage": "do') == StageReport(stage="count")
    assert last_report(text + '{"stage": "done"}') == StageReport(stage="count")


def test_a_kernel_of_cublaslt_runs_in_its_own_layout(gpu, tmp_path, monkeypatch):
    asked = []
    gpu.layout, gpu.workspace_bytes = Layout.TN, 0

    def suggestion(task, detail):
        asked.append((task, detail))
        return gpu

    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.cublaslt.suggestion", suggestion)
    tasks = []
    scripted = gpu._random
    monkeypatch.setattr(
        "cudal2_agent.sandbox.profiling.random_operands.RandomOperands",
        lambda task, seed: tasks.append(task) or scripted(task, seed),
    )
    request = REQUEST.model_copy(update={"subject": LibraryKernel(detail="layout tn, algorithm 66")})
    assert reported(tmp_path, request) == (0, StageReport(stage="done"))
    assert asked == [(TASK, "layout tn, algorithm 66")]
    assert [task.layout for task in tasks] == [Layout.TN]
    assert "load" not in gpu.done


@pytest.mark.usefixtures("gpu")
def test_an_algorithm_that_is_gone_is_reported(tmp_path, monkeypatch):
    def suggestion(*_):
        raise Unavailable("cuBLASLt does not suggest it")

    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.cublaslt.suggestion", suggestion)
    code, report = reported(tmp_path, REQUEST.model_copy(update={"subject": LibraryKernel(detail="layout nn, x")}))
    assert code == 1
    assert report == StageReport(stage="load", fault="candidate", message="cuBLASLt does not suggest it")


def test_a_suggestion_is_found_by_its_words(monkeypatch):
    class Product:
        suggestions = (1, 2)

        def __init__(self, _task, layout):
            self.layout = layout

        def describe(self, algorithm):
            return f"layout {self.layout}, algorithm {algorithm}"

    monkeypatch.setattr("cudal2_agent.sandbox.cuda.baselines.cublaslt.LtProduct", Product)
    found = suggestion(TASK, "layout tn, algorithm 2; best of 9 suggestions")
    assert (found.layout, found.detail) == (Layout.TN, "layout tn, algorithm 2")
    with pytest.raises(Unavailable, match=f"does not suggest 'layout nn, algorithm 3' for {TASK.shape}"):
        suggestion(TASK, "layout nn, algorithm 3")
    with pytest.raises(Unavailable, match="'algorithm 2' is not the configuration"):
        suggestion(TASK, "algorithm 2")


@pytest.mark.parametrize(("writes", "left"), [(2048, 0), (2000, 48)])
def test_a_module_is_run_on_values_of_its_own_and_its_outputs_are_counted(gpu, monkeypatch, tmp_path, writes, left):
    torch = pytest.importorskip("torch")
    from cudal2_agent.sandbox.cuda.guard.buffers import Guarded
    from cudal2_agent.sandbox.profiling import random_values

    monkeypatch.setattr(random_values, "Guarded", lambda size_bytes: Guarded(size_bytes, np))
    monkeypatch.setattr(random_values, "use_stream", lambda _: torch.device("cpu"))
    seen = []

    def bind(operands):
        def enqueue(_stream, **_):
            x, y, out = (operands.arrays[name].view(np.float32) for name in ("x", "y", "out"))
            seen.append(np.abs(x[:2048]).mean())
            out[:writes] = np.maximum(x + y, 0)[:writes]

        return SimpleNamespace(enqueue=enqueue)

    monkeypatch.setattr(gpu, "bind", bind)
    code, report = reported(tmp_path, REQUEST.model_copy(update={"task": relu_of_sum(rows=32)}))
    assert len(seen) == 2
    assert 0.7 < seen[0] < 0.9, "normal numbers"
    assert (code, report.stage) == ((0, "done") if not left else (1, "count"))
    assert not left or report.message == f"{left} outputs were left unwritten under the profiler"
