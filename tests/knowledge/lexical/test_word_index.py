"""Scores equal those of a reference library, from memory and from disk."""

from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.knowledge.lexical.word_index import WordIndex

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
