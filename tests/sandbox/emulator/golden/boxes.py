"""Boxes of tensor maps: the addresses of their elements in global and shared memory."""

from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import MapSpec

Array = np.ndarray[Any, Any]
ELEMENT_BYTES = {"u8": 1, "f16": 2, "bf16": 2, "u16": 2, "f32": 4, "u32": 4, "s32": 4, "u64": 8, "s64": 8}


def box_bytes(spec: MapSpec) -> int:
    return int(np.prod(spec.box)) * ELEMENT_BYTES[spec.element]


def tensor_bytes(spec: MapSpec) -> int:
    """Bytes from the first element to behind the last row."""
    return spec.offset + (spec.strides[-1] * spec.sizes[-1] if spec.strides else spec.sizes[0] * ELEMENT_BYTES[spec.element])


def places(spec: MapSpec, start: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """For every element of a box: its byte in global memory, its byte in shared memory, and whether it is in the tensor."""
    size = ELEMENT_BYTES[spec.element]
    shape = tuple(reversed(spec.box))
    index = np.indices(shape).reshape(len(shape), -1)[::-1]  # fastest first
    position = index + np.array(start, np.int64)[:, None]
    inside = ((position >= 0) & (position < np.array(spec.sizes)[:, None])).all(0)
    source = spec.offset + (position * np.array((size, *spec.strides))[:, None]).sum(0)
    linear = np.arange(index.shape[1]) * size
    return np.asarray(source), swizzled(linear, spec.swizzle), np.asarray(inside)


def swizzled(address: Array, swizzle: int) -> Array:
    """Shared-memory address of a byte: the 16-byte chunk within a row is XORed with the row's number within its atom."""
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    return np.asarray(address ^ ((address >> 7) & ((1 << bits) - 1)) << 4)


def gather(spec: MapSpec, start: tuple[int, ...], memory: Array, shared: Array) -> Array:
    """Shared memory after a load; elements outside the tensor are zero."""
    source, target, inside = places(spec, start)
    result = shared.copy()
    for byte in range(ELEMENT_BYTES[spec.element]):
        result[target + byte] = np.where(inside, memory[np.where(inside, source, 0) + byte], 0)
    return result


def elements(spec: MapSpec, start: tuple[int, ...], shared: Array) -> tuple[Array, Array]:
    """The byte addresses and bits that a store or reduction writes to global memory, without elements outside the tensor."""
    target, source, inside = places(spec, start)
    size = ELEMENT_BYTES[spec.element]
    picked = source[inside][:, None] + np.arange(size)
    return target[inside], np.ascontiguousarray(shared[picked]).view(f"u{size}").ravel()
