"""Cases that are whole files: where the text is the attack, and the attacks of somebody who has not seen the defence.

The comment `// redteam: {...}` in the file says what a row of the tables says; `// blind: {...}` what its author meant.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.redteam.case import Case, fields_of, task

FOLDER = Path(__file__).parent
SMALL = "128x128x64"
_COMMENT = re.compile(r"^//\s*(redteam|blind):\s*", re.MULTILINE)
_JUDGED_LATER = ("rejected", "compile_failed", "crashed", "timed_out", "wrong:*", "no-gain")


def read(path: Path) -> Case:
    """The case of one file. Raises: ValueError where its comment is missing or wrong."""
    source = path.read_text()
    found = _COMMENT.search(source)
    if found is None:
        raise ValueError(f"{path}: there is no '// redteam: {{...}}' or '// blind: {{...}}' comment")
    data, _ = json.JSONDecoder().raw_decode(source, found.end())
    return _blind(path, source, data) if found[1] == "blind" else _written(path, source, data)


def _written(path: Path, source: str, data: dict[str, Any]) -> Case:
    layers = data.get("layers", {})
    everywhere = tuple(layers.get("any") or ())
    fields = fields_of(data)
    shape = data["shape"]
    return Case(
        name=path.stem,
        group=data["class"],
        source=source,
        task=task(shape, **fields),
        small=task(data.get("small", shape), **fields),
        why=data["why"],
        honest=bool(data.get("honest", False)),
        gpu=everywhere or tuple(layers.get("gpu") or ()),
        emulator=everywhere or tuple(layers.get("emulator") or ()),
        flags=tuple(data.get("flags", ())),
    )


def _blind(path: Path, source: str, data: dict[str, Any]) -> Case:
    """An attack whose author names no layers: on a GPU any refusal counts, and so does that it gains nothing."""
    fields = fields_of(data)
    return Case(
        name=path.stem,
        group="blind",
        source=source,
        task=task(data["shape"], **fields),
        small=task(data.get("small", SMALL), **fields),
        why=str(data.get("idea", "")),
        gpu=_JUDGED_LATER,
        flags=tuple(data.get("flags", ())),
        blind=True,
        gain=str(data.get("gain", "")),
    )


def files() -> Iterator[Case]:
    """Every file's case, in the order of their names."""
    for folder in ("attacks", "honest", "blind"):
        for path in sorted((FOLDER / folder).rglob("*.cu")):
            yield read(path)
