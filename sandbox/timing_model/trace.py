"""What one cluster of each launch of a kernel does, as the emulator records it.

Covered: the first cluster of the grid, or those that share its tile; and another one, where clusters do not divide the product
evenly: its tile may reach beyond the operands, or it gets more tiles. What they wait for in global memory is written for them.
Of a grid with clusters that return early, one that does not is traced. A trace ends after `MAX_ROWS`, or where nothing
helps; `whole` says whether it ended by itself. A cluster without tensor cores is then run to its end without a trace, to
count its operations.
Not covered: control that depends on the operands' values, which are zero here.
"""

import math
import mmap
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cudal2_agent.contract.plan.plan import ResolvedLaunch
from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.task import UP
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.kernel import WARP_LANES, WORKSPACE, BoundKernel, EmulatedKernel
from cudal2_agent.sandbox.emulator.large.points import first_cta
from cudal2_agent.sandbox.emulator.machine import Conditions, Interleaving

MAX_ROWS = 1 << 18
MAX_OTHER_ROWS = 1 << 14  # of a first cluster beside which another one is traced
DEADLINE_S = 10.0  # rows and operations end every trace before, so that no prediction depends on how busy the machine is
MAX_SPLITS = 16
SUM_BYTES = 4  # of a partial sum
MAX_OPERATIONS = 1 << 22  # of warps
MAX_COUNTED = 1 << 29  # operations of a cluster that is run without a trace; about 100 million take a second
COUNT_DEADLINE_S = 60.0
# Of clusters that may return early: how many are looked at, and at most if one of these does; the operations of a warp until
# then; how many times fewer they are than another cluster's.
LOOKED_AT, MOST_LOOKED_AT, IDLE_OPERATIONS, IDLE_FACTOR = 16, 2048, 128, 4
MAX_CLEARED_BYTES = 1 << 26  # of a workspace, before each of them
ELEMENT_BYTES = 2  # of an operand
MAX_TILE = 512  # columns or rows of a tile
UNEVEN, MUCH = 1e-3, 0.1  # by how much the products of all clusters differ from the task's
MACS_PER_COLUMN = 16 * 16  # of a warp's part of a wgmma

NUMBERS = ("stream", "kind", "gap", "instruction", "amount", "parts", "token", "lanes")  # of a row, and its address
WARPS = 32  # streams of a CTA

KIND = core.TraceKind
_UNCHECKED = Conditions(Interleaving.EAGER, seed=1, races=False, poison=0)


