"""A request in flight, and the ways in which a try of it can end. Only this module translates errors of the `openai` package.

An error of the package contains the request, whose header contains the key, and the server's message, which may contain
it. An error is therefore never chained to an exception that is raised.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from openai import APIConnectionError, APIStatusError

from cudal2_agent.contract.records.exchange import Prompt, ReplyStatus, Usage
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Limit
from cudal2_agent.policies.chat.server.reply_room import PromptTooLong
from cudal2_agent.policies.chat.server.request_parameters import Refusal
from cudal2_agent.policies.chat.server.retrying import Again, wait_asked_for
from cudal2_agent.policies.chat.server.size_errors import read_size
from cudal2_agent.policies.chat.server.stream import PartialReply, said_in

_MAX_MESSAGE_CHARS = 300
_RETRIED = frozenset({408, 409, 425, 429})
_NO_SUCH_MODEL = frozenset({"model_not_found", "invalid_model", "model_not_available", "unknown_model"})
_NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached", "insufficient_credits"})


@dataclass(frozen=True)
class RequestFailed:
    """This request cannot succeed. Other requests may. `too_long`: its prompt is too long, and how long one may be."""

    problem: str
    too_long: PromptTooLong | None = None


@dataclass(frozen=True)
class Unusable:
    """No request to this server can succeed."""

    problem: str


class ModelMissing(Unusable):
    """The server has no such model: status 404, or an error code that says so."""


@dataclass(frozen=True)
class RefusedTry:
    """A request that the server answered with an error of this name. `meaning`: where no part of the request caused it."""

    name: str
    refusal: Refusal
    meaning: "Again | RequestFailed | Unusable"


def refused_by(error: APIStatusError, redact: Callable[[str], str], *, with_key: bool) -> RefusedTry:
    """What an HTTP error says. `with_key`: whether the request had a key."""
    body = error.body[0] if isinstance(error.body, list) and error.body else error.body
    message = redact(said_in(body))
    param = body.get("param") if isinstance(body, dict) else None
    name = f"HTTP {error.status_code}"
    refusal = Refusal(error.status_code, redact(param) if isinstance(param, str) else "", message)
    return RefusedTry(name, refusal, _failure_of(error, f"{name}: {one_line(message)}" if message else name, with_key=with_key))


def error_within(status: int, said: str, partial: PartialReply) -> "RefusedTry | Answered | Again":
    """What an error inside a reply says. `status`: the HTTP status that it names; 200 for none."""
    problem = f"the server reported an error within the reply: {one_line(said)}"
    if not partial.characters:
        return RefusedTry("an error within the reply", Refusal(status, "", said), Again(problem, "failed"))
    full = read_size(said, None, 0)  # LM Studio says so where a reply reaches the end of the context
    return Answered("truncated" if full and full.context else "cut", problem)


def _failure_of(error: APIStatusError, said: str, *, with_key: bool) -> Again | RequestFailed | Unusable:
    code = error.status_code
    if code in {401, 403}:
        remedy = "check the key in CUDAL2_API_KEY or its file" if with_key else "it requires a key: set CUDAL2_API_KEY"
        return Unusable(f"refuses the request ({said}); {remedy}")
    if code == 402 or error.code in _NO_MONEY:
        return Unusable(f"requires payment ({said}); check the account that the key belongs to")
    if code == 404 or error.code in _NO_SUCH_MODEL:
        return ModelMissing(said)
    if code in _RETRIED or code >= 500:
        return Again(said, "unusable", wait_asked_for(error.response.headers))
    return RequestFailed(said)


def unreachable(error: APIConnectionError, redact: Callable[[str], str]) -> Again:
    """A connection that failed, or that closed before the server answered."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    return Again(f"cannot be reached ({one_line(redact(str(cause))) or type(cause).__name__})", "unusable")


def one_line(text: str) -> str:
    """A server's text on one line, for an error message. The key must be removed already."""
    plain = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text[: 4 * _MAX_MESSAGE_CHARS]).strip()
    return plain if len(plain) <= _MAX_MESSAGE_CHARS else plain[:_MAX_MESSAGE_CHARS] + "…"


@dataclass(frozen=True)
class Answered:
    """A try that produced the reply, complete or not. `too_long`: as in `RequestFailed`."""

    status: ReplyStatus
    problem: str
    too_long: PromptTooLong | None = None


@dataclass(frozen=True)
class EmptyReply:
    """A stream without a reply."""

    problem: str


TryEnd = Answered | RequestFailed | Again | Unusable


@dataclass
class PendingRequest:
    """A request in flight: its limit, the reply so far, and the tokens of tries that were given up."""

    prompt: Prompt
    place: ExchangePlace
    limit: Limit
    partial: PartialReply = field(default_factory=PartialReply)
    wasted: list[Usage] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0
    tries: int = 0
    last_report: float = 0.0

    def start_over(self) -> None:
        if self.partial.begun:
            self.wasted.append(self.partial.usage(self.prompt))
        self.partial = PartialReply()
        self.tries += 1

    @property
    def usage(self) -> Usage:
        """The tokens of all tries; none if the server accepted no try."""
        usages = [*self.wasted, *([self.partial.usage(self.prompt)] if self.partial.begun else [])]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            counted="server" if usages and all(usage.counted == "server" for usage in usages) else "estimate",
        )


def ending_of(partial: PartialReply) -> Answered | Again:
    """The result of a try whose reply has stopped arriving."""
    status, problem = partial.ending()
    return cut_reply(partial, problem) if status == "cut" else Answered(status, problem)


def cut_reply(partial: PartialReply, problem: str) -> Answered | Again:
    """A reply that is cut before its first token is requested again. A later cut keeps the text."""
    return Answered("cut", problem) if partial.characters else Again(problem, "cut")
