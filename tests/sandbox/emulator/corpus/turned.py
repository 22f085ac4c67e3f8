"""Seeded faults of `wgmma_tma` kernels with swap_ab: boxes that four warps fill together, transposed on the way."""

from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

TASK = gemm(320, 264, 128)
LOOPING = WgmmaTmaSchedule(
    consumers=2, atoms=1, block_n=160, block_k=64, stages=3, persistent=True, store_boxes=1, turned=True, programmatic=False
)
_FREE = "      if (thread == 0) tma_store_wait_read<kStoreBuffers - 1>();\n"
_FULL = "    fence_proxy_async();\n    named_barrier(barrier, kWarpgroup);\n    if (thread == 0) {"

TURNED_FAULTS = (
    Fault(
        name="box-sent-before-all-warps-filled-it",
        schedule=LOOPING,
        task=TASK,
        patches=(Patch(_FULL, _FULL.replace("    named_barrier(barrier, kWarpgroup);\n", "    __syncwarp();\n")),),
        detectors=("async-race", "shared-race", "deadlock", "wrong-result"),
        why="the thread that sends the box does not wait for the other warps' columns",
        sms=1,
    ),
    Fault(
        name="box-filled-while-it-is-sent",
        schedule=LOOPING,
        task=TASK,
        patches=(Patch(_FREE, ""),),
        detectors=("async-race",),
        why="the only buffer is filled again while the store before still reads it",
        sms=1,
    ),
    Fault(
        name="box-not-fenced",
        schedule=LOOPING,
        task=TASK,
        patches=(Patch(_FULL, _FULL.replace("    fence_proxy_async();\n", "")),),
        detectors=("missing-proxy-fence",),
        why="the asynchronous proxy may not see what the warps stored",
        sms=1,
    ),
    Fault(
        name="warpgroups-meet-at-one-barrier",
        schedule=LOOPING,
        task=TASK,
        patches=(Patch("barrier = kStoring + threadIdx.x / kWarpgroup", "barrier = kStoring"),),
        detectors=("async-race", "shared-race", "deadlock"),
        why="warps of both warpgroups count towards the same barrier of 128 threads",
        sms=1,
    ),
    Fault(
        name="halves-of-the-columns-exchanged",
        schedule=LOOPING,
        task=TASK,
        patches=(Patch("chunk = 2 * (thread / 32) + lane / 8 % 2", "chunk = 2 * (thread / 32) + 1 - lane / 8 % 2"),),
        detectors=("wrong-result",),
        why="columns 0 to 7 of a warp's 16 land where columns 8 to 15 belong",
        sms=1,
    ),
)
