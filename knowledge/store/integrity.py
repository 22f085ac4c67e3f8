"""Consistency checks of a knowledge base, reported as sentences."""

import zlib
from collections.abc import Iterator

from sqlalchemy import Connection, func, select

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.records.knowledge import Piece, Release
from cudal2_agent.knowledge.store.database import get
from cudal2_agent.knowledge.store.generations import Generations
from cudal2_agent.knowledge.store.rows import unpack
from cudal2_agent.knowledge.store.staging import text_sha256
from cudal2_agent.knowledge.store.tables import files, members, pieces, releases
from cudal2_agent.knowledge.store.vectors import VectorStore


def problems(connection: Connection, generations: Generations, vectors: VectorStore) -> list[str]:
    """Problems of manifests, file versions, lexical index and vectors, as sentences; empty if there are none."""
    return [
        *_database(connection),
        *_manifests(connection),
        *_files(connection),
        *_lexical(connection, generations),
        *_vectors(connection, vectors),
    ]


def _database(connection: Connection) -> Iterator[str]:
    for line in connection.exec_driver_sql("PRAGMA quick_check").scalars():
        if line != "ok":
            yield f"The database is damaged: {line}."


def _manifests(connection: Connection) -> Iterator[str]:
    count = func.count(members.c.path), func.coalesce(func.sum(files.c.pieces), 0)
    for record in connection.execute(select(releases.c.record)).scalars():
        release = Release.model_validate_json(record)
        statement = select(*count).select_from(members.join(files)).where(members.c.release == release.name)
        listed, held = connection.execute(statement).one()
        if (listed, held) != (release.files, release.pieces):
            yield (
                f"Release {release.name} should list {release.files} files with {release.pieces} pieces "
                f"but lists {listed} with {held}."
            )


def _files(connection: Connection) -> Iterator[str]:
    statement = select(files.c.id, files.c.path, files.c.key, files.c.text, files.c.text_sha256, files.c.pieces)
    for file_id, path, key, packed, sha256, count in connection.execute(statement):
        inside = select(pieces.c.record, pieces.c.text_digest).where(pieces.c.file_id == file_id)
        found = connection.execute(inside.order_by(pieces.c.id)).all()
        if len(found) != count:
            yield f"{path} ({key[:12]}) should have {count} pieces but has {len(found)}."
        try:
            text = unpack(packed)
        except (zlib.error, UnicodeDecodeError) as exc:
            yield f"The text of {path} ({key[:12]}) cannot be read: {exc}."
            continue
        if text_sha256(text) != sha256:
            yield f"The text of {path} ({key[:12]}) differs from the one that was stored."
            continue
        wrong = _wrong_digests(text, [(Piece.model_validate_json(record), recorded) for record, recorded in found])
        if wrong:
            yield f"{wrong} pieces of {path} ({key[:12]}) do not match its text."


def _wrong_digests(text: str, recorded: list[tuple[Piece, str]]) -> int:
    lines = text.split("\n")
    texts = ("\n".join(lines[piece.start_line - 1 : piece.end_line]) for piece, _ in recorded)
    return sum(text_sha256(text)[:16] != value for text, (_, value) in zip(texts, recorded, strict=True))


def _lexical(connection: Connection, generations: Generations) -> Iterator[str]:
    generation = int(get(connection, "generation"))
    if not generation:
        return
    published = select(func.count()).select_from(pieces).where(pieces.c.file_id.in_(select(members.c.file_id)))
    count = connection.execute(published).scalar_one()
    if not generations.intact(generation):
        yield f"The lexical index (generation {generation}) is missing or damaged; to repair it: cudal2-agent index rebuild."
    elif generations.pieces(generation) != count:
        yield f"The lexical index has {generations.pieces(generation)} pieces, the releases have {count}."


def _vectors(connection: Connection, vectors: VectorStore) -> Iterator[str]:
    wanted = set(connection.execute(select(pieces.c.vector_id).distinct()).scalars()) - {""}
    if not wanted:
        return
    try:
        held = vectors.ids()
    except KnowledgeError as exc:
        yield f"The vectors cannot be read: {exc}."
        return
    if missing := wanted - held:
        yield f"{len(missing)} of {len(wanted)} vectors are missing; to repair them: cudal2-agent index rebuild."
