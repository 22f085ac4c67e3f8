"""One shape: each peer offers its best kernel, then all race in the same rounds. Outputs of first samples are checked."""

import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from benchmarks.peers.judging import Judging
from benchmarks.peers.kernel_lane import KernelLane, TimesItself
from benchmarks.peers.supervision import RACE
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Timing
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup, median_us, paired_speedup
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.timing.sample_plan import shuffled_rounds
from cudal2_agent.sandbox.cuda.timing.sampling import Lane, open_lane
from cudal2_agent.sandbox.cuda.timing.track import Track

BRIEF_US, ROUND_US, ROUNDS = 150.0, 1500.0, 9

Clock = Literal["graph", "kernels"]


class PeerResult(Record):
    """What a peer's best kernel took. `tried`: kernels that were timed to find it. `speedup`: over AutoTuning, paired.

    `fault`: what is wrong with its outputs; empty where they are right. `clock`: device time of launches in a graph, or the sum
    of the durations of their kernels.
    """

    time_us: float
    speedup: Speedup
    detail: str
    tried: int
    fault: str = ""
    clock: Clock = "graph"


class PeerRow(Record):
    """One shape. `failures`: peers without a time, and why."""

    shape: str
    element: str
    autotuned_us: float | None
    peers: dict[str, PeerResult]
    failures: dict[str, str]
    seconds: float


class Offer(Record):
    """A peer's best kernel. `contender`: a `Contender`.

    `lenient`: it is timed even where its outputs are wrong or no graph holds its launches; the result says so.
    """

    contender: Any
    tried: int
    detail: str
    lenient: bool = False


@dataclass
class Raced:
    """What a race found, by peer. `failures`: those that left it. `faults`: wrong outputs of those that stayed."""

    timings: dict[str, Timing] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)


class Peer(Protocol):
    name: str

    def offer(self, bench: "Bench") -> Offer:
        """Raises: Unavailable where the peer has no kernel for the task; any exception of its own counts as that."""
        ...


