"""When a search ends. Pure."""

from collections.abc import Sequence

from cudal2_agent.agent.observe.ranking import Ranked, fastest_of, is_ahead, leader
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import median_us

ROOFLINE_NEAR = 0.98
FINAL_SHARE = 0.25
FINAL_MAX_S = 60.0


class Budget(Record):
    """`candidates` to try and `minutes` of wall-clock. Final measurements count in the time, not in the number."""

    candidates: int
    minutes: float

    @property
    def total_s(self) -> float:
        return 60.0 * self.minutes

    def search_s(self, can_measure: bool) -> float:
        """The time of the search. With a GPU, a share of the total is kept for the final measurements."""
        return self.total_s - (min(FINAL_SHARE * self.total_s, FINAL_MAX_S) if can_measure else 0.0)


def roofline_fraction(measured: Measured, task: Task, chip: Chip) -> float:
    """The roofline's time divided by the measured time; 1 is the limit."""
    return roofline_us(task, chip) / median_us(measured.timing)


def near_roofline(best: Ranked | None, task: Task, chip: Chip) -> bool:
    """Whether the leader was measured within 2 % of the roofline, and no slower than cuBLASLt-AutoTuning where that was timed.

    A prediction ends no search, however near the roofline it is. A kernel that waits for a second witness ends no search.
    """
    if best is None or best.attempt.unproved or not isinstance(best.step.evaluation, Measured):
        return False
    ahead = best.attempt.speedup is None or best.attempt.speedup >= 1.0
    return ahead and roofline_fraction(best.step.evaluation, task, chip) >= ROOFLINE_NEAR


def no_better_prediction(ranked: Sequence[Ranked], last_round: int) -> bool:
    """Whether the last round brought no better prediction than the rounds before it.

    A round without any modelled time does not count. A prediction that ties with the best one is no better.
    """
    before = fastest_of(one for one in ranked if one.step.round < last_round)
    last = [one for one in ranked if one.step.round == last_round and one.estimated]
    return before is not None and bool(last) and not any(is_ahead(one, before) for one in last)


class SearchEnd:
    """When the search of one run ends. `reads_code`: whether a model proposes, which may find a better kernel in any round.

    `stops_near_roofline`: whether it ends before its budget where nothing is left to gain, by the rates of the chip.
    """

    def __init__(
        self,
        task: Task,
        chip: Chip,
        budget: Budget,
        *,
        can_measure: bool,
        reads_code: bool,
        stops_near_roofline: bool = True,
    ) -> None:
        self._task, self._chip, self._budget = task, chip, budget
        self._can_measure, self._reads_code = can_measure, reads_code
        self._stops_near_roofline = stops_near_roofline

    def reason(self, ranked: Sequence[Ranked], last_round: int, waiting: int, spent_s: float) -> str:
        """Why the search ends now; empty while it goes on. At least one built candidate is always tried.

        `waiting`: built candidates of the round that are still to be tried.
        """
        tried = any("evaluate" in one.step.seconds for one in ranked)
        if spent_s > self._budget.search_s(self._can_measure) and (tried or not waiting):
            return "the time is spent"
        if self._stops_near_roofline and near_roofline(leader(ranked), self._task, self._chip):
            return "the roofline is near"
        if waiting:
            return ""
        if len(ranked) >= self._budget.candidates:
            return f"the budget of {self._budget.candidates} candidates is spent"
        if not (self._can_measure or self._reads_code) and no_better_prediction(ranked, last_round):
            return "another round brought no better prediction"
        return ""
