"""Campaigns: their queues, their results, and tuned baselines. The tables that exist stay as they are."""

from alembic import op

from cudal2_agent.store import tables

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    """`v0002` creates today's tables, so that these may exist."""
    new = [tables.campaigns, tables.campaign_items, tables.shape_results, tables.tuned_baselines]
    tables.metadata.create_all(op.get_bind(), tables=new)
