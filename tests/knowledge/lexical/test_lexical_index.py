"""Searches by words and by names."""

import shutil
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.lexical.analysis import FIELDS
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.lexical.word_index import WordIndex
from tests.knowledge.indexes import NO_GLOSSARY, concept, entry, glossary, opened

# ---- scores equal those of a reference library, from memory and from disk --------------------------------------------------
WORDS = ["ring", "stage", "wait", "tma", "cute::layout", "x"]
CORPORA = st.lists(st.lists(st.sampled_from(WORDS), max_size=12), min_size=1, max_size=8)


@given(CORPORA, st.lists(st.sampled_from([*WORDS, "unheard"]), max_size=6))
def test_scores_are_those_of_bm25(corpus: list[list[str]], question: list[str]) -> None:
    other = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    other.index([["\0"], *corpus], show_progress=False)  # the reference library refuses a corpus without words
    ours = WordIndex.build([["\0"], *corpus]).scores(question)
    expected = other.get_scores([word for word in question if word != "unheard"] or ["\0\0"])
    assert np.allclose(ours, expected, rtol=1e-5, atol=1e-6)


@given(CORPORA)
def test_each_word_knows_its_texts(corpus: list[list[str]]) -> None:
    index = WordIndex.build(corpus)
    for word in [*WORDS, "unheard"]:
        assert index.holding(word).tolist() == [place for place, text in enumerate(corpus) if word in text]


@pytest.mark.parametrize(
    "corpus",
    [[], [[]], [[], []], [["ring"], []], [["\ud800", "ring", "\0", "é"], ["ring", "ring"]]],
    ids=["no text", "no word", "no words", "one word", "odd words"],
)
def test_it_comes_back_from_disk(tmp_path: Path, corpus: list[list[str]]) -> None:
    index = WordIndex.build(corpus)
    index.save(tmp_path / "index")
    again = WordIndex.load(tmp_path / "index")
    for words in (["ring"], ["ring", "ring", "\ud800"], [], ["unheard"]):
        scores = again.scores(words)
        assert scores.shape == (len(corpus),)
        assert scores.tolist() == index.scores(words).tolist()
    assert again.holding("ring").tolist() == index.holding("ring").tolist()


def test_a_word_said_twice_counts_twice() -> None:
    index = WordIndex.build([["ring", "stage"], ["stage"]])
    assert index.scores(["ring", "ring"])[0] == pytest.approx(2 * index.scores(["ring"])[0])


def test_a_rare_word_and_a_short_text_score_higher() -> None:
    index = WordIndex.build([["ring", "stage"], ["stage"], ["stage", "stage", "wait", "wait"]])
    assert index.scores(["ring"])[0] > index.scores(["stage"])[0]
    assert index.scores(["stage"])[1] > index.scores(["stage"])[0] > 0


@pytest.mark.parametrize("name", ["words.json", "bounds.npy", "texts.npy", "scores.npy"])
@pytest.mark.parametrize("damage", [b"", b"no index", b'{"count": 1}', b"\x93NUMPY"], ids=["empty", "words", "json", "numpy"])
def test_damage_is_one_of_the_errors_it_names(tmp_path: Path, name: str, damage: bytes) -> None:
    WordIndex.build([["ring"], ["stage"]]).save(tmp_path)
    (tmp_path / name).write_bytes(damage)
    with pytest.raises((OSError, ValueError, KeyError, EOFError)):
        WordIndex.load(tmp_path)


