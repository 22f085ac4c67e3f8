"""Estimates of token counts, which a server's count replaces, and text made to fit a number of tokens.

Fair shares of a budget, whole pieces that fit, and shortened text and logs.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from cudal2_agent.contract.records.exchange import Prompt, Usage

CHARS_PER_TOKEN = 3.2


def estimate_tokens(text: str) -> int:
    return math.ceil(len(text) / CHARS_PER_TOKEN)


def chars_of(prompt: Prompt) -> int:
    """Characters of the messages and of the tool calls in them."""
    calls = (call for message in prompt.messages for call in message.calls)
    return sum(len(message.content) for message in prompt.messages) + sum(len(c.name) + len(c.arguments) for c in calls)


def estimate_usage(prompt: Prompt, *written: str) -> Usage:
    """The usage of a request for which the server reported no token count."""
    asked = math.ceil(chars_of(prompt) / CHARS_PER_TOKEN)
    return Usage(prompt_tokens=asked, completion_tokens=sum(estimate_tokens(text) for text in written), counted="estimate")


_MARK_CHARS = 64  # size of a mark that stands for omitted text
_MAX_LINES = 10  # per message; the lines after them are instantiation traces
_ERROR = re.compile(r"^(?!.*\bwarning\b).*\b(?:fatal|error)(?: #[\w-]+)?\s*:", re.IGNORECASE)
# The first line of a compiler message: `file(3): warning #1-D: …`, `ptxas …, line 3; error : …`, or the closing counts.
_MESSAGE = re.compile(
    r"^\S.{0,300}?[:;]\s*(?:catastrophic |fatal )?(?:error|warning|remark|note|info)\b"
    r"|^ptxas (?:fatal|info|warning|error)\b|^Remark\b|^\d+ (?:catastrophic )?errors? detected",
    re.IGNORECASE,
)
_LINE_NUMBER = re.compile(r"\(\d+\)|, line \d+")


def fair_shares(wanted: Sequence[int], tokens: int) -> list[int]:
    """The share of each request in a budget: the full request up to an equal split of what smaller requests left."""
    shares = [0] * len(wanted)
    left = tokens
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for served, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(order) - served))
        left -= shares[index]
    return shares


def take(pieces: Iterable[str], tokens: int) -> list[int]:
    """Positions of the pieces that fit whole, in order. A piece that does not fit is skipped."""
    taken: list[int] = []
    for position, piece in enumerate(pieces):
        size = estimate_tokens(piece) + 1
        if size <= tokens:
            taken.append(position)
            tokens -= size
    return taken


def shorten(text: str, tokens: int) -> str:
    """The text; if it is too long, whole lines of its start and its end around a mark."""
    max_chars = int(tokens * CHARS_PER_TOKEN)
    if len(text) <= max_chars:
        return text
    room = max(max_chars - _MARK_CHARS, 0) // 2
    head, tail = text[:room], text[len(text) - room :] if room else ""
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = text[len(head) : len(text) - len(tail)]
    mark = f"[… {left_out.count(chr(10)) + 1} lines, {len(left_out)} characters left out …]"
    return "\n".join(part for part in (head.rstrip("\n"), mark, tail) if part)


def shorten_log(log: str, tokens: int) -> str:
    """The first distinct errors of a compiler log with their details, without warnings, remarks and repeats.

    A log without an error is shortened in its middle.
    """
    errors = [message for message in _messages(log) if _ERROR.match(message[0])]
    if not errors:
        return shorten(log, tokens)
    texts: dict[str, str] = {}
    for message in errors:
        texts.setdefault(_LINE_NUMBER.sub("", message[0]), "\n".join(message[:_MAX_LINES]))
    distinct = list(texts.values())
    whole = "\n".join([*distinct, *_left_out(len(errors) - len(distinct))])
    if len(whole) <= tokens * CHARS_PER_TOKEN:
        return whole
    room = tokens * CHARS_PER_TOKEN - _MARK_CHARS
    kept = [text for text, used in zip(distinct, accumulate(len(text) + 1 for text in distinct), strict=True) if used <= room]
    if not kept:
        kept = [shorten(distinct[0], int(room / CHARS_PER_TOKEN))]
    return "\n".join([*kept, *_left_out(len(errors) - len(kept))])


def _left_out(errors: int) -> list[str]:
    return [f"[… {errors} more errors or repeats left out …]"] if errors else []


def _messages(log: str) -> Iterator[list[str]]:
    """The messages of a log, each with its lines up to a blank line or the next message."""
    message: list[str] = []
    for line in log.splitlines():
        if _MESSAGE.match(line) or not line.strip():
            if message:
                yield message
            message = []
        if line.strip():
            message.append(line)
    if message:
        yield message
