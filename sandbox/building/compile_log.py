"""A compiler's log as it may be shown: messages about the source and the include roots, nothing of other files.

Covered: messages about other files with the lines that they quote, in the formats of NVRTC, nvcc, its front end and GCC;
paths outside the roots; why a file could not be opened, which reveals whether it exists.
Not covered: a compiler that quotes a file in another format; the jail keeps it from reading the file.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ELSEWHERE = "(a file outside the include folders)"
_HEAD_CHARS, _TAIL_CHARS, _MESSAGE_CHARS = 48_000, 16_000, 300
_ERROR_LINE = re.compile(r"^(?!.*\bwarning\b).*\b(?:fatal|error)(?: #[\w-]+)?\s*:", re.IGNORECASE)
_SEVERITY = r"(?:catastrophic |fatal |internal )?(?:error|warning|remark|note)"
_PLACES = (
    re.compile(rf'^"?(?P<file>[^"()\n]+?)"?(?:\(\d+(?:,\d+)?\)|, line \d+): {_SEVERITY}\b', re.IGNORECASE),
    re.compile(rf"^(?P<file>[^:\n]+):\d+(?::\d+)?: {_SEVERITY}\b", re.IGNORECASE),
    re.compile(r"^(?:In file included |\s+)from (?P<file>[^:\n]+):\d+"),
    re.compile(r"^(?P<file>[^:\n]+): In "),
)
_WHY_NOT_OPENED = re.compile(
    r'(cannot open source file "[^"\n]*"): [^\n]*|: (?:Permission denied|No such file or directory)$', re.M
)
_PATH = re.compile(r"(?<![\w.+/@-])/[\w.+@-]+(?:/[\w.+@-]+)+/?")


def shown_log(text: str, source: str, scratch: Path, roots: Iterable[Path]) -> str:
    """A log without the header folders in its paths, and without anything that belongs to other files."""
    text = text.replace("\0", "")  # NVRTC leaves one between its own words and those of ptxas
    folders = sorted({str(form) for root in (*roots, scratch) for form in (root, root.resolve())}, key=len, reverse=True)
    text = _WHY_NOT_OPENED.sub(lambda found: found[1] or "", "\n".join(_kept(text.split("\n"), scratch, folders)))
    for folder in folders:
        text = text.replace(f"{folder}/", "")
    return _PATH.sub(lambda found: found[0] if found[0] in source else ELSEWHERE, text)


def first_error(log: str) -> str:
    """The first line of a compiler's log that names an error, else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = (line for line in lines if _ERROR_LINE.match(line))
    return next(errors, lines[0] if lines else "the compiler gave no reason")[:_MESSAGE_CHARS]


def shortened(log: str) -> str:
    """A log's beginning and end."""
    if len(log) <= _HEAD_CHARS + _TAIL_CHARS:
        return log
    left_out = len(log) - _HEAD_CHARS - _TAIL_CHARS
    return f"{log[:_HEAD_CHARS]}\n[{left_out} characters left out]\n{log[-_TAIL_CHARS:]}"


def _kept(lines: Sequence[str], scratch: Path, folders: Sequence[str]) -> Iterator[str]:
    """The lines without messages about other files. A message ends at the next file position or empty line."""
    dropping = False
    for line in lines:
        place = next((found for form in _PLACES if (found := form.match(line))), None)
        if place is not None:
            dropping = not _inside(place["file"], scratch, folders)
            if dropping:
                yield f"{ELSEWHERE}: {'error: ' if _ERROR_LINE.match(line) else ''}not shown"
        elif not line.strip():
            dropping = False
        if not dropping:
            yield line


def _inside(file: str, scratch: Path, folders: Sequence[str]) -> bool:
    path = os.path.normpath(os.path.join(scratch, file.strip()))
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
