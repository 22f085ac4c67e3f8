"""The messages between a worker and its parent: one JSON record per line, over the worker's stdin and stdout; never pickle.

parent → worker   Evaluate
worker → parent   Ready | Failed once, then for every Evaluate: StageEntered … and one of Done | Verified | NotExecuted | Failed
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from contract.base import Record
from contract.build import Built
from contract.chip import Chip
from contract.errors import Cudal2Error, DeviceUnavailable, MachineError, WorkerError
from contract.evaluation import Environment, Evaluation, TestResult
from contract.options import TimeOptions, VerifyOptions
from contract.task import GemmTask

MAX_LINE_BYTES = 64 * 1024**2

Stage = Literal["load", "verify", "time", "recheck"]


class Reduced(Record):
    """The same schedule, written and built for a smaller task, whose whole grids the emulator runs."""

    built: Built
    task: GemmTask


class Evaluate(Record):
    """Verify a built candidate and, where `time` is given, measure it; the emulator never measures.

    `reduced`: what the emulator verifies besides a large task. Without it, the same source is tried at a smaller size.
    """

    message: Literal["evaluate"] = "evaluate"
    built: Built
    task: GemmTask
    verify: VerifyOptions
    time: TimeOptions | None = None
    reduced: Reduced | None = None

    def limit_s(self, stage: Stage | None) -> float:
        """Wall-clock that a stage may take; None stands for the moment before the first."""
        match stage:
            case "verify" | "recheck":
                return self.verify.timeout_s
            case "time" if self.time is not None:
                return self.time.timeout_s
            case _:
                return LOAD_TIMEOUT_S


LOAD_TIMEOUT_S = 60.0
TIME_SHARE = 0.9  # of a stage's limit, after which the emulator stops its run, before the parent stops the emulator


class Ready(Record):
    """The worker holds its GPU. Where it emulates one, `environment` is None and `chip` is the reference chip of its arch."""

    message: Literal["ready"] = "ready"
    environment: Environment | None
    chip: Chip


class StageEntered(Record):
    """The candidate's next stage has begun; its deadline runs from here."""

    message: Literal["stage"] = "stage"
    stage: Stage


class Done(Record):
    """The candidate's outcome. `healthy`: whether the worker can go on; if not, it exits by itself."""

    message: Literal["done"] = "done"
    evaluation: Evaluation
    healthy: bool = True


class Verified(Record):
    """Every test passed and no time was asked for."""

    message: Literal["verified"] = "verified"
    tests: tuple[TestResult, ...]


class NotExecuted(Record):
    """The backend cannot execute this candidate, which may be right or wrong."""

    message: Literal["not_executed"] = "not_executed"
    reason: str


class Failed(Record):
    """This project or the machine failed. The worker exits after this message.

    `kind`: `internal` for an error while a candidate was evaluated, which others may not trigger; for the other kinds no
    candidate is to blame.
    """

    message: Literal["failed"] = "failed"
    kind: Literal["device", "machine", "worker", "internal"]
    reason: str
    log: str = ""

    def error(self) -> Cudal2Error:
        match self.kind:
            case "device":
                return DeviceUnavailable(self.reason, log=self.log)
            case "machine":
                return MachineError(self.reason, log=self.log)
            case "worker" | "internal":
                return WorkerError(self.reason, log=self.log)


Reply = Annotated[Ready | StageEntered | Done | Verified | NotExecuted | Failed, Field(discriminator="message")]
_REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)


class ProtocolError(Exception):
    """A line that is no message of this protocol."""


def encode(record: Record) -> bytes:
    """One line, its newline included."""
    return record.model_dump_json().encode() + b"\n"


def decode_reply(line: bytes) -> Reply:
    """Raises: ProtocolError."""
    try:
        return _REPLY.validate_json(line)
    except ValidationError as exc:
        raise ProtocolError(f"not a reply: {line[:120]!r}") from exc


def decode_request(line: bytes) -> Evaluate:
    """Raises: ProtocolError."""
    try:
        return Evaluate.model_validate_json(line)
    except ValidationError as exc:
        raise ProtocolError(f"not a request: {line[:120]!r}") from exc
