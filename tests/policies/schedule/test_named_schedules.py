"""Schedules that are named in part: completed by the prior, checked with every reason at once, written by their family."""

import random

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families, rewrite
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules, Unwritable, schedules_for

TASK = GemmTask(m=512, n=512, k=4096, arch=Arch.SM_90A)
FULL = {
    "family": "wgmma_tma",
    "consumers": 2,
    "atoms": 1,
    "block_n": 128,
    "block_k": 64,
    "stages": 4,
    "cluster_k": 1,
    "splits": 1,
}


def of(arch: Arch = Arch.SM_90A, **shape: int) -> TaskSchedules:
    task = GemmTask(**{"m": 512, "n": 512, "k": 4096, **shape, "arch": arch})
    return schedules_for(task, REFERENCE_CHIPS[arch])


def written(values: object, schedules: TaskSchedules | None = None) -> Candidate:
    found = (schedules or of()).expand(values)
    assert isinstance(found, Candidate), found
    return found


def reasons(values: object, schedules: TaskSchedules | None = None) -> tuple[str, ...]:
    found = (schedules or of()).expand(values)
    assert isinstance(found, Unwritable), found
    return found.reasons


def test_a_family_alone_is_the_priors_best_of_it() -> None:
    family = of().families["latency"]
    assert written({"family": "latency"}).origin.schedule == family.ranked[0].values


def test_axes_that_are_given_stay_and_the_others_come_from_the_fastest_with_them() -> None:
    given = {"family": "wgmma_tma", "block_n": 96, "cluster_k": 2}
    schedule = written(given).origin.schedule or {}
    assert schedule.items() >= given.items()
    family = of().families["wgmma_tma"]
    fastest = next(one for one in family.ranked if one.values["block_n"] == 96 and one.values["cluster_k"] == 2)
    assert schedule == fastest.values


def test_a_combination_beyond_the_space_is_written_if_it_is_valid() -> None:
    given = {**FULL, "splits": 1, "group": 16, "persistent": True, "raster": "n", "evict_b": "last"}
    family = of(m=4096, n=4096).families["wgmma_tma"]
    assert not any(one.values.items() >= given.items() for one in family.ranked)
    schedule = written(given, of(m=4096, n=4096)).origin.schedule or {}
    assert schedule.items() >= given.items()


def test_every_wrong_axis_is_told_with_its_values() -> None:
    told = reasons({"family": "latency", "tile_m": 64, "block_n": 100, "loads": True, "exclusive": 1, "groups": [2]})
    assert told[0] == 'latency has no axis "tile_m"'
    assert told[1].startswith("the axes of latency are block_m, block_n, block_k, groups")
    assert [one.partition(";")[0] for one in told[2:]] == [
        "block_n is 100",
        "loads is true",
        "exclusive is 1",
        "groups is a list",
    ]
    assert told[3] == 'loads is true; allowed here: "cp_async", "tma"'


def test_axes_that_contradict_each_other_are_named_with_the_nearest_schedule() -> None:
    told = reasons({**FULL, "cluster_k": 2, "tma_store": True, "pingpong": True, "consumers": 1})
    assert "cluster_k above 1 needs tma_store=false" in told
    assert "pingpong needs persistent, splits=1 and consumers=2" in told
    assert told[-1].startswith('the nearest that can run is {"family": "wgmma_tma"')


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1], "a schedule is an object, not a list"),
        ("latency", 'not "latency"'),
        (None, "not null"),
        ({}, "family is missing; allowed for 512x512x4096 on sm_90a: "),
        ({"family": 7}, "family is 7; allowed"),
        ({"family": ["latency"]}, "family is a list; allowed"),
        ({"family": "latency", "block_m": 10**4000}, "block_m is 1000"),
        ({"family": "latency", "block_m": 10**5000}, "block_m is a number of too many digits"),
        ({"family": "latency", "block_m": float("inf")}, "block_m is Infinity"),
        ({"family": "latency", "block_m": 64.0}, "block_m is 64.0; allowed here"),
        ({"family": "latency", "block_m": "\uff16\uff14"}, "block_m is "),
        ({"family": "latency", "block_m": "64"}, 'block_m is "64"'),
        ({"family": "latency", "x" * 10_000: 1}, 'latency has no axis "xxx'),
        ({"family": "latency", "arch": "sm_100a"}, 'latency has no axis "arch"'),
    ],
)
def test_what_is_no_schedule_has_a_reason(values: object, said: str) -> None:
    (first, *_) = reasons(values)
    assert said in first
    assert len(first) < 400


