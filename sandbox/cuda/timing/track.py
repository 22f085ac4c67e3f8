"""The memory that all contenders of a task run over, and its preparation and checks around a sample."""

import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import cupy
from cuda.bindings import driver

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.contender import Bound, Contender, Operands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from cudal2_agent.sandbox.cuda.guard.buffers import storage_type
from cudal2_agent.sandbox.cuda.guard.mapping import NOT_SUPPORTED, Mapping
from cudal2_agent.sandbox.cuda.timing.operand_pools import OperandPools, Ring
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudge
from cudal2_agent.sandbox.cuda.timing.sample_plan import (
    MAX_LAUNCHES,
    TimedLaunch,
    count_sets,
    count_slots,
    draw_launches,
    launches_needed,
    spread_bytes,
)
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming
from cudal2_agent.sandbox.cuda.trusted import DELAY_NS, Bystanders

SWEEP_L2_MULTIPLE = 2
WRITTEN_EARLY = "{} outputs of a launch were written before its predecessor had finished"
WRITTEN_LATE = "{} outputs of a launch were written after its dependents could read them"


class Residue:
    """Clears one device of what launches leave on it: shared memory, registers, local memory, L2 lines.

    Measured on an H200: all of shared memory and of local memory survives from one kernel to the next, and so do registers.
    Lines that were read under `evict_last` survive ordinary traffic (`python -m benchmarks.ruler.retention`). The memory of
    the sweep is useless to a candidate: it holds what the last sweep wrote.
    """

    def __init__(self, device: Device, pools: Any, trusted: TrustedTiming) -> None:
        self._pools, self._trusted = pools, trusted
        self._swept = Mapping(SWEEP_L2_MULTIPLE * device.chip.l2_bytes, device.index, "the sweep of L2")

    def clear(self, draw: random.Random, local_bytes: int) -> None:
        """Everything, for a kernel with `local_bytes` of local memory per thread."""
        self._trusted.scrub_local(draw.getrandbits(64), local_bytes)
        self._trusted.scrub_chip(draw.getrandbits(64))
        self.sweep_l2(draw)

    def sweep_l2(self, draw: random.Random) -> None:
        """Leave nothing of the operands in L2, whatever policy they were read under, and nothing to be written back.

        Measured: with the sweep's own lines to be written back, 128x2048x12288 takes 27.3 us instead of 22.4.
        """
        try:
            call(driver.cuCtxResetPersistingL2Cache)
        except DriverFault as fault:
            if fault.status not in NOT_SUPPORTED:  # a GPU, or a partition of one, may lack this reset
                raise
            self._pools.demote()
        self._trusted.sweep(self._swept.bytes(), draw.getrandbits(63))
        self._trusted.checksum(self._swept.bytes(), 0)  # reads all of it

    def close(self) -> None:
        cupy.cuda.get_current_stream().synchronize()
        self._swept.close()


class BaseTrack(ABC):
    """What timing needs of a task's memory, whatever kind the task is of. `capacity`: launches of one sample that the options
    ask for. `rings`: of outputs.
    """

    task: Task
    pools: Any
    judge: Any
    device: Device
    capacity: int
    residue: Residue
    bystanders: Bystanders
    _trusted: TrustedTiming

    @property
    @abstractmethod
    def rings(self) -> tuple[Ring, ...]: ...

    @abstractmethod
    def slots_for(self, contender: Contender) -> int:
        """Launches whose outputs and workspaces fit."""

    @abstractmethod
    def fitting(self, launches: int, contender: Contender) -> int:
        """As many of the launches as there are slots and operands for."""

    @abstractmethod
    def launches(self, count: int, seed: int) -> list[TimedLaunch]:
        """Operands and output slots of a sample, in an order that follows from the seed."""

    @abstractmethod
    def delivered(self, lane: Any) -> list[TimedLaunch]:
        """The launches of a lane whose outputs lie in their slots, after what was left elsewhere is copied there."""

    @abstractmethod
    def behind_late_predecessor(
        self, lane: Any, index: int, done: Sequence[int], bystanders: Bystanders, draw: random.Random
    ) -> list[tuple[str, Any]]:
        """Enqueue one launch whose operands come late and whose output is read early.

        Returns what it may do too early: words with a place for a number, and that number on the device, (1,).
        """

    @abstractmethod
    def _operands(self, launch: TimedLaunch, index: int, workspaces: Ring | None) -> Any: ...

    def workspaces(self, contender: Contender, slots: int) -> Ring | None:
        """A ring of the contender's workspaces; None where it has none. Raises: MemoryError."""
        if not contender.workspace_bytes:
            return None
        zero_bytes = contender.zero_bytes if contender.zero == "restored" else 0
        size, draw = contender.workspace_bytes, random.Random(secrets.randbits(64))
        ring = Ring("workspace", size, slots, self.device.index, self._trusted, draw, zero_bytes=zero_bytes)
        ring.refill(draw.getrandbits(64))
        return ring

    def bind(self, contender: Contender, launches: Sequence[TimedLaunch], workspaces: Ring | None) -> list[Bound]:
        """The contender bound to the operands and the slots of every launch; launch i has workspace i."""
        return [contender.bind(self._operands(launch, index, workspaces)) for index, launch in enumerate(launches)]

    def bind_one(self, contender: Contender, times: int, workspaces: Ring | None) -> list[Bound]:
        """One set of operands and one slot, repeatedly: launches from L2. Their outputs are not judged."""
        return [contender.bind(self._operands(TimedLaunch(0, 0, 0), 0, workspaces))] * times

    def example(self) -> Any:
        """Operands of one launch, without a workspace."""
        return self._operands(TimedLaunch(0, 0, 0), 0, None)

    def refill(self, workspaces: Ring | None, draw: random.Random) -> None:
        """Fill the outputs and the workspaces of a sample again."""
        for ring in self.rings:
            ring.refill(draw.getrandbits(64))
        if workspaces is not None:
            workspaces.refill(draw.getrandbits(64))

    def close(self) -> None:
        self.device.synchronize()
        for part in (self.pools, *self.rings, self.residue):
            part.close()


