"""The tasks of a calibration: a list of shapes, in an order of which each beginning is spread over the sizes of work."""

import json
from pathlib import Path

from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, TimingMode, parse_shape

SHAPES = Path(__file__).with_name("shapes.json")
# Every fourth shape judges. The list goes through five classes of size in turn, so that each is held back equally often.
HELD_BACK_EVERY = 4


def calibration_tasks(arch: Arch, mode: TimingMode, accumulate: AccumulatorType) -> list[GemmTask]:
    """In the order in which they are measured. None is a shape that training and benchmarks hold out."""
    shapes = [parse_shape(shape) for shape in json.loads(SHAPES.read_text("utf-8"))]
    return [GemmTask(m=m, n=n, k=k, arch=arch, mode=mode, accumulate=accumulate) for m, n, k in shapes]


def held_back(tasks: list[GemmTask]) -> frozenset[str]:
    """The ids of the tasks that no fit and no training sees."""
    return frozenset(task.id for task in tasks[HELD_BACK_EVERY - 1 :: HELD_BACK_EVERY])
