"""What would find what a library lacks: a campaign, which searches kernels, or a tuning of cuBLASLt; with their GPU time."""

from collections.abc import Sequence
from pathlib import Path

from cudal2_agent.agent.library.advise.advice import Advice
from cudal2_agent.agent.library.advise.products import CountedProduct, shape_file
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.whole_file import whole_file

GPU_S_PER_SHAPE = 4.7  # mean of 890 offline searches of 32 candidates on one H200 (docs/results/speed.md)
BUDGET = 32
TUNING_S_PER_SHAPE = 0.5  # of 99 products of transformer blocks on one H200 (log/)


class SearchPlan(Record):
    """One campaign. `file`: of its shapes. `gpu_s`: expected GPU time of all of them. Unit: seconds.

    `tuning`: the command that looks for algorithms of cuBLASLt instead, in `tuning_s`.
    """

    element: str
    shapes: int
    file: str
    command: str
    gpu_s: float
    tuning: str
    tuning_s: float


def plan_searches(advice: Advice, file: Path, write: bool) -> tuple[SearchPlan, ...]:
    """A campaign per element type of the missing products; none where nothing is missing.

    `file`: for the shapes; a second element type is added to its name. `write`: whether the files are written.
    Raises: UsageError where one cannot be written.
    """
    missing = [one for one in advice.products if one.status == "missing" and not one.again]
    elements = sorted({one.product.element for one in missing})
    plans = []
    for element in elements:
        place = file if len(elements) == 1 else file.with_name(f"{file.stem}-{element}{file.suffix}")
        counted = [
            CountedProduct(product=one.product, calls=max(1, round(one.calls)))
            for one in missing
            if one.product.element == element
        ]
        plans.append(_plan(element, counted, place))
        if write:
            _write(place, counted)
    return tuple(plans)


def _plan(element: str, counted: Sequence[CountedProduct], file: Path) -> SearchPlan:
    shapes = len({(one.product.shape, one.product.layout, one.product.bias) for one in counted})
    command = f"cudal2-agent campaign run --shapes {file} --element {element} --budget {BUDGET} --name {file.stem}"
    return SearchPlan(
        element=element,
        shapes=shapes,
        file=str(file),
        command=command,
        gpu_s=shapes * GPU_S_PER_SHAPE,
        tuning=f"cudal2-agent library tune --shapes {file} --element {element} --out {file.stem}-tuned.jsonl.gz",
        tuning_s=shapes * TUNING_S_PER_SHAPE,
    )


def _write(file: Path, counted: Sequence[CountedProduct]) -> None:
    try:
        with whole_file(file) as place:
            place.write_text(shape_file(counted).model_dump_json(indent=1) + "\n", "utf-8")
    except OSError as exc:
        raise UsageError(f"{file} cannot be written ({exc.strerror}); name a folder that exists with --shapes-out") from exc
