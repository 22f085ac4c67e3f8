"""The predicted time of a built kernel, with the time that each resource would need alone.

Covered: device plans on chips whose PTX the emulator reads, offline. Not covered: a single launch onto an idle GPU (server
mode), the clock's answer to power, and L2 contents that survive between CTAs beyond the operands' own sizes.
"""

import math
from dataclasses import dataclass

import numpy as np

from contract.chip import LIMITS, Chip
from contract.evaluation import Prediction
from contract.inspection import Inspection
from contract.roofline import roofline_us
from contract.task import GemmTask, TimingMode
from sandbox.emulator.kernel import EmulatedKernel
from sandbox.timing_model.costs import ENGINE, ISSUE, LOAD, REMOTE, SMEM, STORE, TENSOR, Shares, steps_of
from sandbox.timing_model.rates import TimingRates, rates_of
from sandbox.timing_model.simulation import Simulated, Turns, simulate
from sandbox.timing_model.trace import KIND, Traced, trace

# SMs of each GPC of a chip of 132: a cluster lies within one. They follow from the clusters of 2, 4, 8 and 16 CTAs that fit on
# an H200 (cuOccupancyMaxActiveClusters: 66, 30, 15, 7), and from clusters of 14, of which eight take two waves.
_GPCS = (18, 18, 18, 18, 18, 16, 16, 10)


MACS_PER_COLUMN = 16 * 16  # of a warp's part of a wgmma


@dataclass(frozen=True)
class Predicted:
    """Unit: microseconds. `plain_us`: the time without programmatic launch. `terms`: of each resource alone."""

    predicted_us: float
    plain_us: float
    terms: dict[str, float]


