"""The one filter between this product's text and a terminal: no control character of a stranger gets through.

Covered: C0 and C1 controls and so every escape sequence, carriage returns within a line, controls of the writing direction,
line separators of Unicode, half surrogates. Each is written as JSON escapes it, so that a JSON answer means the same as before.
Not covered: letters that look alike.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

# A carriage return begins what a progress bar writes, and ends a line of a file of Windows.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|(?<=.)\r(?!\n)", re.DOTALL
)


def plain(text: str) -> str:
    """The text as a terminal may have it."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _PlainStream:
    """A text stream that filters what is written. Rich writes to `rich_proxied_file`: see `plain_console.py`."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(plain(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def plain_streams(out: TextIO, error: TextIO) -> Iterator[None]:
    """Within this context, everything that is printed is filtered."""
    with redirect_stdout(_PlainStream(out)), redirect_stderr(_PlainStream(error)):
        yield
