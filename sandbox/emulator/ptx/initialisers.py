"""Initial values of variables as bytes."""

import functools
import struct
from collections.abc import Sequence

from cudal2_agent.sandbox.emulator.ptx.constants import constant, literal, starts_constant
from cudal2_agent.sandbox.emulator.ptx.lexer import shown
from cudal2_agent.sandbox.emulator.ptx.module import Float, Immediate, PtxError, Unsupported

_FLOATS = {"f32": ("<f", 32), "f64": ("<d", 64)}


def initial_bytes(tokens: Sequence[str], start: int, kind: str, shape: tuple[int, ...], line: int) -> tuple[bytes, int]:
    """The bytes of a variable whose value starts at a token, and the index of the token after it.

    `kind`: the type of its elements. `shape`: the dimensions of an array, outermost first; what an initialiser leaves out is 0.
    Raises: PtxError; Unsupported for addresses.
    """
    if not shape:
        return _value(tokens, start, kind, line)
    if tokens[start : start + 1] != ["{"]:
        raise PtxError("an array's initial value without braces", line)
    rows = _Rows(kind, shape, line)
    at = start
    while not rows.complete:
        if at >= len(tokens):
            raise PtxError("an initial value that does not end", line)
        at = rows.take(tokens, at)
    return bytes(rows.data), at


class _Rows:
    """Values in nested braces; the end of a row moves on to the next one, however full it is."""

    def __init__(self, kind: str, shape: tuple[int, ...], line: int) -> None:
        self._kind, self._line = kind, line
        self._row_bytes = [int(kind.partition("x")[0][1:]) // 8]
        for dimension in reversed(shape):
            self._row_bytes.insert(0, self._row_bytes[0] * dimension)
        self.data = bytearray(self._row_bytes[0])
        self._ends: list[int] = []
        self._position = 0
        self._wants_value = True
        self.complete = False

    def take(self, tokens: Sequence[str], at: int) -> int:
        """Take what stands at a token, and say where the next thing stands."""
        token = tokens[at]
        if token == "}" and self._ends:
            self._position = self._ends.pop()
            self.complete = not self._ends
            self._wants_value = False
        elif self._wants_value == (token == ","):
            raise PtxError(f"{shown(token)} in an initial value", self._line)
        elif token == ",":
            self._wants_value = True
        elif token == "{":
            self._open()
        else:
            value, end = _value(tokens, at, self._kind, self._line)
            self._put(value)
            return end
        return at + 1

    def _open(self) -> None:
        depth = len(self._ends)
        if depth + 1 == len(self._row_bytes) or self._position % self._row_bytes[depth]:
            raise PtxError("braces in an initial value that do not fit the array", self._line)
        end = self._position + self._row_bytes[depth]
        if end > len(self.data):
            raise PtxError("more initial values than the array has elements", self._line)
        self._ends.append(end)

    def _put(self, value: bytes) -> None:
        end = self._position + len(value)
        if end > self._ends[-1]:
            raise PtxError("more initial values than the array has elements", self._line)
        self.data[self._position : end] = value
        self._position = end
        self._wants_value = False


def _value(tokens: Sequence[str], start: int, kind: str, line: int) -> tuple[bytes, int]:
    token = tokens[start] if start < len(tokens) else ""
    if token.isalnum() and token[0].isdigit() and tokens[start + 1 : start + 2] in ([","], ["}"]):
        return _encoded_literal(token, kind, line), start + 1
    if token.isascii() and token and (token[0].isalpha() or token[0] in "_$%"):
        raise Unsupported(f"an address in an initial value ({shown(token)})", line)
    if not token or not starts_constant(token):
        raise PtxError(f"{shown(token) or 'nothing'} where an initial value should stand", line)
    value, at = constant(tokens, start, line)
    return _encoded(value, kind, line), at


@functools.lru_cache(maxsize=1024)  # a table of bytes has few different ones
def _encoded_literal(token: str, kind: str, line: int) -> bytes:
    return _encoded(literal(token, line), kind, line)


def _encoded(value: Immediate | Float, kind: str, line: int) -> bytes:
    if kind in ("f16", "f16x2"):
        raise Unsupported(f"an initial value of type {kind}", line)
    if kind in _FLOATS and isinstance(value, Float):
        return _rounded(value, kind, line)
    bits = int(kind[1:])
    if kind not in _FLOATS and isinstance(value, Immediate):
        return (value.value % (1 << bits)).to_bytes(bits // 8, "little")
    if kind[0] == "b" and isinstance(value, Float) and value.width == bits:
        return value.bits.to_bytes(bits // 8, "little")
    raise PtxError(f"an initial value that does not fit the type {kind}", line)


def _rounded(value: Float, kind: str, line: int) -> bytes:
    form, width = _FLOATS[kind]
    raw = value.bits.to_bytes(value.width // 8, "little")
    if value.width == width:
        return raw
    (number,) = struct.unpack("<f" if value.width == 32 else "<d", raw)
    try:
        return struct.pack(form, number)
    except OverflowError:
        raise PtxError(f"an initial value that {kind} cannot hold", line) from None
