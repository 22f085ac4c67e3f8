"""The device's properties: architecture, chip numbers, and the versions of everything that shapes a measurement."""

import platform
from importlib import metadata
from typing import Any

import cupy
from cuda.bindings import driver

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.cuda.driver import call

_ATTRIBUTE = driver.CUdevice_attribute
_DDR = 2  # transfers per memory clock


def arch_of(major: int, minor: int) -> Arch | None:
    """The target whose cubins run on a compute capability; None where this product has no target for it.

    A cubin runs on its own major version from its own minor version on; the `a` targets on exactly theirs.
    """
    number = 10 * major + minor
    fitting = [
        arch
        for arch in Arch
        if arch.number == number or (arch.number // 10 == major and arch.number < number and not arch.value.endswith("a"))
    ]
    return max(fitting, key=lambda arch: arch.number, default=None)


def read_chip(index: int, arch: Arch) -> Chip:
    """The chip for predictions: sizes from the device, rates from the reference chip where the name is the same.

    On another chip of the architecture the tensor rate is the reference's, scaled by SMs. The memory rate follows from the
    memory clock and the bus width. Neither counts as measured. A part of a GPU (MIG) has a name of its own, and both rates
    scaled by SMs, because the driver reports the bus of the whole GPU.
    """
    reference = REFERENCE_CHIPS[arch]
    name, sizes = device_name(index), _sizes(index)
    if name == reference.name:
        return reference.model_copy(update=sizes)
    share = sizes["sms"] / reference.sms
    whole = 0.0 if " MIG " in name else _dram_tbps(index)
    dram_tbps = whole or reference.dram_tbps * (share if " MIG " in name else 1)
    rates = {"tensor_tflops": reference.tensor_tflops * share, "dram_tbps": dram_tbps}
    return reference.model_copy(update={"name": name, "measured": False, **sizes, **rates})


def read_environment(index: int, arch: Arch) -> Environment:
    """The conditions of measurements on this device."""
    sizes = _sizes(index)
    return Environment(
        gpu=device_name(index),
        arch=arch.value,
        sms=sizes["sms"],
        l2_bytes=sizes["l2_bytes"],
        memory_bytes=sizes["memory_bytes"],
        driver=_driver_version(),
        cuda=_dotted(cupy.cuda.runtime.runtimeGetVersion(), 1000, 10),
        nvrtc=".".join(str(part) for part in cupy.cuda.nvrtc.getVersion()),
        cublas=_cublas_version(),
        torch=_package_version("torch"),
        python=platform.python_version(),
        platform=platform.platform(),
    )


def device_name(index: int) -> str:
    """Marketing name without the vendor, such as `H200`."""
    name: str = call(driver.cuDeviceGetName, 128, call(driver.cuDeviceGet, index)).split(b"\0")[0].decode()
    return name.removeprefix("NVIDIA ").strip()


def device_attribute(index: int, attribute: Any) -> int:
    value: int = call(driver.cuDeviceGetAttribute, attribute, call(driver.cuDeviceGet, index))
    return value


def _sizes(index: int) -> dict[str, int]:
    return {
        "sms": device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        "l2_bytes": device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        "memory_bytes": call(driver.cuDeviceTotalMem, call(driver.cuDeviceGet, index)),
    }


def _dram_tbps(index: int) -> float:
    """Datasheet bandwidth; 0 where the driver does not report its clock."""
    clock_khz = device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
    bus_bits = device_attribute(index, _ATTRIBUTE.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
    return clock_khz * 1e3 * _DDR * bus_bits / 8 / 1e12


def _driver_version() -> str:
    """The driver's own version where NVML is available, else the CUDA version that it supports."""
    try:
        import pynvml
    except ImportError:
        return f"CUDA {_dotted(call(driver.cuDriverGetVersion), 1000, 10)}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return f"CUDA {_dotted(call(driver.cuDriverGetVersion), 1000, 10)}"
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _cublas_version() -> str:
    """The cuBLAS that cupy runs on; `absent` where none is installed, and with it every baseline."""
    try:
        from cupy_backends.cuda.libs import cublas  # type: ignore[import-untyped]
    except ImportError:
        return "absent"
    return _dotted(cublas.getVersion(cupy.cuda.get_cublas_handle()), 10000, 100)


def _dotted(number: int, major: int, minor: int) -> str:
    """A packed version such as 13000 or 130100 with dots."""
    parts = [number // major, number % major // minor]
    if minor > 10:
        parts.append(number % minor)
    return ".".join(str(part) for part in parts)


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
