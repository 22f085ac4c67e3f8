"""What one cluster of each launch of a kernel does, as the emulator records it.

Covered: the first cluster of the grid, which is a whole tile in every kernel that numbers its tiles from zero and gets the
most tiles where CTAs loop over them. Not covered: control that depends on the operands' values, which are zero here. A trace
ends where it waits for a cluster that is not traced, or after `MAX_ROWS`; `whole` says whether it ended by itself.
"""

from dataclasses import dataclass, replace

import numpy as np

from contract.plan import ResolvedLaunch
from sandbox.emulator.core_module import core
from sandbox.emulator.executor import allocate
from sandbox.emulator.kernel import EmulatedKernel
from sandbox.emulator.machine import Conditions, Schedule

MAX_ROWS = 1 << 18
DEADLINE_S = 2.0
MAX_OPERATIONS = 1 << 23  # of warps

ROW = np.dtype(
    [(name, np.uint32) for name in ("stream", "kind", "gap", "instruction", "amount", "parts", "token", "lanes")]
    + [("address", np.uint64)]
)
WARPS = 32  # streams of a CTA


@dataclass(frozen=True)
class Traced:
    """The rows of a launch's first cluster. Shape: rows (n,), of `ROW`. `ctas`: traced, as `rows` numbers them."""

    launch: ResolvedLaunch
    rows: np.ndarray
    ctas: int
    tokens: int
    whole: bool


def trace(kernel: EmulatedKernel) -> tuple[Traced, ...]:
    """A trace of each launch of the plan, in order."""
    workspace = np.zeros(kernel.plan.workspace_bytes, dtype=np.uint8)
    bound = kernel.bind(allocate(kernel.task, workspace), seed=1)
    unchecked = Conditions(Schedule.EAGER, seed=1, races=False, poison=0)
    conditions = replace(unchecked, most_instructions=MAX_OPERATIONS, deadline_s=DEADLINE_S)
    traced = []
    for index, launch in enumerate(kernel.plan.launches):
        report = bound.run_part(index, conditions, (0,), traced=MAX_ROWS)
        rows = np.frombuffer(report.trace(), dtype=ROW)
        traced.append(Traced(launch, rows, len(report.traced_ctas), report.tokens, not report.stopped))
    return tuple(traced)


KIND = core.TraceKind
