"""Untrusted text inside a prompt: fenced so that it cannot end its fence, without marks that a chat template acts on.

Also the marks of the chunks that a prompt shows, and the chunks that a reply names by them.
Covered: backtick runs of any length, control and direction characters, the role marks of common chat templates.
Not covered: a model that obeys the data anyway. Its candidate then passes through the sandbox like any other.
"""

import re
from collections.abc import Sequence

_TICKS = re.compile(r"`{3,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
# Marks that a server may take for the end of a message.
_ROLE_MARK = re.compile(r"(<)(?=[|｜]|/?(?:s|bos|eos|think|start_of_turn|end_of_turn)>|</?SYS>>)|(\[)(?=/?INST\])")


def plain(text: str) -> str:
    """The text with LF line ends, without control characters, and with a space inside each role mark."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ROLE_MARK.sub(r"\1\2 ", _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def fenced(text: str, language: str = "text") -> str:
    """The text between fences that are longer than every run of backticks in the text."""
    text = plain(text).strip("\n")
    fence = "`" * max((len(run) + 1 for run in _TICKS.findall(text)), default=3)
    return f"{fence}{language}\n{text}\n{fence}"


def inline(text: str, max_chars: int = 200) -> str:
    """The text on one line, without backticks, of at most `max_chars` characters; cut behind a word where there is one."""
    line = " ".join(plain(text).replace("`", "'").split())
    if len(line) <= max_chars:
        return line
    kept = line[: max_chars - 1]
    return (kept if line[max_chars - 1] == " " else kept.rpartition(" ")[0] or kept) + "…"


_CITED = re.compile(r"\[(K[0-9a-f]{4}(?:\s*,\s*K[0-9a-f]{4})*)\]")
_FENCE = re.compile(r"^ {0,3}(?:`{3,}|~{3,})", re.MULTILINE)


def mark_of(chunk_id: str) -> str:
    """The mark of a chunk, the same in every prompt of every run."""
    return f"[K{chunk_id[:4]}]"


def cited_chunks(reply: str, shown: Sequence[str]) -> tuple[str, ...]:
    """The ids in `shown` whose marks the prose before the first code block names, in the order in which they are shown."""
    prose = _FENCE.split(reply, maxsplit=1)[0]
    marks = {f"[{mark.strip()}]" for found in _CITED.findall(prose) for mark in found.split(",")}
    return tuple(id_ for id_ in shown if mark_of(id_) in marks)
