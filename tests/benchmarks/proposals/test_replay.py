"""The proposals bench without a GPU: figures of rows, and the replay of stored sweeps."""

import math
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from benchmarks.proposals.__main__ import main, replay_lines
from benchmarks.proposals.replay import analytic_ranker, replay, search_ranker
from benchmarks.proposals.sweeps import Sweep
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.acquisition import rank_by_prior
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool

# ---- the replay: random order by exact expectation, orders by a ranker, and what is not judged -----------------------------
TASK = GemmTask(m=64, n=64, k=64, arch=Arch.SM_80)
CHIP = REFERENCE_CHIPS[Arch.SM_80]
RATIOS = (0.5, 1.0, 0.99, 0.7, math.nan, 0.97, 0.2, 0.9, 0.6, 0.985)


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    entries = SchedulePool(families(TASK.arch), TASK, CHIP, 0).entries[: len(RATIOS)]
    return Sweep(TASK, CHIP, entries, np.array(RATIOS))


def by_ratio(_: GemmTask, __: object, entries: Sequence[PoolEntry]) -> np.ndarray:
    return -np.nan_to_num(np.array(RATIOS[: len(entries)]))


def backwards(*arguments) -> np.ndarray:
    return -by_ratio(*arguments)


def test_random_order_is_the_mean_over_all_draws(sweep: Sweep) -> None:
    (random,) = replay([sweep], {})
    shares = [0.0 if math.isnan(ratio) else ratio for ratio in RATIOS]
    draws = [max(drawn) for drawn in combinations(shares, 8)]
    assert random.first_within.value == pytest.approx(fmean(share * 1.05 >= 1 for share in shares))
    assert random.best_within.value == pytest.approx(fmean(best * 1.02 >= 1 for best in draws))
    assert math.log(random.best_mean.value) == pytest.approx(fmean(math.log(best) for best in draws))
    assert math.log(random.first_mean.value) == pytest.approx(fmean(math.log(share or 0.2) for share in shares))


def test_the_best_order_and_the_worst(sweep: Sweep) -> None:
    best, worst, _ = replay([sweep], {"best": by_ratio, "worst": backwards})
    assert (best.first_within.value, best.best_within.value, best.first_mean.value) == (1.0, 1.0, 1.0)
    assert (worst.first_within.value, worst.best_within.value) == (0.0, 1.0)
    assert worst.first_mean.value == pytest.approx(0.2)  # a failed one counts as the slowest
    assert worst.best_mean.value == pytest.approx(0.985)


def test_the_prior_orders_entries_by_its_times(sweep: Sweep) -> None:
    pool = SchedulePool(families(TASK.arch), TASK, CHIP, 0)
    assert list(analytic_ranker(TASK, CHIP, sweep.entries)) == list(pool.predicted_us[: len(RATIOS)])


def test_a_search_orders_as_its_first_round_does(sweep: Sweep) -> None:
    expected = list(rank_by_prior(sweep.entries, analytic_ranker(TASK, CHIP, sweep.entries), [], ANALYTIC.crowding))
    order = np.argsort(search_ranker(TASK, CHIP, sweep.entries))
    assert [sweep.entries[int(place)] for place in order] == expected


def test_shapes_with_few_schedules_are_not_judged(sweep: Sweep) -> None:
    few = Sweep(TASK, CHIP, sweep.entries[:8], sweep.ratios[:8])
    assert replay([sweep, few], {})[0].first_within.shapes == 1
    with pytest.raises(UsageError, match="no sweep of these shapes"):
        replay([few], {})


def test_the_table_warns(sweep: Sweep) -> None:
    lines = replay_lines(replay([sweep], {"best": by_ratio}))
    assert "proposals that nobody measured are not judged" in lines[0]
    assert [line.split("|")[1].strip() for line in lines[4:]] == ["best", "random"]


# ---- the commands of the proposals bench, as a person calls them -----------------------------------------------------------
ROWS = Path(__file__).parents[3] / "benchmarks" / "results" / "h200_proposals_2026-11-27_fifth.jsonl.gz"
HELD_OUT = "benchmarks/campaigns/held_out.json"


def figures(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["proposals", "figures", str(ROWS), *words])
    main()


@pytest.mark.parametrize(("shapes", "count"), [("off_grid", 50), ("grid", 100)])
def test_figures_of_some_shapes_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shapes: str, count: int
) -> None:
    figures(monkeypatch, "--shapes", f"{HELD_OUT}:{shapes}")
    assert capsys.readouterr().out.startswith(f"{count} shapes, f16 accumulate f32, nn, offline, measured, H200")


def test_figures_of_shapes_without_a_row_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no row is of a shape that --shapes names"):
        figures(monkeypatch, "--shapes", "64x64x65")
