"""Asks an OpenAI-compatible server through the `openai` package, with streaming.

Covered: limits on the time to connect, of silence and to the end, also for a server that stalls or trickles; length limits;
retries with back-off and Retry-After; what a server refuses (`request_parameters`), a context that is too small among it;
servers that do not stream; removal of the key from replies, errors, events and logs.
Not covered: instructions in a reply's text, which the reader must treat as data.
"""

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import anyio
import httpx2
from openai import APIConnectionError, APIStatusError, OpenAIError
from pydantic import SecretStr

from cudal2_agent.contract.errors import EndpointError
from cudal2_agent.contract.events import Emit, Notice, Replying
from cudal2_agent.contract.records.exchange import Prompt, ToolCall
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Limit, Reply
from cudal2_agent.policies.chat.server.client import Background, open_client, request_headers
from cudal2_agent.policies.chat.server.key import LogGuard, Redactor, checked_base_url, warn_of_plain_text
from cudal2_agent.policies.chat.server.pending import (
    Answered,
    EmptyReply,
    ModelMissing,
    PendingRequest,
    RefusedTry,
    RequestFailed,
    TryEnd,
    Unusable,
    cut_reply,
    ending_of,
    error_within,
    one_line,
    refused_by,
    unreachable,
)
from cudal2_agent.policies.chat.server.reply_room import PromptTooLong
from cudal2_agent.policies.chat.server.request_parameters import RequestParameters
from cudal2_agent.policies.chat.server.retrying import Again, retrying
from cudal2_agent.policies.chat.server.stream import (
    EmptyStream,
    ProtocolViolation,
    ServerError,
    TooLong,
    read_stream,
)

_log = logging.getLogger(__name__)
_REPORTED_WAIT_S = 5.0
_PROGRESS_S = 0.25
_LISTED_MODELS = 5
_LISTING_S = 5.0
_INTERRUPTED = "the request was interrupted"
_CONNECTION_ERRORS = (httpx2.HTTPError, OSError, anyio.EndOfStream)


