"""The plan of a module on one GPU: kernel launches, and calls of library operations between them, on one stream."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cudal2.launcher.loaded_kernel import ALIGNMENT
from cudal2.launcher.planned_launches import DriverGpu, PlannedLaunches
from cudal2_agent.contract.plan.launching import zeroes_every_run
from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.named_buffer import Buffer, Role

WORKSPACE = "workspace"


class Place(NamedTuple):
    """Where a buffer lies in the memory that a run borrows. Unit: bytes."""

    name: str
    offset: int
    size: int


class ModuleKernels:
    """Any number of threads may run it; it stays loaded until the process ends.

    Raises: LauncherError where the driver refuses the code, or the plan does not fit the code or the GPU.
    """

    def __init__(self, gpu: DriverGpu, cubin: bytes, plan: ResolvedPlan, buffers: Sequence[Buffer]) -> None:
        """`buffers`: of the task."""
        if plan.zero == "restored":  # zeros from run to run; memory that each run borrows is zeroed for each
            plan = plan.model_copy(update={"zero": True})
        self._gpu, self._plan, self._lock = gpu, plan, threading.Lock()
        scratch = [
            Buffer(name=each.name, shape=tuple(int(size) for size in each.shape), element=each.element, role=Role.STATE)
            for each in plan.scratch
        ]
        sizes = [(WORKSPACE, plan.workspace_bytes), *((each.name, each.bytes) for each in scratch)]
        self.borrowed: tuple[Place, ...] = tuple(_placed([(name, size) for name, size in sizes if size]))
        """The plan's workspace and scratch, which each run borrows anew."""
        self._launches: PlannedLaunches | None = None
        if plan.launches:
            with gpu.current(), gpu.relaxed_capture():
                self._launches = PlannedLaunches(gpu, cubin, plan, [*buffers, *scratch])

    @property
    def borrowed_bytes(self) -> int:
        """Memory that a run borrows, aligned to `ALIGNMENT`. Its contents are of no value before or after."""
        return self.borrowed[-1].offset + self.borrowed[-1].size if self.borrowed else 0

    def run(self, pointers: Mapping[str, int], borrowed: int, stream: int, call: Callable[[LibraryCall], None]) -> None:
        """Enqueue the plan. `pointers`: addresses of the task's buffers, aligned to `ALIGNMENT`, as they were when the kernels
        were verified. `borrowed`: of the memory that the run borrows. `call`: enqueues a library operation on the same stream.

        Raises: LauncherError.
        """
        known = {**pointers, **{place.name: borrowed + place.offset for place in self.borrowed}}
        before = {place: [each.call for each in self._plan.calls if each.before == place] for place in range(self._steps + 1)}
        if zeroes_every_run(self._plan):
            with self._gpu.current():
                self._gpu.library.call("cuMemsetD8Async", known[WORKSPACE], 0, self._plan.zero_bytes, stream)
        for place in range(self._steps + 1):
            for each in before[place]:
                call(each)
            if self._launches is not None and place < self._steps:
                with self._gpu.current(), self._lock:
                    self._launches.enqueue(place, known, stream)

    @property
    def _steps(self) -> int:
        return len(self._plan.launches)


def _placed(sizes: Sequence[tuple[str, int]]) -> Sequence[Place]:
    """One after the other, each aligned."""
    found: list[Place] = []
    end = 0
    for name, size in sizes:
        found.append(Place(name, end, size))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return found
