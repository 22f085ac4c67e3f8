"""The knowledge base: file versions, each stored once, releases that list them, vectors and the lexical index."""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Self

from sqlalchemy import Connection, Engine, select

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import KnowledgeError, ModelMismatch
from cudal2_agent.contract.file_system import REMEDY, require_local
from cudal2_agent.contract.records.knowledge import Piece, Release, SplitFile, StoreCounts
from cudal2_agent.knowledge.embedding.embedder import Embedder, Vectors
from cudal2_agent.knowledge.store import integrity, reembedding
from cudal2_agent.knowledge.store.database import get, open_reader, open_writer, put, translated, writing
from cudal2_agent.knowledge.store.generations import Generations
from cudal2_agent.knowledge.store.lock import write_lock
from cudal2_agent.knowledge.store.rows import Row, entries, has_vectors, manifest_of, pieces_of, rows_by_id, unpack
from cudal2_agent.knowledge.store.staging import (
    StagedFile,
    batches,
    delete_release,
    delete_unlisted,
    insert_batch,
    known,
    put_release,
)
from cudal2_agent.knowledge.store.tables import files, pieces, releases
from cudal2_agent.knowledge.store.vectors import ChromaAddress, Document, VectorStore

_CACHED_FILES = 64


def open_store(
    folder: Path,
    embedder: Embedder,
    *,
    chroma_host: str | None = None,
    chroma_port: int = 8000,
    read_only: bool = False,
    rebuild: bool = False,
) -> "KnowledgeBase":
    """The knowledge base in a folder. A writer creates a missing one and holds the write lock until it is closed.

    A reader sees the state at its opening, regardless of later releases. `rebuild`: open it for `reembed`, although its
    vectors come from another model.
    Raises: KnowledgeError, ModelMismatch, KnowledgeBusy; UsageError on a network file system.
    """
    require_local(folder, "knowledge base", f"{REMEDY}, or CUDAL2_KNOWLEDGE")
    with ExitStack() as opened, translated(folder):
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
            opened.enter_context(write_lock(folder))
        engine = open_reader(folder) if read_only else open_writer(folder)
        opened.callback(engine.dispose)
        store = KnowledgeBase(folder, engine, embedder, chroma_host, chroma_port, read_only=read_only)
        opened.callback(store.release)
        store.check(rebuild=rebuild)
        store.keep_open(opened.pop_all())
        return store


