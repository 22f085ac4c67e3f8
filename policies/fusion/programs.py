"""What one kernel computes: rows of elements, reductions over them in stages, and stores of rows or of elements.

A kernel without a reduction has rows of one element.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cudal2_agent.policies.fusion.expressions import Expr, ExpressionPool
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of, unflat
from cudal2_agent.policies.fusion.values import BufferValue, Map, ProductValue, Reduction, ReductionKey, Scan, Unplanned, Value


class MustStore(Unplanned):
    """A value that the kernel cannot compute where it is read, so that an earlier kernel must store it.

    `grouping` then stores it. Once the kernels are settled, it means that the fuser cannot plan the module.
    """

    def __init__(self, value: Value) -> None:
        super().__init__(value.name, "read where no kernel computes it")
        self.value = value


@dataclass(frozen=True, eq=False)
class StoredValue:
    """A value with its buffer. `by_row`: one element a row; otherwise one for each element of the rows."""

    value: Value
    buffer: str
    by_row: bool


@dataclass(frozen=True)
class Access:
    """Elements that a program reads or writes. `index`: at row `o` and place `r`; `each`: every element of the rows has one of
    its own; `first`: the first stage reads it.

    Unit: bytes of all, and of one element.
    """

    index: Index
    bytes: int
    element_bytes: int
    each: bool
    first: bool


@dataclass(eq=False)
class KernelProgram:
    """One kernel. `rows` of `length` elements; `anchor`: the reduction whose dimensions these are; None without one.

    `stages`: reductions by when their operands are there. `reads`: buffers in the order of their first use.
    `cost`: instructions of an element; `taken_cost`: those of what the reductions take.
    """

    name: str
    rows: int
    length: int
    anchor: Reduction | None
    stores: list[StoredValue]
    stages: list[list[Reduction]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    cost: int = 0
    taken_cost: int = 0
    accesses: list[Access] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """How often the elements of a row are needed."""
        return len(self.stages) + any(not store.by_row for store in self.stores)

    @property
    def bytes(self) -> int:
        """What it reads and writes at least."""
        return sum(access.bytes for access in self.accesses)

    @property
    def stored(self) -> list[Value]:
        return [store.value for store in self.stores]


class Reading:
    """The expressions of a program's values, at rows and elements that the caller sets. Raises: MustStore.

    `buffers`: by value, where it is stored. `row`, `place`: of the element; `lane`: which of several rows of a thread it is.
    `bound`: a condition in C++ under which loads happen.
    """

    def __init__(self, program: KernelProgram, buffers: Mapping[int, str]) -> None:
        self.pool = ExpressionPool()
        self.reductions: dict[ReductionKey, Reduction] = {}
        self.loads: dict[str, Value] = {}
        self.stages: dict[ReductionKey, int] = {}
        self.row, self.place, self.lane = Index(), Index(), 0
        self.bound: str | None = None
        self.cost = 0
        self._program, self.buffers = program, buffers
        self._own = {id(value) for value in program.stored}
        self._memo: dict[tuple[int, tuple[Index, ...], int, str | None], Expr] = {}

    def read(self, value: Value, index: Sequence[Index]) -> Expr:
        key = (id(value), tuple(index), self.lane, self.bound)
        if key not in self._memo:
            self._memo[key] = self._read(value, index)
        return self._memo[key]

    def stored(self, store: StoredValue) -> Expr:
        """What is stored for the present row, or for the present element."""
        return self.read(store.value, unflat(self.target(store), store.value.shape))

    def target(self, store: StoredValue) -> Index:
        """Where it is stored."""
        anchor = self._program.anchor
        return self.row if store.by_row or anchor is None else flat(self.full(anchor), anchor.source.shape)

    def element(self, reduction: Reduction) -> Expr:
        """What a reduction takes at the present element."""
        return self.read(reduction.source, self.full(reduction))

    def full(self, reduction: Reduction) -> list[Index]:
        """The index of the present element in the reduction's operand."""
        shape = reduction.source.shape
        kept = dict(zip(reduction.kept, unflat(self.row, [shape[dim] for dim in reduction.kept]), strict=True))
        gone = dict(zip(reduction.dims, unflat(self.place, [shape[dim] for dim in reduction.dims]), strict=True))
        return [(kept | gone)[dim] for dim in range(len(shape))]

    def _read(self, value: Value, index: Sequence[Index]) -> Expr:
        buffer = self.buffers.get(id(value))
        if isinstance(value, BufferValue):
            buffer = value.name
        if buffer is not None and id(value) not in self._own:
            self.loads.setdefault(buffer, value)
            place = flat(index, value.shape)
            return self.pool.make("load", value.ctype, data=(buffer, place, value.element, value.numel, self.bound))
        match value:
            case Map():
                if self._program.anchor is None or value.numel > self._program.rows:
                    self.cost += value.cost  # what a row has once is computed once
                return value.at(self, index)
            case Reduction():
                return self._reduced(value, index)
        raise MustStore(value)

    def _reduced(self, value: Reduction, index: Sequence[Index]) -> Expr:
        program = self._program
        if program.anchor is None or (value.numel, value.length) != (program.rows, program.length):
            raise MustStore(value)
        if flat(index, value.shape) != self.row:
            raise MustStore(value)
        key = value.key
        if key not in self.stages:
            self.stages[key] = 0
            self.reductions[key] = value
            before = self._rows_of(self.element(value), set())
            self.stages[key] = 1 + max((self.stages[each] for each in before), default=-1)
        return self.pool.make("row", value.ctype, data=(key, value.output, self.lane))

    def _rows_of(self, expr: Expr, seen: set[int]) -> set[ReductionKey]:
        if id(expr) in seen:
            return set()
        seen.add(id(expr))
        found = {expr.data[0]} if expr.kind == "row" else set()
        return found.union(*(self._rows_of(each, seen) for each in expr.args))


