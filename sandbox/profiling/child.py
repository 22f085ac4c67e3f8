"""Runs one candidate, or a kernel of cuBLASLt, for the profiler: `ncu … python -m sandbox.profiling.child REQUEST REPORT`.

Covered: only the counted run lies between cuProfilerStart and cuProfilerStop, after a warm-up, on random operands; a run
that leaves outputs unwritten gives no profile; the process ends itself at its deadline, even in a hung kernel.
Not covered: whether the outputs are right, as only verified candidates are profiled. A host candidate shares this process.
"""

import faulthandler
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.module_task import gemm as product_of
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.profiling.request import LibraryKernel, ProfileRequest, Stage, StageReport, write_report

Enter = Callable[[Stage], None]


class Diary:
    """Writes the file of reports; a failure is reported with the current stage."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stage: Stage = "start"
        self.enter("start")

    def enter(self, stage: Stage) -> None:
        self._stage = stage
        write_report(self._path, StageReport(stage=stage))

    def fail(self, fault: Any, message: str) -> int:
        write_report(self._path, StageReport(stage=self._stage, fault=fault, message=message))
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 0 where the candidate ran to its end; the reports give the outcome."""
    request_path, report_path = (Path(word) for word in (sys.argv[1:] if arguments is None else arguments))
    request = ProfileRequest.model_validate_json(request_path.read_bytes())
    faulthandler.dump_traceback_later(request.limit_s, exit=True)  # from a thread that needs no interpreter
    diary = Diary(report_path)
    try:
        import cupy

        from cudal2_agent.sandbox.cuda.driver import Fault
    except ImportError as exc:
        return diary.fail("device", f"profiling needs cupy and cuda-bindings in {sys.executable}: {exc}")
    try:
        run(request, diary.enter)
    except (Fault, cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as exc:
        return diary.fail("candidate", str(exc))
    except DeviceUnavailable as exc:
        return diary.fail("device", str(exc))
    except (MachineError, MemoryError) as exc:  # cupy's OutOfMemoryError is a MemoryError
        return diary.fail("machine", f"{request.task.shape}: {exc}")
    return 0


def run(request: ProfileRequest, enter: Enter) -> None:
    """Warm up, then run once in the profiled range.

    Launches are ordinary even where the plan asks for programmatic ones: ncu runs kernels one by one, so there is no overlap
    to see. Raises: Fault, MachineError, MemoryError.
    """
    import cupy
    from cuda.bindings import driver

    from cudal2_agent.sandbox.cuda.device import Device
    from cudal2_agent.sandbox.cuda.driver import Fault, call

    enter("load")
    device = Device(request.device)
    contender, task = _loaded(request, device)
    random_operands = _random(task, device, request.seed)
    # Zeros fit every plan, whether it zeroes the workspace every run, restores it, or needs neither.
    workspace = cupy.zeros(contender.workspace_bytes, dtype=cupy.uint8) if contender.workspace_bytes else None
    bound = contender.bind(random_operands.operands(workspace))
    enter("warm-up")
    bound.enqueue(device.stream.ptr, programmatic=False)
    device.synchronize()
    random_operands.scrub()
    device.synchronize()
    enter("count")
    call(driver.cuProfilerStart)
    bound.enqueue(device.stream.ptr, programmatic=False)
    device.synchronize()
    call(driver.cuProfilerStop)
    if unwritten := random_operands.unwritten():
        raise Fault(f"{unwritten} outputs were left unwritten under the profiler")
    enter("done")


def _random(task: Task, device: Any, seed: int) -> Any:
    """What the run reads and writes. Raises: MemoryError."""
    if isinstance(task, GemmTask):
        from cudal2_agent.sandbox.profiling.random_operands import RandomOperands

        return RandomOperands(task, seed)
    from cudal2_agent.sandbox.profiling.random_values import RandomValues  # torch, which products do without

    return RandomValues(task, device, seed)


def _loaded(request: ProfileRequest, device: Any) -> tuple[Any, Task]:
    """The contender, and the task in the layout that it reads. Raises: Fault where cuBLASLt does not have the kernel."""
    from cudal2_agent.sandbox.cuda.baselines.cublaslt import suggestion
    from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
    from cudal2_agent.sandbox.cuda.driver import Fault
    from cudal2_agent.sandbox.cuda.evaluator import load

    if not isinstance(request.subject, LibraryKernel):
        return load(request.subject, request.task, device), request.task
    try:
        task = product_of(request.task, "a kernel of cuBLASLt")
        gemm = suggestion(task, request.subject.detail)
    except Unavailable as exc:
        raise Fault(str(exc)) from exc
    return gemm, task.model_copy(update={"layout": gemm.layout})


if __name__ == "__main__":
    if main() == 0:
        sys.exit(0)  # the ordinary end, at which ncu's part of this process delivers the counters
    os._exit(1)  # without finalisation: destructors of a poisoned context report errors or hang
