"""The cut of a task's values into kernels and library calls, in the order in which they run.

What is computed where it is read is stored only if a kernel cannot compute it there. So a cut begins with the outputs and the
operands of library calls; each attempt to write a kernel names the next value that an earlier kernel must store.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cudal2_agent.contract.plan.library_call import LibraryCall, View
from cudal2_agent.contract.plan.plan import Scratch
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement, Role
from cudal2_agent.policies.fusion.expressions import Expr, ExpressionPool
from cudal2_agent.policies.fusion.graph_values import lowered
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.programs import KernelProgram, MustStore, Reading, StoredValue, cone, traced
from cudal2_agent.policies.fusion.values import BufferValue, Map, ProductValue, Reduction, Scan, Unplanned, Value

MAX_STORED = 400


@dataclass(eq=False)
class ProductStep:
    """A product, by a library's call or by a kernel of its own."""

    name: str
    call: LibraryCall
    product: ProductValue

    @property
    def bytes(self) -> int:
        """What it reads and writes at least."""
        return sum(each.bytes for each in (*self.product.operands, self.product))


@dataclass(eq=False)
class ScanStep:
    """A scan. `stored`: the value in the buffer, which may be a view of the scan, such as its reverse.

    `reads`: the other buffers.
    """

    name: str
    scan: Scan
    stored: Value
    buffer: str
    reads: list[str]

    @property
    def bytes(self) -> int:
        """What it reads and writes at least, where its operand is stored as it is."""
        return self.scan.source.bytes + self.scan.bytes

    def target(self, index: Sequence[Index]) -> list[Index]:
        """Where the scan's element at an index lies in what is stored."""
        where = [Index()] * len(index)
        for at, (dim, sign, shift) in enumerate(_turned(self.stored, self.scan) or []):
            where[dim] = (index[at] - shift) * sign
        return where


def _turned(value: Value, scan: Scan) -> list[tuple[int, int, int]] | None:
    """How a value reads a scan: by dimension of the scan (dimension of the value, 1 or -1, shift); None where it does more."""
    shape = value.shape
    variables = [Var(f"d{at}", size) for at, size in enumerate(shape)]
    index: list[Index] | None = [of(each) for each in variables]
    while value is not scan:
        if not isinstance(value, Map) or len(value.of) != 1 or value.numel != scan.numel or len(value.shape) != len(scan.shape):
            return None
        capture = _Capture(value.of[0])
        if value.at(capture, index or []) is not capture.nothing or capture.index is None:
            return None
        value, index = value.of[0], capture.index
    found = []
    single = (dim for dim, size in enumerate(shape) if size == 1)  # which of them reads which makes no difference
    for each, size in zip(index or [], scan.shape, strict=True):
        if size == 1:
            found.append((next(single, -1), 1, 0))
            continue
        ((atom, factor),) = each.terms or ((None, 0),)
        if atom not in variables or abs(factor) != 1 or len(each.terms) != 1:
            return None
        found.append((variables.index(atom), factor, each.constant))
    return found if {dim for dim, _, _ in found} == set(range(len(shape))) else None


class _Capture:
    """A scope that only notes where a value is read."""

    def __init__(self, value: Value) -> None:
        self.pool, self.value = ExpressionPool(), value
        self.nothing = self.pool.literal(0, value.ctype)
        self.index: list[Index] | None = None

    def read(self, value: Value, index: Sequence[Index]) -> Expr:
        self.index = list(index) if value is self.value and self.index is None else None
        return self.nothing


Step = KernelProgram | ProductStep | ScanStep


@dataclass
class Groups:
    """A task's steps. `buffers`: by value's identity, the buffer that holds it. `elements`: by buffer. `values`: kept alive.

    `parameters`: the buffers of the module's weights.
    """

    steps: list[Step]
    buffers: dict[int, str]
    elements: dict[str, BufferElement]
    scratch: tuple[Scratch, ...]
    values: list[Value] = field(default_factory=list)
    algebra: bool = False
    parameters: frozenset[str] = frozenset()

    def weight(self, name: str) -> int:
        """Bytes that a kernel moves, by its name."""
        return next(each.bytes for each in self.steps if each.name == name)

    @property
    def products(self) -> list[ProductStep]:
        return [step for step in self.steps if isinstance(step, ProductStep)]

    @property
    def programs(self) -> list[KernelProgram]:
        return [step for step in self.steps if isinstance(step, KernelProgram)]


def _reshaped_product(value: Value) -> Value:
    """The product that a value is, under another shape; else the value."""
    below = value
    while isinstance(below, Map) and below.view_of is not None and below.permute is None:
        below = below.view_of
    return below if isinstance(below, ProductValue) else value


def _copy(name: str, value: Value) -> Map:
    return Map(f"{name}_copy", value.shape, value.element, (value,), lambda scope, index: scope.read(value, index))


