"""Schedules that somebody names by their axes: a model, a tool, a person. They are completed, checked and written.

`schedules_for(task, chip)` gives the families of a task with their axes, the prior's best schedules, and `expand`: from axes
to a candidate, or to every reason why there is none. An axis has the values that occur in the family's space for the task,
as in the neighbours that the schedule policy tries. So a candidate from here is one that the policy could have written.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate, ScheduleValue
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, Values, entry_of
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Prior
from cudal2_agent.policies.schedule.optimiser.schedule_pool import MAX_OF_FAMILY

MAX_COMPLETIONS = 64  # schedules of the space that lend their other axes to a combination that the space does not hold
_SHOWN_CHARS = 40


@dataclass(frozen=True)
class Unwritable:
    """Every reason found why named axes make no schedule of the task."""

    reasons: tuple[str, ...]


@dataclass(frozen=True)
class PredictedSchedule:
    """A schedule of a family's space with a prior's time. Unit: microseconds."""

    entry: PoolEntry
    predicted_us: float

    @property
    def schedule(self) -> Schedule:
        return self.entry.schedule

    @property
    def values(self) -> Values:
        return self.entry.values


class FamilySchedules:
    """One family's schedules for a task. `axes`: their values in the space; `ranked`: schedules, fastest predicted first.

    Of a large space a fixed sample is ranked, so that equal axes are completed alike in every run.
    """

    def __init__(self, family: Family[Any], space: Sequence[Schedule], task: GemmTask, chip: Chip) -> None:
        self.family, self.task = family, task
        self.axes = _axes(space)
        sample = random.Random(0).sample(space, MAX_OF_FAMILY) if len(space) > MAX_OF_FAMILY else space
        entries = [entry_of(family, schedule, task, chip) for schedule in sample]
        predicted = ANALYTIC.predict_us(entries, task, chip)
        self.ranked = sorted(map(PredictedSchedule, entries, map(float, predicted)), key=_time_us)

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def choices(self) -> dict[str, tuple[ScheduleValue, ...]]:
        """The axes that have more than one value for the task."""
        return {axis: values for axis, values in self.axes.items() if len(values) > 1}

    def wrong_axes(self, given: Mapping[str, object]) -> Iterator[str]:
        """Why axes cannot be in any schedule of the task: their names or their values."""
        unknown = [axis for axis in given if axis not in self.axes]
        for axis in unknown:
            yield f"{self.name} has no axis {_shown(axis)}"
        if unknown:
            yield f"the axes of {self.name} are {', '.join(axis for axis in self.axes if axis != 'family')}"
        for axis, value in given.items():
            allowed = self.axes.get(axis, ())
            if axis in self.axes and not any(type(value) is type(one) and value == one for one in allowed):
                yield f"{axis} is {_shown(value)}; allowed here: {', '.join(map(_shown, allowed))}"

    def complete(self, given: Mapping[str, ScheduleValue]) -> Schedule | Unwritable:
        """The fastest predicted schedule of the space with these axes.

        Where the space holds none, other axes come from the schedule that has most of them and with which they are valid.
        """
        exact = next((one for one in self.ranked if _agreeing(one, given) == len(given)), None)
        if exact is not None:
            return exact.schedule
        near = sorted(self.ranked, key=lambda one: -_agreeing(one, given))[:MAX_COMPLETIONS]
        fewest: tuple[str, ...] = ()
        for one in near:
            schedule, reasons = self._combined({**one.values, **given})
            if schedule is not None:
                return schedule
            fewest = min(fewest or reasons, reasons, key=len)
        nearest = self.brief(near[0].values) | {axis: near[0].values[axis] for axis in given}
        return Unwritable((*fewest, f"the nearest that can run is {json.dumps(nearest)}"))

    def brief(self, values: Mapping[str, ScheduleValue]) -> Values:
        """The axes of a schedule that differ from the family's defaults, and those that `complete` needs to find it again."""
        fields = self.family.schedule.model_fields
        given = {axis: value for axis, value in values.items() if axis == "family" or fields[axis].default != value}
        while True:
            found = self.complete(given)
            completed = found.values() if isinstance(found, Schedule) else {}
            more = {axis: value for axis, value in values.items() if axis not in given and completed.get(axis) != value}
            if not more:
                return {axis: value for axis, value in values.items() if axis in given}
            given |= more

    def briefs(self) -> list[Values]:
        """`brief` of each ranked schedule, in order. It takes about half a second for a large space."""
        fields = self.family.schedule.model_fields
        names = [axis for axis in self.axes if axis != "family"]
        codes = np.array([[self.axes[axis].index(one.values[axis]) for axis in names] for one in self.ranked], dtype=np.int16)
        given = np.array([[one.values[axis] != fields[axis].default for axis in names] for one in self.ranked])
        for own, kept in zip(codes, given, strict=True):
            while True:
                first = codes[(codes[:, kept] == own[kept]).all(axis=1).argmax()]  # what `complete` finds
                more = (first != own) & ~kept
                if not more.any():
                    break
                kept |= more
        return [
            {axis: value for axis, value in one.values.items() if axis == "family" or kept[names.index(axis)]}
            for one, kept in zip(self.ranked, given, strict=True)
        ]

    def _combined(self, values: Values) -> tuple[Schedule | None, tuple[str, ...]]:
        try:
            schedule = self.family.parse(values)
        except ValueError as exc:
            return None, (str(exc),)
        reasons = tuple(self.family.violations(schedule, self.task))
        return (None if reasons else schedule), reasons


