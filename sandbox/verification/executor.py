"""What the tiers need of a backend: run the kernel once under guard, and report what it did besides writing D."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from cudal2_agent.contract.records.symptoms import BarrierWait
from cudal2_agent.sandbox.verification.elements import POISON, Array
from cudal2_agent.sandbox.verification.inputs import Inputs

SLOTS = 2


class Fill(StrEnum):
    """What D holds before a run: a poison NaN everywhere, the output of the preceding run, or zeros."""

    POISON = "poison"
    STALE = "stale"
    ZERO = "zero"


@dataclass(frozen=True)
class Violation:
    """Something a kernel did besides computing D, in words.

    `kind`: `canary`, `input`, `workspace`, `order` (wrote D too early), or the name of one of the emulator's detectors.
    `waits`: of a run that did not end, which barriers its warps wait at.
    """

    kind: str
    message: str
    tier: Literal["guards", "programmatic", "emulator"] = "guards"
    waits: tuple[BarrierWait, ...] = ()


@dataclass(frozen=True)
class Run:
    """One guarded run. `output`: D as bit patterns, valid until the next run in the same slot. Shape: (M, N).

    `poison`: the pattern that every element of D held before the run, one of `POISONS` drawn anew for each run; None where D
    held something else.
    """

    output: Array
    violations: tuple[Violation, ...] = ()
    poison: int | None = POISON


class Executor(Protocol):
    """Runs one contender on one task."""

    xp: Any

    def run(self, inputs: Inputs, *, slot: int = 0, fill: Fill = Fill.POISON, fresh_workspace: bool = True) -> Run:
        """Run once in one of SLOTS sets of buffers.

        `fresh_workspace`: poison the workspace first, or zero it where the plan asks for that. Otherwise the workspace keeps
        what the preceding run left, as in back-to-back launches.
        """
        ...

    def run_dependent(self, inputs: Inputs, decoy: Inputs) -> Run:
        """Run between a producer that triggers early and replaces `decoy` by `inputs` late, and a consumer.

        The output is what the consumer saw.
        """
        ...

    def library(self, inputs: Inputs) -> Array | None:
        """cuBLAS's D on the same inputs; None where there is no such library."""
        ...


@dataclass(frozen=True)
class Traits:
    """Properties that a contender declares of itself, which decide which tests apply.

    `dependent_runs`: runs behind a late predecessor that the backend asks for.
    """

    atomics: bool = False
    programmatic: bool = False
    dependent_runs: int = 2
