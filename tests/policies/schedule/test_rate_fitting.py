"""The rates of a chip from times of schedules: a slower chip is found, and what the times cannot tell stays."""

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.prior import predict_many_us
from cudal2_agent.policies.schedule.rate_fitting import RATES, TimedWorks, fitted_chip
from tests.doubles.slower_chip import EXPECTED, TRUE, good_entries

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
