"""Asks an OpenAI-compatible server through the `openai` package, streaming.

Covered: time limits (connecting, the first token, the whole reply) that hold however a server stalls or trickles; length
limits; retries with back-off and Retry-After; parameters that a server does not take; servers that do not stream; the key
kept out of replies, errors, events and logs.
Not covered: what a reply's text asks for; it is data to whoever reads it.
"""

import asyncio
import functools
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import httpx2
from openai import APIConnectionError, APIStatusError, OpenAIError
from pydantic import SecretStr

from contract.errors import EndpointError
from contract.events import Emit, Notice, Replying
from contract.exchange import Prompt, Usage
from contract.options import ChatOptions
from policies.chat.server.api_errors import Failed, ModelMissing, Unusable, failure_of, message_of, one_line, unreachable
from policies.chat.server.background import Background
from policies.chat.server.client import open_client, request_headers
from policies.chat.server.key import Redactor, checked_base_url, warn_of_plain_text
from policies.chat.server.log_guard import LogGuard
from policies.chat.server.protocol import Limit, Place, Reply
from policies.chat.server.request_parameters import Parameters
from policies.chat.server.retrying import Again, retrying
from policies.chat.server.stream import Draft, EmptyStream, Malformed, ServerSaid, TooLong, read_body, read_stream

_log = logging.getLogger(__name__)
_TELL_WAIT_S = 5.0
_REPLYING_S = 0.25
_LISTED_MODELS = 5
_LISTING_S = 5.0
_INTERRUPTED = "the request was interrupted"
_CONNECTION_ERRORS = (httpx2.HTTPError, OSError, anyio.EndOfStream)

Status = Literal["complete", "truncated", "stopped", "cut", "refused", "failed"]


@dataclass(frozen=True)
class _Ended:
    """A try whose reply counts, whole or not."""

    status: Status
    problem: str


@dataclass(frozen=True)
class _Empty:
    """A stream that held no reply."""

    problem: str


_Outcome = _Ended | Failed | Again | Unusable


@dataclass
class _Request:
    """One request under way: what it may spend, the reply so far, and what earlier tries wrote in vain."""

    prompt: Prompt
    place: Place
    limit: Limit
    draft: Draft = field(default_factory=Draft)
    wasted: list[Usage] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0
    tries: int = 0
    told: float = 0.0

    def start_over(self) -> None:
        if self.draft.begun:
            self.wasted.append(self.draft.usage(self.prompt))
        self.draft = Draft()
        self.tries += 1

    @property
    def usage(self) -> Usage:
        """All that the tries took; nothing where the server took none of them up."""
        usages = [*self.wasted, *([self.draft.usage(self.prompt)] if self.draft.begun else [])]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            counted="server" if usages and all(usage.counted == "server" for usage in usages) else "estimate",
        )


