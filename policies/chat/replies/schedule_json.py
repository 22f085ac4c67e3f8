"""Schedules in a reply: JSON objects of a family's axes, in fenced blocks or as the whole reply.

Read strictly: no NaN, no key twice, no comment. What the axes mean and which values they have is checked where they are
expanded (`policies.schedule.named_schedules`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudal2_agent.policies.chat.replies.fenced_blocks import FencedBlock, Malformed

MAX_CHARS = 100_000  # of all blocks; a schedule takes about 400


@dataclass(frozen=True)
class NamedSchedules:
    """The schedules of a reply as parsed from JSON, so of any type. `note`: the first sentence of the reply's prose."""

    values: tuple[object, ...]
    note: str


def is_json(block: FencedBlock) -> bool:
    return block.language == "json" or names_family(block)


def names_family(block: FencedBlock) -> bool:
    """Whether the block looks like JSON that names a kernel family."""
    return '"family"' in block.text and block.text.lstrip()[:1] in ("{", "[")


def read_schedules(blocks: Sequence[FencedBlock], note: str) -> NamedSchedules | Malformed:
    """The schedules of all blocks, in order."""
    characters = sum(len(block.text) for block in blocks)
    if characters > MAX_CHARS:
        return Malformed(f"the schedules take {characters} characters of at most {MAX_CHARS}")
    values: list[object] = []
    for block in blocks:
        try:
            values += _listed(json.loads(block.text, object_pairs_hook=_object, parse_constant=_refuse))
        except json.JSONDecodeError as exc:
            more = "; several schedules go into one list: [{...}, {...}]" if exc.msg == "Extra data" else ""
            return Malformed(f"the schedules are not JSON: {exc}{more}")
        except RecursionError:
            return Malformed("the schedules are nested too deeply; a schedule is one flat object")
        except ValueError as exc:
            return Malformed(f"the schedules are not JSON: {_reason(exc)}")
    return NamedSchedules(tuple(values), note) if values else Malformed("the list of schedules is empty")


def _listed(value: Any) -> list[object]:
    """The schedules of a parsed block: one object, a list, or a list under `schedules`."""
    if isinstance(value, dict) and list(value) == ["schedules"] and isinstance(value["schedules"], list):
        return list(value["schedules"])
    return list(value) if isinstance(value, list) else [value]


class _DoubtfulJson(ValueError):
    """JSON that Python reads and the standard does not allow, or that readers understand differently."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DoubtfulJson(f"{json.dumps(key[:40])} is given twice in one object")
        found[key] = value
    return found


def _refuse(constant: str) -> Any:
    raise _DoubtfulJson(f"{constant} is not a number of JSON")


def _reason(exc: ValueError) -> str:
    return str(exc) if isinstance(exc, _DoubtfulJson) else "a number has too many digits"
