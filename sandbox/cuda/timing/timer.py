"""Timing: candidate and baselines on the same buffers, in the same rounds, in random order.

Covered: device time only (events are nodes of the graph); cold operands; random data; clocks and throttling recorded;
outputs of every timed launch judged (`watch.py`), the baselines' too (`baseline_watch.py`). No state of a launch helps a later
one: every launch of a sample has its own pair of operands, output and workspace, and everything that outlives a launch is
overwritten before the next sample (`track.py`, `operand_pools.py`).
Not covered: other processes on the same GPU; state that one launch leaves to a later one of the same sample, which does not
help with other operands.
"""

import random
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.evaluation import SideFigures, Telemetry, Timing
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.ruler import Ruler
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, WrongProduct
from cudal2_agent.sandbox.cuda.baselines.library_baselines import Baselines, LibraryBaselines
from cudal2_agent.sandbox.cuda.contender import Bound, Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.placement import slot_bytes
from cudal2_agent.sandbox.cuda.timing.baseline_watch import BaselineWatch, judge_lane
from cudal2_agent.sandbox.cuda.timing.operand_pools import Ring
from cudal2_agent.sandbox.cuda.timing.sample_plan import (
    L2_MULTIPLE,
    launches_needed,
    reuse_bytes,
    shuffled_rounds,
    stays_cold,
    throttled_apart,
)
from cudal2_agent.sandbox.cuda.timing.sampling import HotLane, Lane, OfflineLane, open_brief_lane, open_lane
from cudal2_agent.sandbox.cuda.timing.telemetry import Sampler, open_sampler
from cudal2_agent.sandbox.cuda.timing.track import BaseTrack, Track
from cudal2_agent.sandbox.cuda.timing.watch import Watch

if TYPE_CHECKING:
    from cudal2_agent.sandbox.cuda.modules.torch_baselines import ModuleBaselines

SIDE_SAMPLES = 5
HOST_LAUNCHES = 64
SERVER_BRIEF_LAUNCHES = 8  # of a sample that only narrows a library's suggestions down
WALL_CLOCK_CALLS = 30
CANDIDATE = "candidate"


@dataclass(frozen=True)
class Measurement:
    timing: Timing
    baselines: tuple[Timing, ...]
    side: SideFigures
    telemetry: Telemetry
    ruler: Ruler
    notes: tuple[str, ...]
    plain: Timing | None = None


@dataclass
class Rounds:
    """Samples by lane name, and the throttle reasons seen on either side."""

    samples: dict[str, list[float]]
    candidate_reasons: frozenset[str] = frozenset()
    baseline_reasons: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    wrong: Mapping[str, str] = field(default_factory=dict)  # lanes of baselines whose outputs were wrong

    @property
    def throttled_apart(self) -> frozenset[str]:
        return throttled_apart(self.candidate_reasons, self.baseline_reasons)


