"""Unusual right kernels on tensor cores: hints, odd pipelines, clusters, stream-K, and both families."""

from typing import Any

from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.redteam.base import WORKSPACE
from tests.redteam.case import Case, task
from tests.redteam.corpus.rows import tiled
from tests.sandbox.emulator.kernels.written import WRITTEN

GROUP = "honest"
HINTS = """\
__device__ __forceinline__ void copy16(unsigned target, const half* source, bool stays) {
  unsigned long long policy;
  if (stays) {
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 0.5;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               ::"r"(target), "l"(source), "l"(policy) : "memory");
}
__device__ __forceinline__ void copy16(unsigned target, const half* source) { copy16(target, source, blockIdx.x % 2); }
"""
PREFETCH_OWN = """\
    if (k0 + 4 * kStep < k_end && t < kTile) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a + (size_t)(m0 + t) * k + k0 + 4 * kStep) : "memory");
    }
"""
RASTER = "  m0 = (blockIdx.y ^ blockIdx.x & 0) * kTile;\n  n0 = (gridDim.x - 1 - blockIdx.x) * kTile;\n"
# Splits of K write partial sums; the last arrival adds them in order and resets the counter.
FIX_UP = """\
  float* const parts = reinterpret_cast<float*>(w + (size_t)gridDim.x * gridDim.y);
  const size_t tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  float* const mine = parts + (tile * gridDim.z + blockIdx.z) * kTile * kTile;
  for (int i = 0; i < 64; ++i) __stcg(mine + i * kThreads + t, sums[i / 16][i / 4 % 4][i % 4]);
  if (!cudal2::arrives_last(w + tile, gridDim.z)) return;
  for (int i = 0; i < 64; ++i) {
    float sum = 0;
    for (int z = 0; z < gridDim.z; ++z) sum += __ldcg(parts + (tile * gridDim.z + z) * kTile * kTile + i * kThreads + t);
    sums[i / 16][i / 4 % 4][i % 4] = sum;
  }
"""
SPLIT = """\
  k_begin = (int)(blockIdx.z * (k / kStep) / gridDim.z) * kStep;
  k_end = (int)((blockIdx.z + 1) * (k / kStep) / gridDim.z) * kStep;
"""
TMA = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=2, programmatic=False)
PAST_THE_DIAGONAL = """\
  __shared__ int stage_of[kThreads];
  stage_of[t] = lane;
  __syncwarp();
  if (stage_of[t ^ 31] + lane != 31) k_end = 0;
"""


def _honest(name: str, why: str, **written: Any) -> Case:
    return tiled(name, GROUP, why, gpu=(), honest=True, **written)


def _family(name: str, why: str, schedule: Any, small: str, **fields: Any) -> Case:
    """A kernel of a family with its shape compiled in, so that both tasks have one source."""
    same: GemmTask = task(small, **fields)
    source = next(family for family in families(same.arch) if family.name == schedule.family).write(schedule, same).source
    return Case(name, GROUP, source, task=same, small=same, why=why, honest=True)


def _written() -> list[Case]:
    """The kernels of the emulator's tests that this machine compiles without nvcc."""
    usual = [kernel for kernel in WRITTEN if kernel.missing() is None and kernel.candidate().compiler == "nvrtc"]
    return [
        Case(
            f"written-{kernel.name}",
            GROUP,
            kernel.candidate().source,
            each,
            each,
            f"{kernel.opcodes[0]} and the like",
            honest=True,
        )
        for kernel in usual
        for each in [kernel.tasks[0].model_copy(update={"arch": Arch.SM_90A})]
    ]


def cases() -> list[Case]:
    """Every right kernel of this base, and a few of the families'."""
    restored = {"bytes": "(N/128)*(M/128)*(4+3*65536)", "zero": "restored", "zero_bytes": "4*(N/128)*(M/128)"}
    mma = MmaSyncSchedule(block_m=32, block_n=32, block_k=32, warps_m=2, warps_n=2, stages=3)
    return [
        _honest("tiled", "a tile of 128 x 128 by two stages of cp.async"),
        _honest("cache-hints", "evict_first for half of the CTAs' loads, evict_last for the others", slots={"copy": HINTS}),
        _honest("prefetches-its-own", "later steps of its own operand are prefetched", slots={"step": PREFETCH_OWN}),
        _honest("rasters-backwards", "tiles in another order", slots={"first": RASTER}),
        _honest(
            "shared-between-lanes",
            "lanes exchange words through shared memory behind __syncwarp",
            slots={"first": PAST_THE_DIAGONAL},
        ),
        _honest(
            "stream-k-fix-up",
            "three splits of K, summed in order by the last that arrives, with counters put back to zero",
            slots={
                "includes": "#include <cudal2/arrival.cuh>\n",
                "parameters": ", unsigned* w",
                "first": SPLIT,
                "summed": FIX_UP,
            },
            args=[WORKSPACE],
            launch={"grid": ["N/128", "M/128", 3]},
            fields={"workspace": restored},
        ),
        _family("five-stages", "cp.async five stages deep", mma.model_copy(update={"stages": 5}), "64x64x256"),
        _family(
            "split-k-in-a-cluster",
            "splits of K meet in a cluster",
            mma.model_copy(update={"split_k": 2, "reduction": "cluster", "epilogue": "direct", "stages": 2}),
            "64x64x160",
        ),
        _family(
            "split-k-in-the-workspace",
            "splits of K meet in the workspace",
            mma.model_copy(update={"split_k": 2, "reduction": "workspace", "stages": 2}),
            "64x64x160",
        ),
        _family(
            "programmatic-family",
            "started early, with its wait in place",
            mma.model_copy(update={"programmatic": True}),
            "64x64x160",
        ),
        _family(
            "ragged-tn",
            "tiles that reach past every edge, B column-major",
            mma.model_copy(update={"stages": 2, "epilogue": "direct"}),
            "45x50x52",
            layout="tn",
        ),
        _family("half-accumulators", "f16 accumulators, as the task asks", mma, "64x64x96", accumulate="f16"),
        *(
            _family(name, why, TMA.model_copy(update=axes), shape)
            for name, why, axes, shape in (
                ("tma-and-wgmma", "TMA loads, wgmma, TMA stores", {}, "128x128x192"),
                ("tma-multicast", "a cluster that shares B by multicast", {"cluster_m": 2}, "128x128x128"),
                ("tma-persistent", "persistent CTAs, which take tile after tile", {"persistent": True}, "128x192x128"),
                (
                    "tma-cluster-sum",
                    "a cluster that sums its splits of K",
                    {"consumers": 2, "cluster_k": 2, "tma_store": False},
                    "128x128x384",
                ),
            )
        ),
        *_written(),
    ]
