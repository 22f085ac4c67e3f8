"""Turns split files into rows and documents, in batches that are durable one by one, and lists them as releases."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.records.knowledge import Piece, Release, SplitFile
from cudal2_agent.knowledge.lexical.analysis import Terms, analysed, embedded_text
from cudal2_agent.knowledge.store.rows import pack
from cudal2_agent.knowledge.store.tables import files, members, pieces, releases
from cudal2_agent.knowledge.store.vectors import Document

_BATCH_PIECES = 4000
_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 8_000_000
_PAGE = 500


@dataclass(frozen=True)
class StagedFile:
    """A file version with everything that is stored for it. `terms`, `digests` and `documents` are parallel to its pieces."""

    split: SplitFile
    terms: Sequence[Terms]
    digests: Sequence[str]
    documents: Sequence[Document | None]


def prepare(split: SplitFile) -> StagedFile:
    split = split if split.terms else analysed(split)
    lines = split.text.split("\n")
    texts = ["\n".join(lines[piece.start_line - 1 : piece.end_line]) for piece in split.pieces]
    return StagedFile(
        split=split,
        terms=split.terms,
        digests=[text_sha256(text)[:16] for text in texts],
        documents=[document(split.path, piece, text) for piece, text in zip(split.pieces, texts, strict=True)],
    )


def document(path: str, piece: Piece, text: str) -> Document | None:
    """The document of a piece for Chroma; None for a piece without a vector."""
    embedded = embedded_text(piece, text)
    if not embedded:
        return None
    return Document(id=text_sha256(embedded)[:32], text=embedded, path=path, symbol=piece.symbol, kind=piece.kind)


def batches(splits: Iterable[SplitFile], held: Callable[[Collection[str]], set[str]]) -> Iterator[list[StagedFile]]:
    """Batches of the files that are not stored yet, each once, ready to be written."""
    batch: list[StagedFile] = []
    for split in splits:
        if held([split.key]) or any(split.key == each.split.key for each in batch):
            continue
        batch.append(prepare(split))
        if _full(batch):
            yield batch
            batch = []
    if batch:
        yield batch


def _full(batch: Sequence[StagedFile]) -> bool:
    return (
        sum(len(each.split.pieces) for each in batch) >= _BATCH_PIECES
        or sum(document is not None for each in batch for document in each.documents) >= _BATCH_DOCUMENTS
        or sum(len(each.split.text) for each in batch) >= _BATCH_BYTES
    )


def insert_batch(connection: Connection, batch: Iterable[StagedFile]) -> None:
    for prepared in batch:
        split = prepared.split
        values = {
            "key": split.key,
            "path": split.path,
            "text_sha256": text_sha256(split.text),
            "text": pack(split.text),
            "terms": pack(json.dumps(list(prepared.terms), ensure_ascii=False)),
            "pieces": len(split.pieces),
        }
        file_id = connection.execute(insert(files).values(values).returning(files.c.id)).scalar_one()
        rows = [
            {
                "file_id": file_id,
                "record": piece.model_dump_json(),
                "text_digest": text_digest,
                "vector_id": document.id if document else "",
            }
            for piece, text_digest, document in zip(split.pieces, prepared.digests, prepared.documents, strict=True)
        ]
        if rows:
            connection.execute(insert(pieces), rows)


def text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def known(connection: Connection, column: ColumnElement[str], values: Collection[str]) -> set[str]:
    """The subset of the values that a column contains."""
    listed = sorted(values)
    found: set[str] = set()
    for start in range(0, len(listed), _PAGE):
        statement = select(column).distinct().where(column.in_(listed[start : start + _PAGE]))
        found.update(connection.execute(statement).scalars())
    return found


def put_release(connection: Connection, release: Release, keys: dict[str, str]) -> None:
    """Make staged file versions a release, in place of an older release of that name. Raises: KnowledgeError."""
    held = _file_ids(connection, set(keys.values()))
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


def delete_release(connection: Connection, release: str) -> None:
    """Raises: KnowledgeError if there is no such release."""
    connection.execute(delete(members).where(members.c.release == release))
    if not connection.execute(delete(releases).where(releases.c.name == release)).rowcount:
        names = connection.execute(select(releases.c.name).order_by(releases.c.name)).scalars()
        raise KnowledgeError(f"release {release!r} is not indexed; indexed releases: {', '.join(names) or 'none'}")


def delete_unlisted(connection: Connection) -> int:
    """Delete the file versions that no release lists. Returns their number."""
    unlisted = select(files.c.id).where(files.c.id.not_in(select(members.c.file_id)))
    connection.execute(delete(pieces).where(pieces.c.file_id.in_(unlisted)))
    return connection.execute(delete(files).where(files.c.id.in_(unlisted))).rowcount


def _file_ids(connection: Connection, keys: Collection[str]) -> dict[str, tuple[int, int]]:
    """(id, number of pieces) of the file versions that are held, by key."""
    present = known(connection, files.c.key, keys)
    statement = select(files.c.key, files.c.id, files.c.pieces)
    return {key: (file_id, count) for key, file_id, count in connection.execute(statement) if key in present}
