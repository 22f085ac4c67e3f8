"""One golden case on the GPU, by plain driver calls and with a time limit."""

import ctypes
import time

import numpy as np
from cuda.bindings import driver, nvrtc

from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from tests.sandbox.emulator.golden.case import Bytes, Case, MapSpec

_TYPES = driver.CUtensorMapDataType
_ELEMENT = {
    "u8": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "u16": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT16,
    "u32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    "s32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_INT32,
    "u64": _TYPES.CU_TENSOR_MAP_DATA_TYPE_UINT64,
    "s64": _TYPES.CU_TENSOR_MAP_DATA_TYPE_INT64,
    "f16": _TYPES.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bf16": _TYPES.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "f32": _TYPES.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}
_SWIZZLE = {
    0: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
_POLL_S = 0.0002


class Hung(Exception):
    """A kernel did not end in time."""


class GoldenDevice:
    """A context with the kernels of one family of cases."""

    def __init__(self, cubin: bytes) -> None:
        call(driver.cuInit, 0)
        self._device = call(driver.cuDeviceGet, 0)
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, self._device))
        self._module = call(driver.cuModuleLoadData, cubin)
        self._stream = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def run(self, case: Case, given: Bytes, before: Bytes, limit_s: float) -> Bytes:
        """The output after a launch. Raises: DriverFault, Hung."""
        pointers = {"in": call(driver.cuMemAlloc, given.nbytes), "out": call(driver.cuMemAlloc, before.nbytes)}
        call(driver.cuMemcpyHtoD, pointers["in"], given.ctypes.data, given.nbytes)
        call(driver.cuMemcpyHtoD, pointers["out"], before.ctypes.data, before.nbytes)
        self._launch(case, {name: int(pointer) for name, pointer in pointers.items()})
        self._wait(limit_s)
        result = np.empty_like(before)
        call(driver.cuMemcpyDtoH, result.ctypes.data, pointers["out"], result.nbytes)
        for pointer in pointers.values():
            call(driver.cuMemFree, pointer)
        return result

    def _launch(self, case: Case, pointers: dict[str, int]) -> None:
        function = call(driver.cuModuleGetFunction, self._module, case.kernel.encode())
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, function, attribute, case.smem)
        numbers = np.zeros(8, np.int32)
        numbers[: len(case.numbers)] = case.numbers
        values = [pointer.to_bytes(8, "little") for pointer in (pointers["in"], pointers["out"])]
        values += [numbers.tobytes(), *(encode_map(spec, pointers[spec.of]) for spec in case.maps)]
        memory = (ctypes.c_char * (256 * (len(values) + 1)))()
        base = ctypes.addressof(memory)
        base += -base % 64
        for at, value in enumerate(values):
            ctypes.memmove(base + 256 * at, value, len(value))
        array = (ctypes.c_void_p * len(values))(*(base + 256 * at for at in range(len(values))))
        call(driver.cuLaunchKernelEx, self._configuration(case), function, ctypes.addressof(array), 0)

    def _configuration(self, case: Case) -> driver.CUlaunchConfig:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = case.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = case.block
        config.sharedMemBytes, config.hStream = case.smem, self._stream
        if case.cluster != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = case.cluster
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def _wait(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            (status,) = driver.cuStreamQuery(self._stream)
            if status == driver.CUresult.CUDA_SUCCESS:
                return
            if status != driver.CUresult.CUDA_ERROR_NOT_READY:
                raise DriverFault("kernel", status.name, "while it ran")
            if time.monotonic() > deadline:
                raise Hung(f"no end within {limit_s:.0f} s")
            time.sleep(_POLL_S)


def encode_map(spec: MapSpec, pointer: int) -> bytes:
    """The 128 bytes of a tensor map. Raises: DriverFault."""
    encoded = call(
        driver.cuTensorMapEncodeTiled,
        _ELEMENT[spec.element],
        len(spec.sizes),
        pointer + spec.offset,
        [driver.cuuint64_t(size) for size in spec.sizes],
        [
            driver.cuuint64_t(stride) for stride in spec.strides or (16,)
        ],  # the driver rejects an empty list, even for one dimension
        [driver.cuuint32_t(size) for size in spec.box],
        [driver.cuuint32_t(1) for _ in spec.box],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _SWIZZLE[spec.swizzle],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)


def describe_device() -> dict[str, str]:
    """GPU, driver and compiler of a recording."""
    call(driver.cuInit, 0)
    name = call(driver.cuDeviceGetName, 128, call(driver.cuDeviceGet, 0))
    version = call(driver.cuDriverGetVersion)
    _, major, minor = nvrtc.nvrtcVersion()
    return {
        "gpu": name.split(b"\0")[0].decode(),
        "driver": f"{version // 1000}.{version % 1000 // 10}",
        "nvrtc": f"{major}.{minor}",
        "driver_release": _driver_release(),
    }


def _driver_release() -> str:
    """The driver version that the kernel module reports."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")
