"""Two releases compared: symbols by area, files, and moved symbols."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.knowledge import Piece, PieceKind
from cudal2_agent.indexer.diff import AreaDiff, ReleaseDiff, area_of, diff

Entry = tuple[str, Piece, str]


def entry(path: str, symbol: str, text: str, line: int = 1, kind: PieceKind = "function") -> Entry:
    return path, Piece(start_line=line, end_line=line, symbol=symbol, kind=kind, definition=(line, line)), text


def test_added_removed_and_changed_symbols_are_told_by_area() -> None:
    old = [entry("cute/a.hpp", "cute::gone", "1"), entry("cute/a.hpp", "cute::kept", "2"), entry("cutlass/gemm/b.h", "x", "3")]
    new = [entry("cute/a.hpp", "cute::kept", "2"), entry("cutlass/gemm/b.h", "x", "4"), entry("cutlass/gemm/b.h", "y", "5")]
    assert diff(old, new) == ReleaseDiff(
        areas=(
            AreaDiff(area="cute", removed=("cute::gone",)),
            AreaDiff(area="cutlass/gemm", added=("y",), changed=("x",)),
        ),
        files_added=(),
        files_removed=(),
        files_changed=("cute/a.hpp", "cutlass/gemm/b.h"),
    )


def test_lines_that_shift_are_no_difference() -> None:
    assert diff([entry("a.h", "x", "1", line=5)], [entry("a.h", "x", "1", line=50)]) == ReleaseDiff(
        areas=(), files_added=(), files_removed=(), files_changed=()
    )


def test_a_symbol_that_moves_unchanged_is_counted_as_moved() -> None:
    found = diff([entry("cute/a.hpp", "x", "1")], [entry("cute/atom/b.hpp", "x", "1")])
    assert found.areas == (AreaDiff(area="cute/atom", moved=1),)
    assert (found.files_added, found.files_removed) == (("cute/atom/b.hpp",), ("cute/a.hpp",))


def test_a_symbol_that_moves_and_changes_is_removed_and_added() -> None:
    found = diff([entry("cute/a.hpp", "x", "1")], [entry("cute/atom/b.hpp", "x", "2")])
    assert found.areas == (AreaDiff(area="cute", removed=("x",)), AreaDiff(area="cute/atom", added=("x",)))


def test_a_copy_is_no_move() -> None:
    found = diff([entry("a/a.h", "x", "1")], [entry("a/a.h", "x", "1"), entry("b/b.h", "x", "1")])
    assert found.areas == (AreaDiff(area="b", added=("x",)),)


def test_one_old_place_answers_for_one_new_place() -> None:
    found = diff([entry("a/a.h", "x", "1")], [entry("b/b.h", "x", "1"), entry("c/c.h", "x", "1")])
    assert found.areas == (AreaDiff(area="b", moved=1), AreaDiff(area="c", added=("x",)))


def test_the_pieces_of_one_symbol_are_compared_together() -> None:
    parts = [entry("a.h", "x", "1"), entry("a.h", "x", "2", line=2)]
    assert diff(parts, list(reversed(parts))).areas == ()
    assert diff(parts, [*parts, entry("a.h", "x", "2", line=3)]).areas == (AreaDiff(area=".", changed=("x",)),)


def test_text_between_definitions_tells_of_the_file_only() -> None:
    found = diff([entry("a.h", "a.h", "1", kind="text")], [entry("a.h", "a.h", "2", kind="text")])
    assert (found.areas, found.files_changed) == ((), ("a.h",))


@pytest.mark.parametrize(
    ("path", "area"),
    [("a.h", "."), ("cute/a.h", "cute"), ("cutlass/gemm/collective/builders/a.inl", "cutlass/gemm/collective")],
)
def test_an_area_is_the_first_folders(path: str, area: str) -> None:
    assert area_of(path) == area


def test_iterators_are_enough() -> None:
    def pieces() -> Iterator[Entry]:
        yield entry("a.h", "x", "1")

    assert diff(pieces(), iter(())).areas[0].removed == ("x",)


entries = st.lists(
    st.builds(entry, st.sampled_from(["a/x.h", "a/y.h", "b/z.h"]), st.sampled_from("pqr"), st.sampled_from("123")), max_size=12
)


@given(old=entries, new=entries)
def test_back_is_the_mirror_of_there(old: list[Entry], new: list[Entry]) -> None:
    there, back = diff(old, new), diff(new, old)
    assert diff(old, old).areas == ()
    assert (there.files_added, there.files_changed) == (back.files_removed, back.files_changed)
    assert [(each.area, each.changed) for each in there.areas if each.changed] == [
        (each.area, each.changed) for each in back.areas if each.changed
    ]
    assert sum(each.moved for each in there.areas) == sum(each.moved for each in back.areas)


@given(old=entries, new=entries)
def test_nothing_is_told_twice_and_no_difference_is_hidden(old: list[Entry], new: list[Entry]) -> None:
    found = diff(old, new)
    same = {(path, piece.symbol, text) for path, piece, text in old} == {
        (path, piece.symbol, text) for path, piece, text in new
    }
    if not same:
        assert found.areas
    for area in found.areas:
        assert area.added or area.removed or area.changed or area.moved
        assert not set(area.added) & set(area.changed) or len({path for path, _, _ in new}) > 1
