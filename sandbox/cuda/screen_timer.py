"""Brief rounds of one candidate beside the standing baseline, to rank many candidates.

Covered: cold operands, random data, residue cleared before every sample, every output of every sample projected, and the
baseline in the same rounds. Of an untrusted writer's kernel also new data and drawn outputs element by element.
Not covered: warm-up rounds, throttling, and for trusted writers what `LEFT_OUT` names. A final covers them.
"""

import random
import secrets

from cudal2_agent.contract.records.evaluation import SideFigures, Timing
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.settings.options import RACE_TIME, TimeOptions
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.timing.baseline_watch import BaselineWatch
from cudal2_agent.sandbox.cuda.timing.sample_plan import brief_launches, shuffled_rounds
from cudal2_agent.sandbox.cuda.timing.sampling import Lane, open_brief_lane
from cudal2_agent.sandbox.cuda.timing.telemetry import open_sampler
from cudal2_agent.sandbox.cuda.timing.timer import CANDIDATE, Measurement, Timer
from cudal2_agent.sandbox.cuda.timing.watch import COMPARED, Watch

BRIEFLY = "screened: few short rounds, which rank candidates and decide no winner"
LEFT_OUT = (
    BRIEFLY,
    "screened: one exact test, no test after the rounds",
    "screened: no output of a timed launch was compared element by element",
    "screened: operands shared with other candidates of the batch",
)


class ScreenTimer:
    """Times the candidates of one batch. `secret`: of its data and orders. Raises: MemoryError."""

    def __init__(self, timer: Timer, task: Task, pci_bus_id: str, options: TimeOptions) -> None:
        self._timer, self._task, self._pci_bus_id, self._options = timer, task, pci_bus_id, options
        self._secret = secrets.randbits(64) if options.secret is None else options.secret
        self._draw = random.Random(self._secret)
        self._track = timer.track_for(RACE_TIME, self._draw)  # cuBLASLt is tuned by whole samples, and a final follows
        self._baselines = timer.open_baselines(options)
        self._launches = timer.launches_of(options)
        standing = self._baselines.contenders.items()
        self._libraries = {f"{name}/{rank}": one for name, found in standing for rank, one in enumerate(found)}
        if task.mode is TimingMode.OFFLINE:
            self._launches = brief_launches(self._trial_us(), options.round_us)
        self._standing = {name: self._lane(one) for name, one in self._libraries.items()}
        for lane in self._standing.values():
            lane.sample_us()  # warm-up

    def measure(self, contender: Contender, *, trusted: bool) -> Measurement:
        """The candidate's rounds. Raises: Fault, WrongWhileTimed."""
        if not trusted:
            self._track.pools.renew(self._draw)
        lane = self._lane(contender)
        watch = Watch(self._track, contender, lane, self._options.rounds, self._draw, compared=0 if trusted else COMPARED)
        lanes = {CANDIDATE: lane, **self._standing}
        samples: dict[str, list[float]] = {name: [] for name in lanes}
        with open_sampler(self._pci_bus_id) as sampler:
            baseline_watch = BaselineWatch(self._track, self._options.rounds, self._draw)
            for index, order in enumerate(shuffled_rounds(tuple(lanes), self._options.rounds, self._draw)):
                for name in order:
                    samples[name].append(lanes[name].sample_us())
                    if name == CANDIDATE:
                        watch.look()
                    elif not trusted:
                        baseline_watch.look(name, lanes[name], index)
                if not trusted and baseline_watch.judges(index):
                    watch.weigh(baseline_watch.rms)
            if not trusted:
                watch.finish()
            sampler.sample()
            telemetry = sampler.telemetry()
        ruler = self._timer.ruler(self._secret, lane, watch, LEFT_OUT if trusted else (BRIEFLY,))
        return Measurement(
            timing=Timing(name=contender.name, samples_us=tuple(samples[CANDIDATE])),
            baselines=self._timer.timings(self._baselines.contenders, samples, baseline_watch.wrong),
            side=SideFigures(),
            telemetry=telemetry,
            ruler=ruler,
            notes=(*self._baselines.notes, *baseline_watch.notes(), *ruler.weakened),
        )

    def close(self) -> None:
        """A candidate's graph is destroyed with its measurement."""

    def _trial_us(self) -> float:
        """The baseline's time, or without one the minimum time of the task."""
        if not self._libraries:
            return self._timer.floor_us
        few = brief_launches(self._timer.floor_us, self._options.round_us)
        return min(open_brief_lane(self._track, one, few, self._draw).sample_us() for one in self._libraries.values())

    def _lane(self, contender: Contender) -> Lane:
        return open_brief_lane(self._track, contender, self._launches, self._draw, interval_us=self._options.server_interval_us)
