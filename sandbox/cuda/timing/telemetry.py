"""GPU state around the rounds, through NVML; empty where NVML is unavailable."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from cudal2_agent.contract.records.evaluation import Telemetry

# Bits of nvmlDeviceGetCurrentClocksEventReasons. Source: NVML API reference, nvmlClocksEventReasons.
REASONS = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clocks",
}


def name_reasons(mask: int) -> frozenset[str]:
    """The throttle reasons in a bit mask, unknown bits by number; idleness does not count."""
    known = {name for bit, name in REASONS.items() if mask & bit}
    unknown = mask & ~sum(REASONS)
    return frozenset(known - {"idle"} | ({f"unknown-{unknown:#x}"} if unknown else set()))


class Sampler:
    """Samples one GPU. A value that this GPU does not report is left out of its list, never invented."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._values: dict[str, list[float]] = {"sm": [], "memory": [], "temperature": [], "power": []}
        self._reasons: set[str] = set()

    def sample(self) -> frozenset[str]:
        """Take one sample of everything. Returns the current throttle reasons."""
        if self._nvml is None:
            return frozenset()
        nvml, handle = self._nvml, self._handle
        self._keep("sm", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        self._keep("memory", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        self._keep("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        self._keep("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        return self.reasons()

    def reasons(self) -> frozenset[str]:
        """The current throttle reasons."""
        if self._nvml is None:
            return frozenset()
        found: frozenset[str] = frozenset()
        with contextlib.suppress(self._nvml.NVMLError):
            found = name_reasons(int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)))
        self._reasons |= found
        return found

    def telemetry(self) -> Telemetry:
        return Telemetry(
            sm_clock_mhz=tuple(self._values["sm"]),
            memory_clock_mhz=tuple(self._values["memory"]),
            temperature_c=tuple(self._values["temperature"]),
            power_w=tuple(self._values["power"]),
            throttle_reasons=tuple(sorted(self._reasons)),
        )

    def _keep(self, key: str, read: Any) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._values[key].append(float(read()))


@contextlib.contextmanager
def open_sampler(pci_bus_id: str) -> Iterator[Sampler]:
    """A sampler of the GPU with this PCI bus id, or one that samples nothing where NVML or its library is missing."""
    yield Sampler(*_opened(pci_bus_id))


@functools.cache
def _opened(pci_bus_id: str) -> tuple[Any, Any]:
    """NVML, started once per process, and its handle of a GPU; None and None where it is unavailable."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None, None
    except pynvml.NVMLError:
        return None, None
    try:
        return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
    except pynvml.NVMLError:
        return None, None
