"""What a worker does with one candidate on its GPU: load, verify, time, verify again."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar, assert_never

import cupy

from cudal2_agent.contract.errors import MachineError, PlanError
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate
from cudal2_agent.contract.records.evaluation import Crashed, Measured, TestResult, Wrong
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import Effort, TimeOptions, VerifyOptions
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import Fault
from cudal2_agent.sandbox.cuda.guard.fault_log import describe_fault
from cudal2_agent.sandbox.cuda.host import HostKernel
from cudal2_agent.sandbox.cuda.launcher import Kernel, Library
from cudal2_agent.sandbox.cuda.timing.timer import Measurement, Timer
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from cudal2_agent.sandbox.cuda.verifier import Verifier
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, Stage, Verified

# Sticky errors that no kernel causes.
_MACHINE_FAULTS = frozenset(
    {
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NO_DEVICE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_SYSTEM_NOT_READY",
    }
)
Outcome = TypeVar("Outcome")
ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"


class Loaded(Contender, Protocol):
    """A contender whose code can be unloaded."""

    def close(self) -> None: ...


class Verifies(Protocol):
    """Verifies candidates of one task; as `Verifier`. `large`: whether its buffers leave timing too little memory."""

    large: bool

    def prepare(self, options: VerifyOptions, *, briefly: bool = False) -> None: ...
    def verify(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]: ...
    def screen(self, contender: Contender, options: VerifyOptions) -> tuple[TestResult, ...]: ...
    def recheck(self, contender: Contender, options: VerifyOptions) -> TestResult: ...
    def release(self) -> None:
        """Give memory back that timing may need."""


class Evaluator:
    """Evaluates candidates one after another. What it prepares for a task is kept until the task changes."""

    def __init__(self, device: Device, enter: Callable[[Stage], None]) -> None:
        self._device = device
        self._enter = enter
        self._stage: Stage = "load"
        self._tools: tuple[Task, Verifies, Timer] | None = None
        self._workspace_bytes = 0  # of the current candidate, once it is loaded

    def evaluate(self, request: Evaluate) -> Done | Verified:
        """The candidate's outcome; its faults are outcomes too.

        Raises: MachineError where the GPU has too little memory or fails by itself. Any other exception, while `fault_of`
        finds the context healthy, is an internal error.
        """
        return self._blaming(request.built, request.task, lambda: self._evaluate(request))

    def _blaming(self, built: Built, task: Task, work: Callable[[], Outcome]) -> Outcome | Done:
        """What the work on a candidate gives, or the fault that it met. Raises: as `evaluate`."""
        try:
            return work()
        except (Fault, cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as exc:
            return self.fault_of(built) or Done(evaluation=self._crashed(built, exc))
        except MemoryError as exc:  # such as cupy's OutOfMemoryError
            if self._workspace_bytes > task.operand_bytes:  # a smaller one is not why memory is short
                needs = f"its workspace of {self._workspace_bytes} bytes does not fit beside the operands"
                return Done(evaluation=self._crashed(built, MemoryError(f"{needs}: {exc}")))
            raise MachineError(f"too little free memory to evaluate {task.shape}: {exc}") from exc

    def fault_of(self, built: Built) -> Done | None:
        """The outcome where the candidate has poisoned the context, None where the context is healthy.

        Raises: MachineError where the context is lost for a reason that no kernel causes.
        """
        poison = self._device.poison()
        if poison is None:
            return None
        if poison.status in _MACHINE_FAULTS:
            raise MachineError(f"the GPU failed: {poison}; see dmesg and nvidia-smi -q") from poison
        return Done(evaluation=self._crashed(built, poison), healthy=False)

    def _evaluate(self, request: Evaluate) -> Done | Verified:
        self._begin("prepare")
        self._workspace_bytes = 0
        verifier, timer = self._prepare(request.task)
        verifier.release()
        verifier.prepare(request.verify)
        if request.time is not None:
            self._open_baselines(timer, request, request.time)
            if verifier.large:
                timer.close()  # its memory, which is made again; baselines stay open
        with self._unloading(self._load(request.built, request.task)) as contender:
            self._begin("verify")
            tests = verifier.verify(contender, request.verify)
            self._device.synchronize()
            if not tests[-1].passed:
                return Done(evaluation=wrong(request.built, tests))
            if request.time is None:
                return Verified(tests=tests)
            return self._time(request, request.time, contender, tests)

    @contextlib.contextmanager
    def _unloading(self, contender: Loaded) -> Iterator[Loaded]:
        """Unload the contender at the end, unless it has broken the context."""
        try:
            yield contender
        finally:
            if self._device.poison() is None:
                contender.close()

    def _open_baselines(self, timer: Timer, request: Evaluate, options: TimeOptions) -> None:  # noqa: ARG002 (a batch's has more)
        timer.track_for(options)
        timer.open_baselines(options)

    def _time(self, request: Evaluate, options: TimeOptions, contender: Contender, tests: tuple[TestResult, ...]) -> Done:
        verifier, timer = self._prepare(request.task)
        self._begin("time")
        verifier.release()
        try:
            measurement = timer.measure(contender, options)
        except WrongWhileTimed as exc:
            return Done(evaluation=wrong_while_timed(request.built, tests, exc))
        if verifier.large:
            timer.close()
        self._begin("recheck")
        tests = (*tests, verifier.recheck(contender, request.verify))
        self._device.synchronize()
        if not tests[-1].passed:
            return Done(evaluation=wrong(request.built, tests))
        return Done(evaluation=self._measured(request.built, request.task, tests, measurement, request.effort))

    def _measured(
        self, built: Built, task: Task, tests: tuple[TestResult, ...], measurement: Measurement, effort: Effort | None
    ) -> Measured:
        return Measured(
            mode=task.mode,
            effort=effort,
            tests=tests,
            timing=measurement.timing,
            plain=measurement.plain,
            baselines=measurement.baselines,
            side=measurement.side,
            telemetry=measurement.telemetry,
            environment=self._device.environment,
            inspection=built.inspection,
            notes=measurement.notes,
            ruler=measurement.ruler,
        )

    def _load(self, built: Built, task: Task) -> Loaded:
        self._begin("load")
        self._workspace_bytes = 0
        contender = load(built, task, self._device)
        self._workspace_bytes = contender.workspace_bytes
        return contender

    def _begin(self, stage: Stage) -> None:
        self._stage = stage
        self._enter(stage)

    def forget(self) -> None:
        """Free what is kept for the last task."""
        if self._tools is not None:
            self._tools[2].close()
        self._tools = None
        self._device.pool.free_all_blocks()

    def _prepare(self, task: Task) -> tuple[Verifies, Timer]:
        if self._tools is None or self._tools[0] != task:
            self.forget()
            self._tools = (task, open_verifier(task, self._device), Timer(task, self._device))
        return self._tools[1], self._tools[2]

    def _crashed(self, built: Built, fault: Exception) -> Crashed:
        message = f"{fault}; {describe_fault()}" if getattr(fault, "status", "") == ILLEGAL_ADDRESS else str(fault)
        return Crashed(stage=self._stage, message=message, inspection=built.inspection)


def open_verifier(task: Task, device: Device) -> Verifies:
    """Raises: MemoryError."""
    if isinstance(task, GemmTask):
        return Verifier(task, device)
    from cudal2_agent.sandbox.cuda.modules.module_verifier import ModuleVerifier  # torch, which products do without

    return ModuleVerifier(task, device)


def _library(task: Task, plan: ResolvedPlan, device: int) -> Library | None:
    if not plan.calls or isinstance(task, GemmTask):
        return None
    from cudal2_agent.sandbox.cuda.modules.library import TorchLibrary

    return TorchLibrary(task, plan, device)


def load(built: Built, task: Task, device: Device) -> Loaded:
    """The contender of a built candidate, its code on the device. Raises: Fault, PlanError."""
    candidate = built.candidate
    match candidate:
        case Candidate(plan=plan):
            resolved = built.plan_for(task, device.chip.sms)
            assert resolved is not None
            cubin = Path(built.artifact_path).read_bytes()
            return Kernel(
                candidate.id, cubin, resolved, task, atomics=plan.atomics, library=_library(task, resolved, device.index)
            )
        case HostCandidate(workspace_bytes=workspace_bytes):
            if not isinstance(task, GemmTask) or task.bias or task.activation is not None:
                raise PlanError("plan-host", "a host candidate computes a matrix product with neither a bias nor an activation")
            return HostKernel(candidate.id, built.artifact_path, task, workspace_bytes)
        case _:
            assert_never(candidate)


def wrong_while_timed(built: Built, tests: tuple[TestResult, ...], fault: WrongWhileTimed) -> Wrong:
    failed = TestResult(tier="while-timed", name=fault.check, passed=False, message=str(fault))
    return wrong(built, (*tests, failed))


def wrong(built: Built, tests: tuple[TestResult, ...]) -> Wrong:
    return Wrong(test=tests[-1], tests=tests, inspection=built.inspection)
