"""The sandbox on this machine: builds in child processes, executes in GPU workers where there is a GPU for the task."""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from contract.build import Built
from contract.candidate import AnyCandidate
from contract.chip import REFERENCE_CHIPS, Chip
from contract.errors import DeviceUnavailable, MachineError, ProfilerUnavailable, UsageError, WorkerError
from contract.evaluation import Environment, Evaluation, Unmeasured
from contract.events import Emit, Notice, StageStarted, WorkerRestarted
from contract.options import CompileOptions, Effort, ProfileOptions, TimeOptions, VerifyOptions, WorkerOptions
from contract.profile import Profile
from contract.protocols import Predict
from contract.task import GemmTask
from sandbox.builder import Builder
from sandbox.messages import Evaluate, NotExecuted, Ready, Stage, Verified
from sandbox.pool import WorkerPool
from sandbox.profiling.profiler import Profiler

DRIVER_LIBRARIES = ("libcuda.so.1", "libcuda.so") if sys.platform != "win32" else ("nvcuda.dll",)
NOT_EXECUTED = "kernels are built and ranked by prediction, not executed"

# The operand sets that verification and timing hold at the least: one under test, its pristine copy, one to rotate to.
LEAST_SETS = 3


class LocalSandbox:
    """`contract.protocols.Sandbox` over a builder and, where the task's GPU is present, a pool of workers.

    The parent process never creates a CUDA context: what holds the GPU can always be killed.
    """

    def __init__(
        self,
        chip: Chip,
        *,
        compile_options: CompileOptions,
        verify_options: VerifyOptions,
        quick: TimeOptions,
        full: TimeOptions,
        predict: Predict,
        pool: WorkerPool | None = None,
        environment: Environment | None = None,
        profiler: Profiler | None = None,
    ) -> None:
        self._chip = chip
        self._builder = Builder(compile_options, chip)
        self._verify = verify_options
        self._time: dict[Effort, TimeOptions] = {"quick": quick, "full": full}
        self._predict = predict
        self._pool = pool
        self._environment = environment
        self._profiler = profiler

    @property
    def chip(self) -> Chip:
        return self._chip

    @property
    def can_execute(self) -> bool:
        return self._pool is not None

    @property
    def environment(self) -> Environment | None:
        return self._environment

    def build(self, candidates: Sequence[AnyCandidate], task: GemmTask) -> Iterator[tuple[int, Built | Evaluation]]:
        """(position, outcome) as each finishes. Raises: UsageError before any work, CompilerMissing, MachineError."""
        require_memory(task, self._chip)
        return self._builder.build(candidates, task)

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        """Verify and time a built candidate; without a GPU for the task, say what its time would be.

        Raises: UsageError, MachineError, WorkerError.
        """
        return self._request(built, task, self._time[effort])

    def verify(self, built: Built, task: GemmTask) -> Evaluation:
        """Verify a built candidate without timing it: `Unmeasured` where it holds. Raises: as `evaluate`."""
        return self._request(built, task, None)

    def profile(self, built: Built, task: GemmTask) -> Profile:
        """Count what the hardware does while a verified candidate runs; the worker is idle meanwhile.

        Raises: ProfilerUnavailable where nothing can be profiled here, ProfileFailed where this candidate cannot.
        """
        if self._profiler is None or self._pool is None or task.arch is not self._chip.arch:
            raise ProfilerUnavailable(f"there is no {task.arch} GPU here whose counters could be read")
        return self._profiler.profile(built, task)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _request(self, built: Built, task: GemmTask, time: TimeOptions | None) -> Evaluation:
        require_memory(task, self._chip)
        prediction = self._predict(built.candidate, task, built.inspection)
        if self._pool is None or task.arch is not self._chip.arch:
            return Unmeasured(verified_by="nothing", prediction=prediction, inspection=built.inspection)
        outcome = self._pool.evaluate(Evaluate(built=built, task=task, verify=self._verify, time=time))
        if isinstance(outcome, NotExecuted):
            return Unmeasured(verified_by="nothing", reason=outcome.reason, prediction=prediction, inspection=built.inspection)
        if isinstance(outcome, Verified):
            return Unmeasured(verified_by="gpu", tests=outcome.tests, prediction=prediction, inspection=built.inspection)
        return outcome


