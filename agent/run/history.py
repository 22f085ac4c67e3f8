"""The steps of one run, ranked and kept in memory, so that no node reads the whole store again."""

from collections.abc import Sequence
from dataclasses import replace

from cudal2_agent.agent.observe.attempts import described
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.contract.protocols import TrajectoryStore
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.trajectory import RunRecord, Step


class History:
    """Steps by index. A step is added only once it is durable in the store.

    `describes`: whether attempts hold what a model needs to go on from them, which a search over schedules does not read.
    """

    def __init__(self, store: TrajectoryStore, run: RunRecord, *, describes: bool = False) -> None:
        self._store = store
        self._run = run
        self._describes = describes
        self._ranked: list[Ranked] = []
        self._first: dict[str, Step] = {}
        for step in store.steps(run.run_id):
            self._append(step)

    @property
    def ranked(self) -> Sequence[Ranked]:
        return self._ranked

    @property
    def steps(self) -> list[Step]:
        return [one.step for one in self._ranked]

    @property
    def next_index(self) -> int:
        return self._ranked[-1].step.index + 1 if self._ranked else 0

    def add(self, step: Step) -> None:
        """Record the next step."""
        self._store.record_step(step)
        self._append(step)

    def replace(self, step: Step) -> None:
        """Record a step again, with a later profile or verdict."""
        self._store.record_step(step)
        position = next(i for i, one in enumerate(self._ranked) if one.step.index == step.index)
        self._ranked[position] = self._rank(step)
        if self._first[step.candidate.id].index == step.index:
            self._first[step.candidate.id] = step

    def profile_of(self, candidate_id: str) -> Profile | None:
        """The profile of a step of the candidate; a final measurement reuses it."""
        profiles = (one.step.profile for one in self._ranked if one.step.profile and one.attempt.candidate_id == candidate_id)
        return next(profiles, None)

    def first(self, candidate_id: str) -> Step | None:
        """The first step of a candidate; None where it was never tried."""
        return self._first.get(candidate_id)

    def _append(self, step: Step) -> None:
        one = self._rank(step)
        self._ranked.append(one)
        self._first.setdefault(one.attempt.candidate_id, step)

    def _rank(self, step: Step) -> Ranked:
        one = rank(step, self._run.task, self._run.chip)
        if not self._describes:
            return one
        parents = step.candidate.origin.parents
        parent = self._first.get(parents[0]) if parents else None
        source = parent.candidate if parent else None
        return replace(one, attempt=described(one.attempt, step, self._run.task, self._run.chip, source))
