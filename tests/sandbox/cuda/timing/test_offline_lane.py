"""What opening an offline lane fills: the ring of outputs once, and no more workspaces than its launches use."""

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.cuda.timing import sampling as module
from cudal2_agent.sandbox.cuda.timing.sampling import TRIAL_LAUNCHES, OfflineLane

SLOTS, ROUND_US, LAUNCH_US = 3000, 4000.0, 20.0


class Track:
    """Counts what is filled."""

    def __init__(self):
        self.task, self.pools = GemmTask(m=64, n=64, k=64, arch=Arch.SM_90A), range(SLOTS)
        self.device = SimpleNamespace(
            chip=REFERENCE_CHIPS[Arch.SM_90A], stream=SimpleNamespace(ptr=0), synchronize=lambda: None
        )
        self.made, self.refilled, self.bound = [], [], []

    def slots_for(self, _contender):
        return SLOTS

    def fitting(self, launches, _contender):
        return launches

    def launches(self, count, _seed):
        return list(range(count))

    def workspaces(self, _contender, slots):
        self.made.append(slots)
        return f"{slots} new and filled"

    def refill(self, workspaces, _draw):
        self.refilled.append(workspaces)

    def bind(self, _contender, launches, workspaces):
        self.bound.append((len(launches), workspaces))
        return [SimpleNamespace(enqueue=lambda _stream: None)] * len(launches)


@pytest.fixture
def track(monkeypatch):
    graph = SimpleNamespace(run_us=lambda: 0.0, launch_us=lambda: LAUNCH_US)
    monkeypatch.setattr(module, "TimedGraph", lambda *_, **__: graph)
    return Track()


def test_a_trial_has_workspaces_of_its_own_and_a_sample_as_many_as_it_launches(track):
    wanted = round(ROUND_US / LAUNCH_US)
    lane = OfflineLane(track, None, ROUND_US, random.Random(1))
    assert track.made == [TRIAL_LAUNCHES, wanted]
    assert track.bound == [(TRIAL_LAUNCHES, f"{TRIAL_LAUNCHES} new and filled"), (wanted, f"{wanted} new and filled")]
    assert (len(lane.launches), lane.workspaces) == (wanted, f"{wanted} new and filled")
    assert track.refilled == [None], "the outputs once; new workspaces are filled when they are made"


def test_a_lane_beside_another_one_fills_the_workspaces_that_it_takes_over(track):
    beside = SimpleNamespace(order=3, workspaces="the other's")
    lane = OfflineLane(track, None, 0.0, random.Random(1), launches=8, beside=beside)
    assert (track.made, track.refilled, lane.workspaces) == ([], ["the other's"], "the other's")
