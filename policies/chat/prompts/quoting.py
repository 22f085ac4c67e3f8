"""Text of others inside a prompt: fenced so that nothing in it ends its fence, and without what a chat template acts on.

Covered: backtick runs of any length, control and direction characters, the role marks of common chat templates.
Not covered: a model that obeys data all the same; what it then writes goes through the sandbox like any other candidate.
"""

import re

_TICKS = re.compile(r"`{3,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
# What servers may read as the end of a message when it stands in its text.
_ROLE_MARK = re.compile(r"(<)(?=[|｜]|/?(?:s|bos|eos|think|start_of_turn|end_of_turn)>|</?SYS>>)|(\[)(?=/?INST\])")


def plain(text: str) -> str:
    """The text with one kind of line end, no control characters, and role marks broken by a space."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ROLE_MARK.sub(r"\1\2 ", _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def fenced(text: str, language: str = "text") -> str:
    """The text between fences that are longer than any run of backticks in it."""
    text = plain(text).strip("\n")
    fence = "`" * max((len(run) + 1 for run in _TICKS.findall(text)), default=3)
    return f"{fence}{language}\n{text}\n{fence}"


def inline(text: str, most: int = 200) -> str:
    """The text on one line, without backticks, at most so many characters."""
    line = " ".join(plain(text).replace("`", "'").split())
    return line if len(line) <= most else line[: most - 1] + "…"
