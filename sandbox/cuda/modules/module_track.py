"""The memory of a module's timed launches: sets of values, rings of outputs, and references kept for every set.

A sample uses each set once, so that no launch repeats what another one of the sample did. Where memory holds few sets, a
sample has few launches; a set is then larger than L2 by far.
"""

import math
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import cupy
import torch

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.contender import Contender, NamedOperands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.placement import slot_bytes
from cudal2_agent.sandbox.cuda.modules.kept import KeptJudge, kept_bytes
from cudal2_agent.sandbox.cuda.modules.tensors import give_back, memory_told, use_stream, view
from cudal2_agent.sandbox.cuda.modules.value_pools import ValuePools
from cudal2_agent.sandbox.cuda.timing.operand_pools import Ring
from cudal2_agent.sandbox.cuda.timing.sample_plan import MIN_SETS, TimedLaunch, launches_needed, spread_bytes
from cudal2_agent.sandbox.cuda.timing.track import WRITTEN_EARLY, WRITTEN_LATE, BaseTrack, Residue
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming
from cudal2_agent.sandbox.cuda.trusted import Bystanders
from cudal2_agent.sandbox.modules.bounds import as_booleans
from cudal2_agent.sandbox.modules.cases import NORMAL, OWN
from cudal2_agent.sandbox.modules.cases import draw as draw_values
from cudal2_agent.sandbox.modules.interpreter import Interpreter
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of
from cudal2_agent.sandbox.modules.pieces import AnyJudge, judge_of
from cudal2_agent.sandbox.modules.prepared import DrawnCase, prepare

MAX_SETS = 128
FASTER, TRIALS = 8, 3  # how far kernels may be below eager's time and still have full samples; calls that it is found by
SETS_SHARE = 0.45  # of the free memory, for sets with their outputs and references
WORKSPACE_SHARE = 0.5  # of what is free beside them


