"""Smaller sizes at which a problem still runs. In the jail: each size that is tried is one run on tensors without values.

The largest sizes shrink first, by powers of two, so that what divides them keeps dividing them. Sizes that are equal shrink
together where they cannot shrink alone. The number of operations stays: a network with fewer layers is another module.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cudal2_agent.contract.errors import UsageError

OPERATIONS_PER_ELEMENT = 32  # of products and sums that count as one element
_FACTORS = (16, 4, 2)
_SMALL = (16, 8)  # sizes up to here stay, in a first and a second pass: kernel sizes, strides, heads
_PATIENCE_S = 60.0

Load = Callable[[Mapping[str, int]], tuple[torch.nn.Module, list[Any]]]  # the module and its inputs at these sizes


class _Work(NamedTuple):
    """Elements of all results, with what products count; and how many operations there are."""

    elements: int
    operations: int


class _Elements(TorchDispatchMode):
    """Counts the elements of all results, and the operations."""

    count = operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        self.count += sum(each.numel() for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor))
        return result


def smaller_dims(dims: Mapping[str, int], most_work: int, load: Load) -> dict[str, int]:
    """Sizes with at most so much work, or with the least that was found in a minute. Raises: UsageError."""
    best, least = dict(dims), _work(dims, load)
    if least is None:
        raise UsageError("the module does not run at its own sizes")
    until = time.monotonic() + _PATIENCE_S
    for small in _SMALL:
        stuck: set[tuple[str, ...]] = set()
        while least.elements > most_work and time.monotonic() < until:
            step = _smaller(best, least, load, small, least.elements / most_work, stuck)
            if step is None:
                break
            best, least = step
    return best


def _smaller(
    dims: dict[str, int], least: _Work, load: Load, small: int, excess: float, stuck: set[tuple[str, ...]]
) -> tuple[dict[str, int], _Work] | None:
    """Sizes with less work, the largest changed; None where none is left.

    `excess`: how many times too much work there is. `stuck`: groups that could not shrink, to which more are added.
    """
    for group in _groups(dims, small):
        if group in stuck:
            continue
        for factor in (each for each in _FACTORS if each * each <= excess or each == 2):
            size = dims[group[0]] // factor
            tried = {**dims, **dict.fromkeys(group, size)}
            work = _work(tried, load) if size >= small // 2 else None
            if work is not None and work.elements < least.elements and work.operations == least.operations:
                return tried, work
        stuck.add(group)
    return None


def _groups(dims: Mapping[str, int], small: int) -> Iterator[tuple[str, ...]]:
    by_size: dict[int, list[str]] = {}
    for name, size in dims.items():
        if size > small:
            by_size.setdefault(size, []).append(name)
    for size in sorted(by_size, reverse=True):
        yield from ((name,) for name in by_size[size])
        if len(by_size[size]) > 1:
            yield tuple(by_size[size])


def _work(dims: Mapping[str, int], load: Load) -> _Work | None:
    """None where the module does not run at these sizes, or has an empty result."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    products, elements = FlopCounterMode(display=False), _Elements()
    try:
        try:
            with mode:
                model, inputs = load(dims)
        except DataDependentOutputException:
            model, inputs = load(dims)
            inputs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, inputs)
        with mode, products, elements:
            result = model(*inputs)
    except Exception:  # noqa: BLE001 (sizes that do not suit the file fail in any way)
        return None
    tensors = [each for each in pytree.tree_leaves([result, inputs]) if isinstance(each, torch.Tensor)]
    if any(not each.numel() for each in tensors):
        return None
    held = sum(each.numel() for each in [*model.parameters(), *tensors])
    return _Work(held + elements.count + products.get_total_flops() // OPERATIONS_PER_ELEMENT, elements.operations)
