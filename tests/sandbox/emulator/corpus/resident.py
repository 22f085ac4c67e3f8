"""Seeded faults of the `resident` family: A in registers, turns with the epilogue, staging, slots shared by A and B."""

from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

# One warpgroup on one SM takes six tiles in two row panels; three blocks of A and B go through four slots.
ONE = ResidentSchedule(consumers=1, block_n=64, slots=4, cluster=1, turns="none")
TASK = gemm(128, 192, 192, layout="tn")
TASK_NN = gemm(128, 192, 192)
# A slot of 128 columns has room for 128 rows of A, of which one warpgroup has half.
WIDE = ONE.model_copy(update={"block_n": 128})
# Two warpgroups in turns; a block of A takes two slots.
PAIR = ONE.model_copy(update={"consumers": 2, "turns": "pause"})
TWO_STAGINGS = ONE.model_copy(update={"stagings": 2})
TASK_PAIR = gemm(256, 192, 192, layout="tn")
MULTICAST = ONE.model_copy(update={"cluster": 2})
TASK_MULTICAST = gemm(256, 192, 192, layout="tn")

_RELEASE_OF_A = "          release(slot_of_a);\n"
_RELEASE = "        wgmma_wait<1>();\n        release(previous);\n"
_FREE = "    if (lane == 0) tma_store_wait_read<kStagings - 1>();\n    __syncwarp();\n"
_SEND = "    fence_proxy_async();\n    __syncwarp();\n"
_FIRST_WAIT = "        wgmma_wait<0>();\n        pin(acc);\n#pragma unroll\n"
_LAST_WAIT = "      pin(acc);\n      wgmma_wait<0>();\n      pin(acc);\n      release(previous);\n"
_ARRIVE = "named_barrier_arrive(kTurn + (threadIdx.x / kWarpgroup + 1) % kConsumers, 2 * kWarpgroup)"
_FIRST_TURN = (
    "    if (kTurns != kNoTurns && warpgroup == kConsumers - 1) pass_turn();  // the first turn is the first warpgroup's\n"
)

_DRAIN = (
    "    for (int slot = 0; slot < kSlots; ++slot, ring.advance())"
    " mbarrier_wait(empty_barrier(smem, ring.slot), ring.parity ^ 1);\n"
)
_END = "    Consumer(smem, map_d).run(walk);\n  }\n"

