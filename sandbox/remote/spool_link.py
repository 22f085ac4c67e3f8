"""A link through a folder: each call is a file, which a worker takes, and so are its answers.

Covered: no worker for hours; one that dies or falls silent with a call; answers that are none; answers that nobody waits for;
agents and workers beside each other; a folder that cannot be written.
"""

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError
from cudal2_agent.contract.foreign import parse_json
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.remote.calls import CloseCall, FarCall, OpenCall
from cudal2_agent.sandbox.remote.far_answers import EndAnswer, FarAnswer, OpenedAnswer
from cudal2_agent.sandbox.remote.limits import limit_s
from cudal2_agent.sandbox.remote.link import LinkLost, WaitTold
from cudal2_agent.sandbox.remote.same_version import require_same
from cudal2_agent.sandbox.remote.spool_folder import Alive, SpooledAgent, SpooledAnswers, SpooledWorker, SpoolFolder, need_of

LEASE_S = 90.0  # without a sign of life of the worker that has a call
SETTLE_S = 5.0  # that a file takes at most to be copied to its place
FIRST_POLL_S, LAST_POLL_S = 0.02, 0.5
_LOOK_S = 5.0  # between two looks at the workers

logger = logging.getLogger(__name__)


class SpoolLink:
    """`wait_s`: until a worker must take a call. Several processes may use one folder."""

    is_slow = True

    def __init__(self, folder: Path, wait_s: float) -> None:
        """Raises: UsageError for a folder that cannot be used."""
        self._folder, self.where, self._wait_s = SpoolFolder(folder), f"spool:{folder}", wait_s
        self.name = secrets.token_hex(8)
        self._stack = ExitStack()
        agent = SpooledAgent(host=socket.gethostname()[:100], pid=os.getpid())
        self._stack.enter_context(self._folder.agent(self.name, agent, Alive()))
        self._chosen: dict[Arch | None, SpooledWorker] = {}
        self._lock = threading.Lock()
        self._queue = _Queue()
        self._seen: dict[str, tuple[int, float]] = {}  # by worker: its last sign of life, and when that was new

    @property
    def arch(self) -> Arch:
        """Of the newest worker. Waits for one. Raises: DeviceUnavailable."""
        return self._worker(None).hello.arch

    @property
    def queued_s(self) -> float:
        return self._queue.seconds

    def new_id(self) -> str:
        return self.name + secrets.token_hex(8)

    def call(self, call: FarCall, cancel: threading.Event | None = None) -> Generator[FarAnswer]:
        """See `Link.call`. A worker that is not there yet opens its sandbox when it comes."""
        arch = call.opening.arch
        if isinstance(call.deed, OpenCall):
            yield _opened(self._worker(arch), arch)
            yield EndAnswer()
            return
        if isinstance(call.deed, CloseCall):
            yield EndAnswer()
            return
        name = self._folder.put_call(call, need_of(self._worker(arch).opened.environment))
        self._queue.enter(call.id)
        try:
            yield from self._awaited(call, name, cancel)
        finally:
            self._queue.leave(call.id)
            self._folder.drop(name)

    def break_off(self, reason: str) -> None:
        """A call through a folder has one file of answers, and ends with it."""

    def close(self) -> None:
        self._stack.close()

    def _awaited(self, call: FarCall, name: str, cancel: threading.Event | None) -> Generator[FarAnswer]:
        told, poll_s = WaitTold(self.where, logger), FIRST_POLL_S
        was_taken, since_s, look_s = False, time.monotonic(), 0.0  # since when it waits, or when its worker last gave a sign
        wrong_s: float | None = None  # since when there is a file of answers that is none: it may be on its way
        while not isinstance(found := self._folder.take_answers(call.id), SpooledAnswers):
            now_s, is_taken = time.monotonic(), self._folder.is_taken(name)
            if cancel is not None and cancel.is_set():
                return
            if isinstance(found, str):
                wrong_s = wrong_s or now_s
                if now_s - wrong_s > SETTLE_S:
                    self._folder.drop_answers(call.id)
                    raise LinkLost(found)
            if is_taken != was_taken:
                was_taken, since_s = is_taken, now_s
                self._queue.enter(call.id, taken=is_taken)
            if not is_taken:
                told.look()
                if now_s - since_s > self._wait_s:
                    raise self._nobody(f"no worker took a call within {self._wait_s:.0f} s (worker_wait_s)")
            elif now_s - look_s >= min(_LOOK_S, LEASE_S / 4):
                look_s, worked_s = now_s, self._worked_s(call.id)
                since_s = now_s if worked_s is not None else since_s
                if now_s - since_s > LEASE_S:
                    raise LinkLost(f"the worker that took a call gave no sign of life for {LEASE_S:.0f} s")
                if (worked_s or 0.0) > (most_s := limit_s(call)):
                    raise LinkLost(f"a call took more than {most_s:.0f} s of work, which is more than all its limits")
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, LAST_POLL_S)
        if not was_taken:  # it was served where this side does not look, or between two looks
            self._queue.worked(found.answers[-1].worked_s if isinstance(found.answers[-1], EndAnswer) else 0.0)
        yield from found.answers

    def _worked_s(self, call_id: str) -> float | None:
        """What a worker that gave a new sign of life has worked on a call; None where none works on it."""
        with self._lock:
            for name, worker in self._folder.workers().items():
                if not isinstance(worker, SpooledWorker) or call_id not in worker.worked_s or worker.ended:
                    continue
                beat, since_s = self._seen.get(name, (-1, 0.0))
                if beat != worker.beat:
                    since_s = time.monotonic()
                    self._seen[name] = worker.beat, since_s
                if time.monotonic() - since_s < LEASE_S / 2:
                    return worker.worked_s[call_id]
        return None

    def _worker(self, arch: Arch | None) -> SpooledWorker:
        """The worker whose environment a run is of: the same in all of a process. Raises: DeviceUnavailable, MachineError."""
        with self._lock:
            if arch not in self._chosen:
                self._chosen[arch] = self._found(arch)
                self._chosen.setdefault(None, self._chosen[arch])
            return self._chosen[arch]

    def _found(self, arch: Arch | None) -> SpooledWorker:
        told, end_s = WaitTold(self.where, logger), time.monotonic() + self._wait_s
        while True:
            fits = list[SpooledWorker]()
            refusal: DeviceUnavailable | None = None
            ended = ""  # why one that has ended could not be used
            for worker in self._folder.workers().values():
                try:
                    require_same(_hello_of(worker), f"a worker of {self.where}")
                except DeviceUnavailable as exc:
                    refusal, ended = (refusal, str(exc)) if _has_ended(worker) else (exc, ended)
                else:
                    fits += [worker] if isinstance(worker, SpooledWorker) and _serves(worker, arch) else []
            chosen = next((one for one in reversed(fits) if not one.ended), fits[-1] if fits else None)
            if chosen is not None:
                return chosen
            if refusal is not None:
                raise refusal
            if time.monotonic() > end_s:
                raise self._nobody(f"no worker came within {self._wait_s:.0f} s (worker_wait_s)")
            told.look(ended)
            time.sleep(LAST_POLL_S / 2)

    def _nobody(self, reason: str) -> MachineError:
        known = [one for one in self._folder.workers().values() if isinstance(one, SpooledWorker)]
        listed = ", ".join(sorted({f"{one.opened.chip.name} at {one.hello.host}{' (ended)' * one.ended}" for one in known}))
        there = (
            f"workers so far: {listed}"
            if listed
            else f"start one with: cudal2-agent worker --spool {self._folder.path} --watch"
        )
        return DeviceUnavailable(f"{self.where}: {reason}; {there}")


