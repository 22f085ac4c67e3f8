"""The store: writing, reading, and a store of an earlier version."""

import os
import zipfile
from pathlib import Path

import pytest

from cudal2_agent.agent.index.splitting import SPLITTER, split_and_analyse
from cudal2_agent.contract.errors import KnowledgeBusy, KnowledgeError, ModelMismatch
from cudal2_agent.contract.records.knowledge import Query, StoreCounts
from cudal2_agent.knowledge.search import open_search
from cudal2_agent.knowledge.store import open_store
from tests.knowledge.store.samples import TinyModel, add, filled, indexed, quiet, release, split_file
from tests.knowledge.trees import FIRST


# ---- a release is shown as it was published; file versions and vectors are stored once -------------------------------------
def test_a_release_reads_back_as_it_was_published(tmp_path: Path) -> None:
    splits = [split_file("a.hpp"), split_file("b/c.hpp", 5)]
    with open_store(tmp_path, TinyModel()) as store:
        add(store, "1.0", splits)
    with open_store(tmp_path, TinyModel(), read_only=True) as store:
        assert [(found.name, found.files, found.pieces) for found in store.releases()] == [("1.0", 2, 8)]
        assert store.manifest("1.0") == {split.path: split.key for split in splits}
        assert [(path, piece) for path, piece, _ in store.pieces("1.0")] == [
            (split.path, piece) for split in splits for piece in split.pieces
        ]
        rows = store.rows(list(reversed(indexed(store))))
        assert [row.piece for row in rows] == [piece for split in reversed(splits) for piece in reversed(split.pieces)]
        assert "\n".join(store.text(rows[0].file_key)) == splits[1].text
        assert store.verify() == []


