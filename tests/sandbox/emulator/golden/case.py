"""A golden case: a kernel, a launch, seeded inputs, and the comparison of its outputs.

Every kernel has the same parameters: (in, out, Numbers of eight ints[, tensor map]); see golden.cuh.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tests.sandbox.emulator.golden.draw import Draw

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]
Buffers = tuple[Bytes, Bytes]  # the input, and the output before the launch
Swizzle = Literal[0, 32, 64, 128]
UNWRITTEN = 0xA5  # every output byte that a case does not initialise


@dataclass(frozen=True)
class MapSpec:
    """A tensor map over the input or the output; sizes, strides (in bytes, of all but the first dimension) fastest first."""

    of: Literal["in", "out"]
    element: Literal["f16", "bf16", "f32", "u8", "u16", "u32", "s32", "u64", "s64"]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = 0
    offset: int = 0


@dataclass(frozen=True)
class Within:
    """Elements may differ from the recorded ones by `slack(input, recorded)`, element by element; NaN and inf may not."""

    element: Literal["f16", "bf16", "f32", "f16x2"]
    slack: Callable[[Bytes, Bytes], Array]
    why: str


@dataclass(frozen=True)
class Case:
    """One launch. `expected`: numpy's result, where simple; `comparison`: None if bits must agree.

    `check`: tolerance of the hardware against `expected`, if it is not exact.
    """

    name: str
    kernel: str
    build: Callable[[Draw], Buffers]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem: int = 0
    numbers: tuple[int, ...] = ()
    maps: tuple[MapSpec, ...] = ()
    comparison: Within | None = None
    expected: Callable[[Bytes, Bytes], Bytes] | None = None
    expected_element: str = "b8"  # the type of `expected` for NaN and tolerance: b8, f16, bf16, f32, f64
    check: Callable[[Bytes, Bytes], Array] | None = None

    def buffers(self) -> Buffers:
        """Input and initial output, the same on every machine."""
        return self.build(Draw(zlib.crc32(self.name.encode())))


@dataclass(frozen=True)
class Family:
    """Cases of one source."""

    name: str
    source: str
    cases: tuple[Case, ...]


def raw(*columns: Array) -> Bytes:
    """Arrays one after the other as bytes."""
    return np.concatenate([np.ascontiguousarray(column).view(np.uint8).ravel() for column in columns])


def unwritten(count: int) -> Bytes:
    """An output buffer that nothing has been written to."""
    return np.full(count, UNWRITTEN, np.uint8)
