"""The analytic prior: every term follows the hardware, and the best prediction follows measured library times."""

import random
from typing import Any

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.task import Arch, GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.schedule.families.kernel_family import Work
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.prior import predict_many_us, predict_us
from cudal2_agent.policies.schedule.rate_fitting import RATES, TimedWorks, fitted_chip
from tests.doubles.slower_chip import EXPECTED, TRUE, good_entries

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=4096, n=1024, k=4096)
TILE = Work(
    tile=(128, 128, 64),
    stages=4,
    ctas=256,
    ctas_per_sm=2,
    cluster=1,
    k_blocks=64,
    loaded_bytes=256 * 64 * 2 * 64 * 256,
    reduced_bytes=0,
    launches=1,
    persistent=False,
    programmatic=False,
    mma_efficiency=0.9,
)
SPLIT = {"ctas": 1024, "k_blocks": 16, "reduced_bytes": 2 * 1024 * 128 * 128 * 4}
# (m, n, k) and the time of cuBLASLt's autotuned choice on one H200. Unit: microseconds.
MEASURED_US = {
    (64, 64, 64): 2.043,
    (256, 256, 256): 2.493,
    (512, 512, 512): 3.488,
    (1024, 1024, 1024): 5.813,
    (4096, 1024, 512): 8.824,
    (12288, 128, 2048): 15.71,
    (2048, 2048, 2048): 23.34,
    (64, 16384, 16384): 121.28,
    (16384, 16384, 2048): 1287.3,
}


def us(task: GemmTask = TASK, **change: Any) -> float:
    return predict_us(TILE.model_copy(update=change), task, CHIP)


@pytest.mark.parametrize(
    ("slower", "why"),
    [
        ({"mma_efficiency": 0.45}, "half the tensor rate"),
        ({"loaded_bytes": TILE.loaded_bytes * 8}, "operands read more often"),
        ({"stages": 2, "ctas_per_sm": 1}, "nothing covers the trips to memory"),
        ({"ctas_per_sm": 1}, "later CTAs fill and store alone"),
        ({"launches": 2}, "one more launch"),
        ({"scattered": True}, "pieces of sectors are stored"),
        ({"reduced_bytes": SPLIT["reduced_bytes"]}, "partial sums to write and read"),
    ],
)
def test_what_costs_more_is_predicted_slower(slower: dict[str, Any], why: str) -> None:
    assert us(**slower) > us(), why


def test_one_stage_makes_a_persistent_cta_wait_for_every_tile() -> None:
    short = GemmTask(m=4096, n=2048, k=64)
    tiles = {"tile": (64, 64, 64), "ctas": 132, "ctas_per_sm": 1, "k_blocks": 1, "loaded_bytes": 2048 * 2 * 64 * 128}
    one, six = us(short, **tiles, persistent=True, stages=1), us(short, **tiles, persistent=True, stages=6)
    assert one > 2 * six
    again = {**tiles, "ctas": 2048, "ctas_per_sm": 4}
    assert us(short, **again, stages=1) < one, "CTAs that share an SM wait for their loads together"


def test_a_single_launch_gains_nothing_from_programmatic_launch_and_pays_for_its_cluster() -> None:
    server = TASK.model_copy(update={"mode": TimingMode.SERVER})
    assert us(server, programmatic=True) == us(server) > us() > us(programmatic=True)
    assert us(server, cluster=2) - us(server) > us(cluster=2) - us()


@pytest.mark.parametrize("faster", [{"programmatic": True}, {"persistent": True, "ctas_per_sm": 1}])
def test_what_overlaps_is_predicted_faster(faster: dict[str, Any]) -> None:
    base = {name: value for name, value in faster.items() if name == "ctas_per_sm"}
    assert us(**faster) < us(**base)


def test_a_split_pays_where_tiles_are_few_and_not_where_they_fill_the_chip() -> None:
    few = GemmTask(m=128, n=128, k=16384)
    whole = {"ctas": 1, "k_blocks": 256, "loaded_bytes": 256 * 2 * 64 * 256}
    cut = {"ctas": 32, "k_blocks": 8, "loaded_bytes": 256 * 2 * 64 * 256, "reduced_bytes": 2 * 32 * 128 * 128 * 4}
    assert us(few, **cut) < us(few, **whole)
    assert us(**SPLIT) > us()


def test_sums_that_every_cta_shares_are_predicted_faster() -> None:
    few = GemmTask(m=512, n=512, k=16384)
    cut = {"ctas": 128, "k_blocks": 32, "ctas_per_sm": 1, "reduced_bytes": 2 * 128 * 128 * 128 * 4}
    assert us(few, **cut, spread_sums=True) < us(few, **cut)


