"""Writes a `mma_sync` schedule for a task as one complete CUDA source with its launch plan."""

from contract.candidate import Candidate, Origin
from contract.plan import (
    Arg,
    Launch,
    LaunchPlan,
    ScalarArg,
    TensorArg,
    Workspace,
    WorkspaceArg,
    render_plan,
)
from contract.task import AccumulatorType, ElementType, GemmTask, Layout
from policies.schedule.families.mma_sync.epilogue import write_reductions, write_stores
from policies.schedule.families.mma_sync.geometry import STAGING_PAD, Geometry, copy_width
from policies.schedule.families.mma_sync.mainloop import write_fragments, write_loads, write_mainloop
from policies.schedule.families.mma_sync.schedule import MmaSyncSchedule

ELEMENT_NAMES = {ElementType.F16: "__half", ElementType.BF16: "__nv_bfloat16"}
ENTRY = "hgemm"


def write_candidate(schedule: MmaSyncSchedule, task: GemmTask) -> Candidate:
    """Equal schedule and task give equal text. Raises: ValueError where the schedule cannot run for the task."""
    geometry = Geometry(schedule, task)
    if reason := geometry.violation():
        raise ValueError(f"mma_sync schedule for {task.shape}: {reason}")
    plan = _plan(geometry)
    origin = Origin(policy="schedule", schedule=schedule.values())
    return Candidate(source=render_plan(plan) + _source(geometry), plan=plan, origin=origin)


def _plan(geometry: Geometry) -> LaunchPlan:
    s, task = geometry.schedule, geometry.task
    tiles = f"ceil(M/{s.block_m})*ceil(N/{s.block_n})"
    counter_bytes = f"16*ceil({tiles}/4)"
    args: list[Arg] = [TensorArg(tensor="A"), TensorArg(tensor="B"), TensorArg(tensor="D", access="write")]
    workspace = None
    if s.reduction == "workspace":
        args += [WorkspaceArg(workspace=0), WorkspaceArg(workspace=counter_bytes)]
        slot_bytes = 4 * s.block_m * s.block_n * s.split_k
        workspace = Workspace(bytes=f"{counter_bytes} + {slot_bytes}*{tiles}", zero="restored", zero_bytes=counter_bytes)
    if not s.constant_shape:
        args += [ScalarArg(scalar=name) for name in ("M", "N", "K")]
    launch = Launch(
        entry=ENTRY,
        grid=(tiles if s.split_k == 1 else f"{tiles}*{s.split_k}", 1, 1),
        block=(geometry.threads, 1, 1),
        cluster=(s.split_k if s.reduction == "cluster" else 1, 1, 1),
        dynamic_smem=geometry.smem_bytes,
        programmatic=s.programmatic,
        args=tuple(args),
    )
    return LaunchPlan(
        arch=task.arch,
        launches=(launch,),
        workspace=workspace,
        accumulate=task.accumulate,
        requires=_requirements(geometry),
    )


def _requirements(geometry: Geometry) -> tuple[str, ...]:
    """What the text takes for granted about the shape."""
    s, task = geometry.schedule, geometry.task
    if s.constant_shape:
        return (f"M=={task.m}", f"N=={task.n}", f"K=={task.k}")
    rules = {}
    if not (geometry.a_guarded and geometry.b_guarded):
        rules["K"] = s.block_k
    if not geometry.a_guarded:
        rules["M"] = s.block_m
    if not geometry.b_guarded:
        rules["N"] = s.block_n
    if not geometry.d_guarded:
        rules |= {"M": s.block_m, "N": s.block_n}
    rules["K"] = max(rules.get("K", 1), copy_width(task.k))
    across_n = copy_width(task.n) if task.layout is Layout.NN else 8 if s.epilogue == "staged" else 2 - task.n % 2
    rules["N"] = max(rules.get("N", 1), across_n)
    modulo = [f"{name}%{rules[name]}==0" for name in sorted(rules) if rules[name] > 1]
    if s.stages == 1:
        modulo.append(f"K<={s.block_k * s.split_k}")
    if s.split_k > 1:
        modulo.append(f"ceil(K/{s.block_k * s.split_k})*{s.block_k * (s.split_k - 1)}<K")
    return tuple(modulo)


