"""The peers' lanes: whether outputs are right, and the time of launches that no graph can hold."""

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.judging import fault_of
from benchmarks.peers.kernel_lane import LAUNCHES, KernelLane, device_us
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.verification.bounds import Growth
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.reference import Reference

# ---- what counts as right: the same bound as in verification's second tier, over products that numpy makes -----------------
TASK = GemmTask(m=64, n=64, k=1024)
STEP = 16  # of K, after which a tensor core rounds its sum


def compared(accumulator: type, scale: float = 1.0) -> Comparison:
    """A product whose sums are rounded to the accumulator's type after every step."""
    draw = np.random.default_rng(7)
    a, b = draw.standard_normal((TASK.m, TASK.k)).astype(np.float16), draw.standard_normal((TASK.k, TASK.n)).astype(np.float16)
    total = np.zeros((TASK.m, TASK.n), accumulator)
    for first in range(0, TASK.k, STEP):
        part = a[:, first : first + STEP].astype(np.float64) @ b[first : first + STEP].astype(np.float64)
        total = (total.astype(np.float64) + part).astype(accumulator)
    output = (total * accumulator(scale)).astype(np.float16).view(np.uint16)
    reference = Reference(np, TASK, Inputs(a.view(np.uint16), b.view(np.uint16)), keep=False)
    return compare_bounded(np, TASK, output, reference, Growth.WALK, slack=2.0)


def test_sums_in_single_precision_are_right() -> None:
    found = compared(np.float32)
    assert fault_of(TASK, found, found.error_rms) is None
    assert fault_of(TASK, found, 0.0) is None


def test_sums_in_half_precision_are_told() -> None:
    fault = fault_of(TASK, compared(np.float16), compared(np.float32).error_rms)
    assert fault is not None
    assert "outputs are wrong" in fault


def test_errors_within_every_element_s_bound_still_show_in_their_mean() -> None:
    right = compared(np.float32)
    found = Comparison(
        elements=right.elements,
        error_squares=9 * right.error_squares,
        reference_squares=right.reference_squares,
        finite=right.finite,
    )
    fault = fault_of(TASK, found, right.error_rms)
    assert fault is not None
    assert "sums are narrower than f32" in fault


# ---- the sum of kernels' durations over a profiler and a track that are made up --------------------------------------------
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
        launches=lambda count, _seed: [(0, 0, 0)] * count,
        bind=lambda _contender, launches, _workspaces: [bound] * len(launches),
        refill=lambda _workspaces, _draw: happened.append("refilled"),
    )
    monkeypatch.setitem(sys.modules, "torch.profiler", FakeProfiler(enqueued))  # type: ignore[arg-type]
    lane = KernelLane(track, SimpleNamespace(local_bytes=0), random.Random(1))  # type: ignore[arg-type]
    assert lane.sample_us() == 4.0
    assert enqueued == [7] * (LAUNCHES - 2)
    assert happened == ["refilled", "cleared"]


def test_only_what_ran_on_the_device_counts() -> None:
    assert device_us([event("CUDA", 2.5), event("CPU", 100.0), event("CUDA", 1.5)]) == 4.0
    with pytest.raises(Unavailable, match="no kernel"):
        device_us([event("CPU", 100.0)])