class _Queue:
    """Measures the time in which calls wait and no worker has any of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, bool] = {}  # by call
        self._passed_s = 0.0
        self._since_s: float | None = None

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._passed_s + (0.0 if self._since_s is None else time.monotonic() - self._since_s)

    def enter(self, call_id: str, *, taken: bool = False) -> None:
        with self._lock:
            self._taken[call_id] = taken
            self._look()

    def leave(self, call_id: str) -> None:
        with self._lock:
            self._taken.pop(call_id, None)
            self._look()

    def worked(self, seconds: float) -> None:
        """So much of it was work after all."""
        with self._lock:
            self._passed_s -= seconds

    def _look(self) -> None:
        now_s, queues = time.monotonic(), bool(self._taken) and not any(self._taken.values())
        self._passed_s += 0.0 if self._since_s is None else now_s - self._since_s
        self._since_s = now_s if queues else None


def _serves(worker: SpooledWorker, arch: Arch | None) -> bool:
    """The emulator serves every target."""
    return arch is None or not worker.opened.can_measure or worker.opened.chip.arch is arch


def _opened(worker: SpooledWorker, arch: Arch) -> OpenedAnswer:
    opened = worker.opened
    return opened if opened.can_measure else opened.model_copy(update={"chip": REFERENCE_CHIPS[arch]})


def _hello_of(worker: SpooledWorker | bytes) -> str:
    """The hello of a worker, as far as it can be read where another version wrote it."""
    return json.dumps(_told_by(worker).get("hello")) if isinstance(worker, bytes) else worker.hello.model_dump_json()


def _has_ended(worker: SpooledWorker | bytes) -> bool:
    return bool(_told_by(worker).get("ended")) if isinstance(worker, bytes) else worker.ended


def _told_by(content: bytes) -> dict[str, Any]:
    try:
        found = parse_json(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
