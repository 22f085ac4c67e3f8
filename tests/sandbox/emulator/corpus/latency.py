"""Seeded faults of the `latency` family: commit groups, slots loaded again, slices of warps, pushes within a cluster."""

from cudal2_agent.policies.schedule.families.latency.schedule import LatencySchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

# Two commit groups, four warps of 16 x 16, whole tiles.
COPIED = LatencySchedule(block_m=32, block_n=32, block_k=32, groups=2, warps_m=2, warps_n=2, programmatic=False)
SHORT = gemm(32, 64, 64)
# Tiles that exceed every edge.
RAGGED = gemm(45, 56, 56)
RAGGED_TN = gemm(45, 56, 56, layout="tn")
# Two slices of two warps, whose sums lie over their operands.
SLICED = COPIED.model_copy(update={"warps_n": 1, "warps_k": 2})
LONG = gemm(32, 32, 128)
# Four CTAs divide K; a CTA stores a quarter of the tile.
CLUSTER = COPIED.model_copy(update={"groups": 1, "cluster_k": 4})
BOXED = COPIED.model_copy(update={"loads": "tma"})
BOXED_CLUSTER = CLUSTER.model_copy(update={"loads": "tma"})
# Three passes over two slots; slices of two warps, in a cluster of two, with a tail of K.
COPIED_AGAIN = SLICED.model_copy(update={"passes": 3, "cluster_k": 2})
BOXED_AGAIN = BOXED.model_copy(update={"passes": 3})
LONGER, LONGER_TN = gemm(32, 32, 192), gemm(45, 56, 728, layout="tn")
DEPENDENT = COPIED.model_copy(update={"programmatic": True})

_WAIT = "  cp_async_wait<kGroups - 1 - kGroup>();\n"
_MEET = "  if constexpr (kWarpsK == 1) {\n    __syncthreads();\n"
_SLICE_MEET = "    named_barrier(1 + place.slice, kSliceThreads);\n  }\n#pragma unroll\n  for (int i = 0; i < kMmasM"
_WAIT_FOR_PUSHES = "  mbarrier_wait(barrier, 0);\n  if constexpr (kByPairs)"
_MEET_AGAIN = "      if (again) meet_in_slice(place);\n"
_EMPTY_GROUP = "        cp_async_commit();  // an empty group"
_COPY_GUARD = "down + r < below && across < right"

