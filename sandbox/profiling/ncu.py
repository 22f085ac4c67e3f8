"""Nsight Compute's command-line tool: its path, version, command line and errors, and whether counters may be read."""

import functools
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cudal2_agent.contract.errors import ProfilerUnavailable
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.sandbox.workers.process import Limits, run

REMEDY = "install it (it comes with the CUDA toolkit) or set CUDAL2_NCU to its path"
# Newest first in each; a toolkit installer's links come before.
_PLACES = (
    (Path("/usr/local"), "cuda/bin/ncu"),
    (Path("/usr/local"), "cuda-*/bin/ncu"),
    (Path("/opt/nvidia/nsight-compute"), "*/ncu"),
)
_MAX_UNNAMED_KERNELS = 16  # a host candidate may launch any number


def find_ncu(setting: str | None, places: Sequence[tuple[Path, str]] = _PLACES) -> str:
    """Path of ncu: the setting, else the search path, else the usual places. Raises: ProfilerUnavailable."""
    if setting:
        found = shutil.which(setting)
        if found is None:
            raise ProfilerUnavailable(f"there is no Nsight Compute (ncu) at {setting!r}; correct CUDAL2_NCU or leave it out")
        return str(Path(found).absolute())
    installed = (path for root, pattern in places for path in sorted(root.glob(pattern), key=_version_key, reverse=True))
    found = shutil.which("ncu") or next((path for each in installed if (path := shutil.which(each))), None)
    if found is None:
        raise ProfilerUnavailable(f"Nsight Compute (ncu) was not found; {REMEDY}")
    return str(Path(found).absolute())


@functools.cache
def ncu_version(ncu: str) -> str:
    """Version such as 2025.3.1.0. Raises: ProfilerUnavailable where the tool does not run."""
    with tempfile.TemporaryDirectory(prefix="cudal2-ncu-", ignore_cleanup_errors=True) as scratch:
        ended = run([ncu, "--version"], scratch=Path(scratch), limits=Limits(wall_s=30))
    output = (ended.stdout + ended.stderr).decode(errors="replace")
    version = re.search(r"\b(20\d\d(\.\d+)+)", output)
    if ended.returncode or version is None:
        raise ProfilerUnavailable(f"{ncu} --version reports no version of Nsight Compute; {REMEDY}", log=output)
    return version[1]


def command_of(
    ncu: str, metrics: Iterable[str], candidate: AnyCandidate | None, log: Path, program: Sequence[str]
) -> list[str]:
    """The command line that counts `metrics` of a candidate's kernels in `program` and writes a table to `log`.

    `candidate`: None for a library's kernels, whose names are not known.

    Clocks are not locked, as in timing. Caches are flushed before every pass, so that the passes agree.
    """
    flags = {
        "--page": "raw",
        "--print-units": "base",
        "--print-kernel-base": "function",
        "--clock-control": "none",
        "--cache-control": "all",
        "--replay-mode": "kernel",
        "--profile-from-start": "off",
        "--target-processes": "application-only",
        "--metrics": ",".join(metrics),
        "--log-file": str(log),
    }
    if isinstance(candidate, Candidate):
        entries = dict.fromkeys(launch.entry for launch in candidate.plan.kernels)
        flags |= {"--kernel-name-base": "function", "--kernel-name": f"regex:^({'|'.join(map(re.escape, entries))})$"}
    else:
        flags |= {"--launch-count": str(_MAX_UNNAMED_KERNELS)}
    return [ncu, "--csv", *(word for flag in flags.items() for word in flag), *program]


def _version_key(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


# Whether this process may read the GPU's counters, as far as the driver tells without a trial.
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


# ncu's messages when it cannot profile, and what follows from them. Only its own lines, marked `==ERROR==`, count.
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
