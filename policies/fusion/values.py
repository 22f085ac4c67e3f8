"""Values of a module as the fuser sees them: computed element by element, reduced, scanned, or by a library.

Each operation of the graph becomes one or several of these. Only reductions, scans, products and what the planner decides to
store have memory of their own; everything else is computed where it is read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.expressions import CTYPE, CType, Expr, ExpressionPool
from cudal2_agent.policies.fusion.index_algebra import Index


class Scope(Protocol):
    """Where an expression is being written: a kernel."""

    pool: ExpressionPool

    def read(self, value: "Value", index: Sequence[Index]) -> Expr: ...


At = Callable[[Scope, Sequence[Index]], Expr]
ReductionKey = tuple[str, int, tuple[int, ...]]


@dataclass(eq=False)
class Value:
    """A tensor. `name`: of the graph's node, or derived from it."""

    name: str
    shape: tuple[int, ...]
    element: BufferElement

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * self.element.bytes

    @property
    def ctype(self) -> CType:
        return CTYPE[self.element]

    @property
    def inputs(self) -> "tuple[Value, ...]":
        return ()


@dataclass(eq=False)
class BufferValue(Value):
    """A buffer of the task."""


@dataclass(eq=False)
class Map(Value):
    """Each element is an expression of elements of `of`. `repeats`: how often an element of its operands is read, about.

    `linear`: where it is the sum of factor * term, both broadcast to its shape. `view_of`: the operand whose elements these
    are, in row-major order where `permute` is None, else permuted so. `triangle`: (diagonal, whether the lower one is kept).
    `by_line`: of a pool, how it is computed of reduced columns.
    """

    of: tuple[Value, ...]
    at: At
    repeats: float = 1
    view_of: Value | None = None
    permute: tuple[int, ...] | None = None
    cost: int = 1
    linear: "Linear" = ()
    triangle: tuple[int, bool] | None = None
    by_line: "LineWindow | None" = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.of


@dataclass(eq=False)
class LineWindow:
    """A pool over `columns`: what a window has of each column of its line, padding included. `at`: the pool's element over
    these. `windows`: of a line, each of `size` columns, `stride` apart; `taps`: elements of one.
    """

    columns: Map
    at: At
    windows: int
    size: int
    stride: int
    taps: int


Linear = tuple[tuple[Value, float | Value], ...]


@dataclass(eq=False)
class Reduction(Value):
    """`source` reduced over `dims`, which the shape lacks. `operation`: a key of `reduction_rules.OPERATIONS`; `output` of its
    results.
    """

    operation: str
    source: Value
    dims: tuple[int, ...]
    output: str = "value"

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.source,)

    @property
    def key(self) -> ReductionKey:
        """The same for reductions that share their states, such as a mean and a variance."""
        return self.operation, id(self.source), self.dims

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(dim for dim in range(len(self.source.shape)) if dim not in self.dims)

    @property
    def length(self) -> int:
        """Elements that one result is made of."""
        return math.prod(self.source.shape[dim] for dim in self.dims)


@dataclass(eq=False)
class Scan(Value):
    """Sums or products of all elements up to each one, along a dimension."""

    operation: str
    source: Value
    dim: int

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.source,)


@dataclass(eq=False)
class ProductValue(Value):
    """A matrix product or a convolution. `call`: as a library runs it; names of its buffers are those of `operands`."""

    operands: tuple[Value, ...]
    call: LibraryCall

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.operands


@dataclass
class Lowered:
    """A task's values. `outputs`: by buffer."""

    sources: dict[str, BufferValue] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)


class Unplanned(Exception):
    """An operation, or a form of it, that the fuser has no rule for. `op`: its name."""

    def __init__(self, op: str, why: str = "") -> None:
        super().__init__(f"{op}: {why}" if why else op)
        self.op = op
