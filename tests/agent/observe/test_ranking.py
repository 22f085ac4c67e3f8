"""Which step leads when nothing is executed, and the short form of a step."""

from cudal2_agent.agent.observe.ranking import finalists, leader, rank, ties
from cudal2_agent.agent.run.stopping import no_better_prediction
from cudal2_agent.contract.records.evaluation import Prediction, Unmeasured
from cudal2_agent.contract.records.trajectory import Step
from tests.doubles import CHIP, INSPECTION, LAUNCH, TASK, candidate, measured, step, unmeasured


def floor(us: float) -> Unmeasured:
    """The evaluation of a candidate without a predicted time: the roofline's lower bound."""
    prediction = Prediction(predicted_us=us, model="roofline", floor_us=us)
    return Unmeasured(verified_by="nothing", prediction=prediction, inspection=INSPECTION)


def leading(*steps: Step) -> int:
    best = leader([rank(one, TASK, CHIP) for one in steps])
    assert best is not None
    return best.step.index


def test_a_floor_is_no_better_than_a_modelled_time() -> None:
    assert leading(step(0, 0, evaluation=unmeasured(9.0)), step(1, 1, evaluation=floor(2.0))) == 0
    assert leading(step(0, 0, evaluation=floor(2.0)), step(1, 1, evaluation=unmeasured(9.0))) == 1


def test_among_floors_the_first_leads_and_any_measured_time_beats_them() -> None:
    assert leading(step(0, 0, evaluation=floor(2.0)), step(1, 1, evaluation=floor(2.0))) == 0
    assert leading(step(0, 0, evaluation=floor(2.0)), step(1, 1, evaluation=measured(50.0))) == 1


def test_among_predictions_the_fastest_leads_and_of_equal_ones_the_earliest() -> None:
    times_us = (10.0, 9.75, 9.5, 12.0, 9.5)
    for count, leads in ((1, 0), (2, 1), (3, 2), (4, 2), (5, 2)):
        steps = [step(n, n, evaluation=unmeasured(us)) for n, us in enumerate(times_us[:count])]
        assert leading(*steps) == leads, times_us[:count]
    ranked = [rank(one, TASK, CHIP) for one in steps]
    assert [one.step.index for one in ties(ranked)] == [2, 4, 1], "10.0 does not tie with the fastest"


def test_a_proved_kernel_is_ahead_of_one_that_was_not_executed_and_does_not_tie_with_it() -> None:
    steps = [step(0, 0, evaluation=unmeasured(5.0)), step(1, 1, evaluation=unmeasured(9.0, "emulator"))]
    assert leading(*steps) == 1
    assert [one.step.index for one in ties([rank(one, TASK, CHIP) for one in steps])] == [1]


def test_any_measured_time_is_ahead_of_a_prediction_and_ties_with_none() -> None:
    steps = [step(0, 0, evaluation=unmeasured(5.0, "emulator")), step(1, 1, evaluation=measured(5.1))]
    assert leading(*steps) == 1
    assert ties([rank(one, TASK, CHIP) for one in steps]) == []


def test_floors_do_not_hide_whether_a_round_brought_a_better_model() -> None:
    """A lower bound below every predicted time neither prolongs a run nor ends it."""

    def ended(*steps: Step) -> bool:
        return no_better_prediction([rank(one, TASK, CHIP) for one in steps], 2)

    first, floors = step(0, 0, evaluation=unmeasured(9.0)), step(1, 1, round=2, evaluation=floor(2.0))
    assert ended(first, floors, step(2, 2, round=2, evaluation=unmeasured(9.5)))
    assert not ended(first, floors, step(2, 2, round=2, evaluation=unmeasured(8.0)))


def test_an_attempt_tells_the_seconds_of_all_stages_or_none() -> None:
    timed = rank(step(0, seconds={"build": 1.5, "evaluate": 0.25}), TASK, CHIP)
    assert timed.attempt.seconds == 1.75
    assert rank(step(0), TASK, CHIP).attempt.seconds is None


def test_a_screened_time_never_beats_a_raced_one() -> None:
    screened, raced = measured(2.0, effort="screen"), measured(4.0, effort="race")
    assert leading(step(0, 0, evaluation=screened), step(1, 1, evaluation=raced)) == 1


def test_the_paired_speedup_ranks_where_clocks_drift() -> None:
    """The second was timed at lower clocks: it took longer, and its baseline even more so."""
    early, late = measured(4.0, 10.0, effort="screen"), measured(4.5, 12.0, effort="screen")
    assert leading(step(0, 0, evaluation=early), step(1, 1, evaluation=late)) == 1


def test_speedups_over_different_baselines_are_not_compared() -> None:
    """Where a baseline failed at first, the ratio is over a slower one: a faster kernel must not lose for that."""
    over_eager, over_compiled = measured(238.0, 8400.0, effort="quick"), measured(180.0, 310.0, effort="quick")
    names = ("eager-cuda-graph", "compiled")
    first, later = (
        one.model_copy(update={"baselines": (one.baselines[0].model_copy(update={"name": name}),)})
        for one, name in zip((over_eager, over_compiled), names, strict=True)
    )
    assert leading(step(0, 0, evaluation=first), step(1, 1, evaluation=later)) == 1


PROGRAMMATIC = candidate(0).plan.model_copy(update={"launches": (LAUNCH.model_copy(update={"programmatic": True}),)})


def screened(index: int, time_us: float, baseline_us: float, *, overlaps: bool) -> Step:
    one = candidate(index)
    update = {"plan": PROGRAMMATIC} if overlaps else {}
    evaluation = measured(time_us, baseline_us, effort="screen")
    return step(index, candidate=one.model_copy(update=update), evaluation=evaluation)


def test_a_baseline_that_was_short_for_a_moment_costs_no_overlapping_kernel_its_place() -> None:
    """Its launches do not wait for each other. Those of a plain kernel do, and were shorter for the same reason."""
    usual = [screened(number, 1.55, 2.84, overlaps=True) for number in range(3)]
    ranked = [rank(one, TASK, CHIP) for one in (*usual, screened(3, 1.45, 2.51, overlaps=True))]
    assert finalists(ranked, 1)[0].index == 3
    ranked = [rank(one, TASK, CHIP) for one in (*usual, screened(3, 1.45, 2.51, overlaps=False))]
    assert finalists(ranked, 1)[0].index == 0


def test_of_long_kernels_the_paired_speedup_counts_even_where_launches_overlap() -> None:
    usual = [screened(number, 50.0, 60.0, overlaps=True) for number in range(3)]
    cool = screened(3, 49.0, 55.0, overlaps=True)
    assert finalists([rank(one, TASK, CHIP) for one in (*usual, cool)], 1)[0].index == 0


def test_the_best_without_programmatic_launch_is_a_finalist() -> None:
    steps = [
        step(number, candidate=candidate(number).model_copy(update={"plan": PROGRAMMATIC}), evaluation=measured(2.0 + number))
        for number in range(4)
    ]
    steps.append(step(4, 4, evaluation=measured(9.0)))
    chosen = finalists([rank(one, TASK, CHIP) for one in steps], 3)
    assert [one.index for one in chosen] == [0, 1, 4]
    plain = measured(5.0).model_copy(update={"plain": measured(8.0).timing})
    steps[3] = steps[3].model_copy(update={"evaluation": plain})
    assert [one.index for one in finalists([rank(one, TASK, CHIP) for one in steps], 3)] == [0, 1, 3]
