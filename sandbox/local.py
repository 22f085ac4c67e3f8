"""The sandbox on this machine: builds in child processes, executes in workers of a GPU or of the emulator."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Literal

from cudal2_agent.contract.errors import MachineError, ProfilerUnavailable, UsageError, WorkerError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.protocols import Predict
from cudal2_agent.contract.records.baseline import BaselineBook, TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Environment, Evaluation, Prediction, TestResult, Unmeasured
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import (
    RACE_TIME,
    SCREEN_TIME,
    CompileOptions,
    Effort,
    EmulateOptions,
    ProfileOptions,
    TimeOptions,
    VerifyOptions,
    WorkerOptions,
)
from cudal2_agent.sandbox.backend import Backend, Backends
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.emulator.large.coverage import needs_rewriting, reduced_task
from cudal2_agent.sandbox.emulator.large.module_size import Resize, reduced_modules
from cudal2_agent.sandbox.jail.kind import REMEDY as JAIL_REMEDY
from cudal2_agent.sandbox.jail.kind import confinement
from cudal2_agent.sandbox.profiling.profiler import Profiler
from cudal2_agent.sandbox.workers.messages import TIME_SHARE, CandidateBatch, Evaluate, NotExecuted, Reduced, Verified
from cudal2_agent.sandbox.workers.witness import WitnessPool

Prover = Literal["nothing", "emulator", "gpu"]

# The same schedule written for another task; None where a candidate has none, or none that fits.
Rewrite = Callable[[Candidate, Task], Candidate | None]

# Operand sets that verification and timing hold at the same time: one under test, its unchanged copy, one to rotate to.
MIN_OPERAND_SETS = 3


class LocalSandbox:
    """`contract.protocols.Sandbox` over a builder and, where this machine has one, a backend.

    The parent process never creates a CUDA context, so that every process that uses the GPU can be killed.
    """

    def __init__(
        self,
        arch: Arch,
        *,
        compile_options: CompileOptions,
        verify_options: VerifyOptions,
        quick: TimeOptions,
        full: TimeOptions,
        predict: Predict,
        profiler: Profiler,
        backend: Backend | None = None,
        emulate: EmulateOptions | None = None,
        witness: WitnessPool | None = None,
        rewrite: Rewrite = lambda _candidate, _task: None,
        resize: Resize | None = None,
        screen: TimeOptions = SCREEN_TIME,
        race: TimeOptions = RACE_TIME,
        baselines: BaselineBook | None = None,
    ) -> None:
        """`witness`: the emulator beside a GPU's backend. `baselines`: where tuned baselines are kept, if anywhere.

        `resize`: traces a module at other dims; without it, modules that are large are not proved.
        """
        self._emulates = backend is not None and backend.emulates
        self._pool = backend.pool if backend is not None else None
        self._environment = backend.ready.environment if backend is not None else None
        self._chip = backend.ready.chip if backend is not None and not backend.emulates else REFERENCE_CHIPS[arch]
        self._builder = Builder(compile_options, self._chip)
        self._verify = verify_options
        self._time: dict[Effort, TimeOptions] = {"screen": screen, "quick": quick, "race": race, "full": full}
        self._baselines = baselines
        self._predict = predict
        self._profiler = profiler
        self._emulate = emulate or EmulateOptions()
        self._witness = witness
        self._rewrite = rewrite
        self._resize = resize
        self._inspecting_s = 0.0

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

    @property
    def waited_s(self) -> float:
        return self._inspecting_s + (self._pool.turn.waited_s if self._pool is not None else 0.0)

    @property
    def queued_s(self) -> float:
        return 0.0

    @property
    def builds_cutlass(self) -> bool:
        return self._builder.builds_cutlass

    def build(
        self, candidates: Sequence[AnyCandidate], task: Task, cancel: Event | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """(position, outcome) as each finishes. Raises: UsageError before any work, CompilerMissing, MachineError.

        On a GPU the machine code of trusted writers is inspected before they are verified in full, so that a screen of many
        kernels does not wait for it.
        """
        require_memory(task, self._chip)
        return self._builder.build(candidates, task, cancel, briefly=self.can_measure)

    def evaluate(self, built: Built, task: Task, effort: Effort) -> Evaluation:
        """Verify and time a built candidate; without a GPU for the task, verify it and say what its time would be.

        Raises: UsageError, MachineError, WorkerError.
        """
        return self._request(built, task, effort)

    def screen(self, built: Sequence[Built], task: Task) -> Iterator[tuple[int, Evaluation]]:
        """Rank candidates: (position, outcome) as each finishes; without a GPU for the task, as `verify`.

        A candidate that crashes or hangs costs itself only. Raises: as `evaluate`.
        """
        return self._batch(built, task, "screen")

    def race(self, built: Sequence[Built], task: Task) -> list[Evaluation]:
        """Verify finalists in full and time them together: one evaluation for each, in order; without a GPU, as `verify`.

        A finalist that fails, crashes or hangs is out; the others race on. Raises: as `evaluate`.
        """
        outcomes = dict(self._batch(built, task, "race"))
        return [outcomes[position] for position in range(len(built))]

    def verify(self, built: Built, task: Task) -> Evaluation:
        """Verify a built candidate without timing it: `Unmeasured` where it holds. Raises: as `evaluate`."""
        return self._request(built, task, None)

    def predict(self, built: Built, task: Task) -> Prediction:
        """The predicted time of a built candidate, which is not executed."""
        return self._predict(built.candidate, task, built.inspection)

    def witness(self, built: Built, task: Task, seconds: float | None = None) -> Evaluation:
        """What the emulator says of a candidate that a GPU found right: `Unmeasured` where it holds, or was not executed.

        `seconds`: time limit of the proof, if it is less than that of the settings.
        Raises: UsageError for operands that do not fit; an emulator that is missing or fails is the record's `reason`. Where
        the emulator is the only backend, as `evaluate`.
        """
        require_memory(task, self._chip)
        if self._emulates:
            return self._request(built, task, None, seconds)
        if self._witness is None:
            return self._unmeasured(built, task, reason="there is no emulator beside this sandbox")
        try:
            request = self._proof(built, task, seconds)
        except (MachineError, WorkerError) as exc:
            return self._unmeasured(built, task, reason=f"its smaller kernel could not be built: {exc}")
        return self._answer(self._witness.evaluate(request), built, task, "emulator")

    def profile(self, built: Built, task: Task) -> Profile:
        """Count what the hardware does while a verified candidate runs; the worker is idle meanwhile.

        Raises: ProfilerUnavailable where nothing can be profiled here, ProfileFailed where this candidate cannot.
        """
        if (refused := self._builder.refused(built.candidate)) is not None:
            raise ProfilerUnavailable(refused.message)
        with self._turn_for_counters(task):
            return self._profiler.profile(built, task)

    def profile_library(self, detail: str, task: Task) -> Profile:
        """The same of the cuBLASLt kernel with this configuration, as a tuned baseline records it. Raises: as `profile`."""
        with self._turn_for_counters(task):
            return self._profiler.profile_library(detail, task)

    def artifact(self, built: Built) -> bytes | None:
        """The compiled code of a candidate; None where the cache has lost it."""
        path = Path(built.artifact_path)
        return path.read_bytes() if path.is_file() else None

    def _turn_for_counters(self, task: Task) -> AbstractContextManager[None]:
        """Raises: ProfilerUnavailable without a GPU for the task."""
        if not self.can_measure or task.arch is not self._chip.arch:
            raise ProfilerUnavailable(f"there is no {task.arch} GPU here whose counters could be read")
        assert self._pool is not None
        return self._pool.turn.taken()

    def close(self) -> None:
        self._builder.close()
        try:
            if self._witness is not None:
                self._witness.close()
        finally:
            if self._pool is not None:
                self._pool.close()

    def _batch(self, built: Sequence[Built], task: Task, effort: Literal["screen", "race"]) -> Iterator[tuple[int, Evaluation]]:
        require_memory(task, self._chip)
        measured: list[int] = []
        judged: Sequence[Built | Evaluation] = built if effort == "screen" else self._judged(built, task)
        for position, (each, whole) in enumerate(zip(built, judged, strict=True)):
            if (refused := self._builder.refused(each.candidate)) is not None:
                yield position, refused
            elif not isinstance(whole, Built):
                yield position, whole
            elif self._pool is None or self._emulates or task.arch is not self._chip.arch:
                yield position, self._request(each, task, None)
            else:
                measured.append(position)
        if not measured or self._pool is None:
            return
        request = CandidateBatch(
            effort=effort,
            built=tuple(whole for position in measured if isinstance(whole := judged[position], Built)),
            task=task,
            verify=self._verify,
            time=self._time[effort],
            tuned=self._tuned(task),
        )
        for place, outcome in self._pool.batch(request, self._keep):
            yield measured[place], outcome

    def _tuned(self, task: Task) -> TunedBaseline | None:
        if self._baselines is None or self._environment is None or not isinstance(task, GemmTask):
            return None
        return self._baselines.tuned(task, self._environment.key)

    def _keep(self, baseline: TunedBaseline) -> None:
        if self._baselines is not None:
            self._baselines.keep(baseline)

    def _request(self, built: Built, task: Task, effort: Effort | None, seconds: float | None = None) -> Evaluation:
        require_memory(task, self._chip)
        if (refused := self._builder.refused(built.candidate)) is not None:
            return refused  # it was built by another run or under other settings
        (whole,) = self._judged([built], task)
        if not isinstance(whole, Built):
            return whole
        built = whole
        if self._pool is None or task.arch is not self._chip.arch:
            return self._unmeasured(built, task)
        if self._emulates:
            return self._answer(self._pool.evaluate(self._proof(built, task, seconds)), built, task, "emulator")
        time = None if effort is None else self._time[effort]
        request = Evaluate(built=built, task=task, verify=self._verify, time=time, effort=effort, tuned=self._tuned(task))
        return self._answer(self._pool.evaluate(request, self._keep), built, task, "gpu")

    def _judged(self, built: Sequence[Built], task: Task) -> list[Built | Evaluation]:
        """The candidates with their machine code inspected; what the inspection found where one breaks a rule."""
        begin_s = monotonic()
        late = [position for position, each in enumerate(built) if not each.judged]
        outcomes = dict(self._builder.build([built[position].candidate for position in late], task)) if late else {}
        self._inspecting_s += monotonic() - begin_s
        found = {position: outcomes[place] for place, position in enumerate(late)}
        return [found.get(position, each) for position, each in enumerate(built)]

    def _proof(self, built: Built, task: Task, seconds: float | None = None) -> Evaluate:
        """What the emulator is asked, in at most `seconds`. Raises: as `_reduced`."""
        limit_s = self._emulate.timeout_s if seconds is None else min(self._emulate.timeout_s, seconds)
        verify = self._verify.model_copy(update={"timeout_s": limit_s / TIME_SHARE})
        return Evaluate(built=built, task=task, verify=verify, reduced=self._reduced(built, task))

    def _answer(
        self, outcome: Evaluation | Verified | NotExecuted, built: Built, task: Task, by: Literal["emulator", "gpu"]
    ) -> Evaluation:
        match outcome:
            case Verified(tests=tests, prediction=modelled):
                return self._unmeasured(built, task, by, tests=tests, modelled=modelled)
            case NotExecuted(reason=reason, prediction=modelled):
                return self._unmeasured(built, task, reason=reason, modelled=modelled)
            case _:
                return outcome

    def _unmeasured(
        self,
        built: Built,
        task: Task,
        by: Prover = "nothing",
        *,
        tests: tuple[TestResult, ...] = (),
        reason: str = "",
        modelled: Prediction | None = None,
    ) -> Unmeasured:
        """`modelled`: of the timing model, which knows candidates that have no schedule too, and the parts of every time."""
        prediction = self._predict(built.candidate, task, built.inspection)
        if modelled is not None:
            known = prediction.model_copy(update={"launches": modelled.launches})
            prediction = modelled if prediction.is_floor else known
        return Unmeasured(verified_by=by, reason=reason, tests=tests, prediction=prediction, inspection=built.inspection)

    def _reduced(self, built: Built, task: Task) -> Reduced | None:
        """The candidate for a smaller task that the emulator runs whole, written and built anew where it must be.

        Raises: CompilerMissing, MachineError, WorkerError.
        """
        candidate = built.candidate
        if not isinstance(candidate, Candidate):
            return None
        if isinstance(task, ModuleTask):
            return self._reduced_module(candidate, task)
        if (smaller := reduced_task(task, candidate.plan)) is None:
            return None
        if not needs_rewriting(candidate, task, smaller):
            return Reduced(built=built, task=smaller)
        rewritten = self._rewrite(candidate, smaller)
        outcome = None if rewritten is None else self._builder.build_one(rewritten, smaller)
        return Reduced(built=outcome, task=smaller) if isinstance(outcome, Built) else None

    def _reduced_module(self, candidate: Candidate, task: ModuleTask) -> Reduced | None:
        """The same at the first smaller dims for which the candidate is built, written for them or as it is.

        Raises: as `_reduced`.
        """
        for smaller in reduced_modules(task, self._resize) if self._resize is not None else ():
            outcome = self._builder.build_one(self._rewrite(candidate, smaller) or candidate, smaller)
            if isinstance(outcome, Built):
                return Reduced(built=outcome, task=smaller)
        return None


def open_sandbox(
    *,
    arch: Arch,
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
    resize: Resize | None = None,
    screen: TimeOptions = SCREEN_TIME,
    race: TimeOptions = RACE_TIME,
    baselines: BaselineBook | None = None,
) -> LocalSandbox:
    """The sandbox for tasks of an arch on `device`: `auto`, `none`, `emulator` or `cuda:N` (whose N `worker` carries).

    Raises: DeviceUnavailable where `cuda:N` cannot be used, or where the emulator was asked for and was not built.
    """
    if confinement().kind == "none":
        emit(Notice(message=f"compilers and workers are not confined to files of their own; {JAIL_REMEDY}"))
    backends = Backends(arch, worker, compile_options, emit)
    backend = backends.open(device)
    beside_gpu = backend is not None and not backend.emulates
    return LocalSandbox(
        arch,
        compile_options=compile_options,
        verify_options=verify_options,
        quick=quick,
        full=full,
        predict=predict,
        profiler=Profiler(profile or ProfileOptions(), worker, backends.gpu_environment),
        backend=backend,
        emulate=emulate,
        witness=WitnessPool(lambda: backends.emulator(role="witness: ").pool) if beside_gpu else None,
        rewrite=rewrite,
        resize=resize,
        screen=screen,
        race=race,
        baselines=baselines,
    )


def require_memory(task: Task, chip: Chip) -> None:
    """Raises: UsageError where the operands, with the copies that proving and timing need, exceed the chip's memory."""
    needed = MIN_OPERAND_SETS * task.operand_bytes
    if needed > chip.memory_bytes:
        raise UsageError(
            f"{task.shape} needs {needed / 1e9:.1f} GB ({MIN_OPERAND_SETS} sets of its operands); "
            f"{chip.name} has {chip.memory_bytes / 1e9:.1f} GB: choose a smaller shape"
        )
