"""A PTX module as records, with every name resolved.

A name is unique in its function: what inline assembly declares in a scope of its own carries the scope's number (`%p@3`).
"""

from dataclasses import dataclass, replace
from typing import TypeAlias


class PtxError(Exception):
    """The text is not PTX, or exceeds a limit of the parser."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {what}")
        self.what = what
        self.line = line


class Unsupported(Exception):
    """Real PTX that the emulator does not handle. `place`: in the source, where an instruction is to blame that has one."""

    def __init__(self, what: str, line: int, place: "SourceLine | None" = None) -> None:
        super().__init__(f"PTX line {line}: {what} is not supported")
        self.what = what
        self.line = line
        self.place = place


@dataclass(frozen=True, slots=True)
class Register:
    """A register. `type`: as declared, such as "b32", "f64", "pred"."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """An integer constant, as written: between -2^63 and 2^64 - 1. An instruction takes as many low bits as it needs."""

    value: int


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point constant. `width`: 32 for `0f…`, 64 for `0d…` and for decimals, whatever the instruction's type."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, without its percent sign: "tid.x", "laneid"."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, function or call prototype by name, plus bytes."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target in `Function.labels`, or a table of them in `Function.branch_targets`."""

    name: str


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}`; also the parenthesised lists of a call."""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset, rest…]`. The offset of a symbol stands here, not in the symbol."""

    base: Register | Symbol | Immediate
    offset: int
    rest: "tuple[Operand, ...]"


@dataclass(frozen=True, slots=True)
class Pair:
    """`p|q`."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    operand: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that is not used."""


Operand: TypeAlias = Register | Immediate | Float | Special | Symbol | Label | Vector | Address | Pair | Negated | Sink


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A source line. `caller`: of an inlined function, the line of its call, whose own caller is the outermost call."""

    file: str
    line: int
    caller: "SourceLine | None" = None

    def __str__(self) -> str:
        own = f"{self.file.rpartition('/')[2]}:{self.line}"
        if self.caller is None:
            return own
        outermost = f" from {self.caller.caller}" if self.caller.caller else ""
        return f"{own}, called at {replace(self.caller, caller=None)}{outermost}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `index`: in its function; `line`: of the PTX text; `text`: the statement in one line.

    `parts` are the opcode's, where `::` stays inside a part: ("ld", "shared::cta", "b32").
    The operands of a call are Vector(returns), the function, Vector(arguments) and, of an indirect call, its prototype.
    """

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: Register | None
    negated: bool
    index: int
    line: int
    place: SourceLine | None
    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """Memory with a name. `space`: shared, global, const, local or param. `type`: of an element, such as "b8".

    `initial`: `size_bytes` of them where the module gives numbers. An unsized array has `size_bytes` 0.
    """

    space: str
    name: str
    type: str
    element_bytes: int
    size_bytes: int
    alignment: int
    initial: bytes | None
    external: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function with a body. `kind`: "entry" or "func".

    `registers`: name → type, in order of declaration. `variables`: those declared inside, parameters of its calls included.
    `labels`: label → index of the instruction that follows, which may be one past the last. `branch_targets`: the labels of
    each `.branchtargets` table. `directives`: the numbers of `maxntid`, `minnctapersm`, `explicitcluster` and the like.
    """

    name: str
    kind: str
    parameters: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    branch_targets: dict[str, tuple[str, ...]]
    directives: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Module:
    """A module: functions that have a body, and variables outside functions."""

    target: str
    version: tuple[int, int]
    functions: dict[str, Function]
    variables: dict[str, Variable]
