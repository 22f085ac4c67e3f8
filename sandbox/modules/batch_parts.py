"""A task at fewer rows of its batch: the same operations on a part of every input that has the batch as its first dimension.

A reference in float64, with its bound, takes a dozen times the memory of an output. Of large modules it is made piece by piece.
Covered: graphs in which every output has the batch as its first dimension, without states.
Not covered: rows that meet in an operation, such as a softmax over the batch. There the references differ from PyTorch's own
result, so that its baselines are left out as wrong, which shows it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.records.module_graph import GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.sandbox.modules.bounds import Judge, Verdict, as_booleans
from cudal2_agent.sandbox.modules.executor import Run, Values
from cudal2_agent.sandbox.modules.interpreter import Interpreter

ROOM = 0.5  # of the free device memory, for references
# Operators whose list of sizes, or whose number at this place, may be that of the batch.
_SIZES = frozenset(
    ("view", "reshape", "_unsafe_view", "expand", "full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full")
)
_COUNTS = {"native_group_norm": 3}


@dataclass(frozen=True)
class BatchPart:
    """Rows `start` to `start + count` of a batch. `task`: at that many rows. `split`: names of the buffers that are cut."""

    task: ModuleTask
    start: int
    count: int
    split: frozenset[str]

    def of(self, values: Values) -> dict[str, torch.Tensor]:
        """The part of some values that these rows have."""
        return {
            name: value[self.start : self.start + self.count] if name in self.split else value for name, value in values.items()
        }


def batch_of(task: ModuleTask) -> int | None:
    """The size of the batch: the first dimension of every output, of the first input too; None where there is none."""
    outputs = [buffer for buffer in task.buffers if buffer.role is Role.OUTPUT]
    if any(buffer.role is Role.STATE for buffer in task.buffers) or not all(buffer.shape for buffer in outputs):
        return None
    sizes = {buffer.shape[0] for buffer in outputs}
    inputs = [buffer for buffer in task.buffers if buffer.role is Role.INPUT and buffer.shape]
    return next(iter(sizes)) if len(sizes) == 1 and any(buffer.shape[0] in sizes for buffer in inputs) else None


def part_of(task: ModuleTask, batch: int, start: int, count: int) -> BatchPart:
    """The task at some rows of its batch; the graph must not mix them."""

    def cut(buffer: Buffer) -> bool:
        return buffer.role in (Role.INPUT, Role.OUTPUT) and bool(buffer.shape) and buffer.shape[0] == batch

    split = frozenset(buffer.name for buffer in task.buffers if cut(buffer))
    buffers = tuple(
        buffer.model_copy(update={"shape": (count, *buffer.shape[1:])}) if buffer.name in split else buffer
        for buffer in task.buffers
    )
    graph = task.graph.model_copy(update={"nodes": tuple(_cut(node, batch, count) for node in task.graph.nodes)})
    return BatchPart(task.model_copy(update={"buffers": buffers, "graph": graph}), start, count, split)


class PartJudge:
    """As `bounds.Judge`, whose references are made piece by piece whenever they are asked for."""

    def __init__(self, task: ModuleTask, values: Values, seed: int, batch: int, count: int, *, nan_is_free: bool) -> None:
        self._task, self._values, self._seed, self._nan_is_free = task, values, seed, nan_is_free
        self._batch, self._count = batch, count
        self._outputs = [buffer.name for buffer in task.buffers if buffer.role is Role.OUTPUT]

    def parts(self) -> Iterator[tuple[BatchPart, Judge]]:
        """Each piece with its judge. Raises: MachineError where rows do not stand alone."""
        for rows in pieces(self._task, self._batch, self._count):
            try:
                judge = Judge(rows.task, rows.of(self._values), self._seed, nan_is_free=self._nan_is_free)
            except ValueError as exc:
                if isinstance(exc.__cause__, torch.OutOfMemoryError):
                    raise
                why = f"{self._task.name} is too large for its references, and cannot be cut along its batch"
                raise MachineError(f"{why}: {exc}") from exc
            yield rows, judge

    @property
    def finite(self) -> float:
        """That of the first rows."""
        return next(iter(self.parts()))[1].finite

    @property
    def eager(self) -> dict[str, torch.Tensor]:
        """What eager PyTorch makes of the values."""
        device = next(iter(self._values.values())).device
        return Interpreter(self._task.graph, str(device)).run(as_booleans(self._task, self._values))

    def judge(self, run: Run) -> Verdict:
        whole = Verdict()
        for part in self._verdicts(run):
            whole = merged(whole, part)
        return whole

    def accepts(self, outputs: Values) -> bool:
        return all(each.right for each in self._verdicts(Run(outputs)))

    def _verdicts(self, run: Run) -> Iterator[Verdict]:
        for rows, judge in self.parts():
            outputs = rows.of({name: run.outputs[name] for name in self._outputs})
            covered = None if run.covered is None else rows.of(run.covered)
            verdict = judge.judge(replace(run, outputs=outputs, covered=covered))
            if verdict.first and rows.start:
                verdict.first = f"{verdict.first} (counted from row {rows.start})"
            yield verdict


AnyJudge = Judge | PartJudge


def judge_of(task: ModuleTask, values: Values, seed: int, *, nan_is_free: bool = False) -> AnyJudge:
    """A judge whose references fit into the memory that is free."""
    needed, batch = reference_bytes(task), batch_of(task)
    room = ROOM * free_bytes(next(iter(values.values())).device)
    if needed > room and batch is not None:
        return PartJudge(task, values, seed, batch, max(1, int(batch * room / needed)), nan_is_free=nan_is_free)
    return Judge(task, values, seed, nan_is_free=nan_is_free)


def free_bytes(device: torch.device) -> float:
    """Free memory of a GPU, with what torch holds unused; no limit on a CPU, whose tasks are small."""
    if device.type != "cuda":
        return math.inf
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def reference_bytes(task: ModuleTask) -> int:
    """About what a judge takes while it is made: of an output the reference, eager's, a sum and a flag; of values float64."""
    written = sum(buffer.elements for buffer in task.buffers if buffer.role.written)
    read = sum(buffer.elements for buffer in task.buffers if buffer.role is Role.INPUT)
    largest = max((math.prod(result.shape) for node in task.graph.nodes for result in node.results), default=0)
    return 24 * written + 12 * read + 16 * largest


