"""What an error of the `openai` package means for a request: the one border where they are translated.

Its errors hold the request, whose header holds the key, and the server's words, which may. So they are turned into
values here and never chained to what is raised.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from openai import APIConnectionError, APIStatusError

from policies.chat.server.retrying import Again, wait_asked_for

_LONGEST_MESSAGE = 300
_RETRIED = frozenset({408, 409, 425, 429})
_NO_SUCH_MODEL = frozenset({"model_not_found", "invalid_model", "model_not_available", "unknown_model"})
_NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached", "insufficient_credits"})


@dataclass(frozen=True)
class Failed:
    """This request cannot succeed; others may."""

    problem: str


@dataclass(frozen=True)
class Unusable:
    """No request of this kind can succeed."""

    problem: str


class ModelMissing(Unusable):
    """A 404, or an error that says that there is no such model."""


def failure_of(error: APIStatusError, redact: Callable[[str], str], *, with_key: bool) -> Again | Failed | Unusable:
    """What an HTTP error means. `with_key`: whether the request carried one."""
    code, said = error.status_code, f"HTTP {error.status_code}{_said(error, redact)}"
    if code in {401, 403}:
        remedy = "check the key that CUDAL2_API_KEY or its file gives" if with_key else "it wants a key: set CUDAL2_API_KEY"
        return Unusable(f"refuses the request ({said}); {remedy}")
    if code == 402 or error.code in _NO_MONEY:
        return Unusable(f"wants to be paid ({said}); look at the account that the key belongs to")
    if code == 404 or error.code in _NO_SUCH_MODEL:
        return ModelMissing(said)
    if code in _RETRIED or code >= 500:
        return Again(said, "unusable", wait_asked_for(error.response.headers))
    return Failed(said)


def unreachable(error: APIConnectionError, redact: Callable[[str], str]) -> Again:
    """A connection that could not be made, or broke before the server answered."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    return Again(f"cannot be reached ({one_line(redact(str(cause))) or type(cause).__name__})", "unusable")


def one_line(text: str) -> str:
    """Text of a server, already without the key, fit for an error's one line."""
    plain = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text[: 4 * _LONGEST_MESSAGE]).strip()
    return plain if len(plain) <= _LONGEST_MESSAGE else plain[:_LONGEST_MESSAGE] + "…"


def message_of(error: APIStatusError) -> str:
    """The server's own words, as they came: they may hold the key."""
    body = error.body
    message = body.get("message") or body.get("detail") or body.get("error") if isinstance(body, dict) else body
    return str(message) if message else ""


def _said(error: APIStatusError, redact: Callable[[str], str]) -> str:
    message = message_of(error)
    return f": {one_line(redact(message))}" if message else ""
