"""What a search takes of the host, from /proc: processor seconds and resident memory of its process and of all below it.

Covered: Linux; processes that ended and were waited for. Not covered: processes that left the tree, other systems.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from cudal2_agent.contract.records.campaign import HostCost

SAMPLE_S = 1.0
PROC = Path("/proc")
_MIB = 1024**2
# Fields of /proc/PID/stat behind the name, from proc(5): parent, then times of the process and of its waited-for children.
_PARENT, _TIMES, _RESIDENT = 1, slice(11, 15), 21


class Process(NamedTuple):
    """One process. `cpu_s`: with the children that it waited for."""

    parent: int
    cpu_s: float
    resident_mib: float


def processes(proc: Path = PROC) -> dict[int, Process]:
    """All processes by id; none where the system does not tell."""
    found = {}
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = _parsed((folder / "stat").read_text(errors="replace"))
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
    return found


def below(root: int, known: Mapping[int, Process]) -> list[Process]:
    """A process and its descendants; none where it is not known."""
    children: dict[int, list[int]] = {}
    for pid, process in known.items():
        children.setdefault(process.parent, []).append(pid)
    tree, open_ = [], [root] if root in known else []
    while open_:
        pid = open_.pop()
        tree.append(known[pid])
        open_ += children.get(pid, [])
    return tree


class HostMeter:
    """Measures what this process and those below it take while the context is open.

    The campaign is the tree of its parent. Under Ray that is all that Ray runs on the machine.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._begin_s: float | None = None
        self._cpu_s = self._peak_mib = self._campaign_mib = 0.0

    def __enter__(self) -> Self:
        self._sample()
        self._begin_s = self._cpu_s
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def cost(self) -> HostCost | None:
        """None where the system does not tell."""
        if self._begin_s is None or not self._peak_mib:
            return None
        cpu_s = max(self._cpu_s - self._begin_s, 0.0)
        return HostCost(cpu_s=round(cpu_s, 2), peak_mib=round(self._peak_mib, 1), campaign_mib=round(self._campaign_mib, 1))

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        known = processes()
        own = below(os.getpid(), known)
        self._cpu_s = sum(one.cpu_s for one in own)
        self._peak_mib = max(self._peak_mib, sum(one.resident_mib for one in own))
        campaign = below(os.getppid(), known) or own
        self._campaign_mib = max(self._campaign_mib, sum(one.resident_mib for one in campaign))


def _parsed(stat: str) -> Process:
    fields = stat.rpartition(")")[2].split()
    cpu_s = sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK")
    return Process(int(fields[_PARENT]), cpu_s, int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE") / _MIB)