class OpenAIServer:
    """A `ChatServer` behind an address. Raises: UsageError for an invalid address or one that contains a key."""

    def __init__(self, options: ChatOptions, key: SecretStr | None, emit: Emit) -> None:
        self._options, self._emit = options, emit
        self._url = checked_base_url(options.base_url)
        self._with_key = key is not None
        self._redact = Redactor(key)
        self._parameters = RequestParameters(options)
        self._without_tools = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._background: Background | None = None
        warn_of_plain_text(self._url, key, emit)
        self._logs = LogGuard(self._redact)
        self._client = open_client(options, self._url, key)
        self._headers = request_headers(key)

    def ask(self, prompt: Prompt, place: ExchangePlace, limit: Limit) -> Reply:
        """See `ChatServer.ask`. Raises: EndpointError."""
        request = PendingRequest(prompt, place, limit)
        background = self._running()
        end = background.run(self._answer(request)) if background else Answered("stopped", _INTERRUPTED)
        if isinstance(end, Unusable):
            raise EndpointError(f"chat server {self._url} {end.problem}")
        too_long = end.too_long
        return Reply(
            status=end.status,
            text=self._redact(request.partial.text or request.partial.refusal),
            reasoning=self._redact(request.partial.reasoning),
            usage=request.usage,
            seconds=time.monotonic() - request.begun,
            problem=one_line(self._redact(end.problem)),
            calls=self._redacted(request.partial.calls) if end.status == "complete" else (),
            prompt_tokens=too_long.tokens if too_long else None,
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

    async def _answer(self, request: PendingRequest) -> Answered | Unusable:
        """Try until a result is final, within the request's time."""
        limit, retries = request.limit, self._options.retries
        on_wait = functools.partial(self._report_wait, request)
        try:
            async with asyncio.timeout(limit.seconds):
                last: TryEnd = await retrying(retries, limit.seconds, on_wait)(self._try, request)
                return await self._conclude(last, request)
        except TimeoutError:
            return Answered("stopped", f"the reply took longer than {limit.seconds:.0f} s")
        except asyncio.CancelledError:
            if not self._closed.is_set():
                raise
            return Answered("stopped", _INTERRUPTED)

    async def _conclude(self, end: TryEnd, request: PendingRequest) -> Answered | Unusable:
        """The result of the request, from that of its last try."""
        if isinstance(end, ModelMissing):
            return Unusable(await self._missing(end.problem))
        if isinstance(end, Again):
            after = f" after {request.tries} tries and {request.waited_s:.0f} s of waiting" if request.tries > 1 else ""
            asked = f"; it asks to wait {end.after_s:.0f} s" if end.after_s else ""
            if end.ends_as == "unusable":
                return Unusable(f"{_verb(end.problem)}{after}{asked}; try again later, or another server with --base-url")
            return Answered(end.ends_as, f"{end.problem}{after}")
        if isinstance(end, RequestFailed):
            return Answered("failed", end.problem, end.too_long)
        return end

    async def _try(self, request: PendingRequest) -> TryEnd:
        """Send the request once. After an empty stream, send it again without streaming to see the error."""
        end = await self._send_as_taken(request, stream=True)
        if not isinstance(end, EmptyReply):
            return end
        _log.debug("%s: an empty stream; asking without streaming", request.place)
        again = await self._send_as_taken(request, stream=False)
        return RequestFailed(again.problem) if isinstance(again, Again | EmptyReply) else again

    async def _send_as_taken(self, request: PendingRequest, *, stream: bool) -> TryEnd | EmptyReply:
        """Send the request, and again for each part of it that the server refuses."""
        limit = request.limit
        while True:
            request.start_over()
            sent = self._parameters.of_request(request.prompt, limit.reply_tokens, stream=stream, calls=limit.calls)
            end = await self._send(request, sent)
            if not isinstance(end, RefusedTry):
                return end
            said = f"{end.name}: {one_line(end.refusal.message)}" if end.refusal.message else end.name
            lesson = self._parameters.learn(end.refusal, sent, request.prompt, limit.reply_tokens)
            if isinstance(lesson, PromptTooLong):
                return RequestFailed(f"{lesson} ({said})" if lesson.context else said, lesson)
            if lesson is None:
                return end.meaning
            if lesson == "tools":
                if self._options.tools == "on":
                    return Unusable(f"refuses tools ({said}); use --chat-tools auto or off")
                self._report_no_tools(said)
            _log.debug("%s: the server refuses %s; sending the request without it or with less", said, lesson)

    async def _send(self, request: PendingRequest, sent: dict[str, Any]) -> Answered | Again | EmptyReply | RefusedTry:
        """The result of one sending. A try that will be repeated costs nothing if no token arrived or was counted."""
        end = await self._attempt(request, sent)
        if isinstance(end, Again | EmptyReply | RefusedTry):
            request.partial.begun = bool(request.partial.characters or request.partial.counts)
        return end

    async def _attempt(self, request: PendingRequest, sent: dict[str, Any]) -> Answered | Again | EmptyReply | RefusedTry:
        partial = request.partial
        # Without streaming the first byte arrives with the last.
        silence_s = self._options.first_byte_s if "stream" in sent else request.limit.seconds
        try:
            async with asyncio.timeout(silence_s) as silence:
                await self._receive(request, sent, silence, silence_s)
        except TimeoutError:  # of the silence; the time-out of the whole reply cancels this task instead
            partial.begun = True  # a silent server may be working, and charge for it
            token = "no token came" if not partial.characters else "nothing more came"
            return Answered("stopped", f"{token} within {silence_s:g} s")
        except APIStatusError as exc:
            return refused_by(exc, self._redact, with_key=self._with_key)
        except APIConnectionError as exc:
            return unreachable(exc, self._redact)
        except TooLong as exc:
            return Answered("stopped", str(exc))
        except EmptyStream as exc:
            return EmptyReply(str(exc))
        except ProtocolViolation as exc:
            return Again(one_line(self._redact(str(exc))), "failed")
        except ServerError as exc:
            return error_within(exc.status, self._redact(exc.said), partial)
        except _CONNECTION_ERRORS as exc:
            said = f"the connection broke in the middle of the reply ({type(exc).__name__})"
            return ending_of(partial) if partial.finish else cut_reply(partial, said)
        except OpenAIError as exc:  # neither a status nor a connection error: the package could not parse the answer
            return Again(one_line(self._redact(str(exc))), "failed")
        return ending_of(partial)

    async def _receive(self, request: PendingRequest, sent: dict[str, Any], silence: asyncio.Timeout, silence_s: float) -> None:
        async with self._client.chat.completions.with_streaming_response.create(
            model=self._options.model, extra_headers=self._headers, **sent
        ) as response:
            request.partial.begun = True
            kind, clock = response.headers.get("content-type", ""), asyncio.get_running_loop()
            reported = 0

            def on_piece() -> None:
                nonlocal reported
                silence.reschedule(clock.time() + silence_s)
                if request.partial.characters > reported:
                    reported = request.partial.characters
                    self._report_progress(request)

            try:
                await read_stream(response.iter_bytes(), request.partial, request.limit.reply_tokens, on_piece)
            except EmptyStream:
                if "event-stream" in kind:
                    raise
                raise ProtocolViolation(
                    f"an answer without a reply, of type {one_line(self._redact(kind)) or 'unknown'}"
                ) from None

    async def _missing(self, said: str) -> str:
        """The meaning of a 404, with the server's list of models if it sends one."""
        model = self._options.model
        try:
            async with asyncio.timeout(_LISTING_S):
                listed = await self._client.models.list(extra_headers=self._headers)
                offered = [one_line(self._redact(one.id)) for one in listed.data]
        except (OpenAIError, *_CONNECTION_ERRORS, TypeError, AttributeError):
            return f"has no model {model!r}, or is not a chat server ({said}); check --model, and that --base-url ends in /v1"
        if model in offered or not offered:
            return f"cannot answer for model {model!r} ({said}); check --model, and that --base-url ends in /v1"
        more = f" and {len(offered) - _LISTED_MODELS} more" if len(offered) > _LISTED_MODELS else ""
        return f"has no model {model!r}; it offers {', '.join(offered[:_LISTED_MODELS])}{more}: choose one with --model"

    def _redacted(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(**{name: self._redact(text) for name, text in call.model_dump().items()}) for call in calls)

    def _report_no_tools(self, said: str) -> None:
        with self._lock:
            known, self._without_tools = self._without_tools, True
        if not known:
            self._emit(Notice(message=f"chat server {self._url} refuses tools ({said}); the run goes on without them"))

    def _report_wait(self, request: PendingRequest, again: Again, seconds: float) -> None:
        request.waited_s += seconds
        _log.debug("%s: %s; trying again in %.1f s", request.place, again.problem, seconds)
        if seconds > _REPORTED_WAIT_S:
            said = f"chat server {self._url} {_verb(again.problem)}; trying again in {seconds:.0f} s"
            self._emit(Notice(message=said))

    def _report_progress(self, request: PendingRequest) -> None:
        now = time.monotonic()
        if now - request.last_report >= _PROGRESS_S:
            request.last_report = now
            number, sample, _ = request.place
            self._emit(Replying(round=number, sample=sample, characters=request.partial.characters))


def _verb(problem: str) -> str:
    return problem if problem.startswith("cannot") else f"answers {problem}"
