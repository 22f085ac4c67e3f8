"""The result of a run, from which the answer, the report and the plot are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cudal2_agent.contract.records.evaluation import Measured, Wrong
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step


@dataclass(frozen=True)
class RunResult:
    """A run that has finished or was interrupted. `best`: the latest step of the leading candidate."""

    run: RunRecord
    steps: list[Step]
    best: Step | None
    reason: str
    spent_s: float
    observations: Mapping[str, Observation] = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()

    @property
    def looked_up(self) -> tuple[Hit, ...]:
        """The hits that the best candidate's policy was shown, by the candidate's origin."""
        if self.best is None:
            return ()
        shown = self.best.candidate.origin.chunk_ids
        return tuple(hit for hit in self.observations[self.best.observation_id].hits if hit.chunk.id in shown)

    @property
    def refusals(self) -> list[tuple[Step, Wrong, Measured]]:
        """Steps that a GPU found right and a second witness did not, each with the measurement that does not count."""
        return [
            (step, step.evaluation, step.evaluation.refused)
            for step in self.steps
            if isinstance(step.evaluation, Wrong) and step.evaluation.refused is not None
        ]
