"""What a grammar finds in a file: its definitions, nested as they stand, with the lines that belong to each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contract.knowledge import PieceKind


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition with its comment and template head; lines count from 1, inclusive.

    `symbol`: qualified name; empty for what has none (an assertion). `names`: of all that share these lines.
    """

    symbol: str
    kind: PieceKind
    start: int
    end: int
    members: tuple["Definition", ...] = ()
    names: tuple[str, ...] = ()
    family: str = ""


def disjoint(definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    """Definitions in the order of their lines, none sharing a line with the next; those that do become one."""
    kept: list[Definition] = []
    for found in sorted(definitions, key=lambda d: (d.start, -d.end)):
        last = kept[-1] if kept else None
        if last is None or found.start > last.end:
            kept.append(found)
        elif found.end > last.end and found.end - last.end > 1 and not _one_line(last):
            kept.append(replace(found, start=last.end + 1, members=_within(found.members, last.end + 1)))
        else:
            names = (*(last.names or (last.symbol,)), *(found.names or (found.symbol,)))
            kept[-1] = replace(last, end=max(last.end, found.end), names=names, members=())
    return tuple(kept)


def _one_line(definition: Definition) -> bool:
    return definition.start == definition.end


def _within(members: tuple[Definition, ...], start: int) -> tuple[Definition, ...]:
    return tuple(member for member in members if member.start >= start)
