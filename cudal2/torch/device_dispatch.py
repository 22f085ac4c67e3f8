"""The devices of a process: what each is, and the decisions for it."""

import threading
from collections.abc import Callable

from cudal2.dispatch.decision import FallbackCause, GpuIdentity
from cudal2.dispatch.dispatcher import Dispatcher
from cudal2.dispatch.padded_m_rule import shipped_rule
from cudal2.library.kernel_library import KernelLibrary
from cudal2.torch.gpu_platform import Platform
from cudal2.torch.notices import Notices
from cudal2_agent.contract.errors import Cudal2Error

MEASURE = "nothing is chosen until `cudal2-agent library build` makes one of measurements here"

LibraryChoice = Callable[[GpuIdentity], KernelLibrary | None]


class DeviceDispatch:
    """One device: what it is, and the decisions for it."""

    def __init__(self, identity: GpuIdentity, library: KernelLibrary) -> None:
        self.identity, self.library = identity, library
        self.dispatcher = Dispatcher(library, identity, shipped_rule())


class Devices:
    """The devices that were asked for. `libraries`: the library for a GPU, None where there is none."""

    def __init__(self, platform: Platform, libraries: LibraryChoice, notices: Notices) -> None:
        self._platform, self._libraries, self._notices = platform, libraries, notices
        self._opened: dict[int, DeviceDispatch | FallbackCause] = {}
        self._lock = threading.RLock()

    def find(self, device: int) -> DeviceDispatch | FallbackCause:
        """How matrix products of a device are decided, or why none is served there."""
        with self._lock:
            found = self._opened.get(device)
            if found is None:
                found = self._opened[device] = self._open(device)
            return found

    def _open(self, device: int) -> DeviceDispatch | FallbackCause:
        if missing := self._platform.missing():
            self._notices.add(missing)
            return FallbackCause.NO_GPU
        try:
            identity = self._platform.identity(device)
            library = self._libraries(identity)
        except Cudal2Error as exc:
            self._notices.add(str(exc))
            return FallbackCause.NO_LIBRARY
        if library is None:
            self._notices.add(f"no library was measured on {identity.gpu}; {MEASURE}")
            return FallbackCause.NO_LIBRARY
        if unfit := library.unfit_for(identity.gpu):
            self._notices.add(f"{unfit}; {MEASURE}")
            return FallbackCause.OTHER_GPU
        return DeviceDispatch(identity, library)
