"""Turns on a GPU: processes of this machine that use the same one alternate, because a second load falsifies times.

The system releases the lock of a process that dies. Covers the processes that share a folder of locks.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.file_system import require_local


class DeviceTurn:
    """The turn on one GPU. `folder`: of the locks; without one, every request has its turn.

    `waited_s`: for turns so far, the one included that is waited for now.
    """

    def __init__(self, folder: str | None, device: int) -> None:
        self._path = None if folder is None else Path(folder) / f"turn-{device_id(device)}.lock"
        self._waited_s = 0.0
        self._since_s: float | None = None

    @property
    def waited_s(self) -> float:
        since_s = self._since_s
        return self._waited_s + (0.0 if since_s is None else time.monotonic() - since_s)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and hold it. Raises: MachineError where the lock cannot be made, UsageError on a network disk."""
        if self._path is None:
            yield
            return
        require_local(self._path.parent, "locks")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._path.open("ab")
        except OSError as exc:
            raise MachineError(f"{self._path} is not writable ({exc.strerror}); set CUDAL2_HOME to a folder that is") from exc
        with lock:
            begin_s = self._since_s = time.monotonic()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file releases it
            finally:
                self._since_s = None
                self._waited_s += time.monotonic() - begin_s
            yield


def device_id(device: int) -> str:
    """A GPU, or a MIG instance, by its UUID, whatever CUDA_VISIBLE_DEVICES calls it; by its number where that is not known.

    Processes that see one GPU each all call it 0, and one GPU may be `1` to one process and `GPU-8f6a…` to another.
    """
    try:
        from cuda.bindings import driver

        uuid_of = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)  # CUDA 13 has one, which knows MIG
        if int(driver.cuInit(0)[0]):
            return f"cuda-{device}"
        found, handle = driver.cuDeviceGet(device)
        known, uuid = (found, None) if int(found) else uuid_of(handle)
    except (ImportError, RuntimeError):
        return f"cuda-{device}"
    return f"cuda-{device}" if int(known) or uuid is None else f"gpu-{bytes(uuid.bytes).hex()}"
