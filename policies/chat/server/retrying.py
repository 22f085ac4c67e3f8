"""Retries of a request: exponential back-off with jitter, or the wait that the server asks for."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

_FIRST_S, _MAX_S, _JITTER_S = 0.5, 30.0, 0.25


@dataclass(frozen=True)
class Again:
    """A failed try that may succeed later. `after_s`: the wait that the server asked for.

    `ends_as`: how the request ends when no try is left. `unusable` concerns the server, not the request.
    """

    problem: str
    ends_as: Literal["failed", "cut", "unusable"]
    after_s: float | None = None


def retrying(retries: int, seconds: float, on_wait: Callable[[Again, float], None]) -> AsyncRetrying:
    """Retries while the result is an `Again`, tries are left and the wait fits in the time. `on_wait` is called before a wait.

    The call returns the result of the last try.
    """
    backing_off = wait_exponential(multiplier=_FIRST_S, max=_MAX_S)
    jitter = wait_random(0, _JITTER_S)

    def wait(state: RetryCallState) -> float:
        asked = _outcome(state).after_s
        return jitter(state) + (backing_off(state) if asked is None else asked)

    return AsyncRetrying(
        retry=retry_if_result(lambda outcome: isinstance(outcome, Again)),
        stop=stop_after_attempt(retries + 1) | stop_before_delay(seconds),
        wait=wait,
        before_sleep=lambda state: on_wait(_outcome(state), state.upcoming_sleep),
        retry_error_callback=_outcome,
    )


def wait_asked_for(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The wait that `retry-after-ms` or `Retry-After` (seconds or a date) asks for; None if there is neither."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(0.0, seconds * unit)
    try:
        date = parsedate_to_datetime(headers["retry-after"])
        return max(0.0, date.timestamp() - (time.time() if now is None else now))
    except (KeyError, ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _outcome(state: RetryCallState) -> Any:
    assert state.outcome is not None  # tenacity calls this after a try only
    return state.outcome.result()
