"""The shapes of a campaign: the paper's grid, a file, or single shapes; and those that a file holds out."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_json, parse_record, read_file
from cudal2_agent.contract.records.task import Activation, Layout, parse_shape, too_large

GRID = "grid1000"
GRID_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)  # the CUDA-L2 paper's M, N and K


class WantedShape(Record):
    """A shape and how much it counts. `layout`: None for that of the command line.

    `bias`, `activation`, `gated`: as in `GemmTask`.
    """

    m: int
    n: int
    k: int
    layout: Layout | None = None
    bias: bool = False
    activation: Activation | None = None
    gated: bool = False
    weight: float = 1.0


class RecordedProduct(Record):
    """A matrix product of a model. `layout`: as in `Layout`, or `tt` where both operands are stored transposed.

    `part`: of the pass it belongs to: forward, dX (gradient of an input), dW (gradient of a weight). `count`: per pass.
    """

    m: int
    n: int
    k: int
    layout: str
    part: Literal["forward", "dX", "dW", "backward"]
    count: Annotated[int, Field(ge=0, le=2**53)]
    bias: Annotated[bool, Field(exclude_if=lambda bias: not bias)] = False
    activation: Annotated[Activation | None, Field(exclude_if=lambda activation: activation is None)] = None
    gated: Annotated[bool, Field(exclude_if=lambda gated: not gated)] = False


class ShapeFile(Record):
    """What `campaign record` writes."""

    format: Literal["cudal2-shapes"] = "cudal2-shapes"
    version: Literal[1] = 1
    products: tuple[RecordedProduct, ...]


def read_shapes(given: Sequence[str]) -> tuple[list[WantedShape], list[str]]:
    """The shapes that `--shapes` names, each once, and notices about those left out. Raises: UsageError."""
    found: list[WantedShape] = []
    notices: list[str] = []
    for word in (word for words in given for word in words.split(",") if word):
        if word == GRID:
            found += [WantedShape(m=m, n=n, k=k) for m, n, k in product(GRID_SIZES, repeat=3)]
        elif Path(word).is_file():
            shapes, told = _read_file(Path(word))
            found += shapes
            notices += told
        else:
            found.append(_parsed(word, f"--shapes {word!r} is neither {GRID} nor a file, and no shape either"))
    return _merged(found), notices


def _read_file(path: Path) -> tuple[list[WantedShape], list[str]]:
    try:
        text = read_file(path).decode()
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read as text ({exc})") from exc
    if text.lstrip().startswith("{"):
        return _recorded(path, text)
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    shapes = [_parsed(line, f"{path} line {number}") for number, line in lines if line]
    if not shapes:
        raise UsageError(f"{path} holds no shape; write one per line, like 4096x1024x512")
    return shapes, []


def _parsed(text: str, where: str) -> WantedShape:
    try:
        m, n, k = parse_shape(text)
    except UsageError as exc:
        raise UsageError(f"{where}: {exc}") from exc
    if problem := too_large(m, n, k):
        raise UsageError(problem)
    return WantedShape(m=m, n=n, k=k)


def _recorded(path: Path, text: str) -> tuple[list[WantedShape], list[str]]:
    """The products of a model that this version has layouts for and that are not too large, and notices about the others."""
    try:
        file = parse_record(ShapeFile, text)
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}; `cudal2-agent campaign record` writes such files") from exc
    known = {layout.value for layout in Layout}
    other = [one for one in file.products if one.layout not in known]
    of_known = [one for one in file.products if one.layout in known]
    large = [one for one in of_known if too_large(one.m, one.n, one.k)]
    layouts = ", ".join(sorted({one.layout for one in other}))
    notices = [
        f"{sum(one.count for one in left)} products of {path} are left out: {why}"
        for left, why in ((other, f"layout {layouts} is not supported"), (large, "an operand has over 2^31-1 elements"))
        if left
    ]
    return [
        WantedShape(
            m=one.m,
            n=one.n,
            k=one.k,
            layout=Layout(one.layout),
            bias=one.bias,
            activation=one.activation,
            gated=one.gated,
            weight=one.count,
        )
        for one in of_known
        if not too_large(one.m, one.n, one.k)
    ], notices


def _merged(shapes: Sequence[WantedShape]) -> list[WantedShape]:
    """Each shape once; weights of recorded products add up."""
    weights: dict[WantedShape, float] = {}
    for one in shapes:
        key = one.model_copy(update={"weight": 1.0})
        weights[key] = one.weight + (weights.get(key, 0.0) if one.layout else 0.0)
    return [key.model_copy(update={"weight": weight}) for key, weight in weights.items()]


def held_out_shapes(file: Path | None) -> list[str]:
    """The shapes of a JSON list, or of the lists `grid` and `off_grid` of an object; none without a file.

    Raises: UsageError.
    """
    if file is None:
        return []
    try:
        told = parse_json(read_file(file))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{file} cannot be read as JSON: {exc}") from exc
    lists = [told.get(name, []) for name in ("grid", "off_grid")] if isinstance(told, dict) else [told]
    shapes = [shape for each in lists if isinstance(each, list) for shape in each if isinstance(shape, str)]
    if not shapes:
        raise UsageError(f"{file} names no shapes; it should hold a JSON list of shapes, or lists grid and off_grid")
    return shapes
