"""Releases as rows: published, removed, and the file versions that no release lists."""

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.contract.records.knowledge import Release
from cudal2_agent.knowledge.store.staging import known
from cudal2_agent.knowledge.store.tables import files, members, pieces, releases


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
