"""The replay of steps: streams in order, tokens, resources that serve one step after another, tracks."""

from collections.abc import Mapping, Sequence

import pytest

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.timing_model.costs import Steps

FLAG = core.StepFlag


def steps_of(listed: Sequence[Mapping[str, float]]) -> Steps:
    steps = Steps(len(listed))
    for place, step in enumerate(listed):
        for name, value in step.items():
            steps[name][place] = value
    return steps


def replayed(listed: Sequence[Mapping[str, float]], count: int = 1, resident: int = 1, pause: float = 0.0) -> core.Replayed:
    """Clusters of two streams with tokens 1 to 3. Resource 1 issues for all streams; 2 to 4 are free to use."""
    steps = steps_of(listed)
    return core.replay_turns(
        steps.numbers, steps.times, count=count, resident=resident, tokens=4, pause=pause, issues=[1, 1], resources=5
    )


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
    assert made.complete == pytest.approx([5])


def test_a_stream_whose_token_is_never_given_does_not_end() -> None:
    made = replayed([{"stream": 0, "own": 1}, {"stream": 1, "wait": 1}, {"stream": 1, "give": 1}])
    assert made.ends[0] == pytest.approx(1)
    assert made.ends[1] < 0
    assert made.complete[0] < 0


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


def test_the_end_of_a_cluster_includes_asynchronous_work_that_is_waited_for() -> None:
    made = replayed(
        [
            {"stream": 0, "track": 2, "latency": 6, "give": 1},
            {"stream": 1, "wait": 1, "own": 1},
        ]
    )
    assert made.ends == pytest.approx([0, 6])
    assert made.complete == pytest.approx([6])


@pytest.mark.parametrize("wrong", [{"first": 9}, {"stream": 2}, {"wait": 4}, {"give": 4}, {"track": 8}, {"phase": 8}])
def test_a_step_that_names_what_does_not_exist_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        replayed([{"stream": 0, **wrong}])


def test_numbers_of_other_steps_than_the_times_are_refused() -> None:
    two, one = Steps(2), Steps(1)
    with pytest.raises(ValueError, match="other numbers than times"):
        core.replay_turns(two.numbers, one.times, count=1, resident=1, tokens=1, pause=0.0, issues=[1], resources=5)


def test_a_phase_lasts_from_its_first_begin_to_its_last_effect_in_all_clusters() -> None:
    busy = {"stream": 0, "first": 2, "first_time": 2}
    made = replayed([busy, {**busy, "phase": 1, "latency": 3}, {**busy, "phase": 1}], count=2)
    assert (made.phase_begins[1], made.phase_ends[1]) == pytest.approx((2, 13)), "the second cluster's first step ends at 10"
    assert (made.phase_begins[2], made.phase_ends[2]) == (-1, -1)


def turns(count: int, resident: int) -> core.Replayed:
    """Clusters whose first stream takes 3 on resource 2; a pause of 0.5 before the next one begins."""
    step = {"stream": 0, "first": 2, "first_time": 3, "give": 1, "flags": int(FLAG.BLOCK)}
    return replayed([step], count, resident, pause=0.5)


def test_a_cluster_begins_a_pause_after_the_one_before_it_has_ended() -> None:
    made = turns(count=3, resident=1)
    assert made.ends[::2] == pytest.approx([3, 6.5, 10])
    assert made.complete == pytest.approx([3, 6.5, 10])
    assert made.busy[2] == pytest.approx(9)


def test_clusters_that_are_resident_together_share_their_resources() -> None:
    assert turns(count=4, resident=2).complete == pytest.approx([3, 6, 9, 12])


def test_tokens_of_a_cluster_are_its_own() -> None:
    made = replayed([{"stream": 0, "give": 1, "latency": 5}, {"stream": 1, "wait": 1}], count=2, resident=1)
    assert made.ends == pytest.approx([0, 5, 5, 10])
    assert made.complete == pytest.approx([5, 10])
