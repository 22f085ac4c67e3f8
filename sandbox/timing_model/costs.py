"""A trace as steps with times on the resources of SMs. Every number is a rate times what the trace counts.

Unit: microseconds. The resources of an SM: four tensor cores, four schedulers, shared memory, the ports through which it
loads from and stores to L2, its port to the shared memory of peers, and its engine of bulk copies.
"""

from dataclasses import dataclass

import numpy as np

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.timing_model.rates import TimingRates
from cudal2_agent.sandbox.timing_model.trace import KIND, WARPS, Traced

SCHEDULERS = 4
TENSOR, ISSUE, SMEM, LOAD, STORE, REMOTE, ENGINE = 0, 4, 8, 9, 10, 11, 12
RESOURCES = 13  # of an SM
LOADS, COPIES, PRODUCTS, STORES = 1, 2, 3, 4  # tracks of a stream
_TRACK = {KIND.COPY: COPIES, KIND.PRODUCT: PRODUCTS, KIND.BULK_STORE: STORES}
MULTIPLYING, EXCHANGING = 1, 2  # phases of a replay: tensor-core products; sums that pass from CTA to CTA
_ROWS_OF_WGMMA, _DEPTH = 16, 16  # of one warp's part of a wgmma, and of its k
_A_BYTES = 64 * _DEPTH * 2
_SYSTEM_SCOPES = 2  # fences of this scope and beyond reach L2
_FLAG = core.StepFlag


@dataclass(frozen=True)
class Shares:
    """What one SM gets of the chip. Unit: bytes per microsecond. `missing`: the share of loaded bytes that come from DRAM.

    `clock_mhz`: of the SMs, which is higher where few of them work.
    """

    l2: float
    dram: float
    store: float
    missing: float
    clock_mhz: float


class Steps:
    """Steps of one cluster, a column for each field of the core's steps. Shape: numbers, times (fields, steps)."""

    def __init__(self, count: int) -> None:
        self.numbers = np.zeros((len(core.step_numbers), count), dtype=np.uint32)
        self.times = np.zeros((len(core.step_times), count), dtype=np.float32)
        fields = (*core.step_numbers, *core.step_times)
        self._columns: dict[str, np.ndarray] = dict(zip(fields, (*self.numbers, *self.times), strict=True))

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    def __getitem__(self, field: str) -> np.ndarray:
        return self._columns[field]


def steps_of(traced: Traced, rates: TimingRates, shares: Shares) -> Steps:
    """Steps of one cluster, in the order of its rows."""
    return _Made(traced, rates, shares).made()


