"""The index that a first run builds, and how a run continues when it cannot be built."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.index.default_index import EmptyRetriever, TolerantRetriever, open_retriever
from cudal2_agent.agent.observe.retrieval import look_up
from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.events import Event, IndexProgress, Notice
from cudal2_agent.contract.records.knowledge import Hit, Query
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.knowledge.store import open_store
from cudal2_agent.knowledge.store.lock import write_lock
from tests.doubles import TASK, ScriptedRetriever, WordEmbedder
from tests.doubles.small_base import plant, use_small_parts


def settings_in(folder: Path, cutlass: Path) -> Settings:
    return Settings(home=folder / "home", cutlass=str((cutlass / "tree").resolve()), index_jobs=1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `home` has the default index."""
    folder = tmp_path_factory.mktemp("template")
    plant(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_parts(monkeypatch, folder)
        releases_found(settings_in(folder, folder))
    return folder


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An empty index."""
    plant(tmp_path)
    use_small_parts(monkeypatch, tmp_path)
    return settings_in(tmp_path, tmp_path)


@pytest.fixture
def built(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The default index is there."""
    use_small_parts(monkeypatch, template)
    shutil.copytree(template / "home", tmp_path / "home")
    return settings_in(tmp_path, template)


def releases_found(settings: Settings, events: list[Event] | None = None) -> set[str]:
    """The releases of the hits that a run retrieves."""
    with open_retriever(settings, events.append if events is not None else (lambda _: None)) as retriever:
        return {hit.chunk.release for hit in look_up(retriever, ["release a buffer"], TASK, ["release a buffer"])}


def notices(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice)]


def test_the_first_run_builds_it_with_progress(settings: Settings) -> None:
    events: list[Event] = []
    assert releases_found(settings, events) == {"notes", "tree"}
    [notice] = notices(events)
    assert notice.startswith("building the index of notes and CUTLASS ")
    assert {event.release for event in events if isinstance(event, IndexProgress)} >= {"notes", "tree"}


def test_a_search_over_schedules_does_not_wait_for_it(settings: Settings) -> None:
    events: list[Event] = []
    with open_retriever(settings, events.append, build=False) as retriever:
        assert look_up(retriever, ["release a buffer"], TASK) == []
    assert events == []
    assert not settings.knowledge_dir.exists()


def test_the_next_run_finds_it(built: Settings) -> None:
    events: list[Event] = []
    assert releases_found(built, events) == {"notes", "tree"}
    assert events == []


def test_notes_that_a_later_version_ships_are_added(settings: Settings, tmp_path: Path) -> None:
    releases_found(settings)
    (tmp_path / "notes" / "pooling.md").write_text(
        "# Pooling\n\n## Windows\n\nA maximum over each window of a plane.\n", "utf-8"
    )
    events: list[Event] = []
    releases_found(settings, events)
    [notice] = notices(events)
    assert notice.startswith("building the index of notes, once")
    with open_retriever(settings, events.append) as retriever:
        assert "pooling.md" in {hit.chunk.path for hit in look_up(retriever, ["a maximum over each window"], TASK)}
    assert len(notices(events)) == 1


def test_it_is_not_asked_for(settings: Settings) -> None:
    events: list[Event] = []
    assert releases_found(settings.model_copy(update={"use_knowledge": False}), events) == set()
    assert events == []
    assert not settings.home.exists()


def test_a_release_that_cannot_be_had_leaves_the_notes(settings: Settings) -> None:
    without = settings.model_copy(update={"cutlass": str(settings.home / "absent")})
    for already in (["building"], ["building"]):
        events: list[Event] = []
        assert releases_found(without, events) == {"notes"}
        building, trouble = notices(events)
        assert building.startswith(already[0])
        assert "is not a file or folder" in trouble
        assert trouble.endswith("; the run goes on with notes (--no-knowledge leaves this out)")


def test_an_older_index_serves_where_the_new_release_cannot_be_had(built: Settings) -> None:
    events: list[Event] = []
    assert releases_found(built.model_copy(update={"cutlass": "./absent"}), events) == {"notes", "tree"}
    assert "the run goes on with notes, tree" in notices(events)[-1]