def grouped(task: ModuleTask, *, algebra: bool = False) -> Groups:
    """The steps of a task. `algebra`: see `lowered`. Raises: Unplanned."""
    return _Cut(task, algebra=algebra).groups()


class _Cut:
    def __init__(self, task: ModuleTask, *, algebra: bool) -> None:
        self._task, self._values = task, lowered(task, algebra=algebra)
        self._algebra = algebra
        self._buffers: dict[int, str] = {}
        self._stored: dict[str, Value] = {}
        self._programs: dict[int, tuple[KernelProgram, frozenset[int]]] = {}  # with the values they are computed from
        self._taken = {buffer.name for buffer in task.buffers}
        for name, value in self._values.outputs.items():
            own = value = _reshaped_product(value)
            if isinstance(value, BufferValue) or id(value) in self._buffers:
                own = _copy(name, value)
            self._buffers[id(own)] = name
            self._stored[name] = own

    def groups(self) -> Groups:
        for _ in range(MAX_STORED):
            try:
                steps = self._merged(list(self._steps()))
            except MustStore as missing:
                self._store(missing.value)
                continue
            return self._numbered(steps)
        raise Unplanned("graph", f"more than {MAX_STORED} values to store")

    def _store(self, value: Value) -> None:
        if id(value) in self._buffers:
            raise Unplanned(value.name, "a value that its own kernel cannot compute")
        name = f"s_{value.name}"[:60]
        while name in self._taken:
            name = f"{name}_"[-60:]
        self._taken.add(name)
        self._buffers[id(value)] = name
        self._stored[name] = value
        self._programs = {key: each for key, each in self._programs.items() if id(value) not in each[1]}

    def _steps(self) -> Iterator[Step]:
        """Raises: MustStore."""
        for value in self._ordered():
            match value:
                case ProductValue():
                    yield self._call(value)
                case _ if (scan := _scan_of(value)) is not None:
                    yield ScanStep("", scan, value, self._buffers[id(value)], self._read_by(scan))
                case _:
                    if id(value) not in self._programs:
                        below = frozenset(cone(value, self._buffers))
                        self._programs[id(value)] = self._program(value), below
                    yield self._programs[id(value)][0]

    def _read_by(self, value: Value) -> list[str]:
        """The buffers that a value is computed from."""
        operands = [operand for each in cone(value, self._buffers).values() for operand in each.inputs]
        names = (each.name if isinstance(each, BufferValue) else self._buffers.get(id(each)) for each in operands)
        return list(dict.fromkeys(name for name in names if name is not None))

    def _ordered(self) -> list[Value]:
        """Stored values, each behind those that it is computed from. Raises: MustStore."""
        order: dict[int, Value] = {}

        def visit(value: Value) -> None:
            if id(value) in order:
                return
            scan = _scan_of(value)
            below = cone(scan or value, self._buffers).values()
            reductions = [each for each in below if isinstance(each, Reduction)]
            if scan is not None and reductions:
                raise MustStore(reductions[-1])  # a scan's kernel reduces nothing itself
            for each in below:
                for operand in each.inputs:
                    if isinstance(operand, ProductValue | Scan) and id(operand) not in self._buffers:
                        raise MustStore(operand)
                    if id(operand) in self._buffers and operand is not value:
                        visit(operand)
            order[id(value)] = value

        for value in list(self._stored.values()):
            visit(value)
        return list(order.values())

    def _program(self, value: Value) -> KernelProgram:
        """The kernel that stores a value, over the last reduction whose rows fit it. Raises: MustStore."""
        buffer = self._buffers[id(value)]
        if isinstance(value, Reduction):
            rows = KernelProgram("", value.numel, value.length, value, [StoredValue(value, buffer, by_row=True)])
            return traced(rows, self._buffers)
        reductions = [each for each in cone(value, self._buffers).values() if isinstance(each, Reduction)]
        for anchor in reversed(reductions):
            by_row = value.numel != anchor.source.numel
            if by_row and value.numel != anchor.numel:
                continue
            program = KernelProgram("", anchor.numel, anchor.length, anchor, [StoredValue(value, buffer, by_row=by_row)])
            try:
                return traced(program, self._buffers)
            except MustStore as missing:
                if missing.value is not anchor:
                    raise
        return traced(KernelProgram("", value.numel, 1, None, [StoredValue(value, buffer, by_row=True)]), self._buffers)

    def _call(self, product: ProductValue) -> ProductStep:
        """Raises: MustStore for an operand that is no permuted view of a buffer."""
        inputs = tuple(self._view(operand) for operand in product.operands)
        out = View(tensor=self._buffers[id(product)], shape=self._shape_in_output(product))
        return ProductStep("", product.call.model_copy(update={"inputs": inputs, "out": out}), product)

    def _shape_in_output(self, product: ProductValue) -> tuple[int, ...] | None:
        """The product's, where it is stored in an output of another shape."""
        outputs = {buffer.name: buffer.shape for buffer in self._task.buffers}
        return None if outputs.get(self._buffers[id(product)], product.shape) == product.shape else product.shape

    def _view(self, operand: Value) -> View:
        """Raises: MustStore for the operand, or for what it would then be a plain view of."""
        if (view := _plain_view(operand, self._buffers)) is not None:
            return view
        value = operand
        while isinstance(value, Map) and value.view_of is not None and id(value.view_of) not in self._buffers:
            value = value.view_of
        stored = _plain_view(operand, self._buffers | {id(value): value.name}) is not None
        raise MustStore(value if stored and not isinstance(value, BufferValue) else operand)

    def _merged(self, steps: list[Step]) -> list[Step]:
        """With kernels joined that have the same rows and then read less: statistics of the same elements, a pass and what
        follows it.
        """
        at = 1
        while at < len(steps):
            joined = next((each for each in range(at - 1, -1, -1) if self._join(steps, each, at)), None)
            at = at if joined is not None else at + 1
        return steps

    def _join(self, steps: list[Step], first: int, second: int) -> bool:
        """Whether two kernels became one, in the place of the second or of the first."""
        one, other = steps[first], steps[second]
        if not isinstance(one, KernelProgram) or not isinstance(other, KernelProgram):
            return False
        if (one.rows, one.length, one.anchor is None) != (other.rows, other.length, other.anchor is None):
            return False
        between = [name for step in steps[first + 1 : second] for name in names_of(step)]
        later = not any(store.buffer in between for store in one.stores)
        if not later and any(name in between for name in other.reads):
            return False
        program = KernelProgram("", other.rows, other.length, other.anchor, [*one.stores, *other.stores])
        try:
            joint = traced(program, self._buffers)
        except MustStore:
            return False
        if joint.bytes >= one.bytes + other.bytes:
            return False
        del steps[second if not later else first]
        steps[second - 1 if later else first] = joint
        return True

    def _numbered(self, steps: list[Step]) -> Groups:
        for at, step in enumerate(steps):
            step.name = f"k{at}"
        elements = {buffer.name: buffer.element for buffer in self._task.buffers}
        elements |= {name: value.element for name, value in self._stored.items()}
        outputs = {buffer.name for buffer in self._task.buffers}
        used = {name for step in steps for name in names_of(step)}
        scratch = tuple(
            Scratch(name=name, shape=value.shape or (1,), element=value.element)
            for name, value in self._stored.items()
            if name not in outputs and name in used
        )
        values = [*self._stored.values(), *self._values.sources.values()]
        parameters = frozenset(each.name for each in self._task.buffers if each.role is Role.PARAMETER)
        return Groups(steps, self._buffers, elements, scratch, values, self._algebra, parameters)


