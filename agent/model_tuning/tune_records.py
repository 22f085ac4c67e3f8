"""What `tune` is asked, measures and answers. Units: microseconds in `_us`, seconds in `_s`, bytes in `_bytes`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from cudal2_agent.agent.library.advise.advice import Advice, ProductAdvice
from cudal2_agent.agent.library.advise.products import CountedProduct, Recording
from cudal2_agent.contract.base import Record, Sha256
from cudal2_agent.contract.records.library import MRange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup

# How the model is run: each kernel launched by PyTorch; all of them as one CUDA graph; compiled by torch.compile; as a graph of
# what torch.compile makes, with the library, beside a graph of what max-autotune makes, without it.
Way = Literal["eager", "graph", "compile", "max-autotune"]
WAYS: tuple[Way, ...] = ("eager", "graph", "compile", "max-autotune")
USUAL_WAYS: tuple[Way, ...] = ("eager", "graph", "compile")
COMPILED: frozenset[Way] = frozenset({"compile", "max-autotune"})  # these run products with their activations


class TuneRequest(Record):
    """What a folder is about. `sha256`: of the model's file. `tokens`: empty for inputs that take no number.

    `training`: whether a pass is a training step: products of its backward pass are served too.
    """

    model: str
    sha256: Sha256
    tokens: tuple[int, ...]
    training: bool
    chip: str


class RecordedPass(Record):
    """What one pass multiplies. `tokens`: None for inputs that take no number."""

    tokens: int | None
    recording: Recording


class RecordedPasses(Record):
    """What all passes multiply, as the folder keeps it."""

    request: TuneRequest
    passes: tuple[RecordedPass, ...]

    def wanted(self, ways: Sequence[Way]) -> Recording:
        """What the ways run: compiled inference runs products with their activations, and other programs run them alone.

        The products of gated layers are wanted alone, too, for programs of which the gated kernel is not faster.
        """
        compiled = [] if self.request.training else [way for way in ways if way in COMPILED]
        whole = self.merged()
        if not compiled:
            return whole.alone()
        return whole.gated_both_ways() if len(compiled) == len(ways) else whole.both_ways()

    def merged(self) -> Recording:
        """All passes as one, with the calls of each product added up; of inference the forward passes alone."""
        calls: dict[CountedProduct, int] = {}
        for one in self.passes:
            for counted in one.recording.products:
                if self.request.training or counted.product.part == "forward":
                    kind = counted.model_copy(update={"calls": 1, "gpu_us": None})
                    calls[kind] = calls.get(kind, 0) + counted.calls
        return Recording(products=tuple(kind.model_copy(update={"calls": count}) for kind, count in calls.items()))


class JudgedProduct(Record):
    """A kernel beside PyTorch's own product, and activation, in rounds that did not choose it. `entry`: its id in a library.

    `environment`: as `Environment.key`. `speedup`: of torch.mm's time over its own; None where `fault` says what was wrong.
    """

    task: GemmTask
    entry: str
    chip: str
    environment: str
    speedup: Speedup | None
    time_us: float | None = None
    torch_us: float | None = None
    fault: str = ""
    measured_at: datetime

    @property
    def served(self) -> bool:
        """Whether a program should run it: it is right, and PyTorch's product is not faster."""
        return self.speedup is not None and self.speedup.ratio >= 1.0


class JudgedRange(Record):
    """How far below an entry's own M its kernel for any M is faster than PyTorch's product. `floor`: the smallest M asked for.

    `m_range`: None where it is not faster, or `fault` says what was wrong.
    """

    entry: str
    floor: int
    chip: str
    environment: str
    m_range: MRange | None
    fault: str = ""
    measured_at: datetime


class WayTimes(Record):
    """A pass without and with the library, in turns of one process: medians, and their ratio with its 95 % interval.

    Above 1 the library is faster.
    """

    way: Way
    before_us: float
    after_us: float
    speedup: Speedup


class OutputErrors(Record):
    """Root mean squares of errors over those of the values, against the model in float32: PyTorch's own, the library's."""

    torch: float
    library: float

    def within(self, tolerance: float) -> bool:
        """`tolerance`: how many times PyTorch's own error the library may have."""
        return self.library <= tolerance * self.torch or self.library == 0.0


class GpuShares(Record):
    """GPU time of a pass by what runs it. `served`: products that the library runs; `other`: PyTorch's own products, those
    with a bias included. `batched`: products of batches. `grouped`: products of experts.
    """

    served_us: float
    other_us: float
    batched_us: float
    attention_us: float
    grouped_us: float
    rest_us: float

    @property
    def whole_us(self) -> float:
        return float(sum(self.model_dump().values()))


class PassTimes(Record):
    """What a pass takes with a library. `library_sha256`: of what serves passes, the ids of its entries and algorithms.

    `served`, `asked`: products of a pass. `outputs`, `gradients`: None where the model in float32 does not fit or is not asked.
    `start_s`: of enabling the library and loading its kernels. `memory_bytes`: of the GPU, for these kernels and their scratch.
    `notes`: what could not be measured, and why.
    """

    tokens: int | None
    library_sha256: Sha256
    environment: str
    ways: tuple[WayTimes, ...]
    served: int
    asked: int
    outputs: OutputErrors | None = None
    gradients: OutputErrors | None = None
    shares: GpuShares | None = None
    start_s: float = 0.0
    memory_bytes: int = 0
    notes: tuple[str, ...] = ()
    measured_at: datetime

    def covers(self, ways: Sequence[Way]) -> bool:
        """Whether each of these ways has times, or a note that it failed."""
        tried = {one.way for one in self.ways} | {note.partition(":")[0] for note in self.notes}
        return tried.issuperset(ways)


class TuneAnswer(Record):
    """What `tune` leaves. `library`: None where nothing is faster than PyTorch. `within`: whether all errors are tolerated.

    `left`: products that no search was begun for, since the time was up. `ranges`: of M, by which products are served whose M
    no pass had. `disk_bytes`: of the library and its built kernels.
    """

    request: TuneRequest
    library: str | None
    searched: int
    left: int
    tuned: int
    dropped: int
    ranges: int = 0
    advice: Advice
    times: tuple[PassTimes, ...]
    tolerance: float
    within: bool
    disk_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def unserved(self) -> tuple[ProductAdvice, ...]:
        return tuple(one for one in self.products if one.status not in ("served", "padded M", "algorithm"))

    @property
    def products(self) -> tuple[ProductAdvice, ...]:
        """Each once."""
        return tuple(one for one in self.advice.products if not one.again)
