"""The fingerprint of the families' axes: a model that learned other axes names schedules that no longer exist."""

from functools import cache

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.schedule.families.registry import families


@cache
def axes_fingerprint() -> str:
    """A hash of the families of all architectures with the name, type, bounds and default of each axis."""
    known = {family.name: family for arch in Arch for family in families(arch)}
    axes = {
        name: {
            axis: [str(field.annotation), str(field.metadata), str(field.default)]
            for axis, field in family.schedule.model_fields.items()
        }
        for name, family in known.items()
    }
    return digest(axes)
