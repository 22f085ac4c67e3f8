"""The limits and the rates of a chip, per target architecture."""

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import Arch


class ChipLimits(Record):
    """Hard limits of an architecture. Source: CUDA C++ Programming Guide, compute capabilities table."""

    max_threads_per_block: int = 1024
    max_smem_per_block_bytes: int
    smem_per_sm_bytes: int
    registers_per_sm: int = 65536
    max_threads_per_sm: int
    max_blocks_per_sm: int
    max_cluster: int = 1
    tensor_maps: bool = False
    programmatic_launch: bool = False


class Chip(Record):
    """The sizes and rates of one GPU.

    Unit: rates in TFLOP/s and TB/s, dense, f16 with f32 accumulation. `measured`: whether they were
    measured; otherwise they are those of the datasheet.
    """

    name: str
    arch: Arch
    sms: int
    l2_bytes: int
    memory_bytes: int
    tensor_tflops: float
    dram_tbps: float
    launch_us: float
    measured: bool = False


class FittedFigures(Record):
    """Unit: microseconds. `remote_us`: to the shared memory of another CTA, whose port takes `remote_bytes_per_clock`.

    `cluster_barrier_us`: all CTAs of a cluster meet. `flag_us`: until an atomic, or a store that another CTA waits for, is seen
    through L2. `fence_us`: of a fence for the whole GPU. `map_us`: the first use of a tensor map in a CTA.
    """

    remote_us: float
    remote_bytes_per_clock: int
    cluster_barrier_us: float
    flag_us: float
    fence_us: float
    map_us: float


class ChipFigures(Record):
    """What was measured of a chip beside its rates. Unit: microseconds of device time unless the name says otherwise.

    `l2_tbps`: from L2 by all SMs together. `smem_bytes_per_clock`: of one SM, for TMA's fill, wgmma's reads and the epilogue
    together. `clusters`: how many clusters of a size are resident together at one CTA per SM, counted by the driver.
    `gpcs`: SMs of each GPC, within which a cluster lies; they follow from these counts and from times. `empty_us`: an empty
    kernel among others, by its number of CTAs. `dependent_us`, `programmatic_us`: a kernel that reads what the one before
    wrote, by a plain and by a programmatic launch. `cluster_us`: what a cluster adds to a launch. `trip_us`: a load's trip to
    L2 and back while all SMs load. `box_row_ns`: of an SM's copy engine, per box row of at most 128 bytes. `single_us`: what a
    single launch onto an idle GPU takes more than one of many without programmatic launch.

    `fitted`: of the timing model, to times of some 400 kernels. They are what a prediction counts.
    """

    chip: str
    sms: int
    l2_tbps: float
    smem_bytes_per_clock: int
    clusters: dict[int, int]
    gpcs: tuple[int, ...]
    empty_us: dict[int, float]
    dependent_us: float
    programmatic_us: float
    cluster_us: float
    trip_us: float
    box_row_ns: float
    single_us: float
    fitted: "FittedFigures"

    def clusters_of(self, size: int) -> int:
        """Clusters of any size that are resident together at one CTA per SM."""
        return sum(sms // size for sms in self.gpcs)


_KIB = 1024
_MIB = 1024**2
_GIB = 1024**3

LIMITS: dict[Arch, ChipLimits] = {
    Arch.SM_80: ChipLimits(
        max_smem_per_block_bytes=163 * _KIB, smem_per_sm_bytes=164 * _KIB, max_threads_per_sm=2048, max_blocks_per_sm=32
    ),
    Arch.SM_86: ChipLimits(
        max_smem_per_block_bytes=99 * _KIB, smem_per_sm_bytes=100 * _KIB, max_threads_per_sm=1536, max_blocks_per_sm=16
    ),
    Arch.SM_89: ChipLimits(
        max_smem_per_block_bytes=99 * _KIB, smem_per_sm_bytes=100 * _KIB, max_threads_per_sm=1536, max_blocks_per_sm=24
    ),
    Arch.SM_90A: ChipLimits(
        max_smem_per_block_bytes=227 * _KIB,
        smem_per_sm_bytes=228 * _KIB,
        max_threads_per_sm=2048,
        max_blocks_per_sm=32,
        max_cluster=16,
        tensor_maps=True,
        programmatic_launch=True,
    ),
    Arch.SM_100A: ChipLimits(
        max_smem_per_block_bytes=227 * _KIB,
        smem_per_sm_bytes=228 * _KIB,
        max_threads_per_sm=2048,
        max_blocks_per_sm=32,
        max_cluster=16,
        tensor_maps=True,
        programmatic_launch=True,
    ),
}

# The chip assumed for an architecture where no GPU is present. H200 rates are measured (log/); the others are the
# dense rates of the datasheets.
REFERENCE_CHIPS: dict[Arch, Chip] = {
    Arch.SM_80: Chip(
        name="A100-SXM4-80GB",
        arch=Arch.SM_80,
        sms=108,
        l2_bytes=40 * _MIB,
        memory_bytes=80 * _GIB,
        tensor_tflops=312,
        dram_tbps=2.0,
        launch_us=1.0,
    ),
    Arch.SM_86: Chip(
        name="A40",
        arch=Arch.SM_86,
        sms=84,
        l2_bytes=6 * _MIB,
        memory_bytes=48 * _GIB,
        tensor_tflops=150,
        dram_tbps=0.696,
        launch_us=1.0,
    ),
    Arch.SM_89: Chip(
        name="L40S",
        arch=Arch.SM_89,
        sms=142,
        l2_bytes=96 * _MIB,
        memory_bytes=48 * _GIB,
        tensor_tflops=362,
        dram_tbps=0.864,
        launch_us=1.0,
    ),
    Arch.SM_90A: Chip(
        name="H200",
        arch=Arch.SM_90A,
        sms=132,
        l2_bytes=60 * _MIB,
        memory_bytes=141 * 10**9,
        tensor_tflops=800,
        dram_tbps=4.3,
        launch_us=0.7,
        measured=True,
    ),
    Arch.SM_100A: Chip(
        name="B200",
        arch=Arch.SM_100A,
        sms=148,
        l2_bytes=126 * _MIB,
        memory_bytes=180 * 10**9,
        tensor_tflops=2250,
        dram_tbps=8.0,
        launch_us=0.7,
    ),
}

# Sources: sandbox/timing_model/rates.py (`fitted`);
# log/, 2026-11-21 (clusters that fit, L2, trips, copy engine), 2026-11-23 (single launches); the note on sm_90a.
FIGURES: dict[Arch, ChipFigures] = {
    Arch.SM_90A: ChipFigures(
        chip="H200",
        sms=132,
        l2_tbps=14,
        smem_bytes_per_clock=128,
        clusters={1: 132, 2: 66, 4: 30, 8: 15, 16: 7},
        gpcs=(18, 18, 18, 18, 18, 16, 16, 10),  # of clusters of 14, eight take two waves
        empty_us={1: 0.49, 132: 0.72, 528: 0.96},
        dependent_us=1.26,
        programmatic_us=0.77,
        cluster_us=0.05,
        trip_us=0.9,
        box_row_ns=0.9,
        single_us=0.82,
        fitted=FittedFigures(
            remote_us=0.15, remote_bytes_per_clock=16, cluster_barrier_us=0.24, flag_us=0.42, fence_us=0.59, map_us=0.19
        ),
    )
}