def _source(geometry: Geometry) -> str:
    parts = [
        _summary(geometry),
        _includes(geometry),
        _constants(geometry),
        write_loads(geometry),
        write_fragments(geometry),
        write_mainloop(geometry),
        write_reductions(geometry),
        write_stores(geometry),
        _kernel(geometry),
    ]
    return "\n".join(part for part in parts if part)


def _summary(geometry: Geometry) -> str:
    s, task = geometry.schedule, geometry.task
    b_order = "row-major K x N" if task.layout is Layout.NN else "column-major K x N (N x K in memory)"
    split = {
        "none": "",
        "workspace": f"\n// K is cut into {s.split_k} splits; the last CTA of a tile to arrive sums them in a fixed order.",
        "cluster": f"\n// K is cut into {s.split_k} splits, one a CTA of a cluster; sums meet in distributed shared memory.",
    }[s.reduction]
    return (
        f"// D = A B with A row-major M x K, B {b_order}, D row-major M x N; {task.element} elements,"
        f" {task.accumulate} accumulators.\n"
        f"// Tensor cores through mma.sync; operands come by cp.async through {s.stages} swizzled shared-memory "
        f"{'stage' if s.stages == 1 else 'stages'}.{split}\n"
    )


def _includes(geometry: Geometry) -> str:
    s = geometry.schedule
    names = ["convert", "cp_async", "ldmatrix", "mma", "opaque", "shared", "swizzle"]
    names += ["arrival"] if s.reduction == "workspace" else []
    names += ["cluster"] if s.reduction == "cluster" else []
    names += ["raster"] if s.group_m > 1 else []
    names += ["programmatic"] if s.programmatic else []
    return "".join(f"#include <cudal2/{name}.cuh>\n" for name in sorted(names))


def _constants(geometry: Geometry) -> str:
    s, task = geometry.schedule, geometry.task
    packed = task.accumulate is AccumulatorType.F16
    shape = f"constexpr int M = {task.m}, N = {task.n}, K = {task.k};\n" if s.constant_shape else ""
    stages = f"constexpr int kStages = {s.stages};\n" if s.stages > 1 else ""
    splits = f"constexpr int kSplits = {s.split_k};\n" if s.split_k > 1 else ""
    bytes_stage = "constexpr unsigned kBytesStage = kBytesA + BLOCK_N * BLOCK_K * sizeof(Element);\n" if s.stages > 1 else ""
    group = f"constexpr int kGroupM = {s.group_m};\n" if s.group_m > 1 else ""
    staging = f"constexpr int kStagedRow = BLOCK_N + {STAGING_PAD};  // floats; the pad keeps bank conflicts away\n"
    return f"""\
using namespace cudal2;
using Element = {ELEMENT_NAMES[task.element]};

{shape}constexpr int BLOCK_M = {s.block_m}, BLOCK_N = {s.block_n}, BLOCK_K = {s.block_k};
constexpr int kWarpsM = {s.warps_m}, kWarpsN = {s.warps_n}, kWarpsK = {s.warps_k};
{stages}{splits}{group}constexpr int kMinCtas = {s.min_ctas};

constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
constexpr int WARP_M = BLOCK_M / kWarpsM, WARP_N = BLOCK_N / kWarpsN;
constexpr int kMmasM = WARP_M / 16, kMmasN = WARP_N / 8;
constexpr int kStepsK = BLOCK_K / 16 / kWarpsK;  // mma steps of a warp in one K block
constexpr unsigned kBytesA = BLOCK_M * BLOCK_K * sizeof(Element);
{bytes_stage}{staging if s.reduction == "cluster" else ""}
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's tile is made of 16x8 products, loaded in pairs along N");
static_assert(BLOCK_K % (16 * kWarpsK) == 0, "every warp along K gets whole steps of 16");
static_assert(kThreads <= 1024, "a CTA has at most 1024 threads");

// Accumulators of a warp: {"two packed halves" if packed else "floats"}, as mma.cuh lays them out.
using Accumulators = {"unsigned" if packed else "float"}[kMmasM][kMmasN][{2 if packed else 4}];
using Sums = float[kMmasM][kMmasN][4];

struct Place {{  // where a warp works: its tile of the CTA's tile, and its slice of every K block
  int lane, row, column, slice;
}};
"""


