"""From a schedule of the `wgmma_tma` family to the constants of its source, and to its launch plan."""

from typing import Literal

from cudal2_agent.contract.plan.plan import (
    Launch,
    LaunchPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    Workspace,
    WorkspaceArg,
)
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms_expression
from cudal2_agent.policies.schedule.families.template import KernelConstant
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import (
    KernelView,
    WgmmaTmaSchedule,
    counter_pitch,
    slot_bytes,
    view_of,
)

ENTRY = "wgmma_tma_gemm"
_EVICTIONS = ("normal", "first", "last")
_SECTIONS_OF_BOTH = {"push-last", "push-spread", "pull-spread"}


def constants(s: WgmmaTmaSchedule, task: GemmTask) -> list[KernelConstant]:
    """The constants at the top of `wgmma_tma.cu`."""
    return [
        KernelConstant("kConsumers", s.consumers, "warpgroups that multiply"),
        KernelConstant("kAtoms", s.atoms, "64-row instructions a warpgroup has in flight"),
        KernelConstant("BLOCK_N", s.block_n),
        KernelConstant("BLOCK_K", s.block_k),
        KernelConstant("kStages", s.stages),
        KernelConstant("kClusterM", s.cluster_m, "CTAs that share their columns of B by multicast"),
        KernelConstant("kClusterN", s.cluster_n, "CTAs that share their rows of A by multicast"),
        KernelConstant("kClusterK", s.cluster_k, "CTAs that sum parts of K through distributed shared memory"),
        KernelConstant("kSplits", s.splits, "parts of K summed through the workspace"),
        KernelConstant("kGroup", s.group, "rows of tiles visited together"),
        KernelConstant("kByColumns", s.raster.endswith("n"), "the group is one of columns"),
        KernelConstant("kSnake", s.raster.startswith("snake"), "every second group is visited backwards"),
        KernelConstant("kPersistent", s.persistent),
        KernelConstant("kPingpong", s.pingpong, "warpgroups take turns over whole tiles"),
        KernelConstant("kRowMajorB", view_of(s, task).row_major_b),
        KernelConstant("kTmaStore", s.tma_store),
        KernelConstant("kStoreBoxes", s.store_boxes, "a warp's boxes in flight, in a persistent CTA"),
        KernelConstant("kBoxRows", s.box_rows, "rows of D in a store box"),
        KernelConstant("kCtasPerSm", s.ctas_per_sm),
        KernelConstant("kReceiveApart", s.receives_apart, "pushed sums have memory of their own"),
        KernelConstant("kEvictionA", _EVICTIONS.index(s.evict_a), "0 as usual, 1 first, 2 last"),
        KernelConstant("kEvictionB", _EVICTIONS.index(s.evict_b)),
        KernelConstant("kEvictionD", _EVICTIONS.index(s.evict_d)),
    ]


def sections(s: WgmmaTmaSchedule, task: GemmTask) -> set[str]:
    """The sections of `wgmma_tma.cu` that a schedule uses."""
    way, combined = "push" if s.push else "pull", "spread" if s.spread_sum else "last"
    loads, a = (
        "hinted-loads" if s.hinted else "plain-loads",
        "column-major-a" if view_of(s, task).column_major_a else "row-major-a",
    )
    way_out = "turned" if s.turned else "upright-whole" if s.whole_groups else "upright"
    stores = "plain-stores" if s.evict_d == "normal" else "hinted-stores"
    return {
        way,
        *({"drains"} if s.drains else set() if s.push else {"meets"}),
        f"sum-{combined}",
        *({f"{way}-{combined}"} & _SECTIONS_OF_BOTH),
        "tail-split" if s.split_tail else "all-split",
        "by-rows" if s.raster == "m" else "ordered",
        "few-registers" if s.producer_registers == 40 else "more-registers",
        a,
        loads,
        f"{loads}-{a}",
        "whole-groups" if s.whole_groups else "exact-groups",
        "of-turned" if s.turned else f"of-{a}",
        way_out,
        f"{'turned' if s.turned else 'upright'}-{stores}",
    }


def plan(s: WgmmaTmaSchedule, task: GemmTask) -> LaunchPlan:
    """The launch plan. With splits, arrival counters come first in the workspace and the partial sums behind them."""
    view, (rows, columns) = view_of(s, task), ("N", "M") if s.turned else ("M", "N")
    tiles = f"ceil({rows}/{s.cluster_m * s.block_m})*ceil({columns}/{s.cluster_n * s.block_n})"
    ctas = f"{tiles}*{s.cluster if s.split_tail else s.splits * s.cluster}"
    resident = "SMS" if s.ctas_per_sm == 1 else f"SMS*{s.ctas_per_sm}"
    whole = resident if s.cluster == 1 else f"{resident}//{s.cluster}*{s.cluster}"
    grid = f"min({ctas}, {whole})" if s.persistent else ctas
    if not view.row_major_b:
        box_b = (64, s.block_n // s.cluster_m)
    else:
        by_columns = s.column_groups % s.cluster_m == 0
        box_b = (s.columns, s.block_k if by_columns else s.block_k // s.cluster_m)
    swizzle_b: Literal[32, 64, 128] = _swizzle(s.columns) if view.row_major_b else 128
    box_d = (64, s.box_rows) if s.turned else (s.box_columns, 16)
    slots = grid if s.split_tail else f"{tiles}*{s.cluster}"
    counters = f"ceil({slots}*{counter_pitch(s)}/256)*256"
    partials = f"{grid}*{s.splits * slot_bytes(s)}" if s.split_tail else f"{tiles}*{s.cluster * s.splits * slot_bytes(s)}"
    requires = ["N%8==0", "M%8==0" if task.layout.transposes_a else "K%8==0"]
    if s.splits * s.cluster_k > 1:
        requires.append(f"ceil(K/{s.block_k})>={s.splits * s.cluster_k}")
    if s.spread_sum:
        requires.append(f"{ctas}<=({cluster_sms_expression(s.cluster)})*{s.ctas_per_sm}")
    if s.stages == 1:
        requires.append(f"K<={s.block_k * s.parts_of_whole}")
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
                    TensorMapArg(
                        tensor_map=TensorMapSpec(of=view.row_operand, box=_box_a(s, view), swizzle=128, l2=s.promotion)
                    ),
                    TensorMapArg(
                        tensor_map=TensorMapSpec(of=view.column_operand, box=box_b, swizzle=swizzle_b, l2=s.promotion)
                    ),
                    TensorMapArg(tensor_map=TensorMapSpec(of="D", box=box_d, swizzle=_swizzle(box_d[0]))),
                    TensorArg(tensor="D", access="write"),
                    WorkspaceArg(workspace=0),
                    ScalarArg(scalar=rows),
                    ScalarArg(scalar=columns),
                    ScalarArg(scalar="K"),
                ),
            ),
        ),
        workspace=Workspace(bytes=f"{counters}+{partials}", zero="restored", zero_bytes=counters) if s.splits > 1 else None,
        accumulate=task.accumulate,
        requires=tuple(requires),
    )


def _box_a(s: WgmmaTmaSchedule, view: KernelView) -> tuple[int, int]:
    """What one CTA of a multicast loads of 64 along K, or where A is transposed of 64 rows of the tile."""
    if not view.column_major_a:
        return 64, s.block_m // s.cluster_n
    return 64, s.block_k if s.slices_groups_of_a else s.block_k // s.cluster_n


def _swizzle(columns: int) -> Literal[32, 64, 128]:
    return 128 if columns == 64 else 64 if columns == 32 else 32
