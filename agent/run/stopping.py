"""When a search ends. Pure."""

from collections.abc import Sequence

from agent.observe.ranking import Ranked, best_prediction
from contract.base import Record
from contract.chip import Chip, roofline_us
from contract.evaluation import Measured
from contract.speedup import median_us
from contract.task import GemmTask

ROOFLINE_NEAR = 0.98
FINAL_SHARE = 0.25
FINAL_MOST_S = 60.0


class Budget(Record):
    """`candidates` to try and `minutes` of wall-clock, the final measurements included in the time but not in the count."""

    candidates: int
    minutes: float

    @property
    def total_s(self) -> float:
        return 60.0 * self.minutes

    def search_s(self, can_measure: bool) -> float:
        """What the search may take: a part is kept for the final measurements where there will be any."""
        return self.total_s - (min(FINAL_SHARE * self.total_s, FINAL_MOST_S) if can_measure else 0.0)


def roofline_fraction(measured: Measured, task: GemmTask, chip: Chip) -> float:
    """Share of the roofline that a measured time reaches: 1 where it cannot get faster."""
    return roofline_us(task.flops, task.operand_bytes, chip) / median_us(measured.timing)


def near_roofline(best: Ranked | None, task: GemmTask, chip: Chip) -> bool:
    """Whether the leader is within 2 % of the roofline and no slower than cuBLASLt-AutoTuning, where that was measured.

    A time whose kernel is still to be proved ends no search.
    """
    if best is None or best.attempt.unproved or not isinstance(best.step.evaluation, Measured):
        return False
    ahead = best.attempt.speedup is None or best.attempt.speedup >= 1.0
    return ahead and roofline_fraction(best.step.evaluation, task, chip) >= ROOFLINE_NEAR


def no_better_prediction(ranked: Sequence[Ranked], last_round: int) -> bool:
    """Whether a round without execution brought no better prediction than the ones before it.

    A round of which no candidate's time can be predicted says nothing.
    """
    before = best_prediction([one for one in ranked if one.step.round < last_round])
    last = best_prediction([one for one in ranked if one.step.round == last_round and one.estimated])
    return before is not None and last is not None and last >= before
