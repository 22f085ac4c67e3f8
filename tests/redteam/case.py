"""A candidate of the red team: an attack with the layers that may refuse it, or an unusual kernel that must pass."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from contract.base import digest
from contract.candidate import Candidate, Origin
from contract.evaluation import CompileFailed, Crashed, Evaluation, Measured, Rejected, TimedOut, Unmeasured, Wrong
from contract.task import GemmTask, parse_shape

NO_GAIN = "no-gain"  # a layer: the kernel was measured and is no faster than the honest one, because its trick found nothing
GAIN = 0.97  # of the honest kernel's time, below which an attack has gained something
SECRET = "CUDAL2_SECRET_FILE"  # stands in a source for the path of a file that no compiler may open
SEEDED = "CUDAL2_SEEDED"  # for the first eight bytes of every A that the public code makes of the timer's seed
COMPARED = "CUDAL2_COMPARED"  # for a mask of the sets that the public code draws for comparison
MARKERS = ("file-that-nobody-may-read", "root:x:0:0", "THE-FILE-EXISTS")  # what a leak of it shows in an outcome

Layers = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """`task`: where there is a clock; `small`: on the emulator.

    `gpu`, `emulator`: the layers that may refuse it there, as `label` names them; empty where the backend cannot see it.
    `base`: the honest kernel of the same tile whose time is the measure; None where time does not matter. `hangs`: whether
    it is there to be stopped, so that it may be given little time. `gain`: what the author of a blind attack expects.
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

    @property
    def id(self) -> str:
        return f"{self.group}/{self.name}"

    def layers(self, gpu: bool) -> Layers:
        return self.gpu if gpu else self.emulator

    def task_on(self, gpu: bool) -> GemmTask:
        return self.task if gpu else self.small

    @property
    def digest(self) -> str:
        """Hash of what is evaluated, so that a changed case is evaluated anew."""
        return digest([self.source, list(self.flags), self.task.id, self.small.id])

    def candidate(self, secret: str = "/nonexistent", known: Mapping[str, str] = MappingProxyType({})) -> Candidate:
        """The candidate with its plan. `known`: what an attacker knows beforehand, for `SEEDED` and `COMPARED`.

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
    """The layer that spoke: a status, with the rule, the stage or the test that decided."""
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
    """Whether a label is one of the layers, which may be patterns; a bare status stands for all labels that it begins."""
    return any(fnmatch.fnmatchcase(layer, each) or layer.startswith(f"{each}:") for each in layers)


def leaked(outcome: Evaluation) -> bool:
    """Whether an outcome, which a model is sent, tells something of a file that its source may not read."""
    text = outcome.model_dump_json()
    return any(marker in text for marker in MARKERS)


def verdict(case: Case, outcome: Evaluation, *, gpu: bool, ratio: float | None = None) -> str:
    """What came of a case on a backend: `as expected`, or what is not.

    `ratio`: the measured time over the honest kernel's, None where there is none.
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
