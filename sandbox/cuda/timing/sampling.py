"""One sample of one contender, in either mode. A lane is a contender prepared for its samples."""

import random
import time
from collections.abc import Sequence
from typing import Protocol

import cupy

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.contender import Bound, Contender
from cudal2_agent.sandbox.cuda.timing.cuda_graph import TimedGraph
from cudal2_agent.sandbox.cuda.timing.operand_pools import Ring
from cudal2_agent.sandbox.cuda.timing.sample_plan import (
    MIN_REQUESTS,
    TimedLaunch,
    arrival_intervals_us,
    count_launches,
    launches_needed,
    trimmed_mean,
)
from cudal2_agent.sandbox.cuda.timing.track import BaseTrack

ZERO_REQUESTS = 8  # graphs without a launch in each sample of a server
ATTEMPTS = 4  # at a sample that is to be positive
MAX_CALLS = 16  # of a sample of calls one by one
TRIAL_LAUNCHES = 16  # maximum number that determines how many a sample takes


class Lane(Protocol):
    """`launches`: of a sample, in order; `bounds`: the contender bound to each. `workspaces`: its ring, if any.

    `order`: the seed that the launches' operands and slots follow from. `zero_us`: what was subtracted from the last sample; 0
    where nothing is.
    """

    @property
    def order(self) -> int: ...
    @property
    def launches(self) -> Sequence[TimedLaunch]: ...
    @property
    def bounds(self) -> Sequence[Bound]: ...
    @property
    def workspaces(self) -> Ring | None: ...
    @property
    def zero_us(self) -> float: ...

    def sample_us(self) -> float:
        """One sample: device time per launch. Unit: microseconds."""
        ...


def open_lane(track: BaseTrack, contender: Contender, options: TimeOptions, draw: random.Random) -> Lane:
    """Raises: Fault where the contender cannot be captured in a graph."""
    if getattr(contender, "streamed", False):
        return StreamLane(track, contender, options.round_us, draw)
    if track.task.mode is TimingMode.SERVER:
        launches = launches_needed(track.task, options, track.device.chip)
        return ServerLane(track, contender, launches, options.server_interval_us, draw)
    return OfflineLane(track, contender, options.round_us, draw)


def open_brief_lane(
    track: BaseTrack,
    contender: Contender,
    launches: int,
    draw: random.Random,
    *,
    interval_us: float = 0.0,
    programmatic: bool | None = None,
    beside: Lane | None = None,
) -> Lane:
    """A lane of a given number of launches per sample, as far as they fit. Raises: as `open_lane`.

    `beside`: another lane of the same contender, whose launches and workspaces this one uses in turn.
    """
    if track.task.mode is TimingMode.SERVER:
        return ServerLane(track, contender, launches, interval_us, draw, programmatic=programmatic, beside=beside)
    return OfflineLane(track, contender, 0.0, draw, programmatic=programmatic, launches=launches, beside=beside)


class OfflineLane:
    """Launches back to back in one graph, each on a pair of operands and slots of its own.

    `launches`: of one sample; found by a trial of `round_us` where None.
    """

    zero_us = 0.0  # one pair of events for many launches

    def __init__(
        self,
        track: BaseTrack,
        contender: Contender,
        round_us: float,
        draw: random.Random,
        *,
        programmatic: bool | None = None,
        launches: int | None = None,
        beside: Lane | None = None,
    ) -> None:
        self._track, self._contender, self._draw = track, contender, draw
        self.order = draw.getrandbits(64) if beside is None else beside.order
        track.refill(None if beside is None else beside.workspaces, draw)  # one's own are new
        launches = self._count(round_us, programmatic) if launches is None else track.fitting(launches, contender)
        self.workspaces = track.workspaces(contender, launches) if beside is None else beside.workspaces
        self.launches = track.launches(launches, self.order)
        self.bounds = track.bind(contender, self.launches, self.workspaces)
        _enqueue_plainly(track, self.bounds)
        self._graph = TimedGraph(track.device, self.bounds, programmatic=programmatic)

    def _count(self, round_us: float, programmatic: bool | None) -> int:
        """Launches of one sample, by a trial in workspaces of its own."""
        track = self._track
        some = max(2, min(TRIAL_LAUNCHES, round(round_us / roofline_us(track.task, track.device.chip))))
        trial = track.launches(track.fitting(some, self._contender), self.order)
        workspaces = track.workspaces(self._contender, len(trial))
        bounds = track.bind(self._contender, trial, workspaces)
        _enqueue_plainly(track, bounds)
        graph = TimedGraph(track.device, bounds, programmatic=programmatic)
        graph.run_us()
        return count_launches(graph.launch_us(), round_us, len(track.pools), track.slots_for(self._contender))

    def sample_us(self) -> float:
        self._track.refill(self.workspaces, self._draw)
        self._track.residue.clear(self._draw, self._contender.local_bytes)
        return self._graph.launch_us()


