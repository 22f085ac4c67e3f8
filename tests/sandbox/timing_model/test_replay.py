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


def turns(count: int, resident: int) -> core.Replayed:
    """Clusters of one stream that takes 3 on resource 2 and then gives token 1; a pause of 0.5 before the next one begins."""
    steps = np.zeros(1, dtype=STEP)
    steps["first"], steps["first_time"], steps["give"], steps["flags"] = 2, 3, 1, int(FLAG.BLOCK)
    return core.replay_turns(
        steps.view(np.uint8).reshape(-1), count=count, resident=resident, tokens=2, pause=0.5, issues=[1], resources=5
    )


def test_a_cluster_begins_a_pause_after_the_one_before_it_has_ended() -> None:
    made = turns(count=3, resident=1)
    assert made.ends == pytest.approx([3, 6.5, 10])
    own, end, per_cluster = 1, 2, 3
    assert [made.complete[per_cluster * turn + own] for turn in range(3)] == pytest.approx([3, 6.5, 10])
    assert [made.complete[per_cluster * turn + end] for turn in range(3)] == pytest.approx([3, 6.5, 10])
    assert made.busy[2] == pytest.approx(9)


def test_clusters_that_are_resident_together_share_their_resources() -> None:
    assert turns(count=4, resident=2).ends == pytest.approx([3, 6, 9, 12])


def test_a_cluster_whose_step_names_no_stream_of_it_is_refused() -> None:
    steps = np.zeros(1, dtype=STEP)
    steps["stream"] = 1
    with pytest.raises(IndexError):
        core.replay_turns(steps.view(np.uint8).reshape(-1), count=1, resident=1, tokens=1, pause=0.0, issues=[1], resources=5)
