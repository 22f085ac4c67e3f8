"""Passes over rows: one for each stage of reductions and one for what is stored of every element.

A row may be divided among `parts` CTAs. Then each stage is a launch that stores the states of its parts, which the next
launch merges in the order of a tree; none adds in the order of arrival. In a cluster the CTAs of a row merge in the kernel.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

from cudal2_agent.contract.plan.plan import Scratch
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.reduction_rules import OPERATIONS, ReductionRule, start
from cudal2_agent.policies.fusion.row_kernels.kernel_body import KernelBody
from cudal2_agent.policies.fusion.values import Reduction, ReductionKey
from cudal2_agent.policies.fusion.writer import QUOTIENT

STATES = {
    "float": BufferElement.F32,
    "double": BufferElement.F64,
    "int": BufferElement.I32,
    "unsigned": BufferElement.I32,
    "long long": BufferElement.I64,
    "bool": BufferElement.BOOL,
}
HELD_TOGETHER = 4  # groups of a row that a thread keeps and takes at once
Fields = list[tuple[str, str]]  # of a state: (name, C type)
LoopBody = Callable[[str | None, list[tuple[Index, int]]], None]


class ReducingKernel(KernelBody):
    """A thread computes `row_lanes` rows. It reads `place_lanes` neighbours of a row at a time, `items` times in a row.

    `phase`: of a row in parts, the stage that this launch computes; the number of stages for what is stored.
    """

    row_lanes = 1
    place_lanes = 1
    groups = 1  # of `place_lanes` elements in a row
    first = ""  # of a thread, as C++ names it

    def __init__(self, program: KernelProgram, axes: Axes, buffers: Mapping[int, str], phase: int | None = None) -> None:
        super().__init__(program, axes, buffers)
        self.phase, self._named = phase, set[str]()

    @abstractmethod
    def row(self, lane: int) -> Index: ...

    @abstractmethod
    def place(self, group: Index, lane: int) -> Index: ...

    @abstractmethod
    def combine(self, state: str, fields: Fields, merge: Callable[[str, str], str]) -> None:
        """Merge the threads' states; afterwards every thread has the result. `merge(state, other)`: a statement."""

    @abstractmethod
    def combine_cluster(self, state: str, fields: Fields, merge: Callable[[str, str], str]) -> None:
        """The same of the CTAs of a cluster. Raises: Unplanned where the layout has none."""

    @abstractmethod
    def state_index(self, part: str, lane: int) -> str:
        """Where the state of a part of a row lies."""

    @abstractmethod
    def writes_row(self, *, once: bool = False) -> str:
        """The condition under which a thread stores the results of its rows. `once`: of CTAs that share a row, the first."""

    @property
    def share(self) -> int:
        """CTAs that share a row in this launch."""
        whole = self.axes.parts > 1 and self.phase == len(self.program.stages) and self.by_row_only
        return 1 if whole else max(self.axes.parts, self.axes.cluster)

    @property
    def by_row_only(self) -> bool:
        return all(store.by_row for store in self.program.stores)

    live_rows = ""  # the condition under which a thread's rows exist

    def live(self, rows: int, per_cta: int, name: str) -> None:
        """Declare the row, or the group of rows, of a thread."""
        whole = rows % per_cta == 0
        self.line(f"const unsigned {name} = {'wanted' if whole else f'min(wanted, {rows - 1}u)'};")
        self.live_rows = "" if whole else f"wanted < {rows}u"

    def begin(self) -> None:
        """The groups of this CTA: from `begin` to below `end`."""
        if self.share == 1:
            return
        chunk = -(-self.groups // self.share)
        self.line(f"const unsigned piece = blockIdx.x % {self.share}u;")
        self.line(f"const unsigned begin = piece * {chunk}u, end = min(begin + {chunk}u, {self.groups}u);")

    def rows(self) -> None:
        """The statements behind those that declare a thread's rows: every pass, then what is stored of each row."""
        self.begin()
        self.passes()
        if self.phase in (None, len(self.program.stages)) and any(store.by_row for store in self.program.stores):
            condition = self.writes_row(once=True)
            with self.writer.block(f"if ({condition})" if condition else ""):
                self.store([(self.row(lane), Index(), lane) for lane in range(self.row_lanes)], None, by_row=True)
        self.end()
        self.shared_bytes = self.writer.slot_bytes * self.slots

    def passes(self) -> None:
        stages = self.program.stages
        for at, stage in enumerate(stages if self.phase is None else stages[: self.phase + 1]):
            stored = self.phase is not None and at < self.phase
            widths = {each.key: 1 if stored else self._width(each) for each in stage}
            states = {each.key: self._declare(each, widths[each.key]) for each in stage}
            if stored:
                self._load_states(at, stage, states)
            else:
                self._loop(partial(self._take, stage, states), partial(self._copy, stage) if at == 0 else None)
            self._finish(stage, states, widths, partial=at == self.phase)
            if at == self.phase:
                self._store_states(at, stage, states)
                return
        if not self.by_row_only:
            self._write_what_a_row_has_once()
            self._loop(self._elements)

    def _width(self, reduction: Reduction) -> int:
        """States of a thread for each of its rows."""
        return 1 if OPERATIONS[reduction.operation].take_all else self.place_lanes * self.items

    def _write_what_a_row_has_once(self) -> None:
        """What is computed of the results of a row alone, before the loop over its elements."""
        for place in self._lanes(of(Var("k", self.groups))):
            for store in self.program.stores:
                if not store.by_row:
                    self._write_of_rows(self.at(*place).stored(store), set())

    def _write_of_rows(self, expr: Expr, seen: set[Expr]) -> bool:
        """Whether an expression is one of results of rows; if not, the parts of it that are have been written."""
        if expr.kind in ("row", "literal"):
            return True
        if expr in seen or expr.kind not in ("call", "guard", "fold"):
            return False
        seen.add(expr)
        known = [self._write_of_rows(each, seen) for each in expr.args]
        if expr.kind == "call" and all(known):
            return True
        for each, is_known in zip(expr.args, known, strict=True):
            if is_known and each.kind == "call":
                self.writer.write(each)
        if expr.data == QUOTIENT and known[1] and expr.args[1].kind != "literal" and expr.ctype in ("float", "double"):
            self.writer.write_inverse(expr.args[1])
        return False

    @staticmethod
    def _fields(reduction: Reduction) -> Fields:
        return [(name, ctype or reduction.source.ctype) for name, ctype, _ in OPERATIONS[reduction.operation].fields]

    def _loop(self, body: LoopBody, copy: LoopBody | None = None) -> None:
        """`body(bound, groups)` for the groups of a thread, each with its item; `bound` where they may lie beyond the row.

        `copy`: what keeps groups in shared memory, in the first loop over them.
        """
        lanes, share = self.axes.lanes, self.share
        start, end = (f"begin + {self.first}", "end") if share > 1 else (self.first, f"{self.groups}u")
        chunk = -(-self.groups // share)
        if self.axes.held:
            whole = chunk // lanes if self.groups % chunk == 0 else 0  # steps that all lanes have
            steps = [range(at, min(at + HELD_TOGETHER, whole)) for at in range(0, whole, HELD_TOGETHER)]
            for several in [*steps, *(range(at, at + 1) for at in range(whole, -(-chunk // lanes)))]:
                names = [f"{self.first}_{step}" for step in several]
                for name, step in zip(names, several, strict=True):
                    if name not in self._named:
                        self._named.add(name)
                        self.line(f"const unsigned {name} = {start} + {step * lanes}u;")
                bound = None if several[-1] < whole else f"{names[0]} < {end}"
                body(bound, [(of(Var(name, self.groups)), 0) for name in names])
            return
        if not self.axes.shared:
            self._steps(body, start, end, chunk)
            return
        elements, kept = self.program.rows * self.program.length, self.axes.kept * lanes
        first, rest = end, ""
        if 0 < kept < chunk:
            begin = "begin + " if share > 1 else ""
            first, rest = f"min({begin}{kept}u, {end})", f"{start} + {kept}u"
        if copy is not None:
            self.writer.keep(self._slot, save=True, elements=elements, slots=self.slots)
            self._steps(copy, start, first, kept or chunk, items=1)
            self.writer.keep()
        if rest:
            self._steps(body, rest, end, chunk - kept)
        if copy is not None:
            self.line("wait_for_kept();")
        self.writer.keep(self._slot, elements=elements, slots=self.slots)
        self._steps(body, start, first, kept or chunk)
        self.writer.keep()

    def _steps(self, body: LoopBody, start: str, end: str, count: int, items: int | None = None) -> None:
        """The loop over up to `count` groups of all threads, from `start` on, which C++ names as `end`."""
        lanes, items = self.axes.lanes, items or self.axes.items
        with self.writer.block(""):
            self.line(f"unsigned k_at = {start};")
            if items > 1 and count >= items * lanes:
                with self.writer.block(f"for (; k_at + {(items - 1) * lanes}u < {end}; k_at += {items * lanes}u)"):
                    names = [f"k{item}_at" for item in range(items)]
                    for item, name in enumerate(names):
                        self.line(f"const unsigned {name} = k_at + {item * lanes}u;")
                    body(None, [(of(Var(name, self.groups)), item) for item, name in enumerate(names)])
            if items == 1 or self.share > 1 or count < self.groups or self.groups % (items * lanes):
                self.line(f"#pragma unroll {4 if items == 1 and count >= 4 * lanes else 1}")
                with self.writer.block(f"for (; k_at < {end}; k_at += {lanes}u)"):
                    body(None, [(of(Var("k_at", self.groups)), 0)])

    def _copy(self, stage: list[Reduction], bound: str | None, groups: list[tuple[Index, int]]) -> None:
        """Keep what a stage reads of groups in shared memory."""
        lanes = [lane for group, _ in groups for lane in self._lanes(group)]
        self.writer.copy([self.at(*lane, bound).element(each) for each in stage for lane in lanes], self.axes.vector)

    def _slot(self, group: Var) -> str | None:
        """Where a thread keeps what it read of a group in shared memory; None for a variable of another loop."""
        if not group.name.startswith("k") or not group.name.endswith("_at"):
            return None
        step = f"({group} - begin)" if self.share > 1 else str(group)
        return f"{step} / {self.axes.lanes}u * {self.axes.threads}u + threadIdx.x"

    @property
    def slots(self) -> int:
        """Groups that a CTA keeps."""
        steps = -(-self.groups // (self.share * self.axes.lanes))
        return min(steps, self.axes.kept or steps) * self.axes.threads

    def _lanes(self, group: Index) -> list[tuple[Index, Index, int]]:
        return [
            (self.row(lane), self.place(group, neighbour), lane)
            for lane in range(self.row_lanes)
            for neighbour in range(self.place_lanes)
        ]

    def _declare(self, reduction: Reduction, width: int) -> str:
        """The states of a thread: for each of its rows, for each item and each neighbour that it reads at a time."""
        name, rule = self.writer.name("s"), OPERATIONS[reduction.operation]
        for lane in range(self.row_lanes):
            for neighbour in range(width):
                for field, ctype, text in rule.fields:
                    kind = ctype or reduction.source.ctype
                    self.line(f"{kind} {name}_{lane}_{neighbour}_{field} = {start(text, kind)};")
        return name

    @property
    def items(self) -> int:
        return 1 if self.axes.held else self.axes.items

    def _take(
        self, stage: list[Reduction], states: dict[ReductionKey, str], bound: str | None, groups: list[tuple[Index, int]]
    ) -> None:
        where = [(lane, item) for group, item in groups for lane in self._lanes(group)]
        exprs = {each.key: [self.at(*lane, bound).element(each) for lane, _ in where] for each in stage}
        self.writer.load([each for several in exprs.values() for each in several], self.axes.vector)
        width = self.place_lanes
        for reduction in stage:
            key = reduction.key
            texts = [self.writer.write(each) for each in exprs[key]]
            rule = OPERATIONS[reduction.operation]
            if rule.take_all:
                for row in range(self.row_lanes):
                    own = [text for text, ((_, _, lane), _) in zip(texts, where, strict=True) if lane == row]
                    xs = self.writer.name("x")
                    self.line(f"const {reduction.source.ctype} {xs}[] = {{{', '.join(own)}}};")
                    taken = filled(rule.take_all, rule.fields, f"{states[key]}_{row}_0", None).replace("{xs}", xs)
                    self.line(f"if ({bound}) {{ {taken} }}" if bound else taken)
                continue
            for at, (text, ((_, place, lane), item)) in enumerate(zip(texts, where, strict=True)):
                state = f"{states[key]}_{lane}_{item * width + at % width}"
                taken = filled(rule.take, rule.fields, state, None).replace("{x}", text).replace("{at}", str(place))
                self.line(f"if ({bound}) {{ {taken} }}" if bound else taken)

    def _load_states(self, at: int, stage: list[Reduction], states: dict[ReductionKey, str]) -> None:
        """Merge what the parts of an earlier launch have stored."""
        parts = self.axes.parts
        with self.writer.block(f"for (unsigned w = {self.first}; w < {parts}u; w += {self.axes.lanes}u)"):
            for which, reduction in enumerate(stage):
                rule = OPERATIONS[reduction.operation]
                for lane in range(self.row_lanes):
                    for name, kind in self._fields(reduction):
                        buffer = self._state_buffer(at, which, name, kind, self.states_read)
                        self.line(f"const {kind} o{which}_{lane}_{name} = ({kind}){buffer}[{self.state_index('w', lane)}];")
                    state = f"{states[reduction.key]}_{lane}_0"
                    self.line(filled(rule.merge, rule.fields, state, f"o{which}_{lane}"))

    def _store_states(self, at: int, stage: list[Reduction], states: dict[ReductionKey, str]) -> None:
        with self.writer.block(f"if ({self.writes_row()})" if self.writes_row() else ""):
            for which, reduction in enumerate(stage):
                for lane in range(self.row_lanes):
                    for name, kind in self._fields(reduction):
                        buffer = self._state_buffer(at, which, name, kind, self.states_written)
                        value = f"{states[reduction.key]}_{lane}_0_{name}"
                        self.line(f"{buffer}[{self.state_index('piece', lane)}] = {value};")

    def _state_buffer(self, at: int, which: int, field: str, kind: str, among: list[Scratch]) -> str:
        name = f"{self.program.name}_state{at}_{which}_{field}"
        scratch = Scratch(name=name, shape=(self.program.rows * self.axes.parts,), element=STATES[kind])
        if scratch not in among:
            among.append(scratch)
        return name

    def _finish(
        self, stage: list[Reduction], states: dict[ReductionKey, str], widths: dict[ReductionKey, int], *, partial: bool
    ) -> None:
        for reduction in stage:
            rule, key = OPERATIONS[reduction.operation], reduction.key
            state, width = states[key], widths[key]

            def merge(one: str, other: str, rule: ReductionRule = rule) -> str:
                return filled(rule.merge, rule.fields, one, other)

            for lane in range(self.row_lanes):
                step = 1
                while step < width:
                    for at in range(0, width - step, 2 * step):
                        self.line(merge(f"{state}_{lane}_{at}", f"{state}_{lane}_{at + step}"))
                    step *= 2
            if self.axes.lanes > 1:
                self.combine(state, self._fields(reduction), merge)
            if self.axes.cluster > 1:
                self.combine_cluster(state, self._fields(reduction), merge)
                self._in_cluster = True
            if partial:
                continue
            for lane in range(self.row_lanes):
                for output, text in rule.outputs.items():
                    ctype = "long long" if output == "index" else reduction.source.ctype
                    expr = self.reading.pool.make("row", ctype, data=(key, output, lane))
                    self.writer.know(expr, filled(text, rule.fields, f"{state}_{lane}_0", None))

    _in_cluster = False

    def end(self) -> None:
        """No CTA of a cluster ends while another reads its states."""
        if self._in_cluster:
            self.line("cluster_sync();")

    def _elements(self, bound: str | None, groups: list[tuple[Index, int]]) -> None:
        lanes = [self._lanes(group) for group, _ in groups]
        if len(lanes) > 1:  # the loads of every item before the first store
            stores = [store for store in self.program.stores if not store.by_row]
            exprs = [self.at(*lane, bound).stored(store) for several in lanes for lane in several for store in stores]
            self.writer.load(exprs, self.axes.vector)
        condition = " && ".join(filter(None, (bound, self.live_rows)))
        with self.writer.block(f"if ({condition})" if condition else ""):
            for several in lanes:
                self.store(several, bound, by_row=False)


def filled(text: str, fields: tuple[tuple[str, str, str], ...], state: str, other: str | None) -> str:
    """A rule's statement over the fields of a state and of another one."""
    for name, _, _ in fields:
        text = text.replace(f"{{{name}}}", f"{state}_{name}")
        if other is not None:
            text = text.replace(f"{{o_{name}}}", f"{other}_{name}")
    return text
