"""A later round tries the tile of the library's own best kernel, where nobody tried it before."""

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import AUTOTUNED, CUBLAS, Measured, Rejected, Timing
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.library_tile import library_tile, with_tile
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from tests.doubles.scripted import measured

TASK = GemmTask(m=1500, n=1280, k=1280, layout=Layout.TN)
H200 = REFERENCE_CHIPS[Arch.SM_90A]
# As an H200 said it for this task. 120 lies along M, since cuBLASLt computes the transposed D.
DETAIL = (
    "layout nn, algorithm 66, tile tile_128x120, stages stages_64xauto, split-K 1, reduction none, cluster shape_2x1x1; "
    "best of 16 suggestions"
)
TILE = (120, 128)


def timed(detail: str, name: str = AUTOTUNED) -> Measured:
    baseline = Timing(name=name, samples_us=(10.0,) * 5, detail=detail)
    return measured(9.0).model_copy(update={"baselines": (baseline,)})


@pytest.mark.parametrize(
    ("detail", "name", "tile"),
    [
        (DETAIL, AUTOTUNED, TILE),
        (DETAIL.replace("tile_128x120", "600"), AUTOTUNED, None),  # bindings that are older than the library know no name
        ("", AUTOTUNED, None),
        (DETAIL, CUBLAS, None),
    ],
)
def test_the_tile_is_what_autotuning_s_algorithm_says(detail: str, name: str, tile: tuple[int, int] | None) -> None:
    assert library_tile(timed(detail, name)) == tile


def test_without_a_measurement_there_is_none() -> None:
    assert library_tile(None) is None
    assert library_tile(Rejected(rule="length", message="no")) is None


@pytest.fixture(scope="module")
def pool() -> SchedulePool:
    return SchedulePool(families(TASK.arch), TASK, H200, 0)


def test_schedules_of_a_tile_are_unlike_and_the_fastest_expected(pool: SchedulePool) -> None:
    found = list(with_tile(pool, TILE, []))
    assert len(found) >= 3
    assert {entry.work.tile[:2] for entry in found} == {TILE}
    assert len({(entry.group, entry.values["cluster_m"], entry.values["cluster_n"]) for entry in found}) == len(found)
    times = dict(zip((entry.key for entry in pool.entries), pool.predicted_us, strict=True))
    assert [times[entry.key] for entry in found] == sorted(times[entry.key] for entry in found)
    assert times[found[0].key] == min(times[entry.key] for entry in pool.entries if entry.work.tile[:2] == TILE)
    assert list(with_tile(pool, TILE, found[1:2])) == []
    assert list(with_tile(pool, (272, 128), [])) == [], "no schedule has it"


def test_half_of_a_later_round_has_the_tile_until_one_was_tried(pool: SchedulePool) -> None:
    policy = SchedulePolicy(families(TASK.arch))
    seen = Observation(task=TASK, chip=H200, round=1, seed=0)
    others = [entry for entry in pool.entries if entry.work.tile[:2] != TILE]
    tried = Attempt(candidate_id="0", policy="schedule", schedule=others[0].values, status="measured", time_us=9.0)
    later = seen.model_copy(update={"round": 2, "attempts": (tried,), "best_evaluation": timed(DETAIL)})

    def tiles(observation: Observation, count: int = 4) -> list[tuple[int, int]]:
        entries = [pool.entry(one.origin.schedule or {}) for one in policy.propose(observation, count)]
        return [entry.work.tile[:2] for entry in entries if entry is not None]

    assert tiles(later)[:2] == [TILE, TILE]
    assert TILE not in tiles(later)[2:]
    without = later.model_copy(update={"best_evaluation": None})
    assert tiles(later, 1) == tiles(without, 1), "half of one is none"
    assert tiles(later.model_copy(update={"best_evaluation": timed("")})).count(TILE) < 2
    own = tried.model_copy(update={"candidate_id": "1", "schedule": next(with_tile(pool, TILE, [])).values, "time_us": 20.0})
    assert tiles(later.model_copy(update={"attempts": (tried, own)})).count(TILE) < 2
