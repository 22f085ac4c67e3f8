"""Vectors in Chroma: a folder beside the database, or a server, with one collection per embedding model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.embedding.embedder import Vectors
from cudal2_agent.store.read_only import can_write, copied_folder

if TYPE_CHECKING:
    import chromadb
    from chromadb.api.client import Client
    from chromadb.api.collection_configuration import CreateCollectionConfiguration

_PAGE = 1000
# Every process replays the log since the last `sync_threshold` at its first query; ten times as many entries take a second.
_INDEX: CreateCollectionConfiguration = {
    "hnsw": {"space": "cosine", "ef_construction": 100, "ef_search": 100, "max_neighbors": 16, "sync_threshold": 1000}
}


@dataclass(frozen=True)
class ChromaAddress:
    """The location of Chroma: a server if `host` is given, else the folder."""

    folder: Path
    host: str | None = None
    port: int = 8000

    def __str__(self) -> str:
        return f"Chroma server {self.host}:{self.port}" if self.host else f"Chroma folder {self.folder}"


@dataclass(frozen=True)
class Document:
    """A text with a vector. Equal texts are one document. `id` is the digest of the text."""

    id: str
    text: str
    path: str
    symbol: str
    kind: str


class VectorStore:
    """The collection of one embedding model. The client is created at first use. Every error of Chroma is translated."""

    def __init__(self, address: ChromaAddress, collection: str) -> None:
        self._address = address
        self.collection = collection
        self._open: chromadb.Collection | None = None
        self._client: Client | None = None

    def create(self) -> None:
        """Create the collection if it does not exist."""
        with self._translated():
            self._open = self._connect().get_or_create_collection(
                self.collection, configuration=_INDEX, embedding_function=None
            )

    def drop_others(self, prefix: str) -> None:
        """Delete every other collection whose name starts with the prefix."""
        with self._translated():
            for name in [found.name for found in self._connect().list_collections()]:
                if name.startswith(prefix) and name != self.collection:
                    self._connect().delete_collection(name)

    def add(self, documents: Sequence[Document], vectors: Vectors) -> None:
        with self._translated():
            for start in range(0, len(documents), _PAGE):
                page = documents[start : start + _PAGE]
                self._get().upsert(
                    ids=[document.id for document in page],
                    embeddings=vectors[start : start + _PAGE],
                    metadatas=[{"path": document.path, "symbol": document.symbol, "kind": document.kind} for document in page],
                )

    def held(self, ids: Sequence[str]) -> set[str]:
        """The subset of the ids that have a vector."""
        found: set[str] = set()
        with self._translated():
            for start in range(0, len(ids), _PAGE):
                found.update(self._get().get(ids=list(ids[start : start + _PAGE]), include=[])["ids"])
        return found

    def ids(self) -> set[str]:
        with self._translated():
            return set(self._get().get(include=[])["ids"])

    def remove(self, ids: Collection[str]) -> None:
        listed = sorted(ids)
        with self._translated():
            for start in range(0, len(listed), _PAGE):
                self._get().delete(ids=listed[start : start + _PAGE])

    def nearest(self, vector: Vectors, count: int, ids: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """(id, cosine distance), nearest first, among `ids` if they are given."""
        if count < 1 or (ids is not None and not ids):
            return []
        with self._translated():
            answer = self._get().query(
                query_embeddings=np.atleast_2d(vector),
                n_results=count,
                ids=list(ids) if ids is not None else None,
                include=["distances"],
            )
        distances = answer["distances"]
        return list(zip(answer["ids"][0], distances[0], strict=True)) if distances else []

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._open = None

    def _get(self) -> chromadb.Collection:
        if self._open is None:
            if not self._address.host and not self._address.folder.exists():  # Chroma would create an empty folder
                raise self._missing()
            self._open = self._connect().get_collection(self.collection, embedding_function=None)
        return self._open

    def _connect(self) -> Client:
        if self._client is None:
            import chromadb
            from chromadb.config import Settings

            settings = Settings(anonymized_telemetry=False)
            try:
                if self._address.host:
                    client = chromadb.HttpClient(self._address.host, self._address.port, settings=settings)
                else:
                    client = chromadb.PersistentClient(str(_writable(self._address.folder)), settings)
            except AttributeError as exc:  # Chroma keeps a client that failed to start, and returns it again
                raise self._broken("it could not be opened before") from exc
            self._client = cast("Client", client)
        return self._client

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx
        from chromadb.errors import ChromaError, NotFoundError

        try:
            yield
        except NotFoundError as exc:
            raise self._missing() from exc
        except (httpx.HTTPError, ConnectionError) as exc:
            raise self._gone(exc) from exc
        except ValueError as exc:  # HttpClient raises it if the server does not answer, and for vectors of another length
            if "connect" in str(exc).lower():
                raise self._gone(exc) from exc
            raise KnowledgeError(f"{self._address} refused ({_first_line(exc)}); run: cudal2-agent index rebuild") from exc
        except (ChromaError, RuntimeError, OSError) as exc:
            raise self._broken(_first_line(exc)) from exc

    def _missing(self) -> KnowledgeError:
        return KnowledgeError(f"{self._address} has no vectors of this knowledge base; run: cudal2-agent index rebuild")

    def _broken(self, reason: str) -> KnowledgeError:
        return KnowledgeError(
            f"{self._address} failed ({reason}); check its space and permissions, "
            "or rebuild the vectors: cudal2-agent index rebuild"
        )

    def _gone(self, exc: Exception) -> KnowledgeError:
        return KnowledgeError(
            f"{self._address} does not answer ({_first_line(exc)}); start it, or unset CUDAL2_CHROMA_HOST for a local folder"
        )


def _first_line(exc: Exception) -> str:
    return str(exc).splitlines()[0][:200] if str(exc) else type(exc).__name__


def _writable(folder: Path) -> Path:
    """The folder, or a copy where it cannot be written: Chroma writes when it opens one."""
    file = folder / "chroma.sqlite3"
    return folder if not file.exists() or can_write(file) else copied_folder(folder, file.stat().st_mtime_ns)
