"""The records of a kernel library: what campaigns found, as entries that a program can launch without searching.

An entry names a kernel by its schedule, from which a family of `policies/schedule` writes the source again, or by its source.
Beside its entries a library holds algorithms of cuBLASLt, for tasks where AutoTuning is faster than any kernel.
"""

import math
from datetime import date
from typing import Literal

from pydantic import Field, model_validator

from cudal2_agent.contract.base import Name, Record, RunId, Sha256, digest
from cudal2_agent.contract.plan.expression import holds
from cudal2_agent.contract.plan.plan import LaunchPlan, ResolvedPlan
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup


class EntryEvaluation(Record):
    """What was measured of a kernel, in the race that chose it. Unit: microseconds.

    `speedup`: over cuBLASLt-AutoTuning, paired in the same rounds, of plain launches: an eager program's preceding kernel
    triggers nothing early. `baselines_us`: median of each baseline. `worst_error`: largest error of the accuracy tests over its
    bound. `environment`: `Environment.key` of the measurement.
    """

    time_us: float
    speedup: Speedup
    baselines_us: dict[str, float]
    worst_error: float | None
    environment: str
    run_id: RunId
    commit: str = ""
    measured: date


class LibraryEntry(Record):
    """One kernel for one task on one chip. Either `schedule` or `source` says what it is.

    `source_sha256`: of the whole text that is compiled; an entry whose text differs today is stale. `cubin_sha256`: of the
    built kernel that lies beside it, or None. `programmatic`: whether it is launched with programmatic stream serialization.
    `autotuned`: the cuBLASLt algorithm that AutoTuning chose for the task in the words of `TunedBaseline.detail`, or None.
    Raises: ValueError for an entry with neither schedule nor source, or with both.
    """

    task: GemmTask
    chip: str
    schedule: dict[str, ScheduleValue] | None = None
    source: str | None = None
    source_sha256: Sha256
    cubin_sha256: Sha256 | None = None
    programmatic: bool = False
    autotuned: str | None = None
    evaluation: EntryEvaluation
    licence: str = "Apache-2.0"

    @model_validator(mode="after")
    def _named_once(self) -> "LibraryEntry":
        if (self.schedule is None) == (self.source is None):
            raise ValueError("an entry has a schedule or a source, and not both")
        return self

    @property
    def id(self) -> str:
        """Address of the entry by its content."""
        return digest(self.model_dump(mode="json"), 32)

    @property
    def nvrtc(self) -> str:
        """The version of NVRTC whose kernel was measured, such as `13.0`; empty where the environment names none."""
        return nvrtc_in(self.evaluation.environment)

    @property
    def wins(self) -> bool:
        """Whether the lower end of its interval beats AutoTuning."""
        return self.evaluation.speedup.low > 1.0


class StoredAlgorithm(Record):
    """The algorithm of cuBLASLt that AutoTuning chose for a task on one chip, in the task's own layout. Unit: microseconds.

    `words`: its configuration as `TunedBaseline.detail` has it, without how it was chosen. `opaque`: cuBLASLt's record of it as
    hexadecimal digits, valid for the cuBLAS of `environment` only; None where it is not known. `time_us`: AutoTuning's median.
    `torch_us`, `heuristic_us`: medians of torch.matmul and of cuBLASLt's heuristic in the same race; None where not measured.
    Raises: ValueError for words of another layout than the task's, or a task that does not accumulate in f32 or has an
    activation, as every gated one has.
    """

    kind: Literal["algorithm"] = "algorithm"
    task: GemmTask
    chip: str
    words: str
    opaque: str | None = Field(default=None, pattern="^([0-9a-f]{2})+$")
    time_us: float
    torch_us: float | None
    heuristic_us: float | None
    environment: str
    run_id: RunId | Literal[""]
    commit: str = ""
    measured: date

    @model_validator(mode="after")
    def _of_the_task(self) -> "StoredAlgorithm":
        task = self.task
        plain = task.accumulate is AccumulatorType.F32 and task.activation is None
        if not self.words.startswith(f"layout {task.layout},") or not plain:
            raise ValueError(
                "a stored algorithm multiplies the layout of its task, accumulates in f32 and applies no activation"
            )
        return self

    @property
    def id(self) -> str:
        """Address of the algorithm by its content."""
        return digest(self.model_dump(mode="json"), 32)

    @property
    def cublas(self) -> str:
        """The version of cuBLAS that it belongs to, as `Environment.cublas`."""
        return self.environment.rpartition(" cublas-")[2]

    @property
    def rival_us(self) -> float | None:
        """What PyTorch takes: its own time, else that of cuBLASLt's heuristic, which is the best of several layouts."""
        return self.heuristic_us if self.torch_us is None else self.torch_us