def test_another_writer_is_not_waited_for(settings: Settings) -> None:
    with open_store(settings.knowledge_dir, WordEmbedder()):
        events: list[Event] = []
        assert releases_found(settings, events) == set()
    assert "is being written by" in notices(events)[-1]
    assert "the run goes on without the knowledge base" in notices(events)[-1]


def test_a_base_that_another_process_has_just_begun(settings: Settings) -> None:
    settings.knowledge_dir.mkdir(parents=True)
    (settings.knowledge_dir / "knowledge.sqlite").touch()
    events: list[Event] = []
    with write_lock(settings.knowledge_dir):
        assert releases_found(settings, events) == set()
    assert "is being written by process" in notices(events)[-1]
    assert releases_found(settings) == {"notes", "tree"}, "an empty file that nobody fills is filled"


def test_another_writer_does_not_hide_what_is_there(built: Settings) -> None:
    with open_store(built.knowledge_dir, WordEmbedder()):
        assert releases_found(built.model_copy(update={"cutlass": "./absent"})) == {"notes", "tree"}


def test_another_model_is_never_mixed_in(built: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordEmbedder, "identity", "other-8")
    events: list[Event] = []
    assert releases_found(built, events) == set()
    [notice] = notices(events)
    assert "index rebuild" in notice


def test_a_damaged_base_is_said_and_left_alone(built: Settings) -> None:
    path = built.knowledge_dir / "knowledge.sqlite"
    for log in built.knowledge_dir.glob("knowledge.sqlite-*"):
        log.unlink()
    path.write_bytes(b"garbage " * 1000)
    events: list[Event] = []
    assert releases_found(built, events) == set()
    [notice] = notices(events)
    assert "is damaged" in notice
    assert path.read_bytes() == b"garbage " * 1000


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_chroma_server_that_is_away(settings: Settings, closed_port: int) -> None:
    away = settings.model_copy(update={"chroma_host": "127.0.0.1", "chroma_port": closed_port})
    events: list[Event] = []
    assert releases_found(away, events) == set()
    assert len(notices(events)) == 2
    assert f"127.0.0.1:{closed_port}" in notices(events)[-1]


def test_a_chroma_server_that_goes_away_later(built: Settings, closed_port: int) -> None:
    away = built.model_copy(update={"chroma_host": "127.0.0.1", "chroma_port": closed_port})
    events: list[Event] = []
    releases_found(away, events)
    [notice] = notices(events)
    assert f"127.0.0.1:{closed_port}" in notice


def test_an_interrupt_ends_the_run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cudal2_agent.agent.index.indexing.index_tree", interrupted)
    events: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        releases_found(settings, events)
    assert "the same command continues it" in notices(events)[-1]


class Failing:
    """Answers twice, then its server disappears."""

    asked = 0

    def search(self, query: Query) -> list[Hit]:
        self.asked += 1
        if self.asked > 2:
            raise KnowledgeError("the Chroma server is gone; start it again")
        return ScriptedRetriever().search(query)


def test_a_search_that_fails_in_mid_run_is_said_once() -> None:
    events: list[Event] = []
    failing = Failing()
    retriever = TolerantRetriever(failing, events.append)
    assert len(look_up(retriever, ["warps"], TASK, ["warps"])) == 2
    assert look_up(retriever, ["warps"], TASK) == []
    assert look_up(retriever, ["warps"], TASK) == []
    assert failing.asked == 3
    [notice] = events
    assert isinstance(notice, Notice)
    assert notice.message == "the Chroma server is gone; start it again; the run goes on without the knowledge base"


def test_other_errors_are_not_forgiven() -> None:
    class Broken:
        def search(self, _: Query) -> list[Hit]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TolerantRetriever(Broken(), lambda _: None).search(Query(words="x"))


def test_without_knowledge_there_are_no_hits() -> None:
    assert look_up(EmptyRetriever(), ["warps"], TASK) == []
