"""A policy without knowledge: random valid schedules."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule


class RandomSchedules:
    """Draws uniformly from the union of the families' spaces for the task, without replacement.

    Every schedule of every space has the same probability, so that a family counts by the size of its space. The order
    follows from the seeds of the policy and of the observation. What was tried before is not drawn again.
    """

    name = "random"
    reads_code = False
    exhausted = ""

    def __init__(self, families: Sequence[Family[Any]], seed: int = 0) -> None:
        self._families, self._seed = tuple(families), seed
        self._known: tuple[GemmTask, Chip, list[tuple[Family[Any], Schedule]]] | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count`, or none, once all schedules were tried."""
        tried = {attempt.candidate_id for attempt in observation.attempts}
        found: dict[str, Candidate] = {}
        for candidate in self._drawn(observation):
            if len(found) == count:
                break
            if candidate.id not in tried:
                found[candidate.id] = candidate
        return list(found.values())

    def _drawn(self, observation: Observation) -> Iterator[Candidate]:
        space = self._space(observation.task, observation.chip)
        for place in np.random.default_rng([self._seed, observation.seed]).permutation(len(space)):
            family, schedule = space[int(place)]
            yield family.write(schedule, observation.task)

    def _space(self, task: GemmTask, chip: Chip) -> list[tuple[Family[Any], Schedule]]:
        if self._known is None or self._known[:2] != (task, chip):
            fitting = (family for family in self._families if family.supports(task))
            self._known = (task, chip, [(family, one) for family in fitting for one in family.space(task, chip)])
        return self._known[2]
