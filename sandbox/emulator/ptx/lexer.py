"""PTX text cut into statements and tokens, and how much of each thing a module may have.

The text may be hostile: patterns are possessive, so that none of them looks at a character more than a few times.
"""

import re

from cudal2_agent.sandbox.emulator.ptx.module import PtxError

MAX_CHARS = 8 * 2**20  # the largest CUTLASS kernels with line information are about 3 MiB
MAX_STATEMENT_CHARS = 2**16
NAME = r"[%$_A-Za-z][\w$]*+"
LINKAGE = r"(?:\.(?:extern|visible|weak|common)\s++)*+"
PRAGMA = r'\.pragma\s*+"[^"\n]*+"(?:\s*+,\s*+"[^"\n]*+")*+\s*+;'

_COMMENT = re.compile(r'"[^"\n]*+"|//[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+(?:\*/)?')
_SPACE = re.compile(r"\s*+", re.ASCII)
_TOKEN = re.compile(
    rf"""
    {NAME}(?:\.[xyzw](?![\w$]))?+                                    # a name, or one component of a special register
    | \.[A-Za-z_]\w*+
    | 0[fF][0-9a-fA-F]{{8}}(?![\w$]) | 0[dD][0-9a-fA-F]{{16}}(?![\w$])
    | 0[xX][0-9a-fA-F]++U?+
    | (?:\d++\.\d*+|\.\d++)(?:[eE][+-]?+\d++)?+ | \d++[eE][+-]?+\d++
    | [\w$]++                                                        # an integer, or nothing that is known
    | << | >>
    | \S
    """,
    re.ASCII | re.VERBOSE,
)


class PtxText:
    """PTX without comments, read from front to back. `line`: of the last thing taken."""

    def __init__(self, original: str) -> None:
        """Raises: PtxError for text past the limit, or a comment without end."""
        if len(original) > MAX_CHARS:
            raise PtxError(f"{len(original)} characters; the most is {MAX_CHARS}", 1)
        self.text = _COMMENT.sub(_blank, original)
        self.line = 1
        self._counted = 0
        self._position = _past_space(self.text, 0)

    @property
    def ended(self) -> bool:
        return self._position == len(self.text)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """What stands here, which the pattern must describe; what follows it stands here next. Raises: PtxError."""
        start = self._position
        self.line += self.text.count("\n", self._counted, start)
        self._counted = start
        match = pattern.match(self.text, start)
        if match is None or match.end() == start:
            raise PtxError(f"cannot read {shown(self.text[start : start + 60]) or 'the end of the text'}", self.line)
        self._position = _past_space(self.text, match.end())
        return match


def tokens(text: str, line: int) -> list[str]:
    """The tokens of a statement, or of part of it. Raises: PtxError for a statement past the limit."""
    if len(text) > MAX_STATEMENT_CHARS:
        raise PtxError(f"a statement of {len(text)} characters; the most is {MAX_STATEMENT_CHARS}", line)
    return _TOKEN.findall(text)


def initialiser_tokens(text: str) -> list[str]:
    """The tokens of a variable's declaration, which alone may be as long as the text."""
    return _TOKEN.findall(text)


def shown(text: str) -> str:
    """Text from the module as a message may carry it: short, and on one line."""
    safe = ascii(text[:60])
    return f"{safe[:60]}...'" if len(text) > 60 or len(safe) > 62 else safe if text else ""


def _past_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _blank(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith('"'):
        return text
    if text.startswith("/*") and (len(text) < 4 or not text.endswith("*/")):
        raise PtxError("a comment without end", match.string.count("\n", 0, match.start()) + 1)
    return " " + "\n" * text.count("\n")


# How much of each thing a module may have, so that a short text cannot ask for much memory or time.
MOST = {
    "statements": 2**19,
    "registers": 2**18,
    "initial values": 2**20,
    "bytes of initial values": 2**26,
}


class Quota:
    """What one module has left."""

    def __init__(self) -> None:
        self._left = dict(MOST)

    def spend(self, what: str, count: int, line: int) -> None:
        """Raises: PtxError where a module has more than it may."""
        self._left[what] -= count
        if self._left[what] < 0:
            raise PtxError(f"more than {MOST[what]} {what}", line)
