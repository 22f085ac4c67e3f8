"""Tensor maps as views of memory: their expressions, their limits, and the one layout that every launcher reads."""

import itertools
import math
import operator
from collections.abc import Mapping
from typing import NamedTuple

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.expression import evaluate
from cudal2_agent.contract.plan.library_call import known
from cudal2_agent.contract.plan.plan import TensorMapSpec
from cudal2_agent.contract.records.module_task import WORKSPACE
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement

MAX_MAP_SIZE, MAX_MAP_STRIDE = 2**32, 2**40  # of a dimension: elements; bytes


class MapLayout(NamedTuple):
    """A resolved tensor map's view. `sizes`: elements, the contiguous dimension first; `strides`: bytes, of the others."""

    offset_bytes: int
    element: BufferElement
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def map_layout(spec: TensorMapSpec, buffers: Mapping[str, Buffer]) -> MapLayout:
    """What a tensor map describes, for every launcher. `buffers`: the task's and the plan's scratch, by name."""
    if not spec.dims:
        rows, columns = buffers[spec.of].rows_and_columns
        element = buffers[spec.of].element
        return MapLayout(0, element, (columns, rows), (columns * element.bytes,))
    element = spec.element or buffers[spec.of].element
    sizes = tuple(map(int, spec.dims))
    strides = tuple(map(int, spec.strides)) or tuple(itertools.accumulate(sizes[:-1], operator.mul))
    return MapLayout(int(spec.offset_bytes), element, sizes, tuple(stride * element.bytes for stride in strides))


def resolve_map(
    spec: TensorMapSpec, buffers: Mapping[str, Buffer], workspace_bytes: int, most: int, names: Mapping[str, int]
) -> TensorMapSpec:
    """The map in plain numbers. One without dims of its own stays as it is. `most`: bytes of a box. Raises: PlanError."""
    memory = _mapped_bytes(spec, buffers, workspace_bytes)
    if spec.dims:
        numbers = {name: tuple(evaluate(each, names) for each in getattr(spec, name)) for name in ("dims", "strides")}
        spec = spec.model_copy(update={**numbers, "offset_bytes": evaluate(spec.offset_bytes, names)})
    elif spec.strides or spec.offset_bytes:
        raise PlanError("plan-tensor-map", f"a map of {spec.of} with strides or an offset needs dims")
    layout = map_layout(spec, buffers)
    _check_view(spec, layout, memory)
    _check_box(spec, layout, most)
    return spec


def _mapped_bytes(spec: TensorMapSpec, buffers: Mapping[str, Buffer], workspace_bytes: int) -> int:
    """Bytes of the memory that a map is of."""
    if spec.of != WORKSPACE:
        if spec.element is not None:
            raise PlanError("plan-tensor-map", f"{spec.of} has its own element; only a map of the workspace names one")
        return known(spec.of, buffers).bytes
    if spec.element is None or not spec.dims:
        raise PlanError("plan-tensor-map", "a map of the workspace needs dims and an element, such as f16")
    return workspace_bytes


def _check_view(spec: TensorMapSpec, layout: MapLayout, memory: int) -> None:
    """A map reaches no byte outside its memory. Raises: PlanError."""
    if len(layout.strides) != len(layout.sizes) - 1:
        raise PlanError("plan-tensor-map", f"{len(layout.sizes)} dims of {spec.of} need {len(layout.sizes) - 1} strides")
    if not spec.dims:
        if layout.strides[0] % 16:
            row = f"a row of {spec.of} is {layout.strides[0]} bytes"
            raise PlanError("plan-tensor-map", f"{row}; TMA needs a multiple of 16: map every eighth row by dims and strides")
        return
    if not all(1 <= size <= MAX_MAP_SIZE for size in layout.sizes):
        raise PlanError("plan-tensor-map", f"dims {layout.sizes} of {spec.of}: each must be 1 to {MAX_MAP_SIZE}")
    if layout.offset_bytes % 16 or any(stride % 16 or not 0 < stride < MAX_MAP_STRIDE for stride in layout.strides):
        at = f"offset {layout.offset_bytes}, strides {layout.strides} bytes"
        raise PlanError("plan-tensor-map", f"a map of {spec.of} has {at}; TMA needs multiples of 16, and strides above 0")
    beyond = sum((size - 1) * stride for size, stride in zip(layout.sizes[1:], layout.strides, strict=True))
    end = layout.offset_bytes + beyond + layout.sizes[0] * layout.element.bytes
    if layout.offset_bytes < 0 or end > memory:
        raise PlanError("plan-tensor-map", f"a map of {spec.of} reaches from byte {layout.offset_bytes} to {end} of {memory}")


def _check_box(spec: TensorMapSpec, layout: MapLayout, most: int) -> None:
    row_bytes = spec.box[0] * layout.element.bytes
    if len(spec.box) != len(layout.sizes):
        raise PlanError(
            "plan-tensor-map", f"box {spec.box} of {spec.of} needs {len(layout.sizes)} sizes, one for each dimension"
        )
    if not all(1 <= size <= 256 for size in spec.box) or row_bytes % 16:
        raise PlanError(
            "plan-tensor-map", f"box {spec.box} of {spec.of}: sizes must be 1 to 256, the inner one a multiple of 16 bytes"
        )
    if spec.swizzle and row_bytes > spec.swizzle:
        raise PlanError(
            "plan-tensor-map",
            f"box {spec.box} of {spec.of}: {row_bytes} inner bytes exceed the {spec.swizzle}-byte swizzle",
        )
    if spec.dims and math.prod(spec.box) * layout.element.bytes > most:
        raise PlanError("plan-tensor-map", f"box {spec.box} of {spec.of} is larger than shared memory")
