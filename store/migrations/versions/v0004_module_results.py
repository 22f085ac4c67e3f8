"""Rows of modules in campaigns. The tables that exist stay as they are."""

from alembic import op

from cudal2_agent.store import tables

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    """`v0002` creates today's tables, so that this one may exist."""
    tables.metadata.create_all(op.get_bind(), tables=[tables.module_results])