class Bench:
    """The memory of one task, and brief times on it. `seconds`: what a peer may take for its search."""

    def __init__(self, task: GemmTask, device: Device, seconds: float) -> None:
        self.task, self.device, self.seconds = task, device, seconds
        self._options = TimeOptions(rounds=ROUNDS, round_us=ROUND_US)
        self._kept: dict[Contender, Lane] = {}
        self._draw = random.Random(secrets.randbits(64))
        self._track = Track(task, device, self._options)
        self._track.pools.renew(self._draw)

    def brief_us(self, contender: Contender) -> float:
        """Device time of a launch in a short sample. Raises: Unavailable where it does not run or its outputs are wrong."""
        try:
            return self._checked_us(self._lane(contender, BRIEF_US))
        except Unavailable:
            raise
        except Exception as exc:
            self.raise_if_lost()
            raise Unavailable(in_one_line(exc)) from exc

    def baseline_us(self, contender: Contender) -> float:
        """A short sample of a baseline, unchecked as in the product. Its lane is kept until `forget_baselines`."""
        if contender not in self._kept:
            self._kept[contender] = self._lane(contender, BRIEF_US)
        return self._kept[contender].sample_us()

    def forget_baselines(self) -> None:
        self._kept.clear()

    def fastest(self, contenders: Sequence[Contender], repeats: int = 2) -> tuple[Contender, int]:
        """The one with the shortest of its brief times, and how many ran. Raises: Unavailable where none did."""
        lanes: dict[Contender, Lane] = {}
        refusal = Unavailable("there is nothing to time")
        for contender in contenders:
            try:
                lanes[contender] = self._lane(contender, BRIEF_US)
                self._checked_us(lanes[contender])
            except Exception as exc:  # noqa: BLE001 (a configuration that does not run is no failure of the peer)
                self.raise_if_lost()
                lanes.pop(contender, None)
                refusal = Unavailable(in_one_line(exc))
        if not lanes:
            raise refusal
        times = {contender: min(lane.sample_us() for _ in range(repeats)) for contender, lane in lanes.items()}
        return min(times, key=lambda contender: times[contender]), len(times)

    def race(self, offers: dict[str, Offer], told: Callable[[str], None]) -> Raced:
        """Samples of all offers in the same rounds; those that fail leave. `told`: called with what begins."""
        lanes: dict[str, Lane] = {}
        raced = Raced()
        judging = Judging(self._track, self._draw) if any(offer.lenient for offer in offers.values()) else None
        for name, offer in offers.items():
            told(name)
            try:
                lane = self._race_lane(offer)
                if fault := self._first_fault(judging, name, offer, lane):
                    raced.faults[name] = fault
            except Exception as exc:  # noqa: BLE001 (whatever a peer raises is reported, and the others go on)
                self.raise_if_lost()
                raced.failures[name] = in_one_line(exc)
            else:
                lanes[name] = lane
                raced.clocks[name] = "kernels" if isinstance(lane, KernelLane) else "graph"
        told(RACE)
        samples: dict[str, list[float]] = {name: [] for name in lanes}
        for order in shuffled_rounds(tuple(lanes), ROUNDS, self._draw):
            for name in order:
                samples[name].append(lanes[name].sample_us())
        raced.timings = {name: Timing(name=name, samples_us=tuple(taken)) for name, taken in samples.items() if taken}
        return raced

    def close(self) -> None:
        self._kept.clear()
        self._track.close()
        self.device.pool.free_all_blocks()

    def _lane(self, contender: Contender, round_us: float) -> Lane:
        return open_lane(self._track, contender, self._options.model_copy(update={"round_us": round_us}), self._draw)

    def _race_lane(self, offer: Offer) -> Lane:
        """A lane of graphs; for a lenient offer that no graph holds, one that adds up kernels."""
        try:
            return self._lane(offer.contender, ROUND_US)
        except TimesItself:
            raise
        except Exception:
            self.raise_if_lost()
            if not offer.lenient:
                raise
            return KernelLane(self._track, offer.contender, self._draw)

    def _first_fault(self, judging: Judging | None, name: str, offer: Offer, lane: Lane) -> str | None:
        """Take a first sample and judge its outputs; None where they are right. Raises: Unavailable for wrong ones.

        A library's sums between splits of K may be rounded, so the baseline is not judged as peers are. `judging`: None where
        no offer is lenient.
        """
        if name != AUTOTUNED and not offer.lenient:
            self._checked_us(lane)
            return None
        lane.sample_us()
        if judging is not None and offer.lenient:
            return judging.fault_in_detail(lane)
        if judging is not None:
            judging.calibrate(lane)
        return None

    def _checked_us(self, lane: Lane) -> float:
        time_us = lane.sample_us()
        fault = Judging(self._track, self._draw).fault(lane)
        if fault is not None:
            raise Unavailable(f"wrong outputs: {fault}")
        return time_us

    def raise_if_lost(self) -> None:
        """Raises: SystemExit where a kernel broke the context, so that this worker ends and another one goes on."""
        fault = self.device.poison()
        if fault is not None:
            raise SystemExit(f"the context is lost: {fault}")


def compare_peers(bench: Bench, peers: Sequence[Peer], told: Callable[[str], None]) -> PeerRow:
    """The row of the bench's task. The first peer is AutoTuning. `told`: called with each peer's name before it begins."""
    began = time.monotonic()
    offers, failures = _offers(bench, peers, told)
    raced = bench.race(offers, told)
    autotuned = raced.timings.get(AUTOTUNED)
    return PeerRow(
        shape=bench.task.shape,
        element=bench.task.element.value,
        autotuned_us=median_us(autotuned) if autotuned else None,
        peers=dict(_results(offers, raced, autotuned)) if autotuned else {},
        failures=failures | raced.failures,
        seconds=round(time.monotonic() - began, 2),
    )


def _offers(bench: Bench, peers: Sequence[Peer], told: Callable[[str], None]) -> tuple[dict[str, Offer], dict[str, str]]:
    offers, failures = {}, {}
    for peer in peers:
        told(peer.name)
        try:
            offers[peer.name] = peer.offer(bench)
        except Exception as exc:  # noqa: BLE001 (whatever a peer raises is reported, and the others go on)
            bench.raise_if_lost()
            failures[peer.name] = in_one_line(exc)
    return offers, failures


def _results(offers: dict[str, Offer], raced: Raced, autotuned: Timing) -> Iterator[tuple[str, PeerResult]]:
    for name, timing in raced.timings.items():
        offer = offers[name]
        yield (
            name,
            PeerResult(
                time_us=round(statistics.median(timing.samples_us), 3),
                speedup=paired_speedup(timing, autotuned),
                detail=offer.detail,
                tried=offer.tried,
                fault=raced.faults.get(name, ""),
                clock=raced.clocks.get(name, "graph"),
            ),
        )


def in_one_line(exc: BaseException, length: int = 160) -> str:
    text = " ".join(f"{type(exc).__name__}: {exc}".removeprefix("Unavailable: ").split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
