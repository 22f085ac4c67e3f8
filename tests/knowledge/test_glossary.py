"""The shipped glossary is well formed, and a question finds its concepts by name, words and meaning."""

import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.glossary.glossary import GLOSSARY_FOLDER, Concept, Glossary, load_glossary
from cudal2_agent.knowledge.lexical.analysis import words_of
from cudal2_agent.knowledge.search.concepts import Concepts, ConceptWeights
from tests.knowledge.indexes import Meanings, concept, glossary

SHIPPED = load_glossary()
FILES = sorted(GLOSSARY_FOLDER.glob("*.toml"))
GOOD = '[[concept]]\nname = "n"\nterms = ["t"]\nasks = ["a"]\ncode = ["c"]\n'


def wrong(each: Concept) -> list[str]:
    """The problems of a concept."""
    checks = {
        "no name": not each.name.strip(),
        "no terms": not each.terms,
        "no code": not each.code,
        "fewer than two asks": len(each.asks) < 2,
        "empty term": not all(words_of(term) for term in each.terms),
        "ask of another length": not all(4 <= len(ask.split()) <= 40 for ask in each.asks),
        "one ask twice": len(set(each.asks)) != len(each.asks),
        "one code twice": len(set(each.code)) != len(each.code),
        "code with spaces": any(" " in code.replace(", ", "").strip() for code in each.code),
    }
    return [what for what, holds in checks.items() if holds]


def test_every_concept_is_whole() -> None:
    assert len(SHIPPED.concepts) >= 100
    assert {each.name: wrong(each) for each in SHIPPED.concepts if wrong(each)} == {}


@pytest.mark.parametrize(
    "bad",
    [
        concept("", terms=["t"], asks=["one two three four", "one two three five"], code=["c"]),
        concept("n", terms=["?"], asks=["one two three four", "one two three five"], code=["c"]),
        concept("n", terms=["t"], asks=["one two three four"], code=["c"]),
        concept("n", terms=["t"], asks=["one two three four", "too short"], code=["c"]),
        concept("n", terms=["t"], asks=["one two three four", "one two three five"], code=["c", "c"]),
    ],
)
def test_what_is_not_whole_is_seen(bad: Concept) -> None:
    assert wrong(bad)


def test_names_and_sentences_stand_once() -> None:
    assert [name for name, count in Counter(each.name for each in SHIPPED.concepts).items() if count > 1] == []
    assert [ask for ask, count in Counter(ask for _, ask in SHIPPED.asks).items() if count > 1] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_holds_concepts_and_nothing_else(path: Path) -> None:
    """A table with another name would be ignored silently."""
    assert set(tomllib.loads(path.read_text("utf-8"))) == {"concept"}


def test_the_sentences_know_their_concepts() -> None:
    found = glossary(concept("a", asks=["one", "two"]), concept("b"), concept("c", asks=["three"]))
    assert found.asks == ((0, "one"), (0, "two"), (2, "three"))


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(GOOD.replace('"n"', f'"{name}"'), encoding="utf-8")
    (tmp_path / "c.txt").write_text("not a glossary", encoding="utf-8")
    assert [each.name for each in load_glossary(tmp_path).concepts] == ["a", "b"]


def test_the_digest_is_that_of_the_words() -> None:
    assert glossary(concept("a")).digest == glossary(concept("a")).digest != glossary(concept("b")).digest


