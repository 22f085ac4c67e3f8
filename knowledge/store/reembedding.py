"""Embeds documents that have no vector yet, and plans a rebuild of all vectors."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, bindparam, select, update

from cudal2_agent.contract.records.knowledge import Piece
from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.store.rows import unpack
from cudal2_agent.knowledge.store.staging import document
from cudal2_agent.knowledge.store.tables import files, pieces
from cudal2_agent.knowledge.store.vectors import Document, VectorStore

_BATCH = 512


def embed_missing(
    vectors: VectorStore,
    embedder: Embedder,
    documents: Sequence[Document],
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Embed the documents that are not in the collection, in batches. Returns their number. Ids are distinct."""
    held = vectors.held([document.id for document in documents])
    missing = [document for document in documents if document.id not in held]
    for start in range(0, len(missing), _BATCH):
        batch = missing[start : start + _BATCH]
        vectors.add(batch, embedder.embed([document.text for document in batch]))
        advance(len(held) + start + len(batch), len(documents))
    return len(missing)


def plan(connection: Connection) -> tuple[dict[str, Document], dict[int, str]]:
    """All documents by id, and the new vector ids of pieces whose recorded id differs."""
    documents: dict[str, Document] = {}
    changed: dict[int, str] = {}
    statement = select(pieces.c.id, pieces.c.file_id, files.c.path, pieces.c.record, pieces.c.vector_id).join(files)
    latest, lines = 0, list[str]()  # the file that was read last: its pieces are consecutive
    for piece_id, file_id, path, record, recorded in connection.execute(statement.order_by(pieces.c.file_id, pieces.c.id)):
        piece = Piece.model_validate_json(record)
        if file_id != latest:
            text = connection.execute(select(files.c.text).where(files.c.id == file_id)).scalar_one()
            latest, lines = file_id, unpack(text).split("\n")
        found = document(path, piece, "\n".join(lines[piece.start_line - 1 : piece.end_line]))
        if found:
            documents.setdefault(found.id, found)
        if recorded != (found.id if found else ""):
            changed[piece_id] = found.id if found else ""
    return documents, changed


def apply(connection: Connection, changed: dict[int, str]) -> None:
    """Record the new vector ids of these pieces."""
    if changed:
        statement = update(pieces).where(pieces.c.id == bindparam("piece")).values(vector_id=bindparam("vector"))
        connection.execute(statement, [{"piece": piece, "vector": vector} for piece, vector in changed.items()])
