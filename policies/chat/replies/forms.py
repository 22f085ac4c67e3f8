"""Reads a reply: the whole file, the patch or the schedules in it, or the reason why it has none of them.

A reply has one form. Beside a whole file, patches are illustrations and are not read.
"""

from collections.abc import Callable, Sequence

from cudal2_agent.policies.chat.replies.fenced_blocks import FencedBlock, Malformed, first_sentence, split_reply
from cudal2_agent.policies.chat.replies.kernel_file import KernelFile, file_problem, has_plan
from cudal2_agent.policies.chat.replies.patch import Patch, is_patch, read_patch
from cudal2_agent.policies.chat.replies.schedule_json import NamedSchedules, is_json, names_family, read_schedules

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
