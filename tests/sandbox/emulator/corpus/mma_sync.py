"""Seeded faults of the `mma_sync` family: cp.async pipelines, ldmatrix, split-K through the workspace and in clusters."""

from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

# Four warps of 16 x 16, three stages, five K blocks; every tile is whole, so that nothing is guarded.
PIPELINED = MmaSyncSchedule(block_m=32, block_n=32, block_k=32, warps_m=2, warps_n=2, stages=3)
WHOLE = gemm(64, 64, 160)
# One K block and no loop: no barrier separates the last ldmatrix from the epilogue.
ONE_SHOT = PIPELINED.model_copy(update={"block_k": 64, "stages": 1})
SHORT = gemm(64, 64, 64)
# Tiles that exceed every edge; pairs of outputs stored from registers.
EDGES = PIPELINED.model_copy(update={"stages": 2, "epilogue": "direct"})
RAGGED = gemm(45, 50, 52)
RAGGED_TN = gemm(45, 50, 52, layout="tn")
SLICED = PIPELINED.model_copy(update={"block_k": 64, "warps_k": 2, "stages": 2})
LONG = gemm(64, 64, 256)
WORKSPACE = PIPELINED.model_copy(update={"split_k": 2, "reduction": "workspace", "stages": 2})
SPREAD = WORKSPACE.model_copy(update={"epilogue": "direct", "spread_sum": True})
CLUSTER = PIPELINED.model_copy(update={"split_k": 2, "reduction": "cluster", "epilogue": "direct", "stages": 2})
DEPENDENT = PIPELINED.model_copy(update={"programmatic": True})

_SOURCE = "row0 + row) * columns + column0 + column;\n  hide(source);"
_LOOP_LOAD = "        if (ahead < k_blocks) load_block(writing, a, b, m0, n0, k_begin + ahead * BLOCK_K, M, N, K);\n"
_LOOP_WAIT = "        cp_async_wait<kStages - 2>();\n        __syncthreads();\n"
_ARRIVES = "  if (!arrives_last(counters + tile, kSplits)) return false;\n"
# arrives_last without one or both of its fences.
_ARRIVES_BY_HAND = """\
  __shared__ bool is_last;
{before}  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(counters + tile, kSplits - 1) == kSplits - 1;
  __syncthreads();
{after}  if (!is_last) return false;
"""
_FENCE = "  __threadfence();\n"
_MEETS = "  meet_resident(counter, kSplits);\n"
# meet_resident with other orders, and without the increment that wraps the counter.
_MEETS_BY_HAND = """\
  __syncthreads();
  if (threadIdx.x == 0) {{
    const unsigned most = 2 * kSplits - 1;
    asm volatile("red.{arrive}.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
    unsigned arrived;
    do {{
      asm volatile("ld.{look}.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    }} while (arrived < kSplits);
{leave}  }}
  __syncthreads();
"""
_LEAVES = '    asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");\n'

