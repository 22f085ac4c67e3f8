"""What makes a run's best candidate the best: a measured time, a prediction, or nothing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cudal2_agent.agent.observe.ranking import Ranked, leader, rank, ties
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import TIE

SHOWN_TIES = 4


@dataclass(frozen=True)
class Lead:
    """How the best candidate was chosen. `among`: candidates that were compared, with itself.

    `tied`: the other candidates whose predicted time ties with the fastest. The best one is the fastest of them all.
    """

    ranked_by: Literal["measured", "predicted", "nothing"]
    among: int
    proven: bool
    tied: tuple[Step, ...] = ()

    @property
    def sentence(self) -> str:
        """For a kernel that was not measured and was compared with others; else empty."""
        others = f"{self.among} kernels that were {'found right' if self.proven else 'built'}"
        if self.among == 1 or self.ranked_by == "measured":
            return ""
        if self.ranked_by == "predicted":
            return f"By prediction it is the fastest of {others}.{self._ties()}"
        return f"It is the first of {others}; they are not ranked, because no model predicts their times."

    def _ties(self) -> str:
        if not self.tied:
            return ""
        named = [f"{one.candidate.short_name} ({one.evaluation.predicted_us:.2f} us)" for one in self.tied[:SHOWN_TIES]]
        more = [f"{len(self.tied) - SHOWN_TIES} more"] if len(self.tied) > SHOWN_TIES else []
        return f" Tied within {100 * TIE:.0f} %: {', '.join([*named, *more])}; only timing them can tell."


def lead_of(steps: Sequence[Step], task: Task, chip: Chip) -> Lead | None:
    """None where no candidate leads."""
    ranked = [rank(step, task, chip) for step in steps]
    best = leader(ranked)
    if best is None:
        return None
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    compared = [one for one in latest if _ranked_by(one) == _ranked_by(best) and one.proven == best.proven]
    tied = tuple(one.step for one in ties(ranked)[1:]) if best.estimated else ()
    return Lead(ranked_by=_ranked_by(best), among=len(compared), proven=best.proven, tied=tied)


def _ranked_by(one: Ranked) -> Literal["measured", "predicted", "nothing"]:
    if one.attempt.time_us is not None:
        return "measured"
    return "predicted" if one.estimated else "nothing"
