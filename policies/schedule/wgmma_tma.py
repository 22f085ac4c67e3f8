"""The `wgmma_tma` family (sm_90a): TMA loads, an mbarrier ring, one producer warp, warpgroups that multiply with wgmma.

The source is `wgmma_tma.cu`, generic in shape; a schedule sets the constants at its top and the launch plan.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from contract.candidate import Candidate, Origin, ScheduleValue
from contract.chip import LIMITS, Chip
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
from policies.schedule.family import Schedule, Work, cluster_sms

ENTRY = "wgmma_tma_gemm"
OVERHEAD_REGISTERS = 48  # addresses, descriptors and loop state beside the accumulators
INSTRUCTION_OVERHEAD = 24  # the assembler refuses one wgmma whose registers nearly fill the count at launch (C7602)
MAX_ACCUMULATORS = 128  # 32-bit accumulator registers a thread
MAX_WORKSPACE_BYTES = 256 * 1024**2


Axis = Annotated[int, Field(ge=1)]


class WgmmaTmaSchedule(Schedule):
    """`consumers` × `atoms` × 64 rows by `block_n` columns a tile, or with `pingpong` `atoms` × 64 rows, and the consumers take
    turns, so that one stores its tile while the other multiplies. `cluster_*`: CTAs that share operands (m, n) or a sum (k).

    `splits`: parts of K summed through the workspace. `group`: tile rows visited together. `store_boxes`: boxes in flight
    between a warp and its TMA stores, where a persistent CTA cannot use the pipeline's memory for them.
    """

    family: Literal["wgmma_tma"] = "wgmma_tma"
    consumers: Axis
    atoms: Axis
    block_n: Axis
    block_k: Axis
    stages: Axis
    cluster_m: Axis = 1
    cluster_n: Axis = 1
    cluster_k: Axis = 1
    splits: Axis = 1
    group: Axis = 8
    persistent: bool = False
    pingpong: bool = False
    tma_store: bool = True
    store_boxes: Axis = 2
    ctas_per_sm: Axis = 1
    programmatic: bool = True

    @property
    def block_m(self) -> int:
        return 64 * self.atoms * (1 if self.pingpong else self.consumers)

    @property
    def threads(self) -> int:
        """Consumers, and a producer warp; a producer warpgroup where its registers go to the consumers."""
        return 128 * self.consumers + (128 if self.hands_over else 32)

    @property
    def hands_over(self) -> bool:
        """Whether the producer is a whole warpgroup that hands its registers to the consumers."""
        return self.consumers > 1 or self.ctas_per_sm > 1

    @property
    def launch_registers(self) -> int:
        """Registers a thread starts with."""
        return min(255, 65536 // (self.threads * self.ctas_per_sm) // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Registers a consumer thread may use: an even share, or what is left when the producer gives up its own."""
        if not self.hands_over:
            return 255
        return min(255, (512 // self.ctas_per_sm - 40) // self.consumers // 8 * 8)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def stage_bytes(self) -> int:
        return 2 * self.block_k * (self.block_m + self.block_n)

    @property
    def columns(self) -> int:
        """Width of a store box and of an MN-major column group of B, in elements."""
        return next(width for width in (64, 32, 16) if self.block_n % width == 0)

    @property
    def box_bytes(self) -> int:
        """A store box: 16 rows, a warp's own."""
        return 16 * 2 * self.columns

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: ring, store buffers, barriers, the split flag, and slack to align to 1024."""
        store = 4 * self.consumers * self.store_boxes * self.box_bytes if self.tma_store and self.persistent else 0
        return self.stages * self.stage_bytes + store + 16 * self.stages + 16 + 1024


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def is_valid(schedule: WgmmaTmaSchedule, task: GemmTask) -> bool:
    """Whether the kernel's own static assertions, the chip and the task allow a schedule."""
    s = schedule
    if s.block_n not in accumulator_widths(task):
        return False
    limits = LIMITS[Arch.SM_90A]
    instruction_registers = s.block_n // (2 if task.accumulate is AccumulatorType.F32 else 4)
    registers = s.atoms * instruction_registers
    k_blocks = ceil_div(task.k, s.block_k)
    return (
        s.smem_bytes <= limits.max_smem_per_block_bytes
        and s.ctas_per_sm * (s.smem_bytes + 1024) <= limits.smem_per_sm_bytes
        and registers <= MAX_ACCUMULATORS
        and registers + OVERHEAD_REGISTERS <= s.consumer_registers
        and instruction_registers + INSTRUCTION_OVERHEAD <= s.launch_registers
        and s.block_m % (8 * s.cluster_n) == 0
        and s.block_n % (8 * s.cluster_m) == 0
        and (s.block_n // s.columns % s.cluster_m == 0 or s.block_k % (8 * s.cluster_m) == 0)
        and s.cluster <= limits.max_cluster
        and s.block_m // s.cluster_n <= 256
        and s.block_n // s.cluster_m <= 256
        and s.splits * s.cluster_k <= k_blocks
        and (s.persistent or not s.tma_store or s.block_m * s.block_n * 2 <= s.stages * s.stage_bytes)
        and (not s.pingpong or (s.persistent and s.splits == 1 and s.consumers == 2))
        and (s.cluster_k == 1 or (_cluster_sum_fits(s) and not s.tma_store))
        and workspace_bytes(s, task) <= MAX_WORKSPACE_BYTES
    )


def _cluster_sum_fits(s: WgmmaTmaSchedule) -> bool:
    partial = s.block_m * (s.block_n + 8) * 4
    return not s.persistent and partial <= s.stages * s.stage_bytes and s.block_m % s.cluster_k == 0


def accumulator_widths(task: GemmTask) -> tuple[int, ...]:
    """Widths N of the wgmma instructions the device library wraps for the task's accumulator."""
    wide = (32, 64, 96, 128, 160, 192, 224, 256)
    return (16, *wide) if task.accumulate is AccumulatorType.F16 else (16, *wide, 48, 80, 112)


def cluster_tiles(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    return ceil_div(task.m, s.cluster_m * s.block_m) * ceil_div(task.n, s.cluster_n * s.block_n)


def _counter_bytes(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    return ceil_div(cluster_tiles(s, task) * s.cluster * 4, 256) * 256


def workspace_bytes(s: WgmmaTmaSchedule, task: GemmTask) -> int:
    """Counters first, then one float32 slot a tile and split; nothing without split-K."""
    if s.splits == 1:
        return 0
    slot = s.block_m * s.block_n * 4 // s.cluster_k
    return _counter_bytes(s, task) + cluster_tiles(s, task) * s.cluster * s.splits * slot


class WgmmaTma:
    """The family: its space, its cost model inputs, its source."""

    name = "wgmma_tma"

    def supports(self, task: GemmTask) -> bool:
        """Rows of A, B and D must be multiples of 16 bytes for TMA."""
        return task.arch is Arch.SM_90A and task.n % 8 == 0 and task.k % 8 == 0

    def parse(self, values: dict[str, ScheduleValue]) -> WgmmaTmaSchedule:
        try:
            return WgmmaTmaSchedule.model_validate(values)
        except ValidationError as exc:
            raise ValueError(f"not a {self.name} schedule: {exc.errors(include_url=False)[0]['msg']}") from exc

    def space(self, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
        if not self.supports(task):
            return
        for shape in _tile_shapes(task):
            for pipeline in _pipelines(shape, task):
                for cut in _cuts(pipeline, task, chip):
                    yield from (s for s in _launches(cut, task, chip) if is_valid(s, task))

    def work(self, schedule: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Work:
        s = schedule
        tiles = cluster_tiles(s, task)
        ctas = tiles * s.cluster * s.splits
        resident = s.ctas_per_sm * cluster_sms(chip, s.cluster)
        k_blocks = ceil_div(ceil_div(task.k, s.block_k), s.splits * s.cluster_k)
        rows_a = s.block_m / s.cluster_n * _lines_a_row(task.k)
        rows_b = s.block_n / s.cluster_m * _lines_a_row(task.n if task.layout is Layout.NN else task.k)
        per_block = 2 * s.block_k * (rows_a + rows_b)
        partial = s.block_m * s.block_n * 4
        return Work(
            tile=(s.block_m, s.block_n, s.block_k),
            stages=s.stages,
            ctas=min(ctas, resident) if s.persistent else ctas,
            ctas_per_sm=s.ctas_per_sm,
            cluster=s.cluster,
            k_blocks=k_blocks,
            loaded_bytes=int(ctas * k_blocks * per_block),
            reduced_bytes=2 * ctas * partial // s.cluster_k if s.splits > 1 else 0,
            launches=1,
            persistent=s.persistent,
            programmatic=s.programmatic,
            mma_efficiency=_mma_efficiency(s),
            alternating=s.pingpong,
        )

    def write(self, schedule: WgmmaTmaSchedule, task: GemmTask) -> Candidate:
        """Raises: ValueError for a schedule that is not valid for the task."""
        if not self.supports(task) or not is_valid(schedule, task):
            raise ValueError(f"{schedule.values()} is not valid for {task.shape}")
        plan = _plan(schedule, task)
        source = render_plan(plan) + _template().replace("//@constants", _constants(schedule, task))
        return Candidate(source=source, plan=plan, origin=Origin(policy="schedule", schedule=schedule.values()))


@cache
def _template() -> str:
    return files("policies.schedule").joinpath("wgmma_tma.cu").read_text()


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
    grid = f"min({ctas}, SMS*{s.ctas_per_sm}//{s.cluster}*{s.cluster})" if s.persistent else ctas
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


def _lines_a_row(columns: int) -> int:
    """L2 lines behind each 128-byte row of a box: two where rows of the operand do not start on a line.

    Measured: 1000x1000x1000 takes 11.4 us without multicast and 8.2 us with.
    """
    return 1 if columns * 2 % 128 == 0 else 2


def _mma_efficiency(s: WgmmaTmaSchedule) -> float:
    """Share of the tensor rate that shared memory can feed, at 128 bytes a cycle.

    An m64nNk16 reads 2 KiB of A and 32·N bytes of B for N/2 cycles of math; meanwhile TMA writes the operands of later
    steps, of which about half is hidden. One warpgroup with one instruction in flight cannot hide its own waits.
    """
    cycles_math = s.block_n / 2
    cycles_read = (2048 + 32 * s.block_n) / 128
    cycles_write = 32 * (s.block_m + s.block_n) / 128 / (s.block_m // 64) / 2
    in_flight = s.consumers * s.atoms * s.ctas_per_sm
    return min(1.0, cycles_math / (cycles_read + cycles_write)) * (1.0 if in_flight > 1 else 0.85)


def _tile_shapes(task: GemmTask) -> Iterator[tuple[int, int, int, bool]]:
    """(consumers, atoms, block_n, pingpong) whose accumulators fit, no larger than twice what the task fills."""
    packed = 2 if task.accumulate is AccumulatorType.F32 else 4
    plain = [(consumers, atoms, False) for consumers, atoms in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))]
    for consumers, atoms, pingpong in (*plain, (2, 1, True), (2, 2, True)):
        rows = 64 * atoms * (1 if pingpong else consumers)
        for block_n in sorted(accumulator_widths(task)):
            fits = atoms * block_n // packed <= MAX_ACCUMULATORS
            if fits and rows < 2 * max(task.m, 64) and block_n < 2 * max(task.n, 16):
                yield consumers, atoms, block_n, pingpong


def _pipelines(shape: tuple[int, int, int, bool], task: GemmTask) -> Iterator[WgmmaTmaSchedule]:
    """K block 64, or 128 where at least four fit; as many stages as fit one or two CTAs an SM, and half as many.

    Two CTAs share an SM only where one warpgroup multiplies; stores go straight from registers only for narrow tiles.
    """
    consumers, atoms, block_n, pingpong = shape
    for block_k, ctas_per_sm, tma_store in product((64, 128), (1, 2) if consumers == 1 else (1,), (True, False)):
        base = WgmmaTmaSchedule(
            consumers=consumers,
            atoms=atoms,
            block_n=block_n,
            block_k=block_k,
            stages=1,
            ctas_per_sm=ctas_per_sm,
            tma_store=tma_store,
            persistent=pingpong,
            pingpong=pingpong,
        )
        limits = LIMITS[Arch.SM_90A]
        room = min(limits.max_smem_per_block_bytes, limits.smem_per_sm_bytes // ctas_per_sm - 1024)
        deepest = (room - base.smem_bytes) // (base.stage_bytes + 16) + 1
        needed = ceil_div(task.k, block_k)
        if (block_k == 128 and min(deepest, needed) < 4 and deepest < needed) or (not tma_store and block_n > 64):
            continue
        deepest = min(deepest, needed, 12)
        for stages in {deepest, max(deepest // 2, min(deepest, 3))}:
            if stages > 0:
                yield base.model_copy(update={"stages": stages})


def _cuts(base: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """Ways to share operands in a cluster, and to split K while everything still runs in one wave."""
    for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)):
        if cluster_m >= 2 * ceil_div(task.m, base.block_m) or cluster_n >= 2 * ceil_div(task.n, base.block_n):
            continue
        shared = base.model_copy(update={"cluster_m": cluster_m, "cluster_n": cluster_n})
        tiles = cluster_tiles(shared, task) * shared.cluster
        # Clusters of four leave SMs idle and pay only where they still take one wave.
        if shared.cluster == 4 and tiles > cluster_sms(chip, 4) * base.ctas_per_sm:
            continue
        for cluster_k, splits in product((1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)):
            size, parts = shared.cluster * cluster_k, cluster_k * splits
            if size > 16 or (cluster_k > 1 and base.tma_store) or (parts > 1 and base.pingpong):
                continue
            one_wave = tiles * parts <= cluster_sms(chip, size) * base.ctas_per_sm
            if parts == 1 or (one_wave and parts <= ceil_div(task.k, base.block_k)):
                yield shared.model_copy(update={"cluster_k": cluster_k, "splits": splits})


def _launches(cut: WgmmaTmaSchedule, task: GemmTask, chip: Chip) -> Iterator[WgmmaTmaSchedule]:
    """Where there is more than one wave: persistent or not, ping-pong or not, and how many tile rows are visited together."""
    if cluster_tiles(cut, task) * cut.cluster <= cluster_sms(chip, cut.cluster) * cut.ctas_per_sm:
        if not cut.pingpong:
            yield cut
        return
    for persistent, group in product((True,) if cut.pingpong else (True, False), (4, 8, 16)):
        yield cut.model_copy(update={"persistent": persistent, "group": group})
