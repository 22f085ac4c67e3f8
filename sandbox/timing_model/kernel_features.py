"""What the correction of a prediction may depend on: numbers of the trace and the launch that exist for any source.

No schedule and no kernel family is known here. Most are shares of the predicted time, or logarithms to base 2 of ratios.
"""

import math
from collections.abc import Sequence

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.timing_model.launches import ModelledLaunch
from cudal2_agent.sandbox.timing_model.rates import TimingRates
from cudal2_agent.sandbox.timing_model.trace import KIND, MACS_PER_COLUMN, WARPS

_LINE_BYTES = 128


def features_of(
    launches: Sequence[ModelledLaunch], time_us: float, terms: dict[str, float], task: GemmTask, chip: Chip, rates: TimingRates
) -> dict[str, float]:
    """The features of a plan whose time was predicted. Those that a sum does not make sense of: of its longest launch."""
    longest = max(launches, key=lambda each: each.plain.end)
    counted = [_Counted(each) for each in launches]
    return {
        "time": math.log2(time_us),
        "launches": float(len(launches)),
        **{name: value / time_us for name, value in terms.items()},
        **_of_launch(longest, time_us, chip, rates),
        **_of_bytes(counted, time_us, task, chip),
        **_of_outside(launches, counted, longest, time_us, chip),
        **_of_instructions(counted[launches.index(longest)], longest, time_us, rates),
        "all tensor cores": task.flops // 2 / (chip.sms * rates.tensor_rate * rates.clock_mhz * time_us),
        "products": _log2(sum(each.macs for each in counted) / (task.flops // 2)),
    }


def _log2(ratio: float) -> float:
    """Bounded, so that nothing is infinitely far away."""
    return max(math.log2(ratio), -20.0) if ratio > 0 else -20.0


class _Counted:
    """What all clusters of a launch move and compute, by those that were traced."""

    def __init__(self, launch: ModelledLaunch) -> None:
        rows = launch.traced.rows
        kinds, count = rows["kind"].astype(np.intp), len(KIND) + 1
        self.all = launch.clusters / launch.traced.clusters * launch.left_out
        self.rows = np.bincount(kinds, minlength=count).astype(np.float64)
        self.amounts = np.bincount(kinds, weights=rows["amount"], minlength=count)
        self.parts = np.bincount(kinds, weights=rows["parts"], minlength=count)
        wgmma, mma = float(self.amounts[KIND.PRODUCT]) * MACS_PER_COLUMN, float(self.amounts[KIND.FRAGMENTS])
        self.macs, self.fragments = (wgmma + mma) * self.all, mma / max(wgmma + mma, 1.0)

    def of(self, what: np.ndarray, *kinds: int) -> float:
        return float(sum(what[kind] for kind in kinds))


def _of_launch(launch: ModelledLaunch, time_us: float, chip: Chip, rates: TimingRates) -> dict[str, float]:
    limits, turns = LIMITS[chip.arch], launch.turns
    registers = launch.resources.registers if launch.resources else 0
    ctas = launch.clusters * launch.size
    return {
        "plain": _log2(launch.time_us(programmatic=False) / time_us),
        "one cluster": launch.plain.alone / time_us,
        "crowded": _log2(launch.simulated.end / max(launch.plain.end, 1e-9)),
        "before the wait": launch.simulated.begin / time_us,
        "fits beside": float(launch.fits_beside()),
        "early": float(launch.early),
        "programmatic": float(launch.traced.launch.programmatic),
        "waves": _log2(launch.clusters / launch.fit),
        "last wave": launch.clusters / (launch.even * launch.fit),
        "CTAs per SM": _log2(ctas / chip.sms),
        "CTAs": rates.cta_us * ctas / time_us,
        "limit": _log2(launch.limit),
        "resident": _log2(turns.resident),
        "turns": _log2(turns.count / turns.resident),
        "cluster": _log2(launch.size),
        "threads": _log2(launch.threads / 32),
        "resident threads": launch.threads * turns.resident / limits.max_threads_per_sm,
        "registers": registers / 255,
        "shared bytes": launch.smem / limits.smem_per_sm_bytes,
        "resident shared bytes": launch.smem * turns.resident / limits.smem_per_sm_bytes,
        "traced": float(launch.traced.whole),
    }


def _of_bytes(counted: Sequence[_Counted], time_us: float, task: GemmTask, chip: Chip) -> dict[str, float]:
    def total(field: str, *kinds: int) -> float:
        return sum(each.of(getattr(each, field), *kinds) * each.all for each in counted)

    bulk, copies, loads = (total("amounts", kind) for kind in (KIND.BULK_LOAD, KIND.COPY, KIND.LOAD))
    loaded = max(bulk + copies + loads, 1.0)
    filled = bulk + copies + total("amounts", KIND.BULK_TARGET)
    stores, bulk_stores = total("amounts", KIND.STORE), total("amounts", KIND.BULK_STORE)
    smaller, larger = sorted((2.0 * task.k * task.m, 2.0 * task.k * task.n * task.products))
    second = 1e-6 * chip.dram_tbps * 1e12 * time_us  # bytes that DRAM moves in that time
    return {
        "loaded": _log2(loaded / second),
        "bulk loads": bulk / loaded,
        "asynchronous copies": copies / loaded,
        "loaded again": _log2(loaded / (smaller + larger)),
        "multicast": _log2(filled / max(bulk + copies, 1.0)),
        "bytes of a row": _log2(bulk / total("parts", KIND.BULK_LOAD)) if bulk else 0.0,
        "bytes of a copy": _log2(bulk / total("rows", KIND.BULK_LOAD)) if bulk else 0.0,
        "loaded lines": _log2(loads / total("parts", KIND.LOAD) / _LINE_BYTES) if loads else 0.0,
        "copied lines": _log2(copies / total("parts", KIND.COPY) / _LINE_BYTES) if copies else 0.0,
        "stored": _log2((stores + bulk_stores) / second),
        "stored again": _log2((stores + bulk_stores) / (2.0 * task.m * task.n)),
        "bulk stores": bulk_stores / max(stores + bulk_stores, 1.0),
        "stored lines": _log2(stores / total("parts", KIND.STORE) / _LINE_BYTES) if stores else 0.0,
        "stored rows": _log2(bulk_stores / total("parts", KIND.BULK_STORE)) if bulk_stores else 0.0,
        "smaller operand": _log2(smaller / chip.l2_bytes),
        "larger operand": _log2(larger / chip.l2_bytes),
        "output": _log2(2.0 * task.m * task.n / chip.l2_bytes),
    }


def _of_outside(
    launches: Sequence[ModelledLaunch], counted: Sequence["_Counted"], longest: ModelledLaunch, time_us: float, chip: Chip
) -> dict[str, float]:
    """Reads beyond the operands, which the copy engines fill with zeros. Unit of the rows: per nanosecond and SM."""
    rows, moved = (sum(each.outside(column) for each in launches) for column in (0, 1))
    loaded = sum(each.of(each.amounts, KIND.BULK_LOAD) * each.all for each in counted)
    traces = [each for each in (longest.traced, longest.other.traced if longest.other else None) if each]
    most = max(float(each.outside[:, 0].sum()) / each.ctas for each in traces)
    return {
        "rows outside": rows / chip.sms / time_us / 1000,
        "most rows outside": most * longest.turns.count * longest.left_out / time_us / 1000,
        "bytes outside": moved / max(loaded, 1.0),
        "edges": longest.edge,
        "other": longest.other.time_us(programmatic=True) / longest.time_us(programmatic=True) if longest.other else 1.0,
    }


def _of_instructions(counted: _Counted, launch: ModelledLaunch, time_us: float, rates: TimingRates) -> dict[str, float]:
    rows, ctas, of = launch.traced.rows, launch.traced.ctas, launch.traced.of
    streams = np.bincount(rows["stream"], weights=rows["gap"], minlength=ctas * WARPS)
    waits = np.bincount(rows["stream"][of(KIND.WAIT)], minlength=ctas * WARPS)
    per_cluster = launch.turns.count / launch.turns.resident * launch.left_out
    filled = counted.of(counted.amounts, KIND.BULK_LOAD, KIND.COPY, KIND.BULK_TARGET) / ctas * launch.turns.count
    warps, arrivals = max(int((streams > 0).sum()), 1), rows["parts"][of(KIND.ARRIVE)]
    barriers, clusters = float((arrivals == 1).sum()) / warps, float((arrivals == 2).sum()) / warps
    cycle = 1.0 / rates.clock_mhz
    return {
        "longest stream": float(streams.max()) * rates.operation_cycles * cycle * per_cluster / time_us,
        "waits": float(waits.max()) * rates.arrive_cycles * cycle * per_cluster / time_us,
        "barriers": barriers * rates.barrier_cycles * cycle * per_cluster / time_us,
        "cluster barriers": clusters * rates.cluster_cycles * cycle * per_cluster / time_us,
        "atomics": counted.of(counted.rows, KIND.ATOMIC) / ctas * rates.atomic_us * per_cluster / time_us,
        "fences": counted.of(counted.rows, KIND.FENCE) / ctas * cycle * per_cluster / time_us,
        "remote bytes": counted.of(counted.amounts, KIND.REMOTE_LOAD, KIND.REMOTE_STORE, KIND.BULK_SHARED)
        / max(counted.of(counted.amounts, KIND.BULK_LOAD, KIND.COPY, KIND.LOAD), 1.0),
        "held ahead": _log2(launch.smem * launch.turns.resident / filled) if filled else 0.0,
        "fragments": counted.fragments,
        "columns": counted.of(counted.amounts, KIND.PRODUCT) / max(counted.of(counted.rows, KIND.PRODUCT), 1.0) / 256,
        "A in registers": counted.of(counted.parts, KIND.PRODUCT) / max(counted.of(counted.rows, KIND.PRODUCT), 1.0),
        "depth": _log2(counted.macs / max(float(waits.sum()) * counted.all, 1.0)),
        "warps": _log2(warps / ctas),
        "stalls": launch.plain.alone / max(float(streams.max()) * rates.operation_cycles * cycle, 1e-9) / 100,
    }
