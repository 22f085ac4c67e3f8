"""Declarations of variables, parameters and registers."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.ptx.constants import constant
from cudal2_agent.sandbox.emulator.ptx.initialisers import initial_bytes
from cudal2_agent.sandbox.emulator.ptx.lexer import Quota, initialiser_tokens, shown, tokens
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, PtxError, Register, Unsupported, Variable

MAX_VARIABLE_BYTES = 2**32
MAX_DIMENSIONS = 8
_MAX_RANGE_NAME_CHARS = 256

TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 16,
    "f16": 2,
    "f16x2": 4,
    "f32": 4,
    "f64": 8,
}
_REGISTER_TYPES = frozenset(TYPE_BYTES) | {"pred"}
_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
_COUNT = re.compile(r"[0-9]{1,9}")
_SPACES = frozenset({".global", ".const", ".shared", ".local", ".param", ".generic"})


def variables(text: str, space: str, line: int, quota: Quota, *, external: bool = False) -> Iterator[Variable]:
    """What stands after the space of a declaration: `.align 4 .b8 table[16] = {…}, other`. Raises: PtxError, Unsupported."""
    yield from _Declaration(initialiser_tokens(text), space, line, quota, external).all()


def parameters(
    text: str | None, line: int, quota: Quota, *, any_form: bool = False
) -> tuple[tuple[Variable, ...], tuple[Register, ...]]:
    """The parameters between a function's parentheses, in memory and, in `any_form`, in registers.

    Raises: PtxError, Unsupported.
    """
    found: list[Variable] = []
    inside: list[Register] = []
    for piece in (text or "").split(","):
        declared = tokens(piece, line)
        if not declared and not found and "," not in (text or ""):
            return (), ()
        if declared[:1] == [".reg"] and any_form:
            kind, names = registers(piece.replace(".reg", "", 1), line, quota, any_form=True)
            inside += [Register(name, kind) for name in names]
            continue
        if declared[:1] == [".reg"]:
            raise Unsupported("a parameter in a register", line)
        if declared[:1] != [".param"]:
            raise PtxError(f"{shown(piece.strip())} is not a parameter", line)
        found += _Declaration(declared[1:], "param", line, quota, external=False).all()
    return tuple(found), tuple(inside)


def registers(text: str, line: int, quota: Quota, *, any_form: bool = False) -> tuple[str, list[str]]:
    """What stands after `.reg`, `.b32 %r<9>, %q`: the type and the names. Raises: PtxError, Unsupported."""
    kind, *rest = tokens(text, line) or [""]
    if kind in _VECTORS and any_form and rest:
        kind, *rest = rest
    if kind in _VECTORS:
        raise Unsupported(f"a register of type {kind}", line)
    if kind[1:] not in _REGISTER_TYPES or not kind.startswith("."):
        raise PtxError(f"{shown(kind)} is not a type of register", line)
    if not rest:
        raise PtxError("registers without a name", line)
    names: list[str] = []
    at = 0
    while at < len(rest):
        name, at = _name(rest, at, line), at + 1
        if rest[at : at + 1] == ["<"]:
            count = _count(rest[at : at + 3], line)
            quota.spend("registers", count, line)
            if len(name) > _MAX_RANGE_NAME_CHARS:
                raise PtxError(
                    f"a name of {len(name)} characters for many registers; the most is {_MAX_RANGE_NAME_CHARS}", line
                )
            names += [f"{name}{i}" for i in range(count)]
            at += 3
        else:
            quota.spend("registers", 1, line)
            names.append(name)
        at = _separated(rest, at, line)
    return kind[1:], names


def _count(bounds: Sequence[str], line: int) -> int:
    """The number of registers that `<9>` names."""
    if len(bounds) == 3 and bounds[2] == ">" and _COUNT.fullmatch(bounds[1]):
        return int(bounds[1])
    raise PtxError(f"{shown(' '.join(bounds))} is not a number of registers", line)


def _name(rest: Sequence[str], at: int, line: int) -> str:
    token = rest[at] if at < len(rest) else ""
    if not token or not (token[0].isalpha() or token[0] in "%$_") or not token.isascii() or "." in token:
        raise PtxError(f"{shown(token) or 'nothing'} where a name should stand", line)
    return token


def _separated(rest: Sequence[str], at: int, line: int) -> int:
    """Where the next name starts: after a comma, or at the end."""
    if at == len(rest):
        return at
    if rest[at] != "," or at + 1 == len(rest):
        raise PtxError(f"{shown(rest[at])} in a declaration", line)
    return at + 1


@dataclass
class _Declaration:
    """Reads one declaration; a position moves over its tokens."""

    tokens: list[str]
    space: str
    line: int
    quota: Quota
    external: bool
    at: int = 0
    alignment: int | None = None
    vector: int = 1
    type: str = ""

    def all(self) -> Iterator[Variable]:
        while self.at < len(self.tokens) and self.tokens[self.at].startswith("."):
            self._attribute(self.tokens[self.at])
        if not self.type:
            raise PtxError("a declaration without a type", self.line)
        yield self._declarator()
        while self.at < len(self.tokens):
            self.at = _separated(self.tokens, self.at, self.line)
            yield self._declarator()

    def _attribute(self, token: str) -> None:
        self.at += 1
        if token == ".align":
            self.alignment = self._power_of_two()
        elif token in _VECTORS:
            self.vector = _VECTORS[token]
        elif token == ".ptr":
            self._skip_pointee()
        elif token == ".attribute":
            raise Unsupported("a variable with an attribute", self.line)
        elif token[1:] in TYPE_BYTES:
            self.type = token[1:]
        else:
            raise Unsupported(f"a variable of type {shown(token)}", self.line)

    def _skip_pointee(self) -> None:
        """`.ptr .global .align 16` says what a parameter points to, not how it is kept."""
        if self.tokens[self.at : self.at + 1] and self.tokens[self.at] in _SPACES:
            self.at += 1
        if self.tokens[self.at : self.at + 1] == [".align"]:
            self.at += 1
            self._power_of_two()

    def _power_of_two(self) -> int:
        value = self._integer()
        if value <= 0 or value & value - 1:
            raise PtxError(f"an alignment of {value}", self.line)
        return value

    def _integer(self) -> int:
        if self.at >= len(self.tokens):
            raise PtxError("a declaration that does not end", self.line)
        value, self.at = constant(self.tokens, self.at, self.line)
        if not isinstance(value, Immediate):
            raise PtxError("a floating-point number where an integer should stand", self.line)
        return value.value

    def _declarator(self) -> Variable:
        name = _name(self.tokens, self.at, self.line)
        self.at += 1
        dimensions = self._dimensions()
        size = TYPE_BYTES[self.type] * self.vector
        natural = size
        for dimension in dimensions:
            size *= dimension
            if size > MAX_VARIABLE_BYTES:
                raise PtxError(f"{shown(name)} is larger than {MAX_VARIABLE_BYTES} bytes", self.line)
        return Variable(
            space=self.space,
            name=name,
            type=self.type,
            element_bytes=TYPE_BYTES[self.type],
            size_bytes=size,
            alignment=self.alignment or natural,
            initial=self._initial(name, dimensions),
            external=self.external,
        )

    def _dimensions(self) -> tuple[int, ...]:
        """Sizes of an array, outermost first; an unsized array has 0."""
        found: list[int] = []
        while self.tokens[self.at : self.at + 1] == ["["]:
            self.at += 1
            found.append(0 if self.tokens[self.at : self.at + 1] == ["]"] else self._integer())
            if self.tokens[self.at : self.at + 1] != ["]"] or found[-1] < 0 or len(found) > MAX_DIMENSIONS:
                raise PtxError("an array whose size cannot be read", self.line)
            self.at += 1
        return tuple(found)

    def _initial(self, name: str, dimensions: tuple[int, ...]) -> bytes | None:
        if self.tokens[self.at : self.at + 1] != ["="]:
            return None
        if 0 in dimensions:
            raise Unsupported(f"{shown(name)}, an array whose size its initialiser gives,", self.line)
        shape = dimensions if self.vector == 1 else (*dimensions, self.vector)
        self.quota.spend("initial values", self.tokens.count(","), self.line)
        self.quota.spend("bytes of initial values", math.prod(shape) * TYPE_BYTES[self.type], self.line)
        data, self.at = initial_bytes(self.tokens, self.at + 1, self.type, shape, self.line)
        return data
