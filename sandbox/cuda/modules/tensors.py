"""Device memory as torch tensors, and how torch runs beside the launcher: on its stream, in memory of its own.

Torch's operations go to the stream of the worker, so that they and launches are ordered, and a capture of the stream records
both. What they allocate comes from a pool of memory of its own, which is given back when no graph holds its addresses any more.
"""

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

import torch

from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.modules.executor import STORED


def use_stream(device: Device) -> torch.device:
    """Let torch work on the device's stream from here on. Returns the device as torch names it."""
    place = torch.device("cuda", device.index)
    torch.cuda.set_device(place)
    torch.cuda.set_stream(torch.cuda.ExternalStream(device.stream.ptr, device=place))
    return place


def view(array: Any, buffer: Buffer) -> torch.Tensor:
    """A buffer's memory as a tensor of `STORED` type. Shape: array (bytes,), at least the buffer's."""
    if not buffer.elements:
        return torch.empty(buffer.shape, dtype=STORED[buffer.element], device=torch.from_dlpack(array).device)
    return torch.from_dlpack(array[: buffer.bytes]).view(STORED[buffer.element]).reshape(buffer.shape)


def as_computed(stored: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """The same memory in the type that operations take: booleans are no bytes."""
    return stored.view(torch.bool) if buffer.element is BufferElement.BOOL else stored


@contextlib.contextmanager
def memory_told() -> Iterator[None]:
    """Torch's lack of memory as Python's own. Raises: MemoryError."""
    try:
        yield
    except (torch.OutOfMemoryError, ValueError) as exc:
        if isinstance(exc, torch.OutOfMemoryError) or isinstance(exc.__cause__, torch.OutOfMemoryError):
            raise MemoryError(" ".join(str(exc).split())[:200]) from exc
        raise


@functools.cache
def _pool() -> Any:
    return torch.cuda.MemPool() if hasattr(torch.cuda, "MemPool") else None


def give_back() -> None:
    """Free the pool, and what torch holds unused. No graph that was captured with its memory may be launched any more."""
    _pool.cache_clear()
    if torch.cuda.is_available():
        gc.collect()  # a cycle may still hold the pool
        torch.cuda.empty_cache()


def allocating() -> contextlib.AbstractContextManager[Any]:
    """Allocations of this thread come from the pool that graphs use."""
    pool = _pool() if torch.cuda.is_available() else None
    return contextlib.nullcontext() if pool is None else torch.cuda.use_mem_pool(pool)
