"""Alembic's entry: runs the migrations on the connection, and within the transaction, that the caller opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