def merged(one: Verdict, other: Verdict) -> Verdict:
    """What two parts of an output come to."""
    return Verdict(
        elements=one.elements + other.elements,
        wrong=one.wrong + other.wrong,
        unwritten=one.unwritten + other.unwritten,
        unwritten_nan=one.unwritten_nan + other.unwritten_nan,
        worst=max(one.worst, other.worst),
        typical=max(one.typical, other.typical),
        first=one.first or other.first,
    )


def pieces(task: ModuleTask, batch: int, count: int) -> Iterator[BatchPart]:
    """All rows, at most `count` at a time."""
    for start in range(0, batch, count):
        yield part_of(task, batch, start, min(count, batch - start))


def _cut(node: GraphNode, batch: int, count: int) -> GraphNode:
    name = node.op.removeprefix("aten.").partition(".")[0]
    results = tuple(_cut_type(each, batch, count) for each in node.results)
    args: list[Any] = list(node.args)
    for place, value in enumerate(args):
        sizes = name in _SIZES and results != node.results and isinstance(value, list | tuple) and bool(value)
        if sizes and _divides(value[0], batch):
            args[place] = [value[0] // batch * count, *value[1:]]
        elif _COUNTS.get(name) == place and value == batch:
            args[place] = count
    return node.model_copy(update={"results": results, "args": tuple(args)})


def _cut_type(found: TensorType, batch: int, count: int) -> TensorType:
    if not found.shape or not _divides(found.shape[0], batch):
        return found
    return found.model_copy(update={"shape": (found.shape[0] // batch * count, *found.shape[1:])})


def _divides(size: Any, batch: int) -> bool:
    return isinstance(size, int) and size > 0 and size % batch == 0
