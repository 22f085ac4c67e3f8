"""A case of the red team: an attack with the layers that may refuse it, or an unusual kernel that must pass."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import (
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TimedOut,
    Unmeasured,
    Wrong,
)
from cudal2_agent.contract.records.task import GemmTask, parse_shape

NO_GAIN = "no-gain"  # a layer: the measured kernel is no faster than the honest one
GAIN = 0.97  # share of the honest kernel's time below which an attack counts as a gain
SECRET = "CUDAL2_SECRET_FILE"  # placeholder in a source: the path of a file that no compiler may open
SEEDED = "CUDAL2_SEEDED"  # placeholder: the first eight bytes of every A, computed from the timer's public code and seed
COMPARED = "CUDAL2_COMPARED"  # placeholder: a mask of the sets that the public code draws for comparison
MARKERS = ("file-that-nobody-may-read", "root:x:0:0", "THE-FILE-EXISTS")  # texts in an evaluation that prove a leak

Layers = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """`task`: on a GPU; `small`: on the emulator.

    `gpu`, `emulator`: the layers that may refuse the case there, as `label` names them; empty if that backend cannot detect it.
    `base`: the honest kernel of the same tile, for comparison of times; None if time does not matter. `hangs`: whether the
    case runs until its limit, which is then short. `gain`: the gain that the author of a blind attack expects. `missed`: at
    most this share of the emulator's proofs misses the case, since it acts at few addresses; more proofs are tried then.
    """

    name: str
    group: str
    source: str
    task: GemmTask
    small: GemmTask
    why: str
    honest: bool = False
    gpu: Layers = ()
    emulator: Layers = ()
    base: str | None = None
    flags: tuple[str, ...] = ()
    blind: bool = False
    gain: str = ""
    hangs: bool = False
    missed: float = 0.0

    @property
    def id(self) -> str:
        return f"{self.group}/{self.name}"

    def layers(self, gpu: bool) -> Layers:
        return self.gpu if gpu else self.emulator

    def task_on(self, gpu: bool) -> GemmTask:
        return self.task if gpu else self.small

    @property
    def digest(self) -> str:
        """Hash of the evaluated inputs: a changed case is evaluated again."""
        return digest([self.source, list(self.flags), self.task.id, self.small.id])

    def candidate(self, secret: str = "/nonexistent", known: Mapping[str, str] = MappingProxyType({})) -> Candidate:
        """The candidate with its plan. `known`: values for `SEEDED` and `COMPARED` that an attacker knows in advance.

        Raises: PlanError where the plan in the source cannot be read.
        """
        source = self.candidate_source(secret, known)
        flags = tuple(flag.replace(SECRET, secret) for flag in self.flags)
        return Candidate.from_source(source, Origin(policy="redteam", note=self.id), flags)

    def candidate_source(self, secret: str = "/nonexistent", known: Mapping[str, str] = MappingProxyType({})) -> str:
        """The source with its placeholders filled."""
        source = self.source.replace(SECRET, secret)
        for name in (SEEDED, COMPARED):
            source = source.replace(name, known.get(name, "0x1"))
        return source


def task(shape: str, **fields: Any) -> GemmTask:
    """A task from `MxNxK` and the fields that differ from the defaults."""
    m, n, k = parse_shape(shape)
    return GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})


def label(outcome: Evaluation) -> str:
    """The deciding layer: a status with its rule, stage or test."""
    match outcome:
        case Rejected(rule=rule):
            return f"rejected:{rule}"
        case CompileFailed():
            return "compile_failed"
        case Crashed(stage=stage):
            return f"crashed:{stage}"
        case TimedOut(stage=stage):
            return f"timed_out:{stage}"
        case Wrong(test=test):
            return f"wrong:{test.tier}/{test.name}"
        case Unmeasured(verified_by="nothing"):
            return "not-executed"
        case Unmeasured():
            return "verified"
        case Measured():
            return "measured"


def message_of(outcome: Evaluation) -> str:
    match outcome:
        case Rejected(message=text) | CompileFailed(message=text) | Crashed(message=text) | TimedOut(message=text):
            return text
        case Wrong(test=test):
            return test.message
        case Unmeasured(reason=reason):
            return reason
        case Measured(notes=notes):
            return "; ".join(notes)


def named(layer: str, layers: Layers) -> bool:
    """Whether a label is one of the layers, which may be patterns; a bare status matches every label of that status."""
    return any(fnmatch.fnmatchcase(layer, each) or layer.startswith(f"{each}:") for each in layers)


def leaked(outcome: Evaluation) -> bool:
    """Whether an evaluation, which a model may receive, reveals a forbidden file."""
    text = outcome.model_dump_json()
    return any(marker in text for marker in MARKERS)


def verdict(case: Case, outcome: Evaluation, *, gpu: bool, ratio: float | None = None) -> str:
    """The verdict on a case's evaluation on one backend.

    `ratio`: the measured time over the honest kernel's, or None.
    """
    layer = label(outcome)
    passed = layer in ("verified", "measured")
    if case.honest:
        return "passed" if passed else "FALSE ALARM"
    if leaked(outcome):
        return "LEAKED"
    if layer == "not-executed" and not named(layer, case.layers(gpu)):
        return "not executed"
    if not passed:
        return "refused" if named(layer, case.layers(gpu)) else "refused elsewhere"
    if named(layer, case.layers(gpu)):
        return "harmless"
    if not case.layers(gpu):
        return "not visible here"
    if layer == "measured" and NO_GAIN in case.layers(gpu) and (ratio is None or ratio >= GAIN):
        return "no gain"
    return "PASSED"


def fields_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task that a file's comment names beside its shape."""
    return {key: data[key] for key in ("element", "accumulate", "layout", "arch", "mode") if key in data}
