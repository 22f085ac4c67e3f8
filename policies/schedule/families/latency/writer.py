"""From a schedule of the `latency` family to the constants and sections of its source, and to its launch plan."""

from typing import Literal

from contract.plan import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, TensorMapArg, TensorMapSpec
from contract.task import AccumulatorType, Arch, GemmTask
from policies.schedule.families.latency.schedule import LatencySchedule, guards
from policies.schedule.families.template import KernelConstant

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


def sections(s: LatencySchedule) -> set[str]:
    """The sections of `latency.cu` that the schedule uses."""
    wanted = {
        "copies": s.loads == "cp_async",
        "copies-once": s.loads == "cp_async" and s.passes == 1,
        "copies-again": s.loads == "cp_async" and s.passes > 1,
        "boxes": s.loads == "tma",
        "boxes-once": s.loads == "tma" and s.passes == 1,
        "boxes-again": s.loads == "tma" and s.passes > 1,
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
    sizes = () if s.constant_shape else tuple(ScalarArg(scalar=name) for name in ("M", "N", "K"))
    launch = Launch(
        entry=ENTRY,
        grid=(tiles if s.cluster_k == 1 else f"{tiles}*{s.cluster_k}", 1, 1),
        block=(s.threads, 1, 1),
        cluster=(s.cluster_k, 1, 1),
        dynamic_smem=s.smem_bytes,
        programmatic=s.programmatic,
        args=(*operands, TensorArg(tensor="D", access="write"), *sizes),
    )
    return LaunchPlan(arch=Arch.SM_90A, launches=(launch,), accumulate=task.accumulate, requires=_requirements(s, task))


def _maps(s: LatencySchedule, task: GemmTask) -> tuple[Arg, ...]:
    width_a, width_b = min(s.block_k, 64), panel_width(s.block_n if not task.layout.transposes_b else s.block_k)
    box_b = (width_b, s.block_k if not task.layout.transposes_b else s.block_n)
    return (
        TensorMapArg(tensor_map=TensorMapSpec(of="A", box=(width_a, s.block_m), swizzle=_swizzle(width_a), l2=256)),
        TensorMapArg(tensor_map=TensorMapSpec(of="B", box=box_b, swizzle=_swizzle(width_b), l2=256)),
    )


def panel_width(columns: int) -> int:
    """Columns of a panel in shared memory, and of a TMA box."""
    return next(width for width in (64, 32, 16) if columns % width == 0)


def _swizzle(width: int) -> Literal[32, 64, 128]:
    return 128 if width == 64 else 64 if width == 32 else 32


def _requirements(s: LatencySchedule, task: GemmTask) -> tuple[str, ...]:
    """What the source assumes about the shape."""
    if s.constant_shape:
        return (f"M=={task.m}", f"N=={task.n}", f"K=={task.k}")
    guard_a, guard_b, guard_d = guards(s, task)
    whole_k = not (guard_a and guard_b)
    rules = {"M": 1 if guard_a and guard_d else s.block_m, "N": 8 if guard_b and guard_d else s.block_n}
    length = f"K=={s.capacity_k}" if whole_k and s.loads == "cp_async" else f"K<={s.capacity_k}"
    return (*(f"{name}%{rule}==0" for name, rule in rules.items() if rule > 1), "K%8==0", length)
