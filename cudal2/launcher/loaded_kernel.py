"""A kernel before and after it is loaded on a GPU, as both launchers take and give it."""

from typing import NamedTuple, Protocol

from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.task import GemmTask

ALIGNMENT = 256  # of operands, in bytes: kernels were verified with it


class BuiltKernel(NamedTuple):
    """A kernel ready to load: its machine code, its launches in plain numbers, and the matrix product that it computes.

    `shared`: kernels of the same cubin for other sizes share its code on the GPU. All of them ask for equal shared memory.
    """

    cubin: bytes
    plan: ResolvedPlan
    task: GemmTask
    shared: bool = False


class LoadedKernel(Protocol):
    """A kernel on one GPU. Any number of threads may launch it; it stays loaded until the process ends.

    `c_entry`: the addresses of a C function that launches and of its first argument, for callers without Python; None where the
    launch is Python. They are valid as long as this object lives. The function's further arguments are `a`, `b`, `d`, `third`,
    `stream`, a pointer to an int that becomes 1 once the launch is enqueued, and a buffer for an error message with its size in
    bytes.
    """

    @property
    def c_entry(self) -> tuple[int, int] | None: ...

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        """Enqueue the product and return. `a`, `b`, `d`: device addresses, aligned to `ALIGNMENT`; so is `third`, that of
        `GemmTask.third`, or 0 where there is none. `stream`: handle of a stream.

        A call inside a stream capture is recorded. The first call on a stream or in a capture may allocate the workspace of a
        kernel that has one; no other call allocates memory of the device. Raises: LauncherError.
        """
