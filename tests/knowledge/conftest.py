"""The index of the notes that ship, built once for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.index.indexing import refresh_notes, writing
from cudal2_agent.agent.index.knowledge_base import open_library
from cudal2_agent.contract.events import Event
from cudal2_agent.contract.records.knowledge import Retriever
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.knowledge.search import open_search


@pytest.fixture(scope="session")
def notes_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose knowledge base contains only the notes."""
    home = tmp_path_factory.mktemp("notes")
    settings = Settings(home=home, index_jobs=1)
    with writing(settings, _unheard) as store:
        refresh_notes(store, settings, _unheard)
    return home


@pytest.fixture(scope="session")
def notes(notes_home: Path) -> Iterator[Retriever]:
    with open_library(Settings(home=notes_home)) as store:
        yield open_search(store)


def _unheard(_: Event) -> None:
    pass
