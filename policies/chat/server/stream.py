"""Reads a reply as it arrives: server-sent events, JSON lines, or one JSON body from a server that does not stream.

The form is read from the first byte, since servers name wrong content types. No part of a server's data is assumed to have the
form that the protocol specifies.
"""

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable
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
_BLANK = b" \t\r\n\xef\xbb\xbf"
# The finish reasons of servers other than OpenAI's mean the same as these. What is not listed is a complete reply.
_AT_LIMIT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
_FILTERED = frozenset({"content_filter", "safety", "sensitive", "recitation", "refusal"})
_BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "network_error", "insufficient_system_resource"})


class ProtocolViolation(Exception):
    """The data does not follow the protocol. The message says what is wrong."""


class EmptyStream(Exception):
    """A stream ended without a choice."""


class ServerError(Exception):
    """The server reported an error inside a reply. `said`: its message. `status`: the HTTP status that it names; else 200."""

    def __init__(self, error: Any) -> None:
        code = error.get("code") if isinstance(error, dict) else None
        self.said = said_in(error)
        self.status = code if isinstance(code, int) and 400 <= code < 600 else 200
        super().__init__(self.said)


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
        choices = value.get("choices")
        if value.get("error") or (not choices and _is_error(value)):
            raise ServerError(value.get("error") or value)
        self.counts = _counts(value.get("usage")) or self.counts
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
    def all_reasoning(self) -> bool:
        """Whether reasoning arrived and nothing else."""
        return bool(self.reasoning) and not (self.text.strip() or self.refusals or self.calls)

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
        finish = self.finish.lower()
        if self.refusal or finish in _FILTERED:
            return "refused", self.refusal or "the server's content filter ended the reply"
        if finish in _AT_LIMIT:
            said = "is all reasoning and no answer: it reached" if self.all_reasoning else "reached"
            return "truncated", f"the reply {said} its token limit"
        if finish in _BROKEN:
            return "cut", f"the server ended the reply with finish_reason {self.finish!r}"
        if not self.finish and not self.ended:
            return "cut", "the connection closed before the reply's end"
        return "complete", ""


class TooLong(Exception):
    """The reply exceeds a limit. The message names the limit."""


async def read_stream(
    pieces: AsyncIterator[bytes], reply: PartialReply, reply_tokens: int, on_piece: Callable[[], None]
) -> None:
    """Add what arrives to a reply until it ends. `on_piece`: called for all that arrives, comments included.

    Raises: EmptyStream, ProtocolViolation, ServerError, TooLong.
    """
    max_chars = min(MAX_CHARS, int(_SLACK * reply_tokens * CHARS_PER_TOKEN))
    read = _Arriving(pieces, on_piece)
    first = await read.first()
    is_json = first in b"{[" and first != b""
    async for data in _json_values(read) if is_json else _events(read):
        if data == _DONE:
            reply.ended = True
            break
        reply.add(_parsed(data, listed=is_json))
        if reply.characters > max_chars:
            raise TooLong(f"the reply passed {max_chars} characters, twice its limit of {reply_tokens} tokens or more")
    if is_json and not reply.chosen:
        raise ProtocolViolation("a body without choices")
    if not reply.chosen:
        raise EmptyStream("a stream without a reply; is the prompt longer than the model's context?")
    reply.ended = reply.ended or is_json  # the end of a body is its end mark; a body that breaks off is another error


class _Arriving:
    """The pieces of an answer from its first visible byte on; whoever waits is told of each piece."""

    def __init__(self, pieces: AsyncIterator[bytes], on_piece: Callable[[], None]) -> None:
        self._pieces, self._on_piece = pieces, on_piece
        self._held = b""

    async def first(self) -> bytes:
        """The first byte that is neither white space nor part of a byte-order mark; empty if there is none."""
        async for piece in self._pieces:
            self._on_piece()
            self._held = (self._held + piece)[-_MAX_EVENT_BYTES:].lstrip(_BLANK)
            if self._held:
                break
        return self._held[:1]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._held:
            yield self._held
        async for piece in self._pieces:
            self._on_piece()
            yield piece


async def _json_values(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The JSON texts of a body: one in each line, or one in all lines. Raises: TooLong."""
    whole = bytearray()
    async for line in _lines(pieces, last=True):
        if not whole and _is_json(line):
            yield line
        elif whole or line.strip():
            whole += line
            if len(whole) > _MAX_EVENT_BYTES:
                raise TooLong(f"the reply passed {_MAX_EVENT_BYTES} bytes")
    if whole.strip():
        yield bytes(whole)


def split_thoughts(text: str) -> tuple[str, str]:
    """(reasoning, rest) of a reply that starts with reasoning between tags. Some servers omit the opening tag."""
    opened = text.lstrip().startswith(_OPEN)
    thoughts, close, rest = text.partition(_CLOSE)
    if not opened and (not close or _OPEN in thoughts):
        return "", text
    return thoughts.lstrip().removeprefix(_OPEN).strip(), rest.lstrip()


async def _events(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
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


async def _lines(pieces: AsyncIterable[bytes], *, last: bool = False) -> AsyncIterator[bytes]:
    """Whole lines of a stream that end in LF, CR or CRLF. `last`: also a last one without an end. Raises: TooLong."""
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
    if rest and (last or rest.endswith(b"\r")):
        yield bytes(rest)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parsed(content: bytes, *, listed: bool) -> Any:
    """The value of a JSON text. `listed`: one that is alone in a list is taken out of it."""
    try:
        value = json.loads(content)
        return value[0] if listed and isinstance(value, list) and len(value) == 1 else value
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


def _is_error(value: dict[str, Any]) -> bool:
    """Whether a chunk without choices is an error that is not inside an `error`, as some servers and gateways send it."""
    return "error" in (value.get("object"), value.get("type")) or isinstance(value.get("message"), str) or "detail" in value


def said_in(error: Any) -> str:
    """What an error says: its message, that of the server behind a gateway, and the numbers beside them."""
    if not isinstance(error, dict):
        return str(error) if error else ""
    inner = error.get("error")
    if isinstance(inner, dict | str) and inner:
        return said_in(inner)
    message = str(error.get("message") or error.get("detail") or "")
    metadata = error.get("metadata")
    behind = metadata.get("raw") if isinstance(metadata, dict) else None
    numbers = [f"{name}={value}" for name, value in error.items() if type(value) is int and name not in ("code", "status")]
    parts = [message, behind if isinstance(behind, str) else "", ", ".join(numbers)]
    return ": ".join(part for part in parts if part) or (str(error) if error else "")
