"""What became of a candidate. Each outcome is a class of its own; none has a field that looks like a result it lacks.

Every outcome answers for itself, by properties that are not stored:
`executed`: the candidate ran and its outputs were judged. `passed`: it was executed and found right. `failed`: it has a
fault. A candidate that was built and not executed neither passed nor failed. `fault`: what went wrong, in one line; empty
where nothing did. `headline`: the outcome in one line, without a time. `time_us`: the median of the measured times, None
where nothing was measured. `predicted_us`: the modelled time, None where there is none. `tests` and `inspection` are fields
or, where an outcome comes before them, empty.
"""

import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.ruler import Ruler
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.settings.options import Effort


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

    @property
    def key(self) -> str:
        """What decides whether times of different days may be compared: chip, driver, toolkit and cuBLAS."""
        return f"{self.gpu} driver-{self.driver} toolkit-{self.nvrtc} cublas-{self.cublas}"


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
    `symptoms`: of a failed test, what points at the cause; None where nothing was looked at, and in older records.
    """

    __test__ = False  # not a pytest class

    tier: str
    name: str
    passed: bool
    worst: float = 0.0
    message: str = ""
    seed: int | None = None
    symptoms: Symptoms | None = None


# Of 85 full measurements on an H200 that did nothing else, the most unsteady one has 0.05 (the stored sweep of 2026-11-22).
UNSTEADY = 0.10


class Timing(Record):
    """Device time of one contender; `samples_us[i]` was taken in round i, as were all other contenders' samples i."""

    name: str
    samples_us: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    detail: str = ""

    @property
    def unsteadiness(self) -> float:
        """The range of the middle half of the samples over their median; 0 for fewer than four, which tell nothing."""
        if len(self.samples_us) < 4:
            return 0.0
        low, median, high = statistics.quantiles(self.samples_us, n=4)
        return (high - low) / median


class SideFigures(Record):
    """Figures reported apart; None where a quick measurement left them out. Unit: microseconds.

    `wall_clock_us`: host clock around one synchronised call, as the CUDA-L2 paper's scripts measured.
    `without_programmatic_us`: the same kernel launched without programmatic serialization.
    """

    host_launch_us: float | None = None
    hot_l2_us: float | None = None
    wall_clock_us: float | None = None
    without_programmatic_us: float | None = None


NOT_PREDICTED = "not predicted"  # how the model's name begins where it says why there is no prediction
NOT_FITTED = "rates not fitted"  # how the model's name ends where nobody measured the rates of the chip


NEGLIGIBLE_US = 0.005  # of a part of a time


class LaunchTime(Record):
    """The predicted time of one launch in the order in which it passes. Unit: microseconds.

    `parts`: by name, one after another, so that they add up. `launch`: until its CTAs are placed. `prologue`: until operands
    may be read, as far as the launch before does not hide it. `fill`: until the first product. `main loop`: until the last one,
    over all waves. `body`: the two of a launch without products. `exchange`: until the last partial sum has passed from one CTA
    to another. `tail`: until the last store is visible.
    `terms`: as of `Prediction`, of this launch. `waves`: of CTAs, one after another on the busiest SM.
    """

    entry: str
    parts: dict[str, float]
    terms: dict[str, float] = {}
    waves: int = 1

    @property
    def time_us(self) -> float:
        return sum(self.parts.values())

    @property
    def said(self) -> str:
        """The parts in words, in their order."""
        return ", ".join(f"{name} {us:.2f}" for name, us in self.parts.items() if us >= NEGLIGIBLE_US)


