"""Worker processes, one per GPU: started on demand, held to deadlines, replaced when a candidate breaks one.

Covered: a crash, a hang, a poisoned context, invalid output on the pipe, a worker that does not start. Every wait has an
end.
Not covered: a GPU that falls off the bus; every start then fails with WorkerError.
"""

import contextlib
import logging
import math
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.build import Built
from contract.errors import Cudal2Error, MachineError, WorkerError
from contract.evaluation import Crashed, Evaluation, TimedOut
from contract.options import WorkerOptions
from sandbox.workers.channel import Channel, ChannelClosed, DeadlinePassed
from sandbox.workers.internal_errors import InternalErrors, describe
from sandbox.workers.messages import (
    Done,
    Evaluate,
    Failed,
    NotExecuted,
    ProtocolError,
    Ready,
    Stage,
    StageEntered,
    Verified,
    decode_reply,
    encode,
)
from sandbox.workers.process import Limits
from sandbox.workers.worker_jail import emulator_jail, gpu_jail

ATTEMPTS = 3
BACK_OFF_S = 0.5
CLOSE_PATIENCE_S = 5.0
FILE_BYTES = 4 * 1024**3

logger = logging.getLogger(__name__)

OnStage = Callable[[Built, Stage], None]
OnRestart = Callable[[str], None]


@dataclass(frozen=True)
class Lost:
    """A process that ended without an answer, or was killed at the deadline `limit_s`. `stage`: the stage of its candidate."""

    stage: Stage | None
    how: str
    limit_s: float | None


