"""One schedule with what is known before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule, Work

Key = frozenset[tuple[str, ScheduleValue]]
Group = tuple[str, int, int, int]
Values = dict[str, ScheduleValue]


def schedule_key(values: Values) -> Key:
    """Identity of a schedule, independent of the order of its axes."""
    return frozenset(values.items())


def launched_programmatically(values: Values | None) -> bool:
    """Whether a schedule's launches overlap with the kernel before; not for what is no schedule."""
    return bool(values and values.get("programmatic"))


@dataclass(frozen=True)
class PoolEntry:
    """One schedule with what is known before it runs. `group`: family, tile and parts of K, for similar kernels."""

    family: Family[Any]
    schedule: Schedule
    values: Values
    work: Work
    group: Group

    @cached_property
    def key(self) -> Key:
        return schedule_key(self.values)


def entry_of(family: Family[Any], schedule: Schedule, task: GemmTask, chip: Chip) -> PoolEntry:
    """The entry of a schedule that is valid for the task."""
    work = family.work(schedule, task, chip)
    m, n, k = work.tile
    return PoolEntry(family, schedule, schedule.values(), work, (family.name, m, n, -(-task.k // (k * work.k_blocks))))


def read_entry(families: Mapping[str, Family[Any]], values: Values, task: GemmTask, chip: Chip) -> PoolEntry | None:
    """The entry of the schedule with these values; None where none of the families, by name, can write it for the task."""
    family = families.get(str(values.get("family")))
    if family is None:
        return None
    try:
        schedule = family.parse(values)
    except ValueError:
        return None
    return None if family.violation(schedule, task) else entry_of(family, schedule, task, chip)
