"""Expressions of one element of a value, as CUDA C++ computes it. Equal expressions of a kernel are one object."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of

Kind = Literal["load", "literal", "index", "call", "guard", "inside", "fold", "row"]
CType = Literal["float", "double", "int", "long long", "bool"]

# f16 and bf16 are stored; sums and functions of them are computed in f32.
CTYPE: dict[BufferElement, CType] = {
    BufferElement.F16: "float",
    BufferElement.BF16: "float",
    BufferElement.F32: "float",
    BufferElement.F64: "double",
    BufferElement.U8: "int",
    BufferElement.I32: "int",
    BufferElement.I64: "long long",
    BufferElement.BOOL: "bool",
}


@dataclass(frozen=True, eq=False)
class Expr:
    """One operation. `data`, by kind:

    load: (buffer, Index). literal: its text. index: an Index as a number. call: a C++ text in which {0}, {1} are the arguments.
    guard: arguments (condition, a, b); only the one that is chosen is computed. inside: ((Index, size), ...), whether
    each index is below its size. fold: (operation, variables) over the argument, in the thread itself. row: (reduction, field),
    the result of a reduction of the kernel.
    """

    kind: Kind
    ctype: CType
    args: tuple["Expr", ...] = ()
    data: Any = None


@dataclass
class ExpressionPool:
    """The expressions of one kernel. `given`: by variable, the loaded number that it stands for."""

    given: dict[Var, Expr] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], Expr] = field(default_factory=dict)
    _windows: int = 0

    def make(self, kind: Kind, ctype: CType, *args: Expr, data: Any = None) -> Expr:
        key = (kind, ctype, tuple(map(id, args)), data)
        return self._known.setdefault(key, Expr(kind, ctype, args, data))

    def call(self, text: str, ctype: CType, *args: Expr) -> Expr:
        return self.make("call", ctype, *args, data=text)

    def literal(self, value: float | str | bool, ctype: CType) -> Expr:
        return self.make("literal", ctype, data=literal(value, ctype))

    def index(self, index: Index) -> Expr:
        return self.make("index", "long long", data=index)

    def cast(self, value: Expr, ctype: CType) -> Expr:
        if value.ctype == ctype:
            return value
        return self.call("({0} != 0)" if ctype == "bool" else f"({ctype})({{0}})", ctype, value)

    def guard(self, inside: tuple[tuple[Index, int], ...], value: Expr, other: Expr) -> Expr:
        """`value` where every index is from 0 to below its size, else `other`. What always holds is left out."""
        kept = tuple((index, size) for index, size in inside if not (index.low >= 0 and index.high < size))
        return self.make("guard", value.ctype, self.make("inside", "bool", data=kept), value, other) if kept else value

    def loads(self) -> list[Expr]:
        """Every load, in the order of first use."""
        return [expr for expr in self._known.values() if expr.kind == "load"]

    def new_window(self) -> str:
        """A name that no other loop of the kernel has."""
        self._windows += 1
        return f"w{self._windows}"

    def known_inside(self, index: Index, size: int) -> Index:
        """The index where a guard has found it to be from 0 to below `size`."""
        return index if index.low >= 0 and index.high < size else self.loaded_index(self.index(index), size)

    def loaded_index(self, value: Expr, extent: int) -> Index:
        """An index that a tensor holds."""
        known = next((var for var, expr in self.given.items() if expr is value), None)
        variable = known or Var(f"g{len(self.given)}", extent, given=True)
        self.given[variable] = value
        return of(variable)


def literal(value: float | str | bool, ctype: CType) -> str:
    """A number in C++; text for those that JSON has no numbers for."""
    if isinstance(value, str):
        value = float(value.lower().replace("infinity", "inf"))
    match ctype:
        case "bool":
            return "true" if value else "false"
        case "int":
            return str(int(value))
        case "long long":
            return f"{int(value)}ll"
    value = float(value)
    if math.isnan(value):
        return "NAN_F" if ctype == "float" else "(double)NAN_F"
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        return f"{sign}INF_F" if ctype == "float" else f"({sign}(double)INF_F)"
    text = repr(value)
    return f"{text}f" if ctype == "float" else text
