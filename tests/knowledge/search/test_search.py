"""Search in a small invented library with two releases: filters, twins, versions, files, budgets, damage."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudal2_agent.agent.index.splitting import split_and_analyse
from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.records.knowledge import Hit, Query, Retriever, fits
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex
from cudal2_agent.knowledge.search import open_search
from cudal2_agent.knowledge.search.selection import MAX_LINES
from cudal2_agent.knowledge.search.weights import SearchWeights
from cudal2_agent.knowledge.store import KnowledgeBase, open_store
from tests.knowledge.indexes import NO_GLOSSARY, Meanings, concept, glossary
from tests.knowledge.store.samples import quiet
from tests.knowledge.trees import FIRST, SECOND, lines_of, take_in

MODEL = Meanings({"giv": 0, "hand": 0, "bank": 1, "collide": 1, "phase": 2})
GLOSSARY = glossary(
    concept("giving back", terms=["free a slot"], asks=["hand the slot to the loader again"], code=["Sm90Pipeline"]),
    concept("folding", terms=["folding of tiles"], asks=["rows collide in memory"], code=["XorFold::apply"]),
    concept("arriving", terms=["rendezvous"], asks=["the phase of a counter flips"], code=["PhaseBarrier"]),
)
FILES = {"ring-1.9": FIRST, "ring-1.10": SECOND}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    folder = tmp_path_factory.mktemp("ring")
    with open_store(folder, MODEL) as writer:
        for name, files in FILES.items():
            take_in(writer, name, files)
    with open_store(folder, MODEL, read_only=True) as reader:
        yield reader


@pytest.fixture(scope="module")
def ring(store: KnowledgeBase) -> Retriever:
    return open_search(store, glossary=GLOSSARY, asker=MODEL)


def words_alone(store: KnowledgeBase, **weights: float) -> Retriever:
    return open_search(store, SearchWeights(concepts=0, dense=0, **weights), GLOSSARY, MODEL)


def paths(hits: list[Hit]) -> list[str]:
    return [hit.chunk.path for hit in hits]


MUCH = "stage barrier bank total consumer_release fold ring"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("frobnicate", "tile/haystack.hpp"),
        ("XorFold", "tile/xor_fold.hpp"),
        ("xor fold", "tile/xor_fold.hpp"),
        ("try_wait flipped noexcept", "ring/barrier.hpp"),
        ("consumer_release is_leader", "ring/sm90_pipeline.hpp"),
        ("sm100 consumer_release on Blackwell", "ring/sm100_pipeline.hpp"),
        ("when the last read is done", "doc/guide.md"),
    ],
)
def test_words_find_their_file(store: KnowledgeBase, words: str, path: str) -> None:
    assert paths(words_alone(store).search(Query(words=words)))[0] == path


def test_vectors_find_what_shares_no_word(store: KnowledgeBase) -> None:
    words = Query(words="collide")
    assert words_alone(store).search(words) == []
    dense = open_search(store, SearchWeights(concepts=0), GLOSSARY, MODEL).search(words)
    assert {"tile/xor_fold.hpp", "doc/guide.md"} <= set(paths(dense)[:2])


@pytest.mark.parametrize(
    ("words", "path"),
    [("free a slot", "ring/sm90_pipeline.hpp"), ("folding of tiles", "tile/xor_fold.hpp"), ("rendezvous", "ring/barrier.hpp")],
)
def test_the_glossary_finds_what_shares_no_word(store: KnowledgeBase, words: str, path: str) -> None:
    weights = SearchWeights(dense=0, lexical=0)
    assert paths(open_search(store, weights, GLOSSARY, MODEL).search(Query(words=words)))[0] == path
    assert open_search(store, weights, NO_GLOSSARY, MODEL).search(Query(words=words)) == []


def test_the_glossarys_code_words_leave_documents_alone(store: KnowledgeBase) -> None:
    """The guide contains `consumer_release`, which the concept names."""
    named = glossary(concept("c", terms=["zebra"], asks=["zebra"], code=["Nowhere::consumer_release"]))
    hits = open_search(store, SearchWeights(dense=0, lexical=0), named, MODEL).search(Query(words="zebra", count=50))
    assert "ring/sm90_pipeline.hpp" in paths(hits)
    assert "doc/guide.md" not in paths(hits)


# Filters.


@pytest.mark.parametrize("names", [("ring-1.9",), ("ring-1.10",), ("ring-1.9", "ring-1.10")])
def test_only_the_releases_asked_for(ring: Retriever, names: tuple[str, ...]) -> None:
    hits = ring.search(Query(words=MUCH, releases=names, count=50))
    assert {hit.chunk.release for hit in hits} <= set(names)
    assert ("tile/xor_fold.hpp" in paths(hits)) is ("ring-1.9" in names)
    assert_true_to_files(hits)


def assert_true_to_files(hits: list[Hit]) -> None:
    """Every hit shows lines of its file in its release, including those that matched."""
    assert hits
    for hit in hits:
        chunk = hit.chunk
        assert chunk.text == lines_of(FILES[chunk.release], chunk.path, (chunk.start_line, chunk.end_line))
        assert hit.matched is not None
        assert chunk.start_line <= hit.matched[0] <= hit.matched[1] <= chunk.end_line
        assert chunk.end_line - chunk.start_line < MAX_LINES


def test_each_release_has_its_own_lines(store: KnowledgeBase) -> None:
    search = words_alone(store).search
    first, second = (search(Query(words="PhaseBarrier", releases=(name,)))[0] for name in FILES)
    assert (first.chunk.release, second.chunk.release) == ("ring-1.9", "ring-1.10")
    assert second.chunk.text.startswith("// One line.")
    assert second.matched == (first.matched[0] + 3, first.matched[1] + 3)
    assert first.chunk.id != second.chunk.id


def test_the_latest_version_comes_first_and_holds_the_older_one(store: KnowledgeBase) -> None:
    """1.10 is later than 1.9; the barrier changed by one word, so both versions match."""
    hits = words_alone(store).search(Query(words="PhaseBarrier flipped", count=50))
    barriers = [hit for hit in hits if hit.chunk.path == "ring/barrier.hpp"]
    assert [hit.chunk.release for hit in barriers] == ["ring-1.10"]
    assert barriers[0].twins == ()


def test_an_older_version_that_is_asked_for_is_not_set_back(store: KnowledgeBase) -> None:
    query = Query(words="counts arrivals flipped try_wait phase", releases=("ring-1.9",))
    orders = [paths(words_alone(store, older=older).search(query)) for older in (1.0, 0.01)]
    assert orders[0] == orders[1]
    assert orders[0][0] == "ring/barrier.hpp"


def test_what_is_gone_from_the_latest_release_is_found_in_the_one_before(store: KnowledgeBase) -> None:
    assert words_alone(store).search(Query(words="XorFold"))[0].chunk.release == "ring-1.9"


def test_what_both_releases_hold_is_shown_from_the_latest(ring: Retriever) -> None:
    assert ring.search(Query(words="frobnicate"))[0].chunk.release == "ring-1.10"


@pytest.mark.parametrize("kinds", [("section",), ("class",), ("function", "section")])
def test_only_the_kinds_asked_for(ring: Retriever, kinds: tuple[str, ...]) -> None:
    assert {hit.chunk.kind for hit in ring.search(Query(words=MUCH, kinds=kinds, count=50))} == set(kinds)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("ring", {"ring/barrier.hpp", "ring/sm90_pipeline.hpp"}),
        ("ring/", {"ring/barrier.hpp", "ring/sm90_pipeline.hpp"}),
        ("ring/barrier.hpp", {"ring/barrier.hpp"}),
        ("*.md", {"doc/guide.md"}),
        ("*/sm[0-9]*_pipeline.hpp", {"ring/sm90_pipeline.hpp"}),
        ("?ile/xor*", {"tile/xor_fold.hpp"}),
    ],
)
def test_only_the_paths_asked_for(store: KnowledgeBase, path: str, inside: set[str]) -> None:
    hits = words_alone(store).search(Query(words=MUCH, path=path, count=50))
    assert {hit.chunk.path for hit in hits} - {"ring/sm100_pipeline.hpp"} == inside


@pytest.mark.parametrize(
    "path",
    [
        "../ring",
        "/ring",
        "/",
        "./ring",
        "ring/../ring",
        "ring\\barrier.hpp",
        "rin",
        "[",
        "ring\0",
        "RING",
        "ring/barrier.hpp/x",
    ],
)
def test_odd_paths_find_nothing(ring: Retriever, path: str) -> None:
    assert ring.search(Query(words=MUCH, path=path)) == []


@pytest.mark.parametrize("words", [{"releases": ("none",)}, {"kinds": ("none",)}, {"releases": ("ring",)}, {"kinds": ("",)}])
def test_a_filter_that_nothing_passes(ring: Retriever, words: dict[str, tuple[str, ...]]) -> None:
    assert ring.search(Query(words=MUCH, **words)) == []


def test_a_narrow_filter_finds_by_vector_too(store: KnowledgeBase) -> None:
    search = open_search(store, SearchWeights(concepts=0, lexical=0), GLOSSARY, MODEL)
    assert paths(search.search(Query(words="collide", path="doc"))) == ["doc/guide.md"]


@pytest.mark.parametrize("arch", list(Arch))
def test_only_what_holds_for_the_target(ring: Retriever, arch: Arch) -> None:
    hits = ring.search(Query(words=MUCH, arch=arch, only_arch=True, count=50))
    assert all(fits(hit.chunk.archs, arch) for hit in hits)
    assert ("ring/sm100_pipeline.hpp" in paths(hits)) is (arch == Arch.SM_100A)
    assert ("ring/sm90_pipeline.hpp" in paths(hits)) is (arch == Arch.SM_90A)
    assert "tile/haystack.hpp" in paths(hits)


def test_the_target_is_preferred(store: KnowledgeBase) -> None:
    for arch, path in ((Arch.SM_90A, "ring/sm90_pipeline.hpp"), (Arch.SM_100A, "ring/sm100_pipeline.hpp")):
        hits = words_alone(store).search(Query(words="consumer_release of a pipeline", arch=arch, path="ring"))
        assert paths(hits)[0] == path


# What is shown.


def test_the_like_for_another_target_is_folded(store: KnowledgeBase) -> None:
    """Only the classes are searched: the lines before them are not folded."""
    query = Query(words="consumer_release producer_acquire", kinds=("class",), path="ring", count=50)
    folded = words_alone(store).search(query)
    assert paths(folded).count("ring/sm100_pipeline.hpp") == 0
    assert folded[0].chunk.path == "ring/sm90_pipeline.hpp"
    assert folded[0].twins == ("ring/sm100_pipeline.hpp",)
    apart = words_alone(store, alike=2).search(query)
    assert {"ring/sm90_pipeline.hpp", "ring/sm100_pipeline.hpp"} <= set(paths(apart))
    assert all(hit.twins == () for hit in apart)


def test_the_first_hits_are_of_distinct_files(store: KnowledgeBase) -> None:
    query = Query(words="total factor table " * 3 + "phase stage", kinds=("class", "function"), count=8)
    first = paths(words_alone(store, distinct=3).search(query))
    assert len(set(first[:3])) == 3
    assert first.count("tile/haystack.hpp") > 1
    assert paths(words_alone(store, distinct=1).search(query))[:2] == ["tile/haystack.hpp"] * 2


@pytest.mark.parametrize("per_file", [1, 2])
def test_a_file_gives_a_few_hits_at_most(store: KnowledgeBase, per_file: int) -> None:
    hits = words_alone(store, per_file=per_file).search(Query(words="total table factor", count=50))
    assert paths(hits).count("tile/haystack.hpp") == per_file


def test_what_was_found_is_never_shown_twice(ring: Retriever) -> None:
    hits = ring.search(Query(words=MUCH, count=100))
    found = [(hit.chunk.path, line) for hit in hits for line in range(hit.matched[0], hit.matched[1] + 1)]
    assert len(set(found)) == len(found)
    assert len({hit.chunk.id for hit in hits}) == len(hits)


def test_hits_are_true_to_their_files(ring: Retriever) -> None:
    for words in (MUCH, "frobnicate", "total", "struct"):
        assert_true_to_files(ring.search(Query(words=words, count=50)))


def test_equal_questions_get_equal_hits(store: KnowledgeBase, ring: Retriever) -> None:
    query = Query(words=MUCH, count=20)
    assert ring.search(query) == ring.search(query) == open_search(store, glossary=GLOSSARY, asker=MODEL).search(query)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4000), st.integers(1, 8), st.sampled_from([MUCH, "frobnicate", "total table"]))
def test_the_budget_is_never_exceeded(ring: Retriever, tokens: int, count: int, words: str) -> None:
    hits = ring.search(Query(words=words, tokens=tokens, count=count))
    assert sum(hit.chunk.tokens for hit in hits) <= tokens
    for hit in hits:
        assert hit.chunk.text == lines_of(FILES[hit.chunk.release], hit.chunk.path, (hit.chunk.start_line, hit.chunk.end_line))


def test_a_tight_budget_shows_the_lines_that_were_found(ring: Retriever) -> None:
    query = Query(words="frobnicate", count=1)
    whole = ring.search(query)[0]
    assert whole.matched is not None
    tight = ring.search(query.model_copy(update={"tokens": whole.chunk.tokens - 1}))[0]
    assert (tight.chunk.start_line, tight.chunk.end_line) == whole.matched
    assert "frobnicate" in tight.chunk.text
    assert tight.score == whole.score


def test_what_does_not_fit_leaves_room_for_what_does(ring: Retriever) -> None:
    query = Query(words="frobnicate total PhaseBarrier", count=6)
    assert {"tile/haystack.hpp", "ring/barrier.hpp"} <= set(paths(ring.search(query)))
    tight = paths(ring.search(query.model_copy(update={"tokens": 200})))
    assert "ring/barrier.hpp" in tight
    assert "tile/haystack.hpp" not in tight


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_at_most_the_count(ring: Retriever, count: int) -> None:
    assert len(ring.search(Query(words=MUCH, count=count))) == count


@pytest.mark.parametrize("fusion", ["rank", "score"])
def test_either_fusion_orders_by_score(store: KnowledgeBase, fusion: str) -> None:
    hits = open_search(store, SearchWeights.model_validate({"fusion": fusion}), GLOSSARY, MODEL).search(
        Query(words=MUCH, count=5)
    )
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] > 0


# The edges of the store.


def test_an_empty_knowledge_base_has_no_answer(tmp_path: Path) -> None:
    with open_store(tmp_path, MODEL) as writer:
        take_in(writer, "ring-1.9", {"a.hpp": _NOTHING})
        take_in(writer, "ring-1.10", FIRST)
        writer.remove("ring-1.10")
        writer.remove("ring-1.9")
    with open_store(tmp_path, MODEL, read_only=True) as reader:
        assert open_search(reader, glossary=GLOSSARY, asker=MODEL).search(Query(words=MUCH)) == []


_NOTHING = "#pragma once\n"


def test_a_removed_release_is_not_found(tmp_path: Path) -> None:
    with open_store(tmp_path, MODEL) as writer:
        for name, files in FILES.items():
            take_in(writer, name, files)
        writer.remove("ring-1.9")
        writer.collect()
    with open_store(tmp_path, MODEL, read_only=True) as reader:
        hits = open_search(reader, glossary=GLOSSARY, asker=MODEL).search(Query(words=MUCH, count=50))
        assert {hit.chunk.release for hit in hits} == {"ring-1.10"}
        assert "tile/xor_fold.hpp" not in paths(hits)
        assert_true_to_files(hits)


def test_a_damaged_lexical_index_is_said_when_search_opens(tmp_path: Path) -> None:
    class Elsewhere:
        folder = tmp_path
        lexical_dir = tmp_path

    with pytest.raises(KnowledgeError, match="is damaged"):
        open_search(Elsewhere(), glossary=GLOSSARY, asker=MODEL)  # type: ignore[arg-type]


def test_staged_files_are_not_found(tmp_path: Path) -> None:
    """The vectors are already in Chroma."""
    with open_store(tmp_path, MODEL) as writer:
        take_in(writer, "ring-1.9", {"ring/barrier.hpp": FIRST["ring/barrier.hpp"]})
        writer.stage([split_and_analyse("tile/xor_fold.hpp", FIRST["tile/xor_fold.hpp"].encode())], quiet)
        hits = open_search(writer, glossary=GLOSSARY, asker=MODEL).search(Query(words="bank XorFold collide phase"))
    assert paths(hits) == ["ring/barrier.hpp"]


def test_the_scores_of_a_position_are_of_its_piece(store: KnowledgeBase) -> None:
    """The arrays of index and store are aligned for any order of files in the database."""
    index = LexicalIndex(store.lexical_dir)
    rows = store.rows(index.column("piece_id").tolist())
    assert [row.path for row in rows] == [index.value("path", place) for place in range(len(index))]
    assert np.array_equal(index.column("start"), [row.piece.start_line for row in rows])
