"""Which names a question has, and that the one file that has such a name comes first."""

import numpy as np
import pytest

from cudal2_agent.contract.records.knowledge import Query
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.search.concepts import Concepts
from cudal2_agent.knowledge.search.fusion import best
from cudal2_agent.knowledge.search.names import emphasis, named_places, names_of
from cudal2_agent.knowledge.search.scoring import Scoring
from cudal2_agent.knowledge.search.weights import SearchWeights
from tests.knowledge.indexes import Meanings, concept, entry, glossary, opened

ENTRIES = [
    entry(0, "inc/ring.hpp", "ns::Ring::take", (1, 9), text="void take() { slot = head; }"),
    entry(1, "inc/ring.hpp", "ns::Ring", (10, 40), text="struct Ring { static constexpr int kRingDepth = 4; };"),
    entry(2, "inc/queue.hpp", "ns::Queue::take", (1, 9), text="void take() { Ring ring; ring.wait_slot(); }"),
    entry(3, "inc/sm90_tile.hpp", "ns::Tile<A, B<C>>::rasterOrder", (1, 9), text="int rasterOrder();"),
    entry(4, "inc/pool.hpp", "ns::Pool", (1, 9), text="struct Pool {};", releases=("b-1",)),
    entry(5, "tools/build.py", "tools.build.make_pool", (1, 9), text="def make_pool(): ..."),
    entry(6, "inc/pool.hpp", "ns::size", (1, 9), text="int size();"),
    *(entry(7 + n, f"inc/kind{n}.hpp", f"ns::Kind{n}::is_empty", (1, 9), text="bool is_empty();") for n in range(5)),
    entry(12, "inc/uses.hpp", "ns::uses", (1, 9), text="Ring ring; ring.take(); rasterOrder(); make_pool(); sm90_tile();"),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> LexicalIndex:
    return opened(tmp_path_factory.mktemp("names"), ENTRIES)


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("where is Ring::take defined?", ["Ring::take"]),
        ("what calls is_empty, rasterOrder and is_empty.", ["is_empty", "rasterOrder"]),
        ("explain gemm/kernel/tile.hpp.", ["gemm/kernel/tile.hpp"]),
        ("swizzle", ["swizzle"]),
        ("how does a swizzle work", []),
        ("128x128 tiles of fp16 on the H100's SMs: e4m3", []),
        ("tcgen05.alloc blocks", ["tcgen05.alloc"]),
        ("", []),
    ],
)
def test_what_is_written_as_code_is_a_name(question: str, names: list[str]) -> None:
    assert names_of(question) == names


def test_a_name_counts_less_in_a_long_message() -> None:
    assert emphasis("where is kRingDepth defined?") == emphasis("kRingDepth") == 1.0
    long = "my kernel hangs behind kRingDepth after ten tiles, the loader waits for a slot that nobody gives back"
    assert 0.2 < emphasis(long) < 0.5


@pytest.mark.parametrize(
    ("question", "positions"),
    [
        ("Ring::take", [0]),
        ("ns::Ring", [1]),
        ("how does rasterOrder work", [3]),
        ("show RASTERORDER", []),  # no name by its look, and nothing else is said
        ("rasterorder", [3]),
        ("inc/sm90_tile.hpp", [3]),
        ("see sm90_tile", [3]),
        ("ring.hpp and queue.hpp", [0, 1, 2]),
        ("make_pool in Python", [5]),
        ("tools.build.make_pool", [5]),
        ("what is kRingDepth", [1]),
        ("who calls wait_slot", [2]),
        ("is_empty", []),  # defined in five files
        ("Nowhere::take_it", []),
    ],
)
def test_a_name_has_the_places_of_its_definition_or_file_or_else_of_its_mention(
    index: LexicalIndex, question: str, positions: list[int]
) -> None:
    found = named_places(index, question, np.ones(len(index), np.bool_))
    assert np.flatnonzero(found).tolist() == positions


def test_a_definition_scores_above_a_mention_and_one_file_above_two(index: LexicalIndex) -> None:
    everything = np.ones(len(index), np.bool_)
    places = {name: named_places(index, name, everything).max() for name in ("Ring::take", "take", "kRingDepth")}
    assert places["Ring::take"] > places["take"] > 0
    assert places["Ring::take"] > places["kRingDepth"] > 0


def test_only_files_that_are_asked_for_count(index: LexicalIndex) -> None:
    """Five files define it; two of them are in the folder that is asked for."""
    few = np.isin(np.arange(len(index)), [7, 8])
    assert np.flatnonzero(named_places(index, "is_empty", few)).tolist() == [7, 8]
    assert not named_places(index, "Ring::take", few).any()


def test_a_named_file_comes_before_what_a_concept_names(index: LexicalIndex) -> None:
    """The concept's sentence has the words around the name, and its code is elsewhere."""
    said = "where is the slot of a ring defined, and who uses it"
    concepts = Concepts(
        glossary(concept("c", terms=["slot of a ring"], asks=[said], code=["Queue"])), Meanings({"slot": 0}).embed
    )
    query = Query(words="where is Ring::take defined, the slot of a ring?")

    def first(**weights: float) -> int:
        scoring = Scoring(NoVectors(), index, concepts, SearchWeights(dense=0, **weights))
        return int(best(scoring.scores(query))[0])

    assert first() == 0
    assert first(named=0) == 2


def test_a_sure_question_is_answered_for_a_name_or_a_concept_only(index: LexicalIndex) -> None:
    concepts = Concepts(glossary(concept("c", terms=["fifo"], asks=["fifo"], code=["Queue"])), Meanings({}).embed)
    scoring = Scoring(NoVectors(), index, concepts, SearchWeights(dense=0, meaning=0))

    def found(words: str, *, sure: bool) -> bool:
        return bool(scoring.scores(Query(words=words, sure=sure)).any())

    assert found("an empty slot", sure=False)
    assert [found(words, sure=True) for words in ("an empty slot", "a slot of kRingDepth", "fifo")] == [False, True, True]


class NoVectors:
    def nearest(self, *_: object) -> list[tuple[str, float]]:
        raise AssertionError

    def embed_query(self, _: str) -> np.ndarray:
        raise AssertionError
