"""Calls of library operations inside a plan: a fixed list, over named buffers, run by the trusted launcher.

The arithmetic of a call is the task's. Its data types are those of its buffers.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.expression import evaluate
from cudal2_agent.contract.records.named_buffer import Buffer, BufferName

Expression = int | str
# Of inputs: mm (a, b), bmm (a, b), conv and conv_transpose (x, weight), sdpa (q, k, v or with a mask).
Operation = Literal["mm", "bmm", "conv", "conv_transpose", "sdpa"]
CONVOLUTIONS = ("conv", "conv_transpose")
_INPUTS = {"mm": (2,), "bmm": (2,), "conv": (2, 3), "conv_transpose": (2, 3), "sdpa": (3, 4)}
_RANKS = {"mm": (2, 2), "bmm": (3, 3), "conv": (3, 5), "conv_transpose": (3, 5), "sdpa": (3, 4)}


class View(Record):
    """A buffer as an operation sees it. `shape`: row-major, of as many elements; the buffer's own where it is None.
    `permute`: then the order of its dimensions.
    """

    tensor: BufferName
    shape: tuple[Expression, ...] | None = None
    permute: tuple[int, ...] | None = None


class LibraryCall(Record):
    """One call. `out`: where the result goes, row-major; a view of it may not be permuted.

    Convolutions: the third input is a bias; `stride`, `padding`, `dilation` and `output_padding` have one number for each
    spatial dimension. `search`: the library times its algorithms before the first run and keeps the fastest; otherwise it
    takes the one that its heuristic names.
    sdpa: the fourth input is an additive mask; `scale` is 1/sqrt(last dimension) where it is None.
    """

    call: Operation
    inputs: Annotated[tuple[View, ...], Field(min_length=2, max_length=4)]
    out: View
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    search: Annotated[bool, Field(exclude_if=lambda search: not search)] = False
    causal: bool = False
    scale: float | None = None


class ResolvedCall(Record):
    """A call in plain numbers. `before`: how many kernel launches of the resolved plan precede it. `call.*.shape` is whole."""

    before: int
    call: LibraryCall


def resolve_call(call: LibraryCall, buffers: Mapping[str, Buffer], names: Mapping[str, int]) -> LibraryCall:
    """The call with every view's shape in whole numbers. Raises: PlanError for what no library could run."""
    if len(call.inputs) not in _INPUTS[call.call]:
        raise PlanError("plan-call", f"{call.call} takes {' or '.join(map(str, _INPUTS[call.call]))} inputs")
    inputs = tuple(_view(view, buffers, names) for view in call.inputs)
    out = _view(call.out, buffers, names)
    if out.permute is not None:
        raise PlanError("plan-call", f"{call.call}: its result is written row-major; `out` may not be permuted")
    if not buffers[call.out.tensor].role.written:
        raise PlanError("plan-write-input", f"{call.call}: {call.out.tensor} is an input and may not be written")
    low, high = _RANKS[call.call]
    for view in (*inputs[:2], out):
        if not low <= len(view.shape or ()) <= high:
            raise PlanError(
                "plan-call", f"{call.call}: {view.tensor} has {len(view.shape or ())} dimensions, not {low} to {high}"
            )
    if call.groups < 1 or any(value < 0 for value in (*call.padding, *call.output_padding)):
        raise PlanError("plan-call", f"{call.call}: groups must be at least 1 and paddings may not be negative")
    if call.search and call.call not in CONVOLUTIONS:
        raise PlanError("plan-call", f"{call.call}: the library searches algorithms of convolutions only")
    if any(value < 1 for value in (*call.stride, *call.dilation)):
        raise PlanError("plan-call", f"{call.call}: strides and dilations must be at least 1")
    return call.model_copy(update={"inputs": inputs, "out": out})


def _view(view: View, buffers: Mapping[str, Buffer], names: Mapping[str, int]) -> View:
    buffer = known(view.tensor, buffers)
    shape = buffer.shape if view.shape is None else tuple(evaluate(size, names) for size in view.shape)
    if min(shape, default=1) < 0 or math.prod(shape) != buffer.elements:
        raise PlanError(
            "plan-call", f"{view.tensor} has {buffer.elements} elements; a view of it as {shape} has another number"
        )
    if view.permute is not None and sorted(view.permute) != list(range(len(shape))):
        raise PlanError("plan-call", f"permute {view.permute} of {view.tensor} is no order of {len(shape)} dimensions")
    return view.model_copy(update={"shape": shape})


def known(name: str, buffers: Mapping[str, Buffer]) -> Buffer:
    """The buffer of that name. Raises: PlanError with the names that there are."""
    if name not in buffers:
        raise PlanError("plan-tensor", f"no buffer is named {name!r}; there are {', '.join(sorted(buffers))}")
    return buffers[name]
