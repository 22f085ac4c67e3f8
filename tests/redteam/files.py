"""Cases in files of their own: attacks in the source text, and attacks by authors who have not seen the defence.

The comment `// redteam: {...}` holds the fields of a table row; `// blind: {...}` holds the author's intention.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import GemmTask, parse_shape
from tests.redteam.case import Case, fields_of, task

FOLDER = Path(__file__).parent
SMALLER = ("128x128x64", "256x256x128", "512x512x256")  # for the emulator, if the author names no size
_COMMENT = re.compile(r"^//\s*(redteam|blind):\s*", re.MULTILINE)
_STOPPED = {"20_white_space_flood"}  # the compiler works on it until its limit
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
    """An attack without layers by its author: on a GPU any refusal counts, and so does a kernel without gain."""
    fields = fields_of(data)
    whole = task(data["shape"], **fields)
    return Case(
        name=path.stem,
        group="blind",
        source=source,
        task=whole,
        small=task(data["small"], **fields) if "small" in data else _smaller(source, whole),
        why=str(data.get("idea", "")),
        gpu=_JUDGED_LATER,
        flags=tuple(data.get("flags", ())),
        blind=True,
        gain=str(data.get("gain", "")),
        hangs=path.stem in _STOPPED,
    )


def _smaller(source: str, whole: GemmTask) -> GemmTask:
    """The first small task that the plan allows, else the whole task."""
    for shape in SMALLER:
        m, n, k = parse_shape(shape)
        small = whole.model_copy(update={"m": m, "n": n, "k": k})
        try:
            resolve(parse_plan(source), small, LIMITS[small.arch], REFERENCE_CHIPS[small.arch].sms)
        except PlanError:
            continue
        return small
    return whole


def files() -> Iterator[Case]:
    """Every file's case, in the order of their names."""
    for folder in ("attacks", "honest", "blind"):
        for path in sorted((FOLDER / folder).rglob("*.cu")):
            yield read(path)
