"""The sum of kernels' durations over a profiler and a track that are made up."""

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers.kernel_lane import LAUNCHES, KernelLane, device_us
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable


def event(kind: str, us: float) -> SimpleNamespace:
    return SimpleNamespace(device_type=SimpleNamespace(name=kind), time_range=SimpleNamespace(elapsed_us=lambda: us))


class FakeProfiler:
    """A kernel of 3 us and a fill of 1 us for every launch that is enqueued while it listens."""

    ProfilerActivity = SimpleNamespace(CUDA="CUDA")

    def __init__(self, enqueued: list[int]) -> None:
        self._enqueued, self._before = enqueued, 0

    def profile(self, activities: list[str]) -> "FakeProfiler":
        assert activities == ["CUDA"]
        return self

    def __enter__(self) -> "FakeProfiler":
        self._before = len(self._enqueued)
        return self

    def __exit__(self, *_: object) -> None:
        self._listened = len(self._enqueued) - self._before

    def events(self) -> list[SimpleNamespace]:
        return [event("CUDA", 3.0), event("CUDA", 1.0), event("CPU", 50.0)] * self._listened


def test_a_sample_is_the_time_of_the_kernels_of_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueued: list[int] = []
    happened: list[str] = []
    bound = SimpleNamespace(enqueue=enqueued.append)
    track: Any = SimpleNamespace(
        device=SimpleNamespace(synchronize=lambda: None, stream=SimpleNamespace(ptr=7)),
        residue=SimpleNamespace(clear=lambda *_: happened.append("cleared")),
        fitting=lambda launches, _contender: launches - 2,
        pairs=lambda launches: [(0, 0)] * launches,
        bind=lambda _contender, pairs, _workspaces: [bound] * len(pairs),
        refill=lambda launches, _workspaces, _draw: happened.append(f"{launches} refilled"),
    )
    monkeypatch.setitem(sys.modules, "torch.profiler", FakeProfiler(enqueued))  # type: ignore[arg-type]
    lane = KernelLane(track, SimpleNamespace(local_bytes=0), random.Random(1))  # type: ignore[arg-type]
    assert lane.sample_us() == 4.0
    assert enqueued == [7] * (LAUNCHES - 2)
    assert happened == [f"{LAUNCHES - 2} refilled", "cleared"]


def test_only_what_ran_on_the_device_counts() -> None:
    assert device_us([event("CUDA", 2.5), event("CPU", 100.0), event("CUDA", 1.5)]) == 4.0
    with pytest.raises(Unavailable, match="no kernel"):
        device_us([event("CPU", 100.0)])
