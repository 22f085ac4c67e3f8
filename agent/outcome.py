"""What a run has come to: what the answer, the report and the pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contract.exchange import Exchange
from contract.knowledge import Hit
from contract.trajectory import Observation, RunRecord, Step


@dataclass(frozen=True)
class Outcome:
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
