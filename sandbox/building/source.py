"""C++ source as the static check reads it: comments and literals taken apart, preprocessing directives found.

Covered: line splices, both kinds of comment, strings, characters, raw strings, digraphs, trigraphs; time linear in the size,
whatever the text.
Not covered: macro expansion. What a macro may hide is looked for again in the compiled code (`ptx.py`).
"""

import re
from dataclasses import dataclass
from functools import cached_property

_SPLICE = re.compile(r"\\\n")
# What is left open runs to the end of the text, so that no part is scanned twice.
_TOKEN = re.compile(
    r"""
      (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\((?P<raw_text>.*?)(?:\)(?P=delimiter)"|\Z))
    | (?P<string>(?:u8|[uUL])?"(?P<text>(?:\\.|[^"\\\n])*+)")
    | (?P<character>'(?:\\.|[^'\\\n]){1,8}')
    | (?P<comment>//[^\n]*|/\*(?:.*?\*/|.*\Z))
    | (?P<number>\.?\d(?:'?[\w.]|[eEpP][+-])*+)
    | (?P<word>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
_HASH = r"(?:\#|%:|\?\?=)[^\S\n]*+"
# Looked for everywhere, inside comments and strings too: no confusion about where those end can hide an inclusion.
# A comment right after the sign counts as one, because what follows it may.
_FILE_DIRECTIVE = re.compile(rf"{_HASH}(?P<name>include_next|include|import|embed|/\*)(?P<rest>[^\n]*)")
_DIRECTIVE = re.compile(rf"^[^\S\n]*+{_HASH}(?P<name>\w*+)(?P<rest>[^\n]*)", re.MULTILINE)


@dataclass(frozen=True)
class Directive:
    """`position`: where its name stands in the spliced text."""

    name: str
    rest: str
    position: int


@dataclass(frozen=True)
class CppSource:
    """One source. Lines are counted in the original text."""

    original: str

    @cached_property
    def spliced(self) -> str:
        """The text with lines that end in a backslash joined, as the compiler joins them."""
        return _SPLICE.sub("", self.original)

    @cached_property
    def code(self) -> str:
        """The text with comments and the contents of literals blanked; every other character keeps its place."""
        return _TOKEN.sub(_blank, self.spliced)

    @cached_property
    def strings(self) -> str:
        """The contents of all string literals, neighbours joined as the compiler joins them, one group a line."""
        groups: list[list[str]] = []
        end = -1
        for match in _TOKEN.finditer(self.spliced):
            text = match["text"] if match["raw"] is None else match["raw_text"]
            if text is None:
                continue
            if groups and not self.code[end : match.start()].strip():
                groups[-1].append(text)
            else:
                groups.append([text])
            end = match.end()
        return "\n".join("".join(group) for group in groups)

    @cached_property
    def file_directives(self) -> tuple[Directive, ...]:
        """Everything that could name a file to the preprocessor, wherever it stands."""
        return tuple(_directive(match) for match in _FILE_DIRECTIVE.finditer(self.spliced))

    @cached_property
    def directives(self) -> tuple[Directive, ...]:
        """The preprocessing directives."""
        return tuple(_directive(match) for match in _DIRECTIVE.finditer(self.code))

    def line_of(self, position: int) -> int:
        """Line in the original text of a position in the spliced one."""
        line = 1 + self.spliced.count("\n", 0, position)
        for splices, match in enumerate(_SPLICE.finditer(self.original)):
            if match.start() - 2 * splices > position:
                break
            line += 1
        return line


def _directive(match: re.Match[str]) -> Directive:
    return Directive(match["name"], match["rest"].strip(), match.start("name"))


def _blank(match: re.Match[str]) -> str:
    text = match[0]
    if match["word"] is not None or match["number"] is not None:
        return text
    if match["comment"] is not None:
        return _spaces(text)
    opening = text.index("'" if match["character"] is not None else '"') + 1
    return text[:opening] + _spaces(text[opening:-1]) + text[-1]


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