MMA_SYNC_FAULTS = (
    Fault(
        name="reads-past-a-and-b",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch(_SOURCE, _SOURCE.replace("column;", "column + 8;", 1)),),
        detectors=("global-out-of-bounds",),
        why="the last chunk of the last row is copied from 16 bytes past the operand",
    ),
    Fault(
        name="rows-of-loads-not-guarded",
        schedule=EDGES,
        task=RAGGED_TN,
        patches=(Patch("row0 + row + r < rows && column0", "column0"),),
        detectors=("global-out-of-bounds",),
        why="rows of the tile below the matrix are copied from behind its end",
    ),
    Fault(
        name="k-tail-not-guarded",
        schedule=EDGES,
        task=RAGGED_TN,
        patches=(Patch("row0 + row + r < rows && column0 + column + c < columns", "row0 + row + r < rows"),),
        detectors=("global-out-of-bounds", "wrong-result"),
        why="beyond K the next row is multiplied, and after the last row memory past the operand",
    ),
    Fault(
        name="k-tail-not-zeroed",
        schedule=EDGES,
        task=RAGGED_TN,
        patches=(
            Patch(
                "cp_async_or_zero<kVector * sizeof(Element)>(target, from, inside);",
                "if (inside) cp_async<kVector * sizeof(Element)>(target, from);",
            ),
        ),
        detectors=("uninitialised-read", "wrong-result"),
        why="beyond K the products are of shared memory that nobody wrote",
    ),
    Fault(
        name="rows-of-d-not-guarded",
        schedule=EDGES,
        task=RAGGED,
        patches=(Patch("      if (kGuardD && row >= M) continue;\n", ""),),
        detectors=("global-out-of-bounds",),
        why="rows of the tile below D are stored behind its end",
    ),
    Fault(
        name="columns-of-d-not-guarded",
        schedule=EDGES,
        task=RAGGED,
        patches=(Patch("if (!kGuardD || column < N) *reinterpret_cast", "*reinterpret_cast"),),
        detectors=("global-out-of-bounds", "global-race", "wrong-result"),
        why="columns right of D land in the next row, which another CTA writes, and after the last row behind D",
    ),
    Fault(
        name="writes-past-d",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("(d + (m0 + row) * N", "(d + (m0 + row + 1) * N"),),
        detectors=("global-out-of-bounds",),
        why="the last row of the last tiles is stored behind D",
    ),
    Fault(
        name="writes-into-a",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("store_tile(d, sums", "store_tile(const_cast<Element*>(a), sums"),),
        detectors=("input-written",),
        why="the epilogue stores into an operand that is read only",
    ),
    Fault(
        name="misaligned-copy",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch(_SOURCE, _SOURCE.replace("column;", "column + 1;", 1)),),
        detectors=("misaligned",),
        why="a copy of 16 bytes starts at an address that is a multiple of 2 only",
    ),
    Fault(
        name="misaligned-vector-load",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(
            Patch(
                "<const uint4*>(memory + swizzled<BLOCK_N>(row, column))",
                "<const uint4*>(memory + swizzled<BLOCK_N>(row, column + 4))",
            ),
        ),
        detectors=("misaligned",),
        why="16 bytes are read from shared memory at a multiple of 8",
    ),
    Fault(
        name="shared-memory-too-small",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch('"dynamic_smem": 12288', '"dynamic_smem": 11776'),),
        detectors=("shared-out-of-bounds",),
        why="the last stage of B ends 512 bytes behind what the launch asks for",
    ),
    Fault(
        name="no-barrier-before-the-loop",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("  cp_async_wait<kStages - 2>();\n  __syncthreads();\n\n", "  cp_async_wait<kStages - 2>();\n\n"),),
        detectors=("shared-race", "async-race", "uninitialised-read"),
        why="a thread waits for its own copies only; ldmatrix reads those of other warps",
    ),
    Fault(
        name="no-barrier-in-the-loop",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch(_LOOP_WAIT, _LOOP_WAIT.splitlines(keepends=True)[0]),),
        detectors=("shared-race", "async-race"),
        why="ldmatrix reads what other warps copied, and copies overwrite what other warps still read",
    ),
    Fault(
        name="no-barrier-before-staging",
        schedule=ONE_SHOT,
        task=SHORT,
        patches=(
            Patch("  __syncthreads();  // the staged tile lies over operands that other warps may still be reading\n", ""),
        ),
        detectors=("shared-race",),
        why="a warp stages its outputs where another still loads operands with ldmatrix",
    ),
    Fault(
        name="no-barrier-after-staging",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("  __syncthreads();\n  constexpr int kRowChunks", "  constexpr int kRowChunks"),),
        detectors=("shared-race",),
        why="rows are stored from chunks that other warps stage",
    ),
    Fault(
        name="weaker-wait",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch(_LOOP_WAIT, _LOOP_WAIT.replace("kStages - 2", "kStages - 1")),),
        detectors=("async-race", "uninitialised-read"),
        why="one group more may be under way: that of the K block that is read next",
    ),
    Fault(
        name="no-wait-in-the-prologue",
        schedule=ONE_SHOT,
        task=SHORT,
        patches=(Patch("  cp_async_wait<0>();\n", ""),),
        detectors=("async-race", "uninitialised-read"),
        why="nothing waits for the copies before the barrier, which orders only what is complete",
    ),
    Fault(
        name="no-commit-in-the-loop",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("        cp_async_commit();\n", ""),),
        detectors=("async-race", "uninitialised-read"),
        why="copies that belong to no group are waited for by none of the waits",
    ),
    Fault(
        name="no-wait-at-the-tail",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(
            Patch(
                _LOOP_LOAD + "        cp_async_commit();\n",
                _LOOP_LOAD.replace(") load_block", ") {\n          load_block") + "          cp_async_commit();\n        }\n",
            ),
        ),
        detectors=("async-race", "uninitialised-read"),
        why="without empty groups the wait that leaves one group open leaves the last K block open",
    ),
    Fault(
        name="writes-the-stage-being-read",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("writing = smem + (kStages - 1) * kBytesStage", "writing = smem + (kStages - 2) * kBytesStage"),),
        detectors=("async-race", "shared-race", "wrong-result"),
        why="copies go into the stage that is multiplied next, whose contents nobody has read",
    ),
    Fault(
        name="reads-the-next-stage",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("unsigned reading = smem;", "unsigned reading = smem + kBytesStage;"),),
        detectors=("async-race", "uninitialised-read", "shared-race"),
        why="the loop runs one stage ahead of the copies that it waits for",
    ),
    Fault(
        name="first-block-never-loaded",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("    if (block < k_blocks) load_block(smem", "    if (block > 0) load_block(smem"),),
        detectors=("uninitialised-read",),
        why="ldmatrix reads a stage that nobody has written, and the products reach D",
    ),
    Fault(
        name="accumulators-not-initialised",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch("  Accumulators accumulators = {};\n", "  Accumulators accumulators;\n"),),
        detectors=("uninitialised-read", "wrong-result"),
        why="the first products are added to registers that nobody has set",
    ),
    Fault(
        name="wrong-swizzle",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(
            Patch(
                "smem_a + swizzled<BLOCK_K>(row, k + place.lane / 16 * 8)",
                "smem_a + (row * BLOCK_K + k + place.lane / 16 * 8) * 2",
            ),
        ),
        detectors=("wrong-result",),
        why="A is written swizzled and read plain: all of it is there, in other places",
    ),
    Fault(
        name="part-of-a-warp-multiplies",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(
            Patch(
                "multiply_step(accumulators, fragments[step % 2]);",
                "if (place.lane < 16) multiply_step(accumulators, fragments[step % 2]);",
            ),
        ),
        detectors=("divergent",),
        why="mma.sync.aligned is executed by half of a warp",
    ),
    Fault(
        name="a-warp-skips-the-barrier",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch(_LOOP_WAIT, _LOOP_WAIT.replace("__sync", "if (threadIdx.x < kThreads - 32) __sync")),),
        detectors=("deadlock", "barrier-misuse", "shared-race", "async-race"),
        why="three warps wait for the fourth, which meets them at other barriers, or never",
    ),
    Fault(
        name="part-of-a-warp-meets-the-others",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(Patch(_LOOP_WAIT, _LOOP_WAIT.replace("__sync", "if (threadIdx.x % 32 < 16) __sync")),),
        detectors=("divergent",),
        why="bar.sync is executed by half of each warp",
    ),
    Fault(
        name="loop-without-end",
        schedule=PIPELINED,
        task=WHOLE,
        patches=(
            Patch(
                "block < k_blocks; ++block) {\n#pragma unroll\n    for (int step",
                "block < k_blocks; block += step_of(block)) {\n#pragma unroll\n    for (int step",
            ),
            Patch(
                "struct Fragments {",
                "__device__ __forceinline__ int step_of(int block) { return block == 1 ? 0 : 1; }\n\nstruct Fragments {",
            ),
        ),
        detectors=("endless",),
        why="the loop stays at its second K block; every instruction of it is right",
    ),
    Fault(
        name="no-barrier-between-slices",
        schedule=SLICED,
        task=LONG,
        patches=(Patch("  __syncthreads();\n  if (place.slice > 0) return;\n", "  if (place.slice > 0) return;\n"),),
        detectors=("shared-race",),
        why="slice 0 adds sums that the other slice is still writing",
    ),
    Fault(
        name="split-without-fences",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch(_ARRIVES, _ARRIVES_BY_HAND.format(before="", after="")),),
        detectors=("global-race",),
        why="the counter alone orders neither the writes of partial sums before it nor the reads after it",
    ),
    Fault(
        name="split-without-releasing-fence",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch(_ARRIVES, _ARRIVES_BY_HAND.format(before="", after=_FENCE)),),
        detectors=("global-race",),
        why="partial sums may become visible after the counter that announces them",
    ),
    Fault(
        name="split-fence-of-the-cta",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch(_ARRIVES, _ARRIVES_BY_HAND.format(before="  __threadfence_block();\n", after=_FENCE)),),
        detectors=("global-race",),
        why="a fence of CTA scope orders the partial sums for their own CTA, and another one reads them",
    ),
    Fault(
        name="split-sums-too-early",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch(_ARRIVES, "  arrives_last(counters + tile, kSplits);\n"),),
        detectors=("global-race", "uninitialised-read"),
        why="every CTA sums, the first of them slots that nobody has written yet, and all of them store D",
    ),
    Fault(
        name="split-slot-past-the-workspace",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch("__stcg(slots + split * kSlot", "__stcg(slots + (split + 1) * kSlot"),),
        detectors=("global-out-of-bounds",),
        why="the last split of the last tile writes a whole slot behind the workspace",
    ),
    Fault(
        name="split-reads-past-the-workspace",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch("for (int slot = 0; slot < kSplits; ++slot)", "for (int slot = 0; slot <= kSplits; ++slot)"),),
        detectors=("global-out-of-bounds", "global-race"),
        why="one slot too many is summed: that of another tile, and for the last tile one behind the workspace",
    ),
    Fault(
        name="split-adds-to-its-own-sum",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch("  clear(sums);\n", ""),),
        detectors=("wrong-result",),
        why="the last CTA counts its own partial sum twice",
    ),
    Fault(
        name="workspace-not-zeroed",
        schedule=WORKSPACE,
        task=LONG,
        patches=(Patch(', "zero": "restored", "zero_bytes": "16*ceil(ceil(M/32)*ceil(N/32)/4)"', ""),),
        detectors=("uninitialised-read", "wrong-result"),
        why="arrivals are counted from whatever the workspace held",
    ),
    Fault(
        name="shares-summed-before-the-ctas-meet",
        schedule=SPREAD,
        task=LONG,
        patches=(Patch(_MEETS, "  __syncthreads();\n"),),
        detectors=("global-race", "uninitialised-read", "wrong-result"),
        why="a CTA adds sums that the other one may not have written",
    ),
    Fault(
        name="shares-announced-without-release",
        schedule=SPREAD,
        task=LONG,
        patches=(Patch(_MEETS, _MEETS_BY_HAND.format(arrive="relaxed", look="acquire", leave=_LEAVES)),),
        detectors=("global-race",),
        why="partial sums may become visible after the counter that announces them",
    ),
    Fault(
        name="shares-read-without-acquire",
        schedule=SPREAD,
        task=LONG,
        patches=(Patch(_MEETS, _MEETS_BY_HAND.format(arrive="release", look="relaxed", leave=_LEAVES)),),
        detectors=("global-race",),
        why="partial sums may be read from before the counter was seen",
    ),
    Fault(
        name="shares-leave-their-counter",
        schedule=SPREAD,
        task=LONG,
        patches=(Patch(_MEETS, _MEETS_BY_HAND.format(arrive="release", look="acquire", leave="")),),
        detectors=("workspace",),
        why="without the second increments the counter is not zero for the next run",
    ),
    Fault(
        name="shares-meet-at-the-counter-of-another-tile",
        schedule=SPREAD,
        task=LONG,
        patches=(Patch("counters + tile * kCounterPitch", "counters + tile / 2 * kCounterPitch"),),
        detectors=("global-race", "uninitialised-read", "wrong-result", "deadlock", "workspace"),
        why="two CTAs of different tiles meet, so neither waits for the other part of its own",
    ),
    Fault(
        name="cluster-sums-too-early",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("  cluster_sync();\n  constexpr int kRowChunks", "  __syncthreads();\n  constexpr int kRowChunks"),),
        detectors=("shared-race", "async-race", "uninitialised-read"),
        why="a CTA reads sums of its peer, over the peer's operands, that are ordered before no barrier of both",
    ),
    Fault(
        name="cluster-ends-too-early",
        schedule=CLUSTER,
        task=LONG,
        patches=(Patch("  cluster_sync();  // no CTA may end while another still reads its shared memory\n", ""),),
        detectors=("cluster-exit",),
        why="a CTA that has stored its rows ends, and its shared memory with it, while its peer still reads there",
    ),
    Fault(
        name="dependency-not-awaited",
        schedule=DEPENDENT,
        task=WHOLE,
        patches=(Patch("  wait_for_dependencies();\n", ""),),
        detectors=("dependency",),
        why="a programmatic launch reads A and B without waiting for the kernel that writes them",
    ),
)
