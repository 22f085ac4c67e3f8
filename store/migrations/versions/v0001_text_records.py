"""The store of version 0.1: records as JSON text. Versions before chat servers lack `prompts` and `exchanges`."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    existing = set(sa.inspect(op.get_bind()).get_table_names())
    for table in _tables().sorted_tables:
        if table.name not in existing:
            table.create(op.get_bind())


def _tables() -> sa.MetaData:
    metadata = sa.MetaData()
    sa.Table("cudal2_meta", metadata, _text("key", 64, key=True), sa.Column("value", sa.String(255), nullable=False))
    sa.Table(
        "runs",
        metadata,
        _text("run_id", 128, key=True),
        _text("created_at", 40),
        _text("status", 16),
        _text("shape", 64),
        _record(),
    )
    for name in ("observations", "candidates", "prompts"):
        sa.Table(name, metadata, _text("id", 64, key=True), _record())
    sa.Table(
        "steps",
        metadata,
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("observation_id", sa.String(64), sa.ForeignKey("observations.id"), nullable=False),
        sa.Column("candidate_id", sa.String(64), sa.ForeignKey("candidates.id"), nullable=False),
        _text("status", 24),
        sa.Column("reward", sa.Float),
        _record(),
        sa.Index("steps_by_candidate", "candidate_id"),
    )
    sa.Table(
        "exchanges",
        metadata,
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        *(sa.Column(name, sa.Integer, primary_key=True, autoincrement=False) for name in ("round", "sample", "turn")),
        sa.Column("prompt_id", sa.String(64), sa.ForeignKey("prompts.id"), nullable=False),
        _text("status", 16),
        _record(),
    )
    return metadata


def _text(name: str, length: int, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), primary_key=key, nullable=False)


def _record() -> sa.Column[str]:
    return sa.Column("record", sa.Text, nullable=False)
