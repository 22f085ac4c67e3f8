"""CUDA C++ of one program for one set of axes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from cudal2_agent.contract.plan.plan import Launch, TensorArg
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading, ReductionKey
from cudal2_agent.policies.fusion.reduction_rules import OPERATIONS, start
from cudal2_agent.policies.fusion.values import Reduction
from cudal2_agent.policies.fusion.writer import STORED, StatementWriter

WARP = 32


@dataclass(frozen=True)
class KernelText:
    """A kernel and its launch."""

    source: str
    launch: Launch


def kernel_text(
    program: KernelProgram, axes: Axes, buffers: Mapping[int, str], elements: Mapping[str, BufferElement]
) -> KernelText:
    """`elements`: of each buffer by name."""
    written = [store.buffer for store in program.stores]
    reads = [name for name in program.reads if name not in written]
    body = {"flat": _FlatKernel, "rows": _RowKernel, "columns": _ColumnKernel}[axes.layout](program, axes, buffers)
    body.write()
    parameters = [f"const {STORED[elements[name]]}* __restrict__ {name}" for name in reads]
    parameters += [f"{STORED[elements[name]]}* __restrict__ {name}" for name in dict.fromkeys(written)]
    head = f'extern "C" __global__ void __launch_bounds__({axes.threads}) {program.name}(\n    '
    source = head + ",\n    ".join(parameters) + ") {\n" + "\n".join(body.writer.lines) + "\n}\n"
    args = [TensorArg(tensor=name) for name in reads]
    args += [TensorArg(tensor=name, access="write") for name in dict.fromkeys(written)]
    return KernelText(source, Launch(entry=program.name, grid=(body.ctas, 1, 1), block=(axes.threads, 1, 1), args=tuple(args)))


class _KernelBody:
    """What the layouts share. A thread computes `row_lanes` rows and reads `place_lanes` neighbours of a row at a time."""

    row_lanes = 1
    place_lanes = 1
    ctas = 1

    def __init__(self, program: KernelProgram, axes: Axes, buffers: Mapping[int, str]) -> None:
        self.program, self.axes = program, axes
        self.reading = Reading(program, buffers)
        self.writer = StatementWriter(self.reading.pool)
        self.line = self.writer.line

    def at(self, row: Index, place: Index, lane: int, bound: tuple[str, int] | None = None) -> Reading:
        self.reading.row, self.reading.place, self.reading.lane, self.reading.bound = row, place, lane, bound
        return self.reading

    def write(self) -> None:
        raise NotImplementedError

    def store(self, which: list[tuple[Index, Index, int]], bound: tuple[str, int] | None, *, by_row: bool) -> None:
        """Everything that is stored for these (row, place, lane), computed in full before the first is stored."""
        stores = [store for store in self.program.stores if store.by_row == by_row]
        exprs = [[self.at(*each, bound).stored(store) for each in which] for store in stores]
        places = [[self.at(*each, bound).target(store) for each in which] for store in stores]
        self.writer.load([each for several in exprs for each in several], self.axes.vector)
        for store, several, targets in zip(stores, exprs, places, strict=True):
            values = [self.writer.write(each) for each in several]
            self.writer.store(store.buffer, store.value.element, targets, values)


class _FlatKernel(_KernelBody):
    """No reduction: every thread computes `items` groups of `vector` neighbours."""

    def write(self) -> None:
        axes, groups = self.axes, self.program.rows // self.axes.vector
        step = axes.threads * axes.items
        self.ctas = -(-groups // step)
        self.line(f"const unsigned first = blockIdx.x * {step}u + threadIdx.x;")
        if axes.items == 1:
            self._group(Var("first", groups), step)
            return
        self.line("#pragma unroll")
        with self.writer.block(f"for (unsigned item = 0; item < {axes.items}u; ++item)"):
            self.line(f"const unsigned q_at = first + item * {axes.threads}u;")
            self._group(Var("q_at", groups), step)

    def _group(self, group: Var, step: int) -> None:
        vector = self.axes.vector
        lanes = [(of(group) * vector + lane, Index(), 0) for lane in range(vector)]
        if group.extent % step == 0:
            self.store(lanes, None, by_row=True)
            return
        with self.writer.block(f"if ({group} < {group.extent}u)"):
            self.store(lanes, None, by_row=True)


class _ReducingKernel(_KernelBody):
    """Passes over the rows, one for each stage of reductions and one for what is stored of every element."""

    def row(self, lane: int) -> Index:
        raise NotImplementedError

    def place(self, group: Index, lane: int) -> Index:
        raise NotImplementedError

    def combine(self, state: str, reduction: Reduction) -> None:
        """Merge the threads' states; afterwards every thread has the result."""
        raise NotImplementedError

    groups = 1  # of `place_lanes` elements in a row
    first = ""  # of a thread, as C++ names it

    def passes(self) -> None:
        held = self.axes.held
        for stage in self.program.stages:
            states = {self._key(each): self._declare(each) for each in stage}
            self._loop(held, partial(self._take, stage, states))
            for each in stage:
                self._finish(each, states[self._key(each)])
        if any(not store.by_row for store in self.program.stores):
            self._loop(held, lambda bound, group: self._elements(group, bound))

    @staticmethod
    def _key(reduction: Reduction) -> ReductionKey:
        return reduction.operation, id(reduction.source), reduction.dims

    def _loop(self, held: bool, body: Callable[[tuple[str, int] | None, Index], None]) -> None:
        """`body(bound, group)` for each group of a thread; `bound` where it may lie beyond the row."""
        lanes, uneven = self.axes.lanes, self.groups % self.axes.lanes
        steps = -(-self.groups // lanes)
        if held:
            for step in range(steps):
                name = f"{self.first}_{step}"
                if name not in self._named:
                    self._named.add(name)
                    self.line(f"const unsigned {name} = {self.first} + {step * lanes}u;")
                beyond = uneven and step == steps - 1
                body((name, self.groups) if beyond else None, of(Var(name, self.groups)))
            return
        self.line(f"#pragma unroll {4 if steps >= 4 else max(steps, 1)}")
        with self.writer.block(f"for (unsigned k = {self.first}; k < {self.groups}u; k += {lanes}u)"):
            body(None, of(Var("k", self.groups)))

    _named: set[str] = set()

    def _lanes(self, group: Index) -> list[tuple[Index, Index, int]]:
        return [
            (self.row(lane), self.place(group, neighbour), lane)
            for lane in range(self.row_lanes)
            for neighbour in range(self.place_lanes)
        ]

    def _declare(self, reduction: Reduction) -> str:
        """The states of a thread: for each of its rows, and for each neighbour that it reads at a time."""
        name, rule = self.writer.name("s"), OPERATIONS[reduction.operation]
        for lane in range(self.row_lanes):
            for neighbour in range(self.place_lanes):
                for field, ctype, text in rule.fields:
                    kind = ctype or reduction.source.ctype
                    self.line(f"{kind} {name}_{lane}_{neighbour}_{field} = {start(text, kind)};")
        return name

    def _take(
        self, stage: list[Reduction], states: dict[ReductionKey, str], bound: tuple[str, int] | None, group: Index
    ) -> None:
        lanes = self._lanes(group)
        exprs = {self._key(each): [self.at(*lane, bound).element(each) for lane in lanes] for each in stage}
        self.writer.load([each for several in exprs.values() for each in several], self.axes.vector)
        for reduction in stage:
            key = self._key(reduction)
            texts = [self.writer.write(each) for each in exprs[key]]
            rule = OPERATIONS[reduction.operation]
            for at, text in enumerate(texts):
                state = f"{states[key]}_{at // self.place_lanes}_{at % self.place_lanes}"
                taken = _filled(rule.take, rule.fields, state, None).replace("{x}", text).replace("{at}", str(lanes[at][1]))
                self.line(f"if ({bound[0]} < {bound[1]}u) {{ {taken} }}" if bound else taken)

    def _finish(self, reduction: Reduction, state: str) -> None:
        rule, key = OPERATIONS[reduction.operation], self._key(reduction)
        for lane in range(self.row_lanes):
            for neighbour in range(1, self.place_lanes):
                self.line(_filled(rule.merge, rule.fields, f"{state}_{lane}_0", f"{state}_{lane}_{neighbour}"))
        if self.axes.lanes > 1:
            self.combine(state, reduction)
        for lane in range(self.row_lanes):
            for output, text in rule.outputs.items():
                ctype = "long long" if output == "index" else reduction.source.ctype
                expr = self.reading.pool.make("row", ctype, data=(key, output, lane))
                self.writer.know(expr, _filled(text, rule.fields, f"{state}_{lane}_0", None))

    def _elements(self, group: Index, bound: tuple[str, int] | None) -> None:
        if bound is None:
            self.store(self._lanes(group), None, by_row=False)
            return
        with self.writer.block(f"if ({bound[0]} < {bound[1]}u)"):
            self.store(self._lanes(group), bound, by_row=False)


def _filled(text: str, fields: tuple[tuple[str, str, str], ...], state: str, other: str | None) -> str:
    for name, _, _ in fields:
        text = text.replace(f"{{{name}}}", f"{state}_{name}")
        if other is not None:
            text = text.replace(f"{{o_{name}}}", f"{other}_{name}")
    return text


class _RowKernel(_ReducingKernel):
    """`lanes` threads share a row: a part of a warp, or whole warps."""

    def write(self) -> None:
        axes, program = self.axes, self.program
        self._named = set()
        self.place_lanes, self.groups = axes.vector, program.length // axes.vector
        per_cta = axes.threads // axes.lanes
        self.ctas = -(-program.rows // per_cta)
        self.first = "lane"
        self.line(f"const unsigned lane = threadIdx.x % {axes.lanes}u;")
        self.line(f"const unsigned wanted = blockIdx.x * {per_cta}u + threadIdx.x / {axes.lanes}u;")
        whole = program.rows % per_cta == 0
        self.line("const unsigned row = wanted;" if whole else f"const unsigned row = min(wanted, {program.rows - 1}u);")
        self._live = "" if whole else f"wanted < {program.rows}u"
        self.passes()
        if any(store.by_row for store in program.stores):
            with self.writer.block("if (" + " && ".join(filter(None, ("lane == 0u", self._live))) + ")"):
                self.store([(self.row(0), Index(), 0)], None, by_row=True)

    def row(self, lane: int) -> Index:  # noqa: ARG002 (one row a thread)
        return of(Var("row", self.program.rows))

    def place(self, group: Index, lane: int) -> Index:
        return group * self.place_lanes + lane

    def _elements(self, group: Index, bound: tuple[str, int] | None) -> None:
        if not self._live:
            super()._elements(group, bound)
            return
        with self.writer.block(f"if ({self._live})"):
            super()._elements(group, bound)

    def combine(self, state: str, reduction: Reduction) -> None:
        rule, axes = OPERATIONS[reduction.operation], self.axes
        own = f"{state}_0_0"
        kinds = [(name, ctype or reduction.source.ctype) for name, ctype, _ in rule.fields]
        width = min(axes.lanes, WARP)
        with self.writer.block(f"for (unsigned d = {width // 2}u; d > 0u; d >>= 1)"):
            for name, kind in kinds:
                self.line(f"const {kind} o_{name} = __shfl_down_sync(0xffffffffu, {own}_{name}, d, {width});")
            self.line(_filled(rule.merge, rule.fields, own, "o").replace("o_o_", "o_"))
        if axes.lanes <= WARP:
            for name, _ in kinds:
                self.line(f"{own}_{name} = __shfl_sync(0xffffffffu, {own}_{name}, 0, {width});")
            return
        warps = axes.threads // WARP
        for name, kind in kinds:
            self.line(f"__shared__ {kind} {state}_{name}[{warps}];")
        with self.writer.block("if (threadIdx.x % 32u == 0u)"):
            for name, _ in kinds:
                self.line(f"{state}_{name}[threadIdx.x / 32u] = {own}_{name};")
        self.line("__syncthreads();")
        of_row = axes.lanes // WARP
        begin = "0u" if of_row == warps else f"threadIdx.x / {axes.lanes}u * {of_row}u"
        for name, _ in kinds:
            self.line(f"{own}_{name} = {state}_{name}[{begin}];")
        with self.writer.block(f"for (unsigned w = 1; w < {of_row}u; ++w)"):
            for name, kind in kinds:
                self.line(f"const {kind} o_{name} = {state}_{name}[{begin} + w];")
            self.line(_filled(rule.merge, rule.fields, own, "o"))


class _ColumnKernel(_ReducingKernel):
    """Neighbouring rows lie side by side in memory: a thread takes `vector` of them, and `lanes` threads share the length."""

    def write(self) -> None:
        axes, program = self.axes, self.program
        self._named = set()
        self.row_lanes, self.groups = axes.vector, program.length
        across = axes.threads // axes.lanes
        self._columns = program.rows // axes.vector
        self.ctas = -(-self._columns // across)
        self.first = "lane"
        self.line(f"const unsigned across = threadIdx.x % {across}u, lane = threadIdx.x / {across}u;")
        self.line(f"const unsigned wanted = blockIdx.x * {across}u + across;")
        whole = self._columns % across == 0
        self.line(f"const unsigned column = {'wanted' if whole else f'min(wanted, {self._columns - 1}u)'};")
        self._live = "" if whole else f"wanted < {self._columns}u"
        self.passes()
        if any(store.by_row for store in program.stores):
            conditions = [each for each in ("lane == 0u" if axes.lanes > 1 else "", self._live) if each]
            with self.writer.block(f"if ({' && '.join(conditions)})" if conditions else ""):
                self.store([(self.row(each), Index(), each) for each in range(axes.vector)], None, by_row=True)

    def row(self, lane: int) -> Index:
        return of(Var("column", self._columns)) * self.row_lanes + lane

    def place(self, group: Index, lane: int) -> Index:  # noqa: ARG002 (one element at a time)
        return group

    def _elements(self, group: Index, bound: tuple[str, int] | None) -> None:
        if not self._live:
            super()._elements(group, bound)
            return
        with self.writer.block(f"if ({self._live})"):
            super()._elements(group, bound)

    def combine(self, state: str, reduction: Reduction) -> None:
        rule, axes = OPERATIONS[reduction.operation], self.axes
        across = axes.threads // axes.lanes
        for name, ctype, _ in rule.fields:
            kind = ctype or reduction.source.ctype
            self.line(f"__shared__ {kind} {state}_{name}[{axes.lanes}][{across * axes.vector}];")
            for each in range(self.row_lanes):
                self.line(f"{state}_{name}[lane][across + {each * across}u] = {state}_{each}_0_{name};")
        self.line("__syncthreads();")
        for each in range(self.row_lanes):
            for name, _, _ in rule.fields:
                self.line(f"{state}_{each}_0_{name} = {state}_{name}[0][across + {each * across}u];")
        with self.writer.block(f"for (unsigned w = 1; w < {axes.lanes}u; ++w)"):
            for each in range(self.row_lanes):
                for name, ctype, _ in rule.fields:
                    kind = ctype or reduction.source.ctype
                    self.line(f"const {kind} o{each}_{name} = {state}_{name}[w][across + {each * across}u];")
                self.line(_filled(rule.merge, rule.fields, f"{state}_{each}_0", f"o{each}"))
