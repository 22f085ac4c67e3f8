"""ncu's messages when it cannot profile, and what follows from them. Only its own lines, marked `==ERROR==`, count."""

import re
from collections.abc import Iterable

PERMISSION_REMEDY = (
    "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as root (in a container with CAP_SYS_ADMIN): "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)

_MARK = "==ERROR=="
# (ncu's message, the message to the user): problems of the machine, for every candidate.
_UNAVAILABLE = (
    (
        r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance Counters",
        f"this user may not read the GPU's counters (ERR_NVGPUCTRPERM); {PERMISSION_REMEDY}",
    ),
    (
        r"driver resource was unavailable|no other tool \(like DCGM\)",
        "another tool holds the GPU's counters; stop it (DCGM: dcgmi profile --pause)",
    ),
    (
        r"driver is not compatible|unsupported driver|driver version is insufficient",
        "the driver and this version of Nsight Compute do not fit; install a newer one of the older of the two",
    ),
    (
        r"profiling is not supported on|not supported by (this|the) (device|GPU)|unsupported gpu",
        "this version of Nsight Compute does not know the GPU; install a newer one",
    ),
    (
        r"no cuda[- ]capable device|no devices? found|failed to initialize (the )?(cuda|nvml|driver)",
        "Nsight Compute finds no GPU; check the driver and CUDA_VISIBLE_DEVICES",
    ),
)


def complaints_in(*texts: str) -> list[str]:
    """The errors that ncu reports. Warnings are left out: with a warning there is a table."""
    lines = (line for text in texts for line in text.splitlines())
    return [line.removeprefix(_MARK).strip() for line in lines if line.startswith(_MARK)]


def unavailable(complaints: Iterable[str]) -> str | None:
    """Why nothing can be profiled here, with the remedy; None where no message says so."""
    text = "\n".join(complaints)
    return next((reason for pattern, reason in _UNAVAILABLE if re.search(pattern, text, re.IGNORECASE)), None)


def unknown_metrics(complaints: Iterable[str], asked: Iterable[str]) -> set[str]:
    """The requested metrics that ncu names in an error. Some versions refuse metrics that they do not know."""
    text = "\n".join(complaints)
    return {name for name in asked if re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", text)}
