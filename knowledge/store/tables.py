"""The tables of `knowledge.sqlite`."""

from sqlalchemy import Column, ForeignKey, Integer, LargeBinary, MetaData, String, Table

FORMAT = 1

metadata = MetaData()

# Keys: format, store (a random name), embedder, collections (number of rebuilds of the vectors), generation.
meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", String, nullable=False))

files = Table(
    "files",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String, nullable=False, unique=True),
    Column("path", String, nullable=False),
    Column("text_sha256", String, nullable=False),
    Column("text", LargeBinary, nullable=False),  # zlib
    Column("terms", LargeBinary, nullable=False),  # zlib of JSON: search words by field, parallel to the pieces
    Column("pieces", Integer, nullable=False),
    sqlite_autoincrement=True,  # ids are never reused: a reader of an old generation must not find a new file under one
)

pieces = Table(
    "pieces",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("file_id", ForeignKey("files.id"), nullable=False, index=True),
    Column("record", String, nullable=False),  # JSON of the Piece
    Column("text_digest", String, nullable=False),
    Column("vector_id", String, nullable=False, index=True),  # empty for a piece without a vector
    sqlite_autoincrement=True,
)

releases = Table(
    "releases",
    metadata,
    Column("name", String, primary_key=True),
    Column("record", String, nullable=False),  # JSON of the Release
)

members = Table(
    "members",
    metadata,
    Column("release", ForeignKey("releases.name"), primary_key=True),
    Column("path", String, primary_key=True),
    Column("file_id", ForeignKey("files.id"), nullable=False, index=True),
)
