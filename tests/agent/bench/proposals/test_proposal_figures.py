"""Figures by hand-made rows: shares, means, what counts, and what is never mixed."""

import pytest

from cudal2_agent.agent.bench.proposals.estimates import Estimate, estimate
from cudal2_agent.agent.bench.proposals.proposal_figures import ArmFigures, contenders, figures_of, worths_of
from cudal2_agent.agent.cli.render.prior_table import figure_lines
from cudal2_agent.contract.records.task import GemmTask
from tests.agent.bench.proposals.rows import judged, proposal_row
from tests.doubles import TASK

OTHER = GemmTask(m=512, n=256, k=256)


def arms_of(rows, reference: str = "schedule") -> dict[str, ArmFigures]:
    (figures,) = figures_of(rows, reference)
    return {arm.name: arm for arm in figures.arms}


def value(figure: Estimate | None) -> float:
    assert figure is not None
    return figure.value


def test_the_race_decides_and_the_screen_is_scaled_to_it() -> None:
    row = proposal_row([judged("a", 2.0, 1.8), judged("b", 1.0), judged("c", 2.1), judged("d", None)], {})
    assert worths_of(row) == {"a": 1.8, "b": pytest.approx(0.9), "c": 1.8}


def test_a_candidate_that_failed_in_the_race_counts_for_nothing() -> None:
    row = proposal_row([judged("a", 2.0, race_status="wrong"), judged("b", 1.0, 1.0)], {"one": ["a", "b"]})
    assert worths_of(row) == {"b": 1.0}
    assert arms_of([row])["one"].failed == 1
    assert arms_of([row])["one"].first_within.value == 0


def test_the_second_race_judges_what_the_first_chose() -> None:
    lucky = judged("lucky", 1.1, 1.06, confirmed=1.0)
    row = proposal_row([lucky, judged("own", 1.0, 1.0, confirmed=0.99), judged("far", 0.5)], {"one": ["own"], "two": ["far"]})
    figures = arms_of([row])
    assert value(figures["one"].best_mean) == pytest.approx(0.99)
    assert figures["one"].best_within.value == 1, "by the first race it is 6 % behind"
    assert value(figures["two"].best_mean) == pytest.approx(0.5 * (1.06 / 1.1 + 1) / 2 / 1.06)
    (bench,) = figures_of([row, proposal_row([judged("a", 1.0)], {"one": ["a"]}, task=OTHER)])
    assert (bench.shapes, bench.confirmed) == (2, 1)
    assert "The best of 1 shapes had a second final, which judges." in figure_lines(bench)


def test_contenders_are_what_the_figures_rest_on() -> None:
    names = ["a", "b", "c", "d"]
    row = proposal_row(
        [judged("a", 1.0, 1.0), judged("b", 0.95, 0.96), judged("c", 0.5), judged("d", 0.99, 0.97)],
        {"one": ["b", "d", "c"], "two": ["c"]},
    )
    assert contenders(row, 1.1) == ["a", "b", "d"]
    assert contenders(proposal_row([judged(name, None) for name in names], {"one": names}), 1.1) == []


def test_shares_are_of_shapes_and_means_of_those_that_ran() -> None:
    first = proposal_row([judged("a", 1.0), judged("b", 0.96), judged("c", 0.97)], {"one": ["a"], "two": ["b", "c"]})
    second = proposal_row(
        [judged("a", 1.0), judged("b", None), judged("c", 0.99)], {"one": ["a"], "two": ["b", "c"]}, task=OTHER
    )
    two = arms_of([first, second])["two"]
    assert (two.first_within.value, two.first_within.shapes) == (0.5, 2)
    assert two.best_within.value == 0.5
    assert value(two.first_mean) == pytest.approx(0.96)
    assert value(two.best_mean) == pytest.approx((0.97 * 0.99) ** 0.5)
    assert (two.proposed, two.failed, two.missing) == (4, 1, 12)
    assert two.propose_s == 0.25
    assert two.gpu_s == 1.0


@pytest.mark.parametrize(("ratio", "within"), [(0.953, 1.0), (0.951, 0.0)])
def test_five_per_cent_is_of_the_slower_time(ratio: float, within: float) -> None:
    row = proposal_row([judged("a", 1.0), judged("b", ratio)], {"one": ["b"]})
    assert arms_of([row])["one"].first_within.value == within


def test_the_ninth_proposal_is_not_among_the_first_eight() -> None:
    names = [f"c{number}" for number in range(9)]
    row = proposal_row([judged(name, 1.0 if name == "c8" else 0.5) for name in names], {"one": names}, budget=16)
    assert arms_of([row])["one"].best_within.value == 0
    assert arms_of([row])["one"].missing == 0


