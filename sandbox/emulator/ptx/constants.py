"""Constants: literals, and the integer expressions that inline assembly may write in place of one.

Covered: + - * / % << >> & ^ | ~ and parentheses, modulo 2^64.
Not covered: comparisons, `!`, `&&`, `||`, `?:`, casts; nor / % >> where the sign decides.
"""

import math
import re
import struct
from collections.abc import Callable, Sequence

from cudal2_agent.sandbox.emulator.ptx.lexer import shown
from cudal2_agent.sandbox.emulator.ptx.module import Float, Immediate, PtxError, Unsupported

_INTEGER = re.compile(
    r"0[xX](?P<hex>[0-9a-fA-F]{1,16})U?|0[bB](?P<binary>[01]{1,64})U?|0(?P<octal>[0-7]{1,22})U?|(?P<decimal>0|[1-9]\d{0,19})U?",
    re.ASCII,
)
_FLOAT = re.compile(
    r"0[fF](?P<single>[0-9a-fA-F]{8})|0[dD](?P<double>[0-9a-fA-F]{16})"
    r"|(?P<decimal>(?:\d{1,400}\.\d{0,400}|\.\d{1,400})(?:[eE][+-]?\d{1,9})?|\d{1,400}[eE][+-]?\d{1,9})",
    re.ASCII,
)
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_WORD = 2**64
_OPERATORS: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "|": (0, lambda a, b: a | b),
    "^": (1, lambda a, b: a ^ b),
    "&": (2, lambda a, b: a & b),
    "<<": (3, lambda a, b: a << b if 0 <= b < 64 else 0),
    ">>": (3, lambda a, b: a >> b if b < 64 else 0),
    "+": (4, lambda a, b: a + b),
    "-": (4, lambda a, b: a - b),
    "*": (5, lambda a, b: a * b),
    "/": (5, lambda a, b: a // b),
    "%": (5, lambda a, b: a % b),
}
_SIGNED = frozenset({"/", "%", ">>"})
_UNARY = frozenset("+-~")
_OTHER_OPERATORS = frozenset("<>=?&|!")


def starts_constant(token: str) -> bool:
    return token[0].isdigit() or token in _UNARY or token == "(" or (token[0] == "." and token[1:2].isdigit())


def constant(tokens: Sequence[str], start: int, line: int) -> tuple[Immediate | Float, int]:
    """The constant that starts at a token, and the index of the token after it. Raises: PtxError, Unsupported."""
    if start + 1 == len(tokens) or (start < len(tokens) and tokens[start + 1] in ",]}"):
        return literal(tokens[start], line), start + 1
    expression = _Expression(line)
    at = start
    while at < len(tokens) and expression.take(tokens[at]):
        at += 1
    return expression.result(), at


def literal(token: str, line: int) -> Immediate | Float:
    """Raises: PtxError for text that is not a number, or does not fit into 64 bits."""
    found = number(token)
    if found is None:
        raise PtxError(f"{shown(token)} is not a number of at most 64 bits", line)
    return found


def number(token: str) -> Immediate | Float | None:
    """None for text that is not a number, or does not fit into 64 bits."""
    if match := _INTEGER.fullmatch(token):
        kind = match.lastgroup or ""
        value = int(match[kind], _BASES[kind])
        if value < _WORD:
            return Immediate(value)
    elif match := _FLOAT.fullmatch(token):
        if match["decimal"] is None:
            digits = match["single"] or match["double"]
            return Float(int(digits, 16), len(digits) * 4)
        decimal = float(match["decimal"])
        if math.isfinite(decimal):
            return Float(int.from_bytes(struct.pack(">d", decimal)), 64)
    return None


class _Expression:
    """Operators stay on a stack until one of lower precedence follows, so nesting needs no recursion."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._values: list[Immediate | Float] = []
        self._waiting: list[str] = []  # binary operators, "(" and, with a space before it, unary ones
        self._open = 0  # parentheses
        self._wants_value = True

    def take(self, token: str) -> bool:
        """Whether the token is part of the expression, which it then joins."""
        return self._take_value(token) if self._wants_value else self._take_operator(token)

    def result(self) -> Immediate | Float:
        if not self._wants_value:
            self._apply_down_to(0)
        if self._wants_value or self._waiting:
            raise PtxError("a constant expression that does not end", self._line)
        return self._values[0]

    def _take_value(self, token: str) -> bool:
        if token in _UNARY:
            self._waiting.append(" " + token)
        elif token == "(":
            self._waiting.append(token)
            self._open += 1
        elif token[0].isdigit() or token[0] == "." and token[1:2].isdigit():
            self._values.append(literal(token, self._line))
            self._wants_value = False
        elif token in _OTHER_OPERATORS or token[0] == ".":
            raise Unsupported(f"{shown(token)} in a constant expression", self._line)
        else:
            return False
        return True

    def _take_operator(self, token: str) -> bool:
        if token in _OPERATORS:
            self._apply_down_to(_OPERATORS[token][0])
            self._waiting.append(token)
            self._wants_value = True
        elif token == ")" and self._open:
            self._apply_down_to(0)
            self._open -= 1
            self._waiting.pop()
        elif token in _OTHER_OPERATORS:
            raise Unsupported(f"{shown(token)} in a constant expression", self._line)
        else:
            return False
        return True

    def _apply_down_to(self, priority: int) -> None:
        """Apply the operators since the last open parenthesis that have at least this precedence."""
        while self._waiting and self._waiting[-1] != "(":
            operator = self._waiting[-1]
            if operator in _OPERATORS and _OPERATORS[operator][0] < priority:
                return
            self._waiting.pop()
            last = self._values.pop()
            self._values.append(self._unary(operator[1], last) if operator[0] == " " else self._binary(operator, last))

    def _unary(self, operator: str, value: Immediate | Float) -> Immediate | Float:
        if isinstance(value, Immediate):
            return _wrapped({"+": value.value, "-": -value.value, "~": ~value.value}[operator])
        if operator == "~":
            raise PtxError("~ of a floating-point constant", self._line)
        return value if operator == "+" else Float(value.bits ^ 1 << value.width - 1, value.width)

    def _binary(self, operator: str, right: Immediate | Float) -> Immediate:
        left = self._values.pop()
        if not (isinstance(left, Immediate) and isinstance(right, Immediate)):
            raise Unsupported(f"{operator} of floating-point constants", self._line)
        if operator in _SIGNED and not (0 <= left.value < _WORD // 2 and 0 <= right.value < _WORD // 2):
            raise Unsupported(f"{operator} of constants that are not between 0 and 2^63 - 1", self._line)
        if operator in "/%" and right.value == 0:
            raise PtxError(f"{operator} by zero", self._line)
        return _wrapped(_OPERATORS[operator][1](left.value, right.value))


def _wrapped(value: int) -> Immediate:
    return Immediate(value if -_WORD // 2 <= value < _WORD else value % _WORD)
