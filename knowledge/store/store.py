"""The knowledge base: file versions held once, releases that list them, their vectors and the lexical index."""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Self

from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from contract.base import digest
from contract.errors import KnowledgeError, ModelMismatch
from contract.knowledge import Piece, Release, SplitFile, StoreCounts
from knowledge.embedding.embedder import Embedder, Vectors
from knowledge.store import reembedding, verification
from knowledge.store.database import get, open_reader, open_writer, put, translated, writing
from knowledge.store.generations import Generations
from knowledge.store.lock import write_lock
from knowledge.store.rows import Row, entries, rows_by_id, unpack
from knowledge.store.staging import StagedFile, batches, insert_batch, known
from knowledge.store.tables import files, members, pieces, releases
from knowledge.store.vectors import ChromaAddress, Document, VectorStore

_CACHED_FILES = 64


def open_store(
    folder: Path,
    embedder: Embedder,
    *,
    chroma_host: str | None = None,
    chroma_port: int = 8000,
    read_only: bool = False,
    rebuild: bool = False,
) -> "Store":
    """The knowledge base in a folder; a writer creates what is not there and holds the write lock until it is closed.

    A reader keeps the state that it opened, whatever is published meanwhile. `rebuild`: open it although its vectors
    come from another model, for `reembed`.
    Raises: KnowledgeError, ModelMismatch, KnowledgeBusy.
    """
    with ExitStack() as opened, translated(folder):
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
            opened.enter_context(write_lock(folder))
        engine = open_reader(folder) if read_only else open_writer(folder)
        opened.callback(engine.dispose)
        store = Store(folder, engine, embedder, chroma_host, chroma_port, read_only=read_only)
        opened.callback(store.release)
        store.check(rebuild=rebuild)
        store.keep_open(opened.pop_all())
        return store


