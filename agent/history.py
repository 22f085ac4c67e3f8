"""The steps of one run: the store's content, mirrored in memory so that no node reads it all again."""

from collections.abc import Sequence

from contract.protocols import TrajectoryStore
from contract.trajectory import Step


class History:
    """Steps by index. A step is in here only once it is durable in the store."""

    def __init__(self, store: TrajectoryStore, run_id: str) -> None:
        self._store = store
        self._steps = {step.index: step for step in store.steps(run_id)}

    @property
    def steps(self) -> Sequence[Step]:
        return [self._steps[index] for index in sorted(self._steps)]

    @property
    def next_index(self) -> int:
        return max(self._steps, default=-1) + 1

    def add(self, step: Step) -> None:
        self._store.record_step(step)
        self._steps[step.index] = step

    def first(self, candidate_id: str) -> Step | None:
        """The step in which a candidate was tried first."""
        return next((step for step in self.steps if step.candidate.id == candidate_id), None)
