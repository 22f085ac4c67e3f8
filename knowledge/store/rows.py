"""Pieces as they stand in the database, by id and in the order of a generation."""

import json
import zlib
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, func, select

from contract.base import Record
from contract.knowledge import Piece
from knowledge.lexical.lexical_index import Entry
from knowledge.store.tables import files, members, pieces

_PAGE = 500  # ids in one statement


class Row(Record):
    """A piece with where it stands; its text is the lines of `Store.text(file_key)`."""

    piece_id: int
    path: str
    file_key: str
    piece: Piece


def rows_by_id(connection: Connection, ids: Sequence[int]) -> list[Row]:
    """The pieces in the order of the ids; an id that is not held is left out."""
    found: dict[int, Row] = {}
    for start in range(0, len(ids), _PAGE):
        page = [int(each) for each in ids[start : start + _PAGE]]
        statement = select(pieces.c.id, files.c.path, files.c.key, pieces.c.record).join(files).where(pieces.c.id.in_(page))
        for piece_id, path, key, record in connection.execute(statement):
            piece = Piece.model_validate_json(record)
            found[piece_id] = Row(piece_id=piece_id, path=path, file_key=key, piece=piece)
    return [found[each] for each in map(int, ids) if each in found]


def entries(connection: Connection) -> Iterator[Entry]:
    """Every published piece, file by file in the order of their ids, as the lexical index takes it."""
    releases = func.group_concat(members.c.release, "\n")
    listed = select(members.c.file_id, releases.label("releases")).group_by(members.c.file_id).subquery()
    statement = select(files.c.id, files.c.path, files.c.terms, listed.c.releases).join(listed).order_by(files.c.id)
    for file_id, path, packed, names in connection.execute(statement):
        inside = select(pieces.c.id, pieces.c.record, pieces.c.vector_id).where(pieces.c.file_id == file_id)
        found = connection.execute(inside.order_by(pieces.c.id)).all()
        for (piece_id, record, vector_id), terms in zip(found, unpack_terms(packed), strict=True):
            piece = Piece.model_validate_json(record)
            yield Entry(piece_id, path, piece, terms, tuple(sorted(names.split("\n"))), vector_id)


def pack(text: str) -> bytes:
    """Text as it is stored; what is no valid Unicode comes back as it went in."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpack(packed: bytes) -> str:
    return zlib.decompress(packed).decode("utf-8", "surrogatepass")


def unpack_terms(packed: bytes) -> list[dict[str, str]]:
    terms: list[dict[str, str]] = json.loads(unpack(packed))
    return terms