class OpenAIServer:
    """`policies.chat.server.protocol.ChatServer`. Raises: UsageError for an address that is none or carries a key."""

    def __init__(self, options: ChatOptions, key: SecretStr | None, emit: Emit) -> None:
        self._options, self._emit = options, emit
        self._url = checked_base_url(options.base_url)
        self._with_key = key is not None
        self._redact = Redactor(key)
        self._parameters = Parameters(options)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._background: Background | None = None
        warn_of_plain_text(self._url, key, emit)
        self._logs = LogGuard(self._redact)
        self._client = open_client(options, self._url, key)
        self._headers = request_headers(key)

    def ask(self, prompt: Prompt, place: Place, limit: Limit) -> Reply:
        """See `ChatServer.ask`. Raises: EndpointError."""
        request = _Request(prompt, place, limit)
        background = self._running()
        outcome = background.run(self._answer(request)) if background else _Ended("stopped", _INTERRUPTED)
        if isinstance(outcome, Unusable):
            raise EndpointError(f"chat server {self._url} {outcome.problem}")
        return Reply(
            status=outcome.status,
            text=self._redact(request.draft.text or request.draft.refusal),
            reasoning=self._redact(request.draft.reasoning),
            usage=request.usage,
            seconds=time.monotonic() - request.begun,
            problem=one_line(self._redact(outcome.problem)),
        )

    def close(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            background = self._background
        if background is not None:
            background.close(self._client.close())
        self._logs.close()

    def _running(self) -> Background | None:
        with self._lock:
            if self._background is None and not self._closed.is_set():
                self._background = Background()
            return None if self._closed.is_set() else self._background

    async def _answer(self, request: _Request) -> _Ended | Unusable:
        """Try until an outcome counts, within the request's time."""
        limit, retries = request.limit, self._options.retries
        tell = functools.partial(self._tell_wait, request)
        try:
            async with asyncio.timeout(limit.seconds):
                outcome: _Outcome = await retrying(retries, limit.seconds, tell)(self._try, request)
                return await self._conclude(outcome, request)
        except TimeoutError:
            return _Ended("stopped", f"the reply took longer than {limit.seconds:.0f} s")
        except asyncio.CancelledError:
            if not self._closed.is_set():
                raise
            return _Ended("stopped", _INTERRUPTED)

    async def _conclude(self, outcome: _Outcome, request: _Request) -> _Ended | Unusable:
        """What the last try comes to when no other follows."""
        if isinstance(outcome, ModelMissing):
            return Unusable(await self._missing(outcome.problem))
        if isinstance(outcome, Again):
            after = f" after {request.tries} tries and {request.waited_s:.0f} s of waiting" if request.tries > 1 else ""
            asked = f"; it asks to wait {outcome.after_s:.0f} s" if outcome.after_s else ""
            if outcome.ends_as == "unusable":
                return Unusable(f"{_verb(outcome.problem)}{after}{asked}; try again later, or another server with --base-url")
            return _Ended(outcome.ends_as, f"{outcome.problem}{after}")
        if isinstance(outcome, Failed):
            return _Ended("failed", outcome.problem)
        return outcome

    async def _try(self, request: _Request) -> _Outcome:
        """Send the request once; after an empty stream, which hides why, once more without streaming."""
        outcome = await self._send_as_taken(request, stream=True)
        if not isinstance(outcome, _Empty):
            return outcome
        _log.debug("%s: an empty stream; asking without streaming", request.place)
        again = await self._send_as_taken(request, stream=False)
        return Failed(again.problem) if isinstance(again, Again | _Empty) else again

    async def _send_as_taken(self, request: _Request, *, stream: bool) -> _Outcome | _Empty:
        """Send the request once, or once more for each parameter that the server turns out not to take as it was."""
        while True:
            request.start_over()
            sent = self._parameters.of_request(request.limit.reply_tokens, stream=stream)
            outcome = await self._send(request, sent)
            if not isinstance(outcome, APIStatusError):
                return outcome
            said = self._redact(message_of(outcome))
            name = self._parameters.learn(sent, outcome.param, said) if outcome.status_code in {400, 422} else None
            if name is None:
                return failure_of(outcome, self._redact, with_key=self._with_key)
            _log.debug("server does not take %s = %s; sending without it, or less", name, sent[name])

    async def _send(self, request: _Request, sent: dict[str, Any]) -> _Ended | Again | _Empty | APIStatusError:
        """What one sending comes to. A try that is to be repeated took nothing where no token came and none was counted."""
        outcome = await self._attempt(request, sent)
        if isinstance(outcome, Again | _Empty):
            request.draft.begun = bool(request.draft.characters or request.draft.counts)
        return outcome

    async def _attempt(self, request: _Request, sent: dict[str, Any]) -> _Ended | Again | _Empty | APIStatusError:
        draft = request.draft
        first_byte_s = self._options.first_byte_s if "stream" in sent else request.limit.seconds  # else all comes at once
        try:
            async with asyncio.timeout(first_byte_s) as first:
                await self._receive(request, sent, first)
        except TimeoutError:  # of the first token; the whole reply's cancels this task instead
            draft.begun = True  # a silent server may be at work, and be paid for it
            return _Ended("stopped", f"no token came within {first_byte_s:g} s")
        except APIStatusError as exc:
            return exc
        except APIConnectionError as exc:
            return unreachable(exc, self._redact)
        except TooLong as exc:
            return _Ended("stopped", str(exc))
        except EmptyStream as exc:
            return _Empty(str(exc))
        except Malformed as exc:
            return Again(one_line(self._redact(str(exc))), "failed")
        except ServerSaid as exc:
            said = f"the server reported an error within the reply: {one_line(self._redact(str(exc)))}"
            return _Ended("cut", said) if draft.characters else Again(said, "failed")
        except _CONNECTION_ERRORS as exc:
            said = f"the connection broke in the middle of the reply ({type(exc).__name__})"
            return _ending(draft) if draft.finish else _cut(draft, said)
        except OpenAIError as exc:  # no status and no connection: the package could not read what came
            return Again(one_line(self._redact(str(exc))), "failed")
        return _ending(draft)

    async def _receive(self, request: _Request, sent: dict[str, Any], first: asyncio.Timeout) -> None:
        messages: list[Any] = [message.model_dump() for message in request.prompt.messages]
        async with self._client.chat.completions.with_streaming_response.create(
            model=self._options.model, messages=messages, extra_headers=self._headers, **sent
        ) as response:
            request.draft.begun = True
            kind, pieces = response.headers.get("content-type", ""), response.iter_bytes()
            if "json" in kind:
                await read_body(pieces, request.draft)
                return

            def on_text() -> None:
                first.reschedule(None)
                self._tell_progress(request)

            try:
                await read_stream(pieces, request.draft, request.limit.reply_tokens, on_text)
            except EmptyStream:
                if "event-stream" in kind:
                    raise
                raise Malformed(f"an answer without a reply, of type {one_line(self._redact(kind)) or 'unknown'}") from None

    async def _missing(self, said: str) -> str:
        """What a 404 means, with the models that the server offers where it says so."""
        model = self._options.model
        try:
            async with asyncio.timeout(_LISTING_S):
                listed = await self._client.models.list(extra_headers=self._headers)
                offered = [one_line(self._redact(one.id)) for one in listed.data]
        except (OpenAIError, *_CONNECTION_ERRORS, TypeError, AttributeError):
            return f"has no model {model!r}, or is no such server ({said}); check --model, and that --base-url ends in /v1"
        if model in offered or not offered:
            return f"cannot answer for model {model!r} ({said}); check --model, and that --base-url ends in /v1"
        more = f" and {len(offered) - _LISTED_MODELS} more" if len(offered) > _LISTED_MODELS else ""
        return f"has no model {model!r}; it offers {', '.join(offered[:_LISTED_MODELS])}{more}: choose one with --model"

    def _tell_wait(self, request: _Request, again: Again, seconds: float) -> None:
        request.waited_s += seconds
        _log.debug("%s: %s; trying again in %.1f s", request.place, again.problem, seconds)
        if seconds > _TELL_WAIT_S:
            said = f"chat server {self._url} {_verb(again.problem)}; trying again in {seconds:.0f} s"
            self._emit(Notice(message=said))

    def _tell_progress(self, request: _Request) -> None:
        now = time.monotonic()
        if now - request.told >= _REPLYING_S:
            request.told = now
            number, sample, _ = request.place
            self._emit(Replying(round=number, sample=sample, characters=request.draft.characters))


def _ending(draft: Draft) -> _Ended | Again:
    status, problem = draft.ending()
    return _cut(draft, problem) if status == "cut" else _Ended(status, problem)


def _cut(draft: Draft, problem: str) -> _Ended | Again:
    """A reply cut before its first token is asked for again; what did come is kept."""
    return _Ended("cut", problem) if draft.characters else Again(problem, "cut")


def _verb(problem: str) -> str:
    return problem if problem.startswith("cannot") else f"answers {problem}"
