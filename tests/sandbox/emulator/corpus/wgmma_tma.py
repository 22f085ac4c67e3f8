"""Seeded faults of the `wgmma_tma` family: TMA, mbarriers, wgmma, clusters, TMA stores, split-K, ping-pong."""

from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

# One consumer warpgroup, a producer warp, 64 x 64 tiles; five K blocks through three stages.
PLAIN = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3)
TASK = gemm(128, 128, 320, layout="tn")
TASK_NN = gemm(128, 128, 320)
DIRECT = PLAIN.model_copy(update={"tma_store": False})
RAGGED = gemm(72, 72, 136, layout="tn")
# Two consumers; the last of three K blocks is in the first stage, over which both stage their outputs.
PAIR = PLAIN.model_copy(update={"consumers": 2, "block_n": 128, "stages": 2})
TASK_PAIR = gemm(128, 256, 192, layout="tn")
# A persistent CTA with two boxes per tile and one buffer.
PERSISTENT = PLAIN.model_copy(update={"block_n": 128, "persistent": True, "store_boxes": 1})
TASK_WIDE = gemm(256, 256, 128, layout="tn")
PINGPONG = PLAIN.model_copy(update={"consumers": 2, "persistent": True, "pingpong": True})
TASK_TURNS = gemm(128, 256, 256, layout="tn")
MULTICAST = PLAIN.model_copy(update={"cluster_m": 2})
# Each CTA of the cluster has three K blocks; the last is in the first stage, where the partial sums are written.
SUMMED = PLAIN.model_copy(update={"consumers": 2, "stages": 2, "cluster_k": 2, "tma_store": False})
TASK_SUMMED = gemm(128, 128, 384, layout="tn")
# Pushed sums with memory of their own, and sums that take the place of the pipeline, as half of an SM has no room for both.
PUSHED = SUMMED.model_copy(update={"push": True})
PUSHED_MULTICAST = PUSHED.model_copy(update={"cluster_m": 2, "consumers": 1})
IN_PLACE = PLAIN.model_copy(update={"stages": 6, "cluster_k": 2, "tma_store": False, "ctas_per_sm": 2, "push": True})
TASK_IN_PLACE = gemm(64, 128, 832, layout="tn")
SPLIT = PLAIN.model_copy(update={"splits": 2})
# Two of five tiles are left for three CTAs.
TAIL = SPLIT.model_copy(update={"persistent": True, "split_tail": True, "stages": 2})
TASK_TAIL = gemm(64, 320, 320, layout="tn")

_DRAIN = (
    "  for (int stage = 0; stage < kStages; ++stage, ring.advance())"
    " mbarrier_wait(empty_barrier(smem, ring.stage), ring.parity ^ 1);\n"
)
_END = "      if (threadIdx.x % 32 == 0) tma_store_wait_read<0>();\n    }\n  }\n"
_RELEASE = "    if (block > unit.begin) release(smem, previous, rank);\n"
_LAST_RELEASE = "  release(smem, previous, rank);\n}"
_EMPTY_COUNT = "4 * kTileWarpgroups * (kClusterM + kClusterN - 1)"
_A_DESCRIPTOR = "a = wgmma_descriptor<128>(smem + tile_rows() * 128, 16, 1024)"
_SPLIT_FENCE = "    __threadfence();\n    named_barrier(kAllConsumers, kConsumerThreads);\n"
_STORE_BARRIER = "named_barrier(kAllConsumers, kConsumerThreads);  // the pipeline has been read"