@pytest.mark.parametrize(
    "text",
    [
        b"[[concept]\n",
        b"\xff\xfe",
        b"concept = 3\n",
        b'concept = ["word"]\n',
        b"concept = [3]\n",
        GOOD.replace("terms", "term").encode(),
        GOOD.replace('["a"]', '"a"').encode(),
        GOOD.replace('["c"]', "[1]").encode(),
        b'[[concept]]\nname = "n"\n',
    ],
)
def test_a_wrong_file_is_one_line_with_its_name(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "good.toml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "wrong.toml").write_bytes(text)
    with pytest.raises(KnowledgeError, match=r"glossary file wrong\.toml") as caught:
        load_glossary(tmp_path)
    assert "\n" not in str(caught.value)


RING, FOLD, PLAIN = 0, 1, 2
CONCEPTS = glossary(
    concept("ring", terms=["ring buffer", "TMA"], asks=["who frees a stage after it was read"], code=["Ring"]),
    concept("fold", terms=["swizzle", "TMA"], asks=["threads collide on the same bank of memory"], code=["Swizzle"]),
    concept("plain", terms=["epilogue"], asks=["write the result to where it belongs"], code=["Epilogue"]),
)
MEANINGS = Meanings({"frees": 0, "releases": 0, "bank": 1, "conflict": 1, "result": 2, "output": 2})


def first(question: str, **weights: float) -> int:
    return found(CONCEPTS, question, **weights)[0][0]


def found(of: Glossary, question: str, **weights: float) -> list[tuple[int, float]]:
    """Of a glossary so small that its words say little: what matches counts, however little that is."""
    return Concepts(of, MEANINGS.embed).match(question, ConceptWeights(**{"confidence": 0.0, "enough": 1e-6, **weights}))


@pytest.mark.parametrize(
    ("question", "wanted"), [("ring buffers", RING), ("a SWIZZLE", FOLD), ("the epilogue's end", PLAIN), ("ring-buffer", RING)]
)
def test_a_concept_by_its_name(question: str, wanted: int) -> None:
    assert first(question, meaning=0, words=0, names=1) == wanted


@pytest.mark.parametrize("question", ["ringing buffers", "swizzled", "spring buffer", "?", ""])
def test_a_part_of_a_word_is_no_name(question: str) -> None:
    assert found(CONCEPTS, question, meaning=0, words=0, names=1) == []


def test_a_name_of_one_concept_tells_more_than_a_shared_one() -> None:
    both = found(CONCEPTS, "TMA epilogue", meaning=0, words=0, names=1)
    assert [number for number, _ in both] == [PLAIN, RING, FOLD]
    assert both[0][1] > both[1][1] == both[2][1]


def test_a_concept_by_its_words() -> None:
    assert first("memory bank where threads collide", meaning=0, words=1, names=0) == FOLD


@pytest.mark.parametrize(("question", "wanted"), [("it releases", RING), ("conflict", FOLD), ("output", PLAIN)])
def test_a_concept_by_its_meaning(question: str, wanted: int) -> None:
    assert first(question, meaning=1, words=0, names=0) == wanted


def test_what_all_sentences_share_tells_nothing() -> None:
    """The common part is large: with it, every question would be close to every concept."""
    meanings = Meanings({"kernel": 0, "frees": 1, "bank": 2, "result": 3})
    asks = [f"the kernel of a kernel {word}" for word in ("frees", "bank", "result")]
    shared = glossary(*(concept(ask, asks=[ask]) for ask in asks))
    weights = ConceptWeights(words=0, names=0, min_score=0.5)
    assert [number for number, _ in Concepts(shared, meanings.embed).match("kernel, kernel, kernel, bank", weights)] == [1]


def test_a_question_about_nothing_finds_nothing() -> None:
    assert found(CONCEPTS, "tomatoes", min_score=0.8) == []


def test_a_weak_match_is_none_however_far_ahead_of_the_others() -> None:
    """One rare word of a sentence makes its concept the best by far; with it, a name in a question led to code about others."""
    assert found(CONCEPTS, "where is belongs_to written", meaning=0)[0][0] == PLAIN
    assert found(CONCEPTS, "where is belongs_to written", meaning=0, confidence=0.4, enough=7.0) == []
    assert found(CONCEPTS, "conflict", confidence=0.4, enough=7.0)[0][0] == FOLD, "its meaning is enough"
    assert found(CONCEPTS, "what is the epilogue", meaning=0, confidence=0.4, enough=7.0)[0][0] == PLAIN, "it is a name"


def test_weights_fall_from_one() -> None:
    weights = [weight for _, weight in found(CONCEPTS, "who frees the bank of the TMA ring buffer", min_score=0.01)]
    assert weights[0] == 1
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 1


def test_at_most_the_count_is_taken() -> None:
    many = glossary(*(concept(f"c{n}", terms=["ring"], asks=["frees"]) for n in range(9)))
    assert [number for number, _ in found(many, "ring", count=4, min_score=0.0)] == [0, 1, 2, 3]


def test_no_glossary_no_concepts() -> None:
    assert found(glossary(), "ring") == []


@pytest.mark.filterwarnings("error")
def test_concepts_without_sentences_have_names() -> None:
    assert found(glossary(concept("a", terms=["ring"])), "ring", names=1.0)[0][0] == 0


def test_the_vectors_are_made_once_and_when_they_are_needed() -> None:
    asked: list[int] = []

    def embed(texts: list[str]) -> np.ndarray:
        asked.append(len(texts))
        return MEANINGS.embed(texts)

    concepts = Concepts(CONCEPTS, embed)
    concepts.match("ring", ConceptWeights(meaning=0))
    assert asked == []
    concepts.match("ring", ConceptWeights())
    concepts.match("ring", ConceptWeights())
    assert sorted(asked) == [1, 1, 3]
