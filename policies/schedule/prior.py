"""The analytic prior: the time a schedule should take, from how it divides the task and the rates of the chip.

    time = launch + fill + steady + exposed + store + sum

`steady` is the smooth maximum of the times of the busiest SM for tensor math, operands from L2, operands from DRAM, shared
memory, memory latency that too few stages leave exposed, and lines of its copy engine, plus the loss of a family per step.
`fill` is the latency of the first load, `exposed` the latency of later CTAs that nothing overlaps, `store` the time of the
last tile's stores, `sum` the cost of splitting K. `launch` is that of one of many launches, from which programmatic launch
takes what it overlaps; a server's single launch has nothing to overlap, and takes longer by what a cold start costs.
A prior ranks schedules. Its times are predictions and are never reported as measured.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.task import Activation, Arch, GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import memory_us, tensor_flops_per_us
from cudal2_agent.policies.schedule.families.kernel_family import Work, cluster_sms

Floats = npt.NDArray[np.float64]

# Measured on one H200 unless marked as an estimate; per SM, so that similar chips scale with their SMs.
L2_BYTES_PER_US = 14e6 / REFERENCE_CHIPS[Arch.SM_90A].sms  # for all SMs together; the fastest kernels read 10 TB/s from L2
STORE_BYTES_PER_US = 4.3e6 / REFERENCE_CHIPS[Arch.SM_90A].sms  # for all SMs together, when all of them store
SMEM_BYTES_PER_US = 128 * 1755.0  # of one SM: 128 bytes per clock, at the clock of an H200 under load
MEMORY_TRIP_US = 0.8  # latency under load of a load that misses L2
LINE_US = 0.0009  # per line of the bulk copy engine; 8192x8192x8192 with rows of 64 bytes takes 1.5 times its math
# Latency of a load while all SMs load, with too few stages in flight; fitted on the tuning half of `benchmarks/proposals`.
LOADED_TRIP_US = 1.4
STORE_US = 0.35  # from the last stores of a kernel until the next kernel may read them (estimate)
ARRIVAL_US = 1.0  # fence, arrival counter and first read of another CTA's sums: three L2 latencies, partly overlapped
PUSHED = 2.0  # times the time of the same bytes from L2, for sums pushed through distributed shared memory
PUSH_US = 0.15  # one trip from registers to another CTA of the cluster, and its mbarrier (estimate)
CLUSTER_SUM_US = 0.5  # two cluster barriers and a load from distributed shared memory (estimate)
# What a single launch takes more than one of many without programmatic launch: fitted to cuBLASLt-AutoTuning on shapes with
# rows in both modes (`python -m benchmarks.speed.server_reach`), clusters to the same schedules in both modes.
SINGLE_LAUNCH_US = 0.82
COLD_CLUSTER_US = 0.2
SCATTERED = 3.0  # times the time of a store; fitted as LOADED_TRIP_US was
CROWDING = 4.0  # CTAs of the busiest SM at most, for each that an even distribution gives it, where CTAs may share SMs
ACTIVATED_PER_US = 8 * 1755.0  # outputs of one SM: an exponential and a reciprocal each, of which it does 16 a clock
SOFTNESS = 8.0  # exponent of the norm over the times; 1 would add them, infinity would take the maximum


def predict_us(work: Work, task: GemmTask, chip: Chip) -> float:
    """Predicted device time of one schedule. Unit: microseconds."""
    return float(predict_many_us([work], task, chip)[0])


def predict_many_us(works: Sequence[Work], task: GemmTask, chip: Chip) -> Floats:
    """Predicted device time of each schedule. Unit: microseconds."""
    return total_us(Columns(works, task, chip), task, chip)


def total_us(columns: "Columns", task: GemmTask, chip: Chip) -> Floats:
    """Predicted device time of each schedule. Unit: microseconds."""
    total: Floats = sum(parts_us(columns, task, chip).values(), np.full(len(columns.m), MEMORY_TRIP_US))
    return total


def parts_us(columns: "Columns", task: GemmTask, chip: Chip) -> dict[str, Floats]:
    """What the predicted times are sums of, beside the latency of the first load. Unit: microseconds."""
    return {
        "launch": _launch_us(columns, task, chip),
        "steady": _steady_us(columns, task, chip),
        "exposed": _exposed_us(columns),
        "store": _store_us(columns),
        "sum": _sum_us(columns),
    }


class Columns:
    """The fields of many works as columns, and how their units are distributed over the chip.

    `units`: output tiles times parts of K. `rounds`: units of the busiest SM; `resident`: how many of them run together.
    Of a gated task tiles are those of both products, side by side.
    """

    def __init__(self, works: Sequence[Work], task: GemmTask, chip: Chip) -> None:
        table = np.array([_row(work) for work in works], dtype=np.float64).reshape(-1, COLUMNS).T
        self.m, self.n, self.k, self.stages, ctas, ctas_per_sm, self.cluster, self.k_blocks = table[:8]
        self.loaded_bytes, self.reduced_bytes, self.launches = table[8:11]
        self.persistent, self.programmatic, self.efficiency, self.alternating, self.lines, self.step_us = table[11:17]
        self.read_bytes, self.staged_bytes, self.spread_sums, self.exchanged_bytes, self.pushed, crowded = table[17:23]
        self.scattered, self.overlapped_us, self.store_lines = table[23:]
        self.tiles = np.ceil(task.m / self.m) * np.ceil(task.products * task.n / self.n)
        self.parts = np.ceil(task.k / (self.k * self.k_blocks))
        self.units = np.maximum(ctas, self.tiles * self.parts)
        self.sms = np.array([cluster_sms(chip, int(size)) for size in self.cluster], dtype=np.float64)
        even = np.ceil(self.units / self.sms)
        crowd = np.minimum(np.minimum(ctas_per_sm, CROWDING * even), self.units)
        self.rounds = np.where(crowded > 0, np.maximum(even, crowd), even)
        # Elements of D that a CTA stores.
        self.stored = self.m * self.n / task.products / np.where(self.pushed > 0, self.cluster, 1.0)
        self.gate_us = self.stored / ACTIVATED_PER_US * (task.gated and task.activation is not Activation.RELU)
        self.resident = np.minimum(ctas_per_sm, self.rounds)
        self.turns = np.ceil(self.rounds / self.resident)


COLUMNS = 26


def _row(work: Work) -> tuple[float, ...]:
    sizes = (*work.tile, work.stages, work.ctas, work.ctas_per_sm, work.cluster, work.k_blocks)
    costs = (work.loaded_bytes, work.reduced_bytes, work.launches, work.persistent, work.programmatic, work.mma_efficiency)
    return (*sizes, *costs, work.alternating, work.lines, work.step_us, work.smem_read_bytes, work.staged_bytes, *_sums(work))


def _sums(work: Work) -> tuple[float, ...]:
    parts = (work.spread_sums, work.exchanged_bytes, work.pushed, work.crowded)
    return (*parts, work.scattered, work.overlapped_us, work.store_lines)


def _launch_us(c: Columns, task: GemmTask, chip: Chip) -> Floats:
    """Launches back to back, less what programmatic launch overlaps; or a single launch onto an idle GPU."""
    launches: Floats = chip.launch_us * c.launches
    if task.mode is TimingMode.OFFLINE:
        launches -= c.overlapped_us * c.programmatic
        return launches
    launches += SINGLE_LAUNCH_US + COLD_CLUSTER_US * (c.cluster > 1)
    return launches


def _steady_us(c: Columns, task: GemmTask, chip: Chip) -> Floats:
    """The main loops of the busiest SM: the smooth maximum of its rates, and the loss of a family per step."""
    rates = np.stack(list(rates_us(c, task, chip).values()))
    norm: Floats = (rates**SOFTNESS).sum(axis=0) ** (1 / SOFTNESS) + c.turns * (c.k_blocks - 1) * c.step_us
    return norm


def rates_us(c: Columns, task: GemmTask, chip: Chip) -> dict[str, Floats]:
    """What each resource needs alone for the main loops of the busiest SM. Unit: microseconds."""
    flops = 2.0 * c.m * c.n * c.k * c.k_blocks * c.rounds
    math_us = flops / (tensor_flops_per_us(chip) / chip.sms * c.efficiency)
    l2_us = c.loaded_bytes / c.units * c.rounds / L2_BYTES_PER_US
    dram_us = np.full_like(math_us, memory_us(task, chip))
    ahead = np.maximum(c.stages - 1, 1)
    loops = np.where(c.persistent > 0, 1.0, c.turns)
    steps = c.turns * c.k_blocks / loops
    latency_us = loops * np.maximum(steps - ahead, 0) * LOADED_TRIP_US / ahead
    copy_us = (c.lines * c.k_blocks + c.store_lines) * c.rounds * LINE_US
    return {"math": math_us, "l2": l2_us, "dram": dram_us, "latency": latency_us, "copies": copy_us, "shared": _shared_us(c)}


def _shared_us(c: Columns) -> Floats:
    """Shared memory of the busiest SM: what copies write, instructions read, and the epilogue writes and reads again."""
    filled = np.where(c.read_bytes > 0, 2.0 * c.k * (c.m + c.n), 0.0)
    per_tile = (filled + c.read_bytes) * c.k_blocks + 2.0 * c.staged_bytes
    shared: Floats = per_tile * c.rounds / SMEM_BYTES_PER_US
    return shared


def _exposed_us(c: Columns) -> Floats:
    """Fill and store of every turn after the first, divided by the CTAs on the SM that overlap them.

    A persistent CTA overlaps its fills with math, but not its stores; alternating warpgroups overlap both.
    """
    exposed = np.where(c.persistent > 0, 0.0, LOADED_TRIP_US) + np.where(c.alternating > 0, 0.0, _tile_store_us(c))
    trips: Floats = (c.turns - 1) * exposed / c.resident
    return trips


def _store_us(c: Columns) -> Floats:
    """Stores of the last tiles. CTAs that share an SM end together, alternating warpgroups one after the other."""
    together = np.where(c.alternating > 0, 1.0, c.resident)
    store: Floats = STORE_US + (_tile_store_us(c) - STORE_US) * together
    return store


def _tile_store_us(c: Columns) -> Floats:
    """Of the outputs of a tile: their way out, and of a gated task what makes them of its sums."""
    cost = np.where(c.scattered > 0, SCATTERED, 1.0)
    store: Floats = STORE_US + 2.0 * c.stored * cost / STORE_BYTES_PER_US + c.gate_us
    return store


def _sum_us(c: Columns) -> Floats:
    """Partial sums through the workspace (read by one CTA per tile or by all), within a cluster, and within a CTA."""
    partial_us = 4.0 * c.m * c.n / L2_BYTES_PER_US
    written = c.reduced_bytes / 2 / c.units * c.rounds / L2_BYTES_PER_US
    alone = c.reduced_bytes / 2 / c.tiles * np.ceil(c.tiles / c.sms) / L2_BYTES_PER_US
    read = np.where(c.spread_sums > 0, written, alone)
    through_workspace = ARRIVAL_US + written + read
    within_cluster = np.where(c.pushed > 0, PUSH_US + PUSHED * partial_us, CLUSTER_SUM_US + partial_us)
    within_cta = 2.0 * c.exchanged_bytes * c.resident / SMEM_BYTES_PER_US
    sums: Floats = np.where(c.reduced_bytes > 0, through_workspace, np.where(c.parts > 1, within_cluster, 0.0)) + within_cta
    return sums
