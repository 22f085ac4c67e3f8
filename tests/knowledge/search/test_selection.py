"""An excerpt contains its piece, a short definition around it, and nothing of another file version."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudal2_agent.knowledge.lexical.lexical_index import IndexedPiece, LexicalIndex
from cudal2_agent.knowledge.search.selection import MAX_LINES, grow, overlap
from tests.knowledge.indexes import entry, opened

Lines = tuple[int, int]


@st.composite
def file_versions(draw: st.DrawFn) -> list[IndexedPiece]:
    """The pieces of one file version, some of them parts of a longer definition, without path and releases."""
    line, pieces = 1, []
    for _ in range(draw(st.integers(1, 6))):
        line += draw(st.sampled_from([0, 0, 1, 5, 90]))
        parts: list[Lines] = []
        for _ in range(draw(st.integers(1, 4))):
            length = draw(st.sampled_from([1, 2, 10, 60, 140, 147, 148, 149, 300]))
            parts.append((line, line + length - 1))
            line += length
        definition = (parts[0][0], parts[-1][1])
        pieces += [entry(lines=lines, definition=definition) for lines in parts]
    return pieces


@st.composite
def corpora(draw: st.DrawFn) -> list[IndexedPiece]:
    """Consecutive file versions. A path may be repeated, then in another release."""
    entries = []
    for number, pieces in enumerate(draw(st.lists(file_versions(), min_size=1, max_size=4))):
        path = draw(st.sampled_from(["a.hpp", "b.hpp"]))
        entries += [
            entry(number, path, lines=_lines(each), definition=each.piece.definition, releases=(f"r-{number}",))
            for each in pieces
        ]
    return entries


def _lines(each: IndexedPiece) -> Lines:
    return each.piece.start_line, each.piece.end_line


@settings(max_examples=50, deadline=None)
@given(corpora())
def test_an_excerpt_is_of_one_file_version_and_short(entries: list[IndexedPiece]) -> None:
    with TemporaryDirectory() as folder:
        index = opened(Path(folder), entries)
        for position, each in enumerate(entries):
            check(each, grow(index, position), [_lines(other) for other in entries if other.piece_id == each.piece_id])


def check(each: IndexedPiece, shown: Lines, pieces: list[Lines]) -> None:
    own, outer = _lines(each), each.piece.definition
    assert shown[0] <= own[0] <= own[1] <= shown[1]
    assert width(shown) <= max(MAX_LINES, width(own))
    assert shown[0] in {start for start, _ in pieces}
    assert shown[1] in {end for _, end in pieces}
    if width(outer) <= MAX_LINES:
        assert shown[0] <= outer[0] <= outer[1] <= shown[1]
    if width(own) > MAX_LINES:
        assert shown == own


def width(lines: Lines) -> int:
    return lines[1] - lines[0] + 1


def shown(folder: Path, *lines: Lines, at: int = 0, definition: Lines | None = None) -> Lines:
    index = opened(folder, [entry(lines=each, definition=definition) for each in lines])
    return grow(index, at)


def test_a_short_definition_is_shown_whole(tmp_path: Path) -> None:
    assert shown(tmp_path, (10, 20), (21, 60), (61, 80), at=1, definition=(10, 80)) == (10, 80)


def test_neighbours_are_shown_while_there_is_room(tmp_path: Path) -> None:
    assert shown(tmp_path, (1, 10), (12, 30), (32, 40), at=1) == (1, 40)


def test_what_does_not_fit_is_left_out_whole(tmp_path: Path) -> None:
    assert shown(tmp_path, (1, 100), (101, 120), (121, 300), at=1) == (1, 120)
    assert shown(tmp_path / "2", (1, 200), (201, 220), (221, 300), at=1) == (201, 300)


def test_a_piece_behind_one_that_does_not_fit_is_not_shown(tmp_path: Path) -> None:
    """Otherwise the excerpt would have a gap, or too many lines."""
    assert shown(tmp_path, (1, 20), (21, 300), (301, 305)) == (1, 20)


def test_room_is_counted_in_lines(tmp_path: Path) -> None:
    assert shown(tmp_path, (1, 100), (101, MAX_LINES)) == (1, MAX_LINES)
    assert shown(tmp_path / "2", (1, 100), (101, MAX_LINES + 1)) == (1, 100)


def two_versions(folder: Path) -> LexicalIndex:
    """The second one continues where the lines of the first end."""
    first = entry(0, lines=(1, 5), releases=("r-1",))
    second = [entry(1, lines=lines, releases=("r-2",)) for lines in ((1, 5), (6, 40))]
    return opened(folder, [first, *second])


@pytest.mark.parametrize(("position", "lines"), [(0, (1, 5)), (1, (1, 40)), (2, (1, 40))])
def test_two_versions_of_a_path_next_to_each_other(tmp_path: Path, position: int, lines: Lines) -> None:
    assert grow(two_versions(tmp_path), position) == lines


@given(st.tuples(st.integers(1, 9), st.integers(0, 9)), st.tuples(st.integers(1, 9), st.integers(0, 9)))
def test_overlap_is_a_line_in_common(one: tuple[int, int], other: tuple[int, int]) -> None:
    spans = [(start, start + length) for start, length in (one, other)]
    common = set(range(spans[0][0], spans[0][1] + 1)) & set(range(spans[1][0], spans[1][1] + 1))
    assert overlap(*spans) == bool(common)
