"""A link to a service in this process. What crosses is JSON, as on a stream or in a folder."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.remote.call_service import CallService
from cudal2_agent.sandbox.remote.calls import TO_WORKER, FarCall, Opening
from cudal2_agent.sandbox.remote.far_answers import FROM_WORKER, CallAnswer, EndAnswer, ErrorAnswer, FarAnswer, MachineCheck
from cudal2_agent.sandbox.remote.frames import framed, framed_text, record_of

CHECK = MachineCheck(name="GPU", ok=True, needed=False, detail="scripted")


class ThroughJson:
    """Each call is answered by a thread of its own."""

    where = "here"
    arch = Arch.SM_90A
    queued_s = 0.0
    is_slow = False

    def __init__(self, service: CallService) -> None:
        self._service = service
        self.calls: list[FarCall] = []
        self.broken: list[str] = []

    def call(self, call: FarCall, cancel: threading.Event | None = None) -> Generator[FarAnswer]:
        self.calls.append(call)
        answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        asked = record_of(TO_WORKER, framed_text(framed(call)) or b"")
        assert isinstance(asked, FarCall)

        def say(answer: FarAnswer) -> None:
            answers.put(framed(CallAnswer(id=asked.id, answer=answer)))

        threading.Thread(target=self._service.answer, args=(asked, say, cancel or threading.Event()), daemon=True).start()
        while True:
            told = record_of(FROM_WORKER, framed_text(answers.get(timeout=20)) or b"")
            assert isinstance(told, CallAnswer)
            yield told.answer
            if isinstance(told.answer, EndAnswer | ErrorAnswer):
                return

    def new_id(self) -> str:
        return f"{len(self.calls):032x}"

    def break_off(self, reason: str) -> None:
        self.broken.append(reason)

    def close(self) -> None:
        self._service.close()


def service_over(sandbox: Any, on_open: Callable[[Opening, Any, Any], None] = lambda *_: None) -> CallService:
    """A service that opens a scripted sandbox. `on_open`: may raise, emit, or tune."""

    @contextmanager
    def open_local(opening: Opening, emit: Any, tuned: Any) -> Iterator[Any]:
        on_open(opening, emit, tuned)
        try:
            yield sandbox
        finally:
            sandbox.close()

    return CallService(open_local, lambda: [CHECK])


def raising(error: Cudal2Error) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail
