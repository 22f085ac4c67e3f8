"""What cuBLASLt-AutoTuning takes for a product: measured where a row of the chip is known, else predicted."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from cudal2_agent.agent.library.advise.products import MatrixProduct
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.reward.roofline import arithmetic_us, memory_us, roofline_us
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.prior import predict_many_us

_BEST = 64  # schedules that are predicted again without programmatic launch


class CallTime(Record):
    """Time of one call. `predicted`: whether it was computed and not measured. Unit: microseconds."""

    us: float
    predicted: bool


class LibraryTimes:
    """Times of AutoTuning on one chip. `measured`: by task. Each task is predicted once in a process."""

    def __init__(self, measured: Mapping[GemmTask, float], chip: Chip) -> None:
        self.chip = chip
        self._measured = measured

    def of(self, product: MatrixProduct) -> CallTime | None:
        """None for elements that are not of half precision, and for operands that are too large for a task."""
        task = task_of(product, self.chip.arch) or task_of(product.model_copy(update={"layout": "nn"}), self.chip.arch)
        if task is None:
            return None
        if product.batch > 1:  # as many loads and multiplications in one launch
            return CallTime(
                us=product.batch * max(arithmetic_us(task, self.chip), memory_us(task, self.chip)) + self.chip.launch_us,
                predicted=True,
            )
        if (measured := self._measured.get(task)) is not None and product.layout == task.layout:
            return CallTime(us=measured, predicted=False)
        return CallTime(us=_predicted_us(task, self.chip), predicted=True)


def task_of(product: MatrixProduct, arch: Arch) -> GemmTask | None:
    """The task of one matrix of the product; None where no kernel of this product could compute it."""
    if product.element not in tuple(ElementType) or product.layout not in tuple(Layout):
        return None
    try:
        return GemmTask(
            m=product.m,
            n=product.n,
            k=product.k,
            element=ElementType(product.element),
            accumulate=AccumulatorType.F32,
            layout=Layout(product.layout),
            arch=arch,
            bias=product.bias,
            activation=product.activation,
            gated=product.gated is not None,
        )
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _predicted_us(task: GemmTask, chip: Chip) -> float:
    """The analytic prior's time of the best schedule without programmatic launch; the roofline where no family supports it."""
    pool = SchedulePool(families(task.arch), task, chip, seed=0)
    if not pool.entries:
        return roofline_us(task, chip)
    best = np.argsort(pool.predicted_us, kind="stable")[:_BEST]
    works = [pool.entries[int(place)].work.model_copy(update={"programmatic": False}) for place in best]
    return float(predict_many_us(works, task, chip).min())
