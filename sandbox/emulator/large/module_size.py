"""At which size a module is proved: whole where it is small, else at smaller dims, which another trace gives.

Covered: dims that are extents, which shrink with equal residues; those of 16 or less (kernel sizes, strides, heads) stay.
Not covered: a source that has a size compiled in (`names_sizes`): what it does at other dims proves nothing.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask

# In elements of buffers and of the graph's values; `PRODUCTS_PER_ELEMENT` multiply-adds count as one.
WHOLE_WORK = 2**21  # up to which every test runs the task itself
AFFORDABLE_WORK = 2**24  # of a task that is run whole for want of a smaller one
REDUCED_WORK = 2**18  # of a smaller task, where its dims allow so few
PRODUCTS_PER_ELEMENT = 16
SMALL_DIM = 16
_CAPS = (32, 64, 16, 128, 256)  # of dims: the best first
_PERIOD = 32

Resize = Callable[[ModuleTask, Mapping[str, int]], ModuleTask]  # the module at other dims; raises UsageError


def work_of(task: ModuleTask) -> int:
    """What one run of a candidate moves and multiplies, in elements."""
    values = sum(math.prod(result.shape) for node in task.graph.nodes for result in node.results)
    return sum(buffer.elements for buffer in task.buffers) + values + task.flops // (2 * PRODUCTS_PER_ELEMENT)


def reduced_modules(task: ModuleTask, resize: Resize) -> Iterator[ModuleTask]:
    """The module at smaller dims that suit its file, those with little work first; nothing where the task is small."""
    if work_of(task) <= WHOLE_WORK:
        return
    larger: list[ModuleTask] = []
    for dims in smaller_dims(task.dims):
        try:
            found = resize(task, dims)
        except UsageError:
            continue
        if work_of(found) <= REDUCED_WORK:
            yield found
        elif work_of(found) <= min(AFFORDABLE_WORK, work_of(task) // 2):
            larger.append(found)
    yield from sorted(larger, key=work_of)


def smaller_dims(dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Dims to try. A dim above the cap keeps its residue modulo `_PERIOD`; a multiple of that becomes one.

    A multiple of another dim stays larger: groups of one channel, say, would be another module.
    """
    seen = [dict(dims)]
    for cap in _CAPS:
        tried = dict[str, int]()
        for name, size in sorted(dims.items(), key=lambda each: each[1]):
            parts = [tried[other] for other in tried if 1 < dims[other] < size and size % dims[other] == 0]
            capped = _capped(size, cap)
            tried[name] = _above(max(parts), capped, size) if parts else capped
        tried = {name: tried[name] for name in dims}
        if tried not in seen:
            seen.append(tried)
            yield tried


def _capped(size: int, cap: int) -> int:
    if size <= max(cap, SMALL_DIM):
        return size
    return min(size, cap + size % _PERIOD)


def _above(least: int, capped: int, size: int) -> int:
    """The next size above `least` with the residue of `capped`, at most the dim's own. All are positive."""
    while capped <= least:
        capped = capped + _PERIOD if capped % _PERIOD else 2 * capped
    return min(capped, size)


def names_sizes(candidate: Candidate, task: ModuleTask, reduced: ModuleTask) -> bool:
    """Whether the source may have a size compiled in that the reduced task changes: a number that occurs in its shapes and
    not in the reduced ones.
    """
    code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", candidate.source, flags=re.DOTALL)
    numbers = {int(number) for number in re.findall(r"(?<![\w.])(\d{2,9})(?![\w.])", code)}
    return bool(numbers & (_sizes(task) - _sizes(reduced)))


def _sizes(task: ModuleTask) -> set[int]:
    shapes = [buffer.shape for buffer in task.buffers]
    return {size for shape in shapes for size in (*shape, math.prod(shape), *shape[-1:])} | set(task.dims.values())
