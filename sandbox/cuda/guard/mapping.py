"""Device memory that faults: physical pages mapped into a reserved range with unmapped space on both sides.

Covered: an access past either end of a mapping, up to `MARGIN_BYTES`, is an illegal address; a mapping may be read-only;
ranges lie at unpredictable addresses.
Not covered: bytes between a buffer and the end of its pages (2 MiB); `buffers.py` has a canary there.
"""

import secrets
import weakref
from typing import Any

import cupy
from cuda.bindings import driver

from cudal2_agent.sandbox.cuda.driver import DriverFault, call

MARGIN_BYTES = 1 << 32  # of reserved, unmapped address space on either side
_HINTS = (1 << 40, 1 << 46)  # addresses that ranges are drawn from
_ACCESS = driver.CUmemAccess_flags
NOT_SUPPORTED = frozenset({"CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE"})
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

_mapped: "weakref.WeakSet[Mapping]" = weakref.WeakSet()


class Mapping:
    """`size_bytes` of device memory, rounded up to whole pages, alone in its address range. Freed with `close`.

    `sealed`: kernels and copies that are given `pointer` may only read; the sandbox writes through a second range
    (`writer`), which no candidate is given. `read_only` is False where the driver has no such protection.
    Raises: MemoryError where the device has too little memory, DriverFault where it cannot map memory at all.
    """

    def __init__(self, size_bytes: int, device: int, name: str, *, sealed: bool = False) -> None:
        self._windows: list[_Window] = []
        self._handle: Any = None
        self.name = name
        location = _location(device)
        properties = _properties(location)
        page = _page_bytes(properties)
        self.size_bytes = -(-max(size_bytes, 1) // page) * page
        self._handle = _create(self.size_bytes, properties)
        for _ in range(2 if sealed else 1):
            self._windows.append(_Window(self._handle, self.size_bytes, page, location))
        self.read_only = sealed and self._windows[0].allow_reading()
        for window in self._windows[self.read_only :]:
            window.allow_everything()
        self.pointer = self._windows[0].pointer
        _mapped.add(self)

    def bytes(self) -> Any:
        """The mapping as an array that keeps it alive. Shape: (size_bytes,), uint8."""
        return self._array(self._windows[0])

    def writer(self) -> Any:
        """The same bytes at an address that may be written."""
        return self._array(self._windows[-1])

    def describe(self, address: int) -> str | None:
        """An address relative to this mapping; None where it lies in another mapping's range."""
        for window in self._windows:
            if window.contains(address):
                return _relative(address - window.pointer, self.size_bytes, self.name)
        return None

    def close(self) -> None:
        """Unmap and free; idempotent. No work on the memory may be in progress."""
        windows, self._windows = self._windows, []
        handle, self._handle = self._handle, None
        for window in windows:
            window.close()
        if handle is not None:
            call(driver.cuMemRelease, handle)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # noqa: BLE001 (the context is gone, and the memory with it)
            return

    def _array(self, window: "_Window") -> Any:
        memory = cupy.cuda.UnownedMemory(window.pointer, self.size_bytes, self)
        return cupy.ndarray((self.size_bytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


class _Window:
    """The pages of an allocation, mapped into an address range with unmapped space on both sides."""

    def __init__(self, handle: Any, size_bytes: int, page: int, location: Any) -> None:
        self._size_bytes, self._location = size_bytes, location
        self._reserved_bytes = size_bytes + 2 * MARGIN_BYTES
        self._start = int(call(driver.cuMemAddressReserve, self._reserved_bytes, page, _hint(page), 0))
        self.pointer = self._start + MARGIN_BYTES
        call(driver.cuMemMap, self.pointer, size_bytes, 0, handle, 0)

    def allow_reading(self) -> bool:
        """Allow reads only; False where the driver has no such protection."""
        try:
            self._allow(_ACCESS.CU_MEM_ACCESS_FLAGS_PROT_READ)
        except DriverFault as fault:
            if fault.status not in NOT_SUPPORTED:
                raise
            return False
        return True

    def allow_everything(self) -> None:
        self._allow(_ACCESS.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)

    def contains(self, address: int) -> bool:
        """Whether an address lies in the range, unmapped space included."""
        return self._start <= address < self._start + self._reserved_bytes

    def close(self) -> None:
        call(driver.cuMemUnmap, self.pointer, self._size_bytes)
        call(driver.cuMemAddressFree, self._start, self._reserved_bytes)

    def _allow(self, flags: Any) -> None:
        access = driver.CUmemAccessDesc()
        access.location, access.flags = self._location, flags
        call(driver.cuMemSetAccess, self.pointer, self._size_bytes, [access], 1)


def _relative(offset: int, size_bytes: int, name: str) -> str:
    if offset < 0:
        return f"{-offset} byte(s) before {name}"
    if offset >= size_bytes:
        return f"{offset - size_bytes} byte(s) past the end of {name}"
    return f"byte {offset} of {name}"


def whose(address: int) -> str | None:
    """Where an address lies among the mappings of this process; None where it is near none of them."""
    return next((words for mapping in list(_mapped) if (words := mapping.describe(address)) is not None), None)


class Allocator:
    """cupy's allocations as mappings, so that memory of verification and timing lies at unpredictable addresses."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._kept: dict[int, Mapping] = {}
        self.pool = cupy.cuda.MemoryPool(cupy.cuda.PythonFunctionAllocator(self._allocate, self._free).malloc)

    def _allocate(self, size_bytes: int, _device: int) -> int:
        try:
            mapping = Mapping(size_bytes, self._device, "memory of the sandbox")
        except MemoryError as exc:  # the pool frees what it holds and tries again
            raise cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from exc
        self._kept[mapping.pointer] = mapping
        return mapping.pointer

    def _free(self, pointer: int, _device: int) -> None:
        mapping = self._kept.pop(pointer, None)
        if mapping is not None:
            call(driver.cuCtxSynchronize)  # a stream may still use it; cudaFree waits, and cuMemUnmap does not
            mapping.close()


def _location(device: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


def _properties(location: Any) -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = location
    return properties


def _page_bytes(properties: Any) -> int:
    recommended = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    return int(call(driver.cuMemGetAllocationGranularity, properties, recommended))


def _create(size_bytes: int, properties: Any) -> Any:
    try:
        return call(driver.cuMemCreate, size_bytes, properties, 0)
    except DriverFault as fault:
        if fault.status == "CUDA_ERROR_OUT_OF_MEMORY":
            raise MemoryError(f"the GPU has no {size_bytes} bytes left") from fault
        raise


def _hint(page: int) -> int:
    """An address drawn from the system's entropy; the driver uses it where it is free."""
    low, high = _HINTS
    return (low + secrets.randbelow(high - low)) // page * page