class Prediction(Record):
    """A modelled time; never compared with a measured one silently.

    `model`: its name; of a floor, `NOT_PREDICTED` with the reason where a model knows one. It ends with `NOT_FITTED` where the
    rates of the chip come from its data sheet.
    `terms`: the microseconds that each resource would need alone, by its name; empty where the model has no terms.
    `correction`: a fitted factor that `predicted_us` contains.
    `launches`: by the timing model, whose times add up to `replayed_us`; empty where it does not know the kernel, and in older
    records. Where `model` is another one, they explain the kernel and not `predicted_us`.
    """

    predicted_us: float
    model: str
    floor_us: float
    terms: dict[str, float] = {}
    correction: float = 1.0
    launches: tuple[LaunchTime, ...] = ()

    @property
    def replayed_us(self) -> float:
        """The sum of all parts of all launches."""
        return sum(launch.time_us for launch in self.launches)

    @property
    def is_floor(self) -> bool:
        """Whether no model knows the candidate, so that the roofline stands in: it says only that nothing is faster."""
        return self.predicted_us == self.floor_us

    @property
    def largest_terms(self) -> list[tuple[str, float]]:
        """The terms, largest first."""
        return sorted(self.terms.items(), key=lambda term: -term[1])


FAULT_CHARS = 200


class _Faulty(Record):
    """What the outcomes with a fault have in common."""

    status: str

    @property
    def executed(self) -> bool:
        return False

    @property
    def passed(self) -> bool:
        return False

    @property
    def failed(self) -> bool:
        return True

    @property
    def fault(self) -> str:
        line = " ".join(self._reason().split())
        return line if len(line) <= FAULT_CHARS else line[: FAULT_CHARS - 1] + "…"

    @property
    def headline(self) -> str:
        words = self.status.replace("_", " ")
        return f"{words}: {self.fault}" if self.fault else words

    @property
    def time_us(self) -> None:
        return None

    @property
    def predicted_us(self) -> None:
        return None

    def _reason(self) -> str:
        raise NotImplementedError


class Rejected(_Faulty):
    tests: ClassVar[tuple[TestResult, ...]] = ()
    inspection: ClassVar[None] = None

    status: Literal["rejected"] = "rejected"
    rule: str
    message: str
    line: int | None = None

    def _reason(self) -> str:
        return f"{self.rule}: {self.message}"


class CompileFailed(_Faulty):
    tests: ClassVar[tuple[TestResult, ...]] = ()
    inspection: ClassVar[None] = None

    status: Literal["compile_failed"] = "compile_failed"
    message: str
    log: str

    def _reason(self) -> str:
        return self.message


# What the emulator finds in a kernel that a GPU refused; None where it was not asked or finds nothing.
Emulated = Annotated[TestResult | None, Field(exclude_if=lambda found: found is None)]


class Crashed(_Faulty):
    """The candidate ended its worker or poisoned its context."""

    tests: ClassVar[tuple[TestResult, ...]] = ()

    status: Literal["crashed"] = "crashed"
    stage: str
    message: str
    inspection: Inspection | None = None
    emulated: Emulated = None

    def _reason(self) -> str:
        return f"while {self.stage}: {self.message}"


class TimedOut(_Faulty):
    """`message`: what the time went into, where that is known. `symptoms`: where warps were then, where that is known."""

    tests: ClassVar[tuple[TestResult, ...]] = ()

    status: Literal["timed_out"] = "timed_out"
    stage: str
    limit_s: float
    message: str = ""
    inspection: Inspection | None = None
    symptoms: Symptoms | None = None
    emulated: Emulated = None

    def _reason(self) -> str:
        return f"{self.stage} took more than {self.limit_s:g} s{f', {self.message}' if self.message else ''}"


class _Faultless(Record):
    """What the outcomes without a fault have in common."""

    @property
    def failed(self) -> bool:
        return False

    @property
    def fault(self) -> str:
        return ""


# Tests of the emulator that say what of a large task was run.
REDUCED, FULL_SIZE, NOT_COVERED = "reduced", "full-size", "not-covered"
# The tier of the test that fails where a GPU found a candidate right and the emulator found a fault.
WITNESS = "witness"


