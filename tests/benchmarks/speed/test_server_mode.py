"""What predicts the time of a single launch, and what it adds."""

from pathlib import Path

import pytest

from benchmarks.speed.server_pairs import PairedSchedule, figures, fit, paired_schedules, same_order
from benchmarks.speed.server_reach import fitted, reach, reach_shapes
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.task import Arch, GemmTask, TimingMode
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.store.store import open_store
from tests.doubles import OBSERVATION, candidate, measured, run_record, step
from tests.doubles.campaign_rows import shape_result

# ---- what is read off schedules that were measured in both modes -----------------------------------------------------------
CHIP = REFERENCE_CHIPS[Arch.SM_90A].model_copy(update={"name": "NVIDIA H200"})
TASK = GemmTask(m=512, n=512, k=512)


def entries() -> list[PoolEntry]:
    """Schedules with a cluster and without, in turns."""
    (family,) = (one for one in families(TASK.arch) if one.name == "latency")
    found: dict[bool, list[PoolEntry]] = {True: [], False: []}
    for schedule in family.space(TASK, CHIP):
        work = family.work(schedule, TASK, CHIP)
        found[work.cluster > 1].append(PoolEntry(family, schedule, schedule.values(), work, ("latency", 0, 0, 0)))
    return [entry for both in zip(found[True], found[False], strict=False) for entry in both][:8]


def pairs(constant_us: float = 4.0, read_share: float = 0.5, cluster_us: float = 0.25) -> list[PairedSchedule]:
    made = []
    for number, entry in enumerate(entries()):
        offline_us, read_us = 2.0 + 0.1 * number, 1.0 + number % 3
        added_us = constant_us + read_share * read_us + cluster_us * (entry.work.cluster > 1)
        server_us = offline_us + added_us
        plain_us = server_us - 4.0
        shape = f"{64 * (1 + number // 4)}x64x64"
        made.append(PairedSchedule(shape, entry, offline_us, plain_us, server_us, read_us, 9.0 - offline_us))
    return made


def test_the_fit_recovers_what_was_added() -> None:
    found = fit(pairs())
    assert found == pytest.approx({"constant_us": 4.0, "read_share": 0.5, "cluster_us": 0.25, "explained": 1.0}, abs=1e-6)


def test_an_order_is_judged_within_shapes_and_beyond_ties() -> None:
    own = pairs(read_share=0.0, cluster_us=0.0)
    assert same_order(own, lambda one: one.offline_us) == {"pairs": 12.0, "same": 1.0}
    assert same_order(own, lambda one: one.predicted_us)["same"] == 0.0
    assert same_order(own[:1], lambda one: one.offline_us)["pairs"] == 0.0


def test_the_order_of_plain_launches_is_judged_too() -> None:
    found = figures(pairs())
    assert found["order"]["corrected"]["same"] == 1.0
    assert found["raced"]["plain"]["same"] == 1.0
    assert found["raced"]["prior"]["same"] < found["raced"]["plain"]["same"]


def test_a_schedule_counts_where_both_modes_measured_it_and_its_races_where_there_are_some(tmp_path: Path) -> None:
    both, offline_only = (entry.values for entry in entries()[:2])
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        record(store, TimingMode.OFFLINE, [(both, 2.5, "screen"), (both, 2.0, "race"), (offline_only, 3.0, "race")])
        record(store, TimingMode.SERVER, [(both, 6.5, "screen")])
        (found,) = paired_schedules(store)
    assert (found.offline_us, found.server_us) == (2.0, 6.5)
    assert found.entry.values == both


def record(store, mode: TimingMode, times: list) -> None:
    task = TASK.model_copy(update={"mode": mode})
    store.start_run(run_record(mode.value, task=task, status="finished").model_copy(update={"chip": CHIP}))
    store.record_observation(mode.value, OBSERVATION)
    for index, (values, time_us, effort) in enumerate(times):
        written = candidate(index).model_copy(update={"origin": Origin(policy="schedule", schedule=values)})
        timed = measured(time_us, effort=effort)
        store.record_step(step(index, run_id=mode.value, candidate=written, evaluation=timed))


# ---- what can be reached in server mode, computed from rows ----------------------------------------------------------------
SHAPES = {"64x64x64": 2.0, "512x512x512": 4.0, "128x2048x4096": 10.0, "1024x4096x2048": 25.0}


def rows(constant_us: float = 4.0, read_share: float = 0.5) -> list:
    """Offline rows 1.25 times faster, 1.1 without programmatic launch, and server rows that follow the formula exactly."""
    offline = [shape_result(shape, 1.25, us, plain=1.1) for shape, us in SHAPES.items()]
    served = []
    for shape, one in reach_shapes(offline).items():
        added = constant_us + read_share * one.read_us
        ratio = (one.autotuned_us + added) / (one.plain_us + added)
        served.append(shape_result(shape, ratio, one.autotuned_us + added, mode=TimingMode.SERVER))
    return [*offline, *served]


def test_the_fit_recovers_what_a_single_launch_adds() -> None:
    by_shape = reach_shapes(rows())
    pairs = [(by_shape[row.task.shape], row.baselines_us["cublaslt-autotuning"]) for row in rows()[len(SHAPES) :]]
    single = fitted(pairs)
    assert single.constant_us == pytest.approx(4.0, abs=1e-6)
    assert single.read_share == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two shapes"):
        fitted(pairs[:1])


def test_a_constant_brings_speedups_nearer_to_one() -> None:
    figures = reach(rows())
    assert figures["offline"] == 1.25
    assert figures["plain"] == 1.1
    assert 1 < figures["predicted"] < 1.1
    assert figures["measured"] == figures["predicted_there"] == figures["predicted"]
    assert reach(rows(constant_us=0.0, read_share=0.0))["predicted"] == 1.1
