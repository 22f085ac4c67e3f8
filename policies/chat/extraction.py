"""Extracts the kernel file from a reply, with its analysis and design. Nothing that a model wrote is evaluated.

Required: exactly one closed code block with a launch plan, and a kernel in that block.
Tolerated: any level and case of headings, missing sections, fences of tildes, snippets without a plan, and a reply that is
wrapped in one Markdown block. Extraction takes time linear in the length of the reply.
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
_PLAN = re.compile(r"(?://|/\*)\s*cudal2:\s*\{")
_KERNEL = re.compile(r"\b__global__\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s")
NOTE_CHARS = 200


@dataclass(frozen=True)
class KernelFile:
    """The kernel file in a reply. `analysis` and `design` are empty if the reply has no such section."""

    analysis: str
    design: str
    source: str

    @property
    def note(self) -> str:
        """The first sentence of the design."""
        line = " ".join(_SENTENCE.split(self.design.strip("*-# \n"), 1)[0].split())
        return line if len(line) <= NOTE_CHARS else line[: NOTE_CHARS - 1] + "…"


@dataclass(frozen=True)
class Malformed:
    """A reply without a usable kernel file. `problem`: the reason, which is sent back to the model."""

    problem: str


@dataclass(frozen=True)
class _FencedBlock:
    text: str
    closed: bool


def read_reply(text: str, *, cut: bool = False) -> KernelFile | Malformed:
    """The kernel file in a reply. `cut`: the reply ended early, so an open block is reported as cut off, not as malformed."""
    body, wrapped = _unwrapped(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    prose, blocks = _split(body)
    if wrapped and blocks and not blocks[-1].closed and not blocks[-1].text.strip():
        blocks.pop()  # the closing fence of the wrapper
    planned = [block for block in blocks if _PLAN.search(block.text)]
    problem = _problem(blocks, planned, cut=cut)
    if problem:
        return Malformed(problem)
    return KernelFile(analysis=prose.get("analysis", ""), design=prose.get("design", ""), source=planned[0].text)


def _problem(blocks: list[_FencedBlock], planned: list[_FencedBlock], *, cut: bool) -> str:
    """Why the reply is not exactly one kernel file; empty if it is. Stored prompts quote these sentences: keep the words."""
    if blocks and not blocks[-1].closed:
        return "the reply was cut off inside its code block" if cut else "the last code block is not closed"
    if not blocks:
        return "the reply was cut off before its code block" if cut else "the reply has no code block"
    if not planned:
        return "no code block has a launch plan; the file starts with a comment '/* cudal2: {...} */'"
    if len(planned) > 1:
        return f"{len(planned)} code blocks have a launch plan; give exactly one, the whole file"
    if "\0" in planned[0].text:
        return "the code block has NUL characters"
    if not _KERNEL.search(planned[0].text):
        return "the code block with the launch plan has no __global__ kernel; give the whole file in one block"
    return ""


def _unwrapped(text: str) -> tuple[str, bool]:
    """The reply without the opening fence of a Markdown block around all of it, and whether there was such a block."""
    first, _, rest = text.strip("\n").partition("\n")
    opening = _FENCE.fullmatch(first)
    wrapped = opening is not None and opening["info"].strip().lower() in _WRAPPERS
    return (rest, True) if wrapped else (text, False)


def _split(text: str) -> tuple[dict[str, str], list[_FencedBlock]]:
    """The prose by section and the fenced blocks, in order."""
    prose: dict[str, list[str]] = {}
    section = prose.setdefault("", [])
    blocks: list[_FencedBlock] = []
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _FENCE.match(line)
        if opening and not ("`" in opening["info"] and opening["fence"][0] == "`"):
            blocks.append(_block(lines, opening["fence"]))
        elif heading := _HEADING.fullmatch(line):
            section = prose.setdefault(heading["name"].lower(), [])
        else:
            section.append(line)
    return {name: "\n".join(body).strip() for name, body in prose.items()}, blocks


def _block(lines: Iterator[str], fence: str) -> _FencedBlock:
    """The lines up to a closing fence: the same character, at least as long, alone on its line."""
    body: list[str] = []
    for line in lines:
        stripped = line.strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return _FencedBlock("\n".join(body) + "\n", closed=True)
        body.append(line)
    return _FencedBlock("\n".join(body), closed=False)