class ServerLane:
    """Single launches onto an idle GPU with a swept L2, at exponential intervals; the sample is their trimmed mean.

    The time between the events of a graph without a launch is measured with each sample and subtracted from it. Graphs are made
    anew for every sample, because the address of a graph shifts the times of its launches by up to 1 %. On a busy machine the
    subtracted time can be the longer one; such a sample is taken again.
    """

    def __init__(
        self,
        track: BaseTrack,
        contender: Contender,
        launches: int,
        interval_us: float,
        draw: random.Random,
        *,
        programmatic: bool | None = None,
        beside: Lane | None = None,
    ) -> None:
        self._track, self._contender, self._draw = track, contender, draw
        self._interval_us, self._programmatic = interval_us, programmatic
        self.order = draw.getrandbits(64) if beside is None else beside.order
        launches = track.fitting(launches, contender)
        self.launches = track.launches(launches, self.order)
        self.workspaces = track.workspaces(contender, launches) if beside is None else beside.workspaces
        track.refill(None if beside is None else beside.workspaces, draw)
        self.bounds = track.bind(contender, self.launches, self.workspaces)
        _enqueue_plainly(track, self.bounds[:1])
        self._graphs: list[TimedGraph] = []
        self._nothing = TimedGraph(track.device, [])
        self.zero_us = 0.0

    def sample_us(self) -> float:
        for _ in range(ATTEMPTS):
            request_us = self._requests_us()
            if request_us > self.zero_us:
                return request_us - self.zero_us
        raise MachineError(
            f"a graph without a launch takes {self.zero_us:.1f} us and one with a launch {request_us:.1f} us; "
            "other processes use the machine"
        )

    def _requests_us(self) -> float:
        """Time of a request with what is to be subtracted, which is measured too. Unit: microseconds."""
        self._graphs = [TimedGraph(self._track.device, [bound], programmatic=self._programmatic) for bound in self.bounds]
        self._track.refill(self.workspaces, self._draw)
        self._track.residue.clear(self._draw, self._contender.local_bytes)
        intervals = arrival_intervals_us(len(self._graphs), self._interval_us, self._draw)
        requests = [self._request_us(graph, wait) for graph, wait in zip(self._graphs, intervals, strict=True)]
        self.zero_us = trimmed_mean([self._request_us(self._nothing, 0.0) for _ in range(ZERO_REQUESTS)])
        return trimmed_mean(requests)

    def _request_us(self, graph: TimedGraph, interval_us: float) -> float:
        self._track.residue.sweep_l2(self._draw)
        self._track.device.synchronize()
        _wait_us(interval_us)
        return graph.run_us()


class StreamLane:
    """Calls one by one between two events on an idle stream, host time of the launches included; the sample is their trimmed
    mean. So a program without a graph runs, and so KernelBench measures.
    """

    workspaces: Ring | None = None
    zero_us = 0.0

    def __init__(self, track: BaseTrack, contender: Contender, round_us: float, draw: random.Random) -> None:
        self._track, self._draw = track, draw
        self.order = draw.getrandbits(64)
        track.refill(None, draw)
        first = track.bind(contender, track.launches(1, self.order), None)
        _enqueue_plainly(track, first * 2)
        wanted = round(round_us / max(self._call_us(first[0]), 1e-3))
        self.launches = track.launches(track.fitting(max(MIN_REQUESTS, min(wanted, MAX_CALLS)), contender), self.order)
        self.bounds = track.bind(contender, self.launches, None)

    def sample_us(self) -> float:
        self._track.refill(None, self._draw)
        self._track.residue.clear(self._draw, 0)
        return trimmed_mean([self._call_us(bound) for bound in self.bounds])

    def _call_us(self, bound: Bound) -> float:
        device, start, end = self._track.device, cupy.cuda.Event(), cupy.cuda.Event()
        device.synchronize()
        start.record(device.stream)
        bound.enqueue(device.stream.ptr)
        end.record(device.stream)
        device.synchronize()
        return 1e3 * float(cupy.cuda.get_elapsed_time(start, end))


class HotLane:
    """Back to back on one pair of operands, which then stays in L2 as far as it fits. Its outputs are not judged."""

    launches: Sequence[TimedLaunch] = ()
    order = 0
    zero_us = 0.0

    def __init__(self, track: BaseTrack, contender: Contender, round_us: float) -> None:
        self.workspaces = track.workspaces(contender, 1)
        trial = track.bind_one(contender, TRIAL_LAUNCHES, self.workspaces)
        _enqueue_plainly(track, trial[:1])
        launch_us = TimedGraph(track.device, trial).launch_us()
        launches = max(TRIAL_LAUNCHES, min(1024, round(round_us / max(launch_us, 1e-3))))
        self.bounds = track.bind_one(contender, launches, self.workspaces)
        self._graph = TimedGraph(track.device, self.bounds)

    def sample_us(self) -> float:
        return self._graph.launch_us()


def _enqueue_plainly(track: BaseTrack, bounds: Sequence[Bound]) -> None:
    """Run two launches outside any graph, where a library may still allocate."""
    for bound in bounds[:2]:
        bound.enqueue(track.device.stream.ptr)
    track.device.synchronize()


def _wait_us(interval_us: float) -> None:
    """Spin for an interval that is too short to sleep."""
    end = time.perf_counter_ns() + round(1e3 * interval_us)
    while time.perf_counter_ns() < end:
        pass
