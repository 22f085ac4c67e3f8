"""Reads a reply as it arrives: server-sent events, or one JSON body from a server that does not stream.

No part of a server's data is assumed to have the form that the protocol specifies.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from cudal2_agent.contract.records.exchange import Prompt, ToolCall, Usage
from cudal2_agent.policies.chat.server.tool_calls import PartialCalls, joined
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN, estimate_usage

MAX_CHARS = 2_000_000
_MAX_EVENT_BYTES = 8_000_000
_SHOWN_BYTES = 4000  # of invalid JSON; more than a message shows, so that a key inside is complete when it is redacted
_SLACK = 2  # factor on the estimated size of a reply
_DONE = b"[DONE]\n"
_OPEN, _CLOSE = "<think>", "</think>"


class ProtocolViolation(Exception):
    """The data does not follow the protocol. The message says what is wrong."""


class EmptyStream(Exception):
    """A stream ended without a choice."""


class ServerError(Exception):
    """The server reported an error inside a reply. The message is the server's."""


@dataclass
class PartialReply:
    """A reply so far. `begun`: the server accepted the request. `chosen`: a choice arrived, possibly only its end.

    `finish`: the server's finish reason. `ended`: the server sent its end mark.
    """

    parts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    called: PartialCalls = field(default_factory=PartialCalls)
    characters: int = 0
    begun: bool = False
    chosen: bool = False
    finish: str = ""
    ended: bool = False
    counts: tuple[int, int] | None = None

    def add(self, value: Any) -> None:
        """Add a chunk or a whole body. Raises: ProtocolViolation, ServerError."""
        if not isinstance(value, dict):
            raise ProtocolViolation("a chunk that is not an object")
        if value.get("error"):
            raise ServerError(_error_message(value["error"]))
        self.counts = _counts(value.get("usage")) or self.counts
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        self.chosen = True
        self._add_delta(choice.get("delta") or choice.get("message"))
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]

    def _add_delta(self, delta: Any) -> None:
        if not isinstance(delta, dict):
            return
        thought = _plain(delta.get("reasoning_content")) or _plain(delta.get("reasoning"))
        for kept, text in (
            (self.parts, _plain(delta.get("content"))),
            (self.thoughts, thought),
            (self.refusals, _plain(delta.get("refusal"))),
        ):
            if text:
                kept.append(text)
                self.characters += len(text)
        self.characters += self.called.add(delta.get("tool_calls"))

    @property
    def text(self) -> str:
        return split_thoughts(joined(self.parts))[1]

    @property
    def reasoning(self) -> str:
        return joined(self.thoughts) + split_thoughts(joined(self.parts))[0]

    @property
    def refusal(self) -> str:
        return joined(self.refusals)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.called.calls()

    def usage(self, prompt: Prompt) -> Usage:
        """The server's token count; an estimate if it sent none, or 0 for a reply with text."""
        if self.counts is None or (self.characters and not self.counts[1]):
            arguments = "".join(call.arguments for call in self.calls)
            return estimate_usage(prompt, "".join(self.parts), "".join(self.thoughts), "".join(self.refusals), arguments)
        return Usage(prompt_tokens=self.counts[0], completion_tokens=self.counts[1], counted="server")

    def ending(self) -> tuple[Literal["complete", "truncated", "cut", "refused"], str]:
        """How the reply ended, and the reason in one line."""
        if self.refusal or self.finish == "content_filter":
            return "refused", self.refusal or "the server's content filter ended the reply"
        if self.finish == "length":
            return "truncated", "the reply reached its token limit"
        if not self.finish and not self.ended:
            return "cut", "the connection closed before the reply's end"
        return "complete", ""


class TooLong(Exception):
    """The reply exceeds a limit. The message names the limit."""


async def read_stream(
    pieces: AsyncIterator[bytes], reply: PartialReply, reply_tokens: int, on_text: Callable[[], None]
) -> None:
    """Add a stream's events to a reply until it ends. Raises: EmptyStream, ProtocolViolation, ServerError, TooLong."""
    max_chars = min(MAX_CHARS, int(_SLACK * reply_tokens * CHARS_PER_TOKEN))
    async for data in _events(pieces):
        if data == _DONE:
            reply.ended = True
            break
        before = reply.characters
        reply.add(_parsed(data))
        if reply.characters > max_chars:
            raise TooLong(f"the reply passed {max_chars} characters, twice its limit of {reply_tokens} tokens or more")
        if reply.characters > before:
            on_text()
    if not reply.chosen:
        raise EmptyStream("a stream without a reply; is the prompt longer than the model's context?")


async def read_body(pieces: AsyncIterator[bytes], reply: PartialReply) -> None:
    """Add a whole JSON body to a reply. Raises: ProtocolViolation, ServerError, TooLong."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > _MAX_EVENT_BYTES:
            raise TooLong(f"the reply passed {_MAX_EVENT_BYTES} bytes")
    value = _parsed(bytes(body))
    reply.add(value)
    if not value.get("choices"):
        raise ProtocolViolation("a body without choices")
    reply.ended = True
    if reply.characters > MAX_CHARS:
        raise TooLong(f"the reply passed {MAX_CHARS} characters")


def split_thoughts(text: str) -> tuple[str, str]:
    """(reasoning, rest) of a reply that starts with reasoning between tags. Some servers omit the opening tag."""
    opened = text.lstrip().startswith(_OPEN)
    thoughts, close, rest = text.partition(_CLOSE)
    if not opened and (not close or _OPEN in thoughts):
        return "", text
    return thoughts.lstrip().removeprefix(_OPEN).strip(), rest.lstrip()


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events, without an event that the end of the stream cuts off. Raises: TooLong."""
    data = bytearray()
    async for line in _lines(pieces):
        if line.startswith(b"data:"):
            data += line[len(b"data:") :].strip() + b"\n"
            if len(data) > _MAX_EVENT_BYTES:
                raise TooLong(f"an event passed {_MAX_EVENT_BYTES} bytes")
            if data == _DONE:
                yield _DONE
        elif not line.strip() and data:
            yield bytes(data)
            data.clear()


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of a stream that end in LF, CR or CRLF. Raises: TooLong."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" in piece or b"\r" in piece:
            lines = bytes(rest).splitlines(keepends=True)
            rest = bytearray() if lines[-1].endswith(b"\n") else bytearray(lines.pop())
            for line in lines:
                yield line
        if len(rest) > _MAX_EVENT_BYTES:
            raise TooLong(f"an event passed {_MAX_EVENT_BYTES} bytes")
    if rest.endswith(b"\r"):
        yield bytes(rest)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ProtocolViolation(f"invalid JSON: {content[:_SHOWN_BYTES].decode(errors='replace')}") from None


def _plain(value: Any) -> str:
    """The text of a field: a string, a list of parts with text, or anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_plain(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _counts(usage: Any) -> tuple[int, int] | None:
    if not isinstance(usage, dict):
        return None
    prompt_tokens, reply_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not (isinstance(prompt_tokens, int) and isinstance(reply_tokens, int) and min(prompt_tokens, reply_tokens) >= 0):
        return None
    return int(prompt_tokens), int(reply_tokens)


def _error_message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)
