"""What one cluster of each launch of a kernel does, as the emulator records it.

Covered: the first cluster of the grid, or those that share its tile. It is a whole tile in every kernel that numbers its tiles
from zero, and gets the most tiles where CTAs loop over them. What it waits for in global memory is written for it.
Not covered: control that depends on the operands' values, which are zero here. A trace ends after `MAX_ROWS`, or where nothing
helps; `whole` says whether it ended by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from contract.plan import ResolvedLaunch
from sandbox.emulator.core_module import core
from sandbox.emulator.executor import allocate
from sandbox.emulator.kernel import BoundKernel, EmulatedKernel
from sandbox.emulator.large.points import first_cta
from sandbox.emulator.machine import Conditions, Schedule

MAX_ROWS = 1 << 18
DEADLINE_S = 0.5
MAX_SPLITS = 16
SUM_BYTES = 4  # of a partial sum
MAX_OPERATIONS = 1 << 22  # of warps

ROW = np.dtype(
    [(name, np.uint32) for name in ("stream", "kind", "gap", "instruction", "amount", "parts", "token", "lanes")]
    + [("address", np.uint64)]
)
WARPS = 32  # streams of a CTA

KIND = core.TraceKind


@dataclass(frozen=True)
class Traced:
    """The rows of some clusters of a launch. Shape: rows (n,), of `ROW`. `ctas`: traced, as `rows` numbers them."""

    launch: ResolvedLaunch
    rows: np.ndarray
    ctas: int
    clusters: int
    tokens: int
    whole: bool


def trace(kernel: EmulatedKernel) -> tuple[Traced, ...]:
    """A trace of each launch of the plan, in order."""
    workspace = np.zeros(kernel.plan.workspace_bytes, dtype=np.uint8)
    bound = kernel.bind(allocate(kernel.task, workspace), seed=1)
    return tuple(_traced(kernel, bound, index) for index in range(len(kernel.plan.launches)))


def _traced(kernel: EmulatedKernel, bound: BoundKernel, index: int) -> Traced:
    """The first cluster, or all that share its tile where another one of them adds the sums."""
    alone = _run(bound, kernel, index, (0,))
    splits = _splits(kernel, bound, alone)
    if splits < 2 or len(alone.rows) * splits > MAX_ROWS:
        return alone
    clusters = math.prod(alone.launch.grid) // alone.clusters // math.prod(alone.launch.cluster)
    for stride in (1, clusters // splits):
        together = _run(bound, kernel, index, tuple(range(0, splits * stride, stride)))
        if together.whole and _writes_d(kernel, bound, together):
            return together
    return alone


def _run(bound: BoundKernel, kernel: EmulatedKernel, index: int, clusters: Sequence[int]) -> Traced:
    launch = kernel.plan.launches[index]
    unchecked = Conditions(Schedule.EAGER, seed=1, races=False, poison=0)
    conditions = replace(unchecked, most_instructions=MAX_OPERATIONS, deadline_s=DEADLINE_S)
    bound.operands.workspace.fill(0)
    report = bound.run_part(index, conditions, [first_cta(launch, each) for each in clusters], traced=MAX_ROWS)
    rows = np.frombuffer(report.trace(), dtype=ROW)
    return Traced(launch, rows, len(report.traced_ctas), len(clusters), report.tokens, not report.stopped)


def _splits(kernel: EmulatedKernel, bound: BoundKernel, traced: Traced) -> int:
    """How many clusters share a tile, by the partial sums that one of them writes instead of D; 1 where it writes D."""
    stores = traced.rows[np.isin(traced.rows["kind"], (KIND.STORE, KIND.BULK_STORE))]
    if not traced.whole or not len(stores) or _writes_d(kernel, bound, traced):
        return 1
    clusters = math.prod(traced.launch.grid) // math.prod(traced.launch.cluster)
    sums = int(stores["amount"].sum()) / SUM_BYTES
    return min(round(clusters * sums / (kernel.task.m * kernel.task.n)), MAX_SPLITS, clusters)


def _writes_d(kernel: EmulatedKernel, bound: BoundKernel, traced: Traced) -> bool:
    begin = bound.machine.addresses["D"]
    stores = traced.rows["address"][np.isin(traced.rows["kind"], (KIND.STORE, KIND.BULK_STORE))]
    return bool(((stores >= begin) & (stores < begin + 2 * kernel.task.m * kernel.task.n)).any())
