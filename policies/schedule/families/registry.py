"""The kernel families that exist for an architecture, and a candidate's schedule written for another task."""

from typing import Any

from contract.candidate import Candidate
from contract.task import Arch, GemmTask
from policies.schedule.families.kernel_family import Family
from policies.schedule.families.latency.family import Latency
from policies.schedule.families.mma_sync.family import MMA_SYNC_RATE, MmaSync
from policies.schedule.families.resident.family import Resident
from policies.schedule.families.wgmma_tma.family import WgmmaTma


def families(arch: Arch) -> tuple[Family[Any], ...]:
    """Families whose kernels run on the architecture, those made for it first."""
    made_for_it = (WgmmaTma(), Latency(), Resident()) if arch is Arch.SM_90A else ()
    everywhere = (MmaSync(),) if arch in MMA_SYNC_RATE else ()
    return (*made_for_it, *everywhere)


def rewrite(candidate: Candidate, task: GemmTask) -> Candidate | None:
    """The same schedule for the task; None where no schedule is behind the source, or it does not fit the task."""
    values = candidate.origin.schedule
    family = next((one for one in families(task.arch) if values and values.get("family") == one.name), None)
    if family is None or not values:
        return None
    try:
        return family.write(family.parse(values), task)
    except ValueError:
        return None
