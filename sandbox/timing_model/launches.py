"""One launch of a kernel as the model sees it: CTAs on the busiest SM, what each SM gets of the chip, and its time."""

import math
from functools import cached_property

import numpy as np

from cudal2_agent.contract.plan.chip import FIGURES, LIMITS, Chip
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.timing_model.costs import ENGINE, ISSUE, LOAD, REMOTE, SMEM, STORE, TENSOR, Shares, Steps, steps_of
from cudal2_agent.sandbox.timing_model.rates import TimingRates
from cudal2_agent.sandbox.timing_model.simulation import Simulated, Turns, simulate
from cudal2_agent.sandbox.timing_model.trace import KIND, Traced

# The parts of a launch's time in the order in which they pass; the first and the last contain what does not depend on the CTAs.
PARTS = ("launch", "prologue", "fill", "main loop", "exchange", "tail")
_LAUNCH, _PROLOGUE, _FILL, _MAIN_LOOP, _TAIL = 0, 1, 2, 3, 5


def clusters_that_fit(chip: Chip, size: int) -> int:
    """Clusters of a size that are resident at once with one CTA per SM; other chips scale from the one that was measured."""
    figures = FIGURES[Arch.SM_90A]
    return max(chip.sms * figures.clusters_of(size) // figures.sms, 1)


def _inside(traced: Traced) -> float:
    """The share of a tile that lies inside D, by the bytes of the boxes of each operand."""
    loads = traced.rows["kind"] == KIND.BULK_LOAD
    boxes = traced.rows["parts"][loads].astype(np.int64) << 32 | traced.rows["instruction"][loads]
    share = 1.0
    for box in np.unique(boxes):
        at = np.flatnonzero(loads)[boxes == box]
        share *= 1.0 - traced.outside[at, 1].sum() / max(traced.rows["amount"][at].sum(dtype=np.float64), 1.0)
    return share


def _parts(simulated: Simulated) -> np.ndarray:
    """The parts of a replay, which add up to its end. Shape: (parts,)."""
    first, last = simulated.multiplies or (simulated.begin, simulated.end)
    ends = np.array([0.0, simulated.begin, first, last, simulated.exchanged or 0.0, simulated.end])
    return np.diff(np.maximum.accumulate(np.minimum(ends, simulated.end)), prepend=0.0)


class ModelledLaunch:
    def __init__(self, traced: Traced, inspection: Inspection, task: GemmTask, chip: Chip, rates: TimingRates) -> None:
        self.traced, self._task, self._chip, self._rates = traced, task, chip, rates
        launch = traced.launch
        self.size = math.prod(launch.cluster)
        self.clusters = traced.active_clusters
        self._idle = math.prod(launch.grid) - self.clusters * self.size
        self.fit = clusters_that_fit(chip, self.size)
        self.even = math.ceil(self.clusters / self.fit)
        self.resources = next((each for each in inspection.kernels if each.entry == launch.entry), None)
        self.limit = max(self.resources.ctas_per_sm if self.resources else 1, 1)
        self.smem = (self.resources.static_smem_bytes + self.resources.dynamic_smem_bytes) if self.resources else 0
        self.threads = math.prod(launch.block)
        self.plain = self._simulated(self._turns(1))
        crowd = self._crowd()
        self.turns = self._turns(math.ceil(crowd))
        crowds = self.early and self.turns != self._turns(1)
        self.simulated = self._simulated(self.turns) if crowds else self.plain
        self.other = ModelledLaunch(traced.other, inspection, task, chip, rates) if traced.other else None
        self._share = (crowd - self.even) / max(math.ceil(crowd) - self.even, 1)

    def _crowd(self) -> float:
        """Clusters of a busiest SM where launches pile up: the CTAs that end first make room for those of one later launch."""
        rates = self._rates
        room = min(self.limit, self.clusters, rates.launches_in_flight * self.clusters / self.fit)
        return self.even + rates.crowding * math.log(max(room / self.even, 1.0))

    @cached_property
    def early(self) -> bool:
        """Whether CTAs of the next launch are placed while those of this one still run."""
        return self.traced.launch.programmatic and len(self.traced.of(KIND.TRIGGER)) > 0

    def _turns(self, crowd: int) -> Turns:
        """Clusters of the busiest SMs. Those that are placed while others end crowd on the SMs that are free first."""
        together = min(self.limit, max(crowd, self.even), self.clusters)
        return Turns(max(self.even, together), max(together, 1))

    def _simulated(self, turns: Turns) -> Simulated:
        return simulate(self.traced, self._steps(turns), turns, self._rates)

    def _steps(self, turns: Turns) -> Steps:
        rates = self._rates
        active = max(min(self.clusters // turns.count, self.fit), 1) * self.size
        busy = min(self.clusters * self.size / (self.even * self._chip.sms), 1.0)
        loads = self.traced.of(KIND.BULK_LOAD, KIND.LOAD, KIND.COPY)
        loaded = float(self.traced.rows["amount"][loads].sum()) * self.clusters / self.traced.clusters
        operands = 2.0 * self._task.k * (self._task.m + self._task.products * self._task.n)
        shares = Shares(
            l2=rates.l2_bytes_per_us / active,
            dram=rates.dram_bytes_per_us / active,
            store=min(rates.store_bytes_per_us / active, rates.sm_bytes_per_us),
            missing=min(operands / max(loaded, 1.0), 1.0),
            clock_mhz=rates.clock_mhz + (1.0 - busy) * (rates.cool_clock_mhz - rates.clock_mhz),
        )
        return steps_of(self.traced, rates, shares)

    @cached_property
    def left_out(self) -> float:
        """How much longer the kernel is than the part of it that was traced, by the multiply-adds in it, or by operations."""
        if self.traced.whole or not self.traced.products:
            return self.traced.left_out or 1.0
        return max(self._work / self.traced.products, 1.0)

    @property
    def _work(self) -> float:
        """Multiply-adds that the traced clusters would have, were all alike and all in D."""
        return self._task.flops // 2 * self.traced.clusters / self.clusters

    @cached_property
    def edge(self) -> float:
        """The share of clusters that are like the other one, by the products that are too many."""
        if self.other is None:
            return 0.0
        empty = 1.0 - _inside(self.other.traced)
        return min(max(1.0 - self._work / self.traced.products, 0.0) / empty, 1.0) if empty > 0 else 0.0

    @cached_property
    def others(self) -> float:
        """The share of clusters on the busiest SM that are like the other one: one at least."""
        if self.other is None:
            return 0.0
        return min(max(math.ceil(self.edge * self.turns.count - 0.01), 1) / self.turns.count, 1.0)

    def outside(self, column: int) -> float:
        """What all clusters read beyond the operands: whole rows of boxes (column 0), or bytes (1)."""
        own = float(self.traced.outside[:, column].sum()) / self.traced.clusters
        other = float(self.other.traced.outside[:, column].sum()) if self.other else 0.0
        return self.clusters * (own + self.edge * max(other - own, 0.0)) * self.left_out

    def time_us(self, *, programmatic: bool) -> float:
        own = self._own_us(programmatic=programmatic)
        return own if self.other is None else own + self.others * max(self.other.time_us(programmatic=programmatic) - own, 0.0)

    @property
    def waves(self) -> int:
        turns = self._turns(1)
        return math.ceil(turns.count / turns.resident)

    def parts(self) -> dict[str, float]:
        """The parts of `time_us` as the plan launches it. Where clusters differ, by the share of each kind on an SM."""
        own = self._own_parts()
        if self.other is not None and (more := self.other._own_parts()).sum() > own.sum():
            own = own + self.others * (more - own)
        names = PARTS if self.traced.products else (*PARTS[:_MAIN_LOOP], "body", *PARTS[_MAIN_LOOP + 1 :])
        return {name: us for name, us in zip(names, own.tolist(), strict=True) if us > 0.0}

    def _own_parts(self) -> np.ndarray:
        overlaps = self.traced.launch.programmatic
        plain = _parts(self.plain)
        parts = plain + self._share * (_parts(self.simulated) - plain) if overlaps else plain
        parts[_MAIN_LOOP] += parts.sum() * (self.left_out - 1.0)
        outside = self._own_us(programmatic=True) - parts.sum()  # the launch and the end, less what the launch before hides
        hidden = self.simulated.begin if overlaps and self.fits_beside() else 0.0
        parts[_TAIL] += self._drain_us
        parts[_LAUNCH] += outside + hidden - self._drain_us
        parts[_PROLOGUE] -= hidden
        if parts[_PROLOGUE] < 0.0:
            parts[_FILL] += parts[_PROLOGUE]
            parts[_PROLOGUE] = 0.0
        return parts

    @property
    def _drain_us(self) -> float:
        return self._rates.drain_us + (len(self.traced.of(KIND.BULK_STORE)) > 0) * self._rates.bulk_drain_us

    def _own_us(self, *, programmatic: bool) -> float:
        """The time if all clusters were like the first."""
        rates, left_out, drain = self._rates, self.left_out, self._drain_us
        placed = rates.cta_us * (min(self.clusters, self.fit * self._turns(1).resident) * self.size + self._idle)
        if not (programmatic and self.traced.launch.programmatic):
            return rates.launch_us + placed + self.plain.end * left_out + drain
        end = (self.plain.end + self._share * (self.simulated.end - self.plain.end)) * left_out
        hidden = self.simulated.begin if self.fits_beside() else 0.0
        return rates.overlapped_launch_us + placed + end - hidden + drain

    def fits_beside(self) -> bool:
        """Whether a CTA of the next kernel fits on the SM beside those of this one."""
        limits, resident = LIMITS[self._chip.arch], self._turns(1).resident
        return resident < self.limit or (
            (resident + 1) * (self.smem + 1024) <= limits.smem_per_sm_bytes
            and (resident + 1) * self.threads <= limits.max_threads_per_sm
        )

    def terms(self) -> dict[str, float]:
        """The time of each resource alone, on the busiest SM."""
        busy = self.simulated.busy * self.left_out
        if self.other is not None:
            busy = busy + self.others * np.maximum(self.other.simulated.busy - busy, 0.0)
        return {
            "tensor cores": float(busy[TENSOR : TENSOR + 4].max()),
            "issue": float(busy[ISSUE : ISSUE + 4].max()),
            "shared memory": float(busy[SMEM]),
            "loads from L2": float(busy[LOAD]),
            "stores": float(busy[STORE]),
            "distributed shared memory": float(busy[REMOTE]),
            "bulk copies": float(busy[ENGINE]),
        }
