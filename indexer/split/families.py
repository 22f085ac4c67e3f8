"""Families: siblings that a generator wrote, equal but for types, shapes and counts in their names."""

import re
from collections import Counter
from dataclasses import replace

from indexer.split.outline import Definition

_LEAST = 4
_VARIES = re.compile(r"(?:(?:tf|TF|bf|BF|f|F|s|S|u|U|e|E)\d+(?:[mM]\d+)?(?:[eE]\d+|[xX]\d+)?)+|\d+")


def with_families(definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """The same definitions; where at least four siblings share a shape, they name it."""
    shapes = [_shape(definition) for definition in definitions]
    counts = Counter(shapes)
    return tuple(
        replace(definition, family=shape) if shape and counts[shape] >= _LEAST else definition
        for definition, shape in zip(definitions, shapes, strict=True)
    )


def _shape(definition: Definition) -> str:
    """What siblings of a family have in common; empty for a name that says nothing of types or shapes."""
    name = _VARIES.sub("#", definition.symbol)
    if name == definition.symbol:
        return ""
    members = ",".join(f"{member.kind} {_VARIES.sub('#', member.symbol.rpartition('::')[2])}" for member in definition.members)
    return f"{definition.kind} {name} {members}"
