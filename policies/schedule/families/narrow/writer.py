"""From a schedule of the `narrow` family to the constants and sections of its source, and to its launch plan."""

from contract.plan import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, TensorMapArg, TensorMapSpec
from contract.task import Arch, GemmTask
from policies.schedule.families.narrow.schedule import PREFETCHED_K, NarrowSchedule, Roles
from policies.schedule.families.template import KernelConstant

ENTRY = "narrow_gemm"


def constants(s: NarrowSchedule, task: GemmTask, operands: Roles) -> list[KernelConstant]:
    """The constants at the top of `narrow.cu`."""
    sizes = {"TOKENS": operands.tokens, "FEATURES": operands.features, "K": task.k} if s.constant_shape else {}
    return [
        *(KernelConstant(name, size) for name, size in sizes.items()),
        KernelConstant("BLOCK_TOKENS", s.block_m, "of a CTA"),
        KernelConstant("BLOCK_FEATURES", s.block_n),
        KernelConstant("kWarps", s.warps_k, "that take turns along K"),
        KernelConstant("kStages", s.stages, "steps of a warp in flight"),
        KernelConstant("kClusterK", s.cluster_k, "CTAs that share an output tile and divide K"),
        KernelConstant("kPrefetch", s.prefetch, "times 256 along K whose weights L2 is asked for before the wait"),
        KernelConstant("kEviction", int(s.evict_first), "of weights from L2: 0 as usual, 1 first"),
        KernelConstant("kWeightsByK", operands.by_k, "weights lie K x features, else features x K"),
        KernelConstant("kTokensAreRows", operands.tokens_are_rows, "of D"),
        KernelConstant("kGuardTokens", not s.constant_shape or bool(operands.tokens % s.block_m), "past the last token"),
        KernelConstant("kGuardFeatures", not s.constant_shape or bool(operands.features % s.block_n)),
        KernelConstant("kGuardK", not _whole_k(s, task), "whether a step can reach past the CTA's part of K"),
    ]


def sections(s: NarrowSchedule) -> set[str]:
    """The sections of `narrow.cu` that the schedule uses."""
    late = s.programmatic and s.trigger == "last_loads"
    wanted = {
        "register-ring": s.ring == "registers",
        "shared-ring": s.ring == "shared",
        "cluster": s.cluster_k > 1,
        "one-cta": s.cluster_k == 1,
        "prefetch": s.prefetch > 0,
        "fixed-shape": s.constant_shape,
        "any-shape": not s.constant_shape,
        "programmatic": s.programmatic,
        "early-launch": s.programmatic and not late,
        "late-register-ring": late and s.ring == "registers",
        "late-shared-ring": late and s.ring == "shared",
    }
    return {name for name, used in wanted.items() if used}


def plan(s: NarrowSchedule, task: GemmTask, operands: Roles) -> LaunchPlan:
    """The launch plan: a CTA for every tile and part of K, those of a tile in one cluster.

    Sums are floats where the task allows halves too: they cost nothing beside the weights.
    """
    tokens, features = ("M", "N") if operands.tokens_are_rows else ("N", "M")
    narrow, wide = (TensorArg(tensor="A"), TensorArg(tensor="B"))
    if not operands.tokens_are_rows:
        narrow, wide = wide, narrow
    tiles = f"ceil({tokens}/{s.block_m})*ceil({features}/{s.block_n})"
    sizes = () if s.constant_shape else tuple(ScalarArg(scalar=name) for name in (tokens, features, "K"))
    launch = Launch(
        entry=ENTRY,
        grid=(tiles if s.cluster_k == 1 else f"{tiles}*{s.cluster_k}", 1, 1),
        block=(s.threads, 1, 1),
        cluster=(s.cluster_k, 1, 1),
        dynamic_smem=s.smem_bytes(task),
        programmatic=s.programmatic,
        args=(narrow, wide, TensorArg(tensor="D", access="write"), *_map(s, operands), *sizes),
    )
    requires = _requirements(s, task, operands)
    return LaunchPlan(arch=Arch.SM_90A, launches=(launch,), accumulate=task.accumulate, requires=requires)


def _map(s: NarrowSchedule, operands: Roles) -> tuple[Arg, ...]:
    """The tensor map of weights that prefetches go by."""
    box = (s.block_n, PREFETCHED_K) if operands.by_k else (PREFETCHED_K, s.block_n)
    weights = TensorMapSpec(of="B" if operands.tokens_are_rows else "A", box=box)
    return (TensorMapArg(tensor_map=weights),) if s.prefetch else ()


def _whole_k(s: NarrowSchedule, task: GemmTask) -> bool:
    """Whether every step lies within the CTA's part of K; a ring of registers takes its steps in whole rounds."""
    held = s.stages if s.ring == "registers" else 1
    return s.constant_shape and task.k % (s.round_k * s.cluster_k * held) == 0


def _requirements(s: NarrowSchedule, task: GemmTask, operands: Roles) -> tuple[str, ...]:
    """What the source assumes about the shape."""
    if s.constant_shape:
        return (f"M=={task.m}", f"N=={task.n}", f"K=={task.k}")
    return ("N%8==0", "K%8==0") if operands.tokens_are_rows else ("K%8==0",)