RESIDENT_FAULTS = (
    Fault(
        name="staging-overwritten-before-it-was-read",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_FREE, ""),),
        detectors=("async-race",),
        why="the next tile is staged while TMA may still read the one before",
    ),
    Fault(
        name="staging-awaited-by-one-lane",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_FREE, _FREE.replace("    __syncwarp();\n", "")),),
        detectors=("async-race",),
        why="one lane knows that TMA has read the staging, and the others write it without asking",
    ),
    Fault(
        name="two-stagings-are-one",
        schedule=TWO_STAGINGS,
        task=TASK,
        sms=1,
        patches=(Patch("    if (++staged == kStagings) staged = 0;\n", ""),),
        detectors=("async-race",),
        why="one send may be under way, and the next tile takes the same buffer",
    ),
    Fault(
        name="no-proxy-fence-before-tma-store",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_SEND, "    __syncwarp();\n"),),
        detectors=("missing-proxy-fence",),
        why="TMA reads shared memory that stmatrix wrote through the other proxy",
    ),
    Fault(
        name="no-warp-barrier-before-tma-store",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_SEND, "    fence_proxy_async();\n"),),
        detectors=("async-race",),
        why="one lane sends the tile that all lanes of its warp have staged, some of them perhaps later",
    ),
    Fault(
        name="last-tile-never-sent",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch("    if (kLateStore && pending) {\n", "    if (kLateStore && !pending) {\n"),),
        detectors=("wrong-result",),
        why="a tile is sent behind the products of the next one, and the last has no next one",
    ),
    Fault(
        name="a-block-of-a-is-never-released",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_RELEASE_OF_A, ""),),
        detectors=("deadlock",),
        why="the producer waits for slots that A has taken",
    ),
    Fault(
        name="slots-of-a-released-twice",
        schedule=PAIR,
        task=TASK_PAIR,
        sms=1,
        patches=(Patch("slot_of_a = slot_of_a + 1 == kSlots ? 0 : slot_of_a + 1;", ";"),),
        detectors=("async-race", "deadlock", "barrier-misuse", "uninitialised-read", "transaction-mismatch"),
        why="the first of two slots is released for the second one, which stays taken",
    ),
    Fault(
        name="a-read-at-the-wrong-parity",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(
            Patch(
                "      mbarrier_wait(full_barrier(smem, ring.slot), ring.parity);\n#pragma unroll\n      for (int atom",
                "      mbarrier_wait(full_barrier(smem, ring.slot), ring.parity ^ 1);\n#pragma unroll\n      for (int atom",
            ),
        ),
        detectors=("async-race", "uninitialised-read", "deadlock"),
        why="the phase before the first counts as complete, so registers are loaded before TMA has brought A",
    ),
    Fault(
        name="expects-a-whole-slot-of-a",
        schedule=WIDE,
        task=TASK,
        sms=1,
        patches=(Patch("open(pieces * kPieceBytes)", "open(kSlotBytes)"),),
        detectors=("transaction-mismatch", "deadlock"),
        why="the warpgroup's 64 rows fill half of the slot, and the other half never comes",
    ),
    Fault(
        name="weaker-wgmma-wait",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_RELEASE, _RELEASE.replace("<1>", "<2>")),),
        detectors=("async-race",),
        why="the group before the last is still open when its slot is released",
    ),
    Fault(
        name="first-tile-releases-without-a-wait",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_FIRST_WAIT, "#pragma unroll\n"),),
        detectors=("async-race", "wgmma-in-flight"),
        why="the slot of B is released while the products of its block may still read it",
    ),
    Fault(
        name="no-wgmma-wait-before-staging",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch(_LAST_WAIT, "      pin(acc);\n      release(previous);\n"),),
        detectors=("wgmma-in-flight", "async-race"),
        why="accumulators are packed while a product may still write them",
    ),
    Fault(
        name="no-wgmma-fence",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch("      wgmma_fence();\n", ""),),
        detectors=("missing-wgmma-fence",),
        why="ldmatrix has written the registers that the first product reads, and nothing orders the two",
    ),
    Fault(
        name="a-read-without-its-swizzle",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch("(2 * step + lane / 16) ^ (lane % 8)", "(2 * step + lane / 16)"),),
        detectors=("wrong-result",),
        why="TMA has swizzled the rows of A, and ldmatrix takes other columns",
    ),
    Fault(
        name="b-advanced-as-if-k-major",
        schedule=ONE,
        task=TASK_NN,
        sms=1,
        patches=(Patch("(kRowMajorB ? 16 * kSwizzle : 32)", "32"),),
        detectors=("wrong-result",),
        why="16 rows of an MN-major B are 16 times the swizzle apart",
    ),
    Fault(
        name="turn-counts-too-few",
        schedule=PAIR,
        task=TASK_PAIR,
        sms=1,
        patches=(Patch(_ARRIVE, _ARRIVE.replace("2 * kWarpgroup", "kWarpgroup")),),
        detectors=("deadlock", "barrier-misuse"),
        why="the arrivals of one warpgroup complete the barrier, and the other one waits for two",
    ),
    Fault(
        name="nobody-has-the-first-turn",
        schedule=PAIR,
        task=TASK_PAIR,
        sms=1,
        patches=(Patch(_FIRST_TURN, ""),),
        detectors=("deadlock",),
        why="the first warpgroup waits for a turn that the last one hands on after its own",
    ),
    Fault(
        name="turn-passed-twice",
        schedule=PAIR,
        task=TASK_PAIR,
        sms=1,
        patches=(
            Patch(
                "    if constexpr (kTurns == kTurnOfStaging) pass_turn();\n",
                "    if constexpr (kTurns == kTurnOfPause) pass_turn();\n",
            ),
        ),
        detectors=("barrier-misuse", "deadlock"),
        why="a turn that was handed on behind the staging is handed on again behind the next products",
    ),
    Fault(
        name="peer-never-hears-of-a-free-slot",
        schedule=MULTICAST,
        task=TASK_MULTICAST,
        sms=2,
        patches=(
            Patch(
                "if (lane < kCluster) mbarrier_arrive_remote(empty_barrier(smem, slot), lane);",
                "if (lane < kCluster) mbarrier_arrive(empty_barrier(smem, slot));",
            ),
        ),
        detectors=("async-race", "barrier-misuse"),
        why="a CTA counts its own warps twice, and writes into slots that the peer still reads",
    ),
    Fault(
        name="cta-ends-before-its-peer",
        schedule=MULTICAST,
        task=TASK_MULTICAST,
        sms=2,
        patches=(Patch(_DRAIN, ";"),),
        detectors=("cluster-exit",),
        why="the peer may still announce free slots to a CTA that has ended",
    ),
    Fault(
        name="peers-meet-before-arrivals-land",
        schedule=MULTICAST,
        task=TASK_MULTICAST,
        sms=2,
        patches=(Patch(_DRAIN, ";"), Patch(_END, _END + "  cluster_meet();\n")),
        detectors=("cluster-exit",),
        why="the cluster's relaxed barrier does not wait for the peer's last arrivals",
    ),
    Fault(
        name="a-tile-belongs-to-nobody",
        schedule=ONE,
        task=gemm(128, 320, 192, layout="tn"),
        sms=4,
        patches=(
            Patch(
                "end = units * (cluster + 1) / clusters;",
                "end = unit + units / clusters;",
            ),
        ),
        detectors=("wrong-result",),
        why="ten tiles over four clusters are shares of two and three, and here all are two",
    ),
    Fault(
        name="dependency-not-awaited",
        schedule=ONE,
        task=TASK,
        sms=1,
        patches=(Patch("  wait_for_dependencies();\n", ""),),
        detectors=("dependency",),
        why="operands are read and D is written while the kernel before may still run",
    ),
)
