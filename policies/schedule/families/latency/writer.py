"""From a schedule of the `latency` family to the constants and sections of its source, and to its launch plan."""

from typing import Literal

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, TensorMapArg, TensorMapSpec
from cudal2_agent.contract.records.task import BIAS, AccumulatorType, GemmTask
from cudal2_agent.policies.schedule.families.latency.schedule import LatencySchedule, guards
from cudal2_agent.policies.schedule.families.template import KernelConstant

ENTRY = "latency_gemm"


def constants(s: LatencySchedule, task: GemmTask) -> list[KernelConstant]:
    """The constants at the top of `latency.cu`."""
    sizes = {"M": task.m, "N": task.n, "K": task.k} if s.constant_shape else {}
    guard_a, guard_b, guard_d = guards(s, task)
    return [
        KernelConstant("kRegisters", 4 if task.accumulate is AccumulatorType.F32 else 2, "of a thread, for one 16x8 product"),
        *(KernelConstant(name, size) for name, size in sizes.items()),
        KernelConstant("BLOCK_M", s.block_m),
        KernelConstant("BLOCK_N", s.block_n),
        KernelConstant("BLOCK_K", s.block_k, "of K in one group of copies"),
        KernelConstant("kGroups", s.groups, "of copies, all started at once"),
        KernelConstant("kPasses", s.passes, "over the slots of the groups"),
        KernelConstant("kWarpsM", s.warps_m),
        KernelConstant("kWarpsN", s.warps_n),
        KernelConstant("kWarpsK", s.warps_k, "slices of warps that share an output tile and divide K"),
        KernelConstant("kClusterK", s.cluster_k, "CTAs that share an output tile and divide K"),
        KernelConstant("kRowMajorB", not task.layout.transposes_b),
        KernelConstant("kGuardA", guard_a, "whether a tile of A can reach past the matrix"),
        KernelConstant("kGuardB", guard_b),
        KernelConstant("kGuardD", guard_d),
    ]


def sections(s: LatencySchedule, task: GemmTask) -> set[str]:
    """The sections of `latency.cu` that the schedule uses."""
    a = "column-major-a" if task.layout.transposes_a else "row-major-a"
    newer = LIMITS[task.arch].max_cluster > 1
    wanted = {
        a: True,
        "sm-90": newer,
        "before-sm-90": not newer,
        f"copies-{a}": s.loads == "cp_async",
        f"copies-again-{a}": s.loads == "cp_async" and s.passes > 1,
        f"boxes-{a}": s.loads == "tma",
        "copies": s.loads == "cp_async",
        "copies-once": s.loads == "cp_async" and s.passes == 1,
        "copies-again": s.loads == "cp_async" and s.passes > 1,
        "boxes": s.loads == "tma",
        "boxes-once": s.loads == "tma" and s.passes == 1,
        "boxes-again": s.loads == "tma" and s.passes > 1,
        "bias": task.bias,
        "activation": task.activation is not None,
        "activation-of-pairs": task.activation is not None and s.cluster_k * s.warps_k > 1,
        "no-activation": task.activation is None,
        "one-pass": s.passes == 1,
        "passes": s.passes > 1,
        "cluster": s.cluster_k > 1,
        "one-cta": s.cluster_k == 1,
        "meets": s.loads == "tma" and s.cluster_k == 1,
        "slices": s.warps_k > 1,
        "fixed-shape": s.constant_shape,
        "any-shape": not s.constant_shape,
        "programmatic": s.programmatic,
    }
    return {name for name, used in wanted.items() if used}


def plan(s: LatencySchedule, task: GemmTask) -> LaunchPlan:
    """The launch plan: a CTA for every tile and part of K, those of a tile in one cluster."""
    tiles = f"ceil(M/{s.block_m})*ceil(N/{s.block_n})"
    operands: tuple[Arg, ...] = (TensorArg(tensor="A"), TensorArg(tensor="B"))
    if s.loads == "tma":
        operands = _maps(s, task)
    bias = (TensorArg(tensor=BIAS),) if task.bias else ()
    sizes = () if s.constant_shape else tuple(ScalarArg(scalar=name) for name in ("M", "N", "K"))
    launch = Launch(
        entry=ENTRY,
        grid=(tiles if s.cluster_k == 1 else f"{tiles}*{s.cluster_k}", 1, 1),
        block=(s.threads, 1, 1),
        cluster=(s.cluster_k, 1, 1),
        dynamic_smem=s.smem_bytes,
        programmatic=s.programmatic,
        args=(*operands, TensorArg(tensor="D", access="write"), *bias, *sizes),
    )
    return LaunchPlan(arch=task.arch, launches=(launch,), accumulate=task.accumulate, requires=_requirements(s, task))


def _maps(s: LatencySchedule, task: GemmTask) -> tuple[Arg, ...]:
    box_a, box_b = boxes(s, task)
    return (
        TensorMapArg(tensor_map=TensorMapSpec(of="A", box=box_a, swizzle=_swizzle(box_a), l2=256)),
        TensorMapArg(tensor_map=TensorMapSpec(of="B", box=box_b, swizzle=_swizzle(box_b), l2=256)),
    )


def boxes(s: LatencySchedule, task: GemmTask) -> tuple[tuple[int, int], tuple[int, int]]:
    """Columns and rows of a TMA box of A and of B, and of a panel in shared memory, as the operands are stored."""
    columns_a, rows_a = (s.block_m, s.block_k) if task.layout.transposes_a else (s.block_k, s.block_m)
    columns_b, rows_b = (s.block_k, s.block_n) if task.layout.transposes_b else (s.block_n, s.block_k)
    return (_panel_width(columns_a), rows_a), (_panel_width(columns_b), rows_b)


def _panel_width(columns: int) -> int:
    return next(width for width in (64, 32, 16) if columns % width == 0)


def _swizzle(box: tuple[int, int]) -> Literal[32, 64, 128]:
    width, _ = box
    return 128 if width == 64 else 64 if width == 32 else 32


def _requirements(s: LatencySchedule, task: GemmTask) -> tuple[str, ...]:
    """What the source assumes about the shape."""
    if s.constant_shape:
        return (f"M=={task.m}", f"N=={task.n}", f"K=={task.k}")
    guard_a, guard_b, guard_d = guards(s, task)
    whole_k = not (guard_a and guard_b)
    aligned_m, aligned_k = (8, 1) if task.layout.transposes_a else (1, 8)
    rules = {
        "M": aligned_m if guard_a and guard_d else s.block_m,
        "N": 8 if guard_b and guard_d else s.block_n,
        "K": aligned_k,
    }
    length = f"K=={s.capacity_k}" if whole_k and s.loads == "cp_async" else f"K<={s.capacity_k}"
    return (*(f"{name}%{rule}==0" for name, rule in rules.items() if rule > 1), length)
