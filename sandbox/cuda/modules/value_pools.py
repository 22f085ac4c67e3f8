"""The values that timed launches of a module read: `count` sets, each with an input, a parameter and a state of every name."""

import random
from collections.abc import Callable
from collections.abc import Mapping as Named
from typing import Any

import cupy
import torch

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from cudal2_agent.sandbox.cuda.guard.placement import scatter
from cudal2_agent.sandbox.cuda.modules.kept import KeptOutput, keep
from cudal2_agent.sandbox.cuda.modules.tensors import view
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming
from cudal2_agent.sandbox.modules.pieces import AnyJudge

# The values of a set from a seed, and the judge of what a launch makes of them.
Drawn = tuple[dict[str, torch.Tensor], AnyJudge]


class _BufferSets:
    """One buffer of every set, scattered over a mapping: as candidates see it, and as the sandbox writes it."""

    def __init__(self, buffer: Buffer, count: int, device: int, draw: random.Random, least_bytes: int) -> None:
        starts, size_bytes = scatter(count, max(buffer.bytes, 1), draw, least_bytes)
        self.buffer = buffer
        self.mapping = Mapping(size_bytes, device, buffer.name, sealed=buffer.role is not Role.STATE)
        memory, writer = self.mapping.bytes(), self.mapping.writer()
        self.arrays = [memory[start : start + max(buffer.bytes, 1)] for start in starts]
        self.writers = [writer[start : start + max(buffer.bytes, 1)] for start in starts]
        self.targets = [view(each, buffer) for each in self.writers]


class ValuePools:
    """Sets of values at places of their own draw, read-only for candidates but for states, new at every `renew`.

    `drawn`: makes a set of its number and a seed. Of every set the references are kept. Raises: MemoryError.
    """

    def __init__(
        self,
        task: ModuleTask,
        count: int,
        device: int,
        trusted: TrustedTiming,
        draw: random.Random,
        drawn: Callable[[int, int], Drawn],
        least_bytes: int = 0,
    ) -> None:
        self._task, self._count, self._trusted, self._drawn = task, count, trusted, drawn
        read = [buffer for buffer in task.buffers if buffer.role is not Role.OUTPUT]
        share = least_bytes // max(len(read), 1)
        self._pools = {buffer.name: _BufferSets(buffer, count, device, draw, share) for buffer in read}
        for pool in self._pools.values():
            trusted.fill_ring(pool.mapping.writer(), draw.getrandbits(64))  # what lies between the values
        self._sealed = [pool for pool in self._pools.values() if pool.buffer.role is not Role.STATE]
        self.read_only = all(pool.mapping.read_only for pool in self._sealed)
        self.spread_bytes = sum(pool.mapping.size_bytes for pool in self._pools.values())
        self.kept: list[dict[str, KeptOutput]] = []
        self._states: list[dict[str, torch.Tensor]] = []
        self._key, self._checksums = 0, list[int]()

    def __len__(self) -> int:
        return self._count

    def renew(self, draw: random.Random) -> None:
        """New numbers in every set, and their references."""
        self.kept, self._states = [], [{} for _ in range(self._count)]
        outputs = [buffer for buffer in self._task.buffers if buffer.role is Role.OUTPUT]
        for index in range(self._count):
            values, judge = self._drawn(index, draw.getrandbits(63))
            self.put(index, values)
            self.kept.append(keep(judge, outputs, next(iter(values.values())).device))
            del values, judge  # before the next ones are drawn
        self._key = draw.getrandbits(64)
        self._checksums = self._sums()

    def put(self, index: int, values: Named[str, torch.Tensor]) -> None:
        """These numbers in a set."""
        for name, pool in self._pools.items():
            pool.targets[index].copy_(values[name])
        self._states[index] = {name: values[name] for name, pool in self._pools.items() if pool.buffer.role is Role.STATE}

    def restore_states(self) -> None:
        """States as they were before the first launch."""
        for index, states in enumerate(self._states):
            for name, value in states.items():
                self._pools[name].targets[index].copy_(value)

    def arrays(self, index: int) -> dict[str, Any]:
        """A set's buffers as candidates see them."""
        return {name: pool.arrays[index] for name, pool in self._pools.items()}

    def state(self, name: str, index: int) -> torch.Tensor:
        return self._pools[name].targets[index]

    def values(self, index: int) -> dict[str, torch.Tensor]:
        """A set as it was drawn."""
        return {name: self._states[index].get(name, pool.targets[index]) for name, pool in self._pools.items()}

    def make_old(self, index: int, draw: random.Random) -> list[tuple[Any, Any]]:
        """Put another set's values in a set's place. Returns pairs (value, where it belongs) of bytes."""
        other, pairs = draw.randrange(self._count), []
        for pool in self._pools.values():
            if pool.buffer.elements:
                place = pool.writers[index][: pool.buffer.bytes]
                pairs.append((place.copy(), place))
                place[...] = pool.writers[other][: pool.buffer.bytes] if other != index else place[::-1].copy()
        return pairs

    def changed(self) -> str | None:
        """Which input or parameter differs from what was drawn, None where none does."""
        for pool, before, now in zip(self._sealed, self._checksums, self._sums(), strict=True):
            if before != now:
                return f"{pool.buffer.role.value} {pool.buffer.name} was changed"
        return None

    def demote(self) -> None:
        """Make every L2 line of the pools an ordinary one, whatever policy it was read under."""
        for pool in self._pools.values():
            self._trusted.demote(pool.mapping.bytes())

    def close(self) -> None:
        pools, self._pools, self._sealed, self.kept, self._states = self._pools, {}, [], [], []
        for pool in pools.values():
            pool.mapping.close()

    def _sums(self) -> list[int]:
        sums = [self._trusted.checksum(pool.mapping.bytes(), self._key) for pool in self._sealed]
        return [int(total) for total in cupy.concatenate(sums).get()] if sums else []
