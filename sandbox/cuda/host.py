"""Host candidates: a shared library whose C entry launches on the stream it is given.

Only the isolated worker loads one: its code runs in this process with all its rights. From then on this process starts no
other process and opens no socket; its files are those of its worker (`worker_jail.py`).
"""

import contextlib
import ctypes
from typing import Literal

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.driver import Fault
from cudal2_agent.sandbox.cuda.launcher import operand_pointers
from cudal2_agent.sandbox.jail import landlock
from cudal2_agent.sandbox.jail.syscalls import forbid
from cudal2_agent.sandbox.workers.process import is_jailed

ENTRY = "launch"
_POINTER = ctypes.c_void_p
_ARGUMENTS = (_POINTER, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int, ctypes.c_int, _POINTER, ctypes.c_size_t, _POINTER)


class HostFault(Fault):
    """A host candidate that does not load, or that reports a failure."""


class HostKernel:
    """A `Contender` around a host candidate's entry. It declares no atomics, so its results must repeat bit by bit.

    `confined`: False where its code is trusted and this process goes on to other work. Raises: HostFault where the library
    does not load or lacks the entry.
    """

    workspace_bytes: int
    zero: bool | Literal["restored"] = False
    zero_bytes = 0
    programmatic = False
    atomics = False
    local_bytes = 0

    def __init__(self, name: str, library_path: str, task: GemmTask, workspace_bytes: int, *, confined: bool = True) -> None:
        self.name = name
        self.workspace_bytes = workspace_bytes
        self._task = task
        if confined:
            _confine()
        try:
            self._entry = ctypes.CDLL(library_path)[ENTRY]
        except (OSError, AttributeError) as exc:
            raise HostFault(f"the library does not load: {exc}") from exc
        self._entry.argtypes = _ARGUMENTS
        self._entry.restype = ctypes.c_int

    def bind(self, operands: Operands) -> "BoundHostKernel":
        pointers = operand_pointers(operands, self._task, self.workspace_bytes)
        sizes = (self._task.m, self._task.n, self._task.k)
        workspace = (pointers.get("workspace"), self.workspace_bytes)
        return BoundHostKernel(self._entry, (pointers["A"], pointers["B"], pointers["D"], *sizes, *workspace))

    def altered(self) -> tuple[str, ...]:
        """Unknown, and reported as nothing: its device code registers itself with the runtime."""
        return ()

    def close(self) -> None:
        """Does nothing: a library that registered device code with the runtime cannot be unloaded safely."""


def _confine() -> None:
    """Give up new processes, programs and sockets, permanently and in all threads, where the system has filters.

    Raises: HostFault where the worker did not start in the jail that this system has.
    """
    if landlock.version() and not is_jailed():
        raise HostFault("host candidates run in a jailed worker only, and this worker did not start in its jail")
    with contextlib.suppress(OSError):  # a notice at the start of the run said so
        forbid(processes=False, programs=False, sockets=False)


class BoundHostKernel:
    def __init__(self, entry: "ctypes._NamedFuncPointer", arguments: tuple[int | None, ...]) -> None:
        self._entry = entry
        self._arguments = arguments

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (how it launches is its own)
        """Call the entry with a stream. Raises: HostFault with the code that it returned."""
        code = self._entry(*self._arguments, stream)
        if code != 0:
            raise HostFault(f"{ENTRY}() returned {code}")