def clusters_that_fit(chip: Chip, size: int) -> int:
    """Clusters of a size that are resident at once with one CTA per SM."""
    covered = sum(sms // size * size for sms in _GPCS)
    return max(chip.sms * covered // sum(_GPCS) // size, 1)


def predict(kernel: EmulatedKernel, inspection: Inspection, chip: Chip) -> Prediction | None:
    """The predicted time of a kernel's plan, launched back to back; None in server mode, which the model does not know."""
    task = kernel.task
    if task.mode is not TimingMode.OFFLINE:
        return None
    predicted = predict_traced(trace(kernel), inspection, task, chip)
    name = f"timing-model on {chip.name}{'' if rates_of(chip).fitted else ', rates not fitted'}"
    return Prediction(predicted_us=predicted.predicted_us, model=name, floor_us=roofline_us(task, chip), terms=predicted.terms)


def predict_traced(
    traced: tuple[Traced, ...], inspection: Inspection, task: GemmTask, chip: Chip, rates: TimingRates | None = None
) -> Predicted:
    """The time of a kernel whose launches were traced. `rates`: the chip's own if None."""
    rates = rates or rates_of(chip)
    launches = [_ModelledLaunch(each, inspection, task, chip, rates) for each in traced]
    ours = sum(each.time_us(programmatic=True) for each in launches)
    plain = sum(each.time_us(programmatic=False) for each in launches)
    terms = {"launch": len(launches) * rates.launch_us, "DRAM": task.operand_bytes / rates.dram_bytes_per_us}
    for launch in launches:
        for name, value in launch.terms().items():
            terms[name] = terms.get(name, 0.0) + value
    return Predicted(ours, plain, terms)


class _ModelledLaunch:
    def __init__(self, traced: Traced, inspection: Inspection, task: GemmTask, chip: Chip, rates: TimingRates) -> None:
        self._traced, self._task, self._chip, self._rates = traced, task, chip, rates
        launch = traced.launch
        self._size = math.prod(launch.cluster)
        self._clusters = math.prod(launch.grid) // self._size
        fit = clusters_that_fit(chip, self._size)
        resources = next((each for each in inspection.kernels if each.entry == launch.entry), None)
        self._limit = max(resources.ctas_per_sm if resources else 1, 1)
        self._fit, self._even = fit, math.ceil(self._clusters / fit)
        self._smem = (resources.static_smem_bytes + resources.dynamic_smem_bytes) if resources else 0
        self._threads = math.prod(launch.block)
        self.plain = self._simulated(self._turns(1))
        crowd = self._crowd()
        crowded = self._turns(math.ceil(crowd))
        crowds = self._early() and crowded != self._turns(1)
        self.simulated = self._simulated(crowded) if crowds else self.plain
        self._share = (crowd - self._even) / max(math.ceil(crowd) - self._even, 1)

    def _crowd(self) -> float:
        """Clusters of a busiest SM where launches pile up: the CTAs that end first make room for those of one later launch."""
        rates = self._rates
        room = min(self._limit, self._clusters, rates.launches_in_flight * self._clusters / self._fit)
        return self._even + rates.crowding * math.log(max(room / self._even, 1.0))

    def _early(self) -> bool:
        """Whether CTAs of the next launch are placed while those of this one still run."""
        return self._traced.launch.programmatic and bool((self._traced.rows["kind"] == KIND.TRIGGER).any())

    def _turns(self, crowd: int) -> Turns:
        """Clusters of the busiest SMs. Those that are placed while others end crowd on the SMs that are free first."""
        together = min(self._limit, max(crowd, self._even), self._clusters)
        return Turns(max(self._even, together), max(together, 1))

    def _simulated(self, turns: Turns) -> Simulated:
        return simulate(self._traced, self._steps(turns), turns, self._rates)

    def _steps(self, turns: Turns) -> np.ndarray:
        rates = self._rates
        active = max(min(self._clusters // turns.count, self._fit), 1) * self._size
        busy = min(self._clusters * self._size / (self._even * self._chip.sms), 1.0)
        loads = np.isin(self._traced.rows["kind"], (KIND.BULK_LOAD, KIND.LOAD, KIND.COPY))
        loaded = float(self._traced.rows["amount"][loads].sum()) * self._clusters / self._traced.clusters
        operands = 2.0 * self._task.k * (self._task.m + self._task.n)
        shares = Shares(
            l2=rates.l2_bytes_per_us / active,
            dram=rates.dram_bytes_per_us / active,
            store=min(rates.store_bytes_per_us / active, rates.sm_bytes_per_us),
            missing=min(operands / max(loaded, 1.0), 1.0),
            clock_mhz=rates.clock_mhz + (1.0 - busy) * (rates.cool_clock_mhz - rates.clock_mhz),
        )
        return steps_of(self._traced, rates, shares)

    def _left_out(self) -> float:
        """How much longer the kernel is than the part of it that was traced, by the multiply-adds in it."""
        if self._traced.whole:
            return 1.0
        rows = self._traced.rows
        products = rows["amount"][rows["kind"] == KIND.PRODUCT].sum(dtype=np.int64) * MACS_PER_COLUMN
        fragments = rows["amount"][rows["kind"] == KIND.FRAGMENTS].sum(dtype=np.int64)
        task = self._task
        return max(task.m * task.n * task.k * self._traced.clusters / self._clusters / max(int(products + fragments), 1), 1.0)

    def time_us(self, *, programmatic: bool) -> float:
        rates, left_out = self._rates, self._left_out()
        bulk = bool((self._traced.rows["kind"] == KIND.BULK_STORE).any())
        drain = rates.drain_us + bulk * rates.bulk_drain_us
        placed = rates.cta_us * min(self._clusters, self._fit * self._turns(1).resident) * self._size
        if not (programmatic and self._traced.launch.programmatic):
            return rates.launch_us + placed + self.plain.end * left_out + drain
        end = (self.plain.end + self._share * (self.simulated.end - self.plain.end)) * left_out
        hidden = self.simulated.begin if self._fits_beside() else 0.0
        return rates.overlapped_launch_us + placed + end - hidden + drain

    def _fits_beside(self) -> bool:
        """Whether a CTA of the next kernel fits on the SM beside those of this one."""
        limits, resident = LIMITS[self._chip.arch], self._turns(1).resident
        return resident < self._limit or (
            (resident + 1) * (self._smem + 1024) <= limits.smem_per_sm_bytes
            and (resident + 1) * self._threads <= limits.max_threads_per_sm
        )

    def terms(self) -> dict[str, float]:
        """The time of each resource alone, on the busiest SM."""
        busy = self.simulated.busy * self._left_out()
        return {
            "tensor cores": float(busy[TENSOR : TENSOR + 4].max()),
            "issue": float(busy[ISSUE : ISSUE + 4].max()),
            "shared memory": float(busy[SMEM]),
            "loads from L2": float(busy[LOAD]),
            "stores": float(busy[STORE]),
            "distributed shared memory": float(busy[REMOTE]),
            "bulk copies": float(busy[ENGINE]),
        }
