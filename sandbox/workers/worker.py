"""The worker process of one GPU: `python -m sandbox.workers.worker --device 0`, driven over stdin and stdout by `pool.py`.

Covered: what libraries or candidates print cannot reach the protocol, because stdout is moved away before anything is
imported; the worker ends when its parent does, even in a hung kernel; an internal error is reported with its traceback.
Not covered: a host candidate shares this process and could forge a reply; it is therefore marked wherever it is shown.
"""

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import BinaryIO, Literal, Protocol, runtime_checkable

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import Cudal2Error, DeviceUnavailable, MachineError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.sandbox.workers.internal_errors import describe
from cudal2_agent.sandbox.workers.messages import (
    BatchEnded,
    CandidateBatch,
    Done,
    Evaluate,
    Failed,
    NotExecuted,
    Ready,
    Verified,
    decode_request,
    encode,
)

ORPHAN_GRACE_S = 3.0

Say = Callable[[Record], None]


class Evaluates(Protocol):
    """A backend as its worker uses it."""

    def evaluate(self, request: Evaluate) -> Done | Verified | NotExecuted: ...

    def fault_of(self, built: Built) -> Done | None:
        """The outcome where the candidate has broken the backend, None where it has not."""
        ...


@runtime_checkable
class EvaluatesBatches(Evaluates, Protocol):
    """A backend that measures. `position`: the candidate of the batch that it works on."""

    position: int

    def batch(self, request: CandidateBatch) -> Iterator[Done]:
        """One outcome for each candidate as it is known; after one that is not healthy no other follows."""
        ...


Answer = Done | Verified | NotExecuted | BatchEnded | Failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one GPU until stdin ends. The exit code is 0, or 1 where the worker cannot go on."""
    parser = argparse.ArgumentParser(prog="python -m cudal2_agent.sandbox.workers.worker", description=__doc__)
    parser.add_argument("--device", type=int, default=0, help="index of the GPU, as CUDA counts")
    index: int = parser.parse_args(arguments).device
    return serve(partial(open_gpu, index))


def serve(opened: Callable[[Say], tuple[Evaluates, Ready]]) -> int:
    """Open a backend, and serve it on stdin and stdout. The exit code is that of `main`."""
    requests, say = claim_pipes()
    session = Session(say)
    sys.excepthook = session.report_uncaught
    try:
        return session.serve(*opened(say), read_ahead(requests))
    except Cudal2Error as exc:
        say(failure(exc))
        return 1


def claim_pipes(encoded: Callable[[Record], bytes] = encode) -> tuple[BinaryIO, Say]:
    """Take stdin and stdout for the protocol; afterwards fd 0 reads nothing and fd 1 writes to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)

    def say(record: Record) -> None:
        rest = memoryview(encoded(record))
        while rest:
            rest = rest[replies.write(rest) or 0 :]

    return requests, say


def read_ahead(requests: BinaryIO) -> "queue.SimpleQueue[bytes | None]":
    """Request lines, then None. A thread reads them, so that it notices the parent's end while a kernel runs."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        for line in requests:
            lines.put(line)
        lines.put(None)
        time.sleep(ORPHAN_GRACE_S)
        os._exit(1)  # the parent is gone, and the main thread may wait for a kernel that never ends

    threading.Thread(target=read, name="requests", daemon=True).start()
    return lines


class Session:
    """Answers requests one after another. It remembers which one is running, for the report of an uncaught error."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._running: tuple[Evaluates, Evaluate | CandidateBatch] | None = None

    def serve(self, evaluator: Evaluates, ready: Ready, lines: "queue.SimpleQueue[bytes | None]") -> int:
        """Announce the backend, then answer until the requests end or the backend is broken.

        Raises: Cudal2Error for what no candidate is to blame for.
        """
        self._say(ready)
        while (line := lines.get()) is not None:
            answer = self._answer(evaluator, line)
            self._say(answer)
            if isinstance(answer, Failed) or (isinstance(answer, Done) and not answer.healthy):
                return 1
        return 0

    def _answer(self, evaluator: Evaluates, line: bytes) -> Answer:
        """The candidate's outcome, or the last message of a batch.

        An unexpected error becomes an answer too, and ends this worker.

        Raises: DeviceUnavailable, MachineError.
        """
        try:
            request = decode_request(line)
            self._running = evaluator, request
            answer = self._batch(evaluator, request) if isinstance(request, CandidateBatch) else evaluator.evaluate(request)
            encode(answer)  # an answer that cannot be sent is an internal error on this candidate
        except MachineError:
            raise
        except Exception as exc:  # noqa: BLE001 (whatever a candidate brings out must not end the run)
            return self._unexpected(exc, "internal")
        self._running = None
        return answer

    def _batch(self, evaluator: Evaluates, request: CandidateBatch) -> Answer:
        """Tell each outcome as it comes. Returns the last message: `BatchEnded`, or the outcome that broke the backend."""
        if not isinstance(evaluator, EvaluatesBatches):
            return Failed(kind="worker", reason="this worker measures nothing, and was sent a batch")
        for done in evaluator.batch(request):
            if not done.healthy:
                return done
            self._say(done)
        return BatchEnded()

    def report_uncaught(self, _kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        """An `excepthook`, for what is raised outside of an evaluation or is not an `Exception`."""
        self._say(self._unexpected(error, "internal" if self._running else "worker"))

    def _unexpected(self, error: BaseException, kind: Literal["internal", "worker"]) -> Done | Failed:
        """Blames the candidate where it left the backend broken, else reports an internal error."""
        reason, log = describe(error)
        sys.stderr.write(log)
        try:
            blamed = _blamed(*self._running) if self._running else None
        except MachineError as exc:
            return failure(exc)
        except Exception as exc:  # noqa: BLE001 (the first error is the one to tell)
            return Failed(kind=kind, reason=reason, log=log + describe(exc)[1])
        return blamed or Failed(kind=kind, reason=reason if kind == "internal" else f"the worker failed: {reason}", log=log)


def _blamed(evaluator: Evaluates, request: Evaluate | CandidateBatch) -> Done | None:
    """The outcome of the candidate under way where it has broken the backend."""
    if isinstance(request, Evaluate):
        return evaluator.fault_of(request.built)
    if not isinstance(evaluator, EvaluatesBatches):
        return None
    blamed = evaluator.fault_of(request.built[evaluator.position])
    return blamed and blamed.model_copy(update={"position": evaluator.position})


def open_gpu(index: int, say: Say) -> tuple[Evaluates, Ready]:
    """The GPU's evaluator, and its announcement. Raises: DeviceUnavailable, MachineError."""
    try:
        from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
        from cudal2_agent.sandbox.cuda.device import Device
    except ImportError as exc:
        raise MachineError(f"a GPU worker needs cupy and cuda-bindings in {sys.executable}: {exc}") from exc
    device = Device(index)
    return BatchEvaluator(device, say), Ready(environment=device.environment, chip=device.chip)


def failure(error: Cudal2Error) -> Failed:
    match error:
        case DeviceUnavailable():
            return Failed(kind="device", reason=str(error), log=error.log)
        case MachineError():
            return Failed(kind="machine", reason=str(error), log=error.log)
        case _:
            return Failed(kind="worker", reason=str(error), log=error.log)


if __name__ == "__main__":
    # Without finalisation: destructors of a poisoned context report errors or hang.
    os._exit(main())