# ---- an index opens as it was built, for any content; a damaged folder is reported with a remedy ---------------------------
ENTRIES = [
    entry(7, "inc/ring.hpp", "ns::Ring", (1, 9), text="class Ring wait", vector="v1", kind="class", definition=(1, 30)),
    entry(3, "inc/ring.hpp", "ns::Ring::wait", (10, 30), text="wait wait stage", vector="v2", definition=(1, 30)),
    entry(9, "doc/a.md", "Title > Part", (2, 2), text="…", kind="section", archs=("sm_80", "sm_90"), releases=("a-1", "b-2")),
    entry(1, "doc/a.md", "", (4, 5), kind="text", vector="v1", releases=("b-2",)),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> LexicalIndex:
    return opened(tmp_path_factory.mktemp("lexical") / "1", ENTRIES)


def test_columns_are_aligned_with_the_entries(index: LexicalIndex) -> None:
    assert len(index) == len(ENTRIES)
    for place, each in enumerate(ENTRIES):
        assert index.column("piece_id")[place] == each.piece_id
        assert (index.column("start")[place], index.column("end")[place]) == (each.piece.start_line, each.piece.end_line)
        assert (index.column("outer_start")[place], index.column("outer_end")[place]) == each.piece.definition
        assert index.value("path", place) == each.path
        assert index.value("symbol", place) == each.piece.symbol
        assert index.value("kind", place) == each.piece.kind
        assert index.value("archs", place).split() == list(each.piece.archs)
        assert index.value("releases", place).split() == list(each.releases)
    assert index.positions_of_vector == {"v1": [0, 3], "v2": [1]}
    assert index.signatures.shape[0] == len(ENTRIES)


def test_a_field_is_scored_by_its_own_words(index: LexicalIndex) -> None:
    assert np.flatnonzero(index.scores("names", ["wait"])).tolist() == [1]
    assert np.flatnonzero(index.scores("body", ["wait"])).tolist() == [0, 1]
    assert np.flatnonzero(index.scores("card", ["doc"])).tolist() == [2, 3]
    assert index.scores("body", ["wait"])[1] > index.scores("body", ["wait"])[0]


@pytest.mark.parametrize("words", [[], ["unheard"], ["\0"], [""]])
def test_no_word_that_is_known_scores_nothing(index: LexicalIndex, words: list[str]) -> None:
    assert all(index.scores(field, words).tolist() == [0, 0, 0, 0] for field in FIELDS)


def test_filters_are_positions(index: LexicalIndex) -> None:
    kinds = index.where("kind", (kind in ("class", "text") for kind in index.values("kind")))
    assert np.flatnonzero(kinds).tolist() == [0, 3]
    releases = index.where("releases", ("b-2" in names.split() for names in index.values("releases")))
    assert np.flatnonzero(releases).tolist() == [2, 3]
    assert not index.where("path", (False for _ in index.values("path"))).any()


@pytest.mark.parametrize("vectors", [("", ""), ("v", "")])
def test_pieces_without_words_or_vectors(tmp_path: Path, vectors: tuple[str, str]) -> None:
    entries = [entry(n, "…", "", (n + 1, n + 1), vector=vector) for n, vector in enumerate(vectors)]
    index = opened(tmp_path, entries)
    assert len(index) == 2
    assert index.positions_of_vector == ({"v": [0]} if vectors[0] else {})
    assert index.scores("body", ["ring"]).tolist() == [0, 0]


def test_an_index_of_nothing(tmp_path: Path) -> None:
    index = opened(tmp_path, [])
    assert len(index) == 0
    assert index.positions_of_vector == {}
    assert index.scores("body", ["ring"]).shape == (0,)
    assert index.where("kind", []).shape == (0,)
    assert index.anchors(glossary(concept("c", code=["Ring"]))).of(0)[0].tolist() == []


def test_equal_entries_make_equal_files(tmp_path: Path) -> None:
    opened(tmp_path / "a", ENTRIES)
    opened(tmp_path / "b", ENTRIES)
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.npy"))
    assert names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_places_are_found_anew_for_another_glossary(tmp_path: Path) -> None:
    """An index works with another glossary than the one it was built with."""
    newer = glossary(concept("nothing", code=["Unheard"]), concept("waiting", code=["Ring::wait"]))
    index = opened(tmp_path, ENTRIES, NO_GLOSSARY)
    assert index.anchors(newer).of(1)[0].tolist() == [1]
    assert index.anchors(newer).digest == newer.digest
    assert index.anchors(NO_GLOSSARY).digest == NO_GLOSSARY.digest


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_damage_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    """Every file is removed, emptied, truncated or overwritten, one at a time."""
    opened(tmp_path / "whole", ENTRIES)
    for name in files_of(tmp_path / "whole"):
        data = (tmp_path / "whole" / name).read_bytes()
        for damage in (None, b"", data[: len(data) // 2], b"PK\x03\x04 no archive"):
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "whole", copy)
            (copy / name).unlink() if damage is None else (copy / name).write_bytes(damage)
            with pytest.raises(KnowledgeError, match="is damaged; run: cudal2-agent index update") as caught:
                LexicalIndex(copy)
            assert "\n" not in str(caught.value)
            shutil.rmtree(copy)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="is damaged"):
        LexicalIndex(tmp_path / "none")