def nvrtc_in(environment: str) -> str:
    """The version of NVRTC in an `Environment.key`; empty where it names none."""
    return environment.partition(" toolkit-")[2].partition(" ")[0]


def product_words(task: GemmTask) -> str:
    """A matrix product as a manifest names it: `512x4096x64 nn f16/f32`, and behind it what follows the product."""
    return f"{task.shape} {task.layout} {task.element}/{task.accumulate}{task.epilogue}"


class RangePoint(Record):
    """A kernel beside PyTorch's own product at one M, in the same rounds. Unit: microseconds."""

    m: int = Field(ge=1)
    time_us: float
    torch_us: float
    speedup: Speedup

    @property
    def faster(self) -> bool:
        """Whether the lower end of its interval beats PyTorch's product."""
        return self.speedup.low > 1.0


class MRange(Record):
    """The M from `smallest` on, below that of an entry, at which one kernel of its schedule is faster than PyTorch's product.

    `entry`: its id. `source_sha256`: of the kernel's text, which takes M as it comes. `points`: what was measured, the largest
    M first. `environment`: `Environment.key` of the measurement.
    """

    entry: str
    smallest: int = Field(ge=1)
    source_sha256: Sha256
    points: tuple[RangePoint, ...]
    environment: str
    measured: date


class LibraryManifest(Record):
    """What a library is. `entries`, `algorithms`: ids, sorted. `chip`: the one that all of them were measured on.

    `no_faster`: matrix products that were searched, of which no kernel beats AutoTuning, as `product_words` has them, sorted.
    `version`: 2 where there are algorithms, which software that reads version 1 does not know; 3 where there is `no_faster`; 4
    where an entry adds a bias; 5 where there are `ranges`, of at most one for an entry, sorted by it; 6 where an entry has an
    activation; 7 where an entry is gated.
    Raises: ValueError for a range of an entry that is not there, and for two of one entry.
    """

    format: str = "cudal2-library"
    version: Literal[1, 2, 3, 4, 5, 6, 7] = 1
    name: Name
    chip: Name
    arch: Arch
    entries: tuple[str, ...]
    algorithms: tuple[str, ...] = ()
    no_faster: tuple[str, ...] = ()
    ranges: tuple[MRange, ...] = ()
    product: str
    created: date
    licence: str = "Apache-2.0"

    @model_validator(mode="after")
    def _of_entries(self) -> "LibraryManifest":
        of = [one.entry for one in self.ranges]
        if len(set(of)) != len(of) or not set(of) <= set(self.entries):
            raise ValueError("a range of M belongs to an entry of the library, and an entry has one at most")
        return self


class EntryKernel(Record):
    """What a built kernel of a library's entry has beside it. `source_sha256`: the entry's.

    `compiler`: such as `nvrtc 13.0 (13.0.88)`.
    """

    source_sha256: Sha256
    cubin_sha256: Sha256
    compiler: str

    @property
    def nvrtc(self) -> str:
        """The version of NVRTC that compiled it, such as `13.0`; empty for another compiler."""
        name, _, rest = self.compiler.partition(" ")
        return rest.partition(" ")[0] if name == "nvrtc" else ""


class PreparedKernel(EntryKernel):
    """A kernel for one task. `plan`: as the source has it, resolved for `task` and the SMs."""

    task: GemmTask
    plan: ResolvedPlan


class PaddedKernel(PreparedKernel):
    """A built kernel whose entry has a larger M than `task`. `source_sha256` is the entry's, `text_sha256` that of the kernel.

    `verdict`: the verdict of the emulator on it for `task`.
    """

    entry_task: GemmTask
    text_sha256: Sha256
    verdict: str


