"""Launchers: a cubin with its resolved plan becomes a kernel that programs call with device addresses and a stream."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from cudal2.launcher.loaded_kernel import BuiltKernel, LoadedKernel
from cudal2_agent.contract.records.library import StoredAlgorithm

DRIVER = "libcuda.so.1"


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
    """Warn once that launches are slow, and how to change it."""
    logging.getLogger(__name__).warning(
        "the C++ launcher is not built (%s), so each launch costs tens of microseconds of host time; "
        "reinstall with a C++ compiler (pip install --force-reinstall .)",
        reason,
    )
