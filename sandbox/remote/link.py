"""What a sandbox asks of its link to a worker elsewhere."""

import logging
import time
from collections.abc import Generator
from threading import Event
from typing import Protocol

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.remote.calls import FarCall
from cudal2_agent.sandbox.remote.far_answers import FarAnswer

FIRST_TOLD_S, MOST_TOLD_S = 10.0, 300.0


class LinkLost(Exception):
    """The worker was lost in the middle of a call, or broke the protocol. The message says how. The link is usable again."""


class Link(Protocol):
    """Carries calls to a worker and answers back; safe to call from several threads. `where`: in words, for messages.

    `arch`: of tasks whose user names none. `is_slow`: whether an answer may take minutes, whatever is asked.
    """

    @property
    def where(self) -> str: ...
    @property
    def is_slow(self) -> bool: ...
    @property
    def arch(self) -> Arch: ...
    @property
    def queued_s(self) -> float:
        """Seconds so far in which a worker was waited for and none worked, after the first one was there."""
        ...

    def new_id(self) -> str:
        """The id of a call, which nobody can guess."""
        ...

    def call(self, call: FarCall, cancel: Event | None = None) -> Generator[FarAnswer]:
        """The answers, up to the one before `EndAnswer`, which ends the iterator as an answer of its own.

        Ends early once `cancel` is set; a caller that stops early closes the iterator. Raises: LinkLost; DeviceUnavailable
        where there is no worker.
        """
        ...

    def break_off(self, reason: str) -> None:
        """End a worker whose answers make no sense; every call in progress raises LinkLost."""
        ...

    def close(self) -> None: ...


class WaitTold:
    """Says that a worker is waited for: after 10 s, and then each time that the wait has doubled, at least every 5 minutes."""

    def __init__(self, where: str, logger: logging.Logger, what: str = "a worker") -> None:
        self._where, self._logger, self._what = where, logger, what
        self._begin_s = time.monotonic()
        self._due_s = FIRST_TOLD_S

    def look(self, beside: str = "") -> None:
        """`beside`: why one that was there cannot be used."""
        waited_s = time.monotonic() - self._begin_s
        if waited_s >= self._due_s:
            self._due_s = waited_s + min(waited_s, MOST_TOLD_S)
            more = f"; {beside}" if beside else ""
            self._logger.warning("still waiting for %s of %s, for %.0f s so far%s", self._what, self._where, waited_s, more)