class RangeKernel(EntryKernel):
    """A kernel for every M from `smallest` to below that of its entry. `plan`: in sizes of the product.

    `text_sha256`: of the kernel. `verdicts`: those of the emulator, by M.
    """

    entry_task: GemmTask
    smallest: int = Field(ge=1)
    text_sha256: Sha256
    plan: LaunchPlan
    verdicts: dict[int, str]


class InvariantKernel(Record):
    """A kernel for every matrix product of its layout and element whose N and K are multiples of `n_step` and `k_step`.

    `tile`: rows and columns of D that a CTA computes. `per_sm`: tiles that an SM computes at once. `wave`: what so many tiles
    on each SM take, as a multiple of the same of another kernel of the set. `row`: what each row and column of a tile adds to
    it, because all SMs load through one L2 cache. `plan`: in sizes of the product. `summation`: how each element of D is
    summed, as `Family.summation` states it. It accumulates in f32.
    Raises: ValueError for a plan with a workspace: kernels come and go with M, and graphs may hold them.
    """

    layout: Layout
    element: ElementType
    n_step: int = Field(ge=1)
    k_step: int = Field(ge=1)
    tile: tuple[int, int]
    wave: float = Field(gt=0)
    row: float = Field(default=0.0, ge=0)
    per_sm: int = Field(default=1, ge=1)
    plan: LaunchPlan
    summation: str
    source_sha256: Sha256
    cubin_sha256: Sha256

    @model_validator(mode="after")
    def _without_memory(self) -> "InvariantKernel":
        if self.plan.workspace is not None:
            raise ValueError("a kernel of a batch-invariant set has no workspace")
        return self

    def cost(self, task: GemmTask, sms: int) -> float:
        """What a product takes on a number of SMs, in the terms of `wave`. A tile's rows beyond M count twice, as measured."""
        rows, columns = self.tile
        down, across = math.ceil(task.m / rows), math.ceil(task.n / columns)
        loaded = down * across * (rows + columns) + across * (down * rows - task.m)
        return math.ceil(down * across / (sms * self.per_sm)) * self.wave + loaded * self.row


class InvariantSet(Record):
    """The kernels by which every matrix product of a chip runs with an order of summation that does not depend on M.

    N, K and the element of a product decide the steps, the first in this order that divide them; only then do its layout and
    M choose among the kernels. All kernels of equal element and steps are summed alike.
    Raises: ValueError where two of them are not, and where the any-size kernels are missing.
    """

    product: str
    arch: Arch
    compiler: str
    kernels: tuple[InvariantKernel, ...]

    @model_validator(mode="after")
    def _summed_alike(self) -> "InvariantSet":
        keys: dict[tuple[ElementType, int, int], str] = {}
        for kernel in self.kernels:
            weight = kernel.element, kernel.n_step, kernel.k_step
            if keys.setdefault(weight, kernel.summation) != kernel.summation:
                raise ValueError(f"{kernel.element} weights have two orders of summation: {keys[weight]}; {kernel.summation}")
        for element in ElementType:
            if (element, 1, 1) not in keys:
                raise ValueError(f"there is no {element} kernel for products of any size")
        return self

    def choose(self, task: GemmTask, sms: int) -> InvariantKernel | None:
        """What runs a product. None for an `nt` whose A has to be copied to rows first, with the same sums.

        Of the kernels of the layout whose plan's conditions hold, the one of the least cost, and the first of equals.
        """
        alike = [one for one in self.kernels if one.element is task.element]
        steps = next((one.n_step, one.k_step) for one in alike if task.n % one.n_step == task.k % one.k_step == 0)
        fitting = (one for one in alike if (one.n_step, one.k_step) == steps and one.layout is task.layout)
        return min((one for one in fitting if _holds(one.plan, task)), key=lambda one: one.cost(task, sms), default=None)


def _holds(plan: LaunchPlan, task: GemmTask) -> bool:
    return all(holds(condition, task.dims) for condition in plan.requires)
