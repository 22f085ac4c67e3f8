"""From a schedule of the `wgmma_tma` family to the constants of its source, and to its launch plan."""

from typing import Literal

from cudal2_agent.contract.plan.plan import (
    Arg,
    Launch,
    LaunchPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    Workspace,
    WorkspaceArg,
)
from cudal2_agent.contract.records.task import BIAS, UP, Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import cluster_sms_expression, has_tma_rows
from cudal2_agent.policies.schedule.families.template import KernelConstant
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import (
    PACKED_COLUMNS,
    KernelView,
    WgmmaTmaSchedule,
    counter_pitch,
    packed_operands,
    paired_operands,
    slot_bytes,
    smem_bytes,
    store_columns,
    tile_of_d,
    view_of,
)

ENTRY, PACK_ENTRY = "wgmma_tma_gemm", "pack_rows"
PACK_THREADS, PACK_COLUMNS = 256, 256  # of a CTA that packs; of a row that a warp copies at once
Operand = Literal["A", "B", "D"]
_OPERANDS: tuple[Operand, ...] = ("D", "A", "B")
_EVICTIONS = ("normal", "first", "last")
_SECTIONS_OF_BOTH = {"push-last", "push-spread", "pull-spread"}


def constants(s: WgmmaTmaSchedule, task: GemmTask) -> list[KernelConstant]:
    """The constants at the top of `wgmma_tma.cu`."""
    view, paired = view_of(s, task), paired_operands(s, task)
    return [
        KernelConstant("kConsumers", s.consumers, "warpgroups that multiply"),
        KernelConstant("kAtoms", s.atoms, "64-row instructions a warpgroup has in flight"),
        KernelConstant("BLOCK_N", s.block_n),
        KernelConstant("kStoredN", s.stored_n, "columns of B that a stage has room for"),
        KernelConstant("kSliceN", s.slice_n, "columns of B that a CTA loads for its cluster"),
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
        KernelConstant("kRowMajorB", view.row_major_b),
        KernelConstant("kTmaStore", s.tma_store),
        KernelConstant("kStoreColumns", store_columns(s, task), "width of a store box"),
        KernelConstant("kStoreBoxes", s.store_boxes, "a warp's boxes in flight, in a persistent CTA"),
        KernelConstant("kBoxRows", s.box_rows, "rows of D in a store box"),
        KernelConstant("kCtasPerSm", s.ctas_per_sm),
        KernelConstant("kReceiveApart", s.receives_apart, "pushed sums have memory of their own"),
        KernelConstant("kEvictionA", _EVICTIONS.index(s.evict_a), "0 as usual, 1 first, 2 last"),
        KernelConstant("kEvictionB", _EVICTIONS.index(s.evict_b)),
        KernelConstant("kEvictionD", _EVICTIONS.index(s.evict_d)),
        KernelConstant("kPairsA", view.row_operand in paired, "pairs of rows of A are read at once"),
        KernelConstant("kPairsB", view.column_operand in paired),
        KernelConstant("kRestRoom", s.rests_bytes, "bytes of a stage for what rows of odd number have behind the tiles"),
        KernelConstant("kPackThreads", PACK_THREADS),
        KernelConstant("kPackColumns", PACK_COLUMNS, "of a row that a warp copies at once"),
        KernelConstant("kPackedColumns", PACKED_COLUMNS, "of which packed rows are multiples"),
        KernelConstant("kSizeM", task.n if s.turned else task.m),
        KernelConstant("kSizeN", task.m if s.turned else task.n),
        KernelConstant("kSizeK", task.k),
    ]


