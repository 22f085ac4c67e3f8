"""Operands of an instruction, with their names resolved. The grammar is two deep, so nothing here recurses."""

import re

from cudal2_agent.sandbox.emulator.ptx.constants import constant, number, starts_constant
from cudal2_agent.sandbox.emulator.ptx.lexer import shown, tokens
from cudal2_agent.sandbox.emulator.ptx.module import (
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    PtxError,
    Register,
    Sink,
    Symbol,
    Unsupported,
    Vector,
)
from cudal2_agent.sandbox.emulator.ptx.scopes import NameScope

MAX_OPERANDS = 64
MAX_VECTOR = 256  # the longest of an instruction is 128 registers
_FIRST_OF_NAME = frozenset("%$_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SELECTOR = re.compile(r"\.[bh][0-3]+")
_CLOSING = {"{": "}", "(": ")"}


def operands(text: str, scope: NameScope, line: int, *, call: bool = False) -> tuple[Operand, ...]:
    """The operands written in a text; of a call as `Instruction` wants them. Raises: PtxError, Unsupported."""
    if text.isspace() or not text:
        found: list[Operand] = []
    elif (plain := _plain(text, scope)) is not None:
        found = plain
    else:
        found = _Reader(text, scope, line).all(call=call)
    return tuple(_call(found, line) if call else found)


def _plain(text: str, scope: NameScope) -> list[Operand] | None:
    """Operands that are all names or numbers; most instructions have no other."""
    found: list[Operand] = []
    for piece in text.split(","):
        word = piece.strip()
        operand = scope.find(word) or number(word)
        if operand is None:
            return None
        found.append(operand)
    return found if len(found) <= MAX_OPERANDS else None


def _call(found: list[Operand], line: int) -> list[Operand]:
    """`(returns), function, (arguments), prototype` with the lists that a call leaves out."""
    if found and not isinstance(found[0], Vector):
        found = [Vector(()), *found]
    if len(found) == 2:
        found = [*found, Vector(())]
    returns, function, arguments, *prototype = found if len(found) in (3, 4) else (None, None, None)
    lists = isinstance(returns, Vector) and isinstance(arguments, Vector)
    if not lists or not isinstance(function, Symbol | Register) or not all(isinstance(name, Symbol) for name in prototype):
        raise PtxError("a call that is not (returns), function, (arguments), prototype", line)
    return found


class _Reader:
    """Reads the operands of one statement from its tokens."""

    def __init__(self, text: str, scope: NameScope, line: int) -> None:
        self._tokens = tokens(text, line)
        self._at = 0
        self._scope = scope
        self._line = line

    def all(self, *, call: bool) -> list[Operand]:
        found = [self._operand(call=call)]
        while self._at < len(self._tokens):
            self._expect(",")
            found.append(self._operand(call=call))
            if len(found) > MAX_OPERANDS:
                raise PtxError(f"more than {MAX_OPERANDS} operands", self._line)
        return found

    def _operand(self, *, call: bool = False) -> Operand:
        token = self._peek()
        if token == "[":
            return self._address()
        if token == "{" or call and token == "(":
            return self._vector(token)
        if token == "!":
            self._at += 1
            if starts_constant(self._peek()):
                raise Unsupported("'!' in a constant expression", self._line)
            return Negated(self._scope.register(self._take(), self._line))
        first = self._atom()
        if self._scope.any_form and _SELECTOR.fullmatch(self._peek_or_end()):
            self._at += 1
        if self._at < len(self._tokens) and self._tokens[self._at] == "|" and isinstance(first, Register | Sink):
            self._at += 1
            return Pair(first, self._atom())
        return first

    def _atom(self) -> Operand:
        """A constant, or what a name means, plus bytes where it means a symbol."""
        token = self._peek()
        if token[0] not in _FIRST_OF_NAME:
            return self._constant()
        self._at += 1
        operand = self._scope.operand(token, self._line)
        if isinstance(operand, Symbol) and self._peek_or_end() == "+":
            return Symbol(operand.name, self._offset())
        return operand

    def _constant(self) -> Operand:
        if not starts_constant(self._peek()):
            raise PtxError(f"{shown(self._peek())} where an operand should stand", self._line)
        value, self._at = constant(self._tokens, self._at, self._line)
        return value

    def _vector(self, opening: str) -> Vector:
        self._at += 1
        closing = _CLOSING[opening]
        if (names := self._names_before(closing)) is not None:
            return names
        items: list[Operand] = []
        while self._peek() != closing:
            if items:
                self._expect(",")
            items.append(self._atom())
            if len(items) > MAX_VECTOR:
                raise PtxError(f"more than {MAX_VECTOR} items in a vector", self._line)
        if opening == "{" and not items:
            raise PtxError("an empty vector", self._line)
        self._at += 1
        return Vector(tuple(items))

    def _names_before(self, closing: str) -> Vector | None:
        """A vector whose items are all names without an offset, as most are; what follows it is read next."""
        try:
            end = self._tokens.index(closing, self._at)
        except ValueError:
            return None
        names, commas = self._tokens[self._at : end : 2], self._tokens[self._at + 1 : end : 2]
        items = [operand for name in names if (operand := self._scope.find(name)) is not None]
        separated = len(commas) == len(names) - 1 == commas.count(",")
        if not separated or len(items) < len(names) or len(names) > MAX_VECTOR:
            return None
        self._at = end + 1
        return Vector(tuple(items))

    def _address(self) -> Address:
        self._at += 1
        base, offset = self._atom(), 0
        rest: list[Operand] = []
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name, 0), base.offset
        elif isinstance(base, Register) and self._peek() == "+":
            offset = self._offset()
        if not isinstance(base, Register | Symbol | Immediate):
            raise PtxError("an address that starts with neither a register, a symbol nor a number", self._line)
        while self._peek() != "]":
            self._expect(",")
            token = self._peek()
            rest.append(self._vector(token) if token == "{" else self._atom())
            if len(rest) > MAX_OPERANDS:
                raise PtxError(f"more than {MAX_OPERANDS} operands in an address", self._line)
        self._at += 1
        return Address(base, offset, tuple(rest))

    def _offset(self) -> int:
        value, self._at = constant(self._tokens, self._at, self._line)
        if not isinstance(value, Immediate):
            raise PtxError("an offset that is not an integer", self._line)
        return value.value

    def _expect(self, token: str) -> None:
        found = self._take()
        if found == token:
            return
        if _SELECTOR.fullmatch(found):
            raise Unsupported(f"selector {shown(found)}", self._line)
        raise PtxError(f"{shown(found)} where {token!r} should stand", self._line)

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _peek(self) -> str:
        if self._at >= len(self._tokens):
            raise PtxError("an instruction that does not end", self._line)
        return self._tokens[self._at]

    def _peek_or_end(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""
