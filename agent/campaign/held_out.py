"""The shapes that a file holds out of training."""

import json
from pathlib import Path

from cudal2_agent.contract.errors import UsageError


def held_out_shapes(file: Path | None) -> list[str]:
    """The shapes of a JSON list, or of the lists `grid` and `off_grid` of an object; none without a file.

    Raises: UsageError.
    """
    if file is None:
        return []
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{file} cannot be read as JSON: {exc}") from exc
    lists = [told.get(name, []) for name in ("grid", "off_grid")] if isinstance(told, dict) else [told]
    shapes = [shape for each in lists if isinstance(each, list) for shape in each if isinstance(shape, str)]
    if not shapes:
        raise UsageError(f"{file} names no shapes; it should hold a JSON list of shapes, or lists grid and off_grid")
    return shapes