WGMMA_TMA_FAULTS = (
    Fault(
        name="no-proxy-fence-before-tma-store",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("    fence_proxy_async();\n    __syncwarp();\n", "    __syncwarp();\n"),),
        detectors=("missing-proxy-fence",),
        why="TMA reads shared memory that stmatrix wrote through the other proxy",
    ),
    Fault(
        name="no-barrier-before-staging",
        schedule=PAIR,
        task=TASK_PAIR,
        patches=(Patch(_STORE_BARRIER, ";"),),
        detectors=("async-race", "shared-race"),
        why="one warpgroup stages its outputs over rows of A that the other still multiplies",
    ),
    Fault(
        name="named-barrier-counts-too-many",
        schedule=PAIR,
        task=TASK_PAIR,
        patches=(Patch(_STORE_BARRIER, _STORE_BARRIER.replace("Threads)", "Threads + 32)")),),
        detectors=("deadlock", "barrier-misuse"),
        why="nine warps are waited for and eight arrive",
    ),
    Fault(
        name="named-barrier-counts-too-few",
        schedule=PAIR,
        task=TASK_PAIR,
        patches=(Patch(_STORE_BARRIER, _STORE_BARRIER.replace("Threads)", "Threads - 128)")),),
        detectors=("async-race", "shared-race", "barrier-misuse"),
        why="four warps pass the barrier without the other warpgroup, whose operands they overwrite",
    ),
    Fault(
        name="a-stage-is-never-released",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("if (lane == 0) mbarrier_arrive(barrier);", "if (lane == 0 && stage > 0) mbarrier_arrive(barrier);"),),
        detectors=("deadlock",),
        why="the producer waits for the first stage for ever",
    ),
    Fault(
        name="consumer-waits-for-the-wrong-parity",
        schedule=PLAIN,
        task=TASK,
        patches=(
            Patch(
                "mbarrier_wait(full_barrier(smem, ring.stage), ring.parity);",
                "mbarrier_wait(full_barrier(smem, ring.stage), ring.parity ^ 1);",
            ),
        ),
        detectors=("async-race", "uninitialised-read", "deadlock"),
        why="the phase before the first counts as complete, so a stage is multiplied before its bytes are there",
    ),
    Fault(
        name="producer-waits-for-the-wrong-parity",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("ring.parity ^ 1);\n      const unsigned full", "ring.parity);\n      const unsigned full"),),
        detectors=("deadlock",),
        why="the producer waits for consumers that wait for it",
    ),
    Fault(
        name="expects-64-bytes-less",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("mbarrier_arrive_expect(full, kStageBytes);", "mbarrier_arrive_expect(full, kStageBytes - 64);"),),
        detectors=("transaction-mismatch", "deadlock"),
        why="more bytes arrive than were announced, so that the count never comes back to zero",
    ),
    Fault(
        name="expects-64-bytes-more",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("mbarrier_arrive_expect(full, kStageBytes);", "mbarrier_arrive_expect(full, kStageBytes + 64);"),),
        detectors=("transaction-mismatch", "deadlock"),
        why="the consumer waits for bytes that nobody sends",
    ),
    Fault(
        name="one-arrival-too-many-expected",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_EMPTY_COUNT, _EMPTY_COUNT + " + 1"),),
        detectors=("deadlock",),
        why="a stage is free when five warps have released it, and there are four",
    ),
    Fault(
        name="half-of-the-arrivals-expected",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_EMPTY_COUNT, _EMPTY_COUNT.replace("4 *", "2 *")),),
        detectors=("async-race", "shared-race", "deadlock", "barrier-misuse"),
        why="two warps complete the phase, so that TMA overwrites what the others' wgmma may still read",
    ),
    Fault(
        name="no-barrier-after-mbarrier-init",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("  sync_ctas();\n  wait", "  wait"),),
        detectors=("barrier-misuse",),
        why="the producer may use barriers that the first warp has not initialised",
    ),
    Fault(
        name="mbarrier-init-not-fenced",
        schedule=MULTICAST,
        task=TASK,
        patches=(Patch("  mbarrier_init_fence();\n", ""),),
        detectors=("barrier-misuse", "missing-proxy-fence"),
        why="the cluster's relaxed barrier publishes nothing; TMA and the peer need the fence to see the barriers",
    ),
    Fault(
        name="releases-the-stage-it-multiplies",
        schedule=PLAIN,
        task=TASK,
        patches=(
            Patch(_RELEASE, "    release(smem, ring.stage, rank);\n"),
            Patch(_LAST_RELEASE, "}"),
        ),
        detectors=("async-race",),
        why="the group that reads the stage is still open when TMA may fill it again",
    ),
    Fault(
        name="weaker-wgmma-wait",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("    wgmma_wait<1>();\n", "    wgmma_wait<2>();\n"),),
        detectors=("async-race",),
        why="the group before the last is still open when its stage is released",
    ),
    Fault(
        name="no-wgmma-wait-before-the-epilogue",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("  wgmma_wait<0>();\n", ""),),
        detectors=("wgmma-in-flight",),
        why="accumulators are read while a product may still write them",
    ),
    Fault(
        name="no-wgmma-commit",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("    wgmma_commit();\n", ""),),
        detectors=("wgmma-in-flight", "async-race"),
        why="products that belong to no group are waited for by none of the waits",
    ),
    Fault(
        name="no-wgmma-fence",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("    wgmma_fence();\n", ""),),
        detectors=("missing-wgmma-fence",),
        why="the first wgmma of a kernel is not ordered after the register writes before it",
    ),
    Fault(
        name="wrong-descriptor-stride",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_A_DESCRIPTOR, _A_DESCRIPTOR.replace("1024", "512")),),
        detectors=("wrong-result",),
        why="groups of 8 rows are 1024 bytes apart; half of that multiplies rows of other groups",
    ),
    Fault(
        name="wrong-descriptor-swizzle",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_A_DESCRIPTOR, _A_DESCRIPTOR.replace("<128>", "<64>")),),
        detectors=("wrong-result",),
        why="the box was swizzled by 128 bytes and is read by 64",
    ),
    Fault(
        name="wrong-descriptor-of-row-major-b",
        schedule=PLAIN,
        task=TASK_NN,
        patches=(Patch("BLOCK_K * kSwizzle, 8 * kSwizzle)", "BLOCK_K * kSwizzle, 4 * kSwizzle)"),),
        detectors=("wrong-result",),
        why="groups of 8 K indices are 1024 bytes apart; half of that multiplies other K indices",
    ),
    Fault(
        name="map-without-swizzle",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch('"of": "A", "box": [64, 64], "swizzle": 128', '"of": "A", "box": [64, 64]'),),
        detectors=("wrong-result",),
        why="the box comes plain and is read as if it were swizzled",
    ),
    Fault(
        name="box-of-half-the-rows",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch('"of": "A", "box": [64, 64]', '"of": "A", "box": [64, 32]'),),
        detectors=("transaction-mismatch", "deadlock"),
        why="half of the announced bytes of A are never sent",
    ),
    Fault(
        name="outputs-staged-without-swizzle",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("stmatrix_x4(buffer + swizzled,", "stmatrix_x4(buffer + offset,"),),
        detectors=("wrong-result",),
        why="TMA undoes a swizzle that was not done",
    ),
    Fault(
        name="accumulates-from-the-start",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("ring.stage * kStageBytes), block > unit.begin);", "ring.stage * kStageBytes), true);"),),
        detectors=("uninitialised-read", "wrong-result"),
        why="the first product is added to registers that nobody has set",
    ),
    Fault(
        name="cluster-not-met-before-multicast",
        schedule=MULTICAST,
        task=TASK,
        patches=(Patch("    cluster_meet();\n  } else {", "    __syncthreads();\n  } else {"),),
        detectors=("barrier-misuse", "shared-race"),
        why="a multicast may signal a peer's barrier before the peer has initialised it",
    ),
    Fault(
        name="cluster-ends-too-early",
        schedule=MULTICAST,
        task=TASK,
        patches=(Patch(_DRAIN, ";"),),
        detectors=("cluster-exit",),
        why="a peer's last release arrives at a barrier of a CTA that may have ended",
    ),
    Fault(
        name="cluster-meets-before-arrivals-land",
        schedule=MULTICAST,
        task=TASK,
        patches=(Patch(_DRAIN, ";"), Patch(_END, _END + "  cluster_meet();\n")),
        detectors=("cluster-exit",),
        why="the cluster's relaxed barrier does not wait for a peer's last release, which an H200 let arrive too late",
    ),
    Fault(
        name="cluster-drains-one-stage-too-few",
        schedule=MULTICAST,
        task=TASK,
        patches=(Patch(_DRAIN, _DRAIN.replace("stage = 0", "stage = 1")),),
        detectors=("cluster-exit",),
        why="the last of five K blocks lies in the second stage, and its release is the one that nobody waits for",
    ),
    Fault(
        name="cluster-pushes-sums-and-ends-too-early",
        schedule=PUSHED_MULTICAST,
        task=TASK_SUMMED,
        patches=(Patch(_DRAIN, ";"),),
        detectors=("cluster-exit",),
        why="a CTA waits for the sums of its peers along K, and not for the releases of those that share B with it",
    ),
    Fault(
        name="multicast-to-itself-only",
        schedule=MULTICAST,
        task=TASK,
        patches=(Patch("mask |= 1u << rank.peer(peer, rank.n, rank.k);", "mask |= 1u << rank.peer(rank.m, rank.n, rank.k);"),),
        detectors=("transaction-mismatch", "deadlock"),
        why="the peer waits for its half of B, which nobody sends",
    ),
    Fault(
        name="releases-to-itself-only",
        schedule=MULTICAST,
        task=TASK,
        patches=(
            Patch(
                "if (lane < kClusterM) mbarrier_arrive_remote(barrier, rank.peer(lane, rank.n, rank.k));",
                "if (lane == rank.m) mbarrier_arrive_remote(barrier, rank.peer(lane, rank.n, rank.k));",
            ),
        ),
        detectors=("deadlock",),
        why="each producer waits for the warps of both CTAs, and hears those of its own",
    ),
    Fault(
        name="split-without-releasing-fence",
        schedule=SPLIT,
        task=TASK,
        patches=(Patch(_SPLIT_FENCE, _SPLIT_FENCE.splitlines(keepends=True)[1]),),
        detectors=("global-race",),
        why="partial sums may become visible after the counter that announces them",
    ),
    Fault(
        name="split-fence-of-the-cta",
        schedule=SPLIT,
        task=TASK,
        patches=(Patch(_SPLIT_FENCE, _SPLIT_FENCE.replace("__threadfence", "__threadfence_block")),),
        detectors=("global-race",),
        why="a fence of CTA scope orders the partial sums for their own CTA, and another one reads them",
    ),
    Fault(
        name="split-sums-too-early",
        schedule=SPLIT,
        task=TASK,
        patches=(Patch("  if (!splits.last(unit, flag)) return false;\n", "  splits.last(unit, flag);\n"),),
        detectors=("global-race", "uninitialised-read"),
        why="every CTA sums, the first of them slots that nobody has written yet, and all of them store D",
    ),
    Fault(
        name="split-flag-over-a-barrier",
        schedule=SPLIT,
        task=TASK,
        patches=(Patch("flag = smem + kBarriers + 16 * kStages;", "flag = smem + kBarriers;"),),
        detectors=("barrier-misuse",),
        why="the ticket is stored over a live mbarrier, which only mbarrier instructions may touch",
    ),
    Fault(
        name="workspace-not-zeroed",
        schedule=SPLIT,
        task=TASK,
        patches=(Patch(', "zero": "restored", "zero_bytes": "ceil(ceil(M/64)*ceil(N/64)*1*4/256)*256"', ""),),
        detectors=("uninitialised-read", "wrong-result"),
        why="arrivals are counted from whatever the workspace held",
    ),
    Fault(
        name="shared-memory-too-small",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch('"dynamic_smem": 50240', '"dynamic_smem": 48128'),),
        detectors=("shared-out-of-bounds",),
        why="the barriers behind the stages lie behind what the launch asks for, wherever its memory starts",
    ),
    Fault(
        name="stages-not-aligned",
        schedule=PLAIN,
        task=TASK,
        patches=(
            Patch(
                "smem = align_up<1024>(smem_address(dynamic_smem));", "smem = align_up<1024>(smem_address(dynamic_smem)) + 64;"
            ),
        ),
        detectors=("tensor-map", "misaligned"),
        why="TMA writes to multiples of 128 bytes",
    ),
    Fault(
        name="rows-of-d-not-guarded",
        schedule=DIRECT,
        task=RAGGED,
        patches=(Patch("    if (at >= m) continue;\n", ""),),
        detectors=("global-out-of-bounds",),
        why="rows of the tile below D are stored behind its end",
    ),
    Fault(
        name="columns-of-d-not-guarded",
        schedule=DIRECT,
        task=RAGGED,
        patches=(Patch("if (col < n) *reinterpret_cast", "*reinterpret_cast"),),
        detectors=("global-out-of-bounds", "global-race", "wrong-result"),
        why="columns right of D land in the next row, which another CTA writes, and after the last row behind D",
    ),
    Fault(
        name="dependency-not-awaited",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("  wait_for_dependencies();\n", ""),),
        detectors=("dependency",),
        why="a programmatic launch reads A and B without waiting for the kernel that writes them",
    ),
    Fault(
        name="store-buffer-overwritten",
        schedule=PERSISTENT,
        task=TASK_WIDE,
        sms=2,
        patches=(Patch("      if (lane == 0) tma_store_wait_read<kStoreBuffers - 1>();\n", ""),),
        detectors=("async-race",),
        why="the next box is staged where TMA may still be reading the one before",
    ),
    Fault(
        name="store-not-committed",
        schedule=PERSISTENT,
        task=TASK_WIDE,
        sms=2,
        patches=(Patch("      tma_store_commit();\n", ""),),
        detectors=("async-race",),
        why="stores that belong to no group are waited for by none of the waits for their buffer",
    ),
    Fault(
        name="turn-never-passed",
        schedule=PINGPONG,
        task=TASK_TURNS,
        sms=2,
        patches=(Patch("  pass_turn();\n#pragma unroll", "#pragma unroll"),),
        detectors=("deadlock", "barrier-misuse"),
        why="the second warpgroup waits for a turn that the first keeps",
    ),
    Fault(
        name="turn-not-awaited",
        schedule=PINGPONG,
        task=TASK_TURNS,
        sms=2,
        patches=(Patch("  await_turn();\n  for", "  for"),),
        detectors=("async-race", "uninitialised-read", "barrier-misuse", "deadlock"),
        why="the second warpgroup looks at the ring a whole phase early, where the parity is that of the phase before",
    ),
    Fault(
        name="partials-written-too-early",
        schedule=SUMMED,
        task=TASK_SUMMED,
        patches=(
            Patch(
                "        named_barrier(kAllConsumers, kConsumerThreads);  // both consumers have read their last stage\n", ""
            ),
        ),
        detectors=("async-race", "shared-race"),
        why="one warpgroup writes its sums over rows of A that the other still multiplies",
    ),
    Fault(
        name="cluster-sums-too-early",
        schedule=SUMMED,
        task=TASK_SUMMED,
        patches=(Patch("    cluster_sync();\n    if (!producer)", "    __syncthreads();\n    if (!producer)"),),
        detectors=("shared-race", "async-race", "uninitialised-read"),
        why="a CTA reads sums of its peer, over the peer's operands, that are ordered before no barrier of both",
    ),
    Fault(
        name="misaligned-partials",
        schedule=SUMMED,
        task=TASK_SUMMED,
        patches=(Patch("kPartialPitch = BLOCK_N + 8;", "kPartialPitch = BLOCK_N + 7;"),),
        detectors=("misaligned",),
        why="pairs of floats are stored at odd multiples of 4 bytes in every other row",
    ),
    Fault(
        name="tail-tiles-share-a-slot",
        schedule=TAIL,
        task=TASK_TAIL,
        sms=3,
        patches=(Patch("(tile - whole()) * kClusterSize + rank_index", "rank_index"),),
        detectors=("global-race", "wrong-result", "uninitialised-read"),
        why="splits of two tiles are counted together, and their sums overwrite each other",
    ),
    Fault(
        name="sums-of-one-source-expected",
        schedule=PUSHED,
        task=TASK_SUMMED,
        patches=(Patch("units * kClusterK * kUnitBytes", "units * kUnitBytes"),),
        detectors=("transaction-mismatch", "async-race", "deadlock", "cluster-exit"),
        why="the barrier opens, or fails to, with the sums of one CTA where those of two are on their way",
    ),
    Fault(
        name="sums-not-awaited",
        schedule=PUSHED,
        task=TASK_SUMMED,
        patches=(Patch("  mbarrier_wait(smem + kSummed, 0);\n", ""),),
        detectors=("async-race", "uninitialised-read", "cluster-exit"),
        why="sums are added where those of a peer may not have arrived",
    ),
    Fault(
        name="sources-push-to-one-place",
        schedule=PUSHED,
        task=TASK_SUMMED,
        patches=(Patch("kReceived + rank.k * kSourceBytes", "kReceived + 0 * kSourceBytes"),),
        detectors=("async-race", "shared-race"),
        why="two CTAs store into the same bytes of the owner in no order",
    ),
    Fault(
        name="sums-pushed-over-a-pipeline",
        schedule=IN_PLACE,
        task=TASK_IN_PLACE,
        patches=(Patch("    cluster_sync();\n  }\n}", "    cluster_meet();\n  }\n}"),),
        detectors=("async-race",),
        why="a relaxed barrier does not order the peer's operands before the sums that replace them",
    ),
    Fault(
        name="two-threads-produce",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("if (threadIdx.x == kConsumerThreads) produce(", "if (threadIdx.x < kConsumerThreads + 2) produce("),),
        detectors=("barrier-misuse", "transaction-mismatch", "async-race", "deadlock", "shared-race"),
        why="every stage is announced and brought twice, where its barrier expects one arrival",
    ),
    Fault(
        name="no-warp-barrier-before-tma-store",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch("    fence_proxy_async();\n    __syncwarp();\n", "    fence_proxy_async();\n"),),
        detectors=("async-race",),
        why="one lane sends the box that all lanes of its warp have staged, some of them perhaps later",
    ),
    Fault(
        name="no-warp-barrier-behind-the-wait-for-a-box",
        schedule=PERSISTENT,
        task=TASK_WIDE,
        sms=2,
        patches=(Patch("<kStoreBuffers - 1>();\n      __syncwarp();\n", "<kStoreBuffers - 1>();\n"),),
        detectors=("async-race",),
        why="one lane waits until TMA has read the box before; the others stage over it without it",
    ),
    Fault(
        name="one-lane-waits-for-a-stage",
        schedule=PLAIN,
        task=TASK,
        patches=(
            Patch(
                "    mbarrier_wait(full_barrier(smem, ring.stage), ring.parity);\n",
                "    if (threadIdx.x % 32 == 0) mbarrier_wait(full_barrier(smem, ring.stage), ring.parity);\n",
            ),
        ),
        detectors=("async-race",),
        why="a wait makes what TMA brought visible to the thread that waits, and to no other of its warp",
    ),
)
