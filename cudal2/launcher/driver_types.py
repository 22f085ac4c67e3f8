"""The driver's library through ctypes: the types and calls of `native/driver.hpp`."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError
from cudal2_agent.contract.records.named_buffer import BufferElement

INVALID_VALUE = 1
SM_COUNT = 16
MAX_DYNAMIC_SHARED = 8
NON_PORTABLE_CLUSTER = 14
ATTRIBUTE_CLUSTER, ATTRIBUTE_PROGRAMMATIC = 4, 6
# CUtensorMapDataType by element.
TENSOR_MAP_TYPES = {
    BufferElement.U8: 0,
    BufferElement.BOOL: 0,
    BufferElement.I32: 3,
    BufferElement.I64: 5,
    BufferElement.F16: 6,
    BufferElement.F32: 7,
    BufferElement.F64: 8,
    BufferElement.BF16: 9,
}
CAPTURE_MODE_RELAXED = 2
CAPTURE_ACTIVE = 1
NON_BLOCKING = 1

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuLibraryLoadData": (POINTER(c_void_p), c_char_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint),
    "cuLibraryGetKernel": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuKernelGetFunction": (POINTER(c_void_p), c_void_p),
    "cuFuncLoad": (c_void_p,),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p,
        c_int,
        c_uint32,
        c_void_p,
        POINTER(c_uint64),
        POINTER(c_uint64),
        POINTER(c_uint32),
        POINTER(c_uint32),
        *(c_int,) * 4,
    ),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamGetId": (c_void_p, POINTER(c_uint64)),
    "cuStreamGetCaptureInfo_v2": (c_void_p, POINTER(c_int), POINTER(c_uint64), c_void_p, c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
}


class LaunchValue(ctypes.Union):
    """CUlaunchAttributeValue."""

    _fields_ = [("words", c_uint64 * 8), ("cluster", c_uint * 3), ("programmatic", c_int)]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", c_int), ("padding", c_int), ("value", LaunchValue)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    ]


class DriverLibrary:
    """The functions of one driver library. Raises: DeviceUnavailable where it is missing, too old, or does not start."""

    def __init__(self, file: str) -> None:
        try:
            self._library = ctypes.CDLL(file)
        except OSError as exc:
            raise DeviceUnavailable(f"no NVIDIA driver: {file} does not load; install the driver") from exc
        self._functions = {symbol: self._find(symbol, arguments) for symbol, arguments in _SIGNATURES.items()}
        if status := self.status("cuInit", 0):
            raise DeviceUnavailable(f"the NVIDIA driver does not start: cuInit: {self._name(status)}")

    def status(self, symbol: str, *arguments: Any) -> int:
        return int(self._functions[symbol](*arguments))

    def call(self, symbol: str, *arguments: Any) -> None:
        """Raises: LauncherError where the call fails."""
        if status := self.status(symbol, *arguments):
            name, text = self._name(status), self._text("cuGetErrorString", status) or "no description"
            raise LauncherError(f"{symbol.partition('_v')[0]}: {name}: {text}", name)

    def _find(self, symbol: str, arguments: tuple[Any, ...]) -> Any:
        try:
            function = self._library[symbol]
        except AttributeError as exc:
            raise DeviceUnavailable(
                f"the NVIDIA driver is too old: it supports {self._version()} and lacks {symbol}; "
                "install one for CUDA 12.4 or later"
            ) from exc
        function.argtypes, function.restype = arguments, c_int
        return function

    def _version(self) -> str:
        version = c_int()
        self._library.cuDriverGetVersion(ctypes.byref(version))
        return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"

    def _name(self, status: int) -> str:
        return self._text("cuGetErrorName", status) or "CUDA_ERROR_UNKNOWN"

    def _text(self, symbol: str, status: int) -> str:
        found = c_char_p()
        self.status(symbol, status, ctypes.byref(found))
        return (found.value or b"").decode()
