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
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import Cudal2Error, MachineError, WorkerError
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Crashed, Evaluation, TimedOut
from cudal2_agent.contract.settings.options import WorkerOptions
from cudal2_agent.sandbox.workers.channel import Channel, ChannelClosed, DeadlinePassed
from cudal2_agent.sandbox.workers.internal_errors import InternalErrors, describe
from cudal2_agent.sandbox.workers.messages import (
    BatchEnded,
    CandidateBatch,
    Done,
    Evaluate,
    Failed,
    NotExecuted,
    ProtocolError,
    Ready,
    Stage,
    StageEntered,
    Tuned,
    Verified,
    decode_reply,
    encode,
)
from cudal2_agent.sandbox.workers.process import Limits
from cudal2_agent.sandbox.workers.turns import DeviceTurn
from cudal2_agent.sandbox.workers.worker_jail import emulator_jail, gpu_jail

ATTEMPTS = 3
BACK_OFF_S = 0.5
CLOSE_PATIENCE_S = 5.0
DRAIN_S = 5.0  # for the rest of a batch that is no longer wanted, before its worker is killed
FILE_BYTES = 4 * 1024**3

logger = logging.getLogger(__name__)

OnStage = Callable[[Built, Stage], None]
OnRestart = Callable[[str], None]
OnTuned = Callable[[TunedBaseline], None]


@dataclass(frozen=True)
class Lost:
    """A process that ended without an answer, or was killed at the deadline `limit_s`. `stage`: the stage of its candidate."""

    stage: Stage | None
    how: str
    limit_s: float | None


