"""A candidate: one kernel source with its launch plan, and its origin."""

import functools
import textwrap
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.plan.plan import CompilerName, LaunchPlan, parse_plan

ScheduleValue = str | int | bool
# The text of a kernel. Editors write a byte-order mark before it, which NVRTC does not read: it is no part of the source.
SourceText = Annotated[str, AfterValidator(lambda text: text.lstrip("\ufeff"))]


def axes_in_use(schedule: Mapping[str, ScheduleValue]) -> list[str]:
    """The axes of a schedule that are in use, as words. Axes that are off, `none`, `normal` or 1 are left out."""
    return [axis if value is True else f"{axis}={value}" for axis, value in schedule.items() if not _neutral(value)]


def _neutral(value: ScheduleValue) -> bool:
    return value is False or value in ("none", "normal") or (value is not True and value == 1)


class Origin(Record):
    """Which policy wrote a candidate, and what that policy had seen.

    `schedule`: the structured schedule that the source was written from; None for free code.
    `exemplar_ids`: candidates that were shown for contrast; None where that was not recorded.
    `seconds`: wall-clock time that its policy took to write it; None unless several policies share the round.
    """

    policy: str
    parents: tuple[str, ...] = ()
    chunk_ids: tuple[str, ...] = ()
    exemplar_ids: tuple[str, ...] | None = None
    prompt_hash: str | None = None
    schedule: dict[str, ScheduleValue] | None = None
    note: str = ""
    seconds: float | None = None

    @property
    def trusted_writer(self) -> bool:
        """Whether this project wrote the source from a schedule. Any other source may contain code that a model wrote."""
        return bool(self.schedule)


SHORT_CHARS = 36
_TILE_AXES = ("block_m", "block_n", "block_k")


def _short_name(origin: Origin, candidate_id: str) -> str:
    """The label, cut behind the last word that fits in `SHORT_CHARS`."""
    return textwrap.shorten(_label(origin, candidate_id), SHORT_CHARS, placeholder=" …")


def _label(origin: Origin, candidate_id: str) -> str:
    """The axes in use of the schedule behind a candidate; without one, the policy and the candidate's id."""
    if not origin.schedule:
        return f"{origin.policy} {candidate_id[:8]}"
    rest = dict(origin.schedule)
    words = [str(rest.pop("family", ""))]
    if all(axis in rest for axis in _TILE_AXES):
        words.append("x".join(str(rest.pop(axis)) for axis in _TILE_AXES))
    words += axes_in_use(rest)
    return " ".join(word for word in words if word)


@functools.lru_cache(maxsize=256)  # a search asks for each id some 30 times
def _device_id(source: str, flags: tuple[str, ...], compiler: str, plan: LaunchPlan) -> str:
    return digest(["device", source, list(flags), compiler, plan.model_dump(mode="json")])


class Candidate(Record):
    """Device code with its launch plan. The trusted launcher runs it; there is no host code."""

    kind: Literal["device"] = "device"
    source: SourceText
    flags: tuple[str, ...] = ()
    compiler: CompilerName = "nvrtc"
    plan: LaunchPlan
    origin: Origin

    @property
    def id(self) -> str:
        """Hash of source, flags, compiler and plan. Equal code is one candidate."""
        return _device_id(self.source, self.flags, self.compiler, self.plan)

    @property
    def label(self) -> str:
        """The candidate with the axes of its schedule that are in use."""
        return _label(self.origin, self.id)

    @property
    def short_name(self) -> str:
        """The candidate in a few characters, for a line of progress."""
        return _short_name(self.origin, self.id)

    @classmethod
    def from_source(cls, source: str, origin: Origin, flags: tuple[str, ...] = ()) -> "Candidate":
        """A candidate from one file that contains its plan as a comment. Raises: PlanError."""
        plan = parse_plan(source)
        return cls(source=source, flags=flags, compiler=plan.compiler, plan=plan, origin=origin)


# Shown with every host candidate.
UNPROVEN = "host candidate: unproven, runs its own host code"


class HostCandidate(Record):
    """A C++ launcher for CUTLASS adapters and published kernels. nvcc builds it; only an isolated worker runs it.

    The user must trust it (`trust_host`). A policy never writes one.

    Entry: int launch(const void* a, const void* b, void* d, int m, int n, int k, void* workspace, size_t bytes, cudaStream_t).
    """

    kind: Literal["host"] = "host"
    source: SourceText
    flags: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    workspace_bytes: int = 0
    origin: Origin

    @property
    def id(self) -> str:
        return digest(["host", self.source, list(self.flags), list(self.include_dirs), self.workspace_bytes])

    @property
    def label(self) -> str:
        """The candidate, marked as unproven."""
        return f"{self.origin.policy} {self.id[:8]} ({UNPROVEN})"

    @property
    def short_name(self) -> str:
        """The candidate in a few characters, for a line of progress."""
        return _short_name(self.origin, self.id)


AnyCandidate = Annotated[Candidate | HostCandidate, Field(discriminator="kind")]
