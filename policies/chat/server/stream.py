"""Reads one reply as it arrives: server-sent events, or one JSON body from a server that does not stream.

Nothing of what a server sends is trusted to have the shape that the protocol gives it.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from contract.exchange import Prompt, Usage
from policies.chat.tokens import CHARACTERS_A_TOKEN, estimate_usage

MAX_CHARACTERS = 2_000_000
_MAX_EVENT_BYTES = 8_000_000
_SHOWN_BYTES = 4000  # of what is no JSON; far more than is shown, so that a key within is whole when it is taken out
_SLACK = 2  # of the estimate of a reply's tokens
_DONE = b"[DONE]\n"
_OPEN, _CLOSE = "<think>", "</think>"


class Malformed(Exception):
    """What arrived is not the protocol; the message says what."""


class EmptyStream(Exception):
    """A stream ended without a single choice; the message says so."""


class ServerSaid(Exception):
    """The server reported an error inside a reply that had begun; the message is its own."""


@dataclass
class Draft:
    """A reply so far. `begun`: the server took the request up; `chosen`: something of a reply came, if only its end.
    `finish`: its word for how the reply ended; `ended`: it said that nothing follows.
    """

    parts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    characters: int = 0
    begun: bool = False
    chosen: bool = False
    finish: str = ""
    ended: bool = False
    counts: tuple[int, int] | None = None

    def add(self, value: Any) -> None:
        """Take what one chunk, or one whole body, holds. Raises: Malformed, ServerSaid."""
        if not isinstance(value, dict):
            raise Malformed("a chunk that is no object")
        if value.get("error"):
            raise ServerSaid(_error_message(value["error"]))
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

    @property
    def text(self) -> str:
        return split_thoughts(_joined(self.parts))[1]

    @property
    def reasoning(self) -> str:
        return _joined(self.thoughts) + split_thoughts(_joined(self.parts))[0]

    @property
    def refusal(self) -> str:
        return _joined(self.refusals)

    def usage(self, prompt: Prompt) -> Usage:
        """The server's count; an estimate where it gave none, or none for what it wrote."""
        if self.counts is None or (self.characters and not self.counts[1]):
            return estimate_usage(prompt, "".join(self.parts), "".join(self.thoughts), "".join(self.refusals))
        return Usage(prompt_tokens=self.counts[0], completion_tokens=self.counts[1], counted="server")

    def ending(self) -> tuple[Literal["complete", "truncated", "cut", "refused"], str]:
        """How a reply that stopped arriving ended, and why in one line."""
        if self.refusal or self.finish == "content_filter":
            return "refused", self.refusal or "the server's content filter ended the reply"
        if self.finish == "length":
            return "truncated", "the reply reached its token limit"
        if not self.finish and not self.ended:
            return "cut", "the connection closed before the reply's end"
        return "complete", ""


class TooLong(Exception):
    """The reply passed what it may hold; the message says what."""


async def read_stream(pieces: AsyncIterator[bytes], draft: Draft, reply_tokens: int, on_text: Callable[[], None]) -> None:
    """Add a stream's events to a draft until it ends. Raises: EmptyStream, Malformed, ServerSaid, TooLong."""
    most = min(MAX_CHARACTERS, int(_SLACK * reply_tokens * CHARACTERS_A_TOKEN))
    async for data in _events(pieces):
        if data == _DONE:
            draft.ended = True
            break
        before = draft.characters
        draft.add(_parsed(data))
        if draft.characters > most:
            raise TooLong(f"the reply passed {most} characters, twice its limit of {reply_tokens} tokens or more")
        if draft.characters > before:
            on_text()
    if not draft.chosen:
        raise EmptyStream("a stream without a reply; is the prompt longer than the model's context?")


async def read_body(pieces: AsyncIterator[bytes], draft: Draft) -> None:
    """Add a whole JSON body to a draft. Raises: Malformed, ServerSaid, TooLong."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > _MAX_EVENT_BYTES:
            raise TooLong(f"the reply passed {_MAX_EVENT_BYTES} bytes")
    value = _parsed(bytes(body))
    draft.add(value)
    if not value.get("choices"):
        raise Malformed("a body without choices")
    draft.ended = True
    if draft.characters > MAX_CHARACTERS:
        raise TooLong(f"the reply passed {MAX_CHARACTERS} characters")


def split_thoughts(text: str) -> tuple[str, str]:
    """(thoughts, rest) of a reply whose model thinks aloud at its start; some servers leave out the opening tag."""
    opened = text.lstrip().startswith(_OPEN)
    thoughts, close, rest = text.partition(_CLOSE)
    if not opened and (not close or _OPEN in thoughts):
        return "", text
    return thoughts.lstrip().removeprefix(_OPEN).strip(), rest.lstrip()


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Data of server-sent events; one that the stream's end cuts in the middle is none. Raises: TooLong."""
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
    """Whole lines of a stream, whichever of LF, CR and CRLF ends them. Raises: TooLong."""
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
        raise Malformed(f"invalid JSON: {content[:_SHOWN_BYTES].decode(errors='replace')}") from None


def _plain(value: Any) -> str:
    """Text of a field that is a string, a list of parts that hold text, or anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_plain(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _joined(parts: list[str]) -> str:
    """Parts as one text that can be stored: surrogates that servers split between chunks are paired, lone ones replaced."""
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