def test_staged_files_are_invisible_until_published(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_store(tmp_path, TinyModel()) as store:
        split = split_file("new.hpp")
        store.stage([split], quiet)
        assert store.held([split.key, "nothing"]) == {split.key}
        with open_store(tmp_path, TinyModel(), read_only=True) as reader:
            assert len(reader.releases()) == 1
            assert len(indexed(reader)) == 12


def test_a_file_in_two_releases_is_embedded_once(tmp_path: Path) -> None:
    model = TinyModel()
    with open_store(tmp_path, model) as store:
        same = split_file("same.hpp")
        assert add(store, "1.0", [same]) == StoreCounts(pieces=3, embedded=2, reused=0)
        assert add(store, "1.1", [same, split_file("new.hpp")]) == StoreCounts(pieces=3, embedded=2, reused=0)
        assert len(model.asked) == len(set(model.asked)) == 4
        moved = same.model_copy(update={"path": "moved.hpp"})
        assert add(store, "1.2", [moved]) == StoreCounts(pieces=3, embedded=0, reused=2)


def test_nearest_finds_the_text_itself(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_store(tmp_path, TinyModel(), read_only=True) as store:
        vectors = indexed(store)
        (found, distance), *_ = store.nearest(store.embed_query("card 1 of include/f2.hpp "), 3)
        assert distance == pytest.approx(0, abs=1e-5)
        (row,) = store.rows([piece_id for piece_id, vector_id in vectors.items() if vector_id == found])
        assert (row.path, row.piece.symbol) == ("include/f2.hpp", "ns::f1")
        others = [each for each in vectors.values() if each not in ("", found)]
        assert found not in dict(store.nearest(store.embed_query("card 1 of include/f2.hpp "), 3, others))


def test_collect_drops_what_no_release_lists(tmp_path: Path) -> None:
    with open_store(tmp_path, TinyModel()) as store:
        kept, gone = split_file("kept.hpp"), split_file("gone.hpp")
        add(store, "1.0", [kept, gone])
        add(store, "1.0", [kept])
        assert store.collect() == 1
        assert store.held([kept.key, gone.key]) == {kept.key}
        assert len(store.nearest(store.embed_query("x"), 10)) == 2
        assert store.verify() == []
        store.remove("1.0")
        assert store.collect() == 1
        assert store.releases() == []
        assert store.nearest(store.embed_query("x"), 10) == []


def test_unknown_release_and_unstaged_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_store(tmp_path, TinyModel()) as store:
        generation = store.generation
        with pytest.raises(KnowledgeError, match=r"release '9.9' is not indexed; indexed releases: 1.0"):
            store.remove("9.9")
        with pytest.raises(KnowledgeError, match=r"never staged, first nowhere.hpp"):
            store.publish(release("1.0"), {"nowhere.hpp": "0" * 32})
        assert len(store.manifest("1.0")) == 4
        assert store.generation == generation
        assert store.verify() == []


def test_a_reader_keeps_the_state_it_opened(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_store(tmp_path, TinyModel(), read_only=True) as reader:
        before = reader.manifest("1.0")
        ids = list(indexed(reader))
        with open_store(tmp_path, TinyModel()) as store:
            for salt in ("x", "y"):
                add(store, "1.0", [split_file("include/f0.hpp", salt=salt)])
                store.collect()
        assert reader.manifest("1.0") == before
        assert [row.piece_id for row in reader.rows(ids)] == ids
        assert len(reader.text(next(iter(before.values())))) == 6


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    busy = pytest.raises(KnowledgeBusy, match=rf"process {os.getpid()} since 20.*wait for it or stop it")
    with open_store(tmp_path, TinyModel()), busy:
        open_store(tmp_path, TinyModel())
    open_store(tmp_path, TinyModel()).close()


def test_another_model_is_refused_until_the_vectors_are_made_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    for read_only in (True, False):
        with pytest.raises(ModelMismatch, match="'tiny-1', the setting is 'tiny-2'; run: cudal2-agent index rebuild"):
            open_store(tmp_path, TinyModel("tiny-2", 16), read_only=read_only)
    with open_store(tmp_path, TinyModel("tiny-2", 16), rebuild=True) as store:
        assert store.reembed() == 8
        assert store.verify() == []
        assert len(store.nearest(store.embed_query("x"), 20)) == 8
    with pytest.raises(ModelMismatch):
        open_store(tmp_path, TinyModel(), read_only=True)
    open_store(tmp_path, TinyModel("tiny-2", 16), read_only=True).close()


# ---- an index that version 0.1.0 made opens, answers, and needs no file split or embedded again ----------------------------
STORED = {name: text for name, text in FIRST.items() if name != "tile/haystack.hpp"}
FOUND = [
    ("ring/sm90_pipeline.hpp", "e087a85d9fb70017", 0.093726),
    ("ring/barrier.hpp", "00e5688c66a2ae36", 0.054545),
    ("ring/sm100_pipeline.hpp", "f2afd73d017f3b33", 0.051429),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).parent / "index_v1.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_a_stored_index_answers_as_before(folder: Path) -> None:
    with open_store(folder, TinyModel(), read_only=True) as store:
        assert [(each.name, each.files, each.pieces) for each in store.releases()] == [("ring-1.0", 5, 10), ("ring-1.1", 4, 8)]
        hits = open_search(store, asker=TinyModel()).search(Query(words="consumer releases a stage", count=3))
        assert [(hit.chunk.path, hit.chunk.id, hit.score) for hit in hits] == FOUND
        assert store.verify() == []


def test_a_stored_index_takes_in_a_release_without_splitting_or_embedding(folder: Path) -> None:
    model = TinyModel()
    splits = [split_and_analyse(name, text.encode()) for name, text in STORED.items()]
    with open_store(folder, model) as store:
        assert store.manifest("ring-1.0") == {split.path: split.key for split in splits}
        store.stage(splits, quiet)
        store.publish(release("ring-1.2"), {split.path: split.key for split in splits})
        assert model.asked == []
        assert store.held([split.key for split in splits]) == {split.key for split in splits}
        assert store.verify() == []


def test_a_rebuild_embeds_the_text_of_sections_and_the_cards_of_code(folder: Path) -> None:
    model = TinyModel()
    with open_store(folder, model) as store:
        store.reembed()
        assert any(text.startswith("The ring library") and "when the last read of it is done" in text for text in model.asked)
        assert not any("full_barrier[stage]" in text for text in model.asked)
        assert store.verify() == []


def test_the_identifiers_in_every_stored_index_stay() -> None:
    assert SPLITTER == "syntax-5 words-5"
