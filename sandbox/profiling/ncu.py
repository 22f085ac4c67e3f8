"""Nsight Compute's command-line tool: its path, its version, its command line."""

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
        entries = dict.fromkeys(launch.entry for launch in candidate.plan.launches)
        flags |= {"--kernel-name-base": "function", "--kernel-name": f"regex:^({'|'.join(map(re.escape, entries))})$"}
    else:
        flags |= {"--launch-count": str(_MAX_UNNAMED_KERNELS)}
    return [ncu, "--csv", *(word for flag in flags.items() for word in flag), *program]


def _version_key(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