def _plain_view(operand: Value, buffers: Mapping[int, str]) -> View | None:
    """An operand as a permuted view of a whole buffer."""
    reading = Reading(KernelProgram("", 1, 1, None, []), buffers)
    variables = [Var(f"d{at}", size) for at, size in enumerate(operand.shape)]
    try:
        read = reading.read(operand, [of(each) for each in variables])
    except MustStore:
        return None
    if read.kind != "load":
        return None
    buffer, place, *_ = read.data
    strides = dict(place.terms)
    by_dim = [strides.get(variable, 0) for variable in variables]
    order = sorted(range(len(variables)), key=lambda dim: (-by_dim[dim], dim) if operand.shape[dim] > 1 else (-(10**18), dim))
    expected = 1
    for dim in reversed(order):
        if operand.shape[dim] > 1:
            if by_dim[dim] != expected:
                return None
            expected *= operand.shape[dim]
    whole = next(iter(reading.loads.values())).numel
    if place.constant or expected != whole or len(strides) != sum(size > 1 for size in operand.shape):
        return None
    shape = tuple(operand.shape[dim] for dim in order)
    permute = tuple(order.index(dim) for dim in range(len(order)))
    return View(tensor=buffer, shape=shape, permute=None if permute == tuple(range(len(order))) else permute)


def _scan_of(value: Value) -> Scan | None:
    """The scan that a stored value is, or is a plain view of."""
    below = value
    while isinstance(below, Map) and len(below.of) == 1:
        below = below.of[0]
    return below if isinstance(below, Scan) and _turned(value, below) is not None else None


def names_of(step: Step) -> list[str]:
    """The buffers that a step reads or writes."""
    match step:
        case ProductStep():
            return [*(view.tensor for view in step.call.inputs), step.call.out.tensor]
        case ScanStep():
            return [*step.reads, step.buffer]
    return [*step.reads, *(store.buffer for store in step.stores)]
