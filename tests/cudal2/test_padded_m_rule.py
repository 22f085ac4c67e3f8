"""Which entries the rule allows for a smaller M, at its bounds, which belong to it as its fields say."""

import pytest

from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup
from tests.doubles.libraries import PADDED_M_RULE, library_entry

ENTRY_TASK = GemmTask(m=64, n=64, k=64)


def entry(low: float) -> LibraryEntry:
    made = library_entry(ENTRY_TASK)
    speedup = Speedup(baseline="b", ratio=low, low=low, high=low)
    return made.model_copy(update={"evaluation": made.evaluation.model_copy(update={"speedup": speedup})})


@pytest.mark.parametrize(
    ("m", "allowed"),
    [(31, False), (32, True), (33, True), (63, True), (64, False), (65, False)],
)
def test_the_smallest_m_that_was_measured_is_allowed_and_the_entrys_own_is_not(m: int, allowed: bool) -> None:
    assert PADDED_M_RULE.smallest == 0.5
    assert PADDED_M_RULE.allows(entry(4.0), ENTRY_TASK.model_copy(update={"m": m})) == allowed


@pytest.mark.parametrize(("low", "allowed"), [(1.99, False), (2.0, True)])
def test_a_margin_of_exactly_the_least_is_allowed(low: float, allowed: bool) -> None:
    assert PADDED_M_RULE.allows(entry(low), ENTRY_TASK.model_copy(update={"m": 32})) == allowed


@pytest.mark.parametrize("change", [{"n": 128}, {"k": 128}, {"layout": Layout.TN}, {"element": ElementType.BF16}])
def test_a_product_that_differs_in_more_than_m_is_not_allowed(change: dict[str, object]) -> None:
    assert not PADDED_M_RULE.allows(entry(4.0), ENTRY_TASK.model_copy(update={"m": 32, **change}))
    other = entry(4.0).model_copy(update={"task": ENTRY_TASK.model_copy(update=change)})
    measured = "layout" not in change and "element" not in change
    assert PADDED_M_RULE.allows(other, other.task.model_copy(update={"m": 32})) == measured, "the rule was measured for some"


def test_an_entry_without_a_schedule_serves_no_padded_m() -> None:
    assert not PADDED_M_RULE.allows(entry(4.0).model_copy(update={"schedule": None}), ENTRY_TASK.model_copy(update={"m": 32}))


def test_the_largest_margin_serves_and_of_equal_ones_the_nearest_m() -> None:
    wide = PADDED_M_RULE.model_copy(update={"smallest": 0.1})
    near, far = entry(2.0), entry(4.0).model_copy(update={"task": ENTRY_TASK.model_copy(update={"m": 128})})
    wanted = ENTRY_TASK.model_copy(update={"m": 32})
    assert wide.best_entry([far, near], wanted) is near
    better = entry(8.0).model_copy(update={"task": far.task})
    assert wide.best_entry([near, better], wanted) is better
    assert wide.best_entry([], wanted) is None