def traced(program: KernelProgram, buffers: Mapping[int, str]) -> KernelProgram:
    """The program with its stages and reads. Raises: MustStore."""
    reading = Reading(program, buffers)
    reading.row, reading.place = of(Var("o", program.rows)), of(Var("r", program.length))
    for store in program.stores:
        reading.stored(store)
    depth = 1 + max(reading.stages.values(), default=-1)
    program.stages = [[each for key, each in reading.reductions.items() if reading.stages[key] == at] for at in range(depth)]
    program.reads = list(reading.loads)
    program.cost = reading.cost
    taken = Reading(program, buffers)
    taken.row, taken.place = reading.row, reading.place
    for each in reading.reductions.values():
        taken.element(each)
    program.taken_cost = taken.cost
    program.accesses = _accesses(program, reading)
    return program


def _accesses(program: KernelProgram, reading: Reading) -> list[Access]:
    """Of the expressions that were read at a variable row `o` and place `r`."""
    elements = program.rows * program.length
    first = {id(load) for stage in program.stages[:1] for each in stage for load in _loads_of(reading.element(each))}
    found = []
    for load in reading.pool.loads():
        _, index, element, numel, _ = load.data
        size = numel * element.bytes
        found.append(Access(_plain(index, reading.pool), size, element.bytes, numel >= elements, id(load) in first))
    for store in program.stores:
        size = store.value.bytes
        found.append(Access(reading.target(store), size, store.value.element.bytes, not store.by_row, first=False))
    return found


def _loads_of(expr: Expr) -> list[Expr]:
    return [expr] if expr.kind == "load" else [load for each in expr.args for load in _loads_of(each)]


def _plain(index: Index, pool: ExpressionPool) -> Index:
    """With the indices that guards have checked in the place of what they are called."""
    inner = {var: pool.given[var].data for var in index.variables() if var.given and pool.given[var].kind == "index"}
    return _plain(index.replace(inner), pool) if inner else index


def step_of(index: Index, variable: Index) -> int | None:
    """What the index grows by from an even value of a variable to the next; None where that is no constant."""
    ((atom, _),) = variable.terms
    assert isinstance(atom, Var)
    half = of(Var(atom.name, max(atom.extent // 2, 2))) * 2
    difference = index.replace({atom: half + 1}) - index.replace({atom: half})
    return None if difference.terms else difference.constant


def cone(value: Value, buffers: Mapping[int, str], seen: dict[int, Value] | None = None) -> dict[int, Value]:
    """The value and what it is computed from without a load, inputs first."""
    seen = {} if seen is None else seen
    done: set[int] = set()

    def visit(each: Value, *, top: bool) -> None:
        if id(each) in done or isinstance(each, BufferValue) or (not top and id(each) in buffers):
            return
        done.add(id(each))
        if not isinstance(each, ProductValue | Scan) or top:
            for operand in each.inputs:
                visit(operand, top=False)
        seen[id(each)] = each

    visit(value, top=True)
    return seen
