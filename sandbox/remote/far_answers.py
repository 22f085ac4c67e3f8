"""What a worker elsewhere answers. What each call gets: `calls.py`."""

import base64
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import (
    CompilerMissing,
    Cudal2Error,
    DeviceUnavailable,
    MachineError,
    ProfileFailed,
    ProfilerUnavailable,
    UsageError,
    WorkerError,
)
from cudal2_agent.contract.events import Notice, StageStarted, WorkerRestarted
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Environment, Evaluation
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.remote.calls import CallId, Execution

# What is asked of a candidate once it is built.
Ahead = Execution | Literal["prove", "profile", "artifact"]

MAX_ARTIFACT_BYTES = 40 << 20  # as base64 it fits in a line of `frames.MAX_FRAME_BYTES`


class WorkerHello(Record):
    """Who answers. `arch`: of tasks whose user names none. `code`: hash of the sandbox's sources."""

    message: Literal["hello"] = "hello"
    protocol: int
    version: str
    records: str
    code: str
    host: str
    device: str
    arch: Arch


class MachineCheck(Record):
    """What `doctor` found out about one part of a machine.

    `needed`: `optimize` cannot work without it. Otherwise `detail` says what works less well.
    """

    name: str
    ok: bool
    needed: bool
    detail: str
    remedy: str = ""


class OpenedAnswer(Record):
    """What the sandbox runs on, as its properties say. `host`: the machine."""

    message: Literal["opened"] = "opened"
    host: str
    chip: Chip
    environment: Environment | None
    can_execute: bool
    can_measure: bool
    builds_cutlass: bool = False


class BuiltAnswer(Record):
    """`position`: of the candidate in its call. `artifact_path` of the record is a path of the far side."""

    message: Literal["built"] = "built"
    position: int
    built: Built


class JudgedAnswer(Record):
    """`worked_s`: what the far side worked on the call so far, without what it waited for the GPU."""

    message: Literal["judged"] = "judged"
    position: int
    evaluation: Evaluation
    worked_s: float = 0.0


class ProfileAnswer(Record):
    message: Literal["profiled"] = "profiled"
    profile: Profile


class ArtifactAnswer(Record):
    """`packed`: the compiled code in base64."""

    message: Literal["artifact"] = "artifact"
    packed: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]

    @classmethod
    def of(cls, content: bytes) -> "ArtifactAnswer":
        return cls(packed=base64.b64encode(content).decode())

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.packed + "=" * (-len(self.packed) % 4))


class AheadAnswer(Record):
    """What a later call would be answered. `worked_s`: on this one."""

    message: Literal["ahead"] = "ahead"
    position: int
    how: Ahead
    found: Annotated[JudgedAnswer | ProfileAnswer | ArtifactAnswer, Field(discriminator="message")]
    worked_s: float


class DoctorAnswer(Record):
    message: Literal["checks"] = "checks"
    checks: tuple[MachineCheck, ...]


class TunedAnswer(Record):
    """cuBLASLt was tuned for the task, for the near side to keep."""

    message: Literal["tuned"] = "tuned"
    baseline: TunedBaseline


class EventAnswer(Record):
    message: Literal["event"] = "event"
    event: Annotated[StageStarted | WorkerRestarted | Notice, Field(discriminator="event")]


class EndAnswer(Record):
    """The call has all its answers."""

    message: Literal["end"] = "end"
    worked_s: float = 0.0


class ErrorAnswer(Record):
    """The call failed, and no candidate is to blame. `kind`: the class of the error."""

    message: Literal["error"] = "error"
    kind: str
    reason: str
    log: str = ""

    @classmethod
    def of(cls, error: Cudal2Error) -> "ErrorAnswer":
        kind = next((name for name, one in _ERRORS.items() if isinstance(error, one)), "WorkerError")
        return cls(kind=kind, reason=str(error), log=error.log[-_LOG_CHARS:])

    def error(self, host: str) -> Cudal2Error:
        return _ERRORS.get(self.kind, WorkerError)(f"{self.reason} (on {host})", log=self.log)


_LOG_CHARS = 1 << 16
# The first class that fits: those that are told apart come before the classes that they belong to.
_ERRORS: dict[str, type[Cudal2Error]] = {
    "CompilerMissing": CompilerMissing,
    "DeviceUnavailable": DeviceUnavailable,
    "ProfilerUnavailable": ProfilerUnavailable,
    "MachineError": MachineError,
    "ProfileFailed": ProfileFailed,
    "UsageError": UsageError,
    "WorkerError": WorkerError,
}

FarAnswer = Annotated[
    OpenedAnswer
    | BuiltAnswer
    | JudgedAnswer
    | AheadAnswer
    | ProfileAnswer
    | ArtifactAnswer
    | DoctorAnswer
    | TunedAnswer
    | EventAnswer
    | EndAnswer
    | ErrorAnswer,
    Field(discriminator="message"),
]


class CallAnswer(Record):
    """An answer of a call."""

    message: Literal["told"] = "told"
    id: CallId
    answer: FarAnswer


class WorkingAnswer(Record):
    """The calls in progress, with the seconds that the worker has worked on each."""

    message: Literal["working"] = "working"
    worked_s: dict[CallId, float] = {}


FromWorker = Annotated[CallAnswer | WorkingAnswer, Field(discriminator="message")]
FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(FromWorker)
