"""The whole kernel file in a reply: exactly one closed block with a launch plan, and a kernel in that block.

Snippets without a plan are allowed anywhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cudal2_agent.policies.chat.replies.fenced_blocks import FencedBlock, first_sentence

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
