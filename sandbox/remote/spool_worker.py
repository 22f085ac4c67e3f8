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
from typing import NamedTuple

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


class _Taken(NamedTuple):
    """A call in progress, and the name of its file."""

    kind: str
    name: str
    cancel: threading.Event


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
        self._taken: dict[str, _Taken] = {}  # by id
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
            for taken in list(self._taken.values()):
                taken.cancel.set()
                self._folder.hand_back(taken.name)
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
                busy = sum(taken.kind == waiting.kind for taken in self._taken.values())
            if waiting.need != need or busy >= AT_ONCE[waiting.kind]:
                continue
            call = self._folder.take(waiting.name)
            if call is not None:
                taken = _Taken(waiting.kind, waiting.name, threading.Event())
                with self._lock:
                    self._taken[call.id] = taken
                threading.Thread(target=self._answer, args=(call, taken), daemon=True).start()

    def _answer(self, call: FarCall, taken: "_Taken") -> None:
        answers: list[FarAnswer] = []
        begin_s = time.monotonic()
        self._service.answer(call, answers.append, taken.cancel)
        if self._cancel.is_set():
            return  # the call waits again
        kept = [answer for answer in answers if not isinstance(answer, EventAnswer)]
        try:
            if not taken.cancel.is_set():
                self._folder.answer(SpooledAnswers(id=call.id, answers=tuple(kept)), taken.name)
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
            for taken in list(self._taken.values()):
                if not self._folder.is_taken(taken.name):  # its agent waits for it no longer
                    taken.cancel.set()
            try:
                self._say(state)
            except MachineError as exc:
                self._failure = exc

    def _say(self, state: SpooledWorker) -> None:
        self._beat += 1
        worked_s = self._service.worked_s()
        mine = {id_: worked_s.get(id_, 0.0) for id_ in list(self._taken)}
        self._folder.put_worker(self._name, state.model_copy(update={"beat": self._beat, "worked_s": mine}))
