"""The module's timer for a published program: its own instance for every set of values, new inputs before every round.

A set's weights are those of its instance, from a seed of its own. So no launch of a sample repeats another one's, and an answer
that was kept is a wrong one. References are made in the rounds whose outputs are judged.
"""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cudal2_agent.contract.records.evaluation import Telemetry, Timing
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.contender import NamedOperands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import Fault
from cudal2_agent.sandbox.cuda.modules.module_track import ModuleTrack
from cudal2_agent.sandbox.cuda.published.instances import Instance
from cudal2_agent.sandbox.cuda.published.published_program import PublishedContender
from cudal2_agent.sandbox.cuda.timing.baseline_watch import BaselineWatch
from cudal2_agent.sandbox.cuda.timing.operand_pools import Ring
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch, shuffled_rounds
from cudal2_agent.sandbox.cuda.timing.sampling import Lane, open_lane
from cudal2_agent.sandbox.cuda.timing.telemetry import open_sampler
from cudal2_agent.sandbox.cuda.timing.timer import Timer
from cudal2_agent.sandbox.modules.cases import Case, draw
from cudal2_agent.sandbox.modules.prepared import DrawnCase

MOST_SETS, FEWEST_SETS = 16, 4
WARM_UP = 3  # samples
WEIGHT_BYTES = 2 << 30  # of all instances' weights together, from which there are fewer


def count_instances(weight_bytes: int) -> int:
    """Sets of values that are asked for, by the bytes of one instance's weights; memory may hold fewer."""
    return max(FEWEST_SETS, min(MOST_SETS, WEIGHT_BYTES // max(weight_bytes, 1)))


class PublishedTrack(ModuleTrack):
    """Raises: MemoryError."""

    def __init__(self, task: ModuleTask, device: Device, options: TimeOptions, instances: Sequence[Instance]) -> None:
        self._instances = instances
        self._drawn_as: tuple[Case, int] | None = None  # and its domain
        super().__init__(task, device, options, len(instances))

    def refresh(self, draws: random.Random) -> None:
        """New inputs without references, for samples that are not judged."""
        assert self._drawn_as is not None
        case, domain = self._drawn_as
        for index in range(len(self.pools)):
            values = draw(self.task, case, draws.getrandbits(63), self._place, domain=domain)
            self.pools.put(index, values | self._fixed(index))

    def _fixed(self, index: int) -> dict[str, torch.Tensor]:
        return dict(self._instances[index].weights)

    def _prepared(self, index: int, seed: int) -> DrawnCase:
        prepared = super()._prepared(index, seed)
        self._drawn_as = prepared.case, prepared.domain
        return prepared

    def _operands(self, launch: TimedLaunch, index: int, workspaces: Ring | None) -> NamedOperands:
        return replace(super()._operands(launch, index, workspaces), number=launch.a)


@dataclass(frozen=True)
class PublishedTimes:
    """`timings`: of the published contenders by name. `wrong`: why timed outputs of theirs were refused, by name."""

    timings: dict[str, Timing]
    baselines: tuple[Timing, ...]
    wrong: dict[str, str]
    notes: tuple[str, ...]
    telemetry: Telemetry


class PublishedTimer(Timer):
    """Times contenders of one published file beside the task's baselines."""

    def __init__(self, task: ModuleTask, device: Device, instances: Sequence[Instance]) -> None:
        super().__init__(task, device)
        self._module, self._instances = task, instances

    def _open_track(self) -> PublishedTrack:
        return PublishedTrack(self._module, self._device, self._options, self._instances)

    def compare(self, contenders: Sequence[PublishedContender], options: TimeOptions) -> PublishedTimes:
        """All samples, round by round. One that cannot be captured in a graph is left out, with a note.

        `contenders`: the one that is not captured first.
        """
        track: Any = self.track_for(options)
        baselines, draws = self.open_baselines(options), random.Random(secrets.randbits(64))
        standing = {name: list(found) for name, found in baselines.contenders.items()}
        lanes: dict[str, Lane] = {
            f"{name}/{rank}": self.library_lane(one) for name, found in standing.items() for rank, one in enumerate(found)
        }
        notes = list(baselines.notes)
        for contender in contenders:
            try:
                lane = open_lane(track, contender, options, draws)
                for _ in range(WARM_UP if contender.streamed else 0):
                    lane.sample_us()  # every instance may compile, tune or capture in its first calls
                lanes[contender.name] = lane
            except (Fault, RuntimeError) as exc:
                if contender.streamed:
                    raise
                notes.append(f"it cannot be captured in a CUDA graph: {' '.join(str(exc).split())[:200]}")
        samples: dict[str, list[float]] = {name: [] for name in lanes}
        watch = BaselineWatch(track, options.rounds, draws)
        with open_sampler(self._device.pci_bus_id) as sampler:
            for lane in lanes.values():
                lane.sample_us()  # warm-up: clocks, instruction caches
            for index, order in enumerate(shuffled_rounds(tuple(lanes), options.rounds, draws)):
                (track.pools.renew if watch.judges(index) else track.refresh)(draws)
                for name in order:
                    samples[name].append(lanes[name].sample_us())
                    watch.look(name, lanes[name], index)
                sampler.sample()
            telemetry = sampler.telemetry()
        ours = {each.name: each for each in contenders if each.name in lanes}
        return PublishedTimes(
            timings={name: Timing(name=name, samples_us=tuple(samples[name]), detail=one.detail) for name, one in ours.items()},
            baselines=self.timings(standing, samples, watch.wrong),
            wrong={name: why for name, why in watch.wrong.items() if name in ours},
            notes=(*notes, *watch.notes(apart=ours)),
            telemetry=telemetry,
        )