class _Made:
    def __init__(self, traced: Traced, rates: TimingRates, shares: Shares) -> None:
        self._rates, self._shares, self._rows, self._outside = rates, shares, traced.rows, traced.outside
        self._of, self._scratch = traced.of, traced.scratch
        self._cycle = 1.0 / shares.clock_mhz
        self._amount = traced.rows["amount"].astype(np.float64)
        self._parts = traced.rows["parts"].astype(np.float64)
        self._sm = 1 + traced.rows["stream"] // WARPS * RESOURCES
        self._scheduler = traced.rows["stream"] % SCHEDULERS
        self._steps = Steps(traced.count)

    def made(self) -> Steps:
        rates, rows, steps = self._rates, self._rows, self._steps
        steps["stream"][:] = rows["stream"]
        steps["own"][:] = rows["gap"] * (rates.operation_cycles * self._cycle)
        steps["issue"][:] = rows["gap"] * (rates.issue_cycles * self._cycle)
        waits = self._of(KIND.WAIT)
        steps["give"][:] = rows["token"]
        steps["wait"][waits], steps["give"][waits] = rows["token"][waits], 0
        self._barriers()
        self._products()
        self._loads()
        self._stores()
        self._shared()
        self._set(self._of(KIND.PRODUCT, KIND.FRAGMENTS), phase=MULTIPLYING)
        self._set(self._of(KIND.REMOTE_LOAD, KIND.REMOTE_STORE, KIND.BULK_SHARED), phase=EXCHANGING)
        self._set(np.flatnonzero(self._scratch), phase=EXCHANGING)
        return steps

    def _set(self, at: np.ndarray, **fields: object) -> None:
        for name, value in fields.items():
            self._steps[name][at] = value

    def _barriers(self) -> None:
        rates, cycle = self._rates, self._cycle
        at = self._of(KIND.ARRIVE)
        latencies = np.array([rates.arrive_cycles, rates.barrier_cycles, rates.cluster_cycles]) * cycle
        self._set(at, latency=latencies[self._rows["parts"][at]])
        at = self._of(KIND.COMMIT)
        tracks = np.zeros(len(KIND) + 1, dtype=np.uint32)
        for kind, track in _TRACK.items():
            tracks[kind] = track
        self._set(at, flags=int(_FLAG.OF_TRACK), track=tracks[self._rows["parts"][at]])
        at = self._of(KIND.FENCE)
        self._set(at, flags=int(_FLAG.BLOCK), latency=np.where(self._amount[at] >= _SYSTEM_SCOPES, rates.fence_us, 0.0))
        self._set(self._of(KIND.DEPENDENCY), flags=int(_FLAG.MARK))

    def _products(self) -> None:
        rates, cycle = self._rates, self._cycle
        at = self._of(KIND.PRODUCT)
        macs = self._amount[at] * _ROWS_OF_WGMMA * _DEPTH
        leads = self._rows["stream"][at] % SCHEDULERS == 0
        read = np.where(leads, self._amount[at] * _DEPTH * 2 + np.where(self._parts[at] > 0, 0, _A_BYTES), 0.0)
        self._set(
            at,
            first=self._sm[at] + TENSOR + self._scheduler[at],
            first_time=macs / (rates.tensor_rate / SCHEDULERS) * cycle,
            second=self._sm[at] + SMEM,
            second_time=read / rates.smem_bytes * cycle,
            latency=rates.product_cycles * cycle,
            track=PRODUCTS,
        )
        at = self._of(KIND.FRAGMENTS)
        self._set(
            at,
            first=self._sm[at] + TENSOR + self._scheduler[at],
            first_time=self._amount[at] / (rates.fragment_rate / SCHEDULERS) * cycle,
            latency=rates.fragment_cycles * cycle,
            track=PRODUCTS,
            flags=int(_FLAG.HOLD | _FLAG.DRAIN),
        )

    def _loads(self) -> None:
        rates, shares, cycle = self._rates, self._shares, self._cycle
        at = self._of(KIND.BULK_LOAD, KIND.COPY, KIND.LOAD)
        copied = self._amount[at] * (1 + self._targets()[at])
        read = self._amount[at] - self._outside[at, 1]
        port = np.maximum(read / min(shares.l2, rates.sm_bytes_per_us), copied / rates.sm_bytes_per_us)
        port = np.maximum(port, read * shares.missing / shares.dram)
        bulk = self._rows["kind"][at] == KIND.BULK_LOAD
        lines = np.where(bulk, self._parts[at] * rates.line_us + rates.box_us, 0.0)
        port = np.maximum(port, np.where(bulk, 0.0, self._parts[at] * rates.load_line_cycles * cycle))
        into = np.where(self._rows["kind"][at] == KIND.LOAD, 0.0, copied / rates.smem_bytes * cycle)
        track = np.where(self._rows["kind"][at] == KIND.LOAD, LOADS, np.where(bulk, 0, COPIES))
        latency = np.where(bulk, rates.bulk_load_us, rates.load_us)
        firsts = np.unique(self._sm[at[bulk]], return_index=True)[1]
        latency[np.flatnonzero(bulk)[firsts]] += rates.map_us
        self._set(at, first=self._sm[at] + LOAD, first_time=port, latency=latency, track=track)
        self._set(at, second=self._sm[at] + SMEM, second_time=into)
        self._set(at, third=np.where(bulk, self._sm[at] + ENGINE, 0), third_time=lines)
        self._set(self._of(KIND.BULK_TARGET), flags=int(_FLAG.TOGETHER))
        at = self._of(KIND.ATOMIC)
        self._set(at, latency=rates.atomic_us, flags=int(_FLAG.BLOCK))

    def _targets(self) -> np.ndarray:
        """How many more CTAs each row's bulk load writes."""
        at = self._of(KIND.BULK_TARGET)
        begins = np.flatnonzero(np.diff(at, prepend=-2) != 1)  # of those that follow one load
        counts = np.zeros(len(self._steps))
        counts[at[begins] - 1] = np.diff(begins, append=len(at))
        return counts

    def _stores(self) -> None:
        rates, shares, cycle = self._rates, self._shares, self._cycle
        at = self._of(KIND.STORE)
        # A sector of L2 that a store fills in part costs as one that it fills.
        port = np.maximum(self._amount[at] / shares.store, self._parts[at] * rates.store_line_cycles * cycle)
        visible = np.where(self._rows["token"][at] > 0, rates.atomic_us, 0.0)
        self._set(at, first=self._sm[at] + STORE, first_time=port, flags=int(_FLAG.DRAIN), latency=visible)
        at = self._of(KIND.BULK_STORE)
        self._set(
            at,
            first=self._sm[at] + STORE,
            first_time=self._amount[at] / shares.store,
            second=self._sm[at] + SMEM,
            second_time=self._amount[at] / rates.smem_bytes * cycle,
            third=self._sm[at] + ENGINE,
            third_time=self._parts[at] * rates.line_us + rates.box_us,
            track=STORES,
        )

    def _shared(self) -> None:
        rates, cycle = self._rates, self._cycle
        at = self._of(KIND.SHARED_LOAD)
        hold = int(_FLAG.HOLD)
        self._set(at, first=self._sm[at] + SMEM, first_time=self._amount[at] * cycle, flags=hold, track=LOADS)
        self._set(at, latency=rates.shared_cycles * cycle)
        at = self._of(KIND.SHARED_STORE)
        self._set(at, first=self._sm[at] + SMEM, first_time=self._amount[at] * cycle, flags=hold | int(_FLAG.DRAIN))
        at = self._of(KIND.REMOTE_LOAD, KIND.REMOTE_STORE, KIND.BULK_SHARED)
        loads = self._rows["kind"][at] == KIND.REMOTE_LOAD
        self._set(
            at,
            first=self._sm[at] + REMOTE,
            first_time=self._amount[at] / rates.remote_bytes * cycle,
            latency=rates.remote_cycles * cycle,
            track=np.where(loads, LOADS, 0),
            flags=np.where(loads, hold, hold | int(_FLAG.DRAIN)),
        )
