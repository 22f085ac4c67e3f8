"""From a schedule of the `wgmma_tma` family to a complete source: `wgmma_tma.cu` with its constants and launch plan."""

from functools import cache
from importlib.resources import files
from typing import Literal

from contract.candidate import Candidate, Origin
from contract.plan import (
    Launch,
    LaunchPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    Workspace,
    WorkspaceArg,
    render_plan,
)
from contract.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule

ENTRY = "wgmma_tma_gemm"


def write_candidate(schedule: WgmmaTmaSchedule, task: GemmTask) -> Candidate:
    """A complete source for a schedule that is valid for the task."""
    plan = _plan(schedule, task)
    source = render_plan(plan) + _template().replace("//@constants", _constants(schedule, task))
    return Candidate(source=source, plan=plan, origin=Origin(policy="schedule", schedule=schedule.values()))


@cache
def _template() -> str:
    return files("policies.schedule.families.wgmma_tma").joinpath("wgmma_tma.cu").read_text()


def _constants(s: WgmmaTmaSchedule, task: GemmTask) -> str:
    element = "__half" if task.element is ElementType.F16 else "__nv_bfloat16"
    register = "float" if task.accumulate is AccumulatorType.F32 else "unsigned"
    flag = {True: "true", False: "false"}
    return "\n".join(
        [
            "// ---- schedule " + "-" * 111,
            f"using Element = {element};",
            f"using Register = {register};  // of the accumulator: a float, or two packed halves",
            f"constexpr int kConsumers = {s.consumers};  // warpgroups that multiply",
            f"constexpr int kAtoms = {s.atoms};  // 64-row instructions a warpgroup has in flight",
            f"constexpr int BLOCK_N = {s.block_n};",
            f"constexpr int BLOCK_K = {s.block_k};",
            f"constexpr int kStages = {s.stages};",
            f"constexpr int kClusterM = {s.cluster_m};  // CTAs that share their columns of B by multicast",
            f"constexpr int kClusterN = {s.cluster_n};  // CTAs that share their rows of A by multicast",
            f"constexpr int kClusterK = {s.cluster_k};  // CTAs that sum parts of K through distributed shared memory",
            f"constexpr int kSplits = {s.splits};  // parts of K summed through the workspace",
            f"constexpr int kGroup = {s.group};  // rows of tiles visited together",
            f"constexpr bool kPersistent = {flag[s.persistent]};",
            f"constexpr bool kPingpong = {flag[s.pingpong]};  // warpgroups take turns over whole tiles",
            f"constexpr bool kRowMajorB = {flag[task.layout is Layout.NN]};",
            f"constexpr bool kTmaStore = {flag[s.tma_store]};",
            f"constexpr int kStoreBoxes = {s.store_boxes};  // a warp's boxes in flight, in a persistent CTA",
            f"constexpr int kCtasPerSm = {s.ctas_per_sm};",
        ]
    )


def _plan(s: WgmmaTmaSchedule, task: GemmTask) -> LaunchPlan:
    tiles = f"ceil(M/{s.cluster_m * s.block_m})*ceil(N/{s.cluster_n * s.block_n})"
    ctas = f"{tiles}*{s.splits * s.cluster}"
    places = "SMS" if s.ctas_per_sm == 1 else f"SMS*{s.ctas_per_sm}"
    whole = places if s.cluster == 1 else f"{places}//{s.cluster}*{s.cluster}"
    grid = f"min({ctas}, {whole})" if s.persistent else ctas
    if task.layout is Layout.TN:
        box_b = (64, s.block_n // s.cluster_m)
    else:
        by_columns = s.block_n // s.columns % s.cluster_m == 0
        box_b = (s.columns, s.block_k if by_columns else s.block_k // s.cluster_m)
    swizzle_b: Literal[32, 64, 128] = 128 if task.layout is Layout.TN else _swizzle(s)
    counters = f"ceil({tiles}*{s.cluster}*4/256)*256"
    slots = f"{tiles}*{s.cluster * s.splits * (s.block_m * s.block_n * 4 // s.cluster_k)}"
    requires = ["N%8==0", "K%8==0"]
    if s.splits * s.cluster_k > 1:
        requires.append(f"ceil(K/{s.block_k})>={s.splits * s.cluster_k}")
    return LaunchPlan(
        arch=Arch.SM_90A,
        launches=(
            Launch(
                entry=ENTRY,
                grid=(grid, 1, 1),
                block=(s.threads, 1, 1),
                cluster=(s.cluster, 1, 1),
                dynamic_smem=s.smem_bytes,
                programmatic=s.programmatic,
                args=(
                    TensorMapArg(tensor_map=TensorMapSpec(of="A", box=(64, s.block_m // s.cluster_n), swizzle=128, l2=256)),
                    TensorMapArg(tensor_map=TensorMapSpec(of="B", box=box_b, swizzle=swizzle_b, l2=256)),
                    TensorMapArg(tensor_map=TensorMapSpec(of="D", box=(s.columns, 16), swizzle=_swizzle(s))),
                    TensorArg(tensor="D", access="write"),
                    WorkspaceArg(workspace=0),
                    ScalarArg(scalar="M"),
                    ScalarArg(scalar="N"),
                    ScalarArg(scalar="K"),
                ),
            ),
        ),
        workspace=Workspace(bytes=f"{counters}+{slots}", zero="restored", zero_bytes=counters) if s.splits > 1 else None,
        accumulate=task.accumulate,
        requires=tuple(requires),
    )


def _swizzle(s: WgmmaTmaSchedule) -> Literal[32, 64, 128]:
    return 128 if s.columns == 64 else 64 if s.columns == 32 else 32
