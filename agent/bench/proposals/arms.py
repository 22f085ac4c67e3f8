"""The arms of a bench: policies that propose schedules, each opened anew for a task, so that none carries anything over.

| name | the policy |
|---|---|
| `schedule` | the schedule policy with the analytic prior, without precedents |
| `store` | the same with precedents, but none of a shape that is judged |
| `random` | valid schedules at random |
| name or path of a learned policy | the schedule policy with it, without precedents |
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cudal2_agent.agent.wiring.schedule_prior import read_prior
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import Policy
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation, Precedent
from cudal2_agent.policies.schedule.families.kernel_family import Family, Schedule
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.policy_file import find_policy
from cudal2_agent.policies.schedule.policy import Precedents, SchedulePolicy
from cudal2_agent.store.precedents import StoredPrecedents
from cudal2_agent.store.store import Store

Open = Callable[[Arch, int], Policy]  # for tasks of an arch, with a seed
NEAR = 12  # precedents of the arm `store`, as a search has by default
READ = 4096  # precedents that are read to find those


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
        task = gemm(observation.task, "this arm")
        space = self._space(task, observation.chip)
        for place in np.random.default_rng([self._seed, observation.seed]).permutation(len(space)):
            family, schedule = space[int(place)]
            yield family.write(schedule, task)

    def _space(self, task: GemmTask, chip: Chip) -> list[tuple[Family[Any], Schedule]]:
        if self._known is None or self._known[:2] != (task, chip):
            fitting = (family for family in self._families if family.supports(task))
            self._known = (task, chip, [(family, one) for family in fitting for one in family.space(task, chip)])
        return self._known[2]


@dataclass(frozen=True)
class BenchArm:
    """`note`: what identifies the arm beside its name. `open` is called for each task, in several threads."""

    name: str
    open: Open
    note: str = ""


MakeArm = Callable[[], BenchArm]


def analytic(arch: Arch, seed: int) -> Policy:
    return SchedulePolicy(families(arch), seed=seed)


def random_schedules(arch: Arch, seed: int) -> Policy:
    return RandomSchedules(families(arch), seed)


def from_store(store: Store, judged: Collection[str]) -> Open:
    """With the precedents of a store whose shapes are not `judged`."""
    stored = StoredPrecedents(store)

    def near(task: GemmTask, chip: Chip) -> Sequence[Precedent]:
        return [one for one in stored.near(task, chip, READ) if one.task.shape not in judged][:NEAR]

    return lambda arch, seed: SchedulePolicy(families(arch), seed=seed, precedents=near)


def known_schedules(store: Store) -> Precedents:
    """The schedules that led earlier runs of a task itself, best run first."""
    stored = StoredPrecedents(store)

    def known(task: GemmTask, chip: Chip) -> Sequence[Precedent]:
        return [one for one in stored.near(task, chip, READ) if one.task == task]

    return known


def own_arms(store: Store, judged: Collection[str]) -> dict[str, MakeArm]:
    """The arms of this version by name, each made where it is asked for."""
    return {
        "schedule": lambda: BenchArm("schedule", analytic),
        "store": lambda: BenchArm("store", from_store(store, judged)),
        "random": lambda: BenchArm("random", random_schedules),
    }


def read_arms(names: Sequence[str], known: Mapping[str, MakeArm], home: Path) -> list[BenchArm]:
    """The arms that names stand for: of `known`, or learned policies. Raises: UsageError."""
    if not names:
        raise UsageError(f"--arms names no arm; choose from {', '.join(known)}, or learned priors")
    return [known[name]() if name in known else _learned_arm(name, known, home) for name in dict.fromkeys(names)]


def learned(path: Path) -> Open:
    """With a learned policy. Raises: UsageError for weights that cannot be used."""
    prior = read_prior(path)
    return lambda arch, seed: SchedulePolicy(families(arch), seed=seed, prior_of=lambda *_: prior)


def _learned_arm(name: str, known: Mapping[str, MakeArm], home: Path) -> BenchArm:
    try:
        found = find_policy(name, home)
    except UsageError as exc:
        raise UsageError(
            f"arm {name!r} is not known; choose from {', '.join(known)}, a prior of `cudal2-agent prior list`, or a file"
        ) from exc
    shown = name if name == found.name else found.path.stem  # stages of one training share a name
    return BenchArm(shown, learned(found.path), hashlib.sha256(found.path.read_bytes()).hexdigest()[:16])
