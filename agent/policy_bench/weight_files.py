"""Files of learned weights: their cards, where they are found, and which one a search uses.

A file is in the format of safetensors: eight bytes that tell the length of a JSON header, the header, the numbers. Text in the
header's `__metadata__` is the card of the weights. Nothing else of a file is read here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from contract.base import Record
from contract.errors import UsageError

SUFFIX = ".safetensors"
AUTO, ANALYTIC = "auto", "analytic"  # choices that name no file
HEADER_BYTES = 8
MAX_HEADER_BYTES = 2**20
_BUILT_IN = "policies.schedule.learned"
_IN_HOME = "policies"


class PolicyCard(Record):
    """What is known of learned weights. Texts are empty where the file does not tell. `origin`: where the file was found."""

    name: str
    path: Path
    origin: Literal["built in", "home", "file"]
    size_bytes: int
    chip: str = ""
    trained_on: str = ""
    date: str = ""


def read_card(path: Path, origin: Literal["built in", "home", "file"] = "file") -> PolicyCard:
    """The card of a file. Raises: UsageError for a file that cannot be read, or is no file of weights."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(HEADER_BYTES), "little")
            header = file.read(length) if length <= MAX_HEADER_BYTES else b""
        size = path.stat().st_size
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from exc
    try:
        kept = json.loads(header)["__metadata__"]
        texts = _flat(kept)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise UsageError(
            f"{path} is no file of learned weights: it has no card; `cudal2-agent policy list` shows some"
        ) from exc
    known = {name: texts.get(name, "") for name in ("chip", "trained_on", "date")}
    return PolicyCard(name=texts.get("name") or path.stem, path=path, origin=origin, size_bytes=size, **known)


def _flat(kept: Mapping[str, str]) -> dict[str, str]:
    """The texts of a card, which is the metadata itself or JSON under its key `card`."""
    card: Mapping[str, Any] = json.loads(kept["card"]) if "card" in kept else kept
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in card.items()}


def find_weights(home: Path) -> tuple[list[PolicyCard], list[str]]:
    """The built-in weights, then those in the home folder; and why files there are left out."""
    cards: list[PolicyCard] = []
    reasons: list[str] = []
    for path in _built_in():
        cards.append(read_card(path, "built in"))
    for path in sorted((home / _IN_HOME).glob(f"*{SUFFIX}")):
        try:
            cards.append(read_card(path, "home"))
        except UsageError as exc:
            reasons.append(str(exc))
    return cards, reasons


def chosen_weights(name: str, home: Path) -> PolicyCard:
    """The weights that a name or a path stands for. Raises: UsageError where there are none."""
    cards, _ = find_weights(home)
    found = next((card for card in cards if card.name == name), None)
    if found is not None:
        return found
    path = Path(name).expanduser()
    if path.is_file():
        return read_card(path.resolve())
    known = ", ".join(_distinct(card.name for card in cards)) or "none"
    raise UsageError(
        f"{name!r} is no file, and no policy among {known}; choose one of `cudal2-agent policy list`, or {ANALYTIC}"
    )


def _built_in() -> Iterator[Path]:
    try:
        folder = Path(str(files(_BUILT_IN)))
    except ModuleNotFoundError:  # a version without learned weights
        return
    yield from sorted(folder.glob(f"*{SUFFIX}"))


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
