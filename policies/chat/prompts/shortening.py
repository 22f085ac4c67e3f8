"""Making text fit: the middle of a long one left out, the errors of a compiler's log."""

import re
from collections.abc import Iterator
from itertools import accumulate

from policies.chat.tokens import CHARACTERS_A_TOKEN

_MARK_CHARACTERS = 64  # what a mark of what was left out takes
_MOST_LINES = 10  # of one message; what follows are instantiation traces
_ERROR = re.compile(r"^(?!.*\bwarning\b).*\b(?:fatal|error)(?: #[\w-]+)?\s*:", re.IGNORECASE)
# Where the next message of a compiler begins: `file(3): warning #1-D: …`, `ptxas …, line 3; error : …`, closing counts.
_MESSAGE = re.compile(
    r"^\S.{0,300}?[:;]\s*(?:catastrophic |fatal )?(?:error|warning|remark|note|info)\b"
    r"|^ptxas (?:fatal|info|warning|error)\b|^Remark\b|^\d+ (?:catastrophic )?errors? detected",
    re.IGNORECASE,
)
_PLACE = re.compile(r"\(\d+\)|, line \d+")


def shorten(text: str, tokens: int) -> str:
    """The text, or its beginning and end by whole lines with a mark of what is left out between."""
    most = int(tokens * CHARACTERS_A_TOKEN)
    if len(text) <= most:
        return text
    room = max(most - _MARK_CHARACTERS, 0) // 2
    head, tail = text[:room], text[len(text) - room :] if room else ""
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = text[len(head) : len(text) - len(tail)]
    mark = f"[… {left_out.count(chr(10)) + 1} lines, {len(left_out)} characters left out …]"
    return "\n".join(part for part in (head.rstrip("\n"), mark, tail) if part)


def shorten_log(log: str, tokens: int) -> str:
    """The first errors of a compiler's log with the lines that belong to them; warnings, remarks and repeats left out.

    A log that names no error is shortened in its middle.
    """
    errors = [message for message in _messages(log) if _ERROR.match(message[0])]
    if not errors:
        return shorten(log, tokens)
    texts: dict[str, str] = {}
    for message in errors:
        texts.setdefault(_PLACE.sub("", message[0]), "\n".join(message[:_MOST_LINES]))
    distinct = list(texts.values())
    whole = "\n".join([*distinct, *_left_out(len(errors) - len(distinct))])
    if len(whole) <= tokens * CHARACTERS_A_TOKEN:
        return whole
    room = tokens * CHARACTERS_A_TOKEN - _MARK_CHARACTERS
    kept = [text for text, used in zip(distinct, accumulate(len(text) + 1 for text in distinct), strict=True) if used <= room]
    if not kept:
        kept = [shorten(distinct[0], int(room / CHARACTERS_A_TOKEN))]
    return "\n".join([*kept, *_left_out(len(errors) - len(kept))])


def _left_out(errors: int) -> list[str]:
    return [f"[… {errors} more errors or repeats left out …]"] if errors else []


def _messages(log: str) -> Iterator[list[str]]:
    """The log's messages, each with the lines that follow it up to a blank one or the next message."""
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
