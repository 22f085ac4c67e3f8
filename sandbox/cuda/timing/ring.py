"""The ring: a slot for the output, or the workspace, of every launch of a sample.

Covered: before a sample every slot holds unpredictable bytes, so that nothing is kept there from one sample to the next. Of
a workspace declared `restored` the declared bytes are zero, and are checked after the sample.
"""

from typing import Any

import cupy

from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from cudal2_agent.sandbox.cuda.timing.sample_plan import slot_bytes
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming


class Ring:
    """`slots` slots of `size_bytes` each in one mapping. Raises: MemoryError."""

    def __init__(
        self, name: str, size_bytes: int, slots: int, device: int, trusted: TrustedTiming, *, zero_bytes: int = 0
    ) -> None:
        self.slots, self.stride_bytes = slots, slot_bytes(size_bytes)
        self._size_bytes, self._zero_bytes, self._trusted = size_bytes, zero_bytes, trusted
        self._mapping = Mapping(slots * self.stride_bytes, device, name)
        self.memory = self._mapping.bytes()

    def slot(self, index: int) -> Any:
        """Shape: (size_bytes,), uint8."""
        start = index * self.stride_bytes
        return self.memory[start : start + self._size_bytes]

    def refill(self, used: int, key: int) -> None:
        """Fill the first `used` slots anew."""
        self._trusted.fill_ring(self.memory[: used * self.stride_bytes], self.stride_bytes, self._zero_bytes, key)

    def unrestored(self, used: int) -> int:
        """Bytes among the first `used` slots that should be zero again and are not."""
        if not self._zero_bytes:
            return 0
        shape, strides = (used, self._zero_bytes), (self.stride_bytes, 1)
        return int(cupy.count_nonzero(cupy.lib.stride_tricks.as_strided(self.memory, shape, strides)))

    def close(self) -> None:
        self._mapping.close()