def _kernel(geometry: Geometry) -> str:
    s = geometry.schedule
    parameters = "const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ d"
    if s.reduction == "workspace":
        parameters += ", unsigned* __restrict__ counters, float4* __restrict__ partials"
    if not s.constant_shape:
        parameters += ", int M, int N, int K"
    return f"""\
extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
{ENTRY}({parameters}) {{
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned smem = smem_address(memory);
  const int warp = threadIdx.x / 32;
  const Place place = {{static_cast<int>(threadIdx.x % 32), warp / kWarpsN % kWarpsM * WARP_M, warp % kWarpsN * WARP_N,
                       warp / (kWarpsN * kWarpsM)}};

{_raster(geometry)}
{_k_range(geometry)}{_programmatic(geometry)}
  Accumulators accumulators = {{}};
  multiply(accumulators, smem, place, a, b, m0, n0, k_begin, k_blocks, M, N, K);

{_finish(geometry)}}}
"""


def _raster(geometry: Geometry) -> str:
    s = geometry.schedule
    block = "blockIdx.x" if s.split_k == 1 else "tile"
    cut = ""
    if s.split_k > 1:
        cut = "  // The CTAs that share a tile are neighbours, so that their sums are ready at about the same time.\n"
        cut += "  const int tile = blockIdx.x / kSplits, split = blockIdx.x % kSplits;\n"
    if s.group_m == 1:
        return f"""\
{cut}  const int blocks_n = (N + BLOCK_N - 1) / BLOCK_N;
  const int m0 = {block} / blocks_n * BLOCK_M, n0 = {block} % blocks_n * BLOCK_N;
"""
    return f"""\
{cut}  const TileIndex block = grouped_raster<kGroupM>({block}, (M + BLOCK_M - 1) / BLOCK_M, (N + BLOCK_N - 1) / BLOCK_N);
  const int m0 = block.m * BLOCK_M, n0 = block.n * BLOCK_N;
"""


def _k_range(geometry: Geometry) -> str:
    if geometry.schedule.split_k == 1:
        return "  const int k_begin = 0, k_blocks = (K + BLOCK_K - 1) / BLOCK_K;\n"
    return """\
  // Splits are whole K blocks, so that only the last one can reach past K.
  const int split_blocks = (K + BLOCK_K * kSplits - 1) / (BLOCK_K * kSplits);
  const int k_begin = split * split_blocks * BLOCK_K;
  const int k_blocks = min(split_blocks, (K - k_begin + BLOCK_K - 1) / BLOCK_K);
"""


def _programmatic(geometry: Geometry) -> str:
    if not geometry.schedule.programmatic:
        return ""
    return """
  // The next kernel may start its own prologue at once: it waits, as this one does, before it touches memory.
  launch_dependents();
  wait_for_dependencies();
"""


def _finish(geometry: Geometry) -> str:
    s = geometry.schedule
    packed = geometry.task.accumulate is AccumulatorType.F16
    sums = "sums" if packed else "accumulators"
    lines = ["Sums sums;", "widen(sums, accumulators);"] if packed else []
    if s.warps_k > 1:
        lines.append(f"sum_slices({sums}, memory, place);")
    if s.reduction == "workspace":
        lines.append(f"if (!sum_splits({sums}, partials, counters, place, tile, split)) return;")
    if s.reduction == "cluster":
        lines.append(f"store_cluster_sum(d, {sums}, memory, place, m0, n0, M, N);")
    elif s.epilogue == "staged":
        lines.append(f"store_tile(d, {sums}, memory, place, m0, n0, M, N);")
    else:
        lines.append(f"store_tile(d, {sums}, place, m0, n0, M, N);")
    return "".join(f"  {line}\n" for line in lines)