def sections(s: WgmmaTmaSchedule, task: GemmTask) -> set[str]:
    """The sections of `wgmma_tma.cu` that a schedule uses."""
    way, combined = "push" if s.push else "pull", "spread" if s.spread_sum else "last"
    a = "column-major-a" if view_of(s, task).column_major_a else "row-major-a"
    loads = "paired-loads" if s.paired_rows else "hinted-loads" if s.hinted else "plain-loads"
    groups = "padded" if s.padded else "whole-groups" if s.whole_groups else "exact-groups"
    whole = task.gated or groups != "exact-groups"  # boxes have a width of their own
    upright = "upright-odd" if tile_of_d(s, task)[1] % 16 else "upright-whole" if whole else "upright"
    way_out = "turned" if s.turned else upright
    units = "turned-units" if s.turned else "upright-units"
    stores = "plain-stores" if s.evict_d == "normal" else "hinted-stores"
    d = "aligned-d" if has_tma_rows(task, "D") else "unaligned-d"
    packed = packed_operands(s, task)
    bias = "bias" if task.bias else "no-bias"
    return {
        bias,
        f"{d}-{bias}",
        *({"bias-of-rows" if s.turned else "bias-of-columns"} if task.bias else ()),
        *({"activation"} if task.activation else ()),
        *(_gated_sections(s, way_out) if task.gated else _sections_of_one_product(s, task)),
        way,
        d,
        *(_paired_sections(s, task) if s.paired_rows else {"single-rows"}),
        *(() if s.paired_rows else {"aligned-rows" if has_tma_rows(task) else "unaligned-rows"}),
        *(() if s.paired_rows else {"expects-loaded" if s.padded else "expects-stage"}),
        *(() if s.paired_rows or task.gated else {"single-rows-one-product"}),
        *(() if s.paired_rows or s.self_fed else {"producer-alone"}),
        *({"push-paired-rows" if s.paired_rows else "push-single-rows"} if s.push else ()),
        *({"packs-both" if len(packed) > 1 else "packs"} if packed else ()),
        *({"unaligned-even-d" if s.paired_rows else "unaligned-any-d"} if d == "unaligned-d" else ()),
        f"{way_out}-{d}",
        *(() if s.push else {f"pull-{d}"}),
        *(() if s.spread_sum else {f"last-{d}"}),
        *({units, f"{units}-{d}"} if s.push or s.spread_sum else ()),
        *({"turned-parts" if s.splits * s.cluster_k > 1 else "turned-whole"} if s.turned else ()),
        *({f"tail-split-{d}"} if s.split_tail else ()),
        *({"drains"} if s.drains else set() if s.push else {"meets"}),
        "self-fed" if s.self_fed else "fed-apart",
        *({"self-fed-drains"} if s.self_fed and s.drains else ()),
        f"sum-{combined}",
        *({f"{way}-{combined}"} & _SECTIONS_OF_BOTH),
        "tail-split" if s.split_tail else "all-split",
        *(() if s.split_tail or task.gated else {"all-split-one-product"}),
        "by-rows" if s.raster == "m" else "ordered",
        *({"constant-shape"} if s.constant_shape else ()),
        "few-registers" if s.producer_registers == 40 else "more-registers",
        a,
        loads,
        f"{loads}-{a}",
        groups,
        *(() if s.padded else {f"{a}-exact"}),
        *({"padded-boxes"} if s.padded and way_out == "upright-whole" else ()),
        *({f"{way_out}-of-all"} if way_out in ("upright-whole", "upright-odd") and not task.gated else ()),
        *(() if s.padded or (task.gated and not s.turned) else {"b-alone"}),
        *({"turned-atoms-aligned-d"} if s.turned and not task.gated and d == "aligned-d" else ()),
        "of-turned" if s.turned else f"of-{a}",
        way_out,
        *({f"{'turned' if s.turned else 'upright'}-{stores}"} if d == "aligned-d" else ()),
    }


def _gated_sections(s: WgmmaTmaSchedule, way_out: str) -> set[str]:
    if s.turned:
        return {"gated", "gated-turned"}
    return {"gated", "gated-upright", f"gated-{way_out}", "row-major-a-alone", "atoms-together"}


def _sections_of_one_product(s: WgmmaTmaSchedule, task: GemmTask) -> set[str]:
    return {
        "one-product",
        "atoms-together",
        *({"activation-of-sums"} if task.activation else ()),
        *(() if view_of(s, task).column_major_a else {"row-major-a-alone"}),
    }


def _paired_sections(s: WgmmaTmaSchedule, task: GemmTask) -> set[str]:
    view, paired = view_of(s, task), paired_operands(s, task)
    a, b = view.row_operand in paired, view.column_operand in paired
    return {
        "paired-rows",
        "paired-column-major-a" if view.column_major_a else "paired-row-major-a",
        *({"pairs-a"} if a else {"pairs-b-alone"}),
        *({"pairs-b"} if b else {"pairs-a-alone"}),
    }


