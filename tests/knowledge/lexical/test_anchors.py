"""The glossary's names locate definitions, else files, else mentions, with decreasing weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.knowledge.lexical.anchors import Anchors, find_anchors
from tests.knowledge.indexes import concept, glossary

# (symbol, path, words of the body)
PIECES = [
    ("cutlass::Ring", "cutlass/pipeline/ring.hpp", "struct ring state"),
    ("cutlass::Ring<Stages>::acquire", "cutlass/pipeline/ring.hpp", "try_wait phase"),
    ("cutlass::Other::acquire", "cutlass/other.hpp", "spin"),
    ("cute::print_thing", "cute/util/print.hpp", "rare_word ring"),
    ("cute::Copy<Traits<A, B>, T>", "cute/copy_sm90.hpp", "copy"),
    ("", "cute/util/print.hpp", "rest"),
]


def anchors(*code: str, pieces: Sequence[tuple[str, str, str]] = PIECES) -> Anchors:
    symbols, paths, bodies = ([piece[column] for piece in pieces] for column in range(3))

    def holding(word: str) -> np.ndarray:
        return np.array([place for place, body in enumerate(bodies) if word in body.split()], np.int32)

    return find_anchors(glossary(concept("c", code=code)), symbols, paths, holding)


def places(*code: str) -> dict[int, float]:
    positions, weights = anchors(*code).of(0)
    return dict(zip(positions.tolist(), weights.tolist(), strict=True))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Ring", {0}),
        ("cutlass::Ring", {0}),
        ("RING", {0}),
        ("Ring::acquire", {1}),
        ("Ring<4>::acquire", {1}),
        ("cutlass::Ring<Shape<_1, Layout<_2>>>::acquire", {1}),
        ("acquire", {1, 2}),
        ("Copy", {4}),
        ("Copy<Traits<A, B>, T>", {4}),
    ],
)
def test_a_definition_by_its_name(name: str, found: set[int]) -> None:
    assert set(places(name)) == found
    assert max(places(name).values()) == pytest.approx(1 / (1 + np.log(len(found)) / 3))


@pytest.mark.parametrize("name", ["copy_sm90", "cute/copy_sm90.hpp", "COPY_SM90.hpp"])
def test_a_file_by_its_stem(name: str) -> None:
    assert set(places(name)) == {4}
    assert 0 < places(name)[4] < places("Copy")[4]


def test_a_member_that_no_piece_is_named_after_is_found_in_its_class() -> None:
    """`try_wait` is in the text of Ring's pieces and in no name."""
    assert set(places("Ring::try_wait")) == {1}
    assert places("Ring::try_wait")[1] < places("Ring::acquire")[1]


def test_a_name_that_is_only_mentioned() -> None:
    assert set(places("rare_word")) == {3}
    assert set(places("Unknown::rare_word")) == {3}


@pytest.mark.parametrize("name", ["", "::", "<>", "nothing_like_it", "None::at_all"])
def test_a_name_without_a_place(name: str) -> None:
    assert places(name) == {}


def test_a_common_word_points_nowhere() -> None:
    pieces = [(f"ns::f{n}", f"f{n}.hpp", "common") for n in range(50)]
    assert anchors("common", pieces=pieces).of(0)[0].tolist() == []


def test_a_name_in_many_places_points_at_each_of_them_less() -> None:
    pieces = [(f"ns{n}::go", f"f{n}.hpp", "") for n in range(5000)]
    positions, weights = anchors("go", pieces=pieces).of(0)
    assert 0 < len(positions) < 5000
    assert weights.max() < 0.5


def test_the_first_name_weighs_most() -> None:
    first, second = places("Ring", "Copy"), places("Copy", "Ring")
    assert first[0] > first[4]
    assert second[4] > second[0]


def test_a_place_of_two_names_keeps_the_better_weight() -> None:
    assert places("Ring", "cutlass::Ring") == places("Ring")


def test_they_come_back_from_disk(tmp_path: Path) -> None:
    found = anchors("Ring", "acquire")
    found.save(tmp_path)
    again = Anchors.load(tmp_path)
    assert again.digest == found.digest
    assert [column.tolist() for column in again.of(0)] == [column.tolist() for column in found.of(0)]


def test_each_concept_has_its_own_places() -> None:
    symbols, paths = [piece[0] for piece in PIECES], [piece[1] for piece in PIECES]
    names = glossary(concept("none"), concept("ring", code=["Ring"]), concept("copy", code=["Copy"]))
    found = find_anchors(names, symbols, paths, lambda _: np.zeros(0, np.int32))
    assert [found.of(number)[0].tolist() for number in range(3)] == [[], [0], [4]]
