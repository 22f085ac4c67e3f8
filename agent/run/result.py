"""What a run has come to: what the answer, the report and the pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contract.evaluation import Measured, Wrong
from contract.exchange import Exchange
from contract.knowledge import Hit
from contract.trajectory import Observation, RunRecord, Step


@dataclass(frozen=True)
class RunResult:
    """A run that has ended, for good or for now. `best`: the leading candidate's latest step."""

    run: RunRecord
    steps: list[Step]
    best: Step | None
    reason: str
    spent_s: float
    observations: Mapping[str, Observation] = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()

    @property
    def looked_up(self) -> tuple[Hit, ...]:
        """What the best candidate's policy had been shown, as the candidate says."""
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
