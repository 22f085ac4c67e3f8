"""What the near side asks of a worker elsewhere. All are records: they survive JSON, and nothing else crosses.

Neither settings nor keys of the near side are among them. A call names candidates by their source, never by a file: the worker
checks, compiles and inspects whatever it runs.

near → far   FarCall | CancelCall
far → near   WorkerHello, once
             for a call: (EventAnswer | TunedAnswer | BuiltAnswer | JudgedAnswer | …) …, and one of EndAnswer | ErrorAnswer
             at any time: WorkingAnswer, the sign of life
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import Tier

CallId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Limit = Annotated[float, Field(gt=0, le=86_400)]

# How candidates are executed: as the methods of `contract.protocols.Sandbox` say.
Execution = Literal["verify", "quick", "full", "screen", "race"]


class Opening(Record):
    """The sandbox that a call needs: limits and options of the near side. `trust_host`: only if the far side allows it."""

    arch: Arch
    tier: Tier = "all"
    trust_host: bool = False
    verify_seed: int | None = None
    race_baselines: Literal["all", "cublaslt"] = "all"
    compile_timeout_s: Limit
    verify_timeout_s: Limit
    time_timeout_s: Limit
    emulate_timeout_s: Limit
    profile_timeout_s: Limit


class OpenCall(Record):
    """Open the sandbox, and say what it runs on: `OpenedAnswer`."""

    do: Literal["open"] = "open"


class CloseCall(Record):
    """Close the sandbox, so that others have the memory of the GPU."""

    do: Literal["close"] = "close"


class BuildCall(Record):
    """Check, compile and inspect: a `BuiltAnswer` or a `JudgedAnswer` for each.

    `ahead`: measure them, too, as their caller will ask next: an `AheadAnswer` for each verdict. `counters`: so are the
    hardware counters of what is not from a schedule, and of the fastest that is. `tuned`: as of `ExecuteCall`.
    """

    do: Literal["build"] = "build"
    candidates: Annotated[tuple[AnyCandidate, ...], Field(min_length=1)]
    task: Task
    ahead: bool = False
    counters: bool = False
    tuned: TunedBaseline | None = None


class ExecuteCall(Record):
    """Verify, and time unless it says `verify`: a `JudgedAnswer` for each. `tuned`: cuBLASLt's best algorithm, if known."""

    do: Literal["execute"] = "execute"
    candidates: Annotated[tuple[AnyCandidate, ...], Field(min_length=1)]
    task: Task
    how: Execution
    tuned: TunedBaseline | None = None


class ProveCall(Record):
    """The emulator's verdict, in at most `seconds`: a `JudgedAnswer`."""

    do: Literal["prove"] = "prove"
    candidate: AnyCandidate
    task: Task
    seconds: float | None = None


class ProfileCall(Record):
    """Hardware counters: a `ProfileAnswer`."""

    do: Literal["profile"] = "profile"
    candidate: AnyCandidate
    task: Task


class LibraryProfileCall(Record):
    """Those of the cuBLASLt kernel with this configuration: a `ProfileAnswer`."""

    do: Literal["profile-library"] = "profile-library"
    detail: str
    task: Task


class ArtifactCall(Record):
    """The compiled code of a candidate: an `ArtifactAnswer`, or none where it cannot be built."""

    do: Literal["artifact"] = "artifact"
    candidate: AnyCandidate
    task: Task


class DoctorCall(Record):
    """What the machine can do: a `DoctorAnswer`."""

    do: Literal["doctor"] = "doctor"


Deed = Annotated[
    OpenCall | CloseCall | BuildCall | ExecuteCall | ProveCall | ProfileCall | LibraryProfileCall | ArtifactCall | DoctorCall,
    Field(discriminator="do"),
]


class FarCall(Record):
    """One call. `pin`: `Environment.key` of the times so far; a worker with another one refuses, since times are not mixed."""

    message: Literal["call"] = "call"
    id: CallId
    opening: Opening
    pin: str | None = None
    deed: Deed


class CancelCall(Record):
    """The answers of a call are no longer wanted."""

    message: Literal["cancel"] = "cancel"
    id: CallId


ToWorker = Annotated[FarCall | CancelCall, Field(discriminator="message")]
TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(ToWorker)
