"""The parent's side of tracing: asks a server (`tracing_child.py`) for one problem at a time, and checks what comes back.

Covered: limits of time, memory and the size of the answer; a child or a server that dies; a machine without a jail, where
nothing is traced.
"""

import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import MachineError, UsageError, WorkerError
from cudal2_agent.contract.records.module_graph import Soundness
from cudal2_agent.contract.records.module_task import MAX_PROBLEM_BYTES, Arithmetic, ModuleTask
from cudal2_agent.contract.records.task import Arch, TimingMode
from cudal2_agent.contract.settings.options import WorkerOptions
from cudal2_agent.sandbox.jail.entering import NOT_JAILED, Jail
from cudal2_agent.sandbox.jail.kind import REMEDY, confinement
from cudal2_agent.sandbox.modules.tracing import tracing_child
from cudal2_agent.sandbox.modules.tracing.trace_messages import (
    ANSWER,
    MAX_ANSWER_BYTES,
    Answer,
    CheckRequest,
    SoundnessFound,
    TracedModule,
    TraceRequest,
    Untraceable,
)
from cudal2_agent.sandbox.workers.fork_servers import ForkServers
from cudal2_agent.sandbox.workers.process import ChildExit, Limits
from cudal2_agent.sandbox.workers.worker_jail import readable

_ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)
AnswerT = TypeVar("AnswerT", TracedModule, SoundnessFound)


@dataclass(frozen=True)
class TraceOptions:
    """Limits of one trace. `memory_bytes`: address space beyond that of a process that has loaded torch."""

    timeout_s: float = 300.0
    memory_bytes: int = 8 << 30


class Tracer:
    """Traces problem files. Thread-safe; close it at the end."""

    def __init__(self, options: TraceOptions) -> None:
        self._options = options
        self._servers = ForkServers(tracing_child.__name__)
        self._scratch = Path(tempfile.mkdtemp(prefix="cudal2-trace-"))

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that wait for the next problem."""
        self._servers.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def trace(
        self,
        problem: str,
        name: str,
        dims: Mapping[str, int] = {},
        arithmetic: Arithmetic = Arithmetic.F32,
        training: bool = False,
        arch: Arch = Arch.SM_90A,
        mode: TimingMode = TimingMode.OFFLINE,
    ) -> ModuleTask:
        """The task that a problem file states; `dims`: sizes other than the file's.

        Raises: UsageError with one line that says what is wrong with the file; MachineError, WorkerError.
        """
        return self._traced(problem, name, {"dims": dims, "arithmetic": arithmetic, "training": training}, arch, mode)

    def reduced(self, task: ModuleTask, most_work: int) -> ModuleTask:
        """The task at sizes at which all results of its operations have at most so many elements, or as few as were found.

        Products and sums of matrix products count as `shrinking.OPERATIONS_PER_ELEMENT` do. Raises: as `trace`.
        """
        asked = {"dims": task.dims, "arithmetic": task.arithmetic, "training": task.training, "most_work": most_work}
        return self._traced(task.problem, task.name, asked, task.arch, task.mode)

    def soundness(self, task: ModuleTask, seed: int, timeout_s: float | None = None) -> Soundness:
        """Whether the tests of a task refuse wrong programs at its sizes. `timeout_s`: that of a trace by default.

        Raises: UsageError where that cannot be tried, or takes too long.
        """
        request = CheckRequest(task=task, seed=seed, memory_bytes=self._options.memory_bytes)
        return self._asked({"check": request}, task.name, "the check", SoundnessFound, timeout_s).soundness

    def _traced(self, problem: str, name: str, asked: Mapping[str, Any], arch: Arch, mode: TimingMode) -> ModuleTask:
        if len(problem.encode(errors="replace")) > MAX_PROBLEM_BYTES:
            raise UsageError(f"{name}: a problem file has at most {MAX_PROBLEM_BYTES >> 10} KiB")
        try:
            request = TraceRequest(problem=problem, **asked, memory_bytes=self._options.memory_bytes)
            answer = self._asked({"trace": request}, name, "tracing", TracedModule)
            found = {key: value for key, value in answer if key != "answer"}
            how = {"arithmetic": request.arithmetic, "training": request.training, "arch": arch, "mode": mode}
            return ModuleTask(name=name, problem=problem, **found, **how)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            raise UsageError(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc

    def _asked(
        self, request: Mapping[str, Record], name: str, doing: str, wanted: type[AnswerT], timeout_s: float | None = None
    ) -> AnswerT:
        """The answer to a request of one kind."""
        limit_s = min(timeout_s or math.inf, self._options.timeout_s)
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            ended = self._run({kind: each.model_dump(mode="json") for kind, each in request.items()}, scratch, limit_s)
            answer = scratch / ANSWER
            if ended.timed_out:
                raise UsageError(f"{name}: {doing} took longer than {limit_s:g} s")
            if ended.returncode == NOT_JAILED:
                raise MachineError(ended.stderr.decode(errors="replace").strip())
            if ended.returncode == tracing_child.MISSING and not answer.is_file():
                raise MachineError(f"tracing needs torch: {ended.stderr.decode(errors='replace').strip()}")
            if ended.returncode or not answer.is_file() or answer.is_symlink():
                raise UsageError(f"{name}: the problem file ended its process ({_how(ended)})")
            if answer.stat().st_size > MAX_ANSWER_BYTES:
                raise UsageError(f"{name}: its graph takes more than {MAX_ANSWER_BYTES >> 20} MiB")
            found = _ANSWER.validate_json(answer.read_bytes())
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(found, Untraceable):
            raise UsageError(f"{name}: {found.reason}", log=found.log)
        if not isinstance(found, wanted):
            raise UsageError(f"{name}: the problem file answered in the tracer's place")
        return found

    def _run(self, request: Mapping[str, Any], scratch: Path, timeout_s: float) -> ChildExit:
        found = confinement()
        if not (found.landlock_abi and found.system_calls):
            raise MachineError(f"a problem file runs only in a jail, which this machine lacks ({found.detail}); {REMEDY}")
        jail = Jail(
            write=(str(scratch.resolve()),),
            read=readable(WorkerOptions(readable=())),
            devices=("/dev/null",),
            processes=False,
            layers=replace(found.layers, mounts=False),
        )
        limits = Limits(wall_s=timeout_s, cpu_s=int(timeout_s) + 1, file_bytes=MAX_ANSWER_BYTES, devices=False)
        asked = {**request, "jail": jail.as_request()}
        try:
            return self._servers.run(asked, scratch=scratch, limits=limits)
        except OSError as exc:
            raise WorkerError(f"{scratch}: {exc.strerror}") from exc


def open_tracer(options: TraceOptions | None = None) -> Tracer:
    """A tracer. Its process starts with the first problem."""
    return Tracer(options or TraceOptions())


def _how(ended: ChildExit) -> str:
    return f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}, no answer"
