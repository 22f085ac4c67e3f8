"""From a schedule of the `mma_sync` family to the constants and sections of its source, and to its launch plan."""

from cudal2_agent.contract.plan.plan import Arg, Launch, LaunchPlan, ScalarArg, TensorArg, Workspace, WorkspaceArg
from cudal2_agent.contract.records.task import BIAS, AccumulatorType
from cudal2_agent.policies.schedule.families.mma_sync.geometry import COUNTER_LINE, STAGING_PAD, Geometry
from cudal2_agent.policies.schedule.families.template import KernelConstant

ENTRY = "hgemm"


def plan(geometry: Geometry) -> LaunchPlan:
    """The launch plan. With a workspace, arrival counters come first and the partial tiles behind them."""
    s, task = geometry.schedule, geometry.task
    tiles = f"ceil(M/{s.block_m})*ceil(N/{s.block_n})"
    counter_bytes = f"{COUNTER_LINE}*{tiles}" if s.spread_sum else f"16*ceil({tiles}/4)"
    args: list[Arg] = [TensorArg(tensor="A"), TensorArg(tensor="B"), TensorArg(tensor="D", access="write")]
    args += [TensorArg(tensor=BIAS)] if task.bias else []
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
        requires=(*_requirements(geometry), *((f"{tiles}*{s.split_k}<=SMS*{s.min_ctas}",) if s.spread_sum else ())),
    )


def _requirements(geometry: Geometry) -> tuple[str, ...]:
    """What the source assumes about the shape."""
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
    multiples = [
        ("M" if task.layout.transposes_a else "K", geometry.copied_a),
        ("K" if task.layout.transposes_b else "N", geometry.copied_b),
        ("N", _stored_together(geometry)),
    ]
    for name, multiple in multiples:
        rules[name] = max(rules.get(name, 1), multiple)
    modulo = [f"{name}%{rules[name]}==0" for name in sorted(rules) if rules[name] > 1]
    if s.stages == 1:
        modulo.append(f"K<={s.block_k * s.split_k}")
    if s.split_k > 1:
        modulo.append(f"ceil(K/{s.block_k * s.split_k})*{s.block_k * (s.split_k - 1)}<K")
    return tuple(modulo)


def _stored_together(geometry: Geometry) -> int:
    """Elements of D that one store of the epilogue writes."""
    s = geometry.schedule
    if s.reduction == "cluster":
        return geometry.d_alignment
    return 8 if s.epilogue == "staged" else min(2, geometry.d_alignment)


def constants(geometry: Geometry) -> list[KernelConstant]:
    """The constants at the top of `mma_sync.cu`."""
    s, task = geometry.schedule, geometry.task
    sizes = {"M": task.m, "N": task.n, "K": task.k} if s.constant_shape else {}
    return [
        KernelConstant("kRegisters", 4 if task.accumulate is AccumulatorType.F32 else 2, "of a thread, for one 16x8 product"),
        *(KernelConstant(name, size) for name, size in sizes.items()),
        KernelConstant("BLOCK_M", s.block_m),
        KernelConstant("BLOCK_N", s.block_n),
        KernelConstant("BLOCK_K", s.block_k),
        KernelConstant("kWarpsM", s.warps_m),
        KernelConstant("kWarpsN", s.warps_n),
        KernelConstant("kWarpsK", s.warps_k, "warps that share an output tile and divide every K block"),
        KernelConstant("kStages", s.stages),
        KernelConstant("kSplits", s.split_k, "CTAs that share an output tile and divide K"),
        KernelConstant("kCounterPitch", COUNTER_LINE // 4, "words between counters, so that each has a line of its own"),
        KernelConstant("kGroupM", s.group_m, "rows of tiles visited together"),
        KernelConstant("kMinCtas", s.min_ctas, "CTAs that an SM should hold at least"),
        KernelConstant("kRowMajorB", not task.layout.transposes_b),
        KernelConstant("kVectorA", geometry.copied_a, "elements of A per copy"),
        KernelConstant("kVectorB", geometry.copied_b),
        KernelConstant("kAlignD", geometry.d_alignment, "elements that rows of D are a multiple of: 8, 2 or 1"),
        KernelConstant("kGuardA", geometry.a_guarded, "whether a tile of A can reach past the matrix"),
        KernelConstant("kGuardB", geometry.b_guarded),
        KernelConstant("kGuardD", geometry.d_guarded),
        KernelConstant("kStagedRow", s.block_n + STAGING_PAD, "floats of a staged row; the padding avoids bank conflicts"),
    ]


def sections(geometry: Geometry) -> set[str]:
    """The sections of `mma_sync.cu` that the schedule uses."""
    s, task = geometry.schedule, geometry.task
    a, copies_a = (
        "column-major-a" if task.layout.transposes_a else "row-major-a",
        "vectors" if geometry.copied_a > 1 else "elements",
    )
    way_out = "cluster" if s.reduction == "cluster" else "sum-spread" if s.spread_sum else s.epilogue
    chosen = {
        a,
        way_out,
        f"{copies_a}-a",
        f"{copies_a}-{a}",
        "vectors-b" if geometry.copied_b > 1 else "elements-b",
        "one-stage" if s.stages == 1 else "pipeline",
        "floats" if task.accumulate is AccumulatorType.F32 else "packed",
        "one-split" if s.split_k == 1 else "splits",
        "one-row" if s.group_m == 1 else "grouped",
    }
    wanted = {
        "bias": task.bias,
        "activation": task.activation is not None,
        f"activation-{way_out}": task.activation is not None,
        "slices": s.warps_k > 1,
        "workspace": s.reduction == "workspace",
        "sum-last": s.reduction == "workspace" and not s.spread_sum,
        "any-shape": not s.constant_shape,
        "programmatic": s.programmatic,
    }
    return chosen | {name for name, used in wanted.items() if used}
