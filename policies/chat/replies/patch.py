"""A patch in a reply: hunks of a unified diff, or pairs of SEARCH and REPLACE, against a kernel that the prompt shows.

A hunk applies where its old lines stand in the kernel as consecutive lines, exactly once. Every hunk is matched against the
kernel as shown, never against the result of another. The line numbers of a diff are not read, since models miscount. Line
ends and blanks at the end of a line are ignored, and unchanged lines stay as the kernel has them.
Not covered: patches of several files, renames, binary patches.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from cudal2_agent.policies.chat.prompts.quoting import plain
from cudal2_agent.policies.chat.replies.fenced_blocks import FencedBlock, Malformed

MAX_CHARS = 512 * 1024  # of all blocks; a kernel file has at most 256 KiB
_LANGUAGES = frozenset({"diff", "patch", "udiff"})
_SEARCH = re.compile(r"^<{5,9} ?SEARCH[ \t\r]*$", re.MULTILINE)
_DIVIDER = re.compile(r"={5,9}\s*")
_REPLACE = re.compile(r">{5,9} ?REPLACE\s*")
_HUNK = re.compile(r"^@@.*$", re.MULTILINE)
_CHANGE = re.compile(r"^[+-]", re.MULTILINE)
_GIT_LINE = re.compile(r"(?:diff |index |old mode |new mode |new file |deleted file |similarity |rename )")
_NAME = re.compile(r"[\w./+#*` -]{1,100}:?")
_CANDIDATE_ID = re.compile(r"[0-9a-f]{8,16}")
_LEFT_OUT = re.compile(r"\[… \d+ lines, \d+ characters left out …\]")
_SHOWN_CHARS = 160
_SHOWN_PLACES = 3
_COMMON = 32  # lines that occur more often say nothing about where a hunk belongs

LineKind = Literal[" ", "-", "+"]


@dataclass(frozen=True)
class Hunk:
    """A part of a patch: its lines, each with its kind (kept, removed, added). `name`: as messages call it."""

    name: str
    lines: tuple[tuple[LineKind, str], ...]

    @property
    def old(self) -> list[str]:
        """The lines that must stand in the kernel."""
        return [text for kind, text in self.lines if kind != "+"]


@dataclass(frozen=True)
class Patch:
    """`files`: the distinct names that the patch gives to what it changes; empty where it gives none."""

    files: tuple[str, ...]
    hunks: tuple[Hunk, ...]
    note: str = ""


@dataclass
class _Draft:
    """A patch as it is read."""

    files: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)
    lines: list[tuple[LineKind, str]] = field(default_factory=list)

    def name_file(self, name: str) -> None:
        if name and name not in self.files:
            self.files.append(name)

    def end_hunk(self) -> None:
        while self.lines and self.lines[-1] == (" ", ""):
            self.lines.pop()  # blank lines between hunks, or before the closing fence
        if self.lines:
            self.hunks.append(Hunk(f"hunk {len(self.hunks) + 1}", tuple(self.lines)))
        self.lines = []


class _BrokenPatch(Exception):
    """A block that is not a patch. The message is the reason."""


def is_patch(block: FencedBlock) -> bool:
    text = block.text
    if block.language in _LANGUAGES:
        return True
    pairs = "SEARCH" in text and _SEARCH.search(text) is not None
    return pairs or ("@@" in text and _HUNK.search(text) is not None and _CHANGE.search(text) is not None)


def read_patch(blocks: Sequence[FencedBlock], note: str) -> Patch | Malformed:
    """The patch that all blocks make together."""
    characters = sum(len(block.text) for block in blocks)
    if characters > MAX_CHARS:
        return Malformed(f"the patch has {characters} characters of at most {MAX_CHARS}; give the whole file instead")
    draft = _Draft()
    try:
        for block in blocks:
            _read_pairs(block.text, draft) if _SEARCH.search(block.text) else _read_diff(block.text, draft)
    except _BrokenPatch as exc:
        return Malformed(str(exc))
    if not draft.hunks:
        return Malformed("the patch has no hunk: it removes and adds nothing")
    if len(draft.files) > 1:
        return Malformed(
            f"the patch changes {len(draft.files)} files ({_quoted(', '.join(draft.files))}); a kernel is one file"
        )
    return Patch(tuple(draft.files), tuple(draft.hunks), note)


def choose_base(patch: Patch, bases: Mapping[str, str]) -> str | Malformed:
    """The name of the kernel that a patch is for. `bases`: sources by name; a patch without a known name is for the first."""
    if not bases:
        return Malformed("there is no kernel to patch yet; give the whole file")
    named = patch.files[0] if patch.files else ""
    if named in bases:
        return named
    if named == "dev/null":
        return Malformed("a patch from /dev/null is a new file; give the whole file in one block with its launch plan")
    if named in ("best", "failed") or _CANDIDATE_ID.fullmatch(named):
        return Malformed(f"the patch is for {_quoted(named)}, which is not shown here; shown: {', '.join(bases)}")
    return next(iter(bases))


def apply_patch(patch: Patch, source: str) -> str | Malformed:
    """The patched source, or every hunk that does not apply and what stands in its place."""
    lines = source.split("\n")
    keys = [_key(line) for line in lines]
    places: list[tuple[int, Hunk]] = []
    problems: list[str] = []
    for hunk in patch.hunks:
        found = _place(hunk, keys)
        if isinstance(found, str):
            problems.append(found)
        else:
            places.append((found, hunk))
    places.sort(key=lambda place: place[0])
    for (begin, hunk), (next_begin, next_hunk) in pairwise(places):
        if begin + len(hunk.old) > next_begin:
            problems.append(f"{hunk.name} and {next_hunk.name} overlap at line {next_begin + 1}; make one of them")
    if problems:
        return Malformed("; ".join(problems))
    patched = "\n".join(_patched(lines, places))
    return Malformed("the patch changes nothing") if patched == source else patched


def _read_pairs(text: str, draft: _Draft) -> None:
    """Pairs of SEARCH and REPLACE. A single line before a pair may name the kernel."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if not _SEARCH.fullmatch(line):
            if line.strip() and not _NAME.fullmatch(line.strip()):
                raise _BrokenPatch(f"line {at + 1} of the patch stands outside of SEARCH and REPLACE: {_quoted(line)}")
            draft.name_file(_file_name(line))
            at += 1
            continue
        number = len(draft.hunks) + 1
        divider = _find(lines, at + 1, _DIVIDER, f"pair {number} has no line =======")
        end = _find(lines, divider + 1, _REPLACE, f"pair {number} has no line >>>>>>> REPLACE")
        old, new = lines[at + 1 : divider], lines[divider + 1 : end]
        changes: list[tuple[LineKind, str]] = [("-", one) for one in old]
        draft.hunks.append(Hunk(f"pair {number}", (*changes, *(("+", one) for one in new))))
        at = end + 1