def test_one_tile_more_than_fits_costs_a_round() -> None:
    full, over = GemmTask(m=128 * 132, n=128, k=4096), GemmTask(m=128 * 133, n=128, k=4096)
    per_cta = TILE.loaded_bytes // 256
    alone = {"ctas_per_sm": 1}
    one = us(full, ctas=132, loaded_bytes=132 * per_cta, **alone)
    two = us(over, ctas=133, loaded_bytes=133 * per_cta, **alone)
    assert two > 1.5 * one


def test_a_prediction_is_never_under_the_roofline() -> None:
    for task in (TASK, GemmTask(m=64, n=64, k=64), GemmTask(m=64, n=16384, k=16384), GemmTask(m=8192, n=8192, k=256)):
        for family in families(task.arch):
            if not (space := list(family.space(task, CHIP))):
                continue  # a family for other outputs
            schedules = random.Random(0).sample(space, 50)
            predicted = predict_many_us([family.work(schedule, task, CHIP) for schedule in schedules], task, CHIP)
            assert np.isfinite(predicted).all()
            assert predicted.min() > roofline_us(task, CHIP) - CHIP.launch_us


def test_many_at_once_are_as_one_by_one() -> None:
    works = [TILE, TILE.model_copy(update=SPLIT), TILE.model_copy(update={"stages": 1, "persistent": True})]
    assert predict_many_us(works, TASK, CHIP) == pytest.approx([predict_us(work, TASK, CHIP) for work in works])
    assert predict_many_us([], TASK, CHIP).shape == (0,)


def test_the_best_prediction_follows_what_a_library_measured() -> None:
    best = []
    for m, n, k in MEASURED_US:
        task = GemmTask(m=m, n=n, k=k)
        works = []
        for family in families(task.arch):
            space = list(family.space(task, CHIP))
            works += [family.work(schedule, task, CHIP) for schedule in random.Random(0).sample(space, min(600, len(space)))]
        best.append(float(predict_many_us(works, task, CHIP).min()))
    predicted, measured = np.log(best), np.log(list(MEASURED_US.values()))
    assert np.corrcoef(predicted, measured)[0, 1] > 0.98
    assert np.abs(predicted - measured).max() < np.log(2.0)


# The rates of a chip from times of schedules: a slower chip is found, and what the times cannot tell stays.
SHAPES = ((64, 64, 64), (128, 128, 512), (4096, 4096, 2048), (8192, 8192, 1024), (16384, 16384, 64), (16384, 64, 8192))


@pytest.fixture(scope="module")
def timed() -> list[TimedWorks]:
    tasks = [GemmTask(m=m, n=n, k=k) for m, n, k in SHAPES]
    works = [[entry.work for entry in good_entries(task)] for task in tasks]
    return [TimedWorks(task, each, predict_many_us(each, task, TRUE)) for task, each in zip(tasks, works, strict=True)]


def rates(chip: Chip) -> list[float]:
    return [getattr(chip, name) for name in RATES]


def test_a_slower_chip_is_found(timed: list[TimedWorks]) -> None:
    assert rates(fitted_chip(timed, EXPECTED)) == pytest.approx(rates(TRUE), rel=0.2)
    assert rates(fitted_chip(timed * 8, EXPECTED)) == pytest.approx(rates(TRUE), rel=0.05)


def test_a_few_misjudged_schedules_move_little(timed: list[TimedWorks]) -> None:
    times = [one.times_us * np.where(np.arange(len(one.works)) % 5 == 0, 6.0, 1.0) for one in timed]
    worse = [one._replace(times_us=us) for one, us in zip(timed, times, strict=True)]
    assert rates(fitted_chip(worse, EXPECTED)) == pytest.approx(rates(TRUE), rel=0.25)


def test_times_that_say_nothing_of_a_rate_leave_it(timed: list[TimedWorks]) -> None:
    [memory] = [one for one in timed if (one.task.m, one.task.n) == (16384, 64)]
    fitted = fitted_chip([memory], EXPECTED)
    assert fitted.dram_tbps < 0.7 * EXPECTED.dram_tbps
    assert fitted.tensor_tflops == pytest.approx(EXPECTED.tensor_tflops, rel=0.05)
    assert fitted.launch_us == pytest.approx(EXPECTED.launch_us, rel=0.05)


def test_no_rate_is_below_what_a_kernel_reached(timed: list[TimedWorks]) -> None:
    [large] = [one for one in timed if one.task.m == one.task.n == 8192]
    fastest_us = large.task.flops / (0.9 * EXPECTED.tensor_tflops * 1e6)
    slow = large.times_us * 3
    slow[0] = fastest_us
    assert fitted_chip([large._replace(times_us=slow)], EXPECTED).tensor_tflops >= 0.9 * EXPECTED.tensor_tflops


def test_without_times_the_chip_stays() -> None:
    assert fitted_chip([], EXPECTED) == EXPECTED
