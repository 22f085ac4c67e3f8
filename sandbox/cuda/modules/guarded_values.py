"""A module's buffers between canaries, each in a mapping of its own.

Covered: writes up to the ends of a buffer's pages; any change of an input or a parameter; accesses beyond the pages, which
fault. Not covered: reads within the pages of a buffer (the emulator detects those).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cupy
import torch

from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.sandbox.cuda.contender import NamedOperands
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded
from cudal2_agent.sandbox.cuda.modules.tensors import view
from cudal2_agent.sandbox.modules.executor import Values, differing, poisoned
from cudal2_agent.sandbox.verification.executor import Violation

Make = Callable[[str, int], Guarded]


class GuardedValues:
    """One guarded set of a task's buffers, or of a plan's scratch. `make`: guarded bytes of a name and size.

    The candidate sees `operands`; the sandbox writes through `targets`, which are the same memory.
    """

    def __init__(self, buffers: Sequence[Buffer], make: Make) -> None:
        self._buffers = {buffer.name: buffer for buffer in buffers}
        self._guards = {buffer.name: make(buffer.name, max(buffer.bytes, 1)) for buffer in buffers}
        self._expected: dict[str, torch.Tensor] = {}
        self._view()

    def _view(self) -> None:
        self.arrays = {name: guard.payload for name, guard in self._guards.items()}
        self.targets = {name: view(self._guards[name].target, buffer) for name, buffer in self._buffers.items()}
        self._seen = {name: view(self.arrays[name], buffer) for name, buffer in self._buffers.items()}

    def place(self, draw: random.Random) -> None:
        """Move every buffer to a place of its own draw; contents are lost."""
        for guard in self._guards.values():
            guard.place(draw)
        self._expected.clear()
        self._view()

    def load(self, values: Values) -> None:
        """Copy inputs, parameters and states in. The given tensors stay the originals that `violations` compares with."""
        for name, buffer in self._buffers.items():
            if buffer.role is Role.OUTPUT:
                continue
            value = values[name].view(torch.uint8) if values[name].dtype is torch.bool else values[name]
            if tuple(value.shape) != buffer.shape or value.dtype != self.targets[name].dtype:
                raise ValueError(
                    f"{name} should be {buffer.shape} of {buffer.element}, not {tuple(value.shape)} of {value.dtype}"
                )
            self.targets[name].copy_(value)
            if buffer.role is not Role.STATE:
                self._expected[name] = value.contiguous()

    def announce(self, values: Values) -> list[tuple[Any, Any]]:
        """Expect these values from now on, which a producer writes late. Returns pairs (value, where it belongs) of bytes."""
        pairs = []
        for name, buffer in self._buffers.items():
            if buffer.role is not Role.OUTPUT and buffer.elements:
                value = (values[name].view(torch.uint8) if values[name].dtype is torch.bool else values[name]).contiguous()
                if buffer.role is not Role.STATE:
                    self._expected[name] = value
                late = cupy.from_dlpack(value.reshape(-1).view(torch.uint8))
                pairs.append((late, self._guards[name].target[: buffer.bytes]))
        return pairs

    def bytes(self, *, written: bool) -> list[Any]:
        """The memory of the outputs, or of all other buffers. Shape: (bytes,), uint8."""
        return [
            self.arrays[name][: buffer.bytes]
            for name, buffer in self._buffers.items()
            if (buffer.role is Role.OUTPUT) is written and buffer.elements
        ]

    def as_outputs(self, seen: Sequence[Any]) -> dict[str, torch.Tensor]:
        """`outputs`, with what was seen of the memory of `bytes(written=True)` in its place."""
        found, left = self.outputs(), list(seen)
        for name, buffer in self._buffers.items():
            if buffer.role is Role.OUTPUT and buffer.elements:
                found[name] = view(left.pop(0), buffer)
        return found

    def poison(self, pattern: int) -> None:
        """Fill every output, or every buffer of scratch, with a 16-bit pattern."""
        for name, buffer in self._buffers.items():
            if buffer.role is Role.OUTPUT:
                poisoned(self.targets[name], buffer.element, pattern)

    def outputs(self) -> dict[str, torch.Tensor]:
        return {name: self._seen[name] for name, buffer in self._buffers.items() if buffer.role.written}

    def violations(self) -> tuple[Violation, ...]:
        """Every band written and every input changed since `load`; the buffers are repaired."""
        found = []
        for name, guard in self._guards.items():
            if (written := guard.violation()) is not None:
                found.append(Violation("canary", f"{name} was {written}"))
                guard.repair()
        for name, expected in self._expected.items():
            if changed := differing(self._seen[name], expected):
                found.append(Violation("input", f"{self._role(name)} {name} was changed in {changed} element(s)"))
                self.targets[name].copy_(expected)
        return tuple(found)

    def _role(self, name: str) -> str:
        return self._buffers[name].role.value


def operands(values: GuardedValues, scratch: GuardedValues | None, workspace: Any | None) -> NamedOperands:
    """What a contender binds."""
    arrays: Mapping[str, Any] = values.arrays if scratch is None else {**values.arrays, **scratch.arrays}
    return NamedOperands(arrays, workspace)