def _find(lines: Sequence[str], begin: int, mark: re.Pattern[str], problem: str) -> int:
    for at in range(begin, len(lines)):
        if mark.fullmatch(lines[at]):
            return at
        if _SEARCH.fullmatch(lines[at]):
            break
    raise _BrokenPatch(f"{problem} behind it")


def _read_diff(text: str, draft: _Draft) -> None:
    """Hunks of a unified diff. A hunk begins with a line of @@, whatever numbers are in it."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if _begins_file(lines, at) or (not draft.lines and _names_alone(lines, at)):
            draft.end_hunk()
            draft.name_file(_file_name(line[4:]))
        elif line.startswith("+++ ") and at and _begins_file(lines, at - 1):
            pass
        elif line.startswith("@@"):
            draft.end_hunk()
        elif line[:1] in (" ", "-", "+"):
            draft.lines.append((_kind(line), line[1:]))
        elif not line.strip():
            draft.lines += [(" ", "")] if draft.lines else []
        elif _GIT_LINE.match(line):
            draft.end_hunk()
        elif not line.startswith("\\"):
            raise _BrokenPatch(f"line {at + 1} of the diff begins with neither ' ', '-', '+' nor '@@': {_quoted(line)}")
    draft.end_hunk()


def _kind(line: str) -> LineKind:
    return "-" if line[0] == "-" else "+" if line[0] == "+" else " "


def _begins_file(lines: Sequence[str], at: int) -> bool:
    """Whether a line of --- is followed by one of +++ as in a file's header; else it removes a line that begins with --."""
    following = lines[at + 1 : at + 3]
    return lines[at].startswith("--- ") and bool(following) and following[0].startswith("+++ ")


