"""Rounds of all finalists together, with the baselines, in random order.

Covered: everything that `timing/timer.py` covers, for every finalist; a finalist's samples, with and without programmatic
launch, and those of the baselines come from the same rounds. Finalists that are behind leave; the others get all rounds.
A single launch of a server has no preceding kernel to overlap. There, both kinds of launch differ by the launch attribute
alone.
Not covered: programmatic launch behind a preceding kernel in server mode.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from cudal2_agent.contract.records.evaluation import SideFigures, Timing
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.elimination import MIN_ROUNDS, affordable, staying, stops
from cudal2_agent.sandbox.cuda.timing.baseline_watch import BaselineWatch
from cudal2_agent.sandbox.cuda.timing.sample_plan import count_launches, shuffled_rounds, throttled_apart
from cudal2_agent.sandbox.cuda.timing.sampling import Lane, open_brief_lane
from cudal2_agent.sandbox.cuda.timing.telemetry import Sampler, open_sampler
from cudal2_agent.sandbox.cuda.timing.timer import Measurement, Timer
from cudal2_agent.sandbox.cuda.timing.watch import Watch

PROGRAMMATIC, PLAIN = "programmatic", "plain"

# Does work on a finalist and says whether it went well; where it did not, the finalist is out of the final.
Attempt = Callable[[int, Callable[[], None]], bool]


@dataclass
class Finalist:
    """A candidate's lanes by class: as its plan says, and without programmatic launch where the plan has it."""

    contender: Contender
    lanes: dict[str, Lane]
    sampler: Sampler
    watches: dict[str, Watch] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    reasons: frozenset[str] = frozenset()

    @property
    def planned(self) -> str:
        return PROGRAMMATIC if PROGRAMMATIC in self.lanes else PLAIN

    def renew(self, watch: Callable[[Lane], Watch]) -> None:
        """Begin the rounds anew."""
        self.watches = {name: watch(lane) for name, lane in self.lanes.items()}
        self.samples = {name: [] for name in self.lanes}
        self.reasons = frozenset()

    def take(self, name: str) -> None:
        """One sample of a class. Raises: WrongWhileTimed, Fault."""
        self.samples[name].append(self.lanes[name].sample_us())
        self.reasons |= self.sampler.sample()
        self.watches[name].look()

    def settle(self) -> None:
        """Complete the checks of lanes that get no more samples, on one that does not count. Raises: as `take`."""
        for name, watch in self.watches.items():
            if not watch.complete:
                self.lanes[name].sample_us()
                watch.settle()
        self.watches[self.planned].finish()

    def weigh(self, baseline_rms: float) -> None:
        """Compare the errors of the round's samples with the baselines'. Raises: WrongWhileTimed."""
        for watch in self.watches.values():
            watch.weigh(baseline_rms)


