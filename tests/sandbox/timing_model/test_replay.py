"""The replay of steps: streams in order, tokens, resources that serve one step after another, tracks."""

import numpy as np
import pytest

from sandbox.emulator.core_module import core
from sandbox.timing_model.costs import STEP

FLAG = core.StepFlag


def replayed(steps: list[dict[str, float]], streams: int = 2, tokens: int = 4) -> core.Replayed:
    """Resource 1 issues for all streams; 2 to 4 are free to use."""
    table = np.zeros(len(steps), dtype=STEP)
    for place, step in enumerate(steps):
        for name, value in step.items():
            table[place][name] = value
    return core.replay(table.view(np.uint8).reshape(-1), [0.0] * streams, [1] * streams, tokens, 5)


def test_a_resource_serves_one_step_after_another_and_counts_its_time() -> None:
    made = replayed([{"stream": 0, "first": 2, "first_time": 3}, {"stream": 1, "first": 2, "first_time": 4}])
    assert made.end == pytest.approx(7)
    assert made.busy[2] == pytest.approx(7)


def test_a_stream_waits_until_every_giver_of_a_token_has_taken_effect() -> None:
    made = replayed(
        [
            {"stream": 0, "give": 1, "latency": 5},
            {"stream": 0, "give": 1, "latency": 2},
            {"stream": 1, "wait": 1, "own": 1},
        ]
    )
    assert made.ends[1] == pytest.approx(5)
    assert made.complete[1] == pytest.approx(5)
    assert made.waited[1] == pytest.approx(4)


def test_a_stream_whose_token_is_never_given_does_not_end() -> None:
    made = replayed([{"stream": 0, "own": 1}, {"stream": 1, "wait": 1}, {"stream": 1, "give": 1}])
    assert made.ends[0] == pytest.approx(1)
    assert made.ends[1] < 0
    assert made.complete[1] < 0


def test_a_commit_gives_its_token_when_all_of_its_track_has_taken_effect() -> None:
    track = {"stream": 0, "track": 2}
    made = replayed(
        [
            {**track, "first": 2, "first_time": 6},
            {**track, "first": 3, "first_time": 1},
            {**track, "flags": int(FLAG.OF_TRACK), "give": 1},
            {"stream": 1, "wait": 1},
        ]
    )
    assert made.ends[1] == pytest.approx(6)
    assert made.ends[0] == pytest.approx(0)  # the stream that issued them goes on


def test_a_step_that_holds_delays_its_stream_until_the_resource_is_free() -> None:
    busy = {"stream": 0, "first": 2, "first_time": 5}
    made = replayed([busy, {"stream": 1, "first": 2, "first_time": 1, "flags": int(FLAG.HOLD)}])
    assert made.ends[1] == pytest.approx(5)


def test_a_step_that_drains_begins_after_the_loads_before_it() -> None:
    made = replayed([{"stream": 0, "track": 1, "latency": 8}, {"stream": 0, "flags": int(FLAG.DRAIN), "own": 1}])
    assert made.ends[0] == pytest.approx(8)


def test_a_step_that_names_no_resource_of_the_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        replayed([{"stream": 0, "first": 9}])
