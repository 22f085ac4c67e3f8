"""The sandbox on this machine: builds in child processes, executes in workers, of a GPU or of the emulator in its place."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

from contract.build import Built
from contract.candidate import AnyCandidate, Candidate
from contract.chip import REFERENCE_CHIPS, Chip
from contract.errors import DeviceUnavailable, MachineError, ProfilerUnavailable, UsageError, WorkerError
from contract.evaluation import Environment, Evaluation, TestResult, Unmeasured
from contract.events import Emit, Notice, StageStarted, WorkerRestarted
from contract.options import CompileOptions, Effort, EmulateOptions, ProfileOptions, TimeOptions, VerifyOptions, WorkerOptions
from contract.profile import Profile
from contract.protocols import Predict
from contract.task import GemmTask
from sandbox.building.builder import Builder
from sandbox.emulator import worker as emulator_worker
from sandbox.emulator.large.coverage import needs_rewriting, reduced_task
from sandbox.jail.kind import REMEDY as JAIL_REMEDY
from sandbox.jail.kind import confinement
from sandbox.profiling.profiler import Profiler
from sandbox.workers.messages import TIME_SHARE, Evaluate, NotExecuted, Ready, Reduced, Stage, Verified
from sandbox.workers.pool import WorkerPool
from sandbox.workers.witness import SecondWitness

DRIVER_LIBRARIES = ("libcuda.so.1", "libcuda.so") if sys.platform != "win32" else ("nvcuda.dll",)
EMULATED = "kernels are proved by the emulator and ranked by predicted times"
NOT_EXECUTED = "kernels are built and ranked by prediction, not executed"

Prover = Literal["nothing", "emulator", "gpu"]

# The same schedule written for another task; None where a candidate has none, or none that fits.
Rewrite = Callable[[Candidate, GemmTask], Candidate | None]

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
        emulate: EmulateOptions | None = None,
        emulates: bool = False,
        witness: SecondWitness | None = None,
        rewrite: Rewrite = lambda _candidate, _task: None,
    ) -> None:
        """`emulates`: whether the pool's workers are the emulator's. `witness`: the emulator beside a GPU's pool."""
        self._chip = chip
        self._builder = Builder(compile_options, chip)
        self._verify = verify_options
        self._time: dict[Effort, TimeOptions] = {"quick": quick, "full": full}
        self._predict = predict
        self._pool = pool
        self._environment = environment
        self._profiler = profiler
        self._emulate = emulate or EmulateOptions()
        self._emulates = emulates
        self._witness = witness
        self._rewrite = rewrite

    @property
    def chip(self) -> Chip:
        return self._chip

    @property
    def can_execute(self) -> bool:
        return self._pool is not None

    @property
    def can_measure(self) -> bool:
        return self._pool is not None and not self._emulates

    @property
    def environment(self) -> Environment | None:
        return self._environment

    def build(self, candidates: Sequence[AnyCandidate], task: GemmTask) -> Iterator[tuple[int, Built | Evaluation]]:
        """(position, outcome) as each finishes. Raises: UsageError before any work, CompilerMissing, MachineError."""
        require_memory(task, self._chip)
        return self._builder.build(candidates, task)

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        """Verify and time a built candidate; without a GPU for the task, verify it and say what its time would be.

        Raises: UsageError, MachineError, WorkerError.
        """
        return self._request(built, task, self._time[effort])

    def verify(self, built: Built, task: GemmTask) -> Evaluation:
        """Verify a built candidate without timing it: `Unmeasured` where it holds. Raises: as `evaluate`."""
        return self._request(built, task, None)

    def witness(self, built: Built, task: GemmTask) -> Evaluation:
        """What the emulator says of a candidate that a GPU found right: `Unmeasured` where it holds, or was not executed.

        Raises: UsageError for operands that do not fit; an emulator that is missing or fails is the record's `reason`. Where
        the emulator is the only backend, as `evaluate`.
        """
        require_memory(task, self._chip)
        if self._emulates:
            return self._request(built, task, None)
        if self._witness is None:
            return self._unmeasured(built, task, reason="there is no emulator beside this sandbox")
        try:
            request = self._proof(built, task)
        except (MachineError, WorkerError) as exc:
            return self._unmeasured(built, task, reason=f"its smaller kernel could not be built: {exc}")
        return self._answer(self._witness.evaluate(request), built, task, "emulator")

    def profile(self, built: Built, task: GemmTask) -> Profile:
        """Count what the hardware does while a verified candidate runs; the worker is idle meanwhile.

        Raises: ProfilerUnavailable where nothing can be profiled here, ProfileFailed where this candidate cannot.
        """
        if (refused := self._builder.refused(built.candidate)) is not None:
            raise ProfilerUnavailable(refused.message)
        if self._profiler is None or not self.can_measure or task.arch is not self._chip.arch:
            raise ProfilerUnavailable(f"there is no {task.arch} GPU here whose counters could be read")
        return self._profiler.profile(built, task)

    def close(self) -> None:
        try:
            if self._witness is not None:
                self._witness.close()
        finally:
            if self._pool is not None:
                self._pool.close()

    def _request(self, built: Built, task: GemmTask, time: TimeOptions | None) -> Evaluation:
        require_memory(task, self._chip)
        if (refused := self._builder.refused(built.candidate)) is not None:
            return refused  # it was built by another run or under other settings
        if self._pool is None or task.arch is not self._chip.arch:
            return self._unmeasured(built, task)
        if self._emulates:
            return self._answer(self._pool.evaluate(self._proof(built, task)), built, task, "emulator")
        request = Evaluate(built=built, task=task, verify=self._verify, time=time)
        return self._answer(self._pool.evaluate(request), built, task, "gpu")

    def _proof(self, built: Built, task: GemmTask) -> Evaluate:
        """What the emulator is asked. Raises: as `_reduced`."""
        verify = self._verify.model_copy(update={"timeout_s": self._emulate.timeout_s / TIME_SHARE})
        return Evaluate(built=built, task=task, verify=verify, reduced=self._reduced(built, task))

    def _answer(
        self, outcome: Evaluation | Verified | NotExecuted, built: Built, task: GemmTask, by: Literal["emulator", "gpu"]
    ) -> Evaluation:
        match outcome:
            case Verified(tests=tests):
                return self._unmeasured(built, task, by, tests=tests)
            case NotExecuted(reason=reason):
                return self._unmeasured(built, task, reason=reason)
            case _:
                return outcome

    def _unmeasured(
        self,
        built: Built,
        task: GemmTask,
        by: Prover = "nothing",
        *,
        tests: tuple[TestResult, ...] = (),
        reason: str = "",
    ) -> Unmeasured:
        prediction = self._predict(built.candidate, task, built.inspection)
        return Unmeasured(verified_by=by, reason=reason, tests=tests, prediction=prediction, inspection=built.inspection)

    def _reduced(self, built: Built, task: GemmTask) -> Reduced | None:
        """The candidate for a smaller task that the emulator runs whole, written and built anew where it must be.

        Raises: CompilerMissing, MachineError, WorkerError.
        """
        candidate = built.candidate
        smaller = reduced_task(task, candidate.plan) if isinstance(candidate, Candidate) else None
        if smaller is None or not isinstance(candidate, Candidate):
            return None
        if not needs_rewriting(candidate, task, smaller):
            return Reduced(built=built, task=smaller)
        rewritten = self._rewrite(candidate, smaller)
        outcome = None if rewritten is None else self._builder.build_one(rewritten, smaller)
        return Reduced(built=outcome, task=smaller) if isinstance(outcome, Built) else None


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
    emulate: EmulateOptions | None = None,
    rewrite: Rewrite = lambda _candidate, _task: None,
) -> LocalSandbox:
    """The sandbox for a task on `device`: `auto`, `none`, `emulator` or `cuda:N` (whose N `worker` carries).

    Raises: DeviceUnavailable where `cuda:N` cannot be used, or the emulator was asked for and was not built;
    UsageError where the operands exceed the chip's memory.
    """
    if confinement().kind == "none":
        emit(Notice(message=f"compilers and workers are not held to files of their own; {JAIL_REMEDY}"))
    opening = _Opening(task, worker, compile_options, emit)
    pool, ready, emulates = opening.open(device) or (None, None, False)
    sandbox = LocalSandbox(
        ready.chip if ready is not None and not emulates else REFERENCE_CHIPS[task.arch],
        compile_options=compile_options,
        verify_options=verify_options,
        quick=quick,
        full=full,
        predict=predict,
        pool=pool,
        environment=ready.environment if ready is not None else None,
        profiler=Profiler(profile or ProfileOptions(), worker, _gpu_environment(compile_options)),
        emulate=emulate,
        emulates=emulates,
        witness=SecondWitness(opening.witness) if pool is not None and not emulates else None,
        rewrite=rewrite,
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


class _Opening:
    """Finds what executes candidates of a task: the GPU, else the emulator, else nothing, each with a notice why."""

    def __init__(self, task: GemmTask, worker: WorkerOptions, compile_options: CompileOptions, emit: Emit) -> None:
        self._task, self._worker, self._compile_options, self._emit = task, worker, compile_options, emit

    def open(self, device: str) -> tuple[WorkerPool, Ready, bool] | None:
        """A pool whose first worker is ready, and whether it emulates. Raises: DeviceUnavailable, MachineError, WorkerError."""
        if device == "none":
            return None
        if device == "emulator":
            return self._emulator()
        found = self._gpu(device)
        if not isinstance(found, str):
            return *found, False
        try:
            emulator = self._emulator()
        except (MachineError, WorkerError) as exc:
            self._emit(Notice(message=f"{found}, and {exc}; {NOT_EXECUTED}"))
            return None
        self._emit(Notice(message=f"{found}; {EMULATED}"))
        return emulator

    def _gpu(self, device: str) -> tuple[WorkerPool, Ready] | str:
        """The GPU's pool, or why `auto` has none. Raises: DeviceUnavailable, MachineError, WorkerError for `cuda:N`."""
        if not driver_present():
            if device != "auto":
                raise DeviceUnavailable(
                    f"{device} was asked for, but there is no NVIDIA driver here; install it or use --device emulator"
                )
            return "no NVIDIA driver on this machine"
        with ExitStack() as unless_kept:
            pool = unless_kept.enter_context(closing(self._pool(environment=_gpu_environment(self._compile_options))))
            try:
                ready = pool.ready()
            except (MachineError, WorkerError) as exc:
                if device != "auto":
                    raise
                return f"the GPU cannot be used: {exc}"
            if ready.chip.arch is self._task.arch:
                unless_kept.pop_all()
                return pool, ready
        return f"{ready.chip.name} runs {ready.chip.arch}, the task is for {self._task.arch}"

    def witness(self) -> WorkerPool:
        """The emulator's pool beside a GPU's. Raises: DeviceUnavailable, MachineError, WorkerError."""
        return self._emulator(role="witness: ")[0]

    def _emulator(self, role: str = "") -> tuple[WorkerPool, Ready, bool]:
        command = emulator_worker.command(self._task.arch, self._worker.python)
        with ExitStack() as unless_kept:  # an interrupt leaves no worker behind
            pool = self._pool(role, command=command, memory_bytes=emulator_worker.MEMORY_BYTES)
            unless_kept.enter_context(closing(pool))
            ready = pool.ready()
            unless_kept.pop_all()
            return pool, ready, True

    def _pool(self, role: str = "", **workers: Any) -> WorkerPool:
        """`role`: said before the stage in events."""

        def on_stage(built: Built, stage: Stage) -> None:
            self._emit(StageStarted(candidate_id=built.candidate.id, stage=f"{role}{stage}"))

        def on_restart(reason: str) -> None:
            self._emit(WorkerRestarted(reason=reason))

        return WorkerPool([self._worker], on_stage=on_stage, on_restart=on_restart, **workers)


def _gpu_environment(compile_options: CompileOptions) -> dict[str, str]:
    """cupy keeps what it compiles beside our own cache, else every new process would compile it again."""
    return {"CUPY_CACHE_DIR": str(Path(compile_options.cache_dir).resolve().with_name("cupy"))}
