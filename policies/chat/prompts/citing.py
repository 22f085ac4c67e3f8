"""Marks of the chunks that a prompt shows, and the chunks that a reply names by them."""

import re
from collections.abc import Sequence

_CITED = re.compile(r"\[(K\d{1,3}(?:\s*,\s*K\d{1,3})*)\]")
_FENCE = re.compile(r"^ {0,3}(?:`{3,}|~{3,})", re.MULTILINE)


def mark_of(number: int) -> str:
    """The mark of the chunk at a place in the prompt, counted from 1."""
    return f"[K{number}]"


def cited_chunks(reply: str, shown: Sequence[str]) -> tuple[str, ...]:
    """The ids in `shown` whose marks the prose before the first code block names, in the order in which they are shown."""
    prose = _FENCE.split(reply, maxsplit=1)[0]
    numbers = {int(mark.strip()[1:]) for found in _CITED.findall(prose) for mark in found.split(",")}
    return tuple(id_ for number, id_ in enumerate(shown, 1) if number in numbers)
