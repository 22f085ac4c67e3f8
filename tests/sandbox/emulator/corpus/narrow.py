"""Seeded faults of the `narrow` family: rings of one lane's own copies, sums over stages, pushes, weights asked for early."""

from policies.schedule.families.narrow.schedule import NarrowSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

# Two warps with two of four steps in flight; whole tiles along K.
HELD = NarrowSchedule(block_m=8, block_n=32, warps_k=2, stages=2, programmatic=False)
COPIED = HELD.model_copy(update={"ring": "shared"})
WHOLE, WHOLE_TN = gemm(8, 64, 256), gemm(8, 64, 256, layout="tn")
# Tokens, features and k that exceed every edge.
RAGGED, RAGGED_TN = gemm(3, 40, 200), gemm(3, 40, 200, layout="tn")
# Four CTAs divide K, and each stores a quarter of the tile.
CLUSTER = HELD.model_copy(update={"cluster_k": 4, "stages": 1})
LONG = gemm(8, 32, 512)
DEPENDENT = COPIED.model_copy(update={"programmatic": True, "prefetch": 1})

_WAIT = "    cp_async_wait<kStages - 1>();\n"
_WAIT_FOR_PUSHES = "  mbarrier_wait(smem + kLanded, 0);\n"

NARROW_FAULTS = (
    Fault(
        name="stage-not-waited-for",
        schedule=COPIED,
        task=WHOLE,
        patches=(Patch(_WAIT, "    cp_async_wait<kStages>();\n"),),
        detectors=("async-race", "uninitialised-read"),
        why="a lane reads the stage whose copies may be the youngest group but one",
    ),
    Fault(
        name="last-stages-not-waited-for",
        schedule=COPIED,
        task=WHOLE_TN,
        patches=(
            Patch("    cp_async_commit();  // an empty group", "    if (step < last_loads) cp_async_commit();  // an empty"),
        ),
        detectors=("async-race", "uninitialised-read"),
        why="without empty groups the last stages count as younger groups, for which nobody waits",
    ),
    Fault(
        name="lane-reads-its-neighbours-copies",
        schedule=COPIED,
        task=WHOLE,
        patches=(
            Patch(
                "read_words(to.tokens[i], stage + kWeightBytes + (32 * i + lane)",
                "read_words(to.tokens[i], stage + kWeightBytes + (32 * i + (lane ^ 1))",
            ),
        ),
        detectors=("async-race", "shared-race", "uninitialised-read"),
        why="a lane waits for its own copies only, and reads those of the next lane",
    ),
    Fault(
        name="sums-over-stages-in-use",
        schedule=COPIED,
        task=WHOLE,
        patches=(Patch("  __syncwarp();  // sums lie over stages", "  // sums lie over stages"),),
        detectors=("shared-race", "async-race"),
        why="a lane writes sums over stages that other lanes of its warp still read",
    ),
    Fault(
        name="sums-of-warps-not-waited-for",
        schedule=HELD,
        task=WHOLE,
        patches=(Patch("  write_sums(sums, area);\n  __syncthreads();\n", "  write_sums(sums, area);\n"),),
        detectors=("shared-race", "uninitialised-read"),
        why="a thread adds sums that the other warp has not written yet",
    ),
    Fault(
        name="warps-take-the-same-steps",
        schedule=HELD,
        task=WHOLE_TN,
        patches=(
            Patch(
                "const int first = k + warp * kStepK + lane % 4 * 8;", "const int first = k + warp / 2 * kStepK + lane % 4 * 8;"
            ),
        ),
        detectors=("wrong-result",),
        why="both warps multiply the even steps, and nobody the odd ones",
    ),
    Fault(
        name="k-not-guarded",
        schedule=HELD,
        task=RAGGED,
        patches=(Patch("constexpr bool kGuardK = true;", "constexpr bool kGuardK = false;"),),
        detectors=("global-out-of-bounds", "wrong-result"),
        why="steps past the end of K read the next row of A, and rows behind B",
    ),
    Fault(
        name="features-not-guarded",
        schedule=HELD,
        task=RAGGED_TN,
        patches=(Patch("constexpr bool kGuardFeatures = true;", "constexpr bool kGuardFeatures = false;"),),
        detectors=("global-out-of-bounds", "wrong-result", "global-race"),
        why="columns of the last tile are read behind B, and stored into the next row of D",
    ),
    Fault(
        name="token-rows-beyond-the-last",
        schedule=HELD.model_copy(update={"constant_shape": False}),
        task=RAGGED,
        patches=(Patch("  if (kGuardTokens && row >= tokens) return;\n", ""),),
        detectors=("global-out-of-bounds",),
        why="sums of repeated tokens are stored behind D",
    ),
    Fault(
        name="halves-of-k-swapped",
        schedule=HELD,
        task=WHOLE,
        patches=(
            Patch(
                "{stage.tokens[i][2 * half], stage.tokens[i][2 * half + 1]}",
                "{stage.tokens[i][2 - 2 * half], stage.tokens[i][3 - 2 * half]}",
            ),
        ),
        detectors=("wrong-result",),
        why="weights and tokens of one product are of different k",
    ),
    Fault(
        name="weights-read-before-the-wait",
        schedule=DEPENDENT.model_copy(update={"ring": "registers"}),
        task=WHOLE,
        patches=(
            Patch("  wait_for_dependencies();\n  Stage ring[kStages];\n", "  Stage ring[kStages];\n"),
            Patch("  Sums sums = {};\n", "  wait_for_dependencies();\n  Sums sums = {};\n"),
        ),
        detectors=("dependency",),
        why="the first stages are loaded while the kernel that writes the weights may still run",
    ),
    Fault(
        name="copies-before-the-wait",
        schedule=DEPENDENT,
        task=WHOLE_TN,
        patches=(
            Patch("  wait_for_dependencies();\n", ""),
            Patch("  unsigned slot = area;\n", "  wait_for_dependencies();\n  unsigned slot = area;\n"),
        ),
        detectors=("dependency",),
        why="the first copies start before the preceding kernel has completed",
    ),
    Fault(
        name="pushes-not-waited-for",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch(_WAIT_FOR_PUSHES, ""),),
        detectors=("async-race", "shared-race", "uninitialised-read", "cluster-exit"),
        why="the sums are read, and the CTA ends, before the pushes of its peers have landed",
    ),
    Fault(
        name="pushes-expected-for-one-part",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("kClusterK * share_of(rank) * 16);\n", "share_of(rank) * 16);\n"),),
        detectors=("transaction-mismatch", "async-race", "shared-race", "uninitialised-read", "cluster-exit"),
        why="the barrier may complete when the part of one CTA has landed",
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
            Patch("kMailbox + (rank * kShare + index % kShare) * 16", "kMailbox + (rank / 2 * kShare + index % kShare) * 16"),
        ),
        detectors=("async-race", "shared-race", "uninitialised-read", "wrong-result"),
        why="the parts of two CTAs land in the same place of the mailbox",
    ),
    Fault(
        name="ranks-without-a-share-expect-one",
        schedule=CLUSTER.model_copy(update={"cluster_k": 16, "block_n": 16, "warps_k": 1}),
        task=gemm(1, 16, 512, layout="tn"),
        patches=(Patch("{ return max(min(kQuads - rank * kShare, kShare), 0); }", "{ return kShare; }"),),
        detectors=("deadlock", "transaction-mismatch"),
        why="with fewer quads than CTAs the last ranks wait for pushes that nobody sends",
    ),
)