LATENCY_FAULTS = (
    Fault(
        name="group-not-waited-for",
        schedule=COPIED,
        task=SHORT,
        patches=(Patch(_WAIT, "  cp_async_wait<kGroups - kGroup>();\n"),),
        detectors=("async-race", "uninitialised-read"),
        why="each group is multiplied while its own copies may still be in flight",
    ),
    Fault(
        name="no-barrier-behind-the-wait",
        schedule=COPIED,
        task=SHORT,
        patches=(Patch(_MEET, "  if constexpr (kWarpsK == 1) {\n"),),
        detectors=("async-race", "shared-race", "uninitialised-read"),
        why="a thread waits for its own copies only; ldmatrix reads those of other warps",
    ),
    Fault(
        name="slices-share-a-barrier",
        schedule=SLICED.model_copy(update={"warps_m": 2}),
        task=LONG,
        patches=(Patch("named_barrier(1 + place.slice, kSliceThreads)", "named_barrier(1, kSliceThreads)", 0, of=2),),
        detectors=("async-race", "shared-race", "uninitialised-read", "barrier-misuse"),
        why="warps of two slices complete one barrier, so neither slice waits for its own copies",
    ),
    Fault(
        name="sums-over-operands-in-use",
        schedule=SLICED.model_copy(update={"block_k": 64, "groups": 1}),
        task=LONG,
        patches=(Patch(_SLICE_MEET, _SLICE_MEET.replace("    named_barrier(1 + place.slice, kSliceThreads);\n", "")),),
        detectors=("shared-race",),
        why="a warp writes its sums over operands that the other warp of its slice still reads",
    ),
    Fault(
        name="sums-of-slices-not-waited-for",
        schedule=SLICED,
        task=LONG,
        patches=(Patch("  __syncthreads();\n  constexpr bool kByPairs", "  constexpr bool kByPairs"),),
        detectors=("shared-race", "async-race", "uninitialised-read"),
        why="sums of other slices are read before they are written",
    ),
    Fault(
        name="rows-of-copies-not-guarded",
        schedule=COPIED,
        task=RAGGED_TN,
        patches=(Patch(_COPY_GUARD, "across < right"),),
        detectors=("global-out-of-bounds",),
        why="rows of the tile below the matrix are copied from behind its end",
    ),
    Fault(
        name="k-tail-not-guarded",
        schedule=COPIED,
        task=RAGGED_TN,
        patches=(Patch(_COPY_GUARD, "down + r < below"),),
        detectors=("global-out-of-bounds", "wrong-result"),
        why="beyond K the next row is multiplied, and after the last row memory past the operand",
    ),
    Fault(
        name="d-not-guarded",
        schedule=COPIED,
        task=RAGGED,
        patches=(Patch("if (!wanted || (kGuardD && (row >= M || column >= N))) return;", "if (!wanted) return;"),),
        detectors=("global-out-of-bounds", "global-race", "wrong-result"),
        why="rows and columns outside D land in other rows, and behind D",
    ),
    Fault(
        name="lanes-of-a-quad-store-each-others-rows",
        schedule=COPIED,
        task=SHORT,
        patches=(Patch("lane % 2 * 8 + lane / 4; }", "lane / 2 % 2 * 8 + lane / 4; }"),),
        detectors=("wrong-result", "uninitialised-read", "global-race"),
        why="two lanes store the upper half of a pair twice, and the lower half never",
    ),
    Fault(
        name="early-read-of-operands",
        schedule=DEPENDENT,
        task=SHORT,
        patches=(Patch("  wait_for_dependencies();\n", ""),),
        detectors=("dependency",),
        why="operands are loaded while the kernel that writes them may still run",
    ),
    Fault(
        name="operands-loaded-before-the-wait",
        schedule=DEPENDENT,
        task=SHORT,
        patches=(
            Patch("  wait_for_dependencies();\n", ""),
            Patch("  load_all(copies_a, copies_b);\n", "  load_all(copies_a, copies_b);\n  wait_for_dependencies();\n"),
        ),
        detectors=("dependency",),
        why="the copies start before the preceding kernel has completed",
    ),
    Fault(
        name="pushes-not-waited-for",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch(_WAIT_FOR_PUSHES, "  if constexpr (kByPairs)"),),
        detectors=("async-race", "shared-race", "uninitialised-read", "cluster-exit"),
        why="the sums are read, and the CTA ends, before the pushes of its peers have landed",
    ),
    Fault(
        name="pushes-awaited-in-the-wrong-phase",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch(_WAIT_FOR_PUSHES, _WAIT_FOR_PUSHES.replace("barrier, 0", "barrier, 1")),),
        detectors=("async-race", "shared-race", "uninitialised-read", "cluster-exit"),
        why="the phase before the first counts as complete, so nothing is waited for",
    ),
    Fault(
        name="too-few-bytes-expected",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("mbarrier_arrive_expect(landed, kTileBytes)", "mbarrier_arrive_expect(landed, kTileBytes / 2)"),),
        detectors=("transaction-mismatch", "async-race", "shared-race", "uninitialised-read", "cluster-exit"),
        why="the barrier may complete when half of the parts have landed",
    ),
    Fault(
        name="too-many-bytes-expected",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("mbarrier_arrive_expect(landed, kTileBytes)", "mbarrier_arrive_expect(landed, kTileBytes + 32)"),),
        detectors=("deadlock", "transaction-mismatch"),
        why="32 bytes that nobody pushes are waited for",
    ),
    Fault(
        name="no-expected-bytes",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("    mbarrier_arrive_expect(landed, kTileBytes);\n", "    mbarrier_arrive(landed);\n"),),
        detectors=("transaction-mismatch", "barrier-misuse", "async-race", "uninitialised-read", "cluster-exit", "shared-race"),
        why="the phase completes with its only arrival, before any push",
    ),
    Fault(
        name="pushed-before-peers-are-ready",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("  cluster_wait();  // from here on every peer has its barrier ready\n", ""),),
        detectors=("barrier-misuse", "shared-race", "async-race", "transaction-mismatch", "divergent", "deadlock"),
        why="a push may reach a peer whose barrier is not initialised yet",
    ),
    Fault(
        name="parts-overlap",
        schedule=CLUSTER,
        task=LONG,
        patches=(
            Patch("mailbox + (rank * 2 * kShare + index % kShare) * 16", "mailbox + (rank * kShare + index % kShare) * 16"),
        ),
        detectors=("async-race", "shared-race", "uninitialised-read", "wrong-result"),
        why="the parts of two CTAs land in the same place of the mailbox",
    ),
    Fault(
        name="mailbox-over-operands",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("mailbox = smem + kMailbox,", "mailbox = smem,"),),
        detectors=("async-race", "shared-race", "wrong-result"),
        why="a fast peer pushes its sums over operands that this CTA still multiplies",
    ),
    Fault(
        name="boxes-not-waited-for",
        schedule=BOXED,
        task=SHORT,
        patches=(Patch("  mbarrier_wait(barriers + 8 * kGroup, 0);\n", "  mbarrier_wait(barriers, 0);\n"),),
        detectors=("async-race", "uninitialised-read"),
        why="every group waits for the boxes of the first one",
    ),
    Fault(
        name="box-bytes-of-one-operand",
        schedule=BOXED,
        task=SHORT,
        patches=(
            Patch("mbarrier_arrive_expect(full + 8 * group, kGroupBytes)", "mbarrier_arrive_expect(full + 8 * group, kBytesA)"),
        ),
        detectors=("transaction-mismatch", "async-race", "uninitialised-read"),
        why="a group's barrier may complete before its tile of B has arrived",
    ),
    Fault(
        name="barriers-not-met-before-the-wait",
        schedule=BOXED,
        task=SHORT,
        patches=(Patch("  __syncthreads();\n  const int tiles_n", "  const int tiles_n"),),
        detectors=("barrier-misuse", "shared-race"),
        why="warps may test barriers that the loading thread has not initialised yet",
    ),
    Fault(
        name="boxes-loaded-before-the-wait",
        schedule=BOXED_CLUSTER.model_copy(update={"programmatic": True}),
        task=LONG,
        patches=(
            Patch("  wait_for_dependencies();\n  if (loads)", "  if (loads)"),
            Patch("  __syncwarp();\n  cluster_wait();", "  __syncwarp();\n  wait_for_dependencies();\n  cluster_wait();"),
        ),
        detectors=("dependency",),
        why="TMA reads operands that the preceding kernel may still write",
    ),
    Fault(
        name="slot-loaded-again-while-read",
        schedule=COPIED_AGAIN,
        task=LONGER_TN,
        patches=(Patch(_MEET_AGAIN, ""),),
        detectors=("async-race", "shared-race", "wrong-result"),
        why="a warp loads a slot again while the other warp of its slice still multiplies the group in it",
    ),
    Fault(
        name="box-loaded-again-while-read",
        schedule=BOXED_AGAIN,
        task=LONGER,
        patches=(Patch(_MEET_AGAIN, ""),),
        detectors=("async-race", "shared-race", "wrong-result", "deadlock"),
        why="the loading thread starts the next box over a group that other warps still multiply",
    ),
    Fault(
        name="wrong-parity-in-later-passes",
        schedule=BOXED_AGAIN,
        task=LONGER,
        patches=(Patch("mbarrier_wait(full + 8 * group, pass % 2);", "mbarrier_wait(full + 8 * group, 0);"),),
        detectors=("async-race", "uninitialised-read", "wrong-result", "deadlock"),
        why="the second pass waits for the phase of the first one, so its boxes may still be in flight",
    ),
    Fault(
        name="last-groups-not-waited-for",
        schedule=COPIED_AGAIN,
        task=LONGER_TN,
        patches=(Patch(_EMPTY_GROUP, "        // an empty group"),),
        detectors=("async-race", "shared-race", "wrong-result"),
        why="without empty groups the last pass lets its own copies count as younger groups",
    ),
    Fault(
        name="bytes-of-later-passes-not-expected",
        schedule=BOXED_AGAIN,
        task=LONGER,
        patches=(
            Patch(
                "        mbarrier_arrive_expect(full + 8 * group, kGroupBytes);\n        load_groups",
                "        mbarrier_arrive(full + 8 * group);\n        load_groups",
            ),
        ),
        detectors=("transaction-mismatch", "async-race", "barrier-misuse"),
        why="the phase of a later pass completes with its only arrival, before its boxes",
    ),
)
