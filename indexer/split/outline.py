"""The definitions of a file, nested as in the source, with their lines and their families of generated siblings."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cudal2_agent.contract.records.knowledge import PieceKind

_MIN_FAMILY = 4
_VARIES = re.compile(r"(?:(?:tf|TF|bf|BF|f|F|s|S|u|U|e|E)\d+(?:[mM]\d+)?(?:[eE]\d+|[xX]\d+)?)+|\d+")


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition with its comment and template head. Lines count from 1, inclusive.

    `symbol`: qualified name, empty for an assertion. `names`: the symbols of all definitions on these lines.
    """

    symbol: str
    kind: PieceKind
    start: int
    end: int
    members: tuple["Definition", ...] = ()
    names: tuple[str, ...] = ()
    family: str = ""


def disjoint(definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    """Definitions in the order of their lines. Definitions that share lines are merged."""
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


def with_families(definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """The definitions with their families: at least four siblings that differ in types, shapes and counts only."""
    shapes = [_shape(definition) for definition in definitions]
    counts = Counter(shapes)
    return tuple(
        replace(definition, family=shape) if shape and counts[shape] >= _MIN_FAMILY else definition
        for definition, shape in zip(definitions, shapes, strict=True)
    )


def _shape(definition: Definition) -> str:
    """What the siblings of a family have in common; empty for a name without types or shapes."""
    name = _VARIES.sub("#", definition.symbol)
    if name == definition.symbol:
        return ""
    members = ",".join(f"{member.kind} {_VARIES.sub('#', member.symbol.rpartition('::')[2])}" for member in definition.members)
    return f"{definition.kind} {name} {members}"
