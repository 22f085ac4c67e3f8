"""Seeded faults of `wgmma_tma` kernels: every CTA that splits a tile adds a share of it; with swap_ab, boxes that four warps
fill together, transposed on the way.
"""

from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

SPREAD = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, splits=2, tma_store=False, spread_sum=True)
TASK = gemm(128, 128, 320, layout="tn")

SPREAD_SUM_FAULTS = (
    Fault(
        name="spread-arrival-does-not-release",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("increment_release(counter, 2", "increment_relaxed(counter, 2"),),
        detectors=("global-race",),
        why="the arrival is counted before the partial sums that it announces are visible",
    ),
    Fault(
        name="spread-wait-does-not-acquire",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),),
        detectors=("global-race",),
        why="partial sums may be read from before the moment at which all arrivals were seen",
    ),
    Fault(
        name="spread-counter-not-restored",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("      increment_relaxed(counter, 2 * kSplits - 1);\n", ""),),
        detectors=("workspace",),
        why="departures are not counted, so the next launch finds all arrivals of this one",
    ),
    Fault(
        name="spread-first-departure-restores",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("increment_relaxed(counter, 2 * kSplits - 1);", "increment_relaxed(counter, kSplits);"),),
        detectors=("deadlock", "endless"),
        why="the counter is zero again before the other CTA has seen all arrivals, and it waits for ever",
    ),
    Fault(
        name="spread-waits-for-one-arrival-less",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("while (load_acquire(counter) < kSplits)", "while (load_acquire(counter) < kSplits - 1)"),),
        detectors=("global-race", "uninitialised-read"),
        why="the first CTA of a tile adds sums that the other has not written",
    ),
)


TURNED_TASK = gemm(320, 264, 128)
TURNED = WgmmaTmaSchedule(
    consumers=2, atoms=1, block_n=160, block_k=64, stages=3, persistent=True, store_boxes=1, turned=True, programmatic=False
)
_FREE_BOX = "      if (thread == 0) tma_store_wait_read<kStoreBuffers - 1>();\n"
_FULL_BOX = "    fence_proxy_async();\n    named_barrier(barrier, kWarpgroup);\n    if (thread == 0) {"

TURNED_FAULTS = (
    Fault(
        name="box-sent-before-all-warps-filled-it",
        schedule=TURNED,
        task=TURNED_TASK,
        patches=(Patch(_FULL_BOX, _FULL_BOX.replace("    named_barrier(barrier, kWarpgroup);\n", "    __syncwarp();\n")),),
        detectors=("async-race", "shared-race", "deadlock", "wrong-result"),
        why="the thread that sends the box does not wait for the other warps' columns",
        sms=1,
    ),
    Fault(
        name="box-filled-while-it-is-sent",
        schedule=TURNED,
        task=TURNED_TASK,
        patches=(Patch(_FREE_BOX, ""),),
        detectors=("async-race",),
        why="the only buffer is filled again while the store before still reads it",
        sms=1,
    ),
    Fault(
        name="box-not-fenced",
        schedule=TURNED,
        task=TURNED_TASK,
        patches=(Patch(_FULL_BOX, _FULL_BOX.replace("    fence_proxy_async();\n", "")),),
        detectors=("missing-proxy-fence",),
        why="the asynchronous proxy may not see what the warps stored",
        sms=1,
    ),
    Fault(
        name="warpgroups-meet-at-one-barrier",
        schedule=TURNED,
        task=TURNED_TASK,
        patches=(Patch("barrier = kStoring + threadIdx.x / kWarpgroup", "barrier = kStoring"),),
        detectors=("async-race", "shared-race", "deadlock"),
        why="warps of both warpgroups count towards the same barrier of 128 threads",
        sms=1,
    ),
    Fault(
        name="halves-of-the-columns-exchanged",
        schedule=TURNED,
        task=TURNED_TASK,
        patches=(Patch("chunk = 2 * (thread / 32) + lane / 8 % 2", "chunk = 2 * (thread / 32) + 1 - lane / 8 % 2"),),
        detectors=("wrong-result",),
        why="columns 0 to 7 of a warp's 16 land where columns 8 to 15 belong",
        sms=1,
    ),
)
