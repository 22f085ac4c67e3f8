"""Timing: candidate and baselines on the same buffers, in the same rounds, in random order.

Covered: device time only (events are nodes of the graph); cold operands; random data; clocks and throttling watched; outputs
of timed launches looked at, so that a kernel cannot tell proof from timing and work in one of them only.
Not covered: other processes on the same GPU; a kernel that, within one sample, finds its input unchanged and its output in
place and leaves it there.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from contract.evaluation import AUTOTUNED, BASELINES, SideFigures, Telemetry, Timing
from contract.options import TimeOptions
from contract.task import GemmTask, TimingMode
from sandbox.cuda.baselines import LibraryBaselines
from sandbox.cuda.contender import Contender
from sandbox.cuda.device import Device
from sandbox.cuda.driver import Fault
from sandbox.cuda.library import LibraryContender
from sandbox.cuda.sampling import Lane, OfflineLane, Track, hot_lane
from sandbox.cuda.telemetry import Sampler, open_sampler
from sandbox.timing import shuffled_rounds, throttled_apart

SIDE_SAMPLES = 5
HOST_LAUNCHES = 64
WALL_CLOCK_CALLS = 30
CHECKED_SETS = 2
CANDIDATE = "candidate"


class WrongWhileTimed(Fault):
    """Outputs of timed launches that are not what the same kernel computed when it was verified."""


@dataclass(frozen=True)
class Measurement:
    timing: Timing
    baselines: tuple[Timing, ...]
    side: SideFigures
    telemetry: Telemetry
    notes: tuple[str, ...]


@dataclass
class _Rounds:
    """Samples by lane name, and the throttle reasons seen on either side."""

    samples: dict[str, list[float]]
    candidate_reasons: frozenset[str] = frozenset()
    baseline_reasons: frozenset[str] = frozenset()

    @property
    def throttled_apart(self) -> frozenset[str]:
        return throttled_apart(self.candidate_reasons, self.baseline_reasons)


class Timer:
    """Times candidates of one task on one GPU; operand sets, baselines and their tuning are kept between candidates."""

    def __init__(self, task: GemmTask, device: Device) -> None:
        self._task, self._device = task, device
        self._options = TimeOptions()
        self._lanes: dict[LibraryContender, Lane] = {}
        self._libraries = LibraryBaselines(task, self._sample_library)

    @cached_property
    def _track(self) -> Track:
        return Track(self._task, self._device, self._options.seed)

    def measure(self, contender: Contender, options: TimeOptions) -> Measurement:
        """All samples of the candidate and of the baselines, round by round.

        Raises: Fault where the candidate cannot be captured in a graph, WrongWhileTimed where its timed outputs are wrong.
        """
        self._options = options
        baselines = self._libraries.open(BASELINES if options.all_baselines else (AUTOTUNED,))
        standing = {name: list(found) for name, found in baselines.contenders.items()}
        self._lanes = {one: lane for one, lane in self._lanes.items() if any(one in found for found in standing.values())}
        lanes: dict[str, Lane] = {CANDIDATE: self._track.lane(contender, options)}
        for name, contenders in standing.items():
            lanes |= {f"{name}/{rank}": self._library_lane(one) for rank, one in enumerate(contenders)}
        notes = list(baselines.notes) + self._cold_note()
        with open_sampler(self._device.pci_bus_id) as sampler:
            rounds = self._all_rounds(lanes, options, sampler, notes)
            self._check_outputs(lanes[CANDIDATE], options.seed)
            side = self._side_figures(contender, options) if options.side else SideFigures()
            telemetry = sampler.telemetry()
        return Measurement(
            timing=Timing(name=contender.name, samples_us=tuple(rounds.samples[CANDIDATE])),
            baselines=tuple(_better(name, contenders, rounds) for name, contenders in standing.items()),
            side=side,
            telemetry=telemetry,
            notes=tuple(notes),
        )

    def _all_rounds(self, lanes: dict[str, Lane], options: TimeOptions, sampler: Sampler, notes: list[str]) -> _Rounds:
        """The rounds, once more where throttling met one side only; a note where it did so twice."""
        for lane in lanes.values():
            lane.sample_us()  # warm-up: clocks, instruction caches
        rounds = self._rounds(lanes, options, sampler)
        if rounds.throttled_apart:
            rounds = self._rounds(lanes, options, sampler)
            reasons = ", ".join(sorted(rounds.throttled_apart))
            notes.append(f"throttling ({reasons}) met one side only, twice" if reasons else "rounds repeated after throttling")
        return rounds

    def _rounds(self, lanes: dict[str, Lane], options: TimeOptions, sampler: Sampler) -> _Rounds:
        rounds = _Rounds(samples={name: [] for name in lanes})
        for order in shuffled_rounds(tuple(lanes), options.rounds, options.seed):
            for name in order:
                rounds.samples[name].append(lanes[name].sample_us())
                reasons = sampler.reasons()
                if name == CANDIDATE:
                    rounds.candidate_reasons |= reasons
                else:
                    rounds.baseline_reasons |= reasons
            sampler.sample()
        return rounds

    def _check_outputs(self, lane: Lane, seed: int) -> None:
        """A last sample whose outputs are looked at: none unwritten, and some sets, drawn at random, compared in full.

        Raises: WrongWhileTimed for a kernel that works only where it is verified.
        """
        lane.sample_us()
        if unwritten := self._track.sets.unwritten(lane.sets):
            raise WrongWhileTimed(f"{unwritten} outputs were left unwritten by timed launches")
        for index in random.Random(seed).sample(range(lane.sets), min(CHECKED_SETS, lane.sets)):
            comparison = self._track.sets.compare(index)
            if comparison.mismatches:
                raise WrongWhileTimed(f"timed launches computed something else: {comparison.describe()}")

    def _library_lane(self, contender: LibraryContender) -> Lane:
        if contender not in self._lanes:
            self._lanes[contender] = self._track.lane(contender, self._options)
        return self._lanes[contender]

    def _sample_library(self, contender: LibraryContender) -> float:
        return self._library_lane(contender).sample_us()

    def _cold_note(self) -> list[str]:
        if self._track.cold or self._task.mode is TimingMode.SERVER:
            return []
        return [f"{len(self._track.sets)} operand sets fit into L2; times are for partly cached operands"]

    def _side_figures(self, contender: Contender, options: TimeOptions) -> SideFigures:
        hot = _median_us(hot_lane(self._track, contender, options.round_us))
        without = None
        if contender.programmatic:
            bounds = self._track.bind(contender, len(self._track.sets))
            without = _median_us(OfflineLane(self._track, bounds, options.round_us, programmatic=False))
        return SideFigures(
            host_launch_us=self._host_launch_us(contender),
            hot_l2_us=hot,
            wall_clock_us=self._wall_clock_us(contender),
            without_programmatic_us=without,
        )

    def _host_launch_us(self, contender: Contender) -> float:
        """Host time to enqueue one launch through the launcher, Python included. Unit: microseconds."""
        (bound,), stream = self._track.bind(contender, 1), self._device.stream.ptr
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
        (bound,), stream = self._track.bind(contender, 1), self._device.stream.ptr
        times = []
        for _ in range(WALL_CLOCK_CALLS):
            self._device.synchronize()
            start = time.perf_counter_ns()
            bound.enqueue(stream)
            self._device.synchronize()
            times.append((time.perf_counter_ns() - start) / 1e3)
        return statistics.median(times)


def _median_us(lane: Lane) -> float:
    return statistics.median(lane.sample_us() for _ in range(SIDE_SAMPLES))


def _better(name: str, contenders: Sequence[LibraryContender], rounds: _Rounds) -> Timing:
    """The contender with the best median, the others' medians in its detail."""
    samples = [rounds.samples[f"{name}/{rank}"] for rank in range(len(contenders))]
    medians = [statistics.median(values) for values in samples]
    best = medians.index(min(medians))
    others = [
        f"{contender.detail}: {median:.3f} us"
        for rank, (contender, median) in enumerate(zip(contenders, medians, strict=True))
        if rank != best
    ]
    detail = "; ".join([contenders[best].detail, *others])
    return Timing(name=name, samples_us=tuple(samples[best]), detail=detail)
