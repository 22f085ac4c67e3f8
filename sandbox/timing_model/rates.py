"""Latencies and rates of a chip, as the timing model uses them. Data: no kernel family and no shape is known here.

Rates of an H200 were fitted to steps of the sweep (docs/internals/timing_model.md says how; by
benchmarks/emulator/timing_model/calibrate.py). Those of other chips scale from them by the chip's own sizes, and are guesses
(`fitted` is False).
"""

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.task import Arch


class TimingRates(Record):
    """Unit: cycles of the SM's clock for latencies inside an SM, microseconds beyond it, bytes per microsecond.

    `tensor_rate`: multiply-adds per cycle and SM that wgmma reaches; `fragment_rate`: the same of mma.sync.
    `operation_cycles`: time of a warp for one operation, alone; `issue_cycles`: of the scheduler that issues it.
    `smem_bytes`: per cycle, for fill, operands and epilogue together. `sm_bytes_per_us`: into one SM from L2.
    `l2_bytes_per_us`, `dram_bytes_per_us`, `store_bytes_per_us`: of the whole chip. `line_us`: per row of a bulk copy
    (not fitted: measured on 8192x8192x8192 with rows of 64 bytes, which the steps of a search rarely have).
    `load_line_cycles`, `store_line_cycles`: per line of 128 bytes that a warp's access touches.
    `box_us`: per bulk copy. `map_us`: the first use of a tensor map. `cta_us`: per CTA of a launch.
    `load_us`, `bulk_load_us`: a load that misses L2. `turn_us`: from the end of a CTA until the next begins on its SM.
    `launch_us`: from the end of a kernel until the next runs; `overlapped_launch_us`: with programmatic launch.
    `crowding`: how many CTAs more than an even distribution the busiest SM gets behind early programmatic launches, per
    factor e of room that is left; `launches_in_flight`: launches that pile up there at most.
    `drain_us`: from the last instruction until the stores are visible; `bulk_drain_us`: more, where bulk copies store.
    `clock_mhz`: where all SMs work; `cool_clock_mhz`: the maximum, which few of them reach.
    """

    clock_mhz: float = 1755.0
    cool_clock_mhz: float = 1980.0
    tensor_rate: float = 1714.0
    fragment_rate: float = 1821.0
    product_cycles: float = 188.5
    fragment_cycles: float = 33.0
    operation_cycles: float = 1.687
    issue_cycles: float = 1.071
    smem_bytes: float = 128.0
    shared_cycles: float = 15.53
    arrive_cycles: float = 38.69
    barrier_cycles: float = 22.34
    cluster_cycles: float = 428.1
    remote_cycles: float = 264.0
    remote_bytes: float = 16.1
    sm_bytes_per_us: float = 134800.0
    l2_bytes_per_us: float = 13140000.0
    dram_bytes_per_us: float = 4052000.0
    store_bytes_per_us: float = 3554000.0
    load_line_cycles: float = 1.869
    store_line_cycles: float = 2.67
    line_us: float = 0.0009
    box_us: float = 0.01
    load_us: float = 0.5649
    bulk_load_us: float = 0.7658
    map_us: float = 0.1852
    bulk_drain_us: float = 0.1113
    atomic_us: float = 0.4194
    fence_us: float = 0.5853
    turn_us: float = 0.1661
    launch_us: float = 0.8439
    overlapped_launch_us: float = 0.1122
    drain_us: float = 0.2378
    cta_us: float = 0.001
    crowding: float = 1.156
    launches_in_flight: float = 16.0
    fitted: bool = False


H200 = TimingRates(fitted=True)


def rates_of(chip: Chip) -> TimingRates:
    """The rates of a chip; those that were not fitted scale from an H200's by SMs, tensor rate, bandwidth and launch."""
    reference = REFERENCE_CHIPS[Arch.SM_90A]
    if chip.arch is Arch.SM_90A and chip.dram_tbps == reference.dram_tbps:
        return H200
    per_sm = chip.sms / reference.sms
    tensor = chip.tensor_tflops / reference.tensor_tflops / per_sm
    memory = chip.dram_tbps / reference.dram_tbps
    return H200.model_copy(
        update={
            "tensor_rate": H200.tensor_rate * tensor,
            "fragment_rate": H200.fragment_rate
            * (tensor if chip.arch is Arch.SM_90A else tensor * H200.tensor_rate / H200.fragment_rate),
            "l2_bytes_per_us": H200.l2_bytes_per_us * per_sm,
            "dram_bytes_per_us": H200.dram_bytes_per_us * memory,
            "store_bytes_per_us": H200.store_bytes_per_us * memory,
            "launch_us": H200.launch_us * chip.launch_us / reference.launch_us,
            "fitted": False,
        }
    )
