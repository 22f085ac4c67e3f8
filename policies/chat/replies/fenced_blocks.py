"""The prose and the fenced blocks of a reply. Nothing that a model wrote is evaluated.

Tolerated: any level and case of headings, missing sections, fences of tildes, and a reply that is wrapped in one Markdown
block. Splitting takes time linear in the length of the reply.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^\n]*)")
_WRAPPERS = frozenset({"markdown", "md"})
_HEADING = re.compile(
    r" {0,3}(?:#{1,6}[ \t]*)?(?:\*\*|__)?(?:\d[.)][ \t]*)?(?:performance[ \t]+)?"
    r"(?P<name>analysis|design|code)\b[ \t]*[:.]?(?:\*\*|__)?[ \t:#]*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s")
NOTE_CHARS = 320


@dataclass(frozen=True)
class Malformed:
    """A reply from which no candidate can be made. `problem`: the reason, which is sent back to the model."""

    problem: str


@dataclass(frozen=True)
class FencedBlock:
    """A block between fences. `info`: the words behind the opening fence."""

    info: str
    text: str
    closed: bool

    @property
    def language(self) -> str:
        """The first word behind the fence, in lower case."""
        return next(iter(self.info.lower().split()), "")


def split_reply(text: str) -> tuple[dict[str, str], list[FencedBlock]]:
    """The prose by section, in which "" is that before the first heading, and the fenced blocks in order."""
    body, wrapped = _unwrapped(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    prose, blocks = _split(body)
    if wrapped and blocks and not blocks[-1].closed and not blocks[-1].text.strip():
        blocks.pop()  # the closing fence of the wrapper
    return prose, blocks


def first_sentence(text: str) -> str:
    """The first sentence on one line, of at most `NOTE_CHARS` characters; cut behind a word where there is one."""
    line = " ".join(_SENTENCE.split(text.strip("*-# \n"), 1)[0].split())
    kept = line[: NOTE_CHARS - 1]
    return line if len(line) <= NOTE_CHARS else (kept.rpartition(" ")[0] or kept) + "…"


def _unwrapped(text: str) -> tuple[str, bool]:
    """The reply without the opening fence of a Markdown block around all of it, and whether there was such a block."""
    first, _, rest = text.strip("\n").partition("\n")
    opening = _FENCE.fullmatch(first)
    wrapped = opening is not None and opening["info"].strip().lower() in _WRAPPERS
    return (rest, True) if wrapped else (text, False)


def _split(text: str) -> tuple[dict[str, str], list[FencedBlock]]:
    prose: dict[str, list[str]] = {}
    section = prose.setdefault("", [])
    blocks: list[FencedBlock] = []
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _FENCE.match(line)
        if opening and not ("`" in opening["info"] and opening["fence"][0] == "`"):
            blocks.append(_block(lines, opening["fence"], opening["info"].strip()))
        elif heading := _HEADING.fullmatch(line):
            section = prose.setdefault(heading["name"].lower(), [])
        else:
            section.append(line)
    return {name: "\n".join(body).strip() for name, body in prose.items()}, blocks


def _block(lines: Iterator[str], fence: str, info: str) -> FencedBlock:
    """The lines up to a closing fence: the same character, at least as long, alone on its line."""
    body: list[str] = []
    for line in lines:
        stripped = line.strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return FencedBlock(info, "\n".join(body) + "\n", closed=True)
        body.append(line)
    return FencedBlock(info, "\n".join(body), closed=False)
