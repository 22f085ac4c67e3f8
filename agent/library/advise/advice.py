"""What a model would gain by known kernels, product by product and in all. Pure.

A gain is measured: over AutoTuning in the race that chose the kernel. Predicted times only estimate how much of a pass the
products are; no gain is computed from one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from cudal2_agent.agent.library.advise.gains import NO_GAIN, GainInterval, KernelGain, time_spared, total_gain
from cudal2_agent.agent.library.advise.known_kernels import KnownKernels
from cudal2_agent.agent.library.advise.library_times import CallTime, LibraryTimes, task_of
from cudal2_agent.agent.library.advise.products import PARTS, CountedProduct, MatrixProduct, Recording
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import AUTOTUNED, HEURISTIC
from cudal2_agent.contract.records.library import StoredAlgorithm, product_words
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup

ALL = "all"
# `served`: an entry beats AutoTuning with its whole interval. `no faster`: the known kernel does not, or the matrix product
# was searched in vain for the library. `unbuilt`: a kernel of the store does, and the library lacks it. `padded M`: the library
# has no entry, and dispatch runs that of a larger M, whose time here nobody measured. `algorithm`: none beats AutoTuning, whose
# algorithm the library holds and runs. `missing`: none is known. `outside`: no kernel of a library computes it.
Status = Literal["served", "padded M", "algorithm", "no faster", "unbuilt", "missing", "outside"]


class ProductAdvice(Record):
    """One product. `calls`: per pass. Times are those of one call, in microseconds; None where unknown.

    `traced_us`: of the kernels in the trace. `autotuning`: of cuBLASLt-AutoTuning. `kernel_us`, `speedup`: of the known kernel.
    `gain_us`: per pass, of a served product; `heuristic_gain_us`: over cuBLASLt's heuristic choice, a difference of medians.
    `torch_gain_us`: per pass, of a product that a stored algorithm runs, whose time is `kernel_us`: over PyTorch's product, a
    difference of medians. `reason`: why it is outside. `again`: calls that the product alone counts, in the form that compiled
    programs run: no sum has them twice.
    """

    product: MatrixProduct
    calls: float
    status: Status
    reason: str = ""
    traced_us: float | None = None
    autotuning: CallTime | None = None
    kernel_us: float | None = None
    speedup: Speedup | None = None
    gain_us: GainInterval | None = None
    heuristic_gain_us: float | None = None
    torch_gain_us: float | None = None
    again: Annotated[bool, Field(exclude_if=lambda again: not again)] = False


class PartAdvice(Record):
    """A part of the pass, or all. `time_us`: its products per pass: in the trace, else by AutoTuning; without unknown times.

    `predicted_us`, `served_us`: how much of it is predicted, and served. `timed_calls`: calls whose time is known.
    `served_autotuning_us`: what AutoTuning takes for the served calls, as measured. `gain_us`: per pass. `gain_percent`: of
    `served_autotuning_us`. `heuristic_gain_us`: None where the heuristic was not measured for all of them. `algorithm_calls`,
    `torch_gain_us`: calls that stored algorithms of cuBLASLt run, and what that spares of PyTorch's time. `padded_calls`: calls
    that entries of a larger M run. No other figure counts these calls as served.
    """

    part: str
    calls: float
    timed_calls: float
    served_calls: float
    time_us: float
    predicted_us: float
    served_us: float
    served_autotuning_us: float
    gain_us: GainInterval
    gain_percent: GainInterval
    heuristic_gain_us: float | None
    algorithm_calls: float = 0.0
    torch_gain_us: float = 0.0
    padded_calls: float = 0.0


class Advice(Record):
    """What a model would gain. `source`: file of the model or trace. `kernels`: name of the library.

    `traced`: whether times of products are those of a trace. `pass_us`: all GPU time of a pass of the trace.
    `pass_percent`: the gain as a share of `pass_us`, without a trace of that of all products, some of which may be predicted.
    """

    source: str
    chip: str
    kernels: str
    kernels_chip: str
    traced: bool
    passes: int
    pass_us: float | None
    pass_percent: GainInterval
    products: tuple[ProductAdvice, ...]
    parts: tuple[PartAdvice, ...]

    @property
    def whole(self) -> PartAdvice:
        return self.parts[-1]


def advise(
    source: str, recording: Recording, kernels: KnownKernels, searches: Mapping[GemmTask, MeasuredKernel], times: LibraryTimes
) -> Advice:
    """Products in the order of their time per pass, the longest first. `searches`: of the store, on the chip of `times`."""
    passes, traced = recording.passes, recording.gpu_us is not None
    found = [_found(one, passes, kernels, searches, times) for one in recording.products]
    found.sort(key=lambda one: -(_time_us(one, traced) or 0.0) * one.calls)
    once = [one for one in found if not one.again]
    parts = [_part(part, [one for one in once if one.product.part == part], traced) for part in PARTS]
    whole = _part(ALL, once, traced)
    pass_us = None if recording.gpu_us is None else recording.gpu_us / passes
    return Advice(
        source=source,
        chip=times.chip.name,
        kernels=kernels.name,
        kernels_chip=kernels.chip,
        traced=traced,
        passes=passes,
        pass_us=pass_us,
        pass_percent=_percent(whole.gain_us, pass_us or whole.time_us),
        products=tuple(found),
        parts=(*(one for one in parts if one.calls), whole),
    )


def why_outside(product: MatrixProduct) -> str:
    """Why no kernel of a library is called for a product; empty where one may be."""
    if product.element not in tuple(ElementType):
        return f"{product.element} elements"
    if product.operator == "baddbmm" or (product.operator == "addmm" and not product.bias):
        return "adds a matrix"
    if product.operator == "bmm":
        return "a batch"
    if product.layout not in tuple(Layout):
        return f"layout {product.layout}"
    if not product.packed:
        return "not packed"
    return ""


class _Known(NamedTuple):
    """What was measured of a kernel for a product. `in_library`: else it is in the store only."""

    time_us: float
    speedup: Speedup
    baselines_us: Mapping[str, float]
    in_library: bool

    @property
    def autotuning_us(self) -> float:
        return self.baselines_us[AUTOTUNED]

    @property
    def status(self) -> Status:
        return "no faster" if self.speedup.low <= 1.0 else "served" if self.in_library else "unbuilt"


def _known(
    product: MatrixProduct, kernels: KnownKernels, searches: Mapping[GemmTask, MeasuredKernel], times: LibraryTimes
) -> _Known | None:
    """The library's entry, else the store's search; None for a product that no library computes."""
    task = None if why_outside(product) else task_of(product, times.chip.arch)
    if task is None:
        return None
    entry = kernels.find(task) if kernels.chip == times.chip.name else None
    search = searches.get(task)
    if entry is not None and AUTOTUNED in entry.evaluation.baselines_us:
        one = entry.evaluation
        return _Known(one.time_us, one.speedup, one.baselines_us, in_library=True)
    if search is not None and AUTOTUNED in search.row.baselines_us:
        return _Known(search.winner.time_us, search.winner.speedup, search.row.baselines_us, in_library=False)
    return None


def _found(
    counted: CountedProduct,
    passes: int,
    kernels: KnownKernels,
    searches: Mapping[GemmTask, MeasuredKernel],
    times: LibraryTimes,
) -> ProductAdvice:
    """The advice of a product by what runs it, in the order of dispatch: its entry, one of a padded M, an algorithm."""
    product = counted.product
    found = _advised(counted, passes, _known(product, kernels, searches, times), times)
    task = None if why_outside(product) else task_of(product, times.chip.arch)
    if task is None or kernels.chip != times.chip.name or found.status == "served":
        return found
    if kernels.padded_entry(task) is not None:
        return found.model_copy(update={"status": "padded M", "kernel_us": None, "speedup": None})
    if found.status == "missing" and product_words(task) in kernels.no_faster:
        found = found.model_copy(update={"status": "no faster"})
    return _by_algorithm(found, kernels.algorithm(task))


def _advised(counted: CountedProduct, passes: int, known: _Known | None, times: LibraryTimes) -> ProductAdvice:
    product, calls = counted.product, counted.calls / passes
    outside = why_outside(product) or ("" if task_of(product, times.chip.arch) else "operands have over 2^31-1 elements")
    served = known if known is not None and known.status == "served" else None
    heuristic_us = served.baselines_us.get(HEURISTIC) if served else None
    return ProductAdvice(
        product=product,
        calls=calls,
        status="outside" if outside else known.status if known else "missing",
        reason=outside,
        traced_us=None if counted.gpu_us is None else counted.gpu_us / counted.calls,
        autotuning=CallTime(us=known.autotuning_us, predicted=False) if known else times.of(product),
        kernel_us=known.time_us if known else None,
        speedup=known.speedup if known else None,
        gain_us=time_spared(served.autotuning_us, served.speedup).times(calls) if served else None,
        heuristic_gain_us=(heuristic_us - served.time_us) * calls if served and heuristic_us else None,
        again=counted.again,
    )


def _by_algorithm(found: ProductAdvice, stored: StoredAlgorithm | None) -> ProductAdvice:
    """The advice of a product that no kernel serves, where the library holds an algorithm for it."""
    if stored is None or stored.rival_us is None:
        return found
    return found.model_copy(
        update={
            "status": "algorithm",
            "autotuning": CallTime(us=stored.time_us, predicted=False),
            "kernel_us": stored.time_us,
            "speedup": None,
            "torch_gain_us": (stored.rival_us - stored.time_us) * found.calls,
        }
    )


def _part(name: str, found: Sequence[ProductAdvice], traced: bool) -> PartAdvice:
    served = [one for one in found if one.status == "served"]
    predicted = [] if traced else [one for one in found if one.autotuning and one.autotuning.predicted]
    over_heuristic = [one.heuristic_gain_us for one in served if one.heuristic_gain_us is not None]
    gain = total_gain(KernelGain(_kernel(one.product), one.gain_us) for one in served if one.gain_us)
    served_autotuning_us = _sum_us(served, traced=False)
    return PartAdvice(
        part=name,
        calls=sum(one.calls for one in found),
        timed_calls=sum(one.calls for one in found if _time_us(one, traced) is not None),
        served_calls=sum(one.calls for one in served),
        time_us=_sum_us(found, traced),
        predicted_us=_sum_us(predicted, traced),
        served_us=_sum_us(served, traced),
        served_autotuning_us=served_autotuning_us,
        gain_us=gain,
        gain_percent=_percent(gain, served_autotuning_us),
        heuristic_gain_us=sum(over_heuristic) if len(over_heuristic) == len(served) else None,
        algorithm_calls=sum(one.calls for one in found if one.status == "algorithm"),
        padded_calls=sum(one.calls for one in found if one.status == "padded M"),
        torch_gain_us=sum(one.torch_gain_us or 0.0 for one in found),
    )


def _kernel(product: MatrixProduct) -> tuple[object, ...]:
    """Products of several parts may be one task, and then take the same kernel."""
    kind = product.layout, product.element, product.bias, product.activation, product.gated is not None
    return product.m, product.n, product.k, *kind


def _percent(gain: GainInterval, of_us: float) -> GainInterval:
    return gain.times(100 / of_us) if of_us else NO_GAIN


def _sum_us(found: Iterable[ProductAdvice], traced: bool) -> float:
    return sum((_time_us(one, traced) or 0.0) * one.calls for one in found)


def _time_us(one: ProductAdvice, traced: bool) -> float | None:
    if traced:
        return one.traced_us
    return one.autotuning.us if one.autotuning else None
