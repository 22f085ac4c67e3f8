"""What a model would gain by known kernels, product by product and in all. Pure.

A gain is measured: over AutoTuning in the race that chose the kernel. Predicted times only estimate how much of a pass the
products are; no gain is computed from one.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from agent.advise.gains import NO_GAIN, GainInterval, KernelGain, time_spared, total_gain
from agent.advise.known_kernels import KnownKernels
from agent.advise.library_times import CallTime, LibraryTimes, task_of
from agent.advise.products import PARTS, CountedProduct, Product, Recording
from contract.base import Record
from contract.evaluation import AUTOTUNED
from contract.library import EntryEvaluation
from contract.speedup import Speedup
from contract.task import ElementType, Layout

ALL = "all"
# `served`: a known kernel beats AutoTuning with its whole interval. `no faster`: the known one does not. `missing`: none is known.
# `outside`: no kernel of a library computes it.
Status = Literal["served", "no faster", "missing", "outside"]


class ProductAdvice(Record):
    """One product. `calls`: per pass. Times are those of one call, in microseconds; None where unknown.

    `traced_us`: of the kernels in the trace. `autotuning`: of cuBLASLt-AutoTuning. `kernel_us`, `speedup`: of the known kernel.
    `gain_us`: per pass, of a served product. `reason`: why it is outside.
    """

    product: Product
    calls: float
    status: Status
    reason: str = ""
    traced_us: float | None = None
    autotuning: CallTime | None = None
    kernel_us: float | None = None
    speedup: Speedup | None = None
    gain_us: GainInterval | None = None


class PartAdvice(Record):
    """A part of the pass, or all. `time_us`: its products per pass: in the trace, else by AutoTuning; without unknown times.

    `predicted_us`: how much of it is predicted. `served_us`: how much of it is served. `timed_calls`: calls whose time is known.
    `served_autotuning_us`: what AutoTuning takes for the served calls, as measured. `gain_us`: per pass.
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

    @property
    def gain_percent(self) -> GainInterval:
        """Of what AutoTuning takes for the served calls."""
        return self.gain_us.times(100 / self.served_autotuning_us) if self.served_autotuning_us else NO_GAIN


class Advice(Record):
    """What a model would gain. `source`: file of the model or trace. `kernels`: where known kernels come from.

    `traced`: whether times of products are those of a trace. `pass_us`: all GPU time of a pass of the trace.
    """

    source: str
    chip: str
    kernels: str
    kernels_chip: str
    traced: bool
    passes: int
    pass_us: float | None
    products: tuple[ProductAdvice, ...]
    parts: tuple[PartAdvice, ...]

    @property
    def whole(self) -> PartAdvice:
        return self.parts[-1]


def advise(source: str, recording: Recording, kernels: KnownKernels, times: LibraryTimes) -> Advice:
    """Products in the order of their time per pass, the longest first."""
    passes, traced = recording.passes, recording.gpu_us is not None
    found = [_advised(one, passes, kernels, times) for one in recording.products]
    found.sort(key=lambda one: -(_time_us(one, traced) or 0.0) * one.calls)
    parts = [_part(part, [one for one in found if one.product.part == part], traced) for part in PARTS]
    return Advice(
        source=source,
        chip=times.chip.name,
        kernels=kernels.source,
        kernels_chip=kernels.chip,
        traced=traced,
        passes=passes,
        pass_us=None if recording.gpu_us is None else recording.gpu_us / passes,
        products=tuple(found),
        parts=(*(one for one in parts if one.calls), _part(ALL, found, traced)),
    )


def why_outside(product: Product) -> str:
    """Why no kernel of a library is called for a product; empty where one may be."""
    if product.element not in tuple(ElementType):
        return f"elements are {product.element}"
    if product.operator in ("addmm", "baddbmm"):
        return "adds a bias"
    if product.operator == "bmm":
        return "a batch"
    if product.layout not in tuple(Layout):
        return f"layout {product.layout}"
    return ""


def _advised(counted: CountedProduct, passes: int, kernels: KnownKernels, times: LibraryTimes) -> ProductAdvice:
    product, calls = counted.product, counted.calls / passes
    task = task_of(product, times.chip.arch)
    outside = why_outside(product) or ("" if task else "operands have over 2^31-1 elements")
    known = kernels.find(task) if task and not outside and kernels.chip == times.chip.name else None
    measured_us = known.baselines_us.get(AUTOTUNED) if known else None
    plain = ProductAdvice(
        product=product,
        calls=calls,
        status="outside" if outside else "missing",
        reason=outside,
        traced_us=None if counted.gpu_us is None else counted.gpu_us / counted.calls,
        autotuning=times.of(product) if measured_us is None else CallTime(us=measured_us, predicted=False),
    )
    return plain if known is None or measured_us is None else _with_kernel(plain, known, measured_us)


def _with_kernel(plain: ProductAdvice, known: EntryEvaluation, autotuning_us: float) -> ProductAdvice:
    wins = known.speedup.low > 1.0
    return plain.model_copy(
        update={
            "status": "served" if wins else "no faster",
            "kernel_us": known.time_us,
            "speedup": known.speedup,
            "gain_us": time_spared(autotuning_us, known.speedup).times(plain.calls) if wins else None,
        }
    )


def _part(name: str, found: Sequence[ProductAdvice], traced: bool) -> PartAdvice:
    served = [one for one in found if one.status == "served"]
    predicted = [] if traced else [one for one in found if one.autotuning and one.autotuning.predicted]
    return PartAdvice(
        part=name,
        calls=sum(one.calls for one in found),
        timed_calls=sum(one.calls for one in found if _time_us(one, traced) is not None),
        served_calls=sum(one.calls for one in served),
        time_us=_sum_us(found, traced),
        predicted_us=_sum_us(predicted, traced),
        served_us=_sum_us(served, traced),
        served_autotuning_us=_sum_us(served, traced=False),
        gain_us=total_gain(KernelGain(_kernel(one.product), one.gain_us) for one in served if one.gain_us),
    )


def _kernel(product: Product) -> tuple[object, ...]:
    """Products of several parts may be one task, and then take the same kernel."""
    return product.m, product.n, product.k, product.layout, product.element


def _sum_us(found: Iterable[ProductAdvice], traced: bool) -> float:
    return sum((_time_us(one, traced) or 0.0) * one.calls for one in found)


def _time_us(one: ProductAdvice, traced: bool) -> float | None:
    if traced:
        return one.traced_us
    return one.autotuning.us if one.autotuning else None