def test_an_arm_that_proposed_nothing_or_raised_missed() -> None:
    row = proposal_row([judged("a", 1.0)], {"one": ["a"], "none": [], "raised": []}, errors={"raised": "ValueError: no"})
    arms = arms_of([row])
    assert arms["none"].first_within.value == arms["raised"].best_within.value == 0
    assert arms["none"].first_mean is None
    assert (arms["none"].errors, arms["raised"].errors) == (0, 1)


def test_a_task_on_which_nothing_ran_is_counted_apart() -> None:
    rows = [proposal_row([judged("a", 1.0)], {"one": ["a"]}), proposal_row([judged("a", None)], {"one": ["a"]}, task=OTHER)]
    (figures,) = figures_of(rows)
    assert (figures.shapes, figures.skipped) == (1, 1)
    assert figures.arms[0].first_within.shapes == 1


def test_the_newest_row_of_a_task_counts() -> None:
    old = proposal_row([judged("a", 1.0), judged("b", 0.5)], {"one": ["b"]}, age_days=2)
    new = proposal_row([judged("a", 1.0)], {"one": ["a"]})
    assert arms_of([new, old])["one"].first_within.value == 1


def test_predictions_and_measurements_are_figures_of_their_own() -> None:
    predicted = judged("a", 1.0, status="unmeasured", screened=None, predicted_us=4.0)
    slower = judged("b", 1.0, status="unmeasured", screened=None, predicted_us=5.0)
    rows = [
        proposal_row([judged("a", 1.0)], {"one": ["a"]}),
        proposal_row([predicted, slower], {"one": ["b"]}, basis="predicted", budget=16),
    ]
    measured, modelled = figures_of(rows)
    assert (measured.basis, measured.environment) == ("measured", "scripted")
    assert (modelled.basis, modelled.environment) == ("predicted", "H200")
    assert value(modelled.arms[0].first_mean) == pytest.approx(0.8)
    assert modelled.arms[0].search is None


def test_a_search_costs_what_its_candidates_took_until_one_was_near() -> None:
    found = [judged("a", 1.25), judged("b", 1.98), judged("c", 2.0), judged("d", 1.5, gpu_s=2.5), judged("e", None)]
    row = proposal_row(found, {"schedule": ["a", "d", "b"], "fast": ["e", "b"], "never": ["a", "d"]}, budget=16)
    costs = {name: arm.search for name, arm in arms_of([row]).items() if arm.search is not None}
    assert {name: cost.mean_s for name, cost in costs.items()} == {"schedule": 3.5, "fast": 1.0, "never": 3.0}
    assert {name: cost.reached.value for name, cost in costs.items()} == {"schedule": 1.0, "fast": 1.0, "never": 0.0}
    assert value(costs["fast"].reference_over) == pytest.approx(3.5)
    assert costs["schedule"].reference_over is None


def test_curves_hold_the_best_so_far_and_the_library_before_it() -> None:
    found = [judged("a", 1.25), judged("b", 2.0), judged("c", None)]
    row = proposal_row(found, {"one": ["c", "a", "b"]}, budget=16)
    cost = arms_of([row])["one"].search
    assert cost is not None
    assert [cost.by_candidates[count].speed for count in (1, 2, 4, 48)] == pytest.approx([0.5, 0.625, 1.0, 1.0])
    assert [cost.by_seconds[limit].speed for limit in (0.25, 0.5, 1.0, 2.0)] == pytest.approx([0.5, 0.5, 0.625, 1.0])
    assert [cost.by_candidates[count].near for count in (2, 4)] == [0.0, 1.0]


def test_the_library_is_near_but_finds_nothing() -> None:
    row = proposal_row([judged("a", 0.5), judged("b", 0.99)], {"one": ["a", "b"]}, budget=16)
    cost = arms_of([row])["one"].search
    assert cost is not None
    assert cost.mean_s == 1.0
    assert cost.by_candidates[1].near == 0.0


def test_an_arm_without_a_candidate_has_a_search_that_cost_nothing() -> None:
    cost = arms_of([proposal_row([judged("a", 2.0)], {"none": []}, budget=16)])["none"].search
    assert cost is not None
    assert (cost.mean_s, cost.reached.value, cost.by_candidates[8].speed) == (0.0, 0.0, 0.5)


def test_an_interval_holds_the_mean_and_narrows() -> None:
    few, many = estimate([0.0, 1.0] * 4), estimate([0.0, 1.0] * 100)
    assert few.low < few.value == 0.5 < few.high
    assert many.high - many.low < few.high - few.low
    assert estimate([0.0, 1.0] * 4) == few


def test_figures_of_no_row_are_none() -> None:
    assert figures_of([]) == []
    (figures,) = figures_of([proposal_row([], {"one": []}, task=TASK)])
    assert (figures.shapes, figures.skipped, figures.arms) == (0, 1, ())