class Store:
    """`contract.knowledge.KnowledgeStore`, and what search reads. Threads may share it."""

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
        """What `close` is to let go of."""
        self._resources = resources

    def release(self) -> None:
        """End the snapshot and the connection to Chroma."""
        self._vectors.close()
        if self._snapshot is not None:
            self._snapshot.close()

    def check(self, *, rebuild: bool) -> None:
        """The model is the recorded one and the lexical index is whole; a writer records and rebuilds what it can."""
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

    # What search reads.

    @property
    def lexical_dir(self) -> Path:
        """The lexical index of the generation that this store shows."""
        return self._generations.path(self.generation)

    def rows(self, piece_ids: Sequence[int]) -> list[Row]:
        """Pieces by id, in the order asked for."""
        with self._reading() as connection:
            return rows_by_id(connection, piece_ids)

    def text(self, file_key: str) -> tuple[str, ...]:
        """The lines of a file version. Raises: KnowledgeError where it is not held."""
        return self._lines(file_key)

    def nearest(self, vector: Vectors, count: int, ids: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """(vector id, cosine distance) of the nearest texts, staged ones and those of older states included."""
        with self._reading() as connection:
            if not _has_vectors(connection):
                return []
        return self._vectors.nearest(vector, count, ids)

    def embed_query(self, words: str) -> Vectors:
        """The vector of a question. Shape: (dimensions,)."""
        vector: Vectors = self._embedder.embed([words])[0]
        return vector

    # What the contract asks.

    def releases(self) -> list[Release]:
        with self._reading() as connection:
            records = connection.execute(select(releases.c.record).order_by(releases.c.name)).scalars()
            return [Release.model_validate_json(record) for record in records]

    def manifest(self, release: str) -> dict[str, str]:
        statement = select(members.c.path, files.c.key).join(files).where(members.c.release == release)
        with self._reading() as connection:
            found = connection.execute(statement.order_by(members.c.path))
            return {row.path: row.key for row in found}

    def held(self, keys: Collection[str]) -> set[str]:
        with self._reading() as connection:
            return known(connection, files.c.key, keys)

    def pieces(self, release: str) -> Iterator[tuple[str, Piece, str]]:
        statement = (
            select(members.c.path, pieces.c.record, pieces.c.text_digest)
            .join(pieces, pieces.c.file_id == members.c.file_id)
            .where(members.c.release == release)
            .order_by(members.c.path, pieces.c.id)
        )
        with self._reading() as connection:
            found = connection.execute(statement).all()
        for path, record, text_digest in found:
            yield path, Piece.model_validate_json(record), text_digest

    def stage(self, splits: Iterable[SplitFile], advance: Callable[[StoreCounts], None]) -> StoreCounts:
        """`advance` is told what each batch added; the answer is their sum."""
        self._writable()
        total = StoreCounts()
        for batch in batches(splits, self.held):
            counts = self._stage_batch(batch)
            total = StoreCounts(**{name: getattr(total, name) + getattr(counts, name) for name in StoreCounts.model_fields})
            advance(counts)
        return total

    def _stage_batch(self, batch: Sequence[StagedFile]) -> StoreCounts:
        """Vectors first, then the rows in one transaction: what is in the database has its vectors."""
        documents = [document for prepared in batch for document in prepared.documents if document]
        embedded = self._embed_missing({document.id: document for document in documents})
        with translated(self.folder), writing(self._engine) as connection:
            insert_batch(connection, batch)
        count = sum(len(prepared.split.pieces) for prepared in batch)
        return StoreCounts(pieces=count, embedded=embedded, reused=len(documents) - embedded)

    def _embed_missing(self, documents: dict[str, Document]) -> int:
        with self._reading() as connection:
            unknown = sorted(set(documents) - known(connection, pieces.c.vector_id, documents))
            first = not _has_vectors(connection)
        if not unknown:
            return 0
        if first:
            self._vectors.create()
        return reembedding.embed_missing(self._vectors, self._embedder, [documents[each] for each in unknown])

    def publish(self, release: Release, keys: dict[str, str]) -> None:
        self._writable()
        with self._next_generation() as connection:
            held = self._file_ids(connection, set(keys.values()))
            missing = sorted(path for path, key in keys.items() if key not in held)
            if missing:
                raise KnowledgeError(
                    f"release {release.name}: {len(missing)} files were never staged, first {missing[0]}; index it again"
                )
            connection.execute(delete(members).where(members.c.release == release.name))
            count = sum(held[key][1] for key in keys.values())
            record = release.model_copy(update={"files": len(keys), "pieces": count}).model_dump_json()
            statement = upsert(releases).values(name=release.name, record=record)
            connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"record": record}))
            rows = [{"release": release.name, "path": path, "file_id": held[key][0]} for path, key in keys.items()]
            if rows:
                connection.execute(insert(members), rows)

    def remove(self, release: str) -> None:
        """Raises: KnowledgeError where there is no such release."""
        self._writable()
        with self._next_generation() as connection:
            connection.execute(delete(members).where(members.c.release == release))
            if not connection.execute(delete(releases).where(releases.c.name == release)).rowcount:
                names = connection.execute(select(releases.c.name).order_by(releases.c.name)).scalars()
                raise KnowledgeError(f"no release {release!r} is indexed; there are: {', '.join(names) or 'none'}")

    def collect(self) -> int:
        self._writable()
        with translated(self.folder), writing(self._engine) as connection:
            unlisted = select(files.c.id).where(files.c.id.not_in(select(members.c.file_id)))
            embedded = _has_vectors(connection)
            connection.execute(delete(pieces).where(pieces.c.file_id.in_(unlisted)))
            dropped = connection.execute(delete(files).where(files.c.id.in_(unlisted))).rowcount
            wanted = set(connection.execute(select(pieces.c.vector_id).distinct()).scalars()) - {""}
        if embedded:
            self._vectors.remove(self._vectors.ids() - wanted)
        return dropped

    def verify(self) -> list[str]:
        with self._reading() as connection:
            return verification.problems(connection, self._generations, self._vectors)

    def reembed(self, advance: Callable[[int, int], None] = lambda _done, _total: None) -> int:
        """Make all vectors anew with this store's embedder in a new collection, then switch; how many there are.

        A killed run is continued by the next; until the switch the old vectors stay in use.
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
        """A transaction at whose end the lexical index is built and renamed, then everything is committed at once."""
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
            self._drop_others(-1)  # of a database that was deleted

    def _collection(self, number: int, identity: str) -> VectorStore:
        """Vectors have been made anew `number` times; each time has a folder of its own, on a server a collection."""
        address = ChromaAddress(self.folder / f"chroma-{number}", self._host, self._port)
        return VectorStore(address, f"{self._prefix}{number}-{digest(identity, length=8)}")

    @property
    def _prefix(self) -> str:
        return f"cudal2-{self._store_name}-"

    def _drop_others(self, number: int) -> None:
        """Delete all vectors of this store but those made last."""
        for path in self.folder.glob("chroma-[0-9]*"):
            if path.name != f"chroma-{number}":
                shutil.rmtree(path, ignore_errors=True)
        if self._host and number > 0:
            self._vectors.drop_others(self._prefix)

    @staticmethod
    def _file_ids(connection: Connection, keys: Collection[str]) -> dict[str, tuple[int, int]]:
        """(id, number of pieces) by key of the file versions that are held."""
        present = known(connection, files.c.key, keys)
        statement = select(files.c.key, files.c.id, files.c.pieces)
        return {key: (file_id, count) for key, file_id, count in connection.execute(statement) if key in present}

    def _read_lines(self, file_key: str) -> tuple[str, ...]:
        with self._reading() as connection:
            packed = connection.execute(select(files.c.text).where(files.c.key == file_key)).scalar_one_or_none()
        if packed is None:
            raise KnowledgeError(f"file version {file_key} is not in {self.folder}; run: cudal2-agent index verify")
        return tuple(unpack(packed).split("\n"))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A writer sees what is committed; a reader what was when it opened."""
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
            raise KnowledgeError(f"knowledge base {self.folder} was opened for reading; open it for writing")


def _has_vectors(connection: Connection) -> bool:
    return connection.execute(select(pieces.c.id).where(pieces.c.vector_id > "").limit(1)).first() is not None