class Timer:
    """Times candidates of one task on one GPU. Memory, baselines and their tuning are kept between candidates."""

    def __init__(self, task: Task, device: Device) -> None:
        self._task, self._device = task, device
        self._options = TimeOptions()
        self.floor_us = roofline_us(task, device.chip)
        self._opened: BaseTrack | None = None
        self._lanes: dict[LibraryContender, Lane] = {}
        self._brief_lanes: dict[tuple[LibraryContender, int], Lane] = {}
        self._libraries = self._open_libraries()

    def _open_libraries(self) -> "LibraryBaselines | ModuleBaselines":
        if not isinstance(self._task, GemmTask):
            from cudal2_agent.sandbox.cuda.modules.torch_baselines import ModuleBaselines  # torch, which products do without

            return ModuleBaselines(self._task, self._device.index, self._sample_library, lambda: self._track.example())
        return LibraryBaselines(
            self._task,
            self._sample_library,
            self._sample_briefly,
            environment=self._device.environment.key,
            floor_us=self.floor_us,
        )

    def _open_track(self) -> BaseTrack:
        if isinstance(self._task, GemmTask):
            return Track(self._task, self._device, self._options)
        from cudal2_agent.sandbox.cuda.modules.module_track import ModuleTrack

        return ModuleTrack(self._task, self._device, self._options)

    @property
    def _track(self) -> BaseTrack:
        if self._opened is None:
            self._opened = self._open_track()
            self._opened.pools.renew(random.Random(secrets.randbits(64)))
        return self._opened

    def track_for(self, options: TimeOptions, draw: random.Random | None = None) -> BaseTrack:
        """The memory of the task, and from now on baselines sampled as these options say. `draw`: of new numbers in it.

        It is opened again where it holds fewer launches than such a sample has.
        """
        if self._opened is not None and self._opened.capacity < self.launches_of(options):
            self.close()
        if _sample_of(options) != _sample_of(self._options):
            self._lanes = {}
        self._options = options
        if draw is not None:
            self._opened = self._opened or self._open_track()
            self._opened.pools.renew(draw)
        return self._track

    def launches_of(self, options: TimeOptions) -> int:
        """Launches that one sample may have under these options."""
        return launches_needed(self._task, options, self._device.chip)

    def expect(self, known: TunedBaseline | None) -> None:
        """What an earlier process tuned, for when the baselines are opened."""
        self._libraries.known = known

    def new_tuning(self) -> TunedBaseline | None:
        """What was tuned since the last call; None where nothing was."""
        tuned, self._libraries.tuned = self._libraries.tuned, None
        return tuned

    def open_baselines(self, options: TimeOptions) -> Baselines:
        """The baselines that the options ask for, tuned by samples of the options that the memory was asked for with."""
        found = self._libraries.open(self._libraries.wanted(options))
        standing = [one for contenders in found.contenders.values() for one in contenders]
        self._lanes = {one: lane for one, lane in self._lanes.items() if one in standing}
        self._brief_lanes = {}
        return found

    def measure(self, contender: Contender, options: TimeOptions) -> Measurement:
        """All samples of the candidate and of the baselines, round by round.

        Raises: Fault where the candidate cannot be captured in a graph, WrongWhileTimed for a fault of its timed launches.
        """
        secret = secrets.randbits(64) if options.secret is None else options.secret
        draw = random.Random(secret)
        self.track_for(options, draw)
        baselines = self.open_baselines(options)
        standing = {name: list(found) for name, found in baselines.contenders.items()}
        lane = open_lane(self._track, contender, options, draw)
        lanes: dict[str, Lane] = {CANDIDATE: lane}
        for name, contenders in standing.items():
            lanes |= {f"{name}/{rank}": self.library_lane(one) for rank, one in enumerate(contenders)}
        with open_sampler(self._device.pci_bus_id) as sampler:
            watch = Watch(self._track, contender, lane, options.rounds, draw)
            rounds = self._all_rounds(lanes, watch, sampler, draw)
            watch.finish()
            side = self._side_figures(contender, options, draw) if options.side else SideFigures()
            telemetry = sampler.telemetry()
        ruler = self.ruler(secret, lane, watch)
        return Measurement(
            timing=Timing(name=contender.name, samples_us=tuple(rounds.samples[CANDIDATE])),
            baselines=self.timings(standing, rounds.samples, rounds.wrong),
            side=side,
            telemetry=telemetry,
            ruler=ruler,
            notes=(*baselines.notes, *rounds.notes, *ruler.weakened),
        )

    def close(self) -> None:
        """Free the memory. Bound contenders must not be launched any more."""
        self._lanes, self._brief_lanes = {}, {}
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _all_rounds(self, lanes: dict[str, Lane], watch: Watch, sampler: Sampler, draw: random.Random) -> Rounds:
        """The rounds, once more where throttling met one side only; a note where it did so twice."""
        for lane in lanes.values():
            lane.sample_us()  # warm-up: clocks, instruction caches
        rounds = self._rounds(lanes, watch, sampler, draw)
        if rounds.throttled_apart:
            rounds = self._rounds(lanes, watch, sampler, draw)
            reasons = ", ".join(sorted(rounds.throttled_apart))
            rounds.notes.append(
                f"throttling ({reasons}) met one side only, twice" if reasons else "rounds repeated after throttling"
            )
        return rounds

    def _rounds(self, lanes: dict[str, Lane], watch: Watch, sampler: Sampler, draw: random.Random) -> Rounds:
        rounds = Rounds(samples={name: [] for name in lanes})
        baseline_watch = BaselineWatch(self._track, self._options.rounds, draw)
        for index, order in enumerate(shuffled_rounds(tuple(lanes), self._options.rounds, draw)):
            for name in order:
                rounds.samples[name].append(lanes[name].sample_us())
                reasons = sampler.reasons()
                if name == CANDIDATE:
                    rounds.candidate_reasons |= reasons
                    watch.look()
                else:
                    rounds.baseline_reasons |= reasons
                    baseline_watch.look(name, lanes[name], index)
            if baseline_watch.judges(index):
                watch.weigh(baseline_watch.rms)
            sampler.sample()
        rounds.wrong = baseline_watch.wrong
        rounds.notes.extend(baseline_watch.notes())
        return rounds

    def library_lane(self, contender: LibraryContender) -> Lane:
        """A baseline's lane for whole samples, kept while the baseline is in use."""
        if contender not in self._lanes:
            draw = random.Random(secrets.randbits(64))
            self._lanes[contender] = open_lane(self._track, contender, self._options, draw)
        return self._lanes[contender]

    def _sample_briefly(self, contender: LibraryContender, launches: int) -> float:
        """One sample of a few launches. The lane is kept until the baselines are open."""
        if self._task.mode is TimingMode.SERVER:
            launches = min(launches, SERVER_BRIEF_LAUNCHES)
        key = contender, launches
        if key not in self._brief_lanes:
            self._brief_lanes[key] = open_brief_lane(self._track, contender, launches, random.Random(secrets.randbits(64)))
        return self._brief_lanes[key].sample_us()

    def _sample_library(self, contender: LibraryContender) -> float:
        """One sample, judged the first time. Raises: Unavailable where its outputs are wrong."""
        new = contender not in self._lanes
        lane = self.library_lane(contender)
        sampled_us = lane.sample_us()
        if new:
            fault = judge_lane(self._track, lane, random.Random(secrets.randbits(64))).fault
            if fault is not None:
                del self._lanes[contender]
                raise WrongProduct(f"{contender.detail} is wrong: {fault}")
        return sampled_us

    def timings(
        self,
        contenders: Mapping[str, Sequence[LibraryContender]],
        sampled: Mapping[str, Sequence[float]],
        wrong: Mapping[str, str],
    ) -> tuple[Timing, ...]:
        """The baselines' timings, each from its best right contender. What was wrong in the rounds is tuned anew next time."""
        found = []
        for name, ones in contenders.items():
            right = {f"{name}/{rank}": one for rank, one in enumerate(ones) if f"{name}/{rank}" not in wrong}
            if len(right) < len(ones):
                self._libraries.forget(name)
            if right:
                found.append(better(name, right, sampled))
        return tuple(found)

    def ruler(self, secret: int, lane: Lane, watch: Watch, weakened: Sequence[str] = ()) -> Ruler:
        """How a lane was measured. `weakened`: guards that were left out on purpose, besides those this machine lacks."""
        sets, launches = len(self._track.pools), len(lane.launches)
        slots = [*self._track.rings, *([lane.workspaces] if lane.workspaces else [])]
        reuse = None
        if isinstance(self._task, GemmTask) and self._task.mode is TimingMode.OFFLINE:  # a module's sample uses each set once
            reuse = reuse_bytes(self._task, sets, launches)
        return Ruler(
            secret=secret,
            order=lane.order,
            sets=sets,
            launches=launches,
            ring_bytes=launches * sum(slot_bytes(ring.size_bytes) for ring in slots),
            reuse_bytes=reuse,
            projected=watch.projected,
            compared=tuple(watch.compared),
            weakened=(*weakened, *self._weakened(reuse)),
            zero_us=lane.zero_us if self._task.mode is TimingMode.SERVER else None,
        )

    def _weakened(self, reuse: int | None) -> list[str]:
        weakened = []
        if not stays_cold(reuse, self._device.chip.l2_bytes):
            weakened.append(f"{len(self._track.pools)} sets of operands pass {reuse} bytes between two uses; some stay in L2")
        if (spread := self._track.pools.spread_bytes) < L2_MULTIPLE * self._device.chip.l2_bytes:
            weakened.append(f"the matrices of an operand lie within {spread} bytes, of which L2 may hold a large part")
        if not self._track.pools.read_only:
            weakened.append("the driver maps no memory read-only; inputs were only compared after every sample")
        return weakened

    def _side_figures(self, contender: Contender, options: TimeOptions, draw: random.Random) -> SideFigures:
        hot = _median_us(HotLane(self._track, contender, options.round_us))
        without = None
        if contender.programmatic:
            without = _median_us(OfflineLane(self._track, contender, options.round_us, draw, programmatic=False))
        return SideFigures(
            host_launch_us=self._host_launch_us(contender),
            hot_l2_us=hot,
            wall_clock_us=self._wall_clock_us(contender),
            without_programmatic_us=without,
        )

    def _host_launch_us(self, contender: Contender) -> float:
        """Host time to enqueue one launch through the launcher, Python included. Unit: microseconds."""
        (bound, _ring), stream = self._one(contender), self._device.stream.ptr
        times = []
        for _ in range(HOST_LAUNCHES):
            self._device.synchronize()
            start = time.perf_counter_ns()
            bound.enqueue(stream)
            times.append((time.perf_counter_ns() - start) / 1e3)
        self._device.synchronize()
        return statistics.median(times)

    def _wall_clock_us(self, contender: Contender) -> float:
        """Host clock around one synchronised call. Unit: microseconds."""
        (bound, _ring), stream = self._one(contender), self._device.stream.ptr
        times = []
        for _ in range(WALL_CLOCK_CALLS):
            self._device.synchronize()
            start = time.perf_counter_ns()
            bound.enqueue(stream)
            self._device.synchronize()
            times.append((time.perf_counter_ns() - start) / 1e3)
        return statistics.median(times)

    def _one(self, contender: Contender) -> tuple[Bound, Ring | None]:
        """The contender on one pair and slot; the ring must live as long as the contender is bound to it."""
        workspaces = self._track.workspaces(contender, 1)
        (bound,) = self._track.bind_one(contender, 1, workspaces)
        return bound, workspaces


def _sample_of(options: TimeOptions) -> tuple[float, ...]:
    """What a lane is made of."""
    return options.round_us, options.server_launches, options.server_interval_us


def _median_us(lane: Lane) -> float:
    return statistics.median(lane.sample_us() for _ in range(SIDE_SAMPLES))


def better(name: str, contenders: Mapping[str, LibraryContender], sampled: Mapping[str, Sequence[float]]) -> Timing:
    """The contender with the best median, the others' medians in its detail. Both mappings: by lane, `name/rank`."""
    medians = {lane: statistics.median(sampled[lane]) for lane in contenders}
    best = min(medians, key=lambda lane: medians[lane])
    others = [f"{one.detail}: {medians[lane]:.3f} us" for lane, one in contenders.items() if lane != best]
    detail = "; ".join([contenders[best].detail, *others])
    return Timing(name=name, samples_us=tuple(sampled[best]), detail=detail)
