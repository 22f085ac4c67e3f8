"""A Chroma server in place of a folder: in use, stopped while staging, and restarted."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.embedding.embedder import Vectors
from cudal2_agent.knowledge.store import KnowledgeBase, open_store
from tests.knowledge.store.samples import TinyModel, add, quiet, split_file


class Server:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        run = "from chromadb.cli.cli import app; app()"
        command = [sys.executable, "-c", run, "run", "--path", str(self._folder), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("the Chroma server did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def store(self, folder: Path, model: TinyModel, *, read_only: bool = False) -> KnowledgeBase:
        return open_store(folder, model, chroma_host="127.0.0.1", chroma_port=self.port, read_only=read_only)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.stop()


class StopsTheServer(TinyModel):
    """A model during whose second batch the server stops."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.asked:
            self._server.stop()
        return super().embed(texts)


def test_two_stores_share_a_server_without_touching_each_other(tmp_path: Path, server: Server) -> None:
    for name in ("a", "b"):
        with server.store(tmp_path / name, TinyModel()) as store:
            add(store, "1.0", [split_file(f"{name}.hpp")])
            assert not list((tmp_path / name).glob("chroma*"))
    with server.store(tmp_path / "a", TinyModel()) as store:
        store.remove("1.0")
        store.collect()
        assert store.reembed() == 0
    with server.store(tmp_path / "b", TinyModel(), read_only=True) as store:
        assert len(store.nearest(store.embed_query("x"), 5)) == 2
        assert store.verify() == []


def test_a_server_that_goes_away_is_one_error_and_the_next_run_goes_on(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2_agent.knowledge.store.staging._BATCH_PIECES", 6)
    splits = [split_file(f"new/{n}.hpp", 6) for n in range(5)]
    with server.store(tmp_path, TinyModel()) as store:
        add(store, "1.0", [split_file("old.hpp", 6)])
    with server.store(tmp_path, StopsTheServer(server)) as store:
        with pytest.raises(
            KnowledgeError, match=r"server 127.0.0.1:\d+ does not answer .*; start it, or unset CUDAL2_CHROMA"
        ) as told:
            add(store, "2.0", splits)
        assert "\n" not in str(told.value)
        assert len(store.held([split.key for split in splits])) == 1
    with server.store(tmp_path, TinyModel(), read_only=True) as store:
        assert [found.name for found in store.releases()] == ["1.0"]
        with pytest.raises(KnowledgeError, match="does not answer"):
            store.nearest(store.embed_query("x"), 5)
        assert any("does not answer" in line for line in store.verify())
    server.start()
    with server.store(tmp_path, TinyModel()) as store:
        assert store.stage(splits, quiet).pieces == 24
        add(store, "2.0", splits)
        assert store.verify() == []


def test_vectors_of_another_length_are_refused(tmp_path: Path) -> None:
    with open_store(tmp_path, TinyModel()) as store:
        add(store, "1.0", [split_file("a.hpp")])
    with open_store(tmp_path, TinyModel(dimensions=9)) as store:
        with pytest.raises(KnowledgeError, match=r"Chroma folder .*index rebuild"):
            add(store, "2.0", [split_file("b.hpp")])
        assert store.verify() == []