class Unmeasured(_Faultless):
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
    def executed(self) -> bool:
        return self.verified_by != "nothing"

    @property
    def passed(self) -> bool:
        return self.executed

    @property
    def time_us(self) -> None:
        return None

    @property
    def predicted_us(self) -> float:
        return self.prediction.predicted_us

    @property
    def headline(self) -> str:
        """What verified the kernel, or why nothing did."""
        match self.verified_by:
            case "gpu":
                return "verified by a GPU"
            case "emulator":
                return f"verified by the emulator{' in part' if self.in_part else ''}"
            case "nothing":
                return f"verified by nothing: {self.reason}" if self.reason else "not executed"

    @property
    def in_part(self) -> bool:
        """Whether some tests ran less than the whole task."""
        return ran_in_part(self.tests)


def ran_in_part(tests: Sequence[TestResult]) -> bool:
    """Whether some of the emulator's tests ran less than the whole task: a part of the grid, or a smaller size.

    All outputs may have been compared all the same: of a large task the whole grid is run once where that is quick.
    """
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


class Measured(_Faultless):
    """Verified and timed: all samples of the candidate and of every baseline of the same rounds.

    `ruler`: how it was measured, None in older records. `witness`: None where no second backend was asked.
    `effort`: how thoroughly it was verified and timed, None in older records; times of different efforts are not compared.
    `plain`: the same kernel launched without programmatic launch in the same rounds; None where that was not measured or
    the plan has no programmatic launch. In server mode, where no kernel precedes, only the launch attribute differs.
    `modelled`: what the timing model says of the same kernel, for the parts of its time; None where it was not asked.
    """

    status: Literal["measured"] = "measured"
    mode: TimingMode
    effort: Effort | None = None
    tests: tuple[TestResult, ...]
    timing: Timing
    plain: Timing | None = None
    baselines: tuple[Timing, ...]
    side: SideFigures = SideFigures()
    telemetry: Telemetry = Telemetry()
    environment: Environment
    inspection: Inspection
    notes: tuple[str, ...] = ()
    ruler: Ruler | None = None
    witness: Witness | None = None
    modelled: Prediction | None = None

    @property
    def executed(self) -> bool:
        return True

    @property
    def passed(self) -> bool:
        return True

    @property
    def time_us(self) -> float:
        return statistics.median(self.timing.samples_us)

    @property
    def predicted_us(self) -> None:
        return None

    @property
    def headline(self) -> str:
        return "measured"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and what the samples themselves show."""
        worst = max((self.timing, *self.baselines), key=lambda timing: timing.unsteadiness)
        if worst.unsteadiness <= UNSTEADY:
            return self.notes
        said = (
            f"times were unsteady: the middle half of {worst.name}'s {len(worst.samples_us)} samples spreads over "
            f"{100 * worst.unsteadiness:.0f} % of their median; others may be using this GPU, so measure again when it is free"
        )
        return (*self.notes, said)


class Wrong(_Faulty):
    """Failed `test`. `refused`: the measurement of a candidate that a GPU found right and the second witness did not."""

    status: Literal["wrong"] = "wrong"
    test: TestResult
    tests: tuple[TestResult, ...]
    inspection: Inspection
    refused: Measured | None = None
    emulated: Emulated = None

    @property
    def executed(self) -> bool:
        return True

    def _reason(self) -> str:
        return f"{self.test.tier}/{self.test.name}: {self.test.message}"


Evaluation = Annotated[
    Rejected | CompileFailed | Crashed | TimedOut | Wrong | Unmeasured | Measured, Field(discriminator="status")
]

# The baseline that counts, and the others, in the order a report shows them.
AUTOTUNED = "cublaslt-autotuning"
HEURISTIC = "cublaslt-heuristic"
CUBLAS = "cublas"
TORCH = "torch.matmul"
BASELINES = (TORCH, CUBLAS, HEURISTIC, AUTOTUNED)
# What PyTorch makes of a module, of the task's arithmetic; the fastest of them counts. Eager includes the host's time.
EAGER = "eager"
EAGER_GRAPH = "eager-cuda-graph"
COMPILED = "compiled"
MAX_AUTOTUNE = "compiled-max-autotune"
MODULE_BASELINES = (EAGER, EAGER_GRAPH, COMPILED, MAX_AUTOTUNE)
