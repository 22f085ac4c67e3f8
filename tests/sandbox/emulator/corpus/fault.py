"""A seeded fault: a right kernel of a family, a small patch of its source, and the detectors that may name it."""

from dataclasses import dataclass
from typing import Any

from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Schedule
from cudal2_agent.policies.schedule.families.registry import families


@dataclass(frozen=True)
class Patch:
    """Replaces one occurrence of a text; `of`: the expected number of occurrences, which detects changed sources."""

    old: str
    new: str
    occurrence: int = 0
    of: int = 1

    def apply(self, source: str) -> str:
        """Raises: ValueError where the source does not have the text as often as expected."""
        parts = source.split(self.old)
        if len(parts) - 1 != self.of:
            raise ValueError(f"{self.old!r} is found {len(parts) - 1} times; expected were {self.of}")
        head, tail = parts[: self.occurrence + 1], parts[self.occurrence + 1 :]
        return self.old.join(head) + self.new + self.old.join(tail)


@dataclass(frozen=True)
class Fault:
    """`detectors`: the permitted kinds of a run's first finding. `why`: the reason in one line.

    `sms`: SMs of the chip for which the plan is resolved; with few SMs a persistent CTA takes several tiles.
    """

    name: str
    schedule: Schedule
    task: GemmTask
    patches: tuple[Patch, ...]
    detectors: tuple[str, ...]
    why: str
    sms: int = 132

    @property
    def id(self) -> str:
        return f"{self.schedule.family}-{self.name}"

    def right(self) -> Candidate:
        """The kernel without the fault."""
        family = next(family for family in families(self.task.arch) if family.name == self.schedule.family)
        return family.write(self.schedule, self.task)

    def wrong(self) -> Candidate:
        """The kernel with the fault; a patch may reach into its launch plan too. Raises: ValueError, PlanError."""
        source = self.right().source
        for patch in self.patches:
            source = patch.apply(source)
        return Candidate.from_source(source, Origin(policy="test", note=self.name))


def gemm(m: int, n: int, k: int, **fields: Any) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})
