"""What this process may use of the machine: processors, memory and processes, by its affinity and its control groups.

Covered: Linux; cgroup v1 and v2, also seen from inside of a container; limits of groups above. Other systems: no limits.
Source: the kernel's admin-guide/cgroup-v2.rst, scheduler/sched-bwc.rst, cgroup-v1/memory.rst and cgroup-v1/pids.rst.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from cudal2_agent.contract.file_system import Mount, mounts

GROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes the largest number of pages in bytes


def usable_processors() -> int:
    """At least 1. A quota is rounded down, so that nothing is held up by it in the middle of its work."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = os.cpu_count() or 1
    found = [allowed]
    for folder in _folders("cpu"):
        quota, period = _pair(folder / "cpu.max") or (_number(folder, "cpu.cfs_quota_us"), _number(folder, "cpu.cfs_period_us"))
        found += [int(quota / period)] if quota and period and quota > 0 else []
    return max(min(found), 1)


def memory_limit() -> int | None:
    """Bytes that the control groups allow; None for no limit."""
    found = [_number(folder, "memory.max", "memory.limit_in_bytes") for folder in _folders("memory")]
    return min((one for one in found if one is not None and one < _NO_LIMIT), default=None)


def machine_memory() -> int:
    """Bytes of the machine, whatever control groups allow."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processes_left() -> int | None:
    """Processes and threads that may still be started; None for no limit."""
    limits = [(_number(folder, "pids.max"), _number(folder, "pids.current")) for folder in _folders("pids")]
    return min((limit - (current or 0) for limit, current in limits if limit is not None), default=None)


def _folders(controller: str) -> Iterator[Path]:
    """The folders of the control groups that hold this process by a controller, and those of all groups above."""
    try:
        groups = [line.split(":", 2)[1:] for line in GROUPS.read_text().splitlines()]
    except OSError:
        return
    second = [group for controllers, group in groups if not controllers]
    first = [group for controllers, group in groups if controller in controllers.split(",")]
    for mount in mounts():
        is_first = mount.kind == "cgroup" and controller in mount.options
        for group in second if mount.kind == "cgroup2" else first if is_first else ():
            yield from _up(mount, group)


def _up(mount: Mount, group: str) -> Iterator[Path]:
    """The folder of a group and of all above it. A container may see its own group as the root of the mount."""
    inside = Path(group).relative_to(mount.root) if Path(group).is_relative_to(mount.root) else Path()
    for folder in (inside, *inside.parents):
        yield Path(mount.point) / str(folder).lstrip("/")


def _pair(file: Path) -> tuple[int, int] | None:
    """The quota and the period of `cpu.max`; None where there is no such file, and no quota for "max"."""
    try:
        quota, period = file.read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        return None


def _number(folder: Path, *names: str) -> int | None:
    """What the first of these files that is there says; None where none does, and for "max"."""
    for name in names:
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):
            continue
    return None