class KnowledgeBase:
    """Implements `contract.records.knowledge.KnowledgeStore` and the reads of the search. Threads may share it."""

    def __init__(
        self, folder: Path, engine: Engine, embedder: Embedder, host: str | None, port: int, *, read_only: bool
    ) -> None:
        self.folder = folder
        self._engine = engine
        self._embedder = embedder
        self._host = host
        self._port = port
        self._read_only = read_only
        self._generations = Generations(folder / "lexical")
        self._turn = RLock()
        self._snapshot: Connection | None = None
        self._resources = ExitStack()
        self._lines = lru_cache(maxsize=_CACHED_FILES)(self._read_lines)
        with self._reading() as connection:
            self.generation = int(get(connection, "generation"))
            self._store_name = get(connection, "store")
            self._vectors = self._collection(int(get(connection, "collections")), get(connection, "embedder"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._resources.close()

    def keep_open(self, resources: ExitStack) -> None:
        """Keep resources open until `close`."""
        self._resources = resources

    def release(self) -> None:
        """Close the snapshot and the connection to Chroma."""
        self._vectors.close()
        if self._snapshot is not None:
            self._snapshot.close()

    def check(self, *, rebuild: bool) -> None:
        """Check that the model is the recorded one and that the lexical index is complete. A writer rebuilds the index."""
        with self._reading() as connection:
            recorded = get(connection, "embedder")
        if not recorded:
            self._record_model()
        elif recorded != self._embedder.identity and not rebuild:
            raise ModelMismatch(
                f"knowledge base {self.folder} holds vectors of {recorded!r}, the setting is {self._embedder.identity!r}; "
                "run: cudal2-agent index rebuild, or set CUDAL2_EMBEDDING_MODEL back"
            )
        if self.generation and not self._generations.whole(self.generation):
            self._mend_generation()

    # Reads of the search.
    @property
    def lexical_dir(self) -> Path:
        """The lexical index of the generation that is shown. Raises: KnowledgeError before the first release is finished."""
        if not self.generation:
            raise KnowledgeError(
                f"knowledge base {self.folder} is unfinished: no release is complete; to go on, repeat: cudal2-agent index add"
            )
        return self._generations.path(self.generation)

    def rows(self, piece_ids: Sequence[int]) -> list[Row]:
        """Pieces by id, in the order of the ids."""
        with self._reading() as connection:
            return rows_by_id(connection, piece_ids)

    def text(self, file_key: str) -> tuple[str, ...]:
        """The lines of a file version. Raises: KnowledgeError if it is not stored."""
        return self._lines(file_key)

    def nearest(self, vector: Vectors, count: int, ids: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """(vector id, cosine distance) of the nearest texts, including staged texts and those of older states."""
        with self._reading() as connection:
            if not has_vectors(connection):
                return []
        return self._vectors.nearest(vector, count, ids)

    def embed_query(self, words: str) -> Vectors:
        """The vector of a question. Shape: (dimensions,)."""
        vector: Vectors = self._embedder.embed([words])[0]
        return vector

    # `KnowledgeStore`.
    def releases(self) -> list[Release]:
        with self._reading() as connection:
            records = connection.execute(select(releases.c.record).order_by(releases.c.name)).scalars()
            return [Release.model_validate_json(record) for record in records]

    def manifest(self, release: str) -> dict[str, str]:
        with self._reading() as connection:
            return manifest_of(connection, release)

    def held(self, keys: Collection[str]) -> set[str]:
        with self._reading() as connection:
            return known(connection, files.c.key, keys)

    def pieces(self, release: str) -> Iterator[tuple[str, Piece, str]]:
        with self._reading() as connection:
            found = pieces_of(connection, release)
        for path, record, text_digest in found:
            yield path, Piece.model_validate_json(record), text_digest

    def stage(self, splits: Iterable[SplitFile], advance: Callable[[StoreCounts], None]) -> StoreCounts:
        """The counts of all batches. `advance` is called with the counts of each batch."""
        self._writable()
        total = StoreCounts()
        for batch in batches(splits, self.held):
            counts = self._stage_batch(batch)
            total = StoreCounts(**{name: getattr(total, name) + getattr(counts, name) for name in StoreCounts.model_fields})
            advance(counts)
        return total

    def _stage_batch(self, batch: Sequence[StagedFile]) -> StoreCounts:
        """Store the vectors first, then the rows in one transaction: every row in the database has its vector."""
        documents = [document for prepared in batch for document in prepared.documents if document]
        embedded = self._embed_missing({document.id: document for document in documents})
        with translated(self.folder), writing(self._engine) as connection:
            insert_batch(connection, batch)
        count = sum(len(prepared.split.pieces) for prepared in batch)
        return StoreCounts(pieces=count, embedded=embedded, reused=len(documents) - embedded)

    def _embed_missing(self, documents: dict[str, Document]) -> int:
        with self._reading() as connection:
            unknown = sorted(set(documents) - known(connection, pieces.c.vector_id, documents))
            first = not has_vectors(connection)
        if not unknown:
            return 0
        if first:
            self._vectors.create()
        return reembedding.embed_missing(self._vectors, self._embedder, [documents[each] for each in unknown])

    def publish(self, release: Release, keys: dict[str, str]) -> None:
        self._writable()
        with self._next_generation() as connection:
            put_release(connection, release, keys)

    def remove(self, release: str) -> None:
        """Remove a release. Raises: KnowledgeError if there is no such release."""
        self._writable()
        with self._next_generation() as connection:
            delete_release(connection, release)

    def collect(self) -> int:
        self._writable()
        with translated(self.folder), writing(self._engine) as connection:
            embedded = has_vectors(connection)
            dropped = delete_unlisted(connection)
            wanted = set(connection.execute(select(pieces.c.vector_id).distinct()).scalars()) - {""}
        if embedded:
            self._vectors.remove(self._vectors.ids() - wanted)
        return dropped

    def verify(self) -> list[str]:
        with self._reading() as connection:
            return integrity.problems(connection, self._generations, self._vectors)

    def reembed(self, advance: Callable[[int, int], None] = lambda _done, _total: None) -> int:
        """Embed all texts with this embedder into a new collection, then switch to it. Returns their number.

        After a kill, the next call continues. The old vectors stay in use until the switch.
        """
        self._writable()
        with self._reading() as connection:
            number = int(get(connection, "collections")) + 1
            documents, changed = reembedding.plan(connection)
        vectors = self._collection(number, self._embedder.identity)
        vectors.create()
        reembedding.embed_missing(vectors, self._embedder, list(documents.values()), advance)
        with self._next_generation() as connection:
            reembedding.apply(connection, changed)
            put(connection, collections=str(number), embedder=self._embedder.identity)
        self._vectors.close()
        self._vectors = vectors
        self._drop_others(number)
        return len(documents)

    @contextmanager
    def _next_generation(self) -> Iterator[Connection]:
        """A transaction. At its end the lexical index is built and renamed, and then everything is committed at once."""
        with translated(self.folder), writing(self._engine) as connection:
            yield connection
            generation = int(get(connection, "generation")) + 1
            self._generations.write(generation, entries(connection))
            put(connection, generation=str(generation))
        self.generation = generation
        self._generations.prune(generation)

    def _mend_generation(self) -> None:
        if self._read_only:
            raise KnowledgeError(
                f"the lexical index in {self.lexical_dir} is missing or damaged; run: cudal2-agent index update"
            )
        with translated(self.folder), self._reading() as connection:
            self._generations.write(self.generation, entries(connection))

    def _record_model(self) -> None:
        if not self._read_only:
            with translated(self.folder), writing(self._engine) as connection:
                put(connection, embedder=self._embedder.identity)
            self._vectors = self._collection(0, self._embedder.identity)
            self._drop_others(-1)  # left by a database that was deleted

    def _collection(self, number: int, identity: str) -> VectorStore:
        """The collection of vectors after `number` rebuilds. Each has its own folder, or its own collection on a server."""
        address = ChromaAddress(self.folder / f"chroma-{number}", self._host, self._port)
        return VectorStore(address, f"{self._prefix}{number}-{digest(identity, length=8)}")

    @property
    def _prefix(self) -> str:
        return f"cudal2-{self._store_name}-"

    def _drop_others(self, number: int) -> None:
        """Delete all vectors of this knowledge base except those of collection `number`."""
        for path in self.folder.glob("chroma-[0-9]*"):
            if path.name != f"chroma-{number}":
                shutil.rmtree(path, ignore_errors=True)
        if self._host and number > 0:
            self._vectors.drop_others(self._prefix)

    def _read_lines(self, file_key: str) -> tuple[str, ...]:
        with self._reading() as connection:
            packed = connection.execute(select(files.c.text).where(files.c.key == file_key)).scalar_one_or_none()
        if packed is None:
            raise KnowledgeError(f"file version {file_key} is not in {self.folder}; run: cudal2-agent index verify")
        return tuple(unpack(packed).split("\n"))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection. A writer sees what is committed, a reader the state at its opening."""
        with translated(self.folder):
            if not self._read_only:
                with self._engine.connect() as connection:
                    yield connection
                return
            with self._turn:
                if self._snapshot is None:
                    self._snapshot = self._engine.connect()
                yield self._snapshot

    def _writable(self) -> None:
        if self._read_only:
            raise KnowledgeError(f"knowledge base {self.folder} is open for reading only; open it for writing")