class TaskSchedules:
    """The families that can write a task's kernels, fastest predicted first. Safe to share between threads."""

    def __init__(self, task: GemmTask, chip: Chip) -> None:
        self.task, self.chip = task, chip
        spaces = [(one, list(one.space(task, chip))) for one in families(task.arch) if one.supports(task)]
        made = [FamilySchedules(family, space, task, chip) for family, space in spaces if space]
        self.families = {one.name: one for one in sorted(made, key=lambda one: one.ranked[0].predicted_us)}

    def best(self, count: int, prior: Prior = ANALYTIC) -> list[PredictedSchedule]:
        """A prior's best schedules: of each family the best, then one of each tile and parts of K. Fastest first."""
        entries = [one.entry for family in self.families.values() for one in family.ranked]
        predicted = prior.predict_us(entries, self.task, self.chip)
        ranked = sorted(map(PredictedSchedule, entries, map(float, predicted)), key=_time_us)
        of_family = {one.entry.family.name: one for one in reversed(ranked)}
        found = {one.entry.group: one for one in sorted(of_family.values(), key=_time_us)}
        for one in ranked:
            found.setdefault(one.entry.group, one)
        return sorted(list(found.values())[:count], key=_time_us)

    def brief(self, values: Mapping[str, ScheduleValue]) -> Values | None:
        """The axes that `expand` needs to find a schedule again; None where no family here writes it."""
        family = self.families.get(str(values.get("family")))
        if family is None or any(family.wrong_axes(values)):
            return None
        return family.brief(values)

    def expand(self, values: object) -> Candidate | Unwritable:
        """The kernel of a schedule that is named by its family and some of its axes; see `FamilySchedules.complete`.

        `values`: as parsed from JSON, so of any type. The candidate's origin holds all axes, and `schedule` as its policy.
        """
        if not isinstance(values, Mapping):
            return Unwritable((f"a schedule is an object, not {_shown(values)}",))
        family = self._family(values)
        if isinstance(family, Unwritable):
            return family
        given = {str(axis): value for axis, value in values.items() if axis != "family"}
        if wrong := tuple(family.wrong_axes(given)):
            return Unwritable(wrong)
        schedule = family.complete(given)
        return schedule if isinstance(schedule, Unwritable) else family.family.write(schedule, self.task)

    def _family(self, values: Mapping[str, object]) -> FamilySchedules | Unwritable:
        named = values.get("family")
        if isinstance(named, str) and named in self.families:
            return self.families[named]
        offered = ", ".join(self.families) or "none"
        said = "family is missing" if "family" not in values else f"family is {_shown(named)}"
        return Unwritable((f"{said}; allowed for {self.task.shape} on {self.task.arch}: {offered}",))


@lru_cache(maxsize=4)
def schedules_for(task: GemmTask, chip: Chip) -> TaskSchedules:
    """The schedules of a task. The first call enumerates the spaces, which takes about a second."""
    return TaskSchedules(task, chip)


def _axes(space: Sequence[Schedule]) -> dict[str, tuple[ScheduleValue, ...]]:
    """The values of each axis, in order."""
    found: dict[str, set[ScheduleValue]] = {axis: set() for axis in type(space[0]).model_fields}
    for schedule in space:
        for axis, value in schedule:
            found[axis].add(value)
    return {axis: tuple(sorted(values)) for axis, values in found.items()}


def _time_us(one: PredictedSchedule) -> float:
    return one.predicted_us


def _agreeing(one: PredictedSchedule, given: Mapping[str, object]) -> int:
    return sum(one.values[axis] == value for axis, value in given.items())


def _shown(value: object) -> str:
    """A value of JSON in a few characters."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    try:
        said = json.dumps(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of too many digits"
    return said if len(said) <= _SHOWN_CHARS else said[: _SHOWN_CHARS - 1] + "…"
