"""How many processors this process may use: those that it may run on, and the quota of its control groups.

Covered: Linux; cgroup v1 and v2, also seen from inside of a container; quotas of groups above. Other systems: all processors.
Source: the kernel's admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
"""

import os
from collections.abc import Iterator
from pathlib import Path

from cudal2_agent.contract.file_system import Mount, mounts

GROUPS = Path("/proc/self/cgroup")


def usable_processors() -> int:
    """At least 1. A quota is rounded down, so that nothing is held up by it in the middle of its work."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = os.cpu_count() or 1
    return max(int(min([allowed, *_quotas()])), 1)


def _quotas() -> Iterator[float]:
    """Processors by each quota that holds for this process."""
    try:
        groups = [line.split(":", 2)[1:] for line in GROUPS.read_text().splitlines()]
    except OSError:
        return
    second = [group for controllers, group in groups if not controllers]
    first = [group for controllers, group in groups if "cpu" in controllers.split(",")]
    for mount in mounts():
        is_first = mount.kind == "cgroup" and "cpu" in mount.options
        for group in second if mount.kind == "cgroup2" else first if is_first else ():
            yield from filter(None, map(_quota, _folders(mount, group)))


def _folders(mount: Mount, group: str) -> Iterator[Path]:
    """The folder of a group and of all above it. A container may see its own group as the root of the mount."""
    point = Path(mount.point)
    inside = Path(group).relative_to(mount.root) if Path(group).is_relative_to(mount.root) else Path()
    for folder in (inside, *inside.parents):
        yield point / str(folder).lstrip("/")


def _quota(folder: Path) -> float | None:
    """Processors that a group may use; None where it has no quota."""
    try:
        if (both := folder / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
