"""The time of a module's plan by what its steps move: a floor that tells plans apart by what they fuse. Pure.

Covered: every launch and library call moves the buffers that it names once, at the rate of device memory, and waits for the
step before it; the arithmetic of the task at its full rate, where that is longer.
Not covered: how well a kernel uses memory or multiplies, and caches. Two plans that move the same bytes tie.
"""

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from cudal2_agent.contract.plan.chip import FIGURES, Chip
from cudal2_agent.contract.plan.plan import (
    Arg,
    ResolvedLaunch,
    ResolvedPlan,
    TensorArg,
    TensorMapArg,
    TensorPartArg,
)
from cudal2_agent.contract.records.module_task import WORKSPACE, ModuleTask
from cudal2_agent.contract.reward.roofline import arithmetic_us, transfer_us


class PlanStep(NamedTuple):
    """One step of a plan, in the order in which they run. `launch`: its place among the launches; None of a library call.

    `moved`: bytes by buffer. `out`: the buffer that a library call writes; empty where the plan does not say.
    """

    name: str
    launch: int | None
    moved: dict[str, float]
    out: str = ""


def steps_of(plan: ResolvedPlan, task: ModuleTask) -> list[PlanStep]:
    """A buffer of which launches take parts only, as steps of a scan do, is moved once by all."""
    bytes_of = {buffer.name: float(buffer.bytes) for buffer in task.buffers} | _scratch_bytes(plan)
    parts = Counter(name for launch in plan.launches for name, whole in _named(launch) if not whole)
    launches = []
    for place, launch in enumerate(plan.launches):
        moved = {name: bytes_of.get(name, 0.0) / (1 if whole else parts[name]) for name, whole in _named(launch)}
        launches.append(PlanStep(launch.entry, place, moved))
    steps = []
    for place in range(len(launches) + 1):
        for each in (one.call for one in plan.calls if one.before == place):
            moved = {view.tensor: bytes_of[view.tensor] for view in (*each.inputs, each.out)}
            steps.append(PlanStep(each.call, None, moved, each.out.tensor))
        steps += launches[place : place + 1]
    return steps


def traffic_us(plan: ResolvedPlan, task: ModuleTask, chip: Chip) -> float:
    """Unit: microseconds."""
    steps = steps_of(plan, task)
    moved = sum(sum(step.moved.values()) for step in steps)
    return max(transfer_us(moved, chip), arithmetic_us(task, chip)) + _steps_us(len(steps), chip)


def _steps_us(steps: int, chip: Chip) -> float:
    """What launches take when each waits for the one before: the first as a single launch among others."""
    figures = FIGURES.get(chip.arch)
    first, later = (max(figures.empty_us.values()), figures.dependent_us) if figures else (chip.launch_us, chip.launch_us)
    return first + later * max(steps - 1, 0)


def _named(launch: ResolvedLaunch) -> Iterator[tuple[str, bool]]:
    """The buffers that a launch names, each once, and whether it may reach all of it."""
    found: dict[str, bool] = {}
    for arg in launch.args:
        if (named := _buffer_of(arg)) is not None:
            found[named[0]] = found.get(named[0], False) or named[1]
    yield from found.items()


def _buffer_of(arg: Arg) -> tuple[str, bool] | None:
    match arg:
        case TensorArg(tensor=name):
            return name, True
        case TensorPartArg(tensor=name):
            return name, False
        case TensorMapArg(tensor_map=spec) if spec.of != WORKSPACE:
            return spec.of, True
    return None


def _scratch_bytes(plan: ResolvedPlan) -> dict[str, float]:
    return {each.name: float(prod(map(int, each.shape)) * each.element.bytes) for each in plan.scratch}