class Worker:
    """One GPU's worker process, if there is one, and what it takes to start the next."""

    def __init__(
        self,
        options: WorkerOptions,
        command: Sequence[str],
        scratch: Path,
        environment: dict[str, str],
        memory_bytes: int | None = None,
    ) -> None:
        self._command = [*command, "--device", str(options.device)]
        self._name = f"worker of cuda:{options.device}" if memory_bytes is None else "emulator's worker"
        self._memory_bytes = memory_bytes
        self._options = options
        self._start_timeout_s = options.start_timeout_s
        self._scratch = scratch
        self._environment = environment
        self._channel: Channel | None = None
        self._ready: Ready | None = None
        self._loosened = 0  # attempts that failed; each later one has fewer restrictions

    def spawn(self) -> Channel:
        """The process, started if there is none; it may not be ready yet. Raises: WorkerError."""
        if self._channel is None:
            self._channel = Channel(self._command, self._scratch, self._limits(), self._environment)
        return self._channel

    def _limits(self) -> Limits:
        """The first attempt has a jail and no network; the second has no jail; the last has the network as well."""
        gpu = self._memory_bytes is None
        jail = gpu_jail(self._options, self._scratch, self._environment) if gpu else emulator_jail(self._options)
        return Limits(
            wall_s=math.inf,
            memory_bytes=self._memory_bytes,
            file_bytes=FILE_BYTES,
            network=self._loosened > 1,
            die_with_parent=False,
            jail=None if self._loosened else jail,
            kernel_log=gpu,
        )

    def ready(self) -> Ready:
        """Wait for the process, which is started if there is none, and return what it reports of its GPU.

        The first attempt is jailed and has no network. Later attempts have fewer restrictions, in case the driver needs
        that. Raises: DeviceUnavailable, MachineError, or WorkerError with the log after three failures in a row.
        """
        failures: list[Cudal2Error] = []
        while self._ready is None:
            try:
                self._ready = self._await_ready()
            except Cudal2Error as error:
                self.discard()
                failures.append(error)
                if len(failures) == ATTEMPTS or (isinstance(error, MachineError) and self._loosened > 1):
                    raise
                self._loosened += 1
                time.sleep(BACK_OFF_S * 2 ** len(failures))
            else:
                if failures:
                    lacking = "a jail" if self._loosened == 1 else "a jail and network isolation"
                    logger.warning("the %s runs without %s: otherwise, %s", self._name, lacking, failures[-1])
        return self._ready

    def evaluate(self, request: Evaluate, on_stage: OnStage) -> Done | Verified | NotExecuted | Failed | Lost:
        """Send a request and follow it, stage by stage, to its answer. `Failed` is always of kind `internal`.

        Raises: Cudal2Error where the machine or a process failed.
        """
        self.ready()
        follow = _Follow(request, on_stage)
        try:
            answer = follow.to_the_end(self.spawn())
        except (ChannelClosed, ProtocolError) as exc:
            return Lost(follow.stage, self._obituary(exc), None)
        except DeadlinePassed:
            self.discard()
            return Lost(follow.stage, f"no answer within {follow.limit_s:g} s", follow.limit_s)
        except Cudal2Error:
            self.discard()
            raise
        except Exception as exc:  # noqa: BLE001 (a request that cannot be written, an answer that cannot be told)
            self.discard()
            reason, log = describe(exc)
            return Failed(kind="internal", reason=reason, log=log)
        except BaseException:  # an interrupt between request and answer: the next request must not read this one's
            self.discard()
            raise
        if isinstance(answer, Failed) or (isinstance(answer, Done) and not answer.healthy):
            self.discard()
        if isinstance(answer, Failed) and answer.kind != "internal":
            raise answer.error()
        return answer

    def discard(self) -> str:
        """Kill the process if there is one and return how it ended. Raises: WorkerError where it does not end."""
        channel, self._channel, self._ready = self._channel, None, None
        return channel.kill() if channel is not None else ""

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close(CLOSE_PATIENCE_S if self._ready else 0.0)
            self.discard()

    def _await_ready(self) -> Ready:
        try:
            reply = decode_reply(self.spawn().receive(time.monotonic() + self._start_timeout_s))
        except (ChannelClosed, ProtocolError) as exc:
            tail = self._tail()
            raise WorkerError(f"the {self._name} did not start: {self._obituary(exc)}", log=tail) from exc
        except DeadlinePassed as exc:
            raise WorkerError(f"the {self._name} was not ready after {self._start_timeout_s:g} s", log=self._tail()) from exc
        if isinstance(reply, Failed):
            raise reply.error()
        if not isinstance(reply, Ready):
            raise WorkerError(f"the {self._name} began with {reply.message!r} instead of 'ready'", log=self._tail())
        return reply

    def _tail(self) -> str:
        return self._channel.stderr_tail if self._channel is not None else ""

    def _obituary(self, cause: Exception) -> str:
        """How the process ended, and the last line it wrote; kills it if it still runs."""
        channel = self._channel
        ended = self.discard()
        last = channel.stderr_tail.splitlines()[-1:] if channel is not None else []
        return "; ".join([*([str(cause)] if str(cause) else []), ended, *last])


class _Follow:
    """A request in progress. `stage`: its current stage, None before the first; `limit_s`: that stage's deadline."""

    def __init__(self, request: Evaluate, on_stage: OnStage) -> None:
        self._request = request
        self._on_stage = on_stage
        self.stage: Stage | None = None
        self.limit_s = request.limit_s(None)

    def to_the_end(self, channel: Channel) -> Done | Verified | NotExecuted | Failed:
        """Raises: ChannelClosed, DeadlinePassed, ProtocolError."""
        deadline = time.monotonic() + self.limit_s
        channel.send(encode(self._request), deadline)
        while isinstance(reply := decode_reply(channel.receive(deadline)), StageEntered):
            self.stage, self.limit_s = reply.stage, self._request.limit_s(reply.stage)
            deadline = time.monotonic() + self.limit_s
            self._on_stage(self._request.built, reply.stage)
        if isinstance(reply, Ready):
            raise ProtocolError("'ready' in the middle of a request")
        return reply


