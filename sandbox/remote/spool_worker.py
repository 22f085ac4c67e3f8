"""A worker that serves a folder: it takes calls, answers each with one file, and says that it lives.

Covered: workers beside each other; a call that is no record; an end by a signal, after which its calls wait again; a folder
that is full. One call has the GPU or the processors at a time, while others are built.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import MachineError
from cudal2_agent.sandbox.remote.call_service import CallService
from cudal2_agent.sandbox.remote.calls import FarCall, OpenCall, Opening
from cudal2_agent.sandbox.remote.far_answers import ErrorAnswer, EventAnswer, FarAnswer, OpenedAnswer, WorkerHello
from cudal2_agent.sandbox.remote.spool_folder import SpooledAnswers, SpooledWorker, SpoolFolder

BEAT_S = 10.0
POLL_S = 0.2
AT_ONCE = {"build": 2, "work": 1, "other": 1}


class Served(Record):
    """What a worker did for a folder."""

    calls: int
    seconds: float


class SpoolWorker:
    """`once`: it ends when nothing that it can take has waited for `idle_s`; otherwise when it is interrupted."""

    def __init__(
        self,
        folder: SpoolFolder,
        hello: WorkerHello,
        service: CallService,
        *,
        once: bool,
        idle_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self._folder, self._hello, self._service = folder, hello, service
        self._once, self._idle_s, self._tell = once, idle_s, tell
        self._name = f"{hello.host[:60]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._taken: dict[str, tuple[str, str]] = {}  # by id: the kind and the file of a call in progress
        self._beat, self._served = 0, 0
        self._failure: MachineError | None = None
        self._cancel = threading.Event()

    def serve(self, opening: Opening) -> Served:
        """`opening`: of the sandbox that it announces. Raises: MachineError, UsageError; KeyboardInterrupt."""
        begin_s, state = time.monotonic(), self._announced(opening)
        idle_since_s = time.monotonic()
        beating = threading.Thread(target=self._beats, args=(state,), daemon=True)
        try:
            self._folder.forget_ended(self._hello)
            self._say(state)
            beating.start()
            while self._failure is None:
                self._take(state.need)
                if self._taken:
                    idle_since_s = time.monotonic()
                elif self._once and time.monotonic() - idle_since_s >= self._idle_s:
                    break
                self._wake.wait(POLL_S)
                self._wake.clear()
            if self._failure is not None:
                raise self._failure
        finally:
            self._cancel.set()
            for _, name in list(self._taken.values()):
                self._folder.hand_back(name)
            with suppress(MachineError):
                self._say(state.model_copy(update={"ended": True}))
        return Served(calls=self._served, seconds=time.monotonic() - begin_s)

    def _announced(self, opening: Opening) -> SpooledWorker:
        """What it offers. Raises: what the sandbox raises as it opens."""
        answers: list[FarAnswer] = []
        call = FarCall(id=secrets.token_hex(16), opening=opening, deed=OpenCall())
        self._service.answer(call, answers.append, self._cancel)
        for answer in answers:
            match answer:
                case ErrorAnswer():
                    raise answer.error(self._hello.host)
                case EventAnswer(event=event) if hasattr(event, "message"):
                    self._tell(f"note: {event.message}")
        [opened] = [answer for answer in answers if isinstance(answer, OpenedAnswer)]
        return SpooledWorker(hello=self._hello, opened=opened)

    def _take(self, need: str) -> None:
        for waiting in self._folder.waiting():
            with self._lock:
                busy = sum(kind == waiting.kind for kind, _ in self._taken.values())
            if waiting.need != need or busy >= AT_ONCE[waiting.kind]:
                continue
            call = self._folder.take(waiting.name)
            if call is not None:
                with self._lock:
                    self._taken[call.id] = waiting.kind, waiting.name
                threading.Thread(target=self._answer, args=(call, waiting.name), daemon=True).start()

    def _answer(self, call: FarCall, name: str) -> None:
        answers: list[FarAnswer] = []
        begin_s = time.monotonic()
        self._service.answer(call, answers.append, self._cancel)
        if self._cancel.is_set():
            return
        kept = [answer for answer in answers if not isinstance(answer, EventAnswer)]
        try:
            self._folder.answer(SpooledAnswers(id=call.id, answers=tuple(kept)), name)
            self._served += 1
            self._tell(f"{call.deed.do}: {len(kept)} answers in {time.monotonic() - begin_s:.1f} s")
        except MachineError as exc:
            self._failure = exc
        finally:
            with self._lock:
                self._taken.pop(call.id, None)
            self._wake.set()

    def _beats(self, state: SpooledWorker) -> None:
        while not self._cancel.wait(BEAT_S):
            try:
                self._say(state)
            except MachineError as exc:
                self._failure = exc

    def _say(self, state: SpooledWorker) -> None:
        self._beat += 1
        worked_s = self._service.worked_s()
        mine = {id_: worked_s.get(id_, 0.0) for id_ in list(self._taken)}
        self._folder.put_worker(self._name, state.model_copy(update={"beat": self._beat, "worked_s": mine}))
