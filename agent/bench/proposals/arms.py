"""The arms of a bench: policies that propose schedules, each opened anew for a task, so that none carries anything over.

| name | the policy |
|---|---|
| `schedule` | the schedule policy with the analytic prior, without precedents |
| `store` | the same with precedents, but none of a shape that is judged |
| `random` | valid schedules at random |
| name or path of a learned policy | the schedule policy with it, without precedents |
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.agent.bench.proposals.random_schedules import RandomSchedules
from cudal2_agent.agent.wiring.schedule_prior import read_prior
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols.protocols import Policy
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Precedent
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.policy_file import find_policy
from cudal2_agent.policies.schedule.policy import Precedents, SchedulePolicy
from cudal2_agent.store.precedents import StoredPrecedents
from cudal2_agent.store.store import Store

Open = Callable[[Arch, int], Policy]  # for tasks of an arch, with a seed

NEAR = 12  # precedents of the arm `store`, as a search has by default
READ = 4096  # precedents that are read to find those


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
