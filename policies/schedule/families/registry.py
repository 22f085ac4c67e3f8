"""The kernel families that exist for an architecture, and a candidate's schedule written for another task."""

from collections.abc import Mapping
from typing import Any

from cudal2_agent.contract.records.candidate import Candidate, ScheduleValue
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.latency.schedule import ARCHS as LATENCY_ARCHS
from cudal2_agent.policies.schedule.families.mma_sync.family import MMA_SYNC_RATE, MmaSync
from cudal2_agent.policies.schedule.families.resident.family import Resident
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma


def families(arch: Arch) -> tuple[Family[Any], ...]:
    """Families whose kernels run on the architecture, those made for it first."""
    small = (Latency(),) if arch in LATENCY_ARCHS else ()
    made_for_it = (WgmmaTma(), *small, Resident()) if arch is Arch.SM_90A else small
    everywhere = (MmaSync(),) if arch in MMA_SYNC_RATE else ()
    return (*made_for_it, *everywhere)


def written(values: Mapping[str, ScheduleValue], task: GemmTask) -> Candidate:
    """The kernel of a schedule for the task. Raises: ValueError where no family of this version writes it."""
    family, schedule = _parsed(values, task)
    return family.write(schedule, task)


def written_for_any_size(values: Mapping[str, ScheduleValue], task: GemmTask) -> Candidate:
    """The kernel of a schedule with M, N and K as arguments. Raises: as `written`."""
    free = {"constant_shape": False} if "constant_shape" in _parsed(values, task)[1].values() else {}
    return written({**values, **free}, task)


def rewrite(candidate: Candidate, task: Task) -> Candidate | None:
    """The same schedule for the task; None where no schedule is behind the source, or it does not fit the task."""
    if candidate.origin.schedule is None or not isinstance(task, GemmTask):
        return None
    try:
        return written(candidate.origin.schedule, task)
    except ValueError:
        return None


def _parsed(values: Mapping[str, ScheduleValue], task: GemmTask) -> tuple[Family[Any], Schedule]:
    """Raises: ValueError where no family of this version has the schedule."""
    family = next((one for one in families(task.arch) if one.name == values.get("family")), None)
    if family is None:
        raise ValueError(f"there is no kernel family {values.get('family')!r} for {task.arch}")
    return family, family.parse(dict(values))
