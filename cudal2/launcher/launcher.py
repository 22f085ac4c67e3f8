"""Launchers: a cubin with its resolved plan becomes a kernel that programs call with device addresses and a stream."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask

ALIGNMENT = 256  # of operands, in bytes: kernels were verified with it
DRIVER = "libcuda.so.1"


class BuiltKernel(NamedTuple):
    """A kernel ready to load: its machine code, its launches in plain numbers, and the product that it computes."""

    cubin: bytes
    plan: ResolvedPlan
    task: GemmTask


class LoadedKernel(Protocol):
    """A kernel on one GPU. Any number of threads may launch it; it stays loaded until the process ends.

    `c_entry`: the addresses of a C function that launches and of its first argument, for callers without Python; None where the
    launch is Python. They are valid as long as this object lives. The function's further arguments are `a`, `b`, `d`, `stream`,
    a pointer to an int that becomes 1 once the product is enqueued, and a buffer for an error message with its size in bytes.
    """

    @property
    def c_entry(self) -> tuple[int, int] | None: ...

    def launch(self, a: int, b: int, d: int, stream: int) -> None:
        """Enqueue D = A·B and return. `a`, `b`, `d`: device addresses, aligned to `ALIGNMENT`. `stream`: handle of a stream.

        A call inside a stream capture is recorded. The first call on a stream or in a capture may allocate the workspace of a
        kernel that has one; no other call allocates memory of the device. Raises: LauncherError.
        """


class Launcher(Protocol):
    """Loads kernels on one GPU, into its primary context."""

    name: str

    def load(self, kernel: BuiltKernel) -> LoadedKernel:
        """Raises: LauncherError where the driver refuses the code, or the plan does not fit the code or the GPU."""

    def load_algorithm(self, algorithm: StoredAlgorithm, files: Sequence[str]) -> LoadedKernel:
        """An algorithm of cuBLASLt, which is looked for under the names `files`. Its version is not compared here.

        Raises: DeviceUnavailable where there is no cuBLASLt, and by the launcher in Python, which runs none; LauncherError
        where cuBLASLt does not offer the algorithm.
        """


def open_launcher(device: int, driver: str = DRIVER) -> Launcher:
    """The launcher in C++; where that was not built, the one in Python, with a warning.

    Raises: DeviceUnavailable where there is no driver, where it is too old, or where it shows no such device.
    """
    try:
        from cudal2.launcher.compiled import CompiledLauncher
    except ImportError as exc:
        from cudal2.launcher.interpreted import InterpretedLauncher

        _warn(str(exc))
        return InterpretedLauncher(device, driver)
    return CompiledLauncher(device, driver)


@cache
def _warn(reason: str) -> None:
    """Say once that launches are slow, and how to change it."""
    logging.getLogger(__name__).warning(
        "the C++ launcher is not built (%s), so each launch costs tens of microseconds of host time; "
        "reinstall with a C++ compiler (pip install --force-reinstall .)",
        reason,
    )