def plan(s: WgmmaTmaSchedule, task: GemmTask) -> LaunchPlan:
    """The launch plan. With splits, arrival counters come first in the workspace and the partial sums behind them."""
    view, (rows, columns) = view_of(s, task), ("N", "M") if s.turned else ("M", "N")
    tile_rows, tile_columns = tile_of_d(s, task)
    tiles = f"ceil({rows}/{s.cluster_m * tile_rows})*ceil({columns}/{s.cluster_n * tile_columns})"
    ctas = f"{tiles}*{s.cluster if s.split_tail else s.splits * s.cluster}"
    resident = "SMS" if s.ctas_per_sm == 1 else f"SMS*{s.ctas_per_sm}"
    whole = resident if s.cluster == 1 else f"{resident}//{s.cluster}*{s.cluster}"
    grid = f"min({ctas}, {whole})" if s.persistent else ctas
    box_a = _box_a(s, view, tile_rows)
    if task.gated and not s.turned:
        box_b = (64, tile_columns // s.cluster_m)
    elif not view.row_major_b:
        box_b = (64, s.slice_n)
    else:
        by_columns = s.column_groups % s.cluster_m == 0
        box_b = (s.columns, s.block_k if by_columns else s.block_k // s.cluster_m)
    swizzle_b: Literal[32, 64, 128] = _swizzle(s.columns) if view.row_major_b else 128
    box_d = (64, s.box_rows) if s.turned else (store_columns(s, task), 16)
    up = TensorMapSpec(of=UP, box=box_a if s.turned else box_b, swizzle=128, l2=s.promotion)
    slots = grid if s.split_tail else f"{tiles}*{s.cluster}"
    counters = f"ceil({slots}*{counter_pitch(s)}/256)*256"
    partials = f"{grid}*{s.splits * slot_bytes(s)}" if s.split_tail else f"{tiles}*{s.cluster * s.splits * slot_bytes(s)}"
    in_place = [name for name in _OPERANDS if has_tma_rows(task, name)]
    requires = list(dict.fromkeys(f"{_stored(task, name)[1]}%8==0" for name in in_place))
    for name in paired_operands(s, task):
        requires += [f"{_stored(task, name)[0]}%2==0", f"{_stored(task, name)[1]}%8==4"]
    if s.splits * s.cluster_k > 1:
        requires.append(f"ceil(K/{s.block_k})>={s.splits * s.cluster_k}")
    if s.constant_shape:
        requires += [f"M=={task.m}", f"N=={task.n}", f"K=={task.k}"]
    if s.spread_sum:
        requires.append(f"{ctas}<=({cluster_sms_expression(s.cluster)})*{s.ctas_per_sm}")
    if s.stages == 1:
        requires.append(f"K<={s.block_k * s.parts_of_whole}")
    behind = f"ceil(({counters}+{partials})/256)*256" if s.splits > 1 else "0"
    places, whole_bytes = _packed_places(s, task, behind)
    split_bytes = f"{counters}+{partials}" if s.splits > 1 else ""
    stored_d = (TensorMapArg(tensor_map=TensorMapSpec(of="D", box=box_d, swizzle=_box_swizzle(box_d[0]))),)
    return LaunchPlan(
        arch=Arch.SM_90A,
        launches=(
            *((_packing(s, task, places),) if places else ()),
            Launch(
                entry=ENTRY,
                grid=(grid, 1, 1),
                block=(s.threads, 1, 1),
                cluster=(s.cluster, 1, 1),
                dynamic_smem=smem_bytes(s, task),
                programmatic=s.programmatic,
                args=(
                    TensorMapArg(tensor_map=_loaded(s, task, view.row_operand, places, box_a, 128)),
                    TensorMapArg(tensor_map=_loaded(s, task, view.column_operand, places, box_b, swizzle_b)),
                    *((TensorMapArg(tensor_map=up),) if task.gated else ()),
                    *(TensorMapArg(tensor_map=rest) for rest in _rests(s, task)),
                    *(stored_d if has_tma_rows(task, "D") else ()),
                    TensorArg(tensor="D", access="write"),
                    *((TensorArg(tensor=BIAS),) if task.bias else ()),
                    WorkspaceArg(workspace=0),
                    ScalarArg(scalar=rows),
                    ScalarArg(scalar=columns),
                    ScalarArg(scalar="K"),
                ),
            ),
        ),
        workspace=_workspace(split_bytes, counters, whole_bytes),
        accumulate=task.accumulate,
        requires=tuple(requires),
    )


def _workspace(split_bytes: str, counters: str, whole_bytes: str) -> Workspace | None:
    """`split_bytes`: of split K, counters first; `whole_bytes`: with packed operands behind, where there are any."""
    if not split_bytes:
        return Workspace(bytes=whole_bytes) if whole_bytes else None
    return Workspace(bytes=whole_bytes or split_bytes, zero="restored", zero_bytes=counters)


def _stored(task: GemmTask, name: Operand) -> tuple[str, str]:
    """Rows and columns of an operand in memory."""
    if name == "D":
        return "M", "N"
    if name == "A":
        return ("K", "M") if task.layout.transposes_a else ("M", "K")
    return ("N", "K") if task.layout.transposes_b else ("K", "N")


def _packed_places(s: WgmmaTmaSchedule, task: GemmTask, behind: str) -> tuple[dict[str, str], str]:
    """Where packed operands begin in the workspace, and where the last one ends; empty where none is packed."""
    places: dict[str, str] = {}
    end = behind
    for name in packed_operands(s, task):
        rows, columns = _stored(task, name)
        places[name] = end
        end = f"{rows}*ceil({columns}/{PACKED_COLUMNS})*{2 * PACKED_COLUMNS}" + ("" if end == "0" else f"+{end}")
    return places, end if places else ""


def _packing(s: WgmmaTmaSchedule, task: GemmTask, places: dict[str, str]) -> Launch:
    """The launch that copies operands to rows that TMA can read, a warp a part of a row."""
    shapes = {name: _stored(task, name) for name in packed_operands(s, task)}
    parts = "+".join(f"{rows}*ceil({columns}/{PACK_COLUMNS})" for rows, columns in shapes.values())
    args: list[Arg] = []
    for name, (rows, columns) in shapes.items():
        args += [
            TensorArg(tensor=name),
            WorkspaceArg(workspace=0 if places[name] == "0" else places[name]),
            ScalarArg(scalar=rows),
            ScalarArg(scalar=columns),
        ]
    return Launch(
        entry=PACK_ENTRY,
        grid=(f"min(ceil(({parts})/{PACK_THREADS // 32}), SMS*{2048 // PACK_THREADS})", 1, 1),
        block=(PACK_THREADS, 1, 1),
        programmatic=s.programmatic,
        args=tuple(args),
    )


def _loaded(
    s: WgmmaTmaSchedule,
    task: GemmTask,
    name: Literal["A", "B"],
    places: dict[str, str],
    box: tuple[int, int],
    swizzle: Literal[32, 64, 128],
) -> TensorMapSpec:
    """An operand where it is, also as pairs of rows, or where it was packed."""
    rows, columns = _stored(task, name)
    if name in paired_operands(s, task):
        return TensorMapSpec(
            of=name,
            dims=(f"{columns}+4", 2, f"{rows}//2"),
            strides=(f"{columns}-4", f"2*{columns}"),
            box=(box[0], 2, box[1] // 2),
            swizzle=swizzle,
            l2=s.promotion,
        )
    if name not in places:
        return TensorMapSpec(of=name, box=box, swizzle=swizzle, l2=s.promotion)
    return TensorMapSpec(
        of="workspace",
        element=task.element.value,
        dims=(columns, rows),
        strides=(f"ceil({columns}/{PACKED_COLUMNS})*{PACKED_COLUMNS}",),
        offset_bytes=0 if places[name] == "0" else places[name],
        box=box,
        swizzle=swizzle,
        l2=s.promotion,
    )


def _rests(s: WgmmaTmaSchedule, task: GemmTask) -> list[TensorMapSpec]:
    """Of each operand with paired rows those of odd number alone, 4 columns to the right: 8 columns of a tile's rows."""
    view, specs = view_of(s, task), []
    for name in (view.row_operand, view.column_operand):
        if name in paired_operands(s, task):
            rows, columns = _stored(task, name)
            along_k = s.block_m if name == view.row_operand else s.block_n
            k_major = not (view.column_major_a if name == view.row_operand else view.row_major_b)
            specs.append(
                TensorMapSpec(
                    of=name,
                    dims=(f"{columns}+4", f"{rows}//2"),
                    strides=(f"2*{columns}",),
                    offset_bytes=f"2*{columns}-8",
                    box=(8, (along_k if k_major else s.block_k) // 2),
                    l2=s.promotion,
                )
            )
    return specs


def _box_a(s: WgmmaTmaSchedule, view: KernelView, rows: int) -> tuple[int, int]:
    """What one CTA of a multicast loads at once of 64 along K, or where A is transposed of 64 rows of the tile."""
    if not view.column_major_a:
        return 64, rows // s.cluster_n
    return 64, s.block_k if s.slices_groups_of_a else s.block_k // s.cluster_n


def _swizzle(columns: int) -> Literal[32, 64, 128]:
    return 128 if columns == 64 else 64 if columns == 32 else 32


def _box_swizzle(columns: int) -> Literal[0, 32, 64, 128]:
    """Of a store box: rows of an odd number of 16 bytes need none."""
    return _swizzle(columns) if columns % 16 == 0 else 0