class WorkerPool:
    """Evaluates on whichever worker is idle; safe to call from several threads. Workers start on demand.

    `environment` is added to the variables that a child inherits (`process.py`). `command` starts workers other than a
    GPU's. `memory_bytes`: limit of a worker's address space, for workers without a GPU.
    """

    def __init__(
        self,
        options: Sequence[WorkerOptions],
        *,
        on_stage: OnStage = lambda _built, _stage: None,
        on_restart: OnRestart = lambda _reason: None,
        environment: dict[str, str] | None = None,
        command: Sequence[str] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._on_stage, self._on_restart = on_stage, on_restart
        self._internal = InternalErrors()
        self._folders = contextlib.ExitStack()
        self._workers = [
            Worker(
                each,
                command or [each.python or sys.executable, "-P", "-m", "sandbox.workers.worker"],
                self._scratch(each),
                environment or {},
                memory_bytes,
            )
            for each in options
        ]
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for worker in reversed(self._workers):
            self._idle.put(worker)

    def ready(self) -> Ready:
        """The first GPU's environment and chip. Raises: DeviceUnavailable, MachineError, WorkerError."""
        return self._workers[0].ready()

    def evaluate(self, request: Evaluate) -> Evaluation | Verified | NotExecuted:
        """The candidate's outcome; `Verified` where every test passed and no time was measured.

        Raises: MachineError, WorkerError where no candidate is to blame.
        """
        worker = self._idle.get()
        try:
            outcome = self._evaluate(worker, request)
            if isinstance(outcome, Lost):
                outcome = self._evaluate(worker, request)  # it was lost before it looked at the candidate
            if isinstance(outcome, Lost):
                raise WorkerError(f"two workers in a row were lost before they began: {outcome.how}")
            return outcome
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End every worker. No evaluation may be in progress; interrupt its thread to stop one."""
        for worker in self._workers:
            worker.close()
        self._folders.close()

    def _evaluate(self, worker: Worker, request: Evaluate) -> Evaluation | Verified | NotExecuted | Lost:
        stages: list[Stage] = ["load"]

        def on_stage(built: Built, stage: Stage) -> None:
            stages.append(stage)
            self._on_stage(built, stage)

        answer = worker.evaluate(request, on_stage)
        inspection = request.built.inspection
        if isinstance(answer, Failed):
            self._replace(worker, f"an internal error in {stages[-1]}: {answer.reason}")
            name = request.built.candidate.id
            return self._internal.met(name, stages[-1], answer.reason, log=answer.log, inspection=inspection)
        if not isinstance(answer, Lost):
            self._internal.passed()
        match answer:
            case Verified() | NotExecuted():
                return answer
            case Done(healthy=True, evaluation=evaluation):
                return evaluation
            case Done(evaluation=evaluation):
                self._replace(worker, "a candidate poisoned its CUDA context")
                return evaluation
            case Lost(stage=None):
                self._replace(worker, answer.how)
                return answer
            case Lost(stage=stage, limit_s=None):
                self._replace(worker, f"a candidate ended it in {stage}: {answer.how}")
                return Crashed(stage=stage, message=f"the worker ended: {answer.how}", inspection=inspection)
            case Lost(stage=stage, limit_s=limit_s):
                self._replace(worker, f"a candidate did not end its {stage}: {answer.how}")
                return TimedOut(stage=stage, limit_s=limit_s, inspection=inspection)

    def _replace(self, worker: Worker, reason: str) -> None:
        """Start the next process at once, so that it gets ready while the caller compiles."""
        self._on_restart(reason)
        with contextlib.suppress(WorkerError):  # the known outcome must not be lost; the next `ready` raises the reason
            worker.spawn()

    def _scratch(self, options: WorkerOptions) -> Path:
        if options.scratch_dir is not None:
            return Path(options.scratch_dir)
        folder = tempfile.TemporaryDirectory(prefix="cudal2-worker-", ignore_cleanup_errors=True)
        return Path(self._folders.enter_context(folder))