class RaceTimer:
    """Times the finalists of one batch. Raises: MemoryError."""

    def __init__(self, timer: Timer, task: Task, pci_bus_id: str, options: TimeOptions) -> None:
        self._timer, self._task, self._pci_bus_id, self._options = timer, task, pci_bus_id, options
        self._secret = secrets.randbits(64) if options.secret is None else options.secret
        self._draw = random.Random(self._secret)
        self._track = timer.track_for(options, self._draw)
        self._baselines = timer.open_baselines(options)
        standing = self._baselines.contenders.items()
        self._standing = {
            f"{name}/{rank}": timer.library_lane(one) for name, found in standing for rank, one in enumerate(found)
        }
        self._finalists: dict[int, Finalist] = {}
        self._samples: dict[str, list[float]] = {}
        self._reasons: list[frozenset[str]] = []  # of the baselines, round by round
        self._notes: list[str] = []
        self._baseline_watch = BaselineWatch(self._track, MIN_ROUNDS, self._draw)

    def enter(self, position: int, contender: Contender) -> None:
        """Prepare a finalist's lanes. Raises: Fault where it cannot be captured in a graph."""
        planned = self._lane(contender)
        lanes = {PLAIN: planned}
        if contender.programmatic:
            lanes = {PROGRAMMATIC: planned, PLAIN: self._lane(contender, beside=planned)}
        for lane in lanes.values():
            lane.sample_us()  # warm-up: clocks, instruction caches
        with open_sampler(self._pci_bus_id) as sampler:
            self._finalists[position] = Finalist(contender, lanes, sampler)

    def run(self, attempt: Attempt) -> Mapping[int, Measurement]:
        """All rounds, once more where throttling met one side only. What fails is left out of the measurements."""
        for lane in self._standing.values():
            lane.sample_us()
        self._rounds(attempt)
        if self._throttled_apart:
            self._rounds(attempt)
            reasons = ", ".join(sorted(self._throttled_apart))
            again = f"throttling ({reasons}) met one side only, twice" if reasons else "rounds repeated after throttling"
            self._notes.append(again)
        return {position: self._measurement(finalist) for position, finalist in self._finalists.items()}

    def close(self) -> None:
        """Destroy the finalists' graphs, before their code is unloaded."""
        self._finalists = {}

    @property
    def _throttled_apart(self) -> frozenset[str]:
        """Serious reasons that a finalist ran under and the baselines of its rounds did not, or the other way round."""
        found: frozenset[str] = frozenset()
        for finalist in self._finalists.values():
            own = self._reasons[: len(finalist.samples[finalist.planned])]
            found |= throttled_apart(finalist.reasons, frozenset(chain.from_iterable(own)))
        return found

    def _rounds(self, attempt: Attempt) -> None:
        """Samples of all, until one finalist is left in each class and has had all rounds."""
        self._samples, self._reasons = {name: [] for name in self._standing}, []
        self._baseline_watch = BaselineWatch(self._track, MIN_ROUNDS, self._draw)
        for finalist in self._finalists.values():
            finalist.renew(lambda lane, one=finalist: self._watch(lane, one))  # type: ignore[misc]
        racing = set(self._finalists)
        begun, taken, done, rounds = time.monotonic(), 0, 0, self._options.rounds
        while racing and done < rounds:
            stop = next(stop for stop in stops(rounds) if stop > done)
            while racing and done < stop:
                taken += self._round(racing, attempt)
                done += 1
                racing &= self._finalists.keys()
            racing -= self._leave(racing - staying(self._classes(racing)), attempt)
            left = len(self._standing) + sum(len(self._finalists[position].lanes) for position in racing)
            rounds = affordable(done, time.monotonic() - begun, taken, left, rounds, self._options.budget_s)
        self._leave(racing, attempt)

    def _round(self, racing: set[int], attempt: Attempt) -> int:
        """One sample of every lane that still races. Returns how many."""
        lanes = [(position, name) for position in sorted(racing) for name in self._finalists[position].lanes]
        names = [*self._standing, *(f"{position}:{name}" for position, name in lanes)]
        of = {f"{position}:{name}": (position, name) for position, name in lanes}
        (order,) = shuffled_rounds(names, 1, self._draw)
        self._reasons.append(frozenset())
        for each in order:
            if each in self._standing:
                self._samples[each].append(self._standing[each].sample_us())
                self._reasons[-1] |= self._any_sampler().reasons()
                self._baseline_watch.look(each, self._standing[each], len(self._reasons) - 1)
                continue
            position, name = of[each]
            if position in self._finalists:
                finalist = self._finalists[position]
                self._or_out(position, lambda finalist=finalist, name=name: finalist.take(name), attempt)  # type: ignore[misc]
        weighed = racing & self._finalists.keys() if self._baseline_watch.judges(len(self._reasons) - 1) else ()
        for position in sorted(weighed):
            finalist = self._finalists[position]
            self._or_out(position, lambda finalist=finalist: finalist.weigh(self._baseline_watch.rms), attempt)  # type: ignore[misc]
        return len(order)

    def _leave(self, leaving: set[int], attempt: Attempt) -> set[int]:
        for position in sorted(leaving & self._finalists.keys()):
            self._or_out(position, self._finalists[position].settle, attempt)
        return leaving

    def _or_out(self, position: int, work: Callable[[], None], attempt: Attempt) -> None:
        if not attempt(position, work):
            del self._finalists[position]

    def _classes(self, racing: set[int]) -> list[dict[int, list[float]]]:
        return [
            {
                position: self._finalists[position].samples[name]
                for position in sorted(racing)
                if name in self._finalists[position].samples
            }
            for name in (PROGRAMMATIC, PLAIN)
        ]

    def _any_sampler(self) -> Sampler:
        with open_sampler(self._pci_bus_id) as sampler:
            return sampler

    def _lane(self, contender: Contender, beside: Lane | None = None) -> Lane:
        """`beside`: the planned lane, where this one is without programmatic launch."""
        options = self._options
        launches = self._timer.launches_of(options)
        if self._task.mode is TimingMode.OFFLINE:
            counts = [len(lane.launches) for lane in self._standing.values()]
            launches = max(counts) if counts else self._launches_at_the_roofline(contender)
        return open_brief_lane(
            self._track,
            contender,
            launches,
            self._draw,
            interval_us=options.server_interval_us,
            programmatic=None if beside is None else False,
            beside=beside,
        )

    def _launches_at_the_roofline(self, contender: Contender) -> int:
        slots = self._track.slots_for(contender)
        return count_launches(self._timer.floor_us, self._options.round_us, len(self._track.pools), slots)

    def _watch(self, lane: Lane, finalist: Finalist) -> Watch:
        return Watch(self._track, finalist.contender, lane, self._options.rounds, self._draw)

    def _measurement(self, finalist: Finalist) -> Measurement:
        """The finalist's own rounds, with the baselines' samples of the same rounds."""
        planned = finalist.planned
        taken = finalist.samples[planned]
        baselines = {name: samples[: len(taken)] for name, samples in self._samples.items()}
        plain = None
        if planned == PROGRAMMATIC:
            plain = Timing(
                name=f"{finalist.contender.name} without programmatic launch", samples_us=tuple(finalist.samples[PLAIN])
            )
        ruler = self._timer.ruler(self._secret, finalist.lanes[planned], finalist.watches[planned])
        return Measurement(
            timing=Timing(name=finalist.contender.name, samples_us=tuple(taken)),
            baselines=self._timer.timings(self._baselines.contenders, baselines, self._baseline_watch.wrong),
            side=SideFigures(without_programmatic_us=None if plain is None else median_us(plain)),
            telemetry=finalist.sampler.telemetry(),
            ruler=ruler,
            notes=(*self._baselines.notes, *self._notes, *self._baseline_watch.notes(), *ruler.weakened),
            plain=plain,
        )