class Track(BaseTrack):
    """Operand pools and the ring of outputs of one matrix product. Raises: MemoryError."""

    task: GemmTask
    pools: OperandPools

    def __init__(self, task: GemmTask, device: Device, options: TimeOptions) -> None:
        self.task, self.device = task, device
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        self._free_bytes = free_bytes + device.pool.free_bytes()
        self._trusted = TrustedTiming(device.chip.sms, LIMITS[device.chip.arch].max_smem_per_block_bytes)
        self.capacity = launches_needed(task, options, device.chip)
        draw, l2_bytes = random.Random(secrets.randbits(64)), device.chip.l2_bytes
        sets = count_sets(task, self.capacity, l2_bytes, self._free_bytes)
        spread = spread_bytes(l2_bytes, self._free_bytes)
        self.pools = OperandPools(task, sets, device.index, self._trusted, draw, spread)
        slots = min(count_slots(task, 0, self._free_bytes), sets * sets, MAX_LAUNCHES, self.capacity)
        self.ring = Ring("D", 2 * task.m * task.n, slots, device.index, self._trusted, draw)
        self.residue = Residue(device, self.pools, self._trusted)
        self.bystanders = Bystanders()
        self._outputs: dict[int, Any] = {}  # by slot; made once, because thousands of launches ask for them

    @cached_property
    def judge(self) -> OutputJudge:
        return OutputJudge(self.task, self.pools, self.ring, self._trusted)

    @property
    def rings(self) -> tuple[Ring, ...]:
        return (self.ring,)

    def fitting(self, launches: int, contender: Contender) -> int:
        return max(1, min(launches, MAX_LAUNCHES, self.slots_for(contender), len(self.pools) ** 2))

    def slots_for(self, contender: Contender) -> int:
        return min(self.ring.slots, count_slots(self.task, contender.workspace_bytes, self._free_bytes))

    def launches(self, count: int, seed: int) -> list[TimedLaunch]:
        return draw_launches(len(self.pools), self.ring.slots, count, random.Random(seed))

    def delivered(self, lane: Any) -> list[TimedLaunch]:
        return list(lane.launches)

    def behind_late_predecessor(
        self, lane: Any, index: int, done: Sequence[int], bystanders: Bystanders, draw: random.Random
    ) -> list[tuple[str, Any]]:
        launch = lane.launches[index]
        d = self.ring.slot(launch.slot).view(cupy.uint16)
        if done and draw.random() < 0.5:
            d[...] = self.ring.slot(lane.launches[draw.choice(done)].slot).view(cupy.uint16)
        before, seen, early = d.copy(), cupy.empty_like(d), cupy.zeros(1, dtype=cupy.uint64)
        self.pools.make_old(launch[:2], draw)
        bystanders.compile()
        stream = self.device.stream.ptr
        self.pools.renew_late(launch[:2], d, before, early, DELAY_NS)
        lane.bounds[index].enqueue(stream)
        bystanders.consume(d, seen, stream)
        late = (seen != d).sum(keepdims=True, dtype=cupy.uint64)
        return [(WRITTEN_EARLY, early), (WRITTEN_LATE, late)]

    def close(self) -> None:
        super().close()
        self._outputs.clear()

    def _operands(self, launch: TimedLaunch, index: int, workspaces: Ring | None) -> Operands:
        if launch.slot not in self._outputs:
            shape = self.task.m, self.task.n
            self._outputs[launch.slot] = self.ring.slot(launch.slot).view(storage_type(self.task.element)).reshape(shape)
        workspace = None if workspaces is None else workspaces.slot(index)
        return Operands(**self.pools.operands(launch[:2]), d=self._outputs[launch.slot], workspace=workspace)
