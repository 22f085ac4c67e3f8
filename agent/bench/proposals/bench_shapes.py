"""The tasks of a bench: shapes as for a campaign, or those of a JSON file with lists, which a name behind a colon picks."""

from collections.abc import Sequence
from pathlib import Path

from cudal2_agent.agent.campaign.shapes import GRID, WantedShape, read_shapes
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_json, read_file
from cudal2_agent.contract.records.task import parse_shape


def read_bench_shapes(given: Sequence[str], part: str | None) -> tuple[list[WantedShape], list[str]]:
    """The shapes that `--shapes` names, each once, and notices about those left out. Raises: UsageError.

    `part`: `I/N` for the I-th of N processes that share the shapes, each of which takes every N-th.
    """
    words = [word for words in given for word in words.split(",") if word]
    shapes: list[WantedShape] = []
    notices: list[str] = []
    for word in words:
        file, _, name = word.partition(":")
        if file.endswith(".json") and Path(file).is_file():
            shapes += [_shape(text, file) for text in _listed(Path(file), name)]
        else:
            found, said = read_shapes([word])
            shapes, notices = [*shapes, *found], [*notices, *said]
    if not shapes:
        raise UsageError(f"--shapes names no shape; write {GRID}, a file, or shapes such as 4096x1024x512")
    unique = list(dict.fromkeys(one.model_copy(update={"weight": 1.0}) for one in shapes))
    first, step = read_part(part)
    return unique[first::step], notices


def _listed(file: Path, name: str) -> list[str]:
    """The shapes of a JSON list, of one list of an object, or of its lists grid and off_grid."""
    try:
        told = parse_json(read_file(file))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{file} cannot be read as JSON: {exc}") from exc
    if isinstance(told, list):
        return told
    names = [name] if name else ["grid", "off_grid"]
    if not isinstance(told, dict) or not any(isinstance(told.get(one), list) for one in names):
        known = ", ".join(key for key, held in told.items() if isinstance(held, list)) if isinstance(told, dict) else ""
        raise UsageError(f"{file} holds no list {' or '.join(names)} of shapes{f'; it holds {known}' if known else ''}")
    return [shape for one in names if isinstance(told.get(one), list) for shape in told[one]]


def _shape(text: object, file: str) -> WantedShape:
    if not isinstance(text, str):
        raise UsageError(f"{file}: {text!r} is not a shape; write them like 4096x1024x512")
    m, n, k = parse_shape(text)
    return WantedShape(m=m, n=n, k=k)


def read_part(text: str | None) -> tuple[int, int]:
    """Place of the first shape, and the step to the next. Raises: UsageError unless it is I/N, or None for all."""
    place, slash, count = (text or "1/1").partition("/")
    if not (slash and place.isdigit() and count.isdigit() and 1 <= int(place) <= int(count)):
        raise UsageError(f"--part {text!r}: write 1/2 for the first of two processes, 2/2 for the second")
    return int(place) - 1, int(count)
