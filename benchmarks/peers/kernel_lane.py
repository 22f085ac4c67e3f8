"""Launches that no graph can hold, timed as the sum of the device durations of their kernels, by torch's profiler.

Gaps between kernels, and the time that a launch takes before its first instruction, are not part of it. So it flatters a
contender beside one that is timed in a graph, and a row names it.
"""

import importlib
import random
from collections.abc import Iterable, Sequence
from typing import Any

from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.contender import Bound, Contender
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch
from cudal2_agent.sandbox.cuda.timing.track import Track

LAUNCHES = 8  # of one sample


class TimesItself(Unavailable):
    """A launcher that measures its kernels in every call; neither a graph nor a sum holds one product only."""


class KernelLane:
    """Launches one after another in the device's stream."""

    workspaces = None
    zero_us = 0.0
    launches: Sequence[TimedLaunch]
    bounds: Sequence[Bound]

    def __init__(self, track: Track, contender: Contender, draw: random.Random) -> None:
        self._track, self._contender, self._draw = track, contender, draw
        self._profiler = importlib.import_module("torch.profiler")
        self.order = draw.getrandbits(64)
        self.launches = track.launches(track.fitting(LAUNCHES, contender), self.order)
        self.bounds = track.bind(contender, self.launches, None)

    def sample_us(self) -> float:
        """One sample: the durations of the kernels of a launch. Unit: microseconds. Raises: Unavailable where none ran."""
        self._track.refill(None, self._draw)
        self._track.residue.clear(self._draw, self._contender.local_bytes)
        self._track.device.synchronize()
        with self._profiler.profile(activities=[self._profiler.ProfilerActivity.CUDA]) as profile:
            for bound in self.bounds:
                bound.enqueue(self._track.device.stream.ptr)
            self._track.device.synchronize()
        return device_us(profile.events()) / len(self.launches)


def device_us(events: Iterable[Any]) -> float:
    """The sum of the durations of what ran on the device. Raises: Unavailable where nothing did."""
    durations = [float(event.time_range.elapsed_us()) for event in events if event.device_type.name == "CUDA"]
    if not durations:
        raise Unavailable("the profiler saw no kernel")
    return sum(durations)
