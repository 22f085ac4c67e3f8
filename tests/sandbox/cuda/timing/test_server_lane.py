"""A server's sample is positive, or it is none: what is subtracted from it can be the longer time on a busy machine."""

import random
from types import SimpleNamespace

import pytest

from cudal2_agent.contract.errors import MachineError
from cudal2_agent.sandbox.cuda.timing import sampling
from cudal2_agent.sandbox.cuda.timing.sampling import ATTEMPTS, ServerLane


@pytest.fixture
def lane(monkeypatch):
    """A lane whose samples take 5 us with what is to be subtracted; that takes the given times in turn."""

    def make(*zeros_us):
        lane = ServerLane.__new__(ServerLane)
        monkeypatch.setattr(sampling, "TimedGraph", lambda _device, bounds, **_: bounds)
        nothing = lambda *_: None  # noqa: E731
        lane._track = SimpleNamespace(device=None, refill=nothing, residue=SimpleNamespace(clear=nothing))
        lane._contender, lane._draw, lane._programmatic = SimpleNamespace(local_bytes=0), random.Random(1), None
        lane.bounds, lane.workspaces, lane._interval_us, lane._nothing = [1, 2, 3, 4], None, 0.0, None
        times = (zero for zero in zeros_us for _ in range(sampling.ZERO_REQUESTS))
        lane._request_us = lambda graph, _wait: 5.0 if graph else next(times)
        return lane

    return make


def test_a_sample_that_is_not_positive_is_taken_again(lane):
    sampled = lane(8.1, 5.0, 2.0)
    assert sampled.sample_us() == pytest.approx(3.0)
    assert sampled.zero_us == pytest.approx(2.0)


def test_a_machine_that_never_gives_a_positive_sample_is_named(lane):
    with pytest.raises(MachineError, match="other processes use the machine"):
        lane(*[8.1] * ATTEMPTS).sample_us()