def open_sandbox(
    *,
    task: GemmTask,
    device: str,
    compile_options: CompileOptions,
    verify_options: VerifyOptions,
    quick: TimeOptions,
    full: TimeOptions,
    worker: WorkerOptions,
    predict: Predict,
    emit: Emit,
    profile: ProfileOptions | None = None,
) -> LocalSandbox:
    """The sandbox for a task on `device`: `auto`, `none` or `cuda:N` (whose N `worker` carries).

    Raises: DeviceUnavailable where `cuda:N` cannot be used, UsageError where the operands exceed the chip's memory.
    """
    executor = None if device == "none" else _open_executor(task, device, worker, compile_options, emit)
    pool, ready = executor or (None, None)
    sandbox = LocalSandbox(
        ready.chip if ready is not None else REFERENCE_CHIPS[task.arch],
        compile_options=compile_options,
        verify_options=verify_options,
        quick=quick,
        full=full,
        predict=predict,
        pool=pool,
        environment=ready.environment if ready is not None else None,
        profiler=Profiler(profile or ProfileOptions(), worker, _gpu_environment(compile_options)),
    )
    try:
        require_memory(task, sandbox.chip)
    except UsageError:
        sandbox.close()
        raise
    return sandbox


def require_memory(task: GemmTask, chip: Chip) -> None:
    """Raises: UsageError where the operands, with the copies that proving and timing need, exceed the chip's memory."""
    needed = LEAST_SETS * task.operand_bytes
    if needed > chip.memory_bytes:
        raise UsageError(
            f"{task.shape} needs {needed / 1e9:.1f} GB ({LEAST_SETS} sets of its operands); "
            f"{chip.name} has {chip.memory_bytes / 1e9:.1f} GB: choose a smaller shape"
        )


def driver_present() -> bool:
    """Whether the driver's library is there to load; loading it creates nothing on a GPU."""
    for library in DRIVER_LIBRARIES:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


def _open_executor(
    task: GemmTask, device: str, worker: WorkerOptions, compile_options: CompileOptions, emit: Emit
) -> tuple[WorkerPool, Ready] | None:
    """A pool whose first worker is ready; None, with a notice, where `auto` finds no GPU or the GPU is of another arch."""
    if not driver_present():
        if device != "auto":
            raise DeviceUnavailable(
                f"{device} was asked for, but there is no NVIDIA driver here; install it or use --device none"
            )
        emit(Notice(message=f"no NVIDIA driver on this machine; {NOT_EXECUTED}"))
        return None
    pool = _pool(worker, compile_options, emit)
    try:
        ready = pool.ready()
    except (MachineError, WorkerError) as exc:
        pool.close()
        if device != "auto":
            raise
        emit(Notice(message=f"the GPU cannot be used: {exc}; {NOT_EXECUTED}"))
        return None
    if ready.chip.arch is task.arch:
        return pool, ready
    pool.close()
    emit(Notice(message=f"{ready.chip.name} runs {ready.chip.arch}, the task is for {task.arch}; {NOT_EXECUTED}"))
    return None


def _pool(worker: WorkerOptions, compile_options: CompileOptions, emit: Emit) -> WorkerPool:
    def on_stage(built: Built, stage: Stage) -> None:
        emit(StageStarted(candidate_id=built.candidate.id, stage=stage))

    def on_restart(reason: str) -> None:
        emit(WorkerRestarted(reason=reason))

    return WorkerPool([worker], on_stage=on_stage, on_restart=on_restart, environment=_gpu_environment(compile_options))


def _gpu_environment(compile_options: CompileOptions) -> dict[str, str]:
    """cupy keeps what it compiles beside our own cache, else every new process would compile it again."""
    return {"CUPY_CACHE_DIR": str(Path(compile_options.cache_dir).resolve().with_name("cupy"))}
