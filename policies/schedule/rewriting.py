"""A candidate's schedule written for another task."""

from contract.candidate import Candidate
from contract.task import GemmTask
from policies.schedule.families import families


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
