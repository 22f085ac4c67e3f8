"""Whether this process may read the GPU's counters, as far as the driver tells without a trial."""

import re
from pathlib import Path

_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
# Either lets a process past the driver's restriction. Numbers: linux/capability.h.
_SYS_ADMIN, _PERFMON = 21, 38


def counters_allowed(parameters: Path = _PARAMETERS, status: Path = _STATUS) -> bool | None:
    """None where the driver does not say. Inside a container the host's settings decide."""
    try:
        restricted = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", parameters.read_text(), re.MULTILINE)
        held = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return None
    if restricted is None or held is None:
        return None
    return restricted[1] == "0" or bool(int(held[1], 16) & (1 << _SYS_ADMIN | 1 << _PERFMON))
