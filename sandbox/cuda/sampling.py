"""One sample of one contender, in either mode. A lane is a contender made ready for its samples."""

import statistics
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import cupy

from contract.options import TimeOptions
from contract.task import GemmTask, TimingMode
from sandbox.cuda.contender import Bound, Contender
from sandbox.cuda.device import Device
from sandbox.cuda.graph import TimedGraph
from sandbox.cuda.operand_sets import OperandSets
from sandbox.timing import arrival_intervals_us, count_launches, count_sets, stays_cold

MEMORY_SHARE = 0.5  # of the free device memory, for operand sets
FLUSH_L2_MULTIPLE = 2
SERVER_SETS = 8


class Lane(Protocol):
    """`sets`: how many of the operand sets every sample goes through, from the first on."""

    sets: int

    def sample_us(self) -> float:
        """One sample: device time per launch. Unit: microseconds."""
        ...


class Track:
    """The buffers that all contenders of a task run over."""

    def __init__(self, task: GemmTask, device: Device, seed: int) -> None:
        self.task, self.device = task, device
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        free_bytes += cupy.get_default_memory_pool().free_bytes()
        count = count_sets(task, device.chip.l2_bytes, int(MEMORY_SHARE * free_bytes))
        self.sets = OperandSets(task, count, seed)
        self.cold = stays_cold(task, count, device.chip.l2_bytes)

    @cached_property
    def _flushed(self) -> Any:
        return cupy.empty(FLUSH_L2_MULTIPLE * self.device.chip.l2_bytes, dtype=cupy.uint8)

    def flush_l2(self, byte: int) -> None:
        """Write so much that nothing of the operands is left in L2."""
        self._flushed.fill(byte)

    def bind(self, contender: Contender, count: int) -> list[Bound]:
        """The contender bound to the first `count` sets, with one workspace for all: launches on a stream follow each other."""
        workspace = _workspace(contender)
        return [contender.bind(self.sets.operands(index, workspace)) for index in range(count)]

    def lane(self, contender: Contender, options: TimeOptions, *, programmatic: bool | None = None) -> Lane:
        if self.task.mode is TimingMode.SERVER:
            return ServerLane(self, contender, options)
        return OfflineLane(self, self.bind(contender, len(self.sets)), options.round_us, programmatic=programmatic)


class OfflineLane:
    """Launches back to back in one graph, over rotating operand sets."""

    def __init__(self, track: Track, bounds: Sequence[Bound], round_us: float, *, programmatic: bool | None = None) -> None:
        self._track, self.sets, device = track, len(bounds), track.device
        for bound in bounds[:2]:  # outside any graph, where a library may still allocate
            bound.enqueue(device.stream.ptr)
        device.synchronize()
        self._graph = TimedGraph(device, bounds, programmatic=programmatic)
        self._graph.run_us()
        launches = count_launches(self._graph.launch_us(), len(bounds), round_us)
        if launches > len(bounds):
            rotation = [bounds[index % len(bounds)] for index in range(launches)]
            self._graph = TimedGraph(device, rotation, programmatic=programmatic)
            self._graph.run_us()

    def sample_us(self) -> float:
        self._track.sets.scrub()
        return self._graph.launch_us()


class ServerLane:
    """Single launches onto an idle GPU with a flushed L2, at exponential intervals; the sample is their median."""

    def __init__(self, track: Track, contender: Contender, options: TimeOptions) -> None:
        self._track, self._options, self._samples = track, options, 0
        self.sets = min(len(track.sets), SERVER_SETS, options.server_launches)
        bounds = track.bind(contender, self.sets)
        bounds[0].enqueue(track.device.stream.ptr)
        track.device.synchronize()
        self._graphs = [TimedGraph(track.device, [bound]) for bound in bounds]

    def sample_us(self) -> float:
        self._samples += 1
        options = self._options
        intervals = arrival_intervals_us(options.server_launches, options.server_interval_us, options.seed + self._samples)
        self._track.sets.scrub()
        return statistics.median(self._request_us(index, interval) for index, interval in enumerate(intervals))

    def _request_us(self, index: int, interval_us: float) -> float:
        self._track.flush_l2(index % 251)
        self._track.device.synchronize()
        _wait_us(interval_us)
        return self._graphs[index % len(self._graphs)].run_us()


def _wait_us(interval_us: float) -> None:
    """Spin for an interval that is too short to sleep."""
    end = time.perf_counter_ns() + round(1e3 * interval_us)
    while time.perf_counter_ns() < end:
        pass


def _workspace(contender: Contender) -> Any:
    """The contender's own workspace: zero where it was promised so, otherwise arbitrary."""
    if not contender.workspace_bytes:
        return None
    workspace = cupy.full(contender.workspace_bytes, 0xFF, dtype=cupy.uint8)
    workspace[: contender.zero_bytes] = 0
    return workspace


def hot_lane(track: Track, contender: Contender, round_us: float) -> OfflineLane:
    """Back to back over one operand set, which then stays in L2 as far as it fits."""
    return OfflineLane(track, track.bind(contender, 1), round_us)
