"""An index that version 0.1.0 made opens, answers, and needs no file split or embedded again.

`index_v1.zip` is the folder of a knowledge base with the files of `tests.knowledge.trees`, without the long one.
"""

import zipfile
from pathlib import Path

import pytest

from cudal2_agent.agent.index.splitting import SPLITTER, split_and_analyse
from cudal2_agent.contract.records.knowledge import Query
from cudal2_agent.knowledge.search import open_search
from cudal2_agent.knowledge.store import open_store
from tests.knowledge.store.samples import TinyModel, quiet, release
from tests.knowledge.trees import FIRST

STORED = {name: text for name, text in FIRST.items() if name != "tile/haystack.hpp"}
FOUND = [
    ("ring/sm90_pipeline.hpp", "e087a85d9fb70017", 0.084049),
    ("ring/barrier.hpp", "00e5688c66a2ae36", 0.045455),
    ("ring/sm100_pipeline.hpp", "f2afd73d017f3b33", 0.042857),
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


def test_the_identifiers_in_every_stored_index_stay() -> None:
    assert SPLITTER == "syntax-5 words-3"
