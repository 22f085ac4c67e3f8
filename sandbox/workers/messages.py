"""The messages between a worker and its parent: one JSON record per line, over the worker's stdin and stdout; never pickle.

parent → worker   Evaluate | CandidateBatch
worker → parent   Ready | Failed once
                  for an Evaluate: (StageEntered | Tuned) … and one of Done | Verified | NotExecuted | Failed
                  for a CandidateBatch: (StageEntered | Tuned | Done) …, one Done for each candidate, and BatchEnded | Failed
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import Cudal2Error, DeviceUnavailable, MachineError, WorkerError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Environment, Evaluation, Prediction, TestResult
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.settings.options import Effort, TimeOptions, VerifyOptions

MAX_LINE_BYTES = 64 * 1024**2

# `prepare`: what a task and a cold worker need before a candidate can run; no candidate is to blame for its end, and none of
# its time is the candidate's.
Stage = Literal["prepare", "load", "verify", "time", "recheck"]


class Reduced(Record):
    """The same schedule, written and built for a smaller task, whose whole grids the emulator runs."""

    built: Built
    task: Task


class Evaluate(Record):
    """Verify a built candidate and, where `time` is given, measure it; the emulator never measures.

    `effort`: what the measurement is recorded as. `tuned`: cuBLASLt's best algorithm where it is known.
    `reduced`: what the emulator verifies besides a large task. Without it, the same source is tried at a smaller size.
    """

    message: Literal["evaluate"] = "evaluate"
    built: Built
    task: Task
    verify: VerifyOptions
    time: TimeOptions | None = None
    effort: Effort | None = None
    tuned: TunedBaseline | None = None
    reduced: Reduced | None = None

    def limit_s(self, stage: Stage | None) -> float:
        """Wall-clock that a stage may take; None stands for the moment before the first."""
        return _limit_s(stage, self.verify, self.time) + references_s(self.task, stage)


class CandidateBatch(Record):
    """Built candidates of one task: screened one after another, or raced against each other.

    Answers name a candidate by its position in `built`.
    """

    message: Literal["batch"] = "batch"
    effort: Literal["screen", "race"]
    built: tuple[Built, ...] = Field(min_length=1)
    task: Task
    verify: VerifyOptions
    time: TimeOptions
    tuned: TunedBaseline | None = None

    def limit_s(self, stage: Stage | None) -> float:
        """As `Evaluate.limit_s`."""
        return _limit_s(stage, self.verify, self.time) + references_s(self.task, stage)


def references_s(task: Task, stage: Stage | None) -> float:
    """What the sandbox's own references of a module may take in a stage, on a GPU; no candidate is to blame for it."""
    if not isinstance(task, ModuleTask) or stage in (None, "load"):
        return 0.0
    return REFERENCE_S_A_GB * task.operand_bytes / 1e9 + REFERENCE_S_A_TFLOP * task.flops / 1e12


def _limit_s(stage: Stage | None, verify: VerifyOptions, time: TimeOptions | None) -> float:
    match stage:
        case "verify" | "recheck":
            return verify.timeout_s
        case "time" if time is not None:
            return time.timeout_s
        case "prepare":
            return PREPARE_TIMEOUT_S
        case _:
            return LOAD_TIMEOUT_S


LOAD_TIMEOUT_S = 60.0
REFERENCE_S_A_GB, REFERENCE_S_A_TFLOP = 10.0, 60.0  # thirty references: memory is read fifty times for each, float64 is slow
PREPARE_TIMEOUT_S = 600.0  # of the sandbox's own work, which counts against no candidate
TIME_SHARE = 0.9  # of a stage's limit, after which the emulator stops its run, before the parent stops the emulator


class Ready(Record):
    """The worker holds its GPU. Where it emulates one, `environment` is None and `chip` is the reference chip of its arch."""

    message: Literal["ready"] = "ready"
    environment: Environment | None
    chip: Chip


class StageEntered(Record):
    """The candidate's next stage has begun; its deadline runs from here. `position`: of the candidate in a batch."""

    message: Literal["stage"] = "stage"
    stage: Stage
    position: int = 0


class Tuned(Record):
    """cuBLASLt was tuned for the task, for the parent to keep."""

    message: Literal["tuned"] = "tuned"
    baseline: TunedBaseline


class Done(Record):
    """The candidate's outcome. `healthy`: whether the worker can go on; if not, it exits by itself."""

    message: Literal["done"] = "done"
    evaluation: Evaluation
    healthy: bool = True
    position: int = 0


class BatchEnded(Record):
    """Every candidate of a batch has its outcome."""

    message: Literal["ended"] = "ended"


class Verified(Record):
    """Every test passed and no time was asked for. `prediction`: the timing model's, None where it has none."""

    message: Literal["verified"] = "verified"
    tests: tuple[TestResult, ...]
    prediction: Prediction | None = None


class NotExecuted(Record):
    """The backend did not execute this candidate, which may be right or wrong. `prediction`: as of `Verified`."""

    message: Literal["not_executed"] = "not_executed"
    reason: str
    prediction: Prediction | None = None


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


Request = Annotated[Evaluate | CandidateBatch, Field(discriminator="message")]
_REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
Reply = Annotated[
    Ready | StageEntered | Tuned | Done | BatchEnded | Verified | NotExecuted | Failed, Field(discriminator="message")
]
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


def decode_request(line: bytes) -> Request:
    """Raises: ProtocolError."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as exc:
        raise ProtocolError(f"not a request: {line[:120]!r}") from exc