def _names_alone(lines: Sequence[str], at: int) -> bool:
    """Whether a line of --- stands right before a hunk, without one of +++, and not behind lines of another hunk."""
    return lines[at].startswith("--- ") and "".join(lines[at + 1 : at + 2]).startswith("@@")


def _file_name(line: str) -> str:
    """`best` of `a/best`, `best.cu`, `**best**:`; the name in lower case without folder a or b, suffix and marks."""
    name = line.partition("\t")[0].strip(" #*`:").lower()
    name = re.sub(r"^(?:[ab]/|/)", "", name)
    return re.sub(r"\.(?:cu|cuh|txt)$", "", name)


def _place(hunk: Hunk, keys: Sequence[str]) -> int | str:
    """The index of the line at which a hunk applies, or why it does not."""
    old = [_key(line) for line in hunk.old]
    if not any(old):
        return f"{hunk.name} has no line of the kernel to be placed by; give the lines around the change"
    found = _occurrences(old, keys)
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(f"at line {at + 1} ({_quoted(keys[at])})" for at in found[:_SHOWN_PLACES])
        more = " or more" if len(found) > _SHOWN_PLACES else ""
        return (
            f"{hunk.name} applies in {min(len(found), _SHOWN_PLACES)} places{more}: {shown}; give more lines around the change"
        )
    return _mismatch(hunk, old, keys)


def _occurrences(old: Sequence[str], keys: Sequence[str]) -> list[int]:
    """The first places at which consecutive lines stand, one more than are shown at most."""
    text, wanted = "\n" + "\n".join(keys) + "\n", "\n" + "\n".join(old) + "\n"
    found: list[int] = []
    at, line = text.find(wanted), 0
    counted = 0
    while at >= 0 and len(found) <= _SHOWN_PLACES:
        line += text.count("\n", counted, at)
        counted = at
        found.append(line)
        at = text.find(wanted, at + 1)
    return found


def _mismatch(hunk: Hunk, old: Sequence[str], keys: Sequence[str]) -> str:
    """The first line of a hunk that does not stand where most of its lines do, and what stands there."""
    for number, line in enumerate(hunk.old, 1):
        if _LEFT_OUT.fullmatch(line.strip()):
            return f"{hunk.name} does not apply: its old line {number} is the mark of lines left out; patch on one side of it"
    begin = _likeliest(old, keys)
    if begin is None:
        return f"{hunk.name} does not apply: none of its old lines stands in the kernel, the first is {_quoted(hunk.old[0])}"
    for offset, line in enumerate(old):
        at = begin + offset
        stands = keys[at] if 0 <= at < len(keys) else None
        if stands != line:
            there = (
                f"line {at + 1} of the kernel is {_quoted(stands)}" if stands is not None else "the kernel has no line there"
            )
            return f"{hunk.name} does not apply: its old line {offset + 1} is {_quoted(hunk.old[offset])}, but {there}"
    raise AssertionError("a hunk whose lines all stand there applies")


def _likeliest(old: Sequence[str], keys: Sequence[str]) -> int | None:
    """The place at which most of a hunk's lines stand, by lines that are not common; None where none does."""
    positions: dict[str, list[int]] = {}
    for at, key in enumerate(keys):
        if key:
            positions.setdefault(key, []).append(at)
    votes: Counter[int] = Counter()
    for offset, line in enumerate(old):
        places = positions.get(line, [])
        if len(places) <= _COMMON:
            votes.update(at - offset for at in places)
    return votes.most_common(1)[0][0] if votes else None


def _patched(lines: Sequence[str], places: Sequence[tuple[int, Hunk]]) -> Iterator[str]:
    at = 0
    for begin, hunk in places:
        yield from lines[at:begin]
        at = begin
        for kind, text in hunk.lines:
            if kind == "+":
                yield text
                continue
            if kind == " ":
                yield lines[at]
            at += 1
    yield from lines[at:]


def _key(line: str) -> str:
    """A line as a prompt shows it, without blanks at its end."""
    return plain(line.rstrip()).replace("\n", " ").rstrip()


def _quoted(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 1] + "…"
