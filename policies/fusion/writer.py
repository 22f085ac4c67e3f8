"""From expressions to CUDA C++ statements; equal expressions of one scope are computed once."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.expressions import Expr, ExpressionPool
from cudal2_agent.policies.fusion.index_algebra import Index, Var
from cudal2_agent.policies.fusion.reduction_rules import OPERATIONS, start

STORED = {
    BufferElement.F16: "__half",
    BufferElement.BF16: "__nv_bfloat16",
    BufferElement.F32: "float",
    BufferElement.F64: "double",
    BufferElement.U8: "unsigned char",
    BufferElement.I32: "int",
    BufferElement.I64: "long long",
    BufferElement.BOOL: "unsigned char",
}
QUOTIENT = "({0} / {1})"
_COPIED_BYTES = (4, 8, 16)  # of a copy to shared memory
_FULLY_UNROLLED = 64  # steps of a window's loops


class StatementWriter:
    """The statements of one kernel."""

    def __init__(self, pool: ExpressionPool, indent: int = 1) -> None:
        self.lines: list[str] = []
        self._pool, self._indent = pool, indent
        self._frames: list[dict[Expr, str]] = [{}]
        self._given: list[set[Var]] = [set()]
        self._count = 0
        self._slot: Callable[[Var], str | None] | None = None
        self._saving, self._whole, self._slots = False, 0, 0
        self._kept: dict[tuple[str, Index, int], int] = {}
        self.slot_bytes = 0
        self._inverses: dict[Expr, str] = {}

    def line(self, text: str) -> None:
        self.lines.append("  " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Statements in braces, whose names end with it."""
        self.line(f"{head} {{" if head else "{")
        self._indent += 1
        self._frames.append({})
        self._given.append(set())
        yield
        self._frames.pop()
        self._given.pop()
        self._indent -= 1
        self.line("}")

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}_"  # a buffer may be called x1

    def know(self, expr: Expr, text: str) -> None:
        self._frames[-1][expr] = text

    def write_inverse(self, expr: Expr) -> None:
        """What is divided by the expression from now on is multiplied by its inverse."""
        if expr not in self._inverses:
            inverse = self.name("v")
            self.line(f"const Inverse<{expr.ctype}> {inverse} = inverse_of({self.write(expr)});")
            self._inverses[expr] = inverse

    def keep(
        self, slot: Callable[[Var], str | None] | None = None, *, save: bool = False, elements: int = 0, slots: int = 0
    ) -> None:
        """From now on `copy` saves loads of buffers of at least `elements` in shared memory, or loads take what it saved there.

        `slot`: of a loop's variable, in which of `slots` a thread saves what it reads for it; None ends this.
        `slot_bytes` is what a slot takes of all that is kept.
        """
        self._slot, self._saving, self._whole, self._slots = slot, save, elements, slots

    def _kept_at(self, loads: Sequence[Expr]) -> tuple[str, int] | None:
        """The slot of a load and the offset of its array, in bytes a slot; None for what is not kept."""
        buffer, index, element, elements, bound = loads[0].data
        if self._slot is None or elements < self._whole or bound is not None:
            return None
        slots = {each: self._slot(each) for each in index.variables() if each.name not in ("row", "column")}
        (variable, slot), *others = slots.items() or [(None, None)]
        if variable is None or slot is None or others or variable.given:
            return None
        key = buffer, index.replace({variable: Index(((Var("kept", variable.extent), 1),))}), len(loads)
        if key not in self._kept and self._saving:
            self._kept[key] = self.slot_bytes
            self.slot_bytes += max(element.bytes * len(loads), 1)
        return (slot, self._kept[key]) if key in self._kept else None

    def index(self, index: Index) -> str:
        """An index in C++, with the loaded numbers that it contains declared before."""
        for variable in sorted(index.variables(), key=str):
            if variable.given and not any(variable in names for names in self._given):
                text = self.write(self._pool.given[variable])
                self.line(f"const unsigned {variable} = (unsigned)({text});")
                self._given[-1].add(variable)
        return str(index)

    def write(self, expr: Expr) -> str:
        """The expression as a name or a literal, once its statements are written."""
        for frame in reversed(self._frames):
            if expr in frame:
                return frame[expr]
        text = self._written(expr)
        self._frames[-1][expr] = text
        return text

    def _written(self, expr: Expr) -> str:
        match expr.kind:
            case "literal":
                return str(expr.data) if not str(expr.data).startswith("-") else f"({expr.data})"
            case "index":
                return f"(long long)({self.index(expr.data)})"
            case "inside":
                return " && ".join(f"({self.index(index)}) < {size}u" for index, size in expr.data)
            case "guard":
                return self._guarded(expr)
            case "fold":
                return self._folded(expr)
            case "load":
                return self._load([expr])[0]
        if expr.data == QUOTIENT and expr.args[1] in self._inverses:
            return self._named(expr, f"divided({self.write(expr.args[0])}, {self._inverses[expr.args[1]]})")
        text = expr.data
        for at in range(len(expr.args)):
            text = text.replace(f"{{{at}}}", f"\x00{at}\x00")
        for at, each in enumerate(expr.args):
            text = text.replace(f"\x00{at}\x00", self.write(each))
        return self._named(expr, text)

    def _named(self, expr: Expr, text: str) -> str:
        name = self.name("t")
        self.line(f"const {expr.ctype} {name} = {text};")
        return name

    def _guarded(self, expr: Expr) -> str:
        condition, value, other = expr.args
        name = self.name("t")
        plain = other.kind == "literal"
        self.line(f"{expr.ctype} {name} = {self.write(other)};" if plain else f"{expr.ctype} {name};")
        with self.block(f"if ({self.write(condition)})"):
            self.line(f"{name} = {self.write(value)};")
        if not plain:
            with self.block("else"):
                self.line(f"{name} = {self.write(other)};")
        return name

    def _folded(self, expr: Expr) -> str:
        operation, variables = expr.data
        rule, name = OPERATIONS[operation], self.name("t")
        self.line(f"{expr.ctype} {name} = {start(rule.fields[0][2], expr.ctype)};")
        looped = [variable for variable in variables if variable.extent > 1]
        unroll = math.prod(variable.extent for variable in looped) <= _FULLY_UNROLLED
        self._loops(looped, lambda: self.line(rule.take.replace("{v}", name).replace("{x}", self.write(expr.args[0]))), unroll)
        return name

    def _loops(self, variables: Sequence[Var], body: Callable[[], None], unroll: bool) -> None:
        if not variables:
            with self.block(""):
                body()
            return
        first, *rest = variables
        self.line("#pragma unroll" if unroll else "#pragma unroll 1" if rest else "#pragma unroll 4")
        with self.block(f"for (unsigned {first} = 0; {first} < {first.extent}u; ++{first})"):
            self._loops(rest, body, unroll)

    def load(self, exprs: Iterable[Expr], width: int) -> None:
        """Load what the expressions read, `width` neighbours at a time where they are neighbours and aligned."""
        for group in self._neighbours(exprs, width):
            if len(group) == width > 1:
                self._load(group)

    def copy(self, exprs: Iterable[Expr], width: int) -> None:
        """Copy what is kept of what the expressions read to shared memory, while the thread goes on."""
        for group in self._neighbours(exprs, width):
            for loads in [group] if len(group) == width else [[each] for each in group]:
                buffer, index, element, *_ = loads[0].data
                size = element.bytes * len(loads)
                if size in _COPIED_BYTES and (kept := self._kept_at(loads)) is not None:
                    slot, offset = kept
                    place = f"kept_bytes + {offset * self._slots}u + ({slot}) * {size}u"
                    self.line(f"keep_async<{size}>({place}, {buffer} + ({self.index(index)}));")

    def _neighbours(self, exprs: Iterable[Expr], width: int) -> list[list[Expr]]:
        """The loads of expressions, in groups of up to `width` of one aligned place."""
        found: dict[Expr, None] = {}
        seen: set[Expr] = set()
        for expr in exprs:
            self._find(expr, found, seen)
        groups: dict[object, dict[int, Expr]] = {}
        for load in found:
            buffer, index, _, elements, bound = load.data
            aligned = elements % width == 0 and all(factor % width == 0 for _, factor in index.terms)
            base = index.constant // width * width if aligned else index.constant
            key = (buffer, index - (index.constant - base), bound, aligned)
            groups.setdefault(key, {})[index.constant - base] = load
        return [[group[at] for at in sorted(group)] for group in groups.values()]

    def _find(self, expr: Expr, found: dict[Expr, None], seen: set[Expr]) -> None:
        if expr in seen or any(expr in frame for frame in self._frames):
            return
        seen.add(expr)
        match expr.kind:
            case "load":
                found[expr] = None
                for variable in expr.data[1].variables():
                    if variable.given:
                        self._find(self._pool.given[variable], found, seen)
            case "guard" | "fold":
                return
            case _:
                for each in expr.args:
                    self._find(each, found, seen)

    def _load(self, loads: Sequence[Expr]) -> list[str]:
        """Neighbours in one load."""
        buffer, index, element, _, bound = loads[0].data
        name, width = self.name("x"), len(loads)
        kept = self._kept_at(loads)
        address, stored = f"{buffer} + ({self.index(index)})", STORED[element]
        kind = stored if width == 1 else f"Pack<{stored}, {width}>"
        source = f"*({address})" if width == 1 else f"load_pack<{width}>({address})"
        if kept is not None:
            slot, offset = kept
            source = f"reinterpret_cast<{kind}*>(kept_bytes + {offset * self._slots}u)[{slot}]"
        if bound is None:
            self.line(f"const {kind} {name} = {source};")
        else:
            self.line(f"{kind} {name}{{}};")
            self.line(f"if ({bound}) {name} = {source};")
        texts = [widened(name if width == 1 else f"{name}.v[{at}]", element) for at in range(width)]
        for each, text in zip(loads, texts, strict=True):
            self._frames[-1][each] = text
        return texts

    def store(self, buffer: str, element: BufferElement, places: Sequence[Index], values: Sequence[str]) -> None:
        """Store neighbours at once where they are aligned neighbours, else one by one."""
        width, first = len(places), places[0]
        packed = width > 1 and all(place == first + at for at, place in enumerate(places))
        if packed and first.constant % width == 0 and all(factor % width == 0 for _, factor in first.terms):
            kept = ", ".join(narrowed(value, element) for value in values)
            self.line(f"store_pack({buffer} + ({first}), Pack<{STORED[element]}, {width}>{{{{{kept}}}}});")
            return
        for place, value in zip(places, values, strict=True):
            self.line(f"{buffer}[{place}] = {narrowed(value, element)};")


def widened(text: str, element: BufferElement) -> str:
    """A stored number as it is computed with."""
    match element:
        case BufferElement.F16:
            return f"__half2float({text})"
        case BufferElement.BF16:
            return f"__bfloat162float({text})"
        case BufferElement.BOOL:
            return f"({text} != 0)"
        case BufferElement.U8:
            return f"(int)({text})"
    return text


def narrowed(text: str, element: BufferElement) -> str:
    match element:
        case BufferElement.F16:
            return f"__float2half_rn({text})"
        case BufferElement.BF16:
            return f"__float2bfloat16_rn({text})"
    return f"({STORED[element]})({text})"