@dataclass(frozen=True)
class Traced:
    """The rows of some clusters of a launch, a column for each field. `ctas`: traced, as `rows` numbers them.

    Shape: each of rows (n,), outside (n, 2).

    `outside`: of bulk loads, the rows of a box that lie beyond the end of the operand's rows, and the bytes beyond
    the operand. `scratch`: whether a row reads or writes the workspace; shape (n,).
    `other`: another cluster, which may take longer than the first. `operations`: of warps, in the trace.
    `all_operations`: to the end, counted where `products` do not say how long the rest is; None where that is not known.
    `active`: the share of the grid's clusters that do not return early.
    """

    launch: ResolvedLaunch
    rows: Mapping[str, np.ndarray]
    outside: np.ndarray
    scratch: np.ndarray
    ctas: int
    clusters: int
    tokens: int
    whole: bool
    operations: int = 0
    other: "Traced | None" = None
    all_operations: int | None = None
    active: float = 1.0

    @property
    def count(self) -> int:
        return len(self.outside)

    def of(self, *kinds: int) -> np.ndarray:
        """The numbers of the rows of some kinds, in order."""
        order, begins = self._by_kind
        found = [order[begins[kind] : begins[kind + 1]] for kind in kinds]
        return found[0] if len(found) == 1 else np.sort(np.concatenate(found))

    @cached_property
    def _by_kind(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of all rows by kind, and where each kind begins among them: a search per kind takes much longer."""
        kinds = self.rows["kind"].astype(np.uint8)
        begins = np.concatenate([[0], np.cumsum(np.bincount(kinds, minlength=len(KIND) + 1))])
        return np.argsort(kinds, kind="stable"), begins

    @property
    def active_clusters(self) -> int:
        """Clusters of the launch that do not return early."""
        return max(round(math.prod(self.launch.grid) // math.prod(self.launch.cluster) * self.active), 1)

    @property
    def left_out(self) -> float | None:
        """How many times longer the cluster is than its trace, by operations; None where that is not known."""
        if self.whole:
            return 1.0
        return None if self.all_operations is None else max(self.all_operations / max(self.operations, 1), 1.0)

    @cached_property
    def products(self) -> int:
        """Multiply-adds of what was traced."""
        amounts = self.rows["amount"]
        columns = int(amounts[self.of(KIND.PRODUCT)].sum(dtype=np.int64))
        return columns * MACS_PER_COLUMN + int(amounts[self.of(KIND.FRAGMENTS)].sum(dtype=np.int64))


def trace(kernel: EmulatedKernel) -> tuple[Traced, ...]:
    """A trace of each launch of the plan, in order."""
    bound = kernel.bind(_operands(kernel), seed=1)
    return tuple(_traced(kernel, bound, index) for index in range(len(kernel.plan.launches)))


def _operands(kernel: EmulatedKernel) -> dict[str, np.ndarray]:
    inputs = {each.name: _untouched(each.rows_and_columns) for each in kernel.task.buffers if not each.role.written}
    d = np.zeros(operand_shape(kernel.task, "D"), dtype=np.uint16)
    return {**inputs, "D": d, WORKSPACE: np.zeros(kernel.plan.workspace_bytes, dtype=np.uint8)}


def _untouched(shape: tuple[int, int]) -> np.ndarray:
    """Zeros that are hardly read, and not written: numpy would clear all of the memory that it uses again."""
    pages = mmap.mmap(-1, ELEMENT_BYTES * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype=np.uint16).reshape(shape)


def _traced(kernel: EmulatedKernel, bound: BoundKernel, index: int) -> Traced:
    """The first cluster that does not return early, or all that share its tile where another one of them adds the sums."""
    first, active = _active(bound, kernel, index)
    alone = replace(_run(bound, kernel, index, (first,)), active=active)
    if not alone.whole and not alone.products:
        short = _run(bound, kernel, index, (first,), Interleaving.RANDOM)  # whose turns are short: all warps are as far
        return replace(short, active=active, all_operations=_counted(bound, kernel, index, first))
    splits = _splits(kernel, bound, alone)
    clusters = alone.active_clusters // alone.clusters
    if splits < 2 or alone.count * splits > MAX_ROWS:
        return _with_other(kernel, bound, index, alone, clusters)
    for stride in (1, clusters // splits):
        together = _run(bound, kernel, index, tuple(range(0, splits * stride, stride)))
        if together.whole and _writes_d(kernel, bound, together):
            return replace(together, active=active)
    return alone


def _counted(bound: BoundKernel, kernel: EmulatedKernel, index: int, cluster: int) -> int | None:
    """The operations of a cluster to its end; None where it does not come to one."""
    bound.arrays[WORKSPACE].fill(0)
    conditions = replace(_UNCHECKED, most_instructions=MAX_COUNTED, deadline_s=COUNT_DEADLINE_S)
    report = bound.run_part(index, conditions, [first_cta(kernel.plan.launches[index], cluster)])
    return None if report.stopped else report.instructions


def _active(bound: BoundKernel, kernel: EmulatedKernel, index: int) -> tuple[int, float]:
    """The first cluster that does not return early, and the share of such clusters, by those looked at."""
    launch = kernel.plan.launches[index]
    clusters = math.prod(launch.grid) // math.prod(launch.cluster)
    if clusters < 2 or kernel.plan.workspace_bytes > MAX_CLEARED_BYTES:
        return 0, 1.0
    warps = math.prod(launch.cluster) * -(-math.prod(launch.block) // WARP_LANES)
    conditions = replace(_UNCHECKED, most_instructions=IDLE_OPERATIONS * warps)
    operations = dict[int, int]()
    for count in (min(LOOKED_AT, clusters), min(MOST_LOOKED_AT, clusters)):
        for place in (0, *_spread(clusters, count)):
            if place not in operations:
                bound.arrays[WORKSPACE].fill(0)
                report = bound.run_part(index, conditions, [first_cta(launch, place)])
                operations[place] = conditions.most_instructions if report.stopped else report.instructions
        most = max(operations.values())
        busy = sorted(place for place, taken in operations.items() if taken * IDLE_FACTOR > most)
        if len(busy) == len(operations):
            return 0, 1.0
    return busy[0], len(busy) / len(operations)


def _spread(size: int, count: int) -> list[int]:
    """One place drawn from each of `count` equal stretches."""
    source = random.Random(1)
    return [int((each + source.random()) * size / count) for each in range(count)]


def _with_other(kernel: EmulatedKernel, bound: BoundKernel, index: int, first: Traced, clusters: int) -> Traced:
    """The trace of the first cluster, with that of another one that reads beyond the operands, or else of the last one."""
    task = kernel.product
    uneven = first.products * clusters / (task.flops // 2) - 1.0
    if clusters < 2 or not first.whole or not first.products or abs(uneven) < UNEVEN or first.count > MAX_OTHER_ROWS:
        return first
    others: list[Traced] = []
    for place in dict.fromkeys((clusters - 1, 1, clusters // 2) if uneven > MUCH else (clusters - 1,)):
        other = _run(bound, kernel, index, (place,))
        if other.whole and other.products:
            others.append(other)
        if other.outside.any() or first.outside.any():
            break
    most = max(others, key=lambda other: (float(other.outside[:, 1].sum()), other.products), default=None)
    return replace(first, other=most)


def _run(
    bound: BoundKernel,
    kernel: EmulatedKernel,
    index: int,
    clusters: Sequence[int],
    interleaving: Interleaving = Interleaving.EAGER,
) -> Traced:
    launch = kernel.plan.launches[index]
    conditions = replace(_UNCHECKED, interleaving=interleaving, most_instructions=MAX_OPERATIONS, deadline_s=DEADLINE_S)
    bound.arrays[WORKSPACE].fill(0)
    report = bound.run_part(index, conditions, [first_cta(launch, each) for each in clusters], traced=MAX_ROWS)
    rows = _columns(report)
    outside = _outside(rows, kernel, bound)
    return Traced(
        launch,
        rows,
        outside,
        _scratch(rows, kernel, bound),
        len(report.traced_ctas),
        len(clusters),
        report.tokens,
        not report.stopped,
        report.instructions,
    )


def _columns(report: core.RunReport) -> dict[str, np.ndarray]:
    """The rows of a trace by the names of their fields."""
    data = report.trace()
    count = len(data) // (4 * len(NUMBERS) + 8)
    numbers = np.frombuffer(data, dtype=np.uint32, count=len(NUMBERS) * count).reshape(len(NUMBERS), count)
    return {**dict(zip(NUMBERS, numbers, strict=True)), "address": np.frombuffer(data, dtype=np.uint64, offset=numbers.nbytes)}


def _outside(rows: Mapping[str, np.ndarray], kernel: EmulatedKernel, bound: BoundKernel) -> np.ndarray:
    """The rows of each bulk load that lie beyond the operand as a whole, and the bytes that do. Shape: (rows, 2).

    Boxes of an operand's tiles begin at multiples of their rows. One that does not begins beyond the end of a row, so that its
    address lies in a later one.
    """
    made = np.zeros((len(rows["kind"]), 2))
    bulk = np.flatnonzero(rows["kind"] == KIND.BULK_LOAD)
    addresses = rows["address"][bulk].astype(np.int64)
    for name in ("A", "B", *((UP,) if kernel.product.gated else ())):
        (count, width), base = operand_shape(kernel.task, name), bound.machine.addresses[name]
        ends = [place for place in bound.machine.addresses.values() if place > base]
        within = (addresses >= base) & (addresses < min(ends, default=1 << 62))
        at, offsets = bulk[within], (addresses[within] - base) // ELEMENT_BYTES
        parts = rows["parts"][at].astype(np.int64)
        columns = rows["amount"][at] // np.maximum(parts, 1) // ELEMENT_BYTES
        row, column = offsets // width, offsets % width
        wraps = np.where(row % np.maximum(parts, 1) * width + column < width + MAX_TILE, row % np.maximum(parts, 1), 0)
        beyond = np.where(wraps > 0, parts, np.clip(row + parts - count, 0, parts))
        beside = np.where(wraps > 0, columns, np.clip(column + columns - width, 0, columns))
        made[at, 0] = np.where(wraps > 0, parts, 0)
        made[at, 1] = ELEMENT_BYTES * (columns * beyond + beside * (parts - beyond))
    return made


def _scratch(rows: Mapping[str, np.ndarray], kernel: EmulatedKernel, bound: BoundKernel) -> np.ndarray:
    """Whether each row's address lies in the workspace."""
    begin = bound.machine.addresses.get(WORKSPACE, 0)
    return (rows["address"] >= begin) & (rows["address"] < begin + kernel.plan.workspace_bytes)


def _splits(kernel: EmulatedKernel, bound: BoundKernel, traced: Traced) -> int:
    """How many clusters share a tile, by the partial sums that one of them writes instead of D; 1 where it writes D."""
    stores = traced.of(KIND.STORE, KIND.BULK_STORE)
    if not traced.whole or not len(stores) or _writes_d(kernel, bound, traced):
        return 1
    clusters = traced.active_clusters
    sums = int(traced.rows["amount"][stores].sum()) / SUM_BYTES
    return min(round(clusters * sums / (kernel.product.m * kernel.product.n)), MAX_SPLITS, clusters)


def _writes_d(kernel: EmulatedKernel, bound: BoundKernel, traced: Traced) -> bool:
    begin = bound.machine.addresses["D"]
    stores = traced.rows["address"][traced.of(KIND.STORE, KIND.BULK_STORE)]
    return bool(((stores >= begin) & (stores < begin + 2 * kernel.product.m * kernel.product.n)).any())
