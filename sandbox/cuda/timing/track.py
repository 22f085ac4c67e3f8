"""The memory that all contenders of a task run over, and its preparation and checks around a sample."""

import random
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import cupy

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.contender import Bound, Contender, Operands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.buffers import storage_type
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge
from cudal2_agent.sandbox.cuda.timing.residue import Residue
from cudal2_agent.sandbox.cuda.timing.ring import Ring
from cudal2_agent.sandbox.cuda.timing.sample_plan import MAX_LAUNCHES, count_sets, count_slots, draw_pairs, launches_needed
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming

Pair = tuple[int, int]


class Track:
    """Operand pools and the ring of outputs of one task.

    `order`: the seed of the pairs' order. `capacity`: launches of one sample that the options ask for. Raises: MemoryError.
    """

    def __init__(self, task: GemmTask, device: Device, options: TimeOptions) -> None:
        self.task, self.device = task, device
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        self._free_bytes = free_bytes + device.pool.free_bytes()
        self._trusted = TrustedTiming(device.chip.sms, LIMITS[device.chip.arch].max_smem_per_block_bytes)
        self.order = secrets.randbits(64)
        self.capacity = launches_needed(task, options, device.chip)
        sets = count_sets(task, self.capacity, device.chip.l2_bytes, self._free_bytes)
        self.pools = OperandPools(task, sets, device.index, self._trusted)
        slots = min(count_slots(task, 0, self._free_bytes), sets * sets, MAX_LAUNCHES, self.capacity)
        self.ring = Ring("D", 2 * task.m * task.n, slots, device.index, self._trusted)
        self.residue = Residue(device, self.pools, self._trusted)
        self._outputs: dict[int, Any] = {}  # by slot; made once, because thousands of launches ask for them

    @cached_property
    def judge(self) -> OutputJudge:
        return OutputJudge(self.task, self.pools, self.ring, self._trusted)

    def fitting(self, launches: int, contender: Contender) -> int:
        """As many of the launches as there are slots and pairs of operands for."""
        return max(1, min(launches, MAX_LAUNCHES, self.slots_for(contender), len(self.pools) ** 2))

    def slots_for(self, contender: Contender) -> int:
        """Launches whose outputs and workspaces fit."""
        return min(self.ring.slots, count_slots(self.task, contender.workspace_bytes, self._free_bytes))

    def workspaces(self, contender: Contender, slots: int) -> Ring | None:
        """A ring of the contender's workspaces; None where it has none. Raises: MemoryError."""
        if not contender.workspace_bytes:
            return None
        zero_bytes = contender.zero_bytes if contender.zero == "restored" else 0
        size = contender.workspace_bytes
        ring = Ring("workspace", size, slots, self.device.index, self._trusted, zero_bytes=zero_bytes)
        ring.refill(slots, secrets.randbits(64))
        return ring

    def pairs(self, launches: int) -> list[Pair]:
        """The same order for every contender, so that the addresses of operands favour none."""
        return draw_pairs(len(self.pools), launches, random.Random(self.order))

    def bind(self, contender: Contender, pairs: Sequence[Pair], workspaces: Ring | None) -> list[Bound]:
        """The contender bound to a pair of operands and a slot of the rings for every launch."""
        return [contender.bind(self._operands(pair, slot, workspaces)) for slot, pair in enumerate(pairs)]

    def bind_one(self, contender: Contender, times: int, workspaces: Ring | None) -> list[Bound]:
        """One pair and one slot, repeatedly: launches from L2. Their outputs are not judged."""
        return [contender.bind(self._operands((0, 0), 0, workspaces))] * times

    def refill(self, launches: int, workspaces: Ring | None, draw: random.Random) -> None:
        """Fill the slots of a sample again."""
        self.ring.refill(launches, draw.getrandbits(64))
        if workspaces is not None:
            workspaces.refill(launches, draw.getrandbits(64))

    def close(self) -> None:
        self.device.synchronize()
        self._outputs.clear()
        for part in (self.pools, self.ring, self.residue):
            part.close()

    def _operands(self, pair: Pair, slot: int, workspaces: Ring | None) -> Operands:
        if slot not in self._outputs:
            shape = self.task.m, self.task.n
            self._outputs[slot] = self.ring.slot(slot).view(storage_type(self.task.element)).reshape(shape)
        d = self._outputs[slot]
        workspace = None if workspaces is None else workspaces.slot(slot)
        return Operands(**self.pools.operands(pair), d=d, workspace=workspace)
