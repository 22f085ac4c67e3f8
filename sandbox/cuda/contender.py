"""What verification and timing run: a candidate, a host candidate or a baseline, bound to one set of operands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from cudal2_agent.contract.records.task import BIAS, UP, GemmTask, Layout


@dataclass(frozen=True)
class Operands:
    """One set of device buffers, cupy arrays as they lie in memory.

    Shape: a (M, K), a_nt (K, M), b_nn (K, N), b_tn (N, K), d (M, N), bias N; `up` of a gated task as B; what a contender does
    not read may be None. `joined` (2 N, K): B and behind it `up`, where they lie so.
    `workspace`: bytes; None where the contender needs none.
    """

    a: Any
    b_nn: Any | None
    b_tn: Any | None
    d: Any
    workspace: Any | None = None
    a_nt: Any | None = None
    bias: Any | None = None
    up_nn: Any | None = None
    up_tn: Any | None = None
    joined: Any | None = None

    @classmethod
    def in_layout(
        cls,
        layout: Layout,
        a: Any,
        b: Any,
        d: Any,
        workspace: Any | None = None,
        bias: Any | None = None,
        up: Any | None = None,
    ) -> Self:
        """Operands with A, B and `up` in one layout only, given as they lie in memory."""
        of_a = (None, a) if layout.transposes_a else (a, None)
        of_b, of_up = ((None, each) if layout.transposes_b else (each, None) for each in (b, up))
        weights = {"b_nn": of_b[0], "b_tn": of_b[1], "up_nn": of_up[0], "up_tn": of_up[1]}
        return cls(a=of_a[0], a_nt=of_a[1], d=d, workspace=workspace, bias=bias, **weights)

    def third(self, task: GemmTask) -> Any | None:
        """What a task reads beside A and B, as its layout has it in memory; None where that is nothing, or is not there."""
        up = self.up_tn if task.layout.transposes_b else self.up_nn
        return {None: None, BIAS: self.bias, UP: up}[task.third]

    def stored(self, layout: Layout) -> tuple[Any, Any]:
        """A and B as a layout has them in memory. Raises: ValueError where one of them is not there."""
        a, b = self.a_nt if layout.transposes_a else self.a, self.b_tn if layout.transposes_b else self.b_nn
        if a is None or b is None:
            raise ValueError(f"the operands hold no {'A' if a is None else 'B'} in layout {layout}")
        return a, b


@dataclass(frozen=True)
class NamedOperands:
    """One set of device buffers of a module, cupy arrays of bytes as they lie in memory, by the names of the task's buffers.

    The plan's scratch may be among them; what is not lies in `workspace`, behind the plan's own.
    `number`: of the set of values.
    """

    arrays: Mapping[str, Any]
    workspace: Any | None = None
    number: int = 0


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

    def bind(self, operands: Any) -> Bound:
        """`operands`: `Operands` of a matrix product, `NamedOperands` of a module."""
        ...

    def altered(self) -> tuple[str, ...]: ...