_Answer = Done | Verified | NotExecuted | Failed | BatchEnded
Outcome = Done | Verified | NotExecuted | Failed | Lost
_Settled = Evaluation | Verified | NotExecuted | Lost


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

    def evaluate(self, request: Evaluate, on_stage: OnStage, on_tuned: OnTuned) -> Outcome:
        """Send a request and follow it, stage by stage, to its answer. Raises: as `_answer`."""
        self.ready()
        follow = _Follow(request, on_stage, on_tuned)
        answer = self._answer(follow, follow.send)
        if isinstance(answer, BatchEnded):
            self.discard()
            return Lost(follow.stage, "it ended a batch that was not asked for", None)
        return answer

    def batch(
        self, request: CandidateBatch, on_stage: OnStage, on_tuned: OnTuned
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Each candidate's answer with its position; the last one is not healthy, `Failed` or `Lost` where the worker ended.

        What is left of a batch when the caller stops is waited for briefly, then its worker is killed. Raises: as `_answer`.
        """
        self.ready()
        follow = _Follow(request, on_stage, on_tuned)
        step, told = follow.send, set[int]()
        while not isinstance(answer := self._answer(follow, step), BatchEnded):
            position = answer.position if isinstance(answer, Done) else follow.position
            if not isinstance(answer, Lost) and (position in told or not 0 <= position < len(request.built)):
                self.discard()
                answer, position = Lost(None, f"an answer about candidate {position}", None), 0
            told.add(position)
            ended = self._channel is None  # the caller starts the next one
            try:
                yield position, answer
            except GeneratorExit:
                if not ended:
                    self._drain(follow)
                raise
            if ended:
                return
            step = follow.go_on

    def _drain(self, follow: "_Follow") -> None:
        """Wait for a batch's end, so that the next request does not meet its answers."""
        follow.end = time.monotonic() + DRAIN_S
        while self._channel is not None and not isinstance(self._answer(follow, follow.go_on), BatchEnded):
            pass

    def _answer(self, follow: "_Follow", step: "Callable[[Channel], _Answer]") -> "Outcome | BatchEnded":
        """One step to the next answer. `Failed` is always of kind `internal`.

        Raises: Cudal2Error where the machine or a process failed.
        """
        try:
            answer = step(self.spawn())
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
    """A request in progress. `stage`: its current stage, None before the first; `limit_s`: that stage's deadline.

    `position`: of the candidate that is worked on, 0 where the request has one. Both steps raise ChannelClosed,
    DeadlinePassed, ProtocolError.
    """

    def __init__(self, request: Evaluate | CandidateBatch, on_stage: OnStage, on_tuned: OnTuned) -> None:
        self._request = request
        self._built = request.built if isinstance(request, CandidateBatch) else (request.built,)
        self._on_stage, self._on_tuned = on_stage, on_tuned
        self._told: set[tuple[int, Stage]] = set()  # a race comes back to a stage round by round
        self.stage: Stage | None = None
        self.position = 0
        self.limit_s = request.limit_s(None)
        self.end = math.inf  # of the whole request, by `time.monotonic`

    def send(self, channel: Channel) -> "_Answer":
        """Send the request and wait for its first answer."""
        channel.send(encode(self._request), time.monotonic() + self.limit_s)
        return self.go_on(channel)

    def go_on(self, channel: Channel) -> "_Answer":
        """Wait for the next answer."""
        deadline = time.monotonic() + self.limit_s
        while True:
            reply = decode_reply(channel.receive(min(deadline, self.end)))
            match reply:
                case StageEntered():
                    self._enter(reply)
                    deadline = time.monotonic() + self.limit_s
                case Done():  # what ends the worker before the next stage is not this candidate
                    self.stage, self.limit_s = None, self._request.limit_s(None)
                    return reply
                case Tuned(baseline=baseline):
                    self._on_tuned(baseline)
                case Ready():
                    raise ProtocolError("'ready' in the middle of a request")
                case _:
                    return reply

    def _enter(self, entered: StageEntered) -> None:
        if not 0 <= entered.position < len(self._built):
            raise ProtocolError(f"a stage of candidate {entered.position}")
        self.stage, self.position = entered.stage, entered.position
        self.limit_s = self._request.limit_s(entered.stage)
        if (self.position, self.stage) not in self._told:
            self._told.add((self.position, self.stage))
            self._on_stage(self._built[self.position], self.stage)


class WorkerPool:
    """Evaluates on whichever worker is idle; safe to call from several threads. Workers start on demand.

    `environment` is added to the variables that a child inherits (`process.py`). `command` starts workers other than a
    GPU's. `memory_bytes`: limit of a worker's address space, for workers without a GPU. `turn`: on the GPU, among processes.
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
        self.turn = DeviceTurn(options[0].turns if memory_bytes is None else None, options[0].device)
        self._folders = contextlib.ExitStack()
        self._workers = [
            Worker(
                each,
                command or [each.python or sys.executable, "-P", "-m", "cudal2_agent.sandbox.workers.worker"],
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

    def evaluate(self, request: Evaluate, on_tuned: OnTuned = lambda _: None) -> Evaluation | Verified | NotExecuted:
        """The candidate's outcome; `Verified` where every test passed and no time was measured.

        Raises: MachineError, WorkerError where no candidate is to blame.
        """
        worker = self._idle.get()
        try:
            with self.turn.taken():
                outcome = self._evaluate(worker, request, on_tuned)
                if isinstance(outcome, Lost):
                    outcome = self._evaluate(worker, request, on_tuned)  # it was lost before it looked at the candidate
            if isinstance(outcome, Lost):
                raise WorkerError(f"two workers in a row were lost before they began: {outcome.how}")
            return outcome
        finally:
            self._idle.put(worker)

    def batch(self, request: CandidateBatch, on_tuned: OnTuned = lambda _: None) -> Iterator[tuple[int, Evaluation]]:
        """Each candidate's position and outcome, as it is known. A candidate that ends its worker costs itself only: the
        others go on in the next worker, and a race starts again without it.

        Raises: MachineError, WorkerError where no candidate is to blame.
        """
        worker = self._idle.get()
        try:
            with self.turn.taken():
                yield from self._whole_batch(worker, request, on_tuned)
        finally:
            self._idle.put(worker)

    def _whole_batch(
        self, worker: Worker, request: CandidateBatch, on_tuned: OnTuned
    ) -> Generator[tuple[int, Evaluation], None, None]:
        """As `batch`, on one worker."""
        left, losses = dict(enumerate(request.built)), 0
        while left:
            positions, how = list(left), "they ended a batch without its outcomes"
            rest = request.model_copy(update={"built": tuple(left.values())})
            with contextlib.closing(self._batch(worker, rest, on_tuned)) as outcomes:
                for place, outcome in outcomes:
                    if isinstance(outcome, Lost):
                        how = outcome.how
                        break
                    yield positions[place], outcome
                    del left[positions[place]]
            losses = losses + 1 if len(left) == len(positions) else 0
            if losses > 1:
                raise WorkerError(f"two workers in a row were lost before they began: {how}")

    def close(self) -> None:
        """End every worker. No evaluation may be in progress; interrupt its thread to stop one."""
        for worker in self._workers:
            worker.close()
        self._folders.close()

    def _evaluate(self, worker: Worker, request: Evaluate, on_tuned: OnTuned) -> "_Settled":
        stages: list[Stage] = ["load"]

        def on_stage(built: Built, stage: Stage) -> None:
            stages.append(stage)
            self._on_stage(built, stage)

        answer = worker.evaluate(request, on_stage, on_tuned)
        return self._settle(worker, request.built, stages[-1], answer)

    def _batch(
        self, worker: Worker, request: CandidateBatch, on_tuned: OnTuned
    ) -> Generator[tuple[int, Evaluation | Lost], None, None]:
        """As `Worker.batch`, settled."""
        stages: list[Stage] = ["load"]

        def on_stage(built: Built, stage: Stage) -> None:
            stages.append(stage)
            self._on_stage(built, stage)

        with contextlib.closing(worker.batch(request, on_stage, on_tuned)) as answers:
            for position, answer in answers:
                settled = self._settle(worker, request.built[position], stages[-1], answer)
                if isinstance(settled, Verified | NotExecuted):
                    raise WorkerError(f"a worker answered a batch with {settled.message!r}")
                yield position, settled

    def _settle(self, worker: Worker, built: Built, stage: Stage, answer: "Outcome") -> "_Settled":
        """What a worker's answer says of a candidate; the worker is replaced where the answer was its last."""
        inspection = built.inspection
        if isinstance(answer, Failed):
            self._replace(worker, f"an internal error in {stage}: {answer.reason}")
            return self._internal.met(built.candidate.id, stage, answer.reason, log=answer.log, inspection=inspection)
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
            case Lost(stage=None | "prepare"):
                self._replace(worker, answer.how)
                return answer
            case Lost(stage=last, limit_s=None):
                self._replace(worker, f"a candidate ended it in {last}: {answer.how}")
                return Crashed(stage=last, message=f"the worker ended: {answer.how}", inspection=inspection)
            case Lost(stage=last, limit_s=limit_s):
                self._replace(worker, f"a candidate did not end its {last}: {answer.how}")
                return TimedOut(stage=last, limit_s=limit_s, inspection=inspection)

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
