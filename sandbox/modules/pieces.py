"""A task judged piece by piece along one of its axes, where the references of the whole take more memory than they should.

Covered: graphs with an axis that `graph_axes.py` can follow, which most have. Others are judged whole, where memory suffices.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.axis_rules import Axis, AxisPlace
from cudal2_agent.sandbox.modules.bounds import Judge, Verdict, as_booleans, finite_share, graph_of
from cudal2_agent.sandbox.modules.evaluations import REFERENCE, Evaluate, Evaluations, PieceEvaluations
from cudal2_agent.sandbox.modules.executor import Run, Values
from cudal2_agent.sandbox.modules.graph_axes import axes_of
from cudal2_agent.sandbox.modules.judge_memory import judge_bytes

ROOM = 0.5  # of the free device memory, for references
MOST_PIECES = 64
WHOLE_BYTES = 3 * 1024**3  # of a GPU, for the references of a piece: larger ones are no faster


@dataclass(frozen=True)
class AxisPiece:
    """`count` indices of an axis from `start` on. `places`: of the outputs that have the axis."""

    start: int
    count: int
    places: Mapping[str, AxisPlace]

    def of(self, outputs: Values) -> dict[str, torch.Tensor]:
        """The part of each output that belongs to this piece."""
        return {name: outputs[name].narrow(*place.range(self.start, self.count)) for name, place in self.places.items()}


@dataclass(frozen=True)
class SameInAll:
    """The outputs that are the same in every piece."""

    names: frozenset[str]

    def of(self, outputs: Values) -> dict[str, torch.Tensor]:
        return {name: outputs[name] for name in self.names}


class PieceJudge:
    """As `bounds.Judge`, whose references are made whenever they are asked for, `count` indices of an axis at a time.

    `nan_is_free`, `special`: as `bounds.Judge` takes them.
    """

    def __init__(
        self,
        task: ModuleTask,
        values: Values,
        seed: int,
        axis: Axis,
        count: int,
        *,
        nan_is_free: bool = False,
        special: bool = False,
    ) -> None:
        self._task, self._values, self._seed = task, values, seed
        self._nan_is_free, self._special = nan_is_free, special
        device = next(iter(values.values())).device
        evaluations = Evaluations(device, seed, task.arithmetic)
        self._pieces = PieceEvaluations(graph_of(task), axis, count, as_booleans(task, values), evaluations)
        written = {buffer.name: axis.place(task.graph.outputs[buffer.name]) for buffer in task.buffers if buffer.role.written}
        self._places = {name: place for name, place in written.items() if place is not None}
        self._whole: Judge | None = None
        self._same = frozenset(name for name, place in written.items() if place is None)

    @property
    def parts(self) -> list[AxisPiece | SameInAll]:
        """What is the same in all pieces, if anything is, and every piece."""
        found: list[AxisPiece | SameInAll] = [SameInAll(self._same)] if self._same else []
        return found + [AxisPiece(*each, self._places) for each in self._pieces.pieces() if self._places]

    def judge_of(self, part: AxisPiece | SameInAll) -> Judge:
        """A part's judge. That of a piece is made anew; only one should be in memory."""
        if isinstance(part, SameInAll):
            self._whole = self._whole or self._judge(self._same, self._evaluate(part), {})
            return self._whole
        origins = {name: place.range(part.start, part.count)[:2] for name, place in self._places.items()}
        return self._judge(self._places, self._evaluate(part), origins)

    def _evaluate(self, part: AxisPiece | SameInAll) -> Evaluate:
        return self._pieces.whole() if isinstance(part, SameInAll) else self._pieces.apart(part.start, part.count)

    def _judge(self, written: Collection[str], evaluate: Evaluate, origins: Mapping[str, tuple[int, int]]) -> Judge:
        return Judge(
            self._task,
            self._values,
            self._seed,
            evaluate=evaluate,
            written=written,
            origins=origins,
            nan_is_free=self._nan_is_free,
            special=self._special,
        )

    @property
    def finite(self) -> float:
        """That of the first part, without what rounding explains there."""
        part = self.parts[0]
        reference = self._evaluate(part)(REFERENCE)
        return finite_share(reference[name] for name in (self._same if isinstance(part, SameInAll) else self._places))

    @property
    def eager(self) -> dict[str, torch.Tensor]:
        """What eager PyTorch makes of the values."""
        return self._pieces.eager()

    def judge(self, run: Run) -> Verdict:
        whole = Verdict()
        for part in self._verdicts(run):
            whole = merged(whole, part)
        return whole

    def accepts(self, outputs: Values) -> bool:
        return all(each.right for each in self._verdicts(Run(outputs)))

    def _verdicts(self, run: Run) -> Iterator[Verdict]:
        for part in self.parts:
            covered = None if run.covered is None else part.of(run.covered)
            yield self.judge_of(part).judge(replace(run, outputs=part.of(run.outputs), covered=covered))


AnyJudge = Judge | PieceJudge


def judge_of(task: ModuleTask, values: Values, seed: int, *, nan_is_free: bool = False, special: bool = False) -> AnyJudge:
    """A judge whose references fit into the memory that is free."""
    device = next(iter(values.values())).device
    chosen = chosen_axis(task, ROOM * free_bytes(device))
    if chosen is not None:
        return PieceJudge(task, values, seed, *chosen, nan_is_free=nan_is_free, special=special)
    return Judge(task, values, seed, nan_is_free=nan_is_free, special=special)


def chosen_axis(task: ModuleTask, room: float) -> tuple[Axis, int] | None:
    """The axis whose pieces take the least memory, and how many of its indices a piece has; None where the whole takes little,
    or fits and no axis helps.
    """
    if math.isinf(room):
        return None
    graph = graph_of(task)
    whole = judge_bytes(task, graph)
    if whole <= min(room, WHOLE_BYTES):
        return None
    least = [(judge_bytes(task, graph, axis, 1), axis) for axis in axes_of(task)]
    few = [pair for pair in least if pair[0] <= WHOLE_BYTES / 2][:1]  # of an outer dimension, if that is enough
    smallest, axis = min(few or least, key=lambda pair: pair[0], default=(whole, None))
    if axis is None or smallest >= whole or (whole <= room and smallest > whole / 2):
        return None
    budget = min(room, max(WHOLE_BYTES, smallest + (whole - smallest) / MOST_PIECES))
    return axis, max(1, 1 + int((budget - smallest) * (axis.size - 1) / (whole - smallest)))


def free_bytes(device: torch.device) -> float:
    """Free memory of a GPU, with what torch holds unused; no limit on a CPU, whose tasks are small."""
    if device.type != "cuda":
        return math.inf
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


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
