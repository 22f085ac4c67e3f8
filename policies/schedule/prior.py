"""The analytic prior: how long a schedule should take, from how it cuts the task and what the chip can do.

    time = launch + fill + steady + exposed + store + sum

`steady` is the larger, softly, of the rates at which the busiest SM works: tensor math, operands out of L2, operands out of
DRAM, the round trips that too few stages leave uncovered, and the lines that its copy engine handles; and what a family
loses on every step. `fill` is the first trip to memory, `exposed` the trips of later CTAs that nothing overlaps, `store` the
way of the last tile to memory, `sum` what splitting K costs.
A prior ranks schedules; its times are predictions and are never reported as anything else.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from contract.chip import REFERENCE_CHIPS, Chip
from contract.task import Arch, GemmTask
from policies.schedule.families.protocol import Work, cluster_sms

Floats = npt.NDArray[np.float64]

# Measured on one H200 where not said otherwise; per SM, so that chips of the same lineage scale by their SMs.
L2_BYTES_PER_US = 14e6 / REFERENCE_CHIPS[Arch.SM_90A].sms  # all SMs together; the fastest kernels moved 10 TB/s out of L2
STORE_BYTES_PER_US = 4.3e6 / REFERENCE_CHIPS[Arch.SM_90A].sms  # all SMs together, when they store at once
MEMORY_TRIP_US = 0.8  # a load that misses L2, from issue to use, under load
LINE_US = 0.0009  # of the bulk copy engine; 8192x8192x8192 with rows of 64 bytes takes 1.5 times its math
LOADED_TRIP_US = 0.9  # of a load in mid-run, when all SMs load: 8192x8192x8192 with 3 stages of 32 KiB takes 1.3 times 6 stages
L2_TRIP_US = 0.45  # a load that hits L2, under load (estimate)
STORE_US = 0.35  # the last stores of a kernel until the next may see them (estimate)
ARRIVAL_US = 1.0  # fence, arrival counter and first read of another CTA's sums: three L2 trips, partly overlapped
CLUSTER_SUM_US = 0.5  # two cluster barriers and a trip through distributed shared memory (estimate)
PROGRAMMATIC_GAIN_US = 0.4  # dependent launch 1.26 us, programmatic 0.77 us, of which 0.1 us is waiting
SOFTNESS = 8.0  # exponent of the norm that joins the rates; 1 would add them, infinity take the largest


def predict_us(work: Work, task: GemmTask, chip: Chip) -> float:
    """Predicted device time of one schedule. Unit: microseconds."""
    return float(predict_many_us([work], task, chip)[0])


def predict_many_us(works: Sequence[Work], task: GemmTask, chip: Chip) -> Floats:
    """Predicted device time of each schedule. Unit: microseconds."""
    columns = _Columns(works, task, chip)
    total: Floats = _launch_us(columns, chip) + MEMORY_TRIP_US + _steady_us(columns, task, chip)
    total += _exposed_us(columns) + _store_us(columns) + _sum_us(columns)
    return total


class _Columns:
    """The fields of many works side by side, and how they spread over the chip.

    `units`: output tiles times parts of K. `rounds`: units on the busiest SM; `resident`: of those, how many run together.
    """

    def __init__(self, works: Sequence[Work], task: GemmTask, chip: Chip) -> None:
        table = np.array([_row(work) for work in works], dtype=np.float64).reshape(-1, COLUMNS).T
        self.m, self.n, self.k, self.stages, ctas, ctas_per_sm, cluster, self.k_blocks = table[:8]
        self.loaded_bytes, self.reduced_bytes, self.launches = table[8:11]
        self.persistent, self.programmatic, self.efficiency, self.alternating, self.lines, self.step_us = table[11:]
        self.tiles = np.ceil(task.m / self.m) * np.ceil(task.n / self.n)
        self.parts = np.ceil(task.k / (self.k * self.k_blocks))
        self.units = np.maximum(ctas, self.tiles * self.parts)
        self.sms = np.array([cluster_sms(chip, int(size)) for size in cluster], dtype=np.float64)
        self.rounds = np.ceil(self.units / self.sms)
        self.resident = np.minimum(ctas_per_sm, self.rounds)
        self.turns = np.ceil(self.rounds / self.resident)


COLUMNS = 17


def _row(work: Work) -> tuple[float, ...]:
    sizes = (*work.tile, work.stages, work.ctas, work.ctas_per_sm, work.cluster, work.k_blocks)
    costs = (work.loaded_bytes, work.reduced_bytes, work.launches, work.persistent, work.programmatic, work.mma_efficiency)
    return (*sizes, *costs, work.alternating, work.lines, work.step_us)


def _launch_us(c: _Columns, chip: Chip) -> Floats:
    launches: Floats = chip.launch_us * c.launches - np.minimum(PROGRAMMATIC_GAIN_US, chip.launch_us) * c.programmatic
    return launches


def _steady_us(c: _Columns, task: GemmTask, chip: Chip) -> Floats:
    """The main loops of the busiest SM: the slowest of math, L2, DRAM, uncovered latency and the copy engine."""
    flops = 2.0 * c.m * c.n * c.k * c.k_blocks * c.rounds
    math_us = flops / (chip.tensor_tflops * 1e6 / chip.sms * c.efficiency)
    l2_us = c.loaded_bytes / c.units * c.rounds / L2_BYTES_PER_US
    dram_us = np.full_like(math_us, task.operand_bytes / (chip.dram_tbps * 1e6))
    ahead = np.maximum(c.stages - 1, 1)
    latency_us = c.turns * np.maximum(c.k_blocks - ahead, 0) * LOADED_TRIP_US / ahead
    copy_us = c.lines * c.k_blocks * c.rounds * LINE_US
    rates = np.stack([math_us, l2_us, dram_us, latency_us, copy_us])
    norm: Floats = (rates**SOFTNESS).sum(axis=0) ** (1 / SOFTNESS) + c.turns * (c.k_blocks - 1) * c.step_us
    return norm


def _exposed_us(c: _Columns) -> Floats:
    """Fill and store of every turn after the first; other CTAs on the SM cover their share.

    A persistent CTA fills while it multiplies and leaves the store exposed; alternating warpgroups cover that too.
    """
    exposed = np.where(c.persistent > 0, 0.0, L2_TRIP_US) + np.where(c.alternating > 0, 0.0, _tile_store_us(c))
    trips: Floats = (c.turns - 1) * exposed / c.resident
    return trips


def _store_us(c: _Columns) -> Floats:
    """The last tiles' way to memory; the CTAs that share an SM end together, alternating warpgroups one by one."""
    together = np.where(c.alternating > 0, 1.0, c.resident)
    store: Floats = STORE_US + (_tile_store_us(c) - STORE_US) * together
    return store


def _tile_store_us(c: _Columns) -> Floats:
    store: Floats = STORE_US + 2.0 * c.m * c.n / STORE_BYTES_PER_US
    return store


def _sum_us(c: _Columns) -> Floats:
    """Partial sums through the workspace (written by all, read by one CTA a tile), or within a cluster."""
    partial_us = 4.0 * c.m * c.n / L2_BYTES_PER_US
    written = c.reduced_bytes / 2 / c.units * c.rounds / L2_BYTES_PER_US
    read = c.reduced_bytes / 2 / c.tiles * np.ceil(c.tiles / c.sms) / L2_BYTES_PER_US
    through_workspace = ARRIVAL_US + written + read
    within_cluster = CLUSTER_SUM_US + partial_us
    return np.where(c.reduced_bytes > 0, through_workspace, np.where(c.parts > 1, within_cluster, 0.0))
