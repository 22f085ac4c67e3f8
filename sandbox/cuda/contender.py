"""What verification and timing run: a candidate, a host candidate or a baseline, bound to one set of operands."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Operands:
    """One set of device buffers, cupy arrays as they lie in memory.

    Shape: a (M, K), d (M, N), b_nn (K, N), b_tn (N, K); the layout that a contender does not read may be None. `workspace`:
    bytes; None where the contender needs none.
    """

    a: Any
    b_nn: Any | None
    b_tn: Any | None
    d: Any
    workspace: Any | None = None


class Bound(Protocol):
    """A contender with fixed operands: parameters are packed and tensor maps encoded; only enqueueing is left."""

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:
        """Put the contender's launches, and the zeroing that its plan asks for, on a CUDA stream, given by its handle.

        `programmatic`: None follows the plan; False launches without programmatic serialization.
        """
        ...


class Contender(Protocol):
    """`local_bytes`: local memory per thread. `altered`: module variables that no longer hold the compiler's values."""

    name: str
    workspace_bytes: int
    zero: bool | Literal["restored"]
    zero_bytes: int
    programmatic: bool
    atomics: bool
    local_bytes: int

    def bind(self, operands: Operands) -> Bound: ...
    def altered(self) -> tuple[str, ...]: ...
