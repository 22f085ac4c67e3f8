"""The row of a run: the best launch with and without programmatic launch, by what the final measurements say."""

import pytest

from cudal2_agent.agent.campaign.watching import class_figures
from cudal2_agent.agent.campaign.winners import best_launches, deciding_steps, shape_result
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, CompileFailed, Measured, TestResult, Timing
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.roofline import roofline_us
from tests.doubles import CHIP, LAUNCH, PLAN, TASK, candidate, measured, run_record, step
from tests.store.campaigns.rows import result, tasks

PROGRAMMATIC = PLAN.model_copy(update={"launches": (LAUNCH.model_copy(update={"programmatic": True}),)})


def raced(time_us: float, plain_us: float | None = None, effort: str = "race", **changes: object) -> Measured:
    plain = Timing(name="plain", samples_us=(plain_us,) * 5) if plain_us is not None else None
    return measured(time_us).model_copy(update={"effort": effort, "plain": plain, **changes})


def programmatic(number: int) -> Candidate:
    return candidate(number).model_copy(update={"plan": PROGRAMMATIC})


def row_of(steps: list[Step]) -> RunResult:
    return RunResult(run=run_record(), steps=steps, best=None, reason="the budget is spent", spent_s=9.0)


def test_the_best_launch_of_each_kind_comes_from_the_race() -> None:
    steps = [
        step(0, 0, candidate=programmatic(0), evaluation=raced(1.0, effort="screen")),
        step(1, 1, candidate=programmatic(1), evaluation=raced(5.0, 9.0), seconds={"evaluate": 1.5}),
        step(2, 2, evaluation=raced(8.0), seconds={"evaluate": 0.5, "build": 7.0}),
    ]
    row = shape_result(row_of(steps), commit="abc")
    assert row.best is not None
    assert row.best_without is not None
    assert (row.best.step_index, row.best.programmatic, row.best.time_us) == (1, True, 5.0)
    assert row.best.speedup.ratio == pytest.approx(2.0)
    assert (row.best_without.step_index, row.best_without.programmatic) == (2, False)
    assert row.best_without.speedup.ratio == pytest.approx(1.25)
    assert row.baselines_us == {AUTOTUNED: 10.0}
    assert (row.candidates, row.gpu_seconds, row.seconds, row.commit) == (3, 2.0, 9.0, "abc")
    assert row.floor_us == roofline_us(TASK, CHIP)


def test_a_row_names_the_algorithm_of_its_race() -> None:
    def against(detail: str) -> Measured:
        return raced(5.0, 6.0, baselines=(Timing(name=AUTOTUNED, samples_us=(10.0,) * 5, detail=detail),))

    words = "layout tn, algorithm 66, tile tile_64x32"
    told = f"{words}; best of 6 suggestions"
    row = shape_result(row_of([step(0, 0, evaluation=against(told)), step(1, 1, evaluation=raced(8.0))]))
    assert row.autotuned == words
    assert shape_result(row_of([step(0, 0, evaluation=against(""))])).autotuned is None
    assert shape_result(row_of([])).autotuned is None


def test_a_kernel_may_be_faster_without_programmatic_launch() -> None:
    best, without = best_launches([step(0, evaluation=raced(6.0, 5.0), candidate=programmatic(0))])
    assert best == without
    assert best is not None
    assert (best.programmatic, best.time_us) == (False, 5.0)


def test_the_worst_error_is_that_of_the_winners_tests() -> None:
    tests = (TestResult(tier="bounds", name="a", passed=True, worst=0.2), TestResult(tier="bounds", name="b", passed=True))
    best, _ = best_launches([step(0, evaluation=raced(5.0, tests=tests))])
    assert best is not None
    assert best.worst_error == 0.2


def test_what_failed_last_or_beats_the_roofline_is_no_winner() -> None:
    refuted = [step(0, 0, evaluation=raced(2.0)), step(1, 0, evaluation=CompileFailed(message="no", log=""))]
    impossible = step(2, 1, evaluation=raced(0.001))
    assert deciding_steps([*refuted, impossible, last := step(3, 2, evaluation=raced(9.0))], TASK, CHIP) == [last]


def test_steps_of_older_versions_count_where_no_race_was_run() -> None:
    quick, full = step(0, 0, evaluation=measured(5.0)), step(1, 0, evaluation=measured(6.0))
    assert deciding_steps([quick, full], TASK, CHIP) == [full]
    assert deciding_steps([step(0, evaluation=raced(5.0, effort="screen"))], TASK, CHIP) == []


def test_a_run_without_a_kernel_says_why() -> None:
    row = shape_result(row_of([step(0, evaluation=CompileFailed(message="line 1: no", log=""))]))
    assert row.best is None
    assert "line 1: no" in row.reason
    assert "no candidate" in shape_result(row_of([])).reason


def test_classes_are_by_the_time_of_autotuning_and_the_last_row_of_a_task_counts() -> None:
    first, second, third = tasks(3)
    rows = [
        result(first, 1.5, baselines_us={AUTOTUNED: 3.9}),
        result(second, 1.0, baselines_us={AUTOTUNED: 4.0}),
        result(second, 2.0, baselines_us={AUTOTUNED: 4.0}),
        result(third, 0.5, baselines_us={AUTOTUNED: 60.0}),
        result(third.model_copy(update={"k": 64}), None, baselines_us={}),
    ]
    found = {one.name: one for one in class_figures(rows)}
    assert [found[name].shapes for name in ("under 4 us", "4 to 15 us", "15 to 60 us", "over 60 us", "all")] == [1, 1, 0, 1, 3]
    assert found["4 to 15 us"].geomean == pytest.approx(2.0)
    assert found["15 to 60 us"].geomean is None
    assert found["all"].geomean == pytest.approx((1.5 * 2.0 * 0.5) ** (1 / 3))
    assert found["all"].faster == pytest.approx(2 / 3)
