"""What became of a candidate. Each outcome is a class of its own; none has a field that looks like a result it lacks."""

from typing import Annotated, Literal

from pydantic import Field

from contract.base import Record
from contract.inspection import Inspection
from contract.ruler import Ruler
from contract.task import TimingMode


class Environment(Record):
    """Where a measurement was taken."""

    gpu: str
    arch: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    driver: str
    cuda: str
    nvrtc: str
    cublas: str
    torch: str | None = None
    python: str
    platform: str


class Telemetry(Record):
    """GPU state sampled around the rounds. Units: MHz, °C, W."""

    sm_clock_mhz: tuple[float, ...] = ()
    memory_clock_mhz: tuple[float, ...] = ()
    temperature_c: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()
    throttle_reasons: tuple[str, ...] = ()


class TestResult(Record):
    """One verification test. `worst`: the largest error divided by its bound (0 where the test is exact and held).

    `seed`: what its data and order were drawn from; `verify --seed` repeats the test with it. None in older records.
    """

    __test__ = False  # not a pytest class

    tier: str
    name: str
    passed: bool
    worst: float = 0.0
    message: str = ""
    seed: int | None = None


class Timing(Record):
    """Device time of one contender; `samples_us[i]` was taken in round i, as were all other contenders' samples i."""

    name: str
    samples_us: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    detail: str = ""


class SideFigures(Record):
    """Figures reported apart; None where a quick measurement left them out. Unit: microseconds.

    `wall_clock_us`: host clock around one synchronised call, as the CUDA-L2 paper's scripts measured.
    `without_programmatic_us`: the same kernel launched without programmatic serialization.
    """

    host_launch_us: float | None = None
    hot_l2_us: float | None = None
    wall_clock_us: float | None = None
    without_programmatic_us: float | None = None


class Prediction(Record):
    """A modelled time; never compared with a measured one silently."""

    predicted_us: float
    model: str
    floor_us: float

    @property
    def is_floor(self) -> bool:
        """Whether no model knows the candidate, so that the roofline stands in: it says only that nothing is faster."""
        return self.predicted_us == self.floor_us


class Rejected(Record):
    status: Literal["rejected"] = "rejected"
    rule: str
    message: str
    line: int | None = None


class CompileFailed(Record):
    status: Literal["compile_failed"] = "compile_failed"
    message: str
    log: str


class Crashed(Record):
    """The candidate ended its worker or poisoned its context."""

    status: Literal["crashed"] = "crashed"
    stage: str
    message: str
    inspection: Inspection | None = None


class TimedOut(Record):
    """`message`: what the time went into, where that is known."""

    status: Literal["timed_out"] = "timed_out"
    stage: str
    limit_s: float
    message: str = ""
    inspection: Inspection | None = None


# Tests of the emulator that say what of a large task was run.
REDUCED, FULL_SIZE, NOT_COVERED = "reduced", "full-size", "not-covered"
# The tier of the test that fails where a GPU found a candidate right and the emulator found a fault.
WITNESS = "witness"


class Unmeasured(Record):
    """Built but not timed. `verified_by` says whether and where it was executed and found right.

    `reason`: why a backend that was there could not execute it; else empty.
    """

    status: Literal["unmeasured"] = "unmeasured"
    verified_by: Literal["nothing", "emulator", "gpu"]
    reason: str = ""
    tests: tuple[TestResult, ...] = ()
    prediction: Prediction
    inspection: Inspection

    @property
    def in_part(self) -> bool:
        """Whether less than the whole task was run."""
        return ran_in_part(self.tests)


def ran_in_part(tests: tuple[TestResult, ...]) -> bool:
    """Whether the emulator's tests say that less than the whole task was run."""
    return any(test.name in (FULL_SIZE, NOT_COVERED) for test in tests)


class Witness(Record):
    """What a second backend says of a candidate that a GPU found right. If it finds a fault, the candidate is `Wrong`.

    `agreed`: every test passed. `in-part`: every test passed that was run; a large task is not run whole. `unavailable`: the
    backend could not execute the candidate, `reason` says why.
    """

    status: Literal["agreed", "in-part", "unavailable"]
    by: Literal["emulator"] = "emulator"
    tests: tuple[TestResult, ...] = ()
    reason: str = ""

    @property
    def confirms(self) -> bool:
        """Whether the candidate was executed and found right."""
        return self.status != "unavailable"


class Measured(Record):
    """Verified and timed: all samples of the candidate and of every baseline of the same rounds.

    `ruler`: how it was measured, None in older records. `witness`: None where no second backend was asked.
    """

    status: Literal["measured"] = "measured"
    mode: TimingMode
    tests: tuple[TestResult, ...]
    timing: Timing
    baselines: tuple[Timing, ...]
    side: SideFigures = SideFigures()
    telemetry: Telemetry = Telemetry()
    environment: Environment
    inspection: Inspection
    notes: tuple[str, ...] = ()
    ruler: Ruler | None = None
    witness: Witness | None = None


class Wrong(Record):
    """Failed `test`. `refused`: the measurement of a candidate that a GPU found right and the second witness did not."""

    status: Literal["wrong"] = "wrong"
    test: TestResult
    tests: tuple[TestResult, ...]
    inspection: Inspection
    refused: Measured | None = None


Evaluation = Annotated[
    Rejected | CompileFailed | Crashed | TimedOut | Wrong | Unmeasured | Measured, Field(discriminator="status")
]

# The baseline that counts, and the others, in the order a report shows them.
AUTOTUNED = "cublaslt-autotuning"
HEURISTIC = "cublaslt-heuristic"
CUBLAS = "cublas"
TORCH = "torch.matmul"
BASELINES = (TORCH, CUBLAS, HEURISTIC, AUTOTUNED)
