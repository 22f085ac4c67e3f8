"""Prepares C++ for the grammar: blanks directives and decoration, and keeps every byte and line in place.

Covered: directives, macros that stand for attributes, launch bounds. All branches of a conditional are kept if each is
complete by itself, else only the first. Not covered: macros with arguments that expand to part of a declaration.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass, field

_BLANK = bytes(byte if byte == 0x0A else 0x20 for byte in range(256))

_DECORATION = re.compile(
    rb"\b(?:(?:CUTE|CUTLASS)_(?:HOST_DEVICE|DEVICE|HOST|HOST_RTC|GLOBAL|GCC_UNREACHABLE|UNROLL|NO_UNROLL|LAMBDA_FUNC_INLINE"
    rb"|PRAGMA_\w+|CONSTEXPR_IF_CXX17|FORCEINLINE|RESTRICT|DEPRECATED)\b(?:\(\))?"
    rb"|(?:CUTE|CUTLASS)_(?:INLINE_CONSTANT|STATIC_ASSERT(?:_V)?)\b"
    rb"|__grid_constant__|__forceinline__|__noinline__|__host__|__device__|__restrict__"
    rb"|typename(?=\s+(?:::\s*)?\w+\s*(?:<|::))|(?<=::)template\b"  # these only mark a dependent name as a type
    rb"|(?:__launch_bounds__|__cluster_dims__|__align__|alignas|CUTE_ALIGNAS|CUTLASS_ALIGNAS|ALIGNAS)"
    rb"\s*\([^()]*(?:\([^()]*\)[^()]*)*\))"
)
_STANDS_FOR = {
    b"CUTE_INLINE_CONSTANT": b"static constexpr    ",
    b"CUTLASS_INLINE_CONSTANT": b"static constexpr       ",
    b"CUTE_STATIC_ASSERT": b"static_assert     ",
    b"CUTE_STATIC_ASSERT_V": b"static_assert       ",
    b"CUTLASS_STATIC_ASSERT": b"static_assert        ",
}
_MACRO_LINE = re.compile(rb"^[ \t]*[A-Z][A-Z0-9_]{4,}\((?:[^()\n]|\([^()\n]*\))*\)[ \t]*;?[ \t]*$(?!\s*[{:])", re.MULTILINE)
_DIRECTIVE = re.compile(rb"^[ \t]*#[ \t]*(\w*)((?:[^\\\n]+|\\\n|\\.)*)", re.MULTILINE)
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MACRO = re.compile(rb"[ \t]+(\w+)(\([^()]*\))?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro with a body. Lines count from 1, inclusive."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class _Conditional:
    """An open `#if`: the start and end of its branches. `never`: it is `#if 0`."""

    never: bool
    start: int
    branches: list[tuple[int, int]] = field(default_factory=list)

    def close(self, end: int, start: int) -> None:
        self.branches.append((self.start, end))
        self.start = start


def blanked(data: bytes) -> tuple[bytes, list[Macro]]:
    """The text with spaces in place of what the grammar cannot parse, and the macros that it defines."""
    buffer = bytearray(_MACRO_LINE.sub(_spaces, _DECORATION.sub(_replace_decoration, data)))
    macros: list[Macro] = []
    open_: list[_Conditional] = []
    line, at = 1, 0
    for match in _directives(data):
        start, end = match.span()
        word = match[1]
        line += data.count(b"\n", at, start)
        at = start
        _blank(buffer, start, end)
        if word == b"define":
            macros.extend(_macro(match, line))
        elif word in (b"if", b"ifdef", b"ifndef"):
            open_.append(_Conditional(word == b"if" and match[2].strip() == b"0", end))
        elif word in (b"else", b"elif") and open_:
            open_[-1].close(start, end)
        elif word == b"endif" and open_:
            closed = open_.pop()
            closed.close(start, end)
            _choose(buffer, closed)
    return bytes(buffer), macros


def _replace_decoration(match: re.Match[bytes]) -> bytes:
    return _STANDS_FOR.get(match[0]) or _spaces(match)


def _spaces(match: re.Match[bytes]) -> bytes:
    return match[0].translate(_BLANK)


def _directives(data: bytes) -> list[re.Match[bytes]]:
    """Preprocessor lines with their continuations, without those inside comments."""
    found = list(_DIRECTIVE.finditer(data))
    if not found:
        return found
    comments = [match.span() for match in _COMMENT.finditer(data) if match[0].startswith(b"/*") and b"#" in match[0]]
    starts = [start for start, _ in comments]

    def commented(at: int) -> bool:
        before = bisect_left(starts, at) - 1
        return before >= 0 and at < comments[before][1]

    return [match for match in found if not commented(match.start())]


def _macro(match: re.Match[bytes], line: int) -> list[Macro]:
    parts = _MACRO.fullmatch(match[2])
    if parts is None or not parts[3].strip():
        return []  # an include guard or a switch
    return [Macro(parts[1].decode("utf-8", "replace"), line, line + match[0].count(b"\n"))]


def _choose(buffer: bytearray, conditional: _Conditional) -> None:
    """Blank the branches that cannot be parsed together with the others."""
    branches = conditional.branches
    if conditional.never:
        _blank(buffer, *branches[0])
        branches = branches[1:]
    if len(branches) > 1 and not all(_whole(bytes(buffer[start:end])) for start, end in branches):
        for start, end in branches[1:]:
            _blank(buffer, start, end)


def _whole(branch: bytes) -> bool:
    code = _COMMENT.sub(b"", branch).strip()
    return not code or (code.endswith((b";", b"}")) and code.count(b"{") == code.count(b"}"))


def _blank(buffer: bytearray, start: int, end: int) -> None:
    buffer[start:end] = buffer[start:end].translate(_BLANK)