class ModuleTrack(BaseTrack):
    """Raises: MemoryError."""

    task: ModuleTask
    pools: ValuePools
    judge: KeptJudge

    def __init__(self, task: ModuleTask, device: Device, options: TimeOptions, most_sets: int | None = None) -> None:
        self.task, self.device = task, device
        self._place = use_stream(device)
        self._trusted = TrustedTiming(device.chip.sms, LIMITS[device.chip.arch].max_smem_per_block_bytes)
        self.capacity = launches_needed(task, options, device.chip)
        places, free_bytes = random.Random(secrets.randbits(64)), _free_bytes(device)
        sets = count_sets(task, min(self._launches(options), most_sets or MAX_SETS), free_bytes)
        spread = spread_bytes(device.chip.l2_bytes, free_bytes)
        self.pools = ValuePools(task, sets, device.index, self._trusted, places, self._drawn, spread)
        self._rings = {
            buffer.name: Ring(buffer.name, max(buffer.bytes, 1), sets, device.index, self._trusted, places)
            for buffer in task.buffers
            if buffer.role is Role.OUTPUT
        }
        self.residue = Residue(device, self.pools, self._trusted)
        self.bystanders = Bystanders()
        self._alive: list[Any] = []  # what kernels that overlap read, until the next sample
        self.judge = KeptJudge(task, self._stored, self.pools.values, self._judge_of, lambda index: self.pools.kept[index])

    def _launches(self, options: TimeOptions) -> int:
        """Launches that a sample can have: at the roofline, or at a fraction of eager's time, which many modules stay far from.

        Each has a set of its own, whose references take long.
        """
        if self.task.mode is TimingMode.SERVER or self.capacity <= MIN_SETS:
            return self.capacity
        with memory_told():
            return min(self.capacity, max(MIN_SETS, math.ceil(FASTER * options.round_us / self._eager_us())))

    def _eager_us(self) -> float:
        """What a call takes eagerly, host time included: the least of a few. Unit: microseconds."""
        values = as_booleans(self.task, draw_values(self.task, NORMAL, secrets.randbits(63), self._place))
        program, times = Interpreter(self.task.graph, str(self._place)), []
        with arithmetic_of(self.task.arithmetic):
            for _ in range(TRIALS):
                self.device.synchronize()
                begin = time.perf_counter()
                program.run(values)
                self.device.synchronize()
                times.append(time.perf_counter() - begin)
        return max(1e6 * min(times), 1e-3)

    @property
    def rings(self) -> tuple[Ring, ...]:
        return tuple(self._rings.values())

    def slots_for(self, contender: Contender) -> int:
        if not contender.workspace_bytes:
            return len(self.pools)
        fitting = int(WORKSPACE_SHARE * _free_bytes(self.device)) // slot_bytes(contender.workspace_bytes)
        return max(1, min(len(self.pools), fitting))

    def fitting(self, launches: int, contender: Contender) -> int:
        return max(1, min(launches, self.slots_for(contender)))

    def launches(self, count: int, seed: int) -> list[TimedLaunch]:
        draw, sets = random.Random(seed), len(self.pools)
        pairs = zip(draw.sample(range(sets), count), draw.sample(range(sets), count), strict=True)
        return [TimedLaunch(chosen, chosen, slot) for chosen, slot in pairs]

    def refill(self, workspaces: Ring | None, draw: random.Random) -> None:
        self._alive.clear()
        super().refill(workspaces, draw)
        self.pools.restore_states()

    def delivered(self, lane: Any) -> list[TimedLaunch]:
        found = []
        for launch, bound in zip(lane.launches, lane.bounds, strict=True):
            if not hasattr(bound, "deliver") or bound.deliver(last=bound is lane.bounds[-1]):
                found.append(launch)
        return found

    def behind_late_predecessor(
        self, lane: Any, index: int, done: Sequence[int], bystanders: Bystanders, draw: random.Random
    ) -> list[tuple[str, Any]]:
        launch, stream = lane.launches[index], self.device.stream.ptr
        outputs = [ring.slot(launch.slot) for ring in self.rings]
        if done and draw.random() < 0.5:
            for output, ring in zip(outputs, self.rings, strict=True):
                output[...] = ring.slot(lane.launches[draw.choice(done)].slot)
        before, seen = [each.copy() for each in outputs], [cupy.empty_like(each) for each in outputs]
        early = cupy.zeros(1, dtype=cupy.uint64)
        late = self.pools.make_old(launch.a, draw)
        bystanders.compile()
        watched = list(zip(outputs, before, strict=True))
        self._alive.append((late, before, bystanders.produce_values(late, watched, early)))
        lane.bounds[index].enqueue(stream)
        self._alive.append(bystanders.consume_values(list(zip(outputs, seen, strict=True)), stream))
        after = sum((one != other).sum(keepdims=True, dtype=cupy.uint64) for one, other in zip(seen, outputs, strict=True))
        return [(WRITTEN_EARLY, early), (WRITTEN_LATE, after)]

    def close(self) -> None:
        super().close()
        give_back()

    def _operands(self, launch: TimedLaunch, index: int, workspaces: Ring | None) -> NamedOperands:
        outputs = {name: ring.slot(launch.slot) for name, ring in self._rings.items()}
        return NamedOperands({**self.pools.arrays(launch.a), **outputs}, None if workspaces is None else workspaces.slot(index))

    def _stored(self, buffer: Buffer, launch: TimedLaunch) -> torch.Tensor:
        if buffer.role is Role.STATE:
            return self.pools.state(buffer.name, launch.a)
        return view(self._rings[buffer.name].slot(launch.slot), buffer)

    def _drawn(self, index: int, seed: int) -> tuple[dict[str, torch.Tensor], AnyJudge]:
        with memory_told():
            prepared = self._prepared(index, seed)
        return prepared.values, prepared.judge

    def _fixed(self, index: int) -> dict[str, torch.Tensor]:  # noqa: ARG002 (all are drawn here)
        """Values of a set that are never drawn."""
        return {}

    def _prepared(self, index: int, seed: int) -> DrawnCase:
        """Normal numbers as tests draw them; the problem's own distribution where the reference of those is not finite."""
        for case in (NORMAL, OWN):
            if (prepared := prepare(self.task, case, seed, self._place, self._fixed(index))) is not None:
                return prepared
        raise MachineError(f"{self.task.name}: its reference is not finite on any inputs that are drawn")

    def _judge_of(self, values: Mapping[str, torch.Tensor]) -> AnyJudge:
        return judge_of(self.task, values, secrets.randbits(32))


def count_sets(task: ModuleTask, launches: int, free_bytes: int) -> int:
    """Sets of values, each with its outputs and references: one per launch of a sample. Raises: MemoryError."""
    each = sum(slot_bytes(buffer.bytes) for buffer in task.buffers) + kept_bytes(task)
    if each > free_bytes:
        raise MemoryError(f"one set of {task.name} with its outputs and references takes {each} bytes of {free_bytes} free")
    return max(1, min(MAX_SETS, launches, int(SETS_SHARE * free_bytes) // max(each, 1)))


def _free_bytes(device: Device) -> int:
    """Free memory of the GPU, after torch gave back what it holds unused, with what cupy's pool holds unused."""
    torch.cuda.empty_cache()
    free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    return int(free_bytes) + int(device.pool.free_bytes())