@pytest.mark.parametrize("shape", [(512, 512, 4096), (16384, 16, 256), (72, 4104, 136), (12288, 12288, 64)])
def test_any_mixture_of_allowed_values_is_written_or_refused_with_reasons(shape: tuple[int, int, int]) -> None:
    """A model may name each axis rightly and all of them together beyond what a chip or a kernel can do."""
    m, n, k = shape
    schedules, rng = of(m=m, n=n, k=k), random.Random(k)
    for name, family in schedules.families.items():
        free = {axis: values for axis, values in family.axes.items() if axis != "family"}
        for _ in range(40):
            found = schedules.expand({"family": name} | {axis: rng.choice(values) for axis, values in free.items()})
            assert isinstance(found, Candidate) or found.reasons


@pytest.mark.parametrize(
    "values",
    [
        {**FULL, "cluster_m": 4, "cluster_n": 4, "cluster_k": 2, "splits": 2, "spread_sum": True, "push": True},
        {
            "family": "mma_sync",
            "block_m": 128,
            "block_n": 96,
            "block_k": 64,
            "stages": 1,
            "warps_m": 8,
            "warps_n": 6,
            "warps_k": 4,
            "min_ctas": 2,
        },
    ],
    ids=["a cluster of 32", "6,144 threads, two CTAs per SM"],
)
def test_what_exceeds_the_chip_by_far_is_refused(values: dict[str, object]) -> None:
    """Both ended with a traceback."""
    [family] = [one for one in families(Arch.SM_90A) if one.name == values["family"]]
    told = list(family.violations(family.parse(values), GemmTask(m=4096, n=4096, k=4096)))
    assert any("cluster" in one or "threads" in one for one in told)


def test_a_schedule_of_another_architecture_is_refused() -> None:
    assert reasons({"family": "wgmma_tma"}, of(Arch.SM_80)) == (
        'family is "wgmma_tma"; allowed for 512x512x4096 on sm_80: mma_sync, latency',
    )
    assert written({"family": "mma_sync"}, of(Arch.SM_80)).plan.arch is Arch.SM_80


def test_its_short_form_names_a_schedule() -> None:
    rng = random.Random(0)
    for family in of().families.values():
        for one in rng.sample(family.ranked, 20):
            short = family.brief(one.values)
            assert written(short).origin.schedule == one.values
            assert short["family"] == family.name
    assert of().brief({"family": "resident", "block_n": 64}) is None


def test_the_best_are_of_every_family_and_differ() -> None:
    best = of().best(5)
    assert [one.predicted_us for one in best] == sorted(one.predicted_us for one in best)
    assert {one.schedule.family for one in best} == set(of().families)
    assert len({one.entry.group for one in best}) == 5


def test_what_is_written_is_what_the_schedule_policy_would_write() -> None:
    candidate = written({"family": "latency", "block_m": 32})
    again = rewrite(candidate, TASK)
    assert again is not None
    assert again.id == candidate.id


def test_equal_axes_are_completed_alike_by_another_process() -> None:
    fresh = TaskSchedules(TASK, REFERENCE_CHIPS[TASK.arch])
    for given in ({"family": "wgmma_tma"}, {"family": "wgmma_tma", "block_n": 80}):
        assert written(given, fresh) == written(given)
