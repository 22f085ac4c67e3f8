"""Reads a reply: the whole file, the patch or the schedules in it, or the reason why it has none of them.

A reply has one form. A whole file is exactly one closed block with a launch plan, and a kernel in that block; snippets without
a plan are allowed anywhere. Beside a whole file, patches are illustrations and are not read.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal2_agent.policies.chat.replies.fenced_blocks import FencedBlock, Malformed, first_sentence, split_reply
from cudal2_agent.policies.chat.replies.patch import Patch, is_patch, read_patch
from cudal2_agent.policies.chat.replies.schedule_json import NamedSchedules, is_json, names_family, read_schedules

_PLAN = re.compile(r"(?://|/\*)\s*cudal2:\s*\{")
_KERNEL = re.compile(r"\b__global__\b")


@dataclass(frozen=True)
class KernelFile:
    """The kernel file in a reply. `analysis` and `design` are empty if the reply has no such section."""

    analysis: str
    design: str
    source: str

    @property
    def note(self) -> str:
        """The first sentence of the design."""
        return first_sentence(self.design)


def has_plan(text: str) -> bool:
    return _PLAN.search(text) is not None


def file_problem(planned: Sequence[FencedBlock]) -> str:
    """Why the blocks with a launch plan are not exactly one kernel file; empty if they are.

    Stored prompts quote these sentences: keep the words.
    """
    if not planned:
        return "no code block has a launch plan; the file starts with a comment '/* cudal2: {...} */'"
    if len(planned) > 1:
        return f"{len(planned)} code blocks have a launch plan; give exactly one, the whole file"
    if "\0" in planned[0].text:
        return "the code block has NUL characters"
    if not _KERNEL.search(planned[0].text):
        return "the code block with the launch plan has no __global__ kernel; give the whole file in one block"
    return ""


ReadReply = KernelFile | Patch | NamedSchedules | Malformed
MAX_CHARS = 8_000_000  # of a reply; longer ones are stopped while they arrive


def read_reply(text: str, *, cut: bool = False) -> ReadReply:
    """What a reply holds. `cut`: the reply ended early, so an open block is reported as cut off, not as malformed."""
    if len(text) > MAX_CHARS:
        return Malformed(f"the reply has {len(text)} characters of at most {MAX_CHARS}")
    prose, blocks = split_reply(text)
    blocks = blocks or _bare_json(text, cut=cut)
    if problem := _open_end(blocks, cut=cut):
        return Malformed(problem)
    return _read(prose, blocks)


def _read(prose: dict[str, str], blocks: Sequence[FencedBlock]) -> ReadReply:
    patches, others = _divided(blocks, is_patch)
    planned, snippets = _divided(others, lambda block: has_plan(block.text))
    if planned:
        if any(map(names_family, snippets)):
            return Malformed("the reply has a whole file and schedules; give one of them")
        if problem := file_problem(planned):
            return Malformed(problem)
        return KernelFile(analysis=prose.get("analysis", ""), design=prose.get("design", ""), source=planned[0].text)
    note = first_sentence(prose.get("design", "") or prose[""])
    schedules, _ = _divided(snippets, is_json)
    if patches and schedules:
        return Malformed("the reply has a patch and schedules; give one of them")
    if patches:
        return read_patch(patches, note)
    return read_schedules(schedules, note) if schedules else Malformed(file_problem(planned))


def _divided(
    blocks: Sequence[FencedBlock], chosen: Callable[[FencedBlock], bool]
) -> tuple[list[FencedBlock], list[FencedBlock]]:
    """The blocks that are chosen, and the others."""
    marks = [chosen(block) for block in blocks]
    both = list(zip(blocks, marks, strict=True))
    return [block for block, mark in both if mark], [block for block, mark in both if not mark]


def _open_end(blocks: Sequence[FencedBlock], *, cut: bool) -> str:
    """Why the reply ends before its code does; empty if it does not. Stored prompts quote these sentences: keep the words."""
    if not blocks:
        return "the reply was cut off before its code block" if cut else "the reply has no code block"
    if not blocks[-1].closed:
        return "the reply was cut off inside its code block" if cut else "the last code block is not closed"
    return ""


def _bare_json(text: str, *, cut: bool) -> list[FencedBlock]:
    """A reply that is nothing but schedules, without a fence."""
    block = FencedBlock("json", text.strip(), closed=not cut)
    return [block] if names_family(block) else []
