"""Pieces as rows of the database: by id, of a release, and in the order of a generation."""

import json
import zlib
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, func, select
from sqlalchemy import Row as RowTuple

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.knowledge import Piece
from cudal2_agent.knowledge.lexical.lexical_index import IndexedPiece
from cudal2_agent.knowledge.store.tables import files, members, pieces

_PAGE = 500  # ids per statement


class Row(Record):
    """A piece and its file. Its text is a range of the lines of `KnowledgeBase.text(file_key)`."""

    piece_id: int
    path: str
    file_key: str
    piece: Piece


def rows_by_id(connection: Connection, ids: Sequence[int]) -> list[Row]:
    """The pieces in the order of the ids, without ids that are not stored."""
    found: dict[int, Row] = {}
    for start in range(0, len(ids), _PAGE):
        page = [int(each) for each in ids[start : start + _PAGE]]
        statement = select(pieces.c.id, files.c.path, files.c.key, pieces.c.record).join(files).where(pieces.c.id.in_(page))
        for piece_id, path, key, record in connection.execute(statement):
            piece = Piece.model_validate_json(record)
            found[piece_id] = Row(piece_id=piece_id, path=path, file_key=key, piece=piece)
    return [found[each] for each in map(int, ids) if each in found]


def entries(connection: Connection) -> Iterator[IndexedPiece]:
    """Every published piece for the lexical index, in the order of the file ids."""
    releases = func.group_concat(members.c.release, "\n")
    listed = select(members.c.file_id, releases.label("releases")).group_by(members.c.file_id).subquery()
    statement = select(files.c.id, files.c.path, files.c.terms, listed.c.releases).join(listed).order_by(files.c.id)
    for file_id, path, packed, names in connection.execute(statement):
        inside = select(pieces.c.id, pieces.c.record, pieces.c.vector_id).where(pieces.c.file_id == file_id)
        found = connection.execute(inside.order_by(pieces.c.id)).all()
        for (piece_id, record, vector_id), terms in zip(found, unpack_terms(packed), strict=True):
            piece = Piece.model_validate_json(record)
            yield IndexedPiece(piece_id, path, piece, terms, tuple(sorted(names.split("\n"))), vector_id)


def manifest_of(connection: Connection, release: str) -> dict[str, str]:
    """File key by path of a release, in the order of the paths."""
    statement = select(members.c.path, files.c.key).join(files).where(members.c.release == release)
    return {row.path: row.key for row in connection.execute(statement.order_by(members.c.path))}


def pieces_of(connection: Connection, release: str) -> Sequence[RowTuple[str, str, str]]:
    """(path, JSON of the piece, digest of its text) of a release, in the order of path and line."""
    statement = (
        select(members.c.path, pieces.c.record, pieces.c.text_digest)
        .join(pieces, pieces.c.file_id == members.c.file_id)
        .where(members.c.release == release)
        .order_by(members.c.path, pieces.c.id)
    )
    return connection.execute(statement).all()


def has_vectors(connection: Connection) -> bool:
    return connection.execute(select(pieces.c.id).where(pieces.c.vector_id > "").limit(1)).first() is not None


def pack(text: str) -> bytes:
    """Compressed text. Invalid Unicode is preserved."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpack(packed: bytes) -> str:
    return zlib.decompress(packed).decode("utf-8", "surrogatepass")


def unpack_terms(packed: bytes) -> list[dict[str, str]]:
    terms: list[dict[str, str]] = json.loads(unpack(packed))
    return terms
